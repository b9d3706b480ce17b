"""Returns against numbers by hand, against their definitions written the slow way, and against TorchRL's."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reverie.objectives import returns
from reverie.objectives.returns import gae, lambda_return, n_step_bootstrap, transition_mask, vtrace

NAMES = ["td0", "td1", "n_step", "td_lambda", "gae", "vtrace"]


def tensors(rows):
    """Lists of numbers ``[T]`` or ``[B, T]`` as float64 ``[B, T]``; ends as bool."""
    out = {k: torch.tensor(np.atleast_2d(v), dtype=torch.float64) for k, v in rows.items()}
    return {k: v.bool() if k in ("terminal", "last") else v for k, v in out.items()}


# The end is terminal: nothing comes after it. Or the time ran out there, whose value counts unmixed.
@pytest.mark.parametrize(
    ("reward", "terminal", "last", "bootstrap", "discount", "lam", "expected"),
    [([9, 2, 3], [0, 0, 0], [0, 0, 0], [1, 4, 8], 0.5, 0.5, [2 + 0.5 * (0.5 * 4 + 0.5 * 7), 3 + 0.5 * 8]),
     ([0, 1, 5], [0, 1, 0], [0, 1, 0], [10, 20, 30], 0.9, 0.95, [1, 5 + 0.9 * 30]),
     ([0, 1, 5], [0, 0, 0], [0, 1, 0], [10, 20, 30], 0.9, 0.95, [1 + 0.9 * 20, 5 + 0.9 * 30])],
)  # fmt: skip
def test_lambda_return_by_hand(reward, terminal, last, bootstrap, discount, lam, expected):
    rows = tensors({"reward": reward, "value": bootstrap})
    cont, mixed = discount * (1 - torch.tensor([terminal])), lam * (1 - torch.tensor([last]))
    assert lambda_return(rows["reward"], cont, rows["value"], mixed)[0].tolist() == pytest.approx(expected)
    by_column = lambda_return(rows["reward"].T, cont.T, rows["value"].T, mixed.T, dim=0)
    assert by_column[:, 0].tolist() == pytest.approx(expected)


def plain(rows):
    return {k: v for k, v in rows.items() if k not in ("log_pi", "log_mu")}


def compute(name, rows, discount, lam=0.9, n=3):
    """The targets of one estimator, from tensors."""
    options = {"td0": {}, "td1": {}, "n_step": {"n": n}}.get(name, {"lam": lam})
    found = getattr(returns, name)(**(rows if name == "vtrace" else plain(rows)), discount=discount, **options)
    return getattr(found, "target", found)


# One episode that times out at row 2, one that is over at row 5, and the beginning of a third.
HAND = {
    "reward": [9, 1, 2, 0, 4, 8, 0, 2],
    "terminal": [0, 0, 0, 0, 0, 1, 0, 0],
    "last": [0, 0, 1, 0, 0, 1, 0, 0],
    "value": [3, 5, 16, 1, 7, 99, 6, 10],
}
LIKELY = {"log_pi": np.log([0.5, 4.0, 1.0, 0.5, 0.5, 1.0, 2.0, 1.0]), "log_mu": np.zeros(8)}


# Slow definitions: each target by its formula, one row at a time. x holds lists, t is a row, g is gamma.


def slow_n_step(x, t, g, n):
    """r_{t+1} + ... + gamma^m v_{t+m}, up to n steps, the end of the episode or that of the window."""
    if x["last"][t]:
        return x["value"][t]
    total, factor = 0.0, 1.0
    for k in range(t + 1, min(t + n, len(x["reward"]) - 1) + 1):
        total += factor * x["reward"][k]
        if x["terminal"][k]:
            return total
        factor *= g
        if x["last"][k]:
            break
    return total + factor * x["value"][k]


def slow_end(x, t):
    """The first row after t where a sum must stop."""
    end = len(x["reward"]) - 1
    return next((k for k in range(t + 1, end) if x["last"][k] or x["terminal"][k]), end)


def slow_td_lambda(x, t, g, lam):
    """(1 - lambda) sum lambda^(n-1) G^(n), what is left of the weight going to the longest."""
    if x["last"][t]:
        return x["value"][t]
    steps = slow_end(x, t) - t
    total = sum((1 - lam) * lam ** (n - 1) * slow_n_step(x, t, g, n) for n in range(1, steps))
    return total + lam ** (steps - 1) * slow_n_step(x, t, g, steps)


def slow_error(x, t, g):
    """delta_t."""
    return x["reward"][t + 1] + g * (1 - x["terminal"][t + 1]) * x["value"][t + 1] - x["value"][t]


def slow_gae(x, t, g, lam):
    """sum_l (gamma lambda)^l delta_{t+l} up to the end of the episode."""
    return sum((g * lam) ** (k - t) * slow_error(x, k, g) for k in range(t, t if x["last"][t] else slow_end(x, t)))


def slow_vtrace(x, t, g, lam, rho_max, c_max):
    """v_t + sum_k gamma^(k-t) (c_t ... c_{k-1}) delta_k."""
    if x["last"][t]:
        return x["value"][t]
    ratio = [math.exp(p - m) for p, m in zip(x["log_pi"], x["log_mu"], strict=True)]
    total = x["value"][t]
    for k in range(t, slow_end(x, t)):
        carried = math.prod(lam * min(c_max, ratio[i]) for i in range(t, k))
        total += g ** (k - t) * carried * min(rho_max, ratio[k]) * slow_error(x, k, g)
    return total


def slow_vtrace_advantage(x, t, g, lam, rho_max, c_max):
    """rho_t (r_{t+1} + gamma G_{t+1} - v_t)."""
    if x["last"][t]:
        return 0.0
    end = t + 2 == len(x["reward"])
    following = x["value"][t + 1] if end else slow_vtrace(x, t + 1, g, lam, rho_max, c_max)
    rho = min(rho_max, math.exp(x["log_pi"][t] - x["log_mu"][t]))
    return rho * (x["reward"][t + 1] + g * (1 - x["terminal"][t + 1]) * following - x["value"][t])


FIELDS = ["reward", "value", "log_pi", "log_mu"]
ENDS = st.sampled_from([(0, 0)] * 4 + [(0, 1), (1, 1), (1, 0)])  # (terminal, last); a lost life is terminal alone


@st.composite
def windows(draw):
    """Random rows as lists of windows, ``[B][T]`` for each field."""
    batch, steps = draw(st.integers(1, 3)), draw(st.integers(2, 9))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    ends = np.array(draw(st.lists(ENDS, min_size=batch * steps, max_size=batch * steps)))
    rows = {name: rng.normal(size=(batch, steps)) for name in FIELDS}
    return rows | dict(zip(("terminal", "last"), ends.T.reshape(2, batch, steps), strict=True))


def close(got, rows, function, *settings):
    """Whether a slow definition says the same of all rows but the last, ``[B, T - 1]``."""
    batch, steps = rows["reward"].shape
    lists = [{k: v[b].tolist() for k, v in rows.items()} for b in range(batch)]
    expected = [[function(x, t, *settings) for t in range(steps - 1)] for x in lists]
    torch.testing.assert_close(got, torch.tensor(expected, dtype=torch.float64), rtol=1e-10, atol=1e-10)


unit = st.floats(0, 1)


@given(windows(), unit, st.integers(1, 12))
def test_n_step_against_definition(rows, g, n):
    x = tensors(rows)
    close(compute("n_step", x, g, n=n), rows, slow_n_step, g, n)
    close(compute("td0", x, g), rows, slow_n_step, g, 1)
    close(compute("td1", x, g), rows, slow_n_step, g, len(rows["reward"][0]))


@given(windows(), unit, unit)
def test_lambda_against_definition(rows, g, lam):
    x = tensors(rows)
    close(compute("td_lambda", x, g, lam), rows, slow_td_lambda, g, lam)
    got = gae(**plain(x), discount=g, lam=lam)
    close(got.advantage, rows, slow_gae, g, lam)
    close(got.target - x["value"][:, :-1], rows, slow_gae, g, lam)


@given(windows(), unit, unit, st.floats(0.1, 3), unit)
def test_vtrace_against_definition(rows, g, lam, rho_max, c_share):
    settings = {"lam": lam, "rho_max": rho_max, "c_max": c_share * rho_max}
    got = vtrace(**tensors(rows), discount=g, **settings)
    close(got.target, rows, slow_vtrace, g, *settings.values())
    close(got.advantage, rows, slow_vtrace_advantage, g, *settings.values())


@given(windows(), unit, st.integers(1, 12))
def test_n_step_bootstrap_names_the_row(rows, g, n):
    x = tensors(rows)
    parts = {k: x[k] for k in ("reward", "terminal", "last")}
    view = n_step_bootstrap(**parts, discount=g, n=n)
    found = view.reward + view.discount * x["value"].gather(1, view.row)
    torch.testing.assert_close(found, compute("n_step", x, g, n=n), rtol=1e-10, atol=1e-10)
    ahead, goes_on = view.row - torch.arange(view.row.shape[1]), transition_mask(x["last"])
    assert ((ahead <= n) & (ahead >= 0)).all()
    assert torch.equal(ahead > 0, goes_on)  # only the last row of an episode stays where it is
    assert (view.discount[x["terminal"].gather(1, view.row) & goes_on] == 0).all()


@pytest.mark.parametrize("name", NAMES)
def test_all_shapes_are_checked(name):
    rows = tensors(HAND | LIKELY)
    for field in rows if name == "vtrace" else HAND:
        message = r"expected \(1, 7\)" if field == "reward" else rf"{field} has shape \(1, 7\): expected \(1, 8\)"
        with pytest.raises(ValueError, match=message):
            compute(name, rows | {field: rows[field][:, :-1]}, 0.9)


@pytest.mark.parametrize("name", NAMES)
def test_the_next_episode_is_not_seen(name):
    """What stands in the next episode changes nothing; nor does the log-probability of an action never taken."""
    rows = tensors(HAND | LIKELY)
    expected = compute(name, rows, 0.9)
    rows["reward"][0, 3], rows["value"][0, 3] = 1e9, -1e9  # the first row of the second episode
    rows["log_pi"][0, [2, 5, 7]], rows["log_mu"][0, [2, 5, 7]] = math.nan, -math.inf
    got = compute(name, rows, 0.9)
    others = [0, 1, 2, 4, 5, 6]
    assert got[0, others].tolist() == expected[0, others].tolist()


def test_long_windows_keep_their_precision():
    """Nothing divides by powers of gamma: a thousand steps in float32 agree with float64 to its precision."""
    rng = np.random.default_rng(0)
    rows = {k: rng.normal(size=(2, 1000)) for k in FIELDS}
    exact = tensors(rows | {k: rng.random((2, 1000)) < 0.002 for k in ("terminal", "last")})
    single = {k: v if v.dtype == torch.bool else v.float() for k, v in exact.items()}
    for name in NAMES:
        got = compute(name, single, 0.9, n=700).double()
        torch.testing.assert_close(got, compute(name, exact, 0.9, n=700), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
def test_gradients_reach_what_a_target_is_made_of(name):
    """The terminal row's value is cut off, that of a last row is not; those in between as the estimator bootstraps."""
    rows = tensors(HAND | LIKELY)
    rows["value"].requires_grad_()
    target = compute(name, rows, discount=0.5, lam=0.75, n=2)
    row = lambda t: torch.autograd.grad(target[0, t], rows["value"], retain_graph=True)[0][0].tolist()  # noqa: E731
    assert row(2) == [0, 0, 1, 0, 0, 0, 0, 0]
    assert row(1)[2] == 0.5
    assert row(4)[5:] == [0, 0, 0]
    assert (row(0)[1] == 0) == (name in ("td1", "n_step"))
    assert (row(4)[4] == 0) == (name != "vtrace")


