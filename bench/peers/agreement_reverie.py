"""reverie's side of `agreement.py`: its learners make a few updates, its estimators run over streams of episodes.

    python agreement_reverie.py FOLDER ALGORITHM...

First weights, batches, losses, gradients and weights go to FOLDER/ALGORITHM.pt, for the scripts of the peers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from side_by_side import FIRST_MOMENT, SEED, Layers
from torch import Tensor, nn

from reverie.algos.cql import Best, Constant, Expected, Lagrange, Mode, Soft
from reverie.algos.crr import Binary
from reverie.algos.fqe import CHOSEN
from reverie.algos.table import algorithm_config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.network import NetworkConfig
from reverie.nn.relu_mlp import ReluMLP
from reverie.objectives import returns

OBS, ACTIONS, CHOICES, ROWS, UPDATES = 5, 3, 4, 48, 6
UNITS, DISCOUNT, LAMBDA, RATE, QUANTILES = (32, 32), 0.97, 0.81, 1e-3, 11
STREAMS, STEPS = 40, 14

ONE, BOTH = {"lr": RATE}, {"actor_lr": RATE, "critic_lr": RATE}
SOFT, HARD = {"tau": 0.1}, {"target_update_interval": 2}
PLAIN = {"normalize_obs": None}
UNBOUNDED = {**PLAIN, "bound_values": False}
SCALE = 1.7
"""First weights are so many times the usual ones: then Huber's bound, clips and maxima matter."""
CALM = 0.7
"""As many times where tanh must not saturate: there the peers' logarithms lose their digits."""


@dataclass(frozen=True)
class Task:
    """What our side runs."""

    algorithm: str
    settings: Mapping[str, Any]
    discrete: bool = False
    weighted: bool = False
    """Rows have weights, as a prioritized replay gives them."""
    actor: float = SCALE
    """First weights of the actor, times the usual ones."""


def cql(**settings: Any) -> Task:
    """With the temperature held, as the entropy is not what is compared."""
    usual = {"temperature_lr": 0, "num_samples": 4, "conservative_weight": Constant(5.0), "backup": Mode()}
    return Task("cql", {**BOTH, **SOFT, **PLAIN, **usual, **settings}, actor=CALM)


def dqn(**settings: Any) -> Task:
    """With targets that are copied every second update."""
    return Task("dqn", {**ONE, **HARD, **settings}, discrete=True)


def quantiles(algorithm: str, **settings: Any) -> Task:
    """The same with quantiles."""
    return Task(algorithm, {**ONE, **HARD, "num_quantiles": QUANTILES, **settings}, discrete=True)


C51 = Task("c51", {**ONE, **HARD, "num_atoms": QUANTILES, "double": True}, discrete=True, weighted=True)
CRR = {**BOTH, **HARD, **UNBOUNDED, "tau": 1.0}
TASKS = {
    "ddpg": Task("ddpg", BOTH | SOFT),
    "td3": Task("td3", BOTH | SOFT),
    "sac": Task("sac", BOTH | SOFT | {"temperature_lr": RATE}, actor=CALM),
    "discrete_sac": Task("discrete_sac", BOTH | SOFT | {"temperature_lr": RATE}, discrete=True),
    "dqn": dqn(),
    "double_dqn": dqn(double=True),
    "dueling_dqn": dqn(dueling=True),
    "prioritized_dqn": Task("dqn", {**ONE, **HARD, "kappa": float("inf")}, discrete=True, weighted=True),
    "qr_dqn": quantiles("qr_dqn"),
    "double_qr_dqn": quantiles("qr_dqn", double=True),
    "double_c51": C51,
    "rainbow": replace(C51, settings={**C51.settings, "dueling": True, "noisy_sigma": 0.5}),
    "double_iqn": quantiles("iqn", double=True, num_target_quantiles=QUANTILES, num_policy_quantiles=QUANTILES),
    "bc": Task("bc", ONE | PLAIN),
    "stochastic_bc": Task("bc", ONE | PLAIN | {"policy_kind": "stochastic"}),
    "discrete_bc": Task("bc", ONE | PLAIN, discrete=True),
    "td3_bc": Task("td3_bc", BOTH | SOFT | PLAIN),
    "bcq": Task("bcq", ONE | SOFT | PLAIN | {"num_samples": 4, "vae": NetworkConfig(units=UNITS)}),
    "crr": Task("crr", CRR | {"num_samples": 4}),
    "crr_binary_max": Task("crr", CRR | {"num_samples": 4, "filter": Binary(), "baseline": "max"}),
    "iql": Task("iql", BOTH | SOFT | PLAIN | {"value_lr": RATE, "expectile": 0.8, "beta": 3.0}),
    "cql": cql(num_samples=1, backup=Expected()),
    "cql_mode": cql(),
    "cql_soft": cql(backup=Soft()),
    "cql_best": cql(backup=Best(4)),
    "cql_lagrange": cql(conservative_weight=Lagrange(2.0, RATE, 5.0)),
    "cal_ql": cql(value_floor="monte_carlo"),
    "discrete_bcq": Task("discrete_bcq", {**ONE, **HARD, **UNBOUNDED, "tau": 1.0}, discrete=True),
    "discrete_cql": quantiles("discrete_cql", **PLAIN, double=True, conservative_weight=1.0),
    "discrete_cql_huber": quantiles("discrete_cql", **PLAIN, num_quantiles=1, kappa=1.0, conservative_weight=1.0),
    "discrete_crr": Task("discrete_crr", CRR | {"conservative_weight": 10.0}, discrete=True),
    "fqe": Task("reverie.algos.fqe:FQEConfig", {**ONE, **HARD, **PLAIN, "tau": 1.0}),
}
"""Every learner, by what `agreement.py` calls it."""


