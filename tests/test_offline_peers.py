"""The scripts that measure offline agents beside other libraries: data, workers, episodes, tables."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import numpy as np
import pytest

from test_benchmarks import FOLDER, run, scripts

__all__ = ["scripts"]  # a fixture

CARTPOLE = {"type": "Discrete", "dtype": "int64", "start": 0, "n": 2}
TWO = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-2.0], "high": [2.0]}


def write(path: Path, width: int, actions: dict[str, Any]) -> Path:
    """A Minari dataset of 3 + 2 steps: one episode terminates, the other is cut off."""
    noise = np.random.default_rng(0)
    (path / "data").mkdir(parents=True)
    about = {"total_episodes": 2, "action_space": json.dumps(actions)}
    (path / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(path / "data" / "main_data.hdf5", "w") as file:
        for number, steps in enumerate((3, 2)):
            episode = file.create_group(f"episode_{number}")
            episode["observations"] = noise.normal(3, 2, (steps + 1, width)).astype(np.float32)
            taken = noise.integers(0, 2, steps) if actions is CARTPOLE else noise.uniform(-2, 2, (steps, 1))
            episode["actions"] = taken
            episode["rewards"] = np.arange(steps, dtype=np.float64)
            episode["terminations"] = np.arange(steps) == (steps - 1 if number == 0 else -1)
            episode["truncations"] = np.arange(steps) == (steps - 1 if number == 1 else -1)
            episode.create_group("infos")
    return path


@pytest.fixture
def workers(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a script of ``peers/`` by name."""
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    return scripts


def test_everybody_reads_the_same_episodes(workers: Any, tmp_path: Path) -> None:
    task = workers("offline_task")
    found = task.read(write(tmp_path / "data", 3, TWO))
    assert [each.terminated for each in found.episodes] == [True, False]
    assert [len(each.obs) - len(each.action) for each in found.episodes] == [1, 1]
    every = np.concatenate([each.obs for each in found.episodes])
    np.testing.assert_allclose(every.mean(0), 0, atol=1e-6)
    np.testing.assert_allclose(every.std(0), 1, atol=1e-6)
    with h5py.File(tmp_path / "data/data/main_data.hdf5") as file:
        seen, taken = file["episode_1/observations"][...], file["episode_1/actions"][...]
    np.testing.assert_array_equal(found.seen(seen), found.episodes[1].obs)
    np.testing.assert_allclose(found.episodes[1].action, taken / 2, rtol=1e-6)
    np.testing.assert_allclose(found.done(found.episodes[1].action), taken, rtol=1e-5)
    assert found.done(np.array([[7.0]])) == 2.0
    assert not found.discrete
    assert found.actions == 1


def test_choices_stay_numbers(workers: Any, tmp_path: Path) -> None:
    found = workers("offline_task").read(write(tmp_path / "data", 4, CARTPOLE))
    assert found.discrete
    assert found.actions == 2
    assert found.episodes[0].action.dtype == np.int64
    assert found.done(np.array([1, 0])).tolist() == [1, 0]


@pytest.mark.parametrize("array", [np.arange(6.0).reshape(2, 3), np.zeros((0, 2), np.float32), np.array([1, 0])])
def test_arrays_go_through_a_pipe(workers: Any, array: np.ndarray) -> None:
    pipe, buffer = workers("offline_pipe"), io.BytesIO()
    pipe.send(buffer, array)
    pipe.send(buffer, array + 1)
    buffer.seek(0)
    first = pipe.receive(buffer)
    np.testing.assert_array_equal(first, array)
    assert first.dtype == array.dtype
    np.testing.assert_array_equal(pipe.receive(buffer), array + 1)
    assert pipe.receive(buffer) is None


WORKER = f"""
import sys
sys.path.insert(0, {str(FOLDER / "peers")!r})
import numpy as np
import offline_task


def build(work, recorded):
    print("talk", work)
    assert (work.algorithm, work.units, work.vae, work.batch) == ("bc", (64, 64), (128, 128), 256)
    made = []
    def act(obs):
        assert len(made) == 2
        return (recorded.mean + recorded.std * obs)[:, 2] > 0
    return lambda: made.append(1), act


offline_task.main(build, "numpy")
"""
FAILS = "import sys\nsys.exit('no such thing')\n"


