"""What all model-free agents promise: determinism, resume, gradients, spaces, graphs without a GPU."""

import copy
import inspect
import math
from collections.abc import Mapping
from dataclasses import dataclass

import pytest
import torch
from tape import Tapes, device_only

from reverie.algos.base import Algorithm
from reverie.algos.capture import WARM_UPS, Captured
from reverie.algos.ddpg import DDPGConfig
from reverie.algos.discrete_sac import DiscreteSACConfig
from reverie.algos.dqn import DQNConfig
from reverie.algos.gail import GAILConfig
from reverie.algos.qr_dqn import QRDQNConfig
from reverie.algos.sac import SACConfig
from reverie.algos.td3 import TD3Config
from reverie.core.discover import algorithm_config
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.stats import Stats
from reverie.core.types import Batch, Step
from reverie.objectives.estimators import NStep, TDLambda, ValueEstimator
from reverie.objectives.returns import td0, td_lambda

CONFIGS = {
    "ddpg": DDPGConfig, "td3": TD3Config, "sac": SACConfig, "discrete_sac": DiscreteSACConfig, "dqn": DQNConfig,
    "qr_dqn": QRDQNConfig, "gail": GAILConfig, "gail_discrete": GAILConfig,
}  # fmt: skip
VALUES = {"dqn": {"target_every": 1}, "qr_dqn": {"target_every": 1, "quantiles": 5}}
"""Those without an actor, and small settings of their own."""
CHOOSING = ("discrete_sac", "gail_discrete", *VALUES)
IMITATING = {"discriminator.units": (8, 8), "discriminator.encoder.depth": 2, "normalise": None}
TINY = {"batch_size": 4, "networks.units": (8, 8), "networks.encoder.depth": 2}
SPECS = {
    "vector": {"state": ObsPart(kind="vector", shape=(3,), dtype="float32")},
    "dict": {
        "state": ObsPart(kind="vector", shape=(2, 2), dtype="float32"),
        "more": ObsPart(kind="vector", shape=(), dtype="float32"),
        "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 4)),
    },
    "image": {
        "image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8"),
        "state": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    },
}
MOVES = ActionSpec(parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="continuous", size=2)})
CHOICE = ActionSpec(parts={"jump": ActionPart(kind="categorical", classes=(3,))})

every = pytest.mark.parametrize("name", CONFIGS)


@pytest.fixture(autouse=True)
def _plain_pytorch(request, monkeypatch):
    """As on a GPU, which has none of the compiled functions; but where a test says so."""
    if "compiled" not in request.node.name:
        monkeypatch.setattr("reverie.core.compiled.kernels", lambda: None)


def build(name, spec="vector", device="cpu", **changes) -> Algorithm:
    actions = CHOICE if name in CHOOSING else MOVES
    own = IMITATING if name.startswith("gail") else VALUES.get(name, {})
    config = CONFIGS[name]().merge(TINY | own | changes)
    return config.build(SPECS[spec], actions, device=device, seed=1)


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
        obs=observed(spec, (b, t), g), action=torch.rand(b, t, 3, generator=g) * 2 - 1,
        reward=torch.randn(b, t, generator=g), is_first=torch.zeros(b, t, dtype=torch.bool), is_last=last,
        is_terminal=last & (torch.rand(b, t, generator=g) < 0.5), weight=torch.ones(b), index=torch.arange(b),
    )  # fmt: skip


def shown(spec="vector", envs=2, seed=0, first=True) -> Step:
    no = torch.zeros(envs, dtype=torch.bool)
    obs = observed(spec, (envs,), torch.Generator().manual_seed(seed))
    return Step(obs=obs, reward=torch.zeros(envs), is_first=no | first, is_last=no, is_terminal=no)


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
    assert CONFIGS[name]().batch_size == (32 if name in VALUES else 256)


