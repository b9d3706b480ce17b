"""The slow twin: plain loops that say, from the log of ``story.py`` and the settings, what rows and targets must be.

Neither torch nor reverie is imported. One function for each rule, and no vectorization: whoever doubts a difference
can check it by hand. ``c`` is always the dictionary of the factors in ``factors.py``.

What it cannot see:

* whatever needs learning to show: rates, exploration, a temperature that diverges; presets;
* networks: their values are asked from them, so a network that ignores an observation passes;
* what happens inside captured updates: ``targets`` is called beside them (``tests/kernels`` compares both);
* the order of random numbers, and the distribution of samples;
* readers of foreign files: the files that it reads are reverie's own;
* values outside of a space, and environments that break Gymnasium's rules, apart from crashes;
* images: resizing would destroy the keys.
"""

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from story import CLASSES, legal_classes, natural_goal, picture

TOLERANCE = 1e-3
TAKEOVERS = ("hil_serl", "gym_hil", "person")
"""Conventions by which a person's actions are told, and a person who acts instead of the policy."""


@dataclass(eq=False)
class Row:
    """What the log says about the row ``(who, episode, t)``."""

    key: tuple[int, int, int]
    action: list[float] | None = None  # as executed behind this row; None: none was
    reward: float = 0.0
    is_first: bool = False
    is_last: bool = False
    is_terminal: bool = False
    previous: "Row | None" = field(default=None, repr=False)
    next: "Row | None" = field(default=None, repr=False)
    may_be_cut: bool = False  # the program may have stopped here, and the open episode then counts as truncated
    is_cut: bool = False  # the episode was given up here, which is known only once the next row is there
    goal: list[int] | None = None
    chosen: list[float] | None = None  # what the policy chose behind this row, if that was replaced
    is_taken: bool = False  # a person took over behind this row


class Report:
    """The differences by kind, with the first example of each."""

    def __init__(self):
        self.counts: dict[str, int] = {}
        self.examples: dict[str, dict[str, Any]] = {}

    def add(self, kind, /, **example):
        self.counts[kind] = self.counts.get(kind, 0) + 1
        self.examples.setdefault(kind, example)


# ---------------------------------------------------------------- rows


def episodes_in(lines):
    """The lines of the steps of each episode; a resumed process overwrites those that it repeats."""
    frames = {}
    for line in lines:
        if line["kind"] == "reset":
            frames.setdefault(line["episode"], {})
        elif line["kind"] == "step":
            frames[line["episode"]][line["t"]] = line
    return {episode: [by_t[t] for t in sorted(by_t)] for episode, by_t in frames.items()}


def is_end(line):
    return line["terminated"] or line["truncated"]


def rows_in(log, c):
    """All rows by their keys: decisions, with the time limit, the repeats and the resets of the settings."""
    rows = {}
    for who, lines in log.items():
        episodes = episodes_in(lines)
        automatic = {line["episode"] for line in lines if line["kind"] == "reset" and line["is_automatic"]}
        crashed = {line["episode"] for line in lines if line["kind"] == "crash"}
        ended_hidden = False
        for episode, frames in episodes.items():
            # A vector that resets in the same step takes the action of a last row as the first one of the next episode.
            is_hidden = episode in automatic and not ended_hidden
            ended_hidden = is_hidden and bool(frames) and is_end(frames[0])
            if ended_hidden or (is_hidden and not frames):
                continue  # nobody has seen it
            newest = add_episode(rows, (who, episode), frames, int(is_hidden), c)
            if episode + 1 >= max(episodes) and may_stop(c):
                for row in backwards(newest):
                    row.may_be_cut = True
            if not newest.is_last and (episode + 1 in episodes or episode in crashed):  # given up
                newest.is_last = newest.is_cut = True
    return rows


def may_stop(c):
    """Whether rows are read of which the newest episodes may be cut: vectors cannot be saved within an episode."""
    return c["door"] in ("offline", "mixed", "files") or (c["resume"] and c["vector"] not in ("sync", "async"))


