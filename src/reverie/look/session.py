"""An episode that is being played, and the dream beside it. Knows nothing of browsers."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from reverie.agent.agent import Agent, mode_of
from reverie.agent.dreaming import error_of, one_hot, unit_of
from reverie.agent.imagining import Mind, ModelState, Said, array, seen_in, with_classes
from reverie.algos.base import INSIDE, dreamt_name
from reverie.core.errors import ConfigError, DataError, EnvError, brief
from reverie.core.protocols import Env, Policy
from reverie.core.randomness import RngState, derived_seeds, left_as_found, seed_everything
from reverie.core.types import Step
from reverie.look.source import Pictures, Recording, action_names, live
from reverie.look.values import values_of
from reverie.nn.probe import Probe
from reverie.nn.rssm import Latent
from reverie.run.collect import executed

CONTEXT = 5
"""Rows that the model sees at first, before it dreams."""
FUTURES, LONGEST = 8, 1000
"""Futures of a branch, and most steps that are imagined at once."""
SHOWN = 64
"""Vectors with more numbers than this are not shown number by number."""


@dataclass
class Happened:
    """A row of the episode."""

    step: Step  # [1, ...]
    state: Any  # the policy's after the row
    proposed: Tensor  # [1, A], the policy's action
    picture: bytes | None
    facts: dict[str, Any]  # what the page is told
    seen: Said | None  # what the networks say of the state after the row


@dataclass
class Dreamt:
    """A row of the dream."""

    latent: Latent  # [1, ...]
    how: str  # "seen": the model knows the row; "imagined"; "edited"
    said: Said  # [...] each
    picture: bytes | None = None


@dataclass(frozen=True)
class Future:
    """A future that a branch imagines."""

    rows: list[Dreamt]
    actions: list[Tensor]  # [1, A], each before its row
    total: float
    """Predicted return: see ``Mind.predicted_return``."""


Edit = tuple[int, Dreamt, int, dict[int, int]]
"""What an edit replaced: the number of a row, the row; ``context`` and ``held`` of the line."""


@dataclass
class Luck:
    """A stream of random numbers that nothing else disturbs."""

    seed: int
    state: Any = None

    @contextlib.contextmanager
    def __call__(self) -> Iterator[None]:
        """Draw from this stream within the context."""
        with left_as_found():
            if self.state is None:
                seed_everything(self.seed)
            else:
                RngState().load_state_dict(self.state)
            yield
            self.state = RngState().state_dict()


@dataclass
class Line:
    """The rows and actions of an episode. The dream may be longer than what happened, or shorter by no row."""

    real: list[Happened] = field(default_factory=list)
    dream: list[Dreamt] = field(default_factory=list)
    actions: list[Tensor] = field(default_factory=list)  # [1, A] each, of what happened and of the dream alike
    context: int = CONTEXT
    held: dict[int, int] = field(default_factory=dict)
    edits: list[Edit] = field(default_factory=list)


class Session:
    """An episode with an agent: what happens, and what its world model dreams under the same actions.

    Methods that change rows return the number of the first row that they changed.
    """

    def __init__(self, agent: Agent, *, seed: int | None = None, source: Recording | None = None) -> None:
        """Begin an episode. EnvError if the environment cannot be made.

        ``seed`` None: the first one of the run's final evaluation. ``source`` None: the agent's environment.
        """
        self.source: Env | Recording = live(agent) if source is None else source
        self.mode = "mode"
        own = None if isinstance(self.source, Recording) else self.source.time_limit
        self.limit: int = max(agent.episode_limit, own or 0)
        """Steps after which the episode is cut off."""
        self._learn_to_know(agent)
        self.pictures: Pictures = Pictures(agent, None if self.mind is None else self.mind.keys)
        self.seed: int = derived_seeds(agent.config.seed)["test"] if seed is None else seed
        self.start(self.seed)

    def _learn_to_know(self, agent: Agent) -> None:
        self.agent: Agent = agent
        self.mind: Mind | None = Mind(agent) if getattr(agent.algo, "world", None) is not None else None
        self.policy: Policy[Any] = agent.algo.policy

    def close(self) -> None:
        """Close the environments."""
        self.source.close()
        self.pictures.close()

    # ------------------------------------------------------------------ what happens

    def start(self, seed: int | None = None) -> int:
        """Begin another episode; ``seed`` None: with the next seed."""
        self.seed = self.seed + 1 if seed is None else seed
        self.luck: Luck = Luck(self.seed)
        self.dreaming: Luck = Luck(self.seed)
        self.line: Line = Line()
        self.futures: list[Future] = list[Future]()
        self.branched: int = 0
        with self.luck():
            self._happen(self.source.reset(self.seed))
        self._moved = False
        return 0

    def step(self, at: int | None = None, action: Sequence[float] | None = None) -> int:
        """Let the environment take a step from row ``at``; None: from the newest one. Later rows are forgotten.

        ``action`` ``[A]``: None takes what the dream did there, or what the policy proposes; a recording takes its own.
        """
        line = self.line
        at = len(line.real) - 1 if at is None else self._row(at, line.real)
        if line.real[at].facts["last"]:
            raise DataError("the episode is over at this row: start another one, or go on dreaming.")
        recorded = self.source.batch.action[:, at] if isinstance(self.source, Recording) else None
        follows = line.actions[at] if at < len(line.actions) else line.real[at].proposed
        chosen = follows if recorded is None else recorded
        if action is not None:
            chosen = self._flat(action)
        if recorded is not None and not torch.equal(chosen, recorded):
            raise DataError("the recording has another action here: only the dream can take yours (go on dreaming).")
        self._forget_real(at)
        if at < len(line.actions) and not torch.equal(line.actions[at], chosen):
            del line.actions[at:], line.dream[at + 1 :]
        with self.luck():
            self._catch_up(at)
            step = self.source.step(executed(chosen, line.real[at].step))
            line.actions[at:] = [chosen, *line.actions[at + 1 :]]
            self._happen(step)
        return at + 1

    def _happen(self, step: Step) -> None:
        """Add a row; the policy acts on it, and the model sees or imagines it."""
        line, real = self.line, self.line.real
        if not isinstance(self.source, Recording) and len(real) >= self.limit and not step.is_last[0]:
            step = self.source.truncate(step, [0])
        taken = line.actions[len(real) - 1] if real else None
        state = self.agent.initial_state(1) if taken is None else self.policy.override(real[-1].state, taken)
        real.append(self._met(step, state, self.pictures.real(self.source, step.obs)))
        if self.mind is not None and len(line.dream) < len(real):
            self._extend()

    def _met(self, step: Step, state: Any, picture: bytes | None) -> Happened:
        """Let the agent meet a row: it acts, values and is surprised."""
        proposed, after = self.policy.act(step, state, mode_of(self.mode))
        facts: dict[str, Any] = {"reward": float(step.reward[0]), "last": bool(step.is_last[0])}
        facts["terminal"] = bool(step.is_terminal[0])
        facts["numbers"] = {
            key: step.obs[key][0].flatten().tolist() for key in self._numbers() if step.obs[key][0].numel() <= SHOWN
        }
        seen = None
        if self.mind is not None:
            seen = self._single(self.mind.say([after.latent]))[0]
            facts |= {"value": float(seen[f"{INSIDE}value"]), "policy": seen["policy"].tolist()}
            facts |= self.mind.divergence(step, after)
        else:
            facts |= values_of(self.agent, step, state, after, proposed)
        return Happened(step, after, executed(proposed, step), picture, facts, seen)

    def _catch_up(self, at: int) -> None:
        """Bring the environment to row ``at``: after the past was changed, by the same seed and actions."""
        if not self._moved:
            return
        step = self.source.reset(self.seed)
        for number in range(at):
            step = self.source.step(executed(self.line.actions[number], step))
        if not all(torch.equal(value, step.obs[key]) for key, value in self.line.real[at].step.obs.items()):
            raise EnvError(
                "the environment does not come to this row again: the same seed and actions lead elsewhere. "
                "Go on dreaming from here, or start another episode."
            )
        self._moved = False

    def _forget_real(self, at: int) -> None:
        self._moved |= len(self.line.real) > at + 1
        del self.line.real[at + 1 :]

    def _forget(self, at: int) -> None:
        """Forget all after row ``at``."""
        self._forget_real(at)
        del self.line.dream[at + 1 :], self.line.actions[at:]

    # ------------------------------------------------------------------ the dream

    def dream(self, at: int, steps: int = 15, action: Sequence[float] | None = None) -> int:
        """Go on dreaming from row ``at``; later rows, real ones too, are forgotten.

        ``action`` ``[A]`` of the first step; None: the policy acts in the dream.
        """
        at, steps = self._row(at, self.line.dream), self._count(steps, 1, LONGEST)
        first = [] if action is None else [self._flat(action)]
        self._forget(at)
        self.line.actions += first
        self._imagine(steps)
        return at + 1

    def see(self, rows: int) -> int:
        """Let the model see the first ``rows`` rows, and dream the others anew; edits are undone."""
        self._mind()
        line, line.context = self.line, self._count(rows, 1, len(self))
        line.edits, line.held = [], {}
        return self._dream_again(0)

    def _dream_again(self, first: int) -> int:
        """Dream rows from ``first`` on anew, under the same actions."""
        line, length = self.line, len(self.line.dream)
        del line.dream[first:]
        while len(line.dream) < min(length, line.context, len(line.real)):
            self._extend()
        if rest := length - len(line.dream):
            self._imagine(rest)
        return first

    def _extend(self) -> None:
        """Add a row to the dream: as the model sees it, or imagined under the action that was taken."""
        line, row = self.line, len(self.line.dream)
        if row < line.context and row < len(line.real) and not line.edits:
            known = line.real[row]
            line.dream.append(Dreamt(known.state.latent, "seen", known.seen or {}))
            return
        self._imagine(1)

    def _imagine(self, steps: int) -> None:
        """Add imagined rows under the actions that were taken; after these the policy acts."""
        line, mind, at, mode = self.line, self._mind(), len(self.line.dream) - 1, mode_of(self.mode)
        taken = line.actions[at:]

        def choose(number: int, latent: Latent) -> Tensor:
            return taken[number].to(latent.deter.device) if number < len(taken) else mind.act(latent, mode)

        with self.dreaming():
            latents, actions = mind.imagine(line.dream[at].latent, steps, choose, line.held)
            line.actions += [action.cpu() for action in actions[len(taken) :]]
            line.dream += self._dreamt(latents)

    def _dreamt(self, latents: list[Latent]) -> list[Dreamt]:
        said = self._single(self._mind().say(latents))
        return [Dreamt(latent, "imagined", one) for latent, one in zip(latents, said, strict=True)]

    # ------------------------------------------------------------------ branches

    def branch(self, at: int, by: str = "sample", steps: int = 15) -> list[Future]:
        """Imagine futures from row ``at``: ``FUTURES`` samples, or ("action") one for each first action.

        Other actions are drawn from the policy. Nothing changes until :meth:`pick`.
        """
        mind, line = self._mind(), self.line
        at, steps = self._row(at, line.dream), self._count(steps, 1, 200)
        firsts = self._first_actions() if by == "action" else None
        count = FUTURES if firsts is None else len(firsts)
        start = line.dream[at].latent.map(lambda x: x.expand(count, *x.shape[1:]))

        def choose(number: int, latent: Latent) -> Tensor:
            return firsts.to(latent.deter.device) if firsts is not None and not number else mind.act(latent, "explore")

        with self.dreaming():
            latents, actions = mind.imagine(start, steps, choose, line.held)
            said = mind.say(latents)
        totals = mind.predicted_return(said)
        self.branched = at
        self.futures = [
            Future(
                [Dreamt(x.map(lambda v, i=i: v[i : i + 1]), "imagined", {k: v[i, t] for k, v in said.items()})  # type: ignore[misc]
                 for t, x in enumerate(latents)],
                [action[i : i + 1].cpu() for action in actions],
                float(totals[i]),
            )
            for i in range(count)
        ]  # fmt: skip
        return self.futures

    def pick(self, number: int) -> int:
        """Go on with a future of the last branch."""
        at, chosen = self.branched, self.futures[self._count(number, 0, len(self.futures) - 1)]
        self._row(at, self.line.dream)
        self._forget(at)
        self.line.actions += chosen.actions
        self.line.dream += chosen.rows
        return at + 1

    def _first_actions(self) -> Tensor:
        """Return each class of the only choice, one-hot ``[n, A]``."""
        choices = self.agent.action_spec.choices()
        if len(choices) != 1 or choices[0][1].stop - choices[0][1].start != self.agent.action_spec.width:
            raise ConfigError("one future per action: this needs a single discrete action. Branch by samples instead.")
        return torch.eye(self.agent.action_spec.width)[: 4 * FUTURES]

    # ------------------------------------------------------------------ edits

    def edit(self, at: int, latent: int, value: float, keep: bool = False) -> int:
        """Set a latent of row ``at`` to a class or a number, ``keep``: for good; the rows after it are dreamed anew."""
        self._mind()
        line = self.line
        at = self._row(at, line.dream)
        old = line.dream[at]
        latents, classes = old.latent.stoch.shape[1:]
        latent = self._count(latent, 0, latents - 1)
        value = self._count(value, 0, classes - 1) if classes > 1 else float(value)
        line.edits.append((at, old, line.context, dict(line.held)))
        stoch = old.latent.stoch.clone()
        if classes > 1:
            stoch = with_classes(stoch, {latent: value})
            line.held |= {latent: int(value)} if keep else {}
        else:
            stoch[:, latent] = value
        line.dream[at] = replace(self._dreamt([old.latent._replace(stoch=stoch)])[0], how="edited")
        line.context = min(line.context, at + 1)
        self._dream_again(at + 1)
        return at

    def undo(self) -> int:
        """Undo the last edit."""
        at, row, context, held = self.line.edits.pop()
        self.line.context, self.line.held = context, held
        self.line.dream[at] = row
        self._dream_again(at + 1)
        return at

    def latent(self, at: int) -> dict[str, Any]:
        """Return the state of row ``at``: the classes of z and what the prior gives them, or its numbers; probes."""
        mind = self._mind()
        latent = self.line.dream[at := self._row(at, self.line.dream)].latent
        with torch.no_grad():
            named = mind.world.rssm.named(mind.world.rssm.prior(latent.deter))
        found: dict[str, Any] = {"at": at, "held": {str(k): v for k, v in self.line.held.items()}}
        found["edits"] = [row for row, *_ in self.line.edits]
        if "logits" in named:
            found |= {"classes": latent.stoch[0].argmax(-1).tolist(), "prior": array(named["logits"][0].exp())}
        else:
            found |= {"values": array(latent.stoch[0, :, 0])}
            found |= {name: array(values[0]) for name, values in named.items()}
        return found | {"probes": self._probed(at)}

    def _probed(self, at: int) -> dict[str, dict[str, Any]]:
        """Return what probes read from row ``at`` by key, and the ``truth`` if it happened.

        ``read`` is numbers, or of classes the likeliest; then ``chance`` is its probability.
        """
        probe, row, happened = getattr(self.agent.algo, "probe", None), self.line.dream[at], dict[str, np.ndarray]()
        if not isinstance(probe, Probe):
            return {}
        if at < len(self.line.real):
            happened = {key: values[0].numpy() for key, values in self.line.real[at].step.obs.items()}
        needed = {key for parts in probe.given.values() for key in parts}
        given = {key: x for key, x in (seen_in(row.said, self._numbers()) | happened).items() if key in needed}
        found: dict[str, dict[str, Any]] = {key: {} for key in probe.parts}
        state = ModelState(array(row.latent.deter), array(row.latent.stoch))
        for key, (values, *_) in self.agent.probe(state, given).items():
            found[key]["read"] = values
            if (part := probe.parts[key]).kind == "categorical":
                likely = {"read": values.argmax(-1), "chance": values.max(-1)}
                found[key] = {name: x.reshape(part.shape) for name, x in likely.items()}
            found[key] |= {"truth": happened[key]} if key in happened else {}
        return found

    # ------------------------------------------------------------------ other models

    def use(self, agent: Agent) -> int:
        """Let an agent of another checkpoint live through the same episode, and dream it."""
        self._live_again(agent, len(self.line.real))
        self.futures = []
        return 0

    def judged(self, agent: Agent) -> dict[str, float]:
        """Return the mean errors by name that another checkpoint's dream of this episode would have."""
        twin, line = copy.copy(self), self.line
        twin.line = replace(line, real=[*line.real], dream=line.dream[: len(line.real)])
        twin._live_again(agent, line.context)
        errors = [row["error"] for row in twin.rows(line.context)]
        return {name: float(np.mean([row[name] for row in errors])) for name in errors[0]} if errors else {}

    def _live_again(self, agent: Agent, rows: int) -> None:
        """Let another agent meet the first ``rows`` rows, and dream the episode anew; edits are undone."""
        line, luck, self.dreaming = self.line, Luck(self.seed), Luck(self.seed)
        self._learn_to_know(agent)
        line.edits, line.held = [], {}
        with luck():
            state = agent.initial_state(1)
            for number, one in enumerate(line.real[:rows]):
                line.real[number] = self._met(one.step, state, one.picture)
                if number < len(line.actions):
                    state = self.policy.override(line.real[number].state, line.actions[number])
        if self.mind is not None:
            self._dream_again(0)

    # ------------------------------------------------------------------ what the page is told

    @functools.cached_property
    def action_names(self) -> list[str]:
        """The names of discrete actions, if the environment has them."""
        return action_names(self.agent)

    def about(self) -> dict[str, Any]:
        """Return what does not change from row to row."""
        agent, spec = self.agent, self.agent.action_spec
        numbers = [(key, part) for key, part in sorted(spec.parts.items()) if part.kind == "continuous"]
        found: dict[str, Any] = {"algorithm": agent.config.algo.algorithm, "checkpoint": agent.checkpoint.name}
        recorded = self.source if isinstance(self.source, Recording) else None
        found |= {"step": agent.step, "env": recorded.name if recorded else agent.config.env.id, "seed": self.seed}
        found |= {
            "choices": [{"name": key, "start": cut.start, "stop": cut.stop} for key, cut in spec.choices()],
            "continuous": [{"name": k, "low": x.low, "high": x.high, "size": x.size} for k, x in numbers],
            "width": spec.width,
            "fps": agent.frames_per_second,
            "names": [] if recorded else self.action_names,
            "recorded": recorded is not None,
            "units": {dreamt_name(key): unit_of(dreamt_name(key), part) for key, part in agent.obs_spec.items()},
            "dreams": self.mind is not None,
            "horizon": getattr(agent.config.algo, "horizon", None),
        }
        if self.mind is not None:
            latents, classes = self.mind.world.rssm.initial(1, torch.float32).stoch.shape[1:]
            found |= {"latents": latents if self.mind.draws else 0, "classes": classes}
        return found

    def __len__(self) -> int:
        return max(len(self.line.real), len(self.line.dream))

    def rows(self, first: int = 0) -> list[dict[str, Any]]:
        """Return what is told of each row from ``first`` on, in plain values and arrays."""
        return [self._told(number) for number in range(first, len(self))]

    def _told(self, number: int) -> dict[str, Any]:
        line = self.line
        real = line.real[number] if number < len(line.real) else None
        dreamt = line.dream[number] if number < len(line.dream) else None
        return {
            "t": number,
            "real": None if real is None else real.facts,
            "action": line.actions[number] if number < len(line.actions) else None,
            "dream": None if dreamt is None else self._facts(dreamt),
            "error": None if real is None or dreamt is None else self._errors(real, dreamt.said),
        }

    def _facts(self, row: Dreamt) -> dict[str, Any]:
        said = row.said
        numbers = seen_in(said, self._numbers())
        return {
            "how": row.how,
            "value": said[f"{INSIDE}value"],
            "numbers": {key: values.flatten() for key, values in numbers.items() if values.size <= SHOWN},
            **{name: said[name] for name in ("reward", "cont", "prior_entropy", "policy") if name in said},
        }

    def _errors(self, real: Happened, said: Said) -> dict[str, float]:
        """Return the error of each observation in its own units (``dreaming.unit_of``), and of reward and cont."""
        found: dict[str, float] = {}
        for key, part in self.agent.obs_spec.items():
            if (name := dreamt_name(key)) in said and part.kind != "mask":
                truth = real.step.obs[key].numpy()[None]  # [1, 1, ...]
                exact = one_hot(truth, part) if part.kind == "categorical" else truth
                found[name] = float(error_of(said[name].reshape(1, 1, -1), exact.reshape(1, 1, -1), part)[0])
        found["reward"] = abs(float(said["reward"]) - real.facts["reward"])
        return found | {"cont": abs(float(said["cont"]) - (1.0 - real.facts["terminal"]))}

    def picture(self, number: int) -> tuple[bytes | None, bytes | None]:
        """Return the pictures of a row as PNG: of what happened, and of the dream."""
        line = self.line
        real = line.real[number].picture if number < len(line.real) else None
        return real, self.drawn(line.dream[number]) if number < len(line.dream) else None

    def drawn(self, row: Dreamt) -> bytes | None:
        """Return the picture of a dreamt row, drawn when it is first asked for."""
        if row.picture is None:
            row.picture = self.pictures.dream(row.said)
        return row.picture

    # ------------------------------------------------------------------ checks

    def _mind(self) -> Mind:
        assert self.mind is not None, "the agent has no world model"
        return self.mind

    def _row(self, number: Any, rows: Sequence[Any]) -> int:
        return self._count(number, 0, len(rows) - 1)

    @staticmethod
    def _count(number: Any, least: int, most: int) -> int:
        if type(number) is not int or not least <= number <= most:
            raise DataError(f"{brief(number)}: expected a whole number from {least} to {most}.")
        return number

    def _flat(self, action: Sequence[float]) -> Tensor:
        """Return an action of the page ``[A]`` as rows hold it, ``[1, A]``: one class of each choice, or in [-1, 1]."""
        flat = torch.tensor(action, dtype=torch.float32)[None].clamp(-1, 1)
        for _, cut in self.agent.action_spec.choices():
            best = flat[:, cut].argmax(-1)
            flat[:, cut] = torch.nn.functional.one_hot(best, cut.stop - cut.start).float()
        return flat

    def _numbers(self) -> list[str]:
        return [key for key, part in self.agent.obs_spec.items() if part.kind == "vector"]

    def _single(self, said: Said) -> list[Said]:
        """Split what is said of the rows of one episode ``[1, T, ...]`` into rows."""
        return [{name: values[0, t] for name, values in said.items()} for t in range(len(said["reward"][0]))]
