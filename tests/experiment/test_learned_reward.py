"""Rewards that a person teaches: the loss, what batches get, files of labels, and runs that learn from them."""

import functools
import json
import math
import re
import shutil
import signal
from pathlib import Path
from unittest import mock

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given, settings
from hypothesis import strategies as st

import batches
import contracts
import reverie
from log_capture import logged
from offline_runs import train, weights
from resumed_runs import QUICK, Walk, assert_same
from reverie.algos.settings import init_context
from reverie.api import train_config
from reverie.cli.main import main
from reverie.core.errors import ConfigError, DataError, RunError
from reverie.datasets.format_detection import open_reader
from reverie.datasets.labels import LabelFile
from reverie.experiment import labeling
from reverie.experiment.build import build
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.goals import ignore_row_rewards
from reverie.experiment.labeling import LabelSession, LiveSession
from reverie.experiment.learned_reward import LearnedReward, fit_labels
from reverie.nn import reward_model
from reverie.nn.reward_model import PreferenceReward, SuccessReward, _choose_threshold, preference_loss
from reverie.run.channel import PageChannel


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_loss_is_that_of_the_definition(noise):
    sums, answers = [(0.3, 0.1), (-2.0, 1.0), (5.0, 5.0), (4.0, 1.0)], [1.0, 0.0, 0.5, 0.0]
    expected = 0.0
    for (a, b), y in zip(sums, answers, strict=True):
        p = (1 - noise) * math.exp(a) / (math.exp(a) + math.exp(b)) + noise / 2
        expected -= (y * math.log(p) + (1 - y) * math.log(1 - p)) / len(answers)
    difference = torch.tensor([a - b for a, b in sums])
    assert float(preference_loss(difference, torch.tensor(answers), noise)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("zero", ["mean", "lowest"])
def test_a_transition_gets_the_reward_of_its_action(zero):
    batch = batches.batch(dtype=torch.float32)
    model = PreferenceReward(batches.OBS, batches.MOVE)
    model.zero = zero
    getattr(model, zero).fill_(0.2)
    model.std.fill_(0.5)
    relabeled = model.relabel(batch)
    for b in range(8):
        for t in range(5):
            expected = 0.0
            if t and not batch.is_first[b, t]:
                x = {"state": batch.obs["state"][b, t - 1]}, batch.action[b, t - 1]
                expected = (torch.stack([m(*x).tanh() for m in model.members]).mean().item() - 0.2) / 0.5
            assert float(relabeled.reward[b, t]) == pytest.approx(expected, abs=1e-5)
    for name in ("is_first", "is_last", "is_terminal", "action"):
        assert getattr(relabeled, name) is getattr(batch, name)


@pytest.mark.parametrize(("zero", "is_said"), [("mean", True), ("lowest", False), ("highest", False)])
def test_the_zero_is_chosen_and_told_where_episodes_terminate(zero, is_said, quick):
    clips, model = batches.batch(44, dtype=torch.float32, crossing=False), PreferenceReward(batches.OBS, batches.MOVE)
    model.zero = zero
    model.fit(clips, torch.arange(22) % 2.0, torch.zeros(22, dtype=torch.bool))
    learned = LearnedReward(Path("labels"), "preferences", model, fit=None)
    learned.is_fitted = True
    with logged() as lines:
        learned.relabel(clips)
        rewards = learned.relabel(clips).reward[:, 1:]
    assert sum("set reward_zero = lowest" in line for line in lines) == is_said
    zeros = {"mean": rewards.mean, "lowest": rewards.min, "highest": rewards.max}
    assert zeros[zero]().item() == pytest.approx(0, abs=1e-5)
    assert rewards.std() > 0.5


def test_the_second_row_above_the_threshold_is_a_success_and_ends_the_episode(monkeypatch):
    above = torch.tensor([[1, 1, 0, 0], [0, 1, 0, 1], [1, 0, 1, 0], [1, 1, 0, 1], [0, 1, 1, 1]]).bool()
    batch = batches.batch(5, 4, crossing=False, dtype=torch.float32)
    flags = {name: torch.zeros(5, 4, dtype=torch.bool) for name in ("is_first", "is_last", "is_terminal")}
    flags["is_last"][:, 3] = True
    flags["is_terminal"][1, 3] = True  # the environment has ended it
    flags["is_first"][3, 1] = True  # another episode
    for name, flag in flags.items():
        getattr(batch, name).copy_(flag)
    model = SuccessReward(batches.OBS, batches.MOVE)
    monkeypatch.setattr(model, "predict", lambda obs: above[None].float())
    relabeled = model.relabel(batch)
    expected = torch.tensor([[0, 1, 0, 0], [0, 0, 0, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 1, 1]])
    assert (relabeled.reward == expected).all()
    assert (relabeled.is_terminal == (expected.bool() | flags["is_terminal"])).all()
    assert (relabeled.is_last == (expected.bool() | flags["is_last"])).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([0.0, 0.2, 0.4, 0.6, 0.8, 1.0]), st.booleans()), min_size=1, max_size=12))
