"""Notifications about budgets that are nearly or fully used, once per period."""

from uuid import uuid4

import pytest
from django.utils import timezone
from hypothesis import given
from hypothesis import strategies as st

from agents.admin.dashboard import describe_budgets
from agents.budgets import alerts as budget_alerts
from agents.budgets.limits import BudgetLimit, build_budget_key
from agents.budgets.services import BudgetLine, BudgetUse, load_budget_use, set_budgets
from agents.models import Budget
from agents.tasks import send_budget_alerts
from bonobot.ledger.models import BudgetCell
from bonobot.notifications.channels import NotificationChannelSpec, save_channel
from bonobot.notifications.models import Notification
from tests import factories


@pytest.fixture
def acme(db):
    return factories.create_organization()


@pytest.fixture
def agent(acme):
    new_agent = factories.create_agent(acme)
    set_budgets(
        factories.build_administrator(acme), new_agent, [BudgetLine("tokens", "month", 1_000)]
    )
    return new_agent


@pytest.fixture
def channel(acme):
    spec = NotificationChannelSpec("Pager", "webhook", url="https://hooks.example.com/x")
    return save_channel(factories.build_administrator(acme), spec)[0]


def spend(agent, amount, unit="tokens", limit=1_000):
    key = build_budget_key(
        agent.organization_id,
        BudgetLimit("agent", str(agent.pk), unit, "month", limit),
        timezone.now(),
    )
    BudgetCell.objects.update_or_create(
        key=key, defaults={"organization_id": agent.organization_id, "spent": amount}
    )
    return key


def list_events():
    return sorted(Notification.objects.values_list("event", flat=True))


def test_a_budget_is_notified_at_eighty_percent_and_when_exhausted(agent, channel):
    spend(agent, 799)
    assert send_budget_alerts() == 0
    spend(agent, 800)
    assert [send_budget_alerts(), send_budget_alerts()] == [1, 0]
    assert list_events() == ["budget_warning"]
    assert "800 of 1,000 tokens" in Notification.objects.get().text
    spend(agent, 1_000)
    send_budget_alerts()
    send_budget_alerts()
    assert list_events() == ["budget_exhausted", "budget_warning"]


def test_a_raised_budget_is_notified_again(acme, agent, channel):
    spend(agent, 900)
    send_budget_alerts()
    set_budgets(factories.build_administrator(acme), agent, [BudgetLine("tokens", "month", 1_100)])
    send_budget_alerts()
    assert list_events() == ["budget_warning", "budget_warning"]


def test_a_budget_that_denies_calls_counts_as_exhausted(agent, channel, monkeypatch):
    key = spend(agent, 10)
    monkeypatch.setattr(budget_alerts, "_list_refusing_cells", lambda *_: {key})
    send_budget_alerts()
    assert list_events() == ["budget_exhausted"]


def test_the_organizations_budget_is_notified(acme, channel):
    Budget.objects.create(organization=acme, unit="microusd", period="month", limit=100)
    limit = BudgetLimit("organization", str(acme.pk), "microusd", "month", 100)
    key = build_budget_key(acme.pk, limit, timezone.now())
    BudgetCell.objects.create(key=key, organization_id=acme.pk, spent=100)
    send_budget_alerts()
    assert "the organization is exhausted" in Notification.objects.get().text


def test_without_channels_no_budget_is_read(agent, django_assert_num_queries):
    spend(agent, 1_000)
    with django_assert_num_queries(1):
        assert send_budget_alerts() == 0


def test_the_dashboard_and_the_notification_agree_when_much_is_only_reserved(agent, channel):
    key = spend(agent, 799)
    BudgetCell.objects.filter(key=key).update(reserved=200)
    budget = Budget.objects.get()
    (use,) = load_budget_use([budget])
    assert send_budget_alerts() == 0
    assert list(describe_budgets([(budget, use)])) == []
    spend(agent, 800)
    (use,) = load_budget_use([budget])
    assert send_budget_alerts() == 1
    assert [item.title for item in describe_budgets([(budget, use)])] == ["Budget 80% used: Helper"]


def test_a_budget_of_zero_is_no_warning_on_the_dashboard(acme):
    budget = Budget.objects.create(organization=acme, unit="calls", period="month", limit=0)
    (use,) = load_budget_use([budget])
    assert not use.warned
    assert list(describe_budgets([(budget, use)])) == []


def build_use(spent, limit):
    budget_line = BudgetLine("tokens", "month", limit)
    return BudgetUse(uuid4(), "agent", budget_line, "budget:x", spent, reserved=0)


@given(st.integers(0, 10**6), st.integers(0, 10**6), st.booleans())
def test_more_spending_never_lowers_the_alert(spent, limit, refused):
    levels = ["", "budget_warning", "budget_exhausted"]
    before = levels.index(budget_alerts.find_event(build_use(spent, limit), is_denied=refused))
    after = levels.index(budget_alerts.find_event(build_use(spent + 1, limit), is_denied=refused))
    assert before <= after
