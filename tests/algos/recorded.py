"""Networks of a few numbers for learners of recorded rows, and what their distributions say, written out."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from windows import ACTS, WIDE, TinyActor, batch

from reverie.core.types import Batch
from reverie.nn.distributions import Choices, DiagonalNormal, SquashedNormal

LATENT = 3


def choices(size: int = 8, **settings) -> Batch:
    """Rows whose actions are one of two classes; rewards large enough for errors beyond 1."""
    data = batch(size=size, **settings)
    data.reward.mul_(2)
    data.action.copy_(F.one_hot(data.action.argmax(-1), ACTS) * ~data.is_last[..., None])
    return data


class TinyClasses(nn.Module):
    """``[(K,) ..., ACTS]``, of each class a number or ``each``."""

    def __init__(self, copies: int = 0, each: int = 0) -> None:
        super().__init__()
        self.shape = (copies,) * bool(copies) + (ACTS,) + (each,) * bool(each)
        self.copies, self.layers = copies, nn.Sequential(
            nn.Linear(WIDE, 5, dtype=torch.float64), nn.Tanh(),
            nn.Linear(5, math.prod(self.shape), dtype=torch.float64),
        )  # fmt: skip

    def forward(self, obs):
        y = self.layers(obs["state"]).unflatten(-1, self.shape)
        at = obs["state"].ndim - 1
        return y.movedim(at, 0) if self.copies else y


class TinyChoices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = TinyClasses()

    def forward(self, obs):
        return Choices(self.body(obs), (ACTS,))


class TinySquashed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = TinyActor(2 * ACTS)

    def forward(self, obs):
        return SquashedNormal(*self.body(obs).chunk(2, -1))


class TinyNormal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = TinyActor(2 * ACTS)

    def forward(self, obs):
        return DiagonalNormal(*self.body(obs).chunk(2, -1))


class TinyValue(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(WIDE, 5, dtype=torch.float64), nn.Tanh(), nn.Linear(5, 1, dtype=torch.float64)
        )

    def forward(self, obs):
        return self.layers(obs["state"]).squeeze(-1)


class TinyPerturb(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(WIDE + ACTS, ACTS, dtype=torch.float64)

    def forward(self, obs, action):
        return (action + 0.3 * self.layer(torch.cat([obs["state"], action], -1)).tanh()).clamp(-1, 1)


class TinyVAE(nn.Module):
    latent = LATENT

    def __init__(self) -> None:
        super().__init__()
        self.coder = nn.Linear(WIDE + ACTS, 2 * LATENT, dtype=torch.float64)
        self.decoder = nn.Linear(WIDE + LATENT, ACTS, dtype=torch.float64)

    def forward(self, obs, action):
        mean, log_std = self.coder(torch.cat([obs["state"], action], -1)).chunk(2, -1)
        latent = mean + log_std.exp() * torch.randn_like(mean)
        made = self.decoder(torch.cat([obs["state"], latent], -1)).tanh()
        return SimpleNamespace(action=made, mean=mean, log_std=log_std)

    def decode(self, obs, latent):
        state = obs["state"].unsqueeze(-2).expand(*latent.shape[:-1], WIDE)
        return self.decoder(torch.cat([state, latent], -1)).tanh()


def squashed_draw(policy: SquashedNormal, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action ``[A]`` and its log-density, by the change of variables written out."""
    action, density = [], torch.zeros((), dtype=torch.float64)
    for mean, log_std, x in zip(policy.mean, policy.log_std, noise, strict=True):
        u = mean + log_std.exp() * x
        density = density - x**2 / 2 - log_std - math.log(2 * math.pi) / 2 - torch.log(1 - torch.tanh(u) ** 2)
        action.append(torch.tanh(u))
    return torch.stack(action), density


def normal_density(policy: DiagonalNormal, action: Tensor) -> Tensor:
    """Ln N(action), number by number."""
    total = torch.zeros((), dtype=torch.float64)
    for mean, log_std, a in zip(policy.mean, policy.log_std, action, strict=True):
        total = total - ((a - mean) / log_std.exp()) ** 2 / 2 - log_std - math.log(2 * math.pi) / 2
    return total


def softmax(logits: Tensor) -> list[Tensor]:
    """Probabilities of ``[A]``, one by one."""
    total = sum(x.exp() for x in logits)
    return [x.exp() / total for x in logits]


def conservative_gap(values: Tensor, taken: int) -> Tensor:
    """Ln sum_a exp Q(s, a) - Q(s, a), of one state's values ``[A]``."""
    return torch.log(sum(q.exp() for q in values)) - values[taken]


def lag(module: nn.Module) -> None:
    """Targets are not their networks any more."""
    for p in module.parameters():
        p.data.add_(torch.randn_like(p) * 0.3)


def close(losses, slow, own) -> None:
    """Terms and their gradients are those of the definition."""
    assert losses.terms.keys() == own.keys() == slow.keys()
    for name, parameters in own.items():
        mine = list(parameters)
        torch.testing.assert_close(losses.terms[name], slow[name], rtol=1e-10, atol=1e-12)
        expected = torch.autograd.grad(slow[name], mine, retain_graph=True)
        got = torch.autograd.grad(losses.terms[name], mine, retain_graph=True)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-12)


def reaches(objective: nn.Module, data, own: dict[str, set[str]]) -> None:
    """The gradient of each term reaches all of its own parameters and no others; ``objective(data)`` has all terms."""
    assert objective(data).terms.keys() == own.keys()
    for term, names in own.items():
        objective.zero_grad(set_to_none=True)
        objective(data).terms[term].backward()
        reached = {name for name, p in objective.named_parameters() if p.grad is not None and p.grad.any()}
        assert {name.split(".")[0] for name in reached} == names, term
        assert reached == {name for name, _ in objective.named_parameters() if name.split(".")[0] in names}, term
