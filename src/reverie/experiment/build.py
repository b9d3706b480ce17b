"""``build`` assembles a run from the parts of all rooms, as its settings say: the :class:`Experiment`."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, cast

import gymnasium
import numpy as np
import torch
from gymnasium.envs.registration import EnvSpec

from reverie.algos.base import Algorithm
from reverie.algos.cql import RETURN
from reverie.algos.on_policy import OnPolicy
from reverie.algos.world_model import Dreamer
from reverie.core.accelerate import trouble
from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, DataError, RunError, brief, plural
from reverie.core.logger import logger
from reverie.core.machine import available_memory, choose_device, keep_freed_memory
from reverie.core.protocols import Env, Stateful
from reverie.core.randomness import RngState, derived_seeds, reproducible, seed_everything
from reverie.core.space_json import text_of
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec, differences, other_bounds, signature
from reverie.core.types import FLAGS, Batch, Window
from reverie.datasets.dataset import Recorded, open_recorded, shown
from reverie.datasets.recorded_env import check_mixed, lacking
from reverie.envs.make import EnvLike, MakeEnv, Single, close_quietly, env_factory, make_gym, to_learnable_obs
from reverie.envs.vector import make_env
from reverie.experiment.bench import Pace, pace
from reverie.experiment.config import NO_ENV, ExperimentConfig, saved_settings
from reverie.experiment.initial import load_initial
from reverie.log.meter import Meter
from reverie.log.video import shrink
from reverie.objectives.returns import Later, returns_to_go
from reverie.replay.config import check_capacity, check_memory, max_rows, replay_bytes
from reverie.replay.dataset import Dataset, DatasetPart
from reverie.replay.durable import DurableReplay
from reverie.replay.replay import Replay
from reverie.replay.rollout import Rollout
from reverie.replay.sources import MixedSource, prefetch, split_window
from reverie.run.collect import Collector
from reverie.run.evaluate import Evaluation, Score, episode_limit, evaluate
from reverie.run.folder import Saved
from reverie.run.run import MeasurementResult, Trainable, Which

SIDE = 256
"""Longer side of the videos of evaluations during training, in pixels, at most."""
HELD_OUT = 4
"""Batches of held-out rows."""
FEW = 200
"""Updates of a run that is too short to time its learner first."""


@dataclass(frozen=True, kw_only=True)
class Experiment(Trainable):
    """All parts of a run, built to fit each other. Nothing has been written to disk."""

    config: ExperimentConfig
    algo: Algorithm
    env: Env | None
    """Training environments; None in a run on recorded data alone. With actors, which have their own, one is made to
    see its spaces, and closed."""
    obs_spec: ObsSpec
    action_spec: ActionSpec
    replay: Any
    """Replay of the collected rows, or :class:`~reverie.scale.actor_replays.Lanes` of actors; in a run on recorded data
    alone the dataset."""
    eval_env: Env | None
    meter: Meter = field(default_factory=Meter)
    dataset: Dataset | None = None
    """Recorded rows, if there are any."""
    spaces: tuple[gymnasium.Space[Any], gymnasium.Space[Any]] | None = None
    """Observations and actions as they were recorded; None if there is an environment, or the data do not say."""
    remarks: tuple[str, ...] = ()
    """What had to be assumed or left out in reading the recorded data."""
    estimator: Any = None
    """An ``OffPolicyEstimator`` of ``reverie.agent`` where there is no environment to evaluate in; else None."""
    again: Callable[[], Env] | None = None
    """Returns the environment instance that the user gave, after training, with its true rewards."""
    given: EnvLike | None = None
    """The environment that the user gave."""
    eval_given: EnvLike | None = None
    """The environment of evaluations that the user gave."""
    speed: Pace | None = None
    """Speed of the learner, if it was timed."""
    remarked: set[str] = field(default_factory=set)
    """What was said already, and is not said again."""

    def evaluate(self, which: Which) -> Evaluation:
        """Play whole episodes, and leave every random generator of training as it was. ``which`` selects the seed.

        They are played in the evaluation environments, or in the user's single instance, whose running episode is lost:
        so only after training.
        """
        seed, episodes = derived_seeds(self.config.seed)[which], self.config.eval_episodes
        env = self.eval_env or (None if self.again is None else self.again())
        assert env is not None
        with reproducible(seed):
            found = evaluate(
                env, self.algo.policy, episodes, record=small if self.config.eval_video else None, seed=seed,
                most_steps=episode_limit(self.config.eval_episode_steps, self.clock.longest_episode),
            )  # fmt: skip
        if found.cut_off and (which == "test" or not self.remarked):
            logger.warning(f"{found.cut_text()} (eval_episode_steps): their scores, marked *, are those until then")
            self.remarked.add("cut off")
        if self.config.eval_video and found.frames is None:
            logger.warning("eval_video = True, but this environment cannot render images: there is no video")
        return found

    def measure(self, which: Which) -> MeasurementResult:
        if self.estimator is not None:
            updates = self.config.data.estimate_updates
            if which == "test":
                logger.info(f"estimating the policy's return: {plural(updates, 'update')} of FQE")
            return cast(MeasurementResult, self.estimator.estimate(updates))
        if which == "test":
            logger.info(f"evaluating: {plural(self.config.eval_episodes, 'episode')}")
        return self.evaluate(which)

    def reach(self, which: Literal["training", "evaluation"]) -> Env:
        env = self.env if which == "training" else self.eval_env
        if env is None:
            raise RunError(f"this run has no environments of {which} that a callback could reach.")
        if which == "training" and self.config.actors:
            raise RunError(
                f"actors = {self.config.actors}: a callback cannot reach the environments of actors. Use actors = 0; "
                "env.vector = process gives each environment a process, which callbacks reach."
            )
        return env

    @property
    def saved(self) -> Saved:
        return saved_settings(self.config, self.given, self.eval_given)

    @property
    def spec(self) -> Mapping[str, Any]:
        found: dict[str, Any] = dict(signature(self.obs_spec, self.action_spec))
        if self.spaces is not None:
            with contextlib.suppress(DataError):  # a kind of one's own: then loading the agent takes the environment
                found["spaces"] = dict(zip(("observation", "action"), map(text_of, self.spaces), strict=True))
        return found

    def parts(self) -> dict[str, Stateful]:
        parts: dict[str, Stateful] = {"meter": self.meter}
        if self.collector is not None and self.store is not None:
            parts |= {"replay": self.store, "collector": self.collector}
        if self.dataset is not None:
            parts["data"] = DatasetPart(self.dataset, self.config.data.where, self.estimator)
        return parts | {"random": RngState()}  # last, because loading the other parts may draw from it

    def begin(self) -> None:
        """Also fit the statistics to the rows there are: recorded ones, or those that the replay begins with."""
        given: list[Replay] = [] if self.dataset is None else [self.dataset]
        if self.store is not None and self.store.begin():
            given.append(self.replay)
        if (running_statistics := self.algo.running_statistics) is not None:
            for replay in given:
                running_statistics.fit(held(replay, self.obs_spec))

    def close(self, *, failed: bool = False) -> None:
        if self.store is not None:
            self.store.close(failed=failed)
        for part in (self.collector, self.eval_env):
            if part is not None:
                part.close()

    def load_initial(self) -> None:
        load_initial(self.algo, self.config, self.spec)

    def describe(self) -> None:
        for line in described(self):
            logger.info(line)

    def why_idle(self) -> str:
        config, window, offered = self.config, self.algo.window, len(self.replay)
        expected = config.offline or config.algo.on_policy or config.ratio(window) == 0
        if self.clock.updates or expected or offered >= config.learning_starts:
            return ""
        within = "" if window.crosses_episodes else f" of {window.rows - window.free} rows within one episode"
        return (
            f"no updates were made: learning starts after {config.learning_starts} windows{within}, but the replay "
            f"offers only {offered}. Lower learning_starts, or use shorter windows (algo.batch_length)"
        )


def held(replay: Replay, spec: ObsSpec) -> Batch:
    """Return all rows of the replay ``[N, n]``, without images and latents, to be read only: they may lie on a disk."""
    names = ["action", "reward", *FLAGS, *(f"obs/{key}" for key, part in spec.items() if part.kind == "vector")]
    rows = replay.storage.read(replay.oldest, replay.count, names, copy=False)
    columns = {name: torch.from_numpy(x) for name, x in rows.items()}
    return Batch.from_columns(columns, torch.arange(replay.storage.streams))


def build(
    config: ExperimentConfig, env: EnvLike | None = None, *, eval_env: EnvLike | None = None, start: int = 0,
    rank: int = 0, run: Path | None = None, estimates: Callable[..., Any] | None = None,
    actors: Callable[..., Any] | None = None,
) -> Experiment:  # fmt: skip
    """Build everything that ``config`` asks for; parts that it does not ask for are None. Writes nothing.

    Args:
        config: the settings.
        env: a function that makes the environment, or an instance, in place of ``config.env.id``.
        eval_env: the same for evaluations, in place of the id in ``config.eval_env``.
        start: step at which a continued run resumes; environments are seeded by it, so that episodes differ.
        rank: number of this learner, of several: what it draws differs, its weights do not.
        run: the run folder, for the store and for memory-mapped rows. None: no store, and a temporary folder.
        estimates: the class of the estimator of a run on recorded data that has no environment.
        actors: builds what takes the rows of ``config.actors`` processes, :func:`reverie.scale.actor_feed.feeding`.

    Raises:
        ReverieError: settings do not fit together, the data cannot be read or do not fit the environment, or the memory
            or the device is missing.
    """
    config = config.checked()
    check_start(config)
    factory, share = env_factory(config.env, env), config.share
    player = eval_maker(config, factory, eval_env)
    plays = config.env.id != NO_ENV and (share < 1 or config.eval_episodes > 0)
    # First: a simulator may be able to run only once.
    observation, space, env_spec = looked_at(config, factory) if share and plays else (None, None, None)
    device, seeds = prepare(config, start, rank)
    with contextlib.ExitStack() as undo:
        train_env = beside = recorded = replay = collector = store = dataset = estimator = None
        if share < 1:
            train_env = make_training_env(config, factory, seeds["env"], new=start == 0)
            undo.callback(train_env.close)
        # An instance cannot be made a second time: the run is evaluated in it at its end.
        busy = train_env is not None and isinstance(factory, Single) and player is factory
        if plays and config.eval_episodes and not busy:
            beside = make_eval_env(config, player, config.eval_video, workers=True)
            undo.callback(beside.close)
            check_alike(config, train_env, beside)
        seen = train_env or beside
        if share:
            recorded = open_recorded(config.data, config.env, space, observation)
            undo.callback(recorded.close)
            if train_env is not None:
                check_same_task(recorded, config, env_spec)
            if seen is not None:
                place = config.evaluation_env if train_env is None else config.env
                check_fit(recorded, signature(seen.obs_spec, seen.action_spec), place.id)
        learned = train_env or recorded
        assert learned is not None
        algo = config.algo.build(learned.obs_spec, learned.action_spec, device, seeds["algo"])
        windows = split_window(algo.window, share) if 0 < share < 1 else (algo.window, algo.window)

        clock = Clock(
            length=config.length, unit=config.unit, replay_ratio=config.ratio(algo.window), slack=config.slack,
            pretrain_updates=config.pretrain_updates, train_freq=config.train_freq,
            on_policy=config.algo.on_policy, action_repeat=config.env.frames_per_action,
            learning_starts=max(1, config.learning_starts) if train_env is not None else 1,
        )  # fmt: skip
        algo.position = lambda: clock.position
        meter = Meter()
        if train_env is not None:
            gather = collecting if actors is None or not config.actors else functools.partial(actors, factory, meter)
            replay, collector, store = gather(config, algo, train_env, windows[1], seeds, run, clock)
        if recorded is not None:
            dataset, rewards = read(config, recorded, algo, windows[0], seeds["replay"] + (share < 1), run)
            if 0 < share < 1:
                algo.expect_recorded(windows[0].batch)
            if config.env.id == NO_ENV and config.data.estimate_updates and estimates is not None:
                specs, seed = (recorded.obs_spec, recorded.action_spec), derived_seeds(config.seed)["evaluation"]
                estimator = estimates(
                    algo, dataset, *specs, seed=seed, rewards=rewards, reward_clipping=recorded.clipped
                )
            recorded.close()
            starts = np.flatnonzero(dataset.column("is_first"))
            clock.longest_episode = int(np.diff(starts, append=dataset.count).max(initial=1)) - 1
        measured = config.heldout and rank == 0
        heldout = held_out(config, algo, seen or learned, (space, observation), run) if measured else dict
        undo.pop_all()
    sources = [prefetch(rows, algo.device) for rows in (dataset, replay) if rows is not None]
    rows = replay if replay is not None else dataset
    assert rows is not None
    return Experiment(
        config=config, schedule=config.schedule, given=env, eval_given=eval_env, env=train_env, eval_env=beside,
        algo=algo, clock=clock, meter=meter, collector=collector, store=store, replay=rows, dataset=dataset,
        estimator=estimator,
        obs_spec=learned.obs_spec, action_spec=(seen or learned).action_spec,  # the environment's has bounds
        source=sources[0] if len(sources) == 1 else MixedSource(*sources), heldout=heldout,
        spaces=recorded.spaces if recorded is not None and config.env.id == NO_ENV else None,
        remarks=tuple(recorded.remarks()) if recorded is not None else (),
        again=(lambda: make_eval_env(config, factory, config.eval_video)) if busy else None,
        log_episodes=config.log_episodes, stop_score=config.stop_score if config.evaluates_on_the_way else None,
        score=Score.parse(config.score), patience=config.patience,
        measures="estimate" if estimator is not None else "eval" if config.eval_episodes else "",
    )  # fmt: skip


def make_training_env(config: ExperimentConfig, factory: MakeEnv | None, seed: int, *, new: bool) -> Env:
    """Make the environments of training. For actors, which make their own, one whose spaces are known, closed."""
    if not config.actors:
        return make_env(config.env, seed=seed, factory=factory, new=new)
    if isinstance(factory, Single):
        raise ConfigError(
            f"actors = {config.actors} with an environment instance: each actor makes its own in its own process. Pass "
            "a function that makes environments, or its class."
        )
    vector = "native" if config.env.vector == "native" else "serial"
    env = make_env(config.env.merge({"num": 1, "vector": vector}), seed=seed, factory=factory, new=new)
    env.close()
    return env


def collecting(
    config: ExperimentConfig, algo: Algorithm, env: Env, window: Window, seeds: Mapping[str, int], run: Path | None,
    clock: Clock,
) -> tuple[Replay, Collector, DurableReplay | None]:  # fmt: skip
    """Build what collects rows and keeps them. See :func:`build` for the arguments."""
    replay = config.replay.build(
        obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec=algo.extra_spec, num_envs=config.env.num,
        window=window, seed=seeds["replay"], scratch=run,
        max_rows=max_rows(config.replay, config.steps, config.env.num),
    )  # fmt: skip
    replay.annotator = algo.annotator
    check_memory(config.replay, replay, config.steps)
    check_capacity(config.replay, replay, config.learning_starts)
    store = None if run is None else DurableReplay(replay, config.replay, run, stop=lambda: clock.stop)
    collector = Collector(
        env, algo.policy, replay, seed=seeds["collector"], random_steps=config.random_steps,
        running_statistics=algo.running_statistics, exact=lambda: store is not None and store.exact,
    )  # fmt: skip
    if isinstance(replay, Rollout):
        assert isinstance(algo, OnPolicy)
        if (rows := window.rollout * config.env.num) > config.steps:
            raise ConfigError(
                f"steps = {config.steps}: a rollout has {rows} rows, algo.rollout = {window.rollout} of each of "
                f"{config.env.num} environments, so nothing would be learned. Lower algo.rollout, or take more steps."
            )
        replay.prepare, replay.ahead = algo.estimated, lambda: collector.step
    return replay, collector, store


def paced(experiment: Experiment) -> Experiment:
    """Time the learner of a run on a CPU, unless the run is short; if ``threads`` is 0, set it to what is faster."""
    config, algo, most = experiment.config, experiment.algo, torch.get_num_threads()
    if algo.device.type != "cpu" or config.planned(algo.window)[0] < FEW:
        return experiment
    choices = [1, most] if most > 1 and not config.threads else [most]
    found = pace(config.algo, experiment.obs_spec, experiment.action_spec, config.env.num, choices)
    if found is None or len(choices) == 1:
        return replace(experiment, speed=found)
    torch.set_num_threads(found.threads)
    return replace(experiment, speed=found, config=config.merge({"threads": found.threads}))


def prepare(config: ExperimentConfig, start: int, rank: int = 0) -> tuple[str, dict[str, int]]:
    """Set PyTorch's threads and seed the global generators; return the device and the seeds of a run."""
    device = choose_device(config.device)
    if device == "cpu":
        keep_freed_memory()
    if config.threads:
        torch.set_num_threads(config.threads)
    seeds = derived_seeds(config.seed, start, rank)
    seed_everything(seeds["global"])
    return device, seeds


