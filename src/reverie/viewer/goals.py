"""Recorded states as goals: how far each is, their places on a map, and the pictures nearest to planned latents."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.agent.dream_figures import to_uint8_image
from reverie.agent.reaching import in_chunks, nearest_subgoal
from reverie.algos.hiql import HIQL
from reverie.algos.lewm import LeWM
from reverie.core import wall_clock
from reverie.core.errors import ConfigError, DataError, short_repr
from reverie.core.spaces import column, columns_to_nested, iter_leaves
from reverie.core.specs import DESIRED_GOAL, GOAL, GOAL_KEY, without_mask
from reverie.core.types import Obs, Step
from reverie.envs.make import SpacesOnlyEnv
from reverie.log.strip import COLUMNS, Strip, choose_columns
from reverie.log.video import to_rgb
from reverie.nn.preprocess import inspect_policy

MAX_STATES, MAX_POINTS = 5000, 2000
"""Recorded rows in memory, of which the first are points of the map."""
MAX_READ_SECONDS = 20.0
"""Seconds after which no more of the dataset is read."""
COMPONENTS = ("component 1", "component 2")


def is_goal_agent(agent: Agent) -> bool:
    """Return whether the agent acts toward goals."""
    return agent.config.algo.has_goals


def has_env(agent: Agent) -> bool:
    """Return whether there is an environment to play in."""
    return getattr(agent.factory, "func", None) is not SpacesOnlyEnv


# ---------------------------------------------------------------------- estimates


@torch.no_grad()
def estimate_goals(agent: Agent, step: Step, before: Any) -> dict[str, Tensor]:
    """Return ``distance`` and ``value`` of rows with goals, ``[N]`` each, as far as the agent estimates them."""
    output, estimates = inspect_policy(agent.algo.policy, step, before), dict[str, Tensor]()
    for name, estimate in (("distance", agent.algo.goal_distance), ("value", agent.algo.state_value)):
        with contextlib.suppress(ConfigError):
            estimates[name] = estimate(output).reshape(-1).cpu()
    return estimates


def make_goal_strip(estimates: list[dict[str, Any]], unit: str, columns: int = COLUMNS) -> Strip:
    """Return the strip of an episode toward a goal, given ``distance`` or ``value`` of each of its T rows."""
    name = "distance" if "distance" in estimates[0] else "value"
    bars = np.array([row.get(name, np.nan) for row in estimates])
    bars[~np.isfinite(bars)] = np.nan
    title = {"steps": "Steps to the goal", "value": "Value of the goal"}.get(unit, f"Distance to the goal {unit}")
    length, sentence = len(bars), "This agent estimates no distance to the goal."
    if not np.isnan(bars).all():
        best = int(np.nanargmin(bars) if name == "distance" else np.nanargmax(bars))
        sentence = f"{title}: {bars[0]:.3g} at row 0, {bars[best]:.3g} at row {best}."
    none = [""] * length
    return Strip(
        sentence=sentence, columns=choose_columns(length, (), columns), origins=none,
        levels=none, texts=none, bars=bars, bar_label=title,
    )  # fmt: skip


def unit_of(agent: Agent, estimates: Collection[str]) -> str:
    """Return the unit of the first of :func:`estimate_goals`, given their names."""
    return ("in latent space" if isinstance(agent.algo, LeWM) else "steps") if "distance" in estimates else "value"


def _as_step(obs: Obs) -> Step:
    """Return observations ``[N, ...]`` as first rows."""
    none = torch.zeros(len(next(iter(obs.values()))), dtype=torch.bool)
    return Step(obs=obs, reward=none.float(), is_first=~none, is_last=none, is_terminal=none)


# ---------------------------------------------------------------------- goals in an episode


def as_goal(agent: Agent, rows: Obs, number: int) -> Obs:
    """Return row ``number`` of observations ``[N, ...]`` as the goal that the agent observes, ``[1, ...]`` by key."""
    goals = _goal_keys(agent)
    named = any(f"{GOAL}{key}" in agent.obs_spec for key in goals)
    row = slice(number, number + 1 or None)
    return {f"{GOAL}{key}" if named else DESIRED_GOAL: rows[key][row] for key in goals}


def observed_goal(agent: Agent, obs: Obs) -> Obs:
    """Return the goal among the observations of a row, by the keys of the observations that it is."""
    return {key: obs[name] if (name := f"{GOAL}{key}") in obs else obs[DESIRED_GOAL] for key in _goal_keys(agent)}


def _goal_keys(agent: Agent) -> list[str]:
    algo: Any = agent.algo
    goals: list[str] = algo.preprocess.goals
    return goals


def _picture_keys(agent: Agent) -> list[str]:
    """Return the observations that form a goal and are pictures."""
    return [key for key in _goal_keys(agent) if agent.obs_spec[key].kind == "image"]


class TowardGoal:
    """An environment, or a recorded episode, with another goal than its own."""

    def __init__(self, source: Any, agent: Agent, goal: Obs) -> None:
        """``goal``: from :func:`as_goal`. An environment that accepts goals gets it as the option ``goal``."""
        self.source = source
        self.goal = goal
        if callable(set_attr := getattr(source, "set_attr", None)) and (nested := _option(agent, goal)) is not None:
            set_attr("reset_options", {GOAL_KEY: nested})

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)

    def reset(self, seed: int | None = None) -> Step:
        """Return the first row."""
        return self._observe(self.source.reset(seed))

    def step(self, action: Tensor) -> Step:
        """Return the next row."""
        return self._observe(self.source.step(action))

    def _observe(self, step: Step) -> Step:
        return replace(step, obs=step.obs | self.goal)


def _option(agent: Agent, goal: Obs) -> Any:
    """Return a goal as the environment observes it; None if it has no such observation or resizes pictures."""
    space = agent.observation_space
    if not isinstance(space, spaces.Dict) or GOAL_KEY not in space.spaces:
        return None
    goal_space, arrays = space[GOAL_KEY], {name: values[0].numpy() for name, values in goal.items()}
    if any(arrays[column(GOAL_KEY, path)].shape != leaf.shape for path, leaf in iter_leaves(goal_space)):
        return None
    return columns_to_nested(goal_space, arrays, GOAL_KEY)


# ---------------------------------------------------------------------- recorded states


class GoalStates:
    """Recorded rows, in random order, as goals of an agent and as points of a map."""

    def __init__(self, agent: Agent, data: str | None = None) -> None:
        """``data``: dataset to read; None: the run's. Raises the errors of ``Agent.load_episode``."""
        self.agent = agent
        self.obs: Obs = _read_recorded_rows(agent, data)  # [M, *shape]
        self.count: int = len(next(iter(self.obs.values())))
        self.num_points: int = min(self.count, MAX_POINTS)
        self.keys: list[str] = _goal_keys(agent)
        spec = without_mask(agent.obs_spec)
        self.vectors: list[str] = [key for key in [*self.keys, *sorted({*self.obs} - {*self.keys})]
                                   if spec[key].kind not in ("image", "mask")]  # fmt: skip
        self.pictures: list[str] = _picture_keys(agent)
        self.has_components: bool = isinstance(agent.algo, LeWM) or bool(self.pictures)

    @functools.cached_property
    def inputs(self) -> Obs:
        """All rows as preprocessed goals ``goal/KEY`` ``[M, ...]``."""
        return self._to_inputs(self.obs)

    def goal(self, number: object) -> Obs:
        """Return a point as the goal that the agent observes: see :func:`as_goal`."""
        if type(number) is not int or not 0 <= number < self.num_points:
            raise DataError(f"{short_repr(number)}: expected the number of a recorded state, below {self.num_points}.")
        return as_goal(self.agent, self.obs, number)

    def _to_inputs(self, rows: Obs) -> Obs:
        policy: Any = self.agent.algo.policy
        step = _as_step(rows | {f"{GOAL}{key}": rows[key] for key in self.keys})
        before = self.agent.initial_state(len(step.is_first))
        return {k: x for k, x in policy.preprocess_step(step, before.past)[0].obs.items() if k.startswith(GOAL)}

    def features(self, rows: Obs) -> Tensor:
        """Return latents of LeWM, otherwise pixels, of goals ``[N, ...]`` by key: ``[N, D]``."""
        if isinstance(algo := self.agent.algo, LeWM):
            return in_chunks(lambda part: algo.objective.model.encode_goal(self._to_inputs(part)), rows)
        return torch.cat([rows[key].flatten(1).float() / 255 for key in self.pictures], -1)

    @functools.cached_property
    def latents(self) -> Tensor:
        """Latents of all rows by LeWM, ``[M, D]``."""
        return self.features(self.obs)

    @functools.cached_property
    def components(self) -> tuple[Tensor, Tensor]:
        """Mean ``[D]`` of features, and their two principal components ``[D, 2]``."""
        is_lewm = isinstance(self.agent.algo, LeWM)
        points = self.latents if is_lewm else self.features({key: x[:500] for key, x in self.obs.items()})
        with torch.random.fork_rng([]):
            torch.manual_seed(0)
            return points.mean(0), torch.pca_lowrank(points, 2, niter=4)[2]

    def numbers(self, rows: Obs, *, all_rows: bool = False) -> dict[str, np.ndarray]:
        """Return what can be an axis, by name, of rows ``[N, ...]`` or of their goals alone: ``[N]`` each."""
        numbers = dict[str, np.ndarray]()
        for key in self.vectors:
            if key in rows:
                flat = rows[key].reshape(len(rows[key]), -1).double().numpy()
                names = [key if flat.shape[1] == 1 else f"{key} {i}" for i in range(flat.shape[1])]
                numbers |= dict(zip(names, flat.T, strict=True))
        if self.has_components:
            mean, basis = self.components
            features = self.latents if all_rows and isinstance(self.agent.algo, LeWM) else self.features(rows)
            numbers |= dict(zip(COMPONENTS, ((features - mean) @ basis).T.numpy(), strict=True))
        return numbers

    @functools.cached_property
    def axes(self) -> dict[str, np.ndarray]:
        """Coordinates of the points by name, ``[P]`` each."""
        return {name: values[: self.num_points] for name, values in self.numbers(self.obs, all_rows=True).items()}

    @property
    def default_axes(self) -> tuple[str, str]:
        """The two components, or the two numbers of largest variance in the goal."""
        if self.has_components:
            return COMPONENTS
        goal = [*self.numbers({key: self.obs[key][:1] for key in self.keys})]
        names = sorted(goal, key=lambda name: -float(self.axes[name].var())) or [*self.axes]
        x, y = sorted((names * 2)[:2], key=[*self.axes].index)
        return x, y

    def coordinates(self, rows: Obs, x: str, y: str) -> list[list[float]]:
        """Return coordinates of rows ``[N, ...]``: N pairs, NaN where the rows lack these numbers."""
        numbers = self.numbers(rows)
        unknown = np.full(len(next(iter(rows.values()))), np.nan)
        pairs: list[list[float]] = np.stack([numbers.get(x, unknown), numbers.get(y, unknown)], -1).tolist()
        return pairs

    def estimate(self, goal: Obs) -> np.ndarray | None:
        """Return each point's distance to ``goal`` (of :func:`as_goal`), else its value, ``[P]``; None: unknown."""
        if isinstance(self.agent.algo, LeWM):
            target = self.features(observed_goal(self.agent, goal))
            return to_numpy((self.latents[: self.num_points] - target).norm(dim=-1))

        def first_estimate(part: Obs) -> Tensor:
            count = len(next(iter(part.values())))
            goals = {key: x.expand(count, *x.shape[1:]) for key, x in goal.items()}
            estimates = estimate_goals(self.agent, _as_step(part | goals), self.agent.initial_state(count))
            return next(iter(estimates.values()), torch.full((count,), torch.nan))

        values = in_chunks(first_estimate, {key: x[: self.num_points] for key, x in self.obs.items()}).numpy()
        return None if np.isnan(values).all() else values

    def subgoal(self, step: Step, before: Any) -> int | None:
        """Return the point nearest to the subgoal that HIQL chooses at a row ``[1, ...]``; None for others."""
        algo, policy = self.agent.algo, self.agent.algo.policy
        if not isinstance(algo, HIQL):
            return None
        inputs = policy.preprocess_step(step, before.past)[0].obs  # type: ignore[attr-defined]
        return nearest_subgoal(algo, inputs, {key: x[: self.num_points] for key, x in self.inputs.items()})

    def picture(self, number: int) -> np.ndarray | None:
        """Return a recorded picture ``[H, W, 3]`` uint8."""
        return self._draw(self.obs, number)

    def _draw(self, rows: Obs, number: int) -> np.ndarray | None:
        if not self.pictures:
            return None
        key = self.pictures[0]
        return to_rgb(to_uint8_image(rows[key][number].numpy(), self.agent.obs_spec[key]), 255)

    @torch.no_grad()
    def plan(self, step: Step, before: Any) -> tuple[Strip, list[np.ndarray | None]]:
        """Return the plan of LeWM at a row ``[1, ...]``: its strip, and pictures of now, each latent, and the goal.

        The picture of a planned latent is that of the recorded row whose latent is nearest. ConfigError for others.
        """
        algo = self.agent.algo
        if not isinstance(algo, LeWM):
            raise ConfigError(f"{self.agent.config.algo.algorithm} does not plan to goals. Train lewm.")
        obs, model = inspect_policy(self.agent.algo.policy, step, before).inputs, algo.objective.model
        plan = algo.plan(obs)
        nearest = torch.cdist(plan.latents[0].cpu(), self.latents).argmin(1).tolist()
        start = float((model.encode(obs) - model.encode_goal(obs)).square().sum())
        ends = [self._draw(rows, 0) for rows in (step.obs, observed_goal(self.agent, step.obs))]
        strip = _plan_strip([start, *plan.costs[0].tolist()], algo.cfg.block)
        return strip, [ends[0], *(self.picture(number) for number in nearest), ends[1]]


