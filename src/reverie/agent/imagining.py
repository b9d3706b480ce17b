"""States of a world model: observed, edited, and imagined on from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from torch import Tensor

from reverie.agent.dream_figures import FPS, drawing
from reverie.algos.base import INSIDE, dreamt_name
from reverie.algos.world_model import Dreamer, WorldModel
from reverie.core.errors import ConfigError, DataError, plural
from reverie.core.files import writing
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.types import Batch, Mode
from reverie.log.video import IMAGINED, OBSERVED, border, tile, write_video
from reverie.nn.probe import Probe
from reverie.nn.rssm import Latent

if TYPE_CHECKING:
    from reverie.agent.agent import Agent

STEPS = 15
"""Steps that are imagined by default."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelState:
    """States s = (h, z) of a world model, of B episodes at one moment each. Arrays are in float32."""

    deter: np.ndarray
    """h, the deterministic part ``[B, D]``."""
    stoch: np.ndarray
    """z, the stochastic part ``[B, S, C]``: S categorical latents as one-hot vectors of C classes; C is 1 if they are
    numbers. Of TD-MPC2, whose latent is h, the reward that is predicted to come with it."""

    def __repr__(self) -> str:
        return f"ModelState(deter {list(self.deter.shape)}, stoch {list(self.stoch.shape)})"

    @property
    def classes(self) -> np.ndarray:
        """The class of each categorical latent, ``[B, S]``."""
        found: np.ndarray = self.stoch.argmax(-1)
        return found

    def replace(
        self, *, deter: np.ndarray | float | None = None, stoch: np.ndarray | float | None = None,
        classes: Mapping[int, Any] | np.ndarray | None = None,
    ) -> ModelState:  # fmt: skip
        """Return these states with parts replaced; arrays may lack the first axis, for all B states alike.

        Args:
            deter: h ``[B, D]``.
            stoch: z ``[B, S, C]``.
            classes: of categorical latents: ``{3: 7}`` sets latent 3 to class 7, ``{3: [7, 0]}`` that of two states to
                7 and 0; or of all latents, ``[B, S]``.

        Raises:
            DataError: the latents have no classes.
        """
        h = self.deter if deter is None else _like(self.deter, deter)
        z = self.stoch if stoch is None else _like(self.stoch, stoch)
        return ModelState(h, z if classes is None else _with_classes(z, classes))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class Imagined:
    """What a world model imagines in B episodes. Row 0 is the given state, the T others are imagined."""

    observations: dict[str, np.ndarray]
    """Predicted observations by key, ``[B, T + 1, *shape]`` in their own units; if categorical, the probabilities of
    the classes ``[B, T + 1, n, C]``."""
    rewards: np.ndarray
    """Predicted reward that comes with each row ``[B, T + 1]``, after ``env.clip_reward``."""
    continues: np.ndarray
    """Predicted probability that the episode goes on after each row ``[B, T + 1]``."""
    values: np.ndarray
    """The critic's value of each row ``[B, T + 1]``: the discounted sum of the rewards after it."""
    actions: np.ndarray
    """Taken at each row but the last, ``[B, T, A]``, as rows hold them: one-hot where discrete, or in [-1, 1]."""
    deter: np.ndarray
    """h of each row ``[B, T + 1, D]``."""
    stoch: np.ndarray
    """z of each row ``[B, T + 1, S, C]``."""
    agent: Agent
    """The agent that imagined them."""

    def __repr__(self) -> str:
        episodes, steps = self.actions.shape[:2]
        return f"Imagined({plural(steps, 'step')} in {plural(episodes, 'episode')}, by {self.agent})"

    def state(self, row: int) -> ModelState:
        """Return the states of one row, to edit them and imagine on: 0 is the given one, -1 the last."""
        return ModelState(self.deter[:, row], self.stoch[:, row])

    def video(self, path: Path | str) -> Path:
        """Write an mp4 of the B episodes side by side, framed green in row 0 and red in the imagined ones.

        The environment draws the observations, where that is possible (docs/environments.md); otherwise the first image
        among them is shown.

        Raises:
            ConfigError: there is no way to draw them.
            RunError: the file cannot be written.
        """
        frames = [OBSERVED] + [IMAGINED] * (len(self.rewards[0]) - 1)
        with drawing(self.agent, self.observations) as draw:
            shown = draw(self.observations)
        with writing(Path(path)):
            return write_video(Path(path), tile(np.stack([border(one, frames) for one in shown])), FPS)


def describing(agent: Agent) -> Dreamer:
    """Return the agent's learner; ConfigError if it has no world model."""
    if getattr(agent.algo, "world", None) is None:
        raise ConfigError(f"{type(agent.algo).__name__} has no world model, whose states could be looked at.")
    return cast(Dreamer, agent.algo)


def seeded(agent: Agent, seed: int | None) -> int:
    """Return ``seed``, or the one that follows from the run's."""
    return derived_seeds(agent.config.seed)["evaluation"] if seed is None else seed


def array(values: Tensor) -> np.ndarray:
    """Return a tensor as float32 on the CPU."""
    out: np.ndarray = values.detach().float().cpu().numpy()
    return out


@torch.no_grad()
def observe(agent: Agent, rows: Batch, seed: int | None) -> ModelState:
    """See :meth:`Agent.observe`."""
    world = describing(agent).world
    with reproducible(seeded(agent, seed)):
        latent = world.observe(rows.to(agent.algo.device)).latent  # [B, T, ...]
    return ModelState(array(latent.deter[:, -1]), array(latent.stoch[:, -1]))


