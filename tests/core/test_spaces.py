"""Every kind of space into parts and back, one by one and in columns; what cannot be learned from says so."""

import re

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.obs_codec import ObsCodec
from reverie.core.obs_conversion import conversion, is_surely_finite
from reverie.core.spaces import cast, columns_in, columns_to_nested, get_at_path, iter_leaves
from reverie.core.specs import ActionPart, ObsPart
from reverie.envs.config import EnvConfig

NUMBERS = (np.float32, np.float64, np.int32, np.uint8)


def leaf_spaces(actions):
    """Spaces of one array, such as environments have."""
    shapes = st.lists(st.integers(1, 3), max_size=3).map(tuple)
    starts = st.integers(-3, 3)
    found = [
        st.builds(lambda low, width, shape, dtype: spaces.Box(low, low + width, shape, dtype),
                  st.integers(0, 9), st.integers(1, 90), shapes, st.sampled_from(NUMBERS)),
        st.builds(lambda n, start: spaces.Discrete(n, start=start), st.integers(1, 5), starts),
        st.builds(lambda nvec, start: spaces.MultiDiscrete(nvec, start=[start] * len(nvec)),
                  st.lists(st.integers(1, 4), min_size=1, max_size=3), starts),
        st.builds(spaces.MultiBinary, st.integers(1, 4)),
    ]  # fmt: skip
    text = st.builds(lambda most: spaces.Text(most, min_length=0, charset="abc"), st.integers(1, 5))
    return st.one_of(*found, *([] if actions else [text]))


def any_space(actions):
    """Nested spaces."""
    return st.recursive(
        leaf_spaces(actions),
        lambda inner: st.one_of(
            st.dictionaries(st.sampled_from(["a", "b", "cam", "z"]), inner, min_size=1).map(spaces.Dict),
            st.lists(inner, min_size=1, max_size=3).map(lambda parts: spaces.Tuple(tuple(parts))),
        ),
        max_leaves=5,
    )


def leaves(value, key=""):
    """The arrays of a nested value by key."""
    if not isinstance(value, dict | tuple):
        return {key or "observation": value}
    items = value.items() if isinstance(value, dict) else enumerate(value)
    return {k: x for name, inner in items for k, x in leaves(inner, f"{key}/{name}".lstrip("/")).items()}


@given(space=any_space(actions=False), seed=st.integers(0, 2**31))
@settings(max_examples=60, deadline=None)
def test_samples_of_any_space_fit_their_spec_and_keep_their_values(space, seed):
    space.seed(seed)
    codec, value = ObsCodec(space), space.sample()
    flat, found = codec(value), leaves(value)
    assert flat.keys() == codec.spec.keys()
    for key, part in codec.spec.items():
        assert (flat[key].shape, str(flat[key].dtype)) == (part.shape, part.dtype)
        if part.kind == "categorical":
            assert ((flat[key].ravel() >= 0) & (flat[key].ravel() < part.classes)).all()
        if part.kind == "vector":
            np.testing.assert_allclose(flat[key], found[key], rtol=1e-6)


@given(space=any_space(actions=True), seed=st.integers(0, 2**31), scale=st.sampled_from([0.3, 1.0, 10.0]))
@settings(max_examples=60, deadline=None)
def test_any_flat_action_is_inside_its_space(space, seed, scale):
    codec = ActionCodec(space)
    flat = np.random.default_rng(seed).normal(0, scale, codec.spec.width).astype(np.float32)
    action = codec(flat)
    assert space.contains(np.int64(action) if isinstance(space, spaces.Discrete) else action)
    assert list(codec.spec.slices()) == sorted(codec.spec.parts)


def image(*shape, dtype="uint8", **options):
    return ObsPart(kind="image", shape=shape, dtype=dtype, **options)


def vector(*shape):
    return ObsPart(kind="vector", shape=shape, dtype="float32")


def classes(*shape, of):
    return ObsPart(kind="categorical", shape=shape, dtype="int64", classes=of)


