"""A dream as an environment of Gymnasium: the world model answers actions with predicted observations and rewards."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from reverie.agent.agent import Agent, check_word
from reverie.agent.dream_figures import FPS, drawing
from reverie.agent.dreaming import stacked
from reverie.agent.extract import pieces
from reverie.agent.imagining import STEPS, Mind, ModelState, array, describing, latent_of, seeded, seen_in
from reverie.agent.loading import load
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, DataError, EnvError, brief
from reverie.core.randomness import reproducible
from reverie.core.spaces import Leaf, ObsCodec, nested
from reverie.core.specs import ObsPart, ObsSpec
from reverie.core.types import Batch
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.memory import DataLike
from reverie.datasets.own_store import guess_obs_space
from reverie.envs.together import batch_of, first_of
from reverie.nn.rssm import Latent

Start = ModelState | Batch | DataLike
"""Where dreams begin: see :func:`dream_env`."""
WINDOWS, ROWS, BURN_IN = 64, 64, 8
"""Most windows of recorded rows whose states are kept to begin from, the rows of each, and how many rows of an episode
the model has seen at least, unless it saw its beginning."""
AT_ONCE = 16
"""Windows that are filtered together."""

METADATA: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": FPS}
Obs = Any
"""An observation of the space of the dream, or of a vector of dreams."""


class DreamVectorEnv(VectorEnv[Any, Any, Any]):
    """N dreams at once, with one step of the model for all of them; see :func:`dream_env` for the settings.

    Made by ``gymnasium.make_vec("reverie/Dream-v0", num_envs=N, run=RUN)``. The step after an end begins a new dream,
    whatever its action (``AutoresetMode.NEXT_STEP``), as rows do. Rewards are float64.

    Attributes:
        agent: whose world model dreams.
        horizon: steps after which dreams are truncated.
    """

    metadata: dict[str, Any] = METADATA | {"autoreset_mode": AutoresetMode.NEXT_STEP}

    def __init__(
        self, run: Agent | Path | str, num_envs: int = 1, *, checkpoint: Path | str | None = None, device: str = "auto",
        start: Start = "replay", horizon: int | None = None, observations: Literal["decoded", "latent"] = "decoded",
        ends: Literal["sampled", "likely"] = "sampled", render_mode: str | None = None,
    ) -> None:  # fmt: skip
        check_word("observations", observations, ("decoded", "latent"))
        check_word("ends", ends, ("sampled", "likely"))
        self.agent: Agent = run if isinstance(run, Agent) else load(run, checkpoint=checkpoint, device=device)
        self._mind = Mind(self.agent)
        self._learner = self._mind.learner
        self.horizon: int = getattr(self.agent.config.algo, "horizon", STEPS) if horizon is None else horizon
        AtLeast(1).check("horizon", self.horizon)
        self._rssm, self._samples_ends = self._learner.world.rssm, ends == "sampled"
        self._seen = self._decoded if observations == "decoded" else self._features
        self._codec = self._chosen_codec(observations == "decoded")
        self._begins = states_of(self.agent, start)
        self.num_envs: int = num_envs
        self.render_mode: str | None = render_mode
        self.single_observation_space: spaces.Space[Any] = self._codec.kept_space()
        self.single_action_space: spaces.Space[Any] = self.agent.action_space
        self.observation_space: spaces.Space[Any] = batch_space(self.single_observation_space, num_envs)
        self.action_space: spaces.Space[Any] = batch_space(self.single_action_space, num_envs)
        self.metadata = {**self.metadata, "render_fps": self.agent.frames_per_second}
        self._closing = contextlib.ExitStack()
        if render_mode is not None:
            self._draw = self._closing.enter_context(drawing(self.agent, self._mind.keys))
        self._steps, self._over = np.zeros(num_envs, int), np.zeros(num_envs, bool)
        self._latent: Latent | None = None
        self._generator: torch.Tensor | None = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Obs, dict[str, Any]]:
        """Begin N dreams. The same ``seed`` and actions give the same dreams."""
        super().reset(seed=seed)
        with self._draws(int(self.np_random.integers(2**31)) if seed is None and self._generator is None else seed):
            self._latent = self._begun(self.num_envs)
        self._steps, self._over = np.zeros(self.num_envs, int), np.zeros(self.num_envs, bool)
        return self._shown(self._latent), {}

    def step(self, actions: Any) -> tuple[Obs, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Take an action in each dream; those that had ended begin anew, with reward 0.

        Raises:
            DataError: an action is not in ``single_action_space``.
        """
        assert self._latent is not None
        flat, begun = torch.from_numpy(self.agent.flat_actions(actions, self.num_envs)), self._over  # [N, A]
        with self._draws():
            latent = self._rssm.imagine_step(self._latent, flat.to(self._learner.device), self._mind.cell)
            if begun.any():
                for values, new in zip(latent, self._begun(int(begun.sum())), strict=True):
                    values[torch.from_numpy(begun)] = new
            said = {name: array(values) for name, values in self._learner.outcome(latent).items()}  # [N] each
        self._latent, self._steps = latent, np.where(begun, 0, self._steps + 1)
        terminated = ~begun & (said["cont"] <= (self.np_random.random(self.num_envs) if self._samples_ends else 0.5))
        truncated = ~begun & (self._steps >= self.horizon)
        self._over = terminated | truncated
        reward = np.where(begun, 0.0, said["reward"].astype(np.float64))
        return self._shown(latent), reward, terminated, truncated, {}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """Return a picture ``[H, W, 3]`` of what each dream shows, or None without a render mode.

        The environment draws it if it can (docs/environments.md); otherwise it is the first image observed.
        """
        if self.render_mode is None or self._latent is None:
            return None
        seen = {key: array(values)[:, None] for key, values in self._decoded(self._latent).items()}  # [N, 1, ...]
        return tuple(self._draw(seen)[:, 0])

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environment that draws."""
        self._closing.close()

    # ------------------------------------------------------------------ inside

    @contextlib.contextmanager
    def _draws(self, seed: int | None = None) -> Iterator[None]:
        """Let PyTorch draw from this dream's own generator, which goes on or is seeded; the global ones do not move."""
        device = self._learner.device
        gpu = device.type == "cuda"
        with torch.random.fork_rng([device] if gpu else []), torch.no_grad():
            if seed is not None:
                torch.manual_seed(seed)
            elif self._generator is not None:
                torch.cuda.set_rng_state(self._generator, device) if gpu else torch.set_rng_state(self._generator)
            yield
            self._generator = torch.cuda.get_rng_state(device) if gpu else torch.get_rng_state()

    def _begun(self, count: int) -> Latent:
        """Return the latents ``[count, ...]`` of as many dreams that begin."""
        if self._begins is not None:
            chosen = torch.from_numpy(self.np_random.integers(len(self._begins.deter), size=count))
            return self._begins.map(lambda x: x[chosen.to(x.device)])
        before = self._before(count)
        nothing = before.deter.new_zeros(count, self.agent.action_spec.width)
        return self._rssm.imagine_step(before, nothing, self._mind.cell)

    def _before(self, count: int) -> Latent:
        """Return the states ``[count, ...]`` before the first row of an episode."""
        return self._rssm.initial(count, self._learner.world.dtype)

    def _chosen_codec(self, decodes: bool) -> ObsCodec:
        seen, spec = self._seen(self._before(1)), dict(self.agent.obs_spec)
        if not seen:
            raise ConfigError("the decoder predicts none of the observations: set observations = 'latent'.")
        if decodes:
            return codec_of(self.agent, {key: spec[key] for key in seen})
        spec["observation"] = ObsPart(kind="vector", shape=(self._rssm.feature_width,), dtype="float32")
        return plain_codec({key: spec[key] for key in seen})

    def _decoded(self, latent: Latent) -> dict[str, torch.Tensor]:
        """Return predicted observations ``[N, ...]`` by key."""
        return seen_in(self._learner.decoded(latent), self.agent.obs_spec)

    def _features(self, latent: Latent) -> dict[str, torch.Tensor]:
        """Return latents in place of observations: the features ``[N, F]``, and masks."""
        return {"observation": latent.feature, **self._learner.predicted_mask(latent)}

    def _shown(self, latent: Latent) -> Obs:
        """Return what dreams show at latents ``[N, ...]``, as an observation of ``observation_space``."""
        seen = self._seen(latent)
        columns = {f"obs/{leaf.key}": within(array(seen[leaf.key]), leaf) for leaf in self._codec.leaves}
        return nested(self.single_observation_space, self._codec.decode(columns), "obs")


