"""replay/validate.py: honest bundles pass, and each lie has its reason."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from p2prl.core.messages import BundleHeader
from p2prl.core.schema import RESET, TERMINATED, TRUNCATED, Column, SessionSchema
from p2prl.errors import RemoteProtocolError
from p2prl.replay.validate import RewardRange, check_bundle
from p2prl.wire.blocks import Array
from p2prl.wire.bundle import BundleReader, encode_bundle
from p2prl.wire.pictures import Slots
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


@given(hnp.arrays(np.uint8, (T, 3), elements=st.sampled_from([0, 0, 0, 0, 1, 2, 3, 4, 4, 4, 5, 6, 8, 255])))
def test_flags_are_judged_tick_by_tick(flags: Array) -> None:
    """Beside the same rules said one tick at a time."""
    arrays = play(3)[0]
    arrays["flags"] = flags
    arrays["reward"] = np.where(flags & RESET, 0, 1).astype(np.float32)
    sound = True
    for slot in range(3):
        for tick, flag in enumerate(flags[:, slot]):
            done = flag & (TERMINATED | TRUNCATED)
            later = flags[tick + 1, slot] if tick + 1 < T else RESET
            sound &= flag < 8 and not (flag & RESET and done) and not (done and not later & RESET)
    ends = int(np.count_nonzero(flags & (TERMINATED | TRUNCATED)))
    steps = int(np.count_nonzero(flags & RESET == 0))
    header = msgspec.structs.replace(make_bundle(3)[0], steps=steps, episodes=[(1.0, 5, 0.0)] * ends)
    assert reason_of(header, arrays) == ("" if sound else "malformed")
    if sound:
        assert refused(msgspec.structs.replace(header, steps=steps - 1), arrays) == "malformed"
        more = msgspec.structs.replace(header, episodes=[*header.episodes, (1.0, 5, 0.0)])
        assert refused(more, arrays) == "malformed"
        arrays["reward"][flags == RESET] = 0.5
        assert reason_of(header, arrays) == ("malformed" if RESET in flags else "")


@given(st.data())
def test_actions_are_judged_element_by_element(data: st.DataObject) -> None:
    dtype = np.dtype(
        data.draw(st.sampled_from(["bool", "uint8", "int8", "int16", "int64", "float16", "float32"]))
    )
    shape = data.draw(st.sampled_from([(), (2,), (2, 2)]))
    numbers = hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)
    values = data.draw(hnp.arrays(dtype, (1, 2, *shape), elements=numbers))
    sides = []
    for _ in range(2):
        size = data.draw(st.sampled_from([0, 1, int(np.prod(shape))]))
        some = st.one_of(
            st.sampled_from([float(value) for value in values.flat]), st.sampled_from([-np.inf, np.inf, 0.1])
        )
        sides.append(tuple(data.draw(st.lists(some, min_size=size, max_size=size))))
    low, high = (
        np.asarray(side, np.float64).reshape(shape if len(side) > 1 else len(side)) for side in sides
    )
    inside = all((row.astype(np.float64) >= low).all() for row in values[0] if low.size) and all(
        (row.astype(np.float64) <= high).all() for row in values[0] if high.size
    )
    schema = SessionSchema(1, (Column("action", dtype.name, shape, low=sides[0], high=sides[1]),))
    header = msgspec.structs.replace(make_bundle()[0], slots=2, steps=2, episodes=[])
    if inside:
        check_bundle(schema, header, {"action": values})
    else:
        assert refused(header, {"action": values}, schema) == "out_of_space"


@pytest.mark.parametrize("noise", [False, True])
def test_large_actions_are_judged_although_they_travel_as_pictures_do(noise: bool) -> None:
    schema = SessionSchema(3, (Column("action", "uint8", (32, 32), low=(0.0,), high=(1.0,)),))
    rng = np.random.default_rng(1)
    values = np.zeros((3, 2, 32, 32), np.uint8)
    if noise:
        values[:] = rng.integers(0, 2, values.shape)
    reader = BundleReader(schema)
    for wrong in (False, True):
        values[2, 1, 31, 31] = 2 * wrong
        header, payload = encode_bundle(
            schema, {"action": values}, slots=2, version=0, rank=0, serial=1, steps=6, episodes=[]
        )
        arrays = reader.open(header, payload)
        assert isinstance(arrays["action"], Slots)
        if wrong:
            with pytest.raises(RemoteProtocolError, match="outside its space"):
                check_bundle(schema, header, arrays)
        else:
            check_bundle(schema, header, arrays)


def test_returns_may_be_large_together() -> None:
    """Each of them is finite, their sum is not."""
    header, arrays = honest()
    assert len(header.episodes) > 1
    episodes = [(1.5e308, 1, 0.0)] * len(header.episodes)
    check_bundle(CARTPOLE, msgspec.structs.replace(header, episodes=episodes), arrays)
    for bad in (np.inf, -np.inf, np.nan):
        lie = msgspec.structs.replace(header, episodes=[*episodes[1:], (bad, 1, 0.0)])
        assert refused(lie, arrays) == "not_finite"


def test_an_episode_may_end_with_the_session_and_both_ways_at_once() -> None:
    arrays = play(1)[0]
    arrays["flags"][:, 0] = [RESET] + [0] * (T - 2) + [TERMINATED | TRUNCATED]
    arrays["reward"][:, 0] = [0] + [1] * (T - 1)
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


# --- what the environment declares


def with_rewards(*rewards: float) -> str:
    """The reason for which a bundle of one slot with these rewards is refused, or nothing; the range is 0.1 to 3."""
    arrays = play(1)[0]
    arrays["flags"][:] = 0
    arrays["reward"][:, 0] = [*rewards, *[1.0] * (T - len(rewards))]
    header = msgspec.structs.replace(make_bundle(1)[0], steps=T, episodes=[])
    return reason_of(header, arrays, (0.1, 3.0))


def reason_of(
    header: BundleHeader,
    arrays: dict[str, Array],
    reward_range: RewardRange | None = None,
    max_episode_steps: int | None = None,
) -> str:
    try:
        check_bundle(CARTPOLE, header, arrays, reward_range, max_episode_steps)
    except RemoteProtocolError as error:
        return error.reason
    return ""


def test_a_reward_outside_what_the_environment_declares() -> None:
    assert with_rewards(0.1, 3.0, 1.0) == ""
    assert with_rewards(np.nextafter(np.float32(0.1), np.float32(0))) == "out_of_bounds"
    assert with_rewards(np.nextafter(np.float32(3), np.float32(4))) == "out_of_bounds"
    assert with_rewards(1.0, -1e30) == "out_of_bounds"


@given(st.floats(-1e6, 1e6), st.floats(0, 1e6), st.data())
def test_rounding_to_float32_takes_no_reward_out_of_its_range(
    low: float, width: float, data: st.DataObject
) -> None:
    reward_range = (low, low + width)
    rewards = data.draw(st.lists(st.floats(*reward_range), min_size=T, max_size=T))
    arrays = play(1)[0]
    arrays["flags"][:] = 0
    arrays["flags"][-1] = TERMINATED
    arrays["reward"][:, 0] = rewards
    header = msgspec.structs.replace(make_bundle(1)[0], steps=T, episodes=[(sum(rewards), T, 0.0)])
    assert reason_of(header, arrays, reward_range, T) == ""


def test_a_range_may_be_open_at_either_side_or_beyond_float32() -> None:
    header, arrays = honest()
    header = msgspec.structs.replace(header, episodes=[(5.0, 5, 0.0)] * len(header.episodes))
    assert reason_of(header, arrays, (-np.inf, 1.0)) == ""
    assert reason_of(header, arrays, (1.0, np.inf)) == ""
    assert reason_of(header, arrays, (-1e300, 1e300)) == ""
    assert reason_of(header, arrays, (-np.inf, 0.5)) == "out_of_bounds"
    assert reason_of(header, arrays, (1.5, np.inf)) == "out_of_bounds"


def test_a_reset_tick_is_outside_the_range_and_has_no_reward() -> None:
    header, arrays = honest()
    assert (arrays["flags"] & RESET).any()
    assert (
        reason_of(header, arrays, (1.0, 1.0)) == "out_of_bounds"
    )  # its episodes claim 5 ticks for a return of 1
    inside = msgspec.structs.replace(header, episodes=[(5.0, 5, 0.0)] * len(header.episodes))
    assert reason_of(inside, arrays, (1.0, 1.0)) == ""
    arrays["reward"][arrays["flags"] & RESET != 0] = 1.0
    assert reason_of(inside, arrays, (1.0, 1.0)) == "malformed"
    assert reason_of(inside, arrays) == "malformed"


@pytest.mark.parametrize(
    ("total", "length", "reason"),
    [
        (5.0, 5, ""),
        (-5.0, 5, ""),
        (5.0001, 5, "out_of_bounds"),
        (-5.0001, 5, "out_of_bounds"),
        (20.0, 20, ""),
        (0.0, 21, "out_of_bounds"),
        (1e300, 20, "out_of_bounds"),
    ],
)
def test_an_episode_that_the_environment_says_cannot_be(total: float, length: int, reason: str) -> None:
    header, arrays = honest()
    told = msgspec.structs.replace(header, episodes=[*header.episodes[1:], (total, length, 0.0)])
    assert reason_of(told, arrays, (-1.0, 1.0), 20) == reason
    assert reason_of(told, arrays) == ""


def test_a_long_sum_may_be_a_little_off() -> None:
    header, arrays = honest()
    length = 1_000_000
    total = sum([0.1] * length)
    assert total > 0.1 * length
    told = msgspec.structs.replace(header, episodes=[*header.episodes[1:], (total, length, 0.0)])
    arrays["reward"][:] = 0.1 * (arrays["flags"] & RESET == 0)
    told = msgspec.structs.replace(told, episodes=[(total, length, 0.0)] * len(header.episodes))
    assert reason_of(told, arrays, (0.1, 0.1)) == ""
