"""Handlers of MCP methods at `/mcp`, with skills as prompts."""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from agents.calls.completions import complete_skill_argument
from agents.calls.result_text import estimate_size
from agents.flow_labels.text_labels import label_text_reader
from agents.gateway.authentication import AuthenticatedClient
from agents.gateway.catalog import Declaration, build_skills_capability
from agents.gateway.client_request import GatewayRequest, build_invalid_params_error
from agents.gateway.errors import build_mcp_error, build_unknown_name_error
from agents.gateway.errors import build_refusal_result as as_result
from agents.gateway.forwarded_requests import LARGE_RESULT_SIZE, EndpointInfo, Kind
from agents.gateway.organization_server.app_pages import build_answer_key
from agents.gateway.organization_server.chat_tools import build_chat_tools, list_session_tools
from agents.gateway.organization_server.management_tools import (
    RENAMED_TOOLS,
    list_management_tools,
)
from agents.gateway.organization_server.resources import (
    KINDS,
    build_uri,
    list_resource_templates,
    list_resources,
    read_resource_contents,
)
from agents.gateway.organization_server.tools import OrganizationTool, audit_call, record_refusal
from agents.models import Agent, Session, Skill, Workflow
from agents.skills import (
    SkillTemplate,
    build_skill_entries,
    build_template,
    render_skill,
    to_prompt,
)
from bonobot.accounts.principals import Principal
from bonobot.core.problems import Forbidden, InvalidInput, NotFound, Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_storable
from mcp_servers.client.mcp_extensions import UI_EXTENSION
from mcp_servers.scanning.services import strip_result
from mcp_servers.schemas.subprocess_pool import check_tool_arguments

MAX_COMPLETIONS = 100
MAX_SEARCHED_SESSIONS = 1_000
Value = TypeVar("Value")
MAX_LISTED_AGENTS = 50
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
}
INSTRUCTIONS = """\
Bonobot runs AI agents. Policies govern their tool calls: a rule can require that a person approves
a call, and all calls are recorded in an audit log. Each tool named `…_chat` sends a message to one
agent and waits for its answer. The session is durable: it continues if you stop waiting. To check
it, call `session_status`. If `waits_for` isn't empty, show each `url` to the person: only a person
can answer. The other tools manage what your token's role allows."""


def list_prompts(principal: Principal) -> tuple[Declaration, ...]:
    """Return the skills as prompt declarations (one query)."""
    skills = Skill.objects.usable_by(principal).order_by("name")
    label_text_reader(principal, *skills)
    return tuple(to_prompt(build_template(skill)) for skill in skills)


def list_skills(principal: Principal) -> tuple[Declaration, ...]:
    """Return the skills as entries of the skills extension (one query)."""
    skills = Skill.objects.usable_by(principal).order_by("name")
    label_text_reader(principal, *skills)
    return tuple(build_skill_entries(map(build_template, skills)))


def find_skill(principal: Principal, name: str) -> SkillTemplate | None:
    """Find a usable skill by name (one query)."""
    skill = Skill.objects.usable_by(principal).filter(name=name).first()
    if skill is None:
        return None
    label_text_reader(principal, skill)
    return build_template(skill)


