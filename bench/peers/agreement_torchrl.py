"""TorchRL: its loss modules, put together with Adam and its targets as its sota-implementations do."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from side_by_side import (
    EPSILON,
    FIRST_MOMENT,
    Layers,
    Learner,
    Net,
    Number,
    Ours,
    Stream,
    Transitions,
    drawing,
    draws,
    main,
)
from tensordict import TensorDict
from tensordict.nn import InteractionType, TensorDictModule, TensorDictSequential
from torch import Tensor, nn
from torchrl.data import Bounded, OneHot
from torchrl.modules import (
    MLP,
    IndependentNormal,
    OneHotCategorical,
    ProbabilisticActor,
    QValueActor,
    TanhModule,
    TanhNormal,
    ValueOperator,
)
from torchrl.objectives import (
    BCLoss,
    CQLLoss,
    DiscreteCQLLoss,
    DiscreteSACLoss,
    DQNLoss,
    IQLLoss,
    SACLoss,
    SoftUpdate,
    TD3BCLoss,
    TD3Loss,
)
from torchrl.objectives.value import functional

TAU, SAMPLES = 0.1, 4
Loss = Callable[[TensorDict], Tensor]
Draws = Sequence[tuple[str, Sequence[int]]]


@dataclass
class Stacked:
    """One copy of the networks whose parameters a loss holds; those of several copies are stacked."""

    params: Any
    copy: int
    optim: torch.optim.Optimizer | None = None
    times: float = 1.0
    """The peer's loss is so many times ours."""

    @property
    def layers(self) -> list[tuple[Tensor, Tensor]]:
        """The parameters of each layer, of all copies."""
        found = {".".join(k) if isinstance(k, tuple) else k: v for k, v in self.params.items(True, True)}
        kinds = [sorted(name for name in found if name.endswith(kind)) for kind in ("weight", "bias")]
        return [(found[w], found[b]) for w, b in zip(*kinds, strict=True)]

    def arranged(self, weights: Layers) -> Layers:
        """In the same order."""
        return weights

    def _of_copy(self, x: Tensor, dims: int) -> Tensor:
        return x[self.copy] if x.dim() > dims else x

    def _both(self, of: Callable[[Tensor], Tensor]) -> Layers:
        return [(self._of_copy(of(w), 2), self._of_copy(of(b), 1)) for w, b in self.layers]

    def put(self, weights: Layers) -> None:
        """Layer by layer. Where losses are so many times ours, equal steps need as many times Adam's epsilon."""
        for group in self.optim.param_groups if self.optim is not None else ():
            group["eps"] = EPSILON * self.times
        for mine, ours in zip(self._both(lambda p: p.data), weights, strict=True):
            for x, y in zip(mine, ours, strict=True):
                x.copy_(y)

    def weights(self) -> Layers:
        """As they are."""
        return self._both(lambda p: p.detach())

    def gradient(self) -> Layers | None:
        """From Adam's first moments."""
        state = self.optim.state if self.optim is not None else {}
        if self.layers[0][0] not in state:
            return None
        return self._both(lambda p: state[p]["exp_avg"] / (FIRST_MOMENT * self.times))


