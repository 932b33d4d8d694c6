"""The built-in tools that every agent may have: resources, skills and stored results."""

from typing import Any
from uuid import UUID

from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, ServerIdentity
from agents.flow_labels.services import parse_labels
from agents.models import Step, StoredResult
from agents.skills import render_unfilled, to_prompt
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow, FlowCell
from mcp_servers.flow_labels import FlowLabel, build_flow_key, decode_labels, encode_labels
from mcp_servers.flow_labels.token_labels import HELD_LABELS
from mcp_servers.uri_templates import MAX_URI_LENGTH

CHUNK_LENGTH = 32_768
MAX_LISTED_RESOURCES = 200
MAX_DESCRIPTION_LENGTH = 200


async def _handle_read_result(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await get_runtime().run_orm(_read_result, context, arguments)


def _read_result(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a part of a stored result of this session; raises `NotFound` for any other.

    A result of another session would bypass the flow labels of this one.
    """
    own_results = StoredResult.objects.for_organization(context.organization_id).filter(
        agent=context.agent_id, session_id=context.session_id
    )
    text = own_results.filter(pk=arguments["result_id"]).values_list("text", flat=True).first()
    if text is None and (text := _find_step_text(context, arguments["result_id"])) is None:
        raise NotFound(
            format_message(
                "The stored result {result_id!r} doesn't exist.", result_id=arguments["result_id"]
            ),
            field="result_id",
            remedy="Use the ID at the end of the truncated result.",
        )
    start = arguments.get("offset", 0)
    piece = text[start : start + CHUNK_LENGTH]
    end = start + len(piece)
    return f"{piece}\n[characters {start} to {end} of {len(text)}]"


def _list_result_labels(agent_id: UUID, arguments: dict[str, Any]) -> tuple[FlowLabel, ...]:
    """Return the flow labels of the call whose result is read.

    If its audit entry is gone, it is assumed to have all of them.
    """
    own_results = StoredResult.objects.filter(pk=arguments["result_id"], agent=agent_id)
    organization_id = own_results.values_list("organization_id", flat=True).first()
    if organization_id is None:
        return ()
    row = AuditRow.objects.filter(
        pk=arguments["result_id"], organization_id=organization_id
    ).first()
    if row is None:
        return decode_labels(HELD_LABELS)
    labels = encode_labels(parse_labels(row))
    if row.server_id is not None:
        label_rows = FlowCell.objects.filter(
            pk=build_flow_key(organization_id, "server", row.server_id)
        )
        labels |= label_rows.values_list("labels", flat=True).first() or 0
    return decode_labels(labels & HELD_LABELS)


def _find_step_text(context: BuiltinToolContext, result_id: str) -> str | None:
    """Return a result that was stored with its step and later cut from the context."""
    if context.session_id is None:
        return None
    steps = Step.objects.filter(
        session_id=context.session_id, kind=Step.Kind.CALL, call_id=result_id
    ).exclude(state=Step.State.INTENT)
    payload = steps.values_list("payload", flat=True).first()
    return payload.get("text") if payload else None


READ_RESULT = BuiltinTool(
    name="read_result",
    description=format_message(
        "Read more of a tool result that was truncated or omitted because it was too long."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "result_id": {"type": "string", "format": "uuid", "pattern": "^[0-9a-fA-F-]{36}$"},
            "offset": {"type": "integer", "minimum": 0, "description": "First character."},
        },
        "required": ["result_id"],
        "additionalProperties": False,
    },
    run=_handle_read_result,
    labels=(FlowLabel.REPEATABLE,),
    list_result_labels=_list_result_labels,
)


class ResourceReadFailed(Problem):
    """The server returned no resource; the code is that of the read."""

    code = "not_read"
    status = 502


async def _handle_list_resources(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return the resources and templates that the agent may read, one per line."""
    definitions = context.snapshot.list_definitions("resource", "resource_template", "skill")
    server_slug = arguments.get("server")
    server = _get_server(context, server_slug) if server_slug else None
    lines = []
    for definition in definitions:
        if not definition.decision.allowed or (server and definition.facts.server_id != server.id):
            continue
        slug = context.snapshot.servers[definition.facts.server_id].slug
        summary = " – ".join(part for part in (definition.title, definition.description) if part)
        mime = definition.declaration.get("mimeType") or ""
        note = {
            "resource_template": " (template: fill in its variables)",
            "skill": " (skill: read it before you start its task)",
        }.get(definition.facts.kind, "")
        summary = " ".join(summary.split())[:MAX_DESCRIPTION_LENGTH]
        lines.append(f"{slug} {definition.name} {mime}{note} {summary}".strip())
    shown_lines = lines[:MAX_LISTED_RESOURCES]
    if omitted := len(lines) - len(shown_lines):
        shown_lines.append(f"[{omitted} more. To list fewer, specify a server.]")
    return "\n".join(shown_lines) or "There are no resources to read."


async def _handle_read_resource(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a resource as text; the read is a nested call."""
    server = _get_server(context, arguments["server"])
    outcome = await context.call("resources/read", server.id, arguments["uri"])
    if outcome.is_error:
        raise ResourceReadFailed(outcome.text, code=outcome.code, remedy=outcome.remedy)
    return outcome.text


def _get_server(context: BuiltinToolContext, name: str) -> ServerIdentity:
    server = next(
        (candidate for candidate in context.snapshot.servers.values() if candidate.slug == name),
        None,
    )
    if server is None:
        raise NotFound(
            format_message("The server {name!r} doesn't exist.", name=name),
            field="server",
            remedy="Use a server name from `list_resources`. It comes first on each line.",
        )
    return server


LIST_RESOURCES = BuiltinTool(
    name="list_resources",
    description=format_message(
        "List the readable resources, each with its server, URI or URI template, and a "
        "short description."
    ),
    input_schema={
        "type": "object",
        "properties": {"server": {"type": "string", "description": "Only of this server."}},
        "additionalProperties": False,
    },
    run=_handle_list_resources,
    needs_resources=True,
    labels=(FlowLabel.REPEATABLE,),
)

READ_RESOURCE = BuiltinTool(
    name="read_resource",
    description=format_message(
        "Read a resource by its server and URI, as listed by `list_resources`."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "server": {"type": "string"},
            "uri": {"type": "string", "minLength": 1, "maxLength": MAX_URI_LENGTH},
        },
        "required": ["server", "uri"],
        "additionalProperties": False,
    },
    run=_handle_read_resource,
    needs_resources=True,
    labels=(FlowLabel.REPEATABLE,),
)


async def _handle_list_skills(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return the skills with their arguments, one per line."""
    lines = []
    for skill in context.snapshot.skills.values():
        prompt = to_prompt(skill)
        argument_names = ", ".join(
            f"{argument['name']}{'' if argument['required'] else '?'}"
            for argument in prompt["arguments"]
        )
        lines.append(
            f"{skill.name}({argument_names}): {skill.description or skill.title}".rstrip(": ")
        )
    return "\n".join(lines)


async def _handle_read_skill(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a skill's text with its placeholders unfilled.

    If arguments were filled in here, untrusted text that the model quotes would be returned as
    instructions.
    """
    skill = context.snapshot.skills.get(arguments["name"])
    if skill is None:
        raise NotFound(
            format_message("The skill {name!r} doesn't exist.", name=arguments["name"][:100]),
            code="unknown_skill",
            field="name",
            remedy="Use a name from `list_skills`.",
        )
    return render_unfilled(skill)


LIST_SKILLS = BuiltinTool(
    name="list_skills",
    description=format_message(
        "List the skills: instructions for tasks, with the arguments each skill takes."
    ),
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    run=_handle_list_skills,
    needs_skills=True,
    returns_instructions=True,
    labels=(FlowLabel.REPEATABLE,),
)

READ_SKILL = BuiltinTool(
    name="read_skill",
    description=format_message("Read the instructions of a skill before you start its task."),
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    run=_handle_read_skill,
    needs_skills=True,
    returns_instructions=True,
    labels=(FlowLabel.REPEATABLE,),
)

DEFAULT_TOOLS = (READ_RESULT, LIST_RESOURCES, READ_RESOURCE, LIST_SKILLS, READ_SKILL)
