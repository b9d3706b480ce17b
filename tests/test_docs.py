"""The pages for people: their snippets run, their names exist, their tables are what the code says."""

from __future__ import annotations

import ast
import dataclasses
import functools
import importlib
import inspect
import json
import re
import shlex
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from reverie.algos.dreamer_v3 import SIZES, DreamerV3, sized
from reverie.algos.sac import SACConfig
from reverie.core.clock import Clock
from reverie.core.discover import GROUP, algorithm_config, algorithm_name, algorithms
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.suites import SUITES
from reverie.envs.transforms import SHORT
from reverie.envs.vector import make_env
from reverie.experiment import ExperimentConfig
from reverie.presets.layers import CPU, base, preset_name
from reverie.presets.registry import ON_CPU, PRESETS, resized
from reverie.replay.config import ReplayConfig
from reverie.run.collect import Collector

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
}


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """Fenced blocks and the HTML comment right above each, or an empty string."""
    found = re.findall(r"(?:<!--\s*((?:(?!-->).)*?)\s*-->\n)?```(\w+)\n(.*?)```", text, re.DOTALL)
    return [(comment, code) for comment, language, code in found if language in languages]


def rows(page: str, header: str) -> list[list[str]]:
    """The cells of the table whose header row begins with ``header``."""
    lines = PAGES[page].splitlines()
    start = next(i for i, line in enumerate(lines) if line.startswith(header))
    table: list[list[str]] = []
    for line in lines[start + 2 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip().replace("`", "") for cell in re.split(r"(?<!\\)\|", line)[1:-1]])
    assert table, header
    return table


def prose(text: str) -> str:
    """A page without its fenced blocks."""
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


# ---------------------------------------------------------------- snippets

RUNNABLE = [page for page, text in PAGES.items() if any(c.startswith("test") for c, _ in blocks(text, "python"))]


