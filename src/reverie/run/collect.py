"""Collecting rows: steps the environments with the policy and adds every row to the replay buffer."""

from __future__ import annotations

import contextlib
import time
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from reverie.core.imports import is_trusting
from reverie.core.logger import logger
from reverie.core.protocols import (
    Env,
    Policy,
    RowSink,
    RunningStatistics,
    ScheduledPolicy,
)
from reverie.core.signing import is_mine, sign
from reverie.core.specs import MASK_KEY, SUCCESS_RATE, has_players
from reverie.core.tree import flatten_named, shapes_of, unflatten_named
from reverie.core.types import ExecutedActions, Mode, State, Step, count_set
from reverie.run.device_rows import COUNTED_TURNS, DeviceRow, LateRows
from reverie.run.episodes import TERMINATED, EpisodeCounter, Episodes, info_columns, join_episodes, read_exact_rewards
from reverie.run.takeovers import ActionChannel, TakeoverCounter
from reverie.run.turn import initial_state, random_actions_on, random_flat_actions, to_executed_action, watch_and_act

TIME_METRICS = ("time/acting_seconds", "time/environment_seconds", "time/update_seconds")
"""Metrics of the time that a collector and the loop spend on each task."""
ENVIRONMENTS = "environments.zip"
"""Snapshots of the environments in a checkpoint: pickles, which only a resumed run reads, and only if the user wrote
them."""
SIGNATURE = "signature"
"""Name of the entry in that file that identifies its author (``core/signing.py``)."""


