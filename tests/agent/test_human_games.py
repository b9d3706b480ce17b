"""A person plays against an agent: moves, commands, and the games that are stored."""

import io

import numpy as np
import pytest

import reverie
from reverie.agent.human_games import play_games
from reverie.cli.main import main
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import IS_INTERVENTION, mover_sign
from reverie.datasets.format_detection import open_reader


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("games") / "run"
    options = {"steps": 160, "learning_starts": 40, "replay_ratio": 0.1, "eval_episodes": 0, "env.num": 4}
    small = {"algo.num_simulations": 4, "algo.batch_size": 4}
    return reverie.train("muzero", env="reverie/TicTacToe-v0", run=folder, console=False, **options, **small).run


def read_games(folder):
    with open_reader(str(folder)) as reader:
        parts = [*reader.parts()]
    rows = {name: np.concatenate([np.asarray(part[name]) for part in parts]) for name in parts[0]}
    games = zip(*(np.split(x, np.flatnonzero(rows["is_first"])[1:]) for x in rows.values()), strict=True)
    return [dict(zip(rows, game, strict=True)) for game in games]


@pytest.mark.parametrize("seat", [0, 1])
def test_finished_games_are_stored_with_the_moves_of_the_person(run, seat, capsys, tmp_path):
    agent = reverie.load(run)
    agent.run = tmp_path
    play_games(agent, seat=str(seat), simulations=4, stream=io.StringIO("\n".join("012345678" * 15)))
    text = capsys.readouterr().out
    games = read_games(tmp_path / "human_games")
    assert len(games) == text.count(", written to") > 1
    for game, result in zip(games, (line for line in text.splitlines() if ", written to" in line), strict=True):
        player, is_person = game["obs/player"].ravel(), game[IS_INTERVENTION].astype(bool)
        np.testing.assert_array_equal(is_person[:-1], player[:-1] == seat)
        assert not is_person[-1]
        score = float((game["reward"] * mover_sign(player)).sum()) * (1 if seat == 0 else -1)
        assert result.startswith({1: "you win", -1: "you lose", 0: "a draw"}[score])
        assert game["is_terminal"][-1]


def test_commands_and_illegal_moves(run, capsys, monkeypatch):
    """A move that is taken back is asked for again, in the same position; an unfinished game is not stored."""
    monkeypatch.setattr("sys.stdin", io.StringIO("5\nu\n5\n5\nx\n\n?\nq\n"))
    assert main(["play", str(run), "--seat", "0", "--simulations", "8", "--hint"]) == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    turns = text.split("\nmoves: ")[1:]
    moves = [turn.partition("value of the position")[0] for turn in turns]
    assert [move.count("(row") for move in moves] == [9, 7, 9, 7]
    assert (moves[0], moves[1]) == (moves[2], moves[3])
    assert all(f"{word} is no legal move" in turns[3] for word in ("'5'", "'x'", "''"))
    assert turns[3].count("prior  visits  value  move") == 2  # the hint, and ?
    assert not (run / "human_games").exists()


def test_what_is_no_game_is_refused(trained, capsys):
    with pytest.raises(ConfigError, match=r"is no game of two players\. Watch the agent: reverie view"):
        play_games(reverie.load(trained))
    assert main(["play", "CartPole-v1"]) == 1
    assert "pass --out FOLDER for the demonstrations, or a run to play against" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("target", "options", "said"),
    [("run", ["--out", "there"], "--out is for an environment"), ("run", ["--episodes", "3"], "--episodes is for"),
     ("run", ["--env-options", "{max_episode_steps: 3}"], "--env-options is for an environment"),
     ("run", ["--simulations", "1"], "simulations = 1"),
     ("CartPole-v1", ["--out", "there", "--hint"], "--hint is for a run in a game of two players")],
)  # fmt: skip
def test_options_that_would_be_ignored_are_refused(run, target, options, said, capsys):
    assert main(["play", str(run) if target == "run" else target, *options]) == 1
    assert said in capsys.readouterr().err


def test_a_run_that_cannot_be_written_is_noticed_before_the_game(run, tmp_path):
    agent = reverie.load(run)
    agent.run = tmp_path / "file"
    agent.run.write_text("no folder")
    with pytest.raises(RunError, match=r"cannot write to .*human_games"):
        play_games(agent, stream=io.StringIO("0\nq\n"))
