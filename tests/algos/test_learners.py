"""What single model-free learners do beside their losses: how they act, and what they are careful of."""

import copy
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from batches import ACTS, MOVE, OBS, batch, steps
from reverie.algos.bc import BCConfig
from reverie.algos.bcq import BCQConfig
from reverie.algos.cql import CQLConfig, Lagrange
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.qr_dqn import QRDQNConfig
from reverie.algos.returns_to_go import RETURN_TO_GO_COLUMN, ReturnToGoAnnotator
from reverie.algos.sac import SACConfig
from reverie.algos.td3 import TD3Config
from reverie.core.columns import ColumnSpec
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.core.types import Step
from reverie.nn.actor_critic import Dueling
from reverie.nn.actors import IQL_LOG_STD
from reverie.nn.reward_scaling import Factor
from reverie.objectives.returns import returns_to_go
from reverie.replay.storage import HostStorage


def choice(*classes):
    return ActionSpec(parts={"move": ActionPart(kind="categorical", classes=classes)})


def learner(config, spec=MOVE, **changes):
    small = {"networks.units": (16,), "batch_size": 4, "normalize_obs": None}
    return config.merge(small | changes).build(OBS, spec, seed=1)


def rows(seed=0, **more):
    return batch(4, 2, seed, crossing=False, dtype=torch.float32, **more)


# ---------------------------------------------------------------- critics of DDPG, TD3 and SAC


@pytest.mark.parametrize("config", [TD3Config, SACConfig])
@pytest.mark.parametrize("loss", ["l1", "smooth_l1"])
def test_the_error_of_critics_may_be_another(config, loss):
    made, data = learner(config(critic_loss=loss)), batch(dtype=torch.float32)
    torch.manual_seed(0)
    found = made.objective.critic_loss(data)
    torch.manual_seed(0)
    target, mask = made.objective.targets(data), ~data.is_last[:, :-1]
    taken = made.objective.critic({"state": data.obs["state"][:, :-1]}, data.action[:, :-1])
    each = (F.l1_loss if loss == "l1" else F.smooth_l1_loss)(taken, target.expand_as(taken), reduction="none")
    expected = (each.sum(0) * data.weight[:, None])[mask].sum() / mask.sum()
    torch.testing.assert_close(found.metrics["loss/critic"], expected)
    torch.testing.assert_close(found.metrics["train/value_max"], taken.mean(0)[mask].max())
    torch.testing.assert_close(found.metrics["train/target_max"], target[mask].max())


@pytest.mark.parametrize(("value", "warned"), [(-999.0, False), (-1001.0, True)])
@pytest.mark.parametrize("config", [TD3Config, SACConfig])
def test_values_beyond_ten_times_any_return_are_a_warning(config, value, warned):
    """The return is of the rewards that the losses see; the entropy of SAC belongs to it."""
    metrics = {"train/value": value, "train/temperature": 0.1, "train/entropy": 0.0}
    found = learner(config(reward_scale=Factor(0.5))).metrics_warning(metrics, lambda: 2.0)
    assert ("the largest reward is 1, and no return exceeds 100" in found) is warned
    assert not learner(config(reward_scale=Factor(0.5))).metrics_warning(metrics, lambda: 0.0)
    assert not learner(config()).metrics_warning(metrics | {"train/entropy": -1.0}, lambda: 1.0)
    assert not learner(config(discount=1.0)).metrics_warning(metrics, lambda: 1.0)


def test_updates_have_gradients_where_an_environment_has_disabled_them():
    """Also captured updates, which begin with the fourth."""
    expected, found = (learner(TD3Config()) for _ in range(2))
    for seed in range(6):
        data = rows(seed)
        losses = []
        for made in (expected, found):
            torch.manual_seed(seed)
            with torch.set_grad_enabled(made is expected):
                losses.append(made.update(data).metrics["loss/critic"].item())
                assert torch.is_grad_enabled() == (made is expected)
        assert losses[0] == losses[1]


