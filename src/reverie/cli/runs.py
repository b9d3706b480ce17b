"""``reverie list``, ``info`` and ``compare``; ``register``, ``push``, ``pull`` and ``import`` of agents."""

from __future__ import annotations

import ast
import itertools
import shutil
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from reverie.algos.table import algorithms
from reverie.cli.main import print_error
from reverie.cli.output import print_files, relative_like
from reverie.cli.parsing import Positional, TrustOption, options_for
from reverie.core.errors import ConfigError, ReverieError, RunError, count_noun, did_you_mean
from reverie.core.terminal import show

if TYPE_CHECKING:  # imports torch, which --help does not need
    from reverie.run.checkpoint import Checkpoints


@dataclass(frozen=True, kw_only=True)
class ListCommand:
    """List all algorithms, their sizes, and the presets; or the agents at a location."""

    source: Annotated[str, Positional("SOURCE")] = ""
    """algorithms, presets or sizes; or where agents are: hf://USER, a folder, or s3://BUCKET/FOLDER."""

    def __call__(self) -> int:
        if "://" in self.source or Path(self.source or "nothing").is_dir():
            return _print_agents(self.source)
        printers = {"algorithms": _print_algorithms, "sizes": _print_sizes, "presets": _print_presets}
        if self.source and self.source not in printers:
            near = did_you_mean(self.source, printers)
            raise ConfigError(f"{self.source}: no such list, folder or URL.{near} Lists: {', '.join(printers)}.")
        for print_part in [printers[self.source]] if self.source else [_print_algorithms, _print_presets]:
            print_part()
        return 0


def _print_algorithms() -> None:
    for group, entries in itertools.groupby(algorithms().values(), key=lambda entry: entry.group):
        show(group)
        for name, target, _ in entries:
            summary, sizes = _module_outline(name) if target.startswith("reverie.algos.") else (target, [])
            _print_entry(name, [summary, *([f"Sizes: {', '.join(sizes)}."] if sizes else [])])
        show()


def _print_sizes() -> None:
    for name, target, _ in algorithms().values():
        if target.startswith("reverie.algos.") and (sizes := _module_outline(name)[1]):
            _print_entry(name, [", ".join(sizes)])


def _print_presets() -> None:
    from reverie.experiment.presets import TABLE

    show("presets (--preset NAME; in brackets, the environments whose default it is)")
    _print_entry("cpu", ["The environment's preset, with small networks and a short run; default without a GPU."])
    for name, preset in TABLE.items():
        starts = ", ".join(f"{start}*" for start in preset.env_prefixes.split())
        _print_entry(name, [preset.description + (f" [{starts}]" if starts else "")])


def _module_outline(name: str) -> tuple[str, list[str]]:
    """Return the first line of the docstring of ``algos/NAME.py``, and the keys of ``SIZES``, without importing torch.

    The file can also import this table from another one.
    """
    tree = tables = _parse(f"reverie.algos.{name}")
    for x in tree.body:
        if isinstance(x, ast.ImportFrom) and x.module and any(alias.name == "SIZES" for alias in x.names):
            tables = _parse(x.module)
    values = [x.value for x in tables.body if isinstance(x, ast.AnnAssign) and ast.unparse(x.target) == "SIZES"]
    sizes = [ast.literal_eval(key) for table in values if isinstance(table, ast.Dict) for key in table.keys if key]
    return (ast.get_docstring(tree) or "").partition("\n")[0], sizes


def _parse(module: str) -> ast.Module:
    return ast.parse((Path(__file__).parents[2] / f"{module.replace('.', '/')}.py").read_text(encoding="utf-8"))


def _print_entry(name: str, texts: list[str]) -> None:
    """Print a name and, next to it, texts: wrapped at the width of a terminal, elsewhere as whole lines."""
    margin, columns = " " * 26, min(120, shutil.get_terminal_size().columns) if sys.stdout.isatty() else sys.maxsize
    lines = [line for text in texts for line in textwrap.wrap(text, columns - 26, break_on_hyphens=False)]
    show("\n".join([f"  {name:<23} {lines[0]}", *(margin + line for line in lines[1:])]))


