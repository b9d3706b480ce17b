"""Agents of Stable-Baselines3 and sb3-contrib as runs, from their zip files, of which nothing is unpickled.

Read are the JSON ``data``, where it holds plain values, and the weights, as tensors alone.
"""

from __future__ import annotations

import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.base import Algorithm
from reverie.algos.settings import AlgorithmConfig
from reverie.core.discover import algorithm_config
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.core.files import write_json
from reverie.core.logger import logger
from reverie.core.specs import ActionSpec, ObsSpec, signature
from reverie.envs.flat import make_flat
from reverie.envs.make import EnvLike, close_quietly, env_factory
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.resolve import saved_settings
from reverie.nn.perceptron import ReluMLP
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, new_path, write_saved

Layers = list[tuple[Tensor, Tensor]]
"""Weights ``[outputs, inputs]`` and biases ``[outputs]`` of the layers of a perceptron, first to last."""
ON_POLICY = {
    "n_steps": "rollout", "ent_coef": "entropy_coef", "vf_coef": "value_coef", "gamma": "discount",
    "max_grad_norm": "clip_gradient", "normalize_advantage": "normalise_advantage", "learning_rate": "lr",
}  # fmt: skip
OFF_POLICY = {"gamma": "discount", "batch_size": "batch_size", "tau": "tau"}
RATES = {"learning_rate": ("actor_lr", "critic_lr")}
SETTINGS: dict[str, Mapping[str, Any]] = {
    "ppo": ON_POLICY | {"batch_size": "batch_size", "n_epochs": "epochs", "target_kl": "target_kl"},
    "a2c": ON_POLICY,
    "sac": OFF_POLICY | {"learning_rate": ("actor_lr", "critic_lr", "temperature_lr"),
                         "target_entropy": "target_entropy"},
    "td3": OFF_POLICY | RATES | {"policy_delay": "policy_delay", "target_policy_noise": "target_noise",
                                 "target_noise_clip": "noise_clip"},
    "ddpg": OFF_POLICY | RATES,
    "dqn": OFF_POLICY | {"learning_rate": "lr"},
    "qr_dqn": OFF_POLICY | {"learning_rate": "lr", "n_quantiles": "quantiles"},
}  # fmt: skip
"""Their settings and ours that mean the same, of each algorithm of ours."""


HIDDEN = {
    "ppo": "mlp_extractor.policy_net", "a2c": "mlp_extractor.policy_net", "sac": "actor.latent_pi", "td3": "actor.mu",
    "ddpg": "actor.mu", "dqn": "q_net.q_net", "qr_dqn": "quantile_net.quantile_net",
}  # fmt: skip
"""Places of the layers of the policy."""


