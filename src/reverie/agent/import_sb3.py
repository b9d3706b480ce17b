"""Import agents of Stable-Baselines3 and sb3-contrib as runs from their zip files, without running code of the files.

Plain values of the JSON file ``data``, the spaces in it, and the weights, as tensors, are read.
"""

from __future__ import annotations

import base64
import contextlib
import io
import json
import math
import re
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from reverie.agent.sb3_pickles import ObsStatistics, read_pickle, read_space, read_statistics, seems_normalized
from reverie.algos.base import Algorithm
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, ReverieError, RunError
from reverie.core.files import check_expanded, open_zip, read_member, write_json
from reverie.core.logger import logger
from reverie.core.obs_codec import ObsCodec
from reverie.core.spaces import iter_leaves
from reverie.core.specs import BOUNDS, ActionSpec, ObsSpec, diff_bounds, diff_specs, spec_to_dict, without_mask
from reverie.datasets.source import reading
from reverie.envs.config import EnvLike
from reverie.envs.flat_env import make_flat
from reverie.envs.make import close_quietly, env_factory
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.saved_settings import saved_settings
from reverie.nn.batch_norm import BATCH_NORM_EPS, BatchRenormMLP
from reverie.nn.relu_mlp import ReluMLP
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, new_path, write_saved_config

Layers = list[tuple[Tensor, Tensor]]
"""Weights ``[outputs, inputs]`` and biases ``[outputs]`` of the layers of a perceptron, first to last."""
ON_POLICY = {
    "n_steps": "rollout", "ent_coef": "entropy_coef", "vf_coef": "value_coef", "gamma": "discount",
    "max_grad_norm": "max_grad_norm", "normalize_advantage": "normalize_advantage", "learning_rate": "lr",
}  # fmt: skip
OFF_POLICY = {"gamma": "discount", "batch_size": "batch_size", "tau": "tau"}
LEARNING_RATES = {"learning_rate": ("actor_lr", "critic_lr")}
ENTROPY: dict[str, Any] = OFF_POLICY | {
    "learning_rate": ("actor_lr", "critic_lr", "temperature_lr"), "target_entropy": "target_entropy",
}  # fmt: skip
SETTINGS: dict[str, Mapping[str, Any]] = {
    "ppo": ON_POLICY | {"batch_size": "batch_size", "n_epochs": "epochs", "target_kl": "target_kl"},
    "a2c": ON_POLICY,
    "sac": ENTROPY,
    "crossq": {name: value for name, value in ENTROPY.items() if name != "tau"} | {"policy_delay": "policy_delay"},
    "tqc": ENTROPY | {"top_quantiles_to_drop_per_net": "num_dropped_quantiles"},
    "td3": OFF_POLICY | LEARNING_RATES | {"policy_delay": "policy_delay", "target_policy_noise": "target_policy_noise",
                                 "target_noise_clip": "target_noise_clip"},
    "ddpg": OFF_POLICY | LEARNING_RATES,
    "dqn": OFF_POLICY | {"learning_rate": "lr"},
    "qr_dqn": OFF_POLICY | {"learning_rate": "lr", "n_quantiles": "num_quantiles"},
}  # fmt: skip
"""For each reverie algorithm: Stable-Baselines3 setting -> equivalent reverie setting."""


POLICY_LAYER_NAMES = {
    "ppo": "mlp_extractor.policy_net", "a2c": "mlp_extractor.policy_net", "sac": "actor.latent_pi",
    "tqc": "actor.latent_pi", "crossq": "actor.latent_pi", "td3": "actor.mu",
    "ddpg": "actor.mu", "dqn": "q_net.q_net", "qr_dqn": "quantile_net.quantile_net",
}  # fmt: skip
"""Name prefixes of the policy's layers."""

