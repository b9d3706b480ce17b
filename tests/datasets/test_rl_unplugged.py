"""RL Unplugged's shards: framing, checksums and messages made byte by byte, as slowly as they are defined."""

import gzip
import io

import imageio.v3 as imageio
import numpy as np
import pytest
from gymnasium import spaces

from formats import SIDE, framed, message, shard, transitions
from recordings import LIVED, Lived, expected, joined
from reverie.core.errors import DataError
from reverie.datasets import rl_unplugged
from reverie.datasets.format_detection import open_reader
from reverie.datasets.reader import ReadOptions


def corner(obs):
    """Of each row: which episode and times the frames of its stack are of."""
    return obs[:, 0, 0, :].tolist(), obs[:, 0, 1, :].tolist()


def check_shard(reader, lived):
    rows = expected(lived, discrete=True)
    truth = rows.pop("obs")
    found = joined(reader.parts())
    obs = found.pop("obs")
    assert obs.shape == (len(truth), SIDE, SIDE, 4)
    numbers, times = corner(obs)
    assert numbers == [[number] * 4 for number, _ in truth]
    assert times == [[max(0.0, t + back) for back in (-3, -2, -1, 0)] for _, t in truth]
    for name, values in rows.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
    assert reader.rows() == len(truth)


@pytest.fixture(autouse=True)
def _small_parts(monkeypatch):
    monkeypatch.setattr(rl_unplugged, "BLOCK", 3)


def test_rows_of_other_encodings(tmp_path):
    path = shard(tmp_path / "run_1-00000-of-00100", transitions(LIVED), zipped=False, packed=False)
    reader = open_reader(str(path))
    check_shard(reader, LIVED)
    assert reader.info().observation == spaces.Box(0, 255, (SIDE, SIDE, 4), np.uint8)
    assert reader.info().action == spaces.Discrete(5)


def test_transitions_in_any_order_stay_right(tmp_path):
    """Each is an episode of its own then: what it saw, what it did, and what that led to."""
    found = transitions(LIVED)
    order = np.random.default_rng(0).permutation(len(found))
    reader = open_reader(str(shard(tmp_path / "run_1-00000-of-00100", [found[i] for i in order])))
    rows = joined(reader.parts())
    assert reader.rows() == len(rows["reward"])
    starts, row = [(episode, t) for episode in LIVED for t in range(episode.steps)], 0
    for episode, t in (starts[index] for index in order):
        if not rows["is_first"][row]:  # it went on from the one before, by chance
            row -= 1
        (numbers, times), last = corner(rows["obs"][row : row + 2]), t == episode.steps - 1
        assert (numbers, [stacked[-1] for stacked in times]) == ([[episode.number] * 4] * 2, [t, t + 1])
        assert (rows["action"][row], rows["reward"][row + 1]) == (episode.choice(t), np.float32(episode.reward(t)))
        assert rows["is_terminal"][row + 1] == (last and episode.end == "terminal")
        row += 2
    assert row == len(rows["reward"])


def test_a_shard_cut_in_the_middle(tmp_path):
    path = shard(tmp_path / "run_1-00000-of-00100", transitions(LIVED), zipped=False)
    whole = path.read_bytes()
    sizes = np.cumsum([len(framed(message(t))) for t in transitions(LIVED)])
    path.write_bytes(whole[: sizes[4] + 9])
    with pytest.raises(DataError, match=r"is incomplete: it ends within.*5 transitions can be read.*data\.partial"):
        open_reader(str(path)).rows()
    reader = open_reader(str(path), ReadOptions(partial=True))
    check_shard(reader, [Lived(1, 3), Lived(2, 1, "truncated"), Lived(3, 1, "truncated")])
    assert any("5 transitions can be read" in line for line in reader.remarks())
    path.write_bytes(gzip.compress(whole)[:-400])
    with pytest.raises(DataError, match=r"is incomplete.*transitions can be read"):
        open_reader(str(path)).rows()


def proto_example():
    """Return ``tf.train.Example`` as Google's protobuf makes it of TensorFlow's feature.proto."""
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="feature.proto", package="t", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto

    def define(where, name, *fields):
        message = where.add(name=name)
        for number, (field, kind, repeated) in enumerate(fields, 1):
            type_ = {"type": kind} if isinstance(kind, int) else {"type": kinds.TYPE_MESSAGE, "type_name": kind}
            label = kinds.LABEL_REPEATED if repeated else kinds.LABEL_OPTIONAL
            message.field.add(name=field, number=number, label=label, **type_)
        return message

    lists = {"bytes_list": kinds.TYPE_BYTES, "float_list": kinds.TYPE_FLOAT, "int64_list": kinds.TYPE_INT64}
    for name, kind in lists.items():
        define(file.message_type, name.title(), ("value", kind, True))
    define(file.message_type, "Feature", *((name, f".t.{name.title()}", False) for name in lists))
    features = define(file.message_type, "Features", ("feature", ".t.Features.FeatureEntry", True))
    pair = ("key", kinds.TYPE_STRING, False), ("value", ".t.Feature", False)
    entry = define(features.nested_type, "FeatureEntry", *pair)
    entry.options.map_entry = True
    define(file.message_type, "Example", ("features", ".t.Features", False))
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("t.Example"))


def test_a_shard_as_deepmind_defines_it(tmp_path):
    """The features of rl_unplugged/atari.py (github.com/google-deepmind/deepmind-research), by others' writers."""
    pytest.importorskip("google.protobuf")
    writer = pytest.importorskip("tensorboard.summary.writer.record_writer").RecordWriter
    frames = np.random.default_rng(0).integers(0, 256, (7, 84, 84), np.uint8)  # of one episode, and what it led to
    pngs = [imageio.imwrite("<bytes>", frame, extension=".png") for frame in frames]
    example, plain = proto_example(), io.BytesIO()
    out = writer(plain)
    for t in range(3):
        record = example()
        for name, first in (("o_t", t), ("o_tp1", t + 1)):
            record.features.feature[name].bytes_list.value.extend(pngs[first : first + 4])
        for name, value in (("a_t", 17 - t), ("a_tp1", 16 - t), ("episode_id", -(2**62))):
            record.features.feature[name].int64_list.value.append(value)
        for name, value in (("r_t", t - 1.0), ("d_t", float(t < 2)), ("episode_return", 0.0)):
            record.features.feature[name].float_list.value.append(value)
        out.write(record.SerializeToString())
    (tmp_path / "Pong").mkdir()
    (tmp_path / "Pong" / "run_1-00000-of-00100").write_bytes(gzip.compress(plain.getvalue()))
    reader = open_reader(str(tmp_path / "Pong" / "run_1-00000-of-00100"))
    assert reader.info().observation == spaces.Box(0, 255, (84, 84, 4), np.uint8)
    assert (reader.info().action, reader.info().text["game"]) == (spaces.Discrete(18), "Pong")
    rows = joined(reader.parts())
    for t in range(4):
        np.testing.assert_array_equal(rows["obs"][t], np.moveaxis(frames[t : t + 4], 0, -1))
    assert rows["action"].tolist() == [17, 16, 15, 0]
    assert rows["reward"].tolist() == [0, -1, 0, 1]
    assert rows["is_last"].tolist() == rows["is_terminal"].tolist() == [False] * 3 + [True]
