#!/usr/bin/env python3
"""The tables of the pages in docs/ that `PAGES` names, from the results beside this script.

    python bench/table.py [--check]

They stand between the comments `<!-- table:NAME -->` and `<!-- /table -->`; nothing else is touched. `--check` writes
nothing and fails if a table is not what the results say.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from agreement import agreement_summary, agreement_table
from choice_table import choice_table
from control import control_table
from defaults_table import defaults_table, logs_table, others_table
from efficiency_table import efficiency_table, peers_scores_table
from gpu_table import gpu_table
from human_table import human_table, imitation_table, success_table, taught_table
from latent_search_table import latent_search_table
from offline_table import estimates_table, offline_peers_table, offline_rest_table, offline_table
from planning_table import planning_table, variants_table
from words import digits, grid, spread, time

from reverie.core.statistics import MIN_RUNS

HERE = Path(__file__).parent
PAGES = (*(HERE.parent / "docs" / f"{name}.md" for name in (
    "results", "speed", "agreement", "choosing", "planning",
)), HERE / "README.md")  # fmt: skip
BLOCK = re.compile(r"(<!-- table:(\S+) -->\n)(.*?)(<!-- /table -->)", re.DOTALL)

Result = Mapping[str, Any]
"""A result file: ``{"machine": {...}, "rows": [{...}, ...]}``."""

NAMES = {
    "nano": "`nano`: vector of 24, batch 16 x 32",
    "V": "V: vector of 24, size 1m",
    "I": "I: 64 x 64 x 3 image, size 12m",
    "cartpole_1": "CartPole, `cartpole`, 1 env",
    "cartpole_4": "CartPole, `cartpole`, 4 envs",
    "image_nano": "64 x 64 x 3 image, `cpu`, 4 worker processes",
    "image_12m": "64 x 64 x 3 image, size 12m, 4 worker processes",
    "cheetah_td3": "HalfCheetah, `td3`, 1 env, an update a step",
    "pendulum_td3": "Pendulum, `td3_pendulum`, 1 env, an update a step",
}
"""What settings and cases are called on the page."""


def update_table(result: Result) -> list[str]:
    """One row a setting: what an update costs, and the share of the machine that it uses."""
    rows = []
    for r in result["rows"]:
        share = "-" if r["share"] is None else f"{r['share']:.0%}"
        row = [
            f"{r['parameters'] / 1e6:.2f}M",
            time(r["update_s"]),
            f"{r['peak_gb']:.2f} GB",
            digits(r["gflop"]),
            share,
        ]
        rows.append([setting(r), *row])
    return grid(["setting", "parameters", "one update", "memory", "GFLOP", "of the matrix rate"], rows)


def act_table(result: Result) -> list[str]:
    """One row a setting and mode, one column a number of environments."""
    counts = list(dict.fromkeys(r["envs"] for r in result["rows"]))
    cells: dict[tuple[str, str], dict[int, str]] = {}
    for r in result["rows"]:
        cells.setdefault((setting(r), r["mode"]), {})[r["envs"]] = time(r["act_ms"] / 1e3)
    rows = [[*key, *(row.get(n, "-") for n in counts)] for key, row in cells.items()]
    return grid(["setting", "mode", *(f"{n} env{'s' * (n > 1)}" for n in counts)], rows)


def loop_table(result: Result) -> list[str]:
    """One row a case: milliseconds of each part for an update."""
    groups = {
        "update": ("update",),
        "acting": ("act",),
        "environments": ("env",),
        "rows in and out": ("collect", "store", "sample", "feedback", "to_device"),
        "logs and the rest": ("meter", "log", "other"),
    }
    rows = []
    for r in result["rows"]:
        parts = [sum(r["parts"].get(part, 0.0) for part in group) for group in groups.values()]
        rows.append(
            [NAMES.get(r["case"], r["case"]), *(time(ms / 1e3) for ms in parts), f"{r['share_beside_update']:.1%}"]
        )
    return grid(["run", *groups, "outside updates"], rows)


def start_table(result: Result) -> list[str]:
    """One row an algorithm and system: seconds with a warm and with a cold file cache."""
    events, systems = {"first env step": "step_s", "first update": "update_s"}, {"sb3": "Stable-Baselines3"}
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for r in result["rows"]:
        found.setdefault((r["algorithm"], r["system"]), {})[r["cache"]] = r
    rows = [
        [f"`{algorithm}`", systems.get(system, system)]
        + [f"{time(of['warm'][key])} ({time(of['cold'][key])})" for key in events.values()]
        for (algorithm, system), of in found.items()
    ]
    return grid(["algorithm", "system", *events], rows)


def commands_table(result: Result) -> list[str]:
    """One sentence: the CPU time of each command."""
    times = [f"`{r['case']}` takes {time(r['processor_s'])}" for r in result["rows"]]
    return [f"No command imports PyTorch to show its help: {', '.join(times)} of CPU time."]


def peers_table(result: Result) -> list[str]:
    """One row a system, four columns a pair of settings: how long an update, relative to ours, and an action take.

    The ratio is of neighbors in time, not of the medians. A time that was measured apart from ours has a star.
    """
    settings = list(dict.fromkeys(r["setting"] for r in result["rows"]))
    found: dict[str, dict[str, Any]] = {}
    for r in result["rows"]:
        found.setdefault(r["system"], {})[r["setting"]] = r
    ratio = "ratio_cpu" if any("ratio_cpu" in r for r in result["rows"]) else "ratio"
    rows = []
    for system, of in found.items():
        row = [system]
        for r in (of.get(setting, {}) for setting in settings):
            star = "\\*" if "apart" in r.get("note", "") else ""
            times = f" ({r[ratio]:.1f})" if r.get(ratio) else ""
            row += [f"{time(r.get('update_s'))}{star}{times}", time(r.get("act_1_ms"), 1e-3)] if r else ["-", "-"]
        rows.append(row)
    heads = [head for setting in settings for head in (f"{setting}: update", "action")]
    return grid(["system", *heads], rows)


def rates_table(result: Result) -> list[str]:
    """One row a task, one column a system: how many a second, of the others the most in bold.

    Scripts and authors' code share a column, which has the fastest of them. Where a task was measured with one thread,
    the last column has the ratio with two.
    """
    found = [r for r in result["rows"] if r["task"] not in LEFT_OUT and r.get("per_s")]
    libraries = [s for s in dict.fromkeys(r["system"] for r in found) if s != OURS and s[-1].isdigit()]
    ratio: dict[tuple[str, int], float] = {}
    for r in found:
        if r["key"] != OURS and r.get("ours_to_it"):
            key = r["task"], r.get("threads", 2)
            ratio[key] = min(ratio.get(key, r["ours_to_it"]), r["ours_to_it"])
    cells = []
    for task in dict.fromkeys(r["task"] for r in found):
        threads = min(r.get("threads", 2) for r in found if r["task"] == task)
        rates: dict[str, float] = {}
        for r in found:
            if (r["task"], r.get("threads", 2)) == (task, threads):
                column = r["system"] if r["system"] in (OURS, *libraries) else SCRIPT
                rates[column] = max(rates.get(column, 0.0), r["per_s"])
        most = max(rate for column, rate in rates.items() if column != OURS)
        shown = [f"**{digits(most)}**" if rates.get(column) == most else digits(rates.get(column))
                 for column in (*libraries, SCRIPT)]  # fmt: skip
        ratios = [digits(ratio.get((task, count))) for count in (1, 2)]
        cells.append([RATES.get(task, task), digits(rates[OURS]), *shown, *ratios])
    return grid(["per second", OURS, *libraries, SCRIPT, "times the best other, one thread", "two"], cells)


def rates_summary(result: Result) -> list[str]:
    """One row a group of tasks: the lowest and the highest ratio to the best other, with one thread and with two."""
    ratio: dict[str, dict[tuple[str, int], float]] = {}
    for name in ("model_free_peers", "image_rates", "offline_rates"):
        of = ratio.setdefault(name, {})
        for r in beside(name)["rows"]:
            if r["key"] != OURS and r.get("ours_to_it"):
                key = r["task"], r.get("threads", 2)
                of[key] = min(of.get(key, r["ours_to_it"]), r["ours_to_it"])
    rows = []
    for title, (name, tasks) in GROUPS.items():
        cells = []
        for threads in (1, 2):
            found = [x for (task, count), x in ratio[name].items() if count == threads and (not tasks or task in tasks)]
            ends = list(dict.fromkeys(digits(x) for x in (min(found), max(found)))) if found else ["-"]
            cells.append(" to ".join(ends))
        rows.append([title, *cells])
    return grid(["updates", "one thread", "two threads"], rows)


GROUPS = {
    "TD3, SAC, DDPG, DQN": ("model_free_peers", ["td3", "sac", "ddpg", "dqn"]),
    "QR-DQN": ("model_free_peers", ["qr_dqn"]),
    "TQC, CrossQ, SimBa, REDQ, DroQ, SimbaV2, XQC": (
        "model_free_peers", ["tqc", "crossq", "simba", "redq", "droq", "simba_v2", "xqc"]
    ),
    "from images": ("image_rates", []),
    "BC, TD3+BC, BCQ, CQL, IQL, CRR": (
        "offline_rates", ["bc", "td3_bc", "bcq", "cql", "iql", "crr", "discrete_bcq", "discrete_crr"]
    ),
    "discrete CQL": ("offline_rates", ["discrete_cql"]),
    "ReBRAC, FQL, Decision Transformer": ("offline_rates", ["rebrac", "fql", "qc_fql", "decision_transformer"]),
}  # fmt: skip
"""Tasks whose ratios are on the page of speed, by result file; none: all."""
SCRIPT = "script or authors' code"
LEFT_OUT = ("sac_image_96", "td3_image_96")
"""Tasks that are in the results, but not on the page."""
OURS = "reverie"
RATES = {
    "td3": "TD3",
    "sac": "SAC",
    "ddpg": "DDPG",
    "dqn": "DQN, 4 actions",
    "qr_dqn": "QR-DQN, 200 quantiles",
    "tqc": "TQC, 5 critics",
    "crossq": "CrossQ",
    "simba": "SimBa",
    "redq": "REDQ, 10 critics",
    "droq": "DroQ",
    "simba_v2": "SimbaV2",
    "xqc": "XQC",
    "loop": "steps of TD3 on HalfCheetah-v5",
    "bc": "BC",
    "td3_bc": "TD3+BC",
    "rebrac": "ReBRAC",
    "bcq": "BCQ, 10 samples",
    "cql": "CQL, 10 sampled actions",
    "iql": "IQL",
    "crr": "CRR",
    "fql": "FQL",
    "qc_fql": "QC-FQL, chunks of 5 actions",
    "decision_transformer": "Decision Transformer, 20 rows",
    "discrete_bcq": "discrete BCQ",
    "discrete_cql": "discrete CQL, 200 quantiles",
    "discrete_crr": "discrete CRR",
    "dqn_image": "DQN, 84x84x4",
    "qr_dqn_image": "QR-DQN, 84x84x4",
    "c51_image": "C51, 84x84x4",
    "rainbow_image": "Rainbow, 84x84x4, 96 transitions",
    "iqn_image": "IQN, 84x84x4",
    "discrete_cql_image": "discrete CQL, 84x84x4",
    "bc_image": "BC, 84x84x4",
    "sac_image": "SAC, 84x84x3",
    "td3_image": "TD3, 84x84x3",
    "sac_nature": "SAC, 84x84x3, Nature CNN",
    "td3_nature": "TD3, 84x84x3, Nature CNN",
    "sac_image_96": "SAC, 96x96x3",
    "td3_image_96": "TD3, 96x96x3",
    "sac_ae": "SAC-AE, 84x84x9",
    "ppo_image": "PPO, 84x84x4",
}
"""What tasks of model_free_peers.json, offline_rates.json and image_rates.json are called on the page."""


ON_POLICY = {
    "cartpole": "CartPole-v1",
    "pendulum": "Pendulum-v1, initial deviation of 1",
    "pendulum_half": "Pendulum-v1",
    "acrobot": "Acrobot-v1, not normalized",
    "acrobot_normalized": "Acrobot-v1",
    "lunar_lander": "LunarLander-v3",
    "cheetah": "HalfCheetah-v5",
    "breakout": "MinAtar/Breakout-v1",
    "pong": "ALE/Pong-v5",
    "doors": "MiniGrid-DoorKey-6x6-v0",
    "doors_memory": "MiniGrid-DoorKey-6x6-v0, LSTM of 128",
}
"""What tasks of on_policy.json are called on the page."""


def on_policy_table(result: Result) -> list[str]:
    """Three sentences; one row a task, beside Stable-Baselines3; then what a memory changes."""
    found: dict[str, dict[str, Any]] = {}
    for r in result["rows"]:
        if r["part"] == "results":
            found.setdefault(r["task"], {})[r["system"]] = r
    peer = next(system for of in found.values() for system in of if system != OURS)
    body = [[ON_POLICY[task], f"{of[OURS]['steps']:,}", *(scored(of[s]) if s in of else "-" for s in (OURS, peer))]
            for task, of in found.items() if not task.startswith("cue")]  # fmt: skip
    shared = [of for of in found.values() if peer in of]
    low = [ON_POLICY[task] for task, of in found.items()
           if peer in of and highest(of[OURS]) < of[peer]["mean"]["value"]]  # fmt: skip
    cues = [f"`{name}`, {found[key][OURS]['steps']:,}" for key, name in CUE.items()]
    rows = [[memory, *(scored(found[f"{name}{end}"][OURS]) if f"{name}{end}" in found else "-" for name in CUE)]
            for end, memory in MEMORIES.items()]  # fmt: skip
    return [
        "`ppo` trained with its presets, Stable-Baselines3 with the same settings; scores are means of 20 episodes, "
        "with the 95 % interval, or below five seeds the lowest and the highest.",
        f"In {len(shared) - len(low)} of {len(shared)} tasks our interval or range reaches "
        "the mean of Stable-Baselines3" + (f" (not in {'; '.join(low)})." if low else "."),
        "Single seeds fail: a first standard deviation of 1 lets Pendulum spin at full speed, without normalized "
        "observations Acrobot can repeat one action, and in Breakout most seeds lose the ball at the same place.",
        "",
        *grid(["task", "env steps", OURS, peer], body),
        "",
        *grid(["memory, on `reverie/Cue-v0`", *cues], rows),
    ]


CUE = {"cue": "ppo", "cue_dqn": "dqn"}
MEMORIES = {"": "none", "_memory": "LSTM of 16", "_window": "transformer over 8 rows"}


def highest(row: Mapping[str, Any]) -> float:
    """The upper end of the interval, or without one the highest seed."""
    return float(row["mean"]["high"] if len(row["scores"]) >= MIN_RUNS else max(row["scores"]))


def scored(row: Mapping[str, Any]) -> str:
    """A mean over seeds, with its interval if there are enough, otherwise with its range."""
    value, low, high = row["mean"].values()
    if len(row["scores"]) < MIN_RUNS:
        return spread(row["scores"])
    return f"{digits(value)} ({digits(low)} to {digits(high)})"


def on_policy_speed_table(result: Result) -> list[str]:
    """One row a task: env steps per second of CPU time, and how many times as many as others."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for r in result["rows"]:
        if r["part"] == "speed":
            found.setdefault((r["task"], r.get("threads", 1)), {})[r["system"]] = r
    others = [system for system in next(iter(found.values())) if system != OURS]
    rows = [
        [ON_POLICY[task].partition(",")[0] + f", {threads} threads" * (threads > 1), f"{of[OURS]['per_cpu_s']:,.0f}"]
        + [digits(of[system]["ratio_per_cpu_s"]) for system in others]
        for (task, threads), of in found.items()
    ]
    return grid(["env steps per CPU second", OURS, *(f"times {system}" for system in others)], rows)


