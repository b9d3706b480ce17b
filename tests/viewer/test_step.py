"""A page in which one walks in an environment and in its dream, over file://."""

import re

import gymnasium
import numpy as np
import pytest

import reverie
from browser import launched_browser, playwright, violations
from reverie.core.errors import ConfigError
from reverie.envs.minigrid import FullView
from reverie.envs.page_programs import find_page_program
from reverie.envs.rooms import Rooms
from reverie.viewer.page import make_page

STEP = """async (moves) => {
  const { environment } = await import(URL.createObjectURL(new Blob([moves.code], { type: "text/javascript" })));
  let state = moves.state, rows = [];
  for (const flat of moves.flats) {
    const next = environment.step(state, flat, Math.random);
    state = next.state;
    rows.push({ observed: environment.observe(state), reward: next.reward, end: next.end, ending: next.ending });
    if (next.end) break;
  }
  return rows;
}"""


@pytest.fixture(scope="module")
def browser():
    with launched_browser() as browser:
        yield browser


def state_of(env):
    inner = env.unwrapped
    if hasattr(inner, "agent_pos"):
        return [*map(int, inner.agent_pos), int(inner.agent_dir)]
    return [float(x) for x in inner.state]


def flat(env, action):
    space = env.action_space
    if isinstance(space, gymnasium.spaces.Discrete):
        return np.eye(space.n)[action].tolist()
    return ((action - space.low) / (space.high - space.low) * 2 - 1).tolist()


@pytest.mark.parametrize("name", ["Rooms", "CartPole-v1", "Pendulum-v1"])
def test_the_environment_of_a_page_is_the_environment(name, browser):
    """Observations, rewards and ends of 200 random steps are equal, but for float32."""
    env = FullView(Rooms()) if name == "Rooms" else gymnasium.make(name)
    page, seen = browser.new_page(), 0
    env.action_space.seed(3)
    code = find_page_program(env).read_text(encoding="utf-8")
    while seen < 200:
        env.reset(seed=seen)
        state, flats, rows, over = state_of(env), [], [], False
        while not over:
            action = env.action_space.sample()
            flats.append(flat(env, action))
            obs, reward, end, truncated, info = env.step(action)
            row = (obs if isinstance(obs, dict) else {"observation": obs}, float(reward), end, info.get("ending"))
            rows.append(row)
            over = end or truncated
        found = page.evaluate(STEP, {"code": code, "state": state, "flats": flats})
        assert len(found) == len(rows)
        for (obs, reward, end, ending), row in zip(rows, found, strict=True):
            assert (row["end"], row["reward"]) == (end, pytest.approx(reward, abs=1e-5))
            assert ending in (None, row.get("ending"))
            for key in row["observed"]:
                np.testing.assert_allclose(row["observed"][key], np.reshape(obs[key], -1), atol=1e-5)
        seen += len(rows)
    page.close()


def test_one_walks_in_the_world_and_in_the_dream(trained, browser, tmp_path):
    """Keys and buttons act, the address repeats the walk, and nothing but the file is loaded."""
    path = tmp_path / "step.html"
    agent = reverie.load(trained)
    report = reverie.export(agent, path, world=True, steps=12)
    assert (report.file, report.num_differing) == (path, 0)
    text = path.read_text(encoding="utf-8")
    assert str(tmp_path) not in text
    assert str(agent.run) not in text
    context, complaints = browser.new_context(reduced_motion="reduce", viewport={"width": 390, "height": 844}), []
    page = context.new_page()
    page.on("console", lambda said: complaints.append(said.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda asked: complaints.append(asked.url) if asked.url != path.as_uri() else None)
    page.goto(path.as_uri())
    page.locator("html[data-ready]").wait_for(state="attached")
    assert "The model sees this row" in page.locator("#verdict").inner_text()
    page.keyboard.press("ArrowLeft")
    page.get_by_role("button", name="right →").click()
    assert page.locator("#verdict").inner_text().startswith("2 steps with closed eyes: ")
    walked = page.locator("#real span").inner_text(), page.locator("#futures").inner_text()
    assert page.url.endswith("#seed=1&actions=0,1")
    assert page.evaluate("document.documentElement.scrollWidth") == 390
    page.get_by_role("button", name="Open your eyes").click()
    assert "The model sees this row" in page.locator("#verdict").inner_text()
    page.goto("about:blank")
    page.goto(f"{path.as_uri()}#seed=1&actions=0,1")
    page.locator("html[data-ready]").wait_for(state="attached")
    assert walked == (page.locator("#real span").inner_text(), page.locator("#futures").inner_text())
    page.get_by_role("button", name="Let the agent act").click()
    playwright.expect(page.locator("#real span")).to_have_text(re.compile(r"row (\d\d|[5-9]),"), timeout=30_000)
    assert [line for line in complaints if "about:blank" not in line and "#seed" not in line] == []
    for scheme in ("light", "dark"):
        looked = browser.new_context(bypass_csp=True, color_scheme=scheme, reduced_motion="reduce").new_page()
        looked.goto(path.as_uri())
        assert violations(looked) == []
    context.close()


def test_what_a_file_says_is_text(browser, tmp_path):
    """Markup in names is shown, and the policy forbids other scripts."""
    hostile = "</script><script>window.hurt = 1</script><img src=x onerror='window.hurt = 2'>{{data}}\u2028"
    say = "document.querySelector('h1').textContent = JSON.parse(document.querySelector('#given').textContent).a;"
    (tmp_path / "say.js").write_text(say)
    text = make_page("step", hostile, [tmp_path / "say.js"], {"given": {"a": hostile}})
    planted = "<main><img src=x onerror='window.hurt = 3'><script>window.hurt = 4</script>"
    (tmp_path / "page.html").write_text(text.replace("<main>", planted), encoding="utf-8")
    page = browser.new_page()
    page.goto((tmp_path / "page.html").as_uri())
    assert page.locator("h1").text_content() == hostile
    assert page.title().startswith("</script>")
    page.wait_for_timeout(100)
    assert page.evaluate("window.hurt") is None
    page.close()


def test_an_environment_without_a_page_program_says_so(trained, tmp_path, monkeypatch):
    monkeypatch.setattr("reverie.viewer.walk.find_page_program", lambda env: None)
    with pytest.raises(ConfigError, match="CartPole-v1 has no page program, which draws it in a page: set"):
        reverie.export(trained, tmp_path / "step.html", world=True)
    assert list(tmp_path.iterdir()) == []
