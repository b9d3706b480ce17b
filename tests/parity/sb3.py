"""Hold PPO and A2C against recordings of Stable-Baselines3 and sb3-contrib.

The recorded rollout is laid out as rows of ours: after a step that ends an episode, the true last observation is a row
of its own. What our networks say of these rows is compared with what theirs said, and so are the advantages. Then our
learner takes the recorded minibatches one after the other. Losses and gradients of each are compared at the recorded
parameters, and the parameters that it leads to at our own.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos.a2c import A2C, A2CConfig
from reverie.algos.on_policy import ESTIMATE_COLUMNS, OnPolicy, OnPolicyObjective
from reverie.algos.ppo import PPO, PPOConfig
from reverie.core.errors import ConfigError
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, ObsPart, ObsSpec
from reverie.core.types import Batch, Obs
from reverie.nn.adam import GlobalAdamConfig
from reverie.nn.memory import LSTM, MEMORY_COLUMN
from reverie.nn.network import ObsConcat
from reverie.nn.on_policy_networks import PolicyValue, PolicyValueBranch, PolicyValueConfig
from reverie.nn.optim import FlatOptimizer, GlobalRMSpropConfig, Optimizer
from reverie.nn.relu_mlp import ReluMLP
from reverie.objectives.estimators import GAE

from .comparison import Comparison

TOLERANCES = (1e-5, 5e-5)
"""Tolerances: of each minibatch; of what all minibatches lead to."""
FORMS = {"RMSprop": "torch", "RMSpropTFLike": "tensorflow"}
MOMENTS = {"exp_avg": "mean", "exp_avg_sq": "square", "square_avg": "square"}
"""Their names of moments to ours."""
METRICS = {
    "policy_loss": "loss/actor", "value_loss": "loss/critic", "entropy": "train/entropy",
    "approx_kl": "train/approx_kl", "clip_fraction": "train/clip_fraction",
}  # fmt: skip
"""Their names of metrics to ours."""
View = Callable[[Tensor], Tensor]


class Recording:
    """A recording, and the learner of ours that it describes."""

    def __init__(self, arrays: dict[str, np.ndarray], meta: Mapping[str, Any]) -> None:
        self.arrays, self.meta = arrays, meta
        self.steps, self.envs = int(self.meta["n_steps"]), int(self.meta["n_envs"])
        self.lstm: dict[str, Any] | None = self.meta["lstm"]
        opt = self.meta["optimizer"]
        for name in ("amsgrad", "weight_decay", "centered", "momentum"):
            if opt.get(name):
                raise ConfigError(f"recorded with {name} = {opt[name]} of the optimizer, which we lack.")

    def under(self, prefix: str) -> dict[str, np.ndarray]:
        """Arrays below a prefix, without it."""
        return {k.removeprefix(prefix): v for k, v in self.arrays.items() if k.startswith(prefix)}

    def tensor(self, name: str) -> Tensor:
        """One array as a tensor of our dtypes."""
        x = torch.from_numpy(np.array(self.arrays[name]))
        return x.float() if x.is_floating_point() else x

    @property
    def action_spec(self) -> ActionSpec:
        """Kinds and sizes of the actions."""
        space = self.meta["action_space"]
        if space["type"] == "Box":
            return ActionSpec(parts={"action": ActionPart(kind="continuous", size=int(np.prod(space["shape"])))})
        classes = tuple(space["nvec"]) if space["type"] == "MultiDiscrete" else (int(space["n"]),)
        return ActionSpec(parts={"action": ActionPart(kind="categorical", classes=classes)})

    @property
    def obs_spec(self) -> ObsSpec:
        """Sizes of the observations, and of their mask if there is one."""
        spec = {"observation": ObsPart(kind="vector", shape=self.arrays["rollout/obs"].shape[2:], dtype="float32")}
        if "rollout/mask" in self.arrays:
            spec[MASK_KEY] = ObsPart(kind="mask", shape=(self.action_spec.width,), dtype="bool")
        return spec

    def learner(self) -> OnPolicy:
        """Our learner with the recorded settings."""
        m, common = self.meta, {"graph": False, "rollout": self.steps}
        common |= {
            "discount": m["gamma"], "value_estimator": GAE(m["gae_lambda"]), "value_coef": m["vf_coef"],
            "normalize_advantage": bool(m["normalize_advantage"]), "entropy_coef": m["ent_coef"],
            "max_grad_norm": m["max_grad_norm"] or 0.0, "lr": m["learning_rate"],
        }  # fmt: skip
        if m["algorithm"] == "A2C":
            config: Any = A2CConfig(**common)
        else:
            of_ppo = {
                "clip_range": m["clip_range"],
                "value_clip_range": m["clip_range_vf"],
                "target_kl": m["target_kl"],
            }
            config = PPOConfig(**common, **of_ppo, epochs=int(m["n_epochs"]), batch_size=int(m["batch_size"]))
        recording, kind = self, A2C if m["algorithm"] == "A2C" else PPO

        class Recorded(kind):  # type: ignore[misc, valid-type]
            """The learner with the recorded network and optimizer."""

            def build_network(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> PolicyValue:
                return recording.network()

            def build_optim(self) -> Optimizer:
                return recording.optim(list(self.parameters()))

        return Recorded(self.obs_spec, self.action_spec, config, torch.device("cpu"))

    def optim(self, parameters: list[nn.Parameter]) -> Optimizer:
        """Our optimizer with the recorded settings."""
        opt, clip = self.meta["optimizer"], self.meta["max_grad_norm"] or 0.0
        if opt["class"] == "Adam":
            beta1, beta2 = opt["betas"]
            adam = {"lr": opt["lr"], "eps": opt["eps"], "max_grad_norm": clip, "beta1": beta1, "beta2": beta2}
            return GlobalAdamConfig(implementation="torch", **adam).build(parameters)
        rms = {
            "implementation": FORMS[opt["class"]],
            "lr": opt["lr"],
            "alpha": opt["alpha"],
            "eps": opt["eps"],
            "max_grad_norm": clip,
        }
        return GlobalRMSpropConfig(**rms).build(parameters)

    def network(self) -> PolicyValue:
        """Our network with the recorded sizes and weights."""
        memory, kind = None, "separate"
        if self.lstm is not None:
            memory = LSTM(int(self.lstm["hidden_size"]), int(self.lstm.get("n_layers", 1)))
            kind = "shared" if self.lstm["shared_lstm"] else "separate" if self.lstm["enable_critic_lstm"] else "none"
        activation = self.meta["activation"]
        cfg = PolicyValueConfig(activation=activation, memory=memory, critic_memory=kind)  # type: ignore[arg-type]
        network = PolicyValue(self.obs_spec, self.action_spec, cfg)
        if memory is not None and kind == "none":
            network.critic = PolicyValueBranch(Projected(self.obs_spec, cfg, memory.units), 1, cfg, 1.0, None)
        for branch, name in ((network.actor, "pi"), (network.critic, "vf")):
            first, *_, last = branch.body.layout.widths
            branch.body = ReluMLP(first, tuple(self.meta["net_arch"][name]), last, activation=activation)
        table = places(network)
        write(dict(network.named_parameters()), table, {name: self.tensor(f"param/{name}") for name in table})
        return network

    # ---------------------------------------------------------------- rows

    def taken(self) -> Tensor:
        """The actions of the rollout ``[T, N, A]``, one-hot where they are classes."""
        action = self.tensor("rollout/action")
        if self.meta["action_space"]["type"] == "Box":
            return action
        classes = self.action_spec.parts["action"].classes
        hot = [torch.nn.functional.one_hot(action[..., i].long(), n).float() for i, n in enumerate(classes)]
        return torch.cat(hot, -1)

    def seen(self) -> Obs:
        """The observations of the rollout, ``[T, N, ...]``."""
        obs = {"observation": self.tensor("rollout/obs")}
        return obs | ({MASK_KEY: self.tensor("rollout/mask").bool()} if "rollout/mask" in self.arrays else {})

    def stream(self, env: int) -> tuple[Batch, list[int]]:
        """Rows ``[1, n]`` of one environment, and which of them are the steps 0 ... T-1 of the rollout."""
        arrays, obs, action = self.under("rollout/"), self.seen(), self.taken()
        rows: list[dict[str, Any]] = []
        steps, reward = [], 0.0
        blank = {key: torch.ones_like(x[0, env]) for key, x in obs.items()}
        for t in range(self.steps):
            first = bool(arrays["episode_start"][t, env])
            steps.append(len(rows))
            rows.append({"obs": {k: x[t, env] for k, x in obs.items()}, "action": action[t, env], "is_first": first,
                         "reward": 0.0 if first else reward, "is_last": False, "is_terminal": False})  # fmt: skip
            reward = float(arrays["reward_raw"][t, env])
            if arrays["done"][t, env]:
                last = blank | {"observation": torch.from_numpy(arrays["terminal_obs"][t, env])}
                rows.append({"obs": last, "action": torch.zeros_like(action[0, 0]), "reward": reward, "is_first": False,
                             "is_last": True, "is_terminal": bool(arrays["terminated"][t, env])})  # fmt: skip
        ended = bool(arrays["last_done"][env])
        after = blank | {"observation": torch.from_numpy(arrays["last_obs"][env])}
        rows.append({"obs": after, "action": torch.zeros_like(action[0, 0]), "reward": 0.0 if ended else reward,
                     "is_first": ended, "is_last": False, "is_terminal": False})  # fmt: skip
        keys, flags = obs.keys(), ("is_first", "is_last", "is_terminal")
        extras = {} if self.lstm is None else {MEMORY_COLUMN: self.state(lambda x: x[0, :, env : env + 1]).unsqueeze(1)}
        if extras:
            extras = {MEMORY_COLUMN: extras[MEMORY_COLUMN].expand(-1, len(rows), -1)}
        batch = Batch(
            obs={k: torch.stack([row["obs"][k] for row in rows])[None] for k in keys},
            action=torch.stack([row["action"] for row in rows])[None],
            reward=torch.tensor([[row["reward"] for row in rows]]),
            **{name: torch.tensor([[row[name] for row in rows]]) for name in flags},
            weight=torch.ones(1), index=torch.zeros(1, dtype=torch.int64), extras=extras,
        )  # fmt: skip
        return batch, steps

    def state(self, cut: Callable[[Tensor], Tensor], prefix: str = "rollout/") -> Tensor:
        """States of our memories ``[B, S]`` from theirs: ``cut`` returns ``[layers, B, H]`` of each of their arrays."""
        assert self.lstm is not None
        own = not self.lstm["shared_lstm"] and self.lstm["enable_critic_lstm"]
        parts = []
        for name in ("pi", "vf") if own else ("pi",):
            h, c = (cut(self.tensor(f"{prefix}lstm_{name}_{kind}")) for kind in "hc")
            parts += [part for both in zip(h, c, strict=True) for part in both]
        return torch.cat(parts, -1)

    def minibatch(self, k: int, estimates: Mapping[str, Tensor]) -> tuple[Batch, Tensor]:
        """Minibatch k as rows ``[B, 1]`` or padded sequences ``[S, L]``, and the mask of what is not padding."""
        index = torch.from_numpy(self.arrays[f"mb/{k:02d}/index"].astype(np.int64))
        flat = {key: x.transpose(0, 1).flatten(0, 1)[index] for key, x in self.seen().items()}
        rows: dict[str, Any] = {"action": self.taken().transpose(0, 1).flatten(0, 1)[index]}
        found = {key: x.transpose(0, 1).flatten()[index] for key, x in estimates.items()}
        first = self.tensor("rollout/episode_start").transpose(0, 1).flatten()[index].bool()
        if self.lstm is None:
            fold, mask = (lambda x: x.unsqueeze(1)), torch.ones(len(index), 1, dtype=torch.bool)
        else:
            fold, mask = self.padded(k)
        extras = {key: fold(x) for key, x in found.items()}
        if self.lstm is not None:
            state = self.state(lambda x: x, f"mb/{k:02d}/")  # [S, width]
            extras[MEMORY_COLUMN] = state.unsqueeze(1).expand(-1, mask.shape[1], -1)
        none = torch.zeros_like(mask)
        batch = Batch(
            obs={key: fold(x) for key, x in flat.items()}, **{key: fold(x) for key, x in rows.items()},
            reward=torch.zeros(mask.shape), is_first=fold(first), is_last=~mask, is_terminal=none,
            weight=torch.ones(len(mask)), index=torch.arange(len(mask)), extras=extras,
        )  # fmt: skip
        return batch, mask

    def padded(self, k: int) -> tuple[View, Tensor]:
        """The function that lays rows ``[B, ...]`` out as sequences ``[S, L, ...]`` with zeros behind, and its mask."""
        starts, lengths = (self.arrays[f"mb/{k:02d}/seq_{name}"].tolist() for name in ("start", "len"))
        longest = max(lengths)
        mask = torch.arange(longest) < torch.tensor(lengths)[:, None]  # [S, L]

        def fold(x: Tensor) -> Tensor:
            out = x.new_zeros(len(starts), longest, *x.shape[1:])
            for row, (start, length) in enumerate(zip(starts, lengths, strict=True)):
                out[row, :length] = x[start : start + length]
            return out

        return fold, mask


class Projected(ObsConcat):
    """Observations through a linear layer: what sb3-contrib gives a critic without memory beside a policy with one."""

    def __init__(self, spec: ObsSpec, cfg: PolicyValueConfig, units: int) -> None:
        super().__init__(spec, cfg, torch.float32)
        self.linear = nn.Linear(self.width, units)
        self.width = units

    def forward(self, obs: Obs) -> Tensor:
        """Map observations to ``[..., units]``."""
        y: Tensor = self.linear(super().forward(obs))
        return y


def places(network: PolicyValue) -> dict[str, tuple[str, View]]:
    """Their names of parameters to ours, and to the views of ours, or of their gradients, that are theirs."""
    found: dict[str, tuple[str, View]] = {}
    both = (("actor", "policy", network.actor), ("critic", "value", network.critic))
    for ours, theirs, branch in both:
        layout = branch.body.layout
        for i in range(count := len(layout.widths) - 1):
            name = f"mlp_extractor.{theirs}_net.{2 * i}" if i < count - 1 else f"{theirs}_net"
            name = "action_net" if name == "policy_net" else name
            found[f"{name}.weight"] = (f"{ours}.body.theta", lambda x, i=i, of=layout: of.layers(x)[i][0][0].T)
            found[f"{name}.bias"] = (f"{ours}.body.theta", lambda x, i=i, of=layout: of.layers(x)[i][1][0, 0])
        for i in range(0 if branch.memory is None else len(branch.memory.cells)):
            for part in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
                found[f"lstm_{ours}.{part}_l{i}"] = (f"{ours}.memory.cells.{i}.{part}", lambda x: x)
        if isinstance(branch.inputs, Projected):
            found |= {f"critic.{part}": (f"critic.inputs.linear.{part}", lambda x: x) for part in ("weight", "bias")}
    if network.actor.log_std is not None:
        found["log_std"] = ("actor.log_std", lambda x: x)
    return found


@torch.no_grad()
def write(
    parameters: Mapping[str, Tensor], table: Mapping[str, tuple[str, View]], values: Mapping[str, Tensor]
) -> None:
    """Set our parameters to theirs."""
    for name, (ours, view) in table.items():
        view(parameters[ours]).copy_(values[name])


class Both:
    """Their parameters beside ours, and what collects the errors."""

    def __init__(self, rec: Recording, network: PolicyValue, result: Comparison) -> None:
        self.rec, self.result, self.table = rec, result, places(network)
        self.parameters = dict(network.named_parameters())
        if missing := rec.under("param/").keys() - self.table.keys():
            raise ConfigError(f"recorded with parameters that we lack: {', '.join(sorted(missing))}.")

    def show(self, name: str, values: Mapping[str, Tensor], kind: str, prefix: str, at: int | None = None) -> None:
        """Compare ``values`` of ours by name with their arrays below ``prefix``, relative to the largest number of all.

        A tensor whose numbers cancel out, such as the gradient of a bias, has large errors relative to itself.
        """
        recorded = self.rec.under(f"{prefix}/")
        recorded = recorded if at is None else {theirs: x[at] for theirs, x in recorded.items()}
        unit = max((float(np.abs(x).max()) for x in recorded.values()), default=0.0)
        for theirs, x in recorded.items():
            ours, view = self.table[theirs]
            self.result.add(f"{name}/{theirs}", view(values[ours]), x, kind, unit)

    @contextlib.contextmanager
    def at(self, k: int) -> Iterator[None]:
        """Within, our parameters are theirs before minibatch ``k`` of those applied."""
        own = {name: p.detach().clone() for name, p in self.parameters.items()}
        write(self.parameters, self.table, {name: self.rec.tensor(f"trace/param/{name}")[k] for name in self.table})
        yield
        with torch.no_grad():
            for name, p in self.parameters.items():
                p.copy_(own[name])

    def gradients(self, objective: OnPolicyObjective, batch: Batch, k: int, at: int) -> None:
        """Compare the gradients of minibatch ``k``, number ``at`` of those applied, and their norm."""
        total = objective(batch).total()
        found = dict(zip(self.parameters, torch.autograd.grad(total, list(self.parameters.values())), strict=True))
        ours = torch.stack([x.norm() for x in found.values()]).norm()
        self.result.add(f"mb/{k:02d}/grad_norm", ours, self.rec.arrays["mb/grad_norm"][k], "output")
        self.show(f"trace/{at:02d}/grad", found, "output", "trace/grad", at)
        if k == 0:
            self.show("first/grad", found, "output", "first/grad")


def compare(arrays: dict[str, np.ndarray], meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare everything in a recording; ``result`` collects the errors."""
    rec = Recording(arrays, meta)
    learner = rec.learner()
    both = Both(rec, learner.objective.network, result)
    estimates = compare_rollout(rec, learner, result)
    for k in range(int(rec.meta["minibatches"])):
        batch, mask = rec.minibatch(k, estimates)
        applied = int(rec.arrays["mb/applied"][:k].sum())
        with both.at(applied):
            compare_minibatch(rec, learner, batch, mask, k, result)
            if rec.arrays["mb/applied"][k]:
                both.gradients(learner.objective, batch, k, applied)
        taken = learner.update(batch)
        result.add(f"mb/{k:02d}/applied", float(taken.rollout_done is None), rec.arrays["mb/applied"][k], "output")
        both.show(
            f"trace/{applied + 1:02d}/param",
            both.parameters,
            "update",
            "trace/param",
            applied + (taken.rollout_done is None),
        )
        if k == 0:
            both.show("step1/param", both.parameters, "output", "step1/param")
    both.show("end/param", both.parameters, "update", "end/param")
    optim = learner.optim
    for theirs, ours in MOMENTS.items():
        moment = getattr(optim, ours, [])
        parts = optim._parts(moment) if isinstance(optim, FlatOptimizer) and len(moment) else moment
        moments = dict(zip(both.parameters, parts, strict=False))
        both.show(f"end/opt/{theirs}", moments, "update", f"end/opt/{theirs}")
    result.add("end/opt/step", learner.optim.updates, rec.arrays["mb/applied"].sum(), "update")


