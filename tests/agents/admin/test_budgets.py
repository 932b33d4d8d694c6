"""Budgets in the admin: the list with what is spent, and the preview beside the form."""

import re
from datetime import UTC, timedelta

import pytest
from django.utils import timezone

from agents.budgets.limits import build_budget_key
from agents.budgets.services import BudgetLine, build_limit, set_budgets
from agents.models import Budget
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import BudgetCell
from tests import admin_client, factories
from tests.admin_client import build_url, get_text
from tests.agents.budgets.test_preview import add_calls

pytestmark = pytest.mark.django_db

FORM = {
    "owner_key": "organization",
    "unit": "calls",
    "period": "day",
    "amount": "",
    "warn_at": "80",
}


@pytest.fixture
def person(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER)


def spend(row: Budget, amount: int) -> None:
    """Set what a budget has spent in its current period."""
    key = build_budget_key(row.organization_id, build_limit(row), timezone.now())
    BudgetCell.objects.create(key=key, organization_id=row.organization_id, spent=amount)


def test_the_form_says_what_the_budget_would_have_denied(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    midnight = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    add_calls(acme.pk, midnight - timedelta(days=2), 40)
    page = get_text(person.post("agents_budget_preview", **FORM))
    assert "40 calls in the last 30 days, at most 40 calls on one day" in page
    page = get_text(person.post("agents_budget_preview", **FORM | {"amount": "30"}))
    assert "Would have denied about 10 of 40 calls in the last 30 days" in page
    assert "Every day at 00:00 UTC" in page
    assert "24 calls: a notification" in page
    page = get_text(person.post("agents_budget_preview", **FORM | {"amount": "50"}))
    assert "Would have denied no calls in the last 30 days" in page


def test_the_page_of_a_used_up_budget_says_so_instead_of_what_it_would_have_denied(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    midnight = timezone.now().astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    add_calls(acme.pk, midnight - timedelta(days=2), 2)
    set_budgets(factories.build_administrator(acme), acme, [BudgetLine("calls", "month", 2)])
    row = Budget.objects.get()
    spend(row, 2)
    page = get_text(person.get("agents_budget_change", row.pk))
    assert "Used 2 of 2" in page
    assert "limit reached" in page
    assert "denied no calls" not in page
    url = f"{build_url('agents_budget_preview')}?budget={row.pk}"
    page = get_text(person.send(url, {"amount": "50", "warn_at": "80"}))
    assert "Used 2 of 2" in page
    assert "Would have denied no calls in the last 30 days" in page


def test_a_negative_limit_is_refused_without_a_word_about_deleting(
    person: admin_client.AdminClient,
) -> None:
    page = get_text(person.post("agents_budget_add", **FORM | {"amount": "-5"}))
    assert "Enter a whole number of 0 or more." in page
    assert "delete the budget" not in page
    assert not Budget.objects.exists()


def test_a_saved_budget_is_previewed_with_its_own_owner_and_unit(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    agent = factories.create_agent(acme, "Helper")
    set_budgets(factories.build_administrator(acme), agent, [BudgetLine("tokens", "month", 900)])
    row = Budget.objects.get()
    page = get_text(person.get("agents_budget_change", row.pk))
    assert "All model turns of the agent Helper" in page
    assert "720 tokens: a notification" in page
    url = f"{build_url('agents_budget_preview')}?budget={row.pk}"
    page = get_text(person.send(url, {"amount": "1000", "warn_at": "50"}))
    assert "500 tokens: a notification" in page


def test_a_budget_of_each_session_is_created_for_an_agent_that_is_listed_once(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    agent = factories.create_agent(acme, "Helper")
    assert person.get("agents_budget_add").count(f'value="agent:{agent.pk}"') == 1
    form = FORM | {"owner_key": f"agent:{agent.pk}", "amount": "7", "each_session": "on"}
    assert "Each session of the agent Helper" in get_text(
        person.post("agents_budget_preview", **form)
    )
    person.post("agents_budget_add", **form)
    row = Budget.objects.get()
    assert (row.agent, row.each_session, row.limit) == (agent, True, 7)
    person.post("agents_budget_change", row.pk, amount="8", warn_at="50")
    row = Budget.objects.get()
    assert (row.each_session, row.limit, row.warn_at) == (True, 8, 50)


def test_the_list_shows_a_state_with_an_icon_and_a_word(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    lines = [BudgetLine("calls", "total", 10), BudgetLine("tokens", "total", 100)]
    set_budgets(factories.build_administrator(acme), acme, lines)
    for row, amount in zip(Budget.objects.order_by("unit"), (10, 85), strict=True):
        spend(row, amount)
    page = get_text(person.get("agents_budget_changelist"))
    assert "limit reached" in page
    assert "above 80%" in page
    assert "10 of 10 · 100%" in page


def test_nobody_previews_a_budget_of_another_organization(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    other_agent = factories.create_agent(factories.create_organization("other"), "Theirs")
    person.post(
        "agents_budget_preview", status=404, **FORM | {"owner_key": f"agent:{other_agent.pk}"}
    )


@pytest.mark.parametrize(
    ("unit", "counts"),
    [
        ("calls", "All calls of the organization"),
        ("tokens", "All model turns of the organization"),
        ("seconds", "All calls and model turns of the organization"),
    ],
)
def test_a_budget_counts_what_uses_its_unit(
    person: admin_client.AdminClient, unit: str, counts: str
) -> None:
    assert counts in get_text(person.post("agents_budget_preview", **FORM | {"unit": unit}))


@pytest.mark.parametrize(
    ("unit", "remedy", "other"),
    [
        ("calls", "Enter a whole number of 0 or more.", "in dollars of"),
        ("microusd", "Enter an amount in dollars of 0 or more.", "a whole number of"),
    ],
)
def test_a_limit_that_is_no_number_is_refused_in_words_of_its_unit_without_a_code(
    person: admin_client.AdminClient, unit: str, remedy: str, other: str
) -> None:
    page = get_text(person.post("agents_budget_add", **FORM | {"unit": unit, "amount": "few"}))
    assert remedy in page
    assert other not in page
    assert not re.search(r"\binvalid\b", page)


def test_a_budget_is_named_by_its_amount_and_its_form_has_only_the_hint_of_its_unit(
    acme: Organization, person: admin_client.AdminClient
) -> None:
    form = FORM | {"unit": "microusd", "amount": "12.5"}
    person.post("agents_budget_add", **form)
    (message,) = person.messages
    assert "$12.50 per day</a>” was created." in message
    page = get_text(person.get("agents_budget_change", Budget.objects.get().pk))
    assert "Enter an amount in dollars." in page
    assert "Enter a whole number." not in page
    person.post("agents_budget_add", **FORM | {"amount": "1"})
    assert "1 call per day" in get_text(person.get("agents_budget_changelist"))
