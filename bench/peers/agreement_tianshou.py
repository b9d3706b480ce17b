"""Tianshou: `update` of its algorithms on a buffer that holds our batch; see `side_by_side.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from gymnasium.spaces import Box, Discrete
from side_by_side import Learner, Linears, Net, Number, Ours, Stream, Transitions, drawing, draws, main
from tianshou.algorithm import (
    BCQ,
    C51,
    DDPG,
    DQN,
    IQN,
    QRDQN,
    SAC,
    TD3,
    TD3BC,
    DiscreteBCQ,
    DiscreteCQL,
    DiscreteCRR,
    DiscreteSAC,
    RainbowDQN,
)
from tianshou.algorithm.algorithm_base import Algorithm
from tianshou.algorithm.imitation.bcq import BCQPolicy
from tianshou.algorithm.imitation.discrete_bcq import DiscreteBCQPolicy
from tianshou.algorithm.imitation.imitation_base import ImitationPolicy, OfflineImitationLearning
from tianshou.algorithm.modelfree import sac as sac_module
from tianshou.algorithm.modelfree.c51 import C51Policy
from tianshou.algorithm.modelfree.ddpg import ContinuousDeterministicPolicy
from tianshou.algorithm.modelfree.discrete_sac import DiscreteSACPolicy
from tianshou.algorithm.modelfree.dqn import DiscreteQLearningPolicy
from tianshou.algorithm.modelfree.iqn import IQNPolicy
from tianshou.algorithm.modelfree.qrdqn import QRDQNPolicy
from tianshou.algorithm.modelfree.reinforce import DiscreteActorPolicy
from tianshou.algorithm.modelfree.sac import AutoAlpha, SACPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch, ReplayBuffer
from tianshou.utils.net.common import MLP
from tianshou.utils.net.common import Net as TianshouNet
from tianshou.utils.net.continuous import (
    VAE,
    ContinuousActorDeterministic,
    ContinuousActorProbabilistic,
    ContinuousCritic,
    Perturbation,
)
from tianshou.utils.net.discrete import DiscreteActor, DiscreteCritic, ImplicitQuantileNetwork, NoisyLinear
from tianshou.utils.torch_utils import policy_within_training_step
from torch import Tensor, nn

TAU, SAMPLES, NEVER = 0.1, 4, 10**9
Names = Mapping[str, str]
"""What Tianshou calls a loss, or several to be added; and what we call it."""


class Parts:
    """Networks, spaces and optimizers of our sizes."""

    def __init__(self, ours: Ours):
        self.obs, self.size, self.rows, self.units = ours["obs"], ours["actions"], ours["rows"], ours["units"]
        self.quantiles, self.gamma = ours["quantiles"], ours["discount"]
        self.adam = AdamOptimizerFactory(lr=ours["lr"])
        self.box, self.choice = Box(-1, 1, (self.size,), np.float32), Discrete(self.size)

    def body(self, **settings: Any) -> nn.Module:
        """Hidden layers, and a last one where it has outputs."""
        return TianshouNet(**{"state_shape": self.obs, "hidden_sizes": self.units, **settings})

    def critic(self) -> nn.Module:
        """Of continuous actions."""
        return ContinuousCritic(preprocess_net=self.body(action_shape=self.size, concat=True))

    def values(self) -> nn.Module:
        """Of all actions."""
        return DiscreteCritic(preprocess_net=self.body(), last_size=self.size)

    def action(self) -> nn.Module:
        """An actor without noise."""
        return ContinuousActorDeterministic(preprocess_net=self.body(), action_shape=self.size, max_action=1.0)

    def scores(self) -> nn.Module:
        """An actor that chooses."""
        return DiscreteActor(preprocess_net=self.body(), action_shape=self.size, softmax_output=False)

    def noise(self, *shape: int, times: int = 1) -> Callable[[int], Sequence[Tensor]]:
        """Standard normal numbers of ``[rows, *shape, actions]``."""
        return lambda k: draws(k, *[("n", (self.rows, *shape, self.size))] * times)


NO_NOISE: Callable[[int], Sequence[Tensor]] = lambda _: []  # noqa: E731


def buffer(t: Transitions, truncation: bool, priorities: list[Tensor]) -> ReplayBuffer:
    """One that gives the whole batch, with its weights."""
    rows = len(t["rew"])
    term = t["term"].numpy()
    trunc = t["trunc"].numpy() if truncation else np.zeros(rows, bool)
    columns = {name: t[its].numpy() for name, its in {"obs": "obs", "act": "act", "obs_next": "next_obs"}.items()}
    found = ReplayBuffer(rows)
    found.set_batch(
        Batch(rew=t["rew"].numpy().astype(np.float64), terminated=term, truncated=trunc, done=term | trunc, **columns)
    )
    found._size = rows
    sample = found.sample

    def weighted(number: int) -> tuple[Batch, np.ndarray]:
        batch, index = sample(number)
        batch.weight = t["weight"]
        return batch, index

    found.sample_indices, found.sample = (lambda _: np.arange(rows)), weighted
    found.update_weight = lambda _, weight: priorities.append(torch.as_tensor(weight).detach().abs())
    return found


def optim(wrapped: Any) -> torch.optim.Optimizer:
    """PyTorch's behind theirs."""
    return getattr(wrapped, "_optim", wrapped)


