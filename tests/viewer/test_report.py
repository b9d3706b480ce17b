"""Reports: findings are true or not said, the page shows the facts, and text from files is text."""

import json
import re
import shutil
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import yaml

import reverie
from browser import launched_browser, playwright, violations
from reverie.agent.dream_strip import make_value_strip
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError, EnvError
from reverie.core.seeding import seeded_rng
from reverie.core.specs import ObsPart
from reverie.core.statistics import RESAMPLES, Share, estimate_interval, interval, iqm
from reverie.distributed.compare import describe_further_seeds, seeds_to_separate
from reverie.envs.rooms import Rooms
from reverie.viewer import episode_facts
from reverie.viewer.episode_facts import PlayedEpisode, describe_shown, look_again, pick_episodes, play_episodes
from reverie.viewer.findings import Mean, find, format_number
from reverie.viewer.model_free_values import critic_rewards, value_discount
from reverie.viewer.run_facts import _compare_with_critic

RUN = {"step": 1000, "unit": "env steps", "horizon": 15}
GOOD, POOR, RANDOM = Mean(90.0, 85.0, 95.0, 20), Mean(22.0, 15.0, 30.0, 20), Mean(20.0, 14.0, 26.0, 10)
BEST, NEXT = Mean(92.0, 88.0, 96.0, 20), Mean(91.0, 87.0, 95.0, 20)
CURVE = [(100, 20.0, POOR), (500, 92.0, BEST), (900, 91.0, NEXT), (1000, 90.0, GOOD)]
LAGGING = [(490, Share(40, 100)), (1000, Share(97, 100))]
ESTIMATE = {"value": RANDOM, "recorded": POOR, "discount": 0.99, "method": "FQE"}
CRITIC = {"expected": 60.0, "actual": 40.0, "error": Mean(20.0, 12.0, 28.0, 15)}