@pytest.mark.parametrize(
    ("space", "key", "part"),
    [
        (spaces.Box(0, 255, (4, 5, 3), np.uint8), "image", image(4, 5, 3)),
        (spaces.Box(0, 1, (4, 5, 3), bool), "image", image(4, 5, 3)),
        (spaces.MultiBinary((4, 5, 3)), "image", image(4, 5, 3)),
        (spaces.Box(0, 255, (6, 7), np.uint8), "image", image(6, 7, 1)),
        (spaces.Box(-1, 2, (4, 5, 3), np.float64), "image", image(4, 5, 3, dtype="float32", low=-1.0, high=2.0)),
        (spaces.Box(0, 9, (6, 7), np.uint8), "observation", vector(6, 7)),
        (spaces.Box(-np.inf, np.inf, (4, 5, 3)), "observation", vector(4, 5, 3)),
        (spaces.Box(5, 5, (4, 5, 3)), "observation", vector(4, 5, 3)),
        (spaces.MultiDiscrete([[2, 3], [4, 5]]), "observation", classes(2, 2, of=(2, 3, 4, 5))),
        (spaces.Text(5, charset="abc"), "observation", classes(5, of=(4,) * 5)),
    ],
)
def test_bare_spaces_have_one_part(space, key, part):
    assert ObsCodec(space).spec == {key: part}


@pytest.mark.parametrize(
    ("shape", "expected"),
    [((3, 64, 48), (64, 48, 3)), ((12, 96, 64), (96, 64, 12)), ((64, 48, 3), (64, 48, 3)), ((7, 7, 20), (7, 7, 20)),
     ((3, 64, 3), (3, 64, 3)), ((5, 7, 20), (5, 7, 20))],
)  # fmt: skip
def test_channels_first_is_recognized(shape, expected):
    assert ObsCodec(spaces.Box(0, 255, shape, np.uint8)).spec == {"image": image(*expected)}


@given(text=st.text("abz", max_size=6))
@settings(deadline=None)
def test_text_is_one_class_for_each_character_and_zero_for_padding(text):
    flat = ObsCodec(spaces.Text(6, min_length=0, charset="zab"))(text)["observation"]
    assert "".join("abz"[i - 1] for i in flat if i) == text
    assert (flat[len(text) :] == 0).all()


@pytest.mark.parametrize(
    ("space", "obs", "message"),
    [
        (spaces.Box(-1, 1, (3,)), np.zeros(2, np.float32), r"'observation' has shape \(2,\)"),
        (spaces.Box(-1, 1, (3,)), np.array([0, np.nan, 0]), r"is nan at index \(1,\): expected finite float32"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.zeros((2, 2, 3)), "'image' has dtype float64; .* uint8"),
        (spaces.Box(0, 255, (2, 2, 3), np.uint8), np.full((2, 2, 3), 256), r"values 256..256; .* 0..255"),
        (spaces.Discrete(3, start=1), 0, "is 0; its space declares 1..3"),
        (spaces.MultiDiscrete([2, 3]), np.array([1, 3]), r"is 3 at index \(1,\); its space declares 0..2"),
    ],
)
def test_observations_outside_their_space(space, obs, message):
    with pytest.raises(DataError, match=message):
        ObsCodec(space)(obs)


@pytest.mark.parametrize("key", ["a//b", "..", "zarr.json"])
def test_keys_that_cannot_be_folders(key):
    space = spaces.Dict({key: spaces.Discrete(2), "b": spaces.Discrete(2)})
    with pytest.raises(EnvError, match=rf"observation {re.escape(repr(key))} cannot be stored"):
        ObsCodec(space, EnvConfig().uses_key)
    assert list(ObsCodec(space, lambda name: name == "b").spec) == ["b"]


@pytest.mark.parametrize("size", [1, 64, 65, 1024, 1025])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numbers_are_surely_finite_only_if_float32_holds_them(size, dtype):
    array = np.full(size, -3.5, dtype)
    assert is_surely_finite(array) == (size <= 1024)
    for bad in (np.nan, np.inf, -np.inf):
        array[0] = bad
        assert not is_surely_finite(array)
    if dtype == "float64" and size > 1:
        array[:2] = 1e39, -1e39  # their sum is 0
        assert not is_surely_finite(array)


