"""TorchRL's Decision Transformer: its actor, which is Hugging Face's GPT-2, its loss, and slices of its replay."""

from __future__ import annotations

import numpy as np
import torch
from rates import ACTIONS, OBS, SEQUENCE, Experience, Update, repeated, returns_to_go
from tensordict import TensorDict
from tensordict.nn import TensorDictModule
from torch import nn
from torchrl.data import Bounded, LazyTensorStorage, TensorDictReplayBuffer
from torchrl.data.replay_buffers.samplers import SliceSampler
from torchrl.modules import DTActor, ProbabilisticActor, TanhDelta
from torchrl.objectives import DTLoss


def decision_transformer(rows: Experience) -> Update:
    """One step on the squared error, as in its example, with the sizes of all systems."""
    s = SEQUENCE
    sizes = DTActor.default_config()
    sizes.n_embd, sizes.n_layer, sizes.n_head, sizes.n_inner = s.units, s.layers, s.heads, 4 * s.units
    keys = ["observation", "action", "return_to_go"]
    spec = Bounded(-1.0, 1.0, (ACTIONS,))
    actor = ProbabilisticActor(
        TensorDictModule(DTActor(OBS, ACTIONS, sizes), in_keys=keys, out_keys=["param"]), in_keys=["param"],
        out_keys=["action"], spec=spec, distribution_class=TanhDelta,
        distribution_kwargs={"low": spec.space.low, "high": spec.space.high}, return_log_prob=False,
    )  # fmt: skip
    loss = DTLoss(actor, loss_function="l2")
    optim = torch.optim.Adam(loss.parameters(), lr=s.lr)
    replay = filled(rows)

    def step() -> None:
        sample = replay.sample().reshape(s.batch, s.rows)
        optim.zero_grad(set_to_none=True)
        loss(sample)["loss"].backward()
        nn.utils.clip_grad_norm_(loss.parameters(), s.max_grad_norm)
        optim.step()

    return repeated(step)


def filled(rows: Experience) -> TensorDictReplayBuffer:
    """Its replay with all of them, sampled in slices."""
    count = len(rows.obs)
    done = torch.from_numpy(rows.terminated | rows.truncated).unsqueeze(-1)
    columns = {"observation": rows.obs, "action": rows.action, "return_to_go": returns_to_go(rows)[:, np.newaxis]}
    found = {name: torch.from_numpy(column) for name, column in columns.items()}
    sampler = SliceSampler(slice_len=SEQUENCE.rows, end_key=("next", "done"), cache_values=True)
    replay = TensorDictReplayBuffer(
        storage=LazyTensorStorage(count), sampler=sampler, batch_size=SEQUENCE.batch * SEQUENCE.rows
    )
    replay.extend(TensorDict({**found, "next": TensorDict({"done": done}, [count])}, [count]))
    return replay
