"""``build`` assembles the parts of a run according to its settings: the :class:`Experiment`."""

from __future__ import annotations

import contextlib
import functools
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol, cast

import gymnasium
import numpy as np
import torch

from reverie.algos.base import Algorithm
from reverie.core.clock import Clock
from reverie.core.collectives import is_distributed
from reverie.core.errors import ConfigError, DataError, RunError, count_noun
from reverie.core.hardware import set_up_pytorch
from reverie.core.kernel_dispatch import kernels_disabled
from reverie.core.logger import logger
from reverie.core.protocols import BatchSource, Env, Policy, Stateful
from reverie.core.seeding import RngState, derived_seeds, seed_everything, seeded_rng
from reverie.core.space_json import space_to_json
from reverie.core.specs import ActionSpec, ObsSpec, has_players, spec_to_dict
from reverie.core.types import FLAGS, Batch, Mode, State, Window
from reverie.envs.config import EnvLike
from reverie.envs.vector_steps import CLIPS
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.describe import describe_experiment
from reverie.experiment.environments import Environments, EnvMakers, ProbedEnv, open_environments, plays, probe_env
from reverie.experiment.goals import ignore_row_rewards, relabel_goals
from reverie.experiment.learned_reward import LearnedReward, RelabeledSource, build_learned_reward
from reverie.experiment.offline import (
    OfflineRows,
    make_heldout_metrics,
    open_run_dataset,
    read_heldout_data,
    read_offline_rows,
)
from reverie.experiment.person import find_person
from reverie.experiment.rules import DeviceRun, check_device_run, validate_config
from reverie.experiment.saved_settings import saved_settings
from reverie.experiment.warm_start import load_initial
from reverie.log.meter import DeviceMeter
from reverie.log.video import shrink
from reverie.replay.buffer import ReplayBuffer
from reverie.replay.build import build_device_rollout, build_replay, check_capacity, check_memory, max_rows
from reverie.replay.config import PERSON_PAGE
from reverie.replay.human import TaggedSource
from reverie.replay.offline import OfflineReplay, OfflineReplayPart
from reverie.replay.persistent import PersistentReplay
from reverie.replay.rollout import DeviceRollout, RolloutBuffer
from reverie.replay.sources import MixedSource, prefetch, split_window
from reverie.run.collect import EnvCollector
from reverie.run.dream_snapshots import LearnerWeights
from reverie.run.episodes import CollectorProtocol
from reverie.run.evaluate import Estimator, Evaluation, EvaluationPurpose, MeasurementResult, episode_limit, evaluate
from reverie.run.folder import SavedConfig
from reverie.run.rating import Rating
from reverie.run.takeovers import ActionChannel

EVALUATION_SHARE = 0.05
"""Share of a run's hours that the evaluation at the end has, until an earlier one has been timed."""
ESTIMATE_UPDATES = 5000
"""Maximum updates of an estimate of the return, unless the settings name their number."""
STORED_TURNS = 64
"""Turns whose rows are copied from a GPU to the store at once."""
MAX_VIDEO_SIDE = 256
"""Maximum length of the longer side of evaluation videos during training, in pixels."""


class RowStore(Stateful, Protocol):
    """The collected rows of a run on disk."""

    @property
    def is_copied(self) -> bool:
        """Whether the rows of the loaded checkpoint were copied to a new segment."""

    def check(self) -> None:
        """Check that any stored rows have the same spaces as the replay."""

    def check_writable(self) -> None:
        """Check that a run without a checkpoint can write rows."""

    def begin(self) -> bool:
        """Start storing in a run without a checkpoint; return whether the replay has rows."""

    def on_checkpoint(self, name: str, retained: Sequence[str]) -> None:
        """After checkpoint ``name``, delete the rows that none of the ``retained`` checkpoints needs."""

    def complete(self, state: State) -> None:
        """Store the rows that only a checkpoint with this ``state`` has."""

    def close(self, *, failed: bool) -> None:
        """Stop storing, at once after an error."""


