"""What policies would earn, estimated from recorded rows, against what they earn."""

import copy
import json
import re
import shutil
import signal
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow.parquet
import pytest
import torch

import reverie
from reverie.agent import off_policy_evaluation as estimation
from reverie.agent.off_policy_estimator import LOSS_WINDOW, OffPolicyEstimator, has_diverged
from reverie.algos.fqe import FQEConfig
from reverie.cli import main
from reverie.cli.agent import EstimateProgress
from reverie.core.errors import ConfigError, DataError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import FLAGS, PolicyOutput, Step, Window
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import REWARDS_CLIPPED, build_dataset
from tiny_configs import NETWORKS

STATES, CLASSES, GAMMA = 4, 2, 0.9
OBS = {"state": ObsPart(kind="vector", shape=(STATES,), dtype="float32")}
ACTION = ActionSpec(parts={"move": ActionPart(kind="categorical", classes=(CLASSES,))})
FAST = FQEConfig(discount=GAMMA, networks=FQEConfig().networks.merge({"units": (32,)}), lr=3e-3, tau=0.05,
                 weight_decay=0.1, batch_size=128, normalize_obs=None)  # fmt: skip


class Recorded:
    """Rows in memory, as a reader gives them."""

    label, tags = "memory", ()

    def __init__(self, columns: dict[str, np.ndarray], obs: Any = OBS, action: ActionSpec = ACTION) -> None:
        self.columns, self.obs_spec, self.action_spec = columns, obs, action

    def rows(self) -> int:
        return len(self.columns["reward"])

    def parts(self) -> Any:
        yield self.columns


def dataset(columns: dict[str, np.ndarray], obs: Any = OBS, action: ActionSpec = ACTION) -> Any:
    window = FAST.build(obs, action).window
    return build_dataset(DatasetConfig(path="memory"), Recorded(columns, obs, action), window=window, seed=0)


class Table:
    """Takes action 1 with a probability that depends on the state, which is one-hot; its mode where that is 0 or 1."""

    def __init__(self, chance: list[float]) -> None:
        self.chance = torch.tensor(chance)

    def initial(self, num_envs: int) -> None:
        return None

    def act(self, step: Step, state: None, mode: str) -> tuple[torch.Tensor, None]:
        chance = self.chance[step.obs["state"].argmax(-1)]
        one = torch.rand(len(chance)) < chance if mode == "explore" else chance > 0.5
        return torch.nn.functional.one_hot(one.long(), CLASSES).float(), None

    def override(self, state: None, action: torch.Tensor) -> None:
        return None

    def inspect(self, step: Step, state: None) -> PolicyOutput:
        chance = self.chance[step.obs["state"].argmax(-1)]
        choice = SimpleNamespace(log_prob=lambda a: torch.where(a[:, 1] > 0, chance, 1 - chance).log())
        return PolicyOutput(step.obs, choice)


def learner(policy: Any, **cfg: Any) -> Any:
    return SimpleNamespace(policy=policy, device=torch.device("cpu"), cfg=SimpleNamespace(discount=GAMMA, **cfg))


def mdp() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Chances ``[S, A, S]``, rewards ``[S, A, S]`` and ``[S, A]`` of where the episode ends with the step."""
    g = np.random.default_rng(3)
    chances = g.dirichlet(np.ones(STATES), (STATES, CLASSES))
    return chances, g.normal(size=(STATES, CLASSES, STATES)) + 1, g.uniform(0, 0.3, (STATES, CLASSES))


def exact(columns: dict[str, np.ndarray], chance: list[float], gamma: float = GAMMA) -> float:
    """The mean of V over first states, V = r + gamma P V solved for the MDP of the rows' own frequencies."""
    here = np.flatnonzero(~columns["is_last"])
    s, a = columns["obs/state"][here].argmax(-1), columns["action"][here].argmax(-1)
    after, terminal = columns["obs/state"][here + 1].argmax(-1), columns["is_terminal"][here + 1]
    count, earned = np.zeros((STATES, CLASSES)), np.zeros((STATES, CLASSES))
    onward = np.zeros((STATES, CLASSES, STATES))
    np.add.at(count, (s, a), 1)
    np.add.at(earned, (s, a), columns["reward"][here + 1])
    np.add.at(onward, (s[~terminal], a[~terminal], after[~terminal]), 1)
    pi = np.stack([1 - np.array(chance), np.array(chance)], 1)  # [S, A]
    r, p = (pi * earned / count).sum(1), (pi[..., None] * onward / count[..., None]).sum(1)
    value = np.linalg.solve(np.eye(STATES) - gamma * p, r)
    return float(value[columns["obs/state"][columns["is_first"]].argmax(-1)].mean())


