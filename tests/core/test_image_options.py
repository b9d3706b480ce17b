"""Images that are larger than allowed are resized, and no others."""

from __future__ import annotations

import numpy as np
import pytest

from reverie.core.images import ImageOptions, resize
from reverie.core.specs import ObsPart


@pytest.mark.parametrize(
    ("shape", "size", "result"),
    [((96, 96), None, (84, 84)), ((84, 100), None, (84, 84)), ((84, 84), None, (84, 84)), ((10, 12), None, (10, 12)),
     ((96, 96), (64, 64), (64, 64))],
)  # fmt: skip
def test_images_larger_than_the_largest_size_are_resized(shape, size, result):
    spec = {
        "eye": ObsPart(kind="image", shape=(*shape, 3), dtype="uint8"),
        "joints": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    }
    options = ImageOptions(spec, size, False, max_size=(84, 84))
    assert options.spec["eye"].shape == (*result, 3)
    assert options.spec["joints"] == spec["joints"]
    image = np.random.default_rng(0).integers(0, 256, (*shape, 3), dtype=np.uint8)
    assert np.array_equal(options.image("eye", image), resize(image, result))
    assert bool(options.applied_to("eye")) == (shape != result)


def test_vectors_alone_need_no_size():
    spec = {"joints": ObsPart(kind="vector", shape=(2,), dtype="float32")}
    assert ImageOptions(spec, None, False, max_size=(84, 84)).spec == spec