# ---------------------------------------------------------------- actions

BODY = spaces.Dict(
    {
        "walk": spaces.Box(np.array([-2.0, 0.0]), np.array([4.0, 1.0])),
        "hand": spaces.Tuple((spaces.Discrete(3, start=5), spaces.MultiBinary(2))),
        "aim": spaces.MultiDiscrete([[2, 3], [1, 4]], start=[[0, 1], [2, -1]]),
    }
)


def test_flat_actions_mean_what_they_say():
    codec = ActionCodec(BODY)
    widths = {key: (part.kind, part.width) for key, part in codec.spec.parts.items()}
    assert widths == {"aim": ("categorical", 10), "hand/0": ("categorical", 3), "hand/1": ("categorical", 4),
                      "walk": ("continuous", 2)}  # fmt: skip
    flat = np.zeros(19, np.float32)
    flat[[1, 4, 5, 8, 12, 13, 16]] = 1  # aim [1, 2+1, 0+2, 2-1], hand 2+5 and [0, 1]
    flat[17:] = [-1.0, 0.5]
    action = codec(flat)
    assert action["aim"].tolist() == [[1, 3], [2, 1]]
    assert (action["hand"][0], action["hand"][1].tolist()) == (7, [0, 1])
    np.testing.assert_allclose(action["walk"], [-2.0, 0.75])


def test_box_ends_are_reached_exactly():
    space = spaces.Box(np.array([-0.1, 2.0], np.float32), np.array([0.3, 5.0], np.float32))
    np.testing.assert_array_equal(ActionCodec(space)(-np.ones(2, np.float32)), space.low)
    np.testing.assert_array_equal(ActionCodec(space)(np.full(2, 7.0, np.float32)), space.high)
    ends = np.iinfo(np.int64)  # the largest is no float64: rounded up, it would become the smallest
    low, high = ActionCodec(spaces.Box(ends.min, ends.max, (2,), np.int64))(np.array([-1, 1], np.float32)).tolist()
    assert low == ends.min
    assert ends.max - 2048 <= high <= ends.max


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("shape", [(2, 3), (17,)])
def test_few_numbers_and_many_are_scaled_alike(shape, dtype):
    rng = np.random.default_rng(0)
    low = (-10 * rng.random(shape)).astype(dtype)
    space = spaces.Box(low, (low + 1e-3 + 20 * rng.random(shape)).astype(dtype), shape, dtype)
    half, middle = ((space.high.astype(float) / 2 + sign * space.low.astype(float) / 2) for sign in (-1, 1))
    codec = ActionCodec(space)
    for _ in range(50):
        flat = (2 * rng.normal(size=low.size)).astype(np.float32)
        expected = (np.clip(flat.astype(float), -1, 1).reshape(shape) * half + middle).astype(dtype)
        assert codec(flat).dtype == dtype
        assert np.array_equal(codec(flat), np.clip(expected, space.low, space.high))


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (spaces.Dict({"arm": spaces.Box(np.array([-1, -np.inf]), 1)}), "'arm' is unbounded .*-inf.*TransformAction"),
        (spaces.Text(3), "which is not supported: expected Discrete"),
        (spaces.Dict({"a/b": spaces.Discrete(2), "a": spaces.Dict({"b": spaces.Discrete(2)})}), "the same key"),
    ],
)  # fmt: skip
def test_actions_that_cannot_be_chosen(space, message):
    with pytest.raises(EnvError, match=message):
        ActionCodec(space)


@pytest.mark.parametrize(
    ("part", "given", "message"),
    [
        (ActionPart, {"kind": "discrete", "classes": (4,)}, "a categorical part with classes, or a continuous one"),
        (ActionPart, {"kind": "continuous"}, "a categorical part with classes, or a continuous one"),
        (ObsPart, {"kind": "discrete", "shape": (), "dtype": "int64"}, "kind = 'discrete': expected one of image, vec"),
    ],
)
def test_parts_of_other_kinds_are_refused(part, given, message):
    with pytest.raises(ConfigError, match=message):
        part(**given)


