"""CMA-ES: the algorithm and the distribution that it adapts.

The update rules come from the library `cmaes`. The encoding of spaces lies in
`paxtune.algorithms.encoding`.
"""
