"""``reverie data``: describe, validate, convert, record and download datasets, including runs and replay stores."""

from __future__ import annotations

import contextlib
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from reverie.cli.agent import RunOptions
from reverie.cli.main import print_error
from reverie.cli.output import print_sections
from reverie.cli.parsing import Command, EnvOverride, Positional, TrustOption, run_command
from reverie.core.bounds import AtLeast, Within
from reverie.core.errors import ConfigError, count_noun, did_you_mean
from reverie.core.progress import progress_bars
from reverie.core.terminal import show
from reverie.datasets.options import ReadOptions, RecordConfig, Subset

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.datasets.output import WriteReport
    from reverie.datasets.reader import DatasetInfo, Reader, Space
    from reverie.datasets.summary import ActionStatistics, Summary
    from reverie.store.store import ReplayStore

Format = Literal["auto", "minari", "d4rl", "parquet", "robomimic", "lerobot", "tianshou", "pydreamer", "store"]
MAX_PARTS = 12
"""Maximum number of observations, or of parts of an action, that ``data info`` lists."""
NUM_BARS = 30
"""Number of bars of a histogram of returns, and length of the longest bar of classes."""
MAX_REMARKS = 20
"""Maximum number of remarks that a report prints."""


@dataclass(frozen=True, kw_only=True)
class DatasetCommand(TrustOption, ReadOptions):
    """The dataset to read."""

    path: Annotated[str, Positional("PATH")]
    """File, folder or glob of any format, run folder, folder or URL of a replay store, minari:NAME or ogbench:NAME."""

    def open(self) -> Reader:
        """Open the dataset."""
        from reverie.datasets.format_detection import open_reader

        return open_reader(self.path, self)


@dataclass(frozen=True, kw_only=True)
class DataInfoCommand(DatasetCommand):
    """Describe a dataset, a run or a replay store."""

    plot: Path | None = None
    """Draw returns and lengths of the episodes and the distribution of actions to this PNG file."""
    figure: Path | None = None
    """Draw frames of the first episodes to this PNG file; without images, draw the same as --plot."""

    def __call__(self) -> None:
        from reverie.datasets.reader import read_progress
        from reverie.datasets.replay_store import StoreReader
        from reverie.datasets.summary import summarize

        with self.open() as reader:
            info = reader.info()
            with read_progress(f"reading {reader.path.name}", reader.rows()) as track_progress:
                summary = summarize(track_progress(reader.as_recorded()), info.action, states=not info.has_rewards)
            print_sections(_dataset_sections(reader, info, summary))
            if isinstance(reader, StoreReader):
                print_sections(_store_sections(reader.store))
        self._draw(reader, info, summary)

    def _draw(self, reader: Reader, info: DatasetInfo, summary: Summary) -> None:
        """Draw the figures that the options name; without images --figure draws the same as --plot."""
        from reverie.core.files import disk_errors_as_run_error

        for label, png in (("plot", self.plot), ("figure", self.figure)):
            if png is None:
                continue
            with disk_errors_as_run_error(png):
                if label == "figure" and summary.frames:
                    from reverie.log.video import write_contact_sheet

                    write_contact_sheet(png, summary.frames)
                else:
                    from reverie.log.plot import plot_dataset

                    uses = {use.name: use.counts for use in summary.actions if use.counts.size}
                    ranges = {use.name: use.axis for use in summary.actions if use.axis is not None}
                    scores = summary.scores if info.has_rewards else []
                    plot_dataset(png, scores, summary.lengths, uses, ranges, reader.path.name)
            show(f"  {label}: {png}")


