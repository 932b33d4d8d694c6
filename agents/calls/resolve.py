"""Resolve the target of a call and build the parameters to send.

A tool is found by the name its caller knows; a resource, template or prompt by its server and its
own URI, template or name, never by a display name. A URI without a resource may match a template.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any
from uuid import UUID

from agents.calls.definitions import SnapshotDefinition
from agents.calls.snapshots import CallSnapshot, SnapshotTool, Target
from agents.calls.types import CallRequest
from agents.policies.decisions import can_span_slashes, decide_definition
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import NotFound
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.mcp_extensions import is_for_models
from mcp_servers.uri_templates import matches_template

# A person disabled or rejected this exact resource: templates must not allow it again.
FINAL_DENIAL_CODES = frozenset({"resource_disabled", "definition_rejected"})
MAX_NAME_SHOWN = 200
_STRING_MAP_SCHEMA = {"type": "object", "additionalProperties": {"type": "string"}}


def find_target(request: CallRequest, snapshot: CallSnapshot) -> Target | None:
    """Return the requested definition with its decision, or None."""
    if request.method == "tools/call":
        if request.is_catalog_tool:
            return snapshot.find_catalog_tool(request.tool)
        tool = snapshot.find_tool(request.tool)
        if tool and not _is_for_caller(tool, request):
            return None
        return (
            _apply_folder_labels(tool, request.folder, snapshot)
            if tool and request.folder
            else tool
        )
    server_id = request.server_id
    if server_id is None or server_id not in snapshot.servers:
        return None
    if request.noun == "prompt":
        return snapshot.definitions.get((server_id, "prompt", request.tool))
    if request.method == "completion/complete":
        return snapshot.definitions.get((server_id, "resource_template", request.tool))
    return find_resource(snapshot, server_id, request.tool)


def _is_for_caller(tool: SnapshotTool, request: CallRequest) -> bool:
    """Return whether the tool is listed for this kind of caller: what isn't can't be called."""
    if request.is_by_model and not is_for_models(tool.declaration):
        return False
    return request.via != "gateway" or tool.facts.source == "mcp"


def _apply_folder_labels(tool: SnapshotTool, folder: str, snapshot: CallSnapshot) -> SnapshotTool:
    """Return the tool with the labels it has while a folder is attached to the session."""
    if tool.builtin is None:
        return tool
    return replace(tool, labels=tool.builtin.list_labels(replace(snapshot.toolbox, folder=folder)))


def estimate_match_cost(request: CallRequest, snapshot: CallSnapshot) -> int:
    """Return about how many characters `find_target` matches: each template reads the whole URI."""
    if request.method != "resources/read":
        return 0
    template_count = sum(
        definition.facts.kind == "resource_template" for definition in snapshot.definitions.values()
    )
    return template_count * len(request.tool)


def build_not_found_error(request: CallRequest, snapshot: CallSnapshot) -> NotFound:
    """Return the error for a target that doesn't exist."""
    owner = f"The agent `{snapshot.agent_name}`" if snapshot.agent_id else "This server"
    server = snapshot.servers.get(request.server_id) if request.server_id else None
    if request.method != "tools/call" and snapshot.agent_id and server is None:
        return NotFound(
            format_message("{whose} doesn't have this server attached.", whose=owner),
            code="not_attached",
            field="server_id",
            rule="resolve",
            remedy="Attach the server to the agent first.",
        )
    if request.noun == "tool" and snapshot.agent_id:
        return build_unknown_tool_error(snapshot.agent_name, request.tool)
    return _build_unknown_name_error(owner, request.noun, request.tool)


def build_unknown_tool_error(agent_name: str, name: str) -> NotFound:
    """Return the error for a tool that an agent doesn't have, or that is off and hidden from it.

    Both cases read the same, so that a caller doesn't learn which tools are hidden.
    """
    return NotFound(
        format_message(
            "The agent `{agent}` has no tool `{name}`.",
            agent=agent_name,
            name=make_visible(name, MAX_NAME_SHOWN),
        ),
        code="unknown_tool",
        field="tool",
        rule="resolve",
        remedy=format_message(
            "Check the name. If the tool is set to Deny, change that on the agent's Tools tab."
        ),
    )


