"""An experiment: every setting of a run, and ``build``, the one function that knows all floors."""

from __future__ import annotations

import contextlib
import math
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import gymnasium
import torch

from reverie.algos.base import Algorithm, AlgorithmConfig
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.core.clock import Clock
from reverie.core.config import Config, at_least
from reverie.core.errors import ConfigError
from reverie.core.machine import available_memory, choose_device, keep_freed_memory
from reverie.core.protocols import Env, Source
from reverie.core.randomness import derived_seeds, reproducible, seed_everything
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.types import Mode, Window
from reverie.data.dataset import Dataset, DatasetConfig
from reverie.data.mix import shares
from reverie.data.prefetch import ahead
from reverie.data.replay import Replay, ReplayConfig
from reverie.envs.base import EnvConfig
from reverie.envs.handed import EnvLike, MakeEnv, Single, env_factory
from reverie.envs.vector import make_env
from reverie.estimating import Estimator, PolicyEstimate
from reverie.run.collect import Collector
from reverie.run.evaluate import Evaluation, evaluate
from reverie.run.schedule import Schedule, parse_period

DEFAULT_REPLAY_RATIO = 0.5


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config):
    """Every setting of a run."""

    steps: int = 1_000_000
    """Env steps: decisions of the policy, summed over all environments; action repeat is not counted."""
    updates: int = 100_000
    """Gradient updates of a run that learns from recorded data alone, where there are no env steps."""
    replay_ratio: float | None = None
    """Gradient updates per env step; 0.5 unless this or train_ratio is given."""
    train_ratio: float | None = None
    """Replayed rows per env step, another way to say replay_ratio: train_ratio = replay_ratio x B x T."""
    learning_starts: int = 1024
    """Windows that the replay must offer before learning starts."""
    random_steps: int = 0
    """Env steps of uniformly random actions at the beginning."""
    seed: int = 0
    """Everything random follows from it."""
    init: str | None = None
    """A run, or a checkpoint of one, with whose agent a new run begins: its weights, optimisers and normalisation."""
    device: str = "auto"
    """Where networks live: cpu, cuda, cuda:1, or auto for a GPU if there is one."""
    threads: int = 0
    """CPU threads that PyTorch may use; 0 leaves it to PyTorch."""
    eval_episodes: int = 10
    """Episodes of each evaluation, during training and at its end; 0 for none."""
    stop_score: float | None = None
    """End the run as soon as an evaluation during training has this mean score, and still has it together with as many
    other episodes, which are played then. None: only its steps end it."""
    eval_envs: int = 4
    """Environments that evaluations run side by side."""
    keep_checkpoints: int = 3
    """Newest checkpoints to keep."""
    console: bool = True
    """Show progress."""
    tensorboard: bool = True
    """Write TensorBoard event files beside metrics.jsonl."""
    wandb: bool = False
    """Log to Weights & Biases as well; its environment variables, such as WANDB_PROJECT and WANDB_MODE, are heeded."""
    mlflow: bool = False
    """Log to MLflow as well, where MLFLOW_TRACKING_URI says; MLFLOW_EXPERIMENT_NAME is heeded."""
    schedule: Schedule = field(default_factory=Schedule)
    """How often to log, evaluate, save and report."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment."""
    algo: AlgorithmConfig = field(default_factory=DreamerV3Config)
    """The algorithm."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The memory of what was lived."""
    data: DatasetConfig = field(default_factory=DatasetConfig)
    """What was recorded before."""

    def __post_init__(self) -> None:
        if self.replay_ratio is not None and self.train_ratio is not None:
            raise ConfigError(
                f"replay_ratio = {self.replay_ratio} and train_ratio = {self.train_ratio}: they say the same thing in "
                "different units (train_ratio = replay_ratio x B x T); give one of them."
            )
        at_least(self, steps=1, updates=1, learning_starts=0, random_steps=0, seed=0, threads=0)
        at_least(self, eval_episodes=0, eval_envs=1, keep_checkpoints=1, replay_ratio=0, train_ratio=0)
        if self.stop_score is not None and math.isnan(self.stop_score):
            raise ConfigError(f"stop_score = {self.stop_score}: expected a number, or none.")
        if not re.fullmatch(r"auto|cpu|cuda(:\d+)?", self.device):
            raise ConfigError(f"device = '{self.device}': expected auto, cpu, cuda or cuda:<number>.")

    @property
    def evaluates_on_the_way(self) -> bool:
        """Whether there are evaluations during training."""
        return parse_period(self.schedule.eval_every)[0] > 0 and self.eval_episodes > 0

    @property
    def estimates_on_the_way(self) -> bool:
        """Whether there are estimates during training, if any are made."""
        return parse_period(self.schedule.eval_every)[0] > 0 and self.data.estimate_updates > 0

    def ratio(self, window: Window) -> float:
        """Updates per env step, however it was said."""
        if self.train_ratio is not None:
            return self.train_ratio / (window.batch * window.length)
        return DEFAULT_REPLAY_RATIO if self.replay_ratio is None else self.replay_ratio


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All parts of a run, fitted to each other; nothing has been written to disk."""

    config: ExperimentConfig
    env: Env | None
    """The environments that are lived in; None if all that is learned from was recorded."""
    obs_spec: ObsSpec
    action_spec: ActionSpec
    algo: Algorithm
    replay: Replay
    """What was lived; the dataset where nothing is."""
    source: Source
    """Where the learner's batches come from: the replay, by way of a stream of copies if there is a GPU."""
    collector: Collector | None
    clock: Clock
    eval_env: Env | None
    dataset: Dataset | None = None
    """What was recorded before."""
    remarks: tuple[str, ...] = ()
    """What whoever uses the recorded data should know."""
    estimator: Estimator | None = None
    """Stands in where there is no environment to evaluate in."""
    again: Callable[[], Env] | None = None
    """Takes the one instance that was given, whose training is over, with its true rewards."""

    def evaluate(
        self,
        episodes: int,
        mode: Mode = "eval",
        record: bool = False,
        which: Literal["evaluation", "confirmation", "test"] = "evaluation",
    ) -> Evaluation:
        """Play whole episodes, leaving every generator of training as it was.

        They are played in environments of their own; in that of training where only one instance was given, which
        is for the end of training, as its running episode is lost. ``which`` of the episodes: those of ``test``, for
        the end, are others than those before it.
        """
        seed = derived_seeds(self.config.seed)[which]
        env = self.eval_env or (self.again() if self.again is not None else self.env)
        if env is None:
            raise ConfigError("there is no environment to evaluate in: give one with data.eval_env.")
        with reproducible(seed):
            return evaluate(env, self.algo.policy, episodes, mode, record, seed=seed)

    def estimate(self) -> PolicyEstimate:
        """What the policy would earn, estimated from the recorded data; goes on from the estimate before.

        Raises:
            ConfigError: nothing is to be estimated.
        """
        if self.estimator is None:
            raise ConfigError("estimates stand in only where there is no environment: data.eval_env = 'none'.")
        return self.estimator.estimate(self.config.data.estimate_updates)

    def close(self) -> None:
        """Free environments."""
        for env in (self.env, self.eval_env):
            if env is not None:
                env.close()


