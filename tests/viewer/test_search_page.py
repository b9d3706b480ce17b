"""Searches in the viewer: what they say of each action, their trees, and games by clicks."""

import re

import numpy as np
import pytest

pytest.importorskip("uvicorn", reason="the extra look is not installed")
from test_page import browser, expect, go, page, row  # noqa: F401 - fixtures
from test_server import TOKEN, Talk, served

import reverie
from browser import violations
from reverie.core.errors import DataError
from reverie.envs.board_games import ConnectRules
from reverie.viewer.search import MAX_NODES, MAX_SIMULATIONS
from reverie.viewer.session import Session

FEW = {"learning_starts": 40, "replay_ratio": 0.05, "eval_episodes": 0, "console": False, "tensorboard": False,
       "env.num": 4, "algo.batch_size": 4, "algo.num_simulations": 6, "steps": 160}  # fmt: skip


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """MuZero in tic-tac-toe, in connect four on a wide board, and with stacked frames alone."""
    where = tmp_path_factory.mktemp("searching")
    reverie.train("muzero", env="reverie/TicTacToe-v0", run=where / "game", **FEW)
    kwargs = {"rows": 2, "columns": 5, "connect": 3}
    reverie.train("muzero", env="reverie/ConnectFour-v0", run=where / "wide", **FEW, **{"env.kwargs": kwargs})
    reverie.train("muzero", env="CartPole-v1", run=where / "alone", **FEW, **{"env.frame_stack": 2})
    return where


@pytest.fixture(scope="module")
def site(runs):
    with served(runs) as (_, port):
        yield port


def opened(page, port, run, at=2, tab="&tab=Search"):  # noqa: F811
    page.goto(f"http://127.0.0.1:{port}/{TOKEN}/?run={run}&row={at}{tab}")
    page.locator("#run[aria-busy=false]").wait_for()
    go(page, row(f"{at} of .*"))


def test_a_search_over_the_wire(runs, site):
    talk = Talk(site)
    talk("begin", run="game", seed=5)
    first = talk("step", steps=2)["rows"][1]["real"]
    assert (first["player"], len(first["legal"])) == (1, 8)
    found = talk("search", at=2, simulations=60)
    agent = reverie.load(runs / "game")
    board = np.array(first["numbers"]["board"], np.float32)
    assert len(board) == 18
    assert (found["player"], len(found["legal"]), sum(found["visits"]), found["at"]) == (0, 7, 60, 2)
    assert sum(map(bool, np.ravel(found["cells"]))) == 2
    seen = talk("set_context", rows=3)["rows"][-1]["real"]["numbers"]["board"]
    obs = {"board": np.array(seen, np.float32), "player": 0}
    cells = np.array(found["cells"]).ravel()
    np.testing.assert_array_equal(obs["board"], np.concatenate([cells == 1, cells == 2]))
    mask = np.isin(np.arange(9), found["legal"]).astype(np.int8)
    result = agent.search(obs | {"action_mask": mask}, 60)
    assert (result.action, result.visits.tolist()) == (found["chosen"], found["visits"])
    np.testing.assert_allclose(result.policy, found["policy"], atol=1e-4)
    alone = talk("search", at=2, simulations=0)
    assert (sum(alone["visits"]), alone["policy"], alone["q"]) == (0, alone["prior"], [None] * 9)
    assert alone["chosen"] == int(np.argmax(alone["prior"]))
    before = talk("switch_lane", number=0)["lanes"]
    moves = found["legal"][:2]
    after = talk("follow", at=2, actions=moves)
    assert [lane["name"] for lane in after["lanes"]] == [before[0]["name"], "search"]
    actions = [line["action"].index(1) for line in after["rows"] if line["action"]]
    assert actions[-2:] == moves
    for at, simulations in ((2, MAX_SIMULATIONS + 1), (2, 3.5), (-1, 9)):
        assert "expected a whole number" in talk("search", at=at, simulations=simulations)["error"]
    for actions in ([9], [], ["1"]):
        assert "expected a whole number" in talk("follow", at=2, actions=actions)["error"]
    assert "forbids" in talk("step", at=2, action=np.eye(9)[np.flatnonzero(mask == 0)[0]].tolist())["error"]
    assert len(talk("switch_lane", number=0)["lanes"]) == 2  # what was refused has left no lane
    talk.socket.close()


