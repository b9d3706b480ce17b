"""OGBench's datasets by name, and their generation, which needs the package."""

import sys

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.datasets import ogbench_generation
from reverie.datasets.format_detection import open_reader
from reverie.datasets.ogbench import RECIPES, Recipe, parse_name
from reverie.datasets.ogbench_generation import make_dataset
from reverie.datasets.two_rooms import make_two_rooms
from reverie.envs.goal_tasks import global_generator
from reverie.envs.suites import _egl_works, register_suite
from reverie.experiment.build import build
from reverie.experiment.dataset_env import resolve_with_data
from reverie.experiment.settings import Request

NAME = "pointmaze-medium-navigate-v0"


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The working folder, and the user's home in it."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home/.ogbench/data").mkdir(parents=True)
    return tmp_path


def save(folder, name):
    ends = np.arange(40) % 10 == 9
    arrays = {"observations": np.random.default_rng(0).normal(size=(40, 2)), "actions": np.full((40, 2), 0.5)}
    np.savez(folder / f"{name}.npz", terminals=ends, **arrays)


@pytest.mark.parametrize(("name", "env", "kind"), [
    (NAME, "pointmaze-medium-v0", "navigate"), (f"{NAME}-val", "pointmaze-medium-v0", "navigate"),
    ("scene-noisy-v0", "scene-v0", "noisy"), ("puzzle-4x6-play-v0", "puzzle-4x6-v0", "play"),
    ("visual-antmaze-giant-stitch-v0", "visual-antmaze-giant-v0", "stitch"), ("antmaze-medium-v0", "", ""),
    ("walk-play-v0", "", ""), ("cube-single-play-singletask-v0", "", ""),
])  # fmt: skip
def test_names(name, env, kind):
    assert parse_name(name) == (env, kind)


def test_a_name_stands_for_a_file_and_its_environment(folder):
    save(folder / "home/.ogbench/data", NAME)
    with open_reader(f"ogbench:{NAME}") as reader:
        assert (reader.path.parent.name, reader.env_id(), reader.info().env) == ("data", *["pointmaze-medium-v0"] * 2)
    save(folder, NAME)
    assert open_reader(f"ogbench:{NAME}").path.parent.name == ""
    save(folder, "mine")
    assert open_reader("mine.npz").env_id() == ""


def test_names_without_a_file():
    with pytest.raises(DataError, match=f"no {NAME}.npz, neither in .* Make it: `reverie data make ogbench:{NAME}`"):
        open_reader(f"ogbench:{NAME}")
    with pytest.raises(DataError, match=f"no {NAME}-val.npz, .* Make it: `reverie data make ogbench:{NAME}`"):
        open_reader(f"ogbench:{NAME}-val")
    with pytest.raises(DataError, match=r"has it, download it: .*download_datasets\(\[\"antmaze-large-navigate-v0\"\]"):
        open_reader("ogbench:antmaze-large-navigate-v0-val")
    with pytest.raises(ConfigError, match=r"ogbench:pointmaze-navgate-v0: unknown. Did you mean 'pointmaze-"):
        open_reader("ogbench:pointmaze-navgate-v0")


def test_held_out_episodes_are_those_that_the_name_has(folder):
    save(folder, NAME)

    def heldout(algorithm="bc", env="none", **more):
        request = Request(algorithm=algorithm, env=env, overrides={"data": f"ogbench:{NAME}", **more})
        return resolve_with_data(request).heldout_data

    assert heldout() is None
    save(folder, f"{NAME}-val")
    assert heldout() == f"ogbench:{NAME}-val"
    assert heldout("gail", "Pendulum-v1") is None  # it has no losses on recorded rows
    assert heldout(heldout_fraction=0.25) is None
    assert heldout(heldout_data="mine.npz").endswith("/mine.npz")


class Still(gymnasium.Env):
    observation_space = action_space = spaces.Box(-1, 1, (2,), np.float32)

    def reset(self, *, seed=None, options=None):
        return np.zeros(2, np.float32), {}

    def step(self, action):
        return np.zeros(2, np.float32), 0.0, True, False, {}


