"""An episode and its dream, without a browser."""

import contextlib

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Categorical, Independent, kl_divergence

import reverie
from reverie.agent.loading import load
from reverie.agent.world_model_inspector import ModelState, WorldModelInspector
from reverie.core import wall_clock
from reverie.core.errors import DataError, EnvError
from reverie.core.seeding import derived_seeds
from reverie.objectives.transforms import RewardTransform
from reverie.viewer import export
from reverie.viewer.episode_source import RecordedEnv, action_names
from reverie.viewer.export import export_episode
from reverie.viewer.model_free_values import critic_rewards
from reverie.viewer.session import Session
from tiny_configs import FEW


@pytest.fixture(scope="module")
def agent(folder):
    return load(folder / "dreamer")


@pytest.fixture
def session(agent):
    with contextlib.closing(Session(agent)) as session:
        yield session


def played(session, steps):
    for _ in range(steps):
        session.step()
    return session


def deters(session):
    return np.stack([row.latent.deter[0].numpy() for row in session.timeline.dream])


def test_the_episode_is_the_one_that_an_evaluation_plays(agent, session):
    found = agent.evaluate(1)
    while not session.timeline.real[-1].values["last"]:
        session.step()
    rewards = [row.values["reward"] for row in session.timeline.real]
    assert (len(rewards) - 1, sum(rewards)) == (found.lengths[0], found.scores[0])
    assert session.seed == derived_seeds(agent.config.seed)["test"]
    with pytest.raises(DataError, match="over"):
        session.step()


def test_the_dream_follows_the_model_under_the_actions_that_were_taken(agent, session):
    played(session, 8)
    line = session.timeline
    assert [row.origin for row in line.dream] == ["seen"] * 5 + ["imagined"] * 4
    assert all(
        torch.equal(a.latent.deter, b.state.latent.deter) for a, b in zip(line.dream[:5], line.real, strict=False)
    )
    for t in range(4, 8):
        state = ModelState(line.dream[t].latent.deter.numpy(), line.dream[t].latent.stoch.numpy())
        after = agent.imagine(state, actions=line.actions[t])
        assert line.dream[t + 1].latent.deter[0].numpy() == pytest.approx(after.deter[0, 1], abs=1e-6)
        both = line.dream[t + 1].predictions["observation"], line.real[t + 1].step.obs["observation"][0].numpy()
        told = session.rows(t + 1)[0]
        assert told["error"]["observation"] == pytest.approx(np.linalg.norm(both[0] - both[1]) / 2)  # of 4 numbers


def test_surprise_and_entropies(agent, session):
    played(session, 2)
    world, (before, row) = agent.algo.world, session.timeline.real[1:3]
    seen, action = world.embed(row.step.obs)[:, None], session.timeline.actions[1][:, None]
    posterior, stats = world.rssm.observe(before.state.latent, seen, action, row.step.is_first[:, None])
    assert torch.allclose(posterior.deter[:, 0], row.state.latent.deter, atol=1e-5)
    p, q = (Independent(Categorical(x[0]), 1) for x in (stats[:, 0], world.rssm.p(posterior.deter[:, 0])))
    expected = {"kl": kl_divergence(p, q), "posterior_entropy": p.entropy(), "prior_entropy": q.entropy()}
    for name, value in expected.items():
        assert row.values[name] == pytest.approx(float(value.detach()), abs=1e-4), name


def test_predicted_return_by_hand(agent):
    said = {"reward": np.array([[1.0, 2.0]]), "cont": np.array([[0.5, 0.25]]), "inside/value": np.array([[9.0, 8.0]])}
    gamma = agent.algo.world.discount
    expected = 1 + gamma * 0.5 * 2 + gamma**2 * 0.5 * 0.25 * 8
    assert WorldModelInspector(agent).predicted_return(said) == pytest.approx([expected])


