"""Inputs over SeqIO tasks and mixtures, and the metrics that these define.

TensorFlow is imported at first use. Inputs without SeqIO live in the folders beside this one.
"""