def test_the_threshold_is_the_smallest_of_that_precision(rows):
    probs, is_success = torch.tensor([p for p, _ in rows]), torch.tensor([s for _, s in rows])
    precise = [p for p, _ in rows if all(s for q, s in rows if q >= p)]  # of 12 rows, no other one reaches 98 %
    with mock.patch.object(reward_model, "MIN_ABOVE", 1):
        if not precise:
            with pytest.raises(DataError, match="expected 98%"):
                _choose_threshold(probs, is_success)
            return
        threshold, share = _choose_threshold(probs, is_success)
    assert threshold == pytest.approx(min(precise))
    assert share == (sum(q >= min(precise) for q, _ in rows),) * 2


def test_a_few_rows_are_no_precision():
    probs = torch.linspace(1, 0, 30)
    with pytest.raises(DataError, match="at most 90% of the held-out rows"):
        _choose_threshold(probs, torch.arange(30) < 9)
    assert _choose_threshold(probs, torch.arange(30) < 10)[1] == (10, 10)


# ---------------------------------------------------------------- files, and runs


@pytest.fixture(scope="module")
def walked(tmp_path_factory):
    """The rows of a random walk, in a store."""
    run = tmp_path_factory.mktemp("walk") / "run"
    train_config(QUICK.merge({"steps": 400, "env.id": "Walk"}), env=Walk, run=run)
    return run


@pytest.fixture(scope="module")
def recorded(walked):
    """The same rows in a file, which does not grow."""
    file = walked.with_name("walk.parquet")
    assert main(["data", "convert", str(walked), str(file)]) == 0
    return file


@pytest.fixture
def quick(monkeypatch):
    monkeypatch.setattr(reward_model.RewardModel, "updates", 20)
    monkeypatch.setattr(reward_model, "MIN_ABOVE", 1)
    monkeypatch.setattr(labeling, "QUICK_UPDATES", 2)


def prefers(first, second):
    a, b = (clip["reward"][1:].sum() for clip in (first, second))
    return "first" if a > b else "second"


def is_right(row):
    return "success" if row["obs/observation"][0] > 0 else "failure"


def write_labels(data, path, kind="preferences", count=40):
    reverie.label(data, kind, path, prefers if kind == "preferences" else is_right, count=count, steps=3)
    return f"{kind}:{path}"


def test_labels_are_kept_and_undone_and_never_touch_the_data(walked, tmp_path):
    before = {file: file.read_bytes() for file in (walked / "replay").rglob("*") if file.is_file()}
    write_labels(walked, path := tmp_path / "deep" / "labels.jsonl", count=3)
    session = LabelSession(str(walked), path, "preferences")
    assert session.file.steps == 3
    session.add(clips := session.propose(), "tie")
    session.add(clips, "skip")
    tie, skip = session.file.labels[3:]
    assert tie.copy == skip.copy != ""  # so that a fit takes them for answers about the same rows
    session.undo()
    file = LabelFile.read(path, "preferences")
    assert [label.answer in ("first", "second") for label in file.labels[:3]] == [True] * 3
    assert file.labels[3:] == [*session.file.labels[3:]]
    assert file.labels[3].answer == "tie"
    assert session.count()["tie"] == 1
    with pytest.raises(ConfigError, match="'left': expected first, second, tie, skip"):
        session.add(session.propose(), "left")
    assert before == {file: file.read_bytes() for file in (walked / "replay").rglob("*") if file.is_file()}


