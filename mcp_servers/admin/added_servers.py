"""Review the definitions of servers while they are added.

Definitions without findings are preselected, and one button approves them. Suspicious and changed
ones are listed with a link to their own review.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode
from uuid import UUID

from django.contrib import messages
from django.http import HttpRequest, HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.problems import Conflict, InvalidInput
from mcp_servers.admin.add_servers import ServerDestination
from mcp_servers.admin.definitions import TOOLS_FIRST, DefinitionRow, build_definition_row
from mcp_servers.definition_reviews import approve_definitions, needs_own_review
from mcp_servers.flow_labels.services import load_label_context
from mcp_servers.models import Server

MAX_SHOWN = 200
SEPARATOR = "."


@dataclass(frozen=True)
class NewDefinitions:
    """The definitions of a server that are pending review.

    `clean` are preselected, `others` need their own review, `hidden_count` are not shown.
    """

    clean: list[DefinitionRow]
    others: list[DefinitionRow]
    hidden_count: int


def load_new_definitions(server: Server) -> NewDefinitions:
    """Return the pending definitions of a server, at most `MAX_SHOWN`."""
    pending = server.definitions.awaiting_review().order_by(TOOLS_FIRST, "kind", "name")
    label_context = load_label_context(server)
    rows = [build_definition_row(row, label_context) for row in pending[:MAX_SHOWN]]
    return NewDefinitions(
        clean=[item for item in rows if not needs_own_review(item.row)],
        others=[item for item in rows if needs_own_review(item.row)],
        hidden_count=max(0, pending.count() - MAX_SHOWN),
    )


def build_added_url(destination: ServerDestination, servers: Sequence[Server]) -> str:
    """Return the URL of the page that connects and reviews added servers."""
    ids = SEPARATOR.join(server.pk.hex for server in servers)
    return f"{destination.url('added')}?{urlencode({'servers': ids})}"


def show_added_servers(
    request: HttpRequest, principal: Principal, destination: ServerDestination
) -> HttpResponseBase:
    """Connect added servers and show their definitions, or approve the selected ones.

    Servers that have been discovered aren't contacted again, so the page can be reloaded.
    """
    principal.require(destination.needs)
    servers = _load_servers(principal, request.GET.get("servers", ""))
    if request.method == "POST":
        _approve_selected(request, principal, servers)
        return HttpResponseRedirect(build_added_url(destination, servers))
    is_known = {server.pk: server.discovered_at is not None for server in servers}
    added_rows = [
        (server, load_new_definitions(server) if is_known[server.pk] else None)
        for server in servers
    ]
    unknown_count = sum(server.enabled and not is_known[server.pk] for server in servers)
    selected_count = sum(len(review.clean) for _server, review in added_rows if review)
    may_approve = principal.may(Action.APPROVE_DEFINITIONS)
    return destination.render_page(
        request,
        "paste",
        "servers/added.html",
        added=added_rows,
        selected=selected_count,
        unknown=unknown_count,
        may_approve=may_approve,
        is_pending=may_approve and bool(unknown_count or selected_count),
    )


def _load_servers(principal: Principal, text: str) -> list[Server]:
    try:
        ids = [UUID(hex=part) for part in text.split(SEPARATOR) if part]
    except ValueError:
        raise InvalidInput("This isn't a list of server IDs.", field="servers") from None
    rows = Server.objects.for_organization(principal.organization_id).filter(pk__in=ids)
    by_id = {server.pk: server for server in rows}
    return [by_id[pk] for pk in ids if pk in by_id]


def _approve_selected(request: HttpRequest, principal: Principal, servers: list[Server]) -> None:
    """Approve the posted definitions with the digests that the page showed."""
    digests: dict[str, str] = {
        pk: digest
        for pk, _colon, digest in (entry.partition(":") for entry in request.POST.getlist("seen"))
    }
    if not digests:
        raise InvalidInput(
            "Nothing is selected.", field="seen", remedy="Select the definitions to approve."
        )
    approved, skipped_names = 0, list[str]()
    for server in servers:
        rows = server.definitions.values_list("pk", flat=True)
        shown_digests: dict[UUID, str] = {pk: digests[str(pk)] for pk in rows if str(pk) in digests}
        if not shown_digests:
            continue
        try:
            result = approve_definitions(principal, server, shown_digests)
        except Conflict:
            skipped_names += [str(row) for row in server.definitions.filter(pk__in=shown_digests)]
        else:
            approved += len(result.approved)
            skipped_names += result.skipped
    _add_messages(request, approved, skipped_names)


def _add_messages(request: HttpRequest, approved: int, skipped_names: list[str]) -> None:
    values: dict[str, Any] = {"n": approved}
    if approved:
        text = ngettext("%(n)d definition approved.", "%(n)d definitions approved.", approved)
        messages.success(request, text % values)
    if skipped_names:
        text = _t(
            "Not approved because they changed or are rejected: %(names)s. Review them again."
        )
        messages.warning(request, text % {"names": ", ".join(skipped_names[:10])})
