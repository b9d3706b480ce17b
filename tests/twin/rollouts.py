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
from settings import ROLLOUT, algo_settings, make_factory, run_settings
from story import read_log

import reverie
from reverie.algos.table import algorithm_config


def play(c, folder, steps, report):
    """A learner of rollouts in an own loop."""
    config = algorithm_config(c["algo"])().merge(algo_settings(c))
    seen, learned, first_of_life = [], [], set()
    for end in doors.ends_of_lives(c, 4 * ROLLOUT * c["envs"]):
        saved = {"folder": folder / "run"} if c["resume"] else {}
        settings = {"steps": end, "seed": 3, **saved, **run_settings(c)}
        with reverie.Collector(make_factory(c, folder), config, **settings) as collector:
            watch(collector, seen, c)
            first_of_life.add(len(seen))
            for batch in collector:
                learned.append((len(seen) - 1, batch.extras["target"].double().numpy().ravel().tolist()))
                collector.feedback(batch, collector.algo.update(batch))
            episodes = collector.pop_episodes()
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    restored = first_of_life if c["vector"] != "sync" else set()  # vectors cannot be saved: their episodes are cut
    players = check_rollouts(c, seen, rows, restored, report)
    check_epochs(c, seen, learned, report)
    doors.check_log(log, players, report)
    if not c["resume"] and not c["crashes"]:
        doors.check_scores(c, rows, players, episodes, report)


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
    ends = [row.is_terminal for row in window], [row.is_last for row in window]
    for t, true in enumerate(oracle.estimate(c["estimator"], r, *ends, v, values.DISCOUNT)):
        if true is None:
            continue
        for name, expected in (("target", true), ("advantage", true - v[t])):
            if not is_close(stored := float(estimated[name][b, t]), expected):
                report.add(name, row=window[t].key, stored=stored, true=expected)


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
