"""Authorized clients are listed and revoked by their person and by those who manage tokens."""

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
from tests.admin_client import AdminClient, get_text
from tests.agents.gateway.conftest import GatewayClient
from tests.bonobot.oauth_server.oauth_client import RESOURCE, OAuthClient
from tests.bonobot.oauth_server.test_refusals import is_valid

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def ide(olga: User, helper: Agent) -> OAuthClient:
    return OAuthClient(olga, client_name="Notebook")


@pytest.fixture
def other(acme: Organization) -> User:
    return User.objects.get(pk=factories.create_member(acme, Role.MEMBER, "oscar").id)


def test_a_person_lists_and_revokes_their_authorized_clients(
    acme: Organization, olga: User, ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    tokens, browser = ide.authorize(), AdminClient(olga)
    page = get_text(browser.get("authorized_clients"))
    for text in ("Notebook", acme.name, RESOURCE, "helper", "last used"):
        assert text in page, text
    grant = Token.objects.get(user=olga)
    browser.post("authorized_clients", grant=grant.pk)
    assert "Notebook" in browser.messages[0]
    assert not is_valid(gateway_client, tokens["access_token"])
    assert ide.refresh(tokens["refresh_token"]).status_code == 400
    row = AuditRow.objects.get(action="token_revoked")
    assert (row.actor_label, row.resource_id) == ("olga", str(grant.pk))
    assert "You haven't authorized any OAuth clients." in get_text(
        browser.get("authorized_clients")
    )


def test_a_person_cant_revoke_the_clients_of_another_person(
    ide: OAuthClient, other: User, gateway_client: GatewayClient
) -> None:
    tokens, browser = ide.authorize(), AdminClient(other)
    assert "Notebook" not in get_text(browser.get("authorized_clients"))
    for grant in (Token.objects.get(user__isnull=False).pk, "x", ""):
        browser.post("authorized_clients", grant=grant, status=404)
    assert is_valid(gateway_client, tokens["access_token"])


def test_the_user_menu_links_to_the_authorized_clients(olga: User) -> None:
    assert admin_client.find_links(
        AdminClient(olga).get("agents_agent_changelist"),
        admin_client.build_url("authorized_clients"),
    )


def test_the_page_uses_the_same_number_of_queries_for_many_clients(
    ide: OAuthClient, olga: User, django_assert_max_num_queries: Any
) -> None:
    browser = AdminClient(olga)
    ide.authorize()
    browser.get("authorized_clients")
    with CaptureQueriesContext(connection) as queries:
        browser.get("authorized_clients")
    query_count = len(queries)
    for _ in range(3):
        OAuthClient(olga).authorize()
    with django_assert_max_num_queries(query_count):
        browser.get("authorized_clients")


def test_rest_lists_and_revokes_only_a_persons_own_clients(
    ide: OAuthClient, olga: User, other: User, gateway_client: GatewayClient
) -> None:
    tokens = ide.authorize()
    other_client, client = Client(), Client()
    other_client.force_login(other)
    client.force_login(olga)
    [row] = client.get("/api/authorized-clients").json()["results"]
    assert (row["client"], row["authorized_by"], row["kind"]) == ("Notebook", "olga", "grant")
    assert other_client.get("/api/authorized-clients").json()["results"] == []
    assert other_client.delete(f"/api/authorized-clients/{row['id']}").status_code == 404
    assert is_valid(gateway_client, tokens["access_token"])
    assert client.delete(f"/api/authorized-clients/{row['id']}").status_code == 204
    assert not is_valid(gateway_client, tokens["access_token"])
    assert client.delete(f"/api/authorized-clients/{row['id']}").status_code == 404


# --- clients of the organization


def test_an_owner_lists_the_clients_and_deletes_one(
    acme: Organization, ide: OAuthClient, helper: Agent, other: User, gateway_client: GatewayClient
) -> None:
    helper.members.add(other)
    browser = AdminClient(User.objects.get(username="owner"))
    ide.browser.force_login(other)
    second = ide.authorize()
    first = OAuthClient(User.objects.get(username="olga"), client_name="Desktop").authorize()
    page = get_text(browser.get("oauth_clients"))
    for text in ("Notebook", "oscar", "Desktop", "olga", "registered"):
        assert text in page, text
    browser.post("oauth_clients", program=ide.id)
    assert not is_valid(gateway_client, second["access_token"])
    assert is_valid(gateway_client, first["access_token"])
    assert not Application.objects.filter(client_id=ide.id).exists()
    assert not RefreshToken.objects.filter(application__client_id=ide.id).exists()
    assert "Notebook" not in get_text(browser.get("oauth_clients"))
    row = AuditRow.objects.get(action="oauth_client_deleted")
    assert (row.resource_id, row.resource_name) == (ide.id, "Notebook")


def test_a_client_that_another_organization_authorized_stays_registered(
    acme: Organization, ide: OAuthClient, gateway_client: GatewayClient
) -> None:
    browser, other_organization = (
        AdminClient(User.objects.get(username="owner")),
        factories.create_organization("other"),
    )
    ide.authorize()
    factories.create_agent(other_organization, "helper")
    other_user = User.objects.get(
        pk=factories.create_member(other_organization, Role.OPERATOR, "olaf").id
    )
    ide.browser.force_login(other_user)
    tokens = ide.authorize()
    assert "olaf" not in get_text(browser.get("oauth_clients"))
    browser.post("oauth_clients", program=ide.id)
    assert Application.objects.filter(client_id=ide.id).exists()
    assert ide.refresh(tokens["refresh_token"]).status_code == 200
    browser.post("oauth_clients", program=ide.id, status=404)


def test_only_roles_that_manage_tokens_see_the_clients(ide: OAuthClient, olga: User) -> None:
    ide.authorize()
    AdminClient(olga).get("oauth_clients", status=403)
    AdminClient(olga).post("oauth_clients", program=ide.id, status=403)
    assert Token.objects.active().filter(user=olga).exists()


def test_an_empty_page_explains_how_clients_are_added(acme: Organization, olga: User) -> None:
    owner = AdminClient(User.objects.get(username="owner"))
    assert "No authorized OAuth clients." in get_text(owner.get("oauth_clients"))
    assert "You haven't authorized any OAuth clients." in get_text(owner.get("authorized_clients"))


def test_texts_of_clients_are_shown_as_unverified(olga: User, helper: Agent) -> None:
    oauth_client = OAuthClient(olga, client_name="<b>IDE</b>\u202e")
    oauth_client.authorize()
    page = AdminClient(olga).open(reverse("admin:authorized_clients"))
    assert "<b>IDE</b>" not in page
    assert "\u202e" not in page