def add_episode(rows, episode, frames, t, c):
    """Add the rows of one episode from step ``t`` on; return its newest."""
    row = rows[*episode, t] = Row((*episode, t), is_first=True)
    decisions = 0
    while t < len(frames) and not row.is_last:
        begin, total, line, taken = t, 0.0, None, 0
        while t < len(frames) and taken < c["repeat"] and not (line and is_end(line)):
            line = frames[t]
            total, t, taken = total + line["reward"], t + 1, taken + 1
        if taken < c["repeat"] and not is_end(line):
            return row  # it crashed between the repeats of a decision
        decisions += 1
        over = is_end(line) or decisions == c["limit"]
        after = Row((*episode, t), reward=total, is_last=over, is_terminal=line["terminated"], previous=row)
        row.action, row.chosen = (action_of(frames[begin:t], name) for name in ("action", "chosen"))
        frames_taken = range(begin, begin + 1 if c["replaced"] == "person" else t)  # a person sees rows
        row.is_taken = c["replaced"] in TAKEOVERS and any(k % 3 == 1 for k in frames_taken)
        if c["door"] == "rollouts" and c["replaced"] == "filter":  # a part of the environment
            row.action = row.chosen
        row.next = after
        row = rows[after.key] = after
    return row


def action_of(frames, name):
    """The action of a decision: its numbers are means over the repeats, and the classes are of the last one."""
    each = [line[name] for line in frames]
    return [x if isinstance(x, int) else sum(xs) / len(xs) for x, xs in zip(each[-1], zip(*each, strict=True),
                                                                            strict=True)]  # fmt: skip


def backwards(row):
    while row is not None:
        yield row
        row = row.previous


def episode_of(row):
    """All rows of the episode of ``row``, the first one first."""
    *_, first = backwards(row)
    rows = [first]
    while rows[-1].next is not None:
        rows.append(rows[-1].next)
    return rows


def scores(rows, c):
    """Score and length of each finished episode; with two players, the first one's, who gets every other reward."""
    ends = [[*backwards(row)] for row in rows.values() if row.is_last and not row.is_first]
    signs = [-1, 1] if c["players"] == 2 else [1, 1]
    return sorted(
        (round(sum(signs[row.key[2] % 2] * row.reward for row in episode), 4), len(episode) - 1) for episode in ends
    )


def flat_action(kind, executed):
    """The stored form of an executed action: numbers in [-1, 1], then classes one-hot."""
    num_classes = len(CLASSES[kind])
    numbers = executed[: len(executed) - num_classes]
    flat = [(x + 2) / 5 * 2 - 1 for x in numbers]
    for n, k in zip(CLASSES[kind], executed[len(numbers) :], strict=True):
        flat += [float(i == int(k)) for i in range(n)]
    return flat


def mask_of(c, row):
    """The legal elements of the flat action in a row."""
    return [True] * (2 if c["action"] == "mixed" else 0) + legal_classes(*row.key, CLASSES[c["action"]])


def num_legal(c, row):
    """The number of legal classes of each choice."""
    mask, first = legal_classes(*row.key, CLASSES[c["action"]]), 0
    for n in CLASSES[c["action"]]:
        yield sum(mask[first : first + n])
        first += n


def stacked_keys(row, count):
    """Keys of the newest rows of the episode, the oldest first; the first row is repeated in front of itself."""
    rows = [row]
    while len(rows) < count:
        rows.insert(0, rows[0].previous or rows[0])
    return [row.key for row in rows]


def goal_reward(key, goal):
    return 0.0 if list(key) == list(goal) else -1.0


# ---------------------------------------------------------------- targets


def n_step(r, terminal, last, v, gamma, n):
    """Target of each row with an action, None elsewhere: rewards, then the value of the row where the sum ends."""
    targets = []
    for t in range(len(r) - 1):
        if last[t]:
            targets.append(None)
            continue
        total, weight, k = 0.0, 1.0, t
        while True:
            k += 1
            total, weight = total + weight * r[k], weight * gamma
            if terminal[k]:
                break
            if last[k] or k == len(r) - 1 or k - t == n:
                total += weight * v[k]
                break
        targets.append(total)
    return targets


