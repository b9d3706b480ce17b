"""Tree search: node by node as the authors' code, on bandits, and its constants."""

import math
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from reverie.core.kernel_dispatch import use_only_kernels
from reverie.objectives.tree_search import Node, SearchSettings, Transition, schedule, search

GOLDEN = Path(__file__).parents[1] / "golden"
RECORDINGS = sorted(path.name for path in GOLDEN.glob("mctx_*.npz"))


def table_model(table):
    """A model whose states are rows of tables: reward, discount and the next state by state and action."""
    reward, discount, following, logits, value = table

    def model(state, action):
        after = following[state, action]
        return Transition(reward[state, action], discount[state, action], Node(after, logits[after], value[after]))

    return model


def bandit(q, logits, value):
    """Search in bandits ``[N, A]``: each action ends the episode, with the reward q. Roots are the model's states."""
    count, width = q.shape
    reward = torch.cat([q, torch.zeros(1, width)])
    following = torch.full((count + 1, width), count)
    tables = reward, torch.zeros_like(reward), following, torch.zeros_like(reward), torch.zeros(count + 1)
    return table_model(tables), Node(torch.arange(count), logits, value)


def gumbel_like(x, g):
    return -torch.empty_like(x).exponential_(generator=g).log()


@pytest.mark.parametrize("kernels", ["compiled", "definition"])
@pytest.mark.parametrize("name", RECORDINGS)
def test_trees_are_equal_to_the_authors_node_by_node(name, kernels):
    with np.load(GOLDEN / name) as z:
        data = {key: torch.from_numpy(z[key]) for key in z.files}
    names = ("reward", "discount", "next", "logits", "value")
    model, at = table_model([data[key] for key in names]), data["start"]
    options = SearchSettings(
        int(data["num_simulations"]), int(data["max_num_considered_actions"]), float(data["maxvisit_init"]),
        float(data["value_scale"]),
    )  # fmt: skip
    rescales = bool(data["rescale_values"])
    if not rescales:  # with a known range, which changes logits by a constant, and by rounding
        options = options._replace(q_range_floor=16.0, c_scale=16.0 * options.c_scale)
    root = Node(at, data["logits"][at], data["value"][at])
    with use_only_kernels() if kernels == "definition" else nullcontext():
        result = search(model, root, data["legal"], data["gumbel"], options)
    tree = result.tree
    assert torch.equal(tree.child.int(), data["children_index"])
    assert torch.equal(tree.visits.int(), data["children_visits"])
    assert torch.equal(result.action.int(), data["action"])
    for actual, expected, atol in (
        (tree.mean_value, "node_values", 5e-6), (tree.value, "children_values", 5e-6),
        (result.policy, "action_weights", 2e-6 if rescales else 5e-6),
    ):  # fmt: skip
        torch.testing.assert_close(actual, data[expected], rtol=0, atol=atol)


def test_recordings_are_here():
    assert len(RECORDINGS) == 6


# ---------------------------------------------------------------------- constants


def test_schedule_halves_the_considered_actions():
    assert schedule(4, 8) == (0, 0, 0, 0, 1, 1, 2, 2)
    for m in range(1, 17):
        for simulations in range(1, 65):
            visits = schedule(m, simulations)
            assert len(visits) == simulations
            assert visits[: min(m, simulations)] == ((0,) * min(m, simulations) if m > 1 else visits[:1])
            assert list(visits) == sorted(visits)


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 31), min_size=1, max_size=6), st.integers(1, 12), st.integers(1, 6), st.integers(0, 99))
def test_no_illegal_action_is_chosen_at_the_root(masks, simulations, m, seed):
    g = torch.Generator().manual_seed(seed)
    legal = torch.tensor([[bool(mask >> a & 1) for a in range(5)] for mask in masks])
    q, logits = torch.randn(2, len(masks), 5, generator=g)
    model, root = bandit(q, 5 * logits, q.mean(-1))
    result = search(model, root, legal, gumbel_like(q, g), SearchSettings(simulations, m))
    assert legal[torch.arange(len(masks)), result.action].all()
    assert not result.tree.visits[:, 0][~legal].any()
    assert not result.policy[~legal].any()
    torch.testing.assert_close(result.policy.sum(-1), torch.ones(len(masks)))


@pytest.mark.parametrize("kernels", ["compiled", "definition"])
def test_numbers_that_are_not_finite_choose_a_legal_action(kernels):
    legal = torch.tensor([[False, True, True]])
    model, root = bandit(torch.full((1, 3), math.nan), torch.full((1, 3), math.nan), torch.tensor([math.nan]))
    with use_only_kernels() if kernels == "definition" else nullcontext():
        assert search(model, root, legal, torch.zeros(1, 3), SearchSettings(4)).action.item() == 1
        model, root = bandit(torch.tensor([[0.0, math.nan, 0.0]]), torch.zeros(1, 3), torch.zeros(1))
        noise = torch.tensor([[0.0, 1.0, 20.0]])  # a value of NaN makes all scores the lowest
        assert search(model, root, torch.ones_like(legal), noise, SearchSettings(3)).action.item() == 0


# ---------------------------------------------------------------------- known values


@pytest.mark.parametrize(("width", "simulations"), [(4, 2), (4, 8), (9, 16), (50, 16)])
def test_the_policy_improves_on_bandits(width, simulations):
    """With exact values, E_pi'[q] >= E_pi[q], and the action is at least as good as the best of g + l: section 3."""
    g = torch.Generator().manual_seed(width)
    q, logits = 2 * torch.rand(500, width, generator=g) - 1, torch.randn(500, width, generator=g)
    prior = torch.softmax(logits, -1)
    model, root = bandit(q, logits, (prior * q).sum(-1))
    noise = gumbel_like(q, g)
    result = search(model, root, torch.ones_like(q, dtype=torch.bool), noise, SearchSettings(simulations))
    gain = ((result.policy - prior) * q).sum(-1)
    assert gain.min() >= -1e-6
    assert gain.mean() > 0.2
    taken, first = (q.gather(1, action[:, None]) for action in (result.action, (noise + logits).argmax(-1)))
    assert (taken >= first - 1e-6).all()


def test_the_value_is_that_of_the_improved_policy_and_not_the_mean_of_returns():
    """Sequential halving visits bad actions too, so that the root's mean is below the value of its policy."""
    g = torch.Generator().manual_seed(0)
    q = 2 * torch.rand(500, 8, generator=g) - 1
    model, root = bandit(q, torch.zeros_like(q), q.mean(-1))
    result = search(model, root, torch.ones_like(q, dtype=torch.bool), gumbel_like(q, g), SearchSettings(16, 8))
    value = (result.policy * q).sum(-1)
    assert (result.value - value).abs().max() < 0.01
    assert (value - result.tree.mean_value[:, 0]).mean() > 0.2
