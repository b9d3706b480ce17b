"""Define an experiment: every setting of a run, and ``build``, which assembles it from all packages."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import gymnasium
import torch

from reverie.algos.base import Algorithm, AlgorithmConfig
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.core.checks import at_least
from reverie.core.clock import Clock
from reverie.core.config import Config
from reverie.core.errors import ConfigError, EnvError
from reverie.core.machine import choose_device, keep_freed_memory
from reverie.core.protocols import Env, Source
from reverie.core.randomness import derived_seeds, reproducible, seed_everything
from reverie.core.signature import differences, signature
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Mode, Window
from reverie.datasets.dataset import DatasetConfig
from reverie.envs.config import EnvConfig
from reverie.envs.make import EnvLike, MakeEnv, Single, env_factory
from reverie.envs.vector import make_env
from reverie.estimating import Estimator, PolicyEstimate, Watch
from reverie.replay.capacity import check_capacity, check_memory, most_rows
from reverie.replay.dataset import Dataset
from reverie.replay.mix import shares
from reverie.replay.prefetch import ahead
from reverie.replay.replay import Replay, ReplayConfig
from reverie.run.collect import Collector
from reverie.run.evaluate import Evaluation, evaluate
from reverie.run.schedule import Schedule, parse_period

DEFAULT_REPLAY_RATIO = 0.5
END_OF_SCHEDULES = 10**15
"""Env steps after which every schedule of exploration is over."""


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config):
    """Every setting of a run."""

    preset: str = field(default="", compare=False)
    """Preset to start from. By default the one of the environment's suite and of this machine; without a GPU that is
    cpu, the suite's with small networks and a short run. In Python only a record of where the settings began."""
    steps: int = 1_000_000
    """Env steps of the run: decisions of the policy, summed over all environments; action repeat is not counted."""
    updates: int = 100_000
    """Gradient updates of a run on recorded data alone, which has no env steps."""
    replay_ratio: float | None = None
    """Gradient updates per env step. None: from train_ratio, or else 0.5."""
    train_ratio: float | None = None
    """Replayed rows per env step, in place of replay_ratio: replay_ratio x B x T for batches of B windows of T rows."""
    learning_starts: int = 1024
    """Windows that the replay must hold before learning starts."""
    random_steps: int = 0
    """Env steps with uniformly random actions at the beginning."""
    seed: int = 0
    """Seed of everything random: networks, environments, batches and actions. 0 or more."""
    init: str | None = None
    """Run folder, or a checkpoint in one, whose agent a new run begins with: weights, optimisers and normalisation."""
    device: str = "auto"
    """Device of the networks: cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    threads: int = 0
    """CPU threads that PyTorch may use. 0: one or all, whichever a short measurement finds faster; then it is kept."""
    eval_episodes: int = 10
    """Episodes of each evaluation, during training and at the end. 0: no evaluations."""
    stop_score: float | None = None
    """End the run once an evaluation during training reaches this mean score, and still has it together with as many
    more episodes, which are then played. None: only steps end the run."""
    eval_envs: int = 4
    """Number of environments that an evaluation steps together."""
    keep_checkpoints: int = 3
    """Number of newest checkpoints to keep, at least 1. The best one is kept as well."""
    console: bool = True
    """Show progress in the terminal."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    wandb: bool = False
    """Log to Weights & Biases as well; its environment variables, such as WANDB_PROJECT and WANDB_MODE, apply."""
    mlflow: bool = False
    """Log to MLflow as well, to MLFLOW_TRACKING_URI; MLFLOW_EXPERIMENT_NAME applies."""
    schedule: Schedule = field(default_factory=Schedule)
    """How often to log, evaluate, save and report."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    algo: AlgorithmConfig = field(default_factory=DreamerV3Config)
    """The algorithm."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The replay buffer of collected experience."""
    data: DatasetConfig = field(default_factory=DatasetConfig)
    """Recorded data."""

    def __post_init__(self) -> None:
        if self.replay_ratio is not None and self.train_ratio is not None:
            raise ConfigError(
                f"replay_ratio = {self.replay_ratio} and train_ratio = {self.train_ratio}: both set the same quantity "
                "in different units (train_ratio = replay_ratio x B x T). Set only one of them."
            )
        at_least(self, steps=1, updates=1, learning_starts=0, random_steps=0, seed=0, threads=0)
        at_least(self, eval_episodes=0, eval_envs=1, keep_checkpoints=1, replay_ratio=0, train_ratio=0)
        if self.stop_score is not None and math.isnan(self.stop_score):
            raise ConfigError(f"stop_score = {self.stop_score}: expected a number or None.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device = '{self.device}': expected auto, cpu, cuda or cuda:<number>.")

    @property
    def evaluates_on_the_way(self) -> bool:
        """Whether there are evaluations during training."""
        return parse_period(self.schedule.eval_every)[0] > 0 and self.eval_episodes > 0

    @property
    def estimates_on_the_way(self) -> bool:
        """Whether estimates are made during training, in a run that makes any."""
        return parse_period(self.schedule.eval_every)[0] > 0 and self.data.estimate_updates > 0

    def explored(self, step: int) -> int:
        """Return the env steps at which schedules of exploration stand at ``step`` of the run, for drawn actions.

        The steps of a run on recorded data alone are updates. It never explores: its schedules are at their end.
        """
        return END_OF_SCHEDULES if self.data.alone else step

    def ratio(self, window: Window) -> float:
        """Return gradient updates per env step, given by ``replay_ratio`` or by ``train_ratio``."""
        if self.train_ratio is not None:
            return self.train_ratio / (window.batch * window.length)
        return DEFAULT_REPLAY_RATIO if self.replay_ratio is None else self.replay_ratio


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All parts of a run, built to fit each other. Nothing has been written to disk."""

    config: ExperimentConfig
    env: Env | None
    """Training environments; None in a run on recorded data alone."""
    obs_spec: ObsSpec
    action_spec: ActionSpec
    algo: Algorithm
    replay: Replay
    """Replay of the collected rows; in a run on recorded data alone the dataset."""
    source: Source
    """Source of the learner's batches: the replay, prefetched to the GPU if there is one."""
    collector: Collector | None
    clock: Clock
    eval_env: Env | None
    dataset: Dataset | None = None
    """Recorded rows, if there are any."""
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None
    """Observations and actions as they were recorded; None if there is an environment, or the data do not say."""
    remarks: tuple[str, ...] = ()
    """What had to be assumed or left out in reading the recorded data."""
    estimator: Estimator | None = None
    """Estimates returns where there is no environment to evaluate in."""
    again: Callable[[], Env] | None = None
    """Returns the environment instance that the user gave, after training, with its true rewards."""

    def evaluate(
        self,
        episodes: int,
        mode: Mode = "eval",
        record: bool = False,
        which: Literal["evaluation", "confirmation", "test"] = "evaluation",
    ) -> Evaluation:
        """Play whole episodes, and leave every random generator of training as it was.

        They are played in the evaluation environments, or in the user's single instance, whose running episode is lost:
        so only after training. ``which`` selects the seed; that of "test", for the final evaluation, is used by nothing
        before.

        Raises:
            ConfigError: there is no environment, or ``episodes`` is not at least 1.
        """
        seed = derived_seeds(self.config.seed)[which]
        env = self.eval_env or (self.again() if self.again is not None else self.env)
        if env is None:
            raise ConfigError("there is no environment to evaluate in. Set data.eval_env.")
        explored = self.config.explored(self.clock.env_steps)
        with reproducible(seed):
            return evaluate(env, self.algo.policy, episodes, mode, record, seed=seed, env_steps=explored)

    def estimate(self, watch: Watch | None = None) -> PolicyEstimate:
        """Estimate the policy's return from the recorded data, continuing FQE from the estimate before.

        ``watch``: follows the updates of FQE.

        Raises:
            ConfigError: the run has no estimator.
        """
        if self.estimator is None:
            raise ConfigError(
                "this run has no estimator. Returns are estimated in runs on recorded data alone with data.eval_env = "
                "'none' and data.estimate_updates above 0."
            )
        return self.estimator.estimate(self.config.data.estimate_updates, watch=watch)

    def close(self) -> None:
        """Close the environments."""
        for env in (self.env, self.eval_env):
            if env is not None:
                env.close()


