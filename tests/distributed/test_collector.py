"""A loop of one's own: the library collects, samples, evaluates and saves, and the update is the user's."""

from __future__ import annotations

import itertools
import multiprocessing
import signal
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
import torch
from gymnasium import spaces
from gymnasium.envs.classic_control import PendulumEnv
from torch import Tensor, nn

import reverie
from device_vectors import jax_task
from masked_env import Masked
from reverie.algos.custom_policy import CustomPolicy, CustomPolicyConfig
from reverie.algos.ddpg import DDPGConfig, DDPGObjective
from reverie.algos.table import algorithm_config
from reverie.core.columns import zero_step
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import MASK_KEY, ActionPart, ActionSpec, ObsPart
from reverie.core.types import Batch, Step
from reverie.datasets.format_detection import open_reader


class Actor(nn.Module):
    """Acts on Pendulum-v1."""

    def __init__(self, outputs: int = 1) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, outputs), nn.Tanh())

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        value: Tensor = self.body(obs["observation"])
        return value


class Critic(nn.Module):
    """Values of actions on Pendulum-v1."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(4, 1)

    def forward(self, obs: dict[str, Tensor], action: Tensor) -> Tensor:
        value: Tensor = self.body(torch.cat([obs["observation"], action], -1)).squeeze(-1)
        return value


SMALL: dict[str, Any] = {"batch_size": 8, "learning_starts": 20, "random_steps": 10, "replay": {"capacity": 1000}}


def train(
    folder: Path | None, stop_after: int = 0, signals: Mapping[int, int] = MappingProxyType({}), **settings: Any
) -> tuple[nn.Module, reverie.Collector]:
    """Train DDPG in a loop of one's own, which ends early, ``stop_after`` that many updates.

    ``signals``: how many signals arrive within an update, by its number.
    """
    torch.manual_seed(0)
    actor, critic = Actor(), Critic()
    objective = DDPGObjective(actor, critic, DDPGConfig(tau=0.1))
    optim = torch.optim.Adam([*actor.parameters(), *critic.parameters()], 1e-2)
    state = {"objective": objective, "optim": optim}
    settings = {"steps": 420, "exploration": "ornstein_uhlenbeck()", **SMALL, **settings}
    with reverie.Collector("Pendulum-v1", actor, folder=folder, state=state, **settings) as collector:
        for batch in collector:
            losses = objective(batch)
            optim.zero_grad()
            losses.total().backward()
            for _ in range(signals.get(collector.clock.updates, 0)):
                signal.raise_signal(signal.SIGINT)
            optim.step()
            objective.target_actor.update()
            objective.target_critic.update()
            collector.feedback(batch, losses)
            if collector.clock.updates == stop_after:
                break
    return actor, collector


def test_a_loop_that_was_left_between_two_updates_continues_bit_for_bit(tmp_path: Path) -> None:
    """Two environments make two updates a turn, of which one is left."""
    rest = {"envs": 2, "replay": {"capacity": 1000, "fractions": {"uniform": 0.5, "priority": 0.5}}}
    expected, whole = train(tmp_path / "whole", **rest)
    assert whole.env_steps == 420
    assert whole.clock.updates == 420 - 22  # two windows a turn from the second turn on
    _, left = train(tmp_path / "left", stop_after=391, **rest)
    assert left.clock.updates_promised == 392
    actor, continued = train(tmp_path / "left", **rest)
    assert len(whole.pop_episodes()) == len(continued.pop_episodes()) == 2
    for value, other in zip(actor.parameters(), expected.parameters(), strict=True):
        assert torch.equal(value, other)


def test_a_signal_ends_the_loop_after_its_update_and_a_second_one_at_once_without_saving(tmp_path: Path) -> None:
    expected, _ = train(None)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, signals={100: 1})
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path, signals={200: 2})  # the update is half made
    actor, continued = train(tmp_path)
    assert continued.env_steps == 420
    for value, other in zip(actor.parameters(), expected.parameters(), strict=True):
        assert torch.equal(value, other)


class Logits:
    """A distribution over two classes."""

    def __init__(self, logits: Tensor) -> None:
        self.classes = torch.distributions.OneHotCategorical(logits=logits, validate_args=False)

    def sample(self) -> Tensor:
        return self.classes.sample()

    def mode(self) -> Tensor:
        return self.classes.mode


def train_on_rollouts(env: Any, folder: Path, stop_after: int = 0) -> tuple[Tensor, list[Batch]]:
    """Train by REINFORCE; return the weights and all batches."""
    torch.manual_seed(0)
    layer, batches = nn.Linear(4, 2), list[Batch]()
    optim = torch.optim.SGD(layer.parameters(), 1e-3)
    policy = nn.ModuleDict({"layer": layer})
    policy.forward = lambda obs: Logits(layer(obs["observation"]))  # type: ignore[method-assign]
    settings: dict[str, Any] = {"envs": 4, "rollout": 8, "steps": 256}
    settings |= {} if isinstance(env, str) else {"env.vectorization": "native"}
    with reverie.Collector(env, policy, folder=folder, state={"optim": optim}, **settings) as collector:
        for batch in collector:
            optim.zero_grad()
            log_prob = policy(batch.obs).classes.log_prob(batch.action)[:, :-1]
            (-log_prob * batch.reward[:, 1:] * ~batch.is_last[:, :-1]).mean().backward()
            optim.step()
            batches.append(batch.map(Tensor.clone))
            if len(batches) == stop_after:
                break
    return layer.weight.detach(), batches


@pytest.mark.parametrize("name", ["CartPole-v1", "in JAX"])
def test_rollouts_for_a_policy_of_ones_own_follow_each_other_and_resume_bit_for_bit(name: str, tmp_path: Path) -> None:
    env: Any = name
    if name == "in JAX":
        pytest.importorskip("jax")
        from reverie.envs.jax_vector import JaxVector

        def env(num_envs: int) -> JaxVector:
            return JaxVector(jax_task(), num_envs)

    expected, whole = train_on_rollouts(env, tmp_path / "whole")
    _, left = train_on_rollouts(env, tmp_path / "left", stop_after=3)
    weights, rest = train_on_rollouts(env, tmp_path / "left")
    assert torch.equal(weights, expected)
    assert len(left) + len(rest) == len(whole) > 7
    for batch, after in itertools.pairwise(whole):
        assert batch.shape == (4, 9)
        assert torch.equal(batch.obs["observation"][:, -1], after.obs["observation"][:, 0])


def test_actors_act_with_the_newest_weights_and_wait_for_updates() -> None:
    """The learner's weights are its own: actors do not write into them."""
    actor = Actor()
    optim = torch.optim.SGD(actor.parameters(), 0.1)
    ahead = []
    with reverie.Collector(
        "Pendulum-v1", actor, actors=1, envs=2, steps=500, ratio_tolerance=20.0, **(SMALL | {"random_steps": 0})
    ) as collector:
        for batch in collector:
            optim.zero_grad()
            (actor(batch.obs) - 0.9).square().mean().backward()
            optim.step()
            ahead.append(collector.env_steps - collector.clock.updates)
        rows = collector.experiment.replay.replays[0]
        stored = rows.storage.read(0, rows.count, ["version", "action"])
    assert max(ahead) < 22 + 20 + 2 * 2 * 16  # the first windows, the tolerance, two blocks
    assert min(ahead) > -20
    assert stored["version"].max() > 200
    assert stored["action"][:, -2].ravel() == pytest.approx(0.9, abs=0.1)
    assert actor(batch.obs).mean().item() == pytest.approx(0.9, abs=0.1)
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("location", ["auto", "elsewhere"])
def test_stored_rows_are_found_by_the_folder_with_their_spaces(location: str, tmp_path: Path) -> None:
    """``replay.store_path`` can be elsewhere, of an own loop and of a run."""
    store = location if location == "auto" else str(tmp_path / "stores" / "{}")
    small: dict[str, Any] = {"steps": 30, "learning_starts": 10}
    folder = tmp_path / "loop"
    settings = {"replay": {"store_path": store.format("a")}, **small}
    with reverie.Collector("CartPole-v1", algorithm_config("dqn")(), folder=folder, **settings) as collector:
        for _ in collector:
            pass
    reverie.train("dqn", "CartPole-v1", run=tmp_path / "run", eval_episodes=0, console=False, tensorboard=False,
                  replay={"store_path": store.format("b")}, **small)  # fmt: skip
    for path in (folder, tmp_path / "run"):
        with open_reader(str(path)) as reader:
            assert reader.info().action == spaces.Discrete(2)
            assert reader.info().env == "CartPole-v1"
            assert reader.rows() >= 30
            assert not reader.remarks()


