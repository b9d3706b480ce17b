"""Networks of on-policy learners: a policy pi(a | s) for any actions and a value V(s), optionally with memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec, action_kind, num_classes_per_choice, num_continuous
from reverie.core.types import Mode, Obs, PolicyOutput, Step
from reverie.nn.cnn import ConvReLU
from reverie.nn.distributions import Categoricals, JointDistribution, legal_classes, slices_by_kind, take_part
from reverie.nn.exploration import StatelessStorage, ignore_executed
from reverie.nn.functional import without_grad
from reverie.nn.memory import MEMORY_COLUMN, Memory, MemoryModule
from reverie.nn.network import NetworkConfig, ObsConcat
from reverie.nn.normals import Normal
from reverie.nn.relu_mlp import ReluMLP


@dataclass(frozen=True, kw_only=True)
class PolicyValueConfig(NetworkConfig):
    """Networks of policy and value: two MLPs, which share nothing by default."""

    units: tuple[int, ...] = (64, 64)
    activation: Literal["tanh", "relu"] = "tanh"
    """Activation between the layers."""
    orthogonal: bool = True
    """Orthogonal initial weights, also of convolutions, and biases of 0, the policy's last layer with gain 0.01. False:
    as in PyTorch."""
    log_std: float = 0.0
    """Initial ln sigma of continuous actions, which does not depend on the state."""
    share_encoder: bool = False
    """Policy and value share the encoder of images, and learn it together."""
    memory: Memory | None = None
    """Memory before the MLPs: lstm(128), gru(128) or transformer(16). The first two learn from sequences: set
    algo.batch_length to the sequence length."""
    critic_memory: Literal["separate", "shared", "none"] = "separate"
    """Memory of the value: separate; shared with the policy, and then trained by the policy alone; or none."""


class PolicyValueBranch(nn.Module):
    """Observations, an optional memory, and an MLP."""

    def __init__(
        self, inputs: ObsConcat | None, outputs: int, cfg: PolicyValueConfig, gain: float, memory: Memory | None,
        width: int = 0,
    ) -> None:  # fmt: skip
        """Without ``inputs`` it reads the output of the other branch's memory, of this ``width``."""
        super().__init__()
        self.inputs = inputs
        self.memory: MemoryModule | None = None if memory is None or inputs is None else memory.build(inputs.width)
        if inputs is not None:
            width = inputs.width if self.memory is None else self.memory.units
        self.body: ReluMLP = ReluMLP(width, cfg.units, outputs, activation=cfg.activation)
        if cfg.orthogonal:
            self.body.initialize(gain)
            for part in self.modules():
                if isinstance(part, ConvReLU):
                    part.initialize()

    @property
    def width(self) -> int:
        """S, the width of its state."""
        return 0 if self.memory is None else self.memory.width

    def with_memory(self, x: Tensor, first: Tensor | None, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Return the inputs of the MLP, given the inputs ``[..., width]``, and the state after them."""
        if self.memory is None or first is None or state is None:
            return x, state
        y, states = self.memory(x.float(), first, state)
        return y, states[:, -1]


class PolicyActor(PolicyValueBranch):
    """A policy pi(a | s): an MLP to logits and means, and a ln sigma that does not depend on the state."""

    def __init__(self, inputs: ObsConcat, spec: ActionSpec, cfg: PolicyValueConfig) -> None:
        super().__init__(inputs, spec.width, cfg, 0.01, cfg.memory)
        self.spec = spec
        numbers = num_continuous(spec)
        self.log_std: nn.Parameter | None = nn.Parameter(torch.full((numbers,), cfg.log_std)) if numbers else None

    def decide(self, y: Tensor, obs: Obs) -> Any:
        """Return the distribution over actions ``[..., A]``, given the input of the MLP."""
        outputs, classes = self.body(y).float(), num_classes_per_choice(self.spec)  # [..., A], logits and means
        if self.log_std is None:
            return Categoricals(outputs, classes, legal=obs.get(MASK_KEY))
        if action_kind(self.spec) == "continuous":
            return Normal(outputs, self.log_std)
        slices = slices_by_kind(self.spec)
        numbers, choices = (take_part(outputs, slices[kind]) for kind in ("numbers", "choices"))
        legal = legal_classes(obs, slices["choices"])
        return JointDistribution(
            {"numbers": Normal(numbers, self.log_std), "choices": Categoricals(choices, classes, legal=legal)}, slices
        )

    def forward(self, obs: Obs) -> Any:
        """Map observations ``[..., *shape]`` to a distribution over actions ``[..., A]``, without memory."""
        assert self.inputs is not None
        return self.decide(self.inputs(obs), obs)


class PolicyValueOutput(NamedTuple):
    """The network outputs for rows ``[B, T]``."""

    policy: Any
    """Distribution over actions ``[B, T, A]``, ``nn/distributions.py``."""
    values: Tensor
    """Values, ``[B, T, V]``: of the rewards, and of the intrinsic rewards if they have a separate critic."""
    state: Tensor | None
    """State of the memories after the rows, ``[B, S]``; None without memory."""

    @property
    def value(self) -> Tensor:
        """The value of the rewards, ``[B, T]``."""
        return self.values[..., 0]


class PolicyValue(nn.Module):
    """Policy and value of rows."""

    def __init__(
        self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: PolicyValueConfig, dtype: torch.dtype = torch.float32,
        num_values: int = 1,
    ) -> None:  # fmt: skip
        """``num_values``: V, number of values of each row."""
        super().__init__()
        kind = cfg.critic_memory
        inputs = ObsConcat(obs_spec, cfg, dtype)
        self.actor: PolicyActor = PolicyActor(inputs, action_spec, cfg)
        shared = self.actor.memory if kind == "shared" else None
        critic_inputs = None if shared is not None else inputs if cfg.share_encoder else ObsConcat(obs_spec, cfg, dtype)
        memory = cfg.memory if kind == "separate" else None
        self.critic: PolicyValueBranch = PolicyValueBranch(
            critic_inputs, num_values, cfg, 1.0, memory, 0 if shared is None else shared.units
        )

    @property
    def width(self) -> int:
        """S, the width of the state of both memories; 0 if there is none."""
        return self.actor.width + self.critic.width

    def forward(self, obs: Obs, first: Tensor | None = None, state: Tensor | None = None) -> PolicyValueOutput:
        """Return the policy and the values of observations ``[B, T, *shape]``; without memory, of any leading axes.

        With memory, ``first`` ``[B, T]`` marks where episodes begin, and ``state`` ``[B, S]`` is the one before row 0.
        """
        assert self.actor.inputs is not None
        cut = self.actor.width
        of_actor, of_critic = (None, None) if state is None else (state[..., :cut], state[..., cut:])
        x = self.actor.inputs(obs)
        y, of_actor = self.actor.with_memory(x, first, of_actor)
        if self.critic.inputs is None:
            z = y.detach()
        else:
            critic_x = x if self.critic.inputs is self.actor.inputs else self.critic.inputs(obs)
            z, of_critic = self.critic.with_memory(critic_x, first, of_critic)
        values = self.critic.body(z).float()
        after = None if of_actor is None or of_critic is None else torch.cat([of_actor, of_critic], -1)
        return PolicyValueOutput(self.actor.decide(y, obs), values, after)


class MemoryState(NamedTuple):
    """State of the memories of N environments, before and after the newest row."""

    before: Tensor  # [N, S]
    after: Tensor  # [N, S]


class RecurrentPolicy(StatelessStorage[MemoryState]):
    """A stochastic policy with memory, whose state before each row is stored with the row."""

    override = ignore_executed

    def __init__(self, network: PolicyValue, device: torch.device) -> None:
        self.network = network
        self.device = device

    def initial(self, num_envs: int) -> MemoryState:
        blank = torch.zeros(num_envs, self.network.width, device=self.device)
        return MemoryState(blank, blank)

    def evaluate(self, step: Step, state: MemoryState) -> PolicyValueOutput:
        """Return policy, values and state for rows ``[N, 1]``."""
        obs = {key: x.unsqueeze(1) for key, x in step.obs_on(self.device).items()}  # [N, 1, ...]
        decision: PolicyValueOutput = self.network(obs, step.is_first.to(self.device).unsqueeze(1), state.after)
        return decision

    @without_grad
    def act(self, step: Step, state: MemoryState, mode: Mode) -> tuple[Tensor, MemoryState]:
        decision: Any = self.evaluate(step, state)
        action = decision.policy.mode() if mode == "eval" else decision.policy.sample()
        return action.squeeze(1).to(step.reward.device), MemoryState(state.after, decision.state)

    def inspect(self, step: Step, state: MemoryState) -> PolicyOutput:
        decision = self.evaluate(step, state)
        return PolicyOutput(decision, decision.policy)

    def extras(self, state: MemoryState) -> dict[str, Tensor]:
        return {MEMORY_COLUMN: state.before}
