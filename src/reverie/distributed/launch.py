"""Start the learners of a run with the engine behind ``torchrun``, join them, and divide the settings among them."""

from __future__ import annotations

import contextlib
import dataclasses
import ipaddress
import logging
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import FileStore, Store, TCPStore  # type: ignore[attr-defined]
from torch.distributed.rendezvous import rendezvous

from reverie.core.bounds import PiecewiseLinear, ScheduledFloat
from reverie.core.config import Choice, Config
from reverie.core.errors import ConfigError, count_noun
from reverie.core.hardware import choose_device, num_cores, num_gpus
from reverie.core.logger import logger
from reverie.core.signals import PARENT_PID_VAR, SIGNALS
from reverie.distributed.team import LearnerGroup
from reverie.experiment.config import ExperimentConfig
from reverie.replay.config import parse_size
from reverie.run.folder import settings_changes

STORE = "REVERIE_STORE"
"""Environment variable with the path of the rendezvous file of the learners on one machine."""
SAVE_SECONDS = "600"
"""Seconds for learners to save and end after a signal."""
WARM_UP = 0.1
"""Fraction of a run for learning rate warmup with ``scale_hyperparameters``."""


def is_launched() -> bool:
    """Return whether a launcher such as ``torchrun`` has started this process as one of several learners."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def launcher_rank() -> int:
    """Return the number of this learner."""
    return int(os.environ["RANK"]) if is_launched() else 0


def launch_learners(words: Sequence[str], config: ExperimentConfig) -> int:
    """Run ``reverie WORDS`` as ``config.learners`` processes of this machine; return the exit code of the run.

    If one fails, all end. Signals to this process are passed on, and the learners end with it. Their rendezvous is a
    file that only this user can read: PyTorch's TCP store listens on every interface, has no password and unpickles its
    input.
    """
    from torch.distributed.elastic.multiprocessing import SignalException  # slow imports, for several learners only
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    check_divisible(config, config.learners, config.learners)
    for name in (name for name in logging.root.manager.loggerDict if name.startswith("torch.distributed.elastic")):
        logging.getLogger(name).setLevel(logging.CRITICAL)  # the learners themselves report why they end
    os.environ |= {
        PARENT_PID_VAR: str(os.getpid()),
        "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": SAVE_SECONDS,
        "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # PyTorch would open a TCP store in addition to the file
    }
    with tempfile.TemporaryDirectory(prefix="reverie-") as folder:
        os.environ[STORE] = os.path.join(folder, "learners")
        how = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=config.learners, run_id=uuid.uuid4().hex, rdzv_backend="c10d",
            rdzv_endpoint=os.path.join(folder, "launcher"), rdzv_configs={"store_type": "file"},
            local_addr="localhost", max_restarts=0,
            monitor_interval=1.0,  # the others notice first that one has ended, and report it
            signals_to_handle=",".join(number.name for number in SIGNALS),
        )  # fmt: skip
        try:
            elastic_launch(how, sys.executable)("-P", "-u", "-m", "reverie", *words)
        except ChildFailedError as error:
            code = error.get_first_failure()[1].exitcode
            return 128 - code if code < 0 else code
        except SignalException as stopped:
            return 128 + int(stopped.sigval)
    return 0


@contextlib.contextmanager
def join_learners(config: ExperimentConfig) -> Iterator[LearnerGroup]:
    """Join the learners started together with this process; if several fail, one raises and the others exit."""
    if not is_launched():
        if config.learners > 1:
            raise ConfigError(
                f"learners = {config.learners}: each learner runs in its own process, started by a launcher. Use the "
                f"command line, reverie train --learners {config.learners}, or start this script with torchrun "
                f"--nproc-per-node {config.learners}."
            )
        yield LearnerGroup()
        return
    store, number, count = open_store()
    local, local_count = (int(os.environ.get(name, "0")) for name in ("LOCAL_RANK", "LOCAL_WORLD_SIZE"))
    check_divisible(config, count, local_count or count)
    device = choose_device(config.device)
    if device != "cpu":
        torch.cuda.set_device(local)
    team = LearnerGroup.join(device, store, number, count)
    try:
        yield team
    except BaseException as error:
        if isinstance(error, SystemExit) or team.is_first_to_ask():
            raise
        raise SystemExit(1) from error  # another learner reports why
    dist.destroy_process_group()


def open_store() -> tuple[Store, int, int]:
    """Return the rendezvous store of the learners, the rank of this one, and their number.

    Unless torchrun has its own store, it listens only on the address MASTER_ADDR, or on loopback.
    """
    number, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if path := os.environ.get(STORE):
        _stay_local()
        return FileStore(path, count), number, count
    address, port = os.environ.get("MASTER_ADDR", "localhost"), int(os.environ.get("MASTER_PORT", "29500"))
    try:
        ip = ipaddress.ip_address(socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][4][0])
    except OSError as error:
        raise ConfigError(f"MASTER_ADDR = {address!r}: no host has this name ({error}).") from error
    if ip.is_unspecified:
        raise ConfigError(
            f"MASTER_ADDR = {address!r}: anyone who can connect to the learners can run code in them, and this "
            "exposes them to every network. Use the address of the first machine in the network of the learners."
        )
    if ip.is_loopback:
        _stay_local()
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # started by torchrun
        store, number, count = next(rendezvous("env://"))
        return store, number, count
    if number:
        return TCPStore(str(ip), port, count), number, count
    family = socket.AF_INET6 if ip.version == 6 else socket.AF_INET
    listening = socket.create_server((str(ip), port), family=family, backlog=count)
    store = TCPStore(str(ip), port, count, is_master=True, master_listen_fd=listening.detach())
    return store, number, count


def _stay_local() -> None:
    """Restrict learners of one machine to the loopback interface, unless the user has chosen an interface."""
    loopback = next((name for _, name in socket.if_nameindex() if name.startswith("lo")), None)
    if loopback is not None:
        for variable in ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"):
            os.environ.setdefault(variable, loopback)


def check_divisible(config: ExperimentConfig, count: int, local_count: int) -> None:
    """Raise ConfigError unless the settings can be divided among ``count`` learners.

    ``local_count`` of the learners are on this machine. Each learner has a share of the batch and of the environments,
    and on GPUs its own GPU.
    """
    config = config.merge(scaled_hyperparameters(config, count))
    if config.algo.batch_size % count and not _whole_rollouts(config):
        raise ConfigError(
            f"learners = {count}, algo.batch_size = {config.algo.batch_size}: each learner takes the same share of a "
            f"batch. Use a batch size divisible by {count}, such as {-(-config.algo.batch_size // count) * count}."
        )
    if config.actors > count and config.actors % count:
        raise ConfigError(
            f"learners = {count}, actors = {config.actors}: each learner has the same number of actors. Use a "
            f"multiple of {count}, such as {-(-config.actors // count) * count}; or fewer than {count}, shared by all "
            "learners."
        )
    if _splits_envs(config, count) and config.env.num > count and config.env.num % count:
        raise ConfigError(
            f"learners = {count}, envs = {config.env.num}: each learner has the same number of environments. Use a "
            f"number divisible by {count}, such as {-(-config.env.num // count) * count}."
        )
    if choose_device(config.device) != "cpu" and local_count > num_gpus():
        raise ConfigError(
            f"learners = {count}: {local_count} of them are on this machine, which has "
            f"{count_noun(num_gpus(), 'GPU')}. Use "
            "fewer, or device = 'cpu'."
        )


def member_changes(config: ExperimentConfig, team: LearnerGroup) -> dict[str, Any]:
    """Return the changes of a run by its number of learners: each has at least one environment."""
    if team.count == 1:
        return {}
    changes: dict[str, Any] = {"learners": team.count}
    if _splits_envs(config, team.count) and config.env.num < team.count and not config.scale_hyperparameters:
        of = " of each actor" if config.actors else ""
        logger.info(f"{count_noun(team.count, 'environment')}{of}, not {config.env.num}: one for each learner")
        changes["env.num"] = team.count
    return changes


def _splits_envs(config: ExperimentConfig, count: int) -> bool:
    """Return whether each of ``count`` learners has a share of the environments: false if each has its own actors."""
    return not config.offline and config.actors < count


def _whole_rollouts(config: ExperimentConfig) -> bool:
    """Return whether a batch is all rows of all environments, which are already divided."""
    return config.algo.on_policy and config.algo.batch_size == 1


def learner_share(config: ExperimentConfig, team: LearnerGroup) -> dict[str, Any]:
    """Return the changes of a run's settings for one learner: its share of batches, rows, environments and threads."""
    n = team.count
    if n == 1:
        return {}
    room, store_path = parse_size(config.replay.capacity, "replay.capacity"), config.replay.store_path
    changes: dict[str, Any] = {} if _whole_rollouts(config) else {"algo.batch_size": config.algo.batch_size // n}
    if not config.algo.on_policy:
        changes |= {
            "replay.capacity": f"{room.amount // n}B" if room.is_bytes else max(1, room.amount // n),
            "learning_starts": -(-config.learning_starts // n),
            "random_steps": config.random_steps if config.actors else -(-config.random_steps // n),
            "train_ratio": None if config.train_ratio is None else config.train_ratio / n,
        }
    local_count = int(os.environ.get("LOCAL_WORLD_SIZE", str(n)))
    changes["threads"] = config.threads or max(1, num_cores() // local_count)
    changes["replay.store_path"] = (
        store_path if store_path in ("auto", "none") else f"{store_path.rstrip('/')}/rank-{team.rank}"
    )
    if _splits_envs(config, n):
        changes["env.num"] = config.env.num // n
    elif config.actors:
        changes["actors"] = config.actors // n
    if choose_device(config.device) != "cpu":
        local = f"cuda:{torch.cuda.current_device()}"
        changes |= {"device": local, "replay.device": "cpu" if config.replay.device == "cpu" else local}
    if team.rank:
        changes |= {"eval_episodes": 0, "patience": None}
    return changes


# ---------------------------------------------------------------- RLlib's rules, as in its tuned DreamerV3 examples


def scaled_hyperparameters(config: ExperimentConfig, count: int) -> dict[str, Any]:
    """Return the changes of settings for ``count`` learners by ``scale_hyperparameters``, if it is set.

    Batch sizes and environments are multiplied by n, learning rates by the square root of n. Learning rates that are
    not schedules get a warmup over the first 10 % of the run.
    """
    if not config.scale_hyperparameters:
        return {}
    changes: dict[str, Any] = {} if _whole_rollouts(config) else {"algo.batch_size": config.algo.batch_size * count}
    if not config.offline:
        changes["env.num"] = config.env.num * count
    rates = {
        path: _with_warmup(rate, count**0.5, config.length) for path, rate in _iter_learning_rates(config.algo, "algo")
    }
    return {**changes, **rates}


def log_rules(config: ExperimentConfig, count: int) -> None:
    """Log the changes by ``scale_hyperparameters``, if it is set."""
    if config.scale_hyperparameters:
        scaled = config.merge(scaled_hyperparameters(config, count))
        lines = settings_changes(config.to_dict(), scaled.to_dict())
        logger.info(f"scale_hyperparameters for {count_noun(count, 'learner')}: {'; '.join(lines)}")


def _iter_learning_rates(config: Config, path: str) -> Iterator[tuple[str, ScheduledFloat]]:
    """Yield the learning rates above 0 of a configuration at ``path``, each with its own path."""
    for field in dataclasses.fields(config):
        value, key_path = getattr(config, field.name), f"{path}.{field.name}"
        if isinstance(value, Config) and not isinstance(value, Choice):
            yield from _iter_learning_rates(value, key_path)
        elif (field.name == "lr" or field.name.endswith("_lr")) and value:
            yield key_path, value


def _with_warmup(rate: ScheduledFloat, factor: float, length: int) -> list[list[float]]:
    """Return the schedule of a learning rate times ``factor``, with warmup, in a run of ``length``."""
    if isinstance(rate, PiecewiseLinear):
        return [[step, value * factor] for step, value in rate.points]
    return [[0.0, 0.0], [WARM_UP * length, rate * factor]]
