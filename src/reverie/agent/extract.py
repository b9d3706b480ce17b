"""Write a world model's states for recorded rows, their distributions, and its predictions."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.agent.loading import load
from reverie.agent.world_model_inspector import default_seed, require_world_model
from reverie.algos.base import INTERNAL_PREFIX, prediction_name
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import check_local, check_writable, disk_errors_as_run_error
from reverie.core.logger import logger
from reverie.core.rows import Rows, concat_rows
from reverie.core.seeding import seeded_rng
from reverie.core.types import FLAGS, Obs
from reverie.datasets.data_path import DataLike
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.output import delete, staged_file
from reverie.datasets.reader import read_progress
from reverie.nn.probe import Probe
from reverie.nn.state_space import Latent

PIECE_ROWS, CHUNK_BYTES = 256, 4 * 2**20
"""Rows that the model observes at once; maximum bytes of a chunk in a file, unless a piece is larger."""

UNITS = {
    "episode": "number of the episode, from 0 in the order of the data",
    "step": "number of the row in its episode, from 0",
    "is_first": "whether an episode begins here",
    "is_last": "whether an episode ends here",
    "is_terminal": "whether the episode terminates here",
    "action": "action taken at the row: one-hot if discrete, else in [-1, 1]; zeros where is_last",
    "reward": "reward received with the row, as the learner sees it",
    "state/deter": "h of the row, the deterministic part of the state [D]",
    "state/stoch": "z of the row, sampled from the posterior [S, C]; one-hot if categorical",
    "state/value": "the critic's value of the row: the discounted sum of the rewards after it",
    "prediction/reward": "expected reward of the row, as the learner sees rewards",
    "prediction/cont": "probability that the episode continues after the row",
    "logits": "ln p of each class of z [S, C]",
}
"""The unit of each array; for observations it depends on their kind (:func:`_unit`)."""


@dataclass(frozen=True, kw_only=True)
class ExtractReport:
    """The result of :func:`extract`."""

    path: Path
    """The file or folder."""
    manifest: dict[str, Any]
    """``run``, ``checkpoint``, ``data``, ``seed``, ``rows``, ``episodes``, and ``arrays``: shape, dtype and unit."""


def extract(
    agent: Agent | Path | str, *, out: Path | str, data: DataLike | None = None,
    checkpoint: Path | str | None = None, device: str = "auto", seed: int | None = None, overwrite: bool = False,
) -> ExtractReport:  # fmt: skip
    """Let a world model observe recorded episodes, and write its states and predictions for each row.

    The arrays, ``[rows, ...]`` each, are ``episode``, ``step``, ``is_first``, ``is_last``, ``is_terminal``, ``action``
    and ``reward`` of the data, to join rows with; ``state/deter``, ``state/stoch`` and ``state/value``;
    ``posterior/logits``, after the model observed the row, and ``prior/logits``, before; ``prediction/KEY`` for each
    observation, ``reward`` and ``cont``, from the state; and ``probe/KEY`` for each probe, from the state and its
    additional inputs. Predicted images are rounded to the observations' dtype.

    Args:
        agent: an agent, or the run folder of one.
        out: output path: ``.zarr`` for a Zarr group, which takes little memory for any number of rows; or ``.npz``,
            which keeps all arrays in memory.
        data: a dataset that matches the agent: a path, minari:NAME, data in memory, or a DatasetConfig. None: the rows
            that the run has collected, or the dataset of an offline run.
        checkpoint: for a run folder, as in :func:`reverie.load`.
        device: for a run folder, as in :func:`reverie.load`.
        seed: for sampling the states. None: derived from the run's seed.
        overwrite: whether to replace an existing output at ``out``, once the new one is complete.

    Raises:
        ConfigError: ``out`` has another suffix, or the algorithm has no world model.
        DataError: ``data`` cannot be read, or do not match the agent.
        RunError: the run does not exist, or ``out`` exists or cannot be written.
    """
    path = _check_target(out, overwrite)
    if not isinstance(agent, Agent):
        agent = load(agent, checkpoint=checkpoint, device=device)
    require_world_model(agent)
    target = path.with_name(f".new-{path.name}") if overwrite else path
    with agent.open_dataset(data) as recorded, disk_errors_as_run_error(path), seeded_rng(default_seed(agent, seed)):
        path.parent.mkdir(parents=True, exist_ok=True)
        delete(target)
        progress = read_progress(f"extracting {recorded.reader.path.name}", recorded.rows())
        with staged_file(target) as staged, progress as track_progress:
            arrays = ArrayWriter(staged, on_disk=path.suffix == ".zarr")
            for piece in _iter_extracted(agent, recorded, track_progress(recorded.parts())):
                arrays.add(piece)
            origin = {"run": str(agent.run), "checkpoint": agent.checkpoint.name, "data": str(recorded.reader.path)}
            manifest = arrays.finish(agent, origin | {"seed": default_seed(agent, seed)})
        if overwrite:
            delete(path)
            os.replace(target, path)
        for remark in recorded.remarks():
            logger.warning(f"{recorded.reader.path}: {remark}")
    return ExtractReport(path=path, manifest=manifest)


def _check_target(out: Path | str, overwrite: bool) -> Path:
    check_local(out, "out")
    path = Path(out).expanduser()
    if path.suffix not in (".zarr", ".npz"):
        raise ConfigError(f"out = {out}: expected a name that ends with .zarr (for any amount of data) or .npz.")
    if path.exists() and not overwrite:
        raise RunError(f"{path} exists: choose another name, or replace it with overwrite (--overwrite).")
    if path.is_dir() and not (path / "zarr.json").is_file():
        raise RunError(f"{path} is a folder that was not written by extract: choose another name.")
    check_writable(path.parent)
    return path


@torch.no_grad()
def _iter_extracted(agent: Agent, recorded: RecordedEpisodes, parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield the arrays of up to ``PIECE_ROWS`` consecutive rows; the model state is carried over between pieces."""
    learner = require_world_model(agent)
    world, context = learner.world, None
    episode, step = -1, 0
    for rows in rechunk(parts, PIECE_ROWS):
        batch = recorded.batch(rows, 0).to(agent.algo.device)  # [1, n]
        _, latent, stats = world.observe(batch, context)
        context = Context(latent.map(lambda x: x[:, -1]), batch.action[:, -1])
        first = rows["is_first"].copy()
        first[0] |= episode < 0  # data that start in the middle of an episode
        episode_numbers = episode + np.cumsum(first)
        step_numbers = np.arange(len(first)) - np.maximum.accumulate(np.where(first, np.arange(len(first)), -step))
        episode, step = int(episode_numbers[-1]), int(step_numbers[-1]) + 1
        arrays: Rows = {"episode": episode_numbers, "step": step_numbers, **{name: rows[name] for name in FLAGS}}
        arrays |= {"action": to_numpy(batch.action[0]), "reward": to_numpy(batch.reward[0])}
        yield arrays | _latent_arrays(agent, latent, stats, batch.obs)