def make_eval_env(
    config: ExperimentConfig, factory: MakeEnv | None = None, render: bool = False, *, as_trained: bool = False,
    workers: bool = False,
) -> Env:  # fmt: skip
    """Make the environments of evaluations, ``factory`` being that of :func:`eval_maker`.

    ``as_trained``: in place of them those of training with its rewards and ``factory``, but for whole games. They run
    in this process. ``workers``: in worker processes if training does, so that a crash does not end the run.
    """
    env = config.env.merge({"life_loss": False}) if as_trained else config.evaluation_env
    num = 1 if isinstance(factory, Single) else max(1, min(config.eval_envs, config.eval_episodes))
    vector = env.vector if workers or env.vector == "native" else "serial"
    seed = derived_seeds(config.seed)["evaluation"]
    warns = not workers or config.eval_env is not None  # else training itself warns
    env = env.merge({"num": num, "vector": vector})
    return make_env(env, seed=seed, factory=factory, render=render, new=False, warns=warns)


def eval_maker(config: ExperimentConfig, factory: MakeEnv | None, given: EnvLike | None = None) -> MakeEnv | None:
    """Return what makes the environments of evaluations: ``given``, if the user gave it; None if it is an id.

    Otherwise it is ``factory``, which makes those of training. ConfigError if they would be one and the same instance.
    """
    named = "id" in config.eval_changes
    if isinstance(factory, Single) and (given is factory.env or (config.eval_env is not None and not named)):
        raise ConfigError(
            f"eval_env = {brief(config.eval_env if given is None else given)}, but env is an instance, in which "
            "training goes on. Pass as eval_env an id, a function that makes an environment, or another instance."
        )
    made = env_factory(config.evaluation_env.merge({"num": 1}), given)
    return made if named else factory


