"""Environments in JAX: exact final observations, states that resume, and what is said without JAX."""

import collections
import subprocess
import sys
from unittest import mock

import gymnasium
import pytest
import torch
from gymnasium import spaces

from device_vectors import jax_env, jax_task
from reverie.core.errors import ConfigError, EnvError
from reverie.envs import jax_suites
from reverie.envs.config import EnvConfig
from reverie.envs.make_native_vector import make_jax_vector
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.suites import JAX_SUITES
from reverie.envs.vector_env import tensor_env
from reverie.experiment.config import ExperimentConfig


def test_nothing_imports_jax_and_an_id_says_what_to_install():
    code = """
import sys
sys.modules["jax"] = None  # as if it were not installed
import reverie, reverie.api, reverie.cli.train_command, reverie.envs.slot_vector_env
reverie.train("ppo", "gymnax/CartPole-v1")
"""
    failed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert 'pip install "reverie-rl[jax]"' in failed.stderr.splitlines()[-1]


def test_a_saved_state_continues_bit_for_bit_in_another_vector():
    pytest.importorskip("jax")
    env, other = jax_env(3), jax_env(3)
    step = env.reset(5)
    for _ in range(20):
        step = env.step(torch.eye(2)[[0, 1, 1]])
    state = env.state_dict()
    assert {x.dtype for x in state.values()} == {torch.uint32, torch.int32, torch.bool, torch.float32}
    other.load_state_dict(state, step)
    for _ in range(200):
        a, b = env.step(torch.eye(2)[[1, 0, 1]]), other.step(torch.eye(2)[[1, 0, 1]])
        torch.testing.assert_close((a.obs, a.reward, a.is_last), (b.obs, b.reward, b.is_last), rtol=0, atol=0)


@pytest.mark.parametrize(
    ("place", "change", "message"),
    [
        (2, lambda x: x[None], r"reward of shape \[1\] .*one number"),
        (3, lambda x: x[None], r"terminal of shape \[1\] .*one bool"),
        (4, lambda x: x * 1.0, r"truncated of shape \[\] and dtype float32: expected one bool"),
    ],
)
def test_a_task_with_wrong_values_is_named(place, change, message):
    pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    task = jax_task()

    def step(*args):
        values = list(task.step(*args))
        values[place] = change(values[place])
        return tuple(values)

    env = tensor_env(JaxVector(task._replace(step=step), 2), EnvConfig(num=2), 0)
    env.reset()
    with pytest.raises(EnvError, match=message):
        env.step(torch.zeros(2, 2))


@pytest.mark.parametrize("is_out", [False, True])
def test_rewards_of_several_agents_are_summed_and_only_the_end_of_all_is_terminal(is_out, monkeypatch):
    jnp = pytest.importorskip("jax").numpy
    from reverie.envs.jax_vector import JaxVector

    def time_step(age):
        discount = jnp.array([0.0, 0.0 if is_out else 1.0])  # the first agent is out
        return mock.Mock(
            observation=age * jnp.ones(1), reward=jnp.array([1.0, 2.0]), discount=discount, last=lambda: age >= 2
        )

    module = mock.Mock()  # in place of the package
    module.make.return_value = mock.Mock(
        reset=lambda key: (0, time_step(0)), step=lambda age, _: (age + 1, time_step(age + 1)), time_limit=2
    )
    module.jumanji_specs_to_gym_spaces.side_effect = [spaces.Box(0, 9, (1,)), spaces.MultiDiscrete([2, 2])]
    monkeypatch.setattr(jax_suites.importlib, "import_module", lambda name: module)
    vector = JaxVector(jax_suites.jumanji("Agents"), 2)
    vector.reset(0)
    rows = [vector.step(torch.zeros(2, 2, dtype=torch.int64)) for _ in range(2)]
    assert [x.reward.tolist() for x in rows] == [[3, 3]] * 2
    assert [x.terminal.tolist() for x in rows] == [[False] * 2, [is_out] * 2]


