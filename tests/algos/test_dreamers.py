"""What every Dreamer guarantees: the contracts of ``test_algorithms.py`` for world models."""

import copy
from dataclasses import replace

import pytest
import torch

from contracts import assert_declared
from dreamer_configs import CONFIGS, V3, batch, made, tensors
from host_work import device_only
from reverie.core.errors import ConfigError

EARLIER = [name for name in CONFIGS if name not in ("v1", "v1_cont", "v2")]  # those run what others run as well
every = pytest.mark.parametrize("name", [*EARLIER, *V3, "r2_infonce", "r2_decoder"])
most = pytest.mark.parametrize("name", [*EARLIER, "v3_bfloat16", "v3_p2e", "r2_barlow", "r2_pro"])


@every
def test_an_update_trains_all_and_says_it_in_words(name):
    agent, kind = made(name, slow_update_interval=1) if name == "pydreamer" else made(name)
    before = copy.deepcopy(tensors(agent))
    torch.manual_seed(0)
    for i in range(2):
        update = agent.update(batch(agent, kind, i))
    assert_declared(update)
    assert all(v.ndim == 0 and torch.isfinite(v) and not v.requires_grad for v in update.metrics.values())
    assert update.priority.shape == (3,)
    assert {k: (tuple(v.shape), str(v.dtype)) for k, v in update.extras.items()} == {
        k: ((3, 6, *part.shape), f"torch.{part.dtype}") for k, part in agent.extra_spec.items()
    }
    same = {k for k, v in tensors(agent).items() if torch.equal(v, before[k])}
    assert not {k for k in same if not any(word in k for word in ("slow", "shapes", "magnitude"))}
    for n, p in agent.named_parameters():
        assert p.requires_grad != ("slow." in n or "slow_" in n), n


@pytest.mark.parametrize("name", ["v2", "v3"])
def test_reconstructions_have_weights_by_the_first_expression_that_matches_a_whole_key(name):
    agent, _ = made(name, **{"loss_scales.reconstruction": {"to|state": 3.0, "state": 9.0}})
    terms = {f"reconstruction/{key}": torch.ones(3, 6) for key in agent.obs_spec} | {"reward": torch.ones(3, 6)}
    assert agent.total(terms) == 1 + 1 + 3 + 1  # of reward, image, state and token
    for wrong, why in {"states": "'states' matches no obs.*image, state, token", "(": "valid regular expr"}.items():
        with pytest.raises(ConfigError, match=f"loss_scales.reconstruction = .*{why}"):
            made(name, **{"loss_scales.reconstruction": {wrong: 1.0}})
    with pytest.raises(ConfigError, match=r"-1.0: expected .*0 or more"):
        made(name, **{"loss_scales.reconstruction": {"state": -1.0}})


@every
def test_losses_on_held_out_rows_are_those_of_an_update_that_is_not_made(name):
    agent, kind = made(name)
    rows = batch(agent, kind)
    rows, before = replace(rows, extras={}), copy.deepcopy(tensors(agent))
    torch.manual_seed(0)
    found = agent.heldout_losses(rows)
    torch.testing.assert_close(tensors(agent), before, rtol=0, atol=0)
    torch.manual_seed(0)
    update = agent.update(rows).metrics
    torch.testing.assert_close(found, {loss: update[loss] for loss in found}, rtol=5e-3, atol=1e-4)  # of bfloat16
    assert {"loss/reward", "loss/cont"} < found.keys()
    assert {loss for loss in found if "probe" in loss} == {loss for loss in update if loss.startswith("loss/probe")}


@pytest.mark.usefixtures("plain_pytorch")
@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.nightly if name in ("v3", "v3_none", "r2_barlow") else ()) for name in V3
])  # fmt: skip
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name):
    many = {"batch_size": 16, "batch_length": 16, "horizon": 2}  # enough for what is done differently with many
    agent, kind = made(name, "meta", **many)
    data = batch(agent, kind).to("meta")
    with device_only():
        update = agent.train_step(data)
    for x in (*update.metrics.values(), *update.extras.values()):
        assert (x.device.type, x.requires_grad) == ("meta", False)


@every
def test_dreams_are_in_the_units_of_the_environment(name):
    agent, kind = made(name)
    rows = batch(agent, kind)
    dreamt, t = agent.dream(rows, 3), rows.shape[1]
    if name in ("r2_barlow", "r2_infonce", "r2_pro"):  # nothing is decoded
        assert set(dreamt) == {"reward", "cont", "inside/deter", "inside/stoch", "inside/value"}
        return
    assert getattr(agent, "probe", None) or dreamt["state"].shape == (3, t, 2)  # else a probe does
    assert dreamt["image"].shape == (3, t, 8, 8, 3)
    assert 0 <= dreamt["image"].min() <= dreamt["image"].max() <= 255
    assert dreamt["reward"].shape == dreamt["cont"].shape == (3, t)
    assert dreamt["cont"].max() <= 1
    if name not in V3:
        raw = agent.world.reward(torch.randn(2, agent.world.rssm.feature_width)).mean().clamp(-0.9, 0.9)
        torch.testing.assert_close(agent.world.transform.forward(agent.world.transform.inverse(raw)), raw)
    assert set(agent.report(rows)) == {"report/image"}


@most
def test_a_first_row_is_dreamt_from_its_most_likely_state_whatever_is_drawn(name):
    agent, kind = made(name)
    rows = batch(agent, kind).slice_time(0, 1)
    rows.is_first[:] = True
    torch.manual_seed(0)
    first, second, post = agent.dream(rows, 1), agent.dream(rows, 1), agent.world.observe(rows)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    named, stoch = agent.world.rssm.stats_by_name(post.stats), first["inside/stoch"].float()
    if "mean" in named:
        torch.testing.assert_close(stoch[..., 0], named["mean"])
    else:
        assert torch.equal(stoch.argmax(-1), named["logits"].argmax(-1))
        assert torch.equal(stoch.sum(-1), torch.ones_like(stoch[..., 0]))
