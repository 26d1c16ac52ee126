"""Letting in: a host with a join code, volunteers who have it, and Mallory, who reads and changes all that they say.

What decides is the product's: Gate, Newcomer, Access, GuestList, Strikes, rights, with real SPAKE2. What is written here
is what nodes/front_desk.py, nodes/doorkeeper.py and nodes/enrol.py do with them.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.codes import new_code
from p2prl.core.enrolment import Attempt, CodeChanged, Effect, Gate, Newcomer, Proved, Reply
from p2prl.core.invitations import CodeEntry
from p2prl.core.pake import Claim, Party
from p2prl.errors import LocalProtocolError, NotAdmitted, RemoteProtocolError
from p2prl.wire import frames
from tests.simulation.host import HEADER, HOST_KEY, RUN_ID, Broker, Host
from tests.simulation.member import Node

if TYPE_CHECKING:
    from tests.simulation.test_enrolment_sim import Lobby

#: As in nodes/enrol.py.
_ANSWER_S = 10.0
#: A person tries again after this.
_AGAIN_S = 4.0
#: Mallory's key, which is not let in, whatever he does.
MALLORY = "M" * 40


@dataclass
class House:
    """What the owner sees and says, and what the host's own command keeps over its broker's deaths.

    Attributes:
        uses, ttl_s: of each join code.
        code: as the broker told it last, and when that was.
        made: when each code was made, or a broker went on with it.
        took: keys that each code let in.
        guessed: wrong guesses at each code.
        tokens: (id, secret) of those that were given away.
        word: the owner's last word on a key: `in`, `removed` or `quarantined`.
    """

    rng: random.Random
    approve: bool
    uses: int | None
    ttl_s: float | None
    code: m.CodeNews
    code_at: float
    made: dict[str, float]
    took: dict[str, set[str]]
    guessed: Counter[str]
    tokens: list[tuple[str, str]]
    word: dict[str, str]


class DoorBroker(Broker):
    """A broker with its front desk."""

    def __init__(self, host: Host, lobby: Lobby) -> None:
        super().__init__(host)
        self.lobby, self.house = lobby, lobby.house
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
        if code.code:
            left_s = code.ttl_s
            if left_s is not None:
                left_s -= self.lan.now - self.house.code_at
            expires_at = None if left_s is None else wall + left_s
            self.gate.load_code(CodeEntry(code=code.code, uses=code.uses, expires_at=expires_at), now, wall)
        self.gate.load_tokens(self.admissions.tokens(), now, wall)
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
        if proved.how == "code":
            self.tell_owner(self.gate.news(self.process.now()))
        self.spread()
        if standing in ("admitted", "waiting"):
            return m.EnrolProved(proof=proved.proof, standing=standing)
        return m.Refusal(reason=standing, text=standing)

    def tell_owner(self, news: m.CodeNews) -> None:
        """The host's own command hears of each code."""
        house = self.house
        house.code, house.code_at = news, self.lan.now
        house.made.setdefault(news.code, self.lan.now)

    def refuse(self, user: str, reason: str) -> None:
        super().refuse(user, reason)
        text = self.admissions.refused(user, reason, 1, self.process.now())
        if text:
            self.quarantine(user, text)

    def quarantine(self, key: str, text: str) -> None:
        self.house.word[key] = "quarantined"
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
            self.carry_out(self.gate.ticked(now))  # a code that is over just now: nobody would be told of it
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


