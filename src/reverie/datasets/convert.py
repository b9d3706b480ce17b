"""Operations on recorded data: validate it, write it in another format, take a part of it.

Data are never changed in place. A new dataset appears at its path only once it is complete.
"""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import gymnasium
import numpy as np
from gymnasium.envs.registration import EnvSpec

from reverie.core.checks import at_least, check_at_least
from reverie.core.errors import ConfigError, DataError, EnvError, RunError
from reverie.core.files import write_json, writing
from reverie.core.signature import differences, signature
from reverie.core.space_json import text_of
from reverie.core.spaces import ActionCodec, ObsCodec, nested
from reverie.core.types import FLAGS
from reverie.core.words import plural
from reverie.datasets.concat import SeveralReader
from reverie.datasets.dataset import Recorded, shown
from reverie.datasets.episodes import chosen, drawn, episodes_of, mostly_stepless, pieces_of, worth_the_same
from reverie.datasets.export import to_pydreamer, write_minari
from reverie.datasets.formats import Format
from reverie.datasets.minari import ENV_ID, ENV_SETTINGS, MEASURED_KEY
from reverie.datasets.output import Exported, check_target, staged_at
from reverie.datasets.own import OwnReader, sound
from reverie.datasets.own_store import ABOUT, StoreReader
from reverie.datasets.reader import BOTH, SEED, About, Reader, Rows, Space
from reverie.datasets.recorded_env import env_as_recorded, env_of, made_with
from reverie.datasets.spaces import check_held, opened
from reverie.datasets.validate import DataReport, Validator, replay
from reverie.datasets.writers import write_d4rl, write_parquet
from reverie.envs.base import put_away
from reverie.envs.naming import registered, written
from reverie.replay.storage import columns_of
from reverie.store.episodes import Episode
from reverie.store.store import Store

UNBOUNDED = "the action space is not declared: continuous actions are written without bounds"
SCALED = (
    "the action space is not declared: actions are written in [-1, 1] or one-hot, scaled by the range of the recorded "
    "ones, which PyDreamer's files do not store. Other formats keep actions as recorded"
)
Selection = Callable[[Iterator[Rows]], Iterator[Rows]]
"""A function from episodes to those episodes, or pieces of episodes, that are to be written."""


def everything(episodes: Iterator[Rows]) -> Iterator[Rows]:
    """Choose all episodes."""
    return episodes


def of_the_user(reader: Reader) -> list[OwnReader]:
    """Return the reader of the user's own that yields the rows, or several; none for formats known here."""
    parts = reader.readers if isinstance(reader, SeveralReader) else [reader]
    return [one for one in parts if isinstance(one, OwnReader)]


def soundly(choose: Selection, where: str) -> Selection:
    """Return a function that selects as ``choose`` does, and checks the flags of what it selected."""
    return lambda episodes: sound(choose(episodes), where)


# ---------------------------------------------------------------- writing


def write(reader: Reader, target: str, to: Format = "minari", choose: Selection = everything) -> Exported:
    """Write the episodes of ``reader`` that ``choose`` selects to ``target``.

    Minari, D4RL files and tables get values as they were recorded; Minari also their spaces and the environment. The
    actions of reverie's own rows are converted back to those that the environment took; if that is impossible the
    environment is not named. PyDreamer's files and reverie's stores hold rows as learners see them.

    Raises:
        ReverieError: the data cannot be read, ``target`` exists or is named as another format, or a package is
            missing. Nothing is left then.
    """
    check_target(target, to)
    own = of_the_user(reader)
    for one in own:
        one.strict = False
    choose = soundly(choose, own[0].where) if own else choose  # good episodes can be chosen among bad ones
    with writing(Path(target.removeprefix("minari:"))):
        if to in ("minari", "d4rl", "parquet"):
            reader.ask(actions_of)
            note_settings(reader, reader.about(), to)
        if to == "minari":
            return _to_minari(reader, target, choose)
        if to in ("d4rl", "parquet"):
            return _to_columns(reader, Path(target).expanduser(), to, choose)
        recorded = Recorded(reader)
        note_settings(reader, recorded.about, to)
        if recorded.about.measured and to == "pydreamer":
            reader.note(SCALED)
        with shown(f"writing {Path(target).name}", reader.rows()) as counted:
            found = recorded.converted(choose(episodes_of(counted(reader.parts()))))
            if to == "pydreamer":
                return to_pydreamer((Episode("0", 0, 0, rows) for rows in found), Path(target).expanduser())
            return to_store(found, Path(target).expanduser(), recorded)


