"""Masks of legal actions: what environments tell of them, and what is wrong with it."""

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st
from test_spaces import any_space

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import DataError
from reverie.core.masks import MaskCodec, check_action_legal, ensure_legal_choice
from reverie.run.turn import random_flat_actions

NESTED = spaces.Dict(
    {"a": spaces.Discrete(2), "b": spaces.Tuple([spaces.MultiDiscrete([2, 3]), spaces.Box(-1, 1, (2,))])}
)


@pytest.mark.parametrize(
    ("space", "given", "flat"),
    [
        (spaces.Discrete(3, start=1), [1, 0, 1], "101"),
        (spaces.Discrete(3), np.array([True, False, True]), "101"),
        (spaces.MultiDiscrete([2, 3]), [0, 1, 1, 1, 0], "01110"),
        (spaces.MultiDiscrete([2, 3]), ([0, 1], np.array([1, 1, 0], np.int8)), "01110"),
        (spaces.MultiBinary(2), [[1, 0], [1, 1]], "1011"),
        (NESTED, {"a": [1, 0]}, "101111111"),
        (NESTED, {"a": None, "b": ([1, 1, 0, 0, 1], None)}, "111100111"),
        (NESTED, np.array([0, 1, 1, 1, 0, 0, 1, 1, 1]), "011100111"),
    ],
)
def test_all_usual_forms_of_masks_are_understood(space, given, flat):
    assert "".join(map(str, MaskCodec(space)(given).astype(int))) == flat


@pytest.mark.parametrize(
    ("given", "message"),
    [([1, 0], "has 2 values: expected 3"), ([2, 0, 1], "expected 1 for legal"), ("abc", "expected")],
)
def test_masks_that_do_not_fit_are_refused(given, message):
    with pytest.raises(DataError, match=message):
        MaskCodec(spaces.Discrete(3))(given)


def test_something_is_legal_but_where_the_episode_is_over():
    spec = ActionCodec(spaces.MultiDiscrete([2, 2])).spec
    masks = np.array([[1, 0, 0, 0], [0, 0, 1, 1]], bool)
    assert ensure_legal_choice(masks, spec, np.array([True, True])).tolist() == [[1, 0, 1, 1], [1, 1, 1, 1]]
    with pytest.raises(DataError, match=r"of row 8 leaves no legal action \(part 'action'\)"):
        ensure_legal_choice(masks, spec, np.array([True, False]), 7)


def test_recorded_actions_are_legal_by_their_masks():
    spec = ActionCodec(spaces.Discrete(2)).spec
    mask, action = np.array([[1, 0], [1, 0]], bool), np.eye(2, dtype=np.float32)
    check_action_legal(mask, action, np.array([False, True]), spec, 0)
    with pytest.raises(DataError, match="of row 4 is class 1"):
        check_action_legal(mask, action, np.array([False, False]), spec, 3)


def test_random_actions_are_uniform_over_legal_ones_and_the_same_if_all_are_legal():
    spec = ActionCodec(NESTED).spec
    mask = torch.tensor([1, 0, 1, 1, 1, 0, 1, 1, 1], dtype=torch.bool).expand(4000, -1)
    drawn = random_flat_actions(spec, 4000, np.random.default_rng(0), mask)
    assert drawn[:, :7].mean(0) == pytest.approx([1, 0, 0.5, 0.5, 0.5, 0, 0.5], abs=0.04)
    free = random_flat_actions(spec, 4000, np.random.default_rng(0))
    assert torch.equal(free, random_flat_actions(spec, 4000, np.random.default_rng(0), torch.ones_like(mask)))


@given(any_space(actions=True), st.integers(0, 2**31 - 1))
@settings(max_examples=30, deadline=None)
def test_random_actions_of_any_space_are_legal(space, seed):
    codec, rng = ActionCodec(space), np.random.default_rng(seed)
    legal = rng.random((5, codec.spec.width)) < 0.4
    legal[:, [i for key, cut in codec.spec.slices().items() if not codec.spec.parts[key].classes
              for i in range(cut.start, cut.stop)]] = True  # fmt: skip
    for _, cut in codec.spec.categorical_slices():
        legal[np.arange(5), rng.integers(cut.start, cut.stop, 5)] = True
    assert (MaskCodec(space)(legal[0]) == legal[0]).all()
    action = random_flat_actions(codec.spec, 5, rng, torch.from_numpy(legal))
    for _, cut in codec.spec.categorical_slices():
        chosen = action[:, cut].bool().numpy()
        assert (chosen.sum(-1) == 1).all()
        assert not (chosen & ~legal[:, cut]).any()