def build(
    config: ExperimentConfig, env: EnvLike | None = None, *, start: int = 0, scratch: Path | None = None
) -> Experiment:
    """Build everything that ``config`` describes, for a run that collects experience. Writes nothing.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, in place of ``config.env.id``.
        start: env step at which a continued run resumes; environments are seeded by it, so that episodes differ.
        scratch: folder for a memory-mapped replay, made with the first row. None: a temporary folder.

    Raises:
        ReverieError: settings do not fit together, or the memory or the device is missing.
    """
    check_start(config)
    factory = env_factory(config.env, env)
    device, seeds = prepare(config, start)
    with contextlib.ExitStack() as undo:
        train_env = make_env(config.env, seed=seeds["env"], factory=factory, new=start == 0)
        undo.callback(train_env.close)
        algo = config.algo.build(train_env.obs_spec, train_env.action_spec, device, seeds["algo"])
        replay = config.replay.build(
            obs_spec=train_env.obs_spec,
            action_spec=train_env.action_spec,
            extra_spec=algo.extra_spec,
            num_envs=config.env.num,
            window=shares(algo.window, config.data.fraction)[1] if config.data.path else algo.window,
            seed=seeds["replay"],
            most=most_rows(config.replay, config.steps, config.env.num),
            scratch=scratch,
        )
        replay.hindsight = algo.hindsight
        check_memory(config.replay, replay, config.steps)
        check_capacity(config.replay, replay, config.learning_starts)
        eval_env = make_beside(config, factory) if wants_eval_env(config, env) else None
        if eval_env is not None:
            undo.callback(eval_env.close)
            check_same_spaces(train_env, eval_env)
        collector = Collector(
            train_env,
            algo.policy,
            replay,
            seed=seeds["collector"],
            random_steps=config.random_steps,
            watcher=algo.watcher,
        )
        clock = Clock(
            total_steps=config.steps,
            replay_ratio=config.ratio(algo.window),
            learning_starts=max(1, config.learning_starts),
            action_repeat=config.env.action_repeat,
        )
        if algo.device.type == "cpu":
            keep_freed_memory()
        undo.pop_all()
    return Experiment(
        config=config,
        env=train_env,
        obs_spec=train_env.obs_spec,
        action_spec=train_env.action_spec,
        algo=algo,
        replay=replay,
        source=ahead(replay, algo.device),
        collector=collector,
        clock=clock,
        eval_env=eval_env,
        again=None if not isinstance(factory, Single) else lambda: make_eval_env(config, factory),
    )


