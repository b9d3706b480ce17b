"""Begin a new run with the agent of another run: the setting ``init``."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from reverie.algos.base import Algorithm, AlgorithmConfig, ModelFree
from reverie.core.discover import algorithm_config, algorithm_name, algorithms, same_algorithm
from reverie.core.errors import RunError
from reverie.core.types import State
from reverie.core.words import Say
from reverie.datasets.dataset import DatasetConfig
from reverie.experiment import Experiment, ExperimentConfig
from reverie.folder import RunFolder, check_spec
from reverie.run.checkpoint import Checkpoints
from reverie.saved import read_saved, settings_changes
from reverie.training.checkpointing import place_of


def begin_with(experiment: Experiment, say: Say) -> None:
    """Load the agent of the run or checkpoint ``init``: weights, optimisers, statistics of the normalisation.

    Nothing else of that run is taken: steps and updates count from 0, a decaying learning rate starts again, and no
    rows are copied. DreamerV3's warm-up is not repeated, as its optimiser's moments are there already.

    Raises:
        RunError: there is no such run or checkpoint, or it has another algorithm, other sizes or other spaces.
    """
    if experiment.config.init is None:
        return
    given = Path(os.path.expanduser(experiment.config.init))
    inside = given.parent.name == "checkpoints"
    folder = RunFolder(given.parents[1] if inside else given)
    if not folder.config.is_file():
        raise RunError(f"init = '{given}': expected a run folder, or a checkpoint in one.")
    saved, name = read_saved(folder.path), algorithm_name(type(experiment.config.algo))
    if not begins(type(experiment.config.algo), saved.algorithm):
        raise RunError(f"init = '{given}': expected a run of {name}, but it is a run of {saved.algorithm}.")
    check_spec(folder, experiment.obs_spec, experiment.action_spec)
    path = Checkpoints(folder.checkpoints, say=say).chosen(given.name if inside else None)
    try:
        Checkpoints(folder.checkpoints, say=say).load(path, {"algo": Shared(experiment.algo)})
    except RunError as error:
        lines = settings_changes(saved.experiment.get("algo", {}), experiment.config.algo.to_dict(), "algo.")
        raise RunError(f"{error} Different settings: {'; '.join(lines) or 'none found'}.") from error
    if isinstance(experiment.algo, ModelFree):
        experiment.algo.renew()
    say(f"starting with the agent of {path}")


def begins(config: type[AlgorithmConfig], saved: str) -> bool:
    """Return whether a run of ``saved`` has all parts of ``config``'s learner: of the same algorithm, or of one on it.

    So a run of Plan2Explore begins one of DreamerV2.
    """
    name = algorithm_name(config)
    return same_algorithm(saved, name) or (saved in algorithms() and issubclass(algorithm_config(saved), config))


class Shared:
    """A learner that leaves out the networks of a checkpoint that it does not have."""

    def __init__(self, learner: Algorithm) -> None:
        self.learner = learner

    def state_dict(self) -> State:
        """Return the learner's state."""
        return self.learner.state_dict()

    def load_state_dict(self, state: State) -> None:
        """Restore the learner's own networks, and the rest of its state."""
        own = {name.partition(".")[0] for name in self.learner.state_dict()["model"]}
        model = {name: value for name, value in state["model"].items() if name.partition(".")[0] in own}
        self.learner.load_state_dict({**state, "model": model})


def with_beginning(config: ExperimentConfig, before: Mapping[str, Any], path: Path) -> ExperimentConfig:
    """Return ``config`` with the ``init``, ``replay.init`` and, unless set, ``threads`` of the run in ``path``.

    Args:
        config: the settings with which the run continues. They may leave out both.
        before: the settings of the run so far, as plain values.
        path: the run folder.

    Raises:
        RunError: ``config`` has another ``init`` or ``replay.init``, which could not take effect any more.
    """
    had = {"init": before.get("init"), "replay.init": tuple(before.get("replay", {}).get("init", ()))}
    for name, value in {"init": config.init, "replay.init": config.replay.init}.items():
        if value and places(value) != places(had[name]):
            raise RunError(
                f"{name} = {value!r} applies only to a new run, but {path} began with {name} = {had[name]!r}. Leave it "
                "out to continue that run, or choose another --run to begin a new one."
            )
    return config.merge({**had, "threads": config.threads or before.get("threads", 0)})


def places(given: Any) -> list[str]:
    """Return the path or URL, or several of them, as absolute ones; [] for None."""
    return [place_of(place) for place in ([given] if isinstance(given, str) else given or ())]


def check_same_kind(folder: RunFolder, data: DatasetConfig) -> None:
    """Check that a continued run learns from the same kind of data: collected rows, recorded data, or both.

    A checkpoint holds positions in the replay, in the recorded data, or in both, and cannot change between these.

    Raises:
        RunError: ``data`` asks for another kind.
    """
    before = DatasetConfig.from_dict(read_saved(folder.path).experiment.get("data", {}))
    if before.alone != data.alone or (data.path and not before.path):
        recorded = "recorded data alone" if before.alone else "recorded and collected rows"
        were = recorded if before.path else "collected rows"
        raise RunError(
            f"{folder.path} was trained on {were}, which cannot change when it continues. To start a new run with its "
            f"agent, pass --init {folder.path}, in Python init='{folder.path}'."
        )
