"""What needs attention now: the list at the top of the dashboard (no queries)."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.urls import reverse
from django.utils.timesince import timeuntil
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from agents.budgets.services import BudgetUse
from agents.models import AccessRequest, Approval, Budget, Session
from bonobot.accounts.templatetags.display import amount, state_label
from bonobot.core.i18n.localization import localize_text
from bonobot.core.text.untrusted_text import make_visible
from bonobot.processes.process_status import ProcessStatus
from mcp_servers.models import Server

MAX_NAME, MAX_DETAIL = 60, 160
MAX_NAMES = 3
MAX_SERVERS = 3  # more failing servers are one item


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


def describe_approvals(
    pending: Sequence[Approval], count: int, *, may_answer: bool
) -> Iterator[AttentionItem]:
    """Yield an item for the calls that wait for a person; `pending` are the first to expire."""
    if not count or not pending:
        return
    if count == 1:
        parts = [pending[0].own_name, str(pending[0].agent or pending[0].requested_by)]
        expiry = _("expires in %(time)s")
    else:
        parts = [_join_names(str(row.agent or row.requested_by) for row in pending)]
        expiry = _("next expires in %(time)s")
    expiry %= {"time": timeuntil(pending[0].expires_at, depth=1)}
    yield AttentionItem(
        "inbox",
        tone="warn",
        title=ngettext("%(n)s pending approval", "%(n)s pending approvals", count)
        % {"n": f"{count:,}"},
        detail=_join_parts([*parts, expiry]),
        url=reverse("admin:agents_approval_changelist"),
        button=_("Open inbox") if may_answer else _("View approvals"),
        since=min(row.created_at for row in pending),
    )


def describe_elicitations(count: int) -> Iterator[AttentionItem]:
    """Yield an item for what servers request from a person."""
    if count:
        yield AttentionItem(
            "contact_support",
            tone="warn",
            title=ngettext("%(n)s elicitation request", "%(n)s elicitation requests", count)
            % {"n": f"{count:,}"},
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
        % {"n": f"{count:,}"},
        detail=_join_names(f"{row.target} ({row.requested_by})" for row in pending),
        url=reverse("admin:agents_accessrequest_changelist") + "?state=waiting",
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
            title=_("%(n)s servers are failing or need credentials") % {"n": f"{count:,}"},
            detail=_join_names((server.name for server in listed), count),
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
        counts = ((_("%(n)d new"), row["n"] - row["changed"]), (_("%(n)d changed"), row["changed"]))
        numbers = ", ".join(text % {"n": number} for text, number in counts if number)
        parts.append(f"{make_visible(row['server__name'], MAX_NAME)}: {numbers}")
    url = reverse("admin:mcp_servers_server_definitions", args=[reviews[0]["server_id"]])
    changelist = reverse("admin:mcp_servers_server_changelist")
    yield AttentionItem(
        "rule",
        tone="review",
        title=ngettext("%(n)s definition to review", "%(n)s definitions to review", count)
        % {"n": f"{count:,}"},
        detail=_join_parts(parts),
        url=f"{url}?state=waiting" if len(reviews) == 1 else f"{changelist}?waiting=yes",
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
            % {"name": make_visible(owner, MAX_NAME), "percent": f"{use.percent}%"},
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
            % {"n": f"{failed:,}"},
            detail=_("Check the receiver's response, fix the notification channel, then retry."),
            url=f"{reverse('admin:notices_notification_changelist')}?state__in=failed",
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
            % {"n": f"{count:,}"},
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


def _join_names(names: Iterable[str], count: int | None = None) -> str:
    """Return the first names, and how many more there are (of `count`, if not all are given)."""
    distinct = list(dict.fromkeys(make_visible(name, MAX_NAME) for name in names))
    shown_names = ", ".join(distinct[:MAX_NAMES])
    more = (count or len(distinct)) - MAX_NAMES
    return (
        _("%(names)s, and %(n)d more") % {"names": shown_names, "n": more}
        if more > 0
        else shown_names
    )


def _join_parts(parts: Iterable[str]) -> str:
    return " · ".join(make_visible(part, MAX_DETAIL) for part in parts)