def check_alike(config: ExperimentConfig, train_env: Env | None, eval_env: Env) -> None:
    """Raise ConfigError unless another environment of evaluations has the observations and actions of training."""
    if train_env is None or config.eval_env is None:
        return
    trained, played = (signature(env.obs_spec, env.action_spec) for env in (train_env, eval_env))
    where = ("training", "evaluations")
    if found := differences(trained, played, where) or other_bounds(trained, played, where):
        raise ConfigError(
            f"eval_env = {brief(config.eval_env)}: {'; '.join(found)}. Evaluate in an environment with the same "
            "observations and actions, perhaps by a wrapper (eval_env: {wrappers: [...]})."
        )


def small(frame: np.ndarray) -> np.ndarray:
    """Return a copy of a frame, at most ``SIDE`` pixels high and wide."""
    return shrink(np.array(frame), SIDE)


def check_start(config: ExperimentConfig) -> None:
    """Check the algorithm's settings against those of the run. A replay that begins with rows needs no random steps."""
    most = sys.maxsize if config.replay.init or config.data.path else 0
    random, starts = max(most, config.random_steps), max(most, config.learning_starts)
    config.algo.check_run(random_steps=random, learning_starts=starts, frame_stack=config.env.frame_stack)


def looked_at(
    config: ExperimentConfig, factory: MakeEnv | None
) -> tuple[gymnasium.Space[Any], gymnasium.Space[Any], EnvSpec | None]:
    """Return the spaces of the environment's observations and actions, and its spec if it has one."""
    env = make_gym(config.env, factory, render=False)
    observation: gymnasium.Space[Any] = to_learnable_obs(env, config.env.mission).observation_space
    space: gymnasium.Space[Any] = env.action_space
    spec = env.spec
    close_quietly(env)
    return observation, space, spec


