"""A server's first page: is it alive, what does it offer, what waits, how is it reached."""

from collections.abc import Callable
from typing import Any

from django.db.models import Count, Q
from django.http.response import HttpResponseBase
from django.utils.translation import gettext_lazy as _

from bonobot.lib.problems import Problem
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit, fragment
from mcp_servers.admin.contact import contact, summary
from mcp_servers.admin.servers import ServerAdmin
from mcp_servers.configuration import shown_auth, shown_endpoint
from mcp_servers.discovery import Removed
from mcp_servers.models import Check, Definition, Server
from mcp_servers.models.definitions import WAITING
from mcp_servers.packages import installation_of_server
from mcp_servers.standing import standing

KIND_NAMES = (
    (Definition.Kind.TOOL, _("tools"), "tools"),
    (Definition.Kind.RESOURCE, _("resources"), "resources"),
    (Definition.Kind.RESOURCE_TEMPLATE, _("resource templates"), "resources"),
    (Definition.Kind.PROMPT, _("prompts"), "prompts"),
)

PACKAGE_STATES = {
    "needed": _("installed before the first start"),
    "installing": _("being installed"),
    "installed": _("installed"),
    "failed": _("could not be installed"),
}

# Rooms above add panels: a function from the visit to (template, context), or None for nothing.
Panel = tuple[str, dict[str, Any]]
PANELS: list[Callable[[Visit], Panel | None]] = []


@ServerAdmin.add_page("change", _("Overview"), order=10)
def overview(visit: Visit) -> HttpResponseBase:
    """Show where the server stands."""
    server: Server = visit.object
    counts = server.definitions.aggregate(
        waiting=Count("pk", filter=WAITING),
        refused=Count("pk", filter=~Q(fault="")),
        **{kind: Count("pk", filter=Q(kind=kind, present=True)) for kind, *_words in KIND_NAMES},
    )
    return visit.show(
        "servers/overview.html",
        server=server,
        counts=[(title, counts[kind], visit.url(tab)) for kind, title, tab in KIND_NAMES],
        waiting=counts["waiting"],
        refused=counts["refused"],
        endpoint=shown_endpoint(server),
        auth=shown_auth(server),
        checks=list(server.checks.all()[:60])[::-1],
        package=_package(server) if visit.principal.may(Action.MANAGE_SERVERS) else None,
        connecting="connect" in visit.request.GET,
        notices=standing(server),
        panels=[panel for make in PANELS if (panel := make(visit))],
    )


def _package(server: Server) -> dict[str, Any] | None:
    """Return how it stands with the package that the server is started from, in words."""
    found = installation_of_server(server)
    return found and {**found, "words": PACKAGE_STATES[found["state"]]}


def _mended_at(visit: Visit, problem: Problem | None) -> str:
    """Return where what a problem names is corrected."""
    refused = problem is not None and problem.code == "needs_reauth"
    secrets = refused and visit.object.auth_type != Server.Auth.NONE
    return visit.url("credentials" if secrets else "configuration")


@ServerAdmin.add_deed("connect", needs=Action.MANAGE_SERVERS)
def connect(visit: Visit) -> HttpResponseBase:
    """Discover the server and return what came of it as a piece of a page."""
    [one] = contact([visit.object], actor=visit.principal.actor, kind=Check.Kind.DISCOVERY)
    if isinstance(one.problem, Removed):
        raise one.problem
    visit.object.refresh_from_db()
    return fragment(
        visit.request,
        "servers/connected.html",
        server=visit.object,
        problem=one.problem,
        found=one.found,
        summary=summary(one.found) if one.found else "",
        url=visit.url(),
        definitions_url=visit.url("definitions"),
        correct_url=_mended_at(visit, one.problem),
        may_approve=visit.principal.may(Action.APPROVE_DEFINITIONS),
    )
