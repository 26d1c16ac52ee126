"""Is the host that answers the one that it was, and does it still want this node? Asked before it is dialled."""

from __future__ import annotations

from p2prl.core import messages as m
from p2prl.core.bounds import line
from p2prl.errors import NotAdmitted
from p2prl.net.addresses import KnownHosts
from p2prl.net.keys import fingerprint
from p2prl.nodes.locate import Located


def check_identity(known: KnownHosts, located: Located) -> None:
    """Raises NotAdmitted, with ssh's clarity, if another key was known under this name or at this place."""
    card = located.card
    other = known.other_key(card.server_key, card.host_name, located.address, located.base_port)
    if other is None:
        return
    name = line(other.name, 60)
    raise NotAdmitted(
        f"THE HOST'S KEY CHANGED: {name} was joined before with the key {fingerprint(other.server_key)}, and what "
        f"answers now as {line(card.host_name, 60)} at {located.address}:{located.base_port} has the key "
        f"{fingerprint(card.server_key)}. Somebody may be pretending to be {name}, or it was set up anew. Ask its "
        f"owner whether the new key is right; if it is: p2prl forget {name}, then join with its code"
    )


def check_standing(card: m.EnrolCard, node_key: str) -> None:
    """Raises NotAdmitted for a node that was put out; `node_key` is its own."""
    host, node = line(card.host_name, 60), fingerprint(node_key)
    if card.standing == "removed":
        raise NotAdmitted(
            f"{host}'s owner removed this node: ask there to be let in again (p2prl admit {node})"
        )
    if card.standing == "quarantined":
        raise NotAdmitted(
            f"{host} keeps this node out of its run: ask its owner why (p2prl nodes), and to be let in again "
            f"(p2prl quarantine {node} --undo)"
        )