def _plan_strip(costs: list[float], block: int) -> Strip:
    """Return the strip of a plan, given the squared distance to the goal now and after each block of actions."""
    count, steps = len(costs) + 1, block * (len(costs) - 1)
    labels = [f"+{block * i}: {cost:.{0 if cost > 9.9 else 1}f}" for i, cost in enumerate(costs)]
    sentence = (
        f"Squared distance of latents to the goal: {costs[0]:.2f} now, {costs[-1]:.2f} planned after {steps} steps."
    )
    return Strip(
        sentence=sentence, columns=[*range(count)], origins=["seen", *["imagined"] * (count - 2), "seen"],
        levels=[""] * count, texts=[""] * count, bars=np.array([*costs, 0.0]), bar_label="cost",
        labels=[labels[0].replace("+0", "now"), *labels[1:], "goal"],
        pictured="nearest recorded",
    )  # fmt: skip


def _read_recorded_rows(agent: Agent, data: str | None) -> Obs:
    """Return up to ``MAX_STATES`` observations of a dataset, drawn uniformly and in random order.

    After ``MAX_READ_SECONDS``, no more of it is read.
    """
    rng, parts, first = np.random.default_rng(0), list[dict[str, np.ndarray]](), 0
    deadline = wall_clock.monotonic() + MAX_READ_SECONDS
    with agent.open_dataset(data) as dataset:
        total = dataset.rows()
        chosen = np.sort(rng.choice(total, min(total, MAX_STATES), replace=False))
        for rows in dataset.parts():
            last = first + len(rows["is_first"])
            index = chosen[np.searchsorted(chosen, first) : np.searchsorted(chosen, last)] - first
            parts.append({k: rows[f"obs/{k}"][index].astype(part.dtype) for k, part in dataset.obs_spec.items()})
            first = last
            if wall_clock.monotonic() > deadline:
                break
    order = rng.permutation(sum(len(next(iter(part.values()))) for part in parts))
    return {key: torch.from_numpy(np.concatenate([part[key] for part in parts])[order]) for key in parts[0]}
