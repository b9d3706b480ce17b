"""Videos: any size and channel count becomes an mp4 that plays, and tiny worlds become visible."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import imageio_ffmpeg
import numpy as np
import pytest

from reverie.log.video import (
    IMAGINED,
    OBSERVED,
    border,
    caption,
    dream_video,
    pad_even,
    palette,
    pictures,
    shrink,
    tile,
    to_rgb,
    upscale,
    write_video,
)


def read(path: Path) -> tuple[dict[str, object], np.ndarray]:
    """Meta data and frames ``[T, H, W, 3]`` of a video file."""
    reader = imageio_ffmpeg.read_frames(str(path))
    meta = next(reader)
    width, height = meta["size"]
    return meta, np.stack([np.frombuffer(frame, np.uint8).reshape(height, width, 3) for frame in reader])


@pytest.mark.parametrize("shape", [(4, 301, 257, 3), (4, 7, 7, 3), (4, 33, 47, 1), (3, 10, 10, 6), (1, 1, 1, 2)])
def test_any_shape_becomes_a_player_safe_mp4(tmp_path: Path, shape: tuple[int, ...]) -> None:
    frames = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    meta, shown = read(write_video(tmp_path / "new" / "v.mp4", frames, fps=10))
    assert shown.shape[0] == shape[0]
    assert shown.shape[1] % 2 == shown.shape[2] % 2 == 0
    assert max(shown.shape[1:3]) >= 256
    assert str(meta["pix_fmt"]).startswith("yuv420p")
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["v.mp4"]  # nothing half-written stays


@pytest.mark.parametrize(("count", "fps"), [(4, 2), (15, 5), (200, 30)])
def test_short_films_are_slower(tmp_path: Path, count: int, fps: int) -> None:
    path = write_video(tmp_path / "short.mp4", np.zeros((count, 8, 8, 3), np.uint8))
    assert next(imageio_ffmpeg.read_frames(str(path)))["fps"] == fps


def test_the_picture_is_the_picture(tmp_path: Path) -> None:
    frames = np.zeros((2, 8, 8, 3), np.uint8)
    frames[:, :4, :, 0] = 255
    frames[:, 4:, :, 2] = 255
    _, shown = read(write_video(tmp_path / "v.mp4", frames))
    assert np.abs(shown[1, 64, 128].astype(int) - (255, 0, 0)).max() < 12
    assert np.abs(shown[1, 192, 128].astype(int) - (0, 0, 255)).max() < 12


@pytest.mark.parametrize("shape", [(4, 301, 257, 3), (4, 7, 7, 3), (4, 33, 47, 1), (3, 10, 10, 6)])
@pytest.mark.parametrize("most", [5, 255])
def test_pictures_are_those_of_the_whole_film(shape: tuple[int, ...], most: int) -> None:
    """Symbols are stretched by the largest of all frames, wherever it is."""
    frames = np.random.default_rng(0).integers(0, most, shape, dtype=np.uint8)
    frames[-1, 0, 0, 0] = most
    np.testing.assert_array_equal(np.stack(list(pictures(frames))), pad_even(upscale(to_rgb(frames))))


@pytest.mark.parametrize("channels", [1, 3, 6])
def test_pictures_need_the_memory_of_one(channels: int) -> None:
    frames = np.full((64, 64, 64, channels), 200, np.uint8)
    tracemalloc.start()
    try:
        shown = sum(picture.nbytes for picture in pictures(frames))
        assert tracemalloc.get_traced_memory()[1] < shown / 10
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "frames", [np.zeros((0, 8, 8, 3), np.uint8), np.zeros((2, 8, 8), np.uint8), np.zeros((2, 8, 8, 3))]
)
def test_what_is_no_video_is_refused(tmp_path: Path, frames: np.ndarray) -> None:
    with pytest.raises(ValueError, match="expected non-empty uint8"):
        write_video(tmp_path / "v.mp4", frames)
    assert not list(tmp_path.iterdir())


def test_a_disk_that_fills_up_leaves_the_video_that_was_there(tmp_path: Path) -> None:
    (tmp_path / "v.mp4").write_bytes(b"of before")
    (tmp_path / ".v.part.mp4").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"ffmpeg: .*No space left on device.*/v.mp4'"):
        write_video(tmp_path / "v.mp4", np.zeros((4, 8, 8, 3), np.uint8))
    assert [p.name for p in tmp_path.iterdir()] == ["v.mp4"]
    assert (tmp_path / "v.mp4").read_bytes() == b"of before"


def test_one_channel_is_grey_and_three_stay() -> None:
    grey = np.full((1, 2, 2, 1), 100, np.uint8)
    assert (to_rgb(grey) == 100).all()
    rgb = np.arange(12, dtype=np.uint8).reshape(1, 2, 2, 3) + 200
    assert (to_rgb(rgb) == rgb).all()


def test_planes_get_colours_of_their_own() -> None:
    planes = np.zeros((1, 1, 5, 4), np.uint8)
    planes[0, 0, range(4), range(4)] = 1  # plane c lights pixel c; pixel 4 stays dark
    shown = to_rgb(planes)[0, 0]
    assert (shown[:4] == (palette(4) * 255).astype(np.uint8)).all()
    assert (shown[4] == 0).all()
    assert len({tuple(colour) for colour in shown.tolist()}) == 5


def test_symbols_are_stretched_and_light_is_not() -> None:
    assert to_rgb(np.array([[[[0, 5, 10]]]], np.uint8)).tolist() == [[[[0, 127, 255]]]]
    assert to_rgb(np.array([[[[0, 5, 200]]]], np.uint8)).tolist() == [[[[0, 5, 200]]]]
    assert to_rgb(np.zeros((1, 2, 2, 3), np.uint8)).max() == 0


def test_upscale_is_by_a_whole_factor() -> None:
    frames = np.arange(7 * 5, dtype=np.uint8).reshape(1, 7, 5, 1)
    large = upscale(frames, 256)
    assert large.shape == (1, 259, 185, 1)
    assert (large[:, ::37, ::37] == frames).all()
    assert upscale(np.zeros((1, 300, 20, 3), np.uint8)).shape == (1, 300, 20, 3)


@pytest.mark.parametrize(
    ("size", "side", "expected"), [((400, 600), 256, (171, 256)), ((600, 3), 6, (6, 1)), ((9, 8), 9, (9, 8))]
)
def test_shrink_keeps_the_shape(size: tuple[int, int], side: int, expected: tuple[int, int]) -> None:
    small = shrink(np.full((*size, 3), 77, np.uint8), side)
    assert small.shape == (*expected, 3)
    assert (small == 77).all()


def test_pad_even_border_and_tile() -> None:
    frames = np.full((2, 3, 5, 3), 9, np.uint8)
    assert pad_even(frames).shape == (2, 4, 6, 3)
    framed = border(frames, [(1, 2, 3), (4, 5, 6)], width=2)
    assert framed.shape == (2, 7, 9, 3)
    assert framed[0, 0, 0].tolist() == [1, 2, 3]
    assert framed[1, 3, -1].tolist() == [4, 5, 6]
    assert (framed[:, 2:-2, 2:-2] == 9).all()
    assert tile(np.stack([frames, frames, frames]), gap=4).shape == (2, 3, 3 * 5 + 2 * 4, 3)
    assert caption("truth", 50).shape == (22, 50, 3)


def test_dream_video_marks_what_was_imagined_and_what_is_wrong() -> None:
    truth = np.full((1, 4, 16, 16, 3), 100, np.uint8)
    prediction = truth.astype(np.float32)
    prediction[:, 3] = 200.0
    video = dream_video(truth, prediction, context=2)
    assert video.dtype == np.uint8
    assert video.shape[0] == 4
    for t, colour in enumerate([OBSERVED, OBSERVED, IMAGINED, IMAGINED]):
        assert (video[t] == colour).all(axis=-1).any()
        assert not (video[t] == (IMAGINED if t < 2 else OBSERVED)).all(axis=-1).any()
    middle = video.shape[2] // 2
    assert (video[2, :, middle] == 128).all(axis=-1).any()  # no error: grey
    assert (video[3, :, middle] == 178).all(axis=-1).any()  # 100 too bright
