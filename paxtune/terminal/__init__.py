"""A running study, for people: a screen in a terminal and in a notebook, lines elsewhere.

A screen is a pure function of a `StudyState`. Documents that are printed once are in
`paxtune.reports`.
"""
