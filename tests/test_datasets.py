"""What is done with recorded data: written in other formats, in part, without what cannot be right; and recorded."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

import reverie
from reverie.agent.recording import RecordConfig, noisy, play, record, stacked
from reverie.algos.bc import BCConfig
from reverie.cli import main as cli
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.lock import lock_of
from reverie.core.signature import signature
from reverie.data import columnar, output
from reverie.data.export import decoded_actions
from reverie.data.readers import minari as minari_reader
from reverie.data.readers.base import About
from reverie.data.readers.detect import open_reader
from reverie.data.readers.spaces import in_units
from reverie.data.readers.store import flat_columns
from reverie.data.store import zarr
from reverie.data.store.objects import LocalObjects
from reverie.data.validation import Validator
from reverie.datasets import Share, good, part, unflattened, validate, write
from reverie.envs.naming import written
from reverie.envs.spaces import ActionCodec
from reverie.experiment import ExperimentConfig
from reverie.offline import resolved
from reverie.recorded import Recorded

sys.path.insert(0, str(Path(__file__).parent / "data"))

from recordings import FIELDS, LIVED, Lived, assert_same, check, expected, joined  # beside the readers
from test_readers_hdf5 import columns
from test_readers_hdf5 import write as write_hdf5
from test_readers_minari import buffer, texts
from test_readers_minari import write as write_minari

minari = pytest.importorskip("minari")


@pytest.fixture
def d4rl(tmp_path):
    return write_hdf5(tmp_path / "a.hdf5", columns())


def same_rows(one, two):
    """Both give the same rows to a learner, whatever the observation is called."""
    a, b = (joined(Recorded(open_reader(str(path))).parts()) for path in (one, two))
    names = {name: sorted(n for n in rows if n.startswith("obs/")) for name, rows in (("a", a), ("b", b))}
    for mine, theirs in [*zip(names["a"], names["b"], strict=True), *((n, n) for n in ("action", *FIELDS))]:
        np.testing.assert_array_equal(a[mine], b[theirs], err_msg=mine)


# ---------------------------------------------------------------- convert


FORMATS = ["minari", "d4rl", "parquet", "pydreamer", "store"]


@pytest.mark.parametrize("to", FORMATS)
def test_convert_and_back(d4rl, tmp_path, to):
    done = write(open_reader(str(d4rl)), str(tmp_path / "out"), to)
    assert (done.episodes, done.steps) == (5, 14)
    same_rows(d4rl, tmp_path / "out")
    write(open_reader(str(tmp_path / "out")), str(tmp_path / "back"))
    same_rows(d4rl, tmp_path / "back")
    check(open_reader(str(tmp_path / "back")), expected(LIVED))


@pytest.mark.parametrize(("seen", "taken"), [(np.float64, np.float64), (np.int64, np.float64), (np.int16, np.float32)])
def test_numbers_without_a_space_stay_as_recorded(tmp_path, seen, taken):
    """Minari gets the smallest floats that hold them; learners still see float32."""
    values = columns() | {"actions": (np.pi * np.arange(14)[:, None]).astype(taken)}
    for name in ("observations", "next_observations"):
        values[name] = (1.764e12 * values[name] if seen != np.int16 else values[name]).astype(seen)
    source = write_hdf5(tmp_path / "a.hdf5", values)
    write(open_reader(str(source)), str(tmp_path / "b"))
    write(open_reader(str(tmp_path / "b")), str(tmp_path / "c.hdf5"), "d4rl")
    first = joined(open_reader(str(source)).parts())
    for path in (tmp_path / "b", tmp_path / "c.hdf5"):
        with open_reader(str(path)) as reader:
            about, rows = reader.about(), joined(reader.parts())
        assert (about.observation.dtype, about.action.dtype) == (np.result_type(seen, np.float32), taken)
        assert_same({name: rows[name] for name in ("obs", "action")}, {name: first[name] for name in ("obs", "action")})
    same_rows(source, tmp_path / "b")


def test_numbers_that_no_space_holds_are_refused(tmp_path):
    values = columns() | {"observations": np.full((14, 2), 2**53 + 1)}
    values.pop("next_observations")
    source = write_hdf5(tmp_path / "a.hdf5", values)
    with pytest.raises(DataError, match="'obs' has the value 9007199254740993, which float64, the type of its space"):
        write(open_reader(str(source)), str(tmp_path / "b"))
    half = buffer(LIVED[0], LIVED[0].observations + 0.5)
    source = write_minari(tmp_path / "d", [half], spaces.Box(0, 99, (2,), np.int64))
    with pytest.raises(DataError, match=r"'obs' has the value \d+\.5, which int64, the type of its space"):
        write(open_reader(str(source)), str(tmp_path / "b"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "d"]


def test_an_infinite_action_space_stays_as_declared(tmp_path):
    """Its bounds are measured to learn from it, not to write it."""
    half = spaces.Box(np.float64([-np.inf]), np.float64([9]), dtype=np.float64)
    space = spaces.Dict({"move": half, "turn": spaces.Box(-1, 1, (1,), np.float32)})
    for name in ("a", "b"):
        buffers = [buffer(e, actions={"move": np.pi * e.actions.astype("f8"), "turn": e.actions}) for e in LIVED]
        write_minari(tmp_path / "both" / name, buffers, action=space)
    for source in (tmp_path / "both" / "a", tmp_path / "both"):
        with open_reader(str(source)) as reader:
            write(reader, str(tmp_path / f"copy-{source.name}"))
            assert not reader.remarks()
            first = joined(reader.parts())
        with open_reader(str(tmp_path / f"copy-{source.name}")) as reader:
            assert (reader.action, reader.about().declared, reader.about().measured) == (space, space, True)
            assert_same(joined(reader.parts()), first)


def test_discrete_actions_through_every_format(tmp_path):
    path = write_hdf5(tmp_path / "a.hdf5", columns() | {"actions": np.concatenate([e.choices for e in LIVED])})
    before = path
    for i, to in enumerate(["pydreamer", "parquet", "store", "d4rl", "minari", "store", "d4rl", "pydreamer", "minari"]):
        write(open_reader(str(before)), str(tmp_path / f"{i}"), to)
        before = tmp_path / f"{i}"
    same_rows(path, before)
    assert open_reader(str(before)).about().action == spaces.Discrete(5)


def test_nested_spaces_come_out_of_minari_as_they_were(tmp_path):
    observation = spaces.Dict({"state": spaces.Box(-99, 99, (2,), np.float32), "pair": spaces.Tuple(
        (spaces.Discrete(100), spaces.Text(8, charset="0123456789.")))})  # fmt: skip
    action = spaces.Dict({"move": spaces.Box(-1, 1, (1,), np.float32), "grip": spaces.Discrete(5)})
    buffers = [
        buffer(e, {"state": e.observations, "pair": (np.arange(e.steps + 1), texts(e))},
               {"move": e.actions, "grip": e.choices})
        for e in LIVED
    ]  # fmt: skip
    source = write_minari(tmp_path / "d", buffers, observation, action)
    write(open_reader(str(source)), str(tmp_path / "out"))
    one, two = (open_reader(str(path)) for path in (source, tmp_path / "out"))
    assert (one.about().observation, one.about().action) == (two.about().observation, two.about().action)
    assert_same(joined(two.parts()), joined(one.parts()))
    whole = minari.MinariDataset(tmp_path / "out/data")
    assert whole.total_steps == 14
    assert whole[0].observations["pair"][1] == texts(LIVED[0])
    write(open_reader(str(source)), str(tmp_path / "store"), "store")
    same_rows(source, tmp_path / "store")


def test_the_environment_goes_along(tmp_path):
    env = gymnasium.make("CartPole-v1")
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], np.zeros((4, 4), np.float32), np.zeros(3, int))],
                          env.observation_space, env.action_space, env_spec=env.spec)  # fmt: skip
    write(open_reader(str(source)), str(tmp_path / "out"))
    assert minari.MinariDataset(tmp_path / "out/data").recover_environment().spec.id == "CartPole-v1"
    for to in ("store", "d4rl"):
        write(open_reader(str(source)), str(tmp_path / to), to)
        with open_reader(str(tmp_path / to)) as reader:
            assert reader.env_id() == reader.about().env == "CartPole-v1"
            assert reader.about().action == spaces.Discrete(2)


def test_bounds_and_units_of_actions_go_along(tmp_path):
    """As recorded where a format holds that: not measured, and not scaled to [-1, 1]."""
    source = write_minari(tmp_path / "d", [buffer(e) for e in LIVED], action=spaces.Box(-2, 4, (1,), np.float32))
    write(open_reader(str(source)), str(tmp_path / "a.hdf5"), "d4rl")
    with open_reader(str(tmp_path / "a.hdf5")) as reader:
        assert reader.about().action == spaces.Box(-2, 4, (1,), np.float32)
        assert not reader.about().measured
        assert not reader.remarks()
    with h5py.File(tmp_path / "a.hdf5") as file:
        np.testing.assert_array_equal(file["actions"], np.concatenate([e.actions for e in LIVED]))
        np.testing.assert_array_equal(file["timeouts"], np.concatenate([e.timeouts for e in LIVED]))
        np.testing.assert_array_equal(file["next_observations"], columns()["next_observations"])


@pytest.mark.parametrize(
    ("actions", "space"),
    [(lambda e: 10 * e.actions, spaces.Box(-2, 6, (1,), np.float32)), (lambda e: e.choices, spaces.Discrete(9))],
    ids=["continuous", "discrete"],
)
def test_what_is_not_declared_stays_not_declared(tmp_path, actions, space):
    """Whoever learns from a copy takes the environment's space, as from the original."""
    source = write_hdf5(tmp_path / "a.hdf5", columns() | {"actions": np.concatenate([actions(e) for e in LIVED])})

    def learned(path):
        reader = open_reader(str(path))
        assert reader.about().measured
        return joined(Recorded(reader, action_space=space).parts())["action"]

    before, wanted = source, learned(source)
    for i, to in enumerate(["minari", "store", "minari", "d4rl", "store", "store", "parquet", "minari"]):
        with open_reader(str(before)) as reader:
            write(reader, str(tmp_path / f"{i}"), to)
            assert (to == "minari") == any("without bounds" in remark for remark in reader.remarks())
        before = tmp_path / f"{i}"
        np.testing.assert_allclose(learned(before), wanted, atol=1e-6, err_msg=f"{i} {to}")
    assert validate(open_reader(str(before))).sound
    if isinstance(space, spaces.Box):  # honest to others as well
        assert minari.MinariDataset(before / "data").action_space == spaces.Box(-np.inf, np.inf, (1,), np.float32)
    with open_reader(str(before)) as reader:
        write(reader, str(tmp_path / "npz"), "pydreamer")
        assert any("files do not store" in remark for remark in reader.remarks())


