"""Value targets and advantages from sequences of rows.

All functions read rows ``[B, T]`` (``core/types.py``): ``reward[t]`` came with row t, a terminal row has value 0, and
every recursion stops at the last row of an episode. After a time limit (truncation), targets bootstrap from the last
row: it is not terminal. ``value`` comes from the bootstrapping network. Results are for rows ``0 ... T-2``, each
estimated from the rows after it inside the window; the last row of the window is only bootstrapped from.

Windows may cross episodes. The row after the last row of an episode belongs to another episode, so there is no target
for the last row: its target is its own value and its advantage is 0. Mask losses with :func:`transition_mask`.
(Only :func:`lambda_return` leaves there what its recursion yields.)

Targets have the gradient of their inputs. To avoid it, detach ``value`` and the log-probabilities, or call these
functions under ``torch.no_grad()``.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from reverie.core.config import Choice
from reverie.core.kernel_dispatch import accelerated
from reverie.core.tree import check_tensor_shapes

MIN_SCAN_ROWS = 32
"""Number of rows from which a parallel scan on a GPU takes fewer kernels than a loop."""


class Estimate(NamedTuple):
    """The advantage of each row's action and the value target of the row."""

    advantage: Tensor  # [B, T-1]
    target: Tensor  # [B, T-1]


class Bootstrap(NamedTuple):
    """A return that bootstraps from a single row: ``reward + discount * value[row]``."""

    reward: Tensor  # [B, T-1], the discounted sum
    discount: Tensor  # [B, T-1], gamma^m; 0 where the bootstrapping row is terminal
    row: Tensor  # [B, T-1] int64, t + m


def transition_mask(last: Tensor) -> Tensor:
    """Return the mask of rows 0 ... T-2 that another row of their episode follows: bool ``[B, T - 1]``."""
    return ~last[:, :-1].bool()


def lambda_return(reward: Tensor, cont: Tensor, value: Tensor, lam: float | Tensor, dim: int = 1) -> Tensor:
    """Return the lambda-return of every row but the last, the imagined returns of DreamerV3 (2025), equation 5.

    R_t = r_{t+1} + c_{t+1} [(1 - lambda_{t+1}) v_{t+1} + lambda_{t+1} R_{t+1}],  R_{T-1} = v_{T-1}.

    Args:
        reward: ``[..., T, ...]`` with time along ``dim``, the reward that came with each row.
        cont: same shape; c, the discount times the probability to continue. A terminal row has 0.
        value: same shape; v, the value of each row.
        lam: lambda, a number; or one for each row, 0 at the last rows of episodes.
        dim: the axis of time: 1 in windows ``[B, T]``, 0 in imagined trajectories ``[H + 1, ...]``.

    Returns:
        R_0 ... R_{T-2}, one row less.
    """
    check_tensor_shapes(reward.shape, cont=cont, value=value)
    lam = lam * torch.ones_like(reward)  # so that 1 - lam is rounded in the dtype of the rewards
    r, c, v, lam = (x.narrow(dim, 1, x.shape[dim] - 1) for x in (reward, cont, value, lam))
    return accumulate(r + c * (1 - lam) * v, c * lam, value.select(dim, -1), dim)


def lambda_return_of_states(reward: Tensor, discount: Tensor, value: Tensor, lam: float, dim: int = 1) -> Tensor:
    """Return the lambda-return of every state but the last, where a value includes its own state's reward.

    V_t = r_t + gamma_t [(1 - lambda) v_{t+1} + lambda V_{t+1}],  V_{T-1} = v_{T-1}: DreamerV2 (Hafner et al. 2021),
    equation 4, and the code of DreamerV1 (2020), whose equation 6 is a finite sum of the same returns.

    Args:
        reward: ``[..., T, ...]`` with time along ``dim``, the reward of each state.
        discount: same shape; gamma times the probability that the episode continues after the state.
        value: same shape; v of each state.
        lam: lambda.
        dim: the axis of time.

    Returns:
        V_0 ... V_{T-2}, one row less.
    """
    check_tensor_shapes(reward.shape, discount=discount, value=value)
    count = reward.shape[dim] - 1
    r, c, next_value = reward.narrow(dim, 0, count), discount.narrow(dim, 0, count), value.narrow(dim, 1, count)
    return accumulate(r + c * (1 - lam) * next_value, c * lam, value.select(dim, -1), dim)


