"""Every way to act acts alike: each door plays the same story with each policy, and takes the actions of ``evaluate``.

The story has what doors forget: rewards, masks, replaced actions, and episodes behind each other. A new door signs in
at ``DOORS``, a policy that keeps something else between rows at ``POLICIES``.
"""

import ast
import contextlib
import functools
from pathlib import Path
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import reverie
from dreamer_configs import EARLIER
from reverie.agent.agent import Agent
from reverie.agent.policy_function import PolicyFunction
from reverie.agent.policy_rows import policy_actions
from reverie.agent.recording import record_agent
from reverie.algos.table import algorithm_config
from reverie.core.types import FLAGS
from reverie.datasets.options import RecordConfig
from reverie.envs.flat_env import make_flat
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.environments import make_eval_env
from reverie.run.collect import EnvCollector
from reverie.viewer.episode_facts import play_episodes
from reverie.viewer.session import Session
from tiny_configs import NETWORKS

GOAL, EPISODES, STEPS = np.full(3, 2, np.float32), 2, 8
SMALL = {"networks.units": (16,)}
STACKED = {"frame_stack": 2, "frame_stack_keys": ".*", "normalize_obs": "running"}
CHUNKS = {"chunk_size": 4, "batch_length": 5}
TRANSFORMER = {"networks.memory": "transformer(3, 8, 2)"}
POLICIES = {
    "dqn_lstm": ("discrete", "dqn", SMALL | {"networks.memory": "lstm(4)", "batch_length": 4,
                                             "value_estimator": "n_step(2)"}),
    "dqn_stacked": ("discrete", "dqn", SMALL | STACKED),
    "muzero": ("discrete", "muzero", SMALL | STACKED | {"num_simulations": 4}),
    "dreamer_v3": ("discrete", "dreamer_v3", NETWORKS),
    "dreamer_rewards": ("picture", "dreamer_v2", EARLIER | {"encoder.encode_reward": True}),
    "decision_transformer": ("box", "decision_transformer", TRANSFORMER | {
        "batch_length": 4, "target_return": 9.0, "return_scale": 1.0}),
    "bc_chunks": ("box", "bc", SMALL | CHUNKS),
    "fql": ("box", "fql", SMALL),
    "fql_chunks": ("box", "fql", SMALL | CHUNKS),
    "tdmpc2": ("box", "tdmpc2", SMALL | {"num_samples": 16, "num_elites": 4, "num_policy_samples": 3, "iterations": 2}),
    "gcbc": ("goals", "gcbc", SMALL),
    "ppo_transformer": ("discrete", "ppo", SMALL | TRANSFORMER),
}  # fmt: skip


class Story(gymnasium.Env):
    """Episodes of 3 and 5 steps in turn; each third action is replaced. ``log`` has the policy's actions by row."""

    log: dict[tuple[int, int], np.ndarray]

    def __init__(self, kind):
        self.kind, self.length = kind, 5
        self.action_space = spaces.Box(-2, 4, (2,)) if kind == "box" else spaces.Discrete(4, start=1)
        parts = {"observation": spaces.Box(-9, 9, (3,))}
        parts |= dict.fromkeys(("achieved_goal", "desired_goal"), parts["observation"]) if kind == "goals" else {}
        parts |= {"picture": spaces.Box(0, 255, (8, 8, 1), np.uint8)} if kind == "picture" else {}
        self.observation_space = spaces.Dict(parts) if len(parts) > 1 else parts["observation"]

    def reset(self, *, seed=None, options=None):
        self.length, self.t = 8 - self.length, 0
        return self.row()

    def row(self):
        numbers = np.array([self.length, self.t, 3 * self.t % 5], np.float32)
        parts = {"observation": numbers, "achieved_goal": numbers, "desired_goal": GOAL,
                 "picture": np.full((8, 8, 1), 20 * self.t + self.length, np.uint8)}  # fmt: skip
        obs = {key: parts[key] for key in self.observation_space} if self.kind in ("goals", "picture") else numbers
        return obs, {} if self.kind == "box" else {"action_mask": (np.arange(4) != self.t % 4).astype(np.int8)}

    def step(self, action):
        assert self.kind == "box" or action != 1 + self.t % 4
        self.log[self.length, self.t] = np.array(action, np.float64)
        executed = {"executed_action": np.full(2, self.t, np.float32) if self.kind == "box" else 1 + (self.t + 1) % 4}
        is_replaced, self.t = self.t % 3 == 1, self.t + 1
        obs, info = self.row()
        return obs, 2.0 * self.t, self.t == self.length, False, info | (executed if is_replaced else {})