@pytest.mark.parametrize(
    ("space", "formats"),
    [
        (spaces.Discrete(3, start=-1), ["d4rl", "parquet"]),
        (spaces.Discrete(3, start=1), ["d4rl", "parquet"]),
        (spaces.Box(0, 10, (2,), np.int64), ["d4rl", "parquet"]),
        (spaces.Box(np.float32([-2, 0]), np.float32([2, 4])), ["d4rl", "parquet"]),
        (spaces.MultiDiscrete([3, 4], start=[1, -2]), ["d4rl", "parquet"]),
        (spaces.MultiBinary(3), ["d4rl", "parquet"]),
        (spaces.Dict({"a": spaces.Discrete(9, start=2), "b": spaces.Tuple((spaces.MultiBinary(2),))}), ["parquet"]),
    ],
    ids=str,
)
def test_declared_actions_are_declared_by_every_format(tmp_path, space, formats):
    space.seed(0)
    buffers = [buffer(e, actions=stacked(space, [space.sample() for _ in range(e.steps)], "action")) for e in LIVED]
    source = write_minari(tmp_path / "d", buffers, action=space)
    for to in [*formats, "store"]:
        write(open_reader(str(source)), str(tmp_path / to), to)
        write(open_reader(str(tmp_path / to)), str(tmp_path / f"{to}-back"))
        for path in (tmp_path / to, tmp_path / f"{to}-back"):
            about = open_reader(str(path)).about()
            assert (about.action, about.measured) == (space, False)
            same_rows(source, path)


def a_run(d4rl, folder, env):
    """A run's own rows: actions in [-1, 1], and settings that name the environment."""
    write(open_reader(str(d4rl)), str(folder), "store")
    (folder / "about.json").unlink()
    (folder / "config.yaml").write_text(json.dumps({"algorithm": "sac", "experiment": {"env": env}}))
    return folder