def test_lanes_replace_nothing_and_are_undone(session):
    played(session, 6)
    first, rows = session.timeline, deters(session)
    session.step(3, first.actions[3][0].tolist())
    assert session.lanes == [first]  # the same action: the row is known
    session.step(3, (1 - first.actions[3][0]).tolist())
    hands = session.timeline
    session.dream(2, 4)
    session.branch(4, "sample", 3)
    session.switch_lane(0)
    session.pick(1)
    future = session.timeline
    assert [(lane["name"], lane["parent"], lane["at"], lane["length"]) for lane in session.describe_lanes()] == [
        ("dream", None, -1, 7), ("your hands", 0, 3, 5), ("dream 2", 0, 2, 7), ("future", 2, 4, 8),
    ]  # fmt: skip
    assert (len(first.real), len(hands.real), len(first.actions), len(hands.actions)) == (7, 5, 6, 4)
    assert all(a is b for a, b in zip(first.dream[:4], hands.dream, strict=False))
    assert all(a is b for a, b in zip(first.real[:4], hands.real, strict=False))
    session.step()  # the environment plays the actions of this lane again
    assert (session.timeline is future, len(future.real), len(first.real)) == (True, 4, 7)
    assert torch.equal(future.real[3].step.obs["observation"], first.real[3].step.obs["observation"]) == torch.equal(
        future.actions[2], first.actions[2]
    )
    assert session.switch_lane(1) == 3  # the first row whose action differs, or the dream
    session.edit(4, 0, 0)
    session.edit(4, 1, 0)
    assert session.timeline.parent is hands
    assert [session.undo() for _ in range(5)][:2] == [4, 4]
    assert (session.timeline is first, session.lanes) == (True, [first])
    assert np.array_equal(deters(session), rows)
    with pytest.raises(DataError, match="nothing to undo"):
        session.undo()
    for _ in range(11):
        session.dream(1, 1)
    with pytest.raises(DataError, match="12 lanes"):
        session.dream(0, 1)


def test_a_dream_stops_at_its_end(session, monkeypatch):
    played(session, 5)
    predict = session.inspector.predict
    monkeypatch.setattr(
        session.inspector,
        "predict",
        lambda latents: predict(latents) | {"cont": np.zeros((1, len(latents)), np.float32)},
    )
    session.dream(4, 6, past_end=False)
    assert len(session.timeline.dream) == 6
    session.dream(5, 3)
    assert (len(session.timeline.dream), len(session.timeline.actions)) == (9, 8)


def test_another_action_in_the_past_begins_another_line(session):
    played(session, 6)
    actions, state = list(session.timeline.actions), session.timeline.real[3].step.obs["observation"]
    other = [float(x) for x in 1 - actions[3][0]]
    session.step(3, other)
    assert len(session.timeline.real) == len(session.timeline.dream) == 5
    assert session.timeline.actions[3].tolist() == [other]
    twin = gymnasium.make("CartPole-v1")
    twin.reset(seed=0)
    twin.unwrapped.state = state[0].numpy().astype(np.float64)
    found = session.timeline.real[4].step.obs["observation"][0].numpy()
    assert found == pytest.approx(twin.step(int(other[1]))[0], abs=1e-5)


def test_an_environment_that_does_not_repeat_itself(session):
    played(session, 6)
    reset = session.source.reset
    session.source.reset = lambda seed: reset(seed + 1)
    with pytest.raises(EnvError, match="not deterministic"):
        session.step(2, [0, 1])
    assert session.dream(2, 5) == 3  # the dream goes on all the same
    assert (len(session.timeline.dream), len(session.timeline.real)) == (8, 3)


def test_dreaming_on_and_letting_it_happen(session):
    played(session, 3)
    session.dream(3, 20, [1.0, 0.0])
    assert (len(session.timeline.real), len(session.timeline.dream), len(session.timeline.actions)) == (4, 24, 23)
    dreamt, actions = deters(session), list(session.timeline.actions)
    assert actions[3].tolist() == [[1, 0]]
    played(session, 3)
    assert np.array_equal(deters(session), dreamt)  # reality follows, and changes no dream
    assert all(map(torch.equal, session.timeline.actions, actions))
    session.step(None, [float(x) for x in 1 - actions[6][0]])
    assert len(session.timeline.dream) == 8  # until another action is taken


def test_seeing_more_or_less(session):
    played(session, 8)
    for seen in (9, 2):
        session.set_context(seen)
        assert [row.origin for row in session.timeline.dream] == ["seen"] * seen + ["imagined"] * (9 - seen)


