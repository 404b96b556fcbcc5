"""The same model and the same step without a framework."""
