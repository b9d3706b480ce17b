"""A module of the user as a learner that only acts: a loop outside of this library trains it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm
from reverie.algos.settings import AlgorithmConfig
from reverie.core.bounds import AtLeast
from reverie.core.columns import ColumnSpec, zero_step
from reverie.core.config import Choice
from reverie.core.errors import ConfigError, format_error
from reverie.core.protocols import Policy
from reverie.core.specs import ActionSpec, ObsSpec, action_kind, num_classes_per_choice
from reverie.core.types import Obs, Window
from reverie.nn.exploration import (
    ActionNoise,
    EpsilonGreedy,
    EpsilonSchedule,
    Gaussian,
    GreedyPolicy,
    NoisyPolicy,
    SampledPolicy,
)
from reverie.nn.functional import mask_illegal


@dataclass(frozen=True, kw_only=True)
class CustomPolicyConfig(AlgorithmConfig):
    """A policy of the user, and the batches to sample for its training."""

    policy: Any = None
    """A module or function of observations, or an object with the methods of ``core/protocols.py: Policy``."""
    exploration: ActionNoise | EpsilonSchedule | str | None = None
    """Noise added to actions, or how often a class is drawn at random. None: neither."""
    batch_length: int = 2

    def __getstate__(self) -> dict[str, Any]:
        """Return what actors get, which act on CPUs."""
        return {**vars(self), "policy": copy.deepcopy(self.policy).cpu()}


@dataclass(frozen=True, kw_only=True)
class CustomRolloutConfig(CustomPolicyConfig):
    """A policy of the user that is trained from rollouts of its current weights."""

    on_policy: ClassVar[bool] = True
    rollout: Annotated[int, AtLeast(1)] = 1
    """T, rows of each environment in a rollout."""


class CustomPolicy(Algorithm):
    """The policy of the user. Its modules stay in the mode, train or eval, that the user sets."""

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: CustomPolicyConfig, device: torch.device
    ) -> None:
        super().__init__(graph=False)
        self.window: Window = Window(batch=cfg.batch_size, length=cfg.batch_length)
        if isinstance(cfg, CustomRolloutConfig):
            self.window = Window(batch=1, length=cfg.rollout, rollout=cfg.rollout, epochs=0, crosses_episodes=True)
        self.extra_spec: Mapping[str, ColumnSpec] = {}
        self.device = device
        self.network: nn.Module = cfg.policy if isinstance(cfg.policy, nn.Module) else Function(cfg.policy)
        self.to(device)
        if _is_policy(cfg.policy):
            _refuse_exploration(cfg)
            self._policy = cfg.policy
            self.extra_spec = _stored_columns(cfg.policy, obs_spec, action_spec.width)
        else:
            self._policy = _make_policy(self.network, cfg, obs_spec, action_spec, device)

    def enter_eval_mode(self) -> None:
        """Leave the modes to the user."""


CustomPolicyConfig.learner = CustomRolloutConfig.learner = CustomPolicy


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Obs], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, obs: Obs) -> Any:
        return self.function(obs)


def _is_policy(policy: object) -> bool:
    """Return whether ``policy`` has the methods of a :class:`~reverie.core.protocols.Policy`."""
    return all(hasattr(policy, name) for name in ("initial", "act", "override", "extras"))


def _stored_columns(policy: Policy[Any], obs_spec: ObsSpec, width: int) -> dict[str, ColumnSpec]:
    """Return the columns that ``policy`` stores with rows, which two first rows of zeros show.

    Raises:
        ConfigError: it cannot act on them, or its actions do not fit this environment.
    """
    try:
        action, state = policy.act(zero_step(obs_spec, 2, first=True), policy.initial(2), "explore")
        extras = policy.extras(state)
    except Exception as error:
        raise ConfigError(f"the policy failed on two rows of zeros: {format_error(error)}") from error
    if action.shape != (2, width):
        raise ConfigError(f"the policy returns {list(action.shape)} for two rows: expected [2, {width}].")
    return {name: ColumnSpec(tuple(x.shape[1:]), str(x.dtype).removeprefix("torch.")) for name, x in extras.items()}


def _refuse_exploration(cfg: CustomPolicyConfig) -> None:
    """Raise ConfigError if ``cfg`` sets an exploration, which a policy that draws its own actions would ignore."""
    if cfg.exploration is not None:
        raise ConfigError(f"exploration = {cfg.exploration}: this policy draws its own actions. Remove exploration.")


def _make_policy(
    network: nn.Module, cfg: CustomPolicyConfig, obs_spec: ObsSpec, action_spec: ActionSpec, device: torch.device
) -> Policy[Any]:
    """Return the policy that acts as the output of ``network`` says, which two observations of zeros show.

    Raises:
        ConfigError: it cannot take observations, or its output fits no action of this environment.
    """
    width = action_spec.width
    obs = zero_step(obs_spec, 2).obs_on(device)
    shapes = ", ".join(f"{key}: {list(x.shape)}" for key, x in obs.items())
    try:
        with torch.no_grad():
            output = network(obs)
    except Exception as error:
        raise ConfigError(
            f"the policy failed: {type(error).__name__}: {error}. It gets a dictionary of tensors {{{shapes}}} and "
            f"returns actions [2, {width}] for these two observations."
        ) from error
    if not isinstance(output, Tensor):
        if callable(getattr(output, "sample", None)) and callable(getattr(output, "mode", None)):
            _refuse_exploration(cfg)
            return SampledPolicy(network, device, graph=False)
        raise ConfigError(
            f"the policy returns {type(output).__name__}: expected a tensor [N, {width}], or a distribution with "
            "sample() and mode()."
        )
    if output.shape != (2, width):
        raise ConfigError(f"the policy returns {list(output.shape)} for two observations: expected [2, {width}].")
    kind = action_kind(action_spec)
    if kind == "mixed":
        raise ConfigError("the policy returns a tensor, but actions are numbers and choices: return a distribution.")
    if kind == "continuous":
        noise: ActionNoise = _exploration(cfg, ActionNoise, kind) or Gaussian(0.0)
        return NoisyPolicy(network, noise, width, device, graph=False)
    schedule: EpsilonSchedule = _exploration(cfg, EpsilonSchedule, kind) or EpsilonGreedy(0.0)
    return GreedyPolicy(
        lambda obs: mask_illegal(network(obs), obs), schedule, num_classes_per_choice(action_spec), device
    )


def _exploration(cfg: CustomPolicyConfig, base: type[Choice], kind: str) -> Any:
    """Return the exploration of ``cfg``, which has to be a ``base`` for actions of this ``kind``."""
    chosen: object = cfg.exploration
    chosen = base.parse(chosen, "exploration") if isinstance(chosen, str) else chosen
    if chosen is None or isinstance(chosen, base):
        return chosen
    raise ConfigError(f"exploration = {chosen}: {kind} actions need one of {', '.join(base.variants())}.")
