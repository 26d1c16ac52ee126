"""Returns, advantages and projections, in numpy. Sessions in, arrays of the same ticks out.

All functions take columns as sessions hold them (p2prl/core/schema.py): `reward` and `flags` `[N, T]`, and values of
observations `[N, T+1]`, where row t+1 is what the environment answered to tick t. So of a truncated tick row t+1 is the
*final* observation, from which it bootstraps like any other; of a terminated tick nothing is bootstrapped. A RESET tick
is no transition: it gets zeros, and nothing flows through it. A session's last tick bootstraps from row T.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from p2prl.core.schema import RESET, TERMINATED, TRUNCATED
from p2prl.learn.contracts import Array
from p2prl_agents.ops import Tensor

#: What is predicted without error is still drawn now and then.
_PRIORITY_EPS = 1e-3


def real(flags: Array) -> Array:
    """bool `[N, T]`: the ticks that are transitions, not RESET."""
    mask: Array = (flags & RESET) == 0
    return mask


def discounts(flags: Array, gamma: float) -> Array:
    """float32 `[N, T]`: gamma, 0 where the episode terminated: what the value of row t+1 is worth at tick t."""
    return np.where(flags & TERMINATED, np.float32(0), np.float32(gamma))


def _flows(flags: Array) -> Array:
    """bool `[N, T]`: True where tick t+1 goes on with the episode of tick t."""
    flows: Array = (flags & (TERMINATED | TRUNCATED | RESET)) == 0
    flows[:, :-1] &= real(flags)[:, 1:]  # an environment that failed ends its episode without a flag
    return flows


def gae(reward: Array, flags: Array, values: Array, gamma: float, decay: float) -> tuple[Array, Array]:
    """Generalised advantage estimates (Schulman et al. 2016, arXiv:1506.02438, equation 16).

    Args:
        reward, flags: `[N, T]`. values: `[N, T+1]`.
        decay: the paper's lambda; 0 for one-step advantages, 1 for whole returns.

    Returns:
        advantage: float32 `[N, T]`; 0 at RESET ticks.
        target: float32 `[N, T]`, advantage + value: what the critic is fitted to.
    """
    mask, carry = real(flags), np.float32(gamma * decay) * _flows(flags)
    delta = np.where(mask, reward + discounts(flags, gamma) * values[:, 1:] - values[:, :-1], 0.0)
    advantage = _backwards(delta, carry)
    return advantage, (advantage + values[:, :-1]).astype(np.float32)


def vtrace(
    log_ratio: Array,
    reward: Array,
    flags: Array,
    values: Array,
    gamma: float,
    *,
    decay: float = 1.0,
    clip_rho: float = 1.0,
    clip_c: float = 1.0,
) -> tuple[Array, Array]:
    """V-trace targets and policy-gradient advantages (IMPALA, Espeholt et al. 2018, arXiv:1802.01561, section 4).

    Args:
        log_ratio: `[N, T]`, log of pi(a|x) / mu(a|x): the learner's policy over the one that played.
        reward, flags: `[N, T]`. values: `[N, T+1]`, the learner's.
        decay: multiplies c (the paper's remark 2: lambda).
        clip_rho, clip_c: the paper's rho-bar and c-bar.

    Returns:
        target: float32 `[N, T]`, v_s of equation 1; the value itself at RESET ticks.
        advantage: float32 `[N, T]`, rho_s (r_s + gamma v_(s+1) - V(x_s)) (section 4.2); 0 at RESET ticks.
    """
    ratio = np.exp(np.minimum(log_ratio, 50.0))  # far above any bar
    mask, flows, discount = real(flags), _flows(flags), discounts(flags, gamma)
    rho = np.minimum(clip_rho, ratio)
    c = np.minimum(clip_c, ratio) * np.float32(decay * gamma) * flows
    now, following = values[:, :-1], values[:, 1:]
    delta = np.where(mask, rho * (reward + discount * following - now), 0.0)
    target = now + _backwards(delta, c)
    # Where the episode went on, the next tick's own target is better informed than its value.
    ahead = following.astype(np.float32, copy=True)
    ahead[:, :-1] = np.where(flows[:, :-1], target[:, 1:], following[:, :-1])
    advantage = np.where(mask, rho * (reward + discount * ahead - now), 0.0)
    return target.astype(np.float32), advantage.astype(np.float32)


def _backwards(delta: Array, carry: Array) -> Array:
    """float32 `[N, T]`: x_t = delta_t + carry_t x_(t+1), with x_T = 0."""
    out = np.empty(delta.shape[::-1], np.float32)  # time first: each step is one row
    last = np.zeros(len(delta), np.float32)
    rows, carries = np.ascontiguousarray(delta.T, np.float32), np.ascontiguousarray(carry.T, np.float32)
    for tick in range(len(rows) - 1, -1, -1):
        last = out[tick] = rows[tick] + carries[tick] * last
    return out.T


@dataclass(frozen=True)
class NStep:
    """What n-step targets are made of: `target = partial + discount * value(obs[row])`, all `[N, T]`.

    Attributes:
        partial: float32, the discounted sum of the rewards.
        discount: float32, gamma to the number of ticks summed; 0 on termination.
        row: int64, which of the session's T+1 observations to bootstrap from.
    """

    partial: Array
    discount: Array
    row: Array


def n_step(reward: Array, flags: Array, gamma: float, steps: int) -> NStep:
    """Of each tick the rewards of up to `steps` ticks, as far as its episode and the session go.

    Truncation and the session's end bootstrap from the observation that followed (the *final* one of a truncated
    episode), termination from nothing. At RESET ticks the numbers mean nothing; mask them with `real`.

    Args:
        reward, flags: `[N, T]`. gamma: discount per tick.
    """
    rows, ticks = flags.shape
    partial = np.zeros((rows, ticks), np.float32)
    summed = np.zeros((rows, ticks), np.int64)
    going = np.ones((rows, ticks), bool)  # the sum that began at tick t has not ended yet
    flows = _flows(flags)
    for ahead in range(min(steps, ticks)):
        width = ticks - ahead
        going = going[:, :width]
        partial[:, :width] += going * (reward[:, ahead:] * np.float32(gamma**ahead))
        summed[:, :width] += going
        going = going & flows[:, ahead:]
    row = summed + np.arange(ticks)
    ended = np.take_along_axis(flags, row - 1, axis=1) & TERMINATED
    return NStep(partial, np.where(ended, np.float32(0), _powers(gamma, steps)[summed]), row)


def n_step_of_first(reward: Array, flags: Array, gamma: float, steps: int) -> NStep:
    """As `n_step`, of each session's first tick alone: `[N, 1]`, in a few operations on whole arrays."""
    width = min(steps, flags.shape[1])
    ends = flags[:, :width] & (TERMINATED | TRUNCATED | RESET)
    ends[:, :-1] |= flags[:, 1:width] & RESET  # as in `_flows`
    ends[:, -1] = 1
    last = (ends != 0).argmax(axis=1)
    partial = np.einsum("nt,nt->n", reward[:, :width], _sums(gamma, width)[last])
    ended = flags[np.arange(len(flags)), last] & TERMINATED
    discount = np.where(ended, np.float32(0), _powers(gamma, width)[last + 1])
    return NStep(partial[:, None], discount[:, None], last[:, None] + 1)


