"""Downloads from servers on this machine that break off, lie, or change what they offer."""

import hashlib
import http.client
import http.server
import itertools
import json
import re
import socket
import struct
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from formats import shard, transitions
from minari_files import buffer, write
from recordings import LIVED, check, expected
from reverie.cli.data import data_command
from reverie.core.errors import ConfigError, RunError
from reverie.core.lock import close_inherited_locks
from reverie.datasets import download as module
from reverie.datasets.download import ATTEMPTS, RESUME_ADVICE, RemoteFile, download_minari, fetch
from reverie.datasets.format_detection import open_reader

OLD = bytes(range(256)) * 40
NEW = bytes(reversed(range(256))) * 40


class Server:
    """Answers the n-th connection with the n-th of ``script``, and all further ones with the last.

    An answer is called with the first byte of the wanted range (None without one) and ``If-Range``, and returns bytes.
    """

    def __init__(self, *script):
        self.script = script
        self.asked, self.stalled = [], []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/a"
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        for number in itertools.count():
            connection, _ = self.listener.accept()
            with connection, connection.makefile("rb") as file:
                if not file.readline():
                    return  # the end of the test
                headers = http.client.parse_headers(file)
                start = re.search(r"bytes=(\d+)-", headers.get("Range", ""))
                self.asked.append((start and int(start[1]), headers.get("If-Range")))
                answer = self.script[min(number, len(self.script) - 1)]
                data, how = answer(*self.asked[-1]), getattr(answer, "how", "")
                connection.sendall(data)
                if how == "stall":
                    self.stalled.append(connection.dup())
                elif how == "reset":  # without the usual farewell
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    def close(self):
        for connection in self.stalled:
            connection.close()
        socket.create_connection(self.listener.getsockname()).close()
        self.thread.join()
        self.listener.close()


@pytest.fixture
def serve(monkeypatch):
    monkeypatch.setattr(module, "PAUSE", 0.0)
    monkeypatch.setattr(module, "BLOCK", 4000)  # several to a file
    servers = []

    def started(*script):
        servers.append(Server(*script))
        return servers[-1]

    yield started
    for server in servers:
        server.close()


def answer(body=b"", status="200 OK", **headers):
    fields = {"Content-Length": len(body), **{name.replace("_", "-"): value for name, value in headers.items()}}
    lines = [f"{name}: {value}" for name, value in fields.items() if value is not None]
    return "\r\n".join([f"HTTP/1.1 {status}", *lines, "\r\n"]).encode() + body


def offers(content=OLD, tag='"old"', *, first=None, how="", heeds=False, **headers):
    """A server of ``content``, which sends ``first`` bytes only."""

    def called(start, condition):
        if start is None or (heeds and condition and condition != tag):
            said = answer(content, ETag=tag, **headers)
        elif start >= len(content):
            said = answer(status="416 Range Not Satisfiable", Content_Range=f"bytes */{len(content)}")
        else:
            place = f"bytes {start}-{len(content) - 1}/{len(content)}"
            said = answer(content[start:], "206 Partial Content", ETag=tag, Content_Range=place, **headers)
        head, _, body = said.partition(b"\r\n\r\n")
        return head + b"\r\n\r\n" + body[:first]

    called.how = how
    return called


def says(*parts, **headers):
    return lambda start, condition: answer(*parts, **headers)


def came(path, content=OLD):
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("how", ["", "reset", "stall"])
def test_what_came_before_a_connection_broke_is_kept(serve, tmp_path, monkeypatch, how):
    monkeypatch.setattr(module, "PATIENCE", 0.2 if how == "stall" else 10.0)
    server = serve(offers(first=3000, how=how), offers())
    came(fetch(RemoteFile(url=server.url), tmp_path / "a"))
    if how != "stall":  # a slow machine may need further attempts
        assert server.asked == [(None, None), (2999, '"old"')]


CHUNKED = b'HTTP/1.1 200 OK\r\nETag: "old"\r\nTransfer-Encoding: chunked\r\n\r\nfa0\r\n'
"""The head of an answer without ``Content-Length``."""


@pytest.mark.parametrize(
    "first",
    [
        lambda start, condition: b"",
        says(b"", "503 Service Unavailable"),
        says(b"", "429 Too Many Requests"),
        lambda start, condition: b"SSH-2.0-OpenSSH_9.6\r\n",
        offers(Content_Length=len(OLD) + 500),
        lambda start, condition: CHUNKED + OLD[:4000],
    ],
    ids=["nothing", "503", "429", "no-http", "length-too-large", "chunks-cut"],
)
def test_what_another_attempt_mends(serve, tmp_path, first):
    server = serve(first, first, offers())
    came(fetch(RemoteFile(url=server.url, size=len(OLD)), tmp_path / "a"))


