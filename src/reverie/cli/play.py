"""``reverie play``: a person demonstrates by keys, or plays a game against an agent."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from reverie.cli.data import Format, print_written
from reverie.cli.parsing import Positional, TrustOption
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError

GAME_OPTIONS = ("seat", "simulations", "hint")
"""Options of games against a run; the others are those of demonstrations."""


@dataclass(frozen=True, kw_only=True)
class PlayCommand(TrustOption):
    """Play an environment by keys, and record the episodes as a dataset of demonstrations. Or play against an agent.

    Enter ends an episode, Backspace discards it, u undoes the newest step, q quits. Each episode is written at once.
    With the run of a game of two players, you enter the numbers of your moves; finished games are stored in the run's
    human_games/.
    """

    env: Annotated[str, Positional("ENV")]
    """Environment id in Gymnasium, or `module:Id`; or a run, or RUN@STEP, to play against."""
    seat: Literal["0", "1", "random"] = "random"
    """With a run: your seat. 0 moves first; random: in each game."""
    simulations: int = 50
    """With a run: nodes of the agent's searches."""
    hint: bool = False
    """With a run: show the agent's search before each of your moves."""
    out: str = ""
    """A folder that does not exist yet (a file for d4rl, robomimic and tianshou), or minari:NAME. Required with an
    environment."""
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
        is_run = any((Path(path) / "config.yaml").is_file() for path in (self.env, self.env.rpartition("@")[0]))
        self._check_options(is_run)
        if is_run:
            from reverie.agent.human_games import play_games
            from reverie.agent.loading import load_opponent

            agent: Any = load_opponent(self.env)
            return play_games(agent, seat=self.seat, simulations=self.simulations, hint=self.hint)
        if not self.out:
            raise ConfigError("out is missing: pass --out FOLDER for the demonstrations, or a run to play against.")
        from reverie.agent.demonstrate import play

        print_written(
            play(
                self.env, out=self.out, append=self.append, episodes=self.episodes, keys=self.keys, seed=self.seed,
                hz=self.hz, format=self.format, env_options=self.env_options,
            ),
            [],
        )  # fmt: skip

    def _check_options(self, is_run: bool) -> None:
        """Raise ConfigError for an option that would be ignored."""
        plain = vars(PlayCommand(env=self.env, trust_code=self.trust_code))
        for name, value in vars(self).items():
            if value != plain[name] and (name in GAME_OPTIONS) != is_run:
                subject = "an environment, not to play against a run" if is_run else "a run in a game of two players"
                raise ConfigError(f"--{name.replace('_', '-')} is for {subject}. Remove this option.")
