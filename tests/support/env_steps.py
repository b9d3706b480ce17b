"""Steps of vector environments, and their rows."""

import torch

FIELDS = ("reward", "is_first", "is_last", "is_terminal")


def actions(env, seed=0):
    """A function that makes random actions."""
    generator = torch.Generator().manual_seed(seed)
    return lambda: torch.randn(env.num_envs, env.action_spec.width, generator=generator)


def play(env, count, action=None):
    """``count`` rows from a reset on; ``action`` is a function, or one for all steps, which is zero if not given."""
    fixed = torch.zeros(env.num_envs, env.action_spec.width) if action is None else action
    act = action if callable(action) else lambda: fixed
    return [env.reset(), *(env.step(act()) for _ in range(count - 1))]


def fields(step):
    return step.obs | {name: getattr(step, name) for name in FIELDS}


def rows(env, count, action=None):
    """``play`` by field, each ``[T, N, ...]``."""
    steps = [fields(step) for step in play(env, count, action)]
    return {name: torch.stack([step[name] for step in steps]) for name in steps[0]}


def as_bytes(step):
    return b"".join(value.numpy().tobytes() for value in fields(step).values())


def go_on(env, count, seed=1):
    """The next ``count`` rows as bytes, under random actions."""
    act = actions(env, seed)
    return [as_bytes(env.step(act())) for _ in range(count)]
