"""A network for many alike: an observation of R rows, an action of R parts, one small network that answers each row.

Where an environment has R users, cells or robots, and says of each the same F numbers, a plain network has to learn
the same thing R times over, from a reward that R parts share. Here one network looks at a row and at the mean of all
rows, and answers with that row's part of the action: what it learns of one row it knows of all, and the order of the
rows does not matter.

Source: Deep Sets, Zaheer et al. 2017 (arXiv:1703.06114), the equivariant layer: each row's own features and the pooled
ones, with weights that all rows share.
"""

from __future__ import annotations

from collections.abc import Mapping

from p2prl.core.spaces import EnvSpec, Leaf
from p2prl.errors import UsageError
from p2prl.learn.contracts import State
from p2prl_agents.networks import Activation, Inputs, Network, Observations, Weights
from p2prl_agents.ops import Ops, Tensor


def rows_of(env: EnvSpec, agent: str, parts: int) -> int:
    """R of an environment whose observation is a Box `[R, F]` and whose action has R parts, `parts` in all.

    Raises:
        UsageError: it is not of this kind.
    """
    seen = env.observation
    if isinstance(seen, Leaf) and seen.kind == "box" and len(seen.shape) == 2 and seen.shape[0] == parts:
        return parts
    raise UsageError(
        f"{agent}: rows needs an observation Box of R rows and an action of R parts; {env.id} has "
        f"{seen.shape if isinstance(seen, Leaf) else 'a tree'} and {parts}: leave rows out"
    )


class RowNetwork(Network):
    """A `Network` without a core, whose heads' outputs are those of all rows, one row after the other.

    Args:
        rows: R; the features are R rows of F.
        heads: outputs of each row by name.
    """

    def __init__(
        self,
        observations: Observations,
        prefix: str,
        hidden: tuple[int, ...],
        heads: Mapping[str, int],
        *,
        rows: int,
        activation: Activation = "relu",
    ) -> None:
        self._rows, self._each = rows, observations.size // rows
        super().__init__(observations, prefix, hidden, heads, activation=activation)

    def _width(self) -> int:
        """A row, and the mean of all."""
        return 2 * self._each

    def chain(self) -> tuple[str, ...]:
        """`()`: rows are put beside their mean first."""
        return ()

    def step(
        self, ops: Ops, weights: Weights, inputs: Inputs, state: State
    ) -> tuple[dict[str, Tensor], State]:
        """One tick of all environments: the heads' outputs `[environments, R * units]`; there is no state."""
        outputs = self._outputs(ops, weights, self._torso(ops, weights, self._beside(ops, inputs)))
        count = inputs["features"].shape[0]
        return {name: values.reshape(count, -1) for name, values in outputs.items()}, state

    def unroll(
        self, ops: Ops, weights: Weights, inputs: Inputs, state: State, keep: Tensor, burn_in: int = 0
    ) -> dict[str, Tensor]:
        """Whole sessions: outputs `[N, L, R * units]` of features `[N, L, R * F]`."""
        features = inputs["features"]
        shape = features.shape[:2]
        flat = {"features": features.reshape(shape[0] * shape[1], -1)}
        outputs, _ = self.step(ops, weights, flat, state)
        return {name: values.reshape(*shape, -1) for name, values in outputs.items()}

    def _beside(self, ops: Ops, inputs: Inputs) -> Inputs:
        """`[environments * R, 2 F]`: each row, and the mean of all rows beside it."""
        rows = inputs["features"].reshape(-1, self._rows, self._each)
        mean = rows.sum(1) / self._rows
        beside = ops.stack([mean] * self._rows).swapaxes(0, 1)
        return {"features": ops.concat([rows, beside]).reshape(-1, 2 * self._each)}
