"""The possible findings of an environment check, as text: faults, warnings and notes."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from gymnasium import spaces

Severity = Literal["fault", "warning", "note"]
_TEXTS = """
fault spaces: {error}
fault refused: {error}
fault raises: {error}. The action was {value}, of type {kind}
warning reward: a reward is {value}, of type {kind}: expected a float. Return float(reward)
warning ends: {name} is {value}, of type {kind}: expected a bool. Return bool({name})
warning info: the info of {where} is {value}, of type {kind}: expected a dictionary. Return {{}}
warning dtype: {name} of {where} is of {kind}: expected an array of {dtype}, as its space declares. Return
    np.asarray(obs, np.{dtype})
warning bounds: {name} of {where} is {value:g} at index {at}: expected {low:g} to {high:g}, as its space declares.
    Declare the true bounds, or -np.inf and np.inf
warning exact: {name} of {where} is {value:.12g} at index {at}: expected at most {most:,}, as learners see float32,
    which rounds larger numbers. Subtract an offset, such as the time of the first step, or divide; encode identifiers
    as classes, or exclude them with env.exclude_keys
warning reused: an observation changed after it was returned, in the {where} that followed: its array is reused, so a
    stored reference changes later. Return a copy, obs.copy()
warning generator: {where} draws from the global generator of {name}, which reset(seed=...) does not set: episodes
    cannot be repeated. Draw from self.np_random, which super().reset(seed=seed) seeds
warning seed: with the same seed, two copies play different episodes: {error}. Call super().reset(seed=seed) in
    reset, and draw from self.np_random alone
warning reset: with the same seed, an episode after others is a different one: {error}. Reset all state in reset,
    call super().reset(seed=seed) there, and draw from self.np_random alone
warning endless: no episode ended within {steps:,} steps and no time limit is known, so no return can be reported. Set
    env.max_episode_steps = 1000, or max_episode_steps where the id is registered
warning vector_seed: two plays after reset(seed=...) with the same seed differ: {error}. Draw from a generator that it
    seeds
note vector_unsaved: its state cannot be saved: a resumed run begins new episodes
warning horizon: {error}
warning still: the image '{name}' did not change within any episode in {steps:,} steps, so it does not show the state.
    Render it in every step
warning memory: memory use grew by {value:.0f} MB in the second half of {steps:,} steps: the environment may leak memory
warning copies: a second instance of the environment cannot be created: {error}. Evaluations during training need one:
    set eval_episodes = 0, eval_envs = 1
warning state: it does not continue identically from its saved state: {error}. Give it the methods snapshot()
    and restore(state)
warning saturates: in the first step of an episode, values of the action at index {at} beyond half of its bounds change
    nothing. Declare the range that has an effect, or a discrete action
warning goals: {error}, so replay.hindsight cannot be used. compute_reward(achieved_goal, desired_goal, info) must
    return the reward of the step, and both goals must have the same space
warning ends_at_goals: an episode terminated at its goal, but there is no compute_terminated, so episodes of goals that
    replay.hindsight relabels would continue. Give it the method compute_terminated(achieved_goal, desired_goal, info)
warning success: episodes have goals, but the info of step() does not say whether they were reached. Return
    info['success'] in the last step
warning at_once: {value:.0%} of random episodes succeed in their first step: these starts are at the goal, and tell
    nothing about an agent. Draw goals farther away
warning worker: it does not play in a worker process: {error}. Use env.vectorization = 'sync'
note unsaved: its state cannot be saved in mid-episode{error}: a resumed run truncates the open episode. If episodes are
    long, give it the methods snapshot() and restore(state)
note state_size: its state takes {value:.1f} MB of each checkpoint, for each environment. Make large constants in
    __init__: arrays and texts that a new environment has too are left out
note wide: {name} is declared up to {value:,}: learners see float32, which cannot represent integers beyond {most:,}
    exactly. If there are such integers, subtract an offset, divide, or exclude them with env.exclude_keys
note executed: reports executed actions ({key}), of a {kind}: {stored}
note size: the image '{name}' has {value} pixels: env.resize = (64, 64) saves much time
warning sparse: all rewards were 0 in {steps:,} steps: learning begins when random actions reach another one. Reward
    progress, or use goals (replay.hindsight)
warning constant: all {count} random episodes have a return of {value:g}: learning begins when random actions reach
    another one. Reward progress, or use goals (replay.hindsight)
warning unsolved: none of {count} random episodes succeeded: learning begins when random actions do. Reward progress, or
    use goals (replay.hindsight)
"""
TEXTS = {name: (kind, text) for kind, name, text in re.findall(r"^(\w+) (\w+): (.*(?:\n +.*)*)", _TEXTS, re.M)}
"""Severity and text of each finding, by its name."""
STORED_ACTIONS = {
    "takeover": "off-policy learners store them, and on-policy learners refuse them",
    "filter": "off-policy learners store them (env.filtered_action), and on-policy learners the policy's",
}
"""What learners do with executed actions of each kind."""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """A finding about an environment: what is wrong, what was expected, and what to do."""

    severity: Severity
    """``fault``: training fails, or learns from wrong data; ``warning``: probably unintended."""
    name: str
    text: str


def sort_findings(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Return ``findings`` with faults first, then warnings, then notes."""
    return tuple(sorted(findings, key=lambda finding: get_args(Severity).index(finding.severity)))


class Findings(dict[str, Finding]):
    """Findings by name; only the first of each name is kept."""

    known_before: frozenset[str] = frozenset()
    """Names of the findings before the latest call of the environment."""
    spaces: tuple[spaces.Space[Any], spaces.Space[Any]] | None = None
    """Spaces of observations and actions; None: no environment has been made yet."""

    def add_executed(self, key: str, kind: str) -> None:
        """Note that the environment reports executed actions, of this ``kind``: takeover or filter."""
        self.add("executed", key=key, kind=kind, stored=STORED_ACTIONS[kind])

    def add(self, name: str, /, **values: object) -> None:
        """Add a finding: its text, with ``values``. A fault replaces all other findings of the latest call."""
        severity, text = TEXTS[name]
        for key in self.keys() - self.known_before if severity == "fault" else ():
            del self[key]
        formatted = re.sub(r" at 0x[0-9a-f]+", "", " ".join(text.split()).format(**values))  # addresses in memory
        self.setdefault(name, Finding(severity=severity, name=name, text=formatted))
