"""The built-in tools that every agent may have: resources, skills and stored results."""

from typing import Any
from uuid import UUID

from agents.builtin_tools.types import BuiltinTool, BuiltinToolContext, ServerIdentity
from agents.flow_labels.rules import SEEN
from agents.flow_labels.services import parse_labels
from agents.models import Step, StoredResult
from agents.skills.templates import TemplateArgument, as_prompt
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow, FlowCell
from mcp_servers.flow_labels import FlowLabel, decode_labels, encode_labels
from mcp_servers.flow_labels.store_labels import server_store
from mcp_servers.uri_templates import LONGEST_URI

CHUNK = 32_768


async def _run(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    return await get_runtime().orm(_read_result, context, arguments)


def _read_result(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a part of a stored result of this session; raises `NotFound` for any other.

    A result of another session would bypass the flow labels of this one.
    """
    mine = StoredResult.objects.for_organization(context.organization_id).filter(
        agent=context.agent_id, session_id=context.session_id
    )
    found = mine.filter(pk=arguments["result_id"]).values_list("text", flat=True).first()
    if found is None and (found := _find_step_text(context, arguments["result_id"])) is None:
        raise NotFound(
            format_message(
                "There is no stored result {result_id!r}.", result_id=arguments["result_id"]
            ),
            field="result_id",
            remedy="Use the id that stands at the end of the cut result.",
        )
    start = arguments.get("offset", 0)
    piece = found[start : start + CHUNK]
    end = start + len(piece)
    return f"{piece}\n[characters {start} to {end} of {len(found)}]"


def _brings(agent_id: UUID, arguments: dict[str, Any]) -> tuple[FlowLabel, ...]:
    """Return the flow labels of the call whose result is read.

    If its audit entry is gone, it is assumed to have all of them.
    """
    mine = StoredResult.objects.filter(pk=arguments["result_id"], agent=agent_id)
    stored = mine.values_list("organization_id", flat=True).first()
    if stored is None:
        return ()
    row = AuditRow.objects.filter(pk=arguments["result_id"], organization_id=stored).first()
    if row is None:
        return decode_labels(SEEN)
    found = encode_labels(parse_labels(row))
    if row.server_id is not None:
        cells = FlowCell.objects.filter(pk=server_store(stored, row.server_id))
        found |= cells.values_list("labels", flat=True).first() or 0
    return decode_labels(found & SEEN)


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
        "Read on in a tool result that was cut or left out because it was too long."
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
    run=_run,
    labels=(FlowLabel.REPEATABLE,),
    brings=_brings,
)


SHOWN_AT_MOST = 200
DESCRIPTION_SHOWN = 200


class ResourceReadFailed(Problem):
    """The server returned no resource; the code is that of the read."""

    code = "not_read"
    status = 502


async def _list_resources(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return the resources and templates that the agent may read, one per line."""
    offers = context.snapshot.offers_of("resource", "resource_template")
    wanted = arguments.get("server")
    server = _get_server(context, wanted) if wanted else None
    lines = []
    for offer in offers:
        if not offer.decision.allowed or (server and offer.facts.server_id != server.id):
            continue
        slug = context.snapshot.servers[offer.facts.server_id].slug
        about = " – ".join(part for part in (offer.title, offer.description) if part)
        mime = offer.declaration.get("mimeType") or ""
        template = " (template: fill in its variables)" if "template" in offer.facts.kind else ""
        about = " ".join(about.split())[:DESCRIPTION_SHOWN]
        lines.append(f"{slug} {offer.name} {mime}{template} {about}".strip())
    shown = lines[:SHOWN_AT_MOST]
    if more := len(lines) - len(shown):
        shown.append(f"[{more} more: name a server to see fewer]")
    return "\n".join(shown) or "There are no resources to read."


async def _read_resource(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a resource as text; the read is a nested call."""
    server = _get_server(context, arguments["server"])
    outcome = await context.call("resources/read", server.id, arguments["uri"])
    if outcome.is_error:
        raise ResourceReadFailed(outcome.text, code=outcome.code, remedy=outcome.remedy)
    return outcome.text


def _get_server(context: BuiltinToolContext, name: str) -> ServerIdentity:
    found = next((one for one in context.snapshot.servers.values() if one.slug == name), None)
    if found is None:
        raise NotFound(
            format_message("There is no server {name!r}.", name=name),
            field="server",
            remedy="Take the name from `list_resources`: the first word of each line.",
        )
    return found


LIST_RESOURCES = BuiltinTool(
    name="list_resources",
    description=format_message(
        "List the resources that can be read: server, URI or URI template, and a word about each."
    ),
    input_schema={
        "type": "object",
        "properties": {"server": {"type": "string", "description": "Only of this server."}},
        "additionalProperties": False,
    },
    run=_list_resources,
    of_resources=True,
    labels=(FlowLabel.REPEATABLE,),
)

READ_RESOURCE = BuiltinTool(
    name="read_resource",
    description=format_message(
        "Read a resource by its server and URI, as `list_resources` names them."
    ),
    input_schema={
        "type": "object",
        "properties": {
            "server": {"type": "string"},
            "uri": {"type": "string", "minLength": 1, "maxLength": LONGEST_URI},
        },
        "required": ["server", "uri"],
        "additionalProperties": False,
    },
    run=_read_resource,
    of_resources=True,
    labels=(FlowLabel.REPEATABLE,),
)


async def _list_skills(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return the skills with their arguments, one per line."""
    lines = []
    for skill in context.snapshot.skills.values():
        prompt = as_prompt(skill)
        taken = ", ".join(
            f"{one['name']}{'' if one['required'] else '?'}" for one in prompt["arguments"]
        )
        lines.append(f"{skill.name}({taken}): {skill.description or skill.title}".rstrip(": "))
    return "\n".join(lines)


async def _read_skill(context: BuiltinToolContext, arguments: dict[str, Any]) -> str:
    """Return a skill's text with its placeholders unfilled.

    If arguments were filled in here, untrusted text that the model quotes would be returned as
    instructions.
    """
    skill = context.snapshot.skills.get(arguments["name"])
    if skill is None:
        raise NotFound(
            format_message("There is no skill {name!r}.", name=arguments["name"][:100]),
            code="unknown_skill",
            field="name",
            remedy="Take the name from `list_skills`.",
        )
    if not skill.arguments:
        return skill.text
    lines = [f"- ${{{one.name}}}: {_describe_argument(one)}" for one in skill.arguments]
    return "\n".join((skill.text, "", "What stands for these, take from the task:", *lines))


def _describe_argument(one: TemplateArgument) -> str:
    words = [one.description or "as the name says"]
    if one.choices:
        words.append(f"one of {', '.join(one.choices)}")
    if one.default:
        words.append(f"{one.default} if nothing is said")
    return "; ".join(words)


LIST_SKILLS = BuiltinTool(
    name="list_skills",
    description=format_message(
        "List the skills: instructions for tasks, with the arguments that each takes."
    ),
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    run=_list_skills,
    of_skills=True,
    instructs=True,
    labels=(FlowLabel.REPEATABLE,),
)

READ_SKILL = BuiltinTool(
    name="read_skill",
    description=format_message("Read the instructions of a skill before doing what it is for."),
    input_schema={
        "type": "object",
        "properties": {
            "name": {"type": "string", "minLength": 1, "maxLength": 64},
        },
        "required": ["name"],
        "additionalProperties": False,
    },
    run=_read_skill,
    of_skills=True,
    instructs=True,
    labels=(FlowLabel.REPEATABLE,),
)
