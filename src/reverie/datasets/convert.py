"""Convert a dataset, or a part of it, to another format.

Datasets are never changed in place. A new dataset appears at its path only once it is complete.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces

from reverie.core.columns import ColumnSpec, row_columns
from reverie.core.errors import ConfigError, DataError, count_noun
from reverie.core.files import check_local, disk_errors_as_run_error, not_of_disk
from reverie.core.imports import import_object
from reverie.core.rows import Rows, iter_checked_rows, iter_episodes
from reverie.core.space_json import space_to_json
from reverie.core.spaces import cast, columns_in, columns_to_nested, map_leaves
from reverie.core.specs import FLAGS, IS_INTERVENTION, LATE_COLUMNS, spec_to_dict
from reverie.datasets import output, robot_writers, writers
from reverie.datasets.concat import ConcatReader
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.dataset_env import dataset_env_config, nondefault_settings
from reverie.datasets.minari import ELEMENT_NAMES, ENV_ID, ENV_SETTINGS, HAS_REWARDS_KEY, MEASURED_KEY, check_name
from reverie.datasets.options import PROPENSITY, Subset
from reverie.datasets.reader import (
    CLASSES,
    CONTROLLER,
    FPS,
    ROBOT,
    SEED,
    TRUNCATED_COLUMN,
    DatasetInfo,
    Reader,
    Space,
    check_rewards,
    read_progress,
)
from reverie.datasets.replay_store import ABOUT, SPEC, SeenReader
from reverie.datasets.validate import DataReport, environment_of
from reverie.envs.make import close_quietly, find_registered, spec_to_json
from reverie.envs.vector_steps import CLIPS

UNBOUNDED = "the action space is not declared: continuous actions are written without bounds"
SCALED = "the action space is not declared: actions are scaled by their recorded range, which the files do not store"
ZERO_REWARDS = "there are no rewards: those in the files are 0"
ONE_FLAG = "an episode is terminated and truncated at the same step: the copy says only that it terminated"
ROW_NAMES = frozenset({"obs", "action", "reward", *FLAGS, PROPENSITY, SEED, TRUNCATED_COLUMN})
"""Roots of the names of columns that writers know."""
EpisodeFilter = Callable[[Iterator[Rows]], Iterator[Rows]]
"""A function from episodes to the episodes to write."""


def write_dataset(reader: Reader, target: str, to: str = "auto", choose: EpisodeFilter = iter) -> output.WriteReport:
    """Write the episodes of ``reader`` that ``choose`` selects to ``target``, in the format ``to``.

    "auto": by the suffix of ``target``, else Minari. Minari, D4RL files and tables contain the values as recorded;
    Minari also the spaces and the environment. Rows of replay stores are converted back to the environment's
    observations and actions; if that is impossible, the environment is not named. PyDreamer files and stores contain
    rows as learners see them.
    """
    to = check_target(target, to)
    path, form, is_whole = output.target_path(target), OUTPUT_FORMATS[to], choose is iter
    _note_texts(reader, reader.info(), to)
    has_rewards = reader.info().has_rewards or isinstance(choose, Relabeling)
    progress = read_progress(f"writing {path.name}", reader.rows())
    with disk_errors_as_run_error(path), reader.locating_errors(is_whole), progress as track_progress:
        if not form.has_encoded_rows:
            info = replace(_env_info(reader), has_rewards=has_rewards)
            _note_settings(reader, info, to)
            episodes = _note_lost(reader, _select(reader, track_progress(reader.as_recorded()), choose), to)
            return form.write(episodes, path, replace(info, **_arguments_of(info)))
        recorded = RecordedEpisodes(reader)
        extras = {PROPENSITY: ColumnSpec((), "float64")} if recorded.about.has_propensity else {}
        extras |= {name: LATE_COLUMNS[name] for name in recorded.tags if name in form.stores}
        parts = reader.parts() if _stores_in(reader) else reader.as_recorded()
        selected = _note_lost(reader, _select(reader, track_progress(parts), choose), to)
        files = {
            SPEC: spec_to_dict(recorded.obs_spec, recorded.action_spec),
            ABOUT: _describe_rows(reader, has_rewards),
        }
        if to == "pydreamer" and recorded.about.inferred:
            _note_settings(reader, recorded.about, to)
            reader.add_remark(SCALED, int(recorded.about.has_measured_bounds))
            reader.add_remark(ZERO_REWARDS, int(not has_rewards))
            files = {}  # an environment can determine the kinds of observations
        columns = row_columns(recorded.obs_spec, recorded.action_spec, {}) | extras
        return form.write(recorded.convert(selected, is_whole, extras), path, columns, files)


def _select(reader: Reader, parts: Iterable[Rows], choose: EpisodeFilter) -> Iterator[Rows]:
    """Return the chosen episodes, checked after the choice, so that valid episodes can be chosen among invalid ones."""
    info, label = reader.info(), str(reader.path)
    needed = [name for name, _ in (*columns_in(info.observation, "obs"), *columns_in(info.action, "action"))]
    episodes = choose(iter_episodes(iter_checked_rows(parts, () if info.specs else needed, label, flags=False)))
    yield from iter_checked_rows(episodes, (), label)


def _note_lost(reader: Reader, episodes: Iterable[Rows], to: str) -> Iterator[Rows]:
    """Yield the episodes, and add a remark on what they contain that the format ``to`` does not store."""
    both, seeds, lost, stores = 0, 0, set[str](), OUTPUT_FORMATS[to].stores
    for rows in episodes:
        both += bool(rows.get(TRUNCATED_COLUMN, np.zeros(1, bool)).any())
        seeds += SEED in rows and rows[SEED][0] is not None
        lost |= {name for name in rows if name.partition("/")[0] not in ROW_NAMES | stores}
        yield rows
    reader.add_remark(ONE_FLAG, both * (TRUNCATED_COLUMN not in stores))
    reader.add_remark(f"the format {to} does not store the seed of an episode", seeds * (SEED not in stores))
    if lost:
        reader.add_remark(f"the format {to} does not store {', '.join(sorted(lost))}")


def _stores_in(reader: Reader) -> list[SeenReader]:
    if isinstance(reader, ConcatReader):
        return [store for inner in reader.readers for store in _stores_in(inner)]
    return [reader] if isinstance(reader, SeenReader) else []


def _env_info(reader: Reader) -> DatasetInfo:
    """Return the description of the dataset; for stores, with the environment's spaces, if it can be made."""
    for store in _stores_in(reader):
        if not store.knows_actions:
            env, reason = environment_of(store.info())
            observation, action = (env.observation_space, env.action_space) if env is not None else (None, None)
            store.set_spaces(observation, action, reason)
            if env is not None:
                close_quietly(env)
    return reader.info()


