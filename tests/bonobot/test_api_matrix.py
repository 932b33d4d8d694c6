"""Each route × method × role, and each ID of another organization, generated from the routes.

A route without a rule for one of its methods fails, and so does a route whose response for an
object of another organization differs from that for a missing one.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple
from uuid import uuid4

import pytest
import pytest_django
from django.db import transaction
from django.urls import URLPattern, URLResolver, get_resolver

from agents.models import Agent, Approval, ModelEndpoint, Session, SessionApproval
from bonobot.accounts.api.resource_view import ResourceView, list_required_actions
from bonobot.accounts.models import Organization, Token, User
from bonobot.accounts.roles import Role, may
from bonobot.api_urls import RENAMED_PATHS
from bonobot.api_urls import urlpatterns as api_urlpatterns
from bonobot.ledger.models import AuditRow
from bonobot.notifications.models import Notification, NotificationChannel
from mcp_servers.models import Definition, Server
from tests import admin_client, factories, rest
from tests.inventory import create_everything
from tests.screens import share_rows
from tests.selection import WHOLE

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ROLES = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)
# Owners may do all that the roles between them and members may; the whole suite tries these, too.
WIDEST_ROLES = ROLES if WHOLE else (Role.OWNER, Role.MEMBER)


def list_routes(
    patterns: Any = api_urlpatterns,
) -> Iterator[tuple[str, type[ResourceView]]]:
    """Yield every route below /api/ with its view."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from list_routes(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if isinstance(view, type) and issubclass(view, ResourceView):
                yield str(pattern.pattern), view


ROUTES = dict(list_routes())
OPERATIONS = [
    (route, method)
    for route, view in ROUTES.items()
    for method in METHODS
    if hasattr(view, method.lower())
]
NAMED = [(route, method) for route, method in OPERATIONS if "<" in route]


def list_path_parameters(route: str) -> list[str]:
    return re.findall(r"<str:(\w+)>", route)


def fill_path(route: str, values: dict[str, str]) -> str:
    return re.sub(r"<str:(\w+)>", lambda match: values[match[1]], route)


class FilledOrganizations(NamedTuple):
    """Two organizations with one of everything, and the IDs by the names of path parameters."""

    acme: Organization
    own: dict[str, str]
    foreign: dict[str, str]


