"""Kernels are compiled once, kept whole or not at all, and done without where there is no compiler."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import gymnasium
import pytest
import torch
import yaml

import reverie
from reverie.algos.dreamer_v3 import DreamerV3Config
from reverie.cli.main import main
from reverie.core.kernel_dispatch import KERNEL_ENV_VAR
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.experiment.bench import noise_batch
from reverie.kernels import compiler, gpu
from reverie.nn.functional import unimix_probs
from tiny_configs import NETWORKS, SETTINGS

MakeCompiler = Callable[[str], Path]
ALL = len(compiler.SOURCES) + 1
"""Calls of a compiler: one for each file, and one for the library."""
WHERE_TO = 'while [ "$1" != -o ]; do shift; done; out=$2\n'


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Really compiled, for what needs no compiler of its own; by an earlier process, if there was one."""
    folder = tmp_path_factory.mktemp("real")
    return Path(shutil.copy(compiler._cached_or_compiled(), folder))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A cache folder with an unusual name, and nothing remembered; the real one is back after the test."""
    folder = tmp_path / "a cache [of mine]"
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    monkeypatch.delenv(KERNEL_ENV_VAR, raising=False)
    forget()
    yield folder / "reverie"
    forget()


def forget() -> None:
    for function in (compiler.load_kernels, compiler._find_library):
        function.cache_clear()


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> MakeCompiler:
    """Make a shell script the C compiler; it notes each call in the file that is returned."""

    def make(body: str) -> Path:
        script, log = tmp_path / "my compiler", tmp_path / "calls"
        script.write_text(f'#!/bin/sh\necho "$@" >> "{log}"\n{body}')
        script.chmod(0o755)
        monkeypatch.setenv("CC", f"'{script}'")
        log.write_text("")
        return log

    return make


@pytest.fixture
def copying(use: MakeCompiler, library: Path) -> Path:
    """A compiler that is quick: it has compiled before. The file notes its calls."""
    return use(f'{WHERE_TO}cp "{library}" "$out"\n')


def calls(log: Path) -> int:
    return len(log.read_text().splitlines())


def loads() -> bool:
    """Whether another process would find kernels that compute something."""
    forget()
    return compiler.compile_problem() == "" and compiler.load_kernels() is not None


@pytest.mark.skipif(platform.machine() != "x86_64" or not shutil.which("cc"), reason="no compiler for these processors")
@pytest.mark.parametrize("processor", ["x86-64", "x86-64-v3", pytest.param("x86-64-v4", marks=pytest.mark.nightly)])
def test_the_sources_are_right_for_other_processors(processor: str) -> None:
    """Each has code of its own for AVX2 or AVX-512, which a compiler of another machine does not see."""
    flags = ["-fsyntax-only", "-fopenmp", f"-march={processor}", "-Werror=implicit-function-declaration"]
    done = subprocess.run(["cc", *flags, *map(str, compiler.SOURCES)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_they_are_compiled_once(copying: Path, cache: Path) -> None:
    assert loads()
    assert loads()
    assert calls(copying) == ALL
    assert compiler.compile_state() == "compiled"
    assert [path.suffix for path in cache.iterdir()] == [".so"]


def test_a_run_compiles_before_it_is_built_and_says_so(copying: Path, tmp_path: Path, capsys) -> None:
    """Else the time of the compiler would count as the run's."""
    compiled = []

    def make() -> gymnasium.Env:
        compiled.append(calls(copying))
        return gymnasium.make("CartPole-v1")

    settings = {"steps": 4, "learning_starts": 1, "eval_episodes": 0, "console": False, "tensorboard": False}
    reverie.train("dqn", make, run=tmp_path / "run", **settings)
    assert set(compiled) == {ALL}
    said = capsys.readouterr().out
    assert said.startswith("compiling kernels")
    assert said.count("compiling") == 1


CHANGES = {"processor": ("_processor", lambda: "flags : sse2"), "flags": ("_FLAGS", [["-O1"]]),
           "source": ("HEADERS", [Path(__file__)])}  # fmt: skip


@pytest.mark.parametrize("change", [*CHANGES, "compiler"])
def test_what_was_compiled_for_something_else_is_not_used(copying, change, tmp_path, monkeypatch) -> None:
    assert loads()
    if change == "compiler":
        monkeypatch.setenv("CC", str((tmp_path / "my compiler").rename(tmp_path / "other")))
    else:
        monkeypatch.setattr(compiler, *CHANGES[change])
    assert loads()
    assert calls(copying) == 2 * ALL


@pytest.mark.parametrize("left", [0, 1000, -1])
def test_a_damaged_library_is_not_loaded(copying: Path, cache: Path, left: int) -> None:
    """Half a library would end the process when it is loaded."""
    assert loads()
    (path,) = cache.iterdir()
    content = path.read_bytes()
    path.unlink()  # this process has it open
    path.write_bytes(content[:left])
    assert loads()
    assert calls(copying) == 2 * ALL
    assert [kept.read_bytes() == content for kept in cache.iterdir()] == [True]


