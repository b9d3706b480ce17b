"""Parts that a user replaces: critics, samplers, exploration noise, and a discount on a schedule."""

import contextlib
import copy
from dataclasses import fields
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import dreamer_configs
import reverie
from contracts import MOVES, SPECS, batch, build, learned, tiny
from reverie.agent.off_policy_estimator import fqe_config_for
from reverie.algos import dreamer_v3
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.sac import SAC, SACConfig
from reverie.algos.table import algorithm_config
from reverie.core.errors import ConfigError, DataError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.types import Batch, Step, Window
from reverie.envs.wrapper_list import ObserveInfo
from reverie.nn.actor_critic import CriticStack, QEnsemble
from reverie.nn.exploration import NoisySampledPolicy
from reverie.nn.heads import TwoHotHead
from reverie.replay.build import build_replay
from reverie.replay.config import FractionsConfig, ReplayConfig, SamplingRule
from reverie.replay.samplers import Sampler

EXAMPLES = Path(__file__).parents[2] / "examples"
kernels = pytest.mark.parametrize("use_kernels", [True, False], ids=["kernels", "definitions"])


@pytest.fixture(autouse=True)
def _examples(monkeypatch):
    monkeypatch.syspath_prepend(EXAMPLES)


def running(use_kernels):
    return contextlib.nullcontext() if use_kernels else use_only_kernels()


def updated(agent, count=6, position=lambda i: 0, spec="vector"):
    updates = []
    for i in range(count):
        torch.manual_seed(i)
        agent.position = lambda i=i: position(i)
        updates.append(agent.update(batch(agent, spec, seed=i)))
    return updates


# ---------------------------------------------------------------- critics


@kernels
def test_sac_learns_with_critics_of_ones_own(use_kernels):
    from own_parts import TanhCritic, TanhSACConfig

    with running(use_kernels):
        agent = TanhSACConfig(batch_size=4, num_critics=3).build(SPECS["vector"], MOVES, seed=1)
        critics = agent.objective.critic.critics
        assert [type(critic) for critic in critics] == [TanhCritic] * 3
        before = copy.deepcopy(dict(agent.objective.named_parameters()))
        updated(agent)
    assert not [name for name, x in agent.objective.named_parameters() if torch.equal(x, before[name])]  # targets too


@kernels
def test_a_stack_of_the_usual_critics_learns_as_they_do(use_kernels):
    """Each has its own weights, so those of the ensemble are copied."""
    results = []
    with running(use_kernels):
        for stacked in (False, True):
            agent = build("sac", graph=False)
            if stacked:
                usual = agent.objective
                stack = CriticStack(*(QEnsemble(SPECS["vector"], 3, agent.cfg.networks) for _ in range(2)))
                for i, critic in enumerate(stack.critics):
                    pairs = zip(critic.state_dict().items(), usual.critic.state_dict().values(), strict=True)
                    parts = {k: x if x.numel() == y.numel() else x[i].view_as(y) for (k, y), x in pairs}
                    critic.load_state_dict(parts)
                made = type("Stacked", (SAC,), {"build_critic": lambda self, *specs, stack=stack: stack})
                config = type("StackedConfig", (SACConfig,), {"learner": made})
                agent = config(**agent.cfg.fields()).build(SPECS["vector"], MOVES, seed=1)
                agent.objective.actor.load_state_dict(usual.actor.state_dict())
            results.append(updated(agent, 3))
    for usual, stacked in zip(*results, strict=True):
        for name, value in usual.metrics.items():
            torch.testing.assert_close(stacked.metrics[name], value, rtol=1e-4, atol=1e-5)


@kernels
@pytest.mark.parametrize("name", ["sac_ensemble", "sac_gru", "td3", "tqc", "cql_lagrange"])
def test_a_stack_of_critics_reads_images_and_has_memories(name, use_kernels):
    """Each network then has its own encoder."""
    with running(use_kernels):
        kind = type(build(name))
        outputs = getattr(tiny(name), "num_quantiles", None)

        class Stacked(kind):
            def build_critic(self, spec, actions):
                args = spec, actions.width, self.cfg.networks
                return CriticStack(*(QEnsemble(*args, outputs=outputs) for _ in range(self.cfg.num_critics)))

        config = type("StackedConfig", (type(tiny(name)),), {"learner": Stacked})
        agent = config(**tiny(name).fields()).build(SPECS["everything"], MOVES, seed=1)
        before = copy.deepcopy(dict(agent.objective.named_parameters()))
        updated(agent, spec="everything")
    same = {name for name, x in agent.objective.named_parameters() if torch.equal(x, before[name])}
    assert not {name for name in same if "encoder" in name or "memory" in name}


