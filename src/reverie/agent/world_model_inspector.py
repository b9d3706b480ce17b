"""States of a world model: observe, edit, and imagine from them, and the predictions of the networks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from reverie.agent.conversion import to_numpy
from reverie.agent.dream_figures import FPS, open_renderer_or_image
from reverie.agent.player import AgentState, Player, policy_mode
from reverie.algos.base import INTERNAL_PREFIX, prediction_name
from reverie.algos.dreamer import Dreamer
from reverie.algos.world_model import Context, WorldModel
from reverie.core.errors import ConfigError, DataError, count_noun
from reverie.core.files import disk_errors_as_run_error
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.types import Batch, Mode, Step
from reverie.log.video import IMAGINED_COLOR, OBSERVED_COLOR, border, tile, write_video
from reverie.nn.dense_rssm import Categorical, Gaussian
from reverie.nn.distributions import Categoricals, JointDistribution
from reverie.nn.probe import Probe
from reverie.nn.state_space import Latent

STEPS = 15
"""Default number of imagined steps."""
Predictions = dict[str, np.ndarray]
"""Predictions for a state, by the names of ``Dreamer.dream``, and ``prior_entropy`` and ``policy``."""
ActionFn = Callable[[int, Latent], Tensor]
"""Returns the actions ``[B, A]`` of an imagined step, from its number and the states ``[B, ...]`` before it."""


@dataclass(frozen=True, eq=False, repr=False)
class ModelState:
    """States s = (h, z) of a world model for B episodes, one time step each. Arrays are float32."""

    deter: np.ndarray
    """h, the deterministic part ``[B, D]``."""
    stoch: np.ndarray
    """z, the stochastic part ``[B, S, C]``: S categorical latents as one-hot vectors of C classes; C is 1 if they are
    numbers. For TD-MPC2, whose latent is h, the predicted reward of the row."""

    def __repr__(self) -> str:
        return f"ModelState(deter {list(self.deter.shape)}, stoch {list(self.stoch.shape)})"

    @property
    def classes(self) -> np.ndarray:
        """The class of each categorical latent, ``[B, S]``."""
        classes: np.ndarray = self.stoch.argmax(-1)
        return classes

    def replace(
        self, *, deter: np.ndarray | float | None = None, stoch: np.ndarray | float | None = None,
        classes: Mapping[int, Any] | np.ndarray | None = None,
    ) -> ModelState:  # fmt: skip
        """Return these states with parts replaced; arrays without the first axis apply to all B states.

        Args:
            deter: h ``[B, D]``.
            stoch: z ``[B, S, C]``.
            classes: of categorical latents: ``{3: 7}`` sets latent 3 to class 7, ``{3: [7, 0]}`` sets it to 7 and 0 in
                two states; or the classes of all latents, ``[B, S]``.

        Raises:
            DataError: the latents have no classes.
        """
        h = self.deter if deter is None else _broadcast_like(self.deter, deter)
        z = self.stoch if stoch is None else _broadcast_like(self.stoch, stoch)
        return ModelState(h, z if classes is None else to_numpy(replace_classes(torch.from_numpy(z), classes)))


@dataclass(frozen=True, eq=False, repr=False, kw_only=True)
class ImaginedTrajectory:
    """Imagined trajectories of B episodes. Row 0 is the initial state, the other T rows are imagined."""

    observations: dict[str, np.ndarray]
    """Predicted observations by key, ``[B, T + 1, *shape]`` in the observation's units; class probabilities ``[B, T +
    1, n, C]`` if categorical."""
    rewards: np.ndarray
    """Predicted reward of each row ``[B, T + 1]``, after ``env.clip_reward``."""
    continues: np.ndarray
    """Predicted probability that the episode continues after each row ``[B, T + 1]``."""
    values: np.ndarray
    """The critic's value of each row ``[B, T + 1]``: the discounted sum of the rewards after it."""
    actions: np.ndarray
    """Actions taken at each row but the last, ``[B, T, A]``: one-hot if discrete, else in [-1, 1]."""
    deter: np.ndarray
    """h of each row ``[B, T + 1, D]``."""
    stoch: np.ndarray
    """z of each row ``[B, T + 1, S, C]``."""
    agent: Player
    """The agent that imagined them."""

    def __repr__(self) -> str:
        episodes, steps = self.actions.shape[:2]
        return f"ImaginedTrajectory({count_noun(steps, 'step')} in {count_noun(episodes, 'episode')}, by {self.agent})"

    def state(self, row: int) -> ModelState:
        """Return the states of one row, to edit them or continue imagining; 0: the initial row, -1: the last."""
        return ModelState(self.deter[:, row], self.stoch[:, row])

    def video(self, path: Path | str) -> Path:
        """Write an mp4 of the B episodes side by side, framed blue in row 0 and orange in imagined rows.

        The environment draws the observations, if possible (docs/env_options.md); otherwise the first image
        observation is shown.

        Raises:
            ConfigError: the observations cannot be drawn.
            RunError: the file cannot be written.
        """
        frames = [OBSERVED_COLOR] + [IMAGINED_COLOR] * (len(self.rewards[0]) - 1)
        with open_renderer_or_image(self.agent, self.observations) as draw:
            pictures = draw(self.observations)
        with disk_errors_as_run_error(Path(path)):
            return write_video(Path(path), tile(np.stack([border(picture, frames) for picture in pictures])), FPS)


