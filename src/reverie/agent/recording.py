"""Play with a trained agent and record the episodes as a dataset for offline learning."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeGuard

import gymnasium
import numpy as np
from gymnasium import spaces

from reverie.agent.own_policy import make_player
from reverie.agent.play import first_seed, max_episode_steps, play_episode
from reverie.agent.player import Player, actions_label
from reverie.core.errors import ConfigError, EnvError, count_noun, format_error
from reverie.core.files import not_of_disk
from reverie.core.logger import logger
from reverie.core.masks import mask_in
from reverie.core.rows import Rows, episode_rows
from reverie.core.seeding import seeded_rng
from reverie.core.signals import is_interrupt
from reverie.core.spaces import cast, get_at_path, iter_leaves
from reverie.core.specs import IS_INTERVENTION, MASK_KEY
from reverie.datasets.convert import check_target, write_dataset
from reverie.datasets.options import RecordConfig
from reverie.datasets.output import WriteReport, total_bytes
from reverie.datasets.reader import SEED, TRUNCATED_COLUMN, DatasetInfo, Reader, Space
from reverie.datasets.writers import estimated_file_size
from reverie.envs.config import EnvLike
from reverie.envs.make import close_quietly, env_settings, spec_of, spec_to_json
from reverie.envs.wrappers import checked_reset


def record(
    env: EnvLike, policy: Any, *, out: Path | str, episodes: int | None = None, steps: int | None = None,
    epsilon: float = 0.0, noise: float = 0.0, deterministic: bool = True, seed: int = 0, format: str = "auto",
    env_options: Mapping[str, Any] | None = None,
) -> WriteReport:  # fmt: skip
    """Play episodes with a policy of your own and write them as a dataset.

    Args:
        env: the environment, as for :func:`reverie.train`.
        policy: a function of the observation that returns an action; a PyTorch module, which is called with batches of
            one observation; an object with ``predict``, as models of Stable-Baselines3 have; or an agent. Parameters
            ``action_masks`` or ``action_mask`` get the legal actions, ``state`` the second value that the last call
            returned. Actions beyond the bounds of a Box are clipped.
        out: a folder that does not exist yet, a file for d4rl, robomimic and tianshou, or ``minari:NAME``.
        episodes: number of episodes.
        steps: number of env steps, instead of episodes; the last episode is truncated.
        epsilon: probability that a random action replaces the policy's.
        noise: standard deviation of Gaussian noise on continuous actions, in units of half their range.
        deterministic: passed to ``predict`` and ``act``.
        seed: of environments, exploration and actions.
        format: output format. "auto": by the suffix of ``out``, .hdf5 (d4rl) or .parquet, else Minari.
        env_options: settings of the environment, such as ``{"kwargs": {"size": 3}}``.

    Returns:
        What was written, and remarks.

    Raises:
        ReverieError: the policy or an action does not fit, the environment fails, or ``out`` exists.
    """
    config = RecordConfig(
        episodes=episodes, steps=steps, epsilon=epsilon, noise=noise, deterministic=deterministic, seed=seed
    )
    return record_agent(make_player(env, policy, env_options), str(out), config, format)


def record_agent(agent: Player, target: str, config: RecordConfig, format: str = "auto") -> WriteReport:
    """Play episodes with ``agent`` and write them to ``target``, a path or minari:NAME, in this ``format``.

    "auto": by the suffix of ``target``, else Minari. Actions and rewards are in the environment's units, before any
    clipping. Observations are the environment's, except: rendered frames are omitted, MiniGrid's observations are
    recorded as learners see them, and images are resized and grayscale single frames as the agent saw them, unless
    ``config.raw``. Minari stores the seed of each episode. Images are compressed. The dataset appears at ``target``
    only once it is complete. Its estimated size is logged first.

    Raises:
        ConfigError: ``noise`` is set but no action is continuous, a package is missing, or the format cannot store the
            observations.
        DataError: the environment violates Gymnasium's API or its own spaces.
        RunError: ``target`` exists.
    """
    env = agent.make_env()
    try:
        if config.noise and not any(is_continuous(leaf) for _, leaf in iter_leaves(env.action_space)):
            raise ConfigError(f"noise = {config.noise}: no actions in {env.action_space} are continuous. Use epsilon.")
        with seeded_rng(config.seed), PlayedReader(agent, env, config, target) as reader:
            _check_format(agent, env, config, target, format)
            logger.info(_estimate_dataset_size(agent, env, config))
            report = write_dataset(reader, target, format)
            report.remarks += reader.remarks()
        return report
    except BaseException as error:
        if isinstance(error, Exception) or is_interrupt(error):
            raise
        raise EnvError(f"the environment ended the recording: {format_error(error)}") from error
    finally:
        close_quietly(env)


class View(NamedTuple):
    """The part of an environment's observation that is recorded, and its space."""

    space: Space
    convert: Callable[[Any], Any]

    @classmethod
    def from_agent(cls, agent: Player, raw: bool) -> View:
        """Return the view of ``agent``; with ``raw``, images are the environment's original images."""
        return cls(agent.observer.learner_space, lambda obs: obs) if raw else cls(*agent.observer.reduced_view())


