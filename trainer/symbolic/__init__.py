"""The symbolic layer: components, fields, overrides, derived values, and JSON.

Everything here is about symbolic objects, and needs no JAX. Layers, learners, inputs and tasks
are components that live in rooms of their own.
"""