def test_unknown_devices_names_and_settings_are_refused(monkeypatch):
    pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    with pytest.raises(EnvError, match="JAX has no such device"):
        JaxVector(jax_task(), 2, "cuda")
    with pytest.raises(ConfigError, match="frame_stack"):
        make_vector_env(EnvConfig(id="gymnax/CartPole-v1", frame_stack=2), seed=0)
    monkeypatch.setitem(jax_suites.NAMES, "gymnax", lambda load: ["CartPole-v1", "Catch-bsuite"])
    with pytest.raises(EnvError, match=r"Did you mean 'CartPole-v1'.*All: CartPole-v1, Catch-bsuite"):
        make_vector_env(EnvConfig(id="gymnax/NoPole-v1"), seed=0)


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_an_environment_with_the_interface_of_gymnax(dtype):
    """Of a version before 1, which counts time limits as terminations: one that counts to 5."""
    jnp = pytest.importorskip("jax").numpy
    from reverie.envs.jax_vector import JaxVector

    state = collections.namedtuple("State", "time")
    env = mock.Mock(spec=["reset_env", "step_env", "observation_space", "action_space"])
    env.observation_space.return_value, env.action_space.return_value = spaces.Box(0, 9, (1,)), spaces.Discrete(2)
    env.reset_env = lambda key, params: (jnp.zeros(1), state(jnp.int32(0)))
    env.step_env = lambda key, s, action, params: (
        jnp.float32(s.time + 1)[None], state(s.time + 1), action * 1.0, (s.time >= 4).astype(dtype), {}
    )  # fmt: skip
    vector = JaxVector(jax_suites.gymnax_like(env, None, 5), 2)
    vector.reset(0)
    if dtype == "float32":  # among which NaN would count as true
        with pytest.raises(EnvError, match=r"terminal .*dtype float32"):
            vector.step(torch.ones(2, dtype=torch.int64))
        return
    rows = [vector.step(torch.ones(2, dtype=torch.int64)) for _ in range(6)]
    assert [bool(x.last[0]) for x in rows] == [False] * 4 + [True, False]
    assert not any(x.terminal.any() for x in rows)
    assert [float(x.obs[0]) for x in rows] == [1, 2, 3, 4, 5, 0]


@pytest.mark.parametrize("reset", ["pool", "full"])
def test_a_random_start_spreads_the_ends_of_episodes_of_a_fixed_length(reset):
    jnp = pytest.importorskip("jax").numpy
    from reverie.envs.jax_vector import JaxVector

    state = collections.namedtuple("State", "obs reward done metrics info")
    env = mock.Mock(spec=["reset", "step", "action_size"], action_size=1)
    env.reset = lambda key: state(jnp.zeros(1), jnp.float32(0), jnp.float32(0), {}, {})
    env.step = lambda before, action: before._replace(obs=before.obs + 1)
    task = jax_suites.brax_like(env, 10, reset=reset)
    vector, lengths = JaxVector(task, 64, random_start=True), []
    vector.reset(0)
    for _ in range(50):
        rows = vector.step(torch.zeros(64, 1))
        assert not rows.last.all()
        lengths.append(rows.obs[rows.last, 0])
    assert set(torch.cat(lengths[:10]).tolist()) == set(range(1, 11))
    assert set(torch.cat(lengths[10:]).tolist()) == {10}  # only the first episodes are shorter
    with pytest.raises(EnvError, match="random_start"):
        JaxVector(jax_task(), 2, random_start=True)


def test_done_that_is_not_a_number_is_visible_in_the_reward():
    jnp = pytest.importorskip("jax").numpy
    from reverie.envs.jax_vector import JaxVector

    state = collections.namedtuple("State", "obs reward done metrics info")
    env = mock.Mock(spec=["reset", "step", "action_size"], action_size=1)
    env.reset = lambda key: state(jnp.zeros(1), jnp.float32(0), jnp.float32(0), {}, {})
    env.step = lambda before, action: before._replace(done=action[0])
    vector = JaxVector(jax_suites.brax_like(env, 10), 2)
    vector.reset(0)
    rows = vector.step(torch.tensor([[torch.nan], [1.0]]))
    assert rows.reward.isnan().tolist() == [True, False]
    assert rows.terminal.tolist() == [False, True]


