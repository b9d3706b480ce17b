"""Losses, their gradients and priorities of model-free learners against the papers, one transition at a time."""

import math
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from windows import (
    ACTS,
    ROWS,
    SIZE,
    WIDE,
    Case,
    Tiny,
    TinyCritic,
    batch,
    check_against,
    choices,
    close,
    conservative_gap,
    huber,
    moves,
    normal_density,
    objective,
    row,
    same_gradients,
    slow,
    softmax,
    squashed_draw,
)

from reverie.algos.bc import BCObjective
from reverie.algos.bcq import BCQConfig, BCQObjective
from reverie.algos.cql import RETURN, Best, CQLConfig, CQLObjective, Expected, Fixed, Lagrange, Mode, MonteCarlo, Soft
from reverie.algos.crr import All, Binary, CRRConfig, CRRObjective, Exp, Max, Mean
from reverie.algos.ddpg import DDPGConfig, DDPGObjective
from reverie.algos.discrete_bcq import DiscreteBCQConfig, DiscreteBCQObjective
from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
from reverie.algos.discrete_sac import DiscreteSACConfig, DiscreteSACObjective
from reverie.algos.dqn import DQNConfig, DQNObjective
from reverie.algos.iql import IQLConfig, IQLObjective
from reverie.algos.qr_dqn import QRDQNConfig, QRDQNObjective
from reverie.algos.sac import SACConfig, SACObjective
from reverie.algos.td3 import TD3Config, TD3Objective
from reverie.algos.td3_bc import TD3BCConfig, TD3BCObjective
from reverie.nn.actor_critic import Stacked
from reverie.nn.distributions import Choices, DiagonalNormal, SquashedNormal
from reverie.objectives.estimators import GAE, TD0, TD1, NStep, TDLambda

ENTROPY, LATENT, SAMPLES, QUANTILES = -1.5, 3, 3, 4


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(SIZE, ROWS, *shape, dtype=torch.float64)


def actor() -> Tiny:
    return Tiny(ACTS, torch.tanh)


def gaussian(kind: Callable[..., Any]) -> Tiny:
    return Tiny(2 * ACTS, lambda y: kind(*y.tanh().chunk(2, -1)))


def values(copies: int = 0) -> Tiny:
    """``[(K,) ..., ACTS]``."""
    if not copies:
        return Tiny(ACTS)
    return Tiny(copies * ACTS, lambda y: y.unflatten(-1, (copies, ACTS)).movedim(-2, 0))


def two() -> Stacked:
    return Stacked(TinyCritic(), TinyCritic())


class TinyVAE(nn.Module):
    latent = LATENT

    def __init__(self) -> None:
        super().__init__()
        self.coder = nn.Linear(WIDE + ACTS, 2 * LATENT, dtype=torch.float64)
        self.decoder = nn.Linear(WIDE + LATENT, ACTS, dtype=torch.float64)

    def forward(self, obs, action):
        mean, log_std = self.coder(torch.cat([obs["state"], action], -1)).chunk(2, -1)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        return SimpleNamespace(action=self.decode(obs, latent[..., None, :])[..., 0, :], mean=mean, log_std=log_std)

    def decode(self, obs, latent):
        state = obs["state"].unsqueeze(-2).expand(*latent.shape[:-1], WIDE)
        return self.decoder(torch.cat([state, latent], -1)).tanh()


class TinyPerturb(Tiny):
    def __init__(self) -> None:
        super().__init__(ACTS, acts=ACTS)

    def forward(self, obs, action):
        return (action + 0.3 * super().forward(obs, action).tanh()).clamp(-1, 1)


# ---------------------------------------------------------------- online


def ddpg(made, data):
    """Algorithm 1."""
    mu, q = made.target_actor.model, made.target_critic.model

    def each(obs, action, y, b, t):
        error = made.critic(obs, action) - y
        squared = data.weight[b] * error**2
        return {"critic": squared, "actor": -made.critic(obs, made.actor(obs)), "error": error.abs(),
                "loss/critic": squared}  # fmt: skip

    return slow(made, data, lambda obs, *at: (q(obs, mu(obs)).item(), 0.0), each)