class Split(nn.Module):
    """Mean and standard deviation within the bounds of ours; the latter may be free of the observation."""

    def __init__(self, low: float, high: float, squash: bool = False, free: int = 0):
        super().__init__()
        self.low, self.high, self.squash = low, high, squash
        self.free = nn.Parameter(torch.zeros(free)) if free else None

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Both."""
        mean, raw = x.chunk(2, -1) if self.free is None else (x, self.free.expand_as(x))
        return mean.tanh() if self.squash else mean, raw.clamp(self.low, self.high).exp()


class Parts:
    """Networks of our sizes."""

    def __init__(self, ours: Ours):
        self.obs, self.size, self.rows, self.units = ours["obs"], ours["actions"], ours["rows"], ours["units"]
        self.rate, self.gamma = ours["lr"], ours["discount"]
        self.spec = Bounded(-1.0, 1.0, (self.size,))

    def network(self, inputs: int, outputs: int) -> nn.Module:
        """Of two layers."""
        return MLP(in_features=inputs, out_features=outputs, num_cells=list(self.units), activation_class=nn.ReLU)

    def critic(self) -> nn.Module:
        """Of continuous actions."""
        return ValueOperator(self.network(self.obs + self.size, 1), in_keys=["observation", "action"])

    def action(self) -> nn.Module:
        """An actor without noise."""
        body = TensorDictModule(self.network(self.obs, self.size), in_keys=["observation"], out_keys=["param"])
        return TensorDictSequential(body, TanhModule(in_keys=["param"], out_keys=["action"], spec=self.spec))

    def gaussian(self, kind: Any, split: Split, **settings: Any) -> nn.Module:
        """An actor with noise."""
        body = nn.Sequential(self.network(self.obs, self.size if split.free is not None else 2 * self.size), split)
        keys = ["loc", "scale"]
        return ProbabilisticActor(
            TensorDictModule(body, in_keys=["observation"], out_keys=keys), in_keys=keys, spec=self.spec,
            distribution_class=kind, default_interaction_type=InteractionType.RANDOM, return_log_prob=True,
            distribution_kwargs=settings,
        )  # fmt: skip

    def squashed(self) -> nn.Module:
        """With exact logarithms of tanh's derivative."""
        return self.gaussian(TanhNormal, Split(-20, 2), low=-1.0, high=1.0, tanh_loc=False, safe_tanh=False)

    def values(self) -> nn.Module:
        """Of all actions."""
        return QValueActor(self.network(self.obs, self.size), spec=OneHot(self.size), in_keys=["observation"])

    def normal(self, *shape: int) -> tuple[str, Sequence[int]]:
        """A draw of ``[rows, *shape, actions]``."""
        return "n", (self.rows, *shape, self.size)

    def sample(self, t: Transitions) -> TensorDict:
        """A batch as its replay gives it."""
        act = t["act"] if t["act"].is_floating_point() else torch.eye(self.size)[t["act"]]
        rew, term, done = (x.view(-1, 1) for x in (t["rew"], t["term"], t["term"] | t["trunc"]))
        following = {"observation": t["next_obs"], "reward": rew, "done": done, "terminated": term}
        return TensorDict({"observation": t["obs"], "action": act, "next": following}, [self.rows])

    def adam(self, params: Any) -> torch.optim.Adam:
        """For the parameters that a loss holds of a network."""
        return torch.optim.Adam(list(params.values(True, True)), self.rate)


@dataclass
class Step:
    """A loss, what it is called here, what it steps, and which of the update's draws it makes."""

    name: str
    loss: Loss
    optim: torch.optim.Optimizer
    draws: Sequence[int] = ()
    every: int = 1
    times: float = 1.0


def updating(
    p: Parts, steps: Sequence[Step], wanted: Draws = (), targets: Any = None, every: int = 1
) -> Callable[[int, Transitions], Mapping[str, Tensor]]:
    """The steps one after another, each with its own of our draws, then the targets."""

    def update(k: int, t: Transitions) -> Mapping[str, Tensor]:
        sample, drawn, found = p.sample(t), draws(k, *wanted), {}
        for step in (s for s in steps if (k + 1) % s.every == 0):
            with drawing([drawn[i] for i in step.draws]):
                loss = step.loss(sample)
            step.optim.zero_grad()
            loss.backward()
            step.optim.step()
            found[step.name] = loss.detach() / step.times
        if targets is not None and (k + 1) % every == 0:
            targets.step()
        return found

    return update


NETS = {
    "actor_network": ("actor.body", "delay_actor", 1),
    "value_network": ("value.body", "", 1),
    "qvalue_network": ("critic.body", "delay_qvalue", 2),
}
"""What a loss calls its networks; what we call them, the attribute that says whether there is a target, and copies."""


def nets(loss: Any, adams: Mapping[str, torch.optim.Optimizer], times: float = 1.0) -> dict[str, list[Net]]:
    """Those that these optimizers step, and their targets; the loss of critics is so many times ours."""
    found: dict[str, list[Net]] = {}
    for its, adam in adams.items():
        name, delayed, copies = NETS[its]
        factor, params = times if copies == 2 else 1.0, getattr(loss, f"{its}_params")
        found[name] = [Stacked(params, copy, adam, factor) for copy in range(copies)]
        if getattr(loss, delayed or "none", False):
            target = getattr(loss, f"target_{its}_params")
            found[f"target_{name.replace('.', '.model.')}"] = [Stacked(target, copy) for copy in range(copies)]
    return found


