"""Losses, their gradients and priorities of model-free learners against the papers, one transition at a time.

Also of two choices, and of numbers between them; a single choice and two have the same definition.
"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from batches import (
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
from reverie.algos.c51 import C51Config, C51Objective
from reverie.algos.cql import Best, Constant, CQLConfig, CQLObjective, Expected, Lagrange, Mode, Soft
from reverie.algos.crossq import CrossQConfig, CrossQObjective
from reverie.algos.crr import All, Binary, CRRConfig, CRRObjective, Exp
from reverie.algos.ddpg import DDPGConfig, DDPGObjective
from reverie.algos.discrete_bcq import DiscreteBCQConfig, DiscreteBCQObjective
from reverie.algos.discrete_cql import DiscreteCQLConfig, DiscreteCQLObjective
from reverie.algos.discrete_crr import DiscreteCRRConfig, DiscreteCRRObjective
from reverie.algos.discrete_sac import DiscreteSACConfig, DiscreteSACObjective
from reverie.algos.dqn import DQNConfig, DQNObjective
from reverie.algos.iql import IQLConfig, IQLObjective
from reverie.algos.iqn import IQNConfig, IQNObjective
from reverie.algos.qr_dqn import QRDQNConfig, QRDQNObjective
from reverie.algos.rebrac import ReBRACConfig, ReBRACObjective
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN
from reverie.algos.sac import HybridSACObjective, SACConfig, SACObjective
from reverie.algos.simba_v2 import SimbaV2Config, SimbaV2Objective
from reverie.algos.td3 import TD3Config, TD3Objective
from reverie.algos.td3_bc import TD3BCConfig, TD3BCObjective
from reverie.algos.tqc import TQCConfig, TQCObjective
from reverie.core.specs import ActionPart, ActionSpec
from reverie.nn.actor_critic import CriticStack
from reverie.nn.distributions import Categoricals, JointDistribution, slices_by_kind
from reverie.nn.normals import ClippedNormal, Normal, SquashedNormal
from reverie.objectives.estimators import GAE, TD0, TD1, NStep, TDLambda

ENTROPY, LATENT, SAMPLES, QUANTILES = -1.5, 3, 3, 4
ONE, TWO = (ACTS,), (2, 3)
"""The classes of a single choice and of two."""
LAYOUT = slices_by_kind(
    ActionSpec(parts={
        "a": ActionPart(kind="categorical", classes=(2,)), "b": ActionPart(kind="continuous", size=2),
        "c": ActionPart(kind="categorical", classes=(3,)),
    })
)  # fmt: skip
"""The flat action: two classes, two numbers, three classes."""


def noise(*shape: int) -> torch.Tensor:
    return torch.randn(SIZE, ROWS, *shape, dtype=torch.float64)


def actor() -> Tiny:
    return Tiny(ACTS, torch.tanh)


def gaussian(kind: Callable[..., Any]) -> Tiny:
    return Tiny(2 * ACTS, lambda y: kind(*y.tanh().chunk(2, -1)))


def choosing(classes: tuple[int, ...] = ONE) -> Tiny:
    return Tiny(sum(classes), lambda y: Categoricals(y, classes))


def both(kind: Callable[..., Any]) -> Tiny:
    return Tiny(
        9,
        lambda y: JointDistribution(
            {"numbers": kind(*y[..., :4].tanh().chunk(2, -1)), "choices": Categoricals(y[..., 4:], TWO)}, LAYOUT
        ),
    )


def values(copies: int, classes: tuple[int, ...] = ONE, acts: int = 0) -> Tiny:
    """``[K, ..., A]``."""
    return Tiny(copies * sum(classes), lambda y: y.unflatten(-1, (copies, sum(classes))).movedim(-2, 0), acts)


def quantiles(classes: tuple[int, ...] = ONE) -> Tiny:
    return Tiny(sum(classes) * QUANTILES, lambda y: y.unflatten(-1, (sum(classes), QUANTILES)))


def two(acts: int = ACTS) -> CriticStack:
    return CriticStack(TinyCritic(acts), TinyCritic(acts))


def four() -> CriticStack:
    return CriticStack(*(TinyCritic() for _ in range(4)))


def state_value() -> Tiny:
    return Tiny(1, lambda y: y.squeeze(-1))


def several() -> Any:
    """Rows of two choices, one-hot."""
    data = choices()
    other = F.one_hot(torch.arange(data.reward.numel()).view(data.shape) % 3, 3) * ~data.is_last[..., None]
    return replace(data, action=torch.cat([data.action, other], -1))


def mixed() -> Any:
    """Rows of a choice, two numbers and another choice."""
    data = several()
    return replace(data, action=torch.cat([data.action[..., :2], batch().action, data.action[..., 2:]], -1))


def parts(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What belongs to each choice, of ``[A, ...]``."""
    return x.split(TWO if len(x) == sum(TWO) else ONE)


