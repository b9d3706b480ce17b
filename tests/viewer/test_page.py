"""The page in a real browser, driven by clicks and keys. Whatever the page itself complains of fails the test."""

import functools
import http.server
import json
import math
import re
import shutil
import socket
import threading

import pytest

pytest.importorskip("uvicorn", reason="the extra look is not installed")
from test_server import TOKEN, served

from browser import launched_browser, playwright, violations
from reverie.log.jsonl import FINAL
from reverie.viewer import runs
from reverie.viewer.findings import format_number
from reverie.viewer.launch import view
from reverie.viewer.runs import runs_table

expect = playwright.expect
expect.set_options(timeout=30_000)
CHIP, SEEN, STOPPED = (
    "#dream .chip",
    "observes this row",
    ("#real p", re.compile("The environment has stopped here.|Another action than in the episode.")),
)
PICTURE, ENDED, NOTE = "c => c.toDataURL()", ("#real .chip", re.compile("the end")), "#note"
RED = """() => {
  const canvas = document.querySelector("#dream canvas"), { width, height } = canvas;
  const context = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  context.drawImage(canvas, 0, 0);
  const colors = context.getImageData(0, 0, width, height).data;
  return colors.some((red, i) => i % 4 === 0 && red > colors[i + 1] + 60);
}"""
"""Whether something is red in the picture of the dream."""
DRAWN = "c => c.getContext('2d').getImageData(0, 0, c.width, c.height).data.some(Boolean)"
QUICK = "const every = setInterval; setInterval = (call, milliseconds) => every(call, milliseconds / 20)"
"""Lets the page look for news more often."""


@pytest.fixture(scope="module")
def site(folder):
    with served(folder) as (_, port):
        yield f"http://127.0.0.1:{port}/{TOKEN}/"


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser


@pytest.fixture
def page(browser, site):
    """A page that does not play by itself."""
    page, wrong = browser.new_page(viewport={"width": 1280, "height": 1200}, reduced_motion="reduce"), []
    page.on("pageerror", lambda error: wrong.append(str(error)))

    def take_note(said):
        if said.type in ("error", "warning") and "willReadFrequently" not in said.text:  # only tests read pictures back
            wrong.append(said.text)

    page.on("console", take_note)
    allowed = ("http://127.0.0.1:", "blob:")
    page.on("request", lambda asked: None if asked.url.startswith(allowed) else wrong.append(asked.url))
    yield page
    page.close()
    assert not wrong


def opened(page, site, run="dreamer", at=0, tab=None):
    """Open a run, wait until its episode is played on the server, and turn to a tab; return the last row."""
    page.goto(f"{site}?run={run}&seen=5&row={at}")
    page.locator("#run[aria-busy=false]").wait_for()
    go(page, row(f"{at} of .*"))
    if tab:
        page.get_by_role("tab", name=tab).click()
    return int(page.locator("#scrub").get_attribute("max"))


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


def imagines(step):
    """What the dream says at an imagined row. The model has hardly learned: it may expect the end at any row."""
    return re.compile(f"imagines, step {step}|the dream ended")


def drawn(page, side):
    """Whether the picture has more than one color."""
    pixels = page.locator(f"#{side} canvas").evaluate(
        "c => [...new Uint32Array(c.getContext('2d').getImageData(0, 0, c.width, c.height).data.buffer)]"
    )
    return len(set(pixels)) > 1


def test_an_episode_plays_when_a_run_is_opened(page, site):
    page.emulate_media(reduced_motion="no-preference")
    page.goto(f"{site}?run=dreamer&seen=5")
    go(
        page,
        ("#lead", re.compile("Left: CartPole-v1.*Right: what the model imagines.*first 5 rows")),
        ("#play", "Stop"),
    )
    go(
        page, (CHIP, imagines("[3-9]")), ENDED, (CHIP, SEEN), "ArrowLeft", ("#play", "Play"), "End"
    )  # it plays again until it is touched
    assert (drawn(page, "real"), drawn(page, "dream")) == (True, True)
    last = int(page.locator("#scrub").get_attribute("max"))
    go(page, row(f"{last} of {last}"), ("#panel .numbers canvas", 4), ("#panel", re.compile("reward.*value.*surprise")))
    go(page, "Home", (CHIP, SEEN), ("#real .chip", ""), "#forth", row("1 of .*"), ("#real .chip", "reward 1"))
    seed = page.locator("#facts").inner_text()
    page.locator("#actions").select_option("sampled")
    page.wait_for_url(re.compile("policy=sampled"))
    go(page, ("#facts", seed), ENDED, "#again")
    expect(page.locator("#facts")).not_to_have_text(seed)
    go(page, ENDED)


