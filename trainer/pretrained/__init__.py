"""Pretrained models of others: directories of Hugging Face.

`config.json` describes a model, and safetensors files have its weights. A `Family` knows both for
one architecture, in both directions. `trainer.warm_start` loads the weights, `trainer.convert`
writes experiments and directories.
"""
