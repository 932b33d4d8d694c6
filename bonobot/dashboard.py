"""The dashboard's numbers: is everything alive, what waits, what did agents do, what does it cost.

A fixed number of queries, whatever the organization's size: counts are grouped, lists are short.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import Avg, Count, Exists, Q
from django.db.models.functions import TruncHour
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.governance.limits import budget_key
from agents.governance.snapshots import Limit
from agents.models import Binding, Budget, ModelEndpoint, Session
from bonobot.ledger.models import AuditRow
from bonobot.ledger.usage import spent_many
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from mcp_servers.models import Definition, Server

LISTED = 8
HOURS = 24
BUDGETS_READ = 200
# The way in, in order: title, what it is about, where it is done.
STEPS = (
    (
        _("Connect a server"),
        _("Choose a preset, or paste a configuration: its tools are read at once."),
        "mcp_servers_server_presets",
    ),
    (
        _("Approve its tools"),
        _("Nothing can be called before a person has read and approved it."),
        "mcp_servers_server_changelist",
    ),
    (
        _("Add a model"),
        _("Any OpenAI-compatible address, or the built-in offline model."),
        "agents_modelendpoint_add",
    ),
    (
        _("Make an agent and give it the server"),
        _("Say what it is for, which servers it has and which tools it may use."),
        "agents_agent_changelist",
    ),
    (
        _("Ask it something"),
        _("Every call it makes is decided, limited and in the audit."),
        "agents_agent_changelist",
    ),
)


@dataclass(frozen=True)
class Spend:
    """A budget with its use."""

    title: str
    unit: str
    period: str
    limit: int
    spent: int
    reserved: int
    url: str

    @property
    def tone(self) -> str:
        """Return what the use means to the eye."""
        used = self.spent + self.reserved
        if used >= self.limit:
            return "bad"
        return "warn" if used >= 0.8 * self.limit else "good"


@dataclass(frozen=True)
class Hour:
    """What happened in one hour; heights are in percent of the busiest hour."""

    begins: datetime
    calls: int
    errors: int
    height: int
    error_height: int


def dashboard(principal: Principal) -> dict[str, Any]:
    """Return everything that the dashboard shows (at most 14 queries)."""
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
    return {
        "states": _states(states),
        "server_total": states["total"],
        "troubled": _troubled(servers),
        "waiting": _waiting(organization_id),
        "waiting_total": Definition.objects.for_organization(organization_id).waiting().count(),
        "today": _today(organization_id),
        "hours": _hours(organization_id),
        "running": sessions.unfinished().count(),
        "recent": sessions.select_related("agent").order_by("-created_at")[:LISTED],
        "busiest": _busiest(organization_id),
        "spends": _spends(organization_id),
        "steps": _first_steps(organization_id),
    }


def _states(counts: dict[str, int]) -> list[dict[str, Any]]:
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


def _troubled(servers: Any) -> Any:
    states = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
    return servers.enabled().filter(status__in=states).order_by("-checked_at")[:LISTED]


def _waiting(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the servers with definitions that wait, and how many."""
    rows = Definition.objects.for_organization(organization_id).waiting()
    return list(
        rows.values("server_id", "server__name")
        .annotate(n=Count("pk"), changed=Count("pk", filter=~Q(pinned_digest="")))
        .order_by("-changed", "-n")[:LISTED]
    )


def _calls(organization_id: UUID) -> Any:
    since = timezone.now() - timedelta(hours=HOURS)
    return AuditRow.objects.filter(
        organization_id=organization_id, opened_at__gte=since, event_type="call"
    ).order_by()


