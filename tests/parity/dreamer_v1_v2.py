"""Hold DreamerV1 and DreamerV2 against recordings of their authors' code.

Their features are z, then h; ours h, then z: the rows of kernels that read features are rolled. Observations are
renamed so that their order by key is the one in which the authors' coders list them: ``obs`` itself may be sorted.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from reverie.algos import dreamer_v1, dreamer_v2
from reverie.algos.dense_dreamer import DenseDreamer
from reverie.algos.dreamer_v1 import DreamerV1, DreamerV1Config
from reverie.algos.dreamer_v2 import Behavior, DreamerV2, DreamerV2Config
from reverie.algos.imagination import Trajectory, open_loop
from reverie.algos.plan2explore import Plan2Explore, Plan2ExploreConfig, previous_actions
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.actor import DreamerActor, TanhNormal, TruncNormal
from reverie.nn.distributions import Categoricals, JointDistribution, straight_through
from reverie.nn.normals import SquashedNormal
from reverie.nn.state_space import Latent, StateSpaceModel

from .comparison import MISSING, Comparison

Arrays = dict[str, np.ndarray]
Tensors = dict[str, Any]

RUN = (
    "action_repeat", "atari_grayscale", "batch_length", "batch_size", "dataset", "disag_", "dmc_camera", "envs",
    "eval_", "expl", "gpu_growth", "jit", "log_", "logdir", "parallel", "prefill", "pretrain", "render_size",
    "replay.", "seed", "slow_baseline", "steps", "task", "time_limit", "train_", "weight_decay",
)  # fmt: skip
"""Settings of theirs, by what they begin with, that change no update; weight decay of V1 never does."""

FIXED = {
    "expl_behavior": "greedy", "precision": 32, "rssm.ensemble": 1, "actor_opt.opt": "adam", "model_opt.opt": "adam",
    "critic_opt.opt": "adam", "reward_head.dist": "mse", "critic.dist": "mse", "discount_head.dist": "binary",
}  # fmt: skip
"""Settings of theirs that we have with this value only."""

HEADS = {"reward": "reward_head", "cont": "discount_head", "actor": "actor", "critic": "critic"}
"""Our heads, and theirs of DreamerV2."""


class Settings(dict[str, Any]):
    """The authors' settings; remembers which were read, so that none is overlooked."""

    def __init__(self, values: Mapping[str, Any], run: tuple[str, ...] = RUN, fixed: Mapping[str, Any] = FIXED) -> None:
        super().__init__(values)
        self.fixed = fixed
        self.left = {k for k in values if k in fixed or not k.startswith(run)}

    def __getitem__(self, key: str) -> Any:
        self.left.discard(key)
        return super().__getitem__(key)

    def number(self, key: str) -> float:
        """Return a number, which some settings give as text.

        Raises:
            ConfigError: it is a schedule, which we do not have.
        """
        try:
            return float(self[key])
        except ValueError:
            raise ConfigError(f"recorded with {key} = {self[key]}: ours is a constant.") from None

    def check(self) -> None:
        """Raise ConfigError if there is a setting that we do not have."""
        for key, value in self.fixed.items():
            if key in self and self[key] != value:
                raise ConfigError(f"recorded with {key} = {self[key]}: ours is equal to {value}.")
        if self.left:
            raise ConfigError(f"recorded with settings that are not known here: {', '.join(sorted(self.left))}.")


def act(name: str) -> str:
    """Our name of an activation of theirs."""
    return {"swish": "silu"}.get(name, name)