def test_taking_over_and_going_back(page, site):
    opened(page, site, at=3)
    go(page, "m", "0", row("4 of 4"), "1", row("5 of 5"), "ArrowLeft", row("6 of 6"), ",", ",", row("4 of 6"))
    expect(page.locator("#hands .on")).to_have_attribute("data-action", "1")
    go(page, "#hands [data-action='0']", row("5 of 5"))  # another action: another line
    go(page, "#mine", ("#hands", None), "#play", ENDED)  # the policy plays the rest


def test_numbers_follow_held_keys(page, site):
    opened(page, site, "sac", at=3)
    page.locator("#speed").select_option("60")
    go(page, "m", ("#hands output", "0"))
    page.keyboard.down("ArrowRight")
    go(page, ("#hands output", "2"), ("#play", "Stop"), row("([7-9]|\\d\\d) of .*"))  # in the environment's units
    page.keyboard.up("ArrowRight")
    go(page, ("#hands output", "0"), ("#play", "Play"))
    page.wait_for_timeout(300)  # the row of the newest action can still be on its way
    go(page, ",", ("#taken", "Action taken here: 2"))
    expect(page.locator(".chart").filter(has_text="Action (-1 to 1)").locator("b")).to_have_text("1")


def test_dreaming_on_and_letting_it_happen(page, site):
    opened(page, site, at=2)
    page.locator("#steps").fill("4")
    go(page, "#dreamon", row("6 of 6"), STOPPED, "m", "1", row("7 of 7"))  # in the dream
    go(page, "m", "#catchup", ("#catchup", None), row("7 of 7"), ("#real .chip", re.compile("reward")))
    go(page, "End", "o", (CHIP, SEEN))  # the model sees all that happened


def test_the_strip_judges_the_dream_and_goes_to_the_row_that_is_pressed(page, site):
    opened(page, site, "mapped", at=4)  # it has hardly learned
    go(
        page,
        ("#sentence", re.compile("It saw 5 frames. The next [0-9]+ are imagined; at frame 5 it is [0-9]+ cells off.")),
    )
    go(page, ("#verdict", "reconstruction of this row"))
    canvas, last = page.locator("#strip canvas"), int(page.locator("#scrub").get_attribute("max"))
    cell = min(88, canvas.bounding_box()["width"] / (last + 1))
    canvas.click(position={"x": cell * 5.5, "y": 30})
    go(page, row("5 of .*"), ("#verdict.differs", re.compile("^[0-9]+ cells off$")))
    go(page, ("#why", re.compile("Surprise: .* % of the other rows", re.DOTALL)))
    page.keyboard.press("ArrowRight")  # the dream has ended
    go(page, ("#why", 0))
    go(page, row("6 of .*"), ("#verdict.differs", "the dream has ended"))
    before = page.locator("#dream canvas").evaluate(PICTURE)
    go(page, "ArrowLeft", "t", ("#outline[aria-pressed=false]", 1))
    assert page.locator("#dream canvas").evaluate(PICTURE) != before
    opened(page, site, "dqn", at=3)
    go(page, ("#sentence", re.compile("At frame 0 the critic expects .* came")), ("#verdict", None))


