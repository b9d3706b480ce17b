"""The list ``env.wrappers``: what each short name does, misfits, and that a run and its recordings keep the list."""

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import env_steps
import env_zoo
import reverie
from masked_env import Masked
from reverie.agent.recording import record_agent
from reverie.cli import main
from reverie.core.errors import EnvError
from reverie.datasets.options import RecordConfig
from reverie.envs.config import EnvConfig
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.wrapper_list import Images
from tiny_configs import FEW

IMAGES = spaces.Box(0, 255, (4, 6, 3), np.uint8)
ENDS = ("reward", "is_last")
BOTH = spaces.Dict({"eye": IMAGES, "place": spaces.Discrete(3, start=1)})


class Brighter(Images):  # a wrapper of a user's
    def __init__(self, env, by: int = 5):
        self.by = by
        super().__init__(env, by=by)

    def image(self, image):
        return image + np.uint8(self.by)


class Picky(Brighter):  # fits nothing
    def __init__(self, env):
        raise OSError("no eyes")


def frames():
    return [np.arange(72, dtype=np.uint8).reshape(4, 6, 3) + np.uint8(10 * t) for t in range(9)]


def play(*wrappers, count=5, space=IMAGES, obs=None, id="", **options):
    """The observations by key ``[T, ...]`` and the rewards of one environment, whose rewards are -2, -4 ..."""
    rewards = [-2.0 * t for t in range(20)]
    config = EnvConfig(id=id, wrappers=wrappers, **options)
    env = make_vector_env(
        config, seed=0, factory=None if id else lambda: env_zoo.Scripted(space, obs or frames(), rewards)
    )
    found = env_steps.rows(env, count, torch.ones(1, env.action_spec.width))
    env.close()
    return {key: found[key][:, 0].numpy() for key in env.obs_spec}, *(found[key][:, 0].tolist() for key in ENDS)


@pytest.mark.parametrize(
    ("wrapper", "expected"),
    [
        ("crop(top=1, right=2)", frames()[1][1:, :4]),
        (f"{__name__}:Brighter(by=7)", frames()[1] + np.uint8(7)),
        (f"{__name__}:Brighter", frames()[1] + np.uint8(5)),
    ],
)
def test_images_are_changed_inside_of_dictionaries_too(wrapper, expected):
    np.testing.assert_array_equal(play(wrapper)[0]["image"][1], expected)
    obs = [{"eye": frame, "place": 3} for frame in frames()]
    seen = play(wrapper, space=BOTH, obs=obs)[0]
    np.testing.assert_array_equal(seen["eye"][1], expected)
    assert seen["place"].tolist() == [2] * 5
    assert play("one_hot", space=BOTH, obs=obs)[0]["place"][1].tolist() == [0, 0, 1]


@pytest.mark.parametrize(
    ("box", "axis"), [(spaces.Box(0, 255, (3, 64, 80), np.uint8), "first"), (spaces.Box(0, 1, (4, 64, 80)), "last")]
)
def test_wrappers_read_images_like_the_options(box, axis):
    obs = [{"eye": box.sample(), "place": 1} for _ in range(5)]
    common = {"space": spaces.Dict({"eye": box, "place": spaces.Discrete(3)}), "obs": obs, "channel_axis": axis}
    np.testing.assert_array_equal(play("crop", **common)[0]["eye"], play(**common)[0]["eye"])


STACK = "gymnasium.wrappers:FrameStackObservation(2)"
PLACE = {"space": spaces.Box(-4, 4, (2,)), "obs": [np.array([t, 1], np.float32) for t in range(5)]}


@pytest.mark.parametrize(
    ("wrappers", "expected"),
    [
        (["normalize(1, std=[2, 4])"], [0.5, 0]),
        (["time_limit(9)", "time_aware"], [2, 1, 2]),
        (["time_limit(4)", "reverie.envs.wrappers:ActionRepeat(2)", "time_aware(normalize_time=True)"], [4, 1, 1]),
        ([STACK, "flatten"], [1, 1, 2, 1]),
        (["flatten", STACK], [[1, 1], [2, 1]]),
        (["sticky_actions(0.3)"], [2, 1]),
    ],
)
def test_vectors(wrappers, expected):
    assert play(*wrappers, **PLACE)[0]["observation"][2].tolist() == expected


