"""Check one environment: play it as in training, and report faults and doubts."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import pickle
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np

from reverie.core import wall_clock
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, short_repr
from reverie.core.spaces import iter_leaves
from reverie.core.specs import MASK_KEY, PLAYER_KEY, SUCCESS_RATE, ActionSpec, ObsPart, has_players, mover_sign
from reverie.envs.check_device import NUM_ENVS, SEED, check_device_env
from reverie.envs.checking_wrapper import CheckingWrapper, value_and_type
from reverie.envs.config import Env, EnvConfig, EnvLike, MakeEnv, Mark, env_name, marked
from reverie.envs.episode_info import Summary
from reverie.envs.findings import Finding, Findings, sort_findings
from reverie.envs.flat_env import FlatEnv, Outcome, make_flat
from reverie.envs.goal_tasks import GoalTasks
from reverie.envs.goals import goal_spec_problem, is_goal_env
from reverie.envs.limits import EXACT, EpisodeEnd, termination_warning
from reverie.envs.make import InstanceWrapper, env_factory, make_base
from reverie.envs.masks import ActionMask
from reverie.envs.slot import EnvFailure, EnvSpecs, Slot, close
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.suites import JAX_SUITES
from reverie.envs.vector_env import VectorEnv
from reverie.envs.worker import make_worker_slots
from reverie.envs.wrappers import check_spaces, wrapper_stack

RESET_SEEDS = (2, 3, 4, None)
"""Seeds of repeated resets: several, since some environments have few initial states."""
MAX_REPLAYED_STEPS, SAVED_STEP = 200, 2
"""Maximum steps of the replayed episode of seed 1, and the step after which its state is saved."""
MAX_PLAY_FACTOR, MAX_PLAY_SECONDS = 25, 10.0
"""Play continues up to this multiple of the requested steps, or for these seconds, until the first episode ends."""
WORKER_START_SECONDS = 60.0
"""Maximum seconds for a worker process to start."""
MAX_IMAGE_SIDE = 128
"""Learning is slow if a side of an image has more pixels."""
MAX_AT_ONCE = 0.05
"""Share of episodes that succeed in their first step from which a check warns."""
MIN_EPISODES = 5
"""Random episodes from which equal returns, or no success, are a warning."""
MAX_STATE_MB = 1.0
"""Maximum size of a saved state."""
MAX_GROWTH_MB = 64.0
"""Maximum growth of memory in the second half of the steps."""

MAX_COMPARED_ACTIONS, SLOW_RESET_MS = 8, 100.0
"""Maximum numbers of an action that are compared at their bounds, and milliseconds of a reset above which none is."""


class Start(NamedTuple):
    """A run to start with: an algorithm, its env steps, and the reason for both; "" if the user chose the algorithm."""

    algorithm: str
    steps: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class EnvReport:
    """The result of :func:`reverie.check_env`."""

    env: str
    """The environment's id, or the name of its class."""
    findings: tuple[Finding, ...]
    """Faults first, then warnings, then notes."""
    obs_spec: Mapping[str, ObsPart]
    """The observations and actions that learners see; empty if the spaces are not supported."""
    action_spec: ActionSpec | None
    measurements: Mapping[str, Any]
    """Results by name, as far as the check got: the spaces as text, and numbers (or lists) of random play."""
    algorithms: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Algorithms for these actions: ``online``, and ``offline`` for learning from a dataset."""
    starts: tuple[Start, ...] = ()
    """Runs to start with, a fast and a thorough one; empty if there are faults."""

    @property
    def algorithm(self) -> str:
        """The algorithm of the thorough run; "" if there are faults."""
        return self.starts[-1].algorithm if self.starts else ""

    @property
    def ok(self) -> bool:
        """Whether there are no faults."""
        return not any(finding.severity == "fault" for finding in self.findings)


def _make_checked_env(config: EnvConfig, factory: MakeEnv | None, findings: Findings) -> FlatEnv:
    """Make the environment with a :class:`CheckingWrapper` around it, below the wrappers of the settings.

    A native vector of one has no wrappers of settings: it applies them itself.
    """
    native = config.vectorization == "native"

    def raw() -> Env:
        env: Any = make_base(config, factory, render=False)
        if not isinstance(env, gymnasium.Env):
            return env  # type: ignore[no-any-return]  # a user's factory may return anything, which is refused
        check_spaces(env)
        findings.spaces = env.observation_space, env.action_space
        return CheckingWrapper(env, findings)

    outer = {name: getattr(EnvConfig(), name) for name in marked(Mark.SINGLE)} if native else {}
    return make_flat(config.merge(outer | {"vectorization": "sync", "kwargs": {}}), raw, 0, render=False)


# ---------------------------------------------------------------- playing


class PlayedRow(NamedTuple):
    """A row: the flat action, or the seed of the reset, before it; its reward, flags and observations."""

    cause: np.ndarray | int | None
    outcome: Outcome
    obs: dict[str, np.ndarray]

    def equals(self, other_row: PlayedRow) -> bool:
        """Return whether outcome and observations are the same."""
        return self.outcome == other_row.outcome and all(
            np.array_equal(x, other_row.obs[key]) for key, x in self.obs.items()
        )


class RandomPlayer:
    """Plays the environment of one slot, which writes its observations to ``arrays``.

    All methods raise ``EnvFailure``.
    """

    def __init__(self, slot: Slot, arrays: Mapping[str, np.ndarray], spec: ActionSpec) -> None:
        self._slot, self._arrays, self._rng = slot, arrays, np.random.default_rng(0)
        self.spec = spec
        self.cause: np.ndarray | int | None = None  # the latest action, or the seed of a reset

    def ask(self, request: str, *args: Any) -> Any:
        """Return the slot's answer to ``request``."""
        self._slot.send(request, *args)
        return self._slot.receive()

    def do(self, cause: np.ndarray | int | None) -> PlayedRow:
        """Take a flat action, or reset with a seed."""
        self.cause = cause
        outcome = self.ask("step" if isinstance(cause, np.ndarray) else "reset", cause)
        return PlayedRow(cause, outcome, {key: array.copy() for key, array in self._arrays.items()})

    def random_step(self) -> PlayedRow:
        """Take a random action that the mask of the newest row, if any, allows."""
        flat = self._rng.uniform(-1.0, 1.0, self.spec.width).astype(np.float32)
        legal = self._arrays.get(MASK_KEY, np.ones(len(flat), bool))
        for _, cut in self.spec.categorical_slices():
            flat[cut] = 0.0
            flat[cut.start + self._rng.choice(np.flatnonzero(legal[cut]))] = 1.0
        return self.do(flat)

    def differs_from(self, rows: list[PlayedRow], step: int = 0) -> str:
        """Replay the causes of ``rows``, which follow ``step``; return the difference, "" if there is none."""
        for expected in rows:
            actual, step = self.do(expected.cause), step + 1 if isinstance(expected.cause, np.ndarray) else 0
            names = ("the reward", "terminated", "truncated", "whose action was executed")
            ends = zip(names, expected.outcome, actual.outcome, strict=True)
            wrong = [name for name, before, after in ends if before != after]
            wrong += [
                f"observation '{key}'" for key, x in expected.obs.items() if not np.array_equal(x, actual.obs[key])
            ]
            if wrong:
                return f"{wrong[0]} differs {f'at step {step}' if step else f'after reset(seed={expected.cause})'}"
        return ""


