"""``reverie report``: one file about a run or several, which needs no server."""

from __future__ import annotations

import functools
import glob
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch

from reverie.agent.agent import Agent
from reverie.agent.agent_file import without_folders
from reverie.agent.loading import load
from reverie.agent.player import check_choice
from reverie.agent.program import ROWS, Numbers
from reverie.agent.world_model_inspector import has_world_model, require_world_model
from reverie.core.bounds import AtLeast
from reverie.core.errors import ConfigError, EnvError, RunError, UntrustedError, count_noun
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic, write_json
from reverie.core.logger import logger
from reverie.core.types import Batch
from reverie.experiment.config import NO_ENV
from reverie.run.checkpoint import Checkpoints
from reverie.run.folder import RunFolder, read_saved_config
from reverie.viewer.compared_runs import (
    Section,
    collect_comparison,
    comparison_numbers,
    comparison_sections,
    find_in_comparison,
    find_runs_to_compare,
)
from reverie.viewer.episode_facts import PlayedEpisode, describe_shown, look_again, pick_episodes
from reverie.viewer.findings import BOTH_SIDES, Finding, find, format_number
from reverie.viewer.page import STATIC, make_page, to_json_value
from reverie.viewer.run_facts import OWN_AND_RANDOM, collect_facts, draw_film
from reverie.viewer.walk import Walk, make_walk
from reverie.viewer.what_if import make_what_if

Program = Literal["auto", "none", "float16", "int8"]
EPISODES, DREAMS, FRAMES, MAX_BYTES = 20, 60, 8, 3_000_000
"""Defaults: episodes to play, dreams to judge, pictures of each shown episode, and size of a page."""
COMPARED = 2 * ROWS
"""Calls in which the program of a page is compared with the agent."""
BASE64 = 4 / 3
"""Letters of a page for each byte of weights."""
EXACT = 17
"""Digits that tell each float64 from any other."""
MAX_CHANGES = 40
"""Settings that differ from the preset, of which no more are listed."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page about a run or several."""

    path: Path
    finding: str
    """The title: what the numbers of the run carry."""
    support: str = ""
    """The sentence below it."""
    numbers: list[list[str]] = field(default_factory=list[list[str]])
    """Up to three numbers at the top of the page, each with what it measures."""
    facts: dict[str, Any]
    """All numbers of the page, as plain values."""

    def _repr_html_(self) -> str:
        text = self.path.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{text}" width="100%" height="700" style="border: 0"></iframe>'


class Content(NamedTuple):
    """What a page shows."""

    title: str
    header: list[str]
    facts: dict[str, Any]
    findings: list[Finding]
    numbers: list[list[str]]
    sections: list[Section]
    walk: Walk | None = None


def report(
    *runs: Agent | Path | str, out: Path | str | None = None, episodes: int = EPISODES, dreams: int = DREAMS,
    frames: int = FRAMES, program: Program = "auto", max_bytes: float = MAX_BYTES, **loading: Any,
) -> Report:  # fmt: skip
    """Write a page about a run: findings, curves, episodes, dreams, data, settings, and how to load and train it.

    Of several runs, those with equal settings are seeds of a group, and the page compares the groups. If the
    environment of a run cannot be made, the page has what the run has logged.

    Args:
        *runs: a run, its agent, or an agent that :func:`reverie.load` made of a policy; or several runs, folders of
            runs, and patterns such as ``"runs/sac-*"``.
        out: the page; the facts alone if it ends in ``.json``. None: ``report.html`` in the folder of a single run,
            else NAME.html.
        episodes: new episodes of the agent. 0: only what the run has logged.
        dreams: dreams to judge for each snapshot of a world model. 0: none.
        frames: pictures of each shown episode. 0: none.
        program: weights with which the agent acts in the page, and dreams, if its environment has a page program
            (``envs/page_programs.py``): "float16", or "int8", which is half as large. "auto": float16 if it fits, else
            int8. "none": the agent is not in the page.
        max_bytes: size of the page. What does not fit is left out, the largest part first, and the page says so.
        loading: ``env``, ``checkpoint`` and other arguments of :func:`reverie.load`, for a single run.

    Raises:
        ConfigError: a number is out of range.
        RunError: there is no run, nothing to report, or the page cannot be written.
    """
    for name, value in {"episodes": episodes, "dreams": dreams, "frames": frames}.items():
        AtLeast(0).check(name, value)
    AtLeast(1).check("max_bytes", max_bytes)
    check_choice("program", program, get_args(Program))
    if len(paths := _find_runs(runs)) > 1:
        content, default = _compare(paths), Path("report.html")
    else:
        run = _load_if_possible(next(iter(paths.values()), runs[0]), loading)
        folder, is_page = run.run if isinstance(run, Agent) else run, Path(out or "").suffix != ".json"
        content = _describe_run(run, episodes, dreams, frames * is_page, program if is_page else "none", max_bytes)
        default = folder / "report.html" if folder.is_dir() else Path(f"{folder.name}.html")
    return _write(content, default if out is None else Path(out), int(max_bytes))


