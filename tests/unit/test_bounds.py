"""What a node may claim about itself: core/bounds.py, and the sums that must survive it."""

from __future__ import annotations

import msgspec
import pytest

from p2prl import config
from p2prl.core import bounds
from p2prl.core.books import merged
from p2prl.core.ledger import Ledger
from p2prl.core.messages import PROTOCOL, Books, EvalResult, Heartbeat, Hello, PlayerReport, Seat
from p2prl.core.outbox import Outbox
from p2prl.errors import RemoteProtocolError
from p2prl.wire import bundle

HELLO = Hello(protocol=PROTOCOL, version="1", role="member", name="n", boot_id="b", players=2)
BEAT = Heartbeat(boot_id="b", state="working")


def changed(message: msgspec.Struct, **fields: object) -> msgspec.Struct:
    return msgspec.structs.replace(message, **fields)


def test_an_honest_hello_and_heartbeat_pass_unchanged() -> None:
    hello = changed(HELLO, seats=[Seat(rank=3, seed=9), Seat(rank=1, seed=8)], system="Linux x86_64")
    assert bounds.checked_hello(hello) == hello
    books = Books(produced=4, stored=3, pending=1, refused_reasons={"malformed": 1})
    beat = changed(BEAT, books=books, steps=7, players=[PlayerReport(rank=0, state="working", reason="ok")])
    assert bounds.checked_heartbeat(beat) == beat


@pytest.mark.parametrize(
    "fields",
    [
        {"players": -1},
        {"players": bounds.MAX_PLAYERS + 1},
        {"boot_id": ""},
        {"boot_id": "b" * 65},
        {"evaluators": -1},
        {"evaluators": HELLO.players + 1},
    ],
)
def test_an_impossible_hello_is_malformed(fields: dict[str, object]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        bounds.checked_hello(changed(HELLO, **fields))
    assert caught.value.reason == "malformed"


@pytest.mark.parametrize(
    "seats",
    [
        [Seat(rank=0, seed=1), Seat(rank=0, seed=2)],
        [Seat(rank=-1, seed=1), Seat(rank=1, seed=2)],
        [Seat(rank=bounds.MAX_RANK, seed=1), Seat(rank=1, seed=2)],
        [Seat(rank=0, seed=bounds.MAX_SEED), Seat(rank=1, seed=2)],
    ],
)
def test_seats_that_nobody_held_are_left_out(seats: list[Seat]) -> None:
    assert bounds.checked_hello(changed(HELLO, seats=seats)).seats == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"steps": -1}, "malformed"),
        ({"evaluating": {-1: 0}}, "malformed"),
        ({"evaluating": {1: bounds.MAX_COUNT + 1}}, "malformed"),
        ({"evaluating": dict.fromkeys(range(bounds.MAX_PLAYERS + 1), 0)}, "malformed"),
        ({"episodes": bounds.MAX_COUNT + 1}, "malformed"),
        ({"weights_version": -2}, "malformed"),
        ({"steps_per_s": float("inf")}, "not_finite"),
        ({"boot_id": ""}, "malformed"),
        ({"players": [PlayerReport(rank=0, state="x")] * (bounds.MAX_PLAYERS + 1)}, "malformed"),
        ({"players": [PlayerReport(rank=0, state="x", under_way=-1)]}, "malformed"),
        ({"players": [PlayerReport(rank=0, state="x", under_way=bounds.MAX_COUNT + 1)]}, "malformed"),
        ({"books": Books(duplicate=-1)}, "malformed"),
        ({"books": Books(refused_reasons={"r": bounds.MAX_COUNT + 1})}, "malformed"),
        ({"books": Books(dropped_reasons={"r" * 65: 1})}, "malformed"),
        ({"books": Books(dropped_reasons=dict.fromkeys(map(str, range(33)), 1))}, "malformed"),
    ],
)
def test_an_impossible_heartbeat_is_refused(fields: dict[str, object], reason: str) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        bounds.checked_heartbeat(changed(BEAT, **fields))
    assert caught.value.reason == reason


@pytest.mark.parametrize("fields", [{"job": -1}, {"steps": -1}, {"steps": bounds.MAX_COUNT + 1}])
def test_an_impossible_result_of_an_evaluation_is_malformed(fields: dict[str, int]) -> None:
    with pytest.raises(RemoteProtocolError) as caught:
        bounds.checked_result(changed(EvalResult(job=1), **fields))
    assert caught.value.reason == "malformed"


def test_texts_are_cut_and_cleaned_not_refused() -> None:
    failed = bounds.checked_result(EvalResult(job=1, failure="\x1b[2J" + "n" * 1000))
    assert failed.failure == "[2J" + "n" * 297
    hello = bounds.checked_hello(changed(HELLO, name="\x1b[2J" + "n" * 1000, system="s\n" * 1000))
    assert hello.name == "[2J" + "n" * 61
    assert hello.system.isprintable()
    beat = bounds.checked_heartbeat(changed(BEAT, reason="r" * 10_000))
    assert beat.reason == "r" * 300
    assert bounds.checked_hello(changed(HELLO, name="\n")).name == "?"


def test_a_liars_boots_do_not_overflow_the_totals() -> None:
    ledger, claim = Ledger(), bounds.MAX_COUNT
    for boot in range(100):
        ledger.booted(str(boot))
        ledger.reported(str(boot), Books(produced=claim, stored=claim), claim, claim)
    assert ledger.total().balanced()
    everyone = merged([ledger.total()] * 1000)
    assert len(msgspec.msgpack.encode(everyone)) < 200
    assert ledger.total_steps * 1000 < 2**64


def test_made_up_reasons_do_not_grow_without_end() -> None:
    total = merged([Books(dropped=1, dropped_reasons={f"reason {i}": 1}) for i in range(1000)])
    assert sum(total.dropped_reasons.values()) == 1000
    assert len(total.dropped_reasons) <= 65


def test_in_flight_is_what_was_sent_and_not_settled() -> None:
    outbox = Outbox(window_bytes=1000, window_bundles=10)
    outbox.produced(1, 10, 1, now=0.0)
    assert (outbox.pending, outbox.in_flight) == (1, 0)


def test_what_is_typed_is_bounded_as_what_is_taken() -> None:
    """Core and wire may not import config, so the numbers stand twice."""
    assert config.MAX_PLAYERS == bounds.MAX_PLAYERS
    assert config.MAX_SLOTS == bundle.MAX_SLOTS
