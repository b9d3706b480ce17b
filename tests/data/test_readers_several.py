"""What several datasets, read as one, say of their environment."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.datasets.concat import SeveralReader
from reverie.datasets.reader import About, Reader, ReadOptions, Rows


class Told(Reader):
    """One episode of two rows, with a description."""

    format = "a test"

    def __init__(self, name: str, **told: Any) -> None:
        super().__init__(name)
        self.told = told

    def about(self) -> About:
        return About(observation=spaces.Box(-1, 1, (2,)), action=spaces.Discrete(2), **self.told)

    def env_id(self) -> str:
        return str(self.told.get("env", ""))

    def rows(self) -> int:
        return 2

    def parts(self) -> Iterator[Rows]:
        first = np.array([True, False])
        yield {"obs": np.zeros((2, 2), np.float32), "action": np.zeros(2, int), "reward": np.zeros(2, np.float32),
               "is_first": first, "is_last": ~first, "is_terminal": ~first}  # fmt: skip


def several(*told: dict[str, Any]) -> SeveralReader:
    readers = [Told(name, **each) for name, each in zip("abcd", told, strict=False)]
    return SeveralReader(Path("all"), readers, ReadOptions())


def wrapped(*wrappers: tuple[str, Any], settings: dict[str, Any] | None = None, by: str = "mine") -> dict[str, Any]:
    """A description with these wrappers, by name and arguments."""
    listed = [{"name": name, "entry_point": f"{by}:{name}", "kwargs": given} for name, given in wrappers]
    spec = {"id": "Ant-v5", "additional_wrappers": listed}
    return {"env": "Ant-v5", "env_spec": spec, "env_settings": settings or {}}


PLAIN = wrapped()
CLIPS = wrapped(("ClipReward", {"max_reward": 1}))
REPEATS = {"action_repeat": 2, "noop_max": 0}
RECORDED = wrapped(("ActionRepeat", {"times": 2, "pool": 1}), settings=REPEATS, by="reverie.envs.wrappers")
RUN = {"env": "Ant-v5", "env_settings": {"id": "Ant-v5", "action_repeat": 1}}


@pytest.mark.parametrize(
    ("one", "other", "says"),
    [
        (PLAIN, CLIPS, r"b was recorded in Ant-v5 with mine:ClipReward, but a with no wrapper: these"),
        (CLIPS, PLAIN, r"b was recorded in Ant-v5 with no wrapper, but a with mine:ClipReward: these"),
        (CLIPS, wrapped(("ClipReward", {"max_reward": 2})), r"a with mine:ClipReward and other arguments: these"),
        (CLIPS, wrapped(("ClipReward", {"max_reward": 1}), ("Other", {})), r"mine:ClipReward, mine:Other, but a with"),
        (RUN, CLIPS, r"b was recorded in Ant-v5 with mine:ClipReward, but a with no wrapper: these"),
        (PLAIN, RECORDED, r"b was recorded with env\.action_repeat = 2, but a with env\.action_repeat = 1: these"),
    ],
)
def test_declared_wrappers_must_be_the_same(one: dict[str, Any], other: dict[str, Any], says: str) -> None:
    for each in (one, other):
        several(each, each).about()
    with pytest.raises(DataError, match=says):
        several(one, other).about()


@pytest.mark.parametrize(
    "other",
    [
        {},
        RUN,
        wrapped(("RecordVideo", {}), ("TimeLimit", {"max_episode_steps": 9})),
        wrapped(("NoopReset", {"most": 30}), settings={"noop_max": 30}, by="reverie.envs.wrappers"),
    ],
)
def test_wrappers_that_may_differ(other: dict[str, Any]) -> None:
    several(PLAIN, other).about()
    several(other, PLAIN).about()


def test_the_environment_is_the_one_that_some_part_names() -> None:
    named = {"env": "Ant-v5", "env_kwargs": {"x": 1}, "time_limit": 9}
    for told, missing in (((named, {}, named), 1), (({}, named, {}), 2)):
        reader = several(*told)
        for _ in range(2):
            about = reader.about()
        assert (reader.env_id(), about.env, about.env_kwargs, about.time_limit) == ("Ant-v5", "Ant-v5", {"x": 1}, 9)
        assert reader.remarks() == [
            f"{missing} of 3 parts name no environment: they are taken to be recorded in Ant-v5, as the others"
        ]
        assert sum(len(part["reward"]) for part in reader.parts()) == 6
    assert several(named, named).remarks() == several({}, {}).remarks() == []
    assert several({}, {"env_settings": {"clip_reward": "sign"}}).about().env_settings == {"clip_reward": "sign"}
