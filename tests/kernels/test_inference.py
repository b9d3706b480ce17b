"""Acting by a recording: the same to the last bit as asking the network, whatever has happened to it meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from reverie.core.accelerate import only
from reverie.core.specs import ObsPart
from reverie.core.types import Step
from reverie.kernels import inference
from reverie.kernels.compiler import kernels
from reverie.kernels.inference import MAX_KEYS, captures_of
from reverie.kernels.table import ROWS
from reverie.nn.actor_critic import (
    DeterministicActor,
    DiscreteQNetwork,
    FixedStdGaussianActor,
    GaussianActor,
    NetworkConfig,
    TanhGaussianActor,
)
from reverie.nn.cnn import Minatar
from reverie.nn.exploration import EpsilonGreedy, Gaussian, GreedyPolicy, Inference, NoisyPolicy, SampledPolicy

pytestmark = pytest.mark.skipif(kernels() is None, reason="nothing is recorded without a compiler")

SPEC = {
    "vector": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "choice": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(4,)),
    "table": ObsPart(kind="vector", shape=(2, 3), dtype="float32"),
}
IMAGE = {"image": ObsPart(kind="image", shape=(10, 10, 3), dtype="uint8", low=0, high=255)}
SMALL = NetworkConfig(units=(20, 7))
CPU = torch.device("cpu")


def seen(rows: int) -> dict[str, Tensor]:
    return {
        "vector": torch.randn(rows, 5),
        "choice": torch.randint(-1, 4, (rows,)),
        "table": torch.randn(rows, 2, 3),
        "image": torch.randint(0, 256, (rows, 10, 10, 3), dtype=torch.uint8),
    }


def actor(seed: int = 0) -> DeterministicActor:
    torch.manual_seed(seed)
    return DeterministicActor(SPEC, 3, SMALL)


@torch.no_grad()
def agree(taped: Inference, network: nn.Module, rows: int = 1, times: int = 4) -> bool:
    """Whether the same is said several times, the first time and from a recording."""
    given = [seen(rows) for _ in range(times)]
    return all(torch.equal(taped(obs), network(obs)) for obs in given)


def test_a_recording_answers_as_the_network_does() -> None:
    """Of many shapes only some are recorded, and nothing that has a gradient."""
    network = actor()
    taped = Inference(network, network)
    for _ in range(3):
        taped(seen(2)).sum().backward()
    assert not captures_of(taped).by_key
    assert network.body.theta.grad is not None
    for rows in (1, 3, 1, 70):
        assert agree(taped, network, rows)
    assert len(captures_of(taped).by_key) == 3
    assert all(captures_of(taped).by_key.values())
    assert all(agree(taped, network, rows, times=2) for rows in range(1, MAX_KEYS + 6))
    assert len(captures_of(taped).by_key) == MAX_KEYS


@torch.no_grad()
def test_convolutions_are_recorded() -> None:
    values = greedy(False, image=True).values
    assert isinstance(values, Inference)
    values(seen(2))
    assert len(captures_of(values).by_key) == 1
    assert all(captures_of(values).by_key.values())


def test_it_follows_parameters_that_change_and_that_move() -> None:
    network = actor()
    taped = Inference(network, network)
    assert agree(taped, network)
    with torch.no_grad():
        network.body.theta.add_(0.1)
    assert agree(taped, network)
    assert len(captures_of(taped).by_key) == 1
    network.load_state_dict(actor(1).state_dict())
    assert agree(taped, network)
    assert len(captures_of(taped).by_key) == 1
    network.body.theta.data = network.body.theta.data.clone() * 2
    assert agree(taped, network)
    assert len(captures_of(taped).by_key) == 2


@pytest.mark.parametrize("modes", [(torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)])
def test_it_may_be_made_in_inference_mode_and_used_outside(modes: tuple[Callable[[], Any], ...]) -> None:
    network = actor()
    taped = Inference(network, network)
    for mode in modes * 2:
        with mode():
            obs = seen(1)
            assert torch.equal(taped(obs), network(obs))
    assert len(captures_of(taped).by_key) == 1
    assert all(captures_of(taped).by_key.values())


@torch.no_grad()
def test_answers_are_the_callers() -> None:
    network = actor()
    taped = Inference(network, network)
    given = [seen(2) for _ in range(4)]
    answers = [taped(obs) for obs in given]
    for obs, answer in zip(given, answers, strict=True):
        assert torch.equal(answer, network(obs))
        answer.zero_()
    assert torch.equal(taped(given[0]), network(given[0]))


class Other(nn.Module):
    """Has a count of its own, which a recording would not go on with."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.asked = actor(), 0
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        self.asked += 1
        return self.scale * self.inner(obs) * self.asked


