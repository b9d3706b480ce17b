"""All presets, as data: nothing here imports PyTorch, so that ``reverie list`` is quick."""

from __future__ import annotations

from reverie.experiment import dreamer_presets, model_free_presets, offline_presets, on_policy_presets, tdmpc2_presets

TABLE = (
    dreamer_presets.TABLE
    | tdmpc2_presets.TABLE
    | model_free_presets.TABLE
    | on_policy_presets.TABLE
    | offline_presets.TABLE
)
"""All presets by name."""
