"""Which interfaces are chosen, of a table; and that the machine's own can be read."""

from __future__ import annotations

import ipaddress

import pytest

from p2prl.errors import P2prlError, UsageError
from p2prl.net.interfaces import Interface, all_interfaces, choose, chosen_interfaces, is_virtual


def make(name: str, *addresses: str, up: bool = True) -> Interface:
    plain = [address.split("/")[0] for address in addresses]
    return Interface(
        name=name,
        index=1,
        v4=tuple(a for a in plain if ":" not in a),
        v6=tuple(a for a in plain if ":" in a),
        networks=tuple(ipaddress.ip_network(a, strict=False) for a in addresses),
        up=up,
    )


LO = make("lo", "127.0.0.1/8", "::1/128")
ETH = make("eth0", "192.0.2.7/24", "fe80::7/64")
WIFI = make("wlan0", "198.51.100.7/24")
DOCKER = make("docker0", "172.17.0.1/16")
VPN = make("tailscale0", "100.100.1.1/32")
SELF_ASSIGNED = make("eth1", "169.254.7.7/16")


def names(found: list[Interface]) -> list[str]:
    return [interface.name for interface in found]


def test_real_interfaces_are_chosen_and_the_rest_is_not() -> None:
    assert names(choose([LO, DOCKER, ETH, VPN, WIFI])) == ["eth0", "wlan0"]


def test_loopback_alone_is_better_than_nothing() -> None:
    assert names(choose([LO])) == ["lo"]
    assert names(choose([LO, DOCKER, VPN])) == ["lo"]


def test_a_named_interface_is_used_whatever_it_is() -> None:
    assert names(choose([LO, ETH, VPN, DOCKER], ["tailscale0", "lo"])) == ["tailscale0", "lo"]


def test_an_interface_can_be_named_by_its_address_and_twice() -> None:
    assert names(choose([LO, ETH, WIFI], ["192.0.2.7", "eth0"])) == ["eth0"]


def test_an_unknown_name_is_a_usage_error_that_lists_the_known() -> None:
    with pytest.raises(UsageError, match="'eth9' here; this machine has: eth0, lo"):
        choose([LO, ETH], ["eth9"])


def test_what_is_down_or_has_no_address_is_left_out() -> None:
    assert names(choose([LO, make("eth0", "192.0.2.7/24", up=False), make("eth2"), WIFI])) == ["wlan0"]


def test_naming_only_what_is_down_says_so() -> None:
    with pytest.raises(P2prlError, match="eth0 is down or has no address") as caught:
        choose([LO, make("eth0", "192.0.2.7/24", up=False)], ["eth0"])
    assert not isinstance(caught.value, UsageError)


def test_self_assigned_addresses_count_only_if_there_is_nothing_better() -> None:
    assert names(choose([LO, SELF_ASSIGNED, ETH])) == ["eth0"]
    assert names(choose([LO, SELF_ASSIGNED])) == ["eth1"]


def test_nothing_at_all_is_said() -> None:
    with pytest.raises(P2prlError, match="no network interface of this machine is up"):
        choose([make("eth0", up=False)])


@pytest.mark.parametrize(
    "name",
    ["docker0", "br-5f3a", "veth12ab", "virbr0", "vmnet8", "vboxnet0", "vEthernet (WSL)", "tun0", "tap1",
     "wg0", "utun3", "ztabc", "podman1", "cni0", "flannel.1", "awdl0", "ppp0"],
)  # fmt: skip
def test_virtual_names(name: str) -> None:
    assert is_virtual(name)


@pytest.mark.parametrize(
    "name", ["eth0", "en0", "enp3s0", "wlan0", "wlp2s0", "br0", "bond0", "Ethernet", "Wi-Fi", "lan0"]
)
def test_real_names(name: str) -> None:
    assert not is_virtual(name)


def test_this_machine_has_a_loopback_with_a_subnet() -> None:
    loopbacks = [interface for interface in all_interfaces() if interface.loopback]
    assert loopbacks
    assert "127.0.0.1" in loopbacks[0].addresses
    assert ipaddress.ip_network("127.0.0.0/8") in loopbacks[0].networks
    assert chosen_interfaces([loopbacks[0].name]) == loopbacks[:1]