def td_lambda(r, terminal, last, v, gamma, lam):
    """The weighted mean of all n-step targets (not the recursion)."""
    targets = []
    for t in range(len(r) - 1):
        if last[t]:
            targets.append(None)
            continue
        end = next(k for k in range(t + 1, len(r)) if last[k] or k == len(r) - 1)
        cut = slice(end + 1)
        each = [n_step(r[cut], terminal[cut], last[cut], v, gamma, n)[t] for n in range(1, end - t + 1)]
        weights = [(1 - lam) * lam**i for i in range(len(each) - 1)] + [lam ** (len(each) - 1)]
        targets.append(sum(w * x for w, x in zip(weights, each, strict=True)))
    return targets


def gae(r, terminal, last, v, gamma, lam):
    """The sum of discounted one-step errors up to the end of the episode or the rollout, plus the value."""
    targets = []
    for t in range(len(r) - 1):
        if last[t]:
            targets.append(None)
            continue
        total, weight, k = 0.0, 1.0, t
        while True:
            total += weight * (r[k + 1] + (0.0 if terminal[k + 1] else gamma * v[k + 1]) - v[k])
            weight *= gamma * lam
            k += 1
            if terminal[k] or last[k] or k == len(r) - 1:
                break
        targets.append(total + v[t])
    return targets


def v_trace(r, terminal, last, v, log_pi, log_mu, gamma, lam):
    """V-trace targets as sums of corrected errors: Espeholt et al. 2018, equation 1, with both bounds 1."""
    ratio = [1.0 if is_last else min(1.0, math.exp(a - b)) for a, b, is_last in zip(log_pi, log_mu, last, strict=True)]
    targets = []
    for s in range(len(r) - 1):
        if last[s]:
            targets.append(None)
            continue
        total, weight, t = v[s], 1.0, s
        while t < len(r) - 1 and not (t > s and last[t]):
            following = 0.0 if terminal[t + 1] else v[t + 1]
            total += weight * ratio[t] * (r[t + 1] + gamma * following - v[t])
            weight *= gamma * lam * ratio[t]
            t += 1
        targets.append(total)
    return targets


def estimate(estimator, *inputs):
    """Targets by the name and the number of an estimator."""
    name, number = estimator
    if name == "td0":
        return n_step(*inputs, 1)
    return {"n_step": n_step, "td_lambda": td_lambda, "gae": gae}[name](*inputs, number)


def soft_value(log_probs, values, mask):
    """Expected value and entropy of a policy over the legal classes of one choice."""
    top = max(x for x, ok in zip(log_probs, mask, strict=True) if ok)  # a class that is illegal may have all
    probs = [math.exp(x - top) if ok else 0.0 for x, ok in zip(log_probs, mask, strict=True)]
    probs = [p / sum(probs) for p in probs]
    value = sum(p * q for p, q in zip(probs, values, strict=True) if p)
    return value, -sum(p * math.log(p) for p in probs if p)


# ---------------------------------------------------------------- batches


def check_batch(batch, rows, c, report, num_free, num_acted=None):
    """Compare columns ``[B, T, ...]`` with the log; return the rows of each window, None for one that cannot be read.

    ``num_free``: rows in front that need not belong to the window. ``num_acted``: rows with an action; None: all.
    """
    story = batch["obs"]["story"]
    num_acted = story.shape[1] if num_acted is None else num_acted
    windows = []
    for b in range(len(story)):
        window = read_window(batch, b, rows, c, report, num_free, num_acted)
        if window and c["goals"]:
            window = check_goals(batch, b, window, c, report, num_free)
        windows.append(check_taught(batch, b, window, c, report, num_free) if window and has_taught(c) else window)
    return windows


def read_window(batch, b, rows, c, report, num_free, num_acted):
    story, window = batch["obs"]["story"], []
    newest = story[b, :, -1] if c["stack"] == "env" else story[b]
    keys = [tuple(int(x) for x in shown[:3]) for shown in newest]
    for t, (key, next_key) in enumerate(zip(keys, [*keys[1:], None], strict=True)):
        if (row := rows.get(key)) is None:
            return report.add("a row of no episode", b=b, t=t, shown=key)
        if row.may_be_cut and batch["last"][b, t] and not row.is_last and not (row.next and next_key == row.next.key):
            row = Row(row.key, None, row.reward, row.is_first, is_last=True, previous=row.previous)
        if t >= num_free:  # rows in front are context; before the first row they are copies of it
            check_row(batch, b, t, row, c, report, t < num_acted)
        if t > num_free and window:
            check_neighbors(window[-1], row, report)
        window.append(row)
    return window


