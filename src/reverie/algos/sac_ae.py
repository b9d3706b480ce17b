"""SAC-AE: Yarats et al., "Improving sample efficiency in model-free reinforcement learning from images", AAAI 2021.

SAC from images, whose encoder also learns to reconstruct them: arXiv:1910.01741. It follows the authors' code
(github.com/denisyarats/pytorch_sac_ae). Without images it is SAC.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Annotated, ClassVar, cast

import torch
from torch import Tensor, nn

from reverie.algos.sac import SAC, SACConfig, SACObjective, SoftObjective
from reverie.core.bounds import Above, AtLeast, ScheduledFloat, Within
from reverie.core.specs import ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Obs, Update
from reverie.nn.actors import BoundedGaussianActor
from reverie.nn.adam import Adam
from reverie.nn.cnn import ConvReLU, Deconvolutions
from reverie.nn.network import FEATURES, NetworkConfig, ObsConcat
from reverie.nn.target_network import TargetNetwork, polyak_update
from reverie.objectives.td import SplitObs, obs_before

# ---------------------------------------------------------------------- losses


class SACAEObjective(SACObjective):
    """The losses of SAC, and of the reconstruction of images from the critic's latent."""

    cfg: SACAEConfig
    build_actor: ClassVar[Callable[..., nn.Module]] = BoundedGaussianActor

    def __init__(self, actor: nn.Module, critic: nn.Module, cfg: SACAEConfig, target_entropy: float) -> None:
        for part in critic.modules():
            if isinstance(part, ConvReLU):
                part.initialize_centers()
        super().__init__(actor, critic, cfg, target_entropy)
        self.target_critic: TargetNetwork = SlowEncoderTarget(critic, cfg)
        inputs = cast(ObsConcat, critic.inputs)
        self.images: dict[str, ObsPart] = {k: part for k, part in inputs.read.items() if part.kind == "image"}
        latent = 0 if inputs.encoder is None else (inputs.trunk or inputs.encoder).width
        decoders = [Deconvolutions(part, latent, cfg.decoder_channels) for part in self.images.values()]
        self.decoders: nn.ModuleList = nn.ModuleList(decoders)

    def reconstruction_loss(self, obs: Obs) -> Tensor:
        """L = E[(g(z) - o)^2] + lambda E[|z|^2] / 2 over images ``[M, H, W, C]``: the code's ``update_decoder``.

        The latent z ``[M, L]`` is the output of the critic's encoder and trunk, o an image of 32 levels with noise. The
        encoder is skipped if ``obs`` has its ``FEATURES`` ``[M, F]`` besides the images.
        """
        inputs = cast(ObsConcat, self.critic.inputs)
        features: Tensor = obs[FEATURES] if FEATURES in obs else inputs.encoder(obs, inputs.dtype)
        z = (features if inputs.trunk is None else inputs.trunk(features)).float()
        errors = [
            (decoder(z) - quantized_image(obs[key], part)).square().mean()
            for decoder, (key, part) in zip(self.decoders, self.images.items(), strict=True)
        ]
        return torch.stack(errors).mean() + self.cfg.latent_coef * 0.5 * z.square().sum(-1).mean()


def quantized_image(image: Tensor, part: ObsPart) -> Tensor:
    """Return an image of 32 levels with uniform noise within a level, in [-0.5, 0.5]: the code's ``preprocess_obs``."""
    levels = ((image.float() - part.low) / (part.high - part.low) * 255).round().div(8).floor()
    return (levels + torch.rand_like(levels)) / 32 - 0.5


class SlowEncoderTarget(TargetNetwork):
    """The target of a critic whose encoder, with its trunk, moves at a separate rate."""

    def __init__(self, source: nn.Module, cfg: SACAEConfig) -> None:
        super().__init__(source, cfg.tau, cfg.target_update_interval)
        self.encoder_rate: float = cfg.encoder_tau

    @torch.no_grad()
    def update(self) -> None:
        if self.interval > 1:
            self.count.add_(1)
        encoder = {id(p) for p in self.model.get_submodule("inputs").parameters()}
        pairs = [*zip(self.model.parameters(), self.source.parameters(), strict=True)]
        for is_encoder, rate in ((True, self.encoder_rate), (False, self.rate)):
            if moved := [pair for pair in pairs if (id(pair[0]) in encoder) is is_encoder]:
                slow, fast = zip(*moved, strict=True)
                polyak_update(slow, fast, rate, self.count if self.interval > 1 else None, self.interval)


