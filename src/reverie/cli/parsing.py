"""The options of commands are fields of dataclasses: argparse splits the words, ``core/config.py`` converts them."""

from __future__ import annotations

import argparse
import ast
import contextlib
import dataclasses
import functools
import inspect
import itertools
import re
import shutil
import sys
import textwrap
import types
import typing
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import MISSING, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn, Protocol

import yaml

from reverie.core.bounds import PiecewiseLinear
from reverie.core.config import Choice, Config, coerce, nest
from reverie.core.errors import ConfigError
from reverie.core.files import check_local
from reverie.core.foreign_names import advise, as_flag
from reverie.core.logger import wrap_words
from reverie.core.terminal import show
from reverie.datasets.options import ColumnNames, ReadOptions

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.datasets.config import DatasetConfig


@dataclass(frozen=True)
class Positional:
    """Annotation of a field that is set by the position of its words, without a flag."""

    metavar: str


@dataclass(frozen=True, kw_only=True)
class TrustOption:
    """An option of commands that read module names from files. ``main`` applies it."""

    trust_code: bool = False
    """Import modules that files of a run, settings or a dataset name and that belong to no installed package, such as a
    module in the current folder. This runs their code."""


@dataclass(frozen=True, kw_only=True)
class DataOptions(ReadOptions):
    """How to read files that do not describe themselves. ``--data.reader`` is ``--reader``, as in training."""

    def to_dataset_config(self, path: str | tuple[str, ...], otherwise: str) -> DatasetConfig | None:
        """Return the settings of the data at ``path``; None if it is "". ``otherwise``: what is read in that case."""
        from reverie.datasets.config import DatasetConfig

        options = {option.name: getattr(self, option.name) for option in dataclasses.fields(ReadOptions)}
        unused = ", ".join(_to_flag(name) for name, value in options.items() if value)
        if unused and not path:
            raise ConfigError(f"{unused} without --data: {otherwise}.")
        return DatasetConfig(path=path, **options) if path else None


EnvChanges = str | dict[str, Any] | None
"""A replacement environment: its id, or the settings that differ."""


@dataclass(frozen=True, kw_only=True)
class EnvOverride:
    """The environment in which an agent acts."""

    env: EnvChanges = None
    """Environment to act in, with the same observations and actions as the run's environment: an id, `module:Id`, or
    the `env` settings that differ from the run's, such as '{kwargs: {load: 2.0}}', also written `--env.kwargs '{load:
    2.0}'`. None: the run's environment, and for `reverie eval` its evaluation environment (`eval_env`)."""


class Command(Protocol):
    """A dataclass whose fields are the options of a command."""

    def __call__(self) -> int | None:
        """Execute the command; return its exit code, None for 0."""


def options_for(function: Callable[..., Any], command: object) -> dict[str, Any]:
    """Return the options of ``command`` that ``function`` takes by name."""
    parameters = inspect.signature(function).parameters.values()
    names = {parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_POSITIONAL}
    return {name: value for name, value in vars(command).items() if name in names}


def run_command(kind: type[Command], args: Sequence[str], name: str) -> int:
    """Run the command of that ``name`` with ``args``; return its exit code."""
    (command,) = parse(args, name, kind)
    return command() or 0


# ---------------------------------------------------------------- options of dataclasses


class Option(NamedTuple):
    """A field that the command line sets: its dotted path, the types of its value, its default, and where it is."""

    path: str
    kinds: tuple[Any, ...]
    default: Any  # MISSING: the option is required
    owner: type
    positional: str  # the metavar of a field without a flag

    @property
    def flag(self) -> str:
        """The flag without its dashes: ``algo.batch-size``."""
        return self.path.replace("_", "-")

    @property
    def description(self) -> str:
        """The docstring below the field."""
        name = self.path.rpartition(".")[2]
        docs = (_field_docs(cls) for cls in self.owner.__mro__ if dataclasses.is_dataclass(cls))
        return next((texts[name] for texts in docs if name in texts), "")


def iter_options(part: Any, prefix: str = "") -> Iterator[Option]:
    """Yield the options of a dataclass or its class, and those of the dataclasses in its fields."""
    kind = part if isinstance(part, type) else type(part)
    hints = _type_hints(kind)
    for spec in dataclasses.fields(part):
        default, (hint, marks) = _value_of(part, spec), hints[spec.name]
        if _is_group(default):
            yield from iter_options(default, f"{prefix}{spec.name}.")
            continue
        positional = "".join(mark.metavar for mark in marks if isinstance(mark, Positional))
        kinds = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
        yield Option(prefix + spec.name, kinds, default, kind, positional)