def updating(
    made: Any,
    names: Names,
    noise: Callable[[int], Sequence[Tensor]] = NO_NOISE,
    half: Sequence[str] = (),
    truncation: bool = True,
    copies: bool = False,
    prioritized: bool = False,
) -> Callable[[int, Transitions], Mapping[str, Any]]:
    """Its update with our draws.

    Half of each loss in ``half``; ``copies``: targets become their networks after every second update, as ours do;
    ``prioritized``: with the priorities that it hands back.
    """

    def update(k: int, t: Transitions) -> Mapping[str, Any]:
        priorities: list[Tensor] = []
        with drawing(noise(k)), policy_within_training_step(made.policy):
            losses = made.update(buffer(t, truncation, priorities), len(t["rew"]))
        found = {name: sum(getattr(losses, its) for its in both.split("+")) for both, name in names.items()}
        if copies and k % 2:
            made._update_lagged_network_weights()
        found = {name: value / (2 if name in half else 1) for name, value in found.items()}
        return found | {"priority": priorities[0]} if prioritized else found

    return update


TWO, BOTH = "critic1_loss+critic2_loss", ("loss/critic", "loss/actor")


def critics(made: Any, times: float = 1.0) -> dict[str, list[Net]]:
    """Both critics and their targets."""
    first, second = (Linears([c], optim(o), times) for c, o in ((made.critic, made.critic_optim),
                                                                (made.critic2, made.critic2_optim)))  # fmt: skip
    targets = [Linears([c]) for c in (made.critic_old, made.critic2_old)]
    return {"critic.body": [first, second], "target_critic.model.body": targets}


def ddpg(ours: Ours) -> Learner:
    """As it is."""
    p = Parts(ours)
    policy = ContinuousDeterministicPolicy(actor=p.action(), action_space=p.box)
    made = DDPG(policy=policy, policy_optim=p.adam, critic=p.critic(), critic_optim=p.adam, tau=TAU, gamma=p.gamma)
    nets = {
        "actor.body": [Linears([policy.actor], optim(made.policy_optim))],
        "critic.body": [Linears([made.critic], optim(made.critic_optim))],
        "target_actor.model.body": [Linears([made.actor_old])],
        "target_critic.model.body": [Linears([made.critic_old])],
    }
    return Learner(nets, updating(made, {"critic_loss": "loss/critic", "actor_loss": "loss/actor"}))


def td3(ours: Ours, kind: Any = TD3) -> Learner:
    """Its actor learns in the first of two updates; ours in the second."""
    p = Parts(ours)
    policy = ContinuousDeterministicPolicy(actor=p.action(), action_space=p.box)
    made = kind(policy=policy, policy_optim=p.adam, critic=p.critic(), critic_optim=p.adam, critic2=p.critic(),
                critic2_optim=p.adam, tau=TAU, gamma=p.gamma)  # fmt: skip
    made._cnt = 1
    choose = made._target_q_compute_action

    def clipped(batch: Batch) -> Batch:  # patch: noisy actions of targets stay in their range, as in the authors' code
        found = choose(batch)
        found.act = found.act.clamp(-1, 1)
        return found

    made._target_q_compute_action = clipped
    nets = {"actor.body": [Linears([policy.actor], optim(made.policy_optim))],
            "target_actor.model.body": [Linears([made.actor_old])], **critics(made)}  # fmt: skip
    update = updating(made, {TWO: "loss/critic", "actor_loss": "loss/actor"}, p.noise(1))
    return Learner(nets, update, "noisy target actions are clipped to their range")


def td3_bc(ours: Ours) -> Learner:
    """With the same patch."""
    return td3(ours, TD3BC)


