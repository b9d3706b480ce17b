"""Several choices, and numbers beside them: losses, gradients and priorities, one transition and choice at a time."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from windows import (
    OBS,
    ROWS,
    SIZE,
    Case,
    Tiny,
    batch,
    check_against,
    choices,
    huber,
    normal_density,
    slow,
    softmax,
    squashed_draw,
    steps,
)

from reverie.algos.crr import Exp
from reverie.algos.discrete_bcq import DiscreteBCQConfig, DiscreteBCQObjective
from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
from reverie.algos.discrete_sac import DiscreteSACConfig, DiscreteSACObjective
from reverie.algos.dqn import DQNConfig, DQNObjective
from reverie.algos.iql import IQLConfig, IQLObjective
from reverie.algos.qr_dqn import QRDQNConfig, QRDQNObjective
from reverie.algos.sac import SAC, MixedSAC, MixedSACObjective, SACConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import MASK, ActionPart, ActionSpec
from reverie.core.types import Batch
from reverie.nn.actor_critic import Stacked
from reverie.nn.distributions import Choices, DiagonalNormal, Layout, Mixed, SquashedNormal
from reverie.nn.exploration import EpsilonGreedy, GreedyPolicy
from reverie.nn.functional import legal_choice
from reverie.objectives import categorical
from reverie.objectives.estimators import NStep, TDLambda

CLASSES, WIDTH, QUANTILES, ENTROPY = (2, 3), 5, 4, -1.5
MIXED = ActionSpec(
    parts={
        "a": ActionPart(kind="categorical", classes=(2,)),
        "b": ActionPart(kind="continuous", size=2),
        "c": ActionPart(kind="categorical", classes=(3,)),
    }
)
"""The flat action: two classes, two numbers, three classes."""
LAYOUT = Layout(MIXED)


def several() -> Batch:
    """Rows of two choices, one-hot."""
    data = choices()
    other = F.one_hot(torch.arange(data.reward.numel()).view(data.shape) % 3, 3) * ~data.is_last[..., None]
    return replace(data, action=torch.cat([data.action, other], -1))


def mixed() -> Batch:
    """Rows of a choice, two numbers and another choice."""
    data = several()
    return replace(data, action=torch.cat([data.action[..., :2], batch().action, data.action[..., 2:]], -1))


def parts(x: Tensor) -> tuple[Tensor, ...]:
    return x.split(CLASSES, -1)


def taken(action: Tensor) -> list[int]:
    return [int(part.argmax()) for part in parts(action)]


def joint() -> Iterator[tuple[int, ...]]:
    """All joint actions."""
    return product(*map(range, CLASSES))


def additive(values: Tensor, action: tuple[int, ...] | list[int]) -> Tensor:
    """Q(s, a) of one critic's values ``[A]``."""
    return sum(part[a] for part, a in zip(parts(values), action, strict=True))


def probability(logits: Tensor, action: tuple[int, ...]) -> Tensor:
    """Of a joint action."""
    return math.prod(softmax(part)[a] for part, a in zip(parts(logits), action, strict=True))


def least(values: Tensor) -> Tensor:
    """The least of the critics' values of each class, ``[A]``."""
    return torch.stack([min(x) for x in values.unbind(-1)])


# ---------------------------------------------------------------- branches


def branch_error(values: Tensor, action: Tensor, y: float, kappa: float) -> dict[str, Tensor]:
    errors = [part[a] - y for part, a in zip(parts(values), taken(action), strict=True)]
    return {"critic": sum(huber(u, kappa) for u in errors) / 2, "error": sum(u.abs() for u in errors) / 2}


