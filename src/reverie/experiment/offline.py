"""The dataset of a run: open it, compare it with the environments, and read it; and the held-out dataset."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from reverie.algos.base import Algorithm
from reverie.algos.dreamer import Dreamer, DreamerConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, TIMESTEP_COLUMN, ReturnToGoAnnotator, timesteps
from reverie.algos.settings import AlgorithmConfig
from reverie.core.collectives import single_rank
from reverie.core.errors import ConfigError, DataError, count_noun
from reverie.core.protocols import Env
from reverie.core.rows import Rows
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import EXTRAS, GOAL, ObsSpec, diff_specs, spec_to_dict
from reverie.core.types import Batch, Window
from reverie.datasets.dataset import RecordedEpisodes, build_dataset, open_recorded
from reverie.datasets.dataset_env import check_same_meaning, missing_kwargs_and_wrappers
from reverie.datasets.reader import Space, check_rewards, read_progress
from reverie.envs.goals import add_goal_space
from reverie.experiment.config import NO_ENV, ExperimentConfig
from reverie.experiment.environments import Environments, ProbedEnv
from reverie.experiment.goals import goal_recall, sample_goals
from reverie.objectives.returns import NextRow, returns_to_go
from reverie.replay.offline import OfflineReplay
from reverie.run.config import ScoreMetric
from reverie.run.evaluate import Estimator

NUM_HELDOUT_BATCHES = 4
"""Number of batches of held-out rows."""
WITHOUT_REWARDS = "there are no rewards: the world model predicts 0, and the actor learns nothing"


class OfflineRows(NamedTuple):
    """The loaded dataset rows of a run; empty if there are none."""

    dataset: OfflineReplay | None = None
    estimator: Estimator | None = None
    """An ``OffPolicyEstimator`` of ``reverie.agent`` if there is no evaluation environment; else None."""
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None
    """Spaces of the recorded observations and actions; None if there is an environment, or the dataset does not declare
    them."""
    remarks: tuple[str, ...] = ()
    """Assumptions and omissions while reading them."""
    longest_episode: int = 0
    """Steps of the longest episode."""
    heldout: OfflineReplay | None = None
    """Rows of the episodes that ``heldout_fraction`` holds out."""


def open_run_dataset(
    config: ExperimentConfig, probed: ProbedEnv, environments: Environments, undo: contextlib.ExitStack
) -> RecordedEpisodes:
    """Open the dataset of a run, and check that it matches the environments; ``undo`` closes it after an error."""
    recorded = open_recorded(config.data, config.env, probed.action, probed.observation)
    undo.callback(recorded.close)
    if config.algo.needs_rewards(collected=not config.offline) and not config.reward:
        check_rewards(recorded.about, recorded.reader.path, config.name)
    elif isinstance(config.algo, DreamerConfig) and not recorded.about.has_rewards:
        recorded.reader.add_remark(WITHOUT_REWARDS)
    training, evaluation, _ = environments
    if training is not None:
        _check_same_task(recorded, config, probed.spec)
    if (env := training or evaluation) is not None:
        env_id = config.eval_env_config.id if training is None else config.env.id
        check_dataset_fits(recorded, spec_to_dict(env.obs_spec, env.action_spec), env_id, config.algo)
    return recorded


def read_offline_rows(
    config: ExperimentConfig, recorded: RecordedEpisodes, algo: Algorithm, window: Window, seed: int,
    scratch: Path | None, estimates: Callable[..., Estimator] | None,
) -> OfflineRows:  # fmt: skip
    """Read all recorded rows, and close the files. See ``build`` for ``estimates``."""
    dataset, rewards, heldout = load_dataset(config, recorded, algo, window, seed, scratch)
    if config.offline_fraction < 1:
        algo.set_num_offline(window.batch)
    estimator, has_env = None, config.env.id != NO_ENV
    acts = config.algo.acting_spec(recorded.obs_spec).keys() == recorded.obs_spec.keys()  # else rows lack its goals
    estimated = not has_env and config.data.estimate_updates != 0 and recorded.about.has_rewards and acts
    if estimated and estimates is not None:
        specs, eval_seed = (recorded.obs_spec, recorded.action_spec), derived_seeds(config.seed)["evaluation"]
        estimator = estimates(algo, dataset, *specs, seed=eval_seed, rewards=rewards, reward_clipping=recorded.clipped)
    recorded.close()
    starts = np.flatnonzero(dataset.column("is_first"))
    longest = int(np.diff(starts, append=dataset.count).max(initial=1)) - 1
    if longest < (steps := getattr(config.algo, "subgoal_steps", 0)):
        raise ConfigError(
            f"algo.subgoal_steps = {steps}: the longest episode of the data has {count_noun(longest, 'step')}. Lower "
            "it to that number."
        )
    spaces = None if has_env else _acting_spaces(recorded, config.algo)
    return OfflineRows(dataset, estimator, spaces, _remarks(config, recorded, dataset, heldout), longest, heldout)


def _remarks(
    config: ExperimentConfig, recorded: RecordedEpisodes, dataset: OfflineReplay, heldout: OfflineReplay | None
) -> tuple[str, ...]:
    """Return what is unusual about the recorded rows: of observations, 1,000 random ones are compared."""
    remarks = tuple(recorded.remarks())
    if heldout is not None:
        episodes = count_noun(int(np.count_nonzero(heldout.column("is_first"))), "episode")
        remarks += (f"{episodes} not learned from, but held out (heldout_fraction)",)
    elif config.fraction_held_out:  # the default, of which a part of an episode is left
        remarks += ("too few episodes to hold one out, which would measure the agent (heldout_fraction)",)
    rows = np.random.default_rng(0).integers(dataset.count, size=1000)
    columns = [dataset.column(name)[rows] for name in dataset.obs_names]
    if all((column == column[0]).all() for column in columns):
        remarks += ("all observations are equal: nothing can be learned from them",)
    return remarks


def _acting_spaces(recorded: RecordedEpisodes, algo: AlgorithmConfig) -> tuple[Space, Space] | None:
    """Return the spaces of the dataset, with goals that acting needs and rows lack; None if it declares none."""
    goals = [key for key in algo.acting_spec(recorded.obs_spec) if key not in recorded.obs_spec]
    if recorded.spaces is None or not goals:
        return recorded.spaces
    return add_goal_space(recorded.spaces[0], [key.removeprefix(GOAL) for key in goals]), recorded.spaces[1]


def load_dataset(
    config: ExperimentConfig, recorded: RecordedEpisodes, algo: Algorithm, window: Window, seed: int,
    scratch: Path | None,
) -> tuple[OfflineReplay, np.ndarray | None, OfflineReplay | None]:  # fmt: skip
    """Read all recorded rows, with a progress bar on a terminal. Return the dataset, rewards and held-out rows.

    The array contains the true rewards of the dataset, if clipped here.
    """
    unclipped = config.env.id == NO_ENV and recorded.clip != "none"
    columns: dict[str, list[np.ndarray]] = {"reward": []} if unclipped else {}
    heldout = HeldoutEpisodes(config.fraction_held_out)
    with read_progress(f"reading {recorded.reader.path.name}", recorded.rows()) as track_progress:
        parts = track_progress(recorded.parts(columns))
        dataset = build_dataset(
            config.data, recorded, window=window, seed=seed, batch_sampler=config.replay, extra_spec=algo.extra_spec,
            scratch=scratch, parts=heldout.remove(parts) if heldout.fraction else parts,
        )  # fmt: skip
    dataset.has_rewards = recorded.about.has_rewards
    _store_returns(dataset, algo)
    sample_goals(algo, dataset, seed)
    rewards = np.concatenate(columns["reward"]) if unclipped else None
    if not heldout.fraction or (not heldout.parts and config.heldout_fraction is None):
        return dataset, rewards, None
    if not heldout.parts:
        raise ConfigError(
            f"heldout_fraction = {heldout.fraction:g} of {count_noun(heldout.episodes, 'episode')} is less than one "
            "episode. Use a larger fraction."
        )
    if rewards is not None:
        rewards = rewards[~np.concatenate(heldout.masks)]
    return dataset, rewards, _build_heldout(config, recorded, algo, scratch, heldout.parts)


class HeldoutEpisodes:
    """Removes ``fraction`` of all episodes, evenly spaced, from the rows to learn from, and keeps their rows."""

    def __init__(self, fraction: float) -> None:
        self.fraction: float = fraction
        self.episodes: int = 0
        """Number of episodes so far."""
        self.parts: list[Rows] = []
        """Rows of the held-out episodes."""
        self.masks: list[np.ndarray] = []
        """Which rows are held out, bool ``[n]`` of each part."""

    def remove(self, parts: Iterator[Rows]) -> Iterator[Rows]:
        """Yield the other rows of ``parts``."""
        for part in parts:
            number = self.episodes + np.cumsum(part["is_first"])  # of the episode of each row, from 1
            self.episodes += int(np.count_nonzero(part["is_first"]))
            is_heldout = np.floor(number * self.fraction) > np.floor((number - 1) * self.fraction)
            self.masks.append(is_heldout)
            if is_heldout.any():
                self.parts.append({name: values[is_heldout] for name, values in part.items()})
                part = {name: values[~is_heldout] for name, values in part.items()}
            if len(part["is_first"]):
                yield part


def _store_returns(dataset: OfflineReplay, algo: Algorithm) -> None:
    """Store the returns-to-go, and perhaps time steps, in the dataset, for learners that need them."""
    if isinstance(annotator := algo.annotator, ReturnToGoAnnotator):
        write_returns(dataset, annotator)


def write_returns(dataset: OfflineReplay, annotator: ReturnToGoAnnotator, block: int = 1 << 16) -> None:
    """Store the return-to-go of each row as a column, and perhaps its time step, with the settings of ``annotator``.

    Backward in blocks of ``block`` rows.
    """
    reward, first = dataset.column("reward"), dataset.column("is_first")
    last = dataset.column("is_last")
    terminal = last if annotator.ends_at_limits else dataset.column("is_terminal")
    next_row, begins = NextRow(), np.flatnonzero(first)
    for stop in range(dataset.count, 0, -block):
        rows = slice(max(0, stop - block), stop)
        ends = {"first": first[rows], "last": last[rows], "terminal": terminal[rows]}
        returns = returns_to_go(reward=reward[rows], discount=annotator.discount, next_row=next_row, **ends)
        dataset.write_column(EXTRAS + RETURN_TO_GO_COLUMN, rows.start, returns)
        if annotator.has_timesteps:
            steps = timesteps(begins, np.arange(rows.start, rows.stop))
            dataset.write_column(EXTRAS + TIMESTEP_COLUMN, rows.start, steps)
        next_row = NextRow(bool(first[rows.start]), float(returns[0]), float(reward[rows.start]))


def _check_same_task(recorded: RecordedEpisodes, config: ExperimentConfig, spec: EnvSpec | None) -> None:
    """Check that the dataset, as far as it declares, was recorded in the same task as the run's environment.

    Arguments and wrappers that the environment's ``spec`` lacks become a remark, since training on both can be
    intended, for example on a simulator and a robot.
    """
    check_same_meaning(recorded.about, config.env)
    if missing := missing_kwargs_and_wrappers(recorded.about, spec):
        recorded.reader.add_remark(
            f"the dataset was recorded in {recorded.about.env} with {', '.join(missing)}, but the environment of this "
            "run lacks it: the run trains on both as if they were the same task"
        )


def check_dataset_fits(
    recorded: RecordedEpisodes, expected: Mapping[str, Any], env: str, algo: AlgorithmConfig
) -> None:
    """Raise DataError unless the dataset has the ``expected`` observations and actions of the environment or agent.

    ``env``: the environment's id, for the message; ``NO_ENV`` for an agent without one. ``algo`` may need goals too.
    """
    name, whose = ("the agent", "the agent") if env == NO_ENV else (env, f"the environment {env}")
    spec = algo.acting_spec(recorded.obs_spec)
    goals = [key for key in spec if key.startswith(GOAL) and key not in expected["observation"]]
    if goals and env != NO_ENV:
        raise DataError(
            f"{whose} supplies no goal: expected the observation '{goals[0]}', or achieved_goal and desired_goal. Use "
            "a goal environment for evaluation, or --env none, and pass goals to agent.act."
        )
    if problems := diff_specs(spec_to_dict(spec, recorded.action_spec), expected, ("the data", name)):
        advice = (
            "Use a dataset of the environment in which the agent was trained."
            if env == NO_ENV
            else stacks_in(recorded.obs_spec, expected["observation"])
            or "Use the environment of the dataset with the same options (env.include_keys and env.exclude_keys "
            "select observations), or another dataset."
        )
        raise DataError(f"{recorded.label} does not fit {whose}: {'; '.join(problems)}. {advice}")


def stacks_in(spec: ObsSpec, env_obs: Mapping[str, Any]) -> str:
    """Return advice for a dataset whose images are stacks of the environment's images; "" for other datasets."""
    for key, part in spec.items():
        shape = tuple(env_obs.get(key, {}).get("shape", ()))
        frames, remainder = divmod(part.shape[-1], shape[-1]) if part.kind == "image" and len(shape) == 3 else (1, 0)
        if frames > 1 and not remainder and part.shape[:2] == shape[:2]:
            return (
                f"Its images are stacks of {frames} frames: stack them in the environment, not in the learner: "
                f"--env.frame-stack {frames} --algo.frame-stack 1."
            )
    return ""


