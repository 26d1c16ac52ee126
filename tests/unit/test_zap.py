"""net/zap.py: yes, no, and not known yet; without a socket, on a clock of our own."""

from __future__ import annotations

from dataclasses import dataclass, field

from zmq.utils import z85

from p2prl.net.zap import Answer, Rejected, ZapDesk


@dataclass
class Desk:
    """A desk with one server, whose word on each key is in `known`."""

    desk: ZapDesk = field(default_factory=lambda: ZapDesk(hold_s=5.0, max_held=3))
    known: dict[str, bool] = field(default_factory=dict)
    rejected: list[Rejected] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.domain = self.desk.add("pull", self.known.get, self.rejected.append)

    def ask(self, number: int, now: float = 0.0, **change: bytes) -> list[Answer]:
        """Key `number` dials."""
        parts = {
            "version": b"1.0",
            "request": b"%d" % number,
            "domain": self.domain,
            "address": b"::ffff:192.0.2.7",
            "identity": b"",
            "mechanism": b"CURVE",
            "key": bytes([number]) * 32,
        }
        return self.desk.asked(b"peer", [b"", *{**parts, **change}.values()], now)


def key(number: int) -> str:
    return z85.encode(bytes([number]) * 32).decode()


def statuses(answers: list[Answer]) -> list[tuple[bytes, bytes]]:
    """(request, status) of each."""
    return [(answer.frames[2], answer.frames[3]) for answer in answers]


def test_a_known_key_is_answered_at_once() -> None:
    desk = Desk()
    desk.known.update({key(1): True, key(2): False})
    [yes] = desk.ask(1)
    assert yes.peer == b"peer"
    assert yes.frames == [b"", b"1.0", b"1", b"200", b"OK", key(1).encode(), b""]
    [no] = desk.ask(2)
    assert no.frames == [b"", b"1.0", b"2", b"400", b"not admitted", b"", b""]
    assert desk.rejected == [Rejected("pull", key(2), "not_admitted", "192.0.2.7")]


def test_a_key_that_is_not_known_yet_waits_for_the_word() -> None:
    desk = Desk()
    for number in (1, 2, 3):
        assert desk.ask(number, now=float(number)) == []
    assert desk.desk.held == 3
    desk.known.update({key(2): True, key(3): False})
    assert statuses(desk.desk.reconsider(3.0)) == [(b"2", b"200"), (b"3", b"400")]
    assert desk.desk.reconsider(5.9) == []
    # In time no word came: it is to dial again, and that is not a refusal for good.
    assert statuses(desk.desk.reconsider(6.0)) == [(b"1", b"300")]
    assert desk.desk.held == 0
    assert [rejected.key for rejected in desk.rejected] == [key(3), key(1)]


def test_the_oldest_makes_room() -> None:
    desk = Desk()
    assert [desk.ask(number) for number in (1, 2, 3)] == [[], [], []]
    assert statuses(desk.ask(4)) == [(b"1", b"300")]
    assert desk.desk.held == 3


def test_what_is_not_curve_is_refused() -> None:
    desk = Desk()
    desk.known[key(1)] = True
    for change in (
        {"mechanism": b"NULL"},
        {"mechanism": b"PLAIN"},
        {"key": b"short"},
        {"domain": b"another"},
    ):
        assert statuses(desk.ask(1, **change)) == [(b"1", b"400")]
    assert desk.ask(1, version=b"2.0") == []
    assert desk.desk.asked(b"peer", [b""], 0.0) == []
