"""PyDreamer's files of MiniGrid: its 38 numbers of cells, and the view and map that reverie's environment shows."""

import gymnasium
import numpy as np
import pytest

import reverie
from formats import save_npz
from reverie.core.errors import DataError
from reverie.datasets import pydreamer_minigrid
from reverie.datasets.config import dataset_config
from reverie.datasets.convert import write_dataset
from reverie.datasets.format_detection import open_reader
from reverie.envs.minigrid import MapView, PyDreamerCells

pytest.importorskip("minigrid")

CELLS = [
    *((0, 0, 0), (1, 0, 0), (2, 5, 0), (8, 1, 0)),  # unseen, empty, wall, goal
    *((10, 0, direction) for direction in range(4)),  # the agent
    *((4, color, state) for color in range(6) for state in (0, 1)),  # doors, open and closed
    *((kind, color, 0) for kind in (5, 6, 7) for color in range(6)),  # keys, balls, boxes
]
NAMES = ["action", "agent_dir", "agent_pos", "image", "map", "map_agent", "reset", "reward", "terminal"]


def numbers(codes):
    """PyDreamer's number of each cell; what has none is 0."""
    return np.array([[CELLS.index(tuple(c)) if tuple(c) in CELLS else 0 for c in row] for row in codes], np.uint8)


def observed(env):
    """What PyDreamer's environment observes."""
    grid = env.unwrapped.grid.encode()
    with_agent = grid.copy()
    with_agent[tuple(env.unwrapped.agent_pos)] = (10, 0, env.unwrapped.agent_dir)
    return {
        "image": numbers(env.unwrapped.gen_obs()["image"]),
        "map": numbers(grid),
        "map_agent": numbers(with_agent),
        "map_vis": np.full(grid.shape[:2], 500, np.uint16),
        "agent_pos": np.array(env.unwrapped.agent_pos, np.float32),
        "agent_dir": np.array([[1, 0], [0, 1], [-1, 0], [0, -1]][env.unwrapped.agent_dir], np.float32),
    }


def play(id, steps=40, wrapper=lambda env: env):
    """Return PyDreamer's arrays of an episode, and what reverie's environment observes."""
    env, actions = wrapper(MapView(gymnasium.make(id))), np.random.default_rng(0).choice([0, 1, 2, 2, 3, 5], steps)
    ours = [env.reset(seed=1)[0]]
    rows = [observed(env) | {"action": np.zeros(7), "reward": 0.0, "terminal": False, "reset": True}]
    for action in actions:
        obs, reward, terminal, *_ = env.step(int(action))
        ours.append(obs)
        rows.append(
            observed(env) | {"action": np.eye(7)[action], "reward": reward, "terminal": terminal, "reset": False}
        )
    as_arrays = lambda parts, names: {name: np.array([part[name] for part in parts]) for name in names}  # noqa: E731
    theirs = as_arrays(rows, rows[0]) | {"policy_value": np.full(steps + 1, np.nan)}
    return theirs, as_arrays(ours, ["view", "map", "map_coord"])


def columns(reader):
    parts = list(reader.parts())
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def written(folder):
    (path,) = folder.glob("*.npz")
    return dict(np.load(path))


