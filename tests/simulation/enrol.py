"""Letting in: a host with a join code, volunteers who were told it, and what carries their words.

What decides is the product's: Gate, Newcomer, Access, GuestList, Strikes, rights, with real SPAKE2. What is written
here is what nodes/front_desk.py, nodes/doorkeeper.py and nodes/enrol.py do with them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.enrolment import Attempt, CodeChanged, Effect, Gate, Newcomer, Proved, Reply
from p2prl.core.invitations import CodeEntry
from p2prl.errors import NotAdmitted, RemoteProtocolError
from p2prl.wire import frames
from tests.simulation.broker import Broker
from tests.simulation.disks import HOST_KEY, RUN_ID
from tests.simulation.host import Host
from tests.simulation.mallory import Mallory
from tests.simulation.member import Node

if TYPE_CHECKING:
    from tests.simulation.test_enrolment_sim import Lobby

#: As in nodes/enrol.py.
_ANSWER_S = 10.0
#: Of the one start of the host that there is.
_SESSION = "session"
#: A person tries again after this.
_AGAIN_S = 4.0


@dataclass
class House:
    """What the owner sees and says, and what the host's own command keeps over its broker's deaths.

    Attributes:
        uses, ttl_s: of each join code.
        code: as the broker told it last.
        made: when each code was made.
        known_since: when the broker started that first wrote down what is left of the first code.
        took: keys that each code let in.
        guessed: wrong guesses at each code.
        tokens: (id, secret) of those that were given away.
        word: the owner's last word on a key: `in`, `removed` or `quarantined`.
    """

    uses: int | None
    ttl_s: float | None
    code: m.CodeNews
    made: dict[str, float] = field(default_factory=dict)
    known_since: float | None = None
    took: dict[str, set[str]] = field(default_factory=dict)
    guessed: Counter[str] = field(default_factory=Counter)
    tokens: list[tuple[str, str]] = field(default_factory=list)
    word: dict[str, str] = field(default_factory=dict)


class DoorBroker(Broker):
    """A broker with its front desk."""

    def __init__(self, host: Host, lobby: Lobby) -> None:
        #: Nodes that were quarantined, and that is not written down.
        self._struck: set[str] = set()
        self.lobby, self.house = lobby, lobby.house
        super().__init__(host)
        rng, now, wall = lobby.rng, self.process.now(), host.machine.wall_time()
        self.gate = Gate(
            HOST_KEY,
            entropy=rng.randbytes,
            below=rng.randrange,
            code="",
            uses=self.house.uses,
            ttl_s=self.house.ttl_s,
            now=now,
        )
        code = self.house.code
        if self.saved.code_session == _SESSION:
            if self.saved.code is not None:
                self.gate.load_code(self.saved.code, now, wall)
        elif code.code:
            expires_at = None if code.ttl_s is None else wall + code.ttl_s
            self.gate.load_code(CodeEntry(code=code.code, uses=code.uses, expires_at=expires_at), now, wall)
        self.gate.load_tokens(self.admissions.tokens(), now, wall)
        self.tell_owner(self.gate.news(now))
        self.process.every(0.25, lambda: self.carry_out(self.gate.ticked(self.process.now())))

    def card(self, key: str) -> m.EnrolCard:
        """Who this host is."""
        return m.EnrolCard(
            protocol=m.PROTOCOL, version="0", server_key=HOST_KEY, run_id=RUN_ID, host_name="host",
            boot_id="", term=self.saved.term, base_port=self.host.base_port, env="e", agent="a", open=False,
            standing=self.admissions.standing(key),
        )  # fmt: skip

    def enrol(self, peer: bytes, address: str, message: m.Message) -> None:
        """Something came to the enrol socket."""
        if isinstance(message, m.EnrolAsk):
            self.lobby.air.down(peer, self.card(message.node_key))
        elif isinstance(message, m.EnrolBegin | m.EnrolProof):
            self.carry_out(self.gate.handle(peer, address, message, self.process.now()))

    def carry_out(self, effects: list[Effect]) -> None:
        """As the doorkeeper does."""
        for effect in effects:
            self.process.act()
            if isinstance(effect, Reply):
                self.lobby.air.down(effect.peer, effect.message)
            elif isinstance(effect, Proved):
                self.lobby.air.down(effect.peer, self._proved(effect))
            elif isinstance(effect, CodeChanged):
                self.tell_owner(effect.news)
            elif isinstance(effect, Attempt):
                self.lobby.attempted(effect)

    def _proved(self, proved: Proved) -> m.EnrolProved | m.Refusal:
        self.lobby.check_proved(proved)
        wall = self.host.machine.wall_time()
        standing = self.admissions.proved(proved, self.gate.tokens(self.process.now(), wall))
        if proved.how == "code" and self.house.uses is not None:
            self.tell_owner(self.gate.news(self.process.now()))
        self.spread()
        if standing in ("admitted", "waiting"):
            return m.EnrolProved(proof=proved.proof, standing=standing)
        return m.Refusal(reason=standing, text=standing)

    def tell_owner(self, news: m.CodeNews) -> None:
        """The host's own command hears of each code, and when a broker starts."""
        self._note()
        self.house.code = news
        self.house.made.setdefault(news.code, self.lan.now)

    def _note(self) -> None:
        """What is left of the code is in the broker's file."""
        self.saved.code = self.gate.saved_code(self.process.now(), self.host.machine.wall_time())
        self.saved.code_session = _SESSION

    def save(self) -> None:
        super().save()
        if self.saved.code_session and self.house.known_since is None:
            self.house.known_since = self.started - self.host.machine.monotonic
        self.house.word.update(dict.fromkeys(self._struck, "quarantined"))
        self._struck.clear()

    def _each_second(self) -> None:
        self._note()
        super()._each_second()

    def refuse(self, user: str, reason: str) -> None:
        super().refuse(user, reason)
        text = self.admissions.refused(user, reason, 1, self.process.now())
        if text:
            self.quarantine(user, text)

    def quarantine(self, key: str, text: str) -> None:
        self._struck.add(key)
        super().quarantine(key, text)

    def order(self, what: str, key: str) -> None:
        """The owner's word on a key; it holds once it was answered."""
        now, wall = self.process.now(), self.host.machine.wall_time()
        if what == "admit":
            self.admissions.admit(key, key[:4], "")
        elif what == "remove":
            self.admissions.remove(key, key[:4], "removed by the owner")
        elif what == "quarantine":
            self.admissions.quarantine(key, key[:4], "by the owner")
        elif what == "release":
            self.admissions.release(key, key[:4])
        elif what == "renew":
            self.carry_out(self.gate.renew("asked", now))
        elif what == "invite":
            token, secret = f"{self.lan.rng.getrandbits(64):016x}", f"{self.lan.rng.getrandbits(160):040x}"
            if self.gate.invite(token, secret, 2, 3600.0, now):
                self.admissions.save_tokens(self.gate.tokens(now, wall))
                self.house.tokens.append((token, secret))
        self.save()
        self.lobby.answered(what, key)
        self.spread()


