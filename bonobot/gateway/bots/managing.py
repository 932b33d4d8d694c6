"""Managing: operations of REST as tools, declared by the API's own document.

What an operation takes and gives, who may use it and what it does is said once, by its view; here
it is said which of them are tools, and what a call of each may do.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from django.urls import resolve
from drf_spectacular.generators import EndpointEnumerator, SchemaGenerator

from bonobot.gateway.bots.performing import Asked, perform
from bonobot.gateway.bots.tools import READS, Form, Hints, Run, Tool
from bonobot.gateway.inbound import Inbound
from bonobot.lib.runtime import runtime
from bonobot.tenancy.api.resources import Resource
from bonobot.tenancy.principals import Principal
from mcp_servers.openapi.operations import operations
from mcp_servers.openapi.reading import Document

ADDS = Hints(destroys=False)
CHANGES = Hints(repeatable=True)
RUNS = Hints(reaches_out=True)
# Their values may hold secrets that nobody knows yet.
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
class Operation:
    """An operation as a tool.

    `name`, `title` and `body` (a component of the document) are said where a tool is one of the
    several things that an operation can do; `about` is what else a model has to know.
    """

    method: str
    path: str
    hints: Hints
    name: str = ""
    title: str = ""
    body: str = ""
    about: str = ""
    veiled: frozenset[str] = frozenset()

    @property
    def view(self) -> type[Resource]:
        """The view that performs it."""
        found: type[Resource] = resolve(self.path).func.cls  # type: ignore[attr-defined]
        return found


def _reads(path: str) -> Operation:
    return Operation(method="GET", path=path, hints=READS)


AGENT, SERVER, RUN = (
    "/api/agents/{agent_id}",
    "/api/mcp-servers/{server_id}",
    "/api/workflow-runs/{run_id}",
)
NOTE, SKILL = f"{AGENT}/notes/{{note_id}}", "/api/skills/{skill_id}"
WORKFLOW = "/api/workflows/{workflow_id}"
OPERATIONS = (
    _reads("/api/agents"),
    _reads(AGENT),
    Operation(method="POST", path="/api/agents", hints=ADDS),
    Operation(method="PATCH", path=AGENT, hints=CHANGES),
    _reads("/api/mcp-servers"),
    _reads(SERVER),
    Operation(
        method="POST",
        path="/api/mcp-servers",
        hints=Hints(destroys=False, reaches_out=True),
        title="Add a server to the pool",
        body="NewServerRequest",
        about="A `stdio` command can be set by a platform administrator only; `add_preset_server` "
        "is for everyone who manages servers. `refresh_server` asks it what it offers then.",
        veiled=SECRETIVE,
    ),
    _reads("/api/presets"),
    Operation(
        method="POST",
        path="/api/mcp-servers",
        hints=Hints(destroys=False, reaches_out=True),
        name="add_preset_server",
        title="Add a server to the pool from a preset",
        about="`list_presets` tells which there are, what each has to be told, and whether it is "
        "enabled.",
        body="NewPresetServerRequest",
        veiled=SECRETIVE,
    ),
    Operation(
        method="PATCH",
        path=SERVER,
        hints=Hints(repeatable=True, reaches_out=True),
        veiled=SECRETIVE,
    ),
    Operation(
        method="POST",
        path=f"{SERVER}/refresh",
        hints=Hints(destroys=False, repeatable=True, reaches_out=True),
    ),
    _reads(f"{AGENT}/mcp-servers"),
    Operation(
        method="POST",
        path=f"{AGENT}/mcp-servers",
        hints=CHANGES,
        name="give_agent_server",
        title="Give an agent a server of the pool",
        about="Sent again, it changes how much of the server the agent gets. Where `allowed_tools` "
        "is left out it gets everything.",
        body="BindRequest",
    ),
    Operation(method="PATCH", path=f"{AGENT}/mcp-servers/{{server_id}}", hints=CHANGES),
    _reads(f"{AGENT}/notes"),
    Operation(method="POST", path=f"{AGENT}/notes", hints=ADDS),
    Operation(method="PATCH", path=NOTE, hints=CHANGES),
    Operation(method="DELETE", path=NOTE, hints=CHANGES),
    _reads("/api/skills"),
    _reads(SKILL),
    Operation(method="POST", path=f"{SKILL}/render", hints=READS),
    Operation(method="POST", path=f"{SKILL}/run", hints=RUNS, about=GOES_ON),
    _reads("/api/workflows"),
    _reads(WORKFLOW),
    _reads(f"{WORKFLOW}/runs"),
    Operation(method="POST", path=f"{WORKFLOW}/runs", hints=RUNS, about=GOES_ON),
    _reads(RUN),
    Operation(method="POST", path=f"{RUN}/cancel", hints=CHANGES),
    _reads("/api/sessions"),
)


def management(principal: Principal) -> list[Tool]:
    """Return the operations that a principal's role and token allow."""
    return [tool for one, view, tool in _declared() if view.is_open_to(principal, one.method)]


