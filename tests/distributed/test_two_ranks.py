"""Two ranks of half a batch learn what one learns of the whole: algorithms of each base, by night all."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.algos.table import ALGORITHMS

pytestmark = pytest.mark.usefixtures("warm")

WORKER = Path(__file__).parent / "two_ranks.py"
OWN_BATCH = ("crossq:crossq", "xqc:xqc", "lewm:lewm", "crl:crl")
"""Batch normalization takes the mean of each rank's own half, and CRL contrasts the goals of this half alone."""


def far_off(folder, which):
    """How far each rank is off, by algorithm: of ``all``, or of one learner a base."""
    outs = [folder / f"{rank}.json" for rank in range(2)]
    words = [[sys.executable, WORKER, str(rank), folder / "meet", out, which] for rank, out in enumerate(outs)]
    started = [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in words]
    said = [each.communicate(timeout=900)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0], "".join(said)
    return [json.loads(out.read_text()) for out in outs]


@pytest.mark.parametrize("which", ["bases", pytest.param("all", marks=pytest.mark.nightly)])
def test_two_ranks_of_half_a_batch_learn_what_one_learns_of_the_whole(which, tmp_path):
    """Weights, moments, targets, statistics and metrics, after two updates on batches with ends of episodes."""
    found = far_off(tmp_path, which)
    ours = {entry.name for entry in ALGORITHMS} if which == "all" else {"sac", "tdmpc2", "hiql", "ppo", "rebrac"}
    assert {name.partition(":")[0] for name in found[0]} >= ours
    same = [(name, each) for rank in found for name, each in rank.items() if name not in OWN_BATCH]
    far = [(name, part, *worst) for name, each in same for part, worst in each.items()]
    assert not [one for one in far if not one[-1] <= (1e-6 if one[1] == "weights" else 1e-5)]