class Recording:
    """A recording of DreamerV1 or V2; subclasses know its names and settings."""

    agent: DenseDreamer

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        self.arrays = self.separated(arrays)
        self.settings, self.variant = Settings(settings), meta["variant"]
        coders = [f"{part}_{net}_keys" for part in ("encoder", "decoder") for net in ("cnn", "mlp")]
        listed = [key for name in coders for key in self.variant.get(name, ())]
        self.keys = {key: f"{i:02}_{key}" for i, key in enumerate(dict.fromkeys([*listed, *self.variant["obs"]]))}
        self.agent = self.load()

    def separated(self, arrays: Arrays) -> Arrays:
        """Return the arrays, those split that we have as two."""
        return arrays

    def under(self, prefix: str) -> Arrays:
        """Arrays below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def obs_spec(self) -> dict[str, ObsPart]:
        """What was observed."""
        parts = {}
        for key, (kind, shape, *_) in self.variant["obs"].items():
            image = kind == "u8" and len(shape) == 3
            parts[self.keys[key]] = ObsPart(
                kind="image" if image else "vector", shape=tuple(shape), dtype="uint8" if image else "float32"
            )
        return parts

    def action_spec(self) -> ActionSpec:
        """What was done."""
        kind, size = self.variant["act"]["kind"], self.variant["act"]["size"]
        discrete = kind == "categorical"
        part = ActionPart(kind=kind, classes=(size,)) if discrete else ActionPart(kind=kind, size=size)
        return ActionSpec(parts={"action": part})

    def batch(self, number: int) -> tuple[Batch, Tensor]:
        """One of the three batches as rows, and the action before them ``[B, A]``."""
        name = f"data{number if number > 1 else ''}/"
        data = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in self.under(name).items()}
        action = data["action"]
        if not action.is_floating_point():
            action = torch.nn.functional.one_hot(action.long(), self.variant["act"]["size"]).float()
        rows = len(action)
        flags = {k: data[k] for k in ("reward", "is_first", "is_last", "is_terminal")}
        obs = {ours: data[theirs] for theirs, ours in self.keys.items()}
        batch = Batch(obs=obs, action=action, weight=torch.ones(rows), index=torch.arange(rows), **flags)
        return batch, data["prev_action"]

    def start(self, rows: int, action: Tensor, latent: Latent | None = None) -> Context:
        """Where a batch starts: from ``latent``, or from zeros, but always after ``action``."""
        return Context(latent or self.agent.world.rssm.initial(rows, torch.float32), action)

    def load(self) -> Any:
        """Our agent with the recorded weights.

        Raises:
            ConfigError: a recorded parameter has no place in ours, or the other way round.
        """
        agent = self.config().build(self.obs_spec(), self.action_spec())
        self.settings.check()
        self.agent = agent
        self.table = dict(self.names(agent))
        state, recorded = agent.state_dict()["model"], self.under("param/")
        ours = {name for name, _ in agent.named_parameters()}
        strangers = sorted(set(recorded) ^ set(self.table)) + sorted(ours - set(self.table.values()))
        if strangers:
            raise ConfigError(f"parameters without a counterpart: {', '.join(strangers)}.")
        for path, name in self.table.items():
            value = self.to_ours(path, recorded[path])
            if value.shape != state[name].shape:
                raise ConfigError(f"{path} is {tuple(value.shape)}, ours ({name}) is {tuple(state[name].shape)}.")
            state[name].copy_(value)
        return agent

    def reads_features(self, path: str) -> bool:
        """Whether a kernel reads features."""
        raise NotImplementedError

    def to_ours(self, path: str, x: np.ndarray) -> Tensor:
        """One of the authors' parameters in our layout."""
        if self.reads_features(path):
            x = np.roll(x, self.agent.world.rssm.cfg.deter, 0)  # their rows are z, h
        t = torch.from_numpy(np.array(x, order="C"))
        return t.permute(3, 2, 0, 1) if t.ndim == 4 else t.mT if t.ndim == 2 else t

    def to_theirs(self, path: str, x: Tensor) -> np.ndarray:
        """One of our parameters, or its gradient, in the authors' layout."""
        y = (x.permute(2, 3, 1, 0) if x.ndim == 4 else x.mT if x.ndim == 2 else x).detach().numpy()
        return np.roll(y, -self.agent.world.rssm.cfg.deter, 0) if self.reads_features(path) else y

    def config(self) -> Any:
        """Our configuration with the recorded settings."""
        raise NotImplementedError

    def names(self, agent: Any) -> Iterator[tuple[str, str]]:
        """Yield the authors' parameter paths and our names."""
        raise NotImplementedError

    # ------------------------------------------------------------------ what is random

    def random(self, number: int) -> tuple[Callable[[Tensor], Tensor], Callable[[JointDistribution], Tensor]]:
        """What is drawn in batch ``number``: the likeliest."""
        return self.likeliest, mode

    def draw(self, number: int) -> None:
        """Let world model and policies draw what is drawn in batch ``number``."""
        self.agent.world.rssm.draw, draw = self.random(number)
        for actor in self.actors():
            actor.draw = draw

    def actors(self) -> list[DreamerActor]:
        """The policies that dream."""
        return [self.agent.actor]

    def sample(self, stats: Tensor, draw: Callable[[Tensor], Tensor] | None = None) -> Tensor:
        """z as drawn by ``draw``; by default the likeliest."""
        with drawing(self.agent.world.rssm, draw or self.likeliest) as rssm:
            return rssm.sample(stats)

    def likeliest(self, x: Tensor) -> Tensor:
        """In place of a sample of a latent: the likeliest class, or the mean."""
        return torch.zeros_like(x) if self.agent.cfg.rssm.latent.classes == 1 else x.argmax(-1)

    # ------------------------------------------------------------------ values under the authors' names

    def latent_values(self, latent: Latent, stats: Tensor) -> Tensors:
        """A latent and the statistics it was drawn from."""
        out: Tensors = {"deter": latent.deter}
        if self.agent.cfg.rssm.latent.classes == 1:
            return out | {"stoch": latent.stoch[..., 0], "mean": stats[..., 0], "std": stats[..., 1]}
        return out | {"stoch": latent.stoch, "logit": stats}

    def feature(self, feature: Tensor) -> Tensor:
        """A feature in their order."""
        return torch.roll(feature, -self.agent.world.rssm.cfg.deter, -1)

    def world_values(self, rows: Batch, post: Any) -> Tensors:
        """What the world model says of the recorded rows."""
        world, latent = self.agent.world, post.latent
        stats = world.rssm.p(latent.deter)
        prior = latent._replace(stoch=self.sample(stats))
        decoded, reward, cont = world.predict(latent)
        terms, metrics = self.agent.world_model_loss(rows, post)
        theirs = {ours: key for key, ours in self.keys.items()}
        out: Tensors = {
            "embed": post.embed, "feat": self.feature(latent.feature), "reward_pred": reward.mean(),
            "kl": self.agent.cfg.kl(self.agent.cfg.rssm.latent.kl, post.stats, stats)[1],
            "target_reward": world.transform.forward(rows.reward),
            "post_ent": metrics["train/posterior_entropy"], "prior_ent": metrics["train/prior_entropy"],
            "like/reward": -terms["reward"], "loss/model": self.agent.total(terms),
            **{f"post/{k}": v for k, v in self.latent_values(latent, post.stats).items()},
            **{f"prior/{k}": v for k, v in self.latent_values(prior, stats).items()},
        }  # fmt: skip
        for key, prediction in decoded.items():
            out |= {f"recon/{theirs[key]}": prediction.mean}
            out |= {f"like/{theirs[key]}": -terms[f"reconstruction/{key}"]}
        target = world.discount * (~rows.is_terminal).float()
        if self.agent.cfg.learn_cont:
            out |= {f"{self.ending}_logit": cont.logit, f"like/{self.ending}": -terms["cont"]}
            out |= {f"{self.ending}_prob": cont.prob()}
        out |= {f"target_{self.ending}": target}
        return out | {f"loss/{theirs.get(k.split('/')[-1], k)}": v.mean() for k, v in terms.items()}

    ending = "discount"
    """Their word for what we call cont."""

    def policy_values(self, feature: Tensor, actor: Any = None) -> Tensors:
        """The parameters of a policy's distribution at imagined states; by default of the task's."""
        actor = actor or self.agent.actor
        part = actor(feature).parts["action"]
        if isinstance(part, Categoricals):
            return {"policy_logit": actor.parts[0].outputs[0](actor.mlp(feature))}
        return {"policy_mean": part.mean, "policy_std": part.std}

    def acting(self, rows: Batch, before: Tensor, policy: Any = None) -> Tensor:
        """A policy's own actions ``[B, T, A]`` when it is shown the rows one by one; by default the task's."""
        policy = policy or self.agent.policy
        state, actions = policy.initial(len(before))._replace(action=before), []
        for t in range(rows.shape[1]):
            step = Step(
                obs={k: v[:, t] for k, v in rows.obs.items()}, reward=rows.reward[:, t], is_first=rows.is_first[:, t],
                is_last=rows.is_last[:, t], is_terminal=rows.is_terminal[:, t],
            )  # fmt: skip
            with drawing(self.agent.world.rssm, self.likeliest):
                action, state = policy.act(step, state, "eval")
            actions.append(action)
        return torch.stack(actions, 1)

    def open_loop(self, last: Latent) -> Tensors:
        """A prior rollout from the last latents, under the authors' actions of batch 2."""
        actions = torch.from_numpy(self.arrays["authors2/action"])
        with drawing(self.agent.world.rssm, self.likeliest) as rssm:
            latent = open_loop(rssm, last, actions)
        values = self.latent_values(latent, rssm.p(latent.deter))
        return {f"openloop/{k}": v for k, v in values.items()}

    # ------------------------------------------------------------------ comparisons

    def add(self, result: Comparison, name: str, ours: Any, theirs: np.ndarray, kind: str) -> None:
        """Compare a tensor. Logits of latents are compared as log-probabilities, one-hots without rounding errors."""
        if name.endswith("/logit"):
            theirs = torch.log_softmax(torch.from_numpy(theirs), -1).numpy()
        if name.endswith("stoch") and self.agent.cfg.rssm.latent.classes > 1:
            theirs = np.round(theirs)
        if name.startswith("out/imag/action") and self.variant["act"]["kind"] == "categorical":
            theirs = np.round(theirs)
        result.add(name, ours, theirs, kind)

    def compare(self, result: Comparison) -> None:
        """The whole comparison."""
        with entropy_of_modes():
            rows, before = self.batch(1)
            context = self.start(len(before), before)
            values, losses = self.outputs(rows, context)
            values["acting/action"] = self.acting(rows, before)
            for name, theirs in self.under("out/").items():
                if not name.startswith("grad_norm/"):
                    self.add(result, f"out/{name}", values.get(name, MISSING), theirs, "output")
            self.compare_gradients(losses, result)
            self.agent = self.load()
            self.compare_updates(result)

    def compare_gradients(self, losses: Tensors, result: Comparison) -> None:
        """The gradient of every parameter of the recording, and their norms."""
        parameters, grads = dict(self.agent.named_parameters()), dict[int, Tensor]()
        for name, loss in losses.items():
            optim = self.agent.optims[name]
            found = optim.gradients(loss, keep=True)
            grads |= dict(zip([id(p) for p in optim.params if p.requires_grad], found, strict=True))
            norm = torch.stack([g.norm() for g in found]).norm()
            path = f"out/grad_norm/{self.optim_names.get(name, name)}"
            result.add(path, norm, self.arrays[path], "update")
        for path, theirs in self.under("grad/").items():
            grad = grads.get(id(parameters[self.table[path]]))
            ours = np.zeros_like(theirs) if grad is None else self.to_theirs(path, grad)
            result.add(f"grad/{path}", ours, theirs, "update", self.rounding(path))

    optim_names: ClassVar[dict[str, str]] = {}
    """Our names of optimizers to theirs, where they differ."""

    def rounding(self, path: str) -> float:
        """The largest gradient of a parameter's network, if its own is but the rounding error of that; else 0."""
        network = {k: np.abs(v).max(initial=0.0) for k, v in self.under(f"grad/{path.split('/')[0]}/").items()}
        largest, own = max(network.values(), default=0.0), network.get(path.split("/", 1)[1], 0.0)
        return float(largest) if 0 < own < 1e-6 * largest else 0.0

    def compare_updates(self, result: Comparison) -> None:
        """Three updates: metrics, carried states and parameters."""
        latent = None
        for number in (1, 2, 3):
            rows, before = self.batch(number)
            metrics, post = self.update(rows, self.start(len(before), before, latent), number)
            latent = self.carried(post)
            metrics |= self.latent_metrics(post)
            for name, theirs in self.under(f"step{number}/").items():
                if name.startswith("param/"):
                    path = name.removeprefix("param/")
                    parameter = self.agent.state_dict()["model"].get(self.table.get(path, ""))
                    ours = MISSING if parameter is None else self.to_theirs(path, parameter)
                    rates = self.rate(path) * number
                    unit = 2 * rates / result.tolerance["update"] if self.rounding(path) else 0.0
                    result.add(f"step{number}/{name}", ours, theirs, "update", unit)
                else:
                    self.add(result, f"step{number}/{name}", metrics.get(name, MISSING), theirs, "update")

    def latent_metrics(self, post: Any) -> Tensors:
        """The latents that are carried to the next batch."""
        if post is None:
            return {}
        values = self.latent_values(post.latent, post.stats)
        return {f"state/{k}": v[:, -1] for k, v in values.items()}

    def carried(self, post: Any) -> Latent | None:
        """Where the next batch starts."""
        return None if post is None else post.latent.map(lambda x: x[:, -1].detach())

    def rate(self, path: str) -> float:
        """The learning rate of a parameter."""
        name = self.table[path].split(".")
        part = name[1] if name[0] == "behavior" else name[0]
        return float(self.agent.optims[{"world": "model"}.get(part, part.removeprefix("slow_"))].cfg.lr)

    def outputs(self, rows: Batch, context: Context) -> tuple[Tensors, Tensors]:
        """The forward pass under the authors' names, and the loss of each optimizer."""
        raise NotImplementedError

    def update(self, rows: Batch, context: Context, number: int) -> tuple[Tensors, Any]:
        """Take an update; return metrics under the authors' names, and the posterior if it is carried on."""
        raise NotImplementedError