@dataclass(frozen=True, kw_only=True)
class Experiment:
    """All matching parts of a run. Nothing has been written to disk."""

    config: ExperimentConfig
    algo: Algorithm
    clock: Clock
    source: BatchSource
    """Source of the learner's batches."""
    collector: CollectorProtocol | None
    """None in an offline run."""
    heldout: Callable[[], Mapping[str, float]] | None = None
    """Returns metrics of the learner on held-out rows; None if there are none."""
    store: RowStore | None = None
    envs: Environments
    """With actors, which have their own environments, the one for training is made to read its spaces, and closed."""
    obs_spec: ObsSpec
    action_spec: ActionSpec
    replay: Any
    """Replay of the collected rows, or :class:`~reverie.distributed.actor_replays.MultiReplay` of actors; in an offline
    run, the dataset."""
    offline: OfflineRows
    meter: DeviceMeter = field(default_factory=DeviceMeter)
    user_env: EnvLike | None = None
    """The environment passed by the user."""
    user_eval_env: EnvLike | None = None
    """The evaluation environment passed by the user."""
    goal_env: gymnasium.Env[Any, Any] | None = None
    """The environment that computes the rewards of relabeled goals; None if there is none."""
    learned_reward: LearnedReward | None = None
    """The reward that a person teaches; None: the environment's."""
    rating: Rating | None = None
    """The agent of the evaluation before, in a game of two players; else None."""
    remarked: set[str] = field(default_factory=set)
    """Messages that have been logged and are not repeated."""

    def share_batches(self) -> None:
        """Let all batches be one, for a caller that uses each before the next, where recorded updates keep none."""
        algo, source = self.algo, self.source
        can_record = algo.graph and (algo.captures_on_cpu or algo.device.type != "cpu")
        is_recorded = can_record and not (kernels_disabled() or is_distributed())
        if is_recorded and isinstance(source, ReplayBuffer | DeviceRollout):
            source.shares_batch = source.supports_sharing

    def evaluate(
        self, which: EvaluationPurpose, mode: Mode = "eval", opponent: Policy[Any] | None = None
    ) -> Evaluation:
        """Play whole episodes, without changing the training's random generators.

        ``which`` selects the seed; only mode ``eval`` without an ``opponent`` films. With an opponent, who also takes
        time, there are half as many games. The episodes are played in the evaluation environments, or, only after
        training, in the user's single instance, whose running episode is lost.
        """
        seed, episodes = derived_seeds(self.config.seed)[which], self.config.eval_episodes
        if opponent is not None:
            episodes = 2 * math.ceil(episodes / 4)  # in pairs
        env = self.envs.evaluation or (None if self.envs.reopen is None else self.envs.reopen())
        assert env is not None
        with seeded_rng(seed):
            films = self.config.eval_video and mode == "eval" and opponent is None
            evaluation = evaluate(
                env, self.algo.policy, episodes, mode, _shrink_frame if films else None, seed=seed,
                env_steps=self.clock.env_steps,
                most_steps=episode_limit(self.config.eval_episode_steps, self.clock.longest_episode), opponent=opponent,
                clip=CLIPS[self.config.env.clip_reward] if self.config.clips_policy_rewards else None,
            )  # fmt: skip
        if evaluation.cut_off and (which == "test" or not self.remarked):
            remark = "their scores, marked *, include only these steps"
            logger.warning(f"{evaluation.cut_text()} (eval_episode_steps): {remark}")
            self.remarked.add("cut off")
        if films and evaluation.frames is None:
            logger.warning("eval_video = True, but this environment cannot render images: there is no video")
        return evaluation

    @property
    def measurement(self) -> Literal["", "eval", "estimate"]:
        """The measurement at the end of the run: an evaluation, an estimate, or nothing."""
        return "estimate" if self.offline.estimator is not None else "eval" if self.config.eval_episodes else ""

    def measure(self, which: EvaluationPurpose) -> MeasurementResult:
        """Evaluate, or estimate, according to ``measurement``."""
        if (estimator := self.offline.estimator) is not None:
            updates = self.config.data.estimate_updates
            if updates is None:
                updates = max(1, min(ESTIMATE_UPDATES, self.clock.updates - estimator.updates))
            if which == "test":
                logger.info(f"estimating the policy's return: {count_noun(updates, 'update')} of FQE")
            return estimator.estimate(updates)
        if which == "test":
            logger.info(f"evaluating: {count_noun(self.config.eval_episodes, 'episode')}")
        evaluation = self.evaluate(which)
        if which == "test" and self.config.algo.samples_actions and not self.clock.is_overdue:
            sampled = self.evaluate(which, "explore")
            if evaluation.differs_from(sampled):
                scores = f"{evaluation.score:.2f} with the most likely actions, {sampled.score:.2f} with sampled ones"
                logger.info(f"mean return {scores}, which agents choose with deterministic=False")
        if self.rating is not None:
            games = evaluation  # the first one: against random moves
            if self.rating.weights:
                opponent = self.config.algo.build(self.obs_spec, self.action_spec, str(self.algo.device))
                LearnerWeights(opponent).load_state_dict(self.rating.weights)
                games = self.evaluate(which, opponent=opponent.policy)
            evaluation = replace(evaluation, strength={**evaluation.strength, **self.rating.measure(games.scores)})
        return evaluation

    def keep_evaluated(self, values: Mapping[str, float]) -> None:
        """Keep the agent of an evaluation during training, with its logged numbers, as the next opponent."""
        if self.rating is not None and "eval/elo" in values:
            self.rating.keep(self.algo, values["eval/elo"])

    def callback_env(self, which: Literal["training", "evaluation"]) -> Env:
        """Return the training or evaluation environments; RunError if callbacks cannot access all of them."""
        env = self.envs.training if which == "training" else self.envs.evaluation
        if env is None:
            raise RunError(f"this run has no environments for {which} that a callback could access.")
        if which == "training" and self.config.actors:
            raise RunError(
                f"actors = {self.config.actors}: a callback cannot access the environments of actors. Use actors = 0; "
                "with env.vectorization = async each environment has its own process, which callbacks can access."
            )
        return env

    @property
    def saved(self) -> SavedConfig:
        """The resolved settings."""
        env = self.envs.training or self.envs.evaluation
        saved = saved_settings(self.config, self.user_env, self.user_eval_env)
        return saved if env is None else replace(saved, packages=env.packages)

    @property
    def spec(self) -> Mapping[str, Any]:
        """Content of spec.json: observations, actions, and the spaces for an agent that acts without an environment."""
        spec: dict[str, Any] = dict(spec_to_dict(self.obs_spec, self.action_spec))
        if (spaces := self.offline.spaces) is not None:
            with contextlib.suppress(DataError):  # a custom spec kind: loading the agent then requires the environment
                spec["spaces"] = dict(zip(("observation", "action"), map(space_to_json, spaces), strict=True))
        return spec

    def parts(self) -> dict[str, Stateful]:
        """Return the parts of a checkpoint in the order in which they are loaded."""
        parts: dict[str, Stateful] = {"meter": self.meter}
        stored = self.replay if isinstance(self.replay, DeviceRollout) else self.store
        if self.collector is not None and stored is not None:
            parts |= {"replay": stored, "collector": self.collector}
        if (dataset := self.offline.dataset) is not None:
            parts["data"] = OfflineReplayPart(dataset, self.config.data.label, self.offline.estimator)
        if self.learned_reward is not None:
            parts["reward"] = self.learned_reward
        if self.rating is not None:
            parts["rating"] = self.rating
        return parts | {"random": RngState()}  # last, because loading the other parts can draw from it

    def begin(self) -> None:
        """Begin a new run: start storing, and fit the statistics to the rows of the dataset or initial ones."""
        replays: list[ReplayBuffer] = [] if self.offline.dataset is None else [self.offline.dataset]
        if self.store is not None and self.store.begin():
            replays.append(self.replay)
        if (running_statistics := self.algo.running_statistics) is not None:
            for replay in replays:
                running_statistics.fit(_read_all_rows(replay, self.obs_spec))

    def close(self, *, failed: bool = False) -> None:
        """Close environments and store; the store at once if the run has ``failed``."""
        if self.store is not None:
            self.store.close(failed=failed)
        for part in (self.collector, self.envs.evaluation, self.goal_env):
            if part is not None:
                part.close()

    def load_initial(self) -> None:
        """Load the agent of another run, if the settings name one."""
        load_initial(self.algo, self.config, self.spec)

    def describe(self, folder: Path) -> None:
        """Log a summary of the training run in ``folder``, and the assumptions about the data."""
        for line in describe_experiment(self, folder):
            logger.info(line)

    def largest_reward(self) -> float:
        """Return the largest absolute reward of the rows so far; 0 if it is unknown."""
        replays = [replay for replay in (self.offline.dataset, self.replay) if isinstance(replay, ReplayBuffer)]
        rewards = [r.storage.read(r.oldest, r.count, ["reward"], copy=False)["reward"] for r in replays if r.count]
        return max((float(np.abs(x).max()) for x in rewards), default=0.0)

    def no_update_reason(self) -> str:
        """Return why a finished run has made no update; "" if it made any, or its settings ask for none."""
        config, window, offered = self.config, self.algo.window, len(self.replay)
        expected = config.offline or config.algo.on_policy or config.updates_per_step(window) == 0
        if self.clock.updates or expected:
            return ""
        if offered >= config.learning_starts:
            return (
                f"no updates were made: learning starts after {config.learning_starts} of {config.steps:,} env steps, "
                "just before the end. Lower learning_starts, or increase steps"
            )
        within = "" if window.crosses_episodes else f" of {window.rows - window.num_free_rows} rows within one episode"
        return (
            f"no updates were made: learning starts after {config.learning_starts} windows{within}, but the replay "
            f"offers only {offered}. Lower learning_starts, or use shorter windows (algo.batch_length)"
        )


