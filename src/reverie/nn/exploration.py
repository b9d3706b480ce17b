"""How policies explore: with noise on actions, with random ones now and then, or by drawing from a distribution."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.types import Mode, Obs, Step
from reverie.nn.acting import Taped


@dataclass(frozen=True)
class Noise(Choice):
    """Noise ``sigma x`` on actions in [-1, 1]: x begins anew with each episode, sigma may be annealed."""

    def initial(self, num_envs: int, width: int) -> NoiseState:
        """The state before anything was done."""
        return NoiseState(torch.zeros(num_envs, width), torch.zeros(num_envs, dtype=torch.int64))

    def __call__(self, state: NoiseState, step: Step) -> tuple[Tensor, NoiseState]:
        """Noise for the next actions, ``[N, A]``, drawn from the CPU's default generator."""
        begun = any_of(step.is_first)
        before = state.process.masked_fill(step.is_first[:, None], 0.0) if begun else state.process  # [N, A]
        process = self.advance(before)  # [N, A]
        return self.scale(state.steps) * process, NoiseState(process, counted(state.steps, step))

    def advance(self, process: Tensor) -> Tensor:
        """The next x, ``[N, A]``."""
        raise NotImplementedError

    def scale(self, steps: Tensor) -> Tensor | float:
        """Sigma after ``steps`` env steps, ``[N]`` of N environments, whose sum counts."""
        raise NotImplementedError


@dataclass(frozen=True)
class Gaussian(Noise):
    """Noise without memory: x ~ N(0, 1)."""

    sigma: float = 0.1
    """Standard deviation."""
    final_sigma: float | None = None
    """What sigma has become after ``anneal_steps``; None: it stays what it is."""
    anneal_steps: int = 0
    """Env steps, of all environments together, over which sigma moves linearly to its final value."""

    def __post_init__(self) -> None:
        _check_annealing(self.sigma, self.final_sigma, self.anneal_steps)

    def advance(self, process: Tensor) -> Tensor:
        """``[N, A]``, whatever was before."""
        return torch.randn_like(process)

    def scale(self, steps: Tensor) -> Tensor | float:
        """See ``Noise``."""
        return _annealed(self.sigma, self.final_sigma, self.anneal_steps, steps)


@dataclass(frozen=True)
class OrnsteinUhlenbeck(Noise):
    """Noise that drifts, for systems with inertia (Uhlenbeck and Ornstein 1930; Lillicrap et al. 2016, section 3).

    x <- x - theta dt x + sqrt(dt) N(0, 1),  x = 0 before an episode. It remembers about 1 / (theta dt) steps. TorchRL
    and Stable-Baselines3 take dt = 0.01, which is 667 steps and weak where episodes are shorter.
    """

    theta: float = 0.15
    """How strongly x is drawn back to 0."""
    sigma: float = 0.2
    """Standard deviation of what is added in one unit of time."""
    final_sigma: float | None = None
    """What sigma has become after ``anneal_steps``; None: it stays what it is."""
    anneal_steps: int = 0
    """Env steps, of all environments together, over which sigma moves linearly to its final value."""
    dt: float = 1.0
    """Length of a step in the process's own time."""

    def __post_init__(self) -> None:
        _check_annealing(self.sigma, self.final_sigma, self.anneal_steps)
        if not (self.dt > 0 and 0 <= self.theta * self.dt <= 1):
            raise ConfigError(f"theta = {self.theta}, dt = {self.dt}: expected dt > 0 and theta dt in [0, 1].")

    def advance(self, process: Tensor) -> Tensor:
        """``[N, A]``."""
        root = math.sqrt(self.dt)
        return (1 - self.theta * self.dt) * process + root * torch.randn_like(process)

    def scale(self, steps: Tensor) -> Tensor | float:
        """See ``Noise``."""
        return _annealed(self.sigma, self.final_sigma, self.anneal_steps, steps)


