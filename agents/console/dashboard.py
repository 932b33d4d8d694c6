"""Numbers and lists of the dashboard.

The number of queries is fixed: counts are grouped and lists are short.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Count, F, OuterRef, Q, Subquery
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.budgets.services import BudgetUse, load_budget_use
from agents.console.call_activity import RANGES, CallActivity
from agents.console.onboarding import load_onboarding_progress
from agents.console.pending_counts import PendingCounts
from agents.models import Approval, Budget, Session
from agents.models.approvals import WaitingQuerySet
from bonobot.accounts.principals import Principal
from mcp_servers.health.queries import build_outage_condition
from mcp_servers.health.services import REAUTH
from mcp_servers.models import Definition, Outage, Server
from mcp_servers.models.definitions import DefinitionQuerySet
from mcp_servers.oauth_client.queries import list_pending_logins

LISTED = 8
TROUBLE = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
HOURS = 24
BUDGETS_READ = 200


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
        used = self.spent + self.reserved
        if used >= self.limit:
            return "bad"
        return "warn" if used * 100 >= self.warn_at * self.limit else "good"


def build_dashboard(
    principal: Principal, waiting: PendingCounts, chosen: str = ""
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
    logins = list_pending_logins(principal, LISTED)
    return {
        "states": _build_server_states(states),
        "server_total": states["total"],
        "troubled": _list_troubled_servers(servers, [server.pk for server, _login in logins]),
        "outages": _list_recent_outages(organization_id),
        "logins": logins,
        "asked": _list_pending_approvals(organization_id),
        "asked_total": waiting.calls,
        "waiting": _list_pending_reviews(organization_id),
        "waiting_total": waiting.definitions,
        "activity": CallActivity(organization_id, chosen),
        "ranges": RANGES,
        "running": waiting.sessions,
        "recent": sessions.select_related("agent").order_by("-created_at")[:LISTED],
        "spends": _list_budgets(organization_id),
        "begun": load_onboarding_progress(organization_id),
    }


def _build_server_states(counts: dict[str, int]) -> list[dict[str, Any]]:
    """Return the number of servers by state, states that need attention first."""
    listed = (
        ("error", _("error"), "status__in=error", "bad"),
        ("needs_reauth", _("needs new credentials"), "status__in=needs_reauth", "warn"),
        ("connecting", _("connecting"), "status__in=connecting", "busy"),
        ("disconnected", _("not connected yet"), "status__in=disconnected", "plain"),
        ("connected", _("connected"), "status__in=connected", "good"),
        ("off", _("switched off"), "status__in=disabled", "plain"),
    )
    address = reverse("admin:mcp_servers_server_changelist")
    return [
        {"title": title, "count": counts[name], "url": f"{address}?{query}", "tone": tone}
        for name, title, query, tone in listed
        if counts[name]
    ]


def _list_troubled_servers(servers: Any, told: list[UUID]) -> list[dict[str, Any]]:
    """Return the failing servers, each with a link to its remedy, without `shown_ids`.

    The most recent failures come first.
    """
    lasting = Outage.objects.filter(server=OuterRef("pk"), ended_at=None).values("began_at")[:1]
    rows = servers.enabled().filter(status__in=TROUBLE).exclude(pk__in=told)
    found = rows.annotate(away_since=Subquery(lasting))
    newest = F("away_since").desc(nulls_last=True)
    return [
        {"server": server, **_suggest_remedy(server)} for server in found.order_by(newest)[:LISTED]
    ]


def _suggest_remedy(server: Server) -> dict[str, Any]:
    """Return the title and URL of the remedy for a failing server."""
    if server.status == Server.Status.ERROR:
        title, page = _("See its history"), "health"
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
    since = timezone.now() - timedelta(hours=HOURS)
    rows = Outage.objects.for_organization(organization_id).filter(build_outage_condition(since))
    told = Q(ended_at=None, server__enabled=True, server__status__in=TROUBLE)
    rows = rows.exclude(code=REAUTH).exclude(told)
    lasting = F("ended_at").desc(nulls_first=True)
    return rows.select_related("server").order_by(lasting)[:LISTED]


def _list_pending_approvals(organization_id: UUID) -> Any:
    """Return the calls that wait for a person, by expiry."""
    return _open(organization_id).select_related("agent").order_by("expires_at")[:LISTED]


def _open(organization_id: UUID) -> WaitingQuerySet:
    found: WaitingQuerySet = Approval.objects.for_organization(organization_id).waiting()
    return found


def _filter_definitions(organization_id: UUID) -> DefinitionQuerySet:
    found: DefinitionQuerySet = Definition.objects.for_organization(organization_id)
    return found


def _list_pending_reviews(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the servers with the most pending definitions, and their number."""
    changed = ~Q(pinned_digest="")
    by_server = (
        _filter_definitions(organization_id)
        .waiting()
        .order_by()
        .values("server_id")
        .annotate(n=Count("server"), changed=Count("server", filter=changed))
    )
    # Rank by an index-only query, then load names and counts of the listed servers only.
    most = by_server.order_by("-changed", "-n", "server_id").values("server_id")[:LISTED]
    own = by_server.filter(server=OuterRef("pk"))
    rows = Server.objects.filter(pk__in=most).values(
        server_id=F("pk"),
        server__name=F("name"),
        n=Subquery(own.values("n")),
        changed=Subquery(own.values("changed")),
    )
    found: list[dict[str, Any]] = [{**row} for row in rows]
    return sorted(found, key=lambda row: (-row["changed"], -row["n"], row["server_id"]))


def _list_budgets(organization_id: UUID) -> list[DashboardBudget]:
    """Return the budgets with their usage, fullest first, without session budgets."""
    budgets = Budget.objects.for_organization(organization_id).filter(each_session=False)
    rows = list(budgets.select_related("agent", "server").order_by("pk")[:BUDGETS_READ])
    found = [_build_budget(row, use) for row, use in zip(rows, load_budget_use(rows), strict=True)]
    found.sort(key=lambda one: -(one.spent + one.reserved) / (one.limit or 1))
    return found[:LISTED]


def _build_budget(row: Budget, use: BudgetUse) -> DashboardBudget:
    return DashboardBudget(
        title=str(row.agent or row.server or _("the organization")),
        unit=row.unit,
        period=row.get_period_display(),
        limit=row.limit,
        warn_at=row.warn_at,
        spent=use.spent,
        reserved=use.reserved,
        url=reverse("admin:agents_budget_changelist"),
    )
