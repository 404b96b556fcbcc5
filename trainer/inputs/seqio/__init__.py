"""Inputs over SeqIO tasks and mixtures, and the metrics that these define.

TensorFlow is imported when one of them is used, not before. The rows of token ids come from
`trainer.inputs.tokens`.
"""
