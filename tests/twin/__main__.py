"""``python tests/twin``: hunt for an hour, or play one combination. Prints differences in the smallest combination."""

import argparse
import itertools
import json
import logging
import os
import sys
import time
from pathlib import Path
from unittest.mock import patch

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import doors
import factors
from mutants import MUTANTS


def shrink(c, kind):
    """Set factors to earlier values while the same kind of difference remains."""
    c, table, changed = dict(c), factors.with_more(factors.factors_of(c)), True
    while changed:
        changed = False
        for name, values in table.items():
            for simpler in values[: values.index(c[name])]:
                smaller = c | {name: simpler}
                if factors.is_valid(smaller) and not factors.refusal(smaller) and kind in doors.play(smaller).counts:
                    c, changed = smaller, True
                    break
    return c


def command(c):
    return f"python tests/twin --one '{json.dumps(factors.differing(c))}'"


def show(report):
    for kind, count in report.counts.items():
        print(f"  {kind} ({count}): {report.examples[kind]}", flush=True)


def hunt(seed, seconds, families):
    """Play covering arrays of one seed after the other; return the number of kinds that differ."""
    end, kinds, number = time.monotonic() + seconds, set(), 0
    for array in itertools.count(seed):
        family = factors.FAMILIES[families[array % len(families)]]
        for c in factors.covering(factors.with_more(family), array):
            if time.monotonic() > end:
                print(f"{number} combinations, {len(kinds)} kinds of differences")
                return len(kinds)
            number += 1
            report = doors.play(c)
            for kind in report.counts.keys() - kinds:
                kinds.add(kind)
                print(f"{kind}: {report.examples[kind]}\n  found in {command(c)}", flush=True)
                print(f"  {command(shrink(c, kind))}", flush=True)
    return 0


def play_mutants():
    """Play the mutants of the long mode; return the number of those that are not seen."""
    blind = 0
    for name, mutant in MUTANTS.items():
        c = factors.complete(mutant.factors)
        if mutant.is_long and all(
            c[factor] in values for factor, values in factors.with_more(factors.factors_of(c)).items()
        ):
            with patch.object(mutant.owner, mutant.name, mutant.changed):
                counts = doors.play(c).counts
            if mutant.kind not in counts:
                blind += 1
                print(f"the twin does not see {name}: {counts}", flush=True)
    return blind


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="a combination: the factors that differ from their first values, as JSON")
    parser.add_argument("--choose", action="store_true", help="look for combinations for test_twin.py")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mutants", action="store_true", help="first play the wrong lines of the long mode")
    parser.add_argument("--families", nargs="+", default=[*factors.FAMILIES], choices=[*factors.FAMILIES])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.one:
        lists = {name: tuple(x) if isinstance(x, list) else x for name, x in json.loads(args.one).items()}
        report = doors.play(factors.complete(lists))
        show(report)
        return bool(report.counts)
    if args.choose:
        chosen = {name: factors.choose(family) for name, family in factors.FAMILIES.items()}
        Path(__file__).with_name("chosen.json").write_text(json.dumps(chosen) + "\n")
        return False
    blind = play_mutants() if args.mutants else 0
    return hunt(args.seed, args.seconds, args.families) + blind > 0


if __name__ == "__main__":
    sys.exit(main())
