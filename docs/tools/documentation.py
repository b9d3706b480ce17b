#!/usr/bin/env python3
"""Build the documentation site, from docs/ and from the code: ``make docs``, then open build/site/index.html.

Written by hand are the pages of docs/, README.md and so on. A section of docs/algorithms.md is the page of that
algorithm, and its losses, settings and metrics are added from the code. The reference has one page for each room, and
one each for the command line, the settings of a run and the presets. A tutorial is also a notebook. All of it lies in
build/docs.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import functools
import html
import importlib
import inspect
import io
import json
import os
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
OUT = ROOT / "build" / "docs"
SOURCE = ROOT / "src" / "reverie"
MOVED = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md",
         "bench/README.md": "benchmarks.md", "LICENSE": "LICENSE.txt"}  # fmt: skip
"""Where files from outside of docs/ go."""
GENERATED = {"src/reverie/experiment/presets.py": "reference/presets.md"}
"""Pages of the site in place of files that pages link to."""
PLACES = ("src/reverie/", "")
"""Where `path.py` in a page may lie."""
BASE = (
    "<script>document.write(`<base href='${"
    r"location.pathname.replace(/(?<=\/)(?:(?:%s)\/.*|[^\/]*)$/, '')"
    "}'>`)</script>"
)
"""Lets links begin at the root of the site, wherever that is: above its folders."""
AGENT = "reverie.agent.agent"
"""Module whose page also has the members that its class inherits."""


def main() -> int:
    """Stage everything anew, build it, and return 1 if a link leads nowhere."""
    stage()
    tools = os.pathsep.join(filter(None, (str(HERE), os.environ.get("PYTHONPATH"))))  # for docstrings.py
    command = [Path(sys.executable).with_name("zensical"), "build", "--clean", "--strict", "-f", "build/mkdocs.yml"]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": tools})
    return done.returncode or finish(ROOT / "build" / "site")


def stage() -> None:
    """Write all pages and what belongs to them."""
    shutil.rmtree(OUT, ignore_errors=True)
    write("../mkdocs.yml", configuration())
    for path, text in pages().items():
        write(path, text)
    for path in (ROOT / "docs").rglob("*"):
        if path.suffix not in ("", ".md", ".ipynb") and HERE not in path.parents:
            write(path.relative_to(ROOT / "docs").as_posix(), path.read_bytes())


def write(path: str, content: str | bytes) -> None:
    """Write one file of the staged site."""
    file = OUT / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)


def finish(site: Path) -> int:
    """Make the pages whole without a network, and return 1 if something that they name is not there."""
    missing = set()
    for page in sorted(site.rglob("*.html")):
        text = page.read_text(encoding="utf-8")
        here = posixpath.relpath("worker.js", page.relative_to(site).parent.as_posix())
        text = text.replace("https://unpkg.com/iframe-worker/shim", here)
        text = text.replace("<th></th>", "<td></td>")  # a corner is no header
        if page.name == "404.html":  # shown at the address of any page that is missing
            folders = "|".join(sorted(path.name for path in site.iterdir() if path.is_dir()))
            text = re.sub(r'(href|src)="/(?!/)', r'\1="./', text).replace("<head>", f"<head>{BASE % folders}", 1)
        page.write_text(text, encoding="utf-8")
        named = re.findall(
            r'(?:href|src)="([^"#?]+)', re.sub(r"<(?:pre|code)\b.*?</(?:pre|code)>", "", text, flags=re.DOTALL)
        )
        for target in {html.unescape(target) for target in named}:
            elsewhere = re.match(r"\w+:", target)
            if not (elsewhere or (page.parent / target).exists()):
                missing.add(f"{page.relative_to(site)}: {target} does not exist")
        missing |= {f"{page.relative_to(site)}: {one} is loaded" for one in re.findall(r'src="(https?://[^"]+)', text)}
    print("\n".join(sorted(missing)) or f"{site / 'index.html'}", file=sys.stderr if missing else sys.stdout)
    return bool(missing)


def pages() -> dict[str, str]:
    """Return all text files of the site by their paths in it."""
    out = {new: Page(old).text() for old, new in homes().items()}
    out["index.md"] = first_page()
    by_hand = sections(out["algorithms.md"])
    out |= {f"algorithms/{name}.md": algorithm_page(name, by_hand[name]) for name in own_algorithms()}
    out["algorithms.md"] = re.split(r"^## ", out["algorithms.md"], maxsplit=1, flags=re.MULTILINE)[0] + overview()
    out |= dict(reference())
    out |= {path.replace(".md", ".ipynb"): run_notebook(old) for old, path in homes().items() if is_tutorial(old)}
    return out


LIVE = '<iframe src="images/step.html" title="Four rooms, and a dream of them, to walk in" loading="lazy"></iframe>'
"""A dream to walk in, on the first screen of the site."""


def first_page() -> str:
    """Return the README with a dream to walk in above its film."""
    return Page("README.md").text().replace("\n<a href", f"\n{LIVE}\n\n<a href", 1)


def configuration() -> str:
    """Return mkdocs.yml with an entry for the page of each algorithm, by kind."""
    lines = []
    for kind, names in algorithms_by_kind().items():
        lines.append(f"      - {kind}:\n")
        lines += [f"          - {title_of(name)[0]}: algorithms/{name}.md\n" for name in names]
    return re.sub(r" +- algorithms/ .*\n", "".join(lines), (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@functools.cache
def homes() -> dict[str, str]:
    """Return where each file written by hand goes."""
    docs = {path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")}
    return MOVED | {path: path.removeprefix("docs/") for path in sorted(docs)}


# ---------------------------------------------------------------- pages written by hand


@dataclasses.dataclass(frozen=True)
class Page:
    """One page written by hand."""

    path: str
    """In the repository."""

    def text(self) -> str:
        """Return it as the site has it: links lead to the site's pages, names of the code to the reference."""
        text = (ROOT / self.path).read_text(encoding="utf-8")
        if self.path == "LICENSE":
            return text
        parts = re.split(r"(^```.*?^```$)", text, flags=re.DOTALL | re.MULTILINE)
        parts[::2] = [self.prose(part) for part in parts[::2]]
        text = "".join(parts)
        if is_tutorial(self.path):
            text = text.replace("\n", f"\n\n[Download this page as a notebook]({Path(self.path).stem}.ipynb)\n", 1)
        return text

    def prose(self, text: str) -> str:
        """Return text between blocks of code."""
        text = re.sub(r"<!--.*?-->\n?", "", text, flags=re.DOTALL)
        text = re.sub(r"\$\$(.+?)\$\$", lambda found: typeset(found[1], "block"), text, flags=re.DOTALL)
        text = re.sub(r"(?<![\w`$])\$(?=[^\s$`])([^$\n`]+)\$", lambda found: typeset(found[1], "inline"), text)
        text = re.sub(r"`([\w/]+\.py)(?::\s([\w.]+))?`", named, text)
        text = re.sub(r'((?:href|src(?:set)?)=")docs/', r"\1", text)  # of README's film in HTML
        return re.sub(r"(\[(?:[^\[\]]|\[[^\]]*\])*\])\(([^)\s]+)\)", self.link, text)

    def link(self, found: re.Match[str]) -> str:
        """Return a link as it is from the staged page; what the site lacks is left as text."""
        text, target = found.groups()
        path, hash_, anchor = target.partition("#")
        if not path or "://" in path:
            return found[0]
        there = posixpath.normpath(posixpath.join(posixpath.dirname(self.path), path))
        home = (homes() | GENERATED).get(there, there.removeprefix("docs/") if there.startswith("docs/") else None)
        if home is None:
            return f"{text[1:-1]} (`{there}`)"
        if home == "algorithms.md" and anchor in own_algorithms():
            home, hash_, anchor = f"algorithms/{anchor}.md", "", ""
        return f"{text}({posixpath.relpath(home, posixpath.dirname(homes()[self.path]) or '.')}{hash_}{anchor})"


