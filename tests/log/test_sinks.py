"""Sinks: what is written can be read back, whatever happened to the process that wrote it."""

import json
import math

import numpy as np
import pytest
from PIL import Image

from reverie.core.clock import Clock
from reverie.core.files import iter_lines
from reverie.log import sinks
from reverie.log.jsonl import FINAL, JsonlSink, metric_series, read_metrics
from reverie.log.sinks import ErrorTolerantSink, LogOutputs, MediaSink, TensorBoardSink
from reverie.run.checkpoint import export_checkpoint
from run_logs import logged

VIDEO = np.zeros((3, 8, 8, 3), np.uint8)


def test_one_object_a_flush_readable_at_once(tmp_path):
    path = tmp_path / "run" / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write({"loss/a": 1.0, "report/dream": VIDEO, "hist": np.zeros(4)}, 10)
    sink.write({"loss/a": np.float32(0.5), "eval/score": 3}, 20)
    lines = path.read_text().splitlines()  # before close: each line is flushed
    assert lines == ['{"step": 10, "loss/a": 1.0}', '{"step": 20, "loss/a": 0.5, "eval/score": 3.0}']
    sink.close()


def test_not_finite_is_null_and_read_as_nan(tmp_path):
    path = logged(tmp_path / "m.jsonl", [(1, {"a": math.nan, "b": math.inf, "c": 1.0})])
    assert json.loads(path.read_text()) == {"step": 1, "a": None, "b": None, "c": 1.0}
    rows = read_metrics(path)
    assert (math.isnan(rows[0]["a"]), rows[0]["c"]) == (True, 1.0)
    assert [len(metric_series(rows, name)[1]) for name in ("a", "c", "absent")] == [0, 1, 0]


def test_truncated_last_line_is_skipped_and_then_cut(tmp_path):
    path = tmp_path / "m.jsonl"
    path.write_text('{"step": 1, "a": 1.0}\n{"step": 2, "a"')
    assert [row["step"] for row in read_metrics(path)] == [1]
    logged(path, [(3, {"a": 3.0})])
    assert [json.loads(line)["step"] for line in path.read_text().splitlines()] == [1, 3]


def steps_and_values(path):
    return [(row["step"], row["a"]) for row in read_metrics(path)]


def test_rows_lived_twice_count_once(tmp_path):
    """A run killed at step 30 and resumed from its checkpoint of step 20 writes 25 and 30 again."""
    rows = [(10, 1.0), (20, 2.0), (20, 2.5), (30, 3.0), (25, 9.0), (30, 9.5)]
    path = logged(tmp_path / "m.jsonl", [(step, {"a": value}) for step, value in rows])
    assert steps_and_values(path) == [(10, 1.0), (20, 2.0), (20, 2.5), (25, 9.0), (30, 9.5)]


def test_what_is_lived_otherwise_is_set_aside(tmp_path):
    """Killed at step 30 and resumed at 20 with other settings: no row of the first life stands among the second's."""
    path, aside = tmp_path / "m.jsonl", tmp_path / "m-aside.jsonl"
    for since, rows in [
        (0, [(10, 1.0), (20, 2.0), (30, 3.0)]), (20, [(30, 9.0), (40, 9.5)]), (20, [(25, 5.0)]), (25, []),
    ]:  # fmt: skip
        logged(path, [(step, {"a": value}) for step, value in rows], since=since)
    assert steps_and_values(path) == [(10, 1.0), (20, 2.0), (25, 5.0)]
    assert steps_and_values(aside) == [(30, 3.0), (30, 9.0), (40, 9.5)]
    assert path.read_text().count("\n") == 3


def test_entries_that_will_be_made_again_at_the_very_step_are_set_aside(tmp_path):
    rows = [row for final in (0.0, 1.0) for row in ((10, {FINAL: final}), (20, {"a": 1.0}), (20, {FINAL: final}))]
    path = logged(tmp_path / "m.jsonl", rows)
    before = path.read_text()
    logged(path, [], since=20)
    assert path.read_text() == before
    logged(path, [], since=20, repeated_values={FINAL: 1.0})
    last = '{"step": 20, "eval/final": 1.0}\n'
    assert path.read_text() == before.removesuffix(last)
    assert (tmp_path / "m-aside.jsonl").read_text() == last


