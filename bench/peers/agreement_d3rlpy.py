"""d3rlpy: `inner_update` of its algorithms on our batches, from our weights; see `side_by_side.py`."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from d3rlpy.algos import (
    BCConfig,
    BCQConfig,
    CalQLConfig,
    CQLConfig,
    CRRConfig,
    DDPGConfig,
    DiscreteBCConfig,
    DiscreteBCQConfig,
    DiscreteCQLConfig,
    DoubleDQNConfig,
    DQNConfig,
    IQLConfig,
    SACConfig,
    TD3Config,
    TD3PlusBCConfig,
)
from d3rlpy.models import QRQFunctionFactory, VectorEncoderFactory
from d3rlpy.models.torch import ActionOutput
from d3rlpy.ope import FQE, FQEConfig
from d3rlpy.torch_utility import TorchMiniBatch
from side_by_side import Learner, Linears, Net, Number, Ours, Transitions, drawing, draws, main
from torch import Tensor, nn

RATES = ("learning_rate", "actor_learning_rate", "critic_learning_rate", "imitator_learning_rate", "temp_learning_rate")
TAU, SAMPLES = 0.1, 4
Names = Mapping[str, str]
"""What d3rlpy calls a loss, and what we call it."""


def made(kind: Any, ours: Ours, **settings: Any) -> Any:
    """The implementation behind one of its algorithms, with our sizes and learning rates."""
    known = {field.name for field in dataclasses.fields(kind)}
    units = VectorEncoderFactory(ours["units"])
    usual = {name: units for name in known if name.endswith("encoder_factory")}
    usual |= {name: ours["lr"] for name in RATES if name in known}
    usual |= {"gamma": ours["discount"]} if "gamma" in known else {}
    algorithm = kind(batch_size=ours["rows"], **(usual | settings)).create(device="cpu:0")
    algorithm.create_impl((ours["obs"],), ours["actions"])
    return algorithm.impl


def batch(t: Transitions) -> TorchMiniBatch:
    """As its replay gives it; a row that a time limit ended is not terminal."""
    column = {name: t[name].view(-1, 1) for name in ("rew", "rtg", "term")}
    act = t["act"] if t["act"].is_floating_point() else t["act"].view(-1, 1)
    return TorchMiniBatch(
        observations=t["obs"],
        actions=act,
        rewards=column["rew"],
        next_observations=t["next_obs"],
        next_actions=torch.zeros_like(act),
        returns_to_go=column["rtg"],
        terminals=column["term"].float(),
        intervals=torch.ones_like(column["rew"]),
        device="cpu:0",
    )


def updating(impl: Any, names: Names, noise: Callable[[int], Sequence[Tensor]], half: Sequence[str] = ()) -> Any:
    """Its update with our draws; of losses in ``half``, a half."""

    def update(k: int, t: Transitions) -> dict[str, Tensor | float]:
        with drawing(noise(k)):
            losses = impl.inner_update(batch(t), k + 1)
        found = {name: losses[its] for its, name in names.items() if its in losses}
        return {name: value / (2 if name in half else 1) for name, value in found.items()}

    return update


def acting(impl: Any, times: float = 1.0) -> dict[str, list[Net]]:
    """Its actor and critics, and their targets."""
    m = impl._modules
    critics = [Linears([q], m.critic_optim.optim, times) for q in m.q_funcs]
    nets = {"actor.body": [Linears([m.policy], m.actor_optim.optim)], "critic.body": critics}
    nets["target_critic.model.body"] = [Linears([q]) for q in m.targ_q_funcs]
    if hasattr(m, "targ_policy"):
        nets["target_actor.model.body"] = [Linears([m.targ_policy])]
    return nets


def late(impl: Any, method: str, parameter: Tensor) -> None:
    """Patch: what ``method`` steps takes effect in the next update, as in other code; not in the losses of this one."""
    step, update = getattr(impl, method), impl.inner_update
    stepped: list[Tensor] = []

    def postponed(*words: Any) -> Any:
        before = parameter.detach().clone()
        found = step(*words)
        stepped.append(parameter.detach().clone())
        parameter.data.copy_(before)
        return found

    def updated(*words: Any) -> Any:
        found = update(*words)
        parameter.data.copy_(stepped.pop())
        return found

    setattr(impl, method, postponed)
    impl.inner_update = updated


LOSSES = {"critic_loss": "loss/critic", "actor_loss": "loss/actor"}
NO_NOISE: Callable[[int], Sequence[Tensor]] = lambda _: []  # noqa: E731


def noise(ours: Ours, *shape: int, times: int = 1) -> Callable[[int], Sequence[Tensor]]:
    """Standard normal numbers of ``[rows, *shape, actions]``."""
    return lambda k: draws(k, *[("n", (ours["rows"], *shape, ours["actions"]))] * times)


def ddpg(ours: Ours) -> Learner:
    """As it is."""
    impl = made(DDPGConfig, ours, tau=TAU)
    return Learner(acting(impl), updating(impl, LOSSES, NO_NOISE))


def td3(ours: Ours, kind: Any = TD3Config) -> Learner:
    """As it is."""
    smooth = {"target_smoothing_sigma": 0.2, "target_smoothing_clip": 0.5, "update_actor_interval": 2}
    impl = made(kind, ours, tau=TAU, **smooth)
    return Learner(acting(impl), updating(impl, LOSSES, noise(ours, 1)))


def td3_bc(ours: Ours) -> Learner:
    """As it is."""
    return td3(ours, TD3PlusBCConfig)


def sac(ours: Ours) -> Learner:
    """Its critics' losses have no half."""
    impl = made(SACConfig, ours, tau=TAU, initial_temperature=1.0)
    temperature = next(impl._modules.log_temp.parameters())
    late(impl, "update_temp", temperature)
    nets = acting(impl, times=2.0) | {"log_temperature": [Number(temperature, impl._modules.temp_optim.optim)]}
    names = LOSSES | {"temp_loss": "loss/temperature"}
    update = updating(impl, names, noise(ours, 1, times=2), half=["loss/critic"])
    return Learner(nets, update, "the temperature's step counts from the next update on; critics' losses halved")


