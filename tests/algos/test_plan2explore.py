"""Plan2Explore: what the recording of the authors' code does not show."""

from dataclasses import replace

import pytest
import torch
from dreamer import batch, build_earlier

from reverie.algos.plan2explore import EnsembleConfig, Plan2ExploreConfig, actions_before
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.types import Step


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


def test_disagreement_is_the_deviation_of_the_predictions():
    torch.manual_seed(0)
    ensembles = [EnsembleConfig(models=3, log=log) for log in (False, True)]
    agent = build_earlier("p2e")
    feature, action = torch.randn(5, 28), torch.randn(5, 4)
    plain, log = (config.build(agent.world, 4) for config in ensembles)
    log.load_state_dict(plain.state_dict())
    seen = plain(feature, action)  # [3, 5, 12]
    mean = (seen[0] + seen[1] + seen[2]) / 3
    variance = ((seen[0] - mean) ** 2 + (seen[1] - mean) ** 2 + (seen[2] - mean) ** 2) / 3
    torch.testing.assert_close(plain.disagreement(feature, action), variance.sqrt().mean(-1))
    torch.testing.assert_close(log.disagreement(feature, action), variance.sqrt().mean(-1).log())


def test_actions_before_rows_are_zero_where_an_episode_begins():
    agent = build_earlier("p2e")
    rows = batch(agent)
    first = torch.rand(3, 4)
    before = actions_before(rows, Context(agent.world.rssm.initial(3, torch.float32), first))
    for b in range(3):
        for t in range(6):
            led = first[b] if t == 0 else rows.action[b, t - 1]
            assert torch.equal(before[b, t], torch.zeros(4) if rows.is_first[b, t] else led)


def test_it_explores_with_one_behaviour_and_is_evaluated_with_the_other():
    agent = build_earlier("p2e")
    for head, favourite in ((agent.explorer.actor, 1), (agent.actor, 3)):
        head.parts[0].outputs[0].bias.data[favourite] = 1e4
    no = torch.zeros(3, dtype=torch.bool)
    rows = batch(agent)
    step = Step(
        obs={k: v[:, 0] for k, v in rows.obs.items()}, reward=torch.zeros(3), is_first=~no, is_last=no, is_terminal=no
    )
    for mode, favourite in (("explore", 1), ("eval", 3)):
        action, _ = agent.policy.act(step, agent.policy.initial(3), mode)
        assert action.argmax(-1).tolist() == [favourite] * 3


def test_rewards_do_not_reach_the_world_model_while_it_explores_without_them():
    agents = [build_earlier("p2e", extrinsic=0.0) for _ in range(2)]
    for agent, sign in zip(agents, (1, -1), strict=True):
        rows = batch(agent)
        torch.manual_seed(0)
        agent.update(replace(rows, reward=sign * rows.reward))
    one, other = (agent.state_dict()["model"] for agent in agents)
    differ = {name for name in one if not torch.equal(one[name], other[name])}
    assert {".".join(name.split(".")[:2]) for name in differ} >= {"world.reward", "behaviour.actor"}
    assert all(name.startswith(("world.reward.", "behaviour.")) for name in differ), differ


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"ensemble.models": 1}, "models = 1: expected at least 2"),
        ({"ensemble.target": "image"}, "target = 'image': expected one of"),
        ({"ensemble.offset": -1}, "offset = -1"),
    ],
)
def test_settings_that_cannot_be_are_named(changes, says):
    with pytest.raises(ConfigError, match=says):
        Plan2ExploreConfig().merge(changes)
