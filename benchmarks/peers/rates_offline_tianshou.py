"""Tianshou: `update` of its offline algorithms, as in `offline_tianshou.py`, with noise in its replay."""

from __future__ import annotations

from offline_task import Work
from offline_tianshou import ALGORITHMS, Parts
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
from rates_tianshou import filled
from tianshou.utils.torch_utils import policy_within_training_step

SIZES = tuple(UNITS)


def build(task: str, variant: str) -> Update:
    """With its replay filled."""
    discrete = task in DISCRETE
    work = Work(task, SIZES, RATE, BATCH, DISCOUNT, vae=SIZES, quantiles=QUANTILES)
    learner = ALGORITHMS[task](Parts(work, OBS, CHOICES if discrete else ACTIONS, discrete))
    replay = learner.process_buffer(filled(experience(task)))

    def update() -> None:
        with policy_within_training_step(learner.policy):
            learner.update(replay, BATCH)

    return repeated(update)


if __name__ == "__main__":
    main(build, packages=("tianshou",))
