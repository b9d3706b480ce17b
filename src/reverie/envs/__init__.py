"""Environments as rows: make, wrap, and step them in this process or in workers, and save them mid-episode.

May import only core. Worker processes import ``worker``, ``flat_env`` and what these need without torch, which would
cost each of them seconds and hundreds of megabytes. Start reading at
``slot_vector_env.make_vector_env``; ``flat_env`` converts one environment to rows, ``suites`` lists the packages.
"""
