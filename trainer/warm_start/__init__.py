"""Warm starts: fresh runs that begin with arrays of other runs, also of other architectures.

This room decides which array of a checkpoint becomes which array of the run. The rules themselves
are fields of an experiment, in `trainer.warm_start_rules`.
"""
