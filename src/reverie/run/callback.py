"""Callbacks: user code that a run calls at evaluations and log entries, and that can change or stop the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

from reverie.core.clock import Clock
from reverie.core.config import parse_call
from reverie.core.errors import ConfigError, did_you_mean, short_repr
from reverie.core.files import disk_errors_as_run_error
from reverie.core.imports import import_object
from reverie.core.logger import logger
from reverie.core.protocols import Env, Learner, Sink
from reverie.core.seeding import preserve_rng_state
from reverie.core.types import State
from reverie.run.metrics_log import check_metric_names
from reverie.run.result import TrainResult

Values = Mapping[str, float]
"""Logged numbers by name."""
EnvGetter = Callable[[Literal["training", "evaluation"]], Env]
"""Returns the environments of training, or of evaluations; RunError if callbacks cannot reach them."""


class TrainingRun:
    """What a callback sees of a run, and may do to it."""

    def __init__(self, folder: Path, algo: Learner, clock: Clock, reach: EnvGetter) -> None:
        self.folder: Path = folder
        """The run folder."""
        self.algo: Learner = algo
        """The learner; ``algo.policy`` acts, and a learner of this library is a ``torch.nn.Module``."""
        self.stopped: str = ""
        """Why a callback has asked the run to end; "" if none has."""
        self.sinks: Sequence[Sink] = ()
        self._clock, self._reach = clock, reach

    @property
    def env_steps(self) -> int:
        """Env steps since the run began: decisions of the policy over all environments."""
        return self._clock.env_steps

    @property
    def updates(self) -> int:
        """Gradient updates since the run began."""
        return self._clock.updates

    @property
    def env(self) -> Env:
        """The training environments: ``run.env.call("set_level", 3)``, ``run.env.set_attr("gravity", 9.8)``.

        RunError if there are none, or if they are in processes of actors or of other learners.
        """
        return self._reach("training")

    @property
    def eval_env(self) -> Env:
        """The environments of evaluations, which ``env`` does not reach; RunError if there are none."""
        return self._reach("evaluation")

    def stop(self, reason: str) -> None:
        """End the run after this turn of the loop, as finished and with its final evaluation. ``reason`` is logged."""
        self.stopped = reason or "no reason given"
        self._clock.stop = True

    def log(self, values: Values) -> None:
        """Write ``values`` to the logs; DataError if a name is the loop's own, such as ``eval/score``."""
        check_metric_names(values)
        with disk_errors_as_run_error(Path("the logs")):
            for sink in self.sinks:
                sink.write(values, self._clock.position)


class Callback:
    """Base class of code that a run calls; each method does nothing unless it is defined.

    With ``state_dict`` and ``load_state_dict``, of plain data and tensors, a callback is a part of checkpoints. What it
    draws from the global random generators does not change the run. Its errors end the run, after a checkpoint.
    """

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if unknown := [name for name in vars(cls) if name.startswith("on_") and not hasattr(Callback, name)]:
            raise ConfigError(
                f"{cls.__name__}.{unknown[0]} would never be called.{did_you_mean(unknown[0], HOOKS)} A callback has: "
                f"{', '.join(HOOKS)}."
            )
        if hasattr(cls, "state_dict") != hasattr(cls, "load_state_dict"):
            raise ConfigError(f"{cls.__name__}: define both state_dict and load_state_dict, or neither.")

    def on_start(self, run: TrainingRun) -> None:
        """Called before the first step of this process; in a run that is resumed, after all was loaded."""

    def on_evaluation(self, run: TrainingRun, values: Values) -> None:
        """Called after each evaluation during training, with what it logged; the best agent is saved before."""

    def on_log(self, run: TrainingRun, values: Values) -> None:
        """Called after each log entry (``schedule.log_every``) with its numbers."""

    def on_end(self, run: TrainingRun, result: TrainResult) -> None:
        """Called when the run has finished, after its final evaluation, or was interrupted by a signal."""


HOOKS = ("on_start", "on_evaluation", "on_log", "on_end")


class CallbackCall(NamedTuple):
    """An entry of the setting ``callbacks``: ``module:Class(setting=value)``; ``error_prefix`` begins error texts."""

    error_prefix: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


def parse_callback(text: str) -> CallbackCall:
    """Return what an entry asks for; its module is not imported."""
    error_prefix = f"callbacks = {short_repr(text)}"
    call = CallbackCall(error_prefix, *parse_call(text, error_prefix))
    if ":" not in call.name:
        raise ConfigError(f"{error_prefix}: expected module:Class or module:Class(setting=value).")
    return call


def import_callback(text: str) -> type[Callback]:
    """Import the class that an entry names; a run that names its module too may then go on (``check_module``)."""
    call = parse_callback(text)
    kind: type[Callback] = import_object(call.name, what=call.error_prefix, base=Callback)
    return kind


def make_callback(text: str) -> Callback:
    """Return the callback that an entry asks for."""
    kind, (error_prefix, _, args, kwargs) = import_callback(text), parse_callback(text)
    try:
        inspect.signature(kind).bind(*args, **kwargs)
    except TypeError as error:
        raise ConfigError(f"{error_prefix}: {error}. Expected {kind.__name__}{inspect.signature(kind)}.") from None
    return kind(*args, **kwargs)


class CallbackList:
    """The callbacks of a run, called one after the other. A part of a checkpoint."""

    def __init__(self, callbacks: Sequence[Callback], run: TrainingRun) -> None:
        """``run``: passed to each of them."""
        self.run = run
        kinds = [f"{type(callback).__module__}:{type(callback).__qualname__}" for callback in callbacks]
        names = [f"{kind} {kinds[:i].count(kind) + 1}" for i, kind in enumerate(kinds)]
        self.named: dict[str, Any] = dict(zip(names, callbacks, strict=True))

    def call(self, hook: str, *args: Any) -> None:
        """Call the method ``hook`` of each callback."""
        for callback in self.named.values():
            with preserve_rng_state():
                getattr(callback, hook)(self.run, *args)

    def state_dict(self) -> State:
        """Return the state of each by the name and number of its class, None if it has none."""
        return {
            name: callback.state_dict() if hasattr(callback, "state_dict") else None
            for name, callback in self.named.items()
        }

    def load_state_dict(self, state: State) -> None:
        """Restore those that were saved; warn of others."""
        for name, callback in self.named.items():
            if state.get(name) is not None:
                callback.load_state_dict(state[name])
        if gone := sorted(state.keys() - self.named.keys()):
            logger.warning(f"the run continues without the callbacks {', '.join(gone)}: pass them again to keep them")


def check_callbacks(callbacks: Sequence[Any]) -> list[Callback]:
    """Return ``callbacks`` as a list; ConfigError if one of them is no Callback."""
    for callback in callbacks:
        if not isinstance(callback, Callback):
            is_kind = isinstance(callback, type) and issubclass(callback, Callback)
            expected = f"{callback.__name__}(...), an object" if is_kind else "an object derived from reverie.Callback"
            raise ConfigError(
                f"callbacks: {short_repr(callback)}: expected {expected}, or the text 'module:Class(setting=value)'."
            )
    return list(callbacks)