def typeset(latex: str, display: str) -> str:
    """Return equations as MathML, which browsers draw by themselves; those separated by a quad wrap on a phone."""
    from latex2mathml.converter import convert

    latex = re.sub(r"_\{([A-Za-z]{2,})\}", r"_{\\text{\1}}", latex.strip())
    parts = re.split(r"\\quad", latex) if display == "block" else [latex]
    names = {r"\\ln\b": r"\\,\\ln\\,", r"\\arg\\max": r"\\operatorname{argmax}"}
    for pattern, name in names.items():
        parts = [re.sub(pattern, name, part.strip()) for part in parts]
    made = " ".join(convert(part, display=display) for part in parts)
    if display == "inline":
        return made
    limits = r"<msub>(<m[oi][^>]*>(?:max|min|argmax|&#x02211;)</m[oi]>(?:<mi>\w</mi>|<mrow>.*?</mrow>))</msub>"
    return '<div class="equation">' + re.sub(limits, r"<munder>\1</munder>", made) + "</div>"


def named(found: re.Match[str]) -> str:
    """Return a link to the reference for `path.py: name` of the library."""
    path, name = found.groups()
    if not (SOURCE / path).is_file() or path == "__init__.py":
        return found[0]
    module = f"reverie.{path.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"
    if name and not hidden(name) and name in defined(SOURCE / path):
        return f"[{found[0]}][{module}.{name}]"
    return f"[{found[0]}][{module}]" if module in modules() else found[0]


