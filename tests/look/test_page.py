"""The page in a real browser, driven by clicks and keys. Whatever the page itself complains of fails the test."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("there is no Chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra look is not installed")
from playwright.sync_api import Page, expect  # noqa: E402
from test_server import TOKEN, served  # noqa: E402

expect.set_options(timeout=30_000)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]


@pytest.fixture(scope="module")
def site(folder: Path) -> Iterator[str]:
    with served(folder) as (_, port):
        yield f"http://127.0.0.1:{port}/{TOKEN}/"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser: Any, site: str) -> Iterator[Page]:
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    wrong: list[str] = []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("request", lambda asked: None if asked.url.startswith((site, "blob:")) else wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


def opened(page: Page, site: str, run: str = "dreamer", steps: int = 0) -> Page:
    """Open a run, and play some rows."""
    page.goto(f"{site}?run={run}")
    expect(page.locator("#row")).to_have_text("row 0 of 0")
    for number in range(1, steps + 1):
        page.keyboard.press("ArrowRight")
        expect(page.locator("#row")).to_have_text(f"row {number} of {number}")
    return page


def at(page: Page, text: str) -> None:
    expect(page.locator("#row")).to_have_text(re.compile(f"^row {text}$"))


def drawn(page: Page, side: str) -> bool:
    """Whether the picture has more than one colour."""
    pixels = page.locator(f"#{side} canvas").evaluate(
        "c => [...new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)]"
    )
    return len(set(pixels)) > 1


def test_real_and_dream_play_side_by_side(page: Page, site: str) -> None:
    opened(page, site)
    page.keyboard.press("Space")
    expect(page.locator("#play")).to_have_text("Stop")
    expect(page.locator("#dream .chip")).to_have_text(re.compile("imagines, step [3-9]"))
    page.locator("#play").click()
    expect(page.locator("#play")).to_have_text("Play")
    assert drawn(page, "real")
    assert drawn(page, "dream")
    expect(page.locator("#errors")).to_contain_text("observation")
    expect(page.locator(".numbers canvas")).to_have_count(4)
    page.keyboard.press("Home")
    expect(page.locator("#dream .chip")).to_have_text("sees this row")
    page.locator("#forth").click()
    at(page, "1 of .*")
    page.locator("#again").click()
    at(page, "0 of 0")


def test_taking_over_and_going_back(page: Page, site: str) -> None:
    opened(page, site, steps=3)
    page.keyboard.press("m")
    for row, key in enumerate(["0", "1", "ArrowLeft"], 4):
        page.keyboard.press(key)
        at(page, f"{row} of {row}")
    page.keyboard.press(",")
    page.keyboard.press(",")
    at(page, "4 of 6")
    expect(page.locator("#hands .on")).to_have_attribute("data-action", "1")
    page.locator("#hands [data-action='0']").click()  # another action: another line
    at(page, "5 of 5")
    page.locator("#mine").click()
    expect(page.locator("#hands")).to_be_hidden()


def test_dreaming_on_and_letting_it_happen(page: Page, site: str) -> None:
    opened(page, site, steps=2)
    page.locator("#steps").fill("4")
    page.locator("#dreamon").click()
    at(page, "6 of 6")
    expect(page.locator("#real p")).to_have_text("The real one has stopped here.")
    page.keyboard.press("m")
    page.keyboard.press("1")  # in the dream
    at(page, "7 of 7")
    page.keyboard.press("m")
    page.locator("#catchup").click()
    expect(page.locator("#real .chip")).to_contain_text("reward")
    expect(page.locator("#catchup")).to_be_hidden()
    page.keyboard.press("End")
    page.keyboard.press("o")  # the model sees all that happened
    expect(page.locator("#dream .chip")).to_have_text("sees this row")


def test_the_timeline(page: Page, site: str) -> None:
    opened(page, site, steps=8)
    expect(page.locator(".charts .chart")).to_have_count(7)
    over = page.locator(".charts .u-over").first
    box = over.bounding_box()
    assert box is not None
    over.click(position={"x": box["width"] * 5 / 20, "y": 20})  # the axis goes to row 20
    at(page, "5 of 8")
    label = page.locator(".charts canvas").first
    before = label.evaluate("c => c.toDataURL()")
    page.mouse.move(box["x"] + 10, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert label.evaluate("c => c.toDataURL()") != before  # zoomed
    at(page, "5 of 8")
    over.dblclick()
    surprising = page.locator("#surprises button")
    expect(surprising).to_have_count(5)
    first = surprising.first.inner_text()
    surprising.first.click()
    at(page, f"{first} of 8")
    page.keyboard.press("s")
    expect(page.locator("#row")).not_to_have_text(f"row {first} of 8")
    page.get_by_label("Error of").select_option("reward")


def test_branches(page: Page, site: str) -> None:
    opened(page, site, steps=3)
    page.keyboard.press("b")
    expect(page.locator(".future")).to_have_count(8)
    expect(page.locator(".future").first.locator("canvas")).to_have_count(6)
    page.locator("#ahead").fill("4")
    page.locator("#each").click()
    expect(page.locator(".future")).to_have_count(2)
    page.locator(".future").last.click()
    at(page, "7 of 7")
    expect(page.locator("#real p")).to_have_text("The real one has stopped here.")


def test_editing_the_latent(page: Page, site: str) -> None:
    opened(page, site, steps=7)
    page.get_by_role("tab", name="Latent").click()
    grid = page.locator("#grid")
    box = grid.bounding_box()
    assert box is not None
    page.locator("#keep").check()
    grid.click(position={"x": box["width"] * 0.1, "y": box["height"] * 0.1})
    grid.click(position={"x": box["width"] * 0.9, "y": box["height"] * 0.6})
    expect(page.locator("#dream .chip")).to_have_text("edited")
    expect(page.locator("#changed")).to_have_text("2 edits")
    page.keyboard.press("u")
    page.locator("#undo").click()
    expect(page.locator("#dream .chip")).to_have_text("imagines, step 3")
    expect(page.locator("#undo")).to_be_disabled()
    grid.focus()
    for key in ("ArrowDown", "ArrowRight", "Enter"):
        page.keyboard.press(key)
    expect(page.locator("#changed")).to_have_text("1 edit")
    at(page, "7 of 7")


def test_through_training(page: Page, site: str) -> None:
    opened(page, site, steps=6)
    newest = page.locator("#facts").inner_text()
    page.get_by_role("tab", name="Training").click()
    expect(page.locator("#which")).to_contain_text("step")
    page.locator("#checkpoint").focus()
    page.keyboard.press("Home")
    expect(page.locator("#facts")).not_to_have_text(newest)
    at(page, "6 of 6")
    page.locator("#curve").select_option("loss/reward")
    expect(page.locator("#panel .chart.tall .name")).to_have_text("loss/reward")


def test_the_error_over_training_and_a_new_checkpoint(page: Page, site: str, folder: Path) -> None:
    opened(page, site, steps=6)
    newest = page.locator("#facts").inner_text()
    page.get_by_role("tab", name="Training").click()
    page.locator("#theme").click()  # while errors are asked for
    page.locator("#errorof").select_option("reward")
    chart = page.locator("#panel .chart.high")
    before, most = chart.locator("canvas").evaluate("c => c.toDataURL()"), page.locator("#checkpoint")
    expect(most).to_have_attribute("max", "1")
    chart.locator(".u-over").click(position={"x": 5, "y": 40})  # at the earliest checkpoint
    expect(page.locator("#facts")).not_to_have_text(newest)
    known = sorted((folder / "dreamer/checkpoints").glob("step-*"))
    later = known[-1].with_name("step-000000090")
    try:
        shutil.copytree(known[-1], later)  # as a run that goes on does
        expect(most).to_have_attribute("max", "2")
        page.wait_for_function("before => document.querySelector('.high canvas').toDataURL() !== before", arg=before)
        most.focus()
        page.keyboard.press("End")
        expect(page.locator("#facts")).to_contain_text(later.name)
    finally:
        shutil.rmtree(later)


def test_probes_are_drawn(page: Page, site: str) -> None:
    opened(page, site, "mapped", steps=2)
    page.get_by_role("tab", name="Latent").click()
    expect(page.locator("#probes canvas")).to_have_count(3)  # a map, the true one, and arrows
    for canvas in page.locator("#probes canvas").all():
        assert canvas.evaluate("c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size > 4")
    page.keyboard.press("d")
    expect(page.locator("#probes")).to_contain_text("only rows that happened have")


def test_files_to_share(page: Page, site: str, browser: Any, tmp_path: Path) -> None:
    opened(page, site, steps=6)
    page.get_by_role("tab", name="Share").click()
    for kind in ("npz", "gif", "html"):
        with page.expect_download() as download:
            page.locator(f"#save-{kind}").click()
        assert download.value.suggested_filename.endswith(f".{kind}")
        download.value.save_as(tmp_path / f"file.{kind}")
    alone = browser.new_context(offline=True).new_page()
    wrong: list[str] = []
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.goto((tmp_path / "file.html").as_uri())
    alone.locator("#play").click()
    expect(alone.locator("#row")).to_have_text(re.compile("row 6 of 6 · the model imagines"))
    assert alone.locator("#dream").evaluate("image => image.naturalWidth") > 100
    alone.close()
    assert not wrong


def test_the_table_of_runs(page: Page, site: str, folder: Path) -> None:
    metrics, lines = folder / "dqn/metrics.jsonl", page.locator("#table tbody tr")
    before = metrics.read_bytes()
    metrics.touch()  # it is training now
    page.goto(site)
    expect(lines.filter(has_text="dqn")).to_contain_text("training now")
    metrics.write_bytes(before + b'{"step": 98765, "episode/score": 1.0}\n')
    expect(lines.filter(has_text="dqn")).to_contain_text("98,765")
    metrics.write_bytes(before)
    expect(lines).to_have_count(3)
    page.get_by_role("button", name="algorithm").click()
    expect(lines.first).to_contain_text("dqn")
    page.get_by_role("button", name="algorithm").click()
    expect(lines.first).to_contain_text("dreamer_v3")
    for box in page.locator("#table tbody input").all():
        box.check()
    expect(page.locator("#comparison canvas")).to_be_visible()
    page.locator("#find").fill("dqn")
    expect(lines).to_have_count(1)
    page.get_by_role("link", name="dqn").click()
    at(page, "0 of 0")


def test_an_agent_without_a_model(page: Page, site: str) -> None:
    opened(page, site, "dqn", steps=3)
    expect(page.locator("#dream")).to_be_hidden()
    expect(page.locator("#dreamon")).to_be_hidden()
    expect(page.locator("#panel")).to_contain_text("Q of each action")
    expect(page.locator(".charts .chart")).to_have_count(3)
    assert drawn(page, "real")
    page.keyboard.press("d")
    page.keyboard.press("m")
    page.keyboard.press("1")
    at(page, "4 of 4")


def test_recorded_episodes(page: Page, site: str) -> None:
    opened(page, site)
    page.locator("#source").click()
    expect(page.locator("#facts")).to_contain_text("episode 0 of the run")
    page.keyboard.press("ArrowRight")
    at(page, "1 of 1")
    page.locator("#episode").fill("1")
    page.locator("#episode").press("Tab")
    expect(page.locator("#facts")).to_contain_text("episode 1 of the run")
    page.locator("#episode").fill("100000")
    page.locator("#episode").press("Tab")
    expect(page.locator("#note")).to_contain_text("100000")
    page.locator("#source").click()
    expect(page.locator("#facts")).to_contain_text("seed")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(page: Page, site: str, scheme: Any) -> None:
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    wide = "document.documentElement.scrollWidth"
    page.goto(site)
    expect(page.locator("#table tbody tr")).to_have_count(3)
    assert page.evaluate(wide) <= 390
    opened(page, site, steps=2)
    for tab in page.get_by_role("tab").all():
        tab.click()
        page.wait_for_timeout(100)
        assert page.evaluate(wide) <= 390, tab.inner_text()
    page.locator("#theme").click()
    paper = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert (paper == "rgb(21, 23, 27)") == (scheme == "light")
    page.keyboard.press("?")
    expect(page.locator("#help")).to_contain_text("go on dreaming")


def test_a_server_that_has_ended(browser: Any, folder: Path) -> None:
    page = browser.new_page()
    with served(folder) as (_, port):
        opened(page, f"http://127.0.0.1:{port}/{TOKEN}/", steps=1)
    expect(page.locator("#note")).to_contain_text("The connection to reverie look is lost")
    page.close()
