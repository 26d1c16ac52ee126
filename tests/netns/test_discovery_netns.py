"""mDNS between hosts: two and more network namespaces on a bridge."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.conftest import wait_until
from tests.netns.lab import Lab

_ROOT = Path(__file__).resolve().parents[2]
MakeLab = Callable[[int], Lab]

#: A host that only advertises: it prints its name whenever that changes, and ends when stdin does.
HOST = """
import json, select, sys
from p2prl.net.discovery import Advertiser, HostCard
run, name, interfaces = sys.argv[1], sys.argv[2], sys.argv[3:]
advertiser = Advertiser(HostCard(run, name, "boot", 1, 1, run, "CartPole-v1", "dqn"), interfaces, 47800)
def say(): print(json.dumps([advertiser.name, advertiser.addresses, advertiser.problem]), flush=True)
say()
while not select.select([sys.stdin], [], [], 0.2)[0]:
    if advertiser.follow(): say()
advertiser.close()
"""

#: A joiner that only looks: it prints the list whenever that changes.
LOOK = """
import json, select, sys
from p2prl.net.discovery import Browser
browser, last = Browser(sys.argv[1:]), None
while not select.select([sys.stdin], [], [], 0.1)[0]:
    browser.follow()
    now = [[host.name, host.run_id, host.addresses] for host in browser.hosts()]
    if now != last: print(json.dumps(now), flush=True)
    last = now
