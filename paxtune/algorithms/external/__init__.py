"""Algorithms of other libraries: PyGlove, Vizier, and classes of users by import path.

Each adapter rebuilds the state of the algorithm from recorded trials. Algorithms of our own lie
in the folders beside this one.
"""
