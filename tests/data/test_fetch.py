"""One file from servers on this machine that break off, lie, or change what they offer."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import sys
import threading
from pathlib import Path

import pytest

from reverie.core.errors import RunError
from reverie.core.lock import forget, lock_of
from reverie.datasets import download as module
from reverie.datasets.download import ATTEMPTS, KEPT, Remote, fetch

OLD = bytes(range(256)) * 40
NEW = bytes(reversed(range(256))) * 40


class Server:
    """Answers the n-th connection with the n-th of ``script``, and all further ones with the last.

    An answer is called with the first byte of the wanted range (None without one) and ``If-Range``, and returns bytes.
    """

    def __init__(self, *script):
        self.script = script
        self.asked: list[tuple[int | None, str | None]] = []
        self.stalled: list[socket.socket] = []
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}/a"
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self):
        for number in itertools.count():
            connection, _ = self.listener.accept()
            with connection:
                head = b""
                while not head.endswith(b"\r\n\r\n"):
                    if not (more := connection.recv(4096)):
                        return  # the end of the test
                    head += more
                start = re.search(rb"Range: bytes=(\d+)-", head)
                condition = re.search(rb"If-range: (.*)\r", head, re.IGNORECASE)
                self.asked.append((start and int(start[1]), condition and condition[1].decode()))
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


def offers(content=OLD, tag='"old"', *, first=None, how="", heeds=False, length="right", **headers):
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


def check(path, content=OLD):
    assert path.read_bytes() == content
    assert [p.name for p in path.parent.iterdir()] == [path.name]


@pytest.mark.parametrize("how", ["", "reset", "stall"])
def test_what_came_before_a_connection_broke_is_kept(serve, tmp_path, monkeypatch, how):
    monkeypatch.setattr(module, "PATIENCE", 0.2 if how == "stall" else 10.0)
    server = serve(offers(first=3000, how=how), offers())
    check(fetch(Remote(url=server.url), tmp_path / "a"))
    if how != "stall":  # a slow machine may need further attempts
        assert server.asked == [(None, None), (2999, '"old"')]


def plain(rest):
    """Without ``Content-Length``: it ends where the connection does."""
    return lambda start, condition: b"HTTP/1.1 200 OK\r\n" + rest


@pytest.mark.parametrize(
    "first",
    [
        lambda start, condition: b"",
        says(b"", "500 Internal Server Error"),
        says(b"", "503 Service Unavailable"),
        says(b"", "429 Too Many Requests"),
        lambda start, condition: b"SSH-2.0-OpenSSH_9.6\r\n",
        offers(Content_Length=len(OLD) + 500),
        plain(b'ETag: "old"\r\nTransfer-Encoding: chunked\r\n\r\nfa0\r\n' + OLD[:4000]),
        plain(b'ETag: "old"\r\n\r\n' + OLD[:777]),
    ],
    ids=["nothing", "500", "503", "429", "no-http", "length-too-large", "chunks-cut", "cut-without-length"],
)
def test_what_another_attempt_mends(serve, tmp_path, first):
    server = serve(first, first, offers())
    check(fetch(Remote(url=server.url, size=len(OLD)), tmp_path / "a"))


def test_attempts_that_bring_nothing_end(serve, tmp_path):
    server = serve(offers(first=1000), offers(first=0))
    with pytest.raises(RunError, match=f"cannot download .*: the connection was closed.*{re.escape(KEPT)}"):
        fetch(Remote(url=server.url), tmp_path / "a")
    assert len(server.asked) == 1 + ATTEMPTS
    assert (tmp_path / ".a.part").read_bytes() == OLD[:1000]
    check(fetch(Remote(url=serve(offers()).url), tmp_path / "a"))


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ("404 Not Found", "the server returned 404 Not Found"),
        ("204 No Content", "the server returned 204 No Content"),
    ],
)
def test_what_no_attempt_mends(serve, tmp_path, status, said):
    server = serve(says(b"", status, Content_Length=None))
    with pytest.raises(RunError, match=said):
        fetch(Remote(url=server.url), tmp_path / "a")
    assert len(server.asked) == 1
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- versions


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (offers(first=5000), offers(NEW, '"new"', heeds=True)),
        (offers(first=5000), offers(NEW, '"new"')),  # it does not know If-Range
        (offers(first=5000, tag=None), offers(NEW, None)),
        (offers(first=5000, tag='W/"old"'), offers(NEW, 'W/"old"')),  # such tags do not promise the same bytes
        (offers(first=5000, tag=None, Last_Modified="Mon"), offers(NEW, None, Last_Modified="Tue")),
        (offers(first=5000), offers(NEW[:100], '"new"')),
        (offers(first=5000), lambda start, _: answer(NEW) if start is None else answer(b"", "416 No")),
    ],
    ids=["if-range", "without-if-range", "no-tags", "weak-tags", "dates", "shorter", "416"],
)
@pytest.mark.parametrize("again", [False, True])
def test_two_versions_are_never_glued(serve, tmp_path, monkeypatch, before, after, again):
    expected = answer_body(after(None, None))
    if not again:
        check(fetch(Remote(url=serve(before, after).url), tmp_path / "a"), expected)
        return
    server = serve(before, says(b"", "500 Gone"))
    with pytest.raises(RunError, match="cannot download"):
        fetch(Remote(url=server.url), tmp_path / "a")
    assert (tmp_path / ".a.part").read_bytes() == OLD[:5000]
    check(fetch(Remote(url=serve(after).url), tmp_path / "a"), expected)


def answer_body(said):
    return said.partition(b"\r\n\r\n")[2]


def test_a_range_that_was_not_asked_for_is_not_taken(serve, tmp_path):
    wrong = answer(OLD[:100], "206 Partial Content", ETag='"old"', Content_Range=f"bytes 0-99/{len(OLD)}")
    server = serve(offers(first=5000), lambda start, condition: wrong, offers())
    check(fetch(Remote(url=server.url), tmp_path / "a"))
    assert server.asked == [(None, None), (4999, '"old"'), (None, None)]


# ---------------------------------------------------------------- interruptions


def test_an_interruption_at_any_line(serve, tmp_path):
    """Ctrl-C before each line of ``download.py`` that is executed: the next attempt always ends with the right file."""
    server = serve(offers())

    def interrupted(path: Path, number: int) -> bool:
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
            fetch(Remote(url=server.url), path)
        except KeyboardInterrupt:
            return True
        finally:
            sys.settrace(None)
        return False

    for number in itertools.count():
        path = tmp_path / str(number) / "a"
        if not interrupted(path, number):
            break
        forget()  # an error in the very line of "with", as here, leaves it without closing the lock
        assert not path.exists() or path.read_bytes() == OLD
        check(fetch(Remote(url=server.url), path))
    assert number > 50


def test_one_download_of_a_file_at_a_time(serve, tmp_path):
    server = serve(offers())
    with lock_of(tmp_path / "a"), pytest.raises(RunError, match="is in use by process"):
        fetch(Remote(url=server.url), tmp_path / "a")
    assert not server.asked
    check(fetch(Remote(url=server.url), tmp_path / "a"))


def test_a_file_is_on_the_disk_before_it_takes_its_place(serve, tmp_path, monkeypatch):
    """Otherwise a power failure could leave a file of zeros under the final name."""
    calls, replace = [], os.replace
    monkeypatch.setattr("reverie.core.files.sync", lambda path: calls.append(("sync", path.name, path.is_dir())))
    monkeypatch.setattr(os, "replace", lambda a, b: (calls.append((a.read_bytes() == OLD, b.name)), replace(a, b)))
    check(fetch(Remote(url=serve(offers()).url), tmp_path / "a"))
    assert calls == [("sync", ".a.part", False), (True, "a"), ("sync", tmp_path.name, True)]
