"""How threads wait is settled before they exist, and by the user if the user wants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from reverie.core.waiting import POLICY, SPIN, TURNS, spin_briefly


def test_threads_sleep_soon_unless_told_otherwise() -> None:
    environment: dict[str, str] = {}
    spin_briefly(environment)
    assert environment == {SPIN: str(TURNS)}


@pytest.mark.parametrize("said", [{SPIN: "7"}, {POLICY: "active"}, {POLICY: ""}])
def test_what_the_user_said_stays(said: dict[str, str]) -> None:
    environment = dict(said)
    spin_briefly(environment)
    assert environment == said


def test_the_command_line_settles_it_before_torch_is_loaded() -> None:
    program = (
        "import sys, os, reverie.cli as cli\n"
        "assert 'torch' not in sys.modules\n"
        "cli.main(['--version'])\n"
        f"print(os.environ.get('{SPIN}'), 'torch' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key not in (SPIN, POLICY)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == f"{TURNS} False"
