"""Inputs over arrays: in memory, in files of numpy, and the embedded images.

The order of their examples comes from `trainer.inputs.indexed`.
"""