def build_prompt_result(skill: SkillTemplate, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Return a rendered skill as a user message; raises `InvalidInput`."""
    if invalid_names := [name for name, value in arguments.items() if not isinstance(value, str)]:
        raise InvalidInput(
            f"The argument {invalid_names[0][:100]!r} must be a string.",
            field=f"arguments.{invalid_names[0][:100]}",
            remedy="Send all prompt arguments as strings.",
        )
    content = {"type": "text", "text": render_skill(skill, arguments)}
    return {
        "description": skill.description,
        "messages": [{"role": "user", "content": content}],
    }


KINDS_BY_TEMPLATE = {build_uri(kind, "{id}"): kind for kind in KINDS}


async def handle_completion(inbound: GatewayRequest) -> dict[str, Any]:
    """Answer `completion/complete` (one query); raises `MCPError`."""
    ref, argument = (
        make_storable(inbound.get_object("ref")),
        make_storable(inbound.get_object("argument")),
    )
    name, prefix = argument.get("name"), argument.get("value")
    if not isinstance(name, str) or not isinstance(prefix, str):
        raise build_invalid_params_error("`argument` must have a name and a value")
    principal = inbound.caller.principal
    if ref.get("type") == "ref/prompt":
        skill = await get_runtime().run_orm(find_skill, principal, str(ref.get("name")))
        if skill is None:
            raise build_unknown_name_error("prompt", str(ref.get("name")))
        choices = {declared.name: declared.choices for declared in skill.arguments}
        return _build_completion(complete_skill_argument(choices, name, prefix))
    kind = KINDS_BY_TEMPLATE.get(str(ref.get("uri")))
    if kind is None:
        raise build_unknown_name_error("resource", str(ref.get("uri")))
    return _build_completion(
        await get_runtime().run_orm(_list_matching_names, principal, kind, prefix)
        if name == "id"
        else ()
    )


def _list_matching_names(principal: Principal, kind: str, prefix: str) -> list[str]:
    if kind == "sessions":
        sessions = Session.objects.visible_to(principal).order_by("-created_at")
        latest_ids = sessions.values_list("pk", flat=True)[:MAX_SEARCHED_SESSIONS]
        return [
            str(session_id)
            for session_id in latest_ids
            if str(session_id).startswith(prefix.lower())
        ]
    rows, field_name = (Agent, "slug") if kind == "agents" else (Workflow, "name")
    matches = rows.objects.visible_to(principal).filter(**{f"{field_name}__istartswith": prefix})
    return list(
        matches.order_by(field_name).values_list(field_name, flat=True)[: MAX_COMPLETIONS + 1]
    )


def _build_completion(values: Iterable[str]) -> dict[str, Any]:
    names = list(values)
    return {
        "completion": {"values": names[:MAX_COMPLETIONS], "hasMore": len(names) > MAX_COMPLETIONS}
    }


class OrganizationHandlers:
    """Handlers at `/mcp`; only what the token's role may do is listed."""

    async def get_info(self, inbound: GatewayRequest) -> EndpointInfo:
        """Return the instructions with a list of agents (one query)."""
        agents = await get_runtime().run_orm(_read_agents, inbound.caller.principal)
        return EndpointInfo(
            {**CAPABILITIES, "extensions": {**build_skills_capability(), UI_EXTENSION: {}}},
            INSTRUCTIONS.replace("\n", " ") + _describe_agents(agents),
        )

    async def list_declarations(
        self, caller: AuthenticatedClient, kind: Kind
    ) -> tuple[Declaration, ...]:
        """Return the declarations of one kind."""
        return await get_runtime().run_orm(LIST_FUNCTIONS[kind], caller.principal)

    async def call_tool(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `tools/call`; a refusal is a failed tool result with its code."""
        name, arguments = (
            _strip_unstorable(inbound.get_text("name")),
            _strip_unstorable(inbound.get_object("arguments")),
        )
        name = RENAMED_TOOLS.get(name, name)
        tool = (await get_runtime().run_orm(load_tools, inbound.caller.principal)).get(name)
        if tool is None:
            error = NotFound(f"The tool {name!r} doesn't exist.", code="unknown_tool")
            await record_refusal(inbound, name, arguments, error)
            raise build_unknown_name_error("tool", name)
        try:
            await check_tool_arguments(
                tool.input_schema.schema, arguments, tool.input_schema.verdict
            )
        except Problem as problem:
            await record_refusal(inbound, name, arguments, problem, tool)
            return as_result(problem)
        try:
            return await _call_tool(inbound, tool, arguments)
        except Problem as problem:
            return as_result(problem)

    async def read_resource(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `resources/read`."""
        uri, principal = _strip_unstorable(inbound.get_text("uri")), inbound.caller.principal
        try:
            resource = await get_runtime().run_orm(read_resource_contents, principal, uri)
        except (NotFound, Forbidden) as problem:
            raise build_unknown_name_error("resource", uri) from problem
        except Problem as problem:
            raise build_mcp_error(problem) from problem
        if resource is None:
            raise build_unknown_name_error("resource", uri)
        return await _strip_result(resource)

    async def get_prompt(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `prompts/get`."""
        name, arguments = (
            _strip_unstorable(inbound.get_text("name")),
            _strip_unstorable(inbound.get_object("arguments")),
        )
        skill = await get_runtime().run_orm(find_skill, inbound.caller.principal, name)
        if skill is None:
            raise build_unknown_name_error("prompt", name)
        try:
            return build_prompt_result(skill, arguments)
        except Problem as problem:
            raise build_mcp_error(problem) from problem

    async def complete(self, inbound: GatewayRequest) -> dict[str, Any]:
        """Answer `completion/complete`."""
        return await handle_completion(inbound)


def _strip_unstorable(value: Value) -> Value:
    """Return a client's value without characters that can't be stored."""
    storable: Value = make_storable(value)
    return storable


async def _call_tool(
    inbound: GatewayRequest, tool: OrganizationTool, arguments: dict[str, Any]
) -> dict[str, Any]:
    async with audit_call(inbound, tool, arguments):
        output = await tool.run(inbound, arguments)
    clean_output = await _strip_result(output)
    text = json.dumps(clean_output, ensure_ascii=False)
    can_answer = tool.answers is not None and inbound.caller.principal.may(tool.answers)
    meta = build_answer_key(inbound) if can_answer else {}
    result = {"content": [{"type": "text", "text": text}], "structuredContent": clean_output}
    return result | ({"_meta": meta} if meta else {})


async def _strip_result(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without hidden characters, since texts come from models and servers."""
    stripped: dict[str, Any] = (
        await strip_result(result, estimate_size(result, LARGE_RESULT_SIZE + 1))
    ).value
    return stripped


def load_tools(principal: Principal) -> dict[str, OrganizationTool]:
    """Return the tools that a principal may call, by name (one query)."""
    tools = [
        *build_chat_tools(_list_agents(principal)),
        *list_session_tools(principal),
        *list_management_tools(principal),
    ]
    return {tool.name: tool for tool in tools}


def _list_tool_declarations(principal: Principal) -> tuple[Declaration, ...]:
    _read_agents(principal)
    return tuple(tool.declaration for tool in load_tools(principal).values())


def _list_agents(principal: Principal) -> list[Agent]:
    return list(Agent.objects.runnable_by(principal).order_by("slug"))


def _read_agents(principal: Principal) -> list[Agent]:
    """Return the agents, whose names and descriptions the principal reads."""
    agents = _list_agents(principal)
    label_text_reader(principal, *agents)
    return agents


def _describe_agents(agents: list[Agent]) -> str:
    names = ", ".join(f"`{agent.slug}` ({agent.name})" for agent in agents[:MAX_LISTED_AGENTS])
    suffix = " and others" if len(agents) > MAX_LISTED_AGENTS else ""
    return f" Agents: {names}{suffix}." if agents else " You can't run any agents."


LIST_FUNCTIONS: dict[Kind, Callable[[Principal], tuple[Declaration, ...]]] = {
    "tools": _list_tool_declarations,
    "resources": list_resources,
    "templates": list_resource_templates,
    "prompts": list_prompts,
    "skills": list_skills,
}
