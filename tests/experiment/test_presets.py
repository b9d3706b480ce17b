"""Presets: published numbers, chosen by the environment, under the layers that people put on top."""

import json
import os
import sys
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import gymnasium
import h5py
import pytest
import torch
import yaml

from contracts import CHOICE, MOVES, SPECS, batch, shown
from reverie import api
from reverie.algos.dqn import DQNConfig
from reverie.algos.dreamer_v3 import SIZES, DreamerV3Config, with_size
from reverie.algos.settings import AlgorithmConfig
from reverie.algos.table import algorithm_config, algorithms
from reverie.api import train_config
from reverie.cli import main
from reverie.cli import train as commands
from reverie.core import wall_clock
from reverie.core.errors import ConfigError
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.envs.dummy import Count
from reverie.envs.suites import suite_id
from reverie.experiment import settings
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.dataset_env import find_env_id, resolve_with_data
from reverie.experiment.presets import ON_CPU, SUITES, TABLE, preset_name
from reverie.experiment.settings import Draft, Request, make_preset
from reverie.nn.cnn import BySize, Drq, Impala
from reverie.nn.network import NetworkConfig
from reverie.replay.config import Mixed
from tiny_configs import SETTINGS

NUMBERS = {"type": "Box", "dtype": "float32", "shape": [1], "low": [-1.0], "high": [1.0]}