def adams_of(p: Parts, loss: Any, *names: str) -> dict[str, torch.optim.Optimizer]:
    """An optimizer for each of its networks."""
    return {name: p.adam(getattr(loss, f"{name}_params")) for name in names}


def td3(ours: Ours, cloning: bool = False) -> Learner:
    """Actor and targets in every second update."""
    p = Parts(ours)
    settings = {"action_spec": p.spec, "policy_noise": 0.2, "noise_clip": 0.5, "loss_function": "l2"}
    loss = (TD3BCLoss if cloning else TD3Loss)(p.action(), p.critic(), delay_actor=True, delay_qvalue=True, **settings)
    loss.make_value_estimator(gamma=p.gamma)
    adams = adams_of(p, loss, "actor_network", "qvalue_network")
    value_loss = loss.qvalue_loss if cloning else loss.value_loss
    steps = [Step("loss/critic", lambda x: value_loss(x)[0], adams["qvalue_network"], [0]),
             Step("loss/actor", lambda x: loss.actor_loss(x)[0], adams["actor_network"], every=2)]  # fmt: skip
    update = updating(p, steps, [p.normal(1)], SoftUpdate(loss, tau=TAU), every=2)
    return Learner(nets(loss, adams), update)


def td3_bc(ours: Ours) -> Learner:
    """As it is."""
    return td3(ours, cloning=True)


def sac(ours: Ours) -> Learner:
    """Its critics' losses have no half."""
    p = Parts(ours)
    loss = SACLoss(p.squashed(), p.critic(), num_qvalue_nets=2, loss_function="l2", delay_qvalue=True, alpha_init=1.0,
                   target_entropy=-float(p.size), action_spec=p.spec)  # fmt: skip
    return _soft(p, loss, loss.qvalue_v2_loss, [p.normal(1), p.normal(1)])


def discrete_sac(ours: Ours) -> Learner:
    """Its critics' losses have no half."""
    p = Parts(ours)
    body = TensorDictModule(p.network(p.obs, p.size), in_keys=["observation"], out_keys=["logits"])
    actor = ProbabilisticActor(body, in_keys=["logits"], spec=OneHot(p.size), distribution_class=OneHotCategorical,
                               out_keys=["action"])  # fmt: skip
    values = TensorDictModule(p.network(p.obs, p.size), in_keys=["observation"], out_keys=["action_value"])
    loss = DiscreteSACLoss(actor, values, action_space="one_hot", num_actions=p.size, num_qvalue_nets=2,
                           loss_function="l2", alpha_init=1.0, target_entropy_weight=0.98,
                           delay_qvalue=True)  # fmt: skip
    return _soft(p, loss, loss.qvalue_loss, [])


def _soft(p: Parts, loss: Any, critic: Callable[[TensorDict], Any], wanted: Draws) -> Learner:
    loss.make_value_estimator(gamma=p.gamma)
    adams = adams_of(p, loss, "actor_network", "qvalue_network")
    of_alpha = torch.optim.Adam([loss.log_alpha], p.rate)
    last: dict[str, Tensor] = {}

    def acting(sample: TensorDict) -> Tensor:
        value, said = loss.actor_loss(sample)
        last["log_prob"] = said["log_prob"]
        return value.mean()

    steps = [
        Step("loss/critic", lambda x: critic(x)[0].mean(), adams["qvalue_network"], range(len(wanted))[:1], times=2.0),
        Step("loss/actor", acting, adams["actor_network"], range(len(wanted))[1:]),
        Step("", lambda _: loss.alpha_loss(last["log_prob"]).mean(), of_alpha),
    ]
    update = updating(p, steps, wanted, SoftUpdate(loss, tau=TAU))
    found = nets(loss, adams, times=2.0) | {"log_temperature": [Number(loss.log_alpha, of_alpha)]}
    named = lambda k, t: {name: value for name, value in update(k, t).items() if name}  # noqa: E731
    return Learner(found, named, "critics' losses halved; not the temperature's loss")


