"""Samples of TorchRL as batches."""

import pytest
import torch

from reverie.core.types import Batch

OBS, ACT = 3, 2


def sample(*shape: int):
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
    return pytest.importorskip("tensordict").TensorDict(data, batch_size=shape)


@pytest.mark.parametrize("shape", [(256,), (40, 5)])
def test_samples_are_windows(shape):
    data = sample(*shape)
    batch = Batch.from_tensordict(data)
    assert batch.shape == (shape[0], 2 if len(shape) == 1 else shape[1] + 1)
    assert 0 < batch.is_terminal.sum() < batch.is_last.sum() < shape[0]
    assert torch.equal(batch.is_first[:, 0], data["is_init"].reshape(shape[0], -1)[:, 0])
    assert torch.equal(batch.index, data["index"].reshape(shape[0], -1)[:, 0])
    steps = {"reward": batch.reward[:, 1:], "terminated": batch.is_terminal[:, 1:], "done": batch.is_last[:, 1:]}
    for name, found in steps.items():
        assert torch.equal(found.reshape(shape), data["next", name].squeeze(-1)), name
    for found, its in ((batch.action, data["action"]), (batch.obs["observation"], data["observation"])):
        assert torch.equal(found[:, :-1].reshape(its.shape), its)
    assert torch.equal(batch.obs["observation"][:, -1], data["next", "observation"].reshape(shape[0], -1, OBS)[:, -1])


def test_rows_go_through_a_buffer_of_torchrl_and_come_back():
    buffers = pytest.importorskip("torchrl.data")  # here: it takes seconds to import
    data = sample(40)
    data["priority_weight"] = weight = torch.rand(40, dtype=torch.float64) + 0.1
    batch = Batch.from_tensordict(data)
    assert torch.equal(batch.weight, weight)
    replay = buffers.TensorDictReplayBuffer(storage=buffers.LazyTensorStorage(40), batch_size=16)
    replay.extend(batch.to_tensordict())
    found = replay.sample()
    back = Batch.from_tensordict(found)
    assert back.shape == (16, 2)
    assert torch.equal(back.index, found["index"].reshape(16, -1)[:, 0])
    for name in ("action", "reward", "is_first", "is_last", "is_terminal"):
        assert torch.equal(getattr(back, name), getattr(batch, name)[back.index]), name
    assert torch.equal(back.obs["observation"], batch.obs["observation"][back.index])


def test_choices_come_as_one_hot_numbers():
    steps = pytest.importorskip("torchrl.envs").GymEnv("CartPole-v1").rollout(5)
    assert not steps["action"].is_floating_point()
    batch = Batch.from_tensordict(steps.unsqueeze(0))
    assert batch.shape == (1, 6)
    assert batch.action.dtype == torch.float32
    assert torch.equal(batch.action[:, :-1].argmax(-1)[0], steps["action"].argmax(-1))
    assert batch.action.sum(-1).tolist() == [[1, 1, 1, 1, 1, 0]]
