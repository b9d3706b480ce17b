"""Stacks of frames made of rows, against those that environments make themselves (``envs/wrappers.py: FrameStack``)."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step, Window
from reverie.envs.wrappers import FrameStack
from reverie.nn.preprocess import FrameStacker
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig

SPEC = {
    "camera": ObsPart(kind="image", shape=(3, 2, 2), dtype="uint8"),
    "arm": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "time": ObsPart(kind="vector", shape=(), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 4)),
}
ACTION = ActionSpec(parts={"a": ActionPart(kind="continuous", size=1)})


class Life:
    """Streams of rows, and beside each what an environment would have shown that stacks its frames itself."""

    def __init__(self, count: int, steps: int, envs: int, seed: int) -> None:
        g = np.random.default_rng(seed)
        self.first = g.random((steps, envs)) < 0.25  # which rows begin an episode
        self.first[0] = True
        most = {key: 3 if part.kind == "categorical" else 256 for key, part in SPEC.items()}
        drawn = {key: g.integers(0, most[key], (steps, envs, *part.shape)) for key, part in SPEC.items()}
        drawn["time"] = np.arange(steps * envs).reshape(steps, envs)
        self.rows = {key: x.astype(SPEC[key].dtype) for key, x in drawn.items()}
        stacks = [FrameStack(SPEC, count) for _ in range(envs)]
        self.seen = [
            [{k: v.copy() for k, v in stacks[i](self.row(t, i), bool(self.first[t, i])).items()} for i in range(envs)]
            for t in range(steps)
        ]

    def row(self, *where: int) -> dict[str, np.ndarray]:
        return {key: x[where] for key, x in self.rows.items()}

    def steps(self) -> Iterator[Step]:
        for t, first in enumerate(map(torch.from_numpy, self.first)):
            obs, no = {key: torch.from_numpy(x) for key, x in self.row(t).items()}, torch.zeros_like(first)
            yield Step(obs=obs, reward=no.float(), is_first=first, is_last=no, is_terminal=no)


def replay(window: Window, envs: int, capacity: int) -> ReplayBuffer:
    config = ReplayConfig(capacity=capacity * envs, online_queue=False)
    return build_replay(config, obs_spec=SPEC, action_spec=ACTION, extra_spec={}, num_envs=envs, window=window, seed=0)


@pytest.mark.parametrize("count", [2, 3, 5])
def test_acting_sees_what_the_environment_would_show(count: int) -> None:
    frames, life = FrameStacker(SPEC, count, ".*"), Life(count, steps=40, envs=3, seed=count)
    past = frames.initial(3, torch.device("cpu"))
    for t, step in enumerate(life.steps()):
        before = {k: v.clone() for k, v in past.items()}
        seen, later = frames.push(step.obs, step.is_first, past)
        for key in SPEC:
            assert torch.equal(past[key], before[key])  # whoever goes on from there twice sees the same
            for i in range(3):
                assert np.array_equal(seen[key][i], life.seen[t][i][key]), (t, i, key)
        past = later


@settings(max_examples=20, deadline=None)
@given(
    count=st.integers(2, 5), length=st.integers(2, 4), envs=st.integers(1, 3), seed=st.integers(0, 999),
    spare=st.integers(0, 10), steps=st.integers(6, 40),
)  # fmt: skip
def test_learning_sees_what_the_environment_would_show(count, length, envs, seed, spare, steps) -> None:
    """In every window there is: of the first rows of all, of those of episodes, and of the oldest ones still held."""
    frames, life = FrameStacker(SPEC, count, ".*"), Life(count, steps, envs, seed)
    window = Window(batch=4, length=length, context=count - 1, context_crosses=True)
    rows = replay(window, envs, length + spare)
    for step in life.steps():
        rows.add(step, torch.zeros(envs, 1), {})
    for handle in rows.batch_sampler.windows.handles_at(np.arange(len(rows))):
        t, i = divmod(int(handle), envs)
        t += count - 1
        found = rows.storage.gather(torch.tensor([handle]), window.rows)
        seen = frames({key: found[f"obs/{key}"] for key in SPEC}, found["is_first"])
        for key in SPEC:
            expected = np.stack([life.seen[t + j][i][key] for j in range(length)])
            assert np.array_equal(seen[key][0], expected), (t, i, key)


def test_windows_are_those_that_there_are_without_frames() -> None:
    """As many, and of the same rows, whatever has been evicted."""
    life = Life(4, steps=60, envs=2, seed=3)
    plain = replay(Window(batch=4, length=2), 2, 20)
    stacked = replay(Window(batch=4, length=2, context=3, context_crosses=True), 2, 20)
    for step in life.steps():
        for one in (plain, stacked):
            one.add(step, torch.zeros(2, 1), {})
        handles = [one.batch_sampler.windows.handles_at(np.arange(len(one))) for one in (plain, stacked)]
        assert np.array_equal(handles[0], handles[1] + 3 * 2)
        if len(plain):
            batches = [one.sample() for one in (plain, stacked)]
            assert torch.equal(batches[0].obs["time"], batches[1].slice_time(3).obs["time"])


def test_what_lies_before_the_first_row_is_not_looked_at() -> None:
    frames = FrameStacker(SPEC, 4, "arm")
    x, first = torch.randn(1, 6, 2), torch.arange(6)[None] == 2  # the rows that are learned from are 3, 4 and 5
    seen = frames({"arm": x}, first)["arm"]
    x[:, :2] = torch.nan
    assert torch.equal(frames({"arm": x}, first)["arm"], seen)
    assert torch.equal(seen[0, 0], x[0, [2, 2, 2, 3]])
    assert torch.equal(seen[0, 2], x[0, [2, 3, 4, 5]])


def test_images_are_stacked_unless_others_are_chosen() -> None:
    assert list(FrameStacker(SPEC, 2).parts) == ["camera"]
    assert list(FrameStacker(SPEC, 2, "arm|time").parts) == ["arm", "time"]
    plain = FrameStacker(SPEC, 2, "arm")
    obs = {key: torch.zeros(1, 3, *part.shape, dtype=getattr(torch, part.dtype)) for key, part in SPEC.items()}
    seen = plain(obs, torch.zeros(1, 3, dtype=torch.bool))
    assert {key: tuple(x.shape[1:]) for key, x in seen.items()} == {
        "camera": (2, 3, 2, 2), "arm": (2, 2, 2), "time": (2,), "token": (2, 2),
    }  # fmt: skip
    assert plain.spec["camera"] == SPEC["camera"]


def test_nothing_to_stack_is_told() -> None:
    vectors = {key: SPEC[key] for key in ("arm", "time")}
    for keys, said in (((), r"frame_stack = 4, .* 'arm' \(vector\)"), (("amr",), "frame_stack_keys = 'amr'")):
        with pytest.raises(ConfigError, match=said):
            FrameStacker(vectors, 4, *keys)
