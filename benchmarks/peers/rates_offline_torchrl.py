"""TorchRL: its losses for recorded data, put together as its sota-implementations do."""

from __future__ import annotations

from collections.abc import Callable

from rates import CLIP, DELAY, DISCOUNT, NOISE, OBS, RATE, TAU, Update, experience, main, repeated
from rates_torchrl import SPEC, Step, adam, critic, deterministic, filled, gaussian, network, together
from tensordict import TensorDict
from torch import optim
from torchrl.modules import ValueOperator
from torchrl.objectives import BCLoss, CQLLoss, IQLLoss, SoftUpdate, TD3BCLoss, group_optimizers


def bc() -> Step:
    """Behaviour cloning: squared error."""
    loss = BCLoss(deterministic(), loss_function="l2")
    of_actor = optim.Adam(loss.parameters(), lr=RATE)

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
    of_alpha = optim.Adam([loss.log_alpha], lr=RATE)
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


ALGORITHMS: dict[str, Callable[[], Step]] = {"bc": bc, "td3_bc": td3_bc, "cql": cql, "iql": iql}


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    step, replay = ALGORITHMS[task](), filled(experience(task))
    return repeated(lambda: step(replay.sample()))


if __name__ == "__main__":
    main(build, packages=("torchrl", "tensordict"))
