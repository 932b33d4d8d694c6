"""Each route × method × role, and each id of another organization: generated from the addresses.

A route that declares no rule for one of its methods fails here, and so does one that answers
another organization's object in any other way than a missing one.
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
from tests.inventory import everything
from tests.screens import shared_rows

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ASKED = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)


def routes(
    patterns: Any = api_urlpatterns,
) -> Iterator[tuple[str, type[ResourceView]]]:
    """Yield every address below /api/ with its view."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if isinstance(view, type) and issubclass(view, ResourceView):
                yield str(pattern.pattern), view


ROUTES = dict(routes())
OPERATIONS = [
    (route, method)
    for route, view in ROUTES.items()
    for method in METHODS
    if hasattr(view, method.lower())
]
NAMED = [(route, method) for route, method in OPERATIONS if "<" in route]


def parts(route: str) -> list[str]:
    return re.findall(r"<str:(\w+)>", route)


def filled(route: str, values: dict[str, str]) -> str:
    return re.sub(r"<str:(\w+)>", lambda found: values[found[1]], route)


class Things(NamedTuple):
    """Two organizations with one of everything, and the ids of it by the names of the parts."""

    acme: Organization
    own: dict[str, str]
    foreign: dict[str, str]


@pytest.fixture(scope="module")
def filled_organizations(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[Things]:
    """Fill two organizations for all tests of this module."""
    with shared_rows(django_db_blocker):
        acme = factories.create_organization()
        yield Things(acme, everything(acme), everything(factories.create_organization("other")))


@pytest.fixture
def things(filled_organizations: Things) -> Iterator[Things]:
    """Return the two organizations; what a test changes there is rolled back after it."""
    with transaction.atomic():
        yield filled_organizations
        transaction.set_rollback(True)


def test_the_table_of_paths_is_complete():
    assert len(OPERATIONS) > 50
    assert ("agents/<str:agent_id>/mcp-servers/<str:server_id>", "PUT") in NAMED


# Addresses that belong to nobody's organization, and why; all others are looked at by id and role.
OPEN = {
    "": "leads to the admin",
    "api/schema": "the document of REST, the same for everybody",
    "api/docs": "its pages",
    "api/": "every other address below /api/, which is missing",
    "oauth/callback": "named by a state that is bound to the person who began",
    "oauth/client-metadata.json": "what we are to authorization servers",
    ".well-known/oauth-authorization-server": "what we are to programs that ask people in",
    "oauth/authorize": "of whoever is signed in; tests/bonobot/oauth_server",
    "oauth/token": "named by a code or a token of the program; tests/bonobot/oauth_server",
    "oauth/revoke": "named by a token of the program; tests/bonobot/oauth_server",
    "oauth/register": "of nobody's things; tests/bonobot/oauth_server",
    "healthz": "whether the process lives",
    "readyz": "whether the installation can work, of nobody's things",
    "language/setlang/": "a cookie of the browser's, and one's own profile",
    "api/hooks/<str:hook_id>": "opened by a trigger's own secret; all else answers 401 alike",
}
# One address outside of both tables names a thing of an organization.
SIGN_IN = "oauth/start/<uuid:server_id>"
# A member signs out of any server that people sign in to themselves, of their own account there.
OWN_SIGN_IN = "mcp-servers/<str:server_id>/sign-in"


def whole_table(patterns: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from whole_table(pattern.url_patterns, f"{before}{pattern.pattern}")
        else:
            yield f"{before}{pattern.pattern}", pattern.callback


def test_every_path_of_the_installation_is_in_the_table():
    renamed = {f"api/^{route}$" for route in RENAMED_PATHS}
    known = {f"api/{route}" for route in ROUTES} | {*OPEN, SIGN_IN} | renamed
    others = [
        route
        for route, _ in whole_table(get_resolver().url_patterns)
        if route not in known and not route.removeprefix("^").startswith("admin/")
    ]
    assert others == [], "give them a rule, a test and a place in one of the tables"


@pytest.mark.parametrize("role", ASKED)
def test_a_sign_in_to_a_server_of_another_organization_is_refused(things, role):
    admin = admin_client.sit(things.acme, role, f"visiting-{role}")
    for pk in (things.foreign["server_id"], str(uuid4())):
        for response in (
            admin.client.get(f"/oauth/start/{pk}"),
            admin.client.post(f"/oauth/start/{pk}"),
        ):
            assert response.status_code in (403, 404, 405), response.status_code


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_every_operation_has_a_permission_rule(route, method):
    assert ROUTES[route].rules.get(method), f"{method} {route} declares no rule, so it is closed"


@pytest.mark.parametrize("route", ROUTES)
def test_no_rule_is_for_a_missing_method(route):
    view = ROUTES[route]
    assert [method for method in view.rules if not hasattr(view, method.lower())] == []


def test_an_operation_without_a_rule_is_closed(things, monkeypatch):
    monkeypatch.setattr(ROUTES["agents"], "rules", {})
    assert rest.as_role(things.acme, Role.OWNER).get("agents").json["rule"] == "role"


@pytest.mark.parametrize("role", ASKED)
def test_a_role_is_admitted_exactly_where_its_rule_allows_it(things, role):
    client = rest.as_role(things.acme, role)
    missing = dict.fromkeys(things.own, str(uuid4()))
    for route, method in OPERATIONS:
        allowed = is_allowed(role, route, method)
        response = client.send(method, filled(route, missing), {} if method != "GET" else None)
        refused = response.status == 403 and response.json["rule"].startswith("role:")
        assert refused != allowed, f"{role} {method} {route}: {response!r}"


@pytest.mark.parametrize("role", ASKED)
def test_objects_of_other_organizations_are_like_missing_ones(things, role):
    """Where a rule refuses the role, the test above shows that a missing one is refused, too."""
    client = rest.as_role(things.acme, role)
    before = counted()
    for route, method in NAMED:
        body = {} if method != "GET" else None
        for values in strangers(route, things.own, things.foreign):
            theirs = client.send(method, filled(route, values), body)
            if not is_allowed(role, route, method):
                assert theirs.status == 403, f"{role} {method} {route}: {theirs!r}"
                continue
            missing = {
                name: str(uuid4()) if value == things.foreign.get(name) else value
                for name, value in values.items()
            }
            nobodys = client.send(method, filled(route, missing), body)
            if theirs.status == 403:
                assert nobodys.status == 403, f"{role} {method} {route}"
                continue
            assert theirs.status == 404, f"{role} {method} {route}: {theirs!r}"
            assert theirs.text == swapped(nobodys.text, missing, values), f"{method} {route}"
    assert counted() == before


@pytest.mark.parametrize("role", [Role.OWNER, Role.AUDITOR])
def test_lists_contain_nothing_of_other_organizations(things, role):
    ids = [value for name, value in things.foreign.items() if name != "name"]
    client = rest.as_role(things.acme, role)
    for route, method in OPERATIONS:
        if method == "GET" and "<" not in route:
            response = client.get(route)
            assert [id for id in ids if id in response.text] == [], route


@pytest.mark.parametrize("role", ASKED)
def test_a_token_for_one_agent_cant_reach_other_agents(things, role):
    """Principal × object × verb: what belongs to another agent, or to none, isn't there for it."""
    agent = factories.create_agent(things.acme, "unrelated")
    client = rest.as_role(things.acme, role, agent)
    ids = [value for name, value in things.own.items() if name not in ("name", "user_id")]
    before = counted()
    for route, method in OPERATIONS:
        response = client.send(method, filled(route, things.own), {} if method != "GET" else None)
        if response.status < 400:
            assert [id for id in ids if id in response.text] == [], f"{role} {method} {route}"
        if "<" in route:
            assert response.status in (403, 404), f"{role} {method} {route}: {response!r}"
    assert counted() == before


def test_a_member_cant_reach_agents_without_access(things):
    """The same for a person, who has a session and no token."""
    member = factories.create_member(things.acme, Role.MEMBER, "newcomer")
    client = rest.Rest(user=User.objects.get(pk=member.id))
    shared = {"user_id", "name"}
    ids = [value for name, value in things.own.items() if name not in shared]
    for route, method in OPERATIONS:
        response = client.send(method, filled(route, things.own), {} if method != "GET" else None)
        if response.status < 400:
            assert [id for id in ids if id in response.text] == [], f"{method} {route}"
        if "<" in route and route != OWN_SIGN_IN:
            assert response.status in (403, 404), f"{method} {route}: {response!r}"


def is_allowed(role: Role, route: str, method: str) -> bool:
    """Tell whether an operation's rule lets a role in."""
    return any(may(role, action) for action in list_required_actions(ROUTES[route].rules[method]))


def strangers(route: str, own: dict[str, str], foreign: dict[str, str]) -> Iterator[dict[str, str]]:
    """Yield the ids of a route with at least one of another organization."""
    names = [name for name in parts(route) if name != "name"]
    for choice in product((own, foreign), repeat=len(names)):
        if any(each is foreign for each in choice):
            chosen = {name: each[name] for name, each in zip(names, choice, strict=True)}
            yield chosen | {"name": own["name"]}


def swapped(text: str, old: dict[str, str], new: dict[str, str]) -> str:
    for name, value in old.items():
        text = text.replace(value, new[name])
    return text


def counted() -> dict[str, int]:
    models = (Agent, Server, Definition, Session, Token, ModelEndpoint, Organization, AuditRow)
    models += (NotificationChannel, Notification, Approval, SessionApproval)
    return {model.__name__: model.objects.count() for model in models}