@dataclass(frozen=True, kw_only=True)
class ValidateCommand(DatasetCommand):
    """Check episodes against rules, and the files of a replay store. The exit code is 1 if there is any violation."""

    write_valid: str | None = None
    """Write the valid episodes to a new dataset: a path that does not exist yet, or minari:NAME."""
    format: Format = "auto"
    """Format of that dataset. auto: by suffix, .hdf5 (d4rl) or .parquet, else minari."""
    replay_episodes: int = 3
    """Number of episodes to replay in the dataset's environment for comparison, if the dataset stores their seeds."""

    def __call__(self) -> int:
        from reverie.datasets.replay_store import StoreReader
        from reverie.datasets.validate import validate

        with self.open() as reader:
            if self.write_valid is not None:
                from reverie.datasets.convert import check_target, drop_invalid_episodes, write_dataset  # imports torch

                check_target(self.write_valid, self.format)
            damaged = reader.store.find_damage() if isinstance(reader, StoreReader) else []
            report = validate(reader, self.replay_episodes)
            for line in damaged:
                show(f"damaged  {line}")
            for finding in report.findings.values():
                show(f"wrong    {finding}")
            for remark in report.remarks[:MAX_REMARKS]:
                show(f"remark   {remark}")
            sound = report.is_valid and not damaged
            bad = f"{len(report.invalid_episodes):,} bad" + (f", {len(damaged)} damaged" if damaged else "")
            show(
                f"{count_noun(report.rows, 'row')} in {count_noun(report.episodes, 'episode')}: "
                f"{'sound' if sound else bad}"
            )
            if self.write_valid is not None:
                if len(report.invalid_episodes) == report.episodes:
                    return print_error("every episode violates a rule: nothing was written.", 1)
                done = write_dataset(reader, self.write_valid, self.format, drop_invalid_episodes(report))
                print_written(done, sorted(set(reader.remarks()) - set(report.remarks)))
        return 0 if sound else 1


@dataclass(frozen=True, kw_only=True)
class WriteOptions:
    """Where and how a dataset is written."""

    target: Annotated[str, Positional("TARGET")]
    """A folder that does not exist yet (a file for d4rl, robomimic and tianshou), or minari:NAME."""
    format: Format = "auto"
    """Output format. auto: by suffix, .hdf5 (d4rl) or .parquet, else minari."""


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(WriteOptions, DatasetCommand):
    """Write a dataset in another format: Minari, D4RL, Parquet, LeRobot, a store and more."""

    reward_fn: str = ""
    """Function that computes new rewards, module:function. It is called once per episode with observations, actions and
    next observations: arrays of n rows, or dictionaries of arrays for Dict spaces, in the environment's units. It
    returns n rewards. Terminations and truncations are unchanged. Empty: keep the rewards."""

    def __call__(self) -> None:
        from reverie.datasets.convert import check_target, relabel_rewards, write_dataset

        check_target(self.target, self.format)
        with self.open() as reader:
            choose = relabel_rewards(reader, self.reward_fn) if self.reward_fn else iter
            print_written(write_dataset(reader, self.target, self.format, choose), reader.remarks())


@dataclass(frozen=True, kw_only=True)
class SubsampleCommand(Subset, WriteOptions, DatasetCommand):
    """Write a random subset or the best episodes of a dataset, and optionally the rest.

    The same seed gives the same subset.
    """

    remainder: str | None = None
    """Also write all other rows, in the same format: a folder that does not exist yet, or minari:NAME."""

    def __call__(self) -> None:
        from reverie.datasets.convert import check_target, subsample, write_dataset

        targets = [target for target in (self.target, self.remainder) if target is not None]
        for target in targets:
            check_target(target, self.format)
        with self.open() as reader:
            for target, choose in zip(targets, subsample(reader, self), strict=False):
                report = write_dataset(reader, target, self.format, choose)
                print_written(report, reader.remarks() if target == targets[-1] else [])


@dataclass(frozen=True, kw_only=True)
class RecordCommand(RecordConfig, WriteOptions, RunOptions, EnvOverride):
    """Play episodes with an agent, or with a policy of yours (--policy), and record them."""

    def __call__(self) -> None:
        from reverie.agent.recording import record_agent
        from reverie.datasets.convert import check_target

        check_target(self.target, self.format)
        agent = self.load_agent()
        print_written(record_agent(agent, self.target, self, self.format), [])


