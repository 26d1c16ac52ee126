"""A LAN in one machine: network namespaces joined by a bridge. Linux and root only.

The bridge lives in a namespace of its own, so the machine's own network is never touched. Inside each
namespace the interface is called `lan0`, so that it is taken for a real one.

By hand: `scripts/netns-lab up 3`, `scripts/netns-lab exec 0 p2prl host`, `scripts/netns-lab down`.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

INTERFACE = "lan0"
#: The namespaces that `scripts/netns-lab` makes.
HAND_NAME = "p2prl-lab"


class Lab:
    """`size` namespaces on one LAN, gone when the context ends, with all that runs in them."""

    def __init__(self, size: int, folder: Path, name: str = "", subnet: int | None = None) -> None:
        """Nothing is made before `up`, or before the context is entered.

        Args:
            size: how many namespaces, numbered from 0.
            folder: where each namespace's processes keep their state (P2PRL_HOME).
            name: what the namespaces' names begin with; empty for a random one.
            subnet: x in 10.77.x.0/24.
        """
        self.size = size
        self.folder = folder
        self.name = name or f"p2prl-{secrets.token_hex(3)}"
        self.subnet = secrets.randbelow(250) + 1 if subnet is None else subnet
        self._processes: list[subprocess.Popen[bytes]] = []

    # --- making and ending

    def up(self) -> Lab:
        """Make the LAN; whatever was made is taken down again if one step fails."""
        try:
            self._make_bridge()
            for i in range(self.size):
                self._make_host(i)
        except BaseException:
            self.down()
            raise
        return self

    def down(self) -> None:
        """Kill what runs in the namespaces, then remove them. Safe to call twice, or on a half-made lab."""
        names = [self.namespace(i) for i in range(self.size)] + [self._bridge]
        existing = _namespaces()
        for name in (name for name in names if name in existing):
            for pid in _ip("netns", "pids", name, check=False).stdout.split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
        for process in self._processes:
            process.wait(timeout=10)
            for stream in (process.stdin, process.stdout, process.stderr):
                if stream is not None:
                    stream.close()
        self._processes.clear()
        for name in (name for name in names if name in existing):
            _ip("netns", "delete", name)

    def __enter__(self) -> Lab:
        return self.up()

    def __exit__(self, *_: object) -> None:
        self.down()

    # --- names

    @property
    def _bridge(self) -> str:
        return f"{self.name}-lan"

    def namespace(self, i: int) -> str:
        """The name of namespace `i`, as `ip netns` shows it."""
        return f"{self.name}-{i}"

    def address(self, i: int) -> str:
        """The IPv4 address of namespace `i`."""
        return f"10.77.{self.subnet}.{i + 1}"

    def home(self, i: int) -> Path:
        """The state folder of namespace `i`."""
        folder = self.folder / f"home-{i}"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        return folder

    # --- running things

    def popen(
        self,
        i: int,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        **options: object,
    ) -> subprocess.Popen[bytes]:
        """Start a program in namespace `i`; its pid is the program's own. `options` are Popen's."""
        process = subprocess.Popen(  # type: ignore[call-overload]
            ["ip", "netns", "exec", self.namespace(i), *map(str, argv)],
            env={**os.environ, "P2PRL_HOME": str(self.home(i)), **(env or {})},
            **options,
        )
        self._processes.append(process)
        return process  # type: ignore[no-any-return]

    def run(
        self,
        i: int,
        argv: Sequence[str | Path],
        env: Mapping[str, str] | None = None,
        timeout: float = 60,
        check: bool = True,
    ) -> subprocess.CompletedProcess[str]:
        """Run a program in namespace `i` to its end, with its output captured as text."""
        return subprocess.run(
            ["ip", "netns", "exec", self.namespace(i), *map(str, argv)],
            env={**os.environ, "P2PRL_HOME": str(self.home(i)), **(env or {})},
            capture_output=True,
            text=True,
            timeout=timeout,
            check=check,
        )

    # --- breaking the network

    def link_down(self, i: int) -> None:
        """Pull the cable at the switch: the namespace keeps its address but hears nobody."""
        _ip("-n", self._bridge, "link", "set", f"port{i}", "nomaster")

    def link_up(self, i: int) -> None:
        """Plug the cable in again."""
        _ip("-n", self._bridge, "link", "set", f"port{i}", "master", "lan")

    def interface_down(self, i: int) -> None:
        """Switch the machine's own interface off."""
        _ip("-n", self.namespace(i), "link", "set", INTERFACE, "down")

    def interface_up(self, i: int) -> None:
        """Switch it on again."""
        _ip("-n", self.namespace(i), "link", "set", INTERFACE, "up")
        _ip("-n", self.namespace(i), "route", "replace", "224.0.0.0/4", "dev", INTERFACE)

    def add_interface(self, i: int, name: str, address: str) -> None:
        """One more interface, connected to nothing: a docker bridge or a VPN, by its name."""
        _ip("-n", self.namespace(i), "link", "add", name, "type", "bridge")
        _ip("-n", self.namespace(i), "addr", "add", address, "dev", name)
        _ip("-n", self.namespace(i), "link", "set", name, "up")

    def second_lan(self) -> None:
        """Wire every namespace to one more LAN: `lan1`, with 10.78.x.y and, where the kernel has it, IPv6."""
        _ip("-n", self._bridge, "link", "add", "second", "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self._bridge, "link", "set", "second", "up")
        for i in range(self.size):
            inside, port = self.namespace(i), f"second{i}"
            peer = ("peer", "name", "lan1", "netns", inside)
            _ip("-n", self._bridge, "link", "add", port, "type", "veth", *peer)
            _ip("-n", self._bridge, "link", "set", port, "master", "second", "up")
            _ip("-n", inside, "link", "set", "lan1", "up")
            _ip("-n", inside, "addr", "add", f"10.78.{self.subnet}.{i + 1}/24", "dev", "lan1")
            _ip("-n", inside, "addr", "add", f"fd78::{i + 1:x}/64", "dev", "lan1", "nodad", check=False)

    def rate_limit(self, i: int, kbit: int | None) -> None:
        """Make both directions of the link as slow as `kbit` kilobits per second; None for no limit."""
        for namespace, device in ((self.namespace(i), INTERFACE), (self._bridge, f"port{i}")):
            if kbit is None:
                _call("tc", "-n", namespace, "qdisc", "del", "dev", device, "root", check=False)
            else:
                shape = ("tbf", "rate", f"{kbit}kbit", "burst", "16kb", "latency", "500ms")
                _call("tc", "-n", namespace, "qdisc", "replace", "dev", device, "root", *shape)

    def sent_bytes(self, i: int) -> int:
        """What machine `i` has sent on the LAN so far, headers of Ethernet and all above included."""
        return int(self.run(i, ["cat", f"/sys/class/net/{INTERFACE}/statistics/tx_bytes"]).stdout)

    def drop(self, i: int, expression: str) -> None:
        """Drop packets, in and out, that match an nft expression such as `tcp dport 47810`."""
        rules = ["add table inet p2prl"]
        for hook in ("input", "output"):
            rules.append(f"add chain inet p2prl {hook} {{ type filter hook {hook} priority 0; }}")
            rules.append(f"add rule inet p2prl {hook} {expression} drop")
        self._nft(i, rules)

    def undrop(self, i: int) -> None:
        """Undo every `drop` of namespace `i`."""
        self._nft(i, ["add table inet p2prl", "delete table inet p2prl"])

    def _nft(self, i: int, rules: Sequence[str]) -> None:
        _call("ip", "netns", "exec", self.namespace(i), "nft", "-f", "-", stdin="\n".join(rules) + "\n")

    # --- the plumbing

    def _make_bridge(self) -> None:
        _ip("netns", "add", self._bridge)
        # No forwarding delay, and no snooping: mDNS works at once, as on a plain switch.
        bridge = ("type", "bridge", "stp_state", "0", "forward_delay", "0", "mcast_snooping", "0")
        _ip("-n", self._bridge, "link", "add", "lan", *bridge)
        _ip("-n", self._bridge, "link", "set", "lan", "up")

    def _make_host(self, i: int) -> None:
        inside, port = self.namespace(i), f"port{i}"
        _ip("netns", "add", inside)
        _ip(
            "-n",
            self._bridge,
            "link",
            "add",
            port,
            "type",
            "veth",
            "peer",
            "name",
            INTERFACE,
            "netns",
            inside,
        )
        _ip("-n", self._bridge, "link", "set", port, "master", "lan", "up")
        _ip("-n", inside, "link", "set", "lo", "up")
        # Our own link-local address, without the second that duplicate detection takes.
        _ip("-n", inside, "link", "set", INTERFACE, "addrgenmode", "none")
        _ip("-n", inside, "link", "set", INTERFACE, "up")
        _ip("-n", inside, "addr", "add", f"{self.address(i)}/24", "broadcast", "+", "dev", INTERFACE)
        _ip("-n", inside, "addr", "add", f"fe80::{i + 1:x}/64", "dev", INTERFACE, "nodad", check=False)
        _ip("-n", inside, "route", "add", "224.0.0.0/4", "dev", INTERFACE)


def missing() -> str:
    """What this machine lacks for a Lab, or an empty string."""
    if not sys.platform.startswith("linux"):
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root"
    tools = [tool for tool in ("ip", "tc", "nft") if shutil.which(tool) is None]
    if tools:
        return f"not installed: {', '.join(tools)} (packages iproute2 and nftables)"
    return ""


def _namespaces() -> set[str]:
    return {line.split()[0] for line in _ip("netns", "list").stdout.splitlines() if line.strip()}


def _ip(*argv: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    return _call("ip", *argv, check=check)


def _call(*argv: str, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(argv, input=stdin, capture_output=True, text=True, timeout=30, check=False)
    if check and done.returncode != 0:
        raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip()}")
    return done


# --- by hand --------------------------------------------------------------------------------------


def main(argv: Sequence[str] | None = None) -> int:
    """The shell's way in; see scripts/netns-lab."""
    parser = argparse.ArgumentParser(
        prog="netns-lab", description="Hosts in network namespaces on one bridge."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="make N hosts, numbered from 0")
    up.add_argument("size", type=int, metavar="N")
    run = commands.add_parser("exec", help="run a command in host I")
    run.add_argument("index", type=int, metavar="I")
    run.add_argument("argv", nargs=argparse.REMAINDER, metavar="CMD")
    commands.add_parser("down", help="end what runs in the hosts, and remove them")
    options = parser.parse_args(argv)
    if why := missing():
        parser.exit(1, f"netns-lab: {why}\n")
    if options.command == "up":
        return _up_by_hand(options.size)
    if options.command == "exec":
        return _exec_by_hand(options.index, options.argv)
    _hand_lab().down()
    shutil.rmtree(_hand_folder(), ignore_errors=True)
    return 0


def _up_by_hand(size: int) -> int:
    _hand_lab().down()
    lab = Lab(size, _hand_folder(), HAND_NAME, subnet=0).up()
    for i in range(size):
        sys.stdout.write(f"host {i}: {lab.address(i)}   scripts/netns-lab exec {i} CMD\n")
    return 0


def _exec_by_hand(index: int, argv: Sequence[str]) -> int:  # noqa: RET503 - execvp does not return
    lab = _hand_lab()
    if not argv or lab.namespace(index) not in _namespaces():
        sys.stderr.write("netns-lab: no command, or no such host; first: scripts/netns-lab up N\n")
        return 2
    os.environ["P2PRL_HOME"] = str(lab.home(index))
    os.execvp("ip", ["ip", "netns", "exec", lab.namespace(index), *argv])


def _hand_folder() -> Path:
    return Path(tempfile.gettempdir()) / HAND_NAME


def _hand_lab() -> Lab:
    """The lab that is up now, whatever its size."""
    numbers = [
        name.removeprefix(HAND_NAME + "-") for name in _namespaces() if name.startswith(HAND_NAME + "-")
    ]
    size = max((int(number) + 1 for number in numbers if number.isdigit()), default=0)
    return Lab(size, _hand_folder(), HAND_NAME, subnet=0)


if __name__ == "__main__":
    sys.exit(main())
