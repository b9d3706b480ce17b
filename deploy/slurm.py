#!/usr/bin/env python3
"""Train on a Slurm cluster through submitit; a job that is pre-empted or out of time saves, and is queued again.

    python deploy/slurm.py --partition gpu --hours 24 --gpus 1 -- dreamer_v3 --env ALE/Pong-v5 --run runs/pong
    python deploy/slurm.py --partition gpu --seeds 5 -- dreamer_v3 --env ALE/Pong-v5 --run runs/pong
    python deploy/slurm.py --partition gpu --sweep ablation.yaml

What follows ``--`` are the words of ``reverie train``; ``--run`` must be on a disk that all nodes see. With ``--seeds``
each job of an array trains one seed, in runs/pong/seed-0 and so on; ``reverie compare runs/pong`` puts them together.
With ``--sweep`` each job is an unfinished run of ``reverie sweep``, whose ``--status`` says how far they are.
"""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
import threading
from typing import Any

import submitit

from reverie.cli.parsing import iter_flags, remove_flags


class Training:
    """One ``reverie train`` in a process of its own, which submitit can interrupt and queue again."""

    def __init__(self, words: list[str]) -> None:
        self.words = words
        self.process: Any = None
        self.waiting: Any = None

    def __call__(self) -> int:
        """Train to the end; raise RuntimeError if the run fails."""
        # Slurm signals every process of a job: the run must not die of submitit's own signal.
        self.process = subprocess.Popen(
            [sys.executable, "-m", "reverie", "train", *self.words],
            preexec_fn=lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN),
        )
        self.waiting = threading.Thread(target=self.process.wait)
        self.waiting.start()
        while self.waiting.is_alive():
            self.waiting.join(0.2)  # signals arrive in between
        if self.process.returncode:
            raise RuntimeError(f"reverie train ended with {self.process.returncode}: see the log of this job")
        return 0

    def checkpoint(self) -> Any:
        """Save and end the run; return the job that goes on with it. Called by submitit when its signal arrives."""
        self.process.send_signal(signal.SIGTERM)
        self.waiting.join()
        return submitit.helpers.DelayedSubmission(Training(self.words))


def sweep_jobs(said: argparse.Namespace, parser: argparse.ArgumentParser) -> list[list[str]]:
    """Return the words of reverie train for each unfinished run of a sweep, on GPUs if the jobs have some."""
    from reverie.cli.train import read_seeds  # torch comes with it
    from reverie.core.errors import ReverieError
    from reverie.distributed.sweep import SweepPlan, prepare_commands

    device = "cuda" if said.gpus and not said.local else None
    seeds = None if said.seeds is None else read_seeds(said.seeds, 0)
    try:
        commands = prepare_commands(SweepPlan(said.sweep, seeds=seeds, device=device))
    except ReverieError as error:
        parser.error(str(error))
    return [words[1:] for words in commands]


def main(args: list[str]) -> int:
    """Submit the job, or one for each seed, and print its id; with ``--local`` run it here, and wait."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--partition", help="Slurm's partition; default: the cluster's own")
    parser.add_argument("--hours", type=float, default=24, help="time limit of one job; the run may take several")
    parser.add_argument("--gpus", type=int, default=1)
    parser.add_argument("--cpus", type=int, default=8)
    parser.add_argument("--memory", type=int, default=32, metavar="GB")
    parser.add_argument("--requeue", type=int, default=100, help="how often the job is queued again, at most")
    parser.add_argument("--logs", default="runs/slurm", help="folder for the output of the jobs")
    parser.add_argument("--seeds", help="a job for each seed: how many, from --seed on, or a list such as 1,5,7")
    parser.add_argument("--sweep", metavar="FILE", help="a job for each unfinished run of this sweep")
    parser.add_argument("--local", action="store_true", help="run it on this machine, without Slurm, and wait")
    parser.add_argument("train", nargs="*", metavar="-- ALGORITHM ... --run DIR", help="words of reverie train")
    said = parser.parse_args(args)
    flags, jobs = dict(iter_flags(said.train)), [said.train]
    if said.sweep:
        jobs = sweep_jobs(said, parser)
    elif not {"run", "resume"} & {*flags}:
        parser.error("no --run: the next job could not go on with the run of this one")
    elif said.seeds is not None:
        from reverie.cli.train import read_seeds  # torch comes with it

        words, run = remove_flags(said.train, {"run", "resume", "seed"}), (flags.get("run") or flags["resume"])[0]
        seeds = read_seeds(said.seeds, int(flags.get("seed", ["0"])[0]))
        if not seeds:
            parser.error(f"--seeds {said.seeds}: expected a number of seeds such as 5, or a list such as 1,5,7")
        jobs = [[*words, "--seed", str(seed), "--run", f"{run}/seed-{seed}"] for seed in seeds]
    executor = submitit.AutoExecutor(
        folder=said.logs, cluster="local" if said.local else "slurm", slurm_max_num_timeout=said.requeue
    )
    executor.update_parameters(
        name="reverie", timeout_min=int(said.hours * 60), gpus_per_node=0 if said.local else said.gpus,
        cpus_per_task=said.cpus, mem_gb=said.memory, slurm_signal_delay_s=120,
        **({"slurm_partition": said.partition} if said.partition else {}),
    )  # fmt: skip
    if not jobs:
        print("all runs have finished")
        return 0
    with executor.batch():
        submitted = [executor.submit(Training(words)) for words in jobs]
    for job in submitted:
        print(f"job {job.job_id}; its output: {job.paths.stdout} and {job.paths.stderr}")
    return max(int(job.result()) for job in submitted) if said.local else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