@pytest.mark.parametrize(("options", "expected"), [({}, "jax"), ({"impl": "warp"}, "warp")])
def test_playground_simulates_with_jax_on_cpus_unless_told_otherwise(options, expected, monkeypatch):
    jax = pytest.importorskip("jax")

    class Config(dict):
        __getattr__, __setattr__, update_from_flattened_dict = dict.__getitem__, dict.__setitem__, dict.update

    module = mock.Mock()  # in place of the package
    module.registry.get_default_config = lambda name: Config(impl="warp", episode_length=7, action_repeat=2)
    monkeypatch.setattr(jax_suites.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(jax, "default_backend", lambda: "cpu")
    monkeypatch.setattr(jax_suites, "brax_like", mock.Mock())
    jax_suites.playground("CheetahRun", **options)
    assert module.registry.load.call_args.kwargs["config"].impl == expected
    assert jax_suites.brax_like.call_args.args[1:] == (7, 2, "pool")


def test_evaluations_begin_at_the_start():
    config = ExperimentConfig().merge({"env.id": "brax/ant", "env.kwargs": {"random_start": True, "backend": "mjx"}})
    assert config.eval_env_config.kwargs == {"backend": "mjx"}
    with mock.patch.object(jax_suites, "make_task") as made, mock.patch("reverie.envs.jax_vector.JaxVector") as vector:
        make_jax_vector(config.env, 3, "cpu")
    assert made.call_args.args == ("brax/ant", {"backend": "mjx"})
    assert vector.call_args.kwargs == {"random_start": True}


def test_cartpole_of_gymnax_equals_gymnasiums_step_for_step():
    pytest.importorskip("gymnax")
    num, limit = 4, 40
    config = EnvConfig(id="gymnax/CartPole-v1", num=num, kwargs={"max_steps_in_episode": limit})
    env, truth = make_vector_env(config, seed=0), [gymnasium.make("CartPole-v1").unwrapped for _ in range(num)]
    step, ends, age = env.reset(0), {True: 0, False: 0}, [0] * num
    rng = torch.Generator().manual_seed(0)
    for _ in range(300):
        action = torch.randint(2, (num,), generator=rng)
        action[0] = (step.obs["observation"][0] @ torch.tensor([0.1, 0.3, 1.0, 0.5]) > 0).long()  # balances
        before, step = step, env.step(torch.eye(2)[action])
        for i, reference in enumerate(truth):
            obs = step.obs["observation"][i]
            if before.is_first[i]:
                reference.reset(seed=0)
                age[i] = 0
            if before.is_last[i]:
                assert step.is_first[i]
                assert obs.abs().max() <= 0.05
                continue
            reference.state = before.obs["observation"][i].double().numpy()
            reference.steps_beyond_terminated = None
            age[i] += 1
            expected, reward, terminal, *_ = reference.step(int(action[i]))
            torch.testing.assert_close(obs, torch.from_numpy(expected), rtol=1e-5, atol=1e-5)
            assert step.reward[i] == reward
            assert bool(step.is_terminal[i]) == terminal
            assert bool(step.is_last[i]) == (terminal or age[i] >= limit)
            if step.is_last[i]:
                ends[bool(terminal)] += 1
    assert min(ends.values()) > 2  # both kinds were compared


NAMES = (
    "Breakout-MinAtar", "Craftax-Classic-Symbolic-v1", "Navix-LavaGapS5-v0", "Maze-v0", "fast", "CheetahRun",
)  # fmt: skip


@pytest.mark.parametrize("env_id", [prefix + name for prefix, name in zip(JAX_SUITES, NAMES, strict=True)])
def test_each_suite_shows_rows(env_id):
    pytest.importorskip({"playground": "mujoco_playground"}.get(env_id.split("/")[0], env_id.split("/")[0]))
    env = make_vector_env(EnvConfig(id=env_id, num=3), seed=0)
    step = env.reset()
    for _ in range(20):
        action = torch.rand(3, env.action_spec.width)
        before, step = step, env.step(action)
        assert torch.equal(before.is_last, step.is_first)
        assert (step.reward[step.is_first] == 0).all()
        for key, part in env.obs_spec.items():
            assert part.kind != "categorical" or step.obs[key].max() < min(part.classes)  # navix counts too few
    assert isinstance(env.packages["jax"], str)


def test_the_config_of_a_playground_task_says_how_long_its_episodes_are():
    pytest.importorskip("mujoco_playground")
    config = EnvConfig(id="playground/CartpoleBalance", num=2, kwargs={"episode_length": 3})
    env = make_vector_env(config, seed=0)
    rows = [env.reset(), *(env.step(torch.zeros(2, env.action_spec.width)) for _ in range(3))]
    assert [step.is_last.tolist() for step in rows] == [[False] * 2] * 3 + [[True] * 2]
