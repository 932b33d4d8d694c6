"""REST operations as tools, performed in process.

The view defines an operation's input, output and permissions; this module lists the operations that
are tools, with their hints.

The tools call the same views as HTTP, so permissions, validation, serializers and audit are the
same. The caller is already authenticated by the gateway.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

from django.conf import settings
from django.core.handlers.asgi import ASGIRequest
from django.urls import resolve
from drf_spectacular.generators import EndpointEnumerator
from rest_framework.authentication import BaseAuthentication
from rest_framework.renderers import JSONRenderer
from rest_framework.request import Request

from agents.gateway.client_request import GatewayRequest
from agents.gateway.organization_server.app_pages import (
    ANSWER_KEY,
    ANSWER_KEY_SCHEMA,
    build_page_meta,
    check_answer_key,
    check_not_own_call,
)
from agents.gateway.organization_server.tools import (
    READ_ONLY_HINTS,
    OrganizationTool,
    OrganizationToolHints,
    ToolInputSchema,
    ToolRunner,
)
from bonobot.accounts.api.authentication import TokenUser
from bonobot.accounts.api.openapi_schema import SerializedSchemaGenerator
from bonobot.accounts.api.resource_view import ResourceView
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Forbidden, NotFound, Problem
from bonobot.core.process_cache import compute_once
from bonobot.core.runtime import get_runtime
from mcp_servers.openapi.document import OpenApiDocument
from mcp_servers.openapi.operations import iterate_operations

# The standard fields of problem details.
_PROBLEM_FIELDS = (
    "type",
    "title",
    "status",
    "code",
    "detail",
    "field",
    "remedy",
    "rule",
    "retry_after",
)
# Their values may contain secrets that aren't stored yet and so can't be masked.
SECRET_FIELDS = frozenset({"endpoint_config", "auth_config", "parameters"})
# What a person must be allowed to do to answer on a page.
ANSWER_ACTIONS = {"approvals": Action.APPROVE_CALLS, "elicitation_requests": Action.RUN_AGENTS}
URL_NOTE = "Only a person can answer: show the `url` of each pending one to the person."
PAGE_NOTE = "Only for the page of an MCP App, on which a person answers."
SESSION_NOTE = "Use `session_status` to check its session or wait for it."
DELETED_SCHEMA = {
    "type": "object",
    "properties": {"removed": {"const": True}},
    "required": ["removed"],
}
PARAMETER_DESCRIPTIONS = {
    "agent_id": "ID or slug of the agent.",
    "server_id": "ID of the server.",
    "note_id": "ID of the note.",
    "skill_id": "ID or name of the skill.",
    "workflow_id": "ID or name of the workflow.",
    "run_id": "ID of the run.",
    "session_id": "ID of the session.",
    "approval_id": "ID of the approval.",
    "request_id": "ID of the elicitation request.",
    "limit": "Maximum number of results, from 1 to 500.",
    "cursor": "`next` of the previous page.",
}
AGENT_PATH, SERVER_PATH, RUN_PATH = (
    "/api/agents/{agent_id}",
    "/api/mcp-servers/{server_id}",
    "/api/workflow-runs/{run_id}",
)
NOTE_PATH, SKILL_PATH = f"{AGENT_PATH}/notes/{{note_id}}", "/api/skills/{skill_id}"
WORKFLOW_PATH = "/api/workflows/{workflow_id}"
# Tools that were renamed after version 0.1: clients that know the old names can still call them.
RENAMED_TOOLS = {
    "add_agent": "create_agent",
    "add_note": "create_note",
    "add_preset_server": "create_server_from_preset",
    "add_server": "create_server",
    "change_agent": "update_agent",
    "change_agent_server": "update_agent_server",
    "change_note": "update_note",
    "change_server": "update_server",
    "give_agent_server": "attach_server_to_agent",
    "remove_note": "delete_note",
}
CREATE_HINTS = OrganizationToolHints(destructive=False)
UPDATE_HINTS = OrganizationToolHints(idempotent=True)
RUN_HINTS = OrganizationToolHints(open_world=True)


@dataclass(frozen=True)
class OperationRequest:
    """A request to a view: path parameters, query and body."""

    view: type[ResourceView]
    method: str
    path_parameters: Mapping[str, str]
    query: Mapping[str, Any]
    body: Mapping[str, Any] | None = None
    client_name: str = ""


def perform_operation(principal: Principal, operation_request: OperationRequest) -> Any:
    """Return the view's response as JSON values; raises `Problem` for an error response."""

    class PrincipalAuthentication(BaseAuthentication):
        def authenticate(self, request: Request) -> tuple[Any, None]:
            request.bonobot_principal = principal  # type: ignore[attr-defined]
            return TokenUser(), None

    view: Any = operation_request.view.as_view(
        authentication_classes=(PrincipalAuthentication,), scope=None
    )
    response = view(_build_request(operation_request), **operation_request.path_parameters)
    data: Any = None
    if response.data is not None:
        data = json.loads(JSONRenderer().render(response.data))
    if response.status_code >= 400:
        raise _build_problem(data)
    return _extract_cursor(data)


