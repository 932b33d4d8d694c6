"""Try a server's tool, through the door like every call: decided, audited, bounded."""

import json
from typing import Any

from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from agents import calls
from agents.admin.argument_forms import ArgumentForm
from agents.admin.try_offers import Piece, not_offered, pieces
from bonobot.lib.problems import Invalid, Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.active import client_of
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.admin.schema_rows import example, rows
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.models import Definition, Server


@ServerAdmin.add_page("try", _("Try it"), order=30, needs=Action.CALL_TOOLS)
def try_it(visit: Visit) -> HttpResponseBase:
    """Show the form of a tool's arguments, or call it and show what came of it."""
    server: Server = visit.object
    offered = server.definitions.tools().filter(present=True).order_by("name")
    tools = list(offered.only("server", "name"))
    posted = visit.request.POST if visit.request.method == "POST" else None
    wanted = (posted or visit.request.GET).get("tool", "")
    chosen = next((one for one in tools if wanted in ("", one.name)), None)
    tool = offered.filter(pk=chosen.pk).first() if chosen else None
    entry = ArgumentForm(tool.input_schema if tool else {}, posted)
    by_form = posted is None or posted.get("how") == "form"
    text = posted.get("arguments", "") if posted is not None else _start(tool)
    outcome: calls.Outcome | None = None
    problem: Problem | None = None
    if posted is None and wanted and tool is None:
        problem = not_offered(wanted)
    if posted is not None:
        try:
            said = entry.said() if by_form else read_arguments(text)
            text = json.dumps(said, indent=2, ensure_ascii=False)
            outcome = _call(visit, server, wanted, said, unapproved="unapproved" in posted)
        except Problem as refusal:
            problem = refusal
    return visit.show(
        "servers/try.html",
        server=server,
        tools=tools,
        tool=tool,
        schema=rows(tool.input_schema) if tool else [],
        form=entry if by_form else ArgumentForm(tool.input_schema if tool else {}),
        by_form=by_form,
        arguments=text,
        outcome=outcome,
        problem=problem,
        parts=_parts(outcome) if outcome else [],
        waits=tool is not None and tool.state in ("pending", "changed"),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )


def _call(
    visit: Visit, server: Server, tool: str, arguments: dict[str, Any], *, unapproved: bool
) -> calls.Outcome:
    principal = visit.principal
    request = calls.Request(
        principal=principal,
        tool=tool,
        arguments=arguments,
        via="admin",
        client=client_of(visit.request),
        holder=f"server:{server.pk}:{principal.id}",
        server_id=server.pk,
        unapproved=unapproved,
    )
    return runtime().call(calls.call, request)


def read_arguments(text: str) -> dict[str, Any]:
    """Return what was written as JSON; raises `Invalid` for what is no object."""
    try:
        found = json.loads(text or "{}")
    except ValueError as error:
        raise Invalid(
            say("The arguments are not valid JSON: {error}", error=error),
            code="broken_json",
            field="arguments",
            remedy='Write one object, such as {"city": "Berlin"}.',
        ) from None
    if not isinstance(found, dict):
        raise Invalid(
            "The arguments must be one JSON object.",
            code="invalid_arguments",
            field="arguments",
            remedy='Write it in braces: {"city": "Berlin"}.',
        )
    return found


def _start(tool: Definition | None) -> str:
    return json.dumps(example(tool.input_schema), indent=2, ensure_ascii=False) if tool else "{}"


def _parts(outcome: calls.Outcome) -> list[Piece]:
    """Return the result's parts that are more than text: pictures, links, sounds, resources."""
    content = outcome.result.get("content")
    found = content if isinstance(content, list) else []
    more = [one for one in found if isinstance(one, dict) and one.get("type") != "text"]
    return list(pieces({"messages": [{"content": more}]}))
