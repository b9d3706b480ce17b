"""d3rlpy: `update` of its offline algorithms, as in `offline_d3rlpy.py`, with noise in its replay."""

from __future__ import annotations

from offline_d3rlpy import learner
from offline_task import Work
from rates import (
    ACTIONS,
    BATCH,
    CHOICES,
    DISCOUNT,
    DISCRETE,
    OBS,
    QUANTILES,
    RATE,
    UNITS,
    Update,
    experience,
    main,
    repeated,
)
from rates_d3rlpy import filled

SIZES = tuple(UNITS)


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    discrete = task in DISCRETE
    work = Work(task, SIZES, RATE, BATCH, DISCOUNT, vae=SIZES, quantiles=QUANTILES)
    made, replay = learner(work, OBS, CHOICES if discrete else ACTIONS, discrete), filled(task, experience(task))
    return repeated(lambda: made.update(replay.sample_transition_batch(BATCH)))


if __name__ == "__main__":
    main(build, packages=("d3rlpy",))
