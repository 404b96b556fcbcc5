"""Evolutionary algorithms, with mutations and crossover as components.

`layer_lists` finds the lists of layers that mutations and crossover may rearrange. Population-based
training is a scheduler, and lies in `paxtune.schedulers`.
"""