NOT_IMPORTED = {
    "TRPO": {"cg_max_steps"}, "CrossQ without batch_norm": {"ent_coef", "policy_delay"},
}  # fmt: skip
"""Algorithms whose weights have the names of another's: the settings that only they have, together."""
EXPECTED = (
    "expected PPO, A2C, SAC, TD3, DDPG or DQN, or sb3-contrib's MaskablePPO, RecurrentPPO, QRDQN, TQC or CrossQ, with "
    "MLPs. Import an agent of one of these."
)
FLATTENED = (
    "observation_space has {}, which MlpPolicy flattens; reverie's networks read images with convolutions. Import an "
    "agent that observes vectors."
)
NO_LAYERS = "net_arch = {}: reverie's networks have a hidden layer. Import an agent with one or more."
CUSTOM_POLICY = (
    "its policy is a class of the module {}: expected one of Stable-Baselines3. It acts differently here if this class "
    "changes more than the sizes of networks"
)
NORMALIZED = (
    "it was trained on observations that VecNormalize normalized, and acts wrongly on others: pass the file of their "
    "statistics (vecnormalize.pkl), --vecnormalize FILE"
)
OTHER_ENV = (
    "Pass the environment of its training, with its wrappers, in Python such as reverie.import_sb3(FILE, ENV, "
    '**{"env.wrappers": ["rescale_action(-1, 1)"]})'
)
EXTRACTORS = [f"<class 'stable_baselines3.common.torch_layers.{name}Extractor'>" for name in ("Flatten", "Combined")]
"""Features extractors that only concatenate the observations, unless they have weights, for images."""