def hidden(name: str) -> bool:
    """Return whether the reference leaves out a dotted name."""
    return any(part.startswith("_") for part in name.split("."))


@functools.cache
def defined(file: Path) -> frozenset[str]:
    """Return the names that the reference has of a file: classes, functions, methods and constants with a docstring."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    out: set[str] = set()
    inside = [(c.body, f"{c.name}.") for c in tree.body if isinstance(c, ast.ClassDef)]
    for body, prefix in [(tree.body, ""), *inside]:
        for node, after in zip(body, [*body[1:], None], strict=True):
            if isinstance(node, ast.FunctionDef | ast.ClassDef) and ast.get_docstring(node):
                out.add(prefix + node.name)
            elif isinstance(node, ast.AnnAssign | ast.Assign) and is_text(after):
                out.add(prefix + ast.unparse(node.target if isinstance(node, ast.AnnAssign) else node.targets[0]))
    return frozenset(out)


def is_text(node: ast.AST | None) -> bool:
    """Return whether a statement is a docstring."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# ---------------------------------------------------------------- algorithms


def own_algorithms() -> list[str]:
    """Return the names of the algorithms of this library."""
    from reverie.algos.table import ALGORITHMS

    return sorted(entry.name for entry in ALGORITHMS)


def algorithms_by_kind() -> dict[str, list[str]]:
    """Return the algorithms of this library by kind, in the order of their table."""
    from reverie.algos.table import ALGORITHMS, algorithm_config

    out: dict[str, list[str]] = {kind: [] for kind in ("World models", "On-policy", "Off-policy", "Offline")}
    for entry in ALGORITHMS:
        config: Any = algorithm_config(entry.name)
        bases = {base.__name__ for base in config.__mro__}
        if bases & {"DreamerConfig", "TDMPC2Config"}:
            out["World models"].append(entry.name)
        elif config.needs_data:
            out["Offline"].append(entry.name)
        else:
            out["On-policy" if getattr(config, "on_policy", False) else "Off-policy"].append(entry.name)
    return out


def sections(text: str) -> dict[str, str]:
    """Return the second-level sections of a page by their titles, without backticks."""
    found = re.split(r"^## (.*)$", text, flags=re.MULTILINE)[1:]
    return {title.strip("` "): body.strip() for title, body in zip(found[::2], found[1::2], strict=True)}


def title_of(name: str) -> tuple[str, str]:
    """Return an algorithm's title and its paper, from the docstring of its module."""
    module = importlib.import_module(f"reverie.algos.{name}")
    first = " ".join((module.__doc__ or "").split("\n\n")[0].split())
    title, _, paper = first.partition(": ")
    return re.sub(r" \(.*?\)", "", title), paper


def overview() -> str:
    """Return a table of the algorithms of each kind."""
    from reverie.algos.table import algorithm_config

    lines = []
    for kind, names in algorithms_by_kind().items():
        lines += [f"## {kind}", "", "| algorithm | | actions |", "|---|---|---|"]
        for name in names:
            config: Any = algorithm_config(name)
            actions = ", ".join(f"`{action}`" for action in sorted(config.action_kinds))
            lines.append(f"| [`{name}`](algorithms/{name}.md) | {title_of(name)[0]} | {actions} |")
        lines.append("")
    return "\n".join(lines)


