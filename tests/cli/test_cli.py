"""The command line: what people type, what they read, and what happens when they mistype."""

import errno
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

import reverie
from reverie.algos.dreamer_v3 import SIZES, LossScales
from reverie.algos.table import algorithm_config, algorithms
from reverie.cli.main import COMMANDS, main
from reverie.cli.parsing import iter_options, parse
from reverie.cli.train_options import CommonOptions
from reverie.envs.config import EnvConfig
from reverie.experiment.settings import Request, merge_layers
from tiny_configs import SETTINGS

Captured = pytest.CaptureFixture[str]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty working folder, so that whatever is created is seen."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of settings that make a run short."""
    path = tmp_path_factory.mktemp("settings") / "tiny.yaml"
    path.write_text(yaml.safe_dump(SETTINGS))
    return path


@pytest.mark.parametrize(("args", "question"), [
    (["sac"], "reverie train sac --env Pendulum-v1` or `reverie train sac --env HalfCheetah-v5"),
    (["dqn", "--preset", "dqn"], "reverie train dqn --env CartPole-v1` or `reverie train dqn --env ALE/Pong-v5"),
    (["iql"], "reverie train iql --data PATH"),
])  # fmt: skip
def test_a_run_without_an_environment_asks_for_it(args: list[str], question: str, capsys: Captured) -> None:
    assert main(["train", *args, "--steps", "9"]) == 1
    said = capsys.readouterr().err
    assert (question in said, said.count("\n")) == (True, 1)


def test_files_presets_and_runs_name_the_environment(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "here.yaml").write_text("env: CartPole-v1\n")
    shutil.copytree(trained, tmp_path / "run")
    for words in (["--config", "here.yaml"], ["--preset", "cartpole"], ["--run", "run"]):
        assert main(["train", "dreamer_v3", *words, "--replay.capacity", "30"]) == 1
        assert "replay.capacity = 30" in capsys.readouterr().err


def saved(run: Path) -> dict[str, Any]:
    return yaml.safe_load((run / "config.yaml").read_text())["experiment"]


# ---------------------------------------------------------------- check-env


def test_check_env_of_a_sound_environment_ends_with_a_command(capsys: Captured) -> None:
    words = [
        "CartPole-v1",
        "--algorithm",
        "dqn",
        "--env.max-episode-steps",
        "50",
        "--steps",
        "300",
        "--json",
        "found.json",
    ]
    assert main(["check-env", *words]) == 0
    text = capsys.readouterr().out
    for said in ("observation          vector (4,), values -", ", sizes 0.", "max episode steps    50", "qr_dqn",
                 "no faults, no warnings",
                 "reverie train dqn --env CartPole-v1 --env.max-episode-steps 50 --steps 50000\n"):  # fmt: skip
        assert said in text
    found = json.loads(Path("found.json").read_text())
    facts = found["measurements"]
    assert (found["ok"], found["findings"], facts["max_episode_steps"], facts["plays_in_worker"]) == (
        True,
        [],
        50,
        True,
    )
    assert "dqn" in found["algorithms"]["online"]


@pytest.mark.usefixtures("odd")
def test_check_env_of_a_faulty_environment_ends_with_1(capsys: Captured) -> None:
    assert main(["check-env", "odd_env_module:Odd-v0", "--env.kwargs", "{nan_at: 1, dtype: float64}"]) == 1
    text = capsys.readouterr().out
    assert "fault: environment 0 ('Odd'), step 1 of episode 1: the reward is nan" in text
    assert "warning: obs of reset() is of float64" in text
    assert "Start with" not in text


# ---------------------------------------------------------------- help


