"""Programs compute in a real browser what PyTorch computes: policies, and all parts of world models."""

import json
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import contracts
import dreamer_configs
from browser import launched_browser
from reverie.agent.policy_file import copy_to_cpu
from reverie.agent.policy_function import PolicyFunction, random_observation
from reverie.agent.program import OPERATIONS, ROWS, TWO_HOT, decode, encode, to_json, trace, trace_policy, trace_world
from reverie.algos.dreamer_v1 import DreamerV1Config
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.r2dreamer import R2DreamerConfig
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.specs import action_kind
from reverie.viewer.page import STATIC
from small_agents import agent_of

PARITY = """([program, calls]) => {
  const parts = open(program, () => { throw new Error("noise is given"); });
  const text = (outputs) => Object.fromEntries(Object.entries(outputs).map(([k, v]) => [k, [...v].map(String)]));
  return calls.map(([name, inputs]) => text(parts[name](inputs)));
}"""
POLICIES = ("bcq",)
NIGHTLY = (
    "ppo_lstm",
    "simba_v2",
    "sac_mixed",
    "crossq",
    "c51",
    "iqn",
    "dqn_choices",
    "bc_chunks",
    "dqn_lstm",
    "fql",
    "xqc",
    "sac_ae",
)
OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in NIGHTLY]
V3 = DreamerV3Config().merge(dreamer_configs.TINY)
EARLIER = {k: v for k, v in dreamer_configs.TINY.items() if not k.startswith(("optim", "rssm.classes", "rssm.blocks"))}
WORLDS = {
    "v3": (V3, "mixed", {}),
    "v3_masks": (V3, "multi_discrete", {"masks": True, "seeing": False}),
    "v2": (DreamerV2Config().merge(EARLIER), "discrete", {}),
    "v1": (DreamerV1Config().merge(EARLIER), "continuous", {}),
    "r2dreamer": (R2DreamerConfig().merge(dreamer_configs.TINY), "discrete", {}),
    "tdmpc2": (contracts.tiny("tdmpc2"), "continuous", {"seeing": False}),
}


@pytest.fixture(scope="module")
def run():
    """Run calls of a program in a browser, under no server."""
    with launched_browser() as browser:
        page = browser.new_page()
        script = (STATIC / "program.js").read_text(
            encoding="utf-8"
        ) + "\nObject.assign(window, { open, halves, OPERATIONS });"
        page.add_script_tag(content=script, type="module")
        page.wait_for_function("window.OPERATIONS")
        yield page.evaluate


def numbers(tensors):
    return {name: x.flatten().double().tolist() for name, x in tensors.items()}


