"""The server of the page: who gets in, what it answers, and what nonsense does to it."""

import contextlib
import http.client
import json
import re
import shutil
import socket
import struct
import sys
import threading
import time
import urllib.request
from pathlib import Path

import numpy as np
import pytest
import yaml

uvicorn = pytest.importorskip("uvicorn", reason="the extra look is not installed")
pytest.importorskip("starlette", reason="the extra look is not installed")
client = pytest.importorskip("websockets.sync.client", reason="the extra look is not installed")
from websockets.exceptions import InvalidStatus  # noqa: E402

from reverie.core import documents  # noqa: E402
from reverie.core.errors import RunError  # noqa: E402
from reverie.core.imports import import_module_of  # noqa: E402
from reverie.distributed.compare import compare  # noqa: E402
from reverie.log.jsonl import FINAL  # noqa: E402
from reverie.viewer import server  # noqa: E402
from reverie.viewer.comparison import compare_settings  # noqa: E402
from reverie.viewer.episode_source import crop, decode_png, encode_png  # noqa: E402
from reverie.viewer.launch import bind_loopback_socket, view  # noqa: E402
from reverie.viewer.runs import find_runs, runs_table  # noqa: E402

TOKEN = "a-token"


@contextlib.contextmanager
def served(folder, **more):
    """Serve the page in a thread."""
    viewer, listening = server.Viewer(folder, **more), bind_loopback_socket(0)
    config = uvicorn.Config(server.app(viewer, TOKEN), log_level="warning", ws_max_size=server.MAX_REQUEST_BYTES)
    running = uvicorn.Server(config)
    thread = threading.Thread(target=running.run, args=([listening],), daemon=True)
    thread.start()
    while not running.started:
        time.sleep(0.01)
    try:
        yield viewer, listening.getsockname()[1]
    finally:
        running.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def site(folder):
    with served(folder) as found:
        yield found


class Talk:
    """A page without a browser."""

    def __init__(self, port):
        origin = f"http://127.0.0.1:{port}"
        self.socket = client.connect(f"ws://127.0.0.1:{port}/{TOKEN}/ws", origin=origin, max_size=None)

    def raw(self, text):
        self.socket.send(text)
        data = self.socket.recv(timeout=60)
        (length,) = struct.unpack_from("<I", data)
        head, pictures, at = json.loads(data[4 : 4 + length]), [], 4 + length
        for *_, size in head["pictures"]:
            pictures.append(data[at : at + size])
            at += size
        assert at == len(data)
        return head, pictures

    def __call__(self, do, **given):
        return self.raw(json.dumps({"id": 1, "do": do, **given}))[0]


@pytest.fixture
def talk(site):
    found = Talk(site[1])
    yield found
    found.socket.close()


def get(port, path, **headers):
    connection = http.client.HTTPConnection("127.0.0.1", port)
    connection.request("GET" if path != "*" else "OPTIONS", path, headers=headers)
    return connection.getresponse()


def test_only_the_holder_of_the_token_gets_in(site):
    port, page = site[1], get(site[1], f"/{TOKEN}/")
    assert (page.status, b"<title>reverie" in page.read()) == (200, True)
    assert "default-src 'none'" in page.headers["content-security-policy"]
    assert get(port, f"/{TOKEN}/app.js").status == get(port, f"/{TOKEN}/", Host=f"localhost:{port}").status == 200
    for path in ("/", "/app.js", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN}", f"/x/{TOKEN}/"):
        assert get(port, path).status in (403, 307), path
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:1; script-src *"):
        assert get(port, f"/{TOKEN}/", Host=host).status == 403, host
    assert get(port, f"/{TOKEN}/", Origin="http://evil.example").status == 403
    assert get(port, "*").status == 403  # a path without a slash
    beside = ("../session.py", "..%2fsession.py", "%2e%2e/%2e%2e/agent/agent.py", "....//session.py", "//etc/passwd")
    assert [get(port, f"/{TOKEN}/{path}").status for path in beside] == [404] * 5


@pytest.mark.parametrize(
    ("path", "origin"), [(TOKEN, "http://evil.example"), (TOKEN, None), (TOKEN, "null"), ("wrong", "own")]
)
def test_sockets_are_for_own_pages_alone(site, path, origin):
    own = f"http://127.0.0.1:{site[1]}"
    with pytest.raises(InvalidStatus):
        client.connect(f"ws://127.0.0.1:{site[1]}/{path}/ws", origin=own if origin == "own" else origin)


