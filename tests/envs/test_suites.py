"""Each suite that is installed here is made, stepped and seen for a few dozen rows."""

import subprocess
import sys
from importlib import metadata

import gymnasium
import numpy as np
import pytest
import torch

import env_steps
import env_zoo
from reverie.core.errors import ConfigError, EnvError
from reverie.core.specs import ObsPart
from reverie.envs import suites
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count, Cue, Grid, Match
from reverie.envs.flat_env import make_flat
from reverie.envs.minigrid import MapView
from reverie.envs.registration import register_env
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.suites import check_id, dm_control_view, register_suite, suite_id


def play(count=40, render=False, factory=None, **options):
    """An environment and ``count`` of its steps under random actions."""
    env = make_vector_env(EnvConfig(**options), seed=3, render=render, factory=factory)
    steps = env_steps.play(env, count, env_steps.actions(env))
    frame = env.render()
    env.close()
    return env, steps, frame


def image(*shape):
    return ObsPart(kind="image", shape=shape, dtype="uint8")


def kinds(env):
    return {key: (part.kind, part.shape) for key, part in env.obs_spec.items()}


def test_atari_as_the_authors_play_it():
    env, steps, frame = play(
        id="ALE/Pong-v5", render=True, action_repeat=4, pool_frames=2, noop_max=30, max_episode_steps=30,
        resize=(96, 96), grayscale=True, kwargs={"full_action_space": True, "repeat_action_probability": 0.25},
    )  # fmt: skip
    assert env.obs_spec == {"image": image(96, 96, 1)}
    assert (env.action_spec.width, frame.shape) == (18, (210, 160, 3))
    assert [t for t, step in enumerate(steps) if step.is_last] == [30]
    assert not any(step.is_terminal for step in steps)
    assert len({step.obs["image"].numpy().tobytes() for step in steps}) > 20


def test_atari_frames_are_skipped_once():
    register_suite("ALE/Pong-v5")
    raw = gymnasium.make("ALE/Pong-v5", frameskip=1, repeat_action_probability=0.0)
    env = make_vector_env(
        EnvConfig(id="ALE/Pong-v5", action_repeat=4, kwargs={"repeat_action_probability": 0.0}), seed=0
    )
    step = env_steps.play(env, 11, torch.eye(6)[:1])[-1]
    raw.reset(seed=1)
    for _ in range(40):
        obs, *_ = raw.step(0)
    np.testing.assert_array_equal(step.obs["image"][0], obs)


REPEAT = "reverie.envs.wrappers:ActionRepeat(3)"


@pytest.mark.parametrize(
    ("env_id", "options", "frames"),
    [
        ("ale_py:Pong-v4", {"action_repeat": 4}, 4),
        ("ale_py:Pong-v4", {}, 3),  # the emulator draws 2 to 4
        ("ALE/Pong-v5", {}, 4),
        ("ALE/Pong-v5", {"kwargs": {"frameskip": 1}, "wrappers": (REPEAT,), "action_repeat": 2}, 6),
        ("ALE/Pong-v5", {"wrappers": ("gymnasium.wrappers:MaxAndSkipObservation(skip=5)",)}, None),
        ("ALE/Pong-v5", {"kwargs": {"frameskip": 4}, "action_repeat": 4}, None),
    ],
)
def test_frames_of_an_action_are_counted_and_skipped_once(env_id, options, frames):
    def make():
        return make_vector_env(EnvConfig(id=env_id, **options), seed=0)

    if frames is None:
        with pytest.raises(ConfigError, match=r"frames are skipped twice: \w+ takes \d per action, AtariEnv takes 4"):
            make()
        return
    env = make()
    env.reset()
    before = env.call("ale")[0].getFrameNumber()
    env_steps.play(env, 21, torch.eye(6)[:1])
    skipped = (env.call("ale")[0].getFrameNumber() - before) / 20
    assert (env.frames_per_action, round(skipped)) == (frames, frames)


@pytest.mark.parametrize(("options", "names"), [
    ({"id": "CartPole-v1"}, ["gymnasium"]),
    ({"id": "CartPole-v1", "vectorization": "native"}, ["gymnasium"]),
    ({"id": "HalfCheetah-v5", "vectorization": "async"}, ["gymnasium", "mujoco"]),
    ({"id": "ALE/Pong-v5"}, ["ale-py", "gymnasium"]),
    ({"id": "dm_control/cartpole-balance-v0"}, ["Shimmy", "dm-env", "dm_control", "gymnasium", "mujoco"]),
])  # fmt: skip
def test_versions_of_an_environment_are_those_of_its_packages_and_its_simulator(options, names):
    env = play(1, **options)[0]
    assert env.packages == {name: metadata.version(name) for name in names}


