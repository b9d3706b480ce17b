"""The meter: means that never lose or mix what was added."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reverie.core.types import MetricVector
from reverie.log import meter as module
from reverie.log.meter import DeviceMeter


@pytest.fixture(params=["here", "on a device"], autouse=True)
def where(request, monkeypatch):
    """Scalars are read where they can be, and summed where they are as if they were on a GPU."""
    if request.param == "on a device":
        monkeypatch.setattr(module, "read_scalars", lambda metrics: (tuple(metrics), None))
        monkeypatch.setattr(module, "FOLD", 2)


def test_a_name_is_averaged_over_the_updates_that_reported_it():
    meter = DeviceMeter()
    meter.add({"x": torch.tensor(1.0)})
    meter.add({"x": torch.tensor(2.0), "y": torch.tensor(10.0)})
    meter.add({"x": torch.tensor(3.0)})
    assert meter.flush() == {"x": 2.0, "y": 10.0}


def test_values_may_be_overwritten_after_they_were_added():
    """A captured CUDA graph writes each step's metrics to the same memory."""
    meter, value = DeviceMeter(), torch.tensor(1.0)
    meter.add({"x": value})
    value.fill_(5.0)
    meter.add({"x": value})
    assert meter.flush() == {"x": 3.0}


def test_the_elements_of_a_vector_are_metrics():
    meter, metrics = DeviceMeter(), MetricVector(("x", "y"), torch.tensor([1.0, 2.0]))
    assert metrics == {"x": 1.0, "y": 2.0}
    assert "z" not in metrics
    meter.add(metrics)
    meter.add({"y": torch.tensor(4.0)})
    assert meter.flush() == {"x": 1.0, "y": 3.0}


def test_sums_of_many_values_lose_no_digits():
    """16,777,216 is the first whole number whose successor is no float32."""
    meter = DeviceMeter()
    for value in (2.0**24, 1.0, 1.0, 1.0):
        meter.add({"x": torch.tensor(value)})
    assert meter.flush() == {"x": (2.0**24 + 3) / 4}


def test_gradients_and_dtypes_are_no_matter():
    meter = DeviceMeter()
    meter.add({"a": torch.tensor(1.5, dtype=torch.bfloat16), "b": torch.tensor(2), "c": 3.0, "d": torch.tensor(True)})
    meter.add({"w": torch.ones((), requires_grad=True) * 2})
    assert meter.flush() == {"a": 1.5, "b": 2.0, "c": 3.0, "d": 1.0, "w": 2.0}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])  # it lasts as long as the test
@given(st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(-100, 100)), max_size=12))
def test_against_a_plain_mean(rows):
    meter = DeviceMeter()
    for row in rows:
        meter.add({name: torch.tensor(float(value)) for name, value in row.items()})
    flushed = meter.flush()
    for name in {name for row in rows for name in row}:
        values = [row[name] for row in rows if name in row]
        assert flushed.pop(name) == pytest.approx(sum(values) / len(values), abs=1e-5)
    assert not flushed
