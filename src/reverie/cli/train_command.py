"""``reverie train``, as far as it needs no torch: a misspelled name is reported at once."""

from __future__ import annotations

import gc
import sys

from reverie.algos.table import algorithm_config, algorithms
from reverie.cli.train_options import parse_common
from reverie.experiment.presets import check_algorithm_name


def train_command(args: list[str]) -> int:
    """Check the names of algorithm and environment, except in the user's own modules; then train."""
    options = parse_common(args)
    if ":" not in options.algorithm and options.algorithm.replace("-", "_") not in algorithms():
        check_algorithm_name(options.algorithm, options.env)
        algorithm_config(options.algorithm)
    if options.env and options.env != "none" and ":" not in options.env:
        from reverie.envs.suites import check_id  # imports Gymnasium

        check_id(options.env)
    is_first = "torch" not in sys.modules
    if is_first:  # imports leave no garbage: to look for it among their objects takes a tenth of the start
        gc.disable()
    from reverie.cli.train import parse_and_train  # imports torch

    if is_first:
        gc.freeze()
        gc.enable()
    return parse_and_train(args, options)
