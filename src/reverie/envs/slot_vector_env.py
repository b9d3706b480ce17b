"""Make N environments; those of slots, in this process or in workers: steps, restarts and snapshots.

A failed environment is restarted and then shows the first observation of a new episode; the others continue. Until the
restart, its newest observation is repeated in episodes of a single row.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from reverie.core.columns import AlignedCopies
from reverie.core.errors import EnvError, ReverieError
from reverie.core.logger import logger
from reverie.core.specs import ActionSpec, ObsSpec, diff_specs, spec_to_dict
from reverie.core.types import ExecutedActions, Obs, Step, no_flags
from reverie.envs.array_vector import ArrayCodec, ArrayVector, check_flat_actions
from reverie.envs.config import EnvConfig, EnvLike
from reverie.envs.episode_info import Summary
from reverie.envs.flat_env import make_flat
from reverie.envs.interventions import POLICY, TAKEOVER
from reverie.envs.limits import EndCheck, LimitCheck
from reverie.envs.make import env_factory
from reverie.envs.make_native_vector import make_jax_vector, make_native_vector
from reverie.envs.slot import EnvFailure, EnvSpecs, Maker, Restarter, Slot, close, derive_seeds
from reverie.envs.suites import JAX_SUITES
from reverie.envs.torch_vector import to_tensor_vector
from reverie.envs.vector_env import VectorEnv, tensor_env
from reverie.envs.vector_steps import Vector
from reverie.envs.worker import make_worker_slots
from reverie.envs.wrappers import find_instances


def make_vector_env(
    config: EnvConfig, *, seed: int, factory: EnvLike | None = None, render: bool = False, new: bool = True,
    warns: bool = True, device: str = "cpu",
) -> VectorEnv:  # fmt: skip
    """Make ``config.num`` environments that are stepped together, each with its own seed derived from ``seed``.

    ``factory`` is called once per environment instead of making ``config.id``, and again after a failure; an instance
    is allowed for ``num=1`` in this process. ``render``: make ``VectorEnv.render`` return frames if the environment can
    render. ``new``: for a new run, it is an error if the first episode lacks a value that ``env.log_info`` names;
    otherwise a warning. ``warns``: warn about observations outside of their space, which are used unchanged.
    ``device``: the learner's, for environments in JAX. Raises EnvError if they cannot be made, or their spaces are not
    supported.
    """
    seeds, make = derive_seeds(seed, config.num), env_factory(config, factory)
    if make is None and config.id.startswith(JAX_SUITES):
        return tensor_env(make_jax_vector(config, config.num, device), config, seeds[0], warns)
    if config.vectorization == "native":
        vector = make_native_vector(config, make, config.num)
        if (tensors := to_tensor_vector(vector, warns)) is not None:
            return tensor_env(tensors, config, seeds[0], warns)
        native = ArrayVector(cast(Vector, vector), config.max_episode_steps, warns)
        return VectorEnv(native, ArrayCodec(native, config, warns), config, seeds[0], warns)
    makers: list[Maker] = [functools.partial(make_flat, config, make, index, render) for index in range(config.num)]
    if config.vectorization == "async":
        slots, arrays = make_worker_slots(makers, config.timeout)
        specs = _start(slots)
    else:
        slots, specs, arrays = _serial(makers)
    restarter = Restarter(slots, specs, seeds, config.restarts, config.restart_window)
    singles = SlotVector(slots, arrays, restarter, bool(config.log_info), new, warns)
    return VectorEnv(singles, singles, config, None, warns)


def _serial(makers: list[Maker]) -> tuple[list[Slot], EnvSpecs, dict[str, np.ndarray]]:
    """Return slots, the specs of their environments, and arrays of observations by key, ``[N, *shape]``."""
    slots = [Slot(number, make) for number, make in enumerate(makers)]
    specs = _start(slots)
    instances = [find_instances(slot.env) for slot in slots]
    if len(set().union(*instances)) < sum(map(len, instances)):
        close(slots)
        raise EnvError("the environment factory returned the same environment twice: make a new one in each call.")
    arrays = {key: np.zeros((len(makers), *part.shape), part.dtype) for key, part in specs.obs_spec.items()}
    for number, slot in enumerate(slots):
        slot.rows = {key: array[number, ...] for key, array in arrays.items()}
    return slots, specs, arrays


def _start(slots: Sequence[Slot]) -> EnvSpecs:
    """Start all ``slots`` and return the specs of their environments, which must be identical."""
    try:
        for slot in slots:
            slot.start()
        all_specs: list[EnvSpecs] = [slot.receive() for slot in slots]
    except EnvFailure as failed:
        close(slots)
        raise failed.error from (failed if failed.trace or failed.__cause__ else None)
    for number, specs in enumerate(all_specs):
        if mismatches := diff_specs(
            spec_to_dict(*all_specs[0][:2]), spec_to_dict(*specs[:2]), ("environment 0", f"environment {number}")
        ):
            close(slots)
            raise EnvError(f"the environments have different spaces: {'; '.join(mismatches)}.")
    return all_specs[0]


class SlotVector:
    """N environments with the same spaces, which convert and check their rows themselves: its own codec.

    After a failure the next row is ``first``, and the row before it is unchanged. While an environment is down, each of
    its rows is ``first`` and ``last``.
    """

    device: torch.device = torch.device("cpu")
    defers: bool = False

    def __init__(
        self, slots: list[Slot], arrays: dict[str, np.ndarray], restarter: Restarter, logs: bool, new: bool,
        warns: bool = True,
    ) -> None:  # fmt: skip
        """``slots``: environments that write to ``arrays``, each ``[N, *shape]``.

        ``logs``: whether ``env.log_info`` names values, which are requested at the end of each episode. ``new``,
        ``warns``: see ``make_vector_env``.
        """
        self._slots, self._arrays, self._restarter = slots, arrays, restarter
        self._copies = {key: AlignedCopies(array) for key, array in arrays.items()}
        self._due: list[int | None] = list(restarter.seeds)  # the seed of each environment's next reset
        self._ended: list[bool] | None = None  # which rows were last; None before the first reset
        self._is_pending = False  # whether a step was started whose rows nobody has received
        self._answer: Step | None = None  # its rows, if they were waited for
        self._shown: Obs = {}  # the current observations
        self._step_unfinished = False  # whether a step was started but not finished
        self._error: ReverieError | None = None  # why all environments have been closed
        self._logs, self._new = logs, new
        self._requests_summary = True  # whether to ask for these values: after the first episode, only if there are any
        self._summary_checked = False  # whether an episode had all ``env.log_info`` values, or was reported
        self.num_envs: int = len(slots)
        specs = restarter.specs
        self.obs_spec: ObsSpec = specs.obs_spec
        self.action_spec: ActionSpec = specs.action_spec
        self.max_episode_steps: int | None = specs.max_episode_steps
        self.frames_per_action: int = specs.frames_per_action
        self.packages: dict[str, str] = specs.packages
        self._check_limits = LimitCheck(specs.bounds if warns else {})
        self._action_shape = self.num_envs, self.action_spec.width
        self._check_ends = EndCheck(self.num_envs if warns else 0, self)
        self.exact_rewards: np.ndarray = np.zeros(0)
        self.executed_actions: ExecutedActions | None = None
        self.episode_info: dict[int, Summary] = {}

    @property
    def instances(self) -> set[int]:
        """Ids of all environments in this process, see ``find_instances``."""
        return set().union(*(find_instances(slot.env) for slot in self._slots if hasattr(slot, "env")))

    @property
    def restarts(self) -> int:
        """Number of restarts so far."""
        return self._restarter.count

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes.

        Without a ``seed``, only the first reset is seeded, with the seeds of the restarter. A pending answer is lost.
        """
        self._check_open()
        self._await_answer()
        self._is_pending = False
        if seed is not None:
            seeds = derive_seeds(seed, self.num_envs)
            self._due = list(seeds)
            self._restarter.set_seeds(seeds)
        self._ended = [True] * self.num_envs
        self._begin(None)
        return self._finish()

    def decode(self, action: Tensor) -> np.ndarray:
        """Return the action ``[N, A]`` as :meth:`send` takes it."""
        return check_flat_actions(action, self._action_shape)

    def check(self) -> None:
        """Do nothing: all is checked at once."""

    def send(self, action: np.ndarray) -> None:
        """Begin a step with ``action`` ``[N, A]``; environments in this process take it in ``receive``."""
        self._check_open()
        self._begin(action)
        self._is_pending, self._answer = True, None

    def receive(self) -> Step:
        """End a step: return the rows after the last action."""
        assert self._is_pending
        self._is_pending, step = False, self._answer
        return self._finish() if step is None else step

    def _await_answer(self) -> None:
        """Wait for a pending answer and keep it for ``receive``, so that workers can take other requests."""
        if self._is_pending and self._answer is None:
            self._answer = self._finish()

    def _check_open(self) -> None:
        if self._error is not None:
            raise self._error

    def _begin(self, action: np.ndarray | None) -> None:
        """Request the next row of each environment: a reset if its episode has ended, or if ``action`` is None."""
        assert self._ended is not None
        self._step_unfinished = True
        for number, slot in enumerate(self._slots):  # environments that are down take no requests
            if self._ended[number] or action is None:
                slot.send("reset", self._due[number])
                self._due[number] = None
            else:
                slot.send("step", action[number])

    def _finish(self) -> Step:
        """Return the requested rows. Failed environments are restarted once all have answered."""
        assert self._ended is not None
        first, down = self._ended, self._restarter.retry_at
        last, terminal, truncated = [False] * self.num_envs, [False] * self.num_envs, [False] * self.num_envs
        reward, actors = [0.0] * self.num_envs, [POLICY] * self.num_envs
        failures: dict[int, EnvFailure] = {}
        for number, slot in enumerate(self._slots):
            if number in down:
                continue
            try:
                reward[number], terminal[number], truncated[number], actors[number] = slot.receive()
            except EnvFailure as failed:
                failures[number] = failed
            else:
                last[number] = terminal[number] or truncated[number]
                if not first[number]:
                    self._restarter.has_stepped[number] = self._restarter.works[number] = True
                if last[number]:
                    self._restarter.failures[number].clear()
        if failures or down:
            first = [begun or number in failures for number, begun in enumerate(first)]
            self._restart(failures, last)
        self.executed_actions = self._read_executed_actions(actors) if any(actors) else None
        self._ended, self._step_unfinished, self.exact_rewards = last, False, np.array(reward, np.float64)
        self._check_limits(self._arrays, self._location)
        if not self._check_ends.is_done:
            self._check_ends(first, terminal, truncated)
        if self._requests_summary:
            self.episode_info = self._log([number for number, over in enumerate(last) if over])
        self._shown = {key: copy() for key, copy in self._copies.items()}  # the next step writes to the same memory
        return Step(
            obs=self._shown,
            reward=torch.from_numpy(self.exact_rewards.astype(np.float32)),
            is_first=_to_bool_tensor(first),
            is_last=_to_bool_tensor(last),
            is_terminal=_to_bool_tensor(terminal),
        )

    def _read_executed_actions(self, actors: list[int]) -> ExecutedActions:
        action = torch.zeros(self._action_shape, device="cpu")
        for number, actor in enumerate(actors):
            if actor != POLICY:
                action[number] = torch.from_numpy(self._slots[number].executed_action)
        is_takeover = torch.tensor([actor == TAKEOVER for actor in actors], device="cpu")
        return ExecutedActions(action, torch.tensor(actors, device="cpu") != POLICY, is_takeover, TAKEOVER in actors)

    def _restart(self, failures: dict[int, EnvFailure], last: list[bool]) -> None:
        """Take down the environments with ``failures``, and restart all that are due.

        For those that stay down, repeat the previous observation, since a failed step can be partially written.
        """
        try:
            self._restarter.check_any_works(failures)
            for number, failed in failures.items():
                self._restarter.take_down(number, failed)
            self._restarter.restart_due()
        except ReverieError as error:
            self._end(error)
            raise
        for number in self._restarter.retry_at:
            last[number] = True
            for key, array in self._arrays.items():
                array[number] = self._shown[key][number].numpy()

    def _location(self, number: int) -> str:
        self._slots[number].send("location")
        return self._receive_or_none(number) or f"environment {number}"

    def _log(self, over: Sequence[int]) -> dict[int, Summary]:
        """Return the numbers to log of the environments ``over``, whose episodes have ended."""
        for number in over:
            self._slots[number].send("episode_summary")
        # Receive all of them: each request has one answer.
        answers = {number: self._receive_or_none(number) for number in over}
        summaries: dict[int, tuple[Summary, str]] = {n: answer for n, answer in answers.items() if answer is not None}
        numbers_of = {number: numbers for number, (numbers, _) in summaries.items() if numbers}
        if summaries and not self._summary_checked:
            self._summary_checked = True
            self._requests_summary = self._logs or bool(numbers_of)
            missing = [text for _, text in summaries.values()]
            if all(missing) and self._new:
                self._end(EnvError(missing[0]))
                self._check_open()
            elif all(missing):
                logger.warning(missing[0])
        return numbers_of

    def end(self, numbers: Sequence[int]) -> None:
        """End the episodes of the environments ``numbers`` with their current rows."""
        assert self._ended is not None
        self._ended = [ended or number in numbers for number, ended in enumerate(self._ended)]
        if self._requests_summary:
            self.episode_info = self._log(numbers)

    def render_frame(self) -> np.ndarray | None:
        """Return a rendered frame of environment 0, uint8 ``[H, W, 3]``, or None if it cannot be rendered."""
        self._check_open()
        self._await_answer()
        self._slots[0].send("render_frame")
        frame: np.ndarray | None = self._receive_or_none(0)
        return frame

    def call(self, name: str, *args: object, **kwargs: object) -> list[Any]:
        return self._ask("call", name, args, kwargs)

    def set_attr(self, name: str, value: object) -> None:
        self._ask("set_attr", name, value)

    def _ask(self, request: str, name: str, *args: object) -> list[Any]:
        self._check_open()
        self._await_answer()
        for slot in self._slots:
            slot.send(request, name, *args)
        # Receive all of them: each request has one answer.
        answers = [self._receive_or_none(number) or (None, "") for number in range(self.num_envs)]
        if wrong := next((why for _, why in answers if why), ""):
            raise EnvError(wrong)
        self._restarter.requests[request, name] = args
        return [result for result, _ in answers]

    def _receive_or_none(self, number: int) -> Any:
        """Return the answer of one environment between two steps; None after a failure, which the next step handles."""
        try:
            return self._slots[number].receive()
        except EnvFailure:
            return None

    def snapshot(self) -> list[bytes | None]:
        """Return a snapshot of each environment, see ``VectorEnv``."""
        self._await_answer()
        if self._ended is None or self._step_unfinished or self._error is not None:
            return [None] * self.num_envs
        for number in range(self.num_envs):
            self._slots[number].send("snapshot")
        inside = [self._receive_or_none(number) for number in range(self.num_envs)]
        return [self._restarter.snapshot(i, self._ended[i], state) for i, state in enumerate(inside)]

    def restore(self, snapshots: Sequence[bytes | None], step: Step) -> Tensor:
        """Restore ``snapshots``, taken when ``step`` were the current rows; return which rows are last, ``[N]``."""
        self._check_open()
        self._await_answer()
        self._is_pending = self._step_unfinished = False
        self._shown = step.obs
        for key, array in self._arrays.items():
            array[...] = step.obs[key].numpy()
        last: list[bool] = step.is_last.tolist()
        for number, snapshot in enumerate(snapshots):
            why = self._restarter.restore(number, snapshot, last[number]) if snapshot else None
            if why == "":
                self._due[number] = None
                continue
            last[number] = True
            if why:
                logger.warning(f"environment {number} begins a new episode because its snapshot cannot be used: {why}")
        self._ended = last
        self._restarter.has_stepped = [True] * self.num_envs
        return _to_bool_tensor(last)

    def close(self) -> None:
        """Close all environments and end their processes. Can be called twice."""
        self._end(EnvError("the environments are closed."))

    def _end(self, error: ReverieError) -> None:
        if self._error is None:
            self._error = error
            close(self._slots)


def _to_bool_tensor(values: list[bool]) -> Tensor:
    """Return ``values`` as a tensor ``[N]`` bool."""
    return torch.from_numpy(np.array(values, np.bool_)) if True in values else no_flags(len(values))
