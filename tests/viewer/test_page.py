"""The page in a real browser, driven by clicks and keys. Whatever the page itself complains of fails the test."""

import re
import shutil

import pytest

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
if BROWSER is None:
    pytest.skip("there is no Chromium", allow_module_level=True)
playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
pytest.importorskip("uvicorn", reason="the extra look is not installed")
from playwright.sync_api import expect  # noqa: E402
from test_server import TOKEN, served  # noqa: E402

expect.set_options(timeout=30_000)
OPTIONS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
CHIP, SEEN, STOPPED = "#dream .chip", "sees this row", ("#real p", "The real one has stopped here.")
PICTURE = "c => c.toDataURL()"


@pytest.fixture(scope="module")
def site(folder):
    with served(folder) as (_, port):
        yield f"http://127.0.0.1:{port}/{TOKEN}/"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=BROWSER, args=OPTIONS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, site):
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("request", lambda asked: None if asked.url.startswith((site, "blob:")) else wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


def opened(page, site, run="dreamer", steps=0, tab=None):
    """Open a run, play some rows, and turn to a tab."""
    page.goto(f"{site}?run={run}")
    go(page, row("0 of 0"))
    for number in range(1, steps + 1):
        go(page, "ArrowRight", row(f"{number} of {number}"))
    if tab:
        page.get_by_role("tab", name=tab).click()


def go(page, *steps):
    """Press keys, click places, and expect of pairs that a place holds a text, so many elements, or nothing to see."""
    for step in steps:
        if isinstance(step, str):
            page.locator(step).click() if step[0] in "#." else page.keyboard.press(step)
            continue
        there = expect(page.locator(step[0]))
        if step[1] is None:
            there.to_be_hidden()
        else:
            (there.to_have_count if isinstance(step[1], int) else there.to_have_text)(step[1])


def row(number):
    return "#row", re.compile(f"^row {number}$")


def drawn(page, side):
    """Whether the picture has more than one color."""
    pixels = page.locator(f"#{side} canvas").evaluate(
        "c => [...new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)]"
    )
    return len(set(pixels)) > 1


def test_real_and_dream_play_side_by_side(page, site):
    opened(page, site)
    go(page, "Space", ("#play", "Stop"), (CHIP, re.compile("imagines, step [3-9]")), "#play", ("#play", "Play"))
    assert (drawn(page, "real"), drawn(page, "dream")) == (True, True)
    go(page, ("#errors", re.compile("observation")), (".numbers canvas", 4))
    go(page, "Home", (CHIP, SEEN), "#forth", row("1 of .*"), "#again", row("0 of 0"))


def test_taking_over_and_going_back(page, site):
    opened(page, site, steps=3)
    go(page, "m", "0", row("4 of 4"), "1", row("5 of 5"), "ArrowLeft", row("6 of 6"), ",", ",", row("4 of 6"))
    expect(page.locator("#hands .on")).to_have_attribute("data-action", "1")
    go(page, "#hands [data-action='0']", row("5 of 5"))  # another action: another line
    go(page, "#mine", ("#hands", None))


def test_dreaming_on_and_letting_it_happen(page, site):
    opened(page, site, steps=2)
    page.locator("#steps").fill("4")
    go(page, "#dreamon", row("6 of 6"), STOPPED, "m", "1", row("7 of 7"))  # in the dream
    go(page, "m", "#catchup", ("#real .chip", re.compile("reward")), ("#catchup", None))
    go(page, "End", "o", (CHIP, SEEN))  # the model sees all that happened


def test_the_timeline(page, site):
    opened(page, site, steps=8)
    over, label = page.locator(".charts .u-over").first, page.locator(".charts canvas").first
    box = over.bounding_box()
    over.click(position={"x": box["width"] * 5 / 20, "y": 20})  # the axis goes to row 20
    go(page, (".charts .chart", 7), row("5 of 8"))
    before = label.evaluate(PICTURE)
    page.mouse.move(box["x"] + 10, box["y"] + 20)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_timeout(200)
    assert label.evaluate(PICTURE) != before  # zoomed
    go(page, row("5 of 8"))
    over.dblclick()
    go(page, ("#surprises button", 5))
    surprising = page.locator("#surprises button").first
    first = surprising.inner_text()
    surprising.click()
    go(page, row(f"{first} of 8"), "s")
    expect(page.locator("#row")).not_to_have_text(f"row {first} of 8")
    page.get_by_label("Error of").select_option("reward")


def test_branches(page, site):
    opened(page, site, steps=3)
    go(page, "b", (".future", 8), (".future >> nth=0 >> canvas", 6))
    page.locator("#ahead").fill("4")
    go(page, "#each", (".future", 2))
    page.locator(".future").last.click()
    go(page, row("7 of 7"), STOPPED)


def test_editing_the_latent(page, site):
    opened(page, site, steps=7, tab="Latent")
    grid = page.locator("#grid")
    box = grid.bounding_box()
    page.locator("#keep").check()
    for x, y in ((0.1, 0.1), (0.9, 0.6)):
        grid.click(position={"x": box["width"] * x, "y": box["height"] * y})
    go(page, (CHIP, "edited"), ("#changed", "2 edits"), "u", "#undo", (CHIP, "imagines, step 3"))
    expect(page.locator("#undo")).to_be_disabled()
    grid.focus()
    go(page, "ArrowDown", "ArrowRight", "Enter", ("#changed", "1 edit"), row("7 of 7"))


def test_through_training(page, site):
    opened(page, site, steps=6, tab="Training")
    newest = page.locator("#facts").inner_text()
    go(page, ("#which", re.compile("step")))
    page.locator("#checkpoint").focus()
    go(page, "Home")
    expect(page.locator("#facts")).not_to_have_text(newest)
    page.locator("#curve").select_option("loss/reward")
    go(page, row("6 of 6"), ("#panel .chart.tall .name", "loss/reward"))


def test_the_error_over_training_and_a_new_checkpoint(page, site, folder):
    opened(page, site, steps=6, tab="Training")
    newest = page.locator("#facts").inner_text()
    go(page, "#theme")  # while errors are asked for
    page.locator("#errorof").select_option("reward")
    chart, most = page.locator("#panel .chart.high"), page.locator("#checkpoint")
    before = chart.locator("canvas").evaluate(PICTURE)
    expect(most).to_have_attribute("max", "1")
    chart.locator(".u-over").click(position={"x": 5, "y": 40})  # at the earliest checkpoint
    expect(page.locator("#facts")).not_to_have_text(newest)
    known = sorted((folder / "dreamer/checkpoints").glob("step-*"))[-1]
    later = known.with_name("step-000000090")
    try:
        shutil.copytree(known, later)  # as a run that goes on does
        expect(most).to_have_attribute("max", "2")
        page.wait_for_function("before => document.querySelector('.high canvas').toDataURL() !== before", arg=before)
        most.focus()
        go(page, "End", ("#facts", re.compile(later.name)))
    finally:
        shutil.rmtree(later)


def test_probes_are_drawn(page, site):
    opened(page, site, "mapped", steps=2, tab="Latent")
    go(page, ("#probes canvas", 3))  # a map, the true one, and arrows
    for canvas in page.locator("#probes canvas").all():
        assert canvas.evaluate("c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size > 4")
    go(page, "d", ("#probes", re.compile("only rows that happened have")))


def test_files_to_share(page, site, browser, tmp_path):
    opened(page, site, steps=6, tab="Share")
    for kind in ("npz", "gif", "html"):
        with page.expect_download() as download:
            go(page, f"#save-{kind}")
        assert download.value.suggested_filename.endswith(f".{kind}")
        download.value.save_as(tmp_path / f"file.{kind}")
    alone, wrong = browser.new_context(offline=True).new_page(), []
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.goto((tmp_path / "file.html").as_uri())
    go(alone, "#play", ("#row", re.compile("row 6 of 6 · the model imagines")))
    assert alone.locator("#dream").evaluate("image => image.naturalWidth") > 100
    alone.close()
    assert not wrong


def test_the_table_of_runs(page, site, folder):
    metrics, lines = folder / "dqn/metrics.jsonl", page.locator("#table tbody tr")
    before = metrics.read_bytes()
    metrics.touch()  # it is training now
    page.goto(site)
    expect(lines.filter(has_text="dqn")).to_contain_text("training now")
    metrics.write_bytes(before + b'{"step": 98765, "episode/score": 1.0}\n')
    expect(lines.filter(has_text="dqn")).to_contain_text("98,765")
    metrics.write_bytes(before)
    expect(lines).to_have_count(3)
    for first in ("dqn", "dreamer_v3"):
        page.get_by_role("button", name="algorithm").click()
        expect(lines.first).to_contain_text(first)
    for box in page.locator("#table tbody input").all():
        box.check()
    expect(page.locator("#comparison canvas")).to_be_visible()
    page.locator("#find").fill("dqn")
    expect(lines).to_have_count(1)
    page.get_by_role("link", name="dqn").click()
    go(page, row("0 of 0"))


def test_an_agent_without_a_model(page, site):
    opened(page, site, "dqn", steps=3)
    go(page, ("#dream", None), ("#dreamon", None), ("#panel", re.compile("Q of each action")), (".charts .chart", 3))
    assert drawn(page, "real")
    go(page, "d", "m", "1", row("4 of 4"))


def test_recorded_episodes(page, site):
    opened(page, site)
    go(page, "#source", ("#facts", re.compile("episode 0 of the run")), "ArrowRight", row("1 of 1"))
    for number, place in (("1", "#facts"), ("100000", "#note")):
        page.locator("#episode").fill(number)
        page.locator("#episode").press("Tab")
        go(page, (place, re.compile(number if place == "#note" else "episode 1 of the run")))
    go(page, "#source", ("#facts", re.compile("seed")))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone(page, site, scheme):
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 800})
    wide = "document.documentElement.scrollWidth"
    page.goto(site)
    go(page, ("#table tbody tr", 3))
    assert page.evaluate(wide) <= 390
    opened(page, site, steps=2)
    for tab in page.get_by_role("tab").all():
        tab.click()
        page.wait_for_timeout(100)
        assert page.evaluate(wide) <= 390, tab.inner_text()
    go(page, "#theme")
    paper = page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor")
    assert (paper == "rgb(21, 23, 27)") == (scheme == "light")
    go(page, "?", ("#help", re.compile("continue the dream")))


def test_a_server_that_has_ended(browser, folder):
    page = browser.new_page()
    with served(folder) as (_, port):
        opened(page, f"http://127.0.0.1:{port}/{TOKEN}/", steps=1)
    go(page, ("#note", re.compile("The connection to reverie view is lost")))
    page.close()
