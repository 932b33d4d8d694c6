"""REST operations as tools, performed in process.

The view defines an operation's input, output and permissions; this module lists the operations that
are tools, with their hints.

The tools call the same views as HTTP, so permissions, validation, serializers and audit are the
same. The caller is already authenticated by the gateway.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.urls import resolve
from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator
from rest_framework.authentication import BaseAuthentication
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from agents.gateway.client_request import GatewayRequest
from agents.gateway.organization_server.tools import (
    READS,
    OrganizationTool,
    OrganizationToolHints,
    Run,
    ToolInputSchema,
)
from bonobot.accounts.api.authentication import TokenUser
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.openapi.document import OpenApiDocument
from mcp_servers.openapi.operations import list_operations

# The standard fields of problem details.
_MEMBERS = ("type", "title", "status", "code", "detail", "field", "remedy", "rule", "retry_after")


@dataclass(frozen=True)
class OperationRequest:
    """A request to a view: path parameters, query and body."""

    view: type[ResourceView]
    method: str
    parts: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any] | None = None
    client: str = ""


def perform(principal: Principal, asked: OperationRequest) -> Any:
    """Return the view's response as JSON values; raises `Problem` for an error response."""

    class Known(BaseAuthentication):
        def authenticate(self, request: Request) -> tuple[Any, None]:
            request.bonobot_principal = principal  # type: ignore[attr-defined]
            return TokenUser(), None

    view: Any = asked.view.as_view(authentication_classes=(Known,), scope=None)
    response = view(_build_request(asked), **asked.parts)
    found: Any = None
    if response.data is not None:
        found = json.loads(JSONRenderer().render(response.data))
    if response.status_code >= 400:
        raise _build_problem(found)
    return _with_cursor(found)


