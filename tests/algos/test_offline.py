"""What learners of recorded rows all promise beside test_contracts.py: stats, ends, spaces, graphs."""

import copy
import inspect
from dataclasses import replace

import pytest
import torch
from contracts import CHOICE, CHOICES, CHOOSING, MOVES, OFFLINE, SPECS, TINY, batch, build, learned, shown, steps
from tape import Tapes, device_only

from reverie.algos.bc import BCConfig
from reverie.algos.cql import RETURN, CQLConfig, ReturnsInHindsight
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.core.discover import algorithm_config, algorithms
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.core.stats import Stats
from reverie.kernels.capture import WARM_UPS, Captured
from reverie.nn.normalise import Running
from reverie.objectives.estimators import NStep, TDLambda, VTrace

CLONES = [name for name in OFFLINE if name.startswith("bc") and not name.startswith("bcq")]

pytestmark = pytest.mark.usefixtures("plain_pytorch")
every = pytest.mark.parametrize("name", OFFLINE)


@every
def test_windows_are_of_one_episode(name):
    window = build(name).window
    assert (window.rows, window.context, window.crosses_episodes) == (2, 0, False)


@every
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_update_and_policy_return_what_they_promise(name, spec, precision):
    estimator = NStep(2) if name == "discrete_cql" else TDLambda(0.9)
    rows = {"batch_length": 4} | ({} if name in CLONES else {"value_estimator": estimator})
    agent = build(name, spec, precision=precision, **rows)
    for i in range(2):
        update = agent.update(batch(agent, spec, i))
    assert all(v.ndim == 0 and torch.isfinite(v) and not v.requires_grad for v in update.metrics.values())
    assert (update.priority is None) == (name in CLONES)
    if update.priority is not None:
        assert update.priority.shape == (4,)
    state = agent.policy.initial(2)
    for mode in ("explore", "eval"):
        action, state = agent.policy.act(shown(spec), state, mode)
        assert (action.shape, action.dtype, action.device.type) == ((2, 3), torch.float32, "cpu")
        assert action.abs().max() <= 1
        state = agent.policy.override(state, action)
        assert agent.policy.extras(state).keys() == agent.extra_spec.keys()


@every
def test_what_an_update_says_has_types_and_words(name):
    """And no update says what is not described."""
    agent = build(name)
    updates = [agent.update(batch(agent, seed=i)) for i in range(2)]
    for update in updates:
        said = agent.stats.of(update.metrics)
        assert isinstance(said, Stats)
        assert getattr(said, "loss_actor", None) is update.metrics.get("loss/actor")
    source = inspect.getsource(inspect.getmodule(agent.stats))
    for field in agent.stats.names().values():
        assert f"    {field}: Tensor" in source
        assert source.partition(f"    {field}: Tensor")[2].partition('"""')[2], field
    told = {key for update in updates for key in update.metrics}
    silent = {"loss/multiplier", "train/multiplier", "train/floored", "train/gap", "loss/conservative"}
    assert agent.stats.names().keys() - told <= silent


def test_stats_of_another_learner_are_refused():
    metrics = build("iql").update(batch(build("iql"))).metrics
    with pytest.raises(DataError, match=r"BCQStats: .*'loss/vae'.* are missing; .*'loss/value'"):
        build("bcq").stats.of(metrics)
    with pytest.raises(DataError, match=r"\['loss/actor'\] are missing"):
        build("bc").stats.of({})


# ---------------------------------------------------------------- rows


