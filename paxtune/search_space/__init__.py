"""Search spaces: decisions, their names, constraints, and the way to concrete values.

Everything here is about one symbolic value with decisions in it, and is pure. Which decisions to
try next is the work of `paxtune.algorithms`. Studies and trials do not appear here.
"""