def report_shared(run: Path, checkpoint: Path, out: Path, location: str) -> Report:
    """Write the page about a checkpoint of a run that is shared at ``location``: see :func:`report`."""
    agent = _load_if_possible(run, {"checkpoint": checkpoint})
    return _write(_describe_run(agent, EPISODES, DREAMS, FRAMES, "auto", MAX_BYTES, location), out, MAX_BYTES)


def _find_runs(runs: Sequence[Any]) -> dict[str, Path]:
    """Return the runs in folders and at patterns by name; {} if a single run is named, which is perhaps no folder."""
    if not runs:
        raise ConfigError("no run: pass a run folder, several, or a folder of runs.")
    first = runs[0]
    if len(runs) == 1 and not isinstance(first, str | Path):
        return {}
    if wrong := [run for run in runs if not isinstance(run, str | Path)]:
        raise ConfigError(f"{wrong[0]!r}: several runs are compared by their folders. Pass paths.")
    path = Path(os.path.expanduser(first))
    if len(runs) == 1 and (RunFolder(path).config.is_file() or not (glob.has_magic(str(path)) or path.is_dir())):
        return {}
    return find_runs_to_compare(runs)


def _load_if_possible(run: Agent | Path | str, loading: Mapping[str, Any]) -> Agent | Path:
    """Return the agent of a run; its folder if its environment cannot be made here, or if it has no checkpoint."""
    if isinstance(run, Agent):
        return run
    try:
        return load(run, **loading)
    except UntrustedError:
        raise
    except (EnvError, RunError) as error:
        folder = RunFolder.from_path(run) if isinstance(run, str | Path) and Path(run).is_dir() else None
        if folder is None or loading.get("env") is not None:
            raise
        read_saved_config(folder.path)
        if (checkpoint := loading.get("checkpoint")) is not None:
            Checkpoints(folder.checkpoints).select(checkpoint)
        logger.warning(f"the report has only what the run has logged: {error}")
        return folder.path


def _write(content: Content, path: Path, max_bytes: int) -> Report:
    """Write a page, or the facts if the path ends in ``.json``; leave out what does not fit, the largest part first."""
    check_writable(path.parent)
    plain = to_json_value({**content.facts, "findings": content.findings}, EXACT)
    facts, walk, left_out = _hide_folders(plain), content.walk, list[str]()
    block = {"about": content.header, "findings": plain["findings"], "numbers": content.numbers}
    block = _hide_folders(to_json_value({**block, "sections": content.sections}, EXACT))
    title, name = (without_folders(text) for text in (content.findings[0].title, content.title))
    with disk_errors_as_run_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            write_json(path, facts)
        else:
            while len(page := _page(f"{name}: {title}", block, walk, left_out).encode()) > max_bytes:
                if not (parts := _parts(block, walk)):
                    raise ConfigError(f"max_bytes = {max_bytes:,}: the page has {len(page):,} bytes without pictures.")
                size, label, remove = max(parts, key=lambda part: part[0])
                left_out.append(f"{label} ({_megabytes(size)})")
                walk = remove() if label == PROGRAM else (remove(), walk)[1]
            write_atomic(path, page)
    numbers = [list(row) for row in block["numbers"]]
    support = facts["findings"][0]["support"]
    return Report(path=path, finding=title, support=support, numbers=numbers, facts=facts)


