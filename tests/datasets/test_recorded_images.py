"""Settings of environments that change what is seen and earned, applied to recorded rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from reverie.agent.conversion import ObsConverter
from reverie.core.errors import ConfigError
from reverie.core.images import ImageOptions
from reverie.core.obs_codec import ObsCodec
from reverie.core.rows import Rows
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.dataset_env import dataset_env_config
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions
from reverie.envs.config import EnvConfig
from reverie.envs.flat_env import make_flat
from reverie.experiment.describe import motionless
from reverie.experiment.offline import stacks_in
from reverie.experiment.settings import Request, merge_layers

SPACE = spaces.Dict({
    "image": spaces.Box(0, 255, (84, 84, 3), np.uint8),
    "depth": spaces.Box(0.0, 1.0, (20, 30, 1), np.float32),
    "arm": spaces.Box(-1, 1, (2,), np.float32),
})  # fmt: skip
STEPS = 5


class Scenes(gymnasium.Env[Any, Any]):
    """Random observations of ``SPACE`` and rewards, always the same."""

    observation_space, action_space = SPACE, spaces.Discrete(3)

    def __init__(self) -> None:
        SPACE.seed(0)
        self.seen = [SPACE.sample() for _ in range(STEPS)]
        self.rewards = [0.0, -3.5, 0.1257302165031433, -0.0, -0.5356693863868713]

    def reset(self, **kwargs: Any) -> tuple[Any, dict[str, Any]]:
        self.t = 0
        return self.seen[0], {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.t += 1
        return self.seen[self.t], self.rewards[self.t], False, self.t == STEPS - 1, {}


class Given(Reader):
    """What ``Scenes`` shows, as a dataset in two parts, with ``options`` told or not."""

    format = "a test"

    def __init__(self, **told: Any) -> None:
        super().__init__(Path("somewhere"), ReadOptions())
        self.told, self.env = told, Scenes()

    def info(self) -> DatasetInfo:
        return DatasetInfo(observation=SPACE, action=spaces.Discrete(3), **self.told)

    def rows(self) -> int:
        return STEPS

    def parts(self) -> Iterator[Rows]:
        number = np.arange(STEPS)
        rows: Rows = {f"obs/{key}": np.array([seen[key] for seen in self.env.seen]) for key in SPACE}
        rows |= {"action": np.zeros(STEPS, np.int64), "reward": np.array(self.env.rewards, np.float32),
                 "is_first": number == 0, "is_last": number == STEPS - 1, "is_terminal": number < 0}  # fmt: skip
        for part in (slice(0, 2), slice(2, None)):
            yield {name: values[part] for name, values in rows.items()}


def lived(config: EnvConfig) -> tuple[dict[str, ObsPart], list[dict[str, np.ndarray]], list[float]]:
    """Parts, observations and rewards as an environment with these settings shows them."""
    env = make_flat(config, Scenes, 0, render=False)
    obs, rewards = list[dict[str, np.ndarray]](), list[float]()
    for step in range(STEPS):
        obs.append({key: np.zeros(part.shape, part.dtype) for key, part in env.obs_spec.items()})
        action = np.array([1, 0, 0], np.float32)
        rewards.append((env.step_into(action, obs[-1]) if step else env.reset_into(None, obs[-1]))[0])
    return env.obs_spec, obs, rewards


@pytest.mark.parametrize("options", [
    {"resize": (64, 48)},
    {"grayscale": True, "exclude_keys": "depth"},
    {"resize": (64, 64), "grayscale": True, "include_keys": "image|arm"},
    {"resize": (20, 30)},  # as large as one of them is already
    {"clip_reward": "sign", "resize": (7, 9)},
])  # fmt: skip
def test_recorded_rows_are_what_the_environment_would_have_shown(options: dict[str, Any]) -> None:
    config = EnvConfig().merge(options)
    recorded = RecordedEpisodes(Given(), config)
    parts = list(recorded.parts())
    spec, obs, rewards = lived(config)
    assert recorded.obs_spec == spec
    truth = {f"obs/{key}": np.stack([seen[key] for seen in obs]) for key in spec}
    truth["reward"] = np.array(rewards, np.float32)
    found = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    assert found.keys() == parts[1].keys() == {*truth, "action", "is_first", "is_last", "is_terminal"}
    for name, values in truth.items():
        assert (found[name].dtype, found[name].tobytes()) == (values.dtype, values.tobytes())


def test_recordings_hold_images_as_the_agent_saw_them() -> None:
    """One frame each: learners stack them."""
    config = EnvConfig().merge({"resize": (64, 48), "grayscale": True, "frame_stack": 2, "include_keys": "image|arm"})
    observer, env = ObsConverter(make_flat(config, Scenes, 0, render=False), config), Scenes()
    space, convert = observer.reduced_view()
    obs = env.reset()[0]
    kept = convert(obs)
    assert space.contains(kept)
    seen, whole = observer(obs, None, True), ObsCodec(space, config.uses_key)(kept)
    for key in ("image", "arm"):
        np.testing.assert_array_equal(whole[key], seen[key])
    assert kept["depth"] is obs["depth"]  # not seen, so not changed


@pytest.mark.parametrize(("options", "says"), [
    ({"frame_stack": 4}, r"env.frame_stack = 4: the observations are not stacks of 4 .* rows have arm \[2\]"),
    ({"pixels": "only", "exclude_keys": "image"}, r"env.pixels = 'only': images cannot be rendered .* have no 'image'"),
    ({"resize": (64, 64), "include_keys": "arm"}, r"env.resize needs image observations, and these have none\."),
])  # fmt: skip
def test_what_rows_cannot_become(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        RecordedEpisodes(Given(), EnvConfig().merge(options))


OWN = {"image": ObsPart(kind="image", shape=(84, 84, 3), dtype="uint8")}
CHOICE = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(3,))})


def own(**settings: Any) -> Given:
    """Rows of a run, of which it is known how its environment was made."""
    told = {**EnvConfig().to_dict(), "id": "Scenes-v0", "num": 8, **settings}
    return Given(specs=(OWN, CHOICE), env_settings=told)


@pytest.mark.parametrize(("was", "asked", "shape"), [
    ({}, {}, (84, 84, 3)),
    ({}, {"resize": (64, 64), "grayscale": True}, (64, 64, 1)),
    ({"resize": [84, 84], "action_repeat": 4}, {"resize": (84, 84), "action_repeat": 4}, (84, 84, 3)),
    ({"resize": [84, 84]}, {"grayscale": True}, (84, 84, 1)),
])  # fmt: skip
def test_rows_of_our_own(was: dict[str, Any], asked: dict[str, Any], shape: tuple[int, ...]) -> None:
    config = EnvConfig().merge(asked)
    recorded = RecordedEpisodes(own(**was), config)
    assert recorded.obs_spec["image"].shape == shape
    truth = lived(config.merge({"include_keys": "image", "resize": asked.get("resize"), "action_repeat": 1}))[1]
    found = np.concatenate([part["obs/image"] for part in recorded.parts()])
    assert found.tobytes() == np.stack([seen["image"] for seen in truth]).tobytes()
    env = dataset_env_config(recorded.about, config)  # in which it is evaluated
    assert (env.id, env.num, env.grayscale) == ("Scenes-v0", 1, config.grayscale)
    assert env.resize == (asked.get("resize") or (tuple(was["resize"]) if "resize" in was else None))


def test_single_images_are_stacked_by_the_presets_of_atari_and_else_remarked_on() -> None:
    image = {"image": ObsPart(kind="image", shape=(84, 84, 1), dtype="uint8")}
    for name in ("bc", "discrete_bcq", "discrete_cql", "discrete_crr"):
        config = merge_layers(Request(algorithm=name, env="ALE/Pong-v5"))
        assert (config.preset.removesuffix("+cpu"), config.algo.frame_stack) == (f"{name}_atari", 4)  # type: ignore[attr-defined]
        assert not motionless(config, image)
        assert "a single image (image)" in motionless(config.merge({"algo.frame_stack": 1}), image)


def test_data_of_stacked_frames_say_how_to_learn_from_them() -> None:
    stacked, single = ({"image": {"shape": [84, 84, channels]}} for channels in (4, 1))
    spec = {"image": ObsPart(kind="image", shape=(84, 84, 4), dtype="uint8")}
    assert stacks_in(spec, single).endswith("--env.frame-stack 4 --algo.frame-stack 1.")
    assert not stacks_in(spec, stacked)
    assert ImageOptions(spec, None, True).spec == spec  # they are gray
