"""Actor and critics on images share one encoder, one pass of it in an update, and only the critics' loss trains it."""

from __future__ import annotations

import pytest
import torch

from reverie.algos.table import algorithm_config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment.bench import noise_batch
from reverie.nn.network import unshared_parameters

OBS = {
    "eye": ObsPart(kind="image", shape=(16, 18, 3), dtype="uint8"),
    "joints": ObsPart(kind="vector", shape=(2,), dtype="float32"),
}
PUSH = ActionSpec(parts={"push": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))})


def build(name, **changes):
    settings = {"batch_size": 4, "networks.units": (8,), "networks.encoder": "drq(16, 5)", "graph": False} | changes
    action = CHOICE if name.startswith("discrete") else PUSH
    learner = algorithm_config(name)().merge(settings).build(OBS, action)
    return learner, noise_batch(learner, OBS, action)


@pytest.mark.parametrize("length", [2, 4])
@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "cql", "td3_bc", "discrete_sac", "iql"])
def test_each_image_is_encoded_once(name, length):
    learner, batch = build(name, batch_length=length)
    o, encoder = learner.objective, learner.objective.critic.inputs.encoder
    others = [getattr(o, key).model for key in ("target_critic", "target_actor") if hasattr(o, key)]
    others += [o.actor, *([o.value] if name == "iql" else [])]
    assert all(network.inputs.encoder is encoder for network in others)
    seen = []
    encoder.register_forward_hook(lambda module, inputs, out: seen.append((out[..., 0].numel(), out.requires_grad)))
    before = [x.clone() for x in encoder.parameters()]
    for _ in range(2):  # the second with the actor, in TD3
        learner.update(batch)
    rows = 4 * (length - 1), 4
    assert seen == 2 * [(rows[0], True), (rows[1], False)]
    assert not any(map(torch.equal, before, encoder.parameters()))


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg", "td3_bc", "discrete_sac"])
def test_the_loss_of_the_actor_gives_the_encoder_no_gradient(name):
    learner, batch = build(name)
    for_critic, for_actor = learner.encode(batch)
    o = learner.objective
    own = unshared_parameters(o.actor, o.critic)
    assert {id(p) for p in learner.optims["actor"].params} == {id(p) for p in own}
    encoder = list(o.critic.inputs.encoder.parameters())
    loss = o.actor_loss(for_actor).terms["actor"]
    gradients = torch.autograd.grad(loss, [*own, *encoder], allow_unused=True, retain_graph=True)
    assert all(g is not None for g in gradients[: len(own)])
    assert all(g is None for g in gradients[len(own) :])
    assert all(g.any() for g in torch.autograd.grad(o.critic_loss(for_critic).terms["critic"], encoder))


def test_losses_of_images_are_those_of_features():
    """The learner's losses, from one pass, are those of the objective, which encodes images where it needs them."""
    learner, batch = build("td3", batch_length=3, target_policy_noise=0.0)
    for_critic, _ = learner.encode(batch)
    o, parameters = learner.objective, list(learner.objective.critic.parameters())
    found, expected = (torch.autograd.grad(o.critic_loss(x).terms["critic"], parameters) for x in (for_critic, batch))
    torch.testing.assert_close(found, expected)


def test_targets_share_the_encoder_after_loading():
    learner, batch = build("sac")
    other, _ = build("sac")
    for _ in range(3):
        learner.update(batch)
    other.load_state_dict(learner.state_dict())
    o = other.objective
    assert o.actor.inputs.encoder is o.critic.inputs.encoder is o.target_critic.model.inputs.encoder
    torch.testing.assert_close(list(other.parameters()), list(learner.parameters()), rtol=0, atol=0)