@pytest.fixture(autouse=True)
def gpus(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of GPUs that presets find, as the only entry."""
    found = [1]
    monkeypatch.setattr(settings, "num_gpus", lambda: found[0])
    return found


def overlay(config: ExperimentConfig, values: dict[str, Any]) -> ExperimentConfig:
    return Draft(config.fields()).apply(values).build()


def merge_layers(algorithm: str, data: Any = None, device: str = "auto", steps: int = 0, **layers: Any) -> Any:
    """The settings of a request, with nothing checked."""
    overrides = (data or {}) | ({} if device == "auto" else {"device": device}) | ({"steps": steps} if steps else {})
    return settings.merge_layers(Request(algorithm=algorithm, overrides=overrides, **layers), find_env_id)


@pytest.mark.parametrize("name", TABLE)
def test_each_preset_is_whole_documented_and_writable(name: str) -> None:
    config = make_preset(name)
    assert TABLE[name].description
    assert ((config.replay_ratio is None) != (config.train_ratio is None)) or config.algo.on_policy
    start = ExperimentConfig(algo=type(config.algo)())
    assert start.merge(yaml.safe_load(yaml.safe_dump(config.to_dict()))) == config


def test_all_algorithms_and_presets_are_listed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for terminal in (True, False):  # elsewhere lines are whole
        monkeypatch.setattr(sys.stdout, "isatty", lambda terminal=terminal: terminal)
        main(["list"])
        said = capsys.readouterr().out
        assert all(f"\n  {name} " in said for name in (*TABLE, *algorithms()))
        assert (max(map(len, said.splitlines())) <= 80) == terminal


@pytest.mark.parametrize(("algorithm", "data", "env", "chosen"), [
    ("gciql", "ogbench:pointmaze-medium-navigate-v0", None, {"alpha": 0.003}),
    ("gciql", "ogbench:cube-single-play-v0", "none", {"alpha": 1.0, "crop_probability": 0.0}),
    ("gciql", "/mine/scene-noisy-v0.npz", None, {"alpha": 0.03}),
    ("gciql", "mine.npz", "cube-single-v0", {"alpha": 1.0}),
    ("gciql", "cube.npz", "none", {"alpha": 0.3}),
    ("qrl", "ogbench:antmaze-large-stitch-v0", None, {"alpha": 0.003, "actor_goals": (0.5, 0.5)}),
    ("gcbc", "ogbench:antmaze-large-stitch-v0", None, {"actor_goals": (1.0, 0.0)}),
    ("hiql", "ogbench:puzzle-4x4-play-v0", None, {"subgoal_steps": 10, "discount": 0.99}),
    ("hiql", "ogbench:antmaze-giant-navigate-v0", None, {"subgoal_steps": 25, "discount": 0.995}),
    ("crl", "ogbench:visual-scene-play-v0", None, {"alpha": 3.0, "crop_probability": 0.5, "batch_size": 256}),
    ("crl", "ogbench:antsoccer-arena-stitch-v0", None, {"alpha": 0.3, "discount": 0.99}),
    ("gciql", "ogbench:humanoidmaze-large-navigate-v0", None, {"alpha": 0.1, "discount": 0.995}),
    ("qrl", "ogbench:visual-humanoidmaze-large-navigate-v0", None, {"alpha": 0.001, "crop_probability": 0.0}),
    ("hiql", "ogbench:visual-antmaze-large-navigate-v0", None, {"actor_trains_phi": True, "subgoal_steps": 25}),
    ("hiql", "ogbench:powderworld-easy-play-v0", None, {"actor_trains_phi": True, "subgoal_steps": 10}),
    ("qrl", "ogbench:powderworld-hard-play-v0", "powderworld-hard-v0", {"alpha": 3.0, "actor_loss": "awr"}),
])  # fmt: skip
def test_datasets_of_ogbench_have_the_settings_of_the_authors(algorithm, data, env, chosen) -> None:
    algo = merge_layers(algorithm, {"data": data}, env=env).algo
    for name, value in chosen.items():
        setting = getattr(algo, name)
        assert ((setting.episode, setting.random) if name == "actor_goals" else setting) == value
    assert isinstance(algo.networks.encoder, Impala) == ("visual-" in data or "powderworld-" in data)
    assert merge_layers(algorithm, {"data": data, "algo.lr": 7.0}, env=env).algo == algo.merge({"lr": 7.0})
    assert merge_layers(algorithm, {"data": data}, env=env, preset=algorithm).algo == merge_layers(algorithm).algo


@pytest.mark.parametrize(("algorithm", "env", "name"), [
    ("dreamer_v3", "ALE/Pong-v5", "atari"),
    ("dreamer_v3", "dm_control/cartpole-balance-v0", "dmc_proprio"),
    ("dreamer_v3", "BabyAI-GoToObj-v0", "minigrid"),
    ("dreamer_v3", "ale_py:ALE/Pong-v5", "atari"),
    ("dreamer_v3", "BreakoutNoFrameskip-v4", "atari"),
    ("c51", "ale_py:Pong-v4", "c51_atari"),
    ("dreamer_v3", "Pendulum-v1", "dreamer_v3"),
    ("dreamer_v3", "CartPole", "cartpole"),
    ("sac", "module:Pendulum-v1", "sac_pendulum"),
    ("sac", "CartPole-v1", "sac"),
    ("ppo", "Humanoid-v5", "ppo_mujoco"),
    ("dqn", "Cart", "dqn"),
    ("tdmpc2", "dm_control/cheetah-run-v0", "tdmpc2_dmc"),
])  # fmt: skip
def test_the_environment_chooses(algorithm: str, env: str, name: str) -> None:
    assert preset_name(algorithm, suite_id(env)) == name
    config = merge_layers(algorithm, env=env)
    formula, expected = TABLE[name].from_steps, make_preset(name).merge({"env.id": env})
    assert config == (expected if formula is None else overlay(expected, formula(expected.steps)))
    assert set(SUITES.values()) | set(ON_CPU) <= set(TABLE)


@pytest.mark.parametrize(("algorithm", "env", "name"), [
    ("dreamer_v3", "ALE/Pong-v5", "atari+cpu"),
    ("dreamer_v3", "mine:Walk-v0", "dreamer_v3+cpu"),
    ("dreamer_v3", "CartPole-v1", "cartpole"),
    ("cql", "HalfCheetah-v5", "cql_mujoco+cpu"),
])  # fmt: skip
def test_without_a_gpu_runs_are_short(gpus: list[int], algorithm: str, env: str, name: str) -> None:
    published = merge_layers(algorithm, env=env)
    on_request = merge_layers(algorithm, env=env, preset="cpu"), merge_layers(algorithm, env=env, device="cpu")
    gpus[0] = 0
    config, plain = merge_layers(algorithm, env=env), name.removesuffix("+cpu")
    assert (config.preset, *on_request) == (name, config, config.merge({"device": "cpu"}))
    assert merge_layers(algorithm, env=env, device="cuda").preset == published.preset == plain
    assert merge_layers(algorithm, env=env, preset=plain) == published
    kept = ("id", "resize", "grayscale", "action_repeat", "pool_frames", "max_episode_steps", "kwargs")
    assert [getattr(config.env, key) for key in kept] == [getattr(published.env, key) for key in kept]
    if algorithm == "dreamer_v3":
        assert config.evaluates_during_training
        sizes = {"nano": config, "12m": merge_layers(algorithm, env=env, size="12m")}
        assert all(made.algo.rssm == with_size(size, DreamerV3Config()).rssm for size, made in sizes.items())
    assert (config == published) == (name == plain)


@pytest.mark.parametrize("name", ["config", "settings"])
def test_a_run_keeps_its_preset_on_another_machine(gpus: list[int], tmp_path: Path, name: str) -> None:
    gpus[0], env = 0, "MiniGrid-Empty-5x5-v0"
    config = merge_layers("dreamer_v3", env=env)
    saved = {"schema": 1, "algorithm": "dreamer_v3", "experiment": config.to_dict()}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(saved))
    gpus[0] = 1
    assert merge_layers("dreamer_v3", env=env, run=tmp_path) == config
    assert merge_layers("dqn", env=env, run=tmp_path).preset == "dqn_minigrid"
    assert merge_layers("dreamer_v3", env=env, run=tmp_path, preset="minigrid") != config


@pytest.mark.parametrize("name", ["config", "settings"])  # of a run, or of several seeds
@pytest.mark.parametrize("given", [{}, {"preset": "cpu"}, {"preset": "dqn"}, {"files": "preset: cpu\n"}])
def test_a_longer_run_changes_only_what_is_named(gpus: list[int], tmp_path: Path, name: str, given: Any) -> None:
    """So it also keeps the values that presets compute from the length of the shorter run."""
    gpus[0] = 0
    if "files" in given:
        (tmp_path / "mine.yaml").write_text(given["files"])
        given = {"files": [tmp_path / "mine.yaml"]}
    short, long = (
        merge_layers("dqn", {"steps": n, "replay_ratio": 0.1}, env="Acrobot-v1", **given) for n in (400, 4e4)
    )
    saved = {"schema": 1, "algorithm": "dqn", "experiment": short.to_dict()}
    (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(saved))
    found = merge_layers("dqn", steps=40_000, env="Acrobot-v1", run=tmp_path, **given)
    assert found == short.merge({"steps": 40_000})
    assert (found.random_steps, found.algo.exploration) != (long.random_steps, long.algo.exploration)


def test_a_file_may_name_a_preset_and_a_device(gpus: list[int], tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("preset: atari100k\n")
    (tmp_path / "b.yaml").write_text("device: cpu\n")
    assert merge_layers("dreamer_v3", files=[tmp_path / "a.yaml"]).steps == make_preset("atari100k").steps
    assert merge_layers("dreamer_v3", env="Acrobot-v1", files=[tmp_path / "b.yaml"]).preset == "dreamer_v3+cpu"


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_flags_and_python_choose_by_the_device(asked, commanded, device):
    main(["train", "dreamer_v3", "--env", "Acrobot-v1", "--device", device])
    main(["train", "dreamer_v3", "--env", "Acrobot-v1", "--preset", "cpu" if device == "cpu" else "dreamer-v3"])
    api.train("dreamer_v3", env="Acrobot-v1", device=device)
    name = "dreamer_v3" + "+cpu" * (device == "cpu")
    assert [config.preset for config in [*commanded, *asked]] == [name] * 3


def test_a_preset_may_name_the_environment(commanded, capsys):
    main(["train", "dreamer_v2", "--preset", "pydreamer_minigrid+cpu"])
    assert commanded[0].env.id.startswith("MiniGrid-")
    main(["train", "dreamer_v2", "--preset", "pydreamer_minerl"])
    assert "in which environment?" in capsys.readouterr().err
    with pytest.raises(ConfigError, match=r"in which environment\?.* in Python reverie\.train\('dqn', 'CartPole-v1'\)"):
        api.train("dqn", steps=60)


def test_learning_starts_within_a_short_run(asked, commanded, capsys, said):
    short = {"env": "HalfCheetah-v5", "steps": 6000}
    words = ["train", "sac", "--env", "HalfCheetah-v5", "--steps", "6000"]
    main(words)
    api.train("sac", **short)
    assert [(config.learning_starts, config.random_steps) for config in (*commanded, *asked)] == [(1500, 1500)] * 2
    assert not said
    capsys.readouterr()
    assert main([*words, "--learning-starts", "6e3"]) == 1
    assert "learning_starts = 6000: the run has only 6,000 env steps" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="learning_starts = 7000: the run has only 6,000 env steps"):
        api.train("sac", learning_starts=7000, **short)
    api.train("sac", learning_starts=5999, **short)
    api.train("sac", learning_starts=6000, replay_ratio=0, **short)
    api.train(ExperimentConfig(steps=10))
    assert [config.learning_starts for config in asked[1:]] == [5999, 6000, 1024]


class Machine:
    """Another machine: its number of cores, and how fast its clocks go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int, speed: float) -> None:
        monkeypatch.setattr(os, "cpu_count", lambda: cores)
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {*range(cores)}, raising=False)
        for name in ("perf_counter", "process_time", "monotonic", "thread_time"):
            now = getattr(time, name)
            monkeypatch.setattr(time, name, lambda now=now: speed * now())
        monkeypatch.setattr(wall_clock, "monotonic", time.monotonic)


