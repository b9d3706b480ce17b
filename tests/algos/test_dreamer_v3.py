"""Contracts of the learner: sizes, determinism, gradients, resume, precision, ends of episodes."""

import copy
import math
from dataclasses import replace

import pytest
import torch

from dreamer_configs import batch, build, shown
from reverie.algos import dreamer_v3
from reverie.algos.dreamer_v3 import SIZES, DreamerV3, DreamerV3Config, replay_value_loss, with_size
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.nn.state_space import Latent
from reverie.objectives.returns import lambda_return

COUNTS = {  # peers' arithmetic for 64 x 64 x 3 images and six actions; the slow critic is not counted
    "1m": 686_456, "12m": 10_492_616, "25m": 23_487_016, "50m": 41_646_984, "100m": 93_463_624,
    "200m": 165_942_536, "400m": 372_887_176,
}  # fmt: skip


@pytest.mark.parametrize("size", COUNTS)
def test_parameter_counts_of_the_authors(size):
    spec = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
    actions = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
    with torch.device("meta"):  # shapes without memory
        agent = DreamerV3(spec, actions, with_size(size), torch.device("meta"))
    assert agent.optim.count == COUNTS[size]


def test_every_named_size_builds_and_names_are_forgiving():
    assert with_size("12M") == with_size("12m") == DreamerV3Config()
    assert with_size("xl").rssm.deter == SIZES["XL"]["deter"] == 4096
    with pytest.raises(ConfigError, match=r"size = '13m'.*Did you mean '1m', '12m'"):
        with_size("13m")


def test_weights_of_the_losses_are_the_papers():
    """Equation 2 and the text below: 1, but 0.1 of the KL that moves the posterior, and 0.3 of the replayed critic."""
    others = {"representation": 0.1, "replay_critic": 0.3}
    assert {k: w for k, w in DreamerV3Config().loss_scales.to_dict().items() if w != 1.0} == others


@pytest.mark.parametrize("context", [0, 2])
def test_priorities_are_the_losses_of_the_world_model(context):
    agent = build(replay_context=context)
    assert agent.window.rows == 6 + context
    update, scales = agent.update(batch(agent)), agent.cfg.loss_scales.to_dict()
    names = ("dynamics", "representation", "reward", "cont", "reconstruction")
    losses = {k.removeprefix("loss/"): v for k, v in update.metrics.items() if k.startswith("loss/")}
    world = sum(scales[k.split("/")[0]] * v for k, v in losses.items() if k.split("/")[0] in names)
    assert torch.allclose(update.priority.mean(), world)


def test_bfloat16_computes_low_and_keeps_float32_parameters():
    agent = build(precision="bfloat16")
    data = batch(agent)
    losses = agent.losses(*agent.split_context(data))
    assert losses.post.latent.deter.dtype == torch.bfloat16
    assert all(v.dtype == torch.float32 for v in losses.terms.values())
    agent.update(data)
    assert all(p.dtype == torch.float32 for p in agent.parameters())
    assert agent.extra_spec["deter"].dtype == "float16"


def test_packed_latents_survive_the_round_trip():
    agent = build()
    data = batch(agent)
    action, state = agent.policy.act(shown(data), agent.policy.initial(3), "explore")
    assert action.shape == (3, 4)
    assert torch.equal(action.sum(-1), torch.ones(3))
    for name, packed in agent.policy.extras(state).items():
        data.extras[name][:, 0] = packed
    context, _ = agent.split_context(data)
    torch.testing.assert_close(context.latent, state.latent, rtol=0, atol=0)