@pytest.mark.parametrize("page", RUNNABLE)
def test_snippets_run(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One page is one session. ``test: a -> b`` replaces, so that it takes a moment; ``test: x.py`` is a file."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"__name__": "__main__"}
    for comment, code in blocks(PAGES[page], "python"):
        if not comment.startswith("test"):
            continue
        what = comment.removeprefix("test").lstrip(": ")
        before, arrow, after = what.partition(" -> ")
        if arrow:
            assert before in code, (page, before)
            code = code.replace(before, after)
        elif what:
            Path(what).write_text(code, encoding="utf-8")
            continue
        exec(compile(code, page, "exec", dont_inherit=True), names)


@pytest.mark.parametrize("page", RUNNABLE)
def test_each_snippet_imports_the_modules_that_it_uses(page: str) -> None:
    for _, code in blocks(PAGES[page], "python"):
        tree = ast.parse(textwrap.dedent(code))
        used = {
            node.value.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
        }
        imported = {
            (name.asname or name.name).partition(".")[0]
            for node in ast.walk(tree)
            if isinstance(node, ast.Import | ast.ImportFrom)
            for name in node.names
        }
        assert used & {"reverie", "gymnasium", "torch", "np"} <= imported, code


def test_quotations_are_what_the_source_says() -> None:
    quoted = [(c, code) for text in PAGES.values() for c, code in blocks(text, "python") if c.startswith("quote: ")]
    assert quoted
    for comment, code in quoted:
        source = (ROOT / comment.removeprefix("quote: ")).read_text(encoding="utf-8")
        assert any(f"\n{textwrap.indent(code, ' ' * depth)}" in source for depth in range(0, 20, 4))


NO_RUN = ("list", "info", "data", "check-env", "look", "help", "--version")
"""Commands that need no run, or whose help shows that they exist."""


class Understood(Exception):
    """The command line was read to its end."""


def commands(*starts: str) -> list[tuple[str, str]]:
    lines = [
        (p, line.partition("#")[0].strip())
        for p, t in PAGES.items()
        for _, b in blocks(t, "sh")
        for line in b.splitlines()
    ]
    return [(page, line) for page, line in lines if line.startswith(starts)]


def test_commands_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from reverie import bench, cli
    from reverie.agent import estimate as estimation
    from reverie.agent import extract, loading
    from reverie.cli import train

    def stop(*args: Any, **kwargs: Any) -> None:
        raise Understood

    monkeypatch.setattr(train, "train_config", stop)
    monkeypatch.setattr(train, "train_seeds_of", stop)
    monkeypatch.setattr(train, "launch", stop)
    monkeypatch.setattr(train, "train_on_ray", stop)
    monkeypatch.setattr(train, "at_its_run", lambda said, named: said)  # there is no such run
    monkeypatch.setattr(bench, "measure", stop)
    monkeypatch.setattr(loading, "load", stop)
    monkeypatch.setattr(estimation, "estimate", stop)
    monkeypatch.setattr(extract, "extract", stop)
    monkeypatch.chdir(tmp_path)  # where the pages' own modules are
    monkeypatch.syspath_prepend(str(tmp_path))
    for comment, code in [block for text in PAGES.values() for block in blocks(text, "python")]:
        if re.fullmatch(r"test: \w+\.py", comment):
            Path(comment.removeprefix("test: ")).write_text(code, encoding="utf-8")
    found = commands("reverie ")
    assert len(found) >= 10
    for page, line in found:
        words = shlex.split(line)[1:]
        if {"--help", "--help-all"} & {*words} or words[0] in NO_RUN:
            asked = [*words[: 2 if words[0] == "data" else 1], "--help"] if words[0] in NO_RUN[1:] else words
            assert cli.main(asked) == 0, (page, line)
        else:
            with pytest.raises(Understood):
                print(page, line, cli.main(words))
    capsys.readouterr()


def test_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page, line in commands("make "):
        assert line.split()[1] in targets, (page, line)
    for page, line in commands("python "):
        paths = [word for word in shlex.split(line)[1:] if "/" in word]
        assert all((ROOT / path).exists() for path in paths), (page, line)


# ---------------------------------------------------------------- names


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", prose(PAGES[page])):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        file = (ROOT / page).parent / path if path else ROOT / page
        assert file.exists(), target
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def defined(tree: ast.Module) -> set[str]:
    """Names at the top of a module, and those inside its classes as ``Class.name``."""
    out: set[str] = set()
    for node, prefix in [(n, "") for n in tree.body] + [
        (n, f"{c.name}.") for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body
    ]:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out.add(prefix + node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            out |= {prefix + ast.unparse(target) for target in targets}
    return out


@pytest.mark.parametrize("page", PAGES)
def test_named_files_and_functions_exist(page: str) -> None:
    """``path.py: name`` in backticks; paths are those below src/reverie or the repository's."""
    homes = (ROOT / "src" / "reverie", ROOT)
    planned = {"walk.py", "nn/actor.py", "nn/critic.py", "nn/recurrent.py"}  # the reader's own; those of the first plan
    for path, _, name in re.findall(r"`([\w./]+\.(?:py|md|toml))(:\s([\w.]+))?`", prose(PAGES[page])):
        if path in planned:
            continue
        file = next((home / path for home in homes if (home / path).is_file()), None)
        assert file is not None, path
        if name:
            assert name in defined(ast.parse(file.read_text(encoding="utf-8"))), f"{path}: {name}"


@functools.cache
def configs() -> list[ExperimentConfig]:
    """The settings of a run of each algorithm."""
    return [ExperimentConfig().merge({"algo": algorithm_config(name)()}) for name in algorithms()]


@pytest.mark.parametrize("page", PAGES)
def test_named_settings_exist(page: str) -> None:
    text, known = PAGES[page], r"(?:algo|env|replay|schedule)(?:\.[a-z_-]+)+"
    if page.startswith("docs/from/"):  # of other libraries: ours stand in the second column
        cells = [row[1] for row in re.findall(r"^\|(.*)\|(.*)\|(.*)\|$", text, re.MULTILINE)]
        text, known = "\n".join(cells), r"[a-z_]+(?:\.[a-z_]+)*"
        assert len(re.findall(f"`{known}`", text)) > 12
    for path in re.findall(rf"`(?:--)?({known})(?:\s[\w.-]+)?`", text):
        assert any(has(config, path.replace("-", "_").split(".")) for config in configs()), path


def has(value: Any, names: list[str]) -> bool:
    """Whether there is a setting of that name in one of that name in ..."""
    if not names:
        return True
    known = [f.name for f in dataclasses.fields(value)] if dataclasses.is_dataclass(value) else []
    return names[0] in known and has(getattr(value, names[0]), names[1:])


# ---------------------------------------------------------------- the site


def documentation() -> ModuleType:
    """The tool that builds the site."""
    return tool("documentation")


def tool(name: str) -> ModuleType:
    """A script of tools/."""
    if str(ROOT / "tools") not in sys.path:
        sys.path.append(str(ROOT / "tools"))
    return importlib.import_module(name)


def test_no_picture_is_older_than_its_data() -> None:
    """Else run ``python tools/figures.py``, or with ``--tutorials``."""
    figures = tool("figures")
    wanted = figures.wanted()
    assert {path: figures.made_from(path) for path in wanted} == wanted
    assert len(wanted) > 20


def test_the_site_has_each_page_and_each_algorithm() -> None:
    site = documentation()
    assert {*site.sections(PAGES["docs/algorithms.md"])} == {*site.own_algorithms()}
    rooms = {path.parent.name for path in (ROOT / "src" / "reverie").glob("*/__init__.py")}
    generated = [f"algorithms/{name}.md" for name in site.own_algorithms()]
    generated += [f"reference/{name}.md" for name in (*rooms, "reverie", "commands", "settings")]
    shown = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert sorted(shown) == sorted({*site.homes().values()} - {"LICENSE.txt"} | {*generated})


def test_a_page_of_an_algorithm_has_each_of_its_settings() -> None:
    page = documentation().algorithm_page("sac", "Idea.")
    assert "| `actor_lr` | `0.0003` | `0.001`: sac_pendulum | Learning rate of the actor. |" in page
    assert {f.name for f in dataclasses.fields(SACConfig)} <= set(re.findall(r"^\| `(\w+)", page, re.MULTILINE))
    assert "J_Q = sum_i E[(Q_i(s, a) - y)^2 / 2]: equation 5" in page
    assert "| `train/temperature` | Alpha" in page


@pytest.mark.parametrize("page", [page for page in PAGES if documentation().is_tutorial(page)])
def test_a_notebook_has_all_of_its_page(page: str) -> None:
    cells = json.loads(documentation().notebook(page))["cells"]
    codes = [cell["source"].splitlines() for cell in cells if cell["cell_type"] == "code"]
    shown = [(c, code) for c, code in blocks(PAGES[page], "python", "sh") if code.strip()]
    assert len(codes) == len(shown) > 1
    for lines, (comment, code) in zip(codes, shown, strict=True):
        magic = "%%writefile" if re.fullmatch(r"test: \w+\.py", comment) else "!" if lines[0].startswith("!") else ""
        assert lines[0].startswith(magic)
        assert [line.removeprefix("!") for line in lines if not line.startswith("%%")] == [
            line for line in code.rstrip().splitlines() if line.strip() or not lines[0].startswith("!")
        ]


# ---------------------------------------------------------------- tables


IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
VECTOR = {"observation": ObsPart(kind="vector", shape=(24,), dtype="float32")}
SIX = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
TURNS = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})


