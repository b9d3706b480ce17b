"""The installed version of reverie."""

from importlib.metadata import PackageNotFoundError, distribution


def version() -> str:
    """Return the installed version of reverie."""
    try:
        return distribution("reverie-rl").version
    except PackageNotFoundError:
        return "0+unknown"
