"""Errors that a user can act on: what is wrong, what was expected, and what to do; and their formatting."""

from __future__ import annotations

import difflib
import re
import reprlib
import traceback
from collections.abc import Iterable

from reverie.core.terminal import printable

MAX_VALUE_LENGTH = 100
"""Maximum number of characters of a value in an error message."""
LIBRARY_PACKAGES = frozenset({"reverie", "gymnasium", "importlib", "numpy", "torch", "contextlib"})
"""Packages whose traceback lines do not help to find a mistake in the user's code."""
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxother = MAX_VALUE_LENGTH


class ReverieError(Exception):
    """Base class of all errors that the user can correct. The command line prints them without a traceback."""

    def __str__(self) -> str:
        return printable(super().__str__())  # Python prints it as it is


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
        return printable(f"{self.subject} of row {self.row} {self.problem}")


class ActionError(DataError):
    """An action is NaN or infinite: the policy has diverged."""


class RunError(ReverieError, RuntimeError):
    """A run cannot start or continue: another run's folder, a damaged checkpoint, a loss that has diverged."""


def short_repr(value: object) -> str:
    """Return ``repr(value)`` on one line, shortened to ``MAX_VALUE_LENGTH`` characters."""
    text = re.sub(r"\n\s*", " ", _REPR.repr(value))
    return text if len(text) <= MAX_VALUE_LENGTH else f"{text[: MAX_VALUE_LENGTH - 4]} ..."


def format_error(error: BaseException) -> str:
    """Return the type and message of ``error``, and the innermost line of the user's code, if any."""
    text = f"{type(error).__name__}: {error}"
    for frame, line in reversed([*traceback.walk_tb(error.__traceback__)]):
        if str(frame.f_globals.get("__name__")).partition(".")[0] not in LIBRARY_PACKAGES:
            return f"{text} ({frame.f_code.co_filename}:{line} in {frame.f_code.co_name})"
    return text


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
