"""Numbers and lists of the dashboard.

The number of queries is fixed: counts are grouped and lists are short.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import chain
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Case, Count, F, IntegerField, OuterRef, Q, Subquery, Value, When
from django.urls import reverse
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agents.access_requests import can_answer_access_requests
from agents.admin.navigation import PendingCounts
from agents.budgets.services import BudgetUse, load_budget_use
from agents.call_activity import RANGES, CallActivity
from agents.first_run import FirstRunProgress, load_first_run_progress
from agents.models import AccessRequest, Approval, Budget, Session
from agents.models.approvals import PersonRequestQuerySet
from bonobot.accounts.models import AccountEmail
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.accounts.templatetags.display import amount, counted, state_label, time_left
from bonobot.core.i18n.localization import format_number, format_percent, join_names, localize_text
from bonobot.core.text.untrusted_text import make_visible
from bonobot.processes.process_status import ProcessStatus, read_statuses
from mcp_servers.health.server_status import FAILING_STATES
from mcp_servers.health.uptime_windows import build_last_day, prefetch_last_day
from mcp_servers.models import Definition, Server
from mcp_servers.models.definitions import DefinitionQuerySet
from mcp_servers.oauth_client.login_status import list_pending_logins

MAX_NAME, MAX_DETAIL = 60, 160
MAX_NAMES = 3
MAX_SERVERS = 3  # more failing servers are one item
MAX_ITEMS = 7
PROCESS_HOURS = 24
MAX_BUDGETS = 200
MAX_OPEN_STEPS = 2  # with fewer open steps, the setup is one line


@dataclass(frozen=True)
class AttentionItem:
    """Something that a person should look at: what, since when, and the button that opens it."""

    icon: str
    tone: str
    title: str
    detail: str
    url: str
    button: str
    since: datetime | None = None


def describe_approvals(pending: Sequence[Approval], count: int) -> Iterator[AttentionItem]:
    """Yield an item for the calls that wait for a person; `pending` are the first to expire."""
    if not count or not pending:
        return
    if count == 1:
        parts = [pending[0].own_name, str(pending[0].agent or pending[0].requester_name)]
        expiry = _("expires in %(time)s")
    else:
        parts = [join_names((str(row.agent or row.requester_name) for row in pending), MAX_NAMES)]
        expiry = _("next expires in %(time)s")
    expiry %= {"time": time_left(pending[0].expires_at)}
    yield AttentionItem(
        "inbox",
        tone="warn",
        title=ngettext("%(n)s pending approval", "%(n)s pending approvals", count)
        % {"n": counted(count)},
        detail=_join_parts([*parts, expiry]),
        url=reverse("admin:agents_approval_changelist"),
        button=_("View approvals"),
        since=min(row.created_at for row in pending),
    )


def describe_elicitations(count: int) -> Iterator[AttentionItem]:
    """Yield an item for what servers request from a person."""
    if count:
        yield AttentionItem(
            "contact_support",
            tone="warn",
            title=ngettext("%(n)s elicitation request", "%(n)s elicitation requests", count)
            % {"n": counted(count)},
            detail=_("Servers wait for an answer."),
            url=reverse("admin:agents_elicitationrequest_changelist"),
            button=_("View requests"),
        )


def describe_access_requests(
    pending: Sequence[AccessRequest], count: int
) -> Iterator[AttentionItem]:
    """Yield an item for the access requests that wait for an answer; `pending` are the oldest."""
    if not count or not pending:
        return
    yield AttentionItem(
        "key",
        tone="warn",
        title=ngettext("%(n)s access request", "%(n)s access requests", count)
        % {"n": counted(count)},
        detail=join_names((f"{row.target} ({row.requester_name})" for row in pending), MAX_NAMES),
        url=reverse("admin:agents_accessrequest_changelist") + "?state__exact=waiting",
        button=_("View requests"),
        since=pending[0].created_at,
    )


def describe_logins(logins: Iterable[tuple[Server, Any]]) -> Iterator[AttentionItem]:
    """Yield an item for each server that a person has to sign in to."""
    for server, login in logins:
        name = make_visible(server.name, MAX_NAME)
        yield AttentionItem(
            "login",
            tone="warn",
            title=_("Sign in to %(name)s") % {"name": name},
            detail=_("Sign in to use its tools.")
            if login.per == "user"
            else _("Its tools can't be called until someone signs in for the organization."),
            url=reverse("oauth:start", args=[server.pk]),
            button=_("Sign in"),
        )


def describe_servers(servers: Iterable[Any], count: int, url: str) -> Iterator[AttentionItem]:
    """Yield an item for each failing server, with the page of its remedy, or one for many.

    `servers` are the first of `count` servers, which the list at `url` has.
    """
    listed = list(servers)
    if count > MAX_SERVERS:
        yield AttentionItem(
            "cancel",
            tone="bad",
            title=_("%(n)s servers are failing or need credentials") % {"n": format_number(count)},
            detail=join_names((server.name for server in listed), MAX_NAMES, count),
            url=url,
            button=_("View servers"),
        )
        return
    for server in listed:
        needs_credentials = server.status == Server.Status.NEEDS_REAUTH
        name = make_visible(server.name, MAX_NAME)
        button, page = _suggest_remedy(server)
        ongoing = [outage for outage in server.latest_outages if outage.ended_at is None]
        yield AttentionItem(
            "key_off" if needs_credentials else "cancel",
            tone="warn" if needs_credentials else "bad",
            title=_("%(name)s needs new credentials") % {"name": name}
            if needs_credentials
            else _("%(name)s is failing") % {"name": name},
            detail=make_visible(localize_text(server.status_detail).replace("`", ""), MAX_DETAIL),
            url=reverse(f"admin:mcp_servers_server_{page}", args=[server.pk]),
            button=button,
            since=ongoing[0].began_at if ongoing else None,
        )


def describe_reviews(
    reviews: Sequence[dict[str, Any]], count: int, *, may_review: bool
) -> Iterator[AttentionItem]:
    """Yield an item for definitions to review; `reviews` are the servers with the most."""
    if not count or not reviews:
        return
    parts = []
    for row in reviews[:MAX_NAMES]:
        counts = ((_("%(n)s new"), row["n"] - row["changed"]), (_("%(n)s changed"), row["changed"]))
        numbers = ", ".join(
            text % {"n": format_number(number)} for text, number in counts if number
        )
        parts.append(f"{make_visible(row['server__name'], MAX_NAME)}: {numbers}")
    url = reverse("admin:mcp_servers_server_definitions", args=[reviews[0]["server_id"]])
    all_servers = (
        reverse("admin:mcp_servers_server_confirm_approve") + "?waiting=yes&all=1"
        if may_review
        else reverse("admin:mcp_servers_server_changelist") + "?waiting=yes"
    )
    yield AttentionItem(
        "rule",
        tone="review",
        title=ngettext("%(n)s definition to review", "%(n)s definitions to review", count)
        % {"n": counted(count)},
        detail=_join_parts(parts),
        url=f"{url}?state=waiting" if len(reviews) == 1 else all_servers,
        button=_("Review") if may_review else _("View definitions"),
    )


def describe_budgets(budgets: Iterable[tuple[Budget, BudgetUse]]) -> Iterator[AttentionItem]:
    """Yield an item for each budget that is used up to its warning level, fullest first."""
    near = [(row, use) for row, use in budgets if use.warned]
    for row, use in sorted(near, key=lambda item: -item[1].percent):
        owner = str(row.agent or row.server or _("The organization"))
        unit = "" if row.unit == "microusd" else f" {state_label(row.unit)}"
        numbers = {
            "spent": amount(use.spent, row.unit),
            "limit": amount(row.limit, row.unit) + unit,
            "period": state_label(row.period),
        }
        yield AttentionItem(
            "account_balance_wallet",
            tone="bad" if use.percent >= 100 else "warn",
            title=_("Budget %(percent)s used: %(name)s")
            % {"name": make_visible(owner, MAX_NAME), "percent": format_percent(use.percent, ",d")},
            detail=_("%(spent)s of %(limit)s %(period)s") % numbers,
            url=reverse("admin:agents_budget_change", args=[row.pk]),
            button=_("View budget"),
        )


def describe_quarantine(sessions: Iterable[Session]) -> Iterator[AttentionItem]:
    """Yield an item for each quarantined session."""
    for session in sessions:
        parts = [str(session), str(session.agent), _("Its worker ended repeatedly while it ran.")]
        yield AttentionItem(
            "report",
            tone="bad",
            title=_("Quarantined session"),
            detail=_join_parts(parts),
            url=reverse("admin:agents_session_change", args=[session.pk]),
            button=_("Open session"),
            since=session.quarantined_at,
        )


def describe_notifications(failed: int) -> Iterator[AttentionItem]:
    """Yield an item for notifications that weren't delivered in the last day."""
    if failed:
        yield AttentionItem(
            "notifications_off",
            tone="bad",
            title=ngettext(
                "%(n)s undelivered notification", "%(n)s undelivered notifications", failed
            )
            % {"n": format_number(failed)},
            detail=_("Check the receiver's response, fix the notification channel, then retry."),
            url=f"{reverse('admin:notices_notification_changelist')}?state__exact=failed",
            button=_("View notifications"),
        )


