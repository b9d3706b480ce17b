"""lambda_return against numbers by hand and against its definition as a sum over all n-step returns."""

import numpy as np
import pytest
import torch

from reverie.objectives.returns import lambda_return


def call(reward, terminal, last, bootstrap, discount, lam):
    as_row = lambda x: torch.from_numpy(np.asarray([x], dtype=np.float64))  # noqa: E731
    out = lambda_return(
        reward=as_row(reward), terminal=as_row(terminal), last=as_row(last),
        bootstrap=as_row(bootstrap), discount=discount, lam=lam,
    )  # fmt: skip
    return out[0].tolist()


def test_by_hand_without_ends():
    # R_1 = 3 + .5 * 8 = 7;  R_0 = 2 + .5 * (.5 * 4 + .5 * 7) = 4.75
    assert call([9, 2, 3], [0, 0, 0], [0, 0, 0], [1, 4, 8], 0.5, 0.5) == pytest.approx([4.75, 7.0])


def test_terminal_cuts_the_value_and_last_only_the_recursion():
    terminal = call([0, 1, 5], [0, 1, 0], [0, 1, 0], [10, 20, 30], 0.9, 0.95)
    truncated = call([0, 1, 5], [0, 0, 0], [0, 1, 0], [10, 20, 30], 0.9, 0.95)
    assert terminal[0] == pytest.approx(1.0)  # nothing after a terminal row
    assert truncated[0] == pytest.approx(1 + 0.9 * 20)  # the value of the row where the time ran out, unmixed
    assert terminal[1] == truncated[1]


def slow(reward, terminal, last, value, gamma, lam):
    """(1 - lambda) sum of lambda^(n-1) n-step returns, each written out."""
    steps, out = len(reward), []
    for t in range(steps - 1):
        end = next((k for k in range(t + 1, steps) if last[k] or terminal[k]), steps - 1)
        n_step = []
        for k in range(t + 1, end + 1):
            total = sum(gamma ** (i - t - 1) * reward[i] for i in range(t + 1, k + 1))
            n_step.append(total + gamma ** (k - t) * (0 if terminal[k] else value[k]))
        weights = [(1 - lam) * lam**i for i in range(len(n_step) - 1)]
        weights.append(1 - sum(weights))
        out.append(sum(w * r for w, r in zip(weights, n_step, strict=True)))
    return out


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("lam", [0.0, 0.5, 0.95, 1.0])
def test_against_definition(seed, lam):
    rng = np.random.default_rng(seed)
    steps = int(rng.integers(2, 12))
    reward, value = rng.normal(size=steps), rng.normal(size=steps)
    last = (rng.random(steps) < 0.3).astype(float)
    terminal = last * (rng.random(steps) < 0.5)
    got = call(reward, terminal, last, value, 0.97, lam)
    assert got == pytest.approx(slow(reward, terminal, last, value, 0.97, lam))


def test_shapes_are_checked():
    x = torch.zeros(2, 3)
    with pytest.raises(ValueError, match="shapes differ"):
        lambda_return(reward=x, terminal=x, last=x, bootstrap=x[:, :2], discount=1.0, lam=0.9)


SETTINGS = ["gamma0.997_lambda0.0", "gamma0.99_lambda0.95", "gamma0.9_lambda0.5", "gamma1.0_lambda1.0"]


@pytest.mark.parametrize("setting", SETTINGS)
def test_against_recorded_td_lambda(setting, golden):
    """Transition t of the recording is our row t + 1, bootstrapped with the recorded value of its next state."""
    z = golden("returns.npz")
    gamma, lam = (float(x) for x in setting.removeprefix("gamma").split("_lambda"))

    def row(name):  # the row before the first transition supplies nothing that a return reads
        x = torch.from_numpy(z[f"in/{name}"]).double()
        return torch.cat([torch.zeros_like(x[:, :1]), x], 1)

    got = lambda_return(
        reward=row("reward"), terminal=row("terminated"), last=row("done"),
        bootstrap=row("next_value"), discount=gamma, lam=lam,
    )  # fmt: skip
    torch.testing.assert_close(got, torch.from_numpy(z[f"out/{setting}/td_lambda"]), rtol=1e-6, atol=1e-6)
