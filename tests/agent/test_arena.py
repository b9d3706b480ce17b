"""Agents against each other: ratings of players with known strengths, and games of runs."""

import numpy as np
import pytest

import reverie
from reverie.agent.loading import load_opponent
from reverie.cli.main import main
from reverie.core.errors import ConfigError
from reverie.run.rating import ELO_PER_LOGIT, rate

TINY = {"env.num": 4, "env.kwargs": {}, "algo.num_simulations": 2, "algo.batch_size": 4, "console": False}


def play(strengths, advantage, games, rng):
    """The results ``[P, P, 3]`` of players who win with the probabilities of Bradley and Terry."""
    p = 1 / (1 + np.exp(-(strengths[:, None] - strengths + advantage)))
    won = np.where(np.eye(len(p)), 0, rng.binomial(games, p))
    return np.stack([won, np.zeros_like(won), np.where(np.eye(len(p)), 0, games - won)], -1)


@pytest.mark.parametrize("anchor", [None, 0])
@pytest.mark.parametrize("advantage", [0.0, 0.8])
def test_intervals_hold_the_strengths_of_players_95_times_in_100(anchor, advantage):
    rng, hits = np.random.default_rng(0), []
    for _ in range(100):
        strengths = rng.normal(0, 1, 5)
        elo, half = rate(play(strengths, advantage, 50, rng), anchor)
        known = ELO_PER_LOGIT * (strengths - (strengths.mean() if anchor is None else strengths[anchor]))
        hits += (np.abs(elo - known) <= half + 1e-6)[0 if anchor is None else 1 :].tolist()
    assert 0.92 <= np.mean(hits) <= 0.98


def test_the_first_players_advantage_is_no_strength():
    """Equal players who nearly always win as the first one; and one who never loses has a finite rating."""
    elo, _ = rate(play(np.zeros(3), 4.0, 1000, np.random.default_rng(0)))
    np.testing.assert_allclose(elo, 0, atol=60)
    counts = np.zeros((2, 2, 3), int)
    counts[0, 1], counts[1, 0] = [50, 0, 0], [0, 0, 50]
    elo, half = rate(counts, anchor=1)
    assert 400 < elo[0] < 2000
    assert half[0] > 200
    drawn = counts[..., [1, 0, 2]]
    drawn[1, 0] = [0, 50, 0]
    np.testing.assert_allclose(rate(drawn)[0], 0, atol=1e-6)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games") / "run"
    options = {"steps": 160, "learning_starts": 40, "replay_ratio": 0.1, "eval_episodes": 0, "schedule.save_every": 80}
    reverie.train("muzero", env="reverie/TicTacToe-v0", run=folder, **TINY, **options)
    return folder


def test_runs_checkpoints_and_named_players_play(run, capsys):
    steps = sorted(int(path.name.removeprefix("step-")) for path in (run / "checkpoints").glob("step-*"))
    names = [f"{run}@{steps[0]}", str(run), "random", "perfect"]
    assert load_opponent(names[0]).step == steps[0] < steps[-1] == load_opponent(names[1]).step
    result = reverie.arena([*names[:1], reverie.load(run), *names[2:]], games=6)
    assert [*result.elo] == [f"run@{steps[0]}", f"run@{steps[-1]}", "random", "perfect"]
    assert result.elo["random"] == 0
    games = result.table.sum(-1)
    assert games.tolist() == [[0, 6, 6, 6], [6, 0, 6, 6], [6, 6, 0, 0], [6, 6, 0, 0]]
    np.testing.assert_array_equal(result.table, result.table.swapaxes(0, 1)[..., ::-1])
    assert all(low <= result.elo[name] <= high for name, (low, high) in result.intervals.items())
    assert main(["arena", *names, "--games", "6"]) == 0
    text = capsys.readouterr().out
    assert text == f"{result}\n"
    assert max(map(len, text.splitlines())) <= 80
    agent = reverie.load(run)
    for opponent in (names[0], run):
        scores = agent.evaluate(4, opponent=opponent, seed=1).scores
        assert [*scores] == [*agent.evaluate(4, opponent=load_opponent(str(opponent)), seed=1).scores]
    assert main(["eval", str(run), "--opponent", names[0], "--games", "4"]) == 0
    text = capsys.readouterr().out
    assert f"TicTacToe-v0 against step-{steps[0]:09d} of run" in text
    assert "over 4 episodes" in text
    assert main(["info", str(run)]) == 0
    assert f"against step-{steps[0]:09d} of run" in capsys.readouterr().out


def test_opponents_must_know_the_game(run, tmp_path):
    options = {"steps": 80, "learning_starts": 40, "replay_ratio": 0.1, "eval_episodes": 0}
    nim = reverie.train("muzero", env="reverie/Nim-v0", run=tmp_path / "nim", **TINY, **options).run
    for players, said in (
        ([run, nim], "observation 'board' is vector .18,. in the game, but .9,. in the opponent"),
        ([run], "1 player: expected at least two"),
        (["random", "perfect"], "2 players: expected at least two, among them an agent"),
    ):
        with pytest.raises(ConfigError, match=said):
            reverie.arena(players, games=2)
    agent = reverie.load(run)
    with pytest.raises(ConfigError, match=r"opponent = 'perfct'.*Did you mean 'perfect'"):
        agent.evaluate(2, opponent="perfct")
    with pytest.raises(ConfigError, match="the solution of this game is unknown"):
        reverie.load(
            reverie.train("muzero", env="reverie/ConnectFour-v0", run=tmp_path / "four", **TINY, **options).run
        ).evaluate(2, opponent="perfect")
    with pytest.raises(ConfigError, match="only trained agents search or play games of two"):
        reverie.evaluate("reverie/Nim-v0", lambda obs: 0)


def test_single_player_environments_have_no_opponent(trained):
    with pytest.raises(ConfigError, match="this environment is no game of two players"):
        reverie.load(trained).evaluate(1, opponent="random")


@pytest.mark.parametrize(("won", "lost"), [((0, 0, 1), (0, 1, 0)), ((2, 0, 0), (0, 0, 2)), ((0, 0, 1), (0, 0, 1))])
def test_ratings_of_few_games_maximize_the_penalized_likelihood(won, lost):
    """Whole steps of Newton's method oscillate there. Each rating is at most as good 1 Elo aside."""
    counts = np.zeros((2, 2, 3), int)
    counts[0, 1], counts[1, 0] = won, lost
    games, points = np.array([sum(won), sum(lost)]), np.array([won[0] + won[1] / 2, lost[0] + lost[1] / 2])

    def likelihood(rating, advantage):
        x = np.array([[1.0, 1.0], [-1.0, 1.0]])  # the second row: the other player moves first
        p = 1 / (1 + np.exp(-x @ [rating, advantage]))
        information = (x.T * (games * p * (1 - p))) @ x
        return (points * np.log(p) + (games - points) * np.log(1 - p)).sum() + np.log(np.linalg.det(information)) / 2

    rating = rate(counts, 1)[0][0] / ELO_PER_LOGIT
    advantages = np.linspace(-4, 4, 2001)
    best, *others = (max(likelihood(r, h) for h in advantages) for r in rating + np.array([0, -0.02, 0.02]))
    assert best >= max(others)
