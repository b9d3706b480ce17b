"""The channel of pages in a browser: which of them acts in environment 0, for how long, and at which pace."""

from __future__ import annotations

import contextlib
import json
import threading
from collections import deque
from collections.abc import Callable, Mapping
from copy import copy
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from torch import Tensor

from reverie.core import wall_clock
from reverie.core.action_codec import ActionCodec
from reverie.core.errors import ConfigError, DataError, EnvError, short_repr
from reverie.core.keymap import KeyMap, find_keymap
from reverie.core.logger import logger
from reverie.core.protocols import Env
from reverie.core.spaces import column, get_at_path, iter_leaves
from reverie.core.specs import MASK_KEY, ActionSpec
from reverie.core.types import ExecutedActions, State, Step

LEASE_SECONDS = 0.5
"""Seconds without a message after which a page no longer holds the environment."""
MAX_HZ, DEFAULT_HZ, WATCHED_HZ = 30.0, 10.0, 20.0
"""Rows a second: at most, where the environment declares none, and of those drawn while the policy acts."""
MAX_KEYS, MAX_SHOWN_ROWS, MAX_SHOWN_NUMBERS, SLICE_SECONDS = 8, 300, 64, 0.1
"""Maximum number of keys in a message, of rows in the ribbon, and of numbers of an observation; longest single wait."""