def check_row(batch, b, t, row, c, report, is_acted):
    """One row alone."""
    where = {"b": b, "t": t, "row": row.key}
    if c["stack"] == "env":
        shown = [tuple(int(x) for x in part[:3]) for part in batch["obs"]["story"][b, t]]
        expect(report, "frames stacked wrongly", shown, stacked_keys(row, 2), **where)
    check_other_keys({key: x[b, t] for key, x in batch["obs"].items()}, row, c, report, where)
    expect(report, "is_first", bool(batch["first"][b, t]), row.is_first, **where)
    knows_end = not (row.is_cut and t == batch["reward"].shape[1] - 1)
    if c["hindsight"] == "none" and not has_taught(c):
        if not math.isclose(batch["reward"][b, t], row.reward, abs_tol=1e-4):
            report.add("reward", **where, stored=float(batch["reward"][b, t]), true=row.reward)
        for name in ("last", "terminal") if knows_end else ():
            expect(report, f"is_{name}", bool(batch[name][b, t]), getattr(row, f"is_{name}"), **where)
        if row.is_last and is_acted and knows_end and np.any(batch["action"][b, t]):
            report.add("an action where there is none", **where, stored=batch["action"][b, t].tolist())
    if c["mask"] != "none" and not row.is_terminal:
        stored = [bool(x) for x in batch["obs"]["action_mask"][b, t]] if "action_mask" in batch["obs"] else None
        expect(report, "mask of a truncated row" if row.is_last else "mask", stored, mask_of(c, row), **where)
    if row.action is not None and not row.is_last and is_acted:
        is_newest = t == batch["reward"].shape[1] - 1  # it may be sampled before the environment has answered
        check_action(batch["action"][b, t].tolist(), row, is_newest, c, report, where)
        if not is_newest and batch.get("has_tags", True):
            expect(report, "tag of a takeover", "tag" in batch and bool(batch["tag"][b, t]), row.is_taken, **where)


def has_taught(c):
    return c["taught"] != "no"


def taught_score(key, action):
    """What networks that learned from preferences say of a flat action in a row."""
    who, episode, t = key
    return ((7 * who + 13 * episode + 5 * t) % 11 - 5) / 6 + 0.03 * sum(action)


def looks_like_success(key):
    """Whether networks that learned from examples of success see one."""
    return (key[1] + key[2]) % 4 in (1, 2)


def check_taught(batch, b, window, c, report, num_free):
    """Rewards and ends of a window; return copies of its rows, told with them."""
    told = []
    for t, row in enumerate(window):
        before = window[t - 1] if t and not row.is_first else None
        new = dataclasses.replace(row)
        if c["taught"] == "success":
            new.reward = float(is_taught_success(before, row))
            new.is_last, new.is_terminal = row.is_last or new.reward == 1, row.is_terminal or new.reward == 1
        else:
            action = before and flat_action(c["action"], before.action)
            new.reward = math.tanh(taught_score(before.key, action)) if before else 0.0
        told.append(new)
        where = {"b": b, "t": t, "row": row.key}
        if t <= num_free:
            continue
        if not math.isclose(batch["reward"][b, t], new.reward, abs_tol=1e-4):
            report.add("reward", **where, stored=float(batch["reward"][b, t]), true=new.reward)
        for name in () if row.is_cut and t == len(window) - 1 else ("last", "terminal"):
            expect(report, f"is_{name}", bool(batch[name][b, t]), getattr(new, f"is_{name}"), **where)
    return told


def is_taught_success(before, row):
    """The second of two rows that look like successes, or a terminal one."""
    follows = before is not None and looks_like_success(before.key)
    return looks_like_success(row.key) and (follows or row.is_terminal)


