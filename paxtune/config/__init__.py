"""The configuration of a search: `Search` and the components that it is made of.

These are plain data with checks. Objectives, algorithms and schedulers have folders of their own.
Nothing here reads or writes a study.
"""
