"""What is done with recorded data: written in other formats, with their environments, and in part."""

import json
import re
import sys
import threading
from dataclasses import replace

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import NESTED, buffer, nested, texts
from minari_files import write as write_minari
from recordings import LIVED, assert_same, check, copied, expected, joined, same_rows
from reverie.agent.recording import stack_values
from reverie.algos.bc import BCConfig
from reverie.cli import main as cli
from reverie.core.errors import ConfigError, DataError
from reverie.core.imports import trust_modules
from reverie.core.rows import iter_episodes
from reverie.datasets import minari as minari_reader
from reverie.datasets import writers
from reverie.datasets.convert import relabel_rewards, subsample, write_dataset
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.dataset_env import dataset_env_config
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import Subset
from reverie.datasets.validate import validate
from reverie.experiment.config import DATASET_ENV, ExperimentConfig
from reverie.experiment.dataset_env import with_dataset_env
from reverie.store import zarr
from reverie.store.local_objects import LocalObjects

minari = pytest.importorskip("minari")


def about(path):
    return open_reader(str(path)).info()


# ---------------------------------------------------------------- convert


def test_nested_spaces_come_out_of_minari_as_they_were(tmp_path):
    source, out = write_minari(tmp_path / "d", [nested(e) for e in LIVED], *NESTED), tmp_path / "out"
    copied(source, out)
    assert (about(out).observation, about(out).action) == NESTED
    assert_same(joined(open_reader(str(out)).parts()), joined(open_reader(str(source)).parts()))
    whole = minari.MinariDataset(out / "data")
    assert (whole.total_steps, whole[0].observations["pair"][1]) == (14, texts(LIVED[0]))
    copied(source, tmp_path / "store", "store")
    same_rows(source, tmp_path / "store")


@pytest.mark.parametrize(
    ("actions", "space"),
    [(lambda e: 10 * e.actions, spaces.Box(-2, 6, (1,), np.float32)), (lambda e: e.choices, spaces.Discrete(9))],
    ids=["continuous", "discrete"],
)
def test_what_is_not_declared_stays_not_declared(tmp_path, actions, space):
    """Whoever learns from a copy takes the environment's space, as from the original."""
    source = write_hdf5(tmp_path / "a.hdf5", columns() | {"actions": np.concatenate([actions(e) for e in LIVED])})

    def learned(path):
        assert about(path).has_measured_bounds
        return joined(RecordedEpisodes(open_reader(str(path)), action_space=space).parts())["action"]

    before, wanted = source, learned(source)
    for i, to in enumerate(["minari", "store", "d4rl", "store", "pydreamer", "parquet", "minari"]):
        remarks = copied(before, tmp_path / f"{i}", to)
        unbounded = to == "minari" and isinstance(space, spaces.Box)
        assert unbounded == any("without bounds" in remark for remark in remarks)
        before = tmp_path / f"{i}"
        np.testing.assert_allclose(learned(before), wanted, atol=1e-6, err_msg=f"{i} {to}")
    assert validate(open_reader(str(before))).is_valid
    if isinstance(space, spaces.Box):  # honest to others as well
        assert minari.MinariDataset(before / "data").action_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    assert "files do not store" in str(copied(source, tmp_path / "npz", "pydreamer"))  # nor what observations are


@pytest.mark.parametrize(
    ("space", "formats"),
    [
        (spaces.Discrete(3, start=-1), ["d4rl", "parquet"]),
        (spaces.Box(np.float32([-2, 0]), np.float32([2, 4])), ["d4rl", "parquet"]),
        (spaces.MultiDiscrete([3, 4], start=[1, -2]), ["d4rl", "parquet"]),
        (spaces.Dict({"a": spaces.Discrete(9, start=2), "b": spaces.Tuple((spaces.MultiBinary(2),))}), ["parquet"]),
    ],
    ids=str,
)
def test_declared_actions_are_declared_by_every_format(tmp_path, space, formats):
    space.seed(0)
    buffers = [
        buffer(e, actions=stack_values(space, [space.sample() for _ in range(e.steps)], "action")) for e in LIVED
    ]
    source = write_minari(tmp_path / "d", buffers, action=space)
    for to in [*formats, "store"]:
        copied(source, tmp_path / to, to)
        copied(tmp_path / to, tmp_path / f"{to}-back")
        for path in (tmp_path / to, tmp_path / f"{to}-back"):
            assert (about(path).action, about(path).has_measured_bounds) == (space, False)
            same_rows(source, path)