def _hide_folders(value: Any) -> Any:
    """Return plain values whose texts name no folders of this machine; pictures are letters of another kind."""
    if isinstance(value, Mapping):
        return {key: x if key == "pictures" else _hide_folders(x) for key, x in value.items()}
    return [_hide_folders(x) for x in value] if isinstance(value, list) else without_folders(value)


PROGRAM = "the agent's program"
WHAT_IF = "what-if"
"""Id of the section in which the agent answers to changed observations."""
ROWS_OF_EPISODES = "Row 0 is the first observation; each action leads to the next row."
FILMS = {
    "Wrong dream": "Wrong dreams beside their episodes",
    "Snapshot": "One episode, dreamt by snapshots of the training",
}
"""Titles of sections by the name of the slider."""
FILM = "The model sees the first row alone; it imagines the others from the actions of the episode."


def _page(title: str, block: Mapping[str, Any], walk: Walk | None, left_out: Sequence[str]) -> str:
    """Return the page, which says what is left out."""
    sections = [section for section in block["sections"] if walk is not None or section.get("id") != WHAT_IF]
    if left_out:
        sections.append({"title": "Left out", "text": [f"Too large for this page: {', '.join(left_out)}."]})
    blocks = {"report": {**block, "sections": sections}, **(walk.blocks if walk else {})}
    return make_page("report", title, [STATIC / "report.js", *(walk.scripts if walk else [])], blocks)


def _parts(block: Mapping[str, Any], walk: Walk | None) -> list[tuple[int, str, Any]]:
    """Return the parts that a page can do without: bytes, name, and a function that removes it from ``block``."""
    parts = list[tuple[int, str, Any]]()
    if walk is not None:
        parts.append((sum(len(str(block)) for block in walk.blocks.values()), PROGRAM, lambda: None))
    for section in block["sections"]:
        for episode in section.get("shown", ()):
            if episode["pictures"]:
                size = sum(len(url) for _, url in episode["pictures"])
                parts.append((size, f"pictures of “{episode['name']}”", episode["pictures"].clear))
        if "film" in section:
            size, remove = len(str(section["film"])), functools.partial(block["sections"].remove, section)
            parts.append((size, f"pictures of “{section['title']}”", remove))
    return parts


def _megabytes(size: float) -> str:
    return f"{size / 1e6:.2g} MB"


# ---------------------------------------------------------------- one run


def _describe_run(run: Agent | Path, *options: Any) -> Content:
    """Return what the page of a run shows; PyTorch uses the CPU threads of its training."""
    before = torch.get_num_threads()
    torch.set_num_threads(run.config.threads or before if isinstance(run, Agent) else before)
    try:
        return _describe(run, *options)
    finally:
        torch.set_num_threads(before)