@dataclass(frozen=True, kw_only=True)
class CompareCommand:
    """Compare several settings over their seeds: the scores, and the probability that one is better."""

    runs: Annotated[tuple[Path, ...], Positional("FOLDER ...")] = ()
    """For each setting, a folder with the runs of its seeds, or a single run; or the folder of a sweep. Runs that match
    a quoted pattern, such as 'runs/sac-*', are seeds of one setting; each folder of runs that matches is a separate
    setting."""
    at: int | None = None
    """Compare the scores after so many steps: of a longer run its last evaluation up to this step."""
    figure: Path | None = None
    """Plot the learning curves, with intervals, to this file: .png, .svg or .pdf."""
    labels: dict[str, str] = field(default_factory=dict)
    """Names for people, by folder, pattern or name in a sweep: '{runs/sac: SAC, runs/td3: TD3}'. Settings in several
    environments with the same label are one line of a table."""
    colors: dict[str, str] = field(default_factory=dict)
    """Colors of the figures by label: '{SAC: "#1f62b4", TD3: tab:orange}'."""
    normalize: Path | None = None
    """YAML file with the scores of each environment that become 0 and 1, `Pendulum-v1: [-1200, -150]`. The scores are
    then also aggregated over all environments."""
    profile: Path | None = None
    """Plot performance profiles of the normalized scores to this file: .png, .svg or .pdf."""
    csv: Path | None = None
    """Write the scores to this file as CSV."""
    latex: Path | None = None
    """Write the IQMs with their intervals to this file as a table for LaTeX."""
    axis: Literal["steps", "seconds", "updates", "person"] = "steps"
    """Axis of the figure; person: the seconds for which a person acted."""

    def __call__(self) -> int:
        if not self.runs:
            return print_error("nothing to compare. Pass folders with the runs of several seeds, or single runs.", 2)
        from reverie.distributed.compare import compare  # imports torch

        comparison = compare(*self.runs, **options_for(compare, self))
        show(comparison)
        files = {"figure": comparison.figure, "profile": self.profile, "csv": self.csv, "latex": self.latex}
        print_files({name: path for name, path in files.items() if path is not None})
        if self.figure is not None and comparison.figure is None:
            return print_error("no figure: none of these folders has a learning curve (--schedule.eval-every).", 1)
        return 0


@dataclass(frozen=True, kw_only=True)
class RegisterCommand(TrustOption):
    """Add the agent of a run to a model registry."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder."""
    name: str
    """Name of the model, to which a version is added."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the best if there is one, else the newest."""
    alias: str | None = None
    """Alias of this version: with --alias best it is models:/NAME@best."""
    tracker: Literal["mlflow", "wandb"] = "mlflow"
    """Tracker: MLflow's model registry at MLFLOW_TRACKING_URI, or an artifact of W&B."""

    def __call__(self) -> None:
        from reverie.agent.sharing import register_model

        show(f"registered {register_model(**options_for(register_model, self))}")


@dataclass(frozen=True, kw_only=True)
class PushCommand(TrustOption):
    """Upload the agent of a run: weights, settings, evaluation, its report and a model card."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder."""
    location: Annotated[str, Positional("LOCATION")]
    """hf://USER/NAME on the Hugging Face Hub, s3://BUCKET/NAME or another URL, or a folder."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the best if there is one, else the newest."""
    private: bool = False
    """Create the repository on the Hub as private."""
    page: bool = True
    """Play episodes for report.html, whose finding is in the model card. --no-page: the environment is not needed."""

    def __call__(self) -> None:
        from reverie.viewer.publish import push

        show(f"pushed; reverie eval {push(**options_for(push, self))}")


@dataclass(frozen=True, kw_only=True)
class PullCommand(TrustOption):
    """Download a shared agent, or a run or an agent from a tracker."""

    location: Annotated[str, Positional("LOCATION")]
    """hf://USER/NAME, also with @REVISION; s3://BUCKET/NAME or another URL; models:/NAME/3 and the like."""
    to: Path | None = None
    """A new folder. None: one below runs/."""

    def __call__(self) -> None:
        from reverie.agent.sharing import pull

        show(pull(**options_for(pull, self)))


@dataclass(frozen=True, kw_only=True)
class ImportCommand(TrustOption):
    """Import an agent of another library as a run, without running code of its file."""

    library: Annotated[Literal["sb3"], Positional("LIBRARY")]
    """sb3: Stable-Baselines3 or sb3-contrib."""
    file: Annotated[Path, Positional("FILE")]
    """The zip file of model.save: PPO, A2C, SAC, TD3, DDPG, DQN, MaskablePPO, RecurrentPPO, QRDQN, TQC or
    CrossQ, with MLPs."""
    env: str
    """The agent's environment: an id in Gymnasium's registry, or `module:Id`."""
    run: Path | None = None
    """New run folder. None: one below runs/."""
    vecnormalize: Path | None = None
    """The statistics of an agent trained with VecNormalize, vecnormalize.pkl; only arrays are read."""

    def __call__(self) -> None:
        from reverie.agent.import_sb3 import import_sb3

        run = import_sb3(**options_for(import_sb3, self))
        show(f"imported; reverie eval {relative_like(run, self.run)}")


def _print_agents(location: str) -> int:
    """Print the agents at a location, for ``reverie list``."""
    from reverie.agent.sharing import list_agents

    if not (agents := list_agents(location)):
        raise RunError(
            f"there is no agent at {location}. Agents are added by reverie push; runs are listed by reverie view."
        )
    width = max(len(agent.location) for agent in agents)
    for agent in agents:
        parts = {preposition: agent.metadata.get(key) for preposition, key in (("in", "env"), ("on", "data"))}
        origin = [
            agent.metadata.get("algorithm"),
            *(f"{preposition} {name}" for preposition, name in parts.items() if name),
        ][:2]
        score = f"score {agent.metadata['score']}" if "score" in agent.metadata else ""
        show(f"  {agent.location:<{width}}  {' '.join(filter(None, origin))}  {score}".rstrip())
    show(count_noun(len(agents), "agent"))
    return 0


