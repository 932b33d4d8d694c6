"""Uses a server of the conformance suite over Bonobot's connections.

In every scenario, the server's definitions are fetched and each usable one is used once; the
suite's context says which tools are called with which arguments.
"""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import UUID

from mcp_servers.client.answer_server_requests import Host, NullHost
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.list_definitions import RawDefinition
from mcp_servers.client.pool import ConnectionPool

HOLDER = "session:conformance"
ROUNDS = 5
SCHEMA_TOOL = "json_schema_2020_12_tool"
ARGUMENTS = {"add_numbers": {"a": 5, "b": 3}}
# The scenarios whose servers send requests to the client or check its capabilities.
SCENARIOS_WITH_REQUESTS = (
    "elicitation-sep1034-client-defaults",
    "request-metadata",
    "sep-2322-client-request-state",
)

Params = dict[str, Any]


class Answers(Host):
    """Accepts every form with its defaults, and supports sampling and roots."""

    def capabilities(self, endpoint: ServerEndpoint) -> Mapping[str, Any]:
        return {"sampling": {}, "elicitation": {"form": {}}, "roots": {}}

    async def elicitation(
        self, endpoint: ServerEndpoint, params: Mapping[str, Any]
    ) -> dict[str, Any]:
        fields = params.get("requestedSchema", {}).get("properties", {})
        content = {name: field["default"] for name, field in fields.items() if "default" in field}
        return {"action": "accept", "content": content}

    async def sampling(self, endpoint: ServerEndpoint, params: Mapping[str, Any]) -> dict[str, Any]:
        return {"role": "assistant", "content": {"type": "text", "text": "ok"}, "model": "none"}

    async def roots(self, endpoint: ServerEndpoint) -> dict[str, Any]:
        return {"roots": []}


async def use(url: str, scenario: str, context: Mapping[str, Any]) -> None:
    """Use everything that the server at `url` declares; raise `UpstreamError` if that fails."""
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
            {"sampling", "elicitation", "roots"} if scenario in SCENARIOS_WITH_REQUESTS else ()
        ),
    )
    host = Answers() if scenario in SCENARIOS_WITH_REQUESTS else NullHost()
    connections = ConnectionPool(host=host)
    try:
        survey = await connections.fetch_declarations(endpoint)
        usable = [item for item in survey.items if not item.fault]
        for method, params, schema in _uses(usable, context):
            await _send(connections, endpoint, host, method, params, schema)
    finally:
        await connections.close()


def _uses(
    items: list[RawDefinition], context: Mapping[str, Any]
) -> Iterator[tuple[str, Params, Any]]:
    """Yield the requests to send: method, parameters, and a tool's schema."""
    schemas = {item.name: item.payload["inputSchema"] for item in items if item.kind == "tool"}
    arguments: dict[str, Any] = {
        **ARGUMENTS,
        "json_schema_echo": {"schema": schemas.get(SCHEMA_TOOL)},
    }
    calls = context.get("toolCalls") or [
        {"name": name, "arguments": arguments.get(name, {})} for name in schemas
    ]
    for call in calls:
        if call["name"] in schemas:
            yield "tools/call", call, schemas[call["name"]]
    for item in items:
        if item.kind == "resource":
            yield "resources/read", {"uri": item.name}, None
        if item.kind == "prompt":
            yield "prompts/get", {"name": item.name}, None


async def _send(
    connections: ConnectionPool,
    endpoint: ServerEndpoint,
    host: Host,
    method: str,
    params: Params,
    schema: Any,
) -> None:
    """Send a request, and repeat it with responses as long as the server requires input."""
    more: Params = {}
    for _ in range(ROUNDS):
        try:
            result = await connections.send_request(
                endpoint, method, params | more, holder=HOLDER, input_schema=schema
            )
        except UpstreamError as error:
            if error.code != "upstream_error":  # which is a valid response
                raise
            return
        if result.get("resultType") != "input_required":
            return
        requests = result.get("inputRequests", {})
        more = {
            "inputResponses": {
                key: await host.elicitation(endpoint, request.get("params", {}))
                for key, request in requests.items()
            }
        }
        if "requestState" in result:
            more["requestState"] = result["requestState"]