def test_the_same_command_trains_the_same_on_any_machine(tmp_path, gpus, monkeypatch):
    gpus[0], settings, texts, train = 0, list[list[ExperimentConfig]](), set(), commands.train_config
    tasks = {"sac": "MountainCarContinuous-v0", "ppo": "Acrobot-v1", "dreamer_v3": "Acrobot-v1", "dqn": "CartPole-v1"}
    for cores, speed in ((2, 100.0), (64, 0.01)):
        run, configs = str(tmp_path / str(cores)), list[ExperimentConfig]()
        monkeypatch.setattr(
            commands, "train_config", lambda config, configs=configs, **_: (configs.append(config), 1 / 0)
        )
        with pytest.MonkeyPatch.context() as patch:
            Machine(patch, cores, speed)
            for algorithm, env in tasks.items():
                with pytest.raises(ZeroDivisionError):
                    main(["train", algorithm, "--env", env])
            monkeypatch.setattr(commands, "train_config", train)
            assert main(["train", "dqn", "--env", "CartPole-v1", "--steps", "100", "--run", run]) == 0
        settings.append(configs)
        texts.add(Path(run, "config.yaml").read_text().replace(run, "RUN"))
    assert (settings[0], len(texts)) == (settings[1], 1)


@pytest.mark.parametrize(("steps", "starts", "anneal"), [
    (40, 10, 4), (1000, 100, 100), (5000, 250, 500), (10**6, 10_000, 50_000),
])  # fmt: skip
def test_defaults_of_unknown_environments_follow_the_planned_steps(steps: int, starts: int, anneal: int) -> None:
    for algorithm in ("sac", "td3", "dqn", "iqn"):
        config = merge_layers(algorithm, {"steps": steps}, env="mine:Walk-v0")
        assert (config.learning_starts, config.random_steps) == (starts, starts)
        assert algorithm in ("sac", "td3") or config.algo.exploration.anneal_steps == anneal


