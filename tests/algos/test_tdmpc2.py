"""TD-MPC2: planning for several environments at once, what its model says of rows, and looking into it from outside."""

import copy
from dataclasses import replace

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from contracts import MOVES, SPECS, batch, build, shown, tiny
from reverie.algos import bmpc
from reverie.algos.tdmpc2 import SIZES, TDMPC2Config, with_size
from reverie.core.errors import ConfigError
from reverie.core.types import Batch
from reverie.nn.tdmpc2_networks import RandomDraws

FEW = {
    "steps": 60, "learning_starts": 30, "random_steps": 30, "replay_ratio": 0.2, "env.num": 1,
    "env.vectorization": "sync", "eval_episodes": 1, "eval_envs": 1, "threads": 1, "seed": 0, "console": False,
    "tensorboard": False, "algo.batch_size": 8, "algo.num_samples": 16, "algo.num_policy_samples": 4,
    "algo.num_elites": 4, "algo.iterations": 2,
    "algo.episodic": True, "algo.reward_scale": "factor(0.1)",
    "algo.networks": {"units": (16, 16), "latent": 16, "encoder_units": (16,), "num_critics": 2},
}  # fmt: skip


class OfEnvs(RandomDraws):
    """Noise that is the same for some environments whether others are beside them: their axis is where N is."""

    def __init__(self, envs, count):
        self.envs, self.count, self.generator = envs, count, torch.Generator().manual_seed(0)

    def normal(self, *shape, like):
        axis = shape.index(len(self.envs))
        whole = torch.randn(*shape[:axis], self.count, *shape[axis + 1 :], generator=self.generator)
        return whole.index_select(axis, torch.tensor(self.envs))

    def pair(self, count, like):
        return torch.randperm(count, generator=self.generator)[:2]

    def gumbel(self, like):
        return -(-torch.rand(self.count, like.shape[1], generator=self.generator).log()).log()[self.envs]


def test_plans_of_several_environments_are_those_of_each():
    """Five are planned as one batch; where an episode begins, the plan before counts nothing."""
    agent = build("tdmpc2", batch_length=4, num_samples=17, num_elites=6)
    for head in (agent.objective.reward, agent.objective.critic):
        torch.nn.init.normal_(head.layers[-1].weight)  # else all plans are worth the same
    step, state = shown(envs=5, first=False), agent.policy.initial(5)
    torch.manual_seed(1)
    state = state._replace(mean=torch.randn_like(state.mean).clamp(-1, 1))
    step = replace(step, is_first=torch.tensor([False, True, False, False, False]))
    found = []
    for envs in ([0, 1, 2, 3, 4], [1], [3]):
        agent.objective.draws = OfEnvs(envs, 5)
        few = replace(step, **{k: getattr(step, k)[envs] for k in ("reward", "is_first", "is_last", "is_terminal")})
        few = replace(few, obs={k: x[envs] for k, x in step.obs.items()})
        latent = state.latent.map(lambda x, envs=envs: x[envs])
        part = type(state)(state.mean[envs], latent, state.action[envs], state.planned[envs])
        found.append(agent.policy.act(few, part, "explore"))
    for alone, i in ((1, 1), (2, 3)):
        torch.testing.assert_close(found[alone][0][0], found[0][0][i], rtol=1e-3, atol=1e-3)
        torch.testing.assert_close(found[alone][1].mean[0], found[0][1].mean[i], rtol=1e-3, atol=1e-3)
    agent.objective.draws = OfEnvs([0, 1, 2, 3, 4], 5)
    again = agent.policy.act(
        step, state._replace(mean=state.mean * torch.tensor([1, 0, 1, 1, 1.0])[:, None, None]), "explore"
    )
    torch.testing.assert_close(again[0], found[0][0], rtol=1e-3, atol=1e-3)


def test_a_plan_finds_what_its_model_rewards():
    """With a model whose reward is the sum of actions, all actions of the plan become 1; after an end none counts."""
    agent = build("tdmpc2", batch_length=4, num_samples=64, num_elites=8, iterations=8, min_std=0.01)
    o, z = agent.objective, torch.zeros(3, 8)
    o.step = lambda z, action: (
        action.sum(-1),
        z if z.ndim == action.ndim else z[:, None].expand(-1, action.shape[1], -1),
    )
    o.two_values = lambda critic, z, action: torch.zeros(2, *z.shape[:-1])
    ended = torch.full((), -1.0)
    o.termination_logits = lambda z: ended.expand(z.shape[:-1])
    torch.manual_seed(0)
    _, mean, _ = o.plan(z, torch.zeros(3, 3, 3), explore=False)
    assert mean.min() > 0.8
    ended = torch.full((), 1.0)  # every episode ends after its first step
    actions = torch.ones(3, 1, 2, 3)
    torch.testing.assert_close(o.estimate(torch.zeros(1, 8), actions), torch.full((1, 2), 3.0))