def test_the_timeline(page, site):
    last = opened(page, site)
    over, label = page.locator(".charts .u-over").first, page.locator(".charts canvas").first
    box = over.bounding_box()
    over.click(position={"x": box["width"] * 5 / last, "y": 20})
    go(page, (".charts .chart", 7), row("5 of .*"))
    page.locator("#scrub").fill("7")
    values = page.locator(".chart").filter(has_text="Reward").locator("b").first
    go(page, row("7 of .*"), (CHIP, imagines(3)))
    expect(values).to_have_text("1")
    box = over.bounding_box()
    page.mouse.move(box["x"] + 1, box["y"] + 20)  # values where the pointer is, in all charts
    expect(values).to_have_text("\u2013")
    before = label.evaluate(PICTURE)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 20, steps=4)
    page.mouse.up()
    page.wait_for_url(re.compile("zoom=0,"))
    assert label.evaluate(PICTURE) != before
    over.dblclick()
    page.wait_for_url(lambda url: "zoom" not in url)
    go(page, "+")
    page.wait_for_url(re.compile("zoom="))
    go(page, "-")
    page.wait_for_url(lambda url: "zoom" not in url)
    go(page, ("#surprises button", 5))
    surprising = page.locator("#surprises button").first
    first = surprising.inner_text()
    surprising.click()
    go(page, row(f"{first} of .*"), "s")
    expect(page.locator("#row")).not_to_have_text(re.compile(f"row {first} of"))
    page.get_by_label("Error of", exact=True).select_option("reward")
    go(page, "End", "x")
    expect(page.locator("#differ")).to_have_attribute("aria-pressed", "true")
    page.wait_for_function(RED)


def test_branches(page, site):
    opened(page, site, at=3)
    go(page, "b", (".future", 8), (".future >> nth=0 >> canvas", 6), ("#panel .chart", 1))
    page.locator("#ahead").fill("4")
    go(
        page,
        "#each",
        (".future", 2),
        (".future.chosen", re.compile(r"^action [01] \(the policy.s choice\), then [01]( \u00d7 \d)?")),
    )
    page.locator(".future").last.click()
    go(page, row("3 of .*"), ("#lanes b >> nth=1", re.compile("^action [01]$")), "End", "ArrowRight", STOPPED)
    page.locator("#scrub").fill("3")
    page.locator("#ahead").fill("1")
    go(page, "#samples", (".future >> nth=0", re.compile("of 8: actions [01]")))  # of one step: two groups at most
    counts = [int(text[0]) for text in page.locator(".future").all_inner_texts()]
    assert (sum(counts), len(counts) <= 2) == (8, True)


def test_lanes(page, site):
    page.set_viewport_size({"width": 390, "height": 1200})
    last, lanes = opened(page, site, at=3), page.locator(".lane")
    chosen = page.locator(".lane[aria-pressed=true]")
    go(page, ("#lanes", None), "m", "0", row("4 of .*"), "0", row("5 of .*"), "m")
    if page.locator("#row").inner_text().endswith(f"of {last}"):  # these were the policy's actions
        go(page, "m", "1", row("6 of 6"), "m")
    page.locator("#scrub").fill("2")
    page.locator("#steps").fill("4")
    go(page, "#dreamon", (".lane", 3), row("[3-6] of .*"), ("#play", "Play"))
    expect(chosen).to_have_text(re.compile("^dream 2 leaves dream at row 2, [4-7] rows, score "))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.wait_for_function(f"() => [...document.querySelectorAll('.lane canvas')].every({DRAWN})")
    at = page.locator("#row").inner_text().split(" of")[0]
    lanes.first.click()
    go(page, ("#row", f"{at} of {last}"), "ArrowDown")
    expect(chosen).to_have_text(re.compile("^your hands leaves dream at row "))
    line, track = (page.locator(f"{place} .now").bounding_box() for place in ("#lanes", "#strip"))
    assert line["x"] == pytest.approx(track["x"], abs=1)  # the same row at the same place
    assert violations(page) == []
    go(page, "u", (".lane", 2), "#undo", ("#lanes", None), ("#row", re.compile(f"of {last}$")))


def test_a_lane_of_ones_own_is_beside_the_episode(page, site):
    """On wide screens, while its actions are others: the picture is the episode's, not that of the lane."""
    page.set_viewport_size({"width": 1500, "height": 1000})
    opened(page, site, at=2)
    expect(page.locator("#episode")).to_be_hidden()
    go(page, "m", "0", row("3 of .*"), "0", row("4 of .*"), "m")
    if page.locator("#lanes").is_hidden():  # these were the policy's actions
        go(page, "m", "1", row("5 of .*"), "m")
    expect(page.locator("#episode")).to_be_visible()
    expect(page.locator("#real b")).to_have_text("your hands")
    page.wait_for_function(f"() => [document.querySelector('#episode canvas')].every({DRAWN})")
    left, middle, right = (page.locator(f"#{name}").bounding_box()["x"] for name in ("episode", "real", "dream"))
    assert left < middle < right
    assert page.evaluate("document.documentElement.scrollWidth") <= 1500
    go(page, "u", ("#lanes", None))
    expect(page.locator("#episode")).to_be_hidden()
    expect(page.locator("#real b")).to_have_text("Environment")


