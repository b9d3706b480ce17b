"""Reports: findings are true or not said, the page shows the facts, and text from files is text."""

import json
from unittest.mock import ANY

import gymnasium
import numpy as np
import pytest

import reverie
from browser import launched_browser, violations
from reverie.cli.main import main
from reverie.core.errors import ConfigError
from reverie.core.seeding import seeded_rng
from reverie.log.right_dreams import read_right_dreams
from reverie.viewer.findings import Mean, Share, find, format_number

RUN = {"step": 1000, "unit": "env steps", "horizon": 15}
GOOD, POOR, RANDOM = Mean(90.0, 85.0, 95.0, 20), Mean(22.0, 15.0, 30.0, 20), Mean(20.0, 14.0, 26.0, 10)
BEST, NEXT = Mean(92.0, 88.0, 96.0, 20), Mean(91.0, 87.0, 95.0, 20)
CURVE = [(100, 20.0, POOR), (500, 92.0, BEST), (900, 91.0, NEXT), (1000, 90.0, GOOD)]
LAGGING = [(490, Share(40, 100)), (1000, Share(97, 100))]
CRITIC = {"expected": 60.0, "actual": 40.0, "error": Mean(20.0, 12.0, 28.0, 15)}


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        (
            {"training": [(10, 1.0), (20, 3.0)]},
            "Not evaluated: the last 2 logged means of training episodes average 2.",
        ),
        ({"score": POOR, "random": RANDOM}, "No better than random actions: 22.0 against 20.0."),
        (
            {"score": GOOD, "random": RANDOM},
            "A mean return of 90.0 [85.0, 95.0] over 20 episodes, after 1,000 env steps.",
        ),
        ({"score": POOR, "random": RANDOM._replace(n=9)}, "A mean return of 22.0 [15.0, 30.0] over"),
        (
            {"score": POOR, "evaluations": [*CURVE[1:], (1000, 22.0, POOR)]},
            "It was better before: 92.0 at step 500",
        ),
        ({"score": POOR, "evaluations": [*CURVE[2:], (1000, 22.0, POOR)]}, "A mean return"),  # three evaluations
        ({"score": GOOD, "evaluations": CURVE}, "A mean return"),  # 92 and 90: the intervals overlap
        (
            {"score": GOOD, "evaluations": CURVE, "snapshots": LAGGING},
            "At step 500 it scores 92.0, and 40 of 100 dreams are right; at step 1,000 97 of 100 are.",
        ),
        ({"score": GOOD, "evaluations": CURVE, "snapshots": [(490, Share(95, 100)), LAGGING[1]]}, "A mean return"),
        ({"score": GOOD, "evaluations": CURVE, "snapshots": [(90, Share(4, 100)), LAGGING[1]]}, "A mean return"),
        ({"score": GOOD, "critic": CRITIC}, "Its critic expects 60.0, and 40.0 comes."),
        ({"score": GOOD, "critic": CRITIC | {"error": Mean(20.0, -1.0, 41.0, 15)}}, "A mean return"),
        ({"score": GOOD, "failures": ["lava"] * 7 + ["time is up"] * 4}, "7 of 11 failures end the same way: lava."),
        ({"score": GOOD, "failures": ["lava"] * 6 + ["time is up"] * 5}, "A mean return"),
        ({"score": GOOD, "failures": ["lava"] * 9}, "A mean return"),
    ],
)
def test_a_finding_is_said_inside_its_rule_alone(facts, title):
    assert find(RUN | facts)[0].title.startswith(title)


def test_numbers_have_intervals_and_one_form():
    low, high = Share(16, 17).interval
    assert (round(low, 3), round(high, 3)) == (0.73, 0.99)  # Wilson's, as R's binom::binom.wilson gives
    assert str(Share(62, 100)) == "62 of 100 (52 to 71 %)"
    assert [format_number(x) for x in (1234.5, 99.96, 0.98765, -0.5)] == ["1,234", "100.0", "0.988", "-0.5"]
    assert Mean.of([1.0] * 10) == (1.0, 1.0, 1.0, 10)


@pytest.fixture(scope="module")
def page(trained, tmp_path_factory):
    """The report of a run, and its facts."""
    path = tmp_path_factory.mktemp("report") / "report.html"
    return reverie.report(trained, path, episodes=12, dreams=6, frames=3)


def test_its_facts_are_those_of_the_run(trained, page):
    """One of the episodes is played by hand."""
    agent = reverie.load(trained)
    facts = page.facts
    again = reverie.report(agent, page.path.with_suffix(".json"), episodes=12, dreams=0, frames=0)
    assert json.loads(again.path.read_text())["score"] == facts["score"]
    assert facts["score"]["value"] == pytest.approx(np.mean([episode["return"] for episode in facts["episodes"]]))
    env, episode = gymnasium.make("CartPole-v1"), facts["episodes"][3]
    with seeded_rng(episode["seed"]):
        (obs, _), state, total, over = env.reset(seed=episode["seed"]), None, 0.0, False
        while not over:
            action, state = agent.act(obs, state)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
    assert total == episode["return"]
    assert all(episode["return"] == episode["steps"] for episode in facts["episodes"])  # CartPole
    assert {episode["ending"] for episode in facts["episodes"]} <= {"the end", "time is up"}
    assert (facts["score"]["n"], facts["random"]["n"], facts["dreams"]["total"]) == (12, 10, 6)
    assert [row[0] for row in facts["evaluations"]][-1] == facts["step"] == agent.step
    assert page.finding == facts["findings"][0]["title"]
    steps, fractions = read_right_dreams(trained)  # for the curve and the viewer
    assert facts["snapshots"] == [
        [step, {"right": round(6 * x), "total": 6, "interval": ANY}] for step, x in zip(steps, fractions, strict=True)
    ]


def test_the_page_shows_them(page):
    with launched_browser() as browser:
        complaints = []
        for scheme, width in (("light", 1280), ("dark", 390)):
            looked = browser.new_page(color_scheme=scheme, viewport={"width": width, "height": 900})
            looked.on("console", lambda said: complaints.append(said.text))
            looked.on("pageerror", lambda error: complaints.append(str(error)))
            looked.on("request", lambda asked: asked.url.startswith(("data:", "file:")) or complaints.append(asked.url))
            looked.goto(page.path.as_uri())
            looked.locator("html[data-ready]").wait_for(state="attached")
            assert looked.locator("h1").inner_text() == page.finding
            assert looked.locator(".episode").count() == 5
            assert looked.evaluate("document.documentElement.scrollWidth") == width
            assert looked.locator(".frames img").count() == 15
        assert complaints == []
        audited = browser.new_context(bypass_csp=True).new_page()
        audited.goto(page.path.as_uri())
        assert violations(audited) == []


def test_it_says_nothing_of_this_machine(trained, page):
    text = page.path.read_text(encoding="utf-8")
    assert str(trained.parent) not in text
    assert page._repr_html_().count("<iframe") == 1


def test_a_policy_without_a_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = reverie.report(reverie.load(lambda obs: int(obs[2] > 0), env="CartPole-v1"), episodes=10, frames=0)
    assert page.path.is_file()
    assert page.finding.startswith("A mean return of ")
    assert page.finding.endswith(" over 10 episodes.")


def test_the_command_and_what_it_refuses(trained, tmp_path, capsys):
    out = tmp_path / "facts.json"
    assert main(["report", str(trained), "--out", str(out), "--episodes", "2", "--dreams", "0", "--frames", "0"]) == 0
    assert json.loads(out.read_text())["findings"][0]["title"] in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match="episodes = -1"):
        reverie.report(trained, out, episodes=-1)
