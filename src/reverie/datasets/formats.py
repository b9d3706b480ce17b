"""The formats of datasets that are detected, the most specific first. No reader is imported before it is used."""

from __future__ import annotations

import itertools

from reverie.core.registry import Entry, with_installed

ENTRY_POINTS = "reverie.readers"
"""Group of entry points with which packages add readers, which are asked before those of this library."""

FORMATS = (
    Entry("Minari", "reverie.datasets.minari:MinariReader", "folders"),
    Entry("runs and stores", "reverie.datasets.replay_store:StoreReader", "folders"),
    Entry("LeRobot", "reverie.datasets.lerobot:LeRobotReader", "folders"),
    Entry("RLDS", "reverie.datasets.rlds:RLDSReader", "folders"),
    Entry("diffusion policy", "reverie.datasets.diffusion_policy:DiffusionPolicyReader", "folders"),
    Entry("Tianshou", "reverie.datasets.tianshou:TianshouReader", "HDF5"),
    Entry("d3rlpy 2", "reverie.datasets.d3rlpy:D3rlpyReader", "HDF5"),
    Entry("robomimic", "reverie.datasets.robomimic:RobomimicReader", "HDF5"),
    Entry("ALOHA/ACT", "reverie.datasets.act:ActReader", "HDF5"),
    Entry("D4RL", "reverie.datasets.hdf5:D4RLReader", "HDF5"),
    Entry("Dreamer", "reverie.datasets.dreamer_replay:DreamerReader", "npz"),
    Entry("PyDreamer", "reverie.datasets.pydreamer:PyDreamerReader", "npz"),
    Entry("imitation", "reverie.datasets.imitation:ImitationReader", "npz"),
    Entry("Stable-Baselines 2", "reverie.datasets.npz:StableBaselines2Reader", "npz"),
    Entry("OGBench", "reverie.datasets.npz:OGBenchReader", "npz"),
    Entry("NumPy arrays", "reverie.datasets.npz:ArraysReader", "npz"),
    Entry("RL Unplugged", "reverie.datasets.rl_unplugged:RLUnpluggedReader", "TFRecord"),
    Entry("tables", "reverie.datasets.table:TableReader", "Arrow, Parquet, CSV, TSV"),
)


def formats() -> dict[str, Entry]:
    """Return the formats by name, those of installed packages first."""
    entries = with_installed(FORMATS, ENTRY_POINTS)
    return {name: entries[name] for name in sorted(entries, key=lambda name: entries[name] in FORMATS)}


def format_names() -> str:
    """Return the names of all formats, grouped by what their files are."""
    groups = itertools.groupby(formats().values(), key=lambda entry: entry.group)
    return "; ".join(f"{group}: {', '.join(entry.name for entry in rows)}" for group, rows in groups)
