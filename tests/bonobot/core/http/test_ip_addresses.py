"""Public and private addresses, compared with the standard library and the registered ranges."""

from ipaddress import IPv4Address, IPv6Address, ip_address

import pytest
from hypothesis import given
from hypothesis.strategies import integers, ip_addresses

from bonobot.core.http.ip_addresses import AddressScope, classify_address


@given(ip_addresses())
def test_no_public_address_is_special_to_the_standard_library(address: IPv4Address | IPv6Address):
    if classify_address(str(address)).scope is AddressScope.PUBLIC:
        assert address.is_global
        assert not address.is_multicast


@given(ip_addresses(v=4))
@pytest.mark.parametrize("prefix", ["::ffff:", "64:ff9b::"])
def test_translated_addresses_are_checked_by_their_embedded_address(
    prefix: str, address: IPv4Address
):
    assert classify_address(f"{prefix}{address}").scope is classify_address(str(address)).scope


@given(integers(0, 2**32 - 1), integers(0, 2**32 - 1))
def test_an_isatap_address_with_a_private_address_is_refused(network: int, last: int):
    address = IPv6Address((0x2600 << 112) | (network << 64) | (0x5EFE << 32) | last)
    if classify_address(str(IPv4Address(last))).scope is not AddressScope.PUBLIC:
        assert classify_address(str(address)).scope is not AddressScope.PUBLIC


@pytest.mark.parametrize(
    ("inside", "outside"),
    [
        ("10.255.255.255", "11.0.0.0"),
        ("100.64.0.0", "100.63.255.255"),
        ("100.127.255.255", "100.128.0.0"),
        ("127.255.255.255", "128.0.0.0"),
        ("169.254.0.0", "169.253.255.255"),
        ("172.16.0.0", "172.15.255.255"),
        ("172.31.255.255", "172.32.0.0"),
        ("192.0.0.255", "192.0.1.0"),
        ("192.168.255.255", "192.169.0.0"),
        ("198.19.255.255", "198.20.0.0"),
        ("198.18.0.0", "198.17.255.255"),
        ("224.0.0.0", "223.255.255.255"),
        ("fdff::1", "2600::1"),
        ("2001:1ff::1", "2001:200::1"),
        ("2002::1", "2003::1"),
        ("3fff:fff::1", "3ffe::1"),
        ("4000::1", "2a00::1"),
    ],
)
def test_the_limits_of_special_ranges_are_exact(inside: str, outside: str):
    assert classify_address(inside).scope is not AddressScope.PUBLIC
    assert classify_address(outside).scope is AddressScope.PUBLIC


@pytest.mark.parametrize(
    "address",
    [
        "169.254.169.254",
        "100.100.100.200",
        "168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "::ffff:169.254.169.254",
        "64:ff9b::a9fe:a9fe",
        "0.0.0.0",  # noqa: S104
        "::",
        "255.255.255.255",
        "ff02::1",
        "fe80::1",
        "2001:0:4136:e378::1",
    ],
)
def test_metadata_and_unassigned_addresses_are_refused_even_with_permission(address: str):
    assert not classify_address(address).is_allowed(allow_private=True)


@pytest.mark.parametrize("address", ["127.0.0.1", "::1", "10.1.2.3", "192.168.1.1", "fd12::1"])
def test_private_addresses_need_permission(address: str):
    verdict = classify_address(address)
    assert verdict.is_allowed(allow_private=True)
    assert not verdict.is_allowed(allow_private=False)
    assert verdict.address == str(ip_address(address))
