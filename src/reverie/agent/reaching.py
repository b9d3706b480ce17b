"""Episodes of a goal-conditioned agent toward one goal, and its estimates of how far goals are."""

from __future__ import annotations

import contextlib
import itertools
import warnings
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from PIL import Image
from torch import Tensor

from reverie.agent.goal_input import goal_shapes, to_goal
from reverie.agent.play import max_episode_steps, play_episode
from reverie.agent.player import Player
from reverie.algos.goal_conditioned import GoalKeysConfig
from reverie.algos.hiql import HIQL
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, count_noun
from reverie.core.files import open_file, open_zip
from reverie.core.images import frame_to_rgb, last_frame
from reverie.core.specs import ACHIEVED_GOAL, DESIRED_GOAL, GOAL, GOAL_KEY, MASK_KEY
from reverie.core.types import Obs
from reverie.envs.episode_info import SUCCESS_KEYS
from reverie.envs.make import close_quietly
from reverie.envs.masks import with_mask
from reverie.log.video import write_video
from reverie.run.folder import RunFolder

IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg")
CHUNK_ROWS = 250
"""Rows in a pass of the networks."""


@dataclass(frozen=True, kw_only=True)
class ReachResult:
    """An episode toward a goal."""

    success: bool | None
    """Whether the goal was reached; None: unknown, since the environment pursues another goal and no radius is set."""
    steps: int
    """Actions until the goal was reached, or until the episode was over."""
    distances: np.ndarray
    """The agent's estimate of the distance at each observation, ``[steps + 1]``; empty if it has none."""
    frames: list[np.ndarray]
    """Rendered frames of all observations, if the environment renders; else none."""

    def __str__(self) -> str:
        text = {True: "reached the goal", False: "did not reach the goal", None: "played toward the goal"}[self.success]
        return f"{text} in {count_noun(self.steps, 'step')}"