@pytest.mark.parametrize("to", ["minari", "d4rl"])
def test_actions_of_a_run_are_those_of_the_environment_that_is_named(d4rl, tmp_path, to):
    run = a_run(d4rl, tmp_path / "run", {"id": "Pendulum-v1", "kwargs": {"g": 9.0}, "time_limit": 50})
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"), to)
        assert not reader.remarks()
    with open_reader(str(tmp_path / "copy")) as reader:
        about, rows = reader.about(), joined(reader.parts())
    assert (about.env, about.action) == ("Pendulum-v1", spaces.Box(-2, 2, (1,), np.float32))
    whole = joined(open_reader(str(d4rl)).parts())
    np.testing.assert_array_equal(rows["action"], 2 * whole["action"])
    same_rows(run, tmp_path / "copy")  # to learn from
    if to == "minari":
        env = minari.MinariDataset(tmp_path / "copy/data").recover_environment()
        assert (env.unwrapped.g, env.spec.max_episode_steps) == (9.0, 50)


def test_settings_that_a_name_does_not_say_are_said(d4rl, tmp_path):
    run = a_run(d4rl, tmp_path / "run", {"id": "Pendulum-v1", "num": 4, "action_repeat": 2, "time_limit": 50})
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"))
        said = "the copy names Pendulum-v1, but not its settings while recording: env.action_repeat = 2"
        assert reader.remarks() == [said]


@pytest.mark.parametrize(
    ("env", "why"),
    [("Nowhere-v0", "Nowhere"), ("CartPole-v1", r"CartPole-v1, Discrete\(2\)"), ("Ant:gone", "gone|Ant")],
)
@pytest.mark.parametrize("to", ["minari", "d4rl"])
def test_an_environment_that_does_not_answer_is_not_named(d4rl, tmp_path, to, env, why):
    run = a_run(d4rl, tmp_path / "run", {"id": env})
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"), to)
        assert re.search(f"not named in the copy .*({why})", str(reader.remarks()))
    assert open_reader(str(tmp_path / "copy")).about().env == ""
    same_rows(run, tmp_path / "copy")


def test_several_runs_are_asked_one_by_one(d4rl, tmp_path):
    for name in ("a", "b"):
        a_run(d4rl, tmp_path / "runs" / name, {"id": "Pendulum-v1"})
    reader = open_reader(str(tmp_path / "runs"))
    assert validate(reader).episodes == 10
    write(reader, str(tmp_path / "copy"))
    assert open_reader(str(tmp_path / "copy")).about().action == spaces.Box(-2, 2, (1,), np.float32)


def test_a_store_keeps_what_its_actions_stand_for(tmp_path):
    """Also where the environment cannot be asked, and through other stores."""
    space = spaces.Box(-2, 4, (1,), np.float32)
    source = write_minari(tmp_path / "d", [buffer(e) for e in LIVED], action=space)
    before = source
    for i, to in enumerate(["store", "store", "minari"]):
        write(open_reader(str(before)), str(tmp_path / f"{i}"), to)
        before = tmp_path / f"{i}"
        assert open_reader(str(before)).about().action == space
    one, two = (joined(open_reader(str(path)).parts())["action"] for path in (source, before))
    np.testing.assert_allclose(one, two, atol=1e-6)


def test_stored_actions_in_units_are_what_environments_get():
    space = spaces.Dict({
        "whole": spaces.Box(0, 10, (2,), np.int64), "wide": spaces.Box(-2, 6, (2, 2), np.float32),
        "sign": spaces.Discrete(3, start=-1), "two": spaces.MultiDiscrete([3, 4], start=[1, -2]),
        "one": spaces.MultiDiscrete([3]), "bits": spaces.MultiBinary(3)})  # fmt: skip
    codec = ActionCodec(space)
    flat = np.random.default_rng(0).uniform(-1.2, 1.2, (20, codec.spec.width)).astype("f4")
    stored = flat_columns(decoded_actions(flat, signature({}, codec.spec)), "action")
    found = in_units(stored, space, np.arange(20) == 19)
    for row, action in enumerate(map(codec, flat[:19])):
        for name, value in action.items():
            np.testing.assert_allclose(found[f"action/{name}"][row], value, atol=1e-6, err_msg=name)
            assert found[f"action/{name}"].dtype == space[name].dtype
    assert not any(values[19].any() for values in found.values())


def test_several_observations_and_pictures_as_columns(tmp_path):
    rng = np.random.default_rng(0)
    both = {"arm": {"at": rng.normal(size=(4, 2)).astype("f4"), "on": rng.normal(size=4).astype("f4")}}
    space = spaces.Dict({"arm": spaces.Dict({
        "at": spaces.Box(-9, 9, (2,), np.float32), "on": spaces.Box(-9, 9, (), np.float32)})})  # fmt: skip
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], both)], space)
    write(open_reader(str(source)), str(tmp_path / "p"), "parquet")
    same_rows(source, tmp_path / "p")  # the tables say which column is what
    with pytest.raises(
        ConfigError, match=r"one array of observations.*, not obs/arm/at .*, obs/arm/on .* of .*--to minari"
    ):
        write(open_reader(str(source)), str(tmp_path / "a.hdf5"), "d4rl")
    pictures = rng.integers(0, 256, (4, 8, 9, 3), dtype=np.uint8)
    source = write_minari(tmp_path / "i", [buffer(LIVED[0], pictures)], spaces.Box(0, 255, (8, 9, 3), np.uint8))
    write(open_reader(str(source)), str(tmp_path / "b.hdf5"), "d4rl")
    same_rows(source, tmp_path / "b.hdf5")
    with pytest.raises(ConfigError, match="numbers and vectors, not obs"):
        write(open_reader(str(source)), str(tmp_path / "q"), "parquet")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.hdf5", "d", "i", "p"]


@pytest.mark.parametrize("to", ["d4rl", "parquet"])
def test_columns_without_numbers_are_refused(tmp_path, to):
    """Alone, or beside others."""
    none = spaces.Box(-1, 1, (0,), np.float32)
    for name, space in {"a": none, "b": spaces.Dict({"at": spaces.Box(-1, 1, (2,), np.float32), "no": none})}.items():
        source = write_minari(tmp_path / name, [buffer(LIVED[0], stacked(space, [space.sample()] * 4, "obs"))], space)
        with pytest.raises(ConfigError, match=r"can only store .*, not obs.*\(shape \[0\], float32\) of this dataset"):
            write(open_reader(str(source)), str(tmp_path / "out"), to)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


