"""Environments on a device: conversions are those of the host, and mistakes are named."""

from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

import reverie
from device_vectors import SPACE, TorchCycle, jax_task, native
from env_steps import play
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError, EnvError
from reverie.core.obs_codec import ObsCodec
from reverie.envs.config import EnvConfig
from reverie.envs.tensor_codec import TensorCodec, action_decoder
from reverie.envs.tensor_vector import TensorRows
from roads import OwnTensors, Simulator, make_vector_env, to_tensors

CPU = torch.device("cpu")
OBSERVATIONS = [
    spaces.Box(-2, 2, (3,)), spaces.Box(0, 9, (2, 3), np.int64), spaces.Box(0, 255, (6, 5, 3), np.uint8),
    spaces.Box(0, 255, (3, 36, 40), np.uint8), spaces.Box(0, 255, (7, 8), np.uint8), spaces.Box(0, 1, (5, 5, 4)),
    spaces.Box(0, 6, (5, 5, 3), np.int32),
    spaces.Box(np.zeros((4, 4, 2)), np.full((4, 4, 2), (1, 9)), dtype=np.float32),
    spaces.Box(0, 255, (4, 8, 8, 3), np.uint8), spaces.Discrete(4, start=2), spaces.MultiDiscrete([3, 2], start=[1, 0]),
    spaces.MultiBinary(4), spaces.MultiBinary((4, 4, 2)),
    spaces.Dict(arm=spaces.Box(0, 1, (2,)), rest=spaces.Tuple([spaces.Discrete(3), spaces.Box(-1, 1, (1,))])),
]  # fmt: skip
ACTIONS = [
    spaces.Discrete(3, start=1), spaces.MultiDiscrete([[3, 2], [2, 4]]), spaces.MultiBinary(3),
    spaces.Box(-2, 6, (2, 2)),
    spaces.Box(0, 5, (3,), np.int64), spaces.Box(-1, 3, (2,), np.float64),
    spaces.Dict(turn=spaces.Discrete(2), push=spaces.Tuple([spaces.Box(-1, 1, (2,)), spaces.Discrete(3)])),
]  # fmt: skip


def encode(space, obs, num):
    vector = SimpleNamespace(num_envs=num, device=CPU, observation_space=space, action_space=spaces.Discrete(2))
    none = torch.zeros(num, dtype=torch.bool)
    return TensorCodec(vector, EnvConfig()).encode(TensorRows(obs, none.float(), none, none))[0]


@pytest.mark.parametrize("space", OBSERVATIONS, ids=str)
def test_observations_are_converted_as_on_the_host(space):
    from gymnasium.vector.utils import batch_space

    batch, codec = batch_space(space, 5), ObsCodec(space)
    batch.seed(0)
    values = batch.sample()
    got = encode(space, to_tensors(values), 5)
    expected = {key: torch.from_numpy(x) for key, x in codec.batch(values).items()}
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("space", ACTIONS, ids=str)
def test_actions_are_converted_as_on_the_host(space):
    codec = ActionCodec(space)
    flat = np.random.default_rng(0).uniform(-1.5, 1.5, (6, codec.spec.width)).astype(np.float32)
    torch.testing.assert_close(action_decoder(space, CPU)(torch.from_numpy(flat)), to_tensors(codec(flat)))


NEEDS_GPU = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=NEEDS_GPU)])
def test_rows_in_jax_on_a_gpu_are_in_no_memory_that_is_used_again(device):
    """Between turns, both libraries fill what they have freed with other numbers."""
    jax = pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    runs = []
    for place in ("cpu", device):
        env = native(JaxVector(jax_task(), 64, place))
        rng, step, rows = torch.Generator().manual_seed(0), env.reset(1), []
        for _ in range(60):
            rows.append([step.obs["observation"], step.reward, step.is_first, step.is_last, step.is_terminal])
            step = env.step(torch.eye(2)[torch.randint(2, (64,), generator=rng)].to(place))
            for size in (16, 64, 128, 256):
                torch.full((size,), torch.nan, device=place)
                jax.numpy.full((size,), jax.numpy.nan, device=env.vector._place)
        runs.append([torch.stack(column).cpu() for column in zip(*rows, strict=True)])
    torch.testing.assert_close(*runs, rtol=0, atol=0)


def test_successes_are_in_no_memory_that_is_used_again():
    simulator = Simulator(3, spoil=lambda answer: [*answer[:4], {"success": answer[2]}])
    env = native(simulator)
    play(env, 2)
    kept = env.success.clone()
    simulator.flags[:] = True
    assert env.success.equal(kept)


def test_spaces_of_their_own_kind_are_read():
    simulator = Simulator(3)
    simulator.single_observation_space = SimpleNamespace(shape=(4,), low=-np.inf, high=np.inf)
    assert native(simulator).obs_spec["observation"].shape == (4,)


def test_a_function_of_a_vector_needs_the_setting():
    with pytest.raises(EnvError, match=r"set env\.vectorization = native"):
        make_vector_env(EnvConfig(num=4), seed=0, factory=Simulator)


