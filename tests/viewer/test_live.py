"""The page in which a person takes over: who gets in, and what a browser, driven by keys alone, does to the rows."""

import contextlib
import http.client
import json
import os
import re
import socket
import stat
import struct
import threading
import time

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("uvicorn", reason="the extra viewer is not installed")
client = pytest.importorskip("websockets.sync.client", reason="the extra viewer is not installed")
from websockets.exceptions import ConnectionClosed, InvalidStatus  # noqa: E402

import reverie  # noqa: E402
from browser import launched_browser, playwright, violations  # noqa: E402
from reverie.algos.table import algorithm_config  # noqa: E402
from reverie.cli.main import main  # noqa: E402
from reverie.core.errors import RunError  # noqa: E402
from reverie.run.callback import Callback  # noqa: E402
from reverie.run.channel import PageChannel  # noqa: E402
from reverie.viewer.launch import open_page  # noqa: E402
from reverie.viewer.runs import find_live_pages  # noqa: E402

expect = playwright.expect
expect.set_options(timeout=30_000)
SIZES = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}


@pytest.fixture(autouse=True)
def _ticks():
    """The real clock: the page and the run wait for each other."""


@contextlib.contextmanager
def learning(folder, env="Pendulum-v1", algo="sac", **settings):
    """Yield the address of the page of a run in a thread, its channel, and a function that ends it for its rows."""
    channel, ended = PageChannel(10.0, lease=60.0, clock=time.monotonic), threading.Event()
    config = algorithm_config(algo)().merge({"batch_size": 4, "networks.units": (4,)})
    given = {"human.person": "page", "learning_starts": 10**5, "steps": 10**6} | settings
    with reverie.Collector(env, config, human=channel, **given) as collector:

        def collect():
            while not ended.wait(0.002):
                collector.collect()

        thread = threading.Thread(target=collect)

        def end():
            ended.set()
            thread.join()
            storage = collector.experiment.replay.storage
            return {name: x[0] for name, x in storage.read(storage.oldest, storage.count).items()}

        with open_page(channel, folder, f"{algo} on {env}") as url:
            thread.start()
            try:
                yield url, channel, end
            finally:
                channel._stop = ended.is_set
                end()


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser


@pytest.fixture
def visit(browser):
    """Returns a function that opens a page; whatever it complains of fails the test."""
    complaints, pages = [], []

    def opened(url, **options):
        page = browser.new_page(**{"viewport": SIZES[0], "reduced_motion": "reduce"} | options)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        allowed = ("http://127.0.0.1:", "blob:")
        page.on("request", lambda asked: None if asked.url.startswith(allowed) else complaints.append(asked.url))
        pages.append(page)
        page.goto(url)
        expect(page.locator("#status")).to_have_text(re.compile("acts|Paused"))
        return page

    yield opened
    for page in pages:
        page.close()
    assert not complaints


def says(page, text):
    expect(page.locator("#status")).to_have_text(re.compile(text))


def takes(page, at_least=1):
    """Wait until a person took some of the newest rows."""
    count = "+/took (\\d+)/.exec(document.querySelector('#rows figcaption').textContent)[1]"
    page.wait_for_function(f"() => {count} >= {at_least}")


def test_a_person_takes_over_marks_a_success_and_gives_back_by_keys_alone(tmp_path, visit):
    with learning(tmp_path) as (url, _, end):
        page = visit(url)
        expect(page.locator("#real canvas")).to_be_visible()
        expect(page).to_have_title(re.compile("^sac on Pendulum-v1 "))
        page.keyboard.down("ArrowLeft")  # a key that is held already counts
        page.keyboard.press("Space")
        says(page, "You act")
        takes(page, 3)
        expect(page.locator("#hands output")).to_have_text("-2")
        expect(page.locator("#ribbon")).to_have_attribute("aria-label", re.compile("A person took [1-9]"))
        page.keyboard.press("s")
        says(page, "The episode ends here")
        page.keyboard.up("ArrowLeft")
        page.keyboard.press("Escape")
        says(page, "The policy acts")
        rows = end()
        says(page, "The policy acts|closed")
    acted = rows["is_intervention"]
    assert acted.sum() >= 3
    assert set(rows["action"][acted, 0]) <= {-1.0, 0.0}
    assert (rows["action"][acted, 0] == -1).any()
    (marked,) = np.flatnonzero(rows["is_terminal"])  # a pendulum never ends
    assert rows["is_last"][marked]
    assert acted[marked - 1]
    assert not (rows["action"][~acted & ~rows["is_last"], 0] == 0).any()


