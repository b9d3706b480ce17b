"""Episodes that an agent plays for its report: how they went, and the rows and values of the ones that are shown."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, NamedTuple

import gymnasium
import numpy as np
from PIL import Image

from reverie.agent.agent import Agent
from reverie.agent.dream_report import predict_open_loop
from reverie.agent.dream_strip import find_fall, make_value_strip
from reverie.agent.play import PlayedStep, max_episode_steps, play_episode
from reverie.agent.world_model_inspector import has_world_model
from reverie.algos.base import INTERNAL_PREFIX
from reverie.algos.model_free import ModelFree
from reverie.core.errors import ReverieError, count_noun
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import MASK_KEY, PLAYER_KEY, has_players, mover_sign
from reverie.core.types import FLAGS, Batch, Step
from reverie.envs.episode_info import SUCCESS_KEYS, TASK
from reverie.envs.goal_tasks import GoalTasks
from reverie.envs.make import make_gym
from reverie.envs.render import is_picture, limited_size
from reverie.envs.wrappers import wrapper_stack
from reverie.log.video import shrink, upscale
from reverie.viewer.findings import format_number
from reverie.viewer.goals import is_goal_agent
from reverie.viewer.model_free_values import critic_rewards, greedy_gap, model_free_values, value_discount

SIDE, SHOWN = 96, 3
"""Size of a picture, and worst episodes that are shown."""
MAX_LOOK = 1000
"""Rows of an episode of which the values are shown."""


@dataclass
class PlayedEpisode:
    """A whole episode."""

    seed: int
    rewards: list[float]
    """With two players, what they are for the first."""
    ending: str
    """How it ended, in the environment's words if it has some."""
    success: bool | None
    """Whether it succeeded, by the environment's word; None if it has none."""
    is_terminal: bool
    expected: float | None
    """The critic's value of the first row; None if there is no critic."""
    distance: float | None = None
    """Estimated steps from the first row to the goal; None if the agent has no goals or no such estimate."""
    task: int | None = None
    """Number of its task; None if the environment has no tasks."""

    @property
    def total(self) -> float:
        """The sum of the rewards."""
        return float(np.sum(self.rewards))

    def to_dict(self) -> dict[str, Any]:
        """Return the facts of a report."""
        facts = {"seed": self.seed, "return": self.total, "steps": len(self.rewards), "ending": self.ending}
        return facts | ({} if self.task is None else {"task": self.task})


class EpisodeLook(NamedTuple):
    """An episode that is played again: rows with pictures, and what the critic says of each row."""

    pictures: list[list[Any]]
    batch: Batch | None
    """The rows ``[1, T]``; None if there are too many."""
    lines: dict[str, np.ndarray]
    """The return that came and the critic's values, ``[T]``; {} without a critic of these rewards."""
    fall: int | None
    """The row to which the value falls most: see :func:`~reverie.agent.dream_strip.find_fall`."""
    gap: float
    """By how much the best action was better than the second, in the row before; NaN where this is unknown."""
    is_scaled: bool = False
    """Whether the critic's units differ from the environment's."""


def _make_gym_eval_env(agent: Agent, render: bool = False) -> Any:
    """Make an environment as for evaluations; games of two players begin as in training, else all would be one game."""
    config = agent.config.env if has_players(agent.obs_spec) else agent.config.eval_env_config
    return make_gym(config, agent.eval_factory, render)


def play_episodes(agent: Agent, episodes: int, is_random: bool = False) -> list[PlayedEpisode]:
    """Play new episodes with the most likely actions, or with random ones; of each task equally many."""
    first_seed, played = derived_seeds(agent.config.seed)["test"], list[PlayedEpisode]()
    rng = np.random.default_rng(first_seed)
    with contextlib.closing(_make_gym_eval_env(agent)) as env:

        def change(action: Any, obs: Any) -> Any:
            if not is_random:
                return action
            return agent.random_action(obs, rng) if MASK_KEY in agent.obs_spec else env.action_space.sample()

        env.action_space.seed(first_seed)
        limit, tasks = max_episode_steps(agent, env), _list_tasks(env)
        for seed in range(first_seed, first_seed + episodes):
            task = tasks[(seed - first_seed) % len(tasks)]
            with seeded_rng(seed):  # each can be played again
                steps = play_episode(agent, env, seed=seed, options=_task_options(task), change=change)
                first, *steps_after = itertools.islice(steps, limit + 1)
                value, distance = (None, None) if is_random else _estimates(agent, env, first)
            last = steps_after[-1]
            played.append(PlayedEpisode(
                seed=seed, rewards=[_first_player_reward(agent, step) for step in steps_after], ending=_ending(last),
                success=_success(last), is_terminal=last.terminated, expected=value, distance=distance, task=task,
            ))  # fmt: skip
    return played


