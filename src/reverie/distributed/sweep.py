"""A sweep: named settings in several environments with several seeds, from one file; each seed is a run of its own."""

from __future__ import annotations

import contextlib
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from reverie.algos.table import DEFAULT_ALGORITHM
from reverie.core.action_codec import ActionCodec
from reverie.core.config import flatten
from reverie.core.documents import LIBYAML_LOADER, read_yaml
from reverie.core.errors import ConfigError, ReverieError, RunError, UntrustedError, did_you_mean, short_repr
from reverie.core.files import check_links, disk_errors_as_run_error, read_file, write_atomic
from reverie.core.imports import check_module, trust_modules
from reverie.core.locations import check_location, is_plain, trust_locations
from reverie.core.specs import ActionSpec
from reverie.distributed.run_processes import find_runs_folder, open_runs_folder
from reverie.distributed.seeds import SeedsFolder, SeedsResult, check_seeds, train_folders
from reverie.envs.config import EnvConfig
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.dataset_env import resolve_with_data
from reverie.experiment.environments import plays, probe_env
from reverie.experiment.settings import Layer, Request, check_layer
from reverie.run.folder import SWEEP_FILE, check_num_runs, folder_name, read_saved_config

SECTIONS = ("run", "seeds", "algorithm", "defaults", "environments", "settings")
"""Keys of the file of a sweep."""
Cell = tuple[str, str]
"""Names of a setting and of an environment."""


@dataclass(frozen=True, kw_only=True)
class SweepResult:
    """How a sweep ended."""

    run: Path
    """Folder of the sweep."""
    cells: dict[Cell, SeedsResult]
    """Results of the seeds of each setting in each environment, by their names."""
    signal: int | None
    """Number of the signal that interrupted it; None if none did."""


def sweep(
    source: Path | str | Mapping[str, Any], *, run: Path | str | None = None, seeds: int | Sequence[int] | None = None,
    jobs: int = 0, only: Sequence[str] = (),
) -> SweepResult:  # fmt: skip
    """Train named settings in several environments with several seeds, or continue such a sweep.

    Args:
        source: a YAML file, or its content. ``settings`` and ``environments`` map names to settings of a run, which
            override ``defaults``; of several values that of ``settings`` counts. ``environments`` can also be a list of
            ids. ``algorithm`` and ``seeds`` apply to all; an entry of ``settings`` can have its own ``algorithm``.
        run: the folder of the sweep. None: the ``run`` of the file, or else ``runs/`` and the name of the file.
        seeds: the number of seeds, counted up from 0, or a list. None: the ``seeds`` of the file, or else 3.
        jobs: how many to train at a time. 0: as many as the cores allow with the threads of each; one on a GPU.
        only: names of settings or environments; others are left out of this call.

    Raises:
        ReverieError: the file is wrong, an environment cannot be made, or no run could start. Errors before the first
            run name the line of the file.
    """
    plan = SweepPlan(source, run, seeds, only)
    plan.check_environments()
    folders = plan.open_folders()
    config = next(iter(plan.cells.values()))
    with open_runs_folder(plan.path, config, None, is_new=not plan.path.exists()) as trainer:
        plan.write()
        results = train_folders([*folders.values()], f"sweep {plan.path.name}", jobs or trainer.max_parallel, trainer)
    return SweepResult(run=plan.path, cells=dict(zip(folders, results, strict=True)), signal=results[0].signal)


def prepare_commands(plan: SweepPlan) -> list[list[str]]:
    """Write the settings of all runs of ``plan``; return the command line of each unfinished run, without reverie."""
    plan.check_environments()
    folders = plan.open_folders().values()
    plan.write()
    for folder in folders:
        folder.write_settings()
    return [folder.command(run) for folder in folders for run in folder.runs if run.state == "waiting"]


