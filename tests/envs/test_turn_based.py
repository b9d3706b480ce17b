"""Games of two players: rules, exact solutions, whose rewards are whose, and PettingZoo's games in one stream."""

import functools
import re
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces, wrappers

import reverie
from reverie.core.errors import EnvError, ReverieError
from reverie.core.specs import MASK_KEY, PLAYER_KEY, mover_sign
from reverie.core.types import Step
from reverie.envs import turn_based
from reverie.envs.board_games import (
    CELL_PIXELS,
    COLORS,
    ConnectRules,
    NimRules,
    connect_four,
    nim,
    solve,
    tic_tac_toe,
)
from reverie.envs.dummy import Count
from reverie.envs.snapshot import load_state, save_state
from reverie.envs.turn_based import OpenSpielGame, pettingzoo_env
from reverie.experiment.settings import Request, resolve
from reverie.log.jsonl import read_metrics
from reverie.run.episodes import EpisodeCounter


def test_solutions_are_known():
    """Numbers of positions and values; Nim is won where the exclusive or of the heaps is not 0."""
    for rules, count, value in (
        (ConnectRules(), 4520, 0.0), (ConnectRules(3, 4, 3, gravity=True), 4631, 1.0), (NimRules((1, 2, 3)), 23, -1.0),
    ):  # fmt: skip
        solutions = solve(rules)
        assert (len(solutions), solutions[rules.start()].value) == (count, value)
    for heaps, solution in solve(NimRules((3, 4, 5))).items():
        xor = np.bitwise_xor.reduce(heaps)
        assert solution.value == (1 if xor else -1)
        assert not xor or all(
            np.bitwise_xor.reduce(NimRules((3, 4, 5)).play(heaps, a).position) == 0 for a in solution.optimal
        )


def play(env, choose, seed=0):
    """The players, rewards and ends of the rows of one game."""
    obs, _ = env.reset(seed=seed)
    rows = [(int(obs[PLAYER_KEY]), 0.0, False)]
    while not rows[-1][2]:
        action = choose(obs)
        assert obs[MASK_KEY][action]
        obs, reward, over, cut, _ = env.step(action)
        assert not cut
        rows.append((int(obs[PLAYER_KEY]), reward, over))
    return rows


@pytest.mark.parametrize("make", [tic_tac_toe, lambda: connect_four(rows=4, columns=4, connect=3), nim])
def test_the_reward_is_the_movers_and_the_score_the_first_players(make):
    rng = np.random.default_rng(0)
    for seed in range(20):
        rows = play(make(), lambda obs: int(rng.choice(np.flatnonzero(obs[MASK_KEY]))), seed)
        players = [player for player, *_ in rows]
        assert players == [i % 2 for i in range(len(rows))]
        assert all(reward == 0 for _, reward, _ in rows[:-1])
        winner = 1 - players[-1]
        result = sum(reward * mover_sign(np.array(player)) for player, reward, _ in rows)
        assert result == rows[-1][1] * (1 if winner == 0 else -1)


def test_scores_of_episodes_are_the_first_players():
    counter, no = EpisodeCounter(2, two_players=True), torch.zeros(2, dtype=torch.bool)
    for t, player in enumerate((0, 1, 0)):
        reward = np.array([1.0, 0.0]) * (t == 2)
        obs = {PLAYER_KEY: torch.full((2,), player)}
        step = Step(obs=obs, reward=torch.zeros(2), is_first=no | (t == 0), is_last=no | (t == 2), is_terminal=no)
        counter.add(step, reward)
    assert counter.totals[0].tolist() == [-1.0, 0.0]  # player 1 has moved last, and won