@pytest.mark.parametrize(("by", "count"), [("sample", 8), ("action", 2)])
def test_branches(session, by, count):
    played(session, 4)
    before = deters(session)
    futures = session.branch(2, by, 6)
    assert [len(future.rows) for future in futures] == [6] * count
    if by == "action":
        assert [future.actions[0].argmax().item() for future in futures] == [0, 1]
    assert np.array_equal(deters(session), before)
    session.pick(1)
    assert (len(session.timeline.dream), len(session.timeline.actions)) == (9, 8)
    assert torch.equal(session.timeline.dream[-1].latent.deter, futures[1].rows[-1].latent.deter)
    session.step()
    assert torch.equal(session.timeline.actions[2], futures[1].actions[0])


def test_no_futures_follow_the_end(session):
    played(session, 6)
    first, second = session.timeline.dream[5:]
    first.predictions["cont"], second.predictions["cont"] = np.float32([0.6, 0.6])
    assert session.timeline.dream_end() is None
    first.predictions["cont"] = np.float32(0.4)
    assert session.timeline.dream_end() == 5
    with pytest.raises(DataError, match="ends at row 5"):
        session.branch(6)
    session.set_context(7)  # the model observes that the episode continues
    assert len(session.branch(6, steps=1)) == 8
    while not session.timeline.real[-1].values["last"]:
        session.step()
    with pytest.raises(DataError, match="terminal"):
        session.branch(len(session.timeline.real) - 1)
    session.set_context(len(session.timeline.real))
    assert session.timeline.dream_end() == len(session.timeline.real) - 1


def test_edits(session):
    played(session, 8)
    before, at = deters(session)[:7], 6
    latent = session.timeline.dream[at].latent
    value = (int(latent.stoch[0, 1].argmax()) + 1) % 4
    assert session.edit(at, 1, value, pin=True) == at
    assert [row.origin for row in session.timeline.dream[5:]] == ["imagined", "edited", "imagined", "imagined"]
    assert all(row.latent.stoch[0, 1].argmax() == value for row in session.timeline.dream[at:])
    assert session.latent(at)["held"] == {"1": value}
    decoded = session.agent.algo.describe_latent(session.timeline.dream[at].latent.map(lambda x: x[:, None]))[
        "observation"
    ]
    assert session.timeline.dream[at].predictions["observation"] == pytest.approx(decoded[0, 0].numpy(), abs=1e-6)
    session.edit(3, 0, 0)
    assert [row.origin for row in session.timeline.dream[2:5]] == ["seen", "edited", "imagined"]
    assert session.timeline.context == 4
    session.undo()
    assert session.undo() == at
    assert np.array_equal(deters(session)[:4], before[:4])
    assert (session.timeline.context, len(session.timeline.pinned_classes)) == (5, 0)


def test_another_checkpoint_dreams_the_same_episode(folder, session):
    played(session, 6)
    session.dream(6, 4)
    real = [row.step for row in session.timeline.real]
    values = [row.values["value"] for row in session.timeline.real]
    first = sorted(path.name for path in (folder / "dreamer/checkpoints").glob("step-*"))[0]
    session.switch_agent(load(folder / "dreamer", checkpoint=first))
    assert [row.step for row in session.timeline.real] == real
    assert len(session.timeline.dream) == 11
    assert [row.values["value"] for row in session.timeline.real] != values
    assert session.info()["checkpoint"] == first
    imagined = [row["error"] for row in session.rows(5)[:2]]  # of the rows that happened
    newest = Session(load(folder / "dreamer"))
    played(newest, 6)
    judged, before = newest.evaluate_agent(session.agent), deters(newest)
    expected = {name: np.mean([one[name] for one in imagined]) for name in imagined[0]}
    assert judged == pytest.approx(expected, rel=1e-6)  # rows judged together are rounded otherwise
    assert (newest.agent.checkpoint.name, len(newest.timeline.real)) != (first, 5)
    assert np.array_equal(deters(newest), before)  # nothing has changed
    assert newest.set_context(7) == 0
    assert newest.evaluate_agent(session.agent) == {}
    session.step(6)


