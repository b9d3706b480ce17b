"""Steps of a tree search in compiled calls (``search.c``): ``objectives/tree_search.py``."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call_compiled, data_pointers, empty_float32, is_cpu_float32
from reverie.objectives.tree_search import Transition, Tree


def supports_search(tree: Tree, *_: object) -> bool:
    """Return whether the compiled functions can be used.

    All arrays of ``tree_search.start`` are contiguous, and have the dtypes of the ones that are looked at here.
    """
    return tree.legal.dtype is torch.bool and is_cpu_float32(tree.logits, tree.raw_value, tree.gumbel)


def select_cpu(
    tree: Tree, simulation: int, c_visit: float, c_scale: float, q_range_floor: float
) -> tuple[Tensor, Tensor]:
    """Compute ``tree_search.select``."""
    node, action = torch.empty_like(tree.parent[:, 0]), torch.empty_like(tree.parent[:, 0])
    constants = (simulation, c_visit, c_scale, q_range_floor)
    memory = empty_float32((2 * tree.logits.shape[2],))
    call_compiled("search_select", data_pointers(*tree), *_sizes(tree), *constants, memory, node, action)
    return node, action


def supports_backup(tree: Tree, leaf: int, node: Tensor, action: Tensor, transition: Transition) -> bool:
    """Return whether :func:`backup_cpu` can be used."""
    reward, discount, (_, logits, value) = transition
    dtypes = node.dtype is action.dtype is torch.int64 and node.is_contiguous() and action.is_contiguous()
    shapes = logits.shape == tree.legal.shape and reward.shape == discount.shape == value.shape == node.shape
    return dtypes and shapes and is_cpu_float32(reward, discount, logits, value) and supports_search(tree)


def backup_cpu(tree: Tree, leaf: int, node: Tensor, action: Tensor, transition: Transition) -> None:
    """Compute ``tree_search.backup``."""
    reward, discount, (_, logits, value) = transition
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    predicted = [(x, x.stride(0)) for x in (reward, discount, value, logits)]
    call_compiled(
        "search_backup", data_pointers(*tree), *_sizes(tree), leaf, node, action, *itertools.chain(*predicted)
    )


def _sizes(tree: Tree) -> tuple[int, int, int, int]:
    return *tree.logits.shape, tree.considered.shape[1]
