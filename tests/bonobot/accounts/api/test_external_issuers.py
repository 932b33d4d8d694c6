"""External issuers over REST: permissions and validation."""

import pytest

from bonobot.accounts.models import Issuer, Organization
from bonobot.accounts.roles import Role
from bonobot.ledger.models import AuditRow
from bonobot.ledger.policy_generations import load_policy_generation
from tests import factories, rest
from tests.rest import RestClient

pytestmark = pytest.mark.django_db

LOGIN = {"name": "Login", "url": "https://login.example.com"}


@pytest.fixture
def acme() -> Organization:
    return factories.create_organization()


@pytest.fixture
def root(acme: Organization) -> RestClient:
    return rest.as_administrator()


def test_a_platform_administrator_creates_updates_and_deletes_an_issuer(acme, root):
    factories.create_agent(acme)
    data = {"agents": ["helper"], "roles": {"ops": "operator"}, "role_claim": "groups"}
    response = root.post("external-issuers", LOGIN | data)
    assert response.status == 201, response
    assert (response.json["role"], response.json["scope_claim"]) == ("member", "scope")
    address, before = f"external-issuers/{response.json['id']}", load_policy_generation(acme.pk)
    changed = root.patch(address, {"scopes": ["mcp:tools"], "enabled": False})
    assert (changed.json["scopes"], changed.json["enabled"]) == (["mcp:tools"], False)
    assert changed.json["agents"] == response.json["agents"] != []
    assert load_policy_generation(acme.pk) > before
    assert root.get("external-issuers").json["results"] == [changed.json]
    assert root.delete(address).status == 204
    actions = AuditRow.objects.filter(resource_type="issuer").order_by("seq")
    assert [row.action for row in actions] == [
        "external_issuer_created",
        "external_issuer_updated",
        "external_issuer_deleted",
    ]


def test_an_owner_cant_manage_external_issuers(acme, root):
    response = rest.as_role(acme, Role.OWNER).post("external-issuers", LOGIN)
    assert (response.status, response.json["rule"]) == (403, "role:manage_issuers")


@pytest.mark.parametrize(
    ("data", "code", "field"),
    [
        ({"url": "http://login.example.com"}, "bad_url", "url"),
        ({"url": "https://127.0.0.1"}, "private_address", "url"),
        ({"url": "ldap://login.example.com", "allow_private": True}, "bad_url", "url"),
        ({"role": ""}, "invalid", "role"),
        ({"role": "king"}, "invalid", "role"),
        ({"scopes": ["api"]}, "invalid", "scopes"),
        ({"agents": ["nobody"]}, "not_found", "agents"),
        ({"subject_claim": ""}, "invalid", "subject_claim"),
    ],
)
def test_invalid_values_are_refused_at_their_field(acme, root, data, code, field):
    response = root.post("external-issuers", LOGIN | data)
    assert (response.status // 100, response.code) == (4, code), response
    assert response.json["field"].partition("[")[0].partition(".")[0] == field.partition("[")[0]
    assert not Issuer.objects.exists()


def test_an_issuer_belongs_to_one_organization(acme, root):
    factories.create_issuer(factories.create_organization("other"), LOGIN["url"])
    conflict = root.post("external-issuers", LOGIN)
    assert (conflict.status, conflict.code) == (409, "issuer_taken")


def test_an_issuer_that_doesnt_respond_is_reported(acme, root):
    issuer = factories.create_issuer(acme, "http://127.0.0.1:9", allow_private=True)
    check = root.post(f"external-issuers/{issuer.pk}/check")
    assert (check.status, check.code) == (503, "issuer_unreachable")
