"""``python tests/twin``: hunt for an hour, or play one combination. Prints differences in the smallest combination."""

import argparse
import itertools
import json
import logging
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).parent))

import doors
import factors


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


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", help="a combination: the factors that differ from their first values, as JSON")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--families", nargs="+", default=[*factors.FAMILIES], choices=[*factors.FAMILIES])
    args = parser.parse_args()
    logging.disable(logging.WARNING)
    if args.one:
        lists = {name: tuple(x) if isinstance(x, list) else x for name, x in json.loads(args.one).items()}
        report = doors.play(factors.complete(lists))
        show(report)
        return bool(report.counts)
    return hunt(args.seed, args.seconds, args.families) > 0


if __name__ == "__main__":
    sys.exit(main())
