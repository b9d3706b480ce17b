"""The authors' SAC-AE, from a checkout of denisyarats/pytorch_sac_ae on Python's path, with its replay.

Its settings are those of their ``train.py``. What it logs is dropped.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from types import SimpleNamespace
from unittest import mock

import torch
from rates import ACTIONS, IMAGE_TASKS, Update, image_experience, main, repeated

sys.modules["gym"] = SimpleNamespace(Wrapper=object)  # of its environments, which nothing here uses
SETTINGS = {
    "hidden_dim": 1024, "discount": 0.99, "init_temperature": 0.1, "alpha_lr": 1e-4, "alpha_beta": 0.5,
    "actor_lr": 1e-3, "actor_beta": 0.9, "actor_log_std_min": -10, "actor_log_std_max": 2, "actor_update_freq": 2,
    "critic_lr": 1e-3, "critic_beta": 0.9, "critic_tau": 0.01, "critic_target_update_freq": 2, "encoder_type": "pixel",
    "encoder_feature_dim": 50, "encoder_lr": 1e-3, "encoder_tau": 0.05, "decoder_type": "pixel", "decoder_lr": 1e-3,
    "decoder_update_freq": 1, "decoder_latent_lambda": 1e-6, "decoder_weight_lambda": 1e-7, "num_layers": 4,
    "num_filters": 32,
}  # fmt: skip


def build(name: str, variant: str) -> Update:
    """With its replay filled."""
    task, device = IMAGE_TASKS[name], torch.device("cpu")
    rows = image_experience(task)
    shape, width = (task.channels, task.side, task.side), (ACTIONS,)
    agent = importlib.import_module("sac_ae").SacAeAgent(shape, width, device, **SETTINGS)
    replay = importlib.import_module("utils").ReplayBuffer(shape, width, len(rows.obs), task.batch, device)
    for transition in zip(rows.obs, rows.action, rows.reward, rows.next_obs, rows.terminated, strict=True):
        obs, action, reward, next_obs, terminated = transition
        replay.add(obs.transpose(2, 0, 1), action, reward, next_obs.transpose(2, 0, 1), terminated)
    step, log = itertools.count(1), mock.MagicMock()
    return repeated(lambda: agent.update(replay, log, next(step)))


if __name__ == "__main__":
    main(build, warm_up=2)  # it records nothing, and its updates take seconds
