"""Agents that Stable-Baselines3 and sb3-contrib trained (``tests/golden/record_sb3.py``) act here as there."""

import base64
import io
import json
import pickle
import zipfile
from collections import OrderedDict
from itertools import pairwise
from operator import attrgetter
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch

import reverie
from reverie.agent.import_sb3 import import_sb3
from reverie.agent.sb3_pickles import read_statistics
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError, RunError

SAVED = Path(__file__).parents[1] / "golden" / "sb3"
CASES = sorted(path.stem for path in SAVED.glob("*.zip"))


def saved(space):
    """A space as Stable-Baselines3 saves it."""
    return {":type:": str(type(space)), ":serialized:": base64.b64encode(pickle.dumps(space)).decode()}


class Shaped(gymnasium.Env):
    """Observations of a number of elements, or several of them by key; actions of these numbers of classes."""

    def __init__(self, sizes, classes):
        def box(size):
            return gymnasium.spaces.Box(-1, 1, (size,))

        parts = {key: box(size) for key, size in sizes.items()} if isinstance(sizes, dict) else {}
        self.observation_space = gymnasium.spaces.Dict(parts) if parts else box(sizes)
        is_one = isinstance(classes, int)
        self.action_space = gymnasium.spaces.Discrete(classes) if is_one else gymnasium.spaces.MultiDiscrete(classes)

    def reset(self, *, seed=None, options=None):
        return self.observation_space.sample(), {}


class Masked(gymnasium.Wrapper):
    """CartPole with the masks of the recording."""

    def __init__(self):
        super().__init__(gymnasium.make("CartPole-v1"))

    def action_masks(self):
        return np.array([True, self.unwrapped.state[0] > 0])


def edited(name, folder, data, weights, variables=None):
    """A copy of a saved zip file with some ``data`` and ``weights`` changed, those of None left out."""
    with zipfile.ZipFile(SAVED / f"{name}.zip") as archive:
        files = {part: archive.read(part) for part in ("data", "policy.pth", "pytorch_variables.pth")}
    files["data"] = json.dumps(json.loads(files["data"]) | data)
    weights = torch.load(io.BytesIO(files["policy.pth"]), weights_only=True) | weights
    tensors = {"policy.pth": {name: tensor for name, tensor in weights.items() if tensor is not None}}
    for part, content in (tensors | ({"pytorch_variables.pth": variables} if variables else {})).items():
        torch.save(content, buffer := io.BytesIO())
        files[part] = buffer.getvalue()
    with zipfile.ZipFile(folder / "edited.zip", "w") as archive:
        for part, content in files.items():
            archive.writestr(part, content)
    return folder / "edited.zip"


def critic(number, *widths):
    """The weights of a critic of Pendulum and of its target."""
    names = [f"{net}.qf{number}" for net in ("critic", "critic_target")]
    layers = list(enumerate(pairwise((4, *widths, 1))))
    weights = {f"{name}.{2 * i}.weight": torch.full((o, n), 0.1) for name in names for i, (n, o) in layers}
    return weights | {f"{name}.{2 * i}.bias": torch.zeros(o) for name in names for i, (_, o) in layers}


@pytest.mark.parametrize("name", CASES)
def test_the_same_actions_on_the_same_observations(name, tmp_path, said):
    env = Masked if "masked" in name else "Pendulum-v1" if "pendulum" in name else "CartPole-v1"
    run = import_sb3(SAVED / f"{name}.zip", env, run=tmp_path / "run")
    agent, state = reverie.load(run, env=env if "masked" in name else None), None
    file, taken = np.load(SAVED / f"{name}.npz"), []
    for obs in file["obs"]:
        told = {"action_mask": np.array([True, obs[0] > 0])} if "masked" in name else {}
        action, state = agent.act(obs, state, **told)
        taken.append(action)
    expected = file["action"]
    np.testing.assert_allclose(np.reshape(taken, expected.shape), expected, rtol=0, atol=1e-6)
    assert len(CASES) == 12
    assert agent.step in (64, 65)  # A2C collects five at a time
    assert bool(said) == (name == "ppo_pendulum")  # whose value network is another


