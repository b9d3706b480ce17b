"""The features that meet, and which combinations of them are played.

**A new feature signs in here**: one value of a factor, and the line in ``settings.py`` that sets it. Where it excludes
another one, it gets a row of ``MEANINGLESS`` or, if reverie refuses the combination, of ``REFUSED``. Only a feature
that changes what a row must be needs a line in ``oracle.py``. A setting that crosses nothing is in ``NOT_CROSSED``.
"""

import heapq
import importlib.util
import itertools
import random

ENDS = {
    "terminal": [(5, "terminal"), (3, "terminal"), (4, "terminal")],
    "limit": [(4, "limit"), (3, "limit"), (6, "limit")],
    "both": [(4, "both"), (5, "terminal"), (3, "limit")],
    "short": [(1, "terminal"), (5, "limit"), (1, "limit"), (2, "both"), (7, "terminal")],
}
"""Lengths of episodes, one after the other, and how they end."""
VECTORS = ["sync", "native_next", "native_same", "torch_next", "torch_same", "torch_disabled", "torch_ids"]

SHARED = {
    "vector": VECTORS,
    "envs": [1, 3],
    "action": ["discrete", "multi", "box", "mixed"],
    "mask": ["none", "method", "info", "observation"],
    "ends": [*ENDS],
    "limit": [0, 3],
    "repeat": [1, 2],
    "stack": ["none", "env", "algo"],
    "norm": ["none", "running"],
    "scale": ["none", "factor", "std"],
    "resume": [False, True],
    "crashes": [False, True],
    "kernels": ["on", "off", "captured"],
    "replaced": ["never", "hil_serl", "gym_hil", "filter", "person"],
    "encoder": ["none", "by_size"],
    "frozen": ["never", "some"],
}
OFF_POLICY = {
    "algo": ["dqn", "discrete_sac", "ddpg", "sac", "td3", "qr_dqn", "dreamer_v3", "muzero"],
    "door": ["collector", "train", "offline", "mixed"],
    **SHARED,
    "estimator": [("td0", 0), ("n_step", 3), ("td_lambda", 0.9)],
    "goals": ["", "reward", "end"],
    "hindsight": ["none", "future", "final", "episode"],
    "sampling": ["uniform", "priority", "recency", "episode_ends"],
    "storage": ["ram", "mmap"],
    "capacity": [100_000, 60],
    "memory": ["none", "lstm"],
    "evaluate": ["no", "other", "same"],
    "players": [1, 2],
    "taught": ["no", "preferences", "success"],
}
ON_POLICY = {
    "algo": ["ppo", "a2c"],
    "door": ["rollouts"],
    **SHARED,
    "kernels": ["on", "off"],  # what a captured update computes from a rollout is not compared
    "estimator": [("gae", 0.8), ("td_lambda", 0.9), ("n_step", 2), ("td0", 0)],
    "memory": ["none", "lstm", "gru", "transformer"],
    "epochs": [2, 1],
}
FILES = {
    "door": ["files"],
    "format": ["store", "minari", "d4rl", "parquet", "robomimic", "lerobot", "tianshou", "pydreamer"],
    **{name: x for name, x in SHARED.items() if name not in ("stack", "norm", "scale", "kernels", "frozen")},
    "goals": ["", "reward", "end"],
    "storage": ["ram", "mmap"],
    "capacity": [100_000, 60],
}
PLAYED = {
    "door": ["record", "evaluate", "reach"],
    "algo": ["gcivl", "gcbc", "hiql"],
    "policy": ["function", "predict"],
    "format": ["minari", "parquet", "robomimic"],
    **{name: SHARED[name] for name in ("action", "mask", "ends", "limit", "repeat", "norm", "replaced")},
    "stack": ["none", "algo"],
    "encoder": ["none", "by_size"],
    "goals": ["", "reward", "end"],
}
FAMILIES = {"off_policy": OFF_POLICY, "on_policy": ON_POLICY, "files": FILES, "played": PLAYED}
REST = {
    "algo": "dqn", "stack": "none", "norm": "none", "scale": "none", "kernels": "on", "estimator": ("td0", 0),
    "goals": "", "hindsight": "none", "sampling": "uniform", "storage": "ram", "capacity": 100_000, "memory": "none",
    "evaluate": "no", "epochs": 1, "format": "", "policy": "", "encoder": "none", "frozen": "never", "vector": "sync",
    "envs": 1, "resume": False, "crashes": False, "players": 1,
    "taught": "no",
}  # fmt: skip
"""Values of the factors that a family has not."""
NIGHT = {
    "vector": ["async"] + ["torch_jax"] * (importlib.util.find_spec("jax") is not None),
    "resume": ["killed"],
    "kernels": ["captured"],
    "frozen": ["network"],
    "algo": ["c51", "iqn", "tqc", "crossq"],
}
OFF_POLICY_AT_NIGHT = {"door": ["actors"]}
ON_POLICY_AT_NIGHT = {"algo": ["impala"], "estimator": [("v_trace", 0.9)]}
"""More values, for the long mode alone: they take long, or share all of their paths with another value."""