def taken(action: torch.Tensor) -> list[int]:
    return [int(part.argmax()) for part in parts(action)]


def joint(x: torch.Tensor) -> list[tuple[int, ...]]:
    """All joint actions."""
    return list(product(*[range(len(part)) for part in parts(x)]))


def mean(numbers: list[Any]) -> Any:
    return sum(numbers) / len(numbers)


def additive(q: torch.Tensor, action: Any) -> Any:
    """Q(s, a) of one critic's values ``[A]``."""
    return sum(part[a] for part, a in zip(parts(q), action, strict=True))


def least(q: torch.Tensor) -> torch.Tensor:
    """The least of the critics' values ``[K, A]`` of each class."""
    return torch.stack([min(x) for x in q.unbind(-1)])


def for_actor(made, q: torch.Tensor) -> torch.Tensor:
    """What the actor maximizes: the least of the critics' values of each class, or in REDQ their mean."""
    return least(q) if made.cfg.num_target_critics is None else q.mean(0)


def probability(logits: torch.Tensor, action: Any) -> Any:
    """Of a joint action."""
    return math.prod(softmax(part)[a] for part, a in zip(parts(logits), action, strict=True))


def expected(logits: torch.Tensor, q: torch.Tensor) -> Any:
    return sum(probability(logits, a) * additive(q, a) for a in joint(q))


def entropy_of(logits: torch.Tensor) -> Any:
    return sum(-probability(logits, a) * probability(logits, a).log() for a in joint(logits))


def log_prob(policy: Any, action: torch.Tensor) -> Any:
    """Of numbers, of choices, or of two numbers between two choices."""
    if isinstance(policy, Normal):
        return normal_density(policy, action)
    if isinstance(policy, Categoricals):
        return torch.log(probability(policy.log_probs, taken(action)))
    classes = torch.cat([action[:2], action[4:]])
    return normal_density(policy.parts["numbers"], action[2:4]) + log_prob(policy.parts["choices"], classes)


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


def drawn_critics(made, target):
    """The critics whose minimum is the target: all, or as many as REDQ draws."""
    critics = [*target.critics]
    if made.cfg.num_target_critics is None:
        return critics
    order = torch.rand(len(critics)).tolist()
    return sorted(critics, key=lambda c: order[critics.index(c)])[: made.cfg.num_target_critics]


def td3(made, data, penalty=lambda action, *at: 0.0):
    """Algorithm 1. ``penalty`` lowers what a row counts, by the action there."""
    drawn, most, mu = noise(ACTS), made.cfg.target_noise_clip, made.target_actor.model
    assert (made.cfg.target_policy_noise * drawn).abs().max() > most
    critics = drawn_critics(made, made.target_critic.model)

    def worth(obs, b, t):
        moved = [max(-most, min(most, made.cfg.target_policy_noise * float(x))) for x in drawn[b, t]]
        action = (mu(obs).detach() + torch.tensor(moved, dtype=torch.float64)).clip(-1, 1)
        least = min(c(obs, action).item() for c in critics)
        return least - penalty(action, b, t + 1), 0.0

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


def rebrac(made, data):
    """Section 3, with lambda of the authors' code. An action is compared with the one that was taken next, if any."""
    c, n = made.cfg, len(moves(data))

    def apart(action, at):
        return sum((x - y) ** 2 for x, y in zip(action, data.action[at], strict=True))

    def penalty(action, *at):
        return 0.0 if data.is_last[at] else c.critic_bc_coef * apart(action, at).item()

    found, actions = td3(made, data, penalty), {at: made.actor(row(data, *at)) for at in moves(data)}
    worth = [min(q(row(data, *at), action) for q in made.critic.critics) for at, action in actions.items()]
    factor = n / sum(abs(q.item()) for q in worth)
    cloning = sum(apart(action, at) for at, action in actions.items()) / n
    actor = c.actor_bc_coef * cloning - factor * sum(worth) / n
    return found | {"actor": actor, "train/lambda": factor, "loss/bc": cloning}


def sac_actor(made, obs, drawn):
    """Equations 9 and 18; of REDQ, the mean of all critics."""
    action, log_pi = squashed_draw(made.actor(obs), drawn)
    values = [c(obs, action) for c in made.critic.critics]
    q = min(values) if made.cfg.num_target_critics is None else mean(values)
    temperature = -made.log_temperature.exp() * (log_pi.item() + ENTROPY)
    return {"actor": math.exp(made.log_temperature.item()) * log_pi - q, "temperature": temperature}


