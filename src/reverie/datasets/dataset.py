"""Datasets as rows that learners see: the conversion of a reader's values.

Readers handle file formats but not spaces; the codecs in ``core`` handle spaces but not files.
"""

from __future__ import annotations

import tempfile
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces

from reverie.core.action_codec import ActionCodec
from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError, DataError, RowError, count_noun
from reverie.core.images import ImageOptions
from reverie.core.masks import check_action_legal, check_mask_shape, ensure_legal_choice
from reverie.core.obs_codec import ObsCodec
from reverie.core.rows import Rows, iter_checked_rows, iter_episodes
from reverie.core.spaces import column, columns_in
from reverie.core.specs import IS_INTERVENTION, LATE_COLUMNS, MASK_KEY, ActionSpec, ColumnSpec, ObsSpec
from reverie.core.types import FLAGS, Batch, Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset_env import check_obs_compatible, settings_to_apply
from reverie.datasets.reader import DatasetInfo, Reader
from reverie.envs.config import EnvConfig
from reverie.envs.vector_steps import CLIPS
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.offline import OfflineReplay
from reverie.replay.storage import HostStorage, MappedStorage

ACTION_SPACE_MEASURED = (
    "the action space is not declared: it is inferred from the recorded actions (if there is an environment with a "
    "matching action space, that is used instead)"
)
ACTIONS_OUT_OF_BOUNDS = "an action outside its bounds was moved to the nearest bound ({:,} times)"
REWARDS_CLIPPED = (
    "rewards were clipped when they were collected (env.clip_reward = {}): returns and estimates are of these"
)