@pytest.fixture(autouse=True)
def _no_renderer(monkeypatch):
    """Mesa's LLVM, which EGL loads, and Triton's do not go together in a process."""
    monkeypatch.setenv("MUJOCO_GL", "disable")


def log_of(door, agent):
    """The actions of two episodes by their rows."""
    Story.log = {}
    log = door(agent) or Story.log
    assert len(log) == STEPS
    return log


@pytest.fixture(scope="module", params=POLICIES)
def agent(request, tmp_path_factory):
    """An agent with random weights, and the actions of its evaluation."""
    kind, name, settings = POLICIES[request.param]
    folder, make = tmp_path_factory.mktemp(request.param), functools.partial(Story, kind)
    config = ExperimentConfig(algo=algorithm_config(name)().merge(settings))
    config = config.merge({"env.id": "Story", "env.num": 1, "env.clip_reward": "tanh", "eval_envs": 1})
    flat = make_flat(config.env, make, 0, False)
    learner = config.algo.build(flat.obs_spec, flat.action_spec, "cpu", 1)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in learner.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.7)
    for model in (getattr(learner, "world", None), getattr(learner, "objective", None)):
        if (
            encoder := getattr(model, "encoder", None)
        ) is not None:  # its latents and plans are random numbers of a row
            encoder.register_forward_pre_hook(lambda *_: torch.manual_seed(0) and None)
    agent = Agent(config, learner, flat, make, make, folder, folder / "step-0", 40)
    agent.name, agent.expected = request.param, log_of(DOORS["evaluate"], agent)
    if name == "fql":  # decisions seed its noise, and other doors count them anew in the second episode
        agent.expected = {row: action for row, action in agent.expected.items() if row[0] == 3}
    return agent


def by_hand(act):
    """A door that calls ``act(agent, obs, state, reward=..., mask=...)``, as a user's loop does."""

    def play(agent):
        with contextlib.closing(agent.make_env()) as env:
            for _ in range(EPISODES):
                (obs, info), state, reward, is_over = env.reset(), None, 0.0, False
                while not is_over:
                    action, state = act(agent, obs, state, reward=reward, mask=info.get("action_mask"))
                    obs, reward, is_over, _, info = env.step(action)
                    if "executed_action" in info:
                        state = agent.override(state, info["executed_action"])

    return play


def search(agent, obs, state, reward, mask):
    found = agent.search(obs, state=state, action_mask=mask)
    return found.action, agent.act(obs, state, reward=reward, action_mask=mask)[1]


def collect(agent):
    """A collector whose policy does not explore."""
    policy = agent.algo.policy
    calm = SimpleNamespace(initial=policy.initial, override=policy.override, extras=policy.extras,
                           act=lambda step, state, mode: policy.act(step, state, "eval"))  # fmt: skip
    sink = SimpleNamespace(add=lambda *_: None, correct=lambda *_: None)
    with contextlib.closing(make_eval_env(agent.config, agent.factory, as_trained=True)) as env:
        collector = EnvCollector(env, calm, sink, seed=0)
        while len(Story.log) < STEPS:
            collector.collect()


def recorded(agent):
    folder = agent.run / f"data{len([*agent.run.iterdir()])}"
    record_agent(agent, str(folder), RecordConfig(episodes=EPISODES))
    return [agent.load_episode(number, folder) for number in range(EPISODES)]


def record(agent):
    """The actions that are read back; those of the environment's log where they were replaced."""
    rows = {(batch.shape[1] - 1, t): np.asarray(agent.codec(action.numpy()))
            for batch in recorded(agent) for t, action in enumerate(batch.action[0, :-1])}  # fmt: skip
    return {row: Story.log[row] if row[1] % 3 == 1 else action for row, action in rows.items()}


