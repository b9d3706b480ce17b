"""World models predict which actions are legal, and imagined policies respect it."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import dreamer_configs
from dreamer_configs import ACTIONS, OBS, batch, build, build_earlier, build_p2e, build_r2
from reverie.core.specs import MASK_KEY, ActionSpec, ObsPart
from reverie.nn.distributions import Categoricals
from reverie.nn.heads import HeadConfig, MaskHead

BUILDERS: dict[str, Any] = {
    "v3": build,
    **{name: lambda actions, name=name: build_earlier(name, actions) for name in ("v1", "v2", "v2_mixed", "pydreamer")},
    "r2": lambda actions: build_r2("r2_barlow", actions),
    **{f"p2e_{name}": lambda actions, name=name: build_p2e(name, actions) for name in ("v1", "v2", "v3")},
}
every = pytest.mark.parametrize("name", BUILDERS)
LEGAL = torch.tensor([[True, False, True, False], [False, True, True, True], [False, False, False, True]])


def masked(name: str, monkeypatch: pytest.MonkeyPatch, actions: str = "discrete") -> Any:
    part = ObsPart(kind="mask", shape=(ACTIONS[actions].width,), dtype="bool")
    monkeypatch.setitem(dreamer_configs.OBS, MASK_KEY, part)
    return BUILDERS[name](actions)


def updated(agent: Any, legal: Tensor | None = None) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    torch.manual_seed(0)
    rows = batch(agent)
    if legal is not None:
        rows = replace(rows, obs=rows.obs | {MASK_KEY: legal.expand(*rows.shape, -1)})
    for _ in range(2):
        metrics = agent.update(rows).metrics
    return {k: v.clone() for k, v in agent.state_dict()["model"].items()}, metrics


@every
def test_all_legal_equals_no_mask_bit_for_bit(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(OBS, MASK_KEY, raising=False)
    none, _ = updated(BUILDERS[name]("discrete"))
    full, metrics = updated(masked(name, monkeypatch), torch.ones(4, dtype=torch.bool))
    assert none.keys() == {k for k in full if not k.startswith("world.mask.")}
    rounding = 1e-5 if name == "pydreamer" else 0.0  # it weighs several samples by the sum of all losses
    assert [k for k in none if not torch.allclose(none[k], full[k], atol=rounding, rtol=rounding)] == []
    assert metrics["loss/mask"] == metrics["train/mask_false_illegal"] == 0


@every
def test_masks_are_learned_and_imagined_actions_are_legal_by_them(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    agent = masked(name, monkeypatch)
    before = {k: v.clone() for k, v in agent.state_dict()["model"].items() if k.startswith("world.mask.")}
    state, metrics = updated(agent, torch.tensor([True, True, False, False]))
    assert all(torch.isfinite(x).all() for x in metrics.values())
    assert metrics["loss/mask"] > 0
    assert all(not torch.equal(state[k], v) for k, v in before.items() if not k.endswith("logits.bias"))
    assert state["world.mask.forbidden"].tolist() == [False, False, True, True]
    feature = torch.randn(5, agent.world.rssm.feature_width)
    legal = agent.world.predict_mask(feature)
    assert legal[:, :2].all()
    for _ in range(20):
        action = agent.actor(feature, legal).sample()
        assert ((action > 0) <= legal).all()


def test_dreams_have_their_masks(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = masked("v3", monkeypatch, "mixed")
    agent.world.mask.forbidden.fill_(True)
    rows = batch(agent, "mixed")
    rows = replace(rows, obs=rows.obs | {MASK_KEY: torch.ones(*rows.shape, 6, dtype=torch.bool)})
    dream = agent.imagine(agent.actor, agent.world.observe(rows).latent)
    assert not dream.legal[..., :5].all()
    assert ((dream.action > 0)[..., :5] <= dream.legal[..., :5]).all()


# ---------------------------------------------------------------- by hand


def test_a_mask_head_leaves_each_choice_a_class_and_does_not_learn_what_is_always_legal() -> None:
    spec: ActionSpec = ACTIONS["mixed"]  # choices at 0:2 and 2:5, a number at 5
    head = MaskHead(3, spec, HeadConfig(layers=0))
    feature, last = torch.eye(3), torch.tensor([False, False, True])
    with torch.no_grad():
        head.logits.weight.copy_(torch.tensor([[-1.0, -2, 3, 1, -1, -9], [2, 3, -3, -1, -2, -9], [1, 1, 1, 1, 1, 1]]).T)
        head.logits.bias.zero_()
    assert head.legal(feature).all()
    legal = torch.tensor([[0, 1, 1, 1, 0, 1], [1, 1, 1, 0, 1, 1], [1, 0, 1, 1, 1, 1]], dtype=torch.bool)
    loss = head.loss(feature, legal, last)  # forbidden are 0, 3 and 4; the last row does not count
    one = math.log1p(math.exp(-1)) + math.log1p(math.exp(-1)) + math.log1p(math.exp(-1))  # -1 no, 1 yes, -1 no
    two = math.log1p(math.exp(-2)) + math.log1p(math.exp(-1)) + math.log1p(math.exp(2))  # 2 yes, -1 no, -2 yes
    assert loss.tolist() == pytest.approx([one, two, 0.0], abs=1e-6)
    assert head.legal(feature)[:2].int().tolist() == [[0, 1, 1, 1, 0, 1], [1, 1, 1, 0, 0, 1]]
    head.forbidden.fill_(True)
    assert head.legal(feature)[:2].int().tolist() == [[1, 0, 1, 1, 0, 0], [1, 1, 0, 1, 0, 0]]  # the likeliest ones


@pytest.mark.parametrize("unimix", [0.0, 0.2])
def test_masked_choices_are_categoricals_over_the_legal_classes(unimix: float) -> None:
    """As MaskablePPO's: Huang and Ontanon 2020, arXiv:2006.14171."""
    torch.manual_seed(0)
    logits = torch.randn(3, 4)
    dist = Categoricals(logits, (4,), unimix, LEGAL)
    for row, legal in enumerate(LEGAL):
        probs = torch.softmax(logits[row, legal], -1) * (1 - unimix) + unimix / legal.sum()
        slow = torch.distributions.Categorical(probs)
        assert torch.allclose(dist.entropy()[row], slow.entropy(), atol=1e-6)
        assert dist.probs[row, 0].masked_select(~legal).sum() == 0
        for index, place in enumerate(legal.nonzero().flatten()):
            value = torch.eye(4)[place].expand(3, 4)
            assert torch.allclose(dist.log_prob(value)[row], slow.log_prob(torch.tensor(index)), atol=1e-6)
    many = Categoricals(logits.expand(2000, 3, 4), (4,), unimix, LEGAL.expand(2000, 3, 4))
    assert torch.allclose(many.sample().mean(0), dist.probs[:, 0], atol=0.05)
    assert torch.allclose(many.uniform_sample().mean(0), LEGAL / LEGAL.sum(-1, keepdim=True), atol=0.05)
