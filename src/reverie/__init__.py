"""Reinforcement learning from experience: collected, recorded or imagined.

Train an agent, evaluate it, and let it act::

    import gymnasium, reverie

    result = reverie.train("ppo", env="CartPole-v1", steps=50_000, run="runs/first")  # or "dreamer_v3", "sac", ...
    print(result.evaluation.score)
    agent = result.agent  # later: reverie.load("runs/first")

    env = gymnasium.make("CartPole-v1")
    obs, _ = env.reset()
    action, state = agent.predict(obs)  # pass the state to the next call
    obs, reward, terminated, truncated, _ = env.step(action)

:func:`check_env` checks a custom environment. On the command line: ``reverie --help``.
"""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING, Any

import reverie.core.early_interrupt  # noqa: F401 - before imports that take time
from reverie.core.discover import version
from reverie.core.imports import on_import
from reverie.core.openmp import limit_openmp_spinning

if TYPE_CHECKING:
    from reverie.agent.agent import Agent as Agent
    from reverie.agent.dream_env import DreamEnv as DreamEnv
    from reverie.agent.dream_env import DreamVectorEnv as DreamVectorEnv
    from reverie.agent.dream_env import dream_env as dream_env
    from reverie.agent.dream_report import DreamReport as DreamReport
    from reverie.agent.dream_report import dream as dream
    from reverie.agent.export import export as export
    from reverie.agent.extract import ExtractReport as ExtractReport
    from reverie.agent.extract import extract as extract
    from reverie.agent.import_sb3 import import_sb3 as import_sb3
    from reverie.agent.loading import load as load
    from reverie.agent.off_policy_evaluation import EstimateReport as EstimateReport
    from reverie.agent.off_policy_evaluation import estimate_return as estimate_return
    from reverie.agent.player import AgentState as AgentState
    from reverie.agent.policy_file import ExportReport as ExportReport
    from reverie.agent.return_estimate import ReturnEstimate as ReturnEstimate
    from reverie.agent.sharing import SharedAgent as SharedAgent
    from reverie.agent.sharing import list_agents as list_agents
    from reverie.agent.sharing import pull as pull
    from reverie.agent.sharing import push as push
    from reverie.agent.sharing import register_model as register_model
    from reverie.agent.world_model_inspector import ImaginedTrajectory as ImaginedTrajectory
    from reverie.agent.world_model_inspector import ModelState as ModelState
    from reverie.algos.a2c import A2CConfig as A2CConfig
    from reverie.algos.bc import BCConfig as BCConfig
    from reverie.algos.bcq import BCQConfig as BCQConfig
    from reverie.algos.bmpc import BMPCConfig as BMPCConfig
    from reverie.algos.c51 import C51Config as C51Config
    from reverie.algos.cql import CQLConfig as CQLConfig
    from reverie.algos.crossq import CrossQConfig as CrossQConfig
    from reverie.algos.crr import CRRConfig as CRRConfig
    from reverie.algos.ddpg import DDPGConfig as DDPGConfig
    from reverie.algos.decision_transformer import DecisionTransformerConfig as DecisionTransformerConfig
    from reverie.algos.discrete_bcq import DiscreteBCQConfig as DiscreteBCQConfig
    from reverie.algos.discrete_cql import DiscreteCQLConfig as DiscreteCQLConfig
    from reverie.algos.discrete_crr import DiscreteCRRConfig as DiscreteCRRConfig
    from reverie.algos.discrete_sac import DiscreteSACConfig as DiscreteSACConfig
    from reverie.algos.dqn import DQNConfig as DQNConfig
    from reverie.algos.dreamer_v1 import DreamerV1Config as DreamerV1Config
    from reverie.algos.dreamer_v2 import DreamerV2Config as DreamerV2Config
    from reverie.algos.dreamer_v3 import DreamerV3Config as DreamerV3Config
    from reverie.algos.fql import FQLConfig as FQLConfig
    from reverie.algos.gail import GAILConfig as GAILConfig
    from reverie.algos.impala import IMPALAConfig as IMPALAConfig
    from reverie.algos.iql import IQLConfig as IQLConfig
    from reverie.algos.iqn import IQNConfig as IQNConfig
    from reverie.algos.plan2explore import Plan2ExploreConfig as Plan2ExploreConfig
    from reverie.algos.plan2explore_v1 import Plan2ExploreV1Config as Plan2ExploreV1Config
    from reverie.algos.plan2explore_v3 import Plan2ExploreV3Config as Plan2ExploreV3Config
    from reverie.algos.ppo import PPOConfig as PPOConfig
    from reverie.algos.qr_dqn import QRDQNConfig as QRDQNConfig
    from reverie.algos.r2dreamer import R2DreamerConfig as R2DreamerConfig
    from reverie.algos.rebrac import ReBRACConfig as ReBRACConfig
    from reverie.algos.sac import SACConfig as SACConfig
    from reverie.algos.sac_ae import SACAEConfig as SACAEConfig
    from reverie.algos.settings import AlgorithmConfig as AlgorithmConfig
    from reverie.algos.simba_v2 import SimbaV2Config as SimbaV2Config
    from reverie.algos.td3 import TD3Config as TD3Config
    from reverie.algos.td3_bc import TD3BCConfig as TD3BCConfig
    from reverie.algos.tdmpc2 import TDMPC2Config as TDMPC2Config
    from reverie.algos.tqc import TQCConfig as TQCConfig
    from reverie.algos.xqc import XQCConfig as XQCConfig
    from reverie.api import check_env as check_env
    from reverie.api import train as train
    from reverie.api import train_seeds as train_seeds
    from reverie.api import tune as tune
    from reverie.core.errors import ReverieError as ReverieError
    from reverie.datasets.dataset import DatasetConfig as DatasetConfig
    from reverie.distributed.async_collector import AsyncCollector as AsyncCollector
    from reverie.distributed.compare import compare as compare
    from reverie.distributed.seeds import SeedsResult as SeedsResult
    from reverie.distributed.tune import TuneResult as TuneResult
    from reverie.envs.check import EnvReport as EnvReport
    from reverie.envs.config import EnvConfig as EnvConfig
    from reverie.envs.findings import Finding as Finding
    from reverie.experiment.config import ExperimentConfig as ExperimentConfig
    from reverie.log.aggregate import Comparison as Comparison
    from reverie.run.callback import Callback as Callback
    from reverie.run.callback import TrainingRun as TrainingRun
    from reverie.run.evaluate import Evaluation as Evaluation
    from reverie.run.result import TrainResult as TrainResult
    from reverie.viewer.launch import ViewerServer as ViewerServer
    from reverie.viewer.launch import view as view

