"""The configuration of a search: `Search` and its components.

Each component is plain data that checks itself. Objectives, algorithms and schedulers have folders
of their own. Nothing here reads or writes a study.
"""