@pytest.mark.parametrize(("classes", "dtype"), [(255, "uint8"), (256, "int16"), (300, "int16")])
def test_every_class_has_a_number(classes, dtype):
    agent = build(rssm__classes=classes)
    assert agent.extra_spec["classes"].dtype == dtype
    index = torch.tensor([[0, classes // 2, classes - 1]]).expand(3, 3)  # [B, S]
    latent = Latent(torch.zeros(3, 16), torch.nn.functional.one_hot(index, classes).float())
    data = batch(agent)
    extras = {key: value[:, None].expand(-1, 7, -1) for key, value in agent.latent_columns(latent).items()}
    context, _ = agent.split_context(replace(data, extras=extras))
    assert torch.equal(context.latent.stoch, latent.stoch)


def see(agent, mode, seed):
    """What the policy does on the first rows of a batch."""
    torch.manual_seed(seed)
    action, state = agent.policy.act(shown(batch(agent)), agent.policy.initial(3), mode)
    return action, agent.actor(state.latent.feature)


def test_evaluation_takes_the_mode_and_exploration_samples():
    agent = build("continuous")
    for seed in range(5):
        action, policy = see(agent, "eval", seed)
        torch.testing.assert_close(action, policy.mode())
    drawn = torch.stack([see(agent, "explore", seed)[0] for seed in range(5)])
    assert (drawn.std(0) > 0).all()


@pytest.mark.parametrize(("unimix", "least"), [(0.01, 0.01 / 4), (0.2, 0.2 / 4), (0.0, 0.0)])
def test_the_policys_unimix_is_applied_and_can_be_switched_off(unimix, least):
    agent = build(**({} if unimix == 0.01 else {"actor__unimix": unimix}))
    with torch.no_grad():
        agent.actor.parts[0].outputs[0].bias.copy_(torch.tensor([50.0, 0.0, 0.0, 0.0]))
    probs = see(agent, "eval", 0)[1].parts["action"].probs
    torch.testing.assert_close(probs[:, 0, 1:], torch.full((3, 3), least), rtol=1e-3, atol=1e-8)


def test_dreams_may_start_from_the_last_rows_only():
    agent = build(imagine_last=2)
    data = batch(agent)
    losses = agent.losses(*agent.split_context(data))
    assert torch.equal(losses.dream.feature[0], losses.post.latent.feature[:, -2:])
    assert losses.terms["actor"].shape == (3, 2)
    assert losses.terms["replay_critic"].shape == (3, 1)


def test_continuation_learns_terminal_and_never_a_time_limit():
    """Twice the same rows, once ended by death and once by the clock: only death is learned as an end."""
    agent = build()
    context, rows = agent.split_context(batch(agent))
    post, loss = agent.world.observe(rows, context), {}
    for end in ((False, False), (True, False), (False, True)):
        rows.is_last[:], rows.is_terminal[:] = end
        loss[end] = agent.world_model_loss(rows, post)[0]["cont"]
    neither, clock, death = loss.values()
    assert torch.equal(clock, neither)
    assert not torch.equal(death, clock)


def test_classes_without_any_probability_left_cost_no_nan():
    """As softmax leaves them without unimix, where nothing compiled stands in its place."""
    agent = build(rssm__unimix=0.0)
    context, rows = agent.split_context(batch(agent, "discrete"))
    post = agent.world.observe(rows, context)
    certain = torch.zeros_like(post.stats)
    certain[..., 0] = 1
    agent.world.rssm.p = lambda deter: certain
    terms, metrics = agent.world_model_loss(rows, post._replace(stats=certain.flip(-1)))
    assert all(torch.isfinite(terms[name]).all() for name in ("dynamics", "representation"))
    assert all(torch.isfinite(value).all() for value in metrics.values())


def test_the_replayed_critic_tells_terminal_from_last(monkeypatch):
    agent = build(slow_regularizer=0.0)
    data = batch(agent).slice_time(1)
    feature, boot = torch.randn(3, 6, agent.world.rssm.feature_width), torch.full((3, 6), 50.0)
    for x in (data.reward, data.is_first, data.is_last, data.is_terminal):
        x.zero_()
    seen = []

    def noted(*given):
        seen.append(lambda_return(*given))
        return seen[-1]

    monkeypatch.setattr(dreamer_v3, "lambda_return", noted)
    replay_value_loss(agent, data, feature, boot)
    data.is_last[:, 3] = True
    masked = replay_value_loss(agent, data, feature, boot)
    data.is_terminal[:, 3] = True
    replay_value_loss(agent, data, feature, boot)
    plain, truncated, terminal = seen
    torch.testing.assert_close(truncated[:, 2], torch.full((3,), agent.cfg.discount * 50))  # its bootstrap, unmixed
    assert torch.equal(terminal[:, 2], torch.zeros(3))  # worth nothing
    assert torch.equal(plain[:, 4:], truncated[:, 4:])
    assert not masked[:, 3].any()  # the value of a last row is never a target: no action was taken there


def test_dream_shows_what_was_seen_and_imagines_the_rest():
    agent = build()
    data = batch(agent)
    out = agent.dream(data, context=3)
    assert out["image"].shape == data.obs["image"].shape
    assert out["state"].shape == data.obs["state"].shape
    assert out["token"].shape == (3, 7, 2, 3)
    assert out["reward"].shape == out["cont"].shape == (3, 7)
    with torch.no_grad():
        for parameter in agent.world.cont.logit.parameters():
            parameter.fill_(0)
        agent.world.cont.logit.bias.fill_(math.log(agent.cfg.discount / (1 - agent.cfg.discount)))
    torch.testing.assert_close(agent.dream(data, context=3)["cont"], torch.ones(3, 7))  # as it learns where all goes on
    for wrong in (0, 8):
        with pytest.raises(ConfigError, match=f"context = {wrong}: expected a whole number from 1 to 7, the rows"):
            agent.dream(data, context=wrong)


def test_a_dream_goes_on_under_more_actions_and_refuses_others():
    agent = build()
    data = batch(agent)
    longer = torch.cat([data.action, data.action[:, :2]], 1)
    torch.manual_seed(0)
    out = agent.dream(data, context=7)
    torch.manual_seed(0)
    more = agent.dream(replace(data, action=longer), context=7)
    assert more["image"].shape[:2] == more["reward"].shape == (3, 9)
    assert torch.equal(more["inside/deter"][:, :7], out["inside/deter"])
    for wrong in (data.action.argmax(-1), data.action[..., :1], data.action[:, :6], data.action[:1]):
        with pytest.raises(DataError, match=r"batch.action has shape .*: expected \[3, 7, \d+\], or additional"):
            agent.dream(replace(data, action=wrong), context=3)


def test_probes_learn_and_change_nothing_else():
    """Neither the model's weights nor what it draws; it does not see what they predict."""
    heads = {"probe.heads": ("mlp('state', inputs='token', units=8)",), "probe.optim.lr": 0.01}
    probed, plain = build(**heads), build(encoder__keys="image|token", decoder__keys="image|token")
    found = {}
    for agent in (plain, probed):
        torch.manual_seed(0)
        found[agent] = [agent.update(batch(agent)).metrics for _ in range(20)]
    first, last = found[probed][0], found[probed][-1]
    assert last["loss/probe/state"] < first["loss/probe/state"]
    assert last.keys() - found[plain][-1].keys() == {"loss/probe/state", "train/probe/state_mse"}
    own = {name: x for name, x in probed.state_dict()["model"].items() if not name.startswith("probe")}
    torch.testing.assert_close(own, dict(plain.state_dict()["model"]), rtol=0, atol=0)
    with pytest.raises(ConfigError, match=r"probe.gradients is for DreamerV2"):
        build(**heads, probe__gradients=True)


def test_report_shows_dreams_and_disturbs_nothing():
    agent = build()
    before, state = copy.deepcopy(agent.state_dict()["model"]), torch.get_rng_state()
    videos = agent.report(batch(agent))
    assert {k: v.shape for k, v in videos.items()} == {"report/image": (7, 1 + 3 * 8, 3 * 8, 3)}
    assert [sorted(set(frame.ravel().tolist())) for frame in videos["report/image"][:, 0]] == [[0]] * 3 + [[255]] * 4
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in agent.state_dict()["model"].items())
