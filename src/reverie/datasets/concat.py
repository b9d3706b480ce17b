"""Several datasets as one."""

from __future__ import annotations

import dataclasses
import functools
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from reverie.core.errors import DataError
from reverie.core.rows import Rows
from reverie.core.specs import IS_INTERVENTION, ObsSpec, spec_to_dict
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import CLASSES, CONTROLLER, FPS, ROBOT, TASK, DatasetInfo, Reader, ReadOptions, Space

APART = (ROBOT, FPS, TASK, CONTROLLER)
"""Texts of ``DatasetInfo`` that should be the same in all parts."""


class ConcatReader(Reader):
    """Reads several datasets one after the other. Their spaces and environments must be the same."""

    is_guarded = False  # the parts guard themselves

    def __init__(self, path: Path, readers: Sequence[Reader], options: ReadOptions) -> None:
        super().__init__(path, options)
        self.readers = readers
        counts = Counter(reader.format for reader in readers)
        self._info: DatasetInfo | None = None  # not read yet
        if len(tasks := self.tasks()) > 1:
            self.assume_tasks(tasks)
        self.format: str = ", ".join(f"{n} x {kind}" for kind, n in counts.items())  # type: ignore[misc]  # of the instance

    def supports_option(self, option: str) -> bool:
        return any(reader.supports_option(option) for reader in self.readers)

    def set_expected_spaces(self, observation: Space, spec: ObsSpec) -> None:
        for reader in self.readers:
            reader.set_expected_spaces(observation, spec)

    def tasks(self) -> set[str]:
        return {task for reader in self.readers for task in reader.tasks()}

    def assume_tasks(self, tasks: Collection[str]) -> None:
        for reader in self.readers:
            reader.assume_tasks(tasks)

    def env_id(self) -> str:
        return next(filter(None, (reader.env_id() for reader in self.readers)), "")

    def cut_episodes(self) -> np.ndarray:
        numbers, offset = [np.empty(0, np.int64)], 0
        for reader in self.readers:
            numbers.append(reader.cut_episodes() + offset)
            offset += sum(int(part["is_first"].sum()) for part in reader.parts())
        return np.concatenate(numbers)

    def close(self) -> None:
        for reader in self.readers:
            reader.close()

    def rows(self) -> int:
        return sum(reader.rows() for reader in self.readers)

    def parts(self) -> Iterator[Rows]:
        return self._all("parts")

    def as_recorded(self) -> Iterator[Rows]:
        return self._all("as_recorded")

    def _all(self, name: str) -> Iterator[Rows]:
        info = self.info() if self._info is None else self._info
        for reader in self.readers:
            for part in getattr(reader, name)():
                if info.has_interventions:
                    part = {IS_INTERVENTION: np.zeros(len(part["is_first"]), bool), **part}
                yield part if info.has_propensity else {k: values for k, values in part.items() if k != PROPENSITY}
            self.merge_remarks({f"{reader.path.name}: {remark}": times for remark, times in reader.notes.items()})

    def locate(self, row: int, column: str) -> str:
        for reader in self.readers[:-1]:
            if row < (rows := reader.rows()):
                return reader.locate(row, column)
            row -= rows
        return self.readers[-1].locate(row, column)

    def info(self) -> DatasetInfo:
        """Return the common description of the datasets.

        Measured action spaces are joined; everything else must be equal.
        """
        infos = as_numbers([reader.info() for reader in self.readers])
        # the first with the most information
        first = max(infos, key=lambda info: (bool(info.env), bool(info.env_settings)))
        declared = next((info.action for info in infos if not info.has_measured_bounds), None)
        for reader, info in zip(self.readers, infos, strict=True):
            if (info.specs is None) != (first.specs is None):
                raise DataError(
                    f"{self.path}: {reader.path} ({reader.format}) cannot be joined with the others, since only "
                    "replay stores contain rows as learners see them. Convert the stores: reverie data convert."
                )
            _check(reader, "observations", _comparable_obs(info), _comparable_obs(first))
            if info.specs is not None and first.specs is not None:
                _check(reader, "actions", spec_to_dict({}, info.specs[1]), spec_to_dict({}, first.specs[1]))
            elif not info.has_measured_bounds:
                _check(reader, "actions", info.action, declared)
            if info.env:
                task, first_task = _task(info), _task(first)
                names = [name for name in task | first_task if task.get(name) != first_task.get(name)]
                differing = ({name: t.get(name) for name in names} for t in (task, first_task))
                _check(reader, "the environment", *differing)
        if unnamed := sum(not info.env for info in infos) if first.env else 0:
            self.add_remark(f"{unnamed} of {len(infos)} parts name no environment: {first.env} is assumed")
        if missing := [
            reader.path.name for reader, info in zip(self.readers, infos, strict=True) if not info.has_rewards
        ]:
            self.add_remark(
                f"all are treated as if they had no rewards, since {missing[0]} has none",
                int(len(missing) < len(infos)),
            )
        element_names = self._common_names(infos)
        present = [info.has_propensity for info in infos]
        self.add_remark(
            f"{PROPENSITY} is left out: only some of the parts have it", int(any(present) and not all(present))
        )
        declared_spaces = [info.declared_action_space for info in infos]
        declared_space = first.declared_action_space
        self._info = dataclasses.replace(
            first,
            action=functools.reduce(lambda a, b: _join_actions(a, b, self.path), (info.action for info in infos)),
            has_propensity=all(present),
            has_interventions=any(info.has_interventions for info in infos),
            has_rewards=all(info.has_rewards for info in infos),
            has_measured_bounds=any(info.has_measured_bounds for info in infos),
            numbered=any(info.numbered for info in infos),
            element_names=element_names,
            text=self._common_text(infos, first.text),
            declared_action_space=declared_space if all(d == declared_space for d in declared_spaces) else None,
        )
        return self._info

    def _common_text(self, infos: Sequence[DatasetInfo], text: Mapping[str, str]) -> dict[str, str]:
        """Return the texts of the first part, ``text``, with all tasks, and without what differs, which is named."""
        labels = [title for info in infos for title in info.text if title.startswith(CLASSES)]
        titles = dict.fromkeys([*APART, *labels])
        texts = {title: list(dict.fromkeys(info.text.get(title, "unknown") for info in infos)) for title in titles}
        for title, values in texts.items():
            self.add_remark(f"the parts differ in {title}: {', '.join(values)}", int(len(values) > 1))
        tasks = "; ".join(sorted(self.tasks()))
        if unnamed := [reader.path.name for reader in self.readers if tasks and not reader.tasks()]:
            self.add_remark(f"{unnamed[0]} does not name its tasks, as others do", len(unnamed))
        common = {title: value for title, value in text.items() if len(texts.get(title, ())) < 2}
        return common | ({"tasks": tasks} if tasks else {})

    def _common_names(self, infos: Sequence[DatasetInfo]) -> dict[str, tuple[str, ...]]:
        """Return the names of elements, without those that differ, with a remark; DataError if their order differs."""
        owners: dict[str, tuple[Reader, tuple[str, ...]]] = {}
        for reader, info in zip(self.readers, infos, strict=True):
            for column, names in info.element_names.items():
                owner, expected = owners.setdefault(column, (reader, names))
                if names != expected and sorted(names) == sorted(expected):
                    raise DataError(
                        f"{reader.path} names the elements of {column} {', '.join(names)}, but {owner.path} has the "
                        f"order {', '.join(expected)}: expected one order. Reorder the elements of one of them."
                    )
                remark = f"the names of the elements of {column} differ: {', '.join(names)} and {', '.join(expected)}"
                self.add_remark(remark, int(names != expected))
        named = [column for info in infos for column in info.element_names]
        for column in dict.fromkeys(named):
            remark = (
                f"only {named.count(column)} of {len(infos)} parts name the elements of {column}: one order is assumed"
            )
            self.add_remark(remark, int(named.count(column) < len(infos)))
        items = [item for info in infos for item in info.element_names.items()]
        return {
            column: names for column, (_, names) in owners.items() if all(n == names for c, n in items if c == column)
        }


