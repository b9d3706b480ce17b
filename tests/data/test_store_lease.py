"""One run at a time writes to a store behind a URL: leases in memory and in an S3 server, by a clock that is set."""

import json
import os
import subprocess
import sys
import threading
import uuid

import pytest

from reverie.core.errors import RunError
from reverie.store import lease
from reverie.store.lease import EXPIRES, RENEWS, Owner
from reverie.store.objects import LEASE, LocalObjects
from reverie.store.places import open_objects
from reverie.store.store import Store
from store_rows import COLUMNS, STREAMS, assert_rows, contents, small_chunks, stacked


class Clock:
    def __init__(self):
        self.now = 1e9

    def __call__(self):
        return self.now


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    small_chunks(monkeypatch)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def said():
    return []


@pytest.fixture
def url(request):
    if getattr(request, "param", "memory") == "s3":
        request.getfixturevalue("bucket")
        return f"s3://leases/{uuid.uuid4().hex}"
    return f"memory://{uuid.uuid4().hex}/replay"


anywhere = pytest.mark.parametrize("url", ["memory", "s3"], indirect=True)


@pytest.fixture(scope="module")
def server():
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    server = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture
def bucket(server, monkeypatch):
    import boto3

    for name, value in {"ACCESS_KEY_ID": "a", "SECRET_ACCESS_KEY": "b", "DEFAULT_REGION": "us-east-1"}.items():
        monkeypatch.setenv(f"AWS_{name}", value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", server)
    boto3.client("s3").create_bucket(Bucket="leases")


def opened(url, clock, said, run, host="a", pid=None):
    """A store as the process ``pid`` on ``host`` has it."""
    store = Store(url, say=said.append, run=run)
    lease = store.lease
    lease.clock = clock
    lease.me = Owner(id=uuid.uuid4().hex, run=run, host=host, machine=host, pid=pid or os.getpid())
    return store


def owner_of(url):
    return Owner(**json.loads(open_objects(url).get(LEASE)))


@anywhere
def test_one_run_at_a_time(url, clock, said):
    first, second = (opened(url, clock, said, run, host) for run, host in (("/runs/one", "a"), ("/runs/two", "b")))
    assert LEASE not in first.objects.sizes()
    first.begin(COLUMNS, STREAMS)
    first.extend(stacked(range(10)))
    assert first.flush(10)
    clock.now += 5
    with pytest.raises(
        RunError,
        match=rf"is in use by the run /runs/one \(process {os.getpid()} on host a\), which renewed its lease 5 s ago."
        r" Wait until it has finished, or choose another store with replay.store. If that run is dead, try again in "
        "115 s",
    ):
        second.begin(COLUMNS, STREAMS)
    assert [s.name for s in Store(url, say=said.append).segments] == ["0"]
    first.extend(stacked(range(10, 12)))
    assert first.close(10)
    assert LEASE not in first.objects.sizes()
    assert second.begin(COLUMNS, STREAMS) == "1"  # what was written since it was opened is there
    second.extend(stacked(range(3), life=1))
    assert second.close(10)
    found = Store(url, say=said.append)
    assert_rows(contents(found, "0")[0], stacked(range(12)))
    assert_rows(contents(found, "1")[0], stacked(range(3), life=1))
    assert not said


def test_a_lease_is_renewed_and_ends_by_itself(url, clock, said):
    first, second = (opened(url, clock, said, run, host) for run, host in (("/runs/one", "a"), ("/runs/two", "b")))
    first.begin(COLUMNS, STREAMS)
    since = clock.now
    for _ in range(3):
        clock.now += RENEWS - 1
        first.lease.hold()
        assert owner_of(url).time == clock.now - RENEWS + 1  # not yet
        clock.now += 1
        first.lease.hold()
        assert (owner_of(url).time, owner_of(url).since) == (clock.now, since)
    clock.now += EXPIRES - 0.1
    with pytest.raises(RunError, match="is in use by"):
        second.begin(COLUMNS, STREAMS)
    clock.now += 0.2
    second.begin(COLUMNS, STREAMS)
    assert said == [
        f"the store {second.objects.where}: took over the lease of the run /runs/one (process {os.getpid()} on host "
        f"a), last renewed {EXPIRES:.0f} s ago"
    ]
    clock.now += 7
    first.extend(stacked(range(10)))
    with pytest.raises(RunError, match=r"was taken over by the run /runs/two .* 7 s ago: .* This run no longer writes"):
        first.flush(10)
    assert first.committed == 0
    with pytest.raises(RunError, match="was taken over"):  # the run learns of it when it adds rows
        first.extend(stacked(range(10, 20)))
    second.extend(stacked(range(5), life=1))
    assert second.close(10)
    found = Store(url, say=said.append)
    assert [(s.name, s.rows) for s in found.segments] == [("0", 0), ("1", 5)]
    assert not [name for name in found.objects.sizes("0") if "/c." in name]  # no file of its rows, either
    with pytest.raises(RunError, match="was taken over"):
        first.close(10)


def test_an_owner_that_nobody_replaced_goes_on(url, clock, said):
    store = opened(url, clock, said, "/runs/one")
    store.begin(COLUMNS, STREAMS)
    clock.now += 10 * EXPIRES  # as when the computer slept
    store.extend(stacked(range(10)))
    assert store.flush(10)
    assert owner_of(url).time == clock.now
    store.objects.delete([LEASE])  # whoever cleaned up
    store.extend(stacked(range(10, 20)))
    assert store.flush(10)
    assert owner_of(url).id == store.lease.me.id
    assert store.close(10)


def test_a_run_that_is_resumed_takes_its_own(url, clock, said):
    """In its folder on this machine at once; elsewhere as soon as it says which rows it goes on with."""
    first = opened(url, clock, said, "/runs/one", "a")
    first.begin(COLUMNS, STREAMS)
    first.extend(stacked(range(10)))
    assert first.flush(10)
    here = opened(url, clock, said, "/runs/one", "a", pid=1)
    assert here.resume("0", 10, COLUMNS, STREAMS) == 10
    moved = opened(url, clock, said, "/mnt/elsewhere", "b")
    with pytest.raises(RunError, match="is in use by the run /runs/one"):
        moved.claim()
    with pytest.raises(RunError, match="is in use by the run /runs/one"):
        moved.claim("of another store")
    assert moved.resume("0", 10, COLUMNS, STREAMS) == 10
    moved.extend(stacked(range(10, 12)))
    for old in (first, here):
        old.extend(stacked(range(10, 20), life=1))
        with pytest.raises(RunError, match="was taken over by the run /mnt/elsewhere"):
            old.flush(10)
    assert moved.close(10)
    assert_rows(contents(Store(url, say=said.append), "0")[0], stacked(range(12)))


def test_a_process_that_is_gone(url, clock, said):
    gone = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    first = opened(url, clock, said, "/runs/one", pid=int(gone.stdout))
    first.lease.me = lease.replace(first.lease.me, machine=lease.machine())
    first.claim()
    second = Store(url, say=said.append, run="/runs/two")
    second.lease.clock = clock
    second.begin(COLUMNS, STREAMS)
    assert "took over the lease" in said[0]
    assert second.close(10)


@anywhere
def test_two_at_the_same_moment(url, clock, said, monkeypatch):
    """Both have seen that there is no lease; one of them writes first."""
    first, second = (opened(url, clock, said, run, host) for run, host in (("/runs/one", "a"), ("/runs/two", "b")))
    swap = type(second.objects).swap

    def late(objects, name, data, tag):
        if objects is second.objects and tag == "":
            first.lease.take()
        return swap(objects, name, data, tag)

    monkeypatch.setattr(type(second.objects), "swap", late)
    with pytest.raises(RunError, match="is in use by the run /runs/one"):
        second.lease.take()
    assert owner_of(url).run == "/runs/one"
    clock.now += EXPIRES + 1

    def later(objects, name, data, tag):
        if objects is second.objects and owner_of(url).time < clock.now:
            first.lease.hold()
        return swap(objects, name, data, tag)

    monkeypatch.setattr(type(second.objects), "swap", later)
    with pytest.raises(RunError, match="is in use by the run /runs/one"):
        second.lease.take()
    assert owner_of(url).run == "/runs/one"


@anywhere
def test_many_at_the_same_moment(url, clock, said):
    stores = [opened(url, clock, said, f"/runs/{number}", f"host{number}") for number in range(4)]
    barrier, taken = threading.Barrier(len(stores)), []

    def take(store):
        barrier.wait()
        try:
            store.lease.take()
            store.lease.hold()
            taken.append(store)
        except RunError:
            pass

    threads = [threading.Thread(target=take, args=(store,)) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if url.startswith("s3"):  # in memory two may have it for a moment
        assert len(taken) == 1
    holders = []
    for store in taken:
        try:
            store.lease.hold()
            holders.append(store)
        except RunError:
            pass
    assert [store.lease.me.id for store in holders] == [owner_of(url).id]


def test_a_lease_that_cannot_be_read(url, clock, said):
    store = opened(url, clock, said, "/runs/one")
    store.objects.put(LEASE, b"{ what")
    store.begin(COLUMNS, STREAMS)
    assert store.close(10)


def test_closing_leaves_the_lease_of_another(url, clock, said):
    first, second = (opened(url, clock, said, run, host) for run, host in (("/runs/one", "a"), ("/runs/two", "b")))
    first.claim()
    clock.now += EXPIRES + 1
    second.claim()
    assert first.close(10)
    assert owner_of(url).run == "/runs/two"


def test_it_is_renewed_while_nothing_is_written(clock, said, monkeypatch):
    monkeypatch.setattr("reverie.store.store.RENEWS", 0.01)
    renewed = threading.Event()
    url = f"memory://{uuid.uuid4().hex}/replay"
    store = opened(url, clock, said, "/runs/one")
    store.begin(COLUMNS, STREAMS)
    hold = store.lease.hold
    store.writer.guard = lambda: (hold(), owner_of(url).time == clock.now and renewed.set())
    clock.now += RENEWS
    assert renewed.wait(10)
    assert store.close(10)


def test_a_place_that_is_asked_when_another_has_come_before(tmp_path):
    """What every place can do: look, write, look again."""
    objects = LocalObjects(tmp_path)
    assert objects.tag("piece") == ""
    assert objects.swap("piece", b"one", "")
    assert not objects.swap("piece", b"two", "")
    tag = objects.tag("piece")
    assert objects.swap("piece", b"two", tag)
    assert not objects.swap("piece", b"three", tag)
    assert objects.get("piece") == b"two"


@pytest.mark.parametrize("code", ["NotImplemented", "PreconditionFailed"])
def test_servers_that_know_no_conditions(bucket, monkeypatch, code):
    """Old ones refuse a condition as such; the next best is done there."""
    import errno

    objects = open_objects(f"s3://leases/{uuid.uuid4().hex}")
    pipe, refused = objects.fs.pipe_file, []

    def refuse(path, data, **condition):
        if not condition:
            return pipe(path, data)
        refused.append(condition)
        cause = Exception()
        cause.response = {"Error": {"Code": code}}
        raise OSError(errno.ENOSYS if code == "NotImplemented" else errno.EINVAL, "refused") from cause

    monkeypatch.setattr(objects.fs, "pipe_file", refuse)
    known = code == "PreconditionFailed"
    assert objects.swap("piece", b"one", "") is not known
    assert objects.swap("piece", b"two", objects.tag("piece") or "none") is not known
    assert [next(iter(condition)) for condition in refused] == ["mode", "IfMatch"]


def test_an_answer_that_was_lost(bucket, monkeypatch):
    """The same write, sent again, finds that another version is there, and that it is its own."""
    objects = open_objects(f"s3://leases/{uuid.uuid4().hex}")
    assert objects.swap("piece", b"one", "")
    assert objects.swap("piece", b"one", "")
    tag = objects.tag("piece")
    assert objects.swap("piece", b"two", tag)
    assert objects.swap("piece", b"two", tag)
    assert not objects.swap("piece", b"three", tag)
    assert not objects.swap("gone", b"one", tag)


def test_a_folder_needs_none(tmp_path, said):
    store = Store(tmp_path / "replay", say=said.append)
    assert store.lease is None
    store.begin(COLUMNS, STREAMS)
    assert store.close(10)
    assert LEASE not in store.objects.sizes()
