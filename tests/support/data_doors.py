"""Every way by which recordings come in, and everything that some of them declare: a new format signs in at ``DOORS``.

The recording has two episodes of four steps: the first one is truncated, the second one terminated.
"""

import dataclasses
import io
import json
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import gymnasium
import h5py
import numpy as np
import pandas
import pyarrow as pa
import pyarrow.parquet
import zarr
from gymnasium import spaces
from PIL import Image

import formats
import reverie
from log_capture import logged
from reverie.core.errors import ReverieError
from reverie.core.rows import episode_rows
from reverie.core.space_json import space_to_json
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import DatasetInfo, Reader, ReadOptions

STEPS, EPISODES = 8, 2
TIME = np.arange(STEPS)
LAST, TERMINAL, TRUNCATED = TIME % 4 == 3, TIME == 7, TIME == 3
FRAMES = np.random.default_rng(0).integers(0, 255, (STEPS, 8, 10, 3)).astype(np.uint8)
MASKS = np.stack([np.ones(STEPS), TIME % 3 == 1, TIME % 3 == 2], 1).astype(np.int8)
CHANCES = (TIME + 1) / (STEPS + 1)
TEXTS = ("open the drawer", "close the drawer")
TASKS = np.repeat(TEXTS, 4)
SHUFFLED = np.array([0, 2, 1, 3] * 2)


@dataclasses.dataclass(frozen=True)
class Content:
    """What a file has beside its observations, actions and rewards."""

    beside: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """Arrays ``[8, ...]`` beside the steps."""
    observed: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    """More observations ``[8, ...]``, or the only one, ``obs``, of a format that has one array of them."""
    attributes: tuple[Mapping[str, Any], ...] = ({}, {})
    """Of each episode."""
    names: Any = None
    """Of the elements of the observation."""
    has_ends: bool = True
    """Whether the ends of episodes stand where the format has them, as far as they can be left out."""

    @property
    def obs(self):
        return {"state": np.stack([TIME / 8, TIME % 4], 1).astype(np.float32)} | dict(self.observed)

    @property
    def only_obs(self):
        return self.observed.get("obs", self.obs["state"])

    @property
    def action(self):
        return np.where(TIME % 3 == 0, 0, TIME % 3)

    @property
    def reward(self):
        return np.ones(STEPS, np.float32)

    def flag(self, values):
        return values & self.has_ends


def d4rl_arrays(c):
    arrays = {"observations": c.only_obs, "actions": c.action, "rewards": c.reward, "terminals": c.flag(TERMINAL)}
    return arrays | ({"timeouts": TRUNCATED} if c.has_ends else {}) | dict(c.beside)


def hdf5(path, arrays, attributes=None):
    """Write arrays, texts as such, and attributes by group."""
    with h5py.File(path, "w") as file:
        for name, values in arrays.items():
            values = np.asarray(values)
            file[name] = values.astype("S") if values.dtype.kind == "U" else values
        for group, items in (attributes or {}).items():
            file.require_group(group).attrs.update(items)
    return path


def npz(path, arrays):
    np.savez(path, **{name.replace("/", "."): values for name, values in arrays.items()})
    return path


def ogbench(folder, c):
    return npz(folder / "o.npz", {"observations": c.only_obs, "actions": c.action, "terminals": LAST} | dict(c.beside))


def stable_baselines(folder, c):
    arrays = {"obs": c.only_obs, "actions": c.action, "rewards": c.reward, "episode_starts": np.roll(LAST, 1)}
    return npz(folder / "s.npz", arrays | dict(c.beside))


def imitation(folder, c):
    obs = np.concatenate([c.only_obs[:4], c.only_obs[3:4], c.only_obs[4:], c.only_obs[7:]])
    arrays = {"obs": obs, "acts": c.action, "rews": c.reward, "terminal": np.array([0, 1]), "indices": np.array([4])}
    return npz(folder / "i.npz", arrays | dict(c.beside))