def test_ids_that_only_an_imported_package_registers():
    code = "from reverie.envs.suites import check_id; check_id('BreakoutNoFrameskip-v4')"
    subprocess.run([sys.executable, "-c", code], check=True)
    check_id("BreakoutNoFrameskip")
    with pytest.raises(EnvError, match=r"unknown environment 'BreakoutNoFrameskip-v7'\. Did you mean"):
        check_id("BreakoutNoFrameskip-v7")
    assert suite_id("BreakoutNoFrameskip-v4") == "ALE/BreakoutNoFrameskip-v4"
    assert (suite_id("ale_py:Pong-v4"), suite_id("shop:Till-v0")) == ("ALE/Pong-v4", "shop:Till-v0")


def test_atari_lives():
    """Of one who never moves: without FIRE nothing happens; with it five lives are one game, or five episodes."""
    ends = {}
    for end, fire in ((False, False), (False, True), (True, True)):
        options = {"terminal_on_life_loss": end, "fire_on_reset": fire, "kwargs": {"repeat_action_probability": 0.0}}
        env = make_vector_env(EnvConfig(id="ALE/Breakout-v5", action_repeat=4, **options), seed=0)
        steps = env_steps.play(env, 301, torch.eye(4)[:1])
        ends[end, fire] = [t for t, step in enumerate(steps) if step.is_last]
        assert all(step.is_terminal for step in steps if step.is_last)
        env.close()
    life = ends[True, True][0]
    assert ends == {
        (False, False): [],
        (False, True): [5 * life, 10 * life + 1],
        (True, True): [k * (life + 1) - 1 for k in range(1, 300 // (life + 1) + 1)],
    }


def test_values_of_the_info_are_summarized_over_a_life():
    options = {"terminal_on_life_loss": True, "fire_on_reset": True, "log_info": ("episode_frame_number:min",)}
    config = EnvConfig(id="ALE/Breakout-v5", action_repeat=4, kwargs={"repeat_action_probability": 0.0}, **options)
    env = make_vector_env(config, seed=0)
    env.reset()
    firsts = []
    for _ in range(200):
        env.step(torch.eye(4)[:1])
        firsts += [info["episode_frame_number_min"] for info in env.episode_info.values()]
    env.close()
    assert len(firsts) > 2
    assert sorted(set(firsts[:5])) == firsts[:5]  # frames of the game, of which each life has later ones


def test_minatar():
    env, steps, frame = play(120, render=True, id="MinAtar/Breakout-v1")
    assert env.obs_spec == {"image": image(10, 10, 4)}
    assert (env.action_spec.width, frame.shape) == (3, (10, 10, 3))
    assert set(np.unique(torch.cat([s.obs["image"] for s in steps]))) == {0, 255}
    assert any(step.is_terminal.all() for step in steps)
    again = play(120, id="MinAtar/Breakout-v1")[1]
    assert [*map(env_steps.as_bytes, again)] == [*map(env_steps.as_bytes, steps)]


def test_minigrid_one_hot_is_the_raw_grid():
    register_suite("MiniGrid-DoorKey-5x5-v0")
    raw = gymnasium.make("MiniGrid-DoorKey-5x5-v0")
    env = make_vector_env(EnvConfig(), seed=0, factory=lambda: raw)
    direction = ObsPart(kind="categorical", shape=(), dtype="int64", classes=(4,))
    assert env.obs_spec == {"direction": direction, "image": image(7, 7, 20)}
    planes = env.reset().obs["image"][0]
    codes = raw.unwrapped.gen_obs()["image"]
    for channel, part in enumerate((planes[..., :11], planes[..., 11:17], planes[..., 17:])):
        assert (part.int().sum(-1) == 255).all()
        np.testing.assert_array_equal(part.argmax(-1), codes[..., channel])


def test_minigrid_from_above_is_an_agent_and_a_class_per_cell():
    raw = gymnasium.make("MiniGrid-DoorKey-6x6-v0")
    inner = raw.unwrapped
    env, _, _ = play(2, factory=lambda: raw, full_view=True)
    assert kinds(env) == {"agent": ("categorical", (4,)), "grid": ("categorical", (6, 6))}
    assert env.obs_spec["agent"].classes == (6, 6, 4, 19)
    flat = env_zoo.Seen(make_flat(EnvConfig(id="", full_view=True), lambda: raw, 0, False))
    seen, held = {}, set()
    for seed in range(3):
        obs, _ = flat.reset(seed=seed)
        for action in np.random.default_rng(seed).integers(0, 6, 300):
            codes = inner.grid.encode()
            for code, number in zip(codes.reshape(-1, 3), obs["grid"].ravel(), strict=True):
                assert seen.setdefault(tuple(code), number) == number  # the same class for the same look
            assert (*obs["agent"][:2], obs["agent"][2]) == (*inner.agent_pos, inner.agent_dir)
            assert (obs["agent"][3] > 0) == (inner.carrying is not None)
            held.add(obs["agent"][3])
            obs, *_ = flat.step(np.eye(7, dtype=np.float32)[action])
    assert len(set(seen.values())) == len(seen) >= 5  # empty, wall, goal, key, locked door
    assert len(held) == 2
    with pytest.raises(EnvError, match="full_view is for MiniGrid and BabyAI"):
        play(2, id="CartPole-v1", full_view=True)


def test_minigrid_as_pydreamer_sees_it():
    raw = gymnasium.make("MiniGrid-LavaGapS6-v0")
    inner = raw.unwrapped
    env, _, _ = play(2, factory=lambda: raw, map_view=True)
    assert kinds(env) == {
        "view": ("categorical", (7, 7)),
        "map": ("categorical", (6, 6)),
        "map_coord": ("vector", (4,)),
    }
    flat = env_zoo.Seen(make_flat(EnvConfig(id="", map_view=True), lambda: raw, 0, False))
    obs, _ = flat.reset(seed=1)
    for action in np.random.default_rng(0).integers(0, 3, 30):
        seen = inner.gen_obs()["image"]
        np.testing.assert_array_equal(MapView.TABLE[obs["view"]][..., 0], seen[..., 0])
        assert (obs["view"] == 46).sum() == (seen[..., 0] == 0).sum() > 0
        np.testing.assert_array_equal(MapView.TABLE[obs["map"]], inner.grid.encode())
        np.testing.assert_allclose((obs["map_coord"][:2] + 1) * 3, inner.agent_pos, atol=1e-6)
        np.testing.assert_array_equal(obs["map_coord"][2:], [[1, 0], [0, 1], [-1, 0], [0, -1]][inner.agent_dir])
        obs, _, over, *_ = flat.step(np.eye(7, dtype=np.float32)[action])
        if over:
            obs, _ = flat.reset()
    with pytest.raises(EnvError, match="map_view is for MiniGrid and BabyAI"):
        play(2, id="CartPole-v1", map_view=True)
    with pytest.raises(ConfigError, match="set at most one of them"):
        EnvConfig(full_view=True, map_view=True)


def test_crafter():
    env, steps, frame = play(12, render=True, id="CrafterReward-v1", max_episode_steps=8, kwargs={"area": (16, 16)})
    assert env.obs_spec == {"image": image(64, 64, 3)}
    assert (env.action_spec.width, frame.shape) == (17, (256, 256, 3))
    assert [t for t, step in enumerate(steps) if step.is_last] == [8]
    assert not torch.equal(steps[0].obs["image"], steps[9].obs["image"])  # another world


def test_dm_control_vectors_and_pixels():
    pytest.importorskip("dm_control")
    env, steps, _ = play(id="dm_control/cartpole-balance-v0", max_episode_steps=20)
    assert kinds(env) == {"position": ("vector", (3,)), "velocity": ("vector", (2,))}
    assert env.action_spec.width == 1
    assert [t for t, step in enumerate(steps) if step.is_last] == [20]
    assert not any(step.is_terminal for step in steps)
    _, steps, frame = play(10, render=True, id="dm_control/cartpole-balance-v0", pixels="only", resize=(48, 64))
    view = {"render_kwargs": {"height": 48, "width": 64, "camera_id": 0}}
    env, same, _ = play(10, render=True, id="dm_control/cartpole-balance-v0", pixels="only", kwargs=view)
    assert env.obs_spec == {"image": image(48, 64, 3)}
    assert frame.shape == (48, 64, 3)
    assert all(torch.equal(a.obs["image"], b.obs["image"]) for a, b in zip(steps, same, strict=True))
    assert len({step.obs["image"].numpy().tobytes() for step in steps}) == 10
    assert dm_control_view("dm_control/quadruped-run-v0", None) == {"render_kwargs": {"camera_id": 2}}
    assert dm_control_view("dm_control/CmuHumanoidRunWalls-v0", (64, 64)) == {}


# The environments of reverie itself keep the returns that they document


def returns(env, policy, episodes=40):
    """The return of each episode under ``policy(obs, memory)``, where memory is the first observation."""
    out = np.zeros(episodes)
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode)
        first, ended = obs, (False,)
        while not any(ended):
            obs, reward, *ended, _ = env.step(policy(obs, first))
            out[episode] += reward
    return out


def walk(board, _):
    """One pixel nearer to the red one."""
    (gy, gx), (y, x) = np.argwhere(board[..., 0] == 255)[0], np.argwhere(board[..., 1] == 255)[0]
    return (0 if gy < y else 1) if gy != y else (2 if gx < x else 3)


def test_best_returns():
    assert (returns(Count(terminate_at=7), lambda obs, first: 1) == 7).all()
    assert (returns(Cue(), lambda obs, first: int(first[0] > 0)) == 1).all()
    assert (returns(Grid(), walk) == 1).all()
    assert (returns(Match(), lambda obs, first: obs) == 0).all()


def test_blind_policies_fall_short():
    rng = np.random.default_rng(0)
    assert abs(returns(Cue(), lambda obs, first: 0, 200).mean()) < 0.25
    assert returns(Grid(), lambda obs, first: int(rng.integers(4)), 100).mean() < 0.5
    assert returns(Match(), lambda obs, first: np.zeros(1)).mean() < -40


def test_a_renderer_that_does_not_work_is_told(monkeypatch):
    def broken(env_id):
        exec(compile("None.glGetError", "opengl", "exec"), {"__name__": "OpenGL.raw.GL"})

    suite = suites.SUITES[1]._replace(register=broken)
    monkeypatch.setattr(suites, "SUITES", (suite,))
    monkeypatch.setenv("MUJOCO_GL", "osmesa")
    with pytest.raises(EnvError, match=r"importing 'dm_control' failed with AttributeError.* MUJOCO_GL = osmesa: this"):
        register_suite("dm_control/cartpole-balance-v0")
    monkeypatch.delenv("MUJOCO_GL")
    with pytest.raises(EnvError, match=r"importing 'dm_control' failed with AttributeError.*\.$") as caught:
        register_suite("dm_control/cartpole-balance-v0")
    assert "MUJOCO_GL" not in str(caught.value)


def test_a_walk_through_the_rooms_ends_at_the_goal_in_lava_or_after_fifty_steps():
    register_suite("reverie/Rooms-v0")
    env = gymnasium.make("reverie/Rooms-v0")
    (left, right, forward), rooms = range(3), env.unwrapped
    starts = set()
    for seed in range(300):
        env.reset(seed=seed)
        starts.add((*rooms.agent_pos, int(rooms.agent_dir)))
    assert len(starts) > 60
    assert all(rooms.grid.get(x, y) is None or rooms.grid.get(x, y).type == "floor" for x, y, _ in starts)
    for place, direction, actions, reward, terminated in (
        ((5, 4), 0, [right, forward], 1, True),
        ((2, 1), 1, [left, forward], 0, True),
        ((5, 4), 3, [left] * 50, 0, False),
    ):
        env.reset(seed=0)
        rooms.agent_pos, rooms.agent_dir = place, direction
        steps = [env.step(action)[1:4] for action in actions]
        assert steps[-1] == (reward, terminated, not terminated)
        assert not any(step[1] or step[2] for step in steps[:-1])


def test_a_suite_registers_classes_with_a_time_limit(monkeypatch):
    monkeypatch.setattr(gymnasium.envs.registration, "registry", gymnasium.registry.copy())
    register_env("toy/Cue-v0", "Cue", "dummy", max_episode_steps=7)
    env = gymnasium.make("toy/Cue-v0")
    assert isinstance(env.unwrapped, Cue)
    assert env.spec.max_episode_steps == 7