def note_settings(reader: Reader, about: About, to: Format) -> None:
    """Note settings of the environment that the copy cannot hold: stores can, and Minari beside a recorded spec."""
    settings = made_with(about)
    if not settings or to == "store" or (to == "minari" and about.env_spec):
        return
    named = about.env and to in ("minari", "d4rl")
    lacks = f"names {about.env}, but not its settings" if named else "does not name the environment's settings"
    reader.note(f"the copy {lacks} while recording: {', '.join(settings)}")


def _to_minari(reader: Reader, target: str, choose: Selection) -> Exported:
    about = reader.about()
    said: dict[str, Any] = {key: about.text[key] for key in ("algorithm_name", "description") if key in about.text}
    said |= _named_env(reader, about)
    back = given_back(about)
    both = (
        about.observation if back is None else back.kept_space(),
        about.action if about.declared is None else about.declared,
    )
    if about.measured and about.declared is None:
        both, said[MEASURED_KEY] = (both[0], opened(about.action)), True
        reader.note(UNBOUNDED, int(both[1] != about.action))  # discrete actions have no bounds
    with shown(f"writing {Path(target).name}", reader.rows()) as counted:
        parts = counted(reader.as_recorded())
        found = choose(episodes_of(parts))
        found = found if back is None else unflattened(found, back)
        return write_minari(
            (minari_fields(rows, both) for rows in found if len(rows["reward"]) > 1), target, both, said
        )


def given_back(about: About) -> ObsCodec | None:
    """Return a converter from reverie's own rows to the environment's observations; None if that cannot be known."""
    if about.specs is None:
        return None
    env, _ = environment_of(about)
    if env is None:
        return None
    try:
        settings = env_of(about)
        codec = ObsCodec(env.observation_space, settings.keeps, settings.channels)
        codec.kept_space()  # whether there is one
        return codec if codec.spec == dict(about.specs[0]) else None  # observations may be resized or stacked
    except (EnvError, ValueError):
        return None
    finally:
        put_away(env)


def unflattened(episodes: Iterable[Rows], back: ObsCodec) -> Iterator[Rows]:
    """Yield episodes with the environment's own observations.

    Raises:
        DataError: an observation is not of the dtype that the environment's space declares.
    """
    for number, rows in enumerate(episodes):
        try:
            found = back.decode(rows)
        except DataError as error:
            raise DataError(f"episode {number}: {error}.") from None
        yield found


def _named_env(reader: Reader, about: About) -> dict[str, str]:
    """Return the environment's entries of Minari's metadata; empty if it is unknown."""
    text, more = "", {}
    if about.env_spec:
        text = json.dumps(about.env_spec)
        more = {ENV_SETTINGS: json.dumps(about.env_settings)} if about.env_settings else {}
    elif about.env and (spec := spec_of(about)) is not None:
        text, remark = written(spec)
        reader.note(remark, int(bool(remark)))
    return more | ({"env_spec": text} if text else {}) | ({ENV_ID: about.env} if ":" in about.env else {})


def _to_columns(reader: Reader, target: Path, to: Format, choose: Selection) -> Exported:
    about = reader.about()
    if about.env:
        about = replace(about, **arguments_of(about))
    with shown(f"writing {target.name}", reader.rows()) as counted:
        found = choose(episodes_of(counted(reader.as_recorded())))
        return (write_d4rl if to == "d4rl" else write_parquet)(found, target, about)


def arguments_of(about: About) -> dict[str, Any]:
    """Return ``env_kwargs`` and ``time_limit`` of the environment that data name, which a run has in its settings."""
    named = env_of(about)
    return {"env_kwargs": dict(named.kwargs), "time_limit": named.time_limit or about.time_limit}


def spec_of(about: About) -> EnvSpec | None:
    """Return Gymnasium's spec of the environment in ``about``, as it was made; None if it is not registered."""
    found = registered(about.env)
    if found is None:
        return None
    spec, named = copy.deepcopy(found), env_of(about)
    spec.kwargs |= named.kwargs
    spec.max_episode_steps = named.time_limit or spec.max_episode_steps
    return spec