def mode(policy: JointDistribution) -> Tensor:
    """In place of a sampled action: the likeliest, with the gradient that the sample has."""
    out = []
    for part in policy.parts.values():
        if isinstance(part, Categoricals):
            out.append(straight_through(part.probs, part.probs.argmax(-1)).flatten(-2))
        else:
            out.append(part.mode() + 0 * part.std)  # a gradient of 0, as without one the optimizer would complain
    return torch.cat(out, -1)


@contextmanager
def drawing(rssm: StateSpaceModel, draw: Callable[[Tensor], Tensor]) -> Iterator[StateSpaceModel]:
    """Within, latents are drawn by ``draw``."""
    before, rssm.draw = rssm.draw, draw
    try:
        yield rssm
    finally:
        rssm.draw = before


@contextmanager
def entropy_of_modes() -> Iterator[None]:
    """Within, entropies of tanh-normal policies are of the mode in place of a hundred samples."""
    own = SquashedNormal.entropy
    SquashedNormal.entropy = lambda self: -self.density(self.mean)
    try:
        yield
    finally:
        SquashedNormal.entropy = own


def chain(
    theirs: str, norms: str, ours: str, count: int, norm: str = "none", last: bool = True
) -> Iterator[tuple[str, str]]:
    """Yield names of a chain of [linear, norm, activation]; ``last``: whether the last one has a norm as well."""
    for i in range(count):
        place = i * (3 if norm == "layer" else 2)
        yield from layer(f"{theirs}{i}", f"{ours}.{place}")
        if norm == "layer" and (last or i < count - 1):
            yield from norm_of(f"{norms}{i}", f"{ours}.{place + 1}")


