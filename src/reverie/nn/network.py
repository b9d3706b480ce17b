"""Networks of model-free algorithms: observations, through an encoder of images, to a multilayer perceptron with ReLU.

Weights and biases are initialized as in ``torch.nn.Linear``, uniformly within 1 / sqrt(inputs), as in the authors'
code of TD3 and in CleanRL.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from reverie.core.bounds import AtLeast, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import NotesChanges
from reverie.core.specs import ObsPart, ObsSpec, without_mask
from reverie.core.types import Obs
from reverie.nn.bodies import Body
from reverie.nn.cnn import BySize, ImageEncoder, images_of
from reverie.nn.encoder import flat_vector
from reverie.nn.memory import MEMORY_FIRST_KEY, Memory, MemoryModule
from reverie.nn.relu_mlp import HiddenNorm, ReluMLP

CRITIC_SETTINGS = ("critic_units", "critic_norm", "critic_dropout")
"""Settings of networks that only critics of actions read."""


@dataclass(frozen=True, kw_only=True)
class NetworkConfig(Config):
    """An actor or critic: an MLP whose input is vectors, one-hot categoricals and features of images."""

    units: Annotated[tuple[int, ...], AtLeast(1)] = (256, 256)
    """Widths of the hidden layers, first to last; at least one, unless there is a memory."""
    critic_units: Annotated[tuple[int, ...], AtLeast(1)] = ()
    """Widths of the hidden layers of the critics; empty: as ``units``."""
    body: Body | None = None
    """Hidden layers of all networks: simba has a residual block for each of ``units``; batch_renorm and batch_norm
    normalize over the batch. None: an MLP with ReLU."""
    encoder: ImageEncoder | None = None
    """Encoder of images, or of the observations that a custom encoder reads, if there are any. None: by_size, or drq
    for continuous actions off-policy where all sides have at least 36 pixels."""
    critic_norm: HiddenNorm | None = None
    """Layer norm in each hidden layer of the critics: before_relu, as in RLPD, or after_relu, as in ReBRAC. None: no
    norm."""
    critic_dropout: Annotated[float, Within("[0, 1)")] = 0.0
    """Probability with which an update sets an output of a hidden layer of the critics to 0, in steps of 2^-16: Hiraoka
    et al. 2022, "Dropout Q-functions for doubly efficient reinforcement learning". Dropout comes before the norm."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.units and getattr(self, "memory", None) is None:
            raise ConfigError(f"units = {self.units}: expected the widths of at least one hidden layer: (256, 256).")
        if self.body is not None:
            self.body.check(units=self.units, critic_units=self.critic_units or self.units)
            if self.critic_norm is not None or self.critic_dropout:
                name = "critic_dropout" if self.critic_norm is None else "critic_norm"
                raise ConfigError(
                    f"body = {self.body.to_text()}, {name} = {getattr(self, name)}: a body has its own layers. Set "
                    f"{name} to {'None' if name == 'critic_norm' else 0}, or remove the body."
                )

    def check_settings(self, path: str, allowed: Collection[str], algorithm: str) -> None:
        """Raise ConfigError if a setting that not all algorithms read is neither its default nor ``allowed``."""
        for name in ("body", *CRITIC_SETTINGS):
            if (value := getattr(self, name)) and name not in allowed:
                text = value.to_text() if isinstance(value, Body) else value
                raise ConfigError(f"{path}.{name} = {text}: it has no effect on these networks of {algorithm}.")
        for name, kind in Body.variants().items():
            if type(self.body) is kind and kind.trained_by and name not in allowed:
                raise ConfigError(
                    f"{path}.body = {self.body.to_text()}: {algorithm} does not train such a body. Use "
                    f"{kind.trained_by}, or another body."
                )


@dataclass(frozen=True, kw_only=True)
class MemoryNetworkConfig(NetworkConfig):
    """An actor or critic that may have a memory. Copies of a critic share it."""

    memory: Memory | None = None
    """Memory before the MLP: lstm(128), gru(128) or transformer(16). The first two learn from sequences: set
    algo.batch_length to the sequence length."""
    burn_in: Annotated[int, AtLeast(0)] = 0
    """Rows before each sequence that refresh its stored state and are not learned from: Kapturowski et al. 2019,
    "Recurrent experience replay in distributed reinforcement learning", section 3."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.burn_in and self.memory is None:
            raise ConfigError(f"burn_in = {self.burn_in}: there is no memory to bring up to date. Set memory too.")


FEATURES = "(features)"
"""Key under which networks find the features ``[..., F]`` of a shared encoder, instead of the encoder's inputs."""


