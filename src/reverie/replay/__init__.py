"""Rows in memory: storage, windows, samplers, priorities, prefetch; and their durable copy in a run.

May import store and core.
Begin with ``replay.ReplayBuffer``; ``dataset`` is one of recorded rows, ``durable`` keeps one on disk.
"""