def test_clicks_act_and_other_pages_watch(tmp_path, visit):
    """In an environment without an idle action, each click is one row."""
    with learning(tmp_path, "CartPole-v1", "dqn") as (url, _, end):
        first, second = visit(url), visit(url)
        first.get_by_role("button", name="Take over").click()
        says(first, "You act")
        says(second, "Somebody else acts")
        expect(second.get_by_role("button", name="Take over")).to_be_disabled()
        for count, name in enumerate(("1", "0", "1"), 1):
            first.get_by_role("button", name=re.compile(f"^{name}")).click()
            takes(first, count)
        takes(second, 3)
        second.keyboard.press("p")
        says(second, "Not possible: another page acts")
        first.close()
        says(second, "The policy acts")
        second.get_by_role("button", name="Pause").click()
        says(second, "Paused")
        second.get_by_role("button", name="Pause").click()
        says(second, "The policy acts")
        rows = end()
    assert rows["is_intervention"].sum() == 3
    assert rows["action"][rows["is_intervention"]].argmax(-1).tolist() == [1, 0, 1]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing(scheme, tmp_path, browser):
    with learning(tmp_path) as (url, _, _):
        for size in SIZES:
            context = browser.new_context(bypass_csp=True, color_scheme=scheme, reduced_motion="reduce", viewport=size)
            page = context.new_page()
            page.goto(url)
            says(page, "The policy acts")
            assert violations(page) == []
            page.keyboard.press("Space")
            takes(page)
            assert violations(page) == []
            assert page.evaluate("document.documentElement.scrollWidth") == size["width"]
            page.keyboard.press("?")
            assert page.locator("#help").is_visible()
            assert violations(page) == []
            page.get_by_role("button", name="Close").click()
            page.keyboard.press("Escape")
            says(page, "The policy acts")
            context.close()


def test_an_environment_without_pictures_shows_its_numbers(tmp_path, visit):
    from helped_env import Helped

    with learning(tmp_path, lambda: Helped("never", "dict")) as (url, channel, _):
        page = visit(url)
        expect(page.locator("#real .frame p")).to_have_text(re.compile(r"draws no pictures. observation: [\d,]+"))
        page.keyboard.press("Space")
        says(page, "You act")
        page.get_by_role("button", name="2").click()  # of the choice; the numbers are sliders
        takes(page)
        page.get_by_label("force 0").fill("0.5")
        page.wait_for_function("() => live.row.action?.join() === '0.5,0,0,0,1'")
        assert channel._pressed.tolist() == [0.5, 0, 0, 0, 1]
        page.evaluate("window.axes = [0, 0]; navigator.getGamepads = () => [{ axes, buttons: [] }]")
        page.wait_for_function("() => live.hands.pad")
        page.evaluate("window.axes = [0.05, -1]")
        page.wait_for_function("() => live.row.action?.join() === '0,-1,0,0,1'")


class Keyed(gymnasium.Env):
    """An environment that uses keys of the page, and forbids its last action."""

    def __init__(self):
        self.observation_space, self.action_space = spaces.Box(0, 1, (1,)), spaces.Discrete(4)

    def get_action_meanings(self):
        return ["NOOP", "FIRE", "DOWN", "FLY"]

    def get_keys_to_action(self):
        return {(ord(" "),): 1, (ord("s"),): 2}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(1, np.float32), {"action_mask": np.int8([1, 1, 1, 0])}

    def step(self, action):
        assert action != 3
        return np.zeros(1, np.float32), 0.0, False, False, {"action_mask": np.int8([1, 1, 1, 0])}


def test_keys_of_the_environment_come_first_and_shift_gives_those_of_the_page(tmp_path, visit):
    with learning(tmp_path, Keyed, "dqn") as (url, _, end):
        page = visit(url)
        page.keyboard.press("Space")
        says(page, "You act")
        expect(page.get_by_role("button", name=re.compile("^fly"))).to_be_disabled()
        for key, name in (("Space", "fire"), ("s", "down")):
            page.keyboard.down(key)
            expect(page.get_by_role("button", name=re.compile(f"^{name}"))).to_have_class("on")
            page.keyboard.up(key)
            expect(page.get_by_role("button", name=re.compile("^noop"))).to_have_class("on")
        expect(page.get_by_role("button", name="Success ⇧ S")).to_be_enabled()
        page.keyboard.press("Shift+S")
        says(page, "The episode ends here")
        page.keyboard.press("Shift+Space")
        says(page, "The policy acts")
        rows = end()
    assert rows["is_terminal"].sum() == 1
    assert {0, 1, 2} == {*rows["action"][rows["is_intervention"]].argmax(-1).tolist()}