def test_the_table_of_sizes() -> None:
    expected = []
    for name in SIZES:
        config = sized(name)
        with torch.device("meta"):  # shapes without memory
            pair = ((IMAGE, SIX), (VECTOR, TURNS))
            counts = [DreamerV3(obs, act, config, torch.device("meta")).optim.count for obs, act in pair]
        r, e = config.rssm, config.encoder
        widths = [r.deter, r.hidden, f"{r.stoch} x {r.classes}", e.depth, e.units]
        expected.append([name, *map(str, widths), *(f"{count:,}" for count in counts)])
    assert rows("docs/dreamer_v3.md", "| size |") == expected


def test_the_table_of_environment_options() -> None:
    table = {name.removeprefix("env."): default for name, default, _ in rows("docs/environments.md", "| option |")}
    config = EnvConfig()
    assert table == {f.name: str(getattr(config, f.name)) or "''" for f in dataclasses.fields(config)}


def test_the_table_of_suites() -> None:
    table = rows("docs/environments.md", "| suite |")
    assert [row[0] for row in table] == [suite.title for suite in SUITES[:-1]]
    for suite, (_, ids, extra, preset, state) in zip(SUITES, table, strict=False):
        assert (ids, extra) == (", ".join(suite.prefixes), suite.extra)
        assert preset == preset_name("dreamer_v3", suite.tried.split("--env ")[1].split()[0])
        assert state.startswith(f"not trained, {suite.why}; " if suite.why else f"reverie train {suite.tried}")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {suite.extra for suite in SUITES} <= {"", *extras}


