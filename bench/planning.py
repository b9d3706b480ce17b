#!/usr/bin/env python3
"""How well MuZero plays after training, with perfect play as the measure, and how fast its search is.

    python bench/planning.py tictactoe --seeds 0 1 2
    python bench/planning.py cartpole --seeds 0 1 2
    python bench/planning.py search

Games: trained with the preset of the environment (`connect4`: see ``find_wide``), then the share of hard positions (in
which some legal action is not optimal) with an optimal action, and the games of 200 lost to a perfect player. Other
environments: trained until an evaluation reaches the `stop_score`, with the mean score of that evaluation.
`TASK_consistent` has EfficientZero's consistency loss, `TASK_reanalyzed` searches stored rows again in each tenth
update, `TASK_both` does both and `TASK_plain` neither, with the authors' noise, whatever the preset says;
`connect4_short` has 100,000 steps; `hex` is OpenSpiel's on 3x3. `search`: simulations per second of processor time, for
64 roots with 9 actions, with and without kernels. Processor times are of the whole process, without the measurement at
the end. Results are added to planning.json; those of the same task and seed are replaced.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from machine import machine

import reverie
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.envs.board_games import ConnectRules, NimRules, Rules
from reverie.objectives.tree_search import Node, SearchSettings, Transition, search

OUT = Path(__file__).with_suffix(".json")


def find_wide(steps: int) -> dict[str, Any]:
    """Return settings for 134,289 positions: longer games and openings, learning to the end, and twice the width."""
    return {
        "steps": steps, "algo.lr": [[0, 2e-3], [steps, 1e-4]], "algo.batch_length": 17, "algo.networks.latent": 128,
        "algo.networks.units": [256, 256], "algo.networks.encoder_units": [256],
        "env.kwargs": {"rows": 4, "columns": 4, "opening_moves": 10},
    }  # fmt: skip


CONNECT3, CONNECT4 = ConnectRules(3, 4, 3, gravity=True), ConnectRules(4, 4, 4, gravity=True)
GAMES: dict[str, tuple[str, Rules, dict[str, Any]]] = {
    "tictactoe": ("reverie/TicTacToe-v0", ConnectRules(), {}),
    "connect3": ("reverie/ConnectFour-v0", CONNECT3, {"env.kwargs": {"rows": 3, "columns": 4, "connect": 3}}),
    "connect4": ("reverie/ConnectFour-v0", CONNECT4, find_wide(500_000)),
    "connect4_short": ("reverie/ConnectFour-v0", CONNECT4, find_wide(100_000)),
    "nim": ("reverie/Nim-v0", NimRules((3, 4, 5)), {"env.kwargs": {"heaps": [3, 4, 5]}}),
}

ENVS: dict[str, dict[str, Any]] = {
    "cartpole": {"env": "CartPole-v1"},
    "empty": {
        "env": "MiniGrid-Empty-5x5-v0", "steps": 40_000, "eval_episodes": 20, "eval_envs": 20, "stop_score": 0.95,
        "schedule.eval_every": 1000,
    },
    "doorkey": {
        "env": "MiniGrid-DoorKey-5x5-v0", "steps": 180_000, "eval_episodes": 20, "eval_envs": 20, "stop_score": 0.9,
        "schedule.eval_every": 4000,
    },
}  # fmt: skip
VARIANTS: dict[str, dict[str, Any]] = {
    name: {"algo.consistency_coef": consistency, "algo.reanalyze_interval": interval, "algo.gumbel_scale": 1.0}
    for name, consistency, interval in (
        ("plain", 0.0, 0),
        ("consistent", 2.0, 0),
        ("reanalyzed", 0.0, 10),
        ("both", 2.0, 10),
    )
}
ENVS |= {f"{name}_{variant}": ENVS[name] | VARIANTS[variant] for name in [*ENVS] for variant in VARIANTS}
GAMES |= {
    f"{name}_{variant}": (env, rules, settings | VARIANTS[variant])
    for name, (env, rules, settings) in [*GAMES.items()]
    for variant in VARIANTS
}
TASKS = ["search", "hex", *GAMES, *ENVS]


def measure_env(name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train from one seed until the score is reached."""
    options = ENVS[name] | ({} if steps is None else {"steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        result = reverie.train("muzero", run=f"{folder}/run", seed=seed, **options)
        seconds = time.process_time() - started
    score = float(np.mean(result.evaluation.scores)) if result.evaluation else None
    return {
        "task": name,
        "seed": seed,
        "env_steps": result.env_steps,
        "updates": result.updates,
        "cpu_seconds": seconds,
        "score": score,
    }


def measure_game(name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train from one seed, and measure the strength at the end."""
    env, rules, settings = GAMES[name]
    kwargs = {"opening_moves": 6} | settings.get("env.kwargs", {})
    options = settings | {"env.kwargs": kwargs} | ({} if steps is None else {"steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        result = reverie.train("muzero", env=env, run=f"{folder}/run", seed=seed, eval_episodes=0, **options)
        seconds = time.process_time() - started
        agent = reverie.load(f"{folder}/run")
        strength = rules.measure_strength(lambda obs: np.asarray(agent.act(dict(obs))[0]))
    return {
        "task": name,
        "seed": seed,
        "env_steps": result.env_steps,
        "updates": result.updates,
        "cpu_seconds": seconds,
        **strength,
    }


def solve_hex(state: Any, solved: dict[str, tuple[float, dict[str, Any] | None, list[int]]]) -> float:
    """Return the value of a position for the player to move; add value, observation and optimal actions of all.

    The observation is None where all moves are optimal.
    """
    if (key := str(state)) not in solved:
        mover, after = state.current_player(), {action: state.child(action) for action in state.legal_actions()}
        values = {a: x.returns()[mover] if x.is_terminal() else -solve_hex(x, solved) for a, x in after.items()}
        best = [action for action, value in values.items() if value == max(values.values())]
        obs = {"observation": np.float32([*state.observation_tensor(mover), mover]), "player": mover,
               "action_mask": np.int8(state.legal_actions_mask())}  # fmt: skip
        solved[key] = max(values.values()), obs if len(best) < len(values) else None, best
    return solved[key][0]


def measure_hex(name: str, seed: int, steps: int | None) -> dict[str, Any]:
    """Train in OpenSpiel's Hex on 3x3, and measure the optimal moves in hard positions."""
    import pyspiel

    solved: dict[str, tuple[float, dict[str, Any] | None, list[int]]] = {}
    solve_hex(pyspiel.load_game("hex", {"board_size": 3}).new_initial_state(), solved)
    hard = [(obs, best) for _, obs, best in solved.values() if obs is not None]
    options = {"env.kwargs": {"board_size": 3, "opening_moves": 6}} | ({} if steps is None else {"steps": steps})
    with tempfile.TemporaryDirectory() as folder:
        started = time.process_time()
        result = reverie.train(
            "muzero", env="open_spiel/hex", run=f"{folder}/run", seed=seed, eval_episodes=0, **options
        )
        seconds = time.process_time() - started
        agent = reverie.load(f"{folder}/run")
        obs = {key: np.stack([obs[key] for obs, _ in hard]) for key in hard[0][0]}
        actions = np.asarray(agent.act(obs)[0]).tolist()
    right = float(np.mean([action in best for action, (_, best) in zip(actions, hard, strict=True)]))
    return {"task": name, "seed": seed, "env_steps": result.env_steps, "updates": result.updates,
            "cpu_seconds": seconds, "optimal_moves_hard": right}  # fmt: skip


def measure_search(roots: int = 64, simulations: int = 16, actions: int = 9, repeats: int = 30) -> float:
    """Return simulations per second of processor time, with networks of two layers of 128 units."""
    layers = [torch.nn.Linear(64 + actions, 128), torch.nn.ReLU(), torch.nn.Linear(128, 128), torch.nn.ReLU()]
    network, one_hot = torch.nn.Sequential(*layers, torch.nn.Linear(128, 64 + actions + 2)), torch.eye(actions)

    def model(state: torch.Tensor, action: torch.Tensor) -> Transition:
        y = network(torch.cat([state, one_hot[action]], -1))
        z, logits, reward, value = y.split([64, actions, 1, 1], -1)
        return Transition(reward[:, 0], torch.full_like(reward[:, 0], -1.0), Node(z, logits, value[:, 0]))

    legal, settings = torch.ones(roots, actions, dtype=torch.bool), SearchSettings(simulations, 8, q_range_floor=2.0)
    seconds = []
    for _ in range(repeats):
        root = Node(torch.randn(roots, 64), torch.randn(roots, actions), torch.randn(roots))
        started = time.process_time()
        search(model, root, legal, torch.randn(roots, actions), settings)
        seconds.append(time.process_time() - started)
    return roots * simulations / float(np.median(seconds))


def main() -> None:
    """Measure and add the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=TASKS, metavar="TASK", help=", ".join(TASKS))
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--steps", type=int)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.task == "search":
        compiled = measure_search()
        with use_only_kernels():
            rows = [{"task": "search", "compiled_per_second": compiled, "definition_per_second": measure_search()}]
    else:
        measure = measure_env if args.task in ENVS else measure_hex if args.task == "hex" else measure_game
        rows = [measure(args.task, seed, args.steps) for seed in args.seeds]
    earlier = json.loads(OUT.read_text(encoding="utf-8"))["rows"] if OUT.exists() else []
    for row in rows:
        print(json.dumps(row), flush=True)
    measured = {(row["task"], row.get("seed")) for row in rows}
    earlier = [row for row in earlier if (row["task"], row.get("seed")) not in measured]
    OUT.write_text(json.dumps({"machine": machine(1), "rows": [*earlier, *rows]}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