# ---------------------------------------------------------------- recorded rows


def read(
    config: ExperimentConfig, recorded: Recorded, algo: Algorithm, window: Window, seed: int, scratch: Path | None
) -> tuple[Dataset, np.ndarray | None]:
    """Read all recorded rows; on a terminal with a progress bar. The array has their true rewards, if clipped here."""
    unclipped = config.env.id == NO_ENV and recorded.clip != "none"
    beside: dict[str, list[np.ndarray]] = {"reward": []} if unclipped else {}
    with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
        dataset = config.data.build(
            recorded, window=window, seed=seed, batch_sampler=config.replay, extra_spec=algo.extra_spec,
            scratch=scratch, parts=counted(recorded.parts(beside)),
        )  # fmt: skip
    if RETURN in algo.extra_spec:
        write_returns(dataset, algo.cfg.discount)  # type: ignore[arg-type, union-attr]  # such learners have it
    return dataset, np.concatenate(beside["reward"]) if unclipped else None


def held_out(
    config: ExperimentConfig, algo: Algorithm, own: Env | Recorded,
    spaces: tuple[gymnasium.Space[Any] | None, gymnasium.Space[Any] | None], scratch: Path | None,
) -> Callable[[], dict[str, float]]:  # fmt: skip
    """Return what measures the world model's losses on ``config.heldout``: on the same windows, by the same draws.

    ``own``: what has the observations and actions of the run. ``spaces``: those of actions and observations of its
    environment, for data that declare none.
    """
    if not isinstance(algo, Dreamer):
        raise ConfigError(f"heldout = '{config.heldout}': it is for Dreamers, and {config.name} is none. Leave it out.")
    data, seed = config.data.merge({"path": config.heldout}), derived_seeds(config.seed)["evaluation"]
    with contextlib.closing(open_recorded(data, config.env, *spaces)) as recorded:
        check_fit(recorded, signature(own.obs_spec, own.action_spec), config.env.id)
        window = replace(algo.window, carries=False)
        dataset = data.build(recorded, window=window, seed=seed, scratch=scratch)
    batches = [dataset.sample() for _ in range(HELD_OUT)]

    def measured() -> dict[str, float]:
        with reproducible(seed):
            found = [algo.model_losses(batch) for batch in batches]
        return {f"heldout/{k}": float(torch.stack([each[k] for each in found]).mean()) for k in found[0]}

    return measured