def _check_annealing(sigma: float, final_sigma: float | None, anneal_steps: int) -> None:
    if sigma < 0 or (final_sigma or 0) < 0:
        raise ConfigError(f"sigma = {sigma}, final_sigma = {final_sigma}: expected 0 or more.")
    _check_steps("final_sigma", final_sigma, anneal_steps)


def _check_steps(name: str, final: float | None, anneal_steps: int) -> None:
    if anneal_steps < 0 or (anneal_steps > 0) != (final is not None):
        raise ConfigError(
            f"{name} = {final}, anneal_steps = {anneal_steps}: annealing needs both, a final value and a number of "
            "steps of 1 or more."
        )


def _annealed(first: float, final: float | None, anneal_steps: int, steps: Tensor) -> Tensor | float:
    if final is None:
        return first
    return first + (steps.sum() / anneal_steps).clamp(max=1) * (final - first)


def any_of(flags: Tensor) -> bool:
    """Whether any of ``[N]`` is set, those of N environments: few, and on the CPU."""
    return True in flags.tolist()


def counted(steps: Tensor, step: Step) -> Tensor:
    """Actions taken ``[N]`` after one more where no episode is over; a call less where none is, as nearly always."""
    return steps + ~step.is_last if any_of(step.is_last) else steps + 1


def dealt(env_steps: int, num_envs: int) -> Tensor:
    """Actions taken ``[N]`` whose sum is ``env_steps``: to each environment its share."""
    return (env_steps + torch.arange(num_envs)) // num_envs


class NoiseState(NamedTuple):
    """Where the noise of N environments is."""

    process: Tensor  # [N, A]
    steps: Tensor  # [N] int64, actions taken; schedules count their sum


class NoisyPolicy:
    """A deterministic actor, and noise on its actions where it explores."""

    def __init__(self, actor: nn.Module, noise: Noise, width: int, device: torch.device) -> None:
        self.actor, self.noise, self.width, self.device = Taped(actor, actor), noise, width, device

    def initial(self, num_envs: int) -> NoiseState:
        """No noise yet."""
        return self.noise.initial(num_envs, self.width)

    @torch.no_grad()
    def act(self, step: Step, state: NoiseState, mode: Mode) -> tuple[Tensor, NoiseState]:
        """``(action [N, A] on the CPU, state)``: mu(s) + noise within [-1, 1]; ``eval`` is mu(s)."""
        action: Tensor = self.actor(step.obs_on(self.device)).cpu()  # [N, A]
        if mode == "eval":
            return action, state
        noise, state = self.noise(state, step)
        return (action + noise).clamp(-1, 1), state

    def memoryless(self, mode: Mode) -> bool:
        """Noise depends on earlier rows; ``eval`` adds none."""
        return mode == "eval"

    def after(self, state: NoiseState, env_steps: int) -> NoiseState:
        """Sigma where it is then; x begins anew."""
        return state._replace(steps=dealt(env_steps, len(state.steps)))

    def override(self, state: NoiseState, action: Tensor) -> NoiseState:
        """Noise goes on whatever was executed."""
        return state

    def extras(self, state: NoiseState) -> dict[str, Tensor]:
        """Nothing is stored."""
        return {}


class SampledPolicy:
    """Draws actions from a distribution where it explores, and takes its mode where it is evaluated."""

    def __init__(self, actor: nn.Module, device: torch.device) -> None:
        self.drawn = Taped(functools.partial(sampled, actor), actor)
        self.best = Taped(functools.partial(likeliest, actor), actor)
        self.device = device

    def initial(self, num_envs: int) -> None:
        """Nothing is carried."""

    @torch.no_grad()
    def act(self, step: Step, state: None, mode: Mode) -> tuple[Tensor, None]:
        """``(action [N, A] on the CPU, None)``."""
        chosen = self.best if mode == "eval" else self.drawn
        return chosen(step.obs_on(self.device)).cpu(), None

    def memoryless(self, mode: Mode) -> bool:
        """Return True."""
        return True

    def override(self, state: None, action: Tensor) -> None:
        """Nothing is carried."""

    def extras(self, state: None) -> dict[str, Tensor]:
        """Nothing is stored."""
        return {}


