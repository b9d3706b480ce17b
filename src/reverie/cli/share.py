"""``reverie push``, ``pull`` and ``import``, and ``list`` of agents: what is passed on."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from reverie.cli.parse import Trusting, parse
from reverie.cli.show import as_given
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class PushCommand:
    """Pass on the agent of a run: weights, settings, evaluation and a page."""

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


@dataclass(frozen=True, kw_only=True)
class ImportCommand(Trusting):
    """Make a run of an agent of another library, without unpickling anything."""

    library: Annotated[Positional[Literal["sb3"]], arg(metavar="LIBRARY")]
    """sb3: Stable-Baselines3 or sb3-contrib."""
    file: Annotated[Positional[Path], arg(metavar="FILE")]
    """The zip file of model.save: PPO, A2C, SAC, TD3, DDPG, DQN, MaskablePPO, RecurrentPPO or QRDQN, MlpPolicy."""
    env: str
    """Its environment: an id of Gymnasium's registry, or `module:Id`."""
    run: Path | None = None
    """New run folder. None: one below runs/."""


def import_command(args: list[str]) -> int:
    """Run ``reverie import``."""
    said = parse(ImportCommand, args, "import")
    from reverie.agent.sb3 import import_sb3

    run = import_sb3(said.file, said.env, run=said.run)
    print(f"imported; reverie eval {as_given(run, said.run)}")
    return 0


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