class PlayedReader(Reader):
    """A dataset reader that plays episodes with an agent while they are read."""

    format = "episodes of an agent"
    is_guarded = False

    def __init__(self, agent: Player, env: gymnasium.Env[Any, Any], config: RecordConfig, target: str) -> None:
        super().__init__(target)
        self.agent: Player = agent
        self.env: gymnasium.Env[Any, Any] = env
        self.config: RecordConfig = config
        self.view: View = View.from_agent(agent, config.raw)
        self.limit: int = max_episode_steps(agent, env)

    def info(self) -> DatasetInfo:
        """Return the spaces, the environment, and how the agent plays."""
        agent, config = self.agent, self.config
        text = {
            "algorithm_name": agent.label,
            "description": f"{agent.origin}, {actions_label(config.deterministic)}, "
            f"epsilon {config.epsilon:g}, noise {config.noise:g}, seed {config.seed}",
        }
        named, remark = _env_metadata(agent, self.env, config.raw)
        self.add_remark(remark, int(bool(remark)))
        return DatasetInfo(observation=self.view.space, action=self.env.action_space, text=text, **named)

    def rows(self) -> int:
        """Return 0: the number of rows is unknown."""
        return 0

    def parts(self) -> Iterator[Rows]:
        """Yield each episode once it is played."""
        pair = self.view.space, self.env.action_space
        cut_off: list[int] = []
        with not_of_disk("the policy or the environment"):
            for episode in record_episodes(self.agent, self.env, self.config, self.limit, cut_off):
                yield rows_of(episode, pair)
        if cut_off:
            ended = (
                f"{count_noun(len(cut_off), 'episode')} had not ended after {self.limit:,} steps (eval_episode_steps)"
            )
            self.add_remark(f"{ended}, and were truncated there")

    def locate(self, row: int, column: str) -> str:
        """Return a row's number, since rows cannot be read again."""
        return f"{self.path}, row {row:,}"


class SampleReader(PlayedReader):
    """One step of random values in the same spaces, without playing."""

    def parts(self) -> Iterator[Rows]:
        """Yield the rows of the step."""
        pair = deepcopy((self.view.space, self.env.action_space))  # the generators of random values stay as they are
        obs, actions = (
            stack_values(space, [space.sample() for _ in range(count)], root)
            for space, count, root in zip(pair, (2, 1), ("obs", "action"), strict=True)
        )
        if mask_in(obs) is not None:
            obs[MASK_KEY][:] = 1  # a random mask can leave no legal action
        step = {"observations": obs, "actions": actions, "rewards": np.zeros(1), "seed": None}
        rows, mask = rows_of(step | {"terminations": [True], "truncations": [False]}, pair), f"obs/{MASK_KEY}"
        yield rows | ({mask: np.ones_like(rows[mask])} if mask in rows else {})  # which permits the random action


