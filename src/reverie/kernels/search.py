"""Steps of a tree search in compiled calls (``search.c``): ``objectives/tree_search.py``."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from reverie.kernels.ctypes_call import call_compiled, data_pointers, empty_float32, is_cpu_float32
from reverie.objectives.tree_search import Tree

INTEGERS = ("child", "parent", "action")
"""Fields of a tree with int64; ``legal`` is bool, all others are float32."""


def supports_search(tree: Tree, *_: Any) -> bool:
    """Return whether the compiled functions can be used."""
    fields = tree._asdict()
    integers, legal = [fields.pop(name) for name in INTEGERS], fields.pop("legal")
    dtypes = legal.dtype is torch.bool and all(x.dtype is torch.int64 for x in integers)
    return dtypes and all(x.is_contiguous() for x in tree) and is_cpu_float32(*fields.values())


def select_cpu(
    tree: Tree, simulation: int, c_visit: float, c_scale: float, q_range_floor: float
) -> tuple[Tensor, Tensor]:
    """Compute ``tree_search.select``."""
    node, action = torch.empty_like(tree.parent[:, 0]), torch.empty_like(tree.parent[:, 0])
    constants = (simulation, c_visit, c_scale, q_range_floor)
    memory = empty_float32((2 * tree.logits.shape[2],))
    call_compiled("search_select", data_pointers(*tree), *_sizes(tree), *constants, memory, node, action)
    return node, action


def backup_cpu(tree: Tree, leaf: int) -> None:
    """Compute ``tree_search.backup``."""
    call_compiled("search_backup", data_pointers(*tree), *_sizes(tree), leaf)


def _sizes(tree: Tree) -> tuple[int, int, int, int]:
    return *tree.logits.shape, tree.considered.shape[1]