@dataclass(frozen=True)
class Theirs:
    """Content of a zip file."""

    data: Mapping[str, Any]
    weights: Mapping[str, Tensor]
    variables: Mapping[str, Tensor]

    @classmethod
    def read(cls, file: Path | str) -> Theirs:
        """Read it; DataError if it is none of theirs, or holds what only unpickling could read."""
        try:
            with zipfile.ZipFile(file) as archive:
                data = json.loads(archive.read("data"))
                tensors = [
                    torch.load(io.BytesIO(archive.read(name)), map_location="cpu", weights_only=True)
                    for name in ("policy.pth", "pytorch_variables.pth")
                ]
            return cls(data, *tensors)
        except Exception as error:  # of many kinds: zipfile's, json's, PyTorch's
            raise DataError(f"{file} is no agent of Stable-Baselines3: {error}.") from error

    @property
    def algorithm(self) -> str:
        """The algorithm of ours."""
        names, starts = self.weights.keys(), {name.partition(".")[0] for name in self.weights}
        if "mlp_extractor" in starts:
            return "ppo" if "clip_range" in self.data else "a2c"
        if any(name.startswith("actor.latent_pi") for name in names) and "critic.qf1.0.weight" in names:
            return "sac"
        if any(name.startswith("actor.mu") for name in names):
            return "td3" if "critic.qf1.0.weight" in names else "ddpg"
        if found := {"q_net": "dqn", "quantile_net": "qr_dqn"}.get(min(starts, default="")):
            return found
        raise ConfigError(
            f"weights of {', '.join(sorted(starts))}: expected those of PPO, A2C, SAC, TD3, DDPG or DQN, or of "
            "sb3-contrib's MaskablePPO, RecurrentPPO or QRDQN, with perceptrons."
        )

    def layers(self, prefix: str, *last: str) -> Layers:
        """Return the linear layers ``prefix.0``, ``prefix.2`` ..., then the ``last`` ones by name."""
        places = (re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.weight", name) for name in self.weights)
        found = sorted(int(place[1]) for place in places if place)
        names = [*(f"{prefix}.{number}" for number in found), *last]
        return [(self.weights[f"{name}.weight"].float(), self.weights[f"{name}.bias"].float()) for name in names]

    @property
    def activation(self) -> str:
        """Between the layers, by its class's name; "" for that of the algorithm."""
        said = self.data.get("policy_kwargs")
        found = re.search(r"\.(\w+)'>", str(said.get("activation_fn", ""))) if isinstance(said, dict) else None
        return found[1] if found else ""


def import_sb3(file: Path | str, env: str | EnvLike, *, run: Path | str | None = None, **options: Any) -> Path:
    """Make a run folder of an agent of Stable-Baselines3 or sb3-contrib, for :func:`reverie.load` and ``init``.

    Args:
        file: the zip file of ``model.save``: PPO, A2C, SAC, TD3, DDPG, DQN, MaskablePPO, RecurrentPPO or QRDQN with
            perceptrons (``MlpPolicy``). Nothing of it is unpickled.
        env: its environment: an id of Gymnasium's registry, ``module:Id``, or a function that makes it.
        run: the new run folder; None: one below ``runs/``.
        **options: further settings of the run, by dotted path, such as ``**{"env.time_limit": 200}``.

    Raises:
        DataError: the file is none of theirs.
        ConfigError: its networks are none that we have, or do not fit the environment.
        RunError: the folder exists already.
        EnvError: the environment cannot be made.
    """
    theirs = Theirs.read(file)
    name = theirs.algorithm
    given = None if isinstance(env, str) else env
    asked = {"env.id": env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__), **options}
    config = ExperimentConfig(algo=_settings(theirs, name)).merge(asked)
    folder = RunFolder.at(run if run is not None else new_path(config.env.id, name))
    if folder.path.exists():
        raise RunError(f"{folder} exists already: choose the name of a new run folder.")
    factory = env_factory(config.env.merge({"num": 1, "vector": "serial"}), given)
    flat = make_flat(config.env, factory, 0, False)
    try:
        obs, action = flat.obs_spec, flat.action_spec
    finally:
        close_quietly(flat)
    learner = config.algo.build(obs, action, "cpu", config.seed)
    with torch.no_grad():
        WRITERS[name](theirs, learner, obs, action)
    Checkpoints(folder.checkpoints).save(int(theirs.data.get("num_timesteps", 0)), {"algo": learner})
    write_json(folder.spec, signature(obs, action))
    write_saved(folder.config, saved_settings(config, given))
    return folder.path


def _settings(theirs: Theirs, name: str) -> AlgorithmConfig:
    """Return our settings: what the file says in plain values, and the sizes of its networks."""
    data, changes = theirs.data, dict[str, Any]()
    if data.get("use_sde"):
        raise ConfigError("use_sde = True: its policy explores by the state, which ours does not.")
    for one, ours in SETTINGS[name].items():
        value = data.get(one)
        if isinstance(value, int | float):
            changes |= dict.fromkeys((ours,) if isinstance(ours, str) else ours, value)
    if isinstance(data.get("gae_lambda"), int | float):
        changes["value_estimator"] = f"gae({data['gae_lambda']})"
    hidden = theirs.layers(HIDDEN[name])[: None if name in ("ppo", "a2c", "sac") else -1]
    changes["networks.units"] = tuple(len(bias) for _, bias in hidden)
    activation = theirs.activation or ("Tanh" if name in ("ppo", "a2c") else "ReLU")
    if name in ("ppo", "a2c") and activation in ("Tanh", "ReLU"):
        changes["networks.activation"] = activation.lower()
    elif activation != "ReLU":
        raise ConfigError(f"activation_fn = {activation}: expected ReLU, or Tanh of PPO and A2C.")
    if "lstm_actor.weight_hh_l0" in theirs.weights:
        changes |= _memory(theirs, changes["rollout"])
    if name == "ppo" and (clip := re.search(r"val=([\d.e-]+)", str(data["clip_range"]))):
        changes["clip"] = float(clip[1])
    config: Any = algorithm_config(name)()
    made: AlgorithmConfig = config.merge(changes)
    return made


