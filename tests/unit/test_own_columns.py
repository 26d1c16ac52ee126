"""p2prl.learn.own_columns: what an agent acts and adds is looked at before a host would refuse it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium import spaces as gs

from p2prl.core.spaces import EnvSpec
from p2prl.learn.contracts import Field
from p2prl.learn.own_columns import OwnColumns
from p2prl.learn.spaces import OutsideSpace, for_env, plain_space, session_schema

ARMS = gs.Dict(
    move=gs.Box(np.array([-1.0, 0.0]), np.array([1.0, 9.0]), dtype=np.float32), grip=gs.Discrete(3)
)


def watched() -> tuple[OwnColumns, dict[str, np.ndarray]]:
    spec = EnvSpec("T", plain_space(gs.Box(0, 1, (2,)), "obs", "T"), plain_space(ARMS, "action", "T"))
    schema = session_schema(spec, {"value": Field("float32")}, ticks=4)
    columns = {c.name: np.zeros((schema.rows(c), 2, *c.shape), c.dtype) for c in schema.columns}
    return OwnColumns(schema), columns


@pytest.mark.parametrize(
    ("name", "at", "value", "told"),
    [
        ("action.move", (3, 1, 1), 9.5, "action.move was 9.5, and its space says 0 to 9"),
        ("action.move", (3, 1, 0), -2, "action.move was -2, and its space says -1 to 1"),
        ("action.move", (0, 0, 0), np.nan, "action.move was nan, and must be finite"),
        ("action.grip", (2, 0), 3, "action.grip was 3, and its space says 0 to 2"),
        ("value", (0, 1), np.inf, "value was inf, and must be finite"),
    ],
)
def test_a_value_that_a_host_would_refuse_is_named(
    name: str, at: tuple[int, ...], value: float, told: str
) -> None:
    watch, columns = watched()
    watch.check(columns)
    columns["obs"][0] = 7.0  # the environment's own, and harmless
    watch.check(columns)
    columns[name][at] = value
    with pytest.raises(OutsideSpace) as caught:
        watch.check(columns)
    assert str(caught.value) == told


@pytest.mark.parametrize("bad", [-1, 3, 256])
@pytest.mark.parametrize("space", [gs.Discrete(3), gs.Tuple([gs.Discrete(3)])])
def test_no_environment_is_given_a_discrete_action_that_is_none(space: gym.Space, bad: int) -> None:
    """As uint8, in which it is stored, 256 would be 0."""
    batch = np.array([0, bad, 1])
    with pytest.raises(OutsideSpace, match=f"an action was {bad}, and its space says 0 to 2"):
        for_env(space)((batch,) if isinstance(space, gs.Tuple) else batch)
