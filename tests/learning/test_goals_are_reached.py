"""Goal-conditioned learners on a corridor, whose values and shortest ways are known, recorded by random walks."""

from functools import cache

import numpy as np
import pytest
import torch

from reverie.algos.table import algorithm_config
from reverie.core.goals import GoalShares
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Step
from reverie.experiment.goals import sample_goals
from reverie.replay.build import build_replay
from reverie.replay.config import ReplayConfig

CELLS, STEPS, EPISODES, DISCOUNT = 20, 200, 50, 0.95
RIGHT = {False: np.ones(CELLS, int), True: np.random.default_rng(1).integers(2, size=CELLS)}
"""The action that leads to the right, in each cell; of walks in halves, which are harder to continue by analogy."""
OBS = {"cell": ObsPart(kind="categorical", shape=(1,), dtype="int64", classes=(CELLS,))}
MOVE = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(2,))})
FAST = {"batch_size": 128, "networks.units": (64, 64), "lr": 4e-3}
ANYWHERE = {"actor_goals": GoalShares(episode=0.5, random=0.5)}
"""Goals of the policy beyond the ends of its episodes, as the authors set for their data sets "stitch"."""


def moved(cell, move, halves):
    return np.clip(cell + np.where(move == RIGHT[halves][cell], 1, -1), 0, CELLS - 1)


@cache
def walks(halves: bool, door: int = CELLS) -> dict[str, np.ndarray]:
    """Random walks; with ``halves``, each in one of two halves that overlap. None enters ``door`` from its right."""
    g = np.random.default_rng(0)
    low, high = np.zeros(EPISODES, int), np.full(EPISODES, CELLS - 1)
    if halves:
        low[::2], high[::2], high[1::2] = 6, 15, 9
    cell = g.integers(low, high + 1)
    cells, moves = [cell], g.integers(2, size=(STEPS + 1, EPISODES))
    for move in moves[:-1]:
        after = np.clip(moved(cell, move, halves), low, high)
        cell = np.where((cell == door + 1) & (after == door), cell, after)
        cells.append(cell)
    first, last = (np.zeros((EPISODES, STEPS + 1), bool) for _ in range(2))
    first[:, 0], last[:, -1] = True, True
    action = np.eye(2, dtype=np.float32)[moves.T] * ~last[..., None]
    columns = {"obs/cell": np.stack(cells, 1)[..., None], "action": action, "is_first": first, "is_last": last}
    columns |= {"reward": np.zeros((EPISODES, STEPS + 1), np.float32), "is_terminal": last & False}
    return {key: x.reshape(1, -1, *x.shape[2:]) for key, x in columns.items()}


def trained(name, updates, halves=False, door=CELLS, **settings):
    agent = algorithm_config(name)().merge(FAST | settings).build(OBS, MOVE, seed=0)
    replay = build_replay(
        ReplayConfig(capacity=EPISODES * (STEPS + 1)),
        obs_spec=OBS,
        action_spec=MOVE,
        extra_spec={},
        num_envs=1,
        window=agent.window,
        seed=0,
    )
    replay.extend(walks(halves, door))
    sample_goals(agent, replay, 0)
    torch.manual_seed(0)
    for _ in range(updates):
        agent.update(replay.sample())
    return agent


def pairs():
    """All pairs of a cell and another one as the goal: ``[380]`` each."""
    start, goal = np.divmod(np.arange(CELLS**2), CELLS)
    return start[start != goal], goal[start != goal]


def observed(cell, goal):
    return {"cell": torch.as_tensor(cell)[:, None], "goal/cell": torch.as_tensor(goal)[:, None]}


def reaches(agent, start, goal, halves=False):
    """Whether the policy takes the shortest way, ``[N]``."""
    cell, steps, no = start.copy(), np.zeros(len(start), int), torch.zeros(len(start), dtype=torch.bool)
    for _ in range(CELLS):
        step = Step(obs=observed(cell, goal), reward=torch.zeros(len(start)), is_first=~no, is_last=no, is_terminal=no)
        action, _ = agent.policy.act(step, agent.policy.initial(len(start)), "eval")
        steps += cell != goal
        cell = np.where(cell == goal, cell, moved(cell, action.argmax(-1).numpy(), halves))
    return steps == np.abs(start - goal)


# ---------------------------------------------------------------- values and the shortest way


SHARP = {"discount": DISCOUNT, "tau": 0.02}