def algorithm_page(name: str, by_hand: str) -> str:
    """Return the page of one algorithm."""
    from reverie.algos.table import algorithm_config

    module = importlib.import_module(f"reverie.algos.{name}")
    config: Any = algorithm_config(name)
    title, paper = title_of(name)
    body = re.sub(r"\]\((?!https?:|#)", "](../", by_hand)
    lines = [f"# {title}", "", f"*{paper}*" if paper else "", "", "```sh", command(name), "```", "", body, ""]
    if (ROOT / "docs" / "images" / "results" / f"{name}.svg").exists():
        lines += ["## Results", "", f"![Results of {name}](../images/results/{name}.svg)", "", made_by(name), ""]
    if found := losses(module):
        lines += ["## In the code", "", "| function | what it computes |", "|---|---|", *found, ""]
    lines += ["## Settings", "", settings_note(name), "", *settings_table(config(), name), ""]
    lines += ["## Metrics of an update", "", "| metric | meaning |", "|---|---|", *metrics(name, config), ""]
    return "\n".join(lines)


def made_by(name: str) -> str:
    """Return where the picture of an algorithm's results comes from."""
    from figures import pictures

    files = pictures()[f"results/{name}.svg"].data
    commands = " and ".join(f"`python bench/{file.removesuffix('.json')}.py`" for file in files)
    return f"From {commands}; each seed is a thin line or a dot. More: [benchmarks](../benchmarks.md)."


def command(name: str) -> str:
    """Return a command that trains with an algorithm."""
    from reverie.algos.table import algorithm_config

    config: Any = algorithm_config(name)
    env = "Pendulum-v1" if "discrete" not in config.action_kinds else "CartPole-v1"
    data = " --data PATH" if config.needs_data else ""
    return f"reverie train {name} --env {env}{data} --run runs/{name}"


def losses(module: Any) -> list[str]:
    """Return a row for each documented public method of the module's losses and learner, and for each function."""
    rows = []
    for kind in vars(module).values():
        if inspect.isclass(kind) and kind.__module__ == module.__name__ and not dataclasses.is_dataclass(kind):
            methods = {n: inspect.unwrap(f) for n, f in vars(kind).items() if callable(f)}
            names = [f"{kind.__name__}.{n}" for n, f in methods.items() if inspect.isfunction(f) and f.__name__ == n]
        elif inspect.isfunction(kind) and kind.__module__ == module.__name__:
            names = [kind.__name__]
        else:
            continue
        for dotted in names:
            said = docstring(functools.reduce(getattr, dotted.split("."), module))
            if said and not hidden(dotted) and not said.startswith("See "):
                rows.append(f"| [`{dotted}`][{module.__name__}.{dotted}] | {cell(said)} |")
    return rows


def docstring(of: Any) -> str:
    """Return the paragraphs of a docstring that come before its sections."""
    text = inspect.cleandoc(of.__doc__ or "")
    return re.split(r"\n\s*(?:Args|Raises|Returns|Yields):\n", text)[0].strip()


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    text = re.sub(r"``(.+?)``", r"`\1`", linked(text))
    return " ".join(re.sub(r"\n\n+", "<br>", text).split()).replace("|", "\\|")


def linked(text: str) -> str:
    """Return a docstring with links to what its roles name, such as :class:`~reverie.core.types.Batch`."""
    return re.sub(r":(?:class|func|meth|mod|attr|data):`(~?)([\w.]+)`", link, text)


def link(found: re.Match[str]) -> str:
    """Return a link to what a role names in full, or its name."""
    import reverie

    short, path = found.groups()
    name = path.rpartition(".")[2] if short else path
    if (public := path.removeprefix("reverie.")) in reverie.__all__:
        path = f"{getattr(reverie, public).__module__}.{public}"
    return f"[`{name}`][{path}]" if path.startswith("reverie.") else f"`{name}`"


def settings_note(name: str) -> str:
    """Return what the columns of the table of settings are."""
    from reverie.algos.table import algorithm_config
    from reverie.experiment.presets import TABLE

    config = algorithm_config(name)
    kinds = [config, *(kind for kind in config.__bases__ if "Settings that" in (kind.__doc__ or ""))]
    source = cell(" ".join(docstring(kind) for kind in kinds))
    found = [f"- `{preset}`: {one.description}" for preset, one in TABLE.items() if one.algorithm == name]
    presets = ["", "Presets change some, and say where their values are from:", "", *found] if found else []
    return "\n".join([f"{source} Flags are `--algo.NAME`.", *presets])


