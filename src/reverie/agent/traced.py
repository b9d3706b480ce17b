"""A policy as a function of tensors, ``(observation, is_first, state, noise) -> (action, state)``, and as a graph."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import TreeSpec, tree_flatten, tree_flatten_with_path, tree_leaves, tree_unflatten

from reverie.core.protocols import Policy
from reverie.core.spaces import TINY, ActionCodec, classes_of, column, follow, leaves_of
from reverie.core.specs import MASK, ObsPart
from reverie.core.types import Mode, Step, Told, Values
from reverie.nn.functional import ILLEGAL
from reverie.nn.preprocess import Preprocessor

if TYPE_CHECKING:
    from reverie.agent.agent import Agent
    from reverie.algos.base import Algorithm

CLOSE = 1e-5
"""Largest difference from the agent: of the state, and of actions scaled to [-1, 1], in float32."""

# ---------------------------------------------------------------- what is random

UNIFORM, NORMAL, INTEGERS, EXPONENTIAL = "uniform in [0, 1)", "standard normal", "integers in [0, high)", "exponential"
KINDS: dict[Any, str] = {
    torch.rand: UNIFORM, torch.rand_like: UNIFORM, torch.randn: NORMAL, torch.randn_like: NORMAL,
    torch.randint: INTEGERS, Tensor.exponential_: EXPONENTIAL,
}  # fmt: skip
"""Functions that draw random numbers."""


class Noise(NamedTuple):
    """Random numbers that a policy drew."""

    kind: str
    values: Tensor
    high: int | None


class Draws(TorchFunctionMode):
    """Remembers the random numbers that are drawn within; or, if they are ``given``, draws those."""

    def __init__(self, given: Sequence[Tensor] | None = None) -> None:
        super().__init__()
        self.drawn: list[Noise] = []
        self._given = None if given is None else iter(given)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self._given is not None and func is torch.special.ndtri:
            return normal_quantile(*args)  # ONNX has none
        if self._given is not None and func in KINDS:
            return next(self._given)
        values = func(*args, **(kwargs or {}))
        if func in KINDS:
            self.drawn.append(Noise(KINDS[func], values.clone(), args[0] if func is torch.randint else None))
        return values


MIDDLE = (
    (3.3871328727963666080, 1.0), (1.3314166789178437745e2, 4.2313330701600911252e1),
    (1.9715909503065514427e3, 6.8718700749205790830e2), (1.3731693765509461125e4, 5.3941960214247511077e3),
    (4.5921953931549871457e4, 2.1213794301586595867e4), (6.7265770927008700853e4, 3.9307895800092710610e4),
    (3.3430575583588128105e4, 2.8729085735721942674e4), (2.5090809287301226727e3, 5.2264952788528545610e3),
)  # fmt: skip
TAIL = (
    (1.42343711074968357734, 1.0), (4.63033784615654529590, 2.05319162663775882187),
    (5.76949722146069140550, 1.67638483018380384940), (3.64784832476320460504, 6.89767334985100004550e-1),
    (1.27045825245236838258, 1.48103976427480074590e-1), (2.41780725177450611770e-1, 1.51986665636164571966e-2),
    (2.27238449892691845833e-2, 5.47593808499534494600e-4), (7.74545014278341407640e-4, 1.05075007164441684324e-9),
)  # fmt: skip
"""Factors of the powers of two polynomials each, of which one is divided by the other: Wichura 1988."""


def normal_quantile(p: Tensor) -> Tensor:
    """Return the inverse of the standard normal's distribution function: Wichura 1988, algorithm AS 241, PPND16."""
    # The third branch of the algorithm, r > 5, is for p below 1e-10, which no caller has.
    x = p.double()
    q, r = x - 0.5, (-torch.minimum(x, 1 - x).log()).sqrt() - 1.6
    found = torch.where(q.abs() <= 0.425, q * _ratio(MIDDLE, 0.180625 - q * q), q.sign() * _ratio(TAIL, r))
    return found.to(p.dtype)


def _ratio(factors: Sequence[tuple[float, float]], x: Tensor) -> Tensor:
    """Return one polynomial over another, by Horner's rule."""
    over, under = (torch.full_like(x, last) for last in factors[-1])
    for a, b in factors[-2::-1]:
        over, under = over * x + a, under * x + b
    return over / under


# ---------------------------------------------------------------- the policy as a function of tensors


