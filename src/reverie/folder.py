"""The folder of a run: its files, and whether they can be written."""

from __future__ import annotations

import contextlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from reverie.core.errors import DataError, ReverieError, RunError
from reverie.core.files import check_local, remedy, write_atomic
from reverie.core.signature import differences, other_bounds, signature
from reverie.core.space_json import space_of, text_of
from reverie.core.spaces import Space
from reverie.core.specs import ActionSpec, ObsSpec
from reverie.core.words import Say


@dataclass(frozen=True)
class RunFolder:
    """Paths inside a run. Reading them creates nothing."""

    path: Path
    given: Path | None = None
    """The path as the user gave it, if it is another one: messages show it."""

    @classmethod
    def at(cls, run: Path | str) -> RunFolder:
        """Return the folder of a run that a user names, by an absolute path: an environment may change the directory.

        Raises:
            ConfigError: it is a URL.
        """
        check_local(run, "run")
        given = Path(os.path.expanduser(run))
        return cls(given.absolute(), given)

    @property
    def shown(self) -> str:
        """The path for messages."""
        return str(self.given or self.path)

    @contextlib.contextmanager
    def showing(self, say: Say) -> Iterator[Say]:
        """Yield ``say``, which shows the run's path as it was given; errors raised inside show it so as well."""
        try:
            yield lambda text: say(text.replace(str(self.path), self.shown))
        except ReverieError as error:
            error.args = tuple(str(word).replace(str(self.path), self.shown) for word in error.args)
            raise

    @property
    def config(self) -> Path:
        """Resolved settings."""
        return self.path / "config.yaml"

    @property
    def spec(self) -> Path:
        """Observations and actions that the networks were made for."""
        return self.path / "spec.json"

    @property
    def spaces(self) -> Path:
        """Spaces of the recorded data, of a run without an environment."""
        return self.path / "spaces.json"

    @property
    def metrics(self) -> Path:
        """All measurements, one JSON object per line."""
        return self.path / "metrics.jsonl"

    @property
    def tensorboard(self) -> Path:
        """TensorBoard event files."""
        return self.path / "tensorboard"

    @property
    def tracked(self) -> Path:
        """Ids of the run at external trackers (Weights & Biases, MLflow)."""
        return self.path / "tracked.json"

    @property
    def checkpoints(self) -> Path:
        """One folder per checkpoint."""
        return self.path / "checkpoints"

    @property
    def replay(self) -> Path:
        """Every collected row."""
        return self.path / "replay"

    @property
    def curve(self) -> Path:
        """Figure of the learning curve."""
        return self.path / "curve.png"

    @property
    def videos(self) -> Path:
        """Videos of the agent and of its predictions."""
        return self.path / "videos"

    @property
    def evaluation(self) -> Path:
        """Newest evaluation."""
        return self.path / "eval.json"

    @property
    def estimate(self) -> Path:
        """Newest estimate from recorded data, for which nothing was played."""
        return self.path / "estimate.json"

    @property
    def dream(self) -> Path:
        """Figures and numbers of the newest comparison of dream and truth."""
        return self.path / "dream"

    def files(self) -> dict[str, Path]:
        """Return the existing files that people read, by name."""
        known = {"settings": self.config, "metrics": self.metrics, "curve": self.curve, "evaluation": self.evaluation}
        known["estimate"] = self.estimate
        return {what: path for what, path in known.items() if path.exists()}

    def has_newest_curve(self) -> bool:
        """Return whether the figure of the learning curve, if there is a log to draw, is not older than the log."""
        if not self.metrics.exists():
            return True
        return self.curve.exists() and self.curve.stat().st_mtime_ns >= self.metrics.stat().st_mtime_ns


def write_json(path: Path, values: Mapping[str, Any]) -> None:
    """Write ``values`` as JSON, atomically."""
    write_atomic(path, json.dumps(values, indent=2, allow_nan=False) + "\n")


def write_found(path: Path, values: Mapping[str, Any]) -> None:
    """Write eval.json or estimate.json. A result of a ``checkpoint`` keeps that of the end of training as "final"."""
    final = found_at_end(path) if "checkpoint" in values else None
    write_json(path, {**values, "final": final} if final else values)