def test_policies_are_judged_by_the_episodes_that_they_play(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """CartPole pushed to the side that the pole leans to, by a worker that has nothing to learn."""
    peers, out = scripts("offline_peers"), tmp_path / "out.json"
    (tmp_path / "peers").mkdir()
    (tmp_path / "peers/offline_d3rlpy.py").write_text(WORKER)
    (tmp_path / "peers/offline_tianshou.py").write_text(FAILS)
    write(tmp_path / "CartPole-v1-mixed", 4, CARTPOLE)
    monkeypatch.setattr(peers, "HERE", tmp_path)
    monkeypatch.setattr(peers, "installed", lambda wanted, where: dict.fromkeys(wanted, Path(sys.executable)))
    monkeypatch.setattr(peers, "machine", lambda threads: {})
    old = {"env": "CartPole-v1", "level": "mixed", "algorithm": "bc", "system": "d3rlpy", "seed": 1, "updates": 9}
    out.write_text(json.dumps({"machine": {}, "rows": [{**old, "seed": 7}, old]}))
    words = ["bc", "--env", "CartPole-v1", "--levels", "mixed", "--seeds", "1", "--updates", "2", "--episodes", "3"]
    words += ["--folder", str(tmp_path), "--out", str(out), "--jobs", "1"]
    assert run(peers, monkeypatch, *words) == 1
    assert "tianshou bc" in (said := capsys.readouterr().out)
    assert "no such thing" in said
    other, row = sorted(json.loads(out.read_text())["rows"], key=lambda r: -r["seed"])
    assert (other["seed"], row["updates"], row["system"]) == (7, 2, "d3rlpy")
    env, expected = gymnasium.make("CartPole-v1"), []
    for seed in range(3):
        obs, over, score = env.reset(seed=peers.FIRST_SEED + seed)[0], False, 0.0
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(obs[2] > 0))
            score, over = score + float(reward), terminated or truncated
        expected.append(score)
    assert row["score"] == round(float(np.mean(expected)), 2)
    assert run(peers, monkeypatch, *words, "--systems", "d3rlpy", "--missing") == 0
    assert json.loads(out.read_text())["rows"][0] == row


def test_which_runs_there_are(scripts: Any) -> None:
    peers = scripts("offline_peers")
    assert peers.VECTORS == ("Pendulum-v1", "HalfCheetah-v5", "CartPole-v1")
    for env, kinds in {"Pendulum-v1": {"bc", "td3_bc", "bcq", "cql", "iql", "crr"},
                       "CartPole-v1": {"bc", "discrete_bcq", "discrete_cql", "discrete_crr"}}.items():  # fmt: skip
        found = {name for names in peers.ALGORITHMS.values() for name in names if peers.fits(name, env)}
        assert found == kinds


# ---------------------------------------------------------------- updates in a second


@pytest.mark.parametrize("task", ["bc", "bcq", "cql", "discrete_cql"])
def test_our_offline_learners_are_as_large_as_the_others(
    workers: Any, monkeypatch: pytest.MonkeyPatch, task: str
) -> None:
    rates = workers("rates")
    monkeypatch.setattr(rates, "ROWS", 60)
    monkeypatch.setattr(rates, "EPISODE", 10)
    ours = workers("rates_reverie")
    config = ours.config(task)
    assert (config.batch_size, config.networks.units, getattr(config, "samples", 10)) == (256, (256, 256), 10)
    assert getattr(config, "quantiles", 200) == 200
    assert task != "bcq" or config.vae.units == (256, 256)
    assert ours.build(task, "")() == 1


def test_offline_rates_are_measured_as_those_of_model_free_agents(
    scripts: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rates, peers, asked = scripts("offline_rates"), scripts("model_free_peers"), []

    def measured(python: Path, system: Any, task: str, args: Any) -> dict[str, Any]:
        asked.append((system.script, task))
        assert (FOLDER / "peers" / f"rates_{system.script}.py").exists()
        rest = {"first_s": 1.0, "peak_gb": 0.5, "others_cores": 0.0, "versions": {}}
        return {"per_s": 50.0 if system.script == "reverie" else 10.0, **rest}

    monkeypatch.setattr(peers, "measured", measured)
    monkeypatch.setattr(peers, "installed", lambda wanted, where: dict.fromkeys(wanted, Path("python")))
    monkeypatch.setattr(peers, "machine", lambda threads: {})
    out = tmp_path / "rates.json"
    assert run(rates, monkeypatch, "--tasks", "iql", "crr", "--rounds", "1", "--out", str(out)) == 0
    assert asked == [("reverie", "iql"), ("offline_torchrl", "iql"), ("offline_d3rlpy", "iql"),
                     ("reverie", "crr"), ("offline_d3rlpy", "crr")]  # fmt: skip
    assert "| IQL | 50.0 | **10.0** | **10.0** | 5.00 |" in capsys.readouterr().out
    assert set(rates.TASKS) == set(workers_tasks(scripts, monkeypatch))


def workers_tasks(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER / "peers"))
    return scripts("rates").OFFLINE


# ---------------------------------------------------------------- tables

DATASETS = {"A": {level: {"return": value} for level, value in {"random": -10, "expert": 10, "mixed": 0}.items()}}


def score(algorithm: str, level: str, value: float, seed: int = 1, env: str = "A", **more: Any) -> dict[str, Any]:
    return {"env": env, "level": level, "algorithm": algorithm, "seed": seed, "updates": 20, "score": value, **more}


