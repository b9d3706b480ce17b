"""The facts about a run that its report shows: read from its files, its data, and new episodes and dreams."""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np

from reverie.agent.agent import Agent
from reverie.agent.agent_file import without_folders
from reverie.agent.dream_figures import Arrays, open_renderer_or_image
from reverie.agent.own_policy import PolicyAgent
from reverie.agent.policy_file import copy_to_cpu
from reverie.agent.return_estimate import METHODS
from reverie.agent.right_dreams import (
    count_right,
    dream_again,
    dream_horizon,
    play_beginnings,
)
from reverie.agent.sharing import format_train_command
from reverie.agent.world_model_inspector import has_world_model
from reverie.algos.base import prediction_name
from reverie.core.documents import read_json
from reverie.core.errors import ConfigError, ReverieError
from reverie.core.logger import logger
from reverie.core.rows import iter_episodes
from reverie.core.specs import has_players
from reverie.core.statistics import Share, histogram
from reverie.core.types import Batch
from reverie.core.version import version
from reverie.datasets.config import DatasetConfig
from reverie.datasets.data_path import OBJECT, split_paths
from reverie.datasets.format_detection import open_reader
from reverie.datasets.summary import summarize
from reverie.experiment.settings import Request, merge_layers
from reverie.log.jsonl import read_metrics, split_evaluations
from reverie.log.strip import Strip
from reverie.run.checkpoint import Checkpoints, read_checkpoint, step_from_name
from reverie.run.dream_snapshots import LearnerWeights
from reverie.run.folder import (
    DELETE,
    RunFolder,
    SavedConfig,
    check_locations,
    read_final_result,
    read_saved_config,
    settings_changes,
    to_yaml_types,
)
from reverie.viewer.episode_facts import (
    SIDE,
    PlayedEpisode,
    encode_picture,
    play_episodes,
    spread,
)
from reverie.viewer.findings import Mean
from reverie.viewer.goals import has_env
from reverie.viewer.model_free_values import critic_rewards, value_discount

MAX_POINTS, BINS, MAX_FILMED = 400, 20, 6
"""Points of a curve, bins of a histogram of returns, and dreams of a film."""
MAX_ROWS = 2_000_000
"""Recorded rows that are summarized."""
SOURCE = "From the newest evaluation that was logged. "
"""Begins the support of a finding if no episodes were played for the report."""
REST = 0.01
"""Discount weight after the end of an episode that was cut off, below which its return is complete."""
OWN_AND_RANDOM = ("its own actions", "random actions")
"""Under which actions dreams are judged."""
NAMED = ("env.id", "env.num", "steps", "updates", "seed", "device", "data.path")
"""Settings that the user names or the preset depends on: they are no changes of it."""


def collect_facts(run: Agent | Path, episodes: int, dreams: int, location: str = "") -> dict[str, Any]:
    """Return the numbers of a run; what there are no data for is absent.

    ``run``: its agent, or its folder if the agent cannot be loaded here. ``location``: where it is shared.
    """
    agent, folder = (run, RunFolder(run.run)) if isinstance(run, Agent) else (None, RunFolder(run))
    facts: dict[str, Any] = {"name": folder.path.resolve().name, "version": version()}
    saved = read_saved_config(folder.path) if folder.config.is_file() else None
    if saved is not None:
        facts |= {"algorithm": saved.algorithm, "env": saved.env, "seed": saved.experiment.get("seed")}
        facts |= {"offline": saved.experiment.get("experience") == "offline", **_describe_settings(saved)}
        facts["commands"] = _commands(saved, facts["name"], location)
        facts |= _read_log(folder.metrics) | _read_estimate(folder)
        facts |= _summarize_data(folder, saved) if facts["offline"] or agent is None else {}
    facts["step"] = max((row["step"] for row in read_metrics(folder.metrics, ())), default=0)
    if agent is not None:
        facts |= {"algorithm": agent.algorithm, "env": agent.config.env.label()}
        if not isinstance(agent, PolicyAgent):
            facts |= {"seed": agent.config.seed, "step": agent.step, "checkpoint": agent.checkpoint.name}
    facts["unit"] = "updates" if facts.get("offline") else "env steps"
    if agent is None or not episodes or not has_env(agent):
        return facts | {"episodes": []} | _read_evaluation(folder, facts)
    facts["episodes"] = played = play_episodes(agent, episodes)
    facts["score"] = Mean.of([episode.total for episode in played])
    if has_players(agent.obs_spec):  # random actions of both sides would be no rival
        facts["players"] = 2
    else:
        random = play_episodes(agent, min(episodes, 10), is_random=True)
        facts["random"] = Mean.of([episode.total for episode in random])
    facts |= _count_successes([(x.task, x.success) for x in played if x.success is not None])
    facts["failures"] = [episode.ending for episode in played if episode.success is False]
    facts |= _compare_with_critic(agent, played)
    if dreams and has_world_model(agent):
        facts |= _judge_dreams(agent, dreams)
    return facts


