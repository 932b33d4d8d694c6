"""Numbers and lists of the dashboard.

The number of queries is fixed: counts are grouped and lists are short.
"""

import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Count, F, OuterRef, Q, Subquery
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.budgets.services import BudgetUse, load_budget_use
from agents.console.call_activity import RANGES, CallActivity
from agents.console.onboarding import load_onboarding_progress
from agents.console.pending_counts import PendingCounts
from agents.models import Approval, Budget, Session
from agents.models.approvals import PersonRequestQuerySet
from bonobot.accounts.principals import Principal
from bonobot.processes.process_status import ProcessStatus, read_statuses
from mcp_servers.health.outages import NEEDS_REAUTH
from mcp_servers.health.queries import build_outage_condition
from mcp_servers.models import Definition, Outage, Server
from mcp_servers.models.definitions import DefinitionQuerySet
from mcp_servers.oauth_client.queries import list_pending_logins

MAX_ITEMS = 8
FAILING_STATES = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
OUTAGE_HOURS = 24
MAX_BUDGETS = 200


@dataclass(frozen=True)
class DashboardBudget:
    """A budget with its usage."""

    title: str
    unit: str
    period: str
    limit: int
    warn_at: int
    spent: int
    reserved: int
    url: str

    @property
    def tone(self) -> str:
        """Return the tone that shows how much is used."""
        used_amount = self.spent + self.reserved
        if used_amount >= self.limit:
            return "bad"
        return "warn" if used_amount * 100 >= self.warn_at * self.limit else "good"


def build_dashboard(
    principal: Principal, pending: PendingCounts, range_slug: str = ""
) -> dict[str, Any]:
    """Return the context of the dashboard; `range_slug` selects its time range."""
    organization_id = principal.organization_id
    servers = Server.objects.for_organization(organization_id)
    states = servers.aggregate(
        total=Count("pk"),
        off=Count("pk", filter=Q(enabled=False)),
        **{
            state: Count("pk", filter=Q(status=state, enabled=True))
            for state in ("connected", "connecting", "disconnected", "error", "needs_reauth")
        },
    )
    sessions = Session.objects.for_organization(organization_id)
    logins = list_pending_logins(principal, MAX_ITEMS)
    return {
        "states": _build_server_states(states),
        "server_total": states["total"],
        "troubled": _list_troubled_servers(servers, [server.pk for server, _login in logins]),
        "outages": _list_recent_outages(organization_id),
        "logins": logins,
        "asked": _list_pending_approvals(organization_id),
        "asked_total": pending.calls,
        "waiting": _list_pending_reviews(organization_id),
        "waiting_total": pending.definitions,
        "activity": CallActivity(organization_id, range_slug),
        "ranges": RANGES,
        "running": pending.sessions,
        "processes": _list_ended_processes(principal),
        "quarantined": sessions.filter(quarantined_at__isnull=False)
        .select_related("agent")
        .order_by("-quarantined_at")[:MAX_ITEMS],
        "recent": sessions.select_related("agent").order_by("-created_at")[:MAX_ITEMS],
        "spends": _list_budgets(organization_id),
        "begun": load_onboarding_progress(organization_id),
    }


def _list_ended_processes(principal: Principal) -> list[ProcessStatus]:
    """Return the processes of `bonobot up` that ended in the last day, for its administrators."""
    if not principal.platform_admin:
        return []
    max_age_s = timedelta(hours=OUTAGE_HOURS).total_seconds()
    return [
        process
        for process in read_statuses(settings.BONOBOT_VAR)
        if process.needs_attention(time.time(), max_age_s)
    ]


