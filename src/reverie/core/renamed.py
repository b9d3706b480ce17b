"""Former names of algorithms and options, so that settings of earlier runs are read."""

from __future__ import annotations

from typing import Any

ALGORITHMS = {"sac_discrete": "discrete_sac"}
"""Present names of algorithms by their former ones."""

OPTIONS = {
    "bcq": {"lesser": "lmbda"},
    "cql": {"softness": "cql_temperature"},
    "gail": {"penalty": "gradient_penalty"},
}
"""By algorithm, present names of the options under ``algo`` by their former ones."""


def present_names(algorithm: str, experiment: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the algorithm of a run and its saved settings under the names that they have now."""
    algo = experiment.get("algo") if isinstance(experiment, dict) else None  # a damaged file may hold anything
    renamed = OPTIONS.get(algorithm, {})
    if isinstance(algo, dict) and renamed.keys() & algo.keys():
        experiment = {**experiment, "algo": {renamed.get(name, name): value for name, value in algo.items()}}
    return ALGORITHMS.get(algorithm, algorithm), experiment