def _note_settings(reader: Reader, info: DatasetInfo, to: str) -> None:
    """Add a remark on the environment's settings that the format cannot store; Minari can with a recorded spec."""
    settings = nondefault_settings(info)
    if not settings or ("env_spec" in OUTPUT_FORMATS[to].stores and info.env_spec):
        return
    named = info.env and not OUTPUT_FORMATS[to].has_encoded_rows
    lacks = f"names {info.env}, but not its settings" if named else "does not name the environment's settings"
    reader.add_remark(f"the copy {lacks} while recording: {', '.join(settings)}")


def _note_texts(reader: Reader, info: DatasetInfo, to: str) -> None:
    """Add a remark on what describes a robot's data and has no place in the format ``to``."""
    known = (ROBOT, FPS, CONTROLLER, "tasks", "masks", *(title for title in info.text if title.startswith(CLASSES)))
    if lost := [title for title in known if title in info.text and title not in OUTPUT_FORMATS[to].stores]:
        reader.add_remark(f"the format {to} does not store the {', '.join(lost)}")


def _write_minari(episodes: Iterable[Rows], path: Path, info: DatasetInfo) -> output.WriteReport:
    metadata: dict[str, Any] = {k: info.text[k] for k in ("algorithm_name", "description") if k in info.text}
    action, remarks = info.declared_action_space or info.action, list[str]()
    if info.has_measured_bounds and info.declared_action_space is None:
        action, metadata[MEASURED_KEY] = map_leaves(action, "", _without_bounds), True
        remarks += [UNBOUNDED] * (action != info.action)  # discrete actions have no bounds
    if info.env_spec:
        metadata["env_spec"] = json.dumps(info.env_spec)
        metadata |= {ENV_SETTINGS: json.dumps(info.env_settings)} if info.env_settings else {}
    elif info.env and (spec := find_registered(info.env)) is not None:
        spec, named = copy.deepcopy(spec), dataset_env_config(info)
        spec.kwargs |= named.kwargs
        spec.max_episode_steps = named.max_episode_steps or spec.max_episode_steps
        text, remark = spec_to_json(spec)
        metadata |= {"env_spec": text} if text else {}
        remarks += filter(None, [remark])
    metadata |= {} if info.has_rewards else {HAS_REWARDS_KEY: False}
    metadata |= {ENV_ID: info.env} if ":" in info.env else {}
    metadata |= {ELEMENT_NAMES: json.dumps(info.element_names)} if info.element_names else {}

    def fields() -> Iterator[dict[str, Any]]:
        first = 0
        for rows in episodes:
            if len(rows["reward"]) > 1:
                yield _minari_fields(rows, info.observation, action, first)
            first += len(rows["reward"])

    report = writers.write_minari(fields(), path, info.observation, action, metadata)
    report.remarks += remarks
    return report


