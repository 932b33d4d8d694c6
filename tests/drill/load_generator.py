"""The drill's load: sessions over REST, calls by the SDK's clients, and the person who is asked.

Every charge has a key of its own, so that the upstream's file tells which was made, and how often.
"""

import asyncio
import itertools
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from tests.drill.hosts import ADDRESS

CALLS_EACH = 3  # of one session
EVERY_S = 0.7
ANSWER_S = 20.0
AGAIN_S = 0.5
MODES = ("auto", "legacy")


@dataclass
class Tally:
    """What clients have seen: keys whose charge was answered, lost, or is out."""

    answered: set[str] = field(default_factory=set)
    lost: dict[str, str] = field(default_factory=dict)
    out: set[str] = field(default_factory=set)
    sessions: dict[str, list[str]] = field(default_factory=dict)
    told: int = 0  # answers of the person
    untold: int = 0  # sessions of which nobody knows whether they were begun


@dataclass
class Load:
    """What goes on all the time; `stop` ends it in order."""

    tokens: list[str]
    person: str
    till: Path
    tally: Tally = field(default_factory=Tally)
    stopping: bool = False
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    by_client: dict[int, int] = field(default_factory=dict)

    async def run(self) -> None:
        """Go on until `stopping`; what is out then comes back."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._begin_sessions())
            group.create_task(self._answer())
            for number, token in enumerate(self.tokens):
                group.create_task(self._call(number, token, MODES[number % len(MODES)]))

    def charged(self) -> list[str]:
        """Return the keys that the upstream wrote down."""
        return self.till.read_text(encoding="utf-8").split()

    async def begin_session(self, http: httpx2.AsyncClient) -> str:
        """Start a session of three charges, however often that must be asked for."""
        while True:
            number = next(self._numbers)
            keys = [f"s{number}-{one}" for one in range(CALLS_EACH)]
            said = "\n".join(f"/mcp_till_charge {json.dumps({'key': key})}" for key in keys)
            answer = await self._insisting(
                http,
                "POST",
                "/api/agents/helper/sessions",
                json={"message": said},
                headers={"Idempotency-Key": f"session-{number}"},
                fine=(409,),
            )
            if "id" in answer:
                break
            # The process that took it died with it: nobody knows, and it is never repeated.
            self.tally.untold += 1
        session_id = str(answer["id"])
        self.tally.sessions[session_id] = keys
        return session_id

    async def _begin_sessions(self) -> None:
        async with self.http(self.person) as http:
            while not self.stopping:
                await self.begin_session(http)
                await asyncio.sleep(EVERY_S)

    async def _call(self, number: int, token: str, mode: Any) -> None:
        while not self.stopping:
            try:
                async with asyncio.timeout(None), self.http(token) as http:
                    wire = streamable_http_client(f"{ADDRESS}/mcp/agents/helper", http_client=http)
                    async with Client(wire, mode=mode) as client:
                        await self._charge(client, number)
            except Exception:  # noqa: BLE001  # whatever it is, a client begins anew
                await asyncio.sleep(AGAIN_S)

    async def _charge(self, client: Client, number: int) -> None:
        tools = (await client.list_tools()).tools
        [charge] = [one.name for one in tools if one.name.endswith("charge")]
        while not self.stopping:
            key = f"c{next(self._numbers)}"
            self.tally.out.add(key)
            try:
                async with asyncio.timeout(ANSWER_S):
                    result = await client.call_tool(charge, {"key": key})
                text = json.dumps([one.model_dump(mode="json") for one in result.content])
                if result.is_error or key not in text:
                    self.tally.lost[key] = text[:200]
                else:
                    self.tally.answered.add(key)
                    self.by_client[number] = self.by_client.get(number, 0) + 1
            except BaseException as error:
                self.tally.lost[key] = repr(error)[:200]
                raise
            finally:
                self.tally.out.discard(key)

    async def _answer(self) -> None:
        """Be the person: look whether a charge was made, and say yes only where it wasn't."""
        async with self.http(self.person) as http:
            while not self.stopping or await self._answer_all(http):
                await self._answer_all(http)
                await asyncio.sleep(AGAIN_S)

    async def _answer_all(self, http: httpx2.AsyncClient) -> int:
        waiting = await self._insisting(http, "GET", "/api/approvals?state=waiting")
        for one in waiting["results"]:
            made = one["arguments"]["key"] in self.charged()
            said = {"answer": "deny", "message": "It was made."} if made else {"answer": "approve"}
            path = f"/api/approvals/{one['id']}/answer"
            await self._insisting(http, "POST", path, json=said, fine=(409,))
            self.tally.told += 1
        return len(waiting["results"])

    def http(self, token: str) -> httpx2.AsyncClient:
        """Return a client with a token."""
        headers = {"Authorization": f"Bearer {token}"}
        return httpx2.AsyncClient(base_url=ADDRESS, headers=headers, timeout=ANSWER_S)

    async def _insisting(
        self,
        http: httpx2.AsyncClient,
        verb: str,
        path: str,
        *,
        fine: tuple[int, ...] = (),
        **more: Any,
    ) -> Any:
        """Ask until there is an answer, as a program with an idempotency key may."""
        while True:
            try:
                answer = await http.request(verb, path, **more)
            except httpx2.HTTPError:
                await asyncio.sleep(AGAIN_S)
                continue
            if answer.is_success or answer.status_code in fine:
                return answer.json()
            if answer.status_code < 500 and answer.status_code not in (409, 429):
                raise RuntimeError(f"{verb} {path}: {answer.status_code} {answer.text[:300]}")
            await asyncio.sleep(AGAIN_S)


async def until(predicate: Callable[[], Any], what: str, within_s: float) -> Any:
    """Return the first truthy answer; raises TimeoutError that names what was waited for."""
    try:
        async with asyncio.timeout(within_s):
            while not (found := await asyncio.to_thread(predicate)):
                await asyncio.sleep(0.2)
            return found
    except TimeoutError:
        raise TimeoutError(f"{what} didn't come within {within_s:.0f} s") from None