def _memory(theirs: Theirs, rollout: int) -> dict[str, Any]:
    """Return the settings of an LSTM; the rows of a sequence are ours, as theirs are whole episodes."""
    layers = sum(name.startswith("lstm_actor.weight_hh_l") for name in theirs.weights)
    return {
        "networks.memory": f"lstm({theirs.weights['lstm_actor.weight_hh_l0'].shape[1]}, {layers})",
        "networks.critic_memory": "own" if "lstm_critic.weight_hh_l0" in theirs.weights else "shared",
        "batch_length": math.gcd(16, rollout),
    }


# ---------------------------------------------------------------- weights


def put(mlp: nn.Module, layers: Layers, copy: int = 0) -> None:
    """Copy weights into a perceptron, or one of its copies; ConfigError if they are of another size."""
    assert isinstance(mlp, ReluMLP)
    theirs = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    if theirs != list(mlp.layout.widths):
        raise ConfigError(
            f"its networks have the widths {theirs}, and those for this environment {list(mlp.layout.widths)}: pass "
            "its own environment. Other networks than perceptrons cannot be read."
        )
    for (weight, bias), (w, b) in zip(mlp.layers(), layers, strict=True):
        weight[copy].copy_(w.T)
        bias[copy].copy_(b)


def _on_policy(theirs: Theirs, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    network: Any = learner.objective.network  # type: ignore[union-attr]
    actor = theirs.layers("mlp_extractor.policy_net", "action_net")
    (part,) = action.parts.values()
    if part.kind == "continuous":  # theirs act in the units of the environment
        low, high = (np.asarray(bound, np.float64) for bound in (part.low, part.high))
        half, middle = (torch.from_numpy(x).float() for x in (high / 2 - low / 2, high / 2 + low / 2))
        weight, bias = actor[-1]
        actor[-1] = (weight / half[:, None], (bias - middle) / half)
        network.actor.log_std.copy_(theirs.weights["log_std"] - half.log())
    put(network.actor.body, actor)
    for branch, lstm in ((network.actor, "lstm_actor"), (network.critic, "lstm_critic")):
        for number, cell in enumerate(branch.memory.cells if branch.memory is not None else ()):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(cell, kind).copy_(theirs.weights[f"{lstm}.{kind}_l{number}"])
    value = theirs.layers("mlp_extractor.value_net", "value_net")
    same = [len(bias) for _, bias in value] == list(network.critic.body.layout.widths[1:])
    if same and "critic.weight" not in theirs.weights:
        put(network.critic.body, value)
    else:
        logger.warning("its value network has other layers than its policy, which we lack: the value is learned anew")


def _q_values(theirs: Theirs, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    objective: Any = learner.objective
    for network, place in ((objective.network, ""), (objective.target_network.model, "_target")):
        name = "q_net" if "q_net.q_net.0.weight" in theirs.weights else "quantile_net"
        layers = theirs.layers(f"{name}{place}.{name}")
        if name == "quantile_net":  # theirs have the quantiles outside, the actions inside
            parts = (x.view(-1, action.width, *x.shape[1:]).transpose(0, 1) for x in layers[-1])
            weight, bias = (part.flatten(0, 1) for part in parts)
            layers[-1] = weight, bias
        put(network.body, layers)


def _actor_critic(theirs: Theirs, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    objective: Any = learner.objective
    if "actor.latent_pi.0.weight" in theirs.weights:
        heads = [theirs.layers("", f"actor.{name}")[0] for name in ("mu", "log_std")]
        weight, bias = (torch.cat(parts) for parts in zip(*heads, strict=True))
        put(objective.actor.body, [*theirs.layers("actor.latent_pi"), (weight, bias)])
        alpha = theirs.variables.get("log_ent_coef", theirs.variables.get("ent_coef_tensor", torch.ones(1)).log())
        objective.log_temperature.copy_(alpha.reshape(()))
    else:
        put(objective.actor.body, theirs.layers("actor.mu"))
        put(objective.target_actor.model.body, theirs.layers("actor_target.mu"))
    for critic, place in ((objective.critic, "critic"), (objective.target_critic.model, "critic_target")):
        for copy in range(critic.body.layout.copies):
            put(critic.body, theirs.layers(f"{place}.qf{copy}"), copy)


WRITERS: dict[str, Any] = {
    "ppo": _on_policy, "a2c": _on_policy, "sac": _actor_critic, "td3": _actor_critic, "ddpg": _actor_critic,
    "dqn": _q_values, "qr_dqn": _q_values,
}  # fmt: skip
"""What copies the weights, by our algorithm."""