class DreamEnv(gymnasium.Env[Any, Any]):
    """One dream at a time; see :func:`dream_env`, which makes it."""

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
        """Begin a dream. With the same ``seed``, and actions, it is the same one."""
        super().reset(seed=seed)
        return first_of(self._dreams.reset(seed=seed)[0]), {}

    def step(self, action: Any) -> tuple[Obs, float, bool, bool, dict[str, Any]]:
        """Take ``action``; DataError if it is not in ``action_space``."""
        obs, reward, terminated, truncated, _ = self._dreams.step(batch_of(action))
        return first_of(obs), float(reward[0]), bool(terminated[0]), bool(truncated[0]), {}

    def render(self) -> Any:
        """Return a picture ``[H, W, 3]`` of what the dream shows, or None without a render mode."""
        drawn = self._dreams.render()
        return None if drawn is None else drawn[0]

    def close(self) -> None:
        """Close the environment that draws."""
        self._dreams.close()


def dream_env(run: Agent | Path | str, **settings: Any) -> DreamEnv:
    """Make a world model an environment, in which any algorithm can be trained.

    The same as ``gymnasium.make("reverie/Dream-v0", run=run, ...)`` without its wrappers. For many dreams with one step
    of the model: ``gymnasium.make_vec("reverie/Dream-v0", num_envs=64, run=run, ...)``.

    Observations are in the space of the run's environment, or of its resized images or stacks, with the mask of legal
    actions if the model predicts one; numbers are clipped to the bounds, and of classes the likeliest is shown. Rewards
    are the expected ones, after ``env.clip_reward``.

    Args:
        run: a run folder, or an agent, of any Dreamer or Plan2Explore, or of TD-MPC2, whose dreams show latents.
        **settings: by name:

            - ``checkpoint``, ``device``: of a run folder; see :func:`reverie.load`.
            - ``start``: "replay", rows that the run collected, or the data that it learned from alone; the path of
              other data; "prior", as the model imagines that episodes begin; states, as :meth:`Agent.observe` and
              :meth:`Imagined.state` return them; or a batch of rows, to begin after its last ones. Of several states
              one is drawn for each dream. Of recorded rows those of up to 64 windows of 64 rows are kept, without the
              first 8 of a window that begins within an episode.
            - ``horizon``: env steps after which a dream is truncated. None: as many as the algorithm imagined in
              training, 15 by default: for longer dreams the model was never used, and its errors add up.
            - ``observations``: "decoded"; or "latent", the feature (h, z) ``[F]``, without the decoder.
            - ``ends``: "sampled", with the probability that is predicted; or a dream terminates where that is "likely",
              0.5 or more, which is too late where the model is in doubt over several steps.
            - ``render_mode``: "rgb_array" to draw.

    Raises:
        ConfigError: the algorithm has no world model, or a setting is out of range.
        DataError: there are no recorded rows to start from, or they do not fit the agent.
        RunError: there is no such run or checkpoint.
    """
    return DreamEnv(run, **settings)


