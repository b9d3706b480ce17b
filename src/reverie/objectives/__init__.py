"""Pure functions of tensors: returns, TD errors, KL, quantile regression, policy losses. No state, no networks.

May import core alone.
Begin with ``returns``; each function names its paper and equation.
"""
