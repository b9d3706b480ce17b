"""Windows of rows for learners of transitions, networks of a few numbers, and losses written the slow way."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.normals import Normal, SquashedNormal
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.estimators import TD0, TD1, NStep, ValueEstimator

WIDE, ACTS = 3, 2
SIZE, ROWS = 8, 4
"""Windows, and transitions in each."""
OBS = {"state": ObsPart(kind="vector", shape=(WIDE,), dtype="float32")}
MOVE = ActionSpec(parts={"move": ActionPart(kind="continuous", size=ACTS)})


class Tiny(nn.Module):
    """``read`` of the outputs ``[..., outputs]`` for a state, and for an action ``[..., acts]`` if there is one."""

    def __init__(self, outputs: int, read: Callable[[Tensor], Any] = lambda y: y, acts: int = 0) -> None:
        super().__init__()
        self.read, self.layers = read, nn.Sequential(
            nn.Linear(WIDE + acts, 5, dtype=torch.float64), nn.Tanh(), nn.Linear(5, outputs, dtype=torch.float64)
        )  # fmt: skip

    def forward(self, obs: dict[str, Tensor], *action: Tensor, copy: int | None = None) -> Any:
        y = self.read(self.layers(torch.cat([obs["state"], *action], -1)))
        return y if copy is None else y[copy]


class TinyCritic(Tiny):
    def __init__(self, acts: int = ACTS) -> None:
        super().__init__(1, lambda y: y.squeeze(-1), acts)


def batch(size: int = 8, length: int = 5, seed: int = 0, crossing: bool = True, dtype=torch.float64) -> Batch:
    """Random rows. Episodes end in the middle of windows if they may, and at their last rows, in either way."""
    g = torch.Generator().manual_seed(seed)
    last = torch.rand(size, length, generator=g) < 0.3
    if not crossing:
        last[:, :-1] = False
    terminal = last & (torch.rand(size, length, generator=g) < 0.5)
    first = torch.cat([torch.zeros(size, 1, dtype=torch.bool), last[:, :-1]], 1)
    reward = torch.randn(size, length, generator=g, dtype=dtype) * ~first
    action = (torch.rand(size, length, ACTS, generator=g, dtype=dtype) * 2 - 1) * ~last[..., None]
    return Batch(
        obs={"state": torch.randn(size, length, WIDE, generator=g, dtype=dtype)},
        action=action, reward=reward, is_first=first, is_last=last, is_terminal=terminal,
        weight=torch.rand(size, generator=g, dtype=dtype) + 0.5, index=torch.arange(size),
    )  # fmt: skip


def choices(**settings: Any) -> Batch:
    """Rows whose actions are one of two classes; rewards large enough for errors beyond 1."""
    data = batch(**settings)
    data.reward.mul_(2)
    data.action.copy_(F.one_hot(data.action.argmax(-1), ACTS) * ~data.is_last[..., None])
    return data


def steps(count: int, spread: bool = True) -> Step:
    """Of environments in which nothing begins or ends."""
    no = torch.zeros(count, dtype=torch.bool)
    state = torch.randn(count if spread else 1, WIDE, generator=torch.Generator().manual_seed(0))
    obs = {"state": state.expand(count, WIDE)}
    return Step(obs=obs, reward=torch.zeros(count), is_first=no, is_last=no, is_terminal=no)


def slow_target(
    estimator: ValueEstimator, data: Batch, value: list[list[Any]], b: int, t: int, discount: float,
    bonus: list[list[float]],
) -> Any:  # fmt: skip
    """What row t of window b turned out to be worth. ``bonus`` is what a row earns by itself when it is passed."""
    end = data.reward.shape[1] - 1
    steps = {NStep: lambda e: e.n, TD0: lambda e: 1, TD1: lambda e: end}.get(type(estimator), lambda e: None)(estimator)
    lam = 1.0 if steps else estimator.lam

    def follow(row: int, left: int | None) -> Any:
        """The return from ``row``, whose action was taken, with so many rewards to go."""
        reward, after = float(data.reward[b, row + 1]), row + 1
        if data.is_terminal[b, after]:
            return reward
        if data.is_last[b, after] or after == end or left == 1:
            return reward + discount * value[b][after]
        passed = bonus[b][after] + follow(after, left - 1 if left else None)
        return reward + discount * ((1 - lam) * value[b][after] + lam * passed)

    return follow(t, steps)


def moves(data: Batch) -> list[tuple[int, int]]:
    """Window and row of every action that was taken and whose outcome is in its window."""
    size, length = data.shape
    return [(b, t) for b in range(size) for t in range(length - 1) if not data.is_last[b, t]]


def row(data: Batch, b: int, t: int) -> dict[str, Tensor]:
    return {"state": data.obs["state"][b, t]}


def slow(made: Any, data: Batch, worth: Callable[..., Any], each: Callable[..., Any]) -> dict[str, Any]:
    """Terms, metrics (with a slash) and priorities of ``data``, one transition at a time.

    ``worth(obs, b, t)`` is what row t + 1 counts where it is bootstrapped from, and the part of it that its entropy
    is. ``each(obs, action, y, b, t)`` has the terms of the transition from row t with the target y, not yet averaged;
    an ``error`` in it counts for the priority.
    """
    size, length = data.shape
    value, bonus = ([[0.0] * length for _ in range(size)] for _ in range(2))
    for b in range(size):
        for t in range(1, length):
            value[b][t], bonus[b][t] = worth(row(data, b, t), b, t - 1)
    found, errors, count = defaultdict(float), [[] for _ in range(size)], len(moves(data))
    for b, t in moves(data):
        y = slow_target(made.cfg.value_estimator, data, value, b, t, made.cfg.discount, bonus)
        for name, x in each(row(data, b, t), data.action[b, t], y, b, t).items():
            if name == "error":
                errors[b].append(x.item())
            else:
                found[name] = found[name] + x / count
    priority = [sum(e) / max(1, len(e)) for e in errors]
    return dict(found) | ({"priority": torch.tensor(priority, dtype=torch.float64)} if any(errors) else {})


def huber(u: Tensor, kappa: float) -> Tensor:
    if not kappa:
        return u.abs()
    return u**2 / 2 if u.abs() <= kappa else kappa * (u.abs() - kappa / 2)


def squashed_draw(policy: SquashedNormal, noise: Tensor) -> tuple[Tensor, Tensor]:
    """An action ``[A]`` and its log-density, by the change of variables written out."""
    u = policy.mean + policy.log_std.exp() * noise
    density = -(noise**2) / 2 - policy.log_std - math.log(2 * math.pi) / 2 - torch.log(1 - torch.tanh(u) ** 2)
    return torch.tanh(u), density.sum()


def normal_density(policy: Normal, action: Tensor) -> Tensor:
    """Ln N(action)."""
    z = (action - policy.mean) / policy.log_std.exp()
    return (-(z**2) / 2 - policy.log_std - math.log(2 * math.pi) / 2).sum()


def softmax(logits: Tensor) -> list[Tensor]:
    """Probabilities of ``[A]``, one by one."""
    total = sum(x.exp() for x in logits)
    return [x.exp() / total for x in logits]


def conservative_gap(values: Tensor, taken: int) -> Tensor:
    """Ln sum_a exp Q(s, a) - Q(s, a), of one state's values ``[A]``."""
    return torch.log(sum(q.exp() for q in values)) - values[taken]


