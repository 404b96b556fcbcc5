"""Objectives: metrics by name, rewards, limits, aggregation over steps, and Pareto fronts.

Everything here turns measured numbers into numbers that can be compared, and is pure. The
measuring itself is the work of the trainer. Decisions of trials do not appear here.
"""