def test_labels_of_a_run_are_valid_when_its_rows_are_gone(recorded, tmp_path, quick):
    """A file can have labels of a dataset and of runs."""
    run, labels = tmp_path / "run", tmp_path / "labels"
    train_config(QUICK.merge({"steps": 200, "env.id": "Walk", "seed": 1}), env=Walk, run=run)
    write_labels(recorded, labels, count=20)
    write_labels(run, labels, count=20)
    shutil.rmtree(run / "replay")
    config = QUICK.merge({"env.id": "Walk", "reward": f"preferences:{labels}"})
    experiment = build(config, Walk)
    experiment.close()
    assert experiment.learned_reward.is_fitted
    copy = next((tmp_path / "labels.rows").iterdir())
    copy.write_bytes(b"")
    with pytest.raises(DataError, match=f"{copy.name}: changed, .* Restore this file"):
        build(config, Walk)


def test_nine_of_ten_questions_are_those_of_which_the_networks_know_least(recorded, tmp_path, quick, monkeypatch):
    asked = []

    def measure_doubt(model, clips):
        """Of all actions, the largest sum."""
        asked.append(clips.action[..., 0].sum(1).view(2, -1).sum(0))
        return asked[-1]

    monkeypatch.setattr(PreferenceReward, "measure_doubt", measure_doubt)
    sums = []
    answer = lambda *clips: sums.append(sum(clip["action"][:, 0].sum() for clip in clips)) or "first"  # noqa: E731
    reverie.label(recorded, "preferences", labels := tmp_path / "labels", answer, count=40, steps=3)
    chosen = [label.is_chosen for label in LabelFile.read(labels, "preferences").labels]
    assert chosen == [i >= 20 and i % 10 > 0 for i in range(40)]
    assert [sum for sum, is_chosen in zip(sums, chosen, strict=True) if is_chosen] == [float(x.max()) for x in asked]
    assert {len(x) for x in asked} == {10}


@pytest.mark.parametrize("answer", ["wrong", "skip"])
def test_wrong_clips_are_not_fitted(answer, recorded, tmp_path, quick):
    write_labels(recorded, labels := tmp_path / "labels", count=26)
    session = LabelSession(str(recorded), labels, "preferences")
    session.add(session.file.labels[0].clips, answer)  # the newest answer counts
    reverie.label(recorded, "preferences", labels, lambda *clips: answer, count=10, steps=3)
    session = LabelSession(str(recorded), labels, "preferences")
    assert bool(session.advice()) == (answer == "wrong")
    with logged() as lines:
        build(QUICK.merge({"env.id": "Walk", "reward": f"preferences:{labels}"}), Walk).close()
    assert any(line.startswith("reward: 25 preferences") for line in lines)
    assert any("11 of 37 look wrong" in line for line in lines) == (answer == "wrong")


class Plane(gymnasium.Env):
    """Two random numbers, of which the second is ``height``."""

    observation_space, action_space = spaces.Box(-1, 1, (2,), np.float32), spaces.Discrete(2)

    def __init__(self, height=0.0):
        self.height = height

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.time = 0
        return self._see(), {}

    def _see(self):
        return np.float32([self.np_random.uniform(-1, 1), self.height])

    def step(self, action):
        self.time += 1
        return self._see(), 0.0, False, self.time == 5, {}


