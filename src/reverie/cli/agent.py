"""``reverie eval``, ``estimate``, ``dream``, ``view``, ``extract`` and ``export``: commands for trained agents."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from reverie.cli.main import print_error
from reverie.cli.output import print_files, print_kernel_problem, score_line
from reverie.cli.parsing import DataOptions, EnvOverride, Positional, TrustOption, options_for
from reverie.core.errors import count_noun
from reverie.core.progress import progress_bars
from reverie.core.terminal import show

if TYPE_CHECKING:
    from reverie.agent.agent import Agent


@dataclass(frozen=True, kw_only=True)
class RunOptions(TrustOption):
    """Options of every command for a trained agent."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder. Or a policy of yours, with --env: `module:name` of a function of the observation, of a PyTorch module
    or of a class without arguments."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""

    def load_agent(self) -> Agent:
        """Load the agent, and let PyTorch use the CPU threads of its training."""
        import torch

        from reverie.agent.loading import load

        agent = load(**options_for(load, self))
        torch.set_num_threads(agent.config.threads or torch.get_num_threads())
        return agent


@dataclass(frozen=True, kw_only=True)
class EvalCommand(RunOptions, EnvOverride):
    """Play whole episodes with a trained agent."""

    episodes: int = 20
    """Number of episodes to play."""
    deterministic: bool = True
    """Take the policy's most likely actions; --no-deterministic samples them."""
    video: bool = False
    """Record the first episode as a video."""
    seed: int | None = None
    """Seed of environments and actions. None: derived from the run's seed."""
    max_episode_steps: int | None = None
    """Decisions after which an episode is truncated. None: the run's env.max_episode_steps, or the environment's
    limit."""
    tasks: tuple[int, ...] = ()
    """Tasks of the episodes, in turn: `1 3` of OGBench's five. Empty: the run's env.tasks."""
    opponent: str | None = None
    """In games of two players: random, perfect (if the solution is known), another RUN, or RUN@STEP. None: random
    moves, and the agent's strength is measured, if the solution is known."""
    games: int | None = None
    """Number of games, half of them in each seat: the same as --episodes."""
    simulations: int | None = None
    """Act by tree searches of so many nodes in the model of muzero, dreamer_v3, plan2explore_v3 or r2dreamer. None: as
    trained."""

    def __call__(self) -> None:
        from reverie.agent.evaluating import evaluate_run, game_label
        from reverie.agent.loading import load_opponent
        from reverie.agent.player import actions_label

        agent = self.load_agent()
        opponent = None if self.opponent is None else load_opponent(self.opponent, self.device)
        print_kernel_problem(agent.algo.device.type)
        options = options_for(agent.evaluate, self) | {"env": None, "opponent": opponent}
        options["episodes"] = self.episodes if self.games is None else self.games
        report = evaluate_run(agent, video=self.video, **options)
        show(f"{game_label(agent, opponent)}, {agent.checkpoint.name}, {actions_label(self.deterministic)}")
        show(score_line(report.evaluation))
        if self.video and report.evaluation.frames is None:
            show("no video: this environment cannot render images. A custom environment must accept render_mode")
        print_files(report.files, self.run)