@dataclass(frozen=True)
class SB3Archive:
    """Content of a zip file."""

    data: Mapping[str, Any]
    observation_space: spaces.Space[Any] | None
    """None if its class is the user's, and so is the action space."""
    action_space: spaces.Space[Any] | None
    weights: Mapping[str, Tensor]
    variables: Mapping[str, Tensor]
    read: set[str] = field(default_factory=set)
    """Names of the weights that were read."""

    @classmethod
    def load(cls, file: Path | str) -> SB3Archive:
        """Read a zip file; DataError if it is not a Stable-Baselines3 file, or requires unpickling.

        As in Stable-Baselines3, ".zip" can be left out.
        """
        file = file if Path(file).is_file() or not Path(f"{file}.zip").is_file() else f"{file}.zip"
        try:
            with open_zip(file) as opened, zipfile.ZipFile(opened) as zip_file:
                names = zip_file.namelist()
                if "data" not in names:
                    raise DataError(f"{file} has no settings of an agent: expected the file of model.save.")
                data = json.loads(read_member(file, zip_file, "data"))
                variables = "tensors.pth" if "tensors.pth" in names else "pytorch_variables.pth"  # before version 1.0
                weights, variables = (_read_tensors(file, zip_file.read(name)) for name in ("policy.pth", variables))
            pickles = (base64.b64decode(data[name][":serialized:"]) for name in ("observation_space", "action_space"))
            obs_space, action_space = map(read_space, pickles)
            return cls(data, obs_space, action_space, weights, variables)
        except ReverieError:
            raise
        except Exception as error:  # many types: from zipfile, json and PyTorch
            raise DataError(f"{file} is not a Stable-Baselines3 agent: {error}.") from error

    @property
    def algorithm(self) -> str:
        """The reverie algorithm."""
        if "actor.latent_pi.0.ra_mean" in self.weights:
            return "crossq"
        for name, settings in NOT_IMPORTED.items():
            if settings <= self.data.keys():
                raise ConfigError(f"this is an agent of {name}: {EXPECTED}")
        names, prefixes = self.weights.keys(), {name.partition(".")[0] for name in self.weights}
        if "mlp_extractor" in prefixes or {"action_net", "value_net"} <= prefixes:
            return "ppo" if "clip_range" in self.data else "a2c"
        if any(name.startswith(("actor.latent_pi", "actor.log_std")) for name in names):
            return "tqc" if "top_quantiles_to_drop_per_net" in self.data else "sac"
        if any(name.startswith("actor.mu") for name in names):
            is_ddpg = self.data.get("policy_delay") == 1 and self.data.get("target_noise_clip") == 0
            return "ddpg" if is_ddpg and self.num_critics == 1 else "td3"
        if algorithm := {"q_net": "dqn", "quantile_net": "qr_dqn"}.get(min(prefixes, default="")):
            return algorithm
        raise ConfigError(f"weights of {', '.join(sorted(prefixes))}: {EXPECTED}")

    @property
    def num_critics(self) -> int:
        """Number of critics of actions."""
        return len({match[1] for name in self.weights if (match := re.match(r"critic\.(qf\d+)\.", name))})

    @property
    def is_normalized(self) -> bool:
        """See ``seems_normalized``."""
        latest = {name: self.data[name] for name in ("_last_obs", "_last_original_obs") if self.data.get(name)}
        with contextlib.suppress(Exception):  # arrays of another version of NumPy, which only off-policy agents need
            latest = {name: read_pickle(base64.b64decode(value[":serialized:"])) for name, value in latest.items()}
        return seems_normalized({**self.data, **latest, "observation_space": self.observation_space})

    def tensor(self, name: str) -> Tensor:
        """Return the weights ``name``, and note that they were read."""
        self.read.add(name)
        return self.weights[name]

    def check_all_read(self) -> None:
        """Raise ConfigError if there are weights that were not read: without them, the agent can act differently."""
        if unread := sorted(self.weights.keys() - self.read):
            raise ConfigError(
                f"weights {unread[0]}: reverie's {self.algorithm} has none of that name. Expected the networks of "
                "MlpPolicy: import an agent without changes to them."
            )

    def layers(self, prefix: str, *last: str) -> Layers:
        """Return the linear layers ``prefix.0``, ``prefix.2`` ..., then the layers named ``last``."""
        matches = (re.fullmatch(rf"{re.escape(prefix)}\.(\d+)\.weight", name) for name in self.weights)
        numbers = sorted(int(match[1]) for match in matches if match)
        names = [*(f"{prefix}.{number}" for number in numbers), *last]
        layers = [(self.tensor(f"{name}.weight").float(), self.tensor(f"{name}.bias").float()) for name in names]
        if numbers and isinstance(space := self.observation_space, spaces.MultiBinary):
            (weight, bias), size = layers[0], math.prod(space.shape)
            layers[0] = torch.cat([_of_pairs(weight[:, :size].T).T, weight[:, size:]], 1), bias
        return layers

    def policy_kwarg(self, name: str) -> str:
        """Return the text of a class in ``policy_kwargs``, ``<class 'module.Name'>``; "" for the policy's default."""
        kwargs = self.data.get("policy_kwargs")
        return str(kwargs.get(name, "")) if isinstance(kwargs, dict) else ""

    @property
    def activation(self) -> str:
        """Class name of the activation; "" for the algorithm's default."""
        match = re.search(r"\.(\w+)'>", self.policy_kwarg("activation_fn"))
        return match[1] if match else ""

    def _note_policy(self) -> None:
        """Warn if the class of the policy is not Stable-Baselines3's."""
        policy = self.data.get("policy_class")
        module = str(policy.get("__module__", "")) if isinstance(policy, dict) else ""
        if module and module.partition(".")[0] not in ("stable_baselines3", "sb3_contrib"):
            logger.warning(CUSTOM_POLICY.format(module))

    def check_inputs(self) -> None:
        """Raise ConfigError unless the networks read the observations themselves, concatenated in reverie's order."""
        self._note_policy()
        chosen = self.policy_kwarg("features_extractor_class")
        if (eps := self.policy_kwarg("batch_norm_eps")) not in ("", str(BATCH_NORM_EPS)):
            raise ConfigError(f"batch_norm_eps = {eps}: expected {BATCH_NORM_EPS}.")
        weights = [name for name in self.weights if "features_extractor" in name]
        if weights or chosen not in ("", *EXTRACTORS):
            raise ConfigError(
                f"features extractor {chosen or weights[0]}: expected networks that read the observations themselves. "
                "Import an agent of MlpPolicy without features_extractor_class."
            )
        if (space := self.observation_space) is None:
            return
        is_plain = self.algorithm != "crossq" and "lstm_actor.weight_hh_l0" not in self.weights
        is_binary = any(isinstance(leaf, spaces.MultiBinary) for _, leaf in iter_leaves(space))
        if is_binary and not (is_plain and isinstance(space, spaces.MultiBinary)):
            raise ConfigError(
                "observation_space has a MultiBinary, which is only supported as the whole observation, without an "
                "LSTM and without CrossQ. Import an agent that observes Box or MultiDiscrete instead."
            )
        if isinstance(space, spaces.Dict) and [*space] != sorted(space):
            raise ConfigError(
                f"observation_space = Dict with the keys {', '.join(map(str, space))}: expected sorted keys, the order "
                "in which reverie concatenates. Import an agent that was trained on sorted keys."
            )


