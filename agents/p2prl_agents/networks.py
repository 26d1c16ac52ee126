"""Networks: multilayer perceptrons, a small CNN for pictures, a GRU or LSTM core, any number of linear heads.

A `Network` is shapes and one forward pass over `ops.py`: it holds no weights. Those are a dict of named arrays, drawn
in numpy, so alike on every device. Actors run it in numpy, learners in torch; what both give is the same to rounding.

Sources: CNN of Mnih et al. 2013, arXiv:1312.5602 (16 8x8 stride 4, 32 4x4 stride 2); GRU, Cho et al. 2014,
arXiv:1406.1078, in the variant of cuDNN and torch; LSTM, Hochreiter & Schmidhuber 1997,
doi:10.1162/neco.1997.9.8.1735; orthogonal initialisation, Saxe et al. 2014, arXiv:1312.6120.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Literal

import numpy as np

from p2prl.core.spaces import EnvSpec, Leaf, leaves
from p2prl.errors import UsageError
from p2prl.learn.contracts import Array, State, Tree
from p2prl.learn.spaces import split
from p2prl_agents.features import Features
from p2prl_agents.ops import Ops, Tensor

Core = Literal["none", "gru", "lstm"]
Activation = Literal["tanh", "relu"]
Weights = Mapping[str, Tensor]
#: Inputs by name: `features` `[..., F]` (if there are any), and a picture per leaf `[..., channels, height, width]`.
Inputs = Mapping[str, Tensor]

#: (filters, kernel, stride) of each convolution.
CONVOLUTIONS = ((16, 8, 4), (32, 4, 2))
#: Units of the layer after them.
CONV_UNITS = 256
#: A uint8 box with three axes, two of them at least this long, is a picture.
MIN_PICTURE = 20

_GATES = {"gru": 3, "lstm": 4}


class Observations:
    """An environment's observations as network inputs, alike for players (trees) and learners (columns).

    Attributes:
        size: F, the length of the feature vector; 0 if there are pictures only.
        pictures: (channels, height, width) by leaf.
    """

    def __init__(self, env: EnvSpec) -> None:
        self._space = env.observation
        self._channels_last = {
            name: leaf.shape[2] <= leaf.shape[0]
            for name, leaf in leaves(env.observation, "obs")
            if _is_picture(leaf)
        }
        self.pictures = {
            name: _channels_first(leaf.shape, self._channels_last[name])
            for name, leaf in leaves(env.observation, "obs")
            if _is_picture(leaf)
        }
        others = [name for name, _ in leaves(env.observation, "obs") if name not in self.pictures]
        self._features = Features(env, others) if others else None
        self.size = self._features.size if self._features is not None else 0
        if not self.size and not self.pictures:
            raise UsageError(f"{env.id} has nothing to observe")

    def of_tree(self, obs: Tree) -> dict[str, Array]:
        """Inputs of an observation tree `[slots, ...]`."""
        return self.of_columns(split(self._space, "obs", obs))

    def of_columns(self, columns: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs of columns `[..., *shape]` by name, float32; others are skipped."""
        inputs: dict[str, Array] = {}
        if self._features is not None:
            inputs["features"] = self._features.of_columns(columns)
        for name in self.pictures:
            values = columns[name]
            if self._channels_last[name]:
                values = np.moveaxis(values, -1, -3)
            inputs[name] = np.ascontiguousarray(values, np.float32) / np.float32(255)
        return inputs