def test_seeds_go_along(tmp_path):
    def seeds_of(path):
        reader = open_reader(str(path))
        return [reader.seed(i) for i in range(reader.count)]

    source = write_minari(tmp_path / "d", [replace(buffer(e), seed=70 + e.number) for e in LIVED])
    copied(source, tmp_path / "all")
    copied(source, tmp_path / "some", choose=lambda episodes: (e for i, e in enumerate(episodes) if i in (1, 4)))
    assert [seeds_of(tmp_path / name) for name in ("all", "some")] == [[71, 72, 73, 74, 75], [72, 75]]


def test_ends_that_are_both_go_along(tmp_path):
    """Terminal as time ran out: to learners it is terminal."""
    ended = [e.terminals | (np.arange(e.steps) == e.steps - 1) for e in LIVED]
    buffers = [replace(buffer(e), truncations=end.tolist()) for e, end in zip(LIVED, ended, strict=True)]
    source = write_minari(tmp_path / "d", buffers)
    copied(source, tmp_path / "all")
    copy = list(minari.MinariDataset(tmp_path / "all" / "data"))
    for one, lived, end in zip(copy, LIVED, ended, strict=True):
        assert (one.terminations.tolist(), one.truncations.tolist()) == (lived.terminals.tolist(), end.tolist())
    check(open_reader(str(tmp_path / "all")), expected(LIVED))


def test_a_store_whose_conversion_fails_is_not_written_on(tmp_path, monkeypatch):
    """Its thread still writes the first episodes when a later one turns out to be wrong."""
    values, before = columns(), threading.enumerate()
    values["rewards"][-1] = np.nan
    publish, never = LocalObjects.publish, threading.Event()

    def slow(self):
        never.wait(0.05 * (threading.current_thread().name == "store"))
        publish(self)

    monkeypatch.setattr(LocalObjects, "publish", slow)
    monkeypatch.setattr(zarr, "CHUNK_BYTES", 64)
    with pytest.raises(DataError, match="the reward is nan"):
        copied(write_hdf5(tmp_path / "a.hdf5", values), tmp_path / "out", "store")
    assert not any(thread.name == "store" for thread in threading.enumerate() if thread not in before)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name and path.suffix != ".lock"] == []


# ---------------------------------------------------------------- subsample


def kept(path, **share):
    reader = open_reader(str(path))
    choose = subsample(reader, Subset(**share))[0]
    found, again = (list(choose(iter_episodes(reader.parts()))) for _ in range(2))
    for one, two in zip(found, again, strict=True):
        assert_same(one, two)
    return found


def test_whole_episodes(d4rl):
    """Of 3, 1, 5, 1 and 4 steps: so many that their steps suffice, in their order."""
    for seed in range(6):
        found = kept(d4rl, steps=4, seed=seed)
        numbers, steps = [int(rows["obs"][0, 0]) for rows in found], [len(rows["reward"]) - 1 for rows in found]
        assert sum(steps) >= 4 > sum(steps) - max(steps)
        assert numbers == sorted(numbers)
        assert steps == [LIVED[number - 1].steps for number in numbers]


@pytest.mark.parametrize(
    ("share", "numbers"),
    [({"top_fraction": 0.4}, [3, 5]), ({"min_return": 162.5}, [3, 5]), ({"top_fraction": 0.01}, [5])],
)
def test_the_best_episodes_and_the_rest(d4rl, share, numbers):
    """Returns are 34.5, 20.5, 162.5, 40.5 and 208."""
    reader = open_reader(d4rl)
    for choose, wanted in zip(subsample(reader, Subset(**share)), (numbers, {1, 2, 3, 4, 5} - {*numbers}), strict=True):
        assert [int(rows["obs"][0, 0]) for rows in choose(iter_episodes(reader.parts()))] == sorted(wanted)


