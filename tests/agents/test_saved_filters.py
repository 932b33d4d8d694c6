"""Saved filters of the audit log: saving, sharing and deleting."""

import pytest

from agents.models import SavedFilter
from agents.saved_filters import MAX_FILTERS, save_filter
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden, Problem
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
LIST = "ledger_auditrow_changelist"
SAVE = "ledger_auditrow_save_filter"
REMOVE = "ledger_auditrow_remove_filter"


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def anna(acme):
    return admin_client.sign_in(acme, Role.AUDITOR, "anna")


@pytest.fixture
def bert(acme):
    return admin_client.sign_in(acme, Role.AUDITOR, "bert")


def test_a_filter_is_saved_without_the_page_number_and_can_be_opened(acme, anna):
    anna.post(SAVE, name="Refusals <b>", query="outcome__in=refused&q=mail&p=3&form=csv")
    saved = SavedFilter.objects.get()
    assert (saved.query, saved.shared) == ("outcome__in=refused&q=mail", False)
    page = anna.get(LIST)
    assert 'href="?outcome__in=refused&amp;q=mail"' in page
    assert "Refusals &lt;b&gt;" in page
    assert 'aria-current="true"' in anna.get(LIST, outcome__in="refused", q="mail")
    assert not AuditRow.objects.filter(
        action="audit_filter_saved"
    ).exists()  # private filters aren't recorded


def test_saving_the_same_name_replaces_the_filter(acme, anna):
    anna.post(SAVE, name="Mine", query="q=a")
    anna.post(SAVE, name="Mine", query="q=b", shared="on")
    assert [(saved.query, saved.shared) for saved in SavedFilter.objects.all()] == [("q=b", True)]


def test_only_shared_filters_are_visible_to_others(acme, anna, bert):
    anna.post(SAVE, name="Hers alone", query="q=a")
    anna.post(SAVE, name="For all", query="q=b", shared="on")
    page = admin_client.get_text(bert.get(LIST))
    assert "For all" in page
    assert "by anna" in page
    assert "Hers alone" not in page
    assert AuditRow.objects.get(action="audit_filter_saved").resource_name == "For all"
    other_owner = admin_client.sign_in(factories.create_organization("other"), Role.OWNER, "eve")
    assert "For all" not in other_owner.get(LIST)


def test_people_delete_their_own_filters_and_owners_shared_ones(acme, anna, bert):
    anna.post(SAVE, name="Hers", query="q=a")
    anna.post(SAVE, name="For all", query="q=b", shared="on")
    private, shared = SavedFilter.objects.order_by("-name")
    bert.post(REMOVE, status=403, filter=shared.pk)
    bert.post(REMOVE, status=404, filter=private.pk)
    anna.post(REMOVE, filter=private.pk, query="q=a")
    admin_client.sign_in(acme, Role.OWNER, "olga").post(REMOVE, filter=shared.pk)
    assert not SavedFilter.objects.exists()


def test_only_roles_that_view_the_audit_log_can_save_filters(acme, anna):
    admin_client.sign_in(acme, Role.MEMBER, "max").post(SAVE, status=403, name="Mine", query="q=a")
    with pytest.raises(Forbidden):
        save_filter(factories.build_administrator(acme), "Mine", "q=a", shared=False)
    assert anna.client.get(admin_client.build_url(SAVE)).status_code == 405
    assert not SavedFilter.objects.exists()


@pytest.mark.parametrize(
    ("name", "query"),
    [("", "q=a"), ("x" * 81, "q=a"), ("Mine", ""), ("Mine", "p=2"), ("Mine", "q=" + "x" * 2_000)],
)
def test_an_invalid_filter_is_reported_on_the_list(acme, anna, name, query):
    page = admin_client.get_text(
        anna.client.post(
            admin_client.build_url(SAVE), {"name": name, "query": query}, follow=True
        ).content.decode()
    )
    assert not SavedFilter.objects.exists()
    errors = ("has 0 characters", "has 81 characters", "has no filter", "filter is too long")
    assert any(text in page for text in errors)


def test_the_number_of_filters_per_person_is_limited(acme, anna):
    principal = admin_client.build_principal(anna, acme)
    for number in range(MAX_FILTERS):
        save_filter(principal, f"Filter {number}", "q=a", shared=False)
    with pytest.raises(Problem) as caught:
        save_filter(principal, "One more", "q=a", shared=False)
    assert caught.value.code == "too_many_filters"
    save_filter(principal, "Filter 1", "q=b", shared=False)