def describe_account_emails(count: int) -> Iterator[AttentionItem]:
    """Yield an item for emails to people that weren't delivered at the first attempt."""
    if count:
        yield AttentionItem(
            "notifications_off",
            tone="bad",
            title=ngettext(
                "%(n)s undelivered email about an account",
                "%(n)s undelivered emails about accounts",
                count,
            )
            % {"n": format_number(count)},
            detail=_("Check the mail server."),
            url=reverse("admin:settings_check"),
            button=_("Check settings"),
        )


def describe_processes(processes: Iterable[ProcessStatus]) -> Iterator[AttentionItem]:
    """Yield an item for each process of `bonobot up` that ended."""
    titles = {
        "stopped": _("Process %(name)s ended too often and isn't restarted"),
        "restarting": _("Process %(name)s ended and will be restarted"),
    }
    for process in processes:
        title = titles.get(process.state) or _("Process %(name)s ended and was restarted")
        yield AttentionItem(
            "restart_alt",
            tone="warn" if process.state == "running" else "bad",
            title=title % {"name": process.name},
            detail=_("Last end: %(end)s. Restarts: %(restarts)s.")
            % {"end": process.last_end, "restarts": process.restarts},
            url=reverse("admin:settings_check"),
            button=_("Check settings"),
        )


