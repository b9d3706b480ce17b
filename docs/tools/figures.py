#!/usr/bin/env python3
"""Make the pictures of README and site from the results in bench/.

    python docs/tools/figures.py                 # whatever is older than its data
    python docs/tools/figures.py --check         # only say what is older

Each SVG holds a hash of what it was made from, so that nobody has to remember. `notebooks.py` makes the pictures of
tutorials. docs/images/dream.gif is a film of one run (docs/tools/hero.py) and has no data.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from documentation import homes, is_tutorial
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator

from reverie.core.statistics import estimate_interval, iqm
from reverie.log.aggregate import MeasurementSettings, seeds_curve_data
from reverie.log.colors import BACKGROUND, BLUE, HUES, MUTED, ORANGE, TEXT, assign_hues
from reverie.log.plot import SIZE, draw_seeds, mark_finals
from reverie.log.style import SETTINGS, label_lines, new_panels, set_ends, style_axes
from reverie.log.themed_svg import themed_svg

ROOT = Path(__file__).resolve().parents[2]
IMAGES = ROOT / "docs" / "images"
Rows = Sequence[Mapping[str, Any]]


class Picture(NamedTuple):
    """One picture that is drawn from results."""

    data: tuple[str, ...]
    """Files in bench/."""
    draw: Callable[..., Figure]
    """Called with their contents."""


def pictures() -> dict[str, Picture]:
    """Return each picture by its path below docs/images."""
    out = {"demo.svg": Picture(("demo.json",), demo), "scaling.svg": Picture(("scaling.json",), scaling)}
    for name, draw in (("speed", speed), ("fastest", fastest)):
        out[f"{name}.svg"] = Picture(
            ("update_peers.json", "model_free_peers.json", "on_policy.json", "offline_rates.json"), draw
        )
    for file, key in (("model_free.json", "learning"), ("dreamers.json", "rows")):
        names = {row["algorithm"] for row in read(file)[key] if row.get("curve")} - {"random"}
        for name in sorted(name for name in names if f"results/{name}.svg" not in out):
            out[f"results/{name}.svg"] = Picture((file,), lambda data, name=name, key=key: curves(data[key], name))
    for name in sorted({row["algorithm"] for row in read("offline.json")["rows"]}):
        if f"results/{name}.svg" not in out and (ROOT / f"src/reverie/algos/{name}.py").exists():
            out[f"results/{name}.svg"] = Picture(("offline.json",), lambda data, name=name: levels(data["rows"], name))
    for name in ("explore", "results/plan2explore_v1", "results/plan2explore_v3"):
        out[f"{name}.svg"] = Picture(("dreamers.json",), cells)
    out["results/ppo.svg"] = Picture(("on_policy.json",), seeds_of_ppo)
    out["results/dreamer_v3.svg"] = Picture(("cartpole.json", "demo.json"), dreamer_v3)
    for name, column in (("steps", 0), ("seconds", 2)):
        out[f"efficiency_{name}.svg"] = Picture(
            ("sample_efficiency.json",), lambda data, column=column: efficiency(data["rows"], column)
        )
    return out


def read(name: str) -> Any:
    """Return a file of results."""
    return json.loads((ROOT / "bench" / name).read_text(encoding="utf-8"))


# ---------------------------------------------------------------- drawings

TITLES = {
    "bar": "a moving bar, from pixels", "minigrid": "MiniGrid-Empty-5x5-v0", "minigrid_r2": "MiniGrid-Empty-5x5-v0",
    "cartpole": "CartPole-v1", "pendulum": "Pendulum-v1", "models_breakout": "MinAtar/Breakout-v1",
    "models_cheetah": "HalfCheetah-v5", "models_pendulum": "Pendulum-v1", "models_walker": "walker-walk (dm_control)",
    "workshop_mask": "Workshop, a mask", "workshop_penalty": "Workshop, a penalty",
    "workshop_nothing": "Workshop, no hint", "pendulum_half": "Pendulum-v1",
    "acrobot_normalized": "Acrobot-v1", "lunar_lander": "LunarLander-v3", "cheetah": "HalfCheetah-v5",
    "breakout": "MinAtar/Breakout-v1", "doors": "DoorKey-6x6", "doors_memory": "DoorKey-6x6, LSTM",
    "cue": "Cue, no memory", "cue_memory": "Cue, LSTM", "cue_window": "Cue, transformer", "pong": "ALE/Pong-v5",
}  # fmt: skip
"""Tasks of the benchmarks, and what people call them."""
EFFICIENCY = {
    "hopper": "Hopper-v5", "reacher_easy": "reacher-easy (dm_control)", "cheetah": TITLES["cheetah"],
    "walker": "Walker2d-v5", "walker_walk": TITLES["models_walker"], "cheetah_run": "cheetah-run (dm_control)",
    "breakout": TITLES["breakout"], "asterix": "MinAtar/Asterix-v1", "door_key": "MiniGrid-DoorKey-6x6-v0",
    "key_corridor": "MiniGrid-KeyCorridorS3R1-v0",
}  # fmt: skip
"""Tasks of sample_efficiency.json."""
BEST = {"CartPole-v1": 500, "MiniGrid-Empty-5x5-v0": 1, "reverie/Rooms-v0": 1, TITLES["models_walker"]: 1000,
        EFFICIENCY["cheetah_run"]: 1000, EFFICIENCY["reacher_easy"]: 1000, EFFICIENCY["door_key"]: 1,
        EFFICIENCY["key_corridor"]: 1}  # fmt: skip
"""The highest return that each environment, by its title, can give; of the others it is not known."""
CAPTION = "Each line is a seed; from five seeds on, a thick line is their IQM with a 95 % interval.\n"
FINALS = "◆ IQM of evaluations at the end; ◇ evaluation at the end of a seed"


def caption(figure: Figure, text: str) -> Figure:
    """Write a sentence below a figure, and return it."""
    figure.supxlabel(text, x=0.02, ha="left", fontsize=9, color=MUTED)
    return figure


def mark_best(axes: Axes, title: str) -> None:
    """End the axis at the highest possible return, where it is known and the scores come close to it."""
    if BEST.get(title, np.inf) < 2 * axes.get_ylim()[1]:
        axes.axhline(BEST[title], color=MUTED, lw=1, ls=(0, (4, 3)))
        place = {"xytext": (3, -3), "textcoords": "offset points", "va": "top", "fontsize": 8}
        axes.annotate("best possible", (0, BEST[title]), xycoords=axes.get_yaxis_transform(), color=MUTED, **place)
        set_ends(axes, None, BEST[title])


def seeds_in(axes: Axes, rows: Rows, title: str) -> None:
    """Draw the learning curves of seeds; the last of two evaluations at the same step is marked as the final one."""
    points, ends = [], []
    for row in rows:
        steps, scores = np.array(row["curve"], float).T
        if steps[-1] == steps[-2]:
            ends.append((steps[-1], scores[-1]))
            steps, scores = steps[:-1], scores[:-1]
        points.append((steps, scores))
    middle = seeds_curve_data(points, MeasurementSettings("env steps", True, None, early=True)).interval()
    style_axes(axes, "env steps", "mean return of an evaluation", f"{title}: {len(points)} seeds")
    draw_seeds(axes, points, middle, ORANGE)
    final_steps, finals = np.array(ends).reshape(-1, 2).T
    mark_finals(axes, final_steps, finals, ORANGE)
    mark_best(axes, title)
    axes.set_xlim(left=0)
    values = {float(score) for _, scores in points for score in scores} | {*finals.tolist()}
    if len(values) == 1:
        text = f"each evaluation of each seed: {min(values):g}"
        axes.set_yticks([*values])
        axes.text(0.5, 0.6, text, transform=axes.transAxes, ha="center", color=TEXT)


def grid_of(count: int) -> tuple[Figure, list[Axes]]:
    """Return a figure with so many panels, two in a line."""
    return new_panels(count, min(2, count), SIZE if count == 1 else (4.2, 3.0), (0, 0.4))


def demo(data: Mapping[str, Any]) -> Figure:
    """The seeds of `make demo`."""
    figure, (axes,) = grid_of(1)
    seeds_in(axes, data["rows"], "reverie/Rooms-v0")
    return caption(figure, "Thin lines are seeds; the thick line is their IQM with a 95 % interval.")


def curves(rows: Rows, name: str) -> Figure:
    """The learning curves of one algorithm, a panel for each environment."""
    key = "env" if "env" in rows[0] else "task"
    mine = [row for row in rows if row["algorithm"] == name and row.get("curve")]
    envs = sorted({row[key] for row in mine})
    figure, grid = grid_of(len(envs))
    for axes, env in zip(grid, envs, strict=True):
        seeds_in(axes, [row for row in mine if row[key] == env], TITLES.get(env, env))
    return caption(figure, CAPTION + FINALS)


def levels(rows: Rows, name: str) -> Figure:
    """The returns that an offline algorithm reached from data of several levels."""
    envs = sorted({row["env"] for row in rows if row["algorithm"] == name})
    figure, grid = grid_of(len(envs))
    order = ["random", "medium", "mixed", "medium-expert", "expert"]
    for axes, env in zip(grid, envs, strict=True):
        mine = [row for row in rows if (row["algorithm"], row["env"]) == (name, env)]
        known = [level for level in order if any(row["level"] == level for row in mine)]
        scores = [[row["score"] for row in mine if row["level"] == level] for level in known]
        bars(style_axes(axes, "data", "mean return", env), known, scores)
        mark_best(axes, env)
    return caption(figure, "Each dot is a seed; a line is the mean.")


def bars(axes: Axes, names: Sequence[str], scores: Sequence[Sequence[float]], colors: Sequence[str] = ()) -> None:
    """Draw each seed as a dot, and a mark at their mean."""
    for place, values in enumerate(scores):
        color = colors[place] if colors else ORANGE
        shifts = 0.4 * (0.618 * np.arange(len(values)) % 1 - 0.5)  # equal scores do not hide each other
        axes.plot(place + shifts, values, "o", color=color, alpha=0.5)
        axes.plot([place - 0.3, place + 0.3], [np.mean(values)] * 2, color=color)
    counts = [f"{len(values)} seed{'s' * (len(values) > 1)}" for values in scores]
    labels = [name.replace("-", "-\n") + f"\n{count}" for name, count in zip(names, counts, strict=True)]
    axes.set_xticks(range(len(names)), labels)
    axes.tick_params(axis="x", labelsize=9)
    axes.margins(x=0.15, y=0.15)
    low, high = axes.get_ylim()
    if high - low < 0.1 * abs(high):
        axes.set_ylim(low - 0.05 * abs(high), high + 0.05 * abs(high))
    axes.grid(visible=False, axis="x")


PPO = ("cartpole", "pendulum_half", "acrobot_normalized", "lunar_lander", "cheetah", "breakout", "doors",
       "doors_memory", "cue", "cue_memory", "cue_window")  # fmt: skip
"""Tasks of on_policy.json with results of PPO."""


def seeds_of_ppo(data: Mapping[str, Any]) -> Figure:
    """PPO's returns, here and in Stable-Baselines3."""
    rows = {task: [r for r in data["rows"] if (r["part"], r["task"]) == ("results", task)] for task in PPO}
    figure, grid = new_panels(len(PPO), 3, (2.7, 2.2), (0, 0.4))
    for axes, task in zip(grid, PPO, strict=True):
        systems = [library(row["system"]) for row in rows[task]]
        style_axes(axes, "", "", TITLES[task])
        bars(axes, systems, [row["scores"] for row in rows[task]], [LIBRARIES[system] for system in systems])
    return caption(figure, "Mean return at the end. Each dot is a seed; a line is the mean.")