MODELS = {
    "minigrid_r2": "MiniGrid-Empty-5x5-v0, at most",
    "models_pendulum": "Pendulum-v1",
    "models_walker": "dm_control/walker-walk-v0, two frames a step",
    "models_cheetah": "HalfCheetah-v5",
    "models_breakout": "MinAtar/Breakout-v1",
    "bar": "pictures of `examples/bar.py`",
}
"""What tasks of dreamers.json that compare world models are called on the page."""


def models_table(result: Result) -> list[str]:
    """Three sentences; one row a task, one column an algorithm: the mean score, the lowest and the highest."""
    found: dict[tuple[str, str], list[float]] = {}
    steps: dict[str, int] = {}
    for r in result["rows"]:
        if r["task"] in MODELS:
            found.setdefault((r["task"], r["algorithm"]), []).append(r["score"])
            steps[r["task"]] = r["steps"]
    names = list(dict.fromkeys(name for _, name in found))
    rows = [[f"{MODELS[task]}, {steps[task]:,}"]
            + [spread(found[task, name]) if (task, name) in found else "-" for name in names]
            for task in MODELS if task in steps]  # fmt: skip
    best = {task: max((sum(scores) / len(scores), name) for (of, name), scores in found.items() if of == task)[1]
            for task in steps}  # fmt: skip
    won = sum(name in ("tdmpc2", "dreamer_v3", "r2dreamer") for name in best.values())
    rest = ", ".join(
        MODELS[task].partition(",")[0] for task, name in best.items() if name in ("sac", "qr_dqn", "discrete_sac")
    )
    return [
        "World models trained with the CPU presets, aimed at half an hour of one core for each of three seeds.",
        f"A world model is best in {won} of {len(best)} tasks.",
        f"The exception is {rest}; `dreamer_v3` and `r2dreamer` made one update per ten env steps in the longer tasks, "
        "which is too few for them, while `sac` made one per env step.",
        "",
        *grid(["task, env steps", *(f"`{name}`" for name in names)], rows),
    ]


