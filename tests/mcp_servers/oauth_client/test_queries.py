"""Who is signed in where: what pages, REST and commands say, and whose task it is."""

import pytest

from bonobot.accounts.models import User
from bonobot.accounts.roles import Role
from mcp_servers.build_endpoint import build_endpoint
from mcp_servers.models import Server
from mcp_servers.oauth_client import authorization_code, grants
from mcp_servers.oauth_client.queries import list_pending_logins, load_login_statuses
from mcp_servers.oauth_client.token_requests import OAuthTokens
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest
from tests.admin_client import Desk
from tests.mcp_servers.oauth_client.conftest import LOGIN
from tests.rest import Rest

pytestmark = pytest.mark.django_db

TOKENS = OAuthTokens("an-access-token", "a-refresh-token", None, "read")


@pytest.fixture
def acme():
    return factories.create_organization()


@pytest.fixture
def people(acme):
    return {name: factories.create_member(acme, Role.OPERATOR, name) for name in ("ann", "ben")}


@pytest.fixture
def make(acme):
    def one(name: str, **auth: str) -> Server:
        return create_server(
            factories.build_administrator(acme),
            ServerSpec(
                name=name,
                transport_type="http",
                endpoint_config={"url": f"https://{name}.example.com/mcp"},
                auth_config={**LOGIN, **auth},
            ),
        )

    return one


def sign_in(server, principal=None):
    account = build_endpoint(server).account
    if principal is not None:
        account = authorization_code.build_person_account(
            account, User.objects.get(pk=principal.id).pk
        )
    grants.store_tokens(
        grants.get_or_create_grant(account), None, TOKENS, issuer="https://as.example.com"
    )


def named(principal):
    return [server.name for server, _presence in list_pending_logins(principal, 8)]


def test_a_missing_personal_login_is_a_task_of_that_person(make, people, acme):
    each, common = make("each", per="user"), make("common")
    make("plain", grant="client_credentials", client_id="c", client_secret="s")
    ann, ben = people["ann"], people["ben"]
    member = factories.create_member(acme, Role.MEMBER)
    auditor = factories.create_member(acme, Role.AUDITOR)
    assert named(ann) == ["common", "each"]
    assert named(member) == ["each"]  # the organization's is for who manages servers
    assert named(auditor) == []
    assert named(factories.build_administrator(acme)) == ["common"]  # a command is no person
    sign_in(each, ann)
    sign_in(common)
    assert (named(ann), named(ben), named(member)) == ([], ["each"], ["each"])


def test_sign_in_states_take_one_query(make, people, django_assert_num_queries):
    servers = [make(f"s{number}", per="user") for number in range(5)]
    sign_in(servers[0], people["ann"])
    with django_assert_num_queries(1):
        found = load_login_statuses(people["ann"], servers)
    assert [found[one.pk].state for one in servers] == ["signed_in", *["needed"] * 4]


def test_the_dashboard_links_each_person_to_their_missing_logins(make, people):
    each = make("each", per="user")
    sign_in(each, people["ben"])
    pages = {}
    for name, one in people.items():
        User.objects.filter(pk=one.id).update(is_staff=True)
        pages[name] = Desk(User.objects.get(pk=one.id)).open("/admin/")
    assert f"/oauth/start/{each.pk}" in pages["ann"]
    assert "Sign in to each" in pages["ann"]
    assert "/oauth/start/" not in pages["ben"]


def test_rest_returns_the_sign_in_state_of_the_caller(make, people, acme):
    each = make("each", per="user")
    sign_in(each, people["ann"])
    path = f"/api/mcp-servers/{each.pk}"
    seen = {
        name: Rest(user=User.objects.get(pk=one.id)).get(path).json["sign_in"]
        for name, one in people.items()
    }
    assert (seen["ann"]["state"], seen["ann"]["issuer"]) == ("signed_in", "https://as.example.com")
    assert (seen["ben"]["state"], seen["ben"]["issuer"]) == ("needed", "")
    assert seen["ben"]["url"].endswith(f"/oauth/start/{each.pk}")
    token = rest.as_role(acme, Role.OPERATOR).get(path).json["sign_in"]
    assert (token["state"], token["people"]) == ("personal", 1)
    said = rest.as_role(acme, Role.OPERATOR).get(path).text
    assert "an-access-token" not in said


def test_rest_returns_no_sign_in_for_servers_without_login(make, acme):
    plain = make("plain", grant="client_credentials", client_id="c", client_secret="s")
    shown = rest.as_role(acme, Role.OPERATOR).get(f"/api/mcp-servers/{plain.pk}")
    assert shown.json["sign_in"] is None
