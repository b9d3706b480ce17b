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
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agreement import agreement_table
from choice_table import choice_table
from control import control_table
from defaults_table import defaults_table
from efficiency_table import efficiency_table
from gpu_table import gpu_table
from offline_table import estimates_table, offline_peers_table, offline_table
from words import digits, grid, time

from reverie.core.statistics import MIN_RUNS

HERE = Path(__file__).parent
PAGES = tuple(HERE.parent / "docs" / f"{name}.md" for name in (
    "performance", "gpu", "comparison", "offline_evaluation", "offline_results", "agreement", "on_policy_results",
    "world_models", "sample_efficiency", "defaults", "choosing", "tutorials/robot",
))  # fmt: skip
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
    head = ["setting", "parameters", "first update", "with imports", "one update", "memory", "GFLOP"]
    rows = []
    for r in result["rows"]:
        row = [f"{r['parameters'] / 1e6:.2f}M", time(r["first_update_s"]), time(r["start_s"]), time(r["update_s"])]
        share = "-" if r["share"] is None else f"{r['share']:.0%}"
        rows.append([setting(r), *row, f"{r['peak_gb']:.2f} GB", digits(r["gflop"]), share])
    return grid([*head, "of the matrix rate"], rows)


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
    """One row an algorithm, system and state of the file cache: seconds, and in brackets those of the processor."""
    events, systems = {"first env step": "step", "first update": "update"}, {"sb3": "Stable-Baselines3"}
    rows = [
        [r["algorithm"], systems.get(r["system"], r["system"]), r["cache"]]
        + [f"{time(r[f'{event}_s'])} ({time(r[f'{event}_processor_s'])})" for event in events.values()]
        for r in result["rows"]
    ]
    return grid(["algorithm", "system", "file cache", *events], rows)


def commands_table(result: Result) -> list[str]:
    """One row a command: the processor time of its process."""
    return grid(["", "processor time"], [[f"`{r['case']}`", time(r["processor_s"])] for r in result["rows"]])


def peers_table(result: Result) -> list[str]:
    """One row a system and setting, those of one setting together, the fastest update first."""
    order = list(dict.fromkeys(r["setting"] for r in result["rows"]))
    rows = sorted(result["rows"], key=lambda r: (order.index(r["setting"]), r.get("update_s") or float("inf")))
    cells, shown = [], [key for key in ("ratio", "ratio_cpu") if any(key in r for r in rows)]
    for r in rows:
        times = [time(r.get(key), unit) for key, unit in TIMES.items()]
        ratios = [f"{r[key]:.1f}" if r.get(key) else "-" for key in shown]  # of neighbors in time, not of the medians
        size = f"{r['parameters'] / 1e6:.2f}M" if r.get("parameters") else "-"
        memory = f"{r['peak_gb']:.2f} GB" if r.get("peak_gb") else "-"
        cells.append([r["setting"], r["system"], size, *times[:2], *ratios, *times[2:], memory])
    head = ["setting", "system", "parameters", "first update", "one update", "time relative to reverie"]
    head += ["act, 1 env", "8 envs", "memory"]
    if "ratio_cpu" in shown:
        head.insert(6, "processor time relative to reverie")
    return [*grid(head, cells), *notes(rows)]


TIMES = {"first_update_s": 1.0, "update_s": 1.0, "act_1_ms": 1e-3, "act_8_ms": 1e-3}
"""Columns of update_peers.json that are times, and their units in seconds."""


