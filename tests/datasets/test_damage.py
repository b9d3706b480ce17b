"""Files of every format with bytes turned, missing or too many: read, or refused as the user's to mend."""

import random
import shutil

import numpy as np
import pytest

from d4rl_files import columns
from d4rl_files import write as write_d4rl
from formats import shard, tianshou, transitions, transitions_of
from recordings import LIVED
from reverie.core.errors import DataError, ReverieError
from reverie.datasets.convert import write
from reverie.datasets.dataset import Recorded
from reverie.datasets.detect import open_reader
from reverie.datasets.reader import ReadOptions

FORMATS = ("d4rl", "pieces", "tianshou", "rl_unplugged", "minari", "parquet", "pydreamer", "store")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The same episodes in each format."""
    pytest.importorskip("minari")
    folder = tmp_path_factory.mktemp("whole")
    made = {
        "d4rl": write_d4rl(folder / "d4rl.hdf5", columns()),
        "pieces": write_d4rl(folder / "pieces.hdf5", columns(), compression="gzip"),
        "tianshou": tianshou(folder / "tianshou.hdf5", [(14, transitions_of(LIVED), 13, 14)]),
        "rl_unplugged": shard(folder / "run_1-00000-of-00100", transitions(LIVED)),
    }
    for name in ("minari", "parquet", "pydreamer", "store"):
        made[name] = folder / name
        write(open_reader(str(made["d4rl"])), str(made[name]), name)  # type: ignore[arg-type]  # a format
    return made


def read(path, partial=False):
    """All that training reads."""
    recorded = Recorded(open_reader(str(path), ReadOptions(partial=partial)))
    try:
        return sum(len(part["reward"]) for part in recorded.parts())
    finally:
        recorded.close()


def damaged(path, draw):
    """Damage one file of a dataset; what was done."""
    file = draw.choice([path] if path.is_file() else sorted(p for p in path.rglob("*") if p.is_file()))
    content = bytearray(file.read_bytes())
    place, how = draw.randrange(min(len(content), 4096)), draw.choice(["turned", "noise", "cut", "zeros", "more"])
    if how == "turned":
        content[place] ^= 1 << draw.randrange(8)
    elif how == "noise":
        for _ in range(10):
            content[draw.randrange(len(content))] = draw.randrange(256)
    elif how == "cut":
        del content[place:]
    elif how == "zeros":
        content[place : place + 100] = bytes(len(content[place : place + 100]))
    else:
        content[place:place] = draw.randbytes(5)
    file.write_bytes(content)
    return f"{how} at {place} of {file.name}"


@pytest.mark.parametrize("name", FORMATS)
def test_damage_is_read_over_or_refused(whole, tmp_path, name):
    assert read(whole[name]) >= 14  # transitions; in most formats each episode has a row more
    refused = 0
    for number in range(12):
        draw, path = random.Random(f"{name} {number}"), tmp_path / str(number) / whole[name].name
        (shutil.copytree if whole[name].is_dir() else shutil.copy)(whole[name], made_parent(path))
        what = damaged(path, draw)
        for partial in (False, True) if name == "rl_unplugged" else (False,):
            try:
                read(path, partial)
            except ReverieError:
                refused += 1
            except Exception as error:
                pytest.fail(f"{number}: {what}: {error!r}")
    assert 0 < refused < 24  # some of it is noticed, and some of it harms nothing


def made_parent(path):
    path.parent.mkdir()
    return path


@pytest.mark.parametrize(("size", "place"), [(2, 7), (3, 3)], ids=["list", "text"])
def test_places_in_an_arrow_file_that_are_wrong(tmp_path, size, place):
    """Arrow itself would end the process, or read memory that is not its own."""
    arrow = pytest.importorskip("pyarrow")
    file, steps = tmp_path / "a.arrow", np.arange(7)
    named = {"episode": ["abc"] * 7, "obs": [[0.5, 1.5]] * 7, "action": steps, "reward": steps, "terminal": steps == 6}
    table = arrow.table(named)
    with arrow.OSFile(str(file), "wb") as sink, arrow.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    content, begins = file.read_bytes(), np.arange(8, dtype=np.int32) * size
    whole, begins[place] = begins.tobytes(), 1 << 30
    options = ReadOptions(columns={name: name for name in named})
    assert len(list(open_reader(str(file), options).parts())) == 1
    assert whole in content
    file.write_bytes(content.replace(whole, begins.tobytes()))
    with pytest.raises(DataError, match=r"a\.arrow.* is damaged"):
        list(open_reader(str(file), options).parts())
