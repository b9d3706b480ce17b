"""Triton kernels against their definitions, on a GPU or by Triton's interpreter on the CPU; and compiled for a GPU."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
from unittest.mock import Mock, patch

import numpy as np
import pytest
import torch
from sequence_filter import UNEVEN, assert_dreams_as_defined, assert_hands_nan_on, assert_observes_as_defined, filtered

import reverie.kernels.registry  # noqa: F401 - it imports all kernels
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.core.specs import ActionPart, ActionSpec, ColumnSpec, ObsPart
from reverie.experiment.bench import noise_batch
from reverie.kernels import gpu, mlp_gpu, optim_gpu
from reverie.nn import functional
from reverie.nn.adam import AdamSettings, adam
from reverie.objectives.tree_search import Node, SearchSettings, Transition, search
from reverie.replay.storage import DeviceStorage, HostStorage

pytest.importorskip("triton")
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
BOTH = ("gru", "layer", "norm_silu", "normal_density", "sample", "squash", "two_hot")
IMAGES = ("pool_norm_silu", "squared_error", "unfold_norm_silu", "unfold_sigmoid")
ALONE = (
    "adam", "clip", "clipped_noise", "clipped_objective", "gather_rows", "laprop", "masked_mean", "polyak",
    "scale_pixels", "search_backup", "search_select", "squares", "standardize", "td0", "td_error", "two_hot_mean",
)  # fmt: skip
NAMES = [f"{kernel}{way}_kernel" for kernel in BOTH + IMAGES for way in ("_backward", "")]
NAMES = sorted(NAMES + [f"{kernel}_kernel" for kernel in ALONE])
SIZES = {"12m": {"deter": 256, "hidden": 64, "stoch": 8, "classes": 16}} | UNEVEN


def test_the_check_of_a_device_passes_whatever_the_caller_is_doing(on_gpu):
    """What is found out once is for all later calls; without a GPU, ``meta`` is another default device."""
    state = torch.get_rng_state()
    families.cache_clear()
    with torch.inference_mode(), torch.device("meta"):
        assert sorted(families()) == NAMES
    assert torch.equal(torch.get_rng_state(), state)


WRITTEN = (
    "y", "dx", "dscale", "out", "before", "dgates", "dh", "onehot", "dlogits", "weights", "slow", "parts", "clipped",
    "target", "slope", "mean", "dtheta", "dmean", "dcenter", "log_prob", "loss", "dpixels", "step",
    "mean_value",
)  # fmt: skip


class Off:
    """A kernel whose results are a little off."""

    def __init__(self, kernel):
        self.kernel = kernel

    def __getitem__(self, grid):
        def launch(*args, **constants):
            self.kernel[grid](*args, **constants)
            for name, written in zip(self.kernel.arg_names, args, strict=False):
                if name in WRITTEN:
                    for x in written if isinstance(written, tuple) else (written,):
                        x.detach().add_(0.01 if x.is_floating_point() else name == "out")

        return launch


@functools.cache
def families():
    """The family of each kernel."""
    found, launch = {}, gpu._launch
    for family in gpu.FAMILIES:
        with patch.object(gpu, "_launch", side_effect=launch) as launched:
            gpu.check_triton_kernels(DEVICE, family)
        found |= {call.args[0]: family for call in launched.call_args_list}
    return found


TOGETHER = ("images", "recurrence")
"""Families that take long: all of their kernels are off at once, and each alone nightly."""


@pytest.mark.parametrize("family", TOGETHER)
def test_the_check_compares_each_kernel_of_a_family(on_gpu, monkeypatch, family):
    names, kernels = [name for name in NAMES if families()[name] == family], gpu._kernels()
    for name in names:
        monkeypatch.setattr(kernels, name, Off(getattr(kernels, name)))
    compared = gpu.COMPARISONS[family](lambda *shape: torch.randn(shape, device=DEVICE))
    differing = {name for name, *two in compared if not torch.allclose(*two, rtol=1e-3, atol=1e-3)}
    assert len(differing) == len(names)
    monkeypatch.setitem(gpu.COMPARISONS, family, lambda numbers: compared)
    with pytest.raises(RuntimeError, match="is off by"):
        gpu.check_triton_kernels(DEVICE, family)


SLOW = {name for name in NAMES if name.startswith(("gru", "laprop", "norm_", "sample", "pool", "squared", "unfold"))}
"""Kernels of families that are tried together, and one that takes as long as all of its family."""
SLOW.add("layer_kernel")


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.nightly if name in SLOW else ()) for name in NAMES
])  # fmt: skip
def test_the_check_finds_a_kernel_that_computes_something_else(on_gpu, monkeypatch, name):
    family, kernels = families()[name], gpu._kernels()
    monkeypatch.setattr(kernels, name, Off(getattr(kernels, name)))
    with pytest.raises(RuntimeError, match="is off by"):
        gpu.check_triton_kernels(DEVICE, family)


@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 5, 64), (700, 3), (0, 4), (2, 4097)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_norms(on_gpu, shape, dtype):
    x, grad = (torch.randn(shape).to(DEVICE, dtype) for _ in range(2))
    given = [x.requires_grad_(), torch.randn(shape[-1]).to(DEVICE).requires_grad_()]
    found = []
    for on in (True, False):
        on_gpu(on)
        y = functional.norm_silu(*given, 1e-4)
        found.append([y, *torch.autograd.grad(y, given, grad)])
    rtol, atol = (1e-5, 3e-5) if dtype is torch.float32 else (0.03, 0.06)
    torch.testing.assert_close(*found, rtol=rtol, atol=atol)


def test_as_many_elements_as_32_bits_cannot_count(on_gpu):
    """The first of 2^20 rows of 2^12 numbers."""
    gates, h, out = (torch.randn(1, n, device=DEVICE) for n in (3 * 4096, 4096, 4096))
    bias = torch.zeros_like(gates[0])
    gpu.gru_into(gates, bias, h, out, 1)
    found = {"gru": [torch.zeros_like(h)], "gru_backward": [torch.zeros_like(gates), torch.zeros_like(h)]}
    sizes = (2**20, 4096, 4096, 4096)
    gpu._launch(
        "gru_kernel", (4,), gates, bias, h, *found["gru"], None, None, *sizes, 4096, 0, BEFORE=False, BLOCK=1024
    )
    given = gates, bias, h, h, h, h, None, *found["gru_backward"]
    gpu._launch("gru_backward_kernel", (4,), *given, *sizes, 4096, 4096, CARRIED=False, BLOCK=1024)
    assert torch.equal(found["gru"][0], out)
    dgates, dh = torch.zeros_like(gates), torch.zeros_like(h)
    gpu.gru_gradient(gates, bias, h, (h, h), 1, dgates, dh, None)
    torch.testing.assert_close(found["gru_backward"], [dgates, dh])


@pytest.mark.parametrize("settings", [{"betas": (0.0, 0.99)}, {"cosine": 5}, {"lr": 0.02, "cosine": 40}])
def test_adam(on_gpu, settings):
    """After 2^24 updates too, which float32 cannot count; large tensors have larger blocks."""
    rate = {key: torch.tensor(x, device=DEVICE) for key, x in settings.items() if key == "lr"}
    for updates in (1, 20, 2**24 + 1):
        shapes = ((3, 5), (1025,), ()) if updates < 20 else ((2,),)
        given = [[torch.randn(shape, device=DEVICE) for shape in shapes] for _ in range(3)]
        given.append([x.square() for x in given[2]])
        found = [[x.clone() for x in tensors] for tensors in given]
        last = torch.tensor(updates, device=DEVICE), AdamSettings(0.1)._replace(**settings | rate)
        assert optim_gpu.supports_adam_triton(*found, *last)
        optim_gpu.adam_triton(*found, *last)
        adam.definition(*given, *last)
        torch.testing.assert_close(found, given, rtol=2e-6, atol=1e-6)


def test_what_the_optimizers_kernels_leave_to_pytorch(on_gpu):
    x = torch.ones(4, 6, device=DEVICE)
    for second in (x[:, ::2], x.T.contiguous().T, x.double(), x[:3]):
        assert not optim_gpu.supports_polyak_triton([x, x], [x, second])
    assert not optim_gpu.supports_polyak_triton([x] * 65, [x] * 65)
    assert not optim_gpu.supports_clip_triton([torch.empty(2**24 + 1, device="meta")], 1.0)
    assert optim_gpu.supports_clip_triton([torch.empty(2**24, device="meta")], 1.0)


WIDE = {
    "obs/image": ColumnSpec((13, 79, 8), "uint8"), "obs/odd": ColumnSpec((17,), "float32"),
    "obs/one": ColumnSpec((1,), "float32"), "obs/none": ColumnSpec((0,), "float32"),
    "obs/choice": ColumnSpec((2,), "int64"), "obs/seen": ColumnSpec((3,), "bool"),
    "action": ColumnSpec((3,), "float32"), "reward": ColumnSpec((), "float32"),
    "extras/half": ColumnSpec((3,), "float16"),
} | {name: ColumnSpec((), "bool") for name in ("is_first", "is_last", "is_terminal")}  # fmt: skip


@pytest.mark.parametrize("streams", [pytest.param(1, marks=pytest.mark.nightly), 3])
def test_windows_of_rows_on_a_device_are_gathered_in_one_launch(on_gpu, monkeypatch, streams):
    """From before row 0 and around the end of the ring; where streams were cut, episodes end in the windows alone."""
    rng, launched = np.random.default_rng(streams), Mock(wraps=gpu._launch)
    monkeypatch.setattr(gpu, "_launch", launched)
    storages = [HostStorage(WIDE, streams, 9), DeviceStorage(WIDE, streams, 9, DEVICE)]
    windows = None
    for added, oldest in ((7, -2), (6, 4)):
        size = streams, added
        rows = {name: rng.integers(0, 2 if spec.dtype == "bool" else 200, (*size, *spec.shape)).astype(spec.dtype)
                for name, spec in WIDE.items()}  # fmt: skip
        for storage in storages:
            storage.extend(rows)
        handles = torch.from_numpy(rng.permutation(np.arange(oldest * streams, (storage.count - 3) * streams))[:6])
        expected, windows = storages[0].gather(handles, 4), storages[1].gather(handles, 4, windows)
        for name, x in expected.items():
            assert torch.equal(windows[name].cpu(), x), name
    assert launched.call_count == 2
    assert np.array_equal(*(storage.read(4, 13)["is_last"] for storage in storages))


def test_trees_of_a_search_are_walked_as_defined(on_gpu):
    """With more lanes than actions, masks, nodes without a number, and paths of many nodes."""
    g = torch.Generator().manual_seed(0)
    states, width, count = 50, 5, 4
    reward, logits = (torch.randn(states, width, generator=g) for _ in range(2))
    value, following = torch.randn(states, generator=g), torch.randint(states, (states, width), generator=g)
    tables = [x.to(DEVICE) for x in (reward, logits, value, following)]
    legal = (torch.rand(count, width, generator=g) > 0.3).index_fill(1, torch.tensor(2), True).to(DEVICE)
    noise, start = torch.randn(count, width, generator=g).to(DEVICE), torch.arange(count, device=DEVICE)

    def model(state, action):
        at = (state, action)
        node = Node(tables[3][at], tables[1][tables[3][at]], tables[2][tables[3][at]])
        return Transition(tables[0][at], torch.full_like(node.value, -0.9), node)

    for wrong in (0.0, torch.nan):
        tables[2][:4] += wrong
        found = []
        for on in (True, False):
            on_gpu(on)
            root = Node(start, tables[1][start], tables[2][start])
            result = search(model, root, legal, noise, SearchSettings(16, 4, q_range_floor=1e-3))
            found.append({**result._asdict(), **result.tree._asdict()} | {"tree": None})
        assert found[1]["visits"][:, 1:].max() > 2  # paths are long
        torch.testing.assert_close(*found, rtol=1e-5, atol=1e-5, equal_nan=True)
    on_gpu(True)
    root = Node(start, torch.full_like(root.logits, torch.nan), root.value)
    assert legal.gather(1, search(model, root, legal, noise, SearchSettings(4)).action[:, None]).all()


@pytest.mark.parametrize("limit", [0, 2 * 36 * 40 * 33 - 1])
def test_large_layers_are_left_to_cublas(on_gpu, monkeypatch, limit):
    """All, or the largest one between two others."""
    monkeypatch.setattr(mlp_gpu, "MULTIPLICATIONS", limit)
    launched = Mock(wraps=gpu._launch)
    monkeypatch.setattr(gpu, "_launch", launched)
    for name, ours, defined in mlp_gpu.compare_perceptrons(lambda *shape: torch.randn(shape, device=DEVICE)):
        torch.testing.assert_close(ours, defined, rtol=1e-4, atol=1e-4, msg=name)
    assert launched.call_count == (8 if limit else 0)


def test_a_program_has_no_more_warps_than_any_gpu_takes():
    assert [gpu._tile(1, width)["num_warps"] for width in (1, 4096, 12288, 10**6)] == [4, 8, 16, 16]


@pytest.fixture(params=SIZES)
def case(request, on_gpu):
    """A model, rows of three sequences of six steps, and where they start."""
    torch.set_default_device(DEVICE)
    yield filtered(SIZES[request.param])
    torch.set_default_device(None)


uneven = pytest.mark.parametrize("case", [
    pytest.param(size, marks=pytest.mark.nightly if size == "12m" else ()) for size in SIZES
], indirect=True)  # fmt: skip
"""Widths that are powers of two leave out masks; dreams have them, too."""


@uneven
def test_observing_and_its_gradients(case, on_gpu):
    assert_observes_as_defined(case, lambda: on_gpu(False), atol=2e-6)


odd = pytest.mark.parametrize("case", [
    pytest.param(size, marks=pytest.mark.nightly if size != "odd" else ()) for size in SIZES
], indirect=True)  # fmt: skip
"""The interpreter is slow, and dreams of one row are of all sizes."""


@odd
def test_observing_in_bfloat16(case, on_gpu):
    """Nothing is sampled here that rounding could change: probabilities are near those of the definition in float32."""
    rssm, start, embed, action, _ = case
    is_first = torch.ones(3, 6, dtype=torch.bool)  # each step starts from zeros, so that samples do not matter
    half, narrow = start.map(lambda x: x.bfloat16()), embed.detach().bfloat16().requires_grad_()
    latent, probs = rssm.observe(half, narrow, action, is_first)
    assert (latent.deter.dtype, latent.stoch.dtype, probs.dtype) == (torch.bfloat16, torch.bfloat16, torch.float32)
    weights = [*rssm.posterior.parameters(), *rssm.gates.parameters()]
    found = [torch.autograd.grad(probs.square().sum(), [narrow, *weights])]
    on_gpu(False)
    wide = rssm.observe(start, embed, action, is_first)[1]
    torch.testing.assert_close(probs, wide, rtol=0.1, atol=0.05)
    found.append(torch.autograd.grad(wide.square().sum(), [embed, *weights]))
    assert all((a - b).norm() < 0.1 * b.norm() + 1e-3 for a, b in zip(*found, strict=True))


def test_dreaming(case, on_gpu):
    assert_dreams_as_defined(case[0], 1, lambda: on_gpu(False), atol=2e-6)


@odd
def test_dreaming_of_many_rows(case, on_gpu):
    assert_dreams_as_defined(case[0], 70, lambda: on_gpu(False), atol=2e-6)


@odd
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # of the interpreter
def test_nan_is_handed_on(case):
    assert_hands_nan_on(case)


TINY = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 3, "rssm.classes": 4, "rssm.blocks": 4, "encoder.units": 8,
    "encoder.depth": 2, "decoder.units": 8, "decoder.depth": 2, "reward.units": 8, "cont.units": 8, "actor.units": 8,
    "critic.units": 8, "batch_size": 2, "batch_length": 2, "horizon": 2, "optim.warmup": 0, "optim.lr": 1e-2,
    "graph": False, "critic.scale": 1.0, "reward.scale": 1.0,
}  # fmt: skip
OBS = {
    "image": ObsPart(kind="image", shape=(4, 4, 3), dtype="uint8"),
    "state": ObsPart(kind="vector", shape=(5,), dtype="float32"),
}
ACTION = ActionSpec(parts={"push": ActionPart(kind="categorical", classes=(4,))})


@pytest.mark.nightly
@pytest.mark.skipif(DEVICE.type == "cuda", reason="random numbers of a GPU come in another order")
def test_updates_learn_what_they_do_without_these_kernels(on_gpu):
    seen = []
    for on in (True, False):
        on_gpu(on)
        agent = DreamerV3Config().merge(TINY).build(OBS, ACTION, seed=1)
        torch.manual_seed(2)
        data = noise_batch(agent, OBS, ACTION)
        metrics = agent.train_step(data).metrics
        grads = {f"gradient of {name}": p.grad for name, p in agent.named_parameters() if p.grad is not None}
        seen.append({**metrics, **grads})
    torch.testing.assert_close(*seen, rtol=1e-4, atol=1e-5)


@pytest.fixture
def _unknown():
    """It is not known yet whether the kernels work."""
    gpu.triton_problem.cache_clear()
    yield
    gpu.triton_problem.cache_clear()


@pytest.mark.usefixtures("_unknown")
def test_they_are_not_used_without_a_gpu(monkeypatch):
    assert not gpu.can_use_triton(torch.ones(2))
    monkeypatch.setattr(torch.version, "cuda", None)
    assert gpu.triton_problem(torch.device("cuda")) == "this PyTorch was built without GPU support"


@pytest.mark.usefixtures("_unknown")
def test_a_kernel_that_fails_leaves_everything_to_pytorch(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(gpu, "check_triton_kernels", Mock(side_effect=RuntimeError("ptxas: no such file")))
    with pytest.warns(UserWarning, match="Triton kernels of recurrence are not used.*ptxas"):
        assert "ptxas" in gpu.triton_problem(torch.device("cuda"))


COMPILE = """
import sys
import torch
from types import SimpleNamespace
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from reverie.kernels import ctypes_call, gpu, losses_gpu, mlp_gpu, optim_gpu, policies_gpu, rows_gpu, search_gpu
from reverie.kernels import rssm as kernel, steps
from reverie.nn import functional, optim
from reverie.nn.adam import AdamSettings
from reverie.nn.number_distributions import TwoHot
from reverie.nn.optim import LaPropAGCConfig
from reverie.nn.rssm import RSSMConfig

