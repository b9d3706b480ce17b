"""Exported policies act as their agents do."""

import functools
import json
import subprocess
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import nn

import contracts
import dreamer_configs
import reverie
from reverie.agent.policy_file import compare_with_agent, copy_to_cpu, open_policy, save_policy
from reverie.agent.policy_function import NOISE, NoiseRecorder
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.cli.main import main
from reverie.core.errors import ConfigError, RunError
from reverie.core.kernel_dispatch import use_only_kernels
from reverie.core.spaces import column, get_at_path, iter_leaves
from reverie.core.specs import action_kind
from reverie.experiment.config import ExperimentConfig
from reverie.nn.exploration import CapturableFunction, EpsilonGreedy, GreedyPolicy
from reverie.viewer.publish import export
from small_agents import agent_of

CASES = {
    name: (contracts.tiny(name), action_kind(contracts.ACTIONS.get(name, contracts.MOVES)))
    for name in contracts.CONFIGS
}
CASES["ppo_lstm"] = (CASES["ppo_lstm"][0], "multi_discrete")
CASES["tdmpc2"] = (CASES["tdmpc2"][0].merge({"iterations": 1}), "continuous")  # each is a part of the graph
V3 = DreamerV3Config().merge(dreamer_configs.TINY)
CASES["v3"] = (V3, "mixed")
ONNX = ("v3", "bcq")
"""Policies that differ in what an exporter meets; the others are compared as PyTorch's graphs, which is faster."""
TORCH = ("fql_chunks",)
OTHERS = [pytest.param(name, marks=pytest.mark.nightly) for name in ("tdmpc2", "discrete_sac_transformer")]
"""Large graphs of what the others have, too: state, noise, memory."""