def kernels_table(result: Result) -> list[str]:
    """One row a group of kernels: how much slower the headlines are without it, and beside capture and optim alone."""
    found: dict[str, list[tuple[float, str]]] = {}
    alone: dict[str, list[tuple[float, str]]] = {}
    for r in result["rows"]:
        found.setdefault(r["group"], []).append((r["slower"], r["headline"]))
        alone.setdefault(r["group"], []).append((r.get("alone", 0.0), r["headline"]))
    rows = [(max(each), name, sorted(each, reverse=True)[:3], max(alone[name])) for name, each in found.items()]
    shown = [
        [name, ", ".join(f"{h} {x:.2f}" for x, h in most), f"{best[1]} {best[0]:.2f}" if best[0] else "-"]
        for _, name, most, best in sorted(rows, reverse=True)
    ]
    return grid(["group", "times as long without it", "beside `capture` and `optim`"], shown)


def precision_table(result: Mapping[str, Any]) -> list[str]:
    """One row a task: the mean score of all evaluations on the way, and by how much bfloat16's lies above it."""
    rows = []
    for task, found in result["tasks"].items():
        low, high = found["difference_95"]
        seeds = str(len(found["curves"]["float32"]))
        rows.append([task, seeds, *(digits(found[p]) for p in ("float32", "bfloat16")), f"{low:.3g} to {high:.3g}"])
    return grid(["task", "seeds", "float32", "bfloat16", "difference, 95 %"], rows)


