"""Import of servers from pasted or uploaded text."""

from collections.abc import Mapping
from typing import Any

from django.contrib import messages
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _

from agents.server_imports import ServerImport, carry_out, plan_import
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import InvalidInput, Problem
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.servers import POOL, ServerAdmin
from mcp_servers.import_export.import_plan import ImportChoices, PlannedServer
from mcp_servers.models import Server

PARAMETER = "parameter-"
LONGEST_FILE = 1024 * 1024  # bytes that are read; the parser refuses more than 256 KiB


def import_servers(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Show the form, the preview, or the result of the import."""
    principal.require(destination.needs)
    if request.method != "POST":
        return _render_page(request, destination, "")
    text, choices = request.POST.get("text", ""), _choices(request, principal, destination)
    try:
        text = _read_upload(request) or text
        found = plan_import(principal, text, choices)
    except Problem as problem:
        return _render_page(request, destination, text, problem=problem, status=400)
    if request.POST.get("do") != "add":
        return _render_page(request, destination, text, found=found, values=choices.values)
    return _add(request, principal, destination, found, text, choices)


def import_organization_servers(request: HttpRequest) -> HttpResponseBase:
    """Import servers into the pool."""
    return import_servers(request, resolve_principal(request), POOL)


ServerAdmin.ways += (("add/paste/", "paste", import_organization_servers),)


def _read_upload(request: HttpRequest) -> str:
    """Return the text of the uploaded file, "" without one."""
    file = request.FILES.get("file")
    if file is None:
        return ""
    try:
        return bytes(file.read(LONGEST_FILE)).decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidInput(
            "The file is no text in UTF-8.",
            code="not_text",
            field="file",
            remedy="Choose the JSON or YAML file that the client keeps.",
        ) from None


def _add(
    request: HttpRequest,
    principal: Principal,
    destination: ServerDestination,
    found: ServerImport,
    text: str,
    choices: ImportChoices,
) -> HttpResponseBase:
    """Apply the import; each chosen entry is created completely or keeps its problems."""
    if "overrides" not in request.POST:
        found.shares = ()
    # Report entries that were chosen in the preview but can't be created.
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
    return _render_page(request, destination, text, found=found, values=choices.values)


def _render_page(
    request: HttpRequest,
    destination: ServerDestination,
    text: str,
    *,
    found: ServerImport | None = None,
    values: Mapping[str, str] | None = None,
    problem: Problem | None = None,
    status: int = 200,
) -> HttpResponseBase:
    planned = found.planned if found else ()
    parameters = {p.name: p.as_dict() for one in planned for p in one.entry.parameters}
    # Filled parameters are no longer listed by the entry, but stay in the form.
    for name in values or {}:
        parameters.setdefault(name, {"name": name, "label": name, "secret": True, "default": ""})
    return destination.screen(
        request,
        "paste",
        "servers/paste.html",
        status=status,
        text=text,
        planned=[
            (
                one,
                one.entry.preview(),
                _list_other_problems(one),
                _list_kept_tools(found, one),
                _sign_in(one),
            )
            for one in planned
        ],
        shares=found.shares if found else (),
        beside=found.wishes if found else None,
        problem=problem,
        parameters=[(p, (values or {}).get(name, "")) for name, p in parameters.items()],
    )


def _list_kept_tools(found: ServerImport | None, one: PlannedServer) -> tuple[str, ...]:
    """Return the tools that an entry is limited to."""
    return found.wishes.only_tools.get(one.entry.name, ()) if found else ()


def _sign_in(one: PlannedServer) -> Any:
    """Return the title of an entry's authentication, "" if it has none."""
    kind = one.entry.auth_type
    return "" if kind == Server.Auth.NONE else dict(Server.Auth.choices).get(kind, kind)


def _list_other_problems(one: PlannedServer) -> list[Problem]:
    """Return the problems that allowing a private address wouldn't solve."""
    return [
        problem
        for problem in one.problems
        if not (one.private and problem.code == "private_address")
    ]


def _choices(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> ImportChoices:
    posted: Any = request.POST
    values = {
        name.removeprefix(PARAMETER): value.strip()
        for name, value in posted.items()
        if name.startswith(PARAMETER) and value.strip()
    }
    may_allow = principal.may(Action.ALLOW_PRIVATE_ADDRESS)
    return ImportChoices(
        values=values,
        allow_private=posted.getlist("private") if may_allow else (),
        chosen=posted.getlist("add") if "seen" in posted else None,
        scope_id=destination.scope_id,
    )