def dreamer_v3(cartpole: Mapping[str, Any], minigrid: Mapping[str, Any]) -> Figure:
    """DreamerV3 on CartPole-v1, at the end of training, and in the demo's rooms."""
    figure = Figure(figsize=(8.4, 3.6))
    left, right = figure.subplots(1, 2, width_ratios=(1, 3))
    bars(style_axes(left, "", "mean return of 20 episodes", "CartPole-v1"), ["DreamerV3"],
         [[r["mean"] for r in cartpole["rows"]]])  # fmt: skip
    left.set_ylim(bottom=0)
    mark_best(left, "CartPole-v1")
    seeds_in(right, minigrid["rows"], "reverie/Rooms-v0")
    return caption(figure, "Dots and thin lines are seeds; the thick line is their IQM with a 95 % interval.")


def cells(data: Mapping[str, Any]) -> Figure:
    """How many cells of a maze without reward were seen."""
    figure, (axes,) = grid_of(1)
    style_axes(axes, "env steps", "cells that were seen", "A maze without reward: 3 seeds each")
    labels = []
    names = ("random", "dreamer_v3", "plan2explore_v1", "plan2explore_v3")
    for hue, name in zip(assign_hues(names), names, strict=True):
        color = MUTED if name == "random" else HUES[hue]
        seeds = [np.array(r["cells"]).T for r in data["rows"] if (r["task"], r["algorithm"]) == ("maze", name)]
        for steps, seen in seeds:
            axes.plot(steps, seen, color=color, alpha=0.4, lw=1)
        middle = np.mean([seen for _, seen in seeds], 0)
        axes.plot(seeds[0][0], middle, color=color)
        labels.append((middle[-1], "random actions" if name == "random" else name, color))
    label_lines(axes, labels)
    axes.set_xlim(left=0)
    return caption(figure, "Thin lines are seeds; thick lines are means.")