def test_the_table_of_actions() -> None:
    """Each cell is tried by tests/algos/test_action_spaces.py."""
    kinds = ("continuous", "discrete", "multi_discrete", "mixed")
    learned = {
        name: algorithm_config(name).action_kinds
        for name, home in sorted(algorithms().items())
        if home.startswith(f"{GROUP}.")
    }
    expected = [[name, *("yes" if kind in of else "-" for kind in kinds)] for name, of in learned.items()]
    assert rows("docs/environments.md", "| algorithm | continuous") == expected


def test_the_table_of_wrappers() -> None:
    for name, settings, _ in (table := rows("docs/environments.md", "| wrapper |")):
        own = list(inspect.signature(SHORT[name]).parameters.values())[1:]
        assert settings == ", ".join(str(one.replace(annotation=one.empty)) for one in own)
    assert [row[0] for row in table] == list(SHORT)


def test_the_table_of_presets() -> None:
    table = rows("docs/environments.md", "| preset | env")
    assert [row[0] for row in table] == list(PRESETS)
    for name, env, num, steps, size, ratio in table:
        config = PRESETS[name]()
        assert not size or resized(config, size) == config, name
        assert env in ("any", config.env.id)
        assert steps in ("", f"{config.steps:,}", f"{config.updates:,} updates")
        if ratio:
            window = Window(batch=config.algo.batch_size, length=config.algo.batch_length)
            assert ratio == f"{config.ratio(window) * window.batch * window.length:g}", name
            assert num == str(config.env.num)


def test_the_table_of_presets_for_a_cpu() -> None:
    table = rows("docs/environments.md", "| preset | steps")
    assert [row[0] for row in table] == [f"{name}{CPU}" for name in ON_CPU]
    for name, steps, size, ratio, evaluations in table:
        plain = PRESETS[name.removesuffix(CPU)]().algo
        config = base(algorithm_name(type(plain)), preset=name)
        assert not size or resized(config, size) == config, name
        assert steps in (f"{config.steps:,}", f"{config.updates:,} updates")
        assert not ratio or ratio == f"{config.replay_ratio:g}"
        assert evaluations == (f"every {config.schedule.eval_every}" if config.evaluates_on_the_way else "at the end")


# ---------------------------------------------------------------- the worked example of the loop


class Always:
    """A policy that has made up its mind."""

    def initial(self, num_envs: int) -> None:
        return None

    def act(self, step: Any, state: None, mode: str) -> tuple[torch.Tensor, None]:
        return torch.tensor([[0.0, 1.0]] * len(step)), None

    def override(self, state: None, action: torch.Tensor) -> None:
        return None

    def extras(self, state: None) -> dict[str, torch.Tensor]:
        return {}


def test_the_worked_example_of_the_loop() -> None:
    lengths = iter([4, 6, 9])
    env = make_env(EnvConfig(num=3), seed=0, factory=lambda: Count(truncate_at=next(lengths)))
    window = Window(batch=2, length=3, context=1, crosses_episodes=True)
    replay = ReplayConfig(capacity=300).build(
        obs_spec=env.obs_spec, action_spec=env.action_spec, extra_spec={}, num_envs=3, window=window, seed=0
    )
    collector = Collector(env, Always(), replay, seed=0)
    clock = Clock(length=1000, replay_ratio=0.3, learning_starts=6)
    table = rows("docs/loop.md", "| turn | rows")
    assert len(table) == 16
    for turn, row in enumerate(table, start=1):
        last = ", ".join(str(i) for i, ended in enumerate(collector.step.is_last.tolist()) if ended) or "-"
        taken = collector.collect()
        clock.env_steps += taken
        clock.episodes += len(collector.drain())
        due = clock.updates_due(len(replay))
        clock.updates += due
        credit = f"{clock.ratio.credit:.1f}"
        happened = [turn, last, taken, clock.env_steps, len(replay), credit, due, clock.updates, clock.episodes]
        assert row == list(map(str, happened))
    env.close()
    assert clock.updates == int(0.3 * (42 - 14))


def test_the_counters_of_the_loop_are_those_of_the_logs() -> None:
    """Every name that the table gives is written by ``run/metrics.py``."""
    source = (ROOT / "src/reverie/run/metrics.py").read_text(encoding="utf-8")
    counters = set(re.findall(r"\"(\w+)\"", source[source.index("def _counters") :]))
    names = [name for row in rows("docs/loop.md", "| name | unit") for name in row[0].split(", ") if "/" in name]
    assert len(names) >= 10
    for name in names:
        group, _, rest = name.partition("/")
        assert rest in counters if group == "counters" else f'"{name}"' in source, name
