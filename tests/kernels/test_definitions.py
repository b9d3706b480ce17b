"""Every kernel computes what its definition does: values, gradients, what is written in place; and else stays out."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import itertools
import subprocess
import sys
from collections.abc import Callable
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from reverie.core.kernel_dispatch import Kernel, list_declared_floats, use_only_kernels
from reverie.core.types import Batch
from reverie.kernels import gpu
from reverie.kernels.compiler import load_kernels
from reverie.kernels.ctypes_call import call_compiled
from reverie.kernels.registry import KERNELS
from reverie.nn.adam import AdamSettings
from reverie.nn.relu_mlp import Dropout, MLPLayout
from reverie.objectives.estimators import TD0, TD1, NStep

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="nothing is compiled")
VARIANTS = ["odd", "one", "none", "strided", "nan", "threads", "large"]


class Case(NamedTuple):
    """Inputs of a definition."""

    make: Callable[..., Any]  # make(normal, sizes) returns the arguments; normal(*shape) draws numbers
    grads: tuple[int, ...] = ()  # which tensors among the arguments have a gradient
    tolerance: float = 1e-5
    nan: int | None = None  # how many of the tensors of floats may hold NaN; None: all
    unfit: tuple[str, ...] = ("none",)  # variants that the kernel leaves to the definition
    settings: Any = MappingProxyType({})  # arguments by name
    large: str = "large"  # the sizes of this variant


SIZES = {
    "plain": {"m": 12, "n": 16, "k": 8},
    "odd": {"m": 7, "n": 33, "k": 5},
    "one": {"m": 1, "n": 1, "k": 1},
    "none": {"m": 0, "n": 16, "k": 8},
    "large": {"m": 300, "n": 130, "k": 70},
    "tiles": {"m": 35, "n": 70, "k": 35},
}


def batch(normal, s) -> Batch:
    """Windows of k + 1 rows of one of three actions."""
    shape = s["m"], s["k"] + 1
    last = normal(*shape) < -0.8
    last[:, 0] = False  # where there will be NaN
    return Batch(
        obs={}, action=torch.eye(3)[normal(*shape).abs().long().clamp(max=2)], reward=normal(*shape),
        is_first=torch.zeros_like(last), is_last=last, is_terminal=last & (normal(*shape) < 0),
        weight=normal(s["m"]).abs(), index=torch.arange(s["m"]),
    )  # fmt: skip


def error(*lead):
    def make(normal, s):
        return normal(*lead, s["m"], s["k"]), normal(s["m"], s["k"]), batch(normal, s)

    return make


def adam(normal, s):
    shapes = (s["m"], s["n"]), (s["k"],), ()
    params, grads, mean, root = ([normal(*shape) for shape in shapes] for _ in range(4))
    return params, grads, mean, [x.square() for x in root], torch.tensor(s["m"] + 1)


ADAM = AdamSettings(0.1, (0.9, 0.99), 1e-3)
DECAYED = {"settings": ADAM._replace(cosine=20)}
FEW = ("plain", "odd", "one", "none", "strided", "nan")
"""Variants with few rows."""
MANY = "none", "threads", "large"
"""Variants with more numbers than a single program computes, and that without any."""


def td0(normal, s):
    rows = batch(normal, s)
    return {"reward": rows.reward, "terminal": rows.is_terminal, "last": rows.is_last, "value": normal(*rows.shape)}


def quantile_error(normal, s):
    n = min(s["k"], 20)
    return normal(s["m"], s["k"], 3, n), normal(s["m"], s["k"], n), batch(normal, s), 0.9


def targets(estimator):
    def make(normal, s):
        data = batch(normal, s)
        data.is_last[:, 1:-1] = data.is_terminal[:, 1:-1] = False  # there the result is meaningless
        return normal(s["m"], s["k"], s["n"]), data, estimator, 0.9

    return make


def mlp(copies, squash, parts, shared=False, norm=None, activation="relu", dropout=None):
    def make(normal, s):
        layout = MLPLayout((sum(parts), s["n"], s["k"], 3), copies, squash, activation, norm)
        inputs = [normal(s["m"] * (1 if shared and i == 0 else 2), width) for i, width in enumerate(parts)]
        norms = [] if norm is None else [normal(copies, 2, s["n"] + s["k"]), dropout]
        return 0.2 * normal(copies, layout.stride), *norms, layout, *inputs

    return make


def images(outputs):
    def make(normal, s):
        return normal(s["m"], 7, 6, 4), 0.2 * normal(outputs, 4, 3, 3), normal(outputs), normal(5), 1e-4

    return make


def polyak(*count):
    def make(normal, s):
        source, target = ([normal(s["m"], s["n"]), normal(s["k"])] for _ in range(2))
        return source, target, 0.3, *count

    return make


def moments(normal, s, rows):
    """Of ``rows`` earlier rows, float64 ``[3, n]``."""
    return torch.stack([torch.full((s["n"],), float(rows)), normal(s["n"]), rows * normal(s["n"]).abs()]).double()


def rows(normal, s, count, before):
    return moments(normal, s, before), normal(count, s["n"]), normal(s["n"]), normal(s["n"])


def returns(normal, s):
    one = moments(normal, s | {"n": 1}, 3)
    return normal(s["m"]).double(), normal(s["m"]), normal(s["m"]) > 0.5, 0.9, one, torch.ones(())


def drawn(*given: Any):
    """Arguments: numbers for each tuple, a shape in which letters are sizes; the rest as it is."""

    def make(normal, s):
        return [normal(*(s.get(side, side) for side in x)) if isinstance(x, tuple) else x for x in given]

    return make


def rounded(x, step):
    return (x / step).round() * step


def away_from_zero(layers, step):
    """Weights and biases of convolutions whose results, of inputs that are multiples of ``step``, are no multiples of
    it: no order of summation changes the sign of what ReLU gets."""
    weights, biases = [], []
    for weight, bias in layers:
        weights.append(rounded(weight, 1 / 8))
        step /= 8
        biases.append(rounded(bias, step) + step / 2)
        step /= 2
    return weights, biases


def pixels(height, width, channels):
    """Bytes, layers over cells of 4 x 4 pixels and of one, and ReLU after both."""

    def make(normal, s):
        x = (60 * normal(16 + s["m"] // 4, height, width, channels).abs()).clamp(max=255).to(torch.uint8) & 0xF0
        layers = (0.1 * normal(32, 8, 8, channels), normal(32)), (0.1 * normal(16, 3, 3, 32), normal(16))
        return x, *away_from_zero(layers, 1 / 16), [4, 1], 1 / 256, 0.0, True, torch.float32

    return make


def few_pixels(channels, inputs=3):
    """Floats, a layer that is oneDNN's, one whose cells do not fill its input, and no ReLU after the last."""

    def make(normal, s):
        layers = (
            (0.2 * normal(channels, 3, 3, inputs), normal(channels)),
            (0.1 * normal(48, 4, 4, channels), normal(48)),
        )
        x = rounded(normal(16 + s["m"] // 4, 15, 12, inputs), 1 / 8)
        return x, *away_from_zero(layers, 1 / 16), [1, 2], 0.5, -0.25, False, torch.float32

    return make


IN_PLACE = {"unfit": ("strided",)}
NO_GAPS = {"unfit": ("none", "strided")}
NETS = {"tolerance": 1e-3, "unfit": ("none", "strided")}
CASES: dict[str, list[Case]] = {
    "losses.td0_cpu": [Case(td0, settings={"discount": 0.9}, unfit=())],
    "losses.masked_mean_cpu": [
        Case(lambda normal, s: (normal(s["m"], s["k"]), ~batch(normal, s).is_last[:, :-1]), (0,)),
    ],
    "losses.squared_error_cpu": [Case(error(), (0,), settings={"scale": 0.5}), Case(error(3), (0,))],
    "losses.huber_error_cpu": [Case(error(2), (0,), settings={"kappa": 0.7, "scale": 0.5})],
    "losses_gpu.td0_targets_triton": [Case(lambda normal, s: (TD0(), batch(normal, s), normal(s["m"], s["k"]), 0.9))],
    "losses.normality_cpu": [Case(drawn(("m", "k", "n")), (0,), unfit=("none",))],
    "losses_gpu.masked_mean_triton": [
        Case(lambda normal, s: (normal(s["m"], s["k"]), ~batch(normal, s).is_last[:, :-1]), (0,), unfit=MANY),
    ],
    "losses_gpu.squared_error_triton": [
        Case(error(), (0,), settings={"scale": 0.5}, unfit=MANY), Case(error(3), (0,), unfit=MANY),
    ],
    "losses_gpu.huber_error_triton": [Case(error(2), (0,), settings={"kappa": 0.7, "scale": 0.5}, unfit=MANY)],
    "losses.greedy_quantiles_cpu": [Case(drawn(("m", 2, "k", "n"), ("m", 2, "k", "n")))],
    "losses.quantile_targets_cpu": [Case(targets(TD0())), Case(targets(NStep(1))), Case(targets(TD1()))],
    "losses.quantile_error_cpu": [Case(quantile_error, (0,))],
    "losses.quantile_huber_cpu": [
        Case(drawn(("m", 3, "n"), ("m", 3, "k")), (0,)), Case(drawn(("m", 3, "n"), ("m", 3, "k"), 0.0), (0,)),
    ],
    "gpu.norm_silu_triton": [Case(drawn(("m", "n"), ("n",), 1e-4), (0, 1), 1e-4, unfit=("strided",))],
    "images.conv_pool_norm_silu_cpu": [Case(images(5), (0, 1, 2, 3), 1e-3, nan=0)],
    "images.conv_unfold_norm_silu_cpu": [Case(images(20), (0, 1, 2, 3), 1e-3, nan=1)],
    "conv_relu.conv_relu_cpu": [
        *[Case(make, (1, 2, 3, 4), 5e-3, nan=0, unfit=()) for make in (pixels(24, 25, 4), pixels(28, 28, 3))],
        *[Case(few_pixels(*sizes), (0, 1, 2, 3, 4), 5e-3, nan=0, unfit=()) for sizes in ((16,), (12,), (16, 16))],
    ],
    "relu_mlp.perceptron_cpu": [
        Case(mlp(2, False, (10,)), (0, 1), **NETS), Case(mlp(1, True, (4, 7)), (0, 1, 2), **NETS),
        Case(mlp(3, False, (4, 7), shared=True), (0, 1, 2), **NETS),
    ],
    "mlp_gpu.perceptron_triton": [
        Case(mlp(2, False, (10,)), (0, 1), large="tiles", **NETS),
        Case(mlp(1, True, (4, 7), activation="tanh"), (0, 1, 2), **NETS),
        Case(mlp(3, False, (4, 7), shared=True), (0, 1, 2), **NETS),
    ],
    "policies_gpu.normal_density_triton": [Case(drawn(("m", "k"), ("m", "k"), ("k",)), (1, 2), 1e-4, unfit=MANY)],
    "losses_gpu.standardize_triton": [
        Case(lambda normal, s: (normal(s["m"], s["k"]), ~batch(normal, s).is_last[:, 1:]), unfit=MANY),
    ],
    "losses_gpu.clipped_objective_triton": [
        Case(lambda normal, s: (*normal(3, s["m"], s["k"]), batch(normal, s).is_last[:, 1:], 0.2), (0,)),
    ],
    "optim_gpu.clip_grad_norm_triton": [
        Case(lambda normal, s: ([normal(s["m"], s["n"]), normal(s["k"])], 2.0), **IN_PLACE),
        Case(lambda normal, s: ([normal(s["m"], s["n"]), normal(s["k"])], 0.0), **IN_PLACE),
    ],
    "policies_gpu.clipped_noise_triton": [Case(drawn(("m", "k"), ("m", "k"), 0.7, 0.5), unfit=())],
    "policies_gpu.scale_pixels_triton": [
        Case(lambda normal, s: ((50 * normal(s["m"], s["k"]).abs()).byte(), 0.1, -0.5, normal(2)), **NO_GAPS),
    ],
    "policies_gpu.squash_triton": [Case(drawn(("m", 2, "k"), ("m", 2, "k"), ("m", 2, "k")), (0, 1), large="tiles")],
    "relu_mlp.perceptron_by_layers_cpu": [Case(mlp(2, False, (4, 7), activation="gelu"), (0, 2), **NETS)],
    "relu_mlp.normed_perceptron_cpu": [
        Case(mlp(2, False, (4, 7), norm="after_relu"), (0, 1, 3), **NETS),
        Case(mlp(3, False, (4, 7), shared=True, norm="before_relu"), (0, 1, 2, 3), **NETS),
        Case(mlp(2, False, (4, 7), norm="after_relu", activation="gelu"), (0, 1, 3), **NETS),
        Case(mlp(2, False, (4, 7), norm="before_relu", activation="gelu"), (0, 1, 3), **NETS),
        Case(mlp(2, False, (4, 7), norm="before_relu", dropout=Dropout(0.5)), (0, 1, 3), **NETS),
    ],
    "optim.adam_cpu": [Case(adam, settings={"settings": ADAM}, **IN_PLACE), Case(adam, settings=DECAYED, **IN_PLACE)],
    "optim_gpu.adam_triton": [Case(adam, settings={"settings": ADAM}, **IN_PLACE)],
    "optim_gpu.clip_by_norm_triton": [
        Case(lambda normal, s: ([normal(s["m"], s["n"]), normal(s["k"])], 2.0), **IN_PLACE),
    ],
    "optim_gpu.polyak_triton": [
        Case(polyak(None, 1), **IN_PLACE), Case(polyak(torch.tensor(6), 3), **IN_PLACE),
        Case(polyak(torch.tensor(7), 3), nan=2, **IN_PLACE),
    ],
    "optim.fused_adam": [Case(adam, settings=DECAYED, **IN_PLACE)],
    "rows.add_and_standardize_cpu": [
        Case(lambda normal, s: rows(normal, s, s["m"], 5), **IN_PLACE),
        Case(lambda normal, s: rows(normal, s, 1, 0), **IN_PLACE),
    ],
    "rows.add_returns_cpu": [Case(returns, **IN_PLACE)],
    "optim.polyak_cpu": [
        Case(polyak(None, 1), **IN_PLACE), Case(polyak(torch.tensor(6), 3), **IN_PLACE),
        Case(polyak(torch.tensor(7), 3), nan=2, **IN_PLACE),
    ],
}  # fmt: skip
ON_GPU = {
    "gpu.norm_silu_triton", "losses_gpu.td0_targets_triton", "losses_gpu.masked_mean_triton",
    "losses_gpu.squared_error_triton", "losses_gpu.huber_error_triton", "mlp_gpu.perceptron_triton",
    "optim_gpu.adam_triton",
    "optim_gpu.clip_by_norm_triton", "optim_gpu.polyak_triton", "policies_gpu.squash_triton",
    "policies_gpu.clipped_noise_triton", "policies_gpu.scale_pixels_triton",
    "policies_gpu.normal_density_triton", "losses_gpu.standardize_triton", "losses_gpu.clipped_objective_triton",
    "optim_gpu.clip_grad_norm_triton",
}  # fmt: skip
ELSEWHERE = {
    "capture.run_captured", "inference.infer_captured", "inference.act_captured", "inference.estimates_captured",
    "gpu.sample_classes_triton",
    "images_gpu.conv_pool_norm_silu_triton", "images_gpu.conv_unfold_norm_silu_triton",
    "images_gpu.conv_unfold_sigmoid_triton", "images_gpu.unit_squared_error_triton", "gpu.laprop_triton",
    "gpu.cast_all_on_gpu",
    "two_hot_gpu.two_hot_mean_triton", "two_hot_gpu.two_hot_loss_triton",
    "rssm.observe_compiled", "dreams.imagine_prepared",
    "rows.put_rows_cpu", "rows.extend_rows_cpu", "rows.gather_rows_cpu", "rows_gpu.gather_device_rows_triton",
    "rows.tree_set_cpu", "rows.tree_draw_cpu", "rows.random_integers_cpu", "inference.watch_and_act_captured",
    "search.select_cpu", "search.backup_cpu", "search_gpu.select_triton", "search_gpu.backup_triton",
    "policy_graphs.act_captured", "policy_graphs.call_captured", "policy_graphs.choose_captured",
}  # fmt: skip
"""Kernels with a test file of their own."""


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
    return torch.empty(*x.shape, 3, dtype=x.dtype, device=x.device)[..., 1].copy_(x) if x.ndim else x


def inputs(case: Case, variant: str, device: str = "cpu") -> Any:
    g = torch.Generator().manual_seed(1)
    given = case.make(lambda *shape: torch.randn(shape, generator=g), SIZES.get(variant, SIZES["plain"]))
    given = mapped(lambda x: x.to(device), given)
    if variant == "strided":
        given = mapped(gapped, given)
    if variant.startswith("nan"):
        [x for x in tensors(given) if x.is_floating_point()][int(variant[3:])].view(-1)[0] = torch.nan
    for i in case.grads:
        tensors(given)[i].requires_grad_()
    return given


def outcome(definition: Callable[..., Any], given: Any) -> Any:
    """Results, gradients, the arguments afterwards, and the random number that comes next."""
    torch.manual_seed(5)
    leaves = [x for x in tensors(given) if x.requires_grad]
    results = tensors(called(definition, given))
    tracked = [x for x in results if x.requires_grad]
    g = torch.Generator().manual_seed(2)
    total = sum((x * torch.randn(x.shape, generator=g).to(x.device)).sum() for x in tracked)
    grads = torch.autograd.grad(total, leaves, allow_unused=True) if tracked else ()
    return [x.detach() for x in results], grads, [x.detach() for x in tensors(given)], torch.rand(())


def called(function: Callable[..., Any], given: Any) -> Any:
    return function(**given) if isinstance(given, dict) else function(*given)


def spied(kernel: Kernel) -> tuple[Kernel, list[int]]:
    calls: list[int] = []

    def run(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        return kernel.run(*args, **kwargs)

    return Kernel(kernel.fits, run), calls


def name_of(kernel: Kernel) -> str:
    return f"{kernel.run.__module__.rsplit('.', 1)[1]}.{kernel.run.__name__}"


EACH = [pytest.param((*row, case), id=f"{name_of(row[1])}-{i}") for row in KERNELS
        for i, case in enumerate(CASES.get(name_of(row[1]), []))]  # fmt: skip


@pytest.fixture
def alone(request, monkeypatch):
    """A definition whose only kernel notes its calls, a case, the noted calls and the device."""
    definition, kernel, case = request.param
    device = "cuda" if name_of(kernel) in ON_GPU and torch.cuda.is_available() else "cpu"
    if name_of(kernel) in ON_GPU and device == "cpu":  # Triton's interpreter
        pytest.importorskip("triton")
        monkeypatch.setattr(gpu, "can_use_triton", lambda *xs, family="": all(x.dtype in gpu.DTYPES for x in xs))
    noted, calls = spied(kernel)
    rows = definition.__closure__[definition.__code__.co_freevars.index("kernels")].cell_contents
    with use_only_kernels():
        rows.append(noted)
        function = functools.partial(definition, **case.settings)
        yield function, case, calls, device
    assert noted not in rows


def each_variant():
    """Each case with each variant. Many rows on one thread are split as on several, which are tried, too; Triton's
    interpreter is slow, and has one."""
    for each, variant in itertools.product(EACH, VARIANTS):
        name, _, number = each.id.rpartition("-")
        if name not in ON_GPU or (variant != "threads" and (variant != "large" or number == "0")):
            marks = pytest.mark.nightly if variant == "large" and name not in ON_GPU else ()
            yield pytest.param(*each.values, variant, id=f"{each.id}-{variant}", marks=marks)


@pytest.mark.parametrize(("alone", "variant"), each_variant(), indirect=["alone"])
def test_kernel_is_its_definition(alone, variant):
    definition, case, calls, device = alone
    torch.set_num_threads(4 if variant == "threads" else 1)
    several = [f"nan{i}" for i in range(sum(x.is_floating_point() for x in tensors(inputs(case, "plain"))))]
    sizes = case.large if variant in ("threads", "large") else variant
    for name in several[: case.nan] if variant == "nan" else [sizes]:
        ours, theirs = (outcome(f, inputs(case, name, device)) for f in (definition, plain(definition)))
        torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)
    assert bool(calls) == (variant not in case.unfit) or (variant == "nan" and case.nan == 0)


def plain(accelerated: functools.partial) -> Callable[..., Any]:
    """The definition without kernels."""
    return functools.partial(accelerated.func.definition, **accelerated.keywords)


@pytest.mark.parametrize("alone", EACH, indirect=True)
def test_what_does_not_fit_runs_the_definition(alone):
    """Other dtypes and shapes: the same result as the definition, or its error."""
    definition, case, _, device = alone
    given = list(enumerate(tensors(inputs(case, "plain"))))
    spoils = [(i, Tensor.double) for i, x in given if x.is_floating_point()]
    spoils += [(i, functools.partial(shortened, axis)) for i, x in given for axis in range(x.ndim)]
    for place, spoil in spoils:
        chosen = spoiled(inputs(case, "plain", device), place, spoil)
        ours, theirs = (result_or_error(f, chosen) for f in (definition, plain(definition)))
        assert type(ours) is type(theirs), (place, spoil, ours, theirs)
        if not isinstance(ours, Exception):
            torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance, equal_nan=True)


def spoiled(given: Any, place: int, spoil: Callable[[Tensor], Tensor]) -> Any:
    count = itertools.count()
    return mapped(lambda x: spoil(x.detach()) if next(count) == place else x, given)


def shortened(axis: int, x: Tensor) -> Tensor:
    return x.narrow(axis, 0, x.shape[axis] - 1)


@pytest.mark.parametrize("alone", EACH, indirect=True)
def test_a_tensor_in_place_of_a_number_runs_the_definition(alone):
    """Such as a scheduled discount: a kernel would read its address as a number."""
    definition, case, calls, device = alone
    given = inputs(case, "plain", device)
    names = list(inspect.signature(definition.func).parameters)
    by_name = given if isinstance(given, dict) else dict(zip(names, given, strict=False))
    by_name = by_name | dict(definition.keywords)
    for _, name in list_declared_floats(definition.func):
        if name in by_name:
            scheduled = by_name | {name: torch.tensor(by_name[name])}
            ours, theirs = (result_or_error(f, scheduled) for f in (definition.func, definition.func.definition))
            torch.testing.assert_close(ours, theirs, equal_nan=True)
    assert not calls


DEFINITIONS = list(dict.fromkeys(definition for definition, _ in KERNELS))


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda definition: definition.__qualname__)
def test_no_kernel_gets_a_tensor_where_a_number_is_declared(definition):
    parameters = inspect.signature(definition).parameters
    rows = definition.__closure__[definition.__code__.co_freevars.index("kernels")].cell_contents
    accepted: list[Any] = []
    with use_only_kernels():
        rows.append(Kernel(lambda *_, **__: True, lambda *args, **kwargs: accepted.append(1)))
        for _, name in list_declared_floats(definition):
            values = {key: torch.tensor(1) if key == name else 1 for key in parameters}
            with contextlib.suppress(Exception):  # the definition's, for the other arguments
                definition(**values)
            assert not accepted, name
            definition(**dict.fromkeys(parameters, 1))
            assert accepted.pop()


