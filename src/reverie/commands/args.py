"""Parse arguments and print messages, the same way for every command."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import re
import sys
import typing
from collections.abc import Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro
import yaml
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from reverie.core.config import Choice
from reverie.core.errors import ConfigError
from reverie.core.files import check_local
from reverie.core.near_names import near_names
from reverie.core.words import plural

if TYPE_CHECKING:  # it imports torch, which --help does not need
    from reverie.run.evaluate import Evaluation

registry = ConstructorRegistry()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trusting:
    """An option of the commands that read names of modules from files. ``cli.main`` obeys it."""

    trust: bool = False
    """Import modules that the files of a run or of data name and no installed package has, such as one in the current
    folder: this runs their code."""


def paragraphs(text: str) -> str:
    """Return a docstring with the lines of each paragraph joined."""
    return "\n\n".join(" ".join(part.split()) for part in re.split(r"\n\s*\n", text))


# tyro (1.0) breaks the help of an option at each indented line of its docstring, in mid-sentence. The function is
# private: where it is missing or unused, only the layout of the help differs.
if hasattr(strings := getattr(tyro, "_strings", None), "remove_single_line_breaks"):
    strings.remove_single_line_breaks = paragraphs  # type: ignore[union-attr]


def parse(kind: Any, args: list[str], command: str, default: Any = None) -> Any:
    """Parse ``args`` as a ``kind``. On wrong usage, print the error and exit with 2.

    A flag that is given twice with different values is an error, as tyro would take the last. tyro explains words that
    it cannot parse. Values that a config refuses are reported as reverie's other errors are, by the names of their
    flags.
    """
    if (contrary := contradicting(args)) is not None:
        raise SystemExit(fail(contrary, 2))
    given = {} if default is None else {"default": default}
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            value = tyro.cli(kind, args=args, prog=f"reverie {command}", registry=registry, **given)
    except (ConfigError, SystemExit) as error:
        causes = list(_causes(error))
        refused = next((cause for cause in causes if isinstance(cause, ConfigError)), None)
        if refused is None:
            sys.stderr.write(said.getvalue())
            raise
        raise SystemExit(fail(_told(str(refused), causes, default), 2)) from None
    sys.stderr.write(said.getvalue())
    return value


def _told(message: str, causes: list[BaseException], default: Any) -> str:
    """Return the message of a refused value with the name of its flag, which tyro knows."""
    found = [arg for cause in causes if (arg := getattr(cause, "arg", None)) is not None]
    for arg in found:
        if lowered := getattr(arg, "lowered", None):  # a single flag is responsible
            return re.sub(r"^\w+ = ", f"{lowered.name_or_flags[-1]} = ", message)
    place = next((arg for arg in found if isinstance(arg, str)), "")  # the name of a dataclass
    return by_flags(message, place.removeprefix("experiment").strip("."), set(flags_of(default)))


def flags_in(args: list[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each flag, with ``-`` for ``_`` and without its first ``--``, and the words after it up to the next one."""
    for i, word in enumerate(args):
        if word.startswith("--"):
            flag, equals, value = word.partition("=")
            rest = args[i + 1 :]
            end = next((j for j, other in enumerate(rest) if other.startswith("--")), len(rest))
            yield flag.removeprefix("--").replace("_", "-"), [value] if equals else rest[:end]


def affirmed(name: str) -> str:
    """Return the flag ``tensorboard`` for ``no-tensorboard``, which sets the same option."""
    return re.sub(r"(^|\.)no-(?=[^.]+$)", r"\1", name)


def contradicting(args: list[str]) -> str | None:
    """Return the error message if a flag is given twice with different values; None otherwise."""
    said: dict[str, str] = {}
    for name, words in flags_in(args):
        text = " ".join([f"--{name}", *words])
        if (first := said.setdefault(affirmed(name), text)) != text:
            return f"{first} and {text} contradict each other: both set the same option. Set only one of them."
    return None


def unknown_option(args: list[str], default: Any) -> str | None:
    """Return the error message for the first word that looks like a flag and is none, with the flags it may mean."""
    known = [*flags_of(default)]
    for word in args:
        name = affirmed(word.partition("=")[0].lstrip("-").replace("_", "-"))
        if (word.startswith("--") and name not in (*known, "help")) or re.match(r"-[A-Za-z]{2}", word):
            near = [name] if name in known else near_names(name, known)
            meant = f" Did you mean {' or '.join(f'--{flag}' for flag in near)}?" if near else ""
            return f"unknown option {word.partition('=')[0]}.{meant}"
    return None


def flags_of(value: Any, prefix: str = "") -> Iterator[str]:
    """Yield the flags that set the fields of a dataclass; its parts `common` and `experiment` give no prefix."""
    for field in dataclasses.fields(value) if dataclasses.is_dataclass(value) else ():
        part = getattr(value, field.name)
        if dataclasses.is_dataclass(part) and not isinstance(part, Choice):  # a Choice is written as one word
            top = not prefix and field.name in ("common", "experiment")
            yield from flags_of(part, "" if top else f"{prefix}{field.name}.".replace("_", "-"))
        else:
            yield f"{prefix}{field.name}".replace("_", "-")