def _of_pairs(values: Tensor) -> Tensor:
    """Return inputs or outputs ``[n, ...]`` of numbers 0 or 1 as those of n pairs of classes, ``[2 n, ...]``."""
    return torch.stack([torch.zeros_like(values), values], 1).flatten(0, 1)


def _check_spaces(archive: SB3Archive, obs: ObsSpec, action: ActionSpec) -> None:
    """Compare the spaces of training with the environment's. Widths can be equal by chance.

    Off-policy agents are scaled to the bounds of actions, so that other bounds are only a warning.

    Raises:
        ConfigError: they differ, or observations are images.
    """
    if images := [part.shape for part in obs.values() if part.kind == "image"]:
        raise ConfigError(FLATTENED.format(f"images of shape {images[0]}"))
    if archive.observation_space is None or archive.action_space is None:
        return
    theirs = spec_to_dict(ObsCodec(archive.observation_space).spec, ActionCodec(archive.action_space).spec)
    ours, labels = spec_to_dict(without_mask(obs), action), ("the training", "this environment")
    without_bounds = {key: {k: x for k, x in part.items() if k not in BOUNDS} for key, part in theirs["action"].items()}
    required = theirs if archive.algorithm in ("ppo", "a2c") else {**theirs, "action": without_bounds}
    if lines := diff_specs(required, ours, labels):
        raise ConfigError(f"{'; '.join(lines)}. {OTHER_ENV}.")
    for line in (*diff_specs(theirs, ours, labels), *diff_bounds(theirs, ours, labels)):
        logger.warning(f"{line}. {OTHER_ENV}")


def _read_tensors(file: Path | str, content: bytes) -> Any:
    """Return the tensors in a file of PyTorch that was in ``file``, by name; RunError if they are too large."""
    stream = io.BytesIO(content)
    with open_zip(file, stream) if zipfile.is_zipfile(stream) else stream:
        stream.seek(0)
        tensors = torch.load(stream, map_location="cpu", weights_only=True)
    sizes = [x.numel() * x.element_size() for x in tensors.values() if isinstance(x, Tensor)]
    check_expanded(file, len(content), sum(sizes))  # an expanded tensor takes no memory until it is copied
    for name, x in tensors.items():
        if isinstance(x, Tensor) and (x.is_complex() or not x.isfinite().all()):
            raise DataError(f"{file}: {name} contains {x.dtype} values that are complex, infinite or NaN.")
    return tensors


def import_sb3(
    file: Path | str, env: str | EnvLike, *, run: Path | str | None = None, vecnormalize: Path | str | None = None,
    **options: Any,
) -> Path:  # fmt: skip
    """Import an agent of Stable-Baselines3 or sb3-contrib as a run, for :func:`reverie.load` and ``init_from``.

    Args:
        file: the zip file of ``model.save``: PPO, A2C, SAC, TD3, DDPG, DQN, MaskablePPO, RecurrentPPO, QRDQN, TQC or
            CrossQ with MLPs: ``MlpPolicy``, or ``MultiInputPolicy`` of vectors with sorted keys. None of its code runs.
        env: the agent's environment: an id in Gymnasium's registry, ``module:Id``, or a function that makes it.
        run: the new run folder; None: a new folder under ``runs/``.
        vecnormalize: for an agent trained with ``VecNormalize``, the file of its statistics, such as
            ``vecnormalize.pkl``. Only its arrays are read, and normalize the observations here.
        **options: other settings of the run, by dotted path, such as ``**{"env.max_episode_steps": 200}``.

    Raises:
        DataError: the file is not a Stable-Baselines3 agent.
        ConfigError: its networks are not supported, or do not match the environment.
        RunError: the folder already exists.
        EnvError: the environment cannot be made.
    """
    archive = SB3Archive.load(file)
    with reading(file):
        name = archive.algorithm
        settings, step = _settings(archive, name), int(archive.data.get("num_timesteps", 0))
    env_source = None if isinstance(env, str) else env
    overrides = {"env.id": env if isinstance(env, str) else getattr(env, "__name__", type(env).__name__), **options}
    statistics = None if vecnormalize is None else read_statistics(Path(vecnormalize))
    if vecnormalize is None and archive.is_normalized:
        logger.warning(NORMALIZED)
    clip = {} if statistics is None else {"algo.normalize_obs": f"running({statistics.clip})"}
    config = ExperimentConfig(algo=settings).merge(clip | overrides)
    folder = RunFolder.from_path(run if run is not None else new_path(config.env.id, name))
    if folder.path.exists():
        raise RunError(f"{folder} already exists: choose the name of a new run folder.")
    factory = env_factory(config.env.merge({"num": 1, "vectorization": "sync"}), env_source)
    flat = make_flat(config.env, factory, 0, False)
    try:
        obs, action = flat.obs_spec, flat.action_spec
    finally:
        close_quietly(flat)
    _check_spaces(archive, obs, action)
    learner = config.algo.build(obs, action, "cpu", config.seed)
    with torch.no_grad(), reading(file):
        WEIGHT_COPIERS[name](archive, learner, obs, action)
        if statistics is not None:
            _copy_statistics(statistics, learner)
    archive.check_all_read()
    Checkpoints(folder.checkpoints).save(step, {"algo": learner})
    write_json(folder.spec, spec_to_dict(obs, action))
    write_saved_config(folder.config, saved_settings(config, env_source))
    return folder.path


