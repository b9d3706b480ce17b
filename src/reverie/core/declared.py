"""Whether a configuration's class declares its settings so that they take effect and can be changed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

from reverie.core.errors import ConfigError


@functools.cache
def check_fields(cls: type[Any], root: type[Any]) -> None:
    """Check that what ``cls`` and its bases below ``root`` say of their settings takes effect.

    Raises:
        ConfigError: a class lacks ``@dataclass`` but has fields or an ``__init__``, or it gives a field another default
            without repeating the type.
    """
    for kind in cls.__mro__:
        own = vars(kind)
        if not issubclass(kind, root) or kind is root:
            continue
        typed = [name for name, hint in inspect.get_annotations(kind).items() if "ClassVar" not in str(hint)]
        if "__dataclass_fields__" not in own and (typed or "__init__" in own):
            lost = (
                f"its {', '.join(typed)} would have no effect" if typed else "what its __init__ sets would not be saved"
            )
            raise ConfigError(
                f"{kind.__name__} has no @dataclass(frozen=True, kw_only=True): {lost}. Write that line above the "
                "class, and declare settings as fields."
            )
        bases = [base for base in kind.__mro__[1:] if dataclasses.is_dataclass(base)]
        inherited = {field.name for base in bases for field in dataclasses.fields(base)}
        for name in sorted(inherited & own.keys() - set(inspect.get_annotations(kind))):
            raise ConfigError(
                f"{kind.__name__}.{name} = {own[name]!r} would have no effect, because it has no type. Write "
                f"{name}: {_type_name(kind, name)} = ..., below @dataclass(frozen=True, kw_only=True)."
            )


def check_defaults(cls: type[Any]) -> None:
    """Check that every field of a dataclass has a default.

    Raises:
        ConfigError: one has none.
    """
    for field in dataclasses.fields(cls):
        if field.default is field.default_factory is dataclasses.MISSING:
            raise ConfigError(
                f"{cls.__name__}.{field.name} has no default, but flags, files and presets change defaults. Give it "
                "one; __post_init__ can refuse it."
            )


def _type_name(kind: type[Any], name: str) -> str:
    """Return the type of an inherited field as its class wrote it."""
    hint = next(found[name] for found in map(inspect.get_annotations, kind.__mro__) if name in found)
    return hint if isinstance(hint, str) else getattr(hint, "__name__", str(hint))
