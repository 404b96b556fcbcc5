"""Bayesian optimization with a Gaussian process: model, acquisition functions, optimizer."""
