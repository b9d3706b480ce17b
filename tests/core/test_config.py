"""Configuration: strict in, plain out, and names for what is wrong."""

from __future__ import annotations

import copy
import dataclasses
import math
import pickle
import re
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from reverie.algos.cql import Mode
from reverie.algos.table import algorithm_config, algorithms
from reverie.core.bounds import Above, AtLeast, Finite, Regex, Within
from reverie.core.config import Choice, Config, coerce
from reverie.core.errors import ConfigError
from reverie.nn.exploration import Gaussian
from reverie.nn.normalization import Running
from reverie.nn.probe import Mlp, ProbeConfig


@dataclass(frozen=True, kw_only=True)
class Inner(Config):
    units: int = 64
    rate: float = 0.1
    act: Literal["silu", "relu"] = "silu"


@dataclass(frozen=True, kw_only=True)
class Wide(Inner):  # put where an Inner is expected
    blocks: int = 8


@dataclass(frozen=True, kw_only=True)
class Outer(Config):
    steps: int = 10
    name: str = "x"
    flag: bool = False
    size: tuple[int, int] | None = None
    depths: tuple[int, ...] = (2, 3)
    period: int | str = "5m"
    kwargs: dict[str, Any] = field(default_factory=dict)
    inner: Inner = field(default_factory=Wide)

    def __post_init__(self) -> None:
        if self.steps < 0:
            raise ConfigError(f"steps = {self.steps}: expected 0 or more.")


def test_round_trip_is_plain_and_equal() -> None:
    config = Outer(steps=3, size=(4, 5), kwargs={"a": [1]}, inner=Wide(blocks=2, act="relu"))
    plain = config.to_dict()
    inner = {"units": 64, "rate": 0.1, "act": "relu", "blocks": 2}
    assert (plain["size"], plain["inner"]) == ([4, 5], inner)
    assert Outer().merge(plain) == config


def test_nested_dotted_and_both() -> None:
    expected = Outer(steps=4, inner=Wide(units=3))
    assert Outer().merge({"inner": {"units": 3}, "steps": 4}) == expected
    assert Outer().merge({"inner.units": 3, "steps": 4}) == expected
    assert Outer().merge({"inner.units": 3, "inner": {"rate": 0.5}}).inner == Wide(units=3, rate=0.5)
    assert Outer().replace("inner.blocks", 1).inner == Wide(blocks=1)
    whole, part = {"inner": Wide(units=3)}, {"inner.blocks": 1}
    assert Outer().merge(whole | part).inner == Outer().merge(part | whole).inner == Wide(units=3, blocks=1)


@pytest.mark.parametrize(
    ("value", "hint", "expected"),
    [
        ("1e5", int, 100_000),
        (1e3, int, 1000),
        ("3", float, 3.0),
        (2, float, 2.0),
        ([1, 2], tuple[int, int] | None, (1, 2)),
        (None, tuple[int, int] | None, None),
        ([1, 2, 3], tuple[int, ...], (1, 2, 3)),
        (64, tuple[int, ...], (64,)),
        ("a:B", tuple[str, ...], ("a:B",)),
        ("5m", int | str, "5m"),
        ({"a": 1}, dict[str, Any], {"a": 1}),
    ],
)
def test_values_that_say_the_same(value: Any, hint: Any, expected: Any) -> None:
    result = coerce(value, hint, "x")
    assert result == expected
    assert type(result) is type(expected)


FINITE = st.floats(allow_nan=False, allow_infinity=False, width=32)


@given(st.integers(0, 10**9), FINITE, st.lists(st.integers(), max_size=4))
def test_any_values_survive_the_round_trip(steps: int, rate: float, depths: list[int]) -> None:
    config = Outer().merge({"steps": steps, "inner.rate": rate, "depths": depths})
    assert Outer().merge(config.to_dict()) == config
    assert config.depths == tuple(depths)


def test_numpys_numbers_and_paths_are_saved_as_plain_values() -> None:
    plain = replace(Outer(), steps=np.int64(3), name=Path("a")).to_dict()  # type: ignore[arg-type]
    assert (plain["steps"], type(plain["steps"]), plain["name"]) == (3, int, "a")
    with pytest.raises(ConfigError, match=r"a setting is a ndarray, array\(\[0, 1\]\): expected numbers, text"):
        Outer(kwargs={"a": np.arange(2)}).to_dict()


@dataclass(frozen=True)
class Color(Choice):
    """Several kinds."""


@dataclass(frozen=True)
class Plain(Color):
    """No settings."""


@dataclass(frozen=True)
class Mixed(Color, base=True):  # a base of kinds, and none itself
    share: float = 0.5


@dataclass(frozen=True)
class RGBMix(Mixed):
    depth: int = 8


