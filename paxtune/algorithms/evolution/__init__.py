"""Evolutionary algorithms: populations, mutations and crossover.

Mutations and crossover are components that all algorithms here share. `layer_lists` finds the
lists of layers that they may rearrange. Population-based training is a scheduler, and lies in
`paxtune.schedulers`.
"""
