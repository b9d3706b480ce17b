"""Goals in the viewer: recorded states as a map, goals that are chosen there, and plans as strips."""

import re

import numpy as np
import pytest
import torch

pytest.importorskip("uvicorn", reason="the extra look is not installed")
from test_page import browser, expect, go, page, row  # noqa: F401 - fixtures
from test_server import TOKEN, served

import reverie
from browser import violations
from reverie.core.errors import DataError
from reverie.core.specs import GOAL
from reverie.envs.two_rooms import SIDE, find_dot
from reverie.viewer.episode_source import RecordedEnv, decode_png
from reverie.viewer.goals import GoalStates, as_goal
from reverie.viewer.session import Session

FEW = {"updates": 20, "tensorboard": False, "console": False, "eval_episodes": 0}
COLORS = """c => {
  const pixels = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
  const counts = new Map();
  for (const pixel of pixels) if (pixel >>> 24 === 255) counts.set(pixel, (counts.get(pixel) ?? 0) + 1);
  return [...counts.values()].filter((count) => count > 9).length;
}"""
"""How many colors have more than the pixels of edges."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """HIQL on recorded positions alone, and LeWM on pictures with an environment."""
    where, rng = tmp_path_factory.mktemp("goals"), np.random.default_rng(0)
    ends = np.arange(300) % 30 == 29
    actions = rng.uniform(-1, 1, (300, 2)).astype(np.float32)
    places = np.concatenate([np.cumsum(part, 0) for part in np.split(actions, 10)])
    flat = np.full((300, 1), 3, np.float32)  # a number that never changes is no axis by default
    np.savez(where / "maze.npz", observations=np.hstack([flat, places]), actions=actions, terminals=ends)
    pictures = rng.integers(0, 255, (300, SIDE, SIDE, 3), np.uint8)
    np.savez(where / "rooms.npz", observations=pictures, actions=actions, terminals=ends)
    small = {"algo.networks.units": (16, 16), "algo.batch_size": 16}
    reverie.train("hiql", data=where / "maze.npz", env="none", run=where / "maze", **FEW, **small)
    small = {"algo.networks.units": (16, 16, 16), "algo.batch_size": 8, "algo.latent": 4}
    reverie.train("lewm", data=where / "rooms.npz", env="reverie/TwoRooms-v0", run=where / "rooms", **FEW, **small)
    return where


@pytest.fixture(scope="module")
def site(runs):
    with served(runs) as (_, port):
        yield f"http://127.0.0.1:{port}/{TOKEN}/"


def test_a_state_of_the_map_becomes_the_goal_of_a_recorded_episode(page, site):  # noqa: F811
    page.goto(f"{site}?run=maze")
    go(page, ("#scale", re.compile("distance to the goal.*steps")), ("#aim", re.compile("subgoal")))
    assert page.locator("#map").evaluate(COLORS) > 30
    chosen = page.get_by_label("To the right"), page.get_by_label("Upwards")
    for select, name in zip(chosen, ("observation 1", "observation 2"), strict=True):
        expect(select).to_have_value(name)
    goal = page.locator("#hovered").inner_text()
    page.locator("#map").focus()
    go(page, "ArrowRight", "ArrowRight", ("#hovered", re.compile("observation 1 .*from the goal")), "Enter")
    expect(page.locator("#hovered")).to_have_text(re.compile("Goal: "))
    assert page.locator("#hovered").inner_text() != goal
    go(page, ("#panel", re.compile("no environment to play in")), ("#lead", re.compile("recorded episode")))
    expect(page.locator("#map")).to_be_focused()
    expect(page.locator(".chart").filter(has_text="Distance to the goal (steps)")).to_be_visible()
    assert violations(page) == []


def test_a_click_plays_an_episode_to_a_picture(page, site):  # noqa: F811
    page.set_viewport_size({"width": 390, "height": 1000})
    page.goto(f"{site}?run=rooms")
    go(page, ("#scale", re.compile("latent space")), ("#plan canvas", 1))
    before = page.locator("#goal canvas").evaluate("c => c.toDataURL()")
    assert page.locator("#map").evaluate(COLORS) > 30
    place = page.locator("#map").evaluate("c => c.getBoundingClientRect().width / 2")
    for x in range(0, 200, 20):  # the middle of the map may be empty
        if page.locator("#goal canvas").evaluate("c => c.toDataURL()") == before:
            page.locator("#map").click(position={"x": place + x / 2, "y": 190 + x / 2})
            page.wait_for_timeout(400)
    assert page.locator("#goal canvas").evaluate("c => c.toDataURL()") != before
    go(page, row("[1-9]\\d* of .*"), ("#play", "Stop"), "#play", ("#plan canvas", 1))
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert violations(page) == []


def test_an_episode_to_a_chosen_goal(runs):
    agent = reverie.load(runs / "rooms")
    states, session = GoalStates(agent), Session(agent, seed=1)
    start = session.timeline.real[0].step.obs
    goal = as_goal(agent, states.obs, 5)
    session.pursue(goal)
    session.start(1)
    session.step()
    for real in session.timeline.real:
        assert torch.equal(real.step.obs[f"{GOAL}image"][0], states.obs["image"][5])
    assert torch.equal(session.timeline.real[0].step.obs["image"], start["image"])
    target = session.source.call("get_wrapper_attr", "target")[0]  # the environment judges by this goal, too
    np.testing.assert_allclose(target, find_dot(states.obs["image"][5].numpy()), atol=1e-6)
    row = session.timeline.real[1]
    known = agent.distance({"image": row.step.obs["image"][0].numpy()}, goal=states.obs["image"][5].numpy())
    assert row.values["distance"] == pytest.approx(known, rel=1e-5)
    session.close()


def test_the_goal_of_a_recorded_episode_is_its_end(runs):
    agent = reverie.load(runs / "rooms")
    session = Session(agent, source=RecordedEnv(agent, None, 1))
    live, goal = session.picture(0)[0], session.pictures.goal(session.goal)
    recorded = agent.load_episode(1).obs["image"][0].numpy()
    for picture, number in ((live, 0), (goal, -1)):
        np.testing.assert_array_equal(decode_png(picture), recorded[number])


@pytest.mark.parametrize("number", [-1, 2000, "1", None])
def test_states_that_do_not_exist(runs, number):
    with pytest.raises(DataError, match="expected the number of a recorded state"):
        GoalStates(reverie.load(runs / "maze")).goal(number)


def test_estimates_and_subgoals_of_recorded_states(runs):
    agent = reverie.load(runs / "maze")
    states = GoalStates(agent)
    assert states.default_axes == ("observation 1", "observation 2")
    goal, points = states.obs["observation"][7].numpy(), states.obs["observation"].numpy()
    estimates = states.estimate(as_goal(agent, states.obs, 7))
    np.testing.assert_allclose(estimates, agent.distance(points, goal=goal), rtol=1e-4)
    step, before = agent.to_step(points[0], goal), agent.initial_state(1)
    objective, wanted = agent.algo.objective, states.subgoal(step, before)
    inputs = agent.inspect(points, goal=points)[1].inputs
    now = agent.inspect(points[0], goal=goal)[1].inputs
    pairs = {**{k: v.expand(len(points), -1) for k, v in now.items()}, **{k: v for k, v in inputs.items() if GOAL in k}}
    with torch.no_grad():
        gaps = (objective.phi(pairs) - objective.actor.subgoal(now)).norm(dim=-1)
    assert gaps[wanted] == gaps.min()
    assert agent.subgoal(points[0], goal, points[: states.num_points]) == wanted
    with pytest.raises(DataError, match="a batch of observations"):
        agent.subgoal(points[:2], goal, points)


def test_a_map_of_single_numbers(runs):
    """An observation without axes is a coordinate as well, twice if there is no other one."""
    place = np.arange(60, dtype=np.float32)
    data = {"observations": place, "actions": place / 60, "terminals": place % 30 == 29}
    np.savez(runs / "line.npz", **data)
    run = reverie.train("gcivl", data=runs / "line.npz", env="none", run=runs / "line", **FEW)
    states = GoalStates(reverie.load(run.run))
    x, y = states.default_axes
    assert x == y == "observation"
    assert sorted(states.axes[x]) == place.tolist()


def test_a_plan_shows_the_recorded_picture_nearest_to_each_latent(runs, monkeypatch):
    agent = reverie.load(runs / "rooms")
    states, goal = GoalStates(agent), np.full((SIDE, SIDE, 3), 9, np.uint8)
    step, plan = agent.to_step({"image": states.obs["image"][0].numpy()}, goal), agent.algo.plan
    wanted = states.latents[[3, 1, 4, 1, 5]]
    monkeypatch.setattr(agent.algo, "plan", lambda obs: plan(obs)._replace(latents=wanted[None]))
    strip, pictures = states.plan(step, agent.initial_state(1))
    for picture, number in zip(pictures[1:-1], (3, 1, 4, 1, 5), strict=True):
        np.testing.assert_array_equal(picture, states.obs["image"][number].numpy())
    np.testing.assert_array_equal(pictures[-1], goal)
    assert [label.split(":")[0] for label in strip.labels] == ["now", "+5", "+10", "+15", "+20", "+25", "goal"]
    assert "after 25 steps" in strip.sentence
