"""The egress guard against the collection of attacks, where it is at hand."""

import asyncio
import json
import socket
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from bonobot.lib.egress import EgressDenied, guarded_client
from bonobot.lib.networks import Reach, judge
from tests.bonobot.lib.network import OK, Dial

CORPUS = Path(__file__).parents[4] / "shared" / "corpus" / "ssrf_urls.json"


def rows() -> list[Any]:
    if not CORPUS.exists():
        skip = pytest.mark.skip(reason=f"{CORPUS} is not on this machine")
        return [pytest.param({}, id="absent", marks=skip)]
    return [
        pytest.param(row, id=row["id"])
        for row in json.loads(CORPUS.read_text(encoding="utf-8"))["items"]
        if row["stage"] != "policy"  # ports are not our policy
    ]


@pytest.mark.parametrize("row", rows())
async def test_no_url_of_the_collection_reaches_an_address_inside(row: dict[str, Any]):
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
    async with guarded_client(allow_private=False, resolve=resolve, dial=dial) as client:
        with suppress(EgressDenied, httpx2.HTTPError, httpx2.InvalidURL):
            answered = (await client.get(row["url"])).status_code == 200
    assert all(judge(address).reach is Reach.PUBLIC for address in dial.connected)
    if row["expect"] == "allow":
        assert answered
    if row["expect"] == "block":
        assert not answered or row["stage"] == "rebind"
