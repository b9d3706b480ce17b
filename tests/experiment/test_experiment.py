"""Experiments: settings that fit, environments from Python, and evaluations that disturb nothing."""

import contextlib
import hashlib
import itertools
import pickle
import threading
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.registration import EnvSpec
from gymnasium.wrappers import TimeLimit

import reverie
from reverie.agent.loading import load
from reverie.api import train_config as train
from reverie.core.errors import ConfigError, EnvError
from reverie.core.types import Window
from reverie.datasets.format_detection import open_reader
from reverie.envs.worker import WorkerSlot
from reverie.experiment import config as experiments
from reverie.experiment.build import Experiment, build
from reverie.experiment.config import ExperimentConfig
from reverie.log.jsonl import read_metrics
from reverie.log.meter import DeviceMeter
from reverie.run.evaluate import Evaluation
from reverie.run.loop import train_loop as loop
from shared_generators import Lucky, Paying, Shared
from tiny_configs import FEW, settings


def test_train_ratio_is_replay_ratio_in_other_units() -> None:
    window = Window(batch=16, length=64, context=1)
    assert ExperimentConfig(train_ratio=512).updates_per_step(window) == 0.5
    assert ExperimentConfig(replay_ratio=0.25).updates_per_step(window) == 0.25
    assert ExperimentConfig().updates_per_step(window) == experiments.DEFAULT_REPLAY_RATIO


def test_a_learner_that_could_never_start_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"learning_starts = 999 windows.*learning would never start"):
        build(settings(learning_starts=999, replay__capacity=200))


class Paid(Paying):
    """Each of seven steps earns 5; it cannot be copied."""

    closed = False

    def __init__(self) -> None:
        super().__init__(5.0)
        self.lock = threading.Lock()

    def close(self) -> None:
        self.closed = True


def test_an_instance_has_its_true_rewards_and_stays_open(tmp_path: Path) -> None:
    env = Paid()
    clipped = settings(steps=20, env__num=1, env__clip_reward="sign", eval_episodes=2)
    result = train(clipped, env=env, run=tmp_path / "run")
    assert result.evaluation.scores == [35.0, 35.0]  # never clipped where agents are judged
    agent = reverie.load(tmp_path / "run", env=env)
    assert (agent.evaluate(3).scores, env.closed) == ([35.0] * 3, False)


class Alone(Paying):
    """A simulator that can run only once."""

    running = False

    def __init__(self) -> None:
        super().__init__()
        if Alone.running:
            raise OSError("port in use")
        Alone.running = True

    def close(self) -> None:
        Alone.running = False


def test_where_only_one_can_run_all_is_closed() -> None:
    config = settings(env__num=1, eval_envs=1, schedule__eval_every=0)
    with pytest.raises(EnvError, match="port in use"):
        build(config, env=Alone)
    assert not Alone.running
    build(config.merge({"eval_episodes": 0}), env=Alone).close()
    assert not Alone.running


def test_arguments_are_handed_to_the_class(tmp_path: Path) -> None:
    result = reverie.train("td3", env=Paying, run=tmp_path / "a", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert result.evaluation.scores == [21.0, 21.0]
    assert load(tmp_path / "a", env=Paying).evaluate(1).scores == [21.0]
    unknown = r"with env\.kwargs = .*: TypeError: .* got an unexpected keyword argument 'pays'"
    with pytest.raises(EnvError, match=unknown):
        reverie.train("td3", env=Paying, run=tmp_path / "b", env_options={"kwargs": {"pays": 3.0}}, **FEW)
    with pytest.raises(ConfigError, match=r"env\.kwargs = .* with an environment instance: expected .* no kwargs"):
        reverie.train("td3", env=Paying(), run=tmp_path / "b", env_options={"kwargs": {"pay": 3.0}}, **FEW)
    assert not (tmp_path / "b").exists()


def three() -> Paying:
    return Paying(3.0)


@pytest.mark.parametrize("judge", [
    {"kwargs": {"pay": 3.0}}, {"id": "Three-v0", "kwargs": {}}, three, Paying(3.0),
])  # fmt: skip
def test_evaluations_have_an_environment_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, judge: Any
) -> None:
    monkeypatch.setitem(gymnasium.registry, "Three-v0", EnvSpec("Three-v0", Paying, kwargs={"pay": 3.0}))
    two, often = {"kwargs": {"pay": 2.0}}, {"eval_every": 5}
    result = reverie.train("td3", Paying, env_options=two, eval_env=judge, run=tmp_path, schedule=often, **FEW)
    rows = read_metrics(tmp_path / "metrics.jsonl")
    assert [row["eval/score"] for row in rows if "eval/score" in row] == [21.0] * 3
    assert {row["episode/score"] for row in rows if "episode/score" in row} == {14.0}
    assert result.evaluation.scores == [21.0, 21.0]
    agent = pickle.loads(pickle.dumps(load(tmp_path)))
    assert agent.evaluate(1).scores == [14.0 if isinstance(judge, Paying) else 21.0]  # nobody can make that one again
    assert agent.make_env().unwrapped.pay == 2.0
    assert load(tmp_path, env={"kwargs": {"pay": 5.0}}).evaluate(1).scores == [35.0]
    assert load(tmp_path, env=Paying).evaluate(1).scores == [14.0]
    assert reverie.train("td3", Paying, eval_env=judge, run=tmp_path, steps=14).evaluation.scores == [21.0, 21.0]
    assert load(tmp_path).config.env.kwargs == {"pay": 2.0}  # it goes on with its own settings


