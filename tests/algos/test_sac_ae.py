"""SAC-AE: reconstruction against a slow definition, what its gradient reaches, and targets that move at two rates."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from reverie.algos.sac_ae import SACAEConfig, quantized_image
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment.bench import noise_batch

SPEC = {"eye": ObsPart(kind="image", shape=(16, 21, 3), dtype="uint8")}
PUSH = ActionSpec(parts={"push": ActionPart(kind="continuous", size=2)})


def build(**changes):
    settings = {"batch_size": 4, "networks.units": (8,), "networks.encoder": "drq(4, 5)", "decoder_channels": 4}
    learner = SACAEConfig().merge(settings | {"graph": False} | changes).build(SPEC, PUSH, seed=0)
    return learner, noise_batch(learner, SPEC, PUSH)


def test_an_image_has_32_levels_with_noise_within_them():
    x = torch.arange(256, dtype=torch.uint8)
    torch.manual_seed(1)
    found = quantized_image(x, SPEC["eye"])
    torch.manual_seed(1)
    expected = [(int(value) // 8 + u) / 32 - 0.5 for value, u in zip(x, torch.rand(256).tolist(), strict=True)]
    torch.testing.assert_close(found, torch.tensor(expected))


def test_the_reconstruction_against_its_definition():
    """Image by image; the decoder is that of PyTorch's layers, whose sizes are those of the encoder, backwards."""
    learner, batch = build(latent_coef=0.1)
    o, image = learner.objective, batch.obs["eye"][:, 0]
    for layer in o.decoders[0].layers:  # kernels begin with centers alone
        torch.nn.init.normal_(layer.weight, std=0.2)
    torch.manual_seed(1)
    found = o.reconstruction_loss({"eye": image})
    inputs, (decoder,) = o.critic.inputs, o.decoders
    torch.manual_seed(1)
    noise = torch.rand(4, 16, 21, 3)
    total = 0.0
    for one, u in zip(image, noise, strict=True):
        z = inputs({"eye": one[None]})[0]
        y = decoder.linear(z).relu().view(1, 4, 1, 4)
        for layer in decoder.layers[:-1]:
            y = F.conv_transpose2d(y, layer.weight, layer.bias).relu()
        y = F.conv_transpose2d(y, *decoder.layers[-1].parameters(), stride=2, output_padding=(1, 0))[0].permute(1, 2, 0)
        target = (one.float().div(8).floor() + u) / 32 - 0.5
        total += ((y - target) ** 2).mean() + 0.1 * 0.5 * (z**2).sum()
    torch.testing.assert_close(found, total / 4, rtol=1e-4, atol=1e-5)


def test_the_actor_and_convolutions_are_those_of_the_authors_code():
    """ln sigma is in [-10, 2], and kernels begin with orthogonal centers alone: utils of Yarats et al."""
    o = build()[0].objective
    weight = o.critic.inputs.encoder.stacks[0][1].weight  # [4, 3, 3, 4]
    middle = weight[:, 1, 1]
    torch.testing.assert_close(middle @ middle.T, 2 * torch.eye(4))
    torch.testing.assert_close(weight.square().sum(), middle.square().sum())
    with torch.no_grad():
        for p in o.actor.body.parameters():
            p.mul_(1000)
    obs = {"eye": torch.randint(256, (50, 16, 21, 3), dtype=torch.uint8)}
    log_std = o.actor(obs).log_std
    torch.testing.assert_close(torch.stack(log_std.aminmax()), torch.tensor([-10.0, 2.0]))


def test_critics_and_reconstruction_train_the_encoder_but_the_actor_does_not():
    learner, batch = build()
    o = learner.objective
    encoder = list(o.critic.inputs.encoder.parameters())
    assert next(iter(o.actor.inputs.encoder.parameters())) is encoder[0]
    for loss in (o.reconstruction_loss({"eye": batch.obs["eye"][:, 0]}), o.critic_loss(batch).terms["critic"]):
        assert all(g.any() for g in torch.autograd.grad(loss, encoder))
    assert not {id(p) for p in learner.optims["actor"].params} & {id(p) for p in encoder}
    read = {id(p) for p in o.critic.inputs.parameters()}
    assert {id(p) for p in learner.optims["encoder"].params} == read
    assert read < {id(p) for p in learner.optims["critic"].params}
    assert learner.optims["decoder"].weight_decay == 1e-7


def test_the_decoder_learns_at_each_update_and_the_target_moves_at_two_rates():
    learner, batch = build()
    o = learner.objective
    target, before = o.target_critic, copy.deepcopy(o.state_dict())
    update = learner.update(batch)
    assert update.metrics["loss/reconstruction"] > 0
    decoders = {k for k in before if k.startswith("decoders") and not torch.equal(before[k], o.state_dict()[k])}
    assert decoders == {k for k in before if k.startswith("decoders")}
    assert all(torch.equal(x, before[f"target_critic.{k}"]) for k, x in target.model.named_parameters(prefix="model"))
    with torch.no_grad():
        for p in o.critic.parameters():
            p.add_(1.0)
    slow = copy.deepcopy(dict(target.model.named_parameters()))
    target.update()  # the second
    fast = dict(o.critic.named_parameters())
    for name, x in target.model.named_parameters():
        rate = 0.05 if name.startswith("inputs.") else 0.01
        torch.testing.assert_close(x, torch.lerp(slow[name], fast[name], rate))


def test_images_are_reconstructed_better_after_updates():
    learner, batch = build(decoder_lr=1e-2)
    batch.obs["eye"].fill_(255)
    losses = [float(learner.update(batch).metrics["loss/reconstruction"]) for _ in range(10)]
    assert losses[-1] < 0.8 * losses[0], losses


@pytest.mark.parametrize("shape", [(84, 84, 9), (16, 21, 1), (3, 8, 3)])
def test_decoded_images_have_the_size_of_images(shape):
    spec = {"eye": ObsPart(kind="image", shape=shape, dtype="uint8")}
    settings = {"networks.units": (8,), "networks.encoder": "dreamer(depth=2)", "decoder_channels": 2}
    decoder = SACAEConfig().merge(settings).build(spec, PUSH).objective.decoders[0]
    assert decoder(torch.zeros(2, decoder.linear.in_features)).shape == (2, *shape)
