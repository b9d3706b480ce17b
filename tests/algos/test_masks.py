"""Learners of discrete actions choose among legal ones, and learn as before where all are legal."""

from __future__ import annotations

import math
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import reverie
from contracts import CHOICE, CHOOSING, SPECS, batch, learned, shown, tiny
from masked_env import Masked
from reverie.agent.recording import record_agent
from reverie.algos.table import algorithm_config
from reverie.core.errors import DataError
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, ObsPart
from reverie.datasets.config import dataset_config
from reverie.datasets.convert import write_dataset
from reverie.datasets.dataset import open_recorded
from reverie.datasets.options import RecordConfig
from reverie.nn.network import Network
from tiny_configs import FEW

TWO = ActionSpec(parts={name: ActionPart(kind="categorical", classes=(n,)) for name, n in (("b", 3), ("a", 2))})
MIXED = ActionSpec(parts={**TWO.parts, "c": ActionPart(kind="continuous", size=2)})
CHOSEN = {name: acts if acts is CHOICE else TWO for name, acts in CHOOSING.items()}
choosing = pytest.mark.parametrize(
    "name", [name for name in CHOOSING if name not in ("qr_dqn_gru", "dqn_choices", "lewm_choices")]
)


def learner(name: str, *, masked: bool = True) -> Any:
    acts = CHOSEN[name]
    part = {MASK_KEY: ObsPart(kind="mask", shape=(acts.width,), dtype="bool")} if masked else {}
    agent = tiny(name, {"graph": False}).build(SPECS["vector"] | part, acts, seed=1)
    agent.acts = acts
    return agent


def rows(agent: Any, legal: Tensor | None, seed: int) -> Any:
    """Return a batch whose rows have the mask ``legal`` ``[A]``, and legal actions."""
    given = batch(agent, seed=seed)
    if legal is None:
        return given
    action = given.action
    if not legal.all():
        action = torch.zeros_like(action)
        for cut in (cut for _, cut in agent.acts.categorical_slices()):
            weights = torch.rand(*action.shape[:2], cut.stop - cut.start, generator=torch.Generator().manual_seed(seed))
            best = weights.masked_fill(~legal[cut], -1.0).argmax(-1, keepdim=True)
            action[..., cut] = torch.zeros_like(weights).scatter_(-1, best, 1.0)
    return replace(given, action=action, obs=given.obs | {MASK_KEY: legal.expand(*given.shape, len(legal))})


def after_updates(agent: Any, legal: Tensor | None) -> tuple[dict[str, Tensor], Tensor]:
    """Return the state after three updates, and actions."""
    torch.manual_seed(0)
    for seed in range(3):
        update = agent.update(rows(agent, legal, seed))
        assert all(torch.isfinite(x).all() for x in update.metrics.values())
    step = shown(envs=64)
    step = step if legal is None else replace(step, obs=step.obs | {MASK_KEY: legal.expand(64, len(legal))})
    state = agent.policy.initial(64)
    acted = torch.cat([agent.policy.act(step, state, mode)[0] for mode in ("explore", "explore", "eval")])
    return {k: v.clone() for k, v in learned(agent).items()}, acted


@choosing
def test_all_legal_equals_no_mask_bit_for_bit(name: str) -> None:
    none, acted = after_updates(learner(name, masked=False), None)
    full, also = after_updates(learner(name), torch.ones(CHOSEN[name].width, dtype=torch.bool))
    assert none.keys() == full.keys()
    assert [k for k in none if not torch.equal(none[k], full[k])] == []
    assert torch.equal(acted, also)