DISCRETE, CONTINUOUS, ALL = {"discrete", "multi"}, {"box"}, {"discrete", "multi", "box", "mixed"}
ACTIONS = {
    "dqn": DISCRETE, "qr_dqn": DISCRETE, "c51": DISCRETE, "iqn": DISCRETE, "discrete_sac": DISCRETE,
    "ddpg": CONTINUOUS, "td3": CONTINUOUS, "tqc": CONTINUOUS, "crossq": CONTINUOUS, "sac": {"box", "mixed"},
    "dreamer_v3": {"discrete", "multi", "box"}, "ppo": ALL, "a2c": ALL,
    "muzero": {"discrete"}, "impala": ALL, "gcivl": ALL, "gcbc": ALL, "hiql": ALL,
}  # fmt: skip
"""Actions that an algorithm takes."""
ESTIMATORS = {"dqn", "discrete_sac", "ddpg", "sac", "td3", "muzero", "ppo", "a2c"}
"""Algorithms with each estimator; distributions are n-step sums, without td_lambda."""


def is_single(c):
    """Whether environments are made one by one, and so can be wrapped, saved and restarted."""
    return c["vector"] in ("sync", "async")


def learns_rows(c):
    """Whether the rows come from files."""
    return c["door"] in ("offline", "mixed", "files")