def sac(ours: Ours) -> Learner:
    """Its critics' losses have no half."""
    p = Parts(ours)
    # patch: no 1.2e-7 in the logarithm of tanh's derivative
    sac_module.correct_log_prob_gaussian_tanh.__defaults__ = (0.0,)
    actor = ContinuousActorProbabilistic(preprocess_net=p.body(), action_shape=p.size, unbounded=True,
                                         conditioned_sigma=True)  # fmt: skip
    policy = SACPolicy(actor=actor, action_space=p.box)
    layers = [actor.preprocess, actor.mu, actor.sigma]
    learner = _soft(SAC, policy, layers, p.critic, -float(p.size), p, p.noise(1, times=2))
    learner.note = f"no 1.2e-7 in the logarithm of tanh's derivative; {learner.note}"
    return learner


def discrete_sac(ours: Ours) -> Learner:
    """Its critics' losses have no half."""
    p = Parts(ours)
    actor = p.scores()
    policy = DiscreteSACPolicy(actor=actor, action_space=p.choice)
    return _soft(DiscreteSAC, policy, [actor], p.values, 0.98 * float(np.log(p.size)), p, NO_NOISE)


def _soft(
    kind: Any, policy: Any, actor: Sequence[nn.Module], critic: Callable[[], nn.Module], entropy: float, p: Parts,
    noise: Callable[[int], Sequence[Tensor]],
) -> Learner:  # fmt: skip
    alpha = AutoAlpha(target_entropy=entropy, log_alpha=0.0, optim=p.adam)
    made = kind(policy=policy, policy_optim=p.adam, critic=critic(), critic_optim=p.adam, critic2=critic(),
                critic2_optim=p.adam, tau=TAU, gamma=p.gamma, alpha=alpha)  # fmt: skip
    nets = {"actor.body": [Linears(actor, optim(made.policy_optim))], **critics(made, times=2.0),
            "log_temperature": [Number(alpha._log_alpha, optim(alpha._optim))]}  # fmt: skip
    names = {TWO: "loss/critic", "actor_loss": "loss/actor"}
    return Learner(nets, updating(made, names, noise, half=["loss/critic"]), "critics' losses halved")


def dqn(ours: Ours, double: bool = False, huber: float | None = 1.0) -> Learner:
    """With targets that are copied every second update."""
    p = Parts(ours)
    return _dqn(p.body(action_shape=p.size), p, double, huber)


def _dqn(model: nn.Module, p: Parts, double: bool = False, huber: float | None = 1.0) -> Learner:
    policy = DiscreteQLearningPolicy(model=model, action_space=p.choice)
    made = DQN(policy=policy, optim=p.adam, gamma=p.gamma, target_update_freq=NEVER, is_double=double,
               huber_loss_delta=huber)  # fmt: skip
    made._iter = 1
    names, half = {"loss": "loss/critic"}, [] if huber else ["loss/critic"]
    update = updating(made, names, half=half, copies=True, prioritized=huber is None)
    return Learner(_valued(made, model, 1.0 if huber else 2.0), update)


def _valued(made: Any, model: nn.Module, times: float = 1.0) -> dict[str, list[Net]]:
    target = {"target_network.model.body": [Linears([made.model_old])]}
    return {"network.body": [Linears([model], optim(made.optim), times)], **target}


def double_dqn(ours: Ours) -> Learner:
    """As it is."""
    return dqn(ours, double=True)


def prioritized_dqn(ours: Ours) -> Learner:
    """With weights, and priorities that it hands back."""
    learner = dqn(ours, huber=None)
    learner.note = "squared errors, as its Huber loss leaves weights out; losses halved"
    return learner


def dueling_dqn(ours: Ours) -> Learner:
    """Three networks; ours are called by their purpose."""
    p = Parts(ours)
    first, rest = p.units[:1], {"hidden_sizes": p.units[1:]}
    model = p.body(action_shape=p.size, hidden_sizes=first, dueling_param=(rest, rest))
    learner = _dqn(model, p)
    [online], [target] = learner.nets.values()
    adam, old = online.optim, target.modules[0].module
    parts = {".shared": "model", ".value": "V", ".advantage": "Q"}
    learner.nets = {f"network.body{name}": [Linears([getattr(model, its)], adam)] for name, its in parts.items()}
    learner.nets |= {f"target_network.model.body{n}": [Linears([getattr(old, its)])] for n, its in parts.items()}
    return learner


