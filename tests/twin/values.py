"""What a learner's networks say of rows, asked one by one with all classes legal, and the targets that follow."""

import itertools
import math

import numpy as np
import oracle
import torch
from story import CLASSES

ASKED = ("dqn", "ddpg", "discrete_sac", "muzero")
"""Learners whose targets depend on values of rows alone, without random numbers."""
DISCOUNT = 0.9


@torch.no_grad()
def ask(algo, batch, c):
    """The learner's targets, and what its networks say of each row; None of learners that are not asked."""
    if c["memory"] != "none" or c["algo"] not in ASKED:
        return None
    objective, said, is_soft = algo.objective, np.empty(batch.reward.shape, object), c["algo"] == "discrete_sac"
    for b, t in itertools.product(*map(range, batch.reward.shape)):
        obs = row_alone(batch.obs, b, t)
        if "action_mask" in obs:
            obs["action_mask"] = torch.ones_like(obs["action_mask"])
        searched = batch.extras.get("search_value")
        said[b, t] = _say(objective, obs, c["algo"]) if searched is None else searched[b, t].item()
    stacked = None
    if c["stack"] == "algo" and c["norm"] == "none":
        name = "story" if "story" in batch.obs else "observation"
        stacked = batch.obs[name][..., :3].long().numpy()
    return {
        "targets": _targets(objective, batch).double().numpy(), "said": said, "stacked": stacked,
        "reward": batch.reward.numpy().copy(), "last": batch.is_last.numpy().copy(),
        "temperature": float(objective.temperature) if is_soft else 0.0,
        "target_entropy": float(objective.mean_target_entropy(batch, ~batch.is_last[:, :-1])) if is_soft else None,
    }  # fmt: skip


def row_alone(obs, b, t):
    return {key: x[b : b + 1, t : t + 1] for key, x in obs.items()}


def _targets(objective, batch):
    """Targets of values; MuZero's of all rows that it predicts."""
    targets = objective.targets(batch)
    return getattr(targets, "value", targets)


def _say(objective, obs, algo):
    if algo == "dqn":
        return objective.target_network(obs)[0, 0].tolist()
    if algo == "ddpg":
        return objective.target_critic(obs, objective.target_actor(obs)).item()
    return objective.actor(obs).log_probs[0, 0].tolist(), objective.target_critic(obs).amin(0)[0, 0].tolist()


def choices(c, numbers, mask):
    """The part of ``numbers`` and of ``mask`` that belongs to each choice."""
    first = 0
    for n in CLASSES[c["action"]]:
        yield numbers[first : first + n], mask[first : first + n]
        first += n


def value_and_entropy(c, said, mask):
    """Value of a row, and entropy of its policy, by loops over the legal classes."""
    if c["algo"] in ("ddpg", "muzero"):
        return said, 0.0
    if c["algo"] == "dqn":
        best = [max(q for q, ok in zip(*choice, strict=True) if ok) for choice in choices(c, said, mask)]
        return sum(best) / len(best), 0.0
    pairs = zip(choices(c, said[0], mask), choices(c, said[1], mask), strict=True)
    each = [oracle.soft_value(logs, q, legal) for (logs, legal), (q, _) in pairs]
    return sum(v for v, _ in each), sum(h for _, h in each)


def check_targets(c, columns, answers, b, window, report):
    """Targets of one window."""
    said, alpha = answers["said"], answers["temperature"]
    window = window[len(window) - said.shape[1] :]  # the preprocessor has removed rows in front
    check_stacks(c, answers, b, window, report)
    masks = [oracle.mask_of(c, row) if c["mask"] != "none" else [True] * 99 for row in window]
    value, entropy = zip(*(value_and_entropy(c, said[b, t], masks[t]) for t in range(len(window))), strict=True)
    soft = [v + alpha * h for v, h in zip(value, entropy, strict=True)]
    r = rewards_of(c, answers, b, window)
    ends = [row.is_terminal for row in window], [row.is_last for row in window]
    discount = -DISCOUNT if c["players"] == 2 else DISCOUNT
    num_rows = min(len(window) - 1, answers["targets"].shape[1])
    if c["algo"] == "muzero":  # its predictions do not go beyond an end
        num_rows = min(num_rows, next((t for t, is_last in enumerate(ends[1]) if is_last), num_rows))
    for t in range(num_rows):
        # The entropy of each row on the way belongs to the return, but not that of the row that acts.
        way = [x + (alpha * entropy[k - 1] if k - 1 > t else 0.0) for k, x in enumerate(r)]
        true = oracle.estimate(c["estimator"], way, *ends, soft, discount)[t]
        learned = float(answers["targets"][b, t])
        if true is None or answers["last"][b, t] or abs(learned - true) <= oracle.TOLERANCE * max(1, abs(true)):
            continue
        marks = "".join(("T" if row.is_terminal else "L") if row.is_last else "." for row in window)
        report.add("target", b=b, t=t, rows=[row.key for row in window], ends=marks, learned=learned, true=true)


def check_entropy(c, answers, windows, report):
    """The target entropy of a batch: a policy that may only choose between legal classes must be able to reach it."""
    if not all(windows):
        return
    acting = [row for b, window in enumerate(windows) for t, row in enumerate(window[-answers["last"].shape[1] : -1])
              if not answers["last"][b, t]]  # fmt: skip
    counts = [[*oracle.num_legal(c, row)] if c["mask"] != "none" else CLASSES[c["action"]] for row in acting]
    true = 0.98 * np.mean([sum(map(math.log, each)) for each in counts]) if counts else 0.0
    if abs(answers["target_entropy"] - true) > oracle.TOLERANCE:
        report.add("target entropy", learned=answers["target_entropy"], true=float(true))


def check_stacks(c, answers, b, window, report):
    if answers["stacked"] is None or c["hindsight"] != "none":
        return
    for t, row in enumerate(window):
        shown = [tuple(key) for key in answers["stacked"][b, t].tolist()]
        oracle.expect(report, "frames stacked wrongly", shown, oracle.stacked_keys(row, 2), row=row.key)


def rewards_of(c, answers, b, window):
    if c["scale"] == "std":
        return [float(x) for x in answers["reward"][b]]  # the statistic is another test's
    return [row.reward * (0.5 if c["scale"] == "factor" else 1.0) for row in window]
