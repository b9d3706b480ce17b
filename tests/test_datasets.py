"""What is done with recorded data: written in other formats, and in part."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace

import gymnasium
import h5py
import numpy as np
import pytest
from gymnasium import spaces

from d4rl_files import columns
from d4rl_files import write as write_hdf5
from minari_files import buffer, texts
from minari_files import write as write_minari
from recordings import FORMATS, LIVED, assert_same, check, expected, joined, same_rows
from reverie.agent.recording import stacked
from reverie.core.errors import ConfigError, DataError
from reverie.core.spaces import ActionCodec
from reverie.datasets.convert import Subset, subsample, write
from reverie.datasets.dataset import Recorded
from reverie.datasets.detect import open_reader
from reverie.datasets.validate import validate
from reverie.store import zarr
from reverie.store.places import LocalObjects

minari = pytest.importorskip("minari")


# ---------------------------------------------------------------- convert


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
            unbounded = to == "minari" and isinstance(space, spaces.Box)
            assert unbounded == any("without bounds" in remark for remark in reader.remarks())
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
    found = codec.decode(flat, np.arange(20) == 19)
    for row, action in enumerate(map(codec, flat[:19])):
        for name, value in action.items():
            np.testing.assert_allclose(found[f"action/{name}"][row], value, atol=1e-6, err_msg=name)
            assert found[f"action/{name}"].dtype == space[name].dtype
    assert not any(values[19].any() for values in found.values())


def seeds_of(path):
    reader = open_reader(path)
    return [reader.seed(i) for i in range(reader.count)]


def test_seeds_go_along(tmp_path):
    """Of whole episodes, and of pieces that begin where their episode does."""
    source = write_minari(tmp_path / "d", [replace(buffer(e), seed=70 + e.number) for e in LIVED])
    write(open_reader(str(source)), str(tmp_path / "all"))
    assert seeds_of(str(tmp_path / "all")) == [71, 72, 73, 74, 75]
    with open_reader(str(source)) as reader:
        write(
            reader, str(tmp_path / "some"), choose=lambda episodes: (e for i, e in enumerate(episodes) if i in (1, 4))
        )
        assert seeds_of(str(tmp_path / "some")) == [72, 75]
        steps = subsample(reader, Subset(steps=9, by="step", seed=1))
        write(reader, str(tmp_path / "steps"), choose=steps)
    with open_reader(str(tmp_path / "steps")) as reader:
        rows = joined(reader.parts())
    begins = rows["obs"][rows["is_first"]]
    assert seeds_of(str(tmp_path / "steps")) == [70 + int(n) if t == 0 else None for n, t in begins]


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
        assert "a-v0: an episode without steps is left out" in report.remarks
        assert not [remark for remark in report.remarks if "replayed" in remark]
        write(reader, str(tmp_path / "out"))
    with open_reader(str(tmp_path / "out")) as copied:
        assert [copied.seed(i) for i in range(copied.count)] == [11, 2**63 + 5, 44]
        assert copied.about().env_kwargs == {"sutton_barto_reward": True}
    carts(tmp_path / "in/c-v0", 55)
    other = r"c-v0 has the environment .*kwargs.*: {}.*, but others have .*sutton_barto_reward"
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
        write(reader, str(tmp_path / "steps"), choose=subsample(reader, Subset(fraction=1.0, by="step")))
    for name in ("all", "steps"):
        copy = list(minari.MinariDataset(tmp_path / name / "data"))
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
    with pytest.raises(DataError, match="the reward of row"):
        write(open_reader(str(write_hdf5(tmp_path / "a.hdf5", values))), str(tmp_path / "out"), "store")
    assert not any(thread.name == "store" for thread in threading.enumerate() if thread not in before)
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name and path.suffix != ".lock"] == []


# ---------------------------------------------------------------- subsample


def kept(reader, share):
    choose = subsample(reader, share)
    from reverie.core.rows import episodes_of

    return list(choose(episodes_of(reader.parts())))


def test_whole_episodes(d4rl):
    whole = joined(open_reader(str(d4rl)).parts())
    found = kept(open_reader(str(d4rl)), Subset(steps=6, seed=1))
    again = kept(open_reader(str(d4rl)), Subset(steps=6, seed=1))
    numbers = [int(rows["obs"][0, 0]) for rows in found]
    assert numbers == sorted(numbers) == [int(rows["obs"][0, 0]) for rows in again]
    lengths = {e.number: e.steps for e in LIVED}
    steps = [lengths[number] for number in numbers]
    assert 6 <= sum(steps) < 6 + max(steps)
    for rows in found:
        mine = whole["obs"][:, 0] == rows["obs"][0, 0]
        assert_same(rows, {name: values[mine] for name, values in whole.items()})
    others = {
        tuple(int(rows["obs"][0, 0]) for rows in kept(open_reader(str(d4rl)), Subset(steps=6, seed=s)))
        for s in range(8)
    }
    assert len(others) > 1


def test_single_steps(d4rl):
    """Each step that is kept leads to what it led to, with its reward; what follows each other stays together."""
    found = kept(open_reader(str(d4rl)), Subset(fraction=0.5, by="step", seed=2))
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
        found = kept(open_reader(str(d4rl)), Subset(fraction=1.0, by=by))
        assert_same({name: np.concatenate([rows[name] for rows in found]) for name in found[0]}, expected(LIVED))


def test_shares_that_cannot_be(d4rl):
    for values in ({}, {"fraction": 0.1, "steps": 3}, {"fraction": 0.0}, {"fraction": 2.0}, {"steps": 0}):
        with pytest.raises(ConfigError, match=r"fraction|steps"):
            Subset(**values)
    with pytest.raises(ConfigError, match=r"seed = -1: expected at least 0\."):
        Subset(steps=5, seed=-1)
    with pytest.raises(ConfigError, match="the dataset has only 14 steps"):
        subsample(open_reader(str(d4rl)), Subset(steps=15))
