"""Encodings of a search space: unit cubes, scales, enumerations and random draws.

All algorithms share these pure functions. The algorithms themselves have files or folders of their
own beside this one.
"""
