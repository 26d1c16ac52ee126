"""tests/fuzz_arena.py: what throws at a live host must not take a port that is let go for a moment for a dead host."""

from __future__ import annotations

import socket

import pytest

from tests import fuzz_arena


def test_a_port_where_nobody_listens_for_a_moment_is_dialled_again(monkeypatch: pytest.MonkeyPatch) -> None:
    connect, refused = socket.create_connection, []
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))

        def listens_after_the_first(address: tuple[str, int], timeout: float) -> socket.socket:
            try:
                return connect(address, timeout)
            except ConnectionRefusedError:
                refused.append(address)
                server.listen()
                raise

        monkeypatch.setattr(socket, "create_connection", listens_after_the_first)
        with fuzz_arena.dial(server.getsockname()[1]) as found:
            assert found.getpeername() == server.getsockname()
    assert len(refused) == 1


def test_a_port_where_nobody_ever_listens_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fuzz_arena, "_PATIENCE_S", 0.05)
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            fuzz_arena.dial(server.getsockname()[1])
