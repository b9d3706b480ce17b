"""Evaluation of an agent: whole episodes in new environments, and the files with their scores."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from reverie.agent.player import Player, policy_mode
from reverie.core.bounds import AtLeast
from reverie.core.config import coerce
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import disk_errors_as_run_error
from reverie.core.logger import logger
from reverie.core.protocols import Env, Policy
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import ActionSpec, has_players
from reverie.core.types import Mode, Step
from reverie.envs.board_games import Rules, solve
from reverie.envs.config import EnvLike, MakeEnv, settings_of
from reverie.envs.make import env_factory
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.environments import diff_spaces, make_eval_env
from reverie.log.artifacts import is_unpacked
from reverie.log.video import write_video
from reverie.run.evaluate import Evaluation
from reverie.run.evaluate import evaluate as play_episodes
from reverie.run.folder import RunFolder, write_result
from reverie.run.match import RandomPolicy, find_solved_rules

OPPONENTS = ("random", "perfect")
"""Opponents that are no agents, in games of two players."""


class EvaluationMethods(Player):
    """Methods of :class:`~reverie.Agent` that measure it in environments."""

    load_opponent: ClassVar[Any]
    """Set by ``agent/loading.py``, which imports this file."""

    def evaluate(
        self, episodes: int = 20, *,
        env: EnvLike | Mapping[str, Any] | None = None, deterministic: bool = True, record: bool = False,
        seed: int | None = None, max_episode_steps: int | None = None, tasks: tuple[int, ...] = (),
        opponent: Player | Path | str | None = None, simulations: int | None = None,
    ) -> Evaluation:  # fmt: skip
        """Play whole episodes in new environments, and sum their true, unclipped rewards.

        Episodes that do not end are cut off after ``episode_limit`` steps; ``Evaluation.cut_off`` is their number. The
        environment is the one passed to :func:`reverie.load`, or else the run's evaluation environment (``eval_env``).

        Args:
            episodes: number of episodes, at least 1.
            env: another environment with the same spaces, as for :func:`reverie.load`. An instance stays open.
            deterministic: take the policy's most likely actions. False: sample them.
            record: keep the frames of the first episode.
            seed: of environments and actions. None: the seed of the run's final evaluation, from ``config.seed``. To
                compare agents, give all of them the same seed and number of episodes.
            max_episode_steps: maximum decisions per episode, at least 1. None: the limit of the run's environment.
            tasks: tasks of the episodes, in turn, in an environment with tasks. Empty: those of the run.
            opponent: in games of two players, another agent, or its run, ``"RUN"`` or ``"RUN@STEP"``; ``"perfect"``, if
                the solution of the game is known; or ``"random"``. None: random moves, and the strength is measured,
                if the solution is known.
            simulations: act by tree searches of so many nodes, at least 2, in the model of ``muzero``, or in the
                latents of ``dreamer_v3``, ``plan2explore_v3`` or ``r2dreamer`` with one discrete action. None: as
                trained.

        Raises:
            ConfigError: ``episodes``, ``seed``, ``max_episode_steps``, ``tasks`` or ``simulations`` is out of range, or
                ``env`` or ``opponent`` has other spaces, or the agent has no model for a search.
            EnvError: the environment cannot be made.
        """
        episodes = coerce(episodes, int, "episodes")
        AtLeast(1).check("episodes", episodes)
        AtLeast(0).check("seed", seed)
        AtLeast(1).check("max_episode_steps", max_episode_steps)
        policy = self.algo.acting(simulations)
        mode = policy_mode(deterministic)
        seed = derived_seeds(self.config.seed)["test"] if seed is None else int(seed)
        is_named = isinstance(opponent, Path | str)
        rival: Any = self.load_opponent(str(opponent), str(self.algo.device)) if is_named else opponent
        config, factory = _with_env(self, env)
        settings = {"max_episode_steps": max_episode_steps, "tasks": tasks or None}
        changes = {name: value for name, value in settings.items() if value is not None}
        eval_env = {"eval_env": {**config.eval_env_overrides, **changes}} if changes else {}
        config = config.merge({"eval_episodes": episodes, **eval_env})
        played = make_eval_env(config, factory, render=record)
        try:
            if env is not None:
                _check_fits(self, played, config.eval_env_config.label())
            rival = None if rival is None else _find_opponent(played, rival, seed)
            with seeded_rng(seed):
                evaluation = play_episodes(
                    played, policy, episodes, mode, np.array if record else None, seed=seed,
                    env_steps=config.exploration_step(self.step), most_steps=self.episode_limit, opponent=rival,
                    clip=self.clip_rewards if config.clips_policy_rewards else None,
                )  # fmt: skip
            if evaluation.cut_off:
                logger.warning(f"{evaluation.cut_text()} (eval_episode_steps): their scores include only these steps")
            return evaluation
        finally:
            played.close()


class PerfectPolicy(RandomPolicy):
    """A policy that takes random optimal actions, in a game with a known solution."""

    def __init__(self, rules: Rules, spec: ActionSpec, seed: int) -> None:
        super().__init__(spec, seed)
        self.optimal: dict[bytes, tuple[int, ...]] = {
            rules.board(position).tobytes(): solution.optimal for position, solution in solve(rules).items()
        }

    def act(self, step: Step, state: tuple[()], mode: Mode) -> tuple[Tensor, tuple[()]]:
        """Return optimal actions ``[N, A]``; where the game is over, any."""
        boards = step.obs["board"].numpy(force=True)
        chosen = [int(self.rng.choice(self.optimal.get(board.tobytes(), (0,)))) for board in boards]
        return torch.eye(self.spec.width)[chosen].to(step.is_first.device), state


def _find_opponent(env: Env, opponent: Player | str, seed: int) -> Policy[Any]:
    """Return the policy of an opponent in the game ``env``; ConfigError if it cannot play it."""
    if not has_players(env.obs_spec):
        raise ConfigError("opponent: this environment is no game of two players. Remove this option.")
    if isinstance(opponent, Player):
        if problems := diff_spaces(env, opponent, ("the game", "the opponent")):
            raise ConfigError(f"opponent = {opponent}: {'; '.join(problems)}. Choose an agent of the same game.")
        return opponent.algo.policy
    if opponent == "random":
        return RandomPolicy(env.action_spec, seed)
    if (rules := find_solved_rules(env)) is None:
        raise ConfigError("opponent = perfect: the solution of this game is unknown. Choose random, or an agent.")
    return PerfectPolicy(rules, env.action_spec, seed)


def _with_env(player: Player, env: EnvLike | Mapping[str, Any] | None) -> tuple[ExperimentConfig, MakeEnv | None]:
    """Return the settings and the factory of the evaluation environments: ``env``, if it is not None."""
    config = player.config
    if env is None:
        return config, player.eval_factory
    if isinstance(env, Mapping):
        return config.merge({"eval_env": {**config.eval_env_overrides, **env}}), player.eval_factory
    if isinstance(env, str):
        return config.merge({"eval_env": {"id": env}}), None
    config = config.merge({"eval_env": settings_of(env)})
    return config, env_factory(config.eval_env_config.merge({"num": 1}), env)


def _check_fits(player: Player, env: Env, name: str) -> None:
    """Raise ConfigError unless an environment has the observations and actions that the agent was trained on."""
    if problems := diff_spaces(player, env, ("the agent", "the environment")):
        raise ConfigError(
            f"env = {name}: {'; '.join(problems)}. Evaluate in an environment with the agent's spaces, perhaps by a "
            "wrapper (env={'wrappers': [...]})."
        )


def game_label(player: Player, opponent: Player | Path | str | None) -> str:
    """Return the evaluation environment of ``player``, and the opponent if there is one."""
    name = opponent.origin if isinstance(opponent, Player) else opponent
    return player.config.eval_env_config.label() + ("" if name is None else f" against {name}")


@dataclass(frozen=True, kw_only=True)
class EvaluationReport:
    """An evaluation, and its files."""

    evaluation: Evaluation
    files: dict[str, Path]
    """Written files by name: "evaluation", and "video" if requested and the environment can be rendered."""


def evaluate_run(player: EvaluationMethods, *, video: bool = False, **options: Any) -> EvaluationReport:
    """Play episodes by ``Agent.evaluate`` of ``player`` with these ``options``.

    Write eval.json, and with ``video`` a video of the first episode.
    """
    evaluation = player.evaluate(record=video, **options)
    folder, files = RunFolder(player.run), dict[str, Path]()
    if is_unpacked(player.run) or not folder.path.is_dir():  # there is no run folder
        if evaluation.frames is not None and not is_unpacked(player.run):
            files["video"] = write_video(Path(f"{player.label}.mp4"), evaluation.frames, player.frames_per_second)
        return EvaluationReport(evaluation=evaluation, files=files)
    content = {"updates" if player.config.offline else "env_steps": player.step, **evaluation.to_dict()}
    content |= {"checkpoint": player.checkpoint.name, "env": game_label(player, options.get("opponent"))}
    content |= {name: options[name] for name in ("max_episode_steps", "tasks", "simulations") if options.get(name)}
    try:
        with disk_errors_as_run_error(folder.path):
            write_result(folder.evaluation, content)
            files["evaluation"] = folder.evaluation
            if evaluation.frames is not None:
                path = folder.videos / f"eval-{player.step:012d}.mp4"
                files["video"] = write_video(path, evaluation.frames, player.frames_per_second)
    except RunError as error:
        logger.warning(str(error))
    return EvaluationReport(evaluation=evaluation, files=files)
