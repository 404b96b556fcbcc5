"""Supernets: one model with the weights of all candidates of its layers, and ranking of its paths.

The layer that chooses is `trainer.layers.ChoiceLayer`.
"""