@torch.no_grad()
def imagine(agent: Agent, state: ModelState, steps: int | None, actions: Any, mode: Mode, seed: int | None) -> Imagined:
    """See :meth:`Agent.imagine`."""
    learner = describing(agent)
    world, latent = learner.world, latent_of(learner.world, state)
    given = None if actions is None else _actions(agent, actions, len(state.deter))  # [B, T, A]
    if steps is None:
        steps = STEPS if given is None else given.shape[1]
    latents, taken, cell = [latent], list[Tensor](), world.rssm.cell(world.dtype)
    with reproducible(seeded(agent, seed)):
        for step in range(steps):
            if given is None:
                feature = latents[-1].feature
                policy = learner.actor(feature, None if world.legal is None else world.legal(feature))
                taken.append((policy.sample() if mode == "explore" else policy.mode()).clamp(-1, 1))  # [B, A]
            else:
                taken.append(given[:, step])
            latents.append(world.rssm.imagine_step(latents[-1], taken[-1], cell))
        whole = Latent(*(torch.stack(parts, 1) for parts in zip(*latents, strict=True)))  # [B, T + 1, ...]
        said = {name: array(values) for name, values in learner.described(whole).items()}
    names = {key: dreamt_name(key) for key in agent.obs_spec}
    return Imagined(
        observations={key: said[name] for key, name in names.items() if name in said},
        rewards=said["reward"],
        continues=said["cont"],
        values=said[f"{INSIDE}value"],
        actions=array(torch.stack(taken, 1)),
        deter=array(whole.deter),
        stoch=array(whole.stoch),
        agent=agent,
    )


@torch.no_grad()
def probed(agent: Agent, state: ModelState, given: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """See :meth:`Agent.probe`."""
    probe, feature = probe_of(agent), latent_of(describing(agent).world, state).feature
    obs = _observed(agent, given, len(feature))
    keys = [key for key, needed in probe.given.items() if needed.keys() <= obs.keys()]
    return {key: array(said.value()) for key, said in probe(feature, obs, keys).items()}


def steer(
    agent: Agent, state: ModelState, probe: Mapping[str, Any], given: Mapping[str, Any], steps: int, lr: float
) -> ModelState:
    """See :meth:`Agent.steer`."""
    heads, latent = probe_of(agent), latent_of(describing(agent).world, state)
    if unknown := probe.keys() - heads.parts.keys():
        raise DataError(f"there is no probe of {', '.join(unknown)}: expected some of {', '.join(heads.parts)}.")
    obs = _observed(agent, {**given, **probe}, len(state.deter))
    deter = latent.deter.clone().requires_grad_()
    optim = torch.optim.Adam([deter], lr)
    with torch.enable_grad():
        for _ in range(steps):
            said = heads(latent._replace(deter=deter).feature, obs, probe)
            loss = torch.stack([predicted.loss(obs[key]).sum() for key, predicted in said.items()]).sum()
            (deter.grad,) = torch.autograd.grad(loss, deter)
            optim.step()
            deter.detach().clamp_(-1, 1)  # where the h of every cell is
    return ModelState(array(deter), state.stoch)


def probe_of(agent: Agent) -> Probe:
    """Return the agent's probes; ConfigError if it has none."""
    probe = getattr(agent.algo, "probe", None)
    if not isinstance(probe, Probe):
        raise ConfigError(f"{agent} has no probes: train DreamerV2 with algo.probe.heads.")
    return probe


def _observed(agent: Agent, values: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """Return observations by key as tensors ``[B, *shape]``."""
    found = {}
    for key, value in values.items():
        part = agent.obs_spec[key]
        like = np.zeros((count, *part.shape), np.int64 if part.kind == "categorical" else np.float32)
        found[key] = torch.from_numpy(_like(like, value)).to(agent.algo.device)
    return found


def _with_classes(stoch: np.ndarray, classes: Mapping[int, Any] | np.ndarray) -> np.ndarray:
    """Return z ``[B, S, C]`` with other classes."""
    count = stoch.shape[-1]
    if count == 1:
        raise DataError("the latents of this world model are numbers, without classes: replace stoch instead.")
    index = stoch.argmax(-1)  # [B, S]
    for latent, value in classes.items() if isinstance(classes, Mapping) else [(slice(None), classes)]:
        index[:, latent] = value
    hot: np.ndarray = np.eye(count, dtype=np.float32)[index]
    return hot


def _like(old: np.ndarray, new: Any) -> np.ndarray:
    """Return ``new`` with the shape and type of ``old``, whose first axis it may lack."""
    return np.broadcast_to(np.asarray(new), old.shape).astype(old.dtype)


def latent_of(world: WorldModel, state: ModelState) -> Latent:
    """Return states as latents ``[B, ...]`` of ``world``, on its device."""
    like = world.rssm.initial(len(state.deter), world.dtype)
    return Latent(torch.from_numpy(state.deter).to(like.deter), torch.from_numpy(state.stoch).to(like.stoch))


def _actions(agent: Agent, actions: Any, count: int) -> Tensor:
    """Return actions ``[T, A]`` or ``[B, T, A]`` as ``[B, T, A]`` on the agent's device."""
    width = agent.action_spec.width
    flat = actions if isinstance(actions, Tensor) else torch.from_numpy(np.array(actions, np.float32))
    if flat.ndim not in (2, 3) or flat.shape[-1] != width or 0 in flat.shape or (flat.ndim == 3 and len(flat) != count):
        raise DataError(
            f"actions have shape {list(flat.shape)}: expected [T, {width}] or [{count}, T, {width}], as "
            "agent.flat_actions makes them of the environment's."
        )
    return flat.to(agent.algo.device, torch.float32).expand(count, -1, -1)