def _read_all_rows(replay: ReplayBuffer, spec: ObsSpec) -> Batch:
    """Return all rows of the replay ``[N, n]`` without images and latents, read-only: they can be memory-mapped."""
    stored = {key: part for key, part in spec.items() if f"obs/{key}" in replay.storage.specs}  # goals are not
    names = ["action", "reward", *FLAGS, *(f"obs/{key}" for key, part in stored.items() if part.kind == "vector")]
    rows = replay.storage.read(replay.oldest, replay.count, names, copy=False)
    columns = {name: torch.from_numpy(x) for name, x in rows.items()}
    return Batch.from_columns(columns, torch.arange(replay.storage.streams))


class OnlineRows(NamedTuple):
    """The replay, the collector and the store of its rows; empty in an offline run."""

    replay: BatchSource | None = None
    collector: CollectorProtocol | None = None
    store: RowStore | None = None


def build(
    config: ExperimentConfig, env: EnvLike | None = None, *, eval_env: EnvLike | None = None, start: int = 0,
    rank: int = 0, run: Path | None = None, estimates: Callable[..., Estimator] | None = None,
    actors: Callable[..., Any] | None = None, human: ActionChannel | None = None,
) -> Experiment:  # fmt: skip
    """Build everything that ``config`` enables; other parts are None. Writes nothing.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, instead of ``config.env.id``.
        eval_env: the same for evaluation, instead of the id in ``config.eval_env``.
        start: step at which a continued run resumes; it seeds the environments, so that episodes differ.
        rank: number of this learner among several: its random draws differ, its weights do not.
        run: the run folder, for the store and for memory-mapped rows. None: no store, and a temporary folder.
        estimates: the class of the estimator of an offline run without an environment.
        actors: builds the collector of ``config.actors`` processes: ``distributed/actor_collector.py:
            build_actor_collector``.
        human: who can take over, instead of ``config.human.person``.

    Raises:
        ReverieError: settings contradict each other, the dataset cannot be read or does not match the environment, or
            memory or device are not available.
    """
    started = time.perf_counter()
    config = validate_config(config)
    _check_start(config)
    makers = EnvMakers.from_config(config, env, eval_env)
    needs_spaces = config.offline_fraction or config.reward
    # First, since some simulators can run only once.
    probed = probe_env(config, makers.training) if needs_spaces and plays(config) else ProbedEnv()
    device, seeds = _set_up_process(config, start, rank)
    online, offline = OnlineRows(), OfflineRows()
    heldout: Callable[[], Mapping[str, float]] | None = None
    learned_reward: LearnedReward | None = None
    with contextlib.ExitStack() as undo:
        envs = open_environments(config, makers, seeds["env"], undo, new=start == 0)
        recorded = open_run_dataset(config, probed, envs, undo) if config.offline_fraction else None
        learned = envs.training or recorded
        assert learned is not None
        task = envs.training or envs.evaluation or learned  # the environment's action space has bounds

        algo = config.algo.build(learned.obs_spec, learned.action_spec, device, seeds["algo"])
        if config.reward:
            learned_reward = build_learned_reward(config, algo, learned, probed, seeds["algo"], is_new=start == 0)
        clock, meter = _make_clock(config, algo, time.perf_counter() - started), DeviceMeter()
        is_mixed, windows = 0 < config.offline_fraction < 1, (algo.window, algo.window)
        if is_mixed and not config.human_fraction:
            windows = split_window(algo.window, config.offline_fraction)
        if envs.training is not None:
            clock.action_repeat = envs.training.frames_per_action
            if not config.actors or envs.training.defers:  # which refuses actors
                actors = None
            person = find_person(config.human.person, human)
            collect = functools.partial(build_collection, person)
            collect = functools.partial(actors, makers.training, meter) if actors else collect
            online = OnlineRows(*collect(config, algo, envs.training, windows[1], seeds, run, clock))
        if recorded is not None:
            seed = seeds["replay"] + is_mixed
            offline = read_offline_rows(config, recorded, algo, windows[0], seed, run, estimates)
            clock.longest_episode = offline.longest_episode
        if (config.heldout_data or offline.heldout) and rank == 0:
            rows = offline.heldout or read_heldout_data(config, algo, task, probed, run)
            relabel = (lambda batch: batch) if learned_reward is None else learned_reward.relabel
            heldout = make_heldout_metrics(config, algo, rows, relabel)
        replays = [offline.dataset, *getattr(online.replay, "replays", [online.replay])]
        goal_env = relabel_goals(config, algo, makers.training, learned.obs_spec, replays, seeds["replay"])
        undo.pop_all()
    source = _build_source(config, algo, offline.dataset, online, seeds["replay"])
    return Experiment(
        config=config, user_env=env, user_eval_env=eval_env, algo=algo, clock=clock, meter=meter,
        obs_spec=config.algo.acting_spec(learned.obs_spec), action_spec=task.action_spec,
        envs=envs, replay=offline.dataset if online.replay is None else online.replay, collector=online.collector,
        store=online.store, offline=offline, heldout=heldout, goal_env=goal_env,
        source=source if learned_reward is None else RelabeledSource(source, learned_reward),
        learned_reward=learned_reward, rating=Rating() if has_players(task.obs_spec) else None,
    )  # fmt: skip


