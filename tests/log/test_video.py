"""Videos: any size and channel count becomes an mp4 that plays, and tiny worlds become visible."""

import imageio_ffmpeg
import numpy as np
import pytest

from reverie.log.video import IMAGINED_COLOR, OBSERVED_COLOR, dream_video, outline_truth, write_video


def read(path):
    """Meta data and frames ``[T, H, W, 3]`` of a video file."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


@pytest.mark.parametrize("shape", [(4, 301, 257, 3), (4, 7, 7, 3), (4, 33, 47, 1), (3, 10, 10, 6), (1, 1, 1, 2)])
def test_any_shape_becomes_a_player_safe_mp4(tmp_path, shape):
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    meta, shown = read(write_video(tmp_path / "new" / "v.mp4", frames, fps=10))
    count, height, width, _ = shown.shape
    assert (count, height % 2, width % 2, max(height, width) >= 256) == (shape[0], 0, 0, True)
    assert str(meta["pix_fmt"]).startswith("yuv420p")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["v.mp4"]  # nothing half-written stays


def test_the_picture_is_the_picture(tmp_path):
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    frames[:, :4, :, 0] = 255
    frames[:, 4:, :, 2] = 255
    _, shown = read(write_video(tmp_path / "v.mp4", frames))
    np.testing.assert_allclose(shown[1, [64, 192], 128].astype(int), [(255, 0, 0), (0, 0, 255)], atol=11)


def test_a_disk_that_fills_up_leaves_the_video_that_was_there(tmp_path):
    (tmp_path / "v.mp4").write_bytes(b"of before")
    (tmp_path / ".v.part.mp4").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"ffmpeg: .*No space left on device"):
        write_video(tmp_path / "v.mp4", np.zeros((4, 8, 8, 3), np.uint8))
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("v.mp4", b"of before")]


def test_dream_video_marks_what_was_imagined_and_what_is_wrong():
    truth = np.full((1, 4, 16, 16, 3), 100, np.uint8)
    prediction = truth.astype(np.float32)
    prediction[:, 3] = 200.0
    video = dream_video(truth, prediction, context=2)
    assert (video.dtype, len(video)) == (np.uint8, 4)
    for t, color in enumerate([OBSERVED_COLOR, OBSERVED_COLOR, IMAGINED_COLOR, IMAGINED_COLOR]):
        assert (video[t] == color).all(axis=-1).any()
        assert not (video[t] == (IMAGINED_COLOR if t < 2 else OBSERVED_COLOR)).all(axis=-1).any()
    middle = video.shape[2] // 2
    assert (video[2, :, middle] == 128).all(axis=-1).any()  # no error: gray
    assert (video[3, :, middle] == 178).all(axis=-1).any()  # 100 too bright


def test_the_outline_does_not_wrap_around_the_picture():
    truth, dream = np.zeros((9, 7, 3), np.uint8), np.full((9, 7, 3), 100, np.uint8)
    truth[4:, 2:] = 200
    edge = np.zeros((9, 7), bool)
    edge[4, 2:] = edge[4:, 2] = True
    np.testing.assert_array_equal((outline_truth(dream, truth) != dream).any(-1), edge)
