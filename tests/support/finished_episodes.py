"""Finished episodes, as rows."""

import math

import numpy as np

from reverie.run.episodes import TERMINATED, Episodes, info_columns, join_episodes


def episodes(*rows):
    """The episodes of ``rows``: score, length and, if it has them, values of its info."""
    scores, lengths = np.array([row[:2] for row in rows], np.float64).T
    return Episodes(scores, lengths, np.ones(len(rows)), lengths, info_columns([row[2] for row in rows if row[2:]]))


def as_rows(parts):
    """The rows of :func:`episodes` of all ``parts``, without what is no metric."""
    whole = join_episodes(parts)
    rows = [*zip(whole.score.tolist(), whole.length.tolist(), strict=True)]
    columns = {name: x for name, x in whole.info.items() if name != TERMINATED}
    infos = [{name: x[i] for name, x in columns.items() if not math.isnan(x[i])} for i in range(len(rows))]
    return [(*row, info) if info else row for row, info in zip(rows, infos, strict=True)]