KERNELS, DONE = gpu._kernels(), {}
driver.set_active(SimpleNamespace(
    get_current_device=lambda: 0, get_current_stream=lambda device: 0,
    get_current_target=lambda: GPUTarget("cuda", 90, 32),
))


def compile(name, grid, *args, **constants):
    DONE[name] = DONE.get(name, True) and "cubin" in getattr(KERNELS, name).warmup(*args, grid=grid, **constants).asm


ctypes_call.load_kernels = lambda: None
gpu.can_use_triton = lambda *tensors, family="": True
gpu._launch = compile
rssm = RSSMConfig(deter=256, hidden=64, stoch=8, classes=16).build(24, 3)
start = rssm.initial(2, torch.bfloat16)
embed = torch.zeros(2, 2, 24, dtype=torch.bfloat16, requires_grad=True)
latent, probs = rssm.observe(start, embed, torch.zeros(2, 2, 3), torch.zeros(2, 2, dtype=torch.bool))
probs.sum().backward()
with torch.no_grad():
    feature = torch.zeros(9, rssm.feature_width, dtype=torch.bfloat16)
    prepared = steps.prepare(rssm, torch.bfloat16)
    kernel.dream_step(rssm, prepared, feature, torch.zeros(9, 3), torch.empty_like(feature))