MEANINGLESS = [
    ("the algorithm does not take these actions", lambda c: c["action"] not in ACTIONS[c["algo"]]),
    ("goal learners take no mixed actions", lambda c: c["door"] == "reach" and c["action"] == "mixed"),
    ("own policies learn nothing", lambda c: c["door"] in ("record", "evaluate") and (
        c["algo"] != "gcivl" or c["stack"] != "none" or c["norm"] != "none")),
    ("agents are sent to goals", lambda c: c["door"] == "reach" and c["policy"] != "function"),
    ("scores have no format", lambda c: c["door"] != "record" and c["policy"] and c["format"] != "minari"),
    ("numbers have no masks", lambda c: c["mask"] != "none" and c["action"] == "box"),
    ("a mask that is observed is one array", lambda c: c["mask"] == "observation" and c["action"] == "mixed"),
    ("vectors have no method for masks", lambda c: c["mask"] == "method" and not is_single(c)),
    ("wrappers are for single environments", lambda c: not is_single(c) and (c["limit"] or c["repeat"] > 1)),
    ("vectors stack no frames, and have no goals", lambda c: not is_single(c) and (c["stack"] == "env" or c["goals"])),
    ("a person takes over in one environment, while it learns", lambda c: c["replaced"] == "person" and (
        c["envs"] > 1 or not is_single(c) or c["door"] not in ("collector", "train", "rollouts"))),
    ("a vector that fails ends the run", lambda c: c["crashes"] and not is_single(c)),
    ("hindsight needs goals", lambda c: c["hindsight"] != "none" and not c["goals"]),
    ("a goal within a repeat is not in a row", lambda c: c["goals"] and c["repeat"] > 1),
    ("too short to reach a goal", lambda c: c["goals"] and c["ends"] == "short" and c["limit"]),
    ("estimators of critics", lambda c: c["estimator"][0] == "td_lambda" and c["algo"] not in ESTIMATORS),
    ("statistics of batches need windows of two rows", lambda c: c["algo"] == "crossq" and c["estimator"][0] != "td0"),
    ("memories learn from windows", lambda c: c["memory"] != "none" and c["estimator"][0] == "td0"
        and c["door"] != "rollouts"),
    ("no memory", lambda c: c["memory"] != "none" and c["algo"] not in ("dqn", "discrete_sac", "sac", "ppo", "a2c")),
    ("a memory stacks no frames", lambda c: c["memory"] != "none" and c["stack"] == "algo"),
    ("only own loops evaluate here", lambda c: c["evaluate"] != "no" and c["door"] != "collector"),
    ("one object is no vector", lambda c: c["evaluate"] == "same" and (c["vector"] != "sync" or c["envs"] > 1)),
    ("data are recorded once, by single environments", lambda c: c["door"] in ("offline", "mixed")
        and (c["resume"] or not is_single(c) or c["stack"] == "env")),
    ("environments on a device store nothing", lambda c: c["door"] == "files" and c["vector"].startswith("torch")),
    ("they learn once", lambda c: c["algo"] in ("a2c", "impala") and c["epochs"] != 2),
    ("V-trace is IMPALA's", lambda c: (c["estimator"][0] == "v_trace") != (c["algo"] == "impala")),
    ("own loops of single environments are killed", lambda c: c["resume"] == "killed" and (
        c["door"] not in ("collector", "files") or not is_single(c))),
    ("actors make single environments", lambda c: c["door"] == "actors" and (
        not is_single(c) or c["resume"] or c["evaluate"] != "no")),
    ("arrays of JAX, whose large numbers saturate networks", lambda c: c["vector"] == "torch_jax" and (
        c["action"] == "mixed" or c["mask"] == "info" or c["encoder"] != "none" or c["frozen"] != "never")),
    ("a world model has parts of its own", lambda c: c["algo"] == "dreamer_v3" and (
        c["estimator"][0] != "td0" or c["stack"] == "algo" or c["norm"] != "none" or c["scale"] != "none"
        or c["memory"] != "none" or c["hindsight"] != "none" or c["encoder"] != "none"
        or c["door"] in ("collector", "actors"))),
    ("a search has parts of its own", lambda c: c["algo"] == "muzero" and (
        c["stack"] == "algo" or c["norm"] != "none" or c["scale"] != "none" or c["hindsight"] != "none"
        or c["encoder"] != "none")),
    ("goals have rewards of their own", lambda c: c["goals"] and c["taught"] != "no"),
    ("a move that is repeated is another player's", lambda c: c["players"] == 2 and c["repeat"] > 1),
]  # fmt: skip
"""Combinations that mean nothing, or that nobody can set."""

ONE_ARRAY = ("d4rl", "robomimic", "lerobot", "tianshou")
"""Formats that store one array of actions."""
REFUSED = [
    (r"ActionRepeat repeats actions", lambda c: c["mask"] != "none" and c["repeat"] > 1, {"mask": "info", "repeat": 2}),
    (r"mask", lambda c: c["mask"] == "info" and not is_single(c), {"mask": "info", "vector": "native_next"}),
    (r"mask", lambda c: c["mask"] == "info" and not is_single(c), {"mask": "info", "vector": "torch_next"}),
    (r"hindsight.*Stack frames by algo\.frame_stack", lambda c: c["hindsight"] != "none" and c["stack"] == "env",
     {"hindsight": "future", "goals": "end", "stack": "env"}),
    (r"hindsight.*without memory", lambda c: c["hindsight"] != "none" and c["memory"] != "none",
     {"hindsight": "future", "goals": "end", "memory": "lstm", "estimator": ("n_step", 3)}),
    (r"running returns belong to one actor", lambda c: c["door"] == "actors" and c["scale"] == "std",
     {"door": "actors", "scale": "std"}),
    (r"its actors fill a queue of rollouts", lambda c: c["algo"] == "impala" and c["vector"].startswith("torch"),
     {"algo": "impala", "estimator": ("v_trace", 0.9), "vector": "torch_next"}),
    (r"same environment", lambda c: c["evaluate"] == "same", {"evaluate": "same"}),
    (r"two players", lambda c: c["players"] == 2 and c["algo"] != "muzero", {"players": 2}),
    (r"needs rewards of whole rows", lambda c: c["taught"] != "no" and c["algo"] == "dreamer_v3",
     {"taught": "success", "algo": "dreamer_v3", "door": "train"}),
    (r"one array of actions", lambda c: c["format"] in ONE_ARRAY and c["action"] == "mixed",
     {"door": "files", "format": "lerobot", "action": "mixed"}),
    (r"only store numbers and vectors", lambda c: c["format"] == "parquet" and c["encoder"] != "none",
     {"door": "record", "format": "parquet", "encoder": "by_size"}),
    (r"one array of observations", lambda c: c["format"] == "d4rl" and (
        c["goals"] or c["mask"] != "none" or c["encoder"] != "none"),
     {"door": "files", "format": "d4rl", "mask": "info"}),
]  # fmt: skip
"""Combinations that reverie refuses: the words of its error, whether they are in a combination, and an example."""