def sac(made, data):
    """Equations 2 to 9 and 18; of REDQ, targets are of some critics, and of CrossQ, of the critics themselves."""
    target = made.target_critic.model if made.target_networks else made.critic
    after = noise(ACTS)
    critics = drawn_critics(made, target)
    before = noise(ACTS)

    def worth(obs, b, t):
        action, log_pi = squashed_draw(made.actor(obs), after[b, t])
        bonus = -math.exp(made.log_temperature.item()) * log_pi.item() if made.cfg.entropy_backup else 0.0
        return min(c(obs, action).item() for c in critics) + bonus, bonus

    def each(obs, action, y, b, t):
        squared = sum((c(obs, action) - y) ** 2 for c in made.critic.critics)
        return sac_actor(made, obs, before[b, t]) | {"critic": 0.5 * data.weight[b] * squared}

    return slow(made, data, worth, each)


def discrete_sac(made, data):
    """Over all joint actions."""
    alpha = math.exp(made.log_temperature.item())

    def worth(obs, b, t):
        logits, q = made.actor(obs).log_probs, least(made.target_critic.model(obs))
        bonus = alpha * entropy_of(logits).item()
        return expected(logits, q).item() + bonus, bonus

    def each(obs, action, y, b, t):
        logits, q = made.actor(obs).log_probs, made.critic(obs)
        entropy = entropy_of(logits)
        return {
            "critic": 0.5 * data.weight[b] * sum((additive(x, taken(action)) - y) ** 2 for x in q),
            "actor": -alpha * entropy - expected(logits, for_actor(made, q).detach()),
            "temperature": made.log_temperature.exp() * (entropy.item() - ENTROPY),
        }

    return slow(made, data, worth, each)


def hybrid_sac(made, data):
    """A drawn number, and the expectation over all joint choices beside it."""
    after = noise(2)
    if made.cfg.num_target_critics is not None:
        torch.rand(2)  # draws both critics
    before = noise(2)
    alpha = math.exp(made.log_temperature.item())

    def drawn(obs, critic, z):
        """The value, of values without gradient but by the numbers; and the entropy."""
        policy = made.actor(obs)
        numbers, density = squashed_draw(policy.parts["numbers"], z)
        logits = policy.parts["choices"].log_probs
        q = critic(obs, numbers)
        best = for_actor(made, q) if critic is made.critic else least(q)
        return expected(logits, best), entropy_of(logits) - density

    def worth(obs, b, t):
        value, entropy = drawn(obs, made.target_critic.model, after[b, t])
        return (value + alpha * entropy).item(), alpha * entropy.item()

    def each(obs, action, y, b, t):
        value, entropy = drawn(obs, made.critic, before[b, t])
        q, classes = made.critic(obs, action[2:4]), taken(torch.cat([action[:2], action[4:]]))
        return {
            "critic": 0.5 * data.weight[b] * sum((additive(x, classes) - y) ** 2 for x in q),
            "actor": -alpha * entropy - value,
            "temperature": made.log_temperature.exp() * (entropy.item() - ENTROPY),
        }

    return slow(made, data, worth, each)


def best_of(made, obs):
    """What the target says of the class that is the best, for itself or for the network.

    Of several choices, the mean: Tavakoli et al., equation 6.
    """
    theirs, mine = (net(obs).detach() for net in (made.target_network.model, made.network))
    pairs = zip(parts(theirs), parts(mine if made.cfg.double else theirs), strict=True)
    return mean([q[max(range(len(q)), key=lambda a, by=by: by[a].mean().item())] for q, by in pairs])


def branches(data, q, action, y, b, kappa):
    """The mean of the losses of all choices, and of their errors."""
    errors = [part[a] - y for part, a in zip(parts(q), taken(action), strict=True)]
    loss = data.weight[b] * mean([huber(u, kappa) for u in errors])
    return {"critic": loss, "error": mean([u.abs() for u in errors]), "loss/critic": loss, "train/target": y,
            "train/value": mean(errors) + y}  # fmt: skip


def dqn(made, data):
    def each(obs, action, y, b, t):
        return branches(data, made.network(obs), action, y, b, made.cfg.kappa)

    return slow(made, data, lambda obs, *at: (best_of(made, obs).item(), 0.0), each)


def pairs(theta, y, kappa):
    """Algorithm 1's last line: over all pairs of a predicted quantile and a target."""
    y, n = torch.as_tensor(y, dtype=torch.float64).reshape(-1), QUANTILES
    errors = [((2 * i + 1) / (2 * n), target - theta[i]) for i in range(n) for target in y]
    return sum(abs(fraction - float(u < 0)) * huber(u, kappa) for fraction, u in errors) / len(y)


def qr_dqn(made, data):
    def each(obs, action, y, b, t):
        theta = [q[a] for q, a in zip(parts(made.network(obs)), taken(action), strict=True)]
        loss, y = mean([pairs(q, y, made.cfg.kappa) for q in theta]), torch.as_tensor(y, dtype=torch.float64)
        return {"critic": data.weight[b] * loss, "error": loss / QUANTILES, "loss/critic": data.weight[b] * loss,
                "train/value": mean(theta).mean(), "train/target": y.mean()}  # fmt: skip

    return slow(made, data, lambda obs, *at: (best_of(made, obs), 0.0), each)


