"""Triton kernels of a tree search, a program for each root. ``kernels/search_gpu.py`` launches them.

A launch reads nothing that it wrote in an earlier iteration. Within an iteration, what is stored is loaded before: the
sum over a node's visits is in between, where the warps of a program wait for one another.
"""

import triton
import triton.language as tl

TINY = tl.constexpr(1.1754943508222875e-38)
LOWEST_SCORE = tl.constexpr(-1e9)


@triton.jit
def _complete(
    node, lane, mask, logits, visits, reward, discount, value, raw_value, actions, c_visit, c_scale, q_range_floor
):
    """Return logits, visits, sigma and the sum of the visits of a node: ``objectives/tree_search.py``."""
    at = node * actions + lane
    x = tl.load(logits + at, mask=mask, other=-float("inf"))
    n = tl.load(visits + at, mask=mask, other=0.0)
    r, d = tl.load(reward + at, mask=mask, other=0.0), tl.load(discount + at, mask=mask, other=0.0)
    q = r + d * tl.load(value + at, mask=mask, other=0.0)
    p = tl.exp(x - tl.max(x, 0))
    p = tl.where(n > 0, tl.maximum(p / tl.sum(p, 0), TINY), 0.0)
    count, share = tl.sum(n, 0), tl.maximum(tl.sum(p, 0), TINY)
    mixed = (tl.load(raw_value + node) + count * (tl.sum(p * q, 0) / share)) / (1 + count)
    q = tl.where(n > 0, q, mixed)
    low = tl.min(tl.where(mask, q, float("inf")), 0)
    high = tl.max(tl.where(mask, q, -float("inf")), 0)
    scale = (c_visit + tl.max(n, 0)) * c_scale
    sigma = scale * ((q - low) / tl.maximum(high - low, q_range_floor))
    nans = tl.sum((mask & (q != q)).to(tl.int32), 0)  # the smallest and largest number skip NaN
    return x, n, tl.where(nans > 0, float("nan"), sigma), count


@triton.jit(do_not_specialize=["simulation"])
def search_select_kernel(
    logits, visits, reward, discount, value, child, raw_value, legal, gumbel, considered, out, action_out,
    simulation, simulations, nodes, actions, c_visit, c_scale, q_range_floor, WIDTH: tl.constexpr,
):  # fmt: skip
    """Write the node (``out``) and the action ``[N]`` of a simulation: ``objectives/tree_search.py: select``."""
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    mask = lane < actions
    first = root * nodes
    node = first
    x, n, sigma, count = _complete(
        node, lane, mask, logits, visits, reward, discount, value, raw_value, actions, c_visit, c_scale, q_range_floor
    )
    g = tl.load(gumbel + root * actions + lane, mask=mask, other=0.0)
    score = g + (x - tl.max(x, 0)) + sigma
    score = tl.where(score > LOWEST_SCORE, score, LOWEST_SCORE)  # NaN, too
    chosen = tl.load(legal + root * actions + lane, mask=mask, other=0) != 0
    chosen = chosen & (n == tl.load(considered + root * simulations + simulation))
    action = tl.argmax(tl.where(chosen, score, -float("inf")), 0)
    following = tl.load(child + node * actions + action)
    depth = 0
    while (following >= 0) & (depth < simulation):  # no path is longer
        node, depth = first + following, depth + 1
        x, n, sigma, count = _complete(
            node, lane, mask, logits, visits, reward, discount, value, raw_value, actions, c_visit, c_scale,
            q_range_floor,
        )  # fmt: skip
        x += sigma
        p = tl.exp(x - tl.max(x, 0))
        p = p / tl.sum(p, 0)
        p = tl.where(p == p, p, 0.0)  # NaN counts as 0
        action = tl.argmax(tl.where(mask, p - n / (1 + count), -float("inf")), 0)
        following = tl.load(child + node * actions + action)
    tl.store(out + root, node - first)
    tl.store(action_out + root, action.to(tl.int64))


@triton.jit(do_not_specialize=["leaf"])
def search_backup_kernel(
    logits, visits, reward, discount, value, child, raw_value, mean_value, parent, action, node_in, action_in,
    new_reward, new_discount, new_value, new_logits, leaf, nodes, actions, reward_stride, discount_stride,
    value_stride, logits_stride, WIDTH: tl.constexpr,
):  # fmt: skip
    """Add a leaf and its return to all nodes above it: ``objectives/tree_search.py: backup``. Strides are of rows."""
    root = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, WIDTH)
    mask = lane < actions
    first = root * nodes
    node, a = tl.load(node_in + root), tl.load(action_in + root)
    r, d = tl.load(new_reward + root * reward_stride), tl.load(new_discount + root * discount_stride)
    total = tl.load(new_value + root * value_stride)
    edge, new = (first + node) * actions + a, first + leaf
    tl.store(reward + edge, r)
    tl.store(discount + edge, d)
    tl.store(child + edge, leaf.to(tl.int64))
    tl.store(parent + new, node)
    tl.store(action + new, a)
    tl.store(raw_value + new, total)
    tl.store(mean_value + new, total)
    x = tl.load(new_logits + root * logits_stride + lane, mask=mask, other=0.0)
    tl.store(logits + new * actions + lane, x, mask=mask)
    below, depth = total, 0  # mean value of the node below
    while (node >= 0) & (depth < leaf):
        at, depth = first + node, depth + 1
        mean, above, a_above = tl.load(mean_value + at), tl.load(parent + at), tl.load(action + at)
        edge_above = (first + tl.maximum(above, 0)) * actions + tl.maximum(a_above, 0)
        r_above, d_above = tl.load(reward + edge_above), tl.load(discount + edge_above)
        n = tl.load(visits + at * actions + lane, mask=mask, other=0.0)
        count = 1 + tl.sum(n, 0)
        total = r + d * total
        tl.store(value + at * actions + a, below)
        below = (mean * count + total) / (count + 1)
        tl.store(mean_value + at, below)
        tl.store(visits + at * actions + lane, n + 1, mask=lane == a)
        node, a, r, d = above, a_above, r_above, d_above
