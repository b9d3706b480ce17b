"""The definitions of the metrics of an update, and access to them by attributes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor


class Measured(dict[str, Tensor]):
    """The metrics of an update by their logged names; ``measured.loss_critic`` is ``measured["loss/critic"]``.

    They are detached, and on the learner's device. A prefix of other names is a mapping:
    ``measured.loss_reconstruction["image"]`` is ``measured["loss/reconstruction/image"]``. AttributeError if the update
    has no such metric. For differences between algorithms see the docstrings of their losses.
    """

    # ------------------------------------------------------------------ losses
    loss_actor: Tensor
    """Loss of the policy."""
    loss_critic: Tensor
    """Loss of the critics: of temporal differences E[w L(Q(s, a) - y)], summed over the critics, without penalties; of
    on-policy learners E[(V - target)^2]; of world models, the loss of the value head on imagined rows."""
    loss_value: Tensor
    """IQL: expectile loss of the value network, equation 5."""
    loss_temperature: Tensor
    """SAC: E[-alpha (ln pi(a | s) + target entropy)]."""
    loss_bc: Tensor
    """Imitation of the dataset's actions in addition to another loss: E[(pi(s) - a)^2] of TD3+BC, summed over the
    dimensions of an action in ReBRAC, E[-ln G(a | s)] of discrete BCQ with the regularizer of its logits."""
    loss_conservative: Tensor
    """CQL penalty: its weight times ``train/conservative_gap``, less the threshold with lagrange, over all critics."""
    loss_lagrange_multiplier: Tensor
    """CQL with lagrange: loss of the multiplier, -multiplier (gap - threshold)."""
    loss_vae: Tensor
    """BCQ: loss of the VAE, reconstruction error plus half of the divergence."""
    loss_flow: Tensor
    """FQL: mean squared error of the velocity."""
    loss_distillation: Tensor
    """FQL: mean squared distance of the one-step policy to the flow, before it is multiplied by alpha."""
    loss_discriminator: Tensor
    """GAIL: -E_expert[ln D] - E_agent[ln(1 - D)]: 2 ln 2 if D = 0.5 everywhere, 0 if it is always right."""
    loss_intrinsic: Tensor
    """RND: prediction error of the target network's outputs, the mean over outputs and rows."""
    loss_penalty: Tensor
    """GAIL: gradient penalty E[(|grad f| - 1)^2], before it is multiplied by its weight."""
    loss_consistency: Tensor
    """TD-MPC2: mean squared error of predicted latents."""
    loss_reconstruction: Tensor | Mapping[str, Tensor]
    """-ln p of each observation by key: a sum of squares, or the classification loss; of BCQ the mean squared error of
    decoded actions."""
    loss_reward: Tensor
    """-ln p of the rewards of replayed rows; of TD-MPC2 a cross entropy."""
    loss_cont: Tensor
    """Cross entropy of the continuation of replayed rows, which may include the discount; 0 if it is not learned."""
    loss_termination: Tensor
    """TD-MPC2: cross entropy of the termination of replayed rows."""
    loss_mask: Tensor
    """-ln p of masks of legal actions, summed over the actions."""
    loss_dynamics: Tensor
    """DreamerV3: KL that trains the prior, the mean of max(free_nats, KL[sg(posterior) | prior])."""
    loss_representation: Tensor
    """DreamerV3: KL that makes the posterior predictable, the mean of max(free_nats, KL[posterior | sg(prior)])."""
    loss_kl: Tensor
    """DreamerV1 and V2: KL loss, with free nats."""
    loss_replay_critic: Tensor
    """DreamerV3: loss of the critic on replayed rows."""
    loss_aux: Tensor
    """DreamerV2: loss of the auxiliary critic."""
    loss_probe: Mapping[str, Tensor]
    """-ln p of what the probes predict, by key."""
    loss_ensemble: Tensor
    """Plan2Explore: -ln p of the ensemble, the sum over its models."""
    loss_barlow: Tensor
    """R2-Dreamer: Barlow Twins loss."""
    loss_infonce: Tensor
    """InfoNCE in nats."""
    loss_swav: Tensor
    """DreamerPro: cross entropy of the prototypes of one view given the other, in nats."""
    loss_temporal: Tensor
    """DreamerPro: cross entropy of prototypes given the latent, in nats."""
    loss_projection_norm: Tensor
    """DreamerPro: mean squared distance of the projections' lengths from 1."""

    # ------------------------------------------------------------------ values, policy
    train_value: Tensor
    """Mean value: Q of the taken actions over all critics, of a distribution its mean; V of on-policy learners, and of
    imagined rows by the critic."""
    train_value_max: Tensor
    """Largest Q of a taken action, the mean over all critics."""
    train_target: Tensor
    """Mean target of the critic; of world models the mean imagined lambda-return, unscaled."""
    train_target_max: Tensor
    """Largest target of the critic."""
    train_state_value: Tensor
    """IQL: mean V(s)."""
    train_slow_value: Tensor
    """Mean value of imagined rows by the slow critic."""
    train_advantage: Tensor
    """Mean advantage: of the dataset's actions; of DreamerV3 imagined return less value, over the scale of returns."""
    train_advantage_std: Tensor
    """Standard deviation of the advantage."""
    train_advantage_magnitude: Tensor
    """Mean absolute advantage."""
    train_weight: Tensor
    """Mean weight of the dataset's actions in the actor's loss (CRR, IQL); of DreamerV3 the mean probability that an
    imagined row is reached, discount included."""
    train_entropy: Tensor | Mapping[str, Tensor]
    """Entropy of the policy in nats; of DreamerV2 and V3 by part of the action."""
    train_importance_ratio: Tensor
    """IMPALA: mean ratio pi(a|s) / mu(a|s) of the present policy to the policy that acted, before it is bounded."""
    train_temperature: Tensor
    """SAC: alpha, the weight of the entropy."""
    train_lambda: Tensor
    """TD3+BC, ReBRAC and FQL: lambda, the weight of the value, alpha (here 1 but for TD3+BC) over the mean absolute
    value."""
    train_approx_kl: Tensor
    """PPO: KL divergence of the policy that acted from the present one, estimated as E[rho - 1 - ln rho] (Schulman
    2020)."""
    train_clip_fraction: Tensor
    """PPO: fraction of the ratios outside of the clip range."""
    train_conservative_gap: Tensor
    """CQL: soft maximum of Q less Q of the dataset's actions, which the penalty lowers."""
    train_below_floor: Tensor
    """Cal-QL: fraction of the policy's actions whose values are below the floor."""
    train_intrinsic_reward: Tensor
    """RND: mean intrinsic reward of the rows of the batch, before the predictor learns from them."""
    train_lagrange_multiplier: Tensor
    """CQL with lagrange: the multiplier, which is the weight of the penalty."""
    train_divergence: Tensor
    """BCQ: KL(N(mean, std) || N(0, 1)) in nats, per dimension of the latent. BMPC: KL(policy || planner) in nats, per
    dimension of the action."""
    train_expert_prob: Tensor
    """GAIL: mean D of the expert's actions."""
    train_agent_prob: Tensor
    """GAIL: mean D of the agent's actions."""
    train_gail_reward: Tensor
    """GAIL: mean reward of the agent's actions from the discriminator, which SAC maximizes."""
    train_scale: Tensor
    """TD-MPC2: the scale of values."""

    # ------------------------------------------------------------------ world models
    train_prior_entropy: Tensor
    """Entropy of the prior in nats, summed over the stochastic variables."""
    train_posterior_entropy: Tensor
    """Entropy of the posterior in nats, summed over the stochastic variables."""
    train_kl: Tensor
    """DreamerV1 and V2: KL[posterior | prior] in nats."""
    train_reward: Tensor
    """Mean imagined reward per step."""
    train_reward_std: Tensor
    """Standard deviation of imagined rewards."""
    train_normalized_reward: Tensor
    """DreamerV2: mean imagined reward after normalization."""
    train_normalized_reward_std: Tensor
    """Standard deviation of this reward."""
    train_cont: Tensor
    """DreamerV3: mean imagined probability to continue, discount included."""
    train_return: Tensor
    """DreamerV3: mean scaled return, imagined return less the low percentile, over the scale of returns."""
    train_return_min: Tensor
    """Smallest scaled return."""
    train_return_max: Tensor
    """Largest scaled return."""
    train_return_rate: Tensor
    """Fraction of scaled returns whose absolute value is 1 or more."""
    train_return_scale: Tensor
    """DreamerV3: scale of returns, the running range between their percentiles, at least ``return_norm_limit``."""
    train_probe: Mapping[str, Tensor]
    """Accuracy of the probes: ``KEY_accuracy`` of classes, the fraction of correct ones; ``KEY_mse`` of numbers, the
    mean squared error (``mse_goals`` of PyDreamer, summed over two coordinates, is twice that)."""
    train_mask_false_legal: Tensor
    """Fraction of illegal actions that are predicted to be legal."""
    train_mask_false_illegal: Tensor
    """Fraction of legal actions that are predicted to be illegal."""
    expl_train: Mapping[str, Tensor]
    """Plan2Explore: the metrics of ``train/`` for the exploring policy; ``reward`` is the weighted disagreement."""
    expl_loss: Mapping[str, Tensor]
    """Plan2Explore: losses of the exploring policy and critic."""
    expl_opt: Mapping[str, Tensor]
    """Plan2Explore-V3: the metrics of ``opt/`` for the optimizer of ensemble and exploring behavior."""

    # ------------------------------------------------------------------ optimizers
    opt_loss: Tensor | Mapping[str, Tensor]
    """The weighted sum of losses that an optimizer minimizes; by name if there are several."""
    opt_grad_norm: Tensor | Mapping[str, Tensor]
    """Norm of the gradient before clipping; absent where ``target_kl`` of PPO stops."""
    opt_grad_rms: Tensor
    """Root mean square of the gradient before clipping, over all parameters."""
    opt_update_rms: Tensor
    """Root mean square of the parameters' change."""
    opt_param_rms: Tensor
    """Root mean square of the parameters."""
    opt_lr: Tensor
    """Learning rate, warm-up included."""

    def __getattr__(self, field: str) -> Any:
        name = field.replace("_", "/", 1)
        if name in self:
            return self[name]
        if members := {key.removeprefix(f"{name}/"): x for key, x in self.items() if key.startswith(f"{name}/")}:
            return members
        raise AttributeError(f"this update measured no {name!r}; it measured {', '.join(self)}")