def _build_source(
    config: ExperimentConfig, algo: Algorithm, recorded: OfflineReplay | None, online: OnlineRows, seed: int
) -> BatchSource:
    """Return the source of the learner's batches: of recorded rows, collected ones, or both."""
    parts: list[BatchSource] = [part for part in (recorded, online.replay) if part is not None]
    if config.human_fraction or config.human.intervention_reward:
        parts = [_build_tagged_source(config, algo, recorded, online, seed)]
    sources = [prefetch(part, algo.device) for part in parts]
    return sources[0] if len(sources) == 1 else MixedSource(*sources)


def _make_clock(config: ExperimentConfig, algo: Algorithm, seconds: float = 0.0) -> Clock:
    """Return the clock of the run, whose position ``algo`` sees. ``seconds``: how many of the hours have passed."""
    max_seconds = None if config.hours is None else max(1.0, 3600 * config.hours - seconds)
    clock = Clock(
        length=config.length, unit=config.unit, tolerance=config.tolerance, train_freq=config.train_freq,
        replay_ratio=config.updates_per_step(algo.window), pretrain_updates=config.pretrain_updates,
        on_policy=config.algo.on_policy,
        learning_starts=1 if config.offline or config.algo.on_policy else max(1, config.learning_starts),
        max_seconds=max_seconds, reserved_seconds=EVALUATION_SHARE * (max_seconds or 0.0),
    )  # fmt: skip
    algo.position = functools.partial(getattr, clock, "schedule_position")  # unlike a lambda, torch.save writes it
    return clock