def test_what_was_learned_is_evaluated_exported_and_learned_on(tmp_path, capsys):
    """Its critics too: what they say of the recorded steps is what theirs would."""
    run = tmp_path / "run"
    call = ["import", "sb3", str(SAVED / "sac_pendulum.zip"), "--env", "Pendulum-v1", "--run", str(run)]
    assert main(call) == 0
    assert f"reverie eval {run}" in capsys.readouterr().out
    assert main(call) == 1
    assert "already exists" in capsys.readouterr().err
    assert main(["eval", str(run), "--episodes", "1"]) == 0
    agent = reverie.load(run)
    theirs = saved_weights("sac_pendulum")
    x = torch.randn(5, 4)
    for copy in range(2):
        y = x
        for layer in (0, 2, 4):
            weight, bias = (theirs[f"critic_target.qf{copy}.{layer}.{part}"] for part in ("weight", "bias"))
            y = (y.relu() if layer else y) @ weight.T + bias
        ours = agent.algo.objective.target_critic.model({"observation": x[:, :3]}, x[:, 3:])[copy]
        torch.testing.assert_close(ours, y[:, 0])
    assert agent.config.algo.discount == 0.99
    assert float(agent.algo.objective.temperature) == pytest.approx(np.exp(-0.0132), abs=1e-4)
    go_on = [
        "train",
        "sac",
        "--env",
        "Pendulum-v1",
        "--init-from",
        str(run),
        "--run",
        str(tmp_path / "on"),
        "--steps",
        "30",
    ]
    small = "--algo.networks.units 8 6 --learning-starts 10 --random-steps 0 --eval-episodes 1"
    assert main([*go_on, *small.split()]) == 0


def test_critics_of_crossq_are_theirs(tmp_path):
    """Their running statistics of batches too."""
    agent = reverie.load(import_sb3(SAVED / "crossq_pendulum.zip", "Pendulum-v1", run=tmp_path / "run"))
    theirs = saved_weights("crossq_pendulum")
    x = torch.randn(5, 4)
    for copy in range(2):
        y = x
        for layer in (0, 3, 6):
            scale, shift, mean, var, steps = (
                theirs[f"critic.qf{copy}.{layer}.{part}"] for part in ("scale", "bias", "ra_mean", "ra_var", "steps")
            )
            weight, bias = (theirs[f"critic.qf{copy}.{layer + 1}.{part}"] for part in ("weight", "bias"))
            y = (scale * ((y.relu() if layer else y) - mean) / (var + 1e-3).sqrt() + shift) @ weight.T + bias
        ours = agent.algo.objective.critic({"observation": x[:, :3]}, x[:, 3:])[copy]
        torch.testing.assert_close(ours, y[:, 0])
        assert agent.algo.objective.critic.body.norms[0].updates == steps > 0


def saved_weights(name):
    with zipfile.ZipFile(SAVED / f"{name}.zip") as archive:
        return torch.load(io.BytesIO(archive.read("policy.pth")), weights_only=True)


def test_what_is_none_of_theirs_or_does_not_fit_is_told(tmp_path):
    with pytest.raises(ConfigError, match=r"observation 'observation' is vector \(4,\).* in the training, but \(6,\)"):
        import_sb3(SAVED / "dqn_cartpole.zip", "Acrobot-v1", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    (tmp_path / "x.zip").write_bytes(b"no zip")
    with pytest.raises(DataError, match=r"x.zip is not a Stable-Baselines3 agent: File is not a zip file"):
        import_sb3(tmp_path / "x.zip", "CartPole-v1")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr("data", json.dumps({}))
        for name in ("policy.pth", "pytorch_variables.pth"):
            buffer = io.BytesIO()
            torch.save(Path("harm"), buffer)  # a pickle of something else than tensors
            archive.writestr(name, buffer.getvalue())
    with pytest.raises(DataError, match="is not a Stable-Baselines3 agent"):
        import_sb3(tmp_path / "x.zip", "CartPole-v1")


@pytest.mark.parametrize("damage", ["numbers", "scalars", "bias", "step", "space"])
def test_damaged_files_are_told_in_a_line(damage, tmp_path):
    names = ("action_net.weight", "action_net.bias")
    weights = {"numbers": {names[0]: 1}, "scalars": {names[1]: torch.zeros(())}, "bias": {names[1]: None}}
    data = {"step": {"num_timesteps": "x"}, "space": {"observation_space": 3}}
    file = edited("ppo_cartpole", tmp_path, data.get(damage, {}), weights.get(damage, {}))
    with pytest.raises(DataError, match=r"edited\.zip (cannot be read|is not a Stable-Baselines3 agent)"):
        import_sb3(file, "CartPole-v1", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1j])
