"""What must hold after each event, and at the end of a schedule; else AssertionError says what does not."""

from __future__ import annotations

from p2prl.core.messages import Books
from tests.simulation.host import Host
from tests.simulation.member import Node


def check_now(host: Host, nodes: list[Node]) -> None:
    """After each event, of what it may have changed."""
    touched, broker = host.lan.touched, host.broker
    for node in nodes:
        if node.member is not None and node.member.process.name in touched:
            check_member(node)
    if broker is None or not broker.process.alive or broker.process.name not in touched:
        return
    changed, broker.changed = broker.changed, set()
    for node in nodes:
        ledger = broker.saved.ledgers.get(node.key)
        if ledger is not None and (node.key in changed or not changed):
            check_ledger(host, node, ledger.total())
    if not changed:
        return
    ranks = [seat.rank for member in broker.roster.live() for seat in member.seats]
    assert len(ranks) == len(set(ranks)), f"a rank was given to two members: {sorted(ranks)}"


def check_member(node: Node) -> None:
    """A member's books balance; nothing was stored, by its word, that is not on a shard."""
    assert node.member is not None
    outgoing = node.member.outgoing
    books = outgoing.books()
    assert books.balanced(), f"a member's books do not balance: {books}"
    assert books.produced <= node.truth.made, f"{books.produced} counted, {node.truth.made} made"
    stored = node.host.disk.per_node[node.key]
    assert books.stored <= stored, f"the member counts {books.stored} stored, there are {stored}"
    spool = outgoing.spool
    assert spool.size_bytes <= node.plan.spool_bytes, "the spool is larger than it may be"
    if outgoing.away and spool.active and not spool.full:
        alone = node.member.in_memory()
        assert not alone, f"the host is away, and {sorted(alone)} are in memory alone"


def check_ledger(host: Host, node: Node, total: Books) -> None:
    """The broker's word on a node is never more than the truth."""
    assert total.balanced(), f"the broker's books do not balance: {total}"
    stored = host.disk.per_node[node.key]
    assert total.stored <= stored, f"the broker counts {total.stored} stored, there are {stored}"
    assert total.produced <= node.truth.made, f"the broker counts {total.produced} of {node.truth.made} made"


def settled(node: Node) -> bool:
    """This volunteer made everything, and has an answer to everything."""
    if node.barred:
        return True
    member = node.member
    if member is None or member.welcome is None or node.truth.made < node.plan.bundles:
        return False
    return member.outgoing.outbox.pending == 0 and not member.outgoing.spool.active


def told(host: Host, nodes: list[Node]) -> bool:
    """The broker has the books of all members as they are, and they have its weights."""
    broker = host.broker
    if broker is None:
        return False
    current = broker.saved.weights_version if broker.newest else -1
    for node in nodes:
        if node.barred or node.member is None:
            continue
        ledger = broker.saved.ledgers.get(node.key)
        if ledger is None or ledger.current != node.member.outgoing.books():
            return False
        if node.member.sync.version < current:
            return False
    return True


def check_end(host: Host, nodes: list[Node]) -> None:
    """The weather was good for long enough: each bundle is where the books say."""
    assert host.broker is not None
    for node in nodes:
        if not node.barred:
            _check_whereabouts(host, node)
            _check_totals(host, node)


def _check_whereabouts(host: Host, node: Node) -> None:
    truth, stored, away = node.truth, host.disk.stored, host.disk.turned_away
    for number in range(truth.made):
        copies = stored[node.key, number]
        if number in truth.gone:
            assert copies == 0, f"bundle {number} of {node.key[:8]} was dropped, and is stored"
        elif number not in truth.unsure and (node.key, number) not in away:
            assert copies == 1, f"bundle {number} of {node.key[:8]} is stored {copies} times"


def _check_totals(host: Host, node: Node) -> None:
    assert host.broker is not None
    truth, ledger = node.truth, host.broker.saved.ledgers[node.key]
    total = ledger.total()
    check_ledger(host, node, total)
    assert total.pending == 0, f"everything is settled, and the broker counts {total.pending} pending"
    least = truth.made - truth.unheard
    # Where messages overtake each other, an older heartbeat may have been the last that was heard.
    assert total.produced >= least or not host.lan.weather.ordered, (
        f"{truth.made} were made, the broker was told of {least}, and counts {total.produced}"
    )
    gone = len(truth.gone) + sum(key == node.key for key, _ in host.disk.turned_away)
    lost = total.dropped + total.stale + total.refused
    missing = truth.made - host.disk.per_node[node.key]
    assert missing <= gone + len(truth.unsure), f"{missing} are missing, {gone} + {len(truth.unsure)} may be"
    if host.lan.weather.ordered and not host.kills and node.plan.spool is None:
        # Whatever its members heard of it before they died, each verdict passed through this one broker.
        assert total.stored == host.disk.per_node[node.key], f"{total} against {host.disk.per_node[node.key]}"
    if not truth.unsure and not truth.unheard and not truth.untold:
        # Nobody went with something that it alone knew: then the books are not only true, they are exact.
        assert total.stored == host.disk.per_node[node.key], f"{total} against {host.disk.per_node[node.key]}"
        assert lost == missing, f"{missing} are missing, and {total} counts {lost}"
