"""All presets, as data: nothing here imports PyTorch, so that ``reverie list`` is quick."""

from __future__ import annotations

from reverie.presets import dreamer, model_free, offline, on_policy, tdmpc2

TABLE = dreamer.TABLE | tdmpc2.TABLE | model_free.TABLE | on_policy.TABLE | offline.TABLE
"""All presets by name."""
