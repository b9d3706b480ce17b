"""The pages for people: their snippets run, their names exist, their tables are what the code says."""

import ast
import dataclasses
import functools
import importlib
import inspect
import io
import itertools
import json
import re
import shlex
import shutil
import sys
import textwrap
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
import yaml

import d4rl_files
from in_process import InProcess
from reverie.algos.dqn import DQNConfig
from reverie.algos.dreamer_v3 import SIZES, DreamerV3, with_size
from reverie.algos.sac import SACConfig
from reverie.algos.table import algorithm_config, algorithms
from reverie.cli.main import COMMANDS
from reverie.cli.parsing import iter_options
from reverie.core.clock import Clock
from reverie.core.config import Choice, Config
from reverie.core.specs import ActionPart, ActionSpec, ObsPart
from reverie.core.types import Window
from reverie.datasets.formats import FORMATS
from reverie.envs.config import EnvConfig
from reverie.envs.dummy import Count
from reverie.envs.slot_vector_env import make_vector_env
from reverie.envs.suites import SUITES
from reverie.envs.wrapper_list import SHORT
from reverie.experiment.config import ExperimentConfig
from reverie.experiment.presets import ON_CPU, TABLE, preset_name
from reverie.experiment.rules import DEVICE_RULES, RULES
from reverie.log import style
from reverie.log.colors import BLUE, DARK
from reverie.log.themed_svg import THEME, themed_svg
from reverie.replay.build import build_replay
from reverie.replay.config import Offline, ReplayConfig
from reverie.run.collect import EnvCollector

ROOT = Path(__file__).parents[1]
PAGES = {
    path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
    for path in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))]
}


def fenced(text: str) -> list[tuple[str, str, str]]:
    """All fenced blocks: the HTML comment right above each, or an empty string; language; code."""
    pattern = r"(?:<!--\s*((?:(?!-->).)*?)\s*-->\n)?^ *```(\w*)\n(.*?)^ *```$"
    return re.findall(pattern, text, re.DOTALL | re.MULTILINE)


def blocks(text: str, *languages: str) -> list[tuple[str, str]]:
    """The comments and codes of blocks in these languages."""
    return [(comment, textwrap.dedent(code)) for comment, language, code in fenced(text) if language in languages]


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


def test_the_readme_is_short_and_begins_with_two_commands() -> None:
    assert len(PAGES["README.md"].encode()) <= 4_500
    assert re.search(r"^make demo .*\nmake test ", PAGES["README.md"][:1_500], re.MULTILINE)


# ---------------------------------------------------------------- snippets

NOT_RUN = {
    "train": "trains for long; its settings are resolved",
    "tune": "trains for long; its settings are resolved",
    "sweep": "needs a file; tests/distributed/test_sweep.py has one",
    "reach": "needs a goal-conditioned run; tests/agent/test_reaching.py has some",
    "arena": "needs runs in a game; tests/agent/test_arena.py has one",
    "bench": "takes its time; its settings are resolved",
    "view": "ends with Ctrl-C; tests/viewer has a browser",
    "import": "needs a file of Stable-Baselines3; tests/agent/test_sb3.py has some",
    "export": "takes its time; tests/agent/test_export.py runs each form",
    "register": "needs a tracker; tests/log/test_trackers.py has one",
    "estimate": "needs a run on data; tests/test_estimating.py has one",
    "compare": "needs several seeds; tests/log has them",
    "play": "needs a person; tests/agent/test_demonstrate.py has one",
    "data download": "needs a network; tests/datasets has a server",
    "data compare-clips": "needs a person; tests/viewer/test_labels.py has a browser",
    "data label": "needs a person; tests/viewer/test_labels.py has a browser",
}
"""Commands of reverie in the pages that are read to their end, but not run, and why."""
ELSEWHERE = ("hf://", "s3://", "models:/", "runs:/", "wandb:")
"""Nor are those that name a place elsewhere: tests/agent/test_sharing.py has servers."""
NOT_OURS = {
    "pip install torch": "downloads PyTorch",
    "python3 -m venv": "makes the reader's environment",
    ".venv/bin/pre-commit": "changes the reader's repository",
    "docker ": "needs Docker; tests/test_deploy.py reads the files",
    "kubectl ": "needs a cluster; tests/test_deploy.py reads the files",
    "ssh ": "needs another machine",
}
"""Other commands that are not run, and why."""
OF_OTHERS = {"stable_baselines3": "is no extra; docs/dreams.md says what it gave"}
"""Modules that are not installed here: blocks that import them only have to be Python."""


