"""Dreams of a world model beside what really happened."""

import json
import shutil

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from corridor_env import Corridor
from reverie.agent import dream_report
from reverie.agent.dream_figures import open_renderer_or_image
from reverie.agent.dream_report import choose_context, collect_beginnings, dream, dream_errors, one_hot_classes
from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.core.specs import ObsPart
from reverie.core.types import Batch
from reverie.experiment.config import ExperimentConfig
from reverie.nn.state_space import Latent
from tiny_configs import NETWORKS, SMALL


@pytest.mark.usefixtures("drawn")
def test_dream_of_everything(corridor, tmp_path):
    agent = load(shutil.copytree(corridor, tmp_path / "run"), env=Corridor)
    report = dream(agent, context=3, horizon=20, episodes=2)
    assert set(report.errors) == {"eye", "sense/x", "sense/n", "reward", "cont"}
    assert {len(error) for error in report.errors.values()} == {7}  # ten rows, of which three were seen
    assert report.baseline_errors["reward"].max() == 0.0
    assert report.baseline_errors["cont"].tolist() == [0.0] * 6 + [1.0]
    assert 0 <= report.errors["sense/n"].min() <= report.errors["sense/n"].max() <= 1
    numbers = json.loads(report.files["numbers"].read_text())
    assert (numbers["context"], numbers["error_per_step"]["eye"]) == (3, pytest.approx(report.errors["eye"].tolist()))
    assert {"video of eye", "traces", "errors", "strip", "numbers", "arrays"} == set(report.files)
    assert all(path.stat().st_size > 500 for path in report.files.values())
    arrays = np.load(report.files["arrays"])
    assert {key.partition("/")[0] for key in arrays} == {"action", "is_first", "is_last", "truth", "dream", "inside"}
    assert {arrays[key].shape[:2] for key in arrays} == {(2, 10)}
    far = np.sqrt(np.square(arrays["dream/reward"] - arrays["truth/reward"])[:, 3:].mean(0))
    assert far == pytest.approx(report.errors["reward"])
    algo = agent.algo
    latent = Latent(*(torch.from_numpy(arrays[f"inside/{name}"]) for name in ("deter", "stoch")))
    with torch.no_grad():
        decoded, reward, _ = algo.world.predict(latent)
        values = algo.critic(latent.feature).mean()
        found = {"dream/reward": reward.mean(), "dream/eye": decoded["eye"].value(), "inside/value": values}
    for name, value in found.items():
        assert value.numpy() == pytest.approx(arrays[name], abs=1e-3), name


class Telling(gymnasium.Env):
    """Shows under the names of a dream's other arrays what they are not: numbers from 100 on."""

    action_space = gymnasium.spaces.Discrete(2)
    observation_space = gymnasium.spaces.Dict(
        {key: gymnasium.spaces.Box(0, 200, (1,), np.float32) for key in ("reward", "cont", "inside/value", "obs/cont")}
    )

    def seen(self):
        return {key: np.array([100 + i + self.t], np.float32) for i, key in enumerate(self.observation_space.spaces)}

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self.seen(), {}

    def step(self, action):
        self.t += 1
        return self.seen(), 1.0, False, self.t == 9, {}


def test_observations_with_names_of_a_dream_are_dreamt_beside_them(tmp_path):
    config = ExperimentConfig().merge(SMALL).merge({"env.id": "Telling", "eval_episodes": 0})
    train(config, env=Telling, run=tmp_path / "run")
    report = dream(load(tmp_path / "run", env=Telling), context=3, horizon=20, episodes=2)
    own = {"obs/reward", "obs/cont", "obs/inside/value", "obs/obs/cont"}
    assert set(report.errors) == own | {"reward", "cont"}
    units = [report.units[name] for name in ("reward", "obs/reward")]
    assert units == ["root-mean-square error", "root-mean-square error in the environment's units"]
    arrays = np.load(report.files["arrays"])
    assert {arrays[f"truth/{name}"].min() >= 100 for name in own} == {True}
    assert all(arrays[f"dream/{name}"].shape == (2, 10, 1) for name in own)
    assert set(arrays["truth/reward"].ravel()) == {0.0, 1.0}
    assert arrays["dream/cont"].shape == arrays["inside/value"].shape == (2, 10)