def test_gradients_are_clipped_and_weights_decay_as_in_pytorch():
    """Also in captured updates, which begin with the fourth."""
    changes = {"critic_weight_decay": 0.1, "max_grad_norm": 0.05}
    ours, theirs = (learner(DDPGConfig(), graph=graph, **changes) for graph in (True, False))
    o = theirs.objective
    steps = {
        o.critic_loss: (o.critic, torch.optim.Adam(o.critic.parameters(), 1e-3, weight_decay=0.1)),
        o.actor_loss: (o.actor, torch.optim.Adam(o.actor.parameters(), 1e-4)),
    }
    for seed in range(8):
        ours.update(rows(seed))
        for loss, (network, optim) in steps.items():
            optim.zero_grad()
            loss(rows(seed)).total().backward()
            assert float(torch.nn.utils.clip_grad_norm_(network.parameters(), 0.05)) > 0.05
            optim.step()
        o.target_critic.update()
        o.target_actor.update()
    for name, x in ours.objective.state_dict().items():
        torch.testing.assert_close(x, o.state_dict()[name], msg=name)


@pytest.mark.parametrize("config", [DDPGConfig, TD3Config, SACConfig])
def test_learning_rates_may_follow_ramps(config):
    made, before = learner(config(critic_lr=[[0, 0.0], [10, 1e-2]])), None
    for position, moves in ((0, False), (10, True)):
        made.position = lambda position=position: position
        before = [p.detach().clone() for p in made.objective.critic.parameters()]
        made.update(rows(position))
        after = list(made.objective.critic.parameters())
        assert all(torch.equal(x, y) != moves for x, y in zip(before, after, strict=True))


# ---------------------------------------------------------------- TD3 and SAC


@pytest.mark.parametrize(("config", "often"), [(TD3Config, {"critic"}), (SACConfig, {"critic", "target_critic"})])
def test_actor_and_targets_move_at_every_dth_update_exactly(config, often):
    """The targets of SAC follow the critics at once."""
    agent = learner(config(policy_delay=3))
    seldom = {"actor", "target_actor", "target_critic"} if config is TD3Config else {"actor", "log_temperature"}
    for i in range(1, 8):
        before = copy.deepcopy(agent.objective.state_dict())
        update, after = agent.update(rows(i)), agent.objective.state_dict()
        moved = {k.split(".")[0] for k in before if not torch.equal(before[k], after[k])}
        assert moved == often | (seldom if i % 3 == 0 else set())
        assert ("loss/actor" in update.metrics) == (i % 3 == 0)
    assert agent.state_dict()["updates"] == 7
    assert int(agent.optims["actor"].updates) == 7 // 3


@pytest.mark.parametrize(("target", "rises"), [(100.0, True), (-100.0, False), (None, False)])
def test_the_temperature_rises_while_there_is_too_little_entropy(target, rises):
    agent = learner(SACConfig(target_entropy=target))
    assert agent.objective.target_entropy == (-ACTS if target is None else target)
    for i in range(3):
        agent.update(rows(i))
    assert (float(agent.objective.temperature) > 1) == rises


def test_a_temperature_without_a_learning_rate_stays():
    agent = learner(SACConfig(temperature=0.25, temperature_lr=0.0))
    agent.update(rows())
    assert float(agent.objective.temperature) == pytest.approx(0.25, rel=1e-6)
    assert "temperature_optim" not in agent.state_dict()


def test_all_optimizers_with_equal_schedules_follow_them():
    equal = [[0, 1e-3], [10, 0.0]]
    agent = learner(SACConfig(actor_lr=equal, critic_lr=equal, temperature_lr=[[0, 1e-3], [10, 5e-4]]))
    agent.position = lambda: 5
    agent.update(rows())
    rates = {name: float(optim.rate) for name, optim in agent.optims.items()}
    assert rates == pytest.approx({"actor": 5e-4, "critic": 5e-4, "temperature": 7.5e-4})


def test_the_entropy_aimed_at_is_a_share_of_the_greatest():
    assert learner(DiscreteSACConfig(), choice(3)).objective.target_entropy == pytest.approx(0.98 * math.log(3))
    assert learner(DiscreteSACConfig(target_entropy=0.5), choice(3)).objective.target_entropy == 0.5


# ---------------------------------------------------------------- DQN


@pytest.mark.parametrize("config", [DQNConfig(), QRDQNConfig(num_quantiles=5)], ids=["dqn", "qr_dqn"])
def test_evaluation_takes_the_action_of_the_highest_value(config):
    agent, step = learner(config, choice(3)), steps(50)
    values = agent.objective.network(step.obs).view(50, 3, -1).mean(-1)
    action, _ = agent.policy.act(step, agent.policy.initial(50), "eval")
    assert torch.equal(action, torch.eye(3)[values.argmax(-1)])
    torch.testing.assert_close(agent.objective.values(step.obs), values)