def c51(made, data):
    """Algorithm 1, atom by atom."""
    low, high, n = made.cfg.v_min, made.cfg.v_max, made.cfg.num_atoms
    step = (high - low) / (n - 1)
    atoms = [low + i * step for i in range(n)]

    def mean_of(logits):
        return sum(p * z for p, z in zip(softmax(logits), atoms, strict=True))

    def best(obs, *at):
        """The distribution of the best class, averaged over the choices."""
        theirs, mine = (net(obs).detach() for net in (made.target_network.model, made.network))
        pairs = list(zip(parts(theirs), parts(mine if made.cfg.double else theirs), strict=True))
        probs = [softmax(z[max(range(len(z)), key=lambda a, by=by: mean_of(by[a]).item())]) for z, by in pairs]
        return Atoms(torch.tensor(atoms, dtype=torch.float64), torch.stack([mean(p) for p in zip(*probs, strict=True)]))

    def projected(y):
        m = [0.0] * n
        for x, p in zip(y.atoms.tolist(), y.probs.tolist(), strict=True):
            at = (min(max(x, low), high) - low) / step
            below, above = math.floor(at), math.ceil(at)
            m[below] += p * (above - at if above > below else 1)
            m[above] += p * (at - below)
        return m

    def each(obs, action, y, b, t):
        y = y if isinstance(y, Atoms) else Atoms(torch.tensor([y], dtype=torch.float64), torch.ones(1))
        m, logits = projected(y), [q[a] for q, a in zip(parts(made.network(obs)), taken(action), strict=True)]
        loss = mean([-sum(w * p.log() for w, p in zip(m, softmax(z), strict=True)) for z in logits])
        gain = sum(w * math.log(w) for w in m if w)
        worth = torch.tensor(sum(w * z for w, z in zip(m, atoms, strict=True)), dtype=torch.float64)
        return {"critic": data.weight[b] * loss, "error": loss + gain, "loss/critic": data.weight[b] * loss,
                "train/value": mean([mean_of(z) for z in logits]), "train/target": worth}  # fmt: skip

    return slow(made, data, lambda *at: (best(*at), 0.0), each)


class Atoms:
    """A distribution that rewards shift and a discount shrinks."""

    def __init__(self, atoms, probs):
        self.atoms, self.probs = atoms, probs

    def __rmul__(self, factor):
        return Atoms(factor * self.atoms, self.probs)

    def __add__(self, other):
        """A reward, or a distribution if all atoms are 0."""
        return Atoms(self.atoms + getattr(other, "atoms", other), getattr(other, "probs", self.probs))

    __radd__ = __add__


class Implicit(nn.Module):
    """Quantiles that depend on the state, the class and the fraction."""

    def __init__(self, classes=ONE):
        super().__init__()
        self.scale, self.shift = Tiny(sum(classes)), Tiny(sum(classes))

    def forward(self, obs, tau):
        return self.scale(obs).unsqueeze(-1) * tau.unsqueeze(-2) + self.shift(obs).unsqueeze(-1)


def iqn(made, data):
    """Algorithm 1."""
    drawn, after = (torch.rand(SIZE, ROWS, n, dtype=torch.float64) for n in (3, 2))
    fixed = torch.tensor([(2 * k + 1) / 10 for k in range(5)], dtype=torch.float64)

    def worth(obs, b, t):
        q, by = (parts(net(obs, tau).detach()) for net, tau in (
            (made.target_network.model, after[b, t]),
            (made.network if made.cfg.double else made.target_network.model, fixed),
        ))  # fmt: skip
        pairs = zip(q, by, strict=True)
        return mean([z[max(range(len(z)), key=lambda a, s=s: s[a].mean().item())] for z, s in pairs])

    def each(obs, action, y, b, t):
        y, tau = torch.as_tensor(y, dtype=torch.float64).reshape(-1), drawn[b, t]
        theta = [q[a] for q, a in zip(parts(made.network(obs, tau)), taken(action), strict=True)]
        loss = mean([sum(abs(f - float(u < x)) * huber(u - x, 1.0) for f, x in zip(tau, z, strict=True) for u in y)
                     / len(y) for z in theta])  # fmt: skip
        return {"critic": data.weight[b] * loss, "error": loss / 3, "loss/critic": data.weight[b] * loss,
                "train/value": mean(theta).mean(), "train/target": y.mean()}  # fmt: skip

    return slow(made, data, lambda *at: (worth(*at), 0.0), each)


