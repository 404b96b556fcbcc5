"""Bayesian optimization with a Gaussian process."""
