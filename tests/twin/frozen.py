"""Parameters that are frozen for some updates: they stay as they are, and all others are trained, as all are later."""

import torch

import reverie

FROM, UNTIL = 2, 6
"""Numbers of updates after which a part of the learner is frozen, and thawed; an actor learns in each second one."""


class Frozen:
    """Freezes a part of a learner, and compares what updates change."""

    def __init__(self, algo, part, report):
        trained = [(name, p) for name, p in algo.named_parameters() if p.requires_grad]
        has_actor = any(".actor." in name for name, _ in trained)
        is_frozen = {"never": lambda i, name: False, "some": lambda i, name: i % 2 == 0,
                     "network": lambda i, name: ".actor." in name or not has_actor}[part]  # fmt: skip
        self.report = report
        self.frozen = dict(pair for i, pair in enumerate(trained) if is_frozen(i, pair[0]))
        self.free = {name: p for name, p in trained if name not in self.frozen}
        self.updates, self.before, self.is_thawed = 0, {}, False

    def follow(self, updates):
        """Freeze or thaw, if it is time, after so many updates."""
        if not self.frozen:
            return
        self.updates = updates
        if not self.before and updates >= FROM:
            self._change(False)
        elif self.before and not self.is_thawed and updates >= UNTIL:
            self.check()
            self._change(True)
            self.is_thawed = True

    def _change(self, is_trained):
        for p in self.frozen.values():
            p.requires_grad_(is_trained)
        self.begun = self.updates
        self.before = {name: p.detach().clone() for name, p in (self.frozen | self.free).items()}

    def check(self):
        """Compare with the parameters at the last change."""
        if not self.before:
            return
        is_same = {name: torch.equal(p, self.before[name]) for name, p in (self.frozen | self.free).items()}
        if changed := [name for name in self.frozen if not (is_same[name] or self.is_thawed)]:
            self.report.add("frozen parameters that have changed", names=changed[:3], updates=self.updates)
        if self.updates - self.begun < 2:
            return
        trained = [*self.free, *self.frozen] if self.is_thawed else self.free
        if still := [name for name in trained if is_same[name]]:
            kind = "parameters that are not trained" + " after thawing" * self.is_thawed
            self.report.add(kind, names=still[:3], count=len(still), updates=self.updates - self.begun)


class Freezer(reverie.Callback):
    """The same in a run."""

    def __init__(self, part, report):
        self.part, self.report = part, report

    def on_start(self, run):
        self.frozen, self.first = Frozen(run.algo, self.part, self.report), run.updates

    def on_log(self, run, values):
        self.frozen.follow(run.updates - self.first)

    def on_end(self, run, result):
        self.frozen.updates = run.updates - self.first
        self.frozen.check()