def test_held_out_data_need_rewards_only_if_the_learner_does(folder):
    save(folder, NAME)
    save(folder, f"{NAME}-val")
    more = {"data": f"ogbench:{NAME}", "env.max_episode_steps": 9}
    experiment = build(resolve_with_data(Request(algorithm="bc", env=Still, overrides=more)), Still)
    assert set(experiment.heldout()) == {"heldout/loss/actor"}
    experiment.close()


@pytest.mark.parametrize("more", [{"env.id": "none"}, {"env.id": "pointmaze-medium-v0", "eval_episodes": 0}])
def test_held_out_data_need_no_goals(folder, more):
    """Neither have the data to learn from, if no environment is played."""
    save(folder, NAME)
    save(folder, f"{NAME}-val")
    experiment = build(resolve_with_data(Request(algorithm="gcivl", overrides={"data": f"ogbench:{NAME}", **more})))
    assert set(experiment.heldout()) >= {"heldout/loss/value", "goal/recall"}
    experiment.close()


def test_success_selects_the_best_checkpoint():
    def metric(env, **more):
        return resolve_with_data(Request(algorithm="sac", env=env, overrides=more)).score_metric

    assert metric("pointmaze-medium-v0") == "eval/success_rate"
    assert metric("pointmaze-medium-v0", score_metric="eval/score") == "eval/score"
    assert [metric(env) for env in ("Pendulum-v1", "cube-single-singletask-task2-v0")] == ["eval/score"] * 2


def navigate(env, episodes, states):
    """The authors' loop, step by step: the next cell is searched anew in each step."""
    rows, cells = [], np.argwhere(env.maze_map == 0).tolist()
    vertices = []
    for i, j in cells:
        north, south, west, east = (env.maze_map[i + a, j + b] == 0 for a, b in ((-1, 0), (1, 0), (0, -1), (0, 1)))
        if not ((north and south and not west and not east) or (west and east and not north and not south)):
            vertices.append((i, j))
    for _ in range(episodes):
        start = cells[np.random.randint(len(cells))]  # noqa: NPY002
        goal = vertices[np.random.randint(len(vertices))]  # noqa: NPY002
        obs, _ = env.reset(options={"task_info": {"init_ij": start, "goal_ij": goal}})
        for step in range(states):
            direction = env.get_oracle_subgoal(env.get_xy(), env.cur_goal_xy)[0] - env.get_xy()
            direction = direction / (np.linalg.norm(direction) + 1e-6)
            action = np.clip(direction + np.random.normal(0, 0.5, 2), -1, 1)  # noqa: NPY002
            next_obs, _, _, _, info = env.step(action)
            if info["success"]:
                env.set_goal(goal_xy=env.add_noise(env.ij_to_xy(vertices[np.random.randint(len(vertices))])))  # noqa: NPY002
            rows.append((obs, action, info["prev_qpos"], step == states - 1))
            obs = next_obs
    return rows


def test_mazes_are_walked_through_as_by_the_authors(folder, monkeypatch):
    pytest.importorskip("ogbench")
    monkeypatch.setitem(RECIPES, NAME, Recipe(9, 301))
    files = make_dataset(NAME, folder / "new", episodes=2, seed=4)
    assert [file.name for file in files] == [f"{NAME}.npz", f"{NAME}-val.npz"]
    register_suite("pointmaze-medium-v0")
    env = gymnasium.make("pointmaze-medium-v0", terminate_at_goal=False).unwrapped
    with global_generator(np.random.MT19937(4)):
        expected = navigate(env, 3, 301)
    arrays = [np.load(file) for file in files]
    for name, column in zip(("observations", "actions", "qpos", "terminals"), zip(*expected, strict=True), strict=True):
        made = np.concatenate([file[name] for file in arrays])
        assert len(arrays[0][name]) == 602
        np.testing.assert_array_equal(made, np.array(column, made.dtype), name)
    with pytest.raises(RunError, match="exists: choose another name, or delete it first"):
        make_dataset(NAME, folder / "new", episodes=2)
    assert not list((folder / "new").glob(".*.part"))


def test_goals_to_be_stitched_are_four_cells_away():
    pytest.importorskip("ogbench")
    register_suite("pointmaze-large-v0")
    with global_generator(np.random.MT19937(1)):
        maze = ogbench_generation._Maze("pointmaze-large-v0", "stitch")
        for _ in range(20):
            maze._begin()
            env, task = maze._env, maze._env.cur_task_info
            start, goal = (env.ij_to_xy(task[name]) for name in ("init_ij", "goal_ij"))
            assert env.get_oracle_subgoal(start, goal)[1][tuple(task["init_ij"])] == 4


