"""r2dreamer's Dreamer, with the decoder or its Barlow Twins loss, from a checkout of its repository."""

from __future__ import annotations

import contextlib
import importlib
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import torch
from measure import ACTIONS, SIZES, Place, Sizes, Subject, actions, count, main
from omegaconf import OmegaConf
from tensordict import TensorDict

sys.modules["torch.utils.tensorboard"] = SimpleNamespace(SummaryWriter=None)  # its logger's, which nothing here uses
dreamer = importlib.import_module("dreamer")

FLAGS = ("is_first", "is_last", "is_terminal")


def configured(s: Sizes, place: Place, compiled: bool, loss: str) -> OmegaConf:
    """Its model's configuration at these sizes."""
    path = Path(dreamer.__file__).parent / "configs" / "model" / "_base_.yaml"
    base = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    sizes = {"deter": s.deter, "hidden": s.hidden, "discrete": s.classes, "depth": s.depth, "units": s.units}
    keys = {"mlp_keys": "$^" if s.image else "vector", "cnn_keys": "image" if s.image else "$^"}
    whole = OmegaConf.create(
        {
            "device": place.device,
            "env": {"encoder": keys, "decoder": keys},
            "model": {**base, **sizes, "act": "SiLU", "norm": True, "rep_loss": loss},
        }
    )
    whole.model.compile = compiled
    OmegaConf.resolve(whole)
    return whole.model


def observed(s: Sizes, *lead: int) -> dict[str, torch.Tensor]:
    """Noise as observations, with the flags of an episode's middle."""
    shown = {"image": torch.randint(0, 256, (*lead, 64, 64, 3), dtype=torch.uint8)}
    shown = shown if s.image else {"vector": torch.randn(*lead, s.vector)}
    return shown | {key: torch.zeros(*lead, 1, dtype=torch.bool) for key in FLAGS}


def spaces(s: Sizes) -> tuple[SimpleNamespace, SimpleNamespace]:
    """As much of Gymnasium's spaces as it looks at."""
    shapes = {key: SimpleNamespace(shape=tuple(value.shape)) for key, value in observed(s).items()}
    chosen = SimpleNamespace(shape=(ACTIONS,)) if s.continuous else SimpleNamespace(n=ACTIONS, discrete=True)
    return SimpleNamespace(spaces=shapes), chosen


class Noise:
    """A replay whose batch is always the same noise, and which keeps no latents."""

    def __init__(self, s: Sizes, device: str):
        lead = (s.batch, s.length)
        rest = {"action": actions(s, *lead), "reward": torch.randn(*lead, 1)}
        self.data = TensorDict(observed(s, *lead) | rest, batch_size=lead).to(device)
        stoch, deter = torch.zeros(s.batch, s.stoch, s.classes), torch.zeros(s.batch, s.deter)
        self.initial = (stoch.to(device), deter.to(device))

    def sample(self) -> tuple[TensorDict, None, tuple[torch.Tensor, torch.Tensor]]:
        """Batch, places and the latents at its beginning."""
        return self.data.copy(), None, self.initial

    def update(self, index: None, stoch: torch.Tensor, deter: torch.Tensor) -> None:
        """Forget them."""


def learner(setting: str, place: Place, *, compiled: bool = False, loss: str = "dreamer") -> Subject:
    """Its `update` and `act`; in float32, or with its own autocast, of float16 and for GPUs, as its `train.py` does."""
    s = SIZES[setting]
    if place.half:
        torch.set_float32_matmul_precision("high")
    else:
        dreamer.autocast = lambda **_: contextlib.nullcontext()
    agent = dreamer.Dreamer(configured(s, place, compiled, loss), *spaces(s)).to(place.device)
    replay = Noise(s, place.device)

    def actor(envs: int) -> Callable[[], object]:
        shown = TensorDict(observed(s, envs), batch_size=(envs,))
        held = {"state": agent.get_initial_state(envs)}

        def act() -> object:
            action, held["state"] = agent.act(shown.to(place.device).copy(), held["state"])
            return action.cpu()

        return act

    trained = [getattr(agent, part) for part in ("rssm", "actor", "value", "reward", "cont", "encoder")]
    trained.append(agent.decoder if loss == "dreamer" else agent.prj)
    precision = "float16 autocast, the rest in TF32" if place.half else "float32"
    return Subject(count(*trained), lambda: agent.update(replay), actor, precision, place.wait, place.peak)


if __name__ == "__main__":
    variants = {"eager": learner, "compiled": partial(learner, compiled=True)}
    barlow = partial(learner, loss="r2dreamer")
    variants |= {"r2dreamer": barlow, "r2dreamer_compiled": partial(barlow, compiled=True)}
    main(variants, movable=True)
