"""Sign-in states on pages, over REST and on the command line, and pending logins."""

import pytest

from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import Server
from mcp_servers.oauth_client import access_tokens, authorization_code
from mcp_servers.oauth_client.login_status import list_pending_logins, load_login_statuses
from mcp_servers.oauth_client.token_requests import OAuthTokens
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest
from tests.admin_client import AdminClient
from tests.mcp_servers.oauth_client.conftest import LOGIN
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

TOKENS = OAuthTokens("an-access-token", "a-refresh-token", None, "read")


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def people(acme):
    return {name: factories.create_member(acme, Role.OPERATOR, name) for name in ("ann", "ben")}


@pytest.fixture
def add_server(acme):
    def register_server(name: str, **auth: str) -> Server:
        return create_server(
            factories.build_administrator(acme),
            ServerSpec(
                name=name,
                transport_type="http",
                endpoint_config={"url": f"https://{name}.example.com/mcp"},
                auth_config={**LOGIN, **auth},
            ),
        )

    return register_server


def sign_in(server, principal=None):
    account = build_endpoint(server).account
    if principal is not None:
        account = authorization_code.build_person_account(
            account, User.objects.get(pk=principal.id).pk
        )
    access_tokens.store_tokens(
        access_tokens.get_or_create_grant(account), None, TOKENS, issuer="https://as.example.com"
    )


def list_pending_names(principal):
    return [server.name for server, _presence in list_pending_logins(principal, 8)]


def test_a_missing_personal_login_is_a_task_of_that_person(add_server, people, acme):
    personal, shared = add_server("each", per="user"), add_server("common")
    add_server("plain", grant="client_credentials", client_id="c", client_secret="s")
    ann, ben = people["ann"], people["ben"]
    member = factories.create_member(acme, Role.MEMBER)
    auditor = factories.create_member(acme, Role.AUDITOR)
    assert list_pending_names(ann) == ["common", "each"]
    assert list_pending_names(member) == [
        "each"
    ]  # the organization's login is for roles that manage servers
    assert list_pending_names(auditor) == []
    assert list_pending_names(factories.build_administrator(acme)) == [
        "common"
    ]  # the command line isn't a person
    sign_in(personal, ann)
    sign_in(shared)
    assert (list_pending_names(ann), list_pending_names(ben), list_pending_names(member)) == (
        [],
        ["each"],
        ["each"],
    )


def test_sign_in_states_take_one_query(add_server, people, django_assert_num_queries):
    servers = [add_server(f"s{number}", per="user") for number in range(5)]
    sign_in(servers[0], people["ann"])
    with django_assert_num_queries(1):
        statuses = load_login_statuses(people["ann"], servers)
    assert [statuses[server.pk].state for server in servers] == ["signed_in", *["needed"] * 4]


def test_the_dashboard_links_each_person_to_their_missing_logins(add_server, people):
    personal = add_server("each", per="user")
    sign_in(personal, people["ben"])
    pages = {}
    for name, person in people.items():
        User.objects.filter(pk=person.id).update(is_staff=True)
        pages[name] = AdminClient(User.objects.get(pk=person.id)).open("/admin/")
    assert f"/oauth/start/{personal.pk}" in pages["ann"]
    assert "Sign in to each" in pages["ann"]
    assert "/oauth/start/" not in pages["ben"]


def test_rest_returns_the_sign_in_state_of_the_caller(add_server, people, acme):
    personal = add_server("each", per="user")
    sign_in(personal, people["ann"])
    path = f"/api/mcp-servers/{personal.pk}"
    states = {
        name: RestClient(user=User.objects.get(pk=person.id)).get(path).json["sign_in"]
        for name, person in people.items()
    }
    assert (states["ann"]["state"], states["ann"]["issuer"]) == (
        "signed_in",
        "https://as.example.com",
    )
    assert (states["ben"]["state"], states["ben"]["issuer"]) == ("needed", "")
    assert states["ben"]["url"].endswith(f"/oauth/start/{personal.pk}")
    token = rest.as_role(acme, Role.OPERATOR).get(path).json["sign_in"]
    assert (token["state"], token["people"]) == ("personal", 1)
    text = rest.as_role(acme, Role.OPERATOR).get(path).text
    assert "an-access-token" not in text


def test_rest_returns_no_sign_in_for_servers_without_login(add_server, acme):
    plain = add_server("plain", grant="client_credentials", client_id="c", client_secret="s")
    response = rest.as_role(acme, Role.OPERATOR).get(f"/api/mcp-servers/{plain.pk}")
    assert response.json["sign_in"] is None