class Volunteer:
    """Somebody at a node who was told the join code, or has a token; and tries until the node is in.

    Attributes:
        pinned: the host's key, once it is proved.
        knows: the right secret, or another one.
    """

    def __init__(self, lobby: Lobby, node: Node, how: str) -> None:
        self.lobby, self.node, self.how = lobby, node, how
        self.knows = how != "wrong"
        self.pinned = ""
        self.inside = self.warned = False
        self._newcomer: Newcomer | None = None
        self._expected = HOST_KEY
        self._expects: tuple[type[m.Message], ...] = ()
        self._peer = b""
        self._tries = 0

    def begin(self) -> None:
        """Ask who is there."""
        if self.inside or (self.warned and not self.lobby.fair):
            return
        self._tries += 1
        self._peer = f"{self.node.key[:4]} {self._tries}".encode()
        self._newcomer = None
        tries = self._tries
        ask = m.EnrolAsk(protocol=m.PROTOCOL, version="", node_key=self.node.key)
        self._say(ask, (m.EnrolCard,))
        self.lobby.lan.after(_ANSWER_S, lambda: self._again(tries, 0.0))

    def _again(self, tries: int, delay_s: float) -> None:
        if tries == self._tries:
            self._tries += 1
            self.lobby.lan.after(delay_s + _AGAIN_S * self.lobby.rng.random(), self.begin)

    def hear(self, peer: bytes, message: m.Message) -> None:
        """Something arrived; of an earlier try it is not read any more."""
        if peer != self._peer or self.inside:
            return
        try:
            self._handle(message)
        except NotAdmitted:
            self.warned = True  # whoever answered is not the host: a person has to look into that
            self._again(self._tries, 0.0)
        except RemoteProtocolError:
            self._again(self._tries, 0.0)

    def _handle(self, message: m.Message) -> None:
        """One answer to each thing that was said; anything else is not how a host enrols."""
        expected, self._expects = self._expects, ()
        if not isinstance(message, expected):
            raise RemoteProtocolError("malformed")
        if isinstance(message, m.EnrolCard):
            self._on_card(message)
        elif isinstance(message, m.EnrolShare) and self._newcomer is not None:
            self._say(self._newcomer.answer(message), (m.EnrolProved, m.Refusal))
        elif isinstance(message, m.EnrolProved) and self._newcomer is not None:
            standing = self._newcomer.finish(message)
            assert self._expected == HOST_KEY, f"{self.node.key[:4]} pins the key of somebody else"
            assert self.knows, f"{self.node.key[:4]} was proved to without the code"
            self.pinned = self._expected
            self._enter(standing)
        elif isinstance(message, m.Refusal):
            self._again(self._tries, max(message.retry_after_s, 1.0))

    def _on_card(self, card: m.EnrolCard) -> None:
        if self.pinned and card.server_key != self.pinned:
            raise NotAdmitted("the host's key changed")
        if self.pinned and card.standing in ("admitted", "waiting"):
            self._enter(card.standing)
            return
        secret, token = self.lobby.secret_for(self)
        self._expected = card.server_key
        self._newcomer = Newcomer(
            secret,
            node_key=self.node.key,
            name=self.node.key[:4],
            server_key=card.server_key,
            entropy=self.lobby.rng.randbytes,
            token=token,
        )
        self._say(self._newcomer.begin(), (m.EnrolShare, m.Refusal))

    def _enter(self, standing: m.Standing) -> None:
        if standing == "admitted":
            self.inside = True
            self.node.barred = ""
            self.node.start()
        else:
            self._again(self._tries, 1.0)

    def _say(self, message: m.Message, expects: tuple[type[m.Message], ...]) -> None:
        self._expects = expects
        self.lobby.air.up(self._peer, self.node.key[:4], message, self.hear)


