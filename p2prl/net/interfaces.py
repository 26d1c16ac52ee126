"""Which network interfaces p2prl uses: the LAN's, not every bridge and tunnel that a laptop carries."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import psutil

from p2prl.errors import P2prlError, UsageError

#: Beginnings of the names (any case) of what containers, virtual machines and VPNs make. A name given with
#: `--interface` is used whatever it is called.
VIRTUAL_PREFIXES = (
    "docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "vethernet", "vmware", "virtualbox", "lxc", "lxdbr",
    "podman", "cni", "flannel", "cali", "cilium", "kube", "weave", "nerdctl", "dummy", "ifb",
    "tailscale", "tun", "tap", "utun", "wg", "zt", "ppp", "ipsec", "nordlynx", "hamachi", "gif", "stf",
    "awdl", "llw", "anpi",
)  # fmt: skip

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True)
class Interface:
    """One network interface.

    Attributes:
        name: as the platform shows it to people.
        index: the kernel's number for it; 0 if it has none to tell.
        v4, v6: its addresses as text, without scope ids.
        networks: the subnets of those addresses.
        up: False if the link is down.
    """

    name: str
    index: int
    v4: tuple[str, ...] = ()
    v6: tuple[str, ...] = ()
    networks: tuple[Network, ...] = ()
    up: bool = True

    @property
    def addresses(self) -> tuple[str, ...]:
        """IPv4 first."""
        return self.v4 + self.v6

    @property
    def loopback(self) -> bool:
        """True if this machine alone can be reached by it."""
        addresses = self.addresses
        return bool(addresses) and all(ipaddress.ip_address(address).is_loopback for address in addresses)

    @property
    def usable(self) -> bool:
        """Up, with an address."""
        return self.up and bool(self.addresses)


def chosen_interfaces(names: Sequence[str] = ()) -> list[Interface]:
    """The interfaces to listen on and to look for hosts on.

    Args:
        names: what `--interface` named (names or addresses); empty to choose.

    Raises:
        UsageError: a name that this machine does not have; the text lists those it has.
        P2prlError: none of them is up.
    """
    return choose(all_interfaces(), names)


def choose(present: Sequence[Interface], names: Sequence[str] = ()) -> list[Interface]:
    """`chosen_interfaces`, of these: pure."""
    if names:
        return _named(present, names)
    usable = [interface for interface in present if interface.usable]
    real = [interface for interface in usable if not interface.loopback and not is_virtual(interface.name)]
    routed = [interface for interface in real if not _only_self_assigned(interface)]
    chosen = routed or real or [interface for interface in usable if interface.loopback]
    if not chosen:
        raise P2prlError(
            "no network interface of this machine is up; connect it, or name one with --interface"
        )
    return chosen


def is_virtual(name: str) -> bool:
    """True for the names that containers, virtual machines and VPNs give."""
    return name.lower().startswith(VIRTUAL_PREFIXES)


def _named(present: Sequence[Interface], names: Sequence[str]) -> list[Interface]:
    chosen: list[Interface] = []
    for name in names:
        matches = [interface for interface in present if name in (interface.name, *interface.addresses)]
        if not matches:
            known = ", ".join(sorted(interface.name for interface in present)) or "none"
            raise UsageError(f"there is no network interface {name!r} here; this machine has: {known}")
        chosen += [interface for interface in matches if interface not in chosen]
    usable = [interface for interface in chosen if interface.usable]
    if not usable:
        raise P2prlError(
            f"the interface {', '.join(names)} is down or has no address; bring it up, or name another"
        )
    return usable


def _only_self_assigned(interface: Interface) -> bool:
    """169.254/16 alone means that nobody answered DHCP there: usable, but only if there is nothing better."""
    return bool(interface.v4) and all(ipaddress.ip_address(address).is_link_local for address in interface.v4)


def all_interfaces() -> list[Interface]:
    """Every interface of this machine, in the platform's order."""
    states = psutil.net_if_stats()
    found = []
    for name, entries in psutil.net_if_addrs().items():
        v4 = [e for e in entries if e.family == socket.AF_INET]
        v6 = [e for e in entries if e.family == socket.AF_INET6]
        found.append(
            Interface(
                name=name,
                index=_index(name),
                v4=tuple(e.address for e in v4),
                v6=tuple(e.address.split("%")[0] for e in v6),
                networks=tuple(_network(e.address, e.netmask) for e in v4 + v6),
                up=name not in states or states[name].isup,
            )
        )
    return found


def _index(name: str) -> int:
    try:
        return socket.if_nametoindex(name)
    except OSError:  # Windows knows the index by another name than the one it shows
        return 0


def _network(address: str, netmask: str | None) -> Network:
    """The subnet; /64 or the single address where the platform does not tell the mask."""
    plain = address.split("%")[0]
    if ":" not in plain:
        return ipaddress.ip_network(f"{plain}/{netmask or 32}", strict=False)
    bits = int(ipaddress.IPv6Address(netmask.split("%")[0])).bit_count() if netmask else 64
    return ipaddress.ip_network(f"{plain}/{bits}", strict=False)
