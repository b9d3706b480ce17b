"""How threads wait is settled before they exist, and by the user if the user wants."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from reverie.core.waiting import POLICY, SPIN, TURNS, spin_briefly


@pytest.mark.parametrize("said", [{SPIN: "7"}, {POLICY: "active"}, {POLICY: ""}])
def test_what_the_user_said_stays(said: dict[str, str]) -> None:
    environment = dict(said)
    spin_briefly(environment)
    assert environment == said


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        ("import reverie.cli as cli; assert 'torch' not in sys.modules; cli.main(['--help'])", f"{TURNS} False"),
        ("import reverie", f"{TURNS} False"),
        ("import torch, reverie", "None True"),  # too late: nothing is said to processes that come after this one
    ],
)
def test_it_is_settled_before_torch_is_loaded(first: str, expected: str) -> None:
    program = f"import sys, os\n{first}\nprint(os.environ.get('{SPIN}'), 'torch' in sys.modules)"
    environment = {key: value for key, value in os.environ.items() if key not in (SPIN, POLICY)}
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == expected