@pytest.mark.parametrize(
    ("share", "said"),
    [
        ({"top_fraction": 0.1, "steps": 3}, "steps = 3, top_fraction = 0.1, min_return = None: pass exactly one"),
        ({"min_return": 1000}, "min_return = 1000: the highest return is 208"),
    ],
)
def test_parts_that_cannot_be(d4rl, share, said):
    with pytest.raises(ConfigError, match=said):
        subsample(open_reader(d4rl), Subset(**share))


# ---------------------------------------------------------------- new rewards


@pytest.mark.parametrize("clip", ["none", "tanh"])
def test_new_rewards_of_collected_rows(tmp_path, clip):
    """Computed of what the environment showed and took; all else stays, in the keys and kinds of the run."""
    quick = {"steps": 30, "eval_episodes": 0, "tensorboard": False, "console": False, "algo.networks.units": (4,)}
    env = {"env.max_episode_steps": 9, "env.clip_reward": clip}
    reverie.train("sac", "Pendulum-v1", run=tmp_path / "run", learning_starts=29, **quick, **env)
    seen = []

    def reward(observations, actions, following):
        seen.append(actions)
        return 10 * following[:, 0] + observations[:, 1]

    with open_reader(tmp_path / "run") as reader:
        write_dataset(reader, str(tmp_path / "out"), "store", relabel_rewards(reader, reward))
    old, new = (joined(open_reader(tmp_path / name).parts()) for name in ("run", "out"))
    obs, begins = old["obs/observation"], old["is_first"]
    wanted = 10 * obs[1:, 0] + obs[:-1, 1]
    wanted = np.where(begins, 0, np.append(0, np.tanh(wanted) if clip == "tanh" else wanted))
    np.testing.assert_allclose(new.pop("reward"), wanted, rtol=1e-5)
    assert_same(new, {name: values for name, values in old.items() if name != "reward"})
    done = np.concatenate(seen)
    np.testing.assert_allclose(done, 2 * old["action"][~old["is_last"]], rtol=1e-5)  # Pendulum's go from -2 to 2


@pytest.mark.parametrize("wrong", [lambda o, a, n: 1.0, lambda o, a, n: np.full(len(a), np.nan), lambda o, a, n: n])
def test_new_rewards_that_are_none(d4rl, tmp_path, wrong):
    reader = open_reader(d4rl)
    with pytest.raises(DataError, match=r"lambda.* for episode 0: expected \[3\], a reward per step"):
        write_dataset(reader, str(tmp_path / "out"), "d4rl", relabel_rewards(reader, wrong))
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- what formats can hold


def test_several_observations_and_pictures_as_columns(tmp_path):
    rng = np.random.default_rng(0)
    both = {"arm": {"at": rng.normal(size=(4, 2)).astype("f4"), "on": rng.normal(size=4).astype("f4")}}
    space = spaces.Dict({"arm": spaces.Dict({
        "at": spaces.Box(-9, 9, (2,), np.float32), "on": spaces.Box(-9, 9, (), np.float32)})})  # fmt: skip
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], both)], space)
    copied(source, tmp_path / "p", "parquet")
    same_rows(source, tmp_path / "p")  # the tables say which column is what
    with pytest.raises(ConfigError, match=r"not obs/arm/at .*, obs/arm/on .* of .*--format minari"):
        copied(source, tmp_path / "a.hdf5", "d4rl")
    pictures = rng.integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    source = write_minari(tmp_path / "i", [buffer(LIVED[0], pictures)], spaces.Box(0, 255, (8, 9, 3), np.uint8))
    copied(source, tmp_path / "b.hdf5", "d4rl")  # each image once, compressed
    np.testing.assert_array_equal(joined(open_reader(tmp_path / "b.hdf5").parts())["obs"], pictures[[0, 1, 2, 2]])
    with h5py.File(tmp_path / "b.hdf5") as file:
        assert (file["observations"].compression, "next_observations" in file) == ("gzip", False)
    with pytest.raises(ConfigError, match="numbers and vectors, not obs"):
        copied(source, tmp_path / "q", "parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.hdf5", "d", "i", "p"]