def _build_tagged_source(
    config: ExperimentConfig, algo: Algorithm, recorded: OfflineReplay | None, online: OnlineRows, seed: int
) -> TaggedSource:
    """Return the source of batches with a person's windows; ConfigError if their rewards cannot be changed."""
    fraction, human = config.human_fraction, config.human
    if human.intervention_reward and (algo.window.learns_rows or (recorded is not None and not fraction)):
        raise ConfigError(
            f"human.intervention_reward = {human.intervention_reward:g}: expected a learner of transitions, such as "
            "sac, td3 or dqn, and with data a human.fraction above 0."
        )
    if human.intervention_reward and human.reward == "only":
        ignore_row_rewards(config, algo, "human.reward = only")
    if fraction and getattr(config.algo, "entropy_backup", False) and human.reward == "add":
        logger.warning(
            "algo.entropy_backup = True: if rewards are for success alone, the entropy can be worth more, so that the "
            "agent never arrives. Use --preset hil, or algo.entropy_backup = False"
        )
    source = TaggedSource(cast(ReplayBuffer, online.replay), recorded, human, fraction, seed)
    source.settle = getattr(online.collector, "settle", source.settle)
    return source


def build_collection(
    person: ActionChannel | None, config: ExperimentConfig, algo: Algorithm, env: Env, window: Window,
    seeds: Mapping[str, int], run: Path | None, clock: Clock,
) -> tuple[ReplayBuffer | DeviceRollout, EnvCollector, PersistentReplay | None]:  # fmt: skip
    """Build the collector and the replay. See :func:`build` for the arguments."""
    replay, store = _build_replay_and_store(config, algo, env, window, seeds["replay"], run, clock)
    if config.human.person == PERSON_PAGE and not env.can_end_one:
        raise ConfigError(
            f"human.person = 'page', env.num = {env.num_envs}: the keys S and F end one episode, but "
            "env.vectorization = native can only end those of all environments. Set env.num = 1, or sync."
        )
    collector = EnvCollector(
        env, algo.policy, replay, seed=seeds["collector"], random_steps=config.random_steps,
        running_statistics=algo.running_statistics, exact=lambda: store is None or store.exact,
        schedule_position=None if clock.max_seconds is None else lambda: clock.schedule_position,
        on_policy=config.algo.on_policy, person=person, rollout=window.rollout if env.defers else 0,
    )  # fmt: skip
    if person is not None:
        person.connect(env, lambda: clock.done)
        if env.num_envs > 1:
            logger.info(f"a person can take over in the first of {env.num_envs} environments (env.num)")
    if store is not None:
        store.settle = collector.settle
    if isinstance(replay, RolloutBuffer):
        replay.next_row_fn = lambda: collector.step
    return replay, collector, store