def _without_bounds(_: str, leaf: Space) -> Space:
    """Return ``leaf`` with infinite bounds if it is a space of floats."""
    floats = isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f"
    return spaces.Box(-np.inf, np.inf, leaf.shape, leaf.dtype.type) if floats else leaf  # type: ignore[union-attr]  # a Box


def _arguments_of(info: DatasetInfo) -> dict[str, Any]:
    """Return ``env_kwargs`` and ``max_episode_steps`` of the dataset's environment; runs store them as settings."""
    named = dataset_env_config(info) if info.env else None
    return (
        {"env_kwargs": dict(named.kwargs), "max_episode_steps": named.max_episode_steps or info.max_episode_steps}
        if named
        else {}
    )


def _minari_fields(rows: Rows, obs_space: Space, action_space: Space, first: int = 0) -> dict[str, Any]:
    """Return the fields of Minari's ``EpisodeBuffer`` for an episode of n steps: n + 1 observations, n of all else.

    ``first``: number of its first row, for messages.
    """

    def values(space: Space, root: str, stop: int | None) -> Any:
        columns = {name: (rows[name][:stop], leaf) for name, leaf in columns_in(space, root)}
        typed = {
            name: column if isinstance(leaf, spaces.Text) else cast(column, leaf.dtype, name, first)
            for name, (column, leaf) in columns.items()
        }
        return columns_to_nested(space, typed, root)

    seed = rows[SEED][0] if SEED in rows else None
    fields: dict[str, Any] = {} if seed is None or int(seed) < 0 else {"seed": int(seed)}
    fields |= {"observations": values(obs_space, "obs", None), "actions": values(action_space, "action", -1)}
    truncated = rows["is_last"] & ~rows["is_terminal"] | rows.get(TRUNCATED_COLUMN, False)
    if infos := {name: rows[name] for name in (PROPENSITY, IS_INTERVENTION) if name in rows}:
        fields["infos"] = infos
    outcomes = {"rewards": rows["reward"], "terminations": rows["is_terminal"], "truncations": truncated}
    return fields | {name: column[1:] for name, column in outcomes.items()}


def _describe_rows(reader: Reader, has_rewards: bool) -> dict[str, Any]:
    """Return the content of ``ABOUT``: the dataset's environment with its settings, and the spaces if known."""
    info, out = reader.info(), dict[str, Any]({} if has_rewards else {"has_rewards": False})
    if info.env:
        named = _arguments_of(info)
        out["env"] = {"id": info.env, "kwargs": named["env_kwargs"], "max_episode_steps": named["max_episode_steps"]}
    if all(store.knows_actions for store in _stores_in(reader)):
        out |= {"observation_space": space_to_json(info.observation), "action_space": space_to_json(info.action)}
        out["measured"] = info.has_measured_bounds
    details = {"env_spec": info.env_spec, "env_settings": info.env_settings, "element_names": info.element_names}
    return out | {name: value for name, value in details.items() if value}