@functools.cache
def _type_hints(kind: type) -> dict[str, tuple[Any, tuple[object, ...]]]:
    """Return the type of each field without annotations, also of its parts, and the annotations of the whole."""
    annotated = typing.get_type_hints(kind, include_extras=True)
    plain = typing.get_type_hints(kind)
    return {name: (plain[name], getattr(hint, "__metadata__", ())) for name, hint in annotated.items()}


def _value_of(part: Any, spec: dataclasses.Field[Any]) -> Any:
    """Return the value of a field in a dataclass, or its default in a class."""
    if not isinstance(part, type):
        return getattr(part, spec.name)
    return spec.default if spec.default_factory is MISSING else spec.default_factory()


def _is_group(value: Any) -> bool:
    """Return whether a value is a dataclass whose fields are options, and not written as one word."""
    is_word = isinstance(value, type | Choice | PiecewiseLinear)
    return dataclasses.is_dataclass(value) and not is_word


@functools.cache
def _field_docs(kind: type) -> dict[str, str]:
    """Return the docstrings below the fields that the body of a dataclass declares."""
    docs: dict[str, str] = {}
    with contextlib.suppress(OSError):  # a class without a file
        (tree,) = ast.parse(textwrap.dedent(inspect.getsource(kind))).body
        for node, after in itertools.pairwise(getattr(tree, "body", [])):
            if isinstance(node, ast.AnnAssign) and isinstance(after, ast.Expr):
                docs[ast.unparse(node.target)] = inspect.cleandoc(ast.literal_eval(after.value))
    return docs


# ---------------------------------------------------------------- parsing


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """Raise ConfigError, instead of printing the usage."""
        raise ConfigError(f"{message}.")


def parse(args: Sequence[str], command: str, *parts: Any) -> list[Any]:
    """Return ``parts``, dataclasses or their classes, with the values in ``args``. The first one describes the command.

    On wrong usage, print one line and exit with code 2.
    """
    values = parse_values(args, command, *parts)
    with exit_on_wrong_usage():
        return [_with_values(part, nest(changes)) for part, changes in zip(parts, values, strict=True)]


def parse_values(args: Sequence[str], command: str, *parts: Any) -> list[dict[str, Any]]:
    """Return the values in ``args`` of the options of each part, by their path: see :func:`parse`."""
    options = [[*iter_options(part)] for part in parts]
    with exit_on_wrong_usage():
        words = _split_words(args, command, parts[0].__doc__ or "", [*itertools.chain(*options)])
        return [{x.path: _read_words(x, words[x.path]) for x in group if x.path in words} for group in options]


@contextlib.contextmanager
def exit_on_wrong_usage() -> Iterator[None]:
    """Print a ConfigError, with its option as a flag, in one line, and exit with code 2."""
    try:
        yield
    except ConfigError as error:
        message = re.sub(r"^[\w.]+(?= = )", lambda match: _to_flag(match[0]), str(error))
        show(wrap_words(f"reverie: {message}", sys.stderr), sys.stderr)
        raise SystemExit(2) from None


def _with_values(part: Any, values: Mapping[str, Any], path: str = "") -> Any:
    """Return the dataclass at ``path``, or make one of its class, with nested values."""
    if isinstance(part, Config):
        return part.merge(values, path)
    changes = dict(values)
    for spec in dataclasses.fields(part):
        if spec.name in values and _is_group(old := _value_of(part, spec)):
            changes[spec.name] = _with_values(old, values[spec.name], f"{path}.{spec.name}".lstrip("."))
    return part(**changes) if isinstance(part, type) else dataclasses.replace(part, **changes)


def _split_words(
    args: Sequence[str], command: str, description: str, options: Sequence[Option]
) -> dict[str, Sequence[str] | bool]:
    """Return the words of each option by path, or the value of a flag without words; ConfigError if one is unknown."""
    parser = _make_parser(command, description, options, describe=bool({"-h", "--help"} & {*args}))
    namespace, unknown = parser.parse_known_intermixed_args(_normalize(args, options))
    if name := next((text.partition("=")[0] for text in unknown if text.startswith("-")), ""):
        flags, bare = [option.flag for option in options], name.lstrip("-")
        suggestion = f" Did you mean --{bare}?" if bare in flags else advise(bare, flags, as_flag)
        everything = f"`reverie {command} --help{'-all' * (command == 'train')}` lists all options."
        raise ConfigError(f"unknown option {name}.{suggestion} {everything}")
    if unknown:
        raise ConfigError(f"unexpected argument '{unknown[0]}'.")
    return {path: [value] if isinstance(value, str) else value for path, value in vars(namespace).items()}


