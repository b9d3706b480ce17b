"""What a person's help and answers bring, for `table.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from words import grid

LIMIT = 10_000
"""Env steps after which a run of `human.py` ends without success."""
UNTIL = {
    "two rooms, `sac`": ("half", "alone"),
    "the same, batches of all rows": ("uniform", ""),
    "the same, a penalty as the only reward (RLIF)": ("penalty", ""),
    "two rooms, `dqn` with nine directions": ("dqn", "dqn_alone"),
    "MountainCarContinuous, `sac`": ("hill", "hill_alone"),
    "FetchReach, `sac`": ("reach", "reach_alone"),
    "the same, without a penalty for takeovers": ("reach_unpenalized", ""),
    "FetchReach, `dqn` with 27 directions": ("reach_dqn", "reach_dqn_alone"),
}
"""Tasks whose runs end with success, and their systems with help and alone."""
IMITATED = {"two rooms, `bc`": ("bc", "bc_alone"), "FetchReach, `bc`": ("reach_bc", "reach_bc_alone")}
"""Those of which a share of episodes succeeds."""
CLUMSY = {"ppo": "in no loss", "ppo_stored": "in the losses, like others", "ppo_unreported": "reported by nothing",
          "ppo_alone": "none"}  # fmt: skip
"""What happens to the rows of a clumsy person, by system."""

Result = Mapping[str, Any]


def human_table(result: Result) -> list[str]:
    """Three sentences; steps until success with help and alone."""
    found = by_system(result["rows"])
    tasks = [pair for pair in UNTIL.values() if pair[1]]
    better = sum(median(found[helped], "steps") < median(found[alone], "steps") for helped, alone in tasks)
    waited = sum(row["steps"] is None for row in found["reach_unpenalized"])
    seeds = len(found["half"])
    rows = [[title, *(steps_of(found.get(system, [])) for system in pair)] for title, pair in UNTIL.items()]
    return [
        f"A script took over where the agent made no progress; only success was rewarded, {seeds} seeds ran each, and "
        f"evaluations were without the script.",
        f"With help, the median run reached 90 % success earlier in {better} of {len(tasks)} comparisons.",
        f"The exception: without a penalty for takeovers, {waited} of {seeds} agents in FetchReach learned to wait for "
        "the script.",
        "",
        *grid(["env steps until 90 % succeed", "with help", "alone"], rows),
    ]


def imitation_table(result: Result) -> list[str]:
    """Success of imitation; scores beside a clumsy person."""
    found = by_system(result["rows"])
    imitated = [[title, *(shares_of(found[system]) for system in pair)] for title, pair in IMITATED.items()]
    clumsy = [[title, span([row["score"] for row in found[system]])] for system, title in CLUMSY.items()]
    return [
        *grid(["success after one demonstration", "with help (HG-DAgger)", "alone"], imitated),
        "",
        *grid(["PPO beside a clumsy person, whose rows are", "score, at best -0.6"], clumsy),
    ]


def percent(rows: Sequence[Result], *keys: str) -> str:
    """The lowest and the highest of each of the keys in percent."""
    return "; ".join(f"{span([100 * row[key] for row in rows], '.0f')} %" for key in keys) if rows else "-"


def by_kind(result: Result) -> dict[tuple[str, int], list[Result]]:
    """The rows of each kind and number of answers."""
    out: dict[tuple[str, int], list[Result]] = {}
    for row in result["rows"]:
        out.setdefault((row["kind"], row["answers"]), []).append(row)
    return out


def taught_table(result: Result) -> list[str]:
    """Three sentences; what rewards of answers order right."""
    kinds = by_kind(result)
    preferences = [[str(n), *(percent(kinds.get((kind, n), []), "distinct") for kind in PREFERENCES)]
                   for n in (50, 100, 200, 800)]  # fmt: skip
    agents = {title: [row["score"] for row in kinds[key]] for title, key in AGENTS.items()}
    failed = {title: sum(score < FAILED for score in scores) for title, scores in agents.items()}
    return [
        "True returns answered instead of a person; three seeds each.",
        f"200 answers order {percent(kinds['preferences', 200], 'distinct')} of the clearly different pairs of clips "
        f"right, and 80 labels find {percent(kinds['success', 80], 'recall')} of all successes.",
        f"The exception: of {len(agents['the environment'])} SAC agents that learned from imagined clips, "
        f"{failed['200 answers about imagined clips']} failed, and {failed['the environment']} of those with the true "
        "reward.",
        "",
        *grid(["preferences", "pairs that were chosen", "random pairs", "imagined clips"], preferences),
    ]


def success_table(result: Result) -> list[str]:
    """What rewards of labels find; returns of agents that learned from answers."""
    kinds = by_kind(result)
    success = [[str(n), *(percent(kinds[kind, n], "precision", "recall") for kind in SUCCESS)] for n in (40, 80)]
    agents = [[title, span([row["score"] for row in kinds[key]], ".0f")] for title, key in AGENTS.items()]
    return [
        *grid(["labels of success", "chosen rows: precision; recall", "random rows"], success),
        "",
        *grid(["SAC after 8,000 env steps of Pendulum, reward from", "true return"], agents),
    ]


FAILED = -250
"""Return of an agent that does not swing up and balance in each episode."""
PREFERENCES = ("preferences", "preferences, random", "preferences, imagined")
SUCCESS = ("success", "success, random")
AGENTS = {"200 answers about recorded clips": ("agent", 200), "200 answers about imagined clips":
          ("agent, imagined", 200), "the environment": ("agent", 0)}  # fmt: skip


def by_system(rows: Sequence[Result]) -> dict[str, list[Result]]:
    """The rows of each system."""
    out: dict[str, list[Result]] = {}
    for row in rows:
        out.setdefault(row["system"], []).append(row)
    return out


def median(rows: Sequence[Result], key: str) -> float:
    """The middle one; without success, more than the limit."""
    return sorted(LIMIT + 1 if row[key] is None else row[key] for row in rows)[len(rows) // 2]


def steps_of(rows: Sequence[Result]) -> str:
    """The steps of all seeds, the fewest first."""
    steps = sorted(LIMIT + 1 if row["steps"] is None else row["steps"] for row in rows)
    return ", ".join(f"> {LIMIT:,}" if n > LIMIT else f"{n:,}" for n in steps) or "-"


def shares_of(rows: Sequence[Result]) -> str:
    """The shares of all seeds in percent."""
    return ", ".join(f"{100 * share:.0f}" for share in sorted(row["success"] for row in rows)) + " %"


def span(values: Sequence[float], form: str = ".2f") -> str:
    """The lowest and the highest."""
    ends = list(dict.fromkeys(format(x, form) for x in (min(values), max(values))))
    return " to ".join(ends)