browser.close()
"""


class Talker:
    """A program in a namespace whose lines are JSON; `last` is the newest."""

    def __init__(self, lab: Lab, i: int, code: str, *argv: str) -> None:
        self.path = lab.home(i) / f"said-{len(list(lab.home(i).iterdir()))}"
        with self.path.open("wb") as out:
            self.process = lab.popen(
                i,
                [sys.executable, "-c", code, *argv],
                {"PYTHONPATH": str(_ROOT)},
                stdin=subprocess.PIPE,
                stdout=out,
            )

    @property
    def last(self) -> Any:
        lines = self.path.read_text().splitlines()
        return json.loads(lines[-1]) if lines else None

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(timeout=10) == 0


def test_a_host_is_found_across_the_lan_and_gone_after_its_goodbye(lab: MakeLab) -> None:
    lan = lab(2)
    lan.add_interface(0, "docker0", "172.17.0.1/16")
    joiner, host = Talker(lan, 1, LOOK), Talker(lan, 0, HOST, "run1", "lab")
    row = ["lab", "run1", [lan.address(0)]]  # neither docker0's address nor a second row
    wait_until(lambda: joiner.last == [row], what="the joiner sees the host")
    wait_until(lambda: host.last == ["lab", [lan.address(0)], ""], what="the host has its name")
    host.end()
    wait_until(lambda: joiner.last == [], what="the joiner sees the goodbye")
    joiner.end()


def test_hosts_of_one_name_get_suffixes_even_if_they_start_at_once(lab: MakeLab) -> None:
    lan = lab(4)
    joiner = Talker(lan, 3, LOOK)
    wait_until(lambda: joiner.last == [])
    hosts = [Talker(lan, i, HOST, f"run{i}", "lab") for i in range(3)]

    def names() -> list[str]:
        return sorted(host.last[0] for host in hosts if host.last)

    def seen() -> list[tuple[str, str]]:
        return sorted((run, name) for name, run, _ in joiner.last)

    def agreed() -> bool:
        said = sorted((f"run{i}", host.last[0]) for i, host in enumerate(hosts) if host.last)
        return len(set(names())) == 3 and seen() == said

    wait_until(agreed, timeout=30, what="three names, and the joiner sees the same")
    assert "lab" in names()
    assert all(name == "lab" or name.startswith("lab-") for name in names())
    for talker in (*hosts, joiner):
        talker.end()


def test_a_named_interface_is_the_one_that_is_used(lab: MakeLab) -> None:
    lan = lab(2)
    lan.add_interface(0, "docker0", "172.17.0.1/16")
    host, joiner = Talker(lan, 0, HOST, "run1", "lab", "docker0"), Talker(lan, 1, LOOK)
    wait_until(lambda: host.last and joiner.last is not None)
    assert host.last == ["lab", ["172.17.0.1"], ""]
    lan.run(1, [sys.executable, "-c", "from p2prl.net.discovery import browse; assert not browse(2)"], _env())
    assert joiner.last == []
    for talker in (host, joiner):
        talker.end()


def test_a_host_comes_back_when_its_interface_does(lab: MakeLab) -> None:
    lan = lab(2)
    host, joiner = Talker(lan, 0, HOST, "run1", "lab"), Talker(lan, 1, LOOK)
    wait_until(lambda: host.last and joiner.last and joiner.last[0][1] == "run1")
    lan.interface_down(0)
    wait_until(lambda: host.last[1] != [lan.address(0)], what="the host notices")
    lan.interface_up(0)
    wait_until(lambda: host.last[1] == [lan.address(0)], what="the host is back")
    host.end()
    wait_until(lambda: joiner.last == [])
    joiner.end()


def test_a_joiner_without_a_network_finds_the_host_when_there_is_one(lab: MakeLab) -> None:
    lan = lab(2)
    lan.interface_down(1)
    host, joiner = Talker(lan, 0, HOST, "run1", "lab"), Talker(lan, 1, LOOK)
    wait_until(lambda: host.last and joiner.last == [])
    lan.interface_up(1)
    wait_until(lambda: joiner.last and joiner.last[0][1] == "run1")
    for talker in (host, joiner):
        talker.end()


#: With the mDNS port held by somebody who shares it with nobody.
BLOCKED = """
import socket
from p2prl.errors import P2prlError
from p2prl.net.discovery import Advertiser, Browser, HostCard, browse
greedy = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
greedy.bind(("", 5353))
try: browse(0.1)
except P2prlError as error: print(error)
advertiser = Advertiser(HostCard("run1", "lab", "boot", 1, 1, "key", "env", "agent"), [], 47800)
print(advertiser.problem)
greedy.close()
assert advertiser.follow() and not advertiser.problem
advertiser.close()
"""


def test_without_mdns_the_error_is_one_line_and_passes_when_the_trouble_does(lab: MakeLab) -> None:
    lan = lab(1)
    done = lan.run(0, [sys.executable, "-c", BLOCKED], _env(), check=False)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("mDNS does not work on lan0 (") for line in lines)
    assert all("p2prl join ADDRESS" in line for line in lines)


def test_the_lab_can_break_and_mend_the_network(lab: MakeLab) -> None:
    lan = lab(2)

    def reached() -> bool:
        code = "import socket, sys; socket.create_connection((sys.argv[1], 7), timeout=0.5)"
        done = lan.run(1, [sys.executable, "-c", code, lan.address(0)], check=False)
        assert "ConnectionRefused" in done.stderr or "imed out" in done.stderr or "No route" in done.stderr
        return "ConnectionRefused" in done.stderr  # an answer, though nobody listens

    assert reached()
    lan.link_down(1)
    assert not reached()
    lan.link_up(1)
    wait_until(reached)
    lan.drop(0, "tcp dport 7")
    assert not reached()
    lan.undrop(0)
    assert reached()
    lan.rate_limit(0, 1000)
    assert reached()
    lan.rate_limit(0, None)


def test_a_lab_leaves_no_namespace_and_no_process(lab: MakeLab, tmp_path: Path) -> None:
    lan = Lab(2, tmp_path).up()
    process = lan.popen(0, [sys.executable, "-c", "import threading; threading.Event().wait(600)"])
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert lan.name in listed
    lan.down()
    lan.down()
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert lan.name not in listed
    assert process.returncode is not None


def _env() -> dict[str, str]:
    return {"PYTHONPATH": str(_ROOT)}
