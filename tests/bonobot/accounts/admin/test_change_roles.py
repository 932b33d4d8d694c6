"""The bulk action "Change role…" of the list of members."""

import re
from typing import Any

import pytest
from pytest_django import DjangoAssertNumQueries

from bonobot.accounts.admin import change_roles
from bonobot.accounts.admin_base.list_versions import LIST_VERSION_FIELD
from bonobot.accounts.members import update_member_role
from bonobot.accounts.models import Membership, Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
LIST = "tenancy_membership_changelist"


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def owner(acme: Organization) -> admin_client.AdminClient:
    return admin_client.sign_in(acme, Role.OWNER, "olga")


def add_members(acme: Organization, role: Role, *names: str) -> list[Membership]:
    for name in names:
        factories.create_member(acme, role, name)
    return list(Membership.objects.filter(user__username__in=names).order_by("user__username"))


def run_action(browser: admin_client.AdminClient, members: list[Membership], **fields: str) -> str:
    selected = [str(member.pk) for member in members]
    fields = {"action": "change_role_chosen", **fields}
    return admin_client.get_text(browser.post(LIST, _selected_action=selected, **fields))


def read_version(response: Any) -> dict[str, str]:
    """Return the field with the version that a list or a confirmation carries on."""
    match = re.search(rf'name="{LIST_VERSION_FIELD}" value="([^"]+)"', response.content.decode())
    assert match
    return {LIST_VERSION_FIELD: match[1]}


def list_roles() -> dict[str, str]:
    return dict(Membership.objects.values_list("user__username", "role"))