@dataclass(frozen=True, kw_only=True)
class DownloadCommand:
    """Download a Minari dataset from the Hugging Face Hub. An interrupted download is continued."""

    name: Annotated[str, Positional("NAME")]
    """minari:NAME, such as minari:D4RL/door/human-v2."""

    def __call__(self) -> None:
        from reverie.datasets.download import download_minari

        kind, _, name = self.name.partition(":")
        if kind != "minari" or not name:
            raise ConfigError(f"{self.name}: expected minari:NAME, such as minari:D4RL/door/human-v2.")
        show(download_minari(name))


@dataclass(frozen=True, kw_only=True)
class MakeCommand:
    """Generate a dataset of OGBench as its authors did, by oracles, or of two rooms."""

    name: Annotated[str, Positional("NAME")]
    """ogbench:NAME, such as ogbench:pointmaze-medium-navigate-v0; or two_rooms, of reverie/TwoRooms-v0."""
    episodes: int | None = None
    """Number of episodes; a tenth of this number is added as held-out data. None: OGBench's number, or
    800 of two_rooms."""
    out: Path = Path()
    """Folder to write NAME.npz and NAME-val.npz to."""
    seed: int = 0
    """Seed of the environment and of the oracle."""

    def __call__(self) -> None:
        from reverie.core.files import disk_errors_as_run_error
        from reverie.datasets.ogbench_generation import make_dataset
        from reverie.datasets.two_rooms import NAME, make_two_rooms

        options = self.out, self.episodes, self.seed
        with progress_bars("episodes") as progress, disk_errors_as_run_error(self.out):
            paths = (
                make_two_rooms(*options, progress)
                if self.name == NAME
                else make_dataset(self.name.removeprefix("ogbench:"), *options, progress)
            )
            for path in paths:
                show(path)


@dataclass(frozen=True, kw_only=True)
class LabelCommand(TrustOption):
    """Ask a person in a page which rows show success. `train --reward success:FILE` learns from the answers."""

    kind: ClassVar[str] = "success"

    data: Annotated[str, Positional("PATH")]
    """File, folder or glob of any format, run folder, folder or URL of a replay store, minari:NAME or ogbench:NAME."""
    out: Path = Path("labels.jsonl")
    """File of the answers, which are added if it exists. The data does not change."""
    seed: int = 0
    """Seed of the questions."""
    port: Annotated[int, Within("[0, 65535]")] = 0
    """Port of the page on this machine; 0 is any free one."""

    def __call__(self) -> None:
        from reverie.experiment.labeling import LabelSession
        from reverie.viewer.launch import serve_labels

        steps = getattr(self, "steps", 0)
        with contextlib.closing(LabelSession(self.data, self.out, self.kind, steps, self.seed)) as session:
            serve_labels(session, self.port)


@dataclass(frozen=True, kw_only=True)
class CompareClipsCommand(LabelCommand):
    """Ask a person in a page which of two clips is better. `train --reward preferences:FILE` learns from it."""

    kind: ClassVar[str] = "preferences"

    steps: Annotated[int, AtLeast(1)] = 25
    """Actions of a clip."""


COMMANDS: dict[str, type[Command]] = {
    "info": DataInfoCommand,
    "validate": ValidateCommand,
    "convert": ConvertCommand,
    "subsample": SubsampleCommand,
    "record": RecordCommand,
    "download": DownloadCommand,
    "make": MakeCommand,
    "label": LabelCommand,
    "compare-clips": CompareClipsCommand,
}


def _policy_first(args: list[str]) -> list[str]:
    """Return the arguments with the value of ``--policy`` in front, which ``record`` takes as its first argument."""
    for number, arg in enumerate(args):
        name, has_value, value = arg.partition("=")
        if name == "--policy":
            end = number + (1 if has_value else 2)
            return [*([value] if has_value else args[number + 1 : end]), *args[:number], *args[end:]]
    return args


