"""Parse the arguments of every command with tyro, and print its errors on one line."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import itertools
import re
import sys
import typing
from collections.abc import Callable, Container, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from reverie.core.bounds import PiecewiseLinear, ScheduledFloat, WeightByPattern
from reverie.core.config import Choice, coerce
from reverie.core.errors import ConfigError, suggest_names
from reverie.core.files import check_local
from reverie.core.logger import wrap_words

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.datasets.dataset import DatasetConfig

registry: ConstructorRegistry = ConstructorRegistry()


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrustOption:
    """An option of commands that read module names from files. ``main`` applies it."""

    trust_code: bool = False
    """Import modules that files of a run, settings or a dataset name and that belong to no installed package, such as a
    module in the current folder. This runs their code."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class ReadingOptions:
    """How to read files that do not describe themselves completely."""

    reader: str = ""
    """Class that reads a custom format, module:Class or module:Class(setting=value). Empty: detect the format."""
    columns: dict[str, str | tuple[str, ...]] = dataclasses.field(default_factory=dict)
    """Column names of tables, '{obs: state, action: action, reward: reward, terminal: done}'; several columns that form
    one vector are a list, '{obs: [x, y], ...}'."""
    classes: dict[str, int | tuple[int, ...]] = dataclasses.field(default_factory=dict)
    """Categorical observations in files that do not declare them, with the number of classes: image=11."""
    max_episode_steps: int | None = None
    """Steps after which episodes are truncated, for D4RL files and tables that do not mark truncations."""
    partial: bool = False
    """RL Unplugged: use the readable part of truncated shards."""

    def to_dataset_config(self, path: str | tuple[str, ...], otherwise: str) -> DatasetConfig | None:
        """Return the settings of the data at ``path``; None if it is "". ``otherwise``: what is read then."""
        from reverie.datasets.dataset import DatasetConfig

        options = {field.name: getattr(self, field.name) for field in dataclasses.fields(ReadingOptions)}
        unused = ", ".join(f"--{name.replace('_', '-')}" for name, value in options.items() if value)
        if unused and not path:
            raise ConfigError(f"{unused} without --data: {otherwise}.")
        return DatasetConfig(path=path, **options) if path else None


EnvChanges = str | dict[str, Any] | None
"""A replacement environment: its id, or the settings that differ."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class EnvOverride:
    """The environment in which an agent acts."""

    env: EnvChanges = None
    """Environment to act in, with the same observations and actions as the run's environment: an id, `module:Id`, or
    the `env` settings that differ from the run's, such as '{kwargs: {load: 2.0}}', also written `--env.kwargs '{load:
    2.0}'`. None: the run's environment, and for `reverie eval` its evaluation environment (`eval_env`)."""


def _merge_env_flags(args: list[str], flag: str) -> list[str]:
    """Return ``args`` with the ``--env.KEY VALUE`` among them in the mapping of ``--env``, if that is the ``flag``."""
    words, rest, changes = iter(args), list[str](), dict[str, Any]()
    for arg in words:
        name, equals, value = arg.partition("=")
        head, _, key = name.replace("_", "-").partition(".")
        if not flag or head != flag:
            rest.append(arg)
            continue
        text = value if equals else next(words, "")
        try:
            content = yaml.load(text, _Loader)
        except yaml.YAMLError:
            raise ConfigError(f"{name} {text}: expected YAML in one argument, such as '{{load: 2.0}}'.") from None
        changes |= content if not key and isinstance(content, dict) else {key.replace("-", "_") or "id": content}
    return [*rest, f"{flag}={yaml.safe_dump(changes, default_flow_style=True)}"] if changes.keys() - {"id"} else args


def _rename_reading_flags(arg: str) -> str:
    """Translate the names that training gives to reading options, such as ``--data.max-episode-steps``."""
    names = ("reader", "columns", "classes", "max-episode-steps", "max_episode_steps", "partial", "no-partial")
    flag = arg.partition("=")[0]
    return arg.replace("--data.", "--", 1) if flag in {f"--data.{name}" for name in names} else arg


def paragraphs(text: str) -> str:
    """Return a docstring with the lines of each paragraph joined."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


# tyro (1.0) breaks the help of an option at each indented line of its docstring, in mid-sentence. The function is
# private: if it is missing or unused, only the layout of the help differs.
if hasattr(_strings := getattr(tyro, "_strings", None), "remove_single_line_breaks"):
    _strings.remove_single_line_breaks = paragraphs  # type: ignore[union-attr]


