"""Observations and actions of a run, compared in words."""

import json
from dataclasses import replace

import pytest

from reverie.core.specs import ActionPart, ActionSpec, ObsPart, diff_specs, spec_to_dict

VEC = ObsPart(kind="vector", shape=(5,), dtype="float32")
EYE = ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8")
ROOM = ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(2, 3))
GO = ActionPart(kind="categorical", classes=(4,))
TURN = ActionPart(kind="continuous", size=2)


def told(obs, action, new_obs, new_action):
    saved = json.loads(json.dumps(spec_to_dict(obs, ActionSpec(parts=action))))
    return diff_specs(saved, spec_to_dict(new_obs, ActionSpec(parts=new_action)), ("A", "B"))


@pytest.mark.parametrize(
    ("obs", "expected"),
    [
        ({"vec": replace(VEC, shape=(6,))}, "observation 'vec' is vector (5,) in A, but (6,) in B"),
        ({"vec": EYE}, "observation 'vec' is vector (5,) in A, but image (8, 8, 3) uint8 in 0..255 in B"),
        ({}, "observation 'vec' (vector (5,)) is missing in B"),
        ({"vec": VEC, "room": ROOM}, "observation 'room' (categorical (2,) of 2 x 3 classes) is missing in A"),
    ],
)
def test_observations_that_changed(obs, expected):
    assert told({"vec": VEC}, {"go": GO}, obs, {"go": GO}) == [expected]


def test_actions_that_changed():
    five, three = replace(GO, classes=(5,)), replace(TURN, size=3)
    assert told({}, {"go": GO, "turn": TURN}, {}, {"go": five, "turn": three}) == [
        "action 'go' is categorical of 4 classes in A, but of 5 classes in B",
        "action 'turn' is continuous of 2 numbers in A, but of 3 numbers in B",
    ]


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        ((-1, -2), (1, 2), ""),
        ((), (), ""),
        ((-1.000001, -2), (1, 2), ""),
        ((-1, -2), (1, 2.001), "(-1, -2)..(1, 2.001)"),
        ((-3, -3), (3, 3), "-3..3"),
    ],
)
def test_bounds_of_actions_count_where_both_are_known(low, high, expected):
    known = replace(TURN, low=(-1, -2), high=(1, 2))
    line = f"action 'turn' is continuous of 2 numbers in (-1, -2)..(1, 2) in A, but of 2 numbers in {expected} in B"
    assert told({}, {"turn": known}, {}, {"turn": replace(known, low=low, high=high)}) == [line] * bool(expected)