@pytest.fixture(scope="session", autouse=True)
def _one_registry():
    """PyTorch makes ONNX's table of operations anew for each export, and reads the types of its own classes anew for
    each part of a file, which takes half of the time."""
    pytest.importorskip("onnxscript")  # here: it takes seconds to import
    pytest.importorskip("onnxruntime")
    from torch._export.serde import schema, serialize
    from torch.onnx._internal.exporter._registration import ONNXRegistry

    hints = functools.cache(lambda kind: typing.get_type_hints(kind, globalns=vars(schema)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ONNXRegistry, "from_torchlib", staticmethod(functools.cache(ONNXRegistry.from_torchlib)))
        known = vars(typing) | {"get_type_hints": lambda kind, globalns: hints(kind)}
        patch.setattr(serialize, "typing", SimpleNamespace(**known))
        yield


def play(agent, done, steps):
    """Yield what the file and the agent answer to the observations of an environment, and what the agent was told."""
    about = json.loads(done.metadata_file.read_text())
    call, env = open_policy(done.file, "onnx" if done.file.suffix == ".onnx" else "torch"), agent.make_env()
    values, reward, over, (obs, info) = (
        {one["name"]: one.get("initial") for one in about["inputs"]},
        0.0,
        True,
        env.reset(),
    )
    state = None
    for _ in range(steps):
        told = {"reward": reward, "action_mask": info.get("action_mask")}
        learner_obs = agent.observer(obs, None, over, told["action_mask"])
        values |= {f"obs/{key}": x for key, x in learner_obs.items()} | {"is_first": over, "reward": reward}
        noise = [one for one in about["inputs"] if one["role"] == "noise"]
        values |= {one["name"]: NOISE[one["distribution"]](*one["shape"]) for one in noise}
        inputs = [
            torch.as_tensor(values[one["name"]], dtype=getattr(torch, one["dtype"])).expand(one["shape"]).clone()
            for one in about["inputs"]
        ]
        outputs = dict(zip([one["name"] for one in about["outputs"]], call(inputs), strict=True))
        before = None if over else state
        with NoiseRecorder([values[one["name"]] for one in noise]), use_only_kernels(), torch.no_grad():
            action, state = agent.act(obs, before, **told)
        yield outputs, action, (obs, before, told)
        values |= {one["input"]: outputs[one["name"]] for one in about["outputs"] if one["role"] == "state"}
        obs, reward, _, over, info = env.step(action)
        if over:
            obs, info = env.reset()


def check_outputs(agent, done, steps=10):
    """Actions are those of the agent, and so are the values or probabilities of the classes that it chooses from."""
    about = json.loads(done.metadata_file.read_text())
    has_classes = any(one["name"].startswith(("probabilities", "values")) for one in about["outputs"])
    is_random = any(one["role"] == "noise" for one in about["inputs"])  # its states are, of which the classes are
    for outputs, action, (obs, state, told) in play(agent, done, steps):
        for path, leaf in iter_leaves(agent.action_space):
            expected = np.asarray(get_at_path(action, path))
            atol = 1e-5 * float(np.max(leaf.high - leaf.low)) if isinstance(leaf, spaces.Box) else 0
            np.testing.assert_allclose(outputs[column("action", path)][0].numpy(), expected, rtol=0, atol=atol)
        for key, x in agent.distribution(obs, state, **told).items() if has_classes and not is_random else ():
            if not key.startswith(("mean", "std")):
                np.testing.assert_allclose(outputs[key][0].numpy(), x, rtol=0, atol=1e-5)


@pytest.mark.parametrize("name", [*ONNX, *TORCH, *OTHERS])
def test_policies_act_as_their_agents(name, tmp_path):
    """Those that have state carry it themselves, over episodes of seven steps."""
    algo, kind = CASES[name]
    agent = agent_of(algo, kind, tmp_path, seeing=False)
    done = export(agent, format="onnx" if name in ONNX else "torch", steps=10, batch=1)
    assert (done.steps, done.num_differing, done.error < 1e-5) == (10, 0, True)
    roles = {one["role"] for one in json.loads(done.metadata_file.read_text())["inputs"]}
    remembers = name.startswith(("v3", "tdmpc2")) or name.endswith(("transformer", "chunks"))
    assert (remembers, remembers) == ("is_first" in roles, "state" in roles)
    assert ("noise" in roles) == (name in {"v3", "tdmpc2", "bcq", "fql_chunks"})
    check_outputs(agent, done)


@pytest.mark.parametrize("name", ["sac", "ppo"])
def test_a_caller_can_sample_actions(name, tmp_path):
    """With the noise of the agent, what is sampled from the outputs is the action that the agent samples."""
    agent = agent_of(CASES[name][0], "continuous", tmp_path)
    done = export(agent, steps=5, format="torch", batch=1)
    nodes = [node for node in torch.export.load(done.file).graph.nodes if node.op == "call_function"]
    assert len({(node.target, str(node.args), str(node.kwargs)) for node in nodes}) == len(nodes)  # nothing twice
    about = {one["name"]: one for one in json.loads(done.metadata_file.read_text())["outputs"]}
    squash = {"tanh": torch.tanh, "clip": lambda x: x.clamp(-1, 1)}[about["mean/a"]["squash"]]
    for outputs, _, (obs, state, _) in play(agent, done, 5):
        noise = torch.randn(1, agent.action_spec.width)
        with NoiseRecorder([noise]), use_only_kernels(), torch.no_grad():
            sampled, _ = agent.act(obs, state, deterministic=False)
        for key, part in agent.action_spec.slices().items():
            drawn = squash(outputs[f"mean/{key}"] + outputs[f"std/{key}"] * noise[:, part])
            leaf = agent.action_space[key]
            expected = leaf.low + (drawn[0].numpy() + 1) / 2 * (leaf.high - leaf.low)
            np.testing.assert_allclose(sampled[key], expected, rtol=0, atol=1e-4)


def test_a_policy_is_exported_in_single_precision(tmp_path):
    agent = agent_of(V3.merge({"precision": "bfloat16"}), "continuous", tmp_path, seeing=False)
    assert copy_to_cpu(agent).algo.cfg.precision == "float32"


def test_an_agent_that_has_learned_in_float16_acts_in_float32_on_a_cpu(tmp_path, monkeypatch):
    options = {"steps": 40, "run": tmp_path / "run", "device": "cpu", "console": False, "tensorboard": False}
    options |= {"algo.precision": "float16", "algo.rollout": 16, "algo.batch_size": 8, "env.num": 1, "eval_episodes": 0}
    with pytest.raises(ConfigError, match="precision = 'float16' on a CPU"):
        reverie.train("ppo", env="reverie/Match-v0", **options)
    monkeypatch.setattr(ExperimentConfig, "learner_device", lambda self: "cpu")  # as a GPU would learn
    reverie.train("ppo", env="reverie/Match-v0", **options)
    agent = reverie.load(tmp_path / "run", device="cpu")
    assert agent.algo.cfg.precision == agent.config.algo.precision == "float32"
    assert len(agent.evaluate(episodes=1).scores) == 1


@pytest.mark.parametrize("name", ["dqn_choices", "ppo_lstm"])
def test_masks_frames_and_normalization_are_inside(name, tmp_path):
    algo, kind = CASES[name]
    prepared = {"frame_stack": 3, "frame_stack_keys": "state|more", "normalize_obs": "running"}
    if name != "ppo_lstm":
        algo = algo.merge(prepared)
    env = {"frame_stack": 3} if name == "ppo_lstm" else {}
    agent = agent_of(algo, kind, tmp_path, masks=True, seeing=False, **env)
    done = export(agent, format="torch" if name == "ppo_lstm" else "onnx", steps=20)
    assert (done.num_differing, done.error < 1e-5) == (0, True)
    check_outputs(agent, done)
    metadata = json.loads(done.metadata_file.read_text())
    assert metadata["batch"] == 1
    about = {one["name"]: one for one in metadata["inputs"]}
    assert about["obs/action_mask"]["role"] == "mask"
    assert about["obs/state"]["shape"] == [1, 2, 2]
    assert any(key.endswith("past/state") for key in about)


def test_a_file_runs_without_this_library_and_without_pytorch(tmp_path):
    """The example plays CartPole as the agent does; the other format needs PyTorch alone."""
    trained = tmp_path / "run"
    reverie.train("dqn", env="CartPole-v1", run=trained, steps=100, learning_starts=90, eval_episodes=0)
    for suffix in (".onnx", ".pt2"):
        assert main(["export", str(trained), "--out", str(tmp_path / f"p{suffix}"), "--steps", "50"]) == 0
    about = json.loads((tmp_path / "p.json").read_text())
    assert about["compared"]["differing"] == 0
    example = Path(__file__).parents[2] / "examples" / "play_onnx.py"
    play = f"""sys.argv = ['x', {str(tmp_path / "p.onnx")!r}, 'CartPole-v1']
runpy.run_path({str(example)!r}, run_name='__main__')"""
    call = f"""import torch
policy = torch.export.load({str(tmp_path / "p.pt2")!r}).module()
print(len(policy(*[torch.full(i['shape'], i.get('initial', 0), dtype=getattr(torch, i['dtype']))
                   for i in {about["inputs"]!r}])))"""
    for blocked, script, start in (("torch", play, "return "), ("x", call, f"{len(about['outputs'])}\n")):
        code = f"import sys, runpy\nsys.modules.update(dict.fromkeys(['reverie', {blocked!r}]))\n{script}"
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert said.stdout.startswith(start), said.stderr


class Counting:
    """A policy that counts in Python, where no graph sees it."""

    calls = 0

    def initial(self, num_envs):
        return None

    def act(self, step, state, mode):
        self.calls += 1
        return torch.eye(3)[self.calls % 3].expand(len(step), 3), state


def test_rounding_is_no_difference(tmp_path):
    """It is largest where a tanh is steep."""
    function = save_policy(agent_of(*CASES["td3"], tmp_path), 1, tmp_path / "policy.pt2", "torch")
    call = open_policy(tmp_path / "policy.pt2", "torch")
    for shift, count in ((2e-5, 0), (1e-3, 5)):
        shifted = compare_with_agent(function, lambda x, shift=shift: [y + shift for y in call(x)], 5)
        assert shifted[0] == count


def test_what_cannot_be_exported_says_why_and_leaves_what_was_there(tmp_path, monkeypatch):
    agent = agent_of(CASES["dqn"][0], "discrete", tmp_path)
    monkeypatch.setattr("reverie.agent.policy_file.copy_to_cpu", lambda agent: agent)
    agent.algo._policy = Counting()
    (tmp_path / "policy.onnx").write_text("earlier")
    with pytest.raises(RunError, match=r"acts differently from Agent\(.*in 1\d of 20 steps.*Nothing was written"):
        export(agent, steps=20)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("policy.onnx", "earlier")]