# ---------------------------------------------------------------- observations


def codec_of(agent: Agent, spec: ObsSpec) -> ObsCodec:
    """Return what turns observations of ``spec`` into values of the environment's space, or else of a plain one."""
    with contextlib.suppress(EnvError, ValueError):  # they are resized, stacked, drawn, or no observations of its own
        own = ObsCodec(agent.observer.shown, lambda key: key in spec, agent.config.env.channels)
        if own.spec == dict(spec) and own.kept_space():
            return own
    return plain_codec(spec)


def plain_codec(spec: ObsSpec) -> ObsCodec:
    """Return the codec of a space that looks as ``spec`` says."""
    plain = ObsCodec(guess_obs_space(spec), channels="last")
    if plain.spec.keys() == spec.keys():
        return plain
    return ObsCodec(spaces.Dict(dict.fromkeys(spec, plain.space)), channels="last")  # what is alone has its own name


def within(values: np.ndarray, leaf: Leaf) -> np.ndarray:
    """Return predictions ``[N, ...]`` as possible values ``[N, *shape]``: the likeliest class, or clipped numbers."""
    part, space, whole = leaf.part, leaf.space, np.dtype(leaf.part.dtype).kind != "f"
    if part.kind == "categorical" and values.shape[1:] != part.shape:
        values = values.argmax(-1)
    values = values.reshape(len(values), *part.shape)
    if part.kind == "image":
        values = values.clip(part.low, part.high)
    if part.kind == "vector" and isinstance(space, spaces.Box):
        values, whole = values.clip(space.low, space.high), space.dtype.kind != "f"
    return (np.rint(values) if whole else values).astype(part.dtype)


# ---------------------------------------------------------------- starts


def states_of(agent: Agent, start: Start) -> Latent | None:
    """Return the states ``[P, ...]`` that dreams begin from; None: as the model imagines that episodes begin."""
    if isinstance(start, Batch):
        start = agent.observe(start)
    world = describing(agent).world
    if isinstance(start, ModelState):
        return latent_of(world, start)
    if isinstance(start, str) and start == "prior":
        if not getattr(world, "begins", True):
            raise ConfigError("start = 'prior': this world model does not imagine how episodes begin. Use 'replay'.")
        return None
    own = isinstance(start, str) and start == "replay"
    try:
        with agent.recorded(None if own else start) as recorded, reproducible(seeded(agent, None)):
            return recorded_states(agent, recorded)
    except DataError as error:
        raise DataError(f"start = {brief(start)}: {error} Or let dreams begin from start = 'prior'.") from error


@torch.no_grad()
def recorded_states(agent: Agent, recorded: RecordedEpisodes) -> Latent:
    """Return the states ``[P, ...]`` of recorded rows after which there is an action."""
    total = recorded.rows()
    length = max(1, min(ROWS, total))
    chosen = {int(n) for n in np.random.permutation(total // length)[:WINDOWS]}  # noqa: NPY002  # seeded by the caller
    held = [recorded.batch(rows, n) for n, rows in enumerate(pieces(recorded.parts(), length)) if n in chosen]
    found: list[Latent] = []
    for first in range(0, len(held), AT_ONCE):
        rows = stacked(held[first : first + AT_ONCE]).to(agent.algo.device)  # [B, T]
        latent = describing(agent).world.observe(rows).latent
        known = (rows.is_first.cumsum(1) > 0) | (torch.arange(length, device=agent.algo.device) >= BURN_IN)
        use = known & ~rows.is_last  # [B, T]
        found += [Latent(latent.deter[use], latent.stoch[use])]
    return Latent(*(torch.cat(parts) for parts in zip(*found, strict=True)))
