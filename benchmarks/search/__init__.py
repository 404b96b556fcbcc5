"""Problems, methods and comparisons of `benchmarks/search_quality.py`."""
