"""What learners of recorded rows all promise: stats, determinism, resume, gradients, ends, spaces, graphs."""

import copy
import inspect
from collections.abc import Mapping
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from tape import Tapes, device_only

from reverie.algos.base import Algorithm
from reverie.algos.bc import BCConfig, Categorical, Stochastic
from reverie.algos.bcq import BCQConfig
from reverie.algos.capture import WARM_UPS, Captured
from reverie.algos.cql import Best, CQLConfig, Lagrange, MonteCarlo
from reverie.algos.crr import CRRConfig, Max
from reverie.algos.discrete_bcq import DiscreteBCQConfig
from reverie.algos.discrete_cql import DiscreteCQLConfig
from reverie.algos.discrete_crr import DiscreteCRRConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.iql import IQLConfig
from reverie.algos.td3_bc import TD3BCConfig
from reverie.core.discover import algorithm_config, algorithms
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.stats import Stats
from reverie.core.types import Batch, Step
from reverie.nn.normalise import Running
from reverie.nn.returns_to_go import RETURN
from reverie.objectives.estimators import NStep, TDLambda, VTrace
from reverie.objectives.filters import Binary

CONFIGS = {
    "bc": BCConfig(),
    "bc_stochastic": BCConfig(clone=Stochastic()),
    "td3_bc": TD3BCConfig(),
    "bcq": BCQConfig(samples=3).merge({"vae.units": (8, 8), "vae.encoder.depth": 2}),
    "cql": CQLConfig(samples=2),
    "cql_lagrange": CQLConfig(samples=2, conservatism=Lagrange(), backup=Best(2)),
    "cql_floor": CQLConfig(samples=2, floor=MonteCarlo(), temperature_lr=0.0),
    "iql": IQLConfig(),
    "crr": CRRConfig(target_every=2),
    "crr_binary": CRRConfig(filter=Binary(), baseline=Max(), critics=2),
    "bc_choice": BCConfig(),
    "bc_choices": BCConfig(clone=Categorical()),
    "discrete_bcq": DiscreteBCQConfig(threshold=0.8),
    "discrete_bcq_hard": DiscreteBCQConfig(tau=1.0, target_every=2),
    "discrete_cql": DiscreteCQLConfig(quantiles=5, target_every=2, double=True),
    "discrete_crr": DiscreteCRRConfig(target_every=2, min_q_weight=1.0),
    "discrete_crr_binary": DiscreteCRRConfig(filter=Binary(), critics=2, tau=0.1, target_every=1),
}
TINY = {"batch_size": 4, "networks.units": (8, 8), "networks.encoder.depth": 2}
SPECS = {
    "vector": {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
    "dict": {
        "state": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
        "more": ObsPart(kind="vector", shape=(), dtype="float32"),
        "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 4)),
    },
    "image": {"image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8")},
}
MOVES = ActionSpec(parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(3,))})
CHOICES = ActionSpec(parts={name: ActionPart(kind="categorical", classes=(n,)) for name, n in (("b", 1), ("a", 2))})
CHOOSING = {name: CHOICE for name in CONFIGS if name.startswith("discrete_")} | {
    "bc_choice": CHOICE, "bc_choices": CHOICES,
}  # fmt: skip
"""Those whose actions are one-hot; all actions are 3 numbers wide."""
CLONES = [name for name in CONFIGS if name.startswith("bc") and not name.startswith("bcq")]

every = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(autouse=True)
def _plain_pytorch(request, monkeypatch):
    """As on a GPU, which has none of the compiled functions; but where a test says so."""
    if "compiled" not in request.node.name:
        monkeypatch.setattr("reverie.core.compiled.kernels", lambda: None)


def build(name, spec="vector", device="cpu", **changes) -> Algorithm:
    agent = CONFIGS[name].merge(TINY | changes).build(SPECS[spec], CHOOSING.get(name, MOVES), device=device, seed=1)
    agent.acts = CHOOSING.get(name, MOVES)
    return agent


def actions(spec, b, t, g):
    """``[b, t, 3]``, one-hot where they are choices."""
    given = torch.rand(b, t, 3, generator=g) * 2 - 1
    parts = [given[..., place] for key, place in spec.slices().items() if spec.parts[key].kind == "categorical"]
    return torch.cat([F.one_hot(x.argmax(-1), x.shape[-1]).float() for x in parts], -1) if parts else given


def observed(spec, shape, g):
    obs = {}
    for key, part in SPECS[spec].items():
        high = {"image": 256, "categorical": 3}.get(part.kind)
        full = (*shape, *part.shape)
        obs[key] = torch.randint(0, high, full, generator=g) if high else torch.randn(full, generator=g)
        obs[key] = obs[key].to(getattr(torch, part.dtype))
    return obs


