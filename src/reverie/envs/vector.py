"""N environments as rows: Gymnasium's vector API underneath, the ``Env`` protocol on top.

``AutoresetMode.NEXT_STEP`` yields our rows as they are: the step after an end answers with a new episode's first
observation and ignores the action.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from torch import Tensor

from reverie.core.errors import ConfigError, DataError, EnvError, ReverieError
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Step
from reverie.envs.base import EnvConfig, Factory
from reverie.envs.flat import FlatEnv, make_flat
from reverie.envs.worker import end, lost, start


def make_env(
    config: EnvConfig, *, seed: int, factory: Factory | gymnasium.Env[Any, Any] | None = None, render: bool = False
) -> VectorEnv:
    """``config.num`` environments that are stepped together, each with a seed of its own derived from ``seed``.

    ``factory`` is called once for each of them in place of ``config.id``; an instance serves ``num=1`` in this process.
    ``render`` makes ``VectorEnv.render`` return frames where the environment can draw.

    Raises:
        EnvError: the environment is unknown, cannot be made, or cannot be learned from.
        ConfigError: ``seed`` is negative.
    """
    seeds = derive_seeds(seed, config.num)
    if isinstance(factory, gymnasium.Env) and (config.num > 1 or config.vector == "process"):
        raise EnvError(
            f"an environment instance serves num=1 and vector='serial', not num={config.num} and "
            f"vector={config.vector!r}; give a function that makes one."
        )
    makers: list[Callable[[], FlatEnv]] = [
        functools.partial(make_flat, config, factory, index, render) for index in range(config.num)
    ]
    try:
        envs = start(config.start_method, makers) if config.vector == "process" else _serial(makers)
    except ReverieError:
        raise
    except Exception as error:
        raise EnvError(f"{config.num} environments '{config.id}' could not be made: {error}") from error
    return VectorEnv(envs, seeds)


def derive_seeds(seed: int, num: int) -> list[int]:
    """``num`` seeds of 31 bits that have nothing to do with each other, always the same ones for one ``seed``.

    Raises:
        ConfigError: ``seed`` is negative.
    """
    if seed < 0:
        raise ConfigError(f"seed = {seed}: expected 0 or more.")
    return [int(word) >> 1 for word in np.random.SeedSequence(seed).generate_state(num)]


class VectorEnv:
    """N environments of one kind; satisfies ``core.protocols.Env``.

    Rows: ``reward`` is 0 where ``is_first``; ``is_last`` is an end of any kind; ``is_terminal`` only one of the
    environment's own, which wins when the time runs out on the same step.
    """

    def __init__(self, envs: SyncVectorEnv | AsyncVectorEnv, seeds: list[int]) -> None:
        self._envs = envs
        self._seeds: list[int] | None = seeds
        self._ended: np.ndarray | None = None  # [N] bool, which rows were is_last; None before the first reset
        self._answer: Callable[[], Any] | None = None  # what the last action is answered with, while it is due
        self.num_envs: int = envs.num_envs
        self.obs_spec: ObsSpec = envs.get_attr("obs_spec")[0]
        self.action_spec: ActionSpec = envs.get_attr("action_spec")[0]
        self._action_shape = (self.num_envs, self.action_spec.width)

    def reset(self, seed: int | None = None) -> Step:
        """Start N new episodes. Without a ``seed`` generators go on; the first time they start from ``make_env``'s.

        An answer that was not received is lost.
        """
        self._settle()
        self._answer = None
        seeds = derive_seeds(seed, self.num_envs) if seed is not None else self._seeds
        self._seeds = None
        obs, _ = self._guarded(lambda: self._envs.reset(seed=seeds))  # type: ignore[arg-type]  # a list invariant in None
        none = np.zeros(self.num_envs, np.bool_)
        self._ended = none
        return self._rows(obs, np.zeros(self.num_envs), ~none, none, none)

    def step(self, action: Tensor) -> Step:
        """Take ``action`` ``[N, A]``. After an ``is_last`` row the answer is an ``is_first`` row, whatever the action.

        Raises:
            DataError: an action, observation or reward is not what was declared, or not finite.
            EnvError: an environment failed, or ``reset`` was never called.
        """
        self.send(action)
        return self.receive()

    def send(self, action: Tensor) -> None:
        """Begin a step: workers take ``action`` ``[N, A]`` while the caller goes on, until it asks to ``receive``.

        Environments in this process are stepped at once.

        Raises:
            DataError, EnvError: as ``step``; also ``EnvError`` if the last answer was not received.
        """
        if self._ended is None:
            raise EnvError("step() before reset(): there is no episode to go on with.")
        if self._answer is not None:
            raise EnvError("send() twice: the answer to the last action is still due; call receive() first.")
        flat = self._checked(action)
        if isinstance(self._envs, AsyncVectorEnv):
            workers = self._envs
            self._guarded(lambda: workers.step_async(flat))
            self._answer = workers.step_wait
        else:
            answer = self._envs.step(flat)
            self._answer = lambda: answer

    def receive(self) -> Step:
        """End a step: the rows that answer the action sent last.

        Raises:
            DataError, EnvError: as ``step``; also ``EnvError`` if no action was sent.
        """
        answer, self._answer = self._answer, None
        if answer is None:
            raise EnvError("receive() before send(): there is no action that could be answered.")
        obs, reward, terminated, truncated, _ = self._guarded(answer)
        first, self._ended = self._ended, terminated | truncated
        assert first is not None
        return self._rows(obs, reward, first, self._ended, terminated)

    def _checked(self, action: Tensor) -> np.ndarray:
        flat: np.ndarray = action.detach().to("cpu", torch.float32).numpy()
        if flat.shape != self._action_shape:
            raise DataError(f"the action has shape {flat.shape}; expected [N, A] = {self._action_shape}.")
        if not np.isfinite(flat).all():
            number = int(np.argwhere(~np.isfinite(flat))[0, 0])
            raise DataError(f"the action for environment {number} is {flat[number].tolist()}; expected finite numbers.")
        return flat

    def _rows(
        self, obs: dict[str, np.ndarray], reward: np.ndarray, first: np.ndarray, last: np.ndarray, terminal: np.ndarray
    ) -> Step:
        return Step(
            # Copied, since the next step writes into the same memory.
            obs={key: torch.from_numpy(array.copy()) for key, array in obs.items()},
            reward=torch.from_numpy(reward.astype(np.float32)),
            is_first=torch.from_numpy(first.copy()),
            is_last=torch.from_numpy(last.copy()),
            is_terminal=torch.from_numpy(terminal.copy()),
        )

    def render(self) -> np.ndarray | None:
        """What environment 0 looks like, uint8 ``[H, W, 3]``, or None if it cannot be drawn."""
        self._settle()
        frame: np.ndarray | None = self._guarded(lambda: self._envs.call("frame"))[0]
        return frame

    def _settle(self) -> None:
        """Wait for an answer that is due, so that the workers can be asked for something else; it can still be had."""
        due, self._answer = self._answer, None
        if due is not None:
            answer = self._guarded(due)
            self._answer = lambda: answer

    def close(self) -> None:
        """Free windows, processes and memory. May be called twice."""
        if self._envs.closed:
            return
        try:
            self._envs.close()
        except (OSError, EOFError):
            end(self._envs)

    def _guarded(self, call: Callable[[], Any]) -> Any:
        """``call()``, where a worker that is gone is an error with its number."""
        try:
            return call()
        except (EOFError, OSError) as error:
            if not isinstance(self._envs, AsyncVectorEnv):
                raise
            raise lost(self._envs) from error


def _serial(makers: list[Callable[[], FlatEnv]]) -> SyncVectorEnv:
    envs = SyncVectorEnv(makers, copy=False, autoreset_mode=AutoresetMode.NEXT_STEP)
    if len({id(env.unwrapped) for env in envs.envs}) < len(makers):
        raise EnvError(
            f"the environment factory returned the same environment twice; num={len(makers)} needs as many. "
            "Make a new one on each call."
        )
    return envs
