"""What a host says about itself on the LAN, and what may be believed of it: pure, and bounded.

Anyone on the LAN can say anything, so a stranger's texts are cut and cleaned here before they are kept or
shown.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from p2prl.net.interfaces import Interface, Network

SERVICE_TYPE = "_p2prl._tcp.local."

MAX_ADDRESSES = 16
MAX_TEXT = 64
#: A DNS label has 63 bytes; the rest is room for a suffix.
_MAX_NAME_BYTES = 58


@dataclass(frozen=True)
class HostCard:
    """What a host says about itself.

    Attributes:
        name: for people; mDNS may add a suffix.
        boot_id: changes with each start of the host, `term` with each start of its broker.
        fingerprint: of its CURVE key (net.keys.fingerprint).
    """

    run_id: str
    name: str
    boot_id: str
    term: int
    protocol: int
    fingerprint: str
    env: str
    agent: str


@dataclass(frozen=True)
class FoundHost(HostCard):
    """A host that answered; all of it unproven.

    Attributes:
        name: as advertised, suffix included.
        addresses: those in one of our subnets first.
    """

    base_port: int
    addresses: tuple[str, ...]


def instance_name(name: str) -> str:
    """`name` as a DNS label can carry it: no dots or control characters, 58 bytes at most, never empty."""
    label = clean_text(name.encode(), limit=_MAX_NAME_BYTES).replace(".", "-").strip()
    while len(label.encode()) > _MAX_NAME_BYTES:
        label = label[:-1]
    return label.strip() or "p2prl"


def clean_text(raw: bytes | None, limit: int = MAX_TEXT) -> str:
    """A stranger's bytes as text that is safe to print: UTF-8 as far as it goes, bounded."""
    text = (raw or b"")[: 4 * limit].decode("utf-8", errors="replace")
    return "".join(character for character in text if character.isprintable())[:limit]


def txt_of(card: HostCard, base_port: int) -> dict[str | bytes, str | bytes | None]:
    """The TXT record. A value has room for 255 bytes with its key; ours are far shorter."""
    return {
        "txtvers": "1",
        "run": card.run_id[:MAX_TEXT],
        "name": card.name[: MAX_TEXT // 2],
        "boot": card.boot_id[:MAX_TEXT],
        "term": str(card.term),
        "proto": str(card.protocol),
        "base": str(base_port),
        "key": card.fingerprint[:MAX_TEXT],
        "env": card.env[: MAX_TEXT // 2],
        "agent": card.agent[: MAX_TEXT // 2],
    }


def found_from(
    service_name: str,
    txt: Mapping[bytes, bytes | None],
    port: int,
    addresses: Iterable[str],
    ours: Sequence[Interface] = (),
) -> FoundHost | None:
    """A row from what a responder said; None if it is no host of ours, or makes no sense."""
    values = {key: clean_text(txt.get(key.encode())) for key in ("run", "boot", "key", "env", "agent")}
    protocol, base, term = (_number(txt.get(key)) for key in (b"proto", b"base", b"term"))
    base = port if base is None else base
    reachable = sort_addresses(addresses, ours)
    if not values["run"] or protocol is None or not 1 <= base <= 65535 or not reachable:
        return None
    return FoundHost(
        run_id=values["run"],
        name=clean_text(service_name.removesuffix("." + SERVICE_TYPE).encode()),
        boot_id=values["boot"],
        term=term or 0,
        protocol=protocol,
        fingerprint=values["key"],
        env=values["env"],
        agent=values["agent"],
        base_port=base,
        addresses=reachable,
    )


def sort_addresses(addresses: Iterable[str], ours: Sequence[Interface] = ()) -> tuple[str, ...]:
    """Those that can work from here, best first: in a subnet of ours, then IPv4; bounded, no doubles.

    Left out: loopback, unless we look on loopback ourselves; IPv6 link-local without its scope; multicast.
    """
    networks = [network for interface in ours for network in interface.networks]
    on_loopback = any(interface.loopback for interface in ours)
    kept = {a for a in addresses if _can_work(a, on_loopback)}
    ranked = sorted(kept, key=lambda a: (not _inside(a, networks), ":" in a, "%" in a, a))
    return tuple(ranked[:MAX_ADDRESSES])


def merge_hosts(rows: Iterable[FoundHost]) -> list[FoundHost]:
    """One row per host, which is a run id with a key: the highest term counts, equal ones share addresses."""
    best: dict[tuple[str, str], FoundHost] = {}
    for row in rows:
        known = best.get((row.run_id, row.fingerprint))
        if known is None or row.term > known.term:
            best[row.run_id, row.fingerprint] = row
        elif row.term == known.term:
            addresses = tuple(dict.fromkeys(known.addresses + row.addresses))[:MAX_ADDRESSES]
            best[row.run_id, row.fingerprint] = replace(known, addresses=addresses)
    return sorted(best.values(), key=lambda host: (host.name, host.run_id, host.fingerprint))


def _number(raw: bytes | None) -> int | None:
    text = clean_text(raw, limit=12)
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 10 else None


def _can_work(address: str, on_loopback: bool) -> bool:
    try:
        ip = ipaddress.ip_address(address)
    except ValueError:
        return False
    if ip.is_multicast or ip.is_unspecified or (ip.is_loopback and not on_loopback):
        return False
    return ip.version == 4 or not ip.is_link_local or "%" in address


def _inside(address: str, networks: Sequence[Network]) -> bool:
    ip = ipaddress.ip_address(address.split("%")[0])
    return any(ip.version == network.version and ip in network for network in networks)