class ObsConcat(nn.Module):
    """Concatenates observations to one vector: numbers unchanged, categoricals one-hot, images through an encoder."""

    def __init__(self, spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype) -> None:
        super().__init__()
        spec = without_mask(spec)
        encoder: Any = cfg.encoder or BySize()
        self.read: ObsSpec = getattr(encoder, "reads", images_of)(spec)
        self.vectors: dict[str, ObsPart] = {key: spec[key] for key in sorted(spec) if key not in self.read}
        self.dtype = dtype
        self.encoder: Any = encoder.build(self.read) if self.read else None
        self.trunk: Any = None if self.encoder is None else encoder.build_trunk(self.encoder.width)
        self.width: int = sum(part.width for part in self.vectors.values())
        if self.encoder is not None:
            self.width += self.encoder.width if self.trunk is None else self.trunk.width

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to a vector ``[..., width]``."""
        parts = [flat_vector(obs[key], part).to(self.dtype) for key, part in self.vectors.items()]
        if self.encoder is not None:
            features = obs[FEATURES] if FEATURES in obs else self.encoder(obs, self.dtype)
            parts.append(features if self.trunk is None else self.trunk(features))
        return torch.cat(parts, -1) if len(parts) > 1 else parts[0]

    def encode(self, obs: Obs) -> Obs:
        """Return the observations ``[..., *shape]`` with features instead of the encoder's inputs."""
        features = self.encoder(obs, self.dtype)
        return {key: x for key, x in obs.items() if key not in self.read} | {FEATURES: features}


class MemoryInputs(ObsConcat):
    """The output of a memory over the vectors of rows ``[B, T]``, or of single rows ``[N]``.

    ``obs`` also contains ``MEMORY_FIRST_KEY``, where episodes begin, and under :attr:`memory_key` the memory's state
    before each row.
    """

    memory_key = ""
    """Name of the memory's state among the observations: see :class:`~reverie.nn.replay_memory.Memories`."""

    def __init__(self, spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype, memory: Memory) -> None:
        super().__init__(spec, cfg, dtype)
        self.memory: MemoryModule = memory.build(self.width)
        self.width: int = self.memory.units

    def forward(self, obs: Obs) -> Tensor:
        """Map observations ``[..., *shape]`` to a vector ``[..., width]``."""
        return self.with_memory(obs)[0].to(self.dtype)

    def with_memory(self, obs: Obs) -> tuple[Tensor, Tensor]:
        """Return the memory output for rows ``[B, T]`` or ``[N]``, and its state after each, ``[..., S]``."""
        x, first, state = super().forward(obs).float(), obs[MEMORY_FIRST_KEY], obs[self.memory_key]
        if first.ndim == 2:
            return self.memory(x, first, state[:, 0])
        y, after = self.memory(x.unsqueeze(1), first.unsqueeze(1), state)
        return y.squeeze(1), after.squeeze(1)


def build_inputs(spec: ObsSpec, cfg: NetworkConfig, dtype: torch.dtype) -> ObsConcat:
    """Return the inputs of a network, with memory if ``cfg`` has one."""
    memory = getattr(cfg, "memory", None)
    return ObsConcat(spec, cfg, dtype) if memory is None else MemoryInputs(spec, cfg, dtype, memory)


class Network(NotesChanges, nn.Module):
    """Observations, and optionally another input, through an MLP, or K of them (``copies``) that share an encoder."""

    def __init__(
        self,
        spec: ObsSpec,
        outputs: int | None,
        cfg: NetworkConfig,
        dtype: torch.dtype = torch.float32,
        *,
        extra_inputs: int = 0,
        is_critic: bool = False,
        **settings: Any,
    ) -> None:
        """``outputs``: their number; None: one, without an axis. ``extra_inputs``: the other input's width.

        ``is_critic``: whether the settings of critics apply. ``settings`` are passed to :class:`ReluMLP` or to
        the ``body`` in ``cfg``.
        """
        super().__init__()
        self.inputs: ObsConcat = build_inputs(spec, cfg, dtype)
        units = cfg.critic_units if is_critic and cfg.critic_units else cfg.units
        if is_critic and cfg.body is None:
            settings |= {"norm": cfg.critic_norm, "dropout": cfg.critic_dropout}
        build = ReluMLP if cfg.body is None else cfg.body.build
        self.body: nn.Module = build(self.inputs.width + extra_inputs, units, outputs or 1, **settings)
        self.is_scalar: bool = outputs is None

    def forward(self, obs: Obs, *inputs: Tensor, copy: int | None = None) -> Any:
        """Return the outputs ``[..., outputs]``, float32; ``[K, ...]`` of K copies, or the outputs of one ``copy``."""
        x = self.inputs(obs)
        y: Tensor = self.body(x, *[part.to(x.dtype) for part in inputs], copy=copy).float()
        return y.squeeze(-1) if self.is_scalar else y


def share_encoder(critic: Any, *networks: Any) -> None:
    """Make the other networks use the critic's encoder, which only the critic's loss trains: DrQ-v2's algorithm.

    As there, the encoder has no target network: Yarats et al. 2022, arXiv:2107.09645, section 3.1. A critic without the
    attribute ``inputs`` shares none.
    """
    for network in networks if hasattr(critic, "inputs") else ():
        network.inputs.encoder = critic.inputs.encoder


def unshared_parameters(network: nn.Module, base: nn.Module) -> list[nn.Parameter]:
    """Return the parameters of ``network`` that ``base`` does not have."""
    shared = {id(p) for p in base.parameters()}
    return [p for p in network.parameters() if id(p) not in shared]
