"""replay/validate.py: honest bundles pass, and each lie has its reason."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.replay.validate import check_bundle
from p2prl.wire.blocks import Array
from tests.unit.replay_kit import CARTPOLE, make_bundle, play

T = CARTPOLE.ticks


def refused(header: BundleHeader, arrays: dict[str, Array], schema: SessionSchema = CARTPOLE) -> str:
    with pytest.raises(RemoteProtocolError) as caught:
        check_bundle(schema, header, arrays)
    return caught.value.reason


def honest() -> tuple[BundleHeader, dict[str, Array]]:
    return make_bundle(4, 1)[0], play(4, 1)[0]


@given(st.integers(1, 16), st.integers(0, 1000))
def test_honest_bundles_pass(slots: int, seed: int) -> None:
    check_bundle(CARTPOLE, make_bundle(slots, seed)[0], play(slots, seed)[0])


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("column", ["obs", "reward"])
def test_one_number_that_is_none(column: str, bad: float) -> None:
    header, arrays = honest()
    arrays[column].flat[-1] = bad
    assert refused(header, arrays) == "not_finite"


def test_an_action_outside_its_space() -> None:
    header, arrays = honest()
    arrays["action"][3, 2] = 2
    assert refused(header, arrays) == "out_of_space"


def bounded(low: tuple[float, ...], high: tuple[float, ...], name: str = "action.arm") -> SessionSchema:
    return SessionSchema(ticks=1, columns=(Column(name, "float32", (2,), low=low, high=high),))


def test_bounds_may_differ_by_element_or_be_open() -> None:
    header = msgspec.structs.replace(make_bundle()[0], slots=1, steps=1, episodes=[])
    arrays: dict[str, Array] = {"action.arm": np.array([[[0.5, -3.0]]], np.float32)}
    check_bundle(bounded((0.0, -3.0), (1.0, 0.0)), header, arrays)
    check_bundle(bounded((-np.inf,), (np.inf,)), header, arrays)
    check_bundle(bounded((), ()), header, arrays)
    assert refused(header, arrays, bounded((0.0, -2.0), (1.0, 0.0))) == "out_of_space"
    assert refused(header, arrays, bounded((-3.0,), (0.4,))) == "out_of_space"
    # Anything else may leave its bounds: it is only what an environment says of itself.
    check_bundle(bounded((0.0,), (0.1,), "obs"), header, {"obs": arrays["action.arm"]})
    check_bundle(bounded((0.0,), (0.1,), "actions"), header, {"actions": arrays["action.arm"]})


@pytest.mark.parametrize(
    "flags",
    [
        [8] + [0] * (T - 1),
        [RESET | TERMINATED] + [0] * (T - 1),
        [RESET | TRUNCATED] + [0] * (T - 1),
        [TERMINATED] + [0] * (T - 1),
        [TERMINATED, TERMINATED, RESET] + [0] * (T - 3),
    ],
)
def test_flags_that_contradict_themselves(flags: list[int]) -> None:
    arrays = play(1)[0]
    arrays["flags"][:, 0] = flags
    resets = sum(flag & RESET != 0 for flag in flags)
    ends = sum(flag & (TERMINATED | TRUNCATED) != 0 for flag in flags)
    header = msgspec.structs.replace(make_bundle(1)[0], steps=T - resets, episodes=[(1.0, 1, 0.0)] * ends)
    assert refused(header, arrays) == "malformed"


def test_an_episode_may_end_with_the_session_and_both_ways_at_once() -> None:
    arrays = play(1)[0]
    arrays["flags"][:, 0] = [RESET] + [0] * (T - 2) + [TERMINATED | TRUNCATED]
    header = msgspec.structs.replace(make_bundle(1)[0], steps=T - 1, episodes=[(1.0, 5, 0.5)])
    check_bundle(CARTPOLE, header, arrays)


def test_the_header_counts_what_the_flags_say() -> None:
    header, arrays = honest()
    assert header.episodes
    assert refused(msgspec.structs.replace(header, steps=header.steps + 1), arrays) == "malformed"
    assert refused(msgspec.structs.replace(header, episodes=header.episodes[1:]), arrays) == "malformed"
    for episode, reason in (
        ((np.nan, 1, 0.0), "not_finite"),
        ((1.0, 1, np.inf), "not_finite"),
        ((1.0, 0, 0.0), "malformed"),
        ((1.0, 1 << 62, 0.0), "malformed"),
        ((1.0, 1, 1.5), "malformed"),
    ):
        lie = msgspec.structs.replace(header, episodes=[*header.episodes[1:], episode])
        assert refused(lie, arrays) == reason
