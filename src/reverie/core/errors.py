"""Errors that a user can act on: what is wrong, what was expected, and what to do; and their formatting."""

from __future__ import annotations

import difflib
import re
import reprlib
import traceback
from collections.abc import Iterable

MAX_VALUE_LENGTH = 100
"""Maximum number of characters of a value in an error message."""
LIBRARY_PACKAGES = frozenset({"reverie", "gymnasium", "importlib"})
"""Packages whose traceback lines do not help to find a mistake in the user's code."""
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxother = MAX_VALUE_LENGTH


class ReverieError(Exception):
    """Base class of all errors that the user can correct. The command line prints them without a traceback."""


class ConfigError(ReverieError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class EnvError(ReverieError, ValueError):
    """An environment cannot be made, or its spaces are not supported."""


class UntrustedError(EnvError):
    """A file names code that belongs to no installed package and that the user has not named."""


class DataError(ReverieError, ValueError):
    """Data is invalid: NaN, infinite, or outside of its declared space or shape."""


class RowError(DataError):
    """One row is wrong. Code that knows the origin of the rows replaces the number of the row by its location."""

    def __init__(self, subject: str, row: int, problem: str, column: str = "obs") -> None:
        """The message is: ``subject`` of ``row``, then ``problem``. ``column``: the column of the value."""
        super().__init__(subject, row, problem, column)
        self.subject: str = subject
        self.row: int = row
        self.problem: str = problem
        self.column: str = column

    def __str__(self) -> str:
        return f"{self.subject} of row {self.row} {self.problem}"


class ActionError(DataError):
    """An action is NaN or infinite: the policy has diverged."""


class RunError(ReverieError, RuntimeError):
    """A run cannot start or continue: another run's folder, a damaged checkpoint, a loss that has diverged."""


def short_repr(value: object) -> str:
    """Return ``repr(value)`` on one line, shortened to ``MAX_VALUE_LENGTH`` characters."""
    text = re.sub(r"\n\s*", " ", _REPR.repr(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 4]} ..."


def format_error(error: BaseException) -> str:
    """Return the type and message of ``error``, and the line of the user's code, if any, that raised it."""
    text = f"{type(error).__name__}: {error}"
    frame, line = next(reversed([*traceback.walk_tb(error.__traceback__)]), (None, 0))
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] in LIBRARY_PACKAGES:
        return text
    return f"{text} ({frame.f_code.co_filename}:{line} in {frame.f_code.co_name})"


def did_you_mean(name: str, choices: Iterable[str]) -> str:
    """Return `` Did you mean 'a', 'b' or 'c'?`` with the nearest of ``choices``, or an empty string if none is near."""
    choices = list(choices)
    folded = {choice.lower(): choice for choice in choices}
    near = difflib.get_close_matches(name.lower(), folded, n=3, cutoff=0.5)
    if not near:
        return ""
    quoted = [f"'{folded[choice]}'" for choice in near]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f" Did you mean {listed}?"


def missing_method_error(owner: object, method: str) -> NotImplementedError:
    """Return the error for a method that the class of ``owner`` must define, but does not."""
    return NotImplementedError(f"{type(owner).__name__} does not define {method}(): write it in that class.")


