"""The recurrent model: resets, gates, and step by step equal to all at once."""

import copy
import functools
import pickle
from types import SimpleNamespace

import pytest
import torch

from reverie.algos.imagination import imagine, open_loop
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.nn.actor import ActorConfig, DreamerActor
from reverie.nn.rssm import RSSM, RSSMConfig
from reverie.nn.state_space import Latent

SIZES = {"deter": 16, "hidden": 8, "stoch": 3, "classes": 4, "blocks": 4}
ACTIONS = ActionSpec(parts={"push": ActionPart(kind="categorical", classes=(2,))})
mode = functools.partial(torch.argmax, dim=-1)


@pytest.fixture
def rssm():
    torch.manual_seed(0)
    return RSSMConfig(**SIZES).build(embed=5, action=2)


@pytest.fixture
def certain(rssm):
    """The model takes the likeliest latents."""
    rssm.draw = mode
    return rssm


def data(batch=2, steps=6):
    first = torch.zeros(batch, steps, dtype=torch.bool)
    return torch.randn(batch, steps, 5), torch.randn(batch, steps, 2), first


def test_step_by_step_is_all_at_once(certain, either):
    rssm, (embed, action, first) = certain, data()
    first[1, 3] = True
    whole, _ = rssm.observe(rssm.initial(2, torch.float32), embed, action, first)
    latent = rssm.initial(2, torch.float32)
    for t in range(6):
        row, _ = rssm.observe(latent, embed[:, t : t + 1], action[:, t : t + 1], first[:, t : t + 1])
        latent = row.map(lambda x: x[:, 0])
        torch.testing.assert_close(latent, whole.map(lambda x, t=t: x[:, t]))


def test_first_rows_forget_state_and_action(certain, either):
    rssm, (embed, action, first) = certain, data()
    first[:, 2] = True
    noisy = Latent(torch.randn(2, 16), torch.randn(2, 3, 4))
    a, _ = rssm.observe(noisy, embed, action, first)
    b, _ = rssm.observe(rssm.initial(2, torch.float32), embed[:, 2:], 0 * action[:, 2:], first[:, 2:])
    torch.testing.assert_close(a.deter[:, 2], b.deter[:, 0])
    # The action *after* the first row counts again.
    c, _ = rssm.observe(noisy, embed[:, 2:], action[:, 2:], first[:, 2:])
    torch.testing.assert_close(a.deter[:, 2:], c.deter)


def test_blocks_divide_the_state():
    with pytest.raises(ConfigError, match="multiple of blocks"):
        RSSMConfig(**(SIZES | {"deter": 18}))


class Own(RSSM):
    """A cell of a user's own, whose state only counts."""

    def step(self, h, z, action):
        return h + 1


def test_a_cell_of_ones_own_is_used_with_and_without_compiled_functions(either):
    rssm = Own(5, 2, RSSMConfig(**SIZES))
    embed, action, first = data()
    seen, _ = rssm.observe(rssm.initial(2, torch.float32), embed, action, first)
    assert torch.equal(seen.deter, torch.arange(1.0, 7)[None, :, None].expand(2, 6, 16))
    actor = DreamerActor(rssm.feature_width, ACTIONS, ActorConfig(units=4))
    dream = imagine(SimpleNamespace(rssm=rssm, predict_mask=None), actor, seen.detach(), 3)
    assert torch.equal(dream.feature[-1, ..., :16], seen.deter + 3)
    assert torch.equal(open_loop(rssm, seen.map(lambda x: x[:, -1]), action).deter, seen.deter + 6)
    assert not rssm.is_bounded


@torch.no_grad()
def latents(model):
    torch.manual_seed(0)
    return model.observe(model.initial(2, torch.float32), *data())[0].deter


@pytest.mark.parametrize("change", ["layer", "method"])
def test_what_was_replaced_after_the_model_had_acted_is_used(rssm, change):
    latents(rssm)
    other = RSSMConfig(**SIZES).build(5, 2)
    if change == "layer":
        rssm.posterior = other.posterior
        other.load_state_dict(rssm.state_dict())
        torch.testing.assert_close(latents(rssm), latents(other))
    else:
        rssm.step = lambda h, z, action: h + 1
        assert torch.equal(latents(rssm)[0, :, 0], torch.arange(1.0, 7))


@pytest.mark.parametrize("how", ["data", "in place", "a copy", "pickled"])
def test_weights_that_somebody_changed_are_used(rssm, how):
    """PyTorch does not count changes by ``.data``."""
    before = latents(rssm)
    copies = {"a copy": copy.deepcopy, "pickled": lambda model: pickle.loads(pickle.dumps(model))}
    model = copies[how](rssm) if how in copies else rssm
    with torch.no_grad():
        for p in model.parameters():
            (p.data if how == "data" else p).mul_(3)
    fresh = RSSMConfig(**SIZES).build(embed=5, action=2)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(latents(model), latents(fresh))
    assert not torch.equal(latents(model), before)
    if how in copies:
        assert torch.equal(latents(rssm), before)