def crr(ours: Ours, weight: str = "exp", advantage: str = "mean") -> Learner:
    """With the bounds that ours has for the log of the standard deviation, which are settings of no config there."""
    hard = {"target_update_type": "hard", "target_update_interval": 2}
    sampled = {"n_critics": 1, "n_action_samples": SAMPLES, "max_weight": 20.0}
    impl = made(CRRConfig, ours, weight_type=weight, advantage_type=advantage, **hard, **sampled)
    for policy in (impl._modules.policy, impl._modules.targ_policy):
        policy._min_logstd, policy._max_logstd = -5.0, 2.0

    def drawn(k: int) -> list[Tensor]:
        rows, size = ours["rows"], ours["actions"]
        following, here = draws(k, ("n", (rows, 1, size)), ("n", (rows, SAMPLES, size)))
        return [following, here.transpose(0, 1)]

    return Learner(acting(impl), updating(impl, LOSSES, drawn), "our bounds of the policy's standard deviation")


def crr_binary_max(ours: Ours) -> Learner:
    """The other filter and baseline."""
    return crr(ours, "binary", "max")


def cql(ours: Ours, kind: Any = CQLConfig, lagrange: bool = False, **settings: Any) -> Learner:
    """With a temperature that is held."""
    multiplier = {"alpha_learning_rate": 0.0, "alpha_threshold": 0.0, "conservative_weight": 5.0}
    if lagrange:
        multiplier = {"alpha_learning_rate": ours["lr"], "alpha_threshold": 2.0, "conservative_weight": 1.0}
    held = {"initial_temperature": 1.0, "temp_learning_rate": 0.0, "initial_alpha": 1.0}
    impl = made(kind, ours, tau=TAU, n_action_samples=SAMPLES, **multiplier, **held, **settings)
    nets, note = acting(impl), ""
    if lagrange:
        parameter = next(impl._modules.log_alpha.parameters())
        late(impl, "update_alpha", parameter)
        nets["log_multiplier"] = [Number(parameter, impl._modules.alpha_optim.optim)]
        note = "the multiplier's step counts from the next update on"
    return Learner(nets, _conservative(impl, ours, settings), note)


def _conservative(impl: Any, ours: Ours, settings: Mapping[str, Any]) -> Any:
    """Its update; our draws are in another order, with samples behind rows."""
    rows, size = ours["rows"], ours["actions"]
    one, many = ("n", (rows, 1, size)), (rows, SAMPLES, size)
    target = [one] if settings["soft_q_backup"] else [("n", many)] if settings["max_q_backup"] else []

    def drawn(k: int) -> list[Tensor]:
        uniform, here, there, *backup, last = draws(k, ("u", many), ("n", many), ("n", many), *target, one)
        backup = [x.transpose(0, 1) if x.shape == many else x for x in backup]
        return [*backup, here.transpose(0, 1), there.transpose(0, 1), uniform, last]

    update = updating(impl, LOSSES | {"conservative_loss": "loss/conservative"}, drawn)

    def parted(k: int, t: Transitions) -> dict[str, Any]:
        losses = update(k, t)
        return losses | {"loss/critic": losses["loss/critic"] - losses["loss/conservative"]}

    return parted