def table_of(c):
    columns = {"x": c.obs["state"][:, 0], "v": c.obs["state"][:, 1], "a": c.action, "r": c.reward, "id": TIME // 4}
    columns |= {"over": TERMINAL, "cut": TRUNCATED} if c.has_ends else {}
    columns |= {name.replace("/", "."): values for name, values in {**c.beside, **c.observed}.items()}
    types = {name: pa.list_(pa.uint8()) for name, values in columns.items() if values.dtype == np.uint8}
    return {name: pa.array(values.tolist(), types.get(name)) for name, values in columns.items()}


def table_roles(c):
    roles = {"obs.state": ["x", "v"], "action": "a", "reward": "r", "episode": "id"}
    roles |= {"terminal": "over", "truncated": "cut"} if c.has_ends else {}
    roles |= {"propensity": "propensity"} if "propensity" in c.beside else {}
    return {"columns": roles | {f"obs.{name}": name for name in c.observed}}


def parquet(folder, c):
    pyarrow.parquet.write_table(pa.table(table_of(c)), folder / "t.parquet")
    return folder / "t.parquet"


def csv(folder, c):
    pandas.DataFrame({name: values.to_pylist() for name, values in table_of(c).items()}).to_csv(folder / "t.csv")
    return folder / "t.csv"


def lerobot(folder, c):
    ints = {"episode_index": TIME // 4, "frame_index": TIME % 4, "task_index": TIME * 0}
    observed = {f"observation.{name}": values for name, values in c.obs.items()}
    columns = {"action": c.action[:, None].astype(np.float32), "next.reward": c.reward} | observed | dict(c.beside)
    columns |= {"next.done": TERMINAL} if c.has_ends else {}
    columns = {name.replace("/", "."): values for name, values in (columns | ints).items()}
    kinds = {"S": "image", "U": "string"}
    features = {name: {"dtype": kinds.get(x.dtype.kind, str(x.dtype)), "shape": [*x.shape[1:]] or [1], "names": None}
                for name, x in columns.items()}  # fmt: skip
    features["observation.state"]["names"] = c.names
    texts = [attributes["task"] for attributes in c.attributes if attributes]
    columns["task_index"] = TIME // 4 * (len(texts) > 1)
    (folder / "meta").mkdir()
    about = {"codebase_version": "v2.1", "fps": 10, "features": features}
    (folder / "meta/info.json").write_text(json.dumps(about))
    lines = [{"episode_index": k, "length": 4} for k in range(EPISODES)]
    tasks = [{"task_index": k, "task": text} for k, text in enumerate(texts or ["reach"])]
    for name, rows in {"episodes": lines, "tasks": tasks}.items():
        (folder / f"meta/{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "data").mkdir()
    table = pa.table({name: pa.array(values.tolist()) for name, values in columns.items()})
    pyarrow.parquet.write_table(table, folder / "data/episode_000000.parquet")
    return folder


def rlds(folder, c):
    def describe(values):
        if values.dtype.kind == "S":
            return {"image": {"shape": {"dimensions": ["8", "10", "3"]}, "dtype": "uint8"}}
        if values.dtype.kind == "U":
            return {"text": {}}
        shape = {"dimensions": [str(size) for size in values.shape[1:]]} if values.ndim > 1 else {}
        return {"tensor": {"shape": shape, "dtype": str(values.dtype)}}

    flags = {"is_last": LAST} | ({"is_terminal": TERMINAL} if c.has_ends else {})
    steps = {"action": c.action, "reward": c.reward} | flags | {n.replace("/", "."): v for n, v in c.beside.items()}
    features = {name: describe(values) for name, values in steps.items()}
    observed = {name: describe(values) for name, values in c.obs.items()}
    features["observation"] = {"featuresDict": {"features": observed}}
    inner = {"sequence": {"feature": {"featuresDict": {"features": features}}, "length": "-1"}}
    (folder / "features.json").write_text(json.dumps({"featuresDict": {"features": {"steps": inner}}}))
    columns = {f"steps/{name}": values for name, values in steps.items()}
    columns |= {f"steps/observation/{name}": values for name, values in c.obs.items()}
    records = []
    for start in (0, 4):
        values = {name: x[start : start + 4].reshape(-1) for name, x in columns.items()}
        values = {name: x.astype("S") if x.dtype.kind == "U" else x * 1 if x.dtype == bool else x
                  for name, x in values.items()}  # fmt: skip
        records.append({name: x.tolist() for name, x in values.items()})
    formats.shard(folder / "d-train.tfrecord-00000-of-00001", records, zipped=False)
    return folder


def diffusion_policy(folder, c):
    group = zarr.open_group(folder / "d.zarr", mode="w", zarr_format=2)
    flags = {"done": TERMINAL} if c.has_ends else {}
    for name, values in {**c.obs, "action": c.action, "reward": c.reward, **flags, **c.beside}.items():
        values = values.astype("S") if values.dtype.kind == "U" else values
        group.create_array(f"data/{name}", data=values)
    group.create_array("meta/episode_ends", data=np.array([4, 8]))
    return folder / "d.zarr"


def tianshou(folder, c):
    flags = {"terminated": c.flag(TERMINAL), "truncated": c.flag(TRUNCATED), "done": c.flag(LAST)}
    arrays = {"act": c.action, "rew": c.reward} | flags | {f"info/{name}": x for name, x in c.beside.items()}
    arrays |= {f"obs/{name}": values for name, values in c.obs.items()}
    path = hdf5(folder / "t.hdf5", {f"_meta/{name}": values for name, values in arrays.items()})
    with h5py.File(path, "a") as file:
        file["last_index"] = np.array([7])
        file.attrs.update(maxsize=STEPS, _size=STEPS, _insertion_idx=0)
    return path


def d3rlpy(folder, c):
    arrays = {"num_episodes": EPISODES}
    for k in range(EPISODES):
        part = slice(4 * k, 4 * k + 4)
        arrays |= {f"observations_{k}": c.only_obs[part], f"actions_{k}": c.action[part, None]}
        arrays |= {f"rewards_{k}": c.reward[part, None], f"terminated_{k}": c.flag(TERMINAL)[part].any()}
        arrays |= {f"{name.replace('/', '.')}_{k}": values[part] for name, values in c.beside.items()}
    return hdf5(folder / "d.h5", arrays)


def robomimic(folder, c):
    arrays = {}
    for k in range(EPISODES):
        part, demo = slice(4 * k, 4 * k + 4), f"data/demo_{k}"
        steps = {"actions": c.action, "rewards": c.reward} | ({"dones": TERMINAL} if c.has_ends else {})
        steps |= {f"obs/{name}": values for name, values in c.obs.items()} | dict(c.beside)
        arrays |= {f"{demo}/{name}": values[part] for name, values in steps.items()}
    return hdf5(folder / "r.hdf5", arrays, {f"data/demo_{k}": c.attributes[k] for k in range(EPISODES)})


def act(folder, c):
    for k in range(EPISODES):
        steps = {"action": c.action, "reward": c.reward} | {f"observations/{n}": x for n, x in c.obs.items()}
        arrays = {name: values[4 * k : 4 * k + 4] for name, values in (steps | dict(c.beside)).items()}
        hdf5(folder / f"episode_{k}.hdf5", arrays, {"/": c.attributes[k]})
    return folder


def rows_of(c):
    """The rows of both episodes, whose last observation is the one before."""
    source = np.array([0, 1, 2, 3, 3, 4, 5, 6, 7, 7])
    last = np.array([4, 9])
    rows = {name: values[source] for name, values in {**c.obs, **c.beside}.items()}
    reward = np.append(0, c.reward[source][:-1])
    rows |= {"is_first": np.isin(np.arange(10), (0, 5)), "is_last": np.isin(np.arange(10), last)}
    rows |= {"reward": np.where(rows["is_first"], 0, reward).astype(np.float32)}
    rows |= {"is_terminal": (np.arange(10) == 9) & c.has_ends}
    action = np.eye(3, dtype=np.float32)[c.action[source]]
    action[last] = 0
    return rows | {"action": action}


def dreamer(folder, c):
    return npz(folder / "20260101T0-a-0-10.npz", rows_of(c))


def pydreamer(folder, c):
    rows = rows_of(c)
    first, terminal, _ = (rows.pop(name) for name in ("is_first", "is_terminal", "is_last"))
    rows["action"] = np.roll(rows["action"], 1, axis=0)
    return npz(folder / "ep000000.npz", rows | {"reset": first, "terminal": terminal})


def minari(folder, c):
    obs = {name: values for name, values in c.obs.items() if values.dtype.kind != "S"}
    space = spaces.Dict({name: spaces.Box(-np.inf, np.inf, x.shape[1:], x.dtype) for name, x in obs.items()})
    about = {"observation_space": space_to_json(space), "action_space": space_to_json(spaces.Discrete(3))}
    about |= {"data_format": "hdf5", "total_episodes": EPISODES, "total_steps": STEPS}
    (folder / "data").mkdir()
    (folder / "data/metadata.json").write_text(json.dumps(about))
    arrays = {}
    for k in range(EPISODES):
        part = slice(4 * k, 4 * k + 4)
        steps = {"actions": c.action, "rewards": c.reward, "terminations": c.flag(TERMINAL)}
        steps |= {"truncations": c.flag(TRUNCATED)} | {f"infos/{name}": values for name, values in c.beside.items()}
        arrays |= {f"episode_{k}/{name}": values[part] for name, values in steps.items()}
        arrays |= {f"episode_{k}/observations/{n}": np.append(x[part], x[part][-1:], 0) for n, x in obs.items()}
    hdf5(folder / "data/main_data.hdf5", arrays)
    return folder


def rl_unplugged(folder, c):
    pictures = [formats.png(k) for k in range(STEPS + 1)]
    records = []
    for k in range(STEPS):
        more = {name: np.atleast_1d(x[k].astype("S") if x.dtype.kind == "U" else x[k] * 1.0).tolist()
                for name, x in c.beside.items()}  # fmt: skip
        records.append({
            "o_t": [pictures[k]] * 4, "o_tp1": [pictures[k + 1]] * 4, "a_t": [int(c.action[k])], "r_t": [1.0],
            "d_t": [float(not c.flag(TERMINAL)[k])], "episode_id": [k // 4], **more,
        })  # fmt: skip
    return formats.shard(folder / "run_1-00000-of-00001", records)


def store(folder, c):
    parts = {name: {"kind": "vector", "shape": [*x.shape[1:]], "dtype": str(x.dtype)} for name, x in c.obs.items()}
    action = {"action": {"kind": "categorical", "classes": [3], "size": 0}}
    (folder / "spec.json").write_text(json.dumps({"observation": parts, "action": action}))
    rows = rows_of(c)
    rows = {f"obs/{name}" if name in c.obs else name: values for name, values in rows.items()}
    columns = {name: formats.ColumnSpec(values.shape[1:], str(values.dtype)) for name, values in rows.items()}
    made = formats.ReplayStore(folder / "replay")
    made.begin(columns, 1)
    made.extend({name: values[None] for name, values in rows.items()})
    made.close(10)
    return folder


class OwnReader(Reader):
    """A format of one's own."""

    def __init__(self, path, options=None):
        super().__init__(path, options)
        self.content = CONTENT["own"]

    def info(self):
        obs = {name: spaces.Box(-np.inf, np.inf, x.shape[1:], x.dtype) for name, x in self.content.obs.items()}
        has_propensity = "propensity" in self.content.beside
        return DatasetInfo(
            observation=spaces.Dict(obs), action=spaces.Discrete(3), has_propensity=has_propensity,
            element_names={"obs/state": self.content.names} if self.content.names else {},
        )  # fmt: skip

    def rows(self):
        return STEPS + EPISODES

    def parts(self):
        c = self.content
        for start in (0, 4):
            index = np.append(np.arange(start, start + 4), start + 3)
            rows = episode_rows(
                {name: values[index] for name, values in c.obs.items()}, c.action[index[:-1]], c.reward[index[:-1]],
                terminal=c.has_ends and bool(start),
            )  # fmt: skip
            yield rows | {name: values[index] for name, values in c.beside.items()}


CONTENT: dict[str, Content] = {}


def own(folder, c):
    CONTENT["own"] = c
    (folder / "own").mkdir()
    return folder / "own"


class Played(gymnasium.Env):
    """Plays the episodes of a content, whose masks are an observation, or stand in the info or in a method."""

    action_space = spaces.Discrete(3)

    def __init__(self, content):
        self.content, self.time = content, -1
        obs = {name: spaces.Box(-8, 8, values.shape[1:], values.dtype) for name, values in content.obs.items()}
        self.observation_space = spaces.Dict(obs)
        if "action_masks" in content.beside:
            self.action_masks = lambda: content.beside["action_masks"][min(self.time, STEPS - 1)]

    def shown(self):
        now = min(self.time, STEPS - 1)
        info = {name: values[now] for name, values in self.content.beside.items()}
        return {name: values[now] for name, values in self.content.obs.items()}, info

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = -(-max(self.time, 0) // 4) * 4
        return self.shown()

    def step(self, action):
        self.time += 1
        obs, info = self.shown()
        return obs, 1.0, bool(TERMINAL[self.time - 1]), bool(TRUNCATED[self.time - 1]), info


def played(folder, c):
    """A policy of one's own is recorded; it gets each mask that the environment gives."""

    def policy(obs, action_mask=None):
        assert (action_mask is not None) == ("action_mask" in f"{[*c.beside, *c.observed]}")
        return 0 if action_mask is None else int(np.flatnonzero(action_mask)[0])

    policy = Model(c.beside["statistics"][0]) if "statistics" in c.beside else policy
    reverie.record(lambda: Played(c), policy, episodes=EPISODES, out=folder / "played", format="store")
    return folder / "played"


class Model:
    """As models of Stable-Baselines3 that learned in a VecNormalize, which they know or have lost."""

    norm_obs = True

    def __init__(self, has_statistics):
        self.__dict__ |= {"gae_lambda": 0.9, "_last_original_obs": np.zeros((1, 2)), "has_statistics": has_statistics}

    def get_vec_normalize_env(self):
        return self if self.has_statistics else None

    def normalize_obs(self, obs):
        return obs | {"is_normalized": True}

    def predict(self, obs):
        assert ("is_normalized" in obs) == self.has_statistics
        return 0, None


class Door(NamedTuple):
    """A way by which recordings come in."""

    write: Callable[..., Any]
    """Writes a content to a folder; returns what is opened."""
    places: str
    """Where it has room: [b]eside the steps, [o]bservations, [i]mages there or as the only observation, [p]added ones,
    the [a]ttributes of episodes, [n]ames of elements, [m]asks of an environment and statistics of a model.
    """
    module: str = ""
    """The module of its reader, in ``reverie.datasets``."""
    options: Callable[[Content], dict[str, Any]] = lambda c: {}
    compares_times: bool = False
    """Whether it says that times are out of order; else they are observed, or left out with a remark."""
    own: frozenset[str] = frozenset()
    """Names that have another meaning here."""

    def read(self, folder, content):
        """Return the description of what is read, its rows and all that is said; a refusal is said, too."""
        try:
            with logged() as lines:
                opened = self.write(folder, content)
            with open_reader(opened, ReadOptions(**self.options(content))) as reader:
                info, rows = reader.info(), [*reader.parts()]
                rows = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
                return info, rows, "\n".join([*lines, *reader.remarks()])
        except ReverieError as error:
            return None, {}, str(error)


DOORS = {
    "D4RL": Door(lambda f, c: hdf5(f / "d.hdf5", d4rl_arrays(c)), "bip", "hdf5", compares_times=True),
    "npz": Door(lambda f, c: npz(f / "d.npz", d4rl_arrays(c)), "bip", "npz", compares_times=True),
    "arrays": Door(lambda f, c: d4rl_arrays(c), "bip", "npz", compares_times=True),
    "OGBench": Door(ogbench, "bip", "npz", compares_times=True, own=frozenset({"terminals"})),
    "Stable-Baselines 2": Door(stable_baselines, "bip", "npz", compares_times=True),
    "imitation": Door(imitation, "bip", "imitation"),
    "Parquet": Door(parquet, "boipn", "table", table_roles, True),
    "CSV": Door(csv, "bn", "table", table_roles, True),
    "data frame": Door(lambda f, c: pa.table(table_of(c)).to_pandas(), "boipn", "table", table_roles, True),
    "LeRobot": Door(lerobot, "boian", "lerobot", own=frozenset({"success"})),
    "RLDS": Door(rlds, "boi", "rlds", own=frozenset({"is_last"})),
    "diffusion policy": Door(diffusion_policy, "boip", "diffusion_policy", compares_times=True),
    "Tianshou": Door(tianshou, "boip", "tianshou"),
    "d3rlpy": Door(d3rlpy, "bip", "d3rlpy", own=frozenset({"terminated"})),
    "robomimic": Door(robomimic, "boipa", "robomimic", compares_times=True),
    "ACT": Door(act, "boipa", "act", compares_times=True),
    "Dreamer": Door(dreamer, "bo", "dreamer_replay", own=frozenset({"is_last", "is_terminal"})),
    "PyDreamer": Door(pydreamer, "bo", "pydreamer", own=frozenset({"terminal", "is_last", "is_terminal"})),
    "Minari": Door(minari, "bo", "minari"),
    "RL Unplugged": Door(rl_unplugged, "b", "rl_unplugged"),
    "run": Door(store, "o", "replay_store"),
    "own policy": Door(played, "om"),
    "own reader": Door(own, "bon", "", lambda c: {"reader": "data_doors:OwnReader"}),
}  # fmt: skip


def encoded(padded):
    """Compressed frames: byte strings, or rows of bytes that end with zeros."""
    files = [io.BytesIO() for _ in FRAMES]
    for frame, file in zip(FRAMES, files, strict=True):
        Image.fromarray(frame).save(file, "PNG")
    strings = np.array([file.getvalue() for file in files])
    return strings.view(np.uint8).reshape(STEPS, -1) if padded else strings