def test_weights_of_no_use_are_refused(value, tmp_path):
    file = edited("ppo_cartpole", tmp_path, {}, {"action_net.bias": torch.tensor([value, 0.0])})
    with pytest.raises(DataError, match=r"action_net\.bias contains torch\.\w+ values that are complex"):
        import_sb3(file, "CartPole-v1", run=tmp_path / "run")


def test_settings_larger_than_a_file_of_settings_are_refused(tmp_path, monkeypatch):
    file = edited("ppo_cartpole", tmp_path, {"more": "x" * 1000}, {})
    monkeypatch.setattr("reverie.core.files.read_member.__defaults__", (1000,))
    with pytest.raises(RunError, match=r"edited\.zip: data has [\d,]+ bytes: expected at most 1,000"):
        import_sb3(file, "CartPole-v1", run=tmp_path / "run")


@pytest.mark.parametrize("name", ["memo", "frame", "bytes", "array", "operations"])
def test_statistics_that_claim_memory_are_refused(name, tmp_path):
    huge = (1 << 40).to_bytes(8, "little")
    content, told = {
        "memo": (b"N" + pickle.LONG_BINPUT + b"\xff\xff\xff\x7f.", "claims too much"),
        "frame": (pickle.PROTO + b"\x04" + pickle.FRAME + huge + b"N.", "claims too much"),
        "bytes": (pickle.PROTO + b"\x04" + pickle.BINBYTES8 + huge + b".", "expected 1099511627776 bytes"),
        "array": (pickle.dumps(HugeArray()), "IndexError"),  # it is an empty array instead
        "operations": (b"N0" * 50_001 + b"N.", "claims too much"),
    }[name]
    (tmp_path / "v.pkl").write_bytes(content)
    with pytest.raises(DataError, match=told):
        read_statistics(tmp_path / "v.pkl")


@pytest.mark.parametrize("place", ["file", "weights", "tensor"])
def test_files_that_expand_to_too_many_bytes_are_refused(place, tmp_path, monkeypatch):
    file = edited("ppo_cartpole", tmp_path, {}, {"more": torch.zeros(()).expand(10**9)} if place == "tensor" else {})
    if place != "tensor":
        parts = {name: zipfile.ZipFile(file).read(name) for name in ("data", "policy.pth", "pytorch_variables.pth")}
        zeros = io.BytesIO()
        with zipfile.ZipFile(zeros, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr("zeros", bytes(10**6))
        parts |= {"policy.pth": zeros.getvalue()} if place == "weights" else {"zeros": bytes(10**6)}
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in parts.items():
                archive.writestr(name, content)
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 10**6 - 1)
    monkeypatch.setattr("reverie.core.files.MAX_RATIO", 2)
    with pytest.raises(RunError, match=r"edited\.zip has [\d,]+ bytes and expands to"):
        import_sb3(file, "CartPole-v1", run=tmp_path / "run")


def test_files_before_version_1_are_read(tmp_path):
    """They call the variables tensors.pth."""
    with zipfile.ZipFile(SAVED / "sac_pendulum.zip") as new, zipfile.ZipFile(tmp_path / "old.zip", "w") as old:
        for part in new.namelist():
            old.writestr(part.replace("pytorch_variables", "tensors"), new.read(part))
    files = SAVED / "sac_pendulum.zip", tmp_path / "old.zip"
    runs = [import_sb3(file, "Pendulum-v1", run=tmp_path / file.stem) for file in files]
    one, other = (reverie.load(run).algo.objective.temperature for run in runs)
    assert float(one) == float(other)