@pytest.mark.parametrize("name", ["ddpg", "td3", "iql", "crr", "bcq", "fql", "discrete_crr_transformer", "sac_mixed"])
def test_each_actor_critic_builds_its_critics_by_one_method(name):
    agent = build(name)
    built = []

    class Mine(type(agent)):
        def build_critic(self, *specs):
            built.append(super().build_critic(*specs))
            return built[-1]

    config = type("MyConfig", (type(agent.cfg),), {"learner": Mine})
    agent = config(**tiny(name).fields()).build(SPECS["vector"], agent.acts, seed=1)
    assert built == [agent.objective.critic]


@pytest.mark.parametrize("kind", ["v1", "v2", "v3"])
def test_a_dreamer_builds_its_critic_by_its_config(kind):
    agent = dreamer_configs.build() if kind == "v3" else dreamer_configs.build_earlier(kind)
    kinds = []

    class Mine(type(agent.cfg)):
        def build_critic(self, width):
            kinds.append(super().build_critic(width))
            return kinds[-1]

    agent = Mine(**agent.cfg.fields()).build(dreamer_configs.OBS, dreamer_configs.ACTIONS["discrete"], seed=1)
    assert kinds == [agent.critic]
    assert kind != "v3" or isinstance(DreamerV3Config().build_critic(5), TwoHotHead)


# ---------------------------------------------------------------- noise of SAC


@kernels
@pytest.mark.parametrize("name", ["sac", "tqc", "sac_gru"])
def test_noise_is_added_to_samples_and_not_to_evaluations(name, use_kernels):
    with running(use_kernels):
        agent, plain = build(name, exploration="gaussian(0.5)"), build(name)
        n = 2000
        step = Step(
            obs={"state": torch.zeros(n, 3)}, reward=torch.zeros(n), is_first=torch.ones(n, dtype=torch.bool),
            is_last=torch.zeros(n, dtype=torch.bool), is_terminal=torch.zeros(n, dtype=torch.bool),
        )  # fmt: skip
        actions = {}
        for label, learner in (("noisy", agent), ("plain", plain)):
            for mode in ("explore", "eval"):
                torch.manual_seed(3)
                actions[label, mode] = learner.policy.act(step, learner.policy.initial(n), mode)[0]
        torch.manual_seed(3)
        sample = plain.policy.act(step, plain.policy.initial(n), "explore")[0]
        noise = torch.randn_like(sample)
    assert torch.equal(actions["noisy", "eval"], actions["plain", "eval"])
    torch.testing.assert_close(actions["noisy", "explore"], (sample + 0.5 * noise).clamp(-1, 1))
    assert agent.exploration(0) == 0.5
    assert plain.exploration(0) is None


def test_noise_is_for_continuous_actions():
    with pytest.raises(ConfigError, match="expected continuous actions, but these are mixed"):
        build("sac_mixed", exploration="gaussian(0.1)")
    assert isinstance(build("sac", exploration="ornstein_uhlenbeck")._policy, NoisySampledPolicy)


# ---------------------------------------------------------------- samplers


def filled(sampler, rows=60, capacity=40, **settings):
    replay = build_replay(
        ReplayConfig(capacity=capacity, online_queue=False, sampler=sampler, **settings),
        obs_spec=SPECS["vector"], action_spec=MOVES, extra_spec={}, num_envs=2, window=Window(batch=64, length=2),
        seed=3,
    )  # fmt: skip
    fill(replay, range(rows))
    return replay


def fill(replay, rows):
    for row in rows:
        flags = torch.full((2,), row % 10 == 0), torch.full((2,), row % 10 == 9)
        reward = torch.tensor([float(row % 7 == 3), 0.0])
        step = Step(
            obs={"state": torch.full((2, 3), float(row))},
            reward=reward, is_first=flags[0], is_last=flags[1], is_terminal=flags[1],
        )  # fmt: skip
        replay.add(step, torch.zeros(2, 3), {})


@kernels
def test_windows_are_drawn_by_ones_own_rule_and_resumed(use_kernels):
    from own_parts import Rewarded

    with running(use_kernels):
        replays = {share: filled(Rewarded(share=share)) for share in (0.0, 0.75, 1.0)}
        shares = {share: float(replay.sample().reward[:, 1].mean()) for share, replay in replays.items()}
        assert shares[1.0] == 1.0 > shares[0.75] > 0.6 > 0.2 > shares[0.0] > 0
        replay, twin = replays[0.75], filled(Rewarded(share=0.75))
        twin.load_state_dict(copy.deepcopy(replay.state_dict()))
        for other in (replay, twin):
            fill(other, range(60, 70))
        assert torch.equal(replay.sample().index, twin.sample().index)


