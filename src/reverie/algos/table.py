"""The algorithms by their names on the command line. Nothing is imported before it is used."""

from __future__ import annotations

from reverie.core.config import LearnerConfig
from reverie.core.errors import ConfigError, EnvError
from reverie.core.imports import check_module, is_importable
from reverie.core.registry import Entry, find, with_installed

DEFAULT_ALGORITHM = "dreamer_v3"
ENTRY_POINTS = "reverie.algos"
"""Group of entry points with which packages add algorithms; each refers to the class of the settings."""

ALGORITHMS = (
    Entry("dreamer_v3", "reverie.algos.dreamer_v3:DreamerV3Config", "world models"),
    Entry("r2dreamer", "reverie.algos.r2dreamer:R2DreamerConfig", "world models"),
    Entry("dreamer_v2", "reverie.algos.dreamer_v2:DreamerV2Config", "world models"),
    Entry("dreamer_v1", "reverie.algos.dreamer_v1:DreamerV1Config", "world models"),
    Entry("plan2explore_v3", "reverie.algos.plan2explore_v3:Plan2ExploreV3Config", "world models"),
    Entry("plan2explore", "reverie.algos.plan2explore:Plan2ExploreConfig", "world models"),
    Entry("plan2explore_v1", "reverie.algos.plan2explore_v1:Plan2ExploreV1Config", "world models"),
    Entry("tdmpc2", "reverie.algos.tdmpc2:TDMPC2Config", "world models"),
    Entry("bmpc", "reverie.algos.bmpc:BMPCConfig", "world models"),
    Entry("muzero", "reverie.algos.muzero:MuZeroConfig", "world models"),
    Entry("ppo", "reverie.algos.ppo:PPOConfig", "on-policy, any actions"),
    Entry("a2c", "reverie.algos.a2c:A2CConfig", "on-policy, any actions"),
    Entry("impala", "reverie.algos.impala:IMPALAConfig", "on-policy, any actions"),
    Entry("dqn", "reverie.algos.dqn:DQNConfig", "off-policy, discrete actions"),
    Entry("c51", "reverie.algos.c51:C51Config", "off-policy, discrete actions"),
    Entry("qr_dqn", "reverie.algos.qr_dqn:QRDQNConfig", "off-policy, discrete actions"),
    Entry("iqn", "reverie.algos.iqn:IQNConfig", "off-policy, discrete actions"),
    Entry("discrete_sac", "reverie.algos.discrete_sac:DiscreteSACConfig", "off-policy, discrete actions"),
    Entry("sac", "reverie.algos.sac:SACConfig", "off-policy, continuous actions"),
    Entry("tqc", "reverie.algos.tqc:TQCConfig", "off-policy, continuous actions"),
    Entry("crossq", "reverie.algos.crossq:CrossQConfig", "off-policy, continuous actions"),
    Entry("simba_v2", "reverie.algos.simba_v2:SimbaV2Config", "off-policy, continuous actions"),
    Entry("xqc", "reverie.algos.xqc:XQCConfig", "off-policy, continuous actions"),
    Entry("sac_ae", "reverie.algos.sac_ae:SACAEConfig", "off-policy, continuous actions"),
    Entry("td3", "reverie.algos.td3:TD3Config", "off-policy, continuous actions"),
    Entry("ddpg", "reverie.algos.ddpg:DDPGConfig", "off-policy, continuous actions"),
    Entry("bc", "reverie.algos.bc:BCConfig", "recorded data, any actions"),
    Entry("iql", "reverie.algos.iql:IQLConfig", "recorded data, any actions"),
    Entry(
        "decision_transformer", "reverie.algos.decision_transformer:DecisionTransformerConfig",
        "recorded data, any actions",
    ),
    Entry("gail", "reverie.algos.gail:GAILConfig", "recorded data, any actions"),
    Entry("gcbc", "reverie.algos.gcbc:GCBCConfig", "recorded data without rewards, any goal"),
    Entry("gcivl", "reverie.algos.gcivl:GCIVLConfig", "recorded data without rewards, any goal"),
    Entry("hiql", "reverie.algos.hiql:HIQLConfig", "recorded data without rewards, any goal"),
    Entry("gciql", "reverie.algos.gciql:GCIQLConfig", "recorded data without rewards, any goal"),
    Entry("crl", "reverie.algos.crl:CRLConfig", "recorded data without rewards, any goal"),
    Entry("qrl", "reverie.algos.qrl:QRLConfig", "recorded data without rewards, any goal"),
    Entry("lewm", "reverie.algos.lewm:LeWMConfig", "recorded data without rewards, any goal"),
    Entry("discrete_cql", "reverie.algos.discrete_cql:DiscreteCQLConfig", "recorded data, discrete actions"),
    Entry("discrete_bcq", "reverie.algos.discrete_bcq:DiscreteBCQConfig", "recorded data, discrete actions"),
    Entry("discrete_crr", "reverie.algos.discrete_crr:DiscreteCRRConfig", "recorded data, discrete actions"),
    Entry("cql", "reverie.algos.cql:CQLConfig", "recorded data, continuous actions"),
    Entry("rebrac", "reverie.algos.rebrac:ReBRACConfig", "recorded data, continuous actions"),
    Entry("td3_bc", "reverie.algos.td3_bc:TD3BCConfig", "recorded data, continuous actions"),
    Entry("fql", "reverie.algos.fql:FQLConfig", "recorded data, continuous actions"),
    Entry("bcq", "reverie.algos.bcq:BCQConfig", "recorded data, continuous actions"),
    Entry("crr", "reverie.algos.crr:CRRConfig", "recorded data, continuous actions"),
)  # fmt: skip


def algorithms() -> dict[str, Entry]:
    """Return the algorithms of this library and of installed packages, by name."""
    return with_installed(ALGORITHMS, ENTRY_POINTS)


def algorithm_config(name: str) -> type[LearnerConfig]:
    """Return the class of the settings of the algorithm called ``name``, or raise ConfigError; dashes are underscores.

    A class without a name is called ``module:Class``.
    """
    return find(algorithms(), name if ":" in name else name.replace("-", "_"), LearnerConfig, "algorithm")


def algorithm_name(config: type[LearnerConfig]) -> str:
    """Return the name of the algorithm with these settings; ``module:Class`` if it has none."""
    target = f"{config.__module__}:{config.__qualname__}"
    return next((entry.name for entry in algorithms().values() if entry.target == target), target)


def same_algorithm(a: str, b: str) -> bool:
    """Return whether two names refer to the same class, such as an entry point's name and its ``module:Class``."""
    if a.replace("-", "_") == b.replace("-", "_"):
        return True
    try:
        check_module(a, "a file")
        check_module(b, "a file")
        return algorithm_config(a) is algorithm_config(b)
    except (ConfigError, EnvError, ImportError, AttributeError):  # one of them no longer exists, or is not trusted
        return False


def is_importable_algorithm(config: type[LearnerConfig]) -> bool:
    """Return whether another process can import ``config``; false for classes defined in scripts or functions."""
    name = algorithm_name(config)
    if ":" in name and not is_importable(config.__module__):
        return False
    try:
        return algorithm_config(name) is config
    except ConfigError:
        return False
