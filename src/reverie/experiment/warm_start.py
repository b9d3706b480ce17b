"""Start a run from another run's agent, or from parts of it."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

from reverie.algos.base import Algorithm
from reverie.algos.model_free import ModelFree
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config, algorithm_name, algorithms, same_algorithm
from reverie.core.errors import RunError, count_noun
from reverie.core.imports import check_module
from reverie.core.logger import logger
from reverie.core.types import State
from reverie.experiment.config import ExperimentConfig
from reverie.log.artifacts import download_agent
from reverie.nn.target_network import TargetNetwork
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, read_saved_config, read_spec, spec_changes

NORMALIZER = "preprocess.normalizer."
"""Name prefix of the observation normalization statistics."""
REWARD_SCALER = "preprocess.rewards."
"""Name prefix of the statistics of returns."""
MAX_LISTED = 4
"""Maximum number of parameters listed in a message."""


def load_initial(learner: Algorithm, config: ExperimentConfig, spec: Mapping[str, Any]) -> None:
    """Load the parameters of ``config.init_from`` into a new ``learner``, and log what is re-initialized.

    Without ``init_modules``, weights, optimizers and normalization of a run of the same algorithm are loaded; otherwise
    see :class:`PartialLoad`. Steps, updates and decaying rates start over. ``spec``: the content of this run's
    spec.json.

    Raises:
        RunError: the run or checkpoint does not exist; its environment differs, and there are no ``init_modules``; or
            nothing matches.
        UntrustedError: its algorithm is in a module that belongs to no installed package and that the user has not
            named.
    """
    if config.init_from is None:
        return
    init_path = Path(os.path.expanduser(download_agent(config.init_from)))
    inside = init_path.parent.name == "checkpoints"
    folder = RunFolder(init_path.parents[1] if inside else init_path)
    if not folder.config.is_file():
        raise RunError(
            f"init_from = '{init_path}': expected a run folder, a checkpoint in one, or the file of an agent."
        )
    saved, parts = read_saved_config(folder.path).algorithm, None
    if config.init_modules or not same_algorithm(saved, config.name):
        has_same_vectors = _vector_keys(read_spec(folder) or spec) == _vector_keys(spec)
        parts = PartialLoad(learner, config, saved, statistics=has_same_vectors)
    changes = spec_changes(folder, spec)
    if changes and not config.init_modules:
        raise RunError(
            f"{'; '.join(changes)}: the environment differs from the one that {folder.path} was trained on. Use the "
            "same environment with the same env options, or load only matching parts with init_modules."
        )
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(init_path.name if inside else None)
    checkpoints.load(path, {"algo": parts or MatchingNetworks(learner)})
    if parts is not None and not parts.is_whole:
        names = ", ".join(_common_prefixes(parts.loaded, parts.reinitialized))
        logger.info(f"starting with parts of the agent of {path}: {names}")
        logger.info(
            f"re-initialized: {', '.join([*_common_prefixes(parts.reinitialized, parts.loaded), 'optimizers'])}"
        )
        for line in (*changes, *parts.remarks):
            logger.warning(f"init_from: {line}")
    else:
        if isinstance(learner, ModelFree):
            learner.reset_lr_schedules()
        logger.info(f"starting with the agent of {path}")
    normalizer = learner.preprocess.normalizer if isinstance(learner, ModelFree) else None
    if normalizer is not None:
        saved_statistics = f"the statistics of {path}, of {count_noun(normalizer.count, 'row')}"
        logger.info(f"observations are normalized by {saved_statistics if normalizer.count else 'new rows'}")


def is_compatible_start(config: type[AlgorithmConfig], saved: str) -> bool:
    """Return whether a run of ``saved`` can have all parts of ``config``'s learner, as Plan2Explore has DreamerV2's."""
    name = algorithm_name(config)
    return same_algorithm(saved, name) or (saved in algorithms() and issubclass(algorithm_config(saved), config))


def _vector_keys(spec: Mapping[str, Any]) -> list[str]:
    """Return the keys of the vectors in the content of a spec.json, in the order of their statistics."""
    return sorted(key for key, part in spec["observation"].items() if part["kind"] == "vector")


class MatchingNetworks:
    """A learner that ignores networks of a checkpoint that it does not have."""

    def __init__(self, learner: Algorithm) -> None:
        self.learner = learner
        self.state_dict: Callable[[], dict[str, Any]] = learner.state_dict

    def load_state_dict(self, state: State) -> None:
        """Load the state of a learner that has all networks of this one."""
        current = self.state_dict()["model"]
        for prefix in (NORMALIZER, REWARD_SCALER):
            if problem := _statistics_mismatch(current, state["model"], prefix):
                raise RunError(f"init_from: {problem}.")
        optimizers = self.state_dict() if {*state} == {"model"} else {}  # the file of an agent has none
        self.learner.load_state_dict({**optimizers, **state, "model": _common_networks(current, state["model"])})


def _common_networks(model: State, source: State) -> State:
    """Return the entries of ``source`` in networks that ``model`` has too."""
    modules = {name.partition(".")[0] for name in model}
    return {name: value for name, value in source.items() if name.partition(".")[0] in modules}


class PartialLoad:
    """A learner that loads parameters and buffers of a checkpoint with equal names and shapes, each layer as a whole.

    With ``init_modules`` it loads those whose names match from the beginning. Otherwise, if one algorithm derives from
    the other, it loads everything that matches; if not, the actor, which must match, and the observation normalization
    statistics. Target networks are copied from loaded networks. A checkpoint with all networks of the learner, such as
    one of Plan2Explore for DreamerV2, is loaded with its optimizers.
    """

    def __init__(self, learner: Algorithm, config: ExperimentConfig, saved: str, *, statistics: bool = True) -> None:
        """``saved``: algorithm of the checkpoint.

        ``statistics``: whether its observation statistics describe the same observations.
        """
        self.learner = learner
        self.state_dict: Callable[[], dict[str, Any]] = learner.state_dict
        self.config = config
        self.saved = saved
        self.statistics = statistics
        patterns = config.init_modules
        self.patterns: tuple[str, ...] = (patterns,) if patterns and isinstance(patterns, str) else tuple(patterns)
        self.loaded: list[str] = []
        """Names of the loaded parameters and buffers, and of targets copied from them."""
        self.reinitialized: list[str] = []
        """Names of the re-initialized parameters and buffers."""
        self.remarks: list[str] = []
        """Requested parts that do not match, and their possible problems."""
        self.is_whole: bool = False
        """Whether the checkpoint has all networks, so that the optimizers were loaded too."""
        both = learner.named_parameters(remove_duplicate=False), learner.named_buffers(remove_duplicate=False)
        self.tensors: set[str] = {name for named in both for name, _ in named}
        config_class = source = type(config.algo)
        if not same_algorithm(saved, config.name):
            check_module(saved, "the run of init_from")
            source = algorithm_config(saved)  # type: ignore[assignment]
        self.related: bool = issubclass(config_class, source) or issubclass(source, config_class)
        self.actor_prefix: str = f"{config_class.learner.actor_path}."
        self.source_actor_prefix: str = f"{source.learner.actor_path}."

    def load_state_dict(self, state: State) -> None:
        """Load the matching parts of another learner's state, or raise RunError."""
        current = self.state_dict()
        if not self.patterns and is_compatible_start(type(self.config.algo), self.saved):
            source = _common_networks(current["model"], state["model"])
            self.is_whole = not _shape_differences(current["model"], source, self.tensors)
            if self.is_whole:
                return MatchingNetworks(self.learner).load_state_dict(state)
        model, source = current["model"], {self._to_own_name(name): value for name, value in state["model"].items()}
        normalized = _statistics_mismatch(model, source, NORMALIZER)
        if not self.statistics:
            source = {name: value for name, value in source.items() if not name.startswith(NORMALIZER)}
        unlike = _shape_differences(model, source, self.tensors)
        names = [name for name in model if name in self.tensors and self._wants(name)]
        unfit = {module_name(name) for name in unlike}
        self.loaded = [name for name in names if module_name(name) not in unfit]
        if problems := self._problems(source, unlike) + [normalized] * bool(normalized and not self.patterns):
            raise RunError(f"init_from = '{self.config.init_from}': {'; '.join(problems)}.")
        self.learner.load_state_dict({**current, "model": model | {name: source[name] for name in self.loaded}})
        self._follow(model)
        missed = unfit & {module_name(name) for name in names if self.patterns or name in source}
        self.remarks += [f"does not match, re-initialized: {_format_differences(unlike, missed)}"] * bool(missed)
        self.remarks += [normalized] * bool(normalized)

    def _to_own_name(self, name: str) -> str:
        """Translate a parameter name of the checkpoint to this learner."""
        actor = self.actor_prefix != "." != self.source_actor_prefix and name.startswith(self.source_actor_prefix)
        return self.actor_prefix + name.removeprefix(self.source_actor_prefix) if actor else name

    def _wants(self, name: str) -> bool:
        if self.patterns:
            return any(re.match(pattern, name) for pattern in self.patterns)
        return self.related or name.startswith((self.actor_prefix, NORMALIZER))

    def _problems(self, source: State, unlike: Mapping[str, str]) -> list[str]:
        """Return why these parts cannot be loaded; [] if they can."""
        if self.patterns:
            return [line for pattern in self.patterns for line in self._pattern_problems(pattern, unlike)]
        if self.related:
            fits = {*self.loaded} & {name for name, _ in self.learner.named_parameters()}
            return [] if fits else [f"no network of {self.saved} matches a network of {self.config.name}"]
        models = source, self.tensors
        source_actor, actor = ([name for name in model if name.startswith(self.actor_prefix)] for model in models)
        if not source_actor or not actor:
            name = self.config.name if source_actor else self.saved
            return [f"{name} has no actor that other algorithms could share"]
        if unlike.keys().isdisjoint(source_actor):
            return []
        return [
            f"the actor of {self.saved} does not match the actor of {self.config.name}: "
            f"{_format_differences(unlike, map(module_name, (*source_actor, *actor)))}. Use the same algo.networks for "
            "both, or load matching layers with init_modules"
        ]

    def _pattern_problems(self, pattern: str, unlike: Mapping[str, str]) -> list[str]:
        """Return the problems of one of ``init_modules``, if any."""
        matching = {name for name in self.tensors if re.match(pattern, name)}
        if not matching:
            prefixes = sorted({".".join(name.split(".")[:2]) for name in self.tensors})
            return [f"init_modules = '{pattern}': no parameter name matches. There are: {', '.join(prefixes)}"]
        if matching.isdisjoint(self.loaded):
            differences = _format_differences(unlike, map(module_name, matching))
            return [f"init_modules = '{pattern}', nothing matches: {differences}"]
        return []

    def _follow(self, model: State) -> None:
        """Copy loaded networks to their targets, unless these were loaded too, and record what is re-initialized."""
        pointers = {model[name].data_ptr() for name in self.loaded}
        for module_path, target in self.learner.named_modules():
            inside = [name for name in model if name in self.tensors and name.startswith(f"{module_path}.")]
            if not isinstance(target, TargetNetwork) or {*inside} & {*self.loaded}:
                continue
            if any(p.data_ptr() in pointers for p in target.source.parameters()):
                target.model.load_state_dict(target.source.state_dict())
                self.loaded += inside
        pointers |= {model[name].data_ptr() for name in self.loaded}  # a shared encoder has several names
        self.reinitialized = [name for name in model if name in self.tensors and model[name].data_ptr() not in pointers]