def code_of(comment: str, code: str) -> str:
    """The code of a block that is to be run: ``test: a -> b`` replaces, ``test: a -> b; c -> d`` twice."""
    for change in comment.removeprefix("test").lstrip(": ").split("; "):
        before, arrow, after = change.partition(" -> ")
        assert not arrow or before in code, (before, code)
        code = code.replace(before, after) if arrow else code
    return code


def file_of(comment: str) -> str:
    """The name of the file that a block is; "" if it is none."""
    found = re.fullmatch(r"test: (\w+\.py)", comment)
    return found[1] if found else ""


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python", "sh")])
def test_snippets_run(page, trained, tmp_path, monkeypatch, capsys):
    """One page is one session. Runs that a page has from elsewhere are a tiny one."""
    from reverie import cli

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path / "minari"))
    monkeypatch.setattr("reverie.distributed.run_processes.Child", InProcess)
    monkeypatch.setattr("reverie.experiment.labeling.QUICK_UPDATES", 2)  # after every answer of a person
    monkeypatch.setattr("reverie.nn.reward_model.RewardModel.updates", 20)
    names: dict[str, Any] = {"__name__": "__main__"}
    for comment, language, code in fenced(PAGES[page]):
        if file := file_of(comment):
            Path(file).write_text(code, encoding="utf-8")
            continue
        code = code_of(comment, code)
        called = [*filter(is_run, map(words_of, code.splitlines()))] if language == "sh" else []
        python = code if language == "python" and comment.startswith("test") else ""
        lent = lend(" ".join([*itertools.chain(*called), python * ("reverie.train" not in PAGES[page])]), trained)
        exec(compile(python, page, "exec", dont_inherit=True), names)
        for words in called:
            assert cli.main(words) == 0, (page, words, capsys.readouterr().err)
        for run in lent:
            shutil.rmtree(run)


def lend(text: str, trained: Path) -> list[str]:
    """Put a tiny run, or data, wherever ``text`` names a run or the data of D4RL that the page does not make."""
    if "halfcheetah.hdf5" in text:
        d4rl_files.write(Path("halfcheetah.hdf5"), d4rl_files.columns())
    runs = [run for run in sorted({*re.findall(r"\bruns/\w+", text)}) if not Path(run).exists()]
    for run in runs:
        shutil.copytree(trained, run)
    return runs


def words_of(line: str) -> list[str]:
    """The words after ``reverie`` of a line of a shell; none if it is another command."""
    line = re.sub(r"(^|\s)#.*| \|\| .*", "", line)
    line = re.sub(r"^python deploy/slurm.py .* -- ", "reverie train ", line)
    found = re.search(r"(?:^|\s)reverie ((?:[a-z]+|--version)\b.*)", line)
    return shlex.split(found[1]) if found and found[1].split()[0] in {*COMMANDS, "--version"} else []


def is_run(words: list[str]) -> bool:
    """Whether a command of reverie is run, and not only read."""
    return (
        bool(words)
        and {words[0], " ".join(words[:2])}.isdisjoint(NOT_RUN)
        and not any(word.startswith(ELSEWHERE) for word in words)
    )


def test_every_block_is_run_or_says_why_not() -> None:
    targets = set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    used = set()
    for page, text in PAGES.items():
        for comment, language, code in fenced(text):
            if language == "python":
                ast.parse(textwrap.dedent(code))
                theirs = [name for name in OF_OTHERS if f"from {name}" in code]
                used |= {*theirs}
                assert comment.startswith(("test", "quote: ")) or theirs, (page, code)
            elif language == "yaml":
                assert isinstance(yaml.safe_load(code), dict), (page, code)
            elif language == "sh":
                for line in filter(None, (re.sub(r"(^|\s)#.*", "", line) for line in code.splitlines())):
                    words = shlex.split(line)
                    other = [start for start in NOT_OURS if line.startswith(start)]
                    used |= {*other}
                    if words_of(line) or other:
                        continue
                    if words[:3] == ["pip", "install", "-e"]:
                        assert {*words[3].strip(".[]").split(",")} <= {*extras}, (page, line)
                    elif words[0] == "make":
                        assert words[1] in targets, (page, line)
                    else:
                        assert words[0] == "python", (page, line)
                        assert all((ROOT / word).exists() for word in words[1:] if "/" in word), (page, line)
            else:
                assert language in ("text", "console"), (page, language, code)
                used |= {start for start in NOT_OURS for line in code.splitlines() if line.startswith(start)}
    assert used == {*NOT_OURS, *OF_OTHERS}


