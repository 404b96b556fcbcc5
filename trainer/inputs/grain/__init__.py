"""Inputs over documents in text, ArrayRecord and Parquet files, read by Grain.

Grain is imported when one of them is used, not before. The rows of token ids come from
`trainer.inputs.tokens`.
"""
