"""Exploration: noise added to actions, epsilon-greedy actions, and samples of a stochastic policy."""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

import torch
from torch import Tensor, nn

from reverie.core.bounds import Above, AtLeast, PiecewiseLinear, ScheduledFloat, Within
from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import accelerated
from reverie.core.specs import MASK_KEY
from reverie.core.types import Mode, Obs, PolicyOutput, QValues, Step
from reverie.nn.functional import is_traced, one_hot, sample_legal, without_grad
from reverie.objectives.categorical import join_choices, split_choices


class Capturable:
    """An object of whose calls a kernel has captured something, which copies do not share."""

    fast: Any = None

    def __getstate__(self) -> dict[str, Any]:
        """Return the attributes of a copy, which has its own captures."""
        return {**vars(self), "fast": None}


class CapturableFunction(Capturable):
    """A function of observations that calls a network and depends on no other state that changes."""

    def __init__(
        self, function: Callable[[Obs], Tensor], network: nn.Module, *, static: bool = False, graph: bool = True
    ) -> None:
        """``function`` calls ``network``; ``static``: it makes the same calls each time, so that it may be captured.

        ``graph``: it may be captured as a CUDA graph.
        """
        self.function = function
        self.network = network
        self.static = static
        self.graph = graph

    @accelerated
    def __call__(self, obs: Obs) -> Tensor:
        """Return ``function(obs)`` of observations ``[N, ...]``."""
        return self.function(obs)

    @accelerated
    def beside(self, obs: Obs, rows: Tensor, device: torch.device) -> Tensor:
        """Return ``function(obs)`` on the device of the flags ``rows`` ``[N]``; the network is on ``device``."""
        if device.type == "cpu" and rows.is_cpu:
            return self(obs)
        return self({key: x.to(device, non_blocking=True) for key, x in obs.items()}).to(rows.device)


def _as_capturable(function: Callable[[Obs], Tensor]) -> CapturableFunction:
    """Return ``function``; only its networks and capturable functions can be captured."""
    if isinstance(function, CapturableFunction):
        return function
    if isinstance(function, nn.Module):
        return CapturableFunction(function, function)
    return CapturableFunction(function, nn.Identity(), graph=False)


# ---------------------------------------------------------------------- schedules


def _check_steps(name: str, final: float | None, anneal_steps: int) -> None:
    if (anneal_steps > 0) != (final is not None):
        raise ConfigError(f"{name} = {final}, anneal_steps = {anneal_steps}: set both to anneal, or neither.")


def _anneal(first: float, final: float | None, anneal_steps: int, steps: Tensor) -> Tensor | float:
    if final is None:
        return first
    return first + (steps.sum() / anneal_steps).clamp(max=1) * (final - first)


def _may_any(flags: Tensor) -> bool:
    """Return whether any of the flags ``[N]`` may be set; fast for few flags on the CPU, and never waits for a GPU."""
    return is_traced(flags) or not flags.is_cpu or True in flags.tolist()


def _advance_counters(steps: Tensor, step: Step) -> Tensor:
    """Return the step counters ``[N]``, plus one for each environment whose episode has not ended.

    Counters stay on the CPU: with rows on a GPU, ``advance_schedule`` sets them in each turn.
    """
    if step.is_last.device != steps.device:
        return steps
    return steps + ~step.is_last if _may_any(step.is_last) else steps + 1


class NoiseState(NamedTuple):
    """The state of the noise of N environments."""

    process: Tensor  # [N, A], x
    steps: Tensor  # [N] int64, actions taken; their sum sets the schedules


class GreedyState(NamedTuple):
    """The step counters of N environments."""

    steps: Tensor  # [N] int64, actions taken; their sum sets the schedule


