"""Addresses as people type them and as zmq wants them, and the hosts that were joined before."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from filelock import FileLock, Timeout

from p2prl.errors import P2prlError, UsageError
from p2prl.net.keys import fingerprint, write_private

#: The last base port whose whole block still fits.
MAX_BASE = 65535 - 80
_LABEL = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(?<!-)")

#: Bounds of the file of known hosts, so that neither a busy LAN nor a damaged disk makes it grow.
MAX_KNOWN_HOSTS = 64
MAX_KNOWN_BYTES = 1_000_000
MAX_KNOWN_ADDRESSES = 16


@dataclass(frozen=True)
class Address:
    """A host's address: an IP (IPv6 without brackets, scope id kept) or a host name, and its base port."""

    host: str
    base: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.base}" if ":" in self.host else f"{self.host}:{self.base}"


def looks_like_address(text: str) -> bool:
    """True for what is to be dialled, False for what is to be looked up by name on the LAN.

    >>> [looks_like_address(text) for text in ("lab", "192.0.2.7", "lab:47900", "::1", "localhost")]
    [False, True, True, True, True]
    """
    return ":" in text or "." in text or text == "localhost"


def parse_address(text: str, default_base: int) -> Address:
    """Read `ADDRESS[:BASE]`: IPv4, `[IPv6]:port`, bare IPv6, or a host name.

    >>> parse_address("[fe80::1%eth0]:47900", 47800)
    Address(host='fe80::1%eth0', base=47900)

    Raises:
        UsageError: it is none of these.
    """
    text = text.strip()
    if not text or "/" in text or any(character.isspace() for character in text):
        raise UsageError(
            f"{text!r} is not an address; write 192.0.2.7, 192.0.2.7:47800, [fe80::1]:47800 or a host name"
        )
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or (rest and not rest.startswith(":")) or not _is_ip(host, 6):
            raise UsageError(f"{text!r} is not an address; IPv6 with a port is written [fe80::1]:47800")
        return Address(host, _base(rest[1:], text) if rest else default_base)
    if text.count(":") > 1:
        if not _is_ip(text, 6):
            raise UsageError(f"{text!r} is not an address; IPv6 with a port is written [fe80::1]:47800")
        return Address(text, default_base)
    host, colon, port = text.partition(":")
    if not _is_host(host):
        raise UsageError(f"{host!r} is neither an IP address nor a host name, as in 192.0.2.7 or attic.local")
    return Address(host, _base(port, text) if colon else default_base)


def endpoint(host: str, port: int) -> str:
    """A zmq tcp endpoint.

    >>> endpoint("192.0.2.7", 47800), endpoint("fe80::1%eth0", 47800)
    ('tcp://192.0.2.7:47800', 'tcp://[fe80::1%eth0]:47800')
    """
    return f"tcp://[{host}]:{port}" if ":" in host else f"tcp://{host}:{port}"


def _is_ip(text: str, version: int) -> bool:
    """A zone may be any text to `ipaddress`; one with a bracket could not be written with a port."""
    try:
        return ipaddress.ip_address(text).version == version and "]" not in text
    except ValueError:
        return False


def _is_host(text: str) -> bool:
    """An IPv4 address or a name; digits and dots that are no IPv4 address are a mistake, not a name."""
    if not text or len(text) > 253:
        return False
    if all(character.isdigit() or character == "." for character in text):
        return _is_ip(text, 4)
    return all(_LABEL.fullmatch(label) for label in text.rstrip(".").split("."))


def _base(text: str, whole: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 5 and 1 <= int(text) <= MAX_BASE):
        raise UsageError(f"{text!r} in {whole!r} is not a base port; it is a number from 1 to {MAX_BASE}")
    return int(text)


class KnownHost(msgspec.Struct, frozen=True, kw_only=True):
    """A host that was joined once, or that proved the join code.

    Attributes:
        name: for people; `server_key` (Z85) is the identity.
        run_id: empty while the host has not welcomed this node.
        addresses: where it was reached, the last one that worked first.
        seen_at: when, in seconds since the epoch.
    """

    name: str
    run_id: str
    server_key: str
    addresses: tuple[str, ...]
    base_port: int
    seen_at: float


def _is_called(name: str, host: KnownHost) -> bool:
    names = (host.name, host.run_id, host.server_key, fingerprint(host.server_key))
    return (
        name in names or name in host.addresses or name in [f"{a}:{host.base_port}" for a in host.addresses]
    )