@every
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_update_and_policy_return_what_they_promise(name, spec, precision):
    estimator = NStep(2) if name == "qr_dqn" else TDLambda(0.9)
    agent = build(name, spec, precision=precision, batch_length=4, value_estimator=estimator)
    for i in range(2):
        update = agent.update(batch(agent, spec, i))
    assert all(v.ndim == 0 and torch.isfinite(v) and not v.requires_grad for v in update.metrics.values())
    assert {"loss/critic", *([] if name in VALUES else ["loss/actor"])} <= update.metrics.keys()
    assert update.priority.shape == (4,)
    for mode in ("explore", "eval"):
        action, state = agent.policy.act(shown(spec), agent.policy.initial(2), mode)
        assert (action.shape, action.dtype, action.device.type) == ((2, 3), torch.float32, "cpu")
        assert action.abs().max() <= 1
        agent.policy.override(state, action)
        assert agent.policy.extras(state) == {}


@every
def test_what_an_update_says_has_types_and_words(name):
    """And no update says what is not described."""
    agent = build(name)
    updates = [agent.update(batch(agent, seed=i)) for i in range(2)]
    for update in updates:
        assert isinstance(agent.stats.of(update.metrics), Stats)
    source = inspect.getsource(inspect.getmodule(agent.stats))
    for field in agent.stats.names().values():
        assert source.partition(f"    {field}: Tensor")[2].partition('"""')[2], field
    assert agent.stats.names().keys() == {key for update in updates for key in update.metrics}


@every
@pytest.mark.parametrize("spec", SPECS)
def test_every_parameter_gets_a_gradient_or_is_a_target(name, spec):
    agent = build(name, spec)
    before = copy.deepcopy(learned(agent))
    for i in range(2):
        agent.update(batch(agent, spec, i))
    without = {n for n, p in agent.named_parameters() if not p.requires_grad}  # Adam refuses others without one
    assert without == {n for n, _ in agent.named_parameters() if ".target_" in n}
    same = {k for k, v in learned(agent).items() if torch.equal(v, before[k])}
    assert not {k for k in same if "norms" not in k}


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
    many = agent.policy.initial(30)
    assert not torch.equal(*[agent.policy.act(shown(envs=30), many, "explore")[0] for _ in range(2)])


@every
def test_moments_of_other_networks_are_refused(name):
    with pytest.raises((RunError, RuntimeError)):
        build(name).load_state_dict(build(name, **{"networks.units": (16,)}).state_dict())


