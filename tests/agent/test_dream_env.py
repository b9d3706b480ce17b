"""Dreams as environments: what they answer is what the world model imagines."""

import shutil
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AutoresetMode

import reverie
from corridor_env import Corridor
from masked_env import Masked
from reverie.agent import dream_env as dreams
from reverie.agent.conversion import to_numpy
from reverie.core.errors import ConfigError, DataError
from reverie.core.obs_codec import ObsCodec
from reverie.core.seeding import seeded_rng
from reverie.log.video import to_rgb, upscale
from tiny_configs import FEW, NETWORKS

DREAMERS = ("dreamer_v1", "dreamer_v3", "plan2explore", "r2dreamer")
SMALL = {"rssm": {"deter": 16, "hidden": 8, "stoch": 3}, "horizon": 4}


@pytest.fixture(scope="module", params=DREAMERS)
def dreamer(request, tmp_path_factory):
    """An agent that never learned, of nested observations and mixed actions."""
    run, name = tmp_path_factory.mktemp("runs") / "run", request.param
    v3 = name.endswith("v3") or name == "r2dreamer"
    algo = NETWORKS | {"horizon": 4} if v3 else SMALL
    algo |= {"representation": "decoder"} if name == "r2dreamer" else {}
    keep = {} if v3 else {"include_keys": "sense/.*"}  # the image is smaller than the others' networks need
    reverie.train(name, env=Corridor, run=run, algo=algo, env_options=keep, **FEW)
    agent = reverie.load(run, env=Corridor)
    for bias in list(agent.algo.world.cont.parameters())[-1:]:
        bias.data.fill_(9.0)  # no dream ends
    return agent


def assert_shows(obs, said, row):
    """What the environment shows is what the model predicts of a row, as the corridor would show it."""
    shown = {"sense/x": obs["sense"]["x"], "sense/n": obs["sense"]["n"]} | {k: obs[k] for k in obs if k != "sense"}
    told = {key: values[0, row] for key, values in said.observations.items()}
    expected = {"sense/x": told["sense/x"].clip(-1, 1), "sense/n": told["sense/n"][0].argmax()}
    expected |= {"eye": np.rint(told["eye"]).clip(0, 255).astype(np.uint8)} if "eye" in told else {}
    assert {key: np.asarray(x).dtype for key, x in shown.items()} == {key: x.dtype for key, x in expected.items()}
    for key, value in expected.items():
        np.testing.assert_allclose(np.float64(shown[key]), np.float64(value), atol=1e-5, err_msg=key)


def test_a_dream_is_what_the_agent_imagines_from_the_same_state_and_actions(dreamer):
    state = dreamer.observe(dreamer.load_episode(0).slice_time(0, 3))
    env = reverie.DreamEnv(dreamer, start=state)
    whole = Corridor().observation_space
    assert env.observation_space == (whole if "eye" in dreamer.obs_spec else spaces.Dict(sense=whole["sense"]))
    env.action_space.seed(0)
    actions = [env.action_space.sample() for _ in range(4)]
    flat = np.concatenate([dreamer.flatten_actions({k: np.asarray(v)[None] for k, v in a.items()}) for a in actions])
    said = dreamer.imagine(state, actions=flat, seed=7)
    before = torch.get_rng_state()
    obs, _ = env.reset(seed=7)
    assert_shows(obs, said, 0)
    for row, action in enumerate(actions, 1):
        obs, reward, terminated, truncated, _ = env.step(action)
        assert_shows(obs, said, row)
        assert reward == pytest.approx(said.rewards[0, row], abs=1e-5)
        assert (terminated, truncated) == (False, row == 4)  # the algorithm's horizon
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.filterwarnings("ignore::UserWarning")  # of spaces that are the environment's own
def test_gymnasium_finds_nothing_wrong(dreamer, nano):
    check_env(reverie.DreamEnv(dreamer), skip_render_check=True)
    check_env(reverie.DreamEnv(dreamer, observations="latent", start="prior", ends="likely"), skip_render_check=True)
    if type(dreamer.algo).__name__ == "DreamerV3":  # once
        env = gymnasium.make("reverie/Dream-v0", run=nano, render_mode="rgb_array")
        check_env(env.unwrapped)
        assert env.observation_space == gymnasium.make("CartPole-v1").observation_space


def vector(run, num_envs=3, **settings):
    return gymnasium.make_vec("reverie/Dream-v0", num_envs=num_envs, run=run, **settings)


def test_a_vector_takes_one_step_for_all_and_begins_anew_in_the_step_after_an_end(nano, monkeypatch):
    agent = reverie.load(nano)
    told = ("reward", "cont")
    monkeypatch.setattr(
        agent.algo, "predict_reward_and_cont", lambda latent: dict.fromkeys(told, latent.deter[:, 0].cos())
    )
    env = vector(agent, horizon=2, ends="likely")
    assert env.metadata["autoreset_mode"] == AutoresetMode.NEXT_STEP
    actions = np.array([[0, 1, 1], [1, 1, 0], [0, 0, 0], [1, 0, 1]])
    runs = []
    for _ in range(2):
        obs, _ = env.reset(seed=3)
        found = [obs]
        for number, action in enumerate(actions):
            obs, reward, terminated, truncated, _ = env.step(action)
            found += [obs, reward]
            assert env.observation_space.contains(obs)
            assert (truncated.tolist(), terminated.any()) == ([number in (1, 4)] * 3, False)
            assert (reward == 0).all() == (number == 2)
        runs.append(found)
    for one, two in zip(*runs, strict=True):
        np.testing.assert_array_equal(one, two)
    assert not np.array_equal(env.reset(seed=4)[0], runs[0][0])
    assert not np.array_equal(env.reset()[0], env.reset()[0])


