"""What every algorithm guarantees, in one matrix: algorithms with their kinds of actions by contracts."""

import contextlib
import copy
import math
from dataclasses import replace

import pytest
import torch

import dreamer_configs
from contracts import (
    ACTIONS,
    ALIKE,
    CONFIGS,
    DISTINCT,
    MOVES,
    OFFLINE,
    ON_POLICY,
    PREPARED,
    SPECS,
    TINY,
    assert_declared,
    batch,
    build,
    by_base,
    learned,
    lived,
    shown,
    steps,
    tiny,
)
from host_work import device_only
from reverie.algos.model_free import ModelFree
from reverie.algos.table import ALGORITHMS, algorithm_config, algorithm_name, algorithms
from reverie.algos.td3 import TD3, TD3Config
from reverie.core.errors import ConfigError, RunError
from reverie.core.specs import ActionPart, ActionSpec
from reverie.core.types import Batch
from reverie.distributed.actor_connection import acting_weights, load_weights, serialize_weights
from reverie.nn.adam import Adam
from reverie.nn.memory import MEMORY_COLUMN
from reverie.nn.normalization import Running
from reverie.nn.target_network import TargetNetwork
from reverie.objectives.estimators import GAE, TD1, NStep, TDLambda, VTrace

DREAMERS = {"dreamer_v1", "dreamer_v2", "dreamer_v3", "plan2explore", "plan2explore_v1", "plan2explore_v3", "r2dreamer"}
GOALS = [name for name in OFFLINE if hasattr(OFFLINE[name], "goal_keys")]
CLONES = [name for name in OFFLINE if name.startswith(("bc", "decision")) and not name.startswith("bcq")] + GOALS

pytestmark = pytest.mark.usefixtures("plain_pytorch")
NAMES = [name for name in CONFIGS if name not in ALIKE]
distinct = pytest.mark.parametrize("name", DISTINCT)
based = pytest.mark.parametrize("name", by_base(NAMES))
replaying = pytest.mark.parametrize("name", [name for name in NAMES if name not in ON_POLICY])
specs = pytest.mark.parametrize("spec", SPECS)
bounded = pytest.mark.parametrize("name", ["crr", "discrete_bcq", "discrete_crr"])


def test_every_algorithm_is_here():
    """The Dreamers have files of their own."""
    ours = {entry.name for entry in ALGORITHMS}
    assert {algorithm_name(type(config)) for config in CONFIGS.values()} | DREAMERS == ours


@based
def test_what_the_policy_reads_is_all_that_an_actor_needs(name):
    """A learner with these weights of another one acts as that does; a critic beside an actor is not among them."""
    spec, moves = tiny(name).acting_spec(SPECS["everything"]), ACTIONS.get(name, MOVES)
    one, other = (tiny(name).build(spec, moves, seed=seed) for seed in (1, 2))
    load_weights(acting_weights(other, spec), serialize_weights(acting_weights(one, spec)))
    found = []
    for agent in (one, other):
        torch.manual_seed(0)
        found.append(agent.policy.act(shown("everything"), agent.policy.initial(2), "explore")[0])
    assert torch.equal(*found)
    if hasattr(one.objective, "actor"):
        read = [key for key in acting_weights(one, spec) if "critic" in key or "value" in key]
        assert all(".inputs." in key for key in read)  # the memory of a critic, whose state is stored too
        assert not read or MEMORY_COLUMN in one.extra_spec


# ---------------------------------------------------------------- updates


