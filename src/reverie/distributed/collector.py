"""A collector for a training loop of one's own: environments, replay, evaluation and checkpoints, without a run."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm
from reverie.algos.custom_policy import CustomPolicy, CustomPolicyConfig, CustomRolloutConfig
from reverie.algos.settings import AlgorithmConfig
from reverie.core.clock import Clock
from reverie.core.errors import ConfigError, RunError
from reverie.core.files import disk_errors_as_run_error, write_json
from reverie.core.lock import folder_lock
from reverie.core.logger import logger
from reverie.core.protocols import Stateful
from reverie.core.types import Batch, Update
from reverie.datasets.replay_store import ABOUT
from reverie.distributed.actor_collector import build_actor_collector
from reverie.envs.config import EnvLike
from reverie.experiment.build import Experiment, build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.person import Person
from reverie.log.video import write_video
from reverie.nn.exploration import ActionNoise, EpsilonSchedule
from reverie.objectives.td import Losses
from reverie.replay.config import PERSON_OBJECT, absolute_store_path
from reverie.run.checkpoint import Checkpoints
from reverie.run.episodes import CollectorProtocol, Episodes, join_episodes
from reverie.run.evaluate import Evaluation
from reverie.run.folder import RunFolder, check_spec
from reverie.run.manifest import checkpoint_step
from reverie.run.signal_handling import Interrupt


class Collector:
    """Collects rows with a policy, and yields batches of them at the replay ratio. The update is yours.

    .. code-block:: python

        state = {"critic": critic, "optim": optim}
        with Collector("Pendulum-v1", actor, exploration="gaussian(0.1)", folder="pendulum", state=state) as collector:
            for batch in collector:
                losses = objective(batch)
                ...  # a step of the optimizers
                if collector.clock.updates % 10_000 == 0:
                    print(collector.evaluate(video="pendulum.mp4").score)
                    collector.save()

    With a ``folder``, rows are stored while they are collected, :meth:`save` writes a checkpoint of everything, and the
    same call continues from the newest one. A script with ``actors`` needs ``if __name__ == "__main__":`` around this,
    since their processes import it.
    """

    def __init__(
        self, env: EnvLike, policy: nn.Module | AlgorithmConfig | Any, *, folder: Path | str | None = None,
        state: Mapping[str, Any] = MappingProxyType({}), envs: int = 1, actors: int = 0, seed: int = 0,
        device: str = "cpu", steps: int = 10**9, replay_ratio: float = 1.0, keep_checkpoints: int = 3,
        batch_size: int = 256, batch_length: int = 2, rollout: int = 0,
        exploration: ActionNoise | EpsilonSchedule | str | None = None, human: Person | None = None, **settings: object,
    ) -> None:  # fmt: skip
        """Make the environments and the replay, and load the newest checkpoint in ``folder``.

        Args:
            env: id of an environment, or a function that makes it.
            policy: a module that maps observations, a dictionary of tensors ``[N, ...]``, to actions ``[N, A]`` in
                [-1, 1]; or to values ``[N, A]`` of classes, of which it takes the highest; or to a distribution with
                ``sample() -> (action, log_prob)`` and ``mode()``. Also settings of an algorithm, whose learner is
                then :attr:`algo`.
            folder: of checkpoints and of stored rows. None: neither.
            state: what else a checkpoint contains, by name: modules, optimizers and schedulers, whatever has
                ``state_dict`` and ``load_state_dict``.
            envs: environments, in this process or in each actor.
            actors: processes that act, with the newest weights. Updates and env steps wait for each other beyond
                ``ratio_tolerance`` updates.
            seed: of environments, noise and batches, and of the global generators.
            device: of the policy; actors act on CPUs.
            steps: env steps after which the iteration ends.
            replay_ratio: batches for each env step.
            keep_checkpoints: number of newest checkpoints to keep.
            batch_size: B, windows in a batch, for a policy of your own.
            batch_length: T, rows of each window.
            rollout: T of an on-policy loop: each batch is the newest T rows of each environment and the row after
                them, ``[envs, T + 1]``, once; nothing is replayed. 0: off-policy.
            exploration: noise as in ``gaussian(0.1)``, or how random classes are as in ``epsilon_greedy(0.1)``, for a
                policy of your own.
            human: a person who can take over from the policy; settings are ``**{"human.fraction": 0.5}``.
            settings: other settings of a run, such as ``learning_starts``, ``random_steps``,
                ``replay={"capacity": 100_000}`` or ``**{"env.frame_stack": 4}``.

        Raises:
            ConfigError: the settings contradict each other, or the policy does not fit the environment.
            EnvError: the environment cannot be made.
            RunError: another process writes to ``folder``, or all of its checkpoints are damaged.
        """
        if isinstance(policy, AlgorithmConfig):
            if (batch_size, batch_length, rollout, exploration) != (256, 2, 0, None):
                raise ConfigError(
                    "batch_size, batch_length, rollout and exploration are for a policy of your own. Set those of an "
                    f"algorithm in its settings, as in {type(policy).__name__}(batch_size=64)."
                )
        else:
            if actors and not isinstance(policy, nn.Module):
                raise ConfigError(f"actors = {actors}: expected a module, whose weights they receive, as policy.")
            if rollout:
                if (batch_size, batch_length) != (256, 2):
                    raise ConfigError(
                        f"rollout = {rollout}: a batch is one rollout. Remove batch_size and batch_length."
                    )
                policy = CustomRolloutConfig(policy=policy, exploration=exploration, rollout=rollout)
            else:
                policy = CustomPolicyConfig(
                    policy=policy, exploration=exploration, batch_size=batch_size, batch_length=batch_length
                )
        named = {} if not isinstance(env, str) else {"env.id": env}
        run = {"algo": policy, "actors": actors, "env.num": envs, "steps": steps, "seed": seed, "device": device,
               "replay_ratio": None if policy.on_policy else replay_ratio, "keep_checkpoints": keep_checkpoints,
               "eval_video": True}  # fmt: skip
        run |= {} if human is None else {"human.person": PERSON_OBJECT}
        config = ExperimentConfig().merge(run | named | settings)
        self.folder: Path | None = None if folder is None else Path(folder)
        with ExitStack() as stack:
            newest = None
            if self.folder is not None:
                with disk_errors_as_run_error(self.folder):
                    self.folder.mkdir(parents=True, exist_ok=True)
                if RunFolder(self.folder).config.exists():
                    raise RunError(f"{self.folder} is the folder of a run of reverie train. Choose another folder.")
                stack.enter_context(folder_lock(self.folder))
                self.checkpoints: Checkpoints = Checkpoints(self.folder / "checkpoints", config.keep_checkpoints)
                newest = self.checkpoints.latest()
            start = 0 if newest is None else checkpoint_step(newest)
            with torch.set_grad_enabled(torch.is_grad_enabled()):  # which an environment may change
                self.experiment: Experiment = build(
                    config, None if isinstance(env, str) else env, start=start, run=self.folder,
                    actors=build_actor_collector, human=human,
                )  # fmt: skip
            stack.push(lambda kind, *_: self.experiment.close(failed=kind is not None))
            self._describe_rows(is_new=newest is None)
            assert self.experiment.collector is not None
            self.rows: CollectorProtocol = self.experiment.collector
            self.clock: Clock = self.experiment.clock
            self.parts: dict[str, Stateful] = self._parts(state)
            if newest is not None:
                self.checkpoints.load(newest, self.parts)
                if not actors:
                    self.clock.updates_promised += self.clock.ratio.take_whole_updates()
                logger.info(f"continuing {self.folder} from env step {self.clock.env_steps}")
            else:
                self.experiment.begin()
            self._announce_updates()
            self._stack: ExitStack = stack.pop_all()
        self._saved = self._progress

    def _describe_rows(self, *, is_new: bool) -> None:
        """Write the specs of the stored rows, and the environment if a file can name it, for readers of the rows."""
        if self.folder is None:
            return
        folder = RunFolder(self.folder)
        if not is_new:
            check_spec(folder, self.experiment.spec)
        env = self.experiment.config.env.to_dict()
        if self.experiment.user_env is not None:
            del env["id"]
        with disk_errors_as_run_error(folder.path):
            write_json(folder.spec, self.experiment.spec)
            location = {"store_path": absolute_store_path(self.experiment.config.replay.store_path)}
            write_json(folder.path / ABOUT, {"env": env, "env_settings": env, **location})

    def _announce_updates(self) -> None:
        """Say when updates begin, and warn if the iteration ends before."""
        config, window = self.experiment.config, self.algo.window
        if self.clock.on_policy or self.clock.updates or not config.updates_per_step(window):
            return
        text = f"updates begin after {config.learning_starts:,} windows of {window.rows} rows (learning_starts)"
        if config.planned_updates(window):
            logger.info(text)
        else:
            logger.warning(f"{text}, so none are made in {config.steps:,} env steps. Lower it, or increase steps")

    def _parts(self, state: Mapping[str, Any]) -> dict[str, Stateful]:
        """Return the parts of a checkpoint, in the order in which they are loaded."""
        ours = {"algo": self.algo, "clock": self.clock, **self.experiment.parts()}
        for name, part in state.items():
            complete = all(hasattr(part, method) for method in ("state_dict", "load_state_dict"))
            if name in ours or not name.isidentifier() or not complete:
                raise ConfigError(
                    f"state: {name} ({type(part).__name__}): expected an object with state_dict and load_state_dict, "
                    f"under a name other than {', '.join(ours)}."
                )
        return {**state, **ours}

    @property
    def algo(self) -> Algorithm:
        """The learner of ``policy``, if these are settings; else a learner with the policy alone."""
        return self.experiment.algo

    @property
    def env_steps(self) -> int:
        """Env steps whose rows have arrived."""
        return self.clock.env_steps

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""
        return len(self.experiment.source)

    def __iter__(self) -> Iterator[Batch]:
        """Collect, and yield a batch ``[B, T]`` for each update that is due, until there are ``steps`` env steps.

        Raises:
            KeyboardInterrupt: Ctrl-C was pressed, or once this update is made; SystemExit after other signals.
        """
        clock = self.clock
        with Interrupt(clock) as interrupt:
            while True:
                # First those that a break or a save has left.
                while clock.updates < clock.updates_promised or (clock.on_policy and len(self)):
                    yield self.sample()
                    self._stop_after(interrupt)
                if clock.done:
                    break
                self.collect()
                self._stop_after(interrupt)
        if problem := self.experiment.no_update_reason():
            logger.warning(problem)

    def _stop_after(self, interrupt: Interrupt) -> None:
        """Raise what ends the process if a signal has arrived. Everything can be saved, as no update is half made."""
        if (number := interrupt.received) is not None:
            self.clock.stop = False
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def collect(self) -> int:
        """Take a step in each environment, or receive the rows of the actors; return the updates that are due.

        Raises:
            RunError: an environment or an actor has failed too often.
        """
        has_gradients = torch.is_grad_enabled()
        self.clock.env_steps += self.rows.collect()
        self.rows.unlogged_episodes += self.rows.pop_episodes(at_the_end=self.clock.done)
        if has_gradients and not torch.is_grad_enabled():  # an environment has disabled them
            torch.set_grad_enabled(True)
        return self.clock.updates_due(len(self))

    def sample(self) -> Batch:
        """Return the batch ``[B, T]`` of the next update, which from now on counts as made."""
        batch = self.experiment.source.sample()
        self.clock.updates += 1
        if self.clock.on_policy and isinstance(self.algo, CustomPolicy):  # used once
            self.experiment.source.feedback(batch.index, Update(metrics={}))
        return batch

    def feedback(self, batch: Batch, update: Update | Losses) -> None:
        """Set the priorities of the windows of ``batch``, the newest one, from ``update``."""
        self.experiment.source.feedback(batch.index, update.update() if isinstance(update, Losses) else update)

    def pop_episodes(self) -> Episodes:
        """Return the episodes that have finished since the last call, of this process or an earlier one."""
        episodes, self.rows.unlogged_episodes = self.rows.unlogged_episodes, []
        return join_episodes(episodes)

    def evaluate(self, episodes: int = 10, *, video: Path | str | None = None) -> Evaluation:
        """Play whole episodes without exploration, in other environments; film the first one as ``video``."""
        config = self.experiment.config.merge({"eval_episodes": episodes, "eval_video": video is not None})
        if self.experiment.envs.evaluation is None:
            raise ConfigError("there is only the environment that collects. Pass a function that makes it.")
        evaluation = replace(self.experiment, config=config).evaluate("evaluation")
        if video is not None and evaluation.frames is not None:
            write_video(Path(video), evaluation.frames)
        return evaluation

    def save(self) -> Path:
        """Write a checkpoint of the policy, ``state``, rows, environments and generators; return its folder.

        Raises:
            RunError: there is no ``folder``, or it cannot be written to; or a weight is NaN or infinite, in which case
                the checkpoint is ``diverged-STEP``, which the loop never continues from.
        """
        if self.folder is None:
            raise RunError("nothing is saved without a folder. Pass one, as in Collector(env, policy, folder='mine').")
        bad = next((f"{part}: {name}" for part, name, x in self._weights() if not x.isfinite().all()), "")
        path = self.checkpoints.save(self.clock.env_steps, self.parts, diverged=bool(bad))
        self._saved = self._progress
        if bad:
            raise RunError(
                f"{bad} is NaN or infinite. The state is saved as {path}; the loop goes on from an earlier one."
            )
        retained = [checkpoint.name for checkpoint in self.checkpoints.kept_paths()]
        if self.experiment.store is not None:  # rollouts on a device have none
            self.experiment.store.on_checkpoint(path.name, retained)
        return path

    def _weights(self) -> Iterator[tuple[str, str, Tensor]]:
        for part, module in self.parts.items():
            if isinstance(module, nn.Module):
                yield from ((part, name, x) for name, x in module.named_parameters())

    @property
    def _progress(self) -> tuple[int, int]:
        return self.clock.env_steps, self.clock.updates

    def close(self) -> None:
        """Save what is not saved, and end environments and processes. Can be called twice."""
        with self._stack:
            if self.folder is not None and self._saved != self._progress:
                self.save()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.clock.stop:  # a second signal, perhaps within an update
            self._saved = self._progress
        self.close()