def layer(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    """Yield names of a linear layer or convolution."""
    yield f"{theirs}/kernel", f"{ours}.weight"
    yield f"{theirs}/bias", f"{ours}.bias"


def norm_of(theirs: str, ours: str) -> Iterator[tuple[str, str]]:
    """Yield names of a layer norm."""
    yield f"{theirs}/_layer/gamma", f"{ours}.weight"
    yield f"{theirs}/_layer/beta", f"{ours}.bias"


# ---------------------------------------------------------------------- DreamerV2


class RecordingV2(Recording):
    """A recording of DreamerV2."""

    agent: DreamerV2

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        super().__init__(arrays, meta, meta["agent"])

    def config(self) -> DreamerV2Config:
        """Our configuration with the recorded settings."""
        s, v = self.settings, self.variant
        grad_heads = {"decoder": "decoder", "reward": "reward", "discount": "cont"}
        values: dict[str, Any] = {
            "batch_size": v["B"], "batch_length": v["T"], "horizon": s["imag_horizon"], "discount": s["discount"],
            "lam": s["discount_lambda"], "reward_transform": s["clip_rewards"], "learn_cont": s["pred_discount"],
            "grad_heads": tuple(grad_heads[k] for k in s["grad_heads"]), "entropy_coef": s.number("actor_ent"),
            "kl": f"balanced_kl({s['kl.balance']}, {s['kl.free']}, {s['kl.free_avg']}, {s['kl.forward']})",
            "loss_scales.kl": s["loss_scales.kl"], "loss_scales.reward": s["loss_scales.reward"],
            "loss_scales.cont": s["loss_scales.discount"],
        }  # fmt: skip
        every, rate = s["slow_target_update"], s["slow_target_fraction"]
        values |= (
            {"slow_update_interval": every, "slow_rate": rate} if s["slow_target"] else {"slow_update_interval": 0}
        )
        for name in ("momentum", "scale", "eps"):
            values[f"reward_norm.{name}"] = s[f"reward_norm.{name}"]
        for name in ("model", "actor", "critic"):
            for ours, theirs in (("lr", "lr"), ("eps", "eps"), ("max_grad_norm", "clip"), ("weight_decay", "wd")):
                values[f"{name}_optim.{ours}"] = s[f"{name}_opt.{theirs}"] or 0.0
        for key in [k for k in s.left if k.startswith("loss_scales.")]:
            if s[key] != 1 and key.split(".", 1)[1] in v["obs"]:
                raise ConfigError(f"recorded with {key} = {s[key]}: ours has one scale for all observations.")
        return DreamerV2Config().merge(values | self.actions() | self.recurrence() | self.coders() | self.heads())

    def actions(self) -> dict[str, Any]:
        """Settings of the policy's distribution and gradient."""
        s, resolved = self.settings, self.variant.get("resolved", {})
        dist = resolved.get("actor.dist", s["actor.dist"])
        gradient, mix = resolved.get("actor_grad", s["actor_grad"]), s["actor_grad_mix"]
        s.left -= {"actor.dist", "actor_grad"}
        kinds = {"tanh_normal": TanhNormal, "trunc_normal": TruncNormal, "onehot": TruncNormal}
        if (dist == "onehot") != (self.variant["act"]["kind"] == "categorical") or dist not in kinds:
            raise ConfigError(f"recorded with actor.dist = {dist}, which we do not have for these actions.")
        offset = s["actor.init_std"] if "actor.init_std" in s.keys() else 0.0  # noqa: SIM118
        found = {"actor.continuous": kinds[dist](s["actor.min_std"], offset), "actor_gradient": gradient}
        return found | (
            {"actor_gradient": f"mixed({s.number('actor_grad_mix')})"} if gradient == "both" and mix else {}
        )

    def recurrence(self) -> dict[str, Any]:
        """Settings of the recurrent model."""
        s = self.settings
        classes, gaussian = s["rssm.discrete"], f"gaussian({s['rssm.std_act']!r}, {s['rssm.min_std']})"
        sizes = {f"rssm.{name}": s[f"rssm.{name}"] for name in ("deter", "hidden", "stoch", "norm")}
        return {
            **sizes, "rssm.act": act(s["rssm.act"]), "rssm.latent": f"categorical({classes})" if classes else gaussian,
        }  # fmt: skip

    def coders(self) -> dict[str, Any]:
        """Settings of encoder and decoder."""
        s, v, values = self.settings, self.variant, {}
        for part in ("encoder", "decoder"):
            values |= {
                f"{part}.depth": s[f"{part}.cnn_depth"], f"{part}.kernels": tuple(s[f"{part}.cnn_kernels"]),
                f"{part}.units": tuple(s[f"{part}.mlp_layers"]), f"{part}.norm": s[f"{part}.norm"],
                f"{part}.act": act(s[f"{part}.act"]),
                f"{part}.keys": "|".join(self.keys[k] for k in v[f"{part}_cnn_keys"] + v[f"{part}_mlp_keys"]),
            }  # fmt: skip
            s.left -= {f"{part}.cnn_keys", f"{part}.mlp_keys"}
        return values

    def heads(self) -> dict[str, Any]:
        """Settings of the heads."""
        s, values = self.settings, {}
        for ours, theirs in HEADS.items():
            values |= {f"{ours}.{name}": s[f"{theirs}.{name}"] for name in ("layers", "units", "norm")}
            values[f"{ours}.act"] = act(s[f"{theirs}.act"])
        return values

    def reads_features(self, path: str) -> bool:
        """Whether a kernel reads features."""
        network, rest = path.split("/", 1)
        return (rest == "dense0/kernel" and network != "encoder") or path == "decoder/convin/kernel" or (
            rest in ("out/out/kernel", "out/std/kernel") and self.layers_of(network) == 0
        )  # fmt: skip

    def layers_of(self, network: str) -> int:
        """Hidden layers of a head."""
        cfg = self.agent.cfg
        heads = {"reward": cfg.reward, "discount": cfg.cont, "actor": cfg.actor, "critic": cfg.critic}
        head = heads.get(network.removeprefix("target_"))
        return -1 if head is None else head.layers

    def names(self, agent: DreamerV2) -> Iterator[tuple[str, str]]:
        """Yield the authors' parameter paths and our names."""
        yield from self.names_of_rssm(agent)
        yield from self.names_of_coders(agent)
        cfg = agent.cfg
        heads = [("reward", "world.reward", "out", cfg.reward), ("critic", "behavior.critic", "out", cfg.critic)]
        heads += [("discount", "world.cont", "logit", cfg.cont)] * cfg.learn_cont
        heads += [("target_critic", "behavior.slow_critic.model", "out", cfg.critic)] * bool(cfg.slow_update_interval)
        for network, ours, out, head in heads:
            yield from chain(f"{network}/dense", f"{network}/norm", f"{ours}.mlp", head.layers, head.norm)
            yield from layer(f"{network}/out/out", f"{ours}.{out}")
        yield from chain("actor/dense", "actor/norm", "behavior.actor.mlp", cfg.actor.layers, cfg.actor.norm)
        yield from layer("actor/out/out", "behavior.actor.parts.0.outputs.0")
        if self.variant["act"]["kind"] != "categorical":
            yield from layer("actor/out/std", "behavior.actor.parts.0.outputs.1")

    @staticmethod
    def names_of_rssm(agent: DreamerV2) -> Iterator[tuple[str, str]]:
        """Yield names of the recurrent model."""
        norm = agent.cfg.rssm.norm == "layer"
        yield from layer("rssm/img_in", "world.rssm.input")
        yield from layer("rssm/_cell/_layer", "world.rssm.gru.layer")
        yield "rssm/_cell/_norm/gamma", "world.rssm.gru.norm.weight"
        yield "rssm/_cell/_norm/beta", "world.rssm.gru.norm.bias"
        for theirs, end, ours in (("obs", "", "posterior"), ("img", "_0", "prior_net")):
            yield from layer(f"rssm/{theirs}_out{end}", f"world.rssm.{ours}.first")
            yield from layer(f"rssm/{theirs}_dist{end}", f"world.rssm.{ours}.rest.{2 if norm else 1}")
            if norm:
                yield from norm_of(f"rssm/{theirs}_out_norm{end}", f"world.rssm.{ours}.rest.0")
        if norm:
            yield from norm_of("rssm/img_in_norm", "world.rssm.after.0")

    def names_of_coders(self, agent: DreamerV2) -> Iterator[tuple[str, str]]:
        """Yield names of encoder and decoder."""
        for part, cnn in (("encoder", "world.encoder.cnns.0"), ("decoder", "world.decoder.cnn")):
            cfg, ours = getattr(agent.cfg, part), getattr(agent.world, part)
            if ours.images:
                yield from chain(f"{part}/conv", f"{part}/convnorm", cnn, len(cfg.kernels), cfg.norm, part == "encoder")
            if ours.vectors:
                yield from chain(f"{part}/dense", f"{part}/densenorm", f"world.{part}.mlp", len(cfg.units), cfg.norm)
        if agent.world.decoder.images:
            yield from layer("decoder/convin", "world.decoder.enter")
        theirs = {ours: key for key, ours in self.keys.items()}
        for i, key in enumerate(agent.world.decoder.vectors):
            yield from layer(f"decoder/dense_{theirs[key]}/out", f"world.decoder.outputs.{i}")

    def outputs(self, rows: Batch, context: Context) -> tuple[Tensors, Tensors]:
        """The forward pass under the authors' names, and the loss of each optimizer."""
        agent = self.agent
        self.draw(1)
        post = agent.world.observe(rows, context)
        terms, _ = agent.world_model_loss(rows, post)
        losses = dreamer_v2.imagination_loss_v2(agent.behavior, agent.world, post.latent.detach(), rows.is_terminal)
        with torch.no_grad():
            values = self.world_values(rows, post) | self.open_loop(post.latent.map(lambda x: x[:, -1]))
            values["loss/discount"] = values.pop("loss/cont")
            dreamt = self.dream_values(agent.behavior, losses.dream, post.stats, losses.terms)
            values |= {f"imag/{k}": v for k, v in dreamt.items()}
            values |= {"imag/actor_loss": losses.actor.mean(), "imag/critic_loss": losses.critic.mean()}
        return values, {"model": agent.total(terms), "actor": losses.actor.mean(), "critic": losses.critic.mean()}

    def dream_values(self, behavior: Behavior, dream: Trajectory, stats: Tensor, terms: Tensors) -> Tensors:
        """Imagined trajectories of a behavior under the authors' names, whose actions lead to their states."""
        feature, rssm = dream.feature, self.agent.world.rssm
        latent = rssm.split(feature)
        all_stats = torch.cat([stats[None], rssm.p(latent.deter[1:])])
        policy = behavior.actor(feature[:-2])
        values = self.latent_values(latent, all_stats) | self.policy_values(feature, behavior.actor) | {
            "feat": self.feature(feature), "action": torch.cat([torch.zeros_like(dream.action[:1]), dream.action[:-1]]),
            "reward_raw": terms["reward"], "reward": terms["normalized_reward"],
            "value": behavior.critic(feature).mean(),
            "value_slow": terms["slow_value"], "target": terms["target"], "discount": terms["discount"],
            "weight": terms["weight"], "policy_entropy": policy.entropy(),
            "policy_logp": policy.log_prob(dream.action[:-2]),
        }  # fmt: skip
        return {name: value.flatten(1, 2) for name, value in values.items()}

    def update(self, rows: Batch, context: Context, number: int) -> tuple[Tensors, Any]:
        """Take an update; return metrics under the authors' names, and the posterior."""
        agent = self.agent
        self.draw(number)
        _, m, post = agent.learn(rows, context)
        named = self.behavior_metrics(agent.behavior, m) | {
            "discount_loss": m["loss/cont"], "reward_loss": m["loss/reward"], "model_kl": m["train/kl"],
            "post_ent": m["train/posterior_entropy"], "prior_ent": m["train/prior_entropy"], "kl_loss": m["loss/kl"],
            **{f"{key}_loss": m[f"loss/reconstruction/{ours}"] for key, ours in self.keys.items()
               if f"loss/reconstruction/{ours}" in m},
            **{f"{self.optim_names.get(name, name)}_loss": m[f"opt/loss/{name}"] for name in agent.optims},
            **{f"{self.optim_names.get(name, name)}_grad_norm": m[f"opt/grad_norm/{name}"] for name in agent.optims},
        }  # fmt: skip
        out = {f"metric/{k}": v for k, v in named.items()}
        return out | {"rewnorm_mag": agent.behavior.reward_norm.magnitude}, post

    @staticmethod
    def behavior_metrics(behavior: Behavior, m: Tensors) -> Tensors:
        """The metrics of a behavior under the authors' names."""
        entropies = [v for k, v in m.items() if k.startswith("train/entropy/")]
        return {
            "actor_ent": sum(entropies), "actor_ent_scale": behavior.cfg.entropy_coef, "critic": m["train/value"],
            "actor_grad_mix": getattr(behavior.gradient, "mix", None), "critic_slow": m["train/slow_value"],
            "critic_target": m["train/target"], "reward_mean": m["train/reward"], "reward_std": m["train/reward_std"],
            "reward_normed_mean": m["train/normalized_reward"], "reward_normed_std": m["train/normalized_reward_std"],
        }  # fmt: skip


# ---------------------------------------------------------------------- Plan2Explore


class RecordingP2E(RecordingV2):
    """A recording of Plan2Explore on DreamerV2."""

    agent: Plan2Explore
    optim_names: ClassVar[dict[str, str]] = {
        "ensemble": "expl_expl", "explore_actor": "expl_actor", "explore_critic": "expl_critic",
    }  # fmt: skip

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        super().__init__(arrays, {**meta, "agent": meta["agent"] | {"expl_behavior": "greedy"}})

    def config(self) -> Plan2ExploreConfig:
        """Our configuration with the recorded settings."""
        s, base = self.settings, super().config()
        if s["disag_target"] == "feat" and s["rssm.discrete"]:
            raise ConfigError("recorded with disag_target = feat and discrete latents, which theirs cannot run.")
        values: dict[str, Any] = {
            "ensemble.num_models": s["disag_models"], "ensemble.offset": s["disag_offset"],
            "ensemble.log_disagreement": s["disag_log"],
            "ensemble.target": {"feat": "feature"}.get(s["disag_target"], s["disag_target"]),
            "ensemble.action_conditioned": s["disag_action_cond"], "intrinsic_scale": s["expl_intr_scale"],
            "extrinsic_scale": s["expl_extr_scale"], "ensemble.head.act": act(s["expl_head.act"]),
            **{f"ensemble.head.{k}": s[f"expl_head.{k}"] for k in ("layers", "units", "norm")},
            **{f"expl_reward_norm.{k}": s[f"expl_reward_norm.{k}"] for k in ("momentum", "scale", "eps")},
        }  # fmt: skip
        for ours, theirs in (("lr", "lr"), ("eps", "eps"), ("max_grad_norm", "clip"), ("weight_decay", "wd")):
            values[f"ensemble_optim.{ours}"] = s[f"expl_opt.{theirs}"] or 0.0
        return Plan2ExploreConfig(**{f.name: getattr(base, f.name) for f in fields(base)}).merge(values)

    def layers_of(self, network: str) -> int:
        """Hidden layers of a head."""
        if network.startswith("disag"):
            return self.agent.cfg.ensemble.head.layers
        return super().layers_of(network.removeprefix("expl_"))

    def predicted(self, x: Tensor) -> Tensor:
        """What the ensemble predicts, in their order."""
        return self.feature(x) if self.settings["disag_target"] == "feat" else x

    def predicts_features(self, path: str) -> bool:
        """Whether a parameter writes features."""
        return path.startswith("disag") and "/out/out/" in path and self.settings["disag_target"] == "feat"

    def to_ours(self, path: str, x: np.ndarray) -> Tensor:
        """One of the authors' parameters in our layout. The ensemble reads actions behind features."""
        if self.predicts_features(path):
            x = np.roll(x, self.agent.world.rssm.cfg.deter, -1)
        if not (path.startswith("disag") and self.reads_features(path)):
            return super().to_ours(path, x)
        width = self.agent.world.rssm.feature_width
        parts = (super().to_ours(path, x[:width]), torch.from_numpy(np.array(x[width:])).mT)
        return torch.cat(parts, 1)

    def to_theirs(self, path: str, x: Tensor) -> np.ndarray:
        """One of our parameters, or its gradient, in the authors' layout."""
        if self.predicts_features(path):
            x = self.feature(x.mT).mT if x.ndim == 2 else self.feature(x)
        if not (path.startswith("disag") and self.reads_features(path)):
            return super().to_theirs(path, x)
        width = self.agent.world.rssm.feature_width
        return np.concatenate([super().to_theirs(path, x[:, :width]), x[:, width:].mT.detach().numpy()])

    def names(self, agent: Plan2Explore) -> Iterator[tuple[str, str]]:
        """Yield the authors' parameter paths and our names."""
        yield from super().names(agent)
        cfg = agent.cfg
        heads = [("expl_actor", "explorer.actor", "parts.0.outputs.0", cfg.actor)]
        heads += [("expl_critic", "explorer.critic", "out", cfg.critic)]
        heads += [("expl_target_critic", "explorer.slow_critic.model", "out", cfg.critic)] * bool(
            cfg.slow_update_interval
        )
        for network, ours, out, head in heads:
            yield from chain(f"{network}/dense", f"{network}/norm", f"{ours}.mlp", head.layers, head.norm)
            yield from layer(f"{network}/out/out", f"{ours}.{out}")
        if self.variant["act"]["kind"] != "categorical":
            yield from layer("expl_actor/out/std", "explorer.actor.parts.0.outputs.1")
        head = cfg.ensemble.head
        for i in range(cfg.ensemble.num_models):
            ours = f"ensemble.models.{i}"
            yield from chain(f"disag{i}/dense", f"disag{i}/norm", f"{ours}.0", head.layers, head.norm)
            yield from layer(f"disag{i}/out/out", f"{ours}.1")

    def rate(self, path: str) -> float:
        """The learning rate of a parameter."""
        network, _, part = self.table[path].partition(".")
        if network != "explorer":
            return super().rate(path)
        return float(self.agent.optims[f"explore_{part.split('.')[0].removeprefix('slow_')}"].cfg.lr)

    def actors(self) -> list[DreamerActor]:
        """The policies that dream."""
        return [self.agent.actor, self.agent.explorer.actor]

    def outputs(self, rows: Batch, context: Context) -> tuple[Tensors, Tensors]:
        """The forward pass under the authors' names, and the loss of each optimizer."""
        agent, (values, losses) = self.agent, super().outputs(rows, context)
        self.draw(1)
        post = agent.world.observe(rows, context)
        before, offset = previous_actions(rows, context), agent.cfg.ensemble.offset
        losses["ensemble"] = agent.ensemble.loss(post, before)
        explored = dreamer_v2.imagination_loss_v2(
            agent.explorer, agent.world, post.latent.detach(), rows.is_terminal, agent.intrinsic_reward
        )
        losses |= {"explore_actor": explored.actor.mean(), "explore_critic": explored.critic.mean()}
        with torch.no_grad():
            dream, kept = explored.dream, rows.shape[1] - offset
            dreamt = self.dream_values(agent.explorer, dream, post.stats, explored.terms)
            values |= {f"expl_imag/{k}": v for k, v in dreamt.items()}
            values |= {"expl_imag/actor_loss": losses["explore_actor"], "disag/loss": losses["ensemble"]}
            values |= {"expl_imag/critic_loss": losses["explore_critic"]}
            values["acting/expl_action"] = self.acting(rows, context.action, Likeliest(agent.policy))
            feature, target = post.latent.feature, self.predicted(agent.ensemble.target(post)[:, offset:])
            inputs = torch.cat([self.feature(feature), before * agent.cfg.ensemble.action_conditioned], -1)
            width = inputs.shape[-1] if agent.cfg.ensemble.action_conditioned else feature.shape[-1]
            values |= {"disag/input": inputs[:, :kept, :width], "disag/target": target}
            values["disag/pred"] = self.predicted(agent.ensemble(feature[:, :kept], before[:, :kept]))
            earlier = torch.cat([torch.zeros_like(dream.action[:1]), dream.action[:-1]])
            imagined = dream.feature.flatten(1, 2), earlier.flatten(1, 2)
            values["disag/imag_pred"] = self.predicted(agent.ensemble(*imagined))
            disagreement = agent.ensemble.disagreement(*imagined)
            values["disag/imag_disag"] = disagreement.exp() if agent.cfg.ensemble.log_disagreement else disagreement
        return values, losses

    def update(self, rows: Batch, context: Context, number: int) -> tuple[Tensors, Any]:
        """Take an update; return metrics under the authors' names, and the posterior."""
        agent, learn, found = self.agent, self.agent.learn, {}

        def noted(*args: Any) -> Any:
            found["all"] = learn(*args)
            return found["all"]

        agent.learn = noted  # type: ignore[method-assign]
        out, post = super().update(rows, context, number)
        agent.learn = learn  # type: ignore[method-assign]
        m = {k.removeprefix("expl/"): v for k, v in found["all"][1].items() if k.startswith("expl/")}
        out |= {f"metric/expl_{k}": v for k, v in self.behavior_metrics(agent.explorer, m).items()}
        norms = {"intr": agent.intrinsic_norm, "extr": agent.extrinsic_norm}
        return out | {f"{k}_rewnorm_mag": norm.magnitude for k, norm in norms.items()}, post


class Likeliest:
    """A policy that explores with the likeliest actions of its exploring head."""

    def __init__(self, policy: Any) -> None:
        self.policy, self.initial = policy, policy.initial

    def act(self, step: Step, state: Any, mode: str) -> tuple[Tensor, Any]:
        """Act as in ``eval``, but by the head that explores."""
        learner = self.policy.learner
        acting, learner.actor_for = learner.actor_for, lambda mode: learner.explorer.actor
        try:
            found: tuple[Tensor, Any] = self.policy.act(step, state, "eval")
        finally:
            learner.actor_for = acting
        return found


# ---------------------------------------------------------------------- DreamerV1


class RecordingV1(Recording):
    """A recording of DreamerV1."""

    agent: DreamerV1
    ending = "pcont"
    optim_names: ClassVar[dict[str, str]] = {"critic": "value"}

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        super().__init__(arrays, meta, meta["config"])

    def separated(self, arrays: Arrays) -> Arrays:
        """Return the arrays: the two biases of the GRU, and the actor's mean and deviation, are two layers of ours."""
        out: Arrays = {}
        for path, x in arrays.items():
            if path.endswith("dynamics/_cell/bias"):
                out |= {f"{path}/0": x[0], f"{path}/1": x[1]}
            elif (
                "actor/hout/" in path
                and arrays["param/actor/hout/bias"].shape[0] == 2 * arrays["authors/action"].shape[-1]
            ):
                out |= {f"{path}/{i}": half for i, half in enumerate(np.split(x, 2, -1))}
            else:
                out[path] = x
        return out

    def config(self) -> DreamerV1Config:
        """Our configuration with the recorded settings."""
        s, v = self.settings, self.variant
        dist, init = s["action_dist"], s["action_init_std"]
        if (dist == "onehot") != (v["act"]["kind"] == "categorical"):
            raise ConfigError(f"recorded with action_dist = {dist}, which we do not have for these actions.")
        values: dict[str, Any] = {
            "batch_size": v["B"], "batch_length": v["T"], "horizon": s["horizon"], "discount": s["discount"],
            "lam": s["disclam"], "reward_transform": {"none": "identity"}.get(s["clip_rewards"], s["clip_rewards"]),
            "learn_cont": s["pcont"], "kl": f"free_nats({s['free_nats']})", "loss_scales.kl": s["kl_scale"],
            "loss_scales.cont": s["pcont_scale"], "rssm.deter": s["deter_size"], "rssm.hidden": s["deter_size"],
            "rssm.stoch": s["stoch_size"], "actor.continuous": TanhNormal(1e-4, float(np.log(np.exp(init) - 1))),
        }  # fmt: skip
        for part in ("encoder", "decoder"):
            values |= {
                f"{part}.depth": s["cnn_depth"],
                f"{part}.act": act(s["cnn_act"]),
                f"{part}.keys": self.keys["image"],
            }
        for part in ("reward", "cont", "actor", "critic"):
            values |= {f"{part}.units": s["num_units"], f"{part}.act": act(s["dense_act"])}
        values["rssm.act"] = "elu"  # theirs is not handed on
        for name in ("model", "actor", "critic"):
            values[f"{name}_optim.lr"] = s[f"{self.optim_names.get(name, name)}_lr"]
            values[f"{name}_optim.max_grad_norm"] = s["grad_clip"] or 0.0
        return DreamerV1Config().merge(values)

    def reads_features(self, path: str) -> bool:
        """Whether a kernel reads features."""
        return path == "decode/h1/kernel" or path.endswith("/h0/kernel")

    def names(self, agent: DreamerV1) -> Iterator[tuple[str, str]]:
        """Yield the authors' parameter paths and our names."""
        rssm, cfg = "world.rssm", agent.cfg
        yield from layer("dynamics/img1", f"{rssm}.input")
        yield "dynamics/_cell/kernel", f"{rssm}.gru.from_input.weight"
        yield "dynamics/_cell/recurrent_kernel", f"{rssm}.gru.from_state.weight"
        yield "dynamics/_cell/bias/0", f"{rssm}.gru.from_input.bias"
        yield "dynamics/_cell/bias/1", f"{rssm}.gru.from_state.bias"
        for i, name in enumerate(("img2", "img3")):
            yield from layer(f"dynamics/{name}", f"{rssm}.prior_net.{('first', 'rest.1')[i]}")
        for i, name in enumerate(("obs1", "obs2")):
            yield from layer(f"dynamics/{name}", f"{rssm}.posterior.{('first', 'rest.1')[i]}")
        for i in range(4):
            yield from layer(f"encode/h{i + 1}", f"world.encoder.cnns.0.{2 * i}")
            yield from layer(f"decode/h{i + 2}", f"world.decoder.cnn.{2 * i}")
        yield from layer("decode/h1", "world.decoder.enter")
        heads = [("reward", "world.reward", "out", cfg.reward), ("value", "critic", "out", cfg.critic)]
        heads += [("pcont", "world.cont", "logit", cfg.cont)] * cfg.learn_cont
        for network, ours, out, head in heads:
            yield from chain(f"{network}/h", "", f"{ours}.mlp", head.layers)
            yield from layer(f"{network}/hout", f"{ours}.{out}")
        yield from chain("actor/h", "", "actor.mlp", cfg.actor.layers)
        if self.variant["act"]["kind"] == "categorical":
            yield from layer("actor/hout", "actor.parts.0.outputs.0")
        else:
            for i in range(2):
                yield f"actor/hout/kernel/{i}", f"actor.parts.0.outputs.{i}.weight"
                yield f"actor/hout/bias/{i}", f"actor.parts.0.outputs.{i}.bias"

    def random(self, number: int) -> tuple[Callable[[Tensor], Tensor], Callable[[JointDistribution], Tensor]]:
        """What is drawn in batch ``number``: the recorded noise, or the likeliest."""
        noise = {k: torch.from_numpy(v) for k, v in self.under(f"noise{number if number > 1 else ''}/").items()}
        if not noise:
            return self.likeliest, mode
        latents, actions = itertools.chain(noise["post"], noise["imag_stoch"]), iter(noise["imag_action"])

        def pick(policy: JointDistribution) -> Tensor:
            (part,), drawn = policy.parts.values(), next(actions, None)
            if isinstance(part, Categoricals) and drawn is not None:
                return straight_through(part.probs[..., 0, :], (part.log_probs + drawn).argmax(-1))
            return mode(policy) if drawn is None else (part.mean + part.std * drawn).tanh()

        return lambda mean: next(latents), pick

    def outputs(self, rows: Batch, context: Context) -> tuple[Tensors, Tensors]:
        """The forward pass under the authors' names, and the loss of each optimizer."""
        agent = self.agent
        self.draw(1)
        post = agent.world.observe(rows, context)
        terms, _ = agent.world_model_loss(rows, post)
        dreamt = dreamer_v1.imagination_loss_v1(agent, agent.world, agent.start(post))
        losses = {"model": agent.total(terms), "actor": dreamt.actor.mean(), "critic": dreamt.critic.mean()}
        noise = self.under("noise/")
        with torch.no_grad():
            values = self.world_values(rows, post) | self.open_loop(post.latent.map(lambda x: x[:, -1]))
            values |= {"loss/div": terms["kl"], "loss/actor": losses["actor"], "loss/value": losses["critic"]}
            if noise:  # prior samples inside of observe influence nothing
                normal = torch.from_numpy(noise["prior"]).transpose(0, 1)
                values["prior/stoch"] = self.sample(agent.world.rssm.p(post.latent.deter), lambda mean: normal)[..., 0]
            feature, t = dreamt.dream.feature[1:], dreamt.terms
            latent = agent.world.rssm.split(feature)
            dream = self.latent_values(latent, agent.world.rssm.p(latent.deter)) | self.policy_values(feature)
            dream |= {"feat": self.feature(feature), "action": dreamt.dream.action[:-1], "reward": t["reward"]}
            dream |= {"pcont": t["discount"], "value": t["value"], "return": t["target"], "weight": t["weight"]}
        return values | {f"imag/{k}": v.flatten(1, 2) for k, v in dream.items()}, losses

    def update(self, rows: Batch, context: Context, number: int) -> tuple[Tensors, Any]:
        """Take an update; return metrics under the authors' names. Nothing is carried on."""
        self.draw(number)
        _, m = self.agent.train_on_rows(rows, context)
        out = {}
        for name in self.agent.optims:
            theirs = self.optim_names.get(name, name)
            out |= {f"metric/{theirs}_loss": m[f"opt/loss/{name}"]}
            out |= {f"metric/{theirs}_grad_norm": m[f"opt/grad_norm/{name}"]}
        return out, None


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of DreamerV1 or V2."""
    explores = meta.get("agent", {}).get("expl_behavior") == "Plan2Explore"
    kind = RecordingV1 if "config" in meta else RecordingP2E if explores else RecordingV2
    kind(arrays, meta).compare(result)