@pytest.mark.parametrize("is_missing", [True, False])
def test_the_page_knows_that_kernels_will_be_compiled(talk, monkeypatch, is_missing):
    monkeypatch.setattr(server.torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(server, "needs_compilation", lambda: is_missing)
    assert talk("hello")["compiling"] == is_missing


def test_an_episode_over_the_wire(talk, folder):
    hello = talk("hello")
    assert [run["name"] for run in hello["runs"]] == ["dqn", "dreamer", "mapped", "sac"]
    head, pictures = talk.raw(json.dumps({"id": 7, "do": "begin", "run": "dreamer"}))
    assert (head["id"], head["about"]["env"], head["first"]) == (7, "CartPole-v1", 0)
    assert [place[:2] for place in head["pictures"]] == [[0, 0], [0, 1]]
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)
    for _ in range(6):
        rows = talk("step")["rows"]
    assert [row["t"] for row in rows] == [5, 6]  # the row before has got its action
    assert [row["action"] is None for row in rows] == [False, True]
    talk("set_context", rows=7)  # else the model, which has hardly learned, may expect the end before
    assert len(talk("dream", at=6, steps=9)["rows"]) == 10
    future, _ = talk("branch", at=6, by="action", steps=3)["futures"]
    assert [len(future[name]) for name in ("values", "rewards", "conts")] == [3] * 3
    assert [action in (0, 1) for action in future["actions"]] == [True] * 3
    assert talk("pick", number=1)["first"] == 7
    assert talk("edit", at=7, latent=0, value=1)["edits"] == 1
    assert talk("latent", at=7)["classes"][0] == 1
    assert talk("undo")["edits"] == 0
    assert talk("set_context", rows=5)["context"] == 5
    known = talk("run")
    first, last = known["checkpoints"][0], known["checkpoints"][-1]
    assert first["name"] < last["name"]
    assert "loss/reward" in known["curves"]
    assert talk("compare_checkpoint", checkpoint=first["name"])["errors"].keys() == {"observation", "reward", "cont"}
    assert [entry["step"] for entry in known["checkpoints"]] == [0, 20, 30, 40, 60]
    before, after = (
        talk("switch_checkpoint", checkpoint=last["name"]),
        talk("switch_checkpoint", checkpoint=first["name"]),
    )
    assert after["about"]["step"] == first["step"]
    assert [row["action"] for row in after["rows"]] == [row["action"] for row in before["rows"]]
    assert [row.get("error") for row in after["rows"]] != [row.get("error") for row in before["rows"]]
    assert talk("begin", run="dqn")["about"]["dreams"] is False
    assert talk("search", at=0, simulations=2)["error"] == "dqn has no world model to search in."
    score = json.loads((folder / "dqn/eval.json").read_text())["score"]["mean"]
    assert [found for _, found in talk("run")["finals"]] == [pytest.approx(score)]


WRONG = [
    "", "[]", '{"do": "nothing"}', '{"do": "dream"}', '{"do": "step", "page": 1}', '{"do": "dream", "at": 1e999}',
    '{"do": "begin", "run": "../../etc"}', '{"do": "begin", "run": "/etc"}',
    '{"do": "begin", "run": "dreamer", "checkpoint": "../x"}', '{"do": "begin", "run": "dreamer", "episode": 10000000}',
]  # fmt: skip


def test_nonsense_is_answered_and_changes_nothing(talk):
    talk("begin", run="dreamer")
    before = talk("step")["rows"]
    for text in WRONG:
        assert talk.raw(text)[0]["error"], text
    assert talk("set_context", rows=2)["rows"] == before