def test_rewards_in_the_order_of_the_list():
    assert play("reward_scale(0.5)", "reward_clip(-1.5, 1)", count=3)[1] == [0, -1, -1.5]
    assert play("reward_clip(-1.5, 1)", "reward_scale(by=0.5)", count=3)[1] == [0, -0.75, -0.75]


@pytest.mark.parametrize(
    ("wrapper", "message"),
    [
        ("one_hott", "'one_hott': unknown name 'one_hott'. Did you mean 'one_hot'"),
        ("gymnasium.wrappers.ClipReward(0)", "expected one of name, .*module:Class"),
        ("gymnasium.wrappers:ClipRewort", "no subclass of Wrapper with that name. Did you mean 'ClipReward'"),
        ("rescale_action(1)", r"missing a required argument: 'max_action'. Its settings: min_action, max_action"),
        ("crop(topp=3)", "unexpected keyword argument 'topp'. Did you mean 'top'"),
        ("gymnasium.wrappers:ClipReward(mn_reward=3)", "Did you mean 'min_reward' or"),
        ("observe_info('x', 0)", r"observe_info\('x', 0\).: size = 0: expected at least 1"),
        ("observe_info('x', 2.5)", r"size = 2.5 \(float\): expected int"),
        ("time_limit('x')", r"max_episode_steps = 'x' \(str\): expected int"),
        ("reward_scale('x')", r"by = 'x' \(str\): expected float"),
        ("normalize(0, std=[[1, 0]])", "std = 0: expected a finite number above 0"),
        ("crop(top=-1)", "top = -1: expected at least 0"),
        ("crop(bottom=2, top=2)", "top = 2, bottom = 2, .*: expected fewer than the 4 x 6 pixels"),
        (f"{__name__}:Brighter('x')", r"by = 'x' \(str\): expected int"),
        ("one_hot", "expected discrete parts among the observations, but found only Box"),
        ("rescale_action(-1.0, 1.0)", "TypeError: RescaleAction requires a Box"),
        (f"{__name__}:Picky", "OSError: no eyes"),
        ("normalize", "missing a required argument: 'mean'.*use algo.normalize_obs = running"),
        ("gymnasium.wrappers:NormalizeObservation", "would have separate statistics.*use algo.normalize_obs = running"),
    ],
)  # fmt: skip
def test_misfits_are_told_before_anything_is_written(wrapper, message, tmp_path):
    with pytest.raises((EnvError, ValueError), match=rf"env.wrappers = .*{message}"):
        play(wrapper)
    options = {"env_options": {"wrappers": [wrapper]}, "run": tmp_path / "run"}
    with pytest.raises((EnvError, ValueError), match=r"env\.wrappers"):
        reverie.train("dqn", lambda: env_zoo.Scripted(IMAGES, frames()), **options, **FEW)
    assert not (tmp_path / "run").exists()


def test_the_command_line_tells_a_misfit_in_one_line(tmp_path, capsys):
    words = ["train", "dqn", "--env", "CartPole-v1", "--run", str(tmp_path / "run")]
    assert main([*words, "--env.wrappers", "time_limit(20)", "crop"]) == 1
    assert capsys.readouterr().err.splitlines()[-1].startswith("reverie: env.wrappers = 'crop': expected images")
    assert main([*words, "--env.wrappers", "tim_limit(20)"]) == 2
    assert "reverie: --env.wrappers = 'tim_limit(20)': unknown name" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_a_run_keeps_its_list_and_so_do_its_recordings(tmp_path):
    pytest.importorskip("minari")
    wrappers = ["time_limit(7)", STACK, "reward_scale(0.5)", "gymnasium.wrappers:ClipReward(max_reward=0.4)"]
    reverie.train("dqn", "CartPole-v1", env_options={"wrappers": wrappers}, run=tmp_path / "run", **FEW)
    agent = reverie.load(tmp_path / "run")
    assert (agent.config.env.wrappers, agent.obs_spec["observation"].shape) == (tuple(wrappers), (2, 4))
    assert agent.evaluate(episodes=1).scores[0] == pytest.approx(7 * 0.4)
    record_agent(agent, str(tmp_path / "d"), RecordConfig(episodes=2))
    found = reverie.train("bc", data=tmp_path / "d", run=tmp_path / "bc", updates=2,
                          eval_episodes=1, **{"algo.batch_size": 2})  # fmt: skip
    assert found.evaluation.scores[0] == pytest.approx(7 * 0.4)
    with pytest.raises(ValueError, match=r"env\.wrappers = .*the rows are the output of the wrappers"):
        reverie.train("bc", data=tmp_path / "d", env_options={"wrappers": ["flatten"]}, run=tmp_path / "b")


