"""sheeprl: `train` of its dreamer_v3_5 (the architecture of 2025), dreamer_v3 (of 2023), dreamer_v2 and dreamer_v1."""

from __future__ import annotations

import importlib
from collections.abc import Callable

import gymnasium as gym
import hydra
import numpy as np
import torch
from measure import ACTIONS, BATCH, EARLIER, HORIZON, LENGTH, SIZES, Sizes, Subject, actions, count, main
from omegaconf import OmegaConf
from sheeprl.utils.metric import MetricAggregator
from sheeprl.utils.utils import dotdict

STEPS = "algo.per_rank_batch_size={batch} algo.per_rank_sequence_length={length} algo.horizon={horizon}"
OBSERVED = "algo.cnn_keys.{coder}=[{image}] algo.mlp_keys.{coder}=[{vector}]"
LATENT = "algo.world_model.stochastic_size={stoch} algo.world_model.discrete_size={classes} algo.dense_units={units}"
CNN = {"dreamer_v3_5": "algo.cnn_channels_multiplier", "dreamer_v3": "algo.world_model.encoder.cnn_channels_multiplier"}


def earlier_overrides(name: str, s: Sizes) -> list[str]:
    """Those of DreamerV1 and V2."""
    world = "algo.world_model"
    out = STEPS.format(batch=BATCH, length=EARLIER, horizon=HORIZON).split()
    for coder in ("encoder", "decoder"):
        out += OBSERVED.format(coder=coder, image="rgb" * s.image, vector="state" * (not s.image)).split()
    out += [f"exp={name}", "env=dummy", "env.num_envs=1", f"algo.dense_units={s.units}", "algo.mlp_layers=4"]
    out += [f"{world}.stochastic_size={s.stoch}", f"{world}.encoder.cnn_channels_multiplier={s.depth}"]
    out += [f"{world}.recurrent_model.{key}" for key in (f"recurrent_state_size={s.deter}", f"dense_units={s.hidden}")]
    out += [f"{world}.{part}_model.hidden_size={s.hidden}" for part in ("transition", "representation")]
    return out + ([f"{world}.discrete_size={s.classes}", f"{world}.use_continues=True"] if s.classes > 1 else [])


def overrides(name: str, s: Sizes) -> list[str]:
    """The sizes as arguments of sheeprl's command line."""
    if name in ("dreamer_v1", "dreamer_v2"):
        return earlier_overrides(name, s)
    world = "algo.world_model"
    gru = f"{world}.recurrent_model"
    out = STEPS.format(batch=BATCH, length=LENGTH, horizon=HORIZON).split()
    for coder in ("encoder", "decoder"):
        out += OBSERVED.format(coder=coder, image="rgb" * s.image, vector="state" * (not s.image)).split()
    out += LATENT.format(stoch=s.stoch, classes=s.classes, units=s.units).split()
    out += [f"exp={name}", "env=dummy", "env.num_envs=1", f"{CNN[name]}={s.depth}"]
    if name == "dreamer_v3_5":
        return [*out, f"{gru}.recurrent_state_size={s.deter}", f"{gru}.hidden_size={s.hidden}"]
    out += ["algo.mlp_layers=3", f"{gru}.recurrent_state_size={s.dense_deter}"]
    out += [f"{world}.{part}_model.hidden_size={s.hidden}" for part in ("transition", "representation")]
    return out + [f"{world}.{part}_model.mlp_layers=1" for part in ("reward", "discount")]


def configured(name: str, s: Sizes) -> dotdict:
    """The configuration as sheeprl's command line makes it."""
    with hydra.initialize_config_module("sheeprl.configs", version_base="1.3"):
        cfg = hydra.compose("config", overrides=overrides(name, s))
    cfg = dotdict(OmegaConf.to_container(cfg, resolve=True))
    torch.set_float32_matmul_precision(cfg.float32_matmul_precision)
    torch.distributions.Distribution.set_default_validate_args(cfg.distribution.validate_args)
    return cfg


def space(s: Sizes) -> gym.spaces.Dict:
    """What is observed."""
    if s.image:
        return gym.spaces.Dict({"rgb": gym.spaces.Box(0, 255, (3, 64, 64), np.uint8)})
    return gym.spaces.Dict({"state": gym.spaces.Box(-np.inf, np.inf, (s.vector,), np.float32)})


def batch(s: Sizes, rows: int) -> dict[str, torch.Tensor]:
    """Noise, time first, with the keys of both variants."""
    lead = (rows, BATCH)
    obs = {"rgb": torch.randint(0, 256, (*lead, 3, 64, 64), dtype=torch.uint8)} if s.image else {}
    obs = obs or {"state": torch.randn(*lead, s.vector)}
    flags = {key: torch.zeros(*lead, 1) for key in ("terminated", "truncated", "is_first")}
    return obs | flags | {"actions": actions(s, *lead), "rewards": torch.randn(*lead, 1)}


