"""Data without rewards: they are read, checked and copied, and refused where rewards are needed."""

import numpy as np
import pytest

from d4rl_files import columns, write
from formats import save_table
from recordings import LIVED, check, copied, expected, joined
from reverie.algos.bc import BCConfig
from reverie.algos.decision_transformer import DecisionTransformerConfig
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.gail import GAILConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.tdmpc2 import TDMPC2Config
from reverie.cli.data import data_command
from reverie.core.errors import DataError
from reverie.datasets.convert import relabel_rewards, subsample
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import ReadOptions, Subset


def unrewarded():
    return {name: values for name, values in columns().items() if name != "rewards"}


def opened(path, **options):
    reader = open_reader(path, ReadOptions(**options))
    assert not reader.info().has_rewards
    return reader


def zeros(rows):
    return rows | {"reward": np.zeros(len(rows["reward"]))}


def test_a_row_of_a_table_is_an_episode_if_its_lists_show_it(tmp_path):
    """Vectors are lists too."""
    names = {"obs": "o", "action": "a"}
    episodes = {"o": [e.observations.tolist() for e in LIVED], "a": [e.choices.tolist() for e in LIVED]}
    with opened(save_table(tmp_path / "episodes", episodes), columns=names) as reader:
        rows = expected(LIVED, discrete=True)
        check(reader, zeros(rows) | {"is_terminal": np.zeros(len(rows["reward"]), bool)})
    steps = {"o": [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]], "a": [[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]], "e": [1, 1, 1]}
    with opened(save_table(tmp_path / "steps", steps), columns=names | {"episode": "e"}) as reader:
        assert joined(reader.parts())["action"].shape == (3, 2)


@pytest.mark.parametrize("to", ["minari", "d4rl", "parquet", "robomimic", "lerobot", "store"])
def test_copies_have_none_either_until_they_are_computed(tmp_path, to):
    copied(write(tmp_path / "a.hdf5", unrewarded()), tmp_path / "copy", to)
    with opened(tmp_path / "copy") as reader:
        assert not joined(RecordedEpisodes(reader).parts())["reward"].any()
        relabeled = relabel_rewards(reader, lambda obs, action, next_obs: np.ones(len(action)))
        copied(tmp_path / "copy", tmp_path / "again", to, choose=relabeled)
    with open_reader(tmp_path / "again") as reader:
        assert reader.info().has_rewards
        rows = joined(RecordedEpisodes(reader).parts())
        assert rows["reward"].sum() == sum(e.steps for e in LIVED)


def test_pydreamers_files_cannot_lack_them(tmp_path):
    remarks = copied(write(tmp_path / "a.hdf5", unrewarded()), tmp_path / "npz", "pydreamer")
    assert "there are no rewards: those in the files are 0" in remarks


def test_joined_with_others():
    with opened([columns(), unrewarded()]) as reader:
        assert "all are treated as if they had no rewards, since object:dict has none" in reader.remarks()


def test_the_tools(tmp_path, capsys):
    source = write(tmp_path / "a.hdf5", unrewarded())
    with open_reader(source) as reader, pytest.raises(DataError, match=r"a\.hdf5 has no rewards, which .* --reward-fn"):
        subsample(reader, Subset(top_fraction=0.5))
    assert data_command(["info", str(source), "--plot", str(tmp_path / "a.png")]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "return no rewards" in said
    assert "reward 0" not in said
    assert data_command(["validate", str(source)]) == 0


@pytest.mark.parametrize(
    ("config", "offline", "mixed"),
    [(BCConfig, False, False), (GAILConfig, False, False), (IQLConfig, True, True),
     (DecisionTransformerConfig, True, True),
     (TDMPC2Config, True, True),
     (DreamerV3Config, False, True)],
)  # fmt: skip
def test_which_algorithms_need_them(config, offline, mixed):
    assert [config().needs_rewards(collected=collected) for collected in (False, True)] == [offline, mixed]


def test_rewards_of_another_name_are_not_overlooked(tmp_path):
    source = write(tmp_path / "a.hdf5", unrewarded() | {"reward": columns()["rewards"]})
    with pytest.raises(DataError, match="'reward' seems to contain the rewards: expected the name 'rewards'"):
        open_reader(source)


def test_how_far_goals_can_be_in_episodes(tmp_path, capsys):
    """Episodes of 50 and 10 actions, five of which change nothing."""
    place = np.concatenate([np.arange(51), np.arange(11) + 100]).astype(np.float32)
    place[40:46] = 40.02
    place[61] = -0.01  # rounded to the 0 of the first row
    last = np.isin(np.arange(62), (50, 61))
    source = tmp_path / "a.npz"
    np.savez(source, observations=place[:, None], actions=np.zeros((62, 1), np.float32), terminals=last)
    assert data_command(["info", str(source)]) == 0
    said = capsys.readouterr().out
    goals = [[0.99**k for k in range(steps)] for steps in (50, 10)]  # that a distance is more than k
    within = np.mean([1 - share for part in goals for share in part])
    for text in ("56 distinct, rounded to 0.1", f"{5 / 60:.1%} of the steps change no", f"{within:.0%} of geometric",
                 f"{25 / 60:.0%} of the steps have a goal 25 steps later"):  # fmt: skip
        assert text in said
    np.savez(source, observations=place[:, None], actions=np.zeros((62, 1)), terminals=last, rewards=np.zeros(62))
    assert data_command(["info", str(source)]) == 0
    assert "distinct" not in capsys.readouterr().out
