"""``reverie data record``: play with a trained agent and write its episodes."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, parse
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class RecordCommand(Trusting):
    """Play with a trained agent and record the episodes as a Minari dataset."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    target: Annotated[Positional[str], arg(metavar="TARGET")]
    """A folder that does not exist yet, or minari:NAME."""
    episodes: int | None = None
    """Number of episodes."""
    steps: int | None = None
    """Number of env steps, in place of episodes; the last episode is truncated."""
    epsilon: float = 0.0
    """Probability that an action is drawn from the action space in place of the agent's."""
    noise: float = 0.0
    """Standard deviation of Gaussian noise on continuous actions, in units of half their range."""
    mode: Literal["mode", "sample"] = "mode"
    """Take the policy's most likely action, or sample one."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    env: str | None = None
    """Environment to play in, for an agent that was trained without one."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int = 0
    """Seed of environments and actions."""


def record_command(args: list[str]) -> int:
    """Play with a trained agent and record it."""
    options = parse(RecordCommand, args, "data record")
    from reverie.agent.loading import load
    from reverie.agent.recording import RecordConfig, record
    from reverie.datasets.output import check_target

    names = ("episodes", "steps", "epsilon", "noise", "seed")
    config = RecordConfig(actions=options.mode, **{name: getattr(options, name) for name in names})
    check_target(options.target, "minari")
    agent = load(options.run, env=options.env, checkpoint=options.checkpoint, device=options.device)
    done = record(agent, options.target, config)
    for remark in done.remarks:
        print(f"remark   {remark}", file=sys.stderr)
    print(f"{plural(done.episodes, 'episode')} with {plural(done.steps, 'step')}: {done.path}")
    return 0