def write_returns(dataset: Dataset, discount: float, block: int = 1 << 16) -> None:
    """Store beside each row its return-to-go, for learners such as Cal-QL; from the last ``block`` of rows on back."""
    reward, first = dataset.column("reward"), dataset.column("is_first")
    last, terminal = dataset.column("is_last"), dataset.column("is_terminal")
    later = Later()
    for stop in range(dataset.count, 0, -block):
        rows = slice(max(0, stop - block), stop)
        ends = {"first": first[rows], "last": last[rows], "terminal": terminal[rows]}
        found = returns_to_go(reward=reward[rows], discount=discount, later=later, **ends)
        dataset.write_column(EXTRAS + RETURN, rows.start, found)
        later = Later(bool(first[rows.start]), float(found[0]), float(reward[rows.start]))


def check_same_task(recorded: Recorded, config: ExperimentConfig, spec: EnvSpec | None) -> None:
    """Check that the data were recorded in the task of the environment that the run collects in, as far as they say.

    Arguments and wrappers that ``spec``, the environment's, lacks become a remark: to learn from both can be the
    purpose, as from a simulator and a robot.
    """
    check_mixed(recorded.about, config.env)
    if missing := lacking(recorded.about, spec):
        recorded.reader.note(
            f"the data were recorded in {recorded.about.env} with {', '.join(missing)}, and the environment of this "
            "run is made without that: the run learns from both as from one task"
        )


