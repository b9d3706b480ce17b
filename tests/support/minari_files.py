"""Datasets of Minari, written by its own library; tests that import this are skipped without it."""

import numpy as np
import pytest
from gymnasium import spaces

minari = pytest.importorskip("minari")
from minari.data_collector import EpisodeBuffer  # noqa: E402  # the package is optional
from minari.dataset.minari_storage import MinariStorage  # noqa: E402

PLAIN = spaces.Box(-np.inf, np.inf, (2,), np.float32)
ACTION = spaces.Box(-1.0, 1.0, (1,), np.float32)


def write(folder, buffers, observation=PLAIN, action=ACTION, storage="hdf5", jpeg=False, **about):
    folder.mkdir(parents=True, exist_ok=True)
    made = MinariStorage.new(
        folder / "data", observation_space=observation, action_space=action, data_format=storage, jpeg_encoding=jpeg,
        env_spec=about.pop("env_spec", None),
    )  # fmt: skip
    made.update_metadata({"dataset_id": "tests/written-v0", "minari_version": minari.__version__, **about})
    made.update_episodes(buffers)
    return folder


def buffer(episode, observations=None, actions=None):
    return EpisodeBuffer(
        observations=episode.observations if observations is None else observations,
        actions=episode.actions if actions is None else actions,
        rewards=episode.rewards,
        terminations=episode.terminals,
        truncations=episode.timeouts,
    )


NESTED = (
    spaces.Dict({
        "arm": spaces.Dict({"state": PLAIN, "touch": spaces.Discrete(100)}),
        "pair": spaces.Tuple((PLAIN, spaces.Text(8, charset="0123456789."))),
    }),
    spaces.Dict({"move": ACTION, "grip": spaces.Discrete(5)}),
)  # fmt: skip
"""Spaces of observations and actions."""


def nested(e):
    """An episode of these spaces."""
    arm = {"state": e.observations, "touch": np.arange(e.steps + 1)}
    return buffer(e, {"arm": arm, "pair": (-e.observations, texts(e))}, {"move": e.actions, "grip": e.choices})


def texts(episode):
    return [f"{episode.number}.{t}" for t in range(episode.steps + 1)]
