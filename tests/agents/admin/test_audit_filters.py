"""The quick filters of the audit log."""

import pytest
from django.http import QueryDict

from agents.admin.audit_filters import list_chips, list_quick_filters
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from tests import admin_client
from tests.agents.admin.test_audit import create_call


@pytest.fixture
def auditor(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.AUDITOR)


def list_links(query: str) -> dict[str, str]:
    """Return the queries of the quick filters; those of active ones start with "-"."""
    return {
        quick_filter.outcome: ("-" if quick_filter.is_active else "") + quick_filter.query
        for quick_filter in list_quick_filters(QueryDict(query))
    }


def test_a_quick_filter_stays_when_another_one_is_active() -> None:
    assert list_links("") == {
        "error": "outcome__in=error",
        "refused": "outcome__in=refused",
        "pending": "outcome__in=pending",
    }
    assert list_links("kind=call&outcome__in=refused&p=2&entry=1") == {
        "error": "kind=call&outcome__in=refused,error",
        "refused": "-kind=call",
        "pending": "kind=call&outcome__in=refused,pending",
    }
    assert list_links("outcome__in=refused,error")["refused"] == "-outcome__in=error"


def test_outcomes_are_a_chip_unless_all_have_quick_filters() -> None:
    assert list_chips(QueryDict("outcome__in=refused,error"), {}) == []
    [chip] = list_chips(QueryDict("outcome__in=refused,ok"), {})
    assert chip.value == "Denied, Succeeded"


@pytest.mark.django_db
def test_an_active_quick_filter_is_marked_and_counted(
    acme: Organization, auditor: admin_client.AdminClient
) -> None:
    create_call(acme, outcome="refused")
    page = auditor.get("ledger_auditrow_changelist", outcome__in="refused")
    links = [" ".join(part.split())[:60] for part in page.split("bb-filter-chip bb-quick")[1:]]
    assert ["aria-current" in link for link in links] == [False, True, False]
    assert '<span class="bb-count">1</span>' in page
    assert "Clear all" in page