@pytest.mark.parametrize("algorithm", ["ddpg", "td3", "sac", "tqc", "crossq"])
def test_suites_of_control_keep_published_settings(algorithm: str) -> None:
    for env in ("Hopper-v5", "dm_control/walker-walk-v0"):
        config = merge_layers(algorithm, {"steps": 10**6}, "cpu", env=env)
        assert config.preset == f"{algorithm}_mujoco+cpu"
        assert (config.algo.normalize_obs, config.algo.reward_scale) == (None, None)
        assert config.learning_starts == (5000 if algorithm == "crossq" else 10_000)
    assert merge_layers(algorithm, env="mine:Walk-v0").algo.normalize_obs is not None


OFFLINE_LEARNERS = {
    name: algo for name in algorithms() if isinstance(algo := algorithm_config(name)(), AlgorithmConfig)
    and algo.needs_data and algo.needs_rewards(collected=False)
}  # fmt: skip
"""Those whose losses read the rewards of a dataset."""


@pytest.mark.parametrize("name", [*OFFLINE_LEARNERS, "qc_fql"])
def test_the_unit_of_rewards_does_not_change_what_is_learned_offline(name: str) -> None:
    """In an environment that no preset knows."""
    algo = make_preset(f"{name}+cpu").algo
    small = {} if name == "decision_transformer" else {"networks.units": (8, 8), "batch_size": 16}
    rates = {part.name: 0.03 for part in fields(algo) if part.name in ("lr", "actor_lr", "critic_lr", "value_lr")}
    algo = algo.merge(small | rates | ({"dropout": 0.0} if name == "decision_transformer" else {}))
    kind, actions = MOVES if "continuous" in algo.action_kinds else CHOICE, []
    for unit in (1.0, 1000.0):
        agent = algo.build(SPECS["vector"], kind, seed=1)
        agent.acts = kind
        rows = batch(agent)
        extras = {key: x * (unit if key == "return" else 1) for key, x in rows.extras.items()}
        rows = replace(rows, reward=unit * rows.reward, extras=extras)
        agent.running_statistics.fit(rows)
        for seed in range(20):
            torch.manual_seed(seed)
            agent.update(rows)
        actions.append(agent.policy.act(shown(envs=64), agent.policy.initial(64), "eval")[0])
    torch.testing.assert_close(*actions, atol=1e-3, rtol=0)


@pytest.mark.parametrize(("updates", "tau"), [(500, 0.05), (5000, 0.02), (10**6, 0.005)])
def test_targets_of_offline_learners_follow_the_planned_updates(updates: int, tau: float) -> None:
    for algorithm in set(OFFLINE_LEARNERS) - {"decision_transformer"}:
        config = merge_layers(algorithm, {"updates": updates}, env="mine:Walk-v0")
        assert (config.updates, config.algo.tau) == (updates, min(0.02, tau) if algorithm == "cql" else tau)
        assert getattr(config.algo, "target_update_interval", 1) == 1


@pytest.mark.parametrize("algorithm", ["bc", *OFFLINE_LEARNERS])
def test_offline_learners_keep_published_settings_where_they_were_chosen(algorithm: str) -> None:
    config = merge_layers(algorithm, env="mine:Walk-v0")
    assert config.preset == algorithm
    if "continuous" in config.algo.action_kinds:
        for env in ("Hopper-v5", "AntMaze_UMaze-v4"):
            published = merge_layers(algorithm, env=env)
            assert published.preset == f"{algorithm}_mujoco"
            changed = {"lr"} if algorithm == "decision_transformer" else set()
            default = algorithm_config(algorithm)()
            assert {name for name, x in published.algo.to_dict().items() if x != default.to_dict()[name]} == changed


@pytest.mark.parametrize(("algorithm", "values"), [
    ("bc", {"lr": 1e-4}),
    ("discrete_bcq", {"lr": 6.25e-5, "tau": 1.0, "target_update_interval": 8000, "threshold": 0.3,
                      "logit_weight": 0.01}),
    ("discrete_cql", {"lr": 1e-4, "tau": 1.0, "target_update_interval": 500, "num_quantiles": 200,
                      "conservative_weight": 10.0,
                      "double": True}),
    ("discrete_crr", {"actor_lr": 1e-4, "critic_lr": 1e-4, "target_update_interval": 500, "num_critics": 1,
                      "conservative_weight": 20.0}),
])  # fmt: skip
def test_offline_atari_has_the_values_of_tianshous_scripts(algorithm: str, values: dict[str, Any]) -> None:
    config = merge_layers(algorithm, env="ALE/Pong-v5")
    common = {"batch_size": 32, "batch_length": 2} | ({} if algorithm == "bc" else {"discount": 0.99})  # n_step = 1
    assert {name: getattr(config.algo, name) for name in values | common} == values | common
    assert (config.preset, config.updates) == (f"{algorithm}_atari", 1_000_000)