def iql(ours: Ours) -> Learner:
    """V, actor and critics one after another, as in the authors' code."""
    p = Parts(ours)
    split = Split(-5, 2, squash=True, free=p.size)
    value = ValueOperator(p.network(p.obs, 1), in_keys=["observation"])
    loss = IQLLoss(p.gaussian(IndependentNormal, split), p.critic(), value, num_qvalue_nets=2, loss_function="l2",
                   temperature=3.0, expectile=0.8)  # fmt: skip
    loss.make_value_estimator(gamma=p.gamma)
    adams = adams_of(p, loss, "actor_network", "qvalue_network", "value_network")
    steps = [Step("loss/value", lambda x: loss.value_loss(x)[0], adams["value_network"]),
             Step("loss/actor", lambda x: loss.actor_loss(x)[0], adams["actor_network"]),
             Step("loss/critic", lambda x: loss.qvalue_loss(x)[0], adams["qvalue_network"])]  # fmt: skip
    free = next(v for k, v in loss.actor_network_params.items(True, True) if "free" in str(k))
    found = nets(loss, adams) | {"actor.log_std": [Number(free, adams["actor_network"])]}
    return Learner(found, updating(p, steps, [], SoftUpdate(loss, tau=TAU)))


def cql(ours: Ours) -> Learner:
    """With one action of each kind, and the temperature held."""
    p = Parts(ours)
    weights = {"alpha_init": 1.0, "target_entropy": -float(p.size), "min_q_weight": 5.0, "temperature": 1.0}
    loss = CQLLoss(p.squashed(), p.critic(), loss_function="l2", num_random=1, action_spec=p.spec, **weights)
    loss.make_value_estimator(gamma=p.gamma)
    adams = adams_of(p, loss, "actor_network", "qvalue_network")
    wanted = [("u", (p.rows, 1, 1, p.size)), p.normal(1, 1), p.normal(1, 1), p.normal(1), p.normal(1)]
    actor = Step("loss/actor", lambda x: loss.actor_loss(x)[0], adams["actor_network"], [4])
    parts: dict[str, Tensor] = {}

    def critics(sample: TensorDict) -> Tensor:
        parts["loss/critic"] = loss.q_loss(sample)[0]
        with _here(loss, sample):
            parts["loss/conservative"] = loss.cql_loss(sample)[0]
        return sum(parts.values())

    update = updating(p, [Step("", critics, adams["qvalue_network"], [3, 0, 1, 2]), actor], wanted,
                      SoftUpdate(loss, tau=TAU))  # fmt: skip
    named = lambda k, t: {"loss/actor": update(k, t)["loss/actor"]} | parts  # noqa: E731
    return Learner(nets(loss, adams), named, "values of next states' actions are taken in the states themselves")


def cql_best(ours: Ours) -> Learner:
    """The critics' error alone: its conservative term has one policy's action of each state, not several."""
    p = Parts(ours)
    loss = CQLLoss(p.squashed(), p.critic(), loss_function="l2", alpha_init=1.0, num_random=SAMPLES, max_q_backup=True,
                   action_spec=p.spec)  # fmt: skip
    loss.make_value_estimator(gamma=p.gamma)
    many = (p.rows, 1, SAMPLES, p.size)

    def update(k: int, t: Transitions) -> dict[str, Tensor]:
        *_, best = draws(k, ("u", many), *[("n", many)] * 3)
        unused = torch.zeros(p.rows, p.size)
        with drawing([unused, best]):
            return {"loss/critic": loss.q_loss(p.sample(t))[0]}

    found = nets(loss, adams_of(p, loss, "actor_network", "qvalue_network"))
    return Learner(found, update, "the critics' error of the first update alone", updates=1, learns=False)


@contextmanager
def _here(loss: Any, sample: TensorDict) -> Iterator[None]:
    """Patch: values of the actions that the policy takes in next states are those in the states, as in the authors'."""
    before = loss._get_policy_actions

    def here(*words: Any, **named: Any) -> Any:
        found, log_prob = before(*words, **named)
        return found.set("observation", sample["observation"]), log_prob

    loss._get_policy_actions = here
    try:
        yield
    finally:
        loss._get_policy_actions = before


def dqn(ours: Ours, double: bool = False) -> Learner:
    """With targets that are copied every second update."""
    p = Parts(ours)
    loss = DQNLoss(p.values(), loss_function="smooth_l1", delay_value=True, double_dqn=double, action_space="one_hot")
    loss.make_value_estimator(gamma=p.gamma)
    adam = p.adam(loss.value_network_params)
    steps = [Step("loss/critic", lambda x: loss(x)["loss"], adam)]
    return Learner(_values(loss, adam), updating(p, steps, [], SoftUpdate(loss, tau=1.0), every=2))


