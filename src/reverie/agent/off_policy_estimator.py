"""Estimates of the discounted return of a policy from recorded rows.

Methods: fitted Q evaluation (``algos/fqe.py``), importance sampling, or both (``objectives/importance.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from reverie.agent.policy_rows import BLOCK, action_agreement, policy_actions, policy_log_probs
from reverie.agent.return_estimate import Method, ReturnEstimate
from reverie.algos.base import Algorithm
from reverie.algos.fqe import CHOSEN, FQE, FQEConfig, ValueUnits
from reverie.core import statistics, wall_clock
from reverie.core.bounds import AtLeast, largest_value
from reverie.core.errors import ConfigError, RunError, count_noun
from reverie.core.logger import logger
from reverie.core.seeding import seeded_rng
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec
from reverie.core.statistics import IntervalEstimate
from reverie.core.types import Batch, Mode, State
from reverie.log.console import format_duration
from reverie.objectives.importance import (
    cumulative_ratios,
    doubly_robust,
    effective_sample_size,
    weighted_importance_sampling,
)
from reverie.objectives.returns import returns_to_go
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.config import BatchSamplerConfig
from reverie.replay.offline import OfflineReplay

ProgressFn = Callable[[int, int], bool]
"""Called after each update of an estimate with the number of updates so far and in total; False stops the estimate."""
REPORT_EVERY = 30.0
"""Seconds between two lines on the progress of an estimate."""
ROUNDING = 1e-6
"""Standard deviation, relative to the largest number, below which numbers count as equal."""
MAX_EPISODES = 10_000
"""Maximum number of episodes in a mean, evenly spread: a bootstrap over more would dominate the runtime."""
LOSS_WINDOW = 100
"""Number of updates whose mean loss is reported, and compared with that of the window before it."""
DIVERGENCE_FACTOR = 10.0
"""FQE has diverged if its loss exceeds this multiple of its smallest loss, and the variance of returns."""


class OffPolicyEstimator:
    """Estimates of one learner's policy on one dataset.

    Each estimate continues the FQE training of the previous one.
    """

    def __init__(
        self, algo: Algorithm, dataset: OfflineReplay, obs_spec: ObsSpec, action_spec: ActionSpec,
        config: FQEConfig | None = None, *, seed: int = 0, rewards: np.ndarray | None = None,
        reward_clipping: str = "none", propensity: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Prepare FQE. ``config`` None: :func:`fqe_config_for`, with the learner's discount and frame stacks.

        ``rewards``: the true rewards of all rows ``[n]``, if the dataset contains clipped rewards. ``reward_clipping``:
        how rewards were clipped during collection. ``propensity``: the behavior policy's probabilities of the recorded
        actions of all rows ``[n]``, required for importance sampling.
        """
        self.algo: Algorithm = algo
        self.dataset: OfflineReplay = dataset
        self.action_spec: ActionSpec = action_spec
        self.seed: int = seed
        self.reward_clipping: str = reward_clipping
        self.propensity: np.ndarray | None = propensity
        self.rewards: np.ndarray = dataset.column("reward") if rewards is None else rewards
        config = config or fqe_config_for(algo)
        self.discount: float = config.discount
        first = dataset.column("is_first")
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(first)))  # of episodes, in rows
        stepped, ended = lengths > 1, dataset.column("is_terminal")[starts + lengths - 1]
        age = np.arange(len(first)) - np.repeat(starts, lengths)  # steps from the start of the episode to row t
        earned = np.where(age > 0, self.rewards * self.discount ** np.maximum(age - 1, 0.0), 0.0)
        self.begins: np.ndarray = starts[stepped]  # [E] rows followed by a step
        self.steps: np.ndarray = lengths[stepped] - 1  # [E]
        self.returns: np.ndarray = np.add.reduceat(earned, starts)[stepped]  # [E], discounted
        self.num_truncated: int = int((stepped & ~ended).sum())
        self.truncated_weight: float = float(np.where(ended, 0.0, self.discount ** (lengths - 1.0))[stepped].mean())
        self.fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed, self._units())
        self.behavior_fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed + 1, self._units())
        for normalizer in (self.fqe.preprocess.normalizer, self.behavior_fqe.preprocess.normalizer):
            if normalizer is not None:
                rows = dataset.storage.read(0, dataset.count, [f"obs/{key}" for key in normalizer.keys], copy=False)
                normalizer.fit({key: torch.from_numpy(rows[f"obs/{key}"][0]) for key in normalizer.keys})
        truncated = dataset.column("is_last") & ~dataset.column("is_terminal")
        self.unfollowed: np.ndarray = dataset.column("is_last") | np.append(truncated[1:], False)
        """Whether no recorded action follows the row's action, ``[n]``: FQE of the behavior policy omits such rows."""
        self.rows: ReplayBuffer = ReplayBuffer(
            dataset.storage, self.fqe.window, seed=seed, config=BatchSamplerConfig(online_queue=False)
        )
        self.rows.batch_sampler.add(first[None], dataset.column("is_last")[None], collected=False)
        self.updates: int = 0

    def _units(self) -> ValueUnits:
        """Return FQE's units and the bounds of all values.

        Values are relative to the mean return and a scale: the largest standard deviation of returns, rewards and
        returns-to-go, or else a magnitude.
        """
        first, rewards, discount = self.dataset.column("is_first"), self.rewards, self.discount
        is_last = np.append(first[1:], True)
        to_go = returns_to_go(reward=rewards, first=first, last=is_last, terminal=is_last, discount=discount)[~is_last]
        step_rewards = rewards[~first].astype(np.float64)
        max_std = max(self.returns.std(), step_rewards.std(), to_go.astype(np.float64).std())
        max_magnitude = max(abs(self.returns).max(), abs(step_rewards).max())
        horizon = 1 / (1 - discount) if discount < 1 else np.inf
        min_reward, max_reward = min(0.0, step_rewards.min()), max(0.0, step_rewards.max())
        return ValueUnits(
            shift=float(self.returns.mean()),
            scale=float(max_std if max_std > ROUNDING * max_magnitude else max_magnitude) or 1.0,
            low=float(min_reward * horizon) if min_reward else 0.0,
            high=float(max_reward * horizon) if max_reward else 0.0,
        )

    def estimate(
        self, updates: int, *, method: Method = "fqe", mode: Mode = "eval", num_action_samples: int = 1,
        env_steps: int = 0,
        progress: ProgressFn | None = None,
    ) -> ReturnEstimate:  # fmt: skip
        """Make ``updates`` updates of FQE and return the estimate; RunError if it is not finite.

        The global random generators are unchanged.

        Args:
            updates: gradient updates of FQE, at least 1; with "wis" there are none.
            method: one of :data:`METHODS`. All except "fqe" need propensities and discrete actions, else ConfigError.
            mode: "eval" takes the policy's most likely action, "explore" samples one.
            num_action_samples: actions per row, at least 1, whose values are averaged.
            env_steps: start of exploration schedules; they matter only if actions are sampled.
            progress: called after each update, and can stop the updates early; the estimate then uses the updates so
                far. None: log the progress periodically if it takes long.
        """
        AtLeast(1).check("updates", updates)
        AtLeast(1).check("num_action_samples", num_action_samples)
        with seeded_rng(self.seed + self.updates):
            names = [name for name in self.dataset.storage.specs if not name.startswith(EXTRAS)]
            columns, width = {name: self.dataset.column(name) for name in names}, self.action_spec.width
            chosen = policy_actions(
                self.algo.policy, columns, width, mode=mode, num_action_samples=num_action_samples, env_steps=env_steps
            )
            ratio = None if method == "fqe" else self._log_ratio(columns, chosen, mode, env_steps)
            losses = (
                torch.zeros(0) if method == "wis" else self._train_fqe(chosen, updates, progress or _log_progress())
            )
            value, behavior, effective_episodes = self._values(method, chosen, ratio)
        if not np.isfinite([value.value, behavior.value]).all():
            raise RunError("the FQE estimate is not a finite number. Use a lower discount or fewer updates.")
        stepped = ~np.append(self.dataset.column("is_first")[1:], True)  # [n] rows followed by a step
        return ReturnEstimate(
            value=value,
            behavior=behavior,
            dataset_return=statistics.estimate_interval(statistics.mean, _subsample_evenly(self.returns)),
            discount=self.discount,
            episodes=len(self.begins),
            num_truncated=self.num_truncated,
            updates=self.updates,
            loss=float(losses[-LOSS_WINDOW:].mean()) * self.fqe.scale**2,
            mode=mode,
            reward_clipping=self.reward_clipping,
            truncated_weight=self.truncated_weight,
            method=method,
            diverged=has_diverged(losses),
            effective_episodes=effective_episodes,
            agreement=action_agreement(chosen[stepped], self.dataset.column("action")[stepped], self.action_spec),
        )

    def _train_fqe(self, chosen: np.ndarray, updates: int, progress: ProgressFn) -> Tensor:
        """Make the updates, fewer if ``progress`` stops them, and return their losses ``[updates]``."""
        losses = list[Tensor]()
        while len(losses) < updates:
            losses.append(self._update(chosen))
            if not progress(len(losses), updates):
                break
        return torch.stack(losses)

    def _update(self, chosen: np.ndarray) -> Tensor:
        batch = self.rows.sample()
        rows = (batch.index.numpy()[:, None] + np.arange(batch.shape[1])).clip(min=0)  # [B, T]
        batch = replace(batch, reward=torch.from_numpy(self.rewards[rows]))
        self.updates += 1
        if self.updates % 2:  # sufficient for the values of the recorded actions, at half the cost
            unfollowed = torch.from_numpy(self.unfollowed[rows])
            self.behavior_fqe.update(replace(batch, is_last=unfollowed, extras={CHOSEN: batch.action.unsqueeze(-2)}))
        actions = torch.from_numpy(chosen[rows])  # [B, T, n, A]
        return self.fqe.update(replace(batch, extras={CHOSEN: actions})).metrics["loss/critic"]

    def _values(
        self, method: Method, chosen: np.ndarray, log_ratio: np.ndarray | None
    ) -> tuple[IntervalEstimate, IntervalEstimate, float | None]:
        """Return the values of the policy and of the behavior policy, and the effective number of episodes."""
        begins, recorded_actions = _subsample_evenly(self.begins), self.dataset.column("action")[:, None]
        if method != "wis":
            behavior = _mean_with_interval(self._state_values(self.behavior_fqe, begins, recorded_actions))
        if log_ratio is None:
            return _mean_with_interval(self._state_values(self.fqe, begins, chosen)), behavior, None
        terminal, all_rows = self.dataset.column("is_terminal"), np.arange(self.dataset.count)
        steps = EpisodeTable(begins, _subsample_evenly(self.steps), terminal)
        ratio, size = steps.cumulative_ratios(log_ratio), effective_sample_size(steps.to_padded(log_ratio), steps.count)
        next_reward = np.append(self.rewards[1:], 0.0)  # [n], result of each row's action
        if method == "wis":
            reward, discount = steps.to_padded(next_reward), self.discount
            value = steps.bootstrap(partial(weighted_importance_sampling, ratio, reward, discount))
            equal_ratio = steps.cumulative_ratios(np.zeros_like(next_reward))
            return value, steps.bootstrap(partial(weighted_importance_sampling, equal_ratio, reward, discount)), size
        values = self._state_values(self.fqe, all_rows, chosen)  # [n]
        next_values = np.append(np.where(terminal, 0.0, values)[1:], 0.0)  # [n]
        recorded_values = self._state_values(self.fqe, all_rows, recorded_actions)  # [n]
        error = steps.to_padded(next_reward + self.discount * next_values - recorded_values)
        start = torch.from_numpy(values[begins])
        return steps.bootstrap(partial(doubly_robust, ratio, error, start, self.discount)), behavior, size

    def _log_ratio(
        self, columns: Mapping[str, np.ndarray], chosen: np.ndarray, mode: Mode, env_steps: int
    ) -> np.ndarray:
        """Return ln pi(a | s) - ln mu(a | s) of the recorded actions, ``[n]``."""
        if self.propensity is None:
            raise ConfigError(
                "importance sampling needs the behavior policy's probabilities of the recorded actions, and the "
                "dataset has no propensity column. Name the column, --data.columns '{..., propensity: COLUMN}', or "
                "use method fqe."
            )
        if any(part.kind != "categorical" for part in self.action_spec.parts.values()):
            raise ConfigError(
                "importance sampling requires discrete actions, but this action space has continuous parts. Use "
                "method fqe."
            )
        if mode == "explore":
            policy = policy_log_probs(self.algo.policy, columns, self.algo.device, env_steps)
        else:
            same = (np.abs(chosen[:, 0] - columns["action"]) < 0.5).all(-1)
            policy = np.where(same, 0.0, -np.inf)
        return np.asarray(policy - np.log(self.propensity.astype(np.float64)))

    def _state_values(self, fqe: FQE, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the values of ``rows`` ``[E]``, with actions from ``chosen`` ``[n, k, A]``, ``[E]``."""
        parts = np.split(rows, range(BLOCK, len(rows), BLOCK))
        return np.concatenate([self._block_values(fqe, part, chosen) for part in parts])

    def _block_values(self, fqe: FQE, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        times = fqe.window.context + 1
        index = torch.from_numpy(rows - fqe.window.context)
        actions = torch.from_numpy(chosen[rows])[:, None].expand(-1, times, -1, -1)  # [E, T, k, A]; the last counts
        batch = Batch.from_columns(self.dataset.storage.gather(index, times), index, extras={CHOSEN: actions})
        return np.asarray(fqe.value(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """Return the state of the critics, their optimizers, and their sampler."""
        critics = {"fqe": self.fqe.state_dict(), "logging": self.behavior_fqe.state_dict()}
        return {**critics, "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that ``state_dict`` returned."""
        self.fqe.load_state_dict(state["fqe"])
        self.behavior_fqe.load_state_dict(state["logging"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def _log_progress() -> ProgressFn:
    """Return a function that logs the progress of an estimate periodically."""
    start = latest = wall_clock.monotonic()

    def log_update(num_done: int, updates: int) -> bool:
        nonlocal latest
        current = wall_clock.monotonic()
        if current - latest >= REPORT_EVERY and num_done < updates:
            latest, remaining = current, format_duration((current - start) / num_done * (updates - num_done))
            progress = f"{num_done:,} of {count_noun(updates, 'update')} of FQE, {remaining} left"
            logger.info(f"estimating the policy's return: {progress}")
        return True

    return log_update


def has_diverged(losses: Tensor) -> bool:
    """Return whether FQE's losses ``[updates]``, relative to the variance of returns, grew far above the smallest."""
    means = losses[len(losses) % LOSS_WINDOW :].view(-1, LOSS_WINDOW).mean(1).tolist()
    return bool(means) and means[-1] > max(1.0, DIVERGENCE_FACTOR * min(means))


class EpisodeTable:
    """The steps of E recorded episodes; the longest has H steps."""

    def __init__(self, begins: np.ndarray, count: np.ndarray, terminal: np.ndarray) -> None:
        """``begins``, ``count``: first row and number of steps of each episode ``[E]``.

        ``terminal``: ``is_terminal`` of all rows ``[n]``.
        """
        self.count: Tensor = torch.from_numpy(count)
        self.terminal: Tensor = torch.from_numpy(terminal[begins + count])
        time = np.arange(count.max())
        self.inside: np.ndarray = time < count[:, None]  # [E, H]
        self.rows: np.ndarray = np.where(self.inside, begins[:, None] + time, 0)  # [E, H]

    def to_padded(self, column: np.ndarray) -> Tensor:
        """Return a column of all rows ``[n]`` by episode, ``[E, H]`` float64, 0 after its end."""
        return torch.from_numpy(np.where(self.inside, column[self.rows], 0.0))

    def cumulative_ratios(self, log_ratio: np.ndarray) -> Tensor:
        """Apply ``objectives/importance.py: cumulative_ratios`` to the ``log_ratio`` of all rows ``[n]``."""
        return cumulative_ratios(self.to_padded(log_ratio), self.count, self.terminal)

    def bootstrap(self, measure: Callable[[Tensor], Tensor]) -> IntervalEstimate:
        """Return ``measure`` with its interval over resamples.

        Its argument is how often each episode counts ``[R, E]``.
        """
        episodes = len(self.count)

        def statistic(picks: ArrayLike) -> np.ndarray:
            drawn = statistics.table(picks)[..., 0].astype(np.int64)  # [..., E], numbers of episodes
            counts = [np.bincount(sample, minlength=episodes) for sample in drawn.reshape(-1, episodes)]
            return np.asarray(measure(torch.from_numpy(np.stack(counts)).double()).numpy().reshape(drawn.shape[:-1]))

        return statistics.estimate_interval(statistic, np.arange(episodes))


def _mean_with_interval(values: np.ndarray) -> IntervalEstimate:
    """Return the mean of ``values`` ``[E]`` with its interval."""
    return statistics.estimate_interval(statistics.mean, values)


def fqe_config_for(algo: Algorithm) -> FQEConfig:
    """Return FQE's settings for a learner: the same discount (0.99 if it has none) and frame stacks."""
    cfg, names = getattr(algo, "cfg", None), ("discount", "frame_stack", "frame_stack_keys")
    settings: dict[str, Any] = {name: getattr(cfg, name) for name in names if hasattr(cfg, name)}
    if "discount" in settings:
        settings["discount"] = largest_value(settings["discount"])
    return FQEConfig(**settings)


def _subsample_evenly(values: np.ndarray) -> np.ndarray:
    """Return at most :data:`MAX_EPISODES` evenly spread values."""
    return values[np.unique(np.linspace(0, len(values) - 1, MAX_EPISODES).astype(np.int64))]