@pytest.mark.parametrize("page", [page for page, text in PAGES.items() if blocks(text, "python")])
def test_each_snippet_imports_the_modules_that_it_uses(page: str) -> None:
    for _, code in blocks(PAGES[page], "python"):
        nodes = [*ast.walk(ast.parse(textwrap.dedent(code)))]
        used = {ast.unparse(node.value) for node in nodes if isinstance(node, ast.Attribute)}
        names = [name for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for name in node.names]
        imported = {(name.asname or name.name).partition(".")[0] for name in names}
        assert used & {"reverie", "gymnasium", "torch", "np"} <= imported, code


def test_quotations_are_what_the_source_says() -> None:
    quoted = [(c, code) for text in PAGES.values() for c, code in blocks(text, "python") if c.startswith("quote: ")]
    assert quoted
    for comment, code in quoted:
        source = (ROOT / comment.removeprefix("quote: ")).read_text(encoding="utf-8")
        assert any(f"\n{textwrap.indent(code, ' ' * depth)}" in source for depth in range(0, 20, 4))


class Understood(Exception):
    """The command line was read to its end."""


def test_commands_are_understood(tmp_path, monkeypatch, capsys):
    """Those of all blocks, also of text that is no tutorial's cell: each flag, value and preset is known."""
    from reverie import cli
    from reverie.agent import extract, loading
    from reverie.agent import off_policy_evaluation as estimation
    from reverie.cli import check, train
    from reverie.cli import parsing as parsing
    from reverie.cli.parsing import parse
    from reverie.experiment import bench, dataset_env, settings

    def stop(*args: Any, **kwargs: Any) -> None:
        raise Understood

    def only_read(*args: Any, **kwargs: Any) -> None:
        parse(*args, **kwargs)
        raise Understood

    places = [(train, name) for name in ("train_config", "run_seeds", "launch_learners", "train_on_ray")]
    places += [
        (train, "run_search"),
        (bench, "benchmark"),
        (loading, "load"),
        (estimation, "estimate_return"),
        (extract, "extract"),
    ]
    for module, name in places:
        monkeypatch.setattr(module, name, stop)
    monkeypatch.setattr(train, "with_run_algorithm", lambda options, has_algorithm: options)  # there is no such run
    monkeypatch.setattr(dataset_env, "with_dataset_env", lambda config, *_: config)  # nor are there datasets
    ask = settings.missing_input_question
    monkeypatch.setattr(settings, "missing_input_question", lambda asked, x: "" if asked.run else ask(asked, x))
    entry = sys.modules[cli.main.__module__]
    monkeypatch.setattr(entry, "localize_args", lambda _, args: [re.sub(r"^\w+:/+\S+", "there", x) for x in args])
    for module in (check, parsing):
        monkeypatch.setattr(module, "parse", only_read)
    monkeypatch.chdir(tmp_path)  # where the pages' own files are
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "examples"))
    monkeypatch.syspath_prepend(str(tmp_path))
    for text in PAGES.values():
        for comment, _, code in fenced(text):
            if file := file_of(comment) or "".join(re.findall(r"\A# (\S+\.yaml)\n", code)):
                Path(file).parent.mkdir(exist_ok=True)
                Path(file).write_text(code, encoding="utf-8")
    shutil.copy("config/defaults.yaml", "my.yaml")
    said = [(page, code) for page, text in PAGES.items() for _, language, code in fenced(text) if language != "python"]
    lines = [(page, line.removeprefix("$ ")) for page, code in said for line in code.splitlines()]
    found = [(page, words) for line, page in {line: page for page, line in lines}.items() if (words := words_of(line))]
    assert len(found) > 150
    for page, words in found:
        if {"--help", "--help-all", "--version"} & {*words} or words[0] == "help":
            assert cli.main(words) == 0, (page, words)
        else:
            with pytest.raises(Understood):
                print(page, words, cli.main(words))
    capsys.readouterr()