def read_heldout_data(
    config: ExperimentConfig, algo: Algorithm, owner: Env | RecordedEpisodes, probed: ProbedEnv, scratch: Path | None
) -> OfflineReplay:
    """Read ``config.heldout_data``.

    ``owner`` has the observations and actions of the run. ``probed`` has the spaces of its environment, for datasets
    that declare none.
    """
    data = config.data.merge({"path": config.heldout_data})
    with contextlib.closing(open_recorded(data, config.env, probed.action, probed.observation)) as recorded:
        learns_rewards = config.algo.needs_rewards(collected=not config.offline) or isinstance(
            config.algo, DreamerConfig
        )
        learns_rewards = learns_rewards and not config.reward
        if learns_rewards and (not isinstance(owner, RecordedEpisodes) or owner.about.has_rewards):
            check_rewards(recorded.about, recorded.reader.path, "heldout_data")
        expected = spec_to_dict(config.algo.acting_spec(owner.obs_spec), owner.action_spec)  # recorded rows lack goals
        check_dataset_fits(recorded, expected, config.env.id, config.algo)
        return _build_heldout(config, recorded, algo, scratch)


def _build_heldout(
    config: ExperimentConfig, recorded: RecordedEpisodes, algo: Algorithm, scratch: Path | None,
    parts: Sequence[Rows] | None = None,
) -> OfflineReplay:  # fmt: skip
    """Return ``parts``, or all rows, as held-out rows. Latents of world models are not carried over."""
    chosen: dict[str, Any] = {}
    if parts is not None:
        chosen = {"parts": iter(parts), "num_rows": sum(len(part["is_first"]) for part in parts)}
    dataset = build_dataset(
        config.data, recorded, window=replace(algo.window, carries=False),
        seed=derived_seeds(config.seed)["evaluation"],
        extra_spec={} if isinstance(algo, Dreamer) else algo.extra_spec, scratch=scratch, **chosen,
    )  # fmt: skip
    _store_returns(dataset, algo)
    sample_goals(algo, dataset, derived_seeds(config.seed)["evaluation"])
    return dataset