def test_attempts_that_bring_nothing_end(serve, tmp_path):
    server = serve(offers(first=1000), offers(first=0))
    with pytest.raises(RunError, match=f"cannot download .*: the connection was closed.*{re.escape(RESUME_ADVICE)}"):
        fetch(RemoteFile(url=server.url), tmp_path / "a")
    assert len(server.asked) == 1 + ATTEMPTS
    assert (tmp_path / ".a.part").read_bytes() == OLD[:1000]
    came(fetch(RemoteFile(url=serve(offers()).url), tmp_path / "a"))


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (offers(first=5000), offers(NEW, '"new"', heeds=True)),
        (offers(first=5000), offers(NEW, '"new"')),  # it does not know If-Range
        (offers(first=5000, tag=None), offers(NEW, None)),
        (offers(first=5000, tag='W/"old"'), offers(NEW, 'W/"old"')),  # such tags do not promise the same bytes
        (offers(first=5000), offers(NEW[:100], '"new"')),
        (offers(first=5000), lambda start, _: answer(NEW) if start is None else answer(b"", "416 No")),
    ],
    ids=["if-range", "without-if-range", "no-tags", "weak-tags", "shorter", "416"],
)
@pytest.mark.parametrize("again", [False, True])
def test_two_versions_are_never_glued(serve, tmp_path, monkeypatch, before, after, again):
    expected = after(None, None).partition(b"\r\n\r\n")[2]
    if not again:
        came(fetch(RemoteFile(url=serve(before, after).url), tmp_path / "a"), expected)
        return
    with pytest.raises(RunError, match="cannot download"):
        fetch(RemoteFile(url=serve(before, says(b"", "500 Gone")).url), tmp_path / "a")
    assert (tmp_path / ".a.part").read_bytes() == OLD[:5000]
    came(fetch(RemoteFile(url=serve(after).url), tmp_path / "a"), expected)


def test_an_interruption_at_any_line(serve, tmp_path):
    """Ctrl-C before each line of ``download.py`` that is executed: the next attempt always ends with the right file."""
    server = serve(offers())

    def interrupted(path, number):
        """Whether it was; not if there are fewer lines."""
        lines = itertools.count()

        def trace(frame, event, arg):
            if frame.f_code.co_filename != module.__file__:
                return None
            if event == "line" and next(lines) == number:
                raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            fetch(RemoteFile(url=server.url), path)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    for number in itertools.count():
        path = tmp_path / str(number) / "a"
        if not interrupted(path, number):
            break
        close_inherited_locks()  # an error in the very line of "with", as here, leaves it without closing the lock
        assert not path.exists() or path.read_bytes() == OLD
        came(fetch(RemoteFile(url=server.url), path))
    assert number > 50


@pytest.mark.parametrize(
    ("remote", "said"),
    [
        ({"size": 17}, "received 10,240 bytes; expected 17"),
        ({"checksums": {"sha256": "0" * 64}}, "its sha256 is .*; expected 0000"),
        ({"checksums": {"git": "0" * 40}}, "its git is .*; expected 0000"),
    ],
)
def test_what_is_not_what_was_said_is_not_kept(serve, tmp_path, remote, said):
    with pytest.raises(RunError, match=f"is damaged: {said}"):
        fetch(RemoteFile(url=serve(offers()).url, **remote), tmp_path / "a")
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- whole datasets


@pytest.fixture
def hub():
    """A server of files by path, with links to the next page."""
    hub = SimpleNamespace(files={}, links={}, asked=[])

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            hub.asked.append(self.path)
            if self.path not in hub.files:
                self.send_error(404)
                return
            self.send_response(200)
            self.send_header("Content-Length", str(len(hub.files[self.path])))
            if self.path in hub.links:
                self.send_header("Link", f'<{hub.links[self.path]}>; rel="next"')
            self.end_headers()
            self.wfile.write(hub.files[self.path])

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        server.shutdown()


