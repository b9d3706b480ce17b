"""Games of two policies: seats, openings, results, and the strength of a policy."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

import reverie
from resumed_runs import assert_same
from reverie.core.specs import MASK_KEY
from reverie.envs.board_games import ConnectRules, solve
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.experiment.build import Experiment
from reverie.experiment.config import ExperimentConfig
from reverie.run.evaluate import Evaluation, evaluate
from reverie.run.match import RandomPolicy

GAME = "reverie/TicTacToe-v0"


class Chooser(RandomPolicy):
    """A policy that takes the action ``choose(board, mask)``."""

    def __init__(self, choose):
        self.choose, self.overridden = choose, []

    def act(self, step, state, mode):
        pairs = zip(step.obs["board"].numpy(), step.obs[MASK_KEY].numpy(), strict=True)
        return torch.eye(9)[[self.choose(*pair) for pair in pairs]], state

    def override(self, state, action):
        self.overridden.append(action)
        return state


def last_legal(board, mask):
    return np.flatnonzero(mask)[-1]


@pytest.fixture(scope="module")
def perfect():
    rules = ConnectRules()
    optimal = {rules.board(position).tobytes(): solution.optimal[0] for position, solution in solve(rules).items()}
    return Chooser(lambda board, mask: optimal.get(board.tobytes(), 0))


def play(policy, opponent, games, num_envs, seed=0, **options):
    env = make_vector_env(EnvConfig(id=GAME, num=num_envs, **options), seed=0)
    try:
        return evaluate(env, policy, games, seed=seed, opponent=opponent)
    finally:
        env.close()


def test_pairs_of_games_begin_alike_with_seats_changed(perfect):
    """The same policy in both seats wins what it loses; the number of environments does not matter."""
    policy = Chooser(last_legal)
    results = [play(policy, Chooser(last_legal), 30, num_envs) for num_envs in (1, 4, 7)]
    scores = np.array(results[0].scores)
    np.testing.assert_array_equal(scores[::2], -scores[1::2])
    assert len(set(zip(scores[::2], results[0].lengths[::2], strict=True))) > 2
    assert results[0].scores == results[1].scores == results[2].scores
    assert play(policy, Chooser(last_legal), 30, 4, seed=1).lengths != results[0].lengths
    first, second = play(perfect, policy, 40, 4), play(policy, perfect, 40, 4)
    assert first.score == -second.score > 0.5
    assert all(actions.sum(1).max() == 1 for actions in policy.overridden)
    means = first.metrics()
    assert means["eval/won"] - means["eval/lost"] == pytest.approx(first.score)
    assert means["eval/won"] + means["eval/drawn"] + means["eval/lost"] == pytest.approx(1)


def test_strength_is_logged_where_the_solution_is_known(perfect):
    metrics = play(perfect, None, 20, 5).metrics()
    assert [metrics[f"eval/{name}"] for name in ("optimal_moves", "optimal_moves_hard", "lost_to_perfect")] == [1, 1, 0]
    assert metrics["eval/lost"] < 0.1
    assert not play(perfect, Chooser(last_legal), 2, 1).strength
    assert not play(Chooser(last_legal), None, 2, 1, frame_stack=2).strength  # other boards


def test_positions_do_not_measure_a_policy_that_remembers_rows(perfect, monkeypatch):
    monkeypatch.setattr(Chooser, "memoryless", lambda self, mode: False, raising=False)
    assert not play(perfect, None, 2, 1).strength


def test_a_confirmation_also_confirms_the_strength(perfect):
    first, extra = (replace(play(perfect, None, 2, 1), strength={"elo": elo}) for elo in (90.0, 30.0))
    assert first.merge(extra).strength == {"elo": 60}


def test_a_run_is_judged_by_its_optimal_moves(tmp_path):
    """Evaluations have no random openings of training."""
    result = reverie.train(
        "muzero", env=GAME, run=tmp_path / "run", steps=160, learning_starts=40, eval_episodes=8, replay_ratio=0.1,
        **{"env.num": 4, "algo.num_simulations": 2, "algo.batch_size": 4, "schedule.eval_every": 80},
    )  # fmt: skip
    assert result.load_agent().config.score_metric == "eval/optimal_moves_hard"
    assert (tmp_path / "run" / "checkpoints" / "best").exists()
    loaded = reverie.load(tmp_path / "run").evaluate(8)
    assert isinstance(loaded, Evaluation)
    assert loaded.scores == result.evaluation.scores
    assert loaded.strength.items() < result.evaluation.strength.items()
    config = ExperimentConfig().merge({"env": {"id": GAME, "kwargs": {"opening_moves": 6}}})
    assert config.eval_env_config.kwargs == {}


SELF_PLAY = {
    "learning_starts": 40, "eval_episodes": 16, "eval_envs": 8, "replay_ratio": 0.25, "env.num": 4,
    "algo.num_simulations": 2, "algo.batch_size": 4, "schedule.eval_every": 80, "steps": 240,
    "env.kwargs": {"rows": 4, "columns": 5}, "console": False,
}  # fmt: skip


def ratings(run):
    """Elo, the score against the agent before, and against random moves, of all evaluations of a run."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    names = ("step", "eval/elo", "eval/score_previous", "eval/score")
    return [[line[name] for name in names] for line in lines if "eval/elo" in line]


def test_an_agent_that_learns_nothing_keeps_its_rating(tmp_path):
    run = tmp_path / "run"
    result = reverie.train("muzero", env="reverie/ConnectFour-v0", run=run, **SELF_PLAY | {"replay_ratio": 0.0})
    assert result.load_agent().config.score_metric == "eval/elo"
    (_, elo, first, score), *later = ratings(run)
    assert first == score  # against random moves
    assert elo * score > 0
    np.testing.assert_allclose([entry[1:3] for entry in later], [[elo, 0]] * 3, atol=1e-6)
    assert result.evaluation.strength == {"elo": pytest.approx(elo), "score_previous": 0}


def test_a_resumed_run_meets_the_same_agents(tmp_path, monkeypatch):
    """Stopped in the middle of games, and before the final evaluation."""
    options = {"env": "reverie/ConnectFour-v0"} | SELF_PLAY
    whole, run = reverie.train("muzero", run=tmp_path / "whole", **options).run, tmp_path / "run"
    assert len({elo for _, elo, *_ in ratings(whole)}) > 1

    def stop(method, is_time):
        """Send SIGTERM before the first call of ``method`` for which it is time."""

        def call(self, which, *args, **kwargs):
            if is_time(self, which):
                monkeypatch.undo()
                os.kill(os.getpid(), signal.SIGTERM)
            return original(self, which, *args, **kwargs)

        original = getattr(Experiment, method)
        monkeypatch.setattr(Experiment, method, call)
        assert reverie.train("muzero", run=run, **options).signal == signal.SIGTERM

    stop("keep_evaluated", lambda experiment, values: experiment.clock.env_steps > 100)
    stop("measure", lambda experiment, which: which == "test")
    assert reverie.train("muzero", run=run, **options).signal is None
    assert ratings(run) == ratings(whole)
    assert_same(run, whole)
