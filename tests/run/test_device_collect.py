"""Learning from environments on a device: the numbers of the host's path, resumed bit for bit."""

import functools
import subprocess
import sys

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from safetensors.torch import load_file

import reverie
from device_vectors import Tensors, TorchCycle, torch_env
from reverie.core.columns import row_columns
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.types import Window
from reverie.replay.rollout import DeviceRollout
from reverie.run.collect import DeviceCollector
from reverie.run.episodes import EpisodeCounter, join_episodes
from reverie.run.evaluate import evaluate

pytestmark = pytest.mark.usefixtures("warm")

QUIET = {"console": False, "tensorboard": False, "eval_episodes": 0, "threads": 1, "device": "cpu"}
SMALL = QUIET | {"env.num": 4, "env.vectorization": "native", "algo.rollout": 16, "algo.networks.units": (16,)}
PPO = SMALL | {"algo.batch_size": 32, "algo.epochs": 2}


def host_vector(kind, num_envs):
    return SyncVectorEnv([kind] * num_envs)


def device_vector(kind, num_envs):
    return Tensors(host_vector(kind, num_envs))


def cartpole():
    return gymnasium.make("CartPole-v1", max_episode_steps=12)


def tensors(run):
    return load_file(max((run / "checkpoints").glob("step-*")) / "tensors.safetensors")


def test_weights_and_statistics_are_those_of_the_path_on_the_host(tmp_path):
    name, kind = "ppo", cartpole
    own = {"algo.normalize_obs": "running", "algo.reward_scale": "return_std", "algo.frame_stack": 3,
           "algo.frame_stack_keys": ".*"}  # fmt: skip
    own = PPO | own
    device = reverie.train(name, env=functools.partial(device_vector, kind), run=tmp_path / "a", steps=300, **own)
    steps = device.env_steps  # of whole rollouts
    host = reverie.train(name, env=functools.partial(host_vector, kind), run=tmp_path / "b", steps=steps, **own)
    assert (host.env_steps, host.updates) == (steps, device.updates)
    host, device = tensors(host.run), tensors(device.run)
    learned = [key for key in host if key.startswith("algo/")]
    assert learned
    for key in learned:
        torch.testing.assert_close(device[key], host[key], rtol=1e-5, atol=1e-6)


class Greedy:
    """Takes the first action."""

    def initial(self, num_envs):
        return ()

    def act(self, step, state, mode):
        return torch.eye(2)[[0] * len(step)], state

    def extras(self, state):
        return {}


def collector_of(env, turns, context=0):
    window = Window(batch=1, length=1, rollout=turns, epochs=1, context=context)
    columns = row_columns(env.obs_spec, env.action_spec, {})
    rollout = DeviceRollout(columns, env.num_envs, window, env.device, seed=0)
    return DeviceCollector(env, Greedy(), rollout, turns=turns, seed=3)


@pytest.mark.parametrize("context", [0, 2])
def test_scores_equal_those_counted_row_by_row(context):
    """On the device, the means of each rollout; here, of its episodes, in float64."""
    collector, env = collector_of(torch_env(16), 10, context), torch_env(16)
    counter, step = EpisodeCounter(16), env.reset(3)
    newest = step.obs["observation"].expand(11 + context, -1, -1)  # the first row is repeated before itself
    for _ in range(5):
        steps, taken, ended = collector.collect(), 0, []
        rows = collector.sink.columns["obs/observation"]
        assert torch.equal(rows[:context], newest[10 : 10 + context])
        newest = rows.clone()
        for turn in range(10):
            assert torch.equal(rows[context + turn], step.obs["observation"])
            taken += int((~step.is_last).sum())
            step = env.step(torch.eye(2)[[0] * 16])
            ended += counter.totals[:, counter.add(step, step.reward.double().numpy())].T.tolist()
        assert torch.equal(rows[-1], step.obs["observation"])
        assert steps == taken
        [stats] = collector.pop_episodes()
        assert (len(stats), stats.longest) == (len(ended), max(length for _, length in ended))
        assert [stats.score[0], stats.length[0]] == pytest.approx(np.mean(ended, 0), rel=1e-12)