def _build_replay_and_store(
    config: ExperimentConfig, algo: Algorithm, env: Env, window: Window, seed: int, run: Path | None, clock: Clock
) -> tuple[ReplayBuffer | DeviceRollout, PersistentReplay | None]:
    """Build the replay and its store; the rows of environments on a device stay there, and rollouts have no store."""
    settings = config.replay
    if env.defers:
        check_device_run(DeviceRun(config, env.device, algo.device))
        settings = replace(settings, device=str(env.device))
    if window.rollout:
        _check_rollout_steps(config, window)
    if env.defers and window.rollout:
        rollout = build_device_rollout(config.replay, env, algo.extra_spec, window, seed)
        rollout.prepare_fn = algo.prepare_rollout
        return rollout, None
    replay = build_replay(
        settings, obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec=algo.extra_spec,
        num_envs=config.env.num, window=window, seed=seed, scratch=run,
        max_rows=max_rows(settings, config.steps, config.env.num),
    )  # fmt: skip
    replay.annotator = algo.annotator
    if isinstance(replay, RolloutBuffer):
        replay.prepare_fn = algo.prepare_rollout
    if env.device.type != "cpu":
        replay.store_turns = STORED_TURNS
    check_memory(settings, replay, config.steps)
    check_capacity(settings, replay, config.learning_starts)
    if run is None:
        return replay, None
    return replay, PersistentReplay(replay, settings, run, stop=lambda: clock.stop, on_device=env.defers)


def _check_rollout_steps(config: ExperimentConfig, window: Window) -> None:
    """Raise ConfigError if the run is shorter than a rollout."""
    if (rows := window.rollout * config.env.num) > config.steps:
        raise ConfigError(
            f"steps = {config.steps}: a rollout has {rows} rows, algo.rollout = {window.rollout} of each of "
            f"{config.env.num} environments, so nothing would be learned. Lower algo.rollout, or increase steps."
        )


def _set_up_process(config: ExperimentConfig, start: int, rank: int = 0) -> tuple[str, dict[str, int]]:
    """Set up PyTorch and seed the global generators; return the device and the seeds of a run."""
    device = set_up_pytorch(config.learner_device(), config.threads, config.cudnn_benchmark)
    seeds = derived_seeds(config.seed, start, rank)
    seed_everything(seeds["global"])
    return device, seeds


def _shrink_frame(frame: np.ndarray) -> np.ndarray:
    """Return a copy of a frame, at most ``MAX_VIDEO_SIDE`` pixels high and wide."""
    return shrink(np.array(frame), MAX_VIDEO_SIDE)


def _check_start(config: ExperimentConfig) -> None:
    """Check the algorithm's settings against the run's settings. A replay with initial rows needs no random steps."""
    limit = sys.maxsize if config.replay.init_from or config.data.path else 0
    random, starts = max(limit, config.random_steps), max(limit, config.learning_starts)
    config.algo.check_run(random_steps=random, learning_starts=starts, frame_stack=config.env.frame_stack)