class _Sizes:
    """How large the numbers of an observation are: the least and largest value, and the root mean square of each."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.low, self.high, self._squares, self._rows = math.inf, -math.inf, np.zeros(shape), 0

    def add(self, values: np.ndarray) -> None:
        """Add a row."""
        self.low, self.high = min(self.low, float(values.min())), max(self.high, float(values.max()))
        self._squares += np.square(values, dtype=np.float64)
        self._rows += 1

    def ends(self) -> tuple[float, float]:
        """Return the root mean square of the smallest and of the largest number."""
        means = np.sqrt(self._squares / self._rows)
        return float(means.min()), float(means.max())


def run_env_check(
    env: EnvLike | None, config: EnvConfig, steps: int, worker: bool = False, watch: Callable[[int], object] = id
) -> EnvReport:
    """Play random episodes in ``env``, or else in ``config.id``, for about ``steps`` steps, and report.

    ``worker``: also play in a worker process. ``watch`` is called with the number of steps so far. Raises ReverieError
    if the environment does not exist or cannot be made.
    """
    name = config.id if env is None else env_name(env)
    if (device_env := _open_device_env(config, env)) is not None:
        device_findings = Findings()
        with contextlib.closing(device_env):
            measurements = check_device_env(device_env, device_findings)
        return EnvReport(
            env=name, findings=sort_findings(device_findings.values()), obs_spec=device_env.obs_spec,
            action_spec=device_env.action_spec, measurements=measurements,
        )  # fmt: skip
    config = config.merge({"num": 1, "vectorization": "native" if config.vectorization == "native" else "sync"})
    check = _Check(env_factory(config, env), config)
    try:
        check.begin()
        check.play(steps, watch)
        if not check.single:
            check.play_in_copy()
        check.compare_actions()
        if worker and not check.single:
            check.play_in_worker()
    except EnvFailure as failed:
        check.blame(failed)
    finally:
        close(check.slots)
    findings = sort_findings(check.findings.values())
    assert check.findings.spaces is not None
    obs_space, action_space = check.findings.spaces
    obs, action = check.specs[:2] if check.specs else ({}, None)
    keys = {"/".join(map(str, path)) for path, _ in iter_leaves(obs_space)} - {""}
    texts = {"observation_space": obs_space, "action_space": action_space}
    measurements = {name: " ".join(str(space).split()) for name, space in texts.items()}
    measurements |= {"learners_ignore": ", ".join(sorted(keys - obs.keys()))} | check.measurements
    return EnvReport(env=name, findings=findings, obs_spec=obs, action_spec=action, measurements=measurements)


def _open_device_env(config: EnvConfig, env: EnvLike | None) -> VectorEnv | None:
    """Return the environments of a check if they are on a device; None if they are single ones, or arrays."""
    is_named = config.id.startswith(JAX_SUITES) and env is None
    if not is_named and (config.vectorization != "native" or (env is None and ":" not in config.id)):
        return None
    vector = make_vector_env(config.merge({"num": NUM_ENVS}), seed=SEED, factory=env, new=False)
    if vector.defers:
        return vector
    vector.close()
    return None


class _Check:
    """The parts of a check, in order.

    ``EnvFailure`` ends the check: the environment failed, or its answer is invalid.
    """

    player: RandomPlayer
    env: FlatEnv
    specs: EnvSpecs | None = None

    def __init__(self, factory: MakeEnv | None, config: EnvConfig) -> None:
        self.single, self.findings = isinstance(factory, InstanceWrapper), Findings()
        self.make = functools.partial(_make_checked_env, config, factory, self.findings)
        self.slots: list[Slot] = []
        self.measurements: dict[str, Any] = {}
        self.rows: list[PlayedRow] = []  # the beginning of the first episode
        self.summaries: list[Summary] = []  # of the episodes of random play
        self.starts: list[PlayedRow] = []  # first rows of other episodes
        self.saved: tuple[int, bytes | None] = 0, None  # step of the first episode, and the state after it

    def _player(self) -> tuple[RandomPlayer, Slot]:
        slot = Slot(0, self.make)
        slot.start()
        self.specs = slot.receive()
        self.slots.append(slot)
        slot.rows = {key: np.zeros(part.shape, part.dtype) for key, part in self.specs.obs_spec.items()}
        return RandomPlayer(slot, slot.rows, self.specs.action_spec), slot

    def begin(self) -> None:
        """Make the environment, and play the first episode."""
        started = time.perf_counter()
        self.player, slot = self._player()
        self.env = slot.env
        self.measurements["seconds_to_make"] = time.perf_counter() - started
        self.rows.append(self.player.do(1))
        while not self.rows[-1].outcome.is_over and len(self.rows) <= MAX_REPLAYED_STEPS:
            if len(self.rows) in (1, SAVED_STEP + 1):
                self.saved = len(self.rows) - 1, self.player.ask("snapshot")
            self.rows.append(self.player.random_step())
        self.starts = [self.player.do(seed) for seed in RESET_SEEDS]
        self.measurements["bytes_of_state"] = self.saved[1] and len(self.saved[1])
        if self.saved[1] is None:
            self.findings.add("unsaved", error=_unpicklable(self.env))
        elif (megabytes := len(self.saved[1]) / 1e6) > MAX_STATE_MB:
            self.findings.add("state_size", value=megabytes)

    def blame(self, failed: EnvFailure) -> None:
        """Add the fault that ended the check; raise its error if no environment could be made."""
        if self.findings.spaces is None or isinstance(failed.error, ConfigError):  # a setting, not the environment
            raise failed.error from failed
        if self.specs and failed.trace and isinstance(self.player.cause, np.ndarray):
            action = ActionCodec(self.findings.spaces[1])(self.player.cause)
            self.findings.add("raises", error=failed.error, **value_and_type(action))
        else:
            self.findings.add("refused" if self.specs else "spaces", error=failed.error)

    def play(self, max_steps: int, watch: Callable[[int], object]) -> None:
        """Play random episodes, ``max_steps`` steps in total; then replay the first one."""
        layers = wrapper_stack(self.env)
        wrapper = next(layer for layer in layers if isinstance(layer, CheckingWrapper))
        wrapper.times = {name: [] for name in wrapper.times}
        limits = [layer._max_episode_steps for layer in layers if isinstance(layer, gymnasium.wrappers.TimeLimit)]
        static_images = {key for key, part in self.env.obs_spec.items() if part.kind == "image"}
        sizes = {k: _Sizes(x.shape) for k, x in self.env.obs_spec.items() if x.kind == "vector" and 0 not in x.shape}
        rows, legal, signs, ended, half = list[Outcome](), list[float](), list[int](), False, 0.0
        until = wall_clock.monotonic() + MAX_PLAY_SECONDS
        first = self.player.do(None)
        while not rows or (
            wall_clock.monotonic() < until and len(rows) < max_steps * (1 if ended or limits else MAX_PLAY_FACTOR)
        ):
            if rows and rows[-1].is_over:
                first = self.player.do(None)
            row = self.player.random_step()
            rows.append(row.outcome)
            self.summaries += [self.player.ask("episode_summary")[0]] if row.outcome.is_over else []
            ended = ended or row.outcome.is_over
            static_images -= {key for key in static_images if not np.array_equal(row.obs[key], first.obs[key])}
            for key, size in sizes.items():
                size.add(row.obs[key])
            legal += [float(row.obs[MASK_KEY].mean())] if MASK_KEY in row.obs else []
            signs += [int(mover_sign(row.obs[PLAYER_KEY]))] if has_players(self.env.obs_spec) else [1]
            half = _resident() if len(rows) == max_steps // 2 else half
            watch(len(rows))
        for key, kind in self.env.read_executed_action.seen.items():
            self.findings.add_executed(key, kind)
        reward, terminated, truncated, _ = map(np.array, zip(*rows, strict=True))
        ends = np.flatnonzero(terminated | truncated) + 1
        spent, resets = sum(map(sum, wrapper.times.values())), wrapper.times["reset()"]
        self.measurements |= {
            "steps": len(rows),
            "episodes": len(ends),
            "terminated": int(terminated.sum()),
            "max_episode_steps": min(limits, default=None),
            "lengths": np.diff(ends, prepend=0).tolist(),
            "returns": [float(part.sum()) for part in np.split(reward * signs, ends)[: len(ends)]],
            "least_reward": float(reward.min()),
            "largest_reward": float(reward.max()) + 0.0,  # -0 becomes 0
            "rewards_not_0": int((reward != 0).sum()),
            "reward_size": float(np.abs(reward[reward != 0]).mean()) if reward.any() else 0.0,
            "observation_ranges": {key: (size.low, size.high) for key, size in sizes.items()},
            "observation_sizes": {key: size.ends() for key, size in sizes.items()},
            "steps_per_second": len(rows) / spent,
            "ms_per_reset": 1e3 * float(np.mean(resets)),
            "MB_grown": max(0.0, _resident() - half) if half else 0.0,
        }
        if isinstance(self.env.env, ActionMask):
            self.measurements |= {"masks": self.env.env.source, "legal_share": float(np.mean(legal))}
        lengths = self.measurements["lengths"]
        self._add_statistics(
            static_images, max_steps, [*map(EpisodeEnd, lengths, terminated[ends - 1], truncated[ends - 1])]
        )
        self._add_goals()
        self._add_tasks()
        if "generator" not in self.findings and (wrong := self.player.differs_from(self.rows + self.starts)):
            self.findings.add("reset", error=wrong)

    def _add_statistics(self, static_images: set[str], max_steps: int, ends: list[EpisodeEnd]) -> None:
        add, numbers = self.findings.add, self.measurements
        steps, lengths = numbers["steps"], numbers["lengths"]
        if not lengths and numbers["max_episode_steps"] is None and steps >= max_steps:
            add("endless", steps=steps)
        if problem := termination_warning(ends, self.env):
            add("horizon", error=problem)
        for key, declared in self.env.bounds.items() if "exact" not in self.findings else ():
            highest = declared.high.max(initial=0)
            if declared.high.dtype.kind in "iu" and EXACT < highest < np.iinfo(declared.high.dtype).max:
                add("wide", name=f"observation '{key}'", value=int(highest), most=EXACT)
        for key, part in self.env.obs_spec.items():
            if key in static_images:
                add("still", name=key, steps=steps)
            if part.kind == "image" and max(part.shape[:2]) > MAX_IMAGE_SIDE:
                add("size", name=key, value=f"{part.shape[0]} x {part.shape[1]}")
        self._add_rewards()
        if numbers["MB_grown"] > MAX_GROWTH_MB:
            add("memory", value=numbers["MB_grown"], steps=steps)

    def _add_rewards(self) -> None:
        returns = self.measurements["returns"]
        if not self.measurements["rewards_not_0"]:
            self.findings.add("sparse", steps=self.measurements["steps"])
        elif len(returns) >= MIN_EPISODES and min(returns) == max(returns):
            self.findings.add("constant", count=len(returns), value=returns[0])

    def _add_goals(self) -> None:
        if is_goal_env(self.env):
            if problem := goal_spec_problem(self.env.obs_spec):
                self.findings.add("goals", error=problem)
            self.measurements["goal_environment"] = "goals" not in self.findings

    def _add_tasks(self) -> None:
        rates = [summary[SUCCESS_RATE] for summary in self.summaries if SUCCESS_RATE in summary]
        self.measurements |= {"success_rate": float(np.mean(rates))} if rates else {}
        if len(rates) >= MIN_EPISODES and not any(rates) and not {"sparse", "constant"} & self.findings.keys():
            self.findings.add("unsolved", count=len(rates))
        lengths = self.measurements["lengths"]
        at_once = [
            length == 1 and summary.get(SUCCESS_RATE) == 1
            for summary, length in zip(self.summaries, lengths, strict=True)
        ]
        if (share := float(np.mean(at_once or [0]))) > MAX_AT_ONCE:
            self.findings.add("at_once", value=share)
        for layer in wrapper_stack(self.env):
            if isinstance(layer, GoalTasks):
                self.measurements["tasks"] = ", ".join(map(str, layer.tasks))
                if self.summaries and not rates:
                    self.findings.add("success")

    def play_in_copy(self) -> None:
        """Replay the first episode in another copy, and from its saved state."""
        try:
            copy, _ = self._player()
        except EnvFailure as failed:
            return self.findings.add("copies", error=failed.error)
        if "generator" in self.findings:
            return None
        step, state = self.saved
        if wrong := copy.differs_from(self.rows + self.starts):
            self.findings.pop("reset", None)
            self.findings.add("seed", error=wrong)
        elif state and (wrong := copy.ask("restore", state) or copy.differs_from(self.rows[step + 1 :], step)):
            self.findings.add("state", error=wrong)
        return None

    def compare_actions(self) -> None:
        """Take numeric actions at their bounds and at half of them: the outcomes should differ."""
        spec = self.player.spec
        classes = {index for _, cut in spec.categorical_slices() for index in range(cut.start, cut.stop)}
        numbers = [index for index in range(spec.width) if index not in classes][:MAX_COMPARED_ACTIONS]
        is_random = {"generator", "reset", "seed"} & self.findings.keys()
        if is_random or "masks" in self.measurements or self.measurements["ms_per_reset"] > SLOW_RESET_MS:
            return
        for index in numbers:
            high, half_high, half_low, low = (self.first_step(index, value) for value in (1.0, 0.5, -0.5, -1.0))
            if high.equals(half_high) and low.equals(half_low) and not high.equals(low):
                self.findings.add("saturates", at=index)

    def first_step(self, index: int, value: float) -> PlayedRow:
        """Return the first row after a reset and a flat action that is ``value`` at ``index``."""
        self.player.do(1)
        flat = np.zeros(self.player.spec.width, np.float32)
        for _, cut in self.player.spec.categorical_slices():
            flat[cut.start] = 1.0
        flat[index] = value
        return self.player.do(flat)

    def play_in_worker(self) -> None:
        """Replay the first episode in a worker process."""
        try:
            [slot], arrays = make_worker_slots([self.make], WORKER_START_SECONDS)
            self.slots.append(slot)
            slot.start()
            spec = slot.receive().action_spec
            player = RandomPlayer(slot, {key: array[0, ...] for key, array in arrays.items()}, spec)
            skipped = {"seed", "reset", "generator"} & self.findings.keys()
            wrong = player.differs_from([] if skipped else self.rows + self.starts)
        except EnvFailure as failed:
            wrong = str(failed.error)
        except (pickle.PicklingError, TypeError, AttributeError) as error:
            wrong = f"its factory cannot be pickled ({error})"
        self.measurements["plays_in_worker"] = not wrong
        if wrong:
            self.findings.add("worker", error=wrong)


def _unpicklable(env: Env) -> str:
    """Return which field of ``env`` cannot be pickled, for a message; "" if all can be."""
    for name, value in vars(env.unwrapped).items():
        try:
            pickle.dumps(value)
        except Exception as error:  # of any kind: third-party code runs here
            return f", as its field '{name}' cannot be pickled ({short_repr(str(error))})"
    return ""


def _resident() -> float:
    """Return the memory of this process in MB; 0 if unknown on this platform."""
    with contextlib.suppress(OSError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6
    return 0.0