def has_world_model(player: Player) -> bool:
    """Return whether the agent's learner has a world model."""
    return getattr(player.algo, "world", None) is not None


def require_world_model(player: Player) -> Dreamer:
    """Return the agent's learner; ConfigError if it has no world model."""
    if not has_world_model(player):
        raise ConfigError(f"{type(player.algo).__name__} has no world model to inspect.")
    return cast(Dreamer, player.algo)


def default_seed(player: Player, seed: int | None) -> int:
    """Return ``seed``, or the seed derived from the run's seed."""
    return derived_seeds(player.config.seed)["evaluation"] if seed is None else seed


class WorldModelInspector:
    """Access to the world model of an agent, one state at a time."""

    def __init__(self, player: Player) -> None:
        """Raise ConfigError if the agent has no world model."""
        self.learner: Dreamer = require_world_model(player)
        self.world: WorldModel = self.learner.world
        rssm, initial = self.world.rssm, self.world.rssm.initial(1, self.world.dtype)
        self.draws: bool = bool(rssm.stats_by_name(rssm.p(initial.deter)))
        """Whether its states are drawn from distributions."""
        self.keys: list[str] = list(predicted_observations(self.learner.decode(initial), player.obs_spec))
        """The observations that the model predicts."""

    def act(self, latent: Latent, mode: Mode) -> Tensor:
        """Return the policy's actions ``[B, A]`` in states ``[B, ...]``: "explore" samples, "eval" takes the mode."""
        policy = self.policy(latent)
        return (policy.sample() if mode == "explore" else policy.mode()).clamp(-1, 1)

    def policy(self, latent: Latent) -> JointDistribution:
        """Return the distribution of actions in states ``[..., D]``, ``[..., S, C]``."""
        legal = self.world.predict_mask
        policy: JointDistribution = self.learner.actor(latent.feature, None if legal is None else legal(latent.feature))
        return policy

    @torch.no_grad()
    def imagine(
        self, latent: Latent, steps: int, choose: ActionFn, pinned_classes: Mapping[int, int] | None = None
    ) -> tuple[list[Latent], list[Tensor]]:
        """Return imagined states ``[B, ...]`` and the actions before them ``[B, A]``.

        ``pinned_classes``: fixed classes of latents, by latent number.
        """
        latents, actions = list[Latent](), list[Tensor]()
        for number in range(steps):
            actions.append(choose(number, latent))
            latent = self.world.rssm.imagine(latent, actions[-1])
            if pinned_classes:
                latent = latent._replace(stoch=replace_classes(latent.stoch, pinned_classes))
            latents.append(latent)
        return latents, actions

    @torch.no_grad()
    def predict(self, latents: Sequence[Latent]) -> Predictions:
        """Return the predictions of all heads for T states ``[B, ...]``, as ``[B, T, ...]``."""
        latent = Latent(*(torch.stack(parts, 1) for parts in zip(*latents, strict=True)))  # [B, T, ...]
        predictions = {name: to_numpy(values) for name, values in self.learner.describe_latent(latent).items()}
        predictions |= {"policy": to_numpy(action_probabilities(self.policy(latent)))}
        if not self.draws:
            return predictions
        kind, prior = self._distribution(self.world.rssm.p(latent.deter))
        return predictions | {"prior_entropy": to_numpy(kind.entropy(prior))}

    @torch.no_grad()
    def divergence(self, step: Step, state: Context) -> dict[str, float]:
        """Return KL[posterior | prior] of a row and both entropies, in nats, if states are sampled."""
        if not self.draws:
            return {}
        kind, posterior = self._distribution(self._posterior(step, state.latent))
        _, prior = self._distribution(self.world.rssm.p(state.latent.deter))
        values = {"kl": kind.kl(posterior, prior), "posterior_entropy": kind.entropy(posterior)}
        values["prior_entropy"] = kind.entropy(prior)
        return {name: float(value[0]) for name, value in values.items()}

    @torch.no_grad()
    def most_likely(self, step: Step, state: Context) -> Latent:
        """Return the most likely state ``[1, ...]`` of a row, from the state that a policy has drawn there."""
        latent = state.latent
        return self.world.rssm.most_likely(latent, self._posterior(step, latent)) if self.draws else latent

    def _posterior(self, step: Step, latent: Latent) -> Tensor:
        """Return the posterior's statistics ``[1, S, n]`` of a row."""
        world, device = self.world, latent.deter.device
        embed = world.embed(step.obs_on(device), step.reward.to(device), step.is_terminal.to(device))
        return world.rssm.q(latent.deter, embed.to(latent.deter.dtype))

    def _distribution(self, stats: Tensor) -> tuple[Categorical | Gaussian, Tensor]:
        """Return the kind of z, and its statistics."""
        named = self.world.rssm.stats_by_name(stats)
        if "logits" in named:
            return Categorical(), named["logits"]
        return Gaussian(), torch.stack([named["mean"], named["std"]], -1)

    def predicted_return(self, predictions: Predictions) -> np.ndarray:
        """Return the return ``[B]`` of imagined states ``[B, H]``, in the critic's units.

        sum_k d_k r_k + d_{H+1} v_H, where d_1 = 1 and d_{k+1} = d_k gamma c_k; c is the continuation probability.
        """
        reward = to_numpy(self.world.transform.forward(torch.from_numpy(predictions["reward"])))  # [B, H]
        cont_product = np.cumprod(self.world.discount * predictions["cont"], 1)  # [B, H]
        discounts = np.concatenate([np.ones_like(cont_product[:, :1]), cont_product[:, :-1]], 1)
        total: np.ndarray = (discounts * reward).sum(1) + cont_product[:, -1] * predictions[f"{INTERNAL_PREFIX}value"][
            :, -1
        ]
        return total


