"""The page in which a person labels rows: by keys alone, with numbers and pictures, and what arrives in the file."""

import contextlib
import functools
import re

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

pytest.importorskip("uvicorn", reason="the extra viewer is not installed")

import reverie
from browser import launched_browser, playwright, violations
from reverie.cli.main import main
from reverie.datasets.labels import LabelFile
from reverie.experiment.labeling import LabelSession
from reverie.viewer import launch
from reverie.viewer.labels import find_paint, labels_app

expect = playwright.expect
expect.set_options(timeout=30_000)
SIZES = {"width": 1280, "height": 1000}, {"width": 390, "height": 844}


class Lamp(gymnasium.Env):
    """A picture that gets brighter, and two numbers."""

    def __init__(self):
        image = spaces.Box(0, 255, (24, 24, 3), np.uint8)
        self.observation_space = spaces.Dict({"image": image, "place": spaces.Box(-1, 1, (2,), np.float32)})
        self.action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def _see(self):
        place = np.float32([self.time / 30, self.np_random.uniform()])
        return {"image": np.full((24, 24, 3), 8 * self.time, np.uint8), "place": place}

    def step(self, action):
        self.time += 1
        return self._see(), float(action), False, self.time == 30, {}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("lamp") / "data"
    reverie.record(Lamp, lambda obs: int(obs["place"][1] > 0.5), out=path, episodes=3)
    return str(path)


def test_rows_without_images_are_drawn_by_their_environment(tmp_path):
    reverie.record("Pendulum-v1", lambda obs: [0.0], out=tmp_path / "data", episodes=1)
    with contextlib.closing(LabelSession(str(tmp_path / "data"), tmp_path / "a.jsonl", "success")) as session:
        paint = find_paint(session)
        up, down = (paint({"observation": np.float32([x, 0, 0])}) for x in (1, -1))
        assert up.shape == down.shape == (500, 500, 3)
        assert (up != down).any()
        session.env = session.env.merge({"id": "strange_module:Env-v0"})
        assert find_paint(session) is None


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser


@pytest.fixture
def ask(browser, data, tmp_path):
    """Returns a function that opens the page of a new session; whatever a page complains of fails the test."""
    complaints, opened = [], []

    def open_page(kind, **options):
        session = LabelSession(data, tmp_path / "labels.jsonl", kind, steps=4)
        server = launch.LoopbackServer(functools.partial(labels_app, session), 0)
        server.start()
        page = browser.new_context(**{"viewport": SIZES[0]} | options).new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("console", lambda said: complaints.append(said.text) if said.type in ("error", "warning") else None)
        opened.extend([page.context.close, server.close, session.close])
        page.goto(f"{server.url}labels.html")
        expect(page.locator("#choices button").first).to_be_visible()
        return page

    yield open_page
    for close in opened:
        close()
    assert not complaints


def counted(page, text):
    expect(page.locator("#counts")).to_have_text(text)


def read_answers(tmp_path, kind):
    return [label.answer for label in LabelFile.read(tmp_path / "labels.jsonl", kind).labels]


def test_a_person_compares_clips_by_keys_alone(ask, tmp_path):
    page = ask("preferences")
    expect(page.locator("#status")).to_have_text("Which clip is better?")
    expect(page.locator("#clips figure")).to_have_count(2)
    expect(page.locator("#clips .frame canvas").first).to_be_visible()
    first = page.locator("#clips").inner_text()
    counts = {"first": 0, "second": 0, "tie": 0, "skip": 0, "wrong": 0}
    for key, answer in (
        ("ArrowLeft", "first"),
        ("ArrowRight", "second"),
        ("ArrowUp", "tie"),
        ("ArrowDown", "skip"),
        ("w", "wrong"),
    ):
        page.keyboard.press(key)
        counts[answer] += 1
        counted(page, " · ".join(f"{name}: {count}" for name, count in counts.items()))
    assert page.locator("#clips").inner_text() != first
    for skipped in (1, 0):
        page.keyboard.press("Backspace")
        counted(page, f"first: 1 · second: 1 · tie: 1 · skip: {skipped} · wrong: 0")
    page.keyboard.press("x")  # no answer
    page.keyboard.press("Control+ArrowLeft")
    page.get_by_role("button", name="Equal").click()
    counted(page, "first: 1 · second: 1 · tie: 2 · skip: 0 · wrong: 0")
    assert read_answers(tmp_path, "preferences") == ["first", "second", "tie", "tie"]
    for wrong in range(1, 7):
        page.keyboard.press("w")
        expect(page.locator("#counts")).to_contain_text(f"wrong: {wrong}")
    expect(page.locator("#counts")).to_contain_text("60% look wrong: compare recorded clips")


def test_a_person_labels_successes_by_keys_alone(ask, tmp_path):
    page = ask("success", reduced_motion="reduce")
    expect(page.locator("#status")).to_have_text("Does this row show success?")
    expect(page.locator("#clips .chip")).to_have_text(re.compile(r"episode \d, row 30"))  # the last one
    page.keyboard.press("s")
    counted(page, "success: 1 · failure: 0 · skip: 0")
    page.keyboard.press("f")
    counted(page, "success: 1 · failure: 1 · skip: 0")
    assert read_answers(tmp_path, "success") == ["success", "failure"]


def test_a_wrong_message_changes_nothing(ask, tmp_path):
    page = ask("success")
    page.evaluate("labels.send('great')")
    expect(page.locator("#status")).to_have_text(re.compile("expected success, failure, skip"))
    page.keyboard.press("s")
    counted(page, "success: 1 · failure: 0 · skip: 0")
    assert read_answers(tmp_path, "success") == ["success"]


@pytest.mark.parametrize("kind", ["preferences", "success"])
def test_axe_finds_nothing(kind, ask):
    for scheme, size in zip(("light", "dark"), SIZES, strict=True):
        page = ask(kind, bypass_csp=True, color_scheme=scheme, viewport=size, reduced_motion="reduce")
        assert violations(page) == []
        assert page.evaluate("document.documentElement.scrollWidth") == size["width"]


@pytest.mark.parametrize(("command", "kind"), [("compare-clips", "preferences"), ("label", "success")])
def test_the_commands_ask_about_their_kind(command, kind, data, tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr(launch, "serve_labels", lambda session, port: asked.append((session.file.kind, port)))
    assert main(["data", command, data, "--out", str(tmp_path / "f"), "--port", "5"]) == 0
    assert asked == [(kind, 5)]
