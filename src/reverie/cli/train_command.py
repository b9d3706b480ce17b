"""``reverie train``, as far as it needs no torch: a misspelled name is told at once."""

from __future__ import annotations

from reverie.cli.train_options import parse_common
from reverie.core.discover import algorithm_config, algorithms


def train_command(args: list[str]) -> int:
    """Check the names of the algorithm and of the environment, but not those in modules of the user's; then train."""
    options = parse_common(args)
    if ":" not in options.algorithm and options.algorithm.replace("-", "_") not in algorithms():
        algorithm_config(options.algorithm)
    if options.env and options.env != "none" and ":" not in options.env:
        from reverie.envs.suites import check_id  # Gymnasium comes with it

        check_id(options.env)
    from reverie.cli.train import parse_and_train  # torch comes with it

    return parse_and_train(args, options)
