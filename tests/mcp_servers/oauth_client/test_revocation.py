"""Unused tokens are revoked, and deleted here whatever the response is."""

import json

import pytest
from django.db import connection

from bonobot.accounts.members import remove_member
from bonobot.accounts.models import Membership
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import OAuthClient, OAuthGrant, Server
from mcp_servers.oauth_client import access_tokens, authorization_code
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import delete_server, update_server
from mcp_servers.tasks import revoke_former_members
from tests import factories
from tests.mcp_servers.oauth_client.conftest import CREDENTIALS, LOGIN, call_tool
from tests.mcp_servers.oauth_client.test_authorization_code import browser, signed_in

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def owner(organization):
    return factories.create_member(organization, Role.OWNER)


@pytest.fixture
def server(register, owner):
    registered = register(LOGIN)
    signed_in(browser(owner), registered)
    return registered


def list_revocations(protected):
    return [
        (request["token_type_hint"], request["token"])
        for request in protected.seen()["revocations"]
    ]


def list_outcomes(action="oauth_revoked"):
    rows = AuditRow.objects.filter(action=action).order_by("seq")
    return [json.loads(row.opened)["details"]["outcome"] for row in rows]


def list_tokens():
    grant = OAuthGrant.objects.get()
    return [
        ("refresh_token", grant.refresh_token.open()),
        ("access_token", grant.access_token.open()),
    ]


def test_signing_out_revokes_the_refresh_token_first(server, owner, protected):
    expected = list_tokens()
    authorization_code.sign_out(owner, server)
    assert list_revocations(protected) == expected
    assert protected.seen()["revocations"][0]["client_id"] == "registered-1"
    assert not OAuthGrant.objects.exists()
    assert list_outcomes() == ["done"]
    assert OAuthClient.objects.exists()  # the next login uses the same client
    assert not protected.seen()["unregistered"]


def test_deleting_a_server_revokes_tokens_and_deletes_the_registration(server, owner, protected):
    expected = list_tokens()
    delete_server(owner, server)
    assert list_revocations(protected) == expected
    assert protected.seen()["unregistered"] == ["Bearer manages-1"]
    assert not OAuthClient.objects.exists()
    assert list_outcomes() == ["done"]
    assert list_outcomes("oauth_unregistered") == ["done"]


def test_a_client_that_another_server_uses_is_kept(server, owner, register, protected):
    other = register(LOGIN)
    signed_in(browser(owner), other)
    delete_server(owner, server)
    assert OAuthClient.objects.exists()
    assert not protected.seen()["unregistered"]
    assert call_tool(other)


def test_a_registration_url_of_another_origin_isnt_sent_our_token(owner, register, protected):
    protected.set(managed_at="https://elsewhere.example/register/1")
    signed_in(browser(owner), register(LOGIN))
    row = OAuthClient.objects.get()
    assert (row.registration_url, bool(row.registration_token)) == ("", False)


def test_a_replaced_credential_revokes_the_tokens_of_the_old_one(
    register, administrator, protected
):
    server = register()
    call_tool(server)
    token = OAuthGrant.objects.get().access_token.open()
    new_spec = ServerSpec(
        name=server.name,
        transport_type="http",
        endpoint_config=server.endpoint_config,
        auth_config={**CREDENTIALS, "client_secret": "another"},
        allow_private=True,
    )
    update_server(administrator, server, new_spec)
    assert list_revocations(protected) == [("access_token", token)]
    (request,) = protected.seen()["revocations"]
    assert request["authorization"].startswith("Basic ")  # with the secret that it was issued for
    assert not OAuthGrant.objects.exists()


def test_an_unchanged_credential_keeps_its_tokens(register, administrator, protected):
    server = register()
    call_tool(server)
    renamed = ServerSpec(
        name="renamed",
        transport_type="http",
        endpoint_config=server.endpoint_config,
        auth_config=None,
        allow_private=True,
    )
    update_server(administrator, server, renamed)
    assert OAuthGrant.objects.exists()
    assert list_revocations(protected) == []


def test_the_tokens_of_a_removed_member_are_revoked(register, owner, organization, protected):
    server = register({**LOGIN, "per": "user"})
    people = [factories.create_member(organization, Role.MEMBER, name) for name in ("ann", "ben")]
    for person in people:
        signed_in(browser(person), server)
    assert revoke_former_members() == 0
    remove_member(owner, Membership.objects.get(user=people[0].id))
    assert revoke_former_members() == 1
    assert len(list_revocations(protected)) == 2
    assert str(OAuthGrant.objects.get().subject) == people[1].id


@pytest.mark.parametrize(
    ("behaviour", "outcome"),
    [
        ({"revocation": False}, "not_supported"),
        ({"revocation_status": 400}, "refused"),
        ({"revocation_status": 302}, "refused"),
    ],
)
def test_the_response_to_a_revocation_is_ignored(register, owner, protected, behaviour, outcome):
    protected.set(**behaviour)
    server = register(LOGIN)
    signed_in(browser(owner), server)
    authorization_code.sign_out(owner, server)
    assert not OAuthGrant.objects.exists()
    assert list_outcomes() == [outcome]


def test_an_unavailable_authorization_server_is_recorded(server, owner):
    url = "http://127.0.0.1:9/revoke"
    grant = OAuthGrant.objects.get()
    OAuthGrant.objects.update(
        authorization_server={**grant.authorization_server, "revocation_endpoint": url}
    )
    delete_server(owner, server)
    assert list_outcomes() == ["authorization_server_unreachable"]
    assert not Server.objects.exists()


def test_a_token_that_cant_be_decrypted_is_deleted_anyway(server, owner, protected):
    with connection.cursor() as cursor:
        cursor.execute("UPDATE mcp_servers_oauthgrant SET refresh_token = 'not sealed'")
    authorization_code.sign_out(owner, server)
    assert not OAuthGrant.objects.exists()
    assert list_revocations(protected) == []


def test_without_tokens_no_revocation_is_sent(register, owner, protected):
    server = register(LOGIN)
    access_tokens.get_or_create_grant(build_endpoint(server).account)
    delete_server(owner, server)
    assert list_outcomes() == []
    assert list_revocations(protected) == []
