"""Which settings goal-conditioned learners refuse, and which observations they read."""

from dataclasses import replace

import pytest
import torch

from contracts import CHOICE, MOVES, SPECS, batch, build, config, tiny
from d4rl_files import columns, write
from reverie.algos.goal_planner import CategoricalBlocks, NormalBlocks, PlannerConfig, plan_to_goal
from reverie.core.errors import ConfigError
from reverie.core.specs import GOAL, MASK_KEY, ObsPart
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


def test_states_and_goals_that_are_the_mean_of_the_data():
    """As a cell in the middle of symmetric walks: inputs of the first update are 0, and so are representations."""
    agent = build("hiql", normalize_obs=None, graph=False)
    data = batch(agent)
    for x in (*data.obs.values(), *data.goals.values()):
        x.zero_()
    agent.objective(agent.prepare_batch(data)).total().backward()
    assert max(x.grad.abs().max() for x in agent.objective.parameters() if x.grad is not None) < 1e4


def test_without_the_future_there_are_no_distances():
    with pytest.raises(ConfigError, match="discount = 0"):
        config("gcivl", discount=0.0)


class Grid:
    """A model whose latents are places on a line and a circle: each block of two one-hot actions moves along both."""

    def imagine(self, z, blocks):
        steps = blocks.view(*blocks.shape[:-1], 2, 5).sum(-2)  # three classes, then two
        assert set(blocks.unique().tolist()) <= {0.0, 1.0}
        assert torch.equal(steps[..., :3].sum(-1), torch.full(steps.shape[:-1], 2.0))
        moves = torch.stack([steps[..., 2] - steps[..., 0], steps[..., 4]], -1)
        return z[..., None, :] + moves.cumsum(-2)


def test_plans_of_discrete_actions_are_one_hot_and_reach_the_goal():
    cfg = PlannerConfig(horizon=3, candidates=200, elites=20)
    goals = torch.tensor([[6.0, 0.0], [-4.0, 5.0], [0.0, 6.0]])
    blocks = CategoricalBlocks((3, 2), 2, len(goals), cfg, torch.device("cpu"))
    plan = plan_to_goal(Grid(), torch.zeros_like(goals), goals, blocks, cfg, seed=0)
    torch.testing.assert_close(plan.latents[:, -1], goals)
    first = CategoricalBlocks((3, 2), 2, 1, cfg, torch.device("cpu"))
    drawn = first.draw(6000, torch.Generator().manual_seed(0))
    thirds = drawn.mean((0, 1, 2)).view(2, 5)[:, :3]
    torch.testing.assert_close(thirds, torch.full((2, 3), 1 / 3), rtol=0, atol=0.02)
    first.fit(drawn[:, [1, 1, 1, 2, 3]])
    torch.testing.assert_close(first.likeliest(), drawn[:, 1])
    often = first.draw(6000, torch.Generator().manual_seed(0))[:, 1:].mean(1)
    torch.testing.assert_close(often, drawn[:, [1, 1, 1, 2, 3]].mean(1), rtol=0, atol=0.03)


def test_a_share_of_candidates_keeps_its_direction():
    """Blocks of two actions of three numbers."""
    cfg = PlannerConfig(horizon=4, steady=0.5)
    limits = torch.tensor([[-9.0] * 3, [9.0] * 3])
    blocks = NormalBlocks(limits, 2, 2, cfg)
    steps = blocks.draw(20, torch.Generator().manual_seed(0)).view(2, 20, 8, 3)
    assert not steps[:, 0].any()
    is_steady = (steps == steps[:, :, :1]).all(-1).all(-1)
    assert is_steady.sum(1).tolist() == [10, 10]
    assert len(steps[:, :10, 0, 0].unique()) == 1 + 2 * 9  # each its own, and 0
    blocks.fit(steps[:, 1:10].reshape(2, 9, 4, 6))
    torch.testing.assert_close(blocks.likeliest().view(2, 8, 3), steps[:, 1:10].mean(1))


def test_discrete_actions_of_lewm_are_not_normalized():
    agent = build("lewm_choices")
    data = batch(agent)
    agent.running_statistics.fit(data)
    torch.testing.assert_close(agent.prepare_batch(data).action, data.action)
    goals = {f"{GOAL}{key}": x[:, 0] for key, x in data.obs.items()}
    blocks = agent.plan({key: x[:, 0] for key, x in data.obs.items()} | goals).blocks  # [B, H, 2 A]
    torch.testing.assert_close(blocks.view(-1, 3), blocks.view(-1, 3).round().clamp(0, 1))


def test_plans_of_legal_actions_are_refused():
    mask = {MASK_KEY: ObsPart(kind="mask", shape=(3,), dtype="bool")}
    with pytest.raises(ConfigError, match=r"legal is unknown\. To go without masks, set env\.exclude_keys"):
        tiny("lewm").build(SPECS["vector"] | mask, CHOICE)


def test_images_of_a_transition_and_of_its_goals_are_shifted_alike():
    agent = build("gcivl", "everything", crop_probability=0.5)
    data = batch(agent, "everything")
    images = {key: x[:, :1].clone() for key, x in data.obs.items()}
    data = replace(data, goals={f"{name}/{key}": x for name in ("value", "actor") for key, x in images.items()})
    torch.manual_seed(0)
    agent.crops.training, counts = True, []
    for _ in range(40):
        crop = agent.prepare_batch(data)
        for name in ("value", "actor"):
            torch.testing.assert_close(crop.goals[f"{name}/image"][:, 0], crop.obs["image"][:, 0])
        counts.append(sum(not torch.equal(a, b) for a, b in zip(crop.obs["image"], data.obs["image"], strict=True)))
    assert 10 <= counts.count(0) <= 30  # a single coin for all rows
    assert all(count > len(data.weight) / 2 for count in counts if count)
    agent.crops.training = False
    torch.testing.assert_close(agent.prepare_batch(data).obs["image"], data.obs["image"])
    agent.crops.training, agent.crops.probability = True, 1.0
    shifts = [agent.prepare_batch(data).obs["image"] for _ in range(30)]
    corners = {tuple(x[0, 0].flatten().tolist()) for x in shifts}
    assert len(corners) > 15  # of 49 shifts
    assert any(torch.equal(x[0, :, :5, :5], data.obs["image"][0, :, 3:, 3:]) for x in
               [agent.prepare_batch(data).obs["image"] for _ in range(300)])  # fmt: skip