def _describe(
    run: Agent | Path, episodes: int, dreams: int, frames: int, program: Program, max_bytes: float, location: str = ""
) -> Content:
    agent = run if isinstance(run, Agent) else None
    facts = collect_facts(run, episodes, dreams, location)
    findings = find(facts)
    if not findings:
        advice = "Pass episodes." if agent else "Train until there is a checkpoint."
        raise RunError(f"{facts['name']}: nothing to report, neither episodes nor a log. {advice}")
    header = [f"reverie {facts['version']}", *(str(facts.get(name)) for name in ("algorithm", "env"))]
    if "seed" in facts:
        header += [f"seed {facts['seed']}", f"{facts['step']:,} {facts['unit']}", str(facts.get("checkpoint", ""))]
    played = facts["episodes"]
    picked = pick_episodes(played) if agent and played else {}
    looks = {name: look_again(agent, x, frames) for name, x in picked.items()} if agent else {}
    batches: dict[str, Batch] = {
        name: x.batch for name, x in looks.items() if x.batch is not None and not name[-1].isdigit()
    }
    walk, remark = _make_walk(agent, facts, batches, program, max_bytes) if agent and played else (None, "")
    facts.pop("beginnings", None)
    dreams_by_film = facts.pop("films", {})
    films = {name: draw_film(agent, x, frames) for name, x in dreams_by_film.items()} if agent and frames else {}
    sections = [*_data_sections(facts), *_training_sections(facts), *_person_sections(facts)]
    sections += _goal_sections(facts)
    sections += _ending_sections(facts)
    if looks:
        entries = [describe_shown(name, picked[name], look) for name, look in looks.items()]
        sections.append(
            {
                "title": "Episodes",
                "shown": entries,
                "text": [x for x in (ROWS_OF_EPISODES, remark, BOTH_SIDES * ("players" in facts)) if x],
            }
        )
    if walk is not None and "what-if-rows" in walk.blocks:
        sections.append({"title": "What would it do if …", "id": WHAT_IF})
    sections += _wrong_dream_sections(facts)
    sections += [
        {"title": FILMS[name], "film": {"label": name, **film}, "text": [FILM]} for name, film in films.items() if film
    ]
    return Content(
        facts["name"], [text for text in header if text not in ("", NO_ENV)], facts, findings, _numbers(facts),
        [*sections, *_setting_sections(facts, agent is None)], walk,
    )  # fmt: skip


def _make_walk(
    agent: Agent, facts: Mapping[str, Any], episodes: Mapping[str, Batch], program: Program, max_bytes: float
) -> tuple[Walk | None, str]:
    """Return the agent's program beside its environment's or else recorded rows, and a remark if it is too large."""
    if program == "none":
        return None, ""
    world = require_world_model(agent).world.parameters() if has_world_model(agent) else ()
    weights = sum(parameter.numel() for parameter in world)
    sizes = {"float16": 2 * BASE64 * weights, "int8": BASE64 * weights}
    choices: list[Numbers] = ["float16", "int8"] if program == "auto" else [program]
    text = " and ".join(f"{_megabytes(size)} in {name}" for name, size in sizes.items())
    try:
        for numbers in choices:
            if sizes[numbers] < max_bytes:
                walk = make_walk(agent, numbers, COMPARED, facts.get("beginnings"))
                walk = walk or make_what_if(agent, episodes, numbers, COMPARED)
                if walk is None or len(str(walk.blocks)) < max_bytes or numbers == choices[-1]:
                    return walk, ""
    except (ConfigError, RunError) as error:
        logger.warning(f"the agent is not in the report: {error}")
        return None, ""
    return (
        None,
        f"The agent does not act in this page, which may have {_megabytes(max_bytes)}: its world model has {text}.",
    )


