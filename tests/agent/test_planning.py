"""What agents plan: searches of MuZero, and plans of all planners."""

import numpy as np
import pytest
import torch

import reverie
from reverie.agent.planning import _follow
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import MASK_KEY
from reverie.envs.board_games import tic_tac_toe

SMALL = {"learning_starts": 40, "replay_ratio": 0.05, "eval_episodes": 0, "console": False}
FEW = {"learning_starts": 10, "algo.iterations": 2, "algo.num_samples": 32, "algo.num_policy_samples": 4}
FEW |= {"algo.num_elites": 8, "algo.batch_size": 4}


@pytest.fixture(scope="module")
def muzero(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "muzero"
    options = {"env.num": 4, "algo.num_simulations": 6, "algo.batch_size": 4, "steps": 160}
    return reverie.train("muzero", env="reverie/TicTacToe-v0", run=folder, **SMALL, **options).load_agent()


def positions(count):
    env, rng = tic_tac_toe(), np.random.default_rng(0)
    obs, _ = env.reset(seed=0)
    for _ in range(count):
        yield obs
        obs, _, over, *_ = env.step(int(rng.choice(np.flatnonzero(obs[MASK_KEY]))))
        if over:
            obs, _ = env.reset()


def test_act_takes_the_action_of_a_search(muzero):
    for obs in positions(12):
        result = muzero.search(obs)
        assert muzero.act(obs)[0] == result.action == result.variation[0]
        legal = obs[MASK_KEY].astype(bool)
        for probabilities in (result.policy, result.prior):
            assert probabilities.sum() == pytest.approx(1, abs=1e-5)
            assert not probabilities[~legal].any()
        np.testing.assert_array_equal(np.isnan(result.values), ~legal)
        assert result.value == pytest.approx(np.nansum(result.policy * result.values), abs=1e-5)
        assert (result.visits.sum(), result.tree["visits"].shape) == (6, (7, 9))
        deep = muzero.search(obs, simulations=40)
        assert (deep.visits.sum(), legal[deep.action]) == (40, True)
        assert muzero.search(obs, 40).visits.tolist() == deep.visits.tolist()


def test_a_variation_has_the_values_of_the_player_at_the_root():
    child = np.full((4, 2), -1)
    child[0], child[1, 0] = [1, 2], 3
    zeros = np.zeros((4, 2))
    tree = {"child": child, "discount": zeros - 1, "reward": zeros, "value": zeros, "visits": zeros + [[2, 1]] * 4,
            "mean_value": np.array([0, 0.5, 0.1, 0.25])}  # fmt: skip
    assert [*_follow(tree, 0)] == [(0, -0.5), (0, 0.25)]
    assert [*_follow(tree, 1)] == [(1, -0.1)]


def test_the_plan_of_a_search_is_its_variation(muzero):
    for obs in positions(4):
        plan, result = muzero.plan(obs), muzero.search(obs)
        assert plan.actions == result.variation
        assert plan.latents.shape == (1, len(plan.actions), 64)
        assert plan.values.shape == (1, len(plan.actions))
        assert plan.costs is None
        q = result.tree["reward"][0] + result.tree["discount"][0] * result.tree["value"][0]
        first = float(plan.values[0, 0]) + result.tree["reward"][0, result.action]
        assert first == pytest.approx(q[result.action], abs=1e-5)


def test_the_plan_of_a_batch_is_as_long_as_the_shortest(muzero):
    boards = [*positions(4)]
    plans = [muzero.plan(obs) for obs in boards]
    both = muzero.plan({key: np.stack([obs[key] for obs in boards]) for key in boards[0]})
    assert len(both.actions) == min(len(plan.actions) for plan in plans)
    assert both.latents.shape[:2] == both.values.shape == (4, len(both.actions))
    for i, plan in enumerate(plans):
        assert [int(step[i]) for step in both.actions] == plan.actions[: len(both.actions)]
        torch.testing.assert_close(both.values[i], plan.values[0, : len(both.actions)], atol=1e-5, rtol=0)


def test_a_mask_beside_that_of_the_observation_restricts_it(muzero):
    obs, only = next(positions(1)), np.eye(9, dtype=np.int8)
    for action in (2, 7):
        assert muzero.act(obs, action_mask=only[action])[0] == action
        assert np.flatnonzero(~np.isnan(muzero.search(obs, action_mask=only[action]).values)).tolist() == [action]
        assert muzero.plan(obs, action_mask=only[action]).actions[0] == action
    batch = {key: np.stack([x, x]) for key, x in obs.items()}
    assert muzero.act(batch, action_mask=only[[3, 5]])[0].tolist() == [3, 5]
    assert muzero.distribution(obs, action_mask=only[4])["probabilities"].argmax() == 4
    taken = obs | {MASK_KEY: 1 - only[4]}
    with pytest.raises(DataError, match="leaves no legal action"):
        muzero.act(taken, action_mask=only[4])


def test_a_dreamer_is_searched_in_its_latents(trained):
    dreamer = reverie.load(trained)
    obs = dreamer.observation_space.sample()
    torch.manual_seed(1)
    result = dreamer.search(obs, simulations=8)
    assert (result.visits.sum(), result.tree["visits"].shape, result.variation[0]) == (8, (9, 2), result.action)
    assert dreamer.search(obs).visits.sum() == 16
    torch.manual_seed(1)
    latent = dreamer.inspect(obs)[1].inputs
    assert dreamer.algo.acting(8).search(latent, {}).policy[0].tolist() == pytest.approx(
        result.policy.tolist(), abs=1e-5
    )


@pytest.mark.parametrize("name", ["tdmpc2", "bmpc"])
def test_the_plan_of_mppi_is_its_mean(name, tmp_path):
    agent = reverie.train(name, env="Pendulum-v1", run=tmp_path / "run", steps=20, **SMALL | FEW).load_agent()
    obs = np.array([1.0, 0.0, 0.5], np.float32)
    torch.manual_seed(0)
    plan = agent.plan(obs)
    action, state = agent.act(obs)
    mean = getattr(state.policy, "state", state.policy).mean
    np.testing.assert_allclose(np.stack(plan.actions).ravel(), 2 * mean.ravel(), rtol=1e-5)
    assert plan.latents.shape[:2] == plan.values.shape == (1, len(plan.actions))
    assert action.shape == plan.actions[0].shape
    assert agent.plan(obs, state=state).actions != plan.actions
    both = agent.plan(np.stack([obs, obs]))
    assert (both.actions[0].shape, both.values.shape) == ((2, 1), (2, len(plan.actions)))
    with pytest.raises(ConfigError, match=rf"goal: {name} does not plan to goals\. Train lewm"):
        agent.plan(obs, obs)
    with pytest.raises(ConfigError, match=r"does not search\. Use an agent of muzero, or of dreamer_v3"):
        agent.search(obs)


def test_what_cannot_be_planned_is_refused(muzero, trained):
    agent = reverie.load(trained)
    obs = agent.observation_space.sample()
    with pytest.raises(ConfigError, match=r"does not plan\. Train lewm, tdmpc2, bmpc or muzero"):
        agent.plan(obs)
    obs = next(positions(1))
    with pytest.raises(DataError, match="a batch of observations: expected a single one"):
        muzero.search({key: np.stack([x, x]) for key, x in obs.items()})
    with pytest.raises(ConfigError, match="simulations"):
        muzero.search(obs, 1)


def test_evaluations_search_as_long_as_they_are_told(muzero, monkeypatch):
    asked, kind = [], type(muzero.algo.objective)
    search = kind.search
    monkeypatch.setattr(
        kind, "search", lambda *args, **more: (asked.append(more["simulations"]), search(*args, **more))[1]
    )
    muzero.evaluate(2, opponent="random", simulations=3)
    assert set(asked) == {3}
    with pytest.raises(ConfigError, match=r"simulations = 2\.5"):
        muzero.evaluate(1, simulations=2.5)
