"""The DDPG objective inside of a TorchRL script: its collector, its replay buffers, and its own loss as the measure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch import Tensor, nn

from reverie.algos.ddpg import DDPGConfig, DDPGObjective
from reverie.core.types import Batch
from reverie.objectives.estimators import TD0, TD1, TDLambda, ValueEstimator

pytest.importorskip("torchrl")
from tensordict import TensorDict  # the packages are optional
from tensordict.nn import TensorDictModule, TensorDictSequential
from torchrl.collectors import Collector
from torchrl.data import LazyTensorStorage, SliceSampler, TensorDictReplayBuffer
from torchrl.envs import GymEnv, GymWrapper, InitTracker, TransformedEnv
from torchrl.modules import AdditiveGaussianModule
from torchrl.objectives import DDPGLoss, SoftUpdate, ValueEstimators

OBS, ACT = 3, 2
DISCOUNT, LAM, TAU = 0.9375, 0.75, 0.125  # TorchRL keeps them in float32, where these are exact


class Aim(gymnasium.Env[np.ndarray, np.ndarray]):
    """Rewards actions near the first two numbers seen. Episodes of 6 to 9 steps end by themselves or by a limit."""

    observation_space = gymnasium.spaces.Box(-1, 1, (OBS,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (ACT,), np.float32)
    episodes = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        self.episodes += 1
        self.left = 6 + self.episodes % 4
        return self.look(), {}

    def step(self, action: np.ndarray) -> Any:
        reward = -float(np.square(action - self.seen[:ACT]).sum())
        self.left -= 1
        over, by_itself = self.left == 0, self.episodes % 2 == 0
        return self.look(), reward, over and by_itself, over and not by_itself, {}

    def look(self) -> np.ndarray:
        self.seen = self.np_random.uniform(-1, 1, OBS).astype(np.float32)
        return self.seen


class Actor(nn.Module):
    """Takes what either library hands over: a dictionary, or the tensor itself."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS, 32), nn.ReLU(), nn.Linear(32, ACT), nn.Tanh())

    def forward(self, obs: Any) -> Tensor:
        x = obs if isinstance(obs, Tensor) else obs["observation"]
        y: Tensor = self.body(x.to(self.body[0].weight.dtype))
        return y


class Critic(nn.Module):
    """One module for both: TorchRL wants a last axis of one, which ours must not have."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(OBS + ACT, 32), nn.ReLU(), nn.Linear(32, 1))

    def forward(self, obs: Any, action: Tensor) -> Tensor:
        x = obs if isinstance(obs, Tensor) else obs["observation"]
        y: Tensor = self.body(torch.cat([x, action], -1))
        return y if isinstance(obs, Tensor) else y.squeeze(-1)


class Both:
    """Our objective and TorchRL's loss over the same networks; targets of their own, which are the same at first."""

    def __init__(self, estimator: ValueEstimator, theirs: ValueEstimators, **settings: float) -> None:
        torch.manual_seed(0)
        self.actor, self.critic = Actor().double(), Critic().double()
        config = DDPGConfig(discount=DISCOUNT, value_estimator=estimator, tau=TAU, batch_length=8)
        self.ours = DDPGObjective(self.actor, self.critic, config)
        self.theirs = DDPGLoss(
            TensorDictModule(self.actor, in_keys=["observation"], out_keys=["action"]),
            TensorDictModule(self.critic, in_keys=["observation", "action"], out_keys=["state_action_value"]),
            delay_actor=True,
            delay_value=True,
        )
        self.theirs.make_value_estimator(theirs, gamma=DISCOUNT, **settings)
        self.follow = SoftUpdate(self.theirs, tau=TAU)
        for p in [*self.actor.parameters(), *self.critic.parameters()]:
            p.data += 0.1 * torch.randn_like(p)  # the targets stay where they were

    def agree(self, sample: TensorDict) -> Batch:
        """Terms, targets and errors of one sample; the batch made of it."""
        batch = Batch.from_tensordict(sample)
        ours, theirs = self.ours(batch), self.theirs(sample)
        same(ours.terms["actor"], theirs["loss_actor"])
        same(ours.terms["critic"], theirs["loss_value"])
        same(self.ours.targets(batch).reshape(sample.shape), theirs["target_value"])
        errors = sample["td_error"].sqrt().reshape(batch.shape[0], -1)
        same(ours.priority, errors.mean(1))
        return batch


def same(ours: Tensor | None, theirs: Tensor) -> None:
    assert ours is not None
    assert ours.shape == theirs.shape
    assert torch.allclose(ours, theirs, rtol=1e-12, atol=1e-13), (ours, theirs)