class RecordedEpisodes:
    """Rows of a dataset in recorded order, with observations and rewards as learners see them.

    The settings ``env`` are applied to them. ``action_space`` and ``observation_space``: the environment's, for
    datasets that declare none.
    """

    def __init__(
        self, reader: Reader, env: EnvConfig | None = None, action_space: spaces.Space[Any] | None = None,
        observation_space: spaces.Space[Any] | None = None,
    ) -> None:  # fmt: skip
        self.reader = reader
        if observation_space is not None and env is not None and env.pixels != "only":
            visible = ObsCodec(observation_space, env.uses_key, env.channel_axis).spec
            options = ImageOptions(visible, env.resize, env.grayscale, env.max_image_size)
            reader.set_expected_spaces(observation_space, options.spec)
        self.about: DatasetInfo = reader.info()
        self.obs: ObsCodec | None = None
        self.actions: ActionCodec | None = None
        self.spaces: tuple[spaces.Space[Any], spaces.Space[Any]] | None = None  # None: rows are as learners see them
        config = env or EnvConfig()
        self.action_spec: ActionSpec
        recorded_spec, self.action_spec = self._specs(config, action_space)
        if env is not None and not self.about.env_settings:
            check_obs_compatible(recorded_spec, env)
            if env.action_repeat > 1:
                reader.add_remark(f"each row is assumed to cover env.action_repeat = {env.action_repeat} frames")
        pending = settings_to_apply(self.about, config)
        self.images: ImageOptions = ImageOptions(
            recorded_spec, pending.resize, pending.grayscale, config.max_image_size
        )
        self.obs_spec: ObsSpec = self.images.spec
        self.clip = pending.clip_reward
        self.clipped: str = str(self.about.env_settings.get("clip_reward", "none"))
        """How the rewards were clipped during collection; "none" if they are the true rewards."""
        if self.clipped != "none":
            reader.add_remark(REWARDS_CLIPPED.format(self.clipped))

    def _specs(self, env: EnvConfig, action_space: spaces.Space[Any] | None) -> tuple[ObsSpec, ActionSpec]:
        """Return the specs of the recorded observations and actions, without observations that ``env`` excludes."""
        if self.about.specs is not None:
            obs, actions = self.about.specs
            selected = {key: part for key, part in obs.items() if env.uses_key(key)}
            if not selected:
                raise DataError(
                    f"{self.reader.path}: env.include_keys and env.exclude_keys select none of {', '.join(obs)}."
                )
            return selected, actions
        self.obs = ObsCodec(self.about.observation, env.uses_key, env.channel_axis)
        self.spaces = self.about.observation, self._action_space(action_space)
        self.actions = ActionCodec(self.spaces[1])
        check_mask_shape(self.obs.spec, self.actions.spec)
        # The bounds apply to the numbers in the file, which are not always the environment's actions: PyDreamer files
        # and exports of reverie to Minari are in the policy's range.
        parts = {key: replace(part, low=(), high=()) for key, part in self.actions.spec.parts.items()}
        return self.obs.spec, ActionSpec(parts=parts)

    def _action_space(self, env_space: spaces.Space[Any] | None) -> spaces.Space[Any]:
        """Return the declared space; if none is declared, the environment's or the bounds of the recorded actions."""
        recorded = self.about.action
        if not self.about.has_measured_bounds:
            return recorded
        choices = spaces.Discrete | spaces.MultiDiscrete
        is_same_kind = type(env_space) is type(recorded)
        is_same_kind = is_same_kind or (isinstance(env_space, choices) and isinstance(recorded, choices))
        is_same_kind = is_same_kind or (self.about.numbered and isinstance(env_space, spaces.Box))
        if env_space is not None and is_same_kind and prod(env_space.shape or ()) == prod(recorded.shape or ()):
            return env_space  # scalars are equivalent to vectors of one element
        usual = isinstance(recorded, spaces.Box) and bool((recorded.low == -1.0).all() and (recorded.high == 1.0).all())
        self.reader.add_remark(ACTION_SPACE_MEASURED, int(not usual))
        return recorded

    @property
    def label(self) -> str:
        """Path and format, for messages."""
        return f"{self.reader.path} ({self.reader.format})"

    def rows(self) -> int:
        """Number of rows of all episodes."""
        return self.reader.rows()

    def parts(self, collect: Mapping[str, list[np.ndarray]] | None = None) -> Iterator[Rows]:
        """Yield all rows, ``[n, ...]`` by column as in ``core/columns.py: row_columns``.

        ``collect``: lists by name, to which the columns of that name, such as ``reward``, are appended while reading,
        float32 ``[n]`` per part and unclipped. Nothing is appended for missing columns.
        """
        info = self.about
        spaces_ = () if info.specs else ((info.observation, "obs"), (info.action, "action"))
        needed = [name for space, root in spaces_ for name, _ in columns_in(space, root)]

        def checked_parts() -> Iterator[Rows]:
            with self.reader.locating_errors():
                for part in iter_checked_rows(self.reader.parts(), needed, self.label):
                    for name, chunks in (collect or {}).items():
                        chunks += [part[name].astype(np.float32)] if name in part else []
                    yield part

        return self.convert(checked_parts(), keep=self.tags)

    @property
    def tags(self) -> tuple[str, ...]:
        """The columns of tags that the rows have."""
        return (IS_INTERVENTION,) if self.about.has_interventions else ()

    def convert(self, parts: Iterator[Rows], is_whole: bool = True, keep: Iterable[str] = ()) -> Iterator[Rows]:
        """Yield rows of the reader as ``parts`` does, and the columns ``keep`` as they are, where there are some.

        ``is_whole``: all rows, not only some episodes.
        """
        first = 0
        for part in parts:
            try:
                with self.reader.locating_errors(is_whole):
                    rows = self._encode(part, first)
            except DataError as error:
                prefix = "" if str(error).startswith(str(self.reader.path)) else f"{self.reader.path}: "
                raise DataError(
                    f"{prefix}{error}. `reverie data validate` finds all such rows; with --write-valid it writes the "
                    "valid episodes to a new dataset."
                ) from None
            yield rows | {name: part[name] for name in keep if name in part}
            first += len(part["is_first"])

    def _encode(self, part: Rows, first: int) -> Rows:
        if self.obs is None or self.actions is None:
            names = {f"obs/{key}" for key in self.obs_spec}
            rows = {name: v for name, v in part.items() if not name.startswith("obs/") or name in names}
        else:
            for leaf in self.obs.leaves:
                name = column("obs", leaf.path)
                self.reader.note_large(name, part[name], leaf.space)
            rows = {**self.obs.encode(part, first), "action": self.actions.flatten(part, first)}
            if (name := f"obs/{MASK_KEY}") in rows:
                rows[name] = ensure_legal_choice(rows[name], self.action_spec, part["is_terminal"], first)
                check_action_legal(rows[name], rows["action"], part["is_last"], self.action_spec, first)
        rows = self.images(rows, "obs/")
        reward = part["reward"].astype(np.float32, copy=False)
        if not np.isfinite(np.add.reduce(reward)) and not np.isfinite(reward).all():
            row = int(np.argmin(np.isfinite(reward)))
            raise RowError("the reward", first + row, f"is {reward[row]}", "reward")
        if self.clip != "none":
            # In float64, as environments do.
            reward = CLIPS[self.clip](reward.astype(np.float64)).astype(np.float32)
        return rows | {"reward": reward} | {name: part[name] for name in FLAGS}

    def episode(self, number: int) -> Batch:
        """Return one episode as a batch ``[1, T]`` on the CPU, with all of its rows and without extras.

        ``number``: 0 for the first episode in the order of ``parts``; -1 for the last one. Rows before it are read.
        """
        latest: deque[Rows] = deque(maxlen=max(1, -number))
        count = 0
        for count, rows in enumerate(iter_episodes(self.parts()), 1):
            latest.append(rows)
            if count - 1 == number:
                break
        if not -count <= number < count:
            raise ConfigError(f"episode = {number}: {self.label} has {count_noun(count, 'episode')}, numbered from 0.")
        return self.batch(latest[0] if number < 0 else latest[-1], number % count)

    def beginnings(self, longest: int) -> Iterator[Batch]:
        """Yield the first rows of each episode, at most ``longest``, as :meth:`episode` returns whole ones."""
        for number, rows in enumerate(iter_episodes(self.parts())):
            yield self.batch({name: values[:longest] for name, values in rows.items()}, number)

    def batch(self, rows: Rows, number: int) -> Batch:
        """Return rows ``[T, ...]`` of :meth:`parts` as a batch ``[1, T]`` on the CPU, with ``number`` as its index."""
        specs = row_columns(self.obs_spec, self.action_spec, {})
        columns = {name: torch.from_numpy(rows[name].astype(column.dtype))[None] for name, column in specs.items()}
        return Batch.from_columns(columns, torch.tensor([number]))

    def close(self) -> None:
        """Close open files."""
        self.reader.close()

    def remarks(self) -> list[str]:
        """Return the omissions and assumptions so far."""
        outside = self.actions.outside if self.actions is not None else 0
        return [*self.reader.remarks(), *([ACTIONS_OUT_OF_BOUNDS.format(outside)] if outside else [])]


