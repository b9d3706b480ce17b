"""RLlib: `update` of its DreamerV3 learner (the architecture of 2023), with its metrics."""

from __future__ import annotations

import sys
from collections.abc import Callable

import gymnasium as gym
import numpy as np
import torch
from measure import ACTIONS, BATCH, HORIZON, LENGTH, SIZES, Sizes, Subject, actions, count, main
from ray.rllib.algorithms.dreamerv3 import DreamerV3Config
from ray.rllib.algorithms.dreamerv3.dreamerv3_catalog import DreamerV3Catalog
from ray.rllib.algorithms.dreamerv3.torch.dreamerv3_torch_learner import DreamerV3TorchLearner
from ray.rllib.algorithms.dreamerv3.torch.dreamerv3_torch_rl_module import DreamerV3TorchRLModule
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.core.learner.learner import Learner
from ray.rllib.policy.sample_batch import SampleBatch

# Loaded before the sizes are set, which each module has its own name for.
LOADED = (DreamerV3Catalog, DreamerV3TorchLearner, DreamerV3TorchRLModule)


def resize(s: Sizes) -> None:
    """RLlib knows sizes by name only (XS, S ...); these functions look them up, everywhere under their own names."""
    sizes = {
        "get_cnn_multiplier": s.depth, "get_dense_hidden_units": s.units, "get_gru_units": s.dense_deter,
        "get_num_z_categoricals": s.stoch, "get_num_z_classes": s.classes, "get_num_dense_layers": 3,
    }  # fmt: skip
    for name, module in list(sys.modules.items()):
        if name.startswith("ray.rllib.algorithms.dreamerv3"):
            for function in sizes.keys() & vars(module).keys():
                setattr(module, function, lambda model_size, override=None, size=sizes[function]: override or size)


def spaces(s: Sizes) -> tuple[gym.Space, gym.Space]:
    """Images are in [-1, 1], as RLlib's wrapper makes them."""
    shape = (64, 64, 3) if s.image else (s.vector,)
    act = gym.spaces.Box(-1, 1, (ACTIONS,), np.float32) if s.continuous else gym.spaces.Discrete(ACTIONS)
    return gym.spaces.Box(-1 if s.image else -np.inf, 1 if s.image else np.inf, shape, np.float32), act


def learner(s: Sizes) -> Learner:
    """Its learner, without any environment or worker."""
    resize(s)
    config = DreamerV3Config().training(
        model_size="XS", batch_size_B=BATCH, batch_length_T=LENGTH, horizon_H=HORIZON
    )  # fmt: skip
    config = config.environment(observation_space=spaces(s)[0], action_space=spaces(s)[1])
    return config.build_learner(spaces={DEFAULT_MODULE_ID: spaces(s)})


def batch(s: Sizes) -> SampleBatch:
    """Noise as its replay gives it."""
    lead = (BATCH, LENGTH)
    noise = np.random.default_rng(0)
    obs = noise.uniform(-1, 1, (*lead, *spaces(s)[0].shape)).astype(np.float32)
    flags = {key: np.zeros(lead, bool) for key in ("is_last", "is_terminated", "is_truncated")}
    first = np.zeros(lead, np.float32)
    first[:, 0] = 1
    rewards = noise.normal(size=lead).astype(np.float32)
    return SampleBatch(
        obs=obs, actions=actions(s, *lead).numpy(), rewards=rewards, is_first=first, **flags
    )  # fmt: skip


def acting(module: torch.nn.Module, s: Sizes) -> Callable[[int], Callable[[], object]]:
    """Its module, exploring."""

    def make(envs: int) -> Callable[[], object]:
        initial = module.get_initial_state()
        state = {key: value.detach().unsqueeze(0).repeat(envs, *[1] * value.dim()) for key, value in initial.items()}
        held = {"state": state}
        obs = torch.rand(envs, 1, *spaces(s)[0].shape)

        def act() -> object:
            shown = {"obs": obs, "state_in": held["state"], "is_first": torch.zeros(envs)}
            out = module.forward_exploration(shown)
            held["state"] = out["state_out"]
            return out

        return act

    return make


def of_2023(setting: str) -> Subject:
    """A learner and a batch."""
    s = SIZES[setting]
    made, data = learner(s), batch(s)
    module = made.module[DEFAULT_MODULE_ID].unwrapped()

    def update() -> object:
        return made.update(batch=SampleBatch(data).as_multi_agent(), timesteps={"num_env_steps_sampled_lifetime": 0})

    return Subject(count(module.world_model, module.actor, module.critic), update, acting(module, s))


if __name__ == "__main__":
    main({"dreamerv3": of_2023})