def test_bmpc_stores_plans_and_makes_those_of_the_last_windows_anew():
    agent = build("bmpc", batch_length=4)
    state = agent.policy.initial(2)
    for mode, low in (("explore", agent.cfg.min_std), ("random", 0.0)):
        _, after = agent.policy.act(shown(first=False), state, mode)
        mean, std = agent.policy.extras(after)["planned"].unbind(1)
        assert (std >= low).all()
        assert bool(mean.any()) is (mode == "explore")
        assert mode == "explore" or not std.any()
    given = batch(agent)
    agent.updates = agent.cfg.reanalyze_interval - 1
    stored, before = agent.update(given).extras["planned"], given.extras["planned"]
    same = (stored == before).flatten(2).all(-1)
    assert torch.equal(same, torch.tensor([[True] * 4, *[[False] * 3 + [True]] * 3]))
    assert not agent.update(given).extras
    with pytest.raises(ConfigError, match="no plans that the policy could learn from"):
        agent.cfg.merge({"reanalyze_interval": 0, "use_planning": False})


def test_nothing_is_planned_where_the_action_is_random():
    agent = build("tdmpc2", batch_length=4)
    step, state = shown(envs=2, first=False), agent.policy.initial(2)
    agent.objective.plan = lambda *_: 1 / 0
    action, state = agent.policy.act(step, state, "random")
    assert action.abs().max() <= 1
    with pytest.raises(ZeroDivisionError):
        agent.policy.act(step, state, "explore")


def test_what_is_said_of_rows_is_what_acting_saw():
    """Stacked frames and all: latents of a window, and the reward that is predicted from the row before."""
    agent = build("tdmpc2", "everything", batch_length=6, normalize_obs="running", frame_stack=3, frame_stack_keys=".*",
                  reward_scale="factor(0.5)")  # fmt: skip
    for i in range(20):
        agent.running_statistics.update_statistics(shown("everything", seed=i))
    with torch.no_grad():
        torch.nn.init.normal_(agent.objective.reward.layers[-1].weight)
    steps = [shown("everything", seed=i, first=i == 0) for i in range(5)]
    state, actions, lived = agent.policy.initial(2), [], []
    for step in steps:
        action, state = agent.policy.act(step, state, "explore")
        actions.append(action)
        lived.append(state.latent)
    no = torch.zeros(2, 5, dtype=torch.bool)
    rows = Batch(
        obs={k: torch.stack([step.obs[k] for step in steps], 1) for k in steps[0].obs}, action=torch.stack(actions, 1),
        reward=torch.zeros(2, 5), is_first=torch.stack([step.is_first for step in steps], 1), is_last=no,
        is_terminal=no, weight=torch.ones(2), index=torch.arange(2),
    )  # fmt: skip
    seen = agent.world.observe(rows).latent
    torch.testing.assert_close(seen.deter, torch.stack([one.deter for one in lived], 1))
    torch.testing.assert_close(seen.stoch, torch.stack([one.stoch for one in lived], 1))
    assert seen.stoch[:, 0].abs().max() == 0 < seen.stoch[:, 1:].abs().min()
    dreamt = agent.dream(rows, 2)
    torch.testing.assert_close(dreamt["reward"][:, 1], seen.stoch[:, 1, 0, 0])
    after = agent.world.imagine(seen.map(lambda x: x[:, 1]), rows.action[:, 1])
    torch.testing.assert_close(dreamt["inside/deter"][:, 2], after.deter)
    assert ((dreamt["cont"] > 0) & (dreamt["cont"] < 1)).all()
    with pytest.raises(ConfigError, match=r"algo.frame_stack = 3"):
        agent.world.observe(rows, (seen, rows.action[:, 0]))


def test_sizes_and_settings_that_cannot_be():
    assert [with_size(name).networks.latent for name in SIZES] == [64, 128, 512, 768, 768, 1376]
    assert with_size("5M") == TDMPC2Config()
    assert [bmpc.with_size(name).networks.num_critics for name in SIZES] == [2] * 5 + [8]
    with pytest.raises(ConfigError, match="size = '6m'"):
        with_size("6m")
    with pytest.raises(ConfigError, match=r"networks.latent = 20, networks.simplex = 8: .* networks.latent = 24"):
        TDMPC2Config().merge({"networks.latent": 20})


