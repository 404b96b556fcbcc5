"""Objectives: metrics by name, rewards, limits, aggregation over steps, and Pareto fronts.

Everything here converts measured numbers to numbers that compare trials, and is pure. Measuring is
the work of the trainer; decisions of trials do not appear here.
"""
