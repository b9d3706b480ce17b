"""reverie: the learner and the batch of `benchmarks/update.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from measure import Subject, main

sys.path.insert(0, str(Path(__file__).parents[1]))
import update as bench

from reverie.core.machine import keep_freed_memory
from reverie.core.protocols import Policy


def acting(policy: Policy, setting: str) -> Callable[[int], Callable[[], object]]:
    """Its policy, exploring, with the state carried on."""

    def make(envs: int) -> Callable[[], object]:
        shown, held = bench.step(setting, envs), {"state": policy.initial(envs)}

        def act() -> object:
            action, held["state"] = policy.act(shown, held["state"], "explore")
            return action

        return act

    return make


def learner(setting: str) -> Subject:
    """A learner and a batch."""
    keep_freed_memory()
    agent = bench.build(setting)
    data = bench.batch(setting, agent)
    return Subject(agent.optim.count, lambda: agent.update(data), acting(agent.policy, setting))


if __name__ == "__main__":
    main({"dreamer_v3": learner})