def test_dueling_streams_are_joined_by_equation_9():
    torch.manual_seed(0)
    made, x = Dueling(4, (6, 5), classes=(3,)), torch.randn(2, 7, 4)
    hidden = made.shared(x).relu()
    value, advantage = made.value(hidden), made.advantage(hidden)
    assert (made.shared.layout.widths, made.value.layout.widths, made.advantage.layout.widths) == (
        (4, 6), (6, 5, 1), (6, 5, 3),
    )  # fmt: skip
    torch.testing.assert_close(made(x), value + advantage - advantage.mean(-1, keepdim=True))
    quantiles, x = Dueling(4, (5,), classes=(3,), outputs=2), torch.randn(7, 4)  # joined one by one
    assert quantiles.shared is None
    advantage = quantiles.advantage(x).view(7, 3, 2)
    expected = quantiles.value(x)[:, None] + advantage - advantage.mean(1, keepdim=True)
    torch.testing.assert_close(quantiles(x).view(7, 3, 2), expected)
    branches = Dueling(4, (5,), classes=(2, 3))  # one value, and advantages over the mean of each choice
    one, other = branches.advantage(x).split((2, 3), -1)
    expected = torch.cat([part - part.mean(-1, keepdim=True) for part in (one, other)], -1)
    torch.testing.assert_close(branches(x), branches.value(x) + expected)


# ---------------------------------------------------------------- clones and CRR


@pytest.mark.parametrize("config", [BCConfig(), DiscreteCRRConfig()], ids=["bc", "discrete_crr"])
def test_a_policy_of_choices_draws_while_it_explores(config):
    agent, step = learner(config, choice(3)), steps(4000, spread=False)
    actor = agent.objective.actor
    for p in actor.parameters():
        p.data.mul_(3)
    probability = actor(step.obs).log_probs[0].exp()
    torch.manual_seed(0)
    action, _ = agent.policy.act(step, agent.policy.initial(4000), "explore")
    torch.testing.assert_close(action.mean(0), probability, rtol=0, atol=0.03)
    action, _ = agent.policy.act(step, agent.policy.initial(4000), "eval")
    assert (action.argmax(-1) == probability.argmax()).all()


def test_what_imitates_is_chosen_by_the_actions():
    learner(BCConfig(policy_kind="categorical"), choice(2, 3))
    with pytest.raises(ConfigError,
                       match=r"policy_kind = stochastic is for continuous actions, but these actions are .*"
                                          "Use one of categorical, or None"):  # fmt: skip
        learner(BCConfig(policy_kind="stochastic"), choice(3))
    mixed = ActionSpec(parts={**MOVE.parts, "jump": ActionPart(kind="categorical", classes=(3,))})
    with pytest.raises(
        ConfigError,
        match=r"^td3 is for .* but these are mixed\. Suitable algorithms: a2c, .*sac; with recorded data: bc",
    ):
        learner(TD3Config(), mixed)


def test_standard_deviations_stay_within_their_limits():
    actor = learner(BCConfig(policy_kind="stochastic")).objective.actor
    with torch.no_grad():
        actor.body.theta *= 1e4
    found = actor({"state": torch.randn(50, 3)})
    assert found.mean.abs().max() <= 1
    assert (found.log_std.min(), found.log_std.max()) == IQL_LOG_STD


# ---------------------------------------------------------------- BCQ


def test_the_best_of_several_is_taken():
    """Every other action that could have been taken is worth less to the first critic."""
    made, obs = learner(BCQConfig(num_act_samples=7, phi=0.5), **{"vae.units": (16,)}).objective, steps(3).obs
    latent = torch.randn(3, 7, 4).clamp(-0.5, 0.5)
    best = made.best_action(obs, latent)
    for i in range(3):
        one = {"state": obs["state"][i]}
        tried = [made.perturb(one, made.vae.decode(one, z[None])[0]) for z in latent[i]]
        values = [made.critic(one, action)[0] for action in tried]
        torch.testing.assert_close(best[i], tried[max(range(7), key=lambda k: values[k])])