def test_each_command_has_a_help_and_is_in_the_overview(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert (main([]), main(["--help"])) == (2, 0)
    overview = capsys.readouterr().out
    assert max(map(len, overview.splitlines())) <= 80
    assert "  reverie view runs/first\n" in overview
    for command in COMMANDS:
        assert f"  {command} " in overview
        assert main([command, "--help"]) == 0
        text = capsys.readouterr().out
        assert f"usage: reverie {command}" in text
        assert max(map(len, text.splitlines())) <= 100, command


@pytest.mark.parametrize("name", ["", "sac", "iql", "dreamer_v3", "ppo"])
def test_help_of_train_is_one_screen_of_settings_that_the_algorithm_has(name, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["train", *[name][: bool(name)], "--help"]) == 0
    text = capsys.readouterr().out
    lines = text.splitlines()
    assert (len(lines) <= 48, max(map(len, lines)) <= 80) == (True, True)
    assert name or all(known in text for known in algorithms())
    shown = {*re.findall(r"^  --([\w.-]+)", text, re.MULTILINE)}
    config = merge_layers(Request(algorithm=name or "dreamer_v3"))
    flags = {option.flag for option in iter_options(config)}
    rates = {flag for flag in flags if re.fullmatch(r"algo\.(optim\.)?([a-z]+-)?lr", flag)}
    assert {"env", "seed", "run", "algo.batch-size", "wandb", "schedule.eval-every", *rates} <= shown
    assert shown <= flags | {option.flag for option in iter_options(CommonOptions())}
    assert ("updates" in shown) != ("steps" in shown)
    assert ({"replay-ratio", "learning-starts", "random-steps", "data"} & shown == set()) == config.algo.on_policy


def test_help_of_train_has_the_values_of_the_environment_and_help_all_every_option(capsys: Captured) -> None:
    assert main(["train", "sac", "--env", "Pendulum-v1", "--help"]) == 0
    values = dict(re.findall(r"^  --(\S+) +(\S+)", capsys.readouterr().out, re.MULTILINE))
    assert [values[name] for name in ("steps", "algo.actor-lr", "random-steps")] == ["15000", "0.001", "1000"]
    assert main(["train", "dreamer_v3", "--env", "ALE/Pong-v5", "--device", "cpu", "--help-all"]) == 0
    text = capsys.readouterr().out
    flags = re.findall(r"(--[\w.-]+)", text)
    assert flags.index("--steps") < flags.index("--env.resize") < flags.index("--algo.horizon")
    assert {"--algo.rssm.deter", "--replay.capacity", "--schedule.log-every", "--device", "--seed"} <= set(flags)
    shown = re.sub(r"[\s│]+", " ", text)  # the defaults are those of the environment's preset on this device
    assert "(default: atari+cpu)" in shown
    assert "(default: 40000)" in shown


def test_light_commands_and_unknown_names_do_not_import_torch(trained: Path) -> None:
    light = [["list"], ["info", str(trained)], ["compare", str(trained)]]
    light += [[name, "--help"] for name in ("eval", "dream", "bench")]
    wrong = [["train", "sca"], ["train", "sac", "--env", "Pendulmu-v1"], ["train", "dqn", "--env", "ALE/Pnog-v5"]]
    code = "import sys\nfrom reverie.cli import main\nmain(['--help'])\nassert 'numpy' not in sys.modules\n"
    code += f"for args in {light + wrong}: main(args)\nsys.exit('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert re.findall("Did you mean '([^']+)'", done.stderr) == ["sac", "Pendulum-v1", "ALE/Pong-v5"]


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_to_a_full_disk_is_one_line(unbuffered: str) -> None:
    """Python writes buffered output at its end, and then with a traceback."""
    command, env = [sys.executable, "-m", "reverie", "list"], os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, check=False, env=env, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert done.stderr.startswith("reverie: cannot write the output: No space left on device. Free space")


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_streams_are_no_error(closed: str) -> None:
    command = f"exec {sys.executable} -m reverie list sizes {closed}"
    done = subprocess.run(["/bin/sh", "-c", command], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr, bool(done.stdout)) == (0, "", ">" not in closed.replace("2>", ""))


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (MemoryError(), "reverie: not enough memory. The run stopped.\n"),
        (MemoryError("9 GiB"), "reverie: not enough memory (9 GiB). The run stopped.\n"),
        (OSError(errno.ENAMETOOLONG, "File name too long", "x" * 4500), "xxx': File name too long. The run stopped.\n"),
        (OSError(errno.EACCES, "Permission denied", "a/b"), "reverie: a/b: Permission denied. The run stopped.\n"),
        (ConnectionResetError("by the peer"), "reverie: ConnectionResetError: by the peer. The run stopped.\n"),
    ],
)  # fmt: skip
def test_errors_of_the_system_are_one_line(error, told, monkeypatch, capsys) -> None:
    error.add_note("The run stopped")
    monkeypatch.setattr(sys.modules[main.__module__], "_run_main", lambda args: (_ for _ in ()).throw(error))
    assert main(["list"]) == 1
    said = capsys.readouterr().err
    assert said.endswith(told)
    assert len(said) < 200