def dqn(made: Any, data: Batch) -> dict[str, Any]:
    """Tavakoli et al., equation 6, and the mean of the losses of both choices."""

    def worth(obs: Any, *_: int) -> tuple[float, float]:
        theirs, mine = made.target_network.model(obs), made.network(obs)
        chosen = parts(mine if made.cfg.double else theirs)
        best = [max(range(n), key=lambda a: float(q[a])) for n, q in zip(CLASSES, chosen, strict=True)]
        return float(sum(q[a] for q, a in zip(parts(theirs), best, strict=True)) / 2), 0.0

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        found = branch_error(made.network(obs), action, y, made.cfg.kappa)
        return found | {"critic": data.weight[b] * found["critic"]}

    return slow(made, data, worth, each)


def quantile_targets(made: Any, obs: Any) -> Tensor:
    """The mean over the choices of the quantiles ``[N]`` of the class that is the best by their mean."""
    theirs, mine = made.target_network.model(obs).detach(), made.network(obs).detach()
    chosen = (mine if made.cfg.double else theirs).mean(-1)
    one, other = theirs.split(CLASSES)
    first, second = (int(part.argmax()) for part in parts(chosen))
    return (one[first] + other[second]) / 2


def pairs(theta: Tensor, y: Tensor, kappa: float) -> Tensor:
    """Equation 10 of QR-DQN."""
    y, loss = torch.as_tensor(y, dtype=torch.float64).expand(QUANTILES), 0.0
    for i, z in enumerate(theta):
        for target in y:
            u = target - z
            loss = loss + abs((2 * i + 1) / (2 * QUANTILES) - (1 if u < 0 else 0)) * huber(u, kappa) / QUANTILES
    return loss


def qr_dqn(made: Any, data: Batch) -> dict[str, Any]:
    def each(obs: Any, action: Tensor, y: Tensor, b: int, t: int) -> dict[str, Tensor]:
        theta = made.network(obs).split(CLASSES)
        losses = [pairs(q[a], y, made.cfg.kappa) for q, a in zip(theta, taken(action), strict=True)]
        loss = sum(losses) / 2
        return {"critic": data.weight[b] * loss, "error": loss / QUANTILES}

    return slow(made, data, lambda obs, *_: (quantile_targets(made, obs), 0.0), each)


def discrete_cql(made: Any, data: Batch) -> dict[str, Any]:
    """The mean of the penalties of both choices."""

    def each(obs: Any, action: Tensor, y: Tensor, b: int, t: int) -> dict[str, Tensor]:
        theta, gap = made.network(obs), 0.0
        losses = [pairs(q[a], y, made.cfg.kappa) for q, a in zip(theta.split(CLASSES), taken(action), strict=True)]
        for q, a in zip(parts(theta.mean(-1)), taken(action), strict=True):
            gap = gap + (torch.log(sum(x.exp() for x in q)) - q[a]) / 2
        critic = data.weight[b] * sum(losses) / 2 + made.cfg.min_q_weight * gap
        return {"critic": critic, "train/gap": gap}

    return slow(made, data, lambda obs, *_: (quantile_targets(made, obs), 0.0), each)


def discrete_bcq(made: Any, data: Batch) -> dict[str, Any]:
    """Each choice has likely classes of its own, and the clone is the product of its choices."""
    c, left = made.cfg, set()

    def worth(obs: Any, *_: int) -> tuple[float, float]:
        (q, logits), target, total = made.network(obs), made.target_network.model(obs)[0], 0.0
        for value, logit, theirs in zip(parts(q), parts(logits), parts(target), strict=True):
            clone = [float(p) for p in softmax(logit)]
            likely = [a for a in range(len(clone)) if clone[a] / max(clone) >= c.threshold]
            left.add(len(likely))
            total += float(theirs[max(likely, key=lambda a: float(value[a]))]) / 2
        return total, 0.0

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        q, logits = made.network(obs)
        imitation = -torch.log(probability(logits, tuple(taken(action))))
        imitation = imitation + c.logit_weight * sum(i**2 for i in logits) / WIDTH
        found = branch_error(q, action, y, c.kappa)
        return found | {"critic": data.weight[b] * found["critic"], "imitation": imitation}

    found = slow(made, data, worth, each)
    assert left == {1, 2, 3}
    return found


