"""A running episode and its dream, side by side, independent of the browser."""

from __future__ import annotations

import copy
import functools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.dream_report import make_live_env
from reverie.agent.dream_strip import find_fall, make_dream_strip, make_value_strip
from reverie.agent.planning import LATENT_SIMULATIONS
from reverie.agent.player import policy_mode
from reverie.agent.world_model_inspector import WorldModelInspector, has_world_model, replace_classes
from reverie.algos.base import INTERNAL_PREFIX, prediction_name
from reverie.core import wall_clock
from reverie.core.errors import ConfigError, DataError, EnvError, short_repr
from reverie.core.masks import check_action_legal
from reverie.core.protocols import Policy
from reverie.core.seeding import derived_seeds
from reverie.core.specs import MASK_KEY, PLAYER_KEY, SUCCESS_RATE, has_players
from reverie.core.types import Obs, Step
from reverie.log.strip import COLUMNS, Strip
from reverie.nn.state_space import Latent
from reverie.run.turn import take_action, take_turn, to_executed_action
from reverie.viewer.episode_source import PictureRenderer, RecordedEnv, action_names
from reverie.viewer.goals import TowardGoal, as_goal, has_env, is_goal_agent, make_goal_strip, observed_goal, unit_of
from reverie.viewer.model_free_values import critic_rewards, greedy_gap, model_free_values, value_discount
from reverie.viewer.page_data import (
    MAX_SHOWN_NUMBERS,
    agent_info,
    flatten_action,
    latent_to_dict,
    row_to_dict,
    split_rows,
    vector_names,
)
from reverie.viewer.search import MAX_SIMULATIONS, find_board, search_row
from reverie.viewer.timeline import DreamBranch, DreamRow, RandomStream, RealRow, Timeline

NUM_BRANCHES, MAX_STEPS, MAX_LANES = 8, 1000, 12
"""Number of futures that a branch imagines; maximum number of steps imagined at once, and of lanes."""
LANE_NAMES = {"dream": "dream", "hands": "your hands", "future": "future", "edited": "edit", "search": "search"}
MAX_TRIED_SEEDS, MAX_TRIED_SECONDS, LONG_EPISODE_STEPS = 6, 0.4, 120
"""Episodes of which the first showing chooses the longest, the time for it, and the rows that are enough."""