def _latent_arrays(agent: Agent, latent: Latent, stats: torch.Tensor, obs: Obs) -> Rows:
    """Return the states ``[1, n, ...]``, their distributions and predictions as arrays ``[n, ...]``."""
    learner = require_world_model(agent)
    rssm = learner.world.rssm
    arrays: Rows = {}
    for name, values in learner.describe_latent(latent).items():
        array_name = (
            f"state/{name.removeprefix(INTERNAL_PREFIX)}" if name.startswith(INTERNAL_PREFIX) else f"prediction/{name}"
        )
        arrays[array_name] = to_numpy(values[0])
    for moment, distribution in (("posterior", stats), ("prior", rssm.p(latent.deter))):
        arrays |= {f"{moment}/{name}": to_numpy(values[0]) for name, values in rssm.stats_by_name(distribution).items()}
    if isinstance(probe := getattr(agent.algo, "probe", None), Probe):
        arrays |= {
            f"probe/{key}": to_numpy(prediction.value()[0]) for key, prediction in probe(latent.feature, obs).items()
        }
    if "posterior/logits" in arrays:
        arrays["state/stoch"] = arrays["state/stoch"].astype(np.uint8)
    for key, part in agent.obs_spec.items():
        array_name = f"prediction/{prediction_name(key)}"
        if part.kind == "image" and part.dtype == "uint8" and array_name in arrays:
            arrays[array_name] = np.rint(arrays[array_name]).clip(0, 255).astype(np.uint8)
    return arrays