# ---------------------------------------------------------------- additive values, over all joint actions


def expected(logits: Tensor, values: Tensor) -> Tensor:
    return sum(probability(logits, a) * additive(values, a) for a in joint())


def entropy_of(logits: Tensor) -> Tensor:
    return sum(-probability(logits, a) * probability(logits, a).log() for a in joint())


def discrete_sac(made: Any, data: Batch) -> dict[str, Any]:
    alpha = math.exp(made.log_temperature.item())

    def worth(obs: Any, *_: int) -> tuple[float, float]:
        logits, q = made.actor(obs).logits, least(made.target_critic.model(obs))
        bonus = alpha * entropy_of(logits).item()
        return expected(logits, q).item() + bonus, bonus

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        logits, q = made.actor(obs).logits, made.critic(obs)
        entropy = entropy_of(logits)
        return {
            "critic": 0.5 * data.weight[b] * sum((additive(x, taken(action)) - y) ** 2 for x in q),
            "actor": -alpha * entropy - expected(logits, least(q).detach()),
            "temperature": made.log_temperature.exp() * (entropy.item() - ENTROPY),
        }

    return slow(made, data, worth, each)


def discrete_crr(made: Any, data: Batch) -> dict[str, Any]:
    def worth(obs: Any, *_: int) -> tuple[float, float]:
        return expected(made.target_actor.model(obs).logits, least(made.target_critic.model(obs))).item(), 0.0

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        logits, q, a = made.actor(obs).logits, made.critic(obs), taken(action)
        advantage = additive(least(q), a) - expected(logits, least(q))
        weight = min(math.exp(advantage.item() / made.cfg.filter.beta), made.cfg.filter.clip)
        td = data.weight[b] * sum((additive(x, a) - y) ** 2 for x in q)
        gap = sum(torch.log(sum(additive(x, other).exp() for other in joint())) - additive(x, a) for x in q)
        return {"critic": td + made.cfg.min_q_weight * gap, "train/gap": gap, "train/advantage": advantage,
                "actor": -weight * torch.log(probability(logits, tuple(a)))}  # fmt: skip

    return slow(made, data, worth, each)


# ---------------------------------------------------------------- IQL, hybrid SAC


def log_prob(policy: Any, action: Tensor) -> Tensor:
    """Of two choices, or of two numbers between them."""
    if isinstance(policy, Choices):
        return torch.log(probability(policy.logits, tuple(taken(action))))
    numbers, classes = action[2:4], torch.cat([action[:2], action[4:]])
    return normal_density(policy.numbers, numbers) + log_prob(policy.choices, classes)


def iql(made: Any, data: Batch) -> dict[str, Any]:
    """Equations 5 to 7, where critics read the flat action."""

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        u = min(c(obs, action).item() for c in made.target_critic.model.critics) - made.value(obs)
        weight = min(math.exp(made.cfg.beta * u.item()), made.cfg.max_weight)
        return {
            "value": abs(made.cfg.expectile - (1 if u < 0 else 0)) * u**2,
            "actor": -weight * log_prob(made.actor(obs), action),
            "critic": data.weight[b] * sum((c(obs, action) - y) ** 2 for c in made.critic.critics),
        }

    return slow(made, data, lambda obs, *_: (made.value(obs).item(), 0.0), each)


