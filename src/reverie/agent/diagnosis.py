"""Why a run did not learn: what its own measurements say, the likeliest reason first."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from reverie.agent.agent import Agent
from reverie.core.errors import DataError, count_noun
from reverie.core.rows import Rows, iter_episodes
from reverie.core.seeding import derived_seeds
from reverie.core.specs import MASK_KEY
from reverie.core.types import Step
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.config_layers import base_config
from reverie.experiment.env_advice import is_far_from_1
from reverie.experiment.environments import make_eval_env
from reverie.run.collect import EpisodeCounter, random_flat_actions, read_exact_rewards, to_executed_action
from reverie.run.evaluate import Evaluation
from reverie.run.result import TrainResult

PLAY_SECONDS, PLAY_EPISODES = 3.0, 50
"""Random actions, and those of the policy, are played for at most this long, and this many episodes."""
READ_SECONDS = 5.0
"""Recorded episodes are read for at most this long, in order."""
SATURATED, NEAR, MOSTLY = 0.8, 0.9, 0.99
"""Share of continuous actions beyond 0.9 of their bounds, and share of the same discrete action, that are too many."""
FEW_UPDATES = 0.1
"""Share of the preset's updates that is too few."""
MOST = 3
"""Reasons that are named."""
Choose = Callable[[Step], Tensor]
"""Returns the flat actions ``[N, A]`` of a step."""


def explain_failure(result: TrainResult) -> str:
    """Return why the policy of a finished run is no better than random actions; "" if it is better, or none knows.

    The environment is the one that the run's ``env.id`` names. Random actions are played in it for a few seconds, and
    so is the policy.
    """
    if result.reason != "finished" or result.evaluation is None:
        return ""
    agent, returns, actions = result.agent, list[float](), np.zeros((0, 0), np.float32)
    rng = np.random.default_rng(derived_seeds(agent.config.seed)["test"])

    def choose_random(step: Step) -> Tensor:
        return random_flat_actions(agent.action_spec, len(step.is_last), rng, step.obs.get(MASK_KEY))

    with contextlib.suppress(Exception):  # an environment that fails now has no part in a run that is over
        returns, _ = play_briefly(agent.config, choose_random)
        if returns and not is_above(result.evaluation, returns):
            _, actions = play_briefly(agent.config, policy_choice(agent))
    if not returns or is_above(result.evaluation, returns):
        return ""
    reasons = list(likely_reasons(agent, result, actions))[:MOST]
    played = count_noun(len(returns), "episode")
    return "\n".join([
        f"The mean return {result.evaluation.score:.2f} is not clearly above {np.mean(returns):.2f}, that of random "
        f"actions in {played}.",
        *(["Likely reasons:"] if reasons else ["Nothing that was measured explains it."]),
        *(f"  {number}. {reason}" for number, reason in enumerate(reasons, 1)),
    ])  # fmt: skip


def policy_choice(agent: Agent) -> Choose:
    """Return what chooses the deterministic actions of the agent's policy, from a first step on."""
    policy, states = agent.algo.policy, list[Any]()

    def choose(step: Step) -> Tensor:
        state = states.pop() if states else policy.initial(len(step.is_last))
        action, state = policy.act(step, state, "eval")
        states.append(state)
        return action

    return choose


def play_briefly(config: ExperimentConfig, choose: Choose) -> tuple[list[float], np.ndarray]:
    """Return the returns of whole episodes in new evaluation environments, and all flat actions ``[n, A]``."""
    env, returns, actions = make_eval_env(config), list[float](), list[np.ndarray]()
    until = time.perf_counter() + PLAY_SECONDS
    with contextlib.closing(env):
        step, counter = env.reset(derived_seeds(config.seed)["test"]), EpisodeCounter(env.num_envs)
        while len(returns) < PLAY_EPISODES and time.perf_counter() < until:
            returns += [stats.score for _, stats in counter.add(step, read_exact_rewards(env, step), {})]
            action = to_executed_action(choose(step), step)
            actions.append(action[~step.is_last].numpy())
            step = env.step(action)
    return returns, np.concatenate(actions)


def is_above(evaluation: Evaluation, returns: list[float]) -> bool:
    """Return whether a mean return is above the mean of ``returns`` by more than two standard errors."""
    error = np.sqrt(sum(np.var(x) / len(x) for x in (evaluation.scores, returns)))
    return bool(evaluation.score > np.mean(returns) + 2 * error)


