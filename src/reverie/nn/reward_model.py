"""Rewards that a person teaches: by preferences between clips, or by examples of success.

Rewards are computed when batches are sampled. Stored rows keep the environment's, so that a new fit rewrites nothing.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from reverie.core.columns import row_columns
from reverie.core.errors import DataError, count_noun
from reverie.core.specs import ActionSpec, ColumnSpec, ObsSpec
from reverie.core.statistics import Share
from reverie.core.types import Batch, Obs
from reverie.nn.network import Network, NetworkConfig
from reverie.nn.normalization import ObsNormalizer, Running
from reverie.objectives.td import obs_before

MEMBERS, UNITS, BATCH, UPDATES, LEARNING_RATE = 5, (64, 64), 64, 600, 1e-3
"""Networks, units of their hidden layers, answers in a batch, updates of each network, learning rate of Adam."""
MIN_ANSWERS: dict[str, int] = {"preferences": 20, "success": 20, "failure": 10}
"""Fewest answers to learn from. Each is held out once."""
MIN_PRECISION = 0.98
"""Smallest fraction of successes among held-out rows above the threshold."""

MIN_ABOVE = 10
"""Fewest held-out rows above the threshold: with fewer, chance reaches that precision."""

NOISE = 0.1
"""Probability of a random answer, which the paper assumes."""
ScoreFn = Callable[[nn.Module, Tensor], Tensor]
"""Scores ``[m]`` of the answers with these numbers ``[m]``, by one of the networks."""


def preference_loss(difference: Tensor, answer: Tensor, noise: float = NOISE) -> Tensor:
    """Return the cross-entropy of the answers about B pairs of clips, a scalar.

    P = (1 - noise) sigmoid(R_1 - R_2) + noise / 2, loss = -E[y ln P + (1 - y) ln(1 - P)]: Christiano et al., "Deep
    reinforcement learning from human preferences", NeurIPS 2017, arXiv:1706.03741, equation 1 and section 2.2.3.

    Args:
        difference: R_1 - R_2 ``[B]``, the sum of the predicted rewards of the first clip less that of the second.
        answer: y ``[B]``, 1 for the first clip, 0 for the second, 1/2 for a tie.
        noise: probability that a person answers at random.
    """
    prefers_first, prefers_second = (  # 1 - sigmoid(d) is sigmoid(-d)
        (1 - noise) * torch.sigmoid(sign * difference) + noise / 2 for sign in (1, -1)
    )
    return -(answer * prefers_first.log() + (1 - answer) * prefers_second.log()).mean()


class TooFewError(DataError):
    """There are too few answers for a fit."""


class ImpreciseError(DataError):
    """The networks are fitted, but no threshold is precise enough."""


class RewardModel(nn.Module, ABC):
    """An ensemble of K networks. Each is fitted without every K-th answer, and measured by these held-out answers."""

    values: ClassVar[dict[str, float]]
    """The answers of a person, and their values."""
    has_actions: ClassVar[bool]
    """Whether the networks also read the action."""
    report: str = ""
    """How well held-out answers are predicted."""
    zero: str = "mean"
    """Which reward of the clips is 0, if answers do not tell."""
    updates: int = UPDATES
    """Updates of each network."""
    min_answers: Mapping[str, int] = MIN_ANSWERS
    """Fewest answers for a fit, by their names."""

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
        super().__init__()
        self.columns: dict[str, ColumnSpec] = row_columns(obs_spec, action_spec, {})
        """The columns of rows."""
        settings, width = NetworkConfig(units=UNITS), action_spec.width if self.has_actions else 0
        networks = [Network(obs_spec, None, settings, extra_inputs=width) for _ in range(MEMBERS)]
        self.members: nn.ModuleList = nn.ModuleList(networks)
        has_vectors = any(part.kind == "vector" for part in obs_spec.values())
        self.normalizer: ObsNormalizer | None = ObsNormalizer(obs_spec, Running()) if has_vectors else None

    @property
    def device(self) -> torch.device:
        """Where the networks are."""
        return next(self.parameters()).device

    @abstractmethod
    def fit(self, clips: Batch, values: Tensor, is_chosen: Tensor) -> None:
        """Fit to the ``values`` ``[n]`` of answers about n ``clips``, or n pairs; set ``report``. DataError: too few.

        ``clips`` are ``[n, T]``; of pairs, ``[2 n, T]``, all first clips before all second ones. ``is_chosen`` ``[n]``:
        whether a question was chosen, so that its answer was hard to predict.
        """

    @abstractmethod
    def measure_doubt(self, clips: Batch) -> Tensor:
        """Return how little the networks know about the answers on n ``clips`` or pairs as of ``fit``, ``[n]``."""

    @abstractmethod
    def relabel(self, batch: Batch) -> Batch:
        """Return ``batch`` ``[B, T]`` with the learned rewards of its T - 1 transitions."""

    def forward(self, obs: Obs, action: Tensor, members: Iterable[nn.Module] | None = None) -> Tensor:
        """Return the outputs ``[K, ...]`` of ``members``, by default all, for rows ``[...]``."""
        obs = obs if self.normalizer is None else self.normalizer(obs)
        inputs = [action] if self.has_actions else []
        return torch.stack([member(obs, *inputs) for member in members or self.members])

    def _fit_members(
        self, groups: Sequence[Tensor], values: Tensor, score: ScoreFn, compute_loss: Callable[[Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Fit all networks to the ``values`` ``[n]`` of answers; return the scores ``[n]`` of held-out answers.

        ``groups``: numbers of the answers, of which a batch has as many of each group.
        """
        heldout_scores = torch.empty(len(values))
        for k, member in enumerate(self.members):
            optim = torch.optim.Adam(member.parameters(), LEARNING_RATE)
            learned = [group[torch.arange(len(group)) % MEMBERS != k] for group in groups]
            for _ in range(self.updates):
                size = BATCH // len(groups)
                chosen = torch.cat([group[torch.randint(len(group), (size,))] for group in learned])
                optim.zero_grad()
                loss = compute_loss(score(member, chosen), values[chosen])
                loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
                optim.step()
            heldout = torch.cat([group[k::MEMBERS] for group in groups])
            with torch.no_grad():
                heldout_scores[heldout] = score(member, heldout).cpu()
        return heldout_scores

    def _check_number(self, name: str, number: int) -> None:
        """Raise DataError if there are too few answers ``name``."""
        if number < (expected := self.min_answers[name]):
            advice = f"Give {expected - number} more."
            raise TooFewError(f"{name}: {count_noun(number, 'answer')}, expected {expected}. {advice}")

    def _fit_normalizer(self, obs: Obs) -> None:
        if self.normalizer is not None:
            self.normalizer.fit({key: obs[key].flatten(0, 1) for key in self.normalizer.keys})