@pytest.mark.parametrize("to", ["d4rl", "parquet"])
def test_columns_keep_their_type(tmp_path, monkeypatch, to):
    """What is written first decides it: integers are not to become of later fractions."""
    monkeypatch.setattr(columnar, "BUFFERED", 1)
    monkeypatch.setattr(minari_reader, "PART_BYTES", 1)
    space = spaces.Box(0, 99, (2,), np.int64)
    parts = [buffer(LIVED[0], LIVED[0].observations.astype(np.int64)), buffer(LIVED[1], LIVED[1].observations + 0.5)]
    source = write_minari(tmp_path / "d", parts, space)
    with pytest.raises(DataError, match=r"'obs' is int64 in the first episodes, but float.* in later ones"):
        write(open_reader(str(source)), str(tmp_path / "out"), to)
    source = write_minari(tmp_path / "e", parts[::-1], space)
    write(open_reader(str(source)), str(tmp_path / "out"), to)
    same_rows(source, tmp_path / "out")


def test_tables_have_one_name_for_two_columns(tmp_path):
    at = spaces.Box(-9, 9, (2,), np.float32)
    space = spaces.Dict({"arm": spaces.Dict({"at": at}), "arm.at": at})
    obs = {"arm": {"at": np.zeros((4, 2), np.float32)}, "arm.at": np.ones((4, 2), np.float32)}
    source = write_minari(tmp_path / "d", [buffer(LIVED[0], obs)], space)
    both = r"tables would call both obs/arm/at and obs/arm\.at 'observation\.arm\.at'"
    with pytest.raises(ConfigError, match=both):
        write(open_reader(str(source)), str(tmp_path / "p"), "parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_seeds_go_along(tmp_path):
    """Of whole episodes, and of pieces that begin where their episode does."""
    source = write_minari(tmp_path / "d", [replace(buffer(e), seed=70 + e.number) for e in LIVED])
    write(open_reader(str(source)), str(tmp_path / "all"))
    assert open_reader(str(tmp_path / "all")).seeds() == [71, 72, 73, 74, 75]
    with open_reader(str(source)) as reader:
        write(
            reader, str(tmp_path / "some"), choose=lambda episodes: (e for i, e in enumerate(episodes) if i in (1, 4))
        )
        assert open_reader(str(tmp_path / "some")).seeds() == [72, 75]
        steps = part(reader, Share(steps=9, by="step", seed=1))
        write(reader, str(tmp_path / "steps"), choose=steps)
    with open_reader(str(tmp_path / "steps")) as reader:
        rows = joined(reader.parts())
    begins = rows["obs"][rows["is_first"]]
    assert open_reader(str(tmp_path / "steps")).seeds() == [70 + int(n) if t == 0 else None for n, t in begins]


def played(seed, steps, **kwargs):
    """An episode of CartPole, and the specification of its environment."""
    env = gymnasium.make("CartPole-v1", **kwargs)
    seen, actions = [env.reset(seed=seed)[0]], np.arange(steps) % 2
    ends = [env.step(action) for action in actions]
    none = np.zeros(steps, bool)
    lived = SimpleNamespace(
        observations=np.array([*seen, *(end[0] for end in ends)]),
        actions=actions,
        rewards=np.array([end[1] for end in ends]),
        terminals=none,
        timeouts=np.arange(steps) == steps - 1,
    )
    return replace(buffer(lived), seed=seed), env


def carts(folder, *seeds, without_steps=0, **kwargs):
    """A Minari dataset with an episode for each seed, in which the one of the seed ``without_steps`` has none."""
    episodes = [played(seed, 0 if seed == without_steps else 5, **kwargs) for seed in seeds]
    env = episodes[0][1]
    return write_minari(
        folder, [e for e, _ in episodes], env.observation_space, env.action_space, "arrow", env_spec=env.spec
    )


def test_seeds_belong_to_their_episodes(tmp_path):
    """Also after an episode without steps, in several datasets, and if the seed needs 64 bits."""
    carts(tmp_path / "in/a-v0", 11, 22, 2**63 + 5, without_steps=22, sutton_barto_reward=True)
    carts(tmp_path / "in/b-v0", 44, sutton_barto_reward=True)
    with open_reader(str(tmp_path / "in")) as reader:
        report = validate(reader, replayed=9)
        assert report.sound
        assert report.remarks == ["a-v0: an episode without steps is left out"]
        write(reader, str(tmp_path / "out"))
    with open_reader(str(tmp_path / "out")) as copied:
        assert copied.seeds() == [11, 2**63 + 5, 44]
        assert copied.about().env_kwargs == {"sutton_barto_reward": True}
    carts(tmp_path / "in/c-v0", 55)
    other = r"c-v0 was recorded with env\.kwargs = {}, but .*a-v0 with env\.kwargs = {'sutton_barto_reward': True}"
    with pytest.raises(DataError, match=other):
        open_reader(str(tmp_path / "in")).about()
    again = carts(tmp_path / "again", 11, 11)
    assert list(validate(open_reader(str(again))).findings) == ["duplicate of an earlier episode"]


@pytest.mark.parametrize("storage", ["hdf5", "arrow"])
def test_ends_that_are_both_go_along(tmp_path, storage):
    """Terminal as time ran out: to learners it is terminal."""
    ended = [e.terminals | (np.arange(e.steps) == e.steps - 1) for e in LIVED]
    buffers = [replace(buffer(e), truncations=end.tolist()) for e, end in zip(LIVED, ended, strict=True)]
    source = write_minari(tmp_path / "d", buffers, storage=storage)
    with open_reader(str(source)) as reader:
        write(reader, str(tmp_path / "all"))
        write(reader, str(tmp_path / "steps"), choose=part(reader, Share(fraction=1.0, by="step")))
    for name in ("all", "steps"):
        copy = list(minari.MinariDataset(tmp_path / name / "data"))
        for one, lived, end in zip(copy, LIVED, ended, strict=True):
            assert (one.terminations.tolist(), one.truncations.tolist()) == (lived.terminals.tolist(), end.tolist())
    check(open_reader(str(tmp_path / "all")), expected(LIVED))


def test_what_exists_stays_and_what_fails_leaves_nothing(d4rl, tmp_path):
    (tmp_path / "out").mkdir()
    for to in FORMATS:
        with pytest.raises(RunError, match="out exists: choose another name"):
            write(open_reader(str(d4rl)), str(tmp_path / "out"), to)
    values = columns()
    values["observations"][9] = np.nan
    broken = write_hdf5(tmp_path / "b.hdf5", values)
    for to in ("pydreamer", "store"):  # those of learners; Minari takes what was recorded
        with pytest.raises(DataError, match="row 12"):
            write(open_reader(str(broken)), str(tmp_path / to), to)
    for to in ("minari", "d4rl", "parquet", "store"):
        with pytest.raises(RunError, match="no episodes"):
            write(open_reader(str(d4rl)), str(tmp_path / "none"), to, lambda episodes: iter(()))
    with pytest.raises(ConfigError, match="pass a path for the format store"):
        write(open_reader(str(d4rl)), "minari:a/b-v0", "store")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.hdf5", "b.hdf5", "out"]


@pytest.mark.parametrize(
    ("name", "to", "said"),
    [
        ("b.hdf5", "minari", r"suffix of HDF5, but the format minari is written as a folder: .* --to d4rl`"),
        ("b.H5", "parquet", r"suffix of HDF5, but the format parquet is written as Parquet: .* --to d4rl`"),
        ("b.npz", "d4rl", r"suffix of npz, but the format d4rl is written as HDF5: .* --to pydreamer`"),
        ("b.parquet", "store", r"suffix of Parquet, but the format store is written as a folder: .* --to parquet`"),
        ("b.arrow", "parquet", r"suffix of Arrow, but the format parquet is written as Parquet: pass another name\.$"),
    ],
)
def test_names_of_another_format_are_refused(d4rl, tmp_path, name, to, said):
    with pytest.raises(ConfigError, match=rf"{name} has the {said}"):
        write(open_reader(str(d4rl)), str(tmp_path / name), to)
    assert [path.name for path in tmp_path.iterdir()] == ["a.hdf5"]


def test_one_process_at_a_time_writes_a_target(d4rl, tmp_path, monkeypatch):
    for to in FORMATS:
        half = tmp_path / f".{to}.part" / "half"
        half.parent.mkdir()
        half.write_text("of a process that lives, or was killed")
        with lock_of(tmp_path / to):
            with pytest.raises(RunError, match=f"{to} is in use by process {os.getpid()} .*, or choose another name"):
                write(open_reader(str(d4rl)), str(tmp_path / to), to)
            assert half.exists()
        write(open_reader(str(d4rl)), str(tmp_path / to), to)
        assert not list(tmp_path.glob(f"{to}/half"))

    def finished(path):
        path.mkdir()
        return lock_of(path)

    monkeypatch.setattr(output, "lock_of", finished)  # by another process, just before this one gets the lock
    with pytest.raises(RunError, match="late exists"):
        write(open_reader(str(d4rl)), str(tmp_path / "late"), "d4rl")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["a.hdf5", "late", *FORMATS])


