#!/usr/bin/env python3
"""How LightZero's MuZero plays after the processor time in which ours reaches its targets (`planning.py`).

    python bench/planning_lightzero.py cartpole tictactoe --seeds 0 1 2 [--seconds 300] [--where FOLDER]

LightZero 0.2.0 stands in a virtual environment of its own, with its own settings (`peers/planning_lightzero.py`), one
thread, and the PyTorch that its package wants. CartPole: the mean score of each evaluation over processor time and env
steps, until one reaches 475. Tic-tac-toe: the share of hard positions with an optimal action, with the rules of
`reverie.envs.board_games` as the judge.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from pathlib import Path

from machine import machine
from peers.installed import WHERE

from reverie.envs.board_games import ConnectRules, solve

OUT = Path(__file__).with_suffix(".json")
SCRIPT = Path(__file__).parent / "peers" / "planning_lightzero.py"


def hard_positions() -> list[dict[str, object]]:
    """Return the positions of tic-tac-toe in which some legal action is not optimal."""
    rows = []
    for (mine, theirs), solution in solve(ConnectRules()).items():
        if solution.is_hard:
            player = 1 if mine.bit_count() == theirs.bit_count() else 2
            cells = [player * (mine >> i & 1) + (3 - player) * (theirs >> i & 1) for i in range(9)]
            rows.append({"board": cells, "player": player, "optimal": solution.optimal})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="+", choices=["cartpole", "tictactoe"])
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--where", type=Path, default=WHERE)
    args = parser.parse_args()
    python = args.where / "lightzero" / "bin" / "python"
    if not python.exists():
        subprocess.run(["python3", "-m", "venv", python.parent.parent], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", "LightZero==0.2.0"], check=True)
    earlier = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else []
    for task in args.tasks:
        for seed in args.seeds:
            with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
                json.dump(hard_positions(), file)
                file.flush()
                given = [file.name] if task == "tictactoe" else []
                command = [python, SCRIPT, task, str(seed), str(args.seconds), *given]
                said = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
            row = json.loads(said.splitlines()[-1])
            earlier = [x for x in earlier if (x["task"], x["seed"]) != (task, seed)] + [row]
            OUT.write_text(json.dumps({"machine": machine(1), "rows": earlier}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