class GoalMethods(Player):
    """Methods of :class:`~reverie.Agent` that act toward goals."""

    def reach(
        self, goal: Any, env: gymnasium.Env[Any, Any] | str | None = None, *,
        max_steps: int | None = None, radius: float | None = None, seed: int | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> ReachResult:  # fmt: skip
        """Play one episode toward a goal, with a goal-conditioned agent.

        Args:
            goal: the observation to reach, as for :meth:`act`. ``env.reset`` gets it as the option ``goal``.
            env: the environment, or its id. None: a new one, as in training.
            max_steps: actions after which the episode is over. None: ``episode_limit``, or the own limit of the
                environment if it is higher.
            radius: distance from the goal within which it is reached: Euclidean, of pictures the mean difference of
                pixels in [0, 1]. None: the environment judges by ``info["success"]``, if the goal that it observes is
                this one.
            seed: of the environment.
            options: more options of ``env.reset``.

        Raises:
            ConfigError: the algorithm does not act toward goals, or an argument is out of range.
            DataError: the goal does not fit the observations.
        """
        AtLeast(1).check("max_steps", max_steps)
        AtLeast(0).check("radius", radius)
        if not isinstance(self.config.algo, GoalKeysConfig):
            raise ConfigError(f"{self.config.algo.algorithm} does not act toward goals. Train gcbc, hiql or lewm.")
        if isinstance(self.observation_space, spaces.Dict):
            goal = to_goal(self.observation_space, goal)  # DataError unless it fits, before an environment gets it
        opened_env = self.make_env(render=True, env_id=env) if env is None or isinstance(env, str) else env
        try:
            return _play(self, opened_env, goal, max_steps, radius, seed, options)
        finally:
            if opened_env is not env:
                close_quietly(opened_env)

    def subgoal(self, obs: Any, goal: Any, states: Any) -> int:
        """Return which of N ``states`` is nearest to where HIQL aims first, on the way from an observation to a goal.

        ``obs`` and ``goal``: as for :meth:`act`. ``states``: a batch of observations, such as recorded ones.

        Raises:
            ConfigError: the algorithm chooses no subgoals.
            DataError: the observation, the goal or a state does not fit.
        """
        if not isinstance(self.algo, HIQL):
            raise ConfigError(f"{self.config.algo.algorithm} chooses no subgoals. Train hiql.")
        single, current = self.inspect(obs, goal=goal)
        if not single:
            raise DataError("a batch of observations: expected a single one, whose subgoal is chosen.")
        _, rows = self.inspect(states, goal=_achieved_parts(self, states))
        goals = {key: x for key, x in rows.inputs.items() if key.startswith(GOAL)}
        return nearest_subgoal(self.algo, current.inputs, goals)


def _play(
    player: Player, env: gymnasium.Env[Any, Any], goal: Any, max_steps: int | None, radius: float | None,
    seed: int | None, options: Mapping[str, Any] | None,
) -> ReachResult:  # fmt: skip
    env, max_steps = with_mask(env) if MASK_KEY in player.obs_spec else env, max_steps or max_episode_steps(player, env)
    frames, distances, success = list[np.ndarray](), list[float](), None
    steps = play_episode(player, env, seed=seed, options={GOAL_KEY: goal, **(options or {})}, goal=goal)
    for number, step in enumerate(steps):
        if number == 0:
            judges = radius is None and _pursues(step.obs, goal)
        elif judges:  # the environment knows this goal
            success = any(bool(step.info.get(key)) for key in SUCCESS_KEYS)
        frames += _render(env)
        with contextlib.suppress(ConfigError):  # the learner has no values
            distances.append(player.distance(step.obs, goal=goal))
        if radius is not None:
            success = _error(_achieved_parts(player, step.obs), goal) <= radius
        if success or number == max_steps:
            break
    return ReachResult(success=success, steps=number, distances=np.array(distances), frames=frames)


def _render(env: gymnasium.Env[Any, Any]) -> list[np.ndarray]:
    """Return a frame; none if rendering is off or fails."""
    if env.render_mode != "rgb_array":
        return []
    try:
        return [frame_to_rgb(np.asarray(last_frame(env.render())))]
    except Exception as error:  # any error, such as a missing driver
        warnings.warn(f"the environment could not be rendered: {error!r}", stacklevel=2)
        return []


@torch.no_grad()
def nearest_subgoal(algo: HIQL, inputs: Obs, goals: Obs) -> int:
    """Return which of ``goals`` ``[N, ...]`` is nearest to the subgoal that is chosen for ``inputs`` ``[1, ...]``.

    Both are preprocessed; distances are of representations.
    """
    chosen = algo.objective.actor.subgoal(inputs)  # [1, D]

    def represent(part: Obs) -> Tensor:
        count = len(next(iter(part.values())))
        rows: Tensor = algo.objective.phi({key: x.expand(count, *x.shape[1:]) for key, x in inputs.items()} | part)
        return rows

    return int((in_chunks(represent, goals) - chosen.cpu()).norm(dim=-1).argmin())


@torch.no_grad()
def in_chunks(function: Callable[[Obs], Tensor], rows: Obs) -> Tensor:
    """Return the results of ``function`` for rows ``[N, ...]``, a chunk after the other, on the CPU."""
    count = len(next(iter(rows.values())))
    chunks = [{key: x[i : i + CHUNK_ROWS] for key, x in rows.items()} for i in range(0, count, CHUNK_ROWS)]
    return torch.cat([function(chunk).float().cpu() for chunk in chunks])


def _pursues(obs: Any, goal: Any) -> bool:
    """Return whether the environment's goal in ``obs`` is ``goal``; pictures may differ by noise."""
    name = next((name for name in (GOAL_KEY, DESIRED_GOAL) if isinstance(obs, Mapping) and name in obs), None)
    return name is not None and _error(obs[name], goal) < 1e-2


def _achieved_parts(player: Player, obs: Any) -> Any:
    """Return the parts of an observation that a goal has too."""
    if not isinstance(obs, Mapping) or not isinstance(space := player.observation_space, spaces.Dict):
        return obs
    goal: Any = space.spaces.get(GOAL_KEY)
    return obs[ACHIEVED_GOAL] if goal is None else {key: obs[key] for key in goal}


def _error(obs: Any, goal: Any) -> float:
    """Return the largest distance between an observation and a goal, of any part: Euclidean, or a mean of pixels."""
    if isinstance(obs, Mapping):
        parts = {key: part for key, part in obs.items() if not isinstance(goal, Mapping) or key in goal}
        return max(_error(part, goal[key] if isinstance(goal, Mapping) else goal) for key, part in parts.items())
    a, b = np.asarray(obs), np.asarray(goal)
    if a.shape != b.shape:
        raise DataError(f"the goal has shape {b.shape}: expected {a.shape}, that of an observation.")
    gap = np.abs(a.astype(np.float64) - b)
    return float(gap.mean() / 255 if a.dtype == np.uint8 else np.linalg.norm(gap))


def read_goal(player: Player, path: Path) -> Any:
    """Return the goal in a file: a picture, an array (.npy), or parts by key (.npz). DataError if it cannot be read.

    A picture has the colors and the order of axes that the player's only goal picture has.
    """
    try:
        with open_file(path) as file:
            if path.suffix.lower() in IMAGE_SUFFIXES:
                with Image.open(file) as image:
                    return _pixels(image, goal_shapes(player.observation_space))
            is_zip = zipfile.is_zipfile(file)
            file.seek(0)
            with open_zip(path, file) if is_zip else file as opened:
                content = np.load(opened, allow_pickle=False)
                return dict(content) if isinstance(content, np.lib.npyio.NpzFile) else content
    except (OSError, Image.DecompressionBombError) as error:
        problem = getattr(error, "strerror", None) or str(error)
    except (ValueError, EOFError, MemoryError, zipfile.BadZipFile):
        problem = "not an array of numbers"
    raise DataError(f"{path}: {problem}. Expected a picture (.png, .jpg) or an array (.npy, .npz).")


def _pixels(image: Image.Image, shapes: list[tuple[int, ...]]) -> np.ndarray:
    """Return the pixels of a picture in the only one of ``shapes`` if they fit it, else RGB ``[H, W, 3]``."""
    size, shape = (image.height, image.width), shapes[0] if len(shapes) == 1 else ()
    if tuple(n for n in shape if n != 1) == size:
        return np.asarray(image.convert("L")).reshape(shape)
    pixels = np.asarray(image.convert("RGB"))
    return pixels.transpose(2, 0, 1) if shape == (3, *size) else pixels


def reach_and_film(
    agent: GoalMethods, goal: Any, *, max_steps: int | None, radius: float | None, seed: int | None
) -> tuple[ReachResult, Path | None]:
    """Play one episode toward a goal; return it, and its film reach_N.mp4 in the run's videos."""
    result = agent.reach(goal, max_steps=max_steps, radius=radius, seed=seed)
    if not result.frames:
        return result, None
    videos = RunFolder(agent.run).videos
    path = next(path for n in itertools.count(1) if not (path := videos / f"reach_{n}.mp4").exists())
    return result, write_video(path, np.stack(result.frames), agent.frames_per_second)
