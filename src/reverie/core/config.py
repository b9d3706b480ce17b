"""Configuration as frozen dataclasses: strict conversion from and to dictionaries, dotted paths, "did you mean"."""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import math
import re
import sys
import types
import typing
from collections.abc import Collection, Hashable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral
from pathlib import PurePath
from typing import Any, ClassVar, Literal, NamedTuple, Self, Union, cast

from reverie.core.bounds import Bound, PiecewiseLinear, ScheduledFloat
from reverie.core.errors import ConfigError, did_you_mean, short_repr
from reverie.core.foreign_names import advise, in_file
from reverie.core.imports import import_object, is_module_name

FLOAT32_MAX = (2.0 - 2.0**-23) * 2.0**127
"""The largest magnitude that float32 holds."""


@dataclass(frozen=True, kw_only=True)
class Config:
    """Base class of every configuration. Subclasses are ``@dataclass(frozen=True, kw_only=True)``."""

    def __new__(cls, *args: object, **kwargs: object) -> Self:
        """Create the object, whose fields ``__init__`` sets."""
        _check_declared(cls)  # type: ignore[arg-type]  # mypy does not know that classes are hashable
        return super().__new__(cls)

    def __post_init__(self) -> None:
        """Check the type and the declared bounds of each field. Subclasses call this first."""
        for name, (hint, bounds) in _declared_fields(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if hint == ScheduledFloat and isinstance(value, list | tuple):
                object.__setattr__(self, name, value := PiecewiseLinear.from_points(value, name))
            elif isinstance(value, str | tuple | list) and _is_choice(hint):
                object.__setattr__(self, name, value := coerce(value, hint, name))
            check_type(value, hint, name)
            for bound in bounds:
                bound.check(name, value)

    def to_dict(self) -> dict[str, Any]:
        """Return nested plain values that can be written as YAML or JSON, and that ``merge`` reads."""
        return {f.name: _to_plain(getattr(self, f.name)) for f in dataclasses.fields(self)}

    def merge(self, values: Mapping[str, Any], path: str = "") -> Self:
        """Return a copy with the given values. Keys may be nested mappings, dotted paths, or both.

        ConfigError names a wrong option with its full path; ``path``: the path of this configuration.
        """
        changes = merge_fields(type(self), self.fields(), values, path)
        try:
            return dataclasses.replace(self, **changes) if changes else self
        except ConfigError as error:
            raise ConfigError(_prefix_setting_names(str(error), path, self.fields())) from None

    def fields(self) -> dict[str, Any]:
        """Return the values of all fields by name; parts stay configurations."""
        return {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}

    def replace(self, path: str, value: object) -> Self:
        """Return a copy in which the value at the dotted ``path`` is replaced."""
        return self.merge({path: value})


@dataclass(frozen=True, kw_only=True)
class LearnerConfig(Config):
    """Settings of an algorithm, and the class that learns with them."""

    learner: ClassVar[type[Any]]
    """Class of the learner, made as ``learner(obs_spec, action_spec, config, device)``. It is defined after its
    configuration, and so assigned there: ``MyConfig.learner = MyLearner``."""


@dataclass(frozen=True)
class Choice(Config):
    """A setting that has one of several kinds, each with its own fields. Its text names both: ``td_lambda(lam=0.9)``.

    Text may give fields by position, ``td_lambda(0.9)``. A kind from outside of this library is named with its module:
    ``mine:Retrace(lam=0.9)`` is class ``Retrace`` of module ``mine``.

    Derive one base class from this, and one class for each kind from the base. The kind's name is that of its class in
    snake case. An abstract class between the base and its kinds is ``class Between(Base, base=True)``. A class derived
    from a kind is another kind.
    """

    _is_base: ClassVar[bool] = True

    def __init_subclass__(cls, *, base: bool = False, **kwargs: object) -> None:
        """Register the class. With ``base`` it is abstract: only classes derived from it are kinds."""
        super().__init_subclass__(**kwargs)
        cls._is_base = base or Choice in cls.__bases__

    @classmethod
    def variants(cls) -> dict[str, type[Self]]:
        """Return all kinds by name. If two have the same name, the first one counts."""
        variants: dict[str, type[Self]] = {}
        for kind in cls.__subclasses__():
            own_variant = {} if kind._is_base else {_snake(kind.__name__): kind}
            for name, variant in (*own_variant.items(), *kind.variants().items()):
                variants.setdefault(name, variant)
        return variants

    @classmethod
    def parse(cls, text: str, setting_name: str = "") -> Self:
        """Return the kind and its fields that ``text`` describes; ConfigError names ``setting_name``, if given."""
        error_prefix = f"{setting_name or _snake(cls.__name__)} = {short_repr(text)}"
        kinds = cls.variants()
        try:
            _, name, args, kwargs = parse_call(text, error_prefix)
        except ConfigError:
            if not kinds:
                raise
            example = max((kind().to_text() for kind in kinds.values()), key=lambda example: "(" in example)
            expected = f"expected one of {', '.join(kinds)}, with settings as in {example}"
            raise ConfigError(f"{error_prefix}: {expected}, or 'module:Class' for a custom class.") from None
        if ":" in name:
            by_module = {f"{kind.__module__}:{kind.__name__}": kind for kind in cls._descendants()}
            kind = by_module.get(name) or cast(type[Self], import_object(name, error_prefix=error_prefix, base=cls))
        elif name in kinds:
            kind = kinds[name]
        else:
            names = f"{', '.join(kinds)}, or " if kinds else ""
            available = f" Available: {names}'module:Class' for a custom class."
            raise ConfigError(f"{error_prefix}: unknown name '{name}'.{did_you_mean(name, kinds)}{available}")
        fields = [f.name for f in dataclasses.fields(kind)]
        if len(args) > len(fields):
            raise ConfigError(f"{error_prefix}: expected at most {len(fields)} settings: {', '.join(fields)}.")
        try:
            return kind().merge(dict(zip(fields, args, strict=False)) | kwargs)
        except ConfigError as error:
            raise ConfigError(f"{error_prefix}: {error}") from None

    @classmethod
    def _descendants(cls) -> Iterator[type[Self]]:
        for kind in cls.__subclasses__():
            yield from (kind, *kind._descendants())

    def is_importable(self) -> bool:
        """Return whether another process can import this class, which is not defined in a script or a function."""
        kind = type(self)
        return kind.__module__ != "__main__" and kind.__qualname__ == kind.__name__

    def to_text(self) -> str:
        """Return the text that ``parse`` reads."""
        fields = ", ".join(f"{f.name}={_to_python_scalar(getattr(self, f.name))!r}" for f in dataclasses.fields(self))
        kind = type(self)
        ours = kind.__module__.partition(".")[0] == __name__.partition(".")[0]
        name = _snake(kind.__name__) if ours else f"{kind.__module__}:{kind.__name__}"
        return name + (f"({fields})" if fields else "")


@functools.cache
def _check_declared(cls: type[Any]) -> None:
    """Raise ConfigError if a class sets fields that ``@dataclass`` does not recognize."""
    for kind in cls.__mro__:
        if not issubclass(kind, Config) or kind is Config:
            continue
        typed = {name for name, hint in inspect.get_annotations(kind).items() if "ClassVar" not in str(hint)}
        bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
        inherited = {field.name for base in bases for field in dataclasses.fields(base)}
        untyped = inherited & vars(kind).keys() - inspect.get_annotations(kind).keys()
        if ("__dataclass_fields__" not in vars(kind) and (typed or "__init__" in vars(kind))) or untyped:
            lost = ", ".join(sorted(untyped or typed)) or "__init__"
            raise ConfigError(
                f"{kind.__name__}: its {lost} would have no effect. Write @dataclass(frozen=True, kw_only=True) above "
                "the class, and declare each setting as a field with its type: name: float = 0.1."
            )


@functools.cache
def _type_hints(cls: type[Any]) -> dict[str, Any]:
    return typing.get_type_hints(cls)


@functools.cache
def _declared_fields(cls: type[Any]) -> dict[str, tuple[Any, tuple[Bound, ...]]]:
    """Return the type and bounds of each field. A subclass that only changes the default inherits them."""
    declarations: dict[str, tuple[Any, tuple[Bound, ...]]] = {}
    for kind in reversed(cls.__mro__):
        annotations = inspect.get_annotations(kind) if dataclasses.is_dataclass(kind) else {}
        try:
            hints = typing.get_type_hints(kind, include_extras=True) if annotations else {}
        except NameError:  # a class in a function, or in executed text: its types cannot be resolved
            hints = {}
        for name in annotations:
            plain, bounds = split_hint(hints.get(name, Any))
            declarations[name] = plain, bounds or declarations.get(name, (plain, ()))[1]
    return {field.name: declarations[field.name] for field in dataclasses.fields(cls)}


def split_hint(hint: object) -> tuple[Any, tuple[Bound, ...]]:
    """Return the type and the bounds in ``hint``: ``int`` and ``AtLeast(1)`` for ``Annotated[int, AtLeast(1)]``."""
    bounds = tuple(bound for bound in getattr(hint, "__metadata__", ()) if isinstance(bound, Bound))
    return typing.get_args(hint)[0] if hasattr(hint, "__metadata__") else hint, bounds


def _is_choice(hint: object) -> bool:
    """Return whether ``hint`` is a kind of :class:`Choice`, a list of some, or None, which are written as text."""
    options = [option for option in typing.get_args(hint) if option not in (types.NoneType, Ellipsis)] or [hint]
    return all(isinstance(option, type) and issubclass(option, Choice) for option in options)


def check_type(value: object, hint: object, setting_name: str) -> None:
    """Raise ConfigError unless a number, bool, ``Literal`` or ``Choice`` matches its type."""
    options = typing.get_args(hint) if typing.get_origin(hint) in (Union, types.UnionType) else (hint,)
    if _has_build_method(value) or not all(map(_is_checked, options)):
        return
    converted = coerce(value, hint, setting_name)
    is_text = isinstance(value, str) and not isinstance(converted, str)
    if is_text or (isinstance(converted, int) and not isinstance(value, Integral)):
        raise ConfigError(f"{setting_name} = {short_repr(value)} ({type(value).__name__}): expected {converted!r}.")


def _is_checked(option: object) -> bool:
    literal = option in (int, float, bool, types.NoneType) or typing.get_origin(option) is Literal
    return literal or (isinstance(option, type) and issubclass(option, Choice | PiecewiseLinear))


def merge_fields(
    kind: type[Config], fields: Mapping[str, Any], values: Mapping[str, Any], path: str = ""
) -> dict[str, Any]:  # fmt: skip
    """Return what ``values`` change in the ``fields`` of a configuration of class ``kind``, as :meth:`Config.merge`."""
    hints = _type_hints(kind)  # type: ignore[arg-type]  # mypy does not know that classes are hashable
    changes: dict[str, Any] = {}
    for key, value in nest(values).items():
        key_path = f"{path}.{key}" if path else key
        if key not in fields:
            hint = advise(key_path, list_flags(fields, path), in_file) or f" Available: {', '.join(sorted(fields))}."
            raise ConfigError(f"unknown option '{key_path}'.{hint}")
        old = fields[key]
        if isinstance(old, Config) and isinstance(value, Mapping):
            changes[key] = old.merge(value, key_path)
        elif _has_build_method(value) or (_has_build_method(old) and not isinstance(old, Config)):
            # A user's object is used unchanged; values from a file do not modify it.
            changes[key] = value if _has_build_method(value) else old
        else:
            changes[key] = coerce(value, hints[key], key_path)
    return changes


def list_flags(fields: Mapping[str, Any], path: str = "") -> list[str]:
    """Return the dotted names of all settings in the ``fields`` of a configuration at ``path``, written as flags."""
    flags = []
    for name, value in fields.items():
        setting_name = f"{path}.{name}" if path else name
        flags.append(setting_name.replace("_", "-"))
        if isinstance(value, Config) and not isinstance(value, Choice):
            flags += list_flags(value.fields(), setting_name)
    return flags


def _prefix_setting_names(text: str, path: str, names: Collection[str]) -> str:
    """Return an error text that begins ``name = value, name = value: ...`` with ``path`` put before each field name."""
    head, colon, rest = text.partition(": ")
    if path:
        head = re.sub(r"(^|, )((\w+)[\w.]*)(?= = )", lambda m: f"{m[1]}{path}.{m[2]}" if m[3] in names else m[0], head)
    return head + colon + rest


class ClassCall(NamedTuple):
    """A class by a short name or ``module:Class``, and its settings. Error messages begin with ``error_prefix``."""

    error_prefix: str
    name: str
    args: list[Any]
    kwargs: dict[str, Any]


def parse_call(text: str, error_prefix: str) -> ClassCall:
    """Parse a name or ``module:Class``, with positional and named settings in parentheses after it."""
    module, colon, rest = text.strip().partition(":")
    has_module = bool(colon and is_module_name(module))
    try:
        name, args, kwargs = _parse_call_expr(rest if has_module else text.strip())
    except (SyntaxError, ValueError):
        forms = "name, name(setting=value), module:Class or module:Class(setting=value)"
        raise ConfigError(f"{error_prefix}: expected one of {forms}.") from None
    return ClassCall(error_prefix, f"{module}:{name}" if has_module else name, args, kwargs)


def _parse_call_expr(text: str) -> tuple[str, list[Any], dict[str, Any]]:
    """Return the name, the positional and the named settings of ``name``, or of ``name(1, setting=2)``.

    SyntaxError if ``text`` is not a Python expression, ValueError for other expressions or if a setting is not a
    literal.
    """
    call = ast.parse(text, mode="eval").body
    call = call if isinstance(call, ast.Call) else ast.Call(call, [], [])
    if not isinstance(call.func, ast.Name):
        raise ValueError
    literal = _Infinity().visit
    args = [ast.literal_eval(literal(value)) for value in call.args]
    return call.func.id, args, {str(keyword.arg): ast.literal_eval(literal(keyword.value)) for keyword in call.keywords}


class _Infinity(ast.NodeTransformer):
    """Replaces the name ``inf``, which ``repr`` writes, by infinity."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(math.inf) if node.id == "inf" else node


def _snake(name: str) -> str:
    """Return ``TDLambda`` as ``td_lambda``."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower()


def _has_build_method(value: object) -> bool:
    """Return whether ``value`` is a user's object with a ``build`` method, which settings contain unchanged."""
    return not isinstance(value, type) and callable(getattr(value, "build", None))


def coerce(value: object, hint: object, setting_name: str) -> Any:
    """Convert ``value`` to the type ``hint`` if this is lossless: ``1e5`` to an int, a list or one value to a tuple."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (Union, types.UnionType):
        return _coerce_union(value, args, hint, setting_name)
    if origin is Literal:
        if isinstance(value, Hashable) and value in args:  # an array is not hashable
            return value
        hint_text = did_you_mean(str(value), [str(a) for a in args])
        raise ConfigError(
            f"{setting_name} = {short_repr(value)}: expected one of {', '.join(map(repr, args))}.{hint_text}"
        )
    if origin is tuple and (items := _coerce_tuple(value, args, setting_name)) is not None:
        return items
    if origin is dict and isinstance(value, Mapping):
        return {coerce(k, args[0], setting_name): coerce(v, args[1], f"{setting_name}.{k}") for k, v in value.items()}
    if isinstance(value, str) and isinstance(hint, type) and issubclass(hint, Choice):
        return hint.parse(value, setting_name)
    if (number := _as_number(value, hint)) is not None:
        return number
    is_instance = hint is Any or (isinstance(hint, type) and isinstance(value, hint))
    if is_instance and not (hint is int and isinstance(value, bool)):
        return value
    raise _type_error(value, hint, setting_name)


def _type_error(value: object, hint: object, setting_name: str) -> ConfigError:
    expected = getattr(hint, "__name__", str(hint)) if typing.get_origin(hint) is None else str(hint)
    values = value if isinstance(value, list | tuple) else [value]
    is_typed_name = "str" in expected and any(isinstance(item, bool | int | float) for item in values)
    advice = " Quote names, such as '0.10' or 'on', which YAML reads as a number or a truth value." * is_typed_name
    return ConfigError(f"{setting_name} = {short_repr(value)} ({type(value).__name__}): expected {expected}.{advice}")


def _coerce_tuple(value: object, args: tuple[Any, ...], setting_name: str) -> tuple[Any, ...] | None:
    """Return the items of a list, or of one value for a list of any length; None if their number differs."""
    has_any_length = len(args) == 2 and args[1] is Ellipsis
    if has_any_length and isinstance(value, str | int | float):
        return (coerce(value, args[0], setting_name),)  # as on the command line
    if not isinstance(value, list | tuple) or not (has_any_length or len(args) == len(value)):
        return None
    hints = [args[0]] * len(value) if has_any_length else args
    return tuple(coerce(v, h, f"{setting_name}[{i}]") for i, (v, h) in enumerate(zip(value, hints, strict=True)))


def _coerce_union(value: object, args: tuple[Any, ...], hint: object, setting_name: str) -> Any:
    if hint == ScheduledFloat and isinstance(value, list | tuple):
        return PiecewiseLinear.from_points(value, setting_name)
    options = [option for option in args if option is not type(None)]
    if value is None and len(options) < len(args):
        return None
    if len(options) == 1 and isinstance(options[0], type) and issubclass(options[0], Choice):
        return coerce(value, options[0], setting_name)  # its error is more specific than the general one below
    for option in options:
        try:
            return coerce(value, option, setting_name)
        except ConfigError:
            continue
    raise _type_error(value, hint, setting_name)


def _to_python_scalar(value: object) -> Any:
    """Return a NumPy scalar as a Python scalar. NumPy is not imported here, so that commands start faster."""
    numpy = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def _as_number(value: object, hint: object) -> int | float | None:
    """Return ``value`` as a number, or None. YAML reads ``1e5`` as text, and users also write it for integers."""
    value = _to_python_scalar(value)
    if hint not in (int, float) or isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if hint is int and isinstance(value, int):
        return value  # a seed of 60 bits would be rounded as a float
    try:
        number = float(value)
    except (ValueError, OverflowError):
        return None
    if hint is float:
        return number
    return int(number) if number.is_integer() else None


def nest(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``{"a.b": 1, "a": {"c": 2}}`` as ``{"a": {"b": 1, "c": 2}}``; single values change a whole ``Config``."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        head, _, rest = str(key).partition(".")
        value, current = {rest: value} if rest else value, out.get(head)
        if isinstance(value, Mapping) and isinstance(current, Mapping):
            out[head] = {**current, **value}
        elif isinstance(value, Mapping) and isinstance(current, Config):
            out[head] = current.merge(value, head)
        elif isinstance(value, Config) and isinstance(current, Mapping):
            out[head] = value.merge(current, head)
        else:
            out[head] = value
    return out


def flatten(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested values by dotted path, the inverse of :func:`nest`."""
    out: dict[str, Any] = {}
    for key, value in values.items():
        out |= flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) and value else {f"{prefix}{key}": value}
    return out


def _to_plain(value: object) -> Any:
    if isinstance(value, Choice):
        return value.to_text()
    if isinstance(value, Config):
        return value.to_dict()
    if isinstance(value, PiecewiseLinear):
        return value.to_list()
    if _has_build_method(value):
        return repr(value)
    if isinstance(value, list | tuple):
        return [_to_plain(v) for v in value]
    if isinstance(value, Mapping):
        return {k: _to_plain(v) for k, v in value.items()}
    if isinstance(value, PurePath):
        return str(value)
    value = str(value) if isinstance(value, str) else _to_python_scalar(value)  # a string can carry an object
    if value is not None and not isinstance(value, str | int | float):
        problem = f"a setting is a {type(value).__name__}, {short_repr(value)}"
        raise ConfigError(f"{problem}: expected numbers, text, lists or dictionaries, which can be saved with the run.")
    return value
