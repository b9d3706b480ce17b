"""``reverie push`` and ``pull``, and ``list`` of agents: what is passed on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from tyro.conf import Positional, arg

from reverie.cli.parse import parse
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class PushCommand:
    """Pass on the agent of a run: weights, settings, spaces, evaluation, and a page with a picture."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    to: Annotated[Positional[str], arg(metavar="PLACE")]
    """hf://USER/NAME at the Hugging Face Hub, s3://BUCKET/NAME or another URL, or a folder."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the best if there is one, else the newest."""
    private: bool = False
    """A repository that is created at the Hub is for its owner alone."""


@dataclass(frozen=True, kw_only=True)
class PullCommand:
    """Download an agent that was passed on, or a run or an agent at a tracker."""

    place: Annotated[Positional[str], arg(metavar="PLACE")]
    """hf://USER/NAME, also with @REVISION; s3://BUCKET/NAME or another URL; models:/NAME/3 and the like."""
    to: Path | None = None
    """A new folder. None: one below runs/."""


def push_command(args: list[str]) -> int:
    """Run ``reverie push``."""
    said = parse(PushCommand, args, "push")
    from reverie.agent.sharing import push

    place = push(said.run, said.to, checkpoint=said.checkpoint, private=said.private)
    print(f"pushed; reverie eval {place}")
    return 0


def pull_command(args: list[str]) -> int:
    """Run ``reverie pull``."""
    said = parse(PullCommand, args, "pull")
    from reverie.agent.sharing import pull

    print(pull(said.place, said.to))
    return 0


def print_shared(place: str) -> int:
    """Print the agents at a place, for ``reverie list``."""
    from reverie.agent.sharing import shared

    found = shared(place)
    width = max((len(one.place) for one in found), default=0)
    for one in found:
        about = [one.about.get(name, "") for name in ("algorithm", "env")]
        score = f"score {one.about['score']}" if "score" in one.about else ""
        print(f"  {one.place:<{width}}  {' in '.join(filter(None, about))}  {score}".rstrip())
    print(plural(len(found), "agent"))
    return 0