def _numbers(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return up to three numbers for the top of the page, each with its unit."""
    rows = []
    if score := facts.get("score"):
        kind = "episodes of the last evaluation" if facts.get("source") else "new episodes"
        whose = "the first player in " if "players" in facts else ""
        rows.append([str(score), f"mean return of {whose}{score.n} {kind}"])
    elif estimate := facts.get("estimate"):
        rows.append([str(estimate["value"]), "estimated discounted return, from data alone"])
    if success := facts.get("success"):
        rows.append([str(success), "episodes that succeed"])
    if share := facts.get("dreams"):
        rows.append([str(share), "right dreams under its own actions"])
    data = facts.get("data", {})
    if "mean" in data and facts.get("offline"):
        rows.append(
            [format_number(data["mean"]), f"mean return of the data's {count_noun(data['episodes'], 'episode')}"]
        )
    if random := facts.get("random"):
        rows.append([str(random), f"mean return of {random.n} episodes with random actions"])
    if len(facts.get("evaluations", ())) > 1:
        step, value, _ = max(facts["evaluations"], key=lambda row: row[1])
        rows.append([format_number(value), f"best evaluation, at step {step:,}"])
    return rows[:3]


def _data_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return what the data are: episodes, returns, and actions."""
    if not (data := facts.get("data")):
        return []
    ended = f"{data['terminal']:,} of them end in a terminal state; they have {data['length']:.4g} steps on average."
    text = [f"{data['label']}: {data['episodes']:,} episodes with {data['rows']:,} rows. {ended}"]
    section: Section = {"title": "Data", "text": [*text, *data["actions"]]}
    if len(data.get("histogram", {}).get("counts", [])) > 1:
        edges, counts = (data["histogram"][name] for name in ("edges", "counts"))
        points = np.stack([np.repeat(edges, 2), np.repeat([0, *counts, 0], 2)[1:-1]], 1)
        rows = [[f"{format_number(a)} to {format_number(b)}", f"{n:,}"]
                for a, b, n in zip(edges[:-1], edges[1:], counts, strict=True)]  # fmt: skip
        section["chart"] = {
            "label": f"Returns of the data's episodes: mean {format_number(data['mean'])}, best "
            f"{format_number(data['best'])}, worst {format_number(data['worst'])}",
            "unit": "return", "starts": True, "table": {"head": ["return", "episodes"], "rows": rows},
            "lines": [{"name": "episodes of the data by return", "kind": "real", "points": points}],
        }  # fmt: skip
    return [section]


def _training_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return the curves of returns and of right dreams."""
    unit, lines, sections = facts["unit"], list[dict[str, Any]](), list[Section]()
    if len(facts.get("training", ())) > 1:
        lines.append({"name": "training episodes", "kind": "thin", "points": facts["training"]})
    if evaluations := facts.get("evaluations"):
        points = [[step, value, *mean.interval] for step, value, mean in evaluations]
        name = f"evaluations of {count_noun(evaluations[-1][2].n, 'episode')}, with the interval of their mean"
        lines.append({"name": name, "kind": "real", "points": points})
    if any(len(line["points"]) > 1 for line in lines):
        last = format_number(evaluations[-1][1]) if evaluations else "missing"
        label = f"Return over {unit}; the last evaluation is {last}"
        sections.append({"title": "Training", "chart": {"label": label, "unit": unit, "lines": lines}})
    if len(snapshots := facts.get("snapshots", ())) > 1:
        points = [[step, share.right / share.total, *share.interval] for step, share in snapshots]
        name = f"share of right dreams of up to {facts['horizon']} steps, with its interval"
        label = f"Share of right dreams over {unit}, at the end {format_number(points[-1][1])}"
        chart = {"label": label, "unit": unit, "range": [0, 1]}
        chart["lines"] = [{"name": name, "kind": "dream", "points": points}]
        sections.append({"title": "Right dreams", "chart": chart})
    return sections


def _person_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return what the time of a person bought."""
    if not (person := facts.get("person")):
        return []
    rows = [
        ["minutes", f"{person['seconds'] / 60:.1f}"],
        ["takeovers", f"{person['takeovers']:,}, of {count_noun(person['steps'], 'step')}"],
        ["share of the first tenth of all steps", f"{person['first']:.0%}"],
        ["share of the last tenth", f"{person['last']:.0%}"],
    ]
    rows += (
        []
        if person["alone"] is None
        else [["success of the newest evaluation, without help", f"{person['alone']:.0%}"]]
    )
    return [{"title": "The help of a person", "table": {"head": ["what", "how much"], "rows": rows}}]


def _goal_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return success by task, and estimated distances beside the steps that were needed."""
    sections = list[Section]()
    if tasks := facts.get("tasks"):
        rows = [[task, str(share)] for task, share in tasks.items()]
        sections.append(
            {"title": "Success by task", "table": {"head": ["task", "episodes that succeed"], "rows": rows}}
        )
    reached = [x for x in facts["episodes"] if x.success and x.distance is not None]
    if reached:
        rows = [[str(x.task or ""), format_number(x.distance or 0.0), f"{len(x.rewards):,}"] for x in reached]
        head = ["task", "estimated distance at the start", "steps until the goal"]
        sections.append({"title": "Estimated and needed steps", "table": {"head": head, "rows": rows}})
    return sections


def _ending_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return how the new episodes ended, the worst endings first."""
    by_ending: dict[str, list[PlayedEpisode]] = {}
    for episode in facts["episodes"]:
        by_ending.setdefault(episode.ending, []).append(episode)
    means = {ending: (float(np.mean([x.total for x in group])), group) for ending, group in by_ending.items()}
    rows = [
        [ending, f"{len(group)}", format_number(mean), format_number(float(np.mean([len(x.rewards) for x in group])))]
        for ending, (mean, group) in sorted(means.items(), key=lambda item: item[1][0])
    ]
    head = ["ending", "episodes", "mean return", "mean steps"]
    return [{"title": "How its episodes end", "table": {"head": head, "rows": rows}}] if rows else []


def _wrong_dream_sections(facts: Mapping[str, Any]) -> list[Section]:
    """Return what differs first in the dreams that are wrong, under the agent's actions and under random ones."""
    if "dreams" not in facts:
        return []
    rows_by_text: dict[str, dict[str, list[int]]] = {}
    for dream in facts["wrong_dreams"]:
        rows_by_text.setdefault(dream["differs"], {x: [] for x in OWN_AND_RANDOM})[dream["actions"]].append(
            dream["row"]
        )
    rows = [
        [
            differs,
            *(f"{len(x)}" for x in parts.values()),
            format_number(float(np.median([*itertools.chain(*parts.values())]))),
        ]
        for differs, parts in sorted(rows_by_text.items(), key=lambda item: -sum(map(len, item[1].values())))
    ]
    shares = zip((facts["dreams"], facts["random_dreams"]), OWN_AND_RANDOM, strict=True)
    counts = " and ".join(f"{share.total - share.right} of {share.total} under {whose}" for share, whose in shares)
    section: Section = {"title": "Where its dreams go wrong", "text": [f"Wrong are {counts}."]}
    head = ["what differs first", *(f"dreams under {whose}" for whose in OWN_AND_RANDOM), "in row (median)"]
    return [section | ({"table": {"head": head, "rows": rows}} if rows else {})]


def _setting_sections(facts: Mapping[str, Any], is_recorded: bool) -> list[Section]:
    """Return the settings that differ from the preset, the packages, and how to load and train the agent."""
    if "changes" not in facts:
        return []
    sections, changes = list[Section](), facts["changes"]
    rows = [line.partition(": ")[::2] for line in changes[:MAX_CHANGES]]
    rows = [[name, *values.split(" -> ", 1)] for name, values in rows]
    if rows:
        table = {"head": ["setting", f"preset {facts['preset']}", "this run"], "rows": rows}
        unlisted = len(changes) - len(rows)
        text = [f"And {unlisted} more."] if unlisted else []
        sections.append({"title": "Settings that differ from the preset", "table": table, "text": text})
    text, warnings = list[str](), list[str]()
    for name, (trained, installed) in facts["packages"].items():
        text.append(f"{name} {trained}")
        if installed != trained:
            present = f"version {installed} was" if installed else "no version was"
            warnings.append(f"Trained with {name} {trained}; {present} installed when this page was made.")
    if is_recorded:
        warnings.append("The agent could not be loaded when this page was made: it shows what the run has logged.")
    warnings += [f"{name} = {value} was passed from Python: pass it again." for name, value in facts["custom"].items()]
    return [*sections, {
        "title": "Load it, train it again", "code": facts["commands"], "warnings": warnings,
        "text": [f"Packages of the environment: {', '.join(text)}."] if text else [],
    }]  # fmt: skip


# ---------------------------------------------------------------- several runs


def _compare(runs: Mapping[str, Path]) -> Content:
    """Return the page about several runs."""
    facts = collect_comparison(runs)
    findings = find_in_comparison(facts)
    if not findings:
        raise RunError(f"nothing to report: {'; '.join(facts['remarks'])}")
    groups = facts["groups"]
    counts = f"{count_noun(len(runs), 'run')} of {count_noun(len(groups), 'setting')}"
    envs = [*dict.fromkeys(group["env"] for group in groups)]
    header = [f"reverie {facts['version']}", counts, *envs]
    sections = comparison_sections(facts)
    return Content(counts, header, facts, findings, comparison_numbers(facts), sections)
