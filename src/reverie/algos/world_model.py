"""The world model shared by the Dreamers: encoder, recurrent state-space model, decoder, reward and continuation.

The papers differ in the parts that their settings build, never in a flag of this file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from reverie.algos.imagination import Legal
from reverie.core.bounds import Regex
from reverie.core.specs import MASK_KEY, ActionSpec, ObsSpec, without_mask
from reverie.core.types import Batch, Metrics, Obs
from reverie.nn.decoder import Prediction
from reverie.nn.encoder import ARRIVAL_KEY, select_keys
from reverie.nn.heads import MaskHead
from reverie.nn.state_space import Latent, StateSpaceModel
from reverie.objectives.transforms import RewardTransform


class Context(NamedTuple):
    """The latent and the action before a row: where a sequence starts, and what a policy carries from step to step."""

    latent: Latent  # [B, ...]
    action: Tensor  # [B, A]


class Posterior(NamedTuple):
    """The world model's filtered latents of a batch."""

    embed: Tensor  # [B, T, E]
    latent: Latent  # [B, T, ...]
    stats: Tensor  # [B, T, S, n], of z's distribution: V3 has its probabilities, n = C


class WorldModel(nn.Module):
    """The networks that model observations, dynamics, rewards and ends of episodes."""

    encoder: Any

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec, cfg: Any) -> None:
        """Build the parts that ``cfg``, a :class:`DreamerConfig`, names."""
        super().__init__()
        observed_spec, weights = without_mask(obs_spec), cfg.loss_scales.reconstruction
        for pattern in weights if isinstance(weights, Mapping) else ():
            Regex().check("loss_scales.reconstruction", pattern)
            select_keys(observed_spec, pattern, "loss_scales.reconstruction")
        self.encoder = cfg.encoder.build(observed_spec)
        self.rssm: StateSpaceModel = cfg.rssm.build(self.encoder.width, action_spec.width)
        self.decoder: nn.Module = cfg.build_decoder(observed_spec)
        reward, cont = cfg.build_heads(self.rssm.feature_width)
        self.reward: nn.Module = reward
        self.cont: nn.Module = cont
        self.mask: MaskHead | None = None
        if MASK_KEY in obs_spec:
            with torch.random.fork_rng(devices=[]):  # all other parts get the same weights as without masks
                self.mask = MaskHead(self.rssm.feature_width, action_spec, cfg.cont)
        self.dtype: torch.dtype = cfg.dtype
        self.discount: float = cfg.learned_discount
        self.transform: RewardTransform = cfg.transform
        self.stopped: frozenset[str] = cfg.heads.difference(getattr(cfg, "grad_heads", cfg.heads))
        """The prediction heads whose losses give the latents no gradient."""

    def embed(self, obs: Obs, reward: Tensor | None = None, is_terminal: Tensor | None = None) -> Tensor:
        """Encode observations ``[..., *shape]`` to ``[..., E]``; some encoders also read rewards and ends ``[...]``."""
        if reward is not None and is_terminal is not None and getattr(self.encoder, "arrival", False):
            obs = {**obs, ARRIVAL_KEY: torch.stack([self.transform.forward(reward), is_terminal.to(reward.dtype)], -1)}
        return self.encoder(dict(obs), self.dtype)

    def observe(self, batch: Batch, context: Context | None = None, samples: int = 1) -> Posterior:
        """Filter a batch ``[B, T]`` that starts from ``context``; None: from the initial latent.

        With ``samples`` above 1, each window is repeated this many times in a row: the result, and ``context``, are
        ``[B * samples, ...]``.
        """
        embed = self.embed(batch.obs, batch.reward, batch.is_terminal)  # [B, T, E]
        if samples > 1:
            batch, embed = repeat_windows(batch, samples), embed.repeat_interleave(samples, 0)
        if context is None:
            context = Context(self.rssm.initial(batch.shape[0], self.dtype), torch.zeros_like(batch.action[:, 0]))
        before = torch.cat([context.action[:, None], batch.action[:, :-1]], 1)  # [B, T, A]
        latent, stats = self.rssm.observe(context.latent, embed, before, batch.is_first)
        return Posterior(embed, latent, stats)

    def predict(self, latent: Latent) -> tuple[dict[str, Prediction], Any, Any]:
        """Predict observations, reward and continuation from latents ``[..., D]``, ``[..., S, C]``."""
        feature = latent.feature  # [..., F]
        features = {part: feature.detach() if part in self.stopped else feature for part in ("reward", "cont")}
        decoded = self.decoder(latent.map(Tensor.detach) if "decoder" in self.stopped else latent)
        return decoded, self.reward(features["reward"]), self.cont(features["cont"])

    def prediction_losses(self, rows: Batch, latent: Latent) -> dict[str, Tensor]:
        """Return -ln p of rewards, continuations and observations ``[B, T]`` each, given latents ``[B, T, ...]``.

        The learned continuation includes the discount, so imagination applies no other.
        """
        decoded, reward, cont = self.predict(latent)
        alive = (~rows.is_terminal).float() * self.discount  # [B, T]
        terms = {
            "reward": reward.loss(self.transform.forward(rows.reward)),
            "cont": cont.loss(alive),
            **{f"reconstruction/{k}": prediction.loss(rows.obs[k]) for k, prediction in decoded.items()},
        }
        if self.mask is not None:
            terms["mask"] = self.mask.loss(latent.feature, rows.obs[MASK_KEY], rows.is_last)
        return terms

    @property
    def predict_mask(self) -> Legal | None:
        """A function from features ``[..., F]`` to the predicted masks ``[..., A]``; None: all actions are legal."""
        return None if self.mask is None else self.mask.legal

    @torch.no_grad()
    def mask_metrics(self, rows: Batch, latent: Latent) -> Metrics:
        """Return the fractions of illegal classes predicted as legal, and of legal classes predicted as illegal."""
        if self.mask is None:
            return {}
        predicted, legal = self.mask.legal(latent.feature), rows.obs[MASK_KEY]  # [B, T, A]
        has_action = ~rows.is_last.unsqueeze(-1)
        pairs = {"false_legal": (~legal & has_action, predicted), "false_illegal": (legal & has_action, ~predicted)}
        return {
            f"train/mask_{name}": (classes & wrong).sum() / classes.sum().clamp(min=1)
            for name, (classes, wrong) in pairs.items()
        }


def repeat_windows(batch: Batch, samples: int) -> Batch:
    """Return a batch ``[B * samples, T]`` in which each window is repeated ``samples`` times in a row."""
    return batch if samples == 1 else batch.map(lambda x: x.repeat_interleave(samples, 0))
