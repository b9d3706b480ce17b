"""What every learner's ``train_step`` must be for a CUDA graph: on the device alone, and the same work each time."""

import copy

import pytest
import torch
from tape import HostWork, Tapes, device_only

from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.kernels.capture import WARM_UPS, Captured

TINY = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 3, "rssm.classes": 4, "rssm.blocks": 4, "encoder.units": 8,
    "encoder.depth": 2, "decoder.units": 8, "decoder.depth": 2, "reward.units": 8, "cont.units": 8, "actor.units": 8,
    "critic.units": 8, "batch_size": 3, "batch_length": 4, "horizon": 2, "optim.warmup": 3, "optim.lr": 1e-3,
}  # fmt: skip
VECTOR = ObsPart(kind="vector", shape=(5,), dtype="float32")
IMAGE = ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8")
SETTINGS = {
    "vector": ({"state": VECTOR}, {"move": ActionPart(kind="continuous", size=2)}),
    "image": ({"image": IMAGE}, {"push": ActionPart(kind="categorical", classes=(4,))}),
    "ragged": (
        {"state": VECTOR, "cards": ObsPart(kind="categorical", shape=(3,), dtype="int64", classes=(2, 5, 3)),
         "dice": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(6, 6))},
        {"play": ActionPart(kind="categorical", classes=(2, 3, 4)), "bet": ActionPart(kind="continuous", size=1)},
    ),
}  # fmt: skip
CASES = [
    (name, precision, context)
    for name, precision, context in [
        ("vector", "float32", 1), ("image", "float32", 1), ("ragged", "float32", 1), ("vector", "bfloat16", 1),
        ("image", "bfloat16", 1), ("ragged", "bfloat16", 0), ("image", "float32", 0),
    ]
]  # fmt: skip


@pytest.fixture(autouse=True)
def _plain_pytorch(monkeypatch):
    """As on a GPU, which has none of the compiled functions."""
    monkeypatch.setattr("reverie.kernels.call.kernels", lambda: None)


def build(name: str = "vector", precision: str = "float32", context: int = 1, device: str = "cpu", **more) -> DreamerV3:
    obs, action = SETTINGS[name]
    config = DreamerV3Config().merge(TINY | {"precision": precision, "replay_context": context} | more)
    return config.build(obs, ActionSpec(parts=action), device=device, seed=1)


def batch(agent: DreamerV3, seed: int = 0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    b, t, c = agent.window.batch, agent.window.rows, agent.cfg.rssm
    obs = {}
    for key, part in agent.obs_spec.items():
        shape = (b, t, *part.shape)
        high = {"image": 256, "categorical": 2}.get(part.kind)
        obs[key] = torch.randint(0, high, shape, generator=g) if high else torch.randn(shape, generator=g)
        obs[key] = obs[key].to(getattr(torch, part.dtype))
    first = torch.rand(b, t, generator=g) < 0.2
    stored = {"deter": torch.rand(b, t, c.deter, generator=g),
              "classes": torch.randint(0, c.classes + 1, (b, t, c.stoch), generator=g)}  # fmt: skip
    return Batch(
        obs=obs, action=torch.rand(b, t, agent.policy.width, generator=g), reward=torch.randn(b, t, generator=g),
        is_first=first, is_last=first.roll(-1, 1), is_terminal=first.roll(-1, 1), weight=torch.ones(b),
        index=torch.arange(b),
        extras={k: stored[k].to(getattr(torch, part.dtype)) for k, part in agent.extra_spec.items()},
    )  # fmt: skip


def learned(agent: DreamerV3) -> dict[str, torch.Tensor]:
    """All that an update changes."""
    state = agent.state_dict()
    return {**state["model"], **state["optim"]}


def captured(agent: DreamerV3) -> Captured:
    """Its updates, captured on the CPU."""
    tapes = Tapes()
    return Captured(agent.train_step, torch.device("cpu"), tapes, agent)


# ---------------------------------------------------------------- what a graph cannot hold


@pytest.mark.parametrize(("name", "precision", "context"), CASES)
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name, precision, context):
    rows = {"batch_size": 16, "batch_length": 16}  # enough for what is done differently with many
    agent = build(name, precision, context, device="meta", **rows)
    data = batch(agent).to("meta")
    with device_only():
        update = agent.train_step(data)
    outputs = [*update.metrics.values(), *update.extras.values()]
    assert all(x.device.type == "meta" for x in outputs)
    assert not any(x.requires_grad for x in outputs)  # a kept graph of the backward pass would keep all its memory


FAULTS = {
    "item": lambda x: x.sum().item(), "if": lambda x: bool(x.sum() > 0), "nonzero": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0], "masked write": lambda x: x.__setitem__(x > 0, x[0, 0]),
    "constant": lambda x: x * torch.tensor(2.0, device="meta"), "list": lambda x: x[[0, 1]],
    "host": lambda x: x * torch.rand(()), "copy": lambda x: torch.rand(3, 3).to("meta"),
    "normal": lambda x: torch.normal(x, x), "repeats": lambda x: x.repeat_interleave(x[0].long(), -1),
}  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS)
def test_such_faults_are_found(fault):
    x = torch.zeros(3, 3, device="meta")
    with pytest.raises((HostWork, RuntimeError)), device_only():
        FAULTS[fault](x)


def test_faults_of_the_backward_pass_are_found():
    class Fault(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            return grad * torch.tensor(2.0, device="meta")

    x = torch.zeros(3, device="meta", requires_grad=True)
    with pytest.raises(HostWork, match="copies from the host"), device_only():
        Fault.apply(x).sum().backward()


# ---------------------------------------------------------------- a replay is an update


@pytest.mark.parametrize(("name", "precision", "context"), CASES)
def test_replays_learn_what_updates_learn(name, precision, context):
    eager, replayed = build(name, precision, context), build(name, precision, context)
    update, seen = captured(replayed), []
    for agent, call in ((eager, eager.update), (replayed, update)):
        torch.manual_seed(5)
        seen.append([call(batch(agent, seed)) for seed in range(WARM_UPS + 4)])
    assert update.recorder.calls == ["warm up"] * WARM_UPS + ["capture"] + ["replay"] * 3
    for expected, got in zip(*seen, strict=True):
        torch.testing.assert_close(got.metrics, expected.metrics, rtol=0, atol=0)
        torch.testing.assert_close(got.extras, expected.extras, rtol=0, atol=0)
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


def test_a_loaded_state_is_what_later_replays_continue_from():
    eager, replayed = build(), build()
    update = captured(replayed)
    for seed in range(WARM_UPS + 2):
        update(batch(replayed, seed))
    state = copy.deepcopy(build().state_dict())
    state["optim"]["updates"] += 7  # the learning rate is another
    for agent, call in ((eager, eager.update), (replayed, update)):
        agent.load_state_dict(copy.deepcopy(state))
        torch.manual_seed(3)
        for seed in range(3):
            call(batch(agent, seed))
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_the_setting_changes_nothing_that_is_learned(device):
    """On a machine with a GPU, these are real graphs; sums there are not the same to the last bit."""
    seen = {}
    for graph in (True, False):
        agent = build(device=device, graph=graph)
        torch.manual_seed(2)
        seen[graph] = [agent.update(batch(agent, seed)) for seed in range(WARM_UPS + 4)]
        assert agent.optim.updates.item() == WARM_UPS + 4
    for a, b in zip(seen[True], seen[False], strict=True):
        assert torch.equal(a.metrics["opt/lr"], b.metrics["opt/lr"])
        torch.testing.assert_close(a.metrics["opt/loss"], b.metrics["opt/loss"], rtol=1e-2, atol=1e-2)