def threads_table(result: Result) -> list[str]:
    """One row a setting and way of waiting, one column a neighbor; in brackets, against the fastest without one."""
    neighbors = list(dict.fromkeys(r["neighbor"] for r in result["rows"]))
    best: dict[str, float] = {}
    cells: dict[tuple[str, int, str], dict[str, float]] = {}
    for r in result["rows"]:
        cells.setdefault((r["setting"], r["threads"], r["spin"]), {})[r["neighbor"]] = r["update_s"]
        if r["neighbor"] == "idle":
            best[r["setting"]] = min(r["update_s"], best.get(r["setting"], float("inf")))
    rows = []
    for (name, threads, spin), times in cells.items():
        if name == "nano" or spin == "0":  # like the others
            continue
        shown = [f"{time(times[n])} ({times[n] / best[name]:.1f})" if n in times else "-" for n in neighbors]
        rows.append([name, str(threads), "-" if threads == 1 else spin, *shown])
    return grid(["setting", "threads", "spin", *(BESIDE.get(n, n) for n in neighbors)], rows)


BESIDE = {
    "idle": "idle machine",
    "loop": "next to a Python loop",
    "torch": "next to PyTorch on 2 threads",
}
"""Names of the neighbors on the page."""


TABLES: dict[str, Callable[[Result], list[str]]] = {
    "update": update_table,
    "act": act_table,
    "loop": loop_table,
    "start": start_table,
    "start_commands": commands_table,
    "update_peers": peers_table,
    "dreamers_peers": peers_table,
    "dreamers": models_table,
    "model_free_peers": rates_table,
    "rates": rates_summary,
    "kernels": kernels_table,
    "threads": threads_table,
    "control": control_table,
    "gpu": gpu_table,
    "precision": precision_table,
    "offline": lambda result: offline_table(result["rows"], beside("offline_datasets")["1"]),
    "offline_peers": lambda result: offline_peers_table(
        result["rows"], beside("offline").get("rows", []), beside("offline_datasets")["1"]
    ),
    "on_policy": on_policy_table,
    "on_policy_speed": on_policy_speed_table,
    "offline_rates": rates_table,
    "image_rates": rates_table,
    "estimates": lambda result: estimates_table(result["rows"]),
    "agreement": agreement_table,
    "agreement_summary": agreement_summary,
    "latent_search": latent_search_table,
    "planning": planning_table,
    "planning_variants": variants_table,
    "sample_efficiency": efficiency_table,
    "defaults": defaults_table,
    "defaults_others": others_table,
    "logs": logs_table,
    "sample_efficiency_sb3": peers_scores_table,
    "offline_rest": lambda result: offline_rest_table(result["rows"], beside("offline_datasets")["1"]),
    "choice": lambda result: choice_table(result, beside),
    "human": human_table,
    "human_others": imitation_table,
    "taught_rewards": taught_table,
    "taught_success": success_table,
}
"""Each table by its name, which is that of its result file."""
FILES = {
    "agreement_summary": "agreement",
    "choice": "defaults",
    "defaults_others": "defaults",
    "human_others": "human",
    "logs": "defaults",
    "offline_rest": "offline",
    "on_policy_speed": "on_policy",
    "planning_variants": "planning",
    "rates": "model_free_peers",
    "sample_efficiency_sb3": "sample_efficiency",
    "taught_success": "taught_rewards",
}
"""The result files of tables with other names."""