def test_a_policy_is_there_only_with_the_file_that_describes_it(tmp_path, monkeypatch):
    """Whenever the command is killed: neither alone, nor beside that of an earlier export."""
    agent = agent_of(CASES["dqn"][0], "discrete", tmp_path, seeing=False)

    def kill(path, values):
        raise KeyboardInterrupt

    export(agent, steps=5, format="torch")
    monkeypatch.setattr("reverie.agent.policy_file.write_json", kill)
    with pytest.raises(KeyboardInterrupt):
        export(agent, steps=5, format="torch")
    assert [path.name for path in tmp_path.glob("*policy*")] == ["policy.json"]


class Delayed(NamedTuple):
    newest: torch.Tensor
    before: torch.Tensor


class DelayedPolicy:
    """A policy whose actions depend on the observation before the last."""

    def initial(self, num_envs):
        return Delayed(torch.zeros(num_envs), torch.zeros(num_envs))

    def act(self, step, state, mode):
        return torch.eye(3)[(state.before > 0).long()], Delayed(step.obs["more"], state.newest)


def test_state_that_only_matters_later_is_kept(tmp_path, monkeypatch):
    agent = agent_of(CASES["dqn"][0], "discrete", tmp_path, seeing=False)
    monkeypatch.setattr("reverie.agent.policy_file.copy_to_cpu", lambda agent: agent)
    agent.algo._policy = DelayedPolicy()
    about = json.loads(export(agent, steps=20, format="torch").metadata_file.read_text())
    assert [one["name"] for one in about["inputs"]] == ["obs/more", "state/newest", "state/before"]


