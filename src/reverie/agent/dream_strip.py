"""Strips of an episode: where its dream goes wrong, or whether the critic's expectations came true."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from reverie.algos.base import prediction_name
from reverie.core.errors import count_noun
from reverie.core.specs import ObsPart, ObsSpec
from reverie.log.strip import COLUMNS, Strip, choose_columns

MAX_MATCHING_ERROR, MIN_DIFFERING_ERROR = 0.25, 1.0
"""Errors, as multiples of the mean error of "nothing changes", below which a row matches, and from which on it differs.
That baseline repeats the last observed row: a dream that is as far off predicts nothing."""
MIN_FALL = 2.0
"""Fall of a value, in standard deviations of all values of the episode, that is worth a look."""
PATIENCE = 3
"""Rows in which an error may come near again, so that truth and dream do not part."""
Rows = Mapping[str, np.ndarray]


def make_dream_strip(
    spec: ObsSpec, real: Rows, predicted: Rows, origins: Sequence[str], columns: int = COLUMNS, *,
    is_terminal: bool = False,
) -> Strip:  # fmt: skip
    """Return the strip of a dream of D rows beside an episode of T rows, D >= T.

    The first image is judged by its root-mean-square error. Without images, a row with a wrong class differs. Without
    classes either, the first vector, else the reward, is judged like an image. A dream that ends before the episode
    differs from then on, and one that goes on where the episode terminates differs there.

    Args:
        spec: the observations.
        real: observations ``[T, *shape]`` by the names of a dream, and ``reward`` ``[T]``.
        predicted: observations, ``reward`` and ``cont`` ``[D, ...]`` by the same names.
        origins: how each row of the dream came about, ``[D]``: "seen", "imagined" or "edited".
        columns: number of pictures.
        is_terminal: whether the episode terminates in its last row.
    """
    length, compared = len(origins), len(real["reward"])
    context = next((t for t, origin in enumerate(origins) if origin != "seen"), length)
    errors, baseline, texts = _measure_errors(spec, real, predicted, max(0, context - 1))
    bars = np.full(length, np.nan)
    bars[context:compared] = errors[context:] / max(1e-9, baseline[context:].mean() if context < compared else 0.0)
    if patience := 0 if texts else PATIENCE:
        levels = [_level(bar) for bar in bars]
        texts = [f"{level}: {bar:.2g} times “nothing changes”" for level, bar in zip(levels, bars, strict=True)]
    else:
        levels = ["" if np.isnan(bar) else "differs" if bar else "matches" for bar in bars]
    end = _predicted_end(predicted["cont"], context)
    for row in range(end + 1, compared):
        levels[row], texts[row], bars[row] = "differs", "the dream has ended", np.nan
    if is_terminal and end >= compared > context:
        levels[compared - 1], texts[compared - 1] = "differs", "the episode ends, and the dream goes on"
    parting = _find_parting(levels, patience)
    return Strip(
        sentence=_describe_dream(context, length, parting, bars, "" if parting is None else texts[parting]),
        columns=choose_columns(length, (context - 1, parting), columns),
        origins=[*origins],
        levels=levels,
        texts=[text if level else "" for level, text in zip(levels, [*texts, *[""] * length], strict=False)],
        bars=bars,
        bar_label="error",
        parting=parting,
    )


def _measure_errors(
    spec: ObsSpec, real: Rows, predicted: Rows, last_seen: int
) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """Return the errors ``[T]`` of the dream, those of repeating row ``last_seen``, and text about wrong classes."""
    count = len(real["reward"])
    names = {prediction_name(key): part for key, part in spec.items() if part.kind != "mask"}
    parts = {name: part for name, part in names.items() if name in predicted}
    guess = {name: predicted[name][:count] for name in (*parts, "reward")}
    repeated = {key: np.repeat(values[last_seen : last_seen + 1], count, 0) for key, values in real.items()}
    classes = {key: part for key, part in parts.items() if part.kind == "categorical"}
    if classes and all(part.kind != "image" for part in parts.values()):  # a right class does not make a picture right
        guess = {key: guess[key].argmax(-1).reshape(real[key].shape) for key in classes}
        errors, texts = _count_classes_off(classes, real, guess)
        return errors, _count_classes_off(classes, real, repeated)[0], texts
    numbers = [name for name in parts if name not in classes]
    key = min(numbers, key=lambda name: parts[name].kind, default="reward")  # an image before a vector
    dtype = np.float32 if real[key].ndim == 4 else np.float64  # images are large; squares of large numbers overflow
    wrong = [np.reshape(np.subtract(rows[key], real[key], dtype=dtype), (count, -1)) for rows in (guess, repeated)]
    errors, baseline = (np.sqrt(np.square(x).mean(1)) for x in wrong)
    return errors, baseline, []


def _count_classes_off(parts: Mapping[str, ObsPart], real: Rows, guess: Rows) -> tuple[np.ndarray, list[str]]:
    """Return how far classes ``[T, *shape]`` are off in each row, ``[T]``, and the same in words.

    It is the number of wrong classes. Those of a grid ``[W, H]`` are cells. A part that begins with the coordinates of
    a cell, such as ``agent`` in MiniGrid's full view, is as many cells off as the cells are apart.
    """
    grids = {part.shape for part in parts.values() if len(part.shape) == 2}
    cells, class_counts = (np.zeros(len(next(iter(real.values()))), int) for _ in range(2))
    for key, part in parts.items():
        truth, values = (rows[key].reshape(len(cells), -1) for rows in (real, guess))
        off = np.where(truth < 0, 0, truth != values)  # -1 is missing
        if part.shape in grids:
            cells += off.sum(1)
            continue
        if len(part.shape) == 1 and part.classes[:2] in grids:
            cells += np.where(truth < 0, 0, np.abs(truth - values))[:, :2].sum(1)
            off[:, :2] = 0
        class_counts += off.sum(1)
    names = [
        count_noun(c, "cell") if c else f"{n} class{'es' * (n != 1)}"
        for c, n in zip(cells.tolist(), class_counts.tolist(), strict=True)
    ]
    total = cells + class_counts
    return total, [f"{name} off" if n else "matches" for name, n in zip(names, total, strict=True)]


def _level(bar: float) -> str:
    return (
        ""
        if np.isnan(bar)
        else "matches"
        if bar < MAX_MATCHING_ERROR
        else "near"
        if bar < MIN_DIFFERING_ERROR
        else "differs"
    )


def _find_parting(levels: Sequence[str], patience: int) -> int | None:
    """Return the first row that differs, unless the next ``patience`` rows, so far as they are judged, do not."""
    for row, level in enumerate(levels):
        following = [later for later in levels[row + 1 : row + 1 + patience] if later]
        if level == "differs" and (not following or "differs" in following):
            return row
    return None


def _predicted_end(cont: np.ndarray, context: int) -> int:
    """Return the first imagined row that probably ends the dream, else the number of rows."""
    ends = np.flatnonzero(cont[context:] < 0.5)
    return context + int(ends[0]) if len(ends) else len(cont)


def _describe_dream(context: int, length: int, parting: int | None, bars: np.ndarray, text: str) -> str:
    """Say in a sentence how much the model saw, how much it imagined, and where that goes wrong."""
    sentence, rest = f"It saw {count_noun(context, 'frame')}.", length - context
    if not rest:
        return sentence
    sentence += f" The next {rest} are imagined" if rest > 1 else " The next is imagined"
    known = bars[~np.isnan(bars)]
    if not len(known):
        return f"{sentence}."
    if parting is None and not known.any():
        return f"{sentence}, and {'all' if len(known) == rest else f'the first {len(known)}'} match."
    if parting is None:
        return f"{sentence}, with {known.mean():.0%} of the error of “nothing changes”."
    if "times" in text:
        return f"{sentence}; at frame {parting} the error reaches that of “nothing changes”."
    return f"{sentence}; at frame {parting} {text if text.startswith('the') else f'it is {text}'}."


def find_fall(rewards: np.ndarray, values: np.ndarray, discount: float, is_terminal: bool) -> int | None:
    """Return the row to which the value falls most, beyond the reward that comes with it.

    None if it falls by less than ``MIN_FALL`` standard deviations of the values, or they are unknown.

    Args:
        rewards: the reward that came with each row, ``[T]``.
        values: the critic's value of each row, ``[T]``; NaN where there is none.
        discount: the discount factor of the values.
        is_terminal: whether the last row is terminal, so that its value is 0.
    """
    after = np.append(values[1:-1], 0.0 if is_terminal else values[-1:])
    falls = values[:-1] - rewards[1:] - discount * after
    if not len(falls) or not np.isfinite(falls).all() or falls.max() <= MIN_FALL * values.std():
        return None
    return int(falls.argmax()) + 1


def make_value_strip(
    rewards: np.ndarray, values: np.ndarray, gaps: np.ndarray, discount: float, is_terminal: bool,
    columns: int = COLUMNS, is_scaled: bool = False, is_over: bool = True,
) -> Strip:  # fmt: skip
    """Return the strip of an episode of T rows: what the critic expected, and the return that came.

    Args:
        rewards: the reward that came with each row, ``[T]``, in the critic's units; NaN if it learns others.
        values: the critic's value of each row, ``[T]``; NaN where there is none.
        gaps: by how much the greedy action is better than the second best, ``[T]``; NaN where this is unknown.
        discount: the discount factor of the values.
        is_terminal: whether the episode has ended there. Otherwise the critic's last value stands for the rest.
        columns: number of pictures.
        is_scaled: whether the critic's units differ from the environment's.
        is_over: whether no row follows.
    """
    length, returns = len(rewards), np.zeros(len(rewards))
    returns[-1] = 0.0 if is_terminal else values[-1]
    for row in range(length - 2, -1, -1):
        returns[row] = rewards[row + 1] + discount * returns[row + 1]
    off = float(np.abs(values - returns)[: max(1, length - 1)].mean())  # a critic does not learn the value of an end
    came = f"{returns[0]:.3g} came" + " so far, with its value of the last frame" * (not is_over)
    came += " (rewards as scaled for the critic)" * is_scaled
    sentence = f"At frame 0 the critic expects {values[0]:.3g}; {came}. On average it is off by {off:.2g}."
    lines = {"return that came": returns, "critic": values}
    return Strip(
        sentence="This agent has no critic that learns these rewards alone." if np.isnan(off) else sentence,
        columns=choose_columns(length, (), columns),
        origins=[""] * length,
        levels=[""] * length,
        texts=[""] * length,
        bars=gaps,
        bar_label="gap of the greedy action",
        lines={name: line for name, line in lines.items() if not np.isnan(line + values).any()},
    )
