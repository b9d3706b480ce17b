"""reverie: the learner and the batch of `bench/update.py`; DreamerV1 and V2 at their own sizes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

from measure import BATCH, EARLIER, PLANNED, REANALYZED, SIZES, Place, Sizes, Subject, main

sys.path.insert(0, str(Path(__file__).parents[1]))
import update as bench

from reverie.algos import r2dreamer
from reverie.algos.bmpc import BMPCConfig
from reverie.algos.dense_dreamer import DenseDreamer, DenseDreamerConfig
from reverie.algos.dreamer_v1 import DreamerV1Config
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.algos.dreamer_v3 import DreamerV3Config, with_size
from reverie.algos.r2dreamer import R2DreamerConfig
from reverie.algos.tdmpc2 import TDMPC2Config
from reverie.core.hardware import keep_freed_memory
from reverie.core.protocols import Policy
from reverie.core.specs import ActionPart, ActionSpec, ObsPart, ObsSpec
from reverie.experiment.bench import noise_batch, noise_step


def acting(policy: Policy, obs: ObsSpec) -> Callable[[int], Callable[[], object]]:
    """Its policy, exploring, with the state carried on."""

    def make(envs: int) -> Callable[[], object]:
        shown, held = noise_step(obs, envs), {"state": policy.initial(envs)}

        def act() -> object:
            action, held["state"] = policy.act(shown, held["state"], "explore")
            return action

        return act

    return make


def learner(setting: str, place: Place) -> Subject:
    """A learner and a batch."""
    keep_freed_memory()
    name, _, size = setting.partition("-")
    usual, obs, action, changes = bench.SETTINGS[name]
    precision = "bfloat16" if place.half else "float32"
    config = with_size(size.replace("tiny", "nano") or usual, DreamerV3Config().merge(changes))
    agent = config.merge({"precision": precision}).build(obs, action, place.device)
    data = noise_batch(agent, obs, action).to(agent.device)
    act = acting(agent.policy, obs)
    return Subject(agent.optim.count, lambda: agent.update(data), act, precision, place.wait, place.peak)


def earlier(settings: DenseDreamerConfig) -> Callable[[str, Place], Subject]:
    """DreamerV1 or V2."""

    def build(setting: str, place: Place) -> Subject:
        keep_freed_memory()
        s = SIZES[setting]
        obs, action = bench.IMAGE if s.image else bench.VECTOR, bench.CONTINUOUS if s.continuous else bench.DISCRETE
        agent: DenseDreamer = settings.merge(sizes(s)).build(obs, action, place.device)
        data = noise_batch(agent, obs, action).to(agent.device)
        count = sum(optim.count for optim in agent.optims.values())
        return Subject(count, lambda: agent.update(data), acting(agent.policy, obs))

    return build


def decoderless(setting: str, place: Place) -> Subject:
    """R2-Dreamer, at the sizes of DreamerV3."""
    keep_freed_memory()
    plain = setting.replace("R2-vector", "V").replace("R2-image", "I")
    size, obs, action, changes = bench.SETTINGS[plain]
    agent = r2dreamer.with_size(size, R2DreamerConfig().merge(changes)).build(obs, action, place.device)
    data = noise_batch(agent, obs, action).to(agent.device)
    return Subject(agent.optim.count, lambda: agent.update(data), acting(agent.policy, obs))


def planning(settings: TDMPC2Config) -> Callable[[str, Place], Subject]:
    """TD-MPC2 or BMPC."""

    def build(setting: str, place: Place) -> Subject:
        keep_freed_memory()
        obs = {"vector": ObsPart(kind="vector", shape=(PLANNED.vector,), dtype="float32")}
        action = ActionSpec(parts={"action": ActionPart(kind="continuous", size=PLANNED.actions)})
        agent = settings.build(obs, action, place.device)
        data = noise_batch(agent, obs, action).to(agent.device)
        count = sum(p.numel() for optim in agent.optims.values() for p in optim.params)
        return Subject(count, lambda: agent.update(data), acting(agent.policy, obs), recorded=4)

    return build


def sizes(s: Sizes) -> dict[str, object]:
    """The settings that all systems have alike; those of the heads are the papers'."""
    rssm = {"rssm.deter": s.deter, "rssm.hidden": s.hidden, "rssm.stoch": s.stoch}
    return {"batch_size": BATCH, "batch_length": EARLIER, **rssm}


if __name__ == "__main__":
    dreamers = {"dreamer_v1": earlier(DreamerV1Config()), "dreamer_v2": earlier(DreamerV2Config())}
    planned = BMPCConfig(reanalyze_interval=1, reanalyze_batch_size=REANALYZED)
    planners = {"tdmpc2": planning(TDMPC2Config()), "bmpc": planning(planned)}
    main({"dreamer_v3": learner, **dreamers, **planners, "r2dreamer": decoderless}, movable=True)