def settings_table(config: Any, name: str) -> list[str]:
    """Return a table of all settings of an algorithm, with what its presets make of them."""
    from reverie.experiment.presets import TABLE
    from reverie.experiment.settings import make_preset

    presets = {preset: flat(make_preset(preset).algo) for preset, one in TABLE.items() if one.algorithm == name}
    lines = ["| setting | default | in presets | meaning |", "|---|---|---|---|"]
    for path, (value, meaning) in flat(config).items():
        others: dict[str, list[str]] = {}
        for preset, values in presets.items():
            if path in values and values[path][0] != value:
                others.setdefault(values[path][0], []).append(preset)
        said = "<br>".join(f"`{one}`: {', '.join(names)}" for one, names in others.items())
        lines.append(f"| `{path}` | `{value}` | {said} | {cell(meaning)} |")
    return lines


def flat(config: Any) -> dict[str, tuple[str, str]]:
    """Return value and docstring of each setting by its dotted path."""
    from reverie.cli.parsing import format_flag_value, iter_options

    return {
        option.path: (format_flag_value(option.default).replace("|", "\\|"), option.description)
        for option in iter_options(config)
    }


def metrics(name: str, config: Any) -> list[str]:
    """Return a row for each metric of an update with few rows."""
    sys.path.append(str(ROOT / "tools"))
    from speed_pairs import learner_and_batch

    page = (ROOT / "docs/metrics.md").read_text(encoding="utf-8")
    rows = {name: row for row in page.splitlines() for name in re.findall(r"^\| `([^`]+)` \|", row)}
    settings = {"batch_size": 4, "horizon": 3}
    if name.startswith(("dreamer", "plan2explore", "r2dreamer")):
        settings["batch_length"] = 6
    if config.on_policy:
        settings = {} if name == "a2c" else {"rollout": 8, "batch_size": 8}
    learner, batch = learner_and_batch(name, settings)
    logged = {
        "/".join(metric.split("/")[:2])
        for _ in range(2 if name.startswith("td3") else 1)  # the actor: every second
        for metric in learner.update(batch).metrics
    }
    return [row for metric, row in rows.items() if metric in logged]


# ---------------------------------------------------------------- reference


@functools.cache
def modules() -> dict[str, str]:
    """Return the file of each module of the library in the reference, without its ending."""
    out = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        if len(parts) > 1 and parts[-1] == "__init__":
            out[f"reverie.{'.'.join(parts[:-1])}"] = parts[0]
        elif not parts[-1].startswith("__"):
            out[f"reverie.{'.'.join(parts)}"] = "/".join(parts)
    return out


def reference() -> Iterator[tuple[str, str]]:
    """Yield path and text of each page of the reference."""
    rooms = {path for path in modules().values() if (SOURCE / path).is_dir()}
    for name, path in modules().items():
        if path not in rooms:
            inherited = ", inherited_members: true" if name == AGENT else ""
            hidden_from_search = "---\nsearch: {exclude: true}\n---\n"  # otherwise members come before guides
            page = f"::: {name}\n    options: {{heading_level: 1{inherited}}}\n"
            yield f"reference/{path}.md", hidden_from_search + page
    for room in rooms:
        inside = [name for name, path in modules().items() if path.startswith(f"{room}/")]
        lines = [
            f"# reverie.{room} {{ #reverie.{room} }}",
            "",
            docstring(importlib.import_module(f"reverie.{room}")),
            "",
        ]
        yield f"reference/{room}.md", "\n".join([*lines, *table_of(inside)])
    alone = [name for name, path in modules().items() if "/" not in path and path not in rooms]
    yield "reference/reverie.md", "\n".join([*public_names(), "## Modules that stand alone", "", *table_of(alone)])
    yield "reference/commands.md", command_line()
    yield "reference/settings.md", settings()
    yield "reference/presets.md", presets()


def table_of(names: list[str]) -> list[str]:
    """Return a table of modules, read without running them."""
    lines = ["| module | |", "|---|---|"]
    for name in names:
        said = ast.get_docstring(ast.parse((SOURCE / f"{modules()[name]}.py").read_text(encoding="utf-8"))) or ""
        lines.append(f"| [`{name}`][{name}] | {cell(said.partition(chr(10) * 2)[0])} |")
    return lines


