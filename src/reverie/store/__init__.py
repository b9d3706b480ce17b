"""Every row of a run on disk or behind a URL, in Zarr; nothing is lost when the process is killed.

May import only core. Start reading at ``store.ReplayStore``.
"""
