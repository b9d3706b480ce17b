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

from reverie.agent.agent import Actions, mode_of
from reverie.agent.loading import check_code, saved_config
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
from reverie.run.folder import RunFolder, read_saved, read_spec, write_found
from reverie.run.manifest import step_of

Method = Literal["fqe", "wis", "dr"]
METHODS: dict[str, str] = {
    "fqe": "fitted Q evaluation (FQE)",
    "wis": "per-decision weighted importance sampling (WIS)",
    "dr": "the weighted doubly robust estimator (DR), importance sampling beside fitted Q evaluation (FQE)",
}
"""The methods of estimating and what they are."""
Watch = Callable[[int, int], bool]
"""Told after each update of an estimate how many were made and how many there will be; False ends the estimate."""

BLOCK = 1024
"""First states per forward pass, and rows in a batch for a memoryless policy."""
SIDE_BY_SIDE = 256
"""Most episodes side by side for any other policy."""
REPORT_EVERY = 30.0
"""Seconds between two lines on the progress of an estimate."""
ROUNDING = 1e-6
"""Standard deviation, relative to the largest number, below which numbers are taken to be equal."""
MAX_EPISODES = 10_000
"""Most episodes in a mean, evenly spread: the bootstrap over more would take longer than everything else."""
RECENT = 100
"""Updates whose mean loss is told, and compared with that of as many before."""
GROWN = 10.0
"""FQE has diverged if its loss is so many times its smallest, and above the variance of returns."""
FEW = 10.0
"""Effective number of episodes below which importance sampling is not to be relied on."""