@pytest.mark.parametrize(("ends", "share"), [("likely", 1.0), ("sampled", 0.7)])
def test_dreams_end_where_that_is_likely_or_as_often_as_it_is_predicted(nano, ends, share, monkeypatch):
    agent = reverie.load(nano)
    going_on = torch.cat([torch.full((2000,), 0.3), torch.ones(5)])
    monkeypatch.setattr(agent.algo, "predict_reward_and_cont", lambda _: {"reward": going_on, "cont": going_on})
    env = dreams.DreamVectorEnv(agent, 2005, start="prior", ends=ends)
    env.reset(seed=0)
    _, reward, terminated, truncated, _ = env.step(np.zeros(2005, int))
    assert terminated[:2000].mean() == pytest.approx(share, abs=0.04)
    assert (terminated[2000:].any(), truncated.any()) == (False, False)
    np.testing.assert_allclose(reward, going_on)
    _, reward, again, _, _ = env.step(np.zeros(2005, int))
    assert (again[terminated].any(), reward[terminated].any()) == (False, False)


def test_dreams_begin_from_the_states_of_recorded_rows_whose_past_the_model_has_seen(nano, monkeypatch):
    agent = reverie.load(nano)
    with agent.open_dataset() as recorded:
        rows = recorded.batch(next(recorded.parts()), 0)
    count = rows.shape[1]
    with seeded_rng(dreams.default_seed(agent, None)), torch.no_grad():
        latent = agent.algo.world.observe(rows).latent
    expected = to_numpy(latent.deter[~rows.is_last])
    np.testing.assert_allclose(to_numpy(dreams.start_states(agent, "replay").deter), expected, atol=1e-6)
    monkeypatch.setattr(dreams, "START_ROWS", 4)
    monkeypatch.setattr(dreams, "BURN_IN_ROWS", 3)
    shorter = dreams.start_states(agent, "replay")
    first = rows.is_first[0].tolist()
    told = [at for at in range(count // 4 * 4) if at % 4 == 3 or any(first[at - at % 4 : at + 1])]
    known = [at for at in told if not rows.is_last[0, at]]
    assert len(shorter.deter) == len(known) < len(expected)
    shown = {values.tobytes() for values in vector(agent, 200, observations="latent").reset(seed=0)[0]}
    assert len(shown) == len(known)


def test_the_prior_has_the_memory_with_which_episodes_begin(dreamer):
    state = dreamer.observe(dreamer.load_episode(0).slice_time(0, 1))
    obs, _ = reverie.DreamEnv(dreamer, start="prior", observations="latent").reset(seed=0)
    np.testing.assert_allclose(obs[: state.deter.shape[1]], state.deter[0], atol=1e-5)
    assert obs.shape == (dreamer.algo.world.rssm.feature_width,)


def test_dreams_begin_after_given_rows(nano):
    agent = reverie.load(nano)
    rows = agent.load_episode(0).slice_time(0, 4)
    one, two = (reverie.DreamEnv(agent, start=start) for start in (rows, agent.observe(rows)))
    np.testing.assert_array_equal(one.reset(seed=1)[0], two.reset(seed=2)[0])


@pytest.mark.parametrize("actions", ["discrete", "dict"])
def test_predicted_masks_are_a_part_of_the_observation(tmp_path, actions):
    reverie.train("dreamer_v3", env=lambda: Masked(actions=actions), size="nano", run=tmp_path / "run", **FEW)
    agent = reverie.load(tmp_path / "run", env=lambda: Masked(actions=actions))
    agent.algo.world.mask.forbidden.fill_(True)  # all have been seen to be illegal: so the head is asked
    state, width = agent.observe(agent.load_episode(0).slice_time(0, 2)), agent.action_spec.width
    expected = agent.imagine(state, 1, seed=0).observations["action_mask"][0, 0]
    for observations in ("decoded", "latent"):
        env = reverie.DreamEnv(agent, start=state, observations=observations)
        assert env.observation_space["action_mask"] == spaces.MultiBinary(width)
        obs, _ = env.reset(seed=0)
        assert env.observation_space.contains(obs)
        np.testing.assert_array_equal(obs["action_mask"], expected)
    assert 0 < expected.sum() < width


def test_resized_and_stacked_observations_are_shown_as_the_learner_sees_them(tmp_path):
    options = {"include_keys": "eye", "resize": (8, 8), "frame_stack": 2}
    reverie.train("dreamer_v3", env=Corridor, size="nano", run=tmp_path / "run", env_options=options, **FEW)
    agent = reverie.load(tmp_path / "run", env=Corridor)
    env = reverie.DreamEnv(agent, render_mode="rgb_array")
    assert env.observation_space == spaces.Dict(eye=spaces.Box(0, 255, (8, 8, 8), np.uint8))
    assert ObsCodec(env.observation_space).spec == agent.obs_spec
    obs, _ = env.reset(seed=0)
    assert env.observation_space.contains(obs)
    np.testing.assert_array_equal(env.render(), upscale(to_rgb(obs["eye"][..., 4:]), 256))  # the newest frame


@pytest.mark.parametrize(
    ("space", "predicted", "expected"),
    [
        (spaces.Box(-1, 3, (2,), np.int64), [[-3.2, 1.6]], [[-1, 2]]),
        (spaces.Box(0.0, np.inf, (2,), np.float32), [[-3.25, 1.5]], [[0, 1.5]]),
        (spaces.Discrete(3, start=5), [[[0.1, 0.2, 0.7]]], [7]),
        (spaces.MultiDiscrete([2, 3]), [[[0.9, 0.1, 0.0], [0.1, 0.8, 0.1]]], [[0, 1]]),
        (spaces.Text(2, charset="ab"), [[[0.1, 0.2, 0.7], [0.8, 0.1, 0.1]]], ["b"]),
        (spaces.Box(0, 1, (2, 2, 1), np.uint8), [[[[-4], [120]], [[130], [300]]]], [[[[0], [0]], [[1], [1]]]]),
    ],
)
def test_predictions_become_possible_values(space, predicted, expected):
    codec = ObsCodec(space)
    (leaf,) = codec.leaves
    found = codec.decode({f"obs/{leaf.key}": dreams.clip_to_space(np.array(predicted, np.float32), leaf)})["obs"]
    assert found.tolist() == expected
    assert space.contains(found[0] if found.ndim > 1 else found.tolist()[0])


def test_the_environment_draws_vectors(nano):
    env = vector(nano, 2, render_mode="rgb_array")
    assert env.render() is None
    env.reset(seed=0)
    frames = env.render()
    assert [(frame.shape[-1], frame.std() > 0) for frame in frames] == [(3, True)] * 2


def test_an_agent_learns_in_dreams_and_acts_outside(nano, tmp_path):
    options = {"vectorization": "native", "num": 8, "kwargs": {"run": str(nano)}}
    more = {**FEW, "steps": 64, "replay_ratio": 0.1}
    reverie.train("dqn", env="reverie/Dream-v0", run=tmp_path / "run", env_options=options, **more)

    def outside(num_envs, **_):
        return gymnasium.make_vec("CartPole-v1", num_envs)

    assert min(reverie.load(tmp_path / "run", env=outside).evaluate(2).lengths) > 4


def test_an_agent_acts_in_dreams_of_its_run_behind_the_settings_of_the_environment(nano, tmp_path):
    run = shutil.copytree(nano, tmp_path / "run")
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("full_view: false", "full_view: true"))
    agent = reverie.load(run, env={"id": "reverie/Dream-v0", "kwargs": {"run": str(nano), "horizon": 5}})
    assert 1 <= agent.evaluate(1).lengths[0] <= 5


def test_registered_whichever_is_imported_first():
    code = (
        "import reverie, importlib.util; importlib.util.find_spec('gymnasium'); import gymnasium, sys; "
        "sys.exit(not {f'reverie/{name}-v0' for name in ('Dream', 'Nim', 'TwoRooms')} <= {*gymnasium.registry})"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert "reverie/Dream-v0" in gymnasium.registry  # here Gymnasium was


def test_what_cannot_be_dreamt_is_said(nano, tmp_path):
    agent = reverie.load(nano)
    for settings, error, message in [
        ({"horizon": 0}, ConfigError, "horizon = 0: expected at least 1"),
        ({"observations": "decode"}, ConfigError, r"expected 'decoded' or 'latent'\. Did you mean 'decoded'"),
        ({"ends": "never"}, ConfigError, "ends = 'never': expected 'sampled' or 'likely'"),
        ({"start": "repaly"}, DataError, r"start = 'repaly': .*start = 'prior'"),
    ]:
        with pytest.raises(error, match=message):
            reverie.DreamEnv(agent, **settings)
    with pytest.raises(ResetNeeded, match="call reset"):
        reverie.DreamEnv(agent).step(0)
    few = {**FEW, "replay": {"store_path": "none"}}
    reverie.train("dreamer_v3", env="CartPole-v1", size="nano", run=tmp_path / "rowless", **few)
    with pytest.raises(DataError, match=r"start = 'replay': .* without stored rows.*start = 'prior'"):
        reverie.DreamEnv(tmp_path / "rowless")
    assert reverie.DreamEnv(tmp_path / "rowless", start="prior").reset()[0].shape == (4,)
    reverie.train("dqn", env="CartPole-v1", run=tmp_path / "dqn", **FEW)
    with pytest.raises(ConfigError, match="DQN has no world model"):
        reverie.DreamEnv(tmp_path / "dqn")
