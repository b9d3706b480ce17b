"""``reverie report``: one file about a run, which needs no server."""

from __future__ import annotations

import base64
import contextlib
import io
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from PIL import Image

from reverie.agent.agent import Agent
from reverie.agent.loading import load
from reverie.agent.play import max_episode_steps, play_episode
from reverie.agent.policy_file import copy_to_cpu
from reverie.agent.right_dreams import count_right_dreams, dream_horizon, play_beginnings
from reverie.core.bounds import AtLeast, largest_value
from reverie.core.errors import ReverieError, RunError
from reverie.core.files import check_writable, disk_errors_as_run_error, write_atomic, write_json
from reverie.core.logger import logger
from reverie.core.seeding import derived_seeds, seeded_rng
from reverie.core.specs import MASK_KEY
from reverie.core.statistics import IntervalEstimate
from reverie.core.version import version
from reverie.log.jsonl import read_metrics, split_evaluations
from reverie.log.right_dreams import save_right_dreams
from reverie.log.video import shrink, upscale
from reverie.run.checkpoint import Checkpoints, read_checkpoint, step_from_name
from reverie.run.dream_snapshots import LearnerWeights
from reverie.run.folder import RunFolder, read_saved_config
from reverie.viewer.findings import Finding, Mean, Share, find, format_number
from reverie.viewer.page import STATIC, make_page

EPISODES, DREAMS, FRAMES, SIDE, MAX_POINTS = 20, 100, 8, 160, 400
"""Defaults: episodes to play, dreams to judge, pictures of each shown episode; their size, and points of a curve."""
SHOWN = 3
"""Worst episodes that are shown, besides the median and the best."""


@dataclass(frozen=True, kw_only=True)
class Report:
    """A page about a run."""

    path: Path
    finding: str
    """The title: what the numbers of the run carry."""
    facts: dict[str, Any]
    """All numbers of the page, as plain values."""

    def _repr_html_(self) -> str:
        text = self.path.read_text(encoding="utf-8").replace("&", "&amp;").replace('"', "&quot;")
        return f'<iframe srcdoc="{text}" width="100%" height="700" style="border: 0"></iframe>'


@dataclass
class PlayedEpisode:
    """A whole episode."""

    seed: int
    rewards: list[float]
    ending: str
    """How it ended, in the environment's words if it has some."""
    success: bool | None
    """Whether it succeeded, by the environment's word; None if it has none."""
    is_terminal: bool
    expected: float | None
    """The critic's value of the first row; None if there is no critic."""

    @property
    def total(self) -> float:
        """The sum of the rewards."""
        return float(np.sum(self.rewards))