def _count_successes(episodes: Sequence[tuple[int | None, bool]]) -> dict[str, Any]:
    """Return the share of successes, also by task; {} without episodes with a verdict."""
    if not episodes:
        return {}
    by_task: dict[int, list[bool]] = {}
    for task, success in episodes:
        if task is not None:
            by_task.setdefault(task, []).append(success)
    tasks = {str(task): Share(sum(values), len(values)) for task, values in sorted(by_task.items())}
    return {"success": Share(sum(success for _, success in episodes), len(episodes)), "tasks": tasks}


# ---------------------------------------------------------------- what the files say


def _describe_settings(saved: SavedConfig) -> dict[str, Any]:
    """Return the settings that differ from the preset, custom parts, and packages of the environment."""
    settings, custom = without_folders(saved.experiment), without_folders(saved.custom)
    named = {name: _setting(settings, name) for name in NAMED}
    overrides = {name: value for name, value in named.items() if value not in (None, "")}
    changes = list[str]()
    with contextlib.suppress(ReverieError):  # a custom algorithm has no preset, and an old run may have other settings
        request = Request(algorithm=saved.algorithm, preset=settings.get("preset"), overrides=overrides)
        preset = without_folders(to_yaml_types(merge_layers(request).to_dict()))
        changes = settings_changes({**preset, "experience": settings.get("experience")}, settings)
    packages = {name: [trained, _installed_version(name)] for name, trained in saved.packages.items()}
    return {"preset": settings.get("preset"), "changes": changes, "custom": custom, "packages": packages}


def _commands(saved: SavedConfig, name: str, location: str) -> str:
    """Return how to load the agent and how to train it again."""
    env = ", env=..." if "env" in saved.custom else ""
    load = f"import reverie\n\nagent = reverie.load({json.dumps(location or name)}{env})"
    if location:
        train = format_train_command(saved, "agent/config.yaml", "runs/again")
        return f"{load}\n\n# train it again\nreverie pull {shlex.quote(location)} --to agent\n{train}"
    return f"{load}\n\n# train it again\n{format_train_command(saved, f'{name}/config.yaml', f'{name}-again')}"


def _setting(settings: Mapping[str, Any], path: str) -> Any:
    first, _, rest = path.partition(".")
    value = settings.get(first)
    return value.get(rest) if rest and isinstance(value, Mapping) else value


def _installed_version(package: str) -> str | None:
    """Return the version of a package on this machine; None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _read_log(path: Path) -> dict[str, Any]:
    """Return curves of the evaluations and of training episodes."""
    rows = read_metrics(path)
    during, final = split_evaluations(rows)
    evaluations = [(int(row["step"]), float(row["eval/score"]), _logged_mean(row)) for row in [*during, *final]]
    training = [(int(row["step"]), row["episode/score"]) for row in rows if "episode/score" in row]
    every = max(1, len(training) // MAX_POINTS)
    return {"evaluations": evaluations, "training": training[::every]} | _measure_help(rows)


def _measure_help(rows: Sequence[Mapping[str, float]]) -> dict[str, Any]:
    """Return what a person did, by logged ``rows``, and the success of evaluations, which are without the person."""
    helped = [row for row in rows if "human/steps" in row and row["step"]]
    if not helped:
        return {}
    newest, taken = helped[-1], np.zeros((len(rows) + 1, 2))  # env steps, and the person's of them
    for i, row in enumerate(rows):
        taken[i + 1] = row["step"], row.get("human/steps", taken[i, 1])
    end = taken[-1, 0]
    counts = np.interp([end / 10, 0.9 * end, end], *taken.T)
    alone = next((row["eval/success_rate"] for row in reversed(rows) if "eval/success_rate" in row), None)
    return {"person": {
        "seconds": newest["human/seconds"], "steps": int(newest["human/steps"]),
        "takeovers": int(newest["human/takeovers"]), "first": 10 * float(counts[0]) / end,
        "last": 10 * float(counts[2] - counts[1]) / end, "alone": alone,
    }}  # fmt: skip


def _logged_mean(row: Mapping[str, float]) -> Mean:
    """Return the mean of an evaluation with the normal interval of its standard deviation."""
    n = int(row.get("eval/episodes", 1))
    half = 1.96 * row.get("eval/score_std", np.nan) / max(1, n - 1) ** 0.5
    return Mean(row["eval/score"], row["eval/score"] - half, row["eval/score"] + half, n)


def _read_evaluation(folder: RunFolder, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the scores of the evaluation at the end of training, or else the newest in the log; {} without either."""
    result = read_final_result(folder.evaluation) or {}
    if not (scores := result.get("scores")):
        newest = [
            {"score": mean, "step": step, "source": SOURCE} for step, _, mean in facts.get("evaluations", ())[-1:]
        ]
        return newest[0] if newest else {}
    verdicts = list[tuple[int | None, bool]]()
    for values in result.get("info", []):
        tasks = [name.rpartition("task")[2] for name in values if name.startswith("success_rate/task")]
        if "success_rate" in values:
            verdicts.append((int(tasks[0]) if tasks else None, bool(values["success_rate"])))
    measured = next((result[name] for name in ("updates", "env_steps") if name in result), facts["step"])
    return {"score": Mean.of(scores), "source": SOURCE, "step": int(measured), **_count_successes(verdicts)}


