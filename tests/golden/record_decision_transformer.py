"""Record a few updates, and the actions, of the authors' Decision Transformer, for ``tests/parity``.

    python tests/golden/record_decision_transformer.py CHECKOUT tests/golden      # needs torch and transformers 4.30

CHECKOUT is kzl/decision-transformer (e2d82e6). Its model and its trainer run as they are, in float32 and without
dropout; only a decorator for docstrings, which has other arguments by now, does nothing.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
import transformers.file_utils

STATE, ACTION, BATCH, ROWS, UPDATES = 5, 2, 6, 5, 3
SETTINGS = {
    "hidden_size": 8, "n_layer": 2, "n_head": 2, "max_ep_len": 12, "learning_rate": 1e-2, "weight_decay": 0.1,
    "warmup_steps": 4, "target_return": 3.0,
}  # fmt: skip


def sample_windows(g: np.random.Generator) -> dict[str, np.ndarray]:
    """Windows of random episodes with as many rows as ``ROWS``, or fewer at the end of an episode: padded before it."""
    shape = BATCH, ROWS
    length = np.array([ROWS, ROWS, ROWS, 3, 1, ROWS])
    mask = np.arange(ROWS) >= ROWS - length[:, None]
    begin = np.array([0, 2, 6, 0, 4, 9])  # the last one goes beyond the embeddings
    steps = begin[:, None] + np.arange(ROWS) - (ROWS - length[:, None])
    whole = np.pad(mask, ((0, 0), (0, 1)), constant_values=True)
    batch = {
        "states": g.standard_normal((*shape, STATE)) * mask[..., None],
        "actions": np.where(mask[..., None], np.tanh(g.standard_normal((*shape, ACTION))), -10),
        "returns": g.standard_normal((BATCH, ROWS + 1, 1)) * whole[..., None],
    }
    batch = {k: v.astype(np.float32) for k, v in batch.items()}
    return batch | {"timesteps": np.minimum(steps * mask, SETTINGS["max_ep_len"] - 1).astype(np.int64), "mask": mask}


def main(checkout: Path, folder: Path) -> None:
    """Write ``decision_transformer.npz``."""
    sys.path.insert(0, str(checkout / "gym"))
    transformers.file_utils.add_code_sample_docstrings = lambda *_, **__: lambda method: method
    from decision_transformer.models.decision_transformer import DecisionTransformer
    from decision_transformer.training.seq_trainer import SequenceTrainer

    torch.manual_seed(0)
    g, s = np.random.default_rng(0), SETTINGS
    model = DecisionTransformer(
        STATE, ACTION, s["hidden_size"], max_length=ROWS, max_ep_len=s["max_ep_len"], n_layer=s["n_layer"],
        n_head=s["n_head"], n_inner=4 * s["hidden_size"], activation_function="relu", n_positions=64, n_ctx=64,
        resid_pdrop=0.0, attn_pdrop=0.0, embd_pdrop=0.0,
    )  # fmt: skip
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1 * torch.randn_like(p))
    optimizer = torch.optim.AdamW(model.parameters(), lr=s["learning_rate"], weight_decay=s["weight_decay"])
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / s["warmup_steps"], 1))
    batches = [sample_windows(g) for _ in range(UPDATES)]
    waiting = iter(batches)

    def get_batch(size: int) -> tuple[torch.Tensor | None, ...]:
        b = {k: torch.from_numpy(v) for k, v in next(waiting).items()}
        return b["states"], b["actions"], None, None, b["returns"], b["timesteps"], b["mask"].long()

    def loss_fn(*arguments: Any) -> torch.Tensor:
        _, action_hat, _, _, action, _ = arguments  # as in experiment.py
        return torch.mean((action_hat - action) ** 2)

    trainer = SequenceTrainer(model, optimizer, BATCH, get_batch, loss_fn)
    unused = ("predict_state", "predict_return", "wte", ".attn.bias", "masked_bias")

    def weights(prefix: str) -> dict[str, np.ndarray]:
        kept = {k: v for k, v in model.state_dict().items() if not any(name in k for name in unused)}
        return {f"{prefix}/{k}": v.numpy().copy() for k, v in kept.items()}

    arrays = weights("param")
    model.train()
    for i, batch in enumerate(batches):
        arrays |= {f"data/update{i}/{k}": v for k, v in batch.items()}
        arrays[f"out/update{i}/loss"] = np.array(trainer.train_step())
        scheduler.step()
        arrays |= {} if i == 1 else weights(f"step{i + 1}")
    model.eval()
    states, actions = (torch.from_numpy(g.standard_normal((8, n)).astype(np.float32)) for n in (STATE, ACTION))
    rewards = torch.from_numpy(g.standard_normal(8).astype(np.float32))
    to_go = s["target_return"] - torch.cat([torch.zeros(1), rewards.cumsum(0)[:-1]])
    taken = []
    with torch.no_grad():
        for t in range(8):
            past = torch.cat([actions[:t], torch.zeros(1, ACTION)])
            taken.append(model.get_action(states[: t + 1], past, None, to_go[: t + 1], torch.arange(t + 1)).numpy())
    arrays |= {
        "data/act/states": states.numpy(),
        "data/act/actions": actions.numpy(),
        "data/act/rewards": rewards.numpy(),
    }
    arrays["out/act/action"] = np.stack(taken)
    meta = {"source": "kzl/decision-transformer e2d82e6 gym/decision_transformer", **s}
    np.savez_compressed(
        folder / "decision_transformer.npz", meta=np.frombuffer(json.dumps(meta).encode(), np.uint8), **arrays
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