@dataclass(frozen=True)
class Pastel(RGBMix):
    """A kind that is derived from another one, which stays a kind."""


@dataclass(frozen=True)
class Shade(Choice):
    """Kinds of which a user has more."""


@dataclass(frozen=True)
class Dark(Shade):
    """One."""


@dataclass(frozen=True, kw_only=True)
class Wall(Config):
    color: Color = Plain()
    shade: Shade = Dark()


def test_kinds_are_named_in_small_letters():
    assert Color.variants() == {"plain": Plain, "rgb_mix": RGBMix, "pastel": Pastel}
    assert type(Color.parse("rgb_mix")) is RGBMix
    assert type(Color.parse("pastel")) is Pastel


@pytest.mark.parametrize(
    "color", [Plain(), RGBMix(), RGBMix(0.25, 4), RGBMix(-1.5), RGBMix(math.inf), RGBMix(-math.inf)]
)
def test_a_kind_survives_a_file(color):
    wall = Wall(color=color)
    assert Wall().merge(yaml.safe_load(yaml.safe_dump(wall.to_dict()))) == wall
    assert Wall().merge({"color": color}) == wall


def test_every_kind_of_every_algorithm_is_read_as_it_is_written() -> None:
    infinite = set()
    for name in algorithms():
        algorithm_config(name)
    kinds = [kind for kind in Choice._descendants() if kind.__module__.startswith("reverie.") and not kind._is_base]
    for kind in kinds:
        base = next(each for each in kind.__mro__ if Choice in each.__bases__)
        values = [kind()]
        for name in [f.name for f in dataclasses.fields(kind) if "float" in str(f.type)]:
            try:
                values.append(dataclasses.replace(kind(), **{name: math.inf}))
                infinite.add(kind.__name__)
            except ConfigError:  # this number has to be finite
                continue
        for value in values:
            assert base.parse(value.to_text()) == value
    assert "Exp" in infinite


OWN = f"""
from dataclasses import dataclass
from {__name__} import Shade

@dataclass(frozen=True)
class Own(Shade):
    level: int = 1

class Another:
    pass
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module in the folder from which the library is used, with a kind of the user's own."""
    (tmp_path / "own_colors.py").write_text(OWN)
    (tmp_path / "broken_colors.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    sys.modules.pop("own_colors", None)


@pytest.mark.usefixtures("own_module")
def test_a_kind_of_the_users_own_says_where_it_is():
    wall = Wall().merge({"shade": "own_colors:Own(level=3)"})
    assert wall.to_dict()["shade"] == "own_colors:Own(level=3)"
    assert Wall().merge(wall.to_dict()) == wall
    assert Wall().merge({"shade": " own_colors:Own "}).shade.level == 1
    assert Wall(shade=Dark()).to_dict()["shade"] == f"{__name__}:Dark"


def test_a_kind_that_is_there_need_not_be_imported(monkeypatch):
    monkeypatch.setattr(Pastel, "__module__", "__main__")  # as in a script
    assert type(Color.parse("__main__:Pastel(0.1, depth=2)")) is Pastel
    assert Pastel(0.1, 2).to_text() == "__main__:Pastel(share=0.1, depth=2)"


@pytest.mark.parametrize("text", ["rgb_mix(0.25, 4)", "rgb_mix(depth=4, share=0.25)", " rgb_mix( 0.25, depth=4.0 )"])
def test_kinds_are_written_as_people_write_them(text):
    assert Wall().merge({"color": text}).color == RGBMix(0.25, 4)


@pytest.mark.usefixtures("own_module")
@pytest.mark.parametrize(
    ("config", "values", "message"),
    [
        (Outer(), {"stepz": 1}, r"unknown option 'stepz'\. Did you mean 'steps'"),
        (Outer(), {"inner.unit": 1}, r"unknown option 'inner\.unit'\. Did you mean 'inner\.units'"),
        (Outer(), {"zzzzzz": 1}, r"unknown option 'zzzzzz'\. Available: depths, flag, inner, kwargs"),
        (Outer(), {"steps": True}, r"steps = True \(bool\): expected int"),
        (Outer(), {"depths": [1, "a"]}, r"depths\[1\] = 'a'"),
        (Outer(), {"inner.act": "sillu"}, "inner.act = 'sillu': expected one of 'silu', 'relu'. Did you mean 'silu'"),
        (Outer(), {"steps": -1}, "steps = -1: expected 0 or more"),
        (Wall(), {"color": "rgb_mixx"}, "color = 'rgb_mixx': unknown .*Did you mean 'rgb_mix'. Available: plain"),
        (Wall(), {"color": "rgb_mix(1, 2, 3)"}, "expected at most 2 settings: share, depth"),
        (Wall(), {"color": "rgb_mix(dept=3)"}, r"'rgb_mix\(dept=3\)': unknown option 'dept'. Did you mean 'depth'"),
        (Wall(), {"color": "__import__('os').system('x')"}, "expected one of plain, rgb_mix, "),
        (
            Wall(),
            {"color": "0.5"},
            r"= '0\.5': expected one of plain, .* as in .*RGBMix\(share=.*, or 'module:Class' for",
        ),
        (Wall(), {"shade": "own_colors:Another()"}, "has no subclass of Shade with that name"),
        (Wall(), {"shade": "no_colors:Own(1)"}, "'no_colors' cannot be imported .* run in the folder of no_colors.py"),
        (Wall(), {"shade": "broken_colors:Own"}, r"\(ZeroDivisionError: .* \(.*broken_colors.py:1 in <module>\)"),
    ],
)
def test_what_is_wrong_is_named(config, values, message):
    with pytest.raises(ConfigError, match=message):
        config.merge(values)


class Undecorated(Config):
    lr: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class Numbered(Config):
    kind: ClassVar[int] = 1
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True)
class Untyped(Numbered):
    lr = 1e-2