def td3(made, data):
    """Algorithm 1."""
    drawn, most, mu = noise(ACTS), made.cfg.noise_clip, made.target_actor.model
    assert (made.cfg.target_noise * drawn).abs().max() > most

    def worth(obs, b, t):
        moved = [max(-most, min(most, made.cfg.target_noise * float(x))) for x in drawn[b, t]]
        action = (mu(obs).detach() + torch.tensor(moved, dtype=torch.float64)).clip(-1, 1)
        return min(c(obs, action).item() for c in made.target_critic.model.critics), 0.0

    def each(obs, action, y, b, t):
        squared = sum((c(obs, action) - y) ** 2 for c in made.critic.critics)
        return {"critic": data.weight[b] * squared, "actor": -made.critic.critics[0](obs, made.actor(obs))}

    return slow(made, data, worth, each)


def td3_bc(made, data):
    """Equations 3 and 5: lambda is a number, what a unit of value counts. The critics are those of TD3."""
    found, n = td3(made, data), len(moves(data))
    actions = {at: made.actor(row(data, *at)) for at in moves(data)}
    worth = {at: made.critic.critics[0](row(data, *at), action) for at, action in actions.items()}
    factor = made.cfg.alpha / (sum(abs(q.item()) for q in worth.values()) / n)
    cloning = sum((action - data.action[at]).square().mean() for at, action in actions.items()) / n
    return found | {"actor": cloning - factor * sum(worth.values()) / n, "train/lambda": factor}


def sac_actor(made, obs, drawn):
    """Equations 9 and 18."""
    action, log_pi = squashed_draw(made.actor(obs), drawn)
    q = min(c(obs, action) for c in made.critic.critics)
    temperature = -made.log_temperature.exp() * (log_pi.item() + ENTROPY)
    return {"actor": math.exp(made.log_temperature.item()) * log_pi - q, "temperature": temperature}


def sac(made, data):
    """Equations 2 to 9 and 18."""
    after, before = noise(ACTS), noise(ACTS)

    def worth(obs, b, t):
        action, log_pi = squashed_draw(made.actor(obs), after[b, t])
        bonus = -math.exp(made.log_temperature.item()) * log_pi.item()
        return min(c(obs, action).item() for c in made.target_critic.model.critics) + bonus, bonus

    def each(obs, action, y, b, t):
        squared = sum((c(obs, action) - y) ** 2 for c in made.critic.critics)
        return sac_actor(made, obs, before[b, t]) | {"critic": 0.5 * data.weight[b] * squared}

    return slow(made, data, worth, each)


def discrete_sac(made, data):
    alpha = math.exp(made.log_temperature.item())

    def expected(logits, each_class):
        return sum(p * each_class(a, p) for a, p in enumerate(softmax(logits)))

    def worth(obs, b, t):
        q, logits = made.target_critic.model(obs).amin(0), made.actor(obs).logits
        bonus = expected(logits, lambda a, p: -alpha * p.log()).item()
        return expected(logits, lambda a, p: q[a]).item() + bonus, bonus

    def each(obs, action, y, b, t):
        q, logits = made.critic(obs), made.actor(obs).logits
        entropy = expected(logits, lambda a, p: -p.log()).item()
        return {
            "critic": 0.5 * data.weight[b] * sum((q[k, int(action.argmax())] - y) ** 2 for k in range(2)),
            "actor": expected(logits, lambda a, p: alpha * p.log() - min(q[0, a], q[1, a]).item()),
            "temperature": made.log_temperature.exp() * (entropy - ENTROPY),
        }

    return slow(made, data, worth, each)


def best_of(made, obs):
    """What the target says of the class that is the best, for itself or for the network."""
    theirs, mine = (net(obs).detach() for net in (made.target_network.model, made.network))
    means = [float(x.mean()) for x in (mine if made.cfg.double else theirs)]
    return theirs[means.index(max(means))]


def dqn(made, data):
    def each(obs, action, y, b, t):
        u = made.network(obs)[int(action.argmax())] - y
        loss = data.weight[b] * huber(u, made.cfg.kappa)
        return {"critic": loss, "error": u.abs(), "loss/critic": loss, "train/value": u + y, "train/target": y}

    return slow(made, data, lambda obs, *at: (best_of(made, obs).item(), 0.0), each)


def pairs(made, theta, y):
    """Algorithm 1's last line: over all pairs of a predicted quantile and a target."""
    y, n, total = torch.as_tensor(y, dtype=torch.float64).expand(QUANTILES), QUANTILES, 0.0
    for i in range(n):
        for j in range(n):
            u = y[j] - theta[i]
            total = total + abs((2 * i + 1) / (2 * n) - float(u < 0)) * huber(u, made.cfg.kappa) / n
    return total


