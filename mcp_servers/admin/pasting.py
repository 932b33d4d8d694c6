"""Paste JSON: read it, show what would be added and what stands against it, add what is ticked."""

from collections.abc import Mapping, Sequence
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from bonobot.lib.problems import Problem
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.admin.adding import Destination
from mcp_servers.importing import Choices, Planned, plan
from mcp_servers.models import Server

PARAMETER = "parameter-"


def paste(request: HttpRequest, principal: Principal, destination: Destination) -> HttpResponseBase:
    """Show the field, the preview, or what came of adding."""
    principal.require(destination.needs)
    if request.method != "POST":
        return _page(request, destination, "")
    text, choices = request.POST.get("text", ""), _choices(request, principal, destination)
    try:
        planned = plan(principal, text, choices)
    except Problem as problem:
        return _page(request, destination, text, problem=problem, status=400)
    if request.POST.get("do") != "add":
        return _page(request, destination, text, planned=planned, values=choices.values)
    return _add(request, principal, destination, planned, text, choices)


def _add(
    request: HttpRequest,
    principal: Principal,
    destination: Destination,
    planned: Sequence[Planned],
    text: str,
    choices: Choices,
) -> HttpResponseBase:
    """Add each chosen entry whole or not at all; the others keep their problems."""
    added: list[Server] = []
    refused: list[tuple[Planned, Problem]] = []
    for one in planned:
        if not one.chosen:
            continue
        if one.spec is None:
            refused += [(one, problem) for problem in one.problems[:1]]
            continue
        try:
            added.append(destination.add(principal, one.spec))
        except Problem as problem:
            refused.append((one, problem))
    if added:
        return destination.screen(
            request, "paste", "servers/imported.html", added=added, refused=refused
        )
    messages.warning(request, _("Nothing was added."))
    return _page(request, destination, text, planned=planned, values=choices.values)


def _page(
    request: HttpRequest,
    destination: Destination,
    text: str,
    *,
    planned: Sequence[Planned] = (),
    values: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    status: int = 200,
) -> HttpResponseBase:
    parameters = {p.name: p.as_dict() for one in planned for p in one.entry.parameters}
    # A parameter that was filled is no longer open in the entry, but stays in the form.
    for name in values or {}:
        parameters.setdefault(name, {"name": name, "label": name, "secret": True, "default": ""})
    return destination.screen(
        request,
        "paste",
        "servers/paste.html",
        status=status,
        text=text,
        planned=[(one, one.entry.preview(), _others(one)) for one in planned],
        problem=problem,
        parameters=[(p, (values or {}).get(name, "")) for name, p in parameters.items()],
    )


def _others(one: Planned) -> list[Problem]:
    """Return what the permission for a private address wouldn't solve."""
    return [
        problem
        for problem in one.problems
        if not (one.private and problem.code == "private_address")
    ]


def _choices(request: HttpRequest, principal: Principal, destination: Destination) -> Choices:
    posted: Any = request.POST
    values = {
        name.removeprefix(PARAMETER): value.strip()
        for name, value in posted.items()
        if name.startswith(PARAMETER) and value.strip()
    }
    may_allow = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
    return Choices(
        values=values,
        allow_private=posted.getlist("private") if may_allow else (),
        chosen=posted.getlist("add") if "seen" in posted else None,
        scope_id=destination.scope_id,
    )