@pytest.mark.parametrize("alone", EACH, indirect=True)
def test_gradients_that_a_kernel_lacks_come_from_the_definition(alone):
    definition, case, _, device = alone
    if definition.func.__name__ in ("adam", "polyak_update", "add_and_standardize", "add_returns"):  # in place
        return
    every = tuple(i for i, x in enumerate(tensors(inputs(case, "plain"))) if x.is_floating_point())
    learned = case._replace(grads=every)
    ours, theirs = (outcome(f, inputs(learned, "plain", device)) for f in (definition, plain(definition)))
    torch.testing.assert_close(ours, theirs, rtol=case.tolerance, atol=case.tolerance)


def result_or_error(function: Callable[..., Any], given: Any) -> Any:
    torch.manual_seed(5)
    try:
        return [x.detach() for x in tensors(called(function, mapped(Tensor.clone, given)))]
    except (ValueError, RuntimeError, IndexError) as error:
        return error


def test_off_runs_the_definitions_alone(monkeypatch):
    code = "import sys, torch; from reverie.objectives.quantile import quantile_huber as loss; " \
        "loss(torch.ones(2, 3), torch.ones(2, 3)); print('reverie.kernels' in sys.modules)"  # fmt: skip
    monkeypatch.setenv("REVERIE_KERNELS", "off")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_all_threads_of_a_kernel_take_denormal_numbers_as_their_caller_does():
    slow, fast = torch.zeros(2**23), torch.full((2**23,), 1e-40)
    call_compiled("polyak", slow, fast, len(slow), 0.5, None, 1, 2)
    assert slow.all()
    torch.set_flush_denormal(True)
    try:
        call_compiled("polyak", slow, fast, len(slow), 0.5, None, 1, 2)
    finally:
        torch.set_flush_denormal(False)
    assert not slow.any()


def test_each_row_has_a_case():
    assert {name_of(kernel) for _, kernel in KERNELS} == set(CASES) | ELSEWHERE