Hear = Callable[[bytes, m.Message], None]


class Air:
    """What carries enrolments: no keys, no connections that anybody could rely on, and Mallory in between."""

    def __init__(self, lobby: Lobby) -> None:
        self.lobby = lobby
        self.mallory = Mallory(lobby, self)
        self._hears: dict[bytes, Hear] = {}
        self._addresses: dict[bytes, str] = {}

    def up(self, peer: bytes, address: str, message: m.Message, hear: Hear) -> None:
        """To the host."""
        self._hears[peer], self._addresses[peer] = hear, address
        for late_s, to, changed in self.mallory.meddle(True, peer, message):
            self.carry(True, to, changed, late_s)

    def down(self, peer: bytes, message: m.Message) -> None:
        """To a newcomer."""
        for late_s, to, changed in self.mallory.meddle(False, peer, message):
            self.carry(False, to, changed, late_s)

    def carry(self, up: bool, peer: bytes, message: m.Message, late_s: float) -> None:
        """It arrives as a frame."""
        frame = frames.encode(message)
        self.lobby.lan.after(0.01 + late_s, lambda: self._arrive(up, peer, frame))

    def _arrive(self, up: bool, peer: bytes, frame: bytes) -> None:
        try:
            message = frames.decode_enrol(frame)
        except RemoteProtocolError:
            return
        if not up:
            hear = self._hears.get(peer)
            if hear is not None:
                hear(peer, message)
            return
        broker, address = self.lobby.host.broker, self._addresses.get(peer, "mallory")
        if isinstance(broker, DoorBroker):
            broker.process.run(lambda: broker.enrol(peer, address, message))
            self.lobby.check_list()
