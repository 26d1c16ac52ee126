"""Who may come in, and what each may say: the broker's list of keys, put together from disk, enrolment and refusals."""

from __future__ import annotations

import logging
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from p2prl.core import messages as m
from p2prl.core.access import Access
from p2prl.core.enrolment import Proved
from p2prl.core.invitations import TokenEntry
from p2prl.core.quota import MAX_NODES, Bucket
from p2prl.core.rights import Role, may, may_be
from p2prl.core.strikes import Strikes
from p2prl.errors import RemoteProtocolError
from p2prl.net.keys import fingerprint
from p2prl.nodes.access_file import AccessFile, Stored, entries_of
from p2prl.nodes.broker_file import Saved
from p2prl.nodes.wiring import BrokerConfig

log = logging.getLogger("p2prl")

#: Keys kept out of one run; the longest kept goes first.
MAX_QUARANTINED = 4096
#: Of one key, on control, after a burst of five seconds' worth. A member says one thing a second, and what is special.
_MESSAGES_PER_S = 100.0


class Admissions:
    """Keys and their rights.

    Attributes:
        open: any key is admitted that is not barred.
        own_member: the host's own, which is always in.
        access: the list; only changed here.
        changed: the shards must be told.
        out: keys that were put out, and whose connections are to be cut.
    """

    def __init__(self, config: BrokerConfig, saved: Saved) -> None:
        self.open, self._approve = config.open, config.approve
        self._saved = saved
        self._file = AccessFile(Path(config.state))
        staff = config.staff
        self._staff: dict[str, Role] = {
            staff.owner: "owner",
            staff.trainer: "trainer",
            staff.shard: "shard",
            staff.member: "member",
        }
        self.own_member = staff.member
        self._strikes = Strikes()
        #: What shards said they refused, so that only what is new counts: by (shard, boot id), key and reason.
        self._told: dict[tuple[int, str], dict[str, dict[str, int]]] = {}
        #: How fast each key speaks, the one that spoke longest ago first; never more than MAX_NODES.
        self._paces: OrderedDict[str, Bucket] = OrderedDict()
        self.access = Access()
        self.changed = True
        self.out: list[str] = []
        #: Ids of the tokens that were there when the file was read or written last.
        self._tokens: set[str] = set()
        self._load(self._file.read())

    # --- questions

    def standing(self, key: str) -> m.Standing:
        """How this host stands to a key; in an open host any key is admitted that is not barred."""
        standing = self.access.standing(key)
        if self.open and standing in ("unknown", "waiting"):
            return "admitted"
        return standing

    def reason(self, key: str) -> str:
        """Why a key was put out, in a line."""
        entry = self.access.get(key)
        return entry.reason if entry is not None else ""

    def name(self, key: str) -> str:
        """What a key called itself when it was let in."""
        entry = self.access.get(key)
        return entry.name if entry is not None else "?"

    def role(self, key: str) -> Role | None:
        """None for a key without any right."""
        if key in self._staff:
            return self._staff[key]
        return "member" if key and self.standing(key) == "admitted" else None

    def admits(self, key: str) -> bool:
        """Whether a connection with this key may be made."""
        return self.role(key) is not None

    def check(self, key: str, message: m.Message) -> None:
        """Raises RemoteProtocolError if the key has no right to say this: asked for each message.

        A connection that was made before a key was removed is no right.
        """
        role = self.role(key)
        if role is None:
            standing = self.standing(key)
            raise RemoteProtocolError(standing if standing in ("removed", "quarantined") else "not_admitted")
        if not may(role, type(message)) or (isinstance(message, m.Hello) and not may_be(role, message.role)):
            raise RemoteProtocolError("not_permitted")

    def check_pace(self, key: str, now: float) -> None:
        """Raises RemoteProtocolError if a key says more than anybody has to say: asked before anything is decoded."""
        if key in self._staff:
            return
        pace = self._paces.setdefault(key, Bucket(_MESSAGES_PER_S, now))
        self._paces.move_to_end(key)
        if len(self._paces) > MAX_NODES:
            self._paces.popitem(last=False)
        if not pace.open(now):
            raise RemoteProtocolError("rate_limited")
        pace.take(1.0)

    def for_shards(self) -> m.Access:
        """The list as shards need it."""
        quarantined = sorted(self._saved.quarantined)
        return m.Access(
            open=self.open,
            admitted=[self.own_member, *self.access.admitted()],
            barred=self.access.barred(),
            quarantined=quarantined,
        )

    def waiting(self) -> list[str]:
        """Names of nodes that wait for the owner's word."""
        return [entry.name for entry in self.access.entries() if entry.standing == "waiting"]

    def tokens(self) -> list[TokenEntry]:
        """Those that may still admit somebody."""
        return self._file.read().tokens

    # --- changes

    def proved(self, proved: Proved, tokens: list[TokenEntry]) -> m.Standing:
        """Somebody proved the code or a token's secret: admitted, unless the owner has the last word."""
        wait = self._approve and proved.how == "code"

        def enter(access: Access) -> None:
            if access.standing(proved.key) in ("removed", "quarantined"):
                return
            if wait and access.standing(proved.key) != "admitted":
                access.wait(proved.key, proved.name, proved.how, proved.address, time.time())
            else:
                access.admit(proved.key, proved.name, proved.how, proved.address, time.time())

        self._edit(enter, tokens)
        standing = self.access.standing(proved.key)
        if standing == "unknown":
            log.warning("%s cannot be let in: the list is full (p2prl remove)", proved.name)
        return standing

    def save_tokens(self, tokens: list[TokenEntry]) -> None:
        """A token was made, used or has expired."""
        self._edit(lambda access: None, tokens)

    def admit(self, key: str, name: str, address: str) -> None:
        """The owner lets a key in, whatever was held against it."""
        self._strikes.forgive(key)
        self._saved.quarantined.pop(key, None)
        self._edit(lambda access: access.admit(key, name, "owner", address, time.time()))
        log.info("%s (%s) was admitted by the owner", name, fingerprint(key))

    def remove(self, key: str, name: str, reason: str) -> None:
        """The owner puts a key out."""

        def put_out(access: Access) -> None:
            if access.standing(key) == "unknown":  # of an open host
                access.admit(key, name, "open", "", time.time())
            access.remove(key, reason, time.time())

        self._edit(put_out)
        log.warning("%s (%s) was removed", name, fingerprint(key))

    def quarantine(self, key: str, name: str, reason: str) -> None:
        """Keep a key out of this run, and its sessions out of the samples; a removed one is out already."""
        if self.access.standing(key) == "removed":
            return
        self._saved.quarantined[key] = reason
        # In an open host anybody has as many keys as he likes.
        while len(self._saved.quarantined) > MAX_QUARANTINED:
            self._saved.quarantined.pop(next(iter(self._saved.quarantined)))
        self.access.release(key, time.time())  # a new reason takes the place of an old one
        if self.access.standing(key) == "unknown":
            self.access.admit(key, name, "open", "", time.time())
        self.access.quarantine(key, reason, time.time())
        self.changed = True
        self.out.append(key)
        log.warning("%s (%s) is quarantined: %s", name, fingerprint(key), reason)

    def release(self, key: str, name: str) -> None:
        """End a quarantine."""
        self._saved.quarantined.pop(key, None)
        self._strikes.forgive(key)
        self.access.release(key, time.time())
        self.changed = True
        log.info("%s (%s) is out of quarantine", name, fingerprint(key))

    # --- refusals

    def refused(self, key: str, reason: str, count: int, now: float) -> str:
        """A node did what no honest one does; why it is to be quarantined, or empty."""
        if not key or key in self._staff or self.role(key) is None:
            return ""
        return self._strikes.text(key) if self._strikes.struck(key, reason, count, now) else ""

    def shard_refused(
        self, index: int, boot_id: str, by_node: Mapping[str, Mapping[str, int]], now: float
    ) -> list[tuple[str, str]]:
        """A shard's counters; the keys that are to be quarantined, and why."""
        told = self._told.get((index, boot_id), {})
        for old in [place for place in self._told if place[0] == index]:
            del self._told[old]
        self._told[index, boot_id] = {key: dict(reasons) for key, reasons in by_node.items()}
        guilty: dict[str, str] = {}
        for key, reasons in by_node.items():
            for reason, count in reasons.items():
                new = count - told.get(key, {}).get(reason, 0)
                text = self.refused(key, reason, new, now) if new > 0 else ""
                if text:
                    guilty[key] = text
        return list(guilty.items())

    # --- time

    def look(self) -> bool:
        """Another host of this state folder may have let somebody in, or put somebody out; True if so."""
        if not self._file.changed():
            return False
        self._take(self._file.read())
        return True

    def _edit(self, edit: Callable[[Access], object], tokens: list[TokenEntry] | None = None) -> None:
        def change(stored: Stored) -> Stored:
            access = Access()
            access.load(stored.entries)
            edit(access)
            return Stored(entries_of(access), self._merged(stored.tokens, tokens))

        self._take(self._file.change(change))

    def _merged(self, stored: list[TokenEntry], ours: list[TokenEntry] | None) -> list[TokenEntry]:
        """Ours, as far as another host did not use them up meanwhile, and those that only the other one made."""
        if ours is None:
            return stored
        theirs = {token.id: token for token in stored}
        kept = [
            msgspec.structs.replace(token, uses=min(token.uses, theirs[token.id].uses))
            if token.id in theirs
            else token
            for token in ours
            if token.id in theirs or token.id not in self._tokens
        ]
        known = {token.id for token in ours} | self._tokens
        return kept + [token for token in stored if token.id not in known]

    def _take(self, stored: Stored) -> None:
        """A newer list; who has no right by it any more is out, also if it was another host that said so."""
        was_in, was_barred = set(self.access.admitted()), set(self.access.barred())
        self._load(stored)
        changed = (was_in - set(self.access.admitted())) | (set(self.access.barred()) - was_barred)
        self.out += sorted(key for key in changed if self.role(key) is None)

    def _load(self, stored: Stored) -> None:
        self._tokens = {token.id for token in stored.tokens}
        self.access = Access()
        self.access.load(stored.entries)
        for key, reason in self._saved.quarantined.items():
            if self.access.standing(key) == "unknown":
                self.access.admit(key, self._saved.names.get(key, "?"), "open", "", time.time())
            self.access.quarantine(key, reason, time.time())
        self.changed = True