@dataclass(frozen=True)
class ActionNoise(Choice, ABC):
    """Noise ``sigma x``, added to actions in [-1, 1]. x starts at 0 in each episode; sigma may be annealed."""

    def initial(self, num_envs: int, width: int) -> NoiseState:
        """Return the state before the first action, for actions of ``width`` numbers."""
        return NoiseState(torch.zeros(num_envs, width), torch.zeros(num_envs, dtype=torch.int64))

    def __call__(self, state: NoiseState, step: Step) -> tuple[Tensor, NoiseState]:
        """Return noise ``[N, A]`` for the next actions, and the new state, beside the rows ``step``.

        It is drawn from the default generator of that device.
        """
        before = state.process.to(step.is_first.device)  # [N, A]
        if _may_any(step.is_first):
            before = before.masked_fill(step.is_first[:, None], 0.0)
        process = self.next_value(before)  # [N, A]
        return self.scale(state.steps) * process, NoiseState(process, _advance_counters(state.steps, step))

    def amount(self, steps: Tensor) -> Tensor | float:
        """Return sigma, for the log."""
        return self.scale(steps)

    @abstractmethod
    def next_value(self, process: Tensor) -> Tensor:
        """Return the next x ``[N, A]``, given the last one."""

    @abstractmethod
    def scale(self, steps: Tensor) -> Tensor | float:
        """Return sigma. ``steps`` ``[N]`` are the env steps of each environment; their sum sets the schedule."""


@dataclass(frozen=True)
class Gaussian(ActionNoise):
    """Gaussian noise, independent at each step: x ~ N(0, 1)."""

    sigma: Annotated[float, AtLeast(0)] = 0.1
    """Standard deviation of the noise, 0 or more, where actions are in [-1, 1]."""
    final_sigma: Annotated[float | None, AtLeast(0)] = None
    """Value that sigma reaches after ``anneal_steps``; None keeps it constant."""
    anneal_steps: int = 0
    """Env steps, summed over all environments, over which sigma changes linearly to ``final_sigma``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps("final_sigma", self.final_sigma, self.anneal_steps)

    def next_value(self, process: Tensor) -> Tensor:
        return torch.randn_like(process)

    def scale(self, steps: Tensor) -> Tensor | float:
        return _anneal(self.sigma, self.final_sigma, self.anneal_steps, steps)


@dataclass(frozen=True)
class OrnsteinUhlenbeck(ActionNoise):
    """Correlated noise, for systems with inertia (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016, section 3).

    x <- x - theta dt x + sqrt(dt) N(0, 1),  x = 0 before an episode. The correlation lasts about 1 / (theta dt) steps.
    TorchRL and Stable-Baselines3 use dt = 0.01, which gives 667 steps: weak noise where episodes are shorter.
    """

    theta: Annotated[float, AtLeast(0)] = 0.15
    """Rate at which x returns to 0, per unit of the process's time."""
    sigma: Annotated[float, AtLeast(0)] = 0.2
    """Standard deviation of the noise added per unit of the process's time, where actions are in [-1, 1]."""
    final_sigma: Annotated[float | None, AtLeast(0)] = None
    """Value that sigma reaches after ``anneal_steps``; None keeps it constant."""
    anneal_steps: int = 0
    """Env steps, summed over all environments, over which sigma changes linearly to ``final_sigma``."""
    dt: Annotated[float, Above(0)] = 1.0
    """Length of an env step in the process's time, above 0."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps("final_sigma", self.final_sigma, self.anneal_steps)

    def next_value(self, process: Tensor) -> Tensor:
        return (1 - self.theta * self.dt) * process + math.sqrt(self.dt) * torch.randn_like(process)

    def scale(self, steps: Tensor) -> Tensor | float:
        return _anneal(self.sigma, self.final_sigma, self.anneal_steps, steps)


@dataclass(frozen=True)
class EpsilonSchedule(Choice, ABC):
    """Schedule of the probability that a discrete action is drawn uniformly at random."""

    def amount(self, steps: Tensor) -> Tensor | float:
        """Return epsilon, for the log."""
        return self.epsilon_at(steps)

    @abstractmethod
    def epsilon_at(self, steps: Tensor) -> Tensor | float:
        """Return the probability. ``steps`` ``[N]`` are each environment's env steps; their sum sets the schedule."""