@pytest.mark.parametrize(
    ("name", "spec", "precision"),
    [(name, "everything", "float32") for name in NAMES] + [(name, "vector", "bfloat16") for name in DISTINCT],
)
def test_an_update_trains_all_and_says_it_in_words(name, spec, precision):
    """Every parameter changes or is a target; metrics are typed, finite scalars; actions are legal."""
    agent = build(name, spec, normalize_obs=None, graph=False, precision=precision)
    before = copy.deepcopy(learned(agent))
    torch.manual_seed(0)  # by chance a filter leaves nothing to imitate
    for i in range(4):
        update = agent.update(batch(agent, spec, i))
        assert_declared(update)
    assert all(v.ndim == 0 and torch.isfinite(v) and not v.requires_grad for v in update.metrics.values())
    assert update.priority is None if name in {*CLONES, *ON_POLICY} else update.priority.shape == (4,)
    constant = {"model/objective.log_temperature"} if name == "cql_floor" else set()
    least = {"model/objective.scale"} if name == "tdmpc2" else set()  # values are as near to each other as at first
    without = {f"model/{n}" for n, p in agent.named_parameters() if not p.requires_grad}
    assert without == constant | {f"model/{n}" for n, _ in agent.named_parameters() if ".target_" in n}
    still = (
        "preprocess.range",
        "best_return",
        "novelty.target_network",
        "novelty.returns",
        "actions.",
    )  # seen, or unused
    same = {k for k, v in learned(agent).items() if torch.equal(v, before[k]) and not any(x in k for x in still)}
    lazy = name == "crr_binary"  # targets follow at the hundredth update
    if precision == "float32":  # others may round a change away
        assert {k for k in same if "norms" not in k and not (lazy and ".target_" in k)} == constant | least
    for mode in ("explore", "eval"):
        action, state = agent.policy.act(shown(spec), agent.policy.initial(2), mode)
        assert (action.shape, action.dtype, action.device.type) == ((2, 3), torch.float32, "cpu")
        assert action.abs().max() <= 1 or name in ON_POLICY  # environments clip them
        assert agent.policy.extras(agent.policy.override(state, action)).keys() == agent.extra_spec.keys()


@based
def test_an_update_neither_waits_for_the_device_nor_copies_from_the_host(name):
    scaled = {} if name.startswith("gail") else {"reward_scale": "factor(0.5)"}
    prepared = {
        "normalize_obs": "running",
        "frame_stack": 3,
        "frame_stack_keys": ".*",
        **({} if name in CLONES else scaled),
    }
    agent = build(name, "everything", device="meta", **prepared)
    data = batch(agent, "everything")
    data = data if name in ON_POLICY else data.to("meta")
    for step in steps(agent):
        with device_only():
            update = step(agent.prepare_batch(data))
        assert all(x.device.type == "meta" and not x.requires_grad for x in update.metrics.values())


