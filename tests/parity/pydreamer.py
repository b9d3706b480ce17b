"""Hold DreamerV2 with PyDreamer's settings against recordings of PyDreamer.

Every number of theirs is a number of ours, or of several tensors of ours, at some place and with some sign: see
:class:`Places`. All that they record of a forward pass is read off while ours takes its first update.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any
from unittest import mock

import numpy as np
import torch
from torch import Tensor, nn

from reverie.algos import dreamer_v2
from reverie.algos.dreamer_v2 import BehaviorLosses, DreamerV2, DreamerV2Config
from reverie.algos.world_model import Context
from reverie.core.errors import ConfigError
from reverie.core.specs import ObsPart
from reverie.core.types import Batch
from reverie.nn.actor import NormalTanh, TanhNormal
from reverie.nn.adam import Adam, GlobalAdamConfig
from reverie.nn.distributions import Categoricals, JointDistribution, straight_through
from reverie.nn.normals import Normal
from reverie.nn.optim import Optimizer
from reverie.nn.probe import Mlp
from reverie.objectives.kl import importance_bound
from reverie.objectives.policy import Dynamics, Reinforce

from .comparison import MISSING, Comparison
from .dreamer_v1_v2 import Arrays, Recording, Settings, Tensors, mode

RUN = (
    "allow_mid_reset", "batch_", "buffer_", "data_workers", "device", "enable_profiler", "env_", "eval_", "generator_",
    "image_key", "limit_", "log", "map_decoder", "map_key", "map_stoch_dim", "n_env", "n_steps",
    "offline_", "reset_interval", "save_", "separate_adams", "test_", "verbose",
)  # fmt: skip
"""Settings of theirs, by what they begin with, that change no update."""
FIXED = {"amp": False, "model": "dreamer"}
"""Settings of theirs that we have with this value only."""
CELLS = {"gru": "keras_gru", "gru_layernorm": "normed_gates_gru", "gru_layernorm_dv2": "bare_layer_norm_gru"}
"""Their names of cells to ours."""
NAMES = {"model": "", "probe": "_probe", "actor": "_actor", "critic": "_critic"}
"""Our optimizers, and how the names of their gradient norms end."""
GOALS = ("goal_direction", "goals_direction")
CONSTANT = 0.5 * math.log(2 * math.pi)
"""Our losses of normals have it for each number, theirs have not."""


class Places:
    """Where in our parameters each number of theirs is: read by indexing, written the other way round."""

    def __init__(self, parameters: Mapping[str, Tensor]) -> None:
        self.parameters = parameters
        self.table: dict[str, tuple[tuple[str, ...], Tensor, int]] = {}

    def put(self, path: str, names: str | tuple[str, ...], view: Any = lambda *x: x[0], sign: int = 1) -> None:
        """Note that ``path`` is ``view`` of our parameters of these names, times ``sign``."""
        names, start, counts = (names,) if isinstance(names, str) else names, 0, []
        for name in names:
            shape = self.parameters[name].shape
            counts.append(torch.arange(start, start + shape.numel()).view(shape))
            start += shape.numel()
        self.table[path] = names, view(*counts), sign

    def layer(self, path: str, name: str, view: Any = lambda x: x, sign: int = 1) -> None:
        """Note a layer's weight, of which ``view`` changes rows, and its bias."""
        for part in ("weight", "bias"):
            self.put(f"{path}.{part}", f"{name}.{part}", view, sign)

    def mlp(self, theirs: str, ours: str, layers: int, norm: bool, first: int = 0) -> str:
        """Note ``layers`` of [linear, norm, activation]; return the name of the linear layer that follows theirs."""
        for i in range(layers):
            place = i * (3 if norm else 2)
            self.layer(f"{theirs}.{first + 3 * i}", f"{ours}.{place}")
            if norm:
                self.layer(f"{theirs}.{first + 3 * i + 1}", f"{ours}.{place + 1}")
        return f"{theirs}.{first + 3 * layers}"

    def read(self, path: str, values: Mapping[str, Tensor | None]) -> Tensor:
        """Return tensors of ours, by the names of parameters, in the shape of ``path``; None stands for zeros."""
        names, index, sign = self.table[path]
        found = [values[n] for n in names]
        flat = [torch.zeros_like(self.parameters[n]) if x is None else x for n, x in zip(names, found, strict=True)]
        return sign * torch.cat([x.detach().reshape(-1) for x in flat])[index]

    @torch.no_grad()
    def write(self, path: str, theirs: Tensor) -> None:
        """Set our parameters.

        Raises:
            ConfigError: theirs has another shape.
        """
        names, index, sign = self.table[path]
        if theirs.shape != index.shape:
            raise ConfigError(f"{path} is {tuple(theirs.shape)}, ours ({', '.join(names)}) is {tuple(index.shape)}.")
        flat = torch.cat([self.parameters[n].reshape(-1) for n in names])
        flat[index.reshape(-1)] = sign * theirs.reshape(-1)
        for name, part in zip(names, flat.split([self.parameters[n].numel() for n in names]), strict=True):
            self.parameters[name].copy_(part.view(self.parameters[name].shape))

    def uncovered(self) -> list[str]:
        """Names of our parameters of which no number is theirs."""
        used: dict[str, int] = {}
        for names, index, _ in self.table.values():
            start = 0
            for name in names:
                size = self.parameters[name].numel()
                inside = (index >= start) & (index < start + size)
                used[name], start = used.get(name, 0) + int(inside.sum()), start + size
        return sorted(n for n, p in self.parameters.items() if p.requires_grad and used.get(n, 0) != p.numel())