def env() -> TransformedEnv:
    return TransformedEnv(GymWrapper(Aim()), InitTracker())


def collected(actor: nn.Module, frames: int, noise: float = 0.2) -> Iterator[TensorDict]:
    """What TorchRL's collector brings, 50 steps at a time."""
    made = env()
    made.set_seed(1)
    policy = TensorDictModule(actor, in_keys=["observation"], out_keys=["action"])
    explore = TensorDictSequential(
        policy, AdditiveGaussianModule(spec=made.action_spec, sigma_init=noise, sigma_end=noise)
    )
    collector = Collector(made, explore, frames_per_batch=50, total_frames=frames)
    try:
        yield from collector
    finally:
        collector.shutdown()


@pytest.fixture(scope="module")
def lived() -> TensorDict:
    torch.manual_seed(1)
    return torch.cat(list(collected(Actor(), 300)))


def doubled(sample: TensorDict) -> TensorDict:
    return sample.apply(lambda x: x.double() if x.is_floating_point() else x)


def test_single_steps_give_the_terms_of_torchrl(lived: TensorDict) -> None:
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(300), batch_size=256)
    replay.extend(lived)
    sample = doubled(replay.sample())
    batch = Both(TD0(), ValueEstimators.TD0).agree(sample)
    assert batch.shape == (256, 2)
    assert list(batch.obs) == ["observation"]
    ended = batch.is_last[:, 1]
    assert 0 < batch.is_terminal[:, 1].sum() < ended.sum() < 256
    assert torch.equal(batch.is_first[:, 0], sample["is_init"].squeeze(-1))
    assert torch.equal(batch.index, sample["index"])


@pytest.mark.parametrize(
    ("estimator", "theirs", "settings"),
    [
        (TDLambda(LAM), ValueEstimators.TDLambda, {"lmbda": LAM}),
        (TD1(), ValueEstimators.TD1, {}),
        (TD0(), ValueEstimators.TD0, {}),
    ],
)
def test_slices_give_the_terms_of_torchrl(
    lived: TensorDict, estimator: ValueEstimator, theirs: ValueEstimators, settings: dict[str, float]
) -> None:
    sampler = SliceSampler(slice_len=5, traj_key=("collector", "traj_ids"))
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(300), sampler=sampler, batch_size=200)
    replay.extend(lived)
    sample = doubled(replay.sample().reshape(40, 5))
    batch = Both(estimator, theirs, **settings).agree(sample)
    assert batch.shape == (40, 6)
    assert torch.equal(batch.obs["observation"][:, :-1], sample["observation"])
    assert 0 < batch.is_terminal.sum() < 40


def test_weights_of_a_prioritised_replay_are_those_of_torchrl(lived: TensorDict) -> None:
    """TorchRL divides by the sum of the weights and weighs the actor's term too; the papers do neither."""
    sample = doubled(lived[:64].clone())
    sample["priority_weight"] = weight = torch.rand(64, dtype=torch.float64) + 0.1
    both = Both(TD0(), ValueEstimators.TD0)
    batch = Batch.from_tensordict(sample)
    assert torch.equal(batch.weight, weight)
    theirs = both.theirs(sample)["loss_value"] * weight.mean()
    same(both.ours(batch).terms["critic"], theirs)


def test_rows_go_through_a_buffer_of_torchrl_and_come_back(lived: TensorDict) -> None:
    batch = Batch.from_tensordict(lived[:40])
    replay = TensorDictReplayBuffer(storage=LazyTensorStorage(40), batch_size=16)
    replay.extend(batch.to_tensordict())
    sample = replay.sample()
    back = Batch.from_tensordict(sample)
    assert back.shape == (16, 2)
    assert torch.equal(back.index, sample["index"].reshape(16, -1)[:, 0])
    for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
        assert torch.equal(getattr(back, name), getattr(batch, name)[back.index]), name
    assert torch.equal(back.obs["observation"], batch.obs["observation"][back.index])


def test_choices_come_as_one_hot_numbers() -> None:
    steps = GymEnv("CartPole-v1").rollout(5)
    assert not steps["action"].is_floating_point()
    batch = Batch.from_tensordict(steps.unsqueeze(0))
    assert batch.shape == (1, 6)
    assert batch.action.dtype == torch.float32
    assert torch.equal(batch.action[:, :-1].argmax(-1)[0], steps["action"].argmax(-1))
    assert batch.action.sum(-1).tolist() == [[1, 1, 1, 1, 1, 0]]
