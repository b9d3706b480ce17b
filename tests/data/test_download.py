"""Downloads from a server on this machine, which breaks off, lies and does no ranges when it is told to."""

from __future__ import annotations

import base64
import hashlib
import http.server
import json
import re
import threading
from pathlib import Path

import google_crc32c
import pytest

from formats import shard, transitions
from minari_files import buffer, write
from recordings import LIVED, check, expected
from reverie.commands.data import data_command
from reverie.core.errors import ConfigError, RunError
from reverie.datasets import download as fetching
from reverie.datasets.detect import open_reader
from reverie.datasets.download import Remote, download_minari, fetch

CONTENT = bytes(range(256)) * 4000


class Server(http.server.ThreadingHTTPServer):
    """Files by path, and how to behave."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}
        self.hashes: dict[str, str] = {}
        self.links: dict[str, str] = {}
        self.break_after: list[int] = []
        self.ranges = True
        self.fail: list[int] = []
        self.asked: list[tuple[str, str]] = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self):
        server, wanted = self.server, self.headers.get("Range", "")
        server.asked.append((self.path, wanted))
        if server.fail:
            self.send_error(server.fail.pop(0))
            return
        if self.path not in server.files:
            self.send_error(404)
            return
        data = server.files[self.path]
        start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.ranges else 0
        if start >= len(data) > 0:
            self.send_response(416)
            self.send_header("Content-Range", f"bytes */{len(data)}")
            self.end_headers()
            return
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(len(data) - start))
        self.send_header("ETag", f'"{hashlib.md5(data).hexdigest()}"')
        if start:
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        self._hash()
        if self.path in server.links:
            self.send_header("Link", f'<{server.links[self.path]}>; rel="next"')
        self.end_headers()
        part = data[start:]
        self.wfile.write(part[: server.break_after.pop(0)] if server.break_after else part)

    def _hash(self):
        if said := self.server.hashes.get(self.path):
            self.send_header("x-goog-hash", said)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setattr(fetching, "PAUSE", 0.0)
    monkeypatch.setattr(fetching, "PATIENCE", 10.0)
    server = Server()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


def google(data):
    crc = google_crc32c.value(data).to_bytes(4, "big")
    return f"crc32c={base64.b64encode(crc).decode()}, md5={base64.b64encode(hashlib.md5(data).digest()).decode()}"


def test_a_file(server, tmp_path):
    server.files["/a"] = CONTENT
    seen = []
    path = fetch(Remote(url=f"{server.url}/a"), tmp_path / "x/a", lambda *said: seen.append(said))
    assert path.read_bytes() == CONTENT
    assert seen[-1] == ("a", len(CONTENT), len(CONTENT))
    assert [p.name for p in path.parent.iterdir()] == ["a"]
    fetch(Remote(url=f"{server.url}/a"), path)
    assert len(server.asked) == 1  # it is there


def test_all_came_but_nobody_looked_at_it(server, tmp_path):
    """Killed between the last byte and the check: the server's checksums come with the last byte once more."""
    server.files["/a"], server.hashes["/a"] = CONTENT, google(CONTENT)
    (tmp_path / ".a.part").write_bytes(CONTENT)
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("remote", "hashes", "said"),
    [
        ({"size": 17}, "", "received 1,024,000 bytes; expected 17"),
        ({"sums": {"sha256": "0" * 64}}, "", "its sha256 is .*; expected 0000"),
        ({"sums": {"git": "0" * 40}}, "", "its git is .*; expected 0000"),
        ({}, google(b"something else"), "its crc32c is"),
        ({}, google(b"something else").partition(", ")[2], "its md5 is"),
    ],
)
def test_what_is_not_what_was_said_is_not_kept(server, tmp_path, remote, hashes, said):
    server.files["/a"], server.hashes["/a"] = CONTENT, hashes
    with pytest.raises(RunError, match=f"is damaged: {said}"):
        fetch(Remote(url=f"{server.url}/a", **remote), tmp_path / "a")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- RL Unplugged


def test_shards(server, tmp_path, capsys):
    for index in (0, 7):
        data = shard(tmp_path / "made", transitions(LIVED)).read_bytes()
        path = f"/Breakout/run_2-{index:05d}-of-00100"
        server.files[path], server.hashes[path] = data, google(data)
    folder = tmp_path / "data"
    words = ["download", "rl_unplugged:Breakout", "--run", "2", "--shards", "0", "7", "--server", server.url]
    assert data_command([*words, "--folder", str(folder)]) == 0
    said = capsys.readouterr().out.split()
    assert [Path(line).name for line in said] == ["run_2-00000-of-00100", "run_2-00007-of-00100"]
    assert open_reader(said[0]).rows() == 14 + len(LIVED)
    assert open_reader(str(folder / "Breakout")).about().text["game"] == "Breakout"