@dataclass(frozen=True)
class Port:
    """An input, or an output of the same shape."""

    name: str
    role: str
    example: Tensor
    """A value of it; in the function's place where it turns out not to be read."""
    about: dict[str, Any]

    def described(self) -> dict[str, Any]:
        """Return what policy.json tells of it."""
        shape, dtype = list(self.example.shape), str(self.example.dtype).removeprefix("torch.")
        return {"name": self.name, "role": self.role, "shape": shape, "dtype": dtype, **self.about}


class PolicyFunction(nn.Module):
    """A policy as a function of tensors alone: those of ``read``, in this order, to those of ``outputs``."""

    def __init__(self, agent: Agent, mode: Mode, rows: int | None) -> None:
        """``agent`` is on the CPU, in float32; ``rows`` is N, the environments that act together, None: any number."""
        super().__init__()
        self.any_rows: bool = rows is None
        rows = 2 if rows is None else rows  # a graph of one row would be for one alone
        self.rows: int = rows
        self.space: spaces.Space[Any] = agent.action_space
        self.learner: Algorithm = agent.algo.requires_grad_(False)
        self.mode = mode
        self.policy: Policy[Any] = agent.algo.policy
        spec, state = agent.observer.single, agent.initial_state(rows)
        self.inner: str = "state"
        if (depth := agent.config.env.frame_stack) > 1:
            self.policy = Preprocessor(spec, frames=depth, frame_keys=".*").policy(self.policy, torch.device("cpu"))
            state, self.inner = self.policy.initial(rows)._replace(state=state), "state/state"
        self.blank: list[Any]
        self.tree: TreeSpec
        self.blank, self.tree = tree_flatten(state)
        self.carried: list[Port] = [
            Port(name, "state", x, {"initial": _initial(x)}) for name, x in _leaves(state, "state")
        ]
        self.inputs: list[Port] = [_observed(agent, key, part, rows) for key, part in spec.items()]
        self.inputs.append(Port("is_first", "is_first", torch.ones(rows, dtype=torch.bool), {}))
        self.inputs.append(Port("reward", "reward", torch.zeros(rows), {}))
        self.inputs += self.carried
        with FakeTensorMode(allow_non_fake_inputs=True) as fake, Draws() as draws:
            found, _ = self._act({port.name: fake.from_tensor(port.example) for port in self.inputs})
        self.noise: list[Port] = [_noise(number, one) for number, one in enumerate(draws.drawn)]
        self.inputs += self.noise
        self.leaves: list[tuple[tuple[Any, ...], spaces.Space[Any]]] = list(leaves_of(agent.action_space))
        self.cuts: dict[str, slice] = agent.action_spec.slices()
        blank = torch.zeros(found.shape)
        self.actions: list[Port] = [
            Port(column("action", path), "action", self._decoded(blank, path, leaf), _range(leaf))
            for path, leaf in self.leaves
        ]
        self.kept: list[str] = [port.name for port in self.carried]
        self.used: list[str] = [port.name for port in self.inputs]

    @property
    def read(self) -> list[Port]:
        """The inputs that are asked for."""
        return [port for port in self.inputs if port.name in self.used]

    @property
    def outputs(self) -> list[Port]:
        """Actions, and the state after them."""
        kept = [port for port in self.carried if port.name in self.kept]
        return [*self.actions, *(Port(f"next_{p.name}", "state", p.example, {"input": p.name}) for p in kept)]

    def known(self, state: Any) -> dict[str, Tensor]:
        """Return the inputs that hold a ``state`` of the agent's policy."""
        return {name: x for name, x in _leaves(state, self.inner) if name in self.kept}

    def noise_inputs(self, drawn: Sequence[Noise]) -> dict[str, Tensor]:
        """Return the noise that a policy has drawn as inputs; it may not have drawn all, as it can decide without."""
        left, found = list(drawn), {}
        for port in self.noise:
            about = port.about["distribution"], port.example.shape
            if left and (left[0].kind, left[0].values.shape) == about:
                found[port.name] = left.pop(0).values
        return found

    def off(self, found: Sequence[Tensor], taken: Any, told: Told | None = None) -> np.ndarray:
        """Return by how much actions ``found`` differ at most from those ``taken``, scaled to [-1, 1], ``[N]``.

        Classes that are as good as the best by what is ``told``, the ``taken`` ones among them, do not differ.
        """
        said = {} if told is None else said_of_actions(told.choice, self.space)
        out = np.zeros(self.rows)
        for (path, leaf), one in zip(self.leaves, found, strict=False):
            half = bounds(leaf)[2] if isinstance(leaf, spaces.Box) and leaf.dtype.kind == "f" else 1.0
            gap = np.abs(one.double().numpy() - follow(taken, path)) / np.maximum(half, TINY)  # [N, *shape]
            probs, values = (said.get(column(name, path)) for name in ("probabilities", "values"))
            score = values if probs is None else probs.log()
            if score is not None:
                index = (one - torch.from_numpy(np.asarray(classes_of(leaf)[1]))).unsqueeze(-1)
                best = score.amax(-1)
                worse = best - score.gather(-1, index).squeeze(-1)
                gap = np.where(worse <= CLOSE * best.abs().clamp(min=1), 0.0, gap)
            out = np.maximum(out, gap.reshape(self.rows, -1).max(-1, initial=0.0))
        return out

    def _act(self, values: dict[str, Tensor]) -> tuple[Tensor, Any]:
        no = torch.zeros(values["is_first"].shape, dtype=torch.bool)
        obs = {name.removeprefix("obs/"): x for name, x in values.items() if name.startswith("obs/")}
        step = Step(obs=obs, reward=values["reward"], is_first=values["is_first"], is_last=no, is_terminal=no)
        carried = iter(self.carried)
        leaves = [None if x is None else values[next(carried).name] for x in self.blank]
        state = tree_unflatten(leaves, self.tree)
        found: tuple[Tensor, Any] = self.policy.act(step, state, self.mode)
        return found

    def _decoded(self, flat: Tensor, path: tuple[Any, ...], leaf: Any) -> Tensor:
        """Return actions as the environment takes them, ``[N, *shape]``, like ``core/spaces.py: ActionCodec``."""
        part = flat[:, self.cuts["/".join(map(str, path)) or "action"]]
        if not isinstance(leaf, spaces.Box):
            counts, start = classes_of(leaf)
            choices = torch.split(part, counts.reshape(-1).tolist(), -1)
            chosen = torch.stack([choice.argmax(-1) for choice in choices], -1).reshape(flat.shape[0], *counts.shape)
            return chosen + torch.from_numpy(np.asarray(start))
        low, high, half, middle = (torch.from_numpy(np.asarray(x, np.float32)) for x in bounds(leaf))
        scaled = part.clamp(-1, 1).reshape(flat.shape[0], *leaf.shape) * half + middle
        whole = leaf.dtype.kind != "f"
        inside = torch.minimum(torch.maximum(scaled.round() if whole else scaled, low), high)
        return inside.long() if whole else inside

    def forward(self, *given: Tensor) -> tuple[Tensor, ...]:
        """Return the tensors of :attr:`outputs` for those of :attr:`read`."""
        values = {port.name: port.example for port in self.inputs}
        if self.any_rows:
            values = {name: x[:1].expand(given[0].shape[0], *x.shape[1:]) for name, x in values.items() if x.ndim}
        values |= dict(zip(self.used, given, strict=True))
        with Draws([values[port.name] for port in self.noise]):
            action, state = self._act(values)
        leaves = (x for x in tree_leaves(state) if x is not None)
        after = [x for port, x in zip(self.carried, leaves, strict=True) if port.name in self.kept]
        return tuple(self._decoded(action, *leaf) for leaf in self.leaves) + tuple(after)

    def graph(self) -> torch.export.ExportedProgram:
        """Return the function as a graph, after reducing it to the inputs, the state and the weights that matter."""
        reduced = True
        while reduced:
            given = tuple(port.example.clone() for port in self.read)  # the examples are constants of the graph
            axes = (tuple({0: torch.export.Dim("batch")} for _ in given),) if self.any_rows else None
            program = torch.export.export(self, given, dynamic_shapes=axes, strict=False)
            reduced = self._reduce(program)
        if self.any_rows:
            self.rows = 1
            every = self.inputs, self.noise, self.actions
            self.inputs, self.noise, self.actions = ([_one_row(port) for port in ports] for ports in every)
        return program

    def _reduce(self, program: torch.export.ExportedProgram) -> bool:
        """Keep what actions depend on, now or later; return whether something else was there."""
        nodes = {node.name: node for node in program.graph.nodes}
        given = dict(zip(program.graph_signature.user_inputs, self.used, strict=True))
        ends = [nodes.get(str(name)) for name in program.graph_signature.user_outputs]
        after = dict(zip(self.kept, ends[len(self.leaves) :], strict=True))
        seen: set[Any] = set()
        waiting = ends[: len(self.leaves)]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in seen and node.target is not torch.ops.aten.sym_size.int:
                seen.add(node)
                waiting += [*node.all_input_nodes, after.get(given.get(node.name, ""))]
        live = {name for node, name in given.items() if nodes[node] in seen}
        less = live < set(self.used)
        self.kept = [name for name in self.kept if name in live]
        self.used = [name for name in self.used if name in live]
        held = program.graph_signature.inputs_to_parameters | program.graph_signature.inputs_to_buffers
        for node, place in held.items():
            if not nodes[node].users:
                module, _, name = place.rpartition(".")
                owner = self.get_submodule(module)
                unread: Any = getattr(owner, name)
                delattr(owner, name)
                setattr(owner, name, unread.detach())  # as what is no weight: it may be looked at, and not read
                less = True
        return less