class PreferenceReward(RewardModel):
    """The reward of an action by preferences between clips, see :func:`preference_loss`.

    It is the mean of networks with outputs between -1 and 1, standardized over the clips: Christiano et al. 2017,
    section 2.2.3, whose ensemble is fitted to bootstrap samples instead. Comparisons of equally long clips do not tell
    which reward is worth as much as the end of an episode: the ``zero`` is the ``mean`` reward of the clips, the
    ``lowest`` or the ``highest``.
    """

    values: ClassVar[dict[str, float]] = {"first": 1.0, "second": 0.0, "tie": 0.5}
    has_actions: ClassVar[bool] = True
    mean: Tensor
    std: Tensor
    lowest: Tensor
    highest: Tensor

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
        super().__init__(obs_spec, action_spec)
        for name in ("mean", "lowest", "highest"):
            self.register_buffer(name, torch.zeros(()))
        self.register_buffer("std", torch.ones(()))

    def fit(self, clips: Batch, values: Tensor, is_chosen: Tensor) -> None:
        self._check_number("preferences", n := len(values))
        obs, action = obs_before(clips.obs), clips.action[:, :-1]
        self._fit_normalizer(obs)

        def compare(member: nn.Module, chosen: Tensor) -> Tensor:
            """Return the sum of rewards of the first clip of each pair ``[m]``, less that of the second."""
            both = torch.cat([chosen, n + chosen])
            rewards = self({key: x[both] for key, x in obs.items()}, action[both], [member])[0].tanh()  # [2 m, T-1]
            sums: Tensor = rewards.sum(-1)
            return sums[: len(chosen)] - sums[len(chosen) :]

        differences = self._fit_members([torch.arange(n)], values, compare, preference_loss)
        with torch.no_grad():
            outputs = self(obs, action).tanh().mean(0)  # [2 n, T-1]
            self.std, self.mean = torch.std_mean(outputs)
            self.lowest, self.highest = outputs.aminmax()
        values = values.cpu()
        is_right = ((differences > 0) == (values > 0.5))[(values != 0.5) & ~is_chosen]
        if not len(is_right):
            raise TooFewError("preferences: all answers are ties. Prefer some clips.")
        share = Share(int(is_right.sum()), len(is_right))
        self.report: str = (
            f"{count_noun(n, 'preference')}; of those about random pairs, networks that were not fitted to them "
            f"predict {share}"
        )

    def measure_doubt(self, clips: Batch) -> Tensor:
        """Return the variance, over the networks, of the probability that the first clip of a pair is better."""
        with torch.no_grad():
            sums = self(obs_before(clips.obs), clips.action[:, :-1]).tanh().sum(-1)  # [K, 2 n]
        first, second = sums.chunk(2, 1)
        doubt: Tensor = (first - second).sigmoid().var(0)
        return doubt

    def relabel(self, batch: Batch) -> Batch:
        with torch.no_grad():
            outputs = self(obs_before(batch.obs), batch.action[:, :-1]).tanh().mean(0)  # [B, T-1]
        reward = F.pad((outputs - getattr(self, self.zero)) / self.std, (1, 0))  # row t + 1 has that of action t
        return replace(batch, reward=reward.masked_fill(batch.is_first, 0.0))