def notes(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What must be said of systems, once each."""
    said = dict.fromkeys(f"- {r['system']}: {r['note']}" for r in rows if r.get("note"))
    return ["", *said] if said else []


def model_free_peers_table(result: Result) -> list[str]:
    """One row a task, one column a system: how many a second, of the others the most in bold."""
    found = result["rows"]
    others = list(dict.fromkeys(r["system"] for r in found if r["key"] != OURS))
    cells = []
    for task, threads in dict.fromkeys((r["task"], r.get("threads", 2)) for r in found):
        rows = [r for r in found if (r["task"], r.get("threads", 2)) == (task, threads)]
        rates = {r["system"]: r["per_s"] for r in rows if r.get("per_s")}
        ratios = [r["ours_to_it"] for r in rows if r["key"] != OURS and r.get("ours_to_it")]
        most = max((rates.get(system, 0.0) for system in others), default=0.0)
        shown = [f"**{digits(most)}**" if rates.get(s) == most else digits(rates.get(s)) for s in others]
        ours = next((digits(rates[r["system"]]) for r in found if r["key"] == OURS and r["system"] in rates), "-")
        name = RATES.get(task, task) + (", one thread" if threads == 1 else "")
        cells.append([name, ours, *shown, digits(min(ratios, default=None))])
    return [*grid(["per second", OURS, *others, "speed relative to the best other"], cells), *notes(found)]


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
    "cue": "reverie/Cue-v0, without memory",
    "cue_memory": "reverie/Cue-v0, LSTM of 16",
    "cue_window": "reverie/Cue-v0, transformer over 8 rows",
    "cue_dqn": "reverie/Cue-v0, `dqn` without memory",
    "cue_dqn_memory": "reverie/Cue-v0, `dqn`, LSTM of 16",
    "cue_dqn_window": "reverie/Cue-v0, `dqn`, transformer over 8 rows",
}
"""What tasks of on_policy.json are called on the page."""


def on_policy_table(result: Result) -> list[str]:
    """Scores, one row a task and one column a system; then how many a second, and how many times as many ours does."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for r in result["rows"]:
        found.setdefault((r["part"], r["task"], r.get("threads", 1)), {})[r["system"]] = r
    systems = list(dict.fromkeys(r["system"] for r in result["rows"] if r["part"] == "results"))
    scores = []
    for (part, task, _), of in found.items():
        if part == "results":
            steps = f"{next(iter(of.values()))['steps']:,}"
            scores.append([ON_POLICY[task], steps, *(scored(of[s]) if s in of else "-" for s in systems)])
    speeds = []
    for (part, task, threads), of in found.items():
        for system, r in of.items() if part == "speed" else ():
            row = [ON_POLICY[task].partition(",")[0] + f", {threads} threads" * (threads > 1), system]
            for what in ("per_cpu_s", "per_s", "updates_per_s"):
                row += [f"{r[what]:,.0f}", digits(r[f"ratio_{what}"])]
            speeds.append(row)
    units = ("env steps per s of processor time", "env steps per s", "updates per s")
    heads = [head for unit in units for head in (unit, "speed of reverie relative to it")]
    return [*grid(["mean return", "env steps", *systems], scores), "", *grid(["speed", "system", *heads], speeds)]


def scored(row: Mapping[str, Any]) -> str:
    """A mean over seeds, with its interval if there are enough, and the seeds."""
    value, low, high = row["mean"].values()
    places = 2 if abs(value) < 10 else 0
    ends = "" if len(row["scores"]) < MIN_RUNS else f" ({low:.{places}f} to {high:.{places}f})"
    return f"{value:.{places}f}{ends}: {', '.join(f'{score:.{min(places, 1)}f}' for score in row['scores'])}"


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
    """One row a task, one column an algorithm: the mean score of its seeds, and each of them."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for r in result["rows"]:
        if r["task"] in MODELS:
            found.setdefault((r["task"], r["algorithm"]), []).append(r)
    names = list(dict.fromkeys(name for _, name in found))
    rows = []
    for task in (task for task in MODELS if any(of == task for of, _ in found)):
        row = [MODELS[task], f"{next(each[0]['steps'] for (of, _), each in found.items() if of == task):,}"]
        for name in names:
            scores = [r["score"] for r in found.get((task, name), ())]
            places = 2 if scores and abs(max(scores)) < 10 else 0
            each = f": {', '.join(f'{score:.{places}f}' for score in scores)}"
            row.append(
                f"{sum(scores) / len(scores):.{places}f}{each if len(scores) > 1 else ', one seed'}" if scores else "-"
            )
        rows.append(row)
    return grid(["mean return", "env steps", *(f"`{name}`" for name in names)], rows)


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
    "model_free_peers": model_free_peers_table,
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
    "offline_rates": model_free_peers_table,
    "image_rates": model_free_peers_table,
    "estimates": lambda result: estimates_table(result["rows"]),
    "agreement": agreement_table,
    "sample_efficiency": efficiency_table,
    "defaults": defaults_table,
    "choice": lambda result: choice_table(result, beside),
}
"""Each table by its name, which is that of its result file."""
FILES = {"choice": "defaults"}
"""The result file of a table with another name."""


# ---------------------------------------------------------------- words


def setting(row: Mapping[str, Any]) -> str:
    """What was measured, with its precision if that is not the usual one."""
    precision = row.get("precision", "float32")
    return NAMES.get(row["setting"], row["setting"]) + ("" if precision == "float32" else f", {precision}")


def machine_line(machine: Mapping[str, Any]) -> str:
    """What the numbers above were measured on."""
    rates = ", ".join(f"{digits(rate)} in {name}" for name, rate in (machine.get("matrix_gflops") or {}).items())
    where = f"{machine['gpu']}, " if machine.get("gpu") else ""
    words = [f"{where}{machine.get('processor', '?')}, {machine.get('cores', '?')} cores"]
    words += [f"{machine[key]} threads" for key in ("threads",) if machine.get(key)]
    words += [f"PyTorch {machine[key]}" for key in ("torch",) if machine.get(key)]
    words += [f"load average {machine[key]}" for key in ("load",) if machine.get(key) is not None]
    return f"Measured on {', '.join(words)}." + (f" Matrix products: {rates} GFLOP/s." if rates else "")


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
    return "\n".join(["", *TABLES[name](result), "", machine_line(result["machine"]), ""])


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
