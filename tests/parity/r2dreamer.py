"""Compare R2-Dreamer, with each of its representation losses, with a recording of its authors' code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor

from reverie.algos import dreamer_v3
from reverie.algos.dreamer_v3 import WorldModelLosses, imagination_loss, replay_value_loss
from reverie.algos.r2dreamer import Prototypes, R2Dreamer, R2DreamerConfig
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch
from reverie.nn.decoder import ImagePrediction
from reverie.nn.state_space import Latent
from reverie.objectives.returns import lambda_return

from .comparison import MISSING, Comparison
from .dreamer_v3 import draw_modes

KINDS = {"r2dreamer": "barlow", "infonce": "infonce", "dreamerpro": "dreamerpro", "dreamer": "decoder"}
SAME = {"norm": True, "act": "SiLU"}
"""Settings of theirs that we do not have, with the value that ours is equal to."""
FLAGS = ("is_first", "is_last", "is_terminal")
OTHERS = {*FLAGS, "reward", "action", "stoch0", "deter0", "aug_shift"}
LOSSES = {
    "dyn": "dynamics", "rep": "representation", "rew": "reward", "con": "cont", "policy": "actor", "value": "critic",
    "repval": "replay_critic", "temp": "temporal", "norm": "projection_norm",
}  # fmt: skip
METRICS = {
    "action_entropy": "train/entropy/action", "adv": "train/advantage", "con": "train/cont", "rew": "train/reward",
    "dyn_entropy": "train/prior_entropy", "rep_entropy": "train/posterior_entropy", "ret": "train/return",
    "slowval": "train/slow_value", "tar": "train/target", "val": "train/value", "weight": "train/weight",
}  # fmt: skip


class Recording:
    """The recording of one representation loss, and our learner with its weights."""

    def __init__(self, arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], kind: str) -> None:
        self.arrays, self.meta, self.kind, self.theirs = arrays, meta, kind, meta["config"][kind]
        for name, value in SAME.items():
            found: Any = self.theirs
            for part in name.split("."):
                found = found[part]
            if found != value:
                raise ConfigError(f"recorded with {name} = {found}; ours is equal to {value}.")
        batch = self.under("data/update0/")
        self.obs_spec = {key: observation(x) for key, x in batch.items() if key not in OTHERS}
        self.images = [key for key, part in self.obs_spec.items() if part.kind == "image"]

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Return the arrays below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    @property
    def action_spec(self) -> ActionSpec:
        """What was done."""
        dist, width = self.theirs["actor"]["dist"]["name"], self.arrays["data/update0/action"].shape[-1]
        if dist == "bounded_normal":
            return ActionSpec(parts={"action": ActionPart(kind="continuous", size=width)})
        shape = self.theirs["actor"]["shape"]
        return ActionSpec(parts={"action": ActionPart(kind="categorical", classes=tuple(shape))})

    def config(self, frozen: bool) -> R2DreamerConfig:
        """Return our settings; with ``frozen`` False, prototypes learn at once."""
        t, pro = self.theirs, self.theirs["dreamer_pro"]
        values: dict[str, Any] = {
            "batch_size": self.meta["B"], "batch_length": self.meta["T"], "replay_context": 1,
            "horizon": t["imag_horizon"], "discount_horizon": t["horizon"], "lam": t["lamb"],
            "entropy_coef": t["act_entropy"], "free_nats": t["kl_free"], "slow_rate": t["slow_target_fraction"],
            "slow_update_interval": t["slow_target_update"], "optim.agc_min_norm": t["pmin"],
            "optim.lr": t["lr"], "optim.agc": t["agc"], "optim.beta1": t["beta1"], "optim.beta2": t["beta2"],
            "optim.eps": t["eps"], "optim.warmup": t["warmup"], "decoder.blocks": t["decoder"]["cnn"]["bspace"],
            "rssm.classes": t["rssm"]["discrete"], "rssm.unimix": t["rssm"]["unimix_ratio"],
            "rssm.posterior_layers": t["rssm"]["obs_layers"], "rssm.prior_layers": t["rssm"]["img_layers"],
            "rssm.recurrent_layers": t["rssm"]["dyn_layers"],
        }  # fmt: skip
        values |= {f"rssm.{k}": t["rssm"][k] for k in ("deter", "hidden", "stoch", "blocks")}
        for part in ("encoder", "decoder"):
            cnn, mlp = t[part]["cnn"], t[part]["mlp"]
            values |= {f"{part}.depth": cnn["depth"], f"{part}.mults": cnn["mults"], f"{part}.units": mlp["units"]}
            values |= {f"{part}.kernel": cnn["kernel_size"], f"{part}.layers": mlp["layers"], f"{part}.min_side": 1}
        for part in ("reward", "cont", "actor", "critic"):
            values |= {f"{part}.layers": t[part]["layers"], f"{part}.units": t[part]["units"]}
        values |= {f"{part}.bins": t[part]["dist"]["bin_num"] for part in ("reward", "critic")}
        dist = t["actor"]["dist"]
        values |= {f"actor.{k}": dist[k] for k in ("min_std", "max_std") if k in dist}
        values["actor.unimix"] = dist.get("unimix_ratio", 0.0)
        scales = {**LOSSES, "recon": "reconstruction"}
        values |= {f"loss_scales.{scales.get(k, k)}": v for k, v in t["loss_scales"].items()}
        options = {
            "barlow": f"redundancy={t['r2dreamer']['lambd']}",
            "dreamerpro": f"num_prototypes={pro['num_prototypes']}, width={pro['proto_dim']},"
            f"temperature={pro['temperature']}, shift={int(pro['aug']['max_delta'])},"
            f"sinkhorn={pro['sinkhorn_eps']}, rounds={pro['sinkhorn_iters']},"
            f"rate={pro['ema_update_fraction']}, update_interval={pro['ema_update_every']}, skip={pro['warm_up']},"
            f"each_row={not pro['aug']['same_across_time']}, freeze={pro['freeze_prototypes_iters'] if frozen else 0}",
        }  # fmt: skip
        ours = KINDS[self.kind]
        values["representation"] = f"{ours}({options.get(ours, '')})"
        return R2DreamerConfig().merge(values)

    def load(self, frozen: bool = True) -> R2Dreamer:
        """Return our learner with the recorded weights.

        Raises:
            ConfigError: a parameter of either has no counterpart.
        """
        agent = self.config(frozen).build(self.obs_spec, self.action_spec)
        draw_modes(agent)
        state, table = agent.state_dict()["model"], self.names(agent)
        missing = sorted(set(state) - {*table.values(), "return_scale.low", "return_scale.high"})
        if missing := [name for name in missing if not name.endswith(".count")]:
            raise ConfigError(f"parameters without a counterpart: {', '.join(missing)}.")
        for path, ours in table.items():
            state[ours].copy_(self.to_ours(ours, self.arrays[f"param/{path}"]))
        low, high = self.arrays["param/return_ema"]
        state["return_scale.low"].fill_(float(low))
        state["return_scale.high"].fill_(float(high))
        return agent

    def names(self, agent: R2Dreamer) -> dict[str, str]:
        """Return the authors' parameter paths and our names."""
        return dict(self._names(agent))

    def _names(self, agent: R2Dreamer) -> Iterator[tuple[str, str]]:
        c, rssm, net = agent.cfg, "world.rssm", "rssm._deter_net"
        for i, name in enumerate(("deter", "stoch", "action")):
            yield from layer(f"{net}._dyn_in{i}.0", f"{rssm}.in_{name}.0", f"{net}._dyn_in{i}.1")
        for i in range(c.rssm.recurrent_layers):
            yield from layer(f"{net}._dyn_hid.dyn_hid_{i}", f"{rssm}.recurrent.{i}")
            yield f"{net}._dyn_hid.norm_{i}.weight", f"{rssm}.recurrent_norms.{i}.weight"
        yield from layer(f"{net}._dyn_gru", f"{rssm}.gates")
        for theirs, ours, count in (
            ("obs", "posterior", c.rssm.posterior_layers), ("img", "prior_net", c.rssm.prior_layers)
        ):  # fmt: skip
            for i in range(count + 1):
                path = f"rssm._{theirs}_net.{theirs}_net_"
                own = "first" if i == 0 else f"rest.{2 * i - 1}"
                yield from layer(f"{path}{i if i < count else 'logit'}", f"{rssm}.{ours}.{own}")
                if i < count:
                    yield f"{path}n_{i}.weight", f"{rssm}.{ours}.rest.{2 * i}.weight"
        yield from self._encoder(agent, "encoder", "world.encoder")
        heads = [("reward", "world.reward", "logits"), ("cont", "world.cont", "logit"), ("value", "critic", "logits")]
        heads += [("slow_value", "slow_critic.model", "logits")]
        for theirs, ours, output in heads:
            name, part = theirs.removeprefix("slow_"), {"reward": c.reward, "cont": c.cont}.get(theirs, c.critic)
            yield from mlp(f"{theirs}.mlp.layers.{name}", f"{ours}.mlp", part.layers)
            yield from layer(f"{theirs}.last", f"{ours}.{output}")
        yield from mlp("actor.mlp.layers.actor", "actor.mlp", c.actor.layers)
        if self.action_spec.parts["action"].kind == "categorical":
            yield from layer("actor.last", "actor.parts.0.outputs.0")
        if self.kind == "dreamer":
            yield from self._decoder(agent)
        elif self.kind == "dreamerpro":
            yield "prototypes", "representation.prototypes"
            yield from layer("obs_proj", "representation.of_embed")
            yield from layer("feat_proj", "representation.of_feature")
            yield from layer("ema_obs_proj", "representation.slow_of_embed.model")
            yield from self._encoder(agent, "ema_encoder", "representation.slow_encoder.model")
        else:
            yield "projector.w.weight", "representation.linear.weight"

    def _encoder(self, agent: R2Dreamer, theirs: str, ours: str) -> Iterator[tuple[str, str]]:
        for i in range(len(agent.cfg.encoder.mults)):
            yield from layer(f"{theirs}.encoders.0.layers.{4 * i}", f"{ours}.cnns.0.convs.{i}")
            yield f"{theirs}.encoders.0.layers.{4 * i + 2}.weight", f"{ours}.cnns.0.norms.{i}.weight"

    def _decoder(self, agent: R2Dreamer) -> Iterator[tuple[str, str]]:
        theirs, ours, stages = "decoder._cnn", "world.decoder.cnns.0", len(agent.cfg.decoder.mults)
        yield from layer(f"{theirs}.sp0", f"{ours}.from_deter")
        yield from layer(f"{theirs}.sp1.0", f"{ours}.from_stoch.0", f"{theirs}.sp1.1")
        yield from layer(f"{theirs}.sp2", f"{ours}.from_stoch.2")
        yield f"{theirs}.sp_norm.0.weight", f"{ours}.norm.weight"
        for i in range(stages - 1):
            yield from layer(f"{theirs}.layers.{4 * i + 1}", f"{ours}.convs.{i}")
            yield f"{theirs}.layers.{4 * i + 2}.weight", f"{ours}.norms.{i}.weight"
        yield from layer(f"{theirs}.layers.{4 * (stages - 1) + 1}", f"{ours}.output")

    # ------------------------------------------------------------------ layouts

    def embed(self, x: Tensor, back: bool = False) -> Tensor:
        """Put numbers of embeddings ``[..., E]``, theirs channel by channel, into our order, or ``back``."""
        channels = self.theirs["encoder"]["cnn"]["depth"] * self.theirs["encoder"]["cnn"]["mults"][-1]
        shape = (-1, channels) if back else (channels, -1)
        return x.unflatten(-1, shape).transpose(-1, -2).flatten(-2)

    def feature(self, x: Tensor, back: bool = False) -> Tensor:
        """Put numbers of features ``[..., F]``, theirs with z first, into our order, or ``back``."""
        first = self.theirs["rssm"]["deter"] if back else x.shape[-1] - self.theirs["rssm"]["deter"]
        return torch.cat([x[..., first:], x[..., :first]], -1)

    def turned(self, ours: str, x: Tensor, back: bool) -> Tensor:
        """Reorder the inputs and outputs of a parameter."""
        reads = (".mlp.0.weight", "representation.linear.weight", "of_feature.weight")
        if ours.endswith(reads) and "encoder" not in ours:
            x = self.feature(x, back)
        if ours == "representation.linear.weight":
            x = self.embed(x.T, back).T
        if "of_embed" in ours and ours.endswith("weight"):
            x = self.embed(x, back)
        if ours == "world.rssm.posterior.first.weight":
            deter, rest = x.split([self.theirs["rssm"]["deter"], x.shape[1] - self.theirs["rssm"]["deter"]], 1)
            x = torch.cat([deter, self.embed(rest, back)], 1)
        return x

    def to_ours(self, ours: str, x: np.ndarray) -> Tensor:
        """Return one of the authors' parameters in our layout."""
        t = torch.from_numpy(np.array(x))
        return self.turned(ours, t.permute(2, 0, 1) if t.ndim == 3 else t, False)

    def to_theirs(self, ours: str, x: Tensor) -> Tensor:
        """Return one of our parameters, or its gradient, in the authors' layout."""
        x = self.turned(ours, x.detach(), True)
        return x.permute(1, 2, 0) if x.ndim == 3 else x

    def rows(self, agent: R2Dreamer, number: int) -> tuple[Context, Batch]:
        """Return a recorded batch. Their actions led to their row, ours are taken after it."""
        data = {k: torch.from_numpy(np.array(v)) for k, v in self.under(f"data/update{number}/").items()}
        after = torch.cat([data["action"][:, 1:], torch.zeros_like(data["action"][:, :1])], 1)
        flags = {k: data[k][..., 0] for k in FLAGS}
        count = len(after)
        context = Context(Latent(data["deter0"], data["stoch0"]), data["action"][:, 0])
        if isinstance(agent.representation, Prototypes):
            views = self.views(agent.representation, data["aug_shift"])
            agent.representation.augment = views  # type: ignore[method-assign]
        return context, Batch(
            obs={k: data[k] for k in self.obs_spec}, action=after, reward=data["reward"][..., 0], **flags,
            weight=torch.ones(count), index=torch.arange(count), extras={},
        )  # fmt: skip

    def views(self, net: Prototypes, shift: Tensor) -> Callable[[Batch], Batch]:
        """Return a function from rows to both views, with images interpolated as theirs: whole pixels, but rounded."""

        def of(rows: Batch) -> Batch:
            move = net.cfg.shift - shift.view(2 * rows.shape[0], -1, 2)
            net.image_shifts = lambda *_: move  # type: ignore[method-assign]
            twice = Prototypes.augment(net, rows)
            for key in self.images:
                image = torch.cat([rows.obs[key], rows.obs[key]])
                every = shift.view(2 * rows.shape[0], -1, 2).expand(-1, rows.shape[1], 2)
                smooth = interpolated(image.float() / 255, every, net.cfg.shift) * 255
                if (smooth - twice.obs[key].float()).abs().max() > 0.01:
                    raise ConfigError(f"ours shifts {key} otherwise than theirs.")
                twice.obs[key] = smooth  # type: ignore[index]
            return twice

        return of

    # ------------------------------------------------------------------ what is compared

    def compare(self, result: Comparison) -> None:
        """Compare all tensors of this kind."""
        agent = self.load(frozen=False)
        context, rows = self.rows(agent, 0)
        agent.slow_critic.update()
        agent.representation.before_update()
        losses = agent.losses(context, rows)
        found = self.described(agent, losses, rows, context)
        agent.zero_grad()
        agent.total(losses.terms).backward()
        table, parameters = self.names(agent), dict(agent.named_parameters())
        grads = {path: parameters[ours].grad for path, ours in table.items() if ours in parameters}
        for path, theirs in self.under(f"grad/{self.kind}/").items():
            grad = grads.get(path)
            mine = MISSING if grad is None else self.to_theirs(table[path], grad)
            result.add(f"grad/{self.kind}/{path}", mine, theirs, "output", self.noise(path))
        found["agc_scale"] = self.clips(agent, grads)
        for name, theirs in self.under(f"out/{self.kind}/update0/").items():
            if name.split("/")[0] not in ("loss", "return_ema", "lr_used", "metric"):
                result.add(f"out/{self.kind}/update0/{name}", found.get(name, MISSING), theirs, "output")
        self.compare_updates(result)

    def noise(self, path: str) -> float:
        """Return 1e-4 of the largest gradient of all, if this one is the rounding error of a gradient that is 0."""
        prefix = f"grad/{self.kind}/"
        largest = max(float(np.abs(x).max()) for x in self.under(prefix).values())
        return 1e-4 * largest if float(np.abs(self.arrays[prefix + path]).max()) < 1e-7 * largest else 0.0

    def clips(self, agent: R2Dreamer, grads: Mapping[str, Tensor | None]) -> Tensor:
        """Return the factor of adaptive clipping of each tensor."""
        table, state = self.names(agent), dict(agent.named_parameters())
        out = []
        for path in self.meta["param_order"][f"{self.kind}/with_grad"]:
            grad, limit = (
                grads.get(path),
                agent.cfg.optim.agc * state[table[path]].norm().clamp(min=agent.cfg.optim.agc_min_norm),
            )
            factor = torch.tensor(torch.nan) if grad is None else 1 / (grad.norm() / limit).clamp(min=1)
            frozen = path == "prototypes" and self.theirs["dreamer_pro"]["freeze_prototypes_iters"] > 1
            out.append(torch.zeros(()) if frozen else factor)  # they had no gradient left when gradients were clipped
        return torch.stack(out)

    def compare_updates(self, result: Comparison) -> None:
        """Take three updates; compare losses after each, and parameters after the first and the last."""
        agent = self.load()
        for number in range(3):
            context, rows = self.rows(agent, number)
            losses, metrics = agent.learn(context, rows)
            offset, scale = agent.return_scale()
            found = {f"loss/{k}": metrics.get(f"loss/{LOSSES.get(k, k)}", MISSING) for k in (*LOSSES, *losses.terms)}
            found |= {f"loss/{k}": metrics.get(f"loss/reconstruction/{k}", MISSING) for k in self.obs_spec}
            found |= {f"metric/{k}": metrics[v] for k, v in METRICS.items()}
            found["metric/con"] = found["metric/con"] / agent.cfg.discount
            found["metric/adv_std"] = losses_std(metrics, losses)
            found |= {"loss/total": metrics["opt/loss"], "lr_used": metrics["opt/lr"]}
            found |= {"imag_ret_offset": offset, "imag_ret_scale": scale}
            found["return_ema"] = torch.stack([agent.return_scale.low, agent.return_scale.high])
            for name, theirs in self.under(f"out/{self.kind}/update{number}/").items():
                if number or name.split("/")[0] in ("loss", "return_ema", "lr_used", "metric"):
                    result.add(f"out/{self.kind}/update{number}/{name}", found.get(name, MISSING), theirs, "output")
            if number in (0, 2):
                self.compare_parameters(agent, f"step{number + 1}/{self.kind}/", result)

    def compare_parameters(self, agent: R2Dreamer, prefix: str, result: Comparison) -> None:
        """Compare all parameters and targets."""
        table, state = self.names(agent), agent.state_dict()["model"]
        for path, theirs in self.under(prefix).items():
            if path == "return_ema":
                mine: Any = torch.stack([agent.return_scale.low, agent.return_scale.high])
            else:
                mine = self.to_theirs(table[path], state[table[path]]) if path in table else MISSING
            result.add(f"{prefix}{path}", mine, theirs, "update")

    @torch.no_grad()
    def described(self, agent: R2Dreamer, losses: WorldModelLosses, rows: Batch, context: Context) -> dict[str, Any]:
        """Return the tensors of the forward pass under the authors' names."""
        return self.representation(agent, losses, rows, context) | (
            self.world(agent, losses) | self.dream(agent, losses) | self.replayed(agent, losses, rows)
            if self.kind == "r2dreamer" else {}
        )  # fmt: skip

    def world(self, agent: R2Dreamer, losses: WorldModelLosses) -> dict[str, Any]:
        """What the world model says of the rows."""
        post, world = losses.post, agent.world
        shape, deter = post.stats.shape[-2:], post.latent.deter
        return {
            "embed": self.embed(post.embed, True), "post_stoch": post.latent.stoch, "post_deter": deter,
            "post_logit": world.rssm.posterior(torch.cat([deter, post.embed], -1)).unflatten(-1, shape),
            "prior_logit": world.rssm.prior_net(deter).unflatten(-1, shape),
            "reward_logits": world.reward.logits(world.reward.mlp(post.latent.feature)),
            "cont_logit": world.cont.logit(world.cont.mlp(post.latent.feature)),
            "dyn_loss": losses.terms["dynamics"], "rep_loss": losses.terms["representation"],
        }  # fmt: skip

    def dream(self, agent: R2Dreamer, losses: WorldModelLosses) -> dict[str, Any]:
        """What is imagined; theirs has windows first."""
        dream, scale = losses.dream, {k: v.clone() for k, v in agent.return_scale.state_dict().items()}
        reward, cont = agent.imagined_outcome(dream)
        _, returns, _ = imagination_loss(agent, dream, reward, cont)
        agent.return_scale.load_state_dict(scale)
        offset, spread = agent.return_scale()
        policy = agent.actor(dream.feature)
        value = agent.critic(dream.feature)
        out = {
            "feat": self.feature(dream.feature, True), "action": dream.action,
            "policy_logits": log_probs(agent, dream.feature),
            "value_logits": agent.critic.logits(agent.critic.mlp(dream.feature)),
        }  # fmt: skip
        lone = {
            "cont": agent.world.cont(dream.feature).prob(), "weight": cont.cumprod(0), "value": value.mean(),
            "slow_value": agent.slow_critic(dream.feature).mean(), "reward": reward, "ret": returns,
            "adv": (returns - value.mean()[:-1]) / spread, "entropy": policy.entropy()[:-1],
            "logpi": policy.log_prob(dream.action)[:-1],
        }  # fmt: skip
        out |= {k: v.unsqueeze(-1) for k, v in lone.items()}
        tensors: dict[str, Any] = {f"imag_{k}": v.flatten(1, 2).transpose(0, 1) for k, v in out.items()}
        return tensors | {"imag_ret_offset": offset, "imag_ret_scale": spread}

    def replayed(self, agent: R2Dreamer, losses: WorldModelLosses, rows: Batch) -> dict[str, Any]:
        """The critic on the rows themselves."""
        scale = {k: v.clone() for k, v in agent.return_scale.state_dict().items()}
        _, returns, _ = imagination_loss(agent, losses.dream, *agent.imagined_outcome(losses.dream))
        agent.return_scale.load_state_dict(scale)
        feature, boot, targets = losses.post.latent.feature, returns[0], list[Tensor]()

        def noted(*args: Tensor) -> Tensor:
            targets.append(lambda_return(*args))
            return targets[-1]

        with mock.patch.object(dreamer_v3, "lambda_return", noted):
            replay_value_loss(agent, rows, feature, boot)
        return {
            "replay_feat": self.feature(feature, True), "replay_boot": boot.unsqueeze(-1),
            "replay_value": agent.critic(feature).mean().unsqueeze(-1),
            "replay_slow_value": agent.slow_critic(feature).mean().unsqueeze(-1),
            "replay_ret": targets[0].unsqueeze(-1),
            "replay_value_logits": agent.critic.logits(agent.critic.mlp(feature)),
        }  # fmt: skip

    def representation(
        self, agent: R2Dreamer, losses: WorldModelLosses, rows: Batch, context: Context
    ) -> dict[str, Any]:
        """What the representation loss is made of."""
        net, post = agent.representation, losses.post
        if self.kind == "dreamer":
            decoded, *_ = agent.world.predict(post.latent)
            image = decoded[self.images[0]]
            assert isinstance(image, ImagePrediction)
            return {"recon_image_00": image.pixels[0, 0]}
        if isinstance(net, Prototypes):
            return self.prototypes(agent, net, rows, context)
        x = self.embed(net.linear(post.latent.feature.flatten(0, 1)), True)
        y = self.embed(post.embed.flatten(0, 1), True)
        if self.kind == "infonce":
            logits = x @ y.T
            return {"x1": x, "logits": logits if self.raw_logits else logits - logits.max(1, keepdim=True)[0]}
        a, b = ((z - z.mean(0)) / (z.std(0) + 1e-8) for z in (x, y))
        c = a.T @ b / len(x)
        own = c.diagonal()
        off = (c - torch.diag(own)).square().sum()
        return {"x1": x, "x1_norm": a, "x2_norm": b, "c": c, "invariance_loss": (own - 1).square().sum(),
                "redundancy_loss": off}  # fmt: skip

    @property
    def raw_logits(self) -> bool:
        """Whether the largest logit of each row was not yet subtracted."""
        return bool(np.abs(self.arrays["out/infonce/update0/logits"].max(1)).max() > 1e-6)

    def prototypes(self, agent: R2Dreamer, net: Prototypes, rows: Batch, context: Context) -> dict[str, Any]:
        """The scores of DreamerPro; theirs has prototypes first."""
        views = net.augment(rows)
        start = Context(context.latent.map(lambda x: torch.cat([x, x])), torch.cat([context.action, context.action]))
        seen = agent.world.observe(views, start)
        embed, feature = net.of_embed(seen.embed), net.of_feature(seen.latent.feature)
        slow = net.slow_of_embed(net.slow_encoder(dict(views.obs), agent.world.dtype))
        unit = torch.nn.functional.normalize
        scores, image = net.scores(slow), views.obs[self.images[0]].float() / 255

        def log_p(x: Tensor) -> Tensor:
            return (net.scores(x) / net.cfg.temperature).log_softmax(-1).permute(2, 0, 1)

        return {
            "prototypes": net.prototypes, "embed_aug": self.embed(seen.embed, True), "aug_image_0": image[0, 0],
            "aug_image_last": image[-1, -1], "post_deter_aug": seen.latent.deter, "post_stoch_aug": seen.latent.stoch,
            "obs_proj": unit(embed, dim=-1).flatten(0, 1), "obs_norm": embed.norm(dim=-1),
            "feat_norm": feature.norm(dim=-1), "ema_proj": unit(slow, dim=-1), "obs_logits": log_p(embed),
            "feat_logits": log_p(feature), "ema_scores": scores.permute(2, 0, 1),
            "ema_targets": net.targets(scores).permute(2, 0, 1),
        }  # fmt: skip