def by_flags(message: str, place: str = "", known: Collection[str] = ()) -> str:
    """Rewrite a config's ``name = value`` as ``--place.name = value``, if that is among the ``known`` flags."""

    def flag(found: re.Match[str]) -> str:
        name = found[1] if not place or found[1].startswith(f"{place}.") else f"{place}.{found[1]}"
        name = name.replace("_", "-")
        return f"--{name} = " if not known or name in known else found[0]

    return re.sub(r"(?<![\w.(-])([a-z]\w*(?:\.\w+)*) = ", flag, message)


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield ``error`` and the errors that led to it."""
    following: BaseException | None = error
    while following is not None:
        yield following
        following = following.__cause__ or following.__context__


def fail(message: str, code: int) -> int:
    """Print a message on stderr and return ``code``."""
    print(f"reverie: {message}", file=sys.stderr)
    return code


def score_line(evaluation: Evaluation) -> str:
    """Format mean, interquartile mean with its interval, and spread of an evaluation."""
    metrics, scores, middle = evaluation.metrics(), evaluation.scores, evaluation.iqm()
    episodes = plural(len(scores), "episode")
    logged = [f"\n  {name} {value:.4g}" for name, value in evaluation.info_means().items()]
    sure = f"95 % {middle.low:.2f} to {middle.high:.2f}" if middle.sure else "too few episodes for an interval"
    return (
        f"mean return {metrics['eval/score']:.2f} (IQM {middle.value:.2f}, {sure}) over {episodes}\n"
        f"  median {metrics['eval/score_median']:.2f}, std {metrics['eval/score_std']:.2f}, "
        f"min {min(scores):.2f}, max {max(scores):.2f}; mean length {metrics['eval/length']:.1f}" + "".join(logged)
    )


def print_files(files: Mapping[str, Path] | Iterable[tuple[str, Path]]) -> None:
    """Print the files that were written."""
    named = list(files.items() if isinstance(files, Mapping) else files)
    width = max([14, *(len(what) for what, _ in named)]) + 2
    for what, path in named:
        print(f"  {what + ':':<{width}}{path}")


def as_given(files: Mapping[str, Path], run: Path | None) -> dict[str, Path]:
    """Return ``files`` of a run relative to the working folder, unless ``run`` was given by an absolute path."""
    if run is not None and run.is_absolute():
        return dict(files)
    here = Path.cwd()
    return {what: path.relative_to(here) if path.is_relative_to(here) else path for what, path in files.items()}


def print_sections(sections: Mapping[str, Iterable[tuple[str, ...]]]) -> None:
    """Print titles with the lines below them, as they are: brackets in them are no markup of Rich."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, padding=(0, 2))
    for title, lines in sections.items():
        if lines:
            table.add_row(Text(title, style="bold"))
        for line in lines:
            table.add_row(*line)
    Console(markup=False, emoji=False).print(table)


def print_trouble(device: str) -> None:
    """Say why there are no compiled kernels, if the device is a CPU, where they are missed."""
    from reverie.core.compiler import trouble  # torch comes with it

    if device == "cpu" and trouble():
        print(trouble())


@registry.primitive_rule
def whole_number(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[int] | None:
    """Let whole numbers be written as 1e5."""
    if info.type is not int:
        return None

    def read(words: list[str]) -> int:
        try:
            return int(words[0])
        except ValueError:
            with contextlib.suppress(ValueError, OverflowError):  # 1e5; infinity is refused
                if float(words[0]) == int(float(words[0])):
                    return int(float(words[0]))
        raise ValueError(f"{words[0]} is not a whole number")

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="INT",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, int) and not isinstance(value, bool),
        str_from_instance=lambda value: [str(value)],
    )


@registry.primitive_rule
def local_path(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Path | None] | None:
    """Refuse URLs as paths: ``pathlib`` would make folders of them, with names such as 's3:'."""
    if info.type not in (Path, Path | None):
        return None
    optional = info.type is not Path

    def read(words: list[str]) -> Path | None:
        if optional and words[0].lower() == "none":
            return None
        try:
            check_local(words[0], "path")
        except ConfigError as error:
            raise ValueError(str(error)) from error
        return Path(words[0])

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="none|PATH" if optional else "PATH",
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, Path) or (optional and value is None),
        str_from_instance=lambda value: ["none" if value is None else str(value)],
    )


@registry.primitive_rule
def choice(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Choice | None] | None:
    """Let a ``Choice`` be written as text, such as 'td_lambda(0.9)', or 'none' if it is optional."""
    options = typing.get_args(info.type) or (info.type,)
    kind, optional = options[0], options[1:] == (type(None),)
    if not (isinstance(kind, type) and issubclass(kind, Choice) and (optional or len(options) == 1)):
        return None

    def read(words: list[str]) -> Choice | None:
        if optional and words[0].lower() == "none":
            return None
        try:
            return kind.parse(words[0])
        except ConfigError as error:
            raise ValueError(str(error)) from error

    return PrimitiveConstructorSpec(
        nargs=1,
        metavar="|".join((["none"] if optional else []) + [*kind.kinds()]),
        instance_from_str=read,
        is_instance=lambda value: isinstance(value, kind) or (optional and value is None),
        str_from_instance=lambda value: ["none" if value is None else value.text()],
    )


class _Loader(yaml.SafeLoader):
    """Reads 1e5 as a number, as the other flags do; to YAML 1.1 it is text."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+$"), [*"-+.0123456789"]
)


@registry.primitive_rule
def yaml_mapping(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[dict[str, Any]] | None:
    """Let mappings, such as arguments of an environment, be written as YAML: '{continuous: true}'."""
    if typing.get_origin(info.type) is not dict:
        return None

    def read(words: list[str]) -> dict[str, Any]:
        try:
            value = yaml.load(words[0], _Loader)
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
