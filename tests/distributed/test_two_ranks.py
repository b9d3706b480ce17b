"""Two ranks of half a batch learn what one learns of the whole: every algorithm, in one pair of gloo processes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from reverie.algos.table import ALGORITHMS

WORKER = Path(__file__).parent / "two_ranks.py"
OWN_BATCH = ("crossq:crossq", "xqc:xqc", "lewm:lewm", "crl:crl")
"""Batch normalization takes the mean of each rank's own half, and CRL contrasts the goals of this half alone."""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """How far each rank is off, by algorithm."""
    folder = tmp_path_factory.mktemp("ranks")
    outs = [folder / f"{rank}.json" for rank in range(2)]
    words = [[sys.executable, str(WORKER), str(rank), str(folder / "meet"), str(out)] for rank, out in enumerate(outs)]
    started = [subprocess.Popen(each, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) for each in words]
    said = [each.communicate(timeout=900)[0] for each in started]
    assert [each.returncode for each in started] == [0, 0], "".join(said)
    return [json.loads(out.read_text()) for out in outs]


def test_two_ranks_of_half_a_batch_learn_what_one_learns_of_the_whole(found):
    """Weights, moments, targets, statistics and metrics, after two updates on batches with ends of episodes."""
    ours = {entry.name for entry in ALGORITHMS}
    assert {name.partition(":")[0] for name in found[0]} == ours
    same = [(name, each) for rank in found for name, each in rank.items() if name not in OWN_BATCH]
    far = [(name, part, *worst) for name, each in same for part, worst in each.items()]
    assert not [one for one in far if not one[-1] <= (1e-6 if one[1] == "weights" else 1e-5)]