def parse(kind: Any, args: list[str], command: str, default: Any = None, changes: str = "") -> Any:
    """Parse ``args`` as a ``kind``.

    On wrong usage, print one line and exit with code 2. ``changes``: the flag of ``_merge_env_flags``.
    """
    defaults = {} if default is None else {"default": default}
    messages = io.StringIO()
    try:
        with contextlib.redirect_stderr(messages):
            return tyro.cli(
                kind, args=_merge_env_flags(args, changes), prog=f"reverie {command}", registry=registry, **defaults
            )
    except ConfigError as error:
        message = re.sub(r"^\w+(?= = )", lambda match: _to_flag(match[0]), str(error))
    except SystemExit as stop:
        if not stop.code:
            raise
        every = f" `reverie {command} --help{'-all' * (command == 'train')}` lists all options."
        message = shorten_tyro_error(
            messages.getvalue(), [*dataclass_flags(kind if default is None else default)], every
        )
    print(wrap_words(f"reverie: {message}", sys.stderr), file=sys.stderr)
    raise SystemExit(2)


class Command(Protocol):
    """A dataclass whose fields are the options of a command."""

    def __call__(self) -> int | None:
        """Execute the command; return its exit code, None for 0."""


def run_command(kind: type[Command], args: list[str], name: str) -> int:
    """Run the command of that ``name`` with ``args``; return its exit code."""
    return parse(kind, [_rename_reading_flags(arg) for arg in args], name, changes="--env")() or 0


def _to_flag(name: str) -> str:
    """Return ``--eval-envs`` for ``eval_envs``."""
    return f"--{name.replace('_', '-')}"


WRONG_VALUES = re.compile(
    r"Error parsing (--[\w.-]+): (?:Could not find valid parse for arguments:|no type matching (.*) could be "
    r"instantiated from) \[(.*)\]"
)
"""What tyro writes about words that an option of several values does not read."""


def shorten_tyro_error(box: str, flags: list[str], every: str) -> str:
    """Return the message in tyro's box. For an unknown option, suggest similar ``flags``."""
    box = re.sub(r"\x1b\[[\d;]*m", "", box)  # on a terminal it is colored
    lines = [line.strip("│| ") for line in box.strip().splitlines()[1:]]  # below the title, which can be underlined
    words = [line if set(line) - set("─-╰╯+") else "" for line in lines]
    text = " ".join(itertools.takewhile(bool, itertools.dropwhile(lambda line: not line, words)))
    if unknown := re.match(r"Unrecognized options: ([^\s,]+)", text):
        option = unknown[1].partition("=")[0]
        name = option.lstrip("-").replace("_", "-")
        near = [name] if name in flags else suggest_names(name, flags)
        suggestion = f" Did you mean {' or '.join(map(_to_flag, near))}?" if near and option.startswith("-") else ""
        return f"unknown option {option}.{suggestion}{every}"
    if wrong := WRONG_VALUES.match(text):
        flag, values = wrong[1], wrong[3].replace("'", "")
        kinds = re.sub("[{}]", "", wrong[2] or "values of its type")
        example = f", as in {flag} {' '.join(values.split(','))}" if "," in values else ""
        return f"{flag} = {values}: expected {kinds}, separated by spaces{example}.{every}"
    text = re.sub(r"^Error parsing (?:experiment\.?|common\.?)?([\w.-]*): ([\w.]+) = ", _rewrite_parse_error, text)
    return text if text.endswith((".", "?")) else f"{text}."


def _rewrite_parse_error(match: re.Match[str]) -> str:
    """Return ``--env.num = `` for tyro's ``Error parsing env: num = `` or ``Error parsing env: env.num = ``."""
    prefix, name = match.groups()
    if prefix.startswith("--"):
        return f"{prefix} = "
    whole_command = not (prefix[:1].islower() or prefix.startswith("-"))
    return f"{_to_flag(name if whole_command or name.startswith(f'{prefix}.') else f'{prefix}.{name}')} = "


def iter_flags(args: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag, with ``-`` for ``_`` and without its first ``--``, and the words after it up to the next one."""
    for i, arg in enumerate(args):
        if arg.startswith("--"):
            flag, equals, value = arg.partition("=")
            rest = itertools.takewhile(lambda text: not text.startswith("--"), args[i + 1 :])
            yield flag.removeprefix("--").replace("_", "-"), [value] if equals else [*rest]


def str_or_tuple(words: Sequence[str]) -> str | tuple[str, ...]:
    """Return one word, or several words as a tuple; "" if there is none."""
    return tuple(words) if len(words) > 1 else "".join(words)


def remove_flags(args: list[str], flags: Container[str]) -> list[str]:
    """Return ``args`` without these flags, named as by :func:`iter_flags`, and without their words."""
    rest, drop = [], False
    for arg in args:
        if arg.startswith("--"):
            drop = arg.partition("=")[0].removeprefix("--").replace("_", "-") in flags
        rest += [] if drop else [arg]
    return rest


def dataclass_flags(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the flags that set the fields of a dataclass or its class; `common` and `experiment` give no prefix."""
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        part = getattr(value, field.name, None)
        if dataclasses.is_dataclass(part) and not isinstance(part, Choice | PiecewiseLinear):  # written as one word
            top = not prefix and field.name in ("common", "experiment")
            yield from dataclass_flags(part, "" if top else f"{prefix}{field.name}.".replace("_", "-"))
        else:
            yield f"{prefix}{field.name}".replace("_", "-")


# ---------------------------------------------------------------- words that tyro does not read


def _word_constructor(
    metavar: str, read: Callable[[str], Any], write: Callable[[Any], str], kind: Any, none: bool = False
) -> Any:
    """Return the tyro constructor that reads a value from one argument.

    With ``none``, the word ``none`` is parsed as None.
    """

    def from_word(words: list[str]) -> Any:
        if none and words[0].lower() == "none":
            return None
        try:
            return read(words[0])
        except (ConfigError, yaml.YAMLError) as error:
            why = str(error) if isinstance(error, ConfigError) else f"{words[0]!r} is not YAML: {error}"
            raise ValueError(why) from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar=f"none|{metavar}" if none else metavar,
        instance_from_str=from_word,
        is_instance=lambda value: (isinstance(value, kind) and value is not True) or (none and value is None),
        str_from_instance=lambda value: ["none" if value is None else write(value)],
    )