def test_training_values_out_of_bounds_do_not_stop_the_import(tmp_path, said):
    """A linear schedule ends with a learning rate of 0."""
    file = edited("ppo_cartpole", tmp_path, {"learning_rate": 0.0, "gamma": 0.5}, {})
    algo = reverie.load(import_sb3(file, "CartPole-v1", run=tmp_path / "run")).config.algo
    assert (algo.lr, algo.discount) == (type(algo)().lr, 0.5)
    assert said == ["the default is used, since lr = 0.0: expected a finite number above 0."]


SCALED = {"policy_kwargs": {"features_extractor_class": "<class '__main__.Scaled'>"}}
Box, Dict, Discrete = gymnasium.spaces.Box, gymnasium.spaces.Dict, gymnasium.spaces.Discrete
UNSORTED = {"observation_space": saved(Dict(OrderedDict(b=Box(-1, 1, (2,)), a=Discrete(2))))}
PICTURES = saved(Box(0, 255, (8, 8, 3), np.uint8))
PICTURE_DICT = saved(Dict(image=Box(0, 255, (8, 8, 3), np.uint8)))
BINARY = saved(gymnasium.spaces.MultiBinary(4))
RESCALED = saved(Box(-1, 1, (1,)))


@pytest.mark.parametrize(
    ("name", "data", "weights", "told"),
    [
        ("ppo_cartpole", {}, ["features_extractor.net.bias"], r"^features extractor features_extractor.net.bias: exp"),
        ("ppo_cartpole", SCALED, [], r"^features extractor <class '__main__.Scaled'>: expected networks that read the"),
        ("dqn_cartpole", {}, ["q_net.norm.bias"], r"^weights q_net.norm.bias: reverie's dqn has none of that name"),
        ("ppo_cartpole", UNSORTED, [], r"^observation_space = Dict with the keys b, a: expected sorted keys"),
        ("a2c_cartpole", {"cg_max_steps": 15}, [], "^this is an agent of TRPO: expected PPO, A2C, SAC"),
        ("crossq_pendulum", {"policy_kwargs": {"batch_norm_eps": 0.1}}, [], "^batch_norm_eps = 0.1: expected 0.001"),
        (
            "ppo_cartpole",
            {"observation_space": PICTURES},
            [],
            r"observation 'image' \(image \(8, 8, 3\).* is missing in this environment",
        ),
        (
            "sac_pendulum",
            {"observation_space": PICTURE_DICT},
            [],
            r"observation 'image' \(image \(8, 8, 3\).* is missing in this environment",
        ),
        (
            "crossq_pendulum",
            {"observation_space": BINARY},
            [],
            "MultiBinary, which is only supported as the whole obser",
        ),
        (
            "ppo_pendulum",
            {"action_space": RESCALED},
            [],
            r"action 'action' .* in the training, but .* in this environment.*rescale_action\(-1, 1\)",
        ),
        ("sac_pendulum", {"policy_delay": 3}, [], "^this is an agent of CrossQ without batch_norm: exp"),
    ],
)
def test_what_would_act_otherwise_here_is_refused(name, data, weights, told, tmp_path):
    file = edited(name, tmp_path, data, {weight: torch.zeros(4) for weight in weights})
    with pytest.raises(ConfigError, match=told):
        import_sb3(file, "Pendulum-v1" if "pendulum" in name else "CartPole-v1", run=tmp_path / "run")
    assert not (tmp_path / "run").exists()


ONE = dict.fromkeys(critic(1, 8, 6))
ALPHA = {"ent_coef_tensor": torch.tensor(0.2)}