@pytest.mark.parametrize(("name", "updates", "settings"), [
    ("gcivl", 2000, {"expectile": 0.97, "alpha": 20.0, "lr": 3e-3}),
    pytest.param("gciql", 2300, {"expectile": 0.98, "alpha": 20.0, "actor_loss": "awr"}, marks=pytest.mark.nightly),
])  # fmt: skip
def test_values_are_those_of_the_shortest_way_which_the_policy_takes(name, updates, settings):
    """V(s, g) = -(1 - gamma^d) / (1 - gamma), d steps away."""
    agent, (start, goal) = trained(name, updates, **SHARP, **settings), pairs()
    with torch.no_grad():
        values = agent.objective.value(observed(start, goal)).reshape(-1, len(start)).mean(0).numpy()
    exact = -(1 - DISCOUNT ** np.abs(start - goal)) / (1 - DISCOUNT)
    assert np.abs(values - exact).mean() < 0.05 * np.ptp(exact)
    assert reaches(agent, start, goal).mean() >= 0.95


# ---------------------------------------------------------------- stitching


STITCHED = {
    "gcbc": (600, {}),
    "gcivl": (1500, SHARP | ANYWHERE | {"expectile": 0.9, "alpha": 30.0}),
    "hiql": (1200, SHARP | ANYWHERE | {"expectile": 0.9, "low_alpha": 20.0, "high_alpha": 20.0, "subgoal_steps": 5}),
    "qrl": (400, ANYWHERE | {"actor_loss": "awr", "alpha": 3.0, "representation_width": 64}),
}


@cache
def stitched(name):
    updates, settings = STITCHED[name]
    return trained(name, updates, halves=True, **settings)


@pytest.mark.parametrize("name", [
    pytest.param(name, marks=pytest.mark.nightly if name == "gcivl" else ()) for name in STITCHED
])  # fmt: skip
def test_values_continue_episodes_by_others_and_imitation_does_not(name):
    """No episode leads from one end of the corridor to the other."""
    start, goal = pairs()
    crosses = (np.minimum(start, goal) < 6) & (np.maximum(start, goal) > 9) & (np.maximum(start, goal) < 16)
    found = reaches(stitched(name), start[crosses], goal[crosses], halves=True).mean()
    assert found < 0.4 if name == "gcbc" else found > 0.9, found


def test_subgoals_lie_on_the_way():
    """The state whose representation is nearest to what the high-level policy chooses."""
    agent, (start, goal) = stitched("hiql"), pairs()
    inside = np.maximum(start, goal) < 16
    start, goal = start[inside], goal[inside]
    with torch.no_grad():
        chosen = agent.objective.actor.subgoal(observed(start, goal))  # [N, D]
        cells = np.tile(np.arange(16), (len(start), 1))
        every = agent.objective.phi(observed(np.repeat(start, 16), cells.ravel())).view(len(start), 16, -1)
    nearest = (every - chosen[:, None]).square().sum(-1).argmin(1).numpy()
    between = (np.minimum(start, goal) <= nearest) & (nearest <= np.maximum(start, goal))
    assert between.mean() >= 0.95, between.mean()


# ---------------------------------------------------------------- densities and distances


def test_critics_of_crl_order_goals_by_the_probability_to_visit_them():
    """Against ln p(g | s, a) / p(g) of the discounted visits of a random walk, by a linear solve."""
    agent = trained("crl", 300, discount=DISCOUNT, actor_loss="awr", representation_width=32)
    step = np.zeros((CELLS, CELLS))
    for move in (-1, 1):
        np.add.at(step, (np.arange(CELLS), np.clip(np.arange(CELLS) + move, 0, CELLS - 1)), 0.5)
    visits = (1 - DISCOUNT) * np.linalg.inv(np.eye(CELLS) - DISCOUNT * step)  # from s', of g
    start, goal = np.divmod(np.arange(CELLS**2), CELLS)
    move = np.random.default_rng(2).integers(2, size=len(start))
    exact = visits[np.clip(start + 2 * move - 1, 0, CELLS - 1), goal]
    with torch.no_grad():
        logits = agent.objective.critic(observed(start, goal), torch.eye(2)[move]).mean(0).numpy()
    ranks = [x.argsort().argsort() for x in (logits, exact)]
    assert np.corrcoef(*ranks)[0, 1] > 0.95  # Spearman's


def distances(agent, start, goal):
    with torch.no_grad():
        return -agent.objective.values(observed(start, goal), torch.empty(0)).numpy()


LOOSE = {"actor_loss": "awr", "representation_width": 64, "tolerance": 0.01, "batch_size": 128}


@pytest.mark.nightly
def test_distances_of_qrl_are_lengths_of_ways():
    agent, (start, goal) = trained("qrl", 1750, lr=5e-3, **LOOSE), pairs()
    assert np.abs(distances(agent, start, goal) / np.abs(start - goal) - 1).mean() < 0.15


def test_distances_of_qrl_differ_between_both_directions_through_a_door():
    """A door that opens to the right alone: there is no way back."""
    agent, (start, goal) = trained("qrl", 600, door=9, **LOOSE), pairs()
    there, back = distances(agent, start, goal), distances(agent, goal, start)
    through = (start <= 9) & (goal > 9)
    assert (back[through] > 3 * there[through]).all()