def _build_request(operation_request: OperationRequest) -> ASGIRequest:
    body = b"" if operation_request.body is None else json.dumps(operation_request.body).encode()
    headers = {
        "host": urlsplit(settings.BONOBOT_URL).netloc,
        "user-agent": operation_request.client_name,
        "content-type": "application/json",
        "content-length": str(len(body)),
    }
    query = {name: _format_value(value) for name, value in operation_request.query.items()}
    scope = {
        "type": "http",
        "method": operation_request.method,
        "path": "/api",
        "query_string": urlencode(query).encode(),
        "headers": [
            (name.encode(), value.encode("latin-1", "replace")) for name, value in headers.items()
        ],
    }
    return ASGIRequest(scope, BytesIO(body))


def _format_value(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _build_problem(details: Mapping[str, Any]) -> Problem:
    extra = {name: value for name, value in details.items() if name not in _PROBLEM_FIELDS}
    problem_class = {403: Forbidden, 404: NotFound}.get(details["status"], Problem)
    return problem_class(
        details["detail"],
        code=details["code"],
        field=details.get("field", ""),
        remedy=details.get("remedy", ""),
        rule=details.get("rule", ""),
        status=details["status"],
        retry_after=details.get("retry_after"),
        extra=extra,
    )


def _extract_cursor(page: Any) -> Any:
    """Return a page with only the cursor in `next`, instead of a URL."""
    if not isinstance(page, dict) or not set(page) >= {"results", "next"}:
        return page
    query = parse_qs(urlsplit(page["next"] or "").query)
    return page | {"next": query.get("cursor", [None])[0]}


@dataclass(frozen=True, kw_only=True)
class ManagementOperation:
    """An operation as a tool.

    `name`, `title` and `body_component` (of the OpenAPI document) are set if a tool is one of
    several variants of an operation; `note` is added to the description. `page` shows the result as
    an MCP App; with `page_answers`, only pages can use the tool.
    """

    method: str
    path: str
    hints: OrganizationToolHints
    name: str = ""
    title: str = ""
    body_component: str = ""
    note: str = ""
    secret_arguments: frozenset[str] = frozenset()
    page: str = ""
    page_answers: bool = False

    @property
    def meta(self) -> dict[str, Any]:
        """The metadata that names the page of an MCP App."""
        if self.page_answers:
            return build_page_meta("", app_only=True)
        return build_page_meta(self.page) if self.page else {}

    @property
    def view(self) -> type[ResourceView]:
        """The operation's view."""
        view_class: type[ResourceView] = resolve(self.path).func.cls  # type: ignore[attr-defined]
        return view_class


def _build_read_operation(path: str) -> ManagementOperation:
    return ManagementOperation(method="GET", path=path, hints=READ_ONLY_HINTS)


OPERATIONS = (
    _build_read_operation("/api/agents"),
    _build_read_operation(AGENT_PATH),
    ManagementOperation(method="POST", path="/api/agents", hints=CREATE_HINTS),
    ManagementOperation(method="PATCH", path=AGENT_PATH, hints=UPDATE_HINTS),
    _build_read_operation("/api/mcp-servers"),
    _build_read_operation(SERVER_PATH),
    ManagementOperation(
        method="POST",
        path="/api/mcp-servers",
        hints=OrganizationToolHints(destructive=False, open_world=True),
        title="Add a server to the pool",
        body_component="CreateServerRequest",
        note="Only a platform administrator can set a `stdio` command; everyone who can manage "
        "servers can use `create_server_from_preset`. To scan its definitions, call "
        "`refresh_server`.",
        secret_arguments=SECRET_FIELDS,
    ),
    _build_read_operation("/api/presets"),
    ManagementOperation(
        method="POST",
        path="/api/mcp-servers",
        hints=OrganizationToolHints(destructive=False, open_world=True),
        name="create_server_from_preset",
        title="Add a server to the pool from a preset",
        note="Call `list_presets` for the presets, their parameters, and whether they are enabled.",
        body_component="PresetServerRequest",
        secret_arguments=SECRET_FIELDS,
    ),
    ManagementOperation(
        method="PATCH",
        path=SERVER_PATH,
        hints=OrganizationToolHints(idempotent=True, open_world=True),
        secret_arguments=SECRET_FIELDS,
    ),
    ManagementOperation(
        method="POST",
        path=f"{SERVER_PATH}/refresh",
        hints=OrganizationToolHints(destructive=False, idempotent=True, open_world=True),
    ),
    _build_read_operation(f"{AGENT_PATH}/mcp-servers"),
    ManagementOperation(
        method="POST",
        path=f"{AGENT_PATH}/mcp-servers",
        hints=UPDATE_HINTS,
        name="attach_server_to_agent",
        title="Attach a pool server to an agent",
        note="If the server is already attached, the attachment is updated. Without "
        "`allowed_tools`, the agent gets all tools.",
        body_component="AttachServerRequest",
    ),
    ManagementOperation(
        method="PATCH", path=f"{AGENT_PATH}/mcp-servers/{{server_id}}", hints=UPDATE_HINTS
    ),
    _build_read_operation(f"{AGENT_PATH}/notes"),
    ManagementOperation(method="POST", path=f"{AGENT_PATH}/notes", hints=CREATE_HINTS),
    ManagementOperation(method="PATCH", path=NOTE_PATH, hints=UPDATE_HINTS),
    ManagementOperation(method="DELETE", path=NOTE_PATH, hints=UPDATE_HINTS),
    _build_read_operation("/api/skills"),
    _build_read_operation(SKILL_PATH),
    ManagementOperation(method="POST", path=f"{SKILL_PATH}/render", hints=READ_ONLY_HINTS),
    ManagementOperation(
        method="POST", path=f"{SKILL_PATH}/run", hints=RUN_HINTS, note=SESSION_NOTE
    ),
    _build_read_operation("/api/workflows"),
    _build_read_operation(WORKFLOW_PATH),
    _build_read_operation(f"{WORKFLOW_PATH}/runs"),
    ManagementOperation(
        method="POST", path=f"{WORKFLOW_PATH}/runs", hints=RUN_HINTS, note=SESSION_NOTE
    ),
    _build_read_operation(RUN_PATH),
    ManagementOperation(method="POST", path=f"{RUN_PATH}/cancel", hints=UPDATE_HINTS),
    _build_read_operation("/api/sessions"),
    ManagementOperation(
        method="GET", path="/api/sessions/{session_id}", hints=READ_ONLY_HINTS, page="session"
    ),
    ManagementOperation(
        method="GET", path="/api/approvals", hints=READ_ONLY_HINTS, page="approvals", note=URL_NOTE
    ),
    ManagementOperation(
        method="POST",
        path="/api/approvals/{approval_id}/answer",
        hints=RUN_HINTS,
        note=PAGE_NOTE,
        secret_arguments=frozenset({ANSWER_KEY}),
        page_answers=True,
    ),
    ManagementOperation(
        method="GET",
        path="/api/elicitation-requests",
        hints=READ_ONLY_HINTS,
        page="elicitation_requests",
        note=URL_NOTE,
    ),
    ManagementOperation(
        method="POST",
        path="/api/elicitation-requests/{request_id}/answer",
        hints=RUN_HINTS,
        note=PAGE_NOTE,
        secret_arguments=frozenset({ANSWER_KEY, "content"}),
        page_answers=True,
    ),
)


def list_management_tools(principal: Principal) -> list[OrganizationTool]:
    """Return the tools that a principal's role and token allow."""
    return [
        tool
        for operation, view, tool in _build_operation_tools()
        if view.is_open_to(principal, operation.method)
    ]


def prepare_management_tools() -> None:
    """Compute the tools, which all principals share, before the first request needs them."""
    _build_operation_tools()


class _OperationEnumerator(EndpointEnumerator):
    """Enumerates only the operations that are tools."""

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        return path in {operation.path for operation in OPERATIONS}


class _OperationSchemaGenerator(SerializedSchemaGenerator):
    endpoint_inspector_cls = _OperationEnumerator


@compute_once
def _build_operation_tools() -> tuple[
    tuple[ManagementOperation, type[ResourceView], OrganizationTool], ...
]:
    """Return each operation with its view and its tool; cached per process."""
    document = json.loads(
        json.dumps(_OperationSchemaGenerator().get_schema(request=None, public=True))
    )
    return tuple(
        (operation, operation.view, _build_tool(operation, document)) for operation in OPERATIONS
    )


def _build_tool(
    management_operation: ManagementOperation, document: Mapping[str, Any]
) -> OrganizationTool:
    declared = dict(
        document["paths"][management_operation.path][management_operation.method.lower()]
    )
    # Header parameters are for HTTP only.
    declared["parameters"] = [
        parameter for parameter in declared.get("parameters", ()) if parameter["in"] != "header"
    ]
    if management_operation.body_component:
        schema = {"$ref": f"#/components/schemas/{management_operation.body_component}"}
        declared["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    single_operation = {
        **document,
        "paths": {management_operation.path: {management_operation.method.lower(): declared}},
    }
    [parsed] = iterate_operations(OpenApiDocument(single_operation, document["openapi"], 1))
    assert parsed.tool is not None, parsed.refusal_reason  # noqa: S101 - the document is ours
    has_body, input_schema = _build_input_schema(parsed.tool["inputSchema"])
    if management_operation.page_answers:
        input_schema.schema["properties"][ANSWER_KEY] = ANSWER_KEY_SCHEMA
        input_schema.schema["required"] = [*input_schema.schema["required"], ANSWER_KEY]
    summary = management_operation.title or parsed.summary
    api_description = (
        "" if management_operation.title else declared.get("description", "").partition("Roles:")[0]
    )
    sentences = (f"{summary}.", " ".join(api_description.split()), management_operation.note)
    return OrganizationTool(
        name=management_operation.name or parsed.operation_id,
        title=summary.partition(";")[0],
        description=" ".join(filter(None, sentences)),
        input_schema=input_schema,
        output_schema=_build_output_schema(parsed.tool),
        hints=management_operation.hints,
        run=_build_runner(
            management_operation,
            tuple(parameter["name"] for parameter in declared["parameters"]),
            has_body=has_body,
        ),
        secret_arguments=management_operation.secret_arguments,
        meta=management_operation.meta,
        answers=ANSWER_ACTIONS.get(management_operation.page),
    )


def _build_input_schema(schema: Mapping[str, Any]) -> tuple[bool, ToolInputSchema]:
    """Return whether an operation has a body, and the input schema with the body's fields."""
    properties, required = dict(schema["properties"]), list(schema.get("required", ()))
    definitions = dict(schema.get("$defs", {}))
    body = properties.pop("body", None)
    if body is not None:
        name = str(body.get("$ref", "")).removeprefix("#/$defs/")
        body_schema = definitions.pop(name, body)
        properties |= body_schema["properties"]
        required = [required_name for required_name in required if required_name != "body"] + list(
            body_schema.get("required", ())
        )
    for name, text in PARAMETER_DESCRIPTIONS.items():
        if name in properties:
            properties[name] = {**properties[name], "description": text}
    input_schema = ToolInputSchema(properties, tuple(required))
    if definitions:
        input_schema.schema["$defs"] = definitions
    return body is not None, input_schema


def _build_output_schema(tool: Mapping[str, Any]) -> dict[str, Any]:
    output_schema: dict[str, Any] = _strip_descriptions(tool.get("outputSchema", DELETED_SCHEMA))
    if not set(output_schema["properties"]) >= {"results", "next"}:
        return output_schema
    cursor_schema = {
        "type": ["string", "null"],
        "description": "`cursor` of the next page; null on the last page.",
    }
    return {**output_schema, "properties": {**output_schema["properties"], "next": cursor_schema}}


def _strip_descriptions(schema: Any, *, is_name_map: bool = False) -> Any:
    """Return an output schema without descriptions, which models don't need.

    `is_name_map`: the keys are field names, not JSON Schema keywords.
    """
    if isinstance(schema, list):
        return [_strip_descriptions(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _strip_descriptions(
            value, is_name_map=not is_name_map and key in ("properties", "$defs")
        )
        for key, value in schema.items()
        if is_name_map or key != "description"
    }


def _build_runner(
    operation: ManagementOperation, parameters: tuple[str, ...], *, has_body: bool
) -> ToolRunner:
    view = operation.view
    path_names = {name for name in parameters if f"{{{name}}}" in operation.path}

    async def run(inbound: GatewayRequest, arguments: dict[str, Any]) -> dict[str, Any]:
        if operation.page_answers:
            arguments = dict(arguments)
            check_answer_key(inbound, arguments.pop(ANSWER_KEY))
        if operation.page_answers and arguments.get("answer", "").startswith("approve"):
            await get_runtime().run_orm(
                check_not_own_call, inbound.caller.principal, arguments["approval_id"]
            )
        operation_request = OperationRequest(
            view=view,
            method=operation.method,
            path_parameters={name: arguments[name] for name in path_names},
            query={
                name: arguments[name]
                for name in parameters
                if name in arguments and name not in path_names
            },
            body={name: value for name, value in arguments.items() if name not in parameters}
            if has_body
            else None,
            client_name=inbound.client_name,
        )
        result = await get_runtime().run_orm(
            perform_operation, inbound.caller.principal, operation_request
        )
        answer: dict[str, Any] = {"removed": True} if result is None else result
        return answer

    return run
