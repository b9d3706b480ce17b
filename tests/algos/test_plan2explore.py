"""Plan2Explore: what the recording of the authors' code does not show."""

from dataclasses import fields, replace

import pytest
import torch

from dreamer_configs import ACTIONS, batch, build, build_earlier, build_p2e, shown, tensors
from reverie.algos.dreamer_v1 import DreamerV1Config
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.imagination import Trajectory
from reverie.algos.plan2explore import previous_actions
from reverie.algos.table import algorithm_name
from reverie.algos.world_model import Context
from reverie.experiment.warm_start import MatchingNetworks, is_compatible_start

bases = pytest.mark.parametrize("base", ["v1", "v2", "v3"])


@pytest.mark.parametrize(
    ("target", "width"), [("stoch", 12), ("deter", 16), ("embed", None), ("feature", 28)], ids=lambda x: str(x)
)
def test_every_target_is_predicted_of_the_row_that_comes_later(target, width):
    agent = build_earlier("p2e", ensemble__target=target, ensemble__offset=2, ensemble__action_conditioned=False)
    rows = batch(agent)
    post = agent.world.observe(rows)
    target = agent.ensemble.target(post)
    assert target.shape == (3, 6, width or agent.world.encoder.width)
    loss = torch.zeros(())
    for model in agent.ensemble.models:  # of a unit normal, row by row
        normal = torch.distributions.Normal(model(post.latent.feature.detach()), 1.0)
        loss = loss - torch.stack([normal.log_prob(target.roll(-2, 1)).sum(-1)[:, t] for t in range(4)]).mean()
    torch.testing.assert_close(agent.ensemble.loss(post, rows.action), loss)


def test_actions_before_rows_are_zero_where_an_episode_begins():
    agent = build_earlier("p2e")
    rows = batch(agent)
    first = torch.rand(3, 4)
    before = previous_actions(rows, Context(agent.world.rssm.initial(3, torch.float32), first))
    for b in range(3):
        for t in range(6):
            led = first[b] if t == 0 else rows.action[b, t - 1]
            assert torch.equal(before[b, t], torch.zeros(4) if rows.is_first[b, t] else led)


def test_on_v3_the_task_is_learned_as_by_dreamer_v3():
    """Where rewards train the world model: the same losses and gradients, whatever else is learned."""
    agent, plain = build_p2e("v3", grad_heads=("decoder", "reward", "cont")), build()
    MatchingNetworks(plain).load_state_dict(build_p2e("v3").state_dict())  # the same weights
    terms = []
    for learner in (agent, plain):
        torch.manual_seed(0)
        losses = learner.losses(*learner.split_context(batch(learner)))
        learner.total(losses.terms).backward()
        terms.append(losses.terms)
    torch.testing.assert_close(*terms, rtol=0, atol=0)
    for (name, one), (_, other) in zip(plain.named_parameters(), agent.named_parameters(), strict=False):
        torch.testing.assert_close(one.grad, other.grad, rtol=0, atol=0, msg=name)


@pytest.mark.parametrize(("base", "task"), [("v1", DreamerV1Config), ("v2", DreamerV2Config), ("v3", DreamerV3Config)])
def test_a_run_without_exploring_goes_on_with_the_tasks_behavior_and_all_moments(base, task):
    agent = build_p2e(base)
    torch.manual_seed(0)
    agent.update(batch(agent))
    names = ("plan2explore_v1", "plan2explore", "plan2explore_v3")
    assert [name for name in names if is_compatible_start(task, name)] == [algorithm_name(type(agent.cfg))]
    settings = {f.name: getattr(agent.cfg, f.name) for f in fields(task)}
    plain = task(**settings).build(agent.obs_spec, ACTIONS["discrete"])
    MatchingNetworks(plain).load_state_dict(agent.state_dict())
    ours, found = tensors(plain), tensors(agent)
    assert ours.keys() < found.keys()
    torch.testing.assert_close(ours, {k: found[k] for k in ours}, rtol=0, atol=0)


def test_on_v3_disagreement_rewards_the_action_before():
    agent = build_p2e("v3", extrinsic_scale=0.0)
    width = agent.world.rssm.feature_width
    dream = Trajectory(torch.randn(5, 7, 2, width), torch.rand(5, 7, 2, 4), policy=None)
    reward = agent.intrinsic_reward(dream)
    assert torch.equal(reward[0], torch.zeros(7, 2))
    for t in range(4):
        torch.testing.assert_close(reward[t + 1], agent.ensemble.disagreement(dream.feature[t], dream.action[t]))
    rows, given = batch(agent), []
    post = agent.world.observe(rows)
    agent.ensemble.register_forward_hook(lambda module, inputs, out: given.append(inputs[1]))
    agent.exploring_loss(rows, post)
    assert any(x.shape == (3, rows.shape[1] - 1, 4) and torch.equal(x, rows.action[:, :-1]) for x in given)


@bases
def test_it_explores_with_one_behavior_and_is_evaluated_with_the_other(base):
    agent = build_p2e(base)
    agent.policy.noisy = False  # V1's default is random actions now and then
    for head, favorite in ((agent.explorer.actor, 1), (agent.actor, 3)):
        [*head.parts[0].parameters()][-1].data[favorite] = 1e4  # the bias
    for mode, favorite in (("explore", 1), ("eval", 3)):
        action, _ = agent.policy.act(shown(batch(agent)), agent.policy.initial(3), mode)
        assert action.argmax(-1).tolist() == [favorite] * 3


@bases
def test_rewards_do_not_reach_the_world_model_while_it_explores_without_them(base):
    agents = [build_p2e(base, extrinsic_scale=0.0) for _ in range(2)]
    for agent, sign in zip(agents, (1, -1), strict=True):
        rows = batch(agent)
        torch.manual_seed(0)
        for _ in range(3):  # the task's behavior may see a new reward one update later
            agent.update(replace(rows, reward=sign * rows.reward))
    one, other = (agent.state_dict()["model"] for agent in agents)
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    task = ("behavior.",) if base == "v2" else ("actor.", "critic.", "slow_critic.", "return_scale.")
    for part in ("world.reward.", task[0]):
        assert any(name.startswith(part) for name in differ)
    assert all(name.startswith(("world.reward.", *task)) for name in differ), differ
