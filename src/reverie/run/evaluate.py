"""Evaluation of a policy: whole episodes in environments separate from training."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

import numpy as np
import torch

from reverie.core.errors import count_noun
from reverie.core.logger import logger
from reverie.core.protocols import Env, Policy, Stateful
from reverie.core.specs import has_players
from reverie.core.statistics import IntervalEstimate, estimate_interval, iqm
from reverie.core.types import Mode, count_set
from reverie.run.episodes import EpisodeCounter, info_columns, means_of_columns, read_exact_rewards
from reverie.run.folder import RunFolder, read_final_result
from reverie.run.match import measure_strength, to_results, with_opponent
from reverie.run.turn import initial_state, take_turn

EvaluationPurpose = Literal["evaluation", "confirmation", "test"]
"""Seeds of evaluations: during training, to confirm ``stop_score``, and at the end, where no earlier evaluation used
it."""


class MeasurementResult(Protocol):
    """An evaluation, or an estimate from a dataset."""

    def metrics(self) -> Mapping[str, float | np.ndarray]:
        """Return the numbers, and the video if there is one, under their metric names."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for eval.json or estimate.json."""


class Estimator(Stateful, Protocol):
    """Estimates the return of a policy from a dataset, and goes on from its earlier estimates."""

    updates: int

    def estimate(self, updates: int) -> MeasurementResult:
        """Make ``updates`` gradient updates, then estimate."""


