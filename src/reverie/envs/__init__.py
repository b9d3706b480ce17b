"""Environments as rows: make, wrap, and step them in this process or in workers, and save them mid-episode.

May import only core. Only ``native_vector_env`` and ``slot_vector_env`` import torch: worker processes import all other
files, and torch would cost each of them seconds and hundreds of megabytes. Start reading at
``slot_vector_env.make_vector_env``; ``flat_env`` converts one environment to rows, ``suites`` lists the packages.
"""
