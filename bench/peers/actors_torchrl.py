"""TorchRL beside ``actors.py``: its asynchronous collector with two processes, and SAC with one update per env step."""

from __future__ import annotations

import sys

import torch
from acting import BATCH, BLOCK, RATE, ROWS, STARTS, UNITS, Count
from acting import made as plain
from tensordict.nn import InteractionType, NormalParamExtractor, TensorDictModule
from torch import nn
from torchrl.collectors import MultiAsyncCollector
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import DoubleToFloat, EnvBase, GymWrapper, TransformedEnv
from torchrl.modules import MLP, ProbabilisticActor, TanhNormal, ValueOperator
from torchrl.objectives import SACLoss, SoftUpdate


def made(case: str) -> EnvBase:
    """The environment of a case; HalfCheetah observes in float64."""
    return TransformedEnv(GymWrapper(plain(case)), DoubleToFloat())


def main(case: str) -> None:
    """Measure, and print the rates."""
    torch.set_num_threads(1)
    env = made(case)
    obs, acts = env.observation_spec["observation"].shape[-1], env.action_spec.shape[-1]
    space = env.action_spec_unbatched.space
    body = nn.Sequential(MLP(in_features=obs, out_features=2 * acts, num_cells=UNITS), NormalParamExtractor())
    actor = ProbabilisticActor(
        TensorDictModule(body, in_keys=["observation"], out_keys=["loc", "scale"]), in_keys=["loc", "scale"],
        spec=env.action_spec_unbatched, distribution_class=TanhNormal, default_interaction_type=InteractionType.RANDOM,
        distribution_kwargs={"low": space.low, "high": space.high, "tanh_loc": False},
    )  # fmt: skip
    critic = ValueOperator(MLP(in_features=obs + acts, out_features=1, num_cells=UNITS), ["action", "observation"])
    loss = SACLoss(actor, critic, num_qvalue_nets=2, loss_function="l2", delay_qvalue=True)
    loss.make_value_estimator(gamma=0.99)
    targets, optim = SoftUpdate(loss, eps=0.995), torch.optim.Adam(loss.parameters(), lr=RATE)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(ROWS), batch_size=BATCH)
    collector = MultiAsyncCollector(
        [lambda: made(case)] * 2, actor, frames_per_batch=BLOCK, total_frames=-1, storing_device="cpu", device="cpu",
        update_at_each_batch=False,
    )  # fmt: skip
    count, rows, updates = Count(), 0, 0
    for block in collector:
        replay.extend(block.reshape(-1))
        rows += block.numel()
        if rows < STARTS:
            continue
        for _ in range(block.numel()):
            said = loss(replay.sample())
            (said["loss_actor"] + said["loss_qvalue"] + said["loss_alpha"]).backward()
            optim.step()
            optim.zero_grad(set_to_none=True)
            targets.step()
            updates += 1
        collector.update_policy_weights_()
        if count.over(rows, updates):
            break
    collector.shutdown()


if __name__ == "__main__":
    main(sys.argv[1])
