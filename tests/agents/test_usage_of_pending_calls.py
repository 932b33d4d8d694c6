"""Numbers of calls with some that wait for approval: the audit log lists exactly those calls."""

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from html import unescape

import pytest
import time_machine
from django.db.models import QuerySet
from django.utils import timezone

from agents.approvals.services import resolve_approval
from agents.calls.require_approval import ApprovalRequired
from agents.models import Agent, Approval
from agents.policies.services import PolicySpec, set_policy
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role
from bonobot.core.problems import Problem
from bonobot.ledger.models import AuditRow
from bonobot.ledger.usage import build_rollups
from bonobot.ledger.usage.report import UsageQuery, load_usage_report
from mcp_servers.models import Server
from tests import admin_client, factories

pytestmark = pytest.mark.django_db(transaction=True)

ECHO, ADD, FAIL, DENIED = (f"mcp_workshop_{name}" for name in ("echo", "add", "fail", "crash"))
CALLS_TILE = re.compile(
    r'href="([^"]+)">\s*<span class="bb-tile-title">Calls</span>\s*<b[^>]*>(\d+)'
)


def request_approval(call: Callable[..., object], number: int) -> Approval:
    """Call a tool that needs approval; return the pending approval."""
    with pytest.raises(ApprovalRequired) as caught:
        call(ADD, {"a": number, "b": number})
    return Approval.objects.get(pk=caught.value.approval_id)


def find_request(approval: Approval) -> AuditRow:
    """Return the audit entry of the call that waits for an approval."""
    row: AuditRow = AuditRow.objects.get(event_type="call", opened__contains=str(approval.pk))
    return row


def make_calls(acme: Organization, helper: Agent, call: Callable[..., object]) -> list[str]:
    """Make calls that end, two that wait, and one that has waited for 200 days.

    Returns the entries of the first eight.
    """
    administrator = factories.build_administrator(acme)
    rules = PolicySpec("all", ask=(ADD,), deny=(DENIED,))
    set_policy(administrator, helper, rules)
    for number in range(3):
        call(ECHO, {"text": str(number)})
    call(FAIL, {"reason": "no luck"})
    with pytest.raises(Problem):
        call(DENIED)
    resolve_approval(administrator, request_approval(call, 1), "deny")
    with pytest.raises(Problem, match="denied this call"):
        call(ADD, {"a": 1, "b": 1})
    pending = [request_approval(call, 3), request_approval(call, 4)]
    old = request_approval(call, 5)
    long_ago = timezone.now() - timedelta(days=200)
    Approval.objects.filter(pk=old.pk).update(created_at=long_ago)
    rows: QuerySet[AuditRow] = QuerySet(model=AuditRow)  # the model's own manager refuses
    rows.filter(pk=find_request(old).pk).update(opened_at=long_ago)
    ended = AuditRow.objects.filter(event_type="call").exclude(
        outcome="refused", code="approval_required"
    )
    return sorted(str(row.pk) for row in (*ended, *map(find_request, pending)))


@time_machine.travel(datetime(2026, 11, 22, 23, 30, tzinfo=UTC))  # the next day in Berlin
def test_dashboard_and_usage_count_pending_calls_as_the_audit_log(
    acme: Organization, helper: Agent, workshop: Server, call: Callable[..., object]
) -> None:
    counted = make_calls(acme, helper, call)
    assert len(counted) == 8
    build_rollups.count_organization(acme.pk)
    admin = admin_client.sign_in(acme, Role.OWNER)
    User.objects.update(time_zone="Europe/Berlin")
    for days in (7, 30, 90):
        first_day = timezone.now().date() - timedelta(days=days - 1)
        for page in (
            admin.get("usage", since=first_day.isoformat()),
            admin.get("index", range=f"{days}d"),
        ):
            tile = CALLS_TILE.search(page)
            assert tile
            assert tile[2] == "8"
            listed = re.findall(r'data-entry="([^"]+)"', admin.open(unescape(tile[1])))
            assert sorted(listed) == counted
    report = load_usage_report(factories.build_administrator(acme), UsageQuery(by="tool"))
    assert report.total.pending == 2
    assert [entry.line.pending for entry in report.entries if entry.name == "add"] == [2]
