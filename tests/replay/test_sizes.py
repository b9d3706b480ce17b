"""Sizes as people write them."""

import pytest

from reference_replay import ACTION, EXTRA, OBS
from reverie.core.errors import ConfigError
from reverie.core.types import Window
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig, Size, parse_size

ROW = 2 * 4 + 6 + 3 * 4 + 4 + 3 + 2 * 2 + 1


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (1_000_000, Size(1_000_000, False)), ("5e6", Size(5_000_000, False)), ("1_000", Size(1000, False)),
        ("20GB", Size(20_000_000_000, True)), ("512MiB", Size(512 * 2**20, True)), ("1.5 kib", Size(1536, True)),
        ("0.1TB", Size(10**11, True)), ("300 B", Size(300, True)), ("1.1e9B", Size(1_100_000_000, True)),
    ],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size(text, "x") == size


@pytest.mark.parametrize(
    "text", ["", "many", "5M", "-5", 0, "0GB", "1.5", "1.2.3", "5 bananas", "nan", "0.1B", "1e999999999"]
)
def test_what_is_no_size_is_refused_with_examples(text):
    with pytest.raises(ConfigError, match=r"replay.capacity = .*: expected rows such as .* or bytes such as 20GB"):
        ReplayConfig(capacity=text)


def build(most=None, free=False, **settings):
    window = Window(batch=1, length=3, context=1, context_crosses=free)
    return build_replay(
        ReplayConfig(**settings),
        obs_spec=OBS,
        action_spec=ACTION,
        extra_spec=EXTRA,
        num_envs=2,
        window=window,
        seed=0,
        max_rows=most,
    )


def test_a_capacity_in_bytes_counts_all_columns():
    replay = build(capacity="10kB")
    assert replay.nbytes <= 10_000 < replay.nbytes + 2 * ROW


def test_no_more_is_reserved_than_can_come_and_no_less_than_a_window():
    settings = ({"most": 30}, {"most": 2}, {"capacity": 6, "free": True}, {"capacity": 5, "free": True})
    assert [build(**given).storage.capacity for given in settings] == [15, 4, 3 + 1, 3 + 1]