def quantiles(ours: Ours, kind: Any = QRDQN, **settings: Any) -> Learner:
    """The online network chooses the actions of targets: always double."""
    p = Parts(ours)
    model = p.body(action_shape=p.size, num_atoms=p.quantiles)
    policy = QRDQNPolicy(model=model, action_space=p.choice)
    made = kind(policy=policy, optim=p.adam, gamma=p.gamma, num_quantiles=p.quantiles, target_update_freq=NEVER,
                **settings)  # fmt: skip
    made._iter = 1
    names = {"loss": "loss/critic"}
    if kind is not QRDQN:
        names = {"qr_loss": "loss/critic", "cql_loss": "train/conservative_gap"}
    return Learner(_valued(made, model), updating(made, names, copies=True))


def c51(ours: Ours) -> Learner:
    """Always double."""
    p = Parts(ours)
    model = p.body(action_shape=p.size, num_atoms=p.quantiles, softmax=True)
    made = _c51(C51, model, p)
    return Learner(_valued(made, model), updating(made, {"loss": "loss/critic"}, copies=True))


def _c51(kind: Any, model: nn.Module, p: Parts) -> Any:
    policy = C51Policy(model=model, action_space=p.choice, num_atoms=p.quantiles)
    made = kind(policy=policy, optim=p.adam, gamma=p.gamma, target_update_freq=NEVER)
    made._iter = 1
    return made


class Noisy(Linears):
    """All `NoisyLinear` in these modules."""

    @property
    def layers(self) -> list[Any]:
        """Their parameters without noise."""
        found = [m for module in self.modules for m in module.modules() if isinstance(m, NoisyLinear)]
        return [SimpleNamespace(weight=m.mu_W, bias=m.mu_bias) for m in found]


def rainbow(ours: Ours) -> Learner:
    """C51 with a dueling network of noisy layers."""
    p = Parts(ours)
    streams = {"hidden_sizes": p.units[1:], "linear_layer": NoisyLinear}
    model = p.body(action_shape=p.size, num_atoms=p.quantiles, softmax=True, hidden_sizes=p.units[:1],
                   dueling_param=(streams, streams), linear_layer=NoisyLinear)  # fmt: skip
    made = _c51(RainbowDQN, model, p)
    distribution = made._target_dist

    def targets(batch: Batch) -> Tensor:  # patch: the choice of the next action has noise of its own
        found = distribution(batch)
        made._sample_noise(model)
        return found

    made._target_dist = targets
    obs, hidden, last = p.obs, *p.units
    sizes = {
        "shared": [obs, hidden], "value": [hidden, last, last, p.quantiles],
        "advantage": [hidden, last, last, p.size * p.quantiles],
    }  # fmt: skip

    def noise(k: int) -> list[Tensor]:
        """Ours draws for the value, the target and the choice; theirs in another order, advantages before values."""
        drawn = draws(k, *[("n", (sum(of),)) for of in sizes.values()] * 3)
        passes = [dict(zip(sizes, drawn[3 * i : 3 * i + 3], strict=True)) for i in (2, 1, 0)]
        return [x for each in passes for name in ("shared", "advantage", "value")
                for x in torch.split(each[name], sizes[name])]  # fmt: skip

    adam, parts = optim(made.optim), {".shared": "model", ".value": "V", ".advantage": "Q"}
    nets = {f"network.body{name}": [Noisy([getattr(model, its)], adam)] for name, its in parts.items()}
    nets |= {f"target_network.model.body{n}": [Noisy([getattr(made.model_old, its)])] for n, its in parts.items()}
    note = "new noise for the choice of the next action"
    return Learner(nets, updating(made, {"loss": "loss/critic"}, noise, copies=True), note)