def batch(agent, spec="vector", seed=0) -> Batch:
    g = torch.Generator().manual_seed(seed)
    b, t = agent.window.batch, agent.window.rows
    last = torch.zeros(b, t, dtype=torch.bool)
    last[:, -1] = torch.rand(b, generator=g) < 0.5
    return Batch(
        obs=observed(spec, (b, t), g), action=actions(agent.acts, b, t, g),
        reward=torch.randn(b, t, generator=g), is_first=torch.zeros(b, t, dtype=torch.bool), is_last=last,
        is_terminal=last & (torch.rand(b, t, generator=g) < 0.5), weight=torch.ones(b), index=torch.arange(b),
        extras={key: torch.randn(b, t, generator=g) for key in agent.extra_spec},
    )  # fmt: skip


def shown(spec="vector", envs=2, seed=0) -> Step:
    no = torch.zeros(envs, dtype=torch.bool)
    obs = observed(spec, (envs,), torch.Generator().manual_seed(seed))
    return Step(obs=obs, reward=torch.zeros(envs), is_first=~no, is_last=no, is_terminal=no)


def learned(agent) -> dict[str, torch.Tensor]:
    """Every tensor of a learner by name, but for those that say how large the others are."""
    out: dict[str, torch.Tensor] = {}
    for name, part in agent.state_dict().items():
        if isinstance(part, Mapping):
            out |= {f"{name}/{k}": v for k, v in part.items() if not k.endswith(".widths")}
    return out


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


@every
@pytest.mark.parametrize("spec", SPECS)
def test_every_parameter_gets_a_gradient_or_is_a_target(name, spec):
    agent = build(name, spec, normalise=None)
    before = copy.deepcopy(learned(agent))
    torch.manual_seed(0)  # by chance a filter leaves nothing to imitate
    for i in range(4):
        agent.update(batch(agent, spec, i))
    same = {k for k, v in learned(agent).items() if torch.equal(v, before[k]) and "preprocess.range" not in k}
    still = {"model/objective.log_temperature"} if name == "cql_floor" else set()
    lazy = name == "crr_binary"  # targets follow at the hundredth update
    assert {k for k in same if "norms" not in k and not (lazy and ".target_" in k)} == still


@every
def test_same_seed_same_updates(name):
    results = []
    for _ in range(2):
        agent = build(name)
        torch.manual_seed(5)
        for i in range(4):
            update = agent.update(batch(agent, seed=i))
        results.append((update.metrics, learned(agent)))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)


@every
def test_resume_continues_bit_for_bit(name):
    whole = build(name)
    torch.manual_seed(5)
    for i in range(3):
        whole.update(batch(whole, seed=i))
    saved, rng = copy.deepcopy(whole.state_dict()), torch.get_rng_state()
    for i in range(3, 6):
        whole.update(batch(whole, seed=i))
    resumed = build(name)
    places = {k: v.data_ptr() for k, v in learned(resumed).items()}
    resumed.load_state_dict(saved)
    torch.set_rng_state(rng)
    for i in range(3, 6):
        resumed.update(batch(resumed, seed=i))
    torch.testing.assert_close(learned(resumed), learned(whole), rtol=0, atol=0)
    assert {k: v.data_ptr() for k, v in learned(resumed).items()} == places


@every
def test_building_does_not_disturb_the_global_generator(name):
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    build(name)
    assert torch.equal(torch.rand(1), expected)


@every
def test_evaluation_draws_nothing(name):
    agent = build(name)
    state = agent.policy.initial(2)
    rng = torch.get_rng_state()
    actions = [agent.policy.act(shown(), state, "eval")[0] for _ in range(2)]
    assert torch.equal(*actions)
    assert torch.equal(rng, torch.get_rng_state())
    if name not in ("bc",):
        many = agent.policy.initial(100)  # a random class now and then
        assert not torch.equal(*[agent.policy.act(shown(envs=100), many, "explore")[0] for _ in range(2)])


@every
def test_moments_of_other_networks_are_refused(name):
    with pytest.raises((RunError, RuntimeError)):
        build(name).load_state_dict(build(name, **{"networks.units": (16,)}).state_dict())


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
    assert CONFIGS[name].normalise == Running()
    assert build(name).preprocess.normaliser is not None
    assert build(name, "image").preprocess.normaliser is None
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
    own = type(CONFIGS[name]).__module__.rpartition(".")[2]
    if CONFIGS[name] == BCConfig():
        return  # for either kind
    other, said = CHOICE, rf"^{own} needs continuous actions, but action 'jump' is discrete"
    if name in CHOOSING:
        other, said = MOVES, rf"^{own} needs a discrete action, but action 'a' is continuous"
    if own == "bc":
        said = r"^algo\.clone = .* is for c.* actions, but these actions are c"
    with pytest.raises(ConfigError, match=said):
        CONFIGS[name].build(SPECS["vector"], other)


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
    with pytest.raises(ConfigError, match=r"Suitable algorithms: dreamer_v3\.$"):
        CQLConfig().build(SPECS["vector"], ActionSpec(parts={**MOVES.parts, **CHOICE.parts}))


# ---------------------------------------------------------------- CUDA graphs, without a GPU


def steps(agent):
    """Each kind of update that gets a graph."""
    return [agent.train_step, *([agent.critic_step] if hasattr(agent, "critic_step") else [])]


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