def test_actions_are_moved_no_further_than_phi():
    made = learner(BCQConfig(phi=0.05)).objective
    with torch.no_grad():
        made.perturb.body.theta *= 100
    action = torch.rand(50, ACTS) * 2 - 1
    moved = made.perturb({"state": torch.randn(50, 3)}, action)
    assert 0.04 < (moved - action).abs().max() <= 0.05 + 1e-6
    assert moved.abs().max() <= 1


def test_an_evaluation_draws_anew_at_each_step_and_the_same_each_time():
    policy = learner(BCQConfig()).policy
    state, actions = policy.initial(3), []
    for _ in range(2):
        action, state = policy.act(steps(3), state, "eval")
        actions.append(action)
    assert not torch.equal(*actions)
    torch.manual_seed(99)
    assert torch.equal(policy.act(steps(3), policy.initial(3), "eval")[0], actions[0])


def test_a_divergence_of_infinitely_wide_codes_stays_a_number():
    made = learner(BCQConfig()).objective
    with torch.no_grad():
        made.vae.encoder.theta *= 1e4
    assert made.vae_loss(rows()).terms["vae"].isfinite()


def test_discrete_bcq_acts_among_what_is_likely():
    agent = learner(DiscreteBCQConfig(threshold=0.9), choice(4), exploration="epsilon_greedy(0.5)")
    step = steps(200)
    values, logits = agent.objective.network(step.obs)
    likely = logits.softmax(-1) / logits.softmax(-1).amax(-1, keepdim=True) >= 0.9
    best = torch.where(likely, values, -torch.inf).argmax(-1)
    assert not torch.equal(best, values.argmax(-1))
    action, state = agent.policy.act(step, agent.policy.initial(200), "eval")
    assert torch.equal(action.argmax(-1), best)
    explored, _ = agent.policy.act(step, state, "explore")
    assert 0.4 < (explored.argmax(-1) == best).float().mean() < 0.85


# ---------------------------------------------------------------- IQL


def test_the_actors_learning_rate_may_fall_to_nothing():
    made, seen = learner(IQLConfig(actor_lr_cosine_updates=2)), []
    for _ in range(4):
        made.update(rows())
        seen.append([torch.cat([p.detach().flatten() for p in x.parameters()])
                     for x in (made.objective.actor, made.objective.critic)])  # fmt: skip
    (first, _), (second, critic), _, (last, later) = seen
    assert not torch.equal(first, second)
    assert torch.equal(second, last)
    assert not torch.equal(critic, later)


def test_the_value_comes_first_and_the_critics_learn_from_the_new_one():
    """The order of the authors' code."""
    made, data = learner(IQLConfig(value_lr=0.5)), rows()
    before = made.objective.state_values(data)
    update = made.update(data)
    after = made.objective.state_values(data)
    assert not torch.allclose(before, after)
    expected = (data.reward[:, 1] + 0.99 * ~data.is_terminal[:, 1] * after[:, 1]).mean()
    torch.testing.assert_close(update.metrics["train/target"], expected)


# ---------------------------------------------------------------- CQL and its floor


def test_a_multiplier_at_its_end_comes_down_again():
    agent = learner(CQLConfig(num_samples=2, conservative_weight=Lagrange(threshold=1e9, initial=1e6), graph=False))
    agent.objective.log_multiplier.data.fill_(50.0)
    assert agent.objective.critic_loss(rows()).metrics["train/lagrange_multiplier"].item() == pytest.approx(1e6)
    agent.objective.log_multiplier.data.fill_(14.0)
    agent.update(rows())
    at_its_end = agent.objective.log_multiplier.item()
    assert math.log(1e6) - 1e-5 < at_its_end < math.log(1e6)  # at the bound itself, clamp may have no gradient
    agent.update(rows(1))
    assert agent.objective.log_multiplier.item() < at_its_end


