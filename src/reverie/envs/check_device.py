"""Check environments on a device: random rows, the same again, and from a saved state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.core.errors import EnvError, ReverieError
from reverie.core.specs import MASK_KEY
from reverie.core.types import FLAGS, Step
from reverie.envs.findings import Findings
from reverie.envs.interventions import is_of_takeover
from reverie.envs.vector_env import VectorEnv

NUM_ENVS, NUM_TURNS, SAVED_TURN, SEED = 16, 200, 20, 2
"""Environments and turns of a check, the turn after which the state is saved, and the seed."""
MAX_BYTES = 2**28
"""Of observations that are kept to see how episodes end at time limits beyond ``NUM_TURNS``."""

Rows = dict[str, Tensor]
"""Columns ``[T, N, ...]``."""


def check_device_env(env: VectorEnv, findings: Findings) -> dict[str, Any]:
    """Play random actions in ``env``; add to ``findings`` what is wrong, and return measurements by name."""
    try:
        step = env.reset(SEED)
        max_turns = MAX_BYTES // sum(x.nbytes for x in step.obs.values())
        rows, state, step = _play(env, step, max(NUM_TURNS, min((env.max_episode_steps or 0) + 2, max_turns)))
        _check_rows(rows)
        repeated, *_ = _play(env, env.reset(SEED), NUM_TURNS)
        if difference := _difference({name: x[:NUM_TURNS] for name, x in rows.items()}, repeated):
            findings.add("vector_seed", error=difference)
        elif state is None:
            findings.add("vector_unsaved")
        else:
            env.load_state_dict(state, step)
            resumed, *_ = _play(env, step, NUM_TURNS - SAVED_TURN, SAVED_TURN)
            if difference := _difference({name: x[SAVED_TURN:NUM_TURNS] for name, x in rows.items()}, resumed):
                findings.add("state", error=difference)
    except ReverieError as error:
        findings.add("refused", error=str(error).rstrip("."))
        return {"device": str(env.device)}
    keys: tuple[str, str] | None = getattr(env.codec, "executed_keys", None)
    if keys is not None and keys[0]:
        findings.add_executed(keys[0], "takeover" if is_of_takeover(*keys) else "filter")
    return _measure(rows, env, findings)


def _play(env: VectorEnv, step: Step, turns: int, done: int = 0) -> tuple[Rows, Any, Step]:
    """Return the rows of random actions from ``step`` on, and the state and the rows after ``SAVED_TURN``."""
    steps, state, saved = list[Step](), None, step
    for turn in range(done, done + turns):
        if turn == SAVED_TURN:
            state, saved = env.state_dict(), step
        steps.append(step)
        step = env.step(_random_actions(env, step, turn))
    env.check()
    rows = {name: torch.stack([getattr(step, name) for step in steps]) for name in ("reward", *FLAGS)}
    return rows | {key: torch.stack([step.obs[key] for step in steps]) for key in env.obs_spec}, state, saved


def _random_actions(env: VectorEnv, step: Step, turn: int) -> Tensor:
    """Return actions ``[N, A]`` that depend on the turn alone, and on the mask."""
    flat = torch.rand(env.num_envs, env.action_spec.width, generator=torch.Generator().manual_seed(turn)) * 2 - 1
    flat = flat.to(env.device)
    return flat.masked_fill(~step.obs[MASK_KEY], -2.0) if MASK_KEY in step.obs else flat


def _difference(rows: Rows, repeated: Rows) -> str:
    """Return the first column that differs, for a message; "" if none does."""
    return next((f"{name} differs" for name, x in rows.items() if not torch.equal(x, repeated[name])), "")


def _check_rows(rows: Rows) -> None:
    """Raise EnvError if rows break the conventions of ``core/types.py``."""
    last = rows["is_last"]
    for name, x in rows.items():
        if x.is_floating_point() and not x.isfinite().all():
            raise EnvError(f"{name} is NaN or infinite in a row: expected finite float32 numbers.")
    if (rows["is_terminal"] & ~last).any():
        raise EnvError("a row is terminal but not last: expected both where an episode ends.")
    ends = last[:-1].nonzero(as_tuple=True)
    seen = [x for name, x in rows.items() if name not in ("reward", *FLAGS, MASK_KEY)]
    seen = [x for x in seen if (x != x[0]).any()]  # some tasks always show the same
    if len(ends[0]) and seen and all(torch.equal(x[:-1][ends], x[1:][ends]) for x in seen):
        raise EnvError(
            "the last row of each episode shows the first observation of the next episode: expected its own last "
            "observation, from which learners bootstrap at time limits."
        )


def _measure(rows: Rows, env: VectorEnv, findings: Findings) -> dict[str, Any]:
    first, last, terminal = (rows[name].cpu() for name in FLAGS)
    lengths, returns, age, total = (
        list[int](),
        list[float](),
        torch.zeros(NUM_ENVS),
        torch.zeros(NUM_ENVS, dtype=torch.float64),
    )
    for is_first, is_last, reward in zip(first, last, rows["reward"].cpu(), strict=True):
        age, total = (age + 1).masked_fill(is_first, 0), (total + reward).masked_fill(is_first, 0.0)
        lengths, returns = lengths + age[is_last].int().tolist(), returns + total[is_last].tolist()
    steps = int((~last).sum())
    if not lengths and env.max_episode_steps is None:
        findings.add("endless", steps=steps)
    if not rows["reward"].any():
        findings.add("sparse", steps=steps)
    return {
        "device": str(env.device), "steps": steps, "episodes": len(lengths), "terminated": int(terminal.sum()),
        "truncated": int((last & ~terminal).sum()), "max_episode_steps": env.max_episode_steps, "lengths": lengths,
        "returns": returns, "least_reward": float(rows["reward"].min()), "largest_reward": float(rows["reward"].max()),
    }  # fmt: skip
