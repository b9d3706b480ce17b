"""Importance weights of windows that are drawn by priority, by loops over all stored windows."""

import math

import numpy as np

ALPHA, BETA, BETA_END, BETA_WINDOWS, EPSILON = 0.6, 0.4, 1.0, 10_000_000, 1e-6
"""The defaults of ``replay.priority``."""
UNIFORM, PRIORITY = 0.3, 0.7
"""Fractions of windows that ``settings.py`` draws in each way."""


class Weights:
    """Notes what an update says of its windows, and compares the weights of each batch of ``watch``."""

    def __init__(self, report):
        self.report = report
        self.priority, self.highest, self.num_drawn, self.num_queued = {}, 1.0, 0, 0

    def watch(self, replay):
        """Compare the batches of ``replay``, which may continue that of an earlier process."""
        sampler, sample, feedback = replay.batch_sampler, replay.sample, replay.feedback
        draw = sampler.online.draw_queued if sampler.online is not None else None

        def draw_noted(count):
            handles = draw(count)
            self.num_queued = len(handles)
            return handles

        def sample_noted(*args):
            self.num_queued, windows = 0, sampler.windows
            stored = windows.handles_at(np.arange(len(windows))).tolist()
            self.priority = {handle: self.priority.get(handle, self.highest) for handle in stored}
            batch = sample(*args)
            self.check(batch.index.tolist(), batch.weight.tolist())
            return batch

        def feedback_noted(index, update):
            for handle, priority in zip(index.tolist(), update.priority.tolist(), strict=True):
                self.priority[handle] = priority + EPSILON  # of a window that was drawn twice, the last one counts
                self.highest = max(self.highest, priority + EPSILON)
            feedback(index, update)

        if draw is not None:
            vars(sampler.online)["draw_queued"] = draw_noted
        vars(replay).update(sample=sample_noted, feedback=feedback_noted)

    def check(self, handles, weights):
        """w = (N P)^-beta / max, and 1 in windows of the online queue: Schaul et al. 2016, section 3.4."""
        total = math.fsum(p**ALPHA for p in self.priority.values())
        beta = BETA + (BETA_END - BETA) * min(1.0, self.num_drawn / BETA_WINDOWS)
        drawn, number = handles[self.num_queued :], len(self.priority)
        chance = [UNIFORM / number + PRIORITY * self.priority[handle] ** ALPHA / total for handle in drawn]
        each = [(number * p) ** -beta for p in chance]
        true = [1.0] * self.num_queued + [w / max(each) for w in each]
        self.num_drawn += len(drawn)
        for handle, stored, expected in zip(handles, weights, true, strict=True):
            if not math.isclose(stored, expected, rel_tol=1e-4):
                self.report.add("importance weight", window=handle, stored=stored, true=expected)
