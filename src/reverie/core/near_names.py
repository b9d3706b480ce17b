"""The names that other libraries give to settings, and the settings that a misspelt name may mean."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

OTHER_NAMES = {
    r"(.*\.)?([a-z]+-)?lr": "learning-rate lr policy-lr q-lr alpha-lr step-size",
    r".*\.discount(-horizon)?": "gamma discount-factor discount-rate",
    r"steps": "total-timesteps timesteps num-timesteps total-steps num-steps max-steps env-steps total-env-steps",
    r"updates": "epochs num-epochs iterations num-updates max-updates",
    r"envs": "num-envs n-envs nenvs num-workers workers num-environments",
    r"env": "env-id env-name environment gym-id task",
    r"replay\.capacity": "buffer-size memory-size replay-size replay-buffer-size buffer-capacity",
    r"replay-ratio": "utd utd-ratio gradient-steps train-freq train-frequency update-every",
    r"learning-starts": "warmup warmup-steps start-steps learning-start prefill",
    r"random-steps": "start-steps warmup-steps random-exploration-steps",
    r"algo\.(tau|slow-rate)": "polyak target-update-rate soft-update",
    r"algo\.target-every": "target-update-interval target-network-frequency target-update-freq",
    r"algo\.(temperature|entropy)": "alpha ent-coef entropy-coef entropy-weight",
    r"algo\.networks\.units": "hidden-size hidden-sizes hidden-dim hidden-units net-arch",
    r"algo\.exploration": "epsilon eps exploration-fraction epsilon-decay",
    r"run": "logdir log-dir output output-dir save-path run-name exp-name experiment-name name",
    r"schedule\.eval-every": "eval-freq eval-frequency eval-interval eval-every",
    r"schedule\.save-every": "save-freq save-frequency save-interval checkpoint-freq checkpoint-every",
    r"schedule\.log-every": "log-freq log-frequency log-interval log-every",
    r"eval-episodes": "n-eval-episodes num-eval-episodes episodes",
    r"data": "dataset dataset-path data-path offline-data",
    r"resume": "checkpoint load load-model restore from-checkpoint continue",
    r"wandb": "track use-wandb wandb-project project",
    r"device": "gpu cuda accelerator",
    r"seeds": "num-seeds n-seeds",
}
"""Patterns of settings, written as flags, and what other libraries call them."""


def near_names(given: str, known: Iterable[str]) -> list[str]:
    """Return the names among ``known`` that ``given`` may mean, at most four; all are written as flags without ``--``.

    These are what other libraries call so, or else those whose last word is that of ``given``, or else those that are
    spelt like it.
    """
    names, last = list(known), given.rpartition(".")[2]
    patterns = [pattern for pattern, others in OTHER_NAMES.items() if last in others.split()]
    found = [name for name in names if any(re.fullmatch(pattern, name) for pattern in patterns)]
    found = found or [name for name in names if name.rpartition(".")[2] == last]
    if not found:
        whole = difflib.get_close_matches(given, names, n=3, cutoff=0.65)
        ends = difflib.get_close_matches(last, {name.rpartition(".")[2] for name in names}, n=3, cutoff=0.75)
        found = [*whole, *(name for name in names if name.rpartition(".")[2] in ends and name not in whole)]
    return found[:4]
