"""Compiled programs: step functions of a task on a mesh, their set-up and their costs.

This room traces and compiles. It does not loop over steps, and it writes no files. Layers and
tasks define the mathematics.
"""