class Wrong(SamplingRule):
    def build(self, windows, rng):
        class Evicted(Sampler):
            def draw(self, count, out=None):
                return np.zeros(count, np.int64)

        return Evicted(windows, rng)


def test_handles_that_are_no_windows_are_refused():
    with pytest.raises(DataError, match=r"Evicted.draw\(64\) returned the handle 0, which is no window"):
        filled(Wrong()).sample()


def test_a_rule_excludes_fractions_and_is_named_by_its_module():
    from own_parts import Rewarded

    with pytest.raises(ConfigError, match=r"sampler.*fractions.*Set only one"):
        ReplayConfig(sampler=Rewarded(), fractions=FractionsConfig(recency=1.0))
    with pytest.raises(ConfigError, match=r"unknown name 'uniform'.*'module:Class'"):
        ReplayConfig().merge({"sampler": "uniform"})
    config = ReplayConfig().merge({"sampler": "own_parts:Rewarded(share=0.25)"})
    assert config.sampler == Rewarded(0.25)
    assert ReplayConfig().merge(config.to_dict()) == config


# ---------------------------------------------------------------- probes of the info


class Hidden(gymnasium.Env):
    """The info tells the square of the step, which is not observed; that of ``reset`` is empty."""

    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.steps += 1
        obs = np.full(2, self.steps / 10, np.float32)
        return obs, 1.0, self.steps == 10, False, {"hidden": {"square": [self.steps**2 / 100, 0.5]}}


@kernels
def test_a_probe_predicts_the_info_that_the_agent_acts_without(use_kernels, tmp_path):
    key = "info/hidden/square"
    config = dreamer_v3.with_size("nano").merge({"probe.heads": [f"mlp('{key}', layers=1, units=8)"]})
    config = config.merge({"batch_size": 4, "batch_length": 8, "horizon": 3})
    with running(use_kernels):
        agent = reverie.train(
            config, env=Hidden, steps=60, learning_starts=10, replay_ratio=0.1, eval_episodes=1, tensorboard=False,
            env_options={"wrappers": ["observe_info('hidden/square', 2)"]}, run=tmp_path / "run",
        ).agent  # fmt: skip
        rows = agent.load_episode(0)
        squares = torch.arange(rows.shape[1]).square() / 100
        torch.testing.assert_close(rows.obs[key][0], torch.stack([squares, 0.5 * (squares > 0)], -1))
        update = agent.algo.update(
            Batch(**{**vars_of(rows.slice_time(0, 9)), "extras": blank(agent.algo, 9), "weight": torch.ones(1)})
        )
        assert f"loss/probe/{key}" in update.metrics
        assert key not in agent.algo.world.decoder(agent.algo.world.rssm.initial(1, torch.float32))
        obs, zero = np.ones(2, np.float32), np.zeros(2, np.float32)
        actions, states = [], []
        for given in (obs, {"observation": obs}, {"observation": obs, key: zero}):
            torch.manual_seed(1)
            action, state = agent.act(given)
            actions.append(action)
            states.append(agent.probe(state)[key])
        assert actions[0] == actions[1] == actions[2]
        assert np.array_equal(states[0], states[2])
        assert states[0].shape == (1, 2)
        assert agent.act(np.stack([obs, obs]))[0].shape == (2,)


def vars_of(rows):
    return {field.name: getattr(rows, field.name) for field in fields(rows)}


def blank(algo, count):
    return {name: torch.zeros(1, count, *spec.shape, dtype=getattr(torch, spec.dtype))
            for name, spec in algo.extra_spec.items()}  # fmt: skip


def test_an_info_without_the_numbers_is_told():
    env = ObserveInfo(Hidden(), "hiden")
    assert env.reset()[0]["info/hiden"] == 0
    with pytest.raises(DataError, match=r"'hiden' in the info is None: expected 1 numbers. The info has: hidden"):
        env.step(0)


# ---------------------------------------------------------------- discounts


RAMP = [[0, 0.5], [8, 0.9]]
N_STEP = {"value_estimator": "n_step(3)", "batch_length": 4}


