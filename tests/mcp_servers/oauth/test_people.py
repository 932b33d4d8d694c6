"""Servers that each person signs in to: the door uses the tokens of who asks, and no others."""

import hashlib

import pytest

from agents.calls import Request, call
from agents.people import person_behind
from agents.sessions.requests import start
from bonobot.ledger.models import AuditRow
from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.tenancy.models import User
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Role
from mcp_servers.approval import approve
from mcp_servers.discovery import discover
from mcp_servers.models import OAuthGrant, Server
from tests.agents import casting
from tests.mcp_servers.oauth.conftest import LOGIN, ask
from tests.mcp_servers.oauth.test_login import browser, signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def people(organization):
    return [casting.person(organization, Role.OWNER, name) for name in ("ann", "ben")]


@pytest.fixture
def server(register, people, boss):
    made = register({**LOGIN, "per": "user"})
    signed_in(browser(people[0]), made)
    runtime().call(discover, made.pk, actor=boss.actor)
    approve(boss, made)
    return made


def whoami(principal, server):
    request = Request(
        principal=principal,
        tool="whoami",
        arguments={},
        via="rest",
        holder=f"server:{server.pk}:{principal.id}",
        server_id=server.pk,
    )
    return runtime().call(call, request)


def test_the_door_uses_the_tokens_of_who_asks(server, people):
    ann, ben = people
    outcome = whoami(ann, server)
    token = OAuthGrant.objects.get(subject=ann.id).access_token.open()
    assert outcome.text == hashlib.sha256(token.encode()).hexdigest()
    assert whoami(ben, server).code == "needs_reauth"


def test_a_token_of_ours_is_no_person(server, boss):
    outcome = whoami(boss, server)
    assert (outcome.outcome, outcome.code) == ("error", "needs_reauth")


def test_behind_a_session_is_who_started_it(organization, people):
    session = start(people[0], casting.agent(organization), "hello")
    asks = Principal(
        kind="session",
        id=str(session.pk),
        label="ann",
        organization_id=organization.pk,
        role=Role.MEMBER,
    )
    assert person_behind(asks, session.pk) == User.objects.get(pk=people[0].id).pk
    assert person_behind(asks, None) is None


def test_the_page_of_the_server_has_the_way_to_sign_in(register, organization):
    server = register(LOGIN)
    owner = casting.person(organization, Role.OWNER)
    User.objects.update(is_staff=True)
    client = browser(owner)
    page = client.get(f"/admin/mcp_servers/server/{server.pk}/change/")
    assert page.status_code == 200
    assert f"/oauth/start/{server.pk}" in page.content.decode()
    signed_in(client, server)
    page = client.get(f"/admin/mcp_servers/server/{server.pk}/change/")
    assert "Sign in again" in page.content.decode()
    grant = OAuthGrant.objects.get()
    assert grant.access_token.open() not in page.content.decode()


def test_signing_out_holds_on_the_very_next_call(register, organization):
    server = register(LOGIN)
    client = browser(casting.person(organization, Role.OWNER))
    User.objects.update(is_staff=True)
    signed_in(client, server)
    assert ask(server)
    client.post(f"/admin/mcp_servers/server/{server.pk}/sign-out/")
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    with pytest.raises(Problem) as caught:
        ask(server)
    assert caught.value.code == "needs_reauth"
    assert AuditRow.objects.filter(action="oauth_disconnected").count() == 1


def test_only_who_manages_servers_signs_the_organization_out(register, organization):
    server = register(LOGIN)
    signed_in(browser(casting.person(organization, Role.OWNER)), server)
    auditor = browser(casting.person(organization, Role.AUDITOR))
    User.objects.update(is_staff=True)
    auditor.post(f"/admin/mcp_servers/server/{server.pk}/sign-out/")
    assert OAuthGrant.objects.exclude(access_token="").exists()
