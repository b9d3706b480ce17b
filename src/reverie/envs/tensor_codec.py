"""``ObsCodec`` and ``ActionCodec`` for tensors of N environments on a device: the same numbers, without leaving it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from reverie.core.action_codec import BOUND_TOLERANCE, ActionCodec, unflatten_fn
from reverie.core.errors import ActionError, DataError, EnvError, short_repr
from reverie.core.masks import check_mask_shape, ensure_legal_choice
from reverie.core.obs_codec import Leaf, ObsCodec
from reverie.core.obs_conversion import ChannelAxis, channel_bounds, is_channels_first
from reverie.core.spaces import Space, classes_of, get_at_path, iter_leaves
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec
from reverie.core.types import ExecutedActions, Obs
from reverie.envs.config import EnvConfig
from reverie.envs.interventions import FINAL_INFO, IS_INTERVENTION, KEYS, find_keys, is_of_takeover, name_keys
from reverie.envs.limits import LimitCheck, declared_bounds
from reverie.envs.make_native_vector import check_device_settings
from reverie.envs.tensor_vector import TensorRows, TensorVector

TensorFn = Callable[[Tensor], Tensor]


class TensorCodec:
    """Converts the rows of a vector of tensors; satisfies ``RowCodec``. They are read only.

    Nothing is read from the device, so that values are checked only by :meth:`check`: collectors call it once for each
    rollout. The rules are those of arrays.
    """

    defers: bool = True

    def __init__(self, vector: TensorVector, config: EnvConfig, warns: bool = True) -> None:
        """``warns``: warn about observations outside of their space, which are used unchanged.

        Raises ConfigError if ``config`` has settings that need single environments.
        """
        check_device_settings(config)
        self._vector = vector
        self._num, self._device = vector.num_envs, torch.device(vector.device)
        codec = ObsCodec(vector.observation_space, config.uses_key, config.channel_axis)
        self.obs_spec: ObsSpec = codec.spec
        self.action_spec: ActionSpec = ActionCodec(vector.action_space).spec
        check_mask_shape(self.obs_spec, self.action_spec)
        self._leaves = [(leaf, _encoder(leaf, self._device, config.channel_axis)) for leaf in codec.leaves]
        self._range_check = ObsRangeCheck(codec, warns)
        self._decode_action = action_decoder(vector.action_space, self._device)
        self._encode_action = _action_encoder(vector.action_space, self._device)
        self._choices = [cut for _, cut in self.action_spec.categorical_slices()]
        self._keeps_filtered = config.filtered_action == "policy"
        self.executed_keys: tuple[str, str] | None = None
        """The keys of the executed action and its flag in infos, "" if they have none; None before the first step."""
        self._seen: Obs = {}  # the newest observations
        self._restart_checks()

    def decode(self, action: Tensor) -> Any:
        if action.shape != (self._num, self.action_spec.width):
            expected = f"[N, A] = {[self._num, self.action_spec.width]}"
            raise DataError(f"the action has shape {list(action.shape)}: expected {expected}.")
        flat = action.detach().to(self._device, torch.float32)
        self._finite_actions.add_(flat, alpha=0)
        return self._decode_action(flat)

    def encode(self, rows: TensorRows) -> tuple[Obs, Tensor, Tensor]:
        """Return the observations and the rewards; DataError for missing parts, wrong shapes, and reused memory."""
        self._check_rows(rows)
        obs = {leaf.key: self._encode_leaf(leaf, encode, rows.obs) for leaf, encode in self._leaves}
        before, self._seen = self._seen, obs
        if any(x.numel() and x.data_ptr() == before[key].data_ptr() for key, x in obs.items() if before):
            raise DataError(
                "the observations of a step are in the memory of those of the step before, which they overwrite. "
                "Return new tensors from step(), such as obs.clone()."
            )
        if MASK_KEY in obs:
            obs[MASK_KEY] = self._with_choice(obs[MASK_KEY], rows.terminal)
            if rows.hidden_masks is not None:
                self._with_choice(rows.hidden_masks.flatten(1) != 0, torch.zeros_like(rows.terminal))
        reward = rows.reward.float()
        self._fits[1] &= reward.isfinite().all()
        return obs, reward, rows.reward

    def _encode_leaf(self, leaf: Leaf, encode: TensorFn, obs: object) -> Tensor:
        try:
            x = get_at_path(obs, leaf.path)
        except DataError as error:
            raise DataError(f"observation '{leaf.key}' {error}") from None
        shape = [self._num, *(leaf.space.shape or ())]
        if not isinstance(x, Tensor) or list(x.shape) != shape:
            actual = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
            raise DataError(f"observation '{leaf.key}' is {actual}: expected a tensor {shape}, [N, *shape].")
        if x.is_floating_point() and leaf.part.kind != "vector" and np.issubdtype(leaf.space.dtype, np.integer):
            expected = f"{leaf.space.dtype}, as its space declares"
            raise DataError(f"observation '{leaf.key}' is of {x.dtype}: expected {expected}.")
        self._range_check.add(leaf, x)
        return encode(x)

    def read_executed(self, rows: TensorRows, first: Tensor, legal: Tensor | None) -> ExecutedActions | None:
        """Return what the info of a step says, which every step says or none, as nothing waits for the device."""
        info, last = name_keys(rows.info), rows.last
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
            flat, fits = self._encode_action(info[key], self._num)
            is_replaced = self._read_flag(info[flag]) if flag else torch.ones_like(fits)
            if key in final:  # the info is of the reset where an episode has ended
                ends, ends_fit = self._encode_action(final[key], self._num)
                flat, fits = torch.where(last[:, None], ends, flat), torch.where(last, ends_fit, fits)
                is_replaced = torch.where(last, self._read_flag(final.get(flag)), is_replaced) if flag else is_replaced
        except DataError as error:
            raise DataError(f"info['{key}'] {error}, an action of {self._vector.action_space} of each.") from None
        is_replaced = is_replaced & ~first
        for cut in self._choices if legal is not None else ():
            fits = fits & (flat[:, cut] <= legal[:, cut]).all(1)  # type: ignore[index]  # checked in the line above
        self._fits[0] &= (fits | ~is_replaced).all()
        has_takeovers = is_of_takeover(key, flag)
        is_takeover = is_replaced if has_takeovers else torch.zeros_like(is_replaced)
        return ExecutedActions(flat, is_replaced, is_takeover, has_takeovers)

    def _read_flag(self, x: object) -> Tensor:
        if not isinstance(x, Tensor) or x.shape != (self._num,) or x.dtype is not torch.bool:
            raise DataError(f"comes with a flag {short_repr(x)}; expected a tensor [{self._num}] of bool")
        return x.to(self._device)

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
            if x.shape != (self._num,) or (x.dtype is torch.bool) != is_flag or x.device.type != self._device.type:
                kind = "bool" if is_flag else "numbers"
                raise DataError(
                    f"{name} is {list(x.shape)} of {x.dtype} on {x.device}: expected [{self._num}] {kind} on "
                    f"{self._device}."
                )

    def _restart_checks(self) -> None:
        shape = self._num, self.action_spec.width
        self._finite_actions = torch.zeros(shape, device=self._device)  # NaN, where an action was not finite
        self._legal_choices = torch.ones(shape[1], dtype=torch.bool, device=self._device)  # [A]
        self._fits = torch.ones(2, dtype=torch.bool, device=self._device)  # executed actions, and rewards

    def check(self) -> None:
        columns = [self._finite_actions.isfinite().all(1), self._fits, self._legal_choices]
        flags = torch.cat(columns).numpy(force=True)
        finite, (fits, is_finite), legal = np.split(flags, [self._num, self._num + 2])
        self._restart_checks()
        if not finite.all():
            raise ActionError(f"the action for environment {int(finite.argmin())} is not finite: expected numbers.")
        if not fits:
            raise DataError(
                "an executed action in the info of a step is not finite, beyond its bounds, no class, or forbidden by "
                f"the action mask: expected a legal action of {self._vector.action_space}."
            )
        if not is_finite:
            raise DataError("a reward is NaN or infinite: expected finite float32 numbers.")
        check: Callable[[], None] | None = getattr(self._vector, "check", None)
        if check is not None:
            check()
        ensure_legal_choice(legal, self.action_spec, terminal=False)
        self._range_check()


class ObsRangeCheck:
    """Checks observations on a device as arrays are checked, without waiting for each step.

    It keeps the smallest and the largest value of each number, which the host checks when it is called.
    """

    def __init__(self, codec: ObsCodec, warns: bool) -> None:
        """``warns``: warn about values outside of their space, which are used unchanged."""
        self._check_limits = LimitCheck(declared_bounds(codec) if warns else {})
        self._ranges: dict[str, tuple[Leaf, Tensor, Tensor]] = {}
        self._any_byte = {leaf.key for leaf in codec.leaves if _declares_any_byte(leaf.space)}

    def add(self, leaf: Leaf, x: Tensor) -> None:
        """Add values ``[N, *shape]`` of a leaf."""
        if (x.dtype is torch.uint8 and leaf.key in self._any_byte) or (x.dtype is torch.bool and leaf.key == MASK_KEY):
            return
        x = x if x.is_floating_point() or x.dtype is torch.int64 else x.int()  # the others can lack a minimum
        if (known := self._ranges.get(leaf.key)) is None:
            self._ranges[leaf.key] = leaf, x.clone(), x.clone()
        else:
            torch.minimum(known[1], x, out=known[1])
            torch.maximum(known[2], x, out=known[2])

    def __call__(self) -> None:
        """Check all values so far; DataError if an array of them would be refused. Waits for the device."""
        ranges, self._ranges, rows = self._ranges, {}, dict[str, np.ndarray]()
        for leaf, low, high in ranges.values():
            values = torch.stack([low.amin(0), high.amax(0)])
            values = values.float() if values.dtype is torch.bfloat16 else values
            try:
                rows[leaf.key] = leaf.encode(values.numpy(force=True), 1)
            except DataError as error:
                raise DataError(f"an environment: observation '{leaf.key}' {error}.") from None
        if rows:
            self._check_limits.check(rows, lambda _: "an environment")


def _declares_any_byte(space: Space) -> bool:
    """Return whether all numbers of the dtype uint8 are in ``space``, as images usually declare."""
    return isinstance(space, spaces.Box) and bool((space.low <= 0).all() and (space.high >= 255).all())


def _encoder(leaf: Leaf, device: torch.device, channel_axis: ChannelAxis) -> TensorFn:
    """Return the function from values ``[N, *leaf.space.shape]`` to ``[N, *leaf.part.shape]``."""
    part, space = leaf.part, leaf.space
    if part.kind == "mask":
        return lambda x: x.flatten(1) != 0
    if part.kind == "vector":
        return Tensor.float
    if isinstance(space, spaces.Text):
        raise EnvError(f"observation '{leaf.key}' is text, which is not supported on a device. Exclude it.")
    if part.kind in ("categorical", "player"):
        start = torch.from_numpy(np.array(classes_of(space)[1], np.int64)).to(device)
        return (lambda x: x.long() - start) if start.any() else Tensor.long
    return _image_encoder(leaf, device, channel_axis)


def _image_encoder(leaf: Leaf, device: torch.device, channel_axis: ChannelAxis) -> TensorFn:
    part, space = leaf.part, leaf.space
    assert space.shape is not None
    rank, is_first = len(space.shape), is_channels_first(space.shape, channel_axis)
    dtype = torch.uint8 if part.dtype == "uint8" else torch.float32
    arrays = _pixel_scale(leaf, is_first)
    scale = None if arrays is None else [torch.from_numpy(np.asarray(x)).to(device) for x in arrays]

    def encode(x: Tensor) -> Tensor:
        if scale is not None:
            x = (x.double() - scale[0]) * scale[1]
            x = x.round() if dtype is torch.uint8 else x
        x = x.to(dtype)
        if rank == 2:
            return x.unsqueeze(-1)
        x = x.movedim(-3, -1) if is_first else x  # [..., H, W, C]
        return x if rank == 3 else x.movedim(-4, -2).reshape(len(x), *part.shape)

    return encode


def _pixel_scale(leaf: Leaf, is_first: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the lowest pixels and the factors of the map to the learner's pixels; None if it changes nothing."""
    space: Any = leaf.space if isinstance(leaf.space, spaces.Box) else spaces.Box(0, 1, leaf.space.shape, np.uint8)
    rank = len(space.shape)
    bounds = channel_bounds(space, rank - 3 if is_first else rank - 1) if rank > 2 else None
    if bounds is None:
        if leaf.part.dtype == "float32":
            return None
        bounds = np.float64(space.low.min()), np.float64(space.high.max())  # type: ignore[assignment]  # of rank 0
    assert bounds is not None
    low, high = bounds
    factor = (leaf.part.high - leaf.part.low) / np.where(high > low, high - low, 1.0)
    return None if (low == 0).all() and (factor == 1).all() else (low, factor)