def check_fit(recorded: Recorded, own: Mapping[str, Any], env: str) -> None:
    """Raise DataError unless the data have the observations and actions ``own``, of the environment or the agent.

    ``env``: the environment's id, for the message; ``NO_ENV`` for an agent that has none.
    """
    name, whose = ("the agent", "the agent") if env == NO_ENV else (env, f"the environment {env}")
    if found := differences(signature(recorded.obs_spec, recorded.action_spec), own, ("the data", name)):
        advice = (
            "Use data of the environment that the agent has learned about."
            if env == NO_ENV
            else stacks_in(recorded.obs_spec, own["observation"])
            or "Use the environment that the data were recorded in with the same options (env.include and "
            "env.exclude select observations), or other data."
        )
        raise DataError(f"{recorded.where} does not fit {whose}: {'; '.join(found)}. {advice}")


def stacks_in(spec: ObsSpec, shown: Mapping[str, Any]) -> str:
    """Return the advice for data whose images are stacks of those that an environment shows; "" for others."""
    for key, part in spec.items():
        other = tuple(shown.get(key, {}).get("shape", ()))
        frames, left = divmod(part.shape[-1], other[-1]) if part.kind == "image" and len(other) == 3 else (1, 0)
        if frames > 1 and not left and part.shape[:2] == other[:2]:
            return (
                f"Its images are stacks of {frames} frames: let the environment stack them, and the learner not: "
                f"--env.frame-stack {frames} --algo.frames 1."
            )
    return ""


