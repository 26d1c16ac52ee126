"""One network for many rows: alike in numpy and torch, blind to the rows' order, refused where there are none."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces as gs
from p2prl_agents.networks import Observations
from p2prl_agents.ops import NumpyOps, TorchOps
from p2prl_agents.ppo import PPO, PPOSettings
from p2prl_agents.rows import RowNetwork
from p2prl_agents.vtrace import VTrace, VTraceSettings

from p2prl.core.spaces import EnvSpec
from p2prl.errors import UsageError
from p2prl.learn.spaces import plain_space

ROWS, EACH, CHOICES = 5, 3, 4
SEEN = gs.Box(-1, 1, (ROWS, EACH), np.float32)


def spec(seen: gym.Space[Any] = SEEN, action: gym.Space[Any] | None = None) -> EnvSpec:
    action = gs.MultiDiscrete([CHOICES] * ROWS) if action is None else action
    return EnvSpec("test", plain_space(seen, "obs", "test"), plain_space(action, "action", "test"))


def network() -> RowNetwork:
    return RowNetwork(Observations(spec()), "p/", (8, 8), {"logits": CHOICES}, rows=ROWS, activation="tanh")


def logits(net: RowNetwork, weights: dict[str, Any], seen: np.ndarray) -> np.ndarray:
    """`[environments, R, CHOICES]` of `[environments, R, F]`."""
    out, state = net.step(NumpyOps(), weights, {"features": seen.reshape(len(seen), -1)}, {})
    assert state == {}
    found: np.ndarray = out["logits"].reshape(len(seen), ROWS, CHOICES)
    return found


def test_a_player_and_a_learner_compute_the_same() -> None:
    net, rng = network(), np.random.default_rng(1)
    weights = net.initial(7)
    seen = rng.normal(size=(2, 6, ROWS * EACH)).astype(np.float32)
    tensors = {name: torch.from_numpy(values) for name, values in weights.items()}
    keep = torch.ones(2, 5)
    whole = net.unroll(TorchOps(), tensors, {"features": torch.from_numpy(seen)}, {}, keep)["logits"]
    assert whole.shape == (2, 6, ROWS * CHOICES)
    for tick in range(6):
        now = logits(net, weights, seen[:, tick].reshape(2, ROWS, EACH))
        np.testing.assert_allclose(now.reshape(2, -1), whole[:, tick].numpy(), atol=1e-5)


def test_rows_that_change_places_take_their_answers_along() -> None:
    net, rng = network(), np.random.default_rng(2)
    weights = net.initial(7)
    seen = rng.normal(size=(4, ROWS, EACH)).astype(np.float32)
    order = rng.permutation(ROWS)
    np.testing.assert_allclose(
        logits(net, weights, seen[:, order]), logits(net, weights, seen)[:, order], atol=1e-5
    )


def test_each_row_sees_the_others_by_their_mean_alone() -> None:
    net, rng = network(), np.random.default_rng(3)
    weights = net.initial(7)
    seen = rng.normal(size=(1, ROWS, EACH)).astype(np.float32)
    other, same_mean = seen.copy(), seen.copy()
    other[0, 1] += 1
    same_mean[0, 1] += 1
    same_mean[0, 2] -= 1
    before = logits(net, weights, seen)[0, 0]
    assert not np.allclose(logits(net, weights, other)[0, 0], before, atol=1e-3)
    np.testing.assert_allclose(logits(net, weights, same_mean)[0, 0], before, atol=1e-5)


@pytest.mark.parametrize(("kind", "settings"), [(PPO, PPOSettings), (VTrace, VTraceSettings)])
@pytest.mark.parametrize(
    ("env", "more", "says"),
    [
        (spec(gs.Box(-1, 1, (ROWS * EACH,), np.float32)), {}, "an observation Box of R rows"),
        (spec(gs.Box(-1, 1, (ROWS + 1, EACH), np.float32)), {}, r"has \(6, 3\) and 5"),
        (spec(gs.Dict({"a": gs.Discrete(2)})), {}, "has a tree and 5"),
        (spec(action=gs.MultiDiscrete([2, 3, 2, 2, 2])), {}, "an action of like parts"),
        (spec(action=gs.Box(-1, 1, (ROWS,), np.float32)), {}, "an action of like parts"),
        (spec(), {"core": "gru"}, "neither a core nor shared"),
        (spec(), {"shared": True}, "neither a core nor shared"),
    ],
)
def test_where_there_are_no_rows_it_is_refused(
    kind: Any, settings: Any, env: EnvSpec, more: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says):
        kind(env, settings(rows=True, **more))
    kind(env, settings(**more))