def public_names() -> list[str]:
    """Return the table of the names of `import reverie`."""
    import reverie

    lines = ["# The Python interface", "", "`import reverie` has these names.", "", "| name | |", "|---|---|"]
    for name in reverie.__all__:
        said = docstring(getattr(reverie, name)).split("\n\n")[0]
        lines.append(f"| [`{name}`][{getattr(reverie, name).__module__}.{name}] | {cell(said)} |")
    return [*lines, ""]


def command_line() -> str:
    """Return what `--help` says of each command."""
    from reverie import cli
    from reverie.cli.data import COMMANDS as DATA_COMMANDS
    from reverie.cli.main import COMMANDS

    lines = ["# The command line", "", "```text", printed(lambda: cli.main(["--help"])), "```", ""]
    os.environ["COLUMNS"] = "100"
    groups = {"train": ["train dreamer_v3"], "data": [f"data {name}" for name in DATA_COMMANDS], "help": []}
    for name in (each for command in COMMANDS for each in groups.get(command, [command])):
        text = printed(functools.partial(cli.main, [*name.split(), "--help"]))
        lines += [f"## reverie {name}", "", "```text", text, "```", ""]
    return "\n".join(lines)


def printed(call: Callable[[], Any]) -> str:
    """Return what a call prints, without colors."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        call()
    return re.sub(r"\x1b\[[0-9;]*m", "", out.getvalue()).rstrip()


def settings() -> str:
    """Return the page of all settings of a run but the algorithm's."""
    from reverie.experiment.config import ExperimentConfig
    from reverie.experiment.rules import DEVICE_RULES, RULES

    lines = [
        "# Settings of a run",
        "",
        "Flags are `--NAME`. Those of algorithms are on [their pages](../algorithms.md).",
        "",
    ]
    lines += ["| setting | default | meaning |", "|---|---|---|"]
    for path, (value, meaning) in flat(ExperimentConfig()).items():
        if not path.startswith("algo."):
            lines.append(f"| `{path}` | `{value}` | {cell(meaning)} |")
    lines += ["", "## What does not go together", "", "The first of these errors that applies is reported.", ""]
    return "\n".join([*lines, *map(rule_line, RULES), "", *ON_DEVICE_HEAD, *map(rule_line, DEVICE_RULES)]) + "\n"


def rule_line(message: str) -> str:
    """Return the text of a rule with the names of its settings instead of their values."""
    return "- " + cell(re.sub(r"\{c\.(?:config\.)?([\w.]+)(?::g)?\}", r"*\1*", message))


ON_DEVICE_HEAD = ("Not supported with environments on a device:", "")


def presets() -> str:
    """Return the page of all presets, and of what changes without a GPU."""
    from reverie.envs.config import EnvConfig
    from reverie.experiment.presets import CPU_SUFFIX, ON_CPU, TABLE
    from reverie.experiment.settings import Draft, make_preset

    lines, small = [PRESETS_HEAD], [ON_CPU_HEAD]
    for name, one in TABLE.items():
        config: Any = make_preset(name)
        env = "any" if name == one.algorithm or config.env.id == EnvConfig().id else f"`{config.env.id}`"
        ids = ", ".join(f"`{start}*`" for start in one.env_prefixes.split()) or env
        recorded, size = "updates" in one.settings, one.settings.get("size", "")
        rows = config.train_ratio or (config.replay_ratio or 0) * config.algo.batch_size * config.algo.batch_length
        ratio = f"{rows:g}" if rows and not recorded else ""
        about = f"{cell(one.description)} | {ids} | {config.env.num}"
        lines.append(f"| `{name}` | {about} | {length(config, recorded)} | {size} | {ratio} |")
        if name in ON_CPU:
            config = Draft(config.fields()).apply(ON_CPU[name]).build()
            ratio = "" if recorded or config.replay_ratio is None else f"{config.replay_ratio:g}"
            often = f"every {config.schedule.eval_every}" if config.evaluates_during_training else "at the end"
            size = ON_CPU[name].get("size", size)
            small.append(f"| `{name}{CPU_SUFFIX}` | {length(config, recorded)} | {size} | {ratio} | {often} |")
    return "\n".join([*lines, *small]) + "\n"


def length(config: Any, recorded: bool) -> str:
    """Return how long a run of a preset is."""
    return f"{config.updates:,} updates" if recorded else f"{config.steps:,}"


