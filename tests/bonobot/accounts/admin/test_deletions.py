"""Undo in the admin, and the list of recently deleted objects."""

import re

import pytest
from django.test import Client
from django.urls import reverse

from agents.models import Agent, Skill
from agents.services import delete_agent
from agents.skills import SkillSpec, save_skill
from bonobot.accounts.models import Deletion, Organization
from bonobot.accounts.roles import Role
from tests import admin_client, factories

pytestmark = pytest.mark.django_db


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


def sign_in(client: Client, acme: Organization, role: Role) -> None:
    factories.create_member(acme, role, "anna")
    client.login(username="anna", password="pw-for-tests")


def press_undo(client: Client, page: str) -> str:
    """Send the form in the message of a page; return the page that follows."""
    (address,) = re.findall(r'action="([^"]*/restore/)"', page)
    return client.post(address, follow=True).content.decode()


def test_a_deleted_agent_is_back_after_undo(client: Client, acme: Organization) -> None:
    helper = factories.create_agent(acme)
    sign_in(client, acme, Role.OPERATOR)
    address = reverse("admin:agents_agent_delete", args=[helper.pk])

    deleted = client.post(address, {"post": "yes"}, follow=True).content.decode()
    assert "Helper was deleted." in deleted
    assert not Agent.objects.exists()
    restored = press_undo(client, deleted)

    assert "Helper was restored." in restored
    assert Agent.objects.get().pk == helper.pk


def test_a_deleted_skill_is_back_after_undo(client: Client, acme: Organization) -> None:
    skill = save_skill(factories.build_administrator(acme), SkillSpec(name="greet", text="Hi."))
    sign_in(client, acme, Role.OPERATOR)
    address = reverse("admin:agents_skill_delete", args=[skill.pk])

    deleted = client.post(address, {"post": "yes"}, follow=True).content.decode()
    assert "greet was deleted." in deleted
    press_undo(client, deleted)

    assert Skill.objects.get().pk == skill.pk


def test_undo_after_ten_minutes_says_what_to_do(client: Client, acme: Organization) -> None:
    deletion = delete_agent(factories.build_administrator(acme), factories.create_agent(acme))
    assert deletion is not None
    Deletion.objects.all().delete()
    sign_in(client, acme, Role.OPERATOR)

    page = client.post(reverse("admin:tenancy_deletion_restore", args=[deletion.pk]))

    assert page.status_code == 404
    assert not Agent.objects.exists()


def test_the_list_has_what_the_user_can_restore(client: Client, acme: Organization) -> None:
    other_organization = factories.create_organization("other")
    for organization, slug in ((acme, "mine"), (other_organization, "theirs")):
        agent = factories.create_agent(organization, slug)
        delete_agent(factories.build_administrator(organization), agent)
    sign_in(client, acme, Role.OPERATOR)

    page = client.get(reverse("admin:tenancy_deletion_changelist")).content.decode()

    assert "Mine" in page
    assert "Theirs" not in page
    assert "Agent" in page


def test_selected_objects_are_restored_at_once(client: Client, acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    deletions = [
        delete_agent(administrator, factories.create_agent(acme, slug))
        for slug in ("one", "two", "taken")
    ]
    factories.create_agent(acme, "taken")
    sign_in(client, acme, Role.OPERATOR)

    response = client.post(
        reverse("admin:tenancy_deletion_changelist"),
        {"action": "restore_chosen", "_selected_action": [row.pk for row in deletions if row]},
        follow=True,
    )

    page = admin_client.get_text(response.content.decode())
    assert "2 objects restored." in page
    assert "Taken: Another object uses a name of 'Taken' now. Rename the other" in page
    assert "name_taken" in page
    assert Agent.objects.count() == 3


def test_an_auditor_sees_no_list(client: Client, acme: Organization) -> None:
    sign_in(client, acme, Role.AUDITOR)
    assert client.get(reverse("admin:tenancy_deletion_changelist")).status_code == 403
