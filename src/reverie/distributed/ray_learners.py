"""Learners of a run on a Ray cluster: each has a bundle of a placement group with a process of ``reverie train``.

Actors get bundles of the same group, in which the learners start them (``ray_actors.py``). Learners find each other
through environment variables, as with torchrun; ``launch.py`` joins them. If a learner is lost, the others end, and all
restart from the newest checkpoint: the run folder must be on storage shared by all nodes.

Imports PyTorch and Ray only where they are used: Ray's workers import this module, and need neither.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from reverie.core.errors import ConfigError, RunError, count_noun
from reverie.core.logger import logger, survive_broken_pipe
from reverie.core.signals import PARENT_PID_VAR
from reverie.run.signal_handling import collect_signals

if TYPE_CHECKING:
    from reverie.experiment.config import ExperimentConfig

PLACEMENT_VAR = "REVERIE_PLACEMENT"
"""Environment variable with the placement of a learner's actors."""
PLACEMENT_SECONDS = 20.0
"""Seconds to wait for free resources at the start."""
RESOURCE_RETURN_SECONDS = 600.0
"""Seconds to wait for resources after a loss: a new node can take this long."""
MAX_RESTARTS = 3
"""Maximum consecutive restarts of all learners from the same checkpoint."""
EXIT_GRACE_SECONDS = 10.0
"""Seconds for the other learners to end by themselves after one has failed."""
SAVE_GRACE_SECONDS = 600.0
"""The same after a signal to a learner: all save first."""
UNRESPONSIVE_SECONDS = 60.0
"""Seconds without an answer after which a learner counts as lost."""
POLL = 0.5
"""Seconds between two polls of a learner."""
HEAD_SECONDS = 40.0
"""Seconds without an answer after which the head of the cluster counts as lost. After 60, Ray ends every process."""
HEAD_POLL = 2.0
"""Seconds between two attempts to reach the head, and for each of them."""


