"""All kernels: which definition each takes over, and when. Of several, the first that fits is used."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from reverie.algos import base, imagination
from reverie.core import columns
from reverie.core.accelerate import Kernel
from reverie.kernels import (
    capture,
    dreams,
    elementwise,
    gpu,
    images,
    inference,
    losses,
    matmul,
    optim,
    packing,
    perceptron,
    rows,
    rssm,
    steps,
    strided,
)
from reverie.kernels.compiler import state
from reverie.nn import adam as nn_adam
from reverie.nn import distributions, exploration, functional, layers, normalise, rewards, state_space, target
from reverie.nn import perceptron as nn_perceptron
from reverie.objectives import quantile, returns, td
from reverie.replay import priority, windows
from reverie.store import zarr

ROWS: list[tuple[Callable[..., Any], Kernel]] = [
    (returns.td0, Kernel(losses.fits_td0, losses.td0)),
    (td.mean_over, Kernel(losses.fits_mean, losses.mean_over)),
    (td.squared_error, Kernel(losses.fits_error, losses.squared_error)),
    (td.huber_error, Kernel(losses.fits_error, losses.huber_error)),
    (quantile.quantile_huber, Kernel(losses.fits_pairs, losses.quantile_huber)),
    (quantile.greedy_quantiles, Kernel(losses.fits_greedy, losses.greedy_quantiles)),
    (quantile.quantile_targets, Kernel(losses.fits_targets, losses.quantile_targets)),
    (quantile.quantile_error, Kernel(losses.fits_quantile_error, losses.quantile_error)),
    (functional.linear, Kernel(matmul.fits_linear, matmul.linear)),
    (functional.norm_silu, Kernel(lambda x, scale, eps: gpu.ready(x, scale), gpu.norm_silu)),
    (functional.norm_silu, Kernel(elementwise.fits_norm, elementwise.norm_silu)),
    (functional.norm_mish, Kernel(elementwise.fits_mish, elementwise.norm_mish)),
    (functional.sim_norm, Kernel(elementwise.fits_simplex, elementwise.sim_norm)),
    (functional.conv_pool_norm_silu, Kernel(images.fits_stage, images.conv_pool_norm_silu)),
    (functional.conv_unfold_norm_silu, Kernel(images.fits_unfolded, images.conv_unfold_norm_silu)),
    (functional.strided_conv, Kernel(strided.fits_strided, strided.strided_conv)),
    (functional.transposed_conv, Kernel(strided.fits_transposed, strided.transposed_conv)),
    (distributions.Categoricals.sample, Kernel(gpu.fits_sample, gpu.sample_classes)),
    (layers.MLP.forward, Kernel(packing.fits, packing.forward)),
    (state_space.StateSpaceModel.observe, Kernel(rssm.fits, rssm.observe)),
    (state_space.StateSpaceModel.observe, Kernel(steps.fits, steps.observe)),
    (imagination.imagine, Kernel(dreams.fits, dreams.imagine)),
    (imagination.imagine_through_time, Kernel(steps.fits_through_time, steps.imagine_through_time)),
    (imagination.open_loop, Kernel(steps.fits, steps.open_loop)),
    (nn_perceptron.perceptron, Kernel(perceptron.fits, perceptron.perceptron)),
    (nn_adam.adam, Kernel(optim.fits, optim.adam)),
    (nn_adam.adam, Kernel(optim.fits_fused, optim.fused_adam)),
    (target.polyak, Kernel(optim.fits_polyak, optim.polyak)),
    (base.run_step, Kernel(capture.fits, capture.run)),
    (columns.put_rows, Kernel(rows.known, rows.put_rows)),
    (columns.extend_rows, Kernel(rows.known, rows.extend_rows)),
    (columns.gather_rows, Kernel(rows.known, rows.gather_rows)),
    (normalise.add_and_standardise, Kernel(rows.fits_standard, rows.add_and_standardise)),
    (rewards.add_returns, Kernel(rows.fits_returns, rows.add_returns)),
    (priority.tree_set, Kernel(rows.known, rows.tree_set)),
    (priority.tree_draw, Kernel(rows.known, rows.tree_draw)),
    (windows.random_integers, Kernel(rows.fits_integers, rows.random_integers)),
    (zarr.checksums, Kernel(rows.known, rows.checksums)),
    (exploration.Inference.__call__, Kernel(inference.fits, inference.infer)),
]  # fmt: skip
"""Definitions and their kernels."""


def status(device: torch.device) -> str:
    """See ``core/accelerate.py``."""
    return state() if device.type == "cpu" else gpu.state(device)