@pytest.mark.parametrize("width", [1, 2])
def test_an_observation_called_player_may_be_anything_else(width, tmp_path):
    """Only two choices mean that two players move in turn."""

    def make():
        space = spaces.Dict({PLAYER_KEY: spaces.Box(-1, 1, (width,)), "time": spaces.Box(0, 10, (1,))})
        env = wrappers.TransformReward(Count(), lambda reward: 1.0)
        return wrappers.TransformObservation(env, lambda t: {PLAYER_KEY: np.zeros(width, np.float32), "time": t}, space)

    result = reverie.train("dqn", env=make, run=tmp_path / "run", steps=64, envs=2, eval_episodes=2, learning_starts=50)
    assert result.evaluation.scores == [10.0, 10.0]
    scores = [row["episode/score"] for row in read_metrics(result.run / "metrics.jsonl") if "episode/score" in row]
    assert scores
    assert set(scores) == {10.0}


def test_openings_are_random_legal_moves_that_are_no_rows():
    env, seen = tic_tac_toe(opening_moves=6), set()
    for seed in range(200):
        obs, _ = env.reset(seed=seed)
        count = int(obs["board"].sum())
        seen.add(count)
        assert obs[PLAYER_KEY] == count % 2
        assert obs[MASK_KEY].sum() == 9 - count
    assert seen == set(range(7))


def test_strength_is_measured_by_perfect_play():
    rules = ConnectRules()
    solutions = {tuple(rules.board(position)): solution for position, solution in solve(rules).items()}

    def perfect(obs):
        return np.array([solutions[tuple(board)].optimal[0] for board in obs["board"]])

    def last_legal(obs):
        return np.array([np.flatnonzero(mask)[-1] for mask in obs[MASK_KEY]])

    assert rules.measure_strength(perfect) == {"optimal_moves": 1, "optimal_moves_hard": 1, "lost_to_perfect": 0}
    poor = rules.measure_strength(last_legal)
    assert poor["optimal_moves_hard"] < poor["optimal_moves"] < 0.8
    assert poor["lost_to_perfect"] > 0.2


