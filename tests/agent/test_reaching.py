"""Goals that the caller passes: to act, to play an episode and to plan; what does not fit is named."""

import os
from types import SimpleNamespace

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from PIL import Image

import reverie
from reverie.agent.reaching import read_goal
from reverie.cli import main
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.envs.two_rooms import TwoRooms, draw, find_dot
from reverie.log.jsonl import read_metrics

TINY = {"algo.batch_size": 8, "algo.networks.units": (16, 16)}


class Walk(gymnasium.Env):
    """A place on a line that the action moves; it knows no goals."""

    observation_space = spaces.Box(-10, 10, (1,), np.float32)
    action_space = spaces.Box(-1, 1, (1,), np.float32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = np.zeros(1, np.float32)
        return self.place.copy(), {}

    def step(self, action):
        self.place = np.clip(self.place + action, -10, 10).astype(np.float32)
        return self.place.copy(), 0.0, False, False, {}


@pytest.fixture(scope="module")
def walker(tmp_path_factory):
    """An agent that imitates walks which keep their direction, so that it reaches what it is told to."""
    folder, rng = tmp_path_factory.mktemp("walks"), np.random.default_rng(0)
    direction = rng.choice([-1.0, 1.0], 60).repeat(21)
    place = np.cumsum(direction.reshape(60, 21), 1) - direction.reshape(60, 21)
    np.savez(folder / "walks.npz", observations=place.reshape(-1, 1).astype(np.float32),
             actions=direction[:, None].astype(np.float32), terminals=np.arange(1260) % 21 == 20)  # fmt: skip
    run = reverie.train("gcbc", data=folder / "walks.npz", env="none", updates=300, run=folder / "run", **TINY)
    return reverie.load(run.run)


def test_a_goal_is_kept_until_another_one_is_passed(walker):
    start, right, left = (np.array([x], np.float32) for x in (0, 5, -5))
    action, state = walker.act(start, goal=right)
    assert action > 0
    assert walker.act(start, state)[0] == action
    other, state = walker.act(start, state, goal={"observation": left})
    assert other < 0
    both = walker.act(np.stack([start, start]), goal=np.stack([right, left]))[0]
    np.testing.assert_allclose(both.ravel(), [action.item(), other.item()], rtol=1e-5)
    with pytest.raises(DataError, match="a batch of 0 observations"):
        walker.act(np.zeros((0, 1), np.float32), goal=right)
    as_lists = walker.act(start.tolist(), goal=torch.tensor(right, requires_grad=True))[0]
    np.testing.assert_array_equal(as_lists, action)
    whole = {"observation": start, "goal": {"observation": right}}  # as an environment would supply it
    assert walker.act(whole)[0] == action


@pytest.mark.parametrize(("goal", "problem"), [
    (None, "there is no goal: pass goal"), (np.zeros(2), r"shape \(2,\): expected \(1,\)"),
    (np.array([np.nan]), "contains NaN"), ({"place": np.zeros(1)}, "goal/observation is missing"),
    ([None], "contains .* other objects"), ([[0, 1], 0], "inhomogeneous"),
    ({"observation": {"x": 1}}, r"has the keys 'x': expected an array of shape \(1,\)"),
])  # fmt: skip
def test_a_goal_that_does_not_fit_is_named(walker, goal, problem):
    with pytest.raises(DataError, match=problem):
        walker.act(np.zeros(1, np.float32), goal=goal)
    with pytest.raises(DataError, match=problem if goal is not None else "there is no goal"):
        walker.reach(goal, Walk(), radius=1.0)


@pytest.mark.parametrize(("obs", "problem"), [
    (np.zeros(3), r"has shape \(3,\); its space declares \(1,\)"), (5.0, r"has shape \(\)"),
    ({"place": np.zeros(1)}, "'observation' is missing"),
])  # fmt: skip
def test_an_observation_that_does_not_fit_is_named_as_without_goals(walker, obs, problem):
    with pytest.raises(DataError, match=problem):
        walker.act(obs, goal=np.zeros(1))


def test_an_episode_toward_a_goal(walker):
    goal = np.array([6.0], np.float32)
    assert walker.reach(goal, Walk(), radius=1.0, max_steps=30).success
    as_part = {"observation": torch.tensor(goal, requires_grad=True)}
    assert walker.reach(as_part, Walk(), radius=1.0, max_steps=30).success
    gymnasium.register("Walk-v0", Walk)
    assert walker.reach(goal, "Walk-v0", radius=1.0, max_steps=30).success
    unknown = walker.reach(goal, Walk(), max_steps=7)
    assert (unknown.success, unknown.steps, len(unknown.distances)) == (None, 7, 0)
    assert "toward the goal in 7 steps" in str(unknown)
    blind = Walk()
    blind.render_mode = "rgb_array"  # without a method that renders
    with pytest.warns(UserWarning, match="could not be rendered: NotImplementedError"):
        assert walker.reach(goal, blind, max_steps=7).frames == []
    with pytest.raises(ConfigError, match="does not learn a state-value function"):
        walker.distance(np.zeros(1, np.float32), goal=goal)
    with pytest.raises(ConfigError, match="does not plan"):
        walker.plan(np.zeros(1, np.float32), goal)
    with pytest.raises(ConfigError, match="chooses no subgoals"):
        walker.subgoal(np.zeros(1, np.float32), goal, goal[None])


def test_recordings_alone_give_a_number(walker, capsys):
    """On held-out walks, the earlier of two rows is nearly always the nearer goal; without training, half the time."""
    rates = []
    for updates in (1, 500):
        folder = walker.run.parent / f"recall-{updates}"
        settings = {"algo.lr": 3e-3, "algo.batch_size": 64, "algo.tau": 0.02}
        own = settings | {"data": walker.run.parent / "walks.npz", "env": "none", "updates": updates, "run": folder}
        flags = [f"--{name}={value}" for name, value in own.items()]
        assert main(["train", "gcivl", *flags, "--algo.networks.units", "16", "16"]) == 0
        rates.append(read_metrics(folder / "metrics.jsonl", ["goal/recall"])[-1]["goal/recall"])
        assert f"goal/recall {rates[-1]:.4g}" in capsys.readouterr().out
    assert rates[0] < 0.8
    assert rates[1] > 0.9
    for more in ({"heldout_fraction": 0}, {"algorithm": "bc"}):
        own = {"algorithm": "gcbc", "data": walker.run.parent / "walks.npz", "env": "none", "updates": 1} | more
        folder = walker.run.parent / f"unmeasured-{own['algorithm']}"
        assert not reverie.train(**own, run=folder).heldout


def test_the_order_of_held_out_rows_selects_the_best_checkpoint(walker):
    own = TINY | {"data": walker.run.parent / "walks.npz", "env": "none", "updates": 4, "schedule.eval_every": 2}
    run = reverie.train("gcivl", **own, score_metric="goal/recall", run=walker.run.parent / "best").run
    assert (run / "checkpoints/best").exists()
    with pytest.raises(ConfigError, match=r"score_metric = goal/rank: choose one of .*goal/recall"):
        reverie.train("gcivl", **own, score_metric="goal/rank", run=walker.run.parent / "rank")


def test_too_few_recordings_to_hold_one_out_are_remarked(walker, said):
    for number, episodes in enumerate((19, 20)):
        rows = {key: x[: 21 * episodes] for key, x in np.load(walker.run.parent / "walks.npz").items()}
        np.savez(path := walker.run.parent / "few.npz", **rows)
        result = reverie.train("gcbc", data=path, env="none", updates=1, run=walker.run.parent / f"few-{number}")
        assert bool(result.heldout) == bool(number)
    assert str(said).count("too few episodes to hold one out") == 1


def test_observations_that_never_change_are_remarked(walker, said):
    rows = dict(np.load(walker.run.parent / "walks.npz"))
    for number, observations in enumerate((rows["observations"], np.ones((1260, 3)))):
        np.savez(path := walker.run.parent / "constant.npz", **{**rows, "observations": observations})
        reverie.train("bc", data=path, env="none", updates=1, run=walker.run.parent / f"constant-{number}")
        assert ("all observations are equal" in str(said)) == bool(number)


def test_rewards_of_recordings_without_goals_estimate_no_return(walker):
    """The policy cannot act in the rows that a fitted evaluation learns from, as they have no goals."""
    rows = dict(np.load(walker.run.parent / "walks.npz"))
    rows = {**rows, "rewards": np.ones(1260, np.float32), "timeouts": rows["terminals"]}
    assert reverie.train("gcbc", data=rows, env="none", updates=1, run=walker.run.parent / "rewards").updates == 1


def test_settings_that_contradict_goals_are_named(walker):
    data = walker.run.parent / "walks.npz"
    for settings, problem in (
        ({"replay.hindsight": "future(reward='numpy:subtract')"}, "gcbc samples goals itself"),
        ({"algo.batch_length": 3}, "samples goals for single transitions"),
        ({"algo.goal_keys": "place"}, "no observation matches. The observations are: observation"),
        ({"env": "CartPole-v1"}, "CartPole-v1"),
        ({"env.tasks": (1,)}, r"env\.tasks = \(1,\), but there is no environment"),
    ):
        with pytest.raises((ConfigError, DataError), match=problem):
            reverie.train("gcbc", data=data, run=walker.run.parent / "no", **{"env": "none", "updates": 1} | settings)


def test_an_environment_without_goals_is_enough_to_act_in(walker):
    agent, start, goal = reverie.load(walker.run, env=Walk), np.zeros(1, np.float32), np.full(1, 6, np.float32)
    assert agent.act(start, goal=goal)[0] == walker.act(start, goal=goal)[0]
    assert agent.reach(goal, radius=1.0, max_steps=30).success  # it makes the environment
    with pytest.raises(DataError, match=r"no goal to act toward.* agent\.reach"):
        agent.evaluate(episodes=1)


class GoalWalk(Walk):
    """The same as a goal environment, with an observation that no goal has."""

    place_space = Walk.observation_space
    observation_space = spaces.Dict(
        observation=spaces.Box(-9, 9, (3,), np.float32), achieved_goal=place_space, desired_goal=place_space
    )

    def observe(self):
        return {"observation": np.full(3, 9, np.float32), "achieved_goal": self.place.copy(),
                "desired_goal": np.full(1, 2, np.float32)}  # fmt: skip

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.observe(), {}

    def step(self, action):
        truncated = super().step(action)[0][0] > 5
        return self.observe(), 0.0, False, bool(truncated), {"is_success": False}


def test_the_achieved_goal_alone_is_compared(tmp_path):
    settings = TINY | {"eval_episodes": 0}
    data = reverie.train("td3", env=GoalWalk, steps=60, run=tmp_path / "data", **settings | {"env.num": 1}).run
    run = reverie.train("gcbc", data=data, env=GoalWalk, updates=2, run=tmp_path / "run", **settings).run
    agent = reverie.load(run, env=GoalWalk)
    assert agent.reach(np.array([0.2], np.float32), radius=0.5).steps == 0
    assert agent.reach(np.array([2.0], np.float32), max_steps=2).success is False  # the environment pursues this goal
    assert agent.reach(np.array([5.0], np.float32), max_steps=2).success is None


class LimitedWalk(Walk):
    """Steps left, right or not at all; not right of its start, and after four steps an action is replaced."""

    action_space = spaces.Discrete(3)
    max_episode_steps = 6

    def reset(self, *, seed=None, options=None):
        self.taken = []
        return super().reset(seed=seed)[0], {"action_mask": np.array([1, 0, 1], np.int8)}

    def step(self, action):
        self.taken.append(int(action))
        obs = super().step(np.float32([(-1, 1, 0)[action]]))[0]
        info = {"action_mask": np.array([1, obs[0] < 0, 1], np.int8)}
        return obs, 0.0, False, len(self.taken) == 6, info | ({"executed_action": 2} if len(self.taken) == 4 else {})


def test_masks_replaced_actions_and_limits_hold_in_an_episode_toward_a_goal(tmp_path, monkeypatch):
    settings = TINY | {"eval_episodes": 0}
    data = reverie.train("dqn", env=LimitedWalk, steps=60, run=tmp_path / "data", **settings | {"env.num": 1}).run
    run = reverie.train("gcbc", data=data, updates=2, env="none", run=tmp_path / "run", **settings).run
    agent, env, told = reverie.load(run, env=LimitedWalk), LimitedWalk(), []
    agent = agent.with_learner(agent.algo, agent.config.merge({"eval_episode_steps": 3}))
    monkeypatch.setattr(agent, "override", lambda state, action: told.append(action) or state)
    assert agent.reach(np.array([5.0], np.float32), env).steps == env.max_episode_steps
    place = 0
    for action in env.taken:
        assert action != 1 or place < 0
        place += (-1, 1, 0)[action]
    assert told == [2]


@pytest.fixture(scope="module")
def dreamer(tmp_path_factory):
    """A world model of two rooms, hardly trained."""
    folder, env = tmp_path_factory.mktemp("rooms"), TwoRooms()
    env.action_space.seed(0)
    pictures, actions = [], []
    for episode in range(3):
        obs, _ = env.reset(seed=episode)
        for _ in range(20):
            actions.append(env.action_space.sample())
            pictures.append(obs["image"])
            obs = env.step(actions[-1])[0]
    ends = np.arange(60) % 20 == 19
    np.savez(folder / "rooms.npz", observations=np.array(pictures), actions=np.array(actions), terminals=ends)
    run = reverie.train("lewm", data=folder / "rooms.npz", env="none", updates=3, run=folder / "run", **TINY,
                        **{"algo.planner.iterations": 2, "algo.planner.candidates": 40})  # fmt: skip
    return reverie.load(run.run, env="reverie/TwoRooms-v0")


def test_a_picture_in_fractions_is_no_goal_of_bytes(dreamer):
    """They would be rounded to a black picture; integers above 255 would become other colors."""
    picture = draw(np.array([8.0, 8.0]))
    with pytest.raises(DataError, match=r"goal/image has values .*; its space declares uint8"):
        dreamer.act(picture, goal=picture.astype(int) + 256)
    with pytest.raises(DataError, match="goal/image has dtype float64; its space declares uint8"):
        dreamer.act(picture, goal=picture / 255)


def test_another_goal_begins_another_plan(dreamer):
    start, goal, other = (draw(np.array([x, 9.0])) for x in (8.0, 20.0, 25.0))
    _, state = dreamer.act(start, goal=goal)
    plan = np.stack([dreamer.act(start, state, goal=x)[0] for x in (goal, goal.copy(), other)])
    assert np.array_equal(plan[0], plan[1])
    assert not np.array_equal(plan[0], plan[2])


def test_distances_need_no_plan(dreamer, monkeypatch):
    start, goal = (draw(np.array([x, 9.0])) for x in (8.0, 20.0))
    action, distance = dreamer.act(start, goal=goal)[0], dreamer.distance(start, goal=goal)
    np.testing.assert_allclose(dreamer.distribution(start, goal=goal)["mean"], action)
    monkeypatch.setattr(type(dreamer.algo), "plan", None)
    assert dreamer.distance(start, goal=goal) == distance


def test_a_picture_as_the_goal(dreamer, tmp_path, capsys, monkeypatch):
    goal = draw(np.array([20.0, 9.0]))
    np.testing.assert_allclose(find_dot(goal), [20, 9], atol=0.05)
    reached = dreamer.reach(goal, max_steps=3, options={"image": draw(np.array([8.0, 9.0]))})
    assert (reached.success, reached.steps, len(reached.distances)) == (False, 3, 4)
    at_once = dreamer.reach({"image": goal}, radius=1e-3, options={"image": goal})
    assert (at_once.success, at_once.steps) == (True, 0)
    near = dreamer.reach(goal, max_steps=5, options={"image": draw(np.array([20.0, 10.0]))})
    assert near.success  # the environment judges: the goal that it observes is this picture
    start = draw(np.array([8.0, 9.0]))
    plan = dreamer.plan(start, goal)
    assert (len(plan.actions), plan.latents.shape, plan.costs.shape) == (25, (1, 5, 32), (1, 5))
    taken, state = [], None
    for _ in range(len(plan.actions)):
        action, state = dreamer.act(start, state, goal=goal)
        taken.append(action)
    np.testing.assert_allclose(plan.actions, taken, atol=1e-5)
    both = dreamer.plan(np.stack([start, start]), goal)
    assert (len(both.actions), both.actions[0].shape, both.latents.shape) == (25, (2, 2), (2, 5, 32))
    with pytest.raises(DataError, match="goal/image is missing"):
        dreamer.reach({"place": goal})
    with pytest.raises(ConfigError, match="searches its actions, which cannot be exported"):
        dreamer.export()
    Image.fromarray(goal).save(tmp_path / "goal.png")
    assert np.array_equal(read_goal(dreamer, tmp_path / "goal.png"), goal)
    command = [
        "reach",
        str(dreamer.run),
        str(tmp_path / "goal.png"),
        "--env",
        "reverie/TwoRooms-v0",
        "--max-steps",
        "2",
        "--seed",
        "1",
    ]
    for number in (1, 2):  # a film never replaces another one
        assert main(command) == 0
        assert "2 steps" in capsys.readouterr().out
        assert (dreamer.run / f"videos/reach_{number}.mp4").exists()
    assert main(["dream", str(dreamer.run), "--env", "reverie/TwoRooms-v0"]) != 0
    assert "no decoder, so it cannot dream. `reverie view RUN` draws its plans" in capsys.readouterr().err
    os.mkfifo(tmp_path / "pipe.npy")
    np.savez_compressed(tmp_path / "large.npz", np.zeros(10**6))
    monkeypatch.setattr("reverie.core.files.MAX_EXPANDED", 10**5)
    for name in ("pipe.npy", "large.npz"):
        with pytest.raises(RunError, match=name):
            read_goal(dreamer, tmp_path / name)
    for name, content in (("text.npy", "no array"), ("empty.npy", ""), ("cut.npz", "PK\3\4"), ("goal.json", "[1]")):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=f"{name}: not an array of numbers. Expected a picture"):
            read_goal(dreamer, tmp_path / name)
    with pytest.raises(DataError, match=r"missing\.png: No such file or directory"):
        read_goal(dreamer, tmp_path / "missing.png")


@pytest.mark.parametrize(("shape", "expected"), [
    ((4, 6, 3), (4, 6, 3)), ((3, 4, 6), (3, 4, 6)), ((4, 6, 1), (4, 6, 1)), ((1, 4, 6), (1, 4, 6)), ((4, 6), (4, 6)),
    ((6, 4, 1), (4, 6, 3)), ((2,), (4, 6, 3)),
])  # fmt: skip
def test_the_picture_in_a_file_has_the_colors_and_axes_of_observations(tmp_path, shape, expected):
    Image.fromarray(np.full((4, 6, 3), (255, 0, 0), np.uint8)).save(tmp_path / "goal.png")
    space = spaces.Dict(camera=(part := spaces.Box(0, 255, shape, np.uint8)), goal=spaces.Dict(camera=part))
    goal = read_goal(SimpleNamespace(observation_space=space), tmp_path / "goal.png")
    assert goal.shape == expected
    assert goal.mean() == (85 if 3 in expected else 76)  # red, or its luma
