"""Notify people of nearly spent budgets.

A periodic job reads the ledger's cells and refusals, so calls aren't slowed down. Each budget is
reported once per period, and again after its limit changes.
"""

from collections.abc import Iterator
from datetime import datetime, timedelta
from itertools import islice
from uuid import UUID

from django.urls import reverse
from django.utils import timezone

from agents.budgets.services import BudgetUse, load_budget_use
from agents.models import Budget
from bonobot.core.i18n.messages import format_message
from bonobot.ledger.budgets import convert_amount
from bonobot.ledger.models import AuditRow
from bonobot.notifications.notify import NotificationSubject, list_organizations_to_notify, notify

EVENTS = ("budget_warning", "budget_exhausted")
# Longer than the interval between two runs, so that no refusal is missed.
LOOKBACK = timedelta(minutes=10)
BATCH_SIZE = 500
ORGANIZATION_LABEL = format_message("the organization")
# Notifications are stored in English.
UNIT_LABELS: dict[str, str] = {
    **{unit: unit.value for unit in Budget.Unit},
    Budget.Unit.MONEY: "dollars",
}
PERIOD_LABELS: dict[str, str] = {
    Budget.Period.DAY: "per day",
    Budget.Period.MONTH: "per month",
    Budget.Period.TOTAL: "in total",
}


def notify_spent_budgets() -> int:
    """Notify organizations of spent budgets; return the number of notifications."""
    return sum(
        _notify_organization(organization_id)
        for organization_id in list_organizations_to_notify(*EVENTS)
    )


def _notify_organization(organization_id: UUID) -> int:
    refusing_keys = _list_refusing_cells(organization_id, timezone.now())
    # Budgets of single sessions are excluded: the session shows its own refusals.
    budgets = Budget.objects.for_organization(organization_id).filter(each_session=False)
    notified_count = 0
    for rows in _split_batches(
        budgets.select_related("agent", "server").order_by("pk").iterator(BATCH_SIZE)
    ):
        for row, use in zip(rows, load_budget_use(rows), strict=True):
            if event := find_event(use, is_denied=use.key in refusing_keys):
                notified_count += notify(
                    organization_id,
                    event,
                    _build_subject(row),
                    _format_message(row, use, event),
                    topic=f"{use.key}:{row.limit}",
                )
    return notified_count


def find_event(use: BudgetUse, *, is_denied: bool) -> str:
    """Return the event to report for a budget, or an empty string."""
    limit = use.line.limit
    if is_denied or use.spent >= limit > 0:
        return "budget_exhausted"
    return "budget_warning" if use.warned else ""


def _list_refusing_cells(organization_id: UUID, now: datetime) -> set[str]:
    """Return the keys of cells that recently refused a call (the refusal's rule)."""
    rows = AuditRow.objects.for_organization(organization_id).filter(
        code="budget_exhausted", opened_at__gte=now - LOOKBACK
    )
    return set(rows.order_by().values_list("rule", flat=True).distinct())


def _build_subject(row: Budget) -> NotificationSubject:
    if row.agent is not None:
        link = reverse("admin:agents_agent_configuration", args=[row.agent.pk])
        return NotificationSubject("agent", str(row.agent.pk), row.agent.name, link)
    if row.server is not None:
        link = reverse("admin:mcp_servers_server_change", args=[row.server.pk])
        return NotificationSubject("mcp_server", str(row.server.pk), row.server.name, link)
    return NotificationSubject("organization", str(row.organization_id), ORGANIZATION_LABEL)


def _format_owner(row: Budget) -> str:
    if row.agent is not None:
        return format_message("the agent {name}", name=row.agent.name)
    if row.server is not None:
        return format_message("the server {name}", name=row.server.name)
    return ORGANIZATION_LABEL


def _format_message(row: Budget, use: BudgetUse, event: str) -> str:
    values = {
        "whose": _format_owner(row),
        "spent": convert_amount(row.unit, use.spent),
        "limit": convert_amount(row.unit, row.limit),
        "unit": UNIT_LABELS[row.unit],
        "period": PERIOD_LABELS[row.period],
    }
    if event == "budget_warning":
        return format_message(
            "The budget of {whose} is almost exhausted: {spent:,} of {limit:,} {unit} "
            "{period}. Raise the budget to avoid denied calls.",
            **values,
        )
    return format_message(
        "The budget of {whose} is exhausted: {spent:,} of {limit:,} {unit} {period}. Calls "
        "are denied until the next period or until the budget is raised.",
        **values,
    )


def _split_batches(rows: Iterator[Budget]) -> Iterator[list[Budget]]:
    while batch := list(islice(rows, BATCH_SIZE)):
        yield batch