def qr_dqn(made, data):
    def each(obs, action, y, b, t):
        theta, y = made.network(obs)[int(action.argmax())], torch.as_tensor(y, dtype=torch.float64)
        loss = pairs(made, theta, y)
        return {"critic": data.weight[b] * loss, "error": loss / QUANTILES, "loss/critic": data.weight[b] * loss,
                "train/value": theta.mean(), "train/target": y.mean()}  # fmt: skip

    return slow(made, data, lambda obs, *at: (best_of(made, obs), 0.0), each)


# ---------------------------------------------------------------- offline


def bcq(made, data):
    """Algorithm 1."""
    coding, after, before = noise(LATENT), noise(SAMPLES, LATENT), noise(1, LATENT)
    assert after.abs().max() > 0.5

    def worth(obs, b, t):
        found = []
        for z in after[b, t].clip(-0.5, 0.5):
            action = made.target_perturb.model(obs, made.vae.decode(obs, z[None])[0])
            q = [c(obs, action).item() for c in made.target_critic.model.critics]
            found.append(made.cfg.lmbda * min(q) + (1 - made.cfg.lmbda) * max(q))
        return max(found), 0.0

    def each(obs, action, y, b, t):
        mean, log_std = made.vae.coder(torch.cat([obs["state"], action])).chunk(2)
        copied = made.vae.decode(obs, (mean + log_std.exp() * coding[b, t])[None])[0]
        kl = -log_std + (torch.exp(2 * log_std) + mean**2) / 2 - 0.5
        drawn = made.vae.decode(obs, before[b, t].clip(-0.5, 0.5))[0].detach()
        return {
            "vae": (copied - action).square().mean() + 0.5 * kl.mean(),
            "critic": data.weight[b] * sum((c(obs, action) - y) ** 2 for c in made.critic.critics),
            "actor": -made.critic.critics[0](obs, made.perturb(obs, drawn)),
        }

    return slow(made, data, worth, each)


def cql(made, data):
    """Equation 4; with a multiplier: max over alpha' of min over Q of alpha' (gap - tau), half of it for alpha'."""
    c, kind = made.cfg, made.cfg.conservatism
    uniform = torch.empty(SIZE, ROWS, SAMPLES, ACTS, dtype=torch.float64).uniform_(-1, 1)
    here, there = noise(SAMPLES, ACTS), noise(SAMPLES, ACTS)
    after = torch.zeros(SIZE, ROWS, 1, ACTS) if isinstance(c.backup, Mode) else noise(getattr(c.backup, "n", 1), ACTS)
    before, critics = noise(ACTS), made.target_critic.model.critics

    def worth(obs, b, t):
        drawn = [squashed_draw(made.actor(obs), x) for x in after[b, t]]
        bonus = -math.exp(made.log_temperature.item()) * drawn[0][1].item() if isinstance(c.backup, Soft) else 0.0
        return min(max(q(obs, action).item() for action, _ in drawn) for q in critics) + bonus, bonus

    def each(obs, action, y, b, t):
        tried = [squashed_draw(made.actor(obs), x) for x in here[b, t]]
        tried += [squashed_draw(made.actor(row(data, b, t + 1)), x) for x in there[b, t]]
        td = gap = floored = 0.0
        for critic in made.critic.critics:
            taken = critic(obs, action)
            td = td + data.weight[b] * (taken - y) ** 2
            exponents = [critic(obs, a) - math.log(0.5**ACTS) for a in uniform[b, t]]
            for other, density in tried:
                q = critic(obs, other.detach())
                if c.floor is not None and q < data.extras[RETURN][b, t]:
                    q, floored = data.extras[RETURN][b, t].clone(), floored + 1 / (2 * len(tried))
                exponents.append(q - density.detach())
            total = sum(torch.exp(x / c.cql_temperature) for x in exponents)
            gap = gap + c.cql_temperature * torch.log(total) - taken
        said = {"loss/critic": td, "train/gap": gap / 2} | ({"train/floored": floored} if c.floor else {})
        found = sac_actor(made, obs, before[b, t]) | said
        if isinstance(kind, Fixed):
            return found | {"critic": td + kind.weight * gap}
        multiplier, beyond = made.log_multiplier.exp(), gap - 2 * kind.threshold
        return found | {"critic": td + multiplier.item() * beyond, "multiplier": -0.5 * multiplier * beyond.item()}

    return slow(made, data, worth, each)


