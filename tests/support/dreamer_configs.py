"""Dreamers so small that an update takes no time, and a random batch for them."""

import torch

from reverie.algos.dreamer_v1 import DreamerV1Config
from reverie.algos.dreamer_v2 import DreamerV2Config
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.algos.plan2explore import Plan2ExploreConfig
from reverie.algos.plan2explore_v1 import Plan2ExploreV1Config
from reverie.algos.plan2explore_v3 import Plan2ExploreV3Config
from reverie.algos.r2dreamer import R2DreamerConfig, RepresentationConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step

TINY = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 3, "rssm.classes": 4, "rssm.blocks": 4, "encoder.units": 8,
    "encoder.depth": 2, "decoder.units": 8, "decoder.depth": 2, "reward.units": 8, "cont.units": 8, "actor.units": 8,
    "critic.units": 8, "batch_size": 3, "batch_length": 6, "horizon": 4, "optim.warmup": 0, "optim.lr": 1e-3,
}  # fmt: skip


OBS = {
    "image": ObsPart(kind="image", shape=(8, 8, 3), dtype="uint8"),
    "state": ObsPart(kind="vector", shape=(2,), dtype="float32"),
    "token": ObsPart(kind="categorical", shape=(2,), dtype="int64", classes=(3, 3)),
}


ACTIONS = {
    "discrete": ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(4,))}),
    "continuous": ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)}),
    "mixed": ActionSpec(
        parts={"b": ActionPart(kind="continuous", size=1), "a": ActionPart(kind="categorical", classes=(2, 3))}
    ),
}


def build(actions="discrete", config=None, device="cpu", **changes):
    config = config or DreamerV3Config()
    changes = TINY | {k.replace("__", "."): v for k, v in changes.items()}
    return config.merge(changes).build(OBS, ACTIONS[actions], device=device, seed=1)


def batch(agent, actions="discrete", seed=0):
    g = torch.Generator().manual_seed(seed)
    b, t = agent.window.batch, agent.window.rows
    action = torch.rand(b, t, ACTIONS[actions].width, generator=g)
    first = torch.rand(b, t, generator=g) < 0.2
    last = torch.cat([first[:, 1:], first[:, :1] & False], 1)
    extras = {}
    if "deter" in agent.extra_spec:
        extras = {
            "deter": torch.rand(b, t, 16, generator=g).to(getattr(torch, agent.extra_spec["deter"].dtype)),
            "classes": torch.randint(1, 5, (b, t, 3), generator=g).to(torch.uint8),
        }
    return Batch(
        obs={
            "image": torch.randint(0, 256, (b, t, 8, 8, 3), generator=g, dtype=torch.uint8),
            "state": torch.randn(b, t, 2, generator=g),
            "token": torch.randint(0, 3, (b, t, 2), generator=g),
        },
        action=action, reward=torch.randn(b, t, generator=g), is_first=first, is_last=last,
        is_terminal=last & (torch.rand(b, t, generator=g) < 0.5),
        weight=torch.ones(b), index=torch.arange(b), extras=extras,
    )  # fmt: skip


def shown(rows):
    """What environments show whose episodes begin with the first of these rows."""
    no = torch.zeros(rows.shape[0], dtype=torch.bool)
    obs = {k: v[:, 0] for k, v in rows.obs.items()}
    return Step(obs=obs, reward=torch.zeros(len(no)), is_first=~no, is_last=no, is_terminal=no)


def tensors(agent):
    """Every tensor of a learner by name."""
    return {f"{k}/{n}": x for k, part in agent.state_dict().items() for n, x in part.items()}


EARLIER = {
    "rssm.deter": 16, "rssm.hidden": 8, "rssm.stoch": 3, "encoder.units": (8,), "decoder.units": (8,),
    "encoder.depth": 2, "decoder.depth": 2, "encoder.kernels": (4, 3), "decoder.kernels": (4, 2), "batch_size": 3,
    "batch_length": 6, "horizon": 4, **{f"{part}.units": 8 for part in ("reward", "cont", "actor", "critic")},
}  # fmt: skip
"""Settings of a DreamerV1 or V2 so small that an update takes no time."""

