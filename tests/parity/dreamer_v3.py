"""Hold DreamerV3 against recordings of its authors' code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.algos.dreamer_v3 import DreamerV3, DreamerV3Config, WorldModelLosses, imagination_loss
from reverie.algos.imagination import Trajectory
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.kernel_dispatch import kernels_disabled
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.decoder import ImagePrediction, SymlogPrediction
from reverie.nn.distributions import JointDistribution

from .comparison import MISSING, Comparison

IMPLEMENTED: dict[str, Any] = {
    "contdisc": True, "ac_grads": False, "reward_grad": True, "repval_loss": True, "repval_grad": True,
    "dyn.rssm.absolute": False, "dyn.rssm.norm": "rms", "dyn.rssm.act": "silu", "enc.simple.outer": False,
    "enc.simple.strided": False, "enc.simple.symlog": True, "dec.simple.outer": False, "dec.simple.strided": False,
    "imag_loss.slowtar": False, "repl_loss.slowtar": False, "valnorm.impl": "none", "advnorm.impl": "none",
    "retnorm.impl": "perc", "retnorm.debias": False, "opt.wd": 0.0, "opt.schedule": "const",
}  # fmt: skip
"""Switches of the authors' configuration that we do not have, with the value that ours is equal to."""

METRICS = {
    "adv": "train/advantage", "adv_std": "train/advantage_std", "adv_mag": "train/advantage_magnitude",
    "rew": "train/reward", "con": "train/cont", "ret": "train/return", "ret_min": "train/return_min",
    "ret_max": "train/return_max", "ret_rate": "train/return_rate", "val": "train/value", "tar": "train/target",
    "slowval": "train/slow_value", "weight": "train/weight", "dyn_ent": "train/prior_entropy",
    "rep_ent": "train/posterior_entropy", "loss/dyn": "loss/dynamics", "loss/rep": "loss/representation",
    "loss/rew": "loss/reward", "loss/con": "loss/cont", "loss/policy": "loss/actor", "loss/value": "loss/critic",
    "loss/repval": "loss/replay_critic", "opt/loss": "opt/loss", "opt/grad_norm": "opt/grad_norm",
    "opt/grad_rms": "opt/grad_rms", "opt/update_rms": "opt/update_rms", "opt/param_rms": "opt/param_rms",
}  # fmt: skip
"""The authors' metric names to ours."""

COARSE = {"opt/update_rms": 2.0}
"""How much larger the errors of metrics may be without kernels. The definition computes the policy of all imagined
steps as one product, which rounds otherwise. The policy's first gradients nearly cancel, and the first steps of LaProp
are their signs."""

LOSSES = {v.removeprefix("loss/"): k.removeprefix("loss/") for k, v in METRICS.items() if k.startswith("loss/")}


