"""Batches as plain arrays."""

import numpy as np


def to_columns(batch):
    """Copies of the columns ``[B, T, ...]`` of a batch; a single observation is called ``story``."""
    obs = {("story" if key == "observation" else key): x.numpy().astype(np.float64) for key, x in batch.obs.items()}
    flags = {name: getattr(batch, f"is_{name}").numpy().copy() for name in ("first", "last", "terminal")}
    tags = {"tag": batch.extras["is_intervention"].numpy().copy()} if "is_intervention" in batch.extras else {}
    return {"obs": obs, "action": batch.action.numpy().copy(), "reward": batch.reward.numpy().copy(), **flags, **tags}
