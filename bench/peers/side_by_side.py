"""What the scripts share that compare numbers: loading ours, weights, random draws, and the comparison itself.

`agreement_reverie.py` writes a file for each algorithm. A peer's script describes the peer's learner as a `Learner`:
where its networks are, and how it makes one update on a batch. Everything else is here and the same for all peers.
"""

from __future__ import annotations

import contextlib
import json
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

Layers = list[tuple[Tensor, Tensor]]
"""Weight `[out, in]` and bias of each layer."""
Weights = Layers | Tensor
"""Those of a network, or a single parameter."""
Transitions = Mapping[str, Tensor]
"""obs, act, rew, next_obs, term, trunc, rtg, weight, chosen, all `[B, ...]`."""
Ours = Mapping[str, Any]
"""What `agreement_reverie.py` wrote of one algorithm."""

SEED = 1000
"""Update k draws its random numbers with this seed + k, on both sides."""
FIRST_MOMENT = 0.1
"""Adam's first moment after one step is the gradient times this."""
EPSILON = 1e-8
"""Adam's, in ours."""


# ---------------------------------------------------------------- random numbers


def draws(update: int, *wanted: tuple[str, Sequence[int]]) -> list[Tensor]:
    """What reverie drew in that update: for each kind and shape, "n" standard normal or "u" uniform in [-1, 1]."""
    torch.manual_seed(SEED + update)
    return [torch.randn(*shape) if kind == "n" else torch.empty(*shape).uniform_(-1, 1) for kind, shape in wanted]


@contextlib.contextmanager
def drawing(queue: Sequence[Tensor]) -> Iterator[None]:
    """Every random number that PyTorch draws meanwhile comes from the queue, in its order; all must be used."""
    left = list(queue)

    def pop(shape: Sequence[int]) -> Tensor:
        x = left.pop(0)
        if x.numel() != torch.Size(shape).numel():
            raise ValueError(f"{tuple(shape)} was drawn where ours has {tuple(x.shape)}")
        return x.reshape(tuple(shape)).clone()

    def size(*words: Any, **named: Any) -> Sequence[int]:
        words = named.get("size", words)
        return words[0] if len(words) == 1 and not isinstance(words[0], int) else words

    def normal(mean: Any, std: Any, shape: Any = None, **named: Any) -> Tensor:
        shape = shape or named.get("size") or (mean if isinstance(mean, Tensor) else std).shape
        return mean + std * pop(shape)

    def uniform_(self: Tensor, low: float = 0.0, high: float = 1.0, **_: Any) -> Tensor:
        return self.copy_(low + (high - low) * (pop(self.shape) + 1) / 2)

    replaced = {
        (torch, "randn"): lambda *words, **named: pop(size(*words, **named)),
        (torch, "randn_like"): lambda x, **_: pop(x.shape),
        (torch, "rand"): lambda *words, **named: (pop(size(*words, **named)) + 1) / 2,
        (torch, "rand_like"): lambda x, **_: (pop(x.shape) + 1) / 2,
        (torch, "normal"): normal,
        (Tensor, "normal_"): lambda self, mean=0.0, std=1.0, **_: self.copy_(mean + std * pop(self.shape)),
        (Tensor, "uniform_"): uniform_,
    }
    before = {key: getattr(*key) for key in replaced}
    try:
        for (owner, name), function in replaced.items():
            setattr(owner, name, function)
        yield
    finally:
        for (owner, name), function in before.items():
            setattr(owner, name, function)
    if left:
        raise ValueError(f"{len(left)} draws of ours were not made")


# ---------------------------------------------------------------- networks


class Net(Protocol):
    """A network or a single parameter of a peer."""

    def put(self, weights: Weights) -> None:
        """Give it ours."""

    def arranged(self, weights: Weights) -> Weights:
        """Ours in the peer's order."""

    def weights(self) -> Weights:
        """What it has, in its order."""

    def gradient(self) -> Weights | None:
        """That of its first step; None if it made none."""