def tqc(made, data):
    """Section 3; z are the smallest quantiles of all critics."""
    after, before = noise(ACTS), noise(ACTS)
    alpha = math.exp(made.log_temperature.item())

    def worth(obs, b, t):
        action, log_pi = squashed_draw(made.actor(obs), after[b, t])
        bonus = -alpha * log_pi.item() if made.cfg.entropy_backup else 0.0
        z = made.target_critic.model(obs, action)
        kept = sorted(z.flatten().tolist())[: len(z) * (QUANTILES - made.cfg.num_dropped_quantiles)]
        return torch.tensor(kept, dtype=torch.float64) + bonus, bonus

    def each(obs, action, y, b, t):
        theta, y = made.critic(obs, action), torch.as_tensor(y, dtype=torch.float64)
        loss = [pairs(each, y, 1.0) / QUANTILES for each in theta]
        action, log_pi = squashed_draw(made.actor(obs), before[b, t])
        return {"critic": data.weight[b] * sum(loss), "error": mean(loss), "train/value": theta.mean(),
                "train/target": y.mean(), "actor": alpha * log_pi - made.critic(obs, action).mean(),
                "temperature": -made.log_temperature.exp() * (log_pi.item() + ENTROPY)}  # fmt: skip

    return slow(made, data, worth, each)


def simba_v2(made, data):
    """The code of its authors: each atom gives its probability to its two neighbors."""
    after, before, support, probs = noise(ACTS), noise(ACTS), made.support.double(), {}
    alpha, step = math.exp(made.log_temperature.item()), (made.support[1] - made.support[0]).item()

    def worth(obs, b, t):
        action, log_pi = squashed_draw(made.actor(obs), after[b, t])
        bonus = -alpha * log_pi.item() if made.cfg.entropy_backup else 0.0
        p = made.target_critic.model(obs, action).softmax(-1).double()
        probs[b, t] = p[(p * support).sum(-1).argmin()]
        return support + bonus, bonus

    def each(obs, action, y, b, t):
        m = torch.zeros(len(support) + 1, dtype=torch.float64)
        atoms = torch.as_tensor(y, dtype=torch.float64).expand(len(support))  # y is a number after a terminal row
        for atom, p in zip(atoms.tolist(), probs.get((b, t), support * 0 + 1 / len(support)).tolist(), strict=True):
            place = (min(max(atom, support[0].item()), support[-1].item()) - support[0].item()) / step
            below = math.floor(place)
            m[below] += p * (1 - place + below)
            m[below + 1] += p * (place - below)
        log_p = made.critic(obs, action).log_softmax(-1)
        loss, means = -(m[:-1] * log_p).sum(-1), (log_p.exp() * support).sum(-1)
        action, log_pi = squashed_draw(made.actor(obs), before[b, t])
        best = (made.critic(obs, action).softmax(-1) * support).sum(-1).min()
        return {"critic": data.weight[b] * loss.sum(), "error": loss.mean(), "train/value": means.mean(),
                "train/target": (m[:-1] * support).sum(), "actor": alpha * log_pi - best,
                "temperature": -made.log_temperature.exp() * (log_pi.item() + ENTROPY)}  # fmt: skip

    return slow(made, data, worth, each)


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
            found.append(made.cfg.lam * min(q) + (1 - made.cfg.lam) * max(q))
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
    c, kind = made.cfg, made.cfg.conservative_weight
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
                if c.value_floor is not None and q < data.extras[RETURN_TO_GO_COLUMN][b, t]:
                    q, floored = data.extras[RETURN_TO_GO_COLUMN][b, t].clone(), floored + 1 / (2 * len(tried))
                exponents.append(q - density.detach())
            total = sum(torch.exp(x / c.cql_temperature) for x in exponents)
            gap = gap + c.cql_temperature * torch.log(total) - taken
        metrics = {"train/conservative_gap": gap / 2}
        metrics |= {"train/below_floor": floored} if c.value_floor else {}
        found = sac_actor(made, obs, before[b, t]) | metrics
        if isinstance(kind, Constant):
            return found | {"critic": td + kind.weight * gap}
        multiplier, beyond = made.log_multiplier.exp(), gap - 2 * kind.threshold
        found["critic"] = td + multiplier.item() * beyond
        return found | {"lagrange_multiplier": -0.5 * multiplier * beyond.item()}

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
        baseline = max(own) if made.cfg.baseline == "max" else sum(own) / len(own)
        weight = weigh(made.cfg.filter, min(c(obs, action).item() for c in critics) - baseline)
        squared = sum((c(obs, action) - y) ** 2 for c in critics)
        return {"critic": data.weight[b] * squared, "actor": -weight * normal_density(policy, action),
                "train/weight": weight}  # fmt: skip

    return slow(made, data, worth, each)


