"""Begin a run with the agent of another one, or with parts of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from reverie.algos.base import Algorithm
from reverie.algos.model_free import ModelFree
from reverie.algos.settings import AlgorithmConfig
from reverie.core.discover import algorithm_config, algorithm_name, algorithms, same_algorithm
from reverie.core.errors import RunError, plural
from reverie.core.importing import check_module
from reverie.core.logger import logger
from reverie.core.types import State
from reverie.experiment.config import ExperimentConfig
from reverie.nn.target import Target
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, read_saved, read_spec, spec_changes

NORMALISER = "preprocess.normaliser."
"""Beginning of the names of the statistics that normalise observations."""
LISTED = 4
"""Largest number of parameters that a message lists."""


def load_initial(learner: Algorithm, config: ExperimentConfig, spec: Mapping[str, Any]) -> None:
    """Load what ``config.init`` and ``config.init_parts`` name into a new ``learner``, and log what begins anew.

    Without ``init_parts``, a run of the same algorithm gives weights, optimisers and normalisation; else see
    :class:`Parts`. Steps, updates and decaying rates begin anew. ``spec``: the content of this run's spec.json.

    Raises:
        RunError: there is no such run or checkpoint; its environment differs, and there are no ``init_parts``; or
            nothing fits.
        UntrustedError: its algorithm is of a module that no installed package offers and the user has not named.
    """
    if config.init is None:
        return
    given = Path(os.path.expanduser(config.init))
    inside = given.parent.name == "checkpoints"
    folder = RunFolder(given.parents[1] if inside else given)
    if not folder.config.is_file():
        raise RunError(f"init = '{given}': expected a run folder, or a checkpoint in one.")
    saved, parts = read_saved(folder.path).algorithm, None
    if config.init_parts or not begins(type(config.algo), saved):
        same = vectors(read_spec(folder) or spec) == vectors(spec)
        parts = Parts(learner, config, saved, statistics=same)
    changes = spec_changes(folder, spec)
    if changes and not config.init_parts:
        raise RunError(
            f"{'; '.join(changes)}: the environment differs from the one that {folder.path} was trained on. Use the "
            "same environment with the same env options, or take only parts that fit, with init_parts."
        )
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(given.name if inside else None)
    checkpoints.load(path, {"algo": parts or Shared(learner)})
    if parts is not None:
        logger.info(f"starting with parts of the agent of {path}: {', '.join(grouped(parts.taken, parts.anew))}")
        logger.info(f"beginning anew: {', '.join([*grouped(parts.anew, parts.taken), 'optimisers'])}")
        for line in (*changes, *parts.remarks):
            logger.warning(f"init: {line}")
    else:
        if isinstance(learner, ModelFree):
            learner.renew()
        logger.info(f"starting with the agent of {path}")
    normaliser = learner.preprocess.normaliser if isinstance(learner, ModelFree) else None
    if normaliser is not None:
        first = f"the statistics of {path}, of {plural(normaliser.count, 'row')}" if normaliser.count else "new rows"
        logger.info(f"observations are normalised by {first}")


def begins(config: type[AlgorithmConfig], saved: str) -> bool:
    """Return whether a run of ``saved`` has all parts of ``config``'s learner, as Plan2Explore those of DreamerV2."""
    name = algorithm_name(config)
    return same_algorithm(saved, name) or (saved in algorithms() and issubclass(algorithm_config(saved), config))


def vectors(spec: Mapping[str, Any]) -> list[str]:
    """Return the keys of the vectors in the content of a spec.json, in the order of their statistics."""
    return sorted(key for key, part in spec["observation"].items() if part["kind"] == "vector")