def test_what_an_agent_takes_for_success_is_asked_and_no_success_after_the_next_fit(tmp_path, monkeypatch):
    """Recorded successes are on the right; the run goes where nothing is one."""
    monkeypatch.setattr(reward_model.RewardModel, "updates", 200)
    run, data, labels = tmp_path / "run", tmp_path / "data", tmp_path / "labels"
    train_config(QUICK.merge({"steps": 200, "env.id": "Plane"}), env=functools.partial(Plane, 1.0), run=run)
    reverie.record(Plane, lambda obs: 0, out=data, episodes=50)
    succeeds = lambda row: "success" if (row["obs/observation"] * [1, -1]).sum() > 0.2 else "failure"  # noqa: E731
    reverie.label(data, "success", labels, succeeds, count=80)
    places = torch.stack([torch.linspace(0.5, 1, 20), torch.ones(20)], 1)

    before = fitted(labels, data)
    assert (before.predict({"observation": places}).mean(0) >= before.threshold).all()
    asked = []
    reverie.label(run, "success", labels, lambda row: asked.append(row["obs/observation"]) or succeeds(row), count=15)
    assert np.mean([x[0] > 0 for x in asked]) > 0.8
    after = fitted(labels, data)
    assert not (after.predict({"observation": places}).mean(0) >= after.threshold).any()


def fitted(labels, data):
    """The classifier of successes in ``labels``."""
    session = LabelSession(str(data), labels, "success")
    with init_context(0):
        model = SuccessReward(session.obs_spec, session.recorded.action_spec)
        fit_labels(model, session.file, session.rows)
    return model


def test_two_people_do_not_overwrite_each_others_answers(walked, tmp_path):
    first, second = (LabelSession(str(walked), tmp_path / "f", "preferences", 3) for _ in range(2))
    first.add(first.propose(), "tie")
    for change in (lambda: second.add(second.propose(), "first"), second.undo):
        with pytest.raises(ConfigError, match="has answers of another process, which stay"):
            change()
    second.add(second.propose(), "first")
    second.undo()
    assert [label.answer for label in LabelFile.read(tmp_path / "f", "preferences").labels] == ["tie"]


def test_an_answer_that_a_full_disk_refused_is_given_again(walked, tmp_path, monkeypatch):
    session = LabelSession(str(walked), tmp_path / "f", "preferences", 3)
    with monkeypatch.context() as patch:
        patch.setattr(LabelFile, "write", mock.Mock(side_effect=OSError("full")))
        with pytest.raises(OSError, match="full"):
            session.add(session.propose(), "tie")
    session.add(session.propose(), "first")
    assert LabelFile.read(tmp_path / "f", "preferences").labels == session.file.labels


def test_clips_have_all_their_rows_in_one_episode(walked, tmp_path):
    seen = []
    answer = lambda *clips: seen.extend(clips) or "skip"  # noqa: E731
    reverie.label(walked, "preferences", tmp_path / "f", answer, count=30, steps=4)
    for clip in seen:
        assert clip["action"].shape == (5, 2)
        assert not clip["is_first"][1:].any()
        assert not clip["is_last"][:-1].any()


@pytest.mark.parametrize("kind", ["preferences", "success"])
@pytest.mark.parametrize("offline", [True, False])
def test_runs_learn_from_the_reward_and_keep_the_environments(kind, offline, walked, tmp_path, quick):
    reward = write_labels(walked, tmp_path / "labels", kind, 80)
    if offline:
        pair = {"algorithm": "discrete_cql", "data": walked, "updates": 4, "env": Walk}
        train(run=tmp_path / "learned", reward=reward, **pair)
        train(run=tmp_path / "true", **pair)
        a, b = weights(tmp_path / "learned"), weights(tmp_path / "true")
        assert any(not torch.equal(a[name], b[name]) for name in b)
        return
    config = QUICK.merge({"steps": 60, "env.id": "Walk", "learning_starts": 10, "replay_ratio": 0.5, "reward": reward})
    train_config(config, env=Walk, run=tmp_path / "run")
    with open_reader(str(tmp_path / "run")) as reader:
        names = ("obs/observation", "reward", "is_first")
        rows = {name: np.concatenate([part[name] for part in reader.parts()]) for name in names}
    x, earned, inside = rows["obs/observation"][:, 0], rows["reward"], ~rows["is_first"][1:]
    assert inside.sum() > 40
    np.testing.assert_allclose(earned[1:][inside], np.diff(x)[inside], rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    ("earlier", "trained"), [("", "the environment's rewards"), ("preferences", "a reward of preferences")]
)
def test_a_run_does_not_continue_with_another_kind_of_reward(earlier, trained, walked, tmp_path, quick):
    config = QUICK.merge(
        {"steps": 20, "env.id": "Walk", "reward": earlier and write_labels(walked, tmp_path / "a", earlier)}
    )
    train_config(config, env=Walk, run=tmp_path / "run")
    with pytest.raises(RunError, match=f"was trained with {trained}, which cannot change"):
        train_config(config.merge({"reward": f"success:{tmp_path}/b"}), env=Walk, run=tmp_path / "run")