def recorded(episodes: int = 1500, longest: int = 12, ends: bool = True, seed: int = 0) -> dict[str, np.ndarray]:
    """What one who acts at random lives. Where an episode ends by itself, something else is seen than anywhere."""
    g, (move, reward, end) = np.random.default_rng(seed), mdp()
    rows = []
    for _ in range(episodes):
        s, earned, t, over = int(g.integers(2)), 0.0, 0, False
        while not over and t < longest:
            a = int(g.integers(CLASSES))
            rows.append((np.eye(STATES)[s], np.eye(CLASSES)[a], earned, t == 0, False, False))
            after = int(g.choice(STATES, p=move[s, a]))
            earned, over = float(reward[s, a, after]), ends and g.random() < end[s, a]
            s, t = after, t + 1
        rows.append((np.full(STATES, 7.0) if over else np.eye(STATES)[s], np.zeros(CLASSES), earned, False, True, over))
    names = ("obs/state", "action", "reward", "is_first", "is_last", "is_terminal")
    columns = zip(names, zip(*rows, strict=True), strict=True)
    return {k: np.array(v, bool if k.startswith("is_") else np.float32) for k, v in columns}


def estimator(columns: dict[str, np.ndarray], chance: float | list[float] = 0.0, **more: Any) -> OffPolicyEstimator:
    chances = chance if isinstance(chance, list) else [chance] * STATES
    return OffPolicyEstimator(learner(Table(chances)), dataset(columns), OBS, ACTION, FAST, **more)


@pytest.mark.parametrize(
    ("chance", "mode"), [([1.0, 0.0, 1.0, 0.0], "eval"), ([0.3, 0.8, 0.1, 0.5], "explore")], ids=["mode", "sample"]
)
def test_the_value_of_a_policy_in_a_table(chance, mode):
    columns = recorded()
    found = estimator(columns, chance).estimate(1200, mode=mode, num_action_samples=1 if mode == "eval" else 8)
    assert found.value.value == pytest.approx(exact(columns, chance), abs=0.12)
    assert found.value.low < found.value.value < found.value.high
    assert found.behavior.value == pytest.approx(exact(columns, [0.5] * STATES), abs=0.12)
    assert not found.diverged
    assert exact(columns, chance) != pytest.approx(exact(columns, [0.5] * STATES), abs=0.3)


def test_the_logging_policy_is_not_asked_what_it_did_after_a_truncation():
    """The action of a last row is none, whatever the column holds."""
    columns = recorded(50, longest=3)
    cut = columns["is_last"] & ~columns["is_terminal"]
    other = columns | {"action": np.where(cut[:, None], [0.0, 1.0], columns["action"]).astype(np.float32)}
    found = [estimator(each).estimate(5) for each in (columns, other)]
    assert cut.any()
    assert found[0].behavior == found[1].behavior


CHANCE = [0.3, 0.8, 0.1, 0.5]


def test_importance_sampling_of_a_policy_in_a_table():
    """One who acts at random takes each action with 0.5. DR is right if either the critic or the ratios are."""
    columns = recorded(1500, longest=40)
    truth, others = exact(columns, CHANCE), exact(columns, [0.5] * STATES)
    assert truth - others > 0.5
    half, wrong = np.full(len(columns["reward"]), 0.5, np.float32), np.where(columns["action"][:, 1] > 0, 0.35, 0.65)

    def value(method: str, updates: int, propensity: np.ndarray = half, mode: Any = "explore") -> Any:
        made = estimator(columns, CHANCE, propensity=propensity)
        return made.estimate(updates, method=method, mode=mode, num_action_samples=8)

    wis = value("wis", 1)
    assert wis.value.value == pytest.approx(truth, abs=0.25)
    assert wis.behavior.value == pytest.approx(others, abs=0.05)
    assert wis.value.low < wis.value.value < wis.value.high
    assert (wis.updates, 50 < wis.effective_episodes < 1500) == (0, True)
    assert "loss" not in wis.to_dict()
    assert abs(value("fqe", 1).value.value - truth) > 0.3  # a critic that knows nothing
    assert value("dr", 1).value.value == pytest.approx(truth, abs=0.25)
    assert abs(value("wis", 1, wrong).value.value - truth) > 0.5
    assert value("dr", 1000, wrong).value.value == pytest.approx(truth, abs=0.25)
    greedy = value("wis", 1, mode="eval")
    assert greedy.value.value == pytest.approx(exact(columns, [0.0, 1.0, 0.0, 0.0]), abs=0.4)
    assert greedy.effective_episodes < wis.effective_episodes
    assert "too few" in replace(wis, effective_episodes=3.0).format()