def _build_request(asked: OperationRequest) -> ASGIRequest:
    body = b"" if asked.body is None else json.dumps(asked.body).encode()
    headers = {
        "host": urlsplit(settings.BONOBOT_URL).netloc,
        "user-agent": asked.client,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    query = {name: _format_value(value) for name, value in asked.query.items()}
    scope = {
        "type": "http",
        "method": asked.method,
        "path": "/api",
        "query_string": urlencode(query).encode(),
        "headers": [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ],
    }
    return ASGIRequest(scope, BytesIO(body))


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _build_problem(found: Mapping[str, Any]) -> Problem:
    more = {name: value for name, value in found.items() if name not in _MEMBERS}
    kind = {403: Forbidden, 404: NotFound}.get(found["status"], Problem)
    return kind(
        found["detail"],
        code=found["code"],
        field=found.get("field", ""),
        remedy=found.get("remedy", ""),
        rule=found.get("rule", ""),
        status=found["status"],
        retry_after=found.get("retry_after"),
        extra=more,
    )


def _with_cursor(found: Any) -> Any:
    """Return a page with only the cursor in `next`, instead of a URL."""
    if not isinstance(found, dict) or not set(found) >= {"results", "next"}:
        return found
    asked = parse_qs(urlsplit(found["next"] or "").query)
    return found | {"next": asked.get("cursor", [None])[0]}


ADDS = OrganizationToolHints(destroys=False)
CHANGES = OrganizationToolHints(repeatable=True)
RUNS = OrganizationToolHints(reaches_out=True)
# Their values may contain secrets that aren't stored yet and so can't be masked.
SECRETIVE = frozenset({"endpoint_config", "auth_config", "parameters"})
GOES_ON = "`session_status` tells how its session stands, and waits for it."
REMOVED = {"type": "object", "properties": {"removed": {"const": True}}, "required": ["removed"]}
NAMED = {
    "agent_id": "Id or slug of the agent.",
    "server_id": "Id of the server.",
    "note_id": "Id of the note.",
    "skill_id": "Id or name of the skill.",
    "workflow_id": "Id or name of the workflow.",
    "run_id": "Id of the run.",
    "limit": "At most so many, from 1 to 500.",
    "cursor": "`next` of the page before this one.",
}


@dataclass(frozen=True, kw_only=True)
class ManagementOperation:
    """An operation as a tool.

    `name`, `title` and `body_component` (of the OpenAPI document) are set if a tool is one of
    several variants of an operation; `note` is added to the description.
    """

    method: str
    path: str
    hints: OrganizationToolHints
    name: str = ""
    title: str = ""
    body: str = ""
    about: str = ""
    veiled: frozenset[str] = frozenset()

    @property
    def view(self) -> type[ResourceView]:
        """The operation's view."""
        found: type[ResourceView] = resolve(self.path).func.cls  # type: ignore[attr-defined]
        return found


def _build_read_operation(path: str) -> ManagementOperation:
    return ManagementOperation(method="GET", path=path, hints=READS)


AGENT, SERVER, RUN = (
    "/api/agents/{agent_id}",
    "/api/mcp-servers/{server_id}",
    "/api/workflow-runs/{run_id}",
)
NOTE, SKILL = f"{AGENT}/notes/{{note_id}}", "/api/skills/{skill_id}"
WORKFLOW = "/api/workflows/{workflow_id}"
OPERATIONS = (
    _build_read_operation("/api/agents"),
    _build_read_operation(AGENT),
    ManagementOperation(method="POST", path="/api/agents", hints=ADDS),
    ManagementOperation(method="PATCH", path=AGENT, hints=CHANGES),
    _build_read_operation("/api/mcp-servers"),
    _build_read_operation(SERVER),
    ManagementOperation(
        method="POST",
        path="/api/mcp-servers",
        hints=OrganizationToolHints(destroys=False, reaches_out=True),
        title="Add a server to the pool",
        body="CreateServerRequest",
        about="A `stdio` command can be set by a platform administrator only; `add_preset_server` "
        "is for everyone who manages servers. `refresh_server` asks it what it offers then.",
        veiled=SECRETIVE,
    ),
    _build_read_operation("/api/presets"),
    ManagementOperation(
        method="POST",
        path="/api/mcp-servers",
        hints=OrganizationToolHints(destroys=False, reaches_out=True),
        name="add_preset_server",
        title="Add a server to the pool from a preset",
        about="`list_presets` tells which there are, what each has to be told, and whether it is "
        "enabled.",
        body="PresetServerRequest",
        veiled=SECRETIVE,
    ),
    ManagementOperation(
        method="PATCH",
        path=SERVER,
        hints=OrganizationToolHints(repeatable=True, reaches_out=True),
        veiled=SECRETIVE,
    ),
    ManagementOperation(
        method="POST",
        path=f"{SERVER}/refresh",
        hints=OrganizationToolHints(destroys=False, repeatable=True, reaches_out=True),
    ),
    _build_read_operation(f"{AGENT}/mcp-servers"),
    ManagementOperation(
        method="POST",
        path=f"{AGENT}/mcp-servers",
        hints=CHANGES,
        name="give_agent_server",
        title="Give an agent a server of the pool",
        about="Sent again, it changes how much of the server the agent gets. Where `allowed_tools` "
        "is left out it gets everything.",
        body="AttachServerRequest",
    ),
    ManagementOperation(method="PATCH", path=f"{AGENT}/mcp-servers/{{server_id}}", hints=CHANGES),
    _build_read_operation(f"{AGENT}/notes"),
    ManagementOperation(method="POST", path=f"{AGENT}/notes", hints=ADDS),
    ManagementOperation(method="PATCH", path=NOTE, hints=CHANGES),
    ManagementOperation(method="DELETE", path=NOTE, hints=CHANGES),
    _build_read_operation("/api/skills"),
    _build_read_operation(SKILL),
    ManagementOperation(method="POST", path=f"{SKILL}/render", hints=READS),
    ManagementOperation(method="POST", path=f"{SKILL}/run", hints=RUNS, about=GOES_ON),
    _build_read_operation("/api/workflows"),
    _build_read_operation(WORKFLOW),
    _build_read_operation(f"{WORKFLOW}/runs"),
    ManagementOperation(method="POST", path=f"{WORKFLOW}/runs", hints=RUNS, about=GOES_ON),
    _build_read_operation(RUN),
    ManagementOperation(method="POST", path=f"{RUN}/cancel", hints=CHANGES),
    _build_read_operation("/api/sessions"),
)


def list_management_tools(principal: Principal) -> list[OrganizationTool]:
    """Return the tools that a principal's role and token allow."""
    return [
        tool
        for one, view, tool in _build_operation_tools()
        if view.is_open_to(principal, one.method)
    ]


class _OperationEnumerator(EndpointEnumerator):
    """Enumerates only the operations that are tools."""

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        return path in {one.path for one in OPERATIONS}


class _OperationSchemaGenerator(SchemaGenerator):
    endpoint_inspector_cls = _OperationEnumerator


@cache
def _build_operation_tools() -> tuple[
    tuple[ManagementOperation, type[ResourceView], OrganizationTool], ...
]:
    """Return each operation with its view and its tool; cached per process."""
    document = json.loads(
        json.dumps(_OperationSchemaGenerator().get_schema(request=None, public=True))
    )
    return tuple((one, one.view, _build_tool(one, document)) for one in OPERATIONS)


def _build_tool(one: ManagementOperation, document: Mapping[str, Any]) -> OrganizationTool:
    told = dict(document["paths"][one.path][one.method.lower()])
    # Header parameters are for HTTP only.
    told["parameters"] = [each for each in told.get("parameters", ()) if each["in"] != "header"]
    if one.body:
        schema = {"$ref": f"#/components/schemas/{one.body}"}
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    alone = {**document, "paths": {one.path: {one.method.lower(): told}}}
    [found] = list_operations(OpenApiDocument(alone, document["openapi"], 1))
    assert found.tool is not None, found.refused  # noqa: S101 - the document is ours
    body, form = _build_form(found.tool["inputSchema"])
    summary = one.title or found.summary
    about = "" if one.title else told.get("description", "").partition("Roles:")[0]
    words = (f"{summary}.", " ".join(about.split()), one.about)
    return OrganizationTool(
        name=one.name or found.operation_id,
        title=summary.partition(";")[0],
        description=" ".join(filter(None, words)),
        takes=form,
        gives=_answer(found.tool),
        hints=one.hints,
        run=_build_runner(one, tuple(each["name"] for each in told["parameters"]), has_body=body),
        veiled=one.veiled,
    )


def _build_form(schema: Mapping[str, Any]) -> tuple[bool, ToolInputSchema]:
    """Return whether an operation has a body, and the input schema with the body's fields."""
    properties, required = dict(schema["properties"]), list(schema.get("required", ()))
    definitions = dict(schema.get("$defs", {}))
    body = properties.pop("body", None)
    if body is not None:
        name = str(body.get("$ref", "")).removeprefix("#/$defs/")
        members = definitions.pop(name, body)
        properties |= members["properties"]
        required = [one for one in required if one != "body"] + list(members.get("required", ()))
    for name, text in NAMED.items():
        if name in properties:
            properties[name] = {**properties[name], "description": text}
    form = ToolInputSchema(properties, tuple(required))
    if definitions:
        form.schema["$defs"] = definitions
    return body is not None, form


def _answer(tool: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = _strip_descriptions(tool.get("outputSchema", REMOVED))
    if not set(answer["properties"]) >= {"results", "next"}:
        return answer
    after = {
        "type": ["string", "null"],
        "description": "`cursor` of the next page, if there is one.",
    }
    return {**answer, "properties": {**answer["properties"], "next": after}}


def _strip_descriptions(schema: Any, *, names: bool = False) -> Any:
    """Return an output schema without descriptions, which models don't need.

    `is_name_map`: the keys are field names, not JSON Schema keywords.
    """
    if isinstance(schema, list):
        return [_strip_descriptions(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _strip_descriptions(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key != "description"
    }


def _build_runner(one: ManagementOperation, parameters: tuple[str, ...], *, has_body: bool) -> Run:
    view = one.view
    in_path = {name for name in parameters if f"{{{name}}}" in one.path}

    async def run(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
        asked = OperationRequest(
            view=view,
            method=one.method,
            parts={name: arguments[name] for name in in_path},
            query={
                name: arguments[name]
                for name in parameters
                if name in arguments and name not in in_path
            },
            body={name: value for name, value in arguments.items() if name not in parameters}
            if has_body
            else None,
            client=inbound.client,
        )
        found = await get_runtime().orm(perform, inbound.visitor.principal, asked)
        answer: dict[str, Any] = {"removed": True} if found is None else found
        return answer

    return run