@dataclass
class Linears:
    """All `nn.Linear` in these modules, in their order."""

    modules: Sequence[nn.Module]
    optim: torch.optim.Optimizer | None = None
    """What updates them; nothing updates targets."""
    times: float = 1.0
    """The peer's loss is so many times ours."""
    turned: Callable[[Layers], Layers] = list
    """Ours in the peer's order of outputs."""

    @property
    def layers(self) -> list[nn.Linear]:
        """The layers themselves."""
        return [m for module in self.modules for m in module.modules() if isinstance(m, nn.Linear)]

    def arranged(self, weights: Layers) -> Layers:
        """The last layer of ours may be two heads of the peer: mean and log of the standard deviation."""
        ours = self.turned(weights)
        if len(self.layers) == len(ours) + 1:
            (w, b), half = ours[-1], len(ours[-1][1]) // 2
            ours = [*ours[:-1], (w[:half], b[:half]), (w[half:], b[half:])]
        return ours

    @torch.no_grad()
    def put(self, weights: Layers) -> None:
        """Layer by layer. Where losses are so many times ours, equal steps need as many times Adam's epsilon."""
        for group in self.optim.param_groups if self.optim is not None else ():
            group["eps"] = EPSILON * self.times
        for layer, (w, b) in zip(self.layers, self.arranged(weights), strict=True):
            if layer.weight.shape != w.shape:
                raise ValueError(f"a layer is {tuple(layer.weight.shape)} where ours is {tuple(w.shape)}")
            layer.weight.copy_(w)
            layer.bias.copy_(b)

    def weights(self) -> Layers:
        """As they are."""
        return [(layer.weight.detach(), layer.bias.detach()) for layer in self.layers]

    def gradient(self) -> Layers | None:
        """From Adam's first moments."""
        if self.optim is None or self.layers[0].weight not in self.optim.state:
            return None
        factor = self.times * FIRST_MOMENT
        return [tuple(self.optim.state[p]["exp_avg"] / factor for p in (m.weight, m.bias)) for m in self.layers]


@dataclass
class Number:
    """A single parameter, such as the logarithm of a temperature."""

    parameter: Tensor
    optim: torch.optim.Optimizer | None = None

    def arranged(self, weights: Tensor) -> Tensor:
        """Of whatever shape."""
        return weights.reshape(self.parameter.shape)

    @torch.no_grad()
    def put(self, weights: Tensor) -> None:
        """As it is."""
        self.parameter.copy_(self.arranged(weights))

    def weights(self) -> Tensor:
        """As it is."""
        return self.parameter.detach()

    def gradient(self) -> Tensor | None:
        """From Adam's first moment."""
        state = self.optim.state.get(self.parameter) if self.optim is not None else None
        return state["exp_avg"] / FIRST_MOMENT if state else None


# ---------------------------------------------------------------- comparison


@dataclass
class Learner:
    """A peer's learner."""

    nets: Mapping[str, Sequence[Net]]
    """By our names, every copy of each."""
    update: Callable[[int, Transitions], Mapping[str, Any]]
    """Make update k; returns losses by our names. Those that ours lacks in this update are not compared."""
    note: str = ""
    """How the peer was patched, or what was not compared."""
    known: str = ""
    """Why it must differ; empty if it must not."""
    updates: int = 6
    learns: bool = True
    """False: only the losses are compared, not gradients and weights."""


@dataclass
class Quantity:
    """Something compared: a number, or all weights of a network."""

    what: str
    difference: float
    scale: float


def flat(weights: Weights | float) -> Tensor:
    """All numbers in a row, in double precision."""
    if isinstance(weights, list):
        return torch.cat([x.detach().reshape(-1) for layer in weights for x in layer]).double()
    return torch.as_tensor(weights).detach().reshape(-1).double()


def quantity(what: str, theirs: Weights | float, ours: Weights | float) -> Quantity:
    """Compare two of the same size.

    Raises:
        ValueError: they differ in size.
    """
    a, b = flat(theirs), flat(ours)
    if a.shape != b.shape:
        raise ValueError(f"{what}: {len(a)} numbers where ours has {len(b)}")
    return Quantity(what, (a - b).abs().max().item(), b.abs().max().item())