class _KnownFile(msgspec.Struct, frozen=True):
    hosts: list[KnownHost] = []


def _sound(host: KnownHost) -> KnownHost:
    """The same without what is no address: the file may be damaged and still be JSON."""
    addresses = tuple(a for a in host.addresses if _is_ip(a, 4) or _is_ip(a, 6) or _is_host(a))
    return msgspec.structs.replace(host, addresses=addresses)


def _ignore(_text: str) -> None:
    """Nobody wants to hear it."""


class KnownHosts:
    """The hosts that this state folder joined before, newest first, on disk.

    A damaged file costs the memory, never the join: it is set aside and `warn` gets one line.
    """

    def __init__(self, folder: Path, warn: Callable[[str], None] = _ignore) -> None:
        self._path = folder / "known_hosts.json"
        self._warn = warn

    def hosts(self) -> list[KnownHost]:
        """All of them, newest first."""
        try:
            with self._path.open("rb") as file:
                raw = file.read(MAX_KNOWN_BYTES + 1)
            if len(raw) > MAX_KNOWN_BYTES:
                raise ValueError("it is too large")
            hosts = msgspec.json.decode(raw, type=_KnownFile).hosts
        except FileNotFoundError:
            return []
        except (OSError, ValueError, RecursionError) as error:  # msgspec's errors are ValueErrors
            self._set_aside(str(error))
            return []
        sound = [_sound(host) for host in hosts if 1 <= host.base_port <= MAX_BASE]
        sound = [host for host in sound if host.addresses]
        return sorted(sound, key=lambda host: -host.seen_at)[:MAX_KNOWN_HOSTS]

    def find_key(self, server_key: str) -> KnownHost | None:
        """The newest host with this key."""
        return next((host for host in self.hosts() if host.server_key == server_key), None)

    def other_key(self, server_key: str, name: str, address: str, base_port: int) -> KnownHost | None:
        """A host that was joined before under this name, or at this place, with another key; None if there is none.

        A key that is known is the same host, wherever it is now and whatever it is called.
        """
        hosts = self.hosts()
        if any(host.server_key == server_key for host in hosts):
            return None
        for host in hosts:
            if host.name == name or (address in host.addresses and host.base_port == base_port):
                return host
        return None

    def forget(self, name: str) -> list[KnownHost]:
        """Drop the hosts with this name, run id, address, key or fingerprint; returns those that were dropped.

        Raises:
            P2prlError: the memory cannot be written: a key that should be forgotten would still be trusted.
        """
        gone: list[KnownHost] = []
        try:
            with FileLock(self._path.with_name(self._path.name + ".lock"), timeout=5):
                hosts = self.hosts()
                gone = [host for host in hosts if _is_called(name, host)]
                if gone:
                    kept = [host for host in hosts if host not in gone]
                    write_private(self._path, msgspec.json.encode(_KnownFile(kept)))
        except (OSError, Timeout) as error:
            raise P2prlError(f"{self._path} cannot be written ({error}); nothing is forgotten") from error
        return gone

    def remember(self, host: KnownHost) -> None:
        """Add a host, or bring it up to date, also one that had not welcomed this node yet; the oldest make room.

        A memory that cannot be written is only warned about.
        """
        host = msgspec.structs.replace(host, addresses=host.addresses[:MAX_KNOWN_ADDRESSES])
        try:
            self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with FileLock(self._path.with_name(self._path.name + ".lock"), timeout=5):
                replaced = [(host.server_key, host.run_id), (host.server_key, "")]
                others = [h for h in self.hosts() if (h.server_key, h.run_id) not in replaced]
                kept = [host, *others][:MAX_KNOWN_HOSTS]
                write_private(self._path, msgspec.json.encode(_KnownFile(kept)))
        except (OSError, Timeout) as error:
            self._warn(f"the host {host.name} could not be remembered in {self._path} ({error})")

    def _set_aside(self, why: str) -> None:
        aside = self._path.with_suffix(".damaged")
        try:
            self._path.replace(aside)
        except OSError as error:
            self._warn(f"{self._path} cannot be read ({error}); hosts joined before are forgotten")
            return
        self._warn(
            f"{self._path} is damaged ({why}); it was set aside as {aside.name}, "
            "and the hosts joined before are forgotten"
        )
