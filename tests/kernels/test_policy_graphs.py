"""Acting on a pretended GPU by CUDA graphs: the same as uncaptured, whatever is captured and whatever is not."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fake_cuda import CUDA, FakeCuda, fake_cuda
from reverie.algos.dreamer import LatentPolicy
from reverie.algos.table import algorithm_config
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Mode, Step
from reverie.kernels import policy_graphs
from reverie.kernels.policy_graphs import MAX_KEYS, WARM_UPS
from reverie.kernels.registry import KERNELS
from reverie.nn.exploration import CapturableFunction
from tiny_configs import NETWORKS

SEEN = {"x": ObsPart(kind="vector", shape=(3,), dtype="float32")}
PUSHED = ActionSpec(parts={"a": ActionPart(kind="continuous", size=2)})
GRAPHS = [kernel for _, kernel in KERNELS if kernel.run.__module__ == policy_graphs.__name__]


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCuda]:
    with fake_cuda(monkeypatch) as device:
        yield device


class Layer(nn.Module):
    """A linear layer with noise, and what may be wrong with it."""

    def __init__(self, fault: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.fault, self.count = nn.Linear(3, 2), fault, 0

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        y = self.layer(obs["x"])
        self.count += self.fault == "count"
        scale = float(y.sum()) if self.fault == "wait" else 1.0
        return y * (scale + self.count) + torch.rand_like(y)


def answers(
    kernels: list, rows: list[int], fault: str = "", *, replaced: bool = False, graph: bool = True
) -> list[Tensor]:
    """What is chosen for rows of these numbers, one after the other."""
    network = Layer(fault).to(CUDA)
    function = CapturableFunction(network, network, graph=graph)
    torch.manual_seed(1)
    found = []
    with use_only_kernels(*kernels), torch.no_grad():
        for k, n in enumerate(rows):
            if replaced and k == WARM_UPS + 2:
                network.layer = nn.Linear(3, 2).to(CUDA)
            network.layer.weight.mul_(1.1)
            found.append(function.beside({"x": torch.full((n, 3), float(k))}, torch.zeros(n), CUDA))
    return found


@pytest.mark.parametrize(
    ("rows", "change", "replays"),
    [
        ([2] * (WARM_UPS + 3), {}, 3),
        ([2, 1] * (WARM_UPS + 3), {}, 6),
        ([2] * (2 * WARM_UPS + 5), {"replaced": True}, 5),
        ([*range(1, MAX_KEYS + 3)] * (WARM_UPS + 1), {}, MAX_KEYS),
        ([2] * (WARM_UPS + 3), {"fault": "wait"}, 0),
        ([2] * (WARM_UPS + 3), {"fault": "count"}, 0),
        ([2] * (WARM_UPS + 3), {"graph": False}, 0),
    ],
)
def test_a_replay_answers_as_the_network_does(rows, change, replays, gpu, recwarn):
    plain = answers([], rows, **change)
    assert gpu.replays == 0
    torch.testing.assert_close(answers(GRAPHS, rows, **change), plain, rtol=0, atol=0)
    assert (gpu.replays, [str(w.message) for w in recwarn]) == (replays, [])


class OwnPolicy(LatentPolicy):
    """Chooses as its base does."""

    def choose(self, step: Step, state: Any, mode: Mode) -> Any:
        return super().choose(step, state, mode)


def dreams(kernels: list) -> list[Tensor]:
    """Actions and latents of a Dreamer in both modes, in two runs of rows whose states are kept."""
    learner = algorithm_config("dreamer_v3")().merge(NETWORKS).build(SEEN, PUSHED, "cuda:0")
    policy, found = OwnPolicy(learner), []
    torch.manual_seed(1)
    none = torch.zeros(2, dtype=torch.bool)
    with use_only_kernels(*kernels):
        states = [policy.initial(2), policy.initial(2)]
        for k in range(WARM_UPS + 3):
            step = Step(obs={"x": torch.full((2, 3), 0.1 * k)}, reward=torch.ones(2), is_first=none | (k % 4 == 0),
                        is_last=none, is_terminal=none)  # fmt: skip
            for i, mode in enumerate(("explore", "eval")):
                action, states[i] = policy.act(step, states[i], mode)
                found += [action, states[i].latent.deter.cpu(), states[i].latent.stoch.cpu()]
    return found


def test_a_dreamer_keeps_a_latent_for_each_stream_of_rows(gpu):
    plain = dreams([])
    torch.testing.assert_close(dreams(GRAPHS), plain, rtol=0, atol=0)
    assert gpu.replays == 6