def test_an_instance_is_evaluated_on_the_way_in_another(tmp_path: Path) -> None:
    reverie.train("td3", Paying(), eval_env=three, run=tmp_path, schedule={"eval_every": 5}, **FEW)
    scores = [row.get("eval/score") for row in read_metrics(tmp_path / "metrics.jsonl")]
    assert [score for score in scores if score is not None] == [21.0] * 3
    assert load(tmp_path, env=Paying()).evaluate(1).scores == [7.0]


class Around(gymnasium.Env[Any, Any]):
    """Wraps an environment, but is none of Gymnasium's wrappers."""

    def __init__(self, inner: Paying) -> None:
        self.observation_space, self.action_space = inner.observation_space, inner.action_space
        self.inners = [inner]


ONE = Paying()
TURNS = itertools.cycle([Paying(), Paying()])


def vector_of_one(num_envs: int, vector: Any = gymnasium.vector.SyncVectorEnv([lambda: ONE])) -> Any:  # noqa: B008
    return vector


@pytest.mark.parametrize("envs", [
    {"env": lambda: ONE}, {"env": ONE, "eval_env": lambda: ONE}, {"env": "One-v0"},
    {"env": ONE, "eval_env": TimeLimit(ONE, 5)}, {"env": lambda: TimeLimit(ONE, 5), "eval_env": lambda: Around(ONE)},
    {"env": lambda: next(TURNS), "eval_envs": 2},
    {"env": vector_of_one, "env_options": {"vectorization": "native", "num": 1}},
])  # fmt: skip
def test_evaluations_do_not_end_episodes_of_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, envs: dict[str, Any]
) -> None:
    monkeypatch.setitem(gymnasium.registry, "One-v0", EnvSpec("One-v0", lambda: ONE))
    with pytest.raises(ConfigError, match=r"would reset the training environment.* An instance passed as env"):
        reverie.train("td3", run=tmp_path / "run", **{"eval_envs": 1, **FEW, **envs})
    assert not (tmp_path / "run").exists()


def test_environments_of_evaluations_that_do_not_fit(tmp_path: Path) -> None:
    env = Paying()
    for judge in (env, {"max_episode_steps": 3}):
        with pytest.raises(ConfigError, match=r"eval_env = .* but env is an instance, which training uses"):
            reverie.train("td3", env=env, eval_env=judge, run=tmp_path / "run", **FEW)
    for other, why in {"Pendulum-v1": r"\(1,\) in training, but \(3,\) in evaluations", Wide: "has numbers in"}.items():
        with pytest.raises(ConfigError, match=why):
            reverie.train("td3", env=Paying, eval_env=other, run=tmp_path / "run", **FEW)
    assert not (tmp_path / "run").exists()


class Wide(Paying):
    """The same observations in other units."""

    observation_space = gymnasium.spaces.Box(0, 100, (1,), np.float32)


class Drawn(Paying):
    """Can be drawn."""

    metadata: ClassVar = {"render_modes": ["rgb_array"]}
    render_mode = "rgb_array"

    def render(self) -> np.ndarray:
        return np.full((300, 512, 3), self.left, np.uint8)


