"""Environments to rows: made, wrapped, stepped together in this process or in workers, saved amid an episode.

May import core alone. Only ``batched`` and ``vector`` import torch: worker processes import all other files, and each
would spend seconds and hundreds of megabytes on it.
Begin with ``vector.make_env``; ``flat`` turns one environment into rows, ``suites`` knows the packages.
"""