# ---------------------------------------------------------------- sentences about a run


def described(experiment: Experiment) -> list[str]:
    """Describe what is about to be trained: its data, the time by the learner's speed, and the memory that it takes."""
    config, window, algo = experiment.config, experiment.algo.window, experiment.algo
    lines = [f"{config.data.where}: {remark}" for remark in experiment.remarks]
    if config.eval_env is not None:
        lines.append(f"evaluations take place in {config.evaluation_env.label()}: eval_env = {config.eval_env}")
    if algo.device.type == "cpu" and trouble():
        lines.append(trouble())
    if experiment.dataset is not None:
        found = experiment.dataset.statistics()
        own = split_window(window, config.share)[0].batch if not config.offline else 0
        part = f", {own} of the {window.batch} windows of a batch" if own else ""
        low, mean, high = found.scores
        lines.append(
            f"{plural(found.steps, 'recorded step')} in {plural(found.episodes, 'episode')} of {config.data.where}"
            f"{part}: returns {low:.1f} to {high:.1f}, mean {mean:.1f}"
        )
        lines += [line] if (line := motionless(config, experiment.obs_spec)) else []
    elif config.algo.needs_data:
        lines.append(
            f"{config.name} is meant for recorded data, but there is none: it learns only from the rows that it "
            "collects. Pass --data PATH to add recorded data"
        )
    if experiment.estimator is not None:
        lines.append(
            f"the policy's return will be estimated from the data by FQE ({config.data.estimate_updates:,} updates "
            "per estimate); set data.estimate_updates = 0 to disable this"
        )
    if line := outlook(config, window, experiment.speed):
        lines.append(line)
    count = sum(p.numel() for p in algo.parameters() if p.requires_grad)
    needed = memory(replay_bytes(config.replay, experiment.replay, config.steps))
    what = f"{count / 1e6:.2f}M parameters on {algo.device}"
    if config.offline:
        updates = plural(config.updates, "update")
        return [*lines, f"{config.name} from recorded data alone: {what}, {updates}, {needed} of rows"]
    free = available_memory()
    room = "" if free is None else f" of {free / 1e9:.1f} GB available"
    if config.replay.device != "cpu" or config.replay.storage != "ram":
        room = f" on {config.replay.device}" if config.replay.device != "cpu" else " in mapped files"
    ratio = config.ratio(window)
    each = f"{ratio:g} update{'s' * (ratio != 1)} per env step (train ratio {ratio * window.batch * window.length:g})"
    envs = plural(config.env.num, "env")
    if config.actors:
        envs = f"{plural(config.actors, 'actor')} with {envs} each"
    return [*lines, f"{config.name} on {config.env.id}: {what}, {envs}, {each}, replay up to {needed}{room}"]