class PageChannel:
    """Pages watch environment 0; one at a time takes over. See ``run/takeovers.py: ActionChannel``.

    The training thread calls the methods of the protocol, the server's thread all others. Between rows, the learner
    makes its updates as without a person, so that the replay ratio always holds.
    """

    def __init__(
        self, hz: float | None = None, success_reward: float = 1.0, *, lease: float = LEASE_SECONDS,
        clock: Callable[[], float] | None = None,
    ) -> None:  # fmt: skip
        """``hz``: rows a second while a page acts; 0: each row waits for a key; None: the environment's.

        ``lease``: see ``LEASE_SECONDS``. ``clock``: returns seconds.
        """
        self.hz: float | None = hz
        self.success_reward: float = success_reward
        self.lease: float = lease
        self.clock: Callable[[], float] = clock or wall_clock.monotonic
        self._changed = threading.Condition()  # its lock guards everything below
        self._pages: dict[int, Callable[[], None]] = {}  # by number, what wakes each
        self._count = self._number = 0  # of pages so far; of the newest picture
        self._owner: int | None = None
        self._lease_end = self._due = self._drawn = 0.0  # when the lease ends, the row is due, a row was last drawn
        self._pressed: np.ndarray | None = None  # the flat action of held keys
        self._tapped: np.ndarray | None = None  # the newest one that was not taken yet
        self._mark: bool | None = None
        self._paused_by: int | None = None
        self._is_over = self._is_lost = False
        self._legal: np.ndarray | None = None
        self._actors: deque[str] = deque(maxlen=MAX_SHOWN_ROWS)
        self._row: dict[str, Any] = {"episode": 0, "row": 0, "reward": 0.0, "score": 0.0, "numbers": {}}
        self._shown: dict[str, Any] = dict(self._row)
        self._picture: np.ndarray | None = None

    # ------------------------------------------------------------------ the training thread

    def connect(self, env: Env, stop: Callable[[], bool]) -> None:
        """Read the actions, their names and keys, and the pace of ``env``."""

        def read(name: str) -> Any:
            try:
                return env.call(name)[0]
            except EnvError:  # it has no such method
                return None

        self._env, self._stop = env, stop
        space, metadata = read("action_space"), read("metadata") or {}
        self.spec: ActionSpec = env.action_spec
        self._codec = ActionCodec(space)
        declared = {name: read(name) for name in ("get_action_meanings", "get_keys_to_action")}
        self.names: list[str] = [str(name).lower() for name in declared["get_action_meanings"] or ()]
        methods = {name: partial(copy, value) for name, value in declared.items() if value}
        idle = np.clip(0, space.low, space.high).astype(space.dtype) if isinstance(space, spaces.Box) else None
        self.keymap: KeyMap = KeyMap(space, {}, idle)  # without keys, buttons and sliders act
        with contextlib.suppress(ConfigError):
            self.keymap = find_keymap(None, space, SimpleNamespace(metadata=metadata, **methods))
        self._idle = None if self.keymap.idle is None else self.flatten(self.keymap.idle)
        if self.hz is None:
            fps = float(metadata.get("render_fps") or 0.0) / env.frames_per_action
            self.hz = min(MAX_HZ, fps) if fps > 0 else DEFAULT_HZ

    def flatten(self, action: object) -> np.ndarray:
        """Return an ``action`` of the space as a flat one, ``[A]``."""
        leaves = iter_leaves(self.keymap.space)
        rows = {column("action", path): np.asarray(get_at_path(action, path))[None] for path, _ in leaves}
        flat: np.ndarray = self._codec.flatten(rows | {"is_last": np.zeros(1, bool)})[0]
        return flat

    def choose(self, step: Step, action: Tensor) -> ExecutedActions | None:
        """Return the action of the page that holds environment 0, once it is due; None: the policy's is taken."""
        self._draw(step)
        with self._changed:
            flat = self._wait_for_action()
            if not self._is_over:
                self._actors.append("0" if flat is None else "1")
            is_lost, self._is_lost = self._is_lost, False
        if is_lost:
            logger.info("the page that held the environment is gone: the policy acts")
        return None if flat is None else ExecutedActions.from_person(action, flat)

    def judge(self, step: Step) -> tuple[bool, float] | None:
        """Return whether success is marked, and its reward, 0 of a failure; None: nothing is marked."""
        with self._changed:
            mark, self._mark = self._mark, None
        return None if mark is None or step.is_first[0] else (mark, self.success_reward * mark)

    def _draw(self, step: Step) -> None:
        """Record the newest row, and draw it for the pages: while the policy acts, only some rows."""
        reward, row = float(step.reward[0]), self._row
        if step.is_first[0]:
            row |= {"episode": row["episode"] + 1, "row": 0, "reward": 0.0, "score": 0.0}
        else:
            row |= {"row": row["row"] + 1, "reward": reward, "score": row["score"] + reward}
        time, mask = self.clock(), step.obs.get(MASK_KEY)
        is_drawn = self._pages and (self._owner is not None or time >= self._drawn + 1 / WATCHED_HZ)
        picture = self._env.render() if is_drawn else None
        with self._changed:
            self._is_over = bool(step.is_last[0])
            self._legal = None if mask is None else mask[0].numpy().copy()
            if is_drawn:
                vectors = {key: x[0].flatten().tolist() for key, x in step.obs.items()
                           if key != MASK_KEY and x[0].numel() <= MAX_SHOWN_NUMBERS}  # fmt: skip
                self._shown, self._picture = row | {"numbers": vectors}, None if picture is None else picture.copy()
                self._number, self._drawn = self._number + 1, time
                self._wake()

    def _wait_for_action(self) -> np.ndarray | None:
        while not self._stop():
            time = self._end_lease()
            if self._paused_by is not None:
                self.wait(SLICE_SECONDS)
                continue
            if self._owner is None:
                return None
            assert self.hz is not None
            period = 1 / self.hz if self.hz else 0.0
            early = period / 2 if self._tapped is not None else 0.0  # an input wakes the loop
            flat, seconds = self._find_input(), self._due - early - time
            if (not self.hz or seconds <= 0) and (self._is_over or flat is not None or self._mark is not None):
                self._due = (self._due if time < self._due + period else time) + period
                if self._is_over:
                    return None
                self._tapped = None
                return flat
            self.wait(min(SLICE_SECONDS, seconds) if seconds > 0 else SLICE_SECONDS)
        return None

    def wait(self, seconds: float) -> None:
        """Wait for a message, at most ``seconds``."""
        self._changed.wait(seconds)

    def _find_input(self) -> np.ndarray | None:
        inputs = (self._tapped, self._pressed, self._idle) if self.hz else (self._tapped,)
        return next((flat for flat in inputs if flat is not None and self._is_legal(flat)), None)

    def _is_legal(self, flat: np.ndarray) -> bool:
        if self._legal is None:
            return True
        return not any((flat[cut] > self._legal[cut]).any() for _, cut in self.spec.categorical_slices())

    def state_dict(self) -> State:
        """Return nothing: a resumed run acts by itself until somebody takes over."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore nothing."""

    # ------------------------------------------------------------------ the server's thread

    def join(self, wake: Callable[[], None]) -> int:
        """Return the number of a new page, which ``wake`` tells that there is something new to show."""
        with self._changed:
            self._count += 1
            self._pages[self._count] = wake
            wake()
            return self._count

    def leave(self, page: int) -> None:
        """Forget a page: what it held acts by itself again, and its pause ends."""
        with self._changed:
            del self._pages[page]
            if self._owner == page:
                self._release(is_lost=True)
            self._paused_by = None if self._paused_by == page else self._paused_by
            self._changed.notify_all()

    def describe(self, page: int, number: int) -> tuple[dict[str, Any], np.ndarray | None]:
        """Return what ``page`` shows; and the newest picture, if it is newer than that of ``number``."""
        with self._changed:
            self._end_lease()
            owner = "" if self._owner is None else "you" if self._owner == page else "other"
            flat = self._pressed if self._pressed is not None else self._idle
            return self._shown | {
                "number": self._number, "owner": owner, "paused": self._paused_by is not None, "hz": self.hz,
                "actors": "".join(self._actors), "legal": None if self._legal is None else self._legal.tolist(),
                "action": None if flat is None else flat.tolist(),
            }, self._picture if self._number > number else None  # fmt: skip

    def handle(self, page: int, text: str) -> dict[str, Any]:
        """Do what the message ``text`` of ``page`` asks. Return what was ``done``, or why it is ``refused``."""
        with self._changed:
            try:
                self._end_lease()
                message = json.loads(text)
                if not isinstance(message, dict) or message.get("do") not in [*self.COMMANDS]:
                    raise DataError(f"expected an object with do = {', '.join(self.COMMANDS)}.")
                if self._owner != page and (self._owner is not None or message["do"] in ("act", "give", "mark")):
                    raise DataError("take over first." if self._owner is None else "another page acts.")
                self.COMMANDS[name := message.pop("do")](self, page, **message)
            except (DataError, ValueError, TypeError, ArithmeticError, RecursionError) as error:
                return {"refused": str(error)}
            if page == self._owner:
                self._lease_end = self.clock() + self.lease
            if name != "ping":
                self._wake()
            return {"done": name}

    def _wake(self) -> None:
        self._changed.notify_all()
        for wake in self._pages.values():
            wake()

    def _end_lease(self) -> float:
        time = self.clock()
        if self._owner is not None and time >= self._lease_end:
            self._release(is_lost=True)
        return time

    def _release(self, *, is_lost: bool = False) -> None:
        self._owner = self._pressed = self._tapped = None  # a mark stays: the next row has it
        self._is_lost |= is_lost
        self._wake()

    def _take(self, page: int) -> None:
        self._owner, self._due = page, self.clock()

    def _act(self, page: int, action: object = None, keys: object = None) -> None:
        """Hold a flat ``action`` or ``keys``, in the order in which they were pressed; without both, nothing."""
        flat = self._read_keys(keys) if action is None else self._read_flat(action)
        if flat is not None and not self._is_legal(flat):
            raise DataError("the action mask forbids this action.")
        self._pressed = flat
        self._tapped = self._tapped if flat is None else flat

    def _read_keys(self, keys: object) -> np.ndarray | None:
        if not keys:
            return None
        if not isinstance(keys, list) or len(keys) > MAX_KEYS or not all(isinstance(key, str) for key in keys):
            raise DataError(f"keys = {short_repr(keys)}: expected up to {MAX_KEYS} names.")
        action = self.keymap.choose(frozenset(keys))
        action = self.keymap.choose(frozenset(keys[-1:])) if action is None else action
        return None if action is None else self.flatten(action)

    def _read_flat(self, action: object) -> np.ndarray:
        flat = np.asarray(action)
        if flat.dtype.kind not in "if" or flat.shape != (self.spec.width,) or not ((flat >= -1) & (flat <= 1)).all():
            raise DataError(f"action = {short_repr(action)}: expected {self.spec.width} numbers in [-1, 1].")
        flat = flat.astype(np.float32)
        for key, cut in self.spec.categorical_slices():
            if np.sort(flat[cut]).tolist() != [0.0] * (cut.stop - cut.start - 1) + [1.0]:
                raise DataError(f"action '{key}' = {flat[cut].tolist()}: expected a 1 for one class, and zeros.")
        return flat

    def _judge_episode(self, page: int, success: object) -> None:
        if not isinstance(success, bool) or self._is_over:
            raise DataError("the episode is over." if self._is_over else "success: expected true or false.")
        self._mark = success

    def _pause(self, page: int, on: object) -> None:
        if not isinstance(on, bool):
            raise DataError("on: expected true or false.")
        self._paused_by, self._due = page if on else None, self.clock()

    def _set_pace(self, page: int, hz: object) -> None:
        if isinstance(hz, bool) or not isinstance(hz, int | float) or not 0 <= hz <= MAX_HZ:
            raise DataError(f"hz = {short_repr(hz)}: expected a number from 0 to {MAX_HZ:g}.")
        self.hz, self._due = float(hz), self.clock()

    COMMANDS: ClassVar[Mapping[str, Callable[..., None]]] = {
        "take": _take, "give": lambda self, page: self._release(), "act": _act, "mark": _judge_episode,
        "pause": _pause, "pace": _set_pace, "ping": lambda self, page: None,
    }  # fmt: skip
    """What a page can ask for, by name. No page can while another acts; some only while it acts itself."""
