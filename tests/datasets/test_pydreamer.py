"""PyDreamer's files: the action of a row is the one that led to it."""

import numpy as np
import pytest
from gymnasium import spaces

from formats import pydreamer_arrays as arrays
from formats import save_npz as save
from recordings import LIVED, Lived, check, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import pydreamer
from reverie.datasets.dataset import RecordedEpisodes
from reverie.datasets.format_detection import open_reader


@pytest.mark.parametrize("cut", [1, 3, 4, 5])
def test_an_episode_in_pieces(tmp_path, cut):
    """The action that led to the first row of a piece is that of the last row of the piece before."""
    whole = arrays([Lived(1, 6), Lived(2, 2)])
    for piece, rows in enumerate([slice(0, cut), slice(cut, 9), slice(9, None)]):
        save(tmp_path / "npz", f"ep000000_000001-{piece}-r1-0003", {k: v[rows] for k, v in whole.items()})
    reader = open_reader(str(tmp_path / "npz"))
    check(reader, expected([Lived(1, 6), Lived(2, 2)]))
    assert not reader.remarks()


def test_a_piece_whose_beginning_is_lost(tmp_path):
    """It begins where the file does, and no reward has come yet, as PyDreamer has it."""
    whole = arrays([Lived(1, 6)])
    save(tmp_path / "npz", "ep000000_000000-1-r1-0003", {k: v[3:] for k, v in whole.items()})
    reader = open_reader(str(tmp_path / "npz"))
    kept = {name: values[3:] for name, values in expected([Lived(1, 6)]).items()}
    kept["is_first"][0], kept["reward"][0] = True, 0.0
    for _ in range(2):
        check(reader, kept)
        assert reader.remarks() == [pydreamer.FIRST_STEPS_MISSING]  # once, however often it is read


def test_continuous_actions_are_in_units_of_the_environment(tmp_path):
    """PyDreamer's wrappers scale none."""
    path = save(tmp_path / "npz", "ep000000_000004-r1-0014", arrays(LIVED))
    action = np.float32(expected(LIVED)["action"])
    dataset = RecordedEpisodes(open_reader(str(path)), action_space=spaces.Box(-2, 2, action.shape[1:]))
    assert (joined(dataset.parts())["action"] == action / 2).all()


def test_pictures_have_their_time_behind(tmp_path):
    values = arrays(LIVED)
    pictures = np.random.default_rng(0).integers(0, 256, (len(values["reset"]), 4, 5, 3), dtype=np.uint8)
    values["image_t"] = pictures.transpose(1, 2, 3, 0)
    reader = open_reader(str(save(tmp_path / "npz", "ep000000_000004-r1-0014", values)))
    rows = expected(LIVED)
    seen = {"obs/vecobs": rows.pop("obs"), "obs/image": pictures}
    check(reader, rows | seen)
    assert reader.info().observation["image"] == spaces.Box(0, 255, (4, 5, 3), np.uint8)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda v: v.update({name: value[:0] for name, value in v.items()}), "contains no actions"),
        (lambda v: v.pop("reset"), "has .*, but no reset: a PyDreamer file has action, reset, reward, terminal"),
    ],
)
def test_files_that_cannot_be(tmp_path, change, said):
    values = arrays(LIVED)
    change(values)
    save(tmp_path / "npz", "ep000000_000004-r1-0014", values)
    with pytest.raises(DataError, match=said):
        open_reader(str(tmp_path / "npz")).info()


@pytest.mark.parametrize("name", ["spec.json", "about.json"])
def test_files_whose_metadata_are_incomplete_say_so(tmp_path, name):
    folder = save(tmp_path / "d", "ep000001_000000-r0-0001", arrays(LIVED[:1]))
    assert open_reader(str(folder)).remarks() == []
    (folder / name).write_text("{}")
    lost = {"spec.json": "about.json", "about.json": "spec.json"}[name]
    assert any(line.startswith(f"{lost} is missing next to the files") for line in open_reader(str(folder)).remarks())