def test_a_compilation_that_is_killed_leaves_nothing_to_be_loaded(use, cache: Path, library: Path) -> None:
    """The whole process, in the middle of writing; by its only compiler, since a second one would outlive it."""
    use(f'{WHERE_TO}head -c 5000 "{library}" > "$out"\nkill -9 $PPID\n')
    code = "import os; os.cpu_count = lambda: 1; from reverie.kernels import compiler; compiler.load_kernels()"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    assert list(cache.glob("*.so")) == []
    use(f'{WHERE_TO}cp "{library}" "$out"\n')
    assert loads()


def test_several_may_compile_at_once(use: MakeCompiler, cache: Path, library: Path) -> None:
    """Also compilers that never write the same thing twice."""
    use(f'{WHERE_TO}head -c 5000 "{library}" > "$out"; sleep 0.1; cp "{library}" "$out"; echo $$ >> "$out"\n')
    cache.mkdir(parents=True)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: compiler._compile(cache, compiler._key()), range(4)))
    assert sorted(set(paths)) == sorted(cache.iterdir())
    for path in paths:
        compiler._load(path)
    assert compiler._cached_library(cache, compiler._key()) in paths


def test_an_installation_compiles_or_says_why_not(
    copying: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(compiler, "_BUILT", tmp_path / "built")
    with monkeypatch.context() as patch:
        patch.setenv("PATH", "")
        patch.delenv("CC", raising=False)
        compiler.compile_for_installation()
        assert "no C compiler found" in capsys.readouterr().out
    assert compiler.is_uncompiled()
    compiler.compile_for_installation()
    assert "compiled kernels: kernels-" in capsys.readouterr().out
    assert not compiler.is_uncompiled()
    assert loads()
    assert (calls(copying), cache.exists()) == (ALL, False)


def losses() -> dict[str, float]:
    """Of two updates of a learner of images and choices."""
    obs = {"image": ObsPart(kind="image", shape=(16, 16, 3), dtype="uint8")}
    actions = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(3,))})
    config = DreamerV3Config().merge({"batch_size": 2, "batch_length": 6, "horizon": 3, **NETWORKS})
    learner = config.build(obs, actions, "cpu", 0)
    torch.manual_seed(0)
    batch = noise_batch(learner, obs, actions)
    learner.update(batch)
    return {name: float(value) for name, value in learner.update(batch).metrics.items()}


def said_once() -> str:
    """The one warning, however often kernels are asked for."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        x = unimix_probs(torch.zeros(2, 4), 0.0)
        assert [compiler.load_kernels(), compiler.load_kernels()] == [None, None]
    assert torch.equal(x, torch.full((2, 4), 0.25))
    assert (len(caught), compiler.compile_state()) == (1, "none")
    return str(caught[0].message)


def test_without_a_compiler_it_is_said_once_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CC", raising=False)
    assert "no C compiler found" in said_once()
    assert "apt install gcc" in compiler.compile_problem()


def test_a_command_says_once_that_the_compiler_is_missing_and_does_without(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("CC", "")
    (tmp_path / "tiny.yaml").write_text(yaml.safe_dump(SETTINGS))
    words = [
        "dreamer_v3",
        "--env",
        "CartPole-v1",
        "--config",
        str(tmp_path / "tiny.yaml"),
        "--run",
        str(tmp_path / "run"),
    ]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert main(["train", *words]) == 0
    assert not [w for w in caught if "compiler" in str(w.message)]  # it is a sentence, without a line of code
    assert "".join(capsys.readouterr()).count("no C compiler found (cc, gcc or clang). Install one: apt install") == 1


def test_learning_is_the_same_with_and_without(copying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = losses()
    assert compiler.compile_state() == "compiled"
    forget()
    monkeypatch.setenv(KERNEL_ENV_VAR, "off")
    assert losses() == pytest.approx(compiled, rel=1e-3, abs=1e-4)


@pytest.mark.parametrize("word", ["off", "OFF", "0", "false", "no"])
def test_they_can_be_switched_off(word: str, copying: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(KERNEL_ENV_VAR, word)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert compiler.load_kernels() is None
    assert (compiler.compile_problem(), compiler.compile_state(), calls(copying)) == ("", "off", 0)
    gpu.triton_problem.cache_clear()  # GPUs have kernels of their own
    assert gpu.triton_problem(torch.device("cuda")) == f"{KERNEL_ENV_VAR}=off"
    gpu.triton_problem.cache_clear()


def test_a_compiler_that_fails_is_quoted(use: MakeCompiler, cache: Path) -> None:
    log = use(r"printf 'fatal error: math.h: No such file \253\n' >&2; exit 1")  # a byte that is no UTF-8
    said = said_once()
    assert "my compiler' failed: fatal error: math.h: No such file" in said
    assert len(compiler._FLAGS) <= calls(log) <= len(compiler._FLAGS) * len(compiler.SOURCES)
    assert list(cache.iterdir()) == []
