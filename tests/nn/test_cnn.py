"""The CNNs of papers against layers of PyTorch; images of several sizes; what is too small; settings in words."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from reverie.algos.bc import BCConfig
from reverie.algos.bcq import BCQConfig
from reverie.algos.cql import CQLConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.ppo import PPOConfig
from reverie.algos.sac import SACConfig
from reverie.algos.table import algorithm_config
from reverie.algos.td3 import TD3Config
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.experiment.bench import noise_batch
from reverie.nn.cnn import Drq, ImageEncoder, Impala, Minatar, Nature
from reverie.nn.network import NetworkConfig, ObsConcat
from reverie.nn.on_policy_networks import PolicyValue, PolicyValueConfig

CHOICE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(3,))})


def image(height: int, width: int, channels: int, **more) -> ObsPart:
    return ObsPart(kind="image", shape=(height, width, channels), **{"dtype": "uint8"} | more)


def pixels(part: ObsPart, *lead: int) -> torch.Tensor:
    return torch.randint(0, 256, (*lead, *part.shape), dtype=torch.uint8)


def shown(spec) -> Step:
    no = torch.zeros(2, dtype=torch.bool)
    return Step(obs={k: pixels(part, 2) for k, part in spec.items()}, reward=torch.zeros(2), is_first=~no, is_last=no,
                is_terminal=no)  # fmt: skip


def sequential(encoder, *strides: int) -> nn.Sequential:
    """The same layers as PyTorch has them, channels first."""
    layers: list[nn.Module] = []
    for convolution, stride in zip(encoder.stacks[0], strides, strict=True):
        outputs, kernel, _, inputs = convolution.weight.shape
        layer = nn.Conv2d(inputs, outputs, kernel, stride)
        layer.weight.data.copy_(convolution.weight.data.permute(0, 3, 1, 2))
        layer.bias.data.copy_(convolution.bias.data)
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers)


@pytest.mark.parametrize(
    ("encoder", "shape", "strides", "width"),
    [(Nature(), (84, 84, 4), (4, 2, 1), 7 * 7 * 64), (Nature(), (36, 50, 3), (4, 2, 1), 1 * 2 * 64),
     (Minatar(), (10, 10, 4), (1,), 8 * 8 * 16), (Minatar(5), (10, 12, 7), (1,), 8 * 10 * 5)],
)  # fmt: skip
def test_features_and_gradients_are_those_of_pytorch(encoder, shape, strides, width):
    part = image(*shape)
    made = encoder.build({"eye": part})
    assert made.width == width
    x = pixels(part, 2, 3)
    y = made({"eye": x}, torch.float32)
    same = sequential(made, *strides)
    expected = same(x.flatten(0, 1).permute(0, 3, 1, 2) / 255).permute(0, 2, 3, 1).reshape(2, 3, width)
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn(2, 3, width)
    (y * weight).sum().backward()
    (expected * weight).sum().backward()
    assert all(convolution.weight.grad.is_contiguous() for convolution in made.stacks[0])
    found = [(c.weight.grad.permute(0, 3, 1, 2), c.bias.grad) for c in made.stacks[0]]
    torch.testing.assert_close(found, [(c.weight.grad, c.bias.grad) for c in same[::2]], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("images", [3, 40])  # by PyTorch, and by compiled functions
def test_drq_is_that_of_pytorch(images):
    torch.manual_seed(0)
    part = image(21, 24, 3)
    inputs = ObsConcat({"eye": part}, NetworkConfig(encoder=Drq(16, 10)), torch.float32)
    assert (inputs.encoder.width, inputs.width) == (4 * 5 * 16, 10)
    x = pixels(part, images)
    same = sequential(inputs.encoder, 2, 1, 1, 1)
    linear, norm = nn.Linear(4 * 5 * 16, 10), nn.LayerNorm(10)
    linear.load_state_dict(inputs.trunk.linear.state_dict())
    y = inputs({"eye": x})
    features = same(x.permute(0, 3, 1, 2) / 255 - 0.5).permute(0, 2, 3, 1).flatten(1)
    expected = norm(linear(features)).tanh()
    torch.testing.assert_close(y, expected, rtol=1e-4, atol=1e-5)
    weight = torch.randn(images, 10)
    parameters = [p for c in inputs.encoder.stacks[0] for p in (c.weight, c.bias)]
    found = torch.autograd.grad((y * weight).sum(), [*parameters, inputs.trunk.linear.weight])
    others = [p for c in same[::2] for p in (c.weight, c.bias)]
    gradients = torch.autograd.grad((expected * weight).sum(), [*others, linear.weight])
    found = [x.permute(0, 3, 1, 2) if x.ndim == 4 else x for x in found]
    torch.testing.assert_close(found, list(gradients), rtol=1e-3, atol=1e-4)
    assert all(not c.bias.any() for c in inputs.encoder.stacks[0])
    flat = inputs.encoder.stacks[0][1].weight.detach().flatten(1)
    torch.testing.assert_close(flat @ flat.T, 2 * torch.eye(16), rtol=0, atol=1e-4)


def test_a_shift_is_a_crop_of_the_padded_image_and_each_row_has_its_own():
    """All frames of a stack, which are channels, move together; nothing moves outside of updates."""
    torch.manual_seed(0)
    part, pad = image(15, 17, 6), 4
    encoder = Drq(4, 5, pad).build({"eye": part})
    x = pixels(part, 300)
    torch.manual_seed(1)
    moved = encoder.augment(x)
    torch.manual_seed(1)
    shifts = encoder.random_shifts(x)
    assert sorted(set(shifts.flatten().tolist())) == list(range(-pad, pad + 1))
    padded = nn.functional.pad(x.permute(0, 3, 1, 2).float(), (pad,) * 4, "replicate").permute(0, 2, 3, 1)
    for one, whole, (right, down) in zip(moved, padded, shifts.tolist(), strict=True):
        assert torch.equal(one.float(), whole[pad - down : pad - down + 15, pad - right : pad - right + 17])
    assert encoder.eval().augment(x) is x


def test_only_updates_shift_images_and_they_resume_bit_for_bit():
    spec = {"eye": image(15, 17, 3)}
    settings = {"batch_size": 4, "networks.units": (8,), "networks.encoder": "drq(4, 5, 3)"}
    found = []
    for stop in (False, True):
        learner = SACConfig().merge(settings).build(spec, PUSH, seed=0)
        torch.manual_seed(1)
        rows, moved = noise_batch(learner, spec, PUSH), []
        learner.update(rows)
        if stop:
            saved, learner = learner.state_dict(), SACConfig().merge(settings).build(spec, PUSH, seed=1)
            learner.load_state_dict(saved)
        encoder = learner.objective.critic.inputs.encoder
        draw = encoder.random_shifts
        encoder.random_shifts = lambda x, moved=moved, draw=draw: moved.append(draw(x)) or moved[-1]
        learner.policy.act(shown(spec), learner.policy.initial(2), "explore")
        assert not moved
        torch.manual_seed(2)
        learner.update(rows)
        assert [len(x) for x in moved] == [4, 4]  # s and s', once each
        found.append([*learner.parameters()])
    torch.testing.assert_close(*found, rtol=0, atol=0)


PUSH = ActionSpec(parts={"push": ActionPart(kind="continuous", size=2)})


@pytest.mark.parametrize(
    ("config", "action", "side", "kind"),
    [(DQNConfig, CHOICE, 36, "nature"), (DQNConfig, CHOICE, 35, "minatar"), (SACConfig, PUSH, 36, "drq"),
     (SACConfig, PUSH, 35, "minatar"), (CQLConfig, PUSH, 84, "drq"), (BCConfig, PUSH, 84, "drq"),
     (BCConfig, CHOICE, 84, "nature"), (BCQConfig, PUSH, 36, "drq"), (DiscreteSACConfig, CHOICE, 84, "nature"),
     (PPOConfig, PUSH, 84, "nature")],
)  # fmt: skip
def test_the_encoder_is_that_of_the_field(config, action, side, kind):
    learner = config().build({"eye": image(side, side, 1)}, action)
    sizes = {
        "nature": [(32, 8), (64, 4), (64, 3)], "minatar": [(16, 3)], "drq": [(32, 3)] * 4,
    }[kind]  # fmt: skip
    encoders = [x.encoder for x in learner.modules() if isinstance(x, ObsConcat)]
    assert encoders
    for encoder in encoders:
        assert [(c.weight.shape[0], c.weight.shape[1]) for c in encoder.stacks[0]] == sizes


def test_initial_weights_are_those_of_torch():
    torch.manual_seed(0)
    made = Nature().build({"eye": image(84, 84, 4)})
    torch.manual_seed(0)
    expected = [nn.Conv2d(4, 32, 8, 4), nn.Conv2d(32, 64, 4, 2), nn.Conv2d(64, 64, 3, 1)]
    for convolution, layer in zip(made.stacks[0], expected, strict=True):
        assert torch.equal(convolution.weight.permute(0, 3, 1, 2), layer.weight)
        assert torch.equal(convolution.bias, layer.bias)


def test_images_of_one_size_share_a_cnn_and_others_have_their_own():
    spec = {"b": image(10, 10, 2), "a": image(10, 10, 1), "c": image(12, 10, 1)}
    made = Minatar(4).build(spec)
    assert [stack[0].weight.shape[3] for stack in made.stacks] == [3, 1]
    obs = {key: pixels(part, 5) for key, part in spec.items()}
    seen, black = (made(x, torch.float32) for x in (obs, obs | {"a": torch.zeros_like(obs["a"])}))
    assert seen.shape == (5, made.width) == (5, (8 * 8 + 10 * 8) * 4)
    assert not torch.equal(black, seen)


def test_pixels_of_any_range_are_scaled_to_0_and_1():
    parts = image(10, 10, 3), image(10, 10, 3, dtype="float32", low=-1.0, high=3.0)
    as_bytes, as_numbers = (Minatar().build({"eye": part}) for part in parts)
    as_numbers.load_state_dict(as_bytes.state_dict())
    x = torch.randint(0, 2, (4, 10, 10, 3), dtype=torch.uint8)
    expected = as_bytes({"eye": x * 255}, torch.float32)
    torch.testing.assert_close(as_numbers({"eye": x * 4.0 - 1}, torch.float32), expected)


@pytest.mark.parametrize(("encoder", "size"), [("nature", (35, 84)), ("minatar", (2, 2))])
def test_images_that_are_too_small(encoder, size):
    config = DQNConfig().merge({"networks.encoder": encoder})
    with pytest.raises(ConfigError, match="too small"):
        config.build({"eye": image(*size, 1)}, CHOICE)


@pytest.mark.parametrize("size", [(16, 2), (1, 1), (3, 40), (36, 36), (38, 38)])
@pytest.mark.parametrize("algorithm", ["dqn", "discrete_sac", "ppo", "bc", "iqn", "impala", "tdmpc2"])
def test_the_default_encoder_fits_any_size(algorithm, size):
    action = PUSH if algorithm == "tdmpc2" else CHOICE
    algorithm_config(algorithm)().build({"eye": image(*size, 1)}, action)


def test_an_encoder_is_chosen_by_name():
    config = NetworkConfig().merge({"encoder": "minatar(8)"})
    assert config.encoder == Minatar(8)
    assert NetworkConfig().merge(config.to_dict()) == config
    assert set(ImageEncoder.variants()) >= {"dreamer", "nature", "minatar"}
    with pytest.raises(ConfigError, match="Did you mean 'nature'"):
        NetworkConfig().merge({"encoder": "natur"})


@dataclass(frozen=True)
class Sum(ImageEncoder):
    """An encoder of vectors: weighted sums of those whose names begin with ``keys``."""

    keys: str = "scan"

    def reads(self, spec):
        return {key: part for key, part in spec.items() if key.startswith(self.keys)}

    def build(self, spec):
        return Sums(spec)


class Sums(nn.Module):
    def __init__(self, spec):
        super().__init__()
        self.keys, self.width = sorted(spec), len(spec)
        self.weight = nn.Parameter(torch.ones(len(spec)))

    def forward(self, obs, dtype):
        return torch.stack([obs[key].to(dtype).sum(-1) for key in self.keys], -1) * self.weight


SCANS = {
    "scan/left": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "scan/right": ObsPart(kind="vector", shape=(7,), dtype="float32"),
    "vector": ObsPart(kind="vector", shape=(2,), dtype="float32"),
}


def test_one_of_your_own_may_read_what_is_no_image():
    inputs = ObsConcat(SCANS, NetworkConfig(encoder=Sum()), torch.float32)
    obs = {key: torch.randn(3, 4, *part.shape) for key, part in SCANS.items()}
    expected = torch.cat([obs["vector"], *[obs[key].sum(-1, keepdim=True) for key in ("scan/left", "scan/right")]], -1)
    torch.testing.assert_close(inputs(obs), expected)
    assert inputs.width == 4


@pytest.mark.parametrize("config", [TD3Config, SACConfig, CQLConfig])
def test_one_of_your_own_learns_with_the_rest(config):
    action = ActionSpec(parts={"push": ActionPart(kind="continuous", size=2)})
    settings = {"batch_size": 8, "networks.units": (8,), "networks.encoder": Sum()}
    learner = config().merge(settings).build(SCANS, action)
    batch = noise_batch(learner, SCANS, action)
    encoders = [x for name, x in learner.named_parameters() if name.endswith("encoder.weight")]
    before = [x.clone() for x in encoders]
    for _ in range(6):  # past the recording of a tape, and policies that are updated every second time
        learner.update(batch)
    assert len(encoders) == 1  # shared
    assert not any(map(torch.equal, encoders, before))


def test_convolutions_of_policy_and_value_begin_orthogonal() -> None:
    config = PolicyValueConfig(encoder=Nature(), share_encoder=True)
    network = PolicyValue({"image": image(84, 84, 4)}, CHOICE, config)
    for convolution in network.actor.inputs.encoder.stacks[0]:
        weight = convolution.weight.detach().flatten(1)
        torch.testing.assert_close(weight @ weight.T, 2 * torch.eye(len(weight)), rtol=0, atol=1e-4)
        assert not convolution.bias.any()


def test_impala_is_the_authors_encoder():
    """OGBench's impala_small, recorded by tests/golden/record_ogbench.py."""
    with np.load(Path(__file__).parents[1] / "golden/ogbench_impala.npz") as z:
        arrays = {key: torch.from_numpy(z[key]) for key in z.files if "/" in key}
    part = ObsPart(kind="image", shape=(9, 6, 3), dtype="uint8")
    encoder = Impala().build({"eye": part, "goal/eye": part})
    theirs = [f"stack_blocks_{i}/Conv_{j}" for i in range(3) for j in range(3)] + ["MLP_0/Dense_0"]
    with torch.no_grad():
        for layer, name in zip([*encoder.convolutions[0], encoder.last[0]], theirs, strict=True):
            kernel = arrays[f"param/{name}/kernel"]
            layer.weight.copy_(kernel.permute(3, 2, 0, 1) if kernel.ndim == 4 else kernel.T)
            layer.bias.copy_(arrays[f"param/{name}/bias"])
    eye, goal = arrays["data/images"].split(3, -1)
    ours = encoder({"eye": eye, "goal/eye": goal}, torch.float32)
    torch.testing.assert_close(ours, arrays["out/features"], rtol=1e-5, atol=1e-5)
