"""Rows in memory: storage, windows, samplers, priorities, prefetch; and their durable copy in a run.

May import store and core.
Begin with ``buffer.ReplayBuffer``; ``offline`` fills one from a dataset, ``persistent`` keeps one on disk.
"""