def data_command(args: list[str]) -> int:
    """Run one of the commands and return its exit code."""
    if not args or args[0] in ("-h", "--help"):
        from reverie.datasets.formats import format_names

        formats = textwrap.fill(f"A dataset is a file, folder or glob. Formats are {format_names()}.", 80)
        lines = [f"  {name:<14}{str(kind.__doc__).partition('.')[0]}" for name, kind in COMMANDS.items()]
        show("\n".join([f"usage: reverie data {{{','.join(COMMANDS)}}} ...", "", *lines, "", formats]))
        return 0 if args else 2
    if args[0] not in COMMANDS:
        available = f"Available: {', '.join(COMMANDS)}."
        return print_error(f"unknown command 'data {args[0]}'.{did_you_mean(args[0], COMMANDS)} {available}", 2)
    from reverie.run.signal_handling import SignalStop, raise_on_signal

    try:
        with raise_on_signal():
            return run_command(COMMANDS[args[0]], _policy_first(args[1:]), f"data {args[0]}")
    except SignalStop as stopped:
        why = ". ".join([f"stopped by {stopped.number.name}", *getattr(stopped, "__notes__", [])])
        return print_error(why, 128 + stopped.number)


# ---------------------------------------------------------------- what is printed


def _dataset_sections(reader: Reader, info: DatasetInfo, summary: Summary) -> dict[str, list[tuple[str, str]]]:
    """Return the lines of ``data info`` by section."""
    import numpy as np

    from reverie.core.rows import stepless_error
    from reverie.core.statistics import histogram
    from reverie.log.console import sparkline

    episodes = len(summary.scores)
    sections: dict[str, list[tuple[str, str]]] = {
        "dataset": [("path", str(reader.path)), ("format", reader.format), *info.text.items()],
        "wrong": [("", wrong)] if (wrong := stepless_error(summary.rows, summary.num_stepless)) else [],
        "not finite": summary.broken_lines(),
        "spaces": [*_space_lines("observation", info.observation), *_space_lines("action", info.action)],
        "episodes": [("number", f"{episodes:,} with {count_noun(sum(summary.lengths), 'step')}")],
    }
    if info.env:
        sections["dataset"].append(("environment", info.env))
    if info.has_measured_bounds:
        sections["spaces"].append(("", "not declared: inferred from the recorded actions"))
    if episodes:
        scores, lengths = np.asarray(summary.scores), np.asarray(summary.lengths)
        low, high = summary.rewards
        counts, _ = histogram(scores, min(NUM_BARS, max(5, episodes // 5)))
        sections["episodes"] += [
            ("ends", f"{summary.num_terminal:,} terminal, {episodes - summary.num_terminal:,} truncated"),
            ("steps", f"mean {lengths.mean():.1f}, {lengths.min():,} to {lengths.max():,}"),
            *[("a person's", f"{summary.num_taken / lengths.sum():.1%} of the steps")] * (summary.num_taken > 0),
            ("reward", f"{low:.4g} to {high:.4g}"),
            ("return", f"mean {scores.mean():.2f}, std {scores.std():.2f}, {scores.min():.2f} to {scores.max():.2f}"),
            ("returns", f"{sparkline(counts, 0)}  {scores.min():.4g} to {scores.max():.4g}"),
        ]
        if not info.has_rewards:
            from reverie.algos.hiql import HIQLConfig  # imports torch

            sections["episodes"][-3:] = [("return", "no rewards: goal-conditioned learners, such as gcbc, need none")]
            sections["goals"] = summary.reach_lines(HIQLConfig.discount, HIQLConfig.subgoal_steps)
        sections["actions"] = [line for use in summary.actions for line in [(use.name, use.format()), *_bars(use)]]
        sections["constant"] = summary.constant_lines()
    sections["remarks"] = [("", remark) for remark in reader.remarks()]
    return sections


def _space_lines(name: str, space: Space) -> list[tuple[str, str]]:
    """Return a line for each part of a space, at most ``MAX_PARTS``; ``name`` is the name of the whole space."""
    from reverie.core.spaces import columns_in

    parts = [(column, _format_space(leaf)) for column, leaf in columns_in(space, name)]
    remainder = [("", f"and {len(parts) - MAX_PARTS} more")] if len(parts) > MAX_PARTS else []
    return parts[:MAX_PARTS] + remainder


def _format_space(space: Space) -> str:
    """Describe a space in words, in at most 160 characters; bounds that differ between elements become their range."""
    import numpy as np
    from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete

    shape = " x ".join(map(str, space.shape or ()))
    if isinstance(space, Discrete):
        return f"{space.n} classes" + (f" from {space.start}" if space.start else "")
    if isinstance(space, MultiDiscrete) and (space.nvec == space.nvec.flat[0]).all():
        return f"{shape} cells of {space.nvec.flat[0]} classes"
    if isinstance(space, MultiBinary):
        return f"{shape} bits"
    if isinstance(space, Box):
        size = f"{shape} numbers" if space.shape not in ((), (1,)) else "1 number"
        low, high = space.low.min(), space.high.max()
        return size + (f", {low:.4g} to {high:.4g}" if low > -np.inf or high < np.inf else "") + f" ({space.dtype})"
    text = " ".join(str(space).split())
    return text if len(text) <= 160 else f"{text[:157]}..."


def _bars(use: ActionStatistics) -> list[tuple[str, str]]:
    """Return how often values of an action were taken: a line for each class, or for each of the first dimensions."""
    from reverie.log.console import sparkline

    if len(use.counts) == 1 and not use.is_box and use.counts.shape[1] <= MAX_PARTS:
        shares, first = use.counts[0] / max(1, use.steps), int(use.bounds[0][0])
        longest = max(shares.max(), 1e-9)
        texts = [f"{'█' * round(NUM_BARS * share / longest)} {share:.0%}" for share in shares]
        return [(f"  {number}", text) for number, text in enumerate(texts, first)]
    rows = [row[:classes] for row, classes in zip(use.counts[:MAX_PARTS], use.classes, strict=False)]
    return [(f"  {i}" if len(use.counts) > 1 else "", f"{sparkline(row, 0)}") for i, row in enumerate(rows)]


def _store_sections(store: ReplayStore) -> dict[str, list[tuple[str, str]]]:
    """Return the lines of ``data info`` about the columns and segments of a store."""
    columns = store.segments[-1].columns
    sizes = [size or 0 for size in store.objects.sizes().values()]
    segments = {
        segment.name: f"{segment.streams} streams, rows {segment.first_kept:,} to {segment.rows - 1:,} of each, "
        f"{segment.chunk} per file"
        + (f", {segment.imported:,} of older segments" if segment.imported else "")
        + (f", after row {segment.parent[1] - 1:,} of {segment.parent[0]}" if segment.parent else "")
        for segment in store.segments
    }
    rows, all_rows = store.num_rows(), sum((s.rows - s.first_kept - s.imported) * s.streams for s in store.segments)
    return {
        "store": [
            ("path", store.objects.location),
            ("rows", f"{rows:,}" + (f", and {all_rows - rows:,} superseded" if all_rows > rows else "")),
            ("stored", f"{sum(sizes) / 1e6:,.1f} MB"),
        ],
        "columns": [(name, f"{c.dtype} {list(c.shape) if c.shape else ''}") for name, c in columns.items()],
        "segments": list(segments.items()),
    }


def print_written(done: WriteReport, remarks: list[str]) -> None:
    """Print what was written, and on stderr what was assumed or omitted."""
    for remark in dict.fromkeys((*remarks, *done.remarks)):
        show(f"remark   {remark}", sys.stderr)
    show(f"{count_noun(done.episodes, 'episode')} with {count_noun(done.steps, 'step')}: {done.path}")
