"""The ways into reverie: each plays a combination of factors, and reports how it differs from ``oracle.py``."""

import contextlib
import logging
import math
import multiprocessing
import os
import re
import shutil
import signal
import tempfile
import traceback
from pathlib import Path
from unittest.mock import patch

import factors
import files
import numpy as np
import oracle
import played
import rollouts
import values
from columns import to_columns
from frozen import Freezer, Frozen
from settings import algo_settings, make_factory, run_settings
from story import read_log
from taught import known_rewards, relabeled_batches
from weights import Weights

import reverie
from reverie.algos.table import algorithm_config
from reverie.core.errors import ReverieError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.replay.buffer import ReplayBuffer

STEPS = 70


def play(c, steps=STEPS):
    """Play a whole combination, from ``factors.complete``, and return the report."""
    folder = Path(tempfile.mkdtemp(prefix="twin-"))
    report, pattern = oracle.Report(), factors.refusal(c)
    kernels = use_only_kernels() if c["kernels"] == "off" else contextlib.nullcontext()
    try:
        with kernels, known_rewards(), open(os.devnull, "w") as null, contextlib.redirect_stdout(null):
            DOORS[c["door"]](c, folder, steps, report)
        if pattern is not None:
            report.add("not refused", expected=pattern)
    except ReverieError as error:
        if pattern is None or not re.search(pattern, str(error)):
            report.add("refused", error=f"{type(error).__name__}: {str(error)[:400]}", expected=pattern)
    except Exception:
        report.add("an error", trace=traceback.format_exc()[-1500:])
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return report