def test_several_rows_a_request(talk, monkeypatch):
    monkeypatch.setattr(server, "MAX_STEP_SECONDS", 60)
    talk("begin", run="dreamer")
    assert [row["t"] for row in talk("step", steps=3)["rows"]] == [0, 1, 2, 3]
    rows = talk("step", steps=1000)["rows"]
    assert [row["real"]["last"] for row in rows] == [False] * (len(rows) - 1) + [True]
    assert (rows[0]["real"]["reward"], talk("set_context", rows=1)["rows"][0]["real"]["reward"]) == (
        1.0,
        None,
    )  # row 0 has none
    card = talk("preview", seed=talk("set_context", rows=1)["seed"])
    assert card["ending"] in ("the end", "time is up")
    assert (card["rows"], card["score"], card["last"]) == (rows[-1]["t"] + 1, rows[-1]["t"], True)
    monkeypatch.setattr(server, "MAX_STEP_SECONDS", -1)
    assert talk("preview", episode=-1)["rows"] == 1
    assert talk("preview", episode=-1, again=True)["rows"] == 1


def test_pictures_are_cropped_to_what_differs():
    pictures = np.full((2, 60, 90, 3), 200, np.uint8)
    pictures[1, 20:24, 50:53] = 0
    cropped = [decode_png(png) for png in crop([encode_png(picture) for picture in pictures])]
    assert [picture.shape for picture in cropped] == [(30, 30, 3)] * 2
    assert ((cropped[0] == 200).all(), (cropped[1] == 0).all(-1).sum()) == (True, 12)
    same = [encode_png(pictures[0])] * 2
    assert (crop(same), crop([])) == (same, [])


def test_closing_the_page_frees_its_session(site, monkeypatch):
    ended, close = [], server.Page.close
    monkeypatch.setattr(server.Page, "close", lambda page: (close(page), ended.append(page.session is None)))
    talks = [Talk(site[1]) for _ in range(3)]
    assert [talk("begin", run="dreamer")["first"] for talk in talks] == [0, 0, 0]
    assert talks[0]("step")["first"] == talks[1]("step")["first"] == 1  # each has its own
    ended.clear()
    for talk in talks:
        talk.socket.close()
    deadline = time.monotonic() + 10
    while len(ended) < 3 and time.monotonic() < deadline:
        time.sleep(0.05)
    assert ended == [True] * 3


UPGRADE = """GET /{0}/ws HTTP/1.1
Host: 127.0.0.1:{1}
Origin: http://127.0.0.1:{1}
Upgrade: websocket
Connection: Upgrade
Sec-WebSocket-Version: 13
Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==

"""


def test_a_page_that_does_not_read_gets_no_more_answers(site, monkeypatch):
    port, answered, answer = site[1], [], server.Page.answer
    monkeypatch.setattr(server.Page, "answer", lambda page, text: answered.append(1) or answer(page, text))

    def frame(request):
        text = json.dumps(request).encode()  # below 126 bytes, masked by zeros: RFC 6455, section 5.2
        return bytes([0x81, 0x80 | len(text), 0, 0, 0, 0]) + text

    with socket.socket() as raw:
        for buffer in (socket.SO_RCVBUF, socket.SO_SNDBUF):
            raw.setsockopt(socket.SOL_SOCKET, buffer, 4096)
        raw.connect(("127.0.0.1", port))
        raw.sendall(UPGRADE.replace("\n", "\r\n").format(TOKEN, port).encode())
        assert b" 101 " in raw.recv(4096)
        raw.sendall(frame({"do": "begin", "run": "dreamer"}))
        raw.setblocking(False)
        flood, rest, asked = frame({"do": "pictures", "rows": [0] * 24}), b"", 0
        counts = [0, 1]  # of answers, every half second
        while (counts[-1] != counts[-2] or counts[-1] < 20) and len(counts) < 60:
            with contextlib.suppress(BlockingIOError):
                while True:
                    rest = rest or flood
                    rest = rest[raw.send(rest) :]
                    asked += not rest
            time.sleep(0.5)
            counts.append(len(answered))
        assert 20 <= counts[-1] == counts[-2] < asked