@distinct
def test_compiled_updates_are_those_of_the_seed_and_resume_bit_for_bit(name):
    """In place: what has read the tensors of a learner goes on with the same memory."""
    found = []
    for stop in (None, 2):
        agent = build(name, graph=False)
        torch.manual_seed(5)
        for i in range(4):
            if i == stop:
                saved, agent = copy.deepcopy(agent.state_dict()), build(name, graph=False)
                places = {k: v.data_ptr() for k, v in learned(agent).items()}
                agent.load_state_dict(saved)
            update = agent.update(batch(agent, seed=i))
        found.append((update.metrics, learned(agent)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    assert {k: v.data_ptr() for k, v in learned(agent).items()} == places
    with pytest.raises((RunError, RuntimeError)):
        agent.load_state_dict(build(name, **{"networks.units": (16,)}).state_dict())


@distinct
def test_weights_are_those_of_the_seed_and_evaluation_draws_nothing(name):
    torch.manual_seed(3)
    rng = torch.get_rng_state()
    agent = build(name)
    state = agent.policy.initial(2)
    if name in ("tdmpc2", "bmpc"):  # their plans draw, by whatever mode
        agent = build(name, use_planning=False)
        torch.set_rng_state(rng)
    assert torch.equal(*[agent.policy.act(shown(), state, "eval")[0] for _ in range(2)])
    assert torch.equal(rng, torch.get_rng_state())
    torch.manual_seed(4)
    with torch.inference_mode():  # what is made there is as otherwise
        twin = build(name, **({"use_planning": False} if name in ("tdmpc2", "bmpc") else {}))
    torch.testing.assert_close(learned(twin), learned(agent), rtol=0, atol=0)
    assert not any(x.is_inference() for x in (*twin.parameters(), *twin.buffers()))
    if name not in ("bc", "bc_gru", "decision_transformer"):  # whose actions have no noise
        many = agent.policy.initial(100)  # a random class now and then
        assert not torch.equal(*[agent.policy.act(shown(envs=100), many, "explore")[0] for _ in range(2)])
    other, many = copy.deepcopy(agent), shown(envs=50)
    for p in other.objective.parameters():
        p.data.neg_()
    mine, others = (x.policy.act(many, x.policy.initial(50), "eval")[0] for x in (agent, other))
    assert not torch.equal(mine, others)  # a copy acts with weights of its own
    assert torch.equal(mine, twin.policy.act(many, twin.policy.initial(50), "eval")[0])


@distinct
def test_weights_are_drawn_on_the_cpu_whatever_the_device(name, monkeypatch):
    monkeypatch.setattr("torch.random.fork_rng", lambda **_: contextlib.nullcontext())
    drawn = []
    for device in ("cpu", "meta"):
        build(name, device=device)
        drawn.append(torch.get_rng_state())
    assert torch.equal(*drawn)


@replaying
def test_optimizers_hold_all_that_is_learned_by_its_settings_and_are_renewed(name):
    before = CONFIGS[name].to_dict()
    moved = {"tau", "target_update_interval"} if name != "crossq" else set()  # has no target networks
    changes = {
        k: 0.9 * v
        for k, v in before.items()
        if k in moved - {"target_update_interval"} or k == "lr" or k.endswith("_lr")
    }
    agent = build(
        name, **changes | ({"target_update_interval": 3} if "target_update_interval" in moved & before.keys() else {})
    )
    for target in (module for module in agent.modules() if isinstance(module, TargetNetwork)):
        assert (target.rate, target.interval) == (agent.cfg.tau, getattr(agent.cfg, "target_update_interval", 1))
    held = {id(p) for optim in agent.optims.values() for p in optim.params}
    assert held == {id(p) for p in agent.parameters() if p.requires_grad}
    assert agent.find_nonfinite_optimizer() is None
    for key, optim in agent.optims.items():
        rates = [getattr(agent.cfg, rate) for rate in (f"{key}_lr", "lr") if rate in before]
        assert not rates or optim.schedule == rates[0], key
        optim.cosine = 10  # a learning rate that falls
        optim.updates += 3
    agent.reset_lr_schedules()
    assert [float(optim.updates) for optim in agent.optims.values()] == [0.0] * len(agent.optims)
    optim.square[-1].fill_(torch.inf)
    assert agent.find_nonfinite_optimizer() == f"{key}_optim"


@pytest.mark.parametrize("name", ["dqn", "sac"])
def test_settings_on_ramps_follow_the_run_in_compiled_and_replayed_updates(name):
    """A tape goes on reading the tensors of the ramps."""
    ramp = [[0, 1e-2], [8, 1e-4]]
    sac = {"critic_lr": ramp, "temperature": [[0, 1.0], [8, 0.1]], "temperature_lr": 0.0}
    found = []
    for graph in (True, False):
        agent = build(name, graph=graph, **({"lr": ramp} if name == "dqn" else sac))
        torch.manual_seed(5)
        for i in range(7):
            agent.position = lambda i=i: i
            update = agent.update(batch(agent, seed=i))
        assert float(agent.optims["critic"].rate) == pytest.approx(1e-2 + 6 / 8 * (1e-4 - 1e-2))
        if name == "sac":
            assert float(update.metrics["train/temperature"]) == pytest.approx(1 - 6 / 8 * 0.9)
        found.append(learned(agent))
    torch.testing.assert_close(*found)


# ---------------------------------------------------------------- ends of episodes


@replaying
def test_what_ends_count(name):
    """A truncated end is worth what follows it, a terminal one nothing; no action is taken in an episode's last row.

    That of the newest row is not learned from, since the environment can still say that another one was executed.
    """
    if name.startswith("gail"):
        return  # half of its rows are the expert's
    found = []
    for last in (True, False):
        agent = build(name, graph=False)
        torch.manual_seed(5)
        data, no = batch(agent), torch.zeros(4, agent.window.rows, dtype=torch.bool)
        ends = no.clone()
        ends[:, -1] = last
        data.action[:, -1] *= not last
        update = agent.update(replace(data, is_last=ends, is_terminal=no))
        found.append((update.metrics, update.priority, learned(agent)))
    torch.testing.assert_close(*found, rtol=0, atol=0)
    found = []
    for shift in (0.0, 3.0):
        agent = build(name, graph=False, normalize_obs=None)
        data, now = batch(agent), torch.arange(agent.window.rows) == agent.window.rows - 1
        ends = now.expand(4, -1)
        obs = {"state": data.obs["state"] + shift * now[:, None]}
        torch.manual_seed(5)
        found.append(agent.update(replace(data, obs=obs, is_last=ends, is_terminal=ends)).metrics.get("train/target"))
    if found[0] is not None:
        torch.testing.assert_close(*found)  # to rounding: probabilities do not add up to 1 exactly
        if agent.window.rows == 2 and name != "bmpc":  # which predicts the reward
            torch.testing.assert_close(found[0], data.reward[:, 1].mean())
    if name in ("tdmpc2", "bmpc", "crossq", "xqc", *GOALS):
        return  # their windows are of one episode
    found = []
    for nonsense in (0.0, 0.7):
        agent = build(name, graph=False, batch_length=4)
        data, end = batch(agent), agent.window.context + 1
        ends = torch.zeros(4, agent.window.rows, dtype=torch.bool)
        ends[:2, end] = True
        action = data.action.clone()
        action[:2, end] = nonsense
        torch.manual_seed(5)
        update = agent.update(replace(data, is_last=ends, is_terminal=ends, action=action))
        found.append((update.metrics, learned(agent)))
    torch.testing.assert_close(*found, rtol=0, atol=1e-7)


def test_windows_are_of_one_episode_or_cross_if_they_are_long():
    for name in CONFIGS.keys() - ON_POLICY.keys():
        if build(name).extra_spec.keys() == {MEMORY_COLUMN}:
            assert build(name, batch_length=4).window.crosses_episodes
            continue
        rows = {"fql_chunks": 3, "muzero": 3}.get(
            name, 4 if name.startswith("decision") else 5 if name.startswith("lewm") else 2
        )
        window = build(name).window
        crosses = rows > 2 and not name.startswith("lewm")
        assert (window.rows, window.context, window.crosses_episodes) == (rows, 0, crosses)
        if name in GOALS:
            continue
        window = build(name, frame_stack=3, frame_stack_keys=".*", batch_length=4).window
        assert (window.rows, window.context, window.length, window.crosses_episodes) == (
            6,
            2,
            4,
            name not in ("tdmpc2", "bmpc"),
        )


# ---------------------------------------------------------------- preprocessing


def by_hand(agent: ModelFree, data: Batch) -> Batch:
    """The last rows of ``data``, each observation normalized, with the two before it, and rewards over a deviation."""
    length, obs, normalizer = data.shape[1] - 2, {}, agent.preprocess.normalizer
    for key, x in data.obs.items():
        if key in normalizer.keys:
            part = normalizer.parts[normalizer.keys.index(key)]
            mean, std = (torch.as_tensor(value).float() for value in part.mean_and_std())
            x = ((x - mean) / std).clamp(-10, 10)
        windows = torch.stack([x[:, lag : lag + length] for lag in range(3)], 2)  # [B, T, 3, *shape]
        image = agent.preprocess.frames.parts[key].kind == "image"
        obs[key] = torch.cat(list(windows.unbind(2)), -1) if image else windows
    rest = data.slice_time(2)
    return replace(rest, obs=obs, reward=rest.reward * agent.preprocess.rewards.factor)


@pytest.mark.parametrize("name", ["td3", "dqn", "crr"])
@specs
def test_what_is_learned_and_acted_on_is_preprocessed(name, spec):
    """As a plain agent learns from a batch preprocessed by hand; and statistics move by rows that are lived alone."""
    own = {"graph": False} | ({"bound_values": False} if name == "crr" else {})
    agent = build(name, spec, **PREPARED, **own)
    for step in lived(spec, 20):
        agent.running_statistics.update_statistics(step)
    before = copy.deepcopy(agent.preprocess.state_dict())
    plain = tiny(name, own | {"normalize_obs": None}).build(agent.preprocess.spec, ACTIONS.get(name, MOVES), seed=1)
    for i in range(4):
        data = batch(agent, spec, i)
        for one, its in ((agent, data), (plain, by_hand(agent, data))):
            torch.manual_seed(i)
            one.update(its)
    mine = {k: v for k, v in learned(agent).items() if "preprocess" not in k}
    torch.testing.assert_close(mine, learned(plain), rtol=1e-4, atol=1e-5)
    life, state = list(lived(spec, 12, seed=3)), agent.policy.initial(2)
    for t, step in enumerate(life):  # row by row, actions are those for the window of rows up to it
        action, state = agent.policy.act(step, state, "eval")
        rows = [life[max(i, t // 5 * 5)] for i in (t - 2, t - 1, t)]  # an episode has five
        window = {key: torch.stack([row.obs[key] for row in rows], 1) for key in step.obs}
        data = batch(agent, spec).map(lambda x: x[:2, :3] if x.ndim > 1 else x[:2])
        data = replace(data, obs=window, is_first=torch.stack([row.is_first for row in rows], 1))
        seen, inner = {key: x[:, 0] for key, x in agent.preprocess(data).obs.items()}, agent.policy.inner
        expected, _ = inner.act(replace(step, obs=seen), inner.initial(2), "eval")
        torch.testing.assert_close(action, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(agent.preprocess.state_dict(), before, rtol=0, atol=0)


def test_normalizing_is_for_vectors():
    pixels = {"image": SPECS["everything"]["image"]}
    assert all(OFFLINE[name].normalize_obs is not None for name in OFFLINE)
    for algo in (OFFLINE["td3_bc"], TD3Config(normalize_obs=Running())):
        assert algo.merge(TINY).build(pixels, MOVES).preprocess.normalizer is None


def test_settings_of_a_run_that_do_not_fit_are_named():
    run = {"random_steps": 100, "learning_starts": 100, "frame_stack": 1}
    config = TD3Config().merge({"normalize_obs": "fixed(100)", "frame_stack": 2})
    config.check_run(**run)
    for key, value, said in (
        ("random_steps", 99, "Raise both to at least 100"), ("learning_starts", 99, "Raise both to at least 100"),
        ("frame_stack", 4, r"algo.frame_stack = 2, env.frame_stack = 4"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            config.check_run(**run | {key: value})
    for estimator in (TD1(), TDLambda(0.9), GAE(0.9)):
        TD3Config(value_estimator=estimator, batch_length=3).check_run(**run)
        with pytest.raises(ConfigError, match="nothing to look ahead to"):
            TD3Config(value_estimator=estimator).check_run(**run)


# ---------------------------------------------------------------- bounds of values


@bounded
def test_targets_stay_within_what_rewards_add_up_to(name):
    """Of values that have exploded as well; without bounds they do not."""
    found = []
    for bound in (True, False):
        agent = build(name, discount=0.5, bound_values=bound, reward_scale="factor(0.5)")
        data = batch(agent)
        agent.preprocess.fit(data)
        with torch.no_grad():
            for parameter in agent.objective.parameters():
                parameter.mul_(30)
        found.append([float(agent.update(data).metrics["train/target"]) for _ in range(5)])
    inside, outside = found
    earned = data.reward[~data.is_first] * 0.5
    least, most = min(float(earned.min()), 0), max(float(earned.max()), 0)
    assert all(least + 0.5 * 2 * least <= y <= most + 0.5 * 2 * most for y in inside)
    assert max(map(abs, outside)) > 10 * max(abs(least), most)


# ---------------------------------------------------------------- settings and actions


def test_numbers_that_make_no_sense_are_refused_by_name():
    senseless = {"batch_size": 0, "batch_length": 1, "discount": 1.5, "tau": 0.0, "lr": math.nan, "actor_lr": math.inf}
    for name in CONFIGS.keys() - ON_POLICY.keys():
        for key, value in senseless.items():
            if hasattr(CONFIGS[name], key):
                with pytest.raises(ConfigError, match=f"^{key} = {value}: expected"):
                    CONFIGS[name].merge({key: value})


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"frame_stack_keys": "state"}, "frame_stack_keys = 'state', frame_stack = 1"),
        ({"value_estimator": VTrace()}, "td3 expects one of td0, td1, n_step, "),
        ({"value_estimator": NStep(2)}, r"in windows of 2 rows: expected at least 3\. Increase batch_length"),
    ],
)
def test_settings_that_cannot_be(settings, said):
    with pytest.raises(ConfigError, match=said):
        TD3Config().merge(settings)
    for name in ("sac", "td3"):
        with pytest.raises(ConfigError, match="num_target_critics = 3, num_critics = 2: there are fewer critics"):
            algorithm_config(name)(num_target_critics=3)
    with pytest.raises(ConfigError, match="discrete_cql expects one of td0, td1, n_step, "):
        algorithm_config("discrete_cql")(value_estimator=TDLambda())
    with pytest.raises(ConfigError, match=r"in windows of 6 rows: expected at least 9\. Increase rollout"):
        algorithm_config("a2c")(value_estimator=NStep(8))
    for name in ("num_elites", "num_policy_samples"):
        with pytest.raises(ConfigError, match=f"{name} = 600, num_samples = 512"):
            algorithm_config("bmpc")().merge({name: 600})


PARTS = {
    "turn": ActionPart(kind="continuous", size=2), "jump": ActionPart(kind="categorical", classes=(4,)),
    "keys": ActionPart(kind="categorical", classes=(2, 2)),
}  # fmt: skip
KINDS = {"continuous": ["turn"], "discrete": ["jump"], "multi_discrete": ["keys"], "mixed": ["turn", "keys"]}


@pytest.mark.parametrize("kind", KINDS)
def test_other_actions_name_the_algorithms_that_fit(kind):
    spec = ActionSpec(parts={key: PARTS[key] for key in KINDS[kind]})
    fit = {other for other in algorithms() if kind in algorithm_config(other).action_kinds}
    for name in set(algorithms()) - DREAMERS - fit:
        with pytest.raises(ConfigError, match=rf"^{name} is for .* actions, but these are {kind}\. Suitable") as error:
            algorithm_config(name)().build(SPECS["vector"], spec)
        alone, _, recorded = str(error.value).partition("Suitable algorithms: ")[2].rstrip(".").partition("; with")
        apart = set(recorded.partition(": ")[2].split(", ")) - {""}
        assert {*alone.split(", "), *apart} == fit
        assert {other for other in fit if algorithm_config(other).needs_data} == apart


# ---------------------------------------------------------------- classes of a user's own


def test_a_part_that_is_frozen_stays_and_the_rest_learns():
    """Such as a CNN, to fine-tune what comes after it; updates captured before train it no longer."""
    agent = build("dqn", "everything")
    for i in range(3):
        agent.update(batch(agent, "everything", i))
    network = agent.objective.network
    network.inputs.encoder.requires_grad_(False)
    before = {name: p.clone() for name, p in network.named_parameters()}
    agent.update(batch(agent, "everything"))
    for name, p in network.named_parameters():
        assert torch.equal(p, before[name]) == name.startswith("inputs.encoder."), name


@pytest.mark.parametrize("name", [*by_base(DISTINCT), "v2", "v3"])
def test_frozen_parameters_stay_whether_some_or_all_of_an_optimizer(name):
    agent = build(name) if name in DISTINCT else dreamer_configs.made(name)[0]
    rows = batch(agent) if name in DISTINCT else dreamer_configs.batch(agent, dreamer_configs.made(name)[1])
    agent.update(rows)
    params = next(iter(agent.optimizers().values())).params
    for frozen in (params[: len(params) // 2], params):
        for p in frozen:
            p.requires_grad_(False)
        before = {name: p.clone() for name, p in agent.named_parameters()}
        agent.update(rows)
        agent.update(rows)
        same = {id(p) for name, p in agent.named_parameters() if torch.equal(p, before[name])}
        assert same >= {*map(id, frozen)}
        assert frozen is params or same != {*map(id, agent.parameters())}


class More(TD3):
    """Has a network and an optimizer of its own, of PyTorch's or of this library's."""

    def __init__(self, make, *given):
        super().__init__(*given)
        self.head = torch.nn.Linear(1, 1, bias=False)
        if make is not None:
            self.another = make(self.head.parameters())

    def train_step(self, batch):
        loss = self.head(batch.reward[..., None]).square().mean()
        self.another.zero_grad(set_to_none=True) if isinstance(self.another, torch.optim.Optimizer) else None
        if isinstance(self.another, Adam):
            self.another.step(loss)
        else:
            loss.backward()
            self.another.step()
        return super().train_step(batch)


@pytest.mark.parametrize("make", [lambda p: Adam(p, 1e-3), torch.optim.Adam], ids=["Adam", "PyTorch"])
def test_optimizers_of_ones_own_are_saved(make):
    found = []
    for stop in (None, 2):
        torch.manual_seed(0)
        agent = More(make, SPECS["vector"], MOVES, TD3Config().merge(TINY | {"graph": False}), torch.device("cpu"))
        for i in range(4):
            if i == stop:
                saved = copy.deepcopy(agent.state_dict())
                agent = More(make, SPECS["vector"], MOVES, agent.cfg, torch.device("cpu"))
                agent.load_state_dict(saved)
            torch.manual_seed(i)
            agent.update(batch(agent, seed=i))
        found.append(agent.head.weight.clone())
    assert torch.equal(*found)


@pytest.mark.parametrize("graph", [True, False])
def test_parameters_without_gradient_are_named(graph):
    agent = More(None, SPECS["vector"], MOVES, TD3Config().merge(TINY | {"graph": graph}), torch.device("cpu"))
    agent.train_step = super(More, agent).train_step
    agent.optims["critic"] = Adam([*agent.optims["critic"].params, agent.head.weight], 1e-3)
    with pytest.raises(RunError, match=r"^1 of \d+ parameters have no gradient: head\.weight\. Build"):
        agent.update(batch(agent))


@pytest.mark.parametrize("graph", [True, False])
def test_a_network_that_no_optimizer_has_is_told(graph):
    agent = More(None, SPECS["vector"], MOVES, TD3Config().merge(TINY | {"graph": graph}), torch.device("cpu"))
    agent.train_step = super(More, agent).train_step
    with pytest.raises(ConfigError, match=r"More: no optimizer has 1 parameter, .*: head.weight. Give .*optims\["):
        agent.update(batch(agent))


PUBLISHED = {  # papers, or their authors' code where it differs; PPO and A2C: Stable-Baselines3
    "ddpg": {"tau": 0.005, "actor_lr": 1e-4, "critic_lr": 1e-3, "target_update_interval": 1},
    "td3": {
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "policy_delay": 2,
        "target_policy_noise": 0.2,
        "target_noise_clip": 0.5,
    },
    "td3_bc": {"alpha": 2.5, "policy_delay": 2},
    "rebrac": {"policy_delay": 2, "tau": 0.005, "actor_lr": 1e-3, "critic_lr": 1e-3, "batch_size": 1024},
    "fql": {"alpha": 10.0, "flow_steps": 10, "tau": 0.005, "lr": 3e-4, "batch_size": 256, "normalize_q": False},
    "sac": {"actor_lr": 3e-4, "critic_lr": 3e-4, "temperature_lr": 3e-4, "target_update_interval": 1, "tau": 0.005},
    "simba_v2": {"num_atoms": 101, "max_value": 5.0, "actor_lr": 1e-4, "temperature": 0.01, "num_critics": 2},
    "xqc": {
        "policy_delay": 3,
        "actor_lr": 3e-4,
        "critic_lr": 3e-4,
        "temperature": 0.01,
        "target_entropy_scale": 0.5,
        "num_atoms": 101,
        "max_value": 5.0,
        "normalize_obs": None,
        "reward_scale": "return_std(clip=None, max_return=None, std=1.0)",
        "tau": 0.005,
    },
    "tqc": {"num_critics": 5, "num_quantiles": 25, "num_dropped_quantiles": 2},
    "cql": {"actor_lr": 1e-4, "temperature_lr": 1e-4, "num_samples": 10, "cql_temperature": 1.0},
    "iql": {"expectile": 0.7, "beta": 3.0, "max_weight": 100.0, "actor_lr": 3e-4, "value_lr": 3e-4},
    "gcbc": {"lr": 3e-4, "batch_size": 1024},
    "gcivl": {"lr": 3e-4, "batch_size": 1024, "discount": 0.99, "tau": 0.005, "expectile": 0.9, "alpha": 10.0},
    "hiql": {
        "expectile": 0.7,
        "low_alpha": 3.0,
        "high_alpha": 3.0,
        "subgoal_steps": 25,
        "representation_width": 10,
    },
    "gciql": {"expectile": 0.9, "tau": 0.005, "alpha": 0.3, "actor_loss": "ddpg_bc"},
    "crl": {"alpha": 0.1, "actor_loss": "ddpg_bc", "representation_width": 512},
    "qrl": {"alpha": 0.003, "actor_loss": "ddpg_bc", "representation_width": 512, "tolerance": 0.05},
    "bcq": {"num_samples": 10, "phi": 0.05, "lam": 0.75, "lr": 1e-3, "batch_size": 100},
    "discrete_bcq": {
        "threshold": 0.3,
        "logit_weight": 0.01,
        "exploration": "epsilon_greedy(epsilon=0.05, final_epsilon=None, anneal_steps=0)",
    },
    "c51": {"num_atoms": 51, "v_min": -10.0, "v_max": 10.0},
    "qr_dqn": {"num_quantiles": 200, "kappa": 1.0},
    "iqn": {"num_policy_quantiles": 32, "num_cosines": 64, "kappa": 1.0},
    "ppo": {"rollout": 2048, "batch_size": 64, "epochs": 10, "clip_range": 0.2, "lr": 3e-4, "value_coef": 0.5},
    "a2c": {"rollout": 5, "lr": 7e-4, "rms_alpha": 0.99, "rms_eps": 1e-5, "value_coef": 0.5, "max_grad_norm": 0.5},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_defaults_are_the_published_ones(name):
    settings = algorithm_config(name)().to_dict()
    assert {key: settings[key] for key in PUBLISHED[name]} == PUBLISHED[name]
