"""Environments to rows: made, wrapped, stepped together in this process or in workers, saved amid an episode.

May import core alone, and no torch in what workers run.
Begin with ``vector.make_env``; ``flat`` turns one environment into rows, ``suites`` knows the packages.
"""