def make_heldout_metrics(
    config: ExperimentConfig, algo: Algorithm, dataset: OfflineReplay, relabel: Callable[[Batch], Batch]
) -> Callable[[], dict[str, float]]:
    """Return a function that measures the losses on held-out rows, always of the same windows with the same draws.

    ``relabel`` returns batches with the rewards that are learned from.
    """
    if not algo.has_heldout_losses:
        raise ConfigError(
            f"heldout_data, heldout_fraction: {config.name} has no losses on recorded rows alone. Remove this option."
        )
    algo.enter_eval_mode()
    batches, seed = (
        [relabel(dataset.sample()) for _ in range(NUM_HELDOUT_BATCHES)],
        derived_seeds(config.seed)["evaluation"],
    )

    def measure() -> dict[str, float]:
        with seeded_rng(seed), single_rank():
            losses = [algo.heldout_losses(batch) for batch in batches]
            recall = goal_recall(algo, dataset, seed)
        return {f"heldout/{k}": float(torch.stack([terms[k] for terms in losses]).mean()) for k in losses[0]} | recall

    score = ScoreMetric.parse(config.score_metric).name
    if score.startswith(("heldout/", "goal/")) and score not in (names := measure()):
        raise ConfigError(f"score_metric = {config.score_metric}: choose one of {', '.join(names)}.")
    return measure