def check(run, parts, calls, atol=1e-5):
    """The browser returns for each call, a part's name and inputs, what the part returns here."""
    with torch.no_grad(), use_only_kernels():
        expected = [parts[name].source(inputs) for name, inputs in calls]
    given = [[name, numbers({k: v for k, v in inputs.items() if k in parts[name].inputs})] for name, inputs in calls]
    for outputs, found in zip(expected, run(PARITY, [to_json(parts, "float32"), given]), strict=True):
        assert outputs.keys() == found.keys()
        for name, x in numbers(outputs).items():
            got, tolerance = (
                [float(y.replace("Infinity", "inf")) for y in found[name]],
                1e-2 if name in TWO_HOT else atol,
            )
            np.testing.assert_allclose(got, x, rtol=tolerance, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("name", [*POLICIES, *OTHERS])
def test_a_browser_acts_as_the_agent(name, run, tmp_path):
    algo = contracts.tiny(name)
    kind = "multi_discrete" if name == "ppo_lstm" else action_kind(contracts.ACTIONS.get(name, contracts.MOVES))
    agent = agent_of(algo, kind, tmp_path, seeing=False)
    with torch.no_grad(), use_only_kernels():
        function = PolicyFunction(agent, 1)
    part, state, calls = trace_policy(function), {}, []
    for number in range(6):
        values = {k: v for k, v in (function.random_inputs(number) | state).items() if k in part.inputs}
        calls.append(("act", values))
        with torch.no_grad(), use_only_kernels():
            out = part(values)
        state = {spec.metadata["input"]: out[spec.name] for spec in function.outputs if spec.role == "state"}
    check(run, {"act": part}, calls)


OTHER_WORLDS = [
    pytest.param(name, marks=pytest.mark.nightly) for name in ("tdmpc2", "v1", "v2", "r2dreamer", "v3_masks")
]


@pytest.mark.parametrize("name", ["v3", *OTHER_WORLDS])
def test_a_browser_dreams_as_the_world_model(name, run, tmp_path):
    algo, kind, env = WORLDS[name]
    agent = copy_to_cpu(agent_of(algo, kind, tmp_path, **env))
    parts, calls, state = trace_world(agent), [], {}
    for row in range(ROWS):
        obs = {f"obs/{k}": random_observation(part, 1, agent.action_spec) for k, part in agent.observer.single.items()}
        action = {"action": torch.rand(1, agent.action_spec.width), "is_first": torch.tensor([row == 0])}
        kind = "observe" if row < 3 else "imagine"
        values = parts[kind].random_inputs(state | obs | action)
        with torch.no_grad(), use_only_kernels():
            state = parts[kind](values)
        calls += [(kind, values), ("predict", parts["predict"].random_inputs(state))]
    check(run, parts, calls)


def test_pages_have_the_operations_that_programs_may_use(run):
    assert sorted(run("() => Object.keys(OPERATIONS)")) == sorted(OPERATIONS)


def operations(x, i):
    """What the networks above do not do."""
    y = x.reshape(2, 6)
    return {
        "erf": torch.special.erf(x), "gelu": F.gelu(x), "approximate": F.gelu(x, approximate="tanh"),
        "flip": y.flip(1), "cat": torch.cat([y, y * 2], 1)[:, ::3], "pad": F.pad(y, (1, -2, 1, 0), value=3.0),
        "least": y.min(1).values, "place": y.max(0).indices, "sum": y.cumsum(1), "power": x.abs() ** 1.5,
        "floor": torch.div(x, 0.7, rounding_mode="floor"), "rest": torch.remainder(x, 0.7), "round": (x * 2).round(),
        "gather": y.gather(1, i), "scatter": y.scatter(1, i, 9.0), "repeat": y.repeat(2, 1), "norm": y.norm(dim=-1),
        "where": torch.where(y > 0, y, -math.inf), "product": y.prod(1), "any": (y > 0.5).any(1),
        "all": (y > -1.5).all(0), "elu": F.elu(x, 0.7), "leaky": F.leaky_relu(x, 0.1), "chosen": y[1],
        "columns": y[:, 1:4].t(),
    }  # fmt: skip


def test_other_operations(run):
    torch.manual_seed(0)
    values = {"x": torch.randn(1, 12), "i": torch.randint(6, (2, 2))}
    part = trace(operations, values)
    check(run, {"f": part}, [("f", {"x": torch.randn(1, 12), "i": torch.randint(6, (2, 2))}) for _ in range(5)], 2e-6)


def test_a_function_is_recorded_in_one_pass():
    """Changes in place too; a function that branches on values is refused."""
    calls, x, i = [], torch.tensor([[0.3, -0.2, 0.9]]), torch.tensor([2])

    def change(x, i):
        calls.append(1)
        y, hot = x.clone(), F.one_hot(i, 3)
        y[:, 1] = x[:, 0]
        is_large = y > 0.5
        is_large |= hot.bool()
        return {"y": y.masked_fill_(is_large, 7.0), "norm": F.rms_norm(x, (3,)), "mix": torch.lerp(x, y, x)}

    part = trace(change, {"x": x, "i": i})
    assert len(calls) == 2  # its outputs and random inputs first
    values = {"x": torch.tensor([[0.1, 0.6, 0.2]]), "i": torch.tensor([0])}
    for name, y in part(values).items():
        torch.testing.assert_close(y, change(**values)[name])
    with pytest.raises(ConfigError, match="cannot compute what branches on values"):
        trace(lambda x: {"y": x if x.sum() > 0 else -x}, {"x": x})


def test_convolutions_and_pools(run):
    torch.manual_seed(0)
    nets = {
        "conv": nn.Conv2d(4, 6, 3, 2, 1, groups=2), "transposed": nn.ConvTranspose2d(4, 6, 4, 2, 1),
        "pool": nn.MaxPool2d(3, 2, 1), "dilated": nn.Conv2d(4, 2, 2, dilation=2), "norm": nn.LayerNorm(9),
    }  # fmt: skip
    part = trace(lambda x: {name: net(x) for name, net in nets.items()}, {"x": torch.randn(1, 4, 8, 9)})
    check(run, {"f": part}, [("f", {"x": torch.randn(1, 4, 8, 9)})], 2e-6)


def test_halves_are_read_exactly(run):
    words = np.arange(2**16, dtype=np.uint16)
    found = run("words => [...halves(new Uint16Array(words))].map(String)", words.tolist())
    expected = words.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal([float(x.replace("Infinity", "inf")) for x in found], expected)


@pytest.mark.parametrize("kind", ["float16", "int8"])
def test_weights_are_rounded_here_as_in_the_page(kind, run):
    """int8 takes the scale of each row or of each column, whichever is closer."""
    torch.manual_seed(0)
    columns = torch.randn(20, 30) * torch.logspace(-3, 1, 30)
    for x in (columns, columns.t().contiguous(), torch.randn(8)):
        part = trace(lambda v, x=x: {"y": v * x}, {"v": torch.ones(1)})
        (found,) = run(PARITY, [to_json({"f": part}, kind), [["f", {"v": [1.0]}]]])
        rounded = decode(encode(x, kind))
        np.testing.assert_allclose([float(y) for y in found["y"]], rounded.flatten(), rtol=1e-6)
        assert 0 < (rounded - x).abs().max() / x.abs().max() < (1e-3 if kind == "float16" else 5e-3) or x.numel() < 16


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p["parts"]["f"]["ops"][0].__setitem__(1, "constructor"), "cannot compute constructor"),
        (lambda p: next(iter(p["tensors"].values())).__setitem__("d", ""), "a tensor of 600 numbers has 0"),
        (lambda p: next(iter(p["tensors"].values())).__setitem__("s", [9**9, 9]), "too large for a page"),
        (lambda p: p["parts"]["f"]["ops"].insert(0, ["x", "full", [[], 1], [9**9, 9], "float32"]), "too large"),
        (lambda p: p["parts"]["f"]["ops"].insert(0, ["x", "full", [[], 1], [-1, -(9**9)], "float32"]), "too large"),
        (lambda p: p["parts"]["f"]["ops"].insert(0, ["x", "full", [[], 1], [None], "float32"]), "too large"),
        (lambda p: p["parts"]["f"]["in"].append(["x", "noise", [9**9], "float32"]), "too large"),
    ],
)
def test_a_file_of_a_stranger_only_computes_numbers(change, said, run):
    x = torch.randn(20, 30)
    part = trace(lambda v: {"y": v * x}, {"v": torch.ones(1)})
    program = json.loads(json.dumps(to_json({"f": part}, "float16")))
    change(program)
    with pytest.raises(Exception, match=said):
        run(PARITY, [program, []])


def test_an_operation_that_pages_lack_is_named():
    part = trace(lambda x: {"y": torch.linalg.matrix_exp(x)}, {"x": torch.randn(3, 3)})
    with pytest.raises(ConfigError, match="pages cannot compute linalg_matrix_exp, which f uses"):
        to_json({"f": part}, "float32")