@pytest.fixture(scope="module")
def shared_organizations(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[FilledOrganizations]:
    """Fill two organizations for all tests of this module."""
    with share_rows(django_db_blocker):
        acme = factories.create_organization()
        yield FilledOrganizations(
            acme, create_everything(acme), create_everything(factories.create_organization("other"))
        )


@pytest.fixture
def organizations(shared_organizations: FilledOrganizations) -> Iterator[FilledOrganizations]:
    """Return the two organizations; changes are rolled back after the test."""
    with transaction.atomic():
        yield shared_organizations
        transaction.set_rollback(True)


def test_the_table_of_paths_is_complete():
    assert len(OPERATIONS) > 50
    assert ("agents/<str:agent_id>/mcp-servers/<str:server_id>", "PUT") in NAMED


# Paths that belong to no organization, and why; all others are tested by ID and role.
OPEN = {
    "": "redirects to the admin",
    "docs": "redirects to the documentation",
    "docs/": "the documentation, the same for everybody who is signed in",
    "docs/<path:name>": "pages and images of the documentation",
    "api/schema": "the OpenAPI document, the same for everybody",
    "api/docs": "pages of the OpenAPI document",
    "api/": "every other path below /api/, which returns 404",
    "oauth/callback": "identified by a state that is bound to the person who started",
    "oauth/client-metadata.json": "our metadata for authorization servers",
    ".well-known/oauth-authorization-server": "our metadata for OAuth clients",
    "oauth/authorize": "for the signed-in person; tests/bonobot/oauth_server",
    "oauth/token": "identified by a code or a token of the client; tests/bonobot/oauth_server",
    "oauth/revoke": "identified by a token of the client; tests/bonobot/oauth_server",
    "oauth/register": "without objects; tests/bonobot/oauth_server",
    "healthz": "liveness of the process",
    "readyz": "readiness of the installation, without objects",
    **{
        f"registry/<slug:slug>/v0.1/servers{path}": "tests/agents/gateway/test_server_registry.py"
        for path in ("", "/<path:name>/versions", "/<path:name>/versions/<str:version>")
    },
    ".well-known/mcp/catalog.json": "tests/agents/gateway/test_server_registry.py",
    "registry/<slug:slug>/cards/<path:name>": "tests/agents/gateway/test_server_registry.py",
    "language/setlang/": "a cookie and the person's own profile",
    "api/hooks/<str:hook_id>": "requires the secret of the trigger; all else gets the same 401",
}
# One path outside of both tables has the ID of an object of an organization.
SIGN_IN = "oauth/start/<uuid:server_id>"
# A member can sign out of any server that people sign in to with their own account.
OWN_SIGN_IN = "mcp-servers/<str:server_id>/sign-in"


def list_all_paths(patterns: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from list_all_paths(pattern.url_patterns, f"{prefix}{pattern.pattern}")
        else:
            yield f"{prefix}{pattern.pattern}", pattern.callback


def test_every_path_of_the_installation_is_in_the_table():
    renamed = {f"api/^{route}$" for route in RENAMED_PATHS}
    covered = {f"api/{route}" for route in ROUTES} | {*OPEN, SIGN_IN} | renamed
    others = [
        route
        for route, _ in list_all_paths(get_resolver().url_patterns)
        if route not in covered and not route.removeprefix("^").startswith("admin/")
    ]
    assert others == [], "add a rule and a test, or list them in OPEN"


@pytest.mark.parametrize("role", ROLES)
def test_a_sign_in_to_a_server_of_another_organization_is_refused(organizations, role):
    admin = admin_client.sign_in(organizations.acme, role, f"visiting-{role}")
    for pk in (organizations.foreign["server_id"], str(uuid4())):
        for response in (
            admin.client.get(f"/oauth/start/{pk}"),
            admin.client.post(f"/oauth/start/{pk}"),
        ):
            assert response.status_code in (403, 404, 405), response.status_code


def test_every_operation_has_a_permission_rule():
    closed = [name for name in OPERATIONS if not ROUTES[name[0]].rules.get(name[1])]
    assert closed == [], "add their methods to `rules` of their views; they are closed without"


def test_no_rule_is_for_a_missing_method():
    missing = [
        (route, method)
        for route, view in ROUTES.items()
        for method in view.rules
        if not hasattr(view, method.lower())
    ]
    assert not missing, "remove them from `rules` of their views"


def test_an_operation_without_a_rule_is_closed(organizations, monkeypatch):
    monkeypatch.setattr(ROUTES["agents"], "rules", {})
    assert rest.as_role(organizations.acme, Role.OWNER).get("agents").json["rule"] == "role"


@pytest.mark.parametrize("role", ROLES if WHOLE else (Role.OPERATOR, Role.AUDITOR, Role.MEMBER))
def test_a_role_is_admitted_exactly_where_its_rule_allows_it(organizations, role):
    client = rest.as_role(organizations.acme, role)
    missing = dict.fromkeys(organizations.own, str(uuid4()))
    for route, method in OPERATIONS:
        response = send(client, route, method, missing)
        refused = response.status == 403 and response.json["rule"].startswith("role:")
        assert refused != is_allowed(role, route, method), f"{role} {method} {route}: {response!r}"


def test_an_owner_is_admitted_wherever_another_role_is():
    for route, method in OPERATIONS:
        if any(is_allowed(role, route, method) for role in ROLES):
            assert is_allowed(Role.OWNER, route, method), f"{method} {route}"


@pytest.mark.parametrize("role", WIDEST_ROLES)
def test_objects_of_other_organizations_are_like_missing_ones(organizations, role):
    """Where a rule refuses the role, it does so before any object is looked up: see above."""
    client = rest.as_role(organizations.acme, role)
    before = count_rows()
    for route, method in NAMED:
        if not is_allowed(role, route, method):
            continue
        for values in list_foreign_ids(route, organizations.own, organizations.foreign):
            foreign_response = send(client, route, method, values)
            missing = {
                name: str(uuid4()) if value == organizations.foreign.get(name) else value
                for name, value in values.items()
            }
            missing_response = send(client, route, method, missing)
            if foreign_response.status == 403:
                assert missing_response.status == 403, f"{role} {method} {route}"
                continue
            assert foreign_response.status == 404, f"{role} {method} {route}: {foreign_response!r}"
            assert foreign_response.text == replace_ids(missing_response.text, missing, values), (
                f"{method} {route}"
            )
    assert count_rows() == before


@pytest.mark.parametrize("role", [Role.OWNER, Role.AUDITOR])
def test_lists_contain_nothing_of_other_organizations(organizations, role):
    ids = [value for name, value in organizations.foreign.items() if name != "name"]
    client = rest.as_role(organizations.acme, role)
    for route, method in OPERATIONS:
        if method == "GET" and "<" not in route:
            response = client.get(route)
            assert [id for id in ids if id in response.text] == [], route


@pytest.mark.parametrize("role", WIDEST_ROLES)
def test_a_token_for_one_agent_cant_reach_other_agents(organizations, role):
    """Objects of other agents, or of none, are like missing ones."""
    agent = factories.create_agent(organizations.acme, "unrelated")
    client = rest.as_role(organizations.acme, role, agent)
    ids = [value for name, value in organizations.own.items() if name not in ("name", "user_id")]
    before = count_rows()
    for route, method in OPERATIONS:
        if not is_allowed(role, route, method):
            continue  # refused for any object
        response = send(client, route, method, organizations.own)
        if response.status < 400:
            assert [id for id in ids if id in response.text] == [], f"{role} {method} {route}"
        if "<" in route:
            assert response.status in (403, 404), f"{role} {method} {route}: {response!r}"
    assert count_rows() == before


def test_a_member_cant_reach_agents_without_access(organizations):
    """The same for a person with a session."""
    member = factories.create_member(organizations.acme, Role.MEMBER, "newcomer")
    client = rest.RestClient(user=User.objects.get(pk=member.id))
    shared = {"user_id", "name"}
    ids = [value for name, value in organizations.own.items() if name not in shared]
    for route, method in OPERATIONS:
        response = send(client, route, method, organizations.own)
        if response.status < 400:
            assert [id for id in ids if id in response.text] == [], f"{method} {route}"
        if "<" in route and route != OWN_SIGN_IN:
            assert response.status in (403, 404), f"{method} {route}: {response!r}"


def send(
    client: rest.RestClient, route: str, method: str, values: dict[str, str]
) -> rest.RestResponse:
    """Call an operation for objects with these IDs, with an empty body."""
    return client.send(method, fill_path(route, values), {} if method != "GET" else None)


def is_allowed(role: Role, route: str, method: str) -> bool:
    """Return whether the rule of an operation allows a role."""
    return any(may(role, action) for action in list_required_actions(ROUTES[route].rules[method]))


def list_foreign_ids(
    route: str, own: dict[str, str], foreign: dict[str, str]
) -> Iterator[dict[str, str]]:
    """Yield IDs for a route, at least one of which is of another organization."""
    names = [name for name in list_path_parameters(route) if name != "name"]
    for choice in product((own, foreign), repeat=len(names)):
        if any(ids is foreign for ids in choice):
            chosen = {name: ids[name] for name, ids in zip(names, choice, strict=True)}
            yield chosen | {"name": own["name"]}


def replace_ids(text: str, old: dict[str, str], new: dict[str, str]) -> str:
    for name, value in old.items():
        text = text.replace(value, new[name])
    return text


def count_rows() -> dict[str, int]:
    models = (Agent, Server, Definition, Session, Token, ModelEndpoint, Organization, AuditRow)
    models += (NotificationChannel, Notification, Approval, SessionApproval)
    return {model.__name__: model.objects.count() for model in models}
