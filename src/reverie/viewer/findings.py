"""Sentences about a run that its numbers carry: each is true by computation, or is not said.

A finding is a function from facts to a sentence, or None. A comparison word needs two intervals that are apart. No
finding names a cause. Shares have Wilson's interval, means over episodes a bootstrap interval.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from reverie.core.errors import count_noun
from reverie.core.statistics import Share, estimate_interval, mean

MIN_EPISODES, MIN_DREAMS, MIN_EVALUATIONS, MIN_FAILURES = 10, 20, 4, 10
"""Fewer of them carry no finding."""
SAME_ENDING = 0.6
"""Fraction of the failures with the same ending, from which on a finding says so."""
NEAR = 0.05
"""Largest distance of an evaluation from a snapshot, as a fraction of the run, for a finding about both."""
BOTH_SIDES = "The agent plays both sides; returns are the first player's. "
"""Of a game of two players."""
Facts = Mapping[str, Any]
"""Numbers about a run: see ``report.py: collect_facts``."""


class Finding(NamedTuple):
    """A sentence, and one that supports it."""

    title: str
    support: str = ""


class Mean(NamedTuple):
    """The mean of ``n`` values, and its bootstrap interval of 95 %."""

    value: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: Sequence[float]) -> Mean:
        """Return the mean of ``values``."""
        scores = np.asarray(values, np.float64)
        estimate = estimate_interval(mean, scores)
        return cls(float(scores.mean()), float(estimate.low), float(estimate.high), len(scores))

    @property
    def interval(self) -> tuple[float, float]:
        """Return the lower and upper end; NaN for fewer than five values."""
        return self.low, self.high

    def __str__(self) -> str:
        ends = f" [{format_number(self.low)}, {format_number(self.high)}]" if math.isfinite(self.low) else ""
        return f"{format_number(self.value)}{ends}"


def format_number(x: float) -> str:
    """Return a number: without decimals from 100 on, with one from 10 on, else with three digits."""
    return f"{x:,.0f}" if abs(x) >= 100 else f"{x:.1f}" if abs(x) >= 10 else f"{x:.3g}"


def _are_apart(a: tuple[float, float], b: tuple[float, float]) -> bool:
    """Return whether two intervals do not overlap."""
    return a[1] < b[0] or b[1] < a[0]


def _not_evaluated(facts: Facts) -> Finding | None:
    if facts.get("score") or facts.get("evaluations") or facts.get("offline") or not facts.get("training"):
        return None
    recent = [score for _, score in facts["training"]][-20:]
    title = f"Not evaluated: the last {count_noun(len(recent), 'logged mean')} of training episodes average "
    return Finding(f"{title}{format_number(float(np.mean(recent)))}.")


def _no_better_than_random(facts: Facts) -> Finding | None:
    score, random = facts.get("score"), facts.get("random")
    if not score or not random or min(score.n, random.n) < MIN_EPISODES:
        return None
    is_apart = _are_apart(score.interval, random.interval)
    if is_apart and score.value > random.value:
        return None
    return Finding(
        f"{'Worse' if is_apart else 'No better'} than random actions: {format_number(score.value)} against "
        f"{format_number(random.value)}.",
        f"Mean returns of {score.n} and {random.n} episodes; their intervals, {score} and {random}, "
        f"{'do not overlap' if is_apart else 'overlap'}.",
    )


def _better_before(facts: Facts) -> Finding | None:
    rows = facts.get("evaluations", ())
    if len(rows) < MIN_EVALUATIONS or rows[-1][2].n < MIN_EPISODES:
        return None
    best, last = max(rows, key=lambda row: row[1]), rows[-1]
    widen = 1 + math.log10(len(rows))  # the best of many evaluations is a lucky one
    intervals = [(x - widen * (x - m.low), x + widen * (m.high - x)) for _, x, m in (best, last)]
    if best is last or not _are_apart(*intervals):
        return None
    return Finding(
        f"It was better before: {format_number(best[1])} at step {best[0]:,}, {format_number(last[1])} at the end.",
        f"The best and the last of {len(rows)} evaluations of {last[2].n} episodes each.",
    )


def _dreams_lag(facts: Facts) -> Finding | None:
    rows, evaluations = facts.get("snapshots", ()), facts.get("evaluations", ())
    if len(rows) < 2 or not evaluations or rows[-1][1].total < MIN_DREAMS:
        return None
    last_step, last = rows[-1]
    final = evaluations[-1][2]
    for step, share in rows[:-1]:
        near = min(evaluations, key=lambda row: abs(row[0] - step))
        fractions = (share.right / share.total, last.right / last.total)
        is_near = abs(near[0] - step) <= NEAR * last_step
        scores_as_well = is_near and (near[1] >= final.value or not _are_apart(near[2].interval, final.interval))
        if scores_as_well and fractions[0] < fractions[1] and _are_apart(share.interval, last.interval):
            return Finding(
                f"At step {near[0]:,} the agent scores {format_number(near[1])}, and {share.right} of {share.total} "
                f"dreams are right; at step {last_step:,}, {last.right} of {last.total} are.",
                "A dream is right if each of its rows equals the episode that the agent plays.",
            )
    return None


def _critic_is_off(facts: Facts) -> Finding | None:
    critic = facts.get("critic")
    if not critic or critic["error"].n < MIN_EPISODES or critic["error"].low <= 0 <= critic["error"].high:
        return None
    expected, actual = (format_number(critic[name]) for name in ("expected", "actual"))
    return Finding(
        f"The critic expects a return of {expected}, and {actual} comes.",
        f"These are discounted returns from the first rows of {critic['error'].n} episodes that ended.",
    )


def _same_ending(facts: Facts) -> Finding | None:
    failures = facts.get("failures", ())
    if len(failures) < MIN_FAILURES:
        return None
    labels: Counter[str] = Counter(failures)
    label, count = labels.most_common(1)[0]
    if count < SAME_ENDING * len(failures):
        return None
    return Finding(f"{count} of {len(failures)} failures end the same way: {label}.")


def _tasks_differ(facts: Facts) -> Finding | None:
    tasks: Mapping[str, Share] = facts.get("tasks", {})
    if len(tasks) < 2 or min(share.total for share in tasks.values()) < MIN_EPISODES:
        return None
    for task, share in sorted(tasks.items(), key=lambda item: item[1].right / item[1].total):
        others = [x for name, x in tasks.items() if name != task]
        if all(_are_apart(share.interval, x.interval) for x in others):
            rates = sorted({round(100 * x.right / x.total) for x in others})
            rest = f"{rates[0]} to {rates[-1]}" if len(rates) > 1 else f"{rates[0]}"
            return Finding(
                f"It reaches the goal of task {task} in {100 * share.right / share.total:.0f} % of its episodes, that "
                f"of the other{'s' * (len(others) > 1)} in {rest} %.",
                f"{min(x.total for x in tasks.values())} or more episodes of each task.",
            )
    return None


def _against_data(facts: Facts) -> Finding | None:
    data, score, estimate = (facts.get(name) for name in ("data", "score", "estimate"))
    if score and data and "mean" in data and facts.get("offline"):
        return Finding(
            f"A mean return of {score} over {count_noun(score.n, 'episode')}, where the data's {data['episodes']:,} "
            f"episodes have a mean of {format_number(data['mean'])} and a best of {format_number(data['best'])}.",
            _one_seed(score),
        )
    if score or not estimate:
        return None
    return Finding(
        f"{estimate['method']} estimates a discounted return of {estimate['value']}, where the recorded episodes have "
        f"{estimate['recorded']}.",
        f"An estimate from {estimate['value'].n:,} recorded episodes alone, with a discount of "
        f"{estimate['discount']:g}; its interval leaves out the error of the estimate itself.",
    )


def _dreams_right(facts: Facts) -> Finding | None:
    share, random = facts.get("dreams"), facts.get("random_dreams")
    if not share or share.total < MIN_DREAMS:
        return None
    under_random = f", {random} under random ones" if random else ""
    return Finding(
        f"Of dreams of up to {facts['horizon']} steps, {share} are right under its own actions{under_random}.",
        "Intervals are those of Wilson, 95 %.",
    )


def _mean_return(facts: Facts) -> Finding | None:
    if not (score := facts.get("score")) or _against_data(facts):
        return None
    trained = f", after {facts['step']:,} {facts['unit']}" if facts["step"] else ""
    return Finding(
        f"A mean return of {score} over {count_noun(score.n, 'episode')}{trained}.",
        f"{facts.get('source', '')}{BOTH_SIDES * ('players' in facts)}{_one_seed(score)}",
    )


def _one_seed(score: Mean) -> str:
    over = "The interval of 95 % is over episodes. " if math.isfinite(score.low) else ""
    return f"{over}One seed: nothing here says how others would do."


def _only_data(facts: Facts) -> Finding | None:
    data = facts.get("data")
    if not data or facts.get("score") or facts.get("estimate"):
        return None
    returns = f", with a mean return of {format_number(data['mean'])}" if "mean" in data else ""
    return Finding(f"Not evaluated: it learned from {data['episodes']:,} episodes{returns}.")


ORDER: tuple[Callable[[Facts], Finding | None], ...] = (
    _not_evaluated, _no_better_than_random, _better_before, _dreams_lag, _critic_is_off, _same_ending, _tasks_differ,
    _against_data, _mean_return, _only_data, _dreams_right,
)  # fmt: skip
"""The first finding that is one is the title of a report."""


def find(facts: Facts) -> list[Finding]:
    """Return the findings that the facts carry, the most important one first."""
    return [finding for fn in ORDER if (finding := fn(facts)) is not None]