class Shared:
    """A learner that leaves out the networks of a checkpoint that it does not have."""

    def __init__(self, learner: Algorithm) -> None:
        self.learner = learner
        self.state_dict: Callable[[], dict[str, Any]] = learner.state_dict

    def load_state_dict(self, state: State) -> None:
        """Load the state of a learner that has all networks of this one."""
        held = self.state_dict()["model"]
        if problem := other_normalisation(held, state["model"]):
            raise RunError(f"init: {problem}.")
        own = {name.partition(".")[0] for name in held}
        model = {name: value for name, value in state["model"].items() if name.partition(".")[0] in own}
        self.learner.load_state_dict({**state, "model": model})


class Parts:
    """A learner that takes parameters and buffers of a checkpoint where names and shapes fit, each layer as a whole.

    With ``init_parts`` it takes those whose names begin so. Else, if one algorithm derives from the other, it takes all
    that fit, and if not, the actor, which must fit, and the statistics that normalise observations. Targets follow a
    network that is taken.
    """

    def __init__(self, learner: Algorithm, config: ExperimentConfig, saved: str, *, statistics: bool = True) -> None:
        """``saved``: algorithm of the checkpoint. ``statistics``: those of observations there are of the same ones."""
        self.learner = learner
        self.state_dict: Callable[[], dict[str, Any]] = learner.state_dict
        self.config = config
        self.saved = saved
        self.statistics = statistics
        asked = config.init_parts
        self.patterns: tuple[str, ...] = (asked,) if asked and isinstance(asked, str) else tuple(asked)
        self.taken: list[str] = []
        """Names of the parameters and buffers that are taken, and of targets that follow them."""
        self.anew: list[str] = []
        """Names of the others."""
        self.remarks: list[str] = []
        """What was wanted and does not fit, and what may be wrong."""
        both = learner.named_parameters(remove_duplicate=False), learner.named_buffers(remove_duplicate=False)
        self.tensors: set[str] = {name for named in both for name, _ in named}
        own = source = type(config.algo)
        if not same_algorithm(saved, config.name):
            check_module(saved, "the run of init")
            source = algorithm_config(saved)  # type: ignore[assignment]
        self.related: bool = issubclass(own, source) or issubclass(source, own)
        self.place: str = f"{own.learner.actor_place}."
        self.place_there: str = f"{source.learner.actor_place}."

    def load_state_dict(self, state: State) -> None:
        """Load what fits of the state of another learner, or raise RunError."""
        held = self.state_dict()
        own, there = held["model"], {self._here(name): value for name, value in state["model"].items()}
        normalised = other_normalisation(own, there)
        if not self.statistics:
            there = {name: value for name, value in there.items() if not name.startswith(NORMALISER)}
        unlike = unequal(own, there, self.tensors)
        wanted = [name for name in own if name in self.tensors and self._wants(name)]
        unfit = {layer_of(name) for name in unlike}
        self.taken = [name for name in wanted if layer_of(name) not in unfit]
        if problems := self._problems(there, unlike) + [normalised] * bool(normalised and not self.patterns):
            raise RunError(f"init = '{self.config.init}': {'; '.join(problems)}.")
        self.learner.load_state_dict({**held, "model": own | {name: there[name] for name in self.taken}})
        self._follow(own)
        missed = unfit & {layer_of(name) for name in wanted if self.patterns or name in there}
        self.remarks += [f"does not fit, begins anew: {listed(unlike, missed)}"] * bool(missed)
        self.remarks += [normalised] * bool(normalised)

    def _here(self, name: str) -> str:
        """Return the name that a parameter there has here."""
        actor = self.place != "." != self.place_there and name.startswith(self.place_there)
        return self.place + name.removeprefix(self.place_there) if actor else name

    def _wants(self, name: str) -> bool:
        if self.patterns:
            return any(re.match(pattern, name) for pattern in self.patterns)
        return self.related or name.startswith((self.place, NORMALISER))

    def _problems(self, there: State, unlike: Mapping[str, str]) -> list[str]:
        """Return why these parts cannot be taken; [] if they can."""
        if self.patterns:
            return [line for pattern in self.patterns for line in self._unmatched(pattern, unlike)]
        if self.related:
            fits = {*self.taken} & {name for name, _ in self.learner.named_parameters()}
            return [] if fits else [f"no network of {self.saved} fits one of {self.config.name}"]
        one, other = ([name for name in names if name.startswith(self.place)] for names in (there, self.tensors))
        if not one or not other:
            return [f"{self.config.name if one else self.saved} has no actor that other algorithms could share"]
        if unlike.keys().isdisjoint(one):
            return []
        return [
            f"the actor of {self.saved} does not fit that of {self.config.name}: "
            f"{listed(unlike, {layer_of(name) for name in (*one, *other)})}. Use the same algo.networks for both, or "
            "take layers that fit with init_parts"
        ]

    def _unmatched(self, pattern: str, unlike: Mapping[str, str]) -> list[str]:
        """Return what is wrong with one of ``init_parts``, if anything is."""
        matching = {name for name in self.tensors if re.match(pattern, name)}
        if not matching:
            known = sorted({".".join(name.split(".")[:2]) for name in self.tensors})
            return [f"init_parts = '{pattern}': no name begins so. There are: {', '.join(known)}"]
        if matching.isdisjoint(self.taken):
            return [f"init_parts = '{pattern}', nothing fits: {listed(unlike, {layer_of(name) for name in matching})}"]
        return []

    def _follow(self, own: State) -> None:
        """Copy what was taken to its targets, unless they were taken, and note what begins anew."""
        taken = {own[name].data_ptr() for name in self.taken}
        for place, target in self.learner.named_modules():
            inside = [name for name in own if name in self.tensors and name.startswith(f"{place}.")]
            if not isinstance(target, Target) or {*inside} & {*self.taken}:
                continue
            if any(p.data_ptr() in taken for p in target.source.parameters()):
                target.model.load_state_dict(target.source.state_dict())
                self.taken += inside
        taken |= {own[name].data_ptr() for name in self.taken}  # an encoder that networks share has several names
        self.anew = [name for name in own if name in self.tensors and own[name].data_ptr() not in taken]