def test_scores_stand_by_dataset_between_random_and_expert(scripts: Any) -> None:
    rows = [score("bc", "mixed", 0.0), score("bc", "mixed", 2.0, 2), score("iql", "mixed", 8.0),
            score("bc", "expert", 10.0), score("bc", "x", 3.0, env="B")]  # fmt: skip
    assert scripts("offline_table").offline_table(rows, DATASETS) == [
        "**A**, 20 updates, 2 seeds, random -10.0, expert 10.0",
        "",
        "|  | expert | mixed |",
        "|---|---|---|",
        "| the data | 100.0 | 50.0 |",
        "| `bc` | **100.0** | 55.0 ± 7.1 |",
        "| `iql` | - | **90.0** |",
        "",
        "**B**, 20 updates, 1 seed",
        "",
        "|  | x |",
        "|---|---|",
        "| `bc` | **3.0** |",
    ]


def test_peers_stand_beside_ours_of_as_many_updates(scripts: Any) -> None:
    ours = [score("bc", "mixed", 5.0), {**score("bc", "mixed", 9.0, 2), "updates": 7}]
    rows = [score("bc", "mixed", 0.0, system="d3rlpy"), score("iql", "mixed", 0.0, system="d3rlpy"),
            score("bc", "mixed", 9.0, system="tianshou")]  # fmt: skip
    assert scripts("offline_table").offline_peers_table(rows, ours, DATASETS) == [
        "| environment | data | algorithm | reverie | d3rlpy 2.8.1 | Tianshou 2.0.1 |",
        "|---|---|---|---|---|---|",
        "| A | mixed | `bc` | 75.0 | 50.0 | **95.0** |",
        "| A | mixed | `iql` | - | **50.0** | - |",
    ]


def test_what_was_learned_from_another_recording_is_marked_and_never_mixed(scripts: Any) -> None:
    table = scripts("offline_table")
    ours = [
        score("bc", "mixed", 5.0),
        score("bc", "mixed", 1.0, recording=2),
        score("bc", "mixed", 3.0, 2, recording=2),
    ]
    lines = table.offline_table([*ours, score("iql", "mixed", 0.0)], DATASETS)
    assert lines[-2:] == ["| `bc` | **60.0 ± 7.1** \\* |", "| `iql` | 50.0 |"]  # more seeds
    both = [score("bc", "mixed", 0.0, system="d3rlpy"), score("bc", "mixed", 8.0, system="tianshou")]
    assert table.offline_peers_table(both, ours, DATASETS)[-1] == "| A | mixed | `bc` | 75.0 | 50.0 | **90.0** |"
    both[1]["recording"] = 2
    assert table.offline_peers_table(both, ours, DATASETS)[-1] == (
        "| A | mixed | `bc` \\* | 60.0 ± 7.1 | - | **90.0** |"
    )


def test_rows_of_recordings_stand_beside_each_other(scripts: Any) -> None:
    for module, more in (("offline", {}), ("offline_peers", {"system": "d3rlpy"})):
        old, new = score("bc", "mixed", 1.0, **more), score("bc", "mixed", 2.0, recording=2, **more)
        merged, names = scripts("offline_work").merged, scripts(module).KEY
        rows = merged([old], new, names)
        assert [row["score"] for row in rows] == [1.0, 2.0]
        rows = merged(rows, {**new, "score": 3.0}, names)
        assert [row["score"] for row in rows] == [1.0, 3.0]


def test_ours_are_judged_by_the_same_episodes(scripts: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole ones, from the states of the seeds that others begin with, each with a fresh state of the policy."""
    judge, peers, seeds, begun = scripts("offline_judge"), scripts("offline_peers"), [], []

    class Leaning:
        def make_env(self) -> Any:
            env = gymnasium.make("CartPole-v1")
            reset = env.reset
            env.reset = lambda *, seed: seeds.append(seed) or reset(seed=seed)  # type: ignore[method-assign,func-returns-value]
            return env

        def act(self, obs: np.ndarray, state: Any) -> tuple[int, str]:
            begun.extend([1] if state is None else [])
            return int(obs[2] > 0), "going on"

    monkeypatch.setattr(judge.reverie, "load", lambda run, device: Leaning())
    found = judge.judged(Path("run"), 3)
    assert seeds == [peers.FIRST_SEED, peers.FIRST_SEED + 1, peers.FIRST_SEED + 2]
    assert len(begun) == 3
    env, total = gymnasium.make("CartPole-v1"), 0.0
    for seed in seeds:
        obs, over = env.reset(seed=seed)[0], False
        while not over:
            obs, reward, terminated, truncated, _ = env.step(int(obs[2] > 0))
            total, over = total + float(reward), terminated or truncated
    assert found == total / 3