@dataclass(frozen=True, kw_only=True)
class ArenaCommand(EnvOverride, TrustOption):
    """Let agents play a game of two players against each other: results, and Elo ratings with 95 % intervals."""

    players: Annotated[tuple[str, ...], Positional("PLAYER")]
    """Two or more: run folders, RUN@STEP or RUN@best for one of its checkpoints, random, and perfect, if the solution
    of the game is known."""
    games: int = 100
    """Games of each pair, half of them in each seat."""
    seed: int = 0
    """Seed of random moves."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""

    def __call__(self) -> None:
        from reverie.agent.arena import arena

        show(arena(**options_for(arena, self)))


@dataclass(frozen=True, kw_only=True)
class ReachCommand(RunOptions, EnvOverride):
    """Play one episode toward a goal with a goal-conditioned agent."""

    goal: Annotated[Path, Positional("GOAL")]
    """File with the observation to reach: a picture (.png, .jpg) or an array (.npy, or .npz by key)."""
    max_steps: int | None = None
    """Actions after which the episode is over. None: as evaluations."""
    radius: float | None = None
    """Distance from the goal within which it is reached: Euclidean, or the mean difference of pixels in [0, 1]. None:
    the environment judges, if it observes this goal."""
    seed: int | None = None
    """Seed of the environment."""

    def __call__(self) -> None:
        from reverie.agent.reaching import reach_and_film, read_goal

        agent = self.load_agent()
        goal = read_goal(agent, self.goal)
        reached, film = reach_and_film(agent, goal, max_steps=self.max_steps, radius=self.radius, seed=self.seed)
        show(reached)
        print_files({} if film is None else {"video": film}, self.run)


@dataclass(frozen=True, kw_only=True)
class DreamCommand(RunOptions, EnvOverride, DataOptions):
    """Compare imagined trajectories of the world model with the real episodes."""

    context: int | None = None
    """Rows of each episode that the model observes first. None: 8, or a third of the usual episode length if that is
    less."""
    horizon: int = 48
    """Maximum env steps that it imagines after them; fewer if episodes are shorter."""
    episodes: int = 6
    """Number of episodes."""
    deterministic: bool = True
    """Play with the policy's most likely actions; --no-deterministic samples them."""
    seed: int | None = None
    """Seed of environments and dreams. None: derived from the run's seed."""
    data: str | tuple[str, ...] = ""
    """Instead of playing, predict the first recorded episodes that are long enough: a file, folder or glob in any
    supported format, or minari:NAME."""
    strip: Path | None = None
    """File for the first episode above its dream, and where they part: NAME.png or NAME.svg. None:
    dream/strip.png in the run folder."""

    def __call__(self) -> None:
        data = self.to_dataset_config(self.data, "no dataset is read, since the agent plays the episodes")
        from reverie.agent.dream_report import dream

        agent = self.load_agent()
        print_kernel_problem(agent.algo.device.type)
        report = dream(agent, **options_for(dream, self) | {"data": data})
        fewer = f" of {self.episodes} (the others were shorter, or there were no more)"
        dreams = count_noun(report.num_episodes, "dream") + fewer * (report.num_episodes < self.episodes)
        steps = count_noun(len(next(iter(report.errors.values()))), "step")
        source = f"{data.label if data else agent.config.env.label()}, {agent.checkpoint.name}"
        show(f"{source}: {dreams}, {steps} each, after {count_noun(report.context, 'row')} that the model observed")
        show("error per imagined step; in brackets, the error of repeating the last observed row")
        trained = getattr(agent.config.algo, "horizon", None)
        ahead = f"(during training, the model imagines only {count_noun(trained or 0, 'step')} ahead)\n"
        show("" if trained is None else ahead)
        show(f"{_error_table(report.errors, report.baseline_errors)}\n")
        for key, unit in report.units.items():
            show(f"  {key}: {unit}")
        show(f"\nthe first episode: {report.strip.sentence}")
        print_files(report.files, self.run)