def test_importance_sampling_needs_propensities_choices_and_a_policy_that_tells():
    columns = recorded(3)
    half = np.full(len(columns["reward"]), 0.5, np.float32)
    with pytest.raises(ConfigError, match="has no propensity column"):
        estimator(columns).estimate(1, method="wis")
    silent = estimator(columns, propensity=half)
    silent.algo.policy = SimpleNamespace(**{n: getattr(Table([0.5] * 4), n) for n in ("initial", "act", "override")})
    with pytest.raises(ConfigError, match="does not provide action probabilities"):
        silent.estimate(1, method="wis", mode="explore")
    numbers = ActionSpec(parts={"move": ActionPart(kind="continuous", size=2)})
    made = OffPolicyEstimator(
        learner(Table([0.5] * 4)), dataset(columns, action=numbers), OBS, numbers, FAST, propensity=half
    )
    with pytest.raises(ConfigError, match="requires discrete actions"):
        made.estimate(1, method="dr")


def test_a_loss_that_grows_above_the_variance_of_returns_has_diverged():
    def diverged(*hundreds: float) -> bool:
        return has_diverged(torch.tensor(hundreds).repeat_interleave(LOSS_WINDOW))

    assert diverged(0.5, 0.1, 1.1)
    assert not diverged(0.5, 0.01, 0.9)
    assert not diverged(3.0, 0.2, 1.9)
    assert not has_diverged(torch.full((50,), 9.0))
    found = estimator(recorded(3)).estimate(1)
    assert "FQE diverged" in replace(found, diverged=True).format()


def test_episodes_that_were_all_cut_off_are_worth_what_one_without_end_is():
    columns, chance = recorded(1000, longest=4, ends=False), [1.0, 0.0, 1.0, 0.0]
    assert not columns["is_terminal"].any()
    found = estimator(columns, chance).estimate(1000)
    assert found.value.value == pytest.approx(exact(columns, chance), abs=0.3)
    assert found.value.value > 2 * found.dataset_return.value  # which holds four rewards
    assert found.num_truncated == found.episodes == 1000


def test_recorded_returns_are_discounted_and_of_whole_episodes():
    columns = recorded(50)
    found = estimator(columns).estimate(1).dataset_return
    ends = zip(np.flatnonzero(columns["is_first"]), np.flatnonzero(columns["is_last"]), strict=True)
    earned = [columns["reward"][first + 1 : last + 1] for first, last in ends]
    returns = [sum(GAMMA**k * reward for k, reward in enumerate(rewards)) for rewards in earned]
    assert found.value == pytest.approx(np.mean(returns), rel=1e-5)
    assert found.low < found.value < found.high


@pytest.mark.parametrize("unit", [1e-6, 1.0, 1e6])
def test_units_are_of_the_size_of_values_even_where_all_episodes_are_alike(unit):
    def scale(steps: int, rewards: list[float]) -> float:
        rows = np.arange(5 * (steps + 1)) % (steps + 1)  # five episodes
        columns = {
            "obs/state": np.eye(STATES)[rows % STATES], "action": np.zeros((len(rows), 2), np.float32),
            "reward": np.array([0.0, *rewards], np.float32)[rows] * np.float32(unit), "is_first": rows == 0,
            "is_last": rows == steps, "is_terminal": rows == steps,
        }  # fmt: skip
        return float(estimator(columns).fqe.scale)

    later = [sum(GAMMA**k for k in range(n)) for n in (3, 2, 1)]  # returns from each row on
    assert scale(3, [1.0] * 3) == pytest.approx(unit * np.std(later), rel=1e-5)
    assert scale(1, [0.7]) == pytest.approx(unit * 0.7)
    assert scale(1, [0.0]) == 1.0


