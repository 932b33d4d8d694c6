"""An MCP server on this process's loop with one definition of each kind and a mark in its answers.

It uses the modern era, or with `handshake` the handshake era; there its tool `ask` requests input
during the call, and `client_responses` has the responses.
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
from tests.servers.raw_http_server import HandshakeHttp, RawHttp, RecordedRequest

Json = dict[str, Any]
TASKS = "io.modelcontextprotocol/tasks"
# Capabilities of a client that supports elicitation and tasks.
ABLE: Json = {"elicitation": {}, "extensions": {TASKS: {}}}
KEY = "name"
ANSWERS: Json = {KEY: {"action": "accept", "content": {"name": "Ann"}}}
CREATED_AT = "2026-07-28T00:00:00Z"
OBJECT: Json = {"type": "object", "properties": {}}


class Upstream:
    """The server's answers, which contain `mark`."""

    def __init__(self, mark: str, *, handshake: bool = False) -> None:
        self.mark = mark
        self.is_handshake = handshake
        self.client_responses: list[Json] = []
        # By method, a result or an error with its code instead of the usual answer.
        self.overrides: dict[str, Json] = {}
        # Log entries that are sent before a tool's result.
        self.logs: list[Json] = []
        self._pending: dict[str, asyncio.Future[Json]] = {}
        respond = HandshakeHttp(self._handshake) if handshake else self._modern
        self.http = RawHttp(respond)

    @property
    def url(self) -> str:
        """Its URL."""
        return self.http.url

    @property
    def elicitation(self) -> Json:
        """The elicitation request of `ask`."""
        schema = {"type": "object", "properties": {"name": {"type": "string"}}}
        form = {"mode": "form", "message": f"{self.mark} asks", "requestedSchema": schema}
        return {"method": "elicitation/create", "params": form}

    def _modern(self, request: RecordedRequest) -> bytes:
        if request.method in self.overrides:
            return self._override(request, self.overrides[request.method])
        if request.method == "tools/call":
            return self._stream_logs(request, self._call_tool(request.message["params"]))
        if request.id is None:
            return raw_http_server.response(202, kind="")
        return self._respond(request)

    def _override(self, request: RecordedRequest, override: Json) -> bytes:
        if "code" in override:
            return raw_http_server.error(request, override["code"], 200, override.get("data"))
        return raw_http_server.result(request, override)

    def _stream_logs(self, request: RecordedRequest, result: Json) -> bytes:
        if not self.logs:
            return raw_http_server.result(request, result)
        logs = [{"method": "notifications/message", "params": entry} for entry in self.logs]
        messages = [*logs, {"id": request.id, "result": result}]
        events = (raw_http_server.event({"jsonrpc": "2.0", **entry}) for entry in messages)
        return raw_http_server.STREAM + b"".join(events)

    def _call_tool(self, params: Json) -> Json:
        if params["name"] == "work":
            times = {
                "createdAt": CREATED_AT,
                "lastUpdatedAt": CREATED_AT,
                "ttlMs": 60_000,
                "pollIntervalMs": 10,
            }
            return {"resultType": "task", "taskId": f"{self.mark}-1", "status": "working", **times}
        if params["name"] == "ask" and "inputResponses" not in params:
            result = {
                "inputRequests": {KEY: self.elicitation},
                "requestState": f"{self.mark}-state",
            }
            return {"resultType": "input_required", **result}
        return self._text(params.get("inputResponses") or params.get("arguments"))

    def _respond(self, request: RecordedRequest) -> bytes:
        params = request.message.get("params", {})
        results = self._list_definitions() | {
            "server/discover": {
                "supportedVersions": [raw_http_server.MODERN],
                "capabilities": {**self._capabilities(), "extensions": {TASKS: {}}},
                "instructions": f"{self.mark} instructs.",
            },
            "resources/read": {"contents": [{"uri": params.get("uri"), "text": self.mark}]},
            "prompts/get": {"messages": [{"role": "user", "content": self._block(self.mark)}]},
            "completion/complete": {"completion": {"values": [f"{self.mark}-completed"]}},
            "tasks/get": {
                **{
                    "taskId": params.get("taskId"),
                    "createdAt": CREATED_AT,
                    "lastUpdatedAt": CREATED_AT,
                },
                **{"status": "completed", "result": self._text("worked"), "ttlMs": 60_000},
            },
            "tasks/update": {},
            "tasks/cancel": {},
            "ping": {},
            "logging/setLevel": {},
        }
        if request.method not in results:
            return raw_http_server.error(request, -32601, 404)
        return raw_http_server.result(
            request, {"resultType": "complete", **results[request.method]}
        )

    def _list_definitions(self) -> Json:
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

    def _handshake(self, request: RecordedRequest) -> bytes | AsyncIterator[bytes]:
        if not request.method:  # the response to the elicitation of `ask`
            waiting = self._pending.pop(str(request.id), None)
            if waiting is not None:
                waiting.set_result(request.message)
            return raw_http_server.response(202, kind="")
        if request.method == "tools/call" and request.tool == "ask":
            return self._request_input(request)
        if request.method in self.overrides:
            return self._override(request, self.overrides[request.method])
        if request.method == "tools/call":
            return raw_http_server.result(
                request, self._text(request.message["params"].get("arguments"))
            )
        return self._respond(request)

    async def _request_input(self, request: RecordedRequest) -> AsyncIterator[bytes]:
        """Request input as often as the arguments say, then return all responses."""
        yield raw_http_server.STREAM
        answers: list[Json] = []
        for turn in range(request.message["params"].get("arguments", {}).get("times", 1)):
            session = request.headers.get("mcp-session-id", "")
            request_id = f"{self.mark}-{session}-{request.id}-{turn}"
            waiting = self._pending[request_id] = asyncio.get_running_loop().create_future()
            yield raw_http_server.event({"jsonrpc": "2.0", "id": request_id, **self.elicitation})
            answers.append(await waiting)
            self.client_responses.append(answers[-1])
        if request.message["params"].get("arguments", {}).get("for_ever"):
            await asyncio.Event().wait()
        if request.message["params"].get("arguments", {}).get("fails"):
            error = {"code": -32050, "message": "It failed."}
            yield raw_http_server.event({"jsonrpc": "2.0", "id": request.id, "error": error})
            return
        results = [answer.get("result") or answer.get("error") for answer in answers]
        yield raw_http_server.event(
            {"jsonrpc": "2.0", "id": request.id, "result": self._text(results)}
        )

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


def attach_upstream(
    upstream: Upstream, organization: Organization, agent: Agent, **more: Any
) -> Server:
    """Register the server under its mark and attach it to an agent."""
    administrator = factories.build_administrator(organization)
    spec = ServerSpec(
        name=upstream.mark,
        transport_type="http",
        endpoint_config={"url": upstream.url},
        allow_private=True,
        approval=Server.Approval.ALWAYS,
        elicitation=True,
        **more,
    )
    server = factories.approve_server(organization, create_server(administrator, spec))
    attach_server(administrator, agent, server, allowed_resources=["*"], allowed_prompts=["*"])
    return server
