"""Contracts of DreamerV1 and DreamerV2, and what they do that recordings do not show."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from dreamer_configs import ACTIONS, CONFIGS, EARLIER, batch, build, build_earlier, shown
from reverie.algos.world_model import repeat_windows
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart
from reverie.experiment.bench import noise_batch
from reverie.nn.dense_rssm import CELLS, CellStack
from reverie.nn.encoder import DenseEncoderConfig
from reverie.nn.layers import StridedConv
from reverie.nn.normals import SquashedNormal, TruncatedNormal
from reverie.objectives.kl import BalancedKL, FreeNats, categorical_kl, gaussian_kl
from reverie.objectives.policy import Dynamics, Mixed, Reinforce


@pytest.mark.parametrize(("version", "actions"), [("v1", "continuous"), ("v1", "mixed"), ("v3", "discrete")])
def test_noise_is_for_exploring_only(version, actions):
    make = build if version == "v3" else partial(build_earlier, version)
    agents = [make(actions, exploration_noise=noise) for noise in (0.0, 0.5)]
    for mode in ("eval", "explore"):
        found = []
        for agent in agents:
            torch.manual_seed(3)
            found.append(agent.policy.act(shown(batch(agent, actions)), agent.policy.initial(3), mode)[0])
        assert torch.equal(*found) == (mode == "eval")
        assert found[1].abs().max() <= 1


def test_noise_may_fall_along_a_ramp():
    """DreamerV1's ``expl_decay``. Where it has reached 0.5, actions are those of a constant 0.5."""
    falling = build_earlier("v1", "continuous", exploration_noise=[[0, 1.0], [100, 0.5]])
    steady = build_earlier("v1", "continuous", exploration_noise=0.5)
    assert [falling.exploration(step) for step in (0, 50, 200)] == [1.0, 0.75, 0.5]
    falling.position = lambda: 200
    actions = []
    for agent in (falling, steady):
        torch.manual_seed(3)
        agent.update(batch(agent, "continuous"))
        actions.append(agent.policy.act(shown(batch(agent, "continuous")), agent.policy.initial(3), "explore")[0])
    assert torch.equal(*actions)


# ---------------------------------------------------------------- parts


def test_the_actors_gradient_follows_the_actions():
    kinds = {actions: type(build_earlier("v2", actions).behavior.gradient) for actions in ACTIONS}
    assert kinds == {"discrete": Reinforce, "continuous": Dynamics, "mixed": Reinforce}
    assert build_earlier("v2", actor_gradient="dynamics").behavior.gradient == Dynamics()
    assert build_earlier("v2_mixed").behavior.gradient == Mixed(0.3)


def test_the_slow_critic_is_copied_at_once_and_then_moved_now_and_then():
    agent = build_earlier("v2_mixed")
    slow, fast = agent.behavior.slow_critic.model.out.weight, agent.critic.out.weight
    for seed, becomes in enumerate((lambda old: fast, lambda old: old, lambda old: (old + fast) / 2)):
        before = slow.clone()
        agent.update(batch(agent, seed=seed))
        torch.testing.assert_close(slow, becomes(before), rtol=0, atol=1e-7)
        assert torch.equal(slow, before) == (seed == 1)