def estimate(agent):
    """The policy's actions in the rows of a recording."""
    log = {}
    for batch in recorded(agent):
        columns = {f"obs/{key}": x[0].numpy() for key, x in batch.obs.items()}
        columns |= {name: getattr(batch, name)[0].numpy() for name in ("action", "reward", *FLAGS)}
        actions = policy_actions(agent.algo.policy, columns, agent.action_spec.width)[:-1, 0]
        log |= {(len(actions), t): np.asarray(agent.codec(action)) for t, action in enumerate(actions)}
    return log


def reach(agent):
    env = agent.make_env()
    for _ in range(EPISODES):
        agent.reach(GOAL, env)
        env.reset()  # another one, after that which looks for a mask


def watch(agent):
    with contextlib.closing(Session(agent)) as session:
        for _ in range(EPISODES):
            while not session.timeline.real[-1].values["last"]:
                session.step()
            session.start()


def export(agent):
    """The function that is exported, called as docs/export.md says."""
    function = PolicyFunction(agent, 1)
    initial = {spec.name: spec.example for spec in function.inputs}

    def call(user, obs, state, reward, mask):
        values = (
            initial | (state or {}) | {f"obs/{key}": x for key, x in agent.to_step(obs, None, None, mask).obs.items()}
        )
        values |= {"is_first": torch.tensor([state is None]), "reward": torch.from_numpy(agent.clip_rewards([reward]))}
        outputs = function._act(values, None)[0]
        state = {name.removeprefix("next_"): x for name, x in outputs.items() if name.startswith("next_")}
        return outputs["action"][0].numpy(), state

    def override(state, action):
        flat = torch.from_numpy(agent.flatten_actions(action, 1))
        told = {name: flat if name.endswith("/action") else initial[name] for name in state
                if name.endswith(("/action", "num_taken"))}  # fmt: skip
        return state | told

    by_hand(call)(SimpleNamespace(make_env=agent.make_env, override=override))


DOORS = {
    "evaluate": lambda agent: agent.evaluate(EPISODES) and None,
    "evaluate_searching": lambda agent: agent.evaluate(EPISODES, simulations=4) and None,
    "collect": collect,
    "act": by_hand(lambda agent, *row, reward, mask: agent.act(*row, reward=reward, action_mask=mask)),
    "predict": by_hand(lambda agent, *row, reward, mask: agent.predict(*row, reward=reward, action_masks=mask)),
    "search": by_hand(search),
    "record": record,
    "estimate": estimate,
    "reach": reach,
    "own_policy": lambda agent: reverie.evaluate(agent.factory, agent, EPISODES) and None,
    "session": watch,
    "report": lambda agent: play_episodes(agent, EPISODES) and None,
    "export": export,
}  # fmt: skip
ONLY = {"evaluate_searching": ("muzero",), "search": ("muzero",), "reach": ("gcbc",)}
EXCEPT = {("estimate", "fql"): "rows in any order draw other noise: docs/offline_evaluation.md"}


@pytest.mark.parametrize("door", DOORS)
def test_each_door_acts_as_an_evaluation_does(agent, door):
    if agent.name in ONLY.get(door, POLICIES):
        log = log_of(DOORS[door], agent)
        differing = [row for row, action in agent.expected.items() if not np.allclose(log[row], action, atol=1e-4)]
        assert bool(differing) == ((door, agent.name) in EXCEPT), differing


def test_each_state_says_what_an_executed_action_changes():
    """A policy has ``override`` beside ``initial``, or from a base without ``initial``: it may ``ignore_executed``."""
    texts = [path.read_text() for path in Path(reverie.__file__).parent.rglob("*.py")]
    trees = [ast.parse(text) for text in texts if "def initial(self, num_envs" in text]
    classes = {node.name: node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
    names = {name: {getattr(x, "name", ast.unparse(getattr(x, "targets", []))) for x in node.body}
             for name, node in classes.items()}  # fmt: skip
    for name, node in classes.items():
        bases = [names.get(ast.unparse(base).partition("[")[0], set()) for base in node.bases]
        has_override = any("override" in x for x in (names[name], *(x for x in bases if "initial" not in x)))
        assert has_override or not names[name] >= {"initial", "act"}, name