LIBRARIES = {
    "reverie": ORANGE, "Stable-Baselines3": BLUE, "Tianshou": HUES[2], "TorchRL": HUES[3], "RLlib": HUES[4],
    "d3rlpy": HUES[5], "SheepRL": HUES[6], "authors' JAX": HUES[7], "r2dreamer": TEXT, "plain script": MUTED,
}  # fmt: skip
"""The color of each library."""


def library(system: str) -> str:
    """Return the library of a system in the results, such as ``"sheeprl 0.8.4, dreamer_v3"``."""
    names = {"ray[rllib]": "RLlib", "sheeprl": "SheepRL", "torchrl": "TorchRL"}
    names |= dict.fromkeys(("dreamerv3", "the"), "authors' JAX")
    first = re.split(r"[ ,]", system)[0]
    return names.get(first, first if first in LIBRARIES else "plain script")


def whole_runs(on_policy: Any) -> list[Any]:
    """Return the rows of whole runs at one thread."""
    return [r for r in on_policy["rows"] if r["part"] == "speed" and r.get("threads", 1) == 1]


def fastest(dreamers: Any, model_free: Any, on_policy: Any, offline: Any) -> Figure:
    """How many times as fast as the fastest other library, for four algorithms."""
    one_thread = [row for row in model_free["rows"] if row["threads"] == 1]
    points = {
        "DreamerV3": ratios([r for r in dreamers["rows"] if r["setting"] == "V"], "setting", "ratio"),
        "SAC": ratios([r for r in one_thread if r["task"] == "sac"], "task", "ours_to_it"),
        "PPO": ratios([r for r in whole_runs(on_policy) if r["task"] == "cheetah"], "task", "ratio_per_cpu_s"),
        "CQL": ratios([r for r in offline["rows"] if r["task"] == "cql"], "task", "ours_to_it"),
    }
    figure, (axes,) = new_panels(1, 1, (6.4, 2.2))
    axes.set_title("Times as fast as the fastest other library, on a CPU", x=0, pad=12)
    for at, systems in enumerate(points.values()):
        _, system, ratio = min(systems, key=lambda point: point[2])
        axes.barh(at, ratio, height=0.62, color=ORANGE)
        axes.text(ratio + 0.05, at, f"{ratio:.1f}", va="center", weight="bold")
        axes.text(ratio + 0.4, at, system, va="center", fontsize=9, color=MUTED)
    axes.axvline(1, color=TEXT, lw=1)
    axes.set(xlim=(0, 4.6), xticks=[0, 1], xticklabels=["", "1"], yticks=range(len(points)), yticklabels=[*points])
    axes.tick_params(axis="y", labelcolor=TEXT, length=0)
    axes.invert_yaxis()
    axes.grid(visible=False)
    return figure