CROSSED = {
    "vector": "env.vectorization", "envs": "env.num", "limit": "env.max_episode_steps", "repeat": "env.action_repeat",
    "stack": "env.frame_stack", "crashes": "env.restarts", "hindsight": "replay.hindsight",
    "sampling": "replay.fractions", "storage": "replay.storage", "capacity": "replay.capacity",
}  # fmt: skip
"""The settings of the environment and of the replay that factors set."""
_IMAGES, _SAME_PATH = "images: resizing would destroy the keys", "shares all of its path with another value"
_PLACES, _LIVE = "where something is, not what it is", "how long something may take"
NOT_CROSSED = {
    "env.id": _PLACES, "env.kwargs": _PLACES, "env.wrappers": "a wrapper is an environment", "env.tasks": _PLACES,
    "env.log_info": "no column of a row", "env.timeout": _LIVE, "env.restart_window": _LIVE,
    **dict.fromkeys(("env.resize", "env.max_image_size", "env.grayscale", "env.pixels", "env.channel_axis",
                     "env.pool_frames", "env.full_view", "env.map_view"), _IMAGES),
    **dict.fromkeys(("env.noop_max", "env.fire_on_reset", "env.terminal_on_life_loss"), "wrappers of Atari alone"),
    "env.truncate_at_limit": "an environment whose limit is a termination: tests/envs/test_env_options.py",
    "env.clip_reward": "a function of one number: tests/envs/test_env_wrappers.py",
    "env.filtered_action": "which of two actions: tests/envs/test_interventions.py",
    "env.include_keys": "which observations there are", "env.exclude_keys": "which observations there are",
    "env.mission": "an observation of text",
    **dict.fromkeys(("replay.store_path", "replay.write_buffer", "replay.init_from"), _PLACES),
    "replay.store_keep": "what is deleted on disk: tests/store", "replay.save": "vectors on a device: tests/run",
    "replay.device": "a GPU", "replay.online_queue": "fractions without it draw the same windows",
    "replay.priority": "weights: tests/replay/test_sampling.py", "replay.recency_exponent": "distributions of samples",
    "replay.sampler": "another choice of windows: tests/algos/test_own_parts.py",
    "replay.sequential": "windows one behind the other: tests/replay/test_whole_episodes.py",
    "replay.reset_interval": "windows one behind the other: tests/replay/test_whole_episodes.py",
    **dict.fromkeys(("estimator td1", "scale affine"), _SAME_PATH),
    "estimator v_trace": "long mode",
    **dict.fromkeys(("algo tqc", "algo crossq", "algo simba_v2", "algo xqc"), "learns as sac does"),
    **dict.fromkeys(("algo c51", "algo iqn"), "learns as qr_dqn does"),
    **dict.fromkeys(("algo dreamer_v1", "algo dreamer_v2", "algo r2dreamer", "algo plan2explore",
                     "algo plan2explore_v1", "algo plan2explore_v3"), "learns from the windows of dreamer_v3"),
    **dict.fromkeys(("algo tdmpc2", "algo bmpc"), "plans, and learns from windows of transitions as td3 does"),
    "algo sac_ae": _IMAGES, "algo impala": "long mode",
    "algo gail": "two sources of rows: tests/algos/test_gail.py",
    **dict.fromkeys(("algo bc", "algo iql", "algo decision_transformer", "algo cql", "algo discrete_cql", "algo rebrac",
                     "algo td3_bc", "algo fql", "algo bcq", "algo discrete_bcq", "algo crr", "algo discrete_crr"),
                    "recorded rows are those of the door offline"),
    **dict.fromkeys(("algo gciql", "algo crl", "algo qrl", "algo lewm"),
                    "goals that they sample themselves: tests/replay/test_goal_sampling.py"),
}  # fmt: skip
"""Settings, kinds of a setting and algorithms that are in no factor, and why."""