def test_a_folder_whose_name_is_not_utf_8_gets_no_run(elsewhere: Path, capsys: Captured) -> None:
    """Files with its name could be written, but not read."""
    folder = os.fsdecode(os.fsencode(elsewhere) + b"/caf\xe9")
    assert main(["train", "dqn", "--env", "CartPole-v1", "--steps", "9", "--run", folder]) == 1
    assert "expected a path in UTF-8" in capsys.readouterr().err
    assert not os.path.exists(folder)


def test_ctrl_c_while_modules_are_imported_is_one_line(elsewhere: Path) -> None:
    (elsewhere / "difflib.py").write_text("raise KeyboardInterrupt")  # of which the first module of reverie needs it
    done = subprocess.run([sys.executable, "-m", "reverie", "list"], check=False, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "reverie: interrupted\n")


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(("args", "code", "message"), [
    (["trian"], 2, "unknown command 'trian'. Did you mean 'train'"),
    (["train", "dreamer_v3", "--stepz", "3"], 2, "--steps"),
    (["train", "sac", "--learning-rate", "1"], 2, "unknown option --learning-rate. Did you mean --algo.actor-lr or"),
    (["train", "sac", "--gamma", "1"], 2, "Did you mean --algo.discount?"),
    (["train", "sac", "--total-timesteps", "1e5"], 2, "Did you mean --steps?"),
    (["train", "ppo", "--timesteps", "1e5"], 2, "Did you mean --steps?"),
    (["train", "ppo", "--env", "CartPole-v1", "--lr", "1"], 2, "unknown option --lr. Did you mean --algo.lr?"),
    (["train", "dqn", "--algo.gama", "1"], 2, "unknown option --algo.gama. Did you mean --algo.discount?"),
    (["train", "dqn", "--algo.networks.units", "(6, 4)"], 2, "separated by spaces, as in --algo.networks.units 6 4."),
    (["train", "dqn", "--env.resize", "6x4"], 2, "--env.resize = 6x4: expected INT INT|none, separated by spaces."),
    (["train", "ppo", "--env", "CartPole-v1", "--clip-range", "1"], 2, "Did you mean --algo.clip-range"),
    (["train", "ppo", "--vf-coef", "1"], 2, "Did you mean --algo.value-coef?"),
    (["train", "ppo", "--verbose", "1"], 2, "Write --console."),
    (["train", "ppo", "--env", "CartPole-v1", "--envs", "0"], 2, "env.num = 0: expected at least 1"),
    (["train", "--algo", "ppo", "--env", "CartPole-v1"], 2, "an algorithm comes first: reverie train ppo"),
    (["train", "--env", "CartPole-v1", "--algorithm", "ppo"], 2, "an algorithm comes first: reverie train ppo"),
    (["train", "sac", "-env", "Pendulum-v1"], 2, "unknown option -env. Did you mean --env?"),
    (["train", "sac", "Pendulum-v1"], 2, "pass --env Pendulum-v1"),
    (["train", "dreamer_v3", "--algo.horzon", "3"], 2, "--algo.horizon"),
    (["train", "dreamer_v3", "--steps", "many"], 2, "reverie: --steps = many: expected INT."),
    (["train", "dreamer_v3", "--steps", "1.5"], 2, "--steps = 1.5: expected INT."),
    (["train", "dreamer_v3", "--algo.horizon", "-3"], 2, "reverie: --algo.horizon = -3: expected at least 1"),
    (["train", "sac", "--algo.networks.body", "hypersphere"], 2, "--algo.networks.body = hypersphere: sac does"),
    (["train", "dreamer_v3", "--env.clip-reward", "sing"], 2, "'none', 'sign'"),
    (["train", "dreamer_v3", "--env.kwargs", "[1, 2"], 2, "is not YAML"),
    (["train", "dreamer_v3", "--eval-env.kwargs", "{a"], 2, "--eval-env.kwargs {a: expected YAML in one argument"),
    (["train", "dreamer_v3", "--eval-env", "{kwrgs: 1}"], 2, "Did you mean 'eval_env.kwargs'"),
    (["train", "dreamer_v3", "--eval-env.num", "3"], 2, "--eval-env.num = 3: set eval_envs"),
    (["train", "--steps", "5", "dreamer_v2"], 2, "no algorithm given"),
    (["train", "droq", "--env", "Pendulum-v1"], 1, "it is a preset. Use `reverie train sac --preset droq`"),
    (["train", "dreamer_v33"], 1, "unknown algorithm 'dreamer_v33'. Did you mean 'dreamer_v3'"),
    (["train", "dreamer_v3", "--env", "nowhere:Thing-v0"], 1, "'nowhere' cannot be imported"),
    (["train", "dreamer_v3", "--config", "no.yaml"], 1, "there is no file no.yaml"),
    (["train", "dreamer_v3", "--env", "CartPole-v1", "--replay.capacity", "30"], 1, "replay.capacity"),
    (["train", "dreamer_v3", "--replay-ratio", "1", "--train-ratio", "32"], 2, "Set only one of them"),
    (["train", "dreamer_v3", "--schedule.log-every", "5x"], 2, "5x"),
    (["eval"], 2, "RUN"),
    (["eval", "nothing"], 1, "nothing: there is no such folder"),
    (["eval", "nothing", "--episode", "3"], 2, "--episodes"),
    (["info", "."], 1, "it has no config.yaml"),
    (["train", "--resume", "nowhere"], 1, "no run in nowhere: there is no such folder"),
    (["help", "algo.lrr"], 1, "unknown topic 'algo.lrr'. Expected a command"),
    (["check-env"], 2, "no environment given"),
    (["check-env", "--steps", "3"], 2, "no environment given"),
    (["check-env", "CartPol-v1"], 1, "unknown environment 'CartPol-v1'. Did you mean 'CartPole-v1'"),
    (["check-env", "CartPole-v1", "--algorithm", "sac", "--no-worker"], 1, "sac is for continuous or mixed"),
    (["check-env", "CartPole-v1", "--env.pixel", "only"], 2, "Did you mean --env.pixels"),
])  # fmt: skip
def test_mistakes_are_explained_and_create_nothing(args, code, message, capsys, elsewhere):
    assert main(args) == code
    said = capsys.readouterr().err
    assert message in said
    assert (said.count("\n"), list(elsewhere.iterdir())) == (1, [])


