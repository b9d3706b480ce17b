"""What all model-free agents promise beside test_contracts.py: stats, windows, spaces, graphs without a GPU."""

import inspect
import math
from dataclasses import dataclass

import pytest
import torch
from contracts import CHOOSING, MODEL_FREE, MOVES, SPECS, batch, build, learned, shown, steps
from tape import Tapes, device_only

from reverie.core.discover import algorithm_config
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.core.stats import Stats
from reverie.kernels.capture import WARM_UPS, Captured
from reverie.objectives.estimators import NStep, TDLambda, ValueEstimator
from reverie.objectives.returns import td0, td_lambda

VALUES = ("dqn", "qr_dqn")
"""Those without an actor."""

pytestmark = pytest.mark.usefixtures("plain_pytorch")
every = pytest.mark.parametrize("name", MODEL_FREE)


def test_a_part_that_is_frozen_stays_and_the_rest_learns():
    """Such as a CNN, to fine-tune what comes after it; updates captured before train it no longer."""
    agent = build("dqn", "image")
    for i in range(WARM_UPS + 1):
        agent.update(batch(agent, "image", i))
    network = agent.objective.network
    network.inputs.encoder.requires_grad_(False)
    before = {name: p.clone() for name, p in network.named_parameters()}
    agent.update(batch(agent, "image"))
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("inputs.encoder."), name


@every
def test_windows_are_of_one_episode(name):
    window = build(name).window
    assert (window.rows, window.context, window.crosses_episodes) == (2, 0, False)
    assert MODEL_FREE[name].batch_size == (32 if name in VALUES else 256)


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


DREAMERS = ["dreamer_v1", "dreamer_v2", "dreamer_v3", "plan2explore", "plan2explore_v1", "plan2explore_v3"]
PARTS = {
    "turn": ActionPart(kind="continuous", size=2), "jump": ActionPart(kind="categorical", classes=(4,)),
    "keys": ActionPart(kind="categorical", classes=(2, 2)),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "parts", "said", "fit"),
    [
        ("ddpg", ["jump"], "continuous actions, but .* discrete", ["discrete_sac", "dqn", *DREAMERS, "qr_dqn"]),
        ("td3", ["jump", "turn"], "continuous actions, but .* mixed", DREAMERS),
        ("dqn", ["turn"], "a single discrete action, but .* continuous", ["ddpg", *DREAMERS, "sac", "td3"]),
        ("qr_dqn", ["keys"], "a single discrete action, but .* multi_discrete", DREAMERS),
    ],
)
def test_other_actions_name_the_algorithms_that_fit(name, parts, said, fit):
    spec = ActionSpec(parts={key: PARTS[key] for key in parts})
    with pytest.raises(ConfigError, match=rf"^{name} .*{said}") as error:
        MODEL_FREE[name].build(SPECS["vector"], spec)
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
    spec = CHOOSING.get(name, MOVES)
    with pytest.raises(ConfigError, match=said):
        algorithm_config(name)().merge(given).build(SPECS["vector"], spec)


# ---------------------------------------------------------------- CUDA graphs, without a GPU


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