def interpolated(image: Tensor, shift: Tensor, pad: int) -> Tensor:
    """Return images ``[B, T, H, W, C]`` moved by ``shift`` ``[B, T, 2]`` (x, y) by bilinear interpolation."""
    (b, t, h, w, _), size = image.shape, [n + 2 * pad for n in image.shape[2:4]]
    padded = torch.nn.functional.pad(image.flatten(0, 1).permute(0, 3, 1, 2), (pad,) * 4, "replicate")
    y, x = (torch.linspace(-1 + 1 / n, 1 - 1 / n, n)[:m] for n, m in zip(size, (h, w), strict=True))
    at = torch.stack([x.expand(h, w), y[:, None].expand(h, w)], -1)  # [H, W, 2]
    by = shift.reshape(b * t, 1, 1, 2).float() * 2.0 / torch.tensor([float(size[1]), float(size[0])])
    moved = torch.nn.functional.grid_sample(padded, at + by, align_corners=False)
    return moved.permute(0, 2, 3, 1).view(b, t, h, w, -1)


def log_probs(agent: R2Dreamer, feature: Tensor) -> Tensor:
    """Return ln p of the actions, unimix included."""
    (policy,) = agent.actor(feature).parts.values()
    return policy.log_probs


def losses_std(metrics: Mapping[str, Tensor], losses: WorldModelLosses) -> Tensor:
    """Return the advantage's deviation with N - 1, as theirs."""
    count = losses.dream.feature[:-1, ..., 0].numel()
    return metrics["train/advantage_std"] * (count / (count - 1)) ** 0.5


