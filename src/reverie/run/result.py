"""The result of training: how a run ended, and the files that it left."""

from __future__ import annotations

import base64
import functools
import html
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reverie.core.errors import RunError, count_noun
from reverie.run.evaluate import Evaluation
from reverie.run.folder import RunFolder


@dataclass(frozen=True, kw_only=True, repr=False)
class TrainResult:
    """How a run ended, and the files that it left."""

    run: Path
    """Run folder."""
    reason: Literal["finished", "interrupted"]
    """Either "finished" (all steps were made, or stopped early: see ``stop_reason``), or "interrupted" by a signal: the
    same call continues the run."""
    stop_reason: str = ""
    """Why the run stopped early: ``stop_score``, ``patience`` or a callback; "" if it did not."""
    signal: int | None = None
    """Number of the signal that interrupted the run; None if it finished."""
    env_steps: int
    """Env steps since the start of the run: decisions of the policy over all environments, not counting action
    repeat."""
    updates: int
    """Gradient updates since the start of the run."""
    evaluation: Evaluation | None = None
    """The final evaluation, on the environment's true rewards; None if there was none."""
    estimate: Any = None
    """FQE's :class:`~reverie.ReturnEstimate` of the policy's return, in an offline run without an evaluation
    environment; None if there was none."""
    heldout: Mapping[str, float] = field(default_factory=dict)
    """Losses on held-out rows at the end, and ``goal/recall``, by name; empty if there was no end, or no such rows."""
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files by name: "settings", "metrics", "curve", "evaluation", "estimate", "checkpoint", and, if it is
    another one, "best checkpoint"."""

    load_agent: Callable[[], Any] | None = field(default=None, repr=False, compare=False)
    """Loads the agent of the newest checkpoint; None in callbacks."""

    @functools.cached_property
    def agent(self) -> Any:
        """The trained :class:`~reverie.Agent`, loaded from the newest checkpoint on first use.

        Raises:
            ReverieError: as :func:`reverie.load`.
        """
        if self.load_agent is None:
            raise RunError(f"the result of a callback has no agent. Load the agent: reverie.load('{self.run}').")
        return self.load_agent()

    def __repr__(self) -> str:
        """Return how the run ended, and its score."""
        return f"{type(self).__name__}({self.describe()}, in {self.run})"

    def describe(self) -> str:
        """Return in words how the run ended, with the mean return of the final evaluation."""
        text = f"{self.reason} at env step {self.env_steps:,}, after {count_noun(self.updates, 'update')}"
        if self.evaluation is not None:
            played = count_noun(len(self.evaluation.scores), "episode")
            text += f"; mean return {self.evaluation.score:.2f} of {played}"
            text += f" ({self.evaluation.cut_text()})" if self.evaluation.cut_off else ""
        return text

    def _repr_html_(self) -> str:
        """Show in a notebook how the run ended, its learning curve and newest video, and the next commands."""
        return run_html(f"{self.run}: {self.describe()}", self.run)


MAX_VIDEO_BYTES = 4 * 2**20
"""Size of the largest video that a notebook embeds."""


def run_html(title: str, run: Path) -> str:
    """Return HTML for a notebook: ``title``, learning curve and newest video of a run if they exist, next commands."""
    folder, parts = RunFolder(run), [f"<p>{html.escape(title)}</p>"]
    if folder.curve.exists():
        data = base64.b64encode(folder.curve.read_bytes()).decode()
        parts += [f'<img src="data:image/png;base64,{data}" alt="learning curve" width="520">']
    videos = sorted(folder.videos.glob("[!.]*.mp4"), key=lambda path: path.stat().st_mtime)
    if videos and videos[-1].stat().st_size <= MAX_VIDEO_BYTES:
        data = base64.b64encode(videos[-1].read_bytes()).decode()
        parts += [f'<video src="data:video/mp4;base64,{data}" width="320" controls loop muted autoplay></video>']
    quoted = html.escape(shlex.quote(str(run)))
    view, film = f"<code>reverie view {quoted}</code>", f"<code>reverie eval {quoted} --video</code>"
    return "\n".join([*parts, f"<p>{view} opens the viewer, {film} films it.</p>"])