@dataclass(frozen=True, kw_only=True)
class PolicyEstimate:
    """Estimated return of a policy from the first states of a dataset's episodes, and the returns recorded there."""

    value: IntervalEstimate
    """Mean discounted return that the method expects of the policy, with a 95 % bootstrap interval over episodes; the
    error of FQE itself is not in it."""
    logging: IntervalEstimate
    """The same of the logging policy, which took the recorded actions: what to compare ``value`` with. By FQE, with the
    recorded actions as next ones; if the method is "wis", by importance sampling whose ratios are 1."""
    recorded: IntervalEstimate
    """Mean discounted return of the recorded episodes. Rewards that would have followed a truncation are not in it,
    but in ``value`` they are."""
    discount: float
    """Discount factor gamma of both."""
    episodes: int
    """Number of recorded episodes with at least one step."""
    cut_off: int
    """Number of these that were truncated, not terminal."""
    updates: int
    """Gradient updates of FQE so far, those of earlier estimates included."""
    loss: float
    """FQE's loss, the mean squared temporal-difference error, over the last 100 of these; NaN without FQE."""
    mode: Mode
    """How the policy chose actions: "eval" most likely, "explore" drawn."""
    clipped: str = "none"
    """How the rewards of both returns had been clipped when they were collected; "none" if they are the true ones."""
    beyond: float = 0.0
    """Share of the discount's weight, (1 - gamma) sum_t gamma^t, that lies beyond the recorded steps, in [0, 1]: the
    mean over episodes of gamma^n after n steps that a truncation ended, and of 0 for terminal episodes."""
    method: Method = "fqe"
    """How the policy's return was estimated."""
    diverged: bool = False
    """Whether FQE's loss grew far above its smallest: the estimate is worth nothing then."""
    effective: float | None = None
    """Effective number of episodes behind importance sampling; None without it."""
    agreement: dict[str, float] = field(default_factory=dict)
    """How near the policy's actions are to the recorded ones: see :func:`agreement_of`. The estimate of a policy whose
    actions are far from them may be wrong by any amount."""

    def metrics(self) -> dict[str, float]:
        """Return the numbers under their names in the logs, without the ends of an interval that is unknown."""
        found = {"updates": float(self.updates), "loss": self.loss, "discount": self.discount, **self.agreement}
        for name, part in self._returns().items():
            found |= {name: part.value} | ({f"{name}_low": part.low, f"{name}_high": part.high} if part.sure else {})
        return {f"estimate/{name}": value for name, value in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for estimate.json."""
        parts = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                 for name, x in self._returns().items()}  # fmt: skip
        names = ("method", "discount", "episodes", "cut_off", "beyond", "updates", "diverged", "clipped")
        what = f"discounted return, estimated by {METHODS[self.method]} from recorded data (docs/offline.md)"
        about = {"what": what, "actions": "mode" if self.mode == "eval" else "sample"}
        some = {name: x for name, x in {"loss": self.loss, "effective": self.effective}.items() if x == x is not None}
        return {**about, **parts, **{name: getattr(self, name) for name in names}, **some, **self.agreement}

    def _returns(self) -> dict[str, IntervalEstimate]:
        return {"return": self.value, "logging_return": self.logging, "recorded_return": self.recorded}

    def words(self) -> str:
        """Format the estimate for the terminal, in four to seven lines."""
        cut = f", {self.cut_off:,} of them truncated" if self.cut_off else ""
        clipped = "" if self.clipped == "none" else f", of rewards clipped by {self.clipped}"
        fitted = "" if self.method == "wis" else f", {plural(self.updates, 'update')}, loss {self.loss:.3g}"
        besides = "" if self.method == "wis" else " and do not include the error of FQE itself"
        lines = [
            f"estimated by {self.method.upper()}, no episodes played: discounted return of the policy "
            f"{_between(self.value)}",
            f"  the logging policy, which took the recorded actions, by the same method: {_between(self.logging)}",
            f"  recorded: {_between(self.recorded)} in {plural(self.episodes, 'episode')}{cut}; "
            f"discount {self.discount:g}{fitted}{clipped}",
            f"  intervals are for the mean over episodes{besides}",
        ]
        if self.diverged:
            lines.append(
                "  FQE diverged: its loss grew far above its smallest, so this estimate of the policy is worth nothing"
            )
        if self.effective is not None:
            few = ": too few to rely on" if self.effective < FEW else ""
            lines.append(f"  effective number of episodes: {self.effective:.1f} of {self.episodes:,}{few}")
        if (same := self.agreement.get("same_action")) is not None:
            lines.append(f"  the policy takes the recorded action in {same:.0%} of the steps")
        if (far := self.agreement.get("action_distance")) is not None:
            lines.append(f"  the policy's actions differ from the recorded ones by {far:.2f} of half their range (RMS)")
        if self.beyond >= 0.01:
            goes_on = "the others go on" if self.method != "wis" else "the others go on to the end of the longest one"
            lines.append(
                f"  recorded returns end where episodes were truncated, and {self.beyond:.0%} of the discount's weight "
                f"lies beyond; {goes_on}"
            )
        return "\n".join(lines)


def _between(found: IntervalEstimate) -> str:
    return f"{found.value:.2f}" + (f" (95 % {found.low:.2f} to {found.high:.2f})" if found.sure else "")


class Estimator:
    """Estimates of one learner's policy on one dataset. Each continues training FQE where the one before stopped."""

    def __init__(
        self, algo: Algorithm, dataset: Dataset, obs_spec: ObsSpec, action_spec: ActionSpec,
        config: FQEConfig | None = None, *, seed: int = 0, rewards: np.ndarray | None = None, clipped: str = "none",
        propensity: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        """Prepare FQE. ``config`` None: :func:`config_for`, with the learner's discount and frame stacks.

        ``rewards``: the true ones of all rows ``[n]``, if the dataset holds clipped ones. ``clipped``: how rewards had
        been clipped when they were collected. ``propensity``: the logging policy's probabilities of the recorded
        actions of all rows ``[n]``, which importance sampling needs.
        """
        self.algo: Algorithm = algo
        self.dataset: Dataset = dataset
        self.action_spec: ActionSpec = action_spec
        self.seed: int = seed
        self.clipped: str = clipped
        self.propensity: np.ndarray | None = propensity
        self.rewards: np.ndarray = dataset.column("reward") if rewards is None else rewards
        config = config or config_for(algo)
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
        self.cut_off: int = int((stepped & ~ended).sum())
        self.beyond: float = float(np.where(ended, 0.0, self.discount ** (lengths - 1.0))[stepped].mean())
        self.fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed, self._units())
        self.logging: FQE = config.build(obs_spec, action_spec, str(algo.device), seed + 1, self._units())
        for normaliser in (self.fqe.preprocess.normaliser, self.logging.preprocess.normaliser):
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
        ended = np.append(first[1:], True)
        later = returns_to_go(reward=rewards, first=first, last=ended, terminal=ended, discount=discount)[~ended]
        reward = rewards[~first].astype(np.float64)
        spread = max(self.returns.std(), reward.std(), later.astype(np.float64).std())
        largest = max(abs(self.returns).max(), abs(reward).max())
        horizon = 1 / (1 - discount) if discount < 1 else np.inf
        least, most = min(0.0, reward.min()), max(0.0, reward.max())
        return Units(
            shift=float(self.returns.mean()),
            scale=float(spread if spread > ROUNDING * largest else largest) or 1.0,
            low=float(least * horizon) if least else 0.0,
            high=float(most * horizon) if most else 0.0,
        )

    def estimate(
        self, updates: int, *, method: Method = "fqe", mode: Mode = "eval", draws: int = 1, env_steps: int = 0,
        watch: Watch | None = None,
    ) -> PolicyEstimate:  # fmt: skip
        """Make ``updates`` updates of FQE and return the estimate; RunError if it is not finite.

        No random generator outside is changed.

        Args:
            updates: gradient updates of FQE, at least 1; with "wis" there are none.
            method: one of :data:`METHODS`. All but "fqe" need propensities and discrete actions, else ConfigError.
            mode: "eval" takes the policy's most likely action, "explore" draws.
            draws: actions per row, at least 1, whose values are averaged.
            env_steps: where schedules of exploration begin; they matter only if actions are drawn.
            watch: follows the updates, and may end them early: the estimate is then that after those made. None: its
                progress is logged now and then, if it takes long.
        """
        AtLeast(1).check("updates", updates)
        AtLeast(1).check("draws", draws)
        with reproducible(self.seed + self.updates):
            names = [name for name in self.dataset.storage.specs if not name.startswith(EXTRAS)]
            columns, width = {name: self.dataset.column(name) for name in names}, self.action_spec.width
            chosen = actions_of(self.algo.policy, columns, width, mode=mode, draws=draws, env_steps=env_steps)
            ratio = None if method == "fqe" else self._log_ratio(columns, chosen, mode, env_steps)
            losses = torch.zeros(0) if method == "wis" else self._fit(chosen, updates, watch or logged())
            value, logging, effective = self._values(method, chosen, ratio)
        if not np.isfinite([value.value, logging.value]).all():
            raise RunError("the estimate by FQE is not a finite number. Use a lower discount or fewer updates.")
        stepped = ~np.append(self.dataset.column("is_first")[1:], True)  # [n] rows that a step follows
        return PolicyEstimate(
            value=value,
            logging=logging,
            recorded=statistics.estimate_interval(statistics.mean, thinned(self.returns)),
            discount=self.discount,
            episodes=len(self.begins),
            cut_off=self.cut_off,
            updates=self.updates,
            loss=float(losses[-RECENT:].mean()) * self.fqe.scale**2,
            mode=mode,
            clipped=self.clipped,
            beyond=self.beyond,
            method=method,
            diverged=has_diverged(losses),
            effective=effective,
            agreement=agreement_of(chosen[stepped], self.dataset.column("action")[stepped], self.action_spec),
        )

    def _fit(self, chosen: np.ndarray, updates: int, watch: Watch) -> Tensor:
        """Make the updates, fewer if ``watch`` says so, and return their losses ``[updates]``."""
        found = list[Tensor]()
        while len(found) < updates:
            found.append(self._update(chosen))
            if not watch(len(found), updates):
                break
        return torch.stack(found)

    def _update(self, chosen: np.ndarray) -> Tensor:
        batch = self.rows.sample()
        rows = (batch.index.numpy()[:, None] + np.arange(batch.shape[1])).clip(min=0)  # [B, T]
        batch = replace(batch, reward=torch.from_numpy(self.rewards[rows]))
        self.updates += 1
        if self.updates % 2:  # values of the actions in the data are learned soon enough, and this costs half
            unfollowed = torch.from_numpy(self.unfollowed[rows])
            self.logging.update(replace(batch, is_last=unfollowed, extras={CHOSEN: batch.action.unsqueeze(-2)}))
        picked = torch.from_numpy(chosen[rows])  # [B, T, n, A]
        return self.fqe.update(replace(batch, extras={CHOSEN: picked})).metrics["loss/critic"]

    def _values(
        self, method: Method, chosen: np.ndarray, log_ratio: np.ndarray | None
    ) -> tuple[IntervalEstimate, IntervalEstimate, float | None]:
        """Return the values of the policy and of the logging policy, and the effective number of episodes."""
        begins, taken = thinned(self.begins), self.dataset.column("action")[:, None]
        if method != "wis":
            logging = mean_of(self._worth(self.logging, begins, taken))
        if log_ratio is None:
            return mean_of(self._worth(self.fqe, begins, chosen)), logging, None
        terminal, every = self.dataset.column("is_terminal"), np.arange(self.dataset.count)
        steps = Steps(begins, thinned(self.steps), terminal)
        ratio, size = steps.ratios(log_ratio), effective_size(steps.cut(log_ratio), steps.count)
        earned = np.append(self.rewards[1:], 0.0)  # [n], what the action of each row led to
        if method == "wis":
            reward, discount = steps.cut(earned), self.discount
            value = steps.resampled(partial(weighted_sum, ratio, reward, discount))
            alike = steps.ratios(np.zeros_like(earned))
            return value, steps.resampled(partial(weighted_sum, alike, reward, discount)), size
        worth = self._worth(self.fqe, every, chosen)  # [n]
        later = np.append(np.where(terminal, 0.0, worth)[1:], 0.0)  # [n]
        error = steps.cut(earned + self.discount * later - self._worth(self.fqe, every, taken))
        start = torch.from_numpy(worth[begins])
        return steps.resampled(partial(doubly_robust, ratio, error, start, self.discount)), logging, size

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
            raise ConfigError("importance sampling is for discrete actions, and some of these are not. Use method fqe.")
        if mode == "explore":
            policy = log_probs_of(self.algo.policy, columns, self.algo.device, env_steps)
        else:
            same = (np.abs(chosen[:, 0] - columns["action"]) < 0.5).all(-1)
            policy = np.where(same, 0.0, -np.inf)
        return np.asarray(policy - np.log(self.propensity.astype(np.float64)))

    def _worth(self, fqe: FQE, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the values of ``rows`` ``[E]``, with actions from ``chosen`` ``[n, k, A]``, ``[E]``."""
        parts = np.split(rows, range(BLOCK, len(rows), BLOCK))
        return np.concatenate([self._worth_of(fqe, part, chosen) for part in parts])

    def _worth_of(self, fqe: FQE, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        times = fqe.window.context + 1
        index = torch.from_numpy(rows - fqe.window.context)
        picked = torch.from_numpy(chosen[rows])[:, None].expand(-1, times, -1, -1)  # [E, T, k, A], the last one counts
        batch = Batch.from_columns(self.dataset.storage.gather(index, times), index, extras={CHOSEN: picked})
        return np.asarray(fqe.worth(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """Return the critics, their optimisers, and the state of their sampler."""
        critics = {"fqe": self.fqe.state_dict(), "logging": self.logging.state_dict()}
        return {**critics, "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore that state."""
        self.fqe.load_state_dict(state["fqe"])
        self.logging.load_state_dict(state["logging"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def logged() -> Watch:
    """Return what logs the progress of an estimate now and then."""
    since = latest = time.monotonic()

    def watch(made: int, updates: int) -> bool:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= REPORT_EVERY and made < updates:
            latest, left = now, format_duration((now - since) / made * (updates - made))
            logger.info(f"estimating the policy's return: {made:,} of {plural(updates, 'update')} of FQE, {left} left")
        return True

    return watch


def has_diverged(losses: Tensor) -> bool:
    """Return whether FQE's losses ``[updates]``, in units of the variance of returns, grew far above the smallest."""
    means = losses[len(losses) % RECENT :].view(-1, RECENT).mean(1).tolist()
    return bool(means) and means[-1] > max(1.0, GROWN * min(means))


class Steps:
    """The steps of E recorded episodes, of which the longest has H."""

    def __init__(self, begins: np.ndarray, count: np.ndarray, terminal: np.ndarray) -> None:
        """``begins``, ``count``: first row and steps of each episode ``[E]``. ``terminal``: of all rows ``[n]``."""
        self.count: Tensor = torch.from_numpy(count)
        self.terminal: Tensor = torch.from_numpy(terminal[begins + count])
        time = np.arange(count.max())
        self.inside: np.ndarray = time < count[:, None]  # [E, H]
        self.rows: np.ndarray = np.where(self.inside, begins[:, None] + time, 0)  # [E, H]

    def cut(self, column: np.ndarray) -> Tensor:
        """Return a column of all rows ``[n]`` by episode, ``[E, H]`` float64, 0 after its end."""
        return torch.from_numpy(np.where(self.inside, column[self.rows], 0.0))

    def ratios(self, log_ratio: np.ndarray) -> Tensor:
        """See ``objectives/importance.py: cumulative_ratios``; ``log_ratio`` is of all rows ``[n]``."""
        return cumulative_ratios(self.cut(log_ratio), self.count, self.terminal)

    def resampled(self, measure: Callable[[Tensor], Tensor]) -> IntervalEstimate:
        """Return ``measure``, of how often each episode counts ``[R, E]``, with its interval over resamples."""
        episodes = len(self.count)

        def measured(picks: Any) -> np.ndarray:
            drawn = statistics.table(picks)[..., 0].astype(np.int64)  # [..., E], numbers of episodes
            times = [np.bincount(each, minlength=episodes) for each in drawn.reshape(-1, episodes)]
            return np.asarray(measure(torch.from_numpy(np.stack(times)).double()).numpy().reshape(drawn.shape[:-1]))

        return statistics.estimate_interval(measured, np.arange(episodes))


def mean_of(values: np.ndarray) -> IntervalEstimate:
    """Return the mean of ``values`` ``[E]`` with its interval."""
    return statistics.estimate_interval(statistics.mean, values)


def config_for(algo: Algorithm) -> FQEConfig:
    """Return FQE's settings for a learner: the same discount (0.99 if it has none) and frame stacks."""
    own = getattr(algo, "cfg", None)
    kept = {name: getattr(own, name) for name in ("discount", "frames", "frame_keys") if hasattr(own, name)}
    return FQEConfig(**kept)


def thinned(values: np.ndarray) -> np.ndarray:
    """Return at most :data:`MAX_EPISODES` of the values, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, MAX_EPISODES).astype(np.int64))]


# ---------------------------------------------------------------- actions of a policy in recorded rows


def actions_of(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], width: int, *,
    mode: Mode = "eval", draws: int = 1, env_steps: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return the actions that a policy would take in each row, float32 ``[rows, draws, A]``; ``width`` is A.

    A policy with state sees whole episodes in order, and is told the recorded actions (``override``). ``columns`` are
    all rows, ``[rows, ...]``: ``obs/<key>``, ``action``, ``reward`` and the flags.
    """
    found = np.zeros((len(columns["action"]), draws, width), np.float32)

    def act(step: Step, state: Any, taken: Tensor, rows: np.ndarray) -> Any:
        for n in range(draws):
            action, after = policy.act(step, state, mode)
            found[rows[rows >= 0], n] = action.numpy()[rows >= 0]
        return after

    see_all(policy, columns, act, mode=mode, env_steps=env_steps)
    return found


@torch.no_grad()
def log_probs_of(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], device: torch.device, env_steps: int = 0
) -> np.ndarray:
    """Return ln pi(a | s) of the recorded action of each row, ``[rows]``; ConfigError if the policy does not know it.

    Arguments are those of :func:`actions_of`, and the policy's ``device``.
    """
    found = np.zeros(len(columns["action"]))

    def ask(step: Step, state: Any, taken: Tensor, rows: np.ndarray) -> Any:
        choice: Any = policy.tell(step, state).choice if isinstance(policy, Telling) else None
        if not hasattr(choice, "log_prob"):
            raise ConfigError(
                "this policy does not tell the probabilities of its actions, which importance sampling needs where "
                "they are drawn. Use method fqe, or let it take its most likely actions (mode)."
            )
        found[rows[rows >= 0]] = choice.log_prob(taken.to(device)).cpu().numpy()[rows >= 0]
        return policy.act(step, state, "explore")[1]

    see_all(policy, columns, ask, mode="explore", env_steps=env_steps)
    return found


def see_all(
    policy: Policy[Any], columns: Mapping[str, np.ndarray],
    visit: Callable[[Step, Any, Tensor, np.ndarray], Any], *, mode: Mode, env_steps: int,
) -> None:  # fmt: skip
    """Show all rows to a policy, some at a time: ``visit(step, state, recorded actions, rows [N])`` returns its state.

    Of the numbers of rows, -1 is padding.
    """
    seen = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs/")}
    fixed = {name: columns[name] for name in ("reward", *FLAGS)}
    memoryless = isinstance(policy, Memoryless) and policy.memoryless(mode)
    for order in orders(fixed["is_first"], carried=not memoryless):
        state = initial_state(policy, order.shape[1], env_steps)
        for rows in order:
            at = rows.clip(min=0)
            obs = {key: torch.from_numpy(column[at]) for key, column in seen.items()}
            step = Step(obs=obs, **{name: torch.from_numpy(column[at]) for name, column in fixed.items()})
            taken = torch.from_numpy(columns["action"][at])
            state = policy.override(visit(step, state, taken, rows), taken)


def orders(first: np.ndarray, carried: bool) -> Iterator[np.ndarray]:
    """Yield tables ``[L, N]`` of row numbers, -1 is padding. With state (``carried``), each column is an episode."""
    total, size = len(first), min(BLOCK, len(first))
    if not carried:
        yield np.pad(np.arange(total), (0, -total % size), constant_values=-1).reshape(-1, size)
        return
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, total))
    for group in np.split(np.argsort(-lengths, kind="stable"), range(SIDE_BY_SIDE, len(starts), SIDE_BY_SIDE)):
        t = np.arange(lengths[group].max())[:, None]
        yield np.where(t < lengths[group], starts[group] + t, -1)


def agreement_of(chosen: np.ndarray, taken: np.ndarray, spec: ActionSpec) -> dict[str, float]:
    """Compare the policy's actions in R rows, ``[R, n, A]``, with those that were taken there, ``[R, A]``.

    Return ``same_action``, the share whose classes are all those that were recorded, and ``action_distance``, the root
    mean square difference of continuous actions in units of half their range.
    """
    discrete = np.zeros(spec.width, bool)
    for key, place in spec.slices().items():
        discrete[place] = spec.parts[key].kind == "categorical"
    apart, found = np.abs(chosen - taken[:, None]), dict[str, float]()
    if discrete.any():  # one-hot, but a network's 1 may be off by a rounding error
        found["same_action"] = float((apart[..., discrete] < 0.5).all(-1).mean())
    if not discrete.all():
        found["action_distance"] = float(np.sqrt(np.square(apart[..., ~discrete], dtype=np.float64).mean()))
    return found


# ---------------------------------------------------------------- of a run's agent


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate, and the file that holds it."""

    estimate: PolicyEstimate
    files: dict[str, Path]
    """Written files by name: "estimate", or empty if it could not be written."""


def estimate(
    run: Path | str, data: DataLike | None = None, *,
    method: Method = "fqe", updates: int = 20_000, actions: Actions = "mode", draws: int = 10,
    discount: float | None = None, fqe: Mapping[str, Any] | None = None, checkpoint: Path | str | None = None,
    algo: AlgorithmConfig | None = None, device: str = "auto", seed: int | None = None, trust: bool = False,
    watch: Watch | None = None,
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
        watch: called after each update as ``watch(made, updates)``; False ends the updates.

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
    mode = mode_of(actions)
    folder = RunFolder.at(run)
    saved, given = read_saved(folder.path), {"algo": algo, "data": data}
    with trust_modules(trust):
        check_code(saved, folder.path, *(name for name, value in given.items() if value is not None))
    trained = saved_config(folder.path, NO_ENV, algo)
    own = trained.data if data is None else dataset_config(data, trained.data.storage)
    if not own.path:
        raise RunError(f"{folder.path} was not trained on recorded data. Pass those to estimate from: --data PATH.")
    config = trained.merge({"data": own, "env.clip_reward": "none"})
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    space = seen = None  # what data do not declare is the environment's; one given from Python cannot be made again
    if "env" not in saved.custom and config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            seen, space, _ = looked_at(config, None)
    with contextlib.closing(open_recorded(config.data, config.env, space, seen)) as recorded:
        if (spec := read_spec(folder)) is not None:
            check_fit(recorded, spec, NO_ENV)
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        step = step_of(path)  # a run that goes on deletes its old checkpoints
        settings = config_for(learner).merge(fqe or {}, "fqe")
        settings = settings.merge({} if discount is None else {"discount": discount})
        window = Window(batch=1, length=2, context=settings.frames - 1, context_crosses=settings.frames > 1)
        with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
            beside: dict[str, list[np.ndarray]] = {PROPENSITY: []}
            dataset = config.data.build(recorded, window=window, seed=seed, parts=counted(recorded.parts(beside)))
        for remark in recorded.remarks():
            logger.warning(f"{config.data.where}: {remark}")
    known = np.concatenate(beside[PROPENSITY]) if beside[PROPENSITY] else None
    estimator = Estimator(learner, dataset, *specs, settings, seed=seed, clipped=recorded.clipped, propensity=known)
    draws = 1 if mode == "eval" else draws
    found = estimator.estimate(
        updates, method=method, mode=mode, draws=draws, env_steps=trained.explored(step), watch=watch
    )
    content, files = {"step": step, **found.to_dict(), "checkpoint": path.name, "data": config.data.where}, {}
    try:
        with writing(folder.path):
            write_found(folder.estimate, content)
            files["estimate"] = folder.estimate
    except RunError as error:
        logger.warning(str(error))
    return EstimateReport(estimate=found, files=files)
