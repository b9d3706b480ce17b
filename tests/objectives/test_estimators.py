"""Estimators as settings: each computes the function it names, and errors say what would do instead."""

import math
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.objectives import returns
from reverie.objectives.estimators import GAE, TD0, TD1, NStep, SingleBootstrap, TDLambda, ValueEstimator, VTrace

ESTIMATORS = (TD0, TD1, NStep, TDLambda, GAE, VTrace)


@pytest.fixture
def rows():
    rng = np.random.default_rng(0)
    last = rng.random((3, 8)) < 0.3
    numbers = {k: torch.from_numpy(rng.normal(size=(3, 8))) for k in ("reward", "value")}
    ends = {"last": torch.from_numpy(last), "terminal": torch.from_numpy(last & (rng.random((3, 8)) < 0.5))}
    return numbers | ends | {"discount": 0.9}


@pytest.fixture
def behavior():
    rng = np.random.default_rng(1)
    return {k: torch.from_numpy(rng.normal(size=(3, 8))) for k in ("log_pi", "log_mu")}


def targets(estimator, rows):
    """The targets as learners compute them: from a batch, and the values of rows 1 ... T-1."""
    batch = SimpleNamespace(reward=rows["reward"], is_terminal=rows["terminal"], is_last=rows["last"])
    there = returns.transition_mask(rows["last"])
    return torch.where(there, estimator(batch, rows["value"][:, 1:], rows["discount"]), rows["value"][:, :-1])


def test_estimates(rows, behavior):
    for estimator, expected in (
        (TD0(), returns.td0(**rows)), (TD1(), returns.td1(**rows)), (NStep(2), returns.n_step(**rows, n=2)),
        (TDLambda(0.7), returns.td_lambda(**rows, lam=0.7)),
    ):  # fmt: skip
        advantage, target = estimator.estimate(**rows)
        assert torch.equal(target, expected)
        assert torch.equal(target, targets(estimator, rows))
        assert torch.equal(advantage, target - rows["value"][:, :-1])
        assert (advantage[~returns.transition_mask(rows["last"])] == 0).all()
    expected = returns.gae(**rows, lam=0.7)
    torch.testing.assert_close(targets(GAE(0.7), rows), expected.target)
    assert all(map(torch.equal, GAE(0.7).estimate(**rows, **behavior), expected))
    settings = {"lam": 0.9, "rho_max": 2.0, "c_max": 0.5}
    expected = returns.vtrace(**rows, **behavior, **settings)
    assert all(map(torch.equal, VTrace(**settings).estimate(**rows, **behavior), expected))


def test_targets_keep_the_gradient_they_are_given(rows):
    assert not targets(TDLambda(), rows).requires_grad
    rows["value"].requires_grad_()
    for kind in ESTIMATORS[:-1]:
        assert targets(kind(), rows).requires_grad
        with torch.no_grad():
            assert not targets(kind(), rows).requires_grad


def test_rows_is_the_least_window(rows):
    assert [e().min_rows for e in ESTIMATORS] == [2, 2, 4, 2, 2, 2]
    window = lambda length: {k: v[:, :length] if k != "discount" else v for k, v in rows.items()}  # noqa: E731
    for estimator in (TD0(), TD1(), NStep(1), NStep(5), TDLambda(), GAE()):
        assert targets(estimator, window(estimator.min_rows)).shape == (3, estimator.min_rows - 1)
        estimator.check_window(estimator.min_rows)
        with pytest.raises(ConfigError, match=f"expected at least {estimator.min_rows}"):
            estimator.check_window(estimator.min_rows - 1)


@pytest.mark.parametrize("call", [
    lambda rows, log_pi: targets(VTrace(), rows), lambda rows, log_pi: VTrace().estimate(**rows, log_pi=log_pi),
])  # fmt: skip
def test_vtrace_needs_to_know_how_likely_each_action_was(call, rows, behavior):
    with pytest.raises(ConfigError, match="log-probabilities"):
        call(rows, behavior["log_pi"])


@dataclass(frozen=True)
class Sooner(SingleBootstrap):
    """One that is not the library's: the value of the row after two steps, or one."""

    several: bool | None = True

    def steps(self, rows: int) -> int:
        return {True: 2, False: 1, None: 0}[self.several]


@dataclass(frozen=True)
class Hopeful(ValueEstimator):
    """The better of two estimates."""

    lam: float = 0.5

    @staticmethod
    def function(*, lam, **rows):
        return torch.maximum(returns.td0(**rows), returns.td_lambda(**rows, lam=lam))


def test_others_derive_from_the_same_classes(rows):
    assert torch.equal(targets(Sooner(), rows), returns.n_step(**rows, n=2))
    assert torch.equal(targets(Sooner(False), rows), returns.td0(**rows))
    more = targets(Hopeful(0.9), rows) - returns.td0(**rows)
    assert more.min() == 0 < more.max()


@pytest.mark.parametrize("estimator", [TD0(), TD1(), NStep(3), Sooner()])
def test_one_row_estimators_say_which_row(estimator, rows):
    view = estimator.bootstrap(**{k: v for k, v in rows.items() if k != "value"})
    got = view.reward + view.discount * rows["value"].gather(1, view.row)
    torch.testing.assert_close(got, targets(estimator, rows))


def test_they_are_settings():
    for kind in ESTIMATORS:
        estimator = kind()
        assert isinstance(estimator, ValueEstimator)
        assert isinstance(estimator, Config)
        assert kind().merge(estimator.to_dict()) == estimator
    assert VTrace() == VTrace(lam=1.0, rho_max=1.0, c_max=1.0)  # as published
    assert VTrace(rho_max=math.inf, c_max=math.inf).rho_max == math.inf  # not cut at all
    assert NStep().merge({"n": "5"}) == NStep(5)
    assert TDLambda(0.9).replace("lam", 0.5) == TDLambda(lam=0.5)