def _make_parser(command: str, description: str, options: Sequence[Option], *, describe: bool) -> _Parser:
    """Return the parser of a command, with a group of options for each nested dataclass."""
    positionals = [f"[{x.positional}]" if x.default is not MISSING else x.positional for x in options if x.positional]
    parser = _Parser(
        usage=" ".join(["reverie", command, *positionals, "[OPTIONS]"]),
        description=description,
        formatter_class=lambda prog: argparse.HelpFormatter(prog, width=width(), max_help_position=26),
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    groups: dict[str, Any] = {"": parser}
    for option in options:
        title = option.path.rpartition(".")[0]
        if title not in groups:
            groups[title] = parser.add_argument_group(title)
        _add_option(groups[title], option, _help_text(option) if describe else "")
    return parser


def _add_option(group: Any, option: Option, text: str) -> None:
    """Add an option to a parser, or to a group of it."""
    flag, is_sequence = _to_flag(option.path), any(typing.get_origin(kind) is tuple for kind in option.kinds)
    if option.kinds == (bool,):
        off = re.sub(r"(--|\.)([^.]+)$", r"\1no-\2", flag)
        group.add_argument(flag, dest=option.path, action="store_true", help=text)
        group.add_argument(off, dest=option.path, action="store_false", help=argparse.SUPPRESS)
    elif option.positional:
        nargs = "*" if is_sequence else None if option.default is MISSING else "?"
        group.add_argument(option.path, metavar=option.positional, nargs=nargs, help=text)
    else:
        words: Any = {"nargs": "*" if is_sequence else None, "metavar": format_kinds(option.kinds)}
        group.add_argument(flag, dest=option.path, required=option.default is MISSING, help=text, **words)


def _help_text(option: Option) -> str:
    """Return the description of an option, its default, and the flag without which it is true."""
    default = "-" if option.default is MISSING else format_flag_value(option.default)
    off = f"; off: --no-{option.flag.rpartition('.')[2]}" if option.default is True else ""
    return (option.description + (f" (default: {default}{off})" if default != "-" else "")).replace("%", "%%")


def width() -> int:
    """Return the number of columns of a screen."""
    return min(100, shutil.get_terminal_size().columns)


def format_flag_value(value: object) -> str:
    """Format a value as the user would type it; "-" for None."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "-"
    text = value.to_text() if isinstance(value, Choice) else f"{value:g}" if isinstance(value, float) else str(value)
    return "-" if value in (None, {}) or not text else text


# ---------------------------------------------------------------- words and values


class _Loader(yaml.SafeLoader):
    """Reads 1e5 as a number, like the other flags; in YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]
)
_METAVARS = {int: "INT", float: "FLOAT", str: "TEXT", Path: "PATH", PiecewiseLinear: "POINTS", types.NoneType: "none"}


def format_kinds(kinds: Sequence[Any]) -> str:
    """Return how values of these types are written, in help and errors: ``INT|none``."""
    words: dict[str, None] = {}
    for kind in kinds:
        items = typing.get_args(kind)
        if typing.get_origin(kind) is tuple:
            words[" ".join(format_kinds([item]) for item in items if item is not Ellipsis)] = None
        elif _has_names(kind):
            words |= dict.fromkeys(map(str, items or kind.variants()))
        else:
            words[_METAVARS.get(kind, "YAML")] = None
    return "|".join(words)


def _has_names(kind: object) -> bool:
    """Return whether values of a type are written as one of several names."""
    return typing.get_origin(kind) is Literal or (isinstance(kind, type) and issubclass(kind, Choice))


def _read_words(option: Option, words: Sequence[str] | bool) -> Any:
    """Convert the words after a flag to the type of its option; ConfigError if they do not fit."""
    if isinstance(words, bool):
        return words
    kinds, text = option.kinds, " ".join(words)
    is_name = any("none" in typing.get_args(kind) for kind in kinds)  # of a Literal
    if text.lower() == "none" and types.NoneType in kinds and not is_name:
        return None
    sequence = next((kind for kind in kinds if typing.get_origin(kind) is tuple), None)
    value: Any
    if sequence is None or (str in kinds and len(words) < 2):
        value = _read_word(text, kinds, option.path)
    else:
        value = [_read_word(item, typing.get_args(sequence)[:1], option.path) for item in words]
    try:
        return coerce(value, typing.Union[kinds], option.path)  # noqa: UP007  # of types known at run time
    except ConfigError:
        if sequence is None and (not isinstance(value, str) or any(map(_has_names, kinds))):
            raise  # the error is specific
    numbers = text.strip("()[]").replace(",", " ").split()
    example = f", as in {_to_flag(option.path)} {' '.join(numbers)}" if "," in text else ""
    separated = "" if sequence is None else f", separated by spaces{example}"
    raise ConfigError(f"{option.path} = {text}: expected {format_kinds(kinds)}{separated}.")


