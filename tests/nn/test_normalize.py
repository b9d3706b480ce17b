"""Statistics of rows against NumPy's of all rows at once; which rows move them; what is done with them."""

from __future__ import annotations

import copy
import math
import tracemalloc

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart
from reverie.nn.normalization import (
    CHUNK_ROWS,
    CONSTANT_CHECK_ROWS,
    Fixed,
    Moments,
    NormalizeConfig,
    ObsNormalizer,
    Running,
)
from reverie.nn.reward_scaling import ReturnScaler, running_returns

SPEC = {
    "state": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
    "a.b/c": ObsPart(kind="vector", shape=(), dtype="float32"),
    "image": ObsPart(kind="image", shape=(4, 4, 1), dtype="uint8"),
    "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 4)),
}
VECTOR = {"observation": ObsPart(kind="vector", shape=(3,), dtype="float32")}


def rows(count: int, seed: int = 0) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "state": torch.randn(count, 2, 2, generator=g) * torch.tensor([[0.1, 3.0], [50.0, 0.01]]) + 7,
        "a.b/c": torch.randn(count, generator=g) - 2,
        "image": torch.randint(0, 256, (count, 4, 4, 1), generator=g, dtype=torch.uint8),
        "token": torch.randint(0, 3, (count, 2), generator=g),
    }


def fed(cfg: NormalizeConfig, seen: dict[str, torch.Tensor], envs: int) -> ObsNormalizer:
    """A normalizer that has seen these rows, a few at a time."""
    made = ObsNormalizer({key: part for key, part in (SPEC | VECTOR).items() if key in seen}, cfg)
    for i in range(0, len(next(iter(seen.values()))), envs):
        made.add({k: v[i : i + envs] for k, v in seen.items()})
    return made


def assert_normalized(got: torch.Tensor, seen: torch.Tensor, x: torch.Tensor) -> None:
    """Of all rows that were seen, in float64."""
    past = seen.double().numpy()
    expected = np.clip((x.double().numpy() - past.mean(0)) / past.std(0), -10, 10)
    np.testing.assert_allclose(got.numpy(), expected, rtol=1e-4, atol=1e-4)


@settings(max_examples=25, deadline=None)
@given(chunks=st.lists(st.integers(0, 5), min_size=1, max_size=12), offset=st.sampled_from([0.0, -3.0, 1e6]),
       shape=st.sampled_from([(), (3,), (2, 2)]))  # fmt: skip
def test_moments_are_those_of_all_rows_however_they_come(chunks, offset, shape) -> None:
    g = np.random.default_rng(len(chunks))
    x = (g.standard_normal((sum(chunks), *shape)) * 0.5 + offset).astype(np.float32)
    moments = Moments(shape)
    for part in np.split(x, np.cumsum(chunks)[:-1]):
        moments.add(torch.from_numpy(part))
    assert moments.count == len(x)
    if len(x):
        (mean, std), wide = moments.mean_and_std(), x.astype(np.float64)
        np.testing.assert_allclose(mean, wide.mean(0), rtol=1e-12, atol=1e-12)
        np.testing.assert_allclose(std, wide.std(0), rtol=1e-7, atol=1e-9)
        assert mean.shape == std.shape == shape


