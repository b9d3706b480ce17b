"""Steps of a tree search on a GPU: one launch each, which walk all trees (``triton_search.py``)."""

from __future__ import annotations

import torch
from torch import Tensor

from reverie.kernels import gpu
from reverie.kernels.gpu import Compared, Numbers
from reverie.objectives.tree_search import Node, SearchSettings, Transition, Tree, backup, select, start


def supports_search_triton(tree: Tree, *_: object) -> bool:
    """Return whether the kernels can be used: arrays have the dtypes of ``tree_search.start``."""
    return tree.logits.dtype is torch.float32 and gpu.can_use_triton(tree.logits, family="search")


def select_triton(
    tree: Tree, simulation: int, c_visit: float, c_scale: float, q_range_floor: float
) -> tuple[Tensor, Tensor]:
    """Compute ``tree_search.select``."""
    node, action = torch.empty_like(tree.parent[:, 0]), torch.empty_like(tree.parent[:, 0])
    t, (count, nodes, width) = tree, tree.logits.shape
    gpu._launch("search_select_kernel", (count,), t.logits, t.visits, t.reward, t.discount, t.value, t.child,
                t.raw_value, t.legal.view(torch.uint8), t.gumbel, t.considered, node, action, simulation,
                t.considered.shape[1], nodes, width, c_visit, c_scale, q_range_floor, **_program(width))  # fmt: skip
    return node, action


def supports_backup_triton(tree: Tree, leaf: int, node: Tensor, action: Tensor, transition: Transition) -> bool:
    """Return whether :func:`backup_triton` can be used."""
    reward, discount, (_, logits, value) = transition
    floats = {x.dtype for x in (reward, discount, logits, value)} == {torch.float32}
    return floats and logits.stride(-1) == 1 and supports_search_triton(tree)


def backup_triton(tree: Tree, leaf: int, node: Tensor, action: Tensor, transition: Transition) -> None:
    """Compute ``tree_search.backup``."""
    t, (reward, discount, (_, logits, value)) = tree, transition
    count, nodes, width = tree.logits.shape
    strides = (x.stride(0) for x in (reward, discount, value, logits))
    gpu._launch("search_backup_kernel", (count,), t.logits, t.visits, t.reward, t.discount, t.value, t.child,
                t.raw_value, t.mean_value, t.parent, t.action, node.contiguous(), action.contiguous(), reward,
                discount, value, logits, leaf, nodes, width, *strides, **_program(width))  # fmt: skip


def _program(width: int) -> dict[str, int]:
    """Return the lanes of a program, and its warps: one for up to 256 actions."""
    lanes = 1 << (width - 1).bit_length()
    return {"WIDTH": lanes, "num_warps": max(1, min(8, lanes // 256))}


def compare_search(numbers: Numbers) -> Compared:
    """Return the trees of a search by the kernels and by their definitions, and where each simulation went."""
    settings, compared = SearchSettings(6, 3, q_range_floor=1e-3), []
    trees, count, width = [], 5, 3
    legal = torch.ones(count, width, dtype=torch.bool, device=numbers(1).device)
    legal[0, 1] = False
    drawn = [[numbers(count) for _ in range(3)] + [numbers(count, width)] for _ in range(settings.num_simulations + 1)]
    gumbel = numbers(count, width)
    for down, up in ((select_triton, backup_triton), (select.definition, backup.definition)):  # type: ignore[attr-defined]  # without kernels
        reached = []
        tree = start(Node(drawn[0][0], drawn[0][3], drawn[0][2]), legal, gumbel, settings)
        for i, (reward, discount, value, logits) in enumerate(drawn[1:]):
            node, action = down(tree, i, *settings[2:])
            up(tree, i + 1, node, action, Transition(reward, discount, Node(value, logits, value)))
            reached += [node, action]
        trees.append((reached, tree))
    (ours, tree), (defined, expected) = trees
    compared += [("search_select", a.float(), b.float()) for a, b in zip(ours, defined, strict=True)]
    return compared + [("search_backup", a.float(), b.float()) for a, b in zip(tree, expected, strict=True)]


gpu.COMPARISONS["search"] = compare_search