# ---------------------------------------------------------------- recorded data choose, too


def recorded(folder: Path, env: str | None) -> Path:
    """The head of a Minari dataset, which says what it was recorded in."""
    about = {"data_format": "hdf5", "total_episodes": 0, "total_steps": 0}
    about |= dict.fromkeys(("observation_space", "action_space"), json.dumps(NUMBERS))
    about |= {} if env is None else {"env_spec": json.dumps({"id": env})}
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "metadata.json").write_text(json.dumps(about))
    with h5py.File(folder / "data" / "main_data.hdf5", "w"):
        return folder


def test_the_environment_of_the_data_chooses(tmp_path: Path) -> None:
    data = {"data.path": str(recorded(tmp_path / "pendulum", "Pendulum-v1"))}
    own, none = {"env.id": "auto"}, {"env.id": "none"}
    assert merge_layers("cql", data=data) == make_preset("cql_pendulum").merge(own | data)
    assert merge_layers("cql", data=data, env="none") == make_preset("cql_pendulum").merge(none | data)
    assert merge_layers("cql", data=data, preset="cql") == make_preset("cql").merge(own | data)
    assert merge_layers("cql", data=data, env="HalfCheetah-v5") == make_preset("cql_mujoco").merge(
        {"env.id": "HalfCheetah-v5"} | data
    )
    assert merge_layers("dreamer_v3", data=data) == make_preset("dreamer_v3").merge(own | data)


@pytest.mark.parametrize(("algorithm", "preset"), [("dqn", "qr_dqn"), ("td3", "td3_bc"), ("sac", "cql")])
def test_a_preset_of_a_subclass_is_another_algorithms(algorithm: str, preset: str) -> None:
    with pytest.raises(ConfigError, match=f"preset '{preset}' is not for {algorithm}. Use `reverie train {preset} "):
        merge_layers(algorithm, preset=preset)


def test_where_it_is_evaluated_comes_before_what_the_data_say(tmp_path: Path) -> None:
    path = recorded(tmp_path / "cheetah", "HalfCheetah-v5")
    data, env = {"data.path": str(path)}, {"env.id": "Pendulum-v1"}
    assert merge_layers("iql", data=data, env="Pendulum-v1") == make_preset("iql_pendulum").merge(env | data)
    (tmp_path / "a.yaml").write_text(f"data: {{path: {path}}}\nalgo.beta: 2.0\n")
    found = merge_layers("iql", files=[tmp_path / "a.yaml"], env="Pendulum-v1")
    assert found == make_preset("iql_pendulum").merge({"data.path": str(path), "algo.beta": 2.0} | env)
    (tmp_path / "b.yaml").write_text("env: HalfCheetah-v5\n")
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    assert merge_layers("iql", files=files, data=data).algo == make_preset("iql_mujoco").merge({"algo.beta": 2.0}).algo


def test_data_that_name_no_environment_get_the_algorithms_own(tmp_path: Path) -> None:
    for path in (recorded(tmp_path / "nobody", None), tmp_path / "nowhere"):
        for name in ("dreamer_v3", "sac"):
            data = {"data.path": str(path)}
            assert merge_layers(name, data=data) == make_preset(name).merge({"env.id": "auto"} | data)
    assert merge_layers("dreamer_v3") == make_preset("cartpole")


def test_flags_and_python_say_the_same_of_data(tmp_path, asked, commanded):
    one, two = (str(recorded(tmp_path / name, "Pendulum-v1")) for name in ("one", "two"))
    for words in (["--data", one], ["--data.path", one], [f"--data={one}", "--experience", "offline"]):
        main(["train", "td3_bc", *words])
    main(["train", "td3_bc", "--data", str(tmp_path / "*"), "--env", "none"])
    api.train("td3_bc", data=one)
    api.train("td3_bc", **{"data.path": two})
    api.train("td3_bc", data={"path": two}, env="HalfCheetah-v5")
    assert [config.algo.networks.units[0] for config in [*commanded, *asked]] == [64] * 6 + [256]


def test_flags_and_python_plan_the_same_updates(tmp_path, asked, commanded):
    data = str(recorded(tmp_path / "walk", "mine:Walk-v0"))
    for text in ("500", "5e2"):
        main(["train", "iql", "--data", data, "--env", "none", "--updates", text])
    api.train("iql", data=data, env="none", updates=500)
    assert [config.algo.tau for config in (*commanded, *asked)] == [0.05] * 3