CONFIGS = {
    "v1": DreamerV1Config(),
    "v1_cont": DreamerV1Config(learn_cont=True),
    "v2": DreamerV2Config().merge({"rssm.latent": "categorical(4)"}),
    "v2_gaussian": DreamerV2Config().merge(
        {"rssm.latent": "gaussian('sigmoid2')", "rssm.norm": "layer", "encoder.norm": "layer", "decoder.norm": "layer",
         "learn_cont": False, "actor.continuous": "tanh_normal(0.1, 0.0)", "kl": "balanced_kl(0.5, 1.0)"}
    ),
    "v2_mixed": DreamerV2Config().merge({"rssm.latent": "categorical(4)", "actor_gradient": "mixed(0.3)",
                                         "grad_heads": ("decoder",), "slow_update_interval": 2, "slow_rate": 0.5,
                                         "reward_norm.momentum": 0.9}),
    "pydreamer": DreamerV2Config().merge(
        {"rssm.latent": "categorical(4)", "rssm.cell": "normed_gates_gru", "rssm.layers": 2, "rssm.norm": "layer",
         "encoder.class_units": (8,), "encoder.outputs": 5, "encoder.encode_reward": True,
         "decoder.class_units": (), "decoder.class_unimix": 0.1, "reward_support": (-1.0, 0.0, 2.0),
         "posterior_samples": 2,
         "return_estimator": "next_reward", "slow_update_order": "before", "imagine_with": "same",
         "slow_update_interval": 2, "reward_transform": "tanh",
         "model_optim.implementation": "torch", "probe.heads": ("mlp('state', inputs='token', units=8, init='torch')",),
         "rssm.init": "split",
         "aux.weight": 0.5, "aux.head.units": 8, "aux.slow_update_interval": 2, "carry_state": True}
    ),
    "pydreamer_dynamics": DreamerV2Config().merge(
        {"rssm.latent": "gaussian('double_sigmoid')", "rssm.cell": "bare_layer_norm_gru",
         "return_estimator": "next_reward",
         "slow_update_order": "before", "imagine_with": "same", "actor_gradient": "dynamics(True)",
         "rssm.init": "split",
         "actor.continuous": "normal_tanh", "probe.gradients": True, "actor.init": "torch",
         "probe.heads": ("mlp('state', units=8)", "mlp('token', inputs='state', units=4)")}
    ),
    "p2e": Plan2ExploreConfig().merge({"rssm.latent": "categorical(4)", "ensemble.num_models": 2,
                                       "extrinsic_scale": 0.5,
                                       "ensemble.head.units": 8, "expl_reward_norm.momentum": 0.9}),
    "v1_p2e": Plan2ExploreV1Config(learn_cont=True, extrinsic_scale=0.5).merge({"ensemble.num_models": 2,
                                                                          "ensemble.head.units": 8}),
}  # fmt: skip


def build_p2e(name, actions="discrete", **changes):
    """Plan2Explore on the world model of another Dreamer: v1, v2 or v3."""
    if name != "v3":
        return build_earlier({"v1": "v1_p2e", "v2": "p2e"}[name], actions, **changes)
    config = Plan2ExploreV3Config(extrinsic_scale=0.5).merge({"ensemble.num_models": 2, "ensemble.head.units": 8})
    return build(actions, config, **changes)


R2 = {"r2_barlow": "barlow", "r2_infonce": "infonce", "r2_pro": "dreamerpro(7, 5, freeze=0)", "r2_decoder": "decoder"}
"""R2-Dreamer's losses."""


def build_r2(name, actions="discrete", **changes):
    return build(actions, R2DreamerConfig(representation=RepresentationConfig.parse(R2[name])), **changes)


def build_earlier(name, actions="discrete", device="cpu", **changes):
    changes = EARLIER | {k.replace("__", "."): v for k, v in changes.items()}
    return CONFIGS[name].merge(changes).build(OBS, ACTIONS[actions], device=device, seed=1)


V3 = {
    "v3": {}, "v3_bfloat16": {"precision": "bfloat16", "probe.heads": ("mlp('state', inputs='token', units=8)",)},
    "v3_none": {"replay_context": 0}, "v3_p2e": {}, "r2_barlow": {}, "r2_pro": {},
}  # fmt: skip
KINDS = {"v1": "mixed", "v2_gaussian": "continuous", "v2_mixed": "mixed", "v3": "mixed", "v3_bfloat16": "continuous"}


def made(name, device="cpu", **more):
    """A learner, and the kind of its actions."""
    kind = KINDS.get(name, "discrete")
    if name == "v3_p2e":
        return build_p2e("v3", kind, device=device, free_nats=0.0, **more), kind
    if name in R2:
        return build_r2(name, kind, device=device, free_nats=0.0, **more), kind
    if name in V3:
        return build(kind, device=device, free_nats=0.0, **V3[name] | more), kind
    free = {"kl": "free_nats(0.0)"} if name[:2] == "v1" else {}
    return build_earlier(name, kind, device=device, **free | more), kind
