"""What a policy would earn, estimated from recorded rows alone, where there is no environment to try it in.

The estimate is that of ``algos/fqe.py``. It is of discounted returns, so it is no score and never stands among scores:
in every log its names begin with ``estimate/``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.fqe import CHOSEN, FQEConfig, Units
from reverie.core import statistics
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.randomness import reproducible
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.statistics import Estimate
from reverie.core.types import Batch, Mode, State
from reverie.data.dataset import Dataset
from reverie.data.dealer import DealerConfig
from reverie.data.replay import Replay
from reverie.data.storage import EXTRAS
from reverie.folder import RunFolder, write_found
from reverie.run.recall import actions_of

BLOCK = 1024
"""First states that are valued at a time."""
MOST = 10_000
"""Episodes that means are taken over, evenly spread: an interval of more of them would take longer than the rest."""

ENDLESS = (
    "with discount 1 episodes that were cut off have no end to their return: the longer FQE is trained, the larger its "
    "values. Give a discount below 1"
)


@dataclass(frozen=True, kw_only=True)
class PolicyEstimate:
    """What a policy would earn from where the episodes of a dataset begin, and what was earned there."""

    value: Estimate
    """The mean discounted return that FQE expects of the policy, with a 95 % interval by bootstrap over episodes. It
    says how sure so many first states make of their mean, and nothing of how far FQE is wrong."""
    recorded: Estimate
    """The mean discounted return of the episodes themselves. What an episode that was cut off would have earned
    afterwards is not in it."""
    discount: float
    """Gamma of both."""
    episodes: int
    """How many there are, of one step or more."""
    cut_off: int
    """How many of them did not end by themselves."""
    updates: int
    """Updates of FQE so far, those of earlier estimates included."""
    loss: float
    """Mean squared temporal difference in the newest of these."""
    mode: Mode
    """How actions were chosen."""

    def metrics(self) -> dict[str, float]:
        """The numbers under their names in the logs; no ends of an interval where there is none."""
        found = {
            "estimate/updates": float(self.updates),
            "estimate/loss": self.loss,
            "estimate/discount": self.discount,
        }
        for name, part in {"return": self.value, "recorded_return": self.recorded}.items():
            ends = {f"estimate/{name}_low": part.low, f"estimate/{name}_high": part.high} if part.sure else {}
            found |= {f"estimate/{name}": part.value, **ends}
        return found

    def to_dict(self) -> dict[str, Any]:
        """For a file."""
        parts = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                 for name, x in {"return": self.value, "recorded_return": self.recorded}.items()}  # fmt: skip
        kept = {name: getattr(self, name) for name in ("discount", "episodes", "cut_off", "updates", "loss")}
        what = (
            "discounted return, estimated by fitted Q evaluation from recorded data; nothing was played. low and high "
            "are of the mean over first states: how far the estimate is wrong is not in them"
        )
        return {"what": what, "actions": "mode" if self.mode == "eval" else "sample", **parts, **kept}

    def words(self) -> str:
        """Three lines, or four."""
        cut = f", {self.cut_off:,} of them cut off" if self.cut_off else ""
        endless = f"\n  {ENDLESS}" if self.discount == 1 and self.cut_off else ""
        return (
            f"estimated by FQE, nothing was played: discounted return {between(self.value)} of the policy\n"
            f"  recorded: {between(self.recorded)} in {self.episodes:,} episodes{cut}; "
            f"discount {self.discount:g}, {self.updates:,} updates\n"
            f"  intervals are those of a mean over first states: how far FQE is wrong is not in them{endless}"
        )


def between(found: Estimate) -> str:
    """A number with its interval."""
    return f"{found.value:.2f}" + (f" (95 % {found.low:.2f} to {found.high:.2f})" if found.sure else "")


class Estimator:
    """FQE of one learner's policy on one dataset. Each estimate goes on from where the one before has come to."""

    def __init__(
        self,
        algo: Algorithm,
        dataset: Dataset,
        obs_spec: ObsSpec,
        action_spec: ActionSpec,
        config: FQEConfig | None = None,
        *,
        seed: int = 0,
    ) -> None:
        """``config``: with the learner's discount and stacks of frames, :func:`config_for`, unless given.

        Raises:
            DataError: no episode has a step.
        """
        self.algo, self.dataset, self.seed = algo, dataset, seed
        self.width = action_spec.width
        config = config or config_for(algo)
        self.discount = config.discount
        first = dataset.column("is_first")
        self.begins = np.flatnonzero(first & ~np.append(first[1:], True))  # [E] rows, where a step follows
        if not len(self.begins):
            raise DataError("no episode of the dataset has a step: there is nothing to estimate from.")
        self.returns, self.cut_off = self._recorded()
        device = str(algo.device)
        self.fqe = config.build(obs_spec, action_spec, device, seed, self._units(config.discount))
        if self.fqe.preprocess.normaliser is not None:
            keys = self.fqe.preprocess.normaliser.keys
            self.fqe.preprocess.normaliser.fit(
                {key: torch.from_numpy(dataset.column(f"obs/{key}").copy()) for key in keys}
            )
        self.rows = Replay(dataset.storage, self.fqe.window, seed=seed, config=DealerConfig(online=False))
        self.rows.dealer.add(first[None], lived=False)
        self.updates = 0

    def _recorded(self) -> tuple[np.ndarray, int]:
        """The discounted return of each episode that has a step, ``[E]``, and how many were cut off."""
        first = self.dataset.column("is_first")
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(first)))
        age = np.arange(len(first)) - np.repeat(starts, lengths)  # of row t: steps since its episode began
        earned = np.where(age > 0, self.dataset.column("reward") * self.discount ** np.maximum(age - 1, 0.0), 0.0)
        stepped = np.isin(starts, self.begins)
        ended = self.dataset.column("is_terminal")[starts + lengths - 1]
        return np.add.reduceat(earned, starts)[stepped], int((stepped & ~ended).sum())

    def _units(self, discount: float) -> Units:
        """Values are learned in the deviation of the episodes' returns from their mean, and kept within bounds."""
        reward = self.dataset.column("reward")[~self.dataset.column("is_first")].astype(np.float64)
        horizon = 1 / (1 - discount) if discount < 1 else np.inf
        least, most = min(0.0, reward.min()), max(0.0, reward.max())
        return Units(
            shift=float(self.returns.mean()),
            scale=float(max(self.returns.std(), reward.std())) or 1.0,
            low=float(least * horizon) if least else 0.0,
            high=float(most * horizon) if most else 0.0,
        )

    def estimate(self, updates: int, *, mode: Mode = "eval", draws: int = 1) -> PolicyEstimate:
        """Make so many updates and say what the policy is worth. Generators of others stay where they are.

        Args:
            updates: of FQE, 1 or more.
            mode: whether the policy takes its mode or draws.
            draws: actions of each row, over which values are averaged; more than one are of use where it draws.

        Raises:
            ConfigError: there are no updates.
            DataError: the policy's actions are none of the dataset's.
            RunError: the estimate is not a number.
        """
        if updates < 1 or draws < 1:
            raise ConfigError(f"updates = {updates}, draws = {draws}: expected 1 or more of each.")
        with reproducible(self.seed + self.updates):
            chosen = actions_of(self.algo.policy, self._columns(), self.width, mode=mode, draws=draws)
            losses = torch.stack([self._update(chosen) for _ in range(updates)])
            value = np.concatenate([self._worth(rows, chosen) for rows in blocks(thinned(self.begins))])
        self.updates += updates
        if not np.isfinite(value).all():
            raise RunError("the estimate by FQE is not a finite number: take a lower learning rate (FQEConfig.lr).")
        return PolicyEstimate(
            value=statistics.estimate(statistics.mean, value),
            recorded=statistics.estimate(statistics.mean, thinned(self.returns)),
            discount=self.discount,
            episodes=len(self.begins),
            cut_off=self.cut_off,
            updates=self.updates,
            loss=float(losses[-100:].mean()),
            mode=mode,
        )

    def _columns(self) -> dict[str, np.ndarray]:
        return {name: self.dataset.column(name) for name in self.dataset.storage.specs if not name.startswith(EXTRAS)}

    def _update(self, chosen: np.ndarray) -> Tensor:
        batch = self.rows.sample()
        rows = batch.index.numpy()[:, None] + np.arange(batch.shape[1])  # [B, T]
        picked = torch.from_numpy(chosen[rows.clip(min=0)])  # [B, T, n, A]
        return self.fqe.update(replace(batch, extras={CHOSEN: picked})).metrics["loss/critic"]

    def _worth(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """What first states are worth, ``[E]``. Rows before them are of no account, so they stand for those."""
        found = self.dataset.storage.gather(torch.from_numpy(rows), 1)
        times = self.fqe.window.context + 1
        column = {name: x.expand(-1, times, *x.shape[2:]) for name, x in found.items()}
        batch = Batch(
            obs={name.removeprefix("obs/"): x for name, x in column.items() if name.startswith("obs/")},
            extras={CHOSEN: torch.from_numpy(chosen[rows])[:, None].expand(-1, times, -1, -1)},
            weight=torch.ones(len(rows)),
            index=torch.from_numpy(rows),
            **{name: column[name] for name in ("action", "reward", "is_first", "is_last", "is_terminal")},
        )
        return np.asarray(self.fqe.worth(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """The critic, how it was trained, and the generator of what it is shown."""
        return {"fqe": self.fqe.state_dict(), "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Go on from there."""
        self.fqe.load_state_dict(state["fqe"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def write_estimate(folder: RunFolder, found: PolicyEstimate, step: int, **more: Any) -> None:
    """Write estimate.json; ``step`` is the update that the policy had come to."""
    write_found(folder.estimate, {"step": step, **found.to_dict(), **more})


def config_for(algo: Algorithm) -> FQEConfig:
    """Settings of FQE for a learner: its discount, 0.99 if it has none, and its stacks of frames."""
    own = getattr(algo, "cfg", None)
    kept = {name: getattr(own, name) for name in ("discount", "frames", "frame_keys") if hasattr(own, name)}
    return FQEConfig(**kept)


def thinned(values: np.ndarray) -> np.ndarray:
    """At most :data:`MOST` of them, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, MOST).astype(np.int64))]


def blocks(rows: np.ndarray) -> Iterator[np.ndarray]:
    """A few at a time."""
    for start in range(0, len(rows), BLOCK):
        yield rows[start : start + BLOCK]