def test_divergences_and_free_nats():
    p, q = torch.distributions.Normal, torch.stack([torch.randn(4, 3), torch.rand(4, 3) + 0.1], -1)
    other = torch.stack([torch.randn(4, 3), torch.rand(4, 3) + 0.1], -1)
    expected = torch.distributions.kl_divergence(p(*q.unbind(-1)), p(*other.unbind(-1))).sum(-1)
    torch.testing.assert_close(gaussian_kl(q, other), expected)
    post = torch.log_softmax(torch.randn(6, 2, 3), -1).requires_grad_()
    prior = torch.log_softmax(torch.randn(6, 2, 3), -1).requires_grad_()
    value = categorical_kl(post, prior)
    free = value.mean().item()  # some rows are above, some below
    for loss, expected in (
        (FreeNats(free * 2), 2 * value.mean()), (FreeNats(0), value.mean()), (BalancedKL(0.8, 0.0), value.mean()),
        (BalancedKL(0.8, free, average=False), value.clamp(min=free).mean()),
        (BalancedKL(0.5, free), value.clamp(min=free).mean()),
        (BalancedKL(0.5, free, forward=True), categorical_kl(prior, post).clamp(min=free).mean()),
    ):  # fmt: skip
        torch.testing.assert_close(loss(categorical_kl, post, prior)[0], expected)
    shares = []
    for balance in (0.8, 0.5):
        loss, _ = BalancedKL(balance)(categorical_kl, post, prior)
        grads = torch.autograd.grad(loss, [post, prior])
        plain = torch.autograd.grad(categorical_kl(post, prior).mean(), [post, prior])
        shares.append([float((g / h).mean()) for g, h in zip(grads, plain, strict=True)])
    torch.testing.assert_close(shares, [[0.2, 0.8], [1.0, 1.0]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("dist", [TruncatedNormal, SquashedNormal])
def test_densities_of_continuous_actions_sum_to_one(dist):
    mean, std = torch.tensor([[0.7], [-0.2]]), torch.tensor([[0.3], [1.1]])
    policy = dist(mean, std=std)
    grid = torch.linspace(-1 + 1e-4, 1 - 1e-4, 20_001)[:, None, None]
    density = policy.log_prob(grid.expand(-1, 2, 1)).exp()  # [n, 2]
    torch.testing.assert_close(torch.trapezoid(density, grid[:, 0], dim=0), torch.ones(2), rtol=0, atol=3e-3)
    torch.manual_seed(0)
    entropy = -torch.trapezoid(torch.xlogy(density, density), grid[:, 0], dim=0)
    several = torch.stack([policy.entropy() for _ in range(200)]).mean(0)
    torch.testing.assert_close(several, entropy, rtol=0, atol=2e-2)
    drawn = torch.stack([policy.sample() for _ in range(4000)])
    expected = torch.trapezoid(density * grid[:, 0], grid[:, 0], dim=0)
    torch.testing.assert_close(drawn.mean((0, 2)), expected, rtol=0, atol=0.03)
    assert drawn.abs().max() <= 1


def test_samples_of_actions_have_a_gradient():
    for dist in (TruncatedNormal, SquashedNormal):
        mean, drawn = torch.zeros(1, 1, dtype=torch.float64, requires_grad=True), []
        for shift in (0.0, 1e-5, -1e-5):
            torch.manual_seed(1)
            drawn.append(dist(mean + shift, std=torch.ones_like(mean)).rsample())
        here, up, down = drawn
        (grad,) = torch.autograd.grad(here.sum(), mean)
        torch.testing.assert_close(grad, ((up - down) / 2e-5).detach(), rtol=1e-3, atol=1e-6)


# ---------------------------------------------------------------- settings that cannot be


@pytest.mark.parametrize("size", [(3, 3), (7, 7), (10, 10), (32, 32), (84, 84), (96, 96), (5, 18)])
def test_images_of_any_size_are_reconstructed(size):
    obs = {"image": ObsPart(kind="image", shape=(*size, 2), dtype="uint8")}
    sizes = {k: v for k, v in EARLIER.items() if "kernels" not in k}
    agent = CONFIGS["v2"].merge(sizes).build(obs, ACTIONS["discrete"], torch.device("cpu"))
    rows = noise_batch(agent, obs, ACTIONS["discrete"])
    assert agent.update(rows).metrics["loss/reconstruction/image"].isfinite()
    assert agent.dream(rows, 2)["image"].shape == rows.obs["image"].shape


@pytest.mark.parametrize("size", [(3, 4), (7, 8), (11, 64), (84, 84), (96, 129)])
def test_every_pixel_is_read(size):
    encoder = DenseEncoderConfig(depth=1).build({"image": ObsPart(kind="image", shape=(*size, 1), dtype="float32")})
    for module in encoder.modules():
        if isinstance(module, StridedConv):
            torch.nn.init.ones_(module.weight)
    image = torch.full((1, *size, 1), 255.0, requires_grad=True)
    encoder({"image": image}, torch.float32).sum().backward()
    assert (image.grad != 0).all()


# ---------------------------------------------------------------- PyDreamer


def test_an_agent_that_reads_rewards_acts_by_them():
    agent = build_earlier("pydreamer")
    step, embeds = shown(batch(agent)), []
    agent.world.encoder.register_forward_hook(lambda module, given, out: embeds.append(out))
    for reward in (step.reward, step.reward + 1):
        agent.policy.act(replace(step, reward=reward), agent.policy.initial(3), "eval")
    assert not torch.equal(*embeds)


def test_the_cell_of_v1_is_that_of_torch_and_cells_stand_above_each_other():
    x, h = torch.randn(5, 3), torch.randn(5, 8)
    stack = CellStack(CELLS["keras_gru"], 3, 8, 2)
    below, above = torch.nn.GRUCell(3, 4), torch.nn.GRUCell(4, 4)
    for cell, its in zip(stack.cells, (below, above), strict=True):
        for ours, theirs in ((cell.from_input, "ih"), (cell.from_state, "hh")):
            for part in ("weight", "bias"):  # theirs are reset, update, new
                value = getattr(its, f"{part}_{theirs}").data
                getattr(ours, part).data = torch.cat([value[4:8], value[:4], value[8:]])
    low = below(x, h[:, :4])
    expected = torch.cat([low, above(low, h[:, 4:])], -1)
    torch.testing.assert_close(stack(x, h), expected)


def test_a_carried_state_makes_two_batches_one():
    """Its windows go on, and begin anew at first rows; the latents are those of one long window."""
    agent = build_earlier("pydreamer", batch_length=12)
    long, agent.world.rssm.draw = batch(agent, seed=2), lambda p: p.argmax(-1)
    whole = agent.world.observe(long, None, 2).latent.deter
    found = []
    for part in (long.slice_time(0, 6), long.slice_time(6)):
        post = agent.world.observe(part, agent.carried_context(), 2)
        agent.store_carried_state(part, post)
        found.append(post.latent.deter)
    assert (long.is_first[:, 6:].any(), long.is_first[:2, 6].any()) == (True, False)
    torch.testing.assert_close(torch.cat(found, 1), whole)
    other = build_earlier("pydreamer", batch_size=2)  # as when a run goes on with other batches
    other.load_state_dict(agent.state_dict())
    assert not other.carried_deter.any()


def test_weights_begin_as_in_pydreamer():
    sizes = {"actor__units": 200, "critic__units": 200, "rssm__deter": 64, "rssm__hidden": 96}
    plain = {"actor__init": "torch", "critic__init": "torch", "critic__norm": "layer", "rssm__init": "split"}
    agent = build_earlier("pydreamer_dynamics", **sizes, **plain)

    def bound(x, limit):
        assert 0.9 * limit < x.detach().abs().max() <= limit
        torch.testing.assert_close(float(x.detach().std()), limit / 3**0.5, rtol=0.15, atol=0)

    inputs = agent.world.rssm.feature_width
    for layers in (agent.actor.mlp, agent.critic.mlp):
        bound(layers[0].weight, inputs**-0.5)
        bound(layers[0].bias, inputs**-0.5)
    bound(agent.critic.out.weight, 200**-0.5)
    bound(torch.cat([x.weight for x in agent.actor.parts[0].outputs]), 200**-0.5)
    torch.testing.assert_close(agent.behavior.slow_critic.model.state_dict(), agent.critic.state_dict())
    assert (agent.critic.mlp[1].weight == 1).all()
    rssm = agent.world.rssm
    for weight, place in ((rssm.input.weight, rssm.width), (rssm.posterior.first.weight, 64)):
        for part in weight.tensor_split([place], 1):
            bound(part, (6 / sum(part.shape)) ** 0.5)
    own, state = rssm.gru.layer.weight.tensor_split([-64], 1)
    bound(own, (6 / sum(own.shape)) ** 0.5)
    torch.testing.assert_close(state.T @ state, torch.eye(64), rtol=0, atol=1e-5)
    assert not any(p.any() for n, p in agent.world.named_parameters() if n.endswith("bias"))


def test_probes_have_settings_of_their_own_and_say_how_right_they_are():
    heads = ("mlp('token', inputs='state', units=4)", "mlp('state', layers=1)")
    agent = build_earlier("pydreamer", probe__heads=heads, encoder__keys="image", decoder__keys="image",
                          encoder__class_units=None, decoder__class_units=None)  # fmt: skip
    rows = batch(agent)
    width = agent.world.rssm.feature_width
    assert [head[0][0].weight.shape for head in agent.probe.heads] == [(4, width + 2), (400, width)]
    for _, part in agent.probe.heads:
        torch.nn.init.zeros_(part.weight)
    agent.probe.heads[0][1].bias.data = torch.tensor([0.0, 1.0, 0.5, 2.0, 0.0, 1.0])  # classes 1 and 0
    metrics = agent.update(rows).metrics
    right = (rows.obs["token"] == torch.tensor([1, 0])).float().mean()
    torch.testing.assert_close(metrics["train/probe/token_accuracy"], right)
    torch.testing.assert_close(metrics["train/probe/state_mse"], rows.obs["state"].square().mean())
    with pytest.raises(ConfigError, match="keys = '' matches no observation"):
        build_earlier("v2", probe__heads=("mlp",))


def test_probes_change_the_latents_only_if_asked():
    found = {}
    for gradients in (False, True):
        agent = build_earlier("pydreamer", probe__gradients=gradients, aux__weight=0.0)
        rows = batch(agent)
        post = agent.world.observe(rows, samples=2)
        losses, _ = agent.losses(repeat_windows(rows, 2), post, {"kl": torch.zeros(6, 6)})
        loss = losses["model" if gradients else "probe"]
        (found[gradients],) = torch.autograd.grad(loss, [post.latent.stoch], allow_unused=True)
    assert found[False] is None
    assert found[True].abs().sum() > 0