def motionless(config: ExperimentConfig, spec: ObsSpec) -> str:
    """Return a remark if recorded images are learned from one by one, so that no motion is seen; "" if not."""
    single = [key for key, part in spec.items() if part.kind == "image" and part.shape[-1] in (1, 3)]
    if not single or getattr(config.algo, "frames", 0) != 1:
        return ""
    return (
        f"each decision sees a single image ({', '.join(single)}), and so no motion: algo.frames = 4 stacks the latest "
        "four, as Atari's presets do"
    )


def outlook(config: ExperimentConfig, window: Window, speed: Pace | None) -> str:
    """Return the preset, why it was chosen, and how long the run will take, as far as these are known; "" if neither.

    The time is without the environment's own and without evaluations. A run of more than 12 hours, or one that was
    meant for a CPU and is not short there, gets a length for about an hour.
    """
    published, _, small = config.preset.partition("+")
    words = [f"preset {config.preset}{' (for a machine without a GPU)' * bool(small)}"] if config.preset else []
    updates, decisions = config.planned(window)
    if not updates and not window.rollout:
        begin = config.first_update_step(window)
        words.append(f"nothing will be learned in {config.length:,} steps: the first update comes after {begin:,}")
    if speed is not None:
        hours = (updates * speed.update_s + decisions * speed.act_s) / 3600
        time = f"{max(1, 60 * hours):.0f} min" if hours < 1.5 else f"{hours:,.{int(hours < 10)}f} h"
        here = f"on this machine, as busy as it is, with {plural(speed.threads, 'thread')}"
        words.append(f"{config.length:,} {config.unit} take about {time} of learning and acting {here}")
        if hours > (3 if small else 12):
            an_hour = float(f"{config.length / hours:.1g}")
            smaller = "" if small else ", and --preset cpu has small networks and a short run"
            words.append(f"--{config.unit} {max(1, round(an_hour)):_} take about an hour{smaller}")
    return "; ".join([*words, *([f"published settings: --preset {published}"] if small else [])])


def memory(size: int) -> str:
    """Return a number of bytes in GB, or in MB or kB where that would be less than a tenth."""
    unit, name = next(((u, n) for u, n in ((1e9, "GB"), (1e6, "MB")) if size >= 0.1 * u), (1e3, "kB"))
    return f"{size / unit:.2f} {name}"