def iqn(ours: Ours) -> Learner:
    """Always double."""
    p = Parts(ours)
    model = ImplicitQuantileNetwork(preprocess_net=p.body(hidden_sizes=p.units[:1]), action_shape=p.size,
                                    hidden_sizes=p.units[1:])  # fmt: skip
    fractions = dict.fromkeys(("sample_size", "online_sample_size", "target_sample_size"), p.quantiles)
    policy = IQNPolicy(model=model, action_space=p.choice, **fractions)
    made = IQN(policy=policy, optim=p.adam, gamma=p.gamma, num_quantiles=p.quantiles, target_update_freq=NEVER)
    made._iter = 1
    old = getattr(made.model_old, "module", made.model_old)
    for network in (model, old):  # patch: the first cosine is of 0, as in the paper
        network.embed_model.forward = lambda tau, net=network.embed_model.net: net(
            (np.pi * tau.unsqueeze(-1) * torch.arange(64)).cos()
        )

    def noise(k: int) -> list[Tensor]:
        """Fractions that choose the next action, of targets, of values; the first are evenly spaced."""
        values, targets = draws(k, *[("u", (p.rows, p.quantiles))] * 2)
        even = (torch.arange(p.quantiles) + 0.5) / p.quantiles
        return [(2 * even - 1).expand(p.rows, -1), targets, values]

    parts, adam = {"psi": "preprocess", "phi": "embed_model", "body": "last"}, optim(made.optim)
    nets = {f"network.{name}": [Linears([getattr(model, its)], adam)] for name, its in parts.items()}
    nets |= {f"target_network.model.{name}": [Linears([getattr(old, its)])] for name, its in parts.items()}
    note = "evenly spaced fractions choose the next action; cosines from 0 on, as in the paper"
    return Learner(nets, updating(made, {"loss": "loss/critic"}, noise, copies=True), note)


def discrete_cql(ours: Ours) -> Learner:
    """Always double."""
    return quantiles(ours, DiscreteCQL, min_q_weight=1.0)


def discrete_bcq(ours: Ours) -> Learner:
    """Values and clone."""
    p = Parts(ours)
    policy = DiscreteBCQPolicy(model=p.scores(), imitator=p.scores(), target_update_freq=NEVER, action_space=p.choice,
                               unlikely_action_threshold=0.3)  # fmt: skip
    made = DiscreteBCQ(policy=policy, optim=p.adam, gamma=p.gamma, target_update_freq=NEVER)
    made._iter = 1
    nets = _valued(made, policy.model)
    nets["network.body"].append(Linears([policy.imitator], optim(made.optim)))
    update = updating(made, {"q_loss": "loss/critic", "i_loss": "loss/bc", "reg_loss": "reg"}, copies=True)

    def added(k: int, t: Transitions) -> Mapping[str, Any]:
        losses = dict(update(k, t))
        return losses | {"loss/bc": losses["loss/bc"] + 0.01 * losses.pop("reg")}

    return Learner(nets, added)


def discrete_crr(ours: Ours) -> Learner:
    """Of the first update; its actor cannot be ours."""
    p = Parts(ours)
    actor, critic = p.scores(), p.values()
    policy = DiscreteActorPolicy(actor=actor, action_space=p.choice, deterministic_eval=True)
    made = DiscreteCRR(policy=policy, critic=critic, optim=p.adam, gamma=p.gamma, target_update_freq=NEVER,
                       min_q_weight=10.0)  # fmt: skip
    made._iter = 1
    nets = {"actor.body": [Linears([actor])], "target_actor.model.body": [Linears([made.actor_old])],
            "critic.body": [Linears([critic])], "target_critic.model.body": [Linears([made.critic_old])]}  # fmt: skip
    update = updating(made, {"critic_loss": "loss/critic", "cql_loss": "train/conservative_gap"}, truncation=False)

    def doubled(k: int, t: Transitions) -> Mapping[str, Any]:
        losses = update(k, t)
        return losses | {"loss/critic": 2 * losses["loss/critic"]}

    note = (
        "without time limits; losses of the critic alone, its error doubled: "
        "its actor's weights are the same for all actions of a batch"
    )
    return Learner(nets, doubled, note, updates=1, learns=False)


class Perturbed(nn.Module):
    """A critic of actions that were perturbed."""

    def __init__(self, critic: nn.Module, perturb: nn.Module):
        super().__init__()
        self.critic, self.perturb = critic, perturb

    def forward(self, obs: Tensor, act: Tensor) -> Tensor:
        """Their value."""
        return self.critic(obs, self.perturb(obs, act))