class RayLearner:
    """One learner, as a Ray actor: it starts and watches the process, which ends with it."""

    child: subprocess.Popen[bytes]

    def address(self) -> tuple[str, int]:
        """Return the address of this node and a free port on it."""
        import ray.util

        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return host, probe.getsockname()[1]

    def start(self, words: Sequence[str], env: Mapping[str, str], folder: str, run: Path | None = None) -> None:
        """Start ``reverie WORDS``, in ``folder`` if it exists on this node, once no other process writes to ``run``."""
        if run is not None:
            _wait_until_unlocked(run)
        self.child = subprocess.Popen(
            [sys.executable, "-P", "-u", "-m", "reverie", *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, env={**os.environ, **env, PARENT_PID_VAR: str(os.getpid())},
            cwd=folder if os.path.isdir(folder) else None, start_new_session=True,
        )  # fmt: skip
        assert self.child.stdout is not None
        os.set_blocking(self.child.stdout.fileno(), False)

    def poll(self) -> tuple[bytes, int | None]:
        """Return the output of the process since the last poll, and its exit code, None while it runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.child.wait(POLL)
        code = self.child.poll()  # before reading, so that the last output is not missed
        assert self.child.stdout is not None
        return self.child.stdout.read() or b"", code

    def tell(self, number: int) -> None:
        """Send a signal to the process."""
        self.child.send_signal(number)


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClusterRequest:
    """Options for a Ray cluster, in addition to the settings of a run."""

    address: str = ""
    """Address of the cluster; "": RAY_ADDRESS, or the cluster of this machine, or a new local one."""
    learner: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Resources of each learner, by their Ray names. CPU and GPU have defaults."""
    actor: Mapping[str, float] = dataclasses.field(default_factory=dict)
    """Resources of each actor. Default: one core."""
    strategy: str = "PACK"
    """Ray's placement group strategy."""


def train_on_ray(words: Sequence[str], config: ExperimentConfig, run: Path, request: ClusterRequest) -> int:
    """Run ``reverie WORDS`` as ``config.learners`` processes of a Ray cluster; return the exit code of the run.

    After the first signal to this process, all learners save and end; the second ends them at once; the third kills
    them. ``words``: without the run folder, which has the same path on all nodes, and without the Ray options.
    """
    namespace = uuid.uuid4().hex
    with cluster(request.address, namespace) as ray, collect_signals() as got, watch_head(ray, got):
        resources = learner_resources(config, request.learner, ray.cluster_resources().get("GPU", 0.0))
        actor = {"CPU": 1, **request.actor}
        command = [*words, "--run", str(run)]
        command += [] if config.threads else ["--threads", str(max(1, int(resources["CPU"])))]
        command += [] if resources["GPU"] or config.device != "auto" else ["--device", "cpu"]
        bundles = [resources] * config.learners + [actor] * config.actors
        placement = {"address": ray.get_runtime_context().gcs_address, "namespace": namespace, "first": config.learners}
        return _run_until_done(
            command, config.learners, bundles, request.strategy, {**placement, "each": actor}, run, got
        )


@contextlib.contextmanager
def watch_head(ray: ModuleType, got: list[int]) -> Iterator[None]:
    """Let all save, as at a signal, if the head of the cluster is lost; 20 seconds later, Ray ends this process."""
    host, _, port = ray.get_runtime_context().gcs_address.rpartition(":")
    is_over = threading.Event()

    def watch_it() -> None:
        answered = time.monotonic()
        while not is_over.wait(HEAD_POLL):
            with contextlib.suppress(OSError):
                socket.create_connection((host, int(port)), HEAD_POLL).close()
                answered = time.monotonic()
            if time.monotonic() > answered + HEAD_SECONDS:
                logger.warning(
                    f"The head of the Ray cluster at {host}:{port} has not answered for {HEAD_SECONDS:.0f} seconds: "
                    "the run saves and ends. Start the cluster again; then the same command resumes the run."
                )
                return got.append(signal.SIGTERM)

    threading.Thread(target=watch_it, daemon=True).start()
    try:
        yield
    finally:
        is_over.set()


@contextlib.contextmanager
def cluster(address: str, namespace: str | None = None) -> Iterator[Any]:
    """Connect to the cluster and yield the package ray.

    RunError if Ray fails, for example if a node is out of memory.
    """
    ray = connect(address, namespace)
    try:
        yield ray
    except ray.exceptions.RayError as error:
        raise RunError(
            f"the Ray cluster failed: {type(error).__name__}: {_first_line(error)} The saved state of the run is in "
            "its folder, and the same command resumes it. Check the nodes with `ray status`."
        ) from error
    finally:
        ray.shutdown()


def _first_line(error: Exception) -> str:
    """Return the first line of an error's message."""
    return str(error).strip().partition("\n")[0]


def connect(address: str, namespace: str | None = None) -> Any:
    """Connect to the cluster; return the package ray. Ray's tokens are required unless RAY_AUTH_MODE says otherwise."""
    os.environ.setdefault("RAY_AUTH_MODE", "token")  # read when the package is imported
    try:
        import ray
    except ImportError as error:
        raise ConfigError("The package ray is not installed. Install it: pip install 'reverie-rl[ray]'.") from error
    location = address or os.environ.get("RAY_ADDRESS", "")
    host, _, port = location.rpartition(":")
    before = signal.getsignal(signal.SIGTERM)
    try:
        if host and port.isdecimal() and "/" not in host:
            socket.create_connection((host, int(port)), PLACEMENT_SECONDS / 2).close()  # Ray would retry for minutes
        ray.init(address or None, namespace=namespace, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, ray.exceptions.RayError) as error:
        raise RunError(
            f"No connection to the Ray cluster{f' at {location}' if location else ''}: {_first_line(error)} "
            "Check the address, and that `ray status` works there. A cluster has a token (`ray get-auth-token "
            "--generate` before `ray start`, the same on each node) unless RAY_AUTH_MODE=disabled."
        ) from error
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, before)  # Ray's handler would end a learner before it has saved
    return ray


def learner_resources(config: ExperimentConfig, resources: Mapping[str, float], gpus: float) -> dict[str, float]:
    """Return the resources of each learner: its threads, and a GPU if the settings request one or there are enough."""
    enough = config.device == "auto" and gpus >= config.learners
    gpu = int(enough or config.device.startswith("cuda"))
    return {"CPU": config.threads or 1, "GPU": gpu, **resources}


def ray_options(resources: Mapping[str, float]) -> dict[str, Any]:
    """Return resources as options of a Ray actor."""
    options = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
    custom = {name: amount for name, amount in resources.items() if name not in options}
    return {**{options[name]: resources[name] for name in options if name in resources}, "resources": custom}


