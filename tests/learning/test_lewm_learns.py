"""LeWM in an empty room of 16 x 16 pixels: it learns where the dot is, and reaches pictures by the shortest way."""

import numpy as np
import pytest
import torch

from reverie.algos.lewm import LeWMConfig
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step

SIDE, BLOCK, ROWS = 16, 4, 13
LOW, HIGH = 2.0, SIDE - 3.0
RADIUS = 2.0
"""Distance from a goal, in pixels, within which it is reached."""
SPEC = {"image": ObsPart(kind="image", shape=(SIDE, SIDE, 1), dtype="uint8")}
ACTION = ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)})


def pictures(places):
    """Pictures ``[..., 16, 16, 1]`` of dots at ``places`` ``[..., 2]``."""
    axis = torch.arange(SIDE)
    near = torch.exp(-((axis - places[..., None]) ** 2) / 2)  # [..., 2, 16]
    return (255 * near[..., 1, :, None] * near[..., 0, None, :]).to(torch.uint8).unsqueeze(-1)


def walks(count, generator):
    """Places and actions ``[count, ROWS, 2]`` of random walks that keep their direction for a while."""
    action = torch.rand(count, ROWS, 2, generator=generator) * 2 - 1
    action = (action + 2 * torch.rand(count, 1, 2, generator=generator) - 1).clamp(-1, 1)
    places = [LOW + (HIGH - LOW) * torch.rand(count, 2, generator=generator)]
    for step in range(ROWS - 1):
        places.append((places[-1] + action[:, step]).clamp(LOW, HIGH))
    return torch.stack(places, 1), action


def batch_of(count, generator):
    places, action = walks(count, generator)
    no = torch.zeros(count, ROWS, dtype=torch.bool)
    return Batch(obs={"image": pictures(places)}, action=action, reward=torch.zeros(count, ROWS), is_first=no,
                 is_last=no, is_terminal=no, weight=torch.ones(count), index=torch.arange(count))  # fmt: skip


def trained(updates, **changes):
    config = LeWMConfig(batch_size=64, batch_length=ROWS, block=BLOCK, latent=2).merge({
        "networks.units": (64, 128), "networks.encoder": "strided((16, 32))", "planner.horizon": 3, "lr": 2e-3,
        "planner.candidates": 100, "planner.elites": 10, "regularizer": "sigreg(directions=32)", **changes,
    })  # fmt: skip
    learner, g = config.build(SPEC, ACTION, seed=0), torch.Generator().manual_seed(0)
    learner.running_statistics.fit(batch_of(500, g))
    torch.manual_seed(0)
    for _ in range(updates):
        metrics = learner.update(batch_of(64, g)).metrics
    return learner, metrics


@pytest.mark.parametrize(("weight", "low", "high"), [(0.0, 0.0, 0.1), (0.09, 0.8, 1.2)])
def test_the_regularizer_prevents_a_collapse(weight, low, high):
    learner, metrics = trained(150, regularizer=f"sigreg(weight={weight}, directions=32)")
    assert low <= float(metrics["train/latent_std"]) <= high
    problem = learner.metrics_warning({name: float(value) for name, value in metrics.items()}, float)
    assert ("have collapsed" in problem) == (weight == 0)


def play(learner, starts, goals, steps):
    """The places ``[steps + 1, N, 2]`` of N dots that the policy, or chance if it is None, moves toward ``goals``."""
    path, state = [starts], None
    for step in range(steps):
        if learner is None:
            action = torch.rand(len(starts), 2) * 2 - 1
        else:
            no = torch.zeros(len(starts), dtype=torch.bool)
            rows = Step(obs={"image": pictures(path[-1]), "goal/image": pictures(goals)},
                        reward=torch.zeros(len(starts)), is_first=no | (step == 0), is_last=no,
                        is_terminal=no)  # fmt: skip
            state = learner.policy.initial(len(starts)) if state is None else state
            action, state = learner.policy.act(rows, state, "eval")
        path.append((path[-1] + action).clamp(LOW, HIGH))
    return torch.stack(path)


@pytest.fixture(scope="module")
def learner():
    return trained(400)[0]


def with_plans(learner, executed, cost):
    """A learner with the same weights that plans otherwise."""
    other = learner.cfg.merge({"planner.executed": executed, "planner.cost": cost}).build(SPEC, ACTION, seed=0)
    other.load_state_dict(learner.state_dict())
    return other


def places(count=40):
    """Random starts and goals, ``[count, 2]`` each."""
    g = torch.Generator().manual_seed(1)
    return (LOW + (HIGH - LOW) * torch.rand(2, count, 2, generator=g)).unbind()


def test_pictures_are_reached_by_the_shortest_way(learner):
    starts, goals = places()
    shortest = ((starts - goals).abs().amax(-1) - RADIUS).clamp(min=1)
    torch.manual_seed(0)
    rates = []
    for policy in (with_plans(learner, 1, "sum"), None):
        near = (play(policy, starts, goals, 16) - goals).norm(dim=-1) < RADIUS  # [17, 40]
        in_time = torch.arange(17)[:, None] <= (1.5 * shortest).ceil().clamp(min=BLOCK)
        rates.append((float(near.any(0).float().mean()), float((near & in_time).any(0).float().mean())))
    assert min(rates[0]) >= 0.8
    assert rates[0][0] >= 0.9
    assert max(rates[1]) < 0.35


def test_latents_tell_the_place(learner):
    where, _ = walks(400, torch.Generator().manual_seed(2))
    with torch.no_grad():
        z = learner.objective.model.encode({"image": pictures(where[:, 0])})
    inputs = np.concatenate([z.numpy(), np.ones((400, 1))], 1)
    fit = np.linalg.lstsq(inputs[:300], where[:300, 0].numpy(), rcond=None)[0]
    assert np.linalg.norm(inputs[300:] @ fit - where[300:, 0].numpy(), axis=1).mean() < 1  # pixels


def test_plans_that_are_cut_short_rarely_arrive(learner):
    """The cost counts a plan's end alone: planned anew after each block, the end is always three blocks away."""
    starts, goals = places()
    rates = {}
    for plans in ((3, "last"), (1, "last"), (1, "sum")):
        distance = (play(with_plans(learner, *plans), starts, goals, 12) - goals).norm(dim=-1)
        rates[plans] = float((distance < 1.0).any(0).float().mean())
    assert rates[1, "last"] < 0.75 * min(rates[3, "last"], rates[1, "sum"])
