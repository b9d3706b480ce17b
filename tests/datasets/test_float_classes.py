"""Actions that are classes but stored as floats, in whatever container, and when they are none."""

import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns, write
from formats import pydreamer_arrays, save_npz, save_table, table_columns, tianshou, transitions_of
from recordings import LIVED, joined
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

CHOICES = np.concatenate([e.choices for e in LIVED]).astype(float)
ROLES = {"obs": "observation.state", "action": "choice", "reward": "next.reward", "terminal": "next.done",
         "episode": "episode_index"}  # fmt: skip


def in_pydreamer(path):
    arrays = pydreamer_arrays(LIVED)
    action = np.zeros(len(arrays["reward"]))
    action[~arrays["reset"]] = CHOICES
    return save_npz(path / "npz", "ep000000_000000-r0-0019", arrays | {"action": action})


CONTAINERS = {
    "memory": lambda path: columns() | {"actions": CHOICES},
    "d4rl": lambda path: write(path / "a.hdf5", columns() | {"actions": CHOICES.astype("f4")}),
    "tianshou": lambda path: tianshou(path / "a.hdf5", [(20, transitions_of(LIVED) | {"act": CHOICES}, 13, 14)]),
    "table": lambda path: save_table(path / "t", table_columns() | {"choice": CHOICES.tolist()}),
    "pydreamer": in_pydreamer,
}


@pytest.mark.parametrize("container", CONTAINERS)
def test_whole_numbers_are_classes_and_that_is_said(tmp_path, container):
    options = ReadOptions(columns=ROLES if container == "table" else {})
    recorded = RecordedEpisodes(open_reader(CONTAINERS[container](tmp_path), options))
    assert recorded.about.action == spaces.Discrete(5)
    rows = joined(recorded.parts())
    assert rows["action"].sum() == (~rows["is_last"]).sum() > 10
    assert any("all of them whole numbers from 0 to 4" in line for line in recorded.remarks())


@pytest.mark.parametrize(
    ("actions", "space"),
    [
        (CHOICES[:, None], spaces.MultiDiscrete([5])),  # as integers of this shape
        (CHOICES - 1, spaces.Box(-1, 3, (), np.float64)),
        (CHOICES + 0.5, spaces.Box(0.5, 4.5, (), np.float64)),
        (CHOICES * 0, spaces.Box(-1, 1, (), np.float64)),
        (CHOICES * 100, spaces.Box(0, 400, (), np.float64)),
        (np.stack([CHOICES, CHOICES], 1), spaces.Box(0, 4, (2,), np.float64)),
    ],
)
def test_other_numbers_are_not(actions, space):
    reader = open_reader(columns() | {"actions": actions})
    assert reader.info().action == space
    is_named = (actions.ndim == 2 and actions.shape[1] > 1) or actions.max() == 400
    assert any("treated as continuous" in line for line in reader.remarks()) == is_named


def test_others_may_know_better(tmp_path):
    """The environment, d3rlpy's file itself, or a second file with fractions."""
    box, floats = spaces.Box(0, 9, (1,), np.float32), columns() | {"actions": CHOICES}
    assert RecordedEpisodes(open_reader(floats), action_space=box).spaces[1] == box
    whole = columns() | {"actions": CHOICES.astype(int)}
    assert RecordedEpisodes(open_reader(whole), action_space=box).spaces[1] == spaces.Discrete(5)
    ends = {"episode_terminals": columns()["terminals"], "discrete_action": False}
    assert isinstance(open_reader(write(tmp_path / "a.hdf5", floats | ends)).info().action, spaces.Box)
    both = open_reader([floats, columns() | {"actions": CHOICES - 0.5}]).info()
    assert both.action == spaces.Box(-0.5, 4, (), np.float64)


@pytest.mark.parametrize(
    ("actions", "remark"),
    [
        ([7, 90, 193_609], "are 3 different numbers up to 193,609"),
        ([[7], [90], [193_609]], "are 3 different numbers up to 193,609"),
        ([[0, 7], [1, 90], [2, 193_609]], "are 3 different numbers up to 193,609"),
        ([7.0, 90.0, 193_609.0], "some of them 256 or more: they are treated as continuous"),
        (range(300), ""), ([0, 5], ""), ([0.5, 300.0], ""),
    ],
)  # fmt: skip
def test_sparse_ids_of_actions_are_named(actions, remark):
    actions = np.array(actions)[np.arange(300) % len(actions)]
    data = {"observations": np.zeros((300, 1)), "actions": actions, "terminals": np.arange(300) % 30 == 29}
    reader = open_reader(data | {"rewards": np.ones(300)})
    reader.info()
    assert [line for line in reader.remarks() if remark in line] or not remark
    assert remark or not any("different numbers" in line or "or more" in line for line in reader.remarks())