@kernels
@pytest.mark.parametrize("name", ["sac", "td3", "dqn", "qr_dqn", "iqn", "c51", "iql", "crr", "tqc", "ddpg"])
@pytest.mark.parametrize("settings", [{}, N_STEP], ids=["td0", "n_step"])
def test_a_discount_follows_its_schedule(name, settings, use_kernels):
    """Each update is that of a learner with a constant discount."""
    with running(use_kernels):
        agent = build(name, discount=RAMP, **settings)
        for i in range(6):
            constant = build(name, discount=0.5 + 0.05 * i, **settings)
            constant.load_state_dict(copy.deepcopy(agent.state_dict()))
            agent.position = lambda i=i: i
            updates = []
            for learner in (agent, constant):
                torch.manual_seed(i)
                updates.append(learner.update(batch(learner, seed=i)))
            for key, value in updates[1].metrics.items():
                torch.testing.assert_close(updates[0].metrics[key], value, msg=f"{key} of update {i}")


def n_step_targets(rows, values, gamma, n):
    """The targets of windows ``[B, T]``, in plain loops."""
    b, t = rows.reward.shape
    targets = torch.zeros(b, t - 1)
    for window in range(b):
        for row in range(t - 1):
            total, factor, at = 0.0, 1.0, row
            while at < min(row + n, t - 1) and not rows.is_last[window, at]:
                at += 1
                total += factor * float(rows.reward[window, at])
                factor *= gamma
            worth = 0.0 if rows.is_terminal[window, at] else float(values[window, at - 1])
            targets[window, row] = total + factor * worth
    return targets


@kernels
def test_targets_are_those_of_plain_loops_at_the_present_discount(use_kernels):
    with running(use_kernels):
        agent = build("dqn", discount=RAMP, **N_STEP)
        for i in (0, 5, 20):
            agent.position = lambda i=i: i
            rows = batch(agent, seed=i)
            agent.update(rows)
            values = agent.objective.target_network(rows.obs)[:, 1:].amax(-1)
            expected = n_step_targets(rows, values, min(0.5 + 0.05 * i, 0.9), 3)
            found, live = agent.objective.targets(rows), ~rows.is_last[:, :-1]
            torch.testing.assert_close(found[live], expected[live])


@kernels
@pytest.mark.parametrize("name", ["ppo", "a2c", "ppo_lstm", "impala"])
def test_targets_of_a_rollout_have_its_discount_from_the_first_on(name, use_kernels):
    with running(use_kernels):
        agent, constant = build(name, discount=RAMP), build(name, discount=0.7)
        agent.position = constant.position = lambda: 4
        for seed in (1, 2):
            rows, expected = batch(agent, seed=seed), batch(constant, seed=seed)
            for key, value in expected.extras.items():
                torch.testing.assert_close(rows.extras[key], value, msg=key)
            for learner, part in ((agent, rows), (constant, expected)):
                torch.manual_seed(seed)
                learner.update(part)
        torch.testing.assert_close(learned(agent), learned(constant))


def test_schedules_are_for_learners_that_compute_targets_from_rows():
    for name in ("fql", "tdmpc2", "hiql"):
        with pytest.raises(ConfigError, match="discount = "):
            algorithm_config(name)().merge({"discount": RAMP})
    with pytest.raises(ConfigError, match=r"value_floor = monte_carlo.*Use a number"):
        algorithm_config("cql")(value_floor="monte_carlo", discount=RAMP)
    scaled = build("dqn", discount=RAMP, reward_scale="return_std")
    assert scaled.preprocess.rewards.discount == 0.9  # the largest
    assert fqe_config_for(scaled).discount == 0.9
    config = SACConfig(discount=RAMP)
    assert config.to_dict()["discount"] == RAMP
    assert SACConfig().merge(config.to_dict()) == config


@kernels
def test_a_run_with_own_parts_resumes_bit_for_bit(use_kernels, tmp_path):
    from own_parts import TanhSACConfig

    settings = {
        "env": "Pendulum-v1", "learning_starts": 20, "random_steps": 20, "replay_ratio": 0.5, "eval_episodes": 0,
        "replay.sampler": "own_parts:Rewarded(share=0.5)", "seed": 4, "tensorboard": False,
    }  # fmt: skip
    config = TanhSACConfig(batch_size=8, discount=[[0, 0.5], [80, 0.9]], exploration="ornstein_uhlenbeck(0.3)")
    with running(use_kernels):
        reverie.train(config, steps=80, run=tmp_path / "whole", **settings)
        for steps in (40, 80):
            reverie.train(config, steps=steps, run=tmp_path / "parts", **settings)
        agents = [reverie.load(tmp_path / name, algo=config) for name in ("whole", "parts")]
    first, second = (agent.algo.state_dict()["model"] for agent in agents)
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert agents[0].config.replay.sampler.share == 0.5
