"""Stores behind URLs: in memory, and S3 over HTTP from a server on this machine that can be made to fail."""

import contextlib
import json
import socket
import socketserver
import sys
import threading
import time
import uuid

import pytest

from reverie.core.errors import ConfigError, RunError
from reverie.store import remote_objects
from reverie.store.local_objects import open_objects
from reverie.store.retry import Retrier
from reverie.store.segment import META
from reverie.store.store import ReplayStore
from reverie.store.zarr import ROOT, meta_bytes
from store_rows import COLUMNS, STREAMS, assert_rows, contents, row, small_chunks, stacked


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)
    monkeypatch.setattr(Retrier, "first_delay", 0.02)
    monkeypatch.setattr(Retrier, "longest_delay", 0.1)


def quiet(text):
    pass


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s4://bucket/replay", r"unknown URL scheme s4://. Did you mean 's3'"),
        ("gs://bucket/replay", r"pip install 'reverie-rl\[gcs\]'"),
        ("az://bucket/replay", r"pip install 'reverie-rl\[azure\]'"),
        ("s3://bucket/replay", r"pip install 'reverie-rl\[s3\]'"),
    ],
)
def test_urls_that_cannot_be_opened(url, words, monkeypatch):
    import fsspec

    for module in ("gcsfs", "adlfs", "s3fs"):
        monkeypatch.setitem(sys.modules, module, None)  # as if it were not installed
    for kind in ("gs", "az", "s3"):
        monkeypatch.delitem(sys.modules[fsspec.get_filesystem_class.__module__]._registry, kind, raising=False)
    with pytest.raises(ConfigError, match=words):
        ReplayStore(url)


@pytest.mark.parametrize("url", ["memory://x/rows", "simplecache::memory://x/rows", "reference://::{}"])
def test_a_file_system_that_keeps_nothing_gets_no_rows(url, tmp_path):
    (tmp_path / "refs.json").write_text(json.dumps({"version": 1, "refs": {META: meta_bytes(ROOT).decode()}}))
    store = ReplayStore(url.format(tmp_path / "refs.json"))
    with pytest.raises(ConfigError, match="does not keep what is written to it"):
        store.begin(COLUMNS, STREAMS, first=0)


# ---------------------------------------------------------------- S3 over HTTP


FAILED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Passing(socketserver.BaseRequestHandler):
    """Passes a connection on to the server's ``target``; its ``mode`` is "pass", "refuse", "hang" or "500"."""

    def handle(self):
        with socket.create_connection(self.server.target) as upstream:
            back = threading.Thread(target=self.pump, args=(upstream, self.request, False), daemon=True)
            back.start()
            self.pump(self.request, upstream, True)
            back.join()

    def pump(self, source, target, asking):
        try:
            while data := source.recv(65536):
                while self.server.mode == "hang":
                    time.sleep(0.02)
                if self.server.mode == "refuse":
                    break
                if self.server.mode == "500" and asking:
                    self.request.sendall(FAILED)
                    break
                target.sendall(data)
        except OSError:
            pass
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def proxy(s3_server, monkeypatch):
    import boto3

    proxy = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Passing)
    proxy.target, proxy.mode, proxy.daemon_threads = s3_server, "pass", True
    threading.Thread(target=proxy.serve_forever, args=(0.05,), daemon=True).start()
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_DEFAULT_REGION": "us-east-1",
                   "AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.server_address[1]}"}  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    hasty = {"connect_timeout": 1, "read_timeout": 1, "retries": {"max_attempts": 1}}
    monkeypatch.setitem(remote_objects.OPTIONS, "s3", {"config_kwargs": hasty})
    boto3.client("s3").create_bucket(Bucket="bucket")
    yield proxy
    proxy.mode = "pass"
    proxy.shutdown()
    proxy.server_close()


@pytest.mark.parametrize("mode", ["refuse", "500", "hang"])
def test_s3_that_fails_and_comes_back(proxy, mode, monkeypatch, said):
    """Rows wait in memory; what happens is said once when it begins and once when it is over."""
    monkeypatch.setattr(Retrier, "silence", 1.0)
    url = f"s3://bucket/{uuid.uuid4().hex}"
    store = ReplayStore(url)
    name = store.begin(COLUMNS, STREAMS)
    proxy.mode = mode
    store.extend(stacked(range(12)))
    assert not store.flush(1.5)
    assert store.writer.committed == 0
    proxy.mode = "pass"
    assert store.close(20)
    assert_rows(contents(ReplayStore(url), name)[0], stacked(range(12)))
    assert ["cannot write to the store" in said[0], "no rows were lost" in said[-1], len(said)] == [True, True, 2]


def test_s3_goes_on_and_is_away_at_the_start(proxy):
    url = f"s3://bucket/{uuid.uuid4().hex}"
    store = ReplayStore(url)
    first = store.begin(COLUMNS, STREAMS)
    store.extend(stacked(range(12)))
    name = store.begin(COLUMNS, STREAMS, first=9, parent=(first, 9))
    store.add(row(9, life=1))
    assert store.close(20)
    found = ReplayStore(url)
    assert [(start, stop) for _, start, stop in found.ancestor_parts(name)] == [(0, 9), (9, 10)]
    assert_rows(contents(found, name)[0], stacked([9], life=1))
    proxy.mode = "refuse"
    with pytest.raises(RunError, match=r"cannot be used: .*Check the address and the network"):
        ReplayStore(url)


def test_an_object_larger_than_its_limit_is_refused():
    objects = open_objects("memory://limited/store")
    objects.put("x", b"12345")
    assert objects.get("x", 5) == b"12345"
    with pytest.raises(RunError, match="limited/store/x has more than 4 bytes"):
        objects.get("x", 4)
