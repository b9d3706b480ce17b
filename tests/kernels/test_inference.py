"""Acting by a recording: the same to the last bit as asking the network, whatever has happened to it meanwhile."""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from contracts import batch, build, shown
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.specs import ObsPart
from reverie.core.tree import tensors_in
from reverie.core.types import FLAGS, Batch, Step
from reverie.kernels import inference
from reverie.kernels.compiler import load_kernels
from reverie.kernels.inference import MAX_KEYS, get_captures
from reverie.kernels.registry import KERNELS
from reverie.nn import actors
from reverie.nn.actor_critic import DeterministicActor, DiscreteQNetwork
from reverie.nn.cnn import Minatar
from reverie.nn.exploration import (
    CapturableFunction,
    EpsilonGreedy,
    Gaussian,
    GreedyPolicy,
    NoisyPolicy,
    OrnsteinUhlenbeck,
    SampledPolicy,
)
from reverie.nn.network import NetworkConfig
from reverie.nn.normalization import Running
from reverie.nn.preprocess import Preprocessor
from reverie.nn.relu_mlp import noisy_parameters
from reverie.nn.reward_scaling import ReturnStd, RewardScale
from reverie.objectives import returns
from reverie.objectives.estimators import ValueEstimator
from reverie.run.turn import watch_and_act

pytestmark = pytest.mark.skipif(load_kernels() is None, reason="nothing is recorded without a compiler")

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


@pytest.fixture
def network() -> DeterministicActor:
    return actor()


@pytest.fixture
def taped(network: DeterministicActor) -> CapturableFunction:
    return CapturableFunction(network, network)


def recorded(taped: CapturableFunction) -> list[Any]:
    return list(get_captures(taped).by_key.values())


@torch.no_grad()
def agree(taped: CapturableFunction, network: nn.Module, rows: int = 1, times: int = 4) -> bool:
    """Whether the same is said several times, the first time and from a recording."""
    given = [seen(rows) for _ in range(times)]
    return all(torch.equal(taped(obs), network(obs)) for obs in given)


def test_a_recording_answers_as_the_network_does(taped, network) -> None:
    """Of many shapes only some are recorded, and nothing that has a gradient."""
    for _ in range(3):
        taped(seen(2)).sum().backward()
    assert not recorded(taped)
    assert network.body.theta.grad is not None
    assert all(agree(taped, network, rows) for rows in (1, 3, 1, 70))
    assert [x is not None for x in recorded(taped)] == [True] * 3
    assert all(agree(taped, network, rows, times=2) for rows in range(1, MAX_KEYS + 6))
    assert len(recorded(taped)) == MAX_KEYS


@torch.no_grad()
def test_convolutions_are_recorded() -> None:
    values = greedy(False, image=True).values
    assert isinstance(values, CapturableFunction)
    values(seen(2))
    assert [x is not None for x in recorded(values)] == [True]


def test_it_follows_parameters_that_change_and_that_move(taped, network) -> None:
    theta, counts = network.body.theta, []
    for change in (
        lambda: None, lambda: theta.detach().add_(0.1), lambda: network.load_state_dict(actor(1).state_dict()),
        lambda: setattr(theta, "data", theta.data.clone() * 2),
    ):  # fmt: skip
        change()
        assert agree(taped, network)
        counts.append(len(recorded(taped)))
    assert counts == [1, 1, 1, 2]


@pytest.mark.parametrize("modes", [(torch.inference_mode, torch.no_grad), (torch.no_grad, torch.inference_mode)])
def test_it_may_be_made_in_inference_mode_and_used_outside(modes, taped, network) -> None:
    for mode in modes * 2:
        with mode():
            obs = seen(1)
            assert torch.equal(taped(obs), network(obs))
    assert [x is not None for x in recorded(taped)] == [True]


@torch.no_grad()
def test_answers_are_the_callers(taped, network) -> None:
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
    taped = CapturableFunction(other, other)
    assert torch.equal(taped(obs) * 3, taped(obs) * 1.5)
    assert other.asked == 2
    assert not recorded(taped)


@torch.no_grad()
def test_what_cannot_be_repeated_is_called(network) -> None:
    taped = CapturableFunction(lambda obs: network(obs) * float(obs["vector"][0, 0]), network)
    for _ in range(3):
        obs = seen(1)
        assert torch.equal(taped(obs), network(obs) * float(obs["vector"][0, 0]))
    assert recorded(taped) == [None]


def test_a_copy_has_networks_and_recordings_of_its_own(taped, network) -> None:
    assert agree(taped, network)
    other = copy.deepcopy(taped)
    assert not recorded(other)
    with torch.no_grad():
        network.body.theta.zero_()
    assert agree(other, other.function)
    with torch.no_grad():
        assert not torch.equal(other(obs := seen(2)), taped(obs))


