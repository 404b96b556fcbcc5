"""Reports: tables, plots and summaries of studies and search spaces for people.

Everything here reads a study and renders it, apart from the edits that `paxtune.studies` offers.
The commands at the root of `paxtune` parse the flags.
"""
