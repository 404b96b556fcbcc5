"""Transfer across sizes: models at other widths, coordinate checks, scaling laws.

The parametrization itself is `trainer.learner.WidthScaling`.
"""
