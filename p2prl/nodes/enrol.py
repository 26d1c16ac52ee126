"""How a newcomer gets in: who the host is, whether it is the one that was joined before, and the proof of the code."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.core.codes import parse_code
from p2prl.errors import NoHostFound, NotAdmitted, RemoteProtocolError, UpgradeNeeded
from p2prl.net.addresses import KnownHosts, endpoint
from p2prl.net.keys import fingerprint
from p2prl.net.sockets import Network
from p2prl.net.tokens import Token
from p2prl.nodes.identity import check_identity, check_standing
from p2prl.nodes.locate import ENROL_LIMITS, Located, Search, ask_card, remember_proved
from p2prl.wire import frames

if TYPE_CHECKING:
    from p2prl.core.enrolment import Newcomer

#: SPAKE2 takes milliseconds; the rest is for a host that is busy.
_ANSWER_S = 10.0
_POLL_S, _SAY_S = 2.0, 30.0
#: How often a person may mistype the code.
_TRIES = 3


@dataclass
class Entry:
    """One attempt to get in.

    Attributes:
        code: given on the command line; None to ask.
        token: instead of a code.
        ask_code: asks a person for the code of the host that it is told; None where there is nobody.
        say: gets (level, text).
        stop: says whether to give up (a signal came).
        wait_s: how long a busy host, or the owner's word, is waited for; None for ever.
    """

    search: Search
    node_key: str
    name: str
    known: KnownHosts
    code: str | None = None
    token: Token | None = None
    ask_code: Callable[[str], str] | None = None
    say: Callable[[str, str], None] = lambda level, text: None
    stop: threading.Event = field(default_factory=threading.Event)
    wait_s: float | None = None

    def enter(self, located: Located) -> Located | None:
        """Prove what has to be proved, and wait for the owner's word; None if `stop` was set.

        Raises:
            NotAdmitted: the host refuses this node, or is not the one that it was.
            NoHostFound: it fell silent, or let us wait for longer than `wait_s`.
        """
        self._deadline = None if self.wait_s is None else time.monotonic() + self.wait_s
        card = located.card
        self._check_identity(located)
        check_standing(card, self.node_key)
        pinned = self.known.find_key(card.server_key) is not None
        if card.open and not pinned:
            if self.code is not None or self.token is not None:
                raise NotAdmitted(_unproved(located))
            self.say("warning", "open host: it admits any machine, and this machine trusts it at first sight")
            return self._wait_for_owner(located, card.standing)
        if pinned and card.standing in ("admitted", "waiting"):  # a code or a token did its work before
            if self.code is not None:
                self.say("info", _unneeded(located))
            return self._wait_for_owner(located, card.standing)
        standing = self._prove(located)
        if standing is None:
            return None
        if not pinned:  # a join that is stopped while it waits needs no code the next time
            remember_proved(self.known, located)
        return self._wait_for_owner(located, standing)

    # --- is it the host that it was?

    def _check_identity(self, located: Located) -> None:
        """Raises NotAdmitted if another key was known under this name or address, or if the token names another."""
        card = located.card
        if self.token is not None and card.server_key != self.token.server_key:
            raise NotAdmitted(
                f"the token is for a host with the key {fingerprint(self.token.server_key)}, and at {located.address} "
                f"answers {fingerprint(card.server_key)}: that is another host, or somebody in between; ask for a new "
                "token"
            )
        check_identity(self.known, located)

    # --- the proof

    def _prove(self, located: Located) -> m.Standing | None:
        """Until the host accepts the proof; None if `stop` was set."""
        from p2prl.core.enrolment import (
            Newcomer,
        )  # with it comes the exchange, which a known node does without

        tries = 0
        while not self.stop.is_set():
            secret = self._secret(located)
            newcomer = Newcomer(
                secret,
                node_key=self.node_key,
                name=self.name,
                server_key=located.card.server_key,
                entropy=os.urandom,
                token=self.token.id if self.token else "",
                protocol=self.search.protocol,
                version=self.search.version,
            )
            answer = self._dialogue(located, newcomer)
            if isinstance(answer, m.Refusal):
                # It is busy, or it was restarted in the middle of this.
                if answer.reason != "wrong_code" and answer.retry_after_s > 0:
                    self._pause(answer)
                    continue
                tries += 1
                self._refused(answer, tries)
                continue
            return newcomer.finish(answer)
        return None

    def _secret(self, located: Located) -> str:
        if self.token is not None:
            return self.token.secret
        if self.code is not None:
            return parse_code(self.code)
        name = line(located.card.host_name, 60)
        if self.ask_code is None:
            raise NotAdmitted(
                f"{name} lets in who knows its join code (it is on the host's screen): "
                "add --code CODE, set P2PRL_CODE, or use --code-file"
            )
        return parse_code(self.ask_code(f"{name} at {located.address}"))

    def _dialogue(self, located: Located, newcomer: Newcomer) -> m.EnrolProved | m.Refusal:
        """Begin, share, proof, proved: one connection, four messages.

        Raises:
            NoHostFound: no answer.
            NotAdmitted: what answers does not speak as a host does.
        """
        where = f"{located.address} port {located.base_port + 1}"
        network = Network()
        try:
            socket = network.client(
                "dealer", endpoint(located.address, located.base_port + 1), None, None, ENROL_LIMITS
            )

            def ask(message: m.Message) -> m.EnrolMessage:
                socket.send([frames.encode(message)])
                if not socket.wait(_ANSWER_S):
                    raise NoHostFound(f"the host at {where} fell silent while this node enrolled; try again")
                received = socket.receive()
                return frames.decode_enrol(received.frames[0] if received and received.frames else b"")

            share = ask(newcomer.begin())
            if isinstance(share, m.Refusal):
                return share
            if not isinstance(share, m.EnrolShare):
                raise RemoteProtocolError("malformed")
            answer = ask(newcomer.answer(share))
            if not isinstance(answer, m.EnrolProved | m.Refusal):
                raise RemoteProtocolError("malformed")
            return answer
        except RemoteProtocolError as error:
            text = f"what answers at {where} does not enrol as a p2prl host does: {error.reason}"
            raise NotAdmitted(text) from error
        finally:
            network.close()

    def _refused(self, refusal: m.Refusal, tries: int) -> None:
        """Another try for a person who mistyped; else the end.

        Raises:
            NotAdmitted, UpgradeNeeded: with the host's reason.
        """
        if refusal.reason == "protocol":
            raise UpgradeNeeded(line(refusal.text))
        asked = self.token is None and self.code is None
        if refusal.reason == "wrong_code" and not asked and self.wait_s is not None:
            raise NotAdmitted(
                f"{line(refusal.text)} (--wait does not try a wrong one again: guesses are counted)"
            )
        if refusal.reason != "wrong_code" or not asked or tries >= _TRIES:
            raise NotAdmitted(line(refusal.text))
        self.say("warning", line(refusal.text))

    # --- waiting

    def _wait_for_owner(self, located: Located, standing: m.Standing) -> Located | None:
        said = -1e9
        while standing == "waiting":
            if time.monotonic() - said >= _SAY_S:
                said = time.monotonic()
                who, me = line(located.card.host_name, 60), fingerprint(self.node_key)
                text = f"waiting until {who}'s owner lets this node in: p2prl admit {me}"
                self.say("info", text)
            if self._deadline is not None and time.monotonic() + _POLL_S > self._deadline:
                text = f"the host's owner did not let this node in (gave up after --wait {self.wait_s:g})"
                raise NotAdmitted(text)
            if not self._sleep(_POLL_S, "the host fell silent"):
                return None
            card, _trouble = ask_card(located.address, located.base_port, self.search)
            if card is not None and card.server_key == located.card.server_key:
                check_standing(card, self.node_key)
                standing = card.standing
        return None if self.stop.is_set() else located

    def _pause(self, refusal: m.Refusal) -> None:
        self.say("info", line(refusal.text))
        self._sleep(min(60.0, refusal.retry_after_s), line(refusal.text))

    def _sleep(self, seconds: float, why: str) -> bool:
        """False if `stop` was set. Raises NoHostFound when `wait_s` is over."""
        if self._deadline is not None and time.monotonic() + seconds > self._deadline:
            raise NoHostFound(f"{why} (gave up after --wait {self.wait_s:g})")
        return not self.stop.wait(seconds)


def _unneeded(located: Located) -> str:
    """For who gave a code that is not looked at: it may be another host's."""
    name, where = line(located.card.host_name, 60), f"{located.address}:{located.base_port}"
    return (
        f"{name} at {where} knows this machine, and this machine knows its key: the code is not needed, and was not "
        "compared with the host's. If it is of another host, name that one: p2prl join NAME or ADDRESS"
    )


def _unproved(located: Located) -> str:
    """For who has a code: the owner of that code wants to be known by it."""
    where = f"{located.address}:{located.base_port}"
    return (
        f"{line(located.card.host_name, 60)} at {where} is an open host: it has no join code to prove itself "
        "with. It is not the host that the code is of, or that was started anew with --open. Look for the host's "
        "address on its screen; to join an open host that you trust, leave the code away"
    )