class Network:
    """Torso (CNN for pictures, then dense layers), an optional recurrent core, linear heads.

    Args:
        prefix: stands before each weight's name, so that two networks fit into one dict.
        hidden: units of each dense layer.
        heads: outputs by name.
        core_units: H of the core.
        after: units of a dense layer between the core and the heads, 0 for none: what was remembered can then be
            weighed against what is seen.

    Attributes:
        shapes: of every weight by name, in a fixed order.
    """

    def __init__(
        self,
        observations: Observations,
        prefix: str,
        hidden: tuple[int, ...],
        heads: Mapping[str, int],
        *,
        activation: Activation = "relu",
        core: Core = "none",
        core_units: int = 64,
        after: int = 0,
    ) -> None:
        self._observations, self._prefix, self._heads = observations, prefix, dict(heads)
        self.activation, self.core, self.core_units = activation, core, core_units
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._conv_sizes: dict[str, int] = {}
        width = self._width()
        for name, shape in observations.pictures.items():
            width += self._add_convolutions(name, shape)
        self._depth = len(hidden)
        for index, (fan_in, units) in enumerate(pairwise((width, *hidden))):
            self._add_dense(f"dense{index}", fan_in, units)
        out = hidden[-1] if hidden else width
        if core != "none":
            gates = _GATES[core] * core_units
            self._add_dense("core/input", out, gates)
            self._add_dense("core/state", core_units, gates)
            out = core_units
            if after:
                self._add_dense("after", core_units, after)
                out = after
        self._after = core != "none" and after > 0
        for name, units in self._heads.items():
            self._add_dense(name, out, units)

    def _width(self) -> int:
        """Of what the first dense layer takes, beside pictures."""
        return self._observations.size

    def initial(
        self, seed: int, gains: Mapping[str, float] | None = None, *, orthogonal: bool = False
    ) -> dict[str, Array]:
        """float32 weights: uniform within 1/sqrt(fan_in) as torch's layers, or orthogonal with zero biases.

        Args:
            gains: of heads by name, orthogonal only; else sqrt(2), and 1 in the core.
        """
        rng = np.random.default_rng(seed)
        if not orthogonal:
            return self._remembering(_uniform(self.shapes, rng))
        weights: dict[str, Array] = {}
        for name, shape in self.shapes.items():
            part = name.removeprefix(self._prefix).rpartition("/")[0]
            gain = (gains or {}).get(part, 1.0 if part.startswith("core") else float(np.sqrt(2)))
            weights[name] = (
                np.zeros(shape, np.float32) if name.endswith("/bias") else _orthogonal(shape, gain, rng)
            )
        return self._remembering(weights)

    def _remembering(self, weights: dict[str, Array]) -> dict[str, Array]:
        """The gate that keeps the state begins open (Jozefowicz et al. 2015): one that forgets is hard to teach."""
        if self.core != "none":
            units = self.core_units
            weights[f"{self._prefix}core/input/bias"][units : 2 * units] += 1
        return weights

    def start(self, rows: int) -> State:
        """The core's state at an episode's beginning, zeros `[rows, H]` per entry; `{}` without a core."""
        names = {"none": (), "gru": ("hidden",), "lstm": ("hidden", "cell")}[self.core]
        return {f"{self._prefix}{name}": np.zeros((rows, self.core_units), np.float32) for name in names}

    def chain(self) -> tuple[str, ...]:
        """Names of the dense layers in order, if the network is nothing but those and `activation`; else `()`."""
        if self._observations.pictures or self.core != "none" or len(self._heads) != 1:
            return ()
        return tuple(name.removesuffix("/weight") for name in self.shapes if name.endswith("/weight"))

    def step(
        self, ops: Ops, weights: Weights, inputs: Inputs, state: State
    ) -> tuple[dict[str, Tensor], State]:
        """One tick of all rows `[rows, ...]`: the heads' outputs `[rows, units]`, and the next state."""
        out = self._torso(ops, weights, inputs)
        if self.core != "none":
            state = self._cell(ops, weights, self._dense(ops, weights, "core/input", out), state)
            out = state[f"{self._prefix}hidden"]
        return self._outputs(ops, weights, out), state

    def unroll(
        self, ops: Ops, weights: Weights, inputs: Inputs, state: State, keep: Tensor, burn_in: int = 0
    ) -> dict[str, Tensor]:
        """Whole sessions: the heads' outputs `[N, L, units]` of inputs `[N, L, ...]`.

        Args:
            state: of the core before tick 0, `[N, H]` per entry.
            keep: float32 `[N, L-1]` or longer, 0 at RESET ticks, else 1: the state begins anew after them, as on the
                player.
            burn_in: ticks that only warm the state up: no gradient flows into them through it.
        """
        first = next(iter(inputs.values()))
        rows, ticks = first.shape[0], first.shape[1]
        flat = {name: values.reshape(rows * ticks, *values.shape[2:]) for name, values in inputs.items()}
        out = self._torso(ops, weights, flat)
        if self.core != "none":
            projected = self._dense(ops, weights, "core/input", out).reshape(rows, ticks, -1)
            out = self._through_core(ops, weights, projected, state, keep, burn_in)
        outputs = self._outputs(ops, weights, out)
        return {name: values.reshape(rows, ticks, -1) for name, values in outputs.items()}

    # --- inside

    def _through_core(
        self, ops: Ops, weights: Weights, projected: Tensor, state: State, keep: Tensor, burn_in: int
    ) -> Tensor:
        """`[N * L, H]` of projected inputs `[N, L, gates]`."""
        rows, ticks = projected.shape[0], projected.shape[1]
        seen = []
        for tick in range(ticks):
            if burn_in and tick == burn_in:
                state = {name: ops.detach(values) for name, values in state.items()}
            state = self._cell(ops, weights, projected[:, tick], state)
            seen.append(state[f"{self._prefix}hidden"])
            if tick < ticks - 1:
                kept = keep[:, tick, None]
                state = {name: values * kept for name, values in state.items()}
        return ops.stack(seen).swapaxes(0, 1).reshape(rows * ticks, -1)

    def _cell(self, ops: Ops, weights: Weights, projected: Tensor, state: State) -> State:
        hidden = state[f"{self._prefix}hidden"]
        gates = self._dense(ops, weights, "core/state", hidden)
        if self.core == "gru":
            return {f"{self._prefix}hidden": _gru(ops, projected, gates, hidden, self.core_units)}
        hidden, cell = _lstm(ops, projected + gates, state[f"{self._prefix}cell"], self.core_units)
        return {f"{self._prefix}hidden": hidden, f"{self._prefix}cell": cell}

    def _torso(self, ops: Ops, weights: Weights, inputs: Inputs) -> Tensor:
        parts = [inputs["features"]] if "features" in inputs else []
        pictures = self._observations.pictures
        parts += [self._convolve(ops, weights, name, inputs[name]) for name in pictures]
        x = parts[0] if len(parts) == 1 else ops.concat(parts)
        for index in range(self._depth):
            x = self._activate(ops, self._dense(ops, weights, f"dense{index}", x))
        return x

    def _activate(self, ops: Ops, x: Tensor) -> Tensor:
        return ops.relu(x) if self.activation == "relu" else ops.tanh(x)

    def _convolve(self, ops: Ops, weights: Weights, leaf: str, x: Tensor) -> Tensor:
        for index, (_, _, stride) in enumerate(CONVOLUTIONS):
            name = f"{self._prefix}{leaf}/conv{index}"
            x = ops.relu(ops.conv(x, weights[f"{name}/weight"], weights[f"{name}/bias"], stride))
        return ops.relu(self._dense(ops, weights, f"{leaf}/units", x.reshape(x.shape[0], -1)))

    def _outputs(self, ops: Ops, weights: Weights, out: Tensor) -> dict[str, Tensor]:
        if self._after:
            out = self._activate(ops, self._dense(ops, weights, "after", out))
        here = (name for name in self._heads if f"{self._prefix}{name}/weight" in weights)
        return {name: self._dense(ops, weights, name, out) for name in here}

    def _dense(self, ops: Ops, weights: Weights, name: str, x: Tensor) -> Tensor:
        return ops.dense(x, weights[f"{self._prefix}{name}/weight"], weights[f"{self._prefix}{name}/bias"])

    def _add_dense(self, name: str, fan_in: int, units: int) -> None:
        self.shapes[f"{self._prefix}{name}/weight"] = (fan_in, units)
        self.shapes[f"{self._prefix}{name}/bias"] = (units,)

    def _add_convolutions(self, leaf: str, shape: tuple[int, int, int]) -> int:
        channels, height, width = shape
        for index, (filters, kernel, stride) in enumerate(CONVOLUTIONS):
            self.shapes[f"{self._prefix}{leaf}/conv{index}/weight"] = (filters, channels, kernel, kernel)
            self.shapes[f"{self._prefix}{leaf}/conv{index}/bias"] = (filters,)
            channels = filters
            height, width = ((side - kernel) // stride + 1 for side in (height, width))
        self._add_dense(f"{leaf}/units", channels * height * width, CONV_UNITS)
        return CONV_UNITS


def _sigmoid(ops: Ops, x: Tensor) -> Tensor:
    return ops.tanh(x * 0.5) * 0.5 + 0.5


def _gru(ops: Ops, projected: Tensor, gates: Tensor, hidden: Tensor, units: int) -> Tensor:
    """The next hidden state; gates in the order reset, update, new."""
    both = _sigmoid(ops, projected[:, : 2 * units] + gates[:, : 2 * units])
    reset, update = both[:, :units], both[:, units:]
    new = ops.tanh(projected[:, 2 * units :] + reset * gates[:, 2 * units :])
    return new + update * (hidden - new)


def _lstm(ops: Ops, gates: Tensor, cell: Tensor, units: int) -> tuple[Tensor, Tensor]:
    """The next (hidden, cell); gates in the order input, forget, output, new."""
    three = _sigmoid(ops, gates[:, : 3 * units])
    new = ops.tanh(gates[:, 3 * units :])
    cell = three[:, units : 2 * units] * cell + three[:, :units] * new
    return three[:, 2 * units :] * ops.tanh(cell), cell


def _uniform(shapes: Mapping[str, tuple[int, ...]], rng: np.random.Generator) -> dict[str, Array]:
    weights: dict[str, Array] = {}
    for name, shape in shapes.items():
        of = shapes[name.replace("/bias", "/weight")]
        fan_in = of[0] if len(of) == 2 else int(np.prod(of[1:]))
        bound = 1.0 / np.sqrt(fan_in)
        weights[name] = rng.uniform(-bound, bound, shape).astype(np.float32)
    return weights


def _orthogonal(shape: tuple[int, ...], gain: float, rng: np.random.Generator) -> Array:
    rows, columns = shape[0], int(np.prod(shape[1:]))
    drawn = rng.standard_normal((max(rows, columns), min(rows, columns)))
    q, r = np.linalg.qr(drawn)
    q = q * np.sign(np.diag(r))
    return (gain * (q if rows >= columns else q.T)).reshape(shape).astype(np.float32)


def _is_picture(leaf: Leaf) -> bool:
    sides = sorted(leaf.shape)
    return leaf.kind == "box" and leaf.dtype == "uint8" and len(sides) == 3 and sides[1] >= MIN_PICTURE


def _channels_first(shape: tuple[int, ...], last: bool) -> tuple[int, int, int]:
    height, width, channels = shape if last else (*shape[1:], shape[0])
    return channels, height, width