def action_decoder(space: Space, device: torch.device) -> Callable[[Tensor], Any]:
    """Return the function from flat actions ``[N, A]`` to tensors ``[N, *shape]``, nested as the action ``space``."""
    cuts = ActionCodec(space).spec.slices()
    leaves = {
        path: (cuts["/".join(map(str, path)) or "action"], _decoder(leaf, device)) for path, leaf in iter_leaves(space)
    }
    return unflatten_fn(space, leaves)


def _action_encoder(space: Space, device: torch.device) -> Callable[[Any, int], tuple[Tensor, Tensor]]:
    """Return the inverse of :func:`action_decoder`, for N actions: flat ones ``[N, A]``, and which fit, ``[N]`` bool.

    Numbers beyond their bounds are clipped. DataError for wrong shapes; nothing waits for the device.
    """
    leaves = sorted(("/".join(map(str, path)) or "action", path, leaf) for path, leaf in iter_leaves(space))
    encoders = [(path, leaf, _encode_numbers(leaf, device) if isinstance(leaf, spaces.Box) else
                 _encode_classes(leaf, device)) for _, path, leaf in leaves]  # fmt: skip

    def encode(action: object, num: int) -> tuple[Tensor, Tensor]:
        parts = []
        for path, leaf, encode_leaf in encoders:
            x, shape = get_at_path(action, path), [num, *(leaf.shape or ())]
            if not isinstance(x, Tensor) or list(x.shape) != shape:
                actual = list(x.shape) if isinstance(x, Tensor) else type(x).__name__
                raise DataError(f"is {actual}; expected a tensor {shape}, [N, *shape]")
            parts.append(encode_leaf(x.to(device).reshape(num, -1)))
        return torch.cat([flat for flat, _ in parts], 1), torch.stack([fits for _, fits in parts]).all(0)

    return encode


