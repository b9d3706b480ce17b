"""Hold TD-MPC2 against a recording of its authors' code: forward pass, plans, losses, gradients, three updates.

All that the authors draw is recorded, and takes the place of our draws.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.algos import tdmpc2
from reverie.algos.tdmpc2 import TDMPC2, TDMPC2Config
from reverie.algos.tdmpc2_planner import Plan
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.nn.cnn import Shifted
from reverie.nn.functional import shift_images
from reverie.nn.normalization import percentiles
from reverie.nn.number_distributions import LogTwoHot
from reverie.nn.tdmpc2_networks import LatentEncoder, RandomDraws, TDMPC2NetworkConfig
from reverie.objectives.transforms import symlog, two_hot

from .comparison import MISSING, Comparison

Arrays = dict[str, np.ndarray]
TOLERANCES = (1e-4, 1e-4)
"""Of every tensor, relative to its largest recorded number."""
IMPLEMENTED = {"multitask": False, "obs": "state", "task_dim": 0}
"""Settings of the authors' that we do not have, with the value that ours is equal to."""
NETWORKS = {
    "_encoder.state": "encoder.body", "_dynamics": "dynamics", "_reward": "reward", "_pi": "prior",
    "_termination": "termination", "_Qs": "critic", "_target_Qs": "target_critic.model",
}  # fmt: skip
"""The authors' networks and ours."""
PARTS = {"weight": "weight", "bias": "bias", "ln.weight": "scale", "ln.bias": "shift"}
INFO = {
    "consistency_loss": "loss/consistency", "reward_loss": "loss/reward", "value_loss": "loss/critic",
    "termination_loss": "loss/termination", "grad_norm": "opt/grad_norm/model", "pi_loss": "loss/actor",
    "pi_grad_norm": "opt/grad_norm/policy", "pi_entropy": "train/entropy", "pi_scale": "train/scale",
}  # fmt: skip
"""The authors' metrics and ours."""


class Recorded(RandomDraws):
    """Gives recorded numbers, in the order in which they are asked for."""

    def __init__(self, normal: list[np.ndarray], pairs: list[np.ndarray], gumbel: np.ndarray | None = None) -> None:
        self.normals, self.pairs, self.noise = iter(normal), iter(pairs), gumbel

    def normal(self, *shape: int, like: Tensor) -> Tensor:
        """See :class:`RandomDraws`."""
        return torch.from_numpy(next(self.normals)).reshape(shape)

    def pair(self, count: int, like: Tensor) -> Tensor:
        """See :class:`RandomDraws`: the first two of a permutation."""
        return torch.from_numpy(next(self.pairs)[:2])

    def gumbel(self, like: Tensor) -> Tensor:
        """See :class:`RandomDraws`."""
        assert self.noise is not None
        return torch.from_numpy(self.noise).reshape(like.shape)


class Kept(nn.Dropout):
    """Dropout by a recorded mask."""

    def __init__(self, keep: np.ndarray, p: float) -> None:
        super().__init__()
        self.factors = torch.from_numpy(keep) / (1 - p)

    def forward(self, x: Tensor) -> Tensor:
        """Return the factors."""
        return self.factors