def _first_player_reward(agent: Agent, step: PlayedStep) -> float:
    """Return the reward of a step; with two players, what it is for the first."""
    if not has_players(agent.obs_spec):
        return step.reward
    return float(step.reward * mover_sign(np.asarray(step.learner_obs[PLAYER_KEY])))


def _list_tasks(env: gymnasium.Env[Any, Any]) -> tuple[int | None, ...]:
    """Return the tasks of an environment in turn; (None,) if it has none."""
    layers = [layer for layer in wrapper_stack(env) if isinstance(layer, GoalTasks)]
    return layers[0].tasks if layers else (None,)


def _task_options(task: int | None) -> dict[str, Any] | None:
    """Return the options of ``env.reset`` that choose a task."""
    return None if task is None else {TASK: task}


def _success(last: PlayedStep) -> bool | None:
    """Return whether an episode succeeded, by the environment's word."""
    values = [last.info[key] for key in SUCCESS_KEYS if key in last.info]
    return bool(values[0]) if values else None


def _ending(last: PlayedStep) -> str:
    """Return how an episode ended: the environment's own word, or which flag it set."""
    if isinstance(ending := last.info.get("ending"), str):
        return ending
    return "the end" if last.terminated else "time is up" if last.truncated else "cut by the report"


def _estimates(agent: Agent, env: gymnasium.Env[Any, Any], first: PlayedStep) -> tuple[float | None, float | None]:
    """Return the critic's value of the first row, and the estimated distance of an agent with goals.

    With two players, the value is that for the first one.
    """
    obs, value, distance = agent.observer.raw_input(env, first.obs), None, None
    with contextlib.suppress(ReverieError):
        if is_goal_agent(agent):
            distance = float(agent.distance(obs))
        else:
            value = float(agent.value(obs, action_mask=first.mask))
            value *= -float(mover_sign(np.asarray(obs[PLAYER_KEY]))) if has_players(agent.obs_spec) else 1.0
    return value, distance if distance is not None and np.isfinite(distance) else None


# ---------------------------------------------------------------- episodes that are shown