def open_recorded(
    config: DatasetConfig, env: EnvConfig | None = None, action_space: spaces.Space[Any] | None = None,
    observation_space: spaces.Space[Any] | None = None,
) -> RecordedEpisodes:  # fmt: skip
    """Open the dataset that ``config`` names; see ``RecordedEpisodes``."""
    from reverie.datasets.format_detection import open_reader  # imports all readers

    return RecordedEpisodes(open_reader(config.path, config), env, action_space, observation_space)


def build_dataset(
    config: DatasetConfig, rows: RecordedEpisodes, *, window: Window, seed: int,
    batch_sampler: BatchSamplerConfig | None = None, extra_spec: Mapping[str, ColumnSpec] | None = None,
    scratch: Path | None = None, parts: Iterator[Rows] | None = None, num_rows: int | None = None,
) -> OfflineReplay:  # fmt: skip
    """Read all ``rows`` and return them as a dataset of ``window``, sampled with ``seed``; uniformly by default.

    ``extra_spec``: columns that an algorithm stores with the rows. ``scratch``: folder of memory-mapped files.
    ``parts``: ``rows.parts()``, wrapped to report progress, or some of the episodes, at most ``num_rows`` rows.
    """
    chosen = batch_sampler or BatchSamplerConfig()
    chosen.check(window)
    columns = row_columns(rows.obs_spec, rows.action_spec, extra_spec or {})
    columns |= {name: LATE_COLUMNS[name] for name in rows.tags}
    total = rows.rows() if num_rows is None else num_rows
    # otherwise the windows of the first rows would count as evicted
    capacity = max(1, total) + window.num_free_rows
    folder = scratch or Path(tempfile.gettempdir())
    mapped = config.storage == "mmap"
    storage = MappedStorage(columns, 1, capacity, folder) if mapped else HostStorage(columns, 1, capacity)
    dataset = OfflineReplay(storage, window, seed=seed, config=chosen, online=False)  # no rows are new
    dataset.fill(parts if parts is not None else rows.parts(), total, rows.label)
    return dataset