def sampled(actor: nn.Module, obs: Obs) -> Tensor:
    """Actions ``[N, A]`` drawn from the distributions that ``actor`` says."""
    action: Tensor = actor(obs).sample()[0]
    return action


def likeliest(actor: nn.Module, obs: Obs) -> Tensor:
    """Their modes."""
    action: Tensor = actor(obs).mode()
    return action


@dataclass(frozen=True)
class Randomness(Choice):
    """How often an action is drawn uniformly from all classes instead of chosen."""

    def chance(self, steps: Tensor) -> Tensor | float:
        """The probability of that after ``steps`` env steps, ``[N]`` of N environments, whose sum counts."""
        raise NotImplementedError


@dataclass(frozen=True)
class EpsilonGreedy(Randomness):
    """A random action with probability epsilon, which moves linearly to its final value."""

    epsilon: float = 1.0
    """The probability at first."""
    final_epsilon: float | None = None
    """What it has become after ``anneal_steps``; None: it stays what it is."""
    anneal_steps: int = 0
    """Env steps, of all environments together, over which it moves."""

    def __post_init__(self) -> None:
        for name in ("epsilon", "final_epsilon"):
            value = getattr(self, name)
            if value is not None and not 0 <= value <= 1:
                raise ConfigError(f"{name} = {value}: expected a probability, 0 to 1.")
        _check_steps("final_epsilon", self.final_epsilon, self.anneal_steps)

    def chance(self, steps: Tensor) -> Tensor | float:
        """See ``Randomness``."""
        return _annealed(self.epsilon, self.final_epsilon, self.anneal_steps, steps)


class GreedyState(NamedTuple):
    """What schedules of N environments count."""

    steps: Tensor  # [N] int64, actions taken; schedules count their sum


class GreedyPolicy:
    """The class of the highest value, and a random one now and then where it explores."""

    def __init__(
        self, values: Callable[[Obs], Tensor], randomness: Randomness, classes: int, device: torch.device
    ) -> None:
        """``values(obs)`` are those of all classes, ``[N, A]``."""
        self.values, self.randomness, self.classes, self.device = values, randomness, classes, device

    def initial(self, num_envs: int) -> GreedyState:
        """No steps yet."""
        return GreedyState(torch.zeros(num_envs, dtype=torch.int64))

    @torch.no_grad()
    def act(self, step: Step, state: GreedyState, mode: Mode) -> tuple[Tensor, GreedyState]:
        """``(action [N, A] on the CPU, one-hot, state)``; ``eval`` draws nothing.

        Each environment draws for itself, from the CPU's default generator and as much at every step.
        """
        best = self.values(step.obs_on(self.device)).argmax(-1).cpu()  # [N]
        if mode == "explore":
            drawn, other = torch.rand(len(best)), torch.randint(self.classes, (len(best),))  # [N]
            best = torch.where(drawn < self.randomness.chance(state.steps), other, best)
            state = GreedyState(counted(state.steps, step))
        return F.one_hot(best, self.classes).float(), state

    def memoryless(self, mode: Mode) -> bool:
        """Epsilon depends on the number of earlier rows; ``eval`` does not use it."""
        return mode == "eval"

    def after(self, state: GreedyState, env_steps: int) -> GreedyState:
        """Epsilon where it is then."""
        return state._replace(steps=dealt(env_steps, len(state.steps)))

    def override(self, state: GreedyState, action: Tensor) -> GreedyState:
        """Schedules go on whatever was executed."""
        return state

    def extras(self, state: GreedyState) -> dict[str, Tensor]:
        """Nothing is stored."""
        return {}