def _check_format(agent: Player, env: gymnasium.Env[Any, Any], config: RecordConfig, target: str, to: str) -> None:
    """Raise the error of the format ``to`` for these observations and actions before an episode is played."""
    to = check_target(target, to)
    if to != "minari":  # it stores all
        with TemporaryDirectory() as folder, SampleReader(agent, env, config, target) as reader:
            write_dataset(reader, f"{folder}/{Path(target).name}", to)


def rows_of(episode: Mapping[str, Any], pair: tuple[Space, Space]) -> Rows:
    """Return the rows of an episode that ``record_episode`` returned; ``pair``: spaces of observations and actions."""

    def arrays(space: Space, values: Any) -> Any:
        leaf_arrays = {
            "/".join(map(str, path)): np.asarray(get_at_path(values, path)) for path, _ in iter_leaves(space)
        }
        return leaf_arrays.get("", leaf_arrays)

    obs, actions = (arrays(space, episode[name]) for space, name in zip(pair, ("observations", "actions"), strict=True))
    terminated, truncated = (bool(episode[name][-1]) for name in ("terminations", "truncations"))
    rows = episode_rows(obs, actions, episode["rewards"], terminal=terminated)
    seeds = np.full(len(rows["reward"]), None, object)
    seeds[0] = episode["seed"]
    rows |= {SEED: seeds, TRUNCATED_COLUMN: rows["is_last"] & (terminated and truncated)}
    return {**rows, **episode.get("infos", {})}


def _env_metadata(agent: Player, env: gymnasium.Env[Any, Any], raw: bool) -> tuple[dict[str, Any], str]:
    """Return the environment as fields of ``DatasetInfo``, and a remark on what they cannot represent.

    Each may be empty.
    """
    config = agent.config.env
    spec = spec_of(env, config)
    if spec is None:
        return {}, "the dataset does not name its environment, which was passed as a Python object without an id"
    text, remark = spec_to_json(spec)
    if not text:
        return {}, remark
    prefix = f"{config.id.rpartition(':')[0]}:" if agent.factory is None and ":" in config.id else ""
    named = {"env": prefix + spec.id, "env_spec": json.loads(text)}
    reduction = {} if raw or config.pixels != "none" else {"resize": config.resize, "grayscale": config.grayscale}
    applied = {name: value for name, value in reduction.items() if value}
    return named | {"env_settings": {"id": prefix + spec.id, **env_settings(env, config), **applied}}, remark


def _estimate_dataset_size(agent: Player, env: gymnasium.Env[Any, Any], config: RecordConfig) -> str:
    """Estimate the size of the dataset from the first observation."""
    obs, info = checked_reset(env, first_seed(config))
    view = View.from_agent(agent, config.raw)
    first_obs = view.convert(agent.observer.to_learner_obs(obs, agent.observer.read_mask(env, info)))
    row = (
        estimated_file_size(stack_values(view.space, [first_obs], "obs")) + total_bytes(env.action_space.sample()) + 10
    )
    if config.steps:
        return f"recording {config.steps:,} steps: about {config.steps * row / 1e6:,.1f} MB"
    return f"recording {count_noun(config.episodes or 0, 'episode')}: about {row / 1e3:,.1f} MB per 1,000 steps"


def record_episodes(
    agent: Player, env: gymnasium.Env[Any, Any], config: RecordConfig, limit: int, cut_off: list[int]
) -> Iterator[dict[str, Any]]:
    """Yield episodes of at most ``limit`` steps as the fields of Minari's ``EpisodeBuffer``.

    The seeds of episodes cut off at this limit are added to ``cut_off``.
    """
    rng, first, steps_left = np.random.default_rng(config.seed), first_seed(config), config.steps
    env.action_space.seed(first)
    for seed in itertools.count(first) if config.episodes is None else range(first, first + config.episodes):
        max_steps = limit if steps_left is None else min(limit, steps_left)
        episode, over = record_episode(agent, env, config, rng, seed, max_steps)
        cut_off += [seed] if not over and max_steps == limit else []
        yield episode
        if steps_left is not None and (steps_left := steps_left - len(episode["rewards"])) <= 0:
            return


