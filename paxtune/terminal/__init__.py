"""A study as it goes on, for people: a screen in a terminal and in a notebook, lines elsewhere.

A screen is a pure function of a `StudyState`. What is printed once is in `paxtune.reports`.
"""
