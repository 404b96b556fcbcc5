"""Inputs over documents in text, ArrayRecord and Parquet files, read by Grain.

Grain is imported at first use. Rows of token ids come from `trainer.inputs.tokens`.
"""
