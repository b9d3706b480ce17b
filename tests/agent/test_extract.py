"""States of a world model: written for recorded rows, observed, edited, and imagined on from."""

import json

import numpy as np
import pytest
import torch
import zarr

import reverie
from corridor_env import Corridor
from reverie.agent import extract as extraction
from reverie.agent.extract import extract, rechunk
from reverie.agent.world_model_inspector import ModelState
from reverie.algos.imagination import open_loop
from reverie.api import train_config as train
from reverie.cli import main
from reverie.core.errors import DataError
from reverie.core.seeding import seeded_rng
from reverie.experiment.settings import make_preset
from reverie.log.jsonl import read_metrics


@pytest.fixture(scope="module")
def agent(corridor):
    return reverie.load(corridor, env=Corridor)


def arrays_in(path):
    if path.suffix == ".npz":
        return {name: values for name, values in np.load(path).items() if name != "manifest"}
    group = zarr.open_group(path, mode="r")
    return {name: group[name][:] for name in group.attrs["arrays"]}


@pytest.mark.parametrize("name", ["a.npz", "a.zarr"])
def test_states_are_those_that_the_model_has_of_the_rows(agent, tmp_path, monkeypatch, name):
    """In pieces that neither begin nor end with the episodes, and chunks of several pieces."""
    with agent.open_dataset() as recorded:
        parts = list(recorded.parts())
        whole = {column: np.concatenate([part[column] for part in parts]) for column in parts[0]}
        rows = recorded.batch(whole, 0)
    monkeypatch.setattr(extraction, "PIECE_ROWS", 7)
    monkeypatch.setattr(agent.algo.world.rssm, "draw", lambda probs: probs.argmax(-1))
    found = arrays_in(extract(agent, out=tmp_path / name).path)
    with torch.no_grad():
        _, latent, probs = agent.algo.world.observe(rows)
        expected = agent.algo.describe_latent(latent)
    count = len(whole["reward"])
    assert count > 7 * 3
    assert {len(values) for values in found.values()} == {count}
    np.testing.assert_array_equal(found["episode"], np.cumsum(whole["is_first"]) - 1)
    starts = np.flatnonzero(whole["is_first"])
    np.testing.assert_array_equal(found["step"], np.arange(count) - starts[found["episode"]])
    for column in ("is_first", "is_last", "is_terminal", "reward", "action"):
        np.testing.assert_array_equal(found[column], whole[column])
    for column, values in {
        "state/deter": latent.deter, "state/stoch": latent.stoch, "state/value": expected["inside/value"],
        **{f"prediction/{name}": expected[name] for name in ("sense/x", "reward", "cont")},
        "prediction/eye": expected["eye"].round().clamp(0, 255).to(torch.uint8),
    }.items():  # fmt: skip
        np.testing.assert_allclose(found[column], values[0].numpy(), rtol=1e-4, atol=1e-4, err_msg=column)
    prior = agent.algo.world.rssm.p(latent.deter)
    for column, values in {"posterior/logits": probs, "prior/logits": prior}.items():
        np.testing.assert_allclose(np.exp(found[column]), values[0].detach().numpy(), rtol=1e-3, err_msg=column)


def test_the_same_draws_as_a_dream_of_the_rows(agent, tmp_path):
    done = extract(agent, out=tmp_path / "a.npz", seed=3)
    found, rows = arrays_in(done.path), agent.load_episode(0)
    with seeded_rng(3):
        alone = agent.algo.dream(rows, rows.shape[1])
    state = agent.observe(rows, seed=3)
    for name in ("deter", "stoch"):
        np.testing.assert_array_equal(getattr(state, name)[0], alone[f"inside/{name}"][0, -1])
    np.testing.assert_allclose(found["state/deter"][0], alone["inside/deter"][0, 0], atol=1e-6)
    about = done.manifest
    assert json.loads(str(np.load(done.path)["manifest"])) == about
    told = (about["seed"], about["episodes"], about["checkpoint"])
    assert told == (3, found["episode"][-1] + 1, agent.checkpoint.name)
    shapes = {name: (one["shape"], one["dtype"]) for name, one in about["arrays"].items()}
    assert shapes == {name: (list(values.shape), str(values.dtype)) for name, values in found.items()}
    assert all(one["unit"] for one in about["arrays"].values())


def test_pieces_are_of_one_size_whatever_the_parts():
    columns = np.split(np.arange(20), [1, 2, 11, 11])
    found = list(rechunk(({"is_first": part} for part in columns), 4))
    assert [len(rows["is_first"]) for rows in found] == [4] * 5
    assert np.concatenate([rows["is_first"] for rows in found]).tolist() == list(range(20))


def test_the_command_says_what_it_wrote(nano, tmp_path, capsys):
    out = tmp_path / "deep" / "a.zarr"
    for more, failed, message in (
        ("", 0, "prediction/observation  float32 ["),
        ("--seed 5", 1, "exists: choose another name"),
        ("--seed 5 --overwrite", 0, "written to"),
    ):
        assert main(["extract", str(nano), "--out", str(out), *more.split()]) == failed
        assert message in "".join(capsys.readouterr())
        assert (zarr.open_group(out, mode="r").attrs["seed"] == 5) == ("--overwrite" in more)
    assert [path.name for path in out.parent.iterdir()] == ["a.zarr"]