def check_other_keys(obs, row, c, report, where):
    """The player, and the picture, in which frames of a stack lie behind each other in the channels."""
    if c["players"] == 2:
        expect(report, "player", int(obs["player"]), row.key[2] % 2, **where)
    if (stored := obs.get("picture")) is None:
        return
    keys = stacked_keys(row, 2) if c["stack"] == "env" else [row.key]
    if not np.array_equal(stored, np.concatenate([picture(*key) for key in keys], -1)):
        report.add("picture", **where, stored=stored.tolist())


def expect(report, kind, stored, true, **where):
    if stored != true:
        report.add(kind, **where, stored=stored, true=true)


def check_action(stored, row, is_newest, c, report, where):
    true = flat_action(c["action"], row.action)
    if c["door"] == "rollouts":  # on-policy learners store what they sampled, and the environment gets it clipped
        stored = [min(1.0, max(-1.0, x)) for x in stored]
    if is_newest and np.allclose(stored, flat_action(c["action"], row.chosen), atol=1e-5):
        return
    if not np.allclose(stored, true, atol=1e-5):
        report.add("action", **where, stored=stored, executed=true)


def check_neighbors(before, row, report):
    """Two rows, one behind the other, in a window."""
    if before.is_last:
        if not row.is_first:
            report.add("a window goes on behind an end", before=before.key, row=row.key)
    elif before.next is None or before.next.key != row.key:
        true = before.next and before.next.key
        report.add("rows joined that do not belong together", before=before.key, row=row.key, true=true)


def check_goals(batch, b, window, c, report, num_free):
    """Goals, rewards and ends of a window; return copies of its rows, told with their goals."""
    told, is_over = [], False
    for t, row in enumerate(window):
        goal = [int(x) for x in np.ravel(batch["obs"]["desired_goal"][b, t])[-3:]]
        where = {"b": b, "t": t, "row": row.key, "goal": goal}
        new = with_goal(row, goal, c)
        check_goal(row, goal, told[-1] if told else None, report, where)
        is_over = is_over and not row.is_first
        if is_over:
            new.is_last = True  # behind the end of a relabeled episode nothing is learned
            if not batch["last"][b, t] and t < len(window) - 1:
                report.add("rows behind a relabeled end are learned from", **where)
        else:
            if not math.isclose(batch["reward"][b, t], new.reward, abs_tol=1e-4):
                report.add("reward", **where, stored=float(batch["reward"][b, t]), true=new.reward)
            expect(report, "is_terminal", bool(batch["terminal"][b, t]), new.is_terminal, **where)
        if c["mask"] != "none" and row.is_terminal and not new.is_terminal and t >= num_free:
            stored = [bool(x) for x in batch["obs"]["action_mask"][b, t]]
            expect(report, "mask of an end that relabeling has removed", stored, mask_of(c, row), **where)
        is_over = is_over or (new.is_terminal and t >= num_free)
        told.append(new)
    return told


def with_goal(row, goal, c):
    """A copy of ``row`` as it is for an agent with this goal."""
    is_relabeled = c["hindsight"] != "none"
    new = Row(row.key, row.action, row.reward, row.is_first, row.is_last, row.is_terminal, row.previous, row.next,
              is_cut=row.is_cut, goal=goal, chosen=row.chosen)  # fmt: skip
    if is_relabeled:
        new.reward = 0.0 if row.is_first else goal_reward(row.key, goal)
    if is_relabeled and c["goals"] == "end":
        natural = natural_goal(*row.key[:2])
        is_other_end = row.is_terminal and goal_reward(row.key, natural) != 0.0
        new.is_terminal = not row.is_first and (is_other_end or goal_reward(row.key, goal) == 0.0)
        new.is_last = row.is_last or new.is_terminal
    return new


def check_goal(row, goal, before, report, where):
    """A goal is the episode's own, or was achieved in it, and stays the same within it."""
    if goal != natural_goal(*row.key[:2]) and goal not in [list(each.key) for each in episode_of(row)]:
        report.add("a goal that this episode has not achieved", **where)
    if before is not None and not row.is_first and goal != before.goal:
        report.add("the goal changes in an episode", **where, before=before.goal)