def test_a_learner_of_this_library_is_trained_by_ones_own_loop() -> None:
    algo = reverie.DQNConfig(batch_size=8)
    with reverie.Collector("CartPole-v1", algo, steps=200, **{**SMALL, "batch_size": 256}) as collector:
        before = [p.clone() for p in collector.algo.objective.parameters()]
        for batch in collector:
            assert batch.shape[0] == 8
            collector.feedback(batch, collector.algo.update(batch))
    after = list(collector.algo.objective.parameters())
    assert not all(map(torch.equal, before, after))
    assert len(collector.pop_episodes())
    assert not len(collector.pop_episodes())


class Recall(nn.Module):
    """A policy with memory: the sum of the observations of an episode, which rows store as it was before them."""

    def initial(self, num_envs: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(num_envs, 3), torch.zeros(num_envs, 3)

    def act(self, step: Step, state: Any, mode: str) -> tuple[Tensor, Any]:
        before = state[1].masked_fill(step.is_first[:, None], 0.0)
        after = before + step.obs["observation"]
        return after[:, :1].tanh(), (before, after)

    def override(self, state: Any, action: Tensor) -> Any:
        return state

    def extras(self, state: Any) -> dict[str, Tensor]:
        return {"memory": state[0]}


@pytest.mark.parametrize("settings", [{"rollout": 50}, {"batch_length": 50, "batch_size": 4, "learning_starts": 50}])
def test_the_memory_of_a_policy_is_stored_with_the_rows_and_begins_anew_with_each_episode(
    settings: dict[str, Any],
) -> None:
    num_first = 0
    with reverie.Collector("Pendulum-v1", Recall(), envs=2, steps=900, replay_ratio=0.1, **settings) as collector:
        for batch in collector:
            memory, obs, first = batch.extras["memory"], batch.obs["observation"], batch.is_first[:, 1:, None]
            expected = (memory + obs)[:, :-1].masked_fill(first, 0.0)
            torch.testing.assert_close(memory[:, 1:-1], expected[:, :-1])  # the row after a rollout has none
            num_first += int(first.sum())
    assert bool(num_first) == ("rollout" in settings)  # replayed windows end with an episode


class Coin:
    """A distribution of classes."""

    def sample(self) -> Tensor:
        return torch.eye(2)[torch.randint(2, (1,))]

    def mode(self) -> Tensor:
        return torch.tensor([[1.0, 0.0]])


def test_outputs_of_a_policy_are_values_or_a_distribution() -> None:
    """One of two classes is the best; a fifth of the actions is random, half of them the other class."""
    outputs = {"values": lambda obs: torch.tensor([[0.0, 7.0]]).expand(len(obs["observation"]), 2),
               "distribution": lambda obs: Coin()}  # fmt: skip
    shares = {}
    for name, policy in outputs.items():
        more = {"exploration": "epsilon_greedy(0.2)"} if name == "values" else {}
        with reverie.Collector("CartPole-v1", policy, steps=600, replay_ratio=0, **more) as collector:
            while not collector.clock.done:
                collector.collect()
            rows = collector.experiment.replay
            action = rows.storage.read(0, rows.count, ["action", "is_last"])
            shares[name] = action["action"][~action["is_last"]].mean(0)[1]
    assert 0.86 < shares["values"] < 0.94
    assert 0.43 < shares["distribution"] < 0.57


def test_evaluations_do_not_explore_and_are_filmed(tmp_path: Path) -> None:
    video = tmp_path / "videos" / "v.mp4"
    with reverie.Collector("CartPole-v1", lambda obs: obs["observation"][:, 1:3], exploration="epsilon_greedy(1.0)",
                           replay_ratio=0) as collector:  # fmt: skip
        first, again = collector.evaluate(3, video=video), collector.evaluate(3)
    assert first.scores == again.scores
    assert len(first.scores) == 3
    assert first.score > 30  # random actions: 22
    assert video.stat().st_size > 1000


def function(obs: dict[str, Tensor]) -> Tensor:
    """A policy without weights."""
    return obs["observation"][:, :1]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"policy": function, "rollout": 8, "batch_size": 4}, "a batch is one rollout"),
        ({"policy": nn.Linear(3, 1)}, r"the policy failed: TypeError: .* It gets a dictionary .*observation: \[2, 3\]"),
        ({"policy": Actor(2)}, r"the policy returns \[2, 2\] for two observations: expected \[2, 1\]"),
        ({"policy": lambda obs: 1.0}, r"the policy returns float: expected a tensor \[N, 1\], or a distribution"),
        ({"policy": function, "actors": 1}, r"actors = 1: expected a module"),
        ({"policy": Recall(), "exploration": "gaussian(0.1)"}, r"exploration = .*draws its own actions"),
        ({"policy": Recall(), "env": "CartPole-v1"}, r"the policy failed on two rows .*size of tensor"),
        ({"policy": function, "exploration": "epsilon_greedy(0.1)"}, r"exploration = .*unknown name"),
        ({"policy": function, "state": {"clock": nn.Linear(1, 1)}}, r"state: clock .*under a name other than algo"),
        ({"policy": function, "state": {"rate": 0.1}}, r"state: rate \(float\): expected an object with state_dict"),
    ],
)
def test_what_does_not_fit_is_an_error_at_once(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        reverie.Collector(**{"env": "Pendulum-v1", **settings})


def test_folders_are_of_one_process_and_one_kind(tmp_path: Path, trained: Path) -> None:
    with pytest.raises(RunError, match="the folder of a run of reverie train"):
        reverie.Collector("Pendulum-v1", function, folder=trained)
    with (
        reverie.Collector("Pendulum-v1", function, folder=tmp_path),
        pytest.raises(RunError, match="is in use by process"),
    ):
        reverie.Collector("Pendulum-v1", function, folder=tmp_path)
    with reverie.Collector("Pendulum-v1", function) as collector, pytest.raises(RunError, match="folder='mine'"):
        collector.save()


@pytest.mark.parametrize(("env", "name"), [("CartPole-v1", "CartPole-v1"), (lambda: Masked("info"), "")])
def test_stored_rows_keep_their_spaces(tmp_path: Path, env: Any, name: str) -> None:
    with reverie.Collector(env, reverie.DQNConfig(), folder=tmp_path / "mine", steps=30, learning_starts=9) as loop:
        list(loop)
    reader = open_reader(tmp_path / "mine")
    info = reader.info()
    assert (info.specs, info.env) == ((loop.experiment.obs_spec, loop.experiment.action_spec), name)
    data = {"data": str(tmp_path / "mine"), "env": name or env, "updates": 2, "eval_episodes": 0}
    result = reverie.train("discrete_cql", run=tmp_path / "run", tensorboard=False, device="cpu", **data)
    assert result.updates == 2
    with pytest.raises(RunError, match="the environment differs"):
        reverie.Collector("Acrobot-v1", reverie.DQNConfig(), folder=tmp_path / "mine")


@pytest.mark.parametrize(("steps", "problem"), [
    (300, ", so none are made in 300 env steps. Lower it, or increase steps"), (5000, ""),
])  # fmt: skip
def test_a_loop_says_at_its_start_when_updates_begin(steps: int, problem: str, said: list[str]) -> None:
    with reverie.Collector("Pendulum-v1", function, steps=steps):
        assert said == [f"updates begin after 1,024 windows of 2 rows (learning_starts){problem}"]
    with reverie.Collector("Pendulum-v1", function, steps=steps, replay_ratio=0):
        assert len(said) == 1


class Ungraded(PendulumEnv):
    """Disables gradients, for which an environment has no need."""

    def step(self, u: Any) -> Any:
        torch.set_grad_enabled(False)
        return super().step(u)


def test_the_environment_does_not_disable_the_gradients_of_the_loop() -> None:
    with reverie.Collector(Ungraded, Actor(), steps=30, **SMALL) as loop:
        assert [torch.is_grad_enabled() for _ in loop] == [True] * loop.clock.updates


def fail_at(step: int, folder: Path) -> None:
    """Collect until an error at this env step."""
    with reverie.Collector("Pendulum-v1", function, folder=folder) as loop:
        while loop.env_steps < step:
            loop.collect()
        raise ZeroDivisionError


def test_what_was_collected_is_saved_when_an_error_ends_the_loop(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError):
        fail_at(20, tmp_path)
    with reverie.Collector("Pendulum-v1", function, folder=tmp_path) as loop:
        assert loop.env_steps == 20
        assert loop.experiment.replay.count == 20


def test_values_of_illegal_classes_are_not_chosen() -> None:
    obs_spec = {MASK_KEY: ObsPart(kind="mask", shape=(3,), dtype="bool")}
    config = CustomPolicyConfig(policy=lambda obs: torch.arange(3.0).expand(len(obs[MASK_KEY]), 3))
    action_spec = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(3,))})
    policy = CustomPolicy(obs_spec, action_spec, config, torch.device("cpu")).policy
    step = zero_step(obs_spec, 2)
    step.obs[MASK_KEY][:, 2] = False
    assert policy.act(step, policy.initial(2), "train")[0].argmax(-1).tolist() == [1, 1]


def test_arguments_for_a_policy_of_ones_own_are_refused_beside_settings() -> None:
    with pytest.raises(ConfigError, match="for a policy of your own"):
        reverie.Collector("CartPole-v1", reverie.DQNConfig(), batch_size=8)


def test_weights_that_diverged_are_never_continued_from(tmp_path: Path) -> None:
    actor = Actor()
    with pytest.raises(RunError, match=r"algo: network.body.0.weight is NaN.*diverged-000000010; the loop goes on"):
        diverge(actor, tmp_path)
    with reverie.Collector("Pendulum-v1", Actor(), folder=tmp_path) as loop:
        assert loop.env_steps == 5
        assert loop.checkpoints.latest() == tmp_path / "checkpoints" / "step-000000005"


def diverge(actor: Actor, folder: Path) -> None:
    """Save a loop after 5 env steps, and leave it after 10 with weights that are not numbers."""
    with reverie.Collector("Pendulum-v1", actor, folder=folder) as loop:
        while loop.env_steps < 10:
            loop.collect()
            if loop.env_steps == 5:
                loop.save()
        actor.body[0].weight.data.fill_(torch.nan)