class ImaginedEstimate(NamedTuple):
    """Targets of critic and policy from the imagined states 0 ... H, with K actions that count."""

    target: Tensor  # [H, ...], of the values of states 0 ... H - 1
    outcome: Tensor  # [K, ...], the return after the actions at states 0 ... K - 1
    advantage: Tensor  # [K, ...], of these actions
    weight: Tensor  # [H + 1, ...], the probability that a state is reached; without gradient


@dataclass(frozen=True)
class ImaginedReturn(Choice, ABC):
    """The return of imagined states, from rewards, continuations and values ``[H + 1, ...]``."""

    own_reward: ClassVar[bool] = True
    """Whether a value includes its own state's reward. Then the learned continuation of a state includes gamma, and the
    first state's is the recorded one."""

    def num_policies(self, horizon: int) -> int:
        """Return K, the number of states within ``horizon`` H whose actions count."""
        return horizon - 1 if self.own_reward else horizon

    @abstractmethod
    def __call__(self, reward: Tensor, cont: Tensor, value: Tensor, discount: float, lam: float) -> ImaginedEstimate:
        """Return targets, advantages and weights; ``discount`` is gamma, ``lam`` lambda."""


@dataclass(frozen=True)
class StateReward(ImaginedReturn):
    """:func:`lambda_return_of_states`, of DreamerV2's code.

    The action at t leads to the return of state t + 1, while its baseline is the value of state t. A terminal first
    state still counts.
    """

    def __call__(self, reward: Tensor, cont: Tensor, value: Tensor, discount: float, lam: float) -> ImaginedEstimate:
        """See :class:`ImaginedReturn`."""
        target = lambda_return_of_states(reward, cont, value, lam, dim=0)  # [H, ...]
        weight = torch.cat([torch.ones_like(cont[:1]), cont[:-1]]).cumprod(0).detach()  # [H+1, ...]
        return ImaginedEstimate(target, target[1:], target[1:] - value[:-2], weight)


@dataclass(frozen=True)
class NextReward(ImaginedReturn):
    """:func:`gae` from the rewards that follow a state: PyDreamer. A terminal state has no weight, even the first."""

    own_reward: ClassVar[bool] = False

    def __call__(self, reward: Tensor, cont: Tensor, value: Tensor, discount: float, lam: float) -> ImaginedEstimate:
        """See :class:`ImaginedReturn`."""
        rows = {"reward": reward, "terminal": 1 - cont, "last": torch.zeros_like(cont), "value": value}
        flat = {name: x.flatten(1).T for name, x in rows.items()}  # [M, H+1]
        advantage, target = (x.T.view(-1, *reward.shape[1:]) for x in gae(**flat, discount=discount, lam=lam))
        return ImaginedEstimate(target, target, advantage, cont.cumprod(0).detach())


