"""``reverie dream``: compare what the world model imagines with what happens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from reverie.commands.args import Trusting, as_given, fail, parse, print_files, print_trouble
from reverie.commands.data import Reading, as_here
from reverie.core.words import plural


@dataclass(frozen=True, kw_only=True)
class DreamCommand(Trusting):
    """Compare what the world model imagines with what happens."""

    run: Annotated[Positional[Path], arg(metavar="RUN")]
    """Run folder."""
    context: int | None = None
    """Rows of each episode that the model sees first. None: 8, or a third of the usual episode if that is less."""
    horizon: int = 48
    """Most env steps that it imagines after them; fewer where episodes are shorter."""
    sequences: int = 6
    """Number of episodes."""
    mode: Literal["mode", "sample"] = "mode"
    """Play the episodes with the policy's most likely actions, or with sampled ones."""
    checkpoint: Path | None = None
    """Name of a folder in the run's checkpoints/, best, or a path. None: the newest."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    seed: int | None = None
    """Seed of environments and dreams. None: derived from that of the run."""
    env: str | None = None
    """Environment to act in, for an agent that learned from recorded data alone."""
    data: str = ""
    """Predict recorded episodes, the first ones that are long enough, in place of playing: a file, folder or glob of
    any format that can be read, or minari:NAME."""
    reading: Annotated[Reading, arg(name="")] = field(default_factory=Reading)


def dream_command(args: list[str]) -> int:
    """Run ``reverie dream``."""
    said = parse(DreamCommand, [as_here(word) for word in args], "dream")
    if not said.data and (unused := said.reading.given()):
        return fail(f"{unused} without --data: nothing is read, as the agent plays the episodes.", 2)
    from reverie.agent.dreaming import dream
    from reverie.agent.loading import load
    from reverie.datasets.dataset import DatasetConfig

    agent = load(said.run, env=said.env, checkpoint=said.checkpoint, device=said.device)
    print_trouble(agent.algo.device.type)
    report = dream(
        agent,
        context=said.context,
        horizon=said.horizon,
        sequences=said.sequences,
        actions=said.mode,
        seed=said.seed,
        data=DatasetConfig(path=said.data, **asdict(said.reading)) if said.data else None,
    )
    fewer = (
        f" of {said.sequences} (the others were shorter, or there were no more)"
        if report.sequences < said.sequences
        else ""
    )
    dreams = f"{plural(report.sequences, 'dream')}{fewer}"
    steps = plural(len(next(iter(report.errors.values()))), "step")
    where = f"{said.data or agent.config.env.id}, {agent.checkpoint.name}"
    print(f"{where}: {dreams}, {steps} each, after {plural(report.context, 'row')} that the model saw")
    print("error per imagined step; in brackets, the error of repeating the last observed row")
    trained = getattr(agent.config.algo, "horizon", None)
    print("" if trained is None else f"(during training, the model imagines only {plural(trained, 'step')} ahead)\n")
    print(error_table(report.errors, report.repeated))
    print()
    for key, unit in report.units.items():
        print(f"  {key}: {unit}")
    print_files(as_given(report.files, said.run))
    return 0


def error_table(errors: Mapping[str, Any], repeated: Mapping[str, Any]) -> str:
    """Format the errors at steps 1, 2, 4, 8 ... and the last as a table."""
    horizon = len(next(iter(errors.values())))
    steps = sorted({2**i for i in range(horizon.bit_length()) if 2**i <= horizon} | {horizon})
    width = max(12, *(len(key) for key in errors)) + 2
    lines = [f"{'step':<{width}}" + "".join(f"{step:>20}" for step in steps)]
    for key, error in errors.items():
        cells = (f"{error[s - 1]:.4g} ({repeated[key][s - 1]:.4g})" for s in steps)
        lines.append(f"{key:<{width}}" + "".join(f"{cell:>20}" for cell in cells))
    return "\n".join(lines)