def test_estimates_go_on_and_disturb_nothing():
    columns = recorded(40)
    torch.manual_seed(4)
    expected = torch.rand(1)
    torch.manual_seed(4)
    whole, resumed = estimator(columns, 0.3), estimator(columns, 0.3)
    first = whole.estimate(20, mode="explore", num_action_samples=2)
    assert torch.equal(torch.rand(1), expected)
    saved = copy.deepcopy(whole.state_dict())
    second = whole.estimate(20, mode="explore", num_action_samples=2)
    assert (first.updates, second.updates) == (20, 40)
    resumed.load_state_dict(saved)
    assert resumed.estimate(20, mode="explore", num_action_samples=2) == second


def test_what_cannot_be_estimated():
    columns = recorded(3)
    with pytest.raises(ConfigError, match="updates = 0"):
        estimator(columns).estimate(0)
    single = {k: v[:1].repeat(2, 0) for k, v in columns.items()} | {"is_last": np.ones(2, bool)}
    with pytest.raises(DataError, match="are episodes of a single row"):
        build_dataset(DatasetConfig(path="memory"), Recorded(single), window=Window(batch=1, length=1), seed=0)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """What a run lived in an environment, as a dataset of its rows."""
    run = tmp_path_factory.mktemp("lived") / "run"
    settings = {"learning_starts": 10, "random_steps": 10, "eval_episodes": 0, "env_options": {"max_episode_steps": 15}}
    reverie.train("td3", "Pendulum-v1", run=run, steps=60, **SMALL, **settings)
    return run


SMALL = {
    "threads": 1, "tensorboard": False, "algo.batch_size": 8, "algo.networks.units": (8,), "console": False,
}  # fmt: skip
ALONE = {"env": "none", "data.estimate_updates": 4, "schedule.eval_every": 3}


def metrics(run):
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def test_a_run_without_an_environment_is_estimated_and_says_so(data, tmp_path, capsys, said):
    run = tmp_path / "run"
    result = reverie.train("td3", data=data, run=run, updates=6, **SMALL | ALONE | {"console": True})
    assert (result.evaluation, result.estimate.updates) == (None, 12)
    assert any("estimated from the data by FQE (4 updates per estimate)" in line for line in said)
    assert said.count("estimating the policy's return: 4 updates of FQE") == 1
    assert "estimated by FQE" in capsys.readouterr().out
    assert json.loads((run / "estimate.json").read_text())["return"]["value"] == result.estimate.value.value
    assert (result.files["estimate"], (run / "eval.json").exists()) == (run / "estimate.json", False)
    rows = metrics(run)
    assert [row["step"] for row in rows if "estimate/return" in row] == [3, 6, 6]
    assert not any(key.startswith("eval/") for row in rows for key in row)
    assert main(["info", str(run)]) == 0
    assert f"{result.estimate.value.value:.2f} discounted, by FQE" in capsys.readouterr().out


def test_estimates_have_no_more_updates_than_the_agent(data, tmp_path):
    settings = SMALL | ALONE | {"data.estimate_updates": None}
    result = reverie.train("td3", data=data, run=tmp_path / "run", updates=7, **settings)
    assert result.estimate.updates == 7  # after 3, 6 and 7 of the agent


def test_a_run_that_clips_rewards_estimates_returns_of_true_ones(data, tmp_path):
    found = []
    for clip in ("none", "sign"):
        more = {"env.clip_reward": clip, "schedule.eval_every": 0}
        result = reverie.train("td3", data=data, run=tmp_path / clip, updates=1, **{**SMALL, **ALONE, **more})
        found.append(result.estimate)
    assert repr(found[0]) == repr(found[1])  # NaN for intervals of four episodes


def test_estimates_of_rewards_that_were_clipped_when_they_were_collected_say_so(data, tmp_path, capsys, said):
    lived, run = tmp_path / "lived", tmp_path / "run"
    shutil.copytree(data, lived)
    text = (lived / "config.yaml").read_text()
    (lived / "config.yaml").write_text(text.replace("clip_reward: none", "clip_reward: sign"))
    result = reverie.train("td3", data=lived, run=run, updates=1, **SMALL | ALONE)
    assert sum(REWARDS_CLIPPED.format("sign") in line for line in said) == 1
    assert result.estimate.reward_clipping == json.loads((run / "estimate.json").read_text())["clipped"] == "sign"
    assert main(["estimate", str(run), "--updates", "3"]) == 0
    assert re.search(r"3 updates, loss [\d.e+]+, of rewards clipped by sign", capsys.readouterr().out)
    assert reverie.estimate_return(run, data, updates=3).estimate.reward_clipping == "none"


