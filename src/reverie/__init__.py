"""Reinforcement learning from experience: lived, recorded or imagined."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

from reverie.core.discover import version
from reverie.core.importing import when_imported
from reverie.core.waiting import spin_briefly

if TYPE_CHECKING:
    from reverie.agent.agent import Agent, AgentState
    from reverie.agent.dream_env import DreamEnv, DreamVectorEnv, dream_env
    from reverie.agent.dreaming import DreamReport, dream
    from reverie.agent.estimate import EstimateReport, PolicyEstimate, estimate
    from reverie.agent.extract import Extracted, extract
    from reverie.agent.imagining import Imagined, ModelState
    from reverie.agent.loading import load
    from reverie.agent.registry import register
    from reverie.algos.a2c import A2CConfig
    from reverie.algos.base import AlgorithmConfig
    from reverie.algos.bc import BCConfig
    from reverie.algos.bcq import BCQConfig
    from reverie.algos.cql import CQLConfig
    from reverie.algos.crr import CRRConfig
    from reverie.algos.ddpg import DDPGConfig
    from reverie.algos.discrete_bcq import DiscreteBCQConfig
    from reverie.algos.discrete_cql import DiscreteCQLConfig
    from reverie.algos.discrete_crr import DiscreteCRRConfig
    from reverie.algos.discrete_sac import DiscreteSACConfig
    from reverie.algos.dqn import DQNConfig
    from reverie.algos.dreamer_v1 import DreamerV1Config
    from reverie.algos.dreamer_v2 import DreamerV2Config
    from reverie.algos.dreamer_v3 import DreamerV3Config
    from reverie.algos.gail import GAILConfig
    from reverie.algos.iql import IQLConfig
    from reverie.algos.plan2explore import Plan2ExploreConfig
    from reverie.algos.plan2explore_v1 import Plan2ExploreV1Config
    from reverie.algos.plan2explore_v3 import Plan2ExploreV3Config
    from reverie.algos.ppo import PPOConfig
    from reverie.algos.qr_dqn import QRDQNConfig
    from reverie.algos.r2dreamer import R2DreamerConfig
    from reverie.algos.sac import SACConfig
    from reverie.algos.td3 import TD3Config
    from reverie.algos.td3_bc import TD3BCConfig
    from reverie.algos.tdmpc2 import TDMPC2Config
    from reverie.api import check_env, train, train_seeds, tune
    from reverie.datasets.dataset import DatasetConfig
    from reverie.envs.check import EnvReport, Finding
    from reverie.envs.config import EnvConfig
    from reverie.experiment import ExperimentConfig
    from reverie.run.evaluate import Evaluation
    from reverie.run.run import Result
    from reverie.search import TuneResult
    from reverie.seeds import SeedsResult

if "torch" not in sys.modules:
    spin_briefly()  # no effect once torch is imported

_HOMES = {
    "Agent": "reverie.agent.agent",
    "AgentState": "reverie.agent.agent",
    "load": "reverie.agent.loading",
    "register": "reverie.agent.registry",
    "DreamEnv": "reverie.agent.dream_env",
    "DreamVectorEnv": "reverie.agent.dream_env",
    "dream_env": "reverie.agent.dream_env",
    "DreamReport": "reverie.agent.dreaming",
    "dream": "reverie.agent.dreaming",
    "EstimateReport": "reverie.agent.estimate",
    "estimate": "reverie.agent.estimate",
    "Extracted": "reverie.agent.extract",
    "extract": "reverie.agent.extract",
    "Imagined": "reverie.agent.imagining",
    "ModelState": "reverie.agent.imagining",
    "A2CConfig": "reverie.algos.a2c",
    "AlgorithmConfig": "reverie.algos.base",
    "BCConfig": "reverie.algos.bc",
    "BCQConfig": "reverie.algos.bcq",
    "CQLConfig": "reverie.algos.cql",
    "CRRConfig": "reverie.algos.crr",
    "DDPGConfig": "reverie.algos.ddpg",
    "DiscreteBCQConfig": "reverie.algos.discrete_bcq",
    "DiscreteCQLConfig": "reverie.algos.discrete_cql",
    "DiscreteCRRConfig": "reverie.algos.discrete_crr",
    "DQNConfig": "reverie.algos.dqn",
    "DreamerV1Config": "reverie.algos.dreamer_v1",
    "DreamerV2Config": "reverie.algos.dreamer_v2",
    "DreamerV3Config": "reverie.algos.dreamer_v3",
    "GAILConfig": "reverie.algos.gail",
    "IQLConfig": "reverie.algos.iql",
    "Plan2ExploreConfig": "reverie.algos.plan2explore",
    "Plan2ExploreV1Config": "reverie.algos.plan2explore_v1",
    "Plan2ExploreV3Config": "reverie.algos.plan2explore_v3",
    "PPOConfig": "reverie.algos.ppo",
    "QRDQNConfig": "reverie.algos.qr_dqn",
    "R2DreamerConfig": "reverie.algos.r2dreamer",
    "SACConfig": "reverie.algos.sac",
    "DiscreteSACConfig": "reverie.algos.discrete_sac",
    "TD3Config": "reverie.algos.td3",
    "TD3BCConfig": "reverie.algos.td3_bc",
    "TDMPC2Config": "reverie.algos.tdmpc2",
    "check_env": "reverie.api",
    "train": "reverie.api",
    "train_seeds": "reverie.api",
    "tune": "reverie.api",
    "DatasetConfig": "reverie.datasets.dataset",
    "EnvConfig": "reverie.envs.config",
    "EnvReport": "reverie.envs.check",
    "Finding": "reverie.envs.check",
    "PolicyEstimate": "reverie.agent.estimate",
    "ExperimentConfig": "reverie.experiment",
    "Evaluation": "reverie.run.evaluate",
    "Result": "reverie.run.run",
    "SeedsResult": "reverie.seeds",
    "TuneResult": "reverie.search",
}
"""Module of each public name. Names are imported on first use, so that ``import reverie`` is quick."""

__all__ = [
    "A2CConfig",
    "Agent",
    "AgentState",
    "AlgorithmConfig",
    "BCConfig",
    "BCQConfig",
    "CQLConfig",
    "CRRConfig",
    "DDPGConfig",
    "DQNConfig",
    "DatasetConfig",
    "DiscreteBCQConfig",
    "DiscreteCQLConfig",
    "DiscreteCRRConfig",
    "DiscreteSACConfig",
    "DreamEnv",
    "DreamReport",
    "DreamVectorEnv",
    "DreamerV1Config",
    "DreamerV2Config",
    "DreamerV3Config",
    "EnvConfig",
    "EnvReport",
    "EstimateReport",
    "Evaluation",
    "ExperimentConfig",
    "Extracted",
    "Finding",
    "GAILConfig",
    "IQLConfig",
    "Imagined",
    "ModelState",
    "PPOConfig",
    "Plan2ExploreConfig",
    "Plan2ExploreV1Config",
    "Plan2ExploreV3Config",
    "PolicyEstimate",
    "QRDQNConfig",
    "R2DreamerConfig",
    "Result",
    "SACConfig",
    "SeedsResult",
    "TD3BCConfig",
    "TD3Config",
    "TDMPC2Config",
    "TuneResult",
    "check_env",
    "dream",
    "dream_env",
    "estimate",
    "extract",
    "load",
    "register",
    "train",
    "train_seeds",
    "tune",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _HOMES:
        raise AttributeError(f"module 'reverie' has no attribute '{name}'")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    own = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *own, "__version__"})


def _register() -> None:
    """Make dreams environments of Gymnasium: ``gymnasium.make("reverie/Dream-v0", run=RUN)``."""
    import gymnasium

    gymnasium.register(
        "reverie/Dream-v0",
        entry_point=f"{_HOMES['DreamEnv']}:DreamEnv",
        vector_entry_point=f"{_HOMES['DreamVectorEnv']}:DreamVectorEnv",
    )


when_imported("gymnasium", _register)