class RecordingPyDreamer(Recording):
    """A recording of PyDreamer."""

    agent: DreamerV2

    def __init__(self, arrays: Arrays, meta: Mapping[str, Any]) -> None:
        self.conf, self.variant, self.arrays = meta["conf"], meta["variant"], arrays
        self.settings = Settings(meta["conf"], RUN, FIXED)
        self.samples, self.probe = self.conf["iwae_samples"], self.conf["probe_model"]
        self.forgotten = bool(self.conf.get("probe_gradients"))  # theirs gives these probes to no optimizer
        self.forgotten_grads: dict[str, Tensor | None] = {}
        self.gradients: dict[int, list[Tensor]] = {}
        self.agent = self.load()

    # ------------------------------------------------------------------ settings

    def obs_spec(self) -> dict[str, ObsPart]:
        """What was observed."""
        c, spec = self.conf, {}

        def grid(key: str) -> ObsPart:
            side, classes = c[f"{key}_size"], c[f"{key}_channels"]
            return ObsPart(kind="categorical", shape=(side, side), dtype="int64", classes=(classes,) * side**2)

        def vector(size: int) -> ObsPart:
            return ObsPart(kind="vector", shape=(size,), dtype="float32")

        if c["image_encoder"] or c["image_decoder"]:
            side = c["image_size"]
            colors = ObsPart(kind="image", shape=(side, side, c["image_channels"]), dtype="uint8")
            spec["image"] = grid("image") if c["image_categorical"] else colors
        if c["vecobs_size"]:
            spec["vecobs"] = vector(c["vecobs_size"])
        if "map" in self.probe:
            spec |= {"map": grid("map"), "map_coord": vector(4)}
        if "goals" in self.probe:
            spec |= {GOALS[0]: vector(2), GOALS[1]: vector(2 * c["goals_size"])}
        return spec

    def config(self) -> DreamerV2Config:
        """Our configuration with the recorded settings."""
        s, v = self.settings, self.variant
        image, vectors = (s["image_weight"], s["vecobs_weight"]) if s["image_decoder"] else (1.0, s["vecobs_weight"])
        values: dict[str, Any] = {
            "batch_size": v["B"], "batch_length": v["T"], "horizon": s["imag_horizon"], "discount": s["gamma"],
            "lam": s["lambda_gae"], "reward_transform": s["clip_rewards"] or "identity", "entropy_coef": s["entropy"],
            "return_estimator": "next_reward", "slow_update_interval": s["target_interval"],
            "slow_update_order": "before", "imagine_with": "same",
            "posterior_samples": s["iwae_samples"], "carry_state": s["keep_state"],
            "kl": f"balanced_kl({s['kl_balance']})", "loss_scales.kl": s["kl_weight"],
            "loss_scales.reward": s["reward_weight"], "loss_scales.cont": s["terminal_weight"],
            "loss_scales.reconstruction": image, "loss_scales.vectors": vectors / image,
            "reward_support": tuple(s["reward_decoder_categorical"] or ()),
        }  # fmt: skip
        s.left -= {"image_weight", "image_categorical", "image_size", "image_channels", "vecobs_size"}
        return DreamerV2Config().merge(values | self.parts() | self.actions() | self.beside() | self.optimizers())

    def parts(self) -> dict[str, Any]:
        """Settings of the world model's parts and of the critic."""
        s, units, classes = self.settings, self.variant["hidden_dim_for_400"], self.settings["stoch_discrete"]
        depth, norm = s["cnn_depth"], "layer" if self.conf["layer_norm"] else "none"
        if "dense" in (s["image_encoder"], s["image_decoder"]) and not self.conf["image_categorical"]:
            raise ConfigError("recorded with dense coders of an image of colors, which we do not have.")
        values: dict[str, Any] = {
            "rssm.deter": s["deter_dim"], "rssm.hidden": s["hidden_dim"], "rssm.stoch": s["stoch_dim"],
            "rssm.latent": f"categorical({classes})" if classes else "gaussian('double_sigmoid', 0.1)",
            "rssm.cell": CELLS[s["gru_type"]], "rssm.layers": s["gru_layers"], "rssm.norm": norm,
            "encoder.outputs": self.variant["embed_dim_for_256"], "encoder.encode_reward": s["reward_input"],
            "encoder.class_units": (units,) * max(1, s["image_encoder_layers"]), "encoder.units": (units,) * 2,
            "decoder.class_units": (units,) * s["image_decoder_layers"],
            "decoder.class_unimix": float(s["image_decoder_min_prob"]), "decoder.units": (units,) * 4,
            "reward.layers": s["reward_decoder_layers"], "cont.layers": s["terminal_decoder_layers"],
        }  # fmt: skip
        for part in ("encoder", "decoder"):
            keys = ["image"] * bool(s[f"image_{part}"]) + ["vecobs"] * bool(self.conf["vecobs_size"])
            values |= {f"{part}.keys": "|".join(keys), f"{part}.depth": depth, f"{part}.norm": norm}
            values[f"{part}.cnn_norm"] = "none"
        for part in ("reward", "cont", "actor", "critic"):
            values |= {f"{part}.units": units, f"{part}.norm": norm}
        s.left -= {"layer_norm"}
        return values

    def actions(self) -> dict[str, Any]:
        """Settings of the policy."""
        s, dist = self.settings, self.settings["actor_dist"]
        kinds = {"onehot": TanhNormal(), "tanh_normal": TanhNormal(0.1, 0.0, 0), "normal_tanh": NormalTanh()}
        if dist not in kinds or (dist == "onehot") != (self.variant["act"]["kind"] == "categorical"):
            raise ConfigError(f"recorded with actor_dist = {dist}, which we do not have for these actions.")
        gradient = {"reinforce": Reinforce(), "dynamics": Dynamics(through_policy=True)}[s["actor_grad"]]
        s.left -= {"action_dim"}
        return {"actor.continuous": kinds[dist], "actor_gradient": gradient}

    def beside(self) -> dict[str, Any]:
        """Settings of probes and of the auxiliary critic."""
        s, units = self.settings, self.variant["hidden_dim_for_400"]
        norm, values = "layer" if self.conf["layer_norm"] else "none", {}
        layers, width = s["map_hidden_layers"], s["map_hidden_dim"]
        of_map = Mlp("map", inputs="map_coord", layers=layers, units=width, norm=norm)
        heads = {"map": of_map, "goals": Mlp("|".join(GOALS), units=units, norm="layer")}
        values["probe.heads"] = tuple(heads[name] for name in self.probe.split("+") if name != "none")
        values["probe.gradients"] = self.forgotten
        if self.conf.get("aux_critic"):
            values |= {"aux.weight": s["aux_critic_weight"], "aux.slow_update_interval": s["target_interval_aux"]}
            values |= {"aux.discount": s["gamma_aux"], "aux.lam": s["lambda_gae_aux"]}
            values |= {"aux.head.units": units, "aux.head.norm": norm}
        s.left -= {"aux_critic", "aux_critic_weight", "gamma_aux", "lambda_gae_aux", "target_interval_aux"}
        s.left -= {k for k in s.left if k.startswith(("map_", "goals_", "probe_"))}
        return values

    def optimizers(self) -> dict[str, Any]:
        """Settings of the optimizers."""
        s, values = self.settings, {}
        for name in ("model", "probe", "actor", "critic"):
            behaves = name in ("actor", "critic")
            ours = "probe.optim" if name == "probe" else f"{name}_optim"
            values |= {
                f"{ours}.implementation": "torch", f"{ours}.eps": s["adam_eps"], f"{ours}.weight_decay": 0.01,
                f"{ours}.lr": (behaves and s[f"adam_lr_{name}"]) or s["adam_lr"],
                f"{ours}.max_grad_norm": float((behaves and s["grad_clip_ac"]) or s["grad_clip"]),
            }  # fmt: skip
        return values

    # ------------------------------------------------------------------ parameters

    def load(self) -> DreamerV2:
        """Our agent with the recorded weights.

        Raises:
            ConfigError: a recorded parameter has no place in ours, or the other way round.
        """
        agent = self.agent = self.config().build(self.obs_spec(), self.action_spec())
        self.settings.check()
        self.places, recorded = self.placed(agent), self.under("param/")
        self.kept = {k: v for k, v in recorded.items() if k.startswith("wm.ac_aux.actor.") or k.endswith("._support")}
        self.dummy = nn.Parameter(torch.from_numpy(recorded.get("probe_model.dummy", np.zeros(1))))
        known = {*self.places.table, *self.kept} | ({"probe_model.dummy"} if self.probe == "none" else set())
        if strangers := sorted(set(recorded) ^ known) + self.places.uncovered():
            raise ConfigError(f"parameters without a counterpart: {', '.join(strangers)}.")
        for path in self.places.table:
            self.places.write(path, torch.from_numpy(recorded[path]))
        optim: GlobalAdamConfig = agent.cfg.probe.optim
        self.dummy_optim = optim.build([self.dummy])
        if self.forgotten:
            agent.optims["model"] = agent.cfg.model_optim.build(
                p for part in (agent.world, agent.aux) if part is not None for p in part.parameters()
            )
        return agent

    def placed(self, agent: DreamerV2) -> Places:
        """Where in our parameters all of theirs are."""
        p, c, cfg = Places(dict(agent.named_parameters())), self.conf, agent.cfg
        norm, rssm, cell = c["layer_norm"], "world.rssm", "wm.core.cell"
        width = agent.world.rssm.width
        p.put(f"{cell}.z_mlp.weight", f"{rssm}.input.weight", lambda w: w[:, :width])
        p.put(f"{cell}.z_mlp.bias", f"{rssm}.input.bias")
        p.put(f"{cell}.a_mlp.weight", f"{rssm}.input.weight", lambda w: w[:, width:])
        p.put(f"{cell}.post_mlp_h.weight", f"{rssm}.posterior.first.weight", lambda w: w[:, : cfg.rssm.deter])
        p.put(f"{cell}.post_mlp_h.bias", f"{rssm}.posterior.first.bias")
        p.put(
            f"{cell}.post_mlp_e.weight", f"{rssm}.posterior.first.weight", lambda w: self.embed(w[:, cfg.rssm.deter :])
        )
        p.layer(f"{cell}.prior_mlp_h", f"{rssm}.prior_net.first")
        for theirs, ours in (("post", "posterior"), ("prior", "prior_net")):
            p.layer(f"{cell}.{theirs}_mlp", f"{rssm}.{ours}.rest.{2 if norm else 1}")
            if norm:
                p.layer(f"{cell}.{theirs}_norm", f"{rssm}.{ours}.rest.0")
        if norm:
            p.layer(f"{cell}.in_norm", f"{rssm}.after.0")
        for i in range(cfg.rssm.layers):
            self.place_cell(p, f"{cell}.gru.layers.{i}", f"{rssm}.gru" + f".cells.{i}" * (cfg.rssm.layers > 1))
        self.place_coders(p, agent)
        for theirs, ours, head in (("reward", "reward.out", cfg.reward), ("terminal", "cont.logit", cfg.cont)):
            last = p.mlp(f"wm.decoder.{theirs}.model.model", f"world.{ours.split('.')[0]}.mlp", head.layers, norm)
            p.layer(last, f"world.{ours}", sign=-1 if theirs == "terminal" else 1)  # of ending, of going on
        critics = [("ac.critic", "behavior.critic"), ("ac.critic_target", "behavior.slow_critic.model")]
        if agent.aux is not None:
            critics += [("wm.ac_aux.critic", "aux.critic"), ("wm.ac_aux.critic_target", "aux.slow.model")]
        for theirs, ours in critics:
            p.layer(p.mlp(f"{theirs}.model", f"{ours}.mlp", 4, norm), f"{ours}.out")
        last, outputs = p.mlp("ac.actor.model", "behavior.actor.mlp", 4, norm), "behavior.actor.parts.0.outputs"
        for part in ("weight", "bias"):
            names = tuple(f"{outputs}.{i}.{part}" for i in range(len(agent.actor.parts[0].outputs)))
            p.put(f"{last}.{part}", names, lambda *x: torch.cat(x))
        self.place_probe(p, agent)
        return p

    def place_cell(self, p: Places, theirs: str, ours: str) -> None:
        """Note a recurrent cell. Their gates are reset, update, new; ours update, reset, new, or reset, new, update."""
        kind = self.conf["gru_type"]

        def gates(x: Tensor) -> Tensor:
            return x.view(3, -1, *x.shape[1:])[[0, 2, 1] if kind.endswith("dv2") else [1, 0, 2]].flatten(0, 1)

        if kind == "gru_layernorm_dv2":
            width = self.conf["deter_dim"] // self.conf["gru_layers"]
            p.put(f"{theirs}.weight_ih.weight", f"{ours}.layer.weight", lambda w: gates(w[:, :-width]))
            p.put(f"{theirs}.weight_hh.weight", f"{ours}.layer.weight", lambda w: gates(w[:, -width:]))
            return p.layer(f"{theirs}.lnorm", f"{ours}.norm", gates)
        for short, name in (("ih", "from_input"), ("hh", "from_state")):
            if kind == "gru":
                p.put(f"{theirs}.weight_{short}", f"{ours}.{name}.weight", gates)
                p.put(f"{theirs}.bias_{short}", f"{ours}.{name}.bias", gates)
            else:
                p.put(f"{theirs}.weight_{short}.weight", f"{ours}.{name}.weight", gates)
        for i, name in enumerate(("update", "reset", "newval") if kind == "gru_layernorm" else ()):
            p.layer(f"{theirs}.ln_{name}", f"{ours}.norms.{i}")
        return None

    def place_coders(self, p: Places, agent: DreamerV2) -> None:
        """Note encoder and decoder."""
        c, norm, step = self.conf, self.conf["layer_norm"], 3 if self.conf["layer_norm"] else 2
        encoder, decoder, classes = agent.world.encoder, agent.world.decoder, c["image_channels"]
        for i in range(4):
            if encoder.images:
                p.layer(f"wm.encoder.encoder_image.model.{2 * i}", f"world.encoder.cnns.0.{2 * i}")
            if decoder.images:
                p.layer(f"wm.decoder.image.model.{2 * i + 2}", f"world.decoder.cnn.{2 * i}")
        if decoder.images:
            p.layer("wm.decoder.image.model.0", "world.decoder.enter")
        if encoder.grids:
            layers, cells = len(agent.cfg.encoder.class_units), c["image_size"] ** 2
            last = p.mlp("wm.encoder.encoder_image.model", "world.encoder.grid_mlp", layers, norm, 1)
            p.layer(last, f"world.encoder.grid_mlp.{step * layers}")

            def planes(w: Tensor) -> Tensor:  # theirs are C H W, ours H W C; then the planes of reward and terminal
                own = w[:, : cells * classes].view(-1, cells, classes).mT.flatten(1)
                return torch.cat([own, w[:, cells * classes :]], 1)

            p.put("wm.encoder.encoder_image.model.1.weight", "world.encoder.grid_mlp.0.weight", planes)
        if decoder.grids:
            last = p.mlp("wm.decoder.image.model", "world.decoder.grid_mlp", c["image_decoder_layers"], norm)
            p.layer(last, "world.decoder.grid_outputs.0", lambda x: channels_first(x, classes))
        if c["vecobs_size"]:
            last = p.mlp("wm.encoder.encoder_vecobs.model", "world.encoder.mlp", 2, norm)
            p.layer(last, f"world.encoder.mlp.{step * 2}")
            last = p.mlp("wm.decoder.vecobs.model.model", "world.decoder.mlp", 4, norm)
            p.layer(last, "world.decoder.outputs.0")

    def place_probe(self, p: Places, agent: DreamerV2) -> None:
        """Note the probes."""
        classes, several = self.conf["map_channels"], "+" in self.probe
        for i, key in enumerate(agent.probe.parts if agent.probe is not None else ()):
            head = agent.cfg.probe.heads[int(several and key != "map")]
            path = f"probe_model.{'map' if key == 'map' else 'goals'}_probe" if several else "probe_model"
            path += ".decoder.model" if key == "map" else f".decoders.{key}.model.model"
            last = p.mlp(path, f"probe.heads.{i}.0", head.layers, head.norm == "layer")
            p.layer(last, f"probe.heads.{i}.1", (lambda x: channels_first(x, classes)) if key == "map" else lambda x: x)

    def embed(self, x: Tensor) -> Tensor:
        """Embedded observations ``[..., E]`` in their order: the last images of a CNN are C H W."""
        if not self.agent.world.encoder.images:
            return x
        width = self.agent.world.encoder.cnns[0].width
        image = x[..., :width].unflatten(-1, (4, width // 4)).mT.flatten(-2)  # 2 x 2 pixels
        return torch.cat([image, x[..., width:]], -1)

    # ------------------------------------------------------------------ data and noise

    def batch(self, number: int) -> tuple[Batch, Tensor]:
        """One of the three batches as rows, and the action before them ``[B, A]``."""
        end = number if number > 1 else ""
        data = {k: torch.from_numpy(np.ascontiguousarray(v)) for k, v in self.under(f"data{end}/").items()}
        made = {k: torch.from_numpy(v).transpose(0, 1) for k, v in self.under(f"authors{end}/").items()}
        action = data["action"]
        if not action.is_floating_point():
            action = torch.nn.functional.one_hot(action.long(), self.variant["act"]["size"]).float()
        obs = {}
        for key, part in self.obs_spec().items():
            x = data[key] if key in data else made[key]
            obs[key] = x.long() if part.kind == "categorical" else x
        self.seen = made.get("map_seen_mask")
        flags = {k: data[k] for k in ("reward", "is_first", "is_last", "is_terminal")}
        rows = torch.arange(len(action))
        return Batch(obs=obs, action=action, weight=torch.ones(len(rows)), index=rows, **flags), data["prev_action"]

    def random(self, number: int) -> tuple[Callable[[Tensor], Tensor], Callable[[JointDistribution], Tensor]]:
        """What is drawn in batch ``number``: the recorded noise, or the likeliest."""
        noise = {k: torch.from_numpy(v) for k, v in self.under(f"noise{number if number > 1 else ''}/").items()}
        if not noise:
            return self.likeliest, mode
        shape = noise["post"].shape[:3]  # T, B, I

        def ours(x: Tensor) -> Tensor:  # of states (t, b, i), as (b, i, t)
            return x.unflatten(1, shape).permute(0, 2, 3, 1, *range(4, x.ndim + 2)).flatten(1, 3)

        latents = itertools.chain(noise["post"].flatten(1, 2), ours(noise["dream_stoch"]))
        actions, gaussian = iter(ours(noise["dream_action"])), self.agent.cfg.rssm.latent.classes == 1

        def choose(x: Tensor) -> Tensor:
            return next(latents) if gaussian else (x.log() + next(latents)).argmax(-1)

        def pick(policy: JointDistribution) -> Tensor:
            (part,), drawn = policy.parts.values(), next(actions, None)
            if drawn is None:
                return mode(policy)
            if isinstance(part, Categoricals):
                return straight_through(part.probs[..., 0, :], (part.log_probs + drawn).argmax(-1))
            sample = part.mean + part.std * drawn
            return sample if type(part) is Normal else sample.tanh()

        return choose, pick

    def rows(self, x: Tensor) -> Tensor:
        """Values of rows ``[B * I, T, ...]`` as theirs, ``[T, B, I, ...]``."""
        return x.unflatten(0, (-1, self.samples)).permute(2, 0, 1, *range(3, x.ndim + 1))

    def dreamt(self, x: Tensor) -> Tensor:
        """Imagined values ``[H, B * I, T, ...]``, with states as theirs, (t, b, i)."""
        x = x.unflatten(1, (-1, self.samples))  # [H, B, I, T, ...]
        return x.permute(0, 3, 1, 2, *range(4, x.ndim)).flatten(1, 3)

    def bound(self, x: Tensor) -> Tensor:
        """The bound of losses ``[T, B, I]``, ``[T, B]``."""
        return importance_bound(x.flatten(0, 1).flatten(), self.samples).view(x.shape[:2])

    # ------------------------------------------------------------------ values under their names

    def world_side(self, rows: Batch, post: Any, terms: Tensors, losses: Tensors, more: Tensors) -> Tensors:
        """What the world model and the probes say of the recorded rows, at the present weights."""
        agent, world, latent, cfg = self.agent, self.agent.world, post.latent, self.agent.cfg
        kind, raw = cfg.rssm.latent, world.rssm.prior_net(latent.deter)
        prior, one = world.rssm.stats(raw), slice(None, None, self.samples)
        decoded, reward, cont = world.predict(latent)
        exact = kind.kl(post.stats, prior)
        used = terms["kl"] if self.samples > 1 else exact
        spec = {k: part.shape for k, part in agent.obs_spec.items() if part.kind != "categorical"}
        own = {"terminal": terms["cont"], "reward": terms["reward"] - CONSTANT * (not cfg.reward_support)}
        own |= {k: terms[f"reconstruction/{k}"] - CONSTANT * math.prod(spec.get(k, (0,))) for k in decoded}
        own = {k: self.rows(v) for k, v in own.items()}
        c = self.conf
        reconstr = sum(c[f"{k}_weight"] * v for k, v in own.items())
        model = c["kl_weight"] * self.rows(used) + reconstr
        entropy = {"post": kind.entropy(post.stats), "prior": kind.entropy(prior)}
        tensors = {f"loss_{k}": self.bound(v) for k, v in own.items()} | {"loss_kl": self.bound(self.rows(exact))}
        tensors |= {f"entropy_{k}": self.rows(v).mean(2) for k, v in entropy.items()}
        out = {
            "embed": self.embed(post.embed[one]).transpose(0, 1), "prior": self.rows(raw), "kl_exact": self.rows(exact),
            "post": self.rows(world.rssm.posterior(torch.cat([latent.deter, post.embed], -1))),
            "post_samples": self.rows(latent.stoch.flatten(-2)), "states_h": self.rows(latent.deter),
            "features": self.rows(latent.feature), "kl_used": self.rows(used), "loss_reconstr": reconstr,
            "loss_model_tbi": model, "loss_model_tb": self.bound(model), "reward_mean": self.rows(reward.mean()),
            "terminal_logits": -self.rows(cont.logit), "terminal_mean": 1 - self.rows(cont.prob()),
            "out_state_h": latent.deter[:, -1], "out_state_z": latent.stoch[:, -1].flatten(1),
            **{f"loss_{k}_tbi": v for k, v in own.items()},
        }  # fmt: skip
        tensors |= {"reward_rec": out["reward_mean"].mean(2), "terminal_rec": out["terminal_mean"].mean(2)}
        if cfg.reward_support:
            out["reward_logits"] = torch.log_softmax(self.rows(reward.logits), -1)
        if "vecobs" in decoded:
            out["vecobs_mean"] = self.rows(decoded["vecobs"].mean)
            tensors["vecobs_rec"] = out["vecobs_mean"].mean(2)
        if "image" in decoded and c["image_categorical"]:
            out["image_logits"] = self.grid(decoded["image"], "image")
            tensors["image_rec"] = agreed(out["image_logits"])
        elif "image" in decoded:
            tensors["image_rec"] = self.rows(decoded["image"].mean).mean(2).permute(0, 1, 4, 2, 3)
        metrics = {k: v.mean() for k, v in tensors.items() if not k.endswith("_rec")}
        metrics["loss_model"] = out["loss_model_tb"].mean()
        own_loss = metrics["loss_model"]
        if agent.aux is not None:
            value = agent.aux.critic(latent.feature[one]).mean().T  # [T, B]
            tensors["policy_value_aux"] = value
            metrics |= {"policy_value_aux": value[:-1].mean(), "loss_critic_aux": self.aux_loss(rows, latent, one)}
            own_loss = own_loss + cfg.aux.weight * metrics["loss_critic_aux"]
        probed, more_tensors, more_metrics = self.probe_side(rows, latent.feature)
        tensors, metrics = tensors | more_tensors, metrics | more_metrics
        joint = {"loss/model_probe": own_loss + probed} if self.forgotten else {"loss/model": own_loss}
        out |= joint if self.forgotten else joint | {"loss/probe": probed}
        return out | {f"tensor/{k}": v for k, v in tensors.items()} | {f"metric/{k}": v for k, v in metrics.items()}

    def aux_loss(self, rows: Batch, latent: Any, one: slice) -> Tensor:
        """The auxiliary critic's loss without the constant of a normal."""
        aux, reward = self.agent.aux, self.agent.world.transform.forward(rows.reward[one])
        assert aux is not None
        ends = rows.is_terminal[one]
        weight = (~ends.T).float().cumprod(0)[:-1]
        return (aux.loss(latent.feature[one], reward, ends) - weight * CONSTANT).mean()

    def grid(self, prediction: Any, key: str) -> Tensor:
        """Logits of a grid of classes, ``[T, B, I, C, H, W]``."""
        side = self.conf[f"{key}_size"]
        return self.rows(prediction.dist.padded).mT.unflatten(-1, (side, side))

    def probe_side(self, rows: Batch, feature: Tensor) -> tuple[Tensor, Tensors, Tensors]:
        """The loss of the probes, tensors and metrics."""
        probe, tensors, metrics = self.agent.probe, {}, {}
        if probe is None:
            return self.dummy.square().sum(), {}, {}
        for key, prediction in probe(feature, rows.obs).items():
            constant = 0.0 if key == "map" else CONSTANT * rows.obs[key].shape[-1]
            tensors[f"loss_{key}"] = self.bound(self.rows(prediction.loss(rows.obs[key]) - constant))
            metrics[f"loss_{key}"] = tensors[f"loss_{key}"].mean()
            if key == "map":
                tensors["map_rec"] = agreed(self.grid(prediction, "map"))
                right = tensors["map_rec"].argmax(2) == self.first(rows.obs["map"])  # [T, B, H, W]
                tensors["acc_map"] = right.float().mean((-2, -1))
                metrics["acc_map"] = tensors["acc_map"].nanmean()
                if self.seen is not None:
                    seen = self.seen.transpose(0, 1)
                    metrics["acc_map_seen"] = ((right * seen).sum((-2, -1)) / seen.sum((-2, -1))).nanmean()
            else:
                tensors[f"{key}_pred"] = self.rows(prediction.mean).mean(2)
        if "goals_direction" in probe.parts:
            goals = self.first(rows.obs["goals_direction"])
            error = (goals - tensors["goals_direction_pred"]).square().unflatten(-1, (-1, 2)).sum(-1)
            spread = goals.flatten(0, 1).var(0).view(-1, 2).sum(-1)
            metrics |= {"mse_goals": error.mean(), "var_goals": spread.mean()}
        return torch.stack([v for k, v in metrics.items() if k.startswith("loss_")]).sum(), tensors, metrics

    def first(self, x: Tensor) -> Tensor:
        """Observations of repeated rows ``[B * I, T, ...]`` as theirs, ``[T, B, ...]``."""
        return x[:: self.samples].transpose(0, 1)

    def dream_side(self, losses: BehaviorLosses) -> Tensors:
        """Imagined trajectories, at the present weights."""
        behavior, feature, t = self.agent.behavior, losses.dream.feature, losses.terms
        hidden = behavior.actor.mlp(feature)
        policy, gamma = behavior.actor.heads(hidden[:-1]), self.agent.cfg.discount
        action, ends, slow, reward = (
            losses.dream.action[:-1],
            1 - t["discount"],
            t["slow_value"],
            t["normalized_reward"],
        )
        online = behavior.critic(feature).mean()
        values = {
            "features": feature, "actions": action, "rewards": reward, "terminals": ends, "value": slow,
            "actor_raw": torch.cat([layer(hidden) for layer in behavior.actor.parts[0].outputs], -1),
            "value_online": online, "value_advantage": reward[1:] + gamma * (1 - ends[1:]) * slow[1:] - slow[:-1],
            "value_advantage_gae": t["advantage"], "value_target": t["target"], "value_weight": t["weight"][:-1],
            "policy_entropy": policy.entropy(), "policy_logp": policy.log_prob(action),
        }  # fmt: skip
        start = self.dreamt(online)[0].view(self.variant["T"], -1, self.samples)
        critic = (losses.critic - t["weight"][:-1] * CONSTANT).mean()
        metrics = {
            "loss_actor": losses.actor.mean(), "loss_critic": critic, "policy_entropy": values["policy_entropy"].mean(),
            "policy_value": online[0].mean(), "policy_value_im": online[:-1].mean(), "policy_reward": reward[1:].mean(),
            "policy_reward_std": reward[1:].std(),
        }  # fmt: skip
        out = {f"dream/{k}": self.dreamt(v) for k, v in values.items()} | {"tensor/policy_value": start.mean(-1)}
        out |= {"loss/actor": metrics["loss_actor"], "loss/critic": metrics["loss_critic"]}
        return out | {f"metric/{k}": v for k, v in metrics.items()}

    # ------------------------------------------------------------------ comparisons

    def noted(self, rows: Batch, context: Context, number: int) -> tuple[Tensors, Any]:
        """Take an update; return all values before it, under their names, and the posterior."""
        agent, found = self.agent, {}
        own, dreaming = agent.losses, dreamer_v2.imagination_loss_v2

        def world(rows: Batch, post: Any, terms: Tensors) -> Any:
            result = own(rows, post, terms)
            with torch.no_grad():
                found.update(self.world_side(rows, post, terms, *result))
            if self.forgotten and agent.probe is not None:
                names = [f"probe.{n}" for n, _ in agent.probe.named_parameters()]
                grads = torch.autograd.grad(result[0]["model"], list(agent.probe.parameters()), retain_graph=True)
                self.forgotten_grads = dict(zip(names, grads, strict=True))
            return result

        def dream(*args: Any) -> BehaviorLosses:
            result: BehaviorLosses = dreaming(*args)
            with torch.no_grad():
                found.update(self.dream_side(result))
            return result

        self.draw(number)
        with (
            mock.patch.object(Adam, "gradients", self.noted_gradients),
            mock.patch.object(agent, "losses", world),
            mock.patch.object(dreamer_v2, "imagination_loss_v2", dream),
        ):
            _, metrics, post = agent.learn(rows, context)
        norms = {k: metrics.get(f"opt/grad_norm/{k}") for k in NAMES}
        if self.probe == "none":
            grads = self.dummy_grads = self.dummy_optim.gradients(self.dummy.square().sum())
            if not self.forgotten:
                norms["probe"] = self.dummy_optim.apply(grads)["opt/grad_norm"]
        found |= {f"grad_norm/grad_norm{NAMES[k]}": v for k, v in norms.items() if v is not None}
        return found, post

    def compare(self, result: Comparison) -> None:
        """The whole comparison."""
        rows, before = self.batch(1)
        acting, agent = self.acting(rows, before), self.agent
        if agent.cfg.carry_state:
            agent.carried_action.copy_(before.repeat_interleave(self.samples, 0))
        for number in (1, 2, 3):
            rows, before = self.batch(number)
            action = before.repeat_interleave(self.samples, 0)
            found, post = self.noted(rows, agent.carried_context() or self.start(len(action), action), number)
            agent.store_carried_state(rows, post)
            if number == 1:
                found["acting/action"] = acting
                for name, theirs in self.under("out/").items():
                    kind = "update" if name.startswith("grad_norm/") else "output"
                    result.add(f"out/{name}", found.get(name, MISSING), theirs, kind)
                self.compare_parameters("grad/", result)
            self.compare_step(number, found, result)

    def compare_step(self, number: int, found: Tensors, result: Comparison) -> None:
        """What is recorded of an update."""
        names = {"state_h": "out_state_h", "state_z": "out_state_z"}
        for name, theirs in self.under(f"step{number}/").items():
            if not name.startswith("param/"):
                ours = found.get(names.get(name, name))
                if ours is None:
                    ours = found.get(f"grad_norm/{name.removeprefix('metric/')}", MISSING)
                result.add(f"step{number}/{name}", ours, theirs, "update")
        self.compare_parameters(f"step{number}/param/", result)

    def compare_parameters(self, prefix: str, result: Comparison) -> None:
        """All parameters, or their gradients."""
        grads, parameters = prefix == "grad/", self.places.parameters
        values = self.clipped() if grads else parameters
        for path, theirs in self.under(prefix).items():
            if path in self.kept:
                ours: Any = np.zeros_like(theirs) if grads else self.kept[path]
                if path.endswith("._support") and not grads:
                    ours = self.agent.world.reward.values
            elif path == "probe_model.dummy":
                ours = self.dummy_grads[0] if grads else self.dummy
            else:
                ours = self.places.read(path, values) if path in self.places.table else MISSING
            result.add(f"{prefix}{path}", ours, theirs, "update")

    @property
    def noted_gradients(self) -> Any:
        """``Optimizer.gradients``, which also keeps the result, by the optimizer's id."""

        def gradients(optim: Adam, loss: Tensor, keep: bool = False) -> list[Tensor]:
            self.gradients[id(optim)] = grads = Optimizer.gradients(optim, loss, keep)
            return grads

        return gradients

    def clipped(self) -> dict[str, Tensor | None]:
        """Gradients after clipping, as theirs are recorded, by the names of our parameters."""
        values: dict[str, Tensor | None] = dict(self.forgotten_grads)
        for optim in self.agent.optims.values():
            grads, clip = self.gradients[id(optim)], optim.max_grad_norm
            factor = clip / torch.stack([g.norm() for g in grads]).norm().clamp(min=clip)
            ours = {id(p): g * factor for p, g in zip(optim.params, grads, strict=True)}
            values |= {k: ours[id(p)] for k, p in self.places.parameters.items() if id(p) in ours}
        return {k: values.get(k) for k in self.places.parameters}


def channels_first(x: Tensor, classes: int) -> Tensor:
    """Rows of a layer whose outputs are the classes of each place, as theirs: the places of each class."""
    return x.view(-1, classes, *x.shape[1:]).transpose(0, 1).flatten(0, 1)


def agreed(logits: Tensor) -> Tensor:
    """Log-probabilities ``[T, B, C, H, W]`` on which all samples ``[T, B, I, C, H, W]`` agree."""
    return torch.log_softmax(torch.logsumexp(torch.log_softmax(logits, 3), 2), 2)


def compare(arrays: Arrays, meta: Mapping[str, Any], result: Comparison) -> None:
    """Compare a recording of PyDreamer."""
    RecordingPyDreamer(arrays, meta).compare(result)