class Mallory:
    """A machine on the LAN, between everybody. He does not know the code; he knows all that is said."""

    def __init__(self, lobby: Lobby, air: Air) -> None:
        self.lobby, self.air, self.rng = lobby, air, lobby.rng
        self._heard: list[tuple[bool, bytes, m.Message]] = []
        #: Peers to whom he pretends to be the host.
        self._misled: set[bytes] = set()
        #: How he is minded: what he does with a message, and how often.
        self._tricks = self.rng.sample(
            [
                "lose",
                "double",
                "delay",
                "replay",
                "key",
                "share",
                "standing",
                "card",
                "name",
                "mirror",
                "pretend",
            ],
            self.rng.randrange(1, 5),
        )

    def meddle(self, up: bool, peer: bytes, message: m.Message) -> list[tuple[float, bytes, m.Message]]:
        """What becomes of a message: (delay, peer, message) of each that arrives."""
        self._heard.append((up, peer, message))
        if not self.lobby.fair and peer in self._misled:
            return [(0.0, peer, message if up else self._pretend(message))]
        if self.lobby.fair or self.rng.random() < 0.6:
            return [(0.0, peer, message)]
        trick = self.rng.choice(self._tricks)
        self.lobby.tally.attacks += 1
        if trick == "lose":
            return []
        if trick == "double":
            return [(0.0, peer, message), (self.rng.random(), peer, message)]
        if trick == "delay":
            return [(12.0 * self.rng.random(), peer, message)]
        if trick == "replay":
            older_up, _, older = self.rng.choice(self._heard)
            self.air.carry(older_up, self.rng.choice((peer, b"mallory")), older, self.rng.random())
            return [(0.0, peer, message)]
        if trick == "pretend" and isinstance(message, m.EnrolAsk):
            self._misled.add(peer)
        return [(0.0, peer, self._changed(trick, message))]

    def _pretend(self, message: m.Message) -> m.Message:
        """What he says to a newcomer who is to take him for the host."""
        if isinstance(message, m.EnrolCard):
            return self._changed("card", message)
        if isinstance(message, m.EnrolShare):
            return m.EnrolShare(share=self._share(of_host=True))
        return m.EnrolProved(proof=self.rng.randbytes(32), standing="admitted")

    def _changed(self, trick: str, message: m.Message) -> m.Message:
        """One that is not what was said."""
        fields = {name: getattr(message, name) for name in message.__struct_fields__}
        if trick == "key" and isinstance(message, m.EnrolBegin):
            fields["node_key"] = MALLORY
        elif trick == "name" and isinstance(message, m.EnrolBegin):
            fields["name"] = "somebody else"
        elif trick == "share" and isinstance(message, m.EnrolBegin | m.EnrolShare):
            fields["share"] = self._share(isinstance(message, m.EnrolShare))
        elif trick == "mirror" and isinstance(message, m.EnrolShare | m.EnrolProved):
            heard = [
                one
                for up, _, one in self._heard
                if up and hasattr(one, "share" if "share" in fields else "proof")
            ]
            if heard and "share" in fields:
                fields["share"] = self.rng.choice(heard).share  # type: ignore[attr-defined]
            elif heard:
                fields["proof"] = self.rng.choice(heard).proof  # type: ignore[attr-defined]
        elif trick == "standing" and isinstance(message, m.EnrolProved | m.EnrolCard):
            fields["standing"] = self.rng.choice(("admitted", "waiting", "removed", "unknown"))
        elif trick == "card" and isinstance(message, m.EnrolCard):
            fields["server_key"], fields["open"] = MALLORY, True
        return type(message)(**fields)

    def _share(self, of_host: bool) -> bytes:
        claim = Claim(m.PROTOCOL, "", "0" * 40, "0000", HOST_KEY, "")
        guess = new_code(self.rng.randrange)
        return Party("host" if of_host else "newcomer", guess, claim, self.rng.randbytes).share

    def attack(self) -> None:
        """Something of his own: a guess, nonsense, a bundle, an order, weights."""
        self.lobby.tally.attacks += 1
        if self.rng.random() < 0.5:
            self._try_to_get_in()
        else:
            self._speak_without_right()

    def _try_to_get_in(self) -> None:
        key = self.rng.choice((MALLORY, self.rng.choice(self.lobby.nodes).key))
        guess = Newcomer(
            new_code(self.rng.randrange),
            node_key=key,
            name="m",
            server_key=HOST_KEY,
            entropy=self.rng.randbytes,
        )
        peer = b"mallory %d" % self.rng.getrandbits(32)

        def hear(peer: bytes, message: m.Message) -> None:
            if isinstance(message, m.EnrolShare):
                proof = m.EnrolProof(proof=bytes(32))
                with contextlib.suppress(LocalProtocolError, RemoteProtocolError):  # what he himself changed
                    proof = guess.answer(message)
                self.air.up(peer, "mallory", proof, hear)
            elif isinstance(message, m.EnrolProved) and not self.lobby.is_heard(message):
                raise AssertionError("the host proved itself to somebody who does not know the code")

        self.air.up(peer, "mallory", guess.begin(), hear)

    def _speak_without_right(self) -> None:
        """With keys of his own, and with those of a volunteer who means ill."""
        host, rng = self.lobby.host, self.rng
        broker = host.broker
        assert broker is not None
        insiders = [one.node.key for one in self.lobby.volunteers if one.inside]
        user = rng.choice([MALLORY, *insiders[:1]])
        victim = rng.choice(self.lobby.nodes).key
        verdicts = [m.Verdict(seq=seq, status="stored") for seq in range(4)]
        lies: list[m.Message] = [
            m.ShardReceipts(shard=0, node=victim, boot_id="x", verdicts=verdicts),
            m.RemoveAsk(key=victim),
            m.AdmitAsk(key=MALLORY),
            m.StopAsk(reason="return"),
            m.Hello(protocol=m.PROTOCOL, version="", role="trainer", name="t", boot_id="t"),
            m.TrainerReport(state="training", insert_ceiling=0),
        ]
        parts = [frames.encode(rng.choice(lies))]
        for _ in range(rng.choice((1, 3, 150))):
            broker.process.run(lambda: broker._on_control(b"mallory", user, parts))
        out = [key for key, word in self.lobby.house.word.items() if word != "in"]
        giver = rng.choice([MALLORY, *out])  # who was put out may still have a connection
        shard = rng.choice([one for one in host.shards if one is not None])
        delivery = m.Delivery(run_id=RUN_ID, boot_id="m", seq=rng.randrange(5))
        bundle = [frames.encode(delivery), HEADER.pack(-1, 0), b"payload"]
        shard.process.run(lambda: shard._take(b"mallory", giver, bundle))
        if user == MALLORY:
            header = m.WeightsHeader(run_id=RUN_ID, version=10_000, codec="", size_bytes=1)
            broker.process.run(
                lambda: broker._on_publishing(b"mallory", MALLORY, [frames.encode(header), b"x"])
            )