def test_what_is_broken_is_said(folder, tmp_path):
    for name in ("gone", "foreign", "torn", "worn"):
        shutil.copytree(folder / "dreamer", tmp_path / name)
    config = tmp_path / "foreign/config.yaml"
    config.write_text(config.read_text().replace("CartPole-v1", "Missing-v3"))
    for tensors in (tmp_path / "torn/checkpoints").glob("*/tensors.safetensors"):
        tensors.write_bytes(b"torn")
    (tmp_path / "worn/checkpoints/step-000000060/tensors.safetensors").write_bytes(b"torn")
    with served(tmp_path) as (_, port):
        talk = Talk(port)
        assert "Missing-v3" in talk("begin", run="foreign")["error"]
        assert "can be used" in talk("begin", run="torn")["error"]
        assert "step-000000060, cannot be used" in talk("begin", run="worn")["remark"]
        assert talk("begin", run="gone")["first"] == 0
        shutil.rmtree(tmp_path / "gone")
        assert "no run" in talk("run")["error"]
        assert talk("step")["first"] == 1  # the session lives on
        assert "error" in next(run for run in talk("hello")["runs"] if run["name"] == "gone")
        talk.socket.close()


CALLS_CHILD = "reverie.distributed.run_processes:Child(['--version'], 'PWNED')"
"""Of a class of this library that starts a process, and is nothing that a run may name."""
ATTACKS = {
    "os:system": ({"env": "os:system"}, {"env.kwargs": {"command": "touch PWNED"}}),
    "posix:system": ({"eval_env": "posix:system"}, {}),
    "subprocess:Popen": ({"env": "subprocess:Popen"}, {"env.kwargs": {"args": ["touch", "PWNED"]}}),
    "runpy:run_path": ({"env": "runpy:run_path"}, {"env.kwargs": {"path_name": "evil.py"}}),
    "shutil:rmtree": ({"env": "shutil:rmtree"}, {"env.kwargs": {"path": "victim"}}),
    "builtins:exec": ({"env": "builtins:exec"}, {}),
    "walk:os.system": ({"env": "walk:os.system"}, {"env.kwargs": {"command": "touch PWNED"}}),
    "walk:Tool": ({}, {"env.wrappers": ["walk:Tool('PWNED')"]}),
    "antigravity:X-v0": ({}, {"env.id": "antigravity:X-v0"}),
    "evil:X-v0": ({}, {"env.id": "evil:X-v0"}),
    "dqn.evil:X": ({}, {"env.wrappers": ["dqn.evil:X"]}),
    "evil:K-v0": ({}, {"env.kwargs": {"env_id": "evil:K-v0"}}),
    "evil:Explore": ({}, {"algo.exploration": "evil:Explore(0.5)"}),
    "evil:E": ({}, {"eval_env": {"wrappers": ["evil:E"]}}),
    "reverie.distributed.run_processes:Child": ({}, {"env.wrappers": [CALLS_CHILD]}),
    "reverie.distributed.run_processes: Child": ({}, {"algo.exploration": CALLS_CHILD}),
    "reverie.algos.dqn:DQNConfig": ({"env": "reverie.algos.dqn:DQNConfig"}, {}),
}  # fmt: skip
"""What a stranger's run names, in ``custom`` or its settings."""