def _read_estimate(folder: RunFolder) -> dict[str, Any]:
    """Return the newest estimate of the return from data alone; {} if there is none, or if it diverged."""
    result = read_json(folder.estimate, DELETE) if folder.estimate.is_file() else {}
    if not result or result.get("diverged"):
        return {}
    count = int(result.get("episodes", 0))
    means = [
        Mean(part["value"], part.get("low", np.nan), part.get("high", np.nan), count)
        for part in (result["return"], result["recorded_return"])
    ]
    method = METHODS[result.get("method", "fqe")]
    method = method[:1].upper() + method[1:]
    return {"estimate": {
        "value": means[0], "recorded": means[1], "discount": result["discount"], "method": method
    }}  # fmt: skip


def _summarize_data(folder: RunFolder, saved: SavedConfig) -> dict[str, Any]:
    """Return facts about the dataset of an offline run, or about the rows that an online run keeps."""
    is_offline = saved.experiment.get("experience") == "offline"
    config = DatasetConfig()
    try:
        if is_offline:
            config = config.merge(saved.experiment.get("data") or {})
            check_locations({"data": config.to_dict()}, folder.config)
        paths = split_paths(config.path) if is_offline else (str(folder.path),)
        label = "data in memory" if OBJECT in "".join(paths) else ", ".join(path.rpartition("/")[2] for path in paths)
        with open_reader(config.path if is_offline else folder.path, config) as reader:
            info = reader.info()
            summary = summarize([], info.action)
            parts = itertools.takewhile(lambda _: summary.rows < MAX_ROWS, reader.as_recorded())
            for episode in iter_episodes(parts):
                summary.add(episode)
    except (ReverieError, OSError) as error:
        logger.warning(f"the report says nothing of the data: {error}")
        return {}
    if not summary.scores:
        return {}
    facts: dict[str, Any] = {
        "label": label if is_offline else "rows that the run keeps",
        "episodes": len(summary.scores),
    }
    facts |= {"rows": summary.rows, "terminal": summary.num_terminal, "length": float(np.mean(summary.lengths))}
    facts["actions"] = [f"{action.name.replace('/', ' ')}: {action.format()}" for action in summary.actions]
    if info.has_rewards:
        counts, edges = histogram(summary.scores, BINS)
        facts |= {"mean": float(np.mean(summary.scores)), "best": max(summary.scores), "worst": min(summary.scores)}
        facts["histogram"] = {"counts": counts.tolist(), "edges": edges.tolist()}
    return {"data": facts}


# ---------------------------------------------------------------- critics and dreams


def _compare_with_critic(agent: Agent, played: Sequence[PlayedEpisode]) -> dict[str, Any]:
    """Return what the critic expects at the first row, and the discounted return that came.

    {} in other units, and if an episode was cut off before its return was complete: the others are a selection.
    """
    gamma = abs(value_discount(agent))
    ones = np.ones(2, np.float32)
    is_scaled = agent.config.env.clip_reward != "none" or not np.array_equal(critic_rewards(agent, ones)[1:], ones[1:])
    is_whole = all(x.is_terminal or gamma ** len(x.rewards) < REST for x in played)
    if is_scaled or not is_whole or any(x.expected is None for x in played):
        return {}
    actual = [float(np.dot(x.rewards, gamma ** np.arange(len(x.rewards)))) for x in played]
    expected = [float(x.expected or 0.0) for x in played]
    return {"critic": {
        "expected": float(np.mean(expected)), "actual": float(np.mean(actual)),
        "error": Mean.of([a - b for a, b in zip(expected, actual, strict=True)]),
    }}  # fmt: skip


class FilmedDream(NamedTuple):
    """A dream of an episode ``[1, T]``."""

    name: str
    episode: Batch
    predicted: Arrays
    strip: Strip


