"""Callbacks: user code that a run calls at evaluations and log entries, and that can change or stop the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, did_you_mean, short_repr
from reverie.core.files import disk_errors_as_run_error
from reverie.core.imports import import_object
from reverie.core.kernel_dispatch import ModuleChanges
from reverie.core.logger import logger
from reverie.core.protocols import Env, Learner, Sink
from reverie.core.seeding import preserve_rng_state
from reverie.core.types import State
from reverie.run.config import parse_callback
from reverie.run.metrics_log import check_metric_names

if TYPE_CHECKING:  # it leads to the collectors, and a callback is only given one
    from reverie.run.result import TrainResult

Values = Mapping[str, float]
"""Logged numbers by name."""
EnvGetter = Callable[[Literal["training", "evaluation"]], Env]
"""Returns the training or evaluation environments; RunError if callbacks cannot access them."""


class TrainingRun:
    """The run as a callback sees and controls it."""

    def __init__(self, folder: Path, algo: Learner, clock: Clock, reach: EnvGetter) -> None:
        self.folder: Path = folder
        """The run folder."""
        self.algo: Learner = algo
        """The learner; ``algo.policy`` acts, and a learner of this library is a ``torch.nn.Module``."""
        self.stopped: str = ""
        """Why a callback has asked the run to stop; "" if none has."""
        self.sinks: Sequence[Sink] = ()
        self._clock, self._reach = clock, reach

    @property
    def env_steps(self) -> int:
        """Env steps since the start of the run: decisions of the policy, summed over all environments."""
        return self._clock.env_steps

    @property
    def updates(self) -> int:
        """Gradient updates since the start of the run."""
        return self._clock.updates

    @property
    def env(self) -> Env:
        """The training environments: ``run.env.call("set_level", 3)``, ``run.env.set_attr("gravity", 9.8)``.

        RunError if there are none, or if they are in the processes of actors or other learners.
        """
        return self._reach("training")

    @property
    def eval_env(self) -> Env:
        """The evaluation environments, which are separate from ``env``; RunError if there are none."""
        return self._reach("evaluation")

    def stop(self, reason: str) -> None:
        """End the run after this iteration of the loop, as finished and with its final evaluation.

        ``reason`` is logged.
        """
        self.stopped = reason or "no reason given"
        self._clock.stop = True

    def log(self, values: Mapping[str, float | str | np.ndarray]) -> None:
        """Write ``values`` to the logs; DataError if a name is reserved for the loop, such as ``eval/score``.

        They are numbers, texts, and uint8 arrays: images ``[H, W, C]`` and videos ``[T, H, W, C]``.
        """
        check_metric_names(values)
        with disk_errors_as_run_error(Path("the logs")):
            for sink in self.sinks:
                sink.write(values, self._clock.position)


class Callback:
    """Base class of callbacks; a method that is not overridden does nothing.

    If a callback defines ``state_dict`` and ``load_state_dict``, with plain data and tensors, checkpoints save its
    state. Its use of the global random generators does not affect the run. Its errors end the run, after a checkpoint.
    """

    def __init_subclass__(cls, **kwargs: object) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := [name for name in vars(cls) if name.startswith("on_") and not hasattr(Callback, name)]:
            raise ConfigError(
                f"{cls.__name__}.{unknown[0]} would never be called.{did_you_mean(unknown[0], HOOKS)} The methods of "
                f"a callback are: {', '.join(HOOKS)}."
            )
        if hasattr(cls, "state_dict") != hasattr(cls, "load_state_dict"):
            raise ConfigError(f"{cls.__name__}: define both state_dict and load_state_dict, or neither.")

    def on_start(self, run: TrainingRun) -> None:
        """Called before the first step of this process; in a resumed run, after everything was loaded."""

    def on_evaluation(self, run: TrainingRun, values: Values) -> None:
        """Called after each evaluation during training, with its logged numbers.

        The best agent has been saved before.
        """

    def on_log(self, run: TrainingRun, values: Values) -> None:
        """Called after each log entry (``schedule.log_every``) with its numbers."""

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:
        """Called when the run has finished, after its final evaluation, or was interrupted by a signal."""


HOOKS = ("on_start", "on_evaluation", "on_log", "on_end")


def import_callback(text: str) -> type[Callback]:
    """Import the class that an entry names; ``check_module`` then accepts its module in saved settings."""
    call = parse_callback(text)
    kind: type[Callback] = import_object(call.name, error_prefix=call.error_prefix, base=Callback)
    return kind


def make_callback(text: str) -> Callback:
    """Create the callback that an entry describes."""
    kind, (error_prefix, _, args, kwargs) = import_callback(text), parse_callback(text)
    try:
        inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{error_prefix}: {error}. Expected {kind.__name__}{inspect.signature(kind)}.") from None
    return kind(*args, **kwargs)


class CallbackList:
    """The callbacks of a run, called in order. Part of a checkpoint."""

    def __init__(self, callbacks: Sequence[Callback], run: TrainingRun) -> None:
        """``run``: passed to each callback."""
        self.run = run
        kinds = [f"{type(callback).__module__}:{type(callback).__qualname__}" for callback in callbacks]
        names = [f"{kind} {kinds[:i].count(kind) + 1}" for i, kind in enumerate(kinds)]
        self.named: dict[str, Any] = dict(zip(names, callbacks, strict=True))

    @property
    def modules(self) -> list[str]:
        """Names of the modules that define them."""
        return [*dict.fromkeys(type(callback).__module__ for callback in self.named.values())]

    def call(self, hook: str, *args: object) -> None:
        """Call the method ``hook`` of each callback."""
        for callback in self.named.values():
            with preserve_rng_state():
                getattr(callback, hook)(self.run, *args)
            ModuleChanges.note()

    def state_dict(self) -> State:
        """Return the state of each callback, or None, by the name and number of its class."""
        return {
            name: callback.state_dict() if hasattr(callback, "state_dict") else None
            for name, callback in self.named.items()
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the saved states; warn about callbacks that are missing."""
        for name, callback in self.named.items():
            if state.get(name) is not None:
                callback.load_state_dict(state[name])
        if gone := sorted(state.keys() - self.named.keys()):
            logger.warning(f"the run continues without the callbacks {', '.join(gone)}: pass them again to keep them")


def check_callbacks(callbacks: Sequence[Any]) -> list[Callback]:
    """Return ``callbacks`` as a list; ConfigError if one of them is not a Callback."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            is_kind = isinstance(callback, type) and issubclass(callback, Callback)
            expected = f"{callback.__name__}(...), an object" if is_kind else "an object derived from reverie.Callback"
            raise ConfigError(
                f"callbacks: {short_repr(callback)}: expected {expected}, or the text 'module:Class(setting=value)'."
            )
    return list(callbacks)
