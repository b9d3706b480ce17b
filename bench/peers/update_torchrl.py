"""TorchRL: its DreamerV3Loss, optimizer and stepper around its own modules, wired as its documentation does.

On the CPU they are eager, on a GPU compiled and captured, as they are of themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from measure import ACTIONS, HORIZON, SIZES, Place, Sizes, Subject, actions, count, main
from tensordict import NestedKey, TensorDict
from tensordict.nn import (
    InteractionType,
    ProbabilisticTensorDictModule,
    ProbabilisticTensorDictSequential,
    TensorDictModule,
    TensorDictSequential,
)
from torch import nn
from torchrl.data import Bounded, Composite, OneHot, Unbounded
from torchrl.envs.model_based import DreamerEnv
from torchrl.modules import (
    DreamerV3DiscreteActor,
    DreamerV3ImageDecoder,
    DreamerV3ImageEncoder,
    DreamerV3MLP,
    IndependentNormal,
    RSSMPosteriorV3,
    RSSMPriorV3,
    RSSMRolloutV3,
    RSSMStateEstimatorV3,
    SymExpTwoHot,
    WorldModelWrapper,
)
from torchrl.objectives import (
    DreamerV3ActorLoss,
    DreamerV3Loss,
    DreamerV3ModelLoss,
    DreamerV3ValueLoss,
    SoftUpdate,
    symexp,
    symlog,
)
from torchrl.objectives.utils import ValueEstimators
from torchrl.trainers.algorithms.dreamer_v3 import DreamerV3OptimizationStepper, DreamerV3Optimizer

UNIMIX, BINS, GAMMA = 0.01, 255, 1 - 1 / 333
UNROLL = 8
"""Steps of the recurrence that its compiled scan takes at once, by default."""


def step(module: Callable, inputs: list, outputs: list) -> TensorDictModule:
    """A module between keys."""
    return TensorDictModule(module, in_keys=inputs, out_keys=outputs)


class Gaussian(nn.Module):
    """The policy for continuous actions, of which TorchRL has only the parts."""

    def __init__(self, width: int, units: int):
        super().__init__()
        self.trunk = DreamerV3MLP(width, 2 * ACTIONS, num_cells=units, outscale=0.01)

    def forward(self, state: torch.Tensor, belief: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        mean, spread = self.trunk(state, belief).chunk(2, -1)
        return mean.tanh().float(), (0.9 * torch.sigmoid(spread + 2) + 0.1).float()


class Full(nn.Module):
    """A number in float32 from here on, as its own DreamerV3 has it behind every head."""

    def forward(self, value: torch.Tensor) -> torch.Tensor:
        return value.float()


def full(key: NestedKey) -> TensorDictModule:
    """What is at this key, in float32."""
    return step(Full(), [key], [key])


class Networks:
    """Every module that learns."""

    def __init__(self, s: Sizes):
        flat = s.stoch * s.classes
        width = flat + s.deter
        self.encoder = DreamerV3ImageEncoder(depth=s.depth) if s.image else DreamerV3MLP(s.vector, None, 3, s.units)
        self.embedded = self.encoder.output_features((3, 64, 64)) if s.image else s.units
        decoder = DreamerV3ImageDecoder(width, depth=s.depth) if s.image else DreamerV3MLP(width, s.vector, 3, s.units)
        self.decoder = decoder
        sizes = {"hidden_dim": s.hidden, "rnn_hidden_dim": s.deter, "num_categoricals": s.stoch}
        sizes |= {"num_classes": s.classes, "unimix": UNIMIX}
        self.prior = RSSMPriorV3(
            action_shape=(ACTIONS,), action_dim=ACTIONS, recurrent_model="block_gru", **sizes
        )  # fmt: skip
        self.posterior = RSSMPosteriorV3(obs_embed_dim=self.embedded, use_rms_norm=True, **sizes)
        self.reward = DreamerV3MLP(width, BINS, 1, s.units, outscale=0.0)
        self.go_on = DreamerV3MLP(width, 1, 1, s.units)
        self.value = DreamerV3MLP(width, BINS, 3, s.units, outscale=0.0)
        self.actor = self.policy(s, width)

    def policy(self, s: Sizes, width: int) -> ProbabilisticTensorDictSequential:
        """The actor from latents to actions."""
        if not s.continuous:
            return DreamerV3DiscreteActor(width, ACTIONS, num_cells=s.units, unimix=UNIMIX)
        sample = ProbabilisticTensorDictModule(
            in_keys=["loc", "scale"], out_keys=["action"], distribution_class=IndependentNormal,
            default_interaction_type=InteractionType.RANDOM, return_log_prob=True, log_prob_key="action_log_prob",
        )  # fmt: skip
        return ProbabilisticTensorDictSequential(
            step(Gaussian(width, s.units), ["state", "belief"], ["loc", "scale"]), sample
        )  # fmt: skip


def world_model(n: Networks, s: Sizes) -> TensorDictSequential:
    """From rows to everything that the loss of the model looks at."""
    latent = [("next", "state"), ("next", "belief")]
    seen, shown, embedded = ("next", "observation"), ("next", "reco_pixels"), ("next", "encoded_latents")
    beliefs = [("next", "prior_logits"), ("next", "state"), ("next", "belief")]
    rollout = RSSMRolloutV3(
        step(n.prior, ["state", "belief", "action"], beliefs),
        step(n.posterior, [("next", "belief"), embedded], [("next", "posterior_logits"), ("next", "state")]),
    )
    encode = nn.Identity() if s.image else symlog
    decode = nn.Identity() if s.image else symexp
    return TensorDictSequential(
        step(encode, [seen], [embedded]), step(n.encoder, [embedded], [embedded]), rollout,
        step(n.decoder, latent, [shown]), full(shown), step(decode, [shown], [shown]),
        step(n.reward, latent, [("next", "reward_logits")]), full(("next", "reward_logits")),
        step(SymExpTwoHot(BINS), [("next", "reward_logits")], [("next", "reward")]),
        step(n.go_on, latent, [("next", "continue_pred")]), full(("next", "continue_pred")),
    )  # fmt: skip


def imagination(n: Networks, s: Sizes, device: str) -> DreamerEnv:
    """The environment of latents."""
    latent = ["state", "belief"]
    reward = TensorDictSequential(
        step(n.reward, latent, ["reward_logits"]), full("reward_logits"),
        step(SymExpTwoHot(BINS), ["reward_logits"], ["reward"]),
    )  # fmt: skip
    model = WorldModelWrapper(step(n.prior, [*latent, "action"], ["_", *latent]), reward)
    flat = s.stoch * s.classes
    env = DreamerEnv(model.to(device), prior_shape=(flat,), belief_shape=(s.deter,), device=device)
    env.observation_spec = Composite(state=Unbounded(flat), belief=Unbounded(s.deter)).to(device)
    env.state_spec = env.observation_spec.clone()
    env.action_spec = (Bounded(-1, 1, (ACTIONS,)) if s.continuous else OneHot(ACTIONS)).to(device)
    env.reward_spec = Unbounded((1,), device=device)
    with torch.no_grad():
        env.rollout(3)
    return env


def losses(n: Networks, s: Sizes, device: str) -> DreamerV3Loss:
    """The three objectives, with the constants of the paper, of modules that are there before."""
    latent = ["state", "belief"]
    world = world_model(n, s).to(device)
    go_on = TensorDictSequential(
        step(n.go_on, latent, ["continue_logits"]), full("continue_logits"),
        step(nn.Sigmoid(), ["continue_logits"], ["continuation"]),
    ).to(device)  # fmt: skip
    value = TensorDictSequential(
        step(n.value, latent, ["state_value_logits"]), full("state_value_logits"),
        step(SymExpTwoHot(BINS), ["state_value_logits"], ["state_value"]),
    ).to(device)  # fmt: skip
    model = DreamerV3ModelLoss(
        world, kl_mode="separate", unimix=UNIMIX, lambda_continue=1.0, continue_target_scale=GAMMA,
        reco_symlog=not s.image, detach_output=False,
    )  # fmt: skip
    model.set_keys(pixels="observation")
    actor = DreamerV3ActorLoss(
        n.actor.to(device), value, imagination(n, s, device),
        continuation_model=go_on, imagination_horizon=HORIZON, use_reinforce=True,
    )  # fmt: skip
    actor.make_value_estimator(ValueEstimators.TDLambda, gamma=1.0, lmbda=0.95)
    critic = DreamerV3ValueLoss(
        value, value_loss="two_hot", num_value_bins=BINS, actor_loss=actor, slow_critic_regularization=1.0
    )  # fmt: skip
    return DreamerV3Loss(model, actor, critic).to(device)


def observations(s: Sizes, *lead: int) -> torch.Tensor:
    """Noise as what is seen."""
    return torch.randint(0, 256, (*lead, 3, 64, 64), dtype=torch.uint8) if s.image else torch.randn(*lead, s.vector)


def batch(s: Sizes) -> TensorDict:
    """Noise as its replay gives it."""
    lead = (s.batch, s.length)
    flags = {key: torch.zeros(*lead, 1, dtype=torch.bool) for key in ("done", "terminated")}
    after = {"observation": observations(s, *lead), "reward": torch.randn(*lead, 1), **flags}
    latent = {"state": torch.zeros(*lead, s.stoch * s.classes), "belief": torch.rand(*lead, s.deter)}
    first = torch.zeros(*lead, 1, dtype=torch.bool)
    return TensorDict({**latent, "action": actions(s, *lead), "is_init": first, "next": after}, lead)


def acting(n: Networks, s: Sizes, place: Place) -> Callable[[int], Callable[[], object]]:
    """Encoder, state estimator and actor, in bfloat16 where the updates are."""
    encode = nn.Identity() if s.image else symlog
    policy = TensorDictSequential(
        step(encode, ["observation"], ["encoded_latents"]), step(n.encoder, ["encoded_latents"], ["encoded_latents"]),
        RSSMStateEstimatorV3(n.prior, n.posterior), n.actor,
    )  # fmt: skip

    def make(envs: int) -> Callable[[], object]:
        first = torch.zeros(envs, 1, dtype=torch.bool)
        latent = {"state": torch.zeros(envs, s.stoch * s.classes), "belief": torch.zeros(envs, s.deter)}
        start = TensorDict({**latent, "previous_action": torch.zeros(envs, ACTIONS), "is_init": first}, [envs])
        held, obs = start.to(place.device), observations(s, envs)

        @torch.no_grad()
        def act() -> object:
            held["observation"] = obs.to(place.device)
            with torch.autocast(place.device, torch.bfloat16, enabled=place.half):
                policy(held)
            held["previous_action"] = held["action"]
            for key in ("state", "belief") if place.half else ():
                held[key] = held[key].float()
            return held["action"].cpu()

        return act

    return make


def ease_tracing(loss: DreamerV3Loss) -> None:
    """Write in terms that PyTorch 2.11 can trace what would break the graph there.

    The stepper's choice of a scan in steps of eight is a `functools.partial`, whose truth is asked, and environments
    cache in their `__dict__`.
    """
    for module in loss.modules():
        if isinstance(module, RSSMRolloutV3):
            module.compile_rollout("scan", unroll=UNROLL, compile=False)
            module._scan_fn = Scan(module)
        elif isinstance(module, DreamerEnv):
            module.cache_specs = False


class Scan:
    """The recurrence of a rollout, scanned."""

    def __init__(self, rollout: RSSMRolloutV3):
        self.rollout = rollout

    def __call__(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.rollout._scan(*inputs, unroll=UNROLL)


def learner(setting: str, place: Place, compiled: bool | None = None, captured: bool | None = None) -> Subject:
    """A stepper and a batch.

    Args:
        setting: whose sizes it has.
        place: where it is.
        compiled: whether forward and backward pass are compiled in one; by itself it is, on a GPU.
        captured: whether they are a CUDA graph; by itself they are, on a GPU.
    """
    s = SIZES[setting]
    if place.half:
        torch.set_float32_matmul_precision("high")  # as in its own benchmark of the learner
    device = "cuda:0" if place.device == "cuda" else "cpu"
    networks = Networks(s)
    loss, data = losses(networks, s, device), batch(s).to(device)
    target = SoftUpdate(loss.value_loss, tau=0.02)
    stepper = DreamerV3OptimizationStepper(
        loss, DreamerV3Optimizer(loss.parameters()), target,
        compile_train_step=compiled, cudagraph=captured, mixed_precision=place.half,
    )  # fmt: skip
    if stepper.resolve(data.device)[0]:
        ease_tracing(loss)
    if any(stepper.resolve(data.device)):
        stepper.warmup(data.copy())
    precision = "bfloat16 autocast, the rest in TF32" if place.half else "float32"
    act = acting(networks, s, place)
    return Subject(count(loss), lambda: stepper.step(None, data.copy()), act, precision, place.wait, place.peak)


if __name__ == "__main__":
    variants = {
        "compiled": partial(learner, compiled=True, captured=False),
        "eager": partial(learner, compiled=False, captured=False),
    }
    main({"dreamer_v3": learner} | variants, movable=True)
