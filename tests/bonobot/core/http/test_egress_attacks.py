"""The egress guard against the attack corpus, if it is available."""

import asyncio
import socket
from contextlib import suppress
from typing import Any

import httpcore2
import httpx2
import pytest

from bonobot.core.http.egress import EgressDenied, Resolver, build_guarded_client
from bonobot.core.http.ip_addresses import AddressScope, classify_address
from bonobot.core.http.network_backend import AsyncioNetworkBackend
from bonobot.core.http.persistent_client import PersistentClient
from tests import corpus
from tests.bonobot.core.http.fake_network import OK, FakeNetwork

# Ports aren't restricted.
ATTACKS = [
    pytest.param(row, id=row["id"])
    for row in corpus.read_samples("ssrf_urls.json")
    if row["stage"] != "policy"
] or [pytest.param({}, id="absent")]


def build_row_resolver(row: dict[str, Any]) -> Resolver:
    """Return a resolver with the answers of a row, each once until the last one."""
    answers_by_host = {host: list(answers) for host, answers in row.get("dns", {}).items()}

    async def resolve(host: str, port: int) -> list[str]:
        if answers := answers_by_host.get(host):
            return answers.pop(0) if len(answers) > 1 else answers[0]
        addresses = await asyncio.to_thread(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
        return [str(entry[4][0]) for entry in addresses]

    return resolve


@pytest.mark.corpus
@pytest.mark.parametrize("row", ATTACKS)
async def test_the_persistent_client_connects_to_no_private_address(
    row: dict[str, Any], monkeypatch: pytest.MonkeyPatch
):
    network = FakeNetwork()

    async def connect(_: Any, address: str, *options: Any) -> Any:
        await network.connect_tcp(address, *options)
        raise httpcore2.ConnectError("recorded")

    monkeypatch.setattr(AsyncioNetworkBackend, "connect_tcp", connect)
    monkeypatch.setattr("bonobot.core.http.egress.resolve_host", build_row_resolver(row))
    client = PersistentClient(allow_private=False, headers={}, connect_s=5)
    with pytest.raises((EgressDenied, httpx2.HTTPError, httpx2.InvalidURL)):
        await client.open_response(
            "POST", row["url"], headers={}, limit=1, on_send=lambda: None
        ).__aenter__()
    assert all(
        classify_address(address).scope is AddressScope.PUBLIC for address in network.connected
    )
    assert network.connected or row["expect"] != "allow"


@pytest.mark.corpus
@pytest.mark.parametrize("row", ATTACKS)
async def test_no_url_of_the_attack_corpus_reaches_a_private_address(row: dict[str, Any]):
    location = row.get("redirects", [""])[0].encode()
    redirect = b"HTTP/1.1 302 Found\r\nLocation: %s\r\nContent-Length: 0\r\n\r\n" % location
    network = FakeNetwork(redirect if location else OK)
    succeeded = False
    async with build_guarded_client(
        allow_private=False, resolve=build_row_resolver(row), socket_backend=network
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
