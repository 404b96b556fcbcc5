"""Checkpoints: written, read, kept, handed over to other runs, and used for warm starts.

This room decides the layout on disk and the retention of checkpoints. When a checkpoint is due is
decided in `trainer.loop`.
"""
