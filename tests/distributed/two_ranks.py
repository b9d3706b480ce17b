"""Run by two processes: two updates of each algorithm by two ranks of half a batch, and by one of a whole batch."""

import contextlib
import json
import sys
from dataclasses import replace
from pathlib import Path

import torch

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "support"))

import contracts  # noqa: E402
import dreamer_configs  # noqa: E402
from reverie.algos.table import algorithm_name  # noqa: E402
from reverie.core.collectives import mean_across_ranks, use_ranks  # noqa: E402
from reverie.core.types import Step  # noqa: E402
from reverie.distributed.process_group import ProcessGroup  # noqa: E402
from reverie.nn.adam import Adam  # noqa: E402

UPDATES = 2
EPS = 1e-2
"""Of all optimizers: with the usual ones, Adam's first steps are as long for a gradient of 1e-9, which is the rounding
error of one that is 0, as for any other."""
DROPOUT = {
    "tdmpc2": "networks.dropout", "bmpc": "networks.dropout", "sac_ensemble": "networks.critic_dropout",
    "decision_transformer": "dropout",
}  # fmt: skip
OF_ROWS = ("_std", "_min", "_max", "return_rate", "mask_false", "probe")
"""Metrics that are no mean over rows; over ranks their mean is told."""
OWN_MEANS = {"td3_bc", "rebrac", "fql_chunks", "ppo_mixed", "v3"}
"""Learners that take means over all ranks in lines of their own."""


@contextlib.contextmanager
def one_number_a_draw():
    """Each draw is one number for all of its rows, so that half of the rows draws what all of them do."""
    source = torch.Generator().manual_seed(3)
    normal, uniform = torch.randn, torch.rand

    def filled(draw):
        def of_shape(*shape, **how):
            shape = shape[0] if len(shape) == 1 and not isinstance(shape[0], int) else shape
            return draw((), generator=source, dtype=how.get("dtype")).expand(shape).clone()

        return of_shape

    def like(draw):
        return lambda x, **_: torch.full_like(x, float(draw((), generator=source)))

    def into(number):
        return lambda x, *given: x.copy_(number(*given).expand_as(x))

    changes = {
        (torch, "randn"): filled(normal), (torch, "rand"): filled(uniform),
        (torch, "randn_like"): like(normal), (torch, "rand_like"): like(uniform),
        (torch.Tensor, "exponential_"): into(lambda *_: -uniform((), generator=source).log()),
        (torch.Tensor, "uniform_"): into(lambda low=0.0, high=1.0: low + (high - low) * uniform((), generator=source)),
    }  # fmt: skip
    before = {place: getattr(*place) for place in changes}
    for (where, name), value in changes.items():
        setattr(where, name, value)
    try:
        yield
    finally:
        for (where, name), value in before.items():
            setattr(where, name, value)


def learners(which):
    """Those of each algorithm, or of one a base and of those with lines of their own."""
    return (one for one in every_learner() if which == "all" or one[0] in contracts.BASES | OWN_MEANS)


def every_learner():
    """Yield the name of each algorithm with what makes its learner and a batch."""
    for name, cfg in contracts.ON_POLICY.items():
        if name not in contracts.DISTINCT:
            continue
        size = "rollout" if name.startswith("a2c") else "batch_size"
        rows = {size: cfg.batch_length, "normalize_obs": "running", "graph": False}

        def made(b, name=name, rows=rows, size=size):
            return contracts.build(name, **rows | {size: b * rows[size]})

        yield name, made, contracts.batch
    for name in sorted({*contracts.DISTINCT, "fql_chunks"} - contracts.ON_POLICY.keys()):  # which normalizes values
        scaled = {"reward_scale": "return_std"} if name in ("dqn", "iql") else {}
        scaled |= {"reanalyze_interval": 0} if name in ("bmpc", "muzero") else {}  # each rank plans for its own windows
        scaled |= {DROPOUT[name]: 0.0} if name in DROPOUT else {}  # each rank drops others
        if not hasattr(contracts.CONFIGS[name], "goal_keys"):  # which are of single transitions
            scaled |= {"batch_length": 3}

        def made(b, name=name, more=scaled):
            return contracts.build(name, batch_size=b, normalize_obs="running", graph=False, **more)

        yield name, made, contracts.batch
    for name in dreamer_configs.CONFIGS:
        yield name, lambda b, name=name: dreamer_configs.build_earlier(name, batch_size=b), dreamer_configs.batch
    for name in ("v3", "v3_p2e"):
        build = (
            dreamer_configs.build if name == "v3" else lambda name=name, **more: dreamer_configs.build_p2e("v3", **more)
        )
        yield name, lambda b, build=build: build(batch_size=b), dreamer_configs.batch
    for name in dreamer_configs.R2:
        yield name, lambda b, name=name: dreamer_configs.build_r2(name, batch_size=b), dreamer_configs.batch