if "torch" not in sys.modules:
    limit_openmp_spinning()  # no effect once torch is imported

_MODULES = {
    "agent.agent": "Agent",
    "agent.dream_env": "DreamEnv DreamVectorEnv dream_env",
    "agent.dream_report": "DreamReport dream",
    "agent.off_policy_evaluation": "EstimateReport estimate_return",
    "agent.export": "export",
    "agent.extract": "ExtractReport extract",
    "agent.world_model_inspector": "ImaginedTrajectory ModelState",
    "agent.loading": "load",
    "agent.player": "AgentState",
    "agent.policy_file": "ExportReport",
    "agent.return_estimate": "ReturnEstimate",
    "agent.import_sb3": "import_sb3",
    "agent.sharing": "SharedAgent list_agents pull push register_model",
    "algos.a2c": "A2CConfig",
    "algos.settings": "AlgorithmConfig",
    "algos.bc": "BCConfig",
    "algos.bcq": "BCQConfig",
    "algos.bmpc": "BMPCConfig",
    "algos.c51": "C51Config",
    "algos.cql": "CQLConfig",
    "algos.crossq": "CrossQConfig",
    "algos.crr": "CRRConfig",
    "algos.ddpg": "DDPGConfig",
    "algos.decision_transformer": "DecisionTransformerConfig",
    "algos.discrete_bcq": "DiscreteBCQConfig",
    "algos.discrete_cql": "DiscreteCQLConfig",
    "algos.discrete_crr": "DiscreteCRRConfig",
    "algos.discrete_sac": "DiscreteSACConfig",
    "algos.dqn": "DQNConfig",
    "algos.dreamer_v1": "DreamerV1Config",
    "algos.dreamer_v2": "DreamerV2Config",
    "algos.dreamer_v3": "DreamerV3Config",
    "algos.fql": "FQLConfig",
    "algos.gail": "GAILConfig",
    "algos.impala": "IMPALAConfig",
    "algos.iql": "IQLConfig",
    "algos.iqn": "IQNConfig",
    "algos.plan2explore": "Plan2ExploreConfig",
    "algos.plan2explore_v1": "Plan2ExploreV1Config",
    "algos.plan2explore_v3": "Plan2ExploreV3Config",
    "algos.ppo": "PPOConfig",
    "algos.qr_dqn": "QRDQNConfig",
    "algos.r2dreamer": "R2DreamerConfig",
    "algos.rebrac": "ReBRACConfig",
    "algos.sac": "SACConfig",
    "algos.sac_ae": "SACAEConfig",
    "algos.simba_v2": "SimbaV2Config",
    "algos.td3": "TD3Config",
    "algos.td3_bc": "TD3BCConfig",
    "algos.tdmpc2": "TDMPC2Config",
    "algos.tqc": "TQCConfig",
    "algos.xqc": "XQCConfig",
    "api": "check_env train train_seeds tune",
    "core.errors": "ReverieError",
    "datasets.dataset": "DatasetConfig",
    "envs.check": "EnvReport",
    "envs.findings": "Finding",
    "envs.config": "EnvConfig",
    "experiment.config": "ExperimentConfig",
    "log.aggregate": "Comparison",
    "run.callback": "Callback TrainingRun",
    "run.evaluate": "Evaluation",
    "run.result": "TrainResult",
    "distributed.async_collector": "AsyncCollector",
    "distributed.compare": "compare",
    "distributed.tune": "TuneResult",
    "distributed.seeds": "SeedsResult",
    "viewer.launch": "ViewerServer view",
}
"""Public names by module. They are imported on first use, so that ``import reverie`` is quick."""

_MODULE_OF = {name: f"reverie.{module}" for module, names in _MODULES.items() for name in names.split()}

__all__ = [*sorted(_MODULE_OF)]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return version()
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'reverie' has no attribute '{name}'")
    value = getattr(importlib.import_module(_MODULE_OF[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    dunders = [name for name in globals() if name.startswith("__")]
    return sorted({*__all__, *dunders, "__version__"})


def _register() -> None:
    """Make dreams environments of Gymnasium: ``gymnasium.make("reverie/Dream-v0", run=RUN)``."""
    import gymnasium

    gymnasium.register(
        "reverie/Dream-v0",
        entry_point=f"{_MODULE_OF['DreamEnv']}:DreamEnv",
        vector_entry_point=f"{_MODULE_OF['DreamVectorEnv']}:DreamVectorEnv",
    )


importlib.import_module("reverie.core.logger")  # from now on programs may change the logger
on_import("gymnasium", _register)