@pytest.mark.parametrize("id", ["MiniGrid-SimpleCrossingS11N5-v0", "MiniGrid-BlockedUnlockPickup-v0"])
def test_files_are_what_the_environment_shows_and_back(tmp_path, id):
    """The second has doors and objects, a locked door, which PyDreamer loses, and a map that is not square."""
    theirs, ours = play(id)
    reader = open_reader(str(save_npz(tmp_path / "npz", "ep000000_000000-0-r0-0040", theirs)))
    rows, is_lost = columns(reader), (MapView.TABLE[ours["map"]][..., [0, 2]] == [4, 2]).all(-1)  # locked doors
    assert set(rows) - {"action", "reward", "is_first", "is_last", "is_terminal"} == {f"obs/{k}" for k in ours}
    assert (pydreamer_minigrid.LOST_CELLS in reader.remarks()) == is_lost.any() == ("Unlock" in id)
    assert (rows["obs/map"] == np.where(is_lost, len(MapView.TABLE) - 1, ours["map"])).all()
    assert (rows["obs/map_coord"] == ours["map_coord"]).all()
    if not is_lost.any():
        assert (rows["obs/view"] == ours["view"]).all()
    report = write_dataset(reader, str(tmp_path / "copy"), "pydreamer")
    assert report.remarks == [pydreamer_minigrid.LOST_CELLS] * bool(is_lost.any())
    copy = written(tmp_path / "copy")
    assert sorted(copy) == NAMES
    for name, values in copy.items():
        assert (values == theirs[name]).all(), name
        assert name == "action" or name == "reward" or values.dtype == theirs[name].dtype, name
    again = columns(open_reader(str(tmp_path / "copy")))
    assert all((again[f"obs/{key}"] == rows[f"obs/{key}"]).all() for key in ours)


def test_an_evaluation_shows_what_the_files_show(tmp_path):
    theirs, shown = play("MiniGrid-BlockedUnlockPickup-v0", wrapper=PyDreamerCells)
    rows = columns(open_reader(str(save_npz(tmp_path / "npz", "ep000000_000000-0-r0-0040", theirs))))
    for key in ("view", "map", "map_coord"):
        assert (rows[f"obs/{key}"] == shown[key]).all(), key


def test_every_number_of_a_cell(tmp_path):
    theirs, _ = play("MiniGrid-SimpleCrossingS11N5-v0", 2)
    theirs["image"] = np.resize(np.arange(38, dtype=np.uint8), (3, 7, 7))
    path = str(save_npz(tmp_path / "npz", "ep000000_000000-0-r0-0002", theirs))
    codes = MapView.TABLE[columns(open_reader(path))["obs/view"]].reshape(-1, 3)
    expected = [CELLS[number] if CELLS[number][0] != 10 else CELLS[1] for number in theirs["image"].ravel()]
    assert (codes == expected).all()  # in its own view, the agent is left out
    write_dataset(open_reader(path), str(tmp_path / "copy"), "pydreamer")
    numbered = np.where(np.isin(theirs["image"], range(4, 8)), 1, theirs["image"])
    assert (written(tmp_path / "copy")["image"] == numbered).all()


def test_other_numbers(tmp_path):
    theirs, _ = play("MiniGrid-SimpleCrossingS11N5-v0", 2)
    theirs["image"][1, 0, 0] = 38
    path = str(save_npz(tmp_path / "npz", "ep000000_000000-0-r0-0002", theirs))
    with pytest.raises(DataError, match=r"'image' contains 38: expected PyDreamer's numbers .*, up to 37"):
        open_reader(path).info()
    config = dataset_config({"path": path, "classes": {"image": 39, "map": 38}})
    rows = columns(open_reader(path, config))
    assert (rows["obs/image"] == theirs["image"]).all()
    assert (rows["obs/agent_pos"] == theirs["agent_pos"]).all()


def test_a_run_on_them_is_evaluated_in_minigrid(tmp_path):
    id = "MiniGrid-SimpleCrossingS9N1-v0"
    path = save_npz(tmp_path / "npz", "ep000000_000000-0-r0-0040", play(id)[0])
    options = {"updates": 2, "algo.batch_size": 2, "algo.batch_length": 8, "algo.rssm.deter": 8, "console": False}
    options |= {"preset": "pydreamer_minigrid+cpu", "tensorboard": False, "data.estimate_updates": 0}
    reverie.train("dreamer_v2", data=path, run=tmp_path / "run", **options)
    assert "train/probe/map_accuracy" in (tmp_path / "run" / "metrics.jsonl").read_text()
    evaluation = reverie.load(tmp_path / "run", env=id).evaluate(1, max_episode_steps=5)
    assert list(evaluation.lengths) == [5]
