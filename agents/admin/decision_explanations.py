"""Explanations: which stages decide a call of an agent, and what they say."""

import json
from collections.abc import Mapping
from typing import Any

from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents.admin.agents import READERS, AgentAdmin
from agents.calls.explain import build_missing_tool_error, explain_call
from agents.calls.snapshots import get_snapshot_cache
from agents.models import Agent
from bonobot.accounts.admin_base import ObjectRequest, redirect_to_page
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, Problem

STAGE_TITLES: Mapping[str, Any] = {
    "resolve": _("Name"),
    "arguments": _("Arguments"),
    "switches": _("Kill switches"),
    "server": _("Server"),
    "attachment": _("Attachment"),
    "definition": _("Definition"),
    "attachment_lists": _("Selected tools"),
    "organization_rules": _("Organization policy"),
    "policy": _("Agent policy"),
    "approval": _("Approval"),
    "flow": _("Flow labels"),
    "rate": _("Rate limit"),
    "budgets": _("Budgets"),
}


@AgentAdmin.add_page("explain", required_actions=READERS, parent_tab="servers")
def show_explanation(visit: ObjectRequest) -> HttpResponseBase:
    """Explain what would be decided about a call; nothing is called."""
    agent: Agent = visit.object
    query = visit.request.GET
    name, arguments_text = query.get("tool", ""), query.get("arguments", "").strip()
    if not name:
        return redirect_to_page(visit, "servers")  # where each decision links here
    snapshot = get_snapshot_cache().load_current("agent", agent.pk)
    tool = snapshot.find_tool(name)
    if tool is None:
        raise build_missing_tool_error(visit.principal, snapshot, name)
    problem: Problem | None = None
    arguments = None
    try:
        arguments = _parse_arguments(arguments_text) if arguments_text else None
    except Problem as exc:
        problem = exc
    explanation = explain_call(visit.principal, snapshot, tool, arguments)
    for stage in explanation["stages"]:
        stage["title"] = STAGE_TITLES[stage["stage"]]
    return visit.render_tab(
        "agents/decision_explanation.html",
        agent=agent,
        tool=tool,
        explanation=explanation,
        arguments_text=arguments_text,
        schema=json.dumps(tool.input_schema, indent=2, ensure_ascii=False),
        problem=problem,
        status=problem.status if problem else 200,
    )


def _parse_arguments(text: str) -> dict[str, Any]:
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(
            format_message("The arguments aren't valid JSON: {error}.", error=error),
            field="arguments",
            remedy='Enter a JSON object, such as {"timezone": "UTC"}.',
        ) from None
    if not isinstance(arguments, dict):
        raise InvalidInput(
            "The arguments must be a JSON object.",
            field="arguments",
            remedy="Enter a JSON object: {…}.",
        )
    return arguments