# ---------------------------------------------------------------- Minari


def offer(server, folder, name, *, pages=1):
    """A dataset as Hugging Face lists and serves it."""
    group, _, inside = name.partition("/")
    entries = [{"type": "directory", "path": f"{inside}/data"}]
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        path = f"{inside}/{file.relative_to(folder).as_posix()}".lstrip("/")
        data = file.read_bytes()
        large = {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}} if file.suffix == ".hdf5" else {}
        blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        entries.append({"type": "file", "path": path, "size": len(data), "oid": blob, **large})
        server.files[f"/datasets/farama-minari/{group}/resolve/main/{path}"] = data
    listed = f"/api/datasets/farama-minari/{group}/tree/main/{inside}?recursive=true"
    size = -(-len(entries) // pages)
    for page in range(pages):
        path = listed if page == 0 else f"{listed}&cursor={page}"
        server.files[path] = json.dumps(entries[page * size : (page + 1) * size]).encode()
        if page + 1 < pages:
            server.links[path] = f"{server.url}{listed}&cursor={page + 1}"


@pytest.mark.parametrize("name", ["D4RL/door/human-v2", "simple-v0"])
@pytest.mark.parametrize("pages", [1, 3])
def test_a_dataset(server, tmp_path, monkeypatch, capsys, name, pages):
    root, synced = tmp_path / "root", []
    monkeypatch.setattr("reverie.core.files.sync", synced.append)
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    offer(server, write(tmp_path / "made", [buffer(e) for e in LIVED]), name, pages=pages)
    assert data_command(["download", f"minari:{name}", "--server", server.url]) == 0
    assert capsys.readouterr().out.strip() == str(root / name)
    check(open_reader(f"minari:{name}"), expected(LIVED))
    assert not list(root.rglob(".*"))
    assert synced[-1] == (root / name).parent  # its name outlives a power failure
    asked = len(server.asked)
    download_minari(name, server.url)
    assert len(server.asked) == asked  # it is there


def test_a_dataset_that_changes_between_two_attempts(server, tmp_path, monkeypatch):
    """Files that had come already are replaced where they are others now, and deleted where there are none any more."""
    root, name = tmp_path / "root", "D4RL/door/human-v2"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    made = write(tmp_path / "old", [buffer(e) for e in LIVED[:1]])
    (made / "data" / "aside.txt").write_text("gone soon")
    offer(server, made, name)
    metadata = next(path for path in server.files if path.endswith("metadata.json"))
    del server.files[metadata]  # the last one
    with pytest.raises(RunError, match="the server returned 404"):
        download_minari(name, server.url)
    staged = root / "D4RL/door/.human-v2.part"
    assert sorted(p.name for p in staged.rglob("*.*")) == ["aside.txt", "main_data.hdf5"]
    offer(server, write(tmp_path / "new", [buffer(e) for e in LIVED]), name)
    download_minari(name, server.url)
    check(open_reader(f"minari:{name}"), expected(LIVED))
    assert sorted(p.name for p in (root / name).rglob("*.*")) == ["main_data.hdf5", "metadata.json"]


@pytest.mark.parametrize(
    ("listed", "said"),
    [
        (b"<html>", "did not return a list of files"),
        (b'{"error": "no"}', "did not return a list of files"),
        (b'[{"type": "file"}]', "did not return a list of files"),
        (b'[{"type": "file", "path": "other/x"}]', "lists 'other/x', which is outside the dataset"),
    ],
)
def test_lists_that_make_no_sense(server, tmp_path, monkeypatch, listed, said):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    server.files["/api/datasets/farama-minari/D4RL/tree/main/door/human-v2?recursive=true"] = listed
    with pytest.raises(RunError, match=said):
        download_minari("D4RL/door/human-v2", server.url)


def test_datasets_that_there_are_not(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    with pytest.raises(RunError, match=r"no Minari dataset 'D4RL/door/humn-v2' .*404"):
        download_minari("D4RL/door/humn-v2", server.url)
    with pytest.raises(ConfigError, match="expected a name with a version, such as"):
        download_minari("door", server.url)
    with pytest.raises(ConfigError, match="expected minari:NAME"):
        data_command(["download", "door-v0"])
    entries = [{"type": "file", "path": "door/human-v2/../../../evil", "size": 1}]
    server.files["/api/datasets/farama-minari/D4RL/tree/main/door/human-v2?recursive=true"] = json.dumps(
        entries
    ).encode()
    with pytest.raises(RunError, match="outside the dataset"):
        download_minari("D4RL/door/human-v2", server.url)
    assert not (tmp_path / "evil").exists()