# ---------------------------------------------------------------- learners


def transitions(task: Task, seed: int) -> dict[str, Tensor]:
    """A fifth of them terminal, a seventh cut off by a time limit; some actions at the ends of their range."""
    g = torch.Generator().manual_seed(seed)
    row = torch.arange(ROWS)
    ends = row % 5 == 0
    action = torch.randint(CHOICES, (ROWS,), generator=g) if task.discrete else _uniform(g, ROWS, ACTIONS)
    if not task.discrete:
        action[::11] = action[::11].sign()
    found = {
        "obs": torch.randn(ROWS, OBS, generator=g),
        "act": action,
        "rew": 2 * torch.randn(ROWS, generator=g),
        "next_obs": torch.randn(ROWS, OBS, generator=g),
        "term": ends,
        "trunc": (row % 7 == 3) & ~ends,
        "weight": torch.rand(ROWS, generator=g) if task.weighted else torch.ones(ROWS),
        "chosen": _uniform(g, ROWS, ACTIONS),
    }
    known = ends | (row % 2 == 0)
    return found | {"rtg": torch.where(known, 5 * torch.randn(ROWS, generator=g), torch.tensor(-float("inf")))}


def _uniform(g: torch.Generator, *shape: int) -> Tensor:
    return torch.rand(*shape, generator=g) * 2 - 1


def batch_of(t: Mapping[str, Tensor], discrete: bool) -> Batch:
    """Windows of two rows; the action of the first leads to the second."""
    act, no = torch.eye(CHOICES)[t["act"]] if discrete else t["act"], torch.zeros(ROWS, dtype=torch.bool)
    chosen = t["chosen"][:, None, None].expand(ROWS, 2, 1, ACTIONS)
    return Batch(
        obs={"observation": torch.stack([t["obs"], t["next_obs"]], 1)},
        action=torch.stack([act, torch.zeros_like(act)], 1),
        reward=torch.stack([torch.zeros(ROWS), t["rew"]], 1),
        is_first=torch.stack([no, no], 1),
        is_last=torch.stack([no, t["term"] | t["trunc"]], 1),
        is_terminal=torch.stack([no, t["term"]], 1),
        weight=t["weight"],
        index=torch.arange(ROWS),
        extras={"return": torch.stack([t["rtg"], t["rtg"]], 1), CHOSEN: chosen},
    )


def built(task: Task) -> Any:
    """The learner, with larger weights, and targets that differ from their networks."""
    kind = algorithm_config(task.algorithm)
    discount = {"discount": DISCOUNT} if "discount" in {f.name for f in fields(kind)} else {}
    spaces = ActionPart(kind="categorical", classes=(CHOICES,)), ActionPart(kind="continuous", size=ACTIONS)
    made = kind(batch_size=ROWS, networks=NetworkConfig(units=UNITS), **{**discount, **task.settings}).build(
        {"observation": ObsPart(kind="vector", shape=(OBS,), dtype="float32")},
        ActionSpec(parts={"action": spaces[0] if task.discrete else spaces[1]}),
        seed=3,
    )
    g = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for name, p in made.objective.named_parameters():
            if name.endswith("theta"):
                p.mul_(1.5 if name.startswith("target") else task.actor if name.startswith("actor") else SCALE)
            elif name == "actor.log_std":
                p.add_(0.3 * torch.randn(p.shape, generator=g))
    return made


def parameters(objective: nn.Module, of: Mapping[int, Tensor] | None = None) -> dict[str, Any]:
    """All parameters by name, every network as layers of every copy; or what ``of`` has for them, by id."""
    out: dict[str, Any] = {}
    for name, module in objective.named_modules():
        if isinstance(module, ReluMLP) and (of is None or id(module.theta) in of):
            out[name] = copies(module, module.theta.detach() if of is None else of[id(module.theta)])
    for name, p in objective.named_parameters():
        if not name.endswith("theta") and (of is None or id(p) in of):
            out[name] = (p.detach() if of is None else of[id(p)]).clone()
    return out


def copies(network: ReluMLP, theta: Tensor) -> list[Layers]:
    """The layers of every copy, out of the one tensor that holds all."""
    layers = [(w, b) for w, b in network.layout.layers(theta)]
    return [[(w[k].T.clone(), b[k, 0].clone()) for w, b in layers] for k in range(len(theta))]


