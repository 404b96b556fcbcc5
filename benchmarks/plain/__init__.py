"""What people would write without a framework: the same model and the same step."""