def test_probes_say_what_they_read_and_what_is_true(folder):
    agent = load(folder / "mapped")
    session = played(Session(agent), 6)
    session.dream(6, 2)
    seen, dreamt = (session.latent(at)["probes"] for at in (6, 7))
    state = ModelState(*(x.numpy() for x in session.timeline.dream[6].latent))
    obs = {key: value.numpy() for key, value in session.timeline.real[6].step.obs.items()}
    read = agent.probe(state, {"map_coord": obs["map_coord"]})
    assert np.array_equal(seen["map"]["read"].flatten(), read["map"][0].argmax(-1))
    assert np.array_equal(seen["map"]["chance"].flatten(), read["map"][0].max(-1))
    assert np.array_equal(seen["map"]["truth"], obs["map"][0])
    assert np.array_equal(seen["map_coord"]["read"], read["map_coord"][0])
    assert dreamt["map"] == {}  # the model does not dream where it is
    assert list(dreamt["map_coord"]) == ["read"]
    assert None not in session.picture(5)  # what is decoded is enough to draw it
    session.close()


def test_a_recorded_episode_has_the_names_of_its_actions(folder):
    agent = load(folder / "mapped")
    with contextlib.closing(Session(agent, source=RecordedEnv(agent, None, 0))) as session:
        assert session.info()["names"][:3] == ["left", "right", "forward"]


def test_recorded_episodes(agent):
    session = Session(agent, source=RecordedEnv(agent, None, 0))
    batch = agent.load_episode(0)
    played(session, 4)
    assert session.timeline.real[4].step.reward[0] == batch.reward[0, 4]
    assert torch.equal(torch.stack(session.timeline.actions, 1), batch.action[:, :4])
    with pytest.raises(DataError, match="cannot be changed"):
        session.step(4, [float(x) for x in 1 - batch.action[0, 4]])
    session.dream(4, 3)
    played(session, batch.shape[1] - 5)
    with pytest.raises(DataError, match="over"):
        session.step()


def test_values_of_a_model_free_agent(folder):
    agent = load(folder / "dqn")
    session = played(Session(agent), 3)
    for row in session.timeline.real:
        assert row.values["q"] == pytest.approx(agent.algo.objective.network(row.step.obs)[0].tolist())
        assert row.policy_action[0].argmax() == np.argmax(row.values["q"])
    assert session.rows()[1]["dream"] is None


def test_values_of_an_agent_with_memory(tmp_path):
    sizes = {"env.num": 2, "algo.rollout": 5, "algo.batch_length": 5, "algo.batch_size": 10, "steps": 20}
    few = {name: value for name, value in FEW.items() if name not in ("replay_ratio", "random_steps", "steps")}
    reverie.train("ppo", env="CartPole-v1", run=tmp_path / "ppo", **few, **sizes, **{"algo.networks.memory": "lstm"})
    agent = load(tmp_path / "ppo")
    rows = played(Session(agent), 5).timeline.real
    obs = {"observation": torch.stack([row.step.obs["observation"] for row in rows], 1)}  # [1, T, 4]
    first, network = torch.stack([row.step.is_first for row in rows], 1), agent.algo.objective.network
    found = network(obs, first, torch.zeros(1, network.width))
    assert [row.values["value"] for row in rows] == pytest.approx(found.value[0].tolist(), abs=1e-5)
    assert rows[3].values["policy"] == pytest.approx(found.policy.log_probs[0, 3].exp().tolist(), abs=1e-5)