def test_to_a_name_of_minaris(d4rl, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    write(open_reader(str(d4rl)), "minari:tests/written-v0")
    same_rows(d4rl, "minari:tests/written-v0")
    assert minari.load_dataset("tests/written-v0").total_episodes == 5


# ---------------------------------------------------------------- subsample


def kept(reader, share):
    choose = part(reader, share)
    from reverie.data.episodes import episodes_of

    return list(choose(episodes_of(reader.parts())))


def test_whole_episodes(d4rl):
    whole = joined(open_reader(str(d4rl)).parts())
    found = kept(open_reader(str(d4rl)), Share(steps=6, seed=1))
    again = kept(open_reader(str(d4rl)), Share(steps=6, seed=1))
    numbers = [int(rows["obs"][0, 0]) for rows in found]
    assert numbers == sorted(numbers) == [int(rows["obs"][0, 0]) for rows in again]
    lengths = {e.number: e.steps for e in LIVED}
    steps = [lengths[number] for number in numbers]
    assert 6 <= sum(steps) < 6 + max(steps)
    for rows in found:
        mine = whole["obs"][:, 0] == rows["obs"][0, 0]
        assert_same(rows, {name: values[mine] for name, values in whole.items()})
    others = {
        tuple(int(rows["obs"][0, 0]) for rows in kept(open_reader(str(d4rl)), Share(steps=6, seed=s))) for s in range(8)
    }
    assert len(others) > 1


def test_single_steps(d4rl):
    """Each step that is kept leads to what it led to, with its reward; what follows each other stays together."""
    found = kept(open_reader(str(d4rl)), Share(fraction=0.5, by="step", seed=2))
    steps = []
    for rows in found:
        assert rows["is_first"].tolist() == [True] + [False] * (len(rows["reward"]) - 1)
        assert rows["is_last"].tolist() == [False] * (len(rows["reward"]) - 1) + [True]
        assert rows["reward"][0] == 0
        assert not rows["action"][-1].any()
        for i in range(len(rows["reward"]) - 1):
            number, t = (int(x) for x in rows["obs"][i])
            episode = LIVED[number - 1]
            steps.append((number, t))
            assert rows["obs"][i + 1].tolist() == episode.obs(t + 1)
            assert rows["action"][i, 0] == np.float32(episode.action(t))
            assert rows["reward"][i + 1] == np.float32(episode.reward(t))
            assert rows["is_terminal"][i + 1] == (episode.end == "terminal" and t == episode.steps - 1)
        assert not rows["is_terminal"][:-1].any()
    assert len(steps) == len(set(steps)) == 7
    assert steps == sorted(steps)


def test_all_of_it_is_all_of_it(d4rl):
    for by in ("episode", "step"):
        found = kept(open_reader(str(d4rl)), Share(fraction=1.0, by=by))
        assert_same({name: np.concatenate([rows[name] for rows in found]) for name in found[0]}, expected(LIVED))


def test_shares_that_cannot_be(d4rl):
    for values in ({}, {"fraction": 0.1, "steps": 3}, {"fraction": 0.0}, {"fraction": 2.0}, {"steps": 0}):
        with pytest.raises(ConfigError, match=r"fraction|steps"):
            Share(**values)
    with pytest.raises(ConfigError, match=r"seed = -1: expected at least 0\."):
        Share(steps=5, seed=-1)
    with pytest.raises(ConfigError, match="the dataset has only 14 steps"):
        part(open_reader(str(d4rl)), Share(steps=15))


# ---------------------------------------------------------------- validate


def report(tmp_path, change, lived=LIVED):
    values = columns(lived)
    change(values)
    return validate(open_reader(str(write_hdf5(tmp_path / "a.hdf5", values))))


def at(name, index, value):
    return lambda values: values[name].__setitem__(index, value)


@pytest.mark.parametrize(
    ("change", "rule", "bad"),
    [
        (at("observations", (5, 1), np.nan), "obs is NaN or infinite", [2]),
        (at("rewards", 4, np.inf), "reward is NaN or infinite", [2]),
        (at("actions", 13, np.nan), "action is NaN or infinite", [4]),
        (at("next_observations", (2, 0), -np.inf), "obs is NaN or infinite", [0]),
        (at("observations", (0, 0), 1e35), "never written", [0]),
    ],
)
def test_rules_of_numbers(tmp_path, change, rule, bad):
    found = report(tmp_path, change)
    assert any(rule in text for text in found.findings), found
    assert set(bad) <= set(found.bad)
    assert found.bad == bad
    assert not found.sound


def test_rows_that_were_never_written(tmp_path):
    lived = [*LIVED, Lived(6, 14, "truncated")]

    def blank(values):
        for name in ("observations", "next_observations", "actions", "rewards"):
            values[name][14:] = 0

    found = report(tmp_path, blank, lived)
    assert found.bad == [5]
    assert any("all values are 0: never written?" in text for text in found.findings)


@pytest.mark.parametrize("unused", [np.nan, 1e35, 7.0])
def test_the_action_of_the_last_row_is_not_used(unused):
    box = spaces.Box(-1, 1, (1,), np.float32)
    rows = {name: np.array(values) for name, values in expected(LIVED[:1]).items()}
    rows |= {"obs": np.full((4, 1), 0.5, np.float32), "action": np.zeros((4, 1), np.float32)}
    rows["action"][-1] = unused
    assert Validator(About(observation=box, action=box)).add(rows)
    rows["action"][0] = unused
    assert not Validator(About(observation=box, action=box)).add(rows)


@pytest.mark.parametrize("space", [spaces.Discrete(4), spaces.Box(0, 4, (2,), np.int64), spaces.MultiDiscrete([3, 3])])
def test_class_numbers_may_stay_0(space):
    about = About(observation=space, action=spaces.Discrete(3))
    zeros = np.zeros((15, *space.shape), space.dtype)
    flags = {name: np.zeros(15, bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_first"][0] = flags["is_last"][-1] = True
    rows = {"obs": zeros, "action": np.zeros(15, np.int64), "reward": np.zeros(15, np.float32), **flags}
    assert Validator(about).add(rows)


def test_a_step_out_of_order(tmp_path):
    found = report(tmp_path, lambda values: values["observations"].__setitem__(6, [77, 77]))
    assert found.bad == [2]
    assert "out of order?: 1 row in 1 episode, first in episode 2" in str(*found.findings.values())


def test_the_same_episode_twice(tmp_path):
    found = report(tmp_path, lambda values: None, [*LIVED, LIVED[2]])
    assert found.bad == [5]
    assert any("duplicate of an earlier episode" in text for text in found.findings)


def test_bounds_of_declared_spaces(tmp_path):
    actions = [e.actions.copy() for e in LIVED]
    actions[2][1] = 1.5
    observations = [e.observations.copy() for e in LIVED]
    observations[4][0] = -3
    source = write_minari(
        tmp_path / "d", [buffer(e, o, a) for e, o, a in zip(LIVED, observations, actions, strict=True)],
        spaces.Box(0, 99, (2,), np.float32),
    )  # fmt: skip
    found = validate(open_reader(str(source)))
    assert found.bad == [2, 4]
    assert {"obs is outside the bounds of its space", "action is outside the bounds of its space"} == set(
        found.findings
    )


def test_values_of_another_kind_than_declared(tmp_path):
    source = write_minari(
        tmp_path / "d", [buffer(e, e.observations + 0.5) for e in LIVED], spaces.Box(0, 99, (2,), np.int64)
    )
    found = validate(open_reader(str(source)))
    assert found.bad == [0, 1, 2, 3, 4]
    assert "obs has dtype float32; its space declares int64" in found.findings
    source = write_minari(tmp_path / "e", [buffer(e, e.observations[:, :1]) for e in LIVED])
    assert "obs has shape (1,); its space declares (2,)" in validate(open_reader(str(source))).findings


def test_what_is_sound_is_said_to_be_and_what_was_assumed_as_well(tmp_path):
    found = report(tmp_path, lambda values: None, [*LIVED, Lived(7, 2, "open")])
    assert found.sound
    assert (found.episodes, found.rows) == (6, 22)
    assert any("an episode has no end" in remark for remark in found.remarks)
    assert any("replayed in an environment: the data do not name one" in remark for remark in found.remarks)


def test_a_negative_number_of_episodes_cannot_be_replayed(d4rl):
    with pytest.raises(ConfigError, match="replay = -1: expected at least 0"):
        validate(open_reader(str(d4rl)), -1)


@pytest.mark.parametrize("to", FORMATS)
def test_the_good_episodes_go_elsewhere(tmp_path, to):
    path = tmp_path / "a.hdf5"
    found = report(tmp_path, lambda values: values["rewards"].__setitem__([3, 12], np.nan))
    assert found.bad == [1, 4]
    before = path.read_bytes()
    write(open_reader(str(path)), str(tmp_path / "good"), to, good(found))
    same_rows(write_hdf5(tmp_path / "b.hdf5", columns([LIVED[0], LIVED[2], LIVED[3]])), tmp_path / "good")
    assert path.read_bytes() == before


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
    with pytest.raises(DataError, match="the reward of row"):
        write(open_reader(str(write_hdf5(tmp_path / "a.hdf5", values))), str(tmp_path / "out"), "store")
    assert not any(thread.name == "store" for thread in threading.enumerate() if thread not in before)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name and path.suffix != ".lock"] == []


# ---------------------------------------------------------------- record


@pytest.fixture(scope="module")
def agent(tmp_path_factory):
    from tiny import SETTINGS

    folder = tmp_path_factory.mktemp("runs") / "run"
    settings = {name: value for name, value in SETTINGS.items() if name not in ("algo", "env")}
    more = {"steps": 30, "learning_starts": 10, "replay_ratio": 0.1, "eval_episodes": 0}
    small = {"algo.batch_size": 4, "algo.networks.units": (8,)}
    reverie.train("td3", "Pendulum-v1", run=folder, say=lambda text: None, **settings | more, random_steps=5, **small)
    return reverie.load(folder)


def test_record_episodes_and_play_them_again(agent, tmp_path):
    done = record(agent, str(tmp_path / "d"), RecordConfig(episodes=2, epsilon=0.3, noise=0.2, seed=4))
    assert (done.episodes, done.steps) == (2, 400)
    reader = open_reader(str(tmp_path / "d"))
    assert reader.about().env == "Pendulum-v1"
    assert reader.about().action == agent.action_space
    assert validate(reader, replayed=2).sound
    again = record(agent, str(tmp_path / "e"), RecordConfig(episodes=2, epsilon=0.3, noise=0.2, seed=4))
    one, two = (joined(open_reader(str(tmp_path / name)).parts()) for name in "de")
    assert_same(two, one)
    assert again.steps == 400
    actions = one["action"][~one["is_last"]]
    assert actions.min() >= -2
    assert actions.max() <= 2
    assert len(np.unique(actions)) > 300


def test_a_reward_that_the_environment_does_not_give_is_found(agent, tmp_path):
    record(agent, str(tmp_path / "d"), RecordConfig(episodes=2))
    with h5py.File(tmp_path / "d/data/main_data.hdf5", "a") as file:
        file["episode_1/rewards"][7] += 1.0
    found = validate(open_reader(str(tmp_path / "d")))
    assert found.bad == [1]
    rule = next(iter(found.findings.values()))
    assert str(rule).startswith(
        "differs from a replay in Pendulum-v1 with its seed and actions: 1 row in 1 episode, first in row 209"
    )


def test_record_steps(agent, tmp_path):
    done = record(agent, str(tmp_path / "d"), RecordConfig(steps=250))
    assert (done.episodes, done.steps) == (2, 250)
    rows = joined(open_reader(str(tmp_path / "d")).parts())
    assert rows["is_last"].nonzero()[0].tolist() == [200, 251]
    assert not rows["is_terminal"].any()


def test_an_end_that_is_terminal_and_truncated_is_recorded_as_both(agent):
    class Short(gymnasium.Wrapper):
        def step(self, action):
            obs, reward, _, _, info = self.env.step(action)
            return obs, reward, True, True, info

    env = Short(gymnasium.make("Pendulum-v1"))
    episode = play(agent, env, RecordConfig(episodes=1), np.random.default_rng(0), 0, None)
    assert episode["terminations"].tolist() == episode["truncations"].tolist() == [True]


def test_a_reward_that_is_an_array_of_one_number_is_recorded(agent):
    class Arrays(gymnasium.Wrapper):
        def step(self, action):
            obs, _, *_, info = self.env.step(action)
            return obs, np.array([0.5]), np.array([False]), False, info

    episode = play(agent, Arrays(gymnasium.make("Pendulum-v1")), RecordConfig(steps=3), np.random.default_rng(0), 0, 3)
    assert episode["rewards"].tolist() == [0.5, 0.5, 0.5]
    assert episode["truncations"].tolist() == [False, False, True]


def test_environments_that_reuse_their_arrays(agent):
    """Each step is recorded as it was, whatever becomes of the arrays that it came and went with."""

    class Reuses(gymnasium.Wrapper):
        def reset(self, **options):
            obs, info = self.env.reset(**options)
            self.held = obs.copy()
            return self.held, info

        def step(self, action):
            obs, *rest = self.env.step(action.copy())
            action[:], self.held[:] = 0, obs
            return self.held, *rest

    plain = gymnasium.make("Pendulum-v1")
    one, two = (
        play(agent, env, RecordConfig(steps=4), np.random.default_rng(0), 0, 4) for env in (plain, Reuses(plain))
    )
    for name in ("observations", "actions"):
        np.testing.assert_array_equal(one[name], two[name])
        assert len(np.unique(one[name], axis=0)) == len(one[name])


def test_observations_that_their_space_cannot_hold_are_not_recorded(agent, tmp_path, monkeypatch):
    env = gymnasium.make("Pendulum-v1")
    env.observation_space = spaces.Box(0, 255, (3,), np.uint8)
    monkeypatch.setattr(agent, "make_env", lambda: env)
    with pytest.raises(DataError, match=r"episode 0: obs is -?\d.* in row 0: expected a value of uint8"):
        record(agent, str(tmp_path / "d"), RecordConfig(steps=3))
    assert not [path for path in tmp_path.iterdir() if path.suffix != ".lock"]


def test_episodes_that_cannot_be_given_back_are_named():
    def back(rows):
        raise DataError("obs is 300.0 in row 2")

    with pytest.raises(DataError, match=r"episode 0: obs is 300\.0 in row 2\."):
        list(unflattened([{}], back))


def test_without_noise_the_agent_does_what_it_does(agent, tmp_path):
    record(agent, str(tmp_path / "d"), RecordConfig(episodes=1))
    rows = joined(open_reader(str(tmp_path / "d")).parts())
    state = None
    for obs, action in zip(rows["obs"][:-1], rows["action"][:-1], strict=True):
        chosen, state = agent.act(obs, state)
        np.testing.assert_allclose(chosen, action, rtol=1e-5, atol=1e-6)


def test_epsilon_of_one_is_the_space_alone(agent, tmp_path):
    record(agent, str(tmp_path / "d"), RecordConfig(episodes=1, epsilon=1.0, seed=3))
    actions = joined(open_reader(str(tmp_path / "d")).parts())["action"][:-1]
    assert abs(actions.mean()) < 0.35
    assert actions.std() == pytest.approx(2 / np.sqrt(3), abs=0.2)


@pytest.mark.parametrize("space", [spaces.Discrete(3), spaces.Box(0, 4, (2,), np.int64)])
def test_noise_needs_actions_that_are_floats(space, tmp_path):
    env = SimpleNamespace(action_space=space, close=lambda: None)
    with pytest.raises(ConfigError, match=r"noise = 0\.1: expected continuous actions"):
        record(SimpleNamespace(make_env=lambda: env), str(tmp_path / "d"), RecordConfig(episodes=1, noise=0.1))


def test_noise_is_in_half_of_the_range_and_stays_inside():
    rng = np.random.default_rng(0)
    space = spaces.Dict({"a": spaces.Box(-10, 30, (2,), np.float32), "b": spaces.Discrete(3)})
    found = [noisy(space, {"a": np.full(2, 10, np.float32), "b": 1}, 0.1, rng) for _ in range(2000)]
    values = np.array([one["a"] for one in found])
    assert values.std() == pytest.approx(2.0, rel=0.1)
    assert values.mean() == pytest.approx(10.0, abs=0.2)
    assert {one["b"] for one in found} == {1}
    wide = np.array([noisy(space, {"a": np.full(2, 30, np.float32), "b": 1}, 5.0, rng)["a"] for _ in range(50)])
    assert wide.min() >= -10
    assert wide.max() <= 30


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
gymnasium.register("Made-v0", entry_point=lambda: Walk(), max_episode_steps=7)
"""


@pytest.fixture
def walked(tmp_path, monkeypatch):
    """What trains on an environment of somebody's own, and what forgets its module, as another process has."""
    (tmp_path / "walk_module.py").write_text(WALK)
    monkeypatch.syspath_prepend(str(tmp_path))

    def forget():
        sys.modules.pop("walk_module", None)
        for name in ("Walk-v0", "Made-v0"):
            gymnasium.registry.pop(name, None)

    def trained(name, **more):
        settings = {"steps": 40, "learning_starts": 20, "eval_episodes": 0, "tensorboard": False, "console": False}
        reverie.train("dqn", f"walk_module:{name}", run=tmp_path / "run", say=lambda text: None, **settings | more)
        return tmp_path / "run"

    yield trained, forget
    forget()


def test_an_environment_of_ones_own_is_found_again(walked, tmp_path, capsys):
    """Of a class, whose module registers it: recorded, converted, and by who does not know us."""
    trained, forget = walked
    run = trained("Walk-v0", env_options={"kwargs": {"first": 1.0}})
    assert cli(["data", "record", str(run), str(tmp_path / "recorded"), "--episodes", "2"]) == 0
    assert "remark" not in capsys.readouterr().err
    for source, name in (("run", "converted"), ("recorded", "again")):
        forget()
        with open_reader(str(tmp_path / source)) as reader:
            write(reader, str(tmp_path / name))
    for name in ("recorded", "converted", "again"):
        forget()
        with open_reader(str(tmp_path / name)) as reader:
            about = reader.about()
            assert (reader.env_id(), about.env, about.time_limit) == (*["walk_module:Walk-v0"] * 2, 7)
            report = validate(reader)
            assert (report.sound, "in an environment:" in str(report.remarks)) == (True, False)
        found = minari.MinariDataset(tmp_path / name / "data").recover_environment()
        assert (found.spec.id, found.unwrapped.first) == ("Walk-v0", 1.0)
    config = ExperimentConfig(algo=BCConfig()).merge({"data.path": str(tmp_path / "recorded")})
    assert resolved(config, None, str).env.id == "walk_module:Walk-v0"


def test_a_run_gives_back_the_spaces_of_its_environment(walked, tmp_path):
    trained, forget = walked
    run, space = trained("Walk-v0"), gymnasium.make("Walk-v0").observation_space
    forget()
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"))
    forget()
    with open_reader(str(tmp_path / "copy")) as reader:
        assert reader.about().observation == space
        assert set(joined(reader.parts())["obs/last"]) == {-1, 0, 1}
    same_rows(run, tmp_path / "copy")
    config = {"updates": 3, "eval_episodes": 1, "tensorboard": False, "console": False}
    reverie.train("bc", data=str(tmp_path / "copy"), run=tmp_path / "bc", say=lambda text: None, **config)


def test_a_run_whose_environment_is_gone_keeps_classes(walked, tmp_path):
    trained, forget = walked
    run = trained("Walk-v0")
    forget()
    (tmp_path / "walk_module.py").unlink()
    with open_reader(str(run)) as reader:
        write(reader, str(tmp_path / "copy"))
        assert "not named in the copy" in str(reader.remarks())
    with open_reader(str(tmp_path / "copy")) as reader:
        assert reader.about().observation["last"] == spaces.Discrete(3)
    same_rows(run, tmp_path / "copy")


def test_what_makes_an_environment_is_left_out_where_nobody_finds_it(walked, tmp_path, capsys):
    trained, forget = walked
    run = trained("Made-v0")
    assert cli(["data", "record", str(run), str(tmp_path / "recorded"), "--episodes", "2"]) == 0
    assert (
        "remark   other processes cannot import the entry point of Made-v0, <function <lambda>"
        in capsys.readouterr().err
    )
    forget()
    with open_reader(str(tmp_path / "recorded")) as reader:
        assert reader.about().env == "walk_module:Made-v0"
        assert validate(reader).sound
    spec = replace(gymnasium.spec("CartPole-v1"), kwargs={"at": np.zeros(2)})
    text, remark = written(spec)
    assert text == ""
    assert "does not name its environment CartPole-v1: its arguments cannot be written as JSON" in remark


def test_recordings_that_cannot_be(agent, tmp_path):
    for values in (
        {},
        {"episodes": 1, "steps": 1},
        {"episodes": 0},
        {"steps": 1, "epsilon": 2.0},
        {"steps": 1, "noise": -1.0},
        {"steps": 1, "noise": float("inf")},
        {"steps": 1, "seed": -1},
    ):
        with pytest.raises(ConfigError, match=f"{list(values)[-1] if values else 'steps'} = "):
            RecordConfig(**values)
    with pytest.raises(ConfigError, match=r"d\.h5 has the suffix of HDF5"):
        record(agent, str(tmp_path / "d.h5"), RecordConfig(steps=3))
    record(agent, str(tmp_path / "d"), RecordConfig(steps=3))
    with pytest.raises(RunError, match="d exists"):
        record(agent, str(tmp_path / "d"), RecordConfig(steps=3))
    assert [path.name for path in tmp_path.iterdir()] == ["d"]
