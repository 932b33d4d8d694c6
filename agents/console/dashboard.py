"""Dashboard numbers, default range.

A fixed number of queries, whatever the organization's size: counts are grouped, lists are short.
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
    """A budget with its use."""

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
        """Return what the use means to the eye."""
        used = self.spent + self.reserved
        if used >= self.limit:
            return "bad"
        return "warn" if used * 100 >= self.warn_at * self.limit else "good"


def build_dashboard(
    principal: Principal, waiting: PendingCounts, chosen: str = ""
) -> dict[str, Any]:
    """Return what the dashboard shows beside what was counted; `chosen` is the range's slug."""
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
    """Return the servers by state, those that need somebody first."""
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
    """Return the servers that need somebody, each with the way to what helps; none told already.

    Those that have been away longest stand last: they are known best.
    """
    lasting = Outage.objects.filter(server=OuterRef("pk"), ended_at=None).values("began_at")[:1]
    rows = servers.enabled().filter(status__in=TROUBLE).exclude(pk__in=told)
    found = rows.annotate(away_since=Subquery(lasting))
    newest = F("away_since").desc(nulls_last=True)
    return [
        {"server": server, **_suggest_remedy(server)} for server in found.order_by(newest)[:LISTED]
    ]


def _suggest_remedy(server: Server) -> dict[str, Any]:
    """Return what to do about a server in trouble: its title and address."""
    if server.status == Server.Status.ERROR:
        title, page = _("See its history"), "health"
    elif server.interactive:
        title, page = _("Sign in again"), "change"
    else:
        title, page = _("Enter new credentials"), "configuration"
    return {"help": title, "url": reverse(f"admin:mcp_servers_server_{page}", args=[server.pk])}


def _list_recent_outages(organization_id: UUID) -> Any:
    """Return the outages that reach into the last day, those that last first.

    What lasts at a server in trouble is told among the servers; one that wants somebody to sign in
    is there, and told where that is done.
    """
    since = timezone.now() - timedelta(hours=HOURS)
    rows = Outage.objects.for_organization(organization_id).filter(build_outage_condition(since))
    told = Q(ended_at=None, server__enabled=True, server__status__in=TROUBLE)
    rows = rows.exclude(code=REAUTH).exclude(told)
    lasting = F("ended_at").desc(nulls_first=True)
    return rows.select_related("server").order_by(lasting)[:LISTED]


def _list_pending_approvals(organization_id: UUID) -> Any:
    """Return the calls that wait for a person, those first that expire first."""
    return _open(organization_id).select_related("agent").order_by("expires_at")[:LISTED]


def _open(organization_id: UUID) -> WaitingQuerySet:
    found: WaitingQuerySet = Approval.objects.for_organization(organization_id).waiting()
    return found


def _filter_definitions(organization_id: UUID) -> DefinitionQuerySet:
    found: DefinitionQuerySet = Definition.objects.for_organization(organization_id)
    return found


def _list_pending_reviews(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the servers with the most definitions that wait, and how many."""
    changed = ~Q(pinned_digest="")
    by_server = (
        _filter_definitions(organization_id)
        .waiting()
        .order_by()
        .values("server_id")
        .annotate(n=Count("server"), changed=Count("server", filter=changed))
    )
    # Names and numbers are read of those alone: for all others it is the index that is read.
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
    """Return the budgets with their use, the fullest first; of sessions' their agents tell."""
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