tensors, count = [torch.zeros(300), torch.zeros(())], torch.tensor(7)
optim_gpu.clip_by_norm_triton(tensors, 1.0)
optim_gpu.polyak_triton(tensors, tensors, 0.1, count, 7)
optim_gpu.polyak_triton(tensors, tensors, 0.1, None, 1)
for settings in (AdamSettings(0.1), AdamSettings(torch.tensor(0.1), cosine=9)):
    optim_gpu.adam_triton(tensors, tensors, tensors, tensors, count, settings)
losses_gpu.compare_losses(torch.zeros)
mlp_gpu.compare_perceptrons(torch.zeros)
policies_gpu.compare_policies(torch.zeros)
rows_gpu.compare_replay(torch.zeros)
search_gpu.compare_search(torch.zeros)
x, w = torch.zeros(64, 4, 4, 3, dtype=torch.bfloat16), torch.zeros(8, 3, 5, 5, requires_grad=True)
x = functional.conv_pool_norm_silu(x, w, torch.zeros(8), torch.zeros(8), 1e-4)
w = torch.zeros(12, 8, 3, 3, dtype=torch.bfloat16)
x = functional.conv_unfold_norm_silu(x, w[:4], w[:4, 0, 0, 0], torch.zeros(1), 1e-4).expand(-1, -1, -1, 8)
x = functional.conv_unfold_sigmoid(x, w, w[:, 0, 0, 0])[None]
functional.unit_squared_error(x, torch.zeros(x.shape, dtype=torch.uint8), 0.0, 255.0).sum().backward()
x, y = torch.zeros(9, 255, dtype=torch.bfloat16, requires_grad=True), torch.zeros(9)
head = TwoHot(x, torch.arange(-127.0, 128.0))
head.loss(y, y).sum().backward()
with torch.no_grad():
    head.mean()
g, one = torch.zeros(9), torch.ones(())
optim.laprop(g, g[:3], torch.zeros(9, dtype=torch.int32), g.clone(), g.clone(), one, (one, one), LaPropAGCConfig())
print(sorted(DONE), all(DONE.values()))
"""


def test_they_compile_for_a_gpu():
    """Whatever an update would start, in bfloat16, compiles to the code of an H100 or H200. It needs no GPU.

    Triton does what it does for a launch: it binds the arguments, compiles for what they are, and starts nothing. What
    it has compiled before it knows by the source, all that it calls, the arguments and its own version.
    """
    env = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == f"{NAMES} True", done.stderr[-2000:]


@pytest.mark.parametrize(("trouble", "failed", "said"), [
    ("", (), "Triton"), ("none", gpu.FAMILIES, "PyTorch (none)"),
    ("off by 2", ["images", "losses"], "PyTorch for images, losses (off by 2)"),
])  # fmt: skip
def test_reports_say_what_computes(trouble, failed, said, monkeypatch):
    monkeypatch.setattr(gpu, "triton_problem", lambda device, family: trouble if family in failed else "")
    assert gpu.triton_status(torch.device("cuda")) == said
