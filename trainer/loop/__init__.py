"""The training loop, evaluation, decoding, and jobs beside a run.

This room combines the other rooms, step by step. Compiled programs come from `trainer.program`.
The commands at the root of `trainer` parse the flags.
"""