WRONG = [
    ("step", 99), ("dream", 0, 100_000), ("dream", 0.5), ("set_context", 0), ("pick", 3), ("edit", 0, 99, 0),
    ("edit", 0, 0, 99),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given"), [(name, given) for name, *given in WRONG])
def test_wrong_requests_change_nothing(session, name, given):
    played(session, 2)
    before = deters(session)
    with pytest.raises(DataError):
        getattr(session, name)(*given)
    assert np.array_equal(deters(session), before)
    assert len(session.timeline.real) == 3


def test_files(session, monkeypatch):
    played(session, 6)
    for kind, start in {"mp4": b"\0\0\0", "gif": b"GIF89a", "html": b"<!doctype", "npz": b"PK"}.items():
        name, content = export_episode(session, kind, "a run")
        assert (name.endswith(kind), content.startswith(start), len(content) > 1000) == (True, True, True), kind
    session.step(4, (1 - session.timeline.actions[4][0]).tolist())
    session.dream(2, 7)
    monkeypatch.setattr(export, "_encode_gif", lambda frames, fps: frames)
    _, clip = export_episode(session, "gif", "a run")  # truth and dream above your hands and dream 2
    (length, height, width, _), changed = clip.shape, (clip[-1] != clip[-2]).any(-1)
    assert (length, changed[: height // 2].any(), changed[height // 2 :, width // 2 :].any()) == (10, False, True)


def test_rewards_are_in_the_units_of_a_world_models_critic(folder):
    """A world model may learn a transform of the rewards, such as tanh, of which its critic predicts the return."""
    agent, rewards = load(folder / "mapped"), np.float32([0.0, 0.5, 3.0])
    agent.algo.world.transform = RewardTransform(torch.tanh, torch.atanh)
    assert critic_rewards(agent, rewards) == pytest.approx(np.tanh(rewards))


def test_the_first_showing_is_the_longest_of_six_episodes(agent, monkeypatch):
    monkeypatch.setattr(wall_clock, "monotonic", float)
    with contextlib.closing(Session(agent)) as session:
        first, lengths = session.seed, {}
        for seed in range(first, first + 6):
            session.start(seed)
            while not session.timeline.real[-1].values["last"]:
                session.step()
            lengths[seed] = len(session.timeline.real)
        session.start(first)
        assert session.start_longest() == 6
        assert lengths[session.seed] == max(lengths.values())


def test_a_critic_is_judged_by_rewards_in_its_units(tmp_path):
    scale = {"algo.reward_scale": "factor(0.5)"}
    reverie.train("dqn", env="CartPole-v1", run=tmp_path / "dqn", **FEW, **scale)
    strip = played(Session(load(tmp_path / "dqn")), 3).strip(8)
    assert strip.lines["return that came"][2] == pytest.approx(0.5 + 0.99 * strip.lines["critic"][3])
    assert "scaled" in strip.sentence


def test_the_strip_of_an_episode(agent, session):
    played(session, 8)
    session.dream(8, steps=6)
    strip = session.strip(8)
    assert (len(strip.columns), len(strip.origins), strip.origins[4:6]) == (8, 15, ["seen", "imagined"])
    assert [bool(level) for level in strip.levels][3:12] == [False] * 2 + [True] * 4 + [False] * 3
    with pytest.raises(DataError, match="from 5 to 16"):
        session.strip(400)


def test_a_lane_keeps_the_truth_while_its_actions_agree(session, monkeypatch):
    """It counts imagined steps from the last row that the model has seen in it."""
    played(session, 6)
    first = session.timeline
    same = int(first.actions[2][0].argmax())
    monkeypatch.setattr(type(session), "action_names", ["left", "right"])
    session.branch(2, "action", 4)
    for branch in session.branches:  # the second action differs from the one that the environment took
        branch.actions[1:2] = [1 - first.actions[3]]
    session.pick(same)
    agreeing = session.timeline
    assert (agreeing.real, agreeing.num_seen()) == (first.real[:4], 3)
    assert [row["error"] is None for row in session.rows(3)] == [False, True, True, True]
    session.pick(1 - same)
    assert (len(session.timeline.real), session.describe_lanes()[-1]["name"]) == (3, ["right", "left"][same])
    assert session.describe_lanes()[1]["context"] == 3


def test_an_episode_ends_by_the_word_of_the_environment(session, monkeypatch):
    assert session.describe_ending() == ""
    while not session.timeline.real[-1].values["last"]:
        session.step()
    assert session.describe_ending() == ("the end" if session.timeline.real[-1].values["terminal"] else "time is up")
    monkeypatch.setattr(session.source, "_summaries", {0: {"success_rate": 0.0}})
    assert session.describe_ending() == "failed"


@pytest.mark.parametrize(("names", "expected"), [("LEFT RIGHT JUMP", ["left", "right"]), ("LEFT", [])])
def test_names_of_more_actions_than_there_are(agent, monkeypatch, names, expected):
    env = gymnasium.make("CartPole-v1")
    env.unwrapped.get_action_meanings = names.split
    monkeypatch.setattr(type(agent), "make_env", lambda _: env)
    assert action_names(agent) == expected
