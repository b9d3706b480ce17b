"""The on-policy door: rollouts equal the log and follow each other, estimates equal their sums, and each row is learned
from once in each epoch."""

import itertools
from collections import Counter

import doors
import numpy as np
import oracle
import torch
import values
from columns import to_columns
from frozen import Frozen
from settings import ROLLOUT, algo_settings, make_factory, run_settings
from story import read_log

import reverie
from reverie.algos.table import algorithm_config


def play(c, folder, steps, report):
    """A learner of rollouts in an own loop."""
    if c["algo"] == "impala":
        return play_queue(c, folder, steps, report)
    config = algorithm_config(c["algo"])().merge(algo_settings(c))
    seen, learned, first_of_life = [], [], set()
    for end in doors.ends_of_lives(c, 4 * ROLLOUT * c["envs"]):
        saved = {"folder": folder / "run"} if c["resume"] else {}
        settings = {"steps": end, "seed": 3, **saved, **run_settings(c, folder)}
        with reverie.Collector(make_factory(c, folder), config, **settings) as collector:
            watch(collector, seen, c)
            first_of_life.add(len(seen))
            frozen = Frozen(collector.algo, c["frozen"], report)
            for number, batch in enumerate(collector):
                learned.append((len(seen) - 1, batch.extras["target"].double().numpy().ravel().tolist()))
                collector.feedback(batch, collector.algo.update(batch))
                frozen.follow(number + 1)
            frozen.check()
            episodes = collector.pop_episodes()
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    restored = first_of_life if c["vector"] != "sync" else set()  # vectors cannot be saved: their episodes are cut
    players = check_rollouts(c, seen, rows, restored, report)
    check_epochs(c, seen, learned, report)
    doors.check_log(log, players, report)
    if not c["resume"] and not c["crashes"]:
        doors.check_scores(c, rows, players, episodes, report)


def play_queue(c, folder, steps, report):
    """IMPALA: windows from a queue, and targets that its behavior policy's log-probabilities correct."""
    config, batches = algorithm_config("impala")().merge(algo_settings(c)), []
    for end in doors.ends_of_lives(c, 4 * ROLLOUT * c["envs"]):
        saved = {"folder": folder / "run"} if c["resume"] else {}
        settings = {"steps": end, "seed": 3, **saved, **run_settings(c, folder)}
        with reverie.Collector(make_factory(c, folder), config, **settings) as collector:
            algo = collector.algo
            for batch in collector:
                batches.append((to_columns(batch), ask_queue(algo, batch), not batches))
                collector.feedback(batch, algo.update(batch))
            episodes = collector.pop_episodes()
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    players = check_queue(c, batches, rows, algo.window.num_free_rows, report)
    doors.check_log(log, players, report)
    if not c["resume"] and not c["crashes"]:
        doors.check_scores(c, rows, players, episodes, report)


@torch.no_grad()
def ask_queue(algo, batch):
    """The learner's targets, and value and log-probability of the taken action of each row, asked alone."""
    objective, batch = algo.objective, algo.prepare_batch(batch)
    targets, losses = [], objective.losses
    vars(objective)["losses"] = lambda rows, *args, **more: (
        targets.append(rows.extras["target"].double().numpy()) or (losses(rows, *args, **more))
    )
    objective(batch)
    del vars(objective)["losses"]
    log_pi = np.zeros(batch.reward.shape)
    for b, t in itertools.product(*map(range, log_pi.shape)):
        is_first, action = (x[b : b + 1, t : t + 1] for x in (batch.is_first, batch.action))
        output = objective.network(values.row_alone(batch.obs, b, t), is_first, None)
        log_pi[b, t] = 0.0 if batch.is_last[b, t] else output.policy.log_prob(action).item()
    return {"targets": targets[0], "v": values_alone(objective, batch), "log_pi": log_pi,
            "log_mu": batch.extras["log_prob"].double().numpy(), "reward": batch.reward.double().numpy()}  # fmt: skip


def check_queue(c, batches, rows, num_free, report):
    """Return the instances whose rows were learned from, each once."""
    if not batches:
        report.add("nothing was learned")
    learned = Counter()
    for columns, answers, is_first in batches:
        for b, window in enumerate(oracle.check_batch(columns, rows, c, report, num_free)):
            if window is not None:
                window = window[num_free - 1 :]  # the row before the rollout is learned from, too
                is_begun = window[0] is not window[1] and not window[1].is_first
                if is_begun:
                    oracle.check_neighbors(*window[:2], report)
                learned.update(row.key for row in window[not is_begun : -1] if not row.is_last)
                check_v_trace(c, answers, b, window, is_begun, is_first, report)
    if twice := [key for key, count in learned.items() if count > 1]:
        report.add("rows of a queue that are learned from twice", rows=twice[:3])
    return {key[0] for key in learned}


