"""Estimate the discounted return of a policy from recorded rows alone.

By fitted Q evaluation (``algos/fqe.py``), importance sampling, or both (``objectives/importance.py``).
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Actions, parse_mode
from reverie.agent.loading import read_config
from reverie.algos.base import Algorithm, AlgorithmConfig
from reverie.algos.fqe import CHOSEN, FQE, FQEConfig, Units
from reverie.core import statistics
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, EnvError, RunError, plural
from reverie.core.files import writing
from reverie.core.importing import trust_modules
from reverie.core.logger import logger
from reverie.core.machine import choose_device
from reverie.core.protocols import Memoryless, Policy, Telling
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec
from reverie.core.statistics import IntervalEstimate
from reverie.core.types import FLAGS, Batch, Mode, State, Step, Window
from reverie.datasets.dataset import dataset_config, open_recorded, shown
from reverie.datasets.memory import DataLike
from reverie.datasets.reader import PROPENSITY
from reverie.experiment.build import check_fit, looked_at
from reverie.experiment.config import NO_ENV
from reverie.log.console import format_duration
from reverie.objectives.importance import cumulative_ratios, doubly_robust, effective_size, weighted_sum
from reverie.objectives.returns import returns_to_go
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.dataset import Dataset
from reverie.replay.replay import Replay
from reverie.run.checkpoint import Checkpoints
from reverie.run.collect import initial_state
from reverie.run.folder import RunFolder, check_origin, read_saved, read_spec, write_found
from reverie.run.manifest import step_of

Method = Literal["fqe", "wis", "dr"]
METHODS: dict[str, str] = {
    "fqe": "fitted Q evaluation (FQE)",
    "wis": "per-decision weighted importance sampling (WIS)",
    "dr": "the weighted doubly robust estimator (DR), importance sampling beside fitted Q evaluation (FQE)",
}
"""The methods of estimating and what they are."""
ProgressFn = Callable[[int, int], bool]
"""Told after each update of an estimate how many were made and how many there will be; False ends the estimate."""

BLOCK = 1024
"""First states per forward pass, and rows in a batch for a memoryless policy."""
MAX_PARALLEL_EPISODES = 256
"""Most episodes side by side for any other policy."""
REPORT_EVERY = 30.0
"""Seconds between two lines on the progress of an estimate."""
ROUNDING = 1e-6
"""Standard deviation, relative to the largest number, below which numbers are taken to be equal."""
MAX_EPISODES = 10_000
"""Most episodes in a mean, evenly spread: the bootstrap over more would take longer than everything else."""
LOSS_WINDOW = 100
"""Updates whose mean loss is told, and compared with that of as many before."""
DIVERGENCE_FACTOR = 10.0
"""FQE has diverged if its loss is so many times its smallest, and above the variance of returns."""
MIN_EFFECTIVE_EPISODES = 10.0
"""Effective number of episodes below which importance sampling is not to be relied on."""


@dataclass(frozen=True, kw_only=True)
class ReturnEstimate:
    """Estimated return of a policy from the first states of a dataset's episodes, and the returns recorded there."""

    value: IntervalEstimate
    """Mean discounted return that the method expects of the policy, with a 95 % bootstrap interval over episodes; the
    error of FQE itself is not in it."""
    behavior: IntervalEstimate
    """The same of the logging policy, which took the recorded actions: what to compare ``value`` with. By FQE, with the
    recorded actions as next ones; if the method is "wis", by importance sampling whose ratios are 1."""
    dataset_return: IntervalEstimate
    """Mean discounted return of the recorded episodes. Rewards that would have followed a truncation are not in it,
    but in ``value`` they are."""
    discount: float
    """Discount factor gamma of both."""
    episodes: int
    """Number of recorded episodes with at least one step."""
    num_truncated: int
    """Number of these that were truncated, not terminal."""
    updates: int
    """Gradient updates of FQE so far, those of earlier estimates included."""
    loss: float
    """FQE's loss, the mean squared temporal-difference error, over the last 100 of these; NaN without FQE."""
    mode: Mode
    """How the policy chose actions: "eval" most likely, "explore" drawn."""
    reward_clipping: str = "none"
    """How the rewards of both returns had been clipped when they were collected; "none" if they are the true ones."""
    truncated_weight: float = 0.0
    """Share of the discount's weight, (1 - gamma) sum_t gamma^t, that lies beyond the recorded steps, in [0, 1]: the
    mean over episodes of gamma^n after n steps that a truncation ended, and of 0 for terminal episodes."""
    method: Method = "fqe"
    """How the policy's return was estimated."""
    diverged: bool = False
    """Whether FQE's loss grew far above its smallest: the estimate is worth nothing then."""
    effective_episodes: float | None = None
    """Effective number of episodes behind importance sampling; None without it."""
    agreement: dict[str, float] = field(default_factory=dict)
    """How near the policy's actions are to the recorded ones: see :func:`action_agreement`. The estimate of a policy
    whose actions are far from them may be wrong by any amount."""

    def metrics(self) -> dict[str, float]:
        """Return the numbers under their names in the logs, without the ends of an interval that is unknown."""
        metrics = {"updates": float(self.updates), "loss": self.loss, "discount": self.discount, **self.agreement}
        for name, part in self._intervals().items():
            metrics |= {name: part.value} | ({f"{name}_low": part.low, f"{name}_high": part.high} if part.sure else {})
        return {f"estimate/{name}": value for name, value in metrics.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for estimate.json."""
        intervals = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                     for name, x in self._intervals().items()}  # fmt: skip
        numbers = {
            "method": self.method,
            "discount": self.discount,
            "episodes": self.episodes,
            "cut_off": self.num_truncated,
            "beyond": self.truncated_weight,
            "updates": self.updates,
            "diverged": self.diverged,
            "clipped": self.reward_clipping,
        }
        method_text = f"discounted return, estimated by {METHODS[self.method]} from recorded data (docs/offline.md)"
        header = {"what": method_text, "actions": "mode" if self.mode == "eval" else "sample"}
        optional = {"loss": self.loss, "effective": self.effective_episodes}
        optional = {name: x for name, x in optional.items() if x == x is not None}
        return {**header, **intervals, **numbers, **optional, **self.agreement}

    def _intervals(self) -> dict[str, IntervalEstimate]:
        return {"return": self.value, "logging_return": self.behavior, "recorded_return": self.dataset_return}

    def format(self) -> str:
        """Format the estimate for the terminal, in four to seven lines."""
        truncated = f", {self.num_truncated:,} of them truncated" if self.num_truncated else ""
        clipped_text = "" if self.reward_clipping == "none" else f", of rewards clipped by {self.reward_clipping}"
        fqe_text = "" if self.method == "wis" else f", {plural(self.updates, 'update')}, loss {self.loss:.3g}"
        error_text = "" if self.method == "wis" else " and do not include the error of FQE itself"
        lines = [
            f"estimated by {self.method.upper()}, no episodes played: discounted return of the policy "
            f"{_format_interval(self.value)}",
            "  the logging policy, which took the recorded actions, by the same method: "
            f"{_format_interval(self.behavior)}",
            f"  recorded: {_format_interval(self.dataset_return)} in {plural(self.episodes, 'episode')}{truncated}; "
            f"discount {self.discount:g}{fqe_text}{clipped_text}",
            f"  intervals are for the mean over episodes{error_text}",
        ]
        if self.diverged:
            lines.append(
                "  FQE diverged: its loss grew far above its smallest, so this estimate of the policy is worth nothing"
            )
        if self.effective_episodes is not None:
            warning = ": too few to rely on" if self.effective_episodes < MIN_EFFECTIVE_EPISODES else ""
            lines.append(f"  effective number of episodes: {self.effective_episodes:.1f} of {self.episodes:,}{warning}")
        if (same_action := self.agreement.get("same_action")) is not None:
            lines.append(f"  the policy takes the recorded action in {same_action:.0%} of the steps")
        if (distance := self.agreement.get("action_distance")) is not None:
            lines.append(
                f"  the policy's actions differ from the recorded ones by {distance:.2f} of half their range (RMS)"
            )
        if self.truncated_weight >= 0.01:
            end = " to the end of the longest one" if self.method == "wis" else ""
            lines.append(
                f"  recorded returns end where episodes were truncated, and {self.truncated_weight:.0%} of the "
                f"discount's weight lies beyond; the others go on{end}"
            )
        return "\n".join(lines)


def _format_interval(interval: IntervalEstimate) -> str:
    return f"{interval.value:.2f}" + (f" (95 % {interval.low:.2f} to {interval.high:.2f})" if interval.sure else "")


class OffPolicyEstimator:
    """Estimates of one learner's policy on one dataset. Each continues training FQE where the one before stopped."""

    def __init__(
        self, algo: Algorithm, dataset: Dataset, obs_spec: ObsSpec, action_spec: ActionSpec,
        config: FQEConfig | None = None, *, seed: int = 0, rewards: np.ndarray | None = None,
        reward_clipping: str = "none", propensity: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Prepare FQE. ``config`` None: :func:`fqe_config_for`, with the learner's discount and frame stacks.

        ``rewards``: the true ones of all rows ``[n]``, if the dataset holds clipped ones. ``reward_clipping``: how
        rewards had been clipped when they were collected. ``propensity``: the logging policy's probabilities of the
        recorded actions of all rows ``[n]``, which importance sampling needs.
        """
        self.algo: Algorithm = algo
        self.dataset: Dataset = dataset
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
        age = np.arange(len(first)) - np.repeat(starts, lengths)  # of row t: steps since its episode began
        earned = np.where(age > 0, self.rewards * self.discount ** np.maximum(age - 1, 0.0), 0.0)
        self.begins: np.ndarray = starts[stepped]  # [E] rows that a step follows
        self.steps: np.ndarray = lengths[stepped] - 1  # [E]
        self.returns: np.ndarray = np.add.reduceat(earned, starts)[stepped]  # [E], discounted
        self.num_truncated: int = int((stepped & ~ended).sum())
        self.truncated_weight: float = float(np.where(ended, 0.0, self.discount ** (lengths - 1.0))[stepped].mean())
        self.fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed, self._units())
        self.behavior_fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed + 1, self._units())
        for normaliser in (self.fqe.preprocess.normaliser, self.behavior_fqe.preprocess.normaliser):
            if normaliser is not None:
                rows = dataset.storage.read(0, dataset.count, [f"obs/{key}" for key in normaliser.keys], copy=False)
                normaliser.fit({key: torch.from_numpy(rows[f"obs/{key}"][0]) for key in normaliser.keys})
        truncated = dataset.column("is_last") & ~dataset.column("is_terminal")
        self.unfollowed: np.ndarray = dataset.column("is_last") | np.append(truncated[1:], False)
        """Whether the row's action leads to none that is recorded, ``[n]``: the logging policy's FQE leaves it out."""
        self.rows: Replay = Replay(dataset.storage, self.fqe.window, seed=seed, config=BatchSamplerConfig(online=False))
        self.rows.batch_sampler.add(first[None], dataset.column("is_last")[None], collected=False)
        self.updates: int = 0

    def _units(self) -> Units:
        """Return FQE's units, and bounds of all values: values relative to the returns' mean and to a scale.

        The scale is the largest standard deviation of returns, rewards, and returns from each row on, or a magnitude.
        """
        first, rewards, discount = self.dataset.column("is_first"), self.rewards, self.discount
        is_last = np.append(first[1:], True)
        to_go = returns_to_go(reward=rewards, first=first, last=is_last, terminal=is_last, discount=discount)[~is_last]
        step_rewards = rewards[~first].astype(np.float64)
        max_std = max(self.returns.std(), step_rewards.std(), to_go.astype(np.float64).std())
        max_magnitude = max(abs(self.returns).max(), abs(step_rewards).max())
        horizon = 1 / (1 - discount) if discount < 1 else np.inf
        min_reward, max_reward = min(0.0, step_rewards.min()), max(0.0, step_rewards.max())
        return Units(
            shift=float(self.returns.mean()),
            scale=float(max_std if max_std > ROUNDING * max_magnitude else max_magnitude) or 1.0,
            low=float(min_reward * horizon) if min_reward else 0.0,
            high=float(max_reward * horizon) if max_reward else 0.0,
        )

    def estimate(
        self, updates: int, *, method: Method = "fqe", mode: Mode = "eval", draws: int = 1, env_steps: int = 0,
        progress: ProgressFn | None = None,
    ) -> ReturnEstimate:  # fmt: skip
        """Make ``updates`` updates of FQE and return the estimate; RunError if it is not finite.

        No random generator outside is changed.

        Args:
            updates: gradient updates of FQE, at least 1; with "wis" there are none.
            method: one of :data:`METHODS`. All but "fqe" need propensities and discrete actions, else ConfigError.
            mode: "eval" takes the policy's most likely action, "explore" draws.
            draws: actions per row, at least 1, whose values are averaged.
            env_steps: where schedules of exploration begin; they matter only if actions are drawn.
            progress: follows the updates, and may end them early: the estimate is then that after those made. None: its
                progress is logged now and then, if it takes long.
        """
        AtLeast(1).check("updates", updates)
        AtLeast(1).check("draws", draws)
        with reproducible(self.seed + self.updates):
            names = [name for name in self.dataset.storage.specs if not name.startswith(EXTRAS)]
            columns, width = {name: self.dataset.column(name) for name in names}, self.action_spec.width
            chosen = policy_actions(self.algo.policy, columns, width, mode=mode, draws=draws, env_steps=env_steps)
            ratio = None if method == "fqe" else self._log_ratio(columns, chosen, mode, env_steps)
            losses = torch.zeros(0) if method == "wis" else self._train_fqe(chosen, updates, progress or log_progress())
            value, behavior, effective_episodes = self._values(method, chosen, ratio)
        if not np.isfinite([value.value, behavior.value]).all():
            raise RunError("the estimate by FQE is not a finite number. Use a lower discount or fewer updates.")
        stepped = ~np.append(self.dataset.column("is_first")[1:], True)  # [n] rows that a step follows
        return ReturnEstimate(
            value=value,
            behavior=behavior,
            dataset_return=statistics.estimate_interval(statistics.mean, subsample_evenly(self.returns)),
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
        """Make the updates, fewer if ``progress`` says so, and return their losses ``[updates]``."""
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
        if self.updates % 2:  # values of the actions in the data are learned soon enough, and this costs half
            unfollowed = torch.from_numpy(self.unfollowed[rows])
            self.behavior_fqe.update(replace(batch, is_last=unfollowed, extras={CHOSEN: batch.action.unsqueeze(-2)}))
        actions = torch.from_numpy(chosen[rows])  # [B, T, n, A]
        return self.fqe.update(replace(batch, extras={CHOSEN: actions})).metrics["loss/critic"]

    def _values(
        self, method: Method, chosen: np.ndarray, log_ratio: np.ndarray | None
    ) -> tuple[IntervalEstimate, IntervalEstimate, float | None]:
        """Return the values of the policy and of the logging policy, and the effective number of episodes."""
        begins, recorded_actions = subsample_evenly(self.begins), self.dataset.column("action")[:, None]
        if method != "wis":
            behavior = mean_with_interval(self._state_values(self.behavior_fqe, begins, recorded_actions))
        if log_ratio is None:
            return mean_with_interval(self._state_values(self.fqe, begins, chosen)), behavior, None
        terminal, all_rows = self.dataset.column("is_terminal"), np.arange(self.dataset.count)
        steps = EpisodeTable(begins, subsample_evenly(self.steps), terminal)
        ratio, size = steps.cumulative_ratios(log_ratio), effective_size(steps.to_padded(log_ratio), steps.count)
        next_reward = np.append(self.rewards[1:], 0.0)  # [n], what the action of each row led to
        if method == "wis":
            reward, discount = steps.to_padded(next_reward), self.discount
            value = steps.bootstrap(partial(weighted_sum, ratio, reward, discount))
            equal_ratio = steps.cumulative_ratios(np.zeros_like(next_reward))
            return value, steps.bootstrap(partial(weighted_sum, equal_ratio, reward, discount)), size
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
                "importance sampling needs the probabilities with which the recorded actions were taken, and the data "
                "name no column for propensity. Name it, --data.columns '{..., propensity: COLUMN}', or use method fqe."
            )
        if any(part.kind != "categorical" for part in self.action_spec.parts.values()):
            raise ConfigError(
                "importance sampling requires discrete actions, and this space has others. Use method fqe."
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
        return np.asarray(fqe.worth(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """Return the critics, their optimisers, and the state of their sampler."""
        critics = {"fqe": self.fqe.state_dict(), "logging": self.behavior_fqe.state_dict()}
        return {**critics, "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore that state."""
        self.fqe.load_state_dict(state["fqe"])
        self.behavior_fqe.load_state_dict(state["logging"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def log_progress() -> ProgressFn:
    """Return what logs the progress of an estimate now and then."""
    start = latest = time.monotonic()

    def log_update(num_done: int, updates: int) -> bool:
        nonlocal latest
        current = time.monotonic()
        if current - latest >= REPORT_EVERY and num_done < updates:
            latest, remaining = current, format_duration((current - start) / num_done * (updates - num_done))
            progress = f"{num_done:,} of {plural(updates, 'update')} of FQE, {remaining} left"
            logger.info(f"estimating the policy's return: {progress}")
        return True

    return log_update


def has_diverged(losses: Tensor) -> bool:
    """Return whether FQE's losses ``[updates]``, in units of the variance of returns, grew far above the smallest."""
    means = losses[len(losses) % LOSS_WINDOW :].view(-1, LOSS_WINDOW).mean(1).tolist()
    return bool(means) and means[-1] > max(1.0, DIVERGENCE_FACTOR * min(means))


class EpisodeTable:
    """The steps of E recorded episodes, of which the longest has H."""

    def __init__(self, begins: np.ndarray, count: np.ndarray, terminal: np.ndarray) -> None:
        """``begins``, ``count``: first row and steps of each episode ``[E]``. ``terminal``: of all rows ``[n]``."""
        self.count: Tensor = torch.from_numpy(count)
        self.terminal: Tensor = torch.from_numpy(terminal[begins + count])
        time = np.arange(count.max())
        self.inside: np.ndarray = time < count[:, None]  # [E, H]
        self.rows: np.ndarray = np.where(self.inside, begins[:, None] + time, 0)  # [E, H]

    def to_padded(self, column: np.ndarray) -> Tensor:
        """Return a column of all rows ``[n]`` by episode, ``[E, H]`` float64, 0 after its end."""
        return torch.from_numpy(np.where(self.inside, column[self.rows], 0.0))

    def cumulative_ratios(self, log_ratio: np.ndarray) -> Tensor:
        """See ``objectives/importance.py: cumulative_ratios``; ``log_ratio`` is of all rows ``[n]``."""
        return cumulative_ratios(self.to_padded(log_ratio), self.count, self.terminal)

    def bootstrap(self, measure: Callable[[Tensor], Tensor]) -> IntervalEstimate:
        """Return ``measure``, of how often each episode counts ``[R, E]``, with its interval over resamples."""
        episodes = len(self.count)

        def statistic(picks: Any) -> np.ndarray:
            drawn = statistics.table(picks)[..., 0].astype(np.int64)  # [..., E], numbers of episodes
            counts = [np.bincount(sample, minlength=episodes) for sample in drawn.reshape(-1, episodes)]
            return np.asarray(measure(torch.from_numpy(np.stack(counts)).double()).numpy().reshape(drawn.shape[:-1]))

        return statistics.estimate_interval(statistic, np.arange(episodes))


def mean_with_interval(values: np.ndarray) -> IntervalEstimate:
    """Return the mean of ``values`` ``[E]`` with its interval."""
    return statistics.estimate_interval(statistics.mean, values)


def fqe_config_for(algo: Algorithm) -> FQEConfig:
    """Return FQE's settings for a learner: the same discount (0.99 if it has none) and frame stacks."""
    cfg = getattr(algo, "cfg", None)
    return FQEConfig(
        **{name: getattr(cfg, name) for name in ("discount", "frames", "frame_keys") if hasattr(cfg, name)}
    )


def subsample_evenly(values: np.ndarray) -> np.ndarray:
    """Return at most :data:`MAX_EPISODES` of the values, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, MAX_EPISODES).astype(np.int64))]


# ---------------------------------------------------------------- actions of a policy in recorded rows


def policy_actions(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], width: int, *,
    mode: Mode = "eval", draws: int = 1, env_steps: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return the actions that a policy would take in each row, float32 ``[rows, draws, A]``; ``width`` is A.

    A policy with state sees whole episodes in order, and is told the recorded actions (``override``). ``columns`` are
    all rows, ``[rows, ...]``: ``obs/<key>``, ``action``, ``reward`` and the flags.
    """
    actions = np.zeros((len(columns["action"]), draws, width), np.float32)

    def act(step: Step, state: Any, recorded_actions: Tensor, rows: np.ndarray) -> Any:
        for n in range(draws):
            action, next_state = policy.act(step, state, mode)
            actions[rows[rows >= 0], n] = action.numpy()[rows >= 0]
        return next_state

    run_policy_over(policy, columns, act, mode=mode, env_steps=env_steps)
    return actions


@torch.no_grad()
def policy_log_probs(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], device: torch.device, env_steps: int = 0
) -> np.ndarray:
    """Return ln pi(a | s) of the recorded action of each row, ``[rows]``; ConfigError if the policy does not know it.

    Arguments are those of :func:`policy_actions`, and the policy's ``device``.
    """
    log_probs = np.zeros(len(columns["action"]))

    def ask(step: Step, state: Any, recorded_actions: Tensor, rows: np.ndarray) -> Any:
        choice: Any = policy.tell(step, state).choice if isinstance(policy, Telling) else None
        if not hasattr(choice, "log_prob"):
            raise ConfigError(
                "this policy does not tell the probabilities of its actions, which importance sampling needs where "
                "they are drawn. Use method fqe, or let it take its most likely actions (mode)."
            )
        log_probs[rows[rows >= 0]] = choice.log_prob(recorded_actions.to(device)).cpu().numpy()[rows >= 0]
        return policy.act(step, state, "explore")[1]

    run_policy_over(policy, columns, ask, mode="explore", env_steps=env_steps)
    return log_probs


def run_policy_over(
    policy: Policy[Any], columns: Mapping[str, np.ndarray],
    visit: Callable[[Step, Any, Tensor, np.ndarray], Any], *, mode: Mode, env_steps: int,
) -> None:  # fmt: skip
    """Show all rows to a policy, some at a time: ``visit(step, state, recorded actions, rows [N])`` returns its state.

    Of the numbers of rows, -1 is padding.
    """
    observations = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs/")}
    row_columns = {name: columns[name] for name in ("reward", *FLAGS)}
    memoryless = isinstance(policy, Memoryless) and policy.memoryless(mode)
    for order in batch_orders(row_columns["is_first"], carried=not memoryless):
        state = initial_state(policy, order.shape[1], env_steps)
        for rows in order:
            indices = rows.clip(min=0)
            obs = {key: torch.from_numpy(column[indices]) for key, column in observations.items()}
            step = Step(obs=obs, **{name: torch.from_numpy(column[indices]) for name, column in row_columns.items()})
            recorded_actions = torch.from_numpy(columns["action"][indices])
            state = policy.override(visit(step, state, recorded_actions, rows), recorded_actions)


def batch_orders(first: np.ndarray, carried: bool) -> Iterator[np.ndarray]:
    """Yield tables ``[L, N]`` of row numbers, -1 is padding. With state (``carried``), each column is an episode."""
    total, size = len(first), min(BLOCK, len(first))
    if not carried:
        yield np.pad(np.arange(total), (0, -total % size), constant_values=-1).reshape(-1, size)
        return
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, total))
    cuts = range(MAX_PARALLEL_EPISODES, len(starts), MAX_PARALLEL_EPISODES)
    for group in np.split(np.argsort(-lengths, kind="stable"), cuts):
        t = np.arange(lengths[group].max())[:, None]
        yield np.where(t < lengths[group], starts[group] + t, -1)


def action_agreement(chosen: np.ndarray, recorded_actions: np.ndarray, spec: ActionSpec) -> dict[str, float]:
    """Compare the policy's actions in R rows, ``[R, n, A]``, with those that were taken there, ``[R, A]``.

    Return ``same_action``, the share whose classes are all those that were recorded, and ``action_distance``, the root
    mean square difference of continuous actions in units of half their range.
    """
    discrete = np.zeros(spec.width, bool)
    for key, action_slice in spec.slices().items():
        discrete[action_slice] = spec.parts[key].kind == "categorical"
    distance, agreement = np.abs(chosen - recorded_actions[:, None]), dict[str, float]()
    if discrete.any():  # one-hot, but a network's 1 may be off by a rounding error
        agreement["same_action"] = float((distance[..., discrete] < 0.5).all(-1).mean())
    if not discrete.all():
        agreement["action_distance"] = float(np.sqrt(np.square(distance[..., ~discrete], dtype=np.float64).mean()))
    return agreement


# ---------------------------------------------------------------- of a run's agent


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate, and the file that holds it."""

    estimate: ReturnEstimate
    files: dict[str, Path]
    """Written files by name: "estimate", or empty if it could not be written."""


def estimate_return(
    run: Path | str, data: DataLike | None = None, *,
    method: Method = "fqe", updates: int = 20_000, actions: Actions = "mode", draws: int = 10,
    discount: float | None = None, fqe: Mapping[str, Any] | None = None, checkpoint: Path | str | None = None,
    algo: AlgorithmConfig | None = None, device: str = "auto", seed: int | None = None, trust: bool = False,
    progress: ProgressFn | None = None,
) -> EstimateReport:  # fmt: skip
    """Estimate the return of a run's agent from recorded data, and write ``<run>/estimate.json``.

    Nothing is played and no environment is needed. World models see the recorded episodes in order.

    Args:
        run: the run folder.
        data: recorded data to estimate from: a path, minari:NAME, data in memory, or a DatasetConfig. None:
            the data that the run was trained on.
        method: "fqe", fitted Q evaluation; "wis", per-decision weighted importance sampling; or "dr", the weighted
            doubly robust estimator, which is both. The last two need discrete actions and a column for the propensity,
            the logging policy's probability of each recorded action.
        updates: gradient updates of FQE, at least 1.
        actions: the policy evaluated takes its most likely action ("mode"), or draws one ("sample").
        draws: actions drawn for each row, at least 1, with "sample"; their values are averaged.
        discount: gamma. None: the learner's, or 0.99 if it has none.
        fqe: further settings of :class:`~reverie.algos.fqe.FQEConfig`, such as ``{"lr": 1e-4}``.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the newest that is whole.
        algo: the config the run was trained with, if it held objects of your own.
        device: where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        seed: of networks and batches, >= 0. None: follows from the run's seed.
        trust: import modules that the run names and no installed package offers, such as one in the current folder.
        progress: called after each update as ``progress(num_done, updates)``; False ends the updates.

    Raises:
        RunError: there is no such run or checkpoint, it is damaged, or no data are known.
        DataError: the data cannot be read, or do not fit the agent.
        UntrustedError: the run names a module that no installed package offers and that you have not named yourself.
        ConfigError: a number, ``actions``, ``method`` or one of ``fqe`` is out of range, or the device does not exist
            here; the method needs propensities or other actions.
    """
    AtLeast(0).check("seed", seed)
    if method not in METHODS:
        raise ConfigError(f"method = {method!r}: expected one of {', '.join(METHODS)}.")
    mode = parse_mode(actions)
    folder = RunFolder.at(run)
    saved, overrides = read_saved(folder.path), {"algo": algo, "data": data}
    with trust_modules(trust):
        check_origin(saved, f"the run {folder.path}", *(name for name, value in overrides.items() if value is not None))
    run_config = read_config(folder.path, NO_ENV, algo)
    data_config = run_config.data if data is None else dataset_config(data, run_config.data.storage)
    if not data_config.path:
        raise RunError(f"{folder.path} was not trained on a dataset. Pass the dataset to use: --data PATH.")
    config = run_config.merge({"data": data_config, "env.clip_reward": "none"})
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    # What data do not declare is the environment's; one that was given from Python cannot be made again.
    action_space = obs_space = None
    if "env" not in saved.custom and config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            obs_space, action_space, _ = looked_at(config, None)
    with contextlib.closing(open_recorded(config.data, config.env, action_space, obs_space)) as recorded:
        if (spec := read_spec(folder)) is not None:
            check_fit(recorded, spec, NO_ENV)
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        step = step_of(path)  # a run that goes on deletes its old checkpoints
        settings = fqe_config_for(learner).merge(fqe or {}, "fqe")
        settings = settings.merge({} if discount is None else {"discount": discount})
        window = Window(batch=1, length=2, context=settings.frames - 1, context_crosses=settings.frames > 1)
        with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as track_progress:
            extra_columns: dict[str, list[np.ndarray]] = {PROPENSITY: []}
            parts = track_progress(recorded.parts(extra_columns))
            dataset = config.data.build(recorded, window=window, seed=seed, parts=parts)
        for remark in recorded.remarks():
            logger.warning(f"{config.data.where}: {remark}")
    estimator = OffPolicyEstimator(
        learner, dataset, *specs, settings, seed=seed, reward_clipping=recorded.clipped,
        propensity=np.concatenate(extra_columns[PROPENSITY]) if extra_columns[PROPENSITY] else None,
    )  # fmt: skip
    draws = 1 if mode == "eval" else draws
    result = estimator.estimate(
        updates, method=method, mode=mode, draws=draws, env_steps=run_config.explored(step), progress=progress
    )
    content, files = {"step": step, **result.to_dict(), "checkpoint": path.name, "data": config.data.where}, {}
    try:
        with writing(folder.path):
            write_found(folder.estimate, content)
            files["estimate"] = folder.estimate
    except RunError as error:
        logger.warning(str(error))
    return EstimateReport(estimate=result, files=files)
