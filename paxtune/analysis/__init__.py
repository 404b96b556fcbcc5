"""Numbers that are computed from the trials of a study, and the state of a study at one moment.

Everything here is data. Tables of it are in `paxtune.reports`, figures in `paxtune.plots`.
"""
