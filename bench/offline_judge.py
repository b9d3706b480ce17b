#!/usr/bin/env python3
"""The mean return of a trained agent of ours in the episodes that all offline policies are judged by.

    python bench/offline_judge.py RUN [--episodes 100]

Every policy, ours and those of others, begins where every other begins: in the states of the same seeds. Policies that
differ little then differ little, which twenty episodes from anywhere do not show.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from offline_work import EPISODES, FIRST_SEED

import reverie


def judged(run: Path, episodes: int) -> float:
    """Played with the policy's best actions."""
    agent = reverie.load(run, device="cpu")
    env, total = agent.make_env(), 0.0
    for episode in range(episodes):
        obs, over, state = env.reset(seed=FIRST_SEED + episode)[0], False, None
        while not over:
            action, state = agent.act(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total += float(reward)
            over = terminated or truncated
    env.close()
    return total / episodes


def main() -> None:
    """Print it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--episodes", type=int, default=EPISODES)
    args = parser.parse_args()
    torch.set_num_threads(1)
    print(judged(args.run, args.episodes))


if __name__ == "__main__":
    main()