@pytest.mark.parametrize("form", ["parquet", "lerobot"])
def test_columns_keep_their_type(tmp_path, monkeypatch, form):
    """What is written first decides it: integers are not to become of later fractions."""
    monkeypatch.setattr(writers, "BUFFERED", 1)
    monkeypatch.setattr(minari_reader, "PART_BYTES", 1)
    space = spaces.Box(0, 99, (2,), np.int64)
    parts = [buffer(LIVED[0], LIVED[0].observations.astype(np.int64)), buffer(LIVED[1], LIVED[1].observations + 0.5)]
    with pytest.raises(DataError, match=r"'obs.* is int64 in the first episodes, but float.* in later ones"):
        copied(write_minari(tmp_path / "d", parts, space), tmp_path / "out", form)
    source = write_minari(tmp_path / "e", parts[::-1], space)
    copied(source, tmp_path / "out", form)
    if form != "lerobot":
        same_rows(source, tmp_path / "out")


def test_an_infinite_action_space_stays_as_declared(tmp_path):
    """Its bounds are measured to learn from it, not to write it."""
    half = spaces.Box(np.float64([-np.inf]), np.float64([9]), dtype=np.float64)
    space = spaces.Dict({"move": half, "turn": spaces.Box(-1, 1, (1,), np.float32)})
    buffers = [buffer(e, actions={"move": np.pi * e.actions.astype("f8"), "turn": e.actions}) for e in LIVED]
    for name in ("a", "b"):
        write_minari(tmp_path / "both" / name, buffers, action=space)
    for source, copy in ((tmp_path / "both/a", tmp_path / "one"), (tmp_path / "both", tmp_path / "two")):
        assert not copied(source, copy)
        reader = open_reader(str(copy))
        info = reader.info()
        assert (reader.action, info.declared_action_space, info.has_measured_bounds) == (space, space, True)
        assert_same(joined(reader.parts()), joined(open_reader(str(source)).parts()))


# ---------------------------------------------------------------- environments


def test_the_environment_goes_along(tmp_path):
    env = gymnasium.make("CartPole-v1")
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], np.zeros((4, 4), np.float32), np.zeros(3, int))],
                          env.observation_space, env.action_space, env_spec=env.spec)  # fmt: skip
    copied(source, tmp_path / "out")
    assert minari.MinariDataset(tmp_path / "out/data").recover_environment().spec.id == "CartPole-v1"
    for to in ("store", "d4rl"):
        copied(source, tmp_path / to, to)
        with open_reader(str(tmp_path / to)) as reader:
            assert reader.env_id() == reader.info().env == "CartPole-v1"
            assert reader.info().action == spaces.Discrete(2)


@pytest.fixture
def a_run(d4rl, tmp_path):
    """A run's own rows: actions in [-1, 1], and settings that name the environment."""

    def made(env):
        copied(d4rl, tmp_path / "run", "store")
        (tmp_path / "run/about.json").unlink()
        (tmp_path / "run/config.yaml").write_text(json.dumps({"algorithm": "sac", "experiment": {"env": env}}))
        return tmp_path / "run"

    return made


def test_actions_of_a_run_are_those_of_the_environment_that_is_named(a_run, d4rl, tmp_path):
    run, copy = a_run({"id": "Pendulum-v1", "kwargs": {"g": 9.0}, "max_episode_steps": 50}), tmp_path / "copy"
    assert not copied(run, copy)
    assert (about(copy).env, about(copy).action) == ("Pendulum-v1", spaces.Box(-2, 2, (1,), np.float32))
    rows, whole = (joined(open_reader(str(path)).parts()) for path in (copy, d4rl))
    np.testing.assert_array_equal(rows["action"], 2 * whole["action"])
    same_rows(run, copy)  # to learn from
    env = minari.MinariDataset(copy / "data").recover_environment()
    assert (env.unwrapped.g, env.spec.max_episode_steps) == (9.0, 50)