def _run_until_done(
    words: Sequence[str],
    count: int,
    bundles: Sequence[Mapping[str, float]],
    strategy: str,
    placement: Mapping[str, Any],
    run: Path,
    got: Sequence[int],
) -> int:
    """Start the learners, and restart them whenever one is lost; return the exit code of the run.

    ``got``: received signals.
    """
    from ray.exceptions import RayError

    losses, before = 0, _newest_checkpoint_name(run)
    while True:
        hosts = ["a lost node"] * count
        codes: list[int | None] = [None] * count
        with _place_learners(bundles, count, strategy, losses > 0, got) as (group, learners):
            try:
                hosts = start(learners, words, os.getcwd(), {**placement, "group": group})
                codes = watch(learners, got)
            except RayError as error:
                _log_loss("a learner", error)
        if got:
            return 128 + got[0] if any(code != 0 for code in codes) else 0
        lost = {rank: code for rank, code in enumerate(codes) if code is None or code < 0 or code > 128}
        if not lost:
            return max(code or 0 for code in codes)
        current = _newest_checkpoint_name(run)
        losses, before = (1 if current != before else losses + 1), current
        rank, code = next(iter(lost.items()))
        loss = f"learner {rank} of {count}, on {hosts[rank]}, was lost ({_loss_reason(code)})"
        if losses > MAX_RESTARTS:
            raise RunError(
                f"{loss}, for the {losses}th time from {current or 'the beginning'}. The same command resumes the run."
            )
        logger.warning(f"{loss}: {'all restart' if count > 1 else 'it restarts'} from {current or 'the beginning'}")
        _wait_until_unlocked(run)


def _loss_reason(code: int | None) -> str:
    """Return how a learner was lost."""
    if code is None:
        return "its node, or the Ray process on it, has ended"
    number = -code if code < 0 else code - 128
    return f"ended by {signal.Signals(number).name}" if number in [*signal.Signals] else f"exit code {code}"


@contextlib.contextmanager
def _place_learners(
    bundles: Sequence[Mapping[str, float]], count: int, strategy: str, is_retry: bool, got: Sequence[int]
) -> Iterator[tuple[str, list[Any]]]:
    """Yield the name of a placement group, and a :class:`RayLearner` in each of its first ``count`` bundles.

    RunError if the resources are not available, after a loss (``is_retry``) within ten minutes.
    """
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    name = uuid.uuid4().hex
    group = placement_group([{k: v for k, v in bundle.items() if v} for bundle in bundles], strategy, name)
    try:
        is_placed = wait_until_placed(group, PLACEMENT_SECONDS, got)
        if not is_placed and is_retry:
            logger.warning(
                f"{missing_resources(ray, bundles, count, strategy)} Waiting for them for "
                f"{RESOURCE_RETURN_SECONDS / 60:.0f} minutes."
            )
            is_placed = wait_until_placed(group, RESOURCE_RETURN_SECONDS, got)
        if not is_placed:
            raise RunError(missing_resources(ray, bundles, count, strategy))
        actor = ray.remote(**ray_options(bundles[0]), max_concurrency=2)(RayLearner)  # signals do not wait for polls
        placements = [PlacementGroupSchedulingStrategy(group, i) for i in range(count)]
        yield name, [actor.options(scheduling_strategy=placement).remote() for placement in placements]
    finally:
        remove_placement_group(group)