# Columns of recorded values against what an environment of the same space shows, one by one; and the way back

SPACES = {
    "vector": spaces.Box(-3, 3, (2,), np.float32),
    "unbounded": spaces.Box(-np.inf, np.inf, (3,), np.float64),
    "scalar": spaces.Box(0, 1, (), np.float32),
    "matrix": spaces.Box(-3, 3, (2, 2), np.float64),
    "whole": spaces.Box(-1000, 1000, (4,), np.int16),
    "picture": spaces.Box(0, 255, (5, 6, 3), np.uint8),
    "first": spaces.Box(0, 255, (3, 36, 34), np.uint8),
    "stack": spaces.Box(0, 255, (2, 36, 34, 3), np.uint8),
    "stack, first": spaces.Box(0, 255, (2, 3, 5, 6), np.uint8),
    "gray": spaces.Box(0, 255, (5, 6), np.uint8),
    "planes": spaces.Box(0, 1, (5, 6, 4), np.int64),
    "planes of bytes": spaces.Box(0, 1, (5, 5, 4), np.uint8),
    "few": spaces.Box(-3, 7, (5, 6, 3), np.int8),
    "float": spaces.Box(0, 1, (36, 34, 3), np.float32),
    "choice": spaces.Discrete(4, start=-2),
    "choices": spaces.MultiDiscrete([[3, 4], [2, 5]], start=[[0, 1], [-1, 2]]),
    "bits": spaces.MultiBinary(3),
    "cube of bits": spaces.MultiBinary((5, 6, 3)),
    "text": spaces.Text(5, min_length=0, charset="abz 1"),
    "nested": spaces.Dict({"arm": spaces.Dict({"angle": spaces.Box(-1, 1, (2,))}), "both": spaces.Tuple(
        (spaces.Discrete(3), spaces.Box(0, 255, (36, 34, 3), np.uint8)))}),
}  # fmt: skip

ACTIONS = {
    "discrete": spaces.Discrete(4, start=3),
    "multi-discrete": spaces.MultiDiscrete([2, 3, 4]),
    "grid": spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [2, 2]]),
    "bits": spaces.MultiBinary(3),
    "unit": spaces.Box(-1, 1, (3,), np.float32),
    "box": spaces.Box(np.float32([-2, 0, 5]), np.float32([2, 10, 5.5]), (3,), np.float32),
    "nested": spaces.Dict({"move": spaces.Box(-3, 1, (2, 2)), "grip": spaces.Discrete(3)}),
    "tuple": spaces.Tuple((spaces.Discrete(2), spaces.Box(0, 1, (1,)))),
}


def columns(space, values, root):
    """What readers make of values: a column for each leaf."""
    if not isinstance(space, spaces.Dict | spaces.Tuple):
        return {root: np.array(values, object if isinstance(space, spaces.Text) else None)}
    out = {}
    for key, inside in dict(space.spaces if isinstance(space, spaces.Dict) else enumerate(space.spaces)).items():
        out |= columns(inside, [value[key] for value in values], f"{root}/{key}")
    return out


@pytest.mark.parametrize("kind", SPACES)
def test_observations(kind):
    space = SPACES[kind]
    space.seed(0)
    values = [space.sample() for _ in range(9)]
    codec = ObsCodec(space)
    found = codec.encode(columns(space, values, "obs"))
    for key in codec.spec:
        truth = np.stack([codec(value)[key] for value in values])
        assert found[f"obs/{key}"].dtype == truth.dtype
        np.testing.assert_array_equal(found[f"obs/{key}"], truth)