def seed_of(rows: Rows) -> int | None:
    """Return the seed of an episode's environment; None if it is unknown, or if the episode's beginning was cut off."""
    seed = rows[SEED][0] if SEED in rows else None
    return int(seed) if isinstance(seed, Integral) and int(seed) >= 0 else None


def minari_fields(rows: Rows, both: tuple[Space, Space]) -> dict[str, Any]:
    """Return the fields of Minari's ``EpisodeBuffer`` for an episode of n steps: n + 1 observations, n of all else.

    ``both``: the spaces of observations and of actions.

    Raises:
        DataError: a space does not hold a value, as a space of integers does not hold a fraction.
    """
    terminal, taken = rows["is_terminal"][1:], {name: values[:-1] for name, values in rows.items()}
    check_held(both[0], rows, "obs")
    check_held(both[1], taken, "action")
    seed = seed_of(rows)
    return {
        **({} if seed is None else {"seed": seed}),
        "observations": nested(both[0], rows, "obs"),
        "actions": nested(both[1], taken, "action"),
        "rewards": rows["reward"][1:],
        "terminations": terminal,
        "truncations": (rows["is_last"] & ~rows["is_terminal"] | rows.get(BOTH, False))[1:],
    }


def to_store(episodes: Iterable[Rows], folder: Path, recorded: Recorded) -> Exported:
    """Write a replay store with one stream, and a spec.json that describes its columns.

    Raises:
        RunError: ``folder`` exists, or there is no episode.
    """
    done = Exported(folder)
    with staged_at(folder) as staged:
        store = Store(staged, say=print, waits=False)
        store.begin(columns_of(recorded.obs_spec, recorded.action_spec, {}), 1)
        try:
            for rows in episodes:
                store.extend({name: values[None] for name, values in rows.items()})
                done.episodes, done.steps = done.episodes + 1, done.steps + len(rows["reward"]) - 1
            store.close(None)
        except BaseException:
            with contextlib.suppress(Exception):  # its thread must have ended before the files are deleted
                store.close(None)
            raise
        if not done.episodes:
            raise RunError("the dataset contains no episodes to write.")
        write_json(staged / "spec.json", signature(recorded.obs_spec, recorded.action_spec))
        write_json(staged / ABOUT, said_of(recorded))
    return done


def said_of(recorded: Recorded) -> dict[str, Any]:
    """Return the content of ``ABOUT``: the data's environment, with its settings, and the units of their actions."""
    about, out = recorded.about, dict[str, Any]()
    if about.env:
        named = arguments_of(about)
        out["env"] = {"id": about.env, "kwargs": named["env_kwargs"], "time_limit": named["time_limit"]}
    is_known = isinstance(recorded.reader, StoreReader) and recorded.reader.units is not None
    if recorded.actions is not None or is_known:
        out |= {"action_space": text_of(about.action), "measured": about.measured}
    said = {"env_spec": about.env_spec, "env_settings": about.env_settings}
    return out | {name: value for name, value in said.items() if value}


# ---------------------------------------------------------------- a part of it


@dataclass(frozen=True, kw_only=True)
class Share:
    """Size of a part of a dataset, and the unit in which it is drawn."""

    fraction: float | None = None
    """Fraction of the steps, above 0 and up to 1."""
    steps: int | None = None
    """Number of steps, in place of a fraction."""
    by: Literal["episode", "step"] = "episode"
    """Unit that is drawn."""
    seed: int = 0
    """Seed of the drawing."""

    def __post_init__(self) -> None:
        if (self.fraction is None) == (self.steps is None):
            raise ConfigError(f"fraction = {self.fraction}, steps = {self.steps}: pass exactly one of them.")
        if self.fraction is not None and not 0.0 < self.fraction <= 1.0:
            raise ConfigError(f"fraction = {self.fraction}: expected a fraction above 0 and up to 1.")
        at_least(self, steps=1, seed=0)

    def of(self, total: int) -> int:
        """Return the number of steps to take of ``total``.

        Raises:
            ConfigError: there are fewer.
        """
        if self.fraction is not None:
            return max(1, round(self.fraction * total))
        assert self.steps is not None
        if self.steps > total:
            raise ConfigError(f"steps = {self.steps}: the dataset has only {plural(total, 'step')}.")
        return self.steps