# ---------------------------------------------------------------- the server, without a browser


class Talk:
    row = None

    def __init__(self, url, path="ws", **options):
        self.origin = url.rpartition("/")[0].rpartition("/")[0]
        address = url.replace("http", "ws").replace("live.html", path)
        self.socket = client.connect(address, **{"origin": self.origin, "max_size": None} | options)

    def __call__(self, do, **given):
        self.socket.send(json.dumps({"do": do, **given}))
        return self.read()

    def flood(self, texts):
        for text in texts:
            self.socket.send(text)
        while True:
            self.read()

    def read(self, rows=False):
        """Return the next answer; or, with ``rows``, whatever comes next."""
        while isinstance(data := self.socket.recv(timeout=30), bytes):
            (length,) = struct.unpack_from("<I", data)
            self.row = json.loads(data[4 : 4 + length])
            if rows:
                return self.row
        return json.loads(data)


def test_only_pages_of_this_server_with_the_token_get_in(tmp_path):
    with learning(tmp_path) as (url, _, _):
        port = int(url.split("/")[2].rpartition(":")[2])
        for options in ({"origin": "http://evil.example"}, {"origin": None}):
            with pytest.raises(InvalidStatus):
                Talk(url, **options)
        with pytest.raises(InvalidStatus):
            Talk(url.replace(url.split("/")[3], "another-token"))
        right = "/" + url.split("/", 3)[3]
        asked = ("/wrong/live.html", "127.0.0.1", 403), (right, "evil.example", 403), (right, "127.0.0.1", 200)
        for path, host, status in asked:
            connection = http.client.HTTPConnection("127.0.0.1", port)
            connection.request("GET", path, headers={"Host": f"{host}:{port}"})
            assert connection.getresponse().status == status
        talk = Talk(url)
        about = talk.read()["about"]
        assert (about["title"], about["width"]) == ("sac on Pendulum-v1", 1)
        assert {"keys": ["ArrowLeft"], "action": [-1.0]} in about["keys"]


def test_a_page_that_draws_slowly_leaves_rows_out(tmp_path):
    """Rows do not wait for it: it receives the newest one after each that it has drawn."""
    with learning(tmp_path) as (url, channel, _):
        talk, numbers = Talk(url), []
        for _ in range(3):
            while talk.row is None:
                talk.read(rows=True)
            numbers.append(talk.row["number"])
            while channel._number < numbers[-1] + 5:
                time.sleep(0.01)
            talk("ping")
            assert talk.row["number"] == numbers[-1]
            talk.row = None
            talk.socket.send("drawn")
    assert (np.diff(numbers) >= 5).all()


@pytest.mark.parametrize("flood", [["x" * 2**17], ["{}"] * 1000, [b"{}"]])
def test_a_page_that_sends_too_much_is_closed_and_holds_nothing(flood, tmp_path):
    with learning(tmp_path) as (url, channel, _):
        talk = Talk(url)
        talk.read()
        assert talk("take") == {"done": "take"}
        with pytest.raises(ConnectionClosed):
            talk.flood(flood)
        another = Talk(url)
        another.read()
        while "refused" in another("take"):  # the server notices a little later
            pass
        assert channel._owner is not None


class Visitor(Callback):
    """Takes over from the run that calls it in its first row, without another sign of life."""

    def on_start(self, run):
        self.file = run.folder / "live.json"
        self.mode, self.pages = stat.S_IMODE(self.file.stat().st_mode), find_live_pages(run.folder)
        self.talk = talk = Talk(self.pages["."])
        talk.read()
        assert talk("pause", on=True) == {"done": "pause"}
        threading.Thread(target=self.act, daemon=True).start()

    def act(self):
        try:
            while self.talk.row is None or not self.talk.row["number"]:  # until the run waits in its first row
                self.talk.socket.send("drawn")
                self.talk.read(rows=True)
            self.talk("take")
            self.talk("pause", on=False)
        except BaseException:
            self.talk.socket.close()  # else the run would wait for ever
            raise