class Recording:
    """A recording and the sizes it was made with."""

    def __init__(self, arrays: dict[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        self.arrays = arrays
        self.agent, self.variant = meta["agent"], meta["variant"]
        for name, value in IMPLEMENTED.items():
            if self.agent.get(name, value) != value:
                raise ConfigError(f"recorded with {name} = {self.agent[name]}; ours is equal to {value}.")
        self.context = int(self.agent["replay_context"])
        self.image_order = self._image_order()

    def _image_order(self) -> list[int] | None:
        """Our decoder's output channels in the authors' order: theirs by declaration, ours by sorted key."""
        images = {k: shape[-1] for k, (kind, shape, *_) in self.variant["obs"].items() if kind == "u8"}
        starts = dict(zip(sorted(images), np.cumsum([0, *(images[k] for k in sorted(images))]), strict=False))
        order = [int(starts[k]) + c for k in images for c in range(images[k])]
        return order if order != sorted(order) else None

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def obs_spec(self) -> dict[str, ObsPart]:
        """What was observed, from the recorded arrays and the declared kinds."""
        spec = {}
        for key, (kind, shape, *rest) in self.variant["obs"].items():
            shape = tuple(shape) if isinstance(shape, list) else ()
            if kind == "u8" and len(shape) == 3:
                spec[key] = ObsPart(kind="image", shape=shape, dtype="uint8")
            elif kind.startswith("f"):
                spec[key] = ObsPart(kind="vector", shape=shape, dtype="float32")
            else:
                spec[key] = self._categorical(key, shape, rest)
        return spec

    def _categorical(self, key: str, shape: tuple[int, ...], rest: list[Any]) -> ObsPart:
        shape = self.arrays[f"data/{key}"].shape[2:]
        count = int(np.prod(shape, dtype=int))
        head = self.arrays.get(f"param/dec/vec/{key}/logits/bias")
        classes = len(head) // count if head is not None else int(rest[0])
        return ObsPart(kind="categorical", shape=shape, dtype="int64", classes=(classes,) * count)

    def action_spec(self) -> ActionSpec:
        """What was done; sizes are read off the policy's last layers."""
        parts = {}
        for key in self.variant["act"]:
            logits = self.arrays.get(f"param/pol/head/{key}/logits/bias")
            if logits is None:
                parts[key] = ActionPart(kind="continuous", size=len(self.arrays[f"param/pol/head/{key}/mean/bias"]))
            else:
                count = int(np.prod(self.arrays[f"data/{key}"].shape[2:], dtype=int))
                parts[key] = ActionPart(kind="categorical", classes=(len(logits) // count,) * count)
        return ActionSpec(parts=parts)

    def config(self) -> DreamerV3Config:
        """Our configuration with the recorded sizes, the policy's unimix off as the authors have it."""
        a = self.agent
        values: dict[str, Any] = {
            "batch_size": a["batch_size"], "batch_length": a["batch_length"] - self.context,
            "replay_context": self.context, "horizon": a["imag_length"], "discount_horizon": a["horizon"],
            "lam": a["imag_loss.lam"], "entropy_coef": a["imag_loss.actent"], "free_nats": a["dyn.rssm.free_nats"],
            "slow_rate": a["slowvalue.rate"], "slow_update_interval": a["slowvalue.every"],
            "slow_regularizer": a["imag_loss.slowreg"],
            "imagine_last": a["imag_last"], "return_norm_rate": a["retnorm.rate"],
            "return_norm_limit": a["retnorm.limit"],
            "actor.unimix": 0.0, "actor.min_std": a["policy.minstd"], "actor.max_std": a["policy.maxstd"],
            "rssm.posterior_layers": a["dyn.rssm.obslayers"], "rssm.prior_layers": a["dyn.rssm.imglayers"],
            "rssm.recurrent_layers": a["dyn.rssm.dynlayers"], "decoder.blocks": a["dec.simple.bspace"],
        }  # fmt: skip
        for name in ("deter", "hidden", "stoch", "classes", "blocks", "unimix"):
            values[f"rssm.{name}"] = a[f"dyn.rssm.{name}"]
        for ours, theirs in (("encoder", "enc"), ("decoder", "dec")):
            for name in ("depth", "mults", "layers", "units", "kernel"):
                values[f"{ours}.{name}"] = a[f"{theirs}.simple.{name}"]
        for ours, theirs in (("reward", "rewhead"), ("cont", "conhead"), ("critic", "value"), ("actor", "policy")):
            for name in ("layers", "units", "bins"):
                if f"{theirs}.{name}" in a and hasattr(getattr(DreamerV3Config(), ours), name):
                    values[f"{ours}.{name}"] = a[f"{theirs}.{name}"]
        for name in ("lr", "agc", "eps", "beta1", "beta2", "warmup"):
            values[f"optim.{name}"] = a[f"opt.{name}"]
        scales = {"reconstruction": "rec", "reward": "rew", "cont": "con", "dynamics": "dyn", "representation": "rep",
                  "actor": "policy", "critic": "value", "replay_critic": "repval"}  # fmt: skip
        values |= {f"loss_scales.{ours}": a[f"loss_scales.{theirs}"] for ours, theirs in scales.items()}
        return DreamerV3Config().merge(values)

    def batch(self, spec: ActionSpec, obs: Mapping[str, ObsPart]) -> Batch:
        """The recorded batch as our rows."""
        data = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in self.under("data/").items()}
        actions = []
        for key in sorted(spec.parts):
            part, x = spec.parts[key], data[key]
            lead = x.shape[:2]
            if part.kind == "categorical":
                x = torch.nn.functional.one_hot(x.long().reshape(*lead, -1), part.classes[0])
            actions.append(x.reshape(*lead, -1).float())
        rows = data["reward"].shape[0]
        return Batch(
            obs={k: data[k].long() if obs[k].kind == "categorical" else data[k] for k in obs},
            action=torch.cat(actions, -1),
            reward=data["reward"],
            is_first=data["is_first"],
            is_last=data["is_last"],
            is_terminal=data["is_terminal"],
            weight=torch.ones(rows),
            index=torch.arange(rows),
            extras=self.latents(data) if self.context and "dyn/deter" in data else {},
        )

    @staticmethod
    def latents(data: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """The recorded latents as we store them: of z, one-hot, the number of the class, from 1 on."""
        one_hot = data["dyn/stoch"]
        classes = (one_hot.argmax(-1) + 1) * one_hot.any(-1)  # 0: none
        return {"deter": data["dyn/deter"], "classes": classes}

    def noise(self, path: str) -> float:
        """The largest gradient of the parameter's network, if its own is but the rounding error of that; else 0.

        When every action is its distribution's mean, the gradient of that mean is 0 in exact arithmetic. What is
        recorded then is rounding, 1e-7 of its neighbors.
        """
        network = {k: np.abs(v).max(initial=0.0) for k, v in self.under(f"grad/{path.split('/')[0]}/").items()}
        largest = float(max(network.values(), default=0.0))
        own = float(network.get(path.split("/", 1)[1], largest))
        return largest if 0 < own < 1e-6 * largest else 0.0

    def drift(self, path: str) -> float:
        """How far the optimizer may carry such a parameter: it makes steps of the learning rate out of any noise."""
        rates = [self.agent["opt.lr"] * min(1.0, i / max(1, self.agent["opt.warmup"])) for i in range(3)]
        return 2 * sum(rates) if self.noise(path) else 0.0

    def start(self, agent: DreamerV3, batch: Batch) -> tuple[Context, Batch]:
        """Where the rows start from. Without context the authors start from class 0, we from no action at all.

        Their replay makes the first row ``is_first``, which erases either; a recording need not.
        """
        context, rows = agent.split_context(batch)
        if self.context:
            return context, rows
        spec, action = self.action_spec(), context.action.clone()
        for key, cut in spec.slices().items():
            classes = spec.parts[key].classes
            firsts = [cut.start + sum(classes[:i]) for i in range(len(classes))]
            action[:, firsts] = 1.0
        return context._replace(action=action), rows


def argmax(probs: Tensor) -> Tensor:
    """In place of a sample: the likeliest class."""
    return probs.argmax(-1)


def _sequential(theirs: str, ours: str, norm: str) -> Iterator[tuple[str, str]]:
    """Pairs for a [Linear, norm] stored in a Sequential whose names end in ``.0`` and ``.1``."""
    index = int(ours.rsplit(".", 1)[1])
    base = ours.rsplit(".", 1)[0]
    yield f"{theirs}/kernel", f"{base}.{index}.weight"
    yield f"{theirs}/bias", f"{base}.{index}.bias"
    yield f"{norm}/scale", f"{base}.{index + 1}.weight"


def _layer(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    yield f"{theirs}/kernel", f"{ours}.weight"
    yield f"{theirs}/bias", f"{ours}.bias"


def _mlp(theirs: str, ours: str, layers: int) -> Iterator[tuple[str, str]]:
    for i in range(layers):
        yield from _sequential(f"{theirs}/linear{i}", f"{ours}.{2 * i}", f"{theirs}/norm{i}")


def _rssm(cfg: DreamerV3Config) -> Iterator[tuple[str, str]]:
    rssm = "world.rssm"
    for i, name in enumerate(("deter", "stoch", "action")):
        yield from _sequential(f"dyn/dynin{i}", f"{rssm}.in_{name}.0", f"dyn/dynin{i}norm")
    for i in range(cfg.rssm.recurrent_layers):
        yield from _layer(f"dyn/dynhid{i}", f"{rssm}.recurrent.{i}")
        yield f"dyn/dynhid{i}norm/scale", f"{rssm}.recurrent_norms.{i}.weight"
    yield from _layer("dyn/dyngru", f"{rssm}.gates")
    nets = (("obs", "posterior", cfg.rssm.posterior_layers), ("prior", "prior_net", cfg.rssm.prior_layers))
    for theirs, ours, layers in nets:
        linears = [f"dyn/{theirs}{i}" for i in range(layers)] + [f"dyn/{theirs}logit"]
        for i, path in enumerate(linears):
            yield from _layer(path, f"{rssm}.{ours}.first" if i == 0 else f"{rssm}.{ours}.rest.{2 * i - 1}")
            if i < layers:
                yield f"{path}norm/scale", f"{rssm}.{ours}.rest.{2 * i}.weight"


def _coders(agent: DreamerV3, cfg: DreamerV3Config) -> Iterator[tuple[str, str]]:
    encoder, decoder = agent.world.encoder, agent.world.decoder
    if encoder.vectors:
        for i in range(cfg.encoder.layers):
            yield from _sequential(f"enc/mlp{i}", f"world.encoder.mlp.{2 * i}", f"enc/mlp{i}norm")
        yield from _mlp("dec/mlp", "world.decoder.mlp", cfg.decoder.layers)
        for i, (key, part) in enumerate(decoder.vectors.items()):
            output = "logits" if part.kind == "categorical" else "pred"
            yield from _layer(f"dec/vec/{key}/{output}", f"world.decoder.outputs.{i}")
    if encoder.images:
        ours = "world.encoder.cnns.0"
        stages = len(encoder.cnns[0].convs)
        for i in range(stages):
            yield from _layer(f"enc/cnn{i}", f"{ours}.convs.{i}")
            yield f"enc/cnn{i}norm/scale", f"{ours}.norms.{i}.weight"
        ours = "world.decoder.cnns.0"
        yield from _layer("dec/sp0", f"{ours}.from_deter")
        yield from _sequential("dec/sp1", f"{ours}.from_stoch.0", "dec/sp1norm")
        yield from _layer("dec/sp2", f"{ours}.from_stoch.2")
        yield "dec/spnorm/scale", f"{ours}.norm.weight"
        for i in range(stages - 1):
            theirs = f"dec/conv{stages - 2 - i}"
            yield from _layer(theirs, f"{ours}.convs.{i}")
            yield f"{theirs}norm/scale", f"{ours}.norms.{i}.weight"
        yield from _layer("dec/imgout", f"{ours}.output")


def _heads(agent: DreamerV3, cfg: DreamerV3Config) -> Iterator[tuple[str, str]]:
    heads = (
        ("rew", "world.reward", cfg.reward.layers, "logits"), ("con", "world.cont", cfg.cont.layers, "logit"),
        ("val", "critic", cfg.critic.layers, "logits"), ("slowval", "slow_critic.model", cfg.critic.layers, "logits"),
    )  # fmt: skip
    for theirs, ours, layers, output in heads:
        yield from _mlp(f"{theirs}/mlp", f"{ours}.mlp", layers)
        yield from _layer(f"{theirs}/head/{output}", f"{ours}.{output}")
    yield from _mlp("pol/mlp", "actor.mlp", cfg.actor.layers)
    for i, key in enumerate(agent.actor.keys):
        part = agent.actor.parts[i].part
        for k, theirs in enumerate(["logits"] if part.kind == "categorical" else ["mean", "stddev"]):
            yield from _layer(f"pol/head/{key}/{theirs}", f"actor.parts.{i}.outputs.{k}")
    yield "retnorm/lo/value", "return_scale.low"
    yield "retnorm/hi/value", "return_scale.high"


def names(agent: DreamerV3) -> dict[str, str]:
    """The authors' parameter paths to our names."""
    return dict([*_rssm(agent.cfg), *_coders(agent, agent.cfg), *_heads(agent, agent.cfg)])


def to_theirs(ours: str, x: Tensor, image_order: list[int] | None) -> np.ndarray:
    """One of our parameters (or its gradient) in the authors' layout."""
    if x.ndim == 4:
        x = x.permute(2, 3, 1, 0)  # [out, in, kh, kw] -> [kh, kw, in, out]
    elif x.ndim >= 2:
        x = x.mT  # [out, in] -> [in, out], also in each block
    if image_order is not None and ".output." in ours:
        x = x[..., image_order]
    return x.detach().cpu().numpy()


def to_ours(ours: str, x: np.ndarray, image_order: list[int] | None) -> Tensor:
    """One of the authors' parameters in our layout."""
    if image_order is not None and ".output." in ours:
        x = x[..., np.argsort(image_order)]
    t = torch.from_numpy(np.array(x, order="C"))
    if t.ndim == 4:
        return t.permute(3, 2, 0, 1)
    return t.mT if t.ndim >= 2 else t


def compare_outputs(rec: Recording, agent: DreamerV3, batch: Batch, result: Comparison) -> Tensor:
    """Compare the forward pass; returns the total loss, with gradient. Leaves the return scale as it was."""
    scale = {k: v.clone() for k, v in agent.return_scale.state_dict().items()}
    draw_modes(agent)
    losses = agent.losses(*rec.start(agent, batch))
    total = agent.total(losses.terms)
    agent.return_scale.load_state_dict(scale)
    values = {"loss": total, **loss_values(losses)}
    with torch.no_grad():
        values |= world_values(agent, losses) | dream_values(agent, losses.dream)
    agent.return_scale.load_state_dict(scale)
    for name, theirs in rec.under("out/").items():
        # Straight-through one-hots carry a rounding error in the authors' code.
        theirs = np.round(theirs) if name == "stoch" else theirs
        result.add(f"out/{name}", values.get(name, MISSING), theirs, "output")
    return total


def mode(policy: JointDistribution) -> Tensor:
    """In place of a sampled action: the likeliest."""
    return policy.mode()


def draw_modes(agent: DreamerV3) -> None:
    """Let updates take the likeliest latents and actions, as the recorded ones."""
    agent.world.rssm.draw, agent.actor.draw = argmax, mode


def loss_values(losses: WorldModelLosses) -> dict[str, Any]:
    """The loss terms under the authors' names."""
    short = {k: k.removeprefix("reconstruction/") for k in losses.terms}
    return {f"loss/{LOSSES.get(short[k], short[k])}": term for k, term in losses.terms.items()}


def world_values(agent: DreamerV3, losses: WorldModelLosses) -> dict[str, Any]:
    """What the world model says of the recorded rows, under the authors' names. Logits are those before unimix."""
    latent, rssm = losses.post.latent, agent.world.rssm
    decoded, reward, cont = agent.world.predict(latent)
    shape = losses.post.stats.shape[-2:]
    joint = torch.cat([latent.deter, losses.post.embed], -1)
    return {
        "tokens": losses.post.embed, "deter": latent.deter, "stoch": latent.stoch,
        "prior_logit": rssm.prior_net(latent.deter).unflatten(-1, shape),
        "post_logit": rssm.posterior(joint).unflatten(-1, shape),
        "reward_pred": reward.mean(), "continue_prob": cont.prob(), "value_pred": agent.critic(latent.feature).mean(),
        **{f"recon/{key}": recorded_value(prediction) for key, prediction in decoded.items()},
    }  # fmt: skip


def recorded_value(prediction: Any) -> Tensor:
    """A prediction as the authors record it: unit pixels, squashed vectors, likeliest classes."""
    if isinstance(prediction, ImagePrediction):
        return prediction.pixels
    if isinstance(prediction, SymlogPrediction):
        return prediction.squashed.reshape(*prediction.squashed.shape[:-1], *prediction.shape)
    return prediction.dist.probs.argmax(-1)


def dream_values(agent: DreamerV3, dream: Trajectory) -> dict[str, Any]:
    """Imagined trajectories and their losses, under the authors' names. Updates the return scale."""
    policy = agent.actor(dream.feature)
    terms, returns, _ = imagination_loss(agent, dream, *agent.imagined_outcome(dream))
    out: dict[str, Any] = {
        "imag/reward": agent.world.reward(dream.feature).mean(),
        "imag/continue": agent.world.cont(dream.feature).prob(),
        "imag/value": agent.critic(dream.feature).mean(), "imag/slowvalue": agent.slow_critic(dream.feature).mean(),
        "imag/policy_entropy": policy.entropy(), "imag/policy_logp": policy.log_prob(dream.action),
        "imag/return": returns, "imag/loss_policy": terms["actor"], "imag/loss_value": terms["critic"],
    }  # fmt: skip
    for key, head in zip(agent.actor.keys, agent.actor.parts, strict=True):
        x = dream.action[..., agent.actor.slices[key]]
        if head.part.kind == "categorical":
            x = x.unflatten(-1, (len(head.part.classes), -1)).argmax(-1)
            x = x.squeeze(-1) if len(head.part.classes) == 1 else x
        out[f"imag/action/{key}"] = out[f"imag/{key}"] = x
    if len(agent.actor.keys) == 1:
        out["imag/action"] = x
    return {k: v.flatten(1, 2).transpose(0, 1) for k, v in out.items()}  # [H + 1, B, T, ...]; theirs [M, H + 1, ...]


def compare_gradients(rec: Recording, agent: DreamerV3, total: Tensor, result: Comparison) -> None:
    """The gradient of every parameter of the recording."""
    agent.zero_grad()
    total.backward()
    parameters, table = dict(agent.named_parameters()), names(agent)
    for path, theirs in rec.under("grad/").items():
        grad = parameters[table[path]].grad if path in table else None
        ours = MISSING if grad is None else to_theirs(table[path], grad, rec.image_order)
        result.add(f"grad/{path}", ours, theirs, "update", rec.noise(path))


def compare_updates(rec: Recording, agent: DreamerV3, batch: Batch, result: Comparison) -> None:
    """Three updates on the same batch: the metrics of each, then all that was updated."""
    draw_modes(agent)
    for step in (1, 2, 3):
        losses, metrics = agent.learn(*rec.start(agent, batch))
        for name, theirs in rec.under(f"step{step}/metric/").items():
            ours = metric(name, metrics, agent, step)
            if ours is not None:
                factor = COARSE.get(name, 1.0) if kernels_disabled() else 1.0
                result.add(f"step{step}/metric/{name}", ours, theirs, "update", factor=factor)
    state, table = agent.state_dict()["model"], names(agent)
    for path, theirs in rec.under("step3/param/").items():
        if path in table:
            ours = to_theirs(table[path], state[table[path]], rec.image_order)
            result.add(f"step3/param/{path}", ours, theirs, "update", rec.drift(path) / result.tolerance["update"])
        elif path != "slowval_count/value":  # counts updates; ours is moved at every one
            result.add(f"step3/param/{path}", MISSING, theirs, "update")
    packed = {"dyn/deter": losses.post.latent.deter, "dyn/stoch": losses.post.latent.stoch}
    for name, theirs in rec.under("step3/replay/").items():
        if name != "stepid":  # the authors' row handles; ours are Batch.index
            result.add(f"step3/replay/{name}", packed.get(name, MISSING), theirs, "update")


def metric(name: str, metrics: dict[str, Tensor], agent: DreamerV3, step: int) -> Any:
    """One of the authors' metrics, from ours; None for what we express otherwise."""
    if name == "opt/updates":
        return agent.optim.updates
    if name == "opt/param_count":
        return agent.optim.count
    if name.startswith("rand/"):  # the entropy between its least and greatest value; we log the entropy
        key = name.removeprefix("rand/")
        part = agent.actor.parts[agent.actor.keys.index(key)].part
        greatest = sum(float(np.log(c)) for c in part.classes)
        return metrics[f"train/entropy/{key}"] / greatest if part.kind == "categorical" else None
    if name.startswith("ent/"):
        return metrics[f"train/entropy/{name.removeprefix('ent/')}"]
    ours = METRICS.get(name) or f"loss/reconstruction/{name.removeprefix('loss/')}"
    return metrics.get(ours, MISSING)


def load(rec: Recording) -> DreamerV3:
    """Our agent with the recorded weights.

    Raises:
        ConfigError: a recorded parameter has no place in ours, or the other way round.
    """
    agent = rec.config().build(rec.obs_spec(), rec.action_spec())
    table = names(agent)
    state = agent.state_dict()["model"]
    recorded = {k: v for k, v in rec.under("param/").items() if k != "slowval_count/value"}
    strangers = sorted(set(recorded) ^ set(table)) + sorted(set(state) - set(table.values()))
    if strangers:
        raise ConfigError(f"parameters without a counterpart: {', '.join(strangers)}.")
    for path, ours in table.items():
        value = to_ours(ours, recorded[path], rec.image_order)
        if value.shape != state[ours].shape:
            raise ConfigError(f"{path} is {tuple(value.shape)}, ours ({ours}) is {tuple(state[ours].shape)}.")
        state[ours].copy_(value)
    return agent


def compare(arrays: dict[str, np.ndarray], meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of DreamerV3."""
    rec = Recording(arrays, meta)
    agent = load(rec)
    batch = rec.batch(rec.action_spec(), rec.obs_spec())
    compare_gradients(rec, agent, compare_outputs(rec, agent, batch, result), result)
    compare_updates(rec, load(rec), batch, result)
