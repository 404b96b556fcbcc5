"""Inputs to fine-tune language models: pairs of prompt and answer, and conversations.

Readers of records, chat templates, tokens with a mask of answers, and packing of whole examples.
"""
