"""The egress guard against the attack corpus, if it is available."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import httpx2
import pytest

from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.http.ip_addresses import AddressScope, classify_address
from tests import corpus
from tests.bonobot.core.http.fake_network import OK, FakeNetwork

# Ports aren't restricted.
ATTACKS = [
    pytest.param(row, id=row["id"])
    for row in corpus.read_samples("ssrf_urls.json")
    if row["stage"] != "policy"
] or [pytest.param({}, id="absent")]


@pytest.mark.corpus
@pytest.mark.parametrize("row", ATTACKS)
async def test_no_url_of_the_attack_corpus_reaches_a_private_address(row: dict[str, Any]):
    async def resolve(host: str, port: int) -> list[str]:
        answers = row.get("dns", {}).get(host)
        if answers:
            return answers.pop(0) if len(answers) > 1 else answers[0]
        addresses = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in addresses]

    location = row.get("redirects", [""])[0].encode()
    redirect = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location
    network = FakeNetwork(redirect if location else OK)
    succeeded = False
    async with build_guarded_client(
        allow_private=False, resolve=resolve, socket_backend=network
    ) as client:
        with suppress(EgressDenied, httpx2.HTTPError, httpx2.InvalidURL):
            succeeded = (await client.get(row["url"])).status_code == 200
    assert all(
        classify_address(address).scope is AddressScope.PUBLIC for address in network.connected
    )
    if row["expect"] == "allow":
        assert succeeded
    if row["expect"] == "block":
        assert not succeeded or row["stage"] == "rebind"