def scalars_of_result(measurement: MeasurementResult) -> dict[str, float]:
    """Return the scalar metrics of ``measurement``, without the video."""
    return {name: value for name, value in measurement.metrics().items() if not isinstance(value, np.ndarray)}


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Scores (undiscounted returns) and lengths of E episodes, the policy's mode, and frames of the first episode."""

    scores: list[float]
    lengths: list[int]
    mode: Mode
    frames: np.ndarray | None = field(default=None, repr=False)  # uint8 [T, H, W, 3]
    info: list[dict[str, float]] = field(default_factory=list)
    """Success and values that ``env.log_info`` names, for each episode by name; empty if there are none."""
    cut_off: int = 0
    """Number of episodes cut off after ``most_steps``; their scores include only these steps."""
    intervention_rate: float = 0.0
    """Share of steps in which a person took over from the policy."""
    most_steps: int | None = None
    """Steps after which episodes were cut off; None if none was."""
    strength: Mapping[str, float] = field(default_factory=dict)
    """With two players: how well the policy plays, see ``run/match.py`` and ``run/rating.py``."""

    @property
    def score(self) -> float:
        """The mean return."""
        return float(np.mean(self.scores))

    def merge(self, extra: Evaluation) -> Evaluation:
        """Return an evaluation with the episodes of ``extra`` appended."""
        scores, lengths = [*self.scores, *extra.scores], [*self.lengths, *extra.lengths]
        cut_off, most_steps = self.cut_off + extra.cut_off, self.most_steps or extra.most_steps
        info = [*self.info, *extra.info]
        rates, steps = [self.intervention_rate, extra.intervention_rate], [sum(self.lengths), sum(extra.lengths)]
        strength = {name: (x + extra.strength.get(name, x)) / 2 for name, x in self.strength.items()}
        return replace(
            self, scores=scores, lengths=lengths, info=info, cut_off=cut_off, most_steps=most_steps,
            intervention_rate=float(np.average(rates, weights=steps)), strength=strength,
        )  # fmt: skip

    def cut_text(self) -> str:
        """Format the number of episodes that were cut off, for messages; "" if none was."""
        if not self.cut_off:
            return ""
        were = "was" if self.cut_off == 1 else "were"
        return (
            f"{self.cut_off} of {count_noun(len(self.scores), 'episode')} {were} cut off at {self.most_steps:,} steps"
        )

    def info_means(self) -> dict[str, float]:
        """Return the mean of each value in ``info``, over the episodes that have it."""
        return means_of_columns(info_columns(self.info), np.ones(len(self.info)))

    def iqm(self) -> IntervalEstimate:
        """Return the interquartile mean of the scores with its 95 % interval over episodes of this policy."""
        return estimate_interval(iqm, self.scores)

    def differs_from(self, evaluation: Evaluation) -> bool:
        """Return whether the intervals of both do not overlap; False if one has too few episodes for an interval."""
        mine, theirs = self.iqm(), evaluation.iqm()
        return mine.high < theirs.low or theirs.high < mine.low  # comparisons with NaN are False

    def statistics(self) -> dict[str, float]:
        """Return statistics of the scores by name, except the mean; the interval is omitted if there is none."""
        middle = self.iqm()
        values = {"std": float(np.std(self.scores)), "median": float(np.median(self.scores)), "iqm": middle.value}
        return values | ({"iqm_low": middle.low, "iqm_high": middle.high} if middle.has_interval else {})

    def metrics(self) -> dict[str, float | np.ndarray]:
        """Return scores, lengths and the video, if there is one, under their metric names."""
        return {
            **({} if self.frames is None else {"eval/video": self.frames}),
            "eval/score": self.score,
            **{f"eval/score_{name}": value for name, value in self.statistics().items()},
            "eval/length": float(np.mean(self.lengths)),
            "eval/episodes": float(len(self.scores)),
            "eval/cut_off": float(self.cut_off),
            **({"eval/intervention_rate": self.intervention_rate} if self.intervention_rate else {}),
            **{f"eval/{name}": value for name, value in {**self.info_means(), **self.strength}.items()},
        }

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for eval.json."""
        score = {"mean": self.score, **self.statistics(), "min": min(self.scores), "max": max(self.scores)}
        per_episode = {"scores": self.scores, "lengths": self.lengths} | ({"info": self.info} if self.info else {})
        cut = {"cut_off": self.cut_off, "most_steps": self.most_steps} if self.cut_off else {}
        success = {name: rate for name, rate in self.info_means().items() if name.startswith("success_rate")}
        return {
            "episodes": len(self.scores),
            "deterministic": self.mode == "eval",
            "score": score,
            **success,
            **({"intervention_rate": self.intervention_rate} if self.intervention_rate else {}),
            **cut,
            **({"strength": {**self.strength}} if self.strength else {}),
            **per_episode,
        }


MIN_CUTOFF_STEPS, CUTOFF_FACTOR = 1000, 4
"""An episode is cut off after at least this many steps, and this many times the longest training episode."""


def episode_limit(setting: int | None, longest: int) -> int:
    """Return the number of steps after which an evaluation episode is cut off.

    ``setting``: ``eval_episode_steps``, if set; ``longest``: steps of the longest training episode.
    """
    return max(MIN_CUTOFF_STEPS, CUTOFF_FACTOR * longest) if setting is None else setting


FrameFn = Callable[[np.ndarray], np.ndarray]
"""Returns the part of a frame to keep, as a copy."""


def read_evaluation(folder: RunFolder) -> Evaluation | None:
    """Return the evaluation made at the end of training, from eval.json; None if there is none."""
    data = read_final_result(folder.evaluation)
    if data is None:
        return None
    mode: Mode = "eval" if data["deterministic"] else "explore"
    cut = {name: data[name] for name in ("cut_off", "most_steps", "intervention_rate", "strength") if name in data}
    return Evaluation(scores=data["scores"], lengths=data["lengths"], mode=mode, info=data.get("info", []), **cut)


def evaluate(
    env: Env, policy: Policy[Any], episodes: int, mode: Mode = "eval", record: FrameFn | None = None, *,
    seed: int | None = None, env_steps: int = 0, most_steps: int | None = None, opponent: Policy[Any] | None = None,
    clip: Callable[[np.ndarray], np.ndarray] | None = None,
) -> Evaluation:  # fmt: skip
    """Play ``episodes`` whole episodes and return them ordered by environment.

    The number of episodes per environment is fixed in advance: taking the first episodes that end would be biased
    toward short ones. ``record`` is called with each frame of environment 0's first episode, and its results are kept,
    if all frames have the same size. Exploration schedules continue from ``env_steps``; they matter only in mode
    ``explore``. An episode is cut off after ``most_steps``, or the ``max_episode_steps`` of ``env`` if that is more.
    None: never. If ``env`` cannot end it, its further rows count for nobody, and all environments begin new episodes
    once none plays one that counts. ``clip`` changes what the policy is told of the rewards, not the scores.

    In games of two players, ``policy`` plays against ``opponent``, half of the games in each seat; None: against random
    moves, and its strength is measured, if the solution of the game is known.
    """
    num_takeovers: Any = 0
    num_turns = 0
    max_steps = math.inf if most_steps is None else max(most_steps, env.max_episode_steps or 0)
    quota = [episodes // env.num_envs + (i < episodes % env.num_envs) for i in range(env.num_envs)]
    player, policy = policy, with_opponent(env, policy, opponent, quota, seed or 0)
    played: list[list[tuple[float, int, dict[str, float]]]] = [[] for _ in quota]
    frames: list[np.ndarray] = []
    step, counter = env.reset(seed), EpisodeCounter(env.num_envs, has_players(env.obs_spec))
    state, cut = initial_state(policy, env.num_envs, env_steps), set[tuple[int, int]]()  # environment, episode

    is_cut = np.zeros(env.num_envs, bool)  # where an episode that was cut off goes on

    def finish(numbers: Iterable[int]) -> None:
        for i in numbers:
            score, length = counter.totals[:, i].tolist()
            played[i].append((score, int(length), dict(env.summary(i))))

    while True:
        if record is not None and not played[0] and (frame := env.render()) is not None:
            frames.append(record(frame))
        rewards = read_exact_rewards(env, step)
        ended = counter.add(step, rewards)
        finish(ended[~is_cut[ended]].tolist())
        is_cut[ended] = False
        late = counter.find(~is_cut & ~step.is_last.numpy(force=True), max_steps).tolist()
        step = env.truncate(step, late) if late and env.can_end_one else step
        is_cut[late] = not env.can_end_one
        cut |= {(i, len(played[i])) for i in late}
        finish(late)
        is_done = np.array([len(mine) >= count for mine, count in zip(played, quota, strict=True)])
        if is_done.all():
            break
        if (is_done | is_cut).all():
            step, is_cut[:] = env.reset(), False
            continue
        clipped = step if clip is None else replace(step, reward=torch.from_numpy(clip(rewards)).float())
        _, step, state = take_turn(env, policy, clipped, state, mode)
        num_turns += 1
        if env.executed_actions is not None:
            num_takeovers = num_takeovers + env.executed_actions.is_takeover.sum()
    env.check()
    warn_takeovers(int(num_takeovers))
    num_steps = num_turns * env.num_envs - sum(map(len, played)) + count_set(step.is_last)
    chosen = [episode for mine, count in zip(played, quota, strict=True) for episode in mine[:count]]
    cut_off = sum(number < quota[i] for i, number in cut)
    evaluation = Evaluation(
        scores=[score for score, _, _ in chosen],
        lengths=[length for _, length, _ in chosen],
        mode=mode,
        frames=np.stack(frames) if len({frame.shape for frame in frames}) == 1 else None,
        info=[info for _, _, info in chosen] if any(info for _, _, info in chosen) else [],
        intervention_rate=int(num_takeovers) / max(1, num_steps),
        cut_off=cut_off,
        most_steps=int(max_steps) if cut_off else None,
    )
    if policy is player:
        return evaluation
    strength = measure_strength(env, player) if opponent is None and mode == "eval" else {}
    return replace(evaluation, strength=strength, **to_results(evaluation.scores, evaluation.info))


def warn_takeovers(count: int) -> None:
    """Warn if a person took over from the policy in ``count`` steps of an evaluation."""
    if count:
        logger.warning(
            f"a person took over in {count_noun(count, 'step')} of this evaluation, as their info says: "
            "this is not the policy's score"
        )
