"""When a player is told that it may hand over more: in good time, and not for each bundle."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import numpy as np
import pytest

from p2prl.core import credit as credit_module
from p2prl.core import messages as m
from p2prl.core.credit import GATHER_S, LEAST, Credit
from p2prl.net.loop import Loop
from p2prl.net.sockets import Network
from p2prl.nodes.players import Players
from p2prl.nodes.slot import Slot
from p2prl.wire import frames
from p2prl.wire.weights import CODEC, WeightsDecoder, WeightsEncoder
from tests.conftest import run_until

pytestmark = pytest.mark.skipif(os.name != "posix", reason="the player made by hand talks over ipc")


class Seat:
    """A member's players, of which one is made by hand: it only says what it is told to.

    Attributes:
        room: whether the window has some.
        taken: serials of the bundles that the member took.
        credits: what the player was told, by serial; `bundles` how many may be under way, by the last.
        words: the kinds of messages that the player was sent.
        versions: of the weights that it was sent, each of which it could read.
        said: lines for people.
        moves: how often the member was told that the player is further in a bundle.
        stopped_s: what the loop's clock says while it stands still; None while it goes.
    """

    def __init__(self) -> None:
        self.stopped_s: float | None = None
        self.loop = Loop(lambda: time.monotonic() if self.stopped_s is None else self.stopped_s)
        self.network, self.far = Network(self.loop), Network()
        self.room = True
        #: Whether there is room for a bundle beside as many ticks as players are at; asked of which.
        self.room_beyond, self.beyond = True, list[int]()
        self.taken: list[int] = []
        self.credits: list[int] = []
        self.words, self.bundles = list[str](), 0
        self.versions: list[int] = []
        self._encoder, self._published, self._keyframe = WeightsEncoder(keyframe_each=3), 0, 0
        self.moves = 0
        self.said: list[str] = []
        self.players = Players(
            self.loop,
            self.network,
            lambda *_: pytest.fail("no process is to be started"),  # type: ignore[arg-type]
            lambda bundle, header, payload: self.taken.append(bundle.serial),
            self._moved,
            self._has_room,
            lambda dropped: None,
            lambda failure: None,
            lambda said, faulty: None,
            lambda level, source, text: self.said.append(text),
        )
        self.slot = self.players._slots[0] = Slot(m.Seat(rank=0, seed=1), due=float("inf"))
        self.sit_down()

    def sit_down(self) -> None:
        """A player comes that has nothing."""
        before, self._decoder = self.slot.route, WeightsDecoder()
        self.socket = self.far.client("dealer", self.players._endpoint, None, None)
        self.loop.on_readable(self.socket, self._hear)
        self.socket.send([frames.encode(m.PlayerHello(rank=0))])
        run_until(self.loop, lambda: self.slot.route != before)

    def _has_room(self, ahead: int) -> bool:
        self.beyond += [ahead] if ahead else []
        return self.room and (not ahead or self.room_beyond)

    def _hear(self) -> None:
        while (received := self.socket.receive()) is not None:
            said = frames.decode_to_player(received.frames[0])
            self.words.append(type(said).__name__)
            if isinstance(said, m.PlayerCredit):
                self.credits.append(said.serial)
                self.bundles = said.credit
            elif isinstance(said, m.WeightsHeader):
                weights = self._decoder.read(received.frames[1])
                np.testing.assert_array_equal(weights["w"], np.full(100, said.version, np.float32))
                self.versions.append(said.version)

    def _moved(self) -> None:
        self.moves += 1

    def publish(self, count: int) -> None:
        """New weights, one version after the other."""
        for version in range(self._published, self._published + count):
            encoded = self._encoder.encode({"w": np.full(100, version, np.float32)})
            self._encoder.sent(encoded)
            self._keyframe = version if encoded.whole else self._keyframe
            header = m.WeightsHeader(
                run_id="r",
                version=version,
                codec=CODEC,
                size_bytes=len(encoded.payload),
                updates=version,
                keyframe=self._keyframe,
                whole=encoded.whole,
            )
            self.players.weights(header, encoded.payload)
        self._published += count

    def heard(self) -> list[int]:
        """The versions that the player was sent, once all that it was told has come."""
        self.slot.job = 7
        self.players.drop_job(7)  # the last word
        run_until(self.loop, lambda: self.words[-1:] == ["EvalDrop"])
        self.words.pop()
        return self.versions

    def progress(self, steps: int, version: int = 0) -> None:
        """Tell how far the bundle under way is; returns once that is known."""
        self.socket.send([frames.encode(m.PlayerProgress(rank=0, steps=steps, version=version))])
        run_until(self.loop, lambda: self.players.under_way == steps)

    def send(self, serial: int) -> None:
        """Hand over a bundle."""
        bundle = m.PlayerBundle(rank=0, serial=serial, ticks=1, steps=1, episodes=0, version=0)
        self.socket.send([frames.encode(bundle), b"header", b"payload"])

    def give(self, *serials: int) -> None:
        """Hand over bundles; returns once they were taken."""
        for serial in serials:
            self.send(serial)
        run_until(self.loop, lambda: self.taken[-1:] == [serials[-1]])

    def look(self) -> None:
        """One turn of the loop, once a bundle has come that was not taken yet."""
        assert self.players._socket.raw.poll(10_000)
        self.loop._turn(busy=True)

    def close(self) -> None:
        self.players.close()
        self.network.close()
        self.far.close()


@pytest.fixture
def seat() -> Iterator[Seat]:
    seat = Seat()
    yield seat
    seat.close()


def test_a_player_that_plays_on_meanwhile_is_answered_for_two_bundles_at_once(seat: Seat) -> None:
    seat.give(0)
    seat.give(1)
    run_until(seat.loop, lambda: seat.credits == [1])
    seat.give(2, 3)
    run_until(seat.loop, lambda: seat.credits == [1, 3])


def test_a_player_that_waits_for_the_answer_gets_one_for_each_bundle(seat: Seat) -> None:
    seat.slot.credit = Credit(fresh=True)
    for serial in range(3):
        seat.give(serial)
        run_until(seat.loop, lambda serial=serial: seat.credits[-1:] == [serial])
    assert seat.credits == [0, 1, 2]


def test_a_quick_player_that_would_wait_is_told_of_the_next_bundle_while_it_plays_one(seat: Seat) -> None:
    seat.slot.credit, seat.slot.envs, seat.slot.ticks = Credit(fresh=True), 4, 8
    seat.stopped_s = time.monotonic()
    seat.room_beyond = False
    seat.give(0)
    seat.give(1)
    run_until(seat.loop, lambda: seat.credits == [0, 1])
    assert seat.bundles == 1
    seat.players.give_credit()
    assert seat.beyond == [4 * 8], "it plays one bundle"
    seat.room_beyond = True
    seat.players.give_credit()
    run_until(seat.loop, lambda: seat.credits == [0, 1, 1])
    assert seat.bundles == 2
    seat.players.give_credit()
    assert len(seat.beyond) == 2, "it is told of one more, and no further"


def test_of_several_players_none_is_told_early_of_what_may_be_anothers(seat: Seat) -> None:
    seat.slot.credit = Credit(fresh=True)
    seat.players._slots[1] = Slot(m.Seat(rank=1, seed=2), due=float("inf"))
    seat.stopped_s = time.monotonic()
    seat.give(0)
    seat.give(1)
    run_until(seat.loop, lambda: seat.credits == [0, 1])
    assert seat.slot.credit.early
    seat.players.give_credit()
    assert seat.beyond == []


def test_a_player_gets_the_newest_weights_before_it_is_told_to_play_on(seat: Seat) -> None:
    seat.slot.credit = Credit(fresh=True)
    seat.publish(4)
    assert seat.heard() == [0, 1]
    seat.give(0)
    assert seat.heard() == [0, 1, 3]
    assert seat.words == [*["WeightsHeader"] * 3, "PlayerCredit"]


@pytest.mark.parametrize("fresh", [True, False])
def test_a_player_that_waited_long_gets_the_newest_weights_before_it_is_told_to_play_on(
    seat: Seat, fresh: bool
) -> None:
    seat.slot.credit, seat.room = Credit(fresh), False
    seat.publish(2)
    seat.give(*range(seat.slot.credit.bundles))
    seat.publish(6)
    assert seat.heard() == [0, 1, 2, 3]
    seat.room = True
    seat.players.give_credit()
    assert seat.heard() == [0, 1, 2, 3, 7]
    assert seat.words == [*["WeightsHeader"] * 5, "PlayerCredit"]


def test_few_sets_of_weights_wait_for_a_player_that_hangs(seat: Seat) -> None:
    """In the bundle that it was told to play, or before that (G4, case 37)."""
    seat.slot.credit, seat.room = Credit(fresh=True), False
    seat.publish(1)
    seat.give(0)
    seat.publish(50)
    seat.room = True
    for _ in range(5):
        seat.players.give_credit()
        seat.publish(50)
    assert seat.heard() == [0, 1, 2, 50, 51], "two, the newest with the credit, and one while it plays"


def test_a_player_that_begins_late_gets_the_newest_weights_then(seat: Seat) -> None:
    """It may be long at loading the first; what came meanwhile is not taken before the first bundle."""
    seat.publish(8)
    assert seat.heard() == [0, 1]
    seat.progress(0, version=0)
    run_until(seat.loop, lambda: seat.slot.begun_at is not None)
    assert seat.heard() == [0, 1, 7]
    seat.publish(50)
    for steps in (10, 20):  # it hangs
        seat.progress(steps, version=0)
    assert seat.heard() == [0, 1, 7]


def test_a_player_that_gets_ready_late_gets_the_newest_weights_alone(seat: Seat) -> None:
    seat.publish(8)
    assert seat.heard() == [0, 1]
    seat.sit_down()
    assert seat.heard() == [0, 1, 7]


def test_a_player_that_drops_bundles_gets_new_weights_for_the_next(seat: Seat) -> None:
    seat.room = False
    seat.publish(1)
    seat.give(0, 1)
    for dropped in range(3):
        seat.publish(5)
        seat.socket.send([frames.encode(m.PlayerDropped(rank=0, bundles=1, steps=1, episodes=0))])
        run_until(seat.loop, lambda there=5 * dropped + 5: seat.versions[-1:] == [there])
    assert seat.heard() == [0, 1, 2, 5, 6, 10, 11, 15]


def test_without_room_the_answer_comes_once_there_is_some(seat: Seat) -> None:
    seat.room = False
    seat.give(0, 1)
    seat.players.give_credit()
    assert seat.slot.credit.due
    assert not seat.credits
    seat.room = True
    seat.players.give_credit()
    run_until(seat.loop, lambda: seat.credits)
    assert seat.credits == [1]


def fast() -> Credit:
    """Of a player whose bundles took no time so far."""
    credit = Credit()
    while not credit.gathers:
        credit.took(1)
        if credit.due:
            credit.give(0.0)
    return credit


def test_where_bundles_come_fast_one_answer_is_for_half_of_those_under_way(seat: Seat) -> None:
    seat.slot.credit = fast()
    half = seat.slot.credit.bundles // 2
    seat.give(*range(half - 1))
    assert not seat.credits
    seat.give(half - 1)
    run_until(seat.loop, lambda: seat.credits)
    assert seat.credits == [half - 1]


def test_where_bundles_come_fast_they_are_taken_after_a_moment_and_all_of_them(seat: Seat) -> None:
    seat.slot.credit = fast()
    seat.room = False  # so the credit stays as it is
    for serial in range(10):
        seat.give(serial)
    assert seat.taken == list(range(10))
    seat.room = True
    seat.players.give_credit()
    run_until(seat.loop, lambda: seat.credits)
    assert seat.credits == [9]


def test_a_player_in_the_middle_of_a_long_bundle_works_and_its_steps_count_once(seat: Seat) -> None:
    [before] = seat.players.reports()
    assert (before.state, before.reason) == ("starting", "waiting for the first weights")
    seat.progress(10)
    seat.progress(30)
    assert seat.moves == 2
    [report] = seat.players.reports()
    assert (report.state, report.reason, report.steps, report.under_way) == ("working", "", 30, 30)
    seat.give(0)  # which has one step, as all of them here
    [report] = seat.players.reports()
    assert (report.steps, report.under_way, seat.players.under_way) == (1, 0, 0)
    seat.progress(5)
    seat.progress(0)  # the next one has begun
    assert seat.moves == 3, "where no step was made, nothing moved"


def test_a_player_in_its_first_step_is_not_waiting_for_weights_and_tells_their_version(seat: Seat) -> None:
    seat.stopped_s = seat.loop.now()
    seat.slot.steps = 7  # of one that sat here before, and was killed
    seat.socket.send([frames.encode(m.PlayerProgress(rank=0, steps=0, version=3))])
    run_until(seat.loop, lambda: seat.slot.version == 3)
    seat.stopped_s += 14.0
    [report] = seat.players.reports()
    assert (report.reason, report.first_step_s) == ("in its first step for 14 s", 14.0)
    assert (report.weights_version, seat.players.version, seat.moves) == (3, 3, 0)
    seat.progress(2, version=3)
    [report] = seat.players.reports()
    assert (report.reason, report.first_step_s, seat.moves) == ("", 0.0, 1)
    seat.give(0)  # which was played with version 0, and waited for room
    assert seat.players.version == 3


def test_what_slow_environments_mean_is_said_once_when_the_first_step_was_made(seat: Seat) -> None:
    seat.stopped_s = seat.loop.now()
    seat.slot.envs, seat.slot.ticks = 16, 32
    seat.socket.send([frames.encode(m.PlayerProgress(rank=0, steps=0, version=3))])
    run_until(seat.loop, lambda: seat.slot.version == 3)
    for steps in (16, 32):
        seat.stopped_s += 80.0
        seat.progress(steps)
    assert seat.said == [
        "a step of 16 environments took 80 s, so a bundle of 32 steps each will take about 43 minutes; what helps: "
        "fewer environments (--envs 1) or shorter sessions (at the host: --set replay.ticks=N)"
    ]


def test_nothing_is_said_of_environments_that_are_not_slow(seat: Seat) -> None:
    seat.stopped_s = seat.loop.now()
    seat.socket.send([frames.encode(m.PlayerProgress(rank=0, steps=0, version=3))])
    run_until(seat.loop, lambda: seat.slot.version == 3)
    seat.stopped_s += 4.0
    seat.progress(1)
    seat.stopped_s += 80.0  # the machine stood still
    seat.progress(2)
    assert not seat.said


def test_why_a_player_ended_again_and_again_is_told_in_its_first_step_too(seat: Seat) -> None:
    seat.slot.reason = "ended 3 times in a row: Killed-v0 raised"
    seat.socket.send([frames.encode(m.PlayerProgress(rank=0, steps=0, version=3))])
    run_until(seat.loop, lambda: seat.slot.version == 3)
    [report] = seat.players.reports()
    assert (report.reason, report.first_step_s) == ("ended 3 times in a row: Killed-v0 raised", 0.0)


def test_where_bundles_come_fast_the_next_is_taken_after_a_moment(seat: Seat) -> None:
    seat.slot.credit, seat.room = fast(), False
    seat.stopped_s = seat.loop.now()
    for serial in range(2):
        seat.send(serial)
        seat.look()
        assert seat.taken == [0]
    seat.stopped_s += GATHER_S
    seat.look()  # the moment is over
    seat.look()
    assert seat.taken == [0, 1]


def test_where_bundles_take_longer_each_is_taken_as_it_comes(seat: Seat) -> None:
    seat.room = False
    seat.stopped_s = seat.loop.now()
    for serial in range(4):
        seat.send(serial)
        seat.look()
        assert seat.taken[-1:] == [serial]


def test_large_bundles_get_no_more_credit_however_fast_they_come(
    seat: Seat, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(credit_module, "AHEAD_BYTES", 2 * len(b"payload"))
    seat.stopped_s = seat.loop.now()
    for serial in range(2 * LEAST):  # the second credit is of bundles that took no time
        seat.send(serial)
        seat.look()
    assert len(seat.taken) == 2 * LEAST
    assert seat.slot.credit.bundles == LEAST


def test_a_bundle_of_the_player_that_sat_there_before_is_not_taken(seat: Seat) -> None:
    """Here of one that has not said hello yet; what it says comes in order."""
    before, seat.socket = seat.slot.route, seat.far.client("dealer", seat.players._endpoint, None, None)
    seat.send(0)
    seat.socket.send([frames.encode(m.PlayerHello(rank=0))])
    run_until(seat.loop, lambda: seat.slot.route != before)
    assert not seat.taken
    seat.give(1)
    assert seat.taken == [1]