def wait_until_placed(group: Any, seconds: float, got: Sequence[int]) -> bool:
    """Return whether the group is placed within this many seconds; KeyboardInterrupt after a signal."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if got:
            raise KeyboardInterrupt(got[0])
        if group.wait(1):
            return True
    return False


def missing_resources(ray: ModuleType, bundles: Sequence[Mapping[str, float]], count: int, strategy: str) -> str:
    """Describe the resources required by ``count`` learners and by actors, and the resources of the cluster."""
    names = list(dict.fromkeys(name for bundle in bundles for name, amount in bundle.items() if amount))

    def format_resources(available: Mapping[str, float], names: Iterable[str] = names) -> str:
        return ", ".join(f"{name} {available.get(name, 0):g}" for name in names)

    kinds = {"learner": bundles[:count], "actor": bundles[count:]}
    needed = [
        f"{count_noun(len(group), kind)} with {format_resources(group[0], [n for n in group[0] if group[0][n]])}"
        for kind, group in kinds.items() if group
    ]  # fmt: skip
    nodes = [
        f"{node['NodeManagerAddress']}: {format_resources(node['Resources'])}" for node in ray.nodes() if node["Alive"]
    ]
    how = "" if strategy == "PACK" else f", placed as {strategy}"
    total, free = format_resources(ray.cluster_resources()), format_resources(ray.available_resources())
    return (
        f"The Ray cluster lacks resources: {' and '.join(needed)} each{how}. It has {total}, and free: {free}. Nodes: "
        f"{'; '.join(nodes)}. Add nodes, or ask for less with --learners, --actors, --resources and --actor-resources."
    )


def start(learners: Sequence[Any], words: Sequence[str], folder: str, placement: Mapping[str, Any]) -> list[str]:
    """Start the processes, with the ``placement`` of their actors; return the addresses of their nodes."""
    import ray

    addresses = ray.get([learner.address.remote() for learner in learners])
    hosts, port = [host for host, _ in addresses], addresses[0][1]
    main = hosts[0] if len(set(hosts)) > 1 else "127.0.0.1"
    meeting = {"MASTER_ADDR": main, "MASTER_PORT": str(port), "WORLD_SIZE": str(len(learners)),
               PLACEMENT_VAR: json.dumps(placement)}  # fmt: skip
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}  # each sees only its own GPU
    env_vars = [{**meeting, **alone, "RANK": str(rank)} for rank in range(len(learners))]
    ray.get([learner.start.remote(words, env, folder) for learner, env in zip(learners, env_vars, strict=True)])
    return hosts


def watch(learners: Sequence[Any], got: Sequence[int]) -> list[int | None]:
    """Pass on output and signals until all have ended; return their exit codes, None for lost learners."""
    import ray

    codes: dict[int, int | None] = {}
    pending = {learner.poll.remote(): rank for rank, learner in enumerate(learners)}
    num_forwarded, killed, end = 0, False, float("inf")
    while pending and time.monotonic() < end + UNRESPONSIVE_SECONDS:
        for _ in got[num_forwarded:]:
            num_forwarded += 1
            _signal_learners(learners, signal.SIGTERM if num_forwarded < 3 else signal.SIGKILL)
        for reference in ray.wait(list(pending), num_returns=len(pending), timeout=POLL)[0]:
            rank = pending.pop(reference)
            try:
                text, code = ray.get(reference)
            except ray.exceptions.RayError as error:
                _log_loss(f"learner {rank}", error)
                codes[rank] = None
                continue
            with survive_broken_pipe(sys.stdout):
                sys.stdout.buffer.write(text)
                sys.stdout.buffer.flush()
            if code is None:
                pending[learners[rank].poll.remote()] = rank
            else:
                codes[rank] = 1 if killed and code < 0 else code
        if any(codes.values()) or None in codes.values():
            asking = got or any(code is not None and code > 128 for code in codes.values())
            end = min(end, time.monotonic() + (SAVE_GRACE_SECONDS if asking else EXIT_GRACE_SECONDS))
        if time.monotonic() > end and not killed:
            _signal_learners(learners, signal.SIGKILL)
            killed = True
    return [codes.get(rank) for rank in range(len(learners))]


def _log_loss(learner: str, error: Exception) -> None:
    """Log why Ray has lost a learner, for example if a node is out of memory.

    An ended node or process is not logged.
    """
    from ray.exceptions import RayActorError

    if not isinstance(error, RayActorError):
        logger.warning(f"{learner}: {type(error).__name__}: {_first_line(error)}")


def _signal_learners(learners: Sequence[Any], number: int) -> None:
    """Send a signal to the process of each learner."""
    for learner in learners:
        learner.tell.remote(int(number))


def _newest_checkpoint_name(run: Path) -> str:
    """Return the name of the newest intact checkpoint; "" if there is none."""
    from reverie.run.checkpoint import Checkpoints
    from reverie.run.folder import RunFolder

    path = Checkpoints(RunFolder.from_path(run).checkpoints).latest()
    return f"checkpoint {path.name}" if path else ""


def _wait_until_unlocked(run: Path) -> None:
    """Wait until no process writes to the run; a process that has lost its Ray node can still be saving."""
    from reverie.run.folder import RunFolder

    end = time.monotonic() + UNRESPONSIVE_SECONDS
    while run.is_dir() and time.monotonic() < end:
        with contextlib.suppress(RunError), RunFolder.from_path(run).lock():
            return
        time.sleep(POLL)