@pytest.mark.parametrize(
    ("name", "data", "weights", "variables", "settings"),
    [
        ("sac_pendulum", {}, {}, ALPHA, {"temperature_lr": 0.0, "num_critics": 2}),
        ("sac_pendulum", {}, critic(2, 8, 6), None, {"temperature_lr": 3e-4, "num_critics": 3}),
        ("sac_pendulum", {}, ONE, None, {"algorithm": "sac", "num_critics": 1}),
        ("sac_pendulum", {}, critic(0, 9, 7) | critic(1, 9, 7), None, {"networks.critic_units": (9, 7)}),
        ("td3_pendulum", {}, critic(2, 8, 6), None, {"num_critics": 3}),
        ("td3_pendulum", {}, ONE, None, {"algorithm": "td3", "policy_delay": 2, "target_noise_clip": 0.5}),
        ("ddpg_pendulum", {}, critic(0, 9), None, {"algorithm": "ddpg", "networks.critic_units": (9,)}),
        ("ddpg_pendulum", {}, critic(1, 8), None, {"algorithm": "td3", "policy_delay": 1, "target_noise_clip": 0}),
        ("tqc_pendulum", {}, {}, None, {"num_quantiles": 5, "num_dropped_quantiles": 2, "num_critics": 2}),
        ("crossq_pendulum", {"policy_delay": 2}, {}, None, {"networks.critic_units": (8, 6), "policy_delay": 2}),
        ("ppo_lstm", {"batch_size": 8}, {}, None, {"batch_length": 8}),
        ("ppo_lstm", {"batch_size": 50, "n_steps": 100}, {}, None, {"batch_length": 10}),
    ],
)
def test_networks_and_settings_are_those_of_the_file(name, data, weights, variables, settings, tmp_path):
    file = edited(name, tmp_path, data, weights, variables)
    agent = reverie.load(import_sb3(file, "CartPole-v1" if "lstm" in name else "Pendulum-v1", run=tmp_path / "run"))
    assert {setting: attrgetter(setting)(agent.config.algo) for setting in settings} == settings
    if variables:
        assert float(agent.algo.objective.temperature) == pytest.approx(0.2)


def test_an_agent_of_a_rescaled_environment_is_imported_for_it(tmp_path):
    file = edited("ppo_pendulum", tmp_path, {"action_space": RESCALED}, {})
    wrapped = {"env.wrappers": ["rescale_action(-1, 1)"]}
    agent = reverie.load(import_sb3(file, "Pendulum-v1", run=tmp_path / "run", **wrapped))
    file = np.load(SAVED / "ppo_pendulum.npz")
    taken = [agent.act(obs)[0] for obs in file["obs"]]
    expected = np.clip(file["action"].reshape(len(taken), 1), -1, 1)  # the wrapper doubles them
    np.testing.assert_allclose(np.reshape(taken, expected.shape), expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("spaces", "env_spaces", "text"),
    [
        ({"action_space": gymnasium.spaces.MultiDiscrete([2, 3])}, (4, [3, 2]), r"action 'action' is categorical"),
        ({"action_space": Discrete(5)}, (4, [3, 2]), r"action 'action' is categorical"),
        ({"action_space": Box(-1, 1, (5,))}, (4, [3, 2]), r"action 'action' is continuous"),
        ({"observation_space": Discrete(4)}, (4, 2), r"observation 'observation' is categorical"),
        ({"observation_space": Dict(a=Box(-1, 1, (3,)), b=Discrete(1))}, ({"a": 2, "b": 2}, 2),
         r"observation 'a' is vector \(3,\).*; observation 'b' is categorical"),
    ],
)  # fmt: skip
def test_other_spaces_of_the_same_widths_are_refused(spaces, env_spaces, text, tmp_path):
    file = edited("ppo_cartpole", tmp_path, {name: saved(space) for name, space in spaces.items()}, {})
    with pytest.raises(ConfigError, match=text):
        import_sb3(file, lambda: Shaped(*env_spaces), run=tmp_path / "run")


@pytest.mark.parametrize("dtype", [np.float32, np.uint8])
def test_all_images_are_refused_as_images(dtype, tmp_path):
    """As reverie recognizes them: of floats, and stacks."""
    env = Shaped(4, 2)
    shape = (4, 8, 8, 3) if dtype == np.uint8 else (8, 8, 3)
    env.observation_space = gymnasium.spaces.Box(0, 255, shape, dtype)
    with pytest.raises(ConfigError, match=r"has images of shape .*, which MlpPolicy flattens"):
        import_sb3(SAVED / "ppo_cartpole.zip", lambda: env, run=tmp_path / "run")


