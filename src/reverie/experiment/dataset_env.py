"""The environment that a dataset names: what opens the data of a run to complete its settings."""

from __future__ import annotations

import contextlib
from pathlib import Path

from reverie.core.errors import EnvError, ReverieError
from reverie.core.logger import logger
from reverie.datasets.config import DatasetConfig
from reverie.datasets.dataset import open_recorded
from reverie.datasets.dataset_env import dataset_env_config, make_dataset_env
from reverie.envs.board_games import GAMES, has_solution
from reverie.envs.config import EnvLike
from reverie.envs.make import close_quietly
from reverie.envs.suites import has_goal_tasks
from reverie.experiment.config import DATASET_ENV, NO_ENV, WITHOUT_ENV, ExperimentConfig
from reverie.experiment.rules import validate_config
from reverie.experiment.settings import Request, check_request, merge_layers
from reverie.run.folder import RunFolder, SavedConfig, check_module_names, read_saved_config


def resolve_with_data(request: Request) -> ExperimentConfig:
    """Return the settings of a run as ``resolve`` does, completed with what its dataset names.

    Raises:
        ConfigError: settings contradict each other, or nothing names an environment or data.
        DataError: the dataset cannot be read.
    """
    return complete(merge_layers(request, find_env_id), request)


def complete(config: ExperimentConfig, request: Request) -> ExperimentConfig:
    """Return the merged settings ``config`` of ``request``, checked, with the dataset's environment, and its metric."""
    config = with_dataset_env(check_request(config, request), request.env, request.run)
    is_default = config.score_metric == ExperimentConfig.score_metric
    is_default = is_default and "score_metric" not in request.setting_names
    env = config.eval_env_config
    if is_default and config.eval_episodes and has_goal_tasks(env.id):
        return config.merge({"score_metric": "eval/success_rate"})
    is_game = config.algo.plays_both_sides and (env.id in GAMES or env.kwargs.get("agent") == "all")
    if is_default and config.eval_episodes and is_game:
        is_stacked = env.frame_stack > 1 or getattr(config.algo, "frame_stack", 1) > 1
        is_solved = not is_stacked and not env.wrappers and has_solution(env.id, env.kwargs)
        return config.merge({"score_metric": "eval/optimal_moves_hard" if is_solved else "eval/elo"})
    return config


def with_dataset_env(config: ExperimentConfig, env: EnvLike | None = None, run: Path | None = None) -> ExperimentConfig:
    """Return ``config`` with its environment filled in: an offline run is evaluated in the dataset's environment.

    ``env``: an environment passed from Python. ``run``: the run folder. A run there keeps its environment unless
    another is named.
    """
    config = validate_config(config)
    if not config.offline or (env is not None and not isinstance(env, str)):
        return config
    if run is not None and RunFolder.from_path(run).config.is_file() and config.env.id == DATASET_ENV:
        before = read_saved_config(RunFolder.from_path(run).path).experiment
        check_module_names(SavedConfig(algorithm="", experiment={"env": before["env"]}), "the run")
        config = config.merge({"env": dict(before["env"])})
    if config.env.id != DATASET_ENV:
        return config.merge(WITHOUT_ENV) if config.env.id == NO_ENV else config
    with contextlib.closing(open_recorded(config.data, config.env)) as recorded:
        info = recorded.about
    if not info.env:
        logger.info("no evaluations: the dataset does not name its environment. Pass --env ID to evaluate in one")
        return config.merge(WITHOUT_ENV)
    try:
        env_config = dataset_env_config(info, config.env)
        close_quietly(make_dataset_env(info, config.env))
    except EnvError as error:
        logger.info(f"no evaluations: {error}")
        return config.merge(WITHOUT_ENV)
    return config.merge({"env": env_config.to_dict()})


def find_env_id(data: DatasetConfig) -> str:
    """Return the environment id that a dataset names.

    "" if it names none or cannot be read (reading it reports why).
    """
    from reverie.datasets.format_detection import open_reader  # imports all readers

    try:
        with open_reader(data.path, data) as reader:
            return reader.env_id()
    except ReverieError:
        return ""