def test_layers_the_later_wins(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("steps: 1e4\nseed: 1\nalgo:\n  horizon: 9\n")
    (tmp_path / "b.yaml").write_text("seed: 2\nalgo.lam: 0.9\nenv.id: Acrobot-v1\n")
    files = [tmp_path / "a.yaml", tmp_path / "b.yaml"]
    config = merge_layers("dreamer-v3", files=files, size="1m")
    found = (config.steps, config.seed, config.algo.horizon, config.algo.lam, config.env.id, config.algo.rssm.deter)
    assert found == (10_000, 2, 9, 0.9, "Acrobot-v1", SIZES["1m"]["deter"])
    assert merge_layers("dreamer_v3", files=files, env="Pendulum-v1").env.id == "Pendulum-v1"


@pytest.fixture
def sectioned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of the folder ``config``."""
    monkeypatch.chdir(tmp_path)
    Path("config").mkdir()
    Path("config/a.yaml").write_text(
        "defaults: {steps: 500, seed: 1}\natari: {env: ALE/Pong-v5, seed: 2}\ndebug: {steps: 50}\noff:\n"
    )
    Path("config/b.yaml").write_text("debug: {seed: 3, algo.batch_size: 4}\n")


@pytest.mark.usefixtures("sectioned")
def test_sections_are_united_in_the_order_of_their_names(commanded: list[ExperimentConfig]) -> None:
    a, b = "config/a.yaml", "config/b.yaml"
    for words in (
        "defaults atari debug", f"defaults atari debug --config {a} {b}",
        f"debug off atari defaults --config {a} --algo.batch-size 8", "debug defaults --seed 9 --env CartPole-v1",
    ):  # fmt: skip
        main(["train", "dqn", "--configs", *words.split()])
    commanded.append(settings_of("dqn", config=[f"{a}#atari", f"{a}#defaults"]))
    assert [(x.env.id, x.steps, x.seed, x.algo.batch_size) for x in commanded] == [
        ("ALE/Pong-v5", 50, 3, 4), ("ALE/Pong-v5", 50, 3, 4), ("ALE/Pong-v5", 500, 1, 8), ("CartPole-v1", 500, 9, 4),
        ("ALE/Pong-v5", 500, 1, 32),
    ]  # fmt: skip


@pytest.mark.usefixtures("sectioned")
@pytest.mark.parametrize(("words", "message"), [
    ("--configs debig", "no section 'debig' in config/a.yaml, config/b.yaml. Did you mean 'debug'? Available: def"),
    ("--config config/a.yaml#debig", "no section 'debig' in config/a.yaml. Did you"),
    ("--configs debug --config c.yaml", "there is no file c.yaml"),
])  # fmt: skip
def test_sections_that_are_not_there(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "dqn", *words.split()]) == 1
    assert message in capsys.readouterr().err


def test_the_config_of_a_run_is_a_layer(tmp_path: Path) -> None:
    config = ExperimentConfig().merge({**SETTINGS, "steps": 30, "eval_episodes": 0, "seed": 7})
    train_config(config, run=tmp_path / "run")
    found = merge_layers("dreamer_v3", files=[tmp_path / "run" / "config.yaml"])
    assert found == config.merge({"experience": "online"})


def test_the_replay_ratio_of_the_later_layer_holds() -> None:
    config = make_preset("atari")
    above = overlay(config, {"replay_ratio": 0.5})
    assert (config.train_ratio, above.train_ratio, above.replay_ratio) == (32, None, 0.5)
    assert overlay(above, {"train_ratio": 64}).train_ratio == 64
    assert overlay(config, {"steps": 5}).train_ratio == 32
    with pytest.raises(ConfigError, match="Set only one of them"):
        overlay(config, {"replay_ratio": 0.5, "train_ratio": 64})


@pytest.mark.parametrize("text", ["env: Acrobot-v1\nseed: 3\n", "experiment:\n  env: {id: Acrobot-v1}\n  seed: 3\n"])
def test_short_ways_to_write_a_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    config = merge_layers("dreamer_v3", files=[tmp_path / "a.yaml"])
    assert (config.env.id, config.seed) == ("Acrobot-v1", 3)


@pytest.mark.parametrize(("text", "message"), [
    ("steps: 3\nexperiment: {seed: 1}\n", r"a\.yaml: steps next to 'experiment:'"),
    ("stepz: 3\n", r"a\.yaml: unknown option 'stepz'. Did you mean 'steps'"),
    ("steps: [1\n", r"a\.yaml cannot be read as YAML"),
    ("algo:\n  horizon: 3\n  lam: 0.9\n  horizon: 4\n", r"line 4: 'horizon' was set in line 2 already"),
    ("- 1\n- 2\n", r"a\.yaml contains a list: expected a mapping"),
    ("schema: 1\nalgorithm: other\nexperiment: {}\n", r"a\.yaml contains settings of other, schema 1: expected dream"),
])  # fmt: skip
def test_files_that_cannot_be_used(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "a.yaml").write_text(text)
    with pytest.raises(ConfigError, match=message):
        merge_layers("dreamer_v3", files=[tmp_path / "a.yaml"])


@pytest.mark.parametrize(("given", "message"), [
    ({"preset": "atary"}, r"unknown preset 'atary'\. Did you mean 'atari'"),
    ({"size": "13m"}, r"size = '13m': expected one of nano.*Did you mean"),
    ({"files": [Path("mein.yaml")]}, r"there is no file mein\.yaml\. Did you mean 'mine\.yaml'"),
])  # fmt: skip
def test_names_that_are_unknown_get_the_nearest(tmp_path, monkeypatch, given, message):
    monkeypatch.chdir(tmp_path)
    Path("mine.yaml").write_text("seed: 1\n")
    with pytest.raises(ConfigError, match=message):
        merge_layers("dreamer_v3", **given)


# ---------------------------------------------------------------- from Python


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentConfig]:
    """The settings that :func:`api.train` hands on; nothing is trained."""
    seen: list[ExperimentConfig] = []
    monkeypatch.setattr(api, "train_config", lambda config, **_: seen.append(config))
    return seen


@pytest.fixture
def commanded(monkeypatch: pytest.MonkeyPatch) -> list[ExperimentConfig]:
    """The settings that ``reverie train`` hands on; nothing is trained."""
    seen: list[ExperimentConfig] = []

    def stop(config: ExperimentConfig, **more: Any) -> None:
        seen.append(config)
        raise ConfigError("enough")

    monkeypatch.setattr(commands, "train_config", stop)
    return seen


def test_a_ratio_of_none_sets_none(commanded: list[ExperimentConfig], asked: list[ExperimentConfig]) -> None:
    for words in (["--train-ratio", "None"], ["--replay-ratio=None", "--train-ratio", "64"], ["--train-ratio=64"]):
        main(["train", "iql", "--env", "Pendulum-v1", *words])
    for ratios in ({"train_ratio": None}, {"replay_ratio": None, "train_ratio": 64}, {"train_ratio": 64}):
        api.train("iql", env="Pendulum-v1", **ratios)
    for found in (commanded, asked):
        assert [(config.replay_ratio, config.train_ratio) for config in found] == [(1, None), (None, 64), (None, 64)]


def test_an_instance_is_one_environment_whatever_the_preset_says(asked: list[ExperimentConfig]) -> None:
    for env, more in (
        (Count(), {"preset": "cpu"}),
        (Count(), {"preset": "atari", "envs": 1}),
        (Count, {"preset": "cpu"}),
    ):
        api.train("dreamer_v3", env=env, **more)
    assert [(config.env.num, config.env.vectorization) for config in asked] == [(1, "sync"), (1, "sync"), (4, "sync")]
    for num, given in {2: {"envs": 2}, 3: {"env_options": {"num": 3}}}.items():
        with pytest.raises(ConfigError, match=rf"envs = {num}: an environment instance .*Remove envs"):
            api.train("dreamer_v3", env=Count(), **given)


# ---------------------------------------------------------------- what Python may give together

OBJECT = DQNConfig(batch_size=7)
WHOLE = ExperimentConfig(algo=OBJECT, steps=77)


def settings_of(algorithm: Any, **given: Any) -> ExperimentConfig:
    named = {name: given.pop(name, None) for name in ("env", "size", "preset")}
    return resolve_with_data(api.make_request(algorithm, **named, config=given.pop("config", ()), overrides=given))


@pytest.fixture
def files(tmp_path: Path) -> dict[str, str]:
    contents = {"run": "seed: 5", "algo": "algo: {batch_size: 9}", "dotted": "algo.batch_size: 9", "empty": "algo: {}"}
    for name, text in contents.items():
        (tmp_path / f"{name}.yaml").write_text(text, encoding="utf-8")
    return {name: str(tmp_path / f"{name}.yaml") for name in contents}


def test_a_name_takes_every_layer(files: dict[str, str]) -> None:
    both = [files["run"], files["algo"]]
    found = settings_of("dqn", preset="dqn_cartpole", config=both, env="Acrobot-v1", steps=3)
    preset = make_preset("dqn_cartpole")
    assert (found.seed, found.algo.batch_size, found.env.id, found.steps) == (5, 9, "Acrobot-v1", 3)
    assert found.algo.merge({"batch_size": preset.algo.batch_size}) == preset.algo


def test_all_layers_together_make_at_most_two_configurations(
    files: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:  # the merged one, and the checked one with what it leaves open
    check, counts = ExperimentConfig.__post_init__, list[int]()
    monkeypatch.setattr(ExperimentConfig, "__post_init__", lambda config: (counts.append(1), check(config))[1])
    both = [files["run"], files["algo"]]
    settings_of("dreamer_v3", preset="cartpole", config=both, size="1m", env="Acrobot-v1", train_ratio=3)
    assert 1 <= len(counts) <= 2


def test_an_algorithm_of_python_takes_the_other_settings_of_presets_and_files(files: dict[str, str]) -> None:
    found = settings_of(OBJECT, preset="dqn_cartpole", config=[files["run"], files["empty"]], env="Acrobot-v1", steps=3)
    assert (found.algo, found.seed, found.env.id, found.steps) == (OBJECT, 5, "Acrobot-v1", 3)
    assert found.replay.capacity == make_preset("dqn_cartpole").replay.capacity
    for name in ("algo", "dotted"):
        with pytest.raises(ConfigError, match=rf"{name}.yaml sets options of the algorithm"):
            settings_of(OBJECT, config=files[name])


def test_a_whole_experiment_of_python_takes_no_lower_layers(files: dict[str, str]) -> None:
    found = settings_of(WHOLE, env="Acrobot-v1", seed=3)
    assert found == WHOLE.merge({"env.id": "Acrobot-v1", "seed": 3, "experience": "online"})
    for given in ({"preset": "dqn_cartpole"}, {"preset": "nonsense"}, {"config": files["run"]}, {"config": "no.yaml"}):
        with pytest.raises(ConfigError, match="an ExperimentConfig was passed"):
            settings_of(WHOLE, **given)


def test_a_size_is_of_any_algorithm_that_has_some() -> None:
    own = DreamerV3Config(horizon=7)
    for given in (own, ExperimentConfig(algo=own)):
        assert settings_of(given, env="CartPole-v1", size="nano").algo == with_size("nano", own)
    assert settings_of("dreamer_v3", preset="atari", size="nano").algo == with_size("nano", make_preset("atari").algo)
    with pytest.raises(ConfigError, match="has no named sizes"):
        settings_of(WHOLE, size="nano")


@pytest.mark.parametrize(("words", "given", "share"), [
    ("--data a.hdf5", {"data": "a.hdf5"}, 1.0),
    ("--data a.hdf5 --config a.yaml", {"data": "a.hdf5", "config": "a.yaml"}, 0.3),
    ("--data a.hdf5 --experience mixed", {"data": {"path": "a.hdf5"}, "experience": Mixed()}, 0.5),
    ("", {}, 0.0),
])  # fmt: skip
def test_what_a_run_learns_from(tmp_path, monkeypatch, commanded, words, given, share):
    monkeypatch.chdir(tmp_path)
    Path("a.yaml").write_text("experience: mixed(0.3)")
    assert settings_of("iql", env="Pendulum-v1", **given).offline_fraction == share
    main(["train", "iql", "--env", "Pendulum-v1", *words.split()])
    assert [config.offline_fraction for config in commanded] == [share]


def test_what_needs_both_kinds_of_rows_gets_both() -> None:
    assert settings_of("gail", env="Pendulum-v1", data="a.hdf5").offline_fraction == 0.5


@pytest.mark.parametrize(("words", "given", "said"), [
    ("--data a --steps 7", {"data": "a", "steps": 7}, "steps has no effect on a run on a dataset alone"),
    ("--env Acrobot-v1 --updates 7", {"env": "A-v0", "updates": 7}, "updates has no effect on a run that collects"),
])  # fmt: skip
def test_a_length_in_the_other_unit_is_refused(capsys, words, given, said):
    with pytest.raises(ConfigError, match=f"^{said}"):
        settings_of("td3", **given)
    assert main(["train", "td3", *words.split()]) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", [name for name, preset in TABLE.items() if preset.algorithm == "ppo"])
def test_rollouts_of_ppo_fit_any_number_of_environments(name):
    preset = make_preset(name)
    env, algo = preset.env.id, preset.algo
    for num in (1, 2, 3, 5, 7, 16, 100):
        fitted = resolve_with_data(Request(algorithm="ppo", env=env, preset=name, overrides={"env.num": num})).algo
        rows, before = num * fitted.rollout, preset.env.num * algo.rollout
        assert rows % fitted.batch_size == 0
        assert rows // fitted.batch_size == before // algo.batch_size or num > preset.env.num
        assert 0.5 * algo.batch_size < fitted.batch_size < 1.2 * algo.batch_size


def test_a_rollout_that_is_named_stays():
    overrides = {"envs": 2, "algo.rollout": 64, "algo.batch_size": 32}
    algo = resolve_with_data(Request(algorithm="ppo", env="CartPole-v1", overrides=overrides)).algo
    assert (algo.rollout, algo.batch_size) == (64, 32)
    instance = resolve_with_data(Request(algorithm="ppo", env=gymnasium.make("CartPole-v1"))).algo
    assert (instance.rollout, instance.batch_size) == (256, 256)


OWN_ENCODER = {"sac_ae", "tdmpc2", "bmpc", "lewm"}
"""Learners from images, whose papers chose an encoder."""


def picture_encoders(preset: str) -> list[Any]:
    """The encoders of images with continuous actions; none if the learner has no NetworkConfig."""
    spec = {"eye": ObsPart(kind="image", shape=(84, 84, 3), dtype="uint8")}
    algo = make_preset(preset).algo.for_specs(spec, ActionSpec(parts={"action": ActionPart(kind="continuous", size=2)}))
    return [x.encoder for x in vars(algo).values() if isinstance(x, NetworkConfig)]


def test_pictures_have_a_cheap_encoder_on_a_cpu_where_no_paper_chose_one() -> None:
    learners = {name for name in {*TABLE} & {*algorithms()} if "continuous" in algorithm_config(name).action_kinds}
    on_gpu = {name: encoders for name in learners - OWN_ENCODER if Drq() in (encoders := picture_encoders(name))}
    assert {"sac", "td3", "iql", "crr"} < {*on_gpu}
    assert {name: picture_encoders(f"{name}+cpu") for name in on_gpu} == {
        name: [BySize()] * len(encoders) for name, encoders in on_gpu.items()
    }
    assert picture_encoders("drq+cpu") == [Drq(pad=4)]
    assert picture_encoders("sac_mujoco+cpu") == [Drq()]
