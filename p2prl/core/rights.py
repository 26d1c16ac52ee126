"""Who may say what to the broker. A key has one role; what it says without the right is refused as `not_permitted`.

Each of the host's own processes has a key of its own. Everybody else who was let in is a `member`, with its commands
(`p2prl status`, `p2prl eval`) as with its players; so is, in an open host, whoever was not put out.
"""

from __future__ import annotations

from typing import Literal

from p2prl.core import messages as m

#: What a key is to the host. Hello.role is what a process says that it is: see HELLO_ROLES.
Role = Literal["owner", "trainer", "shard", "member"]

_ALL: frozenset[Role] = frozenset(("owner", "trainer", "shard", "member"))
_OWNER: frozenset[Role] = frozenset(("owner",))
_TRAINER: frozenset[Role] = frozenset(("trainer",))
_SHARD: frozenset[Role] = frozenset(("shard",))
_MEMBER: frozenset[Role] = frozenset(("member",))
_READERS: frozenset[Role] = frozenset(("owner", "trainer", "member"))

#: Every message that the broker takes.
RIGHTS: dict[type[m.Message], frozenset[Role]] = {
    m.Hello: _ALL,
    m.Goodbye: _ALL,
    m.StatusAsk: _READERS,
    m.WeightsAsk: _READERS,
    m.Heartbeat: _MEMBER,
    m.EvalResult: _MEMBER,
    m.Fault: _MEMBER,
    m.ShardReceipts: _SHARD,
    m.ShardReport: _SHARD,
    m.TrainerReport: _TRAINER,
    m.StopAsk: _OWNER,
    m.Rename: _OWNER,
    m.NodesAsk: _OWNER,
    m.AdmitAsk: _OWNER,
    m.RemoveAsk: _OWNER,
    m.QuarantineAsk: _OWNER,
    m.CodeAsk: _OWNER,
    m.InviteAsk: _OWNER,
}

#: Who may introduce itself as what.
HELLO_ROLES: dict[m.Role, frozenset[Role]] = {
    "member": _MEMBER,
    "shard": _SHARD,
    "trainer": _TRAINER,
    "client": frozenset(("owner", "member")),
    "owner": _OWNER,
}


def may(role: Role, kind: type[m.Message]) -> bool:
    """True if a key with this role may say such a message.

    >>> may("member", m.StatusAsk), may("member", m.StopAsk)
    (True, False)
    """
    return role in RIGHTS.get(kind, ())


def may_be(role: Role, said: m.Role) -> bool:
    """True if a key with this role may say Hello as `said`.

    >>> may_be("member", "client"), may_be("member", "trainer")
    (True, False)
    """
    return role in HELLO_ROLES.get(said, ())
