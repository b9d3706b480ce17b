"""Which settings goal-conditioned learners refuse, and which observations they read."""

import pytest
import torch

from contracts import CHOICE, MOVES, SPECS, batch, build, config, tiny
from d4rl_files import columns, write
from reverie.core.errors import ConfigError
from reverie.experiment.build import build as build_run
from reverie.experiment.config import ExperimentConfig


@pytest.mark.parametrize("name", ["gciql", "crl", "qrl"])
def test_gradients_of_values_by_discrete_actions_are_refused(name):
    with pytest.raises(ConfigError, match=r"actor_loss = ddpg_bc: .* Use --algo.actor-loss awr"):
        tiny(name).build(SPECS["vector"], CHOICE)


def test_the_width_of_a_quasimetric_is_a_multiple_of_its_intervals():
    with pytest.raises(ConfigError, match=r"representation_width = 20: expected a multiple of 8"):
        config("qrl", representation_width=20)


def test_subgoals_beyond_the_end_of_each_episode_are_refused_before_a_run(tmp_path):
    rows = {name: values for name, values in columns().items() if name != "rewards"}
    own = {"data.path": str(write(tmp_path / "a.hdf5", rows)), "env.id": "none", "device": "cpu", "eval_episodes": 0}
    with pytest.raises(ConfigError, match=r"subgoal_steps = 25: the longest episode of the data has \d+ steps"):
        build_run(ExperimentConfig(algo=config("hiql")).merge(own))


@pytest.mark.parametrize("name", ["gcivl", "hiql", "gciql", "crl", "qrl"])
def test_goals_may_be_a_part_of_an_observation(name):
    """Other parts of a goal do not matter; a subgoal of HIQL is a whole state."""
    losses = []
    for shift in (0.0, 1.0):
        agent = build(name, "everything", goal_keys="state|more", graph=False, normalize_obs=None)
        data = batch(agent, "everything")
        for key, goal in data.goals.items():
            if key.endswith("image") and not (name == "hiql" and key.startswith("high")):
                goal.add_(int(shift))
        losses.append(agent.update(data).metrics)
    torch.testing.assert_close(*losses, rtol=0, atol=0)
    assert set(agent.goal_sampling.keys) == ({"state", "more"} if name != "hiql" else {*SPECS["everything"]})
    with pytest.raises(ConfigError, match="goal_keys = 'nothing': no observation matches"):
        tiny(name, {"goal_keys": "nothing"}).build(SPECS["vector"], MOVES)


def test_without_the_future_there_are_no_distances():
    with pytest.raises(ConfigError, match="discount = 0"):
        config("gcivl", discount=0.0)