@dataclass(frozen=True)
class EpsilonGreedy(EpsilonSchedule):
    """A random action with probability epsilon, which may be annealed linearly."""

    epsilon: Annotated[ScheduledFloat, Within("[0, 1]")] = 1.0
    """Initial probability of a random action, in [0, 1]; or a schedule, [[0, 1], [1e4, 0.1]], without the others."""
    final_epsilon: Annotated[float | None, Within("[0, 1]")] = None
    """Probability of a random action after ``anneal_steps``, in [0, 1]; None keeps it constant."""
    anneal_steps: int = 0
    """Env steps, summed over all environments, over which epsilon changes linearly to ``final_epsilon``."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _check_steps("final_epsilon", self.final_epsilon, self.anneal_steps)
        if isinstance(self.epsilon, PiecewiseLinear) and self.anneal_steps:
            raise ConfigError(f"epsilon = {self.epsilon}, anneal_steps = {self.anneal_steps}: set only one of them.")

    def epsilon_at(self, steps: Tensor) -> Tensor | float:
        if isinstance(self.epsilon, PiecewiseLinear):
            return self.epsilon.value_at(int(steps.sum()))
        return _anneal(self.epsilon, self.final_epsilon, self.anneal_steps, steps)


# ---------------------------------------------------------------------- policies

S = TypeVar("S")
C = TypeVar("C", NoiseState, GreedyState)


def ignore_executed(self: object, state: S, action: Tensor) -> S:
    """Return ``state``: the ``override`` of a policy whose state does not depend on the executed action."""
    return state


class StatelessStorage(Capturable, Generic[S]):
    """A policy that stores nothing with the rows. Whatever has a state says what an executed action does to it."""

    def extras(self, state: S) -> dict[str, Tensor]:
        return {}


class CountingPolicy(StatelessStorage[C]):
    """A policy that counts the steps of each environment, because their sum sets how much it explores."""

    override = ignore_executed

    def memoryless(self, mode: Mode) -> bool:
        return mode == "eval"

    def advance_schedule(self, state: C, env_steps: int) -> C:
        """Return the initial ``state``, with exploration set as after ``env_steps`` env steps in total."""
        envs = len(state.steps)
        return state._replace(steps=(env_steps + torch.arange(envs)) // envs)


class NoisyPolicy(CountingPolicy[NoiseState]):
    """A deterministic actor, with noise added to its actions while exploring."""

    def __init__(
        self, actor: nn.Module, noise: ActionNoise, width: int, device: torch.device, graph: bool = True
    ) -> None:
        self.actor: CapturableFunction = CapturableFunction(actor, actor, graph=graph)
        self.noise = noise
        self.width = width
        self.device = device

    def initial(self, num_envs: int) -> NoiseState:
        return self.noise.initial(num_envs, self.width)

    @accelerated
    @without_grad
    def act(self, step: Step, state: NoiseState, mode: Mode) -> tuple[Tensor, NoiseState]:
        """Return ``(action [N, A], state)``: mu(s) + noise, clipped to [-1, 1]; mu(s) in mode ``eval``."""
        action = self.actor.beside(step.obs, step.is_first, self.device)  # [N, A]
        if mode == "eval":
            return action, state
        noise, state = self.noise(state, step)
        return (action + noise).clamp(-1, 1), state

    def inspect(self, step: Step, state: NoiseState) -> PolicyOutput:
        obs = step.obs_on(self.device)
        return PolicyOutput(obs, self.actor.network(obs))


class SampledPolicy(StatelessStorage[None]):
    """A stochastic actor: actions are samples while exploring and modes in evaluations. It has no state."""

    override = ignore_executed

    def __init__(self, actor: nn.Module, device: torch.device, graph: bool = True) -> None:
        self.drawn: CapturableFunction = CapturableFunction(
            functools.partial(sample_actions, actor), actor, graph=graph
        )
        self.best: CapturableFunction = CapturableFunction(functools.partial(_mode_actions, actor), actor, graph=graph)
        self.actor = actor
        self.device = device

    def initial(self, num_envs: int) -> None:
        pass

    @accelerated
    @without_grad
    def act(self, step: Step, state: None, mode: Mode) -> tuple[Tensor, None]:
        chosen = self.best if mode == "eval" else self.drawn
        return chosen.beside(step.obs, step.is_first, self.device), None

    def inspect(self, step: Step, state: None) -> PolicyOutput:
        obs = step.obs_on(self.device)
        return PolicyOutput(obs, self.best.network(obs))

    def memoryless(self, mode: Mode) -> bool:
        return True


class NoisySampledPolicy(NoisyPolicy):
    """A stochastic actor, with noise added to its sampled actions while exploring; modes in evaluations."""

    def __init__(
        self, actor: nn.Module, noise: ActionNoise, width: int, device: torch.device, graph: bool = True
    ) -> None:
        super().__init__(actor, noise, width, device, graph)
        self.inner: SampledPolicy = SampledPolicy(actor, device, graph)

    @without_grad
    def act(self, step: Step, state: NoiseState, mode: Mode) -> tuple[Tensor, NoiseState]:
        """Return ``(action [N, A], state)``: a sample + noise, clipped to [-1, 1]; the mode in mode ``eval``."""
        action, _ = self.inner.act(step, None, mode)  # [N, A]
        if mode == "eval":
            return action, state
        noise, state = self.noise(state, step)
        return (action + noise).clamp(-1, 1), state


def sample_actions(actor: nn.Module, obs: Obs) -> Tensor:
    """Return actions ``[N, A]`` sampled from the distribution that ``actor`` predicts."""
    action: Tensor = actor(obs).sample()
    return action


def _mode_actions(actor: nn.Module, obs: Obs) -> Tensor:
    """Return the modes ``[N, A]`` of the distribution that ``actor`` predicts."""
    action: Tensor = actor(obs).mode()
    return action


class GreedyPolicy(CountingPolicy[GreedyState]):
    """An epsilon-greedy policy: the class of the highest value, sometimes a random legal one while exploring.

    With several choices, each is random independently with probability epsilon: the authors' code of Tavakoli et al.
    2018, arXiv:1711.08946.
    """

    def __init__(
        self, values: Callable[[Obs], Tensor], randomness: EpsilonSchedule, classes: tuple[int, ...],
        device: torch.device, noisy_values: Callable[[Obs], Tensor] | None = None,
    ) -> None:  # fmt: skip
        """``values(obs)`` returns the values ``[N, A]`` of all classes; ``classes``: their number in each choice.

        ``noisy_values`` replaces ``values`` while exploring.
        """
        self.values: CapturableFunction = _as_capturable(values)
        self.noisy_values: CapturableFunction = self.values if noisy_values is None else _as_capturable(noisy_values)
        self.randomness = randomness
        self.classes = classes
        self.device = device

    def initial(self, num_envs: int) -> GreedyState:
        return GreedyState(torch.zeros(num_envs, dtype=torch.int64))

    @accelerated
    @without_grad
    def act(self, step: Step, state: GreedyState, mode: Mode) -> tuple[Tensor, GreedyState]:
        """Return ``(action, state)``, the action one-hot ``[N, A]`` beside the rows; mode ``eval`` is greedy.

        Exploration draws from that device's default generator, equally often for each environment and at each step.
        """
        values = (self.values if mode == "eval" else self.noisy_values).beside(
            step.obs, step.is_first, self.device
        )  # [N, A]
        best = [part.argmax(-1) for part in split_choices(values, self.classes)]  # [N] each
        if mode != "eval":
            chance, legal = self.randomness.epsilon_at(state.steps), step.obs.get(MASK_KEY)
            masks = [None] * len(best) if legal is None else split_choices(legal, self.classes)
            choices = zip(best, self.classes, masks, strict=True)
            best = [epsilon_greedy(choice, count, chance, mask) for choice, count, mask in choices]
            state = GreedyState(_advance_counters(state.steps, step))
        hot = [one_hot(choice, part) for choice, part in zip(best, split_choices(values, self.classes), strict=True)]
        return join_choices(hot).float(), state

    def inspect(self, step: Step, state: GreedyState) -> PolicyOutput:
        obs = step.obs_on(self.device)
        return PolicyOutput(obs, QValues(self.values(obs), self.classes))


def epsilon_greedy(best: Tensor, classes: int, chance: Tensor | float, legal: Tensor | None) -> Tensor:
    """Return classes ``[N]``: ``best``, or with probability ``chance`` random ``legal`` ones, ``[N, classes]``."""
    shape, device = (len(best),), best.device
    uniform, random_class = torch.rand(shape, device=device), torch.randint(classes, shape, device=device)  # [N]
    if legal is not None:
        allowed = legal.gather(1, random_class[:, None]).squeeze(1)  # [N]
        random_class = torch.where(allowed, random_class, sample_legal(legal)) if _may_any(~allowed) else random_class
    return torch.where(uniform < chance, random_class, best)


# ---------------------------------------------------------------------- chunks of actions


class ChunkState(NamedTuple):
    """The state of :class:`ChunkPolicy` for N environments."""

    actions: Tensor  # [N, h, A], the newest chunk
    num_taken: Tensor  # [N] int64, how many of its actions were taken
    steps: Tensor  # [] int64, number of decisions in mode "eval"


class ChunkPolicy(StatelessStorage[ChunkState]):
    """A policy that takes all h actions of a chunk before it proposes the next one.

    A new episode begins a new chunk, and so does the row after another action than the chunk's was executed.
    Noise is drawn in each step, whether or not a chunk begins, from the CPU's default generator.
    """

    def __init__(
        self, actor: Callable[[Obs, Tensor | None], Tensor], size: int, width: int, device: torch.device
    ) -> None:
        """``actor(obs, noise)`` returns chunks ``[N, h A]``; ``size`` is h, ``width`` A.

        ``noise`` is standard normal, ``[N, h A]``; None asks for the likeliest chunk.
        """
        self.actor = actor
        self.size = size
        self.width = width
        self.device = device

    def initial(self, num_envs: int) -> ChunkState:
        none = torch.zeros(num_envs, self.size, self.width)
        return ChunkState(none, torch.full((num_envs,), self.size), torch.zeros((), dtype=torch.int64))

    @without_grad
    def act(self, step: Step, state: ChunkState, mode: Mode) -> tuple[Tensor, ChunkState]:
        """Return ``(action [N, A], state)`` beside the rows. Where an episode begins, a new chunk replaces the last."""
        noise = self.draw_noise(len(step), state.steps, mode)
        device = step.is_first.device
        actions, num_taken = state.actions.to(device), state.num_taken.to(device)
        is_over = step.is_first | (num_taken == self.size)
        if _may_any(is_over):
            actions = torch.where(is_over.view(-1, 1, 1), self.propose(step, noise), actions)
            num_taken = num_taken.masked_fill(is_over, 0)
        index = num_taken.view(-1, 1, 1).expand(-1, 1, self.width)  # [N, 1, A]
        return actions.gather(1, index).squeeze(1), ChunkState(actions, num_taken + 1, state.steps + (mode == "eval"))

    def override(self, state: ChunkState, action: Tensor) -> ChunkState:
        """Return the state for executing ``action`` ``[N, A]``, which ends chunks with another action."""
        index = (state.num_taken - 1).view(-1, 1, 1).expand(-1, 1, self.width)  # [N, 1, A]
        chosen, action = state.actions.gather(1, index).squeeze(1), action.to(state.actions.device)
        is_other = ~torch.isclose(action, chosen, atol=1e-4).all(1)  # environments round actions
        return state._replace(num_taken=state.num_taken.masked_fill(is_other, self.size))

    def draw_noise(self, envs: int, steps: Tensor, mode: Mode) -> Tensor | None:
        """Return noise ``[N, h A]`` for the next chunks; None in evaluations. ``steps`` as in :class:`ChunkState`."""
        return None if mode == "eval" else torch.randn(envs, self.size * self.width)

    def propose(self, step: Step, noise: Tensor | None) -> Tensor:
        """Return chunks ``[N, h, A]`` for ``noise`` ``[N, h A]``, beside the rows."""
        noise = None if noise is None else noise.to(self.device, non_blocking=True)
        chunk = self.actor(step.obs_on(self.device), noise)
        return chunk.clamp(-1, 1).to(step.is_first.device).view(-1, self.size, self.width)

    def memoryless(self, mode: Mode) -> bool:
        return False
