"""TorchRL: its loss modules, target updaters and replay buffer, put together as its sota-implementations do."""

from __future__ import annotations

from collections.abc import Callable

import torch
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    NOISE,
    OBS,
    RATE,
    ROWS,
    TAU,
    UNITS,
    Experience,
    Update,
    experience,
    main,
    repeated,
)
from tensordict import TensorDict
from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule, TensorDictSequential
from torch import nn
from torchrl.data import Bounded, Categorical, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.modules import MLP, ProbabilisticActor, QValueActor, TanhModule, TanhNormal, ValueOperator
from torchrl.objectives import (
    BCLoss,
    CQLLoss,
    DDPGLoss,
    DQNLoss,
    HardUpdate,
    IQLLoss,
    SACLoss,
    SoftUpdate,
    TD3BCLoss,
    TD3Loss,
    group_optimizers,
)

SPEC = Bounded(-1.0, 1.0, (ACTIONS,))
Step = Callable[[TensorDict], object]


def network(inputs: int, outputs: int) -> MLP:
    """A perceptron."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=UNITS, activation_class=nn.ReLU)


def deterministic() -> TensorDictSequential:
    """mu(s)."""
    body = TensorDictModule(network(OBS, ACTIONS), in_keys=["observation"], out_keys=["param"])
    return TensorDictSequential(body, TanhModule(in_keys=["param"], out_keys=["action"], spec=SPEC))


def gaussian() -> ProbabilisticActor:
    """pi(a | s)."""
    body = nn.Sequential(network(OBS, 2 * ACTIONS), NormalParamExtractor("biased_softplus_1.0", scale_lb=0.1))
    return ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
        spec=SPEC, distribution_class=TanhNormal, default_interaction_type=InteractionType.RANDOM,
        distribution_kwargs={"low": SPEC.space.low, "high": SPEC.space.high, "tanh_loc": False},
    )  # fmt: skip


def critic() -> ValueOperator:
    """Q(s, a)."""
    return ValueOperator(network(OBS + ACTIONS, 1), in_keys=["action", "observation"])


def adam(params: TensorDict) -> torch.optim.Optimizer:
    """Of one network's parameters."""
    return torch.optim.Adam(list(params.flatten_keys().values()), lr=RATE)


def td3() -> Step:
    """TD3; the actor and the targets at every other step."""
    loss = TD3Loss(
        deterministic(), critic(), num_qvalue_nets=2, loss_function="l2", delay_actor=True, delay_qvalue=True,
        action_spec=SPEC, policy_noise=NOISE, noise_clip=CLIP,
    )  # fmt: skip
    loss.make_value_estimator(gamma=DISCOUNT)
    targets, steps = SoftUpdate(loss, eps=1 - TAU), [0]
    of_actor, of_critic = adam(loss.actor_network_params), adam(loss.qvalue_network_params)

    def step(sample: TensorDict) -> None:
        steps[0] += 1
        q_loss, *_ = loss.value_loss(sample)
        q_loss.backward()
        of_critic.step()
        of_critic.zero_grad(set_to_none=True)
        if steps[0] % DELAY == 0:
            actor_loss, *_ = loss.actor_loss(sample)
            actor_loss.backward()
            of_actor.step()
            of_actor.zero_grad(set_to_none=True)
            targets.step()

    return step


def together(loss: nn.Module, terms: tuple[str, ...], *optims: torch.optim.Optimizer) -> Step:
    """All terms in one backward pass."""
    loss.make_value_estimator(gamma=DISCOUNT)
    optim, targets = group_optimizers(*optims), SoftUpdate(loss, eps=1 - TAU)

    def step(sample: TensorDict) -> None:
        said = loss(sample)
        sum(said[term] for term in terms).backward()
        optim.step()
        optim.zero_grad(set_to_none=True)
        targets.step()

    return step


def sac() -> Step:
    """SAC with its temperature learned."""
    loss = SACLoss(gaussian(), critic(), num_qvalue_nets=2, loss_function="l2", delay_qvalue=True, alpha_init=1.0)
    terms = ("loss_actor", "loss_qvalue", "loss_alpha")
    of_alpha = torch.optim.Adam([loss.log_alpha], lr=RATE)
    return together(loss, terms, adam(loss.actor_network_params), adam(loss.qvalue_network_params), of_alpha)


def ddpg() -> Step:
    """DDPG."""
    loss = DDPGLoss(deterministic(), critic(), loss_function="l2", delay_actor=True, delay_value=True)
    terms = ("loss_actor", "loss_value")
    return together(loss, terms, adam(loss.actor_network_params), adam(loss.value_network_params))