def test_a_dream_that_ends(page, site):
    opened(page, site, "mapped", at=5)
    go(page, (CHIP, re.compile("the dream ends here")), "b", (NOTE, re.compile("the dream ends at row 5")))
    go(page, "ArrowRight", (CHIP, "the dream ended at row 5"), "d", (NOTE, re.compile("^The dream ends at row 5")))
    page.locator(NOTE).get_by_role("button").click()
    go(page, (".lane", 2), (CHIP, "the dream ended at row 5"))


def test_editing_the_latent(page, site):
    opened(page, site, at=7, tab="Latent")
    grid = page.locator("#grid")
    box = grid.bounding_box()
    page.locator("#keep").check()
    for x, y in ((0.1, 0.1), (0.9, 0.6)):
        grid.click(position={"x": box["width"] * x, "y": box["height"] * y})
    go(page, (CHIP, re.compile("edited")), ("#changed", "2 edits"), "u", "#undo", (CHIP, imagines(3)), ("#undo", None))
    grid.focus()
    go(page, "ArrowDown", "ArrowRight", "Enter", ("#changed", "1 edit"), row("7 of .*"))


def test_through_training(page, site):
    opened(page, site, at=6, tab="Training")
    newest = page.locator("#facts").inner_text()
    go(page, ("#which", re.compile("step")))
    page.locator("#checkpoint").focus()
    for key, step in (("Home", 0), ("ArrowRight", 20), ("ArrowRight", 30), ("ArrowRight", 40), ("ArrowRight", 60)):
        go(page, key, ("#which", f"trained for {step} env steps"))  # snapshots and, at 30 and 60, checkpoints
        expect(page.locator("#facts")).to_contain_text(f"step-{step:09}")
    go(page, "Home", ("#which", "trained for 0 env steps"))
    expect(page.locator("#facts")).not_to_have_text(newest)
    page.locator("#curve").select_option("loss/reward")
    go(page, row("6 of .*"), ("#panel .chart.tall h3", "loss/reward"))


def test_the_error_over_training_and_a_new_checkpoint(page, site, folder):
    page.add_init_script(QUICK)
    opened(page, site, at=6, tab="Training")
    newest = page.locator("#facts").inner_text()
    go(page, "#theme")  # while errors are asked for
    page.locator("#errorof").select_option("reward")
    chart, most = page.locator("#panel .chart.high"), page.locator("#checkpoint")
    lines = [f"document.querySelector('{kind} .now').style.left" for kind in (".high", ".tall")]
    page.wait_for_function(f"{lines[0]} === {lines[1]}")  # of the checkpoint, although one chart came later
    before = chart.locator("canvas").evaluate(PICTURE)
    expect(most).to_have_attribute("max", "4")
    chart.locator(".u-over").click(position={"x": 5, "y": 40})  # at the earliest checkpoint
    expect(page.locator("#facts")).not_to_have_text(newest)
    known = sorted((folder / "dreamer/checkpoints").glob("step-*"))[-1]
    later = known.with_name("step-000000090")
    try:
        shutil.copytree(known, later)  # as a run that goes on does
        expect(most).to_have_attribute("max", "5")
        page.wait_for_function("before => document.querySelector('.high canvas').toDataURL() !== before", arg=before)
        most.focus()
        go(page, "End", ("#facts", re.compile(later.name)))
    finally:
        shutil.rmtree(later)


def test_probes_are_drawn(page, site):
    opened(page, site, "mapped", at=2, tab="Latent")
    go(page, ("#probes canvas", 3))  # a map, the true one, and arrows
    for canvas in page.locator("#probes canvas").all():
        assert canvas.evaluate("c => new Set(c.getContext('2d').getImageData(0, 0, c.width, c.height).data).size > 4")
    go(page, "d", ("#probes", re.compile("only rows that happened have")))