def record_episode(
    agent: Player, env: gymnasium.Env[Any, Any], config: RecordConfig, rng: np.random.Generator,
    seed: int, max_steps: int,
) -> tuple[dict[str, Any], bool]:  # fmt: skip
    """Play one episode of at most ``max_steps`` steps; return it, and whether it ended by itself.

    Values are copied, since an environment can reuse its arrays.
    """

    def explore(chosen: Any, learner_obs: Any) -> Any:
        action = add_noise(env.action_space, chosen, config.noise, rng) if config.noise else chosen
        if config.epsilon and rng.random() < config.epsilon:
            return agent.random_action(learner_obs, rng) if MASK_KEY in agent.obs_spec else env.action_space.sample()
        return action

    view, obs_list, outcomes = View.from_agent(agent, config.raw), list[Any](), list[tuple[Any, ...]]()
    played = play_episode(agent, env, seed=seed, deterministic=config.deterministic, change=explore)
    for step in itertools.islice(played, max_steps + 1):
        obs_list.append(deepcopy(view.convert(step.learner_obs)))
        outcomes.append((step.action, step.reward, step.terminated, step.is_takeover))
    end = agent.observer.raw_input(env, step.obs)
    agent.observer(end, agent.observer.stacks(1)[0], True, step.mask, step.terminated)  # checks it
    actions, rewards, terminations, takeovers = zip(*outcomes[1:], strict=True)  # no step led to the first observation
    truncations = np.zeros(len(rewards), bool)
    truncations[-1] = step.truncated or not step.terminated  # both, if the environment sets both
    episode = {
        "observations": stack_values(view.space, obs_list, "obs"),
        "actions": stack_values(env.action_space, list(actions), "action"),
        "rewards": np.asarray(rewards, np.float64),
        "terminations": np.asarray(terminations),
        "truncations": truncations,
        "seed": seed,
    }
    if any(takeovers):
        episode["infos"] = {IS_INTERVENTION: np.array([*takeovers, False])}
    return episode, step.terminated or step.truncated


def add_noise(space: Space, action: Any, noise: float, rng: np.random.Generator) -> Any:
    """Return ``action`` with noise on its continuous parts, clipped to their bounds."""
    if isinstance(space, spaces.Dict):
        return {key: add_noise(inner, action[key], noise, rng) for key, inner in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(add_noise(inner, part, noise, rng) for inner, part in zip(space.spaces, action, strict=True))
    if not is_continuous(space):
        return action
    half = (space.high.astype(np.float64) - space.low) / 2
    moved = action + noise * half * rng.standard_normal(action.shape)
    return np.clip(moved, space.low, space.high).astype(space.dtype)


def is_continuous(space: Space) -> TypeGuard[spaces.Box]:
    """Return whether actions of ``space`` are floats, so that noise can be added."""
    return isinstance(space, spaces.Box) and space.dtype.kind == "f"


def stack_values(space: Space, values: list[Any], name: str) -> Any:
    """Stack values of a space into arrays, in dictionaries and tuples as in Minari."""
    if isinstance(space, spaces.Dict):
        inner = space.spaces.items()
        return {key: stack_values(part, [value[key] for value in values], f"{name}/{key}") for key, part in inner}
    if isinstance(space, spaces.Tuple):
        parts = enumerate(space.spaces)
        return tuple(stack_values(part, [value[i] for value in values], f"{name}/{i}") for i, part in parts)
    if isinstance(space, spaces.Text):
        return [str(value) for value in values]
    return np.asarray(values) if space.dtype is None else cast(np.asarray(values), space.dtype, name)
