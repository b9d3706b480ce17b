"""Every kernel computes what its definition does: values, gradients, what is written in place; and else stays out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from reverie.core.accelerate import Kernel, only
from reverie.core.compiler import kernels
from reverie.kernels.table import ROWS
from reverie.objectives import quantile

pytestmark = pytest.mark.skipif(kernels() is None, reason="nothing is compiled")
VARIANTS = ["plain", "odd", "one", "none", "strided", "nan", "threads", "large"]


class Case(NamedTuple):
    """Inputs of a definition."""

    make: Callable[[Callable[..., Tensor], dict[str, Any]], Any]
    """``make(normal, sizes)`` returns the arguments; ``normal(*shape)`` draws numbers."""
    grads: tuple[int, ...] = ()
    """Which tensors among the arguments have a gradient."""
    tolerance: float = 1e-5
    unfit: tuple[str, ...] = ("none",)
    """Variants that the kernel leaves to the definition."""


SIZES = {
    "plain": {"m": 12, "n": 16, "k": 8},
    "odd": {"m": 7, "n": 33, "k": 5},
    "one": {"m": 1, "n": 1, "k": 1},
    "none": {"m": 0, "n": 16, "k": 8},
    "large": {"m": 300, "n": 130, "k": 70},
}


def distributions(normal, s):
    return normal(s["m"], 3, s["n"]), normal(s["m"], 3, s["k"])


CASES: dict[str, list[Case]] = {
    "quantile_huber": [
        Case(distributions, grads=(0,)),
        Case(lambda normal, s: (*distributions(normal, s), 0.0), grads=(0,)),
    ],
}


def mapped(function: Callable[[Tensor], Tensor], x: Any) -> Any:
    """Apply ``function`` to the tensors in nested arguments."""
    if isinstance(x, Tensor):
        return function(x)
    if isinstance(x, list | tuple):
        parts = [mapped(function, part) for part in x]
        return type(x)(*parts) if hasattr(x, "_fields") else type(x)(parts)
    if isinstance(x, dict):
        return {key: mapped(function, part) for key, part in x.items()}
    if dataclasses.is_dataclass(x) and not isinstance(x, type):
        return dataclasses.replace(x, **{f.name: mapped(function, getattr(x, f.name)) for f in dataclasses.fields(x)})
    return x


def tensors(x: Any) -> list[Tensor]:
    found: list[Tensor] = []
    mapped(lambda t: found.append(t) or t, x)
    return found


def gapped(x: Tensor) -> Tensor:
    """The same numbers with gaps between them."""
    if not x.ndim:
        return x
    return torch.empty(*x.shape, 3, dtype=x.dtype)[..., 1].copy_(x)


def inputs(case: Case, variant: str) -> Any:
    g = torch.Generator().manual_seed(1)
    given = case.make(lambda *shape: torch.randn(shape, generator=g), SIZES.get(variant, SIZES["plain"]))
    if variant == "strided":
        given = mapped(gapped, given)
    if variant == "nan":
        first = tensors(given)[0]
        first.view(-1)[0] = torch.nan
    for i in case.grads:
        tensors(given)[i].requires_grad_()
    return given


def outcome(definition: Callable[..., Any], given: Any) -> Any:
    """Results, gradients, the arguments afterwards, and the random number that comes next."""
    torch.manual_seed(5)
    leaves = [x for x in tensors(given) if x.requires_grad]
    out = definition(*given)
    results = tensors(out)
    tracked = [x for x in results if x.requires_grad]
    g = torch.Generator().manual_seed(2)
    total = sum((x * torch.randn(x.shape, generator=g)).sum() for x in tracked)
    grads = torch.autograd.grad(total, leaves, allow_unused=True) if tracked else ()
    return [x.detach() for x in results], grads, [x.detach() for x in tensors(given)], torch.rand(())


def spied(kernel: Kernel) -> tuple[Kernel, list[int]]:
    calls: list[int] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return kernel.run(*args, **kwargs)

    return Kernel(kernel.fits, run), calls


def name_of(definition: Callable[..., Any]) -> str:
    return definition.__qualname__


EACH = [(*row, case) for row in ROWS for case in CASES[name_of(row[0])]]
NAMES = [f"{name_of(definition)}{i}" for definition, _ in ROWS for i in range(len(CASES[name_of(definition)]))]


@pytest.fixture
def alone(request):
    """A definition whose only kernel notes its calls."""
    definition, kernel, case = request.param
    noted, calls = spied(kernel)
    rows = definition.__closure__[definition.__code__.co_freevars.index("kernels")].cell_contents
    with only():
        rows.append(noted)
        yield definition, case, calls
    assert noted not in rows


@pytest.fixture
def threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("alone", EACH, ids=NAMES, indirect=True)
def test_kernel_is_its_definition(alone, variant, threads):
    definition, case, calls = alone
    torch.set_num_threads(4 if variant == "threads" else 1)
    ours = outcome(definition, inputs(case, "large" if variant == "threads" else variant))
    theirs = outcome(definition.definition, inputs(case, "large" if variant == "threads" else variant))
    torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)
    assert bool(calls) == (variant not in case.unfit)


@pytest.mark.parametrize("alone", EACH, ids=NAMES, indirect=True)
def test_what_does_not_fit_runs_the_definition(alone):
    """Other dtypes and shapes: the same result as the definition, or its error."""
    definition, case, calls = alone
    given = inputs(case, "plain")
    count = len(tensors(given))
    spoils = [("double", i, 0) for i in range(count) if tensors(given)[i].is_floating_point()]
    spoils += [("short", i, axis) for i in range(count) for axis in range(tensors(given)[i].ndim)]
    for kind, i, axis in spoils:
        chosen, seen = inputs(case, "plain"), [-1]

        def change(x: Tensor, kind=kind, i=i, axis=axis, seen=seen) -> Tensor:
            seen[0] += 1
            if seen[0] != i:
                return x
            return x.detach().double() if kind == "double" else x.detach().narrow(axis, 0, x.shape[axis] - 1)

        spoiled = mapped(change, chosen)
        ours, theirs = (result_or_error(f, spoiled) for f in (definition, definition.definition))
        assert type(ours) is type(theirs), (kind, i, axis, ours)
        if not isinstance(ours, Exception):
            torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)
        if kind == "double":
            assert not calls


def result_or_error(function: Callable[..., Any], given: Any) -> Any:
    torch.manual_seed(5)
    given = mapped(lambda x: x.clone(), given)
    try:
        return [x.detach() for x in tensors(function(*given))]
    except (ValueError, RuntimeError, IndexError) as error:
        return error


def test_off_runs_the_definitions_alone(monkeypatch):

    code = (
        "import torch; from reverie.objectives.quantile import quantile_huber; "
        "quantile_huber(torch.ones(2, 3), torch.ones(2, 3)); import sys; print('reverie.kernels' in sys.modules)"
    )
    monkeypatch.setenv("REVERIE_KERNELS", "off")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_each_row_has_a_case():
    assert {name_of(definition) for definition, _ in ROWS} == set(CASES)
    assert quantile.quantile_huber.definition is not quantile.quantile_huber