def count_noun(number: int, noun: str) -> str:
    """Return a number with its noun: ``1 row``, ``2,000 rows``."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def with_count(remark: str, times: int) -> str:
    """Return a remark with its number of occurrences, if more than one."""
    return f"{remark} ({times:,} times)" if times > 1 else remark


# ---------------------------------------------------------------- names of settings


FLAG_SYNONYMS = {
    r"(.*\.)?([a-z]+-)?lr": "learning-rate lr policy-lr q-lr alpha-lr step-size anneal-lr",
    r".*\.discount(-horizon)?": "gamma discount-factor discount-rate",
    r"steps": "total-timesteps timesteps num-timesteps n-timesteps total-steps num-steps max-steps env-steps "
    "total-env-steps",
    r"updates": "epochs num-epochs iterations num-updates max-updates",
    r"envs": "num-envs n-envs nenvs num-workers workers num-environments",
    r"env": "env-id env-name environment gym-id task",
    r"replay\.capacity": "buffer-size memory-size replay-size replay-buffer-size buffer-capacity",
    r"replay-ratio": "utd utd-ratio gradient-steps train-freq train-frequency update-every",
    r"learning-starts": "warmup warmup-steps start-steps learning-start prefill",
    r"random-steps": "start-steps warmup-steps random-exploration-steps",
    r"algo\.(tau|slow-rate)": "polyak target-update-rate soft-update",
    r"algo\.(target|slow)-update-interval": "target-every target-network-frequency target-update-freq slow-every",
    r"algo\.(temperature|entropy-coef)": "alpha ent-coef entropy-coef entropy-coeff entropy-weight actent",
    r"algo\.value-coef": "vf-coef value-loss-coef",
    r"algo\.batch-size": "num-minibatches n-minibatches minibatch-size batch",
    r"(.*\.)?max-grad-norm": "clip clip-gradient clip-grad-norm grad-clip grad-norm-clip",
    r"algo\.clip-range": "clip clip-param clip-coef clip-ratio eps-clip",
    r"algo\.value-clip-range": "clip-value clip-range-vf clip-vloss vf-clip-param",
    r"algo\.value-estimator": "gae-lambda lambda lam n-step n-steps nstep",
    r"algo\.graph": "cuda-graphs capture jit compile",
    r"algo\.exploration-noise": "noise expl-noise expl-amount",
    r"algo\.reward-transform": "rewards clip-rewards",
    r"algo\.conservative-weight": "min-q-weight cql-weight cql-alpha",
    r"algo\.use-planning": "mpc",
    r"algo\.ensemble\.log-disagreement": "disag-log",
    r"algo\.encoder\.encode-reward": "reward-input",
    r"algo\.networks\.units": "hidden-size hidden-sizes hidden-dim hidden-units net-arch",
    r"algo\.exploration": "epsilon eps exploration-fraction epsilon-decay",
    r"run": "logdir log-dir output output-dir save-path run-name exp-name experiment-name name",
    r"schedule\.eval-every": "eval-freq eval-frequency eval-interval eval-every",
    r"schedule\.save-every": "save-freq save-frequency save-interval checkpoint-freq checkpoint-every",
    r"schedule\.log-every": "log-freq log-frequency log-interval log-every",
    r"eval-episodes": "n-eval-episodes num-eval-episodes episodes",
    r"data": "dataset dataset-path data-path offline-data",
    r"resume": "checkpoint load load-model restore from-checkpoint continue",
    r"wandb": "track use-wandb wandb-project wandb-project-name project",
    r"console": "verbose progress progress-bar quiet",
    r"eval-video": "capture-video record-video render",
    r"device": "gpu cuda accelerator",
    r"seeds": "num-seeds n-seeds",
    r"env\.vectorization": "vectorization-mode vec-env",
    r"(.*\.)?max-episode-steps": "time-limit max-steps-per-episode",
    r"env\.terminal-on-life-loss": "episodic-life",
    r"env\.channel-axis": "data-format",
    r"(replay\.)?init-from": "init from-checkpoint pretrained",
    r"heldout-data": "val-data",
    r"heldout-fraction": "validation-fraction val-fraction",
    r"score-metric": "metric-for-best-model",
    r"deterministic": "stochastic",
    r"trust-code": "trust-remote-code",
}
"""Patterns of settings, written as flags, and their names in other libraries."""


def suggest_names(name: str, choices: Iterable[str]) -> list[str]:
    """Return at most four ``choices`` that ``name`` may mean: by synonyms, by its last word, or by spelling."""
    choices, last = list(choices), name.rpartition(".")[2]
    patterns = [pattern for pattern, synonyms in FLAG_SYNONYMS.items() if last in synonyms.split()]
    matches = [choice for choice in choices if any(re.fullmatch(pattern, choice) for pattern in patterns)]
    matches = matches or [choice for choice in choices if choice.rpartition(".")[2] == last]
    if not matches:
        vocabulary = {synonym for synonyms in FLAG_SYNONYMS.values() for synonym in synonyms.split()}
        vocabulary |= {choice.rpartition(".")[2] for choice in choices}
        if (near := difflib.get_close_matches(last, vocabulary, n=1, cutoff=0.85)) and near != [last]:
            return suggest_names(name.removesuffix(last) + near[0], choices)
        close = difflib.get_close_matches(name, choices, n=3, cutoff=0.65)
        ends = difflib.get_close_matches(last, {choice.rpartition(".")[2] for choice in choices}, n=3, cutoff=0.75)
        matches = [*close, *(choice for choice in choices if choice.rpartition(".")[2] in ends and choice not in close)]
    return matches[:4]
