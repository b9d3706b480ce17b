#!/usr/bin/env python3
"""Make the pictures of README and site from the results in benchmarks/, and those of the tutorials from their code.

    python docs/tools/figures.py                 # whatever is older than its data
    python docs/tools/figures.py --tutorials     # also the pictures of tutorials, which run in minutes
    python docs/tools/figures.py --check         # only say what is older

Each PNG holds a hash of what it was made from, so that nobody has to remember. docs/images/dream.gif is a film of one
run (docs/tools/hero.py) and has no data.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from reverie.core.statistics import interval, iqm
from reverie.log.plot import GRAY, ORANGE, style_axes

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
KEY = "made-from"
"""Name of the hash in a PNG."""
Rows = Sequence[Mapping[str, Any]]


class Picture(NamedTuple):
    """One picture that is drawn from results."""

    data: tuple[str, ...]
    """Files in benchmarks/."""
    draw: Callable[..., Figure]
    """Called with their contents."""


def pictures() -> dict[str, Picture]:
    """Return each picture by its path below docs/images."""
    out = {"demo.png": Picture(("demo.json",), demo)}
    out["speed.png"] = Picture(
        ("update_peers.json", "model_free_peers.json", "on_policy.json", "offline_rates.json"), speed
    )
    for file, key in (("model_free.json", "learning"), ("dreamers.json", "rows")):
        names = {row["algorithm"] for row in read(file)[key] if row.get("curve")} - {"random"}
        for name in sorted(name for name in names if f"results/{name}.png" not in out):
            out[f"results/{name}.png"] = Picture((file,), lambda data, name=name, key=key: curves(data[key], name))
    for name in sorted({row["algorithm"] for row in read("offline.json")["rows"]}):
        if f"results/{name}.png" not in out and (ROOT / f"src/reverie/algos/{name}.py").exists():
            out[f"results/{name}.png"] = Picture(("offline.json",), lambda data, name=name: levels(data["rows"], name))
    for name in ("explore", "results/plan2explore_v1", "results/plan2explore_v3"):
        out[f"{name}.png"] = Picture(("dreamers.json",), cells)
    out["results/ppo.png"] = Picture(("on_policy.json",), seeds_of_ppo)
    out["results/dreamer_v3.png"] = Picture(("cartpole.json", "demo.json"), dreamer_v3)
    return out


def read(name: str) -> Any:
    """Return a file of results."""
    return json.loads((ROOT / "benchmarks" / name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------- drawings


def demo(data: Mapping[str, Any]) -> Figure:
    """The seeds of `make demo`."""
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = style_axes(figure.subplots(), "env steps", "mean return of an evaluation")
    seeds_in(axes, [row["curve"] for row in data["rows"]])
    return figure


def seeds_in(axes: Axes, found: Sequence[Sequence[Sequence[float]]], points: int = 40) -> None:
    """Draw each seed thinly, and their interquartile mean with its interval; who has stopped keeps the last score."""
    seeds = [np.array(curve, float).T for curve in found]
    steps = np.linspace(max(s[0, 0] for s in seeds), max(s[0, -1] for s in seeds), points)
    scores = np.stack([np.interp(steps, *s) for s in seeds])
    for number, (x, y) in enumerate(seeds):
        axes.plot(x, y, color=GRAY, alpha=0.55, lw=0.9, label=None if number else f"each of {len(seeds)} seeds")
    axes.plot(steps, [iqm(column) for column in scores.T], color=ORANGE, lw=2.2, label="interquartile mean")
    if len(seeds) > 2:
        low, high = np.array([interval(iqm, column) for column in scores.T]).T
        axes.fill_between(steps, low, high, color=ORANGE, alpha=0.2, lw=0, label="its 95 % interval")
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.legend(frameon=False, loc="lower right")


def curves(rows: Rows, name: str) -> Figure:
    """The learning curves of one algorithm, a panel for each environment."""
    key = "env" if "env" in rows[0] else "task"
    envs = sorted({row[key] for row in rows if row["algorithm"] == name and row.get("curve")})
    figure = Figure(figsize=(max(6.5, 4.4 * len(envs)), 3.6), layout="constrained")
    for axes, env in zip(figure.subplots(1, len(envs), squeeze=False)[0], envs, strict=True):
        found = [row["curve"] for row in rows if (row["algorithm"], row[key]) == (name, env) and row.get("curve")]
        seeds_in(style_axes(axes, "env steps", "mean return of an evaluation"), found)
        axes.set_title(env.removeprefix("models_"))
    return figure


def levels(rows: Rows, name: str) -> Figure:
    """The returns that an offline algorithm reached from data of several levels."""
    envs = sorted({row["env"] for row in rows if row["algorithm"] == name})
    figure = Figure(figsize=(max(6.5, 4.4 * len(envs)), 3.2), layout="constrained")
    order = ["random", "medium", "mixed", "medium-expert", "expert"]
    for axes, env in zip(figure.subplots(1, len(envs), squeeze=False)[0], envs, strict=True):
        mine = [row for row in rows if (row["algorithm"], row["env"]) == (name, env)]
        known = [level for level in order if any(row["level"] == level for row in mine)]
        scores = [[row["score"] for row in mine if row["level"] == level] for level in known]
        bars(style_axes(axes, "data", "mean return"), known, scores)
        axes.set_title(env)
    return figure


def bars(axes: Axes, names: Sequence[str], scores: Sequence[Sequence[float]]) -> None:
    """Draw each seed as a dot, and a mark at their mean."""
    for place, values in enumerate(scores):
        axes.plot([place] * len(values), values, "o", color=GRAY, ms=4)
        axes.plot([place - 0.25, place + 0.25], [np.mean(values)] * 2, color=ORANGE, lw=2.2)
    axes.set_xticks(range(len(names)), [name.replace("-", "-\n") for name in names])
    axes.margins(x=0.15, y=0.1)


OF_PPO = {
    "cartpole": "CartPole-v1", "pendulum_half": "Pendulum-v1", "acrobot_normalized": "Acrobot-v1",
    "lunar_lander": "LunarLander-v3", "cheetah": "HalfCheetah-v5", "breakout": "MinAtar/Breakout-v1",
    "doors": "MiniGrid-DoorKey-6x6", "doors_memory": "MiniGrid-DoorKey-6x6, LSTM", "cue": "Cue, no memory",
    "cue_memory": "Cue, LSTM", "cue_window": "Cue, transformer",
}  # fmt: skip
"""Tasks of on_policy.json, and what they are called."""


def seeds_of_ppo(data: Mapping[str, Any]) -> Figure:
    """PPO's returns, here and in Stable-Baselines3."""
    found = {task: [r for r in data["rows"] if (r["part"], r["task"]) == ("results", task)] for task in OF_PPO}
    tasks = [task for task, rows in found.items() if rows]
    figure = Figure(figsize=(11, 8), layout="constrained")
    panels = figure.subplots(-(-len(tasks) // 4), 4).ravel()
    for axes, task in zip(panels, tasks, strict=False):
        systems = [row["system"].partition(" ")[0].replace("Stable-Baselines3", "SB3") for row in found[task]]
        bars(style_axes(axes, "", "mean return"), systems, [row["scores"] for row in found[task]])
        axes.set_title(OF_PPO[task], fontsize=9)
    for axes in panels[len(tasks) :]:
        axes.remove()
    return figure


def dreamer_v3(cartpole: Mapping[str, Any], minigrid: Mapping[str, Any]) -> Figure:
    """DreamerV3 on CartPole-v1, at the end of training, and on the demo's MiniGrid."""
    figure = Figure(figsize=(9, 3.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1, 3))
    bars(
        style_axes(left, "", "mean return of 20 episodes"),
        [f"{len(cartpole['rows'])} seeds"],
        [[r["mean"] for r in cartpole["rows"]]],
    )
    left.set(title="CartPole-v1", ylim=(0, 520))
    seeds_in(style_axes(right, "env steps", "mean return of an evaluation"), [row["curve"] for row in minigrid["rows"]])
    right.set_title("MiniGrid-Empty-Random-6x6-v0")
    return figure


def cells(data: Mapping[str, Any]) -> Figure:
    """How many cells of a maze without reward were seen."""
    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = style_axes(figure.subplots(), "env steps", "cells of the maze that were seen")
    for number, name in enumerate(("random", "dreamer_v3", "plan2explore_v1", "plan2explore_v3")):
        seeds = [np.array(r["cells"]).T for r in data["rows"] if (r["task"], r["algorithm"]) == ("maze", name)]
        for steps, seen in seeds:
            axes.plot(steps, seen, color=f"C{number}", alpha=0.3, lw=0.9)
        axes.plot(seeds[0][0], np.mean([seen for _, seen in seeds], 0), color=f"C{number}", lw=2.2, label=name)
    axes.legend(frameon=False)
    return figure


def speed(dreamers: Any, model_free: Any, on_policy: Any, offline: Any) -> Figure:
    """How many times as fast as each other library; 1 is reverie."""
    whole = [r for r in on_policy["rows"] if r["part"] == "speed" and r.get("threads", 1) == 1]
    panels = {
        "DreamerV3, update": ratios(dreamers["rows"], "setting", "ratio", {"V": "vector", "I": "image"}),
        "Model-free, update": ratios(model_free["rows"], "task", "ours_to_it"),
        "PPO, whole run": ratios(whole, "task", "ratio_per_cpu_s"),
        "Offline, update": ratios(offline["rows"], "task", "ours_to_it"),
    }
    files = [one["machine"] for one in (dreamers, model_free, on_policy, offline)]
    machines = [f"{one['processor']}, {one['cores']} cores" for one in files]
    figure = Figure(figsize=(11, 7.5), layout="constrained")
    for axes, (title, found), machine in zip(figure.subplots(2, 2).flat, panels.items(), machines, strict=True):
        names = sorted({system for _, system, _ in found})
        tasks = list(dict.fromkeys(task for task, _, _ in found))
        wide = 0.8 / len(names)
        for number, name in enumerate(names):
            mine = {task: ratio for task, system, ratio in found if system == name}
            at = [tasks.index(task) + (number - (len(names) - 1) / 2) * wide for task in mine]
            axes.barh(at, list(mine.values()), wide * 0.9, label=name)
        axes.axvline(1, color="black", lw=1)
        axes.set_xscale("log")
        axes.set_xticks([1, 2, 5, 10, 20, 50], ["1", "2", "5", "10", "20", "50"])
        axes.set_xticks([], minor=True)
        axes.set_yticks(range(len(tasks)), tasks)
        axes.invert_yaxis()
        axes.set(title=title, xlabel=f"reverie is ... times as fast\n{machine}")
        axes.legend(fontsize=7, frameon=False, loc="upper right")
    return figure


def ratios(rows: Rows, key: str, ratio: str, names: Mapping[str, str] | None = None) -> list[tuple[str, str, float]]:
    """Return task, system and how many times as fast reverie is, without reverie itself."""
    found = [
        (str(row[key]), re.sub(r" \S*\d+\.\d+\S*| [0-9a-f]{7}", "", row["system"]), row.get(ratio)) for row in rows
    ]
    return [
        (dict(names or {}).get(task, task), system, float(x)) for task, system, x in found if x and system != "reverie"
    ]


# ---------------------------------------------------------------- tutorials


def shown(page: Path) -> dict[str, Path]:
    """Return the pictures that the code of a tutorial saves, by their names in its working folder."""
    named = re.findall(r"\]\((\.\./images/tutorials/[\w.]+)\)", page.read_text(encoding="utf-8"))
    return {Path(name).name: (page.parent / name).resolve() for name in named}


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield comment, language and code of each block of a page that runs."""
    pattern = r"(?:<!--\s*([^\n]*?)\s*-->\n)?```(python|sh)\n(.*?)```\n"
    for found in re.finditer(pattern, page.read_text(encoding="utf-8"), re.DOTALL):
        yield found.groups("")  # type: ignore[misc]


def run(page: Path, keep: Mapping[str, Path]) -> None:
    """Run a tutorial as its reader would, and keep its pictures."""
    script = "import matplotlib; matplotlib.use('Agg')\n"
    with tempfile.TemporaryDirectory() as folder:
        for comment, language, code in blocks(page):
            if file := re.fullmatch(r"test: (\w+\.py)", comment):
                Path(folder, file[1]).write_text(code, encoding="utf-8")
            elif language == "python":
                script += code + "\n"
            else:
                lines = [shlex.split(line, comments=True) for line in code.splitlines() if line.strip()]
                script += "import subprocess, sys\n"
                script += "".join(f"subprocess.run([sys.executable, '-m', *{line!r}], check=True)\n" for line in lines)
        Path(folder, "page.py").write_text(f"{script}", encoding="utf-8")
        paths = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        subprocess.run([sys.executable, "page.py"], cwd=folder, env={**os.environ, "PYTHONPATH": paths}, check=True)
        for name, out in keep.items():
            with Image.open(Path(folder, name)) as image:
                save(image, out, digest_of_page(page))


# ---------------------------------------------------------------- what is older than its data


def digest(parts: Sequence[bytes]) -> str:
    """Return a hash of what a picture is made from."""
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def digest_of_page(page: Path) -> str:
    """Return that of a tutorial: of all of its code."""
    return digest([code.encode() for _, _, code in blocks(page)])


def wanted() -> dict[Path, str]:
    """Return each picture, with the hash of what it should be made from."""
    out = {
        IMAGES / path: digest([(ROOT / "benchmarks" / name).read_bytes() for name in one.data])
        for path, one in pictures().items()
    }
    return out | {path: digest_of_page(page) for page in tutorials() for path in shown(page).values()}


def tutorials() -> list[Path]:
    """Return the pages whose code saves pictures."""
    return [page for page in sorted((ROOT / "docs" / "tutorials").glob("*.md")) if shown(page)]


def made_from(path: Path) -> str:
    """Return the hash that a picture holds; "" if there is no picture."""
    if not path.exists():
        return ""
    with Image.open(path) as image:
        return str(image.info.get(KEY, ""))


def save(image: Image.Image, path: Path, hashed: str) -> None:
    """Write a PNG of few colors, with the hash of what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    info = PngInfo()
    info.add_text(KEY, hashed)
    image.convert("RGB").quantize(128, dither=Image.Dither.NONE).save(path, pnginfo=info, optimize=True)
    print(path.relative_to(ROOT))


def main() -> int:
    """Draw what is older than its data; return 1 if ``--check`` finds something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutorials", action="store_true", help="run the tutorials whose code is newer")
    parser.add_argument("--all", action="store_true", help="make those too that are not older")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture is older than its data")
    args = parser.parse_args()
    old = {path: hashed for path, hashed in wanted().items() if args.all or made_from(path) != hashed}
    if args.check:
        print("\n".join(f"{path.relative_to(ROOT)} is older than its data" for path in old) or "all pictures are new")
        return bool(old)
    for name, one in pictures().items():
        if (path := IMAGES / name) in old:
            figure = one.draw(*(read(file) for file in one.data))
            with tempfile.TemporaryFile() as file:
                figure.savefig(file, dpi=110)
                with Image.open(file) as image:
                    save(image, path, old[path])
    for page in tutorials() if args.tutorials else ():
        if {*shown(page).values()} & {*old}:
            run(page, shown(page))
    return 0


if __name__ == "__main__":
    sys.exit(main())