def test_shards(hub, tmp_path, capsys):
    for index in (0, 7):
        data = shard(tmp_path / "made", transitions(LIVED)).read_bytes()
        hub.files[f"/Breakout/run_2-{index:05d}-of-00100"] = data
    words = ["download", "rl_unplugged:Breakout", "--run", "2", "--shards", "0", "7", "--server", hub.url]
    assert data_command([*words, "--folder", str(tmp_path / "data")]) == 0
    said = capsys.readouterr().out.split()
    assert [Path(line).name for line in said] == ["run_2-00000-of-00100", "run_2-00007-of-00100"]
    assert open_reader(said[0]).rows() == 14 + len(LIVED)
    assert open_reader(str(tmp_path / "data/Breakout")).info().text["game"] == "Breakout"


def offer(hub, folder, name, *, pages=1):
    """A dataset as Hugging Face lists and serves it."""
    group, _, inside = name.partition("/")
    entries = [{"type": "directory", "path": f"{inside}/data"}]
    for file in sorted(p for p in folder.rglob("*") if p.is_file()):
        path, data = f"{inside}/{file.relative_to(folder).as_posix()}".lstrip("/"), file.read_bytes()
        large = {"lfs": {"oid": hashlib.sha256(data).hexdigest(), "size": len(data)}} if file.suffix == ".hdf5" else {}
        blob = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
        entries.append({"type": "file", "path": path, "size": len(data), "oid": blob, **large})
        hub.files[f"/datasets/farama-minari/{group}/resolve/main/{path}"] = data
    listed = f"/api/datasets/farama-minari/{group}/tree/main/{inside}?recursive=true"
    paths = [listed, *(f"{listed}&cursor={page}" for page in range(1, pages))]
    for page, path in enumerate(paths):
        hub.files[path] = json.dumps(entries[page::pages]).encode()
    hub.links |= {path: hub.url + after for path, after in itertools.pairwise(paths)}


@pytest.fixture
def root(tmp_path, monkeypatch):
    """Where Minari keeps its datasets."""
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "root"))
    return tmp_path / "root"


@pytest.mark.parametrize(("name", "pages"), [("D4RL/door/human-v2", 3), ("simple-v0", 1)])
def test_a_dataset(hub, root, tmp_path, monkeypatch, capsys, name, pages):
    synced = []
    monkeypatch.setattr("reverie.core.files.fsync_path", synced.append)
    offer(hub, write(tmp_path / "made", [buffer(e) for e in LIVED]), name, pages=pages)
    assert data_command(["download", f"minari:{name}", "--server", hub.url]) == 0
    assert capsys.readouterr().out.strip() == str(root / name)
    check(open_reader(f"minari:{name}"), expected(LIVED))
    assert not list(root.rglob(".*"))
    assert synced[-1] == (root / name).parent  # its name outlives a power failure
    asked = len(hub.asked)
    download_minari(name, hub.url)
    assert len(hub.asked) == asked  # it is there


def test_a_dataset_that_changes_between_two_attempts(hub, root, tmp_path):
    """Files that had come already are replaced where they are others now, and deleted where there are none any more."""
    name = "D4RL/door/human-v2"
    made = write(tmp_path / "old", [buffer(e) for e in LIVED[:1]])
    (made / "data" / "aside.txt").write_text("gone soon")
    offer(hub, made, name)
    del hub.files[next(path for path in hub.files if path.endswith("metadata.json"))]  # the last one
    with pytest.raises(RunError, match="the server returned 404"):
        download_minari(name, hub.url)
    assert sorted(p.name for p in (root / "D4RL/door/.human-v2.part").rglob("*.*")) == ["aside.txt", "main_data.hdf5"]
    offer(hub, write(tmp_path / "new", [buffer(e) for e in LIVED]), name)
    download_minari(name, hub.url)
    check(open_reader(f"minari:{name}"), expected(LIVED))
    assert sorted(p.name for p in (root / name).rglob("*.*")) == ["main_data.hdf5", "metadata.json"]


@pytest.mark.usefixtures("root")
def test_datasets_that_there_are_not(hub, tmp_path):
    with pytest.raises(RunError, match=r"no Minari dataset 'D4RL/door/humn-v2' .*404"):
        download_minari("D4RL/door/humn-v2", hub.url)
    with pytest.raises(ConfigError, match="a name with a version"):
        download_minari("door", hub.url)
    with pytest.raises(ConfigError, match="expected minari:NAME"):
        data_command(["download", "door-v0"])
    entries = [{"type": "file", "path": "door/human-v2/../../../evil", "size": 1}]
    hub.files["/api/datasets/farama-minari/D4RL/tree/main/door/human-v2?recursive=true"] = json.dumps(entries).encode()
    with pytest.raises(RunError, match="outside the dataset"):
        download_minari("D4RL/door/human-v2", hub.url)
    assert not (tmp_path / "evil").exists()
