"""Actors for a custom training loop: they act in separate processes, and the loop never waits for them."""

from __future__ import annotations

import math
from typing import Any, Self

from torch import Tensor

from reverie.algos.base import Algorithm
from reverie.algos.settings import AlgorithmConfig
from reverie.core.clock import Clock
from reverie.core.seeding import derived_seeds
from reverie.core.types import Batch, Update
from reverie.distributed.actor_collector import ActorCollector, build_actor_collector
from reverie.distributed.actor_replays import MultiReplay
from reverie.envs.make import EnvLike, env_factory
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment.config import ExperimentConfig
from reverie.log.meter import DeviceMeter
from reverie.objectives.td import Losses
from reverie.run.collect import EpisodeStats


class AsyncCollector:
    """Collects rows in separate processes, which act with the newest weights of ``algo``; a ``BatchSource`` of batches.

    .. code-block:: python

        with AsyncCollector("CartPole-v1", DQNConfig(), actors=2, envs=4) as collector:
            while collector.env_steps < 10_000:
                collector.collect()
                if len(collector) >= 500:
                    batch = collector.sample()
                    collector.feedback(batch.index, collector.algo.update(batch))

    A script needs ``if __name__ == "__main__":`` around this, since its processes import it.
    """

    def __init__(
        self, env: EnvLike, algo: AlgorithmConfig, *, actors: int = 1, envs: int = 1, seed: int = 0,
        device: str = "cpu", steps: int = 10**9, **settings: Any,
    ) -> None:  # fmt: skip
        """Build the learner ``self.algo`` and its replays; actors start with the first :meth:`collect`.

        Args:
            env: id of an environment, or a function that makes it.
            algo: settings of an off-policy algorithm.
            actors: processes, each with ``envs`` environments.
            envs: environments of each actor.
            seed: of weights, environments and batches.
            device: of the learner; actors act on CPUs.
            steps: env steps after which collection stops.
            settings: other settings of a run, such as ``replay={"capacity": 100_000}`` or ``random_steps=1000``.

        Raises:
            ConfigError: the settings contradict each other.
            EnvError: the environment cannot be made.
        """
        named = {} if not isinstance(env, str) else {"env.id": env}
        run = {"algo": algo, "actors": actors, "env.num": envs, "steps": steps, "learning_starts": 1, "seed": seed}
        config = ExperimentConfig().merge(run | named | settings).validate()
        factory, seeds = env_factory(config.env, env), derived_seeds(seed)
        probe = make_vector_env(config.env.merge({"num": 1}), seed=seeds["env"], factory=factory)
        probe.close()
        self.algo: Algorithm = algo.build(probe.obs_spec, probe.action_spec, device, seeds["algo"])
        self.clock: Clock = Clock(length=config.steps, tolerance=math.inf, replay_ratio=1.0)
        window = self.algo.window
        replays, feed, _ = build_actor_collector(
            factory, DeviceMeter(), config, self.algo, probe, window, seeds, None, self.clock
        )
        self.source: MultiReplay = replays
        self.feed: ActorCollector = feed

    @property
    def env_steps(self) -> int:
        """Env steps whose rows have arrived."""
        return self.clock.env_steps

    def collect(self) -> list[EpisodeStats]:
        """Send the newest weights to the actors, and receive the rows that have arrived; return the finished episodes.

        Waits at most a tenth of a second, and only while no window can be sampled.

        Raises:
            RunError: an actor has failed too often.
        """
        self.clock.env_steps += self.feed.collect()
        if len(self.source):
            self.clock.ratio.updates_due(self.clock.env_steps)  # from now on, do not wait for rows
        return self.feed.pop_episodes()

    def __len__(self) -> int:
        """Return the number of windows that can be sampled."""
        return len(self.source)

    def sample(self) -> Batch:
        """Return a batch ``[B, T]`` of the replayed rows, on the CPU."""
        return self.source.sample()

    def feedback(self, index: Tensor, update: Update | Losses) -> None:
        """Record that the weights have changed, and set the priorities of windows ``index`` ``[B]`` from ``update``."""
        self.source.feedback(index, update.update() if isinstance(update, Losses) else update)
        self.clock.updates += 1

    def close(self) -> None:
        """End the processes. Can be called twice."""
        self.feed.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