def test_estimates_of_a_run_that_goes_on_are_those_of_one_that_did_not_stop(data, tmp_path):
    found = []
    for run, counts in {"one": (6,), "two": (3, 6)}.items():
        for updates in counts:
            reverie.train("td3", data=data, run=tmp_path / run, updates=updates, **SMALL | ALONE)
        rows = [row for row in metrics(tmp_path / run) if row["step"] == 6 and "estimate/return" in row]
        found.append([{k: v for k, v in row.items() if k.startswith("estimate/")} for row in rows])
    assert len(found[0]) == 2
    assert found[0] == found[1]


def test_an_estimate_that_a_killed_process_had_only_logged_is_made_again_and_counts_once(data, tmp_path):
    """estimate.json is written last, as it is taken for a sign that nothing is missing."""
    for updates in (5, 6):  # the second process goes on from a checkpoint in which FQE has been trained
        reverie.train("td3", data=data, run=tmp_path, updates=updates, **SMALL | ALONE)
    before, found = metrics(tmp_path), json.loads((tmp_path / "estimate.json").read_text())
    (tmp_path / "estimate.json").unlink()
    reverie.train("td3", data=data, run=tmp_path, updates=6, **SMALL | ALONE)
    assert metrics(tmp_path) == before
    assert [row["estimate/final"] for row in before if "estimate/final" in row] == [0, 1, 0, 1]
    assert json.loads((tmp_path / "metrics-aside.jsonl").read_text())["estimate/final"] == 1
    assert json.loads((tmp_path / "estimate.json").read_text()) == found


def test_any_run_on_any_data(data, tmp_path, capsys):
    """World models too, which carry something from row to row."""
    run, few = tmp_path / "dreamer", {k: v for k, v in SMALL.items() if not k.startswith("algo")} | ALONE
    algo = {"batch_size": 2, "batch_length": 8, "horizon": 3, **NETWORKS}
    shutil.copytree(data, tmp_path / "lived")
    reverie.train("dreamer_v3", data=data, run=run, updates=1,
                  algo=algo, **few)  # fmt: skip
    for path, more in ((run, []), (tmp_path / "lived", ["--no-deterministic", "--num-action-samples", "2"])):
        assert main(["estimate", str(path), "--data", str(data), "--updates", "3", *more]) == 0
        said = capsys.readouterr().out
        assert ("estimated by FQE, no episodes played" in said, "estimate.json" in said) == (True, True)
        assert json.loads((path / "estimate.json").read_text())["updates"] == 3


def test_an_environment_that_was_a_python_object_is_not_made_by_its_id(data, tmp_path, monkeypatch):
    """Under that id another environment may be registered, with other bounds of actions."""
    run, given = tmp_path / "lived", []
    shutil.copytree(data, run)
    open_recorded = estimation.open_recorded

    def look(data, env, *spaces):
        given.append(spaces[0])
        return open_recorded(data, env, *spaces)

    monkeypatch.setattr(estimation, "open_recorded", look)
    reverie.estimate_return(run, data=data, updates=1)
    text = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(text.replace("experiment:", "custom: {env: Pendulum-v1}\nexperiment:"))
    reverie.estimate_return(run, data=data, updates=1)
    assert [space is None for space in given] == [False, True]


def test_what_lies_beyond_truncations_stands_beside_both_returns():
    columns = recorded(200)
    first, last = np.flatnonzero(columns["is_first"]), np.flatnonzero(columns["is_last"])
    beyond = np.where(columns["is_terminal"][last], 0.0, GAMMA ** (last - first)).mean()
    assert 0.01 < beyond < 0.99
    found = estimator(columns).estimate(1)
    assert found.truncated_weight == found.to_dict()["truncated_weight"] == pytest.approx(beyond)
    assert (
        f"were truncated, with {beyond:.0%} of the discount weight beyond; the other estimates continue"
        in found.format()
    )
    assert "discount weight beyond" not in replace(found, truncated_weight=0.004).format()
    assert found.num_truncated == np.sum(~columns["is_terminal"][last])


