"""Model-free agents whose networks see rows normalised, stacked and with scaled rewards, and with nothing of that."""

from __future__ import annotations

import copy
from contextlib import nullcontext
from dataclasses import dataclass, replace

import pytest
import torch
from contracts import CHOOSING, MODEL_FREE, MOVES, SPECS, TINY, batch, build, learned, shown
from reverie.algos.complete import bad_moment
from tape import Tapes, device_only

from reverie.algos.base import ModelFree
from reverie.algos.td3 import TD3, TD3Config
from reverie.core.errors import ConfigError, DataError
from reverie.core.protocols import Watcher
from reverie.core.types import Batch, Step, Update
from reverie.kernels.capture import WARM_UPS, Captured
from reverie.nn.adam import Adam
from reverie.nn.exploration import EpsilonSchedule, NoisyPolicy
from reverie.nn.normalise import Running
from reverie.nn.rewards import Factor
from reverie.objectives.estimators import GAE, TD1, TDLambda, ValueEstimator

PREPARED = {"normalise": "running", "frames": 3, "frame_keys": ".*", "reward_scale": "return_std"}

pytestmark = pytest.mark.usefixtures("plain_pytorch")
SCALED = [name for name in MODEL_FREE if not name.startswith("gail")]  # it knows no rewards, so that it scales none
every = pytest.mark.parametrize("name", SCALED)
any_spec = pytest.mark.parametrize("spec", SPECS)


def steps(spec: str, count: int, seed: int = 0) -> list[Step]:
    """Rows of two environments, far from mean 0 and deviation 1."""
    g = torch.Generator().manual_seed(seed)
    made = []
    for i in range(count):
        step = shown(spec, seed=100 * seed + i, first=i % 5 == 0)
        obs = {k: v * 7 + 3 if v.is_floating_point() else v for k, v in step.obs.items()}
        made.append(replace(step, obs=obs, reward=torch.randn(2, generator=g) * 9 * ~step.is_first))
    return made


def prepared(name: str, spec: str, rows: int = 20, **more) -> ModelFree:
    agent = build(name, spec, **PREPARED, **more)
    assert isinstance(agent, ModelFree)
    assert isinstance(agent.watcher, Watcher)
    for step in steps(spec, rows):
        agent.watcher.watch(step)
    return agent


def by_hand(agent: ModelFree, data: Batch) -> Batch:
    """The last rows of ``data``, each observation normalised, with the two before it, and rewards over a deviation."""
    length, obs = data.shape[1] - 2, {}
    for key, x in data.obs.items():
        if agent.preprocess.normaliser is not None and key in agent.preprocess.normaliser.keys:
            part = agent.preprocess.normaliser.parts[agent.preprocess.normaliser.keys.index(key)]
            mean, std = (torch.as_tensor(value).float() for value in part.mean_and_std())
            x = ((x - mean) / std).clamp(-10, 10)
        windows = torch.stack([x[:, lag : lag + length] for lag in range(3)], 2)  # [B, T, 3, *shape]
        if agent.preprocess.frames is not None and agent.preprocess.frames.parts[key].kind == "image":
            windows = torch.cat(list(windows.unbind(2)), -1)
        obs[key] = windows
    rest = data.rows(2)
    return replace(rest, obs=obs, reward=rest.reward * agent.preprocess.rewards.factor)


@every
@any_spec
def test_what_is_learned_is_what_a_plain_agent_learns_from_such_a_batch(name: str, spec: str) -> None:
    agent = prepared(name, spec)
    config = MODEL_FREE[name].merge(TINY)
    plain = config.build(agent.preprocess.spec, CHOOSING.get(name, MOVES), seed=1)
    for i in range(4):
        data = batch(agent, spec, i)
        for one, its in ((agent, data), (plain, by_hand(agent, data))):
            torch.manual_seed(i)
            update = one.update(its)
            assert update.priority is not None
    mine = {k: v for k, v in learned(agent).items() if "preprocess" not in k}
    torch.testing.assert_close(mine, learned(plain), rtol=1e-4, atol=1e-5)