def test_a_run_serves_its_page_until_it_ends(tmp_path, capsys, said):
    visitor, few = Visitor(), {"learning_starts": 5, "console": False, "tensorboard": False, "eval_episodes": 0}
    settings = {"algo.batch_size": 4, "algo.networks.units": (4,), **few}
    run = tmp_path / "run"
    reverie.train("sac", "Pendulum-v1", preset="hil", steps=60, human="page", run=run, callbacks=[visitor], **settings)
    assert visitor.mode == 0o600
    assert any(visitor.pages["."] in line for line in said)
    assert any("the page that held the environment is gone" in line for line in said)  # and the run went on
    logged = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert max(line.get("human/steps", 0) for line in logged) > 0
    assert max(line["counters/updates"] for line in logged if "counters/updates" in line) == 108  # as planned
    assert not visitor.file.exists()
    assert main(["view", str(run), "--live"]) == 1
    assert "no process with a page" in capsys.readouterr().err


class Teacher(Callback):
    """Prefers the first of each pair, in the page that the run's page links to."""

    def on_start(self, run):
        page = Talk(find_live_pages(run.folder)["."])
        self.questions = page.read()["about"]["questions"]
        self.thread = threading.Thread(target=self.act, daemon=True)
        self.thread.start()

    def act(self):
        talk = Talk(self.questions.replace("labels.html", "live.html"))
        self.obstacles = []
        for _ in range(20):
            while "kind" not in (asked := talk.read(rows=True)):
                self.obstacles.append(asked["problem"])
            self.asked = asked
            talk.socket.send("first")

    def on_log(self, run, entry):
        if run.env_steps >= 300:
            self.thread.join()


def test_a_run_with_a_page_asks_about_its_rows(tmp_path, said):
    teacher, labels = Teacher(), tmp_path / "labels"
    settings = {"algo.batch_size": 4, "algo.networks.units": (4,), "console": False, "tensorboard": False}
    reverie.train(
        "sac", "Pendulum-v1", preset="hil", steps=400, learning_starts=5, eval_episodes=0, human="page",
        reward=f"preferences:{labels}", run=tmp_path / "run", callbacks=[teacher], **settings,
        **{"schedule.log_every": 100},
    )  # fmt: skip
    assert re.search(r"begin when the newest episodes have 50 clips of \d+ steps", teacher.obstacles[0])  # so far
    assert teacher.asked["names"][0].startswith("environment 0, row ")
    assert len(labels.read_text().splitlines()) == 21
    assert any("reward: 20 preferences" in line for line in said)


PAGE, HERE = f"http://127.0.0.1:8765/{'t' * 22}/live.html", {"pid": os.getpid(), "host": socket.gethostname()}


@pytest.mark.parametrize(("page", "lock"), [
    (json.dumps({"url": PAGE}), None),
    *[(json.dumps({"url": PAGE}), HERE | change) for change in ({"pid": 0}, {"pid": 2**22 + 1}, {"host": "elsewhere"})],
    *[(json.dumps({"url": PAGE.replace(*change)}), HERE) for change in (
        ("127.0.0.1", "evil.com"), ("127.0.0.1", "evil@127.0.0.1"), ("t" * 22, ""), (".html", ".html\n"))],
    *[(text, HERE) for text in ("[" * 100_000, "[]", '{"url": 5}', None)],
])  # fmt: skip
def test_a_page_that_no_process_of_this_machine_serves_is_not_shown(page, lock, tmp_path, capsys):
    for name, owner in (("a", HERE), ("b", lock)):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.yaml").touch()
        (tmp_path / name / "live.json").write_text(json.dumps({"url": PAGE}))
        if owner is not None:
            (tmp_path / name / ".lock").write_text(json.dumps(owner))
    (tmp_path / "b/live.json").unlink()
    os.mkfifo(tmp_path / "b/live.json") if page is None else (tmp_path / "b/live.json").write_text(page)
    assert main(["view", str(tmp_path), "--live"]) == 0
    assert capsys.readouterr().out == f"a: {PAGE}\n"
    with pytest.raises(RunError, match="--human page"):
        find_live_pages(tmp_path / "b")