def _judge_dreams(agent: Agent, dreams: int) -> dict[str, Any]:
    """Return the shares of right dreams of the agent and, of the same episodes, of the snapshots of its training."""
    batches, random = (play_beginnings(agent, dreams, random=is_random) for is_random in (False, True))
    if not batches:
        return {}
    longest = max(range(len(batches)), key=lambda i: batches[i].shape[1])
    current, of_random = dream_again(agent, batches), dream_again(agent, random)
    before = cast(Agent, copy_to_cpu(agent))
    snapshots, dreamt_by = [(agent.step, count_right(current))], {agent.step: current[longest]}
    for path in Checkpoints(agent.run / "dream_snapshots").paths():
        try:
            LearnerWeights(before.algo).load_state_dict(read_checkpoint(path, ["algo"])["algo"])
            dreamt = dream_again(before, batches)
        except ReverieError as error:
            logger.warning(f"{path} is left out of the report: {error}")
            continue
        snapshots.append((step := step_from_name(path), count_right(dreamt)))
        dreamt_by[step] = dreamt[longest]
    snapshots.sort()
    wrong = {
        name: [FilmedDream(name, *x) for x in _list_wrong(episodes, dreamt)]
        for name, episodes, dreamt in zip(OWN_AND_RANDOM, (batches, random), (current, of_random), strict=True)
    }
    filmed = [FilmedDream(f"step {step:,}", batches[longest], *dreamt_by[step]) for step in sorted(dreamt_by)]
    return {
        "dreams": count_right(current), "random_dreams": count_right(of_random),
        "horizon": dream_horizon(agent), "snapshots": snapshots, "beginnings": (batches, random),
        "wrong_dreams": [_describe_wrong(dream) for part in wrong.values() for dream in part],
        "films": {
            "Wrong dream": [dream for part in wrong.values() for dream in part[: MAX_FILMED // 2]],
            "Snapshot": [filmed[i] for i in spread(len(filmed), MAX_FILMED)],
        },
    }  # fmt: skip


def _list_wrong(
    episodes: Sequence[Batch], dreams: Sequence[tuple[Arrays, Strip]]
) -> Iterator[tuple[Batch, Arrays, Strip]]:
    """Yield the dreams that part from their episodes."""
    for episode, (predicted, strip) in zip(episodes, dreams, strict=True):
        if strip.parting is not None:
            yield episode, predicted, strip


def _describe_wrong(dream: FilmedDream) -> dict[str, Any]:
    """Return the facts of a wrong dream: whose actions, the first wrong row, and what differs there."""
    row = dream.strip.parting or 0
    level, _, number = dream.strip.texts[row].partition(": ")
    return {"actions": dream.name, "row": row, "differs": "further off than “nothing changes”" if number else level}


def draw_film(agent: Agent, dreams: Sequence[FilmedDream], frames: int) -> dict[str, Any]:
    """Return pictures of rows of dreams and of their episodes; {} if they cannot be drawn."""
    if not dreams:
        return {}
    names = {key: prediction_name(key) for key in agent.obs_spec if prediction_name(key) in dreams[0].predicted}
    episodes, entries = list[dict[str, Any]](), list[dict[str, Any]]()
    with contextlib.suppress(ConfigError), open_renderer_or_image(agent, names, SIDE) as draw:
        for before, dream in zip([None, *dreams], dreams, strict=False):
            strips = [x.strip for x in dreams if x.episode is dream.episode]
            rows = _rows_of_film(strips[-1], dream.episode.shape[1], frames)
            sides = [{key: dream.predicted[name] for key, name in names.items()}]
            if before is None or before.episode is not dream.episode:
                sides.append({key: dream.episode.obs[key][0].numpy() for key in names})
            pictures = [[encode_picture(frame) for frame in draw({key: x[None, rows] for key, x in side.items()})[0]]
                        for side in sides]  # fmt: skip
            episodes += [{"rows": rows, "pictures": truth} for truth in pictures[1:]]
            entry = {"name": dream.name, "text": _describe_parting(dream.strip), "episode": len(episodes) - 1}
            wrong = [row for row in rows if dream.strip.levels[row] == "differs"]
            entries.append({**entry, "pictures": pictures[0], "wrong": wrong})
        return {"episodes": episodes, "dreams": entries}
    return {}


def _rows_of_film(strip: Strip, length: int, frames: int) -> list[int]:
    """Return evenly spaced rows; the first wrong one replaces its neighbor."""
    rows = spread(length, frames)
    if strip.parting is not None and len(rows) > 1:
        nearest = min(rows[1:], key=lambda row: abs(row - (strip.parting or 0)))
        rows[rows.index(nearest)] = strip.parting
    return rows


def _describe_parting(strip: Strip) -> str:
    if strip.parting is None:
        return "right to the end"
    return f"first wrong in row {strip.parting} ({strip.texts[strip.parting]})"
