"""``python -m reverie.child PARENT COMMAND ...`` is ``reverie COMMAND ...``, and ends with the process ``PARENT``."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Sequence

from reverie import cli
from reverie.core.waiting import spin_briefly

TOGETHER = 1.0
"""Seconds within which signals are taken for one: the parent passes on what a scheduler may have told us as well."""


def end_with(parent: int) -> None:
    """Let the system send this process SIGTERM when ``parent`` has ended, however it did. On Linux only."""
    if sys.platform.startswith("linux"):
        set_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_signal, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before we could ask
            raise SystemExit(128 + signal.SIGTERM)


def main(args: Sequence[str]) -> int:
    """Run the command ``args[1:]`` as a child of process ``args[0]``; its exit code."""
    end_with(int(args[0]))
    spin_briefly()  # the next import brings torch
    from reverie.run.interrupt import Interrupt

    Interrupt.together = TOGETHER
    return cli.main(args[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