def test_images_alone_are_the_latent_and_are_moved():
    spec = {"image": SPECS["everything"]["image"].__class__(kind="image", shape=(64, 64, 3), dtype="uint8")}
    agent = (
        TDMPC2Config()
        .merge({"networks.units": (8,), "networks.encoder": "shifted(4)", "networks.latent": 64})
        .build(spec, MOVES)
    )
    assert agent.objective.encoder.body is None
    image = torch.zeros(3, 64, 64, 3, dtype=torch.uint8)
    image[:, 30:34, 30:34] = 255
    cnn = agent.objective.encoder.inputs.encoder
    torch.manual_seed(0)
    moves = cnn.random_shifts(torch.zeros(4000, 1, 1, 1))
    assert sorted(set(moves.flatten().tolist())) == [-3, -2, -1, 0, 1, 2, 3]
    cnn.random_shifts = lambda x: torch.tensor([[0, 0], [3, -1], [-3, 2]])
    moved = cnn.augment(image)
    assert [tuple(int(n) for n in x[..., 0].nonzero()[0]) for x in moved] == [(30, 30), (29, 33), (32, 27)]
    z = agent.objective.encoder({"image": image})
    torch.testing.assert_close(z.view(3, -1, 8).sum(-1), torch.ones(3, 8))


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run of a minute's thousandth on an environment that can terminate."""
    where = tmp_path_factory.mktemp("runs") / "run"
    reverie.train("tdmpc2", env="reverie/Match-v0", run=where, **FEW)
    return where


def test_its_dreams_are_environments_of_latents_and_are_looked_at(run, tmp_path):
    report = reverie.dream(reverie.load(run), context=3, horizon=5, episodes=2)
    assert set(report.errors) == {"reward", "cont"}
    env = gymnasium.make("reverie/Dream-v0", run=run, observations="latent")
    obs, _ = env.reset(seed=0)
    assert obs.shape == (17,)
    for _ in range(3):
        obs, reward, *_ = env.step(env.action_space.sample())
    assert obs[-1] == pytest.approx(reward)
    for settings, said in (
        ({}, "observations = 'latent'"),
        ({"observations": "latent", "start": "prior"}, "cannot imagine initial states"),
    ):
        with pytest.raises(ConfigError, match=said):
            reverie.DreamEnv(run, **settings)
    agent = reverie.load(run)
    state = agent.observe(agent.load_episode(0).slice_time(0, 4))
    imagined = agent.imagine(state, steps=4)
    assert imagined.rewards.shape == imagined.values.shape == (1, 5)
    assert imagined.observations == {}
    found = reverie.extract(run, out=tmp_path / "out.npz")
    assert {"state/deter", "state/value", "prediction/reward", "prediction/cont"} <= set(found.manifest["arrays"])
    with np.load(found.path) as arrays:
        assert arrays["prediction/reward"][arrays["is_first"]].max() == 0
        assert np.allclose(arrays["state/deter"].reshape(len(arrays["reward"]), -1, 8).sum(-1), 1, atol=1e-5)


def test_the_page_shows_rewards_and_values_without_pictures(run):
    from reverie.viewer.session import Session

    session = Session(reverie.load(run))
    for _ in range(4):
        session.step()
    session.dream(4, steps=3)
    rows = session.rows()
    assert len(rows) == 8
    assert session.info()["latents"] == 0
    assert all("kl" not in row["real"] for row in rows[:5])
    assert {"reward", "value", "cont", "policy"} <= set(rows[6]["dream"])
    assert set(rows[2]["error"]) == {"reward", "cont"}
    assert session.latent(2)["held"] == {}
    session.close()


def test_it_has_a_report(run):
    assert reverie.report(run, episodes=2, dreams=2, frames=0).finding.startswith("A mean return of ")


def test_dropout_and_targets_keep_to_learning():
    """Targets never drop; plans and dreams do not either."""
    agent = tiny("tdmpc2", {"networks.dropout": 0.5}).build(SPECS["vector"], MOVES, seed=1)
    o, seen = agent.objective, []
    o.critic.dropout.register_forward_hook(lambda module, x, y: seen.append(module.training))
    agent.update(batch(agent))
    assert seen == [True, True]
    agent.policy.act(shown(), agent.policy.initial(2), "explore")
    assert seen == [True, True]
    assert not o.target_critic.model.dropout.training
    twin = copy.deepcopy(agent)
    assert twin.policy.learner is twin
