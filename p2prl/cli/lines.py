"""Lines as plain text, for where no terminal is, and the words that they share with the views. Without rich."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from p2prl.cli.output import count, safe
from p2prl.core.messages import Books
from p2prl.nodes.report import Joined, Left, MemberStatus, Silence
from p2prl.words import many, sized, why_ended

#: States in which a member plays no more.
OVER = ("stopped", "failed")

#: Reasons for a refusal that are over as soon as the node stands otherwise.
_STANDINGS = ("removed", "quarantined", "not_admitted")


def log_parts(source: str, text: str) -> tuple[str, str, str]:
    """When, from where, and what: one after the other they are a log line."""
    return f"{datetime.now():%H:%M:%S} ", f"{safe(source, 20)}: ", safe(text)


def joined_line(info: Joined) -> str:
    """Whose run this is."""
    run = f"{safe(info.env)} with {safe(info.agent)}"
    players = many(info.players, "player")
    where = f"{safe(info.host_name)} at {safe(info.address)}:{info.base_port}"
    return f"joined {where}: {run}, {players}"


def left_line(info: Left) -> str:
    """Why it ended, and what was given; an error's text is what the command itself ends with."""
    words = {"signal": info.text or "stopped here", "stopped": why_ended(info.text)}
    why, books = safe(words.get(info.reason, info.reason)), info.books
    return f"left: {why}; {count(books.stored)} of {many(books.produced, 'bundle')} stored"


def silence_line(info: Silence) -> str:
    """Who does not answer, and since when."""
    since = f"{datetime.fromtimestamp(info.since):%H:%M:%S}"
    return f"{safe(info.host_name)} does not answer since {since}; trying again until Ctrl-C"


def member_line(status: MemberStatus) -> str:
    """A member in one plain line."""
    told = "; ".join(part for part in (safe(status.reason), playing_on(status)) if part)
    parts = [
        safe(status.state) + (f" ({told})" if told else ""),
        f"host {safe(status.host_name) or '-'}",
        f"steps {count(status.steps)}"
        + ("" if status.state in OVER else f" ({count(status.steps_per_s)}/s)"),
        f"weights {versions_text(status)}",
        f"bundles {plain_books(status.books, spooled(status))}",
    ]
    return "  ".join(parts)


def playing_on(status: MemberStatus) -> str:
    """What becomes of a member's work while its host is away."""
    if status.state != "away":
        return ""
    return "playing on; what is played is kept here" if status.steps_per_s > 0 else "waiting for the host"


def spooled(status: MemberStatus) -> str:
    return f" ({count(status.spooled)} on disk, {sized(status.spooled_bytes)})" if status.spooled else ""


def versions_text(status: MemberStatus) -> str:
    if status.weights_version < 0:
        return "none yet"
    behind = max(0, status.current_version - status.weights_version)
    return f"v{count(status.weights_version)}" + (f", {count(behind)} behind" if behind else ", current")


def plain_books(books: Books, spooled: str = "") -> str:
    """The books, with all reasons."""
    return "".join(text for text, _ in books_parts(books, spooled))


def books_parts(books: Books, spooled: str = "", with_reasons: bool = True) -> list[tuple[str, str]]:
    """Text and its style, one after the other: stored and pending always; what went wrong only when it did."""
    parts = [(f"{count(books.stored)} stored, {count(books.pending)} pending{spooled}", "")]
    for name, why, style in (
        ("refused", books.refused_reasons, "red"),
        ("stale", {}, ""),
        ("dropped", books.dropped_reasons, "yellow"),
        ("duplicate", {}, ""),
    ):
        number: int = getattr(books, name)
        if number:
            told = reasons(why) if with_reasons else ""
            parts += [(", ", ""), (f"{count(number)} {name}" + (f" ({told})" if told else ""), style)]
    return parts


def still_refused(counts: Mapping[str, int], standing: str) -> dict[str, int]:
    """What was refused of a node, without what was refused for a standing that it has not any more.

    >>> still_refused({"removed": 2, "oversize": 1}, "admitted")
    {'oversize': 1}
    """
    return {
        reason: times for reason, times in counts.items() if reason == standing or reason not in _STANDINGS
    }


def reasons(counts: Mapping[str, int]) -> str:
    """Counts by reason, the most frequent first.

    >>> reasons({"oversize": 1, "not_finite": 2000})
    'not_finite 2,000, oversize 1'
    """
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{safe(reason, 40)} {count(times)}" for reason, times in ordered)