def learn(task: Task) -> dict[str, Any]:
    """Some updates, and everything that the peers must meet."""
    learner = built(task)
    out: dict[str, Any] = {"batches": [], "metrics": [], "nets": [], "first": parameters(learner.objective)}
    for k in range(UPDATES):
        rows = transitions(task, 100 + k)
        torch.manual_seed(SEED + k)
        update = learner.update(batch_of(rows, task.discrete))
        priority = {} if update.priority is None else {"priority": update.priority.clone()}
        out["batches"].append(rows)
        out["metrics"].append({name: float(value) for name, value in update.metrics.items()} | priority)
        out["nets"].append(parameters(learner.objective))
        if k == 0:
            moments = {id(p): m / FIRST_MOMENT for optim in learner.optims.values() for p, m in _moments(optim)}
            out["grad"] = parameters(learner.objective, moments)
    size = CHOICES if task.discrete else ACTIONS
    facts = {"obs": OBS, "actions": size, "rows": ROWS, "quantiles": QUANTILES}
    return out | facts | {"units": list(UNITS), "discount": DISCOUNT, "lr": RATE}


def _moments(optim: Any) -> Iterator[tuple[Tensor, Tensor]]:
    return zip(optim.params, optim.mean, strict=True)


# ---------------------------------------------------------------- estimators


def estimate(name: str) -> dict[str, Any]:
    """Streams of episodes that end in either way, and what we estimate of each step."""
    g = torch.Generator().manual_seed(0)
    streams = [stream(g, number) for number in range(STREAMS)]
    return {"streams": [s | {"ours": ESTIMATES[name](s)} for s in streams], "discount": DISCOUNT, "lam": LAMBDA}


def stream(g: torch.Generator, number: int) -> dict[str, Tensor]:
    """A quarter of the steps end an episode, half of these by a terminal state. The first streams are extremes."""
    done = torch.rand(STEPS, generator=g) < 0.25
    term = done & (torch.rand(STEPS, generator=g) < 0.5)
    if number < 3:
        done[:], term[:] = number > 0, number > 1  # no end, only time limits, only terminal states
    names = ("reward", "value", "nextv", "log_pi", "log_mu")
    found = {name: torch.randn(STEPS, generator=g, dtype=torch.float64) for name in names}
    within = ~done[:-1]
    found["nextv"][:-1][within] = found["value"][1:][within]
    return found | {"done": done, "term": term}


def rows_of(s: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor], list[int]]:
    """The stream as our rows: those of all estimators, those of policies, and where its steps are."""
    rows, at, came = [], [], 0.0
    for t in range(STEPS):
        at.append(len(rows))
        rows.append((came, False, False, s["value"][t], s["log_pi"][t], s["log_mu"][t]))
        came = s["reward"][t]
        if s["done"][t] or t == STEPS - 1:
            unused = float("nan") if s["done"][t] else 0.0
            rows.append((came, bool(s["term"][t]), bool(s["done"][t]), s["nextv"][t], unused, unused))
            came = 0.0
    reward, terminal, last, value, log_pi, log_mu = torch.tensor(rows, dtype=torch.float64).T[:, None]
    known = {"reward": reward, "terminal": terminal.bool(), "last": last.bool(), "value": value, "discount": DISCOUNT}
    return known, {"log_pi": log_pi, "log_mu": log_mu}, at


def gae(s: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Advantages and targets."""
    rows, _, at = rows_of(s)
    found = returns.gae(**rows, lam=LAMBDA)
    return {"advantage": found.advantage[0, at], "target": found.target[0, at]}


def td_lambda(s: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With both extremes."""
    rows, _, at = rows_of(s)
    found = {"0": returns.td0(**rows), "1": returns.td1(**rows), "lambda": returns.td_lambda(**rows, lam=LAMBDA)}
    return {name: value[0, at] for name, value in found.items()}


def vtrace(s: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """With the usual bounds, and with wider and narrower ones."""
    rows, policies, at = rows_of(s)
    found = {}
    for name, bounds in {"": {}, " of other bounds": {"rho_max": 1.3, "c_max": 0.9}}.items():
        both = returns.vtrace(**rows, **policies, **bounds)
        found |= {f"advantage{name}": both.advantage[0, at], f"target{name}": both.target[0, at]}
    return found


def n_step(s: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Of several lengths."""
    rows, _, at = rows_of(s)
    return {str(n): returns.n_step(**rows, n=n)[0, at] for n in (1, 2, 3, 5)}


ESTIMATES = {"gae": gae, "td_lambda": td_lambda, "vtrace": vtrace, "n_step": n_step}
"""Every estimator, by what `agreement.py` calls it."""


def main() -> None:
    """Write one file an algorithm."""
    folder, *names = sys.argv[1:]
    torch.set_num_threads(1)
    for name in names:
        torch.save(estimate(name) if name in ESTIMATES else learn(TASKS[name]), Path(folder) / f"{name}.pt")


if __name__ == "__main__":
    main()