def _copy_statistics(statistics: ObsStatistics, learner: Algorithm) -> None:
    """Copy the statistics of observations into those of ``learner``; ConfigError if the shapes differ."""
    algorithm: Any = learner
    normalizer = algorithm.preprocess.normalizer
    keys = list(statistics.moments)
    if len(keys) != len(normalizer.keys) or (keys != [""] and sorted(keys) != normalizer.keys):
        raise ConfigError(f"its statistics are of {keys}: expected those of {normalizer.keys}, this environment's.")
    for key, part in zip(sorted(keys), normalizer.parts, strict=True):
        mean, var = statistics.moments[key]
        if mean.shape != part.shape or var.shape != part.shape:
            raise ConfigError(f"its statistics have shape {list(mean.shape)}: expected {list(part.shape)}.")
        rows = np.stack([np.full(mean.size, statistics.rows), mean.ravel(), var.ravel() * statistics.rows])
        part.moments.copy_(torch.from_numpy(rows))
        part.shift.copy_(torch.from_numpy(mean))
        part.factor.copy_(torch.from_numpy(1 / np.sqrt(var + statistics.epsilon)))


def _settings(archive: SB3Archive, name: str) -> AlgorithmConfig:
    """Return the reverie settings, from the file's plain values and the sizes of its networks."""
    data, changes = archive.data, dict[str, Any]()
    if data.get("use_sde"):
        raise ConfigError("use_sde = True: reverie does not support state-dependent exploration.")
    archive.check_inputs()
    for name_in_sb3, setting in SETTINGS[name].items():
        value = data.get(name_in_sb3)
        if isinstance(value, int | float):
            changes |= dict.fromkeys((setting,) if isinstance(setting, str) else setting, value)
    if isinstance(data.get("gae_lambda"), int | float):
        changes["value_estimator"] = f"gae({data['gae_lambda']})"
    changes["networks.units"] = _hidden_units(archive, name)
    activation = archive.activation or ("Tanh" if name in ("ppo", "a2c") else "ReLU")
    if name in ("ppo", "a2c") and activation in ("Tanh", "ReLU"):
        changes["networks.activation"] = activation.lower()
    elif activation != "ReLU":
        raise ConfigError(f"activation_fn = {activation}: expected ReLU, or Tanh for PPO and A2C.")
    if archive.num_critics:
        changes |= _critics(archive, name)
    if "lstm_actor.weight_hh_l0" in archive.weights:
        changes |= _memory(archive, math.gcd(changes["rollout"], changes["batch_size"]))
    if name == "ppo" and (clip := re.search(r"val=([\d.e-]+)", str(data["clip_range"]))):
        changes["clip_range"] = float(clip[1])
    config: Any = algorithm_config(name)()
    return _merge_valid(config, changes)