def _error_table(errors: Mapping[str, Any], repeated: Mapping[str, Any]) -> str:
    """Format the errors at steps 1, 2, 4, 8 ... and the last as a table."""
    horizon = len(next(iter(errors.values())))
    steps = sorted({2**i for i in range(horizon.bit_length()) if 2**i <= horizon} | {horizon})
    width = max(12, *(len(key) for key in errors)) + 2
    lines = [f"{'step':<{width}}" + "".join(f"{step:>20}" for step in steps)]
    for key, error in errors.items():
        cells = (f"{error[s - 1]:.4g} ({repeated[key][s - 1]:.4g})" for s in steps)
        lines.append(f"{key:<{width}}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class ExtractCommand(RunOptions, DataOptions):
    """Write a world model's states and predictions for recorded rows."""

    out: Path
    """Output: a Zarr group, NAME.zarr, for any amount of data; or NAME.npz, which has to fit in memory."""
    data: str | tuple[str, ...] = ""
    """Dataset: a file, folder or glob in any supported format, or minari:NAME. Empty: the rows that the run collected,
    or the dataset that it was trained on."""
    seed: int | None = None
    """Seed for sampling the states. None: derived from the run's seed."""
    overwrite: bool = False
    """Replace an existing output of that name."""

    def __call__(self) -> None:
        data = self.to_dataset_config(
            self.data, "the rows of the run are read in the format in which they were written"
        )
        from reverie.agent.extract import extract
        from reverie.core.hardware import choose_device

        print_kernel_problem(choose_device(self.device).partition(":")[0])
        done = extract(self.run, **options_for(extract, self) | {"data": data})
        manifest = done.manifest
        size = f"{count_noun(manifest['rows'], 'row')} in {count_noun(manifest['episodes'], 'episode')}"
        show(f"{manifest['checkpoint']} on {manifest['data']}: {size}")
        width = max(map(len, manifest["arrays"]), default=0)
        for name, array in manifest["arrays"].items():
            show(f"  {name:<{width}}  {array['dtype']:<7} {array['shape']!s:<20} {array['unit']}")
        show(f"  written to {done.path}")


@dataclass(frozen=True, kw_only=True)
class ExportCommand(RunOptions, EnvOverride):
    """Export a policy to a file that runs without reverie, and compare the file with the agent."""

    format: Literal["onnx", "torch", "program"] | None = None
    """onnx for ONNX Runtime and other runtimes; torch for torch.export.load; program for a list of operations that a
    browser runs. None: by the suffix of --out, else onnx."""
    world: bool = False
    """Export the world model as a program instead of the policy: its functions observe, imagine and predict."""
    numbers: Literal["float32", "float16", "int8"] = "float16"
    """How a program stores weights."""
    out: Path | None = None
    """Output file; a JSON file next to it describes its inputs and outputs. None: policy.onnx, policy.pt2, program.json
    or world.json in the run folder."""
    batch: int | None = None
    """Number of observations per call. None: any number if the policy has no memory, else 1."""
    steps: int = 1000
    """Number of calls with random observations in which the file is compared with the agent."""

    def __call__(self) -> None:
        from reverie.viewer.publish import export

        agent = self.load_agent()
        done = export(agent, **options_for(export, self))
        apart = f"; {count_noun(done.num_differing, 'step')} differ, by rounding" if done.num_differing else ""
        kind = "world model" if self.world else "deterministic actions"
        show(f"{agent.config.env.id}, {agent.checkpoint.name}, {kind}")
        show(f"compared with the agent in {count_noun(done.steps, 'step')}: differences up to {done.error:.1g}{apart}")
        if done.file == done.metadata_file:
            size = f"{done.file.stat().st_size / 1e6:.2g} MB"
            show(f"weights in {self.numbers}: differences up to {done.rounding:.1g}, {size}")
            print_files({"program": done.file}, self.run)
            return
        print_files({"policy": done.file, "described in": done.metadata_file}, self.run)


@dataclass(frozen=True, kw_only=True)
class ReportCommand(EnvOverride, TrustOption):
    """Write a page about a run, or about several that are compared: one file that needs no server."""

    runs: Annotated[tuple[str, ...], Positional("RUN")]
    """A run folder or a shared agent; or several runs, folders of runs, or patterns."""
    out: Path | None = None
    """The page; the numbers alone if it ends in .json. None: report.html, in the folder of a single run."""
    episodes: int = 20
    """New episodes of the agent. 0: only what the run has logged."""
    dreams: int = 60
    """Dreams of a world model to judge, for each snapshot. 0: none."""
    frames: int = 8
    """Pictures of each shown episode. 0: none."""
    program: Literal["auto", "none", "float16", "int8"] = "auto"
    """Weights with which the agent acts in the page, if its environment can be drawn there. auto: int8 if float16 is
    too large."""
    max_bytes: float = 3e6
    """Size of the page. What does not fit is left out, the largest part first."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """Device of the networks: cpu, cuda, cuda:1, or auto for a GPU if there is one."""

    def __call__(self) -> None:
        from reverie.agent.loading import load
        from reverie.viewer.report import report

        page = report(*self.runs, **options_for(report, self) | options_for(load, self))
        show(page.finding)
        print_files({"report": page.path}, Path(self.runs[0]))


@dataclass(frozen=True, kw_only=True)
class FQESettings:
    """Settings of fitted Q evaluation. None: the default (``algos/fqe.py``)."""

    lr: float | None = None
    """Learning rate of Adam."""
    weight_decay: float | None = None
    """Weight decay of the critic; a higher value reduces overestimation outside the dataset."""
    tau: float | None = None
    """Step size of the target critic toward the critic per update."""
    batch_size: int | None = None
    """Batch size in transitions."""


@dataclass(frozen=True, kw_only=True)
class EstimateCommand(RunOptions, DataOptions):
    """Estimate the discounted return of a trained agent from a dataset, without an environment.

    Ctrl-C stops FQE early; the estimate then follows from the updates made so far.
    """

    data: str | tuple[str, ...] = ""
    """Dataset: a file, folder or glob in any supported format, or minari:NAME. Empty: the dataset that the run was
    trained on."""
    method: Literal["fqe", "wis", "dr"] = "fqe"
    """Fitted Q evaluation; per-decision weighted importance sampling; or the weighted doubly robust estimator, which
    combines both. The last two need discrete actions and the column propensity, the probability of each recorded
    action."""
    updates: int = 20_000
    """Gradient updates of FQE."""
    fqe: FQESettings = FQESettings()
    deterministic: bool = True
    """Evaluate the policy's most likely actions; --no-deterministic evaluates sampled ones."""
    num_action_samples: int = 10
    """With --no-deterministic: number of actions sampled per row, over which values are averaged."""
    discount: float | None = None
    """Discount factor gamma. None: the learner's discount, or 0.99 if it has none."""
    seed: int | None = None
    """Seed of networks and batches. None: derived from the run's seed."""

    def __call__(self) -> int:
        data = self.to_dataset_config(
            self.data, "the dataset that the run was trained on is read with the settings of that run"
        )
        from reverie.agent.off_policy_evaluation import estimate_return
        from reverie.agent.player import actions_label
        from reverie.core.hardware import choose_device  # imports torch

        print_kernel_problem(choose_device(self.device).partition(":")[0])
        options = options_for(estimate_return, self) | {"data": data}
        options["fqe"] = {name: value for name, value in vars(self.fqe).items() if value is not None}
        with EstimateProgress() as watch:
            report = estimate_return(**options, progress=watch)
        show(f"{self.run}, {actions_label(self.deterministic)}")
        show(report.estimate.format())
        print_files(report.files, self.run)
        if watch.interrupted:
            return print_error(
                f"interrupted: the estimate was made after {watch.num_done:,} of {self.updates:,} updates", 130
            )
        return 0


class EstimateProgress(contextlib.ExitStack):
    """Shows the progress of an estimate, with a progress bar on a terminal.

    Ctrl-C stops the updates. Before the first update, and the second time, Ctrl-C ends the command at once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.num_done: int = 0
        self.interrupted: bool = False
        self._show: Callable[[str, int, int], None] = lambda name, num_done, total: None

    def __enter__(self) -> Self:
        from reverie.run.signal_handling import handle_signals  # imports torch

        self.enter_context(handle_signals(self._stop, [signal.SIGINT]))
        return super().__enter__()

    def __call__(self, num_done: int, updates: int) -> bool:
        """Report the progress: an ``agent/off_policy_estimator.py: ProgressFn``."""
        if not self.num_done:  # not earlier: reading the data has its own bar
            self._show = self.enter_context(progress_bars("updates"))
        self.num_done = num_done
        self._show("estimating", num_done, updates)
        return not self.interrupted

    def _stop(self, number: int, frame: FrameType | None) -> None:
        if self.interrupted or not self.num_done:
            raise KeyboardInterrupt
        self.interrupted = True


@dataclass(frozen=True, kw_only=True)
class ViewCommand(RunOptions, EnvOverride):
    """Open the viewer in a browser: an episode next to its dream, or a table of runs."""

    run: Annotated[Path, Positional("RUN")]
    """Run folder, or a folder of runs."""
    data: str | None = None
    """Show recorded episodes instead of playing: any supported format, or minari:NAME."""
    port: int = 8765
    """Port on this machine. 0: any free port. If the port is in use, another one is chosen."""
    live: bool = False
    """Print the link to the page of a run that is being trained with --human page instead, to watch and to take
    over."""

    def __call__(self) -> None:
        if self.live:
            from reverie.viewer.runs import find_live_pages

            for name, url in find_live_pages(self.run).items():
                show(url if name == "." else f"{name}: {url}")
            return
        from reverie.viewer.launch import ViewerServer, view  # imports torch

        server = ViewerServer(**options_for(view, self))
        show(server.url, flush=True)
        show(
            "Open this link in a browser on this machine. Anyone with the link has access. Press Ctrl-C to stop.",
            flush=True,
        )
        server.run()
