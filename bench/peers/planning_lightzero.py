"""LightZero's MuZero on CartPole-v1 or tic-tac-toe, by its own settings: prints one line of JSON.

    python planning_lightzero.py cartpole SEED SECONDS
    python planning_lightzero.py tictactoe SEED SECONDS POSITIONS

Changed settings: the CPU instead of CUDA, environments in this process, whose processor time counts without that of
evaluations, and CartPole-v1 until 475 instead of v0 until 200. POSITIONS: a file with boards of 0, 1 and 2, the player
to move, and the optimal actions.
"""

import importlib
import json
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

CONFIGS = {
    "cartpole": "zoo.classic_control.cartpole.config.cartpole_muzero_config",
    "tictactoe": "zoo.board_games.tictactoe.config.tictactoe_muzero_sp_mode_config",
}


class Enough(Exception):
    """The time is over, or the score is reached."""


def train(name, seed, seconds):
    """Train until the time is over; return the policy, env steps, seconds, and the mean score of each evaluation."""
    from lzero.entry import train_muzero
    from lzero.worker import MuZeroEvaluator

    module = importlib.import_module(CONFIGS[name])
    config, create = module.main_config, module.create_config
    config.exp_name, config.policy.cuda, create.env_manager.type = "run", False, "base"
    if name == "cartpole":
        config.env.env_id, config.env.stop_value = "CartPole-v1", 475
    found, started = {"scores": [], "evaluating": 0.0}, time.process_time()
    evaluate, should_evaluate = MuZeroEvaluator.eval, MuZeroEvaluator.should_eval

    def check(self, train_iter):
        found["policy"] = self._policy
        if time.process_time() - started - found["evaluating"] > seconds:
            raise Enough
        return should_evaluate(self, train_iter)

    def measured(self, save=None, train_iter=-1, envstep=-1, *args, **kwargs):
        before = time.process_time()
        found["seconds"], found["env_steps"] = before - started - found["evaluating"], envstep
        stop, info = evaluate(self, save, train_iter, envstep, *args, **kwargs)
        found["evaluating"] += time.process_time() - before
        found["scores"].append((found["seconds"], envstep, float(np.mean(info["eval_episode_return"]))))
        if stop and train_iter:
            raise Enough
        return False, info

    MuZeroEvaluator.eval, MuZeroEvaluator.should_eval = measured, check
    try:
        train_muzero([config, create], seed=seed, max_env_step=int(1e7))
    except Enough:
        found["seconds"] = time.process_time() - started - found["evaluating"]
    return found


def optimal_share(policy, positions):
    """Return the share of positions in which the policy takes an optimal action."""
    from zoo.board_games.tictactoe.envs.tictactoe_env import TicTacToeEnv

    env, right = TicTacToeEnv({"battle_mode": "self_play_mode"}), 0
    env.reset()
    for start in range(0, len(positions), 64):
        part, rows = positions[start : start + 64], []
        for position in part:
            env.board, env._current_player = np.reshape(position["board"], (3, 3)), position["player"]
            rows.append(env.current_state()[1])
        masks = [np.array([float(cell == 0) for cell in position["board"]], np.float32) for position in part]
        output = policy.forward(torch.tensor(np.stack(rows)), masks, [position["player"] for position in part])
        right += sum(int(output[i]["action"]) in position["optimal"] for i, position in enumerate(part))
    return right / len(positions)


def main():
    name, seed, seconds = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    positions = json.loads(Path(sys.argv[4]).read_text()) if len(sys.argv) > 4 else []
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        found = train(name, seed, seconds)
        row = {"task": name, "seed": seed, "cpu_seconds": found["seconds"], "env_steps": found["env_steps"]}
        row["scores"] = found["scores"]
        if positions:
            row["optimal_moves_hard"] = optimal_share(found["policy"], positions)
        os.chdir("/")
    print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