def test_a_custom_policy_is_named(tmp_path, said):
    policy = {"policy_class": {":type:": "<class 'abc.ABCMeta'>", "__module__": "my.policies"}}
    import_sb3(edited("ppo_cartpole", tmp_path, policy, {}), "CartPole-v1", run=tmp_path / "run")
    assert any("its policy is a class of the module my.policies" in line for line in said)


def test_a_file_of_a_policy_alone_is_named(tmp_path):
    torch.save({"a": torch.zeros(1)}, tmp_path / "policy.zip")
    with pytest.raises(DataError, match=r"has no settings of an agent: expected the file of model\.save"):
        import_sb3(tmp_path / "policy.zip", "CartPole-v1", run=tmp_path / "run")


@pytest.mark.parametrize("name", ["sac_pendulum", "td3_pendulum"])
def test_other_bounds_of_a_scaled_policy_are_named(name, tmp_path, said):
    import_sb3(edited(name, tmp_path, {"action_space": RESCALED}, {}), "Pendulum-v1", run=tmp_path / "run")
    assert any("action 'action' is" in line and "in the training, but" in line for line in said)


@pytest.mark.parametrize(
    ("name", "layers"),
    [("ppo_cartpole", ["mlp_extractor.policy_net.0", "mlp_extractor.policy_net.2", "action_net"]),
     ("sac_pendulum", ["actor.latent_pi.0", "actor.latent_pi.2", "actor.mu"])],
)  # fmt: skip
def test_agents_without_a_hidden_layer_are_named(name, layers, tmp_path):
    gone = {f"{layer}.{part}": None for layer in layers[:-1] for part in ("weight", "bias")}
    gone |= {key.replace("policy", "value"): None for key in gone}
    with pytest.raises(ConfigError, match=r"^net_arch = \[\]: reverie's networks have a hidden layer"):
        import_sb3(
            edited(name, tmp_path, {}, gone), "CartPole-v1" if "cart" in name else "Pendulum-v1", run=tmp_path / "r"
        )


class Switches(gymnasium.Env):
    """Binary observations, with binary or discrete actions."""

    observation_space = gymnasium.spaces.MultiBinary(4)

    def __init__(self, is_binary):
        self.action_space = gymnasium.spaces.MultiBinary(2) if is_binary else gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(4, np.int8), {}


@pytest.mark.parametrize(
    ("name", "is_binary"), [("ppo_cartpole", True), ("a2c_cartpole", False), ("dqn_cartpole", False)]
)
def test_binary_spaces_are_those_of_the_file(name, is_binary, tmp_path):
    """A logit of theirs is the difference of two classes here."""
    data = {"observation_space": BINARY}
    data |= {"action_space": saved(gymnasium.spaces.MultiBinary(2))} if is_binary else {}
    file = edited(name, tmp_path, data, {})
    agent = reverie.load(
        import_sb3(file, lambda: Switches(is_binary), run=tmp_path / "run"), env=lambda: Switches(is_binary)
    )
    weights = saved_weights(name)
    prefix, head = ("q_net.q_net", "q_net.q_net.4") if "dqn" in name else ("mlp_extractor.policy_net", "action_net")
    for number in range(16):
        obs = np.array([number >> bit & 1 for bit in range(4)], np.int8)
        x = torch.from_numpy(obs).float()
        for layer in [f"{prefix}.{number}" for number in (0, 2) if f"{prefix}.{number}.weight" in weights]:
            x = weights[f"{layer}.weight"] @ x + weights[f"{layer}.bias"]
            x = x.relu() if "dqn" in name else x.tanh()
        logits = weights[f"{head}.weight"] @ x + weights[f"{head}.bias"]
        expected = (logits > 0).int().numpy() if is_binary else int(logits.argmax())
        np.testing.assert_array_equal(agent.act(obs)[0], expected)


class Pickled:
    """An object with these attributes; the reader does not import its class."""

    def __init__(self, **attributes):
        self.__dict__.update(attributes)