# ---------------------------------------------------------------- words


def setting(row: Mapping[str, Any]) -> str:
    """What was measured, with its precision if that is not the usual one."""
    precision = row.get("precision", "float32")
    return NAMES.get(row["setting"], row["setting"]) + ("" if precision == "float32" else f", {precision}")


def machine_line(machine: Mapping[str, Any]) -> str:
    """What the numbers above were measured on."""
    where = [machine["gpu"]] if machine.get("gpu") else []
    where += [machine.get("processor", "?").partition(" (family")[0]]
    where += [f"{threads} thread{'s' * (threads > 1)}" for threads in (machine.get("threads"),) if threads]
    where += [f"PyTorch {machine[key]}" for key in ("torch",) if machine.get(key)]
    where += [f"load {machine[key]}" for key in ("load",) if machine.get(key) is not None]
    return f"*{', '.join(where)}*"


def beside(name: str) -> Any:
    """Another result file that a table needs; empty if it is not there."""
    path = HERE / f"{name}.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def render(name: str) -> str:
    """What stands between the comments of the table ``name``.

    Raises:
        SystemExit: there is no such table.
    """
    if name not in TABLES:
        raise SystemExit(f"unknown table '{name}': there are {', '.join(TABLES)}")
    path = HERE / f"{FILES.get(name, name)}.json"
    if not path.exists():
        return f"Not measured yet: `bench/{path.name}` comes from the script of that name.\n"
    result = json.loads(path.read_text(encoding="utf-8"))
    machine = [machine_line(result["machine"]), ""] if "machine" in result else []
    return "\n".join(["", *TABLES[name](result), "", *machine])


def filled(page: str) -> str:
    """``page`` with every table as its results say."""
    return BLOCK.sub(lambda found: found[1] + render(found[2]) + found[4], page)


def main() -> int:
    """Write, or compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    found = 0
    for page in PAGES:
        before = page.read_text(encoding="utf-8")
        stale = [name for _, name, text, _ in BLOCK.findall(before) if text != render(name)]
        if not args.check:
            page.write_text(filled(before), encoding="utf-8")
        elif stale:
            print(f"{page.name}: {', '.join(stale)} not as measured; run python bench/table.py", file=sys.stderr)
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main())
