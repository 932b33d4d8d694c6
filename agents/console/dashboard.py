"""Numbers and lists of the dashboard.

The number of queries is fixed: counts are grouped and lists are short.
"""

import time
from collections.abc import Iterator
from datetime import timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Case, Count, F, IntegerField, OuterRef, Q, Subquery, Value, When
from django.urls import reverse

from agents.access_requests import ANSWER_PERMISSIONS
from agents.budgets.services import BudgetUse, load_budget_use
from agents.call_activity import RANGES, CallActivity
from agents.console import attention
from agents.console.attention import AttentionItem
from agents.console.onboarding import OnboardingProgress, load_onboarding_progress
from agents.console.pending_counts import PendingCounts
from agents.models import AccessRequest, Approval, Budget, Session
from agents.models.approvals import PersonRequestQuerySet
from bonobot.accounts.models import AccountEmail
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.processes.process_status import ProcessStatus, read_statuses
from mcp_servers.health.queries import build_last_day, prefetch_last_day
from mcp_servers.models import Definition, Server
from mcp_servers.models.definitions import DefinitionQuerySet
from mcp_servers.oauth_client.queries import list_pending_logins

MAX_ITEMS = 7
FAILING_STATES = (Server.Status.ERROR, Server.Status.NEEDS_REAUTH)
PROCESS_HOURS = 24
MAX_BUDGETS = 200
MAX_OPEN_STEPS = 2  # with fewer open steps, the setup is one line


def build_dashboard(
    principal: Principal, pending: PendingCounts, range_slug: str = ""
) -> dict[str, Any]:
    """Return the context of the dashboard; `range_slug` selects its time range."""
    organization_id = principal.organization_id
    servers = Server.objects.for_organization(organization_id)
    shown_servers = _list_servers(servers)
    progress = load_onboarding_progress(organization_id)
    sessions = Session.objects.for_organization(organization_id).select_related("agent")
    server_counts = _count_servers(servers)
    return {
        "server_counts": server_counts,
        "servers": [(server, build_last_day(server)) for server in shown_servers[:MAX_ITEMS]],
        "attention": list(
            _list_attention(principal, pending, progress, shown_servers, server_counts)
        ),
        "activity": CallActivity(organization_id, range_slug),
        "ranges": RANGES,
        "recent_sessions": sessions.order_by("-created_at")[:MAX_ITEMS],
        "setup": progress,
        "is_setup_short": sum(not step.is_finished for step in progress.steps) < MAX_OPEN_STEPS,
    }


def _list_attention(
    principal: Principal,
    pending: PendingCounts,
    progress: OnboardingProgress,
    servers: list[Server],
    server_counts: dict[str, Any],
) -> Iterator[AttentionItem]:
    """Yield what needs attention, most urgent first."""
    failing = [server for server in servers if server.status in FAILING_STATES]
    organization_id = principal.organization_id
    logins = list_pending_logins(principal, MAX_ITEMS)
    login_ids = {server.pk for server, _login in logins}
    quarantined = Session.objects.for_organization(organization_id).filter(
        quarantined_at__isnull=False
    )
    return chain(
        attention.describe_processes(_list_ended_processes(principal)),
        attention.describe_account_emails(
            AccountEmail.objects.undelivered().count() if principal.platform_admin else 0
        ),
        attention.describe_approvals(
            _list_pending_approvals(organization_id),
            pending.calls,
            may_answer=principal.may(Action.APPROVE_CALLS),
        ),
        attention.describe_elicitations(pending.questions),
        attention.describe_access_requests(
            _list_access_requests(principal) if pending.access_requests else [],
            pending.access_requests,
        ),
        attention.describe_logins(logins),
        attention.describe_servers(
            (server for server in failing if server.pk not in login_ids),
            server_counts["failing"] - sum(server.pk in login_ids for server in failing),
            server_counts["failing_url"],
        ),
        attention.describe_quarantine(
            quarantined.select_related("agent").order_by("-quarantined_at")[:MAX_ITEMS]
        ),
        attention.describe_notifications(
            progress.undelivered if principal.may(Action.VIEW_AUDIT) else 0
        ),
        attention.describe_reviews(
            _list_pending_reviews(organization_id),
            pending.definitions,
            may_review=principal.may(Action.APPROVE_DEFINITIONS),
        ),
        attention.describe_budgets(_list_budgets(organization_id)),
    )


def _list_access_requests(principal: Principal) -> list[AccessRequest]:
    """Return the oldest pending access requests for people who can answer them."""
    if not any(map(principal.may, ANSWER_PERMISSIONS)):
        return []
    rows = AccessRequest.objects.for_organization(principal.organization_id).pending()
    return list(rows.order_by("created_at")[:MAX_ITEMS])


def _list_ended_processes(principal: Principal) -> list[ProcessStatus]:
    """Return the processes of `bonobot up` that ended in the last day, for its administrators."""
    if not principal.platform_admin:
        return []
    max_age_s = timedelta(hours=PROCESS_HOURS).total_seconds()
    return [
        process
        for process in read_statuses(settings.BONOBOT_VAR)
        if process.needs_attention(time.time(), max_age_s)
    ]


def _count_servers(servers: Any) -> dict[str, Any]:
    """Return how many servers are enabled, connected and failing, and the URLs of the latter."""
    counts = servers.enabled().aggregate(
        total=Count("pk"),
        connected=Count("pk", filter=Q(status=Server.Status.CONNECTED)),
        failing=Count("pk", filter=Q(status__in=FAILING_STATES)),
    )
    address = reverse("admin:mcp_servers_server_changelist")
    return {
        **counts,
        "connected_url": f"{address}?status__in={Server.Status.CONNECTED}",
        "failing_url": f"{address}?status__in={','.join(FAILING_STATES)}",
    }


def _list_servers(servers: Any) -> list[Server]:
    """Return the first enabled servers with their last day, failing ones first (3 queries)."""
    severity = Case(
        *(When(status=state, then=Value(rank)) for rank, state in enumerate(FAILING_STATES)),
        default=Value(len(FAILING_STATES)),
        output_field=IntegerField(),
    )
    rows = servers.enabled().order_by(severity, "name").prefetch_related(*prefetch_last_day())
    return list(rows[: MAX_ITEMS + 1])


def _list_pending_approvals(organization_id: UUID) -> list[Approval]:
    """Return the calls that wait for a person, by expiry."""
    rows = _filter_pending_approvals(organization_id).select_related("agent")
    return list(rows.order_by("expires_at")[:MAX_ITEMS])


def _filter_pending_approvals(organization_id: UUID) -> PersonRequestQuerySet:
    pending_approvals: PersonRequestQuerySet = Approval.objects.for_organization(
        organization_id
    ).pending()
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


def _list_budgets(organization_id: UUID) -> list[tuple[Budget, BudgetUse]]:
    """Return the budgets with their usage, without session budgets."""
    budgets = Budget.objects.for_organization(organization_id).filter(each_session=False)
    rows = list(budgets.select_related("agent", "server").order_by("pk")[:MAX_BUDGETS])
    return list(zip(rows, load_budget_use(rows), strict=True))
