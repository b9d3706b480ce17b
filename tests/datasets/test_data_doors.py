"""Whatever a recording declares is read at every door by which recordings come in, or a remark or an error names it."""

import itertools
import json

import numpy as np
import pytest

from data_doors import (
    CHANCES,
    DOORS,
    FRAMES,
    LAST,
    MASKS,
    SHUFFLED,
    TASKS,
    TERMINAL,
    TEXTS,
    TRUNCATED,
    Content,
    encoded,
)
from reverie.datasets.formats import FORMATS

TERMINALS = ("terminal", "terminals", "terminated", "terminateds", "terminations", "is_terminal")
TRUNCATIONS = ("truncated", "truncateds", "truncations", "timeout", "timeouts", "is_truncated", "time_limit")
ENDS = ("done", "dones", "next.done", "is_last", "end", "episode_terminals")
TIMES = {"timestamp": SHUFFLED * 0.5, "charttime": [f"2026-03-30 0{hour}:00" for hour in SHUFFLED], "seq": SHUFFLED,
         "trade_date": [f"3{k % 2}/{k // 2 + 1:02}/2026" for k in SHUFFLED]}  # fmt: skip
DONE, FAILED = ({"success": success, "task": TEXTS[0]} for success in (True, False))


def ends_are_read(key, info, rows, plain):
    """A flag changes the ends of episodes, and is no observation."""
    differs = any(not np.array_equal(rows[flag], plain[flag]) for flag in ("is_last", "is_terminal"))
    return differs and f"obs/{key}" not in rows


def masks_are_read(key, info, rows, plain):
    return any((rows[column][0] == MASKS[0]).all() for column in rows if column.startswith("obs") and "mask" in column)


def tasks_are_read(key, info, rows, plain):
    return all(task in f"{info.text} {set(rows.get('obs/task', ()))}" for task in TEXTS)


def names_are_read(key, info, rows, plain):
    return ("x", "v") in info.element_names.values()


def images_are_read(key, info, rows, plain):
    found = rows.get(f"obs/{key}", rows.get("obs"))
    return found is not None and found.shape[1:] == FRAMES.shape[1:] and (found[0] == FRAMES[0]).all()


def propensities_are_read(key, info, rows, plain):
    return info.has_propensity and np.isin(np.round(rows[key], 6), np.round([*CHANCES, 1], 6)).all()


def is_observed(key, info, rows, plain):
    return f"obs/{key}" in rows


def beside(key, values, **how):
    return key, Content({key: np.asarray(values)}, **how)


def attributes(key, inner=""):
    """Each episode has its task; ``task`` is the only attribute that LeRobot knows."""
    values = [json.dumps({inner: text}) if inner else text for text in TEXTS]
    return key, Content(attributes=tuple({key: v, "task": text} for v, text in zip(values, TEXTS, strict=True)))


DECLARED = [
    *(("b", "end", *beside(key, TERMINAL, has_ends=False), ends_are_read) for key in TERMINALS),
    *(("b", "end", *beside(key, TRUNCATED, has_ends=False), ends_are_read) for key in TRUNCATIONS),
    *(("b", "end", *beside(key, LAST, has_ends=False), ends_are_read) for key in ENDS),
    *(("b", "mask", *beside(key, MASKS), masks_are_read) for key in ("action_mask", "infos/action_mask")),
    *(("m", "mask", *beside(key, MASKS), masks_are_read) for key in ("action_mask", "action_masks")),
    *(("m", "statistics", "VecNormalize", Content({"statistics": np.full(8, known)}), is_observed)
      for known in (True, False)),
    ("o", "mask", "action_mask", Content(observed={"action_mask": MASKS}), masks_are_read),
    ("b", "task", *beside("language_instruction", TASKS), tasks_are_read),
    *(("a", "task", *attributes(key), tasks_are_read) for key in ("task", "language_instruction", "lang")),
    ("a", "task", *attributes("problem_info", "language_instruction"), tasks_are_read),
    ("a", "task", *attributes("ep_meta", "lang"), tasks_are_read),
    ("a", "failure", "success", Content(attributes=(DONE, FAILED)), is_observed),
    ("n", "names", "state", Content(names=("x", "v")), names_are_read),
    *(("b", "time", *beside(key, values), is_observed) for key, values in TIMES.items()),
    *((place, "image", key, Content(observed={key: encoded(padded=place == "p")}), images_are_read)
      for place in "ip" for key in ("camera", "obs")),
    ("b", "propensity", *beside("propensity", CHANCES), propensities_are_read),
]  # fmt: skip
"""Where it stands, what it is, its name, a content that has it, and a function that tells whether it is read."""


@pytest.mark.parametrize("name", DOORS)
def test_what_a_recording_declares_is_read_or_told(name, tmp_path):
    door, numbers = DOORS[name], itertools.count()

    def read(content):
        folder = tmp_path / str(next(numbers))
        folder.mkdir()
        return door.read(folder, content)

    info, plain, words = read(Content(has_ends=False))
    assert info is not None, words
    assert "does not grow" not in read(Content({"timestamp": np.arange(8) * 0.5}))[2]
    silent = []
    for place, kind, key, content, is_read in DECLARED:
        is_other_image = kind == "image" and (key == "obs") == ("o" in door.places)
        if place not in door.places or key in door.own or is_other_image:
            continue
        info, rows, words = read(content)
        is_named = key.partition("/")[0] in words or (key in rows and key not in plain)
        if kind == "time" and door.compares_times:
            is_named = f"{key}' does not grow" in words
        if not (is_named or (info is not None and is_read(key, info, rows, plain))):
            silent.append(f"{kind} {key}: {sorted(rows)} {words[:200]}")
    assert not silent, "\n".join(silent)


def test_each_format_has_a_door():
    modules = {entry.target.partition(":")[0].rpartition(".")[2] for entry in FORMATS}
    assert modules <= {door.module for door in DOORS.values()}
