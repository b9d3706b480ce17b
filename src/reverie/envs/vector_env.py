"""N environments of any kind that are stepped together, as rows (``Env``): the rules that all of them follow."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from reverie.core.masks import refuse_info_mask
from reverie.core.specs import MASK_KEY, SUCCESS_RATE, ActionSpec, ObsSpec
from reverie.core.types import ExactRewards, ExecutedActions, Obs, State, Step, no_flags
from reverie.envs.config import EnvConfig
from reverie.envs.episode_info import success_summary
from reverie.envs.limits import EndCheck
from reverie.envs.suites import package_versions
from reverie.envs.tensor_codec import TensorCodec
from reverie.envs.tensor_vector import TensorRows, TensorVector, call_vector, vector_method
from reverie.envs.vector_steps import info_at
from reverie.envs.wrappers import find_instances


def tensor_env(vector: TensorVector, config: EnvConfig, seed: int, warns: bool = True) -> VectorEnv:
    """Return the rows of a vector of tensors; ConfigError if ``config`` has settings that need single environments."""
    return VectorEnv(vector, TensorCodec(vector, config, warns), config, seed, warns)


class RowCodec(Protocol):
    """Converts what a vector takes and shows, and checks it: at once, or where the codec ``defers``, in ``check``."""

    obs_spec: ObsSpec
    action_spec: ActionSpec
    defers: bool
    """Whether nothing is read from the device until ``check``."""

    def decode(self, action: Tensor) -> Any:
        """Return the action ``[N, A]`` as the vector takes it."""

    def encode(self, rows: TensorRows) -> tuple[Obs, Tensor, ExactRewards]:
        """Return observations ``[N, ...]`` in new memory, rewards ``[N]`` as float32, and in their own precision."""

    def read_executed(self, rows: TensorRows, first: Tensor, legal: Tensor | None) -> ExecutedActions | None:
        """Return what ``rows`` say of the actions behind them; ``legal``: the masks ``[N, A]`` of the rows before."""

    def check(self) -> None:
        """Raise the errors so far that are known only on the device."""


class VectorEnv:
    """The rows of N environments; satisfies ``core.protocols.Env``.

    Rows: ``reward`` is 0 where ``is_first``; ``is_last`` is any end of an episode; ``is_terminal`` only a termination,
    even if the episode is truncated in the same step. A vector that resets ended environments in the same step hides
    the first step of the next episode: it takes zeros, or the first legal classes, instead of the action that follows
    the last row, and the first row is the one behind it. An episode that ends in this step is skipped.
    """

    def __init__(self, vector: Any, codec: Any, config: EnvConfig, seed: int | None, warns: bool = True) -> None:
        """``vector``: a ``TensorVector`` or ``ArrayVector`` with its ``RowCodec``, or a ``SlotVector``, which is both.

        ``seed``: of the first reset. ``warns``: warn of episodes that seem to end at an undeclared time limit.
        """
        self.vector: Any = vector
        self.codec: Any = codec
        self._seed, self._must_reset = seed, False
        self.num_envs: int = vector.num_envs
        self.device: torch.device = torch.device(vector.device)
        self.defers: bool = codec.defers
        self.obs_spec: ObsSpec = codec.obs_spec
        self.action_spec: ActionSpec = codec.action_spec
        self.max_episode_steps: int | None = vector.max_episode_steps
        self.frames_per_action: int = getattr(vector, "frames_per_action", 1)
        self.packages: dict[str, str] = getattr(vector, "packages", None) or package_versions(vector)
        self._send: Callable[[Any], None] | None = getattr(vector, "send", None)  # to workers
        self._end: Callable[[Sequence[int]], None] | None = getattr(vector, "end", None)  # single episodes
        self.can_end_one: bool = self._end is not None or self.num_envs == 1
        self._choices = [cut for _, cut in self.action_spec.categorical_slices()]
        self._refuses_masks = bool(self._choices) and MASK_KEY not in self.obs_spec and config.uses_key(MASK_KEY)
        self._hidden_masks: Tensor | None = None  # [N, A], of states that no row shows
        self._check_ends = EndCheck(self.num_envs if warns else 0, self)
        self._flags: list[Tensor] = []  # [3, N] of each row that ``_check_ends`` has not seen
        self._none = no_flags(self.num_envs) if self.device.type == "cpu" else torch.zeros(
            self.num_envs, dtype=torch.bool, device=self.device
        )  # fmt: skip
        self._is_last: Tensor | None = None  # of the current rows; None before the first
        self._legal: Tensor | None = None  # their masks
        self._answer: Callable[[], Step] | None = None
        self.success: Tensor | None = None
        """Whether each environment has reached its goal in the current rows, ``[N]``; None: unknown."""
        self._summaries: Mapping[int, Mapping[str, float]] = {}
        self._info: Any = {}  # of the current rows
        self.exact_rewards: ExactRewards | None = None
        self.executed_actions: ExecutedActions | None = None

    @property
    def instances(self) -> set[int]:
        instances: set[int] | None = getattr(self.vector, "instances", None)
        return find_instances(getattr(self.vector, "vector", self.vector)) if instances is None else instances

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes; a pending answer is lost.

        Without a ``seed`` the generators continue; the first reset uses the seed of ``__init__``.
        """
        seed, self._seed = self._seed if seed is None else seed, None
        self._must_reset, self._answer, self._is_last = False, None, None
        rows = call_vector(self.vector.reset, seed)
        return self._keep(rows) if isinstance(rows, Step) else self._show(rows, ~self._none)

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``. An ``is_last`` row is followed by an ``is_first`` row, whose action is ignored.

        Raises:
            DataError: the action has the wrong shape or is not finite, or an environment returned invalid values.
            EnvError: an environment failed; single ones only if ``env.restarts`` is 0, or after too many failures.
        """
        self.send(action)
        return self.receive()

    def send(self, action: Tensor) -> None:
        first = self._is_last
        if self._must_reset or first is None:
            self.codec.decode(action)
            self._answer = self.reset
        elif self._send is not None:
            self._send(self.codec.decode(action))
            self._answer = self._receive
        else:
            action = action if first is self._none else self._ignore(action, first.unsqueeze(1))
            rows = call_vector(self.vector.step, self.codec.decode(action))
            self._answer = functools.partial(self._show, rows, first)

    def _ignore(self, action: Tensor, first: Tensor) -> Tensor:
        """Return zeros, or the first legal classes of states that no row shows, where ``first`` ``[N, 1]``."""
        action = action.detach().to(self.device, torch.float32).masked_fill(first, 0.0)
        if self._hidden_masks is not None:
            for cut in self._choices:  # of several ones, the codec takes the first
                action[:, cut] = self._hidden_masks[:, cut].where(first, action[:, cut])
        return action

    def receive(self) -> Step:
        answer, self._answer = self._answer, None
        assert answer is not None
        return answer()

    def _receive(self) -> Step:
        return self._keep(self.vector.receive())

    def _keep(self, step: Step) -> Step:
        """Return the rows of slots, which have converted and checked them."""
        slots = self.vector
        self.exact_rewards, self.executed_actions = slots.exact_rewards, slots.executed_actions
        self._is_last, self._summaries = step.is_last, slots.episode_info
        return step

    def _show(self, rows: TensorRows, first: Tensor) -> Step:
        """Return the rows behind those that were ``first``'s last ones."""
        if first is not self._none:
            last = rows.last if rows.last is self._none else rows.last & ~first
            rows = rows._replace(reward=rows.reward.masked_fill(first, 0.0), last=last, terminal=rows.terminal & last)
        if self._refuses_masks and rows.info:
            refuse_info_mask(rows.info)
        obs, reward, self.exact_rewards = self.codec.encode(rows)
        self.executed_actions = None if self._is_last is None else self.codec.read_executed(rows, first, self._legal)
        if not self._check_ends.is_done:
            self._look_at_ends(rows, first)
        self._legal, self._hidden_masks = obs.get(MASK_KEY), None
        if self._choices and rows.hidden_masks is not None:
            self._hidden_masks = (torch.as_tensor(rows.hidden_masks, device=self.device) != 0).flatten(1).float()
        self.success, self._summaries, self._is_last = rows.success, rows.summaries, rows.last
        self._info = rows.info
        return Step(obs=obs, reward=reward, is_first=first, is_last=rows.last, is_terminal=rows.terminal)

    def _look_at_ends(self, rows: TensorRows, first: Tensor) -> None:
        if first is rows.last is self._none:
            self._check_ends.turn += 1
            return
        truncated = rows.last & (~rows.terminal if rows.truncated is None else rows.truncated)
        self._flags.append(torch.stack([first, rows.terminal, truncated]))
        if not self.defers:
            self._count_ends()

    def _count_ends(self) -> None:
        for flags in torch.stack(self._flags).tolist() if self._flags else ():
            self._check_ends(*flags)
        self._flags.clear()

    def truncate(self, step: Step, numbers: Sequence[int]) -> Step:
        if self._end is None:
            self._must_reset, self._is_last = True, torch.ones_like(step.is_last)
        else:
            self._end(numbers)
            self._summaries = self.vector.episode_info
            self._is_last = step.is_last.index_fill(0, torch.tensor(numbers), True)
        return replace(step, is_last=self._is_last)

    @property
    def episode_info(self) -> Mapping[int, Mapping[str, float]]:
        if self.success is None or self._is_last is None:
            return self._summaries
        flags = self.success.tolist()
        return {i: {SUCCESS_RATE: float(flags[i])} for i in self._is_last.nonzero().flatten().tolist()}

    def summary(self, number: int) -> Mapping[str, float]:
        """Return what ``episode_info`` says of one environment, or would say if its episode ended here."""
        if self.success is not None:
            return {SUCCESS_RATE: float(self.success[number])}
        if number in self._summaries or self.defers:
            return self._summaries.get(number, {})
        return success_summary(info_at(self._info, number, self.num_envs))

    def check(self) -> None:
        """Raise the errors that are known only on the device, for which this waits; nothing if none can be.

        ActionError: an action was not finite; DataError: a reward was not finite, or an observation or an executed
        action does not fit its space; the vector's errors.
        """
        self.codec.check()
        self._count_ends()

    @property
    def restarts(self) -> int:
        return getattr(self.vector, "restarts", 0)

    def snapshot(self) -> list[bytes | None]:
        method: Callable[[], list[bytes | None]] | None = getattr(self.vector, "snapshot", None)
        return [] if method is None else method()

    def restore(self, snapshots: Sequence[bytes | None], step: Step) -> Step:
        self._answer = self.exact_rewards = self.executed_actions = self.success = None
        self._summaries = {}
        self._legal = step.obs.get(MASK_KEY)
        if self._end is None:
            return self.truncate(step, range(self.num_envs))
        self._is_last = self.vector.restore(snapshots, step)
        return replace(step, is_last=self._is_last)

    def state_dict(self) -> State | None:
        state: State | None = self.vector.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Tensor], step: Step) -> None:
        self.vector.load_state_dict(state)
        self._is_last, self._legal = step.is_last, step.obs.get(MASK_KEY)

    def call(self, name: str, *args: object, **kwargs: object) -> list[Any]:
        return list(vector_method(self.vector, "call")(name, *args, **kwargs))

    def set_attr(self, name: str, value: object) -> None:
        vector_method(self.vector, "set_attr")(name, value)

    def render(self) -> np.ndarray | None:
        method: Callable[[], np.ndarray | None] | None = getattr(self.vector, "render_frame", None)
        return None if method is None else method()

    def close(self) -> None:
        self.vector.close()
