"""All kernels: which definition each replaces, and when. The first kernel that supports the inputs is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reverie.algos import base, dreamer, imagination, on_policy, planner
from reverie.core import columns
from reverie.core.kernel_dispatch import Kernel
from reverie.kernels import (
    capture,
    conv_relu,
    dreams,
    gpu,
    images,
    images_gpu,
    inference,
    losses,
    losses_gpu,
    mlp_gpu,
    optim,
    optim_gpu,
    policies_gpu,
    policy_graphs,
    relu_mlp,
    rows,
    rows_gpu,
    rssm,
    search,
    search_gpu,
    two_hot_gpu,
)
from reverie.kernels.compiler import compile_state
from reverie.nn import adam as nn_adam
from reverie.nn import (
    distributions,
    exploration,
    functional,
    latent_model,
    normalization,
    normals,
    number_distributions,
    preprocess,
    reward_scaling,
    state_space,
    target_network,
)
from reverie.nn import optim as nn_optim
from reverie.nn import relu_mlp as nn_relu_mlp
from reverie.objectives import estimators, policy, quantile, returns, td, tree_search
from reverie.replay import prioritized, windows
from reverie.run import turn

KERNELS: list[tuple[Callable[..., Any], Kernel]] = [
    (returns.td0, Kernel(losses.supports_td0, losses.td0_cpu)),
    (estimators.ValueEstimator.__call__, Kernel(losses_gpu.supports_td0_targets, losses_gpu.td0_targets_triton)),
    (td.masked_mean, Kernel(losses.supports_masked_mean, losses.masked_mean_cpu)),
    (td.masked_mean, Kernel(losses_gpu.supports_masked_mean_triton, losses_gpu.masked_mean_triton)),
    (td.squared_error, Kernel(losses.supports_td_error, losses.squared_error_cpu)),
    (td.squared_error, Kernel(losses_gpu.supports_td_error_triton, losses_gpu.squared_error_triton)),
    (td.huber_error, Kernel(losses.supports_td_error, losses.huber_error_cpu)),
    (td.huber_error, Kernel(losses_gpu.supports_td_error_triton, losses_gpu.huber_error_triton)),
    (quantile.quantile_huber, Kernel(losses.supports_quantile_huber, losses.quantile_huber_cpu)),
    (quantile.greedy_quantiles, Kernel(losses.supports_greedy_quantiles, losses.greedy_quantiles_cpu)),
    (quantile.quantile_targets, Kernel(losses.supports_quantile_targets, losses.quantile_targets_cpu)),
    (quantile.quantile_error, Kernel(losses.supports_quantile_error, losses.quantile_error_cpu)),
    (latent_model.normality, Kernel(losses.supports_normality, losses.normality_cpu)),
    (functional.cast_all, Kernel(gpu.supports_cast_all, gpu.cast_all_on_gpu)),
    (functional.norm_silu, Kernel(gpu.supports_norm_silu_triton, gpu.norm_silu_triton)),
    (functional.conv_pool_norm_silu, Kernel(images_gpu.supports_stage, images_gpu.conv_pool_norm_silu_triton)),
    (functional.conv_pool_norm_silu, Kernel(images.supports_conv_pool_norm_silu, images.conv_pool_norm_silu_cpu)),
    (functional.conv_unfold_norm_silu, Kernel(images_gpu.supports_stage, images_gpu.conv_unfold_norm_silu_triton)),
    (functional.conv_unfold_norm_silu, Kernel(images.supports_conv_unfold_norm_silu, images.conv_unfold_norm_silu_cpu)),
    (functional.conv_unfold_sigmoid, Kernel(images_gpu.supports_stage, images_gpu.conv_unfold_sigmoid_triton)),
    (functional.unit_squared_error, Kernel(images_gpu.supports_squared_error, images_gpu.unit_squared_error_triton)),
    (functional.conv_relu, Kernel(conv_relu.supports_conv_relu, conv_relu.conv_relu_cpu)),
    (distributions.Categoricals.sample, Kernel(gpu.supports_sample_classes, gpu.sample_classes_triton)),
    (policy.standardize, Kernel(losses_gpu.supports_standardize, losses_gpu.standardize_triton)),
    (policy.clipped_objective, Kernel(losses_gpu.supports_clipped_objective, losses_gpu.clipped_objective_triton)),
    (nn_optim.clip_grad_norm, Kernel(optim_gpu.supports_clip_grad_norm, optim_gpu.clip_grad_norm_triton)),
    (normals.normal_log_density, Kernel(policies_gpu.supports_normal_density, policies_gpu.normal_density_triton)),
    (functional.clipped_noise, Kernel(policies_gpu.supports_clipped_noise, policies_gpu.clipped_noise_triton)),
    (functional.scale_pixels, Kernel(policies_gpu.supports_scale_pixels, policies_gpu.scale_pixels_triton)),
    (normals.squash, Kernel(policies_gpu.supports_squash, policies_gpu.squash_triton)),
    (state_space.StateSpaceModel.observe, Kernel(rssm.supports_observe_compiled, rssm.observe_compiled)),
    (imagination.imagine, Kernel(dreams.supports_imagine, dreams.imagine_prepared)),
    (nn_relu_mlp.perceptron, Kernel(relu_mlp.supports_perceptron, relu_mlp.perceptron_cpu)),
    (nn_relu_mlp.perceptron, Kernel(mlp_gpu.supports_perceptron_triton, mlp_gpu.perceptron_triton)),
    (nn_relu_mlp.perceptron, Kernel(relu_mlp.supports_perceptron_by_layers, relu_mlp.perceptron_by_layers_cpu)),
    (nn_relu_mlp.regularized_perceptron, Kernel(relu_mlp.supports_normed_perceptron, relu_mlp.normed_perceptron_cpu)),
    (nn_adam.clip_by_norm, Kernel(optim_gpu.supports_clip_triton, optim_gpu.clip_by_norm_triton)),
    (nn_adam.adam, Kernel(optim.supports_adam, optim.adam_cpu)),
    (nn_adam.adam, Kernel(optim_gpu.supports_adam_triton, optim_gpu.adam_triton)),
    (nn_adam.adam, Kernel(optim.supports_fused_adam, optim.fused_adam)),
    (target_network.polyak_update, Kernel(optim.supports_polyak, optim.polyak_cpu)),
    (target_network.polyak_update, Kernel(optim_gpu.supports_polyak_triton, optim_gpu.polyak_triton)),
    (number_distributions.TwoHot.mean, Kernel(two_hot_gpu.supports_mean, two_hot_gpu.two_hot_mean_triton)),
    (number_distributions.TwoHot.loss, Kernel(two_hot_gpu.supports_loss, two_hot_gpu.two_hot_loss_triton)),
    (tree_search.select, Kernel(search.supports_search, search.select_cpu)),
    (tree_search.select, Kernel(search_gpu.supports_search_triton, search_gpu.select_triton)),
    (tree_search.backup, Kernel(search.supports_backup, search.backup_cpu)),
    (tree_search.backup, Kernel(search_gpu.supports_backup_triton, search_gpu.backup_triton)),
    (nn_optim.laprop, Kernel(gpu.supports_laprop, gpu.laprop_triton)),
    (base.run_step, Kernel(capture.supports_capture, capture.run_captured)),
    (columns.put_rows, Kernel(rows.has_compiled_functions, rows.put_rows_cpu)),
    (columns.extend_rows, Kernel(rows.has_compiled_functions, rows.extend_rows_cpu)),
    (columns.gather_rows, Kernel(rows.has_compiled_functions, rows.gather_rows_cpu)),
    (columns.gather_device_rows, Kernel(rows_gpu.supports_gather_device_rows, rows_gpu.gather_device_rows_triton)),
    (normalization.add_and_standardize, Kernel(rows.supports_add_and_standardize, rows.add_and_standardize_cpu)),
    (reward_scaling.add_returns, Kernel(rows.supports_add_returns, rows.add_returns_cpu)),
    (prioritized.tree_set, Kernel(rows.has_compiled_functions, rows.tree_set_cpu)),
    (prioritized.tree_draw, Kernel(rows.has_compiled_functions, rows.tree_draw_cpu)),
    (windows.random_integers, Kernel(rows.supports_random_integers, rows.random_integers_cpu)),
    (exploration.CapturableFunction.__call__, Kernel(inference.supports_infer, inference.infer_captured)),
    (exploration.NoisyPolicy.act, Kernel(inference.supports_act, inference.act_captured)),
    (exploration.SampledPolicy.act, Kernel(inference.supports_act, inference.act_captured)),
    (exploration.GreedyPolicy.act, Kernel(inference.supports_act, inference.act_captured)),
    (on_policy.OnPolicyObjective.estimates, Kernel(inference.supports_estimates, inference.estimates_captured)),
    (turn.watch_and_act, Kernel(inference.supports_watch_and_act, inference.watch_and_act_captured)),
    (preprocess.PreprocessedPolicy.act, Kernel(inference.supports_act, inference.act_captured)),
    (exploration.CapturableFunction.__call__, Kernel(policy_graphs.supports_graph, policy_graphs.call_captured)),
    (exploration.CapturableFunction.beside, Kernel(policy_graphs.supports_act, policy_graphs.act_captured)),
    (dreamer.LatentPolicy.choose, Kernel(policy_graphs.supports_choose, policy_graphs.choose_captured)),
    (planner.SearchPlanner.choose, Kernel(policy_graphs.supports_choose, policy_graphs.choose_captured)),
]  # fmt: skip
"""Definitions and their kernels."""


def kernels_status(device: torch.device) -> str:
    """Return the state of the kernels for ``core/kernel_dispatch.py: kernel_status``."""
    return compile_state() if device.type == "cpu" else gpu.triton_status(device)