@pytest.mark.usefixtures("odd")
@pytest.mark.parametrize("again", [False, True])  # the second time the module is there already
def test_a_module_that_registers_other_ids(again: bool, capsys: Captured) -> None:
    assert main(["train", "dreamer_v3", "--env", "odd_env_module:Od-v0", "--run", "x"]) == 1
    error = capsys.readouterr().err
    told = "unknown environment 'odd_env_module:Od-v0': importing 'odd_env_module' does not register it"
    assert [piece in error for piece in (told, "Did you mean 'Odd-v0'", "pip install")] == [True, True, False]
    assert not Path("x").exists()


# ---------------------------------------------------------------- training


def test_train_prints_progress_result_and_files(elsewhere: Path, tiny: Path, capsys: Captured) -> None:
    args = ["train", "dreamer_v3", "--env", "Acrobot-v1", "--config", str(tiny), "--run", "runs/x", "--console"]
    assert main([*args, "--steps", "1.2e2", "--env.max_episode_steps", "40", "--no-tensorboard"]) == 0
    text = capsys.readouterr().out
    for piece in ("dreamer_v3 on Acrobot-v1", "steps/s", "left", "finished at env step 12", "mean return"):
        assert piece in text
    named = re.findall(r"^  \w+: +(\S+)$", text, re.MULTILINE)
    assert [(elsewhere / path).exists() for path in named] == [True] * 5
    settings = saved(elsewhere / "runs" / "x")
    assert (settings["steps"], settings["env"]["max_episode_steps"]) == (120, 40)


def test_weights_of_observations_are_a_number_or_yaml() -> None:
    weights = '{camera: 5e-1, "joints/.*": 10}'
    for given, meant in {"2e-1": 0.2, weights: {"camera": 0.5, "joints/.*": 10.0}}.items():
        (scales,) = parse(["--reconstruction", given], "train", LossScales())
        assert scales.reconstruction == meant