def pairs(learner: Learner, ours: Mapping[str, Any]) -> Iterator[tuple[str, Net, Weights]]:
    """Each network with what ours has of it, if it has it."""
    for name, nets in learner.nets.items():
        for copy, net in enumerate(nets):
            found = ours.get(name)
            if found is not None:
                yield f"{name} {copy}", net, found[copy] if isinstance(found, list) else found


def learned(learner: Learner, ours: Ours) -> list[Quantity]:
    """Losses of all updates, gradients of the first, weights after the last.

    Raises:
        KeyError: it has networks or losses that ours never had, or lacks a network of ours.
    """
    networks = {name for name, weights in ours["first"].items() if isinstance(weights, list)}
    unmatched = (set(learner.nets) - set(ours["first"])) | (networks - set(learner.nets))
    if unmatched:
        raise KeyError(f"only one side has {', '.join(sorted(unmatched))}")
    for _, net, weights in pairs(learner, ours["first"]):
        net.put(weights)
    found, said = [], set()
    for k in range(learner.updates):
        losses, mine = learner.update(k, ours["batches"][k]), ours["metrics"][k]
        said |= set(losses)
        found += [quantity(f"{name} {k}", value, mine[name]) for name, value in losses.items() if name in mine]
        if k == 0 and learner.learns:
            gradients = [(what, net, net.gradient(), weights) for what, net, weights in pairs(learner, ours["grad"])]
            found += [quantity(f"grad {what}", g, net.arranged(w)) for what, net, g, w in gradients if g is not None]
    never = said - {quantity.what.rpartition(" ")[0] for quantity in found}
    if never:
        raise KeyError(f"ours never has {', '.join(sorted(never))}")
    if learner.learns:
        last = ours["nets"][learner.updates - 1]
        found += [quantity(what, net.weights(), net.arranged(weights)) for what, net, weights in pairs(learner, last)]
    return found


Stream = Mapping[str, Any]
"""reward, value, nextv, done, term, log_pi, log_mu, all `[T]`; and what ours estimates, by name."""
Estimator = Callable[[Stream, float, float], Mapping[str, Any]]
"""From a stream, the discount and lambda: estimates by our names."""


def estimated(estimator: Estimator, ours: Ours) -> list[Quantity]:
    """Each estimate over all streams; in double precision, also what the peer makes itself."""
    both: dict[str, list[tuple[Tensor, Tensor]]] = {}
    torch.set_default_dtype(torch.float64)
    try:
        for stream in ours["streams"]:
            for name, value in estimator(stream, ours["discount"], ours["lam"]).items():
                both.setdefault(name, []).append((flat(value), flat(stream["ours"][name])))
    finally:
        torch.set_default_dtype(torch.float32)
    return [quantity(name, *(torch.cat(side) for side in zip(*rows, strict=True))) for name, rows in both.items()]


def answer(name: str, build: Callable[[Ours], Learner] | None, estimator: Estimator | None, ours: Ours) -> dict:
    """What this peer says of one algorithm; of a failure, why."""
    note = known = ""
    try:
        if build is not None:
            learner = build(ours)
            note, known, found = learner.note, learner.known, learned(learner, ours)
        else:
            found = estimated(estimator, ours)
    except Exception as error:
        traceback.print_exc()
        return {"algorithm": name, "failed": f"{type(error).__name__}: {error}"}
    return {"algorithm": name, "note": note, "known": known, "quantities": [vars(q) for q in found]}


def main(
    learners: Mapping[str, Callable[[Ours], Learner]],
    estimators: Mapping[str, Estimator],
    packages: Sequence[str],
) -> None:
    """The script of a peer: `FOLDER ALGORITHM...`; its last line is JSON, of the algorithms that the peer has."""
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    answers = [
        answer(name, learners.get(name), estimators.get(name), torch.load(Path(folder) / f"{name}.pt"))
        for name in names
        if name in learners or name in estimators
    ]
    print(json.dumps({"versions": {name: version(name) for name in ("torch", *packages)}, "answers": answers}))
