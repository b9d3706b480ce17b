"""How good a policy is: whole episodes in environments of its own, which training never sees."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from reverie.core.errors import ConfigError
from reverie.core.protocols import Env, Policy
from reverie.core.statistics import Estimate, estimate, iqm
from reverie.core.types import Mode
from reverie.run.collect import EpisodeCounter, EpisodeStats, executed


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores and lengths of E episodes, how actions were chosen, and what the first episode looked like."""

    scores: list[float]
    lengths: list[int]
    mode: Mode
    frames: np.ndarray | None = field(default=None, repr=False)  # uint8 [T, H, W, 3]

    @property
    def score(self) -> float:
        """The mean return."""
        return float(np.mean(self.scores))

    def and_also(self, more: Evaluation) -> Evaluation:
        """With the episodes of ``more`` behind these."""
        return replace(self, scores=[*self.scores, *more.scores], lengths=[*self.lengths, *more.lengths])

    def iqm(self) -> Estimate:
        """Interquartile mean of the scores and its 95 % interval: how sure these episodes make of this policy.

        How sure several seeds make of an algorithm is another question: :mod:`reverie.training.aggregate`.
        """
        return estimate(iqm, self.scores)

    def metrics(self) -> dict[str, float]:
        """Scores and lengths under their names in the logs; no ends of the interval where there is none."""
        middle = self.iqm()
        ends = {"eval/score_iqm_low": middle.low, "eval/score_iqm_high": middle.high} if middle.sure else {}
        return {
            "eval/score": self.score,
            "eval/score_std": float(np.std(self.scores)),
            "eval/score_median": float(np.median(self.scores)),
            "eval/score_iqm": middle.value,
            **ends,
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": float(len(self.scores)),
        }


def evaluate(
    env: Env,
    policy: Policy[Any],
    episodes: int,
    mode: Mode = "eval",
    record: bool = False,
    *,
    seed: int | None = None,
) -> Evaluation:
    """Play ``episodes`` whole episodes and return them in the order environment by environment.

    Each environment plays a fixed number of episodes, fixed beforehand: to take the first ones that end would favour
    the short ones. ``record`` keeps the frames of environment 0's first episode, where it can be drawn.

    Raises:
        ConfigError: ``episodes`` is not at least 1.
    """
    if episodes < 1:
        raise ConfigError(f"episodes = {episodes}: expected at least 1 to evaluate.")
    quota = [episodes // env.num_envs + (i < episodes % env.num_envs) for i in range(env.num_envs)]
    played: list[list[EpisodeStats]] = [[] for _ in quota]
    frames: list[np.ndarray] = []
    step, state, counter = env.reset(seed), policy.initial(env.num_envs), EpisodeCounter(env.num_envs)
    while True:
        if record and not played[0] and (frame := env.render()) is not None:
            frames.append(np.array(frame))
        for i, stats in counter.add(step):
            played[i].append(stats)
        if all(len(mine) >= wanted for mine, wanted in zip(played, quota, strict=True)):
            break
        action, state = policy.act(step, state, mode)
        step = env.step(executed(action, step))
    chosen = [stats for mine, wanted in zip(played, quota, strict=True) for stats in mine[:wanted]]
    return Evaluation(
        scores=[stats.score for stats in chosen],
        lengths=[stats.length for stats in chosen],
        mode=mode,
        frames=np.stack(frames) if frames else None,
    )
