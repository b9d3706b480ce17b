"""What does not go together in the settings of a run: tables of rules, which the documentation lists too."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

import torch

from reverie.core.errors import ConfigError
from reverie.datasets.data_path import OBJECT, data_path, split_paths
from reverie.datasets.ogbench import OGBENCH_PREFIX, heldout_name
from reverie.experiment.config import DATASET_ENV, NO_ENV, REPLAY_SETTINGS, ExperimentConfig
from reverie.replay.config import PERSON_PAGE, absolute_store_path, experience_from_fraction
from reverie.run.config import EVALUATION_METRICS

T = TypeVar("T")
KNOWN_LATER = ("heldout/", "goal/", "estimate/", "eval/success_rate/")
"""Beginnings of metrics of losses, goals, estimates and tasks, whose names are known later."""


class DeviceRun(NamedTuple):
    """A run whose environments are on a device."""

    config: ExperimentConfig
    env_device: torch.device
    algo_device: torch.device


def _has_no_effect(name: str, c: ExperimentConfig) -> bool:
    is_set = getattr(c, name) != ExperimentConfig.__dataclass_fields__[name].default
    return c.algo.on_policy and is_set


def _clashes_with_actors(clashes: Callable[[ExperimentConfig], object], c: ExperimentConfig) -> bool:
    return bool(c.actors and clashes(c))


def _clashes_with_person(clashes: Callable[[ExperimentConfig], object], c: ExperimentConfig) -> bool:
    return bool(c.human.person and clashes(c))


def _logs_no_score(c: ExperimentConfig) -> bool:
    name = c.score.name
    is_of_info = name.startswith("eval/") and bool(c.eval_env_config.log_info)
    return not (name.startswith(KNOWN_LATER) or is_of_info or name in EVALUATION_METRICS)


def _follows_returns(c: ExperimentConfig) -> bool:
    return getattr(getattr(c.algo, "reward_scale", None), "follows_returns", False)


WITH_ACTORS: dict[str, Callable[[ExperimentConfig], object]] = {
    "algorithm = {c.name}: it learns only from rows of its current policy, and impala from earlier ones":
        lambda c: c.algo.on_policy and not getattr(c.algo, "from_actors", False),
    "learners = {c.learners}: rollouts arrive at each learner at other times":
        lambda c: c.algo.on_policy and c.learners > 1,
    "experience = offline: actors collect rows, and this run collects none": lambda c: c.offline,
    "pretrain_updates = {c.pretrain_updates}: with actors, use ratio_tolerance": lambda c: c.pretrain_updates,
    "train_freq = {c.train_freq}: with actors, use ratio_tolerance": lambda c: c.train_freq > 1,
    "replay.sequential = True: rows of several actors do not form a single sequence": lambda c: c.replay.sequential,
    "replay.init_from = {c.replay.init_from}: pass these rows as --data, with --experience mixed":
        lambda c: c.replay.init_from,
    "human.fraction = {c.human_fraction:g}, human.intervention_reward = {c.human.intervention_reward:g}: the rows of "
    "actors are in several replays": lambda c: not c.human.person and (c.human_fraction or c.human.intervention_reward),
    "algo.reward_scale = return_std: its running returns belong to one actor (set None instead)":
        lambda c: _follows_returns(c) and (c.actors > 1 or c.learners > 1),
}  # fmt: skip
"""What does not go together with actors."""

WITH_PERSON: dict[str, Callable[[ExperimentConfig], object]] = {
    "but this run collects no rows in which to take over: set an environment, and no experience = offline.":
        lambda c: c.offline or c.env.id in (NO_ENV, DATASET_ENV),
    "actors = {c.actors}: a person takes over in this process. Set actors = 0.": lambda c: c.actors,
    "learners = {c.learners}: a person takes over in one process. Set learners = 1.": lambda c: c.learners > 1,
}  # fmt: skip
"""What does not go together with a person."""

RULES: dict[str, Callable[[ExperimentConfig], object]] = {
    "experience = {c.experience}, but there is data.path = '{c.data.label}'.":
        lambda c: c.data.path and not c.offline_fraction,
    "experience = {c.experience}, but there is no data: pass --data PATH, in Python data=....":
        lambda c: c.offline_fraction and not c.data.path,
    **{
        f"{name} = {{c.{name}}} has no effect: {{c.name}} learns from whole rollouts of its own policy, as set by "
        "algo.rollout, algo.batch_size and algo.epochs. Remove this option.":
            functools.partial(_has_no_effect, name)
        for name in REPLAY_SETTINGS
    },
    "score_metric = {c.score_metric}: evaluations do not log '{c.score.name}'. Choose one of "
    f"{', '.join(EVALUATION_METRICS)}; env.log_info adds values of the environment's info.": _logs_no_score,
    **{
        f"actors = {{c.actors}}, {text}. Remove one of the two options.":
            functools.partial(_clashes_with_actors, clashes)
        for text, clashes in WITH_ACTORS.items()
    },
    "patience = {c.patience} counts evaluations during training, but there are none: set schedule.eval_every, with "
    "eval_episodes above 0 or held-out data.": lambda c: c.patience is not None and not c.scores_during_training,
    "hours = {c.hours:g} with learners = {c.learners}: set {c.unit} instead.":
        lambda c: c.hours is not None and c.learners > 1,
    "heldout_fraction = {c.heldout_fraction:g}, but heldout_data is set too: set one.":
        lambda c: c.heldout_fraction and c.heldout_data,
    "heldout_fraction = {c.heldout_fraction:g}, but there is no dataset: set data.path.":
        lambda c: c.heldout_fraction and not c.data.path,
    **{
        f"human.person = '{{c.human.person}}', {text}": functools.partial(_clashes_with_person, clashes)
        for text, clashes in WITH_PERSON.items()
    },
    "human.fraction = {c.human.fraction}, human.intervention_reward = {c.human.intervention_reward:g}: {c.name} cannot "
    "learn from a person's rows apart from the others. sac, td3, dqn and bc can.":
        lambda c: c.algo.human_fraction is None and (c.human.fraction or c.human.intervention_reward),
    "human.fraction = {c.human_fraction:g}: {c.name} also needs windows of its own. Lower it to 0.5.":
        lambda c: c.human_fraction == 1 and c.algo.human_fraction != 1,
    "experience = {c.experience}, human.fraction = {c.human_fraction:g}: both set the recorded part of a batch. Remove "
    "experience: recorded rows are a part of the person's.":
        lambda c: c.experience is not None and c.offline_fraction and c.human_fraction,
    "human.intervention_reward = {c.human.intervention_reward:g}, but this run collects no rows. Remove this option.":
        lambda c: c.offline and c.human.intervention_reward,
    "human.fraction = {c.human_fraction:g}, replay.sequential = True: whole episodes are read in order. Set only one.":
        lambda c: c.human_fraction and c.replay.sequential,
    "reward = '{c.reward}': expected preferences:FILE or success:FILE.":
        lambda c: c.reward and not re.match("(preferences|success):.", c.reward),
    "reward = {c.reward}: {c.name} does not replay rewards. sac, td3, dqn, cql and iql do.":
        lambda c: c.reward and (c.algo.on_policy or not c.algo.needs_rewards(collected=not c.offline)),
    "reward = {c.reward}, but human.intervention_reward or replay.hindsight computes rewards too. Set only one.":
        lambda c: c.reward and (c.human.intervention_reward or c.replay.hindsight),
    "reward_zero = {c.reward_zero} has no effect without reward = preferences:FILE. Remove this option.":
        lambda c: c.reward_zero != "mean" and not c.reward.startswith("preferences:"),
    "human.person = page, algo.episodic = False: plans must know that the keys S and F end episodes, or else they "
    "count a success again in each later step. Set algo.episodic = True.":
        lambda c: c.human.person == PERSON_PAGE and not getattr(c.algo, "episodic", True),
    "{c.name} collects rows, but no environment is given. Pass --env ID, in Python env=...":
        lambda c: not c.offline and c.env.id in (NO_ENV, DATASET_ENV),
}  # fmt: skip
"""What does not go together in any run, by the error about it; the first one is reported."""

DEVICE_RULES: dict[str, Callable[[DeviceRun], object]] = {
    "algorithm = {c.config.name}: its actors fill a queue of rollouts":
        lambda c: getattr(c.config.algo, "from_actors", False),
    "actors = {c.config.actors}": lambda c: c.config.actors,
    "learners = {c.config.learners}": lambda c: c.config.learners > 1,
    "experience = {c.config.experience}": lambda c: c.config.offline_fraction,
    "replay.hindsight: single environments compute rewards": lambda c: c.config.replay.hindsight is not None,
    "replay.device = {c.config.replay.device}: the rows are on {c.env_device}":
        lambda c: c.config.replay.device not in ("cpu", c.env_device.type, str(c.env_device)),
    "human: a person needs an environment on the CPU": lambda c: c.config.human.person,
    "log_episodes = True: episodes are only summed": lambda c: c.config.log_episodes,
    "device = {c.algo_device}: the environments are on {c.env_device}":
        lambda c: c.algo_device.type != c.env_device.type,
}  # fmt: skip
"""What does not go together with environments on a device."""


def check_device_run(run: DeviceRun) -> None:
    """Raise ConfigError for settings that are not supported with environments on a device."""
    if (text := _find_clash(DEVICE_RULES, run)) is not None:
        raise ConfigError(f"{text}. This is not supported with environments on a device, such as {run.config.env.id}.")


def _find_clash(rules: Mapping[str, Callable[[T], object]], c: T) -> str | None:
    """Return the text of the first rule that ``c`` breaks; None if there is none."""
    return next((message.format(c=c) for message, clashes in rules.items() if clashes(c)), None)


def validate_config(config: ExperimentConfig) -> ExperimentConfig:
    """Check all rules, and that the algorithm gets the rows it needs.

    Return the settings with the experience, the default of ``heldout_data``, and absolute paths.
    """
    imitates_person = config.algo.human_fraction == 1 and config.human_fraction > 0
    config.algo.check_data(recorded=bool(config.data.path) or imitates_person, collected=not config.offline)
    if (text := _find_clash(RULES, config)) is not None:
        raise ConfigError(text)
    heldout = config.heldout_data and absolute_path(config.heldout_data)
    has_losses = getattr(config.algo.learner, "has_heldout_losses", False)
    if has_losses and not (config.heldout_data or config.heldout_fraction):
        heldout = heldout_name(config.data.path)
    path, store_path = data_path([*map(absolute_path, split_paths(config.data.path))]), config.replay.store_path
    kind, _, labels = config.reward.partition(":")
    experience = config.experience
    if experience is None and not (config.offline_fraction and config.human_fraction):
        experience = experience_from_fraction(config.offline_fraction)
    changes = {
        "experience": (config.experience, experience),
        "heldout_data": (config.heldout_data, heldout),
        "data.path": (config.data.path, path),
        "reward": (config.reward, f"{kind}:{absolute_path(labels)}" if labels else ""),
        "replay.store_path": (store_path, absolute_store_path(store_path)),
    }
    return config.merge({name: value for name, (old, value) in changes.items() if value != old})


def absolute_path(path: str) -> str:
    """Return the path of a dataset in any working directory; names, such as ``minari:NAME``, do not change."""
    is_fixed = "://" in path or path.startswith(("minari:", OGBENCH_PREFIX, OBJECT))
    return path if is_fixed else os.path.abspath(os.path.expanduser(path))
