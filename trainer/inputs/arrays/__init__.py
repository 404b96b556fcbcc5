"""Inputs over arrays: in memory, in numpy files, and the embedded images.

The order of their examples comes from `trainer.inputs.indexed`.
"""