# ---------------------------------------------------------------------- learner


class SACAE(SAC):
    """The learner of SAC-AE: SAC's, with decoders and another optimizer of the encoder."""

    objective: SACAEObjective
    losses: ClassVar[dict[str, type[SoftObjective]]] = {"continuous": SACAEObjective}

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: SACAEConfig, device: torch.device) -> None:
        super().__init__(obs_spec, action_spec, cfg, device)
        o = self.objective
        if o.images:
            inputs, target = cast(ObsConcat, o.critic.inputs), cast(ObsConcat, o.target_critic.model.inputs)
            target.encoder = copy.deepcopy(inputs.encoder).requires_grad_(False)  # unlike in SAC
            read = [*inputs.encoder.parameters(), *(() if inputs.trunk is None else inputs.trunk.parameters())]
            self.optims["encoder"] = Adam(read, cfg.encoder_lr)
            self.optims["decoder"] = Adam(
                o.decoders.parameters(), cfg.decoder_lr, weight_decay=cfg.decoder_weight_decay
            )

    def encode(self, batch: Batch) -> tuple[Batch, Batch]:
        """Return the batch twice: the target has a separate encoder."""
        return batch, batch

    def learn(self, batch: Batch, *, updates_actor: bool) -> Update:
        """Take SAC's step, then one of encoder and decoders on the reconstruction.

        The critic's new encoder sees the images once, for the actor and for the reconstruction.
        """
        o = self.objective
        if not o.images:
            return super().learn(batch, updates_actor=updates_actor)
        update = super().learn(batch, updates_actor=False)
        metrics = {**update.metrics}
        obs = obs_before(batch.obs)
        encoded = cast(ObsConcat, o.critic.inputs).encode(obs)
        if updates_actor:  # after the targets, which do not depend on it
            # The gradient of the actor's loss stops at the features.
            detached = SplitObs(encoded | {FEATURES: encoded[FEATURES].detach()}, {})
            metrics |= self.minimize(o.actor_loss(replace(batch, obs=detached)))
        loss = o.reconstruction_loss({key: x.flatten(0, 1) for key, x in (obs | encoded).items()})
        optims = [self.optims[name] for name in ("encoder", "decoder")]
        trained = [[p for p in optim.params if p.requires_grad] for optim in optims]
        gradients = optims[0].gradients(loss, params=[*trained[0], *trained[1]])
        optims[0].apply(gradients[: len(trained[0])])
        optims[1].apply(gradients[len(trained[0]) :])
        return replace(update, metrics=metrics | {"loss/reconstruction": loss.detach()})


# ---------------------------------------------------------------------- settings


@dataclass(frozen=True, kw_only=True)
class SACAEConfig(SACConfig):
    """Settings of SAC-AE, with the defaults of the authors' code; other settings are SAC's.

    Unlike here, the authors initialize linear layers orthogonally, scale pixels to [0, 1] instead of [-0.5, 0.5], and
    the temperature's Adam has a beta1 of 0.5.
    """

    action_kinds: ClassVar[frozenset[str]] = frozenset({"continuous"})

    networks: NetworkConfig = field(  # type: ignore[assignment]  # without SAC's memory
        default_factory=lambda: NetworkConfig(units=(1024, 1024))
    )
    batch_size: int = 128
    actor_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    critic_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    temperature_lr: Annotated[ScheduledFloat, AtLeast(0)] = 1e-4
    temperature: Annotated[ScheduledFloat, Above(0)] = 0.1
    policy_delay: Annotated[int, AtLeast(1)] = 2
    target_update_interval: Annotated[int, AtLeast(1)] = 2
    tau: Annotated[float, Within("(0, 1]")] = 0.01
    encoder_tau: Annotated[float, Within("(0, 1]")] = 0.05
    """Step size of the target critics' encoder per target update."""
    encoder_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of the encoder for the reconstruction."""
    decoder_lr: Annotated[ScheduledFloat, Above(0)] = 1e-3
    """Learning rate of the decoders."""
    decoder_channels: Annotated[int, AtLeast(1)] = 32
    """Number of filters of each layer of the decoders."""
    decoder_weight_decay: Annotated[float, AtLeast(0)] = 1e-7
    """Weight decay of the decoders: this times each parameter is added to its gradient."""
    latent_coef: Annotated[float, AtLeast(0)] = 1e-6
    """lambda, the weight of the latent's squared norm."""


SACAEConfig.learner = SACAE
