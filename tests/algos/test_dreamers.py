"""What every Dreamer guarantees: the contracts of ``test_algorithms.py`` for world models."""

import copy
from dataclasses import replace

import pytest
import torch

from contracts import assert_declared
from dreamer_configs import CONFIGS, R2, batch, build, build_earlier, build_p2e, build_r2, shown, tensors
from host_work import Tapes, device_only
from reverie.core.errors import ConfigError
from reverie.kernels.capture import WARM_UPS, CapturedTrainStep

V3 = {
    "v3": {}, "v3_bfloat16": {"precision": "bfloat16", "probe.heads": ("mlp('state', inputs='token', units=8)",)},
    "v3_none": {"replay_context": 0}, "v3_p2e": {}, "r2_barlow": {}, "r2_pro": {},
}  # fmt: skip
KINDS = {"v1": "mixed", "v2_gaussian": "continuous", "v2_mixed": "mixed", "v3": "mixed", "v3_bfloat16": "continuous"}
EARLIER = [name for name in CONFIGS if name not in ("v1", "v1_cont", "v2")]  # those run what others run as well
every = pytest.mark.parametrize("name", [*EARLIER, *V3, "r2_infonce", "r2_decoder"])
most = pytest.mark.parametrize("name", [*EARLIER, "v3_bfloat16", "v3_p2e", "r2_barlow", "r2_pro"])


def made(name, device="cpu", **more):
    """A learner, and the kind of its actions."""
    kind = KINDS.get(name, "discrete")
    if name == "v3_p2e":
        return build_p2e("v3", kind, device=device, free_nats=0.0, **more), kind
    if name in R2:
        return build_r2(name, kind, device=device, free_nats=0.0, **more), kind
    if name in V3:
        return build(kind, device=device, free_nats=0.0, **V3[name] | more), kind
    free = {"kl": "free_nats(0.0)"} if name[:2] == "v1" else {}
    return build_earlier(name, kind, device=device, **free | more), kind


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


@pytest.mark.parametrize("name", ["p2e", "pydreamer", "v3_p2e", "r2_barlow"])
def test_replays_and_resumed_updates_are_those_of_one_run_bit_for_bit(name, monkeypatch):
    """A tape is what a CUDA graph would be, on the CPU; what is loaded is what later replays continue from."""
    monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
    few = {"batch_length": 4, "horizon": 3}
    (eager, kind), (replayed, _) = made(name, **few), made(name, **few)
    update, seen = CapturedTrainStep(replayed.train_step, torch.device("cpu"), Tapes(), replayed), []
    for agent in (eager, replayed):
        call, found = (update if agent is replayed else agent.update), []
        torch.manual_seed(5)
        for i in range(WARM_UPS + 3):
            if i == WARM_UPS + 1:
                saved = copy.deepcopy(agent.state_dict())
                if agent is eager:
                    agent = made(name, **few)[0]
                    call = agent.update
                else:
                    agent.load_state_dict(made(name, **few)[0].state_dict())  # something else, in between
                agent.load_state_dict(saved)
            found.append(call(batch(agent, kind, i)))
        seen.append((found, tensors(agent)))
    assert update.recorder.calls == ["warm up"] * WARM_UPS + ["capture"] + ["replay"] * 2
    for expected, got in zip(seen[0][0], seen[1][0], strict=True):
        torch.testing.assert_close((got.metrics, got.extras), (expected.metrics, expected.extras), rtol=0, atol=0)
    torch.testing.assert_close(seen[1][1], seen[0][1], rtol=0, atol=0)


@pytest.mark.parametrize("name", V3)
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name, monkeypatch):
    monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
    agent, kind = made(name, "meta", batch_size=16, batch_length=16)  # enough for what is done differently with many
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


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every
def test_graphs_of_a_gpu_learn_what_updates_learn(name):
    """Sums there are not the same to the last bit."""
    seen = {}
    for graph in (True, False):
        agent, kind = made(name, device="cuda", graph=graph)
        torch.manual_seed(2)
        seen[graph] = [agent.update(batch(agent, kind, seed)) for seed in range(WARM_UPS + 4)]
        rows = shown(batch(agent, kind))
        assert agent.policy.act(rows, agent.policy.initial(3), "explore")[0].device.type == "cpu"
    for a, b in zip(seen[True], seen[False], strict=True):
        losses = [{k: v for k, v in update.metrics.items() if k.startswith(("loss/", "opt/loss"))} for update in (a, b)]
        torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-2)
