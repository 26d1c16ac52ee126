"""What an admitted node may claim: numbers that stay numbers when they are summed, texts that fit a screen.

The decoder has checked the types. Here, what is impossible is refused, and what is only too long is cut: a node must
not become silent because an error's text was long.
"""

from __future__ import annotations

import math

import msgspec

from p2prl.core.messages import Books, EvalResult, Heartbeat, Hello, PlayerReport
from p2prl.errors import RemoteProtocolError

#: Players of one node.
MAX_PLAYERS = 256
#: Environments of one player; wire/bundle.py takes no more in a bundle.
MAX_SLOTS = 1024
#: Of one boot: steps, episodes, bundles. 65,000 nodes that all claim it still add up to less than 2**64.
MAX_COUNT = 1 << 44
MAX_RANK = 1 << 32
#: Seeds grow by one per seat; whoever claims this one still leaves room for all others.
MAX_SEED = 1 << 62
_MAX_ID_CHARS = 64
_MAX_NAME_CHARS = 64
_MAX_LINE_CHARS = 300
_MAX_REASONS = 32


def checked_hello(hello: Hello) -> Hello:
    """A member's Hello, its texts cut; seats that nobody can have held are left out.

    Raises:
        RemoteProtocolError: `malformed`.
    """
    _check_id(hello.boot_id)
    if hello.continues:
        _check_id(hello.continues)
    if not 0 <= hello.players <= MAX_PLAYERS:
        raise RemoteProtocolError("malformed", f"{hello.players} players in one node")
    if not 0 <= hello.evaluators <= hello.players:
        raise RemoteProtocolError("malformed", f"{hello.evaluators} of {hello.players} players evaluate")
    if not 0 <= hello.slots <= MAX_SLOTS:
        raise RemoteProtocolError("malformed", f"{hello.slots} environments in one player")
    if len(hello.weights_codecs) > _MAX_REASONS or any(
        len(name) > _MAX_ID_CHARS for name in hello.weights_codecs
    ):
        raise RemoteProtocolError("malformed", "too many or too long names of formats")
    ranks = {seat.rank for seat in hello.seats}
    possible = all(0 <= seat.rank < MAX_RANK and 0 <= seat.seed < MAX_SEED for seat in hello.seats)
    return msgspec.structs.replace(
        hello,
        name=line(hello.name, _MAX_NAME_CHARS) or "?",
        version=line(hello.version, _MAX_NAME_CHARS),
        system=line(hello.system),
        seats=hello.seats if possible and len(ranks) == len(hello.seats) else [],
    )


def checked_heartbeat(beat: Heartbeat) -> Heartbeat:
    """A member's Heartbeat, its texts cut.

    Raises:
        RemoteProtocolError: `malformed`, or `not_finite`.
    """
    _check_id(beat.boot_id)
    check_books(beat.books)
    if not math.isfinite(beat.steps_per_s):
        raise RemoteProtocolError("not_finite", "steps_per_s is NaN or infinite")
    if len(beat.players) > MAX_PLAYERS:
        raise RemoteProtocolError("malformed", f"{len(beat.players)} players in one node")
    if len(beat.evaluating) > MAX_PLAYERS:
        raise RemoteProtocolError("malformed", f"{len(beat.evaluating)} evaluation jobs in one node")
    _check_counts(*beat.evaluating.keys(), *beat.evaluating.values())
    _check_counts(beat.steps, beat.episodes, beat.weights_version + 1, beat.spooled)
    for player in beat.players:
        _check_counts(player.failures, player.steps, player.under_way)
    return msgspec.structs.replace(
        beat, reason=line(beat.reason), players=[_checked_player(report) for report in beat.players]
    )


def checked_result(result: EvalResult) -> EvalResult:
    """A member's EvalResult, its text cut; whether its episodes can be, core/evaluations.py says.

    Raises:
        RemoteProtocolError: `malformed`.
    """
    _check_counts(result.job, result.steps)
    return msgspec.structs.replace(result, failure=line(result.failure))


def check_books(books: Books) -> None:
    """Raise RemoteProtocolError `malformed` for books that nobody can have."""
    counts = (books.produced, books.stored, books.pending, books.refused, books.stale, books.dropped)
    _check_counts(*counts, books.duplicate)
    for reasons in (books.refused_reasons, books.dropped_reasons):
        if len(reasons) > _MAX_REASONS or any(len(reason) > _MAX_ID_CHARS for reason in reasons):
            raise RemoteProtocolError("malformed", "too many or too long reasons in the books")
        _check_counts(*reasons.values())


def line(text: str, limit: int = _MAX_LINE_CHARS) -> str:
    """A stranger's text without what could steer a terminal, cut to `limit` characters.

    >>> line("a\\x1b[2Jb" + 9 * "c", 8)
    'a[2Jbccc'
    """
    return "".join(character for character in text[: 4 * limit] if character.isprintable())[:limit]


def _checked_player(report: PlayerReport) -> PlayerReport:
    return msgspec.structs.replace(report, state=line(report.state, 20), reason=line(report.reason))


def _check_id(boot_id: str) -> None:
    if not 1 <= len(boot_id) <= _MAX_ID_CHARS:
        raise RemoteProtocolError("malformed", f"a boot id of {len(boot_id)} characters")


def _check_counts(*counts: int) -> None:
    if not all(0 <= count <= MAX_COUNT for count in counts):
        raise RemoteProtocolError("malformed", "a counter is negative, or larger than anybody can have")