def test_files_to_share(page, site, browser, tmp_path):
    last = opened(page, site, at=6, tab="Share")
    for kind in ("npz", "gif", "html"):
        with page.expect_download() as download:
            go(page, f"#save-{kind}")
        assert download.value.suggested_filename.endswith(f".{kind}")
        download.value.save_as(tmp_path / f"file.{kind}")
    alone, wrong = browser.new_context(offline=True).new_page(), []
    alone.on("pageerror", lambda error: wrong.append(str(error)))
    alone.goto((tmp_path / "file.html").as_uri())
    go(alone, "#play", ("#row", re.compile("row [1-9]")), "#play", ("#play", "Play"))  # it starts again at its end
    alone.locator("#scrub").press("End")
    go(alone, ("#row", f"row {last} of {last}"), "ArrowLeft", ("#row", f"row {last - 1} of {last}"))
    assert alone.locator("#dream img").evaluate("image => image.naturalWidth") > 100
    go(alone, ("#sentence", re.compile("It saw 5 frames")), ("#verdict", re.compile("nothing changes|has ended")))
    go(alone, ("#dream .chip", re.compile("imagines, step")), (".chart", 4), (".chart >> nth=0 >> b >> nth=0", "1"))
    for scheme in ("light", "dark"):
        alone.emulate_media(color_scheme=scheme)
        assert violations(alone) == []
    alone.close()
    assert not wrong


def test_the_table_of_runs(page, site, folder, monkeypatch):
    monkeypatch.setattr(runs, "LIVE_SECONDS", math.inf)
    metrics, lines = folder / "dqn/metrics.jsonl", page.locator("#table > .scroll tbody tr")
    before = metrics.read_bytes()
    page.add_init_script(QUICK)
    page.goto(site)
    expect(lines.filter(has_text="dqn")).not_to_contain_text("training now")
    (folder / "dqn/.lock").touch()  # it is training now
    page.goto(site)
    expect(lines.filter(has_text="dqn")).to_contain_text("training now")
    metrics.write_bytes(before + b'{"step": 98765, "episode/score": 1.0}\n')
    expect(lines.filter(has_text="dqn")).to_contain_text("98,765")
    metrics.write_bytes(before)
    (folder / "dqn/.lock").write_text(json.dumps({"pid": 2**22 + 1, "host": socket.gethostname()}))  # no such process
    expect(lines.filter(has_text="dqn")).not_to_contain_text("training now")
    (folder / "dqn/.lock").unlink()
    expect(lines).to_have_count(4)
    for first in ("dqn", "sac"):
        page.get_by_role("button", name="algorithm").click()
        expect(lines.first).to_contain_text(first)
    score = json.loads((folder / "dqn/eval.json").read_text())["score"]["mean"]
    expect(lines.filter(has_text="dqn").locator(".num").last).to_have_text(f"{format_number(score)} ◆")
    changed = lines.filter(has_text="dqn").locator("time")
    now = runs_table({"dqn": folder / "dqn"})[0]["changed"] * 1000 + 570_000
    page.evaluate(f"Date.now = () => {now}")
    page.get_by_role("button", name="changed").click()
    expect(changed).to_have_text("9 min ago")
    for box in page.locator("#table > .scroll tbody input").all():
        box.check()
    go(page, ("#comparison canvas", 2), ("#comparison .hint", 3))  # a chart an environment; one has no scores
    expect(page.locator("#comparison .hint", has_text="MiniGrid-Empty-5x5-v0")).to_be_visible()
    expect(page.locator("#differences")).to_contain_text("algo.batch_size")
    page.wait_for_url(re.compile("runs=.*,.*,.*,"))
    page.reload()
    go(page, ("#comparison canvas", 2), ("#pair", None))
    page.locator("#smoothing").fill("40")
    for name in ("mapped", "sac"):
        page.get_by_role("checkbox", name=f"compare {name}").uncheck()
    go(page, ("#comparison canvas", 1), "#pair", ("#beside iframe", 2))
    for frame in page.frames[1:]:
        expect(frame.locator("#facts")).to_contain_text("seed 0")
    page.goto(site)
    page.locator("#find").fill("dqn")
    expect(lines).to_have_count(1)
    page.get_by_role("link", name="dqn").click()
    go(page, row("0 of .*"))