def shown(agent, seed, envs):
    """Rows of some of four environments; in some an episode begins."""
    step = contracts.shown(envs=4, seed=seed, first=False)
    g = torch.Generator().manual_seed(seed)
    step = replace(step, reward=torch.randn(4, generator=g), is_first=torch.rand(4, generator=g) < 0.4)
    part = {name: getattr(step, name)[envs] for name in ("reward", "is_first", "is_last", "is_terminal")}
    return Step(obs={key: x[envs] for key, x in step.obs.items()}, **part)


def trained(agent, batches, envs):
    """The learner's tensors, and the metrics of the last of its updates."""
    for optim in agent.optimizers().values():
        if isinstance(optim, Adam):
            optim.eps = EPS
        else:
            optim.cfg = replace(optim.cfg, eps=EPS)
    with one_number_a_draw():
        for i, batch in enumerate(batches):
            if agent.running_statistics is not None:
                agent.running_statistics.update_statistics(shown(agent, i, envs))
            update = agent.update(batch)
    return contracts.learned(agent), update.metrics


def off(found, expected):
    """The largest difference, relative to the largest number where that is above 1."""
    found, expected = (torch.nan_to_num(x.double(), posinf=1e30, neginf=-1e30) for x in (found, expected))
    return float((found - expected).abs().max() / expected.abs().max().clamp(min=1)) if expected.numel() else 0.0


def windows_of(rank, recorded):
    """Half of eight windows: of the recorded ones, if there are any, and of the others."""
    halves = [range(0, 4), range(4, 8)] if recorded else [range(0, 8)]
    return [i for half in halves for i in half[rank * len(half) // 2 : (rank + 1) * len(half) // 2]]


def main(rank: int, where: str, out: str, which: str) -> None:
    torch.set_num_threads(1)
    group, folder = ProcessGroup.join("cpu", torch.distributed.FileStore(where, 2), rank, 2), Path(out).parent
    for name, made, make in [*learners(which)][rank::2]:  # each rank learns from the whole batches of half of them
        whole = made(8)
        batches = [make(whole, seed=i) for i in range(UPDATES)]
        torch.save((batches, *trained(whole, batches, slice(None))), folder / f"{name}.pt")
    torch.distributed.barrier()
    found = {}
    for name, made, _ in learners(which):
        half, rows = made(4), windows_of(rank, name.startswith("gail"))
        batches, expected, metrics = torch.load(folder / f"{name}.pt", weights_only=False)
        half.set_num_offline(2)
        with use_ranks(group):
            mine = [batch.map(lambda x, rows=rows: x[rows]) for batch in batches]
            learned, ours = trained(half, mine, slice(2 * rank, 2 * rank + 2))
            means = {k: float(mean_across_ranks(v.float())) for k, v in ours.items()}
        told = {k: off(torch.tensor(means[k]), v) for k, v in metrics.items() if not any(word in k for word in OF_ROWS)}
        own = {k: off(learned[k], v) for k, v in expected.items() if "carried" not in k and not k.endswith(".returns")}
        parts = {"weights": {k: v for k, v in own.items() if k.startswith("model/")}, "moments": own, "metrics": told}
        worst = {part: max(each.items(), key=lambda pair: pair[1]) for part, each in parts.items()}
        found[f"{algorithm_name(type(half.cfg))}:{name}"] = worst
    Path(out).write_text(json.dumps(found))
    torch.distributed.destroy_process_group()  # or a thread of gloo's may abort the process at its end


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
