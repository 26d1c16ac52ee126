"""Addresses as they are typed, and the file of known hosts."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import zmq
from hypothesis import given
from hypothesis import strategies as st

from p2prl.errors import UsageError
from p2prl.net.addresses import (
    MAX_BASE,
    MAX_KNOWN_HOSTS,
    Address,
    KnownHost,
    KnownHosts,
    endpoint,
    looks_like_address,
    parse_address,
)


@pytest.mark.parametrize(
    ("text", "host", "base"),
    [
        ("192.0.2.7", "192.0.2.7", 47800),
        (" 192.0.2.7:47900 ", "192.0.2.7", 47900),
        ("[2001:db8::7]:47900", "2001:db8::7", 47900),
        ("[2001:db8::7]", "2001:db8::7", 47800),
        ("2001:db8::7", "2001:db8::7", 47800),
        ("::1", "::1", 47800),
        ("[fe80::1%eth0]:47900", "fe80::1%eth0", 47900),
        ("lab.example.org:47900", "lab.example.org", 47900),
        ("localhost", "localhost", 47800),
        ("my_pc:1", "my_pc", 1),
    ],
)
def test_addresses_are_read(text: str, host: str, base: int) -> None:
    assert parse_address(text, 47800) == Address(host, base)


@pytest.mark.parametrize(
    "text",
    ["", " ", ":", ":47800", "192.0.2.7:", "192.0.2.7:0", "192.0.2.7:70000", f"192.0.2.7:{MAX_BASE + 1}",
     "192.0.2.7:-1", "192.0.2.7:4 7", "192.0.2.7:٣", "192.0.2", "192.0.2.999", "[::1", "[::1]47800", "[::1]:",
     "[192.0.2.7]:1", "[]:1", "1:2:3", "tcp://192.0.2.7", "-lab", "lab..x", "l" * 64, "häns"],
)  # fmt: skip
def test_what_is_no_address_is_a_usage_error_of_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_address(text, 47800)
    assert str(caught.value)
    assert "\n" not in str(caught.value)


@given(st.text(max_size=40))
def test_no_text_does_worse_than_a_usage_error(text: str) -> None:
    try:
        address = parse_address(text, 47800)
    except UsageError:
        return
    assert parse_address(str(address), 1) == address


def test_names_are_told_from_addresses() -> None:
    assert not looks_like_address("lab")
    assert not looks_like_address("lab-2")
    assert all(
        looks_like_address(text) for text in ("192.0.2.7", "lab:1", "::1", "[::1]:1", "pc.local", "localhost")
    )


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_zmq_takes_the_endpoints(host: str) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        socket.setsockopt(zmq.IPV6, 1)
        socket.setsockopt(zmq.LINGER, 0)
        socket.connect(endpoint(host, 9))


# --- known hosts ----------------------------------------------------------------------------------


def host(number: int, **changes: object) -> KnownHost:
    values = {
        "name": f"lab-{number}",
        "run_id": f"run{number}",
        "server_key": f"{number:040d}",
        "addresses": ("192.0.2.7",),
        "base_port": 47800,
        "seen_at": float(number),
    }
    return KnownHost(**{**values, **changes})  # type: ignore[arg-type]


def test_a_host_is_remembered_by_another_process(tmp_path: Path) -> None:
    KnownHosts(tmp_path).remember(host(1))
    assert KnownHosts(tmp_path).hosts() == [host(1)]


def test_the_newest_is_first_and_replaces_its_older_self(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path)
    for entry in (host(1), host(2), host(1, seen_at=9.0, addresses=("192.0.2.8",))):
        known.remember(entry)
    assert known.hosts() == [host(1, seen_at=9.0, addresses=("192.0.2.8",)), host(2)]


def test_a_host_is_found_by_its_key(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path)
    known.remember(host(1))
    known.remember(host(2))
    assert known.find_key(host(2).server_key) == host(2)
    assert known.find_key(host(3).server_key) is None


def test_the_file_is_bounded(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path)
    for number in range(MAX_KNOWN_HOSTS + 5):
        known.remember(host(number, addresses=tuple(f"192.0.2.{i}" for i in range(100))))
    assert len(known.hosts()) == MAX_KNOWN_HOSTS
    assert known.hosts()[0].name == f"lab-{MAX_KNOWN_HOSTS + 4}"
    assert max(len(entry.addresses) for entry in known.hosts()) <= 16


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"not json",
        b'{"hosts": 3}',
        b'{"hosts": [{"name": 1}]}',
        b"\xff\xfe",
        b"[]",
        b'{"hosts":[' + b" " * 2_000_000,
    ],
    ids=["empty", "text", "number", "types", "bytes", "list", "huge"],
)
def test_a_damaged_file_warns_once_and_works_on(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "known_hosts.json").write_bytes(damage)
    warnings: list[str] = []
    known = KnownHosts(tmp_path, warnings.append)
    assert known.hosts() == []
    known.remember(host(1))
    assert known.hosts() == [host(1)]
    assert len(warnings) == 1
    assert "damaged" in warnings[0]
    assert (tmp_path / "known_hosts.damaged").read_bytes() == damage


def test_entries_that_cannot_be_dialled_are_left_out(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path)
    known.remember(host(1, base_port=0))
    known.remember(host(2, addresses=()))
    known.remember(host(3))
    assert known.hosts() == [host(3)]


def test_fields_of_a_later_version_are_skipped(tmp_path: Path) -> None:
    known = KnownHosts(tmp_path)
    known.remember(host(1))
    path = tmp_path / "known_hosts.json"
    stored = json.loads(path.read_bytes())
    stored["hosts"][0]["colour"] = "red"
    path.write_text(json.dumps(stored))
    assert known.hosts() == [host(1)]


def test_a_memory_that_cannot_be_written_costs_a_warning_only(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("not a folder")
    warnings: list[str] = []
    KnownHosts(tmp_path / "file", warnings.append).remember(host(1))
    assert any("could not be remembered" in warning for warning in warnings)