def compare_rollout(rec: Recording, learner: OnPolicy, result: Comparison) -> dict[str, Tensor]:
    """Compare what was said when the rollout was collected; return our estimates, ``[T, N]`` by name."""
    columns: dict[str, list[Tensor]] = {name: [] for name in ESTIMATE_COLUMNS}
    for env in range(rec.envs):
        batch, steps = rec.stream(env)
        found = learner.objective.estimates(batch)
        for name in ESTIMATE_COLUMNS:
            columns[name].append(found[name][0, steps])
    ours = {name: torch.stack(parts, 1) for name, parts in columns.items()}
    theirs = {
        "rollout/value": "value",
        "rollout/log_prob": "log_prob",
        "out/advantage": "advantage",
        "out/return": "target",
    }
    for name, mine in theirs.items():
        result.add(name, ours[mine], rec.arrays[name], "output", unit=1.0)
    unexplained = (ours["target"] - ours["value"]).var(correction=0) / ours["target"].var(correction=0)
    for call, recorded in enumerate(np.atleast_1d(rec.arrays["out/explained_variance"])):
        result.add(f"out/explained_variance/{call}", 1 - unexplained, recorded, "output", unit=1.0)
    return ours


def compare_minibatch(
    rec: Recording, learner: OnPolicy, batch: Batch, mask: Tensor, k: int, result: Comparison
) -> None:
    """Compare losses, and what the networks say of each row now."""
    with torch.no_grad():
        found, losses = learner.objective.evaluate_actions(batch), learner.objective(batch)
        values = {
            "advantage": learner.objective.advantage(batch), "value": found.value, "log_prob": found.log_prob,
            "entropy": found.entropy, "ratio": (found.log_prob - batch.extras["log_prob"]).exp(),
        }  # fmt: skip
        if isinstance(learner, PPO):
            values["value_pred"] = learner.objective.clipped_value(found.value, batch.extras["value"])
    for name, mine in values.items():
        if f"mb/{k:02d}/{name}" in rec.arrays:
            theirs = rec.arrays[f"mb/{k:02d}/{name}"].reshape(mask.shape)[mask.numpy()]
            result.add(f"mb/{k:02d}/{name}", mine[mask], theirs, "output", unit=1.0)
    said = {theirs: losses.metrics.get(ours) for theirs, ours in METRICS.items()}
    said |= {"loss": losses.total(), "entropy_loss": -losses.metrics["train/entropy"]}
    for name, mine in said.items():
        if f"mb/{name}" in rec.arrays:
            result.add(f"mb/{k:02d}/{name}", mine, rec.arrays[f"mb/{name}"][k], "output", unit=1.0)
