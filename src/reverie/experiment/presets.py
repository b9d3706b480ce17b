"""All presets, as data: nothing here imports PyTorch, so that ``reverie list`` is fast."""

from __future__ import annotations

from reverie.experiment import model_based_presets, model_free_presets, offline_presets

TABLE = model_based_presets.TABLE | model_free_presets.TABLE | offline_presets.TABLE
"""All presets by name."""