def as_numbers(infos: Sequence[DatasetInfo]) -> list[DatasetInfo]:
    """Return the descriptions, with actions as continuous if other parts show that the same floats are continuous."""
    if not any(isinstance(info.action, spaces.Box) for info in infos):
        return list(infos)

    def box(action: Space) -> Space:
        high = np.float32(action.n if isinstance(action, spaces.Discrete) else action.nvec) - 1  # type: ignore[attr-defined]
        return spaces.Box(np.zeros_like(high), high, action.shape, np.float32)

    return [dataclasses.replace(i, action=box(i.action), numbered=False) if i.numbered else i for i in infos]


def _check(reader: Reader, label: str, actual: object, expected: object) -> None:
    if actual != expected:
        apart = "these are not parts of one dataset"
        raise DataError(f"{reader.path} has {label} {actual}, but others have {expected}: {apart}.")


def _task(info: DatasetInfo) -> dict[str, Any]:
    from reverie.datasets.dataset_env import DEFAULTS, user_wrappers  # imports all of envs/
    from reverie.envs.config import Mark, marked

    wrappers = [(w.get("name"), w.get("kwargs")) for w in user_wrappers(info) if w.get("name") != "NoopReset"]
    declared = {"kwargs": info.env_kwargs, "max_episode_steps": info.max_episode_steps, **info.env_settings}
    settings = DEFAULTS.to_dict() | declared
    names = marked(Mark.MEANING, Mark.ROWS)
    return {"id": info.env, **{name: settings[name] for name in names}, "around": wrappers}


def _comparable_obs(info: DatasetInfo) -> Any:
    """Return the observations as learners see them: all unbounded floats are float32."""
    if info.specs is not None:
        return info.specs[0]
    space = info.observation
    if isinstance(space, spaces.Box) and space.dtype.kind == "f" and np.isinf([space.low, space.high]).all():
        return spaces.Box(-np.inf, np.inf, space.shape, np.float32)
    return space


def _join_actions(a: Space, b: Space, path: Path) -> Space:
    """Return the smallest action space that contains both; raise DataError if they are of different kinds."""
    if a == b:
        return a
    if isinstance(a, spaces.Discrete) and isinstance(b, spaces.Discrete) and a.start == b.start:
        return spaces.Discrete(int(max(a.n, b.n)), start=int(a.start))
    if isinstance(a, spaces.Box) and isinstance(b, spaces.Box) and a.shape == b.shape:
        low, high = np.minimum(a.low, b.low), np.maximum(a.high, b.high)
        return spaces.Box(low, high, a.shape, np.result_type(a.dtype, b.dtype).type)
    raise DataError(f"{path} has different actions, {b} and {a}: these are not parts of one dataset.")
