"""``reverie data info | validate`` for recorded datasets of any format."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, fail, print_sections
from reverie.core.words import plural
from reverie.datasets.formats import Format

if TYPE_CHECKING:  # these import torch, which --help does not need
    from reverie.datasets.output import Exported
    from reverie.datasets.reader import About, Reader, ReadOptions
    from reverie.datasets.summary import Summary

Place = Annotated[Positional[str], arg(metavar="PATH")]

SHOWN = 20
"""Most remarks that a report prints."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How to read files that do not describe themselves completely."""

    reader: str = ""
    """Class that reads a format of your own, module:Class or module:Class(setting=value). Empty: the format is
    detected."""
    columns: dict[str, str | tuple[str, ...]] = field(default_factory=dict)
    """Column names of tables, '{obs: state, action: action, reward: reward, terminal: done}'; several columns that form
    one vector are a list, '{obs: [x, y], ...}'."""
    time_limit: int | None = None
    """Steps after which episodes are truncated, for D4RL files and tables that do not mark truncations."""
    partial: bool = False
    """RL Unplugged: use the readable part of shards that are cut off."""

    @property
    def options(self) -> ReadOptions:
        """Options of the readers."""
        from reverie.datasets.reader import ReadOptions

        return ReadOptions(
            reader=self.reader, columns=dict(self.columns), time_limit=self.time_limit, partial=self.partial
        )

    def given(self) -> str:
        """Return the flags of the options that are set, for messages; "" if none is."""
        return ", ".join(f"--{name.replace('_', '-')}" for name, value in asdict(self).items() if value)


def as_here(word: str) -> str:
    """Translate training's names of reading options, which remarks and errors use too: ``--data.time-limit``."""
    names = ("reader", "columns", "time-limit", "time_limit", "partial", "no-partial")
    flag = word.partition("=")[0]
    return word.replace("--data.", "--", 1) if flag in {f"--data.{name}" for name in names} else word


@dataclass(frozen=True, kw_only=True)
class Source(Trusting, Reading):
    """The dataset to read."""

    path: Place
    """File, folder or glob of any format, run folder, or minari:NAME."""

    def open(self) -> Reader:
        """Open the dataset."""
        from reverie.datasets.detect import open_reader

        return open_reader(self.path, self.options)


@dataclass(frozen=True, kw_only=True)
class InfoCommand(Source):
    """Describe a dataset, a run or a replay store."""

    plot: Path | None = None
    """Draw returns and lengths of the episodes and the distribution of actions to this PNG file."""


@dataclass(frozen=True, kw_only=True)
class ValidateCommand(Source):
    """Check recorded episodes against rules. The exit code is 1 if any is broken."""

    quarantine: str | None = None
    """Write the good episodes to a new dataset: a folder that does not exist yet, or minari:NAME."""
    to: Format = "minari"
    """Format of that dataset."""
    replay: int = 3
    """Number of episodes to replay in the environment that the data name, to compare, if the data hold their seeds."""


# ---------------------------------------------------------------- info


def dataset_info(said: InfoCommand) -> int:
    """Print what a dataset holds."""
    from reverie.datasets.dataset import shown
    from reverie.datasets.summary import summarise

    with said.open() as reader:
        about = reader.about()
        with shown(f"reading {reader.path.name}", reader.rows()) as counted:
            summary = summarise(counted(reader.as_recorded()), about.action)
        print_sections(dataset_sections(reader, about, summary))
    if said.plot is not None:
        draw(said.plot, summary, reader.path.name)
    return 0


def draw(png: Path, summary: Summary, title: str) -> None:
    """Draw ``summary`` and print the file's path."""
    from reverie.core.files import writing
    from reverie.log.dataset_plot import dataset_plot

    uses = {use.name: use.counts for use in summary.actions if use.counts.size}
    ranges = {use.name: use.axis for use in summary.actions if use.axis is not None}
    with writing(png):
        dataset_plot(png, summary.scores, summary.lengths, uses, ranges, title)
    print(f"  plot: {png}")


def dataset_sections(reader: Reader, about: About, summary: Summary) -> dict[str, list[tuple[str, str]]]:
    """Return the lines of ``info`` by section."""
    import numpy as np

    from reverie.datasets.episodes import mostly_stepless
    from reverie.datasets.summary import histogram

    episodes = len(summary.scores)
    steps = sum(summary.lengths)
    found: dict[str, list[tuple[str, str]]] = {
        "dataset": [("path", str(reader.path)), ("format", reader.format), *about.text.items()],
        "wrong": [("", wrong)] if (wrong := mostly_stepless(summary.rows, summary.stepless)) else [],
        "not finite": summary.broken_lines(),
        "spaces": [("observation", short(about.observation)), ("action", short(about.action))],
        "episodes": [("number", f"{episodes:,} with {plural(steps, 'step')}")],
    }
    if about.env:
        found["dataset"].append(("environment", about.env))
    if about.measured:
        found["spaces"].append(("", "not declared: inferred from the recorded actions"))
    if episodes:
        scores, lengths = np.asarray(summary.scores), np.asarray(summary.lengths)
        ends = f"{summary.terminal:,} terminal, {episodes - summary.terminal:,} truncated"
        low, high = summary.rewards
        found["episodes"] += [
            ("ends", ends),
            ("steps", f"mean {lengths.mean():.1f}, {lengths.min():,} to {lengths.max():,}"),
            ("reward", f"{low:.4g} to {high:.4g}"),
            ("return", f"mean {scores.mean():.2f}, std {scores.std():.2f}, {scores.min():.2f} to {scores.max():.2f}"),
            *(("", line) for line in histogram(summary.scores)),
        ]
        found["actions"] = [(use.name, use.words()) for use in summary.actions]
    found["remarks"] = [("", remark) for remark in reader.remarks()]
    return found


def short(space: object) -> str:
    """Format a space in at most 160 characters."""
    text = " ".join(str(space).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


# ---------------------------------------------------------------- validate


def dataset_validate(said: ValidateCommand) -> int:
    """Print what breaks a rule and, if asked for, write the good episodes elsewhere."""
    from reverie.datasets.convert import good, validate, write
    from reverie.datasets.output import check_target

    with said.open() as reader:
        if said.quarantine is not None:
            check_target(said.quarantine, said.to)
        report = validate(reader, said.replay)
        for finding in report.findings.values():
            print(f"wrong    {finding}")
        for remark in report.remarks[:SHOWN]:
            print(f"remark   {remark}")
        verdict = "sound" if report.sound else f"{len(report.bad):,} bad"
        print(f"{plural(report.rows, 'row')} in {plural(report.episodes, 'episode')}: {verdict}")
        if said.quarantine is None:
            return 0 if report.sound else 1
        if len(report.bad) == report.episodes:
            return fail("every episode breaks a rule: nothing was written.", 1)
        done = write(reader, said.quarantine, said.to, good(report))
        for remark in sorted(set(reader.remarks()) - set(report.remarks)):
            print(f"remark   {remark}")
        tell(done)
    return 0 if report.sound else 1


def tell(done: Exported) -> None:
    """Print what was written."""
    print(f"{plural(done.episodes, 'episode')} with {plural(done.steps, 'step')}: {done.path}")