class EnvCollector:
    """Keeps the current row of each environment and the policy's state, and advances both by one turn at a time.

    A turn ends when the actions are sent. Environments in worker processes take them while the learner makes its
    updates, and the next turn begins by receiving the rows, or the error of an environment. If an error ends a turn,
    the next turn completes it, even in a resumed run: each row is normalized, acted on, stored and counted exactly
    once. Part of a checkpoint.

    Where an ``Env`` defers its errors, nothing is read from the device until ``count``, and an error ends the episodes:
    the next turn begins new ones.
    """

    prunable = False

    def __init__(
        self, env: Env, policy: Policy[Any], sink: RowSink, *, seed: int | None = None, random_steps: int = 0,
        running_statistics: RunningStatistics | None = None, exact: Callable[[], bool] = lambda: True,
        schedule_position: Callable[[], int] | None = None, on_policy: bool = False,
        person: ActionChannel | None = None, rollout: int = 0, late: bool | None = None,
    ) -> None:  # fmt: skip
        """Reset ``env`` with ``seed``, which also seeds random actions.

        ``random_steps``: initial env steps with uniformly random actions. ``running_statistics``: updated with every
        row before the policy acts on it. ``exact``: whether the rows loaded from a checkpoint equal the saved rows, so
        that episodes can continue. ``schedule_position``: returns the env steps that exploration schedules follow;
        None: those that the policy has taken. ``on_policy``: whether the learner needs the policy's own actions.
        ``person``: who can take over from the policy; None: nobody.

        Of environments that defer their errors: ``rollout``: the rows of each that :meth:`collect` gives to ``sink``, a
        ``DeviceRollout``, at once; 0: one row, for a replay. ``late``: whether the replay gets it one turn later, as by
        default on a GPU.
        """
        self.exact = exact
        self.schedule_position = schedule_position
        self._saved: State = {}
        self.env = env
        self.policy = policy
        self.sink: Any = sink
        self.running_statistics = running_statistics
        self.random_steps = random_steps
        self.env_steps: int = 0
        self._restarts_before = 0  # of earlier processes of this run
        self.rng: np.random.Generator = np.random.default_rng(seed)
        self._step: Step | None = env.reset(seed)  # None while a step is pending
        self._rewards: np.ndarray = np.zeros(env.num_envs)
        self._logged: Mapping[int, Mapping[str, float]] = {}
        self._failure: Exception | None = None  # the error raised instead
        self.state: Any = initial_state(policy, env.num_envs)
        self.counter: EpisodeCounter = EpisodeCounter(env.num_envs, has_players(env.obs_spec))
        self.finished: list[Episodes] = []
        self.unlogged_episodes: list[Episodes] = []
        self.seconds: dict[str, float] = dict.fromkeys(TIME_METRICS, 0.0)
        self.on_policy = on_policy
        self.person = person
        self.takeovers: TakeoverCounter = TakeoverCounter(env.num_envs)
        self._tags: Tensor | None = None  # where a person took the newest action, [N]; None: nowhere
        self._action: Tensor | None = None  # the policy's output for the current rows, until it is sent
        self._sent: Tensor | None = None  # the actions of the pending step
        self._num_filtered: Any = 0  # steps since the last log entry whose action a filter replaced
        self._logged_steps = 0  # env steps at the last log entry
        self._watched = self._stored = self._counted = False  # the other stages completed for the current rows
        self.rollout: int = rollout
        self._defers = env.defers
        self._is_whole = True  # whether no error has ended a turn
        self._uncounted: list[DeviceRow] = []
        self.late_rows: LateRows | None = None
        if env.defers and not rollout:
            self.late_rows = LateRows(sink, env.device.type != "cpu" if late is None else late)
            self.schedule_position = schedule_position or (lambda: self.env_steps)
        self._rows: RowSink = self.late_rows or sink

    @property
    def step(self) -> Step:
        """Return the current row of each environment, on which the policy acts next. Waits for a pending step."""
        if self._failure is not None:
            raise self._failure
        if self._step is None:
            begin = time.perf_counter()
            try:
                self._step = self.env.receive()
                self.seconds["time/environment_seconds"] += time.perf_counter() - begin
                if (executed_actions := self.env.executed_actions) is not None:
                    self._num_filtered = self._num_filtered + executed_actions.count_filtered()
                    self._correct(executed_actions)
                if self._defers:
                    self._uncounted.append(DeviceRow.of(self.env, self._step, self._tags))
                    self._tags = None
                else:
                    self._finish_turn(self._step)
            except Exception as error:
                self._failure = error
                raise
        return self._step

    def _finish_turn(self, step: Step) -> None:
        """Keep what is counted of the rows ``step``, and ask a person for a judgment."""
        self._rewards, self._logged = read_exact_rewards(self.env, step), self.env.episode_info
        if self.person is not None and (judgment := self.person.judge(step)) is not None:
            self._end_episode(step, *judgment)
        if self._tags is not None or self.takeovers.is_open:
            self.takeovers.add(self._tags, step.is_first)
            self._tags = None

    def _correct(self, executed_actions: ExecutedActions) -> None:
        """Store the ``executed_actions``, and tell the policy, before it acts on the rows behind them."""
        if self.on_policy:
            executed_actions = executed_actions.takeovers
            if not executed_actions.has_takeovers:
                return
        assert self._sent is not None
        action, tags = executed_actions.replace_in(self._sent), executed_actions.tags
        if tags is not None:
            self._tags = tags if self._tags is None else tags | self._tags
        self._rows.correct(action, self._tags)
        self.state = self.policy.override(self.state, action)

    def _end_episode(self, step: Step, is_success: bool, bonus: float) -> None:
        """End the episode of environment 0 with the rows ``step``, by a person's judgment that adds ``bonus``."""
        step = step if step.is_last[0] else self.env.truncate(step, [0])
        reward, is_terminal, self._rewards = step.reward.clone(), step.is_terminal.clone(), self._rewards.copy()
        reward[0] += bonus
        self._rewards[0] += bonus
        is_terminal[0] = True
        self._step = replace(step, reward=reward, is_terminal=is_terminal)
        logged = self.env.episode_info
        self._logged = {**logged, 0: {**logged.get(0, {}), SUCCESS_RATE: float(is_success)}}

    def settle(self) -> None:
        """Wait for the pending rows, which can change the actions of the newest stored rows; without an error."""
        self._envs_respond()

    def collect(self) -> int:
        """Do one turn, or those of a rollout: act, store, send.

        Return the env steps: one for each row that is not ``is_last``. If rows are ``late``, of the rows before.
        """
        return self._collect_on_device() if self._defers else self._take_turn()

    def _take_turn(self) -> int:
        """Return the env steps, which on a device are counted later."""
        step, begin = self.step, time.perf_counter()
        if self._action is None:
            self._action = self._choose_action(step)
        self.seconds["time/acting_seconds"] += time.perf_counter() - begin
        if not self._stored:
            self._rows.add(step, self._action, self.policy.extras(self.state))
            self._stored = True
        if self._tags is not None:
            self._rows.correct(self._action, self._tags)
        num_steps = 0
        if not self._defers:
            self._count(step)
            num_steps = len(step) - count_set(step.is_last)
        begin = time.perf_counter()
        self.env.send(self._action)
        self.seconds["time/environment_seconds"] += time.perf_counter() - begin
        self._sent, self._step, self._action = self._action, None, None
        self._watched = self._stored = self._counted = False
        self.env_steps += num_steps
        return num_steps

    def _collect_on_device(self) -> int:
        if not self._is_whole:
            self._begin_episodes()
        before, self._is_whole = self.env_steps, False
        for _ in range(self.rollout or 1):
            self._add_late_row()
            self._take_turn()
        if self.rollout:
            self.sink.complete(self.step)
        elif self.late_rows is not None and not self.late_rows.late:
            self._add_late_row()
        if len(self._uncounted) >= (self.rollout or COUNTED_TURNS):
            self.count()
        self._is_whole = True
        return self.env_steps - before

    def _add_late_row(self) -> None:
        """Add the newest row to the replay, with the action that was executed in it."""
        if self.late_rows is not None and self.step is not None:
            self.env_steps += self.late_rows.flush()

    def _begin_episodes(self) -> None:
        """Begin new episodes on a device, after an error."""
        if self.rollout:
            self.sink.restart()
        self._step, self.state = self.env.reset(), initial_state(self.policy, self.env.num_envs, self.env_steps)
        self._failure = self._action = self._tags = None
        self._watched = self._stored = False
        self._uncounted.clear()
        self.counter.totals[:] = 0.0

    def _choose_action(self, step: Step) -> Tensor:
        """Run the policy on the current rows; return the action ``[N, A]`` to store and to send."""
        random = self.env_steps < self.random_steps
        if self.schedule_position is not None and isinstance(self.policy, ScheduledPolicy):
            self.state = self.policy.advance_schedule(self.state, self.schedule_position())
        statistics, self._watched = None if self._watched else self.running_statistics, True
        mode: Mode = "random" if random else "explore"  # it acts then too, for its extras
        if statistics is None:
            action, self.state = self.policy.act(step, self.state, mode)
        else:
            action, self.state = watch_and_act(statistics, self.policy, step, self.state, mode)
        if random:
            spec, legal = self.env.action_spec, step.obs.get(MASK_KEY)
            action = to_executed_action(
                random_flat_actions(spec, len(step), self.rng, legal) if step.reward.is_cpu
                else random_actions_on(step.reward.device, spec, len(step), legal),
                step,
            )  # fmt: skip
            self.state = self.policy.override(self.state, action)
        action = to_executed_action(action, step)
        return action if self.person is None else self._ask_person(self.person, step, action)

    def _ask_person(self, person: ActionChannel, step: Step, action: Tensor) -> Tensor:
        """Return the policy's ``action`` ``[N, A]``, replaced where the ``person`` takes over."""
        if (chosen := person.choose(step, action)) is None:
            return action
        self._tags = chosen.is_takeover & ~step.is_last
        action = to_executed_action(chosen.replace_in(action), step)
        self.state = self.policy.override(self.state, action)
        return action

    def count(self) -> None:
        """Count the current rows unless they have been counted; waits for them.

        On a device, all rows since the last call are counted; DataError or ActionError for what was deferred.
        """
        if not self._envs_respond():
            return
        if not self.env.defers:
            self._count(self.step)
            return
        if not self._uncounted:
            return
        rows, self._uncounted = self._uncounted, []
        self.env.check()
        for row in DeviceRow.read(rows):
            self._rewards, self._logged = row.exact_rewards, row.episode_info()
            if row.tags is not None or self.takeovers.is_open:
                self.takeovers.add(row.tags, row.step.is_first)
            self._finish(self.counter.add(row.step, self._rewards), self._logged, row.step)
            self.env_steps += self.env.num_envs - count_set(row.step.is_first) if self.rollout else 0

    def _count(self, step: Step) -> None:
        if not self._counted:
            self._finish(self.counter.add(step, self._rewards), self._logged, step)
            self._counted = True

    def _finish(self, numbers: np.ndarray, logged: Mapping[int, Mapping[str, float]], step: Step) -> None:
        """Add the running episodes of the environments ``numbers``, which end with ``step``, to the finished ones."""
        if numbers.size:
            scores, lengths = self.counter.totals[:, numbers]
            if self.takeovers.steps:
                logged = self.takeovers.end_episodes(numbers.tolist(), logged)
            info = info_columns([logged.get(i, {}) for i in numbers.tolist()]) if logged else {}
            info[TERMINATED] = step.is_terminal.numpy(force=True)[numbers].astype(np.float64)
            self.finished.append(Episodes(scores, lengths, np.ones(len(numbers)), lengths, info))

    @property
    def restarts(self) -> int:
        """Number of restarts of failed environments in this run, including earlier processes."""
        return self._restarts_before + self.env.restarts

    def pop_episodes(self, *, at_the_end: bool = False) -> list[Episodes]:
        """Return the episodes that ended since the last call.

        ``at_the_end``: include episodes that end with the current rows.
        """
        if at_the_end:
            self.count()
        finished, self.finished = self.finished, []
        return finished

    def pop_late_episodes(self) -> list[Episodes]:
        """Count the rows that wait for it on a device; return the episodes that ended there, or [] without any."""
        return self.pop_episodes(at_the_end=True) if self.env.defers else []

    def pop_action_rates(self) -> dict[str, float]:
        """Return how often filters and people replaced the policy's actions since the last call; {} if nobody did."""
        if self.env.defers:
            self.count()
        count, steps = int(self._num_filtered), self.env_steps - self._logged_steps
        self._num_filtered, self._logged_steps = 0, self.env_steps
        rates = {"env/filtered_rate": count / steps} if count and steps else {}
        return rates | self.takeovers.pop_metrics(steps)

    def close(self) -> None:
        """Close the environments."""
        self.env.close()

    def state_dict(self) -> State:
        """Return the counters, the generator of random actions, the current rows and the policy's state.

        Waits for the rows. Without rows and policy state if the environments have failed permanently.
        """
        if not self._envs_respond() or (self.env.defers and not self._is_whole):
            return self._counters()
        if self.env.defers:
            self.count()
        return self._counters() | {
            "step": flatten_named(self.step),
            "environments": self.env.state_dict() if self.env.defers else None,
            "late": {} if self.late_rows is None else self.late_rows.state_dict(),
            "rewards": self._rewards,
            "watched": self._watched,
            "counted": self._counted or self.env.defers,
            "episodes": self.counter.totals.copy(),
            "logged": {} if self._counted else {str(number): dict(info) for number, info in self._logged.items()},
            "begun": None
            if self._action is None
            else {"action": self._action, "stored": self._stored, "tags": self._tags},
            "state": flatten_named(self.state),
        }

    def _counters(self) -> dict[str, Any]:
        return {
            "env_steps": self.env_steps,
            "restarts": self.restarts,
            "filtered": (int(self._num_filtered), self._logged_steps),
            "takeovers": self.takeovers.state_dict(),
            "person": None if self.person is None else self.person.state_dict(),
            "rng": self.rng.bit_generator.state,
            "unlogged": vars(join_episodes([*self.unlogged_episodes, *self.finished])),
        }

    def snapshots(self) -> list[bytes | None]:
        """Return a snapshot of each environment, to continue from its current row.

        [] if they have failed permanently.
        """
        return self.env.snapshot() if self._envs_respond() else []

    def _envs_respond(self) -> bool:
        with contextlib.suppress(Exception):  # the next turn raises it again
            return self.step is not None
        return False

    def load_state_dict(self, state: State) -> None:
        """Restore the counters.

        New episodes begin, unless ``load_files`` continues the old ones. With a different number of environments, the
        policy's state is re-initialized except for its schedules.
        """
        self._saved = state
        self.env_steps = int(state["env_steps"])
        self._restarts_before = int(state["restarts"])
        self._num_filtered, self._logged_steps = map(int, state["filtered"])
        self.takeovers.load_state_dict(state["takeovers"])
        if self.person is not None and state["person"] is not None:
            self.person.load_state_dict(state["person"])
        self.rng.bit_generator.state = dict(state["rng"])
        self.unlogged_episodes[:] = [Episodes(**state["unlogged"])]
        carried = state.get("state", {})
        if shapes_of(carried) == shapes_of(flatten_named(self.state)):
            self.state = unflatten_named(self.state, carried)
        else:
            self.state = initial_state(self.policy, self.env.num_envs, self.env_steps)

    def save_files(self, folder: Path) -> None:
        """Write a snapshot of each environment that supports it; those on a device are tensors of the checkpoint."""
        snapshots = self.snapshots()
        with zipfile.ZipFile(folder / ENVIRONMENTS, "w") as file:
            for number, snapshot in enumerate(snapshots):
                file.writestr(zipfile.ZipInfo(f"{number}{'' if snapshot is not None else '-none'}"), snapshot or b"")
            file.writestr(zipfile.ZipInfo(SIGNATURE), sign(snapshot or b"" for snapshot in snapshots))

    def load_files(self, folder: Path) -> None:
        """Continue the saved episodes, if the rows are ``exact`` and the environments support it."""
        snapshots: list[bytes | None] = []
        if not self.exact():
            logger.warning("the rows are no longer those of the checkpoint: environments start new episodes")
            return
        if (folder / ENVIRONMENTS).exists():
            with zipfile.ZipFile(folder / ENVIRONMENTS) as file:
                stored = [info for info in file.infolist() if info.compress_type == zipfile.ZIP_STORED]  # as written
                contents = {info.filename: file.read(info) for info in stored}
            claimed = contents.pop(SIGNATURE, b"").decode(errors="replace")
            if not (is_mine(contents.values(), claimed) or is_trusting()):
                logger.warning(
                    f"{folder / ENVIRONMENTS} contains pickles that you did not write on this machine: they are not "
                    "read, since unpickling runs code, and the environments start new episodes. If you trust them, "
                    "add --trust-code"
                )
                return
            snapshots = [None if name.endswith("-none") else content for name, content in contents.items()]
        if lost := self.resume(self._saved, snapshots):
            logger.warning(
                f"{lost} of {self.env.num_envs} environments cannot resume in the middle of an episode: they start new "
                "ones (docs/collecting.md says which can)"
            )

    def resume(self, state: State, snapshots: Sequence[bytes | None]) -> int:
        """Continue the episodes saved in ``state`` and in the ``snapshots`` of N environments.

        Return the number of environments that cannot: their episodes are truncated and new ones begin.
        """
        if "step" not in state or len(state["rewards"]) != self.env.num_envs:
            return self.env.num_envs
        step = self._step = unflatten_named(self.step, state["step"])
        self.counter.totals = np.array(state["episodes"])
        if (environments := state["environments"]) is not None:
            self.env.load_state_dict(environments, step)
        else:
            self._step = self.env.restore(snapshots, step)
        over = (self._step.is_last & ~step.is_last).numpy(force=True)
        if self.late_rows is not None:
            self.late_rows.load_state_dict(state["late"], self._step)
        self._counted, self._watched, self._rewards = bool(state["counted"]), bool(state["watched"]), state["rewards"]
        self._logged = {int(number): dict(info) for number, info in state["logged"].items()}
        if begun := state["begun"]:
            self._action, self._stored = to_executed_action(begun["action"], self._step), bool(begun["stored"])
            self._tags = begun["tags"]
        if self._counted:
            self._finish(self.counter.find(over), {}, self._step)
        return int(over.sum())
