"""A dream as a Gymnasium environment: the world model predicts the observations and rewards after each action."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.error import ResetNeeded
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from reverie.agent.agent import Agent
from reverie.agent.conversion import to_numpy
from reverie.agent.dream_figures import FPS, open_renderer_or_image
from reverie.agent.dream_report import stack_windows
from reverie.agent.extract import rechunk
from reverie.agent.loading import load
from reverie.agent.player import check_choice
from reverie.agent.world_model_inspector import (
    STEPS,
    ModelState,
    WorldModelInspector,
    default_seed,
    predicted_observations,
    require_world_model,
    state_to_latent,
)
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, EnvError, short_repr
from reverie.core.obs_codec import Leaf, ObsCodec
from reverie.core.seeding import seeded_rng
from reverie.core.spaces import add_batch_axis, columns_to_nested, first_item
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Batch
from reverie.datasets.data_path import DataLike
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.replay_store import guess_obs_space
from reverie.nn.state_space import Latent

Start = ModelState | Batch | DataLike
"""Start of the dreams: see :class:`DreamEnv`."""
NUM_STARTS, START_ROWS, BURN_IN_ROWS = 64, 64, 8
"""Start states come from at most this many windows of recorded rows; rows per window; and the minimum number of rows
that the model observes first in a window that starts within an episode."""
FILTER_BATCH = 16
"""Batch size of windows that the model observes together."""

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS}
Obs = Any
"""An observation in the space of the dream, or of a vector of dreams."""


class DreamVectorEnv(VectorEnv[Any, Any, Any]):
    """N dreams at once, with one step of the model for all of them; see :class:`DreamEnv` for the settings.

    Made by ``gymnasium.make_vec("reverie/Dream-v0", num_envs=N, run=RUN)``. The step after the end of a dream begins a
    new dream and ignores the action (``AutoresetMode.NEXT_STEP``). Rewards are float64.

    Attributes:
        agent: the agent whose world model dreams.
        horizon: steps after which dreams are truncated.
    """

    metadata: dict[str, Any] = METADATA | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, run: Agent | Path | str, num_envs: int = 1, *, checkpoint: Path | str | None = None, device: str = "auto",
        start: Start = "replay", horizon: int | None = None, observations: Literal["decoded", "latent"] = "decoded",
        ends: Literal["sampled", "likely"] = "sampled", render_mode: str | None = None,
    ) -> None:  # fmt: skip
        check_choice("observations", observations, ("decoded", "latent"))
        check_choice("ends", ends, ("sampled", "likely"))
        self.agent: Agent = run if isinstance(run, Agent) else load(run, checkpoint=checkpoint, device=device)
        self._inspector = WorldModelInspector(self.agent)
        self._learner = self._inspector.learner
        self.horizon: int = getattr(self.agent.config.algo, "horizon", STEPS) if horizon is None else horizon
        AtLeast(1).check("horizon", self.horizon)
        self._rssm, self._samples_ends = self._learner.world.rssm, ends == "sampled"
        self._observe_latents = self._decode if observations == "decoded" else self._features
        self._codec = self._choose_codec(observations == "decoded")
        self._start_states = start_states(self.agent, start)
        self.num_envs: int = num_envs
        self.render_mode: str | None = render_mode
        self.single_observation_space: spaces.Space[Any] = self._codec.filtered_space()
        self.single_action_space: spaces.Space[Any] = self.agent.action_space
        self.observation_space: spaces.Space[Any] = batch_space(self.single_observation_space, num_envs)
        self.action_space: spaces.Space[Any] = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": self.agent.frames_per_second}
        self._closing = contextlib.ExitStack()
        if render_mode is not None:
            self._draw = self._closing.enter_context(open_renderer_or_image(self.agent, self._inspector.keys))
        self._steps, self._ended = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self._latent: Latent | None = None
        self._generator: torch.Tensor | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin N dreams. The same ``seed`` and actions give the same dreams."""
        super().reset(seed=seed)
        if seed is None and self._generator is None:
            seed = int(self.np_random.integers(2**31))
        with self._use_dream_rng(seed):
            self._latent = self._initial_latents(self.num_envs)
        self._steps, self._ended = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self._to_observation(self._latent), {}

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each dream; dreams that had ended start over, with reward 0.

        Raises:
            DataError: an action is not in ``single_action_space``.
            ResetNeeded: the dreams have not begun.
        """
        if self._latent is None:
            raise ResetNeeded("step() was called before reset(): call reset() to begin the dreams.")
        flat, begins = torch.from_numpy(self.agent.flatten_actions(actions, self.num_envs)), self._ended  # [N, A]
        with self._use_dream_rng():
            latent = self._rssm.imagine(self._latent, flat.to(self._learner.device))
            if begins.any():
                for values, new in zip(latent, self._initial_latents(int(begins.sum())), strict=True):
                    values[torch.from_numpy(begins)] = new
            outcome = {
                name: to_numpy(values) for name, values in self._learner.predict_reward_and_cont(latent).items()
            }  # [N] each
        self._latent, self._steps = latent, np.where(begins, 0, self._steps + 1)
        threshold = self.np_random.random(self.num_envs) if self._samples_ends else 0.5
        terminated = ~begins & (outcome["cont"] <= threshold)
        truncated = ~begins & (self._steps >= self.horizon)
        self._ended = terminated | truncated
        reward = np.where(begins, 0.0, outcome["reward"].astype(np.float64))
        return self._to_observation(latent), reward, terminated, truncated, {}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return an image ``[H, W, 3]`` of each dream, or None without a render mode.

        The environment draws it if it can (docs/env_options.md); otherwise it is the first image observation.
        """
        if self.render_mode is None or self._latent is None:
            return None
        obs = {key: to_numpy(values)[:, None] for key, values in self._decode(self._latent).items()}  # [N, 1, ...]
        return tuple(self._draw(obs)[:, 0])

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment that draws."""
        self._closing.close()

    # ------------------------------------------------------------------ inside

    @contextlib.contextmanager
    def _use_dream_rng(self, seed: int | None = None) -> Iterator[None]:
        """Make PyTorch use this dream's own random generator in the context, seeded or continued.

        The global generators do not change.
        """
        device = self._learner.device
        gpu = device.type == "cuda"
        with torch.random.fork_rng([device] if gpu else []), torch.no_grad():
            if seed is not None:
                torch.manual_seed(seed)
            elif self._generator is not None:
                torch.cuda.set_rng_state(self._generator, device) if gpu else torch.set_rng_state(self._generator)
            yield
            self._generator = torch.cuda.get_rng_state(device) if gpu else torch.get_rng_state()

    def _initial_latents(self, count: int) -> Latent:
        """Return the initial latents ``[count, ...]`` of new dreams."""
        if self._start_states is not None:
            chosen = torch.from_numpy(self.np_random.integers(len(self._start_states.deter), size=count))
            return self._start_states.map(lambda x: x[chosen.to(x.device)])
        before = self._states_before(count)
        nothing = before.deter.new_zeros(count, self.agent.action_spec.width)
        return self._rssm.imagine(before, nothing)

    def _states_before(self, count: int) -> Latent:
        """Return the states ``[count, ...]`` before the first row of an episode."""
        return self._rssm.initial(count, self._learner.world.dtype)

    def _choose_codec(self, decodes: bool) -> ObsCodec:
        observations, spec = self._observe_latents(self._states_before(1)), dict(self.agent.obs_spec)
        if not observations:
            raise ConfigError("the decoder predicts none of the observations: set observations = 'latent'.")
        if decodes:
            return _dream_obs_codec(self.agent, {key: spec[key] for key in observations})
        spec["observation"] = ObsPart(kind="vector", shape=(self._rssm.feature_width,), dtype="float32")
        return _codec_from_spec({key: spec[key] for key in observations})

    def _decode(self, latent: Latent) -> dict[str, torch.Tensor]:
        """Return predicted observations ``[N, ...]`` by key."""
        return predicted_observations(self._learner.decode(latent), self.agent.obs_spec)

    def _features(self, latent: Latent) -> dict[str, torch.Tensor]:
        """Return latents instead of observations: the features ``[N, F]``, and masks."""
        return {"observation": latent.feature, **self._learner.predicted_mask(latent)}

    def _to_observation(self, latent: Latent) -> Obs:
        """Convert latents ``[N, ...]`` to an observation of ``observation_space``."""
        observations = self._observe_latents(latent)
        columns = {
            f"obs/{leaf.key}": clip_to_space(to_numpy(observations[leaf.key]), leaf) for leaf in self._codec.leaves
        }
        return columns_to_nested(self.single_observation_space, self._codec.decode(columns), "obs")


class DreamEnv(gymnasium.Env[Any, Any]):
    """An environment simulated by a world model, in which any algorithm can be trained; a single dream at a time.

    The same as ``gymnasium.make("reverie/Dream-v0", run=run, ...)`` without its wrappers. For many dreams with one step
    of the model: ``gymnasium.make_vec("reverie/Dream-v0", num_envs=64, run=run, ...)``.

    Observations are in the space of the run's environment, or of its resized or stacked images, with the action mask if
    the model predicts one. Numbers are clipped to their bounds, and categorical observations are the most likely class.
    Rewards are the expected rewards, after ``env.clip_reward``.

    Args:
        run: a run folder or an agent of any Dreamer, Plan2Explore, or TD-MPC2, whose observations are latents.
        **settings: by name:
            - ``checkpoint``, ``device``: for a run folder; see :func:`reverie.load`.
            - ``start``: "replay", rows that the run collected, or the dataset of an offline run; the path of another
              dataset; "prior", the model's own initial states; states from :meth:`Agent.observe` or
              :meth:`ImaginedTrajectory.state`; or a batch of rows, to start after its last rows. One state is drawn for
              each dream. Recorded rows are limited to 64 windows of 64 rows, without the first 8 rows of a window that
              starts within an episode.
            - ``horizon``: env steps after which a dream is truncated. None: the imagination horizon of training, 15 by
              default, for TD-MPC2 3; in longer dreams, prediction errors accumulate.
            - ``observations``: "decoded"; or "latent", the features (h, z) ``[F]``, without the decoder.
            - ``ends``: "sampled": terminate with the predicted probability; "likely": terminate where this probability
              is at least 0.5, which can be late if the model is uncertain over several steps.
            - ``render_mode``: "rgb_array" to draw.

    Raises:
        ConfigError: the algorithm has no world model, or a setting is out of range.
        DataError: there are no recorded rows to start from, or they do not match the agent.
        RunError: the run or checkpoint does not exist.
    """

    metadata: dict[str, Any] = METADATA

    def __init__(self, run: Agent | Path | str, **settings: Any) -> None:
        self._dreams = DreamVectorEnv(run, 1, **settings)
        self.agent: Agent = self._dreams.agent
        self.horizon: int = self._dreams.horizon
        self.observation_space: spaces.Space[Any] = self._dreams.single_observation_space
        self.action_space: spaces.Space[Any] = self._dreams.single_action_space
        self.render_mode: str | None = self._dreams.render_mode
        self.metadata = {**self.metadata, "render_fps": self.agent.frames_per_second}

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin a dream. The same ``seed`` and actions give the same dream."""
        super().reset(seed=seed)
        return first_item(self._dreams.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take ``action``; DataError if it is not in ``action_space``."""
        obs, reward, terminated, truncated, _ = self._dreams.step(add_batch_axis(action))
        return first_item(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """Return an image ``[H, W, 3]`` of the dream, or None without a render mode."""
        pictures = self._dreams.render()
        return None if pictures is None else pictures[0]

    def close(self) -> None:
        """Close the environment that draws."""
        self._dreams.close()


# ---------------------------------------------------------------- observations


def _dream_obs_codec(agent: Agent, spec: ObsSpec) -> ObsCodec:
    """Return the codec between observations of ``spec`` and the environment's space, or else a plain space."""
    # resized, stacked or rendered observations, or observations without their own space
    with contextlib.suppress(EnvError, ValueError):
        env_codec = ObsCodec(agent.observer.learner_space, lambda key: key in spec, agent.config.env.channel_axis)
        if env_codec.spec == dict(spec) and env_codec.filtered_space():
            return env_codec
    return _codec_from_spec(spec)


def _codec_from_spec(spec: ObsSpec) -> ObsCodec:
    """Return the codec of a space with the shapes of ``spec``."""
    plain = ObsCodec(guess_obs_space(spec), channel_axis="last")
    if plain.spec.keys() == spec.keys():
        return plain
    return ObsCodec(
        spaces.Dict(dict.fromkeys(spec, plain.space)), channel_axis="last"
    )  # a single observation is not in a dictionary


def clip_to_space(values: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Convert predictions ``[N, ...]`` to valid values ``[N, *shape]``: the most likely class, or clipped numbers."""
    part, space, is_integer = leaf.part, leaf.space, np.dtype(leaf.part.dtype).kind != "f"
    if part.kind == "categorical" and values.shape[1:] != part.shape:
        values = values.argmax(-1)
    values = values.reshape(len(values), *part.shape)
    if part.kind == "image":
        values = values.clip(part.low, part.high)
    if part.kind == "vector" and isinstance(space, spaces.Box):
        values, is_integer = values.clip(space.low, space.high), space.dtype.kind != "f"
    return (np.rint(values) if is_integer else values).astype(part.dtype)


# ---------------------------------------------------------------- starts


def start_states(agent: Agent, start: Start) -> Latent | None:
    """Return the states ``[P, ...]`` in which dreams start; None: the model's own initial states."""
    if isinstance(start, Batch):
        start = agent.observe(start)
    world = require_world_model(agent).world
    if isinstance(start, ModelState):
        return state_to_latent(world, start)
    if isinstance(start, str) and start == "prior":
        if not getattr(world, "begins", True):
            raise ConfigError("start = 'prior': this world model cannot imagine initial states. Use 'replay'.")
        return None
    is_replay = isinstance(start, str) and start == "replay"
    try:
        with agent.open_dataset(None if is_replay else start) as recorded, seeded_rng(default_seed(agent, None)):
            return _states_from_dataset(agent, recorded)
    except DataError as error:
        raise DataError(f"start = {short_repr(start)}: {error} Or use start = 'prior'.") from error


@torch.no_grad()
def _states_from_dataset(agent: Agent, recorded: RecordedEpisodes) -> Latent:
    """Return the states ``[P, ...]`` of recorded rows that are followed by an action."""
    total = recorded.rows()
    length = max(1, min(START_ROWS, total))
    chosen = {int(n) for n in np.random.permutation(total // length)[:NUM_STARTS]}  # noqa: NPY002  # seeded by the caller
    batches = [recorded.batch(rows, n) for n, rows in enumerate(rechunk(recorded.parts(), length)) if n in chosen]
    latents: list[Latent] = []
    for first in range(0, len(batches), FILTER_BATCH):
        rows = stack_windows(batches[first : first + FILTER_BATCH]).to(agent.algo.device)  # [B, T]
        latent = require_world_model(agent).world.observe(rows).latent
        has_context = (rows.is_first.cumsum(1) > 0) | (torch.arange(length, device=agent.algo.device) >= BURN_IN_ROWS)
        use = has_context & ~rows.is_last  # [B, T]
        latents += [Latent(latent.deter[use], latent.stoch[use])]
    return Latent(*(torch.cat(parts) for parts in zip(*latents, strict=True)))
