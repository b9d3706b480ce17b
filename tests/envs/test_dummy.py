"""The test environments keep the returns that they document."""

from __future__ import annotations

import numpy as np

from reverie.envs.dummy import Count, Cue, Grid, Match


def returns(env, policy, episodes=40):
    """The return of each episode under ``policy(obs, memory)``, where memory is the first observation."""
    out = []
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        first, total, ended = obs, 0.0, False
        while not ended:
            obs, reward, terminated, truncated, _ = env.step(policy(obs, first))
            total += reward
            ended = terminated or truncated
        out.append(total)
    return np.array(out)


def walk(board, _):
    """One pixel nearer to the red one."""
    (gy, gx), (y, x) = np.argwhere(board[..., 0] == 255)[0], np.argwhere(board[..., 1] == 255)[0]
    return (0 if gy < y else 1) if gy != y else (2 if gx < x else 3)


def test_best_returns():
    assert (returns(Count(terminate_at=7), lambda obs, first: 1) == 7).all()
    assert (returns(Cue(), lambda obs, first: int(first[0] > 0)) == 1).all()
    assert (returns(Grid(), walk) == 1).all()
    assert (returns(Match(), lambda obs, first: obs) == 0).all()


def test_blind_policies_fall_short():
    rng = np.random.default_rng(0)
    assert abs(returns(Cue(), lambda obs, first: 0, 200).mean()) < 0.25
    assert returns(Grid(), lambda obs, first: int(rng.integers(4)), 100).mean() < 0.5
    assert returns(Match(), lambda obs, first: np.zeros(1)).mean() < -40