def observation(x: np.ndarray) -> ObsPart:
    """What ``[B, T, ...]`` observations are."""
    if x.dtype == np.uint8:
        return ObsPart(kind="image", shape=x.shape[2:], dtype="uint8")
    return ObsPart(kind="vector", shape=x.shape[2:], dtype="float32")


def layer(theirs: str, ours: str, norm: str = "") -> Iterator[tuple[str, str]]:
    """Yield the names of a linear layer, and of the norm that follows it."""
    yield from ((f"{theirs}.{name}", f"{ours}.{name}") for name in ("weight", "bias"))
    if norm:
        base, index = ours.rsplit(".", 1)
        yield f"{norm}.weight", f"{base}.{int(index) + 1}.weight"


def mlp(theirs: str, ours: str, layers: int) -> Iterator[tuple[str, str]]:
    """Yield the names of a perceptron."""
    for i in range(layers):
        yield from layer(f"{theirs}_linear{i}", f"{ours}.{2 * i}", f"{theirs}_norm{i}")


def compare_acting(rec: Recording, result: Comparison) -> None:
    """One step of the policy from the first row."""
    agent = rec.load()
    context, rows = rec.rows(agent, 0)
    first = {k: v[:, 0] for k, v in rows.obs.items()}
    with torch.no_grad():
        inputs = agent.world.embed(first).unsqueeze(1), rows.action[:, :1], rows.is_first[:, :1]
        latent = agent.world.rssm.observe(context.latent, *inputs)[0].map(lambda x: x[:, 0])
        found = {"deter": latent.deter, "stoch": latent.stoch, "action_logits": log_probs(agent, latent.feature)}
        found["action_mode"] = agent.actor(latent.feature).mode()
    for name, theirs in rec.under("out/act/").items():
        result.add(f"out/act/{name}", found.get(name, MISSING), theirs, "output")


def compare(arrays: Mapping[str, np.ndarray], meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of R2-Dreamer and its siblings."""
    kinds = [kind for kind in KINDS if any(k.startswith(f"out/{kind}/") for k in arrays)]
    compare_acting(Recording(arrays, meta, kinds[0]), result)
    for kind in kinds:
        Recording(arrays, meta, kind).compare(result)
