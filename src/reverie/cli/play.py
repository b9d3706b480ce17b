"""``reverie play``: a person demonstrates by keys."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from reverie.cli.data import Format, print_written
from reverie.cli.parsing import Positional, TrustOption, options_for
from reverie.core.bounds import AtLeast


@dataclass(frozen=True, kw_only=True)
class PlayCommand(TrustOption):
    """Play an environment by keys, and record the episodes as a dataset of demonstrations.

    Enter ends an episode, Backspace discards it, u undoes the newest step, q quits. Each episode is written at once.
    """

    env: Annotated[str, Positional("ENV")]
    """Environment id in Gymnasium, or `module:Id`."""
    out: str
    """A folder that does not exist yet (a file for d4rl, robomimic and tianshou), or minari:NAME."""
    append: bool = False
    """Add the episodes to the dataset, if it exists."""
    episodes: int = 10
    """Number of episodes to play."""
    keys: Path | None = None
    """YAML file with an action for each key, such as `{ArrowLeft: 0, a+w: 3, idle: 1}`, for numbers `{a: [-1, 0]}`.
    None: the environment's own keys, or else digits and arrows."""
    seed: int = 0
    """Seed of the first episode; later episodes use consecutive seeds."""
    hz: Annotated[float, AtLeast(0)] = 0.0
    """Env steps a second on a terminal; without a key, the idle action is taken. 0: each step waits for a key."""
    format: Format = "auto"
    """Output format. auto: by suffix, .hdf5 (d4rl) or .parquet, else minari."""
    env_options: dict[str, Any] = field(default_factory=dict)
    """Settings of the environment: '{kwargs: {render_mode: human}}' opens a window, if the environment has one."""

    def __call__(self) -> None:
        from reverie.agent.demonstrate import play

        print_written(play(**options_for(play, self)), [])