@pytest.mark.parametrize("kind", ACTIONS)
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_actions_lead_back(kind, seed):
    """The flat action of a recorded one means that one to the environment; nothing is done in last rows."""
    space = ACTIONS[kind]
    space.seed(seed)
    values = [space.sample() for _ in range(5)]
    last = np.random.default_rng(seed).random(5) < 0.3
    codec = ActionCodec(space)
    rows = columns(space, values, "action")
    for column in rows.values():
        column[last] = 0  # as readers leave it, whatever that means in the space
    flat = codec.flatten(rows | {"is_last": last})
    assert (flat.shape, flat.dtype, codec.outside) == ((5, codec.spec.width), np.float32, False)
    for row, value in enumerate(values):
        if last[row]:
            assert not flat[row].any()
        else:
            again = columns(space, [codec(flat[row])], "a")
            for name, truth in columns(space, [value], "a").items():
                np.testing.assert_allclose(again[name].astype(float), truth.astype(float), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("space", "rows", "said"),
    [
        (spaces.Box(-1, 1, (2,)), np.float32([[0, 0], [0, np.nan]]), r"of row 11 is .*nan.*finite"),
        (spaces.Box(-1, 1, (2,)), np.float64([[0, 1e300], [0, 0]]), r"of row 10 is .*1e\+300"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 3)), r"of row 10 has shape \(3,\); its space declares \(2,\)"),
        (spaces.Discrete(3), np.array([0, 3]), r"of row 11 is 3; its space declares 0\.\.2"),
        (spaces.Discrete(3), np.array([0.0, 1.5]), r"dtype float64; its space declares int64"),
        (spaces.Box(0, 255, (5, 6, 3), np.uint8), np.zeros((2, 5, 6, 3)), "dtype float64; its space declares uint8"),
    ],
)
def test_observations_that_are_not_of_the_space(space, rows, said):
    with pytest.raises(DataError, match=said):
        ObsCodec(space).encode({"obs": rows}, 10)


@pytest.mark.parametrize(
    ("space", "rows", "said"),
    [
        (spaces.Discrete(3), np.array([0, 3]), r"'action' of row 11 is 3; its space declares 0\.\.2"),
        (spaces.Discrete(3), np.array([0.0, 1.5]), r"of row 11 is 1\.5"),
        (spaces.MultiDiscrete([2, 2]), np.array([[0], [1]]), "has 1 discrete values; its space declares 2"),
        (spaces.Box(-1, 1, (2,)), np.float32([[0, 0], [np.inf, 0]]), "of row 11 is"),
        (spaces.Box(-1, 1, (2,)), np.zeros((2, 1), np.float32), "has shape"),
    ],
)
def test_actions_that_are_not_of_the_space(space, rows, said):
    with pytest.raises(DataError, match=said):
        ActionCodec(space).flatten({"action": rows, "is_last": np.zeros(2, bool)}, 10)


def there_and_back(space, keep=bool, channel_axis="auto", n=20):
    space.seed(0)
    codec, given = ObsCodec(space, keep, channel_axis), [space.sample() for _ in range(n)]
    flat = [codec(value) for value in given]
    rows = {f"obs/{key}": np.stack([row[key] for row in flat]) for key in codec.spec}
    if len(rows) == 1 and "/" not in next(iter(codec.spec)):
        rows = {"obs": next(iter(rows.values()))}
    found, kept = codec.decode(rows | {"reward": np.zeros(n)}), codec.filtered_space()
    assert {name for name in found if name != "reward"} == {name for name, _ in columns_in(kept, "obs")}
    again = ObsCodec(kept, channel_axis=channel_axis)
    assert again.spec == codec.spec
    for i, row in enumerate(flat):
        one = columns_to_nested(kept, {name: values[i : i + 1] for name, values in found.items()}, "obs")
        for leaf in again.leaves:
            np.testing.assert_array_equal(
                leaf.encode(get_at_path(one, leaf.path)[0], 0), row[leaf.key], err_msg=leaf.key
            )
    for name, leaf in columns_in(kept, "obs"):
        assert all(leaf.contains(str(v) if isinstance(leaf, spaces.Text) else v) for v in found[name]), name


@pytest.mark.parametrize("name", SPACES)
@pytest.mark.parametrize("channel_axis", ["auto", "first"])
def test_every_kind_alone_and_in_a_dictionary(name, channel_axis):
    there_and_back(SPACES[name], channel_axis=channel_axis)
    there_and_back(spaces.Dict({"in": spaces.Dict({"side": SPACES[name]})}), channel_axis=channel_axis)