def test_an_episode_goes_on_inside_of_wrappers():
    config = EnvConfig(id="CartPole-v1", wrappers=(STACK, "flatten", "time_aware", "sticky_actions(0.5)"))
    one, two = (make_vector_env(config, seed=seed) for seed in (0, 1))
    step = env_steps.play(one, 4, torch.eye(2)[:1])[-1]
    two.restore(one.snapshot(), step)
    assert env_steps.go_on(one, 4) == env_steps.go_on(two, 4)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda env: gymnasium.wrappers.NormalizeReward(gymnasium.wrappers.TimeLimit(env, 9)), "NormalizeReward: each"),
        (lambda env: gymnasium.wrappers.ClipReward(gymnasium.wrappers.NormalizeObservation(env), 0), "NormalizeObserv"),
        (
            type("NormalizeObservation", (gymnasium.Wrapper,), {}),
            "NormalizeObservation: each copy",
        ),  # of another package
    ],
)
def test_statistics_inside_of_a_function_are_refused_as_in_the_list(make, message):
    with pytest.raises(EnvError, match=f"{message}.*use algo.normalize_obs = running"):
        make_vector_env(EnvConfig(), seed=0, factory=lambda: make(env_zoo.Scripted(IMAGES, frames())))


@pytest.mark.parametrize("is_outside", [True, False])
def test_statistics_of_native_vectors_are_refused_too(is_outside):
    def make(num_envs):
        wrap = gymnasium.wrappers.NormalizeReward
        one = lambda: env_zoo.Scripted(IMAGES, frames())  # noqa: E731
        envs = [one if is_outside else lambda: wrap(one())] * num_envs
        vector = gymnasium.vector.SyncVectorEnv(envs)
        return gymnasium.wrappers.vector.NormalizeReward(vector) if is_outside else vector

    with pytest.raises(EnvError, match=r"NormalizeReward: each copy.* for rewards algo.reward_scale = return_std"):
        make_vector_env(EnvConfig(vectorization="native"), seed=0, factory=make)


@pytest.mark.parametrize("options", [{"action_repeat": 2}, {"wrappers": ("sticky_actions(0.5)",)}])
def test_masks_refuse_actions_that_are_repeated(options):
    with pytest.raises(EnvError, match=r"has action masks, and .* repeats actions"):
        make_vector_env(EnvConfig(**options), seed=0, factory=Masked)
    make_vector_env(EnvConfig(exclude_keys="action_mask", **options), seed=0, factory=Masked).close()


def test_masks_of_a_game_that_is_over_are_not_asked_for():
    env = Masked("method", length=1)
    masks = env.action_masks

    def ask():
        assert env.steps < env.length
        return masks()

    env.action_masks = ask
    vector = make_vector_env(EnvConfig(), seed=0, factory=lambda: env)
    step = vector.reset(0)
    step = vector.step(step.obs["action_mask"].float())
    assert (bool(step.is_last), step.obs["action_mask"].tolist()) == (True, [[True] * 6])
    vector.close()


class Lives(gymnasium.wrappers.AtariPreprocessing):  # without OpenCV
    def __init__(self, env):
        gymnasium.Wrapper.__init__(self, env)
        self.terminal_on_life_loss = True


def test_lives_that_end_evaluations_are_refused():
    with pytest.raises(EnvError, match=r"terminal_on_life_loss=True\), which would end the episodes of evaluations"):
        make_vector_env(EnvConfig(), seed=0, factory=lambda: Lives(env_zoo.Scripted(IMAGES, frames())))