def test_nodes_are_a_tree_with_values_of_the_first_player(runs):
    session = Session(reverie.load(runs / "game"), seed=3)
    for _ in range(3):
        session.step()
    for at in (1, 2):
        found = session.search(at, 400)
        nodes, player = found["nodes"], at % 2
        parent, depth, action, visits = (nodes[name] for name in ("parent", "depth", "action", "visits"))
        assert len(parent) == MAX_NODES
        assert (depth[0], visits[0], nodes["prior"][0]) == (0, 401, 1)
        np.testing.assert_array_equal(depth[1:], depth[parent[1:]] + 1)
        assert (visits[1:] < visits[parent[1:]]).all()
        children = np.flatnonzero(depth == 1)
        assert dict(zip(action[children].tolist(), visits[children].tolist(), strict=True)) == {
            a: n for a, n in enumerate(found["visits"].tolist()) if n
        }
        np.testing.assert_allclose(nodes["q"][children], found["q"][action[children]], atol=1e-6)
        np.testing.assert_allclose(nodes["prior"][children], found["prior"][action[children]], atol=1e-6)
        mover = (player + np.maximum(depth - 1, 0)) % 2
        np.testing.assert_allclose(nodes["first"], np.where(mover, -1, 1) * nodes["q"])
    session.set_context(1)  # the lane begins at the observed row all the same
    node = int(np.flatnonzero(depth == 2)[0])
    moves = [int(action[parent[node]]), int(action[node])]
    assert session.follow(2, moves) == 2
    imagined = [row["dream"]["value"] for row in session.rows(3)]
    np.testing.assert_allclose(imagined, nodes["raw"][[parent[node], node]], atol=1e-5)
    session.switch_lane(0)
    board = ConnectRules()
    position = board.start()
    for action in [*(int(x.argmax()) for x in session.timeline.actions[:2]), moves[0]]:
        position = board.play(position, action).position
    illegal = next(a for a in range(9) if a not in board.find_legal(position))
    session.follow(2, [moves[0], illegal, moves[0]])  # the search may take illegal actions below its root
    line = session.timeline
    assert (len(line.real), len(line.dream), line.real[3].values["player"]) == (4, 6, 1)
    np.testing.assert_array_equal(line.real[3].step.obs["board"][0], board.board(position))
    with pytest.raises(DataError, match="forbids"):
        session.step()
    assert len(line.real) == 4
    assert session.lane_picture(line, 3) == line.real[3].picture != line.real[2].picture
    assert session.describe_lanes()[-1]["name"] == "search 2"
    session.switch_lane(0)
    while not session.timeline.real[-1].values["last"]:
        session.step()
    with pytest.raises(DataError, match="over at this row"):
        session.search(len(session.timeline.real) - 1, 10)
    session.close()


def test_a_dreamer_of_one_discrete_action_is_searched(folder):
    session = Session(reverie.load(folder / "dreamer"), seed=0)
    session.step()
    found = session.search(1, 10)
    assert (found["visits"].sum(), found["player"], found["cells"]) == (10, 0, None)
    assert found["policy"].sum() == pytest.approx(1)
    np.testing.assert_array_equal(found["nodes"]["first"], found["nodes"]["q"])
    assert session.follow(1, [0, 1]) == 1
    for run, searches in (("dreamer", True), ("mapped", False), ("sac", False)):
        assert Session(reverie.load(folder / run)).info()["searches"] == searches