class Call:
    """An object whose pickle calls a function."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


class Constructed:
    """A space that a pickle makes by a call, with more elements than its bytes."""

    def __init__(self, kind, *args):
        self.call = kind, args

    def __reduce__(self):
        return self.call


@pytest.mark.parametrize(
    "space",
    [
        Constructed(gymnasium.spaces.Box, 0, 1, (1 << 40,)),
        gymnasium.spaces.MultiBinary(1 << 40),
        Constructed(np.float64(0).__reduce__()[0], np.dtype("V2000000000")),
    ],
    ids=["box", "binary", "scalar"],
)
def test_spaces_that_claim_memory_are_refused(space, tmp_path):
    file = edited("ppo_cartpole", tmp_path, {"observation_space": saved(space)}, {})
    with pytest.raises(DataError, match="is not a Stable-Baselines3 agent"):
        import_sb3(file, "CartPole-v1", run=tmp_path / "run")


def test_the_code_in_a_space_does_not_run(tmp_path):
    file = edited("ppo_cartpole", tmp_path, {"observation_space": saved(Call(tmp_path / "called"))}, {})
    import_sb3(file, "CartPole-v1", run=tmp_path / "run")
    assert not (tmp_path / "called").exists()


class HugeArray:
    """A terabyte that takes a few bytes of a pickle."""

    def __reduce__(self):
        return np.zeros(1).__reduce__()[0], (np.ndarray, (1 << 40,), b"b")


def test_observations_are_normalized_as_by_vecnormalize(tmp_path, said):
    """Without its statistics the agent would act at random, so the import says so."""
    file = edited("a2c_cartpole", tmp_path, {"_last_original_obs": {":serialized:": "gA=="}}, {})
    import_sb3(file, "CartPole-v1", run=tmp_path / "plain")
    assert "VecNormalize" in said[0]
    mean, var = np.array([0.1, -0.2, 0.3, 0.5]), np.array([4.0, 0.25, 1.0, 9.0])
    state = Pickled(norm_obs=True, obs_rms=Pickled(mean=mean, var=var, count=64.0), clip_obs=2.0, epsilon=1e-8,
                    observation_space=Call(tmp_path / "called"))  # fmt: skip
    (tmp_path / "vecnormalize.pkl").write_bytes(pickle.dumps(state))
    said.clear()
    run = import_sb3(file, "CartPole-v1", run=tmp_path / "run", vecnormalize=tmp_path / "vecnormalize.pkl")
    one, other = reverie.load(run), reverie.load(tmp_path / "plain")
    for obs in np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32) * 4:
        normalized = np.clip((obs - mean) / np.sqrt(var), -2, 2).astype(np.float32)
        assert one.act(obs)[0] == other.act(normalized)[0]
    assert not said
    assert not (tmp_path / "called").exists()
    for content, told in [
        (pickle.dumps(Pickled(norm_obs=True)), "is not a vecnormalize.pkl"),
        (
            pickle.dumps(Pickled(**state.__dict__ | {"obs_rms": Pickled(mean=mean[:3], var=var[:3], count=1.0)})),
            "shape",
        ),
    ]:
        (tmp_path / "vecnormalize.pkl").write_bytes(content)
        with pytest.raises((ConfigError, DataError), match=told):
            import_sb3(file, "CartPole-v1", run=tmp_path / "no", vecnormalize=tmp_path / "vecnormalize.pkl")


def test_observations_of_other_bounds_are_named(tmp_path, said):
    """As with RescaleObservation. The suffix can be left out, as Stable-Baselines3 allows."""
    for low, is_named in ((-1, True), (-2, False)):
        edited("ppo_cartpole", tmp_path, {"observation_space": saved(Box(low, 2, (4,)))}, {})
        env = Shaped(4, 2)
        env.observation_space = gymnasium.spaces.Box(-2, 2, (4,))
        import_sb3(tmp_path / "edited", lambda env=env: env, run=tmp_path / f"run{low}")
        named = "has numbers in -1..2 in the training, but numbers in -2..2 in this environment"
        assert any(named in line for line in said) == is_named
        said.clear()