def test_evaluations_are_filmed(tmp_path: Path, said: list[str]) -> None:
    shown: list[dict[str, Any]] = []

    class Sink:
        def write(self, values: Any, step: int) -> None:
            shown.append(values)

        def close(self) -> None:
            pass

    film = {"eval_video": True, "schedule": {"eval_every": 6}, **FEW}
    reverie.train("td3", env=Drawn, run=tmp_path / "run", sinks=[Sink()], **film)
    films = [values["eval/video"] for values in shown if "eval/video" in values]
    assert [film.shape for film in films] == [(8, 150, 256, 3)] * 2  # at step 6 and at the end
    assert films[0][:, 0, 0, 0].tolist() == [7, 6, 5, 4, 3, 2, 1, 0]
    assert sorted(path.name for path in (tmp_path / "run" / "videos").iterdir()) == [
        f"eval_video-{step:012d}.mp4" for step in (6, 10)
    ]
    assert not any("eval_video" in line for line in said)
    reverie.train("td3", env=Paying, run=tmp_path / "dark", **film)
    assert any("eval_video = True, but this environment cannot render" in line for line in said)


def test_the_end_tells_of_sampled_actions_that_score_differently(tmp_path, monkeypatch, said):
    scores, modes = {"eval": [0.0] * 6, "explore": [1.0] * 6}, []

    def evaluate(env, policy, episodes, mode, *args, **kwargs):
        modes.append(mode)
        return Evaluation(scores=scores[mode], lengths=[1] * 6, mode=mode)

    monkeypatch.setattr("reverie.experiment.build.evaluate", evaluate)
    for algorithm in ("sac", "td3"):
        reverie.train(algorithm, env=Paying, run=tmp_path / algorithm, **FEW)
    assert modes == ["eval", "explore", "eval"]
    assert sum("0.00 with the most likely actions, 1.00 with sampled ones" in line for line in said) == 1


def test_evaluation_does_not_disturb_training(tmp_path: Path) -> None:
    def losses(name: str, every: int) -> dict[str, float]:
        train(settings(schedule__eval_every=every, schedule__log_every=0), run=tmp_path / name)
        rows = read_metrics(tmp_path / name / "metrics.jsonl")
        return next({k: v for k, v in row.items() if k.startswith("loss/")} for row in rows if "loss/reward" in row)

    assert losses("never", 0) == losses("often", 30)


def test_evaluation_does_not_disturb_an_environment_that_draws_from_everybodys_generators(tmp_path: Path) -> None:
    def rows(name: str, every: int) -> bytes:
        run = tmp_path / name
        more = {"console": False, "tensorboard": False, "eval_episodes": 1, "schedule.eval_every": every}
        reverie.train("td3", env=Shared, run=run, steps=60, replay_ratio=0, random_steps=5, **more)
        return b"".join(part["obs/observation"].tobytes() for part in open_reader(str(run)).parts())

    assert rows("never", 0) == rows("often", 20)


@pytest.mark.parametrize("vectorization", ["sync", "async"])
def test_an_evaluation_of_what_draws_from_everybodys_generators_is_the_same_again(
    tmp_path: Path, vectorization: str
) -> None:
    options = {"vectorization": vectorization}
    once, again = (
        reverie.train("td3", env=Lucky, run=tmp_path / name, env_options=options, **FEW).evaluation.scores
        for name in ("once", "again")
    )
    assert once == again
    assert len(set(once)) == 2


def fingerprint(experiment: Experiment) -> str:
    """Of all weights, all rows and all counters."""
    digest, storage, clock = hashlib.sha256(), experiment.replay.storage, experiment.clock
    arrays = {name: column[:, : storage.count] for name, column in storage.columns.items()}
    arrays |= {name: value.numpy() for name, value in experiment.algo.state_dict()["model"].items()}
    for name, values in sorted(arrays.items()):
        digest.update(name.encode() + values.tobytes())
    digest.update(repr((clock.env_steps, clock.updates, clock.episodes, storage.count)).encode())
    return digest.hexdigest()


def trained(vectorization: str) -> str:
    config = settings(random_steps=30, env__num=3, env__vectorization=vectorization)
    with contextlib.closing(build(config)) as experiment:
        loop(experiment.algo, experiment.replay, experiment.clock, DeviceMeter(), collector=experiment.collector)
        assert experiment.clock.updates > 5
        return fingerprint(experiment)


def test_a_run_with_workers_is_bit_for_bit_one_without(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, send = [], WorkerSlot.send
    monkeypatch.setattr(WorkerSlot, "send", lambda self, *what: (sent.append(1), send(self, *what))[1])
    sync = trained("sync")
    assert not sent
    assert trained("async") == sync
    assert sent