def found_at_end(path: Path) -> dict[str, Any] | None:
    """Return the result at the end of training from eval.json or estimate.json at ``path``; None if it has none."""
    try:
        own = json.loads(path.read_text(encoding="utf-8"))
        found: dict[str, Any] | None = own.get("final") if "checkpoint" in own else own
    except (OSError, ValueError, AttributeError):
        return None
    return found if isinstance(found, dict) else None


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Convert errors of the disk raised inside to RunError.

    Raises:
        RunError: ``path``, or the file that the error is about, cannot be written.
    """
    try:
        yield
    except BrokenPipeError:  # not the disk: the reader of our output has gone
        raise
    except OSError as error:
        raise RunError(f"cannot write {error.filename or path}: {error.strerror or error}. {remedy(error)}") from error


def check_writable(path: Path) -> None:
    """Check that ``path`` can be written, or made where it does not exist.

    Raises:
        RunError: it cannot.
    """
    nearest = next(folder for folder in (path, *path.absolute().parents) if folder.exists())
    if not nearest.is_dir():
        raise RunError(f"cannot write to {path}: {nearest} is a file.")
    if not os.access(nearest, os.W_OK | os.X_OK):
        raise RunError(
            f"cannot write to {path}: {nearest} is read-only. Use a writable folder; to continue a run, copy it there."
        )


def check_spec(folder: RunFolder, obs: ObsSpec, action: ActionSpec, *, bounds: bool = True) -> None:
    """Check that the environment has the observations and actions that the run's networks were made for.

    Runs of versions without spec.json are not checked. ``bounds``: those of vectors are compared too, as policies see
    what they never saw where numbers are scaled otherwise; data and environment often declare different ones.

    Raises:
        RunError: it has not, and the message names each difference; or spec.json is damaged.
    """
    if not folder.spec.is_file():
        return
    try:
        saved = json.loads(folder.spec.read_text(encoding="utf-8"))
        if not all(isinstance(saved.get(part), dict) and saved[part] for part in ("observation", "action")):
            raise ValueError("no observations or no actions")
        now, where = signature(obs, action), ("the run", "this environment")
        found = differences(saved, now, where) or (other_bounds(saved, now, where) if bounds else [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise RunError(f"{folder.spec} is damaged ({error!r}): delete it to continue without this check.") from error
    if found:
        raise RunError(
            f"{'; '.join(found)}: the environment differs from the one that {folder.path} was trained on. Use the same "
            "environment with the same env options, or choose another run folder."
        )


def write_spec(folder: RunFolder, obs: ObsSpec, action: ActionSpec) -> None:
    """Write spec.json, unless it exists."""
    if not folder.spec.is_file():
        write_json(folder.spec, signature(obs, action))


def write_spaces(folder: RunFolder, spaces: tuple[Space, Space] | None) -> None:
    """Write spaces.json, by which the agent of a run without an environment can act."""
    if spaces is None or folder.spaces.is_file():
        return
    with contextlib.suppress(DataError):  # a kind of one's own: then loading the agent takes the environment
        observation, action = map(text_of, spaces)
        write_json(folder.spaces, {"observation": observation, "action": action})


def read_spaces(folder: RunFolder) -> tuple[Space, Space] | None:
    """Return the spaces of observations and actions in spaces.json; None if there is no such file.

    Raises:
        RunError: it is damaged.
    """
    if not folder.spaces.is_file():
        return None
    try:
        saved = json.loads(folder.spaces.read_text(encoding="utf-8"))
        return space_of(saved["observation"], str(folder.spaces)), space_of(saved["action"], str(folder.spaces))
    except (OSError, ValueError, KeyError, TypeError, DataError) as error:
        raise RunError(
            f"{folder.spaces} is damaged ({error}). Pass an environment with these spaces, reverie.load(run, env=...)."
        ) from error


def new_path(root: Path, env: str, algorithm: str) -> Path:
    """Return a path for a new run that does not exist yet: ``<root>/<env>-<algorithm>-<time>``."""
    name = "-".join(re.sub(r"[^\w.-]+", "_", part) for part in (env, algorithm))
    stem = root / f"{name}-{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    candidates = [stem, *(stem.with_name(f"{stem.name}-{i}") for i in range(2, 1000))]
    return next(path for path in candidates if not path.exists())