def likely_reasons(agent: Agent, result: TrainResult, actions: np.ndarray) -> Iterator[str]:
    """Yield each reason that the run's numbers and rows, and the policy's ``actions`` ``[n, A]``, show.

    Each names the flag that helps.
    """
    config, rows = agent.config, read_rows(agent)
    if not result.updates:
        yield f"learning never started: 0 updates in {result.env_steps:,} env steps; {start_help(agent, rows)}"
    if rows.has_equal_rewards():
        yield (
            f"all rewards are equal: {rows.least_reward:g} in {rows.steps:,} steps. Reward progress on the way, or "
            "explore without reward first: reverie train plan2explore_v3"
        )
    sizes = {key: size for key, size in rows.observation_sizes().items() if is_far_from_1(size)}
    if sizes and getattr(config.algo, "normalize_obs", "") is None:
        listed = ", ".join(f"'{key}' {size:.3g}" for key, size in sizes.items())
        yield f"observations are far from 1 in size ({listed}), and not normalized: --algo.normalize-obs running"
    if result.updates and len(actions):
        yield from action_reasons(agent, actions)
    planned, _ = base_config(config.name, config.env.id, config.preset or None).planned_counts(agent.algo.window)
    if 0 < result.updates < FEW_UPDATES * planned:
        ratio = "" if config.algo.on_policy else ", or a larger --replay-ratio"
        yield (
            f"few updates: {result.updates:,}, where the preset plans {planned:,}. More "
            + ("--updates" if config.offline else f"--steps{ratio}")
        )


def start_help(agent: Agent, rows: RecordedRows) -> str:
    """Return when learning starts, and the flag that makes it start, or start earlier."""
    config, window = agent.config, agent.algo.window
    if not config.updates_per_step(window):
        return "the replay ratio is 0. A larger --replay-ratio"
    if rows.lengths and (longest := max(rows.lengths) + 1) < window.rows:  # the first row has no step
        return (
            f"it learns from {window.rows} successive rows of an episode, and episodes have {longest} at most. A "
            "smaller --algo.batch-length"
        )
    return (
        f"it starts after {config.learning_starts:,} windows of {window.rows} rows of an episode. More --steps, or a "
        "smaller --learning-starts"
    )


@dataclass
class RecordedRows:
    """What is measured of the rows that a run learned from."""

    steps: int = 0
    least_reward: float = math.inf
    largest_reward: float = -math.inf
    lengths: list[int] = field(default_factory=list)
    """Steps of each episode; the last one may be unfinished."""
    squares: dict[str, np.ndarray] = field(default_factory=dict)
    """Sums of the squares of each vector of observations."""

    def add(self, rows: Rows, vectors: Iterable[str]) -> None:
        """Count an episode."""
        rewards = rows["reward"][~rows["is_first"]]
        if len(rewards):
            self.least_reward = min(self.least_reward, float(rewards.min()))
            self.largest_reward = max(self.largest_reward, float(rewards.max()))
            self.steps += len(rewards)
            self.lengths.append(len(rewards))
            for key in vectors:
                sums = np.square(rows[f"obs/{key}"][1:], dtype=np.float64).sum(0)
                self.squares[key] = self.squares.get(key, 0.0) + sums

    def has_equal_rewards(self) -> bool:
        """Return whether all rewards are equal, so that returns are too, unless the lengths of episodes differ."""
        return bool(self.steps) and self.least_reward == self.largest_reward and len({*self.lengths[:-1]}) < 2

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


def action_reasons(agent: Agent, actions: np.ndarray) -> Iterator[str]:
    """Yield that the policy's actions ``[n, A]`` are saturated, or always the same."""
    cuts = agent.action_spec.categorical_slices()
    discrete = [i for _, cut in cuts for i in range(cut.start, cut.stop)]
    continuous = np.delete(np.arange(actions.shape[1]), discrete)
    rate = next((name for name in ("actor_lr", "lr") if hasattr(agent.config.algo, name)), "")
    smaller = f"Try a smaller --algo.{rate.replace('_', '-')}"
    if len(continuous) and (share := float((abs(actions[:, continuous]) > NEAR).mean())) > SATURATED:
        yield f"actions are saturated: {share:.0%} of the policy's are close to a bound. {smaller}"
    for key, cut in cuts:
        shares = actions[:, cut].mean(0)
        if shares.max() > MOSTLY:
            name = "" if len(cuts) == 1 else f" of '{key}'"
            yield f"one action{name} is always chosen: {shares.argmax()} in {shares.max():.0%} of the steps. {smaller}"
