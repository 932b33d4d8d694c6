"""A server of our own on this process's loop: one of everything, with a mark in what it answers.

It speaks the modern era by itself, and the handshake era where it is asked to (`old`); there its
tool `ask` asks in the middle of the call, and `asked_back` holds what it was answered.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import Any

from agents.models import Agent
from agents.services import attach_server
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from mcp_servers.models import Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories
from tests.servers import raw_http_server
from tests.servers.raw_http_server import Asked, HandshakeHttp, RawHttp

Json = dict[str, Any]
TASKS = "io.modelcontextprotocol/tasks"
# What a client declares that is asked, and takes tasks.
ABLE: Json = {"elicitation": {}, "extensions": {TASKS: {}}}
KEY = "name"
ANSWERS: Json = {KEY: {"action": "accept", "content": {"name": "Ann"}}}
AT = "2026-07-28T00:00:00Z"
OBJECT: Json = {"type": "object", "properties": {}}


class Upstream:
    """What the server answers; `mark` tells whose it is."""

    def __init__(self, mark: str, *, old: bool = False) -> None:
        self.mark = mark
        self.era = old
        self.asked_back: list[Json] = []
        # By method, what is answered in place of the usual: a result, or an error with its code.
        self.instead: dict[str, Json] = {}
        # What is logged before a tool answers.
        self.logs: list[Json] = []
        self._answered: dict[str, asyncio.Future[Json]] = {}
        own = HandshakeHttp(self._handshake) if old else self._modern
        self.http = RawHttp(own)

    @property
    def url(self) -> str:
        """Where it listens."""
        return self.http.url

    @property
    def question(self) -> Json:
        """What `ask` asks."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        form = {"mode": "form", "message": f"{self.mark} asks", "requestedSchema": schema}
        return {"method": "elicitation/create", "params": form}

    def _modern(self, asked: Asked) -> bytes:
        if asked.method in self.instead:
            return self._instead(asked, self.instead[asked.method])
        if asked.method == "tools/call":
            return self._logged(asked, self._called(asked.message["params"]))
        if asked.id is None:
            return raw_http_server.response(202, kind="")
        return self._said(asked)

    def _instead(self, asked: Asked, found: Json) -> bytes:
        if "code" in found:
            return raw_http_server.error(asked, found["code"], 200, found.get("data"))
        return raw_http_server.result(asked, found)

    def _logged(self, asked: Asked, result: Json) -> bytes:
        if not self.logs:
            return raw_http_server.result(asked, result)
        logs = [{"method": "notifications/message", "params": one} for one in self.logs]
        told = [*logs, {"id": asked.id, "result": result}]
        events = (raw_http_server.event({"jsonrpc": "2.0", **one}) for one in told)
        return raw_http_server.STREAM + b"".join(events)

    def _called(self, params: Json) -> Json:
        if params["name"] == "work":
            times = {"createdAt": AT, "lastUpdatedAt": AT, "ttlMs": 60_000, "pollIntervalMs": 10}
            return {"resultType": "task", "taskId": f"{self.mark}-1", "status": "working", **times}
        if params["name"] == "ask" and "inputResponses" not in params:
            asked = {"inputRequests": {KEY: self.question}, "requestState": f"{self.mark}-state"}
            return {"resultType": "input_required", **asked}
        return self._text(params.get("inputResponses") or params.get("arguments"))

    def _said(self, asked: Asked) -> bytes:
        params = asked.message.get("params", {})
        said = self._offers() | {
            "server/discover": {
                "supportedVersions": [raw_http_server.MODERN],
                "capabilities": {**self._capabilities(), "extensions": {TASKS: {}}},
                "instructions": f"{self.mark} instructs.",
            },
            "resources/read": {"contents": [{"uri": params.get("uri"), "text": self.mark}]},
            "prompts/get": {"messages": [{"role": "user", "content": self._block(self.mark)}]},
            "completion/complete": {"completion": {"values": [f"{self.mark}-completed"]}},
            "tasks/get": {
                **{"taskId": params.get("taskId"), "createdAt": AT, "lastUpdatedAt": AT},
                **{"status": "completed", "result": self._text("worked"), "ttlMs": 60_000},
            },
            "tasks/update": {},
            "tasks/cancel": {},
            "ping": {},
            "logging/setLevel": {},
        }
        if asked.method not in said:
            return raw_http_server.error(asked, -32601, 404)
        return raw_http_server.result(asked, {"resultType": "complete", **said[asked.method]})

    def _offers(self) -> Json:
        tools = [{"name": name, "inputSchema": OBJECT} for name in ("echo", "ask", "work")]
        argument = {"name": "name", "required": False}
        return {
            "tools/list": {"tools": tools},
            "resources/list": {"resources": [{"uri": f"mem://{self.mark}", "name": self.mark}]},
            "resources/templates/list": {
                "resourceTemplates": [{"uriTemplate": f"{self.mark}://{{id}}", "name": "by id"}]
            },
            "prompts/list": {"prompts": [{"name": f"{self.mark}-greet", "arguments": [argument]}]},
        }

    def _handshake(self, asked: Asked) -> bytes | AsyncIterator[bytes]:
        if not asked.method:  # the answer to what `ask` asked
            waiting = self._answered.pop(str(asked.id), None)
            if waiting is not None:
                waiting.set_result(asked.message)
            return raw_http_server.response(202, kind="")
        if asked.method == "tools/call" and asked.tool == "ask":
            return self._asking(asked)
        if asked.method in self.instead:
            return self._instead(asked, self.instead[asked.method])
        if asked.method == "tools/call":
            return raw_http_server.result(
                asked, self._text(asked.message["params"].get("arguments"))
            )
        return self._said(asked)

    async def _asking(self, asked: Asked) -> AsyncIterator[bytes]:
        """Ask as often as the arguments say, each time for what was answered before."""
        yield raw_http_server.STREAM
        answers: list[Json] = []
        for turn in range(asked.message["params"].get("arguments", {}).get("times", 1)):
            session = asked.headers.get("mcp-session-id", "")
            number = f"{self.mark}-{session}-{asked.id}-{turn}"
            waiting = self._answered[number] = asyncio.get_running_loop().create_future()
            yield raw_http_server.event({"jsonrpc": "2.0", "id": number, **self.question})
            answers.append(await waiting)
            self.asked_back.append(answers[-1])
        if asked.message["params"].get("arguments", {}).get("for_ever"):
            await asyncio.Event().wait()
        if asked.message["params"].get("arguments", {}).get("fails"):
            failed = {"code": -32050, "message": "It failed."}
            yield raw_http_server.event({"jsonrpc": "2.0", "id": asked.id, "error": failed})
            return
        told = [one.get("result") or one.get("error") for one in answers]
        yield raw_http_server.event({"jsonrpc": "2.0", "id": asked.id, "result": self._text(told)})

    def _text(self, value: Any) -> Json:
        return {"content": [self._block(f"{self.mark} {json.dumps(value)}")]}

    def _block(self, text: str) -> Json:
        return {"type": "text", "text": text}

    def _capabilities(self) -> Json:
        return {"tools": {}, "resources": {}, "prompts": {}, "completions": {}}

    @contextmanager
    def listening(self) -> Iterator["Upstream"]:
        """Listen while the block runs."""
        listening = self.http.listening()
        get_runtime().call(listening.__aenter__)
        try:
            yield self
        finally:
            get_runtime().call(listening.__aexit__, None, None, None)


def give(upstream: Upstream, where: Organization, agent: Agent, **more: Any) -> Server:
    """Register the server under its mark, and give all of it to an agent."""
    boss = factories.build_administrator(where)
    spec = ServerSpec(
        name=upstream.mark,
        transport_type="http",
        endpoint_config={"url": upstream.url},
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        elicitation=True,
        **more,
    )
    server = factories.approve_server(where, create_server(boss, spec))
    attach_server(boss, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    return server
