"""Independent choices among classes, and numbers beside them: probabilities, draws, modes."""

import math

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, ObsPart
from reverie.nn.actors import CategoricalActor, HybridActor
from reverie.nn.distributions import Categoricals, JointDistribution, slices_by_kind, take_part
from reverie.nn.network import NetworkConfig
from reverie.nn.normals import ClippedNormal

SPEC = {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")}


def test_probabilities_are_of_each_choice_alone():
    logits = torch.tensor([[0.0, 1.0, 5.0, 2.0, 2.0]], dtype=torch.float64)
    made, two, three = Categoricals(logits, (2, 3)), 1 + math.e, math.exp(5) + 2 * math.exp(2)
    expected = [1 / two, math.e / two, math.exp(5) / three, math.exp(2) / three, math.exp(2) / three]
    torch.testing.assert_close(made.log_probs.exp()[0].tolist(), expected)
    action = torch.tensor([[1.0, 0.0, 0.0, 0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(made.log_prob(action).item(), math.log(expected[0] * expected[4]))
    assert made.mode().tolist() == [[0.0, 1.0, 1.0, 0.0, 0.0]]


def test_draws_have_their_probabilities():
    torch.manual_seed(0)
    made = Categoricals(torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5]).expand(20_000, 5), (3, 2))
    action, log_pi = made.sample_and_log_prob()
    assert (action[:, :3].sum(-1) == 1).all()
    assert (action[:, 3:].sum(-1) == 1).all()
    torch.testing.assert_close(action.mean(0), made.log_probs[0].exp(), rtol=0, atol=0.02)
    torch.testing.assert_close(log_pi, made.log_prob(action))
    both = (action[:, 0] * action[:, 3]).mean()
    torch.testing.assert_close(both, action[:, 0].mean() * action[:, 3].mean(), rtol=0, atol=0.01)


def test_expectations():
    logits, values = torch.tensor([0.0, math.log(3.0), 1.0, 1.0]), torch.tensor([8.0, 4.0, 1.0, 2.0])
    torch.testing.assert_close(Categoricals(logits[:2], (2,)).mean(values[:2]).item(), 0.25 * 8 + 0.75 * 4)
    torch.testing.assert_close(
        Categoricals(logits, (2, 2)).mean(values).item(), 0.25 * 8 + 0.75 * 4 + 1.5
    )  # they add up


def test_an_actor_keeps_leading_axes():
    actor = CategoricalActor(SPEC, (2, 4), NetworkConfig())
    for lead in ((5,), (2, 5)):
        assert actor({"state": torch.randn(*lead, 3)}).log_probs.shape == (*lead, 6)


MIXED = ActionSpec(
    parts={
        "c": ActionPart(kind="categorical", classes=(3,)), "b": ActionPart(kind="continuous", size=2),
        "a": ActionPart(kind="categorical", classes=(2,)), "d": ActionPart(kind="continuous", size=1),
    }
)  # fmt: skip
"""The flat action: two classes, two numbers, three classes, a number."""


def test_numbers_and_choices_lie_where_the_flat_action_has_them():
    slices, flat = slices_by_kind(MIXED), torch.arange(8.0).expand(4, 8)
    parts = {kind: take_part(flat, slices[kind]) for kind in ("numbers", "choices")}
    assert (parts["numbers"][0].tolist(), parts["choices"][0].tolist()) == ([2, 3, 7], [0, 1, 4, 5, 6])
    assert torch.equal(JointDistribution({}, slices)._join(parts), flat)


def test_a_product_has_the_draws_modes_and_densities_of_its_parts():
    torch.manual_seed(0)
    mean, log_std = torch.tensor([0.1, -0.2, 0.3]).expand(20_000, 3), torch.tensor(-3.0).expand(20_000, 3)
    logits = torch.tensor([0.0, 1.0, 2.0, 0.0, 0.5]).expand(20_000, 5)
    parts = {"numbers": ClippedNormal(mean, log_std), "choices": Categoricals(logits, (2, 3))}
    made = JointDistribution(parts, slices_by_kind(MIXED))
    action, density = made.sample_and_log_prob()
    one, two = logits[0, :2].softmax(-1), logits[0, 2:].softmax(-1)
    expected = torch.cat([one, mean[0, :2], two, mean[0, 2:]])
    torch.testing.assert_close(action.mean(0), expected, rtol=0, atol=0.02)
    torch.testing.assert_close(made.log_prob(action), density)
    assert made.mode()[0].tolist() == torch.tensor([0, 1, 0.1, -0.2, 1, 0, 0, 0.3]).tolist()
    normal = 3 * (3.0 - 0.5 * math.log(2 * math.pi))
    torch.testing.assert_close(made.log_prob(made.mode())[0].item(), normal + math.log(one.max() * two.max()))


def test_illegal_classes_beside_numbers_are_never_drawn():
    actor = HybridActor(SPEC, MIXED, NetworkConfig())
    legal = torch.tensor([False, True, True, True, True, False, True, True])
    action, density = actor({"state": torch.randn(500, 3), MASK_KEY: legal.expand(500, 8)}).sample_and_log_prob()
    assert torch.equal((action != 0).any(0), legal)
    assert density.isfinite().all()


SIZES = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)


@given(SIZES, st.integers(0, 2**31 - 1))
@settings(max_examples=25, deadline=None)
def test_illegal_classes_of_any_choices_are_never_taken_and_count_for_nothing(classes, seed):
    """As MaskablePPO has it: the logits of illegal classes are minus infinity, and all others are as they were."""
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(7, sum(classes), generator=g)
    legal = torch.rand(7, sum(classes), generator=g) < 0.5
    for part in torch.split(legal, list(classes), -1):
        part[torch.arange(7), torch.randint(part.shape[-1], (7,), generator=g)] = True
    policy = Categoricals(logits, classes, legal=legal)
    action, density = policy.sample_and_log_prob()
    assert not ((action.bool() | policy.mode().bool()) & ~legal).any()
    hand = torch.split(logits.masked_fill(~legal, -torch.inf), list(classes), -1)
    known = [torch.distributions.Categorical(logits=x) for x in hand]
    taken = [x.argmax(-1) for x in torch.split(action, list(classes), -1)]
    torch.testing.assert_close(density, sum(one.log_prob(x) for one, x in zip(known, taken, strict=True)))
    entropies = [-(one.probs * one.probs.clamp(min=1e-30).log()).sum(-1) for one in known]
    torch.testing.assert_close(policy.entropy(), sum(entropies))
