"""r2dreamer's Dreamer, with the decoder or its Barlow Twins loss, from a checkout of its repository."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import dreamer
import torch
from measure import ACTIONS, BATCH, LENGTH, SIZES, Sizes, Subject, actions, count, main
from omegaconf import OmegaConf
from tensordict import TensorDict

FLAGS = ("is_first", "is_last", "is_terminal")


def configured(s: Sizes, compiled: bool, loss: str) -> OmegaConf:
    """Its model's configuration at these sizes."""
    path = Path(dreamer.__file__).parent / "configs" / "model" / "_base_.yaml"
    base = OmegaConf.to_container(OmegaConf.load(path), resolve=False)
    sizes = {"deter": s.deter, "hidden": s.hidden, "discrete": s.classes, "depth": s.depth, "units": s.units}
    keys = {"mlp_keys": "$^" if s.image else "vector", "cnn_keys": "image" if s.image else "$^"}
    whole = OmegaConf.create(
        {
            "device": "cpu",
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

    def __init__(self, s: Sizes):
        lead = (BATCH, LENGTH)
        rest = {"action": actions(s, *lead), "reward": torch.randn(*lead, 1)}
        self.data = TensorDict(observed(s, *lead) | rest, batch_size=lead)
        self.initial = (torch.zeros(BATCH, s.stoch, s.classes), torch.zeros(BATCH, s.deter))

    def sample(self) -> tuple[TensorDict, None, tuple[torch.Tensor, torch.Tensor]]:
        """Batch, places and the latents at its beginning."""
        return self.data.copy(), None, self.initial

    def update(self, index: None, stoch: torch.Tensor, deter: torch.Tensor) -> None:
        """Forget them."""


def learner(setting: str, *, compiled: bool = False, loss: str = "dreamer") -> Subject:
    """Its `update` and `act`; in float32, as its float16 is meant for GPUs."""
    s = SIZES[setting]
    dreamer.autocast = lambda **_: contextlib.nullcontext()
    agent = dreamer.Dreamer(configured(s, compiled, loss), *spaces(s))
    replay = Noise(s)

    def actor(envs: int) -> Callable[[], object]:
        shown = TensorDict(observed(s, envs), batch_size=(envs,))
        held = {"state": agent.get_initial_state(envs)}

        def act() -> object:
            action, held["state"] = agent.act(shown.copy(), held["state"])
            return action

        return act

    trained = [getattr(agent, part) for part in ("rssm", "actor", "value", "reward", "cont", "encoder")]
    trained.append(agent.decoder if loss == "dreamer" else agent.prj)
    return Subject(count(*trained), lambda: agent.update(replay), actor)


if __name__ == "__main__":
    variants = {"eager": learner, "compiled": partial(learner, compiled=True)}
    main(variants | {"r2dreamer": partial(learner, loss="r2dreamer")})
