"""Environments, policies and learners that do exactly what a script says."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step, Update, Window

ACTION = ActionSpec(
    parts={"grip": ActionPart(kind="categorical", classes=(3, 2)), "arm": ActionPart(kind="continuous", size=2)}
)


class ScriptedEnv:
    """Environment i plays episodes of ``lengths[i]`` decisions in turn; ``+`` ones end terminal, ``-`` ones truncated.

    The observation is (env, rows seen so far), the reward of an episode's d-th decision is d.
    """

    def __init__(self, lengths: list[list[int]]) -> None:
        self.lengths, self.num_envs, self.action_spec = lengths, len(lengths), ACTION
        self.obs_spec = {"id": ObsPart(kind="vector", shape=(2,), dtype="float32")}
        self.actions: list[torch.Tensor] = []
        self.seeds: list[int | None] = []
        self.closed, self.exact_rewards, self.episode_info, self.max_episode_steps = False, None, {}, None
        self.executed_actions = self.success = None
        self.can_end_one, self.defers, self.device, self.restarts = True, False, torch.device("cpu"), 0

    def check(self) -> None:
        pass

    def summary(self, number: int) -> dict[str, float]:
        return self.episode_info.get(number, {})

    def snapshot(self) -> list[bytes | None]:
        return [None] * self.num_envs

    def restore(self, snapshots: list[bytes | None], step: Step) -> Step:
        return self.truncate(step, range(self.num_envs))

    def send(self, action: torch.Tensor) -> None:
        self.answer = self.step(action)

    def receive(self) -> Step:
        return self.answer

    def reset(self, seed: int | None = None) -> Step:
        self.seeds.append(seed)
        self.decision, self.episode, self.turn = [0] * self.num_envs, [0] * self.num_envs, 0
        return self._show()

    def step(self, action: torch.Tensor) -> Step:
        self.actions.append(action.clone())
        self.turn += 1
        for i in range(self.num_envs):
            if self.decision[i] == abs(self._length(i)):
                self.decision[i], self.episode[i] = 0, self.episode[i] + 1
            else:
                self.decision[i] += 1
        return self._show()

    def truncate(self, step: Step, numbers: list[int]) -> Step:
        for i in numbers:
            self.decision[i] = abs(self._length(i))
        return dataclasses.replace(
            step, is_last=step.is_last | torch.tensor([i in numbers for i in range(self.num_envs)])
        )

    def _length(self, i: int) -> int:
        return self.lengths[i][self.episode[i] % len(self.lengths[i])]

    def _show(self) -> Step:
        last = [self.decision[i] == abs(self._length(i)) for i in range(self.num_envs)]
        return Step(
            obs={"id": torch.tensor([[i, self.turn] for i in range(self.num_envs)], dtype=torch.float32)},
            reward=torch.tensor(self.decision, dtype=torch.float32),
            is_first=torch.tensor([d == 0 for d in self.decision]),
            is_last=torch.tensor(last),
            is_terminal=torch.tensor([last[i] and self._length(i) > 0 for i in range(self.num_envs)]),
        )

    def render(self) -> np.ndarray | None:
        return np.full((2, 3, 3), self.turn, np.uint8)

    def close(self) -> None:
        self.closed = True


class ScriptedPolicy:
    """Its state is (rows since the episode began, last action). It acts with a number that tells turn and env."""

    def __init__(self) -> None:
        self.modes: list[str] = []
        self.previous: list[torch.Tensor] = []

    def initial(self, num_envs: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(num_envs), torch.zeros(num_envs, ACTION.width)

    def act(self, step, state, mode):
        self.modes.append(mode)
        age, previous = state
        age = torch.where(step.is_first, 0.0, age + 1)
        self.previous.append(torch.where(step.is_first[:, None], 0.0, previous))
        action = (step.obs["id"][:, :1] + 100 * step.obs["id"][:, 1:]).expand(-1, ACTION.width) + 1
        return action, (age, action)

    def override(self, state, action):
        return state[0], action

    def extras(self, state):
        return {"age": state[0]}


class CountingSource:
    """A replay that deals out zeros and counts; it remembers its rows."""

    def __init__(self) -> None:
        self.rows: list[tuple[Step, torch.Tensor, dict]] = []
        self.sampled, self.fed_back = 0, []

    def add(self, step, action, extras):
        self.rows.append((step, action.clone(), dict(extras)))

    def sample(self) -> Batch:
        self.sampled += 1
        z, f = torch.zeros(1, 2), torch.zeros(1, 2, dtype=torch.bool)
        one = torch.ones(1)
        index = torch.tensor([self.sampled])
        return Batch(obs={}, action=z, reward=z, is_first=f, is_last=f, is_terminal=f, weight=one, index=index)

    def feedback(self, index, update):
        self.fed_back.append((int(index), update))

    def __len__(self) -> int:
        return len(self.rows)


class ScriptedAlgo:
    """Its losses are what ``losses(update)`` says."""

    window, extra_spec, device = Window(batch=1, length=2), {}, torch.device("cpu")

    def __init__(self, losses=lambda update: {"loss/a": 1.0, "loss/b": 2.0}) -> None:
        self.losses, self.updates, self.reports, self.policy = losses, 0, [], ScriptedPolicy()

    def exploration(self, env_steps: int) -> float:
        return 1 / (1 + env_steps)

    def update(self, batch: Batch) -> Update:
        self.updates += 1
        return Update(metrics={k: torch.tensor(v) for k, v in self.losses(self.updates).items()})

    def report(self, batch: Batch):
        self.reports.append(int(batch.index))
        return {"report/video": np.zeros((1, 2, 2, 3), np.uint8)}

    def state_dict(self):
        return {"updates": self.updates}

    def load_state_dict(self, state):
        self.updates = state["updates"]


class ListMeter:
    """Means of what was added."""

    def __init__(self) -> None:
        self.values: list[dict] = []

    def add(self, metrics):
        self.values.append(metrics)

    def flush(self):
        values, self.values = self.values, []
        return {k: float(np.mean([float(v[k]) for v in values])) for k in (values[0] if values else {})}


class ListSink:
    """Remembers what is written."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, dict]] = []

    def write(self, values, step):
        self.entries.append((step, dict(values)))

    def close(self):
        pass


@pytest.fixture
def fakes() -> SimpleNamespace:
    """The scripted classes."""
    return SimpleNamespace(
        Env=ScriptedEnv,
        Policy=ScriptedPolicy,
        Source=CountingSource,
        Algo=ScriptedAlgo,
        Meter=ListMeter,
        Sink=ListSink,
    )