class Renamed(Numbered):
    kind = 2  # no field


class Handmade(Choice):
    def __init__(self, sigma=0.1):
        object.__setattr__(self, "sigma", sigma)


def test_settings_that_would_have_no_effect_are_refused():
    for make, said in (
        (lambda: Undecorated(lr=0.1), r"Undecorated: its lr would have no effect. Write @dataclass"),
        (Untyped, "Untyped: its lr would have no effect"),
        (Handmade, "Handmade: its __init__ would have no effect"),
    ):
        with pytest.raises(ConfigError, match=said):
            make()
    assert Renamed().lr == 1e-3
    assert copy.deepcopy(pickle.loads(pickle.dumps(Renamed(lr=0.5)))) == Renamed(lr=0.5)


@pytest.mark.parametrize(
    ("algorithm", "wrong", "message"),
    [
        ("bcq", {"batch_size": "256"}, "batch_size = '256' (str): expected 256."),
        ("td3", {"policy_delay": 2.0}, "policy_delay = 2.0 (float): expected 2."),
        ("cql", {"backup": Mode}, f"backup = {Mode} (type): expected Backup."),
    ],
)
def test_settings_of_other_kinds_than_their_types_are_refused(algorithm, wrong, message):
    with pytest.raises(ConfigError, match=f"^{re.escape(message)}$"):
        algorithm_config(algorithm)(**wrong)


def test_text_of_a_choice_is_its_object_in_python_too():
    text = algorithm_config("sac")(normalize_obs="running", exploration="gaussian(0.2)")
    assert text == algorithm_config("sac")(normalize_obs=Running(), exploration=Gaussian(0.2))
    assert ProbeConfig(heads=["mlp('map', units=8)"]).heads == (Mlp("map", units=8),)
    with pytest.raises(ConfigError, match=r"exploration = 'gausian': unknown name 'gausian'. Did you mean 'gaussian'"):
        algorithm_config("td3")(exploration="gausian")


@dataclass(frozen=True, kw_only=True)
class Bounded(Config):
    steps: Annotated[int, AtLeast(1)] = 1
    ratio: Annotated[float | None, AtLeast(0)] = None
    lr: Annotated[float, Above(0)] = 1e-3
    decay: Annotated[float, Within("[0, 1)")] = 0.9
    offset: Annotated[float, Finite()] = 0.0
    size: Annotated[tuple[int, int] | None, AtLeast(1)] = None
    keys: Annotated[str, Regex()] = ".*"


@dataclass(frozen=True, kw_only=True)
class Longer(Bounded):
    steps: int = 5  # keeps the bound


@dataclass(frozen=True, kw_only=True)
class Around(Config):
    inner: Bounded = field(default_factory=Longer)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "steps = 0: expected at least 1."),
        ({"steps": 2**63}, "steps = 9223372036854775808: expected a number of at most 64 bits."),
        ({"ratio": math.inf}, "ratio = inf: expected a finite number, 0 or more."),
        ({"lr": math.nan}, "lr = nan: expected a finite number above 0."),
        ({"decay": 1.0}, "decay = 1.0: expected a number in [0, 1)."),
        ({"size": (3, 0)}, "size = 0: expected at least 1."),
        ({"keys": "("}, "keys = '(': expected a valid regular expression (missing ), unterminated subpattern at pos"),
    ],
)
def test_bounds_are_declared_with_fields(wrong, message):
    for kind in (Bounded, Longer):
        with pytest.raises(ConfigError, match=f"^{re.escape(message)}"):
            kind(**wrong)
    with pytest.raises(ConfigError, match=f"^{re.escape('inner.' + message)}"):
        Around().merge({"inner": wrong})
    assert Bounded(decay=0.0, ratio=0).steps == 1
