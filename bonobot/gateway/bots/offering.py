"""The organization's own offering: tools of agents and of management, for one principal."""

import json
from collections.abc import Callable
from typing import Any, TypeVar

from agents.governance.results import weight
from agents.models import Agent
from bonobot.gateway.bots.auditing import audited, refused
from bonobot.gateway.bots.completing import complete
from bonobot.gateway.bots.conversing import chats, session_tools
from bonobot.gateway.bots.managing import management
from bonobot.gateway.bots.prompts import filled, prompts, skill_named
from bonobot.gateway.bots.resources import read, resources, templates
from bonobot.gateway.bots.tools import Tool
from bonobot.gateway.failures import error_of, unknown
from bonobot.gateway.failures import refused as as_result
from bonobot.gateway.inbound import Inbound
from bonobot.gateway.offerings import Greeting, Kind
from bonobot.gateway.relaying import LARGE
from bonobot.gateway.shelves import Declaration
from bonobot.gateway.visitors import Visitor
from bonobot.lib.problems import Forbidden, NotFound, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.untrusted import storable
from bonobot.tenancy.principals import Principal
from mcp_servers.scans import stripped
from mcp_servers.schema_worker import check

Said = TypeVar("Said")
MOST_NAMED = 50
CAPABILITIES = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
}
INSTRUCTIONS = """\
Bonobot runs AI agents whose tool calls are governed, approved by people where a rule says so, and
audited. A tool named `…_chat` gives one agent a message and waits for its answer; the session is
kept, and goes on when you stop waiting: `session_status` tells how it stands. Where `waits_for`
lists something, tell the person the url: only they can answer it. The other tools manage what your
token's role allows."""


class Bots:
    """What is offered at `/mcp`: only what the token's role may do is there."""

    async def greet(self, inbound: Inbound) -> Greeting:
        """Say how these tools are used, and which agents there are (a query)."""
        agents = await runtime().orm(_agents, inbound.visitor.principal)
        return Greeting(CAPABILITIES, INSTRUCTIONS.replace("\n", " ") + _named(agents))

    async def listed(self, visitor: Visitor, kind: Kind) -> tuple[Declaration, ...]:
        """Return the declarations of one kind."""
        return await runtime().orm(LISTS[kind], visitor.principal)

    async def call_tool(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `tools/call`: what is refused is a failed tool's result, with the code."""
        name, arguments = _sound(inbound.text("name")), _sound(inbound.members("arguments"))
        tool = (await runtime().orm(tools_for, inbound.visitor.principal)).get(name)
        if tool is None:
            missing = NotFound(f"There is no tool {name!r} here.", code="unknown_tool")
            await refused(inbound, name, arguments, missing)
            raise unknown("tool", name)
        try:
            await check(tool.takes.schema, arguments, tool.takes.judgement)
        except Problem as problem:
            await refused(inbound, name, arguments, problem, tool)
            return as_result(problem)
        try:
            return await _called(inbound, tool, arguments)
        except Problem as problem:
            return as_result(problem)

    async def read_resource(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `resources/read`."""
        uri, principal = _sound(inbound.text("uri")), inbound.visitor.principal
        try:
            found = await runtime().orm(read, principal, uri)
        except (NotFound, Forbidden) as problem:
            raise unknown("resource", uri) from problem
        except Problem as problem:
            raise error_of(problem) from problem
        if found is None:
            raise unknown("resource", uri)
        return await _clean(found)

    async def get_prompt(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `prompts/get`."""
        name, arguments = _sound(inbound.text("name")), _sound(inbound.members("arguments"))
        skill = await runtime().orm(skill_named, inbound.visitor.principal, name)
        if skill is None:
            raise unknown("prompt", name)
        try:
            return filled(skill, arguments)
        except Problem as problem:
            raise error_of(problem) from problem

    async def complete(self, inbound: Inbound) -> dict[str, Any]:
        """Answer `completion/complete`."""
        return await complete(inbound)


def _sound(said: Said) -> Said:
    """Return what a client said without what no database stores, and no answer can hold."""
    found: Said = storable(said)
    return found


async def _called(inbound: Inbound, tool: Tool, arguments: dict[str, Any]) -> dict[str, Any]:
    async with audited(inbound, tool, arguments):
        said = await tool.run(inbound, arguments)
    found = await _clean(said)
    text = json.dumps(found, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": found}


async def _clean(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result without what hides in its texts: much of it is models' and servers'."""
    clean: dict[str, Any] = (await stripped(result, weight(result, LARGE + 1))).value
    return clean


def tools_for(principal: Principal) -> dict[str, Tool]:
    """Return the tools that a principal may call, by their names (a query)."""
    found = [*chats(_agents(principal)), *session_tools(principal), *management(principal)]
    return {tool.name: tool for tool in found}


def _declarations(principal: Principal) -> tuple[Declaration, ...]:
    return tuple(tool.declaration for tool in tools_for(principal).values())


def _agents(principal: Principal) -> list[Agent]:
    return list(Agent.objects.runnable_by(principal).order_by("slug"))


def _named(agents: list[Agent]) -> str:
    named = ", ".join(f"`{agent.slug}` ({agent.name})" for agent in agents[:MOST_NAMED])
    more = " and others" if len(agents) > MOST_NAMED else ""
    return f" Agents: {named}{more}." if agents else " There is no agent that you may run."


LISTS: dict[Kind, Callable[[Principal], tuple[Declaration, ...]]] = {
    "tools": _declarations,
    "resources": resources,
    "templates": templates,
    "prompts": prompts,
}
