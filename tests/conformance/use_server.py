"""Using a server of the conformance suite by Bonobot's connections.

Whatever the scenario, the server is surveyed and everything usable that it declares is used once;
the suite's context says which tools are called with which arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.host import Host, NullHost
from mcp_servers.client.list_definitions import RawDefinition
from mcp_servers.client.pool import ConnectionPool

HOLDER = "session:conformance"
ROUNDS = 5
FOCAL = "json_schema_2020_12_tool"
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}
# The scenarios whose servers ask something back, or look at what is declared.
ASKING = (
    "elicitation-sep1034-client-defaults",
    "request-metadata",
    "sep-2322-client-request-state",
)

Params = dict[str, Any]


class Answers(Host):
    """Accepts every form with its defaults, and offers the other two."""

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        return {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        fields = params.get("requestedSchema", {}).get("properties", {})
        content = {name: one["default"] for name, one in fields.items() if "default" in one}
        return {"action": "accept", "content": content}

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "none"}

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        return {"roots": []}


async def use(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    """Use all that the server at `url` offers; raises `UpstreamError` where that doesn't work."""
    endpoint = ServerEndpoint(
        server_id=UUID(int=1),
        name="conformance",
        organization_id=UUID(int=2),
        transport="http",
        url=url,
        allow_private=True,
        connect_s=5,
        read_s=15,
        allowed_requests=frozenset(
            {"sampling", "elicitation", "roots"} if scenario in ASKING else ()
        ),
    )
    host = Answers() if scenario in ASKING else NullHost()
    connections = ConnectionPool(host=host)
    try:
        survey = await connections.fetch_declarations(endpoint)
        usable = [item for item in survey.items if not item.fault]
        for method, params, schema in _uses(usable, context):
            await _use(connections, endpoint, host, method, params, schema)
    finally:
        await connections.close()


def _uses(
    items: list[RawDefinition], context: Mapping[str, Any]
) -> Iterator[tuple[str, Params, Any]]:
    """Yield what to ask for: method, parameters, and the schema of a tool."""
    schemas = {item.name: item.payload["inputSchema"] for item in items if item.kind == "tool"}
    known: dict[str, Any] = {**ARGUMENTS, "json_schema_echo": {"schema": schemas.get(FOCAL)}}
    calls = context.get("toolCalls") or [
        {"name": name, "arguments": known.get(name, {})} for name in schemas
    ]
    for call in calls:
        if call["name"] in schemas:
            yield "tools/call", call, schemas[call["name"]]
    for item in items:
        if item.kind == "resource":
            yield "resources/read", {"uri": item.name}, None
        if item.kind == "prompt":
            yield "prompts/get", {"name": item.name}, None


async def _use(
    connections: ConnectionPool,
    endpoint: ServerEndpoint,
    host: Host,
    method: str,
    params: Params,
    schema: Any,
) -> None:
    """Ask once, and again with answers as often as the server wants some."""
    more: Params = {}
    for _ in range(ROUNDS):
        try:
            result = await connections.send_request(
                endpoint, method, params | more, holder=HOLDER, input_schema=schema
            )
        except UpstreamError as error:
            if error.code != "upstream_error":  # which is an answer too
                raise
            return
        if result.get("resultType") != "input_required":
            return
        asked = result.get("inputRequests", {})
        more = {
            "inputResponses": {
                key: await host.elicitation(endpoint, one.get("params", {}))
                for key, one in asked.items()
            }
        }
        if "requestState" in result:
            more["requestState"] = result["requestState"]
