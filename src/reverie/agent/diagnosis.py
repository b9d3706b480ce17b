"""Why a run did not learn: what its own measurements say, the likeliest reason first."""

from __future__ import annotations

import contextlib
import math
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from reverie.agent.agent import Agent
from reverie.core.errors import DataError, count_noun
from reverie.core.rows import Rows, iter_episodes
from reverie.core.seeding import derived_seeds
from reverie.core.specs import MASK_KEY
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config
from reverie.experiment.env_advice import is_far_from_1
from reverie.experiment.environments import make_eval_env
from reverie.run.collect import EpisodeCounter, random_flat_actions, read_exact_rewards, to_executed_action
from reverie.run.evaluate import Evaluation
from reverie.run.result import TrainResult

RANDOM_SECONDS, RANDOM_EPISODES = 3.0, 50
"""Random actions are played for at most this long, and this many episodes."""
READ_SECONDS, NEWEST = 5.0, 5
"""Recorded episodes are read for at most this long, in order; actions are those of the last ones."""
SATURATED, NEAR, MOSTLY = 0.8, 0.9, 0.99
"""Share of continuous actions beyond 0.9 of their bounds, and share of the same discrete action, that are too many.

Exploration moves actions of a saturated policy away from the bounds.
"""
FEW_UPDATES = 0.1
"""Share of the preset's updates that is too few."""
MOST = 3
"""Reasons that are named."""


def explain_failure(config: ExperimentConfig, result: TrainResult) -> str:
    """Return why the policy of a finished run is no better than random actions; "" if it is better, or none knows.

    ``config``: of an environment that an id names. Random actions are played for a few seconds.
    """
    if result.reason != "finished" or result.evaluation is None:
        return ""
    returns = list[float]()
    with contextlib.suppress(Exception):  # an environment that fails now has no part in a run that is over
        returns = random_returns(config)
    if not returns or is_above(result.evaluation, returns):
        return ""
    reasons = list(likely_reasons(result.agent, result))[:MOST]
    played = count_noun(len(returns), "episode")
    return "\n".join([
        f"The mean return {result.evaluation.score:.2f} is not above {np.mean(returns):.2f}, that of random actions in "
        f"{played}.",
        *(["Likely reasons:"] if reasons else ["Nothing that was measured explains it."]),
        *(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1)),
    ])  # fmt: skip


def random_returns(config: ExperimentConfig) -> list[float]:
    """Return the returns of whole episodes of random actions in new evaluation environments."""
    env, returns = make_eval_env(config), list[float]()
    seed = derived_seeds(config.seed)["test"]
    rng, until = np.random.default_rng(seed), time.perf_counter() + RANDOM_SECONDS
    with contextlib.closing(env):
        step, counter = env.reset(seed), EpisodeCounter(env.num_envs)
        while len(returns) < RANDOM_EPISODES and time.perf_counter() < until:
            returns += [stats.score for _, stats in counter.add(step, read_exact_rewards(env, step), {})]
            action = random_flat_actions(env.action_spec, env.num_envs, rng, step.obs.get(MASK_KEY))
            step = env.step(to_executed_action(action, step))
    return returns


def is_above(evaluation: Evaluation, returns: list[float]) -> bool:
    """Return whether a mean return is above the mean of ``returns`` by more than two standard errors."""
    error = np.sqrt(sum(np.var(x) / len(x) for x in (evaluation.scores, returns)))
    return bool(evaluation.score > np.mean(returns) + 2 * error)