def test_what_rsl_rl_sees_is_refused():
    with pytest.raises(EnvError, match="rsl_rl"):
        native(mock.Mock(num_envs=4))


def spoiled(number, change):
    def spoil(answer):
        answer[number] = change(answer[number])
        return answer

    return spoil


def test_pictures_of_another_dtype_and_missing_parts_are_named():
    space = spaces.Box(0, 255, (6, 5, 3), np.uint8)
    with pytest.raises(DataError, match="float32: expected uint8"):
        encode(space, torch.rand(2, 6, 5, 3), 2)
    with pytest.raises(DataError, match="observation 'arm' is missing"):
        encode(spaces.Dict(arm=SPACE), {"leg": torch.rand(2, 4)}, 2)


def test_a_function_of_a_module_makes_the_vector(tmp_path, monkeypatch):
    (tmp_path / "my_cycles.py").write_text("from device_vectors import TorchCycle\nmake = TorchCycle\n")
    monkeypatch.syspath_prepend(tmp_path)
    config = EnvConfig(id="my_cycles:make", num=3, vectorization="native", kwargs={"chances": [0.5, 0.0]})
    env = make_vector_env(config, seed=0)
    assert not any(step.is_terminal.any() for step in play(env, 20))


def test_masks_have_the_shape_of_actions():
    vector = TorchCycle(4)
    vector.single_observation_space = spaces.Dict(observation=SPACE, action_mask=spaces.MultiBinary(3))
    with pytest.raises(EnvError, match="action_mask"):
        native(vector)
    vector.single_observation_space = spaces.Dict(action_mask=spaces.MultiBinary((2, 3)))
    vector.single_action_space, flags = spaces.MultiDiscrete([3, 3]), torch.arange(24).view(4, 2, 3) % 5 > 0
    vector._obs = lambda: {"action_mask": flags.clone()}
    assert native(vector).reset(0).obs["action_mask"].tolist() == flags.reshape(4, 6).tolist()


class LostEnds(OwnTensors):
    """Shows the first observation of the next episode in place of the last."""

    max_episode_steps = length = 6

    def __init__(self, num_envs):
        super().__init__(num_envs)
        self.observation_space, self.action_space = SPACE, spaces.Discrete(2)

    def reset(self, seed):
        self.time, self.last = torch.zeros(self.num_envs), torch.zeros(self.num_envs, dtype=torch.bool)
        return self._rows(self.last)

    def step(self, action):
        time = torch.where(self.last, 0.0, self.time + 1)
        self.last = time == self.length
        self.time = time.masked_fill(self.last, 0.0)
        return self._rows(self.last)

    def _rows(self, last):
        return TensorRows(self.time[:, None].expand(-1, 4).clone(), torch.zeros(self.num_envs), last, last)


class LateLostEnds(LostEnds):
    """The same, after more turns than usual."""

    max_episode_steps = length = 300


@pytest.mark.parametrize(
    ("make", "severity", "message"),
    [
        (TorchCycle, "note", "state cannot be saved"),
        (LateLostEnds, "fault", "the last row of each episode shows"),
        (lambda num_envs: TorchCycle(num_envs, AutoresetMode.SAME_STEP, final=None), "fault", "final_obs"),
        (lambda num_envs: TorchCycle(num_envs, spoil=spoiled(2, torch.Tensor.float)), "fault", "terminated"),
        (lambda num_envs: TorchCycle(num_envs, spoil=spoiled(1, lambda x: x[:, None])), "fault", "reward"),
        (lambda num_envs: TorchCycle(num_envs, spoil=spoiled(1, lambda x: x * torch.nan)), "fault", "NaN"),
        (lambda num_envs: TorchCycle(num_envs, spoil=spoiled(0, torch.zeros(num_envs, 4).copy_)), "fault", "memory"),
        (LostEnds, "fault", "the last row of each episode shows"),
    ],
)
def test_check_env_names_what_is_wrong(make, severity, message):
    report = reverie.check_env(make, env_options={"vectorization": "native"})
    [finding] = [finding for finding in report.findings if finding.severity == severity]
    assert message in finding.text
    assert report.ok == (severity != "fault")
    assert {"ppo", "dqn", "dreamer_v3"} <= (online := {*report.algorithms["online"]})
    assert "impala" not in online
    assert report.algorithm == ("ppo" if report.ok else "")


class Still(TorchCycle):
    """Always shows the same, as a bandit."""

    def _obs(self):
        return torch.zeros(self.num_envs, 4)


def test_check_env_of_a_task_that_always_shows_the_same_finds_no_fault():
    findings = reverie.check_env(Still, env_options={"vectorization": "native"}).findings
    assert {finding.severity for finding in findings} == {"note"}


def test_check_env_of_an_environment_in_jax_finds_no_fault(monkeypatch):
    pytest.importorskip("jax")
    from reverie.envs.jax_vector import JaxVector

    report = reverie.check_env(
        lambda num_envs: JaxVector(jax_task(), num_envs), env_options={"vectorization": "native"}
    )
    assert [finding.name for finding in report.findings] == []
    assert min(report.measurements[name] for name in ("terminated", "truncated", "episodes")) > 50
