"""Pairs of values of two crossing features are played, and what reverie makes of them is what the log says."""

import dataclasses
import itertools
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import doors
import factors
from mutants import MUTANTS

from reverie.algos.table import ALGORITHMS
from reverie.envs.config import EnvConfig
from reverie.nn.memory import Memory
from reverie.nn.reward_scaling import RewardScale
from reverie.objectives.estimators import ValueEstimator
from reverie.replay.config import Hindsight, ReplayConfig

CHOSEN = json.loads(Path(__file__).with_name("chosen.json").read_text())
"""Numbers of combinations; ``python tests/twin --choose`` looks for them, which takes ten seconds."""
LEAST = {"files": 0.73}
"""Share of pairs of values that are played, where many exclude each other."""
CASES = [c for name, family in factors.FAMILIES.items() for number in CHOSEN[name]
         if (c := factors.draw_numbered(family, number)) is not None]  # fmt: skip


@pytest.mark.parametrize("number", range(len(CASES)))
def test_pairs(number):
    c = CASES[number]
    report = doors.play(c)
    assert not report.counts, f"{report.examples}\npython tests/twin --one '{json.dumps(factors.differing(c))}'"


def test_most_pairs_are_played():
    """Else ``python tests/twin --choose``: the numbers are of other factors."""
    for name, family in factors.FAMILIES.items():
        drawn = [c for number in CHOSEN[name] if (c := factors.draw_numbered(family, number)) is not None]
        played = set().union(*(factors.pairs_of(c, [*family]) for c in drawn))
        possible = sum(len(x) * len(y) for x, y in itertools.combinations(family.values(), 2))
        assert len(played) > LEAST.get(name, 0.85) * possible


@pytest.mark.parametrize("name", [name for name, mutant in MUTANTS.items() if not mutant.is_long])
def test_the_twin_sees(monkeypatch, name):
    """Without this the twin could go blind, and nobody would notice."""
    mutant = MUTANTS[name]
    monkeypatch.setattr(mutant.owner, mutant.name, mutant.changed)
    assert mutant.kind in doors.play(factors.complete(mutant.factors)).counts


@pytest.mark.parametrize(("pattern", "applies", "example"), factors.REFUSED)
def test_what_excludes_each_other_is_refused(pattern, applies, example):
    """A row that nothing refuses is a feature that has come to be."""
    c = factors.complete(example)
    assert applies(c)
    assert factors.is_valid(c)
    assert not doors.play(c).counts


def test_every_feature_that_crosses_others_signs_in():
    pairs = {(name, x) for family in factors.FAMILIES.values() for name in family for x in family[name]}
    names = {"std": "return_std"}
    played = {f"{name} {names.get(x, x[0] if isinstance(x, tuple) else x)}" for name, x in pairs}
    kinds = {"estimator": ValueEstimator, "hindsight": Hindsight, "memory": Memory, "scale": RewardScale}
    known = {f"{name} {key}" for name, choice in kinds.items() for key, kind in choice.variants().items()
             if kind.__module__.startswith("reverie.")}  # other tests define some, too  # fmt: skip
    known |= {f"algo {entry.name}" for entry in ALGORITHMS}
    for room, config in (("env", EnvConfig), ("replay", ReplayConfig)):
        known |= {f"{room}.{field.name}" for field in dataclasses.fields(config)}
    assert known - played - {*factors.CROSSED.values()} == factors.NOT_CROSSED.keys()