def is_valid(c):
    return not any(excludes(c) for _, excludes in MEANINGLESS)


def refusal(c):
    """The pattern of the error with which reverie refuses a combination; None if it is played."""
    return next((pattern for pattern, applies, _ in REFUSED if applies(c)), None)


def factors_of(c):
    if c.get("door") == "files":
        return FILES
    if c.get("door") in PLAYED["door"]:
        return PLAYED
    return ON_POLICY if c.get("algo") in [*ON_POLICY["algo"], "impala"] else OFF_POLICY


def with_more(factors):
    """The factors with the values of the long mode."""
    own = {id(ON_POLICY): ON_POLICY_AT_NIGHT, id(OFF_POLICY): OFF_POLICY_AT_NIGHT, id(PLAYED): {"algo": []}}
    own = own.get(id(factors), {})
    more = NIGHT | own
    return {name: values + [x for x in more.get(name, []) if x not in values] for name, values in factors.items()}


def complete(c):
    """A whole configuration: the factors in ``c``, and the first value of all others."""
    c = REST | {name: values[0] for name, values in factors_of(c).items()} | c
    if c["door"] == "files":  # whoever takes the actions writes the same rows
        c["algo"] = "dqn" if c["action"] in ACTIONS["dqn"] else "sac"
    return c


def differing(c):
    """The factors of ``c`` that differ from their first values, and those that tell its family."""
    factors = factors_of(c)
    return {name: c[name] for name, values in factors.items() if c[name] != values[0] or (
        factors is not OFF_POLICY and name in ("algo", "door"))}  # fmt: skip


def pairs_of(c, names):
    return {(a, c[a], b, c[b]) for a, b in itertools.combinations(names, 2)}


def draw_valid(rng, factors):
    """A random combination that means something: values that exclude each other are drawn again."""
    c = complete({name: rng.choice(values) for name, values in factors.items()})
    broken = None  # the newest row that excluded it, which most other values leave as it is
    for _ in range(100):
        if broken is None or not broken(c):
            broken = next((excludes for _, excludes in MEANINGLESS if excludes(c)), None)
        if broken is None:
            return c
        name = rng.choice([*factors])
        c[name] = rng.choice(factors[name]) if rng.random() < 0.5 else factors[name][0]
    return None


def draw_numbered(factors, number):
    """The combination of this number, or None if it means nothing or is refused."""
    c = draw_valid(random.Random(number), factors)
    return c if c is not None and refusal(c) is None else None


def choose(factors, draws=8000, min_new=8):
    """The numbers of few combinations with most pairs, each of the draw that adds the most pairs to those before.

    The last pairs, 5 % of all, would take twice as long: ``make twin`` plays them.
    """
    drawn = {n: pairs_of(c, [*factors]) for n in range(draws) if (c := draw_numbered(factors, n)) is not None}
    missing, heap, chosen = set().union(*drawn.values()), [(-len(pairs), n) for n, pairs in drawn.items()], []
    heapq.heapify(heap)
    while heap and -heap[0][0] >= min_new:
        n = heap[0][1]
        new = len(drawn[n] & missing)
        if heapq.heapreplace(heap, (-new, n))[0] == -new:  # no other adds more
            chosen.append(n)
            missing -= drawn[n]
    return chosen


def covering(factors, seed, tries=60, min_new=2):
    """Yield combinations until each possible pair of values of two factors has occurred, and most are played.

    ``min_new``: pairs that a combination must add.
    """
    rng, names = random.Random(seed), [*factors]
    missing = {(a, x, b, y) for a, b in itertools.combinations(names, 2) for x in factors[a] for y in factors[b]}
    while missing:
        drawn = [c for _ in range(tries) if (c := draw_valid(rng, factors)) is not None and refusal(c) is None]
        best = max(drawn, key=lambda c: len(pairs_of(c, names) & missing), default=None)
        if best is None or len(pairs_of(best, names) & missing) < min_new:
            return
        missing -= pairs_of(best, names)
        yield best
