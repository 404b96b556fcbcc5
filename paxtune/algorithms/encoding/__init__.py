"""Encodings of a search space for algorithms: unit cubes, scales, enumerations and samples.

Algorithms share these functions. They are pure. Each algorithm itself has its own file or folder
beside this one.
"""