def speed(dreamers: Any, model_free: Any, on_policy: Any, offline: Any) -> Figure:
    """How many times as fast as each other library; 1 is reverie."""
    whole = whole_runs(on_policy)
    updates = [row for row in model_free["rows"] if row["threads"] == 1 or row["task"] == "loop"]
    files = [one["machine"] for one in (dreamers, offline, model_free, on_policy)]
    machines = [f"{processor_name(one['processor'])}, {one['cores']} cores" for one in files]
    panels = {
        "DreamerV3: updates": ratios(dreamers["rows"], "setting", "ratio", {"V": "vectors", "I": "images"}),
        "Offline: updates": ratios(offline["rows"], "task", "ours_to_it"),
        "Model-free: updates": ratios(updates, "task", "ours_to_it", {"loop": "td3, whole loop"}),
        "PPO: whole runs": ratios(whole, "task", "ratio_per_cpu_s", TITLES),
    }
    counts = [len({task for task, _, _ in points}) for points in panels.values()]
    figure = Figure(figsize=(8.4, 6.4))
    halves = zip(figure.subfigures(1, 2), (counts[:2], counts[2:]), strict=True)
    grid = [axes for half, heights in halves for axes in half.subplots(2, 1, height_ratios=[1 + n for n in heights])]
    for axes, (title, points), machine in zip(grid, panels.items(), machines, strict=True):
        tasks = list(dict.fromkeys(task for task, _, _ in points))
        for task, system, ratio in points:
            axes.plot(ratio, tasks.index(task), "o", color=LIBRARIES[system], label=system, clip_on=False)
        for at, task in enumerate(tasks):
            mine = [ratio for name, _, ratio in points if name == task]
            ends = ((min(mine), "right", -6), (max(mine), "left", 6))
            for ratio, side, shift in ends if max(mine) > 1.05 * min(mine) else ends[1:]:
                place = {
                    "xytext": (shift, 0),
                    "textcoords": "offset points",
                    "ha": side,
                    "va": "center",
                    "bbox": {"fc": BACKGROUND, "ec": BACKGROUND, "pad": 0},
                }
                text = f"{ratio:.3g}" if ratio >= 10 else f"{ratio:.1f}"
                axes.annotate(text, (ratio, at), fontsize=8, color=MUTED, **place)
        axes.axvline(1, color=TEXT, lw=1)
        axes.set(xscale="log", title=title, xlim=(0.5, 300))
        axes.set_xticks([1, 2, 5, 10, 20, 50, 100], ["1", "2", "5", "10", "20", "50", "100"])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.set_yticks(range(len(tasks)), tasks)
        axes.set_ylim(len(tasks) - 0.5, -0.5)
        axes.grid(visible=False, axis="y")
        axes.set_xlabel(machine, fontsize=9)
    names = {
        label: handle for axes in figure.axes for handle, label in zip(*axes.get_legend_handles_labels(), strict=True)
    }
    figure.legend([names[name] for name in LIBRARIES if name in names], [name for name in LIBRARIES if name in names],
                  loc="outside lower center", ncols=5)  # fmt: skip
    figure.suptitle("Speed of reverie relative to other libraries (1: equally fast)", x=0.02, ha="left")
    return figure