def test_importance_sampling_and_settings_of_fqe_from_outside(tmp_path, capsys):
    """The policy that is cloned has other chances in each of its observations, and tells those that it acts by."""
    g, path, run = np.random.default_rng(0), tmp_path / "table.parquet", tmp_path / "run"
    x = g.integers(3, size=600)
    chance = np.array([0.2, 0.5, 0.9])[x]
    a = (g.random(600) < chance).astype(np.int64)
    end = np.arange(600) % 2 == 1
    names = {"obs": ["x"], "action": "a", "reward": "r", "terminal": "end", "propensity": "p"}
    table = {"x": x, "a": a, "r": 1.0 * a, "end": end, "p": np.where(a == 1, chance, 1 - chance)}
    pyarrow.parquet.write_table(pyarrow.table(table), path)
    more = {"env": "none", "data.estimate_updates": 0, "data.columns": names}
    reverie.train("bc", data=path, run=run, updates=300, **SMALL | more | {"algo.lr": 0.02})
    found = reverie.estimate_return(run, method="wis", deterministic=False).estimate
    assert found.value.value == pytest.approx(found.behavior.value, abs=0.1)
    assert found.effective_episodes > 270  # of 300 episodes, as the clone is near
    agent = reverie.load(run)
    drawn, _ = agent.act(np.full((4000, 1), 2.0, np.float32), deterministic=False)
    step = Step(obs={"observation": torch.full((1, 1), 2.0)}, **{k: torch.zeros(1) for k in ("reward", *FLAGS)})
    policy = agent.algo.policy
    told = policy.inspect(step, policy.initial(1)).decision.log_prob(torch.tensor([[0.0, 1.0]])).exp().item()
    assert told == pytest.approx(np.mean(drawn), abs=0.03)
    assert (
        main(["estimate", str(run), "--method", "dr", "--no-deterministic", "--updates", "5", "--fqe.lr", "0.01"]) == 0
    )
    assert "estimated by DR" in capsys.readouterr().out
    assert json.loads((run / "estimate.json").read_text())["method"] == "dr"
    assert main(["estimate", str(run), "--fqe.lr", "0"]) == 1
    assert "fqe.lr = 0" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="method = 'is': expected one of fqe, wis, dr"):
        reverie.estimate_return(run, method="is")  # type: ignore[arg-type]


def test_data_that_do_not_fit(data, tmp_path, capsys):
    reverie.train("td3", "reverie/Match-v0", run=tmp_path / "run", steps=3, eval_episodes=0,
                  **SMALL)  # fmt: skip
    assert main(["estimate", str(tmp_path / "run"), "--data", str(data)]) == 1
    assert re.search("does not fit the agent.* in the agent", capsys.readouterr().err)
    assert main(["estimate", str(tmp_path / "run")]) == 1
    assert "was not trained on a dataset. Pass the dataset to use" in capsys.readouterr().err


def test_an_interrupted_estimate_is_that_after_the_updates_made(data, tmp_path, capsys, monkeypatch):
    """Somebody presses Ctrl-C during the third update of an estimate."""
    shutil.copytree(data, tmp_path / "run")
    update, made = OffPolicyEstimator._update, []

    def pressed(self, chosen):
        made.append(1)
        if len(made) == 3:
            signal.raise_signal(signal.SIGINT)
        return update(self, chosen)

    monkeypatch.setattr(OffPolicyEstimator, "_update", pressed)
    assert main(["estimate", str(tmp_path / "run"), "--data", str(data), "--updates", "50"]) == 130
    said = capsys.readouterr()
    assert "discount 0.99, 3 updates" in said.out
    assert "interrupted: the estimate was made after 3 of 50 updates" in said.err
    assert json.loads((tmp_path / "run" / "estimate.json").read_text())["updates"] == 3


def test_ctrl_c_ends_the_command_at_once_before_the_first_update_and_the_second_time():
    with pytest.raises(KeyboardInterrupt), EstimateProgress():
        signal.raise_signal(signal.SIGINT)
    with EstimateProgress() as watch:
        assert watch(1, 5)
        signal.raise_signal(signal.SIGINT)
        assert not watch(2, 5)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
