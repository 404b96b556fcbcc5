"""Checkpoints: written, read, kept, and handed over to other runs.

This room decides the layout on disk and the retention of checkpoints. When a checkpoint is due is
decided in `trainer.loop`.
"""