def rows(*lengths):
    """Episodes ``[1, T]`` of these lengths, all alike."""
    flags, known = ("reward", "is_first", "is_last", "is_terminal"), {"weight": torch.ones(1), "index": torch.arange(1)}
    return [
        Batch(obs={"o": torch.zeros(1, n, 2)}, action=torch.zeros(1, n, 2), **dict.fromkeys(flags, torch.zeros(1, n)),
              **known, extras={})
        for n in lengths
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("lengths", "context", "shape"),
    [((9, 9, 9), 3, (3, 9)), ((6, 9, 12), 3, (2, 9)), ((2, 2, 2), 1, (3, 2)), ((90, 90, 90), 8, (3, 28))],
)
def test_the_context_fits_the_length_of_the_episodes(lengths, context, shape):
    found, episodes = choose_context(iter(rows(*lengths)), 3)
    assert found == context
    assert collect_beginnings(episodes, found, 3, found + 1, 20).shape == shape
    assert collect_beginnings(iter(rows(8, 3, 9)), 2, 2, 5, 20).shape == (1, 9)  # the shortest is left out


def test_dreams_are_of_the_rewards_that_were_learned(copied, monkeypatch):
    agent, seen, see = load(copied), [], dream_report.predict_open_loop
    agent.config = agent.config.merge({"env.clip_reward": "tanh"})
    monkeypatch.setattr(
        dream_report, "predict_open_loop", lambda agent, batch, _: (seen.append(batch), see(agent, batch, 3))[1]
    )
    report = dream(agent, context=3, horizon=4)
    assert report.units["reward"] == "root-mean-square error of rewards after env.clip_reward = tanh"
    assert seen[0].reward[:, 1:].unique().tolist() == pytest.approx([np.tanh(1.0)])
    assert agent.evaluate(1).scores[0] >= 8  # true ones


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"context": 10}, RunError, "longer than context = 10 rows"),
        ({"horizon": 0}, ConfigError, "horizon = 0: expected at least 1"),
    ],
)
def test_dream_needs_something_to_imagine(corridor, settings, error, message):
    with pytest.raises(error, match=message):
        dream(load(corridor, env=Corridor), **settings)