def test_vtrace_gradients_are_finite_where_no_action_was_taken():
    rows = tensors(HAND | LIKELY)
    rows["log_pi"][0, [2, 5, 7]] = torch.tensor([math.inf, math.nan, -math.inf], dtype=torch.float64)
    rows["log_pi"].requires_grad_()
    sum(x.sum() for x in vtrace(**rows, discount=0.9)).backward()
    grad = rows["log_pi"].grad[0]
    assert torch.isfinite(grad).all()
    assert grad[[2, 5, 7]].tolist() == [0, 0, 0] != grad[[0, 2, 5]].tolist()


def episodes(z, b):
    """Recorded transitions as rows, an episode's last observation being one of its own; and where each begins.

    The recording has two values for one observation, ``next_value`` of the transition before and ``value`` of the one
    after. Rows have one: ``next_value``, and ``value`` where an episode begins.
    """
    x = {k: z[f"in/{k}"][b] for k in ("reward", "done", "terminated", "value", "next_value", "log_pi", "log_mu")}
    begin = {"reward": 0.0, "terminal": 0, "last": 0}
    rows, start = [], []
    for t, done in enumerate(x["done"]):
        if t == 0 or x["done"][t - 1]:
            rows.append(begin | {"value": x["value"][t]})
        rows[-1] |= {"log_pi": x["log_pi"][t], "log_mu": x["log_mu"][t]}
        start.append(len(rows) - 1)
        rows.append(
            {"reward": x["reward"][t], "terminal": x["terminated"][t], "last": done, "value": x["next_value"][t]}
        )
    never = {"log_pi": math.nan, "log_mu": math.nan}
    return {k: np.array([(never | row)[k] for row in rows]) for k in [*begin, "value", *never]}, start


