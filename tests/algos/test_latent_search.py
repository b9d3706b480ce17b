"""Searches in the latents of a Dreamer: their model is its own dream, with the most likely latents."""

import functools

import pytest
import torch

from dreamer_configs import ACTIONS, OBS, build, build_r2
from reverie.core.errors import ConfigError
from reverie.core.specs import MASK_KEY, ObsPart
from reverie.core.types import Step
from reverie.nn.state_space import Latent


def rows(count, **more):
    obs = {"image": torch.randint(0, 256, (count, 8, 8, 3), dtype=torch.uint8), "state": torch.randn(count, 2),
           "token": torch.randint(0, 3, (count, 2)), **more}  # fmt: skip
    begins = torch.ones(count, dtype=torch.bool)
    return Step(obs=obs, reward=torch.zeros(count), is_first=begins, is_last=~begins, is_terminal=~begins)


@pytest.mark.parametrize("make", [build, functools.partial(build_r2, "r2_barlow")])
def test_the_model_is_the_most_likely_dream(make):
    torch.manual_seed(0)
    agent = make()
    agent.return_scale.high.fill_(30.0)
    policy = agent.acting(6)
    assert policy.settings.q_range_floor == 30  # smaller differences of values are not enlarged
    action, state = policy.act(rows(3), policy.initial(3), "eval")
    assert (action.sum(-1) == 1).all()
    assert torch.equal(state.action, action)
    root = policy._node(state.latent, None)
    with torch.no_grad():
        came = policy._model(root.state, torch.tensor([0, 1, 2]))
        h = agent.world.rssm.step(*state.latent, torch.eye(4)[:3])
        after = agent.world.rssm.most_likely(Latent(h, state.latent.stoch), agent.world.rssm.p(h))
        said = agent.predict_reward_and_cont(after)
        torch.testing.assert_close(came.reward, said["reward"])
        torch.testing.assert_close(came.discount, agent.cfg.discount * said["cont"])
        torch.testing.assert_close(came.node.value, agent.latent_value(after))
        torch.testing.assert_close(came.node.logits.exp(), agent.actor(after.feature).parts["action"].probs[:, 0])


def test_illegal_actions_are_not_searched():
    torch.manual_seed(0)
    spec = OBS | {MASK_KEY: ObsPart(kind="mask", shape=(4,), dtype="bool")}
    agent = build().cfg.build(spec, ACTIONS["discrete"], seed=1)
    policy = agent.acting(8)
    legal = torch.tensor([[0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 0, 1]]).bool()
    for _ in range(5):
        action, _ = policy.act(rows(3, **{MASK_KEY: legal}), policy.initial(3), "eval")
        assert (action.bool() & legal).any(-1).all()


@pytest.mark.parametrize("actions", ["continuous", "mixed"])
def test_other_actions_are_refused(actions):
    with pytest.raises(ConfigError, match="DreamerV3 does not search"):
        build(actions).acting(4)