def _hidden_units(archive: SB3Archive, name: str) -> tuple[int, ...]:
    """Return the widths of the policy's hidden layers; ConfigError if it has none."""
    hidden = archive.layers(POLICY_LAYER_NAMES[name])[: None if name in ("ppo", "a2c", "sac", "tqc", "crossq") else -1]
    if not hidden:
        raise ConfigError(NO_LAYERS.format("[]"))
    return tuple(len(bias) for _, bias in hidden)


def _merge_valid(config: AlgorithmConfig, changes: Mapping[str, Any]) -> AlgorithmConfig:
    """Return ``config`` with ``changes``; values of training out of bounds, such as a final lr of 0, are left out."""
    with contextlib.suppress(ConfigError):
        return config.merge(changes)
    for name, value in changes.items():
        try:
            config = config.merge({name: value})
        except ConfigError as error:
            if name.startswith("networks."):
                raise
            logger.warning(f"the default is used, since {error}")
    return config


def _critics(archive: SB3Archive, name: str) -> dict[str, Any]:
    """Return the settings of critics of actions, and of a constant temperature."""
    *units, outputs = (len(bias) for _, bias in archive.layers("critic.qf0"))
    if not units:
        raise ConfigError(NO_LAYERS.format("dict(qf=[])"))
    changes: dict[str, Any] = {"networks.critic_units": tuple(units)}
    changes |= {"num_quantiles": outputs} if name == "tqc" else {}
    if name != "ddpg":
        changes["num_critics"] = archive.num_critics
    if "ent_coef_tensor" in archive.variables:
        changes["temperature_lr"] = 0.0
    return changes


def _memory(archive: SB3Archive, rows: int) -> dict[str, Any]:
    """Return the settings of an LSTM; the sequence length is reverie's, since Stable-Baselines3 uses whole episodes.

    ``rows``: a number that the sequence length must divide.
    """
    layers = sum(name.startswith("lstm_actor.weight_hh_l") for name in archive.weights)
    return {
        "networks.memory": f"lstm({archive.weights['lstm_actor.weight_hh_l0'].shape[1]}, {layers})",
        "networks.critic_memory": "separate" if "lstm_critic.weight_hh_l0" in archive.weights else "shared",
        "batch_length": max(length for length in range(1, 17) if rows % length == 0),
    }


# ---------------------------------------------------------------- weights


def _copy_weights(mlp: nn.Module, layers: Layers, copy: int = 0) -> None:
    """Copy weights into an MLP, or one of its copies; ConfigError if the sizes differ."""
    assert isinstance(mlp, ReluMLP | BatchRenormMLP)
    if isinstance(mlp, ReluMLP):
        expected, linear_layers = list(mlp.layout.widths), list(mlp.layers())
    else:
        linear_layers = [(layer.weight, layer.bias) for layer in mlp.layers]  # type: ignore[misc]
        expected = [linear_layers[0][0].shape[1], *(bias.shape[2] for _, bias in linear_layers)]
    widths = [layers[0][0].shape[1], *(len(bias) for _, bias in layers)]
    if widths != expected:
        raise ConfigError(
            f"its networks have the widths {widths}, but this environment needs {expected}: pass the agent's own "
            "environment. Only MLPs are supported."
        )
    for (weight, bias), (w, b) in zip(linear_layers, layers, strict=True):
        weight[copy].copy_(w.T)
        bias[copy].copy_(b)


