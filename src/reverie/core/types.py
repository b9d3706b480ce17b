"""Data types: rows of environments, batches of learners, results and metrics of updates.

One convention holds everywhere. Experience is streams of *rows*, one stream per environment::

    row t:  obs[t]          the observation
            reward[t]       the reward that came with obs[t], caused by action[t-1] (0 where is_first)
            is_first[t]     an episode begins here
            is_last[t]      an episode ends here, for any reason (terminal, time limit, crash)
            is_terminal[t]  ... in a terminal state, whose value is 0
            action[t]       taken after seeing obs[t]; zeros where is_last, which has no action

``is_terminal`` sets the value of the future to 0. ``is_last`` only ends the recursion of returns: after a time limit
(truncation), targets bootstrap from the last row.

Letters used in shape comments throughout the library:

    N envs   B batch   T time   A action   E embedding   D deterministic   S x C stochastic   H horizon
    M rows without a time axis   K copies of a network (critics), or context rows   F features
    n actions of one observation   L latent of a VAE   H, W, C height, width and channels of images

A letter with another meaning is explained in the docstring that uses it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.errors import DataError
from reverie.core.specs import FLAGS as FLAGS

Obs = dict[str, Tensor]
"""Observations by key. Images are channels last ``[..., H, W, C]``; the rest is ``[..., *shape]``."""

Metrics = dict[str, Tensor]
"""Named scalars on the learner's device; reading one may wait for the device."""

Mode = Literal["explore", "eval", "random"]
"""``explore`` samples actions from the policy, ``eval`` takes the mode of its distribution. ``random`` is ``explore``
when the caller chooses its own action: only the state and its extras matter."""


class MetricVector(Mapping[str, Tensor]):
    """Named scalars that are the elements of one ``vector``; making a tensor of each takes 1 us."""

    def __init__(self, names: tuple[str, ...], vector: Tensor) -> None:
        """``vector``: ``[M]``, for M ``names``."""
        self.names: tuple[str, ...] = names
        self.vector: Tensor = vector
        self._numbers: list[float] | None = None

    @property
    def numbers(self) -> list[float] | None:
        """The values; None if reading them would wait for a device."""
        if self._numbers is None and self.vector.is_cpu:  # a cached property takes 3 us
            self._numbers = self.vector.tolist()
        return self._numbers

    def __getitem__(self, name: str) -> Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.vector[self.names.index(name)]

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


def read_scalars(metrics: Mapping[str, Tensor | float]) -> tuple[tuple[str, ...], list[float] | None]:
    """Return names and values of ``metrics``; None if reading one would wait for a device, or one is no scalar."""
    if isinstance(metrics, MetricVector):
        return metrics.names, metrics.numbers
    values = [*metrics.values()]
    if any(isinstance(value, Tensor) and (value.ndim > 0 or not value.is_cpu) for value in values):
        return tuple(metrics), None
    return tuple(metrics), [value.item() if isinstance(value, Tensor) else value for value in values]


State = Mapping[str, Any]
"""A ``state_dict``: nested mappings of tensors and plain JSON values."""

MAX_LISTED_FLAGS = 64
"""Number of flags up to which a list of them is made faster than an array."""


@functools.cache
def no_flags(rows: int) -> Tensor:
    """Return flags ``[N]`` that are not set; all callers share them, and none may write to them."""
    with torch.inference_mode(False):
        return torch.zeros(rows, dtype=torch.bool, device="cpu")


