"""Data recorded by others: readers of each format, checks, conversion, export, downloads; rows come out.

May import replay, envs and the rooms below them; experiment, agent, api and cli import it.
Begin with ``reader.Reader`` and ``table`` for a format, ``dataset`` for how a run reads the data.
"""