def _suggest_remedy(server: Server) -> tuple[str, str]:
    """Return the words and the page of the remedy for a failing server."""
    if server.status == Server.Status.ERROR:
        return _("View history"), "health"
    if server.interactive:
        return _("Sign in again"), "change"
    return _("Enter credentials"), "configuration"


def _join_parts(parts: Iterable[str]) -> str:
    return " · ".join(make_visible(part, MAX_DETAIL) for part in parts)


def build_dashboard(
    principal: Principal, pending: PendingCounts, range_slug: str = ""
) -> dict[str, Any]:
    """Return the context of the dashboard; `range_slug` selects its time range."""
    organization_id = principal.organization_id
    servers = Server.objects.for_organization(organization_id)
    shown_servers = _list_servers(servers)
    progress = load_first_run_progress(organization_id)
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
        "recent_sessions": sessions.with_waits().order_by("-created_at")[:MAX_ITEMS],
        "setup": progress,
        "is_setup_short": sum(not step.is_finished for step in progress.steps) < MAX_OPEN_STEPS,
    }


def _list_attention(
    principal: Principal,
    pending: PendingCounts,
    progress: FirstRunProgress,
    servers: list[Server],
    server_counts: dict[str, Any],
) -> Iterator[AttentionItem]:
    """Yield what needs dashboard, most urgent first."""
    failing = [server for server in servers if server.status in FAILING_STATES]
    organization_id = principal.organization_id
    logins = list_pending_logins(principal, MAX_ITEMS)
    login_ids = {server.pk for server, _login in logins}
    quarantined = Session.objects.for_organization(organization_id).filter(
        quarantined_at__isnull=False
    )
    return chain(
        describe_processes(_list_ended_processes(principal)),
        describe_account_emails(
            AccountEmail.objects.undelivered().count() if principal.platform_admin else 0
        ),
        describe_approvals(
            _list_pending_approvals(organization_id),
            pending.calls,
        ),
        describe_elicitations(pending.questions),
        describe_access_requests(
            _list_access_requests(principal) if pending.access_requests else [],
            pending.access_requests,
        ),
        describe_logins(logins),
        describe_servers(
            (server for server in failing if server.pk not in login_ids),
            server_counts["failing"] - sum(server.pk in login_ids for server in failing),
            server_counts["failing_url"],
        ),
        describe_quarantine(
            quarantined.select_related("agent").order_by("-quarantined_at")[:MAX_ITEMS]
        ),
        describe_notifications(progress.undelivered if principal.may(Action.VIEW_AUDIT) else 0),
        describe_reviews(
            _list_pending_reviews(organization_id),
            pending.definitions,
            may_review=principal.may(Action.APPROVE_DEFINITIONS),
        ),
        describe_budgets(_list_budgets(organization_id)),
    )


def _list_access_requests(principal: Principal) -> list[AccessRequest]:
    """Return the oldest pending access requests for people who can answer them."""
    if not can_answer_access_requests(principal):
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
    """Return how many servers are enabled (`total`), connected, failing, and disabled; and URLs."""
    is_enabled = Q(enabled=True)
    counts = servers.aggregate(
        total=Count("pk", filter=is_enabled),
        connected=Count("pk", filter=is_enabled & Q(status=Server.Status.CONNECTED)),
        failing=Count("pk", filter=is_enabled & Q(status__in=FAILING_STATES)),
        disabled=Count("pk", filter=~is_enabled),
    )
    address = reverse("admin:mcp_servers_server_changelist")
    failing_query = "&".join(f"status__exact={state}" for state in FAILING_STATES)
    return {
        **counts,
        "connected_url": f"{address}?status__exact={Server.Status.CONNECTED}",
        "failing_url": f"{address}?{failing_query}",
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
