"""Which reader opens what, for each format and each two of them in one folder.

A new format must not change the recorded answers. To record them anew, run this file with PYTHONPATH=tests/support,
which pytest sets itself.
"""

import contextlib
import itertools
import json
import os
import re
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory

from formats import FORMATS
from reverie.core.errors import ReverieError
from reverie.datasets import formats
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions

RECORDED = Path(__file__).with_suffix(".json")
NAMES = [name for name in FORMATS if "," not in name]
TABLE = {"obs": "o", "action": "a"}
REASONS = re.compile(
    "several formats|contains no dataset|format is unknown|contains x|is missing next to it|no effect|has no column|"
    "no column is assigned|seems damaged|but no|different columns"
)


def answer(path, options):
    """Class and format of the reader, or class and reason of the error."""
    try:
        with open_reader(str(path), options) as reader:
            return f"{type(reader).__name__}: {reader.format}"
    except ReverieError as error:
        reason = REASONS.search(str(error))
        return f"{type(error).__name__}: {reason[0] if reason else error}"


def answers(folder):
    """What each folder or glob is opened as, by the answer."""
    opened = {}

    def ask(label, path, **options):
        opened.setdefault(answer(path, ReadOptions(**options)), []).append(label)

    for name in NAMES:
        (folder / name).mkdir()
        FORMATS[name].write(folder / name)
        ask(f"{name}, columns", folder / name, columns=TABLE)
        for number, file in enumerate(sorted(folder.glob(f"{name}/*"))):
            ask(f"{name}, file {number}", file)
    for one, two in itertools.combinations_with_replacement(NAMES, 2):
        for name in (one, two):
            shutil.copytree(folder / name, folder / "both", dirs_exist_ok=True, copy_function=_link)
        ask(f"{one} + {two}", folder / "both")
        ask(f"{one} + {two}, glob", folder / "both/*")
        shutil.rmtree(folder / "both")
    return opened


def _link(source, target):
    if not os.path.exists(target):
        os.link(source, target)


def test_each_pair_of_formats_is_opened_as_recorded(tmp_path):
    recorded = json.loads(RECORDED.read_text())
    known = {*itertools.chain(*recorded.values())}
    opened = {said: [label for label in labels if label in known] for said, labels in answers(tmp_path).items()}
    assert {said: labels for said, labels in opened.items() if labels} == recorded


def test_each_format_has_files_here(tmp_path):
    opened = set()
    for name in NAMES:
        (tmp_path / name).mkdir()
        FORMATS[name].write(tmp_path / name)
        with contextlib.suppress(ReverieError), open_reader(str(tmp_path / name)) as reader:
            opened.add(type(reader).__module__)
    assert {entry.target.partition(":")[0] for entry in formats.FORMATS} <= opened


if __name__ == "__main__":
    with TemporaryDirectory() as name:
        lines = [f"{json.dumps(key)}: {json.dumps(labels)}" for key, labels in sorted(answers(Path(name)).items())]
        RECORDED.write_text("{\n" + ",\n".join(lines) + "\n}\n")