@every
@any_spec
def test_what_is_acted_on_is_what_was_learned_from(name: str, spec: str) -> None:
    """Row by row, actions are those for the window of rows up to it."""
    agent = prepared(name, spec)
    life = steps(spec, 12, seed=3)
    state = agent.policy.initial(2)
    for t, step in enumerate(life):
        action, state = agent.policy.act(step, state, "eval")
        rows = [life[max(i, t // 5 * 5)] for i in (t - 2, t - 1, t)]  # an episode has five
        window = {key: torch.stack([row.obs[key] for row in rows], 1) for key in step.obs}
        data = replace(
            batch(agent, spec).map(lambda x: x[:2, :3] if x.ndim > 1 else x[:2]), obs=window,
            is_first=torch.stack([row.is_first for row in rows], 1),
        )  # fmt: skip
        seen = {key: x[:, 0] for key, x in agent.preprocess(data).obs.items()}
        inner = agent.policy.inner
        expected, _ = inner.act(replace(step, obs=seen), inner.initial(2), "eval")
        torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-6)


@every
def test_states_are_carried_by_the_caller(name: str) -> None:
    """Whoever acts twice from one state gets one action, and evaluation goes on from what exploring has seen."""
    agent = prepared(name, "vector")
    first, second = steps("vector", 2, seed=4)
    _, state = agent.policy.act(first, agent.policy.initial(2), "explore")
    actions = [agent.policy.act(second, state, "eval")[0] for _ in range(2)]
    assert torch.equal(*actions)
    told = agent.policy.override(state, actions[0])
    assert torch.equal(agent.policy.act(second, told, "eval")[0], actions[0])
    assert agent.policy.extras(state) == {}


@every
def test_only_rows_that_are_lived_move_the_statistics(name: str) -> None:
    agent = prepared(name, "dict")
    before = copy.deepcopy(agent.preprocess.state_dict())
    state = agent.policy.initial(2)
    for i in range(2):
        agent.update(batch(agent, "dict", i))
        for mode in ("eval", "explore"):
            _, state = agent.policy.act(steps("dict", 1, seed=i)[0], state, mode)
    torch.testing.assert_close(agent.preprocess.state_dict(), before, rtol=0, atol=0)
    agent.watcher.watch(steps("dict", 1)[0])
    assert any(not torch.equal(v, before[k]) for k, v in agent.preprocess.state_dict().items())


@every
def test_a_loaded_agent_goes_on_with_the_statistics(name: str) -> None:
    agent, again = prepared(name, "dict"), build(name, "dict", **PREPARED)
    agent.update(batch(agent, "dict"))
    again.load_state_dict(copy.deepcopy(agent.state_dict()))
    more = steps("dict", 6, seed=2)
    for one in (agent, again):
        for step in more:
            one.watcher.watch(step)
        torch.manual_seed(0)
        one.update(batch(one, "dict", 1))
    torch.testing.assert_close(learned(again), learned(agent), rtol=0, atol=0)


@every
def test_a_copied_agent_has_statistics_of_its_own(name: str) -> None:
    agent = prepared(name, "vector")
    twin = copy.deepcopy(agent)
    twin.watcher.watch(steps("vector", 1, seed=8)[0])
    assert twin.preprocess.normaliser.count == agent.preprocess.normaliser.count + 2


@every
def test_windows_reach_back_as_far_as_stacks_do(name: str) -> None:
    window = build(name, **PREPARED, batch_length=4, value_estimator="n_step(2)").window
    assert (window.rows, window.context, window.length, window.free) == (6, 2, 4, 2)


@every
def test_windows_of_several_transitions_cross_episodes_so_that_short_ones_are_learned_from(name: str) -> None:
    window = build(name, batch_length=4, value_estimator="n_step(3)").window
    assert window.crosses_episodes
    assert not build(name).window.crosses_episodes  # a single transition is in every episode


@every
def test_without_settings_nothing_is_done(name: str) -> None:
    agent = build(name)
    data = batch(agent)
    assert agent.watcher is None
    assert agent.preprocess(data) is data
    assert not list(agent.preprocess.state_dict())


# ---------------------------------------------------------------- CUDA graphs, without a GPU


def kinds_of_updates(agent: ModelFree):
    return [agent.train_step, *([agent.critic_step] if hasattr(agent, "critic_step") else [])]


@every
@any_spec
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name: str, spec: str) -> None:
    agent = build(name, spec, device="meta", **PREPARED)
    data = batch(agent, spec).to("meta")
    for step in kinds_of_updates(agent):
        with device_only():
            step(data)


@every
@pytest.mark.parametrize("functions", ["compiled", "plain"])
def test_replays_see_statistics_that_have_moved(name: str, functions: str) -> None:
    eager, replayed = prepared(name, "dict"), prepared(name, "dict")
    more = steps("dict", WARM_UPS + 3, seed=5)
    for index, step in enumerate(kinds_of_updates(replayed)):
        tapes = Tapes()
        update = Captured(step, torch.device("cpu"), tapes, replayed)
        for agent, call in ((eager, kinds_of_updates(eager)[index]), (replayed, update)):
            torch.manual_seed(5)
            for i, row in enumerate(more):
                agent.watcher.watch(row)
                call(batch(agent, "dict", i))
        assert tapes.calls[-1] == "replay"
    torch.testing.assert_close(learned(replayed), learned(eager), rtol=0, atol=0)


# ---------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"frames": 0}, "frames = 0: expected at least 1"),
        ({"frame_keys": "state"}, "frame_keys = 'state', frames = 1"),
        ({"frames": 2, "frame_keys": "("}, "frame_keys = '\\(': expected a valid regular expression"),
        ({"normalise": "fixd"}, "normalise = 'fixd': unknown name 'fixd'. Did you mean 'fixed'"),
        ({"normalise": 3}, "normalise = 3 .*expected Normalise"),
        (
            {"reward_scale": "factor(0)"},
            "reward_scale = 'factor\\(0\\)': factor = 0.0: expected a finite number above 0",
        ),
    ],
)
def test_settings_that_cannot_be(settings: dict, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        TD3Config().merge(settings)


def test_statistics_are_fixed_before_anybody_acts_or_learns() -> None:
    config = TD3Config().merge({"normalise": "fixed(100)"})
    config.check_run(random_steps=100, learning_starts=100, frame_stack=1)
    for random_steps, learning_starts in ((99, 100), (100, 99)):
        with pytest.raises(ConfigError, match=r"algo.normalise = fixed\(rows=100.*Raise both to at least 100"):
            config.check_run(random_steps=random_steps, learning_starts=learning_starts, frame_stack=1)
    TD3Config().merge({"normalise": "running"}).check_run(random_steps=0, learning_starts=1, frame_stack=1)


def test_stacks_are_not_stacked() -> None:
    with pytest.raises(ConfigError, match=r"algo.frames = 2, env.frame_stack = 4"):
        TD3Config(frames=2).check_run(random_steps=0, learning_starts=1, frame_stack=4)


@dataclass(frozen=True)
class Far(ValueEstimator):
    whole_window = True


@pytest.mark.parametrize("estimator", [TD1(), TDLambda(0.9), GAE(0.9), Far()], ids=str)
def test_a_single_transition_is_too_short_to_look_ahead(estimator: ValueEstimator) -> None:
    for rows, short in ((2, True), (3, False)):
        config = TD3Config(value_estimator=estimator, batch_length=rows)
        with pytest.raises(ConfigError, match="nothing to look ahead to") if short else nullcontext():
            config.check_run(random_steps=0, learning_starts=1, frame_stack=1)


@every
def test_an_observation_that_is_missing_is_named(name: str) -> None:
    agent = build(name, "dict")
    data = batch(agent, "dict")
    data = replace(data, obs={"stat": data.obs["state"], "more": data.obs["more"], "token": data.obs["token"]})
    with pytest.raises(DataError, match=r"no observation 'state'. Did you mean 'stat'\? It has: more, stat, token"):
        agent.update(data)


class Unprepared(TD3):
    """Learns from rows as they are stored."""

    def train_step(self, batch):
        return Update(metrics={"seen": batch.reward.mean()})

    update = ModelFree.update


class Unwrapped(TD3):
    """Acts on observations as they come."""

    def __init__(self, *given):
        super().__init__(*given)
        self.preprocess.acts = False


class Silent(TD3):
    """Has no policy."""

    def __init__(self, *given):
        super().__init__(*given)
        del self._policy


class ItselfAPolicy(torch.nn.Module):
    """A network that is a policy, too."""

    def __init__(self, policy):
        super().__init__()
        self.actor, self.act, self.initial = policy.actor.function, policy.act, policy.initial


class Networked(TD3):
    """Its policy is a module, which acts on observations as they come."""

    def __init__(self, *given):
        super().__init__(*given)
        self._policy = ItselfAPolicy(NoisyPolicy(self.objective.actor, self.cfg.exploration, MOVES.width, self.device))
        self.preprocess.acts = False


class Losing(TD3):
    """Has an optimiser that nobody saves."""

    def __init__(self, *given):
        super().__init__(*given)
        self.another = Adam(self.objective.actor.parameters(), 1e-3)


def test_an_optimiser_that_is_not_saved_is_told():
    agent = Losing(SPECS["vector"], MOVES, TD3Config().merge(TINY), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"Losing\.another is an optimiser that no checkpoint would hold.*'another'"):
        agent.update(batch(agent))
    agent.optims["another"] = agent.another
    agent.update(batch(agent))


class Untrained(TD3):
    """Has a network that no optimiser has."""

    def __init__(self, *given):
        super().__init__(*given)
        self.head = torch.nn.Linear(1, 1, bias=False)


@pytest.mark.parametrize("graph", [True, False])
def test_a_network_that_no_optimiser_has_is_told(graph):
    agent = Untrained(SPECS["vector"], MOVES, TD3Config().merge(TINY | {"graph": graph}), torch.device("cpu"))
    with pytest.raises(ConfigError, match=r"Untrained: no optimiser has 1 parameter, .*: head.weight. Give .*optims\["):
        agent.update(batch(agent))


class Foreign(TD3):
    """Has an optimiser of PyTorch."""

    def __init__(self, *given):
        super().__init__(*given)
        self.another = torch.optim.Adam(self.objective.actor.parameters())


class Kept(Foreign):
    """Saves it."""

    def extra_state(self):
        return {**super().extra_state(), "another": self.another.state_dict()}


def test_an_optimiser_of_pytorch_must_be_saved_by_hand():
    settings = SPECS["vector"], MOVES, TD3Config().merge(TINY), torch.device("cpu")
    agent = Foreign(*settings)
    with pytest.raises(ConfigError, match=r"Foreign: the optimiser 'another' is PyTorch's Adam, whose state no"):
        agent.update(batch(agent))
    agent = Kept(*settings)
    agent.update(batch(agent))
    agent = Kept(*settings)
    agent.optims["another"] = agent.another
    with pytest.raises(ConfigError, match=r"Kept: the optimiser 'another' is PyTorch's Adam"):
        agent.update(batch(agent))


@pytest.mark.parametrize("name", ["normalise", "reward_scale"])
def test_forgotten_preprocessing_is_told(name):
    settings = {"normalise": Running()} if name == "normalise" else {"reward_scale": Factor(0.1)}
    asks, plain = (TD3Config().merge(TINY | more) for more in (settings, {}))
    given = SPECS["vector"], MOVES
    for cfg, told in ((asks, True), (plain, False)):
        agent = Unprepared(*given, cfg, torch.device("cpu"))
        with pytest.raises(ConfigError, match=r"Unprepared: its train_step never called") if told else nullcontext():
            agent.update(batch(agent))
    agent = Unwrapped(*given, asks, torch.device("cpu"))
    wrapped = name == "reward_scale"  # policies do not see rewards
    with nullcontext() if wrapped else pytest.raises(ConfigError, match=r"Unwrapped: its policy is not wrapped"):
        agent.update(batch(agent))
    agent = Networked(*given, asks, torch.device("cpu"))
    with nullcontext() if wrapped else pytest.raises(ConfigError, match=r"Networked: its policy is not wrapped"):
        agent.update(batch(agent))
    with pytest.raises(ConfigError, match=r"Silent has no policy: assign one to self\._policy"):
        _ = Silent(*given, plain, torch.device("cpu")).policy


def test_a_policy_may_be_a_module():
    agent = Networked(SPECS["vector"], MOVES, TD3Config().merge(TINY), torch.device("cpu"))
    agent.update(batch(agent))
    assert isinstance(agent.policy, ItselfAPolicy)
    assert agent.policy.act(shown("vector"), agent.policy.initial(2), "eval")[0].shape == (2, MOVES.width)


def test_what_a_class_of_ones_own_does_not_define_is_named():
    @dataclass(frozen=True)
    class Blind(ValueEstimator):
        """Looks nowhere."""

    @dataclass(frozen=True)
    class Undecided(EpsilonSchedule):
        """Has no chance."""

    data = batch(build("td3"))
    ends = {"reward": data.reward, "terminal": data.is_terminal, "last": data.is_last, "discount": 0.9}
    with pytest.raises(NotImplementedError, match=r"Blind does not define look_ahead\(\): write it in that class"):
        Blind().targets(value=data.reward, **ends)
    with pytest.raises(NotImplementedError, match=r"Undecided does not define chance\(\)"):
        Undecided().chance(torch.zeros(1))
    with pytest.raises(NotImplementedError, match=r"ModelFree does not define train_step\(\)"):
        ModelFree(SPECS["vector"], TD3Config().merge(TINY), torch.device("cpu")).update(data)


def test_moments_of_optimisers_of_pytorch_are_looked_at():
    net = torch.nn.Linear(2, 1)
    net.optim = torch.optim.Adam(net.parameters())
    assert bad_moment(net) is None  # before its first step
    net.optim.state[net.bias] = {"step": torch.tensor(1.0), "exp_avg": torch.tensor([torch.nan])}
    assert bad_moment(net) == "bias"