@pytest.mark.parametrize("is_gone", [False, True])
def test_runs_resume_bit_for_bit_with_a_learned_reward(is_gone, walked, tmp_path, quick, monkeypatch):
    config = QUICK.merge({
        "steps": 80, "env.id": "Walk", "learning_starts": 10, "replay_ratio": 0.5, "schedule.save_every": 20,
        "reward": write_labels(walked, tmp_path / "labels"),
    })  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_config(config, env=Walk, run=whole)
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "steps_of_all", 0)
        patch.setattr(Walk, "stop_at", 45)
        assert train_config(config, env=Walk, run=parts).signal == signal.SIGTERM
    # another fit, as on another machine, or none: the checkpoint's counts
    monkeypatch.setattr(reward_model.RewardModel, "updates", 5)
    if is_gone:
        (tmp_path / "labels").rename(tmp_path / "elsewhere")
    with logged() as lines:
        train_config(config, env=Walk, run=parts)
    assert any("goes on with the networks of its checkpoint" in line for line in lines) == is_gone
    assert_same(whole, parts)
    if is_gone:
        with pytest.raises(DataError, match="No such file"):
            train_config(config, env=Walk, run=tmp_path / "new")
        return
    write_labels(walked, tmp_path / "labels", count=1)
    with logged() as lines:
        train_config(config.merge({"steps": 90}), env=Walk, run=parts)
    assert any("the labels have changed" in line for line in lines)


def test_a_run_that_asks_learns_nothing_before_the_first_fit(tmp_path, quick):
    labels = tmp_path / "labels"
    settings = {"env.id": "Walk", "steps": 10**4, "human.person": "page", "reward": f"preferences:{labels}"}
    experiment = build(QUICK.merge(settings), Walk, human=PageChannel())
    session = LiveSession(experiment.replay, experiment.obs_spec, experiment.learned_reward, None)
    assert session.propose() is None
    for _ in range(400):
        experiment.collector.collect()
    assert not experiment.source.sample().reward.any()
    for count in range(20):
        assert not experiment.learned_reward.is_fitted, count
        clips = session.propose()
        first, second = ({name: x[i] for name, x in session.read(clips).items()} for i in range(2))
        assert not first["is_first"][1:].any()
        session.add(clips, prefers(first, second))
        experiment.source.sample()
    assert experiment.source.sample().reward.any()
    kept, written = experiment.learned_reward.model, labels.read_bytes()
    labels.write_bytes(written[:-5])
    with logged() as lines:
        experiment.source.sample()
    assert "Expected a file that" in lines[0]
    labels.write_bytes(written)
    for count in range(10):
        assert experiment.learned_reward.model is kept, count
        session.add(session.propose(), "first")
        experiment.source.sample()
    assert experiment.learned_reward.model is not kept
    experiment.close()


@pytest.mark.parametrize("age", [1, 3])
def test_rows_that_a_run_overwrites_are_not_asked_about(age, tmp_path, monkeypatch):
    settings = {"env.id": "Walk", "human.person": "page", "reward": f"success:{tmp_path / 'labels'}"}
    experiment = build(QUICK.merge(settings | {"replay.capacity": 120}), Walk, human=PageChannel())
    session = LiveSession(experiment.replay, experiment.obs_spec, experiment.learned_reward, None)
    storage = experiment.replay.storage
    for _ in range(200):
        experiment.collector.collect()
    assert session.propose() is not None
    monkeypatch.setattr(session, "_draw_new", lambda: ((0, storage.count - storage.capacity + 1 - age),))
    assert session.propose() is None
    experiment.close()