def bcq(ours: Ours) -> Learner:
    """All three networks."""
    p = Parts(ours)
    latent = 2 * p.size
    vae = VAE(encoder=MLP(input_dim=p.obs + p.size, hidden_sizes=p.units),
              decoder=MLP(input_dim=p.obs + latent, output_dim=p.size, hidden_sizes=p.units),
              hidden_dim=p.units[-1], latent_dim=latent, max_action=1.0)  # fmt: skip
    moves = Perturbation(preprocess_net=p.body(state_shape=p.obs + p.size, action_shape=p.size), max_action=1.0)
    policy = BCQPolicy(actor_perturbation=moves, action_space=p.box, critic=p.critic(), vae=vae)
    made = BCQ(policy=policy, actor_perturbation_optim=p.adam, critic_optim=p.adam, vae_optim=p.adam,
               critic2=p.critic(), critic2_optim=p.adam, tau=TAU, gamma=p.gamma,
               num_sampled_action=SAMPLES)  # fmt: skip
    of_vae, target = optim(made.vae_optim), made.actor_perturbation_target
    nets = {
        "vae.encoder": [Linears([vae.encoder, vae.mean, vae.log_std], of_vae)],
        "vae.decoder": [Linears([vae.decoder], of_vae)],
        "perturb.body": [Linears([moves], optim(made.actor_perturbation_optim))],
        "target_perturb.model.body": [Linears([target])],
        "critic.body": [Linears([policy.critic], optim(made.critic_optim)),
                        Linears([made.critic2], optim(made.critic2_optim))],
        "target_critic.model.body": [Linears([made.critic_target]), Linears([made.critic2_target])],
    }  # fmt: skip
    # patch: target actions are perturbed, as in the paper
    made.critic_target, made.critic2_target = (Perturbed(c, target) for c in (made.critic_target, made.critic2_target))
    shapes = [("n", (p.rows, 1, *many, latent)) for many in ((), (SAMPLES,), (1,))]
    names = {TWO: "loss/critic", "actor_loss": "loss/actor", "vae_loss": "loss/vae"}
    update = updating(made, names, lambda k: draws(k, *shapes), truncation=False)
    return Learner(nets, update, "without time limits, which end its returns; target actions are perturbed")


def bc(ours: Ours, discrete: bool = False) -> Learner:
    """As it is."""
    p = Parts(ours)
    actor = p.scores() if discrete else p.action()
    bound = None if discrete else "clip"
    policy = ImitationPolicy(actor=actor, action_space=p.choice if discrete else p.box, action_bound_method=bound)
    made = OfflineImitationLearning(policy=policy, optim=p.adam)
    return Learner({"actor.body": [Linears([actor], optim(made.optim))]}, updating(made, {"loss": "loss/actor"}))


def discrete_bc(ours: Ours) -> Learner:
    """As it is."""
    return bc(ours, discrete=True)


def _stored(s: Stream) -> tuple[ReplayBuffer, np.ndarray]:
    steps = len(s["reward"])
    term, trunc = s["term"].numpy(), (s["done"] & ~s["term"]).numpy()
    found = ReplayBuffer(steps + 1)
    for t in range(steps):
        row = {"obs": float(t), "act": 0.0, "rew": s["reward"][t].item(), "obs_next": t + 0.5, "info": {}}
        found.add(Batch(terminated=term[t], truncated=trunc[t], **row))
    return found, np.arange(steps)


def n_step(s: Stream, discount: float, lam: float) -> dict[str, Tensor]:
    """Of several lengths."""
    rows, index = _stored(s)

    def returns(n: int) -> Tensor:
        values = lambda _, at: s["nextv"][at]  # noqa: E731
        return Algorithm.compute_nstep_return(rows[index], rows, index, values, discount, n).returns

    return {str(n): returns(n) for n in (1, 2, 3, 5)}


def gae(s: Stream, discount: float, lam: float) -> dict[str, Any]:
    """Advantages and targets."""
    rows, index = _stored(s)
    values = s["nextv"].numpy(), s["value"].numpy()
    target, advantage = Algorithm.compute_episodic_return(rows[index], rows, index, *values, gamma=discount,
                                                          gae_lambda=lam)  # fmt: skip
    return {"advantage": advantage, "target": target}


LEARNERS: dict[str, Callable[[Ours], Learner]] = {
    "ddpg": ddpg,
    "td3": td3,
    "sac": sac,
    "discrete_sac": discrete_sac,
    "dqn": dqn,
    "double_dqn": double_dqn,
    "dueling_dqn": dueling_dqn,
    "prioritized_dqn": prioritized_dqn,
    "double_qr_dqn": quantiles,
    "double_c51": c51,
    "rainbow": rainbow,
    "double_iqn": iqn,
    "bc": bc,
    "discrete_bc": discrete_bc,
    "td3_bc": td3_bc,
    "bcq": bcq,
    "discrete_bcq": discrete_bcq,
    "discrete_cql": discrete_cql,
    "discrete_crr": discrete_crr,
}

if __name__ == "__main__":
    main(LEARNERS, {"gae": gae, "n_step": n_step}, ["tianshou"])
