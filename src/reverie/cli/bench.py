"""``reverie bench``: the speed of a learner on this machine."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from reverie.algos.table import DEFAULT_ALGORITHM
from reverie.cli.output import print_kernel_problem, print_sections
from reverie.cli.parsing import Positional
from reverie.core.errors import ConfigError, count_noun
from reverie.core.terminal import show
from reverie.core.version import version

if TYPE_CHECKING:  # these import torch, which --help does not need
    from reverie.experiment.bench import Report
    from reverie.experiment.config import ExperimentConfig
    from reverie.experiment.settings import Request


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure the speed of a learner on this machine, on random data of the shapes of an environment."""

    algorithm: Annotated[str, Positional("ALGORITHM")] = DEFAULT_ALGORITHM
    """Algorithm; `reverie list` names them all."""
    env: str = ""
    """Environment, as for `reverie train`; its speed is measured as well. Empty: that of the preset."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    preset: str | None = None
    """Preset to start from. None: the environment's preset."""
    batch: str = ""
    """Batch: windows x rows per window, such as 16x64. Empty: the preset's."""
    precision: Literal["float32", "bfloat16", "float16"] | None = None
    """Precision of the networks. None: the preset's."""
    envs: int | None = None
    """Number of environments stepped together. None: the preset's."""
    threads: int | None = None
    """CPU threads that PyTorch may use. 0: PyTorch's own choice. None: the preset's."""
    device: str | None = None
    """cpu, cuda, cuda:1, or auto for a GPU if there is one. None: the preset's."""
    json: Path | None = None
    """Also write all numbers to this JSON file."""

    def __post_init__(self) -> None:
        if self.batch and not re.fullmatch(r"[1-9]\d*x[1-9]\d*", self.batch):
            raise ConfigError(f"batch = '{self.batch}': expected windows x rows, such as 16x64.")

    def __call__(self) -> None:
        from reverie.experiment.settings import merge_layers  # imports torch

        config = merge_layers(make_request(self))
        report = _run_benchmark(self, config)
        print_sections({"learner": _learner_lines(report), "machine": _machine_lines(report)})
        if self.json is not None:
            from reverie.core.files import disk_errors_as_run_error, write_json

            values = {
                "reverie": version(),
                **asdict(report),
                "share": report.matrix_rate_share,
                "settings": config.to_dict(),
            }
            with disk_errors_as_run_error(self.json):
                write_json(self.json, values)


def make_request(options: BenchCommand) -> Request:
    """Return what ``reverie train`` would be asked with the same arguments."""
    from reverie.experiment.settings import Request

    changes: dict[str, Any] = {"device": options.device, "threads": options.threads}
    changes |= {"env.num": options.envs, "algo.precision": options.precision}
    if options.batch:
        changes |= dict(zip(("algo.batch_size", "algo.batch_length"), map(int, options.batch.split("x")), strict=True))
    changes = {key: value for key, value in changes.items() if value is not None}
    return Request(
        algorithm=options.algorithm, env=options.env or None, preset=options.preset, size=options.size,
        overrides=changes,
    )  # fmt: skip


def _run_benchmark(options: BenchCommand, config: ExperimentConfig) -> Report:
    """Run the benchmark that ``options`` ask for."""
    from reverie.envs.slot_vector_env import make_vector_env
    from reverie.experiment import bench

    print_kernel_problem(config.learner_device())
    env = make_vector_env(config.env, seed=config.seed)
    try:
        show(f"measuring {options.algorithm} on {config.env.id} ...", flush=True)
        return bench.benchmark(config, env.obs_spec, env.action_spec, env=env)
    finally:
        env.close()


# ---------------------------------------------------------------- words


Line = tuple[str, str, str]
"""Name, value, and remark."""


def _learner_lines(report: Report) -> list[Line]:
    """Return the lines about one update and one decision."""
    speed = report.speed
    lines = [
        ("parameters", f"{speed.parameters / 1e6:.2f}M", ""),
        ("first update", _format_seconds(speed.first_update_s), "once"),
        (
            "update",
            _format_seconds(speed.update_s),
            f"{speed.rows_per_s:,.{int(speed.rows_per_s < 10)}f} rows per second",
        ),
        *(("decision", _format_seconds(ms / 1e3), f"for {count_noun(n, 'env')}") for n, ms in speed.act_ms.items()),
        ("memory", f"{speed.peak_gb:.2f} GB", "peak, without a replay"),
    ]
    if report.env_steps_per_s is not None:
        lines.append(("environments", f"{report.env_steps_per_s:,.0f} steps/s", "on their own"))
    if speed.device_peak_gb is not None:
        lines.append(("GPU memory", f"{speed.device_peak_gb:.2f} GB", "peak"))
    return lines


def _machine_lines(report: Report) -> list[Line]:
    """Return the lines about the machine's speed, and the fraction of it that an update reaches."""
    machine = report.machine
    lines = [
        ("computer", machine["gpu"] or machine["processor"], f"{machine['threads']} threads, {machine['cores']} cores"),
        *(("matrix products", f"{rate:,.0f} GFLOP/s", name) for name, rate in report.matrix_gflops.items()),
    ]
    if machine["kernels"] is not None:
        lines.append(("kernels", machine["kernels"], "for element-wise operations"))
    if report.speed.gflop is not None:
        lines.append(("update", f"{report.speed.gflop:,.1f} GFLOP", "matrix products and convolutions"))
    if report.matrix_rate_share is not None:
        lines.append(("utilization", f"{report.matrix_rate_share:.0%}", f"of the {report.precision} rate"))
    return lines


def _format_seconds(value: float) -> str:
    """Format a time below about a minute."""
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"
