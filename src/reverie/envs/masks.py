"""Sources of action masks in environments, and the wrapper that adds the observation ``action_mask``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.utils import RecordConstructorArgs
from gymnasium.vector.utils import batch_space, iterate
from gymnasium.wrappers import StickyAction

from reverie.core.errors import DataError, EnvError, format_error
from reverie.core.masks import MaskCodec, ensure_legal_choice, has_choices, mask_in
from reverie.core.obs_codec import default_key
from reverie.core.signals import is_interrupt
from reverie.core.spaces import Space
from reverie.core.specs import MASK_KEY
from reverie.envs.config import Env
from reverie.envs.make import ChangedError, SpacesOnlyEnv
from reverie.envs.wrappers import ActionRepeat, Reset, Stepped, checked_reset, checked_step, wrapper_stack

MASK_METHOD = "action_masks"
"""Name of the method of environments made for MaskablePPO."""
MAX_TRIES = 3
"""Maximum attempts of a reset to find out whether there are masks."""
MaskSource = Literal["observation", "method", "info", ""]


def _find_mask_source(env: Env) -> MaskSource:
    """Return the source of action masks in ``env``; "" if there is none. Resets ``env`` to read its info."""
    if not has_choices(env.action_space):
        return ""
    if isinstance(env.observation_space, spaces.Dict) and MASK_KEY in env.observation_space.spaces:
        return "observation"
    if env.has_wrapper_attr(MASK_METHOD) and callable(env.get_wrapper_attr(MASK_METHOD)):
        return "method"
    return "" if isinstance(env.unwrapped, SpacesOnlyEnv) else _look_at_info(env)


def _look_at_info(env: Env) -> MaskSource:
    """Return the source of action masks in the first info of ``env``, which has neither a space nor a method for them.

    If every reset fails, the result is ""; the error is raised again when an episode begins.
    """
    for _ in range(MAX_TRIES):
        try:
            return "info" if mask_in(checked_reset(env, None)[1]) is not None else ""
        except BaseException as error:
            if is_interrupt(error):
                raise
    return ""


def read_mask(
    env: Env, source: MaskSource, info: Mapping[str, Any], terminated: bool = False, truncated: bool = False
) -> Any:
    """Return the action mask of ``env`` for its latest observation; None if there is none.

    The method of a game that is over may raise an error: there is no mask of a terminal row. ChangedError in a row that
    is only truncated, from whose legal actions learners bootstrap.
    """
    if source != "method":
        return mask_in(info)
    try:
        return env.get_wrapper_attr(MASK_METHOD)()
    except Exception as error:
        if terminated:
            return None
        if truncated:
            raise ChangedError(
                f"{MASK_METHOD}() failed in a truncated row with {format_error(error)}. Learners bootstrap from this "
                "row, so it needs its mask. Return it there, too, or terminated = True where the game is over"
            ) from error
        raise


def with_mask(env: Env) -> Env:
    """Return ``env`` with its action mask, if it has one, as an observation."""
    if not (source := _find_mask_source(env)):
        return env
    for layer in wrapper_stack(env):
        if isinstance(layer, ActionRepeat | StickyAction):
            raise EnvError(
                f"the environment has action masks, and {type(layer).__name__} repeats actions, which can become "
                f"illegal in between. Remove the repeats, or the masks: env.exclude_keys = {MASK_KEY}."
            )
    return ActionMask(env, source)


class ActionMask(gymnasium.Wrapper[Any, Any, Any, Any], RecordConstructorArgs):
    """Adds or replaces the observation ``action_mask``: a flag for each element of the flat action."""

    def __init__(self, env: Env, source: MaskSource) -> None:
        RecordConstructorArgs.__init__(self, source=source)
        gymnasium.Wrapper.__init__(self, env)
        self.source = source
        """The source of the mask in the environment."""
        self.codec: MaskCodec = MaskCodec(env.action_space)
        inner: Any = env.observation_space
        flags = spaces.MultiBinary(self.codec.spec.width)
        self.observation_space = spaces.Dict({**_parts(inner, getattr(inner, "spaces", inner)), MASK_KEY: flags})

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Reset:
        obs, info = checked_reset(self.env, seed, options)
        return self.observation(obs, read_mask(self.env, self.source, info)), info

    def step(self, action: object) -> Stepped:
        obs, reward, terminated, truncated, info = checked_step(self.env, action)
        mask = read_mask(self.env, self.source, info, terminated, truncated)
        return self.observation(obs, mask, terminated), reward, terminated, truncated, info

    def observation(
        self, obs: object, mask: Any = None, terminal: bool = False, count: int | None = None
    ) -> dict[str, Any]:
        """Return ``obs`` with its mask. ``mask``: the mask from the info or the method.

        ``terminal``: without a mask, or a legal action, all actions are legal. ``count``: the number of observations
        and masks of a vector environment.
        """
        raw_mask = mask_in(obs) if self.source == "observation" else mask
        if raw_mask is None and not terminal:
            reason = f"although the environment provided it in its {self.source} earlier"
            raise DataError(f"{MASK_KEY} is missing, {reason}. Provide it in every step, also at time limits")
        if count is not None:
            if self.source == "observation" and not isinstance(raw_mask, np.ndarray):
                raw_mask = iterate(batch_space(self.env.observation_space[MASK_KEY], count), raw_mask)  # type: ignore[index]  # a Dict
            legal = ensure_legal_choice(self.codec.batch(raw_mask), self.codec.spec, terminal, first=0)
        else:
            legal = np.ones(self.codec.spec.width, bool) if raw_mask is None else self.codec(raw_mask)
            legal = ensure_legal_choice(legal, self.codec.spec, terminal)
        return {**_parts(self.env.observation_space, obs), MASK_KEY: legal.astype(np.int8)}


def _parts(space: Space, value: Any) -> dict[str, Any]:
    """Return the parts of an observation, or of its space, by their keys without the mask."""
    if isinstance(space, spaces.Dict):
        parts = value if isinstance(value, Mapping) else {}
        # some observations can be missing for agents
        return {name: parts[name] for name in space.spaces if name in parts}
    if isinstance(space, spaces.Tuple):
        return {str(index): value[index] for index in range(len(space.spaces))}
    return {default_key(space): value}