def module_name(name: str) -> str:
    """Return the name of the module that has the parameter ``name``."""
    return name.rpartition(".")[0]


def _shape_differences(model: State, source: State, tensors: Collection[str]) -> dict[str, str]:
    """Return the names of parameters whose shapes differ between two models, with a description.

    Entries that are not ``tensors`` of the model, such as the widths of an MLP, describe its parameters: they are
    compared by value, if both models have them.
    """
    out = {}
    for name in dict.fromkeys((*model, *source)):
        means = name in model and name not in tensors
        shape, source_shape = (
            str(tuple(x[name].tolist() if means else x[name].shape)) if name in x else "absent" for x in (model, source)
        )
        if shape != source_shape and not (means and source_shape == "absent"):
            out[name] = f"{name} is {source_shape} in the checkpoint, {shape} here"
    return out


def _format_differences(unlike: Mapping[str, str], layers: Iterable[str]) -> str:
    """Format the differences in these layers, only the first ones if there are many."""
    layers = set(layers)
    lines = [line for name, line in unlike.items() if module_name(name) in layers]
    suffix = f", and {len(lines) - MAX_LISTED} more" if len(lines) > MAX_LISTED else ""
    return ", ".join(lines[:MAX_LISTED]) + suffix


def _statistics_mismatch(model: State, source: State, prefix: str) -> str:
    """Describe the problem if only one of the models has statistics of this ``prefix``; "" if there is none."""
    has_here, has_source = (any(name.startswith(prefix) for name in state) for state in (model, source))
    if has_source == has_here:
        return ""
    where = "in the checkpoint but not here" if has_source else "here but not in the checkpoint"
    if prefix == NORMALIZER:
        return f"observations are normalized {where}: set algo.normalize_obs = {'running' if has_source else 'none'}"
    example = "return_std(std=5)" if has_source else "none"
    return f"rewards are scaled by running returns {where}: set algo.reward_scale as there, such as {example}"


def _common_prefixes(names: Iterable[str], excluded: Collection[str]) -> list[str]:
    """Return the shortest list of module names that covers all of ``names`` and none of ``excluded``."""
    used = {head for name in excluded for head in _ancestor_names(name)}
    return list(dict.fromkeys(next(head for head in _ancestor_names(name) if head not in used) for name in names))


def _ancestor_names(name: str) -> list[str]:
    """Return the names of the modules around a parameter, outermost first, and its own name."""
    parts = name.split(".")
    return [".".join(parts[: n + 1]) for n in range(len(parts))]
