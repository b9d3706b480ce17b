"""Episodes of an agent in a Gymnasium environment, one step after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import deepcopy
from types import MappingProxyType
from typing import Any, NamedTuple

import gymnasium

from reverie.agent.player import Player
from reverie.core.masks import mask_in
from reverie.core.seeding import derived_seeds
from reverie.datasets.options import RecordConfig
from reverie.envs.interventions import POLICY, TAKEOVER, ExecutedActionReader
from reverie.envs.limits import own_limit
from reverie.envs.wrappers import checked_reset, checked_step, wrapper_stack

ChangeActionFn = Callable[[Any, Any], Any]
"""Returns the action to take instead of the agent's, given that and the learner's observation."""


class PlayedStep(NamedTuple):
    """The newest observation of an episode, and the step that led to it; the first has no step."""

    obs: Any
    """The environment's observation, in memory that it may reuse."""
    learner_obs: Any
    """The observation that a training environment would yield."""
    mask: Any
    """The action mask of ``obs``; None if there is none."""
    action: Any = None
    """The executed action, a copy."""
    reward: float = 0.0
    terminated: bool = False
    truncated: bool = False
    info: Mapping[Any, Any] = MappingProxyType({})
    is_takeover: bool = False
    """Whether a person took over from the policy."""


def play_episode(
    player: Player, env: gymnasium.Env[Any, Any], *, seed: int | None = None, options: dict[str, Any] | None = None,
    deterministic: bool = True, goal: Any = None, change: ChangeActionFn = lambda action, _: action,
) -> Iterator[PlayedStep]:  # fmt: skip
    """Yield the first observation of an episode, then each step once it is taken, until the episode ends.

    The agent acts when the caller asks for the next step. Masks, rendered frames, rewards and replaced actions are
    treated as in training. DataError if the environment violates Gymnasium's API.
    """
    observer, state = player.observer, None
    read_executed = ExecutedActionReader(
        env.action_space, wrapper_stack(env), keeps_filtered=player.config.env.filtered_action == "policy"
    )
    obs, info = checked_reset(env, seed, options)
    mask = observer.read_mask(env, info)
    yield (step := PlayedStep(obs, observer.to_learner_obs(obs, mask), mask, info=info))
    while not (step.terminated or step.truncated):
        chosen, state = player.turn(
            observer.raw_input(env, obs), step.reward, mask, state, deterministic=deterministic, goal=goal
        )
        action = change(chosen, step.learner_obs)
        if action is not chosen:
            state = player.override(state, action)
        executed = deepcopy(action)  # the environment may change it
        obs, reward, terminated, truncated, info = checked_step(env, action)
        replaced, actor = read_executed(info, mask_in(step.learner_obs))
        if actor != POLICY:
            state = player.override(state, executed := player.codec(replaced))
        mask = observer.read_mask(env, info, terminated, truncated)
        learner_obs = observer.to_learner_obs(obs, mask, terminated)
        step = PlayedStep(obs, learner_obs, mask, executed, reward, terminated, truncated, info, actor == TAKEOVER)
        yield step


def max_episode_steps(player: Player, env: gymnasium.Env[Any, Any]) -> int:
    """Return the steps after which an episode in ``env`` is cut off: never before its own time limit."""
    return max(player.episode_limit, own_limit(wrapper_stack(env)) or 0)


def first_seed(config: RecordConfig) -> int:
    """Return the seed of the first episode; later episodes use consecutive seeds."""
    return derived_seeds(config.seed)["test"] % 2**31