def test_options_in_prose_exist() -> None:
    """``--option`` in backticks, alone or after a command there, is one of some command or script."""
    from reverie.cli import agent, bench, check, data, play, runs, sweep, train, train_options

    modules = (agent, bench, check, data, play, train_options, runs, sweep, train)
    kinds = [kind for module in modules for kind in vars(module).values() if dataclasses.is_dataclass(kind)]
    known = {"help", "help-all", "version", *(x.flag for kind in [*kinds, *configs()] for x in iter_options(kind))}
    known |= {*re.findall(r'"--([\w-]+)"', (ROOT / "deploy" / "slurm.py").read_text(encoding="utf-8"))}
    found = 0
    for page, text in PAGES.items():
        for said in re.findall(r"`((?:reverie |--)[^`]+)`", prose(text)):
            for flag in re.findall(r"--((?:no-)?[\w.-]+)", re.sub(r"--[\w.]*[A-Z]\w*|'.*?'", "", said)):
                name = flag.replace("_", "-")
                plain = re.sub(r"(^|\.)no-", r"\1", name)
                assert name in known or plain in known, (page, said)
                found += 1
    assert found > 150


# ---------------------------------------------------------------- names


def anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_lead_somewhere() -> None:
    links = [(page, link) for page, text in PAGES.items() for link in re.findall(r"\]\(([^)]+)\)", prose(text))]
    for page, target in links:
        if not target.startswith("https://"):
            path, _, anchor = target.partition("#")
            file = (ROOT / page).parent / path if path else ROOT / page
            assert file.exists(), (page, target)
            assert not anchor or anchor in anchors(file.read_text(encoding="utf-8")), (page, target)


def defined(tree: ast.Module) -> set[str]:
    """Names at the top of a module, and those inside its classes as ``Class.name``."""
    inside = [(n, f"{c.name}.") for c in tree.body if isinstance(c, ast.ClassDef) for n in c.body]
    out: set[str] = set()
    for node, prefix in [(n, "") for n in tree.body] + inside:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            out.add(prefix + node.name)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            targets = [node.target] if isinstance(node, ast.AnnAssign) else node.targets
            out |= {prefix + ast.unparse(target) for target in targets}
    return out


def test_links_named_after_a_page_lead_to_it() -> None:
    named = [found for text in PAGES.values() for found in re.findall(r"\[`?([\w/]+\.md)`?\]\(([^)#]+)", prose(text))]
    assert [pair for pair in named if Path(pair[0]).name != Path(pair[1]).name] == []


def test_named_files_and_functions_exist() -> None:
    """``path.py: name`` in backticks; paths are those below src/reverie or the repository's."""
    homes = (ROOT / "src" / "reverie", ROOT)
    planned = {"walk.py", "nn/actor.py", "nn/critic.py", "nn/recurrent.py"}  # the reader's own; those of the first plan
    known = functools.cache(lambda file: defined(ast.parse(file.read_text(encoding="utf-8"))))
    for path, _, name in re.findall(r"`([\w./]+\.(?:py|md|toml))(:\s([\w.]+))?`", prose("\n".join(PAGES.values()))):
        if path in planned:
            continue
        file = next((home / path for home in homes if (home / path).is_file()), None)
        assert file is not None, path
        assert not name or name in known(file), f"{path}: {name}"


@functools.cache
def configs() -> list[ExperimentConfig]:
    """The settings of a run of each algorithm."""
    return [ExperimentConfig().merge({"algo": algorithm_config(name)()}) for name in algorithms()]


def test_named_settings_exist() -> None:
    for page, text in PAGES.items():
        known = r"(?:algo|env|replay|schedule)(?:\.[a-z_-]+)+"
        if page.startswith("docs/from/"):  # of other libraries: ours stand in the second column
            cells = [row[1] for row in re.findall(r"^\|(.*)\|(.*)\|(.*)\|$", text, re.MULTILINE)]
            text, known = "\n".join(cells), r"[a-z_]+(?:\.[a-z_]+)*"
            assert len(re.findall(f"`{known}`", text)) > 12
        for path in re.findall(rf"`(?:--)?({known})(?:\s[\w.-]+)?`", text):
            assert any(has(config, path.replace(".no-", ".").replace("-", "_").split(".")) for config in configs()), (
                page,
                path,
            )