def test_many_rows_at_once_take_little_memory() -> None:
    x, moments = torch.randn(5 * CHUNK_ROWS + 3, 40) + 100, Moments((40,))
    tracemalloc.start()
    moments.add(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2 * x.nbytes
    mean, std = moments.mean_and_std()
    np.testing.assert_allclose(mean, x.double().mean(0), rtol=1e-13)
    np.testing.assert_allclose(std, x.double().std(0, unbiased=False), rtol=1e-11)


@pytest.mark.parametrize("cfg", [Fixed(50), Running()])
def test_vectors_have_mean_0_and_deviation_1_and_nothing_else_changes(cfg: NormalizeConfig) -> None:
    seen, x = rows(50), rows(8, seed=1)
    made = fed(cfg, seen, envs=2)
    got = made(x)
    for key in ("state", "a.b/c"):
        assert_normalized(got[key], seen[key], x[key])
        assert got[key].dtype == torch.float32
    assert all(got[key] is x[key] for key in ("image", "token"))
    windows = {k: v.unflatten(0, (2, 4)) for k, v in x.items()}
    assert torch.equal(made(windows)["state"], got["state"].unflatten(0, (2, 4)))


@pytest.mark.parametrize(("seen", "x", "expected"), [
    ([[0.0, 0.0, 0.0], [2.0, 2.0, 2.0]], [3.0, 100.0, -math.inf], [2.0, 2.5, -2.5]),  # far off numbers are cut
    ([[1.0, -2.0, 3.0]], [2.0, -1.0, 4.0], [1.0, 1.0, 1.0]),  # one row is shifted and not divided by zero
])  # fmt: skip
def test_by_hand(seen, x, expected) -> None:
    made = fed(Running(clip=2.5), {"observation": torch.tensor(seen)}, envs=2)
    assert made({"observation": torch.tensor(x)})["observation"].tolist() == expected


def test_without_vectors_it_is_refused() -> None:
    with pytest.raises(ConfigError, match="only vectors are normalized"):
        ObsNormalizer({"image": SPEC["image"]}, Running())


@pytest.mark.parametrize("envs", [1, 3, 8])
def test_fixed_statistics_are_of_the_first_rows_exactly(envs: int) -> None:
    seen = rows(48)
    made = fed(Fixed(20), seen, envs)
    assert made.count == 20
    assert_normalized(made(seen)["state"], seen["state"][:20], seen["state"])


def test_numbers_that_never_change_are_said_once_and_not_scaled(capsys: pytest.CaptureFixture[str]) -> None:
    seen = rows(80)
    seen["state"][:40, 1, 0] = 123.456
    seen["a.b/c"][:40] = 0.0
    got = fed(Fixed(40), seen, envs=4)(seen)
    said = capsys.readouterr().err
    assert "1 numbers of observation 'state', the first at [1, 0], did not change" in said
    assert "1 numbers of observation 'a.b/c'" in said
    assert got["state"][:40, 1, 0].abs().max() < 1e-4
    assert got["a.b/c"][40:].tolist() == seen["a.b/c"][40:].tolist()
    assert_normalized(got["state"][:, 0], seen["state"][:40, 0], seen["state"][:, 0])


def test_running_statistics_are_looked_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.randn(CONSTANT_CHECK_ROWS + 500, 3)
    x[:, 1] = 5.0
    fed(Running(), {"observation": x}, envs=100)
    said = capsys.readouterr().err
    assert f"'observation', the first at [1], did not change in {CONSTANT_CHECK_ROWS} rows" in said
    assert said.count("did not change") == 1


def test_small_units_are_units_and_rounding_is_none() -> None:
    x = torch.randn(200, 3) * torch.tensor([1e-12, 1e-4, 1e-40])
    x[:, 1] += 1000  # float32 has steps of 6e-5 there
    got = fed(Running(), {"observation": x}, envs=200)({"observation": x})["observation"]
    assert got[:, 0].std() == pytest.approx(1, rel=0.01)
    assert got[:, 1].abs().max() < 1e-3
    assert got[:, 2].abs().max() < 1e-30


def lives(steps: int = 60, envs: int = 2, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Rewards and first rows ``[N, n]`` of episodes of random lengths."""
    g = torch.Generator().manual_seed(seed)
    first = torch.rand(envs, steps, generator=g) < 0.2
    first[:, 0] = True
    return (torch.randn(envs, steps, generator=g) * 5 + 2) * ~first, first


def one_by_one(reward: torch.Tensor, first: torch.Tensor, *scalers: ReturnScaler) -> None:
    for scaler in scalers:
        for row in zip(reward.T, first.T, strict=True):
            scaler.add(*row)


def test_rows_at_once_are_rows_one_by_one() -> None:
    one, all_ = ReturnScaler(0.9, None), ReturnScaler(0.9, None)
    one_by_one(*lives(), one)
    all_.add(*(x[:, 0] for x in lives(seed=5)))
    all_.fit(*lives())
    assert float(all_.factor) == pytest.approx(float(one.factor), rel=1e-6)
    assert all_.moments.count == one.moments.count


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4), st.integers(0, 30), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 2**32 - 1))
def test_running_returns_are_to_the_last_bit_those_of_one_row_after_the_other(streams, rows, often, seed) -> None:
    g = np.random.default_rng(seed)
    reward, first = g.normal(size=(streams, rows)), g.random((streams, rows)) < often
    expected = np.zeros_like(reward)
    earned = np.zeros(streams)
    for t in range(rows):
        expected[:, t] = earned = np.where(first[:, t], 0.0, reward[:, t] + 0.97 * earned)
    found = running_returns(reward, first, 0.97)
    assert found.dtype == np.float64
    np.testing.assert_array_equal(found, expected)


def test_no_return_exceeds_its_limit() -> None:
    """SimbaV2, section 4: divide by max(std, largest |G| / limit)."""
    limited, plain, at_once = ReturnScaler(0.9, None, 0.5), ReturnScaler(0.9, None), ReturnScaler(0.9, None, 0.5)
    one_by_one(*lives(), limited, plain)
    at_once.fit(*lives())
    reward, first = (x.numpy() for x in lives())
    largest = abs(running_returns(reward.astype(np.float64), first, 0.9)).max()
    assert float(limited.factor) == pytest.approx(0.5 / largest, rel=1e-6)
    assert float(at_once.factor) == float(limited.factor) < float(plain.factor)


@pytest.mark.parametrize(("limit", "measure"), [(None, np.std), (0.5, lambda returns: 10 * abs(returns).max())])
def test_scaled_returns_have_the_deviation_that_was_asked_for(limit, measure) -> None:
    scaler = ReturnScaler(0.9, None, limit, std=5.0)
    one_by_one(*lives(), scaler)
    reward, first = lives()
    returns = running_returns(scaler(reward).double().numpy(), first.numpy(), 0.9)
    assert measure(returns[~first.numpy()]) == pytest.approx(5.0, rel=1e-5)


def test_as_long_as_nothing_was_earned_rewards_are_as_they_are() -> None:
    scaler = ReturnScaler(0.9, 10.0)
    one_by_one(torch.zeros(1, 3), torch.tensor([[True, False, False]]), scaler)
    assert scaler(torch.tensor([3.0, -20.0])).tolist() == [3.0, -10.0]


def test_returns_of_running_episodes_are_saved_for_as_many_environments_as_there_were() -> None:
    scaler, again = ReturnScaler(0.9, None), ReturnScaler(0.9, None)
    reward, first = lives(envs=3)
    one_by_one(reward[:, :30], first[:, :30], scaler)
    again.load_state_dict(copy.deepcopy(scaler.state_dict()))
    one_by_one(reward[:, 30:], first[:, 30:], scaler, again)
    torch.testing.assert_close(again.state_dict(), scaler.state_dict(), rtol=0, atol=0)
    again.add(torch.ones(2), torch.tensor([True, True]))  # another number now: new episodes
    assert again.returns.tolist() == [0.0, 0.0]
