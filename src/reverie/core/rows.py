"""Rows of experience, columns ``[n, ...]`` by name: their rules, how to make them, and how to cut them into episodes.

A dataset is one stream of rows, in parts: an episode may begin in one part and end in a later one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from reverie.core.errors import DataError, RowError
from reverie.core.specs import FLAGS

Rows = dict[str, np.ndarray]

FLAGS_ADVICE = (
    "is_last marks the last row of every episode, is_terminal also if it terminated, and a reward belongs to the row "
    "after its action. `reverie data validate` lists such rows, --write-valid writes the valid episodes"
)
EPISODE_END_ADVICE = (
    "Check the columns that mark the ends of episodes: a column for episode has one value in all steps of an episode "
    "(a timestamp or a step number has another in each), and a flag is true in the last step only"
)
"""Advice for a dataset in which most rows are episodes without a step."""


def stepless_error(rows: int, stepless: int) -> str:
    """Return the error if most of the ``rows`` are ``stepless``: episodes of a single row; else ""."""
    if 2 * stepless <= rows:
        return ""
    which = f"{stepless:,} of the {rows:,} rows are episodes of a single row"
    return f"{which}, without a step, which cannot be used for learning. {EPISODE_END_ADVICE}"


# ---------------------------------------------------------------- rules


def find_rule_violations(rows: Rows, ended: bool = True) -> Iterator[tuple[str, np.ndarray]]:
    """Yield rules on flags and rewards, and the rows that violate them, ``[n]``.

    ``ended``: no episode was running before.
    """
    first, last, terminal = (rows[name] for name in FLAGS)
    before = np.empty_like(last)
    before[0], before[1:] = ended, last[:-1]
    yield "is_first, but the row before it is not is_last", first & ~before
    yield "not is_first, although no episode is running", ~first & before
    yield "is_terminal without is_last", terminal & ~last
    yield "non-zero reward on an is_first row", first & (rows["reward"] != 0)


def _check_required_columns(part: Rows, needed: Iterable[str], prefix: str) -> None:
    """Raise DataError unless ``part`` has the columns ``needed``, of one length, flags and rewards of their kind."""
    for name in (*needed, "reward", *FLAGS):
        if name not in part:
            raise DataError(f"{prefix}: there is no column '{name}', only {', '.join(map(str, part))}.")
    rows = len(part["is_first"])
    for name, values in part.items():
        if not values.ndim or len(values) != rows:
            raise DataError(
                f"{prefix}: column '{name}' has shape {list(values.shape)}, but 'is_first' has {rows} rows: expected "
                "the same number in each column. An episode of n steps has n + 1 rows; the last has the final "
                "observation."
            )
        kinds = "b" if name in FLAGS else "biuf" if name == "reward" else ""
        if kinds and (values.ndim > 1 or values.dtype.kind not in kinds):
            actual = f"dtype {values.dtype} and shape {list(values.shape)}"
            expected = "bool" if kinds == "b" else "numbers"
            raise DataError(f"{prefix}: column '{name}' has {actual}: expected {expected} of shape [{rows}].")


def iter_checked_rows(
    parts: Iterable[Rows], needed: Iterable[str], source: str, *, flags: bool = True
) -> Iterator[Rows]:
    """Yield ``parts``, consecutive rows of one stream, unchanged after checking them; else raise DataError.

    ``needed`` are the columns of observations and actions, ``source`` the dataset; ``flags``: check
    ``find_rule_violations``.
    """
    total, ended, names = 0, True, tuple(needed)
    for part in parts:
        _check_required_columns(part, names, f"{source}, part from row {total} on")
        if not len(part["is_first"]):
            continue
        for rule, wrong in find_rule_violations(part, ended) if flags else ():
            if wrong.any():
                problem, column = f"is wrong: {rule}. {FLAGS_ADVICE}", rule.partition(" ")[0]
                raise RowError("a flag or reward", total + int(wrong.argmax()), problem, column)
        total, ended = total + len(part["is_first"]), bool(part["is_last"][-1])
        yield part
    if flags and not ended:
        raise RowError("is_last", total - 1, f"is false, but no row follows. {FLAGS_ADVICE}")


# ---------------------------------------------------------------- episodes


def episode_rows(
    obs: np.ndarray | Mapping[str, np.ndarray],
    action: np.ndarray | Mapping[str, np.ndarray],
    reward: np.ndarray,
    *,
    terminal: bool,
) -> Rows:
    """Return an episode of n steps as its n + 1 rows, columns ``[n + 1, ...]`` by name.

    Args:
        obs: observations ``[n + 1, ...]``; the last one follows the last action. Several are a mapping; ``{"arm":
            ...}`` becomes the column ``obs/arm``.
        action: actions ``[n, ...]``, or several of them as a mapping.
        reward: ``[n]``, the reward for each action.
        terminal: whether the episode terminated; else it was truncated.

    Raises:
        DataError: the lengths do not match, or there is no step.
    """
    obs_columns, action_columns = _columns(obs, "obs"), _columns(action, "action")
    reward = np.asarray(reward)
    steps = len(reward) if reward.ndim else 0
    for name, values in {**obs_columns, **action_columns, "reward": reward}.items():
        expected = steps + 1 if name in obs_columns else steps
        if not values.ndim or len(values) != expected or not steps:
            raise DataError(
                f"{name} has shape {list(values.shape)} in an episode with rewards of shape {list(reward.shape)}: "
                "expected n >= 1 rewards [n], n actions [n, ...], and n + 1 observations [n + 1, ...], with the last "
                "one after the last action."
            )
    return pad_episode(obs_columns, action_columns, reward, terminal=terminal)


def pad_episode(obs: Rows, actions: Rows, reward: np.ndarray, *, terminal: bool) -> Rows:
    """Return ``episode_rows`` of columns by name, without a check of their lengths; n can be 0."""
    flags = {name: np.zeros(len(reward) + 1, bool) for name in FLAGS}
    flags["is_first"][0], flags["is_last"][-1], flags["is_terminal"][-1] = True, True, bool(terminal)
    padded = {name: np.concatenate([x, np.zeros_like(x, shape=(1, *x.shape[1:]))]) for name, x in actions.items()}
    return {**obs, **padded, "reward": np.concatenate([np.zeros(1, reward.dtype), reward]), **flags}


def _columns(values: np.ndarray | Mapping[str, np.ndarray], root: str) -> Rows:
    if isinstance(values, Mapping):
        return {f"{root}/{key}": np.asarray(inner) for key, inner in values.items()}
    return {root: np.asarray(values)}


def iter_episodes(parts: Iterable[Rows]) -> Iterator[Rows]:
    """Yield every episode, ``[n, ...]`` by column. Needs the memory of one part and one episode."""
    pending: list[Rows] = []
    for part in parts:
        first = part["is_first"]
        edges = [0, *np.flatnonzero(first[1:]) + 1, len(first)]
        for start, stop in itertools.pairwise(edges):
            if pending and first[start]:
                yield concat_rows(pending)
                pending = []
            pending.append({name: values[start:stop] for name, values in part.items()})
    if pending:
        yield concat_rows(pending)


def concat_rows(pieces: list[Rows]) -> Rows:
    """Concatenate the pieces."""
    if len(pieces) == 1:
        return pieces[0]
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def group_episodes(episodes: Iterable[Rows], size: int) -> Iterator[Rows]:
    """Yield groups of whole episodes with about ``size`` bytes."""
    pending: list[Rows] = []
    pending_bytes = 0
    for rows in episodes:
        pending.append(rows)
        pending_bytes += sum(values.nbytes for values in rows.values())
        if pending_bytes >= size:
            part, pending, pending_bytes = concat_rows(pending), [], 0
            yield part
    if pending:
        yield concat_rows(pending)