def count_set(flags: Tensor) -> int:
    """Return how many of the ``flags`` ``[N]`` are set; waits for their device."""
    if flags is no_flags(flags.shape[0]):
        return 0
    if flags.shape[0] <= MAX_LISTED_FLAGS:
        return flags.tolist().count(True)
    return int(np.count_nonzero(flags.numpy(force=True)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The current rows of N environments: ``reward[i]`` came with ``obs[i]``, caused by the action before."""

    obs: Obs  # [N, ...]
    reward: Tensor  # [N] float32
    is_first: Tensor  # [N] bool
    is_last: Tensor  # [N] bool
    is_terminal: Tensor  # [N] bool

    def __len__(self) -> int:
        return self.is_first.shape[0]

    def with_obs(self, obs: Obs) -> Step:
        """Return these rows with other observations; faster than ``dataclasses.replace``."""
        return Step(
            obs=obs, reward=self.reward, is_first=self.is_first, is_last=self.is_last, is_terminal=self.is_terminal
        )

    def obs_on(self, device: torch.device | str) -> Obs:
        """Return the observations on another device, without waiting for the copy."""
        return {key: value.to(device, non_blocking=True) for key, value in self.obs.items()}


ExactRewards = np.ndarray | Tensor
"""Rewards ``[N]`` in the precision of the environments: an array, or a tensor on their device."""


class ExecutedActions(NamedTuple):
    """What N environments say of the actions behind a row: where ``is_replaced``, the policy's was not executed."""

    action: Tensor  # [N, A] float32, the action that was executed instead
    is_replaced: Tensor  # [N] bool
    is_takeover: Tensor  # [N] bool, where this was no function of the policy's action: a person's
    has_takeovers: bool  # whether ``is_takeover`` is true somewhere; on a device, whether it can be

    def count_filtered(self) -> Tensor:
        """Return ``[]``, the number of actions that a filter replaced; does not wait for the device."""
        return (self.is_replaced & ~self.is_takeover).sum()

    @property
    def takeovers(self) -> ExecutedActions:
        """The same without filters, which on-policy learners take for a part of the environment."""
        return self._replace(is_replaced=self.is_takeover)

    @property
    def tags(self) -> Tensor | None:
        """``is_takeover`` if there is a takeover."""
        return self.is_takeover if self.has_takeovers else None

    @classmethod
    def from_person(cls, action: Tensor, flat: np.ndarray) -> ExecutedActions:
        """Return the policy's ``action`` ``[N, A]`` with the person's ``flat`` ``[A]`` in environment 0."""
        actions, is_taken = action.clone(), torch.zeros(len(action), dtype=torch.bool)
        actions[0], is_taken[0] = torch.from_numpy(flat), True
        return cls(actions, is_taken, is_taken, True)

    def replace_in(self, action: Tensor) -> Tensor:
        """Return the policy's ``action`` ``[N, A]`` with the executed actions where it was replaced."""
        return torch.where(self.is_replaced[:, None], self.action, action)


class QValues(NamedTuple):
    """The values of all action classes; the class with the highest value is chosen."""

    values: Tensor  # [N, A]
    classes: tuple[int, ...]  # the number of classes of each choice


class PolicyOutput(NamedTuple):
    """The output of a policy for N rows, from which it takes their actions."""

    inputs: Any
    """Inputs of the networks: observations ``[N, ...]`` by key, or a latent; with memory, its output."""
    decision: Any
    """A distribution of actions with ``mode()`` and ``summary()``; the actions ``[N, A]`` of a deterministic policy; or
    :class:`QValues`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """B windows of T rows of one stream each: ``action[:, t]`` was taken after seeing row t, ``obs[:, t]``."""

    obs: Obs  # [B, T, ...]
    action: Tensor  # [B, T, A] float32, one-hot where discrete
    reward: Tensor  # [B, T] float32
    is_first: Tensor  # [B, T] bool
    is_last: Tensor  # [B, T] bool
    is_terminal: Tensor  # [B, T] bool
    weight: Tensor  # [B] float32, 1 unless the sampler is prioritized
    index: Tensor  # [B] int64, the handle a source's ``feedback`` understands
    extras: dict[str, Tensor] = field(default_factory=dict)  # [B, T, ...], what the policy stored with the rows
    goals: dict[str, Tensor] = field(default_factory=dict)  # NAME/KEY: [B, 1, ...], of the window's only transition

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Tensor], index: Tensor, extras: dict[str, Tensor] | None = None
    ) -> Batch:
        """Return the batch of storage columns ``[B, T, ...]``; extras are passed separately, and weights are 1."""
        return cls(
            obs={name.removeprefix("obs/"): x for name, x in columns.items() if name.startswith("obs/")},
            weight=torch.ones(len(index), device=index.device),
            index=index,
            extras=extras or {},
            goals={},
            **{name: columns[name] for name in ("action", "reward", *FLAGS)},
        )

    @property
    def shape(self) -> tuple[int, int]:
        """``(B, T)``."""
        return self.reward.shape[0], self.reward.shape[1]

    def check(self, window: Window | None = None) -> None:
        """Check the flags' type and all shapes, in microseconds; DataError if they do not match.

        With context rows, the number of rows must be that of ``window``; otherwise 2 or more, for a transition, unless
        the learner's own windows are of a single row.
        """
        size, bits, action = self.is_first.shape, torch.bool, self.action.shape
        fits = self.is_first.dtype is bits and self.is_last.dtype is bits and self.is_terminal.dtype is bits
        fits = fits and len(size) == 2 and self.reward.shape == self.is_last.shape == self.is_terminal.shape == size
        fits = fits and len(action) == 3 and action[:2] == size
        for x in self.obs.values():
            fits = fits and x.shape[:2] == size
        if not fits:
            every = [*((name, getattr(self, name)) for name in (*FLAGS, "reward", "action")), *self.obs.items()]
            actual = ", ".join(f"{name} {list(x.shape)} {x.dtype}" for name, x in every)
            raise DataError(
                f"the batch has {actual}: expected flags [B, T] of torch.bool, reward [B, T], action [B, T, "
                "A] and observations [B, T, ...]."
            )
        exact = window is not None and window.context > 0 and not window.rollout
        if window is not None and (size[1] != window.rows if exact else size[1] < min(2, window.length)):
            advice = f"Sample windows of learner.window.rows = {window.rows} rows."
            raise DataError(f"the batch has shape {list(size)}, windows and their rows. {advice}")

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        """All tensors."""
        flags = (self.is_first, self.is_last, self.is_terminal)
        named = *self.obs.values(), *self.extras.values(), *self.goals.values()
        return self.action, self.reward, self.weight, self.index, *flags, *named

    def map(self, fn: Callable[[Tensor], Tensor]) -> Batch:
        """Return a batch with ``fn`` applied to every tensor."""
        mapped: dict[str, Any] = {}
        for f in fields(self):
            value = getattr(self, f.name)
            mapped[f.name] = {k: fn(v) for k, v in value.items()} if isinstance(value, dict) else fn(value)
        return Batch(**mapped)

    def to(self, device: torch.device | str) -> Batch:
        """Return this batch on another device, or itself if it is already there. Does not wait for the copy."""
        target = torch.device(device)
        if all(x.device == target for x in self.tensors):
            return self
        return self.map(lambda x: x.to(device, non_blocking=True))

    def slice_time(self, start: int, stop: int | None = None) -> Batch:
        """Return rows ``start:stop`` of every window; ``weight`` and ``index`` stay those of the whole window."""
        cut = slice(start, stop)
        rows: dict[str, Any] = {name: getattr(self, name)[:, cut] for name in ("action", "reward", *FLAGS)}
        rows |= {name: {k: v[:, cut] for k, v in getattr(self, name).items()} for name in ("obs", "extras")}
        return replace(self, **rows)

    def with_extras(self, extras: Mapping[str, Tensor]) -> Batch:
        """Return the batch with new ``extras`` ``[B, T', ...]`` of its last T' rows, as of :class:`Update`."""
        old = {key: self.extras[key][:, : self.shape[1] - x.shape[1]] for key, x in extras.items()}
        new = {key: torch.cat([old[key].to(x.device, non_blocking=True), x], 1) for key, x in extras.items()}
        return replace(self, extras={**self.extras, **new})

    def to_tensordict(self) -> Any:
        """Return this batch as a ``tensordict.TensorDict`` of batch size ``[B, T]``, for TorchRL."""
        from tensordict import TensorDict  # optional third-party package

        rows = {f.name: getattr(self, f.name) for f in fields(self) if f.name not in ("weight", "index", "goals")}
        return TensorDict(rows, batch_size=list(self.shape))

    @classmethod
    def from_tensordict(cls, data: Any, obs: Sequence[str] = ()) -> Batch:
        """Return the batch of a ``TensorDict``: that of :meth:`to_tensordict`, or TorchRL's steps with ``next``.

        Steps ``[B]`` become windows of two rows; slices ``[B, T]`` of one trajectory each become windows of T + 1, and
        DataError says if an episode ends within a slice. ``obs`` are TorchRL's keys of the observation; if empty, all
        floating-point keys that ``next`` has too.
        """
        columns = dict(data.items())
        size = data.batch_size[0]
        reward = columns["next"]["reward"] if "next" in columns else columns["reward"]
        weight = columns.pop("priority_weight", torch.ones_like(reward))
        index = torch.as_tensor(columns.pop("index", torch.arange(size, device=data.device)))
        handles = {"weight": weight.reshape(size, -1)[:, 0], "index": index.reshape(size, -1)[:, 0]}
        if "next" not in columns:
            extras = dict(columns.pop("extras", {}).items())
            return cls(obs=dict(columns.pop("obs").items()), extras=extras, **columns, **handles)
        return cls(**_rows_of_steps(data if len(data.batch_size) > 1 else data.unsqueeze(1), obs), **handles)


def _rows_of_steps(data: Any, obs: Sequence[str]) -> dict[str, Any]:
    """Return the rows ``[B, T + 1]`` of TorchRL's steps ``[B, T]``."""
    successors = data["next"]
    done, terminated, reward = (successors[k].flatten(1) for k in ("done", "terminated", "reward"))  # [B, T]
    if done[:, :-1].any():
        raise DataError("an episode ends inside a slice. Sample slices of a single trajectory each, or single steps.")
    names = obs or [k for k, v in data.items() if k in successors.keys() and k != "reward" and v.is_floating_point()]  # noqa: SIM118
    none = torch.zeros_like(done[:, :1])  # [B, 1]
    first = data.get("is_init", None)
    action = data["action"]  # [B, T, A]
    action = action if action.is_floating_point() else action.float()
    return {
        "obs": {k: torch.cat([data[k], successors[k][:, -1:]], 1) for k in names},
        "action": torch.cat([action, torch.zeros_like(action[:, :1])], 1),
        "reward": torch.cat([torch.zeros_like(reward[:, :1]), reward], 1),
        "is_first": torch.cat([torch.zeros_like(done) if first is None else first.flatten(1), none], 1),
        "is_last": torch.cat([none, done], 1),
        "is_terminal": torch.cat([none, terminated], 1),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The result of one gradient step."""

    metrics: Mapping[str, Tensor]  # by their logged names: docs/metrics.md
    priority: Tensor | None = None  # [B]
    extras: dict[str, Tensor] = field(default_factory=dict)  # [B, T', ...], for the last T' rows of each window
    rollout_done: Tensor | None = None  # [] bool, on-policy: the rollout is used up


class SharedBatch(Batch):
    """A batch that its source returns each time, with other values: it is valid until the next call."""

    __slots__ = ()

    def __new__(cls, **columns: Any) -> Any:
        """Return a ``Batch`` of ``columns``: what ``replace`` makes of a shared batch is not the source's."""
        return Batch(**columns) if columns else super().__new__(cls)

    @classmethod
    def of(cls, batch: Batch) -> SharedBatch:
        """Return a shared batch of the same tensors."""
        shared: SharedBatch = cls.__new__(cls)
        Batch.__init__(shared, **{f.name: getattr(batch, f.name) for f in fields(batch)})
        return shared


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """The shape of the windows of rows that an algorithm samples."""

    batch: int
    """B, the number of windows in a batch."""
    length: int
    """T, the number of rows of each window that are learned from."""
    context: int = 0
    """K, the number of rows before those that are sampled as well; a batch then has K + T rows."""
    crosses_episodes: bool = False
    """Whether a window can continue from one episode into the next."""
    context_crosses: bool = False
    """Whether the context rows can be from earlier episodes than the first learned row. The learner resets at each
    ``is_first``. The stream's first row is repeated where rows before it are missing."""
    carries: bool = False
    """Whether the learner carries its state from each batch to the next by itself, as windows follow each other, and
    resets it at each ``is_first``. Its windows cross episodes and have no context rows."""
    learns_rows: bool = False
    """Whether all T rows are learned from, as by world models, and not only the T - 1 transitions between them."""
    has_priorities: bool = True
    """Whether updates return new priorities of their windows (``Update.priority``)."""
    rollout: int = 0
    """On-policy learners: the rows of each stream that are learned from together, and then dropped; a multiple of the
    length. The context is before these, and no part of batches. 0: rows are replayed."""
    queued: bool = False
    """With ``rollout``: each window of new rows is learned from once, in the order of collection, and not dropped at
    the same time as the others. Streams may be of several actors."""
    epochs: int = 1
    """Number of passes over each rollout; 0: one pass, in a single batch of all windows."""

    @property
    def rows(self) -> int:
        """K + T, the number of rows of a window."""
        return self.context + self.length

    @property
    def stride(self) -> int:
        """Rows from one window of the online queue to the next, so that no transition lies between two windows."""
        return self.rows - self.num_free_rows if self.learns_rows else max(1, self.length - 1)

    @property
    def num_free_rows(self) -> int:
        """Number of rows at the window's start that can be from another episode, or before the stream's first row."""
        return self.context if self.context_crosses else 0