@accelerated
def td0(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
    """Return the one-step target of TD(0): Sutton & Barto (2018), equation 6.2.

    G_t = r_{t+1} + gamma (1 - terminal_{t+1}) v_{t+1}.

    Args:
        reward: ``[B, T]``, the reward that came with each row.
        terminal: ``[B, T]`` bool, or float in [0, 1].
        last: ``[B, T]`` bool, or 0 and 1.
        value: ``[B, T]`` v, in units of discounted reward.
        discount: gamma.

    Returns:
        ``[B, T - 1]``.
    """
    if not reward.shape == terminal.shape == last.shape == value.shape:
        check_tensor_shapes(reward.shape, terminal=terminal, last=last, value=value)
    target = reward[:, 1:] + (1 - terminal.to(reward.dtype))[:, 1:] * discount * value[:, 1:]  # [B, T-1]
    return torch.where(~last[:, :-1].bool(), target, value[:, :-1])


def td1(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float) -> Tensor:
    """Return the target of TD(1): all rewards up to the end of the episode or window, then the value there.

    G_t = r_{t+1} + gamma r_{t+2} + ... + gamma^(K-t-1) r_K + gamma^(K-t) (1 - terminal_K) v_K, where K is the first
    row after t that is the last of its episode or of the window. Sutton & Barto (2018), section 12.1: the
    lambda-return with lambda = 1.

    Arguments and result are as in :func:`td0`.
    """
    return td_lambda(reward=reward, terminal=terminal, last=last, value=value, discount=discount, lam=1.0)


def td_lambda(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float, lam: float) -> Tensor:
    """Return the target of TD(lambda), a mean of all n-step returns: Sutton & Barto (2018), equation 12.3.

    G_t = (1 - lambda) sum_{n=1}^{K-t-1} lambda^(n-1) G_t^(n) + lambda^(K-t-1) G_t^(K-t), where G^(n) is the target of
    :func:`n_step` and K is the first row after t that is the last of its episode or of the window. The recursion of
    :func:`lambda_return` computes it.

    Arguments and result are as in :func:`td0`.
    """
    check_tensor_shapes(reward.shape, terminal=terminal, last=last, value=value)
    cont, keep = (1 - terminal.to(reward.dtype)) * discount, (1 - last.to(reward.dtype)) * lam
    return torch.where(transition_mask(last), lambda_return(reward, cont, value, keep), value[:, :-1])


def n_step(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float, n: int) -> Tensor:
    """Return the n-step target: Sutton & Barto (2018), equation 7.1.

    G_t^(n) = r_{t+1} + ... + gamma^(m-1) r_{t+m} + gamma^m (1 - terminal_{t+m}) v_{t+m}, where m is n, or less where
    the episode or the window ends earlier.

    Arguments and result are as in :func:`td0`.
    """
    check_tensor_shapes(reward.shape, value=value)
    view = n_step_bootstrap(reward=reward, terminal=terminal, last=last, discount=discount, n=n)
    return view.reward + view.discount * value.gather(1, view.row)


def n_step_bootstrap(*, reward: Tensor, terminal: Tensor, last: Tensor, discount: float, n: int) -> Bootstrap:
    """Return the parts of :func:`n_step` without values: the sum of rewards, gamma^m (1 - terminal), the row t + m.

    For learners that bootstrap from more than one number (a distribution, the best of several actions), or that do not
    evaluate every row of a window.

    Arguments are as in :func:`td0`. The last row of an episode bootstraps from itself: ``0 + 1 * value[t]``.
    """
    check_tensor_shapes(reward.shape, terminal=terminal, last=last)
    index = torch.arange(reward.shape[1], device=reward.device)  # [T]
    stays = last.bool() | (index == len(index) - 1)  # [B, T], where the sum ends: further steps change nothing
    step = Bootstrap(
        reward.roll(-1, 1).masked_fill(stays, 0),  # [B, T]
        (discount * (1 - terminal.to(reward.dtype))).roll(-1, 1).masked_fill(stays, 1),  # [B, T]
        index + ~stays,  # [B, T]
    )
    jump = _repeat(step, max(1, min(n, len(index) - 1)))
    return Bootstrap(*(x[:, :-1] for x in jump))


def gae(*, reward: Tensor, terminal: Tensor, last: Tensor, value: Tensor, discount: float, lam: float) -> Estimate:
    """Return advantage and target by generalized advantage estimation: Schulman et al. (2016), equation 16.

    delta_t = r_{t+1} + gamma (1 - terminal_{t+1}) v_{t+1} - v_t,
    A_t = delta_t + gamma lambda (1 - terminal_{t+1}) (1 - last_{t+1}) A_{t+1}. The target is A_t + v_t, which equals
    :func:`td_lambda`.

    Arguments are as in :func:`td0`; advantage and target are ``[B, T - 1]`` each.
    """
    check_tensor_shapes(reward.shape, terminal=terminal, last=last, value=value)
    ended, live = last[:, :-1].bool(), _live(terminal, reward, discount)  # [B, T-1]
    delta = (reward[:, 1:] + live * value[:, 1:] - value[:, :-1]).masked_fill(ended, 0)  # [B, T-1]
    # The last row of an episode has no error and no carry, so its advantage, which the row before accumulates, is 0.
    carry = (lam * live).masked_fill(ended, 0)  # [B, T-1]
    advantage = accumulate(delta, carry, torch.zeros_like(delta[:, 0]))  # [B, T-1]
    return Estimate(advantage, advantage + value[:, :-1])


def vtrace(
    *,
    reward: Tensor,
    terminal: Tensor,
    last: Tensor,
    value: Tensor,
    log_pi: Tensor,
    log_mu: Tensor,
    discount: float,
    lam: float = 1.0,
    rho_max: float = 1.0,
    c_max: float = 1.0,
) -> Estimate:
    """Return advantage and target of pi from actions of mu: V-trace, Espeholt et al. (2018), equation 1, remark 2.

    With rho_t = min(rho_max, pi / mu) and c_t = lambda min(c_max, pi / mu) of the action taken at row t (section 4.2),

    delta_t = rho_t (r_{t+1} + gamma (1 - terminal_{t+1}) v_{t+1} - v_t),
    G_t = v_t + delta_t + gamma (1 - terminal_{t+1}) (1 - last_{t+1}) c_t (G_{t+1} - v_{t+1}),
    A_t = rho_t (r_{t+1} + gamma (1 - terminal_{t+1}) G_{t+1} - v_t).

    At the last row of an episode and of the window, G = v.

    Args:
        reward: ``[B, T]``, as the next three and ``discount`` in :func:`td0`.
        terminal: ``[B, T]``.
        last: ``[B, T]``.
        value: ``[B, T]``.
        log_pi: ``[B, T]`` log-probability, in nats, of each row's action under the evaluated policy pi.
        log_mu: ``[B, T]`` the same under the behavior policy mu. Neither is read where no action was taken.
        discount: gamma.
        lam: lambda.
        rho_max: upper bound of the weight of an error; it determines what the values converge to.
        c_max: upper bound of the weight of later errors, at most ``rho_max``; it determines the speed of convergence.

    Returns:
        Advantage and target, ``[B, T - 1]`` each.
    """
    check_tensor_shapes(reward.shape, terminal=terminal, last=last, value=value, log_pi=log_pi, log_mu=log_mu)
    ended, live = last[:, :-1].bool(), _live(terminal, reward, discount)  # [B, T-1]
    # Masked before exp, since non-finite numbers in rows without an action would make gradients NaN if masked after it.
    ratio = log_pi[:, :-1].masked_fill(ended, 0).sub(log_mu[:, :-1].masked_fill(ended, 0)).exp()  # [B, T-1]
    rho = ratio.clamp(max=rho_max).masked_fill(ended, 0)  # [B, T-1]
    carry = (live * lam * ratio.clamp(max=c_max)).masked_fill(ended, 0)  # [B, T-1]
    delta = rho * (reward[:, 1:] + live * value[:, 1:] - value[:, :-1])  # [B, T-1]
    target = value[:, :-1] + accumulate(delta, carry, torch.zeros_like(delta[:, 0]))  # [B, T-1]
    following = torch.cat([target[:, 1:], value[:, -1:]], 1)  # [B, T-1]
    return Estimate(rho * (reward[:, 1:] + live * following - value[:, :-1]), target)


def _live(terminal: Tensor, reward: Tensor, discount: float) -> Tensor:
    """Return the discount of the next value, gamma (1 - terminal_{t+1}) ``[B, T - 1]``."""
    return (1 - terminal.to(reward.dtype))[:, 1:] * discount


def accumulate(step: Tensor, carry: Tensor, final: Tensor, dim: int = 1) -> Tensor:
    """Return x_t = step_t + carry_t x_{t+1}, backwards from ``final``, with time along ``dim``.

    On CPUs it is a loop. On GPUs, where each step would be a kernel, long sequences take a parallel scan.
    """
    if step.device.type != "cpu" and step.shape[dim] > MIN_SCAN_ROWS:
        return _scan(step.movedim(dim, 1), carry.movedim(dim, 1), final).movedim(1, dim)
    x, sums = final, []
    for s, c in zip(reversed(step.unbind(dim)), reversed(carry.unbind(dim)), strict=True):
        x = torch.addcmul(s, c, x)
        sums.append(x)
    return torch.stack(sums[::-1], dim)


def _scan(step: Tensor, carry: Tensor, final: Tensor) -> Tensor:
    """Compute :func:`accumulate` in log2(T) rounds: Hillis & Steele (1986).

    After each round, row t stands for the next n rows: x_t = sum over them + carry_t * x_{t+n}. n doubles.
    """
    x = torch.cat([step, final.unsqueeze(1)], 1)  # [B, T]
    carry, n = torch.cat([carry, torch.zeros_like(carry[:, :1])], 1), 1  # [B, T]: the last row carries nothing
    while n < x.shape[1]:
        x = torch.cat([torch.addcmul(x[:, :-n], carry[:, :-n], x[:, n:]), x[:, -n:]], 1)
        carry = torch.cat([carry[:, :-n] * carry[:, n:], carry[:, -n:]], 1)
        n *= 2
    return x[:, :-1]


def _repeat(step: Bootstrap, n: int) -> Bootstrap:
    """Return ``step`` taken n times, ``[B, T]``, by repeated halving of n."""
    if n == 1:
        return step
    half = _repeat(step, n // 2)
    even = _compose(half, half)
    return _compose(even, step) if n % 2 else even


def _compose(first: Bootstrap, second: Bootstrap) -> Bootstrap:
    """Return the steps ``first``, then ``second`` from where it arrived, as one, ``[B, T]``."""
    reward, discount, row = (x.gather(1, first.row) for x in second)
    return Bootstrap(first.reward + first.discount * reward, first.discount * discount, row)


class NextRow(NamedTuple):
    """The row after the given ones: whether it is first, its return-to-go, and the reward that came with it."""

    first: bool = True
    return_to_go: float = -math.inf
    reward: float = 0.0


def returns_to_go(
    *,
    reward: np.ndarray,
    first: np.ndarray,
    last: np.ndarray,
    terminal: np.ndarray,
    discount: float,
    next_row: NextRow = NextRow(),  # noqa: B008 - it cannot be changed
) -> np.ndarray:
    """Return the return-to-go of each row of a stream, float32 ``[n]``: G_t = r_{t+1} + gamma G_{t+1}, 0 if terminal.

    It is -inf where it is unknown: in episodes that were cut off by a time limit, by a failure or by the end of the
    stream.

    Args:
        reward: ``[n]``, the reward that came with each row.
        first: ``[n]`` bool; so are ``last`` and ``terminal``.
        last: whether the row is its episode's last.
        terminal: whether the environment ended the episode there, so that its return-to-go is 0.
        discount: gamma, in [0, 1].
        next_row: the row after the last one; without it the stream ends.
    """
    ends = last | np.append(first[1:], next_row.first)
    rows = zip(reward[::-1].tolist(), ends[::-1].tolist(), terminal[::-1].tolist(), strict=True)
    returns, return_to_go, next_reward = [], next_row.return_to_go, next_row.reward
    for earned, end, terminated in rows:
        if end:
            return_to_go = 0.0 if terminated else -math.inf
        elif return_to_go > -math.inf:
            return_to_go = next_reward + discount * return_to_go
        returns.append(return_to_go)
        next_reward = earned
    return np.array(returns[::-1], np.float32)