def test_settings_in_tables_exist() -> None:
    """Those in the first column under ``setting``, with or without ``algo.``; groups of settings are none."""
    tables = re.compile(r"^\| setting \|.*\n\|[-| ]+\n((?:\|.*\n)+)", re.MULTILINE)
    # keywords, names of others, measurements
    others = ("docs/dreams.md", "docs/from/", "docs/performance.md", "docs/speed.md")
    rows = [(page, row.split("|")[1]) for page, text in PAGES.items() if not page.startswith(others)
            for table in tables.findall(text) for row in table.splitlines()]  # fmt: skip
    named = [(page, name) for page, cell in rows for name in re.findall(r"`([a-z_*][\w.*]*)`", cell) if name != "algo"]
    assert len(named) > 25
    for page, name in named:
        found = [value for config in configs() for value in (config, config.algo) if has(value, name.split("."))]
        settings = [functools.reduce(getattr, name.split("."), value) for value in found]
        assert any(isinstance(value, Choice) or not isinstance(value, Config) for value in settings), (page, name)


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
    """A script of docs/tools/."""
    if str(ROOT / "docs" / "tools") not in sys.path:
        sys.path.append(str(ROOT / "docs" / "tools"))
    return importlib.import_module(name)


def test_no_picture_is_older_than_its_data() -> None:
    """Else run ``python docs/tools/figures.py``, or ``make notebooks`` for those of tutorials."""
    figures = tool("figures")
    wanted = figures.wanted()
    assert {path: figures.made_from(path) for path in wanted} == wanted
    assert len(wanted) > 20


def test_no_picture_shows_an_earlier_product() -> None:
    """Else run ``python docs/tools/product_pictures.py``, which says what it needs."""
    product = tool("product_pictures")
    assert json.loads(product.HASHES.read_text()) == product.wanted()
    assert all((product.IMAGES / name).exists() for name in product.PICTURES)


@style.styled
def test_a_figure_follows_the_theme() -> None:
    file = io.StringIO()
    figure, (axes,) = style.new_panels(1, 1, (4, 3), title="a$b_$")
    axes.plot([0, 1], [0, 1], color=BLUE)
    figure.savefig(file, format="svg")
    head, _, body = themed_svg(file.getvalue()).partition("</style>")
    assert "prefers-color-scheme:dark" in head
    assert not re.search("|".join(DARK), body)
    assert "var(--c0)" in body


def test_the_tutorials_take_as_long_as_their_notebooks_took() -> None:
    site = documentation()
    for _, tutorial, _, training in rows("docs/tutorials/index.md", "| | tutorial"):
        page = re.search(r"\((.*)\)", tutorial)[1]
        minutes, seconds = divmod(site.training_seconds(site.kept_notebook(page).read_text()), 60)
        assert (page, training) == (page, f"{minutes} min {seconds} s" if minutes else f"{seconds} s")


def test_no_color_stands_outside_of_a_table() -> None:
    literal = re.compile(r"#[0-9a-f]{6}\b", re.IGNORECASE)
    for path in sorted((ROOT / "docs" / "images").rglob("*.svg")):
        before, theme, after = path.read_text().partition(THEME)
        if path.name != "console.svg":  # a terminal has its colors in both themes
            assert (path, bool(theme), literal.findall(before + after)) == (path, True, [])
    for path in (ROOT / "docs" / "tools").glob("*.py"):
        assert not literal.findall(path.read_text()), path


def test_the_site_has_each_page_and_each_algorithm() -> None:
    site = documentation()
    assert {*site.sections(PAGES["docs/algorithms.md"])} == {*site.own_algorithms()}
    rooms = {path.parent.name for path in (ROOT / "src" / "reverie").glob("*/__init__.py")}
    generated = [f"algorithms/{name}.md" for name in site.own_algorithms()]
    generated += [f"reference/{name}.md" for name in (*rooms, "reverie", "commands", "settings", "presets")]
    shown = re.findall(r"^ +- (?:.*: )?(\S+\.md)$", site.configuration(), re.MULTILINE)
    by_hand = {*site.homes().values()} - {"LICENSE.txt"}
    assert sorted(shown) == sorted(by_hand | {*generated})
    linked = re.findall(r"\]\((\S+\.md)\)", site.Page("docs/pages.md").text())
    assert sorted([*linked, "pages.md"]) == sorted(by_hand)


