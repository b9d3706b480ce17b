"""Errors that a user can act on: they say what was given, what was expected, and what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
import traceback
from collections.abc import Iterable

BRIEF = 100
"""Maximum number of characters of a value in an error message."""
NOT_OF_USERS = frozenset({"reverie", "gymnasium", "importlib"})
"""Packages whose lines say nothing about a mistake in the user's code."""
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxother = BRIEF


class ReverieError(Exception):
    """Base class of all errors that the user can correct. The command line prints them without a traceback."""


class ConfigError(ReverieError, ValueError):
    """A setting is unknown, out of range, or contradicts another one."""


class EnvError(ReverieError, ValueError):
    """An environment cannot be made, or its spaces are not supported."""


class UntrustedError(EnvError):
    """A file names code to run that no installed package has."""


class DataError(ReverieError, ValueError):
    """Data is invalid: NaN, infinite, or outside of its declared space or shape."""


class ActionError(DataError):
    """An action is NaN or infinite: the policy has diverged."""


class RunError(ReverieError, RuntimeError):
    """A run cannot start or continue: another run's folder, a damaged checkpoint, a loss that has diverged."""


def brief(value: object) -> str:
    """Return ``repr(value)`` on one line, shortened to ``BRIEF`` characters."""
    text = re.sub(r"\n\s*", " ", _REPR.repr(value))
    return text if len(text) <= BRIEF else f"{text[: BRIEF - 4]} ..."


def told(error: BaseException) -> str:
    """Return the type and message of ``error``, and the line of the user's code, if any, that raised it."""
    said = f"{type(error).__name__}: {error}"
    frame, line = next(reversed([*traceback.walk_tb(error.__traceback__)]), (None, 0))
    if frame is None or str(frame.f_globals.get("__name__")).partition(".")[0] in NOT_OF_USERS:
        return said
    return f"{said} ({frame.f_code.co_filename}:{line} in {frame.f_code.co_name})"


def did_you_mean(given: str, known: Iterable[str], count: int = 3) -> str:
    """Return `` Did you mean 'a', 'b' or 'c'?`` with the nearest of ``known``, or an empty string if none is near."""
    names = list(known)
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower(), folded, n=count, cutoff=0.5)
    if not near:
        return ""
    quoted = [f"'{folded[name]}'" for name in near]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f" Did you mean {listed}?"


def unwritten(owner: object, method: str) -> NotImplementedError:
    """Return the error of a method that the class of ``owner`` must define, and does not."""
    return NotImplementedError(f"{type(owner).__name__} does not define {method}(): write it in that class.")
