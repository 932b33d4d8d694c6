"""The egress guard against the collection of attacks, where it is at hand."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.http.ip_addresses import AddressScope, classify_address
from tests import corpus
from tests.bonobot.core.http.fake_network import OK, Dial

# Ports are not our policy.
ATTACKS = [
    pytest.param(row, id=row["id"])
    for row in corpus.rows("ssrf_urls.json")
    if row["stage"] != "policy"
] or [pytest.param({}, id="absent")]


@pytest.mark.corpus
@pytest.mark.parametrize("row", ATTACKS)
async def test_no_url_of_the_attack_corpus_reaches_a_private_address(row: dict[str, Any]):
    async def resolve(host: str, port: int) -> list[str]:
        rounds = row.get("dns", {}).get(host)
        if rounds:
            return rounds.pop(0) if len(rounds) > 1 else rounds[0]
        found = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in found]

    location = row.get("redirects", [""])[0].encode()
    moved = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location
    dial = Dial(moved if location else OK)
    answered = False
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=dial
    ) as client:
        with suppress(EgressDenied, httpx2.HTTPError, httpx2.InvalidURL):
            answered = (await client.get(row["url"])).status_code == 200
    assert all(classify_address(address).scope is AddressScope.PUBLIC for address in dial.connected)
    if row["expect"] == "allow":
        assert answered
    if row["expect"] == "block":
        assert not answered or row["stage"] == "rebind"
