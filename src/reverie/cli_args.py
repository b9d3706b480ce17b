"""How the command line reads words and says things, the same for every command."""

from __future__ import annotations

import sys
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

registry = ConstructorRegistry()


def parse(kind: Any, args: list[str], command: str, default: Any = None) -> Any:
    """``args`` as a ``kind``; on wrong usage tyro explains itself and exits with 2."""
    given = {} if default is None else {"default": default}
    return tyro.cli(kind, args=args, prog=f"reverie {command}", registry=registry, **given)


def fail(message: str, code: int) -> int:
    """One message on stderr."""
    print(f"reverie: {message}", file=sys.stderr)
    return code


def score_line(evaluation: Any) -> str:
    """Mean and spread of an evaluation."""
    metrics = evaluation.metrics()
    scores = evaluation.scores
    return (
        f"mean return {metrics['eval/score']:.2f} over {len(scores)} episodes "
        f"(std {metrics['eval/score_std']:.2f}, min {min(scores):.2f}, max {max(scores):.2f}; "
        f"mean length {metrics['eval/length']:.1f})"
    )


def print_files(files: Mapping[str, Path]) -> None:
    """What was written, and where."""
    for what, path in files.items():
        print(f"  {what + ':':<16}{path}")


@registry.primitive_rule
def whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Whole numbers may be written 1e5."""
    if info.type is not int:
        return None

    def read(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            number = float(words[0])
        if not number.is_integer():
            raise ValueError(f"{words[0]} is not a whole number")
        return int(number)

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@registry.primitive_rule
def yaml_mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Free mappings, such as arguments of an environment, are written as YAML: '{continuous: true}'."""
    if typing.get_origin(info.type) is not dict:
        return None

    def read(words: list[str]) -> dict[str, Any]:
        try:
            value = yaml.safe_load(words[0])
        except yaml.YAMLError as error:
            raise ValueError(f"{words[0]!r} is not YAML: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{words[0]!r} is not a mapping such as '{{name: value}}'")
        return value

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="YAML",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, dict),
        str_from_instance=lambda value: [yaml.safe_dump(value, default_flow_style=True).strip()],
    )