def rechunk(parts: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Yield the rows of ``parts``, ``[n, ...]`` by column, ``size`` at a time; the last piece may be shorter."""
    pending: list[Rows] = []
    for part in parts:
        pending.append(part)
        while sum(len(rows["is_first"]) for rows in pending) >= size:
            rows = concat_rows(pending)
            yield {name: values[:size] for name, values in rows.items()}
            pending = [{name: values[size:] for name, values in rows.items()}]
    if pending and len((rows := concat_rows(pending))["is_first"]):
        yield rows


def _unit(agent: Agent, name: str) -> str:
    for key, part in agent.obs_spec.items():
        if name in (f"prediction/{prediction_name(key)}", f"probe/{key}"):
            images = f"{part.low:g} is black, {part.high:g} is white"
            numbers = {"vector": "the environment's units", "categorical": "probability of each class [n, C]"}
            return numbers.get(part.kind, images)
    return UNITS.get(name) or UNITS.get(name.rpartition("/")[2]) or "in the units of the world model"


class ArrayWriter:
    """Arrays to which rows are appended: a Zarr group, or arrays in memory that become an ``.npz``."""

    def __init__(self, path: Path, on_disk: bool) -> None:
        import zarr  # takes a second

        self._path, self._on_disk = path, on_disk
        self._group = zarr.open_group(path if on_disk else {}, mode="w")
        self._arrays: dict[str, Any] = {}
        self._pending: dict[str, list[np.ndarray]] = {}  # pieces of the chunk that is not full yet

    def add(self, rows: Rows) -> None:
        """Add rows ``[n, ...]``, ``PIECE_ROWS`` of them unless they are the last."""
        for name, values in rows.items():
            if name not in self._arrays:
                shape, num_pieces = values.shape[1:], min(64, max(1, CHUNK_BYTES // (PIECE_ROWS * values[0].nbytes)))
                layout: dict[str, Any] = {
                    "shape": (0, *shape),
                    "chunks": (num_pieces * PIECE_ROWS, *shape),
                    "dtype": values.dtype,
                }
                layout["compressors"] = "auto" if self._on_disk else None
                self._arrays[name] = self._group.create_array(name, **layout)
            pending = self._pending.setdefault(name, [])
            pending.append(values)
            if len(pending) * PIECE_ROWS == self._arrays[name].chunks[0]:
                self._write(name)

    def _write(self, name: str) -> None:
        if chunks := self._pending.pop(name, []):
            self._arrays[name].append(np.concatenate(chunks))

    def finish(self, agent: Agent, origin: dict[str, Any]) -> dict[str, Any]:
        """Write the remaining rows and the manifest, and return the manifest: ``origin`` and a description of arrays.

        It is stored in the attributes of the Zarr group, whose arrays also have their units, or as JSON in
        ``manifest``.
        """
        array_info: dict[str, Any] = {}
        for name, entry in self._arrays.items():
            self._write(name)
            array_info[name] = {"shape": list(entry.shape), "dtype": str(entry.dtype), "unit": _unit(agent, name)}
            entry.attrs["unit"] = array_info[name]["unit"]
        episodes = int(self._arrays["episode"][-1]) + 1 if array_info else 0
        rows = array_info["episode"]["shape"][0] if array_info else 0
        manifest = origin | {"rows": rows, "episodes": episodes, "arrays": array_info}
        if self._on_disk:
            self._group.attrs.put(manifest)
        else:
            arrays: dict[str, Any] = {name: entry[:] for name, entry in self._arrays.items()}
            with self._path.open("wb") as file:
                np.savez_compressed(file, manifest=np.array(json.dumps(manifest)), **arrays)
        return manifest