class SweepPlan:
    """The settings of each cell of a sweep. Writes nothing until :meth:`write`."""

    def __init__(
        self, source: Path | str | Mapping[str, Any], run: Path | str | None = None,
        seeds: int | Sequence[int] | None = None, only: Sequence[str] = (), device: str | None = None,
    ) -> None:  # fmt: skip
        """``device``: of runs whose settings name none. For the others see :func:`sweep`."""
        path = None if isinstance(source, Mapping) else Path(source)
        self.name: str = str(path or "sweep")
        self.values: dict[str, Any] = dict(source) if isinstance(source, Mapping) else read_yaml(Path(source), 2)
        self.is_file: bool = path is not None
        self.lines: dict[tuple[str, ...], int] = {} if path is None else _list_lines(path)
        self.device = device
        self._check_sections()
        location = self.values.get("run", f"runs/{'sweep' if path is None else path.stem}")
        self.path: Path = self._read_location(location) if run is None else Path(os.path.expanduser(run))
        self.seeds: list[int] = self._list_seeds(self.values.get("seeds", 3) if seeds is None else seeds)
        self.cells: dict[Cell, ExperimentConfig] = {cell: self._resolve(*cell) for cell in self._select(only)}

    def _check_sections(self) -> None:
        """Check the shape of the file, and that each name has its own folder."""
        for key in self.values.keys() - {*SECTIONS}:
            raise ConfigError(f"{self._position(key)}: unknown key '{key}'.{did_you_mean(str(key), SECTIONS)}")
        for section in ("settings", "environments"):
            content = self.values.get(section)
            content = dict.fromkeys(map(str, content)) if isinstance(content, list) else content
            if not isinstance(content, Mapping) or not content:
                reason = f"{section} = {short_repr(content)}: expected names, each with settings"
                raise ConfigError(f"{self._position(section)}: {reason}.")
            content = {str(name): {} if values is None else values for name, values in content.items()}
            self.values[section] = content
            folders: dict[str, str] = {}
            for name, values in content.items():
                self._check_settings(values, section, name)
                if (twin := folders.setdefault(folder_name(name).lower(), name)) != name:
                    reason = f"'{name}' and '{twin}' would have the same folder"
                    raise ConfigError(f"{self._position(section, name)}: {reason}. Rename one of them.")

        self._check_settings(self.values.get("defaults", {}), "defaults")

    def _check_settings(self, values: object, *keys: str) -> None:
        if not isinstance(values, Mapping):
            raise ConfigError(f"{self._position(*keys)}: {keys[-1]} = {short_repr(values)}: expected settings.")

    def _read_location(self, run: object) -> Path:
        """Return the folder that the file names; UntrustedError if it is outside of the current one."""
        if not isinstance(run, str | Path):
            raise ConfigError(f"{self._position('run')}: run = {short_repr(run)}: expected the path of a folder.")
        if self.is_file:
            check_location(str(run), self._position("run"), Path())
        return Path(os.path.expanduser(run))

    def _list_seeds(self, seeds: object) -> list[int]:
        num_cells = len(self.values["settings"]) * len(self.values["environments"])
        if isinstance(seeds, int):
            check_num_runs(self._position("seeds"), num_cells, seeds)
            return [*range(seeds)]
        if not isinstance(seeds, Sequence) or not all(isinstance(seed, int) for seed in seeds):
            raise ConfigError(f"{self._position('seeds')}: seeds = {short_repr(seeds)}: expected a number, or a list.")
        check_num_runs(self._position("seeds"), num_cells, len(seeds))
        return [*seeds]

    def _select(self, only: Sequence[str]) -> list[Cell]:
        """Return the cells with the names in ``only``; all if there are none."""
        groups = [[*self.values[section]] for section in ("settings", "environments")]
        for name in only:
            if name not in (names := [*groups[0], *groups[1]]):
                raise ConfigError(
                    f"only = {name}: {self.name} has no such setting or environment.{did_you_mean(name, names)}"
                )
        settings, environments = ([name for name in group if name in only] or group for group in groups)
        return [*itertools.product(settings, environments)]

    def _resolve(self, setting: str, env: str) -> ExperimentConfig:
        """Return the settings of a cell."""
        section, path = self.values["settings"][setting], ("settings", setting, "algorithm")
        algorithm = str(section.get("algorithm", self.values.get("algorithm", DEFAULT_ALGORITHM)))
        with trust_modules(not self.is_file):  # what a program passes, the user names
            check_module(algorithm, self._position(*path))
            layers = [*self._iter_layers("defaults")]
            if not {"env", "env.id", "data", "data.path"} & flatten(self.values["environments"][env]).keys():
                layers.append(check_layer(self._position("environments", env), {"env": env}))
            layers += [*self._iter_layers("environments", env), *self._iter_layers("settings", setting)]
        base = [*self._saved_preset(algorithm, setting, env), *[Layer("", {"device": self.device})] * bool(self.device)]
        with self._errors_at(*path):
            config = resolve_with_data(Request(algorithm=algorithm, files=[*base, *layers]))
            check_seeds(config, self.seeds, 0)
        return config

    def _iter_layers(self, *section: str) -> Iterator[Layer]:
        """Yield a layer for each setting of a section, so that errors name its line; the size of networks first."""
        values = self.values
        for name in section:
            values = values.get(name) or {}
        for key, value in sorted(values.items(), key=lambda item: item[0] != "size"):
            if key != "algorithm":
                yield check_layer(self._position(*section, key), {key: value})

    def _saved_preset(self, algorithm: str, setting: str, env: str) -> list[Layer]:
        """Return the preset with which a cell has begun, perhaps on a machine with a GPU; none if it is new."""
        file = self.path / folder_name(setting) / folder_name(env) / "settings.yaml"
        saved = read_saved_config(file.parent, file) if file.is_file() else None
        if saved is None or saved.algorithm != algorithm or not (preset := saved.experiment.get("preset")):
            return []
        return [Layer(str(file), {"preset": preset})]

    def check_environments(self) -> None:
        """Make each environment once, and check that its actions suit each algorithm; an error names the line."""
        probes: list[tuple[EnvConfig, ActionSpec]] = []
        for (setting, env), config in self.cells.items():
            if plays(config):
                if (spec := next((spec for env_config, spec in probes if env_config == config.env), None)) is None:
                    with self._errors_at("environments", env):
                        space = probe_env(config, None).action
                        assert space is not None  # else it raises
                        spec = ActionCodec(space).spec
                    probes.append((config.env, spec))
                with self._errors_at("settings", setting, "algorithm"):
                    config.algo.check_actions(spec)

    def open_folders(self) -> dict[Cell, SeedsFolder]:
        """Return the folder of each cell, with the states of its runs; RunError if it contains something else."""
        check_links(self.path)
        is_sweep = (self.path / SWEEP_FILE).is_file()
        if not is_sweep and self.path.exists() and any(not file.name.startswith(".") for file in self.path.iterdir()):
            raise RunError(f"{self.path} is not empty, and no sweep (it has no {SWEEP_FILE}): choose another --run.")
        folders = {}
        for (setting, env), config in self.cells.items():
            path = self.path / folder_name(setting) / folder_name(env)
            path, before = find_runs_folder(config, path, "seeds", None)
            folders[setting, env] = SeedsFolder(config, path, before, self.seeds, f"{setting} {env}")
        return folders

    def write(self) -> None:
        """Write the content of the file to the folder of the sweep, which files may name from now on."""
        if not is_plain(str(self.path), Path()):
            trust_locations([str(self.path)])
        with disk_errors_as_run_error(self.path):
            write_atomic(self.path / SWEEP_FILE, yaml.safe_dump(self.values, sort_keys=False, allow_unicode=True))

    def _position(self, *keys: str) -> str:
        """Return where ``keys`` are in the file, for errors."""
        lines = (self.lines[keys[:count]] for count in range(len(keys), 0, -1) if keys[:count] in self.lines)
        line = next(lines, None)
        return self.name if line is None else f"{self.name}, line {line}"

    @contextlib.contextmanager
    def _errors_at(self, *keys: str) -> Iterator[None]:
        """Name the line of ``keys`` in errors that name no line."""
        try:
            yield
        except UntrustedError:
            raise
        except ReverieError as error:
            is_placed = str(error).startswith(self.name)
            raise ConfigError(str(error) if is_placed else f"{self._position(*keys)}: {error}") from error


def _list_lines(path: Path) -> dict[tuple[str, ...], int]:
    """Return the lines of the keys of a YAML file that was read without an error, down to three levels."""

    def iter_keys(node: yaml.Node | None, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], int]]:
        pairs = node.value if isinstance(node, yaml.MappingNode | yaml.SequenceNode) and len(above) < 3 else ()
        for pair in pairs:
            key, value = pair if isinstance(pair, tuple) else (pair, None)
            if isinstance(key, yaml.ScalarNode):
                yield (*above, key.value), key.start_mark.line + 1
                yield from iter_keys(value, (*above, key.value))

    return dict(iter_keys(yaml.compose(read_file(path).decode(), LIBYAML_LOADER)))  # whose depth read_yaml has checked