def weigh(kind, advantage):
    if isinstance(kind, Exp):
        return min(math.exp(advantage / kind.beta), kind.clip)
    return 1.0 if isinstance(kind, All) or advantage > 0 else 0.0


def crr(made, data):
    """Equations 2 to 4."""
    after, drawn = noise(ACTS), noise(SAMPLES, ACTS)

    def sampled(policy, z):
        return (policy.mean + policy.log_std.exp() * z).clip(-1, 1)

    def worth(obs, b, t):
        action = sampled(made.target_actor.model(obs), after[b, t])
        return min(c(obs, action).item() for c in made.target_critic.model.critics), 0.0

    def each(obs, action, y, b, t):
        policy, critics = made.actor(obs), made.critic.critics
        own = [min(c(obs, sampled(policy, z)).item() for c in critics) for z in drawn[b, t]]
        baseline = max(own) if isinstance(made.cfg.baseline, Max) else sum(own) / len(own)
        weight = weigh(made.cfg.filter, min(c(obs, action).item() for c in critics) - baseline)
        squared = sum((c(obs, action) - y) ** 2 for c in critics)
        return {"critic": data.weight[b] * squared, "actor": -weight * normal_density(policy, action),
                "train/weight": weight}  # fmt: skip

    return slow(made, data, worth, each)


def iql(made, data):
    """Equations 5 to 7."""

    def each(obs, action, y, b, t):
        q = min(c(obs, action).item() for c in made.target_critic.model.critics)
        u = q - made.value(obs)
        weight = min(math.exp(made.cfg.beta * u.item()), made.cfg.max_weight)
        return {
            "value": abs(made.cfg.expectile - (1 if u < 0 else 0)) * u**2,
            "actor": -weight * normal_density(made.actor(obs), action), "train/weight": weight,
            "critic": data.weight[b] * sum((c(obs, action) - y) ** 2 for c in made.critic.critics),
        }  # fmt: skip

    return slow(made, data, lambda obs, *at: (made.value(obs).item(), 0.0), each)


def discrete_bcq(made, data):
    """Algorithm 1."""
    c, left = made.cfg, set()

    def worth(obs, b, t):
        q, logits = made.network(obs)
        clone = [p.item() for p in softmax(logits)]
        likely = [a for a in range(ACTS) if clone[a] / max(clone) >= c.threshold]
        left.add(len(likely))
        return made.target_network.model(obs)[0][max(likely, key=lambda a: q[a].item())].item(), 0.0

    def each(obs, action, y, b, t):
        q, logits = made.network(obs)
        taken = int(action.argmax())
        imitation = -torch.log(softmax(logits)[taken]) + c.logit_weight * sum(i**2 for i in logits) / ACTS
        return {"critic": data.weight[b] * huber(q[taken] - y, c.kappa), "imitation": imitation,
                "loss/imitation": imitation}  # fmt: skip

    found = slow(made, data, worth, each)
    assert left == {0.0: {2}, 1.0: {1}}.get(c.threshold, {1, 2})
    return found


def discrete_cql(made, data):
    """Equation 4 on quantiles."""

    def each(obs, action, y, b, t):
        theta, taken = made.network(obs), int(action.argmax())
        loss = data.weight[b] * pairs(made, theta[taken], y)
        gap = conservative_gap(theta.sum(-1) / QUANTILES, taken)
        return {"critic": loss + made.cfg.min_q_weight * gap, "loss/critic": loss, "train/gap": gap,
                "loss/conservative": made.cfg.min_q_weight * gap}  # fmt: skip

    return slow(made, data, lambda obs, *at: (best_of(made, obs), 0.0), each)


def discrete_crr(made, data):
    """Equations 2 to 4, whose expectations are exact."""

    def expected(policy, q):
        """sum_a pi(a | s) min_i Q_i(s, a)."""
        least = [min(x[a].item() for x in q) for a in range(ACTS)]
        return sum(p.item() * v for p, v in zip(softmax(policy.logits), least, strict=True))

    def each(obs, action, y, b, t):
        taken, q, policy = int(action.argmax()), made.critic(obs), made.actor(obs)
        weight = weigh(made.cfg.filter, min(x[taken].item() for x in q) - expected(policy, q))
        td = sum(data.weight[b] * (x[taken] - y) ** 2 for x in q)
        gap = sum(conservative_gap(x, taken) for x in q)
        return {"critic": td + made.cfg.min_q_weight * gap, "loss/critic": td, "train/weight": weight,
                "actor": -weight * torch.log(softmax(policy.logits)[taken])}  # fmt: skip

    target_actor, target_critic = made.target_actor.model, made.target_critic.model
    return slow(made, data, lambda obs, *at: (expected(target_actor(obs), target_critic(obs)), 0.0), each)


