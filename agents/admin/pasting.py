"""Paste or upload JSON or YAML: show what would be added, and what stands against it; add it."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from agents.importing import Import, carry_out, plan_import
from bonobot.lib.problems import Invalid, Problem
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.admin.adding import Destination
from mcp_servers.admin.pool import POOL
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.importing import Choices, Planned
from mcp_servers.models import Server

PARAMETER = "parameter-"
LONGEST_FILE = 1024 * 1024  # bytes that are read; the reader refuses more than 256 KiB


def paste(request: HttpRequest, principal: Principal, destination: Destination) -> HttpResponseBase:
    """Show the field, the preview, or what came of adding."""
    principal.require(destination.needs)
    if request.method != "POST":
        return _page(request, destination, "")
    text, choices = request.POST.get("text", ""), _choices(request, principal, destination)
    try:
        text = _uploaded(request) or text
        found = plan_import(principal, text, choices)
    except Problem as problem:
        return _page(request, destination, text, problem=problem, status=400)
    if request.POST.get("do") != "add":
        return _page(request, destination, text, found=found, values=choices.values)
    return _add(request, principal, destination, found, text, choices)


def paste_view(request: HttpRequest) -> HttpResponseBase:
    """Paste for the pool."""
    return paste(request, principal_of(request), POOL)


ServerAdmin.ways += (("add/paste/", "paste", paste_view),)


def _uploaded(request: HttpRequest) -> str:
    """Return the text of the file that was sent along, blank without one."""
    file = request.FILES.get("file")
    if file is None:
        return ""
    try:
        return bytes(file.read(LONGEST_FILE)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise Invalid(
            "The file is no text in UTF-8.",
            code="not_text",
            field="file",
            remedy="Choose the JSON or YAML file that the client keeps.",
        ) from None


def _add(
    request: HttpRequest,
    principal: Principal,
    destination: Destination,
    found: Import,
    text: str,
    choices: Choices,
) -> HttpResponseBase:
    """Add each chosen entry whole or not at all; the others keep their problems."""
    if "overrides" not in request.POST:
        found.shares = ()
    # The choice was made of what the preview showed: a ticked entry that is refused is told.
    carry_out(principal, found, adding=destination.add)
    refused = [
        (one, problem)
        for one in found.planned
        if one.chosen and found.became(one) is None
        for problem in (found.refused.get(one.entry.name), *one.problems[:1])
        if problem is not None
    ]
    if found.added or any(share.action in ("give", "take") for share in found.shares):
        return destination.screen(
            request,
            "paste",
            "servers/imported.html",
            added=list(found.added.values()),
            refused=refused,
            shares=found.shares,
        )
    messages.warning(request, _("Nothing was added."))
    return _page(request, destination, text, found=found, values=choices.values)


def _page(
    request: HttpRequest,
    destination: Destination,
    text: str,
    *,
    found: Import | None = None,
    values: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    status: int = 200,
) -> HttpResponseBase:
    planned = found.planned if found else ()
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
        planned=[
            (one, one.entry.preview(), _others(one), _kept(found, one), _sign_in(one))
            for one in planned
        ],
        shares=found.shares if found else (),
        beside=found.wishes if found else None,
        problem=problem,
        parameters=[(p, (values or {}).get(name, "")) for name, p in parameters.items()],
    )


def _kept(found: Import | None, one: Planned) -> tuple[str, ...]:
    """Return the tools that an entry is kept to."""
    return found.wishes.only_tools.get(one.entry.name, ()) if found else ()


def _sign_in(one: Planned) -> Any:
    """Return how one signs in to an entry's server, in words; empty where nobody does."""
    kind = one.entry.auth_type
    return "" if kind == Server.Auth.NONE else dict(Server.Auth.choices).get(kind, kind)


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
