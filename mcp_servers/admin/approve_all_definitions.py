"""The page that confirms "Approve all…": the new definitions of a list, by risk.

Changed definitions are approved where their difference is shown, suspicious ones individually. The
page approves exactly what it showed: if definitions changed meanwhile, they are shown again.
"""

from django.contrib import messages
from django.http import HttpResponseRedirect
from django.http.response import HttpResponseBase
from django.utils.translation import gettext as _t
from django.utils.translation import ngettext

from bonobot.accounts.admin_base import ObjectRequest
from bonobot.accounts.roles import Action
from bonobot.core.i18n.localization import format_number
from mcp_servers.admin.approve_pending_definitions import hash_digests
from mcp_servers.admin.definitions import filter_definitions, select_kinds
from mcp_servers.admin.risk_groups import group_by_risk
from mcp_servers.admin.servers import KINDS_OF_PAGES, ServerAdmin
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.flow_labels.effective_labels import load_label_context
from mcp_servers.models import Definition, Server

LIST_PARAMETER = "list"


@ServerAdmin.add_page(
    "approve_all", parent_tab="tools", required_actions=Action.APPROVE_DEFINITIONS
)
def confirm_approve_all(visit: ObjectRequest) -> HttpResponseBase:
    """Show the new definitions of a list by risk, or approve them and return to the list."""
    server: Server = visit.object
    query = visit.request.GET.copy()
    page = "".join(query.pop(LIST_PARAMETER, [])[-1:])
    page = page if page in KINDS_OF_PAGES else "definitions"
    query.pop("page", None)
    list_url = visit.url(page) + (f"?{query.urlencode()}" if query else "")
    kinds = select_kinds(
        page, query.get("kind", ""), KINDS_OF_PAGES.get(page, tuple(Definition.Kind))
    )
    text = query.get("q", "").strip()
    pending = filter_definitions(server, kinds, query.get("state", ""), text).awaiting_review()
    unflagged = pending.filter(findings=[])
    rows = list(unflagged.filter(pinned_digest="").only_call_fields())
    digests = {row.pk: row.digest for row in rows}
    confirmed = hash_digests([digests])
    if visit.request.method == "POST" and visit.request.POST.get("confirmed") == confirmed:
        count = len(approve_definitions(visit.principal, server, digests).approved)
        result = ngettext("%(n)s definition approved.", "%(n)s definitions approved.", count)
        messages.success(visit.request, result % {"n": format_number(count)})
        return HttpResponseRedirect(list_url)
    if visit.request.method == "POST":
        messages.warning(visit.request, _t("The definitions changed. Review them again."))
        return HttpResponseRedirect(visit.request.get_full_path())
    if not rows:
        return HttpResponseRedirect(list_url)
    return visit.render_tab(
        "definitions/approve_all.html",
        server=server,
        groups=group_by_risk(rows, load_label_context(server)),
        total=len(rows),
        changed=unflagged.exclude(pinned_digest="").count(),
        flagged=pending.exclude(findings=[]).count(),
        confirmed=confirmed,
        list_url=list_url,
    )
