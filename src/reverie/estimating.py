"""Estimate the return of a policy from recorded rows alone, where there is no environment to evaluate it in.

The estimator is fitted Q evaluation (FQE, ``algos/fqe.py``). It estimates discounted returns, which are not scores: all
its names in the logs begin with ``estimate/``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.fqe import CHOSEN, FQEConfig, Units
from reverie.core import statistics
from reverie.core.errors import ConfigError, RunError
from reverie.core.randomness import reproducible
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec
from reverie.core.statistics import IntervalEstimate
from reverie.core.types import Batch, Mode, State
from reverie.core.words import plural
from reverie.folder import RunFolder, write_found
from reverie.nn.returns_to_go import returns_to_go
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.dataset import Dataset
from reverie.replay.replay import Replay
from reverie.run.recall import Agreement, actions_of, agreement_of

Watch = Callable[[int, int], bool]
"""Told after each update of an estimate how many were made and how many there will be; False ends the estimate."""

BLOCK = 1024
"""First states per forward pass."""
ROUNDING = 1e-6
"""Standard deviation, relative to the largest number, below which numbers are taken to be equal."""
MAX_EPISODES = 10_000
"""Most episodes in a mean, evenly spread: the bootstrap over more would take longer than everything else."""

LITTLE = 0.01
"""Share of the discount's weight beyond truncations that is too small to be named."""

BEYOND = (
    "not comparable as they are: recorded returns end where episodes were truncated, the policy's goes on, and "
    "{:.0%} of the discount's weight lies beyond"
)
ENDLESS = (
    "with discount 1, the returns of truncated episodes have no bound: the longer FQE trains, the larger its values. "
    "Use a discount below 1"
)


