"""The page that reviews what is pending on one or several servers, and approves what is selected.

What a review preselects is selected. Definitions with findings are reviewed on the page of their
server.
"""

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.db.models.functions import Lower
from django.http import HttpRequest
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext as _n

from bonobot.accounts.admin_base.responses import change_each, redirect_back, render_screen
from bonobot.accounts.current_organization import resolve_principal
from bonobot.core.i18n.localization import format_number, join_names
from mcp_servers.admin import bulk_actions
from mcp_servers.admin.definition_rows import (
    TOOLS_FIRST,
    DefinitionRow,
    build_definition_row,
    describe_approved_count,
    parse_shown_digests,
)
from mcp_servers.admin.listed_definitions import ListedDefinitions
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels.effective_labels import load_label_context
from mcp_servers.flow_labels.label_icons import ALL_MARKS
from mcp_servers.models import BulkJob, Definition, Server
from mcp_servers.models.definitions import DefinitionQuerySet

MAX_SHOWN = 500
MAX_NAMES = 3


def render_confirmation(
    admin: Any, request: HttpRequest, name: str, servers: Sequence[Server]
) -> HttpResponseBase:
    """Render pending definitions of these servers, at most `MAX_SHOWN`, to approve some.

    The URL can have the filter of a list of definitions.
    """
    listed_definitions = ListedDefinitions.from_parameters(request.GET)
    pending = _query_pending(servers, listed_definitions)
    items: dict[Server, list[DefinitionRow]] = {}
    by_id = {server.pk: server for server in servers}
    for row in pending[:MAX_SHOWN]:
        server = by_id[row.server_id]
        item = build_definition_row(row, load_label_context(server))
        items.setdefault(server, []).append(item)
    shown_items = [item for server_items in items.values() for item in server_items]
    return render_screen(
        request,
        "definitions/approve_pending.html",
        title=_t("Review definitions"),
        servers=servers,
        affected=items.items(),
        legend=ALL_MARKS,
        opts=admin.opts,
        action=name,
        filter_parameters=listed_definitions.list_parameters(),
        selectable_count=sum(item.is_selectable for item in shown_items),
        selected_count=sum(item.is_preselected for item in shown_items),
        hidden_count=pending.count() - len(shown_items),
    )


def approve_selected(request: HttpRequest, servers: Sequence[Server]) -> HttpResponseBase | None:
    """Approve the posted definitions with the digests that the page showed.

    The page is shown again if some of them changed meanwhile, or if it didn't show all.
    """
    shown_digests = parse_shown_digests(request.POST.getlist("seen"))
    digests: dict[UUID, dict[UUID, str]] = {server.pk: {} for server in servers}
    left_names, changed_names = list[str](), list[str]()
    by_id = {server.pk: server for server in servers}
    query = _query_pending(servers, ListedDefinitions.from_parameters(request.POST))
    pending = list(query.only("server", "kind", "name", "digest", "findings"))
    for row in pending:
        shown_digest = shown_digests.get(row.pk)
        if shown_digest == row.digest and not row.findings:
            digests[row.server_id][row.pk] = row.digest
        else:
            names = left_names if shown_digest in (None, row.digest) else changed_names
            names.append(f"{row} ({by_id[row.server_id].name})")
    _add_remaining_messages(request, left_names, changed_names)
    approvable = [server for server in servers if digests[server.pk]]
    if len(approvable) > bulk_actions.IMMEDIATE_LIMIT:
        details = {
            server.pk: {str(pk): digest for pk, digest in digests[server.pk].items()}
            for server in approvable
        }
        return bulk_actions.start_job_and_redirect(
            request, BulkJob.Kind.APPROVE, approvable, details
        )
    approved = 0

    def approve(server: Server) -> None:
        nonlocal approved
        result = approve_definitions(resolve_principal(request), server, digests[server.pk])
        approved += len(result.approved)

    change_each(request, approvable, approve)
    if approved:
        messages.success(request, describe_approved_count(approved))
    if changed_names or len(pending) > MAX_SHOWN:
        # To the page, whose URL may stand for more servers than a URL could have.
        url = bulk_actions.redirect_to_confirmation(request, "approve_chosen").url
        return redirect_back(request, url)
    return None


def _query_pending(
    servers: Sequence[Server], listed_definitions: ListedDefinitions
) -> DefinitionQuerySet:
    """Return the pending definitions that the filter shows, by server and name, tools first."""
    pending: DefinitionQuerySet = Definition.objects.awaiting_review().filter(server__in=servers)
    return listed_definitions.apply(pending).order_by(
        Lower("server__name"), "server", TOOLS_FIRST, "kind", "name"
    )


def _add_remaining_messages(
    request: HttpRequest, left_names: Sequence[str], changed_names: Sequence[str]
) -> None:
    if left_names:
        text = _n(
            "%(n)s definition is still pending review: %(names)s.",
            "%(n)s definitions are still pending review: %(names)s.",
            len(left_names),
        )
        n = format_number(len(left_names))
        messages.warning(request, text % {"n": n, "names": join_names(left_names, MAX_NAMES)})
    if changed_names:
        text = _t(
            "Not approved because they changed or are rejected: %(names)s. Review them again."
        )
        messages.warning(request, text % {"names": join_names(changed_names, MAX_NAMES)})