@torch.no_grad()
def test_other_networks_are_called() -> None:
    other, obs = Other(), seen(1)
    taped = Inference(other, other)
    assert torch.equal(taped(obs) * 3, taped(obs) * 1.5)
    assert other.asked == 2
    assert not captures_of(taped).by_key


@torch.no_grad()
def test_what_cannot_be_repeated_is_called() -> None:
    network = actor()
    taped = Inference(lambda obs: network(obs) * float(obs["vector"][0, 0]), network)
    for _ in range(3):
        obs = seen(1)
        assert torch.equal(taped(obs), network(obs) * float(obs["vector"][0, 0]))
    assert list(captures_of(taped).by_key.values()) == [None]


def test_a_copy_has_networks_and_recordings_of_its_own() -> None:
    network = actor()
    taped = Inference(network, network)
    assert agree(taped, network)
    other = copy.deepcopy(taped)
    assert not captures_of(other).by_key
    with torch.no_grad():
        network.body.theta.zero_()
    assert agree(other, other.function)
    with torch.no_grad():
        assert not torch.equal(other(obs := seen(2)), taped(obs))


@torch.no_grad()
def test_two_threads_do_not_answer_each_others_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    network, mine, others = actor(), seen(1), seen(1)
    taped = Inference(network, network)
    answers, asked, go_on = [taped(mine), taped(others)], threading.Event(), threading.Event()
    replay = inference.Tape.replay

    def slow(tape: inference.Tape) -> None:
        if not asked.is_set():
            asked.set()
            go_on.wait()
        replay(tape)

    monkeypatch.setattr(inference.Tape, "replay", slow)
    found: dict[int, Tensor] = {}

    @torch.no_grad()
    def ask(number: int, obs: dict[str, Tensor]) -> None:
        found[number] = taped(obs)

    threads = [threading.Thread(target=ask, args=(0, mine)), threading.Thread(target=ask, args=(1, others))]
    threads[0].start()
    asked.wait()
    threads[1].start()
    threads[1].join(0.1)
    go_on.set()
    for thread in threads:
        thread.join()
    assert not torch.equal(*answers)
    assert all(torch.equal(found[i], answer) for i, answer in enumerate(answers))


# ---------------------------------------------------------------- policies


def greedy(dueling: bool, image: bool = False) -> GreedyPolicy:
    config = NetworkConfig(units=(20,), encoder=Minatar()) if image else SMALL
    values = DiscreteQNetwork(SPEC | IMAGE if image else SPEC, (4,), config, dueling=dueling)
    return GreedyPolicy(Inference(values, values), EpsilonGreedy(0.5), (4,), CPU)


POLICIES: dict[str, Callable[[], Any]] = {
    "noisy": lambda: NoisyPolicy(actor(), Gaussian(0.3), 3, CPU),
    "squashed": lambda: SampledPolicy(TanhGaussianActor(SPEC, 3, SMALL, torch.float32), CPU),
    "normal": lambda: SampledPolicy(GaussianActor(SPEC, 3, SMALL), CPU),
    "steady": lambda: SampledPolicy(FixedStdGaussianActor(SPEC, 3, SMALL), CPU),
    "greedy": lambda: greedy(False),
    "dueling": lambda: greedy(True),
    "pictures": lambda: greedy(False, image=True),
}


@pytest.mark.parametrize("mode", ["explore", "eval"])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_act_as_without_recordings(name: str, mode: str) -> None:
    def actions() -> list[Tensor]:
        torch.manual_seed(4)
        policy = POLICIES[name]()
        state, taken = policy.initial(2), []
        torch.manual_seed(5)
        for t in range(6):
            flags = {"is_first": torch.tensor([t == 0, t % 3 == 0]), "is_last": torch.tensor([False, t == 2])}
            step = Step(obs=seen(2), reward=torch.zeros(2), is_terminal=torch.zeros(2, dtype=torch.bool), **flags)
            action, state = policy.act(step, state, mode)
            taken.append(action)
        return taken

    mine = actions()
    with only(*(kernel for _, kernel in ROWS if kernel.run is not inference.infer)):
        assert all(torch.equal(a, b) for a, b in zip(mine, actions(), strict=True))
