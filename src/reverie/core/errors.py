"""Errors a user can act on: what was given, what was expected, what to do."""

from __future__ import annotations

import difflib
import re
import reprlib
import sys
from collections.abc import Iterable

BRIEF = 100
"""Characters of a value in a sentence."""
_REPR = reprlib.Repr()
_REPR.maxlist = _REPR.maxtuple = _REPR.maxdict = _REPR.maxset = _REPR.maxfrozenset = 20
_REPR.maxstring = _REPR.maxother = BRIEF


class ReverieError(Exception):
    """Base of all errors that are the user's to mend. The command line prints it without a traceback."""


class ConfigError(ReverieError, ValueError):
    """A setting that is unknown, out of range or at odds with another."""


class EnvError(ReverieError, ValueError):
    """An environment that cannot be made, or whose spaces cannot be learned from."""


class DataError(ReverieError, ValueError):
    """Experience that breaks its promises: NaN, infinite, or outside its declared space or shape."""


class ActionError(DataError):
    """An action that is NaN or infinite: whatever chose it has diverged."""


class RunError(ReverieError, RuntimeError):
    """A run that cannot start or go on: a folder of another run, a damaged checkpoint, a diverged loss."""


def brief(value: object) -> str:
    """``value`` as Python writes it, on one line and no longer than ``BRIEF``."""
    text = re.sub(r"\n\s*", " ", _REPR.repr(value))
    return text if len(text) <= BRIEF else f"{text[: BRIEF - 4]} ..."


def warn(text: str) -> None:
    """Say ``text`` on stderr: one line, without the line of source that Python's own warnings show."""
    print(f"warning: {text}", file=sys.stderr)


def did_you_mean(given: str, known: Iterable[str], count: int = 3) -> str:
    """`` Did you mean 'a', 'b' or 'c'?`` with the nearest of ``known``, or an empty string if none is near."""
    names = list(known)
    folded = {name.lower(): name for name in names}
    near = difflib.get_close_matches(given.lower(), folded, n=count, cutoff=0.5)
    if not near:
        return ""
    quoted = [f"'{folded[name]}'" for name in near]
    listed = quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} or {quoted[-1]}"
    return f" Did you mean {listed}?"