@lru_cache(maxsize=8)
def _powers(gamma: float, most: int) -> Array:
    """float32 `[most + 1]`: gamma to the number of ticks."""
    return np.array([gamma**count for count in range(most + 1)], np.float32)


@lru_cache(maxsize=8)
def _sums(gamma: float, most: int) -> Array:
    """float32 `[most, most]`: what each reward weighs in a sum; row t of a sum that ends with tick t."""
    return np.tril(np.broadcast_to(_powers(gamma, most)[:most], (most, most)))


def tightening_bounds(
    reward: Array, flags: Array, values: Array, chosen: Array, gamma: float
) -> tuple[Array, Array]:
    """Bounds on Q(s_t, a_t) by what came after it and before it in its episode, as far as the session has it.

    Source: optimality tightening, He et al. 2017, arXiv:1611.01606, section 4. For each k >= 1 (k = 0 is the one-step
    target), Q is at least L_(t,k), the rewards of k+1 ticks and then the best value; and at most U_(t,k), what is left
    of the Q of k+1 ticks before, after the rewards since. The session's length is the paper's K.

    Args:
        reward, flags: `[N, T]`.
        values: `[N, T+1]`, max over a of the target network's Q. chosen: `[N, T]`, its Q(s_t, a_t).
        gamma: discount per tick, above 0.

    Returns:
        lower, upper: float32 `[N, T]`; -inf and inf where there is no bound. At RESET ticks they mean nothing.
    """
    flows, worth = _flows(flags), discounts(flags, gamma)
    one_step = (reward + worth * values[:, 1:]).astype(np.float32)
    lower, upper = np.full_like(one_step, -np.inf), np.full_like(one_step, np.inf)
    best = one_step.copy()  # over all k >= 0; lower is the same without k = 0
    least = upper.copy()
    for tick in range(flags.shape[1] - 2, -1, -1):
        after = reward[:, tick] + gamma * best[:, tick + 1]
        lower[:, tick] = np.where(flows[:, tick], after, -np.inf)
        best[:, tick] = np.maximum(best[:, tick], lower[:, tick])
    for tick in range(1, flags.shape[1]):
        before, here = tick - 1, flows[:, tick - 1]
        upper[:, tick] = np.where(here, (least[:, before] - reward[:, before]) / gamma, np.inf)
        one = np.where(here, (chosen[:, before] - reward[:, before]) / gamma, np.inf)
        least[:, tick] = np.minimum(upper[:, tick], one)
    return lower, upper