def _build_server_states(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the number of servers by state, states that need attention first."""
    states = (
        ("error", _("failed"), "status__in=error", "bad"),
        ("needs_reauth", _("needs new credentials"), "status__in=needs_reauth", "warn"),
        ("connecting", _("connecting"), "status__in=connecting", "busy"),
        ("disconnected", _("not connected yet"), "status__in=disconnected", "plain"),
        ("connected", _("connected"), "status__in=connected", "good"),
        ("off", _("disabled"), "status__in=disabled", "plain"),
    )
    address = reverse("admin:mcp_servers_server_changelist")
    return [
        {"title": title, "count": counts[name], "url": f"{address}?{query}", "tone": tone}
        for name, title, query, tone in states
        if counts[name]
    ]


def _list_troubled_servers(servers: Any, shown_ids: list[UUID]) -> list[dict[str, Any]]:
    """Return the failing servers, each with a link to its remedy, without `shown_ids`.

    The most recent failures come first.
    """
    outage_start = Outage.objects.filter(server=OuterRef("pk"), ended_at=None).values("began_at")[
        :1
    ]
    rows = servers.enabled().filter(status__in=FAILING_STATES).exclude(pk__in=shown_ids)
    annotated = rows.annotate(away_since=Subquery(outage_start))
    newest_first = F("away_since").desc(nulls_last=True)
    return [
        {"server": server, **_suggest_remedy(server)}
        for server in annotated.order_by(newest_first)[:MAX_ITEMS]
    ]


def _suggest_remedy(server: Server) -> dict[str, Any]:
    """Return the title and URL of the remedy for a failing server."""
    if server.status == Server.Status.ERROR:
        title, page = _("View history"), "health"
    elif server.interactive:
        title, page = _("Sign in again"), "change"
    else:
        title, page = _("Enter new credentials"), "configuration"
    return {"help": title, "url": reverse(f"admin:mcp_servers_server_{page}", args=[server.pk])}


def _list_recent_outages(organization_id: UUID) -> Any:
    """Return the outages of the last day, ongoing ones first.

    Ongoing outages of failing servers are left out, and so are those that need a sign-in: the
    dashboard lists these servers separately.
    """
    since = timezone.now() - timedelta(hours=OUTAGE_HOURS)
    rows = Outage.objects.for_organization(organization_id).filter(build_outage_condition(since))
    is_listed_elsewhere = Q(ended_at=None, server__enabled=True, server__status__in=FAILING_STATES)
    rows = rows.exclude(code=NEEDS_REAUTH).exclude(is_listed_elsewhere)
    ongoing_first = F("ended_at").desc(nulls_first=True)
    return rows.select_related("server").order_by(ongoing_first)[:MAX_ITEMS]


def _list_pending_approvals(organization_id: UUID) -> Any:
    """Return the calls that wait for a person, by expiry."""
    return (
        _filter_pending_approvals(organization_id)
        .select_related("agent")
        .order_by("expires_at")[:MAX_ITEMS]
    )


def _filter_pending_approvals(organization_id: UUID) -> PersonRequestQuerySet:
    pending_approvals: PersonRequestQuerySet = Approval.objects.for_organization(
        organization_id
    ).waiting()
    return pending_approvals


def _filter_definitions(organization_id: UUID) -> DefinitionQuerySet:
    definitions: DefinitionQuerySet = Definition.objects.for_organization(organization_id)
    return definitions


def _list_pending_reviews(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the servers with the most pending definitions, and their number."""
    is_changed = ~Q(pinned_digest="")
    by_server = (
        _filter_definitions(organization_id)
        .awaiting_review()
        .order_by()
        .values("server_id")
        .annotate(n=Count("server"), changed=Count("server", filter=is_changed))
    )
    # Rank by an index-only query, then load names and counts of the listed servers only.
    top_server_ids = by_server.order_by("-changed", "-n", "server_id").values("server_id")[
        :MAX_ITEMS
    ]
    counts_of_server = by_server.filter(server=OuterRef("pk"))
    rows = Server.objects.filter(pk__in=top_server_ids).values(
        server_id=F("pk"),
        server__name=F("name"),
        n=Subquery(counts_of_server.values("n")),
        changed=Subquery(counts_of_server.values("changed")),
    )
    reviews: list[dict[str, Any]] = [{**row} for row in rows]
    return sorted(reviews, key=lambda row: (-row["changed"], -row["n"], row["server_id"]))


def _list_budgets(organization_id: UUID) -> list[DashboardBudget]:
    """Return the budgets with their usage, fullest first, without session budgets."""
    budgets = Budget.objects.for_organization(organization_id).filter(each_session=False)
    rows = list(budgets.select_related("agent", "server").order_by("pk")[:MAX_BUDGETS])
    dashboard_budgets = [
        _build_budget(row, usage) for row, usage in zip(rows, load_budget_use(rows), strict=True)
    ]
    dashboard_budgets.sort(key=lambda item: -(item.spent + item.reserved) / (item.limit or 1))
    return dashboard_budgets[:MAX_ITEMS]


def _build_budget(row: Budget, usage: BudgetUse) -> DashboardBudget:
    return DashboardBudget(
        title=str(row.agent or row.server or _("the organization")),
        unit=row.unit,
        period=row.get_period_display(),
        limit=row.limit,
        warn_at=row.warn_at,
        spent=usage.spent,
        reserved=usage.reserved,
        url=reverse("admin:agents_budget_changelist"),
    )
