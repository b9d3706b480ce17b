"""Encoders and decoders of every kind of observation, and sizes of images that need no resizing."""

import pytest
import torch

from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart
from reverie.nn.decoder import DecoderConfig
from reverie.nn.encoder import EncoderConfig, stage_depths, stage_sizes
from reverie.nn.state_space import Latent

SPEC = {
    "camera": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8"),
    "depth": ObsPart(kind="image", shape=(64, 64, 1), dtype="float32", low=0.0, high=1.0),
    "grid": ObsPart(kind="image", shape=(7, 7, 20), dtype="uint8"),
    "wide": ObsPart(kind="image", shape=(30, 50, 1), dtype="uint8"),
    "state": ObsPart(kind="vector", shape=(5,), dtype="float32"),
    "matrix": ObsPart(kind="vector", shape=(2, 3), dtype="float32"),
    "scalar": ObsPart(kind="vector", shape=(), dtype="float32"),
    "direction": ObsPart(kind="categorical", shape=(), dtype="int64", classes=(4,)),
    "cards": ObsPart(kind="categorical", shape=(3,), dtype="int64", classes=(2, 5, 3)),
}


def observations(spec, *lead):
    most = {"uint8": lambda part: 256, "int64": lambda part: min(part.classes), "float32": lambda part: 1}
    drawn = {key: torch.rand(*lead, *part.shape) * most[part.dtype](part) for key, part in spec.items()}
    return {key: x.to(getattr(torch, spec[key].dtype)) for key, x in drawn.items()}


@pytest.mark.parametrize("expected", [
    [(64, 64), (32, 32), (16, 16), (8, 8), (4, 4)],  # the authors' sizes come out as theirs
    [(96, 96), (48, 48), (24, 24), (12, 12), (6, 6)], [(256, 256), (128, 128), (64, 64), (32, 32), (16, 16)],
    [(7, 7), (4, 4)], [(2, 2), (1, 1)], [(10, 10), (5, 5), (3, 3)],
    [(210, 160), (105, 80), (53, 40), (27, 20), (14, 10)],
    [(512, 288), (256, 144), (128, 72), (64, 36), (32, 18), (16, 9)],
])  # fmt: skip
def test_stages(expected):
    assert stage_sizes(expected[0], 4) == expected


def test_stages_down_to_a_side_that_is_asked_for():
    assert stage_sizes((32, 48), 4, min_side=2) == [(32, 48), (16, 24), (8, 12), (4, 6), (2, 3)]


def test_depths_follow_the_number_of_stages():
    found = {stages: stage_depths(8, (2, 3, 4, 4), stages) for stages in (2, 4, 6)}
    assert found == {2: [32, 32], 4: [16, 24, 32, 32], 6: [16, 24, 32, 32, 32, 32]}


def test_every_kind_is_encoded_and_decoded_to_its_shape():
    obs = observations(SPEC, 2, 3)
    encoder = EncoderConfig(depth=4, units=16).build(SPEC)
    embed = encoder(obs, torch.float32)
    assert embed.shape == (2, 3, encoder.width)
    latent = Latent(torch.randn(2, 3, 32), torch.randn(2, 3, 4, 5))
    predictions = DecoderConfig(depth=4, units=16).build(SPEC, 32, 20)(latent)
    assert set(predictions) == set(SPEC)
    for key, prediction in predictions.items():
        loss = prediction.loss(obs[key])
        assert (loss.shape, bool(loss.isfinite().all())) == ((2, 3), True), key
        if SPEC[key].kind != "categorical":
            assert prediction.value().shape == (2, 3, *SPEC[key].shape), key
    assert predictions["cards"].value().shape == (2, 3, 3, 5)


def test_each_key_matters_to_the_embedding():
    encoder = EncoderConfig(depth=4, units=16).build(SPEC)
    obs = observations(SPEC, 1)
    before = encoder(obs, torch.float32)
    for key, part in SPEC.items():
        x = obs[key] + 1
        changed = obs | {key: x % torch.tensor(part.classes) if part.kind == "categorical" else x}
        assert not torch.equal(encoder(changed, torch.float32), before), key


def test_keys_are_chosen_by_pattern():
    encoder = EncoderConfig(depth=4, units=16, keys="state|dir.*").build(SPEC)
    assert set(encoder.spec) == {"state", "direction"}
    with pytest.raises(ConfigError, match="'sound' matches no observation"):
        EncoderConfig(keys="sound").build(SPEC)


def test_blocks_must_fit():
    spec = {"image": ObsPart(kind="image", shape=(8, 8, 1), dtype="uint8")}
    with pytest.raises(ConfigError, match="blocks = 8: expected a divisor of"):
        DecoderConfig(depth=1, mults=(3,)).build(spec, 8, 4)