def test_deletion_is_the_last_of_the_actions_for_members(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    add_members(acme, Role.MEMBER, "anna")
    page = owner.get(LIST)
    actions = re.findall(r'name="action" value="(\w+)"', page)
    assert actions == ["change_role_chosen", "offer_chosen", "reset_chosen", "delete_selected"]
    assert 'data-result-count="2"' in page


def test_roles_change_after_confirmation_each_with_an_audit_entry(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    members = add_members(acme, Role.MEMBER, "anna", "bert")
    members += add_members(acme, Role.AUDITOR, "carl")
    text = run_action(owner, members)
    assert "anna member bert member carl auditor" in text
    assert "Select a role to see whose role changes" in text
    assert "Change the role" not in text
    text = run_action(owner, members, role="auditor")
    assert "anna member → auditor" in text
    assert "Already have this role carl" in text
    assert "Change the roles of 2 members" in text
    assert list_roles()["anna"] == Role.MEMBER
    run_action(owner, members, role="auditor", confirmed="auditor")
    assert owner.messages == ["The roles of 2 members were changed."]
    assert list_roles() == {
        **dict.fromkeys(("anna", "bert", "carl"), Role.AUDITOR),
        "olga": Role.OWNER,
    }
    entries = AuditRow.objects.filter(action="member_updated", actor_id=owner.user.pk)
    assert sorted(entries.values_list("resource_name", flat=True)) == ["anna", "bert"]


def test_a_role_that_wasnt_confirmed_is_shown_first(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    members = add_members(acme, Role.MEMBER, "anna")
    text = run_action(owner, members, role="owner", confirmed="auditor")
    assert "anna member → owner" in text
    run_action(owner, members, role="president", confirmed="president")
    assert list_roles()["anna"] == Role.MEMBER


def test_ones_own_role_doesnt_change_with_those_of_others(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    add_members(acme, Role.OWNER, "anna")
    members = list(Membership.objects.order_by("user__username"))
    text = run_action(owner, members, role="member")
    assert "olga owner This is you. Change your own role on your member page." in text
    run_action(owner, members, role="member", confirmed="member")
    assert list_roles() == {"anna": Role.MEMBER, "olga": Role.OWNER}
    assert owner.messages == [
        "The role of 1 member was changed.",
        "1 member keeps the current role.",
    ]


def test_one_owner_stays_when_a_platform_administrator_changes_all_of_them(
    acme: Organization,
) -> None:
    administrator = admin_client.sign_in(acme, None)
    members = add_members(acme, Role.OWNER, "anna", "bert")
    text = run_action(administrator, members, role="member")
    assert "bert owner This would leave the organization without an owner." in text
    run_action(administrator, members, role="member", confirmed="member")
    assert list_roles() == {"anna": Role.MEMBER, "bert": Role.OWNER}
    assert run_action(administrator, members[1:], role="member").count("Change the role") == 0


def test_all_members_of_a_filtered_list_are_changed(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    members = add_members(acme, Role.MEMBER, *(f"member{number}" for number in range(60)))
    add_members(acme, Role.AUDITOR, "carl")
    selection = {"action": "change_role_chosen", "select_across": "1", "role": "reviewer"}
    selection["_selected_action"] = str(members[0].pk)
    page = owner.send(f"{admin_client.build_url(LIST)}?role__exact=member", selection)
    assert "Change the roles of 60 members" in page
    assert page.count('name="_selected_action"') == 60
    assert "carl" not in page


def test_members_of_other_organizations_cant_be_selected(owner: admin_client.AdminClient) -> None:
    others = add_members(factories.create_organization("other"), Role.MEMBER, "anna")
    run_action(owner, others, role="auditor", confirmed="auditor")
    assert list_roles()["anna"] == Role.MEMBER


def test_more_members_than_one_request_may_change_are_refused(
    acme: Organization, owner: admin_client.AdminClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(change_roles, "MAX_MEMBERS", 1)
    members = add_members(acme, Role.MEMBER, "anna", "bert")
    text = run_action(owner, members, role="auditor", confirmed="auditor")
    assert "2 members are too many for one request. Select up to 1 members." in text
    assert list_roles()["anna"] == Role.MEMBER


def test_the_confirmation_has_the_same_queries_for_more_members(
    acme: Organization,
    owner: admin_client.AdminClient,
    django_assert_max_num_queries: DjangoAssertNumQueries,
) -> None:
    members = add_members(acme, Role.OWNER, *(f"owner{number}" for number in range(20)))
    with django_assert_max_num_queries(16):
        run_action(owner, members, role="auditor")


def test_an_auditor_cant_change_roles(acme: Organization) -> None:
    members = add_members(acme, Role.MEMBER, "anna")
    auditor = admin_client.sign_in(acme, Role.AUDITOR)
    fields = {"action": "change_role_chosen", "role": "owner", "confirmed": "owner"}
    page = auditor.post(LIST, status=403, _selected_action=[str(members[0].pk)], **fields)
    assert "forbidden" in page
    assert list_roles()["anna"] == Role.MEMBER


def test_a_role_that_changed_elsewhere_after_the_confirmation_isnt_overwritten(
    acme: Organization, owner: admin_client.AdminClient
) -> None:
    members = add_members(acme, Role.MEMBER, "anna", "bert", "carl")
    selected = {
        "action": "change_role_chosen",
        "_selected_action": [str(member.pk) for member in members],
        "role": "auditor",
    }
    url = admin_client.build_url(LIST)
    page = owner.client.post(url, selected | read_version(owner.client.get(url)))
    assert "Change the roles of 3 members" in admin_client.get_text(page.content.decode())
    confirmed = selected | read_version(page) | {"confirmed": "auditor"}
    update_member_role(factories.build_administrator(acme), members[0], Role.OPERATOR)
    response = owner.client.post(url, confirmed)
    assert response.status_code == 409
    assert "version_conflict" in response.content.decode()
    assert list_roles()["bert"] == Role.MEMBER
    page = owner.client.post(url, selected | read_version(owner.client.get(url)))
    assert owner.client.post(url, confirmed | read_version(page)).status_code == 302
    assert set(list_roles().values()) == {Role.AUDITOR, Role.OWNER}