def check_v_trace(c, answers, b, window, is_begun, is_first, report):
    v, log_pi, log_mu, r = (answers[name][b, -len(window) :].tolist() for name in ("v", "log_pi", "log_mu", "reward"))
    if c["scale"] != "std":
        r = [row.reward * (0.5 if c["scale"] == "factor" else 1.0) for row in window]
    last = [ends_estimates(row) for row in window]
    last[0] |= not is_begun
    true = oracle.v_trace(r, [row.is_terminal for row in window], last, v, log_pi, log_mu, values.DISCOUNT, 0.9)
    for t, expected in enumerate(true):
        if expected is None:
            continue
        stored = float(answers["targets"][b, t - len(window) + 1])
        if not is_close(stored, expected):
            report.add("target", row=window[t].key, stored=stored, true=expected)
        if is_first and c["norm"] == "none" and not is_close(log_mu[t], log_pi[t]):  # no weight has changed yet
            report.add("log-probability of the behavior policy", row=window[t].key, stored=log_mu[t], true=log_pi[t])


def watch(collector, seen, c):
    """Note each whole rollout, as it is and as it was estimated, and what the network says of each row alone."""
    objective, source = collector.algo.objective, collector.experiment.source
    estimates, prepare, newest = objective.estimates, source.prepare_fn, []

    def estimates_noted(batch, *args):
        estimated = estimates(batch, *args)
        alone = None if c["memory"] != "none" else values_alone(objective, batch)
        numbers = {name: x.double().numpy().copy() for name, x in estimated.items()}
        newest[:] = [(numbers, alone, batch.reward.double().numpy().copy())]
        return estimated

    def prepare_noted(batch):
        columns = to_columns(batch)
        prepared = prepare(batch)
        seen.append((columns, *newest[0]))
        return prepared

    vars(objective)["estimates"] = estimates_noted
    source.prepare_fn = prepare_noted


@torch.no_grad()
def values_alone(objective, batch):
    """The value of each row, asked alone."""
    alone = np.zeros(batch.reward.shape)
    for b, t in itertools.product(*map(range, alone.shape)):
        is_first = batch.is_first[b : b + 1, t : t + 1]
        alone[b, t] = objective.network(values.row_alone(batch.obs, b, t), is_first, None).values[0, 0, 0].item()
    return alone


def check_rollouts(c, seen, rows, restored, report):
    """Return the instances whose rows were learned from."""
    if not seen:
        report.add("nothing was learned")
    newest, players = {}, set()
    for number, (columns, estimated, alone, reward) in enumerate(seen):
        num_free = columns["reward"].shape[1] - ROLLOUT - 1
        windows = oracle.check_batch(columns, rows, c, report, num_free, num_free + ROLLOUT)
        for b, window in enumerate(windows):
            if window is None:
                continue
            players.add(window[0].key[0])
            if b in newest and number not in restored and window[num_free] is not newest[b]:
                report.add("rollouts that do not follow each other", before=newest[b].key, row=window[num_free].key)
            newest[b] = window[-1]
            if alone is not None:
                check_estimates(c, estimated, alone[b].tolist(), reward[b].tolist(), b, window[num_free:], report)
    return players


def check_estimates(c, estimated, v, reward, b, window, report):
    for t, row in enumerate(window[:-1]):
        if not row.is_last and not is_close(value := float(estimated["value"][b, t]), v[t]):
            report.add("the value of a row is not that of the row alone", row=row.key, stored=value, alone=v[t])
    r = reward if c["scale"] == "std" else [row.reward * (0.5 if c["scale"] == "factor" else 1.0) for row in window]
    ends = [row.is_terminal for row in window], [ends_estimates(row) for row in window]
    for t, true in enumerate(oracle.estimate(c["estimator"], r, *ends, v, values.DISCOUNT)):
        if true is None:
            continue
        for name, expected in (("target", true), ("advantage", true - v[t])):
            if not is_close(stored := float(estimated[name][b, t]), expected):
                report.add(name, row=window[t].key, stored=stored, true=expected)


def ends_estimates(row):
    """Whether sums stop at a row: the action behind it is nobody's, or a person's."""
    return row.is_last or row.is_taken


def is_close(x, y):
    return abs(x - y) <= oracle.TOLERANCE * max(1, abs(y))


def check_epochs(c, seen, learned, report):
    """The targets of a rollout are those of its minibatches, in each epoch once."""
    epochs = c["epochs"] if c["algo"] == "ppo" else 1
    for number, (_, estimated, *_) in enumerate(seen):
        true = Counter(np.round(estimated["target"].ravel(), 4).tolist())
        given = Counter()
        for n, targets in learned:
            if n == number:
                given.update(np.round(targets, 4).tolist())
        if given != Counter({target: count * epochs for target, count in true.items()}):
            report.add("rows of a rollout that are not learned from once in each epoch", rollout=number,
                       rows=sum(true.values()), learned=sum(given.values()))  # fmt: skip