@pytest.mark.parametrize(
    ("values", "dtype", "wrong"),
    [
        ([0, 255], np.uint8, None),
        ([0, 300], np.uint8, "300"),
        ([0.0, 1.5], np.uint8, "1.5"),
        ([0.0, 0.1 * 30], np.uint8, None),
        ([0.0, np.nan], np.int64, "nan"),
        ([0, 2**40], np.int32, "1099511627776"),
        ([0, 2], np.bool_, "2"),
        ([0.1, np.inf], np.float16, None),
        ([0.1, 1e5], np.float16, "100000.0"),
        ([0, 2**53 + 1], np.float64, str(2**53 + 1)),
        (["a", "b"], object, None),
    ],
)
def test_values_that_a_dtype_cannot_hold_are_told(values, dtype, wrong):
    if wrong is None:
        found = cast(np.array(values), dtype, "obs/arm")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, np.array(values, dtype) if dtype != np.uint8 else np.rint(values))
    else:
        with pytest.raises(DataError, match=rf"obs/arm of row 1 is {re.escape(wrong)}: expected a value of "):
            cast(np.array(values), dtype, "obs/arm")


@pytest.mark.parametrize(
    "space",
    [
        spaces.Discrete(3),
        spaces.Discrete(3, start=-1, dtype=np.int32),
        spaces.MultiDiscrete([3, 2]),
        spaces.MultiBinary(3),
        spaces.Box(-1, 1, (), np.float16),
        spaces.Box(0, 5, (2,), np.int32),
        spaces.Tuple((spaces.Discrete(2), spaces.Dict(a=spaces.Box(-1, 1, (2,))))),
    ],
)
def test_actions_are_of_the_types_that_the_space_samples(space):
    codec = ActionCodec(space)
    taken, sampled = codec(np.ones(codec.spec.width, np.float32)), space.sample()
    for path, _ in iter_leaves(space):
        one, other = get_at_path(taken, path), get_at_path(sampled, path)
        assert (type(one), one.dtype, one.shape) == (type(other), other.dtype, other.shape)


@pytest.mark.parametrize("n", [2**24 + 1, 2**40])
def test_more_classes_than_a_network_can_have(n):
    with pytest.raises(EnvError, match=f"observation 'observation' has {n:,} classes.* at most 262,144"):
        ObsCodec(spaces.Discrete(n))
    with pytest.raises(EnvError, match=f"action 'action' has {n:,} classes"):
        ActionCodec(spaces.Discrete(n))


@pytest.mark.parametrize(
    ("dtype", "top", "axis"), [("float32", 1.0, "last"), ("uint8", 255.0, "last"), ("float32", 1.0, "first")]
)
def test_channels_of_an_image_are_scaled_by_their_own_bounds(dtype: str, top: float, axis: str) -> None:
    """A plane of 0 and 1 beside a plane of 0 to 200."""
    high = np.full((6, 5, 2), 1, dtype)
    high[..., 1] = 200
    image = high * np.array([1, 0.5]).astype(dtype) if dtype == "float32" else high // np.array([1, 2], dtype)
    moved = (lambda x: np.moveaxis(x, -1, 0)) if axis == "first" else np.asarray
    part, encode, decode = conversion(spaces.Box(np.zeros_like(moved(high)), moved(high), dtype=dtype), axis)
    pixels = encode(np.stack([moved(image)] * 3), 1)
    assert (part.shape, part.low, part.high, pixels.dtype) == ((6, 5, 2), 0.0, top, dtype)
    np.testing.assert_allclose(pixels[2, 0, 0], [top, top / 2], atol=0.5 if dtype == "uint8" else 0)
    np.testing.assert_allclose(decode(pixels)[1], moved(image), atol=1e-6)
    with pytest.raises(DataError, match="its space declares"):
        encode(moved(high) * 2 + 1 if dtype == "float32" else moved(high) + moved(high), 0)