# ---------------------------------------------------------------- all of them


AC = {"actor": "actor", "critic": "critic"}
ACT = AC | {"temperature": "log_temperature"}
ESTIMATORS = [{"value_estimator": x} for x in (TD0(), TDLambda(0.8))]
ALL = [{"value_estimator": x} for x in (TD0(), TD1(), NStep(2), NStep(3), TDLambda(0.8), GAE(0.7))]
NOISY = {"target_noise": 0.5, "noise_clip": 0.4}
CQL = {"temperature": 0.7, "samples": SAMPLES, "conservatism": Fixed(2.0)}
LAGRANGE = Lagrange(threshold=1.25, initial=1.5)
CASES = {
    "ddpg": Case(lambda c: DDPGObjective(actor(), TinyCritic(), c), DDPGConfig, ddpg, AC, ALL),
    "td3": Case(lambda c: TD3Objective(actor(), two(), c), TD3Config, td3, AC, [NOISY | x for x in ESTIMATORS]),
    "td3_bc": Case(lambda c: TD3BCObjective(actor(), two(), c), TD3BCConfig, td3_bc, AC, [NOISY | {"alpha": 1.7}]),
    "sac": Case(
        lambda c: SACObjective(gaussian(SquashedNormal), two(), c, ENTROPY), SACConfig, sac, ACT,
        [{"temperature": 0.7} | x for x in ALL],
    ),
    "discrete_sac": Case(
        lambda c: DiscreteSACObjective(Tiny(ACTS, lambda y: Choices(y, (ACTS,))), values(2), c, ENTROPY),
        DiscreteSACConfig, discrete_sac, ACT, [{"temperature": 0.7} | x for x in ALL], choices,
    ),
    "dqn": Case(
        lambda c: DQNObjective(values(), c), DQNConfig, dqn, {"critic": "network"},
        [*ESTIMATORS, {"double": True}, {"kappa": 0.7}, {"kappa": math.inf, "double": True}], choices,
    ),
    "qr_dqn": Case(
        lambda c: QRDQNObjective(Tiny(ACTS * QUANTILES, lambda y: y.unflatten(-1, (ACTS, QUANTILES))), c),
        QRDQNConfig, qr_dqn, {"critic": "network"},
        [{"kappa": 0.0}, {"double": True}, {"value_estimator": TD1()}, {"value_estimator": NStep(2), "double": True}],
        choices,
    ),
    "bcq": Case(
        lambda c: BCQObjective(TinyVAE(), TinyPerturb(), two(), c), BCQConfig, bcq,
        {"vae": "vae", "critic": "critic", "actor": "perturb"},
        [{"lmbda": 0.7, "samples": SAMPLES} | x for x in ESTIMATORS],
    ),
    "cql": Case(
        lambda c: CQLObjective(gaussian(SquashedNormal), two(), c, ENTROPY), CQLConfig, cql, ACT,
        [CQL | {"backup": x} for x in (Mode(), Expected(), Best(2))]
        + [CQL | {"backup": Soft(), "value_estimator": NStep(2)}, CQL | {"cql_temperature": 0.3},
           CQL | {"floor": MonteCarlo()}, CQL | {"conservatism": LAGRANGE}],
    ),
    "crr": Case(
        lambda c: CRRObjective(gaussian(DiagonalNormal), two(), c), CRRConfig, crr, AC,
        [{"samples": SAMPLES, "filter": Exp(0.3, 1.2), "baseline": Max(), "value_estimator": TDLambda(0.8)},
         {"samples": SAMPLES, "filter": Binary(), "baseline": Mean()}, {"samples": SAMPLES, "filter": All()}],
    ),
    "iql": Case(
        lambda c: IQLObjective(gaussian(DiagonalNormal), two(), Tiny(1, lambda y: y.squeeze(-1)), c), IQLConfig, iql,
        AC | {"value": "value"}, [{"expectile": 0.8, "beta": 4.0, "max_weight": 0.3} | x for x in ESTIMATORS],
    ),
    "discrete_bcq": Case(
        lambda c: DiscreteBCQObjective(values(2), c), DiscreteBCQConfig, discrete_bcq,
        {"critic": "network", "imitation": "network"},
        [{"threshold": 0.8, "logit_weight": 0.5, "kappa": 0.7}, {"threshold": 0.0}, {"threshold": 1.0},
         {"threshold": 0.8, "value_estimator": TDLambda(0.8)}], choices,
    ),
    "discrete_cql": Case(
        lambda c: DiscreteCQLObjective(Tiny(ACTS * QUANTILES, lambda y: y.unflatten(-1, (ACTS, QUANTILES))), c),
        DiscreteCQLConfig, discrete_cql, {"critic": "network"},
        [{"min_q_weight": 0.0}, {"min_q_weight": 0.7, "double": True, "value_estimator": NStep(2)}], choices,
    ),
    "discrete_crr": Case(
        lambda c: DiscreteCRRObjective(Tiny(ACTS, lambda y: Choices(y, (ACTS,))), values(c.critics), c),
        DiscreteCRRConfig, discrete_crr, AC,
        [{"critics": 2, "filter": Exp(0.3, 1.2), "min_q_weight": 0.7, "value_estimator": TDLambda(0.8)},
         {"critics": 1, "filter": Binary()}, {"critics": 2, "filter": All()}], choices,
    ),
}  # fmt: skip
EACH = [pytest.param(case, given, id=f"{name}-{i}") for name, case in CASES.items()
        for i, given in enumerate(case.settings)]  # fmt: skip