def ends_of_lives(c, steps):
    """Env steps at which the process ends: once in the middle if the run is resumed."""
    return [steps // 2, steps] if c["resume"] else [steps]


def kill_in_between(c, folder, steps, more):
    """Play an own loop in another process, which is killed ``steps`` // 2 env steps after its only checkpoint."""
    process = multiprocessing.get_context("spawn").Process(target=live_and_die, args=(c, folder, steps, more))
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL


def live_and_die(c, folder, steps, more):
    """Save once, and end without any last words."""
    logging.disable(logging.WARNING)
    config, settings = algorithm_config(c["algo"])().merge(algo_settings(c)), run_settings(c, folder) | more
    kernels = use_only_kernels() if c["kernels"] == "off" else contextlib.nullcontext()
    with kernels, known_rewards(), reverie.Collector(
        make_factory(c, folder), config, steps=steps, seed=3, folder=folder / "run", **settings
    ) as collector:  # fmt: skip
        is_saved = False
        while not collector.clock.done:
            for _ in range(collector.collect()):
                batch = collector.sample()
                collector.feedback(batch, collector.algo.update(batch))
            if not is_saved and collector.clock.env_steps > steps // 2:
                collector.save()
                is_saved = True
        collector.experiment.replay.store.flush()  # also rows behind the checkpoint, which nobody needs
        os.kill(os.getpid(), signal.SIGKILL)


# ---------------------------------------------------------------- an own loop


def play_collector(c, folder, steps, report):
    """``reverie.Collector`` with a learner, whose targets are compared, too."""
    factory, config = make_factory(c, folder), algorithm_config(c["algo"])().merge(algo_settings(c))
    sampled, evaluation, weights = [], None, Weights(report)
    for end in ends_of_lives(c, steps):
        saved = {"folder": folder / "run"} if c["resume"] else {}
        if c["resume"] == "killed" and end < steps:
            kill_in_between(c, folder, end, {})
            continue
        with reverie.Collector(factory, config, steps=end, seed=3, **saved, **run_settings(c, folder)) as collector:
            algo, has_queue = collector.algo, keeps_all(c, collector.experiment.replay)
            frozen = Frozen(algo, c["frozen"], report)
            if c["sampling"] == "priority" and c["resume"] != "killed" and c["door"] != "actors":
                weights.watch(collector.experiment.replay)
            for number, batch in enumerate(collector):
                columns = to_columns(batch)
                is_asked = number % 2 == 0  # one row at a time takes as long as all the rest
                sampled.append((columns, values.ask(algo, algo.prepare_batch(batch), c) if is_asked else None))
                collector.feedback(batch, algo.update(batch))
                frozen.follow(number + 1)
                if c["evaluate"] != "no" and evaluation is None and number > 10:
                    evaluation = collector.evaluate(1)
            frozen.check()
            episodes = collector.pop_episodes()
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    learned = check_samples(sampled, rows, c, report, algo.window.num_free_rows)
    players = {key[0] for key in (rows if c["door"] == "actors" else learned)}
    check_log(log, players, report)
    if has_queue:
        check_queue(rows, learned, players, report)
    if not c["resume"] and not c["crashes"]:
        check_scores(c, rows, players, episodes, report)
        check_statistics(c, rows, players, algo, report)
    if evaluation is not None:
        check_evaluation(c, rows, players, evaluation, report)


def check_samples(sampled, rows, c, report, num_free):
    """Compare all sampled windows with the log; return the keys of the rows whose transitions are learned from."""
    if not sampled and c["door"] != "actors":  # all of their rows can come at once, when hardly an update is due
        report.add("nothing was learned")
    learned = set()
    for columns, answers in sampled:
        windows = oracle.check_batch(columns, rows, c, report, num_free)
        if answers is not None and answers["target_entropy"] is not None:
            values.check_entropy(c, answers, windows, report)
        for b, window in enumerate(windows):
            if window is not None:
                learned.update(row.key for row in window[num_free:-1] if not row.is_last)
                if answers is not None:
                    values.check_targets(c, columns, answers, b, window, report)
    return learned


def check_log(log, players, report):
    """What the log alone shows: actions that were illegal where they were executed."""
    for who in players:
        for line in log[who]:
            if not line.get("is_legal", True):
                report.add("an illegal action was executed", who=who, **line)


def keeps_all(c, replay):
    """Whether the online queue promises that each transition is learned from."""
    if c["door"] == "actors":
        return False
    has_relabeled_ends = (c["hindsight"] != "none" and c["goals"] == "end") or c["taught"] == "success"
    return replay.batch_sampler.online is not None and c["capacity"] > 60 and not c["resume"] and not has_relabeled_ends


def check_queue(rows, learned, players, report):
    """Each transition was learned from at least once, but the newest ones, which may still be in the queue."""
    settled = {key for who in players for key in sorted(key for key in rows if key[0] == who)[:-12]}
    missed = [key for key in settled if rows[key].next is not None and key not in learned]
    if missed:
        report.add("transitions that were never learned from", count=len(missed), first=sorted(missed)[:3])


def check_scores(c, rows, players, episodes, report):
    """Scores and lengths of finished episodes."""
    if c["vector"].startswith("torch"):
        return  # means of rows on a device
    missing = oracle.scores({key: row for key, row in rows.items() if key[0] in players}, c)
    for score, length in zip(episodes.score.tolist(), episodes.length.tolist(), strict=True):
        near = next((x for x in missing if x[1] == length and abs(x[0] - score) < 1e-2), None)
        if near is None:
            report.add("a score of no episode", score=score, length=length)
        else:
            missing.remove(near)
    if len(missing) > 2 * c["envs"] and c["door"] != "actors":  # the newest rows may not have been counted
        report.add("episodes that were not counted", count=len(missing), first=missing[:3])


def check_statistics(c, rows, players, algo, report):
    """Each row was counted once; only the newest row of each environment may be missing. The log's rows are added by
    ``math.fsum``, which rounds once."""
    normalizer = getattr(getattr(algo, "preprocess", None), "normalizer", None)
    # Some rows of actors have not arrived, and environments in JAX do not tell which rows are their newest.
    if normalizer is None or c["door"] == "actors" or c["vector"] == "torch_jax":
        return
    newest = {max(key for key in rows if key[0] == who) for who in players}
    counted = [row for key, row in rows.items() if key[0] in players and (row.previous or row.next or key in newest)]
    name, part = normalizer.each[-1]
    if name not in ("story", "observation"):
        return
    mean, std = (float(np.ravel(x)[-1]) for x in part.mean_and_std())
    shown = [[(3 * row.key[2] + row.key[1]) % 7 for row in some]
             for some in (counted, [row for row in counted if row.key not in newest])]  # fmt: skip
    true = [moments(values) for values in shown]
    stored = (normalizer.count, mean, std)
    if not any(np.allclose(stored, each, rtol=0, atol=1e-9) for each in true):
        report.add("statistics", stored=stored, true=true)


def moments(values):
    """Count, mean and population standard deviation."""
    mean = math.fsum(values) / len(values)
    return len(values), mean, math.sqrt(math.fsum((x - mean) ** 2 for x in values) / len(values))


def check_evaluation(c, rows, players, evaluation, report):
    """Episodes of the instances that are not training's."""
    true = oracle.scores({key: row for key, row in rows.items() if key[0] not in players}, c)
    for score, length in zip(evaluation.scores, evaluation.lengths, strict=True):
        if not any(n == length and abs(x - score) < 1e-3 for x, n in true):
            report.add("an evaluation of no episode", score=score, length=length, some=true[:4])


# ---------------------------------------------------------------- reverie.train


def play_train(c, folder, steps, report):
    """``reverie.train``, whose batches share memory and whose updates are captured: rows only."""
    with sampled_windows(c) as sampled:
        settings = train_settings(c, folder)
        for end in ends_of_lives(c, steps):
            reverie.train(c["algo"], env=make_factory(c, folder), run=folder / "run", steps=end, seed=3,
                          callbacks=[Freezer(c["frozen"], report)], **settings)  # fmt: skip
    check_train(c, folder, sampled, report)


def play_data(c, folder, steps, report):
    """A run whose rows another one learns from, alone or together with its own."""
    first, second = train_settings(c, folder), train_settings(c, folder)
    first["replay"] = {name: value for name, value in first["replay"].items() if name != "hindsight"}
    first["replay_ratio"] = 0.02  # its rows count, not what it learns
    factory = make_factory(c, folder)
    reverie.train(c["algo"], env=factory, run=folder / "run", steps=steps, seed=3, **first)
    if c["door"] == "offline":
        length = {"updates": 20, "experience": "offline"}
        online = ("learning_starts", "random_steps", "replay_ratio")
        second = {name: x for name, x in second.items() if name not in online}
    else:
        length = {"steps": steps, "experience": "mixed(0.5)"}
    with sampled_windows(c) as sampled:
        reverie.train(c["algo"], env=factory, run=folder / "second", seed=4, data=str(folder / "run"), **length,
                      callbacks=[Freezer(c["frozen"], report)], **second)  # fmt: skip
    check_train(c, folder, sampled, report)


def train_settings(c, folder):
    settings = run_settings(c, folder) | {"console": False, "tensorboard": False, "threads": 1, "device": "cpu"}
    settings |= {"eval_episodes": 0} | ({"schedule.log_every": 5} if c["frozen"] != "never" else {})
    settings |= {"size": "nano", "replay_ratio": 0.15} if c["algo"] == "dreamer_v3" else {}
    return settings | {f"algo.{name}": value for name, value in algo_settings(c).items()}


@contextlib.contextmanager
def sampled_windows(c):
    """Yield a list to which all windows go that are learned from, copied, as batches share memory."""
    sampled, sample, is_taught, num_free = [], ReplayBuffer.sample, c["taught"] != "no", 0

    def note(batch):
        sampled.append((to_columns(batch), num_free))

    def sample_noted(self, *args, **more):
        nonlocal num_free
        batch, num_free = sample(self, *args, **more), self.window.num_free_rows
        if not is_taught:
            note(batch)
        return batch

    with patch.object(ReplayBuffer, "sample", sample_noted), relabeled_batches(note):
        yield sampled


def check_train(c, folder, sampled, report):
    rows = oracle.rows_in(log := read_log(folder / "log"), c)
    num_free = sampled[0][1] if sampled else 0
    learned = check_samples([(columns, None) for columns, _ in sampled], rows, c, report, num_free)
    check_log(log, {key[0] for key in learned}, report)


DOORS = {
    "collector": play_collector, "actors": play_collector, "train": play_train, "offline": play_data,
    "mixed": play_data, "rollouts": rollouts.play, "files": files.play,
    "record": played.play_record, "evaluate": played.play_evaluate, "reach": played.play_reach,
}  # fmt: skip
