"""What a host's owner orders on the host's own machine: who is let in, removed or quarantined, codes and tokens."""

from __future__ import annotations

import time

from p2prl.core import messages as m
from p2prl.core.access import Entry, resolve
from p2prl.core.bounds import line
from p2prl.errors import NoHostFound, NotAdmitted, UsageError
from p2prl.net.cards import FoundHost
from p2prl.net.discovery import browse
from p2prl.net.keys import fingerprint, load_or_create, state_folder
from p2prl.net.tokens import Token, format_token
from p2prl.nodes.client import Client, locate_named
from p2prl.nodes.locate import Located
from p2prl.nodes.own_host import has_hosted, is_own, own_host, own_hosts, the_one

_MDNS_S = 1.0


class OwnerClient(Client):
    """A short conversation of the owner with the broker; each order's answer says how things are after it."""

    @property
    def fingerprint(self) -> str:
        """Of the host's key, for joiners to compare."""
        return fingerprint(self.located.card.server_key)

    def nodes(self) -> m.NodesReply:
        """Every key that the host knows, and its join code."""
        return self._ask(m.NodesAsk(), m.NodesReply)

    def find(self, node: str) -> m.NodeEntry:
        """The node that is meant by a name, a fingerprint, a key, or an unambiguous beginning of one.

        Raises:
            UsageError: none, or several; the text names them.
        """
        entries = self.nodes().nodes
        known = [Entry(key=entry.key, name=entry.name, standing=entry.standing) for entry in entries]
        wanted = resolve(node, known, fingerprint)
        return next(entry for entry in entries if entry.key == wanted.key)

    def order(self, message: m.AdmitAsk | m.RemoveAsk | m.QuarantineAsk) -> m.NodeEntry:
        """Give an order about a key; how it stands afterwards.

        Raises:
            NotAdmitted: the host does not take it from this key.
        """
        reply = self._ask(message, m.NodesReply)
        ours = [entry for entry in reply.nodes if entry.key == message.key]
        return ours[0] if ours else m.NodeEntry(key=message.key, name="?", standing="unknown")

    def code(self) -> m.CodeNews:
        """The join code as it is now.

        Raises:
            UsageError: the host is open, and has none.
        """
        reply = self.nodes()
        if reply.open:
            raise UsageError(
                f"{line(reply.host_name, 60)} is open: it lets in any machine, and has no join code"
            )
        return m.CodeNews(code=reply.code, uses=reply.uses, ttl_s=reply.ttl_s)

    def new_code(self) -> m.CodeNews:
        """Replace the join code. Raises UsageError for an open host."""
        self.code()
        return self._ask(m.CodeAsk(), m.CodeNews)

    def invite(self, uses: int, ttl_s: float) -> tuple[str, m.Invite]:
        """Make a token for `uses` nodes that is valid for `ttl_s` seconds: its text, and what the host granted."""
        made = self._ask(m.InviteAsk(uses=uses, ttl_s=ttl_s), m.Invite)
        token = Token(
            addresses=tuple(made.addresses) or (self.located.address,),
            base_port=made.base_port,
            server_key=made.server_key,
            id=made.id,
            secret=made.secret,
        )
        return format_token(token), made


def open_owner(target: str | None, wait_s: float, command: str) -> OwnerClient:
    """Speak as the owner with the host that runs here, or with the one that `target` names.

    Args:
        command: what the person typed before the target, as in `p2prl nodes`; for advice.

    Raises:
        NoHostFound: none within `wait_s`.
        NotAdmitted: the host is another state folder's: somebody else's, or on another machine.
        UsageError: several hosts run here, and none is named.
    """
    located = _own(wait_s, command) if target is None else locate_named(target, wait_s, command)
    if not is_own(located.card, load_or_create(state_folder() / "node.key").public):
        raise NotAdmitted(_not_the_owner(line(located.card.host_name, 60)))
    return OwnerClient(located)


def _own(wait_s: float, command: str) -> Located:
    """Look until one is found; hosts on ports of their owner's choice are known by what they announce."""
    deadline = time.monotonic() + wait_s
    while True:
        located = own_host()
        announced = [] if located is not None else browse(min(_MDNS_S, wait_s))
        located = located or the_one(own_hosts(_bases(announced)))
        if located is not None:
            return located
        if time.monotonic() >= deadline or not has_hosted():
            raise _none_here(announced, command)


def _bases(announced: list[FoundHost]) -> list[int]:
    ours = fingerprint(load_or_create(state_folder() / "node.key").public)
    return sorted({host.base_port for host in announced if host.fingerprint == ours})


def _none_here(announced: list[FoundHost], command: str) -> NoHostFound | NotAdmitted:
    if announced:
        return NotAdmitted(_not_the_owner(" or ".join(sorted({host.name for host in announced}))))
    return NoHostFound(
        f"no host runs on this machine from the state folder {state_folder()}; if it has a --port of its own, "
        f"name it: {command} 127.0.0.1:BASE"
    )


def _not_the_owner(name: str) -> str:
    return (
        f"only {name}'s owner can do that, on its own machine and with its state folder, which holds the owner's key "
        f"(here that is {state_folder()}; P2PRL_HOME sets it)"
    )