@pytest.mark.parametrize(("number", "is_due"), [(5, False), (20, True)])
def test_a_run_that_asks_resumes_bit_for_bit_until_a_fit_is_due(number, is_due, walked, tmp_path, quick, monkeypatch):
    settings = {
        "steps": 80, "env.id": "Walk", "learning_starts": 10, "replay_ratio": 0.5, "schedule.save_every": 20,
        "human.person": "page", "reward": write_labels(walked, tmp_path / "labels"),
    }  # fmt: skip
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    train_config(QUICK.merge(settings), env=Walk, run=whole, human=PageChannel())
    with monkeypatch.context() as patch:
        patch.setattr(Walk, "steps_of_all", 0)
        patch.setattr(Walk, "stop_at", 45)
        train_config(QUICK.merge(settings), env=Walk, run=parts, human=PageChannel())
    write_labels(walked, tmp_path / "labels", count=number)
    with logged() as lines:
        train_config(QUICK.merge(settings), env=Walk, run=parts, human=PageChannel())
    assert any("the labels have changed" in line for line in lines) == is_due
    if not is_due:
        assert_same(whole, parts)


def test_a_run_that_asks_keeps_its_reward_if_an_answer_is_taken_back_before_it_resumes(walked, tmp_path, quick):
    settings = {"env.id": "Walk", "human.person": "page", "reward": write_labels(walked, tmp_path / "labels", count=20)}
    before = build(QUICK.merge(settings), Walk, human=PageChannel())
    LabelSession(str(walked), tmp_path / "labels", "preferences").undo()
    after = build(QUICK.merge(settings), Walk, human=PageChannel()).learned_reward
    assert not after.is_fitted
    after.load_state_dict(before.learned_reward.state_dict())
    assert after.is_fitted
    assert (after.number, after.labels) == (20, before.learned_reward.labels)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"reward": "taste:labels"}, "expected preferences:FILE or success:FILE"),
        ({"reward": "success:{labels}"}, "has labels of preferences: expected labels of success"),
        ({"reward": "preferences:{labels}.missing"}, "labels.missing: FileNotFoundError"),
        ({"algorithm": "ppo"}, "ppo does not replay rewards"),
        ({"algorithm": "bc"}, "bc does not replay rewards"),
        ({"algorithm": "dreamer_v3"}, "dreamer_v3 needs rewards of whole rows or episodes"),
        ({"algorithm": "decision_transformer"}, "decision_transformer needs rewards of whole rows or episodes"),
        ({"replay.hindsight": "future"}, "replay.hindsight computes rewards too"),
        ({"env": "CartPole-v1"}, "labels: the labeled rows have other observations or actions"),
        ({"env": "CartPole-v1", "human": "page"}, "labels: the labeled rows have other observations or actions"),
    ],
)
def test_what_cannot_be_learned_from_is_refused(changes, expected, walked, tmp_path, quick):
    labels = tmp_path / "labels"
    reward = write_labels(walked, labels)
    given = {"algorithm": "dqn", "env": Walk, "reward": reward, "console": False, "eval_episodes": 0, **changes}
    given["reward"] = given["reward"].format(labels=labels)
    if given["algorithm"] in ("bc", "decision_transformer"):
        given["data"] = walked
    with pytest.raises((ConfigError, DataError), match=expected):
        reverie.train(run=tmp_path / "run", **given)