class Setup:
    """What all variants build alike."""

    def __init__(self, name: str, setting: str):
        self.sizes = SIZES[setting]
        self.cfg = configured(name, self.sizes)
        self.fabric = hydra.utils.instantiate(self.cfg.fabric, _convert_="all")
        modules = (importlib.import_module(f"sheeprl.algos.{name}.{part}") for part in (name, "agent", "utils"))
        self.algo, agent, self.utils = modules
        self.dims = (ACTIONS,)
        built = agent.build_agent(self.fabric, self.dims, self.sizes.continuous, self.cfg, space(self.sizes))
        self.world, self.actor, self.critic, *self.targets, self.player = built
        self.meter = self._meter()

    def _meter(self) -> MetricAggregator:
        """Its default metrics."""
        metrics = self.cfg.metric.aggregator.metrics
        for key in set(metrics) - self.utils.AGGREGATOR_KEYS:
            metrics.pop(key)
        return hydra.utils.instantiate(self.cfg.metric.aggregator, _convert_="all")

    @property
    def moments(self) -> torch.nn.Module:
        """The returns' range of DreamerV3."""
        m = self.cfg.algo.actor.moments
        return self.utils.Moments(m.decay, m.max, m.percentile.low, m.percentile.high)

    def optimizers(self) -> list[torch.optim.Optimizer]:
        """One of each of world model, actor and critic."""
        algo = self.cfg.algo
        pairs = ((algo.world_model, self.world), (algo.actor, self.actor), (algo.critic, self.critic))
        return [self.optimizer(settings.optimizer, model) for settings, model in pairs]

    def optimizer(self, settings: dict, *modules: torch.nn.Module) -> torch.optim.Optimizer:
        """Its optimizer of these modules."""
        params = [p for module in modules for p in module.parameters()]
        return self.fabric.setup_optimizers(hydra.utils.instantiate(settings, params=params, _convert_="all"))

    def subject(self, update: Callable[[], object]) -> Subject:
        """All of it, with a way to update."""
        return Subject(count(self.world, self.actor, self.critic), update, self.acting)

    def acting(self, envs: int) -> Callable[[], object]:
        """Its player, from numpy observations on."""
        key = "rgb" if self.sizes.image else "state"
        obs = {key: batch(self.sizes, 1)[key][0, :envs].numpy()}
        self.player.num_envs = envs
        self.player.init_states()

        @torch.inference_mode()
        def act() -> object:
            shown = self.algo.prepare_obs(self.fabric, obs, cnn_keys=["rgb"], num_envs=envs)
            return self.player.get_actions(shown, mask=None)

        return act


def of_2025(setting: str) -> Subject:
    """One optimizer for all; latents of the replay begin the windows."""
    x = Setup("dreamer_v3_5", setting)
    optim = x.optimizer(x.cfg.algo.optimizer, x.world, x.actor, x.critic)
    data, moments, (target,) = batch(x.sizes, LENGTH + 1), x.moments, x.targets
    data["deter"] = torch.rand(LENGTH + 1, BATCH, x.sizes.deter).half()
    data["stoch"] = torch.zeros(LENGTH + 1, BATCH, x.sizes.stoch, dtype=torch.uint8)

    def update() -> None:
        models = (x.world, x.actor, x.critic, target)
        x.algo.train(x.fabric, x.cfg, *models, optim, moments, dict(data), x.meter, x.dims)
        x.algo.update_target_critic(x.critic, target, x.cfg.algo.critic.tau)

    return x.subject(update)


def of_2023(setting: str) -> Subject:
    """Three optimizers; every window begins from nothing."""
    x = Setup("dreamer_v3", setting)
    algo, continuous = x.cfg.algo, x.sizes.continuous
    optims, moments, (target,) = x.optimizers(), x.moments, x.targets
    data = {key: value.float() for key, value in batch(x.sizes, LENGTH).items()}

    def update() -> None:
        for mine, slow in zip(x.critic.module.parameters(), target.parameters(), strict=True):
            slow.data.copy_(algo.critic.tau * mine.data + (1 - algo.critic.tau) * slow.data)
        models = (x.world, x.actor, x.critic, target)
        x.algo.train(x.fabric, *models, *optims, dict(data), x.meter, x.cfg, continuous, x.dims, moments)

    return x.subject(update)


def earlier(name: str) -> Callable[[str], Subject]:
    """DreamerV1 or V2; the target critic of V2 moves too rarely to count."""

    def build(setting: str) -> Subject:
        x = Setup(name, setting)
        models, optims = (x.world, x.actor, x.critic, *x.targets), x.optimizers()
        data = {key: value.float() for key, value in batch(x.sizes, EARLIER).items()}
        dims = (x.dims,) if x.targets else ()
        return x.subject(lambda: x.algo.train(x.fabric, *models, *optims, dict(data), x.meter, x.cfg, *dims))

    return build


if __name__ == "__main__":
    variants = {"dreamer_v1": earlier("dreamer_v1"), "dreamer_v2": earlier("dreamer_v2")}
    main({"dreamer_v3_5": of_2025, "dreamer_v3": of_2023, **variants})
