"""Policy and critic that are plain perceptrons, with one categorical action: their gradient written out, on the CPU.

A learner gets log-probabilities, entropies and values in numpy, works out how its loss changes with each of them, and
hands that back. Where z are the logits, p their softmax, a what was taken and H the entropy, what follows is
d log p_a / d z_k = [k = a] - p_k and d H / d z_k = -p_k (log p_k + H); the rest is perceptron.py.

Source: the first is the gradient of Williams 1992, doi:10.1007/BF00992696, of a softmax; the second is that of
H = -sum_k p_k log p_k, the bonus of Mnih et al. 2016, arXiv:1602.01783.
"""

from __future__ import annotations

import numpy as np

from p2prl.learn.contracts import Array
from p2prl_agents.perceptron import Perceptron
from p2prl_agents.policies import ActorCritic, Sessions
from p2prl_agents.trainable import Trainable


class PlainActorCritic:
    """Two perceptrons whose weights are a Trainable's, and whose gradients go where its optimiser reads them.

    Args:
        nets: of which `fits` is true.
    """

    def __init__(self, nets: ActorCritic, trainable: Trainable) -> None:
        import torch  # here, so that a player never pays for it

        assert nets.critic is not None
        self._put = torch.from_numpy
        weights = {name: tensor.detach() for name, tensor in trainable.tensors.items()}
        gradients = {name: tensor.grad for name, tensor in trainable.tensors.items()}
        self._policy, self._critic = (
            Perceptron(network.chain(), weights, gradients, network.activation)
            for network in (nets.policy, nets.critic)
        )
        #: Of what `forward` was given last: what was taken `[M]`, log-probabilities of all actions `[K, M]` and their
        #: exponentials, entropies `[M]`.
        self._last: tuple[Array, Array, Array, Array]

    @staticmethod
    def fits(nets: ActorCritic, device: str) -> bool:
        """Whether there is nothing to differentiate but what is written out here."""
        if device != "cpu" or nets.critic is None or nets.actions.gaussians:
            return False
        return len(nets.actions.categories) == 1 and bool(nets.policy.chain() and nets.critic.chain())

    def forward(self, sessions: Sessions) -> tuple[Array, Array, Array]:
        """Log-probabilities of what was taken and entropies, `[N, L]`, and the critic's values of all inputs.

        Inside, numbers lie tick by tick: first those of all sessions' first ticks, last those from which nothing was
        done.
        """
        features = sessions.inputs["features"].numpy().swapaxes(0, 1)
        count, ticks = sessions.keep.shape
        rows = self._put(np.ascontiguousarray(features).reshape(-1, features.shape[2]))
        values = self._critic.forward(rows).numpy()
        logits = self._policy.forward(rows[: count * ticks]).numpy()
        moved = np.ascontiguousarray(logits.T)  # numpy is slow along an axis of a few
        moved -= moved.max(axis=0)
        chances = np.exp(moved)
        total = chances.sum(axis=0)
        logs = moved - np.log(total)
        chances /= total
        entropy = -(chances * logs).sum(axis=0)
        picked = sessions.picked.numpy()[..., 0].T.ravel()
        self._last = picked, logs, chances, entropy
        taken = logs[picked, np.arange(len(picked))]
        log_prob, entropies, valued = (each.reshape(-1, count).T for each in (taken, entropy, values))
        return log_prob, entropies, valued

    def backward(self, log_prob: Array, entropy: Array, value: Array) -> None:
        """Write each weight's gradient of a loss, given its derivatives by what `forward` gave, `[N, L]` each.

        Args:
            value: of the first L values of each session; the loss is taken not to change with one that follows.
        """
        picked, logs, chances, entropies = self._last
        of_log_prob, of_entropy = log_prob.T.ravel(), entropy.T.ravel()
        gradient = logs + entropies
        gradient *= of_entropy
        gradient += of_log_prob
        gradient *= chances
        np.negative(gradient, out=gradient)
        gradient[picked, np.arange(len(picked))] += of_log_prob
        self._policy.backward(self._put(np.ascontiguousarray(gradient.T)))
        self._critic.backward(self._put(value.T.reshape(-1, 1)))