def _observed(agent: Agent, key: str, part: ObsPart, rows: int) -> Port:
    like = torch.ones if key == MASK else torch.zeros
    example = like(rows, *part.shape, dtype=getattr(torch, part.dtype))
    about: dict[str, Any] = {"kind": part.kind}
    if part.kind == "image":
        about |= {"low": part.low, "high": part.high, "axes": "batch, height, width, channels"}
    elif part.kind == "categorical":
        about |= {"classes": list(part.classes)}
    elif part.declared:
        about |= {"range": part.declared}
    return Port(f"obs/{key}", "mask" if key == MASK else "observation", example, about | agent.observer.origin(key))


def _noise(number: int, drawn: Noise) -> Port:
    about = {"distribution": drawn.kind} | ({} if drawn.high is None else {"high": drawn.high})
    return Port(f"noise/{number}", "noise", torch.zeros(drawn.values.shape, dtype=drawn.values.dtype), about)


def _one_row(port: Port) -> Port:
    return replace(port, example=port.example[:1] if port.example.ndim else port.example)


def _leaves(state: Any, root: str) -> list[tuple[str, Tensor]]:
    """Return the tensors of a state by name."""
    found = [(path, x) for path, x in tree_flatten_with_path(state)[0] if x is not None]
    return [("/".join([root, *(str(getattr(at, "name", None) or getattr(at, "key", None) or getattr(at, "idx", 0))
                               for at in path)]), x) for path, x in found]  # fmt: skip