def test_an_agent_without_a_model(page, site):
    opened(page, site, "dqn", at=3)
    go(page, ("#dream", None), ("#dreamon", None), ("#panel", re.compile("Q of each action")), (".charts .chart", 3))
    assert drawn(page, "real")
    scale = page.locator("#advantages").get_attribute("aria-label")
    go(page, "ArrowRight", row("4 of .*"))
    expect(page.locator("#advantages")).to_have_attribute("aria-label", scale)  # one scale for the episode
    go(page, "ArrowLeft")
    go(page, "d", "m", "1", row("4 of .*"))


def test_scores_look_as_in_sentences(page, site):
    scores = [102.5, 101.5, 12.25, 12.35, 1.125, 0.5625, 99.96, -3.456, 1234.5, 0.0, 500.0]
    page.goto(site)
    found = page.evaluate("""async (scores) => scores.map((await import("./dom.js")).formatScore)""", scores)
    assert found == [format_number(score) for score in scores]


def test_an_axis_of_zeros(page, site):
    page.goto(site)
    show = """async () => {
      const { Chart } = await import("./chart.js"), box = document.body.appendChild(document.createElement("div"));
      const chart = new Chart(box, { title: "" });
      return [[0, 0], [null, 0], [3, 4]].map((values) => {
        chart.show([0, 1], [{ name: "", values, color: "red" }], [0, 1]);
        return chart.plot.scales.y.max;
      });
    }"""
    assert page.evaluate(show) == [1, 1, pytest.approx(4.1)]


def test_the_page_says_that_it_loads(page, site):
    with page.expect_response(re.compile("app.js")):
        page.goto(f"{site}?run=dqn", wait_until="commit")
    expect(page.locator(NOTE)).to_have_text(re.compile("^Loading (dqn )?…$"))
    page.locator("#run[aria-busy=false]").wait_for()
    go(page, (NOTE, None))


def test_recorded_episodes(page, site):
    opened(page, site, at=9, tab="Latent")
    page.get_by_role("tab", name="Episodes").click()
    go(page, (".cards >> nth=0 >> .card", 6))
    recorded = page.locator(".cards").last.locator(".card")
    expect(recorded).to_have_count(2)
    for cards in (page.locator(".cards").first.locator(".card"), recorded):
        expect(cards.first).to_contain_text(re.compile("steps, (the end|time is up)"))
        returns = [float(re.search("return ([0-9.]+)", text)[1]) for text in cards.all_inner_texts()]
        assert returns == sorted(returns)
    page.get_by_role("tab", name="Latent").click()
    page.get_by_role("tab", name="Episodes").click()
    name = recorded.first.locator("span").last.inner_text()
    recorded.first.click()
    go(
        page,
        ("#facts", re.compile(f"CartPole-v1 · .* · {name} of the run")),
        row("0 of [1-9].*"),
        (".charts .chart", 7),
    )
    expect(page.locator(".card[aria-current=true]")).to_contain_text(name)
    page.get_by_role("tab", name="Latent").click()
    go(page, ("#grid", 1), (NOTE, None))
    surprising = [int(text) for text in page.locator("#surprises button").all_inner_texts()]
    assert max(surprising, default=0) <= int(page.locator("#scrub").get_attribute("max"))
    go(page, "r", ("#facts", re.compile("seed")))


def test_the_address_remembers_the_place(browser, page, site):
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    opened(page, site, tab="Futures")
    go(page, "#again", "#theme", ("#run[aria-busy=false]", 1))
    seed = page.locator("#facts").inner_text()
    page.locator("#scrub").fill("7")
    go(page, "o", (CHIP, SEEN), "#copy", ("#copy", "Copied"))
    link = page.evaluate("navigator.clipboard.readText()")
    page.goto(site)
    go(page, ("#table > .scroll tbody tr", 4))
    page.goto(link)
    go(page, row("7 of .*"), ("#facts", seed), ("#lead", re.compile("first 8 rows")))
    expect(page.get_by_role("tab", name="Futures")).to_have_attribute("aria-selected", "true")
    expect(page.locator("html")).to_have_attribute("data-theme", "dark")


@pytest.mark.parametrize(
    ("query", "note", "button"),
    [("run=nothing", "there is no run 'nothing'", "All runs"),
     ("run=dreamer&checkpoint=step-1", "there is no checkpoint 'step-1'", "Open the run from its beginning"),
     ("run=dreamer&episode=1000000", "episodes, numbered from 0", "Open the run from its beginning")],
)  # fmt: skip
def test_an_address_that_leads_nowhere(page, site, query, note, button):
    page.goto(f"{site}?{query}")
    go(page, (NOTE, re.compile(note)), ("#run", None))
    expect(page.locator(NOTE).get_by_role("button", name="recorded")).to_have_count(0)
    page.locator(NOTE).get_by_role("button", name=button).click()
    go(page, ("#table > .scroll tbody tr", 4) if button == "All runs" else row("0 of .*"), (NOTE, None))


