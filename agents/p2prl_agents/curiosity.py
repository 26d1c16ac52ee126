"""Curiosity: a reward for observations that are still new, by random network distillation.

Source: Burda et al. 2019, arXiv:1810.12894. A fixed random network maps observations to an embedding; a second one
learns to predict it from what was seen. Where it is wrong, little of the kind was seen. Only learners need it: rewards
are worked out anew whenever a tick is sampled, so they fall as the place becomes familiar.

Two things differ from the paper, which learns on-policy: rewards are divided by the running deviation of single errors,
not of their discounted sums, since samples from a replay buffer have none; and an episode's end ends what is new, too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from p2prl.learn.contracts import Array, Batch
from p2prl_agents.maths import real
from p2prl_agents.networks import Network, Observations
from p2prl_agents.normaliser import Normaliser, normalised
from p2prl_agents.ops import Tensor, TorchOps
from p2prl_agents.trainable import Trainable

_EMBEDDING = 32
_TARGET_HIDDEN = (64,)
#: The predictor is a little larger than what it has to predict, as in the paper's own code.
_PREDICTOR_HIDDEN = (64, 64)
_MAX_GRAD_NORM = 10.0
_SEED = 0x5EED


class Curiosity:
    """A predictor that is trained on what is sampled, and rewards by how wrong it is.

    Args:
        learning_rate: Adam's, of the predictor.
        seed: the learner's.
    """

    def __init__(self, observations: Observations, device: str, learning_rate: float, seed: int) -> None:
        import torch  # here, so that a player never pays for it

        self._torch, self._ops, self._device = torch, TorchOps(), torch.device(device)
        self._observations = observations
        self._fixed = Network(observations, "fixed/", _TARGET_HIDDEN, {"embedding": _EMBEDDING})
        self._predictor = Network(observations, "predictor/", _PREDICTOR_HIDDEN, {"embedding": _EMBEDDING})
        drawn = self._fixed.initial(seed ^ _SEED, orthogonal=True)
        self._random = {name: torch.from_numpy(values).to(self._device) for name, values in drawn.items()}
        first = self._predictor.initial(seed ^ _SEED + 1, orthogonal=True)
        self._trainable, self._rate = Trainable(first, device), learning_rate
        self._seen = Normaliser(observations.size) if observations.size else None
        self._errors = Normaliser(1)

    def rewards(self, batch: Batch) -> tuple[Array, float]:
        """Train the predictor on a batch once, and say how new what followed each tick was.

        Returns:
            Rewards, float32 `[N, T]`, over their running deviation; 0 at RESET ticks. And the predictor's gradient
            norm; it was not trained if that is not finite.
        """
        counts = real(batch["flags"])
        inputs = self._inputs(batch, counts)
        errors = self._errors_of(inputs)
        norm = self._trainable.step(errors.mean(), self._rate, _MAX_GRAD_NORM)
        rewards = np.zeros(counts.shape, np.float32)
        if np.isfinite(norm):
            rewards[counts] = errors.detach().cpu().numpy()
            self._errors.see(rewards[counts][:, None])
        return rewards * self._errors.scale()["norm/scale"], norm

    def save(self) -> dict[str, Array]:
        """Predictor, fixed network (a resumed run may have another seed), running statistics."""
        fixed = {name: tensor.cpu().numpy().copy() for name, tensor in self._random.items()}
        parts: dict[str, Mapping[str, Array]] = {
            "": self._trainable.save(),
            "error_": self._errors.save(),
            "seen_": self._seen.save() if self._seen is not None else {},
        }
        prefixed = {
            f"{prefix}{name}": values for prefix, part in parts.items() for name, values in part.items()
        }
        return {f"curiosity/{name}": values for name, values in {**fixed, **prefixed}.items()}

    def load(self, state: Mapping[str, Array]) -> None:
        """Take back what `save` gave; other entries are skipped."""
        start = "curiosity/"
        mine = {name.removeprefix(start): values for name, values in state.items() if name.startswith(start)}
        for name, tensor in self._random.items():
            tensor.copy_(self._torch.from_numpy(np.array(mine[name])))
        self._trainable.load(mine)
        self._errors.load(_without("error_", mine))
        if self._seen is not None:
            self._seen.load(_without("seen_", mine))

    def _inputs(self, batch: Batch, counts: Array) -> dict[str, Tensor]:
        """Of the observation that followed each counted tick, normalised, on the device."""
        following = {
            name: values[:, 1:][counts] for name, values in batch.items() if name.partition(".")[0] == "obs"
        }
        inputs = self._observations.of_columns(following)
        if self._seen is not None:
            self._seen.see(inputs["features"])
            inputs["features"] = normalised(inputs["features"], self._seen.scale())
        return {name: self._torch.from_numpy(values).to(self._device) for name, values in inputs.items()}

    def _errors_of(self, inputs: dict[str, Tensor]) -> Any:
        """Mean squared errors of the predictor, `[M]`."""
        with self._torch.no_grad():
            wanted = self._fixed.step(self._ops, self._random, inputs, {})[0]["embedding"]
        guessed = self._predictor.step(self._ops, self._trainable.tensors, inputs, {})[0]["embedding"]
        return (guessed - wanted).square().mean(-1)


def _without(prefix: str, named: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): values for name, values in named.items() if name.startswith(prefix)}