def prepare(config: ExperimentConfig, start: int) -> tuple[str, dict[str, int]]:
    """Set PyTorch's threads and seed the global generators; return the device and the seeds of a run.

    Raises:
        ConfigError: the device is missing.
    """
    device = choose_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    seeds = derived_seeds(config.seed, start)
    seed_everything(seeds["global"])
    return device, seeds


def wants_eval_env(config: ExperimentConfig, env: EnvLike | None) -> bool:
    """Return whether evaluations need environments of their own. An instance cannot be made a second time.

    Raises:
        ConfigError: evaluations during training were asked for with an instance.
    """
    if not isinstance(env, gymnasium.Env):
        return config.eval_episodes > 0
    if config.evaluates_on_the_way:
        raise ConfigError(
            f"schedule.eval_every = {config.schedule.eval_every}: evaluations during training need a second "
            "environment, but only one instance was passed. Pass a function that creates environments, or use 0."
        )
    return False


def make_eval_env(
    config: ExperimentConfig,
    factory: MakeEnv | None = None,
    render: bool = False,
    *,
    true_rewards: bool = True,
    workers: bool = False,
) -> Env:
    """Make the environments of evaluations: as in training, but with true rewards unless ``true_rewards`` is False.

    They run in this process. ``workers``: in worker processes if training does, so that a crash does not end the run.
    """
    num = 1 if isinstance(factory, Single) else max(1, min(config.eval_envs, config.eval_episodes))
    vector = config.env.vector if workers else "serial"
    values = config.env.merge({"num": num, "vector": vector, **({"clip_reward": "none"} if true_rewards else {})})
    seed = derived_seeds(config.seed)["evaluation"]
    return make_env(values, seed=seed, factory=factory, render=render, new=False)


def make_beside(config: ExperimentConfig, factory: MakeEnv | None) -> Env:
    """Make the environments of evaluations while those of training are open.

    Raises:
        EnvError: one cannot be made, as where a simulator can only run once.
    """
    try:
        return make_eval_env(config, factory, workers=True)
    except EnvError as error:
        raise EnvError(
            f"{error}. This was an environment for evaluations; those for training were made and are open. If only one "
            "can be open at a time, set eval_episodes = 0 and eval_envs = 1, and evaluate the finished run. Or pass an "
            "instance in Python, in which the run is evaluated at its end."
        ) from error


def check_same_spaces(train_env: Env, eval_env: Env) -> None:
    """Check that evaluations are played with the observations and actions of training.

    Raises:
        EnvError: they are not; the message names each difference.
    """
    one, two = (signature(env.obs_spec, env.action_spec) for env in (train_env, eval_env))
    if found := differences(one, two, ("the training environments", "those for evaluations")):
        raise EnvError(
            f"{'; '.join(found)}: expected the same in both. Make environments whose spaces do not depend on how many "
            "were made before, or set eval_episodes = 0."
        )


def check_start(config: ExperimentConfig) -> None:
    """Check the algorithm's settings against those of the run. A replay that begins with rows needs no random steps.

    Raises:
        ConfigError: they do not fit.
    """
    given = config.replay.init or config.data.path
    config.algo.check_run(
        random_steps=sys.maxsize if given else config.random_steps,
        learning_starts=sys.maxsize if given else config.learning_starts,
        frame_stack=config.env.frame_stack,
    )