@pytest.mark.parametrize("id", ["Pendulum-v1", ""])
def test_settings_of_a_run_are_kept_by_copies_of_its_rows_and_said_to_be_lost_by_others(a_run, tmp_path, id):
    """An environment that has no name has settings as well."""
    env = {"num": 4, "action_repeat": 2, "clip_reward": "sign"} | ({"id": id} if id else {})
    run, store = a_run(env), tmp_path / "store"
    for to, copy in (("store", store), ("pydreamer", tmp_path / "npz")):
        assert "settings" not in str(copied(run, copy, to))
        assert (about(copy).env, about(copy).env_settings) == (id, env)
        assert dataset_env_config(about(copy)) == dataset_env_config(about(run))
    lacks = f"names {id}, but not its settings" if id else "does not name the environment's settings"
    said = f"the copy {lacks} while recording: env.clip_reward = sign, env.action_re"
    for to in ("parquet", *(() if id else ("d4rl", "minari"))):
        assert any(line.startswith(said) for line in copied(store, tmp_path / f"{to}-copy", to)), to
        assert about(tmp_path / f"{to}-copy").env == id


@pytest.mark.parametrize(("env", "why"), [("Nowhere-v0", "Nowhere"), ("CartPole-v1", "categorical of 2 classes")])
def test_an_environment_that_does_not_answer_is_not_named(a_run, tmp_path, env, why):
    run, copy = a_run({"id": env}), tmp_path / "copy"
    assert re.search(f"do not name the environment .*({why})", str(copied(run, copy)))
    assert about(copy).env == ""
    same_rows(run, copy)


WALK = """
import gymnasium, numpy as np

class Walk(gymnasium.Env):
    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict({
        "at": gymnasium.spaces.Box(-5, 5, (1,), np.float32), "last": gymnasium.spaces.Discrete(3, start=-1)})

    def __init__(self, first=0.0):
        self.first = first

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.x = self.first + self.np_random.uniform(-0.5, 0.5)
        return {"at": np.full(1, self.x, np.float32), "last": np.int64(-1)}, {}

    def step(self, action):
        self.x += 2 * action - 1
        return {"at": np.full(1, self.x, np.float32), "last": np.int64(action)}, 1.0, abs(self.x) >= 3, False, {}

gymnasium.register("Walk-v0", entry_point=Walk, max_episode_steps=7)
"""


@pytest.fixture
def forget(tmp_path, monkeypatch):
    """What forgets the module of somebody's own environment, as another process has."""
    (tmp_path / "walk_module.py").write_text(WALK)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forgotten():
        sys.modules.pop("walk_module", None)
        gymnasium.registry.pop("Walk-v0", None)

    with trust_modules(True):
        yield forgotten
    forgotten()


def test_an_environment_of_ones_own_is_found_again(forget, tmp_path, capsys):
    """Of a class, whose module registers it: recorded, converted, and by who does not know us."""
    name, more = "Walk-v0", {"env_options": {"kwargs": {"first": 1.0}}}
    settings = {"steps": 40, "learning_starts": 20, "eval_episodes": 0, "tensorboard": False, "console": False}
    reverie.train("dqn", f"walk_module:{name}", run=tmp_path / "run", **settings | more)
    assert cli(["data", "record", str(tmp_path / "run"), str(tmp_path / "recorded"), "--episodes", "2"]) == 0
    assert "remark" not in capsys.readouterr().err
    for source, name in (("run", "converted"), ("recorded", "again")):
        forget()
        copied(tmp_path / source, tmp_path / name)
    for name in ("recorded", "converted", "again"):
        forget()
        with open_reader(str(tmp_path / name)) as reader:
            assert (reader.env_id(), reader.info().env, reader.info().max_episode_steps) == (
                "walk_module:Walk-v0", "walk_module:Walk-v0", 7
            )  # fmt: skip
            report = validate(reader)
            assert (report.is_valid, "in an environment:" in str(report.remarks)) == (True, False)
        found = minari.MinariDataset(tmp_path / name / "data").recover_environment()
        assert (found.spec.id, found.unwrapped.first) == ("Walk-v0", 1.0)
    config = ExperimentConfig(algo=BCConfig()).merge({"data.path": str(tmp_path / "recorded"), "env.id": DATASET_ENV})
    assert with_dataset_env(config, None).env.id == "walk_module:Walk-v0"