@choosing
def test_outputs_of_illegal_actions_have_no_effect(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither in acting nor in targets, maxima, soft values, imitation or penalties."""
    legal = torch.tensor([True, True, False] if CHOSEN[name] is CHOICE else [False, True, True, True, False])
    usual, acted = after_updates(learner(name), legal)
    assert not acted[:, ~legal].any()
    forward = Network.forward

    def disturbed(self: Any, obs: Any, *more: Any, **settings: Any) -> Tensor:
        y = forward(self, obs, *more, **settings)
        repeats = 0.5 if self.is_scalar else y.shape[-1] / len(legal)
        return y + 9.0 * (~legal).float().repeat_interleave(int(repeats)) if repeats.is_integer() else y

    monkeypatch.setattr(Network, "forward", disturbed)
    other, also = after_updates(learner(name), legal)
    assert [k for k in usual if not torch.equal(usual[k], other[k])] == []
    assert torch.equal(acted, also)


@pytest.mark.parametrize("scale", [1.0, 0.5])
@pytest.mark.parametrize(("name", "acts"), [("discrete_sac", TWO), ("sac", MIXED)])
def test_the_target_entropy_of_a_row_is_that_of_its_legal_classes(name: str, acts: ActionSpec, scale: float) -> None:
    """In the gradient of the temperature, E[alpha (H - target)], with rows behind an end left out."""
    part = {MASK_KEY: ObsPart(kind="mask", shape=(acts.width,), dtype="bool")}
    config = algorithm_config(name)(target_entropy_scale=scale, batch_length=3, batch_size=4)
    agent = config.merge({"networks.units": (8,)}).build(SPECS["vector"] | part, acts, seed=1)
    agent.acts = acts
    given, classes = batch(agent), [cut for _, cut in acts.categorical_slices()]
    legal = torch.rand(4, 3, acts.width, generator=torch.Generator().manual_seed(0)) < 0.4
    legal[..., [cut.start for cut in classes]] = True
    legal[0] = torch.tensor([i in {cut.start for cut in classes} for i in range(acts.width)])  # a single class of each
    given = replace(given, obs=given.obs | {MASK_KEY: legal})
    given.is_last[:, -1], given.is_last[1, 1] = False, True
    losses = agent.objective.actor_loss(given)
    number = sum(part.size for part in acts.parts.values())
    targets = [
        scale * (0.98 * sum(math.log(int(legal[b, t, cut].sum())) for cut in classes) - number)
        for b in range(4) for t in range(2) if not given.is_last[b, t]
    ]  # fmt: skip
    expected = (losses.metrics["train/entropy"] - sum(targets) / len(targets)).detach()
    (slope,) = torch.autograd.grad(losses.terms["temperature"], agent.objective.log_temperature)
    torch.testing.assert_close(slope, agent.objective.temperature * expected)
    fixed = config.merge({"target_entropy": 0.3}).build(SPECS["vector"] | part, acts)
    assert fixed.objective.mean_target_entropy(given, torch.ones(4, 2)) == 0.3


# ---------------------------------------------------------------- runs


def trained(algo: str, run: Path, actions: str = "discrete", **kwargs: Any) -> reverie.Agent:
    """Train in the environment, which fails at an illegal action, and load the agent."""
    given = {"learning_starts": 20, "replay_ratio": 0.5, "random_steps": 10, "eval_episodes": 2, "console": False}
    kwargs |= {"actions": actions}
    reverie.train(algo, env=Masked, env_options={"kwargs": kwargs, "num": 2}, steps=100, run=run, **given)
    return reverie.load(run)


@pytest.mark.parametrize(
    ("algo", "offline", "actions"),
    [
        ("discrete_sac", "discrete_bcq", "multi_discrete"),
        pytest.param("sac", "iql", "dict", marks=pytest.mark.nightly),  # tests/twin has mixed actions with masks
    ],
)
def test_all_choices_of_an_action_are_legal(algo: str, offline: str, actions: str, tmp_path: Path) -> None:
    agent = trained(algo, tmp_path / "online", actions=actions)
    env = {"env": Masked, "env_options": {"kwargs": {"actions": actions}}}
    reverie.train(offline, **env, data=tmp_path / "online", updates=20, eval_episodes=2, run=tmp_path / "off",
                  console=False)  # fmt: skip
    assert reverie.load(tmp_path / "off").action_spec == agent.action_spec


@pytest.mark.nightly  # tests/twin crosses masks with algorithms and files
@pytest.mark.parametrize("tell", ["info", "method", "observation"])
def test_masks_are_found_stored_and_recorded_wherever_they_are_told(tell: str, tmp_path: Path) -> None:
    agent = trained("dqn", tmp_path / "run", tell=tell)
    assert agent.obs_spec[MASK_KEY].kind == "mask"
    record_agent(agent, str(tmp_path / "minari"), RecordConfig(episodes=3, epsilon=0.5))
    write_dataset(open_recorded(dataset_config(tmp_path / "run")).reader, str(tmp_path / "exported"))
    seen = []
    for data in ("run", "minari", "exported"):
        with closing(open_recorded(dataset_config(tmp_path / data))) as found:
            seen.append(found.episode(0))
            assert found.obs_spec[MASK_KEY] == agent.obs_spec[MASK_KEY]
    assert torch.equal(seen[0].obs[MASK_KEY], seen[2].obs[MASK_KEY])
    for one in seen:
        assert ((one.action <= one.obs[MASK_KEY]).all(-1) | one.is_last).all()


def test_an_agent_asks_for_the_mask_that_it_was_trained_with(tmp_path: Path) -> None:
    agent = trained("dqn", tmp_path / "run")
    env = agent.make_env()
    obs, info = env.reset(seed=0)
    action, state = agent.act(obs, action_mask=info["action_mask"])
    env.step(action)
    with pytest.raises(DataError, match="pass action_mask, which the environment provides in its info"):
        agent.act(obs, state)
    both = np.stack([info["action_mask"]] * 2)
    assert len(agent.act(np.stack([obs] * 2), action_mask=both)[0]) == 2


def test_a_mask_without_a_legal_action_names_where(tmp_path: Path) -> None:
    class Stuck(Masked):
        def _legal(self, classes: int) -> np.ndarray:
            return super()._legal(classes) * (self.place < 5)

    with pytest.raises(DataError, match=r"step \d of episode 1.*no legal action \(part 'action'\)"):
        reverie.train("dqn", env=Stuck, env_options={"restarts": 0}, run=tmp_path / "run", **FEW)


def test_excluded_masks_are_not_seen(tmp_path: Path) -> None:
    options = {"exclude_keys": MASK_KEY, "kwargs": {"everything": True}}
    reverie.train("dqn", env=Masked, env_options=options, run=tmp_path / "run", **FEW)
    assert MASK_KEY not in reverie.load(tmp_path / "run").obs_spec