def iql(made, data):
    """Equations 5 to 7, where critics read the flat action."""

    def each(obs, action, y, b, t):
        q = min(c(obs, action).item() for c in made.target_critic.model.critics)
        u = q - made.value(obs)
        weight = min(math.exp(made.cfg.beta * u.item()), made.cfg.max_weight)
        return {
            "value": abs(made.cfg.expectile - (1 if u < 0 else 0)) * u**2,
            "actor": -weight * log_prob(made.actor(obs), action), "train/weight": weight,
            "critic": data.weight[b] * sum((c(obs, action) - y) ** 2 for c in made.critic.critics),
        }  # fmt: skip

    return slow(made, data, lambda obs, *at: (made.value(obs).item(), 0.0), each)


def discrete_bcq(made, data):
    """Algorithm 1. Each choice has likely classes of its own, and the clone is the product of its choices."""
    c, left = made.cfg, set()

    def worth(obs, b, t):
        (q, logits), target, found = made.network(obs), made.target_network.model(obs)[0], []
        for value, logit, theirs in zip(parts(q), parts(logits), parts(target), strict=True):
            clone = [p.item() for p in softmax(logit)]
            likely = [a for a, p in enumerate(clone) if p / max(clone) >= c.threshold]
            left.add(len(likely))
            found.append(theirs[max(likely, key=lambda a, value=value: value[a].item())].item())
        return mean(found), 0.0

    def each(obs, action, y, b, t):
        q, logits = made.network(obs)
        imitation = -torch.log(probability(logits, taken(action)))
        imitation = imitation + c.logit_weight * sum(i**2 for i in logits) / len(logits)
        return branches(data, q, action, y, b, c.kappa) | {"bc": imitation, "loss/bc": imitation}

    found = slow(made, data, worth, each)
    some = {1, 2} if data.action.shape[-1] == ACTS else {1, 2, 3}
    assert left == {0.0: {2}, 1.0: {1}}.get(c.threshold, some)
    return found


def discrete_cql(made, data):
    """Equation 4 on quantiles; the mean of the penalties of all choices."""

    def each(obs, action, y, b, t):
        theta = list(zip(parts(made.network(obs)), taken(action), strict=True))
        loss = data.weight[b] * mean([pairs(q[a], y, made.cfg.kappa) for q, a in theta])
        gap = mean([conservative_gap(q.sum(-1) / QUANTILES, a) for q, a in theta])
        return {"critic": loss + made.cfg.conservative_weight * gap, "train/conservative_gap": gap,
                "loss/conservative": made.cfg.conservative_weight * gap}  # fmt: skip

    return slow(made, data, lambda obs, *at: (best_of(made, obs), 0.0), each)


def discrete_crr(made, data):
    """Equations 2 to 4, whose expectations are exact."""

    def worth(obs, b, t):
        return expected(made.target_actor.model(obs).log_probs, least(made.target_critic.model(obs))).item(), 0.0

    def each(obs, action, y, b, t):
        logits, q, a = made.actor(obs).log_probs, made.critic(obs), taken(action)
        advantage = (additive(least(q), a) - expected(logits, least(q))).item()
        weight = weigh(made.cfg.filter, advantage)
        td = sum(data.weight[b] * (additive(x, a) - y) ** 2 for x in q)
        gap = sum(torch.log(sum(additive(x, other).exp() for other in joint(x))) - additive(x, a) for x in q)
        found = {"critic": td + made.cfg.conservative_weight * gap, "train/weight": weight,
                 "actor": -weight * torch.log(probability(logits, a)), "train/advantage": advantage}  # fmt: skip
        return found | ({"train/conservative_gap": gap} if made.cfg.conservative_weight else {})

    return slow(made, data, worth, each)


# ---------------------------------------------------------------- all of them