def test_the_score_of_a_lane_is_the_first_players(runs):
    session, wins = Session(reverie.load(runs / "game"), seed=0), set()
    session.deterministic = False
    for seed in range(30):
        session.start(seed)
        while not session.timeline.real[-1].values["last"]:
            session.step()
        last = session.timeline.real[-1].values
        winner = 1 - last["player"]
        assert session.timeline.score() == last["reward"] * (1 - 2 * winner)
        wins |= {session.timeline.score()}
    assert {1.0, -1.0} <= wins
    session.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_panel_searches_as_long_as_the_slider_says(page, site, scheme):  # noqa: F811
    page.emulate_media(color_scheme=scheme)
    page.set_viewport_size({"width": 390, "height": 1200})
    opened(page, site, "game")
    go(page, (".choice", 7), (".piece", 2), (".choice.chosen", 1), ("#said", re.compile("^Value .* for player 0")))
    slider = page.locator("#simulations")
    expect(slider).to_have_value("6")
    expect(page.locator("#tree rect")).to_have_count(7)
    slider.focus()
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(page.locator("#tree rect")).to_have_count(13)
    go(page, row("2 of .*"))  # arrows move the slider, not the row
    assert violations(page) == []
    page.keyboard.press("End")
    expect(page.locator("#tree rect")).to_have_count(MAX_NODES)
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.keyboard.press("Home")
    go(page, ("#said", re.compile("The policy, without a search, chooses row")), ("#tree svg", 0))
    page.locator(".choice").last.focus()
    page.keyboard.press("Enter")  # it moves, and the agent replies
    go(page, row("4 of .*"), (".choice", 5), ("#choices :focus", 1))


def test_a_node_becomes_a_lane_by_a_click_or_by_keys(page, site):  # noqa: F811
    opened(page, site, "game")
    page.locator("#tree rect[data-node='1']").hover()
    go(page, ("#hovered", re.compile(r"^row \d, column \d: \d visits, q \S+ for player 0, prior \d+ %")))
    page.locator("#tree rect[data-node='1']").click()
    go(page, ("#lanes b >> nth=1", "search"), row("2 of .*"))
    go(page, "ArrowRight", row("3 of .*"), ("#real .chip", "player 1 to move"), ("#lanes .now", 1))
    go(page, ("#said", re.compile("for player 1")), "ArrowLeft", ("#said", re.compile("for player 0")))
    page.locator("#tree summary").focus()
    page.keyboard.press("Enter")
    go(page, ("#tree tbody tr", 7))
    assert violations(page) == []
    page.locator("#tree td button").last.focus()
    page.keyboard.press("Enter")
    go(page, ("#lanes b >> nth=2", "search 2"), "u", (".lane", 2))
    go(page, "#dreamon", ("#play", "Play"), "End", ("#said", re.compile("^Only rows of")), (".choice", 0))


@pytest.mark.parametrize(("run", "choices"), [("wide", 5), ("alone", 2)])
def test_other_boards_and_lists(page, site, run, choices):  # noqa: F811
    opened(page, site, run, at=1)
    go(page, (".choice", choices), (".choice.chosen", 1), ("#choices.small", int(run == "wide")))
    assert violations(page) == []


def test_a_game_by_clicks(page, site):  # noqa: F811
    opened(page, site, "game", at=0)
    go(page, "m", ("#real .chip", "player 0 to move"), "#reply", row("1 of .*"))
    go(page, ("#real .chip", "player 1 to move"), ("#hands.board", 1), ("#hands button:disabled", 1))
    go(page, "ArrowLeft", row("0 of .*"), "ArrowRight", row("1 of .*"))
    for at in range(1, 9, 2):  # a person is the second player
        page.locator("#hands [data-action]:enabled").first.click()
        go(page, row(f"[{at + 1}-9] of .*"), ("#real .chip", re.compile("player 1 to move$|the end$")))
        if page.locator("#real .chip").inner_text().endswith("the end"):
            break
    go(page, ("#real .chip", re.compile("the end$")), (".lane", 2))
    assert violations(page) == []
