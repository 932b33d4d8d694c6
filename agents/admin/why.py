"""Why an agent can, or can't, use a tool: every stage of the door as a readable list (X2)."""

import json
from typing import Any

from django.http.response import HttpResponseBase

from agents.admin.agents import AgentAdmin
from agents.admin.readers import READERS
from agents.governance.explaining import explain
from agents.governance.snapshots import snapshots
from agents.models import Agent
from bonobot.lib.problems import Invalid, NotFound, Problem
from bonobot.lib.sayings import say
from bonobot.tenancy.screens import Visit, onward


@AgentAdmin.add_page("why", needs=READERS, under="policy")
def why(visit: Visit) -> HttpResponseBase:
    """Show what a call of one tool would come to; nothing is called."""
    agent: Agent = visit.object
    query = visit.request.GET
    name, typed = query.get("tool", ""), query.get("arguments", "").strip()
    if not name:
        return onward(visit, "policy")  # which has a "why?" at each tool
    snapshot = snapshots().current("agent", agent.pk)
    tool = snapshot.tools.get(name)
    if tool is None:
        raise NotFound(
            say("The agent `{agent_slug}` has no tool {name!r}.", agent_slug=agent.slug, name=name),
            code="unknown_tool",
            field="tool",
            remedy="Its policy tab lists its tools; a new one appears after a discovery.",
        )
    problem: Problem | None = None
    arguments = None
    try:
        arguments = _read(typed) if typed else None
    except Problem as refused:
        problem = refused
    told = explain(visit.principal, snapshot, tool, arguments)
    for stage in told["stages"]:
        stage["title"] = stage["stage"].replace("_", " ")
    return visit.show(
        "agents/why.html",
        agent=agent,
        tool=tool,
        told=told,
        typed=typed,
        schema=json.dumps(tool.input_schema, indent=2, ensure_ascii=False),
        problem=problem,
        status=problem.status if problem else 200,
    )


def _read(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError as error:
        raise Invalid(
            say("The arguments are not JSON: {error}.", error=error),
            field="arguments",
            remedy='Write an object, such as {"timezone": "UTC"}.',
        ) from None
    if not isinstance(found, dict):
        raise Invalid("The arguments must be an object.", field="arguments", remedy="Write {…}.")
    return found