def project(shares: Tensor, places: Tensor, support: Tensor) -> Tensor:
    """A categorical distribution moved onto evenly spaced atoms. Of numpy arrays or torch tensors.

    Source: C51, Bellemare et al. 2017, arXiv:1707.06887, equation 7: each share goes to the two atoms beside its place,
    more to the nearer one; what lies outside goes to the ends.

    Args:
        shares: `[..., Z]`, summing to 1. places: `[..., Z]`, the value at which each lies.
        support: `[Z]`, the atoms' values, rising.

    Returns:
        `[..., Z]`, summing to 1.
    """
    inside = places.clip(support[0], support[-1])
    distance = abs(inside[..., None, :] - support[:, None]) / (support[1] - support[0])
    return ((1 - distance).clip(0) * shares[..., None, :]).sum(-1)


def importance_weights(probability: Array, exponent: float) -> Array:
    """float32 `[N]`: weights that correct for prioritised sampling, the largest 1.

    Source: Schaul et al. 2016, arXiv:1511.05952, section 3.4: (1 / (N P(i)))^beta over its maximum.

    Args:
        probability: `[N]`, N P(i): how likely each sample was relative to uniform sampling.
        exponent: the paper's beta; 1 corrects fully.
    """
    weights = np.asarray(probability, np.float64) ** -exponent
    scaled: Array = (weights / weights.max()).astype(np.float32)
    return scaled


def priorities(errors: Array, counts: Array, exponent: float, mix: float) -> Array:
    """float32 `[N]`: how often each sample is to be drawn, relative to others.

    Sources: Schaul et al. 2016, arXiv:1511.05952, section 3.3, (|error| + eps)^alpha; of a whole session mix * max +
    (1 - mix) * mean of its errors (R2D2, Kapturowski et al. 2019, section 2.3).

    Args:
        errors: `[N, T]`, temporal differences. counts: bool `[N, T]`, the ticks that were learned from.
        exponent: the paper's alpha. mix: R2D2's eta.
    """
    sizes = np.where(counts, np.abs(errors), 0.0)
    mean = sizes.sum(axis=1) / np.maximum(counts.sum(axis=1), 1)
    raised: Array = (mix * sizes.max(axis=1) + (1.0 - mix) * mean + _PRIORITY_EPS) ** exponent
    return raised.astype(np.float32)


def huber(errors: Array) -> tuple[Array, Array]:
    """Huber's loss of each error and its derivative: the square's half up to 1, beyond that as steep as there.

    Source: Mnih et al. 2015, doi:10.1038/nature14236, methods: the error term is clipped to [-1, 1].
    """
    slope = np.maximum(np.minimum(errors, np.float32(1)), np.float32(-1))
    return slope * (errors - np.float32(0.5) * slope), slope


def clipped(ratio: Array, advantage: Array, clip: float) -> tuple[Array, Array]:
    """PPO's clipped objective (arXiv:1707.06347, equation 7) and its derivative by the logarithm of the ratio."""
    free = ratio * advantage
    bounded = np.minimum(np.maximum(ratio, np.float32(1 - clip)), np.float32(1 + clip)) * advantage
    return np.minimum(free, bounded), np.where(free <= bounded, free, np.float32(0))


def explained_variance(target: Array, predicted: Array) -> float:
    """1 - Var(target - predicted) / Var(target): 1 is a perfect critic, 0 one that knows the mean alone."""
    spread = float(np.var(target))
    return 1.0 - float(np.var(target - predicted)) / spread if spread > 1e-12 else 0.0