def layer_of(name: str) -> str:
    """Return the name of the module that has the parameter ``name``."""
    return name.rpartition(".")[0]


def unequal(own: State, there: State, tensors: Collection[str]) -> dict[str, str]:
    """Return the names under which two models differ in shape, with the difference in words.

    Entries that are not ``tensors`` of the model, such as the widths of a perceptron, say what its parameters mean:
    they differ by their values, if both have them.
    """
    out = {}
    for name in dict.fromkeys((*own, *there)):
        means = name in own and name not in tensors
        here, other = (
            str(tuple(x[name].tolist() if means else x[name].shape)) if name in x else "absent" for x in (own, there)
        )
        if here != other and not (means and other == "absent"):
            out[name] = f"{name} is {other} there, {here} here"
    return out


def listed(unlike: Mapping[str, str], layers: Collection[str]) -> str:
    """Return the differences in these layers, the first of them if there are many."""
    lines = [line for name, line in unlike.items() if layer_of(name) in layers]
    more = f", and {len(lines) - LISTED} more" if len(lines) > LISTED else ""
    return ", ".join(lines[:LISTED]) + more


def other_normalisation(own: State, there: State) -> str:
    """Return what is wrong if one model normalises observations and the other does not; "" if nothing is."""
    here, before = (any(name.startswith(NORMALISER) for name in model) for model in (own, there))
    if before == here:
        return ""
    if before:
        return "observations are normalised there and not here: set algo.normalise = running"
    return "observations are normalised here and not there: set algo.normalise = none"


def grouped(names: Iterable[str], others: Collection[str]) -> list[str]:
    """Return the fewest names of modules that hold all of ``names`` and none of ``others``."""
    used = {head for name in others for head in heads(name)}
    return list(dict.fromkeys(next(head for head in heads(name) if head not in used) for name in names))


def heads(name: str) -> list[str]:
    """Return the names of the modules around a parameter, from the outermost one, and its own."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