def test_tensorboard_holds_scalars_and_videos(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    sink = TensorBoardSink(tmp_path)
    sink.write({"loss/a": 1.5, "report/dream": VIDEO, "latents": np.arange(5.0), "map": VIDEO[0], "note": "a text"}, 7)
    sink.close()
    events = event_accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert [(e.step, e.value) for e in events.Scalars("loss/a")] == [(7, 1.5)]
    assert events.Images("report/dream")[0].encoded_image_string.startswith(b"GIF8")
    assert events.Images("map")[0].encoded_image_string.startswith(b"\x89PNG")
    assert events.Tags()["histograms"] == ["latents"]
    assert events.Tags()["tensors"] == ["note/text_summary"]


def test_videos_images_and_texts_are_written_by_name_and_step_and_the_oldest_dropped(tmp_path):
    sink = MediaSink(tmp_path, keep=2)
    for step in (1, 2, 30):
        sink.write({"report/dream": VIDEO, "loss/a": 1.0, "train/map": VIDEO[0], "train/note": f"é {step}"}, step)
    sink.close()
    names = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*.*"))
    kinds = {"images/train_map": "png", "texts/train_note": "txt", "videos/report_dream": "mp4"}
    assert names == [f"{name}-{step:012d}.{suffix}" for name, suffix in kinds.items() for step in (2, 30)]
    assert (tmp_path / "texts/train_note-000000000030.txt").read_text(encoding="utf-8") == "é 30"
    assert Image.open(tmp_path / "images/train_map-000000000002.png").size == VIDEO.shape[2:0:-1]


@pytest.mark.parametrize(("steps", "before", "since"), [(0, False, None), (0, True, 1), (30, True, 31)])
def test_tensorboard_hides_what_an_earlier_process_logged_later(tmp_path, monkeypatch, steps, before, since):
    made = []
    monkeypatch.setattr(sinks, "TensorBoardSink", lambda folder, purge_step: made.append(purge_step) or Silent())
    settings = {"tensorboard": True, "console": False, "wandb": False, "mlflow": False}
    if before:
        (tmp_path / "tensorboard").mkdir()
    with LogOutputs(path=tmp_path, title="", settings=settings, export=export_checkpoint).open(
        Clock(length=100, env_steps=steps)
    ) as all_:
        assert len(all_) == 4
    assert made == [since]


class Silent:
    """A sink that does nothing."""

    write = close = staticmethod(lambda *_: None)


class Disk:
    """A file on a disk that has room for ``room`` more bytes."""

    def __init__(self, file):
        self.file, self.room, self.fileno = file, math.inf, file.fileno

    def write(self, data):
        if not self.room:
            raise OSError(28, "No space left on device")
        written = self.file.write(data[: int(min(len(data), self.room))])
        self.room -= written
        return written

    def __enter__(self):
        pass

    def __exit__(self, *error):
        self.file.close()


def test_a_file_that_cannot_be_written_for_a_while_ends_no_run(tmp_path, said):
    """What a full disk did not take, here some 30 KB that begin within a line, follows when there is room.

    Each time is told of once, also if entries without a line come in between.
    """
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink._file = disk = Disk(sink._file)
    patient = ErrorTolerantSink(sink, "the log")
    wide = {f"train/loss_{i}": 1 / (i + 3) for i in range(100)}
    for step in range(20):
        disk.room = {3: 1000, 13: math.inf, 16: 0, 17: math.inf}.get(step, disk.room)
        patient.write(wide, step)
        patient.write({"report/dream": VIDEO}, step)
    patient.close()
    assert path.read_text() == "".join(json.dumps({"step": step, **wide}) + "\n" for step in range(20))
    full = "the log cannot write: [Errno 28] No space left on device. The run continues; later entries go to it"
    assert said == [full] * 2


def test_a_line_without_an_end_is_read_in_pieces(tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.core.files.LARGEST_LINE", 100)
    path = tmp_path / "m.jsonl"
    path.write_bytes(bytes(250) + b"\n" + b'{"step": 2, "a": 3.0}\n')
    with path.open("rb") as file:
        assert [len(line) for line in iter_lines(file)] == [100, 100, 51, 22]
    assert read_metrics(path) == [{"step": 2, "a": 3.0}]


@pytest.mark.parametrize("successor", [None, "other content"])
def test_a_log_that_is_deleted_or_replaced_is_begun_again(successor, tmp_path, said):
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink.write({"a": 1.0}, 1)
    path.unlink()
    if successor is not None:
        path.write_text(f"{successor}\n")
    sink.write({"a": 2.0}, 2)
    sink.write({"a": 3.0}, 3)
    sink.close()
    assert [row["step"] for row in read_metrics(path)] == [2, 3]
    assert said == [f"{path} was deleted or replaced while the run was writing to it; it is begun again"]


def test_lines_that_were_never_written_are_reported_at_the_end(tmp_path):
    path = tmp_path / "m.jsonl"
    sink = JsonlSink(path)
    sink._file = disk = Disk(sink._file)
    disk.room = 9
    for attempt in (lambda: sink.write({"a": 1.0}, 7), sink.close):
        with pytest.raises(OSError, match="No space left"):
            attempt()
    assert (path.read_text(), disk.file.closed) == ('{"step": ', True)
    assert logged(path, []).read_text() == ""