@pytest.mark.parametrize(("case", "given"), EACH)
def test_terms_and_gradients_are_those_of_the_paper(case, given):
    check_against(case, given)


def test_clones_against_the_definition():
    """What is likely is imitated; classes of several choices are added up."""
    torch.manual_seed(0)
    data, third = choices(), torch.arange(SIZE * (ROWS + 1)).view(SIZE, ROWS + 1) % 3
    both = torch.zeros(*data.shape, 5, dtype=torch.float64)
    both[..., :2] = data.action
    both.scatter_(-1, 2 + third[..., None], 1.0)

    def chosen(y, *places):
        return -sum(torch.log(softmax(part)[place]) for part, place in zip(y.split((2, 3)), places, strict=True))

    for clone, rows, each in (
        (actor(), batch(), lambda y, at: (y - batch().action[at]).square().mean()),
        (gaussian(DiagonalNormal), batch(), lambda y, at: -normal_density(y, batch().action[at])),
        (Tiny(5, lambda y: Choices(y, (2, 3))), replace(data, action=both),
         lambda y, at: chosen(y.logits, int(data.action[at].argmax()), int(third[at]))),
    ):  # fmt: skip
        made, at = BCObjective(clone), moves(rows)
        loss, expected = made(rows).terms["actor"], sum(each(clone(row(rows, *i)), i) for i in at) / len(at)
        close(loss, expected)
        same_gradients(made, loss, expected, "actor")


def test_a_batch_without_a_transition_is_worth_nothing():
    data, made = batch(length=2), objective(CASES["ddpg"], {})
    data.is_last.fill_(True)
    losses = made(data)
    assert losses.terms["critic"].item() == losses.terms["actor"].item() == 0
    assert torch.equal(losses.priority, torch.zeros(SIZE, dtype=torch.float64))
    losses.total().backward()
    assert not any(p.grad.any() for p in made.parameters() if p.grad is not None)


def test_a_critic_with_a_last_axis_of_one_is_an_error():
    made = DDPGObjective(actor(), Tiny(1, acts=ACTS), DDPGConfig())
    with pytest.raises(ValueError, match=r"values of shape \(8, 4, 1\): expected \[B, T - 1\] = \(8, 4\)"):
        made(batch())
    made.target_critic.model = TinyCritic()
    with pytest.raises(ValueError, match=r"values of shape \(8, 4, 1\): expected \[\(K,\) B, T - 1\] = \(8, 4\)"):
        made(batch())


def test_actions_that_say_nothing_leave_cloning_alone():
    """Of critics that are 0, lambda would be infinite."""
    made, data = objective(CASES["td3_bc"], {"alpha": 100.0}), batch()
    for p in made.critic.parameters():
        p.data.zero_()
    losses = made.actor_loss(data)
    assert torch.equal(losses.terms["actor"], losses.metrics["loss/cloning"])
    assert all(g.isfinite().all() for g in torch.autograd.grad(losses.terms["actor"], list(made.actor.parameters())))