def _encode_numbers(space: spaces.Box, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    low, high = (bound.reshape(-1).astype(np.float64) / 2.0 for bound in (space.low, space.high))
    middle, half = (torch.from_numpy(x).to(device) for x in (low + high, np.where(high > low, high - low, 1.0)))

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        unit = (x.double() - middle) / half
        return unit.clamp(-1.0, 1.0).float(), (unit.abs() <= 1.0 + BOUND_TOLERANCE).all(1)  # also false for NaN

    return encode


def _encode_classes(space: Space, device: torch.device) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    counts, start = (array.reshape(-1) for array in classes_of(space))
    first = torch.from_numpy(np.asarray(start, np.int64)).to(device)
    widths = [*map(int, counts)]

    def encode(x: Tensor) -> tuple[Tensor, Tensor]:
        flags = [column.unsqueeze(1) == torch.arange(n, device=device)
                 for column, n in zip((x - first).unbind(1), widths, strict=True)]  # fmt: skip
        return torch.cat(flags, 1).float(), torch.stack([part.any(1) for part in flags]).all(0)

    return encode


def _decoder(space: Space, device: torch.device) -> TensorFn:
    if isinstance(space, spaces.Box):
        return _unscale_fn(space, device)
    counts, start = classes_of(space)
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    widths, first = [*map(int, counts.reshape(-1))], torch.from_numpy(np.asarray(start, np.int64)).to(device)

    def decode(flat: Tensor) -> Tensor:
        chosen = (
            torch.stack([part.argmax(-1) for part in torch.split(flat, widths, -1)], -1)
            if counts.shape
            else flat.argmax(-1)
        )
        return (chosen.view(len(flat), *counts.shape) + first).to(dtype)

    return decode


def _unscale_fn(space: spaces.Box, device: torch.device) -> TensorFn:
    dtype = torch.from_numpy(np.empty(0, space.dtype)).dtype
    exact = torch.float32 if dtype is torch.float32 else torch.float64
    low, high = (torch.from_numpy(bound.astype(np.float64)) for bound in (space.low, space.high))
    bounds = [x.to(device, exact) for x in ((high - low) / 2, (high + low) / 2, low, high)]
    half, middle, least, largest = bounds

    def unscale(flat: Tensor) -> Tensor:
        values = flat.clamp(-1, 1).view(len(flat), *space.shape).to(exact) * half + middle
        return (values if dtype.is_floating_point else values.round()).clamp(least, largest).to(dtype)

    return unscale
