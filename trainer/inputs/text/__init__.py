"""Inputs over text: files, the embedded corpus, JSON lines, and C4.

Rows of token ids come from `trainer.inputs.tokens`. SeqIO and Grain have folders beside this one.
"""