def test_a_floor_needs_its_column_and_rewards_that_are_not_cut():
    agent = learner(CQLConfig(value_floor="monte_carlo"))
    assert agent.extra_spec.keys() == {RETURN_TO_GO_COLUMN}
    assert (
        agent.policy.extras(agent.policy.initial(3))[RETURN_TO_GO_COLUMN].tolist() == [-math.inf] * 3
    )  # nobody knows it yet
    with pytest.raises(ConfigError, match=r"reward_scale = return_std\(clip=10\.0, .*value_floor = monte_carlo"):
        CQLConfig(value_floor="monte_carlo").merge({"reward_scale": "return_std"})
    for scale in (
        "factor(0.1)",
        "return_std(None, std=5)",
    ):  # what was earned counts in the units that are learned from
        agent, data = learner(CQLConfig(value_floor="monte_carlo"), reward_scale=scale), rows()
        data.extras[RETURN_TO_GO_COLUMN] = torch.tensor([[3.0, -math.inf]]).expand(4, 2)
        factor = float(agent.preprocess.rewards(torch.ones(())))
        torch.testing.assert_close(
            agent.prepare_batch(data).extras[RETURN_TO_GO_COLUMN], data.extras[RETURN_TO_GO_COLUMN] * factor
        )


def test_returns_to_go():
    """One episode ends by itself, one by the clock, one by a failure, and the stream stops in one."""
    reward = np.array([0, 1, 2, 0, 5, 0, 7, 0, 9], np.float32)
    first = np.array([1, 0, 0, 1, 0, 1, 0, 1, 0], bool)
    last = np.array([0, 0, 1, 0, 1, 0, 0, 0, 0], bool)
    terminal = np.array([0, 0, 1, 0, 0, 0, 0, 0, 0], bool)
    found = returns_to_go(reward=reward, first=first, last=last, terminal=terminal, discount=0.5)
    assert found.dtype == np.float32
    assert found.tolist() == [1 + 0.5 * 2, 2, 0] + [-math.inf] * 6
    # What a failure cut off does not earn what came after it: an episode without a last row, then one that ends.
    reward, first, terminal = np.array([0, 3, 0, 5], np.float32), first[[0, 1, 0, 1]], last[[0, 0, 0, 2]]
    found = returns_to_go(reward=reward, first=first, last=terminal, terminal=terminal, discount=0.5)
    assert found.tolist() == [-math.inf, -math.inf, 5, 0]


COLUMNS = {k: ColumnSpec((), "bool") for k in ("is_first", "is_last", "is_terminal")}
COLUMNS |= {k: ColumnSpec((), "float32") for k in ("reward", "extras/return", "extras/timestep")}


@pytest.mark.parametrize("limits", [False, True])
def test_returns_in_hindsight_are_those_of_all_rows(limits):
    """Row by row, in a ring that forgets, and after it was filled again; with limits, their episodes are whole."""
    g = torch.Generator().manual_seed(0)
    storage = HostStorage(COLUMNS, 2, 12)
    annotator, seen = (
        ReturnToGoAnnotator(0.9, ends_at_limits=limits, has_timesteps=True),
        {name: [] for name in ("reward", "first", "last", "terminal")},
    )
    last = torch.ones(2, dtype=torch.bool)
    for t in range(60):
        ends = torch.rand(2, generator=g) < (0.0 if 15 < t < 32 else 0.25)  # one is longer than the ring
        first, last = last, ends
        terminal, reward = last & (torch.rand(2, generator=g) < 0.7), torch.randn(2, generator=g)
        for name, value in zip(seen, (reward, first, last, terminal), strict=True):
            seen[name].append(value)
        storage.add({"reward": reward, "is_first": first, "is_last": last, "is_terminal": terminal,
                     "extras/return": torch.full((2,), -math.inf), "extras/timestep": torch.zeros(2)})  # fmt: skip
        annotator.on_add(storage, Step(obs={}, reward=reward, is_first=first, is_last=last, is_terminal=terminal))
        if t == 40:
            annotator = ReturnToGoAnnotator(0.9, ends_at_limits=limits, has_timesteps=True)
            annotator.on_extend(storage)
        columns = storage.read(storage.oldest, storage.count)
        held, times = columns["extras/return"], columns["extras/timestep"]
        for stream in range(2):
            whole = {name: torch.stack(values)[:, stream].numpy() for name, values in seen.items()}
            whole["terminal"] = whole["last"] if limits else whole["terminal"]
            wanted = returns_to_go(**whole, discount=0.9)[-held.shape[1] :]
            np.testing.assert_array_equal(held[stream], wanted)
            row = np.arange(t + 1)
            time = (row - np.maximum.accumulate(np.where(whole["first"], row, 0)))[-len(wanted) :]
            is_whole = (time <= np.arange(len(time))) & np.isfinite(
                wanted
            )  # the episode begins in the ring and has ended
            np.testing.assert_array_equal(times[stream][is_whole], time[is_whole])