class OutputFormat(NamedTuple):
    """How a format is written, and what it stores."""

    write: Callable[..., output.WriteReport]
    kind: str = ""
    """Kind of the files, see ``SUFFIXES``; "" for a folder of several kinds."""
    stores: frozenset[str] = frozenset()
    """Optional columns, and fields and texts of ``DatasetInfo``."""
    has_encoded_rows: bool = False
    """Whether its rows are as learners see them: ``write`` then gets their columns and JSON instead of the info."""


OUTPUT_FORMATS = {
    "minari": OutputFormat(_write_minari, "", frozenset({SEED, TRUNCATED_COLUMN, IS_INTERVENTION, "env_spec"})),
    "d4rl": OutputFormat(writers.write_d4rl, "HDF5", frozenset({TRUNCATED_COLUMN})),
    "parquet": OutputFormat(writers.write_parquet, "Parquet", frozenset({TRUNCATED_COLUMN})),
    "robomimic": OutputFormat(robot_writers.write_robomimic, "HDF5"),
    "lerobot": OutputFormat(robot_writers.write_lerobot, "", frozenset({ROBOT, FPS, "tasks"})),
    "tianshou": OutputFormat(writers.write_tianshou, "HDF5", frozenset({TRUNCATED_COLUMN})),
    "pydreamer": OutputFormat(writers.write_pydreamer, "npz", has_encoded_rows=True),
    "store": OutputFormat(writers.write_store, "", frozenset({IS_INTERVENTION}), has_encoded_rows=True),
}
SUFFIXES = {
    ".hdf5": "HDF5", ".h5": "HDF5", ".hdf": "HDF5", ".npz": "npz", ".parquet": "Parquet", ".arrow": "Arrow",
    ".feather": "Arrow", ".csv": "CSV", ".tsv": "TSV", ".tfrecord": "TFRecord", ".tfrecords": "TFRecord",
}  # fmt: skip


def check_target(target: str, to: str) -> str:
    """Check in advance that ``target`` can be written in the format ``to``; return the format.

    ``to`` is one of ``OUTPUT_FORMATS``, or "auto": by the suffix of ``target``, else Minari.
    """
    if to not in ("auto", *OUTPUT_FORMATS):
        raise ConfigError(f"format = {to!r}: expected auto, {', '.join(OUTPUT_FORMATS)}.")
    if target.startswith("minari:"):
        check_name(target.removeprefix("minari:"))
        named = "" if to == "minari" else "Minari"
    else:
        check_local(target, "target")
        suffix = Path(target).suffix.lower()  # of data-v1.5 it is no format
        named = SUFFIXES.get(suffix, suffix if to == "auto" and suffix[1:].isalpha() else "")
    if to == "auto":
        to = {"HDF5": "d4rl", "Parquet": "parquet"}.get(named, "minari")
        if to == "minari" and named not in ("", "Minari"):
            raise ConfigError(
                f"{target}: no {named} file can be written. Expected a name that ends with .hdf5 (D4RL) or .parquet, "
                f"the name of a folder (Minari), or --format {', --format '.join(OUTPUT_FORMATS)}."
            )
    elif named not in ("", OUTPUT_FORMATS[to].kind):
        raise ConfigError(f"{target} is the name of a dataset in the format {named}, but --format is {to}: rename it.")
    output.check_absent(output.target_path(target))
    return to


# ---------------------------------------------------------------- a part of it


def subsample(reader: Reader, subset: Subset) -> tuple[EpisodeFilter, EpisodeFilter]:
    """Return a function that selects a part, and one that selects the rest. Reads all rows once.

    Whole episodes are drawn until there are enough steps, so the part can be slightly larger; the order is kept. The
    same seed draws the same part.
    """
    if subset.top_fraction is not None or subset.min_return is not None:
        check_rewards(reader.info(), reader.path, "a choice by returns")
    with read_progress(f"reading {reader.path.name}", reader.rows()) as track_progress:
        flags = ({name: rows[name] for name in ("reward", *FLAGS)} for rows in track_progress(reader.parts()))
        totals = [(len(rows["reward"]) - 1, rows["reward"].sum(dtype=np.float64)) for rows in iter_episodes(flags)]
    lengths, returns = np.array([n for n, _ in totals], np.int64), np.array([score for _, score in totals])
    if subset.fraction is None and subset.steps is None:
        return _parts_of(_best(returns, subset))
    total = int(lengths.sum())
    num_steps = subset.steps or max(1, round((subset.fraction or 0) * total))
    if num_steps > total:
        raise ConfigError(f"steps = {num_steps}: the dataset has only {count_noun(total, 'step')}.")
    order = np.random.default_rng(subset.seed).permutation(len(lengths))
    before = np.cumsum(lengths[order]) - lengths[order]
    return _parts_of(np.isin(np.arange(len(lengths)), order[before < num_steps]))