def test_errors_are_measured_per_step_and_in_their_units():
    spec = {
        "v": ObsPart(kind="vector", shape=(2,), dtype="float32"),
        "c": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(2, 3)),
    }
    index = np.array([[[0, 0], [1, 2], [1, -1]]])
    hot = one_hot_classes(index, spec["c"])
    assert (hot.shape, hot[0, 2].tolist()) == ((1, 3, 2, 3), [[0, 1, 0], [0, 0, 0]])
    truth = {"v": np.array([[[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]]), "c": hot}
    guess = {"v": truth["v"] + np.array([[[9.0, 9.0], [3.0, -3.0], [0.0, 0.0]]]), "c": hot.copy()}
    guess["c"][0, 1, 1] = [0.25, 0.25, 0.5]  # half the probability missed the second class
    errors, repeated, units = dream_errors(truth, guess, spec, context=1)
    found = errors["v"], errors["c"], repeated["v"]
    assert [x.tolist() for x in found] == [[3.0, 0.0], [0.25, 0.0], [1.0, 2.0]]
    assert units == {
        "v": "root-mean-square error in the environment's units, over all 2 numbers",
        "c": "probability not assigned to the true class",
    }


def test_a_dream_that_is_not_finite_overwrites_nothing(corridor, monkeypatch):
    agent = load(corridor, env=Corridor)
    dreamt = agent.algo.dream
    monkeypatch.setattr(agent.algo, "dream", lambda *args: {k: v + np.inf for k, v in dreamt(*args).items()})
    before = sorted(corridor.rglob("*"))
    with pytest.raises(RunError, match="nothing was written"):
        dream(agent, context=1, horizon=2, episodes=1)
    assert sorted(corridor.rglob("*")) == before


# ---------------------------------------------------------------- beside recorded episodes


@pytest.fixture(scope="module")
def offline(pendulum, tmp_path_factory):
    """A world model of recorded data, without an environment; tests copy it."""
    run = tmp_path_factory.mktemp("runs") / "offline"
    options = {"algo.batch_size": 2, "algo.batch_length": 8, "env": "none"}
    options |= {f"algo.{part}": value for part, value in NETWORKS.items()}
    options |= {"data.estimate_updates": 0, "tensorboard": False, "console": False, "threads": 1}
    reverie.train("dreamer_v3", data=pendulum, updates=3, run=run, **options)
    return run


@pytest.fixture
def alone(offline, tmp_path):
    return load(shutil.copytree(offline, tmp_path / "run"))


def test_recorded_episodes_need_no_environment(alone, pendulum):
    agent = alone
    with pytest.raises(EnvError, match=r"no environment to play episodes in\. .* recorded episodes instead: --data"):
        dream(agent)
    report = dream(agent, context=5, horizon=9, episodes=3, data=pendulum)
    assert report.num_episodes == 3
    assert {len(error) for error in report.errors.values()} == {9}
    arrays = np.load(report.files["arrays"])
    for number in range(3):
        one = agent.load_episode(number).slice_time(0, 14)
        lived = {"truth/observation": one.obs["observation"], "truth/reward": one.reward, "action": one.action}
        for name, values in lived.items():
            np.testing.assert_array_equal(arrays[name][number], values[0], err_msg=name)
    numbers = json.loads(report.files["numbers"].read_text())
    expected = {"data": str(pendulum), "episodes": [0, 1, 2], "checkpoint": agent.checkpoint.name, "updates": 3}
    assert numbers.items() >= expected.items()
    assert not {"env_steps", "deterministic"} & numbers.keys()


def test_what_does_not_fit_is_refused(alone, cartpole, pendulum):
    with pytest.raises(DataError, match=r"does not fit the agent: observation 'observation' is vector \(4,\)"):
        dream(alone, data=cartpole)
    with pytest.raises(ConfigError, match="deterministic = False with data: recorded episodes keep their actions"):
        dream(alone, data=pendulum, deterministic=False)
    assert not (alone.run / "dream").exists()


def test_rows_that_a_run_collected(copied):
    agent, run = load(copied), copied
    torch.manual_seed(3)
    expected = torch.get_rng_state()
    report = dream(agent, context=3, horizon=4, episodes=2, data=run)
    assert torch.equal(torch.get_rng_state(), expected)
    assert "video" in report.files  # drawn by the run's environment
    assert json.loads(report.files["numbers"].read_text())["env_steps"] == agent.step


@pytest.mark.usefixtures("drawn")
@pytest.mark.parametrize("suffix", ["png", pytest.param("svg", marks=pytest.mark.nightly)])
def test_the_command_writes_the_strip(copied, tmp_path, capsys, suffix):
    path = tmp_path / f"strip.{suffix}"
    assert (
        main(["dream", str(copied), "--context", "3", "--horizon", "5", "--episodes", "1", "--strip", str(path)]) == 0
    )
    assert "It saw 3 frames. The next 5 are imagined" in capsys.readouterr().out
    content = path.read_bytes()
    start = {"png": b"\x89PNG", "svg": b"<?xml"}[suffix]
    assert content.startswith(start)
    assert suffix == "png" or (b"prefers-color-scheme" in content and content.count(b"data:image/png") == 16)


def test_the_type_of_a_strip_is_checked_first(copied, capsys, monkeypatch):
    monkeypatch.setattr(dream_report, "open_played_episodes", None)
    assert main(["dream", str(copied), "--strip", "strip.gif"]) == 1
    assert "ends in .png, .svg." in capsys.readouterr().err


def test_dreams_without_a_decoder_have_no_pictures(copied):
    with pytest.raises(ConfigError, match="dreamer_v3 has no decoder"), open_renderer_or_image(load(copied), ()):
        pass


def test_a_symbol_that_a_dream_lacks_does_not_brighten_the_others(corridor):
    eye = np.full((1, 1, 6, 5, 4), 2, np.uint8)
    eye[..., 0, 0, :] = 5
    with open_renderer_or_image(load(corridor, env=Corridor), ["eye"]) as draw:
        whole, part = draw({"eye": eye}), draw({"eye": np.minimum(eye, 2)})
    assert (whole[..., -1, -1, :] == part[..., -1, -1, :]).all()
