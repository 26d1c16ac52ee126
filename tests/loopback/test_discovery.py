"""Real mDNS on the loopback interface: what a host says is found, and what strangers say does no harm."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from ipaddress import ip_network

import pytest
from zeroconf import IPVersion, ServiceInfo, Zeroconf

from p2prl.errors import UsageError
from p2prl.net import discovery
from p2prl.net.cards import (
    SERVICE_TYPE,
    FoundHost,
    clean_text,
    found_from,
    instance_name,
    merge_hosts,
    sort_addresses,
    txt_of,
)
from p2prl.net.discovery import Advertiser, Browser, HostCard, browse
from p2prl.net.interfaces import all_interfaces
from tests.conftest import wait_until

LOOPBACK = next(interface for interface in all_interfaces() if interface.loopback)
ONLY_LOOPBACK = [LOOPBACK.name]
BASE = 23800
#: Nobody else on this machine has these.
NAME = f"lab{os.getpid()}"
RUN = f"r{os.getpid()}-"


def card(name: str = NAME, run: str = f"{RUN}1", term: int = 1) -> HostCard:
    return HostCard(run, name, "boot1", term, 1, f"{run[:4]}-{run[:4]}", "CartPole-v1", "dqn")


@pytest.fixture
def advertise() -> Iterator[Callable[[HostCard], Advertiser]]:
    with ExitStack() as stack:

        def start(host: HostCard) -> Advertiser:
            advertiser = Advertiser(host, ONLY_LOOPBACK, BASE)
            stack.callback(advertiser.close)
            return advertiser

        yield start


@pytest.fixture
def browser() -> Iterator[Browser]:
    browser = Browser(ONLY_LOOPBACK)
    yield browser
    browser.close()


Advertise = Callable[[HostCard], Advertiser]


def rows(browser: Browser, run: str = f"{RUN}1") -> list[FoundHost]:
    return [host for host in browser.hosts() if host.run_id.startswith(run)]


def test_a_host_is_found_with_all_that_it_says(advertise: Advertise) -> None:
    advertiser = advertise(card())
    assert (advertiser.name, advertiser.problem) == (NAME, "")
    found = [host for host in browse(3.0, ONLY_LOOPBACK) if host.run_id == f"{RUN}1"]
    assert [replace(host, addresses=()) for host in found] == [
        FoundHost(**vars(card()), base_port=BASE, addresses=())
    ]
    assert found[0].addresses[0] == "127.0.0.1"
    assert found[0].addresses == advertiser.addresses


def test_a_second_host_of_the_same_name_gets_a_suffix(advertise: Advertise, browser: Browser) -> None:
    hosts = [advertise(card(run=run)) for run in (f"{RUN}1", f"{RUN}2", f"{RUN}3")]

    def settled() -> bool:
        for host in hosts:
            host.follow()
        names = [host.name for host in hosts]
        return sorted(names) == [NAME, f"{NAME}-2", f"{NAME}-3"] and names == [
            seen.get(f"{RUN}{n}") for n in (1, 2, 3)
        ]

    seen: dict[str, str] = {}
    wait_until(lambda: seen.update({row.run_id: row.name for row in rows(browser, RUN)}) or settled(), 30)
    assert not any(host.problem for host in hosts)


def test_a_new_term_is_seen(advertise: Advertise, browser: Browser) -> None:
    advertiser = advertise(card())
    wait_until(lambda: [host.term for host in rows(browser)] == [1])
    advertiser.update(card(term=2), port=BASE + 100)
    wait_until(lambda: [(host.term, host.base_port) for host in rows(browser)] == [(2, BASE + 100)])
    assert advertiser.name == NAME


def test_goodbye_removes_the_row(advertise: Advertise, browser: Browser) -> None:
    advertiser = advertise(card())
    wait_until(lambda: rows(browser))
    advertiser.close()
    advertiser.close()
    wait_until(lambda: not rows(browser))


def test_following_without_a_change_does_nothing(advertise: Advertise, browser: Browser) -> None:
    advertiser = advertise(card())
    assert not advertiser.follow()
    assert not browser.follow()
    wait_until(lambda: rows(browser))


def test_following_a_change_registers_again(
    advertise: Advertise, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    advertiser = advertise(card())
    wait_until(lambda: rows(browser))
    monkeypatch.setattr(discovery, "_choose_or_none", lambda _names: [])  # the cable is pulled
    assert advertiser.follow()
    assert advertiser.addresses == ()
    assert "no network interface" in advertiser.problem
    assert "p2prl join ADDRESS" in advertiser.problem
    assert not advertiser.follow()
    wait_until(lambda: not rows(browser))
    monkeypatch.undo()
    assert advertiser.follow()
    assert (advertiser.name, advertiser.problem) == (NAME, "")
    wait_until(lambda: rows(browser))


def test_an_unknown_interface_is_a_usage_error() -> None:
    for start in (lambda: Advertiser(card(), ["none9"], BASE), lambda: Browser(["none9"])):
        with pytest.raises(UsageError, match="none9"):
            start()
    with pytest.raises(UsageError, match="none9"):
        browse(0.1, ["none9"])


def test_closing_leaves_no_thread() -> None:
    before = set(threading.enumerate())
    advertiser, browser = Advertiser(card(), ONLY_LOOPBACK, BASE), Browser(ONLY_LOOPBACK)
    assert set(threading.enumerate()) > before
    browser.close()
    browser.close()
    advertiser.close()
    assert set(threading.enumerate()) == before
    assert browser.hosts() == []


# --- strangers


@pytest.fixture
def stranger() -> Iterator[Callable[..., None]]:
    """Says anything by mDNS."""
    zeroconf = Zeroconf(interfaces=["127.0.0.1"], ip_version=IPVersion.V4Only)

    def say(name: str, properties: dict[bytes, bytes | None] | bytes, port: int = BASE) -> None:
        info = ServiceInfo(
            SERVICE_TYPE,
            f"{name}.{SERVICE_TYPE}",
            port=port,
            properties=properties,  # type: ignore[arg-type]
            server=f"stranger-{len(name)}.local.",
            parsed_addresses=["127.0.0.1"],
        )
        zeroconf.register_service(info, cooperating_responders=True)

    yield say
    zeroconf.close()


def test_garbage_does_not_hide_the_honest_host(
    advertise: Advertise, browser: Browser, stranger: Callable[..., None]
) -> None:
    stranger("a", b"\xff\xfe\xfd" * 30)
    stranger("bb", {})
    stranger("ccc", {b"run": b"\xff\xfe", b"proto": b"\xff"})
    stranger(
        "dddd", {b"run": f"{RUN}1".encode(), b"proto": b"1", b"term": b"9" * 200, b"base": b"-1"}, port=0
    )
    stranger("eeeee", {b"run": f"{RUN}1\x1b[31m".encode(), b"proto": b"1", b"env": None})
    advertise(card())
    found = wait_until(lambda: len(rows(browser)) == 2 and rows(browser))
    assert isinstance(found, list)
    assert {(host.name, host.run_id) for host in found} == {(NAME, f"{RUN}1"), ("eeeee", f"{RUN}1[31m")}


def test_a_thief_of_the_name_does_not_raise(advertise: Advertise, stranger: Callable[..., None]) -> None:
    advertiser = advertise(card())
    stranger(advertiser.name, {b"run": b"other", b"proto": b"1"})
    for _ in range(3):
        advertiser.follow()
    assert advertiser.name.startswith(NAME)
    assert advertiser.problem == ""


# --- pure parts


@pytest.mark.parametrize(
    ("name", "label"),
    [
        ("lab", "lab"),
        ("my.pc.local", "my-pc-local"),
        ("a\nb\x00c", "abc"),
        ("", "p2prl"),
        (" . ", "-"),
        ("x" * 99, "x" * 58),
        ("\u00e4" * 40, "\u00e4" * 29),
    ],
)
def test_names_become_labels(name: str, label: str) -> None:
    assert instance_name(name) == label


def test_strange_text_is_cut_and_cleaned() -> None:
    assert clean_text(None) == ""
    assert clean_text(b"ok\x1b[2J\n\xff") == "ok[2J\ufffd"
    assert len(clean_text(b"x" * 10_000)) == 64


def test_long_cards_fit_in_txt() -> None:
    long = HostCard("r" * 500, "n" * 500, "b" * 500, 2**31, 1, "k" * 500, "\u20ac" * 500, "a" * 500)
    assert all(len(f"{key!s}={value!s}".encode()) <= 255 for key, value in txt_of(long, 65000).items())


TXT: dict[bytes, bytes | None] = {
    b"run": b"r",
    b"proto": b"1",
    b"base": b"47800",
    b"key": b"k",
    b"term": b"3",
}


@pytest.mark.parametrize(
    "broken",
    [{b"run": b""}, {b"run": None}, {b"proto": b"x"}, {b"proto": None}, {b"base": b"0"}, {b"base": b"99999"}],
)
def test_what_makes_no_sense_is_no_row(broken: dict[bytes, bytes | None]) -> None:
    assert found_from("lab." + SERVICE_TYPE, TXT, 1, ["192.0.2.7"]) is not None
    assert found_from("lab." + SERVICE_TYPE, {**TXT, **broken}, 1, ["192.0.2.7"]) is None
    assert found_from("lab." + SERVICE_TYPE, TXT, 1, []) is None


def test_addresses_of_our_subnet_come_first_and_the_useless_are_left_out() -> None:
    ours = [replace(LOOPBACK, v4=("192.0.2.7",), v6=(), networks=(ip_network("192.0.2.0/24"),))]
    said = [
        "2001:db8::1",
        "198.51.100.1",
        "192.0.2.9",
        "fe80::1",
        "fe80::1%2",
        "127.0.0.1",
        "224.0.0.1",
        "x",
        "0.0.0.0",
    ]
    assert sort_addresses([*said, *said], ours) == ("192.0.2.9", "198.51.100.1", "2001:db8::1", "fe80::1%2")
    assert sort_addresses(["127.0.0.1"], [LOOPBACK]) == ("127.0.0.1",)


def test_a_host_is_one_row_however_often_it_is_heard() -> None:
    first = FoundHost(**vars(card()), base_port=1, addresses=("192.0.2.9",))
    other_family = replace(first, addresses=("2001:db8::1", "192.0.2.9"))
    ghost = replace(first, name="lab-2", term=0, addresses=("192.0.2.66",))
    other_key = replace(first, fingerprint="zzzz-zzzz")
    merged = merge_hosts([ghost, first, other_family, other_key])
    assert merged == [replace(first, addresses=("192.0.2.9", "2001:db8::1")), other_key]
