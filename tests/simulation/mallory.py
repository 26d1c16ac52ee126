"""Mallory: a machine on the LAN, between everybody. He reads and changes what is said while somebody enrols, guesses,
pretends to be the host, replays; and says to the host's other sockets what he has no right to say.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.codes import new_code
from p2prl.core.enrolment import Newcomer
from p2prl.core.pake import Claim, Party
from p2prl.errors import LocalProtocolError, RemoteProtocolError
from p2prl.wire import frames
from tests.simulation.disks import HEADER, HOST_KEY, RUN_ID

if TYPE_CHECKING:
    from tests.simulation.enrol import Air
    from tests.simulation.test_enrolment_sim import Lobby

#: His key, which is not let in, whatever he does.
MALLORY = "M" * 40


class Mallory:
    """He does not know the code; he knows all that is said."""

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
        if self.rng.random() < 0.4:
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
        user = rng.choice([MALLORY, *insiders])
        node = rng.choice(self.lobby.nodes)
        victim, boot_id = node.key, "x" if node.member is None else node.member.outgoing.boot_id
        verdicts = [m.Verdict(seq=seq, status="stored") for seq in range(4)]
        lies: list[m.Message] = [
            m.ShardReceipts(shard=0, node=victim, boot_id=boot_id, verdicts=verdicts),
            m.ShardReceipts(shard=1, node=user, boot_id=boot_id, verdicts=verdicts),
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
