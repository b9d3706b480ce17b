"""Callbacks: code of a user's own that a run calls at its evaluations and logs, and that may act on the run."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from reverie.core.clock import Clock
from reverie.core.config import call_of
from reverie.core.errors import ConfigError, brief, did_you_mean
from reverie.core.files import writing
from reverie.core.importing import imported
from reverie.core.logger import logger
from reverie.core.protocols import Algorithm, Env, Sink
from reverie.core.randomness import left_as_found
from reverie.core.types import State
from reverie.run.metrics import check_names

if TYPE_CHECKING:
    from reverie.run.run import Result

Values = Mapping[str, float]
"""Logged numbers by name."""
Reach = Callable[[Literal["training", "evaluation"]], Env]
"""Returns the environments of training, or of evaluations; RunError if callbacks cannot reach them."""


class TrainingRun:
    """What a callback sees of a run, and may do to it."""

    def __init__(self, folder: Path, algo: Algorithm, clock: Clock, reach: Reach) -> None:
        self.folder: Path = folder
        """The run folder."""
        self.algo: Algorithm = algo
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

    def stop(self, why: str) -> None:
        """End the run after this turn of the loop, as finished and with its final evaluation. ``why`` is logged."""
        self.stopped = why or "no reason given"
        self._clock.stop = True

    def log(self, values: Values) -> None:
        """Write ``values`` to the logs; DataError if a name is the loop's own, such as ``eval/score``."""
        check_names(values)
        with writing(Path("the logs")):
            for sink in self.sinks:
                sink.write(values, self._clock.position)


class Callback:
    """Base class of code that a run calls; each method does nothing unless it is defined.

    With ``state_dict`` and ``load_state_dict``, of plain data and tensors, a callback is a part of checkpoints. What it
    draws from the global random generators does not change the run. Its errors end the run, after a checkpoint.
    """

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
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

    def on_end(self, run: TrainingRun, result: Result) -> None:
        """Called when the run has finished, after its final evaluation, or was interrupted by a signal."""


HOOKS = ("on_start", "on_evaluation", "on_log", "on_end")


class CallbackCall(NamedTuple):
    """An entry of the setting ``callbacks``: ``module:Class(setting=value)``; ``what`` begins error texts."""

    what: str
    name: str
    given: list[Any]
    named: dict[str, Any]


def parse_callback(text: str) -> CallbackCall:
    """Return what an entry asks for; its module is not imported."""
    what = f"callbacks = {brief(text)}"
    one = CallbackCall(what, *call_of(text, what))
    if ":" not in one.name:
        raise ConfigError(f"{what}: expected module:Class or module:Class(setting=value).")
    return one


def kind_of(text: str) -> type[Callback]:
    """Import the class that an entry names; a run that names its module too may then go on (``check_module``)."""
    one = parse_callback(text)
    kind: type[Callback] = imported(one.name, what=one.what, base=Callback)
    return kind


def made(text: str) -> Callback:
    """Return the callback that an entry asks for."""
    kind, (what, _, given, named) = kind_of(text), parse_callback(text)
    try:
        inspect.signature(kind).bind(*given, **named)
    except TypeError as error:
        raise ConfigError(f"{what}: {error}. Expected {kind.__name__}{inspect.signature(kind)}.") from None
    return kind(*given, **named)


class Callbacks:
    """The callbacks of a run, called one after the other. A part of a checkpoint."""

    def __init__(self, each: Sequence[Callback], run: TrainingRun) -> None:
        """``run``: passed to each of them."""
        self.run = run
        kinds = [f"{type(one).__module__}:{type(one).__qualname__}" for one in each]
        names = [f"{kind} {kinds[:i].count(kind) + 1}" for i, kind in enumerate(kinds)]
        self.named: dict[str, Any] = dict(zip(names, each, strict=True))

    def tell(self, hook: str, *given: Any) -> None:
        """Call the method ``hook`` of each."""
        for one in self.named.values():
            with left_as_found():
                getattr(one, hook)(self.run, *given)

    def state_dict(self) -> State:
        """Return the state of each by the name and number of its class, None if it has none."""
        return {name: one.state_dict() if hasattr(one, "state_dict") else None for name, one in self.named.items()}

    def load_state_dict(self, state: State) -> None:
        """Restore those that were saved; warn of others."""
        for name, one in self.named.items():
            if state.get(name) is not None:
                one.load_state_dict(state[name])
        if gone := sorted(state.keys() - self.named.keys()):
            logger.warning(f"the run goes on without its callbacks {', '.join(gone)}: pass them again to keep them")


def checked(each: Sequence[Any]) -> list[Callback]:
    """Return the callbacks ``each``; ConfigError if one is something else."""
    for one in each:
        if not isinstance(one, Callback):
            is_kind = isinstance(one, type) and issubclass(one, Callback)
            meant = f"{one.__name__}(...), an object" if is_kind else "an object derived from reverie.Callback"
            raise ConfigError(f"callbacks: {brief(one)}: expected {meant}, or the text 'module:Class(setting=value)'.")
    return list(each)
