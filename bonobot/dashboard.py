"""The dashboard's numbers: is everything alive, what waits, what did agents do, what does it cost.

A fixed number of queries, whatever the organization's size: counts are grouped, lists are short.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import CharField, Count, Exists, F, Q, Sum
from django.db.models.functions import Cast, Substr
from django.urls import reverse
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.budgets import BudgetUse, uses
from agents.models import Approval, Binding, Budget, ModelEndpoint, Session
from agents.models.waiting import WaitingQuerySet
from bonobot.ledger.models import AuditRow
from bonobot.notices.models import Notice
from bonobot.tenancy.models import Organization
from bonobot.tenancy.principals import Principal
from bonobot.waiting import Waiting
from mcp_servers.history import reaching_into
from mcp_servers.models import Definition, Outage, Server
from mcp_servers.models.definitions import DefinitionQuerySet
from mcp_servers.oauth.presence import tasks
from mcp_servers.outages import REAUTH

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


@dataclass(frozen=True)
class Hour:
    """What happened in one hour; heights are in percent of the busiest hour."""

    begins: datetime
    calls: int
    errors: int
    height: int
    error_height: int


def dashboard(principal: Principal, waiting: Waiting) -> dict[str, Any]:
    """Return everything that the dashboard shows beside what was counted (at most 14 queries)."""
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
    logins = tasks(principal, LISTED)
    calls = _day(organization_id)
    return {
        "states": _states(states),
        "server_total": states["total"],
        "troubled": _troubled(servers, [server.pk for server, _login in logins]),
        "outages": _outages(organization_id),
        "untold": Notice.objects.for_organization(organization_id).given_up().count(),
        "logins": logins,
        "asked": _asked(organization_id),
        "asked_total": waiting.calls,
        "waiting": _waiting(organization_id),
        "waiting_total": waiting.definitions,
        "today": _today(calls),
        "hours": _hours(calls),
        "running": waiting.sessions,
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


def _troubled(servers: Any, told: list[UUID]) -> list[dict[str, Any]]:
    """Return the servers that need somebody, each with the way to what helps; none told already."""
    states = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
    rows = servers.enabled().filter(status__in=states).exclude(pk__in=told)
    found = rows.order_by("-checked_at")[:LISTED]
    return [{"server": server, **_help(server)} for server in found]


def _help(server: Server) -> dict[str, Any]:
    """Return what to do about a server in trouble: its title and address."""
    if server.status == Server.Status.ERROR:
        title, page = _("See its history"), "health"
    elif server.interactive:
        title, page = _("Sign in again"), "change"
    else:
        title, page = _("Enter new credentials"), "configuration"
    return {"help": title, "url": reverse(f"admin:mcp_servers_server_{page}", args=[server.pk])}


def _outages(organization_id: UUID) -> Any:
    """Return the outages that reach into the last day, those that last first.

    A server that wants somebody to sign in is there: it is told where that is done.
    """
    since = timezone.now() - timedelta(hours=HOURS)
    rows = Outage.objects.for_organization(organization_id).filter(reaching_into(since))
    rows = rows.exclude(code=REAUTH)
    lasting = F("ended_at").desc(nulls_first=True)
    return rows.select_related("server").order_by(lasting)[:LISTED]


def _asked(organization_id: UUID) -> Any:
    """Return the calls that wait for a person, those first that expire first."""
    return _open(organization_id).select_related("agent").order_by("expires_at")[:LISTED]


def _open(organization_id: UUID) -> WaitingQuerySet:
    found: WaitingQuerySet = Approval.objects.for_organization(organization_id).waiting()
    return found


def _definitions(organization_id: UUID) -> DefinitionQuerySet:
    found: DefinitionQuerySet = Definition.objects.for_organization(organization_id)
    return found


def _waiting(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the servers with definitions that wait, and how many."""
    return list(
        _definitions(organization_id)
        .waiting()
        .values("server_id", "server__name")
        .annotate(n=Count("pk"), changed=Count("pk", filter=~Q(pinned_digest="")))
        .order_by("-changed", "-n")[:LISTED]
    )


def _calls(organization_id: UUID) -> Any:
    since = timezone.now() - timedelta(hours=HOURS)
    return AuditRow.objects.filter(
        organization_id=organization_id, opened_at__gte=since, event_type="call"
    ).order_by()


