"""N environments on a device, whose rows are tensors there (``Env``): no row passes through the host."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NoReturn

import gymnasium
import numpy as np
import torch
from torch import Tensor

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import (
    ActionError,
    ConfigError,
    DataError,
    EnvError,
    short_repr,
)
from reverie.core.masks import check_mask_shape, ensure_legal_choice, has_choices, refuse_info_mask
from reverie.core.obs_codec import ObsCodec
from reverie.core.specs import MASK_KEY, SUCCESS_RATE, ActionSpec, ObsSpec
from reverie.core.types import ExecutedActions, State, Step
from reverie.envs.config import EnvConfig, Mark, marked, settings_text
from reverie.envs.interventions import FINAL_INFO, IS_INTERVENTION, KEYS, find_keys, is_of_takeover, name_keys
from reverie.envs.make_native_vector import add_batch_axis
from reverie.envs.suites import RANDOM_START, package_versions
from reverie.envs.tensor_codec import ObsRangeCheck, TensorObsCodec, action_decoder, action_encoder
from reverie.envs.tensor_vector import TensorRows, TensorVector, VectorRows, call_vector, map_tensors
from reverie.envs.wrappers import find_instances


class DeviceVectorEnv(VectorRows):
    """The rows of a ``TensorVector``; satisfies ``core.protocols.Env`` and ``DeviceEnv``.

    Rows are as in ``SlotVectorEnv``, on ``device``, and read only. Nothing is read from the device, so that values are
    checked only by :meth:`check`: collectors call it once for each rollout. The rules are those of arrays.
    """

    def __init__(self, vector: TensorVector, config: EnvConfig, seed: int, warns: bool = True) -> None:
        """``warns``: warn about observations outside of their space, which are used unchanged.

        Raises ConfigError if ``config`` has settings that need single environments.
        """
        _check_device_settings(config)
        self.vector = vector
        self._seed: int | None = seed
        codec = ObsCodec(vector.observation_space, config.uses_key, config.channel_axis)
        self.num_envs: int = vector.num_envs
        self.device: torch.device = torch.device(vector.device)
        self.obs_spec: ObsSpec = codec.spec
        self.action_spec: ActionSpec = ActionCodec(vector.action_space).spec
        check_mask_shape(self.obs_spec, self.action_spec)
        self.can_end_one: bool = self.num_envs == 1
        self.max_episode_steps: int | None = vector.max_episode_steps
        self.frames_per_action: int = getattr(vector, "frames_per_action", 1)
        self.packages: dict[str, str] = getattr(vector, "packages", None) or package_versions(vector)
        self.instances: set[int] = find_instances(getattr(vector, "vector", vector))
        self._range_check = ObsRangeCheck(codec, warns)
        self._encode = TensorObsCodec(codec, self.device, config.channel_axis, self._range_check.add)
        self._decode = action_decoder(vector.action_space, self.device)
        self._shown: Step | None = None
        has_no_mask = MASK_KEY not in self.obs_spec and config.uses_key(MASK_KEY)
        self._refuses_masks = has_no_mask and has_choices(vector.action_space)
        self._choices = [cut for _, cut in self.action_spec.categorical_slices()]
        self._hidden_masks: Tensor | None = None
        self._keeps_filtered = config.filtered_action == "policy"
        self._encode_action = action_encoder(vector.action_space, self.device)
        self.executed_keys: tuple[str, str] | None = None
        """The keys of the executed action and its flag in infos, "" if they have none; None before the first step."""
        self.executed_actions: ExecutedActions | None = None
        self._restart_checks()
        self.success: Tensor | None = None
        """Whether each environment has reached its goal in the current rows, ``[N]``; None: unknown."""
        self.exact_rewards: np.ndarray = np.zeros(0)

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes. Without a ``seed`` the random numbers continue, from the seed of ``__init__``."""
        seed, self._seed = self._seed if seed is None else seed, None
        self._must_reset = False
        rows = call_vector(self.vector.reset, seed)
        self._shown = self.executed_actions = None
        return self._show(rows, torch.ones(self.num_envs, dtype=torch.bool, device=self.device))

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``.

        That of an ``is_last`` row is ignored: zeros are taken, or the first legal classes, if the step is hidden.
        """
        if action.shape != (self.num_envs, self.action_spec.width):
            expected = f"[N, A] = {[self.num_envs, self.action_spec.width]}"
            raise DataError(f"the action has shape {list(action.shape)}: expected {expected}.")
        if self._must_reset or self._shown is None:
            return self.reset()
        first = self._shown.is_last
        flat = action.detach().to(self.device, torch.float32).masked_fill(first.unsqueeze(1), 0.0)
        self._finite_actions.add_(flat, alpha=0)
        if self._hidden_masks is not None:
            for cut in self._choices:
                flat[:, cut] = self._hidden_masks[:, cut].where(first.unsqueeze(1), flat[:, cut])
        rows = call_vector(self.vector.step, self._decode(flat))
        self.executed_actions = self._read_executed_actions(name_keys(rows.info), first, rows.last)
        return self._show(rows, first)

    def _read_executed_actions(self, info: Mapping[Any, Any], first: Tensor, last: Tensor) -> ExecutedActions | None:
        """Return what the ``info`` of a step says, which every step says or none, as nothing waits for the device."""
        key, flag = keys = find_keys(info) or ("", "")
        self.executed_keys = self.executed_keys or keys
        if keys != self.executed_keys or (not key and IS_INTERVENTION in info):
            keys_text = ", ".join(sorted(KEYS & info.keys())) or "none"
            raise DataError(
                f"keys of executed actions in the info of this step: {keys_text}. Expected the same in every step, an "
                f"action and, of takeovers, {IS_INTERVENTION}, as tensors [N, ...]; or never any."
            )
        if not key or (self._keeps_filtered and not is_of_takeover(key, flag)):
            return None
        final = name_keys(info.get(FINAL_INFO) or {})
        try:
            flat, fits = self._encode_action(info[key], self.num_envs)
            is_replaced = self._read_flag(info[flag]) if flag else torch.ones_like(fits)
            if key in final:  # the info is of the reset where an episode has ended
                ends, ends_fit = self._encode_action(final[key], self.num_envs)
                flat, fits = torch.where(last[:, None], ends, flat), torch.where(last, ends_fit, fits)
                is_replaced = torch.where(last, self._read_flag(final.get(flag)), is_replaced) if flag else is_replaced
        except DataError as error:
            raise DataError(f"info['{key}'] {error}, an action of {self.vector.action_space} of each.") from None
        is_replaced = is_replaced & ~first
        self._fitting_actions &= (fits | ~is_replaced).all()
        if self._shown is not None and MASK_KEY in self._shown.obs:
            for cut in self._choices:
                is_legal = (flat[:, cut] <= self._shown.obs[MASK_KEY][:, cut]).all(1)
                self._fitting_actions &= (is_legal | ~is_replaced).all()
        has_takeovers = is_of_takeover(key, flag)
        is_takeover = is_replaced if has_takeovers else torch.zeros_like(is_replaced)
        return ExecutedActions(flat, is_replaced, is_takeover, has_takeovers)

    def _read_flag(self, x: object) -> Tensor:
        if not isinstance(x, Tensor) or x.shape != (self.num_envs,) or x.dtype is not torch.bool:
            raise DataError(f"comes with a flag {short_repr(x)}; expected a tensor [{self.num_envs}] of bool")
        return x.to(self.device)

    def _show(self, rows: TensorRows, first: Tensor) -> Step:
        self._check_rows(rows)
        if self._refuses_masks and rows.info:
            refuse_info_mask(rows.info)
        obs, reward = self._encode(rows.obs, self.num_envs), rows.reward.float()
        before, self.success = self._shown, rows.success
        if before is not None:
            columns = [(before.reward, reward), (before.is_last, rows.last), (before.is_terminal, rows.terminal)]
            columns += [(before.obs[key], x) for key, x in obs.items() if x.numel()]
            if any(old.data_ptr() == x.data_ptr() for old, x in columns):
                raise DataError(
                    "the values of a step are in the memory of those of the step before, which they overwrite. "
                    "Return new tensors from step(), such as obs.clone()."
                )
        if MASK_KEY in obs:
            obs[MASK_KEY] = self._with_choice(obs[MASK_KEY], rows.terminal)
            self._hidden_masks = None if rows.hidden_masks is None else (rows.hidden_masks != 0).flatten(1).float()
        self._shown = Step(obs=obs, reward=reward, is_first=first, is_last=rows.last, is_terminal=rows.terminal)
        return self._shown

    def _with_choice(self, mask: Tensor, terminal: Tensor) -> Tensor:
        """Return the mask ``[N, A]`` with all classes legal in choices that have none, as terminal rows may show."""
        out = mask.clone()
        for cut in self._choices:
            has_choice = mask[:, cut].any(1)
            out[:, cut] |= ~has_choice.unsqueeze(1)
            self._legal_choices[cut] &= (has_choice | terminal).all()
        return out

    def _check_rows(self, rows: TensorRows) -> None:
        """Raise DataError for wrong shapes, dtypes or devices, which are known without waiting for the device."""
        for name, x in (("reward", rows.reward), ("last", rows.last), ("terminal", rows.terminal)):
            is_flag = name != "reward"
            if x.shape != (self.num_envs,) or (x.dtype is torch.bool) != is_flag or x.device.type != self.device.type:
                kind = "bool" if is_flag else "numbers"
                raise DataError(
                    f"{name} is {list(x.shape)} of {x.dtype} on {x.device}: expected [{self.num_envs}] {kind} on "
                    f"{self.device}."
                )

    def _restart_checks(self) -> None:
        shape = self.num_envs, self.action_spec.width
        self._finite_actions = torch.zeros(shape, device=self.device)  # NaN, where an action was not finite
        self._legal_choices = torch.ones(shape[1], dtype=torch.bool, device=self.device)  # [A]
        self._fitting_actions = torch.ones(1, dtype=torch.bool, device=self.device)  # executed instead of the policy's

    def check(self) -> None:
        """Raise the errors that are known only on the device, for which this waits.

        ActionError: an action was not finite; DataError: an observation or an executed action does not fit its space;
        the vector's errors.
        """
        columns = [self._finite_actions.isfinite().all(1), self._fitting_actions, self._legal_choices]
        flags = torch.cat(columns).numpy(force=True)
        finite, fits, legal = flags[: self.num_envs], flags[self.num_envs], flags[self.num_envs + 1 :]
        self._restart_checks()
        if not finite.all():
            raise ActionError(f"the action for environment {int(finite.argmin())} is not finite: expected numbers.")
        if not fits:
            raise DataError(
                "an executed action in the info of a step is not finite, beyond its bounds, no class, or forbidden by "
                f"the action mask: expected a legal action of {self.vector.action_space}."
            )
        check: Callable[[], None] | None = getattr(self.vector, "check", None)
        if check is not None:
            check()
        ensure_legal_choice(legal, self.action_spec, terminal=False)
        self._range_check()

    @property
    def episode_info(self) -> dict[int, dict[str, float]]:
        """The success of the episodes that end with the current rows, by environment. Waits for the device."""
        if self.success is None or self._shown is None:
            return {}
        flags = self.success.tolist()
        return {i: {SUCCESS_RATE: float(flags[i])} for i in self._shown.is_last.nonzero().flatten().tolist()}

    def state_dict(self) -> State | None:
        """Return the state of the environments as named tensors; None if they cannot be saved."""
        return self.vector.state_dict()

    def load_state_dict(self, state: Mapping[str, Tensor], step: Step) -> None:
        """Continue from a saved state, when ``step`` were the current rows."""
        self.vector.load_state_dict(state)
        self._shown = step

    def call(self, name: str, *args: object, **kwargs: object) -> NoReturn:
        """Raise EnvError: these environments are no objects."""
        raise EnvError(f"environments on a device have no method '{name}' that could be called.")

    def set_attr(self, name: str, value: object) -> NoReturn:
        """Raise EnvError: these environments are no objects."""
        raise EnvError(f"environments on a device have no attribute '{name}' that could be set.")

    def render(self) -> None:
        """Return None: environments on a device are not rendered."""

    def close(self) -> None:
        self.vector.close()


class TensorVectorOfOne(gymnasium.Env[Any, Any]):
    """A vector of one as a single environment, whose spaces agents read, and which they can play."""

    def __init__(self, vector: TensorVector) -> None:
        self.vector = vector
        self.observation_space: gymnasium.Space[Any] = vector.observation_space
        self.action_space: gymnasium.Space[Any] = vector.action_space
        self.max_episode_steps: int | None = vector.max_episode_steps

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return to_numpy(self.vector.reset(seed).obs), {}

    def step(self, action: object) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        rows = self.vector.step(
            map_tensors(lambda x: torch.from_numpy(x).to(self.vector.device), add_batch_axis(action))
        )
        terminal = bool(rows.terminal[0])
        return to_numpy(rows.obs), float(rows.reward[0]), terminal, bool(rows.last[0]) and not terminal, {}

    def close(self) -> None:
        self.vector.close()


def to_numpy(obs: object) -> Any:
    """Return the observation of the first environment as arrays."""
    return map_tensors(lambda x: x[0].numpy(force=True), obs)


def make_jax_vector(config: EnvConfig, num: int, device: str) -> TensorVector:
    """Make ``num`` environments of one of ``suites.JAX_SUITES``."""
    _check_device_settings(config)
    from reverie.envs.jax_suites import make_task  # it imports JAX, which is optional
    from reverie.envs.jax_vector import JaxVector

    kwargs = dict(config.kwargs)
    random_start = bool(kwargs.pop(RANDOM_START, False))
    return JaxVector(make_task(config.id, kwargs), num, device, random_start=random_start)


def _check_device_settings(config: EnvConfig) -> None:
    """Raise ConfigError if ``config`` has settings that environments on a device cannot apply."""
    wrong = config.changed(marked(Mark.SINGLE, Mark.HOST))
    wrong |= {"vectorization": "async"} if config.vectorization == "async" else {}
    if wrong:
        advice = " Frames are stacked by algo.frame_stack." if "frame_stack" in wrong else ""
        text = f"{settings_text(wrong)}: not supported by environments on a device"
        raise ConfigError(f"{text}. Remove {', '.join(wrong)}.{advice}")