def processor_name(processor: str) -> str:
    """Return the name of a processor without marks, families and the word itself."""
    return re.sub(r"\(.*?\)| Processor", "", processor).strip()


def ratios(rows: Rows, key: str, ratio: str, names: Mapping[str, str] | None = None) -> list[tuple[str, str, float]]:
    """Return task, library and how many times as fast reverie is, without reverie itself."""
    known = [row for row in rows if row.get(ratio) and row["system"] != "reverie"]
    return [(dict(names or {}).get(r[key], r[key]), library(r["system"]), float(r[ratio])) for r in known]


def scaling(data: Mapping[str, Any]) -> Figure:
    """Predicted env steps a second over actors, for one learner and for eight."""
    first = next(iter(data["costs"]))
    rows = [row for row in data["predicted"] if row["case"] == first]
    learners = sorted({row["learners"] for row in rows})
    figure, grid = new_panels(len(learners), 2, (4.2, 3.4), (0, 0.4))
    grid[1].sharey(grid[0])
    labels: list[list[tuple[float, str, str]]] = [[], []]
    for axes, count, ends in zip(grid, learners, labels, strict=True):
        style_axes(axes, "actors", "env steps a second", f"{count} learner{'s' * (count > 1)}")
        axes.set(xscale="log", yscale="log")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter("{x:,.0f}")
            axis.set_minor_locator(NullLocator())
        for color, ratio in zip(HUES, sorted({row["replay_ratio"] for row in rows}, reverse=True), strict=False):
            for envs, style in zip(sorted({row["envs"] for row in rows}), ("--", "-"), strict=True):
                key = (count, ratio, envs)
                line = [r for r in rows if (r["learners"], r["replay_ratio"], r["envs"]) == key]
                steps = [r["env_steps_per_second"] for r in line]
                axes.plot([r["actors"] for r in line], steps, style, color=color)
            ends.append((steps[-1], "1" if ratio == 1 else f"1/{1 / ratio:.0f}", color))
    for axes, ends in zip(grid, labels, strict=True):
        label_lines(axes, ends)
    few, many = sorted({row["envs"] for row in rows})
    return caption(figure, f"Predicted. Beside the lines: updates per env step. Dashed: {few} environment an actor; "
                   f"solid: {many}.")  # fmt: skip