@dataclass(frozen=True, kw_only=True)
class PolicyEstimate:
    """Estimated return of a policy from the first states of a dataset's episodes, and the returns recorded there."""

    value: IntervalEstimate
    """Mean discounted return that FQE expects of the policy, with a 95 % bootstrap interval over episodes. The interval
    is that of a mean over these first states; it does not contain the error of FQE itself."""
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
    """FQE's loss, the mean squared temporal-difference error, over the last 100 of these."""
    mode: Mode
    """How the policy chose actions: "eval" most likely, "explore" drawn."""
    clipped: str = "none"
    """How the rewards of both returns had been clipped when they were collected; "none" if they are the true ones."""
    beyond: float = 0.0
    """Share of the discount's weight, (1 - gamma) sum_t gamma^t, that lies beyond the recorded steps, in [0, 1]: the
    mean over episodes of gamma^n after n steps that a truncation ended, and of 0 for terminal episodes."""
    agreement: Agreement = field(default_factory=Agreement)
    """How near the policy's actions are to the recorded ones. Of actions far from them the data say little, and the
    estimate of a policy that takes them may be wrong by any amount."""

    def metrics(self) -> dict[str, float]:
        """Return the numbers under their names in the logs, without the ends of an interval that is unknown."""
        found = {
            "estimate/updates": float(self.updates),
            "estimate/loss": self.loss,
            "estimate/discount": self.discount,
        }
        found |= {f"estimate/{name}": part for name, part in self.near().items()}
        for name, part in {"return": self.value, "recorded_return": self.recorded}.items():
            ends = {f"estimate/{name}_low": part.low, f"estimate/{name}_high": part.high} if part.sure else {}
            found |= {f"estimate/{name}": part.value, **ends}
        return found

    def near(self) -> dict[str, float]:
        """Return the numbers of the agreement that are known, under their names in logs and files."""
        found = {"same_action": self.agreement.same, "action_distance": self.agreement.distance}
        return {name: value for name, value in found.items() if value is not None}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for estimate.json."""
        parts = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                 for name, x in {"return": self.value, "recorded_return": self.recorded}.items()}  # fmt: skip
        names = ("discount", "episodes", "cut_off", "beyond", "updates", "loss", "clipped")
        kept = {name: getattr(self, name) for name in names}
        what = (
            "discounted return, estimated by fitted Q evaluation from recorded data; no episodes were played. low and "
            "high are the interval of the mean over first states and do not include the error of the estimate itself. "
            "recorded_return ends where episodes were truncated and return does not: beyond is the share of the "
            "discount's weight that lies there"
        )
        return {"what": what, "actions": "mode" if self.mode == "eval" else "sample", **parts, **kept, **self.near()}

    def words(self) -> str:
        """Format the estimate for the terminal, in three to six lines."""
        same, distance = self.agreement
        near = "" if same is None else f"\n  the policy takes the recorded action in {same:.0%} of the steps"
        if distance is not None:
            near += (
                f"\n  the policy's actions differ from the recorded ones by {distance:.2f} of half their range (RMS)"
            )
        cut = f", {self.cut_off:,} of them truncated" if self.cut_off else ""
        clipped = "" if self.clipped == "none" else f", of rewards clipped by {self.clipped}"
        endless = f"\n  {ENDLESS}" if self.discount == 1 and self.cut_off else ""
        beyond = f"\n  {BEYOND.format(self.beyond)}" if self.beyond >= LITTLE and not endless else ""
        sure = "intervals are for the mean over first states and do not include the error of FQE itself"
        return (
            f"estimated by FQE, no episodes played: discounted return of the policy {between(self.value)}\n"
            f"  recorded: {between(self.recorded)} in {plural(self.episodes, 'episode')}{cut}; "
            f"discount {self.discount:g}, {plural(self.updates, 'update')}{clipped}\n"
            f"  {sure}{near}{beyond}{endless}"
        )


def between(found: IntervalEstimate) -> str:
    """Format a number with its interval."""
    return f"{found.value:.2f}" + (f" (95 % {found.low:.2f} to {found.high:.2f})" if found.sure else "")


class Estimator:
    """FQE of one learner's policy on one dataset. Each estimate continues training where the one before stopped."""

    def __init__(
        self,
        algo: Algorithm,
        dataset: Dataset,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        config: FQEConfig | None = None,
        *,
        seed: int = 0,
        rewards: np.ndarray | None = None,
        clipped: str = "none",
    ) -> None:
        """Prepare FQE. ``config`` None: :func:`config_for`, with the learner's discount and frame stacks.

        ``rewards``: the true rewards of all rows ``[n]``, if the dataset holds clipped ones. ``clipped``: how rewards
        had been clipped when they were collected, so that nobody knows the true ones.
        """
        self.algo, self.dataset, self.seed = algo, dataset, seed
        self.action_spec, self.rewards, self.clipped = action_spec, rewards, clipped
        config = config or config_for(algo)
        self.discount = config.discount
        first = dataset.column("is_first")
        self.begins = np.flatnonzero(first & ~np.append(first[1:], True))  # [E] rows that a step follows
        self.returns, self.cut_off, self.beyond = self._recorded()
        device = str(algo.device)
        self.fqe = config.build(obs_spec, action_spec, device, seed, self._units(config.discount))
        if self.fqe.preprocess.normaliser is not None:
            columns = {key: f"obs/{key}" for key in self.fqe.preprocess.normaliser.keys}
            rows = dataset.storage.read(0, dataset.count, list(columns.values()), copy=False)
            self.fqe.preprocess.normaliser.fit({key: torch.from_numpy(rows[at][0]) for key, at in columns.items()})
        self.rows = Replay(dataset.storage, self.fqe.window, seed=seed, config=BatchSamplerConfig(online=False))
        self.rows.batch_sampler.add(first[None], dataset.column("is_last")[None], lived=False)
        self.updates = 0

    def _recorded(self) -> tuple[np.ndarray, int, float]:
        """Return the discounted return of each episode with a step, ``[E]``, and of these ``cut_off`` and ``beyond``.

        Both are described in :class:`PolicyEstimate`.
        """
        first = self.dataset.column("is_first")
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(first)))
        age = np.arange(len(first)) - np.repeat(starts, lengths)  # of row t: steps since its episode began
        earned = np.where(age > 0, self._rewards() * self.discount ** np.maximum(age - 1, 0.0), 0.0)
        stepped = np.isin(starts, self.begins)
        ended = self.dataset.column("is_terminal")[starts + lengths - 1]
        beyond = np.where(ended, 0.0, self.discount ** (lengths - 1.0))[stepped].mean()
        return np.add.reduceat(earned, starts)[stepped], int((stepped & ~ended).sum()), float(beyond)

    def _rewards(self) -> np.ndarray:
        """Return the true rewards of all rows, ``[n]``."""
        return self.dataset.column("reward") if self.rewards is None else self.rewards

    def _units(self, discount: float) -> Units:
        """Return FQE's units, and bounds of all values: values relative to the returns' mean and to a scale.

        The scale is the largest standard deviation of the episodes' returns, of rewards, and of recorded returns from
        each row on. Where all of them are equal, it is their magnitude.
        """
        first, rewards = self.dataset.column("is_first"), self._rewards()
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
        self, updates: int, *, mode: Mode = "eval", draws: int = 1, env_steps: int = 0, watch: Watch | None = None
    ) -> PolicyEstimate:
        """Make ``updates`` updates of FQE and return the estimate. No random generator outside is changed.

        Args:
            updates: gradient updates of FQE, at least 1.
            mode: "eval" takes the policy's most likely action, "explore" draws.
            draws: actions per row, whose values are averaged; more than one make sense only if they are drawn.
            env_steps: where schedules of exploration begin; they matter only if actions are drawn.
            watch: follows the updates, and may end them early: the estimate is then that after those made.

        Raises:
            ConfigError: ``updates`` or ``draws`` is below 1.
            DataError: the policy's actions are not of the dataset's kind.
            RunError: the estimate is not finite.
        """
        if updates < 1 or draws < 1:
            raise ConfigError(f"updates = {updates}, draws = {draws}: expected at least 1 of each.")
        with reproducible(self.seed + self.updates):
            how: dict[str, Any] = {"mode": mode, "draws": draws, "env_steps": env_steps}
            chosen = actions_of(self.algo.policy, self._columns(), self.action_spec.width, **how)
            losses = torch.stack(list(self._updates(updates, chosen, watch)))
            value = np.concatenate([self._worth(rows, chosen) for rows in blocks(thinned(self.begins))])
        self.updates += len(losses)
        if not np.isfinite(value).all():
            raise RunError("the estimate by FQE is not a finite number. Use a lower discount or fewer updates.")
        return PolicyEstimate(
            value=statistics.estimate(statistics.mean, value),
            recorded=statistics.estimate(statistics.mean, thinned(self.returns)),
            discount=self.discount,
            episodes=len(self.begins),
            cut_off=self.cut_off,
            updates=self.updates,
            loss=float(losses[-100:].mean()) * self.fqe.scale**2,
            mode=mode,
            clipped=self.clipped,
            beyond=self.beyond,
            agreement=self._agreement(chosen),
        )

    def _updates(self, updates: int, chosen: np.ndarray, watch: Watch | None) -> Iterator[Tensor]:
        """Make the updates and yield the loss of each."""
        for made in range(1, updates + 1):
            yield self._update(chosen)
            if watch is not None and not watch(made, updates):
                return

    def _agreement(self, chosen: np.ndarray) -> Agreement:
        """Compare the policy's actions in all rows ``[n, draws, A]`` with those of the rows that a step follows."""
        stepped = ~np.append(self.dataset.column("is_first")[1:], True)
        return agreement_of(chosen[stepped], self.dataset.column("action")[stepped], self.action_spec)

    def _columns(self) -> dict[str, np.ndarray]:
        return {name: self.dataset.column(name) for name in self.dataset.storage.specs if not name.startswith(EXTRAS)}

    def _update(self, chosen: np.ndarray) -> Tensor:
        batch = self.rows.sample()
        rows = (batch.index.numpy()[:, None] + np.arange(batch.shape[1])).clip(min=0)  # [B, T]
        picked = torch.from_numpy(chosen[rows])  # [B, T, n, A]
        reward = batch.reward if self.rewards is None else torch.from_numpy(self.rewards[rows])
        return self.fqe.update(replace(batch, reward=reward, extras={CHOSEN: picked})).metrics["loss/critic"]

    def _worth(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the values of first states, ``[E]``. Context rows repeat the first state; they have no effect."""
        found = self.dataset.storage.gather(torch.from_numpy(rows), 1)
        times = self.fqe.window.context + 1
        column = {name: x.expand(-1, times, *x.shape[2:]) for name, x in found.items()}
        picked = torch.from_numpy(chosen[rows])[:, None].expand(-1, times, -1, -1)  # [E, T, n, A]
        batch = Batch.of_columns(column, torch.from_numpy(rows), extras={CHOSEN: picked})
        return np.asarray(self.fqe.worth(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """Return the critic, its optimiser, and the state of its sampler."""
        return {"fqe": self.fqe.state_dict(), "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore that state."""
        self.fqe.load_state_dict(state["fqe"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def write_estimate(folder: RunFolder, found: PolicyEstimate, step: int, **more: Any) -> None:
    """Write estimate.json. ``step``: updates that the policy had made."""
    write_found(folder.estimate, {"step": step, **found.to_dict(), **more})


def config_for(algo: Algorithm) -> FQEConfig:
    """Return FQE's settings for a learner: the same discount (0.99 if it has none) and frame stacks."""
    own = getattr(algo, "cfg", None)
    kept = {name: getattr(own, name) for name in ("discount", "frames", "frame_keys") if hasattr(own, name)}
    return FQEConfig(**kept)


def thinned(values: np.ndarray) -> np.ndarray:
    """Return at most :data:`MAX_EPISODES` of the values, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, MAX_EPISODES).astype(np.int64))]


def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """Yield blocks of :data:`BLOCK` rows."""
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