@pytest.mark.parametrize(
    ("kind", "edit", "expected"),
    [
        ("preferences", lambda head, lines: lines[:3], "preferences: 3 answers, expected 20. Give 17 more"),
        ("preferences", lambda head, lines: [x | {"answer": "skip"} for x in lines], "preferences: 0 answers.*20 more"),
        ("success", lambda head, lines: [x for x in lines if x["answer"] == "failure"], "success: 0 answers.*20 more"),
        ("success", lambda head, lines: [x | {"answer": "success"} for x in lines], "failure: 0 answers.*10 more"),
        ("success", lambda head, lines: [lines[0]] * 80, "(success|failure): . answers?, expected"),
        ("success", lambda head, lines: [x | {"answer": ("success", "success", "failure")[i % 3]} for i, x in
                                         enumerate(lines)], "at most .*% of the held-out rows"),
        ("preferences", lambda head, lines: [x | {"answer": "First"} for x in lines], "answer 'First': expected first"),
        ("preferences", lambda head, lines: [x | {"answer": "tie"} for x in lines], "all answers are ties"),
        ("preferences", lambda head, lines: head.update(steps=0) or lines, "clips of no length"),
        ("success", lambda head, lines: [x | {"clips": x["clips"] * 2} for x in lines], "another number of them"),
        ("preferences", lambda head, lines: [x | {"clips": [[999, 0], [0, 0]]} for x in lines], "episode 999, row 0"),
        ("preferences", lambda head, lines: [x | {"clips": [[0, 9999], [0, 0]]} for x in lines], "episode 0, row 9999"),
        ("preferences", lambda head, lines: head.update(fingerprint="x") or lines, "the checksum x, but .* has "),
        ("preferences", lambda head, lines: head.pop("data") and lines, "KeyError: 'data'. Expected a file that"),
        ("preferences", lambda head, lines: head.update(data="") or lines, "neither data nor copies"),
        ("preferences", lambda head, lines: [7], "Expected a file that reverie data"),
    ],
)  # fmt: skip
def test_labels_that_cannot_be_learned_from_are_refused(kind, edit, expected, recorded, tmp_path, quick):
    write_labels(recorded, path := tmp_path / "labels", kind)
    head, *lines = map(json.loads, path.read_text().splitlines())
    lines = edit(head, lines)
    path.write_text("\n".join(map(json.dumps, [head, *lines])))
    with pytest.raises(DataError, match=expected) as caught:
        reverie.train("dqn", Walk, reward=f"{kind}:{path}", run=tmp_path / "run", console=False, eval_episodes=0)
    assert str(path) in str(caught.value) or str(recorded) in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "follows"),
    [
        ({}, True),
        ({"reward": "preferences:{labels}"}, False),
        ({"human.intervention_reward": -1.0, "human.reward": "only"}, False),
        ({"human.intervention_reward": -1.0}, True),  # added to the environment's
    ],
)
def test_statistics_of_stored_rewards_do_not_scale_others(changes, follows, walked, tmp_path, quick):
    write_labels(walked, labels := tmp_path / "labels")
    changes = {name: x.format(labels=labels) if isinstance(x, str) else x for name, x in changes.items()}
    config = QUICK.merge({"env.id": "Walk", "algo.reward_scale": "return_std", **changes})
    experiment = build(config, Walk)
    try:
        assert experiment.algo.preprocess.follows_rewards == follows
    finally:
        experiment.close()


@pytest.mark.parametrize("changes", [{}, {"human.success_reward": 0.0}, {"human.person": "mine:help"}])
def test_a_key_whose_reward_is_not_learned_says_so(changes, said):
    config = ExperimentConfig().merge({"human.person": "page", **changes})
    ignore_row_rewards(config, contracts.build("dqn"), "reward = preferences:labels")
    assert ["the key S ends episodes without human.success_reward" in line for line in said] == [True] * (not changes)


def test_runs_with_actors_learn_from_the_reward(walked, tmp_path, quick):
    """They have closed the environment of this process."""

    class StartedError(Exception):
        pass

    def start_actors(*arguments):
        raise StartedError

    reward = write_labels(walked, tmp_path / "labels")
    with pytest.raises(StartedError):
        build(QUICK.merge({"env.id": "Walk", "actors": 1, "reward": reward}), Walk, actors=start_actors)


def test_a_short_dataset_asks_for_shorter_clips(walked, tmp_path):
    with pytest.raises(DataError, match="no episode has 5000 steps"):
        LabelSession(str(walked), tmp_path / "labels", "preferences", steps=5000)


def test_true_returns_teach_a_reward(walked, tmp_path):
    """The walk's reward is the change of its position, which the networks see only after the action."""
    reverie.label(walked, "preferences", labels := tmp_path / "labels", prefers, count=60, steps=5)
    with logged() as lines:
        config = QUICK.merge({"steps": 20, "env.id": "Walk", "reward": f"preferences:{labels}"})
        train_config(config, env=Walk, run=tmp_path / "run")
    (right,) = [int(found[1]) for line in lines if (found := re.search(r"predict (\d+) of 24 ", line))]
    assert right > 14