PRESETS_HEAD = """# Presets

An environment whose id begins as in `ALE/*` gets that preset, any other the preset with the algorithm's name;
`--preset NAME` selects one. The train ratio is in replayed rows for each env step.

| preset | what it is | environment | environments at once | steps | size | train ratio |
|---|---|---|---|---|---|---|"""
ON_CPU_HEAD = """
## Without a GPU

| preset | steps | size | updates per step | evaluations |
|---|---|---|---|---|"""


# ---------------------------------------------------------------- notebooks


def is_tutorial(path: str) -> bool:
    """Return whether a page is also a notebook."""
    return (path.startswith("docs/tutorials/") and not path.endswith("index.md")) or path == "docs/own_algorithm.md"


def notebook(path: str) -> str:
    """Return a page as a notebook. A block that is a file is written; one of shell lines runs in a shell.

    The pictures after a block are its outputs.
    """
    text, end = (ROOT / path).read_text(encoding="utf-8"), 0
    cells: list[dict[str, Any]] = [{"cell_type": "markdown", "source": INSTALL}]
    blocks = list(re.finditer(r"(?:<!--\s*([^\n]*?)\s*-->\n)?```(python|sh)\n(.*?)```\n", text, re.DOTALL))
    for found in [*blocks, None]:
        prose = text[end : found.start() if found else None]
        if blocks and end and (pictures := re.findall(PICTURE, prose)):
            cells[-1]["outputs"] = [
                picture_output((ROOT / path).parent / file, alt) for alt, file in pictures if "/tutorials/" in file
            ]
        if prose := re.sub(rf"{PICTURE}\n?", "", prose).strip():
            cells.append({"cell_type": "markdown", "source": prose})
        if found:
            end = found.end()
            cells.append({"cell_type": "code", "execution_count": None, "outputs": [], "source": code_cell(found)})
    cells = [{"id": f"cell-{number}", "metadata": {}, **one} for number, one in enumerate(cells)]
    kernel = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}}
    return json.dumps({"cells": cells, "metadata": kernel, "nbformat": 4, "nbformat_minor": 5}, indent=1)


def kept_notebook(path: str) -> Path:
    """Return the file of a page's notebook with its outputs, which `notebooks.py` writes."""
    return ROOT / "docs" / "notebooks" / f"{Path(path).stem}.ipynb"


def run_notebook(path: str) -> str:
    """Return a page's notebook with its outputs; raise if it was run from other cells than the page has now."""
    text = kept_notebook(path).read_text(encoding="utf-8")
    if cell_sources(text) != cell_sources(notebook(path)):
        raise ValueError(f"{kept_notebook(path)} is older than {path}: make notebooks")
    return text


def training_seconds(text: str) -> int:
    """Return the seconds of all training runs of a notebook, from the clocks in its outputs."""
    total = 0
    for cell in json.loads(text)["cells"]:
        seconds = 0
        for output in cell.get("outputs", []):
            for clock in re.findall(
                r"^ *(\d+:\d\d:\d\d) |elapsed +(\d+:\d\d:\d\d)", "".join(output.get("text", "")), re.M
            ):
                hours, minutes, rest = map(int, "".join(clock).split(":"))
                now = 3600 * hours + 60 * minutes + rest
                total, seconds = total + (seconds if now < seconds else 0), now  # another run begins
        total += seconds
    return total


def cell_sources(text: str) -> list[str]:
    """Return what the cells of a notebook say."""
    return ["".join(cell["source"]) for cell in json.loads(text)["cells"]]


PICTURE = r"!\[([^\]]*)\]\(([^)]*)\)"


def picture_output(file: Path, alt: str) -> dict[str, Any]:
    """Return a picture as the output of a cell."""
    data = {"image/svg+xml": file.read_text(encoding="utf-8"), "text/plain": [alt]}
    return {"output_type": "display_data", "metadata": {}, "data": data}


def code_cell(found: re.Match[str]) -> str:
    """Return what a block is in a notebook."""
    comment, language, code = found.groups("")
    file = re.fullmatch(r"test: (\w+\.py)", comment)
    if language == "sh":
        return "\n".join(f"!{line}" for line in code.splitlines() if line.strip())
    return f"%%writefile {file[1]}\n{code}".rstrip() if file else code.rstrip()


INSTALL = '*A page of reverie\'s documentation. It needs `pip install "reverie-rl[classic,minigrid]"`.*'


if __name__ == "__main__":
    sys.exit(main())
