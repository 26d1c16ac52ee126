"""Real sockets on loopback: what counts as a free block."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from p2prl.errors import P2prlError, UsageError
from p2prl.net.ports import block_ports, free_block, taken_ports

#: Far from the default, so that a run on the same machine is no obstacle.
BASE = 23100


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        yield server


def test_a_block_has_the_ports_of_the_protocol_page() -> None:
    assert block_ports(47800, 2) == [47800, 47801, 47802, 47803, 47810, 47811, 47812, 47813, 47880]


def test_a_free_base_is_kept() -> None:
    base = free_block(BASE, 2)
    assert base == free_block(base, 2)
    assert (base - BASE) % 100 == 0


@pytest.mark.parametrize("offset", [0, 1, 2, 3, 10, 13, 80])
def test_one_taken_port_moves_the_whole_block(listener: socket.socket, offset: int) -> None:
    base = free_block(BASE, 2)
    listener.bind(("127.0.0.1", base + offset))
    listener.listen()
    assert free_block(base, 2) > base
    assert taken_ports(block_ports(base, 2)) == [base + offset]


def test_a_port_between_the_blocks_ports_does_not_matter(listener: socket.socket) -> None:
    base = free_block(BASE, 2)
    listener.bind(("127.0.0.1", base + 14))
    listener.listen()
    assert free_block(base, 2) == base


def test_a_port_taken_on_ipv6_alone_is_taken() -> None:
    base = free_block(BASE, 1)
    with socket.socket(socket.AF_INET6) as server:
        server.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        try:
            server.bind(("::1", base))
        except OSError:
            pytest.skip("no IPv6 here")
        server.listen()
        assert free_block(base, 1) > base
        assert free_block(base, 1, ["127.0.0.1"]) == base


def test_time_wait_is_free(listener: socket.socket) -> None:
    base = free_block(BASE, 1)
    listener.bind(("127.0.0.1", base))
    listener.listen()
    with socket.create_connection(("127.0.0.1", base)) as client:
        served, _ = listener.accept()
        served.close()  # the server's side closes first, and so keeps TIME_WAIT
        assert client.recv(1) == b""
    listener.close()
    assert free_block(base, 1) == base


def test_the_error_names_the_taken_ports(listener: socket.socket) -> None:
    base = free_block(BASE, 1)
    listener.bind(("127.0.0.1", base + 1))
    listener.listen()
    with pytest.raises(P2prlError, match=rf"TCP port {base + 1} is taken.*--port") as caught:
        free_block(base, 1, blocks=1)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("base", [0, -5, 65456, 70000])
def test_a_base_out_of_range_is_a_usage_error(base: int) -> None:
    with pytest.raises(UsageError, match="--port"):
        free_block(base, 1)


def test_too_many_shards_would_run_into_the_web_page() -> None:
    assert max(block_ports(0, 35)[:-1]) < 80
    with pytest.raises(UsageError, match="--shards"):
        free_block(BASE, 36)


def test_an_address_of_another_machine_is_no_port_trouble() -> None:
    with pytest.raises(P2prlError, match=r"192\.0\.2\.77 is not an address of this machine"):
        free_block(BASE, 1, ["192.0.2.77"])
