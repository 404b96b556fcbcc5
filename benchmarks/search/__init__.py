"""What `benchmarks/search_quality.py` searches, with what, and how it compares."""