def part(reader: Reader, share: Share) -> Selection:
    """Return a function that selects the part ``share``, the same for the same seed. Reads all rows once.

    By "episode", whole episodes are drawn until their steps suffice, so the part may be a little larger; the order is
    kept. By "step", exactly as many steps are drawn, and adjacent ones stay together.
    """
    lengths = np.array([len(rows["reward"]) - 1 for rows in episodes_of(flags_of(reader))], np.int64)
    wanted = share.of(int(lengths.sum()))
    if share.by == "episode":
        picked = chosen(lengths, wanted, share.seed)
        return lambda episodes: (rows for rows, keep in zip(episodes, picked, strict=True) if keep)
    kept = np.split(drawn(int(lengths.sum()), wanted, share.seed), np.cumsum(lengths)[:-1])
    return lambda episodes: (
        piece for rows, mask in zip(episodes, kept, strict=True) for piece in pieces_of(rows, mask) if mask.any()
    )


def flags_of(reader: Reader) -> Iterator[Rows]:
    """Yield all rows without observations and actions."""
    names = ("reward", *FLAGS)
    with shown(f"reading {reader.path.name}", reader.rows()) as counted:
        for rows in counted(reader.parts()):
            yield {name: rows[name] for name in names}


# ---------------------------------------------------------------- whether it can be right


def validate(reader: Reader, replayed: int = 3) -> DataReport:
    """Check every episode against the rules of ``datasets/validate.py``, and some against the environment.

    Up to ``replayed`` episodes with a known seed are played again in the environment that the data name; its
    observations and rewards must be the recorded ones.

    Raises:
        ConfigError: ``replayed`` is negative.
        ReverieError: the data cannot be read at all.
    """
    check_at_least("replay", replayed, 0)
    about = reader.about()
    env, why = environment_of(about)
    limit = env.spec.max_episode_steps if env is not None and env.spec is not None else None
    validator = Validator(about, limit)
    done = 0
    with shown(f"validating {reader.path.name}", reader.rows()) as counted:
        for rows in episodes_of(counted(reader.as_recorded())):
            validator.add(rows)
            if env is not None and done < replayed and (seed := seed_of(rows)) is not None:
                first = validator.report.rows - len(rows["reward"])
                differs, done = replay(env, rows, about, seed), done + 1
                validator.report.add(f"differs from a replay in {about.env} with its seed and actions", differs, first)
    validator.report.disordered(reader.disordered())
    report = validator.report
    report.remarks += [wrong] if (wrong := mostly_stepless(report.rows, report.stepless)) else []
    report.remarks += [same] if (same := worth_the_same(report.rewards, report.terminal)) else []
    report.remarks += reader.remarks()
    if env is None:
        report.remarks.append(f"no episodes were replayed in an environment: {why}")
    elif not done:
        why = "no episode has a recorded seed" if replayed else "the number of episodes to replay is 0"
        report.remarks.append(f"no episodes were replayed in the environment: {why}")
    if env is not None:
        put_away(env)
    return report


def environment_of(about: About) -> tuple[gymnasium.Env[Any, Any] | None, str]:
    """Return the environment that data name, or the reason why there is none."""
    if not about.env:
        return None, "the data do not name one"
    try:
        return env_as_recorded(about), ""
    except EnvError as error:
        return None, str(error)


def actions_of(about: About) -> tuple[Space | None, str]:
    """Return the action space of the environment that reverie's own rows come from, or the reason why it is unknown."""
    env, why = environment_of(about)
    if env is None:
        return None, why
    space: Space = env.action_space
    put_away(env)
    try:
        own = signature({}, ActionCodec(space).spec)
    except EnvError as error:
        return None, str(error)
    if about.specs is not None and differences(signature({}, about.specs[1]), own, ("the rows", about.env)):
        return None, f"the stored actions do not fit the action space of {about.env}, {space}"
    return space, ""


def good(report: DataReport) -> Selection:
    """Return a function that leaves out the episodes that break a rule."""
    bad = set(report.bad)
    return lambda episodes: (rows for number, rows in enumerate(episodes) if number not in bad)
