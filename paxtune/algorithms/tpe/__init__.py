"""Tree-structured Parzen estimator: density of rows, and the algorithm that compares two."""
