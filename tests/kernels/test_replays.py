"""Updates that are replayed learn what updates learn: all algorithms, from tapes, and on a GPU from CUDA graphs."""

import copy
import os
import subprocess
import sys

import pytest
import torch
from tapes import Tapes

import dreamer_configs
from contracts import BASES, CONFIGS, DISTINCT, PREPARED, batch, build, by_base, learned, lived, shown
from dreamer_configs import V3, made
from reverie.kernels.capture import WARM_UPS, CapturedTrainStep, _captured

WORLD_MODELS = [name for name in dreamer_configs.CONFIGS if name not in ("v1", "v1_cont", "v2")]


@pytest.mark.usefixtures("plain_pytorch")
@pytest.mark.parametrize(
    ("name", "spec", "functions"),
    [pytest.param(name, "vector", "compiled", marks=[] if name in BASES else pytest.mark.nightly) for name in DISTINCT]
    + [(name, "everything", "plain") for name in ("dqn_choices", "discrete_sac_transformer", "ppo_lstm", "tdmpc2")],
)
def test_replays_learn_what_updates_learn(name, spec, functions):
    """A tape is what a CUDA graph would be, on the CPU; no update runs without one, which only a warning would tell."""
    seen = []
    for graph in (False, True):
        agent = build(name, spec, graph=graph)
        torch.manual_seed(5)
        seen.append([agent.update(batch(agent, spec, seed)).metrics for seed in range(2 * WARM_UPS + 4)])
        seen[-1].append(learned(agent))
    torch.testing.assert_close(*seen, rtol=0, atol=0)
    assert all(step.has_replayed for step in _captured[agent].steps.values())


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CONFIGS)
def test_graphs_of_a_gpu_learn_what_updates_learn(name):
    """Sums there are not the same to the last bit."""
    seen = {}
    for graph in (True, False):
        agent = build(name, device="cuda", graph=graph)
        torch.manual_seed(2)
        seen[graph] = [agent.update(batch(agent, seed=seed)).metrics for seed in range(2 * WARM_UPS + 4)]
        action, _ = agent.policy.act(shown(), agent.policy.initial(2), "explore")
        assert (action.shape, action.device.type) == ((2, 3), "cpu")
    for a, b in zip(seen[True], seen[False], strict=True):
        torch.testing.assert_close(a, b, rtol=1e-2, atol=1e-2)


@pytest.mark.usefixtures("plain_pytorch")
@pytest.mark.parametrize("functions", ["compiled"])
@pytest.mark.parametrize("name", ["td3", "ppo_mixed"])
def test_replays_skip_the_steps_that_updates_in_float16_skip(name, functions):
    """The scale becomes small enough after updates have been captured."""
    eager, replayed = (build(name, precision="float16", graph=False) for _ in range(2))
    update = CapturedTrainStep(replayed.train_step, torch.device("cpu"), tapes := Tapes(), replayed)
    for agent, call in ((eager, eager.train_step), (replayed, update)):
        agent.loss_scale.value.fill_(2.0**24)
        torch.manual_seed(5)
        for seed in range(14):
            call(batch(agent, seed=seed))
            agent.loss_scale.adjust()
    assert tapes.calls == ["warm up"] * WARM_UPS + ["capture"] + ["replay"] * (13 - WARM_UPS)
    assert 1 < eager.loss_scale.value < 2.0 ** (24 - WARM_UPS - 1)
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


@pytest.mark.usefixtures("plain_pytorch")
@pytest.mark.parametrize("functions", ["compiled", "plain"])
@pytest.mark.parametrize("name", ["td3", "dqn"])
def test_replays_see_statistics_that_have_moved(name, functions):
    eager, replayed = (
        build(name, "everything", **PREPARED, graph=False),
        build(name, "everything", **PREPARED),
    )
    for agent in (eager, replayed):
        torch.manual_seed(5)
        for i, row in enumerate(lived("everything", 2 * WARM_UPS + 4, seed=5)):
            agent.running_statistics.update_statistics(row)
            agent.update(batch(agent, "everything", i))
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


@pytest.mark.parametrize("name", by_base(["pydreamer", "v3_p2e", "r2_barlow"]))
def test_replays_and_resumed_updates_are_those_of_one_run_bit_for_bit(name, monkeypatch):
    """A tape is what a CUDA graph would be, on the CPU; what is loaded is what later replays continue from."""
    monkeypatch.setattr("reverie.kernels.ctypes_call.load_kernels", lambda: None)
    few = {"batch_length": 3, "horizon": 2}
    (eager, kind), (replayed, _) = made(name, **few), made(name, **few)
    update, seen = CapturedTrainStep(replayed.train_step, torch.device("cpu"), Tapes(), replayed), []
    for agent in (eager, replayed):
        call, found = (update if agent is replayed else agent.update), []
        torch.manual_seed(5)
        for i in range(WARM_UPS + 3):
            if i == WARM_UPS + 1:
                saved = copy.deepcopy(agent.state_dict())
                if agent is eager:
                    agent = made(name, **few)[0]
                    call = agent.update
                else:
                    agent.load_state_dict(made(name, **few)[0].state_dict())  # something else, in between
                agent.load_state_dict(saved)
            found.append(call(dreamer_configs.batch(agent, kind, i)))
        seen.append((found, dreamer_configs.tensors(agent)))
    assert update.recorder.calls == ["warm up"] * WARM_UPS + ["capture"] + ["replay"] * 2
    for expected, got in zip(seen[0][0], seen[1][0], strict=True):
        torch.testing.assert_close((got.metrics, got.extras), (expected.metrics, expected.extras), rtol=0, atol=0)
    torch.testing.assert_close(seen[1][1], seen[0][1], rtol=0, atol=0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", [*WORLD_MODELS, *V3, "r2_infonce", "r2_decoder"])
def test_graphs_of_world_models_on_a_gpu_learn_what_updates_learn(name):
    """Sums there are not the same to the last bit."""
    seen = {}
    for graph in (True, False):
        agent, kind = made(name, device="cuda", graph=graph)
        torch.manual_seed(2)
        seen[graph] = [agent.update(dreamer_configs.batch(agent, kind, seed)) for seed in range(WARM_UPS + 4)]
        rows = dreamer_configs.shown(dreamer_configs.batch(agent, kind))
        assert agent.policy.act(rows, agent.policy.initial(3), "explore")[0].device.type == "cpu"
    for a, b in zip(seen[True], seen[False], strict=True):
        losses = [{k: v for k, v in update.metrics.items() if k.startswith(("loss/", "opt/loss"))} for update in (a, b)]
        torch.testing.assert_close(*losses, rtol=1e-2, atol=1e-2)


PROCESS = """
import hashlib, sys, torch
import dreamer_configs

agent, kind = dreamer_configs.made("v3_bfloat16", device=sys.argv[1])
torch.manual_seed(5)
for i in range(20):
    agent.update(dreamer_configs.batch(agent, kind, i))
numbers = (x.cpu().numpy().tobytes() for x in dreamer_configs.tensors(agent).values() if x.ndim)
print(hashlib.sha256(b"".join(numbers)).hexdigest())
"""


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_two_processes_on_a_gpu_learn_the_same_bit_for_bit():
    words = [sys.executable, "-c", PROCESS, "cuda"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    learned = [subprocess.run(words, env=env, capture_output=True, text=True, check=True).stdout for _ in range(2)]
    assert learned[0] == learned[1]
