"""Numbers that are computed from the trials of a study: fronts by two numbers, importance.

Everything here is data. Tables of it are in `paxtune.reports`, figures in `paxtune.plots`.
"""