def cql_of(kind: Any = CQLConfig, known: str = "", **settings: Any) -> Callable[[Ours], Learner]:
    """One of its targets."""
    usual = {"soft_q_backup": False, "max_q_backup": False}
    return lambda ours: dataclasses.replace(cql(ours, kind, **{**usual, **settings}), known=known)


def bcq(ours: Ours) -> Learner:
    """All three networks."""
    impl = made(BCQConfig, ours, tau=TAU, n_action_samples=SAMPLES, lam=0.75, action_flexibility=0.05, beta=0.5,
                rl_start_step=0)  # fmt: skip
    m = impl._modules
    decode = m.vae_decoder.forward
    # patch: its decoder squashes with tanh only where with_squash is False; it is asked for the other
    m.vae_decoder.forward = lambda x, latent, with_squash=True: decode(x, latent, False)
    nets = acting(impl)
    nets = {"perturb.body": nets.pop("actor.body"), "target_perturb.model.body": nets.pop("target_actor.model.body"),
            **nets, "vae.encoder": [Linears([m.vae_encoder], m.vae_optim.optim)],
            "vae.decoder": [Linears([m.vae_decoder], m.vae_optim.optim)]}  # fmt: skip
    latent = 2 * ours["actions"]
    shapes = [("n", (ours["rows"], 1, *many, latent)) for many in ((), (SAMPLES,), (1,))]
    update = updating(impl, LOSSES | {"vae_loss": "loss/vae"}, lambda k: draws(k, *shapes))
    return Learner(nets, update, "the decoder's actions pass through tanh")


def iql(ours: Ours) -> Learner:
    """Its losses, in the order of the authors' code."""
    impl = made(IQLConfig, ours, tau=TAU, expectile=0.8, weight_temp=3.0, max_weight=100.0)
    m, free = impl._modules, nn.Parameter(torch.zeros(ours["actions"]))
    # patches: the log of the standard deviation is free and clamped, not between bounds by a sigmoid; actor and critics
    # learn from V after its step, as in the authors' code
    weights = [p for layer in Linears([m.policy]).layers for p in (layer.weight, layer.bias)]
    adams = [torch.optim.Adam(p, ours["lr"]) for p in (m.value_func.parameters(), [*weights, free],
                                                       m.q_funcs.parameters())]  # fmt: skip
    nets = acting(impl) | {"value.body": [Linears([m.value_func], adams[0])], "actor.log_std": [Number(free, adams[1])]}
    nets["actor.body"][0].optim = adams[1]
    for critic in nets["critic.body"]:
        critic.optim = adams[2]

    def policy(x: Tensor) -> ActionOutput:
        mean = m.policy._mu(m.policy._encoder(x))
        return ActionOutput(mean, mean.tanh(), free.clamp(-5, 2).expand_as(mean))

    def update(_: int, t: Transitions) -> dict[str, Tensor]:
        rows, found = batch(t), {}
        losses = {
            "loss/value": lambda: impl.compute_value_loss(rows),
            "loss/actor": lambda: impl.compute_actor_loss(rows, policy(rows.observations)).actor_loss,
            "loss/critic": lambda: impl.compute_critic_loss(rows, impl.compute_target(rows)).q_loss,
        }
        for (name, loss), adam in zip(losses.items(), adams, strict=True):
            found[name] = loss()
            adam.zero_grad()
            found[name].backward()
            adam.step()
        impl.update_critic_target()
        return found

    return Learner(nets, update, "V, actor and critics learn one after another; log standard deviation clamped")


def dqn(ours: Ours, kind: Any = DQNConfig, **settings: Any) -> Learner:
    """As it is, with targets that are copied every second update."""
    impl = made(kind, ours, target_update_interval=2, **settings)
    names = {"loss": "loss/critic"}
    if kind is DiscreteCQLConfig:
        names = {"td_loss": "loss/critic", "conservative_loss": "train/conservative_gap"}
    return Learner(_values(impl), updating(impl, names, NO_NOISE))