@pytest.mark.parametrize(
    ("facts", "title"),
    [
        (
            {"training": [(10, 1.0), (20, 3.0)]},
            "Not evaluated: the last 2 logged means of training episodes average 2.",
        ),
        ({"score": POOR, "random": RANDOM}, "No better than random actions: 22.0 against 20.0."),
        ({"score": RANDOM, "random": POOR._replace(low=26.5)}, "Worse than random actions: 20.0 against 22.0."),
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
            "At step 500 the agent scores 92.0, and 40 of 100 dreams are right; at step 1,000, 97 of 100 are.",
        ),
        ({"score": GOOD, "evaluations": CURVE, "snapshots": [(490, Share(95, 100)), LAGGING[1]]}, "A mean return"),
        ({"score": GOOD, "evaluations": CURVE, "snapshots": [(90, Share(4, 100)), LAGGING[1]]}, "A mean return"),
        ({"score": GOOD, "critic": CRITIC}, "The critic expects a return of 60.0, and 40.0 comes."),
        ({"score": GOOD, "critic": CRITIC | {"error": Mean(20.0, -1.0, 41.0, 15)}}, "A mean return"),
        ({"score": GOOD, "failures": ["lava"] * 7 + ["time is up"] * 4}, "7 of 11 failures end the same way: lava."),
        ({"score": GOOD, "failures": ["lava"] * 6 + ["time is up"] * 5}, "A mean return"),
        ({"score": GOOD, "failures": ["lava"] * 9}, "A mean return"),
        (
            {"score": GOOD, "tasks": {"1": Share(0, 10), "2": Share(9, 10), "3": Share(10, 10)}},
            "It reaches the goal of task 1 in 0 % of its episodes, that of the others in 90 to 100 %.",
        ),
        ({"score": GOOD, "tasks": {"1": Share(4, 10), "2": Share(9, 10)}}, "A mean return"),  # the intervals overlap
        ({"score": GOOD, "tasks": {"1": Share(0, 9), "2": Share(9, 9)}}, "A mean return"),
        (
            {"score": GOOD, "offline": True, "data": {"episodes": 3, "mean": 9.0, "best": 30.0}},
            "A mean return of 90.0 [85.0, 95.0] over 20 episodes, where the data's 3 episodes have a mean of 9 and a "
            "best of 30.0.",
        ),
        (
            {"offline": True, "estimate": ESTIMATE},
            "FQE estimates a discounted return of 20.0 [14.0, 26.0], where the recorded episodes have 22.0",
        ),
        ({"offline": True, "data": {"episodes": 3}}, "Not evaluated: it learned from 3 episodes."),
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
    return reverie.report(trained, out=path, episodes=12, dreams=6, frames=3)


def test_its_facts_are_those_of_the_run(trained, page):
    """One of the episodes is played by hand."""
    agent = reverie.load(trained)
    facts = page.facts
    again = reverie.report(agent, out=page.path.with_suffix(".json"), episodes=12, dreams=0, frames=0)
    assert json.loads(again.path.read_text())["score"] == facts["score"]
    looks = [look_again(agent, next(iter(pick_episodes(play_episodes(agent, 2)).values())), 0) for _ in range(2)]
    np.testing.assert_array_equal(*(look.lines["critic"] for look in looks))  # latents are drawn with a seed
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
    shares = {"its own actions": facts["dreams"], "random actions": facts["random_dreams"]}
    wrong = {actions: share["total"] - share["right"] for actions, share in shares.items()}
    assert Counter(dream["actions"] for dream in facts["wrong_dreams"]) == wrong
    assert all(0 < dream["row"] <= facts["horizon"] and dream["differs"] for dream in facts["wrong_dreams"])
    assert [share["total"] for _, share in facts["snapshots"]] == [6] * len(facts["snapshots"])
    assert facts["snapshots"][-1] == [agent.step, facts["dreams"]]


def test_an_agent_without_masks_refuses_one(trained):
    """It would be ignored."""
    agent = reverie.load(trained)
    with pytest.raises(DataError, match="action_mask: the agent was trained without masks"):
        agent.act(np.zeros(4, np.float32), action_mask=np.array([0, 1]))


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
            assert looked.locator(".episode .frames img").count() == 15
            wrong = looked.locator("section", has=looked.get_by_role("slider", name="Wrong dream"))
            assert f"first wrong in row {page.facts['wrong_dreams'][0]['row']} (" in wrong.inner_text()
            assert f"row {page.facts['wrong_dreams'][0]['row']}, wrong" in wrong.inner_text()
            slider = looked.get_by_role("slider", name="Snapshot")
            slider.focus()
            texts = [slider.get_attribute("aria-valuetext")]
            for _ in page.facts["snapshots"][1:]:
                slider.press("ArrowLeft")
                texts.append(slider.get_attribute("aria-valuetext"))
            steps = [f"step {step:,}" for step, _ in page.facts["snapshots"]]
            assert [text.partition(":")[0] for text in texts] == steps[::-1]
        assert complaints == []
        audited = browser.new_context(bypass_csp=True).new_page()
        audited.goto(page.path.as_uri())
        assert violations(audited) == []


@pytest.mark.parametrize(("spreads", "difference"), [((1.0, 1.0), 2.0), ((1.5, 0.3), 1.4)])
def test_the_named_seeds_separate_the_intervals(spreads, difference):
    """In 4 of 5 repetitions: less often with a fifth fewer seeds, more often with a fifth more."""
    seeds, rng = seeds_to_separate(difference, *spreads), np.random.default_rng(0)

    def apart(count):
        first, second = (rng.normal(mean, s, count) for mean, s in zip((0, difference), spreads, strict=True))
        return interval(iqm, first, resamples=RESAMPLES)[1] < interval(iqm, second, resamples=RESAMPLES)[0]

    few, many = (np.mean([apart(round(seeds * part)) for _ in range(400)]) for part in (0.8, 1.2))
    assert few < 0.8 < many


def test_what_further_seeds_would_tell():
    def seeds(*scores):
        return scores, estimate_interval(iqm, scores)

    def say(**scores):
        return describe_further_seeds({name: seeds(*values) for name, values in scores.items()})

    sentence = "2 more seeds of sac give an interval. 1 more seed of td3 gives an interval."
    assert say(sac=(1, 2, 3), td3=(1, 2, 3, 4)) == sentence
    assert say(sac=(1, 2, 3, 4, 5), td3=(11, 12, 13, 14, 15)) == ""
    assert say(sac=(1, 2, 3, 4, 5)) == ""
    spread = np.std([1, 2, 3, 4, 5], ddof=1)
    text = say(sac=(1, 2, 3, 4, 5), td3=(2, 3, 4, 5, 6))
    assert "If the difference of td3 and sac really is 1, more than 64 seeds each would separate" in text
    assert seeds_to_separate(1.0, spread, spread) > 64
    text = say(sac=(1, 2, 3, 4, 5), td3=(3, 4, 5, 6, 7))
    assert f"about {seeds_to_separate(2.0, spread, spread)} seeds each would" in text


def test_several_runs_are_compared_by_their_settings(logged_run, tmp_path):
    """The numbers are computed by hand from the scores of the files."""
    first, second = [10.0, 20.0, 30.0, 40.0, 50.0], [15.0, 25.0]
    for seed, final in enumerate(first):
        logged_run(tmp_path / f"a{seed}", [1.0, final], final, seed=seed)
    for seed, final in enumerate(second):
        logged_run(tmp_path / f"b{seed}", [2.0, final], final, seed=seed, learning_starts=7)
    page = reverie.report(str(tmp_path / "a*"), tmp_path / "b0", tmp_path / "b1", out=tmp_path / "report.html")
    a, b = page.facts["groups"]
    assert ([*a["score"]["scores"]], [*b["score"]["scores"]]) == (first, second)
    assert (a["score"]["mean"], a["score"]["interval"]["value"]) == (30.0, 30.0)
    assert page.facts["improvement"][0][2] == 0.7  # of 10 pairs
    assert page.finding.startswith("Cannot tell which is best on CartPole-v1 after 200 env steps, as ")
    assert page.facts["findings"][0]["support"].startswith("3 more seeds of ")
    assert page.numbers[0][1] == f"IQM of 5 seeds of {a['label']}"
    assert a["runs"] == [f"a{seed}" for seed in range(5)]
    text = page.path.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    with launched_browser() as browser:
        look_at(browser, page.path)
    alone = reverie.report(tmp_path / "b*0", out=tmp_path / "alone.json")  # without a checkpoint: what it has logged
    assert alone.finding == "A mean return of 15.0 over 1 episode, after 200 env steps."
    with pytest.raises(ConfigError, match="several runs are compared by their folders"):
        reverie.report(tmp_path / "b0", lambda obs: 0)


def look_at(browser, path, width=390):
    """Open a page, which loads nothing, complains of nothing, and has no sideways scroll."""
    looked, complaints = browser.new_page(viewport={"width": width, "height": 900}), []
    looked.on("console", lambda said: complaints.append(said.text))
    looked.on("pageerror", lambda error: complaints.append(str(error)))
    looked.on("request", lambda asked: asked.url.startswith(("data:", "file:")) or complaints.append(asked.url))
    looked.goto(path.as_uri())
    looked.locator("html[data-ready]").wait_for(state="attached")
    assert looked.evaluate("document.documentElement.scrollWidth") == width
    assert complaints == []
    return looked


def test_the_help_of_a_person_is_measured_in_the_log(logged_run, tmp_path):
    """30 steps in the second of ten entries, and 10 in the last one."""
    run = logged_run(tmp_path / "run", [1.0] * 10, 2.0)
    assert "person" not in reverie.report(run, out=tmp_path / "facts.json").facts
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    for i, row in enumerate(rows[1:10]):
        row |= {"human/steps": 40 if i == 8 else 30, "human/takeovers": 3, "human/seconds": 90.0}
    rows[-1]["eval/success_rate"] = 0.8
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    page = reverie.report(run, out=tmp_path / "report.html")
    expected = {"seconds": 90.0, "steps": 40, "takeovers": 3, "first": 0.0, "last": 0.1, "alone": 0.8}
    assert page.facts["person"] == pytest.approx(expected)
    (table,) = re.findall(r'"title":"The help of a person","table":(.*?\]\]\})', page.path.read_text("utf-8"))
    assert [row[1] for row in json.loads(table)["rows"]] == ["1.5", "3, of 40 steps", "0%", "10%", "80%"]


def test_the_data_of_an_offline_run_come_first(tmp_path):
    steps = np.arange(60)
    rewards = np.where(steps < 10, 3.0, 1.0)
    np.savez(tmp_path / "log.npz", observations=np.sin(steps)[:, None], actions=np.cos(steps)[:, None],
             rewards=rewards, terminals=steps % 10 == 9, timeouts=np.zeros(60))  # fmt: skip
    quiet = {"tensorboard": False, "console": False, "data.estimate_updates": 4}
    reverie.train("bc", data=str(tmp_path / "log.npz"), updates=4, run=tmp_path / "run", **quiet)
    page = reverie.report(tmp_path / "run")
    data, estimate = page.facts["data"], json.loads((tmp_path / "run/estimate.json").read_text())
    assert (data["label"], data["episodes"], data["terminal"], data["length"]) == ("log.npz", 6, 6, 10.0)
    assert (data["mean"], data["best"], data["worst"]) == (80 / 6, 30.0, 10.0)
    assert data["histogram"]["counts"] == [5, *[0] * 18, 1]
    value = format_number(estimate["return"]["value"])
    assert page.finding.startswith(f"Fitted Q evaluation (FQE) estimates a discounted return of {value}")
    assert page.facts["estimate"]["recorded"]["value"] == estimate["recorded_return"]["value"]
    assert page.facts["commands"].endswith("bc --config run/config.yaml --data log.npz --run run-again")
    text = page.path.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert text.index('"title":"Data"') < text.index('"title":"Load it, train it again"')


def test_success_is_told_by_task(tmp_path):
    agent = reverie.load(lambda obs: np.zeros(1, np.float32), env=Tasks)
    page = reverie.report(agent, out=tmp_path / "facts.json", episodes=30)
    shares = {task: (share["right"], share["total"]) for task, share in page.facts["tasks"].items()}
    assert shares == {"1": (0, 10), "2": (10, 10), "3": (0, 10)}
    assert (page.facts["success"]["right"], page.facts["success"]["total"]) == (10, 30)
    titles = [finding["title"] for finding in page.facts["findings"]]
    assert "It reaches the goal of task 2 in 100 % of its episodes, that of the others in 0 %." in titles
    assert [episode["task"] for episode in page.facts["episodes"][:4]] == [1, 2, 3, 1]


class Tasks(gymnasium.Env):
    """Three tasks, of which only the second succeeds."""

    num_tasks = 3
    observation_space = gymnasium.spaces.Box(-9, 9, (1,), np.float32)
    action_space = gymnasium.spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.task = (options or {}).get("task_id", 1)
        return np.zeros(1, np.float32), {"goal": np.ones(1, np.float32)}

    def step(self, action):
        return np.zeros(1, np.float32), 0.0, True, False, {"success": self.task == 2}


def test_a_run_whose_environment_is_missing_has_what_it_logged(trained, tmp_path):
    """And what its files say is shown as text, packages of another version in words."""
    copied = Path(shutil.copytree(trained, tmp_path / "run"))
    hostile = "</script><img src=x onerror='window.hurt = 2'>{{data}}"
    config = yaml.safe_load((copied / "config.yaml").read_text())
    config["experiment"]["env"]["id"] = "NoSuchPlace-v0"
    config["experiment"]["replay_ratio"] = 0.37
    config |= {"packages": {"gymnasium": "0.0.1", hostile: "1"}, "custom": {"sinks": "/home/jane doe/sink.py"}}
    (copied / "config.yaml").write_text(yaml.safe_dump(config))
    page = reverie.report(copied)
    scores = json.loads((copied / "eval.json").read_text())["scores"]
    assert page.facts["score"]["value"] == np.mean(scores)
    assert page.finding.startswith("A mean return of ")
    assert page.facts["data"]["label"] == "rows that the run keeps"
    assert page.facts["data"]["rows"] > 100
    assert any(line.startswith("replay_ratio: ") and line.endswith("-> 0.37") for line in page.facts["changes"])
    with launched_browser() as browser:
        looked = look_at(browser, page.path)
        text = looked.inner_text("body")
        assert "Trained with gymnasium 0.0.1; version " in text
        assert f"Trained with {hostile} 1; no version was installed when this page was made." in text
        assert "sinks = sink.py was passed from Python: pass it again." in text
        assert "it shows what the run has logged" in text
        assert looked.evaluate("window.hurt") is None


def test_the_agent_acts_in_the_page_by_its_program(tmp_path):
    """The first action that it takes is the most probable one; what does not fit is left out."""
    run, quiet = tmp_path / "ppo", {"tensorboard": False, "console": False, "eval_episodes": 0}
    reverie.train("ppo", env="CartPole-v1", steps=256, run=run, **quiet)
    page = reverie.report(run, episodes=2, frames=2)
    with launched_browser() as browser:
        looked = look_at(browser, page.path)
        texts = looked.locator("#futures li b").all_inner_texts()
        chances = [int(text.strip(" %")) for text in texts]
        assert sum(chances) == 100
        looked.get_by_role("button", name="Let the agent act").click()
        playwright.expect(looked.locator("#real span")).to_have_text(re.compile(r"row (\d\d|[3-9]),"), timeout=30_000)
        assert looked.evaluate("location.hash").startswith(f"#seed=1&actions={int(np.argmax(chances))}")
    size = page.path.stat().st_size
    small = reverie.report(run, out=tmp_path / "small.html", episodes=2, frames=2, max_bytes=size - 1000)
    text = small.path.read_text()
    assert small.path.stat().st_size < size
    assert "Too large for this page: the agent's program (" in text
    assert '"title":"Episodes"' in text
    assert 'id="program"' not in reverie.report(run, episodes=2, frames=0, program="none").path.read_text()
    with pytest.raises(ConfigError, match=r"max_bytes = 1,000: the page has .* bytes without pictures"):
        reverie.report(run, episodes=2, frames=2, max_bytes=1000)


def test_the_critic_is_shown_beside_the_return_that_came(tmp_path):
    """The lines, and the row to which the value falls, are computed by hand from the rows."""
    run, quiet = tmp_path / "dqn", {"tensorboard": False, "console": False, "eval_episodes": 0}
    reverie.train("dqn", env="MountainCar-v0", steps=300, run=run, **{"env.max_episode_steps": 60}, **quiet)
    agent = reverie.load(run)
    (played,) = play_episodes(agent, 1)
    look = look_again(agent, played, 0)
    rows = [agent.value(obs) for obs in look.batch.obs["observation"][0].numpy()]
    gamma, came = agent.config.algo.discount, rows[-1]
    rewards = critic_rewards(agent, np.float32([0.0, *played.rewards]))[1:]
    for reward in rewards[::-1]:
        came = reward + gamma * came
    assert look.lines["critic"] == pytest.approx(rows, abs=1e-4)
    assert look.lines["return that came"][0] == pytest.approx(came, abs=1e-3)
    falls = np.array(rows[:-1]) - rewards - gamma * np.array(rows[1:])
    expected = int(falls.argmax()) + 1 if falls.max() > 2 * np.std(rows) else None
    assert look.fall == expected
    shown = describe_shown("worst", played, look._replace(fall=31))
    assert shown["chart"]["lines"][0]["name"] == (
        "return that came, with the critic's last value for the rest (rewards as scaled for the critic)"
    )
    assert shown["facts"][-1] == "value fell from row 30 to 31"
    assert shown["chart"]["lines"][-1]["points"] == [[30, pytest.approx(rows[30], abs=1e-4)]]


@pytest.mark.parametrize(
    ("name", "learner", "others"),
    [
        ("dqn", {}, {}),
        ("dqn", {"algo.intrinsic_reward": "icm"}, {}),
        ("dqn", {}, {"reward": "success:labels.npz"}),
        ("dqn", {}, {"human": {"reward": "only", "intervention_reward": -1.0}}),
        ("discrete_sac", {}, {}),
    ],
)
def test_a_critic_is_compared_only_with_rewards_that_it_learns(name, learner, others, tmp_path):
    quiet = {"tensorboard": False, "console": False, "eval_episodes": 0, "env.max_episode_steps": 20}
    options = {"algo.discount": 0.5, **learner, **quiet}
    agent = reverie.train(name, env="CartPole-v1", steps=50, run=tmp_path / "run", **options).agent
    vars(agent)["config"] = agent.config.merge(others)
    played, is_compared = play_episodes(agent, 2), (name, learner, others) == ("dqn", {}, {})
    assert bool(_compare_with_critic(agent, played)) == bool(look_again(agent, played[0], 0).lines) == is_compared


def test_returns_of_a_game_are_those_of_the_first_player(tmp_path):
    """The agent plays both sides, so that random actions are no rival; the returns are computed by hand."""
    game = {"id": "reverie/TicTacToe-v0", "kwargs": {"opening_moves": 4}}
    agent = reverie.load(lambda obs: int(np.argmax(obs["action_mask"])), env=game)
    page = reverie.report(agent, out=tmp_path / "facts.json", episodes=10)
    env = agent.make_env()
    for episode in page.facts["episodes"]:
        (obs, _), total, over = env.reset(seed=episode["seed"]), 0.0, False
        while not over:
            mover = obs["player"]
            obs, reward, over, _, _ = env.step(int(np.argmax(obs["action_mask"])))
            total += float(reward) * (1 if mover == 0 else -1)
        assert episode["return"] == total
    assert {episode["return"] for episode in page.facts["episodes"]} >= {-1.0, 1.0}
    assert page.facts["findings"][0]["support"].startswith("The agent plays both sides; returns are the first player's")
    assert "random" not in page.facts
    rewards, values = np.array([0.0, 0.0, 1.0]), np.array([-0.8, 0.9, 0.0])  # the second player wins
    came = make_value_strip(rewards, values, values, value_discount(agent), True).lines["return that came"]
    assert came == pytest.approx([-1.0, 1.0, 0.0], abs=0.01)


def test_an_environment_of_ones_own_draws_as_before(monkeypatch):
    """Its tiles are small for the report alone; if it cannot be drawn, there are no pictures."""
    env = Rooms(render_mode="rgb_array")
    agent, sizes = reverie.load(lambda obs: 2, env=env), []
    draw = type(env.unwrapped).render
    monkeypatch.setattr(type(env.unwrapped), "render", lambda inner: sizes.append(inner.tile_size) or draw(inner))
    episode = PlayedEpisode(0, [0.0] * 3, "cut by the report", None, False, None)
    assert len(look_again(agent, episode, 2).pictures) == 2
    assert (sizes, env.unwrapped.tile_size) == ([13, 13], 32)

    def fail(inner):
        raise EnvError("no driver")

    monkeypatch.setattr(type(env.unwrapped), "render", fail)
    assert look_again(agent, episode, 2).pictures == []


def test_episodes_are_named_by_what_tells_them_apart():
    def name(*episodes):
        played = [PlayedEpisode(0, [x] * n, "the end", None, True, None) for x, n in episodes]
        return {key: (x.total, len(x.rewards)) for key, x in pick_episodes(played).items()}

    assert name((1.0, 5)) == {"the only one": (5.0, 5)}
    assert name((1.0, 5), (1.0, 5)) == {"one of 2, all with this return and length": (5.0, 5)}
    assert name((0.0, 5), (0.0, 7)) == {"longest": (0.0, 7), "shortest": (0.0, 5)}
    numbers = {"worst": (1.0, 1), "worst 2": (2.0, 2), "worst 3": (3.0, 3), "median": (4.0, 4), "best": (6.0, 6)}
    assert name(*[(1.0, n) for n in range(1, 7)]) == numbers


def test_the_page_answers_to_other_observations(tmp_path):
    """As the agent does; the environment has no page program."""
    run, quiet = tmp_path / "ppo", {"tensorboard": False, "console": False, "eval_episodes": 0}
    reverie.train("ppo", env="MountainCar-v0", steps=256, run=run, **{"algo.rollout": 32}, **quiet)
    agent, page = reverie.load(run), reverie.report(run, episodes=1, frames=0)
    (batch,) = [look_again(agent, played, 0).batch for played in play_episodes(agent, 1)]
    with launched_browser() as browser:
        looked = look_at(browser, page.path)

        def chances():
            return [int(text.strip(" %")) for text in looked.locator("#what-if dd").all_inner_texts()]

        def expected(obs):
            return pytest.approx(100 * agent.distribution(np.float32(obs))["probabilities"], abs=0.6)

        def move(name, value):
            looked.get_by_role("slider", name=name).evaluate(
                "(slider, x) => { slider.value = x; slider.dispatchEvent(new Event('input')); }", value
            )

        move("row", 7)
        obs = batch.obs["observation"][0, 7].tolist()
        assert chances() == expected(obs)
        taken = int(batch.action[0, 7].argmax())
        assert f"In the episode it did: action {taken}." in looked.inner_text("#what-if")
        for number, value in ((0, -0.9), (1, 0.05)):
            move(f"observation {number}", value)
            obs[number] = float(looked.get_by_role("slider", name=f"observation {number}").input_value())
        assert obs == pytest.approx([-0.9, 0.05], abs=0.01)
        assert chances() == expected(obs)
        looked.get_by_role("button", name="As it was").click()
        assert chances() == expected(batch.obs["observation"][0, 7])
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
    text = page.path.read_text(encoding="utf-8")
    assert "&lt;lambda&gt;" in text
    assert not re.search(r"dreamer_v3|seed 0|\b0 env steps", text)


def test_the_command_and_what_it_refuses(trained, tmp_path, capsys):
    out = tmp_path / "facts.json"
    assert main(["report", str(trained), "--out", str(out), "--episodes", "2", "--dreams", "0", "--frames", "0"]) == 0
    assert json.loads(out.read_text())["findings"][0]["title"] in " ".join(capsys.readouterr().out.split())
    with pytest.raises(ConfigError, match="episodes = -1"):
        reverie.report(trained, out=out, episodes=-1)


@pytest.mark.parametrize(("player", "value"), [(0, 0.5), (1, -0.5)])
def test_the_critic_of_a_game_speaks_of_the_first_player(player, value, monkeypatch):
    """Its value is that of the player to move; the second one moves first after an odd number of opening moves."""
    spec = {"player": ObsPart(kind="player", shape=(), dtype="int64", classes=(2,))}
    observer = SimpleNamespace(raw_input=lambda env, obs: obs)
    monkeypatch.setattr(episode_facts, "is_goal_agent", lambda agent: False)
    agent = SimpleNamespace(obs_spec=spec, observer=observer, value=lambda obs, action_mask: 0.5)
    assert episode_facts._estimates(agent, None, SimpleNamespace(obs={"player": player}, mask=None)) == (value, None)
