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
from reverie.core.version import version

if TYPE_CHECKING:  # these import torch, which --help does not need
    from reverie.core.specs import ActionSpec, ObsPart
    from reverie.experiment.bench import Report
    from reverie.experiment.config import ExperimentConfig
    from reverie.experiment.settings import Request


@dataclass(frozen=True, kw_only=True)
class BenchCommand:
    """Measure the speed of a learner on this machine.

    Observations come from an environment, or are random values of a given shape.
    """

    algorithm: Annotated[str, Positional("ALGORITHM")] = DEFAULT_ALGORITHM
    """Algorithm; `reverie list` names them all."""
    env: str = ""
    """Environment, as for `reverie train`; its speed is measured as well."""
    image: str = ""
    """Instead of an environment: images of this height, width and number of channels, such as 64x64x3."""
    obs_size: int | None = None
    """Instead of an environment, or in addition to an image: vector observations of this size."""
    action_size: int | None = None
    """With --image or --obs-size: size of continuous actions."""
    num_actions: int | None = None
    """With --image or --obs-size: number of discrete actions; 6 by default."""
    size: str | None = None
    """Size of the networks, such as 12m; `reverie list` names them. None: the preset's."""
    preset: str | None = None
    """Preset to start from. None: the environment's preset, or the algorithm's if a shape is given."""
    batch: str = ""
    """Batch: windows x rows per window, such as 16x64. Empty: the preset's."""
    precision: Literal["float32", "bfloat16"] | None = None
    """Precision of the networks. None: the preset's."""
    envs: int | None = None
    """Number of environments stepped together. None: the preset's."""
    threads: int | None = None
    """CPU threads that PyTorch may use. 0: PyTorch's own choice. None: the preset's."""
    device: str = "auto"
    """cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    json: Path | None = None
    """Also write all numbers to this JSON file."""

    def __post_init__(self) -> None:
        _parse_dims(self.image or "64x64x3", "image", "height x width x channels, such as 64x64x3")
        _parse_dims(self.batch or "16x64", "batch", "windows x rows, such as 16x64")

    @property
    def has_shape(self) -> bool:
        """Whether a shape was given instead of an environment."""
        return bool(self.image) or self.obs_size is not None

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


def _parse_dims(text: str, name: str, meaning: str) -> tuple[int, ...]:
    """Parse ``64x64x3`` as numbers, one for each that ``meaning`` names; ConfigError if the format is wrong."""
    if not re.fullmatch("x".join([r"[1-9]\d*"] * (meaning.count(" x ") + 1)), text):
        raise ConfigError(f"{name} = '{text}': expected {meaning}.")
    return tuple(map(int, text.split("x")))


def make_request(options: BenchCommand) -> Request:
    """Return what ``reverie train`` would be asked with the same arguments."""
    from reverie.experiment.settings import PRESETS, Request

    algorithm = options.algorithm.replace("-", "_")
    preset = algorithm if options.has_shape and options.preset is None and algorithm in PRESETS else options.preset
    changes: dict[str, Any] = {"device": options.device, "threads": options.threads}
    changes |= {"env.num": options.envs, "algo.precision": options.precision}
    if options.batch:
        changes |= dict(zip(("algo.batch_size", "algo.batch_length"), map(int, options.batch.split("x")), strict=True))
    changes = {key: value for key, value in changes.items() if value is not None}
    return Request(
        algorithm=options.algorithm, env=options.env or None, preset=preset, size=options.size, overrides=changes
    )


def _run_benchmark(options: BenchCommand, config: ExperimentConfig) -> Report:
    """Run the benchmark that ``options`` ask for."""
    from reverie.core.hardware import choose_device
    from reverie.experiment import bench

    print_kernel_problem(choose_device(config.device))
    if options.has_shape:
        print(f"measuring {options.algorithm} on random data ...", flush=True)
        specs = specs_from_flags(options)
        return bench.benchmark(config, *specs)
    from reverie.envs.slot_vector_env import make_vector_env

    env = make_vector_env(config.env, seed=config.seed)
    try:
        print(f"measuring {options.algorithm} on {config.env.id} ...", flush=True)
        return bench.benchmark(config, env.obs_spec, env.action_spec, env=env)
    finally:
        env.close()


def specs_from_flags(options: BenchCommand) -> tuple[dict[str, ObsPart], ActionSpec]:
    """Return the observation and action specs that the flags describe."""
    from reverie.core.specs import ActionPart, ActionSpec, ObsPart

    obs = {}
    if options.image:
        obs["image"] = ObsPart(kind="image", shape=tuple(map(int, options.image.split("x"))), dtype="uint8")
    if options.obs_size is not None:
        obs["vector"] = ObsPart(kind="vector", shape=(options.obs_size,), dtype="float32")
    if options.action_size is not None:
        return obs, ActionSpec(parts={"action": ActionPart(kind="continuous", size=options.action_size)})
    return obs, ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(options.num_actions or 6,))})


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
