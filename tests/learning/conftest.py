"""What the tests of learning share."""

import pytest


@pytest.fixture(autouse=True)
def _without_forecast(monkeypatch):
    """Runs are not timed before they begin, which changes nothing that they learn."""
    monkeypatch.setattr("reverie.api.with_forecast", lambda experiment: experiment)
