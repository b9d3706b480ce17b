"""Recorded datasets as rows: readers of each format, checks, conversion, export, downloads.

May import replay, envs and the rooms below them; experiment, agent, api and cli import it. Start reading at
``reader.Reader`` and ``table`` for a format, and at ``dataset`` for how a run reads the data.
"""