def _read_word(text: str, kinds: Sequence[Any], path: str) -> Any:
    """Return ``text`` as a path, as YAML or unchanged, by the types that its value may have."""
    if Path in kinds:
        check_local(text, path)
        return Path(text)
    if int in kinds:
        with contextlib.suppress(ValueError):
            return int(text)
    mappings = [kind for kind in kinds if typing.get_origin(kind) is dict]
    if not (has_mapping := bool(mappings)) and PiecewiseLinear not in kinds:
        return text
    has_names = has_mapping and typing.get_args(mappings[0])[1] == ColumnNames
    loader: type[yaml.BaseLoader] | type[_Loader] = yaml.BaseLoader if has_names else _Loader  # 0.10 is a name
    try:
        value = yaml.load(text, loader)
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} = {text} is not YAML: {' '.join(str(error).split())}.") from None
    if has_mapping and isinstance(value, str) and all("=" in pair for pair in value.split(",")):
        pairs = (pair.partition("=") for pair in value.split(","))
        value = {name.strip(): yaml.load(number, loader) for name, _, number in pairs}
    return value if isinstance(value, dict) or str not in kinds else text


def _normalize(args: Sequence[str], options: Sequence[Option]) -> list[str]:
    """Return the words with ``-`` for ``_`` in flags, ``--env.KEY VALUE`` as a part of ``--env``, and negative numbers.

    Training calls ``--columns`` of other commands ``--data.columns``: they know it by this name, too.
    """
    flags = {option.flag for option in options}
    replaced = [option.flag for option in options if option.kinds == typing.get_args(EnvChanges)]
    words, rest, changes = iter(args), list[str](), dict[str, Any]()
    for arg in words:
        name, equals, value = arg.partition("=")
        head, _, key = name.replace("_", "-").removeprefix("--").partition(".")
        if not name.startswith("--"):
            is_negative = re.fullmatch(r"-[\d.]+(e[-+]?\d+)?|-inf", arg, re.IGNORECASE)
            rest.append(f" {arg}" if is_negative else arg)  # argparse takes -1e3 for a flag
        elif head not in replaced:
            is_reading = head == "data" and key.removeprefix("no-") in flags
            name = f"--{key}" if is_reading else name
            rest.append(name.replace("_", "-") + equals + value)
        else:
            changes |= _read_env_change(name, key, value if equals else next(words, ""))
    if not changes:
        return rest
    text = changes["id"] if changes.keys() == {"id"} else yaml.safe_dump(changes, default_flow_style=True)
    return [*rest, f"--{replaced[0]}={text}"]


def _read_env_change(flag: str, key: str, text: str) -> dict[str, Any]:
    """Return the settings of an environment in ``text``, or the one called ``key``."""
    try:
        content = yaml.load(text, _Loader)
    except yaml.YAMLError:
        raise ConfigError(f"{flag} {text}: expected YAML in one argument, such as '{{load: 2.0}}'.") from None
    return content if not key and isinstance(content, dict) else {key.replace("-", "_") or "id": content}


def _to_flag(name: str) -> str:
    """Return ``--eval-envs`` for ``eval_envs``."""
    return f"--{name.replace('_', '-')}"


def iter_flags(args: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag, with ``-`` for ``_`` and without its first ``--``, and the words after it up to the next one."""
    for i, arg in enumerate(args):
        if arg.startswith("--"):
            flag, equals, value = arg.partition("=")
            rest = itertools.takewhile(lambda text: not text.startswith("--"), args[i + 1 :])
            yield flag.removeprefix("--").replace("_", "-"), [value] if equals else [*rest]


def remove_flags(args: Sequence[str], flags: Container[str]) -> list[str]:
    """Return ``args`` without these flags, named as by :func:`iter_flags`, and without their words."""
    rest, drop = [], False
    for arg in args:
        if arg.startswith("--"):
            drop = arg.partition("=")[0].removeprefix("--").replace("_", "-") in flags
        rest += [] if drop else [arg]
    return rest