def build(
    config: ExperimentConfig, env: EnvLike | None = None, *, start: int = 0, scratch: Path | None = None
) -> Experiment:
    """Everything that ``config`` describes. Writes nothing.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance; ``config.env.id`` is made otherwise.
        start: the env step at which the run goes on, so that a continued run meets other episodes.
        scratch: where a replay in mapped files puts them; made with the first row. By default among temporary files.

    Raises:
        ReverieError: settings do not fit together, or there is not the memory or the device for them.
    """
    check_start(config)
    factory = env_factory(config.env, env)
    device = choose_device(config.device)
    if config.threads:
        torch.set_num_threads(config.threads)
    seeds = derived_seeds(config.seed, start)
    seed_everything(seeds["global"])
    with contextlib.ExitStack() as undo:
        train_env = make_env(config.env, seed=seeds["env"], factory=factory)
        undo.callback(train_env.close)
        algo = config.algo.build(train_env.obs_spec, train_env.action_spec, device, seeds["algo"])
        replay = config.replay.build(
            obs_spec=train_env.obs_spec,
            action_spec=train_env.action_spec,
            extra_spec=algo.extra_spec,
            num_envs=config.env.num,
            window=shares(algo.window, config.data.fraction)[1] if config.data.path else algo.window,
            seed=seeds["replay"],
            most=most_rows(config),
            scratch=scratch,
        )
        check_memory(config, replay)
        check_capacity(config, replay)
        eval_env = make_eval_env(config, factory, workers=True) if wants_eval_env(config, env) else None
        if eval_env is not None:
            undo.callback(eval_env.close)
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


