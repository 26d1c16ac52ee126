"""Who may take part: the host's list of keys, as its owner wants it. A node is its key; its name is for people only."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Sequence

import msgspec

from p2prl.core.bounds import line
from p2prl.core.messages import Standing
from p2prl.errors import UsageError

MAX_ADMITTED = 4096
MAX_WAITING = 256
#: Removed keys that are remembered; the oldest goes first.
MAX_REMOVED = 4096

_Z85 = frozenset("0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#")
_KEY_CHARS = 40
#: A name may be typed by its beginning; a key or a fingerprint only by so many characters of it.
_MIN_PREFIX_CHARS = 4
_MAX_NAMED = 8


def is_key(text: str) -> bool:
    """True for what can be a CURVE public key in Z85.

    >>> is_key("x" * 40), is_key("x" * 39), is_key(" " * 40)
    (True, False, False)
    """
    return len(text) == _KEY_CHARS and _Z85.issuperset(text)


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One key of the list.

    Attributes:
        how: what let it in: `code`, `token`, `owner` or `open`.
        reason: why it is removed or quarantined.
        address: from where it was last let in.
        since: when it got this standing, in seconds since the epoch.
    """

    key: str
    name: str
    standing: Standing
    how: str = ""
    reason: str = ""
    address: str = ""
    since: float = 0.0


class Access:
    """The list. Each change says if anything changed.

    What the owner said stands: a removed key stays removed though its user still knows the join code, and comes back
    only by the owner's word; a quarantined one is admitted, but kept out until it is released.

    Invariant: at most MAX_ADMITTED admitted and quarantined, MAX_WAITING waiting, MAX_REMOVED removed.
    """

    def __init__(self, entries: Iterable[Entry] = ()) -> None:
        #: By key, the longest in its standing first.
        self._entries: dict[str, Entry] = {}
        self.load(entries)

    def get(self, key: str) -> Entry | None:
        """What is known of a key; None if nothing is."""
        return self._entries.get(key)

    def standing(self, key: str) -> Standing:
        """How this host stands to a key."""
        entry = self.get(key)
        return entry.standing if entry else "unknown"

    def full(self) -> bool:
        """True if no more keys can be admitted."""
        return self._count("admitted", "quarantined") >= MAX_ADMITTED

    def admit(self, key: str, name: str, how: str, address: str, wall: float) -> bool:
        """Let a key in. Only `how` = `owner` brings back a removed one; a quarantined one has to be released.

        An admitted one that comes again gets its new name and address. In a full list one that only an open host let
        in, the oldest, makes room: it would be let in again. Else False.

        Args:
            wall: now, in seconds since the epoch.
        """
        old = self._entries.get(key)
        if old is not None and old.standing == "quarantined":
            return False
        if old is not None and old.standing == "removed" and how != "owner":
            return False
        if old is not None and old.standing == "admitted":
            return self._update(old, name, address, how)
        if self.full() and not self._forget_open():
            return False
        return self._put(key, "admitted", wall, name=name, how=how, reason="", address=address)

    def wait(self, key: str, name: str, how: str, address: str, wall: float) -> bool:
        """A key proved that it knows the code, and the owner has to admit it. Only an unknown one has to wait."""
        old = self._entries.get(key)
        if old is not None:
            return old.standing == "waiting" and self._update(old, name, address, how)
        if is_key(key):
            self._make_room("waiting", MAX_WAITING)
        return self._put(key, "waiting", wall, name=name, how=how, address=address)

    def remove(self, key: str, reason: str, wall: float) -> bool:
        """Keep a key out, whatever it proves; also one that was never seen."""
        if self.standing(key) == "removed":
            return False
        if is_key(key):
            self._make_room("removed", MAX_REMOVED)
        return self._put(key, "removed", wall, reason=reason)

    def quarantine(self, key: str, reason: str, wall: float) -> bool:
        """Keep an admitted key out for now. One that is not admitted has no place to be kept from."""
        if self.standing(key) != "admitted":
            return False
        return self._put(key, "quarantined", wall, reason=reason)

    def release(self, key: str, wall: float) -> bool:
        """End a quarantine: the key is admitted again."""
        if self.standing(key) != "quarantined":
            return False
        return self._put(key, "admitted", wall, reason="")

    def entries(self) -> list[Entry]:
        """All of it, the longest in its standing first."""
        return list(self._entries.values())

    def load(self, entries: Iterable[Entry]) -> None:
        """Take a saved list in place of this one. What is no key, or beyond the bounds, is left out, oldest first."""
        kept: dict[str, Entry] = {}
        room = {"waiting": MAX_WAITING, "removed": MAX_REMOVED, "in": MAX_ADMITTED}
        newest_first = sorted(entries, key=lambda entry: entry.since, reverse=True)
        for entry in newest_first:
            kind = "in" if entry.standing in ("admitted", "quarantined") else entry.standing
            if is_key(entry.key) and entry.key not in kept and room.get(kind, 0) > 0:
                room[kind] -= 1
                kept[entry.key] = entry
        self._entries = dict(reversed(kept.items()))

    def admitted(self) -> list[str]:
        """Keys that may take part."""
        return self._keys("admitted")

    def barred(self) -> list[str]:
        """Keys that may not, though the host be open: removed and quarantined ones."""
        return self._keys("removed", "quarantined")

    def quarantined(self) -> list[str]:
        """Keys whose sessions are not to be sampled."""
        return self._keys("quarantined")

    def _keys(self, *standings: Standing) -> list[str]:
        return [entry.key for entry in self._entries.values() if entry.standing in standings]

    def _count(self, *standings: Standing) -> int:
        return sum(entry.standing in standings for entry in self._entries.values())

    def _make_room(self, standing: Standing, limit: int) -> None:
        keys = self._keys(standing)
        for key in keys[: max(0, len(keys) + 1 - limit)]:
            del self._entries[key]

    def _forget_open(self) -> bool:
        key = next(
            (e.key for e in self._entries.values() if e.standing == "admitted" and e.how == "open"), None
        )
        if key is not None:
            del self._entries[key]
        return key is not None

    def _update(self, old: Entry, name: str, address: str, how: str) -> bool:
        new = msgspec.structs.replace(
            old,
            name=name or old.name,
            address=address or old.address,
            how=how if old.how == "open" else old.how,
        )
        self._entries[old.key] = new
        return new != old

    def _put(self, key: str, standing: Standing, wall: float, **fields: str) -> bool:
        if not is_key(key):
            return False
        old = self._entries.pop(key, None) or Entry(key=key, name="", standing=standing)
        given = {name: value for name, value in fields.items() if value or name == "reason"}
        self._entries[key] = msgspec.structs.replace(old, standing=standing, since=wall, **given)
        return True