@pytest.mark.parametrize("name", [
    "scene-noisy-v0",  # has the cubes and the buttons of the others
    *(pytest.param(name, marks=pytest.mark.nightly) for name in ("cube-double-play-v0", "puzzle-3x3-play-v0")),
])  # fmt: skip
def test_a_robot_moves_objects(name, folder, monkeypatch):
    pytest.importorskip("ogbench")
    monkeypatch.setitem(RECIPES, name, Recipe(1, 120))
    one, two = (np.load(make_dataset(name, folder / str(k), seed=2)[0]) for k in range(2))
    assert set(one) == {"observations", "actions", "terminals", "qpos", "qvel"} | (
        set() if "cube" in name else {"button_states"}
    )
    for key in one:
        np.testing.assert_array_equal(one[key], two[key], key)
    assert one["terminals"].tolist() == [False] * 119 + [True]
    assert len(np.unique(one["observations"], axis=0)) == 120
    assert np.abs(one["actions"]).max() <= 1


@pytest.mark.nightly
def test_pictures_of_a_robot(folder, monkeypatch):
    """The same episode as without pictures."""
    pytest.importorskip("ogbench")
    if not _egl_works():
        pytest.skip("no EGL")
    monkeypatch.setenv("MUJOCO_GL", "egl")
    files = []
    for name in ("visual-cube-single-play-v0", "cube-single-play-v0"):
        monkeypatch.setitem(RECIPES, name, Recipe(1, 6))
        files.append(make_dataset(name, folder, seed=2)[0])
    pictures, states = map(np.load, files)
    assert (pictures["observations"].shape, pictures["observations"].dtype) == ((6, 64, 64, 3), np.uint8)
    assert len(np.unique(pictures["observations"], axis=0)) > 1
    np.testing.assert_array_equal(pictures["actions"], states["actions"])
    with open_reader(files[0]) as reader:
        assert reader.env_id() == "visual-cube-single-v0"


def test_what_cannot_be_made(folder, monkeypatch):
    with pytest.raises(ConfigError, match=r"antmaze-medium-navigate-v0 cannot be made.*has it, download it"):
        make_dataset("antmaze-medium-navigate-v0", folder)
    monkeypatch.setenv("MUJOCO_GL", "disable")
    with pytest.raises(EnvError, match="observes pictures, but MUJOCO_GL = disable"):
        register_suite("visual-scene-v0")
    with pytest.raises(ConfigError, match="episodes = 0"):
        make_dataset(NAME, folder, episodes=0)
    monkeypatch.setitem(sys.modules, "ogbench", None)
    monkeypatch.delitem(gymnasium.registry, "pointmaze-medium-v0", raising=False)
    with pytest.raises(EnvError, match=r"needs the package 'ogbench' .*pip install \"reverie-rl\[ogbench\]\""):
        make_dataset(NAME, folder)


@pytest.mark.parametrize(("y", "z", "visible"), [
    (0.28, 0.02, True), (0.29, 0.02, False), (-0.29, 0.02, True), (-0.31, 0.02, False), (-0.31, 0.07, True),
    (-0.31, 0.09, False),
])  # fmt: skip
def test_episodes_in_which_the_cube_disappears(y, z, visible):
    positions = np.array([[0.4, 0.0, 0.02], [0.4, y, z]])
    assert ogbench_generation._is_visible(positions) is visible


def test_two_rooms_are_made_whole_or_not_at_all(tmp_path):
    with pytest.raises(ConfigError, match="seed"):
        make_two_rooms(tmp_path, 1, seed=-1)
    (tmp_path / "two_rooms-val.npz").touch()
    with pytest.raises(RunError, match=r"two_rooms-val\.npz exists"):
        make_two_rooms(tmp_path, 1)
    assert not (tmp_path / "two_rooms.npz").exists()
    (tmp_path / "two_rooms-val.npz").unlink()
    assert [np.load(path)["terminals"].sum() for path in make_two_rooms(tmp_path, 2)] == [2, 1]