def wants_eval_env(config: ExperimentConfig, env: EnvLike | None) -> bool:
    """Whether evaluations need environments of their own; an instance cannot be made a second time.

    Raises:
        ConfigError: evaluation during training was asked for with an instance.
    """
    if not isinstance(env, gymnasium.Env):
        return config.eval_episodes > 0
    if config.evaluates_on_the_way:
        raise ConfigError(
            f"schedule.eval_every = {config.schedule.eval_every} with an environment instance: evaluation needs "
            "environments of its own. Give a function that makes environments, or set it to 0."
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
    """Environments as trained on, but with their true rewards unless those that were learned are wanted.

    They are of this process; with ``workers`` where those of training are: what crashes there takes no run with it.
    """
    num = 1 if isinstance(factory, Single) else max(1, min(config.eval_envs, config.eval_episodes))
    vector = config.env.vector if workers else "serial"
    values = config.env.merge({"num": num, "vector": vector, **({"clip_reward": "none"} if true_rewards else {})})
    seed = derived_seeds(config.seed)["evaluation"]
    return make_env(values, seed=seed, factory=factory, render=render)


def check_start(config: ExperimentConfig) -> None:
    """The algorithm's settings must fit those of the run. A replay that begins with rows needs no random steps first.

    Raises:
        ConfigError: they do not.
    """
    given = config.replay.init or config.data.path
    config.algo.check_run(
        random_steps=sys.maxsize if given else config.random_steps,
        learning_starts=sys.maxsize if given else config.learning_starts,
        frame_stack=config.env.frame_stack,
    )


def check_capacity(config: ExperimentConfig, replay: Replay) -> None:
    """Learning must be able to start.

    Raises:
        ConfigError: the replay can never offer as many windows as learning waits for.
    """
    rows, length = config.replay.rows(row_bytes(replay)), replay.window.rows - replay.window.free
    offered = (rows // config.env.num - length + 1) * config.env.num
    if config.learning_starts > offered:
        raise ConfigError(
            f"learning_starts = {config.learning_starts} windows, but replay.capacity = {config.replay.capacity} "
            f"({rows} rows) over {config.env.num} envs offers at most {offered} windows of {length} rows: learning "
            "would never start. Lower learning_starts or raise replay.capacity."
        )


def most_rows(config: ExperimentConfig) -> int | None:
    """Rows that the run can live: each env step makes one, and each end of an episode one more.

    None if it begins with rows of other runs: nobody has counted them yet.
    """
    return None if config.replay.init else 2 * config.steps + config.env.num


def replay_bytes(config: ExperimentConfig, replay: Replay) -> int:
    """Bytes the replay will really take: rows that never come take none."""
    held = replay.storage.streams * replay.storage.capacity
    return int(row_bytes(replay) * (held if config.replay.init else min(held, config.steps)))


def row_bytes(replay: Replay) -> float:
    """Bytes of one row."""
    return replay.nbytes / (replay.storage.streams * replay.storage.capacity)


def check_memory(config: ExperimentConfig, replay: Replay) -> None:
    """The rows must fit into memory.

    Raises:
        ConfigError: they do not; names both numbers.
    """
    if config.replay.device != "cpu" or config.replay.storage != "ram":  # data/device.py, data/mapped.py have looked
        return
    needed, free = replay_bytes(config, replay), available_memory()
    if free is not None and needed > free:
        per_row = row_bytes(replay)
        raise ConfigError(
            f"replay.capacity = {config.replay.capacity}: {config.replay.rows(per_row)} rows of {per_row:,.0f} bytes "
            f"need {needed / 1e9:.1f} GB, but {free / 1e9:.1f} GB of memory are available. A capacity of "
            f"{int(free * 0.8 / per_row)} would fit; replay.storage = 'mmap', smaller observations or a smaller size "
            "of the algorithm help as well."
        )
