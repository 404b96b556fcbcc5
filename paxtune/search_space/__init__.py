"""Search spaces: decisions, their names, constraints, and decoding to concrete values.

Everything here is about one symbolic value with open decisions, and is pure. Suggesting decisions
is the work of `paxtune.algorithms`; studies and trials do not appear here.
"""