def test_arguments_of_environments_are_yaml_with_numbers_as_in_other_flags() -> None:
    given = "{gain: 1e3, small: -.5E-2, port: 10, version: 1.0.2, name: 'e5', hex: 1ea, text: '1e3', plus: 1e+2}"
    (env,) = parse(["--kwargs", given], "train", EnvConfig())
    assert env.kwargs == {
        "gain": 1000.0, "small": -0.005, "port": 10, "version": "1.0.2", "name": "e5", "hex": "1ea", "text": "1e3",
        "plus": 100.0,
    }  # fmt: skip


def test_flags_win_over_files_and_dashes_are_underscores(elsewhere: Path, tiny: Path) -> None:
    args = ["train", "dreamer-v3", "--config", str(tiny), "--run=x", "--env=CartPole-v1", "--envs", "3"]
    flags = ["--algo.batch_size", "3", "--replay_ratio", "0.05", "--eval-episodes=0", "--steps", "40", "--seed=9"]
    assert main([*args, *flags, "--env.kwargs", "{sutton_barto_reward: true}"]) == 0
    settings = saved(elsewhere / "x")
    algo, env = settings["algo"], settings["env"]
    assert (settings["seed"], settings["replay_ratio"], algo["batch_size"], algo["batch_length"]) == (9, 0.05, 3, 8)
    assert (env["num"], env["kwargs"]) == (3, {"sutton_barto_reward": True})


def test_flags_and_arguments_of_python_make_the_same_settings(elsewhere: Path) -> None:
    """Those that follow others too: rollouts are sized by the number of environments."""
    given: dict[str, Any] = {"envs": 2, "steps": 512, "eval_episodes": 0, "seed": 3}
    flags = [text for name, value in given.items() for text in (f"--{name}", str(value))]
    assert main(["train", "ppo", "--env", "CartPole-v1", "--run", "a", *flags]) == 0
    reverie.train("ppo", "CartPole-v1", run="b", **given)
    assert saved(elsewhere / "a") == saved(elsewhere / "b")


def test_a_new_folder_is_named_after_what_runs_there(elsewhere: Path, tiny: Path) -> None:
    args = ["train", "--config", str(tiny), "--steps", "21", "--eval-episodes", "0", "--size", "nano"]
    assert main([*args, "--env", "CartPole-v1"]) == 0
    assert main([*args, "--env", "CartPole-v1"]) == 0
    names = sorted(path.name for path in (elsewhere / "runs").iterdir())
    assert len(names) == 2
    assert all(re.fullmatch(r"CartPole-v1-dreamer_v3-\d{8}-\d{6}(-2)?", name) for name in names)
    assert saved(elsewhere / "runs" / names[0])["algo"]["rssm"]["deter"] == SIZES["nano"]["deter"]


def test_a_run_goes_on_with_its_own_settings(tiny: Path, tmp_path: Path, capsys: Captured) -> None:
    assert main(["train", "dreamer_v3", "--env", "CartPole-v1", "--config", str(tiny), "--run", "run"]) == 0
    before = saved(tmp_path / "run")
    assert main(["train", "--resume", "run", "--steps", "160"]) == 0
    out = capsys.readouterr().out
    assert re.search(r"continuing .*run from env step 12\d\n", out)
    assert re.findall(r"^\S+: .* -> .*$", out, re.MULTILINE) == ["steps: 120 -> 160"]
    assert saved(tmp_path / "run") == {**before, "steps": 160}


@pytest.mark.parametrize(("args", "message"), [
    (["sac", "--resume", "run"], "run is a run of dreamer_v3, not of sac"),
    (["--resume", "run", "--env", "Acrobot-v1"], "a run with environment 'CartPole-v1', not 'Acrobot-v1'"),
])  # fmt: skip
def test_what_cannot_be_resumed(trained: Path, tmp_path: Path, capsys: Captured, args: list[str], message: str) -> None:
    shutil.copytree(trained, tmp_path / "run")
    assert main(["train", *args]) == 1
    assert message in capsys.readouterr().err


ODD = """
import os, signal
import gymnasium, numpy as np

class Odd(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, kill_at=0, nan_at=0, with_signal="SIGINT", kills=1, dtype="float32"):
        self.total, self.kill_at, self.nan_at, self.kills, self.seen = 0, kill_at, nan_at, kills, np.zeros(2, dtype)
        self.signal = getattr(signal, with_signal)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return self.seen, {}

    def step(self, action):
        self.total += 1
        for _ in range(self.kills if self.total == self.kill_at else 0):
            os.kill(os.getpid(), self.signal)
        reward = float("nan") if self.total == self.nan_at else 1.0
        return self.seen, reward, False, self.total % 20 == 0, {}

gymnasium.register("Odd-v0", entry_point=Odd)
"""