GROUPS = {
    "continuous actions": ("hopper", "reacher_easy", "cheetah", "walker", "walker_walk", "cheetah_run"),
    "discrete actions": ("breakout", "asterix", "door_key", "key_corridor"),
}
"""Tasks of the panels that summarize sample_efficiency.json."""


def efficiency(rows: Rows, column: int) -> Figure:
    """The scores of each method over env steps (column 0 of its curve) or processor seconds (column 2)."""
    tasks = [task for task in EFFICIENCY if any(row["task"] == task for row in rows)]
    methods = sorted({row["method"].removeprefix("sb3_") for row in rows})
    colors = {name: HUES[hue] for name, hue in zip(methods, assign_hues(methods), strict=True)}
    figure, grid = new_panels(len(GROUPS) + len(tasks), 2, (4.6, 2.9), (0, 0.4))
    for axes, (kind, members) in zip(grid, GROUPS.items(), strict=False):
        summary(axes, [row for row in rows if row["task"] in members], kind, column, colors)
    for axes, task in zip(grid[len(GROUPS) :], tasks, strict=True):
        style_axes(axes, "env steps" if column == 0 else "seconds of processor time", "mean return", EFFICIENCY[task])
        curves = {
            method: np.array([row["curve"] for row in rows if (row["task"], row["method"]) == (task, method)])
            for method in sorted({row["method"] for row in rows if row["task"] == task})
        }
        middles = {method: iqm(curve[..., 1].T[..., None]) for method, curve in curves.items()}
        best, labels = max(middles, key=lambda method: middles[method][-1]), []
        for method, curve in curves.items():
            color, x = colors[method.removeprefix("sb3_")], curve[..., column].mean(0)
            strong = method == best
            axes.plot(
                x, middles[method], line_style(method), color=color, lw=2.5 if strong else 1, alpha=1 if strong else 0.6
            )
            if strong:
                axes.fill_between(x, curve[..., 1].min(0), curve[..., 1].max(0), color=color, alpha=0.15, lw=0)
            labels.append((float(middles[method][-1]), f"{method.replace('sb3_', 'SB3 ')} ({len(curve)})", color))
        mark_best(axes, EFFICIENCY[task])
        finish_axis(axes, column)
        label_lines(axes, labels)
    return caption(figure, "First two panels: scores from 0, the lowest IQM of a task, to 1, its highest; IQM and 95 % "
                   "interval over tasks and seeds,\nof methods that ran on all tasks. Others: IQM of evaluations; "
                   "the best is highlighted, from its lowest to its highest seed.\nParentheses: number of runs. SB3: "
                   "Stable-Baselines3.")  # fmt: skip


def line_style(method: str) -> str:
    """Return the style of a method's line: dashed for Stable-Baselines3."""
    return "--" if method.startswith("sb3_") else "-"