class SuccessReward(RewardModel):
    """A reward of 1, and a terminal state, where the observation shows success; else 0.

    L = -1/2 E_success[ln p(s)] - 1/2 E_failure[ln(1 - p(s))], as in HIL-SERL's train_reward_classifier.py (Luo et al.
    2024, arXiv:2410.21845), here without dropout and crops. p is the mean of the networks.
    """

    values: ClassVar[dict[str, float]] = {"success": 1.0, "failure": 0.0}
    has_actions: ClassVar[bool] = False
    threshold: Tensor

    def __init__(self, obs_spec: ObsSpec, action_spec: ActionSpec) -> None:
        super().__init__(obs_spec, action_spec)
        self.register_buffer("threshold", torch.ones(()))

    def fit(self, clips: Batch, values: Tensor, is_chosen: Tensor) -> None:
        is_success = values.cpu() == 1
        groups = [torch.nonzero(is_success == kind).flatten() for kind in (True, False)]
        for name, group in zip(self.values, groups, strict=True):
            self._check_number(name, len(group))
        self._fit_normalizer(clips.obs)

        def compute_logits(member: nn.Module, chosen: Tensor) -> Tensor:
            logits: Tensor = self(
                {key: x[chosen, 0] for key, x in clips.obs.items()}, clips.action[chosen, 0], [member]
            )[0]
            return logits

        logits = self._fit_members(groups, values, compute_logits, F.binary_cross_entropy_with_logits)
        threshold, share = _choose_threshold(logits.sigmoid(), is_success)
        self.threshold.fill_(threshold)
        recall = Share(share.right, len(groups[0]))
        self.report: str = f"success, of held-out rows above {threshold:.3g}, {share}; {recall} of all successes"

    def measure_doubt(self, clips: Batch) -> Tensor:
        """Return how near the probability of success is to 1/2."""
        return -(self.predict(clips.obs).mean(0)[:, 0] - 0.5).abs()

    def predict(self, obs: Obs) -> Tensor:
        """Return the probability of success of each network, ``[K, ...]``."""
        with torch.no_grad():
            probs: Tensor = self(obs, torch.empty(0)).sigmoid()
        return probs

    def relabel(self, batch: Batch) -> Batch:
        """Return the batch with successes: the second of two rows above the threshold, or a terminal row above it."""
        is_above = self.predict(batch.obs).mean(0) >= self.threshold  # [B, T]
        follows = F.pad(is_above[:, :-1], (1, 0)) & ~batch.is_first
        is_success = is_above & (follows | batch.is_terminal)
        ends = {name: getattr(batch, name) | is_success for name in ("is_last", "is_terminal")}
        return replace(batch, reward=is_success.float(), **ends)


def _choose_threshold(probs: Tensor, is_success: Tensor) -> tuple[float, Share]:
    """Return the smallest threshold of ``probs`` ``[n]`` whose precision is ``MIN_PRECISION``, and that precision.

    ImpreciseError: there is none.
    """
    probs, order = probs.sort(descending=True)
    right, total = is_success[order].cumsum(0), torch.arange(1, len(probs) + 1)
    is_new = F.pad(probs[1:] < probs[:-1], (0, 1), value=True)  # equal ones are above together
    is_enough = is_new & (total >= MIN_ABOVE)
    precise = torch.nonzero((right >= MIN_PRECISION * total) & is_enough & is_success[order]).flatten()
    if not len(precise):
        best = float((right / total)[is_enough].max())
        raise ImpreciseError(
            f"at most {best:.0%} of the held-out rows that look like successes are: expected {MIN_PRECISION:.0%}. "
            "Label more rows, above all failures that look like successes."
        )
    number = int(precise[-1])
    return float(probs[number]), Share(int(right[number]), number + 1)


REWARD_MODELS: dict[str, type[RewardModel]] = {"preferences": PreferenceReward, "success": SuccessReward}
"""Learned rewards by the kind of labels."""
