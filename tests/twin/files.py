"""The files: the store of an own loop, and every format written from it, read back as the log says."""

import contextlib

import doors
import numpy as np
import oracle
from settings import algo_settings, make_factory, run_settings
from story import read_log

import reverie
from reverie.algos.table import algorithm_config
from reverie.core.rows import iter_episodes
from reverie.datasets.config import DatasetConfig
from reverie.datasets.convert import write_dataset
from reverie.datasets.dataset import open_recorded
from reverie.datasets.format_detection import open_reader

TARGETS = {"d4rl": "d.hdf5", "parquet": "t.parquet", "robomimic": "r.hdf5", "tianshou": "t.hdf5"}


def play(c, folder, steps, report):
    """Collect, convert, and read both."""
    config = algorithm_config(c["algo"])().merge(algo_settings(c))
    for end in doors.ends_of_lives(c, steps):
        if c["resume"] == "killed" and end < steps:
            doors.kill_in_between(c, folder, end, {"replay_ratio": 0.02})
            continue
        settings = {"seed": 3, "folder": folder / "run", **run_settings(c, folder), "steps": end, "replay_ratio": 0.02}
        with reverie.Collector(make_factory(c, folder), config, **settings) as collector:
            for _ in collector:
                pass  # nothing is learned
    rows = oracle.rows_in(read_log(folder / "log"), c)
    stored = read(folder / "run", c, rows, report)
    check_complete(stored, rows, report)
    if c["format"] == "store":
        return
    with open_reader(str(folder / "run")) as reader:
        written = write_dataset(reader, str(folder / TARGETS.get(c["format"], c["format"])), c["format"])
    copied = read(written.path, c, rows, report, has_tags=c["format"] == "minari")
    begun = [{key for key in keys if rows[key].is_first} for keys in (stored, copied)]
    if begun[0] != begun[1]:
        report.add("episodes lost or added by a copy", stored=len(begun[0]), copied=len(begun[1]))


def read(path, c, rows, report, has_tags=True):
    """Compare the rows of a file with the log; return their keys. ``has_tags``: whether it stores takeovers."""
    keys = []
    with contextlib.closing(open_recorded(DatasetConfig(path=str(path)))) as recorded:
        for episode in iter_episodes(recorded.parts()):
            columns = episode_columns(episode) | {"has_tags": has_tags}
            n = columns["reward"].shape[1] - (not episode["is_last"][-1])
            [window] = oracle.check_batch(columns, rows, c, report, 0, n)
            keys += [row.key for row in window or ()]
    if len(set(keys)) < len(keys):
        report.add("rows twice in a file", count=len(keys) - len(set(keys)))
    return keys


def episode_columns(episode):
    """The columns of an episode as a batch of one window; formats give the one observation names of their own."""
    obs = {name[4:]: np.asarray(x, np.float64)[None] for name, x in episode.items() if name.startswith("obs/")}
    story = next(name for name in ("story", "observation", "state", "obs", *obs) if name in obs)
    flags = {name: episode[f"is_{name}"][None] for name in ("first", "last", "terminal")}
    obs = {("story" if name == story else name): x for name, x in obs.items()}
    tags = {"tag": episode["is_intervention"][None]} if "is_intervention" in episode else {}
    return {"obs": obs, "action": episode["action"][None], "reward": episode["reward"][None], **flags, **tags}


def check_complete(stored, rows, report):
    """No row is missing but the newest of each environment, which the loop has not stored yet."""
    players = {key[0] for key in stored}
    newest = {who: max(key for key in rows if key[0] == who) for who in players}
    missing = [key for key, row in rows.items() if key[0] in players and key not in {*stored, newest[key[0]]}
               and (row.next or row.previous) and not row.may_be_cut]  # fmt: skip
    if missing:
        report.add("rows missing in the store", count=len(missing), first=missing[:3])