def config(meta: Mapping[str, Any], steps: int, base: TDMPC2Config) -> TDMPC2Config:
    """Our settings ``base`` with the recorded ones; ``steps``: iterations of a recorded plan."""
    s = meta["config"]
    for name, value in IMPLEMENTED.items():
        if s.get(name, value) != value:
            raise ConfigError(f"recorded with {name} = {s[name]}; ours is equal to {value}.")
    if s["num_bins"] < 2:
        raise ConfigError(f"recorded with num_bins = {s['num_bins']}: ours are 2 or more.")
    same = ("rho", "tau", "lr", "episodic", "entropy_coef", "reward_coef", "value_coef", "temperature")
    same += ("min_std", "max_std")
    return base.merge({
        **{name: s[name] if isinstance(s[name], bool) else float(s[name]) for name in same},
        "batch_size": s["batch_size"], "batch_length": s["horizon"] + 1, "discount": float(meta["discount"]),
        "encoder_lr": s["lr"] * s["enc_lr_scale"], "max_grad_norm": float(s["grad_clip_norm"]),
        "consistency_coef": float(s["consistency_coef"]), "termination_coef": float(s["termination_coef"]),
        "min_log_std": float(s["log_std_min"]), "max_log_std": float(s["log_std_max"]), "iterations": steps,
        "num_samples": s["num_samples"], "num_policy_samples": s["num_pi_trajs"], "num_elites": s["num_elites"],
        "graph": False,
        "networks": {
            "units": (s["mlp_dim"],) * 2, "latent": s["latent_dim"], "simplex": s["simnorm_dim"],
            "encoder_units": (s["enc_dim"],) * max(s["num_enc_layers"] - 1, 1), "num_critics": s["num_q"],
            "dropout": float(s["dropout"]), "bins": s["num_bins"], "low": float(s["vmin"]), "high": float(s["vmax"]),
        },
    })  # fmt: skip


