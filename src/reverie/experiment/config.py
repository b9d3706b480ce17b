"""All settings of a run, and values derived from them before anything is built."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import DEFAULT_ALGORITHM, algorithm_config, algorithm_name
from reverie.core.bounds import Above, AtLeast, Regex, Within
from reverie.core.config import Config
from reverie.core.errors import ConfigError
from reverie.core.hardware import check_device_name, choose_device
from reverie.core.types import Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.data_path import split_paths
from reverie.envs.config import EnvConfig
from reverie.envs.suites import TRAINING_KWARGS
from reverie.replay.config import Experience, HumanConfig, Mixed, ReplayConfig
from reverie.run.config import Schedule, ScoreMetric, parse_callback, parse_period

DEFAULT_REPLAY_RATIO = 0.5
END_OF_SCHEDULES = 10**15
"""Env steps after which all exploration schedules have ended."""
HELDOUT_FRACTION = 0.05
"""Default of ``heldout_fraction`` where nothing else would measure the agent."""

REPLAY_SETTINGS = ("replay_ratio", "train_ratio", "learning_starts", "random_steps", "pretrain_updates", "train_freq")
"""Settings of learning from a replay, which on-policy runs refuse."""
NO_ENV = "none"
"""Environment id of a run without an environment."""
DATASET_ENV = "auto"
"""Placeholder id for the environment named in the dataset, until ``dataset_env.py: with_dataset_env``."""
WITHOUT_ENV: dict[str, Any] = {"env.id": NO_ENV, "env.num": 1, "eval_episodes": 0}
"""Settings of a run without an environment and without evaluations."""


def _default_algorithm() -> AlgorithmConfig:
    """Return the settings of the algorithm that is trained if none is named."""
    config = algorithm_config(DEFAULT_ALGORITHM)()
    assert isinstance(config, AlgorithmConfig)
    return config


@dataclass(frozen=True, kw_only=True)
class ExperimentConfig(Config):
    """All settings of a run."""

    preset: str = field(default="", compare=False)
    """Preset to start from; `reverie list` names them. Default: the preset for the environment's suite. Without a GPU:
    cpu, the same preset with smaller networks and a shorter run. In Python this only records the origin of the
    settings."""
    experience: Experience | None = None
    """online, offline or mixed(0.5): learn from collected rows, from a dataset, or from both. The number is the
    fraction of each batch from the dataset, rounded to whole windows. None: online without data; with data offline, or
    mixed if the algorithm needs both."""
    steps: Annotated[int, AtLeast(1)] = 1_000_000
    """Env steps of the run: decisions of the policy, summed over all environments; action repeat is not counted."""
    updates: Annotated[int, AtLeast(1)] = 100_000
    """Gradient updates of an offline run, which has no env steps."""
    hours: Annotated[float | None, Above(0)] = None
    """Hours after which the run ends at the latest, with its final evaluation. Schedules, such as those of learning
    rates and exploration, then follow whichever is further along, steps or time. None: no limit."""
    replay_ratio: Annotated[float | None, AtLeast(0)] = None
    """Replay ratio: gradient updates per env step. None: from train_ratio, or else 0.5."""
    train_ratio: Annotated[float | None, AtLeast(0)] = None
    """Replayed rows per env step, instead of replay_ratio: replay_ratio x B x T for batches of B windows of T rows."""
    actors: Annotated[int, AtLeast(0)] = 0
    """Actor processes, each with `env.num` environments and the newest weights it has received. 0: the learner acts,
    alternating with its updates. With several learners, each has a share of the actors, or, with fewer actors than
    learners, a share of each actor's environments."""
    ratio_tolerance: Annotated[float | None, AtLeast(0)] = 100.0
    """With actors, number of updates by which learner or actors can be ahead of the ratio before they wait. None:
    nothing waits, and the actual ratio depends on the speed of the machine."""
    learning_starts: Annotated[int, AtLeast(0)] = 1024
    """Windows collected before learning starts."""
    pretrain_updates: Annotated[int, AtLeast(0)] = 0
    """Updates made at once when learning starts, in addition to the ratio: 100 in DreamerV1's code."""
    train_freq: Annotated[int, AtLeast(1)] = 1
    """Env steps between two rounds of updates. A round makes all updates due by the ratio since the last round:
    DreamerV1's 100 updates every 1000 frames, two for each action, are train_freq = 500 with replay_ratio = 0.2."""
    random_steps: Annotated[int, AtLeast(0)] = 0
    """Number of initial env steps with uniformly random actions."""
    seed: Annotated[int, AtLeast(0)] = 0
    """Seed of all random generators: networks, environments, batches and actions. 0 or more."""
    init_from: str | None = None
    """Agent to start from: a run folder, a checkpoint in one, or the file of an agent. Weights, optimizers and
    normalization are loaded; from another algorithm, only the actor and the observation normalization."""
    init_modules: Annotated[str | tuple[str, ...], Regex()] = ()
    """Regular expression, or several: load only the parameters of `init_from` whose names match from the beginning and
    whose shapes are equal; optimizer state is not loaded. The environment may differ."""
    heldout_data: str | None = None
    """Held-out dataset, in the format of data.path: at each report and evaluation and at the end, the learner's losses
    on the same 4 batches are logged as heldout/loss/... . data.columns and similar settings apply. Default for
    ogbench:NAME: ogbench:NAME-val, if there is such a file."""
    heldout_fraction: Annotated[float | None, Within("[0, 1)")] = None
    """Fraction of the dataset's episodes, evenly spaced, that are not learned from: they are the held-out data. 0:
    none. None: 0.05 if nothing else would evaluate a goal-conditioned learner; 0 for others."""
    learners: Annotated[int, AtLeast(1)] = 1
    """Number of learners. Each is a process with its share of every batch, of the environments and of the replay, and
    with its own GPU if there are GPUs. They take each gradient step together. torchrun sets this number by its number
    of processes."""
    scale_hyperparameters: bool = False
    """Scale settings with n learners by RLlib's rules: batch size and environments times n, learning rates times the
    square root of n, with warmup over the first 10 % of the run. The log lists the changes."""
    device: str = "auto"
    """Device: cpu, cuda, cuda:1 or auto, a GPU if there is one."""
    threads: Annotated[int, AtLeast(0)] = 1
    """CPU threads for PyTorch. 1 is fastest for small networks; large world models on images gain from more. 0: one for
    each core."""
    cudnn_benchmark: bool = False
    """Let cuDNN time its convolutions on a GPU and take the fastest: torch.backends.cudnn.benchmark. An update of
    DreamerV3 on images took 6 % less time. After a resume cuDNN may choose other kernels, so results differ in the last
    digits."""
    eval_episodes: Annotated[int, AtLeast(0)] = 10
    """Episodes of each evaluation, during training and at the end. 0: no evaluations."""
    eval_episode_steps: Annotated[int | None, AtLeast(1)] = None
    """Steps after which an episode of an evaluation, of `data record` or in the viewer is cut off, but not before the
    environment's own time limit. None: 4 times the longest episode of training, at least 1000."""
    score_metric: str = "eval/score"
    """Evaluation metric that selects the best checkpoint: eval/score, the mean return, eval/success_rate, a metric of
    `env.log_info`, a loss on held-out data, or goal/recall; `NAME:min` if the lowest value is best. stop_score,
    patience and a search use it too. Defaults: for OGBench eval/success_rate, for board games eval/optimal_moves_hard
    if the solution is known, and else eval/elo."""
    stop_score: float | None = None
    """Stop once an evaluation during training reaches this score and confirms it with the same number of additional
    episodes. None: never stop at a score."""
    patience: Annotated[int | None, AtLeast(1)] = None
    """Stop after this many consecutive evaluations without improvement. Evaluations before the first update do not
    count. None: never stop early."""
    callbacks: tuple[str, ...] = ()
    """Custom code that the run calls: `module:Class` or `module:Class(setting=value)`, a subclass of
    `reverie.Callback`. In Python also objects."""
    eval_envs: Annotated[int, AtLeast(1)] = 4
    """Number of parallel environments in an evaluation."""
    eval_env: str | dict[str, Any] | None = None
    """Evaluation environment, if it differs from the training environment: the `env` settings that differ, `{kwargs:
    {load: 2.0}}`, or just an id. `kwargs` replaces all of `env.kwargs`. The spaces must be the same as in training."""
    eval_video: bool = False
    """Record the first episode of each evaluation as a video, if the environment can be rendered."""
    keep_checkpoints: Annotated[int, AtLeast(1)] = 3
    """Number of newest checkpoints to keep, at least 1. The best checkpoint is kept in addition."""
    log_episodes: bool = False
    """Log a line for each finished episode: its return, its length and the env step."""
    console: bool = True
    """Show progress in the terminal."""
    tensorboard: bool = True
    """Write TensorBoard event files; --no-tensorboard: none."""
    wandb: bool = False
    """Also log to Weights & Biases; its environment variables, such as WANDB_PROJECT and WANDB_MODE, apply."""
    mlflow: bool = False
    """Also log to MLflow, at MLFLOW_TRACKING_URI; MLFLOW_EXPERIMENT_NAME applies."""
    upload: Literal["metrics", "checkpoints", "rows"] = "checkpoints"
    """Uploads to W&B and MLflow. metrics: metrics, settings and videos. checkpoints: also the newest and the best
    checkpoint, without latents of more than 0.1 GB. rows: also all rows, so that the run can be resumed elsewhere by
    its id."""
    schedule: Schedule = field(default_factory=Schedule)
    """How often to log, evaluate, save and report."""
    env: EnvConfig = field(default_factory=EnvConfig)
    """The environment. In an offline run, it is used for evaluation; the default id is then the environment named in
    the dataset. `none`: no environment; estimate the policy's return from the data."""
    algo: AlgorithmConfig = field(default_factory=_default_algorithm)
    """The algorithm."""
    replay: ReplayConfig = field(default_factory=ReplayConfig)
    """The replay buffer of collected experience."""
    data: DatasetConfig = field(default_factory=DatasetConfig)
    """Recorded data."""
    human: HumanConfig = field(default_factory=HumanConfig)
    """A person who takes over from the policy."""
    reward: str = ""
    """Learn from the reward that a person teaches, `preferences:FILE` or `success:FILE`, labels of `reverie data
    compare-clips` or `reverie data label`. Rows and scores keep the environment's rewards. Empty: learn from those."""
    reward_zero: Literal["mean", "lowest", "highest"] = "mean"
    """Reward by preferences that counts 0, as does all after the end of an episode: of the compared clips, the mean
    reward; the lowest, if going on is good; or the highest, if each step costs."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.replay_ratio is not None and self.train_ratio is not None:
            raise ConfigError(
                f"replay_ratio = {self.replay_ratio} and train_ratio = {self.train_ratio}: both set the same quantity "
                "in different units (train_ratio = replay_ratio x B x T). Set only one of them."
            )
        if self.init_modules and self.init_from is None:
            raise ConfigError(f"init_modules = {self.init_modules}: no run to load them from. Set init_from too.")
        check_device_name(self.device)
        if "num" in self.eval_env_overrides:
            raise ConfigError(f"eval_env.num = {self.eval_env_overrides['num']}: set eval_envs = N instead.")
        _ = self.eval_env_config  # its settings are checked when they are created
        if self.env.tasks and self.env.id == NO_ENV:
            raise ConfigError(f"env.tasks = {self.env.tasks}, but there is no environment. Remove this option.")
        _ = self.score
        for entry in self.callbacks:
            parse_callback(entry)

    @property
    def offline_fraction(self) -> float:
        """Fraction of each batch from the dataset: 0 if all rows are collected, 1 if none are."""
        if self.experience is not None:
            return self.experience.recorded
        if not self.data.path:
            return 0.0
        if self.human.person or self.human_fraction:
            return Mixed().recorded
        try:
            self.algo.check_data(recorded=True, collected=False)
        except ConfigError:
            return Mixed().recorded
        return 1.0

    @property
    def human_fraction(self) -> float:
        """Fraction of each batch that is a person's: recorded, or collected while the person acted."""
        if self.human.fraction is not None:
            return self.human.fraction
        return (self.algo.human_fraction or 0.0) if self.human.person else 0.0

    @property
    def offline(self) -> bool:
        """Whether the run learns from a dataset alone."""
        return self.offline_fraction == 1.0

    @property
    def tolerance(self) -> float | None:
        """Tolerance of the ratio in updates; None if the ratio holds in every turn, as without actors."""
        return None if not self.actors else math.inf if self.ratio_tolerance is None else self.ratio_tolerance

    @property
    def unit(self) -> Literal["steps", "updates"]:
        """Unit of the run's length, which is also the name of the setting."""
        return "updates" if self.offline else "steps"

    @property
    def length(self) -> int:
        """Length of the run in ``unit``."""
        return self.updates if self.offline else self.steps

    @property
    def task_label(self) -> str:
        """Label of the run's task: its environment, or its dataset."""
        names = [Path(path).stem or path for path in split_paths(self.data.path)]
        return "+".join(names) if self.offline else self.env.id

    @property
    def name(self) -> str:
        """Name of the algorithm."""
        return algorithm_name(type(self.algo))

    @property
    def score(self) -> ScoreMetric:
        """``score_metric``, and whether the highest or the lowest value is best."""
        return ScoreMetric.parse(self.score_metric)

    @property
    def evaluates_during_training(self) -> bool:
        """Whether there are evaluations in an environment during training."""
        return parse_period(self.schedule.eval_every)[0] > 0 and self.eval_episodes > 0

    @property
    def has_heldout(self) -> bool:
        """Whether there is held-out data."""
        return bool(self.heldout_data) or self.fraction_held_out > 0

    @property
    def fraction_held_out(self) -> float:
        """``heldout_fraction``, or its default."""
        if self.heldout_fraction is not None:
            return self.heldout_fraction
        has_no_number = self.env.id == NO_ENV and not self.heldout_data and self.algo.has_goals
        return HELDOUT_FRACTION if has_no_number else 0.0

    @property
    def scores_during_training(self) -> bool:
        """Whether there are evaluations in an environment or on held-out data during training."""
        return self.evaluates_during_training or (self.has_heldout and parse_period(self.schedule.eval_every)[0] > 0)

    @property
    def eval_env_overrides(self) -> dict[str, Any]:
        """Settings of ``env`` that differ in evaluations."""
        return {"id": self.eval_env} if isinstance(self.eval_env, str) else self.eval_env or {}

    @functools.cached_property
    def eval_env_config(self) -> EnvConfig:
        """Settings of the evaluation environments: as in training, but whole games, true rewards, and ``eval_env``."""
        changes: dict[str, Any] = {"terminal_on_life_loss": False, "clip_reward": "none"}
        omitted = {name for name, prefixes in TRAINING_KWARGS.items() if self.env.id.startswith(prefixes)}
        if omitted & {*self.env.kwargs}:
            changes["kwargs"] = {name: value for name, value in self.env.kwargs.items() if name not in omitted}
        return self.env.merge(changes).merge(self.eval_env_overrides, "eval_env")

    @property
    def clips_policy_rewards(self) -> bool:
        """Whether a policy in evaluations, whose scores are true, is told clipped rewards as in training."""
        return self.eval_env_config.clip_reward != self.env.clip_reward

    def exploration_step(self, step: int) -> int:
        """Return the position of exploration schedules in env steps, at ``step`` of the run, for sampled actions.

        The steps of an offline run are updates. It never explores: its schedules are at their end.
        """
        return END_OF_SCHEDULES if self.offline else step

    def updates_per_step(self, window: Window) -> float:
        """Return the updates per env step, from ``replay_ratio``, ``train_ratio``, or the rollouts of ``window``."""
        if window.rollout:
            rows = window.batch * window.length if window.epochs else window.rollout * self.env.num
            return max(1, window.epochs) / rows
        if self.train_ratio is not None:
            return self.train_ratio / (window.batch * window.length)
        return DEFAULT_REPLAY_RATIO if self.replay_ratio is None else self.replay_ratio

    def planned_updates(self, window: Window) -> int:
        """Return the planned updates of the run. With several learners, these settings are those of one learner."""
        if self.offline:
            return self.updates
        if window.rollout:  # rows of an incomplete rollout are not used
            turns = self.steps // (self.learners * self.env.num)
            learned = turns // window.rollout * window.rollout * self.env.num
        else:
            learned = max(0, self.steps - self.learners * self.first_update_step(window))
        return int(learned * self.updates_per_step(window)) + self.pretrain_updates * (learned > 0)

    def first_update_step(self, window: Window) -> int:
        """Return the env step of a learner with ``learning_starts`` windows, if no episode is shorter than a window."""
        return self.learning_starts + (window.rows - window.num_free_rows - 1) * self.env.num

    def learner_device(self) -> str:
        """Return the device of the learner: see :func:`choose_device`. Raise ConfigError if it cannot learn there."""
        device = choose_device(self.device)
        if device == "cpu" and self.algo.precision == "float16":
            raise ConfigError(
                "algo.precision = 'float16' on a CPU, which is slow in it: expected a GPU. Use bfloat16 or float32."
            )
        return device

    def for_acting_on(self, device: str) -> ExperimentConfig:
        """Return the settings of an agent on ``device``: on CPUs, which are slow in float16, it acts in float32."""
        is_slow = device == "cpu" and self.algo.precision == "float16"
        return self.merge({"algo.precision": "float32"}) if is_slow else self
