"""Parts, losses, optimizers and learners of one's own in place of DreamerV3's: they work, or what is wrong is named."""

import copy
from dataclasses import dataclass, replace

import pytest
import torch

from dreamer_configs import ACTIONS, OBS, TINY, batch, shown
from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config
from reverie.core.errors import ConfigError
from reverie.nn.encoder import EncoderConfig
from reverie.nn.rssm import RSSM, RSSMConfig

# ---------------------------------------------------------------- encoders and decoders


class Sum(RSSM):
    """A cell whose h grows beyond what float16 can hold."""

    def step(self, h, z, action):
        return super().step(h, z, action) + h + 40_000


@dataclass(frozen=True, kw_only=True)
class SumConfig(RSSMConfig):
    """Sizes."""

    def build(self, embed, action):
        return Sum(embed, action, self)


def test_a_large_state_of_ones_own_cell_is_stored_as_it_is():
    agent = DreamerV3Config(rssm=SumConfig(), precision="bfloat16").merge(TINY).build(OBS, ACTIONS["discrete"])
    latent = agent.world.rssm.initial(2, torch.bfloat16)
    for _ in range(2):
        latent = agent.world.rssm.imagine(latent, torch.zeros(2, 4))
    assert torch.equal(agent.latent_columns(latent)["deter"], latent.deter.float())
    assert latent.deter.min() > 65_504


# ---------------------------------------------------------------- losses and optimizers


def own(learner):
    return learner(OBS, ACTIONS["discrete"], DreamerV3Config().merge(TINY), torch.device("cpu"))


@pytest.mark.parametrize("name", ["actor", "replay_critic"])
def test_a_loss_term_that_does_not_fit_is_named_before_anything_is_learned(name):
    agent = own(DreamerV3)
    losses = agent.world_model_loss

    def wrong(*given):
        terms, metrics = losses(*given)
        return terms | {name: terms["reward"]}, metrics

    agent.world_model_loss = wrong
    before = copy.deepcopy(agent.actor.state_dict())
    with pytest.raises(ConfigError, match=f"two loss terms are called '{name}'"):
        agent.update(batch(agent))
    torch.testing.assert_close(agent.actor.state_dict(), before, rtol=0, atol=0)
    assert agent.optim.updates == 0


class WithHead(DreamerV3):
    """Predicts a number of the observation from latents."""

    def __init__(self, *given):
        super().__init__(*given)
        self.head = torch.nn.Linear(self.world.rssm.feature_width, 1)

    def world_model_loss(self, rows, post):
        terms, metrics = super().world_model_loss(rows, post)
        error = self.head(post.latent.feature).squeeze(-1) - rows.obs["state"][..., 0]  # [B, T]
        return terms | {"reward": terms["reward"] + error.square()}, metrics


def test_parameters_that_are_in_no_optimizer_are_named():
    agent = own(WithHead)
    with pytest.raises(ConfigError, match=r"^WithHead: no optimizer has 2 parameters.*: head.weight, head.bias. Give"):
        agent.update(batch(agent))
    agent.optim = agent.cfg.optim.build([*agent.optim.params, *agent.head.parameters()])
    agent.update(batch(agent))
    frozen = own(WithHead)
    frozen.head.requires_grad_(False)
    frozen.update(batch(frozen))


class TwoModed(torch.nn.Module):
    """Has dropout, batch norm, and a part that learns in eval mode; remembers the modes that it ran in."""

    def __init__(self):
        super().__init__()
        self.width, self.ran = 3, set()
        self.drop, self.norm = torch.nn.Dropout(0.5), torch.nn.BatchNorm1d(2)
        self.frozen = torch.nn.BatchNorm1d(2).eval()

    def forward(self, obs, dtype):
        self.ran.add((self.training, self.drop.training, self.norm.training, self.frozen.training))
        x = obs["state"].float()
        flat = self.drop(self.norm(self.frozen(x.flatten(0, -2))))
        return torch.nn.functional.pad(flat.view(x.shape), (0, 1)).to(dtype)


class BuildTwoModed(EncoderConfig):
    def build(self, spec):
        return TwoModed()


@dataclass(frozen=True, kw_only=True)
class BuiltByHand(DreamerV3Config):
    def build(self, obs_spec, action_spec, device="cpu", seed=0):
        return DreamerV3(obs_spec, action_spec, self, torch.device(device))


@pytest.mark.parametrize("config", [DreamerV3Config, BuiltByHand])
def test_modules_are_in_train_mode_in_updates_and_nowhere_else(config):
    cfg = replace(config().merge(TINY), encoder=BuildTwoModed())
    agent = cfg.build(OBS, ACTIONS["discrete"], seed=1)
    data, encoder = batch(agent), agent.world.encoder

    def look(agent):
        agent.policy.act(shown(data), agent.policy.initial(3), "explore")
        agent.dream(data, 3)
        agent.report(data)
        ran, agent.world.encoder.ran = agent.world.encoder.ran, set()
        return ran

    before = copy.deepcopy(agent.state_dict()["model"])
    assert look(agent) == {(False, False, False, False)}
    assert all(torch.equal(v, before[k]) for k, v in agent.state_dict()["model"].items())
    agent.update(data)
    assert encoder.ran == {(True, True, True, False)}
    encoder.ran = set()
    assert int(encoder.norm.num_batches_tracked) == 1
    assert look(agent) == look(copy.deepcopy(agent)) == {(False, False, False, False)}
    agent.optim.step = None
    with pytest.raises(TypeError):
        agent.update(data)
    encoder.ran = set()
    assert look(agent) == {(False, False, False, False)}  # after an error too