def _values(loss: Any, adam: torch.optim.Optimizer | None = None) -> dict[str, list[Net]]:
    target = [Stacked(loss.target_value_network_params, 0)]
    return {"network.body": [Stacked(loss.value_network_params, 0, adam)], "target_network.model.body": target}


def double_dqn(ours: Ours) -> Learner:
    """As it is."""
    return dqn(ours, double=True)


def discrete_cql_huber(ours: Ours) -> Learner:
    """Its term beside the error; that is squared there."""
    p = Parts(ours)
    loss = DiscreteCQLLoss(p.values(), loss_function="smooth_l1", delay_value=True, action_space="one_hot")
    loss.make_value_estimator(gamma=p.gamma)
    update = lambda _, t: {"train/conservative_gap": loss(p.sample(t))["loss_cql"]}  # noqa: E731
    return Learner(_values(loss), update, "the conservative term alone", updates=1, learns=False)


def bc(ours: Ours) -> Learner:
    """With squared errors."""
    p = Parts(ours)
    return _cloning(p, BCLoss(p.action(), loss_function="l2"))


def stochastic_bc(ours: Ours) -> Learner:
    """By likelihood."""
    p = Parts(ours)
    return _cloning(p, BCLoss(p.gaussian(IndependentNormal, Split(-5, 2, squash=True))))


def _cloning(p: Parts, loss: Any) -> Learner:
    adams = adams_of(p, loss, "actor_network")
    return Learner(nets(loss, adams), updating(p, [Step("loss/actor", lambda x: loss(x)["loss_bc"],
                                                        adams["actor_network"])]))  # fmt: skip


def _columns(s: Stream) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    wanted = {"reward": "reward", "done": "done", "terminated": "term"}
    value, following = (s[name].view(1, -1, 1) for name in ("value", "nextv"))
    return {name: s[its].view(1, -1, 1) for name, its in wanted.items()}, value, following


def gae(s: Stream, discount: float, lam: float) -> dict[str, Tensor]:
    """Advantages and targets."""
    rows, value, following = _columns(s)
    advantage, target = functional.vec_generalized_advantage_estimate(discount, lam, value, following, **rows)
    return {"advantage": advantage, "target": target}


def td_lambda(s: Stream, discount: float, lam: float) -> dict[str, Tensor]:
    """With both extremes."""
    rows, _, following = _columns(s)
    last = {name: rows[name] for name in ("reward", "terminated")}
    return {
        "0": functional.td0_return_estimate(discount, following, **last),
        "1": functional.td1_return_estimate(discount, following, **rows),
        "lambda": functional.td_lambda_return_estimate(discount, lam, following, **rows),
    }


def vtrace(s: Stream, discount: float, lam: float) -> dict[str, Tensor]:
    """With the usual bounds, and with wider and narrower ones."""
    rows, value, following = _columns(s)
    policies = [s[name].view(1, -1, 1) for name in ("log_pi", "log_mu")]
    found = {}
    for name, (rho, c) in {"": (1.0, 1.0), " of other bounds": (1.3, 0.9)}.items():
        advantage, target = functional.vtrace_advantage_estimate(
            discount, *policies, value, following, **rows, rho_thresh=torch.tensor(rho), c_thresh=torch.tensor(c)
        )
        found |= {f"advantage{name}": advantage, f"target{name}": target}
    return found


LEARNERS: dict[str, Callable[[Ours], Learner]] = {
    "td3": td3,
    "td3_bc": td3_bc,
    "sac": sac,
    "discrete_sac": discrete_sac,
    "iql": iql,
    "cql": cql,
    "cql_best": cql_best,
    "dqn": dqn,
    "double_dqn": double_dqn,
    "discrete_cql_huber": discrete_cql_huber,
    "bc": bc,
    "stochastic_bc": stochastic_bc,
}

if __name__ == "__main__":
    main(LEARNERS, {"gae": gae, "td_lambda": td_lambda, "vtrace": vtrace}, ["torchrl", "tensordict"])