def test_pettingzoo_has_the_same_games():
    """Its cells go down the columns."""
    pytest.importorskip("pettingzoo")
    theirs, ours = pettingzoo_env("classic.tictactoe_v3", agent="all"), tic_tac_toe()
    rng = np.random.default_rng(0)
    for seed in range(20):
        actions = []

        def choose(obs, actions=actions):
            actions.append(int(rng.choice(np.flatnonzero(obs[MASK_KEY]))))
            return actions[-1]

        rows = play(theirs, choose, seed)
        moves = iter([3 * (a % 3) + a // 3 for a in actions])
        assert play(ours, lambda _, moves=moves: next(moves)) == rows


def test_open_spiel_has_the_same_games():
    pytest.importorskip("pyspiel")
    theirs, ours, rng = OpenSpielGame("tic_tac_toe"), tic_tac_toe(), np.random.default_rng(0)
    for seed in range(20):
        actions = []

        def choose(obs, actions=actions):
            assert obs["observation"][-1] == obs[PLAYER_KEY]
            actions.append(int(rng.choice(np.flatnonzero(obs[MASK_KEY]))))
            return actions[-1]

        rows = play(theirs, choose, seed)
        moves = iter(actions)
        assert play(ours, lambda _, moves=moves: next(moves)) == rows


@pytest.mark.parametrize(
    ("name", "options", "said"),
    [
        ("tictactoe", {}, "unknown environment 'open_spiel/tictactoe'. Did you mean 'tic_tac_toe'"),
        ("breakthrough", {"rows": "a"}, "open_spiel/breakthrough' with {'rows': 'a'}: Wrong type for parameter rows"),
        ("kuhn_poker", {}, "is not deterministic and not of perfect information: expected a game for two players,"),
        ("mancala", {}, "moves twice in a row: expected turns that alternate"),
    ],
)
def test_other_games_of_open_spiel_are_refused(name, options, said):
    pytest.importorskip("pyspiel")
    with pytest.raises(EnvError, match=re.escape(said)):
        play(OpenSpielGame(name, **options), lambda obs: np.flatnonzero(obs[MASK_KEY])[-1])


def test_boards_of_open_spiel_are_drawn_as_text():
    pytest.importorskip("pyspiel")
    game = OpenSpielGame("tic_tac_toe", render_mode="rgb_array")
    game.reset(seed=0)
    before = game.render()
    game.step(4)
    rows, columns = np.nonzero((game.render() != before).any(-1))  # the middle cell
    assert before.shape == (96, 48, 3)
    assert 32 <= rows.min() <= rows.max() < 64
    assert 16 <= columns.min() <= columns.max() < 32


def test_full_boards_are_no_time_limit(make, said):
    env = make(lambda: connect_four(5, 5, 5), num=2, vectorization="sync")
    step = env.reset()
    for _ in range(300):  # columns are filled one after the other, and nobody wins
        step = env.step(torch.eye(5)[step.obs[MASK_KEY].int().argmax(-1)])
    assert said == []


def test_a_game_of_open_spiel_goes_on_from_its_snapshot():
    pytest.importorskip("pyspiel")
    first, second = (OpenSpielGame("breakthrough", rows=4, columns=4) for _ in range(2))
    obs, _ = first.reset(seed=0)
    obs, *_ = first.step(np.flatnonzero(obs[MASK_KEY])[0])
    assert load_state(second, save_state(first))[1] == ""
    for game in (first, second):
        game.step(np.flatnonzero(obs[MASK_KEY])[0])
    assert first.format() == second.format()


class World:
    """A game in the interface of PettingZoo in which nothing goes as it should."""

    def __init__(self, agents=("a", "b"), rewards=(1, -1), turns=("a", "b", "a")):
        self.possible_agents, self.turns = list(agents), list(turns)
        self.rewards = dict(zip(agents, rewards, strict=False))
        self.terminations = self.truncations = dict.fromkeys(agents, False)

    @property
    def agent_selection(self):
        return self.turns[0]

    def reset(self, seed):
        pass

    def step(self, action):
        self.turns.pop(0)

    def observation_space(self, agent):
        return spaces.Dict({"observation": spaces.Box(0, 1, (2,)), "action_mask": spaces.MultiBinary(2)})

    def action_space(self, agent):
        return spaces.Discrete(2)

    def observe(self, agent):
        return {"observation": np.zeros(2, np.float32), "action_mask": np.ones(2, np.int8)}


@pytest.mark.parametrize(
    ("world", "said"),
    [
        ({"agents": "abc"}, "has the players a, b, c: expected 2 that move in turn"),
        ({"rewards": (1, 1)}, r"the rewards of both players are \{'a': 1, 'b': 1\}: expected a sum of 0"),
        ({"turns": "aab"}, "player 0 moves twice in a row: expected turns that alternate"),
    ],
)
def test_other_games_are_refused(world, said, monkeypatch):
    module = SimpleNamespace(env=lambda **_: World(**world))
    monkeypatch.setattr(turn_based, "import_module_of", lambda *_: module)

    def play_once():
        env = pettingzoo_env("any", agent="all")
        env.reset(seed=0)
        env.step(0)

    with pytest.raises(EnvError, match=said):
        play_once()


class OneTwo(World):
    """Three moves in turn; the last mover wins."""

    def __init__(self):
        super().__init__(rewards=(0, 0))

    def reset(self, seed):
        self.__init__()

    def step(self, action):
        if len(self.turns) == 1:
            self.rewards, self.terminations = {"a": 1, "b": -1}, {"a": True, "b": True}
        else:
            super().step(action)

    def last(self):
        agent = self.agent_selection
        return self.observe(agent), self.rewards[agent], self.terminations[agent], False, {}


@pytest.mark.parametrize("env", [OneTwo, lambda: OneTwo(), f"{__name__}:OneTwo"])
def test_a_custom_game_in_pettingzoos_form_is_played_from_both_seats_or_one(env, tmp_path):
    settings = {"algo.batch_size": 4, "algo.num_simulations": 2, "eval_episodes": 2, "console": False}
    result = reverie.train("muzero", env=env, run=tmp_path / "run", steps=12, envs=1, **settings)
    assert sorted(result.evaluation.scores) == [-1.0, 1.0]
    report = reverie.check_env(env, env_options={"kwargs": {"agent": 0}}, steps=10)
    assert (PLAYER_KEY in report.obs_spec, "dqn" in report.algorithms["online"]) == (False, True)


@pytest.mark.parametrize(
    ("env", "said"),
    [(lambda: World("abc"), "has the players a, b, c: expected 2 that move in turn"),
     (lambda: SimpleNamespace(possible_agents=[0, 1], reset=int), "an environment of several agents: expected a")],
)  # fmt: skip
def test_other_custom_games_of_pettingzoo_are_refused(env, said):
    with pytest.raises(EnvError, match=said):
        reverie.check_env(env, steps=5)


class Turns(gymnasium.Env):
    """A game of four moves, with the players ``turns`` and a mask of legal actions."""

    def __init__(self, turns=(0, 1, 0, 1, 0), mask=(1, 1, 1), actions=None):
        self.turns, self.mask = turns, np.array(mask, np.int8)
        parts = {"board": spaces.Box(-1, 1, (2,)), PLAYER_KEY: spaces.Discrete(2), MASK_KEY: spaces.MultiBinary(3)}
        self.action_space = actions or spaces.Discrete(3)
        self.observation_space = spaces.Dict({k: x for k, x in parts.items() if k != MASK_KEY or actions is None})

    def obs(self):
        row = {"board": np.zeros(2, np.float32), PLAYER_KEY: self.turns[self.time], MASK_KEY: self.mask}
        return {key: row[key] for key in self.observation_space}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self.obs(), {}

    def step(self, action):
        self.time += 1
        return self.obs(), 1.0, self.time == 4, False, {}


@pytest.mark.parametrize(
    ("game", "options", "said"),
    [
        ({}, {}, None),
        ({"turns": (1, 0, 1, 0, 1)}, {}, None),
        ({"turns": (0, 1, 1, 0, 1)}, {}, "step 2 of episode 1: player 1 moves twice in a row: expected turns"),
        ({"turns": (0, 1, 0, 1, 1)}, {}, "player 1 moves twice in a row.* after the last move the view of the player"),
        ({"turns": (0,) * 5}, {"env.exclude_keys": PLAYER_KEY}, None),
        ({"mask": (0, 0, 0)}, {}, "the action_mask leaves no legal action"),
        ({"actions": spaces.Box(-1, 1, (2,))}, {}, "muzero is for discrete actions, .*continuous.* bmpc.* tdmpc2"),
        ({"actions": spaces.MultiDiscrete([2, 3])}, {}, "muzero is for discrete actions, .*discrete.* dreamer_v3"),
        ({"actions": spaces.MultiBinary(3)}, {}, "muzero is for discrete actions, .*discrete.* dreamer_v3"),
        ({}, {"algo.num_simulations": 1}, "num_simulations = 1: expected at least 2"),
        ({}, {"algo.num_considered": 1}, "num_considered = 1: expected at least 2"),
        ({}, {"algo.batch_length": 6, "algo.value_estimator": "td1"}, "expected windows of at least 7 rows"),
    ],
)
def test_what_muzero_cannot_play_is_refused(game, options, said, tmp_path):
    def train():
        settings = {"env.num": 1, "algo.batch_size": 4, "algo.num_simulations": 2, "env.restarts": 0} | options
        return reverie.train(
            "muzero", env=lambda: Turns(**game), run=tmp_path / "run", steps=20, eval_episodes=2, **settings
        )

    if said is None:
        scores = train().evaluation.scores  # each mover earns 1
        assert scores == ([0.0, 0.0] if PLAYER_KEY not in str(options) else [4.0, 4.0])
    else:
        with pytest.raises(ReverieError, match=said):
            train()


def test_a_classic_game_of_pettingzoo_has_a_short_name():
    request = Request(algorithm="muzero", env="pettingzoo:tictactoe_v3")
    config = resolve(request)
    assert (config.env.id, config.env.kwargs["agent"]) == ("pettingzoo/classic.tictactoe_v3", "all")
    assert config == resolve(Request(algorithm="muzero", env="pettingzoo/classic.tictactoe_v3"))


def test_games_with_hidden_information_are_named_once(monkeypatch, said):
    monkeypatch.setattr(turn_based, "import_module_of", lambda *_: SimpleNamespace(env=lambda **_: World()))
    for name in ("classic.hanabi_v5", "classic.hanabi_v5", "classic.go_v5"):
        pettingzoo_env(name, agent="all")
    (line,) = said
    assert line.startswith("'pettingzoo/classic.hanabi_v5' hides a part of its state from players")


def test_boards_of_planes_are_text(monkeypatch):
    class Board(World):
        def observation_space(self, agent):
            return spaces.Dict({"observation": spaces.Box(0, 1, (2, 3, 2)), "action_mask": spaces.MultiBinary(2)})

        def observe(self, agent):
            board = np.zeros((2, 3, 2), np.float32)
            board[0, 0, int(agent == "b")] = board[1, 2, int(agent == "a")] = 1
            return {"observation": board, "action_mask": np.ones(2, np.int8)}

    monkeypatch.setattr(turn_based, "import_module_of", lambda *_: SimpleNamespace(env=lambda **_: Board()))
    env = pettingzoo_env("any", agent="all")
    env.reset(seed=0)
    assert env.format() == "X..\n..O"
    obs, *_ = env.step(0)
    assert env.format() == "X..\n..O"
    assert env.find_cells(obs).tolist() == [[1, 0, 0], [0, 0, 2]]


@pytest.mark.parametrize(
    ("make", "actions", "cells"),
    [(tic_tac_toe, (4, 0), [[2, 0, 0], [0, 1, 0], [0, 0, 0]]), (nim, (3,), [[1, 0, 0], [1, 0, 0], [1, 1, 1]]),
     (functools.partial(connect_four, 2, 3, 3), (1, 1), [[0, 2, 0], [0, 1, 0]])],
)  # fmt: skip
def test_boards_are_drawn_from_their_observations(make, actions, cells):
    env = make(render_mode="rgb_array")
    obs, _ = env.reset(seed=0)
    for action in actions:
        obs, *_ = env.step(action)
    assert env.find_cells(obs).tolist() == cells
    assert len(env.get_action_meanings()) == env.action_space.n
    picture = env.render().reshape(len(cells), CELL_PIXELS, len(cells[0]), CELL_PIXELS, 3)
    centers = picture[:, CELL_PIXELS // 2, :, CELL_PIXELS // 2]  # [rows, columns, 3]
    np.testing.assert_array_equal(centers, COLORS[np.array(cells)])


def test_the_player_is_no_input_of_networks(tmp_path):
    report = reverie.check_env("reverie/TicTacToe-v0", steps=20)
    assert report.obs_spec[PLAYER_KEY].kind == "player"
    assert (report.algorithms["online"], [start.algorithm for start in report.starts]) == (("muzero",), ["muzero"])
    reverie.train(
        "muzero", env="reverie/Nim-v0", run=tmp_path / "run", steps=80, learning_starts=40, eval_episodes=0,
        replay_ratio=0.1, **{"env.num": 4, "algo.num_simulations": 2, "algo.batch_size": 4},
    )  # fmt: skip
    agent = reverie.load(tmp_path / "run")
    obs, _ = nim().reset(seed=0)
    assert agent.act(obs, deterministic=True)[0] in np.flatnonzero(obs[MASK_KEY])


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: nim(heaps=(1.5, 2)), r"heaps = \(1.5, 2\): expected sizes of heaps"),
        (lambda: nim(heaps=()), r"heaps = \(\): expected sizes of heaps"),
        (lambda: tic_tac_toe(opening_moves=-1).reset(), "opening_moves = -1: expected a whole number"),
        (lambda: tic_tac_toe(opening_moves=1.5).reset(), "opening_moves = 1.5: expected a whole number"),
    ],
)
def test_other_settings_of_games_are_refused(make, said):
    with pytest.raises(EnvError, match=said):
        make()