@registry.primitive_rule
def _whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Accept integers written as 1e5."""

    def read(text: str) -> int:
        with contextlib.suppress(ValueError):
            return int(text)
        with contextlib.suppress(ValueError):
            if float(text).is_integer():  # infinity is not
                return int(float(text))
        raise ValueError(f"{text} is not a whole number")

    return _word_constructor("INT", read, str, int) if info.type is int else None


@registry.primitive_rule
def _local_path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path | None] | None:
    """Reject URLs as paths: ``pathlib`` would create folders with names such as 's3:'."""

    def read(text: str) -> Path:
        check_local(text, "path")
        return Path(text)

    is_path = info.type in (Path, Path | None)
    return _word_constructor("PATH", read, str, Path, info.type is not Path) if is_path else None


@registry.primitive_rule
def choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Choice | None] | None:
    """Accept a ``Choice`` written as text, such as 'td_lambda(0.9)', or 'none' if it is optional."""
    options = typing.get_args(info.type) or (info.type,)
    kind, optional = options[0], options[1:] == (type(None),)
    if not (isinstance(kind, type) and issubclass(kind, Choice) and (optional or len(options) == 1)):
        return None
    return _word_constructor("|".join(kind.variants()), kind.parse, lambda value: value.to_text(), kind, optional)  # type: ignore[no-any-return]


class _Loader(yaml.SafeLoader):
    """Reads 1e5 as a number, like the other flags; in YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]
)


@registry.primitive_rule
def _parse_schedule(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[ScheduledFloat] | None:
    """Accept a schedule over env steps written as points: '[[0, 0], [1e4, 3e-4]]'."""

    def read(text: str) -> ScheduledFloat:
        with contextlib.suppress(ValueError):
            return float(text)
        return PiecewiseLinear.from_points(yaml.load(text, _Loader), "points")

    return (
        _word_constructor("FLOAT|POINTS", read, str, int | float | PiecewiseLinear)
        if info.type == ScheduledFloat
        else None
    )


@registry.primitive_rule
def weights(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[WeightByPattern] | None:
    """Accept one number, or several by regular expression: '{camera: 0.5, "joints/.*": 10}'."""

    def read(text: str) -> WeightByPattern:
        return coerce(yaml.load(text, _Loader), WeightByPattern, "weights")  # type: ignore[no-any-return]

    return _word_constructor("FLOAT|YAML", read, str, int | float | dict) if info.type == WeightByPattern else None


@registry.primitive_rule
def _yaml_mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Accept mappings, such as environment arguments, as YAML, '{continuous: true}', or as continuous=true."""

    def read(text: str) -> dict[str, Any]:
        value = yaml.load(text, _Loader)
        if isinstance(value, str) and all("=" in pair for pair in value.split(",")):
            pairs = (pair.partition("=") for pair in value.split(","))
            value = {name.strip(): yaml.load(number, _Loader) for name, _, number in pairs}
        if not isinstance(value, dict):
            raise ValueError(f"{text!r} is not a mapping such as '{{name: value}}'")
        return value

    def write(value: dict[str, Any]) -> str:
        return yaml.safe_dump(value, default_flow_style=True).strip()

    return _word_constructor("YAML", read, write, dict) if typing.get_origin(info.type) is dict else None


@registry.primitive_rule
def _env_changes(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[EnvChanges] | None:
    """Accept an environment as its id, or as YAML of the settings that differ."""

    def read(text: str) -> str | dict[str, Any]:
        value = yaml.load(text, _Loader)
        return value if isinstance(value, dict) else text

    def write(value: str | dict[str, Any]) -> str:
        return value if isinstance(value, str) else yaml.safe_dump(value, default_flow_style=True).strip()

    return _word_constructor("ID|YAML", read, write, str | dict, none=True) if info.type == EnvChanges else None