def _today(organization_id: UUID) -> list[dict[str, Any]]:
    """Return calls, errors and refusals of the last day, each with the way to its rows."""
    failed = Q(outcome__in=("error", "unknown"))
    found = _calls(organization_id).aggregate(
        calls=Count("pk"),
        errors=Count("pk", filter=failed),
        refused=Count("pk", filter=Q(outcome="refused")),
        latency=Avg("duration_ms", filter=Q(outcome="ok")),
    )
    day = (timezone.now() - timedelta(hours=HOURS)).date()
    address = reverse("admin:ledger_auditrow_changelist")
    since = f"kind=call&opened_at_from_0={day}&opened_at_from_1=00:00:00"
    return [
        {"title": _("calls"), "n": found["calls"], "url": f"{address}?{since}", "tone": ""},
        {
            "title": _("errors"),
            "n": found["errors"],
            "url": f"{address}?{since}&outcome__in=error,unknown",
            "tone": "bad" if found["errors"] else "",
        },
        {
            "title": _("refusals"),
            "n": found["refused"],
            "url": f"{address}?{since}&outcome__in=refused",
            "tone": "warn" if found["refused"] else "",
        },
        {
            "title": _("mean time"),
            "ms": found["latency"],
            "url": f"{address}?{since}&outcome__in=ok&o=8",
            "tone": "",
        },
    ]


def _hours(organization_id: UUID) -> list[Hour]:
    """Return the last day hour by hour."""
    rows = (
        _calls(organization_id)
        .annotate(hour=TruncHour("opened_at"))
        .values("hour")
        .annotate(calls=Count("pk"), errors=Count("pk", filter=~Q(outcome__in=("ok", "open"))))
    )
    found = {row["hour"]: (row["calls"], row["errors"]) for row in rows}
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    busiest = max((calls for calls, _errors in found.values()), default=0) or 1
    hours = []
    for back in range(HOURS - 1, -1, -1):
        begins = now - timedelta(hours=back)
        calls, errors = found.get(begins, (0, 0))
        hours.append(
            Hour(begins, calls, errors, round(100 * calls / busiest), round(100 * errors / busiest))
        )
    return hours


def _busiest(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the tools that were called most."""
    rows = _calls(organization_id).values("tool_name", "server_name", "server_id")
    return list(
        rows.annotate(
            n=Count("pk"), bad=Count("pk", filter=~Q(outcome__in=("ok", "open")))
        ).order_by("-n", "tool_name")[:LISTED]
    )


def _spends(organization_id: UUID) -> list[Spend]:
    """Return the budgets with their use, the fullest first."""
    now = timezone.now()
    budgets = Budget.objects.for_organization(organization_id).select_related("agent")
    rows = list(budgets.order_by("pk")[:BUDGETS_READ])
    keys = {row.pk: budget_key(organization_id, _limit(row), now) for row in rows}
    cells = spent_many(keys.values())
    found = [_spend(row, cells[keys[row.pk]]) for row in rows]
    found.sort(key=lambda one: -(one.spent + one.reserved) / (one.limit or 1))
    return found[:LISTED]


def _limit(row: Budget) -> Limit:
    scope = "agent" if row.agent_id else "organization"
    return Limit(scope, str(row.agent_id or row.organization_id), row.unit, row.period, row.limit)


def _spend(row: Budget, cell: Any) -> Spend:
    own = row.agent_id is not None
    address = "agents_agent_configuration" if own else "agents_agent_changelist"
    return Spend(
        title=str(row.agent) if own else str(_("the organization")),
        unit=row.unit,
        period=row.get_period_display(),
        limit=row.limit,
        spent=cell.spent,
        reserved=cell.reserved,
        url=reverse(f"admin:{address}", args=[row.agent_id] if own else []),
    )


def _first_steps(organization_id: UUID) -> list[dict[str, Any]]:
    """Return what to do first, each with whether it is done; nothing once all of it is."""
    mine = {"organization_id": organization_id}
    [found] = Organization.objects.filter(pk=organization_id).values_list(
        Exists(Server.objects.filter(**mine)),
        Exists(Definition.objects.filter(**mine).exclude(pinned_digest="")),
        Exists(ModelEndpoint.objects.filter(**mine)),
        Exists(Binding.objects.filter(**mine)),
        Exists(Session.objects.filter(**mine)),
    )
    if all(found):
        return []
    return [
        {"title": title, "about": about, "url": reverse(f"admin:{address}"), "done": done}
        for (title, about, address), done in zip(STEPS, found, strict=True)
    ]
