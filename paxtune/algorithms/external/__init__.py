"""Algorithms of other libraries: PyGlove, Vizier, and user classes by import path.

Each adapter rebuilds the state of the algorithm from the observations. Algorithms of this project
lie in the folders beside this one.
"""