@pytest.fixture
def odd(elsewhere: Path, tiny: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What trains in an environment that misbehaves on demand; processes find it, too."""
    (elsewhere / "odd_env_module.py").write_text(ODD)
    monkeypatch.syspath_prepend(str(elsewhere))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    return ["train", "dreamer_v3", "--env", "odd_env_module:Odd-v0", "--config", str(tiny), "--run", "x", "--envs", "1"]


@pytest.fixture
def heard() -> Iterator[None]:
    """Hangups are told, also where these tests run under ``nohup``."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("heard")
@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGHUP", 129)])
def test_an_interrupted_run_is_saved_and_goes_on(name, code, odd, capfd):
    """The step is counted in which the environment is asked for its result, after the updates."""
    assert main([*odd, "--env.kwargs", f"{{kill_at: 30, with_signal: {name}}}"]) == code
    captured = capfd.readouterr()
    for said in ("interrupted at env step 31", "curve.png", "Continue with: reverie train --resume x\n"):
        assert said in captured.out
    assert "saved" in captured.err
    assert [path.name for path in Path("x/checkpoints").iterdir()] == ["step-000000031"]
    assert not Path("x/eval.json").exists()
    assert main(odd) == 0
    assert "continuing x from env step 31" in capfd.readouterr().out


@pytest.mark.usefixtures("heard")
def test_a_second_signal_ends_a_run_at_once_with_its_number(odd: list[str]) -> None:
    assert main([*odd, "--env.kwargs", "{kill_at: 30, with_signal: SIGTERM, kills: 2}"]) == 143
    assert not list(Path("x/checkpoints").glob("*"))


@pytest.mark.usefixtures("heard")
def test_a_closed_terminal_ends_a_run_kindly(odd: list[str]) -> None:
    """The system tells the process, and all that it writes from then on fails: it saves all the same."""
    command = [sys.executable, "-m", "reverie", *odd, "--steps", "100000000", "--schedule.save-every", "1h"]
    pid, terminal = pty.fork()
    if pid == 0:
        os.execv(command[0], [*command, "--schedule.log-every", "1"])
    said, end, metrics = b"", time.monotonic() + 60, Path("x/metrics.jsonl")
    while not (b"updates" in said and metrics.exists() and metrics.stat().st_size) and time.monotonic() < end:
        if select.select([terminal], [], [], 0.1)[0]:
            said += os.read(terminal, 1 << 16)
    os.close(terminal)
    killer = threading.Timer(60, os.kill, (pid, signal.SIGKILL))  # or it would train for ever
    killer.start()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    killer.cancel()
    assert code == 129, said.decode(errors="replace")[-2000:]
    assert list(Path("x/checkpoints").iterdir())


def test_nobody_reads_what_a_run_says(odd: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """``reverie train ... | head -1`` trains to the end."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w", buffering=1) as closed:
        monkeypatch.setattr(sys, "stdout", closed)
        assert main(odd) == 0
    assert Path("x/eval.json").exists()


# ---------------------------------------------------------------- looking


def test_eval(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(trained, tmp_path / "run")

    def found() -> dict[str, Any]:
        return json.loads((tmp_path / "run" / "eval.json").read_text())

    assert main(["eval", "run", "--episodes", "3", "--no-deterministic", "--video"]) == 0
    assert re.search("mean return.* over 3 episodes", capsys.readouterr().out)
    first = found()
    assert (first["deterministic"], first["checkpoint"][:5], "max_episode_steps" in first) == (False, "step-", False)
    (film,) = (tmp_path / "run" / "videos").glob("eval-*.mp4")
    assert film.stat().st_size > 1000
    assert main(["eval", "run", "--episodes", "3", "--no-deterministic"]) == 0
    assert found() == first  # with the same seed
    assert main(["eval", "run", "--episodes", "2", "--max-episode-steps", "3"]) == 0
    assert (found()["lengths"], found()["max_episode_steps"]) == ([3, 3], 3)
    for flag, said in {
        "--max-episode-steps": " max_episode_steps = 0: expected at least 1",
        "--episodes": "episodes = 0",
    }.items():
        assert main(["eval", "run", flag, "0"]) == 1
        assert said in capsys.readouterr().err


def test_eval_and_record_in_another_environment(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(trained, tmp_path / "run")
    other = [
        "--env.kwargs",
        "{sutton_barto_reward: true}",
        "--env.max-episode-steps=3",
    ]  # CartPole pays -1 for a fall alone
    for words in (["--env", "phys2d/CartPole-v9"], ["--env.kwrgs", "1"], ["--env", "Acrobot-v1"]):
        assert main(["eval", "run", *words]) == 1
    said = capsys.readouterr().err
    for line in (
        "unknown environment 'phys2d/CartPole-v9'",
        "Did you mean 'env.kwargs'",
        "(4,) in the run, but (6,) in",
    ):
        assert line in said
    assert main(["eval", *other, "run", "--episodes", "2"]) == 0
    assert "CartPole-v1 {'sutton_barto_reward': True}, step-" in capsys.readouterr().out
    found = json.loads((tmp_path / "run" / "eval.json").read_text())
    assert (found["score"]["mean"], found["lengths"]) == (0.0, [3, 3])
    assert main(["info", "run"]) == 0
    assert "CartPole-v1 {'sutton_barto_reward': True})" in capsys.readouterr().out
    assert (
        main(
            ["data", "record", "run", "rows", "--env", "CartPole-v0", "--env.max-episode-steps", "3", "--episodes", "1"]
        )
        == 0
    )
    assert main(["data", "info", "rows"]) == 0
    assert re.search("environment +CartPole-v0", shown := capsys.readouterr().out)
    assert re.search("number +1 with 3 steps", shown)


def test_evaluations_of_training_in_another_environment(elsewhere: Path, tiny: Path) -> None:
    args = ["train", "dreamer_v3", "--env", "CartPole-v1", "--config", str(tiny), "--eval-env.max-episode-steps", "4"]
    assert main([*args, "--run", "x", "--eval-env", "{kwargs: {sutton_barto_reward: true}}"]) == 0
    assert json.loads((elsewhere / "x" / "eval.json").read_text())["score"]["mean"] == 0.0
    assert main(["eval", "x", "--episodes", "1", "--max-episode-steps", "6"]) == 0
    assert json.loads((elsewhere / "x" / "eval.json").read_text())["lengths"] == [6]
    assert main(["train", "--resume", "x", "--eval-env", "none", "--steps", "200"]) == 0
    assert json.loads((elsewhere / "x" / "eval.json").read_text())["score"]["mean"] > 4


def test_dream(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    shutil.copytree(trained, tmp_path / "run")
    assert main(["dream", "run", "--context", "3", "--horizon", "6", "--episodes", "2"]) == 0
    text = capsys.readouterr().out
    assert re.search(r"^step +1 +2 +4 ", text, re.MULTILINE)
    assert re.search(r"^observation +\S+ \(\S+\)", text, re.MULTILINE)
    assert json.loads((tmp_path / "run" / "dream" / "dream.json").read_text())["context"] == 3
    assert (tmp_path / "run" / "dream" / "traces.png").exists()
    assert main(["dream", "run", "--context", "3", "--horizon", "400", "--episodes", "60"]) == 0  # of no more than 50
    assert re.search(r"\d dreams? of 60 \(the others were shorter, or there were no more\)", capsys.readouterr().out)
    assert main(["dream", "run", "--context", "0"]) == 1


def test_info(trained: Path, capsys: Captured) -> None:
    assert main(["info", str(trained)]) == 0
    text = capsys.readouterr().out
    for piece in ("dreamer_v3", "CartPole-v1 x 2", "of 200 env steps", "step-0000002", "curve.png"):
        assert piece in text


def test_info_counts_by_the_checkpoint_if_the_log_is_damaged(trained: Path, tmp_path: Path, capsys: Captured) -> None:
    def counters(run: Path) -> list[str]:
        assert main(["info", str(run)]) == 0
        return re.findall(r"^(?:progress|updates|episodes) .*", capsys.readouterr().out, re.MULTILINE)

    copy = shutil.copytree(trained, tmp_path / "copy")
    whole = counters(copy)
    for damaged in (b"{" * 100, b""):
        (copy / "metrics.jsonl").write_bytes(damaged)
        assert counters(copy) == whole
    assert len(whole) == 3


# ---------------------------------------------------------------- reading ahead


def test_flags_that_are_right_are_not_hinted_at_for_an_unknown_one(capsys: Captured) -> None:
    right = ["--no-tensorboard", "--no-console", "--algo.no-graph", "--steps", "5"]
    assert main(["train", "sac", "--env", "Pendulum-v1", "--algo.exploration", "0.1", *right]) == 2
    said = capsys.readouterr().err
    assert "--algo.exploration" in said
    assert not any(f"Did you mean {flag}" in said for flag in right)


@pytest.mark.parametrize(("topic", "said"), [
    ("dqn", "Mnih et al."),
    ("algo.adam-eps", "--algo.adam-eps, default 1e-08 of dqn, c51"),
    ("--replay.capacity", "default 1000000\n  Total capacity"),
    ("dqn_atari", "reverie train dqn --preset dqn_atari"),
    ("eval", "usage: reverie eval"),
    ("help", "usage: reverie help TOPIC"),
])  # fmt: skip
def test_help_explains_a_topic(topic: str, said: str, capsys: Captured) -> None:
    assert main(["help", topic]) == 0
    assert said in capsys.readouterr().out


def test_each_setting_of_an_algorithm_is_described() -> None:
    """A default that has the name of no setting, such as a former one, would have no effect and no description."""
    for name in algorithms():
        config = algorithm_config(name)()
        assert [option.flag for option in iter_options(config) if not option.description] == [], name


TYPED = {
    "tr": {"train"},
    "train dreamer_v": {"dreamer_v1", "dreamer_v2", "dreamer_v3"},
    "train ppo --algo.normalize-": {"--algo.normalize-advantage", "--algo.normalize-obs"},
    "tune sac --pru": {"--prune"},
    "data convert --m": {"--max-episode-steps"},
    "help ppo_at": {"ppo_atari"},
    "eval no/such/fi": set(),
}
"""What is typed after `reverie`, and what the last word is completed to."""
ASK = {
    "bash": 'source "$0"; for t; do COMP_WORDS=(reverie $t) COMP_CWORD=$(wc -w <<< "$t"); COMPREPLY=(); _reverie; '
    'echo "${COMPREPLY[*]}"; done',
    "zsh": 'compdef() {}; compadd() { print -r -- ${(M)@:#${words[-1]}*} }; _files() {}; source "$0"; '
    "for t; do words=(reverie ${=t}); CURRENT=$#words; _reverie; done",
    "fish": 'source $argv[1]; for t in $argv[2..]; echo (complete -C "reverie $t"); end',
}


@pytest.mark.parametrize("shell", list(ASK))
def test_shells_complete_what_is_typed(shell: str, elsewhere: Path, capsys: Captured) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    assert main(["completion", shell]) == 0
    (elsewhere / "script").write_text(capsys.readouterr().out)
    done = subprocess.run([shell, "-c", ASK[shell], "./script", *TYPED], capture_output=True, text=True, check=True)
    assert [set(line.split()) for line in done.stdout.splitlines()] == list(TYPED.values()), done.stderr


def test_the_version_says_what_it_runs_on(capsys: Captured) -> None:
    assert main(["--version"]) == 0
    first, *rest = capsys.readouterr().out.splitlines()
    assert re.fullmatch(r"reverie \d+\.\d+.*", first)
    assert [line.split()[0] for line in rest] == ["Python", "devices:", "kernels:"]


@pytest.mark.parametrize(
    ("words", "shown"),
    [(["frame", "stack"], "--env.frame-stack"), (["gamma"], "--algo.discount"), (["early stopping"], "--patience"),
     (["replay", "buffer", "size"], "--replay.capacity")],
)  # fmt: skip
def test_help_finds_settings_by_words(words, shown, capsys):
    assert main(["help", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(shown in line for line in lines)
    assert max(map(len, lines)) <= 80


@pytest.mark.parametrize(("word", "code", "shown"), [
    ("sizes", 0, "200m"), ("presets", 0, "ppo_cartpole"), ("algorithms", 0, "off-policy, discrete actions"),
    ("algoritms", 1, "Did you mean 'algorithms'?"),
])  # fmt: skip
def test_a_list_by_its_name(word, code, shown, capsys):
    assert main(["list", word]) == code
    output = capsys.readouterr()
    assert shown in (output.err if code else output.out)
