"""The result of training: how a run ended, and the files that it left."""

from __future__ import annotations

import base64
import functools
import html
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from reverie.core.errors import RunError, count_noun
from reverie.run.evaluate import Evaluation


@dataclass(frozen=True, kw_only=True)
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
    files: dict[str, Path] = field(default_factory=dict)
    """Existing files by name: "settings", "metrics", "curve", "evaluation", "estimate" and "checkpoint"."""

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

    def _repr_html_(self) -> str:
        """Show in a notebook how the run ended, and its learning curve."""
        text = f"{self.run}: {self.reason} at env step {self.env_steps:,}, after {count_noun(self.updates, 'update')}"
        if self.evaluation is not None:
            played = count_noun(len(self.evaluation.scores), "episode")
            text += f"; mean return {self.evaluation.score:.2f} of {played}"
            text += f" ({self.evaluation.cut_text()})" if self.evaluation.cut_off else ""
        text = f"<p>{html.escape(text)}</p>"
        if "curve" in self.files:
            picture = base64.b64encode(self.files["curve"].read_bytes()).decode()
            text += f'<img src="data:image/png;base64,{picture}" alt="learning curve">'
        return text