def test_the_same_state_and_seed_imagine_the_same_and_an_edited_one_another(agent):
    rows = agent.load_episode(0)
    state, actions = agent.observe(rows.slice_time(0, 3)), rows.action[:, 2:6]
    first, again = (agent.imagine(state, actions=actions, seed=1) for _ in range(2))
    assert first.rewards.shape == first.continues.shape == first.values.shape == (1, 5)
    assert first.observations["eye"].shape == (1, 5, *agent.obs_spec["eye"].shape)
    np.testing.assert_array_equal(first.actions, actions)
    for name in ("deter", "stoch", "rewards", "values"):
        np.testing.assert_array_equal(getattr(first, name), getattr(again, name))
    np.testing.assert_array_equal(first.deter[:, 0], state.deter)
    chosen = (int(state.classes[0, 1]) + 1) % 4
    edited = state.replace(classes={1: chosen})
    assert edited.classes[0].tolist() == [*state.classes[0, :1], chosen, *state.classes[0, 2:]]
    other = agent.imagine(edited, actions=actions, seed=1)
    assert (other.rewards[:, 0] != first.rewards[:, 0]).all()  # what it now sees in the state
    assert (other.deter[:, 1] != first.deter[:, 1]).any()  # and what follows
    back = edited.replace(classes={1: state.classes[:, 1]})
    np.testing.assert_array_equal(agent.imagine(back, actions=actions, seed=1).deter, first.deter)
    still = state.replace(deter=0.0)
    assert (still.deter == 0).all()
    np.testing.assert_array_equal(still.stoch, state.stoch)


def test_given_actions_are_followed_as_in_a_dream(agent):
    rows = agent.load_episode(0)
    state, actions = (
        agent.observe(rows.slice_time(0, 2)),
        agent.flatten_actions({"go": [2, 1, 2], "turn": [4.0, 1.0, -2.0]}),
    )
    assert actions.tolist() == [[0, 1, 1], [1, 0, 0], [0, 1, -1]]
    found = agent.imagine(state, actions=actions, seed=2)
    rssm, inside = agent.algo.world.rssm, {name: torch.from_numpy(getattr(state, name)) for name in ("deter", "stoch")}
    with seeded_rng(2):
        expected = open_loop(rssm, rssm.initial(1, torch.float32)._replace(**inside), torch.from_numpy(actions)[None])
    np.testing.assert_array_equal(found.deter[:, 1:], expected.deter)
    on = agent.imagine(found.state(-1), 2, deterministic=False, seed=0)  # now the policy acts
    assert (on.actions[..., :2].sum(-1) == 1).all()
    np.testing.assert_array_equal(on.deter[:, 0], found.deter[:, -1])


def test_a_video_shows_images_or_what_the_environment_draws(agent, nano, tmp_path):
    for number, one in enumerate((agent, reverie.load(nano))):
        imagined = one.imagine(one.observe(one.load_episode(0)), 3)
        assert imagined.video(tmp_path / f"{number}.mp4").stat().st_size > 500


def test_actions_of_the_environment_are_no_rows(agent):
    with pytest.raises(DataError, match=r"agent\.flatten_actions"):
        agent.imagine(agent.observe(agent.load_episode(0)), actions=[0, 1])


@pytest.fixture(scope="module")
def mapped(tmp_path_factory):
    """PyDreamer on MiniGrid, whose probe has hardly learned."""
    config = make_preset("pydreamer_minigrid+cpu").merge({"env.id": "MiniGrid-Empty-5x5-v0"})
    few = {"steps": 60, "learning_starts": 20, "random_steps": 10, "replay_ratio": 0.1, "algo.batch_length": 8}
    run = tmp_path_factory.mktemp("runs") / "mapped"
    train(config.merge(few | {"eval_episodes": 0, "tensorboard": False, "console": False}), run=run)
    names = {name for row in read_metrics(run / "metrics.jsonl") for name in row}
    assert {"train/probe/map_accuracy", "loss/probe/map"} <= names
    return reverie.load(run)


def test_probes_are_extracted_and_asked(mapped, tmp_path):
    done = extract(mapped, out=tmp_path / "a.npz")
    found, rows = arrays_in(done.path), mapped.load_episode(0)
    assert done.manifest["arrays"]["probe/map"]["unit"] == "probability of each class [n, C]"
    assert not any("prediction/map" in name for name in found)
    state = ModelState(found["state/deter"][:3], found["state/stoch"][:3].astype(np.float32))
    coord = rows.obs["map_coord"][0, :3].numpy()
    said = mapped.probe(state, {"map_coord": coord})
    np.testing.assert_allclose(said["map"], found["probe/map"][:3], atol=1e-5)
    moved = mapped.probe(state, inputs={"map_coord": -coord})
    assert np.abs(moved["map"] - said["map"]).max() > 1e-4
    assert mapped.probe(state) == {}


def test_a_state_is_steered_toward_what_the_probe_shall_say(mapped, tmp_path):
    rows = mapped.load_episode(0)
    state, given = mapped.observe(rows.slice_time(0, 3)), {"map_coord": rows.obs["map_coord"][0, 2].numpy()}
    other = np.full((5, 5), 3)
    edited = mapped.steer(state, {"map": other}, given)
    before, after = (mapped.probe(one, given)["map"][..., 3] for one in (state, edited))
    assert np.log(after).mean() > np.log(before).mean() + 0.3
    np.testing.assert_array_equal(edited.stoch, state.stoch)
    assert np.abs(edited.deter).max() <= 1
    assert mapped.imagine(edited, 4).video(tmp_path / "a.mp4").stat().st_size > 0  # drawn from what is predicted
    with pytest.raises(DataError, match="no probe for view: expected some of map"):
        mapped.steer(state, {"map": other, "view": 1}, given)