def pick_episodes(played: Sequence[PlayedEpisode]) -> dict[str, PlayedEpisode]:
    """Return the worst episodes, the median and the best by name; of equal returns, the longest first."""
    ranked = sorted(played, key=lambda episode: (episode.total, -len(episode.rewards)))
    median, best = ranked[len(ranked) // 2], ranked[-1]
    if (ranked[0].total, len(ranked[0].rewards)) == (best.total, len(best.rewards)):
        return {f"one of {len(ranked)}, all with this return and length" if len(ranked) > 1 else "the only one": best}
    low, high = ("longest", "shortest") if ranked[0].total == best.total else ("worst", "best")
    picked = {f"{low} {i}" if i > 1 else low: x for i, x in enumerate(ranked[:SHOWN], 1)}
    picked = {name: x for name, x in picked.items() if x is not median and x is not best}
    return picked | ({"median": median} if median is not best else {}) | {high: best}


def look_again(agent: Agent, episode: PlayedEpisode, frames: int) -> EpisodeLook:
    """Play an episode again: draw evenly spaced rows, if the environment can be drawn, and ask the critic."""
    with contextlib.suppress(ReverieError):
        return _look(agent, episode, frames)
    return _look(agent, episode, 0)


def _look(agent: Agent, episode: PlayedEpisode, frames: int) -> EpisodeLook:
    length, steps, inputs = len(episode.rewards), list[PlayedStep](), list[Any]()
    rows = spread(length + 1, frames)
    drawn, is_short = dict[int, np.ndarray](), length < MAX_LOOK
    side = SIDE if agent.config.env.pixels == "none" else None  # else the agent sees what is drawn
    env_open = contextlib.closing(_make_gym_eval_env(agent, render=bool(rows)))
    with env_open as env, limited_size(env, side), seeded_rng(episode.seed):
        played = play_episode(agent, env, seed=episode.seed, options=_task_options(episode.task))
        for number, step in enumerate(itertools.islice(played, length + 1)):
            is_drawn = number in rows and env.render_mode is not None
            if is_drawn and is_picture(frame := np.asarray(env.render())):
                drawn[number] = frame
            if is_short:
                inputs.append(deepcopy(agent.observer.raw_input(env, step.obs)))
                steps.append(step)
    pictures = [[number, encode_picture(frame)] for number, frame in drawn.items()]
    if not is_short:
        return EpisodeLook(pictures, None, {}, None, np.nan)
    masks = [step.mask for step in steps] if MASK_KEY in agent.obs_spec else None
    batch = agent.make_episode(
        inputs, [step.action for step in steps[1:]], [step.reward for step in steps[1:]],
        terminal=episode.is_terminal, action_masks=masks,
    )  # fmt: skip
    with seeded_rng(episode.seed):  # the latents of a world model are samples
        return EpisodeLook(pictures, batch, *_ask_critic(agent, batch, episode.is_terminal))


def _ask_critic(agent: Agent, batch: Batch, is_terminal: bool) -> tuple[dict[str, np.ndarray], int | None, float, bool]:
    """Return ``lines``, ``fall``, ``gap`` and ``is_scaled`` of :class:`EpisodeLook` for an episode ``[1, T]``."""
    nothing: tuple[dict[str, np.ndarray], None, float, bool] = {}, None, np.nan, False
    if is_goal_agent(agent) or not (has_world_model(agent) or isinstance(agent.algo, ModelFree)):
        return nothing
    plain = batch.reward[0].numpy()
    rewards = critic_rewards(agent, plain)
    values, gaps = _values(agent, batch)
    if np.isnan(rewards).any() or np.isnan(values).any():
        return nothing
    fall = find_fall(rewards, values, value_discount(agent), is_terminal)
    strip = make_value_strip(rewards, values, gaps, value_discount(agent), is_terminal)
    gap = np.nan if fall is None else float(gaps[fall - 1])
    return strip.lines, fall, gap, not np.array_equal(plain, rewards)


def _values(agent: Agent, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """Return the critic's values of the rows of an episode ``[1, T]``, and the gaps of the best action, ``[T]``."""
    length = batch.shape[1]
    if has_world_model(agent):
        return predict_open_loop(agent, batch, length)[f"{INTERNAL_PREFIX}value"][0], np.full(length, np.nan)
    state, rows = agent.initial_state(1), list[dict[str, Any]]()
    for t in range(length):
        columns = {name: getattr(batch, name)[:, t] for name in ("reward", *FLAGS)}
        step = Step(obs={key: x[:, t] for key, x in batch.obs.items()}, **columns)
        action, after = agent.algo.policy.act(step, state, "eval")
        rows.append(model_free_values(agent, step, state, action))
        state = agent.algo.policy.override(after, batch.action[:, t])
    return np.array([row.get("value", np.nan) for row in rows]), np.array([greedy_gap(agent, row) for row in rows])


def spread(length: int, count: int) -> list[int]:
    """Return up to ``count`` evenly spaced numbers below ``length``, from the first to the last."""
    return sorted({round(x) for x in np.linspace(0, length - 1, min(count, length))})


def encode_picture(frame: np.ndarray) -> str:
    """Return a picture ``[H, W, 3]`` as a URL."""
    file = io.BytesIO()
    small = shrink(upscale(frame, SIDE // 2), SIDE)
    Image.fromarray(small).quantize(64, method=Image.Quantize.FASTOCTREE).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def describe_shown(name: str, episode: PlayedEpisode, look: EpisodeLook) -> dict[str, Any]:
    """Return an episode for the page: its name, facts, pictures, and a chart of the critic's values."""
    task = [] if episode.task is None else [f"task {episode.task}"]
    texts = [f"return {format_number(episode.total)}", count_noun(len(episode.rewards), "step"), episode.ending]
    entry: dict[str, Any] = {"name": name, "facts": [*task, *texts, f"seed {episode.seed}"], "pictures": look.pictures}
    if not look.lines:
        return entry
    unit = " (rewards as scaled for the critic)" if look.is_scaled else ""
    rest = "" if episode.is_terminal else ", with the critic's last value for the rest"
    length = len(episode.rewards) + (not episode.is_terminal)  # a critic does not learn the value of an end
    lines: list[dict[str, Any]] = [
        {
            "name": f"{line}{text}{unit}",
            "kind": kind,
            "points": np.stack([np.arange(length), look.lines[line][:length]], 1),
        }
        for line, text, kind in (("return that came", rest, "real"), ("critic", "", "dream"))
    ]
    if look.fall is not None:
        entry["facts"].append(f"value fell from row {look.fall - 1} to {look.fall}")
        ahead = f"; the best action was ahead by {format_number(look.gap)}" if np.isfinite(look.gap) else ""
        point = [look.fall - 1, look.lines["critic"][look.fall - 1]]
        lines.append({"name": f"before the largest fall{ahead}", "kind": "place", "points": [point]})
    label = f"The critic's value of each row of “{name}”, and the discounted return that came"
    return entry | {"chart": {"label": label, "unit": "row", "lines": lines, "low": True}}