def finish_axis(axes: Axes, column: int) -> None:
    """Let env steps begin at 0, and draw seconds on a logarithmic axis."""
    if not column:
        axes.set_xlim(left=0)
        return
    axes.set_xscale("log")
    left, right = axes.get_xlim()
    ticks = [tick for tick in (10, 20, 50, 100, 200, 500, 1000) if left < tick < right]
    axes.set_xticks(ticks, [str(tick) for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())


def summary(axes: Axes, rows: Rows, kind: str, column: int, colors: Mapping[str, str]) -> None:
    """Draw the IQM of normalized scores of the methods that ran on all tasks of a group, with its interval."""
    tasks = sorted({row["task"] for row in rows})
    xlabel = "share of the env steps" if column == 0 else "seconds of processor time"
    style_axes(axes, xlabel, "normalized score", f"{len(tasks)} tasks with {kind}")
    curves: dict[tuple[str, str], np.ndarray] = {}
    for task, method in {(row["task"], row["method"]) for row in rows}:
        curves[task, method] = np.array([r["curve"] for r in rows if (r["task"], r["method"]) == (task, method)])
    ends = {}
    for task in tasks:
        middles = [iqm(curve[..., 1].T[..., None]) for (name, _), curve in curves.items() if name == task]
        ends[task] = min(map(np.min, middles)), max(map(np.max, middles))
    labels = []
    for method in [name for name in colors if all((task, name) in curves for task in tasks)]:
        mine = [curves[task, method] for task in tasks]
        x = [curve[..., column].mean(0) / (1 if column else curve[..., 0].max()) for curve in mine]
        at = np.linspace(max(line[0] for line in x), min(line[-1] for line in x), 10)
        scores = np.concatenate([
            [(np.interp(at, line, seed) - ends[task][0]) / (ends[task][1] - ends[task][0]) for seed in curve[..., 1]]
            for task, line, curve in zip(tasks, x, mine, strict=True)
        ])  # fmt: skip
        estimates = [estimate_interval(iqm, scores[:, i]) for i in range(len(at))]
        axes.plot(at, [e.value for e in estimates], color=colors[method])
        axes.fill_between(
            at, [e.low for e in estimates], [e.high for e in estimates], color=colors[method], alpha=0.15, lw=0
        )
        labels.append((estimates[-1].value, f"{method} ({len(scores)})", colors[method]))
    finish_axis(axes, column)
    label_lines(axes, labels)


# ---------------------------------------------------------------- tutorials


def shown(page: Path) -> dict[str, Path]:
    """Return the pictures that the code of a tutorial saves, by their names in its working folder."""
    named = re.findall(r"\]\(((?:\.\./)?images/tutorials/[\w.]+)\)", page.read_text(encoding="utf-8"))
    return {Path(name).name: (page.parent / name).resolve() for name in named}


def blocks(page: Path) -> Iterator[tuple[str, str, str]]:
    """Yield comment, language and code of each block of a page that runs."""
    pattern = r"(?:<!--\s*([^\n]*?)\s*-->\n)?```(python|sh)\n(.*?)```\n"
    for found in re.finditer(pattern, page.read_text(encoding="utf-8"), re.DOTALL):
        yield found.groups("")  # type: ignore[misc]


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
        IMAGES / path: digest([(ROOT / "bench" / name).read_bytes() for name in one.data])
        for path, one in pictures().items()
    }
    return out | {path: digest_of_page(page) for page in tutorials() for path in shown(page).values()}


def tutorials() -> list[Path]:
    """Return the pages that are also notebooks."""
    return [ROOT / page for page in homes() if is_tutorial(page)]


def made_from(path: Path) -> str:
    """Return the hash that a picture holds; "" if there is no picture."""
    found = re.search(r"<!-- made from (\w+) -->", path.read_text(encoding="utf-8")) if path.exists() else None
    return found[1] if found else ""


def save(svg: str, path: Path, hashed: str) -> None:
    """Write a figure that follows the reader's theme, with the hash of what it was made from."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{themed_svg(svg).rstrip()}\n<!-- made from {hashed} -->\n", encoding="utf-8")
    print(path.relative_to(ROOT))


def main() -> int:
    """Draw what is older than its data; return 1 if ``--check`` finds something."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--all", action="store_true", help="make those too that are not older")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a picture is older than its data")
    args = parser.parse_args()
    old = {path: hashed for path, hashed in wanted().items() if args.all or made_from(path) != hashed}
    if args.check:
        print("\n".join(f"{path.relative_to(ROOT)} is older than its data" for path in old) or "all pictures are new")
        return bool(old)
    for name, one in pictures().items():
        if (path := IMAGES / name) in old:
            with rc_context(SETTINGS), io.StringIO() as file:
                one.draw(*(read(file) for file in one.data)).savefig(file, format="svg")
                save(file.getvalue(), path, old[path])
    return 0


if __name__ == "__main__":
    sys.exit(main())
