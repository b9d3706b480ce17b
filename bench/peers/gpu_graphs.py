"""What the plain scripts for a GPU do by variant: CUDA graphs, compiled functions and fused Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from gpu_timing import Task
from rates import RATE
from torch import Tensor, nn

WARM_UPS = 3


class Captured:
    """A call that is recorded in a CUDA graph after a few runs on another stream, and replayed from then on."""

    def __init__(self, call: Callable[[], Any]) -> None:
        self.call, self.runs, self.stream = call, 0, torch.cuda.Stream()
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self) -> Any:
        self.runs += 1
        if self.runs <= WARM_UPS:
            self.stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(self.stream):
                result = self.call()
            torch.cuda.current_stream().wait_stream(self.stream)
            return result
        if self.graph is None:
            torch.cuda.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=self.stream):
                self.result = self.call()
            self.graph = graph
        self.graph.replay()
        return self.result


def captured(task: Task, call: Callable[[], Any]) -> Callable[[], Any]:
    """The call, as a CUDA graph where the variant has them."""
    return Captured(call) if task.on_gpu and task.variant != "plain" else call


def compiled(task: Task, call: Callable[..., Any]) -> Callable[..., Any]:
    """The function, compiled where the variant is."""
    return torch.compile(call, fullgraph=True) if task.variant == "compiled" else call


def adam(task: Task, params: Iterable[Tensor], rate: float = RATE, eps: float = 1e-8) -> torch.optim.Adam:
    """Adam; fused, and with its steps counted on the GPU, unless the variant is plain."""
    fast = {} if task.variant == "plain" else {"fused": True, "capturable": task.on_gpu}
    return torch.optim.Adam(params, rate, eps=eps, **fast)


def learn(optim: torch.optim.Optimizer, loss: Tensor) -> None:
    """One step. The gradients are None before, so that a capture allocates them in its own memory."""
    optim.zero_grad(set_to_none=True)
    loss.backward()
    optim.step()


def nature() -> nn.Sequential:
    """The convolutions of Mnih et al. 2015, to 3136 features."""
    return nn.Sequential(
        nn.Conv2d(4, 32, 8, stride=4), nn.ReLU(), nn.Conv2d(32, 64, 4, stride=2), nn.ReLU(), nn.Conv2d(64, 64, 3),
        nn.ReLU(), nn.Flatten(),
    )  # fmt: skip