def _values(impl: Any) -> dict[str, list[Net]]:
    m = impl._modules
    targets = [Linears([q]) for q in m.targ_q_funcs]
    return {"network.body": [Linears([q], m.optim.optim) for q in m.q_funcs], "target_network.model.body": targets}


def dqn_of(kind: Any, quantiles: bool = False, **settings: Any) -> Callable[[Ours], Learner]:
    """Another kind of it, with quantiles."""

    def build(ours: Ours) -> Learner:
        factory = {"q_func_factory": QRQFunctionFactory(n_quantiles=ours["quantiles"])} if quantiles else {}
        return dqn(ours, kind, **factory, **settings)

    return build


def discrete_bcq(ours: Ours) -> Learner:
    """Values and clone."""
    impl = made(DiscreteBCQConfig, ours, target_update_interval=2, action_flexibility=0.3, beta=0.01)
    m = impl._modules
    # patch: its clone has an encoder of its own, as ours and the authors'
    m.imitator._encoder = copy.deepcopy(m.imitator._encoder)
    m.optim.optim.add_param_group({"params": list(m.imitator._encoder.parameters())})
    # patch: the clone's logits are regularized, not its log-probabilities
    m.imitator.forward = lambda x: SimpleNamespace(logits=m.imitator._fc(m.imitator._encoder(x)))
    names = {"td_loss": "loss/critic", "imitator_loss": "loss/bc"}
    nets = _values(impl)
    nets["network.body"].append(Linears([m.imitator], m.optim.optim))
    note = "the clone shares no layers with the values, and its logits are regularized"
    return Learner(nets, updating(impl, names, NO_NOISE), note)


def bc(ours: Ours) -> Learner:
    """As it is."""
    return _cloning(made(BCConfig, ours))


def discrete_bc(ours: Ours) -> Learner:
    """Without its regularization."""
    return _cloning(made(DiscreteBCConfig, ours, beta=0.0))


def _cloning(impl: Any) -> Learner:
    nets = {"actor.body": [Linears([impl._modules.imitator], impl._modules.optim.optim)]}
    return Learner(nets, updating(impl, {"loss": "loss/actor"}, NO_NOISE))


def fqe(ours: Ours) -> Learner:
    """Of a policy whose actions come with the batch."""
    policy = DDPGConfig().create(device="cpu:0")
    policy.create_impl((ours["obs"],), ours["actions"])
    settings = {"learning_rate": ours["lr"], "gamma": ours["discount"], "n_critics": 1, "target_update_interval": 2}
    config = FQEConfig(encoder_factory=VectorEncoderFactory(ours["units"]), **settings)
    evaluation = FQE(policy, config, device="cpu:0")
    evaluation.create_impl((ours["obs"],), ours["actions"])
    impl, m = evaluation.impl, evaluation.impl._modules
    nets = {
        "critic.inner.body": [Linears([m.q_funcs[0]], m.optim.optim)],
        "target_critic.model.inner.body": [Linears([m.targ_q_funcs[0]])],
    }

    def update(k: int, t: Transitions) -> dict[str, float]:
        impl._algo = SimpleNamespace(predict_best_action=lambda _: t["chosen"])
        return {"loss/critic": impl.inner_update(batch(t), k + 1)["loss"]}

    return Learner(nets, update)


LEARNERS: dict[str, Callable[[Ours], Learner]] = {
    "ddpg": ddpg,
    "td3": td3,
    "td3_bc": td3_bc,
    "sac": sac,
    "crr": crr,
    "crr_binary_max": crr_binary_max,
    "cql_mode": cql_of(),
    "cql_soft": cql_of(soft_q_backup=True),
    "cql_best": cql_of(
        max_q_backup=True,
        known="its targets are the maximum of the critics' smaller values, ours the smaller of both maxima",
    ),
    "cql_lagrange": cql_of(lagrange=True),
    "cal_ql": cql_of(CalQLConfig),
    "bcq": bcq,
    "iql": iql,
    "dqn": dqn,
    "double_dqn": dqn_of(DoubleDQNConfig),
    "qr_dqn": dqn_of(DQNConfig, quantiles=True),
    "double_qr_dqn": dqn_of(DoubleDQNConfig, quantiles=True),
    "discrete_cql": dqn_of(DiscreteCQLConfig, quantiles=True),
    "discrete_bcq": discrete_bcq,
    "bc": bc,
    "discrete_bc": discrete_bc,
    "fqe": fqe,
}

if __name__ == "__main__":
    main(LEARNERS, {}, ["d3rlpy"])
