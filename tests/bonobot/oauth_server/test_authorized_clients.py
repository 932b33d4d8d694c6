"""What was let in is seen and ended: by the person who did, and by who manages tokens."""

from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from oauth2_provider.models import Application, RefreshToken

from agents.models import Agent
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from tests import admin_client, factories
from tests.admin_client import Desk, words
from tests.agents.gateway.conftest import Wire
from tests.bonobot.oauth_server.oauth_client import HERE, Program
from tests.bonobot.oauth_server.test_refusals import opens

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ide(olga: User, helper: Agent) -> Program:
    return Program(olga, client_name="Notebook")


@pytest.fixture
def other(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.MEMBER, "oscar").id)


def test_a_person_lists_and_revokes_their_authorized_clients(
    acme: Organization, olga: User, ide: Program, wire: Wire
) -> None:
    tokens, seat = ide.let_in(), Desk(olga)
    page = words(seat.get("let_in"))
    for said in ("Notebook", acme.name, HERE, "helper", "last used"):
        assert said in page, said
    grant = Token.objects.get(user=olga)
    seat.post("let_in", grant=grant.pk)
    assert "Notebook" in seat.messages[0]
    assert not opens(wire, tokens["access_token"])
    assert ide.refresh(tokens["refresh_token"]).status_code == 400
    row = AuditRow.objects.get(action="token_revoked")
    assert (row.actor_label, row.resource_id) == ("olga", str(grant.pk))
    assert "You haven't authorized any OAuth clients." in words(seat.get("let_in"))


def test_a_person_cant_revoke_the_clients_of_another_person(
    ide: Program, other: User, wire: Wire
) -> None:
    tokens, seat = ide.let_in(), Desk(other)
    assert "Notebook" not in words(seat.get("let_in"))
    for grant in (Token.objects.get(user__isnull=False).pk, "x", ""):
        seat.post("let_in", grant=grant, status=404)
    assert opens(wire, tokens["access_token"])


def test_the_user_menu_links_to_the_authorized_clients(olga: User) -> None:
    assert admin_client.links(Desk(olga).get("agents_agent_changelist"), admin_client.url("let_in"))


def test_the_page_uses_the_same_number_of_queries_for_many_clients(
    ide: Program, olga: User, django_assert_max_num_queries: Any
) -> None:
    seat = Desk(olga)
    ide.let_in()
    seat.get("let_in")
    with CaptureQueriesContext(connection) as few:
        seat.get("let_in")
    once = len(few)
    for _ in range(3):
        Program(olga).let_in()
    with django_assert_max_num_queries(once):
        seat.get("let_in")


def test_rest_lists_and_revokes_only_a_persons_own_clients(
    ide: Program, olga: User, other: User, wire: Wire
) -> None:
    tokens = ide.let_in()
    theirs, mine = Client(), Client()
    theirs.force_login(other)
    mine.force_login(olga)
    [listed] = mine.get("/api/authorized-clients").json()["results"]
    assert (listed["client"], listed["given_by"], listed["kind"]) == ("Notebook", "olga", "grant")
    assert theirs.get("/api/authorized-clients").json()["results"] == []
    assert theirs.delete(f"/api/authorized-clients/{listed['id']}").status_code == 404
    assert opens(wire, tokens["access_token"])
    assert mine.delete(f"/api/authorized-clients/{listed['id']}").status_code == 204
    assert not opens(wire, tokens["access_token"])
    assert mine.delete(f"/api/authorized-clients/{listed['id']}").status_code == 404


# --- those of the organization


def test_an_owner_lists_the_clients_and_deletes_one(
    acme: Organization, ide: Program, helper: Agent, other: User, wire: Wire
) -> None:
    helper.members.add(other)
    seat = Desk(User.objects.get(username="owner"))
    ide.browser.force_login(other)
    second = ide.let_in()
    first = Program(User.objects.get(username="olga"), client_name="Desktop").let_in()
    page = words(seat.get("programs"))
    for said in ("Notebook", "oscar", "Desktop", "olga", "registered"):
        assert said in page, said
    seat.post("programs", program=ide.id)
    assert not opens(wire, second["access_token"])
    assert opens(wire, first["access_token"])
    assert not Application.objects.filter(client_id=ide.id).exists()
    assert not RefreshToken.objects.filter(application__client_id=ide.id).exists()
    assert "Notebook" not in words(seat.get("programs"))
    removed = AuditRow.objects.get(action="program_removed")
    assert (removed.resource_id, removed.resource_name) == (ide.id, "Notebook")


def test_a_client_that_another_organization_authorized_stays_registered(
    acme: Organization, ide: Program, wire: Wire
) -> None:
    seat, elsewhere = (
        Desk(User.objects.get(username="owner")),
        factories.create_organization("other"),
    )
    ide.let_in()
    factories.create_agent(elsewhere, "helper")
    stranger = User.objects.get(pk=factories.create_member(elsewhere, Role.OPERATOR, "olaf").id)
    ide.browser.force_login(stranger)
    tokens = ide.let_in()
    assert "olaf" not in words(seat.get("programs"))
    seat.post("programs", program=ide.id)
    assert Application.objects.filter(client_id=ide.id).exists()
    assert ide.refresh(tokens["refresh_token"]).status_code == 200
    seat.post("programs", program=ide.id, status=404)


def test_only_roles_that_manage_tokens_see_the_clients(ide: Program, olga: User) -> None:
    ide.let_in()
    Desk(olga).get("programs", status=403)
    Desk(olga).post("programs", program=ide.id, status=403)
    assert Token.objects.active().filter(user=olga).exists()


def test_an_empty_page_explains_how_clients_are_added(acme: Organization, olga: User) -> None:
    owner = Desk(User.objects.get(username="owner"))
    assert "No authorized OAuth clients." in words(owner.get("programs"))
    assert "You haven't authorized any OAuth clients." in words(owner.get("let_in"))


def test_texts_of_clients_are_shown_as_unverified(olga: User, helper: Agent) -> None:
    program = Program(olga, client_name="<b>IDE</b>\u202e")
    program.let_in()
    page = Desk(olga).open(reverse("admin:let_in"))
    assert "<b>IDE</b>" not in page
    assert "\u202e" not in page