def likely_reasons(agent: Agent, result: TrainResult) -> Iterator[str]:
    """Yield each reason that the run's numbers and rows show, with the flag that helps."""
    config, algo = agent.config, agent.config.algo
    normalize = hasattr(algo, "normalize_obs") and algo.normalize_obs is None
    if not result.updates:
        yield (
            f"learning never started: 0 updates in {result.env_steps:,} env steps; it starts after "
            f"{config.learning_starts:,} windows of {agent.algo.window.rows} rows of an episode. More --steps, or a "
            "smaller --learning-starts"
        )
    rows = read_rows(agent)
    if (
        rows.steps and rows.least_reward == rows.largest_reward and len({*rows.lengths[:-1]}) < 2
    ):  # otherwise returns differ with the length
        yield (
            f"all rewards are equal: {rows.least_reward:g} in {rows.steps:,} steps. Reward progress on the way, or "
            "explore without reward first: reverie train plan2explore_v3"
        )
    if rows.newest:
        yield from action_reasons(agent, np.concatenate(rows.newest), normalize)
    sizes = {key: size for key, size in rows.observation_sizes().items() if is_far_from_1(size)}
    if sizes and normalize:
        listed = ", ".join(f"'{key}' {size:.3g}" for key, size in sizes.items())
        yield f"observations are far from 1 in size ({listed}), and not normalized: --algo.normalize-obs running"
    planned, _ = base_config(config.name, config.env.id, config.preset or None).planned_counts(agent.algo.window)
    if 0 < result.updates < FEW_UPDATES * planned:
        yield (
            f"few updates: {result.updates:,}, where the preset plans {planned:,}. More "
            + ("--updates" if config.offline else "--steps, or a larger --replay-ratio")
        )


@dataclass
class RecordedRows:
    """What is measured of the rows that a run learned from."""

    steps: int = 0
    least_reward: float = math.inf
    largest_reward: float = -math.inf
    lengths: list[int] = field(default_factory=list)
    """Steps of each episode; the last one may be unfinished."""
    newest: deque[np.ndarray] = field(default_factory=lambda: deque(maxlen=NEWEST))
    """Flat actions ``[T, A]`` of the newest episodes."""
    squares: dict[str, np.ndarray] = field(default_factory=dict)
    """Sums of the squares of each vector of observations."""

    def add(self, rows: Rows, vectors: Iterable[str]) -> None:
        """Count an episode."""
        rewards = rows["reward"][~rows["is_first"]]
        if len(rewards):
            self.least_reward = min(self.least_reward, float(rewards.min()))
            self.largest_reward = max(self.largest_reward, float(rewards.max()))
            self.newest.append(rows["action"][~rows["is_last"]])
            self.steps += len(rewards)
            self.lengths.append(len(rewards))
            for key in vectors:
                sums = np.square(rows[f"obs/{key}"][1:], dtype=np.float64).sum(0)
                self.squares[key] = self.squares.get(key, 0.0) + sums

    def has_equal_rewards(self) -> bool:
        """Return whether all rewards are equal, so that returns are too, unless the lengths of episodes differ."""
        return self.least_reward == self.largest_reward and len({*self.lengths[:-1]}) < 2

    def observation_sizes(self) -> dict[str, float]:
        """Return the root mean square of each vector of observations, of its largest element."""
        return {key: math.sqrt(values.max(initial=0.0) / self.steps) for key, values in self.squares.items()}


def read_rows(agent: Agent) -> RecordedRows:
    """Read recorded episodes for a few seconds; nothing if the run kept none."""
    out, until = RecordedRows(), time.perf_counter() + READ_SECONDS
    vectors = [key for key, part in agent.obs_spec.items() if part.kind == "vector"]
    with contextlib.suppress(DataError), agent.open_dataset() as dataset:
        for rows in iter_episodes(dataset.parts()):
            out.add(rows, vectors)
            if time.perf_counter() > until:
                break
    return out


def action_reasons(agent: Agent, actions: np.ndarray, normalize: bool) -> Iterator[str]:
    """Yield that the newest actions ``[n, A]`` are saturated, or always the same."""
    spec = agent.action_spec
    cuts = spec.categorical_slices()
    discrete = [i for _, cut in cuts for i in range(cut.start, cut.stop)]
    continuous = np.delete(np.arange(actions.shape[1]), discrete)
    rate = next((name for name in ("actor_lr", "lr") if hasattr(agent.config.algo, name)), "")
    if len(continuous) and (share := float((abs(actions[:, continuous]) > NEAR).mean())) > SATURATED:
        help_text = "--algo.normalize-obs running" if normalize else f"a smaller --algo.{rate.replace('_', '-')}"
        yield f"actions are saturated: {share:.0%} of the newest are close to a bound. Try {help_text}"
    for key, cut in cuts:
        shares = actions[:, cut].mean(0)
        if shares.max() > MOSTLY:
            name = "" if len(cuts) == 1 else f" of '{key}'"
            yield (
                f"one action{name} is always chosen: {shares.argmax()} in {shares.max():.0%} of the newest steps. "
                f"Try a smaller --algo.{rate.replace('_', '-')}"
            )
