"""The training loop, evaluation, decoding, and jobs beside a run.

This room puts the others together, step by step. Compiled programs come from `trainer.program`.
The commands at the root of `trainer` parse the flags.
"""
