"""How the factors become an environment and settings of reverie."""

import functools
from typing import NamedTuple

import factors
from story import CLASSES, StoryEnv, StoryIds, StoryVector, legal_classes, replacement
from taught import write_labels

import reverie

MODES = {"next": "NEXT_STEP", "same": "SAME_STEP", "disabled": "DISABLED", "ids": "DISABLED"}
MEMORIES = {"lstm": "lstm(4)", "gru": "gru(4)", "transformer": "transformer(3, 4, 2)"}
ROLLOUT = 12


def make_factory(c, folder):
    """A function that makes the environment, or the vector, whose log is in ``folder / "log"``."""
    mode = MODES.get(c["vector"].partition("_")[2], "NEXT_STEP")
    options = {name: c[name] for name in ("action", "mask", "goals", "crashes", "replaced", "encoder", "players")}
    options["replaced"] = "never" if c["replaced"] == "person" else c["replaced"]
    options |= {"ends": factors.ENDS[c["ends"]], "mode": mode, "tensors": c["vector"].startswith("torch")}
    log = folder / "log"
    log.mkdir(exist_ok=True)
    if c["evaluate"] == "same":
        env = StoryEnv(str(log), options)
        return lambda: env
    if c["vector"] == "torch_jax":
        from jax_story import JaxStory

        return functools.partial(JaxStory, folder=str(log), options=options)
    kind = StoryEnv if factors.is_single(c) else StoryIds if c["vector"] == "torch_ids" else StoryVector
    return functools.partial(kind, folder=str(log), options=options)


class Moment(NamedTuple):
    """What a person sees of an instance."""

    key: tuple[int, int, int]
    options: dict[str, str]

    def mask(self):
        return legal_classes(*self.key, CLASSES[self.options["action"]])


def help_out(action, mask, obs, chosen):
    """A person who replaces the actions that others replace in their environments."""
    shown = (obs.get("story", obs.get("observation")) if isinstance(obs, dict) else obs).reshape(-1, 4)[-1]
    moment = Moment(tuple(map(int, shown[:3])), {"action": action, "mask": mask})
    return replacement(moment, action) if moment.key[2] % 3 == 1 else None


def algo_settings(c):
    """Settings of the algorithm."""
    if c["algo"] == "dreamer_v3":
        return {"batch_size": 4, "batch_length": 6, "graph": c["kernels"] == "captured"}
    name, number = c["estimator"]
    if c["algo"] == "muzero":
        return {"batch_size": 8, "batch_length": 6, "unroll": 3, "num_simulations": 4, "networks.units": (16,),
                "value_estimator": name if name == "td0" else f"{name}({number})", "discount": 0.9,
                "graph": c["kernels"] == "captured"}  # fmt: skip
    settings = {
        "value_estimator": name if name == "td0" else f"{name}({number})", "discount": 0.9, "networks.units": (16,),
        "graph": c["kernels"] == "captured",
        "reward_scale": {"none": None, "factor": "factor(0.5)", "std": "return_std"}[c["scale"]],
    }  # fmt: skip
    if c["norm"] != "none":
        settings["normalize_obs"] = c["norm"]
    if c["stack"] == "algo":
        settings |= {"frame_stack": 2, "frame_stack_keys": ".*(story|observation)"}
    if c["encoder"] != "none":
        settings["networks.encoder"] = c["encoder"]
    if c["memory"] != "none":
        settings["networks.memory"] = MEMORIES[c["memory"]]
    return settings | (_on_policy(c) if c["door"] == "rollouts" else _off_policy(c))


def _on_policy(c):
    settings = {"rollout": ROLLOUT}
    if c["algo"] == "impala":
        settings["batch_size"] = c["envs"]
    if c["algo"] == "ppo":
        settings |= {"epochs": c["epochs"], "batch_size": 12}
    return settings | ({"batch_length": 4} if c["memory"] != "none" else {})


def _off_policy(c):
    settings = {"batch_size": 8, "batch_length": 2 if c["estimator"][0] == "td0" else 4}
    if c["algo"] in ("dqn", "qr_dqn", "c51", "iqn"):
        settings |= {"target_update_interval": 7, "exploration": "epsilon_greedy(0.5)"}
    settings |= {} if c["algo"] == "crossq" else {"tau": 0.5}
    return settings | ({"networks.burn_in": 1} if c["memory"] != "none" else {})


def run_settings(c, folder):
    """Settings of the run, without those of the algorithm; files that they name are in ``folder``."""
    settings = {"envs": c["envs"], "env.vectorization": c["vector"] if factors.is_single(c) else "native"}
    settings |= {"env.max_episode_steps": c["limit"]} if c["limit"] else {}
    settings |= {"env.action_repeat": c["repeat"]} if c["repeat"] > 1 else {}
    settings |= {"env.frame_stack": 2} if c["stack"] == "env" else {}
    settings |= {"env.restarts": 200} if c["crashes"] else {}
    settings |= {"actors": 2} if c["door"] == "actors" else {}
    if c["replaced"] == "person":
        settings["human"] = reverie.Person(functools.partial(help_out, c["action"], c["mask"]))
    if c["door"] == "rollouts":
        return settings
    if c["replaced"] == "person":
        settings |= {"human.min_rows": 5, "human.fraction": 0.0 if c["sampling"] == "priority" else 0.5}
    replay = {"capacity": c["capacity"], "storage": c["storage"]}
    if c["hindsight"] != "none":
        replay["hindsight"] = c["hindsight"]
    if c["sampling"] != "uniform":
        replay["fractions"] = {"uniform": 0.3, c["sampling"]: 0.7}
    settings |= {"reward": write_labels(c, folder)} if c["taught"] != "no" else {}
    return settings | {"replay": replay, "learning_starts": 20, "random_steps": 20, "replay_ratio": 0.5}