def dqn() -> Step:
    """DQN that is neither double nor dueling."""
    values = QValueActor(network(OBS, CHOICES), spec=Categorical(CHOICES), in_keys=["observation"])
    loss = DQNLoss(values, loss_function="l2", delay_value=True, action_space="categorical")
    loss.make_value_estimator(gamma=DISCOUNT)
    targets = HardUpdate(loss, value_network_update_interval=COPY_EVERY)
    optim = torch.optim.Adam(loss.parameters(), lr=RATE)

    def step(sample: TensorDict) -> None:
        said = loss(sample)["loss"]
        optim.zero_grad()
        said.backward()
        optim.step()
        targets.step()

    return step


def bc() -> Step:
    """Behavior cloning: squared error."""
    loss = BCLoss(deterministic(), loss_function="l2")
    of_actor = torch.optim.Adam(loss.parameters(), lr=RATE)

    def step(sample: TensorDict) -> None:
        loss(sample)["loss_bc"].backward()
        of_actor.step()
        of_actor.zero_grad(set_to_none=True)

    return step


def td3_bc() -> Step:
    """TD3+BC; the actor and the targets at every other step."""
    loss = TD3BCLoss(deterministic(), critic(), action_spec=SPEC, loss_function="l2", policy_noise=NOISE,
                     noise_clip=CLIP)  # fmt: skip
    loss.make_value_estimator(gamma=DISCOUNT)
    targets, steps = SoftUpdate(loss, eps=1 - TAU), [0]
    of_actor, of_critic = adam(loss.actor_network_params), adam(loss.qvalue_network_params)

    def step(sample: TensorDict) -> None:
        steps[0] += 1
        q_loss, _ = loss.qvalue_loss(sample)
        q_loss.backward()
        of_critic.step()
        of_critic.zero_grad(set_to_none=True)
        if steps[0] % DELAY == 0:
            actor_loss, _ = loss.actor_loss(sample)
            actor_loss.backward()
            of_actor.step()
            of_actor.zero_grad(set_to_none=True)
            targets.step()

    return step


def cql() -> Step:
    """CQL with 10 sampled actions and a fixed weight, as by default; the terms that its example steps."""
    loss = CQLLoss(gaussian(), critic(), loss_function="l2")
    loss.make_value_estimator(gamma=DISCOUNT)
    of_alpha = torch.optim.Adam([loss.log_alpha], lr=RATE)
    stepped = group_optimizers(adam(loss.actor_network_params), adam(loss.qvalue_network_params), of_alpha)
    targets = SoftUpdate(loss, eps=1 - TAU)

    def step(sample: TensorDict) -> None:
        q_loss, _ = loss.q_loss(sample)
        cql_loss, _ = loss.cql_loss(sample)
        actor_loss, said = loss.actor_loss(sample)
        alpha_loss, _ = loss.alpha_loss(said)
        (q_loss + cql_loss + actor_loss + alpha_loss.mean()).backward()
        stepped.step()
        stepped.zero_grad(set_to_none=True)
        targets.step()

    return step


def iql() -> Step:
    """IQL."""
    value = ValueOperator(network(OBS, 1), in_keys=["observation"])
    loss = IQLLoss(gaussian(), critic(), value, loss_function="l2", temperature=3.0, expectile=0.7)
    terms = ("loss_actor", "loss_qvalue", "loss_value")
    optims = (loss.actor_network_params, loss.qvalue_network_params, loss.value_network_params)
    return together(loss, terms, *map(adam, optims))


ALGORITHMS: dict[str, Callable[[], Step]] = {
    "td3": td3, "sac": sac, "ddpg": ddpg, "dqn": dqn, "bc": bc, "td3_bc": td3_bc, "cql": cql, "iql": iql,
}  # fmt: skip


def filled(rows: Experience) -> TensorDictReplayBuffer:
    """Its replay with all of them. Its examples sample ahead in threads, without which it is faster on two cores."""
    flags = {"terminated": rows.terminated, "truncated": rows.truncated, "done": rows.terminated | rows.truncated}
    led = {key: torch.from_numpy(flag).unsqueeze(-1) for key, flag in flags.items()}
    led |= {"observation": torch.from_numpy(rows.next_obs), "reward": torch.from_numpy(rows.reward).unsqueeze(-1)}
    seen = {"observation": torch.from_numpy(rows.obs), "action": torch.from_numpy(rows.action)}
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=BATCH)
    replay.extend(TensorDict({**seen, "next": TensorDict(led, [ROWS])}, [ROWS]))
    return replay


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    step, replay = ALGORITHMS[task](), filled(experience(task))
    return repeated(lambda: step(replay.sample()))


if __name__ == "__main__":
    main(build, packages=("torchrl", "tensordict"))