def _on_policy(archive: SB3Archive, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    network: Any = learner.objective.network  # type: ignore[union-attr]
    actor = archive.layers("mlp_extractor.policy_net", "action_net")
    (part,) = action.parts.values()
    if part.kind == "continuous":  # Stable-Baselines3 acts in the units of the environment
        low, high = (np.asarray(bound, np.float64) for bound in (part.low, part.high))
        half, middle = (torch.from_numpy(x).float() for x in (high / 2 - low / 2, high / 2 + low / 2))
        weight, bias = actor[-1]
        actor[-1] = (weight / half[:, None], (bias - middle) / half)
        network.actor.log_std.copy_(archive.tensor("log_std") - half.log())
    elif isinstance(archive.action_space, spaces.MultiBinary) and len(actor[-1][1]) < action.width:
        # MaskablePPO has pairs
        weight, bias = (_of_pairs(values) for values in actor[-1])
        actor[-1] = weight, bias
    _copy_weights(network.actor.body, actor)
    for branch, lstm in ((network.actor, "lstm_actor"), (network.critic, "lstm_critic")):
        for number, cell in enumerate(branch.memory.cells if branch.memory is not None else ()):
            for kind in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                getattr(cell, kind).copy_(archive.tensor(f"{lstm}.{kind}_l{number}"))
    value = archive.layers("mlp_extractor.value_net", "value_net")
    same = [len(bias) for _, bias in value] == list(network.critic.body.layout.widths[1:])
    if same and "critic.weight" not in archive.weights:
        _copy_weights(network.critic.body, value)
    else:
        archive.read.update(("critic.weight", "critic.bias"))  # of the value network too
        logger.warning(
            "its value network has a different architecture from its policy, which reverie does not support: the "
            "value network is re-initialized"
        )


def _q_values(archive: SB3Archive, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    objective: Any = learner.objective
    for network, suffix in ((objective.network, ""), (objective.target_network.model, "_target")):
        name = "q_net" if "q_net.q_net.0.weight" in archive.weights else "quantile_net"
        layers = archive.layers(f"{name}{suffix}.{name}")
        if name == "quantile_net":  # Stable-Baselines3's order is quantiles, then actions
            parts = (x.view(-1, action.width, *x.shape[1:]).transpose(0, 1) for x in layers[-1])
            weight, bias = (part.flatten(0, 1) for part in parts)
            layers[-1] = weight, bias
        _copy_weights(network.body, layers)


def _actor_critic(archive: SB3Archive, learner: Algorithm, obs: ObsSpec, action: ActionSpec) -> None:
    objective: Any = learner.objective
    if archive.algorithm in ("sac", "tqc", "crossq"):
        heads = [archive.layers("", f"actor.{name}")[0] for name in ("mu", "log_std")]
        weight, bias = (torch.cat(parts) for parts in zip(*heads, strict=True))
        _copy_weights(objective.actor.body, [*archive.layers("actor.latent_pi"), (weight, bias)])
        alpha = archive.variables.get("log_ent_coef", archive.variables.get("ent_coef_tensor", torch.ones(1)).log())
        objective.log_temperature.copy_(alpha.reshape(()))
    else:
        _copy_weights(objective.actor.body, archive.layers("actor.mu"))
        _copy_weights(objective.target_actor.model.body, archive.layers("actor_target.mu"))
    critics = [(objective.critic, "critic")]
    if archive.algorithm == "crossq":
        _copy_norms(objective.actor.body, archive, "actor.latent_pi")
    else:
        critics.append((objective.target_critic.model, "critic_target"))
    for critic, prefix in critics:
        for copy in range(archive.num_critics):
            _copy_weights(critic.body, archive.layers(f"{prefix}.qf{copy}"), copy)
            if archive.algorithm == "crossq":
                _copy_norms(critic.body, archive, f"{prefix}.qf{copy}", copy)


def _copy_norms(mlp: BatchRenormMLP, archive: SB3Archive, prefix: str, copy: int = 0) -> None:
    """Copy CrossQ's batch norms ``prefix.0``, ``prefix.3`` ... into an MLP, or one of its copies."""
    names = {"scale": "scale", "shift": "bias", "mean": "ra_mean", "var": "ra_var"}
    norm: Any
    for number, norm in enumerate(mlp.norms):
        for name, name_in_sb3 in names.items():
            getattr(norm, name)[copy].copy_(archive.tensor(f"{prefix}.{3 * number}.{name_in_sb3}"))
        norm.updates.copy_(archive.tensor(f"{prefix}.{3 * number}.steps"))


WEIGHT_COPIERS: dict[str, Any] = {
    "ppo": _on_policy, "a2c": _on_policy, "sac": _actor_critic, "tqc": _actor_critic, "crossq": _actor_critic,
    "td3": _actor_critic, "ddpg": _actor_critic, "dqn": _q_values, "qr_dqn": _q_values,
}  # fmt: skip
"""The function that copies the weights, by reverie algorithm."""
