"""Preprocessing of rows for networks: vectors are normalized, frames stacked, rewards scaled.

Stored rows and scores keep the original values. Preprocessing is applied to batches in learning and to observations in
acting, with the same statistics.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.core.collectives import is_distributed
from reverie.core.errors import ConfigError, DataError
from reverie.core.kernel_dispatch import accelerated
from reverie.core.protocols import Inspectable, Memoryless, Policy, RunningStatistics, ScheduledPolicy
from reverie.core.specs import DESIRED_GOAL, GOAL, ObsPart, ObsSpec, without_mask
from reverie.core.types import Batch, Mode, Obs, PolicyOutput, Step, Window
from reverie.nn.functional import shift_images, without_grad
from reverie.nn.normalization import NormalizeConfig, ObsNormalizer
from reverie.nn.reward_scaling import Affine, Factor, ReturnBounds, ReturnScaler, ReturnStd, RewardScale


class FrameStacker(nn.Module):
    """Stacks the last ``count`` observations, the newest last. In an episode's first rows, its first frame is repeated.

    Images are stacked along their channels, everything else along a new first axis. The values are the same as with
    ``env.frame_stack`` (``envs/wrappers.py: FrameStack``), while stored rows keep one frame each.
    """

    def __init__(self, spec: ObsSpec, count: int, keys: str = "") -> None:
        """Stack the observations whose whole key matches the regular expression ``keys``; all images if it is empty."""
        super().__init__()
        self.count = count
        self.context: int = count - 1
        """Number of earlier rows that the stack of a row needs."""
        parts = without_mask(spec)
        chosen = [key for key in sorted(parts) if (re.fullmatch(keys, key) if keys else parts[key].kind == "image")]
        self.parts: dict[str, ObsPart] = {key: parts[key] for key in chosen}
        if not self.parts:
            raise ConfigError(
                f"frame_stack = {count}, frame_stack_keys = {keys!r}: no observation matches. Empty keys stack images "
                "alone; frame_stack_keys = '.*' stacks everything. The observations are: "
                f"{', '.join(f'{key!r} ({parts[key].kind})' for key in sorted(parts))}."
            )
        self.spec: ObsSpec = {key: self._stacked(part) if key in self.parts else part for key, part in spec.items()}

    def _stacked(self, part: ObsPart) -> ObsPart:
        if part.kind == "image":
            return replace(part, shape=(*part.shape[:2], part.shape[2] * self.count))
        return replace(part, shape=(self.count, *part.shape), classes=part.classes * self.count)

    def forward(self, obs: Obs, is_first: Tensor) -> Obs:
        """Map observations of rows ``[B, context + T]`` to the stacked observations of the last T rows.

        Stacks do not reach back beyond the newest row of ``is_first`` ``[B, context + T]``. A goal is a part of an
        observation.
        """
        rows = is_first.shape[1] - self.context
        stacked = {key: x[:, self.context :] for key, x in obs.items()}  # [B, T, ...]
        for key, part in self._parts_in(obs):
            newest = [stacked[key]]  # of [B, T, *shape], the newest first
            begun = torch.zeros_like(is_first[:, :rows])  # [B, T], whether the row ``lag`` before is of another episode
            for lag in range(1, self.count):
                start = self.context - lag
                begun = begun | is_first[:, start + 1 : start + 1 + rows]
                over = begun.view(*begun.shape, *(1 for _ in part.shape))
                newest.append(torch.where(over, newest[-1], obs[key][:, start : start + rows]))
            stacked[key] = _concat_frames(newest[::-1], part)
        return stacked

    def _parts_in(self, obs: Obs) -> list[tuple[str, ObsPart]]:
        return [(key, part) for key, part in self.parts.items() if key in obs]

    def initial(self, num_envs: int, device: torch.device) -> Obs:
        """Return the past frames of N environments before the first observation: zeros ``[N, context, *shape]``."""
        return {
            key: torch.zeros((num_envs, self.context, *part.shape), dtype=getattr(torch, part.dtype), device=device)
            for key, part in self.parts.items()
        }

    def push(self, obs: Obs, is_first: Tensor, past: Obs) -> tuple[Obs, Obs]:
        """Return stacked observations ``[N, ...]`` and the past frames for the next ones. Inputs are not changed."""
        stacked, next_past = dict(obs), {}
        for key, part in self._parts_in(obs):
            newest = obs[key].unsqueeze(1)  # [N, 1, *shape]
            rows = torch.cat(
                [torch.where(is_first.view(-1, *(1 for _ in newest.shape[1:])), newest, past[key]), newest], 1
            )
            stacked[key], next_past[key] = _concat_frames(list(rows.unbind(1)), part), rows[:, 1:]
        return stacked, next_past


def _concat_frames(frames: list[Tensor], part: ObsPart) -> Tensor:
    """Join frames ``[..., *shape]``, the oldest first, to one observation."""
    return torch.cat(frames, -1) if part.kind == "image" else torch.stack(frames, -1 - len(part.shape))


class RandomCrops(nn.Module):
    """Shifts the images of a batch in an update: all of a window, and those of its goals, by the same pixels.

    As in OGBench's code (impls/utils/datasets.py: augment), a single coin decides about a whole batch.
    """

    has_two_modes = True

    def __init__(self, spec: ObsSpec, probability: float, pad: int = 3) -> None:
        """``pad``: the largest shift in pixels, in each direction."""
        super().__init__()
        self.keys: list[str] = [key for key, part in spec.items() if part.kind == "image"]
        self.probability = probability
        self.pad = pad

    def forward(self, batch: Batch) -> Batch:
        """Return the shifted batch; in evaluations it is not changed."""
        if not (self.training and self.keys and self.probability):
            return batch
        first = batch.obs[self.keys[0]]
        by = torch.randint(-self.pad, self.pad + 1, (len(first), 2), device=first.device)
        by = by * (torch.rand((), device=first.device) < self.probability)  # [B, 2]
        crop = {key: self._shift(x, by) if key in self.keys else x for key, x in batch.obs.items()}
        goals = {
            name: self._shift(x, by) if name.partition("/")[2] in self.keys else x for name, x in batch.goals.items()
        }
        return replace(batch, obs=crop, goals=goals)

    def _shift(self, images: Tensor, by: Tensor) -> Tensor:
        """Return images ``[B, T, H, W, C]`` shifted by ``by`` ``[B, 2]``."""
        each = by.repeat_interleave(images.shape[1], 0)  # [B T, 2]
        return shift_images(images.flatten(0, 1), each).view_as(images)


class Preprocessor(nn.Module):
    """Maps rows to the inputs of networks. Each part is optional, and costs no time if it is off."""

    def __init__(
        self, spec: ObsSpec, *, normalize_obs: NormalizeConfig | None = None, frame_stack: int = 1,
        frame_stack_keys: str = "", reward_scale: RewardScale | None = None, discount: float = 1.0,
        bound_values: bool = False,
    ) -> None:  # fmt: skip
        """``spec`` describes the rows' observations, ``self.spec`` the preprocessed ones.

        ``discount`` is the learner's gamma. With ``bound_values``, ``self.range`` contains the bounds of returns.
        """
        super().__init__()
        rows = {key: part for key, part in spec.items() if not key.startswith(GOAL)}
        self.goals: list[str] = [key.removeprefix(GOAL) for key in spec if key.startswith(GOAL)]
        """Keys of the observations that are also goals."""
        self.normalizer: ObsNormalizer | None = (
            ObsNormalizer(rows, normalize_obs) if normalize_obs is not None else None
        )
        self.frames: FrameStacker | None = (
            FrameStacker(rows, frame_stack, frame_stack_keys) if frame_stack > 1 else None
        )
        self.rewards: Factor | ReturnScaler | None = None
        if isinstance(reward_scale, Factor):
            self.rewards = reward_scale
        elif isinstance(reward_scale, ReturnStd):
            self.rewards = ReturnScaler(discount, reward_scale.clip, reward_scale.max_return, reward_scale.std)
        self.range: ReturnBounds | None = ReturnBounds(discount) if bound_values else None
        stacked = self.frames.spec if self.frames is not None else rows
        self.spec: ObsSpec = {**stacked, **{f"{GOAL}{key}": stacked[key] for key in self.goals}}
        self.is_active: bool = not (self.normalizer is None and self.frames is None and self.rewards is None)
        """Whether it changes anything."""
        self._settled: tuple[ReturnScaler | None, ReturnBounds | None] | None = None  # what still watches rewards
        self.follows_rewards: bool = True
        """Whether collected rewards are scaled and bound values: not where goals, and so rewards, are relabeled."""

    @property
    def scaler(self) -> ReturnScaler | None:
        """Running statistics of returns, if rewards are scaled by them."""
        return self.rewards if isinstance(self.rewards, ReturnScaler) else None

    def make_window(self, batch: int, length: int, before: int = 0) -> Window:
        """Return windows of ``length`` rows to learn from, with the rows before them that frame stacks need.

        ``before``: the number of additional rows that the learner itself needs there. Windows of more than one
        transition may cross episodes: otherwise episodes shorter than a window would never be learned from, and the
        first and last transitions of longer episodes less often than those between.
        """
        context = before + (0 if self.frames is None else self.frames.context)
        return Window(
            batch=batch, length=length, context=context, crosses_episodes=length > 2, context_crosses=context > 0
        )

    def forward(self, batch: Batch) -> Batch:
        """Return the preprocessed batch, without the rows of the context."""
        obs = batch.obs if self.normalizer is None else self.normalizer(batch.obs)
        if self.frames is not None:
            obs, batch = self.frames(obs, batch.is_first), batch.slice_time(self.frames.context)
        reward = self.scale_rewards(batch.reward, batch.is_first)
        goals = self.preprocess_goals(batch.goals) if batch.goals else batch.goals
        if obs is batch.obs and reward is batch.reward and goals is batch.goals:
            return batch
        return replace(batch, obs=obs, reward=reward, goals=goals)

    def preprocess_goals(self, goals: Obs) -> Obs:
        """Return goals ``NAME/KEY`` ``[B, context + 1, ...]`` as goals ``[B, 1, ...]``, each as its observation KEY."""
        by_name: dict[str, Obs] = {}
        for path, value in goals.items():
            name, _, key = path.partition("/")
            by_name.setdefault(name, {})[key] = value
        out: Obs = {}
        for name, obs in by_name.items():
            obs = obs if self.normalizer is None else self.normalizer(obs)
            if self.frames is not None:
                some = next(iter(obs.values()))
                obs = self.frames(obs, torch.zeros(some.shape[:2], dtype=torch.bool, device=some.device))
            out |= {f"{name}/{key}": value for key, value in obs.items()}
        return out

    def scale_rewards(self, reward: Tensor, first: Tensor) -> Tensor:
        """Return rewards ``[...]`` as the losses see them; ``first``: rows where an episode begins."""
        if self.rewards is None or (self.scaler is not None and not self.follows_rewards):
            return reward
        scaled = self.rewards(reward)
        return scaled.masked_fill(first, 0.0) if isinstance(self.rewards, Affine) else scaled  # no step led there

    @property
    def running_statistics(self) -> RunningStatistics | None:
        """This object, if it needs to see new rows of the run; else None."""
        watches = self.normalizer, self.range, self.scaler
        return self if any(part is not None for part in watches) else None

    def update_statistics(self, step: Step) -> None:
        """Update the statistics with new rows of the run."""
        if self.normalizer is not None:
            self.normalizer.add(step.obs)
        if self.scaler is not None and self.follows_rewards:
            self.scaler.add(step.reward, step.is_first)
        if self.range is not None and self.follows_rewards:
            self.range.add(step.reward, step.is_first, self.rewards)

    def repeats_updates(self, step: Step) -> bool:
        """Return whether ``update_statistics`` makes the same calls with these rows and all that follow."""
        if self._settled is None:  # later calls find the same, and looking it up takes 5 us
            if (self.normalizer is not None and not self.normalizer.is_checked) or is_distributed():
                return False
            self._settled = (self.scaler, self.range) if self.follows_rewards else (None, None)
        scaler, bounds = self._settled
        return bounds is None and (scaler is None or scaler.repeats_updates(step.reward))

    def fit(self, rows: Batch) -> None:
        """Compute the statistics of these rows ``[N, n]``: N streams of n rows each; bounds of returns widen.

        Means and deviations that already have rows do not change, because networks were trained with them.
        """
        if self.normalizer is not None and not self.normalizer.count:
            self.normalizer.fit({key: rows.obs[key].transpose(0, 1).flatten(0, 1) for key in self.normalizer.keys})
        if self.scaler is not None and self.follows_rewards and not self.scaler.moments.count:
            self.scaler.fit(rows.reward, rows.is_first)
        if self.range is not None and self.follows_rewards:
            self.range.add(rows.reward, rows.is_first, self.rewards)

    def policy(self, inner: Policy[Any], device: torch.device) -> Policy[Any]:
        """Return a policy that acts on rows, given ``inner``, which acts on preprocessed observations."""
        as_stored = self.normalizer is None and self.frames is None and not self.goals
        return inner if as_stored else PreprocessedPolicy(self, inner, device)


class PreprocessState(NamedTuple):
    """The state of a :class:`PreprocessedPolicy`."""

    past: Obs  # [N, context, *shape], earlier frames
    state: Any  # the state of the inner policy

    @property
    def latent(self) -> Any:
        """The state of a world model, if the inner policy has one."""
        return self.state.latent


def inspect_policy(policy: Policy[Any], step: Step, state: object) -> PolicyOutput:
    """Return the output from which ``policy`` chooses actions; ConfigError if it does not expose it."""
    if not isinstance(policy, Inspectable):
        raise ConfigError(
            f"{type(policy).__name__} does not expose its action distribution: it has no method inspect()."
        )
    return policy.inspect(step, state)


def advance_schedule(policy: Policy[Any], state: object, env_steps: int) -> Any:
    """Return ``state`` with the exploration of ``policy`` as after ``env_steps``, if it follows a schedule."""
    return policy.advance_schedule(state, env_steps) if isinstance(policy, ScheduledPolicy) else state


class PreprocessedPolicy:
    """A policy that stacks and normalizes observations before the inner policy acts on them."""

    def __init__(self, preprocess: Preprocessor, inner: Policy[Any], device: torch.device) -> None:
        self.preprocess = preprocess
        self.inner = inner
        self.device = device

    def initial(self, num_envs: int) -> PreprocessState:
        frames = self.preprocess.frames
        return PreprocessState(
            {} if frames is None else frames.initial(num_envs, self.device), self.inner.initial(num_envs)
        )

    def preprocess_step(self, step: Step, past: Obs) -> tuple[Step, Obs]:
        """Return the preprocessed rows, and the past frames for the next ones."""
        normalizer, frames = self.preprocess.normalizer, self.preprocess.frames
        obs = step.obs if self.device.type == "cpu" else step.obs_on(self.device)
        if frames is not None:
            obs, past = frames.push(obs, step.is_first.to(self.device, non_blocking=True), past)
        if normalizer is not None:
            obs = normalizer(obs)
        if self.preprocess.goals:
            obs = obs | self._preprocess_goal(obs)
        return step.with_obs(obs), past

    def _preprocess_goal(self, obs: Obs) -> Obs:
        """Return the goals ``goal/KEY`` ``[N, ...]``; a stack repeats them."""
        goal = {key: obs[name] for key in self.preprocess.goals if (name := f"{GOAL}{key}") in obs}
        if DESIRED_GOAL in obs and not goal:  # a goal environment
            goal = dict.fromkeys(self.preprocess.goals, obs[DESIRED_GOAL])
        if not self.preprocess.goals:
            return goal
        if not goal:
            raise DataError(
                "there is no goal to act toward, neither in the environment nor in the rows: pass it to agent.act, or "
                "play with agent.reach."
            )
        normalizer, frames = self.preprocess.normalizer, self.preprocess.frames
        goal = goal if normalizer is None else normalizer(goal)
        if frames is not None:
            first = torch.ones(len(next(iter(goal.values()))), dtype=torch.bool, device=self.device)
            goal, _ = frames.push(goal, first, frames.initial(len(first), self.device))
        return {f"{GOAL}{key}": value for key, value in goal.items()}

    @accelerated
    @without_grad
    def act(self, step: Step, state: PreprocessState, mode: Mode) -> tuple[Tensor, PreprocessState]:
        step, past = self.preprocess_step(step, state.past)
        action, inner = self.inner.act(step, state.state, mode)
        return action, PreprocessState(past, inner)

    def inspect(self, step: Step, state: PreprocessState) -> PolicyOutput:
        return inspect_policy(self.inner, self.preprocess_step(step, state.past)[0], state.state)

    def memoryless(self, mode: Mode) -> bool:
        """Return whether no frames are stacked and the inner policy is memoryless."""
        return self.preprocess.frames is None and isinstance(self.inner, Memoryless) and self.inner.memoryless(mode)

    def advance_schedule(self, state: PreprocessState, env_steps: int) -> PreprocessState:
        return state._replace(state=advance_schedule(self.inner, state.state, env_steps))

    def override(self, state: PreprocessState, action: Tensor) -> PreprocessState:
        return state._replace(state=self.inner.override(state.state, action))

    def extras(self, state: PreprocessState) -> dict[str, Tensor]:
        return self.inner.extras(state.state)
