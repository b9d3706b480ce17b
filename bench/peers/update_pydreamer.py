"""PyDreamer: its DreamerV2, by `training_step` and the optimizers of its `train.py`, without its logging."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

import pydreamer
import torch
import yaml
from measure import BATCH, EARLIER, HORIZON, SIZES, Sizes, Subject, actions, count, main
from pydreamer.models import Dreamer


def configured(s: Sizes) -> Namespace:
    """Its defaults with our sizes; the cell and the missing norms of the DreamerV2 that we measure."""
    folder = Path(pydreamer.__file__).parents[1]
    defaults = yaml.safe_load((folder / "config" / "defaults.yaml").read_text())["defaults"]
    sizes = {"deter_dim": s.deter, "hidden_dim": s.hidden, "stoch_dim": s.stoch, "stoch_discrete": s.classes}
    seen = (
        {"cnn_depth": s.depth} if s.image else {"vecobs_size": s.vector, "image_encoder": None, "image_decoder": None}
    )
    kind = {"gru_type": "gru_layernorm_dv2", "layer_norm": False, "action_dim": 6, "imag_horizon": HORIZON}
    return Namespace(**defaults | sizes | seen | kind)


def batch(s: Sizes, rows: int) -> dict[str, torch.Tensor]:
    """Noise, time first."""
    lead = (rows, BATCH)
    obs = {"image": torch.rand(*lead, 3, 64, 64) - 0.5} if s.image else {"vecobs": torch.randn(*lead, s.vector)}
    flags = {"terminal": torch.zeros(lead), "reset": torch.zeros(lead, dtype=torch.bool)}
    return obs | flags | {"action": actions(s, *lead), "reward": torch.randn(lead)}


def learner(setting: str) -> Subject:
    """A learner and a batch."""
    s = SIZES[setting]
    conf = configured(s)
    model, data = Dreamer(conf), batch(s, EARLIER)
    optims = model.init_optimizers(conf.adam_lr, conf.adam_lr_actor, conf.adam_lr_critic, conf.adam_eps)
    start = model.init_state(BATCH)

    def update() -> None:
        losses, *_ = model.training_step(data, start)
        for optim in optims:
            optim.zero_grad()
        for loss in losses:
            loss.backward()
        model.grad_clip(conf.grad_clip, conf.grad_clip_ac)
        for optim in optims:
            optim.step()

    def acting(envs: int) -> Callable[[], object]:
        shown = {key: value[:1, :envs] for key, value in data.items()}
        held = {"state": model.init_state(envs)}

        @torch.no_grad()
        def act() -> object:
            policy, held["state"], _ = model.inference(shown, held["state"])
            return policy.sample()

        return act

    return Subject(count(model.wm, model.ac.actor, model.ac.critic), update, acting)


if __name__ == "__main__":
    main({"dreamer_v2": learner})