def hybrid_sac(made: Any, data: Batch) -> dict[str, Any]:
    """A drawn number, and the expectation over all joint choices beside it."""
    after, before = (torch.randn(SIZE, ROWS, 2, dtype=torch.float64) for _ in range(2))
    alpha = math.exp(made.log_temperature.item())

    def drawn(obs: Any, critic: Any, noise: Tensor) -> tuple[Tensor, Tensor]:
        """The value, of values without gradient but by the numbers; and the entropy."""
        policy = made.actor(obs)
        numbers, density = squashed_draw(policy.numbers, noise)
        logits = policy.choices.logits
        return expected(logits, least(critic(obs, numbers))), entropy_of(logits) - density

    def worth(obs: Any, b: int, t: int) -> tuple[float, float]:
        value, entropy = drawn(obs, made.target_critic.model, after[b, t])
        return (value + alpha * entropy).item(), alpha * entropy.item()

    def each(obs: Any, action: Tensor, y: float, b: int, t: int) -> dict[str, Tensor]:
        value, entropy = drawn(obs, made.critic, before[b, t])
        values, classes = made.critic(obs, action[2:4]), torch.cat([action[:2], action[4:]])
        return {
            "critic": 0.5 * data.weight[b] * sum((additive(x, taken(classes)) - y) ** 2 for x in values),
            "actor": -alpha * entropy - value,
            "temperature": made.log_temperature.exp() * (entropy.item() - ENTROPY),
        }

    return slow(made, data, worth, each)


# ---------------------------------------------------------------- all of them


def policy() -> Tiny:
    return Tiny(WIDTH, lambda y: Choices(y, CLASSES))


def values(copies: int = 1, acts: int = 0) -> Tiny:
    return Tiny(copies * WIDTH, lambda y: y.unflatten(-1, (copies, WIDTH)).movedim(-2, 0), acts)


def quantiles() -> Tiny:
    return Tiny(WIDTH * QUANTILES, lambda y: y.unflatten(-1, (WIDTH, QUANTILES)))


def both(kind: type[Any]) -> Tiny:
    def read(y: Tensor) -> Mixed:
        return Mixed(kind(*y[..., :4].tanh().chunk(2, -1)), Choices(y[..., 4:], CLASSES), LAYOUT)

    return Tiny(4 + WIDTH, read)


def reading(acts: int) -> Stacked:
    """Two critics of flat actions."""
    return Stacked(*[Tiny(1, lambda y: y.squeeze(-1), acts) for _ in range(2)])


def state_value() -> Tiny:
    return Tiny(1, lambda y: y.squeeze(-1))


AC = {"actor": "actor", "critic": "critic"}
ACT = AC | {"temperature": "log_temperature"}
NET = {"critic": "network", "imitation": "network"}
SOFT = [{"temperature": 0.7}, {"temperature": 0.7, "value_estimator": TDLambda(0.8)}]
IQL = [{"expectile": 0.8, "beta": 4.0, "max_weight": 0.3}]
CASES = {
    "dqn": Case(
        lambda c: DQNObjective(Tiny(WIDTH), c, CLASSES), DQNConfig, dqn, NET,
        [{}, {"double": True, "kappa": 0.7, "value_estimator": TDLambda(0.8)}], several,
    ),
    "qr_dqn": Case(
        lambda c: QRDQNObjective(quantiles(), c, CLASSES), QRDQNConfig, qr_dqn, NET,
        [{"kappa": 0.0}, {"double": True, "value_estimator": NStep(2)}], several,
    ),
    "discrete_cql": Case(
        lambda c: DiscreteCQLObjective(quantiles(), c, CLASSES), DiscreteCQLConfig, discrete_cql, NET,
        [{"min_q_weight": 0.7}], several,
    ),
    "discrete_bcq": Case(
        lambda c: DiscreteBCQObjective(values(2), c, classes=CLASSES), DiscreteBCQConfig, discrete_bcq, NET,
        [{"threshold": 0.8, "logit_weight": 0.5, "kappa": 0.7}], several,
    ),
    "discrete_sac": Case(
        lambda c: DiscreteSACObjective(policy(), values(2), c, ENTROPY), DiscreteSACConfig, discrete_sac, ACT, SOFT,
        several,
    ),
    "discrete_crr": Case(
        lambda c: DiscreteCRRObjective(policy(), values(2), c, classes=CLASSES), DiscreteCRRConfig, discrete_crr, AC,
        [{"min_q_weight": 0.7, "filter": Exp(0.3, 1.2)}], several,
    ),
    "iql": Case(
        lambda c: IQLObjective(policy(), reading(WIDTH), state_value(), c), IQLConfig, iql, AC | {"value": "value"},
        IQL, several,
    ),
    "iql_mixed": Case(
        lambda c: IQLObjective(both(DiagonalNormal), reading(WIDTH + 2), state_value(), c), IQLConfig, iql,
        AC | {"value": "value"}, IQL, mixed,
    ),
    "sac_mixed": Case(
        lambda c: MixedSACObjective(both(SquashedNormal), values(2, 2), c, ENTROPY, LAYOUT), SACConfig, hybrid_sac,
        ACT, SOFT, mixed,
    ),
}  # fmt: skip
EACH = [pytest.param(case, given, id=f"{name}-{i}") for name, case in CASES.items()
        for i, given in enumerate(case.settings)]  # fmt: skip


