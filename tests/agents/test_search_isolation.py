"""Searches and saved filters never reach another organization, or another person's own."""

from typing import Any

import pytest
from django.test import Client
from django.urls import reverse

from agents.models import Agent, SavedFilter, Session
from agents.saved_filters import delete_filter, list_filters, save_filter
from agents.sessions.services import start_session
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Membership, Organization, User
from bonobot.accounts.principals import build_user_principal
from bonobot.accounts.roles import Role
from bonobot.core.problems import Forbidden
from tests import admin_client, factories

pytestmark = pytest.mark.django_db
SAVE, REMOVE = "ledger_auditrow_save_filter", "ledger_auditrow_remove_filter"
LIST = "ledger_auditrow_changelist"
WORD = "okapi"  # in all objects of the other organization


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def other_organization() -> Organization:
    """Another organization, with a searchable object of each kind."""
    organization = factories.create_organization("other")
    administrator = factories.build_administrator(organization)
    admin_client.create_web_server(organization, f"{WORD}-server")
    agent = factories.create_agent(organization, f"{WORD}-agent")
    save_skill(administrator, SkillSpec(name=f"{WORD}-skill", text="x", agents=[agent.slug]))
    factories.create_workflow(agent)
    session = start_session(administrator, agent, "x")
    Agent.objects.filter(pk=agent.pk).update(name=f"{WORD}-agent")
    Session.objects.filter(pk=session.pk).update(title=f"The {WORD}")
    return organization


SEARCHES: dict[str, tuple[str, dict[str, str]]] = {
    "palette": ("palette", {"q": WORD}),
    "palette, part of a word": ("palette", {"q": WORD[:3]}),
    "search of the admin": ("search", {"s": WORD}),
    "documentation": ("documentation", {"q": WORD}),
    "audit log": (LIST, {"q": WORD}),
    "agents": ("agents_agent_changelist", {"q": WORD}),
    "servers": ("mcp_servers_server_changelist", {"q": WORD}),
    "sessions": ("agents_session_changelist", {"q": WORD}),
    "skills": ("agents_skill_changelist", {"q": WORD}),
}


def build_url(name: str) -> str:
    return reverse(name if name == "documentation" else f"admin:{name}")


def open_search(client: Client, search: str) -> str:
    name, query = SEARCHES[search]
    response = client.get(build_url(name), query)
    assert response.status_code in (200, 403), (search, response.status_code)
    text = "" if response.streaming else response.content.decode()
    return text.replace(f'value="{query.get("q", "")}"', "")


@pytest.mark.parametrize("search", SEARCHES)
@pytest.mark.parametrize("role", [Role.OWNER, Role.AUDITOR, Role.MEMBER])
def test_a_search_finds_nothing_of_another_organization(
    acme: Organization, other_organization: Organization, search: str, role: Role
) -> None:
    client = admin_client.sign_in(acme, role).client
    page = open_search(client, search)
    for kind in ("server", "agent", "skill"):
        assert f"{WORD}-{kind}" not in page
    assert f"The {WORD}" not in page


@pytest.mark.parametrize("search", SEARCHES)
def test_a_person_of_two_organizations_searches_the_current_one(
    acme: Organization, other_organization: Organization, search: str
) -> None:
    browser = admin_client.sign_in(acme, Role.OWNER, "olga")
    Membership.objects.create(organization=other_organization, user=browser.user, role=Role.OWNER)
    browser.client.post(reverse("admin:switch_organization"), {"organization": acme.slug})
    page = open_search(browser.client, search)
    assert f"{WORD}-agent" not in page
    assert f"The {WORD}" not in page


FOUND = {
    "palette": ("server", "agent", "skill"),
    "agents": ("agent",),
    "servers": ("server",),
    "sessions": ("agent",),
    "skills": ("skill",),
}


@pytest.mark.parametrize("search", FOUND)
def test_an_owner_finds_the_objects(other_organization: Organization, search: str) -> None:
    page = open_search(admin_client.sign_in(other_organization, Role.OWNER).client, search)
    assert [kind for kind in FOUND[search] if f"{WORD}-{kind}" not in page] == []
    assert (f"The {WORD}" in page) is (search in ("palette", "sessions"))


# -- saved filters of the audit log ----------------------------------------------------------------


def save(
    organization: Organization, name: str, *, shared: bool, label: str = "Mine"
) -> SavedFilter:
    principal = factories.create_member(organization, Role.AUDITOR, name)
    return save_filter(principal, label, f"q={WORD}", shared=shared)


@pytest.mark.parametrize("shared", [True, False])
def test_a_filter_of_another_organization_cant_be_seen_deleted_or_replaced(
    acme: Organization, other_organization: Organization, shared: bool
) -> None:
    row = save(other_organization, "bert", shared=shared, label="Theirs")
    browser = admin_client.sign_in(acme, Role.OWNER, "olga")
    assert "Theirs" not in browser.get(LIST)
    browser.post(REMOVE, status=404, filter=row.pk)
    browser.post(SAVE, name="Theirs", query="q=mine", shared="on")
    row.refresh_from_db()
    assert row.query == f"q={WORD}"
    assert SavedFilter.objects.get(organization=acme).query == "q=mine"


def test_a_person_of_two_organizations_has_separate_filters(
    acme: Organization, other_organization: Organization
) -> None:
    row = save(acme, "bert", shared=False)
    user = User.objects.get(username="bert")
    Membership.objects.create(organization=other_organization, user=user, role=Role.AUDITOR)
    there = build_user_principal(user, other_organization)
    assert not list_filters(there).exists()
    save_filter(there, "Mine", "q=there", shared=False)
    row.refresh_from_db()
    assert row.query == f"q={WORD}"


def test_a_filter_of_another_member_isnt_replaced_by_one_with_its_name(acme: Organization) -> None:
    row = save(acme, "bert", shared=True)
    other_row = save(acme, "mara", shared=True)
    assert other_row.pk != row.pk
    assert SavedFilter.objects.count() == 2


@pytest.mark.parametrize("role", [Role.AUDITOR, Role.REVIEWER, Role.OPERATOR, Role.MEMBER])
def test_only_an_owner_deletes_the_shared_filter_of_another_member(
    acme: Organization, role: Role
) -> None:
    row = save(acme, "bert", shared=True)
    with pytest.raises(Forbidden):
        delete_filter(factories.create_member(acme, role, "mara"), row)
    assert SavedFilter.objects.filter(pk=row.pk).exists()


def test_a_member_who_lost_the_permission_sees_no_filters(acme: Organization) -> None:
    save(acme, "bert", shared=True)
    save(acme, "mara", shared=True)
    Membership.objects.filter(user__username="bert").update(role=Role.MEMBER)
    client: Any = Client()
    client.force_login(User.objects.get(username="bert"))
    response = client.get(reverse(f"admin:{LIST}"))
    assert response.status_code == 403
    assert "Mine" not in response.content.decode()