def resolve(text: str, entries: Sequence[Entry], fingerprint: Callable[[str], str]) -> Entry:
    """The one entry that an owner means: by its name, key or fingerprint, or by the beginning of one of them.

    A whole name, key or fingerprint goes before a beginning.

    Args:
        fingerprint: a key's short name for people (net/keys.py).

    Raises:
        UsageError: several fit, and are named with their fingerprints; or none does, and the nearest are named.
    """
    wanted = text.strip().casefold()
    exact = [entry for entry in entries if text.strip() == entry.key]
    exact = exact or [e for e in entries if wanted and wanted in (e.name.casefold(), fingerprint(e.key))]
    found = exact or [entry for entry in entries if _begins(text.strip(), entry, fingerprint)]
    if len(found) == 1:
        return found[0]
    shown = line(text.strip(), 60)
    if found:
        raise UsageError(f"{shown!r} may be {_listed(found, fingerprint)}; say it by its fingerprint")
    raise UsageError(f"this host knows no node {shown!r}{_nearest(wanted, entries, fingerprint)}")


def _begins(text: str, entry: Entry, fingerprint: Callable[[str], str]) -> bool:
    if text and entry.name.casefold().startswith(text.casefold()):
        return True
    long_enough = len(text) >= _MIN_PREFIX_CHARS
    return long_enough and (entry.key.startswith(text) or fingerprint(entry.key).startswith(text.casefold()))


def _listed(entries: Sequence[Entry], fingerprint: Callable[[str], str]) -> str:
    named = [f"{line(entry.name, 60)} ({fingerprint(entry.key)})" for entry in entries[:_MAX_NAMED]]
    more = [f"{len(entries) - _MAX_NAMED} more"] if len(entries) > _MAX_NAMED else []
    return ", ".join(named + more)


def _nearest(wanted: str, entries: Sequence[Entry], fingerprint: Callable[[str], str]) -> str:
    if not entries:
        return "; it knows none yet"
    names = {entry.name.casefold() for entry in entries}
    close = difflib.get_close_matches(wanted, sorted(names), 3, 0.5)
    near = [entry for entry in entries if entry.name.casefold() in close]
    return f"; it knows {_listed(near or entries, fingerprint)}"