def action_probabilities(policy: JointDistribution) -> Tensor:
    """Return the probability of each class of an action ``[..., A]``, or its most likely value if continuous."""
    parts: list[Any] = []
    for part in policy.parts.values():
        if isinstance(part, Categoricals):
            parts += [part.probs[..., i, :count] for i, count in enumerate(part.classes)]
        else:
            parts.append(part.mode())
    return torch.cat(parts, -1)


def predicted_observations(predictions: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """Return the predicted observations by key; ``predictions`` have the names of ``Dreamer.dream``."""
    return {key: predictions[prediction_name(key)] for key in keys if prediction_name(key) in predictions}


def replace_classes(stoch: Tensor, classes: Mapping[int, Any] | np.ndarray) -> Tensor:
    """Return z ``[B, S, C]`` with replaced classes: of some latents by number, or of all ``[B, S]``."""
    count = stoch.shape[-1]
    if count == 1:
        raise DataError("the latents of this world model are numbers, without classes: replace stoch instead.")
    index = stoch.argmax(-1)  # [B, S]
    for latent, value in classes.items() if isinstance(classes, Mapping) else [(slice(None), classes)]:
        index[:, latent] = torch.as_tensor(value)
    return torch.nn.functional.one_hot(index, count).to(stoch.dtype)


def _broadcast_like(old: np.ndarray, new: ArrayLike) -> np.ndarray:
    """Return ``new`` with the shape and dtype of ``old``; the first axis may be missing."""
    return np.broadcast_to(np.asarray(new), old.shape).astype(old.dtype)


def state_to_latent(world: WorldModel, state: ModelState) -> Latent:
    """Return states as latents ``[B, ...]`` of ``world``, on its device."""
    like = world.rssm.initial(len(state.deter), world.dtype)
    return Latent(torch.from_numpy(state.deter).to(like.deter), torch.from_numpy(state.stoch).to(like.stoch))


def _broadcast_actions(player: Player, actions: ArrayLike, count: int) -> Tensor:
    """Return actions ``[T, A]`` or ``[B, T, A]`` as ``[B, T, A]`` on the agent's device."""
    width = player.action_spec.width
    flat = actions if isinstance(actions, Tensor) else torch.from_numpy(np.array(actions, np.float32))
    if flat.ndim not in (2, 3) or flat.shape[-1] != width or 0 in flat.shape or (flat.ndim == 3 and len(flat) != count):
        raise DataError(
            f"actions have shape {list(flat.shape)}: expected [T, {width}] or [{count}, T, {width}], as returned by "
            "agent.flatten_actions for the environment's actions."
        )
    return flat.to(player.algo.device, torch.float32).expand(count, -1, -1)


# ---------------------------------------------------------------- what an agent asks


class WorldModelMethods(Player):
    """Methods of :class:`~reverie.Agent` that need a world model."""

    def observe(self, batch: Batch, *, seed: int | None = None) -> ModelState:
        """Return the world model's state after the rows of a batch ``[B, T]``.

        The batch contains beginnings of episodes: ``agent.load_episode(0).slice_time(0, 20)``, or your own episodes
        (:meth:`make_episode`). If it starts later in an episode, the model observes it as if it were the beginning.
        ``seed``: for sampling the latents; None: derived from the run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
        """
        world = require_world_model(self).world
        with torch.no_grad(), seeded_rng(default_seed(self, seed)):
            post = world.observe(batch.to(self.algo.device))
        latent = world.rssm.most_likely(post.latent, post.stats)  # [B, T, ...]
        return ModelState(to_numpy(latent.deter[:, -1]), to_numpy(latent.stoch[:, -1]))

    def imagine(
        self, state: ModelState | AgentState, steps: int | None = None, *,
        actions: ArrayLike | None = None, deterministic: bool = True, seed: int | None = None,
    ) -> ImaginedTrajectory:  # fmt: skip
        """Imagine a trajectory from a state of the world model, which can be edited (:meth:`ModelState.replace`).

        Args:
            state: B states, from :meth:`observe`, :meth:`ImaginedTrajectory.state` or :meth:`act`.
            steps: T, the number of imagined steps (decisions of the policy). None: as many as there are ``actions``, or
                15.
            actions: actions to take, ``[T, A]`` or ``[B, T, A]`` in the format of rows (:meth:`flatten_actions`). None:
                the policy acts.
            deterministic: the policy takes its most likely actions. False: it samples them.
            seed: for sampling latents and actions; the same seed gives the same trajectory. None: derived from the
                run's seed.

        Raises:
            ConfigError: the algorithm has no world model.
            DataError: the actions have another shape.
        """
        inspector, act_mode, state = WorldModelInspector(self), policy_mode(deterministic), _model_state(state)
        fixed = None if actions is None else _broadcast_actions(self, actions, len(state.deter))  # [B, T, A]
        if steps is None:
            steps = STEPS if fixed is None else fixed.shape[1]
        start = state_to_latent(inspector.world, state)
        with torch.no_grad(), seeded_rng(default_seed(self, seed)):
            latents, action_list = inspector.imagine(
                start, steps, lambda t, latent: inspector.act(latent, act_mode) if fixed is None else fixed[:, t]
            )
            predictions = inspector.predict([start, *latents])
        return ImaginedTrajectory(
            observations=predicted_observations(predictions, self.obs_spec),
            rewards=predictions["reward"],
            continues=predictions["cont"],
            values=predictions[f"{INTERNAL_PREFIX}value"],
            actions=to_numpy(torch.stack(action_list, 1)),
            deter=predictions[f"{INTERNAL_PREFIX}deter"],
            # TD-MPC2 has no such prediction
            stoch=to_numpy(torch.stack([latent.stoch for latent in (start, *latents)], 1)),
            agent=self,
        )

    def probe(self, state: ModelState | AgentState, inputs: Mapping[str, Any] | None = None) -> dict[str, np.ndarray]:
        """Return the predictions of the probes (``algo.probe`` of DreamerV2 and V3) for states, by key, ``[B, ...]``.

        Vectors are in the observation's units ``[B, *shape]``; categorical observations are class probabilities ``[B,
        n, C]``. ``inputs``: additional inputs of the probes (``ProbeHead.inputs``), by key, ``[B, *shape]`` or without
        B; probes with missing inputs are omitted.

        Raises:
            ConfigError: the algorithm has no probes.
        """
        heads = _require_probe(self)
        feature = state_to_latent(require_world_model(self).world, _model_state(state)).feature
        with torch.no_grad():
            obs = _obs_to_tensors(self, inputs or {}, len(feature))
            keys = [key for key, needed in heads.given.items() if needed.keys() <= obs.keys()]
            return {key: to_numpy(prediction.value()) for key, prediction in heads(feature, obs, keys).items()}

    def steer(
        self, state: ModelState | AgentState, probe: Mapping[str, Any], inputs: Mapping[str, Any] | None = None, *,
        steps: int = 200, lr: float = 0.01,
    ) -> ModelState:  # fmt: skip
        """Return states with changed probe predictions, to imagine from: Adam optimizes h by gradient steps.

        The latents z do not change. To see whether the world model interprets such a state like the probe, continue the
        dream.

        Args:
            state: B states, as :meth:`imagine` takes them.
            probe: target predictions of the probes, by key, ``[B, *shape]`` or ``[*shape]``; classes as indices.
            inputs: inputs of these probes, as in :meth:`probe`.
            steps: number of gradient steps on -ln p of ``probe``.
            lr: learning rate, which is also the largest change of an element of h per step.

        Raises:
            ConfigError: the algorithm has no probes.
            DataError: the probe does not exist.
        """
        heads, state = _require_probe(self), _model_state(state)
        latent = state_to_latent(require_world_model(self).world, state)
        if unknown := probe.keys() - heads.parts.keys():
            raise DataError(f"there is no probe for {', '.join(unknown)}: expected some of {', '.join(heads.parts)}.")
        obs = _obs_to_tensors(self, {**(inputs or {}), **probe}, len(state.deter))
        deter = latent.deter.clone().requires_grad_()
        optim = torch.optim.Adam([deter], lr)
        with torch.enable_grad():
            for _ in range(steps):
                predictions = heads(latent._replace(deter=deter).feature, obs, probe)
                loss = torch.stack([prediction.loss(obs[key]).sum() for key, prediction in predictions.items()]).sum()
                (deter.grad,) = torch.autograd.grad(loss, deter)
                optim.step()
                deter.detach().clamp_(-1, 1)  # index of h in each cell
        return ModelState(to_numpy(deter), state.stoch)


def _model_state(state: ModelState | AgentState) -> ModelState:
    """Return the states of the world model in ``state``."""
    if isinstance(state, ModelState):
        return state
    latent = state.policy.latent
    return ModelState(to_numpy(latent.deter), to_numpy(latent.stoch))


def _require_probe(player: Player) -> Probe:
    """Return the agent's probes; ConfigError if it has none."""
    probe = getattr(player.algo, "probe", None)
    if not isinstance(probe, Probe):
        raise ConfigError(f"{player} has no probes: train DreamerV2 or V3 with algo.probe.heads.")
    return probe


def _obs_to_tensors(player: Player, values: Mapping[str, Any], count: int) -> dict[str, Tensor]:
    """Return observations by key as tensors ``[B, *shape]``."""
    tensors = {}
    for key, value in values.items():
        part = player.obs_spec[key]
        like = np.zeros((count, *part.shape), np.int64 if part.kind == "categorical" else np.float32)
        tensors[key] = torch.from_numpy(_broadcast_like(like, value)).to(player.algo.device)
    return tensors