ESTIMATE = "estimate/return"
"""Metric shown instead of evaluations, for an offline run without an environment."""
COUNTERS = ("updates", "episodes")
INFO_METRICS = (*(f"counters/{name}" for name in COUNTERS), "episode/score", "eval/score", ESTIMATE)
"""Metrics whose latest values are shown."""


@dataclass(frozen=True, kw_only=True)
class InfoCommand:
    """Describe a run: its settings, progress, results and files."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder."""

    def __call__(self) -> None:
        from reverie.log.jsonl import read_metrics
        from reverie.run.checkpoint import Checkpoints, read_checkpoint, step_from_name
        from reverie.run.folder import RunFolder, read_saved_config
        from reverie.run.provenance import describe_provenance

        folder, saved = RunFolder(self.run), read_saved_config(self.run)
        settings = saved.experiment
        rows = read_metrics(folder.metrics, INFO_METRICS)
        newest: dict[str, Any] = {}
        for row in rows:
            newest |= row
        checkpoints = Checkpoints(folder.checkpoints)
        problems = checkpoints.find_damaged()
        intact = [path for path in checkpoints.paths() if path.name not in problems]
        if intact and step_from_name(intact[-1]) >= newest.get("step", 0):  # the log can end earlier, or be damaged
            clock = read_checkpoint(intact[-1], ["clock"], verified=True)["clock"]
            newest |= {"step": step_from_name(intact[-1])}
            newest |= {f"counters/{name}": clock.get(name) for name in COUNTERS}  # a shared agent has no counts
        step = newest.get("step", 0)
        unit = "updates" if settings.get("experience") == "offline" else "steps"
        facts = {
            "run": str(folder.path),
            "algorithm": saved.algorithm,
            "environment": saved.env + (f" x {settings.get('env', {}).get('num')}" if unit == "steps" else ""),
            "progress": f"{step:,} of {settings.get(unit, 0):,} {'env steps' if unit == 'steps' else unit}",
            **{name: _count_text(newest.get(f"counters/{name}", 0)) for name in COUNTERS},
            "return": f"{newest['episode/score']:.2f} (newest)" if "episode/score" in newest else "-",
            "evaluation": _evaluation_line(folder.evaluation, newest.get("eval/score")),
            **({"estimate": f"{newest[ESTIMATE]:.2f} discounted, by FQE (newest)"} if ESTIMATE in newest else {}),
            "checkpoints": _checkpoint_line(checkpoints, problems),
            "replay": _replay_line(folder.replay),
        }
        for key_path, text in saved.custom.items():
            facts[f"from Python: {key_path}"] = text
        facts |= describe_provenance(folder, saved)
        for name, value in facts.items():
            show(f"{name:<14}{value}")
        videos = [("video", path) for path in sorted(folder.videos.glob("[!.]*.mp4"))]
        dreams = [("dream", path) for path in sorted(folder.dream.glob("[!.]*.*"))]
        print_files([*folder.files().items(), *videos, *dreams])


def _count_text(count: float | None) -> str:
    """Return a count with separators of thousands; "-" if it is unknown."""
    return "-" if count is None else f"{int(count):,}"


def _evaluation_line(file: Path, logged: float | None) -> str:
    """Return the score of the latest evaluation, from ``eval.json`` or else from the last entry in the log."""
    if not file.exists():
        return f"{logged:.2f} (newest)" if logged is not None else "-"
    from reverie.core.documents import read_json
    from reverie.run.folder import DELETE

    result = read_json(file, DELETE)
    source = f", {result['checkpoint']} in {result.get('env')}" if "checkpoint" in result else ""
    cut = f", {result['cut_off']} of them cut off" if result.get("cut_off") else ""
    try:
        return f"{result['score']['mean']:.2f} over {count_noun(result['episodes'], 'episode')}{cut} (newest{source})"
    except (KeyError, TypeError, ValueError) as error:
        raise RunError(f"{file} is damaged: it has no score ({error!r}). {DELETE}") from error


def _checkpoint_line(checkpoints: Checkpoints, wrong: Mapping[str, str]) -> str:
    """Return the names of the checkpoints, with the problem in ``wrong`` of each that cannot be loaded."""
    names = [path.name for path in checkpoints.paths()]
    names = [name + (f" (cannot be used: {wrong[name]})" if name in wrong else "") for name in names]
    return ", ".join([*names, *sorted(path.name for path in checkpoints.folder.glob("diverged-*"))]) or "none yet"


def _replay_line(folder: Path) -> str:
    """Return the number of rows stored in ``folder``."""
    from reverie.store.store import ReplayStore

    if not folder.is_dir():
        return "none in this folder"
    try:
        return count_noun(ReplayStore(folder).num_rows(), "row")
    except ReverieError as error:
        return str(error)