def test_the_page_runs_nothing_of_a_strangers_run(folder, tmp_path, monkeypatch):
    """The runs of strangers lie where the user has a module that he trusts, which imports ``os``."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    (tmp_path / "walk.py").write_text(
        "import os, pathlib\nclass Tool:\n    def __init__(self, path): pathlib.Path(path).touch()\n"
    )
    import_module_of("walk:Tool", "environment")
    for name, (custom, settings) in ATTACKS.items():
        run = shutil.copytree(folder / "dqn", tmp_path / "runs" / name)
        saved = yaml.safe_load((run / "config.yaml").read_text())
        saved |= {"custom": custom, "experiment": {**saved["experiment"], **settings}}
        (run / "config.yaml").write_text(yaml.safe_dump(saved))
        for path in (run, tmp_path, tmp_path / "victim"):
            path.mkdir(exist_ok=True)
            (path / "evil.py").write_text("import pathlib; pathlib.Path('PWNED').touch()")
    before = {*sys.modules}
    with served(tmp_path / "runs") as (_, port):
        talk = Talk(port)
        for name in ATTACKS:
            assert name.replace(": ", ":") in talk("begin", run=name)["error"], name
        talk.socket.close()
    assert (tmp_path / "victim" / "evil.py").exists()
    assert not list(tmp_path.rglob("PWNED"))
    assert not [name for name in {*sys.modules} - before if name.split(".")[-1] in ("evil", "antigravity", "this")]
    sys.modules.pop("walk")


def test_recorded_episodes_are_read_from_the_data(folder):
    with served(folder / "dreamer", data=str(folder / "dreamer")) as (viewer, port):
        talk = Talk(port)
        about = talk("begin", run=".", episode=1)["about"]
        assert (viewer.single, about["env"], "episode 1 of" in about["recorded"]) == (True, "CartPole-v1", True)
        talk.socket.close()


def test_wrong_messages_print_one_traceback_for_each_kind(folder, capsys):
    page = server.Page(server.Viewer(folder))
    for _ in range(3):
        for text in ("{", '{"do": "nothing"}', '{"do": "step", "more": 1}', '{"id": 3}', "[]", "3"):
            assert b'"error"' in page.answer(text)
    assert capsys.readouterr().err.count("Traceback") == 6


@pytest.mark.parametrize(
    ("where", "flags", "error"),
    [("dqn", ["--checkpoint", "step-1"], "no checkpoint"), ("dqn", ["--env", "Missing-v3"], "Missing"),
     (".", ["--checkpoint", "best"], "folder of runs"), ("dqn", ["--data", "nothere"], "nothere"),
     ("dqn", ["--port", "70000"], "port = 70000: expected a number in [0, 65535]")],
)  # fmt: skip
def test_a_wrong_option_fails_in_the_terminal(folder, capsys, where, flags, error):
    from reverie.cli import main

    assert main(["view", str(folder / where), *flags]) == 1
    out = capsys.readouterr()
    assert (error in out.err, out.out) == (True, "")


def test_runs_of_one_setting_are_seeds_of_a_group(folder, tmp_path):
    for number in range(10):  # five seeds of one setting; two of another, and three copies
        seed = min(number, 6)
        saved = yaml.safe_load((folder / "dqn/config.yaml").read_text())
        saved["experiment"] |= {"seed": seed, "threads": seed, "replay_ratio": 0.5 if seed < 5 else 0.25}
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}/config.yaml").write_text(yaml.safe_dump(saved))
        rows = [(step, {"episode/score": step * seed}) for step in (10, 20)]
        rows.append((20, {"eval/score": 7.0, FINAL: 1.0}))
        lines = [json.dumps({"step": step, **values}) + "\n" for step, values in rows]
        (tmp_path / f"{number}/metrics.jsonl").write_text("".join(lines))
    known = compare_settings({path.name: path for path in sorted(tmp_path.iterdir())})
    five, two = known["groups"]
    assert (five["runs"], two["runs"], two["finals"]) == ([*"01234"], [*"56789"], [[20, 7.0]] * 5)
    assert (five["seeds"], two["seeds"]) == (5, 2)
    assert known["differences"] == [["replay_ratio", ["0.5", "0.25"]]]
    assert set(five["curves"]) == {"episode/score"}
    assert five["curves"]["episode/score"]["interval"][1].tolist() == [20, 40]
    assert two["curves"]["episode/score"]["interval"] is None


def test_the_settings_of_a_run_are_read_once_until_they_change(tmp_path, logged_run, monkeypatch):
    for seed in range(6):
        logged_run(tmp_path / f"{seed}", [10.0, 20.0], 3.0, seed=seed)
    texts, parse = [], documents._parse_yaml
    monkeypatch.setattr(documents, "_parse_yaml", lambda text, *levels: (texts.append(text), parse(text, *levels))[1])
    runs = find_runs(tmp_path)
    for _ in range(2):
        assert len(runs_table(runs)) == 6
        assert compare_settings(runs, same_budget=True)["groups"][0]["seeds"] == 6
        assert compare(tmp_path).settings[0].scores.tolist() == [3.0] * 6
    assert len(texts) == 6
    config = tmp_path / "0/config.yaml"
    config.write_text(config.read_text().replace('"seed": 0', '"seed": 77'))
    assert runs_table(runs)[0]["seed"] == 77
    assert len(texts) == 7


@pytest.mark.parametrize(
    ("scores", "longer", "answer"),
    [
        ([1, 2, 3, 4, 5], [], "{a} is best on CartPole-v1 after 200 env steps, with a mean of 103 (IQM 103, 95 % "
         "... seeds) against 3 of {b}."),
        ([99, 100, 101, 104, 120], [], "Cannot tell which is best on CartPole-v1 after 200 env steps, as the intervals "
         "of {a} and {b} overlap: {a} has a mean of 103 (IQM 103, "),
        ([1, 2, 3, 4], [], "as {b} has fewer than 5 seeds: {a} has a mean of 103 ("),
        ([1, 2, 3, 4, 5], [0.0], "is best on CartPole-v1 after different budgets (200 to 300 env steps), with "),
    ],
)  # fmt: skip
def test_a_comparison_answers(tmp_path, logged_run, scores, longer, answer):
    second = 0.5 if longer else 0.25  # a run of another length belongs to another group
    for name, ratio, finals, more in (("a", 0.5, range(101, 106), []), ("b", second, scores, longer)):
        for seed, final in enumerate(finals):
            logged_run(tmp_path / f"{name}{seed}", [10.0, 20.0, *more], float(final), seed=seed, replay_ratio=ratio)
    runs = {path.name: path for path in sorted(tmp_path.iterdir())}
    known = compare_settings(runs)
    labels = {group["runs"][0][0]: group["label"] for group in known["groups"]}
    (said,) = known["answers"]
    assert all(part in said["text"] for part in answer.format(**labels).split("..."))
    for group, name in zip(known["groups"], "ab", strict=True):
        (setting,) = compare(tmp_path / f"{name}*").settings
        assert group["score"]["scores"].tolist() == setting.scores.tolist()
        np.testing.assert_equal(group["score"]["interval"], setting.iqm())
        assert group["score"]["texts"]["mean"] in said["text"]
    if longer:
        assert said["budget"] == 200
        (said,) = compare_settings(runs, same_budget=True)["answers"]
        assert "after 200 env steps" in said["text"]
    for axis, last in {"steps": 200, "seconds": 2.5, "updates": 50}.items():
        group = compare_settings(runs, axis)["groups"][0]
        assert group["curves"]["episode/score"]["seeds"][0][0].tolist() == [last / 2, last]
        assert group["curves"]["episode/score"]["interval"][0][-1] == last
        assert group["finals"][0] == [last, 101]


def test_a_schedule_among_the_differences(tmp_path, logged_run):
    algo = yaml.safe_load((logged_run(tmp_path / "a", [1.0]) / "config.yaml").read_text())["experiment"]["algo"]
    for name, rate in (("b", [[0, 1e-3], [1e5, 0.0]]), ("c", [[0, 1e-3], [1e4, 0.1], [2e4, 0.0]])):
        logged_run(tmp_path / name, [1.0], algo=algo | {"learning_rate": rate})
    known = compare_settings({name: tmp_path / name for name in "bc"})
    assert known["differences"] == [
        ["algo.learning_rate", ["0.001 to 0 over 100,000", "0.001 at 0, 0.1 at 10,000, 0 at 20,000"]]
    ]


def test_a_folder_without_runs(tmp_path):
    with pytest.raises(RunError, match="no run"):
        server.Viewer(tmp_path)


def test_the_command_says_what_is_missing(folder, monkeypatch, capsys):
    from reverie.cli import main

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "reverie.viewer.launch", raising=False)
    assert main(["view", str(folder)]) == 1
    assert "reverie-rl[viewer]" in capsys.readouterr().err


def test_a_notebook_shows_the_page(folder):
    opened = view(folder / "dreamer")
    try:
        assert 'srcdoc="&lt;!doctype html&gt;' in opened._repr_html_()
        table = view(folder)
        assert f' src="{table.url}"' in table._repr_html_()  # a table of runs needs the server
        table.close()
        with urllib.request.urlopen(opened.url, timeout=30) as page:
            assert b"<title>" in page.read()
            assert "frame-ancestors 'self' http://127.0.0.1:*" in page.headers["content-security-policy"]
    finally:
        opened.close()


def test_the_server_knows_what_the_page_asks() -> None:
    """The page names functions by text, which renaming one in Python does not change."""
    scripts = (Path(server.__file__).parent / "static").glob("[!u]*.js")
    asked = {name for script in scripts for name in re.findall(r'\bask\("(\w+)"', script.read_text("utf-8"))}
    assert {"hello", "compare_runs", "export_file"} <= asked <= {*server.COMMANDS, *server.CHANGES}
