"""Divergences between categorical latents, and the free nats that keep them from collapsing."""

from __future__ import annotations

from torch import Tensor


def categorical_kl(log_p: Tensor, log_q: Tensor) -> Tensor:
    """Return KL(p || q) = sum_c p_c (ln p_c - ln q_c), summed over the S latents.

    Args:
        log_p: ``[..., S, C]`` normalised log-probabilities.
        log_q: ``[..., S, C]`` normalised log-probabilities.

    Returns:
        ``[...]`` in nats.
    """
    return (log_p.exp() * (log_p - log_q)).sum((-2, -1))


def dynamics_and_representation(log_post: Tensor, log_prior: Tensor, free_nats: float) -> tuple[Tensor, Tensor]:
    """Return L_dyn and L_rep: DreamerV3 (Hafner et al. 2025), equation 3.

    L_dyn = max(free, KL(sg(post) || prior)),  L_rep = max(free, KL(post || sg(prior))). The KL is summed over the
    latents *before* it is clipped.

    Args:
        log_post: ``[..., S, C]`` log-probabilities of the posterior, unimix included.
        log_prior: ``[..., S, C]`` log-probabilities of the prior, unimix included.
        free_nats: KL in nats below which there is no gradient.

    Returns:
        Two losses ``[...]``.
    """
    dynamics = categorical_kl(log_post.detach(), log_prior)  # [...]
    representation = categorical_kl(log_post, log_prior.detach())  # [...]
    return dynamics.clamp(min=free_nats), representation.clamp(min=free_nats)
