"""Starting, stopping, being killed, going on: ports, signals, folders in use, checkpoints."""

from __future__ import annotations

import http.server
import shutil
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from p2prl.net.ports import block_ports, taken_ports
from tests import kit
from tests.conftest import wait_until

#: What design section 10 promises after a signal.
PROMISE_S = 5.0
IDLE = ("--env", "chain", "--agent", str(kit.SAMPLES / "idle.py:Idle"))


def host(folder: Path, base: int | None, *flags: str) -> kit.Program:
    """A host that needs no torch; `base` None for no --port."""
    return kit.host(folder, *flags, name=f"s{base or 0}", port=base)


def block_is_free(base: int) -> bool:
    return not taken_ports(block_ports(base, 2))


# --- ports


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Another program listens there; or one does already."""
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind(("127.0.0.1", port))
            other.listen()
        except OSError:
            pass
        yield


def test_2_a_taken_port_ends_a_host_that_was_told_it(tmp_path: Path) -> None:
    base = kit.free_base()
    with taken(base + 12), host(tmp_path, base, *IDLE) as program:
        assert program.wait(20) == 1
    assert str(base + 12) in program.stderr
    assert "--port" in program.stderr
    assert program.of("started") == []
    assert not (tmp_path / "results").exists()


def test_2_without_port_the_next_free_block_is_taken_and_said(tmp_path: Path) -> None:
    with taken(47800), host(tmp_path, None, *IDLE, "--players", "0") as program:
        started = program.wait_for("started")
        base = started["base_port"]
        assert base > 47800
        assert str(base) in program.wait_for_line("47800 on are taken")
        assert kit.status(tmp_path, f"127.0.0.1:{base}")["run"]["run_id"] == started["run_id"]
        assert program.end() == 0


def test_3_a_host_starts_and_stops_ten_times_on_one_port(tmp_path: Path) -> None:
    base = kit.free_base()
    for _ in range(10):
        with host(tmp_path, base, *IDLE, "--players", "0") as program:
            assert program.wait_for("started")["base_port"] == base
            assert program.end(PROMISE_S) == 0
        assert block_is_free(base)
    assert len(list((tmp_path / "results").iterdir())) == 10


# --- signals


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_4_5_every_command_ends_within_five_seconds_of_a_signal(tmp_path: Path, number: int) -> None:
    base = kit.free_base()
    target = f"127.0.0.1:{base}"
    with ExitStack() as stack:

        def start(*arguments: str) -> kit.Program:
            home = tmp_path / f"home-{arguments[0]}-{len(arguments)}"
            return stack.enter_context(kit.Program(*arguments, home=home))

        # Before there is a host: what waits for one.
        dialling = start("join", target, "--json")
        watching = start("status", target, "--watch", "--wait", "60")
        looking = start("join", "nobody-of-this-name", "--interface", "lo", "--json")
        dialling.wait_for_line("trying again")
        looking.wait_for_line("nobody-of-this-name")
        assert end_all([dialling, watching, looking], number) == [0, None, 0]
        # With a host that is there, then killed with -9.
        program = stack.enter_context(host(tmp_path, base, *IDLE, "--players", "1"))
        program.wait_for("started")
        present = stack.enter_context(kit.join(tmp_path, target=target, name="present"))
        orphaned = stack.enter_context(kit.join(tmp_path, target=target, name="orphaned"))
        watching = start("status", target, "--watch", "--json")
        for joiner in (present, orphaned):
            joiner.wait_for("progress", lambda e: e["steps"] > 0)
        watching.wait_for_status()
        listing = start("ls", "--timeout", "60", "--json")
        playing = start("eval", target, "-n", "1000000", "--json")
        assert end_all([present, watching, listing, playing], number) == [0, None, None, None]
        program.kill()
        assert end_all([orphaned], number) == [0]


def end_all(programs: list[kit.Program], number: int) -> list[int | None]:
    """Signal all at once; each must end within the promise. Codes other than 0 and 130 fail."""
    began = time.monotonic()
    for program in programs:
        program.tell(number)
    codes = [program.wait(max(0.1, PROMISE_S - (time.monotonic() - began))) for program in programs]
    assert all(code in (0, 130, -number) for code in codes), codes
    return codes


_ = (http, shutil, threading, Callable, dataclass, psutil, wait_until)