@every
def test_episodes_that_were_cut_off_are_worth_what_they_would_have_been(name):
    """A window that a time limit ended, and one in the middle of an episode: the same update to the last bit."""
    results = []
    for last in (True, False):
        agent = build(name)
        torch.manual_seed(5)
        for i in range(3):
            data, no = batch(agent, seed=i), torch.zeros(4, 2, dtype=torch.bool)
            ends = no.clone()
            ends[:, -1] = last
            update = agent.update(replace(data, is_last=ends, is_terminal=no))
        results.append((update.metrics, update.priority, learned(agent)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@every
def test_the_future_is_worth_nothing_where_an_episode_ended_by_itself(name):
    """What is seen in a terminal row changes no target. CQL draws actions from the policy there all the same."""
    targets = []
    for shift in (0.0, 3.0):
        agent = build(name, normalise=None)
        data, no = batch(agent), torch.zeros(4, 2, dtype=torch.bool)
        ends = no.clone()
        ends[:, -1] = True
        obs = {"state": data.obs["state"] + torch.tensor([0.0, shift])[:, None]}
        torch.manual_seed(5)
        targets.append(agent.update(replace(data, obs=obs, is_last=ends, is_terminal=ends)).metrics.get("train/target"))
    if targets[0] is not None:
        torch.testing.assert_close(targets[0], data.reward[:, 1].mean())
        assert torch.equal(*targets)


@every
def test_actions_of_last_rows_are_none(name):
    """Rows whose episode ends within a window teach nothing, whatever action stands there."""
    results = []
    for nonsense in (0.0, 0.7):
        agent = build(name, batch_length=4)
        data = batch(agent)
        ends = torch.zeros(4, 4, dtype=torch.bool)
        ends[:2, 1] = True
        action = data.action.clone()
        action[:2, 1] = nonsense
        torch.manual_seed(5)
        update = agent.update(replace(data, is_last=ends, is_terminal=ends, action=action))
        results.append((update.metrics, learned(agent)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=1e-7)


# ---------------------------------------------------------------- observations and actions


@every
def test_observations_are_normalised_unless_there_is_nothing_to_normalise(name):
    assert OFFLINE[name].normalise == Running()
    assert build(name).preprocess.normaliser is not None
    pixels = {"image": SPECS["image"]["image"]}
    assert OFFLINE[name].merge(TINY).build(pixels, CHOOSING.get(name, MOVES)).preprocess.normaliser is None
    agent = build(name)
    agent.preprocess.normaliser.fit({"state": torch.randn(500, 3) * 0.1 + 0.5})
    state = copy.deepcopy(agent.state_dict())
    other = build(name)
    other.load_state_dict(state)
    initial, many = other.policy.initial(200), shown(envs=200)
    acted = [one.policy.act(many, initial, "eval")[0] for one in (other, agent, build(name))]
    assert torch.equal(acted[0], acted[1])
    assert not torch.equal(acted[0], acted[2])


@every
def test_actions_of_the_other_kind_are_refused_by_the_name_of_the_algorithm(name):
    own = type(OFFLINE[name]).__module__.rpartition(".")[2]
    if OFFLINE[name] == BCConfig():
        return  # for either kind
    other, said = CHOICE, rf"^{own} needs continuous actions, but the actions are "
    if name in CHOOSING:
        other, said = MOVES, rf"^{own} needs a single discrete action, but the actions are continuous"
    if own == "bc":
        said = r"^algo\.clone = .* is for c.* actions, but these actions are c"
    with pytest.raises(ConfigError, match=said):
        OFFLINE[name].build(SPECS["vector"], other)


@pytest.mark.parametrize(
    ("config", "parts", "names"),
    [
        (DiscreteSACConfig(), {"turn": ActionPart(kind="continuous", size=2)}, "bc, bcq, cql, crr, gail, iql, td3_bc"),
        (DiscreteCQLConfig(), {"turn": ActionPart(kind="continuous", size=2)}, "bc, bcq, cql, crr, gail, iql, td3_bc"),
        (CQLConfig(), CHOICE.parts, "bc, discrete_bcq, discrete_cql, discrete_crr, gail"),
        (DiscreteBCQConfig(), CHOICES.parts, "bc"),
        (DiscreteCRRConfig(), CHOICES.parts, "bc"),
    ],
)
def test_algorithms_for_recorded_data_are_named_apart(config, parts, names):
    with pytest.raises(ConfigError, match=rf"; with recorded data: {names}\.$"):
        config.build(SPECS["vector"], ActionSpec(parts=parts))


def test_an_algorithm_of_ones_own_is_named_where_it_fits(monkeypatch):
    """By what its configuration says of actions; one that cannot be imported is passed over."""

    class Mine(CQLConfig):
        """An algorithm of a package."""

    known = {"mine": "my.package:Mine", "broken": "no.such:Module", **algorithms()}
    monkeypatch.setattr("reverie.nn.actor_critic.algorithms", lambda: known)
    monkeypatch.setattr(
        "reverie.nn.actor_critic.algorithm_config", lambda name: {"mine": Mine}.get(name) or algorithm_config(name)
    )
    with pytest.raises(ConfigError, match=r"; with recorded data: bc, bcq, cql, crr, gail, iql, mine, td3_bc\.$"):
        DiscreteSACConfig().build(SPECS["vector"], MOVES)


@pytest.mark.parametrize("name", ["cql", "gail", "discrete_sac", "td3_bc"])
def test_estimators_are_refused_by_the_name_of_the_algorithm(name):
    """Also where the setting is inherited."""
    with pytest.raises(ConfigError, match=f"{name} expects one of TD0"):
        algorithm_config(name)(value_estimator=VTrace())


def test_no_algorithm_for_recorded_data_is_for_actions_of_both_kinds():
    with pytest.raises(ConfigError, match=r"Suitable algorithms: dreamer_v1, .*plan2explore_v3\.$"):
        CQLConfig().build(SPECS["vector"], ActionSpec(parts={**MOVES.parts, **CHOICE.parts}))


# ---------------------------------------------------------------- CUDA graphs, without a GPU


@every
@pytest.mark.parametrize("spec", SPECS)
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name, spec):
    agent = build(name, spec, device="meta")
    data = batch(agent, spec).to("meta")
    for step in steps(agent):
        with device_only():
            update = step(data)
        assert all(x.device.type == "meta" and not x.requires_grad for x in update.metrics.values())


@every
@pytest.mark.parametrize("functions", ["compiled", "plain"])
@pytest.mark.parametrize("spec", SPECS)
def test_replays_learn_what_updates_learn(name, functions, spec):
    eager, replayed = build(name, spec), build(name, spec)
    for index, step in enumerate(steps(replayed)):
        tapes = Tapes()
        update = Captured(step, torch.device("cpu"), tapes, replayed)
        seen = []
        for agent, call in ((eager, steps(eager)[index]), (replayed, update)):
            torch.manual_seed(5)
            seen.append([call(batch(agent, spec, seed)) for seed in range(WARM_UPS + 3)])
        assert tapes.calls == ["warm up"] * WARM_UPS + ["capture"] + ["replay"] * 2
        for expected, got in zip(*seen, strict=True):
            torch.testing.assert_close(got.metrics, expected.metrics, rtol=0, atol=0)
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


@every
@pytest.mark.parametrize("device", ["cpu", *(["cuda"] if torch.cuda.is_available() else [])])
def test_the_setting_changes_nothing_that_is_learned(name, device):
    """On a machine with a GPU, these are real graphs; sums there are not the same to the last bit."""
    seen = {}
    for graph in (True, False):
        agent = build(name, device=device, graph=graph)
        torch.manual_seed(2)
        seen[graph] = [agent.update(batch(agent, seed=seed)) for seed in range(2 * WARM_UPS + 4)]
    for a, b in zip(seen[True], seen[False], strict=True):
        assert a.metrics.keys() == b.metrics.keys()
        for key in a.metrics:
            torch.testing.assert_close(a.metrics[key], b.metrics[key], rtol=1e-2, atol=1e-2)


def test_a_floor_needs_returns_in_hindsight():
    assert build("cql").hindsight is None
    found = build("cql_floor", discount=0.9).hindsight
    assert isinstance(found, ReturnsInHindsight)
    assert found.discount == 0.9


def test_floors_pass_through_a_replay():
    """The column is there to be filled, beside what is seen and done."""
    assert build("cql_floor").extra_spec[RETURN].shape == ()
    assert not build("cql").extra_spec


# ---------------------------------------------------------------------- bounds


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "tape"])
@pytest.mark.parametrize("name", ["crr", "discrete_bcq", "discrete_crr"])
def test_targets_stay_within_what_rewards_add_up_to(name, graph):
    """Of values that have exploded as well; without bounds they do not."""
    agents = [build(name, graph=graph, discount=0.5, bound_values=bound) for bound in (True, False)]
    found = []
    for agent in agents:
        data = batch(agent)
        agent.preprocess.fit(data)
        with torch.no_grad():
            for parameter in agent.objective.parameters():
                parameter.mul_(30)
        found.append([float(agent.update(data).metrics["train/target"]) for _ in range(WARM_UPS + 3)])
    inside, outside = found
    earned = data.reward[~data.is_first]
    least, most = min(float(earned.min()), 0), max(float(earned.max()), 0)
    assert all(least + 0.5 * 2 * least <= y <= most + 0.5 * 2 * most for y in inside)
    assert max(map(abs, outside)) > 10 * max(abs(least), most)


@pytest.mark.parametrize("name", ["crr", "discrete_bcq", "discrete_crr"])
def test_bounds_follow_how_rewards_are_scaled(name):
    agent = build(name, reward_scale="factor(0.1)", discount=0.5)
    data = batch(agent)
    agent.preprocess.fit(data)
    most = float(data.reward[~data.is_first].max()) * 0.1 * 2
    assert float(agent.preprocess.range(torch.tensor(1e9))) == pytest.approx(most, rel=1e-5)
    assert build(name, reward_scale="return_std").preprocess.range is None
    assert agent.watcher is agent.preprocess