AC = {"actor": "actor", "critic": "critic"}
ACT = AC | {"temperature": "log_temperature"}
ACV = AC | {"value": "value"}
NET = {"critic": "network", "bc": "network"}
ESTIMATORS = [{"value_estimator": x} for x in (TD0(), TDLambda(0.8))]
ALL = [{"value_estimator": x} for x in (TD0(), TD1(), NStep(2), NStep(3), TDLambda(0.8), GAE(0.7))]
SOFT = [{"temperature": 0.7} | x for x in ESTIMATORS]
IQL = {"expectile": 0.8, "beta": 4.0, "max_weight": 0.3}
NOISY = {"target_policy_noise": 0.5, "target_noise_clip": 0.4}
CQL = {"temperature": 0.7, "num_samples": SAMPLES, "conservative_weight": Constant(2.0)}
ATOMS = {"num_atoms": QUANTILES, "v_min": -1.0, "v_max": 2.0}
FRACTIONS = {"num_quantiles": 3, "num_target_quantiles": 2, "num_policy_quantiles": 5}
LAGRANGE = Lagrange(threshold=1.25, initial=1.5)
CASES = {
    "ddpg": Case(lambda c: DDPGObjective(actor(), TinyCritic(), c), DDPGConfig, ddpg, AC, ALL),
    "td3": Case(lambda c: TD3Objective(actor(), two(), c), TD3Config, td3, AC, [NOISY | x for x in ESTIMATORS]),
    "td3_of_4": Case(
        lambda c: TD3Objective(actor(), four(), c), TD3Config, td3, AC,
        [NOISY | {"num_critics": 4, "num_target_critics": 2}],
    ),
    "td3_bc": Case(lambda c: TD3BCObjective(actor(), two(), c), TD3BCConfig, td3_bc, AC, [NOISY | {"alpha": 1.7}]),
    "rebrac": Case(
        lambda c: ReBRACObjective(actor(), two(), c), ReBRACConfig, rebrac, AC,
        [NOISY | {"actor_bc_coef": 0.4, "critic_bc_coef": 0.3} | x for x in (*ESTIMATORS, {"num_target_critics": 1})],
    ),
    "redq": Case(
        lambda c: SACObjective(gaussian(SquashedNormal), four(), c, ENTROPY),
        SACConfig, sac, ACT,
        [{"num_critics": 4, "num_target_critics": 2},
         {"num_critics": 4, "num_target_critics": 1, "entropy_backup": False, "value_estimator": NStep(2)}],
    ),
    "sac": Case(
        lambda c: SACObjective(gaussian(SquashedNormal), two(), c, ENTROPY), SACConfig, sac, ACT,
        [{"temperature": 0.7} | x for x in ALL],
    ),
    "crossq": Case(
        lambda c: CrossQObjective(gaussian(SquashedNormal), two(), c, ENTROPY), CrossQConfig, sac, ACT,
        [{"temperature": 0.7}, {"value_estimator": NStep(2), "entropy_backup": False}],
    ),
    "discrete_sac": Case(
        lambda c: DiscreteSACObjective(choosing(), values(2), c, ENTROPY), DiscreteSACConfig,
        discrete_sac, ACT, [{"num_target_critics": 2}, *({"temperature": 0.7} | x for x in ALL)], choices,
    ),
    "dqn": Case(
        lambda c: DQNObjective(Tiny(ACTS), c), DQNConfig, dqn, NET,
        [*ESTIMATORS, {"double": True}, {"kappa": 0.7}, {"kappa": math.inf, "double": True}], choices,
    ),
    "qr_dqn": Case(
        lambda c: QRDQNObjective(quantiles(), c), QRDQNConfig,
        qr_dqn, NET,
        [{"kappa": 0.0}, {"double": True}, {"value_estimator": TD1()}, {"value_estimator": NStep(2), "double": True}],
        choices,
    ),
    "c51": Case(
        lambda c: C51Objective(quantiles(), c), C51Config, c51, NET,
        [ATOMS, ATOMS | {"double": True, "value_estimator": NStep(2)}], choices,
    ),
    "iqn": Case(
        lambda c: IQNObjective(Implicit(), c), IQNConfig, iqn, NET,
        [FRACTIONS, FRACTIONS | {"double": True, "value_estimator": NStep(2)}], choices,
    ),
    "tqc": Case(
        lambda c: TQCObjective(gaussian(SquashedNormal), values(3, (QUANTILES,), ACTS), c, ENTROPY),
        TQCConfig, tqc, ACT,
        [{"num_critics": 3, "num_quantiles": QUANTILES, "num_dropped_quantiles": 1, "temperature": 0.7} | x
         for x in ({}, {"value_estimator": NStep(2)}, {"entropy_backup": False})],
    ),
    "simba_v2": Case(
        lambda c: SimbaV2Objective(gaussian(SquashedNormal), values(2, (QUANTILES,), ACTS), c, ENTROPY),
        SimbaV2Config, simba_v2, ACT,
        [{"num_atoms": QUANTILES, "max_value": 1.5, "temperature": 0.7} | x for x in ({}, {"entropy_backup": False})],
    ),
    "bcq": Case(
        lambda c: BCQObjective(TinyVAE(), TinyPerturb(), two(), c), BCQConfig, bcq,
        {"vae": "vae", "critic": "critic", "actor": "perturb"},
        [{"lam": 0.7, "num_samples": SAMPLES} | x for x in ESTIMATORS],
    ),
    "cql": Case(
        lambda c: CQLObjective(gaussian(SquashedNormal), two(), c, ENTROPY), CQLConfig, cql, ACT,
        [CQL | {"backup": x} for x in (Mode(), Expected(), Best(2))]
        + [CQL | {"backup": Soft(), "value_estimator": NStep(2)}, CQL | {"cql_temperature": 0.3},
           CQL | {"value_floor": "monte_carlo"}, CQL | {"conservative_weight": LAGRANGE}],
    ),
    "crr": Case(
        lambda c: CRRObjective(gaussian(ClippedNormal), two(), c), CRRConfig, crr, AC,
        [{"num_samples": SAMPLES, "filter": Exp(0.3, 1.2), "baseline": "max", "value_estimator": TDLambda(0.8)},
         {"num_samples": SAMPLES, "filter": Binary(), "baseline": "mean"}, {"num_samples": SAMPLES, "filter": All()}],
    ),
    "iql": Case(
        lambda c: IQLObjective(gaussian(ClippedNormal), two(), state_value(), c), IQLConfig, iql, ACV,
        [IQL | x for x in ESTIMATORS],
    ),
    "discrete_bcq": Case(
        lambda c: DiscreteBCQObjective(values(2), c), DiscreteBCQConfig, discrete_bcq,
        NET,
        [{"threshold": 0.8, "logit_weight": 0.5, "kappa": 0.7}, {"threshold": 0.0}, {"threshold": 1.0},
         {"threshold": 0.8, "value_estimator": TDLambda(0.8)}], choices,
    ),
    "discrete_cql": Case(
        lambda c: DiscreteCQLObjective(quantiles(), c), DiscreteCQLConfig, discrete_cql,
        NET,
        [{"conservative_weight": 0.0}, {"conservative_weight": 0.7, "double": True, "value_estimator": NStep(2)}],
        choices,
    ),
    "discrete_crr": Case(
        lambda c: DiscreteCRRObjective(choosing(), values(c.num_critics), c), DiscreteCRRConfig,
        discrete_crr, AC,
        [{"num_critics": 2, "filter": Exp(0.3, 1.2), "conservative_weight": 0.7, "value_estimator": TDLambda(0.8)},
         {"num_critics": 1, "filter": Binary()}, {"num_critics": 2, "filter": All()}], choices,
    ),
    "dqn_several": Case(
        lambda c: DQNObjective(Tiny(sum(TWO)), c, TWO), DQNConfig, dqn, NET,
        [{}, {"double": True, "kappa": 0.7, "value_estimator": TDLambda(0.8)}], several,
    ),
    "qr_dqn_several": Case(
        lambda c: QRDQNObjective(quantiles(TWO), c, TWO), QRDQNConfig, qr_dqn, NET,
        [{"kappa": 0.0}, {"double": True, "value_estimator": NStep(2)}], several,
    ),
    "c51_several": Case(
        lambda c: C51Objective(quantiles(TWO), c, TWO), C51Config, c51, NET, [ATOMS | {"double": True}], several,
    ),
    "discrete_cql_several": Case(
        lambda c: DiscreteCQLObjective(quantiles(TWO), c, TWO), DiscreteCQLConfig, discrete_cql, NET,
        [{"conservative_weight": 0.7}], several,
    ),
    "discrete_bcq_several": Case(
        lambda c: DiscreteBCQObjective(values(2, TWO), c, classes=TWO), DiscreteBCQConfig, discrete_bcq, NET,
        [{"threshold": 0.8, "logit_weight": 0.5, "kappa": 0.7}], several,
    ),
    "discrete_sac_several": Case(
        lambda c: DiscreteSACObjective(choosing(TWO), values(2, TWO), c, ENTROPY), DiscreteSACConfig, discrete_sac,
        ACT, SOFT, several,
    ),
    "discrete_crr_several": Case(
        lambda c: DiscreteCRRObjective(choosing(TWO), values(2, TWO), c, classes=TWO), DiscreteCRRConfig,
        discrete_crr, AC, [{"conservative_weight": 0.7, "filter": Exp(0.3, 1.2)}], several,
    ),
    "iql_several": Case(
        lambda c: IQLObjective(choosing(TWO), two(sum(TWO)), state_value(), c), IQLConfig, iql, ACV, [IQL], several,
    ),
    "iql_mixed": Case(
        lambda c: IQLObjective(both(ClippedNormal), two(2 + sum(TWO)), state_value(), c), IQLConfig, iql, ACV, [IQL],
        mixed,
    ),
    "sac_mixed": Case(
        lambda c: HybridSACObjective(both(SquashedNormal), values(2, TWO, 2), c, ENTROPY, LAYOUT), SACConfig,
        hybrid_sac, ACT, [*SOFT, {"num_target_critics": 2}], mixed,
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
    data = several()
    for clone, rows, each in (
        (actor(), batch(), lambda y, action: (y - action).square().mean()),
        (gaussian(ClippedNormal), batch(), lambda y, action: -log_prob(y, action)),
        (choosing(TWO), data, lambda y, action: -log_prob(y, action)),
    ):
        made, at = BCObjective(clone), moves(rows)
        loss, wanted = made(rows).terms["actor"], sum(each(clone(row(rows, *i)), rows.action[i]) for i in at) / len(at)
        close(loss, wanted)
        same_gradients(made, loss, wanted, "actor")


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
    assert torch.equal(losses.terms["actor"], losses.metrics["loss/bc"])
    assert all(g.isfinite().all() for g in torch.autograd.grad(losses.terms["actor"], list(made.actor.parameters())))