@torch.no_grad()
def test_two_threads_do_not_answer_each_others_questions(taped, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, others = seen(1), seen(1)
    answers, asked, go_on = [taped(mine), taped(others)], threading.Event(), threading.Event()
    replay = inference.Tape.replay

    def slow(tape: inference.Tape) -> None:
        if not asked.is_set():
            asked.set()
            go_on.wait()
        replay(tape)

    monkeypatch.setattr(inference.Tape, "replay", slow)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(torch.no_grad()(taped), mine)
        asked.wait()
        second = pool.submit(torch.no_grad()(taped), others)
        wait([second], timeout=0.1)
        go_on.set()
    assert not torch.equal(*answers)
    assert all(map(torch.equal, answers, (first.result(), second.result())))


def greedy(dueling: bool, image: bool = False, noisy_sigma: float = 0.0) -> GreedyPolicy:
    config = NetworkConfig(units=(20,), encoder=Minatar()) if image else SMALL
    values = DiscreteQNetwork(SPEC | IMAGE if image else SPEC, (4,), config, dueling=dueling,
                              noisy_sigma=noisy_sigma)  # fmt: skip
    noisy = CapturableFunction(noisy_parameters()(values.forward), values) if noisy_sigma else None
    return GreedyPolicy(CapturableFunction(values, values), EpsilonGreedy(0.5), (4,), CPU, noisy)


class Counting(Gaussian):
    """Noise that a recording would not go on with."""

    def next_value(self, process: Tensor) -> Tensor:
        vars(self)["asked"] = vars(self).get("asked", 0) + 1
        return torch.full_like(process, vars(self)["asked"] / 10)


def preprocessed(reward_scale: RewardScale | None = None) -> Any:
    preprocess = Preprocessor(
        SPEC, normalize_obs=Running(), frame_stack=2, frame_stack_keys="vector", reward_scale=reward_scale, discount=0.9
    )
    preprocess.fit(Batch.from_columns(
        {f"obs/{key}": x.unsqueeze(0) for key, x in seen(9).items() if key in SPEC}
        | {"reward": torch.zeros(1, 9), "action": torch.zeros(1, 9, 3)}
        | dict.fromkeys(FLAGS, torch.zeros(1, 9, dtype=torch.bool)), torch.zeros(1))
    )  # fmt: skip
    network = DeterministicActor(preprocess.spec, 3, SMALL)
    return preprocess.policy(NoisyPolicy(network, Gaussian(0.3), 3, CPU), CPU)


POLICIES: dict[str, Callable[[], Any]] = {
    "noisy": lambda: NoisyPolicy(actor(), Gaussian(0.3), 3, CPU),
    "correlated": lambda: NoisyPolicy(actor(), OrnsteinUhlenbeck(0.3), 3, CPU),
    "a user's noise": lambda: NoisyPolicy(actor(), Counting(), 3, CPU),
    "preprocessed": lambda: preprocessed(),
    "squashed": lambda: SampledPolicy(actors.TanhGaussianActor(SPEC, 3, SMALL, torch.float32), CPU),
    "normal": lambda: SampledPolicy(actors.GaussianActor(SPEC, 3, SMALL), CPU),
    "steady": lambda: SampledPolicy(actors.FixedStdGaussianActor(SPEC, 3, SMALL), CPU),
    "greedy": lambda: greedy(False),
    "dueling": lambda: greedy(True),
    "noisy network": lambda: greedy(True, noisy_sigma=0.5),
    "pictures": lambda: greedy(False, image=True),
}


@pytest.mark.parametrize("mode", ["explore", "eval"])
@pytest.mark.parametrize("name", POLICIES)
def test_policies_act_as_without_recordings(name: str, mode: str) -> None:
    def actions() -> list[Tensor]:
        torch.manual_seed(4)
        policy = POLICIES[name]()
        state, taken = policy.initial(2), []
        for t in range(6):
            first, last = torch.tensor([t == 0, t % 3 == 0]), torch.tensor([False, t == 2])
            step = Step(obs=seen(2), reward=torch.zeros(2), is_first=first, is_last=last, is_terminal=last & False)
            action, state = policy.act(step, state, mode)
            taken += [action, *tensors_in(state)]
        return taken

    mine = actions()
    with use_only_kernels(
        *(kernel for _, kernel in KERNELS if kernel.run not in (inference.infer_captured, inference.act_captured))
    ):
        torch.testing.assert_close(mine, actions(), rtol=0, atol=0)


@pytest.mark.parametrize("name", ["noisy", "correlated", "preprocessed", "normal", "greedy"])
def test_a_policy_is_one_recording(name: str) -> None:
    policy, none = POLICIES[name](), torch.zeros(2, dtype=torch.bool)
    step = Step(obs=seen(2), reward=torch.zeros(2), is_first=none, is_last=none, is_terminal=none)
    policy.act(step, policy.initial(2), "explore")
    captures = inference._captures_of(policy)
    assert captures is not None
    assert [capture is not None for capture in captures.by_key.values()] == [True]


def test_statistics_are_updated_on_the_tape_as_without_it() -> None:
    """Also after those of more streams are loaded, which take other memory."""

    def numbers() -> list[Tensor]:
        torch.manual_seed(4)
        policy = preprocessed(ReturnStd())
        statistics, state, every = policy.preprocess, policy.initial(2), []
        statistics.normalizer.is_checked = True
        saved = copy.deepcopy(statistics.state_dict()) | {"rewards.returns": torch.ones(1000, dtype=torch.float64)}
        for t in range(8):
            if t == 5:
                statistics.load_state_dict(saved)
            last = torch.tensor([False, t == 2])
            step = Step(
                obs=seen(2), reward=torch.randn(2), is_first=torch.tensor([t == 0, t == 3]), is_last=last,
                is_terminal=last,
            )  # fmt: skip
            action, state = watch_and_act(statistics, policy, step, state, "explore")
            every += [action, *tensors_in(state), *(x.clone() for x in statistics.buffers())]
        return every

    mine = numbers()
    with use_only_kernels(*(kernel for _, kernel in KERNELS if kernel.run is not inference.watch_and_act_captured)):
        torch.testing.assert_close(mine, numbers(), rtol=0, atol=0)


def test_statistics_of_a_user_are_updated_in_python_at_each_step() -> None:
    class Counting(Preprocessor):
        rows = 0

        def update_statistics(self, step: Step) -> None:
            super().update_statistics(step)
            self.rows += len(step)

    policy, none = preprocessed(ReturnStd()), torch.zeros(2, dtype=torch.bool)
    step = Step(obs=seen(2), reward=torch.ones(2), is_first=none, is_last=none, is_terminal=none)
    statistics = policy.preprocess
    statistics.normalizer.is_checked, statistics.__class__ = True, Counting
    for _ in range(4):
        watch_and_act(statistics, policy, step, policy.initial(2), "explore")
    assert statistics.rows == 8


def test_statistics_and_a_policy_are_one_recording() -> None:
    policy, none = preprocessed(ReturnStd()), torch.zeros(2, dtype=torch.bool)
    step = Step(obs=seen(2), reward=torch.ones(2), is_first=none, is_last=none, is_terminal=none)
    policy.preprocess.normalizer.is_checked = True
    for _ in range(3):
        watch_and_act(policy.preprocess, policy, step, policy.initial(2), "explore")
    captures = inference._captures_of(policy, policy.preprocess)
    assert captures is not None
    assert [capture is not None for capture in captures.by_key.values()] == [True]


class Custom(ValueEstimator):
    """Of a user, who may do anything."""

    function = staticmethod(returns.td1)


@pytest.mark.parametrize(
    ("name", "settings", "is_captured"),
    [
        ("a2c", {}, True), ("ppo", {}, True), ("ppo", {"graph": False}, False), ("ppo_lstm", {}, False),
        ("a2c", {"value_estimator": Custom()}, False),
    ],
)  # fmt: skip
def test_estimates_of_small_rollouts_are_one_recording(
    name: str, settings: dict[str, Any], is_captured: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are the numbers of the definition, also after an update and for other rows."""
    agent = build(name, **settings)
    monkeypatch.setattr(agent, "prepare_rollout", agent.preprocess.forward)
    for seed in range(3):
        rows = batch(agent, seed=seed)
        definition: Any = type(agent.objective).estimates.definition
        torch.testing.assert_close(
            agent.objective.estimates(rows), definition(agent.objective, rows), rtol=0, atol=0, check_stride=False
        )
        with torch.no_grad():
            for x in agent.parameters():
                x.mul_(1.5)
    captures = inference._estimates.get(agent.objective, (None, None))[1]
    assert ([*map(bool, captures.by_key.values())] if captures else []) == [True] * is_captured


def test_large_rollouts_are_estimated_without_a_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    agent = build("a2c")
    monkeypatch.setattr(inference, "MAX_ESTIMATED", 10)
    batch(agent)
    assert agent.objective not in inference._estimates


def test_a_captured_plan_is_the_plan():
    """A replay plans with the weights of now, draws what planning draws, and leaves what it gave out alone."""
    agent = build("tdmpc2", batch_length=4)
    copied, rows = copy.deepcopy(agent), batch(agent)
    for each in (agent, copied):
        step, state, found = shown(envs=2), each.policy.initial(2), []
        for _ in range(4):
            torch.manual_seed(len(found))
            with use_only_kernels(
                *(
                    kernel
                    for _, kernel in KERNELS
                    if each is agent or kernel.run not in (inference.infer_captured, inference.act_captured)
                )
            ):
                action, state = each.policy.act(step, state, "explore")
            each.update(rows)
            found += [action, state.mean]
        each.found = found
    assert any(get_captures(agent.policy.plans[True]).by_key.values())
    assert all(torch.equal(a, b) for a, b in zip(agent.found, copied.found, strict=True))
    assert not torch.equal(agent.found[0], agent.found[2])