PARTS = {
    "turn": ActionPart(kind="continuous", size=2), "jump": ActionPart(kind="categorical", classes=(4,)),
    "keys": ActionPart(kind="categorical", classes=(2, 2)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts", "said", "fit"),
    [
        (
            "ddpg",
            ["jump"],
            "needs continuous actions, but action 'jump' is discrete",
            ["discrete_sac", "dqn", "dreamer_v3", "qr_dqn"],
        ),
        ("td3", ["jump", "turn"], "needs continuous actions, but action 'jump' is discrete", ["dreamer_v3"]),
        ("sac", ["keys"], "needs continuous actions, but action 'keys' is discrete", ["dreamer_v3"]),
        ("discrete_sac", ["turn"], "but action 'turn' is continuous", ["ddpg", "dreamer_v3", "sac", "td3"]),
        ("discrete_sac", ["turn", "jump"], "but action 'turn' is continuous", ["dreamer_v3"]),
        ("discrete_sac", ["keys"], "but the action space has several", ["dreamer_v3"]),
        ("dqn", ["turn"], "but action 'turn' is continuous", ["ddpg", "dreamer_v3", "sac", "td3"]),
        ("dqn", ["keys"], "but the action space has several", ["dreamer_v3"]),
        ("qr_dqn", ["jump", "turn"], "but action 'turn' is continuous", ["dreamer_v3"]),
        ("qr_dqn", ["jump", "keys"], "but the action space has several", ["dreamer_v3"]),
    ],
)
def test_other_actions_name_the_algorithms_that_fit(name, parts, said, fit):
    spec = ActionSpec(parts={key: PARTS[key] for key in parts})
    with pytest.raises(ConfigError, match=rf"^{name} .*{said}") as error:
        CONFIGS[name]().build(SPECS["vector"], spec)
    named = str(error.value).partition("Suitable algorithms: ")[2].rstrip(".").partition("; with")[0].split(", ")
    assert named == fit


NAN, INF = math.nan, math.inf
LEARNING_RATES = {
    "ddpg": "actor_lr", "td3": "critic_lr", "sac": "temperature_lr", "dqn": "lr", "bc": "lr", "iql": "value_lr",
    "gail": "discriminator_lr", "cql": "actor_lr",
}  # fmt: skip
SENSELESS = [
    *((name, {setting: value}, f"lr = {value}") for name, setting in LEARNING_RATES.items() for value in (NAN, INF)),
    *((name, {"adam_eps": value}, f"adam_eps = {value}")
      for name in ("dqn", "qr_dqn", "discrete_bcq", "discrete_cql") for value in (-1.0, 0.0, NAN, INF)),
    *((name, {setting: NAN}, f"{setting} = nan")
      for name in ("td3", "td3_bc") for setting in ("target_noise", "noise_clip")),
    *((name, {"target_entropy": value}, f"target_entropy = {value}")
      for name in ("sac", "discrete_sac", "cql", "gail") for value in (NAN, INF, -INF)),
    *((name, {setting: INF}, f"{setting} = inf") for name, setting in (
        ("sac", "temperature"), ("discrete_sac", "temperature"), ("bcq", "phi"), ("cql", "cql_temperature"),
        ("gail", "gradient_penalty"), ("td3_bc", "alpha"))),
    *(("cql", {"conservatism": f"{kind}(1e999)"}, "= inf") for kind in ("fixed", "lagrange")),
]  # fmt: skip


@pytest.mark.parametrize(("name", "given", "said"), SENSELESS, ids=str)
def test_numbers_that_make_no_sense_are_refused_by_name(name, given, said):
    spec = CHOICE if name in CHOOSING or name.startswith("discrete") else MOVES
    with pytest.raises(ConfigError, match=said):
        algorithm_config(name)().merge(given).build(SPECS["vector"], spec)


# ---------------------------------------------------------------- CUDA graphs, without a GPU


def steps(agent):
    """Each kind of update that gets a graph."""
    return [agent.train_step, *([agent.critic_step] if hasattr(agent, "critic_step") else [])]


@every
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("changes", [{}, {"tau": 1.0, "target_every": 2}], ids=["soft", "hard"])
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name, spec, changes):
    if name == "td3":
        changes = {}
    agent = build(name, spec, device="meta", **changes)
    data = batch(agent, spec).to("meta")
    for step in steps(agent):
        with device_only():
            update = step(data)
        assert all(x.device.type == "meta" and not x.requires_grad for x in update.metrics.values())


@every
@pytest.mark.parametrize("functions", ["compiled", "plain"])
@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("every_nth", [1, 2])
def test_replays_learn_what_updates_learn(name, functions, spec, every_nth):
    changes = {} if name == "td3" else {"target_every": every_nth}
    eager, replayed = build(name, spec, **changes), build(name, spec, **changes)
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
            torch.testing.assert_close(got.priority, expected.priority, rtol=0, atol=0)
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
        torch.testing.assert_close(a.metrics["loss/critic"], b.metrics["loss/critic"], rtol=1e-2, atol=1e-2)


@dataclass(frozen=True)
class Hopeful(ValueEstimator):
    """One of a user's own: the better of two."""

    def look_ahead(self, **rows):
        return torch.maximum(td0(**rows), td_lambda(**rows, lam=0.5))


@pytest.mark.parametrize("name", ["ddpg", "td3", "sac", "dqn"])
@pytest.mark.parametrize("functions", ["compiled", "plain"])
def test_an_estimator_of_ones_own_is_recorded_and_replayed_as_well(name, functions):
    changes, seen = {"value_estimator": Hopeful(), "batch_length": 4}, {}
    for graph in (True, False):
        agent = build(name, graph=graph, **changes)
        torch.manual_seed(2)
        seen[graph] = [agent.update(batch(agent, seed=seed)).metrics for seed in range(2 * WARM_UPS + 4)]
    for a, b in zip(seen[True], seen[False], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0)
    other = build(name, batch_length=4)
    torch.manual_seed(2)
    metrics = [other.update(batch(other, seed=seed)).metrics for seed in range(2)]
    assert float(metrics[0]["train/target"]) < float(seen[True][0]["train/target"])
