"""Schedulers and algorithms on recorded learning curves, without any training."""
