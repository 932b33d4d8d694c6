"""Servers with personal sign-ins: the gateway uses only the tokens of the calling person."""

import hashlib
from dataclasses import replace
from uuid import UUID, uuid4

import pytest

from agents.calls.connections import find_user_id
from agents.calls.pipeline import CallRequest, make_call
from agents.sessions.services import send_message, start_session
from bonobot.accounts.models import Membership, User
from bonobot.accounts.principals import Principal, build_token_principal
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.health.check_servers import check_server
from mcp_servers.models import OAuthGrant, Server
from mcp_servers.oauth_client.access_tokens import build_person_endpoint, get_or_create_grant
from tests import factories
from tests.mcp_servers.oauth_client.conftest import LOGIN, call_tool
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def people(organization):
    return [factories.create_member(organization, Role.OWNER, name) for name in ("ann", "ben")]


def build_session_principal(principal, agent, *speakers):
    """Return the principal of a session that `principal` started and `speakers` write to."""
    session = start_session(principal, agent, "hello")
    for speaker in speakers:
        send_message(speaker, session, "and then")
    return Principal(
        kind="session",
        id=str(session.pk),
        label=principal.label,
        organization_id=session.organization_id,
        role=Role.MEMBER,
        agent_ids=frozenset({agent.pk}),
    )


@pytest.fixture
def server(register, people, administrator):
    registered = register({**LOGIN, "per": "user"})
    signed_in(browser(people[0]), registered)
    get_runtime().call(run_discovery, registered.pk, actor=administrator.actor)
    approve_definitions(administrator, registered)
    return registered


def call_whoami(principal, server):
    request = CallRequest(
        principal=principal,
        tool="whoami",
        arguments={},
        via="rest",
        holder=f"server:{server.pk}:{principal.id}",
        server_id=server.pk,
    )
    return get_runtime().call(make_call, request)


def test_the_gateway_uses_the_tokens_of_the_calling_person(server, people):
    ann, ben = people
    outcome = call_whoami(ann, server)
    token = OAuthGrant.objects.get(subject=ann.id).access_token.open()
    assert outcome.text == hashlib.sha256(token.encode()).hexdigest()
    assert call_whoami(ben, server).code == "needs_reauth"


def test_a_token_isnt_a_person(server, administrator):
    outcome = call_whoami(administrator, server)
    assert (outcome.outcome, outcome.code) == ("error", "needs_reauth")


def test_no_principal_can_use_the_login_of_another_person(
    organization, people, administrator, server
):
    ann, ben = people
    agent = factories.create_agent(organization)
    session = build_session_principal(ann, agent)
    token, _text = create_token(ben, name="t", role=Role.OWNER)
    elsewhere = factories.create_member(factories.create_organization("other"), Role.OWNER, "carl")
    cases = {
        "ann": (ann, None, "ann"),
        "ann within a session": (ann, UUID(session.id), "ann"),
        "her session": (session, UUID(session.id), "ann"),
        "her session, asking as another": (session, uuid4(), None),
        "her session, asking as none": (session, None, None),
        "her session, from elsewhere": (
            replace(session, organization_id=elsewhere.organization_id),
            UUID(session.id),
            None,
        ),
        "the session of another": (build_session_principal(ben, agent), None, "ben"),
        "her session, written to by another": (
            build_session_principal(ann, agent, ben),
            None,
            None,
        ),
        "another's, written to by her": (build_session_principal(ben, agent, ann), None, None),
        "her session, written to by a command": (
            build_session_principal(ann, agent, administrator),
            None,
            None,
        ),
        "a session of a command": (build_session_principal(administrator, agent), None, None),
        "ben": (ben, UUID(session.id), "ben"),
        "a token": (build_token_principal(token), UUID(session.id), None),
        "a command": (administrator, UUID(session.id), None),
    }
    names = {UUID(person.id): person.label for person in people}
    for name, (principal, session_id, expected) in cases.items():
        if principal.kind == "session" and session_id is None and "none" not in name:
            session_id = UUID(principal.id)
        user_id = find_user_id(principal, session_id)
        assert names.get(user_id) == expected, name
    Membership.objects.filter(user=ann.id).delete()
    assert find_user_id(session, UUID(session.id)) is None  # a removed member has no login


def test_a_discovery_by_a_person_uses_their_login_and_keeps_the_servers_state(server, people):
    ann, ben = people
    get_runtime().call(run_discovery, server.pk, actor=ann.actor)
    with pytest.raises(Problem) as caught:
        get_runtime().call(run_discovery, server.pk, actor=ben.actor)
    assert caught.value.code == "needs_reauth"
    assert f"/oauth/start/{server.pk}" in caught.value.remedy
    server.refresh_from_db()
    assert server.status == Server.Status.CONNECTED
    assert call_whoami(ben, server).code == "needs_reauth"
    server.refresh_from_db()
    assert server.status == Server.Status.CONNECTED


def test_a_background_check_uses_any_valid_login(server, people, protected):
    ann, ben = people
    signed_in(browser(ben), server)
    OAuthGrant.objects.filter(subject=ben.id).update(access_token="", refresh_token="")
    get_runtime().call(
        check_server, server.pk
    )  # the person who signed in last has to sign in again
    server.refresh_from_db()
    assert server.status == Server.Status.CONNECTED
    Membership.objects.filter(user=ann.id).delete()
    with pytest.raises(Problem) as caught:
        get_runtime().call(check_server, server.pk)  # no login is left: everybody has to sign in
    assert caught.value.code == "needs_reauth"
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    signed_in(browser(ben), server)
    server.refresh_from_db()
    assert server.status == Server.Status.DISCONNECTED


def test_the_server_page_links_to_the_sign_in(register, organization):
    server = register(LOGIN)
    owner = factories.create_member(organization, Role.OWNER)
    User.objects.update(is_staff=True)
    client = browser(owner)
    page = client.get(f"/admin/mcp-servers/{server.pk}/change/")
    assert page.status_code == 200
    assert f"/oauth/start/{server.pk}" in page.content.decode()
    signed_in(client, server)
    page = client.get(f"/admin/mcp-servers/{server.pk}/change/")
    assert "Sign in again" in page.content.decode()
    grant = OAuthGrant.objects.get()
    assert grant.access_token.open() not in page.content.decode()


def test_signing_out_applies_to_the_next_call(register, organization):
    server = register(LOGIN)
    client = browser(factories.create_member(organization, Role.OWNER))
    User.objects.update(is_staff=True)
    signed_in(client, server)
    assert call_tool(server)
    client.post(f"/admin/mcp-servers/{server.pk}/sign-out/")
    server.refresh_from_db()
    assert server.status == Server.Status.NEEDS_REAUTH
    with pytest.raises(Problem) as caught:
        call_tool(server)
    assert caught.value.code == "needs_reauth"
    assert AuditRow.objects.filter(action="oauth_disconnected").count() == 1


def test_only_roles_that_manage_servers_can_sign_the_organization_out(register, organization):
    server = register(LOGIN)
    signed_in(browser(factories.create_member(organization, Role.OWNER)), server)
    auditor = browser(factories.create_member(organization, Role.AUDITOR))
    User.objects.update(is_staff=True)
    auditor.post(f"/admin/mcp-servers/{server.pk}/sign-out/")
    assert OAuthGrant.objects.exclude(access_token="").exists()


def test_a_server_that_was_deleted_meanwhile_accepts_no_login(server, people):
    endpoint = build_person_endpoint(build_endpoint(server), UUID(people[1].id))
    server.delete()
    with pytest.raises(Server.DoesNotExist):
        get_or_create_grant(endpoint.account)
