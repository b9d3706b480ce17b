"""Samples of TorchRL as batches, and the DDPG objective inside of a TorchRL script: its own loss is the measure."""

import pytest
import torch
from torch import nn

from reverie.algos.ddpg import DDPGConfig, DDPGObjective
from reverie.core.types import Batch
from reverie.objectives.estimators import TD0, TD1, TDLambda

pytest.importorskip("torchrl")
from tensordict import TensorDict  # the packages are optional
from tensordict.nn import TensorDictModule
from torchrl.data import LazyTensorStorage, TensorDictReplayBuffer
from torchrl.envs import GymEnv
from torchrl.objectives import DDPGLoss, ValueEstimators

OBS, ACT = 3, 2
DISCOUNT, LAM = 0.9375, 0.75  # TorchRL keeps them in float32, where these are exact


class Actor(nn.Module):
    """Takes what either library hands over: a dictionary, or the tensor itself."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 8), nn.Tanh(), nn.Linear(8, ACT), nn.Tanh())

    def forward(self, obs):
        return self.body(obs if isinstance(obs, torch.Tensor) else obs["observation"])


class Critic(nn.Module):
    """One module for both: TorchRL wants a last axis of one, which ours must not have."""

    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS + ACT, 8), nn.Tanh(), nn.Linear(8, 1))

    def forward(self, obs, action):
        x = obs if isinstance(obs, torch.Tensor) else obs["observation"]
        y = self.body(torch.cat([x, action], -1))
        return y if isinstance(obs, torch.Tensor) else y.squeeze(-1)


def sample(*shape: int) -> TensorDict:
    """Steps of TorchRL's ``[B]``, or slices of episodes ``[B, T]``, which end at their last step if they do."""
    g = torch.Generator().manual_seed(0)
    last = torch.rand(*shape, 1, generator=g) < 0.6
    if len(shape) > 1:
        last[:, :-1] = False
    terminated = last & (torch.rand(*shape, 1, generator=g) < 0.5)
    seen = torch.randn(*shape[:-1], shape[-1] + 1, OBS, generator=g, dtype=torch.float64)
    axis = len(shape) - 1
    obs, later = seen.narrow(axis, 0, shape[-1]), seen.narrow(axis, 1, shape[-1])
    reward = torch.randn(*shape, 1, generator=g, dtype=torch.float64)
    following = {"observation": later, "reward": reward, "done": last, "terminated": terminated,
                 "truncated": last & ~terminated}  # fmt: skip
    action = torch.rand(*shape, ACT, generator=g, dtype=torch.float64) * 2 - 1
    index = torch.arange(obs[..., 0].numel()).view(shape)
    first = torch.rand(*shape, 1, generator=g) < 0.3
    data = {"observation": obs, "action": action, "is_init": first, "index": index, "next": following}
    return TensorDict(data, batch_size=shape)


@pytest.mark.parametrize(
    ("estimator", "theirs", "settings", "shape"),
    [
        (TD0(), ValueEstimators.TD0, {}, (256,)), (TD1(), ValueEstimators.TD1, {}, (40, 5)),
        (TDLambda(LAM), ValueEstimators.TDLambda, {"lmbda": LAM}, (40, 5)),
    ],
)  # fmt: skip
def test_the_terms_are_those_of_torchrl(estimator, theirs, settings, shape):
    torch.manual_seed(0)
    actor, critic = Actor().double(), Critic().double()
    objective = DDPGObjective(actor, critic, DDPGConfig(discount=DISCOUNT, value_estimator=estimator, batch_length=8))
    loss = DDPGLoss(
        TensorDictModule(actor, in_keys=["observation"], out_keys=["action"]),
        TensorDictModule(critic, in_keys=["observation", "action"], out_keys=["state_action_value"]),
        delay_actor=True, delay_value=True,
    )  # fmt: skip
    loss.make_value_estimator(theirs, gamma=DISCOUNT, **settings)
    for p in [*actor.parameters(), *critic.parameters()]:
        p.data += 0.1 * torch.randn_like(p)  # the targets stay where they were
    data = sample(*shape)
    batch = Batch.from_tensordict(data)
    assert batch.shape == (shape[0], 2 if len(shape) == 1 else shape[1] + 1)
    assert 0 < batch.is_terminal.sum() < batch.is_last.sum() < shape[0]
    assert torch.equal(batch.is_first[:, 0], data["is_init"].reshape(shape[0], -1)[:, 0])
    assert torch.equal(batch.index, data["index"].reshape(shape[0], -1)[:, 0])
    ours, other = objective(batch), loss(data)
    for mine, its in (
        (ours.terms["actor"], other["loss_actor"]), (ours.terms["critic"], other["loss_value"]),
        (objective.targets(batch).reshape(shape), other["target_value"]),
        (ours.priority, data["td_error"].sqrt().reshape(shape[0], -1).mean(1)),
    ):  # fmt: skip
        torch.testing.assert_close(mine, its, rtol=1e-12, atol=1e-13)


def test_rows_go_through_a_buffer_of_torchrl_and_come_back():
    data = sample(40)
    data["priority_weight"] = weight = torch.rand(40, dtype=torch.float64) + 0.1
    batch = Batch.from_tensordict(data)
    assert torch.equal(batch.weight, weight)
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    replay.extend(batch.to_tensordict())
    found = replay.sample()
    back = Batch.from_tensordict(found)
    assert back.shape == (16, 2)
    assert torch.equal(back.index, found["index"].reshape(16, -1)[:, 0])
    for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
        assert torch.equal(getattr(back, name), getattr(batch, name)[back.index]), name
    assert torch.equal(back.obs["observation"], batch.obs["observation"][back.index])


def test_choices_come_as_one_hot_numbers():
    steps = GymEnv("CartPole-v1").rollout(5)
    assert not steps["action"].is_floating_point()
    batch = Batch.from_tensordict(steps.unsqueeze(0))
    assert batch.shape == (1, 6)
    assert batch.action.dtype == torch.float32
    assert torch.equal(batch.action[:, :-1].argmax(-1)[0], steps["action"].argmax(-1))
    assert batch.action.sum(-1).tolist() == [[1, 1, 1, 1, 1, 0]]