@pytest.mark.parametrize(("case", "given"), EACH)
def test_several_choices_are_learned_as_by_their_definition(case, given):
    check_against(case, given)


# ---------------------------------------------------------------- a single choice


@pytest.mark.parametrize("classes", [(), (4,)])
def test_a_single_choice_is_computed_as_if_there_were_no_others(classes):
    """To the last bit: also which numbers are drawn."""
    torch.manual_seed(0)
    q, other, more = torch.randn(7, 4), torch.randn(7, 4), torch.randn(2, 7, 4)
    hot = F.one_hot(torch.arange(7) % 4, 4).float()
    best = q.gather(-1, other.argmax(-1, keepdim=True)).squeeze(-1)
    limit = other.amax(-1, keepdim=True) - 0.3
    for found, expected in (
        (categorical.taken_value(q, hot, classes), (q * hot).sum(-1)),
        (categorical.best_value(q, other, classes), best),
        (categorical.log_total(q, classes), torch.logsumexp(q, -1)),
        (categorical.likely_values(q, other, -0.3, classes), q.masked_fill(other < limit, -math.inf)),
        (categorical.expected_min_q(q, more, classes), (torch.softmax(q, -1) * more.amin(0)).sum(-1)),
    ):
        assert torch.equal(found, expected)


def test_a_single_choice_draws_what_it_would_alone():
    q, legal = torch.randn(64, 4), torch.rand(64, 4) < 0.7
    legal[:, 0] = True
    step = steps(64)
    step = replace(step, obs=step.obs | {MASK: legal})
    policy = GreedyPolicy(lambda obs: q, EpsilonGreedy(0.5), (4,), torch.device("cpu"))
    torch.manual_seed(3)
    found, _ = policy.act(step, policy.initial(64), "explore")
    torch.manual_seed(3)
    drawn, index = torch.rand(64), torch.randint(4, (64,))
    index = torch.where(legal.gather(1, index[:, None]).squeeze(1), index, legal_choice(legal))
    assert torch.equal(found, F.one_hot(torch.where(drawn < 0.5, index, q.argmax(-1)), 4).float())


# ---------------------------------------------------------------- learners of one's own


class OwnSAC(SAC):
    """For numbers, as the class that it is derived from."""


def test_a_learner_of_ones_own_is_for_the_actions_of_its_class(monkeypatch):
    number = ActionSpec(parts={"number": ActionPart(kind="continuous", size=2)})
    config = SACConfig().merge({"networks.units": (4,)})
    assert type(config.build(OBS, MIXED)) is MixedSAC
    assert config.build(OBS, MIXED).objective.target_entropy == pytest.approx(0.98 * (math.log(2) + math.log(3)) - 2)
    monkeypatch.setattr(SACConfig, "learner", OwnSAC)
    assert type(config.build(OBS, number)) is OwnSAC
    with pytest.raises(ConfigError, match=r"learner = OwnSAC: expected .* derived from MixedSAC"):
        config.build(OBS, MIXED)