@pytest.fixture(params=[(0.997, 0.0), (0.99, 0.95), (0.9, 0.5), (1.0, 1.0)], ids=str)
def recording(request, golden):
    """Gamma, lambda, the recording, and a function that returns an output of each of its windows by name."""
    z, (gamma, lam) = golden("returns.npz"), request.param
    return gamma, lam, z, lambda name: z[f"out/gamma{gamma}_lambda{lam}/{name}"]


def same(got, start, expected):
    np.testing.assert_allclose(got[0].numpy()[start], expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", ["td0", "td1", "td_lambda"])
def test_targets_against_recording(recording, name):
    gamma, lam, z, recorded = recording
    for b, expected in enumerate(recorded(name)):
        rows, start = episodes(z, b)
        same(compute(name, tensors(rows), gamma, lam), start, expected)


def shifted(z, b):
    """Rows whose rewards make up for the two values of one observation, so that all errors delta are as recorded."""
    rows, start = episodes(z, b)
    surplus = rows["value"][start] - z["in/value"][b]
    rows["reward"][np.array(start) + 1] += surplus
    return tensors(rows), start, surplus


def test_gae_against_recording(recording):
    gamma, lam, z, recorded = recording
    for b, expected in enumerate(zip(recorded("gae_advantage"), recorded("gae_target"), strict=True)):
        rows, start, surplus = shifted(z, b)
        got = gae(**plain(rows), discount=gamma, lam=lam)
        same(got.advantage, start, expected[0])
        same(got.target, start, expected[1] + surplus)


def test_vtrace_against_recording(recording):
    gamma, _, z, recorded = recording
    for b, expected in enumerate(zip(recorded("vtrace_advantage"), recorded("vtrace_target"), strict=True)):
        rows, start, surplus = shifted(z, b)
        got = vtrace(**rows, discount=gamma)
        same(got.target, start, expected[1] + surplus)
        # An advantage also holds the target of the next row, and with it that row's surplus, if its episode goes on.
        rho = np.exp(np.minimum(0, z["in/log_pi"][b] - z["in/log_mu"][b]))
        following = np.append(surplus[1:], 0) * ~z["in/done"][b]
        same(got.advantage, start, expected[0] + rho * gamma * following)


@pytest.mark.parametrize("steps", [1, 2, 7, 64, 100])
def test_the_parallel_scan_of_gpus_is_the_loop(steps):
    torch.manual_seed(0)
    step, carry = torch.randn(3, steps, dtype=torch.float64), torch.rand(3, steps, dtype=torch.float64)
    carry[torch.rand(3, steps) < 0.2] = 0  # ends of episodes
    inputs = [step.requires_grad_(), carry.requires_grad_(), torch.randn(3, dtype=torch.float64, requires_grad=True)]
    loop, scan = returns.accumulate(*inputs), returns._scan(*inputs)
    torch.testing.assert_close(scan, loop)
    grad = torch.randn_like(loop)
    torch.testing.assert_close(torch.autograd.grad(scan, inputs, grad), torch.autograd.grad(loop, inputs, grad))