def _initial(x: Tensor) -> Any:
    """Return a state before the first call: one number if all are the same, else nested lists."""
    values = x.float() if x.dtype == torch.bfloat16 else x
    return values.flatten()[0].item() if (values == values.flatten()[0]).all() else values.tolist()


def _range(leaf: Any) -> dict[str, Any]:
    if isinstance(leaf, spaces.Box):
        return {"space": str(leaf), "low": leaf.low.tolist(), "high": leaf.high.tolist()}
    counts, start = classes_of(leaf)
    return {"space": str(leaf), "low": start.tolist(), "high": (start + counts - 1).tolist()}


def said_of_actions(choice: Any, space: spaces.Space[Any]) -> dict[str, Tensor]:
    """Return what ``choice``, of ``core/types.py: Told``, says of actions of ``space``: see ``Agent.distribution``.

    ``[N, ...]`` each.
    """
    name, blank = "probabilities", 0.0
    if isinstance(choice, Values):
        name, blank = "values", -math.inf
        flat = choice.values.masked_fill(choice.values <= ILLEGAL, -math.inf)
        std = torch.zeros_like(flat)
    elif isinstance(choice, Tensor):
        flat, std = choice, torch.zeros_like(choice)
    else:
        flat, std = choice.summary()
    flat, std = (x.float().reshape(-1, x.shape[-1]) for x in (flat, std))  # [N, A]
    cuts, found = ActionCodec(space).spec.slices(), {}
    for path, leaf in leaves_of(space):
        cut = cuts["/".join(map(str, path)) or "action"]
        if isinstance(leaf, spaces.Box):
            half, middle = (torch.from_numpy(x).to(flat).reshape(-1) for x in bounds(leaf)[2:])
            found[column("mean", path)] = (flat[:, cut] * half + middle).reshape(-1, *leaf.shape)
            found[column("std", path)] = (std[:, cut] * half).reshape(-1, *leaf.shape)
            continue
        counts = classes_of(leaf)[0]
        parts = torch.split(flat[:, cut], counts.reshape(-1).tolist(), -1)
        most = int(counts.max())
        padded = [F.pad(part, (0, most - part.shape[-1]), value=blank) for part in parts]
        found[column(name, path)] = torch.stack(padded, 1).reshape(-1, *counts.shape, most)
    return found


def bounds(leaf: Any) -> list[np.ndarray]:
    """Return the lower and upper bounds of continuous actions, half of their distance, and the middle."""
    low, high = (bound.astype(np.float64) for bound in (leaf.low, leaf.high))
    return [low, high, high / 2 - low / 2, high / 2 + low / 2]