def test_a_policy_without_memory_takes_any_number_of_observations(tmp_path):
    agent = agent_of(*CASES["sac_mixed"], tmp_path)
    done = export(agent, steps=15)
    check_outputs(agent, done)
    about = json.loads(done.metadata_file.read_text())
    assert (about["batch"], about["inputs"][0]["shape"][0], done.num_differing) == ("any", 1, 0)
    call = open_policy(done.file, "onnx")
    five = [torch.rand(5, *one["shape"][1:]).to(getattr(torch, one["dtype"])) for one in about["inputs"]]
    alone = [call([x[i : i + 1] for x in five]) for i in range(5)]
    for together, *each in zip(call(five), *alone, strict=True):
        torch.testing.assert_close(together, torch.cat(each))


class Tied(nn.Module):
    """Values of which the first two are nearly the same, and the third is the least."""

    def __init__(self, noise):
        super().__init__()
        self.noise = nn.Parameter(torch.tensor(noise))

    def forward(self, obs):
        x = obs["more"].reshape(-1, 1)
        return torch.cat([x, x + self.noise, x - 1], -1)


def test_classes_that_are_as_good_as_the_best_are_right(tmp_path):
    """Rounding may choose either; a class that is worse is wrong, even if all values are right."""
    agent = agent_of(CASES["dqn"][0], "discrete", tmp_path, seeing=False)
    before, part = copy_to_cpu(agent), tmp_path / "part.pt2"
    for noise, differing in ((1e-7, 0), (0.01, 40)):
        worse, better = (
            GreedyPolicy(CapturableFunction(Tied(x), nn.Identity()), EpsilonGreedy(0.0), (3,), torch.device("cpu"))
            for x in (-noise, noise)
        )
        before.algo._policy = worse
        function = save_policy(before, 1, part, "torch")
        call = open_policy(part, "torch")
        worst = compare_with_agent(function, lambda x, call=call: [5 + (call(x)[0] - 4) % 3, *call(x)[1:]], 40)
        function.policy = better
        assert (worst[0] > 30, compare_with_agent(function, call, 40)[0]) == (differing > 0, differing)


@pytest.mark.parametrize("place", ["/proc/none/policy.onnx", "file/policy.onnx"])
def test_a_place_that_cannot_be_written(trained, tmp_path, place):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="cannot write"):
        export(trained, tmp_path / place)


def test_a_format_that_contradicts_the_suffix_is_refused(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"format = 'torch' contradicts the file .*q\.onnx: expected \.pt2"):
        export(trained, tmp_path / "q.onnx", format="torch")