class Session:
    """An episode with an agent: the real rows, and the rows that its world model dreams under the same actions.

    Where another action, a future or an edit follows a row, another lane begins; ``timeline`` is the current one.
    Methods that change rows or the lane return the number of the first row that differs from before.
    """

    def __init__(self, agent: Agent, *, seed: int | None = None, source: RecordedEnv | None = None) -> None:
        """Begin an episode. EnvError if the environment cannot be made.

        ``seed`` None: the first seed of the run's final evaluation. ``source`` None: the agent's environment.
        """
        self.recorded: RecordedEnv | None = source
        self.source: Any = source or make_live_env(agent, render=True)  # perhaps in a TowardGoal
        self.deterministic: bool = True
        own_limit = getattr(self.source, "max_episode_steps", None)
        self.limit: int = max(agent.episode_limit, own_limit or 0)
        """Steps after which the episode is cut off."""
        self._set_agent(agent)
        if source is not None and is_goal_agent(agent):  # by default, where the episode ends
            self.pursue(as_goal(agent, {key: x[0] for key, x in source.batch.obs.items()}, -1))
        self.pictures: PictureRenderer = PictureRenderer(agent, None if self.inspector is None else self.inspector.keys)
        self.seed: int = derived_seeds(agent.config.seed)["test"] if seed is None else seed
        self.start(self.seed)

    def _set_agent(self, agent: Agent) -> None:
        self.agent: Agent = agent
        self.inspector: WorldModelInspector | None = WorldModelInspector(agent) if has_world_model(agent) else None
        self.policy: Policy[Any] = agent.algo.policy

    def close(self) -> None:
        """Close the environments."""
        self.source.close()
        self.pictures.close()

    # ------------------------------------------------------------------ the real episode

    def pursue(self, goal: Obs) -> None:
        """Act toward ``goal``, of :func:`~reverie.viewer.goals.as_goal`, from the next :meth:`start` on."""
        self.source = TowardGoal(getattr(self.source, "source", self.source), self.agent, goal)

    @property
    def goal(self) -> Obs:
        """The goal of the episode, ``[1, ...]`` by the keys of the observations that it is."""
        return observed_goal(self.agent, self.timeline.real[0].step.obs)

    def state_before(self, at: int) -> Any:
        """Return the policy's state before row ``at``.

        No loop plays the rows, since the page may choose the action of any row after the policy has acted on it.
        """
        if not at:
            return self.agent.initial_state(1)
        return self.policy.override(self.timeline.real[at - 1].state, self.timeline.actions[at - 1])

    def start(self, seed: int | None = None) -> int:
        """Begin another episode; ``seed`` None: with the next seed."""
        self.seed = self.seed + 1 if seed is None else seed
        self.real_stream: RandomStream = RandomStream(self.seed)
        self.dream_stream: RandomStream = RandomStream(self.seed)
        self.timeline: Timeline = Timeline()
        self.lanes: list[Timeline] = [self.timeline]
        self.branches: list[DreamBranch] = list[DreamBranch]()
        self.branched: tuple[Timeline, int] = self.timeline, 0
        with self.real_stream():
            self._add_real_row(self.source.reset(self.seed))
        return 0

    def start_longest(self) -> int:
        """Begin the longest episode of up to ``MAX_TRIED_SEEDS`` seeds; return how many there was time to try."""
        if self.recorded is not None:
            return 1
        lengths, deadline = dict[int, int](), wall_clock.monotonic() + MAX_TRIED_SECONDS
        while len(lengths) < MAX_TRIED_SEEDS and wall_clock.monotonic() < deadline:
            seed = self.seed + len(lengths)
            lengths[seed] = self._count_rows(seed, deadline)
            if lengths[seed] >= LONG_EPISODE_STEPS:
                break
        self.start(max(lengths, key=lambda seed: lengths[seed]))
        return len(lengths)

    def _count_rows(self, seed: int, deadline: float) -> int:
        """Play an episode until its end, ``LONG_EPISODE_STEPS`` rows or the deadline; return its rows."""
        with RandomStream(seed)():
            step, state, count = self.source.reset(seed), self.agent.initial_state(1), 1
            while (
                not step.is_last[0]
                and count < min(LONG_EPISODE_STEPS, self.limit)
                and wall_clock.monotonic() < deadline
            ):
                _, step, state = take_turn(self.source, self.policy, step, state, policy_mode(self.deterministic))
                count += 1
        return count

    def step(self, at: int | None = None, action: Sequence[float] | None = None) -> int:
        """Step the environment from row ``at`` (None: the newest row), in another lane if another action was taken.

        ``action`` ``[A]``: None takes the action of the dream at this row, or else of the policy; a recorded episode
        always takes the recorded action.
        """
        line = self.timeline
        at = len(line.real) - 1 if at is None else self._row(at, line.real)
        if line.real[at].values["last"]:
            raise DataError("the episode is over at this row: start another one, or continue the dream.")
        recorded = None if self.recorded is None else self.recorded.batch.action[:, at]
        follows = line.actions[at] if at < len(line.actions) else line.real[at].policy_action
        chosen = follows if recorded is None else recorded
        if action is not None:
            chosen = flatten_action(self.agent, action)
        # A dream's action, too, may be illegal: the environment would fail and begin another episode.
        if recorded is None and (mask := line.real[at].step.obs.get(MASK_KEY)) is not None:
            never = np.zeros(1, bool)
            check_action_legal(mask.numpy(), chosen.numpy(), never, self.agent.action_spec, at)
        if recorded is not None and not torch.equal(chosen, recorded):
            raise DataError(
                "the actions of a recorded episode cannot be changed. Continue the dream to apply your own action."
            )
        is_other = at < len(line.actions) and not torch.equal(line.actions[at], chosen)
        if at + 1 < len(line.real) and not is_other:
            return at + 1
        with self.real_stream():
            self._catch_up(at)
            if is_other:
                line = self._leave(at, "dream" if action is None else "hands")
            step, chosen = take_action(self.source, to_executed_action(chosen, line.real[at].step))
            line.actions[at:] = [chosen, *line.actions[at + 1 :]]
            self._add_real_row(step)
        return at + 1

    def _add_real_row(self, step: Step) -> None:
        """Add a row; the policy acts on it, and the model observes or imagines it."""
        line, real = self.timeline, self.timeline.real
        if not self.recorded is not None and len(real) >= self.limit and not step.is_last[0]:
            step = self.source.truncate(step, [0])
        real.append(self._process_row(step, self.state_before(len(real)), self.pictures.real(self.source, step.obs)))
        self._env_step: Step | None = step
        if self.inspector is not None and len(line.dream) < len(real):
            self._extend()

    def _process_row(self, step: Step, state: Any, picture: bytes | None) -> RealRow:
        """Return a row with the agent's action, its values and the divergence of its world model."""
        proposed, after = self.policy.act(step, state, policy_mode(self.deterministic))
        facts: dict[str, Any] = {"reward": float(step.reward[0]), "last": bool(step.is_last[0])}
        facts["terminal"] = bool(step.is_terminal[0])
        vectors = {key: step.obs[key][0].flatten() for key in vector_names(self.agent)}
        if MASK_KEY in step.obs:
            facts["legal"] = step.obs[MASK_KEY][0].nonzero().flatten().tolist()
        if has_players(self.agent.obs_spec):
            facts["player"] = int(step.obs[PLAYER_KEY][0])
        facts["numbers"] = {key: x.tolist() for key, x in vectors.items() if len(x) <= MAX_SHOWN_NUMBERS}
        latent = predictions = None
        if self.inspector is not None:
            latent = self.inspector.most_likely(step, after)
            predictions = split_rows(self.inspector.predict([latent]))[0]
            facts |= {"value": float(predictions[f"{INTERNAL_PREFIX}value"]), "policy": predictions["policy"].tolist()}
            facts |= self.inspector.divergence(step, after)
        else:
            facts |= model_free_values(self.agent, step, state, proposed)
        return RealRow(step, after, to_executed_action(proposed, step), picture, facts, latent, predictions)

    def _catch_up(self, at: int) -> None:
        """Replay the same seed and actions up to row ``at``, if the environment is at another row or lane."""
        if self.timeline.real[at].step is self._env_step:
            return
        self._env_step, step = None, self.source.reset(self.seed)
        for number in range(at):
            step = self.source.step(to_executed_action(self.timeline.actions[number], step))
        if not all(torch.equal(value, step.obs[key]) for key, value in self.timeline.real[at].step.obs.items()):
            raise EnvError(
                "the environment is not deterministic: replaying the seed and the actions does not reproduce this row. "
                "Continue the dream from here, or start another episode."
            )

    # ------------------------------------------------------------------ lanes

    def _leave(self, at: int, kind: str) -> Timeline:
        """Add a lane that leaves the current one after row ``at``, and make it the current one."""
        if len(self.lanes) == MAX_LANES:
            raise DataError(
                f"there are {MAX_LANES} lanes, as many as there can be: undo one, or start another episode."
            )
        self.lanes.append(self.timeline.branch(at, kind))
        self.timeline = self.lanes[-1]
        return self.timeline

    def switch_lane(self, number: int) -> int:
        """Make another lane the current one."""
        return self._show(self.lanes[self._check_number(number, 0, len(self.lanes) - 1)])

    def _show(self, line: Timeline) -> int:
        """Make a lane the current one; return the first row that differs."""
        before, self.timeline = self.timeline, line
        return before.count_shared(line)

    def undo(self) -> int:
        """Undo the last edit of the newest lane, or remove this lane and return to its parent."""
        line = self.lanes[-1]
        if line.parent is None:
            raise DataError("there is nothing to undo.")
        if len(line.edits) < 2:
            self.lanes.pop()
            return self._show(line.parent)
        first, (at, row, line.context, line.pinned_classes) = self._show(line), line.edits.pop()
        line.dream[at] = row
        self._dream_again(at + 1)
        return min(first, at)

    # ------------------------------------------------------------------ the dream

    def dream(self, at: int, steps: int = 15, action: Sequence[float] | None = None, *, past_end: bool = True) -> int:
        """Continue the dream from row ``at``, in another lane if rows follow. ``past_end`` False: until it ends.

        ``action`` ``[A]`` of the first step; None: the policy acts in the dream.
        """
        at, steps = self._row(at, self.timeline.dream), self._check_number(steps, 1, MAX_STEPS)
        first = [] if action is None else [flatten_action(self.agent, action)]
        line = self.timeline
        if at + 1 < len(line.dream):
            line = self._leave(at, "hands" if first else "dream")
        line.actions += first
        self._imagine(steps)
        if not past_end:
            line.cut_at_end(at + 1)
        line.share_real_rows()
        return at + 1

    def set_context(self, rows: int) -> int:
        """Let the model observe the first ``rows`` rows, and dream the others again, in the lane before any edit."""
        self._require_inspector()
        self._check_number(rows, 1, len(self))
        self._leave_edits()
        self.timeline.context = rows
        return self._dream_again(0)

    def _leave_edits(self) -> None:
        """Return to the lane in which no row was edited."""
        while self.timeline.has_edits():
            assert self.timeline.parent is not None
            self.timeline = self.timeline.parent

    def _dream_again(self, first: int) -> int:
        """Dream rows from ``first`` on again, under the same actions."""
        line, length = self.timeline, len(self.timeline.dream)
        del line.dream[first:]
        while len(line.dream) < min(length, line.context, len(line.real)):
            self._extend()
        if rest := length - len(line.dream):
            self._imagine(rest)
        return first

    def _extend(self) -> None:
        """Add a row to the dream: observed by the model, or imagined under the chosen action."""
        line, row = self.timeline, len(self.timeline.dream)
        if row < line.context and row < len(line.real):
            real_row = line.real[row]
            assert real_row.latent is not None
            line.dream.append(DreamRow(real_row.latent, "seen", real_row.predictions or {}))
            return
        self._imagine(1)

    def _imagine(self, steps: int) -> None:
        """Add imagined rows under the chosen actions; after these the policy acts."""
        line, inspector, mode = self.timeline, self._require_inspector(), policy_mode(self.deterministic)
        at = len(line.dream) - 1
        fixed = line.actions[at:]

        def choose(number: int, latent: Latent) -> Tensor:
            return fixed[number].to(latent.deter.device) if number < len(fixed) else inspector.act(latent, mode)

        with self.dream_stream():
            latents, actions = inspector.imagine(line.dream[at].latent, steps, choose, line.pinned_classes)
            line.actions += [action.cpu() for action in actions[len(fixed) :]]
            line.dream += self._dream_rows(latents)

    def _dream_rows(self, latents: list[Latent]) -> list[DreamRow]:
        rows = split_rows(self._require_inspector().predict(latents))
        return [DreamRow(latent, "imagined", predictions) for latent, predictions in zip(latents, rows, strict=True)]

    # ------------------------------------------------------------------ branches

    def branch(self, at: int, by: str = "sample", steps: int = 15) -> list[DreamBranch]:
        """Imagine futures from row ``at``: ``NUM_BRANCHES`` samples, or ("action") one for each first action.

        Other actions are drawn from the policy. Nothing changes until :meth:`pick`.
        """
        inspector, line, steps = self._require_inspector(), self.timeline, self._check_number(steps, 1, 200)
        at = self._row(at, line.dream)
        if at < len(line.real) and line.real[at].values["terminal"]:
            raise DataError(f"row {at} is terminal, without futures. Go to an earlier row.")
        if (end := line.dream_end()) is not None and at >= end:
            raise DataError(f"the dream ends at row {end}, without futures. Go to an earlier row or observe more rows.")
        firsts = self._first_actions() if by == "action" else None
        count = NUM_BRANCHES if firsts is None else len(firsts)
        names = [""] * count if firsts is None else self.action_names or [f"action {i}" for i in range(count)]
        start = line.dream[at].latent.map(lambda x: x.expand(count, *x.shape[1:]))

        def choose(number: int, latent: Latent) -> Tensor:
            return (
                firsts.to(latent.deter.device)
                if firsts is not None and not number
                else inspector.act(latent, "explore")
            )

        with self.dream_stream():
            latents, actions = inspector.imagine(start, steps, choose, line.pinned_classes)
            predictions = inspector.predict(latents)
        totals = inspector.predicted_return(predictions)
        self.branched = line, at
        self.branches = [
            DreamBranch(
                [DreamRow(x.map(lambda v, i=i: v[i : i + 1]), "imagined", {k: v[i, t] for k, v in predictions.items()})  # type: ignore[misc]
                 for t, x in enumerate(latents)],
                [action[i : i + 1].cpu() for action in actions],
                float(totals[i]),
                names[i],
            )
            for i in range(count)
        ]  # fmt: skip
        return self.branches

    def pick(self, number: int) -> int:
        """Continue with a future of the last branch until its end, in another lane."""
        (self.timeline, at), before = self.branched, self.timeline
        chosen = self.branches[self._check_number(number, 0, len(self.branches) - 1)]
        line = self._leave(at, "future")
        line.name = chosen.name
        line.actions += chosen.actions
        line.dream += chosen.rows
        line.cut_at_end(at + 1)
        line.share_real_rows()
        return before.count_shared(line)

    def _first_actions(self) -> Tensor:
        """Return each class of the only choice, one-hot ``[n, A]``."""
        choices = self.agent.action_spec.categorical_slices()
        if len(choices) != 1 or choices[0][1].stop - choices[0][1].start != self.agent.action_spec.width:
            raise ConfigError("one future per action: this needs a single discrete action. Branch by samples instead.")
        return torch.eye(self.agent.action_spec.width)[: 4 * NUM_BRANCHES]

    # ------------------------------------------------------------------ searches

    def search(self, at: int, simulations: int) -> dict[str, Any]:
        """Search from a real row: see :func:`search_row`; with ``cells`` of the board, if there is one."""
        row = self.timeline.real[self._row(at, self.timeline.real)]
        head = search_row(self.agent, row, self._check_number(simulations, 0, MAX_SIMULATIONS))
        return head | {"at": at, "simulations": simulations, "cells": self._read_board(row)}

    def _read_board(self, row: RealRow) -> np.ndarray | None:
        """Return whose pieces are on the cells ``[rows, columns]``, 0 for nobody's; None: there is no board."""
        obs = {key: x[0].numpy() for key, x in row.step.obs.items()}
        return None if self.find_board is None else self.find_board(obs)

    @functools.cached_property
    def find_board(self) -> Any:
        """The function that reads the board of an observation; None: there is none."""
        return find_board(self.agent)

    def follow(self, at: int, actions: Sequence[int]) -> int:
        """Dream some actions of a search from row ``at``, which the model observes, in another lane.

        In board games, the lane's real rows are the true positions after these moves.
        """
        at, width, before = self._row(at, self.timeline.real), self.agent.action_spec.width, self.timeline
        steps = self._check_number(len(actions), 1, MAX_STEPS)
        chosen = torch.eye(width)[[self._check_number(action, 0, width - 1) for action in actions]]
        line, row = self._leave(at, "search"), before.real[at]
        assert row.latent is not None
        line.dream[at] = DreamRow(row.latent, "seen", row.predictions or {})
        line.actions += [*chosen.unsqueeze(1)]
        self._imagine(steps)
        line.share_real_rows()
        if self.find_board is not None and self.recorded is None:
            self._play_lane()
        return before.count_shared(line)

    def _play_lane(self) -> None:
        """Take the actions of the lane in the environment, until a game is over or the search took an illegal one."""
        line = self.timeline
        line.kind, line.name = "hands", LANE_NAMES["search"]
        while len(line.real) < len(line.dream) and not (values := line.real[-1].values)["last"]:
            if int(line.actions[len(line.real) - 1].argmax()) not in values["legal"]:
                break
            self.step()

    # ------------------------------------------------------------------ edits

    def edit(self, at: int, latent: int, value: float, pin: bool = False) -> int:
        """Set a latent of row ``at`` to a class or a number and dream later rows again. ``pin``: in later rows, too.

        The rows change in the newest lane if it was edited before row ``at``, else in another lane.
        """
        self._require_inspector()
        line = self.timeline
        at = self._row(at, line.dream)
        old = line.dream[at]
        latents, classes = old.latent.stoch.shape[1:]
        latent = self._check_number(latent, 0, latents - 1)
        value = self._check_number(value, 0, classes - 1) if classes > 1 else float(value)
        if line is not self.lanes[-1] or not line.edits or at <= line.at:
            line, before = self._leave(at - 1, "edited"), line
            line.real, line.dream, line.actions = [*before.real], [*before.dream], [*before.actions]
        line.edits.append((at, old, line.context, dict(line.pinned_classes)))
        stoch = old.latent.stoch.clone()
        if classes > 1:
            stoch = replace_classes(stoch, {latent: value})
            line.pinned_classes |= {latent: int(value)} if pin else {}
        else:
            stoch[:, latent] = value
        line.dream[at] = replace(self._dream_rows([old.latent._replace(stoch=stoch)])[0], origin="edited")
        line.context = min(line.context, at + 1)
        self._dream_again(at + 1)
        return at

    def latent(self, at: int) -> dict[str, Any]:
        """Return the state of row ``at``: the classes of z and their prior probabilities, or its numbers; probes."""
        at = self._row(at, self.timeline.dream)
        return latent_to_dict(self.agent, self._require_inspector(), self.timeline, at)

    # ------------------------------------------------------------------ other models

    def switch_agent(self, agent: Agent) -> int:
        """Let the agent of another checkpoint observe the same episode, and dream it."""
        self._leave_edits()
        self.lanes, self.branches = [line for line in self.lanes if not line.has_edits()], []
        current = self.timeline
        for line in self.lanes:
            while line.parent is not None and line.parent.has_edits():
                line.parent = line.parent.parent
            self.timeline = line
            self._replay_rows(agent, len(line.real))
        self.timeline = current
        return 0

    def evaluate_agent(self, agent: Agent) -> dict[str, float]:
        """Return the mean errors, by name, of another checkpoint's dream of this episode."""
        twin, line = copy.copy(self), self.timeline
        twin.timeline = replace(
            line, real=[*line.real], dream=line.dream[: len(line.real)], pinned_classes={}, parent=None
        )
        twin._replay_rows(agent, line.context)
        errors = [row["error"] for row in twin.rows(line.context)]
        return {name: float(np.mean([row[name] for row in errors])) for name in errors[0]} if errors else {}

    def _replay_rows(self, agent: Agent, rows: int) -> None:
        """Let another agent observe the first ``rows`` rows of the lane, and dream it again."""
        line, stream, self.dream_stream = self.timeline, RandomStream(self.seed), RandomStream(self.seed)
        self._set_agent(agent)
        with stream():
            for number, row in enumerate(line.real[:rows]):
                line.real[number] = self._process_row(row.step, self.state_before(number), row.picture)
        if self.inspector is not None:
            self._dream_again(0)

    # ------------------------------------------------------------------ data of the page

    @functools.cached_property
    def action_names(self) -> list[str]:
        """The names of discrete actions, if the environment has them."""
        return action_names(self.agent)

    def info(self) -> dict[str, Any]:
        """Return the facts that are the same for all rows."""
        recorded = self.recorded
        return agent_info(self.agent, self.inspector) | {
            "env": self.agent.config.env.id,
            "seed": self.seed,
            "names": self.action_names,
            "recorded": recorded and recorded.name,
            "episode": recorded and recorded.number,
            "goals": is_goal_agent(self.agent),
            "distance_unit": unit_of(self.agent, self.timeline.real[0].values),
            "playable": has_env(self.agent),
            "searches": self.agent.algo.can_search,
            "simulations": getattr(self.agent.config.algo, "num_simulations", LATENT_SIMULATIONS),
            "players": has_players(self.agent.obs_spec),
            "board": None if (cells := self._read_board(self.timeline.real[0])) is None else cells.shape,
        }

    def __len__(self) -> int:
        return len(self.timeline)

    def rows(self, first: int = 0) -> list[dict[str, Any]]:
        """Return each row from ``first`` on as a dict of plain values and arrays."""
        return [row_to_dict(self.agent, self.timeline, number) for number in range(first, len(self))]

    def describe_lanes(self) -> list[dict[str, Any]]:
        """Return each lane as plain values; ``score``: see ``Timeline.score``."""
        lanes, counts = list[dict[str, Any]](), dict[str, int]()
        names = LANE_NAMES if self.inspector is not None else LANE_NAMES | {"dream": "policy"}
        for line in self.lanes:
            name = line.name or names[line.kind]
            counts[name] = number = counts.get(name, 0) + 1
            facts: dict[str, Any] = {"name": name + (f" {number}" if number > 1 else ""), "kind": line.kind}
            parent = None if line.parent is None else self.lanes.index(line.parent.find_lane(line.at))
            facts |= {"parent": parent, "at": line.at}
            facts |= {"length": len(line), "real": len(line.real), "context": line.num_seen(), "score": line.score()}
            lanes.append(facts)
        return lanes

    def describe_ending(self) -> str:
        """Say how the episode ended, by the environment's word or by the flag it set; "" if it goes on."""
        success = getattr(self.source, "episode_info", {}).get(0, {}).get(SUCCESS_RATE)
        last = self.timeline.real[-1].values
        if success is not None and last["last"]:
            return "succeeded" if success else "failed"
        return "the end" if last["terminal"] else "time is up" if last["last"] else ""

    def find_value_fall(self) -> int | None:
        """Return the row at which the value fell most: see :func:`find_fall`."""
        rows = [row.values for row in self.timeline.real]
        rewards, values = (np.array([row.get(name, np.nan) for row in rows]) for name in ("reward", "value"))
        return find_fall(critic_rewards(self.agent, rewards), values, value_discount(self.agent), rows[-1]["terminal"])

    def lane_picture(self, line: Timeline, number: int, is_truth: bool = False) -> bytes | None:
        """Return the picture of a row of a lane: the truth if asked for, your actions made it or there is no dream."""
        if number < len(line.real) and (is_truth or line.kind == "hands" or not line.dream):
            return line.real[number].picture
        if is_truth:
            return None
        return self.dream_picture(line.dream[number]) if number < len(line.dream) else None

    def strip(self, columns: int = COLUMNS) -> Strip:
        """Return the strip of the rows so far, with up to ``columns`` pictures, 5 to 16."""
        line, columns = self.timeline, self._check_number(columns, 5, 16)
        facts = [row.values for row in line.real]
        rewards = np.array([row["reward"] for row in facts])
        if is_goal_agent(self.agent):
            return make_goal_strip(facts, unit_of(self.agent, facts[0]), columns)
        if self.inspector is None:
            values = np.array([row.get("value", np.nan) for row in facts])
            gaps = np.array([greedy_gap(self.agent, row) for row in facts])
            scaled = critic_rewards(self.agent, rewards)
            is_scaled = not np.array_equal(scaled, rewards)
            is_terminal, is_over = facts[-1]["terminal"], facts[-1]["last"]
            return make_value_strip(
                scaled, values, gaps, value_discount(self.agent), is_terminal, columns, is_scaled, is_over
            )
        obs = {key: np.concatenate([row.step.obs[key].numpy() for row in line.real]) for key in self.agent.obs_spec}
        real = {prediction_name(key): values for key, values in obs.items()}
        names = {*real, "reward", "cont"} & line.dream[0].predictions.keys()
        predicted = {name: np.stack([row.predictions[name] for row in line.dream]) for name in names}
        origins = [row.origin for row in line.dream]
        real |= {"reward": rewards}
        is_terminal = bool(facts[-1]["terminal"])
        return make_dream_strip(self.agent.obs_spec, real, predicted, origins, columns, is_terminal=is_terminal)

    def picture(self, number: int) -> tuple[bytes | None, bytes | None]:
        """Return the pictures of a row as PNG: of the real row, and of the dream."""
        line = self.timeline
        real = line.real[number].picture if number < len(line.real) else None
        return real, self.dream_picture(line.dream[number]) if number < len(line.dream) else None

    def dream_picture(self, row: DreamRow) -> bytes | None:
        """Return the picture of a row of the dream, drawn when it is first requested."""
        if row.picture is None:
            row.picture = self.pictures.dream(row.predictions)
        return row.picture

    # ------------------------------------------------------------------ checks

    def _require_inspector(self) -> WorldModelInspector:
        assert self.inspector is not None, "the agent has no world model"
        return self.inspector

    def _row(self, number: object, rows: Sequence[Any]) -> int:
        return self._check_number(number, 0, len(rows) - 1)

    @staticmethod
    def _check_number(number: object, minimum: int, maximum: int) -> int:
        if type(number) is not int or not minimum <= number <= maximum:
            raise DataError(f"{short_repr(number)}: expected a whole number from {minimum} to {maximum}.")
        return number
