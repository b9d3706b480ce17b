"""Estimate the discounted return of a policy from recorded rows alone, by fitted Q evaluation (``algos/fqe.py``)."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Actions, mode_of
from reverie.agent.loading import saved_config
from reverie.algos.base import Algorithm, AlgorithmConfig
from reverie.algos.fqe import CHOSEN, FQE, FQEConfig, Units
from reverie.core import statistics
from reverie.core.bounds import AtLeast
from reverie.core.errors import EnvError, RunError, plural
from reverie.core.files import writing
from reverie.core.importing import trusting
from reverie.core.logger import logger
from reverie.core.machine import choose_device
from reverie.core.protocols import Memoryless, Policy
from reverie.core.randomness import derived_seeds, reproducible
from reverie.core.specs import EXTRAS, ActionSpec, ObsSpec
from reverie.core.statistics import IntervalEstimate
from reverie.core.types import FLAGS, Batch, Mode, State, Step, Window
from reverie.datasets.dataset import dataset_config, open_recorded, shown
from reverie.datasets.memory import DataLike
from reverie.experiment.build import check_fit, looked_at
from reverie.experiment.config import NO_ENV
from reverie.log.console import span
from reverie.objectives.returns import returns_to_go
from reverie.replay.batch_sampler import BatchSamplerConfig
from reverie.replay.dataset import Dataset
from reverie.replay.replay import Replay
from reverie.run.checkpoint import Checkpoints
from reverie.run.collect import initial_state
from reverie.run.folder import RunFolder, check_origin, read_saved, read_spec, write_found
from reverie.run.manifest import step_of

Watch = Callable[[int, int], bool]
"""Told after each update of an estimate how many were made and how many there will be; False ends the estimate."""

BLOCK = 1024
"""First states per forward pass, and rows in a batch for a memoryless policy."""
SIDE_BY_SIDE = 256
"""Most episodes side by side for any other policy."""
REPORT_EVERY = 30.0
"""Seconds between two lines on the progress of an estimate."""
ROUNDING = 1e-6
"""Standard deviation, relative to the largest number, below which numbers are taken to be equal."""
MAX_EPISODES = 10_000
"""Most episodes in a mean, evenly spread: the bootstrap over more would take longer than everything else."""


@dataclass(frozen=True, kw_only=True)
class PolicyEstimate:
    """Estimated return of a policy from the first states of a dataset's episodes, and the returns recorded there."""

    value: IntervalEstimate
    """Mean discounted return that FQE expects of the policy, with a 95 % bootstrap interval over first states; the
    error of FQE itself is not in it."""
    recorded: IntervalEstimate
    """Mean discounted return of the recorded episodes. Rewards that would have followed a truncation are not in it,
    but in ``value`` they are."""
    discount: float
    """Discount factor gamma of both."""
    episodes: int
    """Number of recorded episodes with at least one step."""
    cut_off: int
    """Number of these that were truncated, not terminal."""
    updates: int
    """Gradient updates of FQE so far, those of earlier estimates included."""
    loss: float
    """FQE's loss, the mean squared temporal-difference error, over the last 100 of these."""
    mode: Mode
    """How the policy chose actions: "eval" most likely, "explore" drawn."""
    clipped: str = "none"
    """How the rewards of both returns had been clipped when they were collected; "none" if they are the true ones."""
    beyond: float = 0.0
    """Share of the discount's weight, (1 - gamma) sum_t gamma^t, that lies beyond the recorded steps, in [0, 1]: the
    mean over episodes of gamma^n after n steps that a truncation ended, and of 0 for terminal episodes."""
    agreement: dict[str, float] = field(default_factory=dict)
    """How near the policy's actions are to the recorded ones: see :func:`agreement_of`. The estimate of a policy whose
    actions are far from them may be wrong by any amount."""

    def metrics(self) -> dict[str, float]:
        """Return the numbers under their names in the logs, without the ends of an interval that is unknown."""
        found = {"updates": float(self.updates), "loss": self.loss, "discount": self.discount, **self.agreement}
        for name, part in {"return": self.value, "recorded_return": self.recorded}.items():
            found |= {name: part.value} | ({f"{name}_low": part.low, f"{name}_high": part.high} if part.sure else {})
        return {f"estimate/{name}": value for name, value in found.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for estimate.json."""
        parts = {name: {k: v for k, v in x._asdict().items() if np.isfinite(v)}
                 for name, x in {"return": self.value, "recorded_return": self.recorded}.items()}  # fmt: skip
        names = ("discount", "episodes", "cut_off", "beyond", "updates", "loss", "clipped")
        what = "discounted return, estimated by fitted Q evaluation (FQE) from recorded data (docs/offline.md)"
        about = {"what": what, "actions": "mode" if self.mode == "eval" else "sample"}
        return {**about, **parts, **{name: getattr(self, name) for name in names}, **self.agreement}

    def words(self) -> str:
        """Format the estimate for the terminal, in three to five lines."""
        cut = f", {self.cut_off:,} of them truncated" if self.cut_off else ""
        clipped = "" if self.clipped == "none" else f", of rewards clipped by {self.clipped}"
        lines = [
            f"estimated by FQE, no episodes played: discounted return of the policy {_between(self.value)}",
            f"  recorded: {_between(self.recorded)} in {plural(self.episodes, 'episode')}{cut}; "
            f"discount {self.discount:g}, {plural(self.updates, 'update')}{clipped}",
            "  intervals are for the mean over first states and do not include the error of FQE itself",
        ]
        if (same := self.agreement.get("same_action")) is not None:
            lines.append(f"  the policy takes the recorded action in {same:.0%} of the steps")
        if (far := self.agreement.get("action_distance")) is not None:
            lines.append(f"  the policy's actions differ from the recorded ones by {far:.2f} of half their range (RMS)")
        if self.beyond >= 0.01:
            lines.append(
                "  not comparable as they are: recorded returns end where episodes were truncated, the policy's goes "
                f"on, and {self.beyond:.0%} of the discount's weight lies beyond"
            )
        return "\n".join(lines)


def _between(found: IntervalEstimate) -> str:
    return f"{found.value:.2f}" + (f" (95 % {found.low:.2f} to {found.high:.2f})" if found.sure else "")


class Estimator:
    """FQE of one learner's policy on one dataset. Each estimate continues training where the one before stopped."""

    def __init__(
        self, algo: Algorithm, dataset: Dataset, obs_spec: ObsSpec, action_spec: ActionSpec,
        config: FQEConfig | None = None, *, seed: int = 0, rewards: np.ndarray | None = None, clipped: str = "none",
    ) -> None:  # fmt: skip
        """Prepare FQE. ``config`` None: :func:`config_for`, with the learner's discount and frame stacks.

        ``rewards``: the true ones of all rows ``[n]``, if the dataset holds clipped ones. ``clipped``: how rewards had
        been clipped when they were collected.
        """
        self.algo: Algorithm = algo
        self.dataset: Dataset = dataset
        self.action_spec: ActionSpec = action_spec
        self.seed: int = seed
        self.clipped: str = clipped
        self.rewards: np.ndarray = dataset.column("reward") if rewards is None else rewards
        config = config or config_for(algo)
        self.discount: float = config.discount
        first = dataset.column("is_first")
        starts = np.flatnonzero(first)
        lengths = np.diff(np.append(starts, len(first)))  # of episodes, in rows
        stepped, ended = lengths > 1, dataset.column("is_terminal")[starts + lengths - 1]
        age = np.arange(len(first)) - np.repeat(starts, lengths)  # of row t: steps since its episode began
        earned = np.where(age > 0, self.rewards * self.discount ** np.maximum(age - 1, 0.0), 0.0)
        self.begins: np.ndarray = starts[stepped]  # [E] rows that a step follows
        self.returns: np.ndarray = np.add.reduceat(earned, starts)[stepped]  # [E], discounted
        self.cut_off: int = int((stepped & ~ended).sum())
        self.beyond: float = float(np.where(ended, 0.0, self.discount ** (lengths - 1.0))[stepped].mean())
        self.fqe: FQE = config.build(obs_spec, action_spec, str(algo.device), seed, self._units())
        if (normaliser := self.fqe.preprocess.normaliser) is not None:
            rows = dataset.storage.read(0, dataset.count, [f"obs/{key}" for key in normaliser.keys], copy=False)
            normaliser.fit({key: torch.from_numpy(rows[f"obs/{key}"][0]) for key in normaliser.keys})
        self.rows: Replay = Replay(dataset.storage, self.fqe.window, seed=seed, config=BatchSamplerConfig(online=False))
        self.rows.batch_sampler.add(first[None], dataset.column("is_last")[None], collected=False)
        self.updates: int = 0

    def _units(self) -> Units:
        """Return FQE's units, and bounds of all values: values relative to the returns' mean and to a scale.

        The scale is the largest standard deviation of returns, rewards, and returns from each row on, or a magnitude.
        """
        first, rewards, discount = self.dataset.column("is_first"), self.rewards, self.discount
        ended = np.append(first[1:], True)
        later = returns_to_go(reward=rewards, first=first, last=ended, terminal=ended, discount=discount)[~ended]
        reward = rewards[~first].astype(np.float64)
        spread = max(self.returns.std(), reward.std(), later.astype(np.float64).std())
        largest = max(abs(self.returns).max(), abs(reward).max())
        horizon = 1 / (1 - discount) if discount < 1 else np.inf
        least, most = min(0.0, reward.min()), max(0.0, reward.max())
        return Units(
            shift=float(self.returns.mean()),
            scale=float(spread if spread > ROUNDING * largest else largest) or 1.0,
            low=float(least * horizon) if least else 0.0,
            high=float(most * horizon) if most else 0.0,
        )

    def estimate(
        self, updates: int, *, mode: Mode = "eval", draws: int = 1, env_steps: int = 0, watch: Watch | None = None
    ) -> PolicyEstimate:
        """Make ``updates`` updates of FQE and return the estimate; RunError if it is not finite.

        No random generator outside is changed.

        Args:
            updates: gradient updates of FQE, at least 1.
            mode: "eval" takes the policy's most likely action, "explore" draws.
            draws: actions per row, at least 1, whose values are averaged.
            env_steps: where schedules of exploration begin; they matter only if actions are drawn.
            watch: follows the updates, and may end them early: the estimate is then that after those made. None: its
                progress is logged now and then, if it takes long.
        """
        AtLeast(1).check("updates", updates)
        AtLeast(1).check("draws", draws)
        with reproducible(self.seed + self.updates):
            names = [name for name in self.dataset.storage.specs if not name.startswith(EXTRAS)]
            columns, width = {name: self.dataset.column(name) for name in names}, self.action_spec.width
            chosen = actions_of(self.algo.policy, columns, width, mode=mode, draws=draws, env_steps=env_steps)
            found, watch = list[Tensor](), watch or logged()
            while len(found) < updates:
                found.append(self._update(chosen))
                if not watch(len(found), updates):
                    break
            begins = thinned(self.begins)
            parts = np.split(begins, range(BLOCK, len(begins), BLOCK))
            value = np.concatenate([self._worth(rows, chosen) for rows in parts])
        self.updates += len(found)
        if not np.isfinite(value).all():
            raise RunError("the estimate by FQE is not a finite number. Use a lower discount or fewer updates.")
        stepped = ~np.append(self.dataset.column("is_first")[1:], True)  # [n] rows that a step follows
        return PolicyEstimate(
            value=statistics.estimate(statistics.mean, value),
            recorded=statistics.estimate(statistics.mean, thinned(self.returns)),
            discount=self.discount,
            episodes=len(self.begins),
            cut_off=self.cut_off,
            updates=self.updates,
            loss=float(torch.stack(found)[-100:].mean()) * self.fqe.scale**2,
            mode=mode,
            clipped=self.clipped,
            beyond=self.beyond,
            agreement=agreement_of(chosen[stepped], self.dataset.column("action")[stepped], self.action_spec),
        )

    def _update(self, chosen: np.ndarray) -> Tensor:
        batch = self.rows.sample()
        rows = (batch.index.numpy()[:, None] + np.arange(batch.shape[1])).clip(min=0)  # [B, T]
        picked = torch.from_numpy(chosen[rows])  # [B, T, n, A]
        reward = torch.from_numpy(self.rewards[rows])
        return self.fqe.update(replace(batch, reward=reward, extras={CHOSEN: picked})).metrics["loss/critic"]

    def _worth(self, rows: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        """Return the values of first states, ``[E]``. Context rows repeat the first state; they have no effect."""
        found = self.dataset.storage.gather(torch.from_numpy(rows), 1)
        times = self.fqe.window.context + 1
        column = {name: x.expand(-1, times, *x.shape[2:]) for name, x in found.items()}
        picked = torch.from_numpy(chosen[rows])[:, None].expand(-1, times, -1, -1)  # [E, T, n, A]
        batch = Batch.of_columns(column, torch.from_numpy(rows), extras={CHOSEN: picked})
        return np.asarray(self.fqe.worth(batch)[:, -1].cpu().numpy(), np.float64)

    def state_dict(self) -> State:
        """Return the critic, its optimiser, and the state of its sampler."""
        return {"fqe": self.fqe.state_dict(), "rows": dict(self.rows.state_dict()), "updates": self.updates}

    def load_state_dict(self, state: State) -> None:
        """Restore that state."""
        self.fqe.load_state_dict(state["fqe"])
        self.rows.load_state_dict(state["rows"])
        self.updates = int(state["updates"])


def logged() -> Watch:
    """Return what logs the progress of an estimate now and then."""
    since = latest = time.monotonic()

    def watch(made: int, updates: int) -> bool:
        nonlocal latest
        now = time.monotonic()
        if now - latest >= REPORT_EVERY and made < updates:
            latest, left = now, span((now - since) / made * (updates - made))
            logger.info(f"estimating the policy's return: {made:,} of {plural(updates, 'update')} of FQE, {left} left")
        return True

    return watch


def config_for(algo: Algorithm) -> FQEConfig:
    """Return FQE's settings for a learner: the same discount (0.99 if it has none) and frame stacks."""
    own = getattr(algo, "cfg", None)
    kept = {name: getattr(own, name) for name in ("discount", "frames", "frame_keys") if hasattr(own, name)}
    return FQEConfig(**kept)


def thinned(values: np.ndarray) -> np.ndarray:
    """Return at most :data:`MAX_EPISODES` of the values, evenly spread."""
    return values[np.unique(np.linspace(0, len(values) - 1, MAX_EPISODES).astype(np.int64))]


# ---------------------------------------------------------------- actions of a policy in recorded rows


def actions_of(
    policy: Policy[Any], columns: Mapping[str, np.ndarray], width: int, *,
    mode: Mode = "eval", draws: int = 1, env_steps: int = 0,
) -> np.ndarray:  # fmt: skip
    """Return the actions that a policy would take in each row, float32 ``[rows, draws, A]``; ``width`` is A.

    A policy with state sees whole episodes in order, and is told the recorded actions (``override``). ``columns`` are
    all rows, ``[rows, ...]``: ``obs/<key>``, ``action``, ``reward`` and the flags.
    """
    seen = {name.removeprefix("obs/"): column for name, column in columns.items() if name.startswith("obs/")}
    fixed = {name: columns[name] for name in ("reward", *FLAGS)}
    done = columns["action"]
    found = np.zeros((len(done), draws, width), np.float32)
    memoryless = isinstance(policy, Memoryless) and policy.memoryless(mode)
    for order in orders(fixed["is_first"], carried=not memoryless):
        state = initial_state(policy, order.shape[1], env_steps)
        for rows in order:
            real, at = rows >= 0, rows.clip(min=0)
            obs = {key: torch.from_numpy(column[at]) for key, column in seen.items()}
            step = Step(obs=obs, **{name: torch.from_numpy(column[at]) for name, column in fixed.items()})
            for n in range(draws):
                action, after = policy.act(step, state, mode)
                found[rows[real], n] = action.numpy()[real]
            state = policy.override(after, torch.from_numpy(done[at]))
    return found


def orders(first: np.ndarray, carried: bool) -> Iterator[np.ndarray]:
    """Yield tables ``[L, N]`` of row numbers, -1 is padding. With state (``carried``), each column is an episode."""
    total, size = len(first), min(BLOCK, len(first))
    if not carried:
        yield np.pad(np.arange(total), (0, -total % size), constant_values=-1).reshape(-1, size)
        return
    starts = np.flatnonzero(first)
    lengths = np.diff(np.append(starts, total))
    for group in np.split(np.argsort(-lengths, kind="stable"), range(SIDE_BY_SIDE, len(starts), SIDE_BY_SIDE)):
        t = np.arange(lengths[group].max())[:, None]
        yield np.where(t < lengths[group], starts[group] + t, -1)


def agreement_of(chosen: np.ndarray, taken: np.ndarray, spec: ActionSpec) -> dict[str, float]:
    """Compare the policy's actions in R rows, ``[R, n, A]``, with those that were taken there, ``[R, A]``.

    Return ``same_action``, the share whose classes are all those that were recorded, and ``action_distance``, the root
    mean square difference of continuous actions in units of half their range.
    """
    discrete = np.zeros(spec.width, bool)
    for key, place in spec.slices().items():
        discrete[place] = spec.parts[key].kind == "categorical"
    apart, found = np.abs(chosen - taken[:, None]), dict[str, float]()
    if discrete.any():  # one-hot, but a network's 1 may be off by a rounding error
        found["same_action"] = float((apart[..., discrete] < 0.5).all(-1).mean())
    if not discrete.all():
        found["action_distance"] = float(np.sqrt(np.square(apart[..., ~discrete], dtype=np.float64).mean()))
    return found


# ---------------------------------------------------------------- of a run's agent


@dataclass(frozen=True, kw_only=True)
class EstimateReport:
    """An estimate, and the file that holds it."""

    estimate: PolicyEstimate
    files: dict[str, Path]
    """Written files by name: "estimate", or empty if it could not be written."""


def estimate(
    run: Path | str, data: DataLike | None = None, *,
    updates: int = 20_000, actions: Actions = "mode", draws: int = 10, discount: float | None = None,
    checkpoint: Path | str | None = None, algo: AlgorithmConfig | None = None, device: str = "auto",
    seed: int | None = None, trust: bool = False, watch: Watch | None = None,
) -> EstimateReport:  # fmt: skip
    """Estimate the return of a run's agent by fitted Q evaluation (FQE), and write ``<run>/estimate.json``.

    Nothing is played and no environment is needed. World models see the recorded episodes in order.

    Args:
        run: the run folder.
        data: recorded data to estimate from: a path, minari:NAME, data in memory, or a DatasetConfig. None:
            the data that the run was trained on.
        updates: gradient updates of FQE, at least 1.
        actions: the policy evaluated takes its most likely action ("mode"), or draws one ("sample").
        draws: actions drawn for each row, at least 1, with "sample"; their values are averaged.
        discount: gamma. None: the learner's, or 0.99 if it has none.
        checkpoint: name of a folder in ``checkpoints/``, "best", or a path. None: the newest that is whole.
        algo: the config the run was trained with, if it held objects of your own.
        device: where to compute: "cpu", "cuda", "cuda:1", or "auto" for a GPU if there is one.
        seed: of networks and batches, >= 0. None: follows from the run's seed.
        trust: import modules that the run names and no installed package has, such as one in the current folder.
        watch: called after each update as ``watch(made, updates)``; False ends the updates.

    Raises:
        RunError: there is no such run or checkpoint, it is damaged, or no data are known.
        DataError: the data cannot be read, or do not fit the agent.
        UntrustedError: the run names a module that is not installed, and it is neither imported nor trusted.
        ConfigError: a number or ``actions`` is out of range, or the device does not exist here.
    """
    AtLeast(0).check("seed", seed)
    mode = mode_of(actions)
    folder = RunFolder.at(run)
    saved, given = read_saved(folder.path), {"algo": algo, "data": data}
    with trusting(trust):
        check_origin(saved, folder.path, *(name for name, value in given.items() if value is not None))
    trained = saved_config(folder.path, NO_ENV, algo)
    own = trained.data if data is None else dataset_config(data, trained.data.storage)
    if not own.path:
        raise RunError(f"{folder.path} was not trained on recorded data. Pass those to estimate from: --data PATH.")
    config = trained.merge({"data": own, "env.clip_reward": "none"})
    checkpoints = Checkpoints(folder.checkpoints)
    path = checkpoints.select(checkpoint)
    seed = derived_seeds(config.seed)["test"] if seed is None else seed
    space = None  # undeclared bounds of actions are the environment's; one given from Python cannot be made again
    if "env" not in saved.custom and config.env.id != NO_ENV:
        with contextlib.suppress(EnvError):
            space, _ = looked_at(config, None)
    with contextlib.closing(open_recorded(config.data, config.env, space)) as recorded:
        if (spec := read_spec(folder)) is not None:
            check_fit(recorded, spec, NO_ENV)
        specs = recorded.obs_spec, recorded.action_spec
        learner = config.algo.build(*specs, choose_device(device), config.seed)
        checkpoints.load(path, {"algo": learner})
        step = step_of(path)  # a run that goes on deletes its old checkpoints
        settings = config_for(learner).merge({} if discount is None else {"discount": discount})
        window = Window(batch=1, length=2, context=settings.frames - 1, context_crosses=settings.frames > 1)
        with shown(f"reading {recorded.reader.path.name}", recorded.rows()) as counted:
            dataset = config.data.build(recorded, window=window, seed=seed, parts=counted(recorded.parts()))
        for remark in recorded.remarks():
            logger.warning(f"{config.data.where}: {remark}")
    estimator = Estimator(learner, dataset, *specs, settings, seed=seed, clipped=recorded.clipped)
    draws = 1 if mode == "eval" else draws
    found = estimator.estimate(updates, mode=mode, draws=draws, env_steps=trained.explored(step), watch=watch)
    content, files = {"step": step, **found.to_dict(), "checkpoint": path.name, "data": config.data.where}, {}
    try:
        with writing(folder.path):
            write_found(folder.estimate, content)
            files["estimate"] = folder.estimate
    except RunError as error:
        logger.warning(str(error))
    return EstimateReport(estimate=found, files=files)
