"""Tapes that note what is done with them."""

from __future__ import annotations

from collections.abc import Callable

from reverie.core.types import Update
from reverie.kernels import capture


class Tapes(capture.TapeRecorder):
    """Tapes that note what is done with them, and see ``obstacle`` in every call."""

    def __init__(self, obstacle: str = "") -> None:
        self.obstacle = obstacle
        self.calls: list[str] = []

    def warm_up(self, call: Callable[[], Update]) -> tuple[Update, str]:
        self.calls.append("warm up")
        update, found = super().warm_up(call)
        return update, self.obstacle or found

    def capture(self, call: Callable[[], Update]) -> tuple[Update, Callable[[], object]]:
        self.calls.append("capture")
        outputs, again = super().capture(call)

        def replay() -> object:
            self.calls.append("replay")
            return again()

        return outputs, replay
