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
from reverie.core.lock import lock_of
from reverie.datasets import download
from reverie.datasets import fetch as fetching
from reverie.datasets.detect import open_reader
from reverie.datasets.download import RL_UNPLUGGED, download_minari, download_shards
from reverie.datasets.fetch import Remote, fetch

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


def test_a_connection_that_breaks_is_taken_up_again(server, tmp_path):
    server.files["/a"] = CONTENT
    server.hashes["/a"] = google(CONTENT)
    server.break_after = [1000, 300_000]
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT
    assert [wanted for _, wanted in server.asked] == ["", "bytes=999-", "bytes=300998-"]


def test_what_came_is_kept_for_the_next_time(server, tmp_path, monkeypatch):
    server.files["/a"] = CONTENT
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    server.break_after = [5000, 0]
    with pytest.raises(RunError, match="The partial download is kept"):
        fetch(Remote(url=f"{server.url}/a"), tmp_path / "a")
    assert (tmp_path / ".a.part").stat().st_size == 5000
    assert not (tmp_path / "a").exists()
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT
    assert server.asked[-1][1] == "bytes=4999-"


def test_all_came_but_nobody_looked_at_it(server, tmp_path):
    """Killed between the last byte and the check: the server's checksums come with the last byte once more."""
    server.files["/a"], server.hashes["/a"] = CONTENT, google(CONTENT)
    (tmp_path / ".a.part").write_bytes(CONTENT)
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT


def test_a_server_without_ranges_begins_anew(server, tmp_path):
    server.files["/a"] = CONTENT
    server.ranges = False
    (tmp_path / ".a.part").write_bytes(b"old" * 100)
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


def test_a_part_of_another_file_is_noticed(server, tmp_path):
    server.files["/a"], server.hashes["/a"] = CONTENT, google(CONTENT)
    (tmp_path / ".a.part").write_bytes(b"x" * 5000)
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT


def test_servers_that_have_none_or_are_not_there(server, tmp_path):
    with pytest.raises(RunError, match="the server returned 404"):
        fetch(Remote(url=f"{server.url}/b"), tmp_path / "b")
    server.files["/a"], server.fail = CONTENT, [503, 500]
    assert fetch(Remote(url=f"{server.url}/a"), tmp_path / "a").read_bytes() == CONTENT
    with pytest.raises(RunError, match="cannot download"):
        fetch(Remote(url="http://127.0.0.1:9/a"), tmp_path / "c")
    with pytest.raises(ConfigError, match="the server 'localhost/x': expected a URL such as https://"):
        download_shards("Pong", 1, [0], tmp_path, "localhost/x")


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


def test_shards_come_by_https():
    """Their checksums come with them: nothing else says that they are the right ones."""
    assert RL_UNPLUGGED.startswith("https://")


def test_shards_that_there_are_not(tmp_path):
    with pytest.raises(ConfigError, match=r"run 6, shards \[0\]: expected a run of 1 to 5"):
        download_shards("Breakout", 6, [0], tmp_path)
    with pytest.raises(ConfigError, match=r"expected .* shards of 0 to 99"):
        download_shards("Breakout", 1, [100], tmp_path)


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


def test_a_dataset_is_not_there_before_it_is_whole(server, tmp_path, monkeypatch):
    root = tmp_path / "root"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(root))
    monkeypatch.setattr(fetching, "ATTEMPTS", 1)
    offer(server, write(tmp_path / "made", [buffer(e) for e in LIVED]), "D4RL/door/human-v2")
    main = next(path for path in server.files if path.endswith("main_data.hdf5"))
    listed = next(path for path in server.files if path.startswith("/api"))
    server.break_after = [10**6, 700, 0]  # the list, then the first file, twice
    with pytest.raises(RunError, match="kept"):
        download_minari("D4RL/door/human-v2", server.url)
    assert not (root / "D4RL/door/human-v2").exists()
    download_minari("D4RL/door/human-v2", server.url)
    check(open_reader("minari:D4RL/door/human-v2"), expected(LIVED))
    assert (main, "bytes=699-") in server.asked
    assert listed in [path for path, _ in server.asked]


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


def test_one_download_of_a_dataset_at_a_time(server, tmp_path, monkeypatch):
    place = tmp_path / "door-v0"
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    offer(server, write(tmp_path / "made", [buffer(e) for e in LIVED]), place.name)
    with lock_of(place), pytest.raises(RunError, match="door-v0 is in use by process"):
        download_minari(place.name, server.url)
    assert not server.asked

    def finished(path):
        (path / "data").mkdir(parents=True)
        (path / "data" / "metadata.json").write_text("")
        return lock_of(path)

    monkeypatch.setattr(download, "lock_of", finished)  # by another process, just before this one gets the lock
    assert download_minari(place.name, server.url) == place
    assert not server.asked


def test_a_folder_that_is_in_the_way(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    (tmp_path / "door-v0").mkdir()
    (tmp_path / "door-v0" / "mine.txt").write_text("x")
    with pytest.raises(RunError, match="door-v0 exists but is not a Minari dataset"):
        download_minari("door-v0", server.url)
    assert not server.asked


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


def test_lists_are_asked_for_again(server, tmp_path, monkeypatch):
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    offer(server, write(tmp_path / "made", [buffer(e) for e in LIVED]), "door-v0")
    server.fail, server.break_after = [503, 429], [5]
    download_minari("door-v0", server.url)
    check(open_reader("minari:door-v0"), expected(LIVED))
    server.fail = [503] * fetching.ATTEMPTS
    with pytest.raises(RunError, match=r"cannot download .*: the server returned 503"):
        download_minari("other-v0", server.url)


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