class _Ours(EndpointEnumerator):
    """Finds the operations that are tools, and no others."""

    def should_include_endpoint(self, path: str, callback: Any) -> bool:
        return path in {one.path for one in OPERATIONS}


class _Generator(SchemaGenerator):
    endpoint_inspector_cls = _Ours


@cache
def _declared() -> tuple[tuple[Operation, type[Resource], Tool], ...]:
    """Return each operation with its view and its tool; worked out once in a process."""
    document = json.loads(json.dumps(_Generator().get_schema(request=None, public=True)))
    return tuple((one, one.view, _tool(one, document)) for one in OPERATIONS)


def _tool(one: Operation, document: Mapping[str, Any]) -> Tool:
    told = dict(document["paths"][one.path][one.method.lower()])
    # These are for whoever speaks HTTP.
    told["parameters"] = [each for each in told.get("parameters", ()) if each["in"] != "header"]
    if one.body:
        schema = {"$ref": f"#/components/schemas/{one.body}"}
        told["requestBody"] = {
            "required": True,
            "content": {"application/json": {"schema": schema}},
        }
    alone = {**document, "paths": {one.path: {one.method.lower(): told}}}
    [found] = operations(Document(alone, document["openapi"], 1))
    assert found.tool is not None, found.refused  # noqa: S101 - the document is ours
    body, form = _flat(found.tool["inputSchema"])
    summary = one.title or found.summary
    about = "" if one.title else told.get("description", "").partition("Roles:")[0]
    words = (f"{summary}.", " ".join(about.split()), one.about)
    return Tool(
        name=one.name or found.operation_id,
        title=summary.partition(";")[0],
        description=" ".join(filter(None, words)),
        takes=form,
        gives=_answer(found.tool),
        hints=one.hints,
        run=_performing(one, tuple(each["name"] for each in told["parameters"]), has_body=body),
        veiled=one.veiled,
    )


def _flat(schema: Mapping[str, Any]) -> tuple[bool, Form]:
    """Return whether an operation has a body, and its form with the body's members in it."""
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
    form = Form(properties, tuple(required))
    if definitions:
        form.schema["$defs"] = definitions
    return body is not None, form


def _answer(tool: Mapping[str, Any]) -> dict[str, Any]:
    answer: dict[str, Any] = _terse(tool.get("outputSchema", REMOVED))
    if not set(answer["properties"]) >= {"results", "next"}:
        return answer
    after = {
        "type": ["string", "null"],
        "description": "`cursor` of the next page, if there is one.",
    }
    return {**answer, "properties": {**answer["properties"], "next": after}}


def _terse(schema: Any, *, names: bool = False) -> Any:
    """Return a schema without its descriptions: models read answers, not what they look like.

    `names`: the members are named by the API, not by JSON Schema.
    """
    if isinstance(schema, list):
        return [_terse(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _terse(value, names=not names and key in ("properties", "$defs"))
        for key, value in schema.items()
        if names or key != "description"
    }


def _performing(one: Operation, parameters: tuple[str, ...], *, has_body: bool) -> Run:
    view = one.view
    in_path = {name for name in parameters if f"{{{name}}}" in one.path}

    async def run(inbound: Inbound, arguments: dict[str, Any]) -> dict[str, Any]:
        asked = Asked(
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
        found = await runtime().orm(perform, inbound.visitor.principal, asked)
        answer: dict[str, Any] = {"removed": True} if found is None else found
        return answer

    return run