def report(
    run: Agent | Path | str, out: Path | str | None = None, *, episodes: int = EPISODES, dreams: int = DREAMS,
    frames: int = FRAMES, **loading: Any,
) -> Report:  # fmt: skip
    """Write a page about a run: findings, curves, episodes, dreams, settings, and how to load and train it.

    Args:
        run: a run, its agent, or an agent that :func:`reverie.load` made of a policy.
        out: the page; the facts alone if it ends in ``.json``. None: ``report.html`` in the run folder, or else
            NAME.html.
        episodes: new episodes of the agent. 0: only what the run has logged.
        dreams: dreams to judge for each snapshot of a world model. 0: none.
        frames: pictures of each shown episode. 0: none.
        loading: ``env``, ``checkpoint`` and other arguments of :func:`reverie.load`.

    Raises:
        ConfigError: a number is out of range.
        RunError: there is no run, or the page cannot be written.
    """
    for name, value in {"episodes": episodes, "dreams": dreams, "frames": frames}.items():
        AtLeast(0).check(name, value)
    agent = run if isinstance(run, Agent) else load(run, **loading)
    beside = agent.run / "report.html" if agent.run.is_dir() else Path(f"{agent.run.name}.html")
    path = beside if out is None else Path(out)
    check_writable(path.parent)
    facts = collect_facts(agent, episodes, dreams)
    findings = find(facts)
    if not findings:
        raise RunError(f"{agent.run}: nothing to report, neither episodes nor a log. Pass episodes.")
    plain = to_plain(facts) | {"findings": [finding._asdict() for finding in findings]}
    with disk_errors_as_run_error(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.suffix == ".json":
            write_json(path, plain)
        else:
            shown = _show_episodes(agent, facts["episodes"], frames)
            content = {"facts": plain, "shown": shown, "top": _numbers(facts)}
            title = f"{agent.run.name}: {findings[0].title}"
            write_atomic(path, make_page("report", title, [STATIC / "report.js"], content))
    return Report(path=path, finding=findings[0].title, facts=plain)


# ---------------------------------------------------------------- facts


def collect_facts(agent: Agent, episodes: int, dreams: int) -> dict[str, Any]:
    """Return the numbers of a run; what there are no data for is absent."""
    facts: dict[str, Any] = {
        "name": agent.run.name, "algorithm": agent.config.algo.algorithm, "env": agent.config.env.label(),
        "seed": agent.config.seed, "step": agent.step, "checkpoint": agent.checkpoint.name, "version": version(),
        "unit": "updates" if agent.config.offline else "env steps",
    }  # fmt: skip
    if RunFolder(agent.run).config.is_file():
        saved = read_saved_config(agent.run)
        facts |= {
            "load": f'agent = reverie.load("{agent.run.name}")',
            "train": f"reverie train {saved.algorithm} --config config.yaml --run {agent.run.name}-again",
            "packages": {name: str(number) for name, number in saved.packages.items()},
        }
    facts |= _read_log(RunFolder(agent.run).metrics)
    played = [] if not episodes or (agent.config.offline and not agent.config.env.id) else _play(agent, episodes)
    facts["episodes"] = played
    if played:
        facts["score"] = Mean.of([episode.total for episode in played])
        facts["random"] = Mean.of([episode.total for episode in _play(agent, min(episodes, 10), is_random=True)])
        facts["failures"] = _failures(played)
        facts |= _compare_with_critic(agent, played)
    if dreams and played and getattr(agent.algo, "world", None) is not None:
        facts |= _judge_dreams(agent, dreams)
    return facts


def _read_log(path: Path) -> dict[str, Any]:
    """Return curves of the evaluations and of training episodes."""
    rows = read_metrics(path)
    during, final = split_evaluations(rows)
    evaluations = [(int(row["step"]), float(row["eval/score"]), _logged_mean(row)) for row in [*during, *final]]
    training = [(int(row["step"]), row["episode/score"]) for row in rows if "episode/score" in row]
    every = max(1, len(training) // MAX_POINTS)
    return {"evaluations": evaluations, "training": training[::every]}


def _logged_mean(row: Mapping[str, float]) -> Mean:
    """Return the mean of an evaluation with the normal interval of its standard deviation."""
    n = int(row.get("eval/episodes", 1))
    half = 1.96 * row.get("eval/score_std", 0.0) / max(1, n - 1) ** 0.5
    return Mean(row["eval/score"], row["eval/score"] - half, row["eval/score"] + half, n)


def _play(agent: Agent, episodes: int, is_random: bool = False) -> list[PlayedEpisode]:
    """Play new episodes with the most likely actions, or with random ones."""
    seed, played = derived_seeds(agent.config.seed)["test"], list[PlayedEpisode]()
    rng = np.random.default_rng(seed)
    with contextlib.closing(agent.make_env()) as env:

        def change(action: Any, obs: Any) -> Any:
            if not is_random:
                return action
            return agent.random_action(obs, rng) if MASK_KEY in agent.obs_spec else env.action_space.sample()

        env.action_space.seed(seed)
        limit = max_episode_steps(agent, env)
        for number in range(episodes):
            with seeded_rng(seed + number):  # each can be played again
                first, *steps = itertools.islice(play_episode(agent, env, seed=seed + number, change=change), limit + 1)
                expected = None if is_random else _expected_value(agent, env, first)
            last = steps[-1]
            played.append(PlayedEpisode(
                seed=seed + number, rewards=[step.reward for step in steps], ending=_ending(last),
                success=_success(last), is_terminal=last.terminated, expected=expected,
            ))  # fmt: skip
    return played


def _success(last: Any) -> bool | None:
    """Return whether an episode succeeded, by the environment's word."""
    values = [last.info[key] for key in ("is_success", "success") if key in last.info]
    return bool(values[0]) if values else None


def _ending(last: Any) -> str:
    """Return how an episode ended: the environment's own word, or which flag it set."""
    if isinstance(ending := last.info.get("ending"), str):
        return ending
    return "the end" if last.terminated else "time is up" if last.truncated else "cut by the report"


def _expected_value(agent: Agent, env: Any, first: Any) -> float | None:
    try:
        return float(agent.value(agent.observer.raw_input(env, first.obs), action_mask=first.mask))
    except ReverieError:
        return None


def _failures(played: Sequence[PlayedEpisode]) -> list[str]:
    """Return how the episodes ended that failed by the environment's word; [] if it has none."""
    return [episode.ending for episode in played if episode.success is False]


def _compare_with_critic(agent: Agent, played: Sequence[PlayedEpisode]) -> dict[str, Any]:
    """Return what the critic expects at the first row, and the discounted return that came; {} in other units."""
    algo, ended = agent.config.algo, [x for x in played if x.is_terminal and x.expected is not None]
    changed = [getattr(algo, name, None) for name in ("reward_scale", "reward_transform")]
    if not ended or any(changed) or agent.config.env.clip_reward != "none":
        return {}
    gamma = largest_value(getattr(algo, "discount", 1.0))
    actual = [float(np.dot(x.rewards, gamma ** np.arange(len(x.rewards)))) for x in ended]
    expected = [float(x.expected or 0.0) for x in ended]
    return {"critic": {
        "expected": float(np.mean(expected)), "actual": float(np.mean(actual)),
        "error": Mean.of([a - b for a, b in zip(expected, actual, strict=True)]),
    }}  # fmt: skip


def _judge_dreams(agent: Agent, dreams: int) -> dict[str, Any]:
    """Return the shares of right dreams of the agent and, of the same episodes, of the snapshots of its training."""
    batches, random = (play_beginnings(agent, dreams, random=is_random) for is_random in (False, True))
    if not batches:
        return {}
    own, before = Share(*count_right_dreams(agent, batches)), cast(Agent, copy_to_cpu(agent))
    snapshots = [(agent.step, own)]
    for path in Checkpoints(agent.run / "dream_snapshots").paths():
        try:
            LearnerWeights(before.algo).load_state_dict(read_checkpoint(path, ["algo"])["algo"])
            snapshots.append((step_from_name(path), Share(*count_right_dreams(before, batches))))
        except ReverieError as error:
            logger.warning(f"{path} is left out of the report: {error}")
    title, counts = f"{agent.config.name} on {agent.config.task_label}", [(step, *share) for step, share in snapshots]
    save_right_dreams(agent.run, counts, title, "env steps" if agent.config.unit == "steps" else "updates")
    return {
        "dreams": own, "random_dreams": Share(*count_right_dreams(agent, random)), "horizon": dream_horizon(agent),
        "snapshots": sorted(snapshots),
    }  # fmt: skip


def _show_episodes(agent: Agent, played: Sequence[PlayedEpisode], frames: int) -> list[dict[str, Any]]:
    """Return the worst episodes, the median and the best, with pictures of evenly spaced rows."""
    ranked = sorted(played, key=lambda episode: (episode.total, -len(episode.rewards)))
    picked = {id(x): x for x in (*ranked[:SHOWN], *ranked[len(ranked) // 2 :][:1], *ranked[-1:])}
    names = {id(x): "median" for x in ranked[len(ranked) // 2 :][:1]} | {id(x): "best" for x in ranked[-1:]}
    return [
        {
            "name": names.get(key, f"worst {number}" if number > 1 else "worst"), **to_plain(episode),
            "rewards": np.cumsum(episode.rewards).tolist(), "pictures": _pictures(agent, episode, frames),
        }
        for number, (key, episode) in enumerate(picked.items(), 1)
    ]  # fmt: skip


def _pictures(agent: Agent, episode: PlayedEpisode, frames: int) -> list[list[Any]]:
    """Play an episode again; return numbers of rows and their pictures, none if the environment cannot be drawn."""
    length = len(episode.rewards)
    rows = sorted({round(x) for x in np.linspace(0, length, min(frames, length + 1))}) if frames else []
    pictures = list[list[Any]]()
    with contextlib.suppress(ReverieError), contextlib.closing(agent.make_env(render=True)) as env:
        if env.render_mode is None:
            return []
        with seeded_rng(episode.seed):
            for number, _ in enumerate(itertools.islice(play_episode(agent, env, seed=episode.seed), length + 1)):
                if number in rows:
                    pictures.append([number, _encode(np.asarray(env.render()))])
    return pictures


def _encode(frame: np.ndarray) -> str:
    """Return a picture ``[H, W, 3]`` as a URL."""
    file = io.BytesIO()
    Image.fromarray(shrink(upscale(frame), SIDE)).quantize(64).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"


def _numbers(facts: Mapping[str, Any]) -> list[list[str]]:
    """Return up to three numbers for the top of the page, each with its unit."""
    rows = []
    if score := facts.get("score"):
        rows.append([str(score), f"mean return of {score.n} new episodes"])
    if random := facts.get("random"):
        rows.append([str(random), f"mean return of {random.n} episodes with random actions"])
    if share := facts.get("dreams"):
        rows.append([str(share), "right dreams under its own actions"])
    elif facts.get("evaluations"):
        step, value, _ = max(facts["evaluations"], key=lambda row: row[1])
        rows.append([format_number(value), f"best evaluation, at step {step:,}"])
    return rows[:3]


def to_plain(value: Any) -> Any:
    """Return facts as plain values for JSON; numbers that are not finite become None."""
    if isinstance(value, Share):
        return {"right": value.right, "total": value.total, "interval": list(value.interval)}
    if isinstance(value, PlayedEpisode):
        return {"seed": value.seed, "return": value.total, "steps": len(value.rewards), "ending": value.ending}
    if isinstance(value, Mean | Finding | IntervalEstimate):
        return {name: to_plain(x) for name, x in value._asdict().items()}
    if isinstance(value, Mapping):
        return {str(key): to_plain(x) for key, x in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(x) for x in value]
    return float(value) if isinstance(value, np.floating) else value if value == value else None