@dataclass(frozen=True)
class Day:
    """The calls of the last day, by hour and outcome: read once, shown twice."""

    counts: dict[tuple[datetime, str], int]
    latency: float | None

    def total(self, *outcomes: str, hour: datetime | None = None) -> int:
        """Return how many calls ended so (no outcome named: all) in one hour, or all day."""
        return sum(
            count
            for (begins, outcome), count in self.counts.items()
            if hour in (None, begins) and (not outcomes or outcome in outcomes)
        )


def _day(organization_id: UUID) -> Day:
    # The moment's text up to the hour: SQLite would call Python's truncation for each row.
    written = Substr(Cast("opened_at", CharField()), 1, len("2026-01-01 00"))
    rows = list(
        _calls(organization_id)
        .annotate(hour=written)
        .values("hour", "outcome")
        .annotate(n=Count("pk"), took=Sum("duration_ms"), timed=Count("duration_ms"))
    )
    well = [row for row in rows if row["outcome"] == AuditRow.Outcome.OK]
    timed = sum(row["timed"] for row in well)
    return Day(
        {(_hour(row["hour"]), row["outcome"]): row["n"] for row in rows},
        sum(row["took"] or 0 for row in well) / timed if timed else None,
    )


def _today(calls: Day) -> list[dict[str, Any]]:
    """Return calls, errors and refusals of the last day, each with the way to its rows."""
    errors, refused = calls.total("error", "unknown"), calls.total("refused")
    day = (timezone.now() - timedelta(hours=HOURS)).date()
    address = reverse("admin:ledger_auditrow_changelist")
    since = f"kind=call&opened_at_from_0={day}&opened_at_from_1=00:00:00"
    return [
        {"title": _("calls"), "n": calls.total(), "url": f"{address}?{since}", "tone": ""},
        {
            "title": _("errors"),
            "n": errors,
            "url": f"{address}?{since}&outcome__in=error,unknown",
            "tone": "bad" if errors else "",
        },
        {
            "title": _("refusals"),
            "n": refused,
            "url": f"{address}?{since}&outcome__in=refused",
            "tone": "warn" if refused else "",
        },
        {
            "title": _("mean time"),
            "ms": calls.latency,
            "url": f"{address}?{since}&outcome__in=ok&o=8",
            "tone": "",
        },
    ]


def _hours(calls: Day) -> list[Hour]:
    """Return the last day hour by hour."""
    now = timezone.now().replace(minute=0, second=0, microsecond=0)
    begins = [now - timedelta(hours=back) for back in range(HOURS - 1, -1, -1)]
    totals = [calls.total(hour=hour) for hour in begins]
    well = [calls.total("ok", "open", hour=hour) for hour in begins]
    busiest = max(totals) or 1
    return [
        Hour(hour, n, n - good, round(100 * n / busiest), round(100 * (n - good) / busiest))
        for hour, n, good in zip(begins, totals, well, strict=True)
    ]


def _hour(written: str) -> datetime:
    return datetime.strptime(written, "%Y-%m-%d %H").replace(tzinfo=UTC)


def _busiest(organization_id: UUID) -> list[dict[str, Any]]:
    """Return the tools that were called most."""
    rows = _calls(organization_id).values("tool_name", "server_name", "server_id")
    return list(
        rows.annotate(
            n=Count("pk"), bad=Count("pk", filter=~Q(outcome__in=("ok", "open")))
        ).order_by("-n", "tool_name")[:LISTED]
    )


def _spends(organization_id: UUID) -> list[Spend]:
    """Return the budgets with their use, the fullest first; of sessions' their agents tell."""
    budgets = Budget.objects.for_organization(organization_id).filter(each_session=False)
    rows = list(budgets.select_related("agent", "server").order_by("pk")[:BUDGETS_READ])
    found = [_spend(row, use) for row, use in zip(rows, uses(rows), strict=True)]
    found.sort(key=lambda one: -(one.spent + one.reserved) / (one.limit or 1))
    return found[:LISTED]


def _spend(row: Budget, use: BudgetUse) -> Spend:
    return Spend(
        title=str(row.agent or row.server or _("the organization")),
        unit=row.unit,
        period=row.get_period_display(),
        limit=row.limit,
        warn_at=row.warn_at,
        spent=use.spent,
        reserved=use.reserved,
        url=reverse("admin:agents_budget_changelist"),
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