class Recording:
    """A recording, and our agent with its weights."""

    base = TDMPC2Config()

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
        self.arrays, self.meta, self.result = arrays, meta, result
        self.settings = meta["config"]
        plans = [len(x) for k, x in arrays.items() if k.startswith("data/plan/") and k.endswith("sample_eps")]
        width = self.settings["action_dim"]
        spec = {"state": ObsPart(kind="vector", shape=tuple(meta["obs_shape"]["state"]), dtype="float32")}
        actions = ActionSpec(parts={"action": ActionPart(kind="continuous", size=width)})
        cfg = config(meta, plans[0] if plans else self.settings["iterations"], self.base)
        self.agent: TDMPC2 = cfg.build(spec, actions)  # type: ignore[assignment]
        self.o = self.agent.objective
        self.load()

    def names(self) -> Iterator[tuple[str, str]]:
        """Yield the authors' names of parameters, and ours."""
        for theirs, ours in NETWORKS.items():
            network = self.o.get_submodule(ours) if ours != "termination" or self.o.termination is not None else None
            for i, layer in enumerate(getattr(network, "layers", ())):
                for part, name in PARTS.items():
                    if getattr(layer, name) is not None:
                        yield f"{theirs}.{i}.{part}", f"objective.{ours}.layers.{i}.{name}"
        yield "scale.value", "objective.scale"

    def to_theirs(self, path: str, x: Tensor) -> np.ndarray:
        """One of our parameters, or its gradient, in the authors' layout."""
        like = self.arrays.get(f"param/{path}", MISSING)
        return x.detach().numpy().reshape(like.shape) if x.numel() == like.size else MISSING

    def load(self) -> None:
        """Copy the recorded weights.

        Raises:
            ConfigError: a recorded parameter has no place in ours, or the other way round.
        """
        table, state = dict(self.names()), self.agent.state_dict()["model"]
        recorded = {k for k in self.under("param/") if not k.startswith("rgb_encoder.")}
        strangers = sorted(recorded ^ set(table)) + sorted(set(state) - set(table.values()))
        if strangers:
            raise ConfigError(f"parameters without a counterpart: {', '.join(strangers)}.")
        with torch.no_grad():
            for path, ours in table.items():
                state[ours].copy_(torch.from_numpy(self.arrays[f"param/{path}"]).reshape(state[ours].shape))

    def under(self, prefix: str) -> Arrays:
        """Arrays below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def add(self, prefix: str, values: Mapping[str, Any], kind: str = "output") -> None:
        """Compare all recorded arrays below a prefix with ours, whose axes of one number do not count."""
        for name, theirs in self.under(prefix).items():
            ours = values.get(name, MISSING)
            ours = ours.detach().numpy() if isinstance(ours, Tensor) else np.asarray(ours)
            squeezed = [n for n in ours.shape if n != 1] == [n for n in theirs.shape if n != 1]
            self.result.add(prefix + name, ours.reshape(theirs.shape) if squeezed else ours, theirs, kind)

    def batch(self, number: int) -> Batch:
        """Return a recorded batch as rows."""
        d = {k: torch.from_numpy(v) for k, v in self.under(f"data/update{number}/").items()}
        obs, count = d["obs"].transpose(0, 1), d["obs"].shape[1]
        reward, ended = (F.pad(d[k][..., 0].T, (1, 0)) for k in ("reward", "terminated"))  # [B, H+1]
        return Batch(
            obs={"state": obs}, action=F.pad(d["action"].transpose(0, 1), (0, 0, 0, 1)), reward=reward,
            is_first=torch.zeros_like(ended).bool(), is_last=ended > 0, is_terminal=ended > 0,
            weight=torch.ones(count), index=torch.arange(count),
        )  # fmt: skip

    # ---------------------------------------------------------------- what is compared

    @torch.no_grad()
    def forward(self) -> None:
        """The networks, in eval mode, on the first batch."""
        o, d = self.o, self.under("data/update0/")
        z: Tensor = o.encoder({"state": torch.from_numpy(d["obs"])})
        at, action = z[:-1], torch.from_numpy(d["action"])
        o.draws = Recorded([self.arrays["data/forward/pi_eps"]], [])
        policy, rewards, led = o.policy(at), o.reward(at, action), o.dynamics(at, action)
        said = {
            "encode_obs": z, "next_z": led, "reward_logits": rewards,
            "reward_value": o.value_distribution(rewards).mean(),
            "pi_action": policy.action, "pi_mean": policy.mean, "pi_log_std": policy.log_std,
            "pi_entropy": policy.entropy, "pi_scaled_entropy": policy.scaled_entropy,
            "q_logits_online": o.critic(at, action), "q_logits_target": o.target_critic.model(at, action),
        }  # fmt: skip
        for name, theirs in self.under("out/forward/").items():
            if "termination" in name and o.termination is not None:  # it is not said of which latents
                found = [
                    x if "logit" in name else x.sigmoid()
                    for x in (o.termination_logits(at), o.termination_logits(led))
                    if x is not None
                ]
                said[name] = min(found, key=lambda x: np.abs(x.numpy().reshape(theirs.shape) - theirs).max())
        self.add("out/forward/", said)
        if "data/dropout/keep_mask" in self.arrays:
            held, o.critic.dropout = (
                o.critic.dropout,
                Kept(self.arrays["data/dropout/keep_mask"], float(self.arrays["data/dropout/p"])),
            )  # type: ignore[assignment]
            self.add("out/dropout/", {"q_logits_online": o.critic(at, action)})
            o.critic.dropout = held

    def functions(self) -> None:
        """Numbers as distributions, and percentiles."""
        if "data/two_hot/x" in self.arrays:
            x, bins = torch.from_numpy(self.arrays["data/two_hot/x"][:, 0]), self.o.bins
            index, weight = two_hot(symlog(x), bins)
            dense = torch.zeros(len(x), len(bins)).scatter_add_(1, index, weight)
            said = {"symlog": symlog(x), "two_hot": dense, "inv_of_two_hot_as_logits": LogTwoHot(dense, bins).mean()}
            self.add("out/two_hot/", said)
        given = self.under("data/scale/")
        found = {
            f"percentiles{k[1:]}": torch.stack(percentiles(torch.from_numpy(v), (5, 95))) for k, v in given.items()
        }
        self.add("out/scale/", found)

    def pixels(self) -> None:
        """The encoder of images, with its shift."""
        params = {k: torch.from_numpy(v) for k, v in self.under("param/rgb_encoder.").items()}
        if not params:
            return
        image = torch.from_numpy(self.arrays["data/rgb/image"]).permute(0, 2, 3, 1).contiguous()
        pad, latent = 3, self.arrays["out/rgb/latent"].shape[1]
        by = pad - torch.from_numpy(self.arrays["data/rgb/shift"]).reshape(-1, 2)
        spec = {"rgb": ObsPart(kind="image", shape=tuple(image.shape[1:]), dtype="uint8")}
        encoder = Shifted(len(params["2.bias"]), pad)
        simplex = self.settings["simnorm_dim"]
        whole = LatentEncoder(spec, TDMPC2NetworkConfig(encoder=encoder, latent=latent, simplex=simplex), torch.float32)
        cnn: Any = whole.inputs.encoder
        with torch.no_grad(), mock.patch.object(cnn, "random_shifts", return_value=by):
            for layer, theirs in zip(cnn.stacks[0], ("2", "4", "6", "8"), strict=True):
                layer.weight.copy_(params[f"{theirs}.weight"].permute(0, 2, 3, 1))
                layer.bias.copy_(params[f"{theirs}.bias"])
            moved = shift_images(image.float(), by).permute(0, 3, 1, 2)  # [M, C, H, W]
            edges = torch.stack([moved[:, :, 0], moved[:, :, :, 0]])
            said = {"latent": whole({"rgb": image}), "shifted_row0_col0": edges, "shifted_sum_hw": moved.sum((2, 3))}
        self.add("out/rgb/", said)

    def plans(self) -> None:
        """Plans at the beginning of an episode and later, with and without exploration; and the policy alone."""
        o = self.o
        obs = {"state": torch.from_numpy(self.arrays["data/plan/obs"])[None]}
        for case in sorted({k.split("/")[2] for k in self.arrays if k.startswith("out/plan/")}):
            d = self.under(f"data/plan/{case}/")
            normal = list(d.get("pi_eps", ()))
            for sample, value in zip(d["sample_eps"], d["value_pi_eps"], strict=True):
                normal += [sample, value]
            o.draws = Recorded(normal + [d[k] for k in ("action_eps",) if k in d], list(d["q_perm"]), d["gumbel"])
            seen: list[dict[str, Tensor]] = []
            with self.watched(o, "select_elites", lambda found, actions, value, seen=seen: seen.append(
                {"actions": actions, "value": value, "elite_idxs": found.indices, "elite_value": found.value,
                 "score": found.score, "mean": found.mean, "std": found.std}
            )):  # fmt: skip
                action, after = self.act(obs, torch.from_numpy(self.arrays["data/plan/prev_mean"]), case)
            said: dict[str, Any] = {k: torch.stack([one[k] for one in seen]) for k in seen[0]}
            last = torch.from_numpy(self.arrays[f"data/plan/{case}/gumbel"]) + seen[-1]["score"][0].log()
            said |= {"action": action, "prev_mean_after": after.mean, "chosen_elite": last.argmax()}
            self.add(f"out/plan/{case}/", said)
        if "data/policy_act/eps" in self.arrays:
            cfg, o.cfg = o.cfg, replace(o.cfg, use_planning=False)
            for mode in ("eval", "train"):
                o.draws = Recorded([self.arrays["data/policy_act/eps"]], [])
                action, _ = self.act(obs, torch.zeros(cfg.horizon, o.width), f"t0_{mode}")
                self.add(f"out/policy_act/{mode}", {"": action})
            o.cfg = cfg

    def act(self, obs: dict[str, Tensor], before: Tensor, case: str) -> tuple[Tensor, Plan]:
        """Act on one observation; ``case``: t0 or tn, and eval or train."""
        no = torch.zeros(1, dtype=torch.bool)
        step = Step(obs=obs, reward=torch.zeros(1), is_first=no | case.startswith("t0"), is_last=no, is_terminal=no)
        policy: Any = self.agent.policy
        found: tuple[Tensor, Plan] = policy.act(
            step, policy.initial(1)._replace(mean=before[None]), "explore" if "train" in case else "eval"
        )
        return found

    @staticmethod
    @contextmanager
    def watched(owner: Any, name: str, note: Callable[..., Any]) -> Iterator[None]:
        """Call ``note(result, *arguments)`` whenever a method has been called."""
        method = getattr(owner, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            found = method(*args, **kwargs)
            note(found, *args, **kwargs)
            return found

        with mock.patch.object(owner, name, call):
            yield

    def update(self, number: int) -> None:
        """One update: all tensors of its losses, metrics, and gradients of the first."""
        o, d = self.o, self.under(f"data/update{number}/")
        o.draws = Recorded([d["td_eps"], d["pi_eps"]], [d["td_q_perm"], d["pi_q_perm"]])
        logits: list[Tensor] = []
        seen: dict[str, Any] = {}
        parameters = {id(p): name for name, p in self.agent.named_parameters()}
        grads: dict[str, Tensor] = {}

        def gradient_steps(loss: Tensor, optims: Any, limit: float) -> Tensor:
            held = [p for optim in optims for p in optim.params]
            found = torch.autograd.grad(loss, held, retain_graph=True)
            grads.update({parameters[id(p)]: x for p, x in zip(held, found, strict=True)})
            seen.setdefault("total", loss.detach())
            return step(loss, optims, limit)

        step = tdmpc2.joint_gradient_step
        with (
            mock.patch.object(tdmpc2, "joint_gradient_step", gradient_steps),
            self.watched(o, "value_distribution", lambda found, x: logits.append(x.detach())),
            self.watched(o, "unroll", lambda found, batch: seen.update(unrolled=found)),
            self.watched(o, "policy_loss", lambda found, z, batch: seen.update(policy=found)),
            self.watched(o, "termination_logits", lambda found, z: seen.update(ends=found)),
        ):
            metrics = self.agent.update(self.batch(number)).metrics
        (_, policy, measures), unrolled = seen["policy"], seen["unrolled"]
        value = measures["value"]
        info = {theirs: metrics.get(ours, torch.zeros(())) for theirs, ours in INFO.items()}
        info |= {"total_loss": seen["total"], "pi_scaled_entropy": policy.scaled_entropy.mean()}
        if seen["ends"] is not None:
            info |= termination_statistics(seen["ends"][-1] > 0, torch.from_numpy(d["terminated"][-1, :, 0]) > 0)
        said = {
            "next_z": unrolled.encodings, "zs": unrolled.latent, "td_targets": unrolled.target, "qs": logits[1],
            "reward_preds": logits[2], "termination_logit": seen["ends"], "scale_after": o.scale,
            **{k: info[k] for k in info if not k.startswith("pi_")}, **{f"info/{k}": v for k, v in info.items()},
            **{f"policy/pi_{k}": v for k, v in policy._asdict().items()}, "policy/action": policy.action,
            "policy/qs_raw": value, "policy/qs_scaled": value / o.scale, "policy/rho": o.rhos,
            "policy/pi_loss": metrics["loss/actor"], "policy/grad_norm": metrics["opt/grad_norm/policy"],
        }  # fmt: skip
        self.add(f"out/update{number}/", {k: v for k, v in said.items() if v is not None})
        if number == 0:
            table = dict(self.names())
            for path in self.under("grad/"):
                ours = table.get(path.partition("/")[2], "")
                mine = grads.get(ours)
                theirs = path.partition("/")[2]
                value_of = MISSING if mine is None else self.to_theirs(theirs, mine)
                self.result.add(f"grad/{path}", value_of, self.arrays[f"grad/{path}"], "update")

    def weights(self, prefix: str) -> None:
        """All weights and targets, as they are now."""
        state, table = self.agent.state_dict()["model"], dict(self.names())
        with torch.no_grad():
            seen = self.o.encoder({"state": torch.from_numpy(self.arrays["data/update0/obs"])})
        said = {k: self.to_theirs(k, state[ours]) for k, ours in table.items()}
        self.add(prefix, {**said, "probe/encode_obs": seen}, "update")


def termination_statistics(said: Tensor, true: Tensor) -> dict[str, Tensor]:
    """The authors' metrics of the last step's terminations ``[B]``."""
    right = (said & true).sum()
    recall, precision = (right / (x.sum() + 1e-9) for x in (true, said))
    return {
        "termination_rate": true.float().mean(),
        "termination_f1": 2 * precision * recall / (precision + recall + 1e-9),
    }


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of TD-MPC2."""
    recording = Recording(arrays, meta, result)
    recording.functions()
    recording.forward()
    recording.pixels()
    recording.plans()
    for number in range(sum(k.startswith("data/update") and k.endswith("/obs") for k in arrays)):
        recording.update(number)
        if recording.under(f"step{number + 1}/"):
            recording.weights(f"step{number + 1}/")
