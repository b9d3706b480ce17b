"""Settings that every algorithm has, and which algorithms fit which actions."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal, Self

import torch

from reverie.algos.base import Algorithm
from reverie.algos.gradient_norms import GradientNorms
from reverie.algos.table import algorithm_config, algorithm_name, algorithms
from reverie.core.bounds import AtLeast
from reverie.core.config import LearnerConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionSpec, ObsSpec, action_kind, has_players
from reverie.nn.loss_scale import LossScale


@dataclass(frozen=True, kw_only=True)
class AlgorithmConfig(LearnerConfig):
    """Settings that every algorithm has."""

    action_kinds: ClassVar[frozenset[str]] = frozenset()
    """Kinds of action spaces that it learns (``core/specs.py: action_kind``), which ``build`` checks. Errors about
    actions suggest algorithms by this field; an algorithm without it is not suggested, and accepts all actions."""
    needs_data: ClassVar[bool] = False
    """Whether the algorithm is meant for offline learning. It may still collect rows itself."""
    on_policy: ClassVar[bool] = False
    """Whether it learns only from rows that its current policy has collected, instead of a replay."""
    plays_both_sides: ClassVar[bool] = False
    """Whether it learns games of two players in one stream of rows, whose rewards belong to the player who moved."""
    has_goals: ClassVar[bool] = False
    """Whether it acts toward goals, which are a part of its observations."""
    human_fraction: ClassVar[float | None] = 0.5
    """Default of ``human.fraction`` with a person; None: a person's rows cannot have a fraction of their own."""
    samples_actions: ClassVar[bool] = False
    """Whether it is judged by both the most likely and the sampled actions of a distribution that it learns."""

    batch_size: Annotated[int, AtLeast(1)] = 16
    """B, number of windows (sequences) in a batch."""
    batch_length: Annotated[int, AtLeast(2)] = 64
    """T, time steps of each window that the losses cover; context comes before them."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """Dtype that networks compute in. Parameters, losses and optimizers stay float32. float16, with a loss scale, is
    for GPUs without bfloat16."""
    graph: bool = True
    """Record an update once and replay it, which is faster: as a CUDA graph on GPUs, where acting is recorded too; on
    CPUs as a tape (recorded calls), for model-free algorithms only. The results are the same."""

    grad_norms: bool = False
    """Log the norm of the gradient of each network before clipping: of Dreamers in every update, of other algorithms in
    every 64th."""

    @property
    def algorithm(self) -> str:
        """Name of the algorithm on the command line, such as ``dreamer_v3``; ``module:Class`` for a custom one."""
        return algorithm_name(type(self))

    @property
    def dtype(self) -> torch.dtype:
        """``precision`` as PyTorch's."""
        return getattr(torch, self.precision)

    def with_envs(self, before: int, num: int) -> Self:
        """Return the settings for ``num`` environments of a preset with ``before``."""
        return self

    def check_run(self, *, random_steps: int, learning_starts: int, frame_stack: int) -> None:
        """Raise ConfigError unless these settings fit the run's.

        ``random_steps``: env steps of random actions at the start. ``learning_starts``: windows before the first
        update. ``frame_stack``: frames that the environments stack themselves.
        """

    def check_data(self, *, recorded: bool, collected: bool) -> None:
        """Raise ConfigError if the run lacks rows that are needed: ``recorded`` in a dataset, or ``collected``."""

    def needs_rewards(self, *, collected: bool) -> bool:
        """Return whether the algorithm learns from the rewards in a dataset.

        ``collected``: whether it also learns from rows that it collects.
        """
        return True

    def acting_spec(self, spec: ObsSpec) -> ObsSpec:
        """Return the observations that acting needs, given the observations ``spec`` of recorded rows."""
        return spec

    def build(self, obs_spec: ObsSpec, action_spec: ActionSpec, device: str = "cpu", seed: int = 0) -> Algorithm:
        """Return a learner for these observations and actions, with weights that depend only on ``seed``.

        Raises:
            ConfigError: the settings do not fit the observations, or the algorithm does not support the actions.
        """
        self.check_actions(action_spec)
        if has_players(obs_spec) and not self.plays_both_sides:
            raise ConfigError(
                f"{self.algorithm} does not learn games of two players, whose rewards belong to the player who moved. "
                "Use muzero; in PettingZoo's games, others can play one seat: env.kwargs = {agent: 0}. If 'player' "
                "means something else, rename it in a wrapper, or set env.exclude_keys = player."
            )
        with init_context(seed):
            learner: Algorithm = self.learner(
                obs_spec, action_spec, self.for_specs(obs_spec, action_spec), torch.device(device)
            )
        if isinstance(learner, Algorithm):
            learner.gradient_norms = GradientNorms() if self.grad_norms else None
            if self.precision == "float16":
                learner.loss_scale = LossScale(learner.device)
            learner.enter_eval_mode()
        return learner

    def check_actions(self, spec: ActionSpec) -> None:
        """Raise ConfigError, which names suitable algorithms, if the algorithm does not support these actions."""
        kind = action_kind(spec)
        if not self.action_kinds or kind in self.action_kinds:
            return
        fit = compatible_algorithms(spec)
        also = f"; with recorded data: {', '.join(fit['offline'])}" if fit["offline"] else ""
        raise ConfigError(
            f"{self.algorithm} is for {' or '.join(sorted(self.action_kinds))} actions, but these are {kind}. "
            f"Suitable algorithms: {', '.join(fit['online'])}{also}."
        )

    def scale_warning(self, episodes: Sequence[tuple[float, int]]) -> str:
        """Return a warning if the return and length of ``episodes`` do not fit these settings; "" if they do."""
        return ""

    def for_specs(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> Self:
        """Return these settings with defaults that fit the observations and actions."""
        return self


@contextmanager
def init_context(seed: int) -> Iterator[None]:
    """Draw weights from ``seed`` inside the context, in float32 and outside inference mode.

    PyTorch's CPU generator is restored afterwards. GPU generators are not touched, as weights are drawn on the CPU.
    Tensors of inference mode count no writes, but copies of weights in other layouts need these counts to stay current.
    """
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float32)
    try:
        with torch.random.fork_rng(devices=[]), torch.inference_mode(False):
            torch.default_generator.manual_seed(seed)
            yield
    finally:
        torch.set_default_dtype(default)


def compatible_algorithms(spec: ActionSpec, on_device: bool = False, games: bool = False) -> dict[str, tuple[str, ...]]:
    """Return the algorithms for such actions: ``online``, and ``offline`` for those meant for recorded data.

    ``on_device``: those for environments on a device. ``games``: those for games of two players.
    """
    kind, fit = action_kind(spec), dict[str, tuple[str, ...]](online=(), offline=())
    for name in sorted(algorithms()):
        with contextlib.suppress(Exception):  # an installed package's algorithm that cannot be imported
            config: Any = algorithm_config(name)
            is_excluded = (on_device and getattr(config, "from_actors", False)) or games > config.plays_both_sides
            if kind in config.action_kinds and not is_excluded:
                fit["offline" if config.needs_data else "online"] += (name,)
    return fit