def _build_unknown_name_error(owner: str, noun: str, name: str) -> NotFound:
    """Return the error for an unknown name."""
    return NotFound(
        format_message("{whose} has no {noun} {name!r}.", whose=owner, noun=noun, name=name),
        code=f"unknown_{noun}",
        field={"tool": "tool", "resource": "uri"}.get(noun, "name"),
        rule="resolve",
        remedy={
            "tool": "List the tools that can be called, or refresh the server.",
            "resource": "List the resources and templates that can be read, or refresh the server.",
        }.get(noun, "List the available prompts, or refresh the server."),
    )


def get_argument_schema(request: CallRequest, target: Target) -> dict[str, Any]:
    """Return the JSON Schema that the call's arguments must match."""
    if isinstance(target, SnapshotTool):
        return target.input_schema
    if request.method == "completion/complete":
        return _build_completion_schema(target)
    if request.method == "prompts/get":
        return target.argument_schema
    return {"type": "object", "additionalProperties": False}


def build_params(request: CallRequest, target: Target) -> dict[str, Any]:
    """Return the parameters of the request to the server."""
    if request.method == "resources/read":
        return {"uri": request.tool}
    if request.method == "completion/complete":
        return request.arguments
    return {"name": target.facts.own_name, "arguments": request.arguments}


def _build_completion_schema(definition: SnapshotDefinition) -> dict[str, Any]:
    if definition.facts.kind == "prompt":
        names, key, kind = list(definition.argument_schema["properties"]), "name", "ref/prompt"
    else:
        names, key, kind = list(definition.variables), "uri", "ref/resource"
    ref = {"type": {"const": kind}, key: {"const": definition.name}, "title": {"type": "string"}}
    argument = {"name": {"enum": names}, "value": {"type": "string", "maxLength": 1_024}}
    return {
        "type": "object",
        "properties": {
            "ref": {
                "type": "object",
                "properties": ref,
                "required": ["type", key],
                "additionalProperties": False,
            },
            "argument": {
                "type": "object",
                "properties": argument,
                "required": ["name", "value"],
                "additionalProperties": False,
            },
            "context": {"type": "object", "properties": {"arguments": _STRING_MAP_SCHEMA}},
        },
        "required": ["ref", "argument"],
        "additionalProperties": False,
    }


def find_resource(snapshot: CallSnapshot, server_id: UUID, uri: str) -> SnapshotDefinition | None:
    """Return the resource or skill with this URI, or a template that matches it.

    Allowed ones come first, and of them the skill, because what is read is compared with it.
    """
    exact = snapshot.definitions.get((server_id, "resource", uri))
    if exact and exact.decision.code in FINAL_DENIAL_CODES:
        return exact
    skill = _index_skill_files(snapshot).get((server_id, uri))
    if skill and (skill.decision.allowed or exact is None):
        return replace(skill, facts=replace(skill.facts, uri=uri))
    if exact and exact.decision.allowed:
        return exact
    template_matches = list(_match_templates(snapshot, server_id, uri))
    allowed = next(
        (definition for definition in template_matches if definition.decision.allowed), None
    )
    return allowed or exact or next(iter(template_matches), None)


def _index_skill_files(snapshot: CallSnapshot) -> dict[tuple[UUID, str], SnapshotDefinition]:
    """Return the skills by server and file; a skill inside another one is preferred, if allowed."""
    index: dict[tuple[UUID, str], SnapshotDefinition] | None = snapshot.memo.get("skill files")
    if index is None:
        skills = [
            definition
            for definition in snapshot.list_definitions("skill")
            if definition.facts.state != "refused"
        ]
        index = snapshot.memo["skill files"] = {
            (skill.facts.server_id, file["uri"]): skill
            for skill in sorted(
                skills, key=lambda definition: (definition.decision.allowed, len(definition.name))
            )
            for file in skill.declaration["resources"]
        }
    return index


def _match_templates(
    snapshot: CallSnapshot, server_id: UUID, uri: str
) -> Iterator[SnapshotDefinition]:
    scope = snapshot.effective_policy.find_scope(server_id)
    spans_slashes = can_span_slashes(scope, uri)
    for definition in snapshot.definitions.values():
        facts = definition.facts
        if facts.kind != "resource_template" or facts.server_id != server_id:
            continue
        if matches_template(facts.own_name, uri, across=spans_slashes):
            resource_facts = replace(facts, uri=uri)
            decision = decide_definition(resource_facts, snapshot.effective_policy)
            yield replace(definition, facts=resource_facts, decision=decision)
