"""Run ``python -m reverie.child PARENT COMMAND ...`` as ``reverie COMMAND ...``, ending with the process ``PARENT``."""

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
"""Seconds within which two signals count as one: a scheduler may signal both the parent, which passes it on, and us."""


def end_with(parent: int) -> None:
    """Ask the system to send this process SIGTERM when ``parent`` ends for whatever reason. On Linux only."""
    if sys.platform.startswith("linux"):
        set_signal = 1  # PR_SET_PDEATHSIG of <sys/prctl.h>
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(set_signal, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before the request
            raise SystemExit(128 + signal.SIGTERM)


def main(args: Sequence[str]) -> int:
    """Run the command ``args[1:]`` as a child of process ``args[0]`` and return its exit code."""
    end_with(int(args[0]))
    spin_briefly()  # must come before torch, which the next import brings
    from reverie.run.interrupt import Interrupt

    Interrupt.together = TOGETHER
    return cli.main(args[1:])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