def test_the_page_of_settings_has_each_rule_with_the_names_of_settings() -> None:
    page = documentation().settings()
    rules = page[page.index("## What does not go together") :].splitlines()
    assert len([line for line in rules if line.startswith("- ")]) == len(RULES) + len(DEVICE_RULES)
    assert "- *name* collects rows" in page
    assert "- replay.device = *replay.device*: the rows are on *env_device*" in page
    assert not re.search(r"[{}]", "".join(rules))


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_has_a_text_for_settings_that_break_it(rule: str) -> None:
    config = ExperimentConfig(hours=1.0, heldout_fraction=0.1, patience=1, actors=2, experience=Offline())
    assert "{" not in rule.format(c=config)


def test_the_page_of_presets_has_each() -> None:
    page = documentation().presets()
    assert re.findall(r"^\| `(\w+)`", page, re.MULTILINE) == list(TABLE)
    assert re.findall(r"^\| `(\w+)\+cpu`", page, re.MULTILINE) == list(ON_CPU)
    assert re.search(r"^\| `atari` \| .* \| `ALE/\*` \| 16 \| 51,000,000 \| 200m \| 32 \|$", page, re.MULTILINE)
    assert "| `atari+cpu` | 40,000 | nano | 0.05 | every 20000 |" in page


def test_a_page_of_an_algorithm_has_each_of_its_settings() -> None:
    page = documentation().algorithm_page("sac", "Idea.")
    rates = "`0.0003` | `[[0.0, 0.001], [200000.0, 0.0003]]`: sac<br>`0.001`: drq, sac_pendulum<br>`0.0001`: simba"
    assert f"| `actor_lr` | {rates} | Learning rate of the actor. |" in page
    assert {f.name for f in dataclasses.fields(SACConfig)} <= set(re.findall(r"^\| `(\w+)", page, re.MULTILINE))
    assert "J_Q = sum_i E[(Q_i(s, a) - y)^2 / 2]: equation 5" in page
    assert "| `train/temperature` | SAC: alpha" in page


@pytest.mark.parametrize("page", [page for page in PAGES if documentation().is_tutorial(page)])
def test_a_notebook_has_all_of_its_page(page: str) -> None:
    cells = json.loads(documentation().run_notebook(page))["cells"]  # raises if it is older than its page
    codes = ["".join(cell["source"]).splitlines() for cell in cells if cell["cell_type"] == "code"]
    shown = [(c, code) for c, code in blocks(PAGES[page], "python", "sh") if code.strip()]
    assert len(codes) == len(shown) > 1
    for lines, (comment, code) in zip(codes, shown, strict=True):
        magic = "%%writefile" if re.fullmatch(r"test: \w+\.py", comment) else "!" if lines[0].startswith("!") else ""
        assert lines[0].startswith(magic)
        assert [line.removeprefix("!") for line in lines if not line.startswith("%%")] == [
            line for line in code.rstrip().splitlines() if line.strip() or not lines[0].startswith("!")
        ]
    outputs = [cell["outputs"] for cell in cells if cell["cell_type"] == "code"]
    shown = next(filter(None, reversed(outputs)))  # the page of a report is not kept
    assert any("image/svg+xml" in output.get("data", {}) for output in shown)  # its subject
    assert not re.search("━|timing updates", str(outputs))


# ---------------------------------------------------------------- tables


IMAGE = {"image": ObsPart(kind="image", shape=(64, 64, 3), dtype="uint8")}
VECTOR = {"observation": ObsPart(kind="vector", shape=(24,), dtype="float32")}
SIX = ActionSpec(parts={"action": ActionPart(kind="categorical", classes=(6,))})
TURNS = ActionSpec(parts={"action": ActionPart(kind="continuous", size=6)})