def _best(returns: np.ndarray, subset: Subset) -> np.ndarray:
    """Return which episodes have the highest ``returns`` ``[n]``, or high enough ones.

    Among equal returns, the first.
    """
    if subset.top_fraction is not None:
        order = np.argsort(-returns, kind="stable")
        return np.isin(np.arange(len(returns)), order[: max(1, round(subset.top_fraction * len(returns)))])
    mask: np.ndarray = returns >= subset.min_return
    if not mask.any():
        raise ConfigError(f"min_return = {subset.min_return}: the highest return is {returns.max():.6g}.")
    return mask


def _parts_of(picked: np.ndarray) -> tuple[EpisodeFilter, EpisodeFilter]:
    """Return functions that select the ``picked`` episodes, bool ``[n]``, and the others."""

    def of(mask: np.ndarray) -> EpisodeFilter:
        return lambda episodes: (rows for rows, keep in zip(episodes, mask, strict=True) if keep)

    return of(picked), of(~picked)


@dataclass(frozen=True)
class Relabeling:
    """Keeps all episodes, with new rewards."""

    reader: Reader
    rewards: Callable[[Rows, int], np.ndarray]
    """Returns the reward column of an episode, given its recorded rows and its number."""

    def __call__(self, episodes: Iterator[Rows]) -> Iterator[Rows]:
        """Yield the episodes, as the reader yields them, with the new rewards."""
        as_recorded = iter_episodes(self.reader.as_recorded())
        for number, (rows, raw_rows) in enumerate(zip(episodes, as_recorded, strict=True)):
            yield rows | {"reward": self.rewards(raw_rows, number)}


def relabel_rewards(reader: Reader, reward: Callable[[Any, Any, Any], Any] | str) -> Relabeling:
    """Return a function that keeps all episodes, with the rewards that ``reward``, or ``module:function``, computes.

    For each episode of n steps, ``reward`` is called with observations, actions and next observations, as arrays ``[n,
    ...]`` or dictionaries of arrays, in the environment's units; it returns the rewards ``[n]``. They are clipped like
    the recorded rewards. DataError if they are not ``[n]`` or not finite.
    """
    label = f"reward = {reward if isinstance(reward, str) else getattr(reward, '__qualname__', reward)}"
    compute = import_object(reward, error_prefix=label, base=object) if isinstance(reward, str) else reward
    info = _env_info(reader)
    clip = str(info.env_settings.get("clip_reward", "none"))

    def of(space: Space, root: str, rows: Rows, part: slice) -> Any:
        return columns_to_nested(space, {name: rows[name][part] for name, _ in columns_in(space, root)}, root)

    def rewards(rows: Rows, episode: int) -> np.ndarray:
        before, after, steps = slice(None, -1), slice(1, None), len(rows["reward"]) - 1
        obs, next_obs = (of(info.observation, "obs", rows, part) for part in (before, after))
        with not_of_disk(label):
            values = np.asarray(compute(obs, of(info.action, "action", rows, before), next_obs), np.float64)
        if values.shape != (steps,) or not np.isfinite(values).all():
            shape = f"shape {list(values.shape)}{', not all finite' * (values.shape == (steps,))}"
            raise DataError(f"{label} returned {shape} for episode {episode}: expected [{steps}], a reward per step.")
        return np.append(0.0, CLIPS[clip](values)).astype(np.float32)

    return Relabeling(reader, rewards)


def drop_invalid_episodes(report: DataReport) -> EpisodeFilter:
    """Return a function that omits the episodes that violate a rule."""
    bad = set(report.invalid_episodes)
    return lambda episodes: (rows for number, rows in enumerate(episodes) if number not in bad)
