"""TorchRL: its loss modules, target updaters and replay buffer, put together as its sota-implementations do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import rates_torchrl_images as images
import torch
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    CLIP,
    COPY_EVERY,
    DELAY,
    DISCOUNT,
    IMAGE_TASKS,
    NOISE,
    OBS,
    RATE,
    TAU,
    UNITS,
    Experience,
    Update,
    experience,
    image_experience,
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


class Networks:
    """Networks of vectors; those of images have the same methods."""

    def actor(self, outputs: int) -> MLP:
        """Numbers of a policy."""
        return perceptron(OBS, outputs)

    def critic(self) -> MLP:
        """Q(s, a) of actions and observations."""
        return perceptron(OBS + ACTIONS, 1)

    def values(self) -> MLP:
        """Q(s, .)."""
        return perceptron(OBS, CHOICES)


def perceptron(inputs: int, outputs: int) -> MLP:
    """Two hidden layers."""
    return MLP(in_features=inputs, out_features=outputs, num_cells=UNITS, activation_class=nn.ReLU)


def deterministic(networks: Any) -> TensorDictSequential:
    """mu(s)."""
    body = TensorDictModule(networks.actor(ACTIONS), in_keys=["observation"], out_keys=["param"])
    return TensorDictSequential(body, TanhModule(in_keys=["param"], out_keys=["action"], spec=SPEC))


def gaussian(networks: Any) -> ProbabilisticActor:
    """pi(a | s)."""
    body = nn.Sequential(networks.actor(2 * ACTIONS), NormalParamExtractor("biased_softplus_1.0", scale_lb=0.1))
    return ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
        spec=SPEC, distribution_class=TanhNormal, default_interaction_type=InteractionType.RANDOM,
        distribution_kwargs={"low": SPEC.space.low, "high": SPEC.space.high, "tanh_loc": False},
    )  # fmt: skip


def critic(networks: Any) -> ValueOperator:
    """Q(s, a)."""
    return ValueOperator(networks.critic(), in_keys=["action", "observation"])


def adam(params: TensorDict) -> torch.optim.Optimizer:
    """Of one network's parameters."""
    return torch.optim.Adam(list(params.flatten_keys().values()), lr=RATE)


def td3(networks: Any) -> Step:
    """TD3; the actor and the targets at every other step."""
    loss = TD3Loss(
        deterministic(networks), critic(networks), num_qvalue_nets=2, loss_function="l2", delay_actor=True,
        delay_qvalue=True, action_spec=SPEC, policy_noise=NOISE, noise_clip=CLIP,
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


def sac(networks: Any) -> Step:
    """SAC with its temperature learned."""
    loss = SACLoss(
        gaussian(networks), critic(networks), num_qvalue_nets=2, loss_function="l2", delay_qvalue=True, alpha_init=1.0
    )
    terms = ("loss_actor", "loss_qvalue", "loss_alpha")
    of_alpha = torch.optim.Adam([loss.log_alpha], lr=RATE)
    return together(loss, terms, adam(loss.actor_network_params), adam(loss.qvalue_network_params), of_alpha)


def ddpg(networks: Any) -> Step:
    """DDPG."""
    loss = DDPGLoss(deterministic(networks), critic(networks), loss_function="l2", delay_actor=True, delay_value=True)
    terms = ("loss_actor", "loss_value")
    return together(loss, terms, adam(loss.actor_network_params), adam(loss.value_network_params))


def dqn(networks: Any) -> Step:
    """DQN that is neither double nor dueling."""
    values = QValueActor(networks.values(), spec=Categorical(CHOICES), in_keys=["observation"])
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


def bc(networks: Any) -> Step:
    """Behavior cloning: squared error."""
    loss = BCLoss(deterministic(networks), loss_function="l2")
    of_actor = torch.optim.Adam(loss.parameters(), lr=RATE)

    def step(sample: TensorDict) -> None:
        loss(sample)["loss_bc"].backward()
        of_actor.step()
        of_actor.zero_grad(set_to_none=True)

    return step


def td3_bc(networks: Any) -> Step:
    """TD3+BC; the actor and the targets at every other step."""
    loss = TD3BCLoss(
        deterministic(networks), critic(networks), action_spec=SPEC, loss_function="l2", policy_noise=NOISE,
        noise_clip=CLIP,
    )  # fmt: skip
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


def cql(networks: Any) -> Step:
    """CQL with 10 sampled actions and a fixed weight, as by default; the terms that its example steps."""
    loss = CQLLoss(gaussian(networks), critic(networks), loss_function="l2")
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


def iql(networks: Any) -> Step:
    """IQL."""
    value = ValueOperator(perceptron(OBS, 1), in_keys=["observation"])
    loss = IQLLoss(gaussian(networks), critic(networks), value, loss_function="l2", temperature=3.0, expectile=0.7)
    terms = ("loss_actor", "loss_qvalue", "loss_value")
    optims = (loss.actor_network_params, loss.qvalue_network_params, loss.value_network_params)
    return together(loss, terms, *map(adam, optims))


ALGORITHMS: dict[str, Callable[[Any], Step]] = {
    "td3": td3, "sac": sac, "ddpg": ddpg, "dqn": dqn, "bc": bc, "td3_bc": td3_bc, "cql": cql, "iql": iql,
}  # fmt: skip
ON_IMAGES = ALGORITHMS | {"bc": images.bc}


def filled(rows: Experience, size: int) -> TensorDictReplayBuffer:
    """Its replay with all of them. Its examples sample ahead in threads, without which it is faster on two cores."""
    flags = {"terminated": rows.terminated, "truncated": rows.truncated, "done": rows.terminated | rows.truncated}
    led = {key: torch.from_numpy(flag).unsqueeze(-1) for key, flag in flags.items()}
    led |= {"observation": torch.from_numpy(rows.next_obs), "reward": torch.from_numpy(rows.reward).unsqueeze(-1)}
    seen = {"observation": torch.from_numpy(rows.obs), "action": torch.from_numpy(rows.action)}
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(len(rows.obs)), batch_size=size)
    replay.extend(TensorDict({**seen, "next": TensorDict(led, [len(rows.obs)])}, [len(rows.obs)]))
    return replay


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    if task == "decision_transformer":
        import rates_torchrl_sequences

        return rates_torchrl_sequences.decision_transformer(experience(task))
    if task not in IMAGE_TASKS:
        step, replay = ALGORITHMS[task](Networks()), filled(experience(task), BATCH)
        return repeated(lambda: step(replay.sample()))
    image, rows = IMAGE_TASKS[task], image_experience(IMAGE_TASKS[task])
    obs, next_obs = (np.ascontiguousarray(x.transpose(0, 3, 1, 2)) for x in (rows.obs, rows.next_obs))
    rows = replace(rows, obs=obs, next_obs=next_obs)
    if image.algorithm == "ppo":
        return images.rollouts(image, rows)
    step, replay = ON_IMAGES[image.algorithm](images.ImageNetworks(image)), filled(rows, image.batch)
    return repeated(lambda: step(replay.sample()))


if __name__ == "__main__":
    main(build, packages=("torchrl", "tensordict"))