def test_the_table_of_sizes() -> None:
    expected = []
    for name in SIZES:
        config = with_size(name)
        with torch.device("meta"):  # shapes without memory
            pair = ((IMAGE, SIX), (VECTOR, TURNS))
            counts = [DreamerV3(obs, act, config, torch.device("meta")).optim.count for obs, act in pair]
        r, e = config.rssm, config.encoder
        widths = [r.deter, r.hidden, f"{r.stoch} x {r.classes}", e.depth, e.units]
        expected.append([name, *map(str, widths), *(f"{count:,}" for count in counts)])
    assert rows("docs/dreamer_v3.md", "| size |") == expected


def test_the_table_of_environment_options() -> None:
    table = {name.removeprefix("env."): default for name, default, _ in rows("docs/env_options.md", "| option |")}
    config = EnvConfig()
    assert table == {name: str(getattr(config, name)) or "''" for name in table}


def test_the_table_of_suites() -> None:
    table = rows("docs/suites.md", "| suite |")
    listed = [suite for suite in SUITES if suite.title != "tests"]
    assert [row[0] for row in table] == [suite.title for suite in listed]
    for suite, (_, ids, extra, preset, state) in zip(listed, table, strict=True):
        assert (ids, extra) == (", ".join(suite.prefixes), suite.extra)
        assert preset == preset_name("dreamer_v3", suite.example.split("--env ")[1].split()[0])
        reason = suite.untested_reason
        assert state.startswith(f"not trained, {reason}; " if reason else f"reverie train {suite.example}")
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert {suite.extra for suite in SUITES} <= {"", *extras}


def test_the_table_of_formats() -> None:
    assert not [entry.name for entry in FORMATS if entry.name not in PAGES["docs/datasets.md"]]


def test_the_table_of_wrappers() -> None:
    for name, settings, _ in (table := rows("docs/env_options.md", "| wrapper |")):
        own = list(inspect.signature(SHORT[name]).parameters.values())[1:]
        assert settings == ", ".join(str(one.replace(annotation=one.empty)) for one in own)
    assert [row[0] for row in table] == list(SHORT)


# ---------------------------------------------------------------- the worked example of the loop


def test_the_worked_example_of_the_loop() -> None:
    lengths = iter([4, 6, 9])
    env = make_vector_env(EnvConfig(num=3), seed=0, factory=lambda: Count(truncate_at=next(lengths)))
    window = Window(batch=2, length=3, context=1, crosses_episodes=True)
    replay = build_replay(
        ReplayConfig(capacity=300),
        obs_spec=env.obs_spec,
        action_spec=env.action_spec,
        extra_spec={},
        num_envs=3,
        window=window,
        seed=0,
    )
    collector = EnvCollector(env, DQNConfig().build(env.obs_spec, env.action_spec).policy, replay, seed=0)
    clock = Clock(length=1000, replay_ratio=0.3, learning_starts=6)
    table = rows("docs/loop.md", "| turn | rows")
    shown = {int(row[0]): row for row in table}
    for turn in range(1, 17):
        last = ", ".join(str(i) for i, ended in enumerate(collector.step.is_last.tolist()) if ended) or "-"
        taken = collector.collect()
        clock.env_steps += taken
        clock.episodes += sum(map(len, collector.pop_episodes()))
        due = clock.updates_due(len(replay))
        clock.updates += due
        credit = f"{clock.ratio.credit:.1f}"
        happened = [turn, last, taken, clock.env_steps, len(replay), credit, due, clock.updates, clock.episodes]
        assert shown.pop(turn, list(map(str, happened))) == list(map(str, happened))
    assert not shown
    env.close()
    assert clock.updates == int(0.3 * (42 - 14))


def test_the_counters_of_the_loop_are_those_of_the_logs() -> None:
    """Every name that the table gives is written by ``run/metrics_log.py``, or measured by two other files."""
    source = "".join(
        (ROOT / f"src/reverie/run/{name}.py").read_text(encoding="utf-8")
        for name in ("collect", "episodes", "metrics_log")
    )
    counters = set(re.findall(r"\"(\w+)\"", source[source.index("def _counters") :]))
    names = [name for row in rows("docs/loop.md", "| name | unit") for name in row[0].split(", ") if "/" in name]
    assert len(names) >= 10
    for name in names:
        group, _, rest = name.partition("/")
        assert rest in counters if group == "counters" else f'"{name}"' in source, name
