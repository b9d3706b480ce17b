"""Every row of a run on disk or behind a URL, in Zarr; nothing is lost when the process is killed.

May import core alone.
Begin with ``store.Store``.
"""