def test_a_number_that_is_not_finite_is_named_before_it_is_learned_from():
    def spoil(answer):
        answer[1][2] = torch.nan
        return answer

    with pytest.raises(DataError, match="reward"):
        collector_of(torch_env(4, spoil=spoil), 5).collect()


def test_a_rollout_that_an_error_ends_is_dropped():
    vector_step = TorchCycle.step
    collector = collector_of(torch_env(4), 5)
    collector.collect()
    calls = []

    def failing(self, action):
        calls.append(1)
        if len(calls) == 3:
            raise OSError("lost")
        return vector_step(self, action)

    collector.env.vector.vector.step = functools.partial(failing, collector.env.vector.vector)
    with pytest.raises(EnvError, match="lost"):
        collector.collect()
    assert "environments" not in collector.state_dict()
    collector.collect()
    assert collector.sink.newest_rows["is_first"][0].all()


@pytest.mark.parametrize("key", ["is_success", "final_info"])
def test_successes_that_only_ends_of_episodes_tell_are_counted(key):
    def spoil(answer):
        success = {"success": answer[2]} if key == "final_info" else answer[2]
        answer[4] = {**answer[4], key: success} if answer[2].any() else {}
        return answer

    mode = AutoresetMode.SAME_STEP if key == "final_info" else AutoresetMode.NEXT_STEP
    options = {"mode": mode, "chances": (0.0, 0.1), "spoil": spoil}  # few turns end an episode, in success
    collector = collector_of(torch_env(2, **options), 7)
    for _ in range(8):
        collector.collect()
    assert {*join_episodes(collector.pop_episodes()).info["success_rate"].tolist()} == {1.0}
    evaluation = evaluate(torch_env(4, **options), Greedy(), 6, seed=0)
    assert evaluation.info == [{"success_rate": 1.0}] * 6


def test_evaluation_plays_whole_episodes():
    evaluation = evaluate(torch_env(4), Greedy(), 6, seed=0)
    assert len(evaluation.lengths) == 6
    assert min(evaluation.lengths) >= 1


CYCLE = "import device_vectors, reverie; from reverie.envs.jax_vector import JaxVector\n"
CYCLE += "make = lambda num_envs: JaxVector(device_vectors.jax_task(), num_envs)\n"


@pytest.mark.parametrize("other", ["resumed", pytest.param("in another process", marks=pytest.mark.nightly)])
def test_runs_resume_bit_for_bit_and_are_the_same_in_another_process(other, tmp_path, monkeypatch):
    pytest.importorskip("jax")
    (tmp_path / "jax_cycles.py").write_text(CYCLE)
    monkeypatch.syspath_prepend(tmp_path)
    steps = 3 * 4 * 16 * 0.75  # some rows have no action
    whole = reverie.train("ppo", "jax_cycles:make", run=tmp_path / "whole", steps=int(steps), **PPO)
    if other == "resumed":
        reverie.train("ppo", "jax_cycles:make", run=tmp_path / "other", steps=64, **PPO)
        cut = reverie.train("ppo", "jax_cycles:make", run=tmp_path / "other", steps=int(steps), **PPO)
        assert cut.updates == whole.updates
    else:
        train_elsewhere(int(steps), tmp_path)
    one, two = tensors(whole.run), tensors(tmp_path / "other")
    assert one.keys() == two.keys()
    differing = [key for key, x in two.items() if not torch.equal(x, one[key])]
    assert differing in ([], ["random/numpy/state/key"])  # imports draw from it


def train_elsewhere(steps, folder):
    code = f"import reverie, sys; sys.path[:0] = {sys.path}\n"
    code += f"reverie.train('ppo', 'jax_cycles:make', run='other', steps={steps}, **{PPO})"
    subprocess.run([sys.executable, "-c", code], cwd=folder, check=True)


@pytest.mark.parametrize(
    ("name", "own", "message"),
    [
        ("ppo", {"replay.store_path": "rows"}, "store_path"),
        ("ppo", {"log_episodes": True}, "log_episodes"),
        ("ppo", {"algo.batch_size": 48}, "batch_size"),
    ],
)
def test_what_is_not_supported_is_one_error(name, own, message, tmp_path):
    with pytest.raises(ConfigError, match=message):
        reverie.train(name, env=TorchCycle, run=tmp_path / "run", steps=200, **PPO | own)