def close(ours: Any, theirs: Any, message: str | None = None) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12, msg=message)


def same_gradients(made: nn.Module, ours: Tensor, theirs: Tensor, own: str) -> None:
    """Those of all parameters of the part ``own``, and of no others."""
    trained = {name: p for name, p in made.named_parameters() if p.requires_grad}
    got, expected = (
        torch.autograd.grad(x, list(trained.values()), retain_graph=True, allow_unused=True) for x in (ours, theirs)
    )
    for name, x, y in zip(trained, got, expected, strict=True):
        if name.split(".")[0] == own:
            assert x.any(), name
            close(x, y, name)
        else:
            assert x is None or not x.any(), name


class Case(NamedTuple):
    make: Callable[[Any], nn.Module]
    """The losses over tiny networks, from settings."""
    config: Any
    slow: Callable[..., dict[str, Any]]
    own: dict[str, str]
    """The part of the losses that each term trains."""
    settings: list[dict[str, Any]]
    rows: Callable[..., Any] = batch


def objective(case: Case, given: dict[str, Any]) -> Any:
    """Losses of which the targets lag behind."""
    torch.manual_seed(0)
    made = case.make(case.config(discount=0.9, batch_length=ROWS + 1, **given)).double()
    for target in (part for part in made.children() if isinstance(part, TargetNetwork)):
        for p in target.parameters():
            p.data.add_(torch.randn_like(p) * 0.3)
    return made


def check_against(case: Case, given: dict[str, Any]) -> None:
    """Terms, gradients, metrics and priorities are those of the slow definition."""
    made, data = objective(case, given), case.rows()
    assert 0 < data.is_terminal.sum() < data.is_last.sum() < data.is_last.numel()
    returns = torch.randn(*data.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    data.extras[RETURN_TO_GO_COLUMN] = torch.where(returns.abs() < 0.4, -math.inf, returns)  # not all are known
    torch.manual_seed(7)
    losses = made(data)
    torch.manual_seed(7)
    expected = case.slow(made, data)
    assert losses.terms.keys() == {name for name in expected if "/" not in name and name != "priority"}
    for name, x in expected.items():
        if name == "priority" or "/" in name:
            update = losses.update()
            found = update.priority if name == "priority" else update.metrics[name]
            assert not found.requires_grad
            close(found, torch.as_tensor(x, dtype=torch.float64).detach(), name)
        else:
            close(losses.terms[name], x, name)
            same_gradients(made, losses.terms[name], x, {**case.own, "lagrange_multiplier": "log_multiplier"}[name])
