"""The limit of learning: gradient steps by torch on tensors that lie ready, and nothing else. One thread at first.

Each is the update that its agent makes, written down as straight as it is: the same networks, batch, targets, loss and
optimiser, without sampling, normalising, metrics or checks. DQN is plain double DQN, of
single steps.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

_GAMMA = 0.99
#: Of CartPole, and of V-trace's networks.
_INPUTS, _ACTIONS, _UNITS = 4, 2, 64
#: Updates between two copies of DQN's network to its target network.
_TARGET_INTERVAL = 40


def updates_per_s(update: Callable[[], None], seconds: float) -> float:
    """By the clock, after some that do what later ones need not."""
    for _ in range(20):
        update()
    done, began = 0, time.perf_counter()
    while (took_s := time.perf_counter() - began) < seconds:
        update()
        done += 1
    return done / took_s


def vtrace(sessions: int, ticks: int) -> Callable[[], None]:
    """V-trace on `[sessions, ticks]`: policy and critic of 2 x 64 units, Adam, the gradient's norm bounded."""
    torch = _torch()
    policy, critic = (_network(torch, torch.nn.Tanh, _UNITS, outputs) for outputs in (_ACTIONS, 1))
    weights = [*policy.parameters(), *critic.parameters()]
    adam = torch.optim.Adam(weights, lr=1e-4, fused=True)
    obs = torch.randn(sessions, ticks + 1, _INPUTS)
    action = torch.randint(_ACTIONS, (sessions, ticks, 1))
    played = np.full((sessions, ticks), -np.log(_ACTIONS), np.float32)
    reward, going = np.ones((sessions, ticks), np.float32), np.ones((sessions, ticks), np.float32)

    def update() -> None:
        logits = torch.log_softmax(policy(obs[:, :-1]), dim=-1)
        log_prob = logits.gather(2, action).squeeze(2)
        values = critic(obs).squeeze(2)
        target, advantage = _targets(
            np.exp(log_prob.detach().numpy() - played), reward, going, values.detach().numpy()
        )
        entropy = -(logits.exp() * logits).sum(dim=2).mean()
        loss = -(log_prob * torch.from_numpy(advantage)).mean() - 0.01 * entropy
        loss = loss + 0.25 * (torch.from_numpy(target) - values[:, :-1]).square().mean()
        _step(torch, adam, weights, loss)

    return update


def dqn(samples: int, units: int) -> Callable[[], None]:
    """Double DQN on `[samples]` ticks: networks of 2 x `units`, Huber's loss, Adam, the gradient's norm bounded."""
    torch = _torch()
    online, target = (_network(torch, torch.nn.ReLU, units, _ACTIONS) for _ in range(2))
    weights = list(online.parameters())
    adam = torch.optim.Adam(weights, lr=1e-4, fused=True)
    here, there = torch.randn(samples, _INPUTS), torch.randn(samples, _INPUTS)
    action = torch.randint(_ACTIONS, (samples, 1))
    reward, discount = torch.ones(samples, 1), torch.full((samples, 1), _GAMMA)
    done = 0

    def update() -> None:
        nonlocal done
        with torch.no_grad():
            wanted = _double(reward, discount, target(there), online(there))
        loss = torch.nn.functional.smooth_l1_loss(online(here).gather(1, action), wanted)
        _step(torch, adam, weights, loss)
        done += 1
        if done % _TARGET_INTERVAL == 0:
            target.load_state_dict(online.state_dict())

    return update


def _double(reward: Any, discount: Any, valued: Any, choosing: Any) -> Any:
    """Double DQN's targets, `[N, 1]`, van Hasselt et al. 2016 (arXiv:1509.06461): one network chooses, one values."""
    return reward + discount * valued.gather(1, choosing.argmax(dim=1, keepdim=True))


def _targets(ratio: Any, reward: Any, going: Any, values: Any) -> tuple[Any, Any]:
    """Equation 1 of Espeholt et al. 2018 (arXiv:1802.01561), and the advantage of its section 4.2; `[N, T]` each."""
    clipped = np.minimum(ratio, 1.0)
    discount = _GAMMA * going
    errors = clipped * (reward + discount * values[:, 1:] - values[:, :-1])
    target = np.empty_like(values)
    target[:, -1] = values[:, -1]
    later = np.zeros(len(values), np.float32)
    for tick in range(values.shape[1] - 2, -1, -1):
        later = errors[:, tick] + discount[:, tick] * clipped[:, tick] * later
        target[:, tick] = values[:, tick] + later
    return target[:, :-1], clipped * (reward + discount * target[:, 1:] - values[:, :-1])


def _torch() -> Any:
    import torch

    torch.set_num_threads(1)
    return torch


def _network(torch: Any, between: Any, units: int, outputs: int) -> Any:
    linear = torch.nn.Linear
    return torch.nn.Sequential(
        linear(_INPUTS, units), between(), linear(units, units), between(), linear(units, outputs)
    )


def _step(torch: Any, adam: Any, weights: list[Any], loss: Any) -> None:
    adam.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(weights, 10.0)
    adam.step()