def test_many_runs_are_compared_by_what_most_of_them_have(page, folder, tmp_path):
    for number in range(40):
        run = tmp_path / f"run-{number:02}"
        run.mkdir()
        shutil.copy(folder / "dqn/config.yaml", run)
        trained, evaluated = {"step": 10, "episode/score": 10.0}, {"step": 20, "eval/score": 7.0, FINAL: 1.0}
        rows = [trained, trained | {"step": 20}] if number else [evaluated]
        (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    with served(tmp_path) as (_, port):
        page.goto(f"http://127.0.0.1:{port}/{TOKEN}/?runs=run-00,run-01,run-02")
        go(page, ("#ticked b", "3 runs are ticked"), ("#comparison canvas", 1), "#table tbody button")  # lists the runs
        expect(page.locator("#ticked")).to_be_in_viewport()
        expect(page.locator("#comparison")).not_to_be_in_viewport()
        go(page, "#ticked button")
        expect(page.locator("#comparison canvas")).to_be_in_viewport()
        expect(page.locator("#metric")).to_have_value("episode/score")
        expect(page.locator("#comparison")).to_contain_text("3 runs, 1 seed")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_comparison_answers(page, tmp_path, logged_run, width):
    for name, ratio, scores in (("good", 0.5, range(101, 106)), ("poor", 0.25, range(1, 6))):
        for seed, score in enumerate(scores):
            logged_run(tmp_path / f"{name}-{seed}", [10.0, 20.0], float(score), seed=seed, replay_ratio=ratio)
    logged_run(tmp_path / "poor-copy", [10.0, 20.0], 1.0, seed=0, replay_ratio=0.25)
    page.set_viewport_size({"width": width, "height": 800})
    page.add_init_script(QUICK)
    with served(tmp_path) as (_, port):
        page.goto(f"http://127.0.0.1:{port}/{TOKEN}/")
        lines = page.locator("#table > .scroll tbody tr")
        good, poor = (lines.filter(has=page.get_by_role("button", name=name)) for name in ("good", "poor"))
        expect(lines).to_have_count(2)
        expect(good).to_contain_text("5 seeds")
        expect(poor).to_contain_text("6 runs, 5 seeds")
        expect(poor.locator(".num").last).to_have_text("3 ◆")  # the copy does not count
        poor.get_by_role("button").click()
        expect(lines).to_have_count(8)
        expect(poor.get_by_role("button")).to_be_focused()
        for line in (good, poor):
            line.get_by_role("checkbox").check()
        expect(page.locator("#answers p")).to_have_text(re.compile("^dqn, replay_ratio 0.5 is best on CartPole-v1"))
        expect(page.locator(".intervals circle")).to_have_count(10)
        expect(page.locator(".intervals").get_by_text("6 runs, 5 seeds")).to_be_visible()
        expect(page.locator("#comparison h3")).to_have_text("CartPole-v1, by env steps")
        expect(page.locator("#metric")).to_have_value("episode/score")  # evaluations at the end are no curve
        page.locator("#axis").select_option("seconds")
        expect(page.locator("#comparison h3")).to_have_text("CartPole-v1, by seconds")
        logged_run(tmp_path / "late", [5.0], replay_ratio=0.1)  # it begins while the page is open
        late = lines.filter(has=page.get_by_role("link", name="late"))
        late.get_by_role("checkbox").check()
        (tmp_path / "late/.lock").touch()
        with (tmp_path / "late/metrics.jsonl").open("a") as metrics:
            metrics.write('{"step": 4321, "episode/score": 77.0}\n')
        expect(late).to_contain_text("77")  # although its box is focused
        expect(late.get_by_role("checkbox")).to_be_focused()
        expect(page.locator(".intervals")).to_contain_text("77")
        expect(page.locator(".intervals .about")).to_have_text(
            "■ IQM with its 95 % interval, or the mean without one, ● seeds"
        )
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        if width == 390:  # cards: the name above the algorithm, nothing to scroll
            tops = """() => [...document.querySelectorAll('#table > .scroll tbody tr')].map(row =>
                [...row.children].slice(1, 3).map(cell => cell.getBoundingClientRect().top))"""
            # In one call: the page may draw its rows anew at any time, and rows of before have no place.
            assert all(name < algorithm for name, algorithm in page.evaluate(tops))
            assert page.locator(".scroll").evaluate_all("all => all.every(box => box.scrollWidth <= box.clientWidth)")
        assert violations(page) == []


@pytest.mark.parametrize(("scheme", "tabs"), [("light", 6), ("dark", 1)])
def test_nothing_is_inaccessible(page, site, scheme, tabs):
    page.emulate_media(color_scheme=scheme)
    page.goto(f"{site}?runs=dqn,dreamer")
    go(page, ("#comparison canvas", 1))
    assert violations(page) == []
    opened(page, site, at=6)
    for tab in page.get_by_role("tab").all()[:tabs]:
        tab.click()
        if tab.inner_text() == "Futures":
            go(page, "b", (".future", 8), "m")
        page.wait_for_timeout(200)
        assert violations(page) == [], tab.inner_text()
    go(page, "?")
    assert violations(page) == []


def test_it_fits_a_phone(page, site):
    page.emulate_media(color_scheme="light")
    page.set_viewport_size({"width": 390, "height": 800})
    wide = "document.documentElement.scrollWidth"
    page.goto(site)
    go(page, ("#table > .scroll tbody tr", 4))
    assert page.evaluate(wide) <= 390
    opened(page, site, at=2)
    expect(page.locator("#scrub")).to_be_focused()  # keys go through the rows at once
    page.locator("#strip canvas").click(position={"x": 60, "y": 20})
    go(page, row("0 of .*"))  # five large pictures, not eight
    tops = [page.locator(place).bounding_box()["y"] for place in ("#scrub", ".stage", "#timeline", "#tabs")]
    assert tops == sorted(tops)
    for tab in page.get_by_role("tab").all():
        tab.click()
        page.wait_for_timeout(100)
        assert page.evaluate(wide) <= 390, tab.inner_text()
    page.set_viewport_size({"width": 1280, "height": 800})
    page.get_by_role("tab", name="Training").click()
    go(page, ("#panel canvas", 2))
    page.set_viewport_size({"width": 390, "height": 800})
    page.wait_for_function(f"{wide} <= 390")
    go(page, "#theme")
    assert page.locator("body").evaluate("body => getComputedStyle(body).backgroundColor") == "rgb(20, 22, 26)"
    go(page, "?", ("#help", re.compile("continue the dream")))


@pytest.mark.parametrize(("host", "live"), [("localhost", True), ("localhost", False), ("hub.example", True)])
def test_the_output_of_a_notebook_works_without_the_server_too(browser, folder, tmp_path, host, live):
    server, asked, page = view(folder / "dreamer"), [], browser.new_page()
    output = server._repr_html_() if live else server._repr_html_().replace(server.url, "http://127.0.0.1:1/gone/")
    (tmp_path / "index.html").write_text(output)
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as notebook:  # browsers know who serves a page
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        address = f"http://{host}:{notebook.server_port}/"
        page.on("request", lambda request: asked.append(request.url))
        page.route("http://hub.example:*/", lambda route: route.fulfill(body=output, content_type="text/html"))
        page.goto(address)
        frame = page.frame_locator("iframe")
        if live and host == "localhost":
            frame.locator("#run[aria-busy=false]").wait_for()  # the page of the server
        else:
            expect(frame.locator("#play")).to_be_enabled()
            assert frame.locator("#real img").evaluate("picture => picture.decode().then(() => picture.naturalWidth)")
            frame.get_by_role("button", name="Play").click()
            expect(frame.locator("#row")).not_to_contain_text("row 0")
        assert host == "localhost" or set(asked) == {address}
        page.close()
        notebook.shutdown()
    server.close()


def test_a_server_that_has_ended(browser, folder):
    page = browser.new_page()
    with served(folder) as (_, port):
        opened(page, f"http://127.0.0.1:{port}/{TOKEN}/")
    go(page, ("#note", re.compile("The connection to reverie view is lost")))
    page.close()
