"""What each format that can be written keeps of a recording; a remark or an error names everything else."""

import numpy as np
import pytest
from gymnasium import spaces

from recordings import FORMATS
from reverie.core.errors import ConfigError
from reverie.core.rows import iter_episodes
from reverie.core.specs import MASK_KEY
from reverie.datasets.convert import Subset, subsample, write_dataset
from reverie.datasets.format_detection import open_reader
from reverie.datasets.options import PROPENSITY
from reverie.datasets.reader import SEED, TRUNCATED_COLUMN, DatasetInfo, Reader

STEPS, EPISODES = 4, 3
NAMES = {"obs": ("x", "y")}
GOALS = ("observation", "achieved_goal", "desired_goal")
EVERYTHING = {"propensity", "names", "both ends", "seed", "goals", "mask"}
LOST = {
    "minari": {},
    "d4rl": {"seed": "seed", "goals": "can only store one array", "mask": "can only store one array"},
    "parquet": {"seed": "seed"},
    "robomimic": {"seed": "seed", "both ends": "terminated and truncated"},
    "lerobot": {"seed": "seed", "both ends": "terminated and truncated"},
    "tianshou": {"seed": "seed"},
    "pydreamer": {"seed": "seed", "both ends": "terminated and truncated"},
    "store": {"seed": "seed", "both ends": "terminated and truncated"},
}
"""What a format cannot store, and a part of the remark or the error that says so. None stores unknown columns."""


class Recording(Reader):
    """Episodes with everything that a row can have; ``kind``: of the observations."""

    def __init__(self, kind="flat"):
        super().__init__(f"recording-{kind}")
        self.kind = kind

    def info(self):
        box = spaces.Box(-np.inf, np.inf, (2,), np.float32)
        observation = {
            "flat": box,
            "goals": spaces.Dict(dict.fromkeys(GOALS, box)),
            "mask": spaces.Dict({MASK_KEY: spaces.MultiBinary(3), "observation": box}),
        }[self.kind]
        names = NAMES if self.kind == "flat" else {}
        return DatasetInfo(observation=observation, action=spaces.Discrete(3), has_propensity=True, element_names=names)

    def rows(self):
        return EPISODES * (STEPS + 1)

    def parts(self):
        return self.as_recorded()

    def as_recorded(self):
        for number in range(EPISODES):
            time, last = np.arange(STEPS + 1), np.arange(STEPS + 1) == STEPS
            box = np.stack([np.full(STEPS + 1, number), time], 1).astype(np.float32)
            keys = {"flat": ["obs"], "goals": [f"obs/{name}" for name in GOALS], "mask": ["obs/observation"]}[self.kind]
            rows = {key: box + index for index, key in enumerate(keys)}
            if self.kind == "mask":
                rows[f"obs/{MASK_KEY}"] = np.tile(np.int8([1, 0, 1]), (STEPS + 1, 1))
            rows |= {"action": np.where(last, 0, 2 * (time % 2)), "reward": time.astype(np.float32)}
            rows |= {"is_first": time == 0, "is_last": last, "is_terminal": last & (number > 0)}
            rows[PROPENSITY] = np.where(last, 1.0, (time + 1) / (STEPS + 2 + number))
            rows[TRUNCATED_COLUMN] = last & (number == 2)
            rows[SEED] = np.array([number, *[None] * STEPS], object)
            yield rows | {"logp": np.zeros(STEPS + 1)}


def episodes_of(reader):
    return list(iter_episodes(reader.as_recorded()))


def kept_by(to, path):
    """What a copy has of the recording, and everything that was said about the rest."""
    kept, said = set(), []
    for kind in ("flat", "goals", "mask"):
        source, target = Recording(kind), path / f"{kind}.{'hdf5' if to in ('d4rl', 'robomimic', 'tianshou') else 'd'}"
        try:
            said += write_dataset(source, str(target), to).remarks + source.remarks()
        except ConfigError as error:
            said.append(str(error))
            continue
        with open_reader(str(target)) as copy:
            kept |= _compare(copy, source)
            said += copy.remarks()
    return kept, said


def _compare(copy, source):
    info, pairs, same = copy.info(), list(zip(episodes_of(copy), episodes_of(source), strict=True)), set()
    obs = {name for name in pairs[0][1] if name.startswith("obs")}
    if source.kind != "flat" and all(np.array_equal(a[name], b[name]) for a, b in pairs for name in obs):
        same.add(source.kind)
    if source.kind == "flat":
        columns = {"propensity": PROPENSITY, "both ends": TRUNCATED_COLUMN, "unknown": "logp"}
        same |= {name for name, column in columns.items()
                 if all(column in a and np.allclose(a[column], b[column]) for a, b in pairs)}  # fmt: skip
        same |= {"seed"} if all(SEED in a and a[SEED][0] == b[SEED][0] for a, b in pairs) else set()
        same |= {"names"} if list(info.element_names.values()) == [("x", "y")] else set()
    return same


@pytest.mark.parametrize("to", FORMATS)
def test_each_format_keeps_what_it_can_and_names_the_rest(tmp_path, to):
    if to == "minari":
        pytest.importorskip("minari")
    kept, said = kept_by(to, tmp_path)
    assert kept == EVERYTHING - LOST[to].keys()
    for reason in (*LOST[to].values(), "does not store logp"):
        assert any(reason in line for line in said), reason


@pytest.mark.parametrize("to", FORMATS)
def test_a_part_keeps_its_propensities(tmp_path, to):
    """Such as the held-out half, from which ``wis`` and ``dr`` estimate."""
    if to == "minari":
        pytest.importorskip("minari")
    source = Recording()
    part, _ = subsample(source, Subset(steps=6))
    target = tmp_path / ("part.hdf5" if to in ("d4rl", "robomimic", "tianshou") else "part")
    write_dataset(source, str(target), to, part)
    known = {(*rows["obs"][t], rows[PROPENSITY][t]) for rows in episodes_of(source) for t in range(STEPS)}
    with open_reader(str(target)) as copy:
        for rows in episodes_of(copy):
            (name,) = [name for name in rows if name.startswith("obs")]
            steps = zip(rows[name][:-1], rows[PROPENSITY][:-1], strict=True)
            assert {(*obs, chance) for obs, chance in steps} <= known
            assert rows[PROPENSITY][-1] == 1


def test_joined_parts_have_propensities_if_all_have(tmp_path):
    paths = [str(tmp_path / name) for name in ("a.hdf5", "b.hdf5")]
    write_dataset(Recording(), paths[0], "d4rl")
    source = Recording()
    source.as_recorded = lambda: (
        {k: v for k, v in rows.items() if k != PROPENSITY} for rows in Recording().as_recorded()
    )
    write_dataset(source, paths[1], "d4rl")
    reader = open_reader(paths)
    assert not any(PROPENSITY in rows for rows in reader.parts())
    assert any("propensity is left out: only some of the parts have it" in line for line in reader.remarks())
    assert open_reader([paths[0], paths[0]]).info().has_propensity
