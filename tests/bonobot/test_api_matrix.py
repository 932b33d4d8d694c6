"""Each route × method × role, and each id of another organization: generated from the addresses.

A route that declares no rule for one of its methods fails here, and so does one that answers
another organization's object in any other way than a missing one.
"""

import re
from collections.abc import Iterator
from itertools import product
from typing import Any
from uuid import uuid4

import pytest
from django.urls import URLPattern, URLResolver, get_resolver

from agents.models import Agent, Approval, ModelEndpoint, Session, SessionGrant
from bonobot import api
from bonobot.ledger.models import AuditRow
from bonobot.notices.models import Channel, Notice
from bonobot.tenancy.api.resources import Resource, actions_of
from bonobot.tenancy.models import Organization, Token
from bonobot.tenancy.roles import Role, may
from mcp_servers.models import Definition, Server
from tests import desk, rest
from tests.agents import casting
from tests.inventory import everything

pytestmark = pytest.mark.django_db

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")
ASKED = (Role.OWNER, Role.OPERATOR, Role.REVIEWER, Role.AUDITOR, Role.MEMBER)


def routes(patterns: Any = api.urlpatterns) -> Iterator[tuple[str, type[Resource]]]:
    """Yield every address below /api/ with its view."""
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from routes(pattern.url_patterns)
        elif isinstance(pattern, URLPattern):
            view = getattr(pattern.callback, "cls", None)
            if isinstance(view, type) and issubclass(view, Resource):
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


@pytest.fixture
def acme() -> Organization:
    return casting.organization()


def test_the_table_of_addresses_is_read():
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
    "oauth/authorize": "of whoever is signed in; tests/bonobot/authority",
    "oauth/token": "named by a code or a token of the program; tests/bonobot/authority",
    "oauth/revoke": "named by a token of the program; tests/bonobot/authority",
    "oauth/register": "of nobody's things; tests/bonobot/authority",
    "healthz": "whether the process lives",
    "readyz": "whether the installation can work, of nobody's things",
    "language/setlang/": "a cookie of the browser's, and one's own profile",
    "api/hooks/<str:hook_id>": "opened by a trigger's own secret; all else answers 401 alike",
}
# One address outside of both tables names a thing of an organization.
SIGN_IN = "oauth/start/<uuid:server_id>"


def whole_table(patterns: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    for pattern in patterns:
        if isinstance(pattern, URLResolver):
            yield from whole_table(pattern.url_patterns, f"{before}{pattern.pattern}")
        else:
            yield f"{before}{pattern.pattern}", pattern.callback


def test_every_address_of_the_installation_is_one_that_is_looked_at():
    known = {f"api/{route}" for route in ROUTES} | {*OPEN, SIGN_IN}
    others = [
        route
        for route, _ in whole_table(get_resolver().url_patterns)
        if route not in known and not route.startswith("admin/")
    ]
    assert others == [], "give them a rule, a test and a place in one of the tables"


@pytest.mark.parametrize("role", ASKED)
def test_nobody_signs_in_to_a_server_of_another_organization(acme, role):
    foreign = everything(casting.organization("other"))
    seat = desk.sit(acme, role)
    for pk in (foreign["server_id"], str(uuid4())):
        for answer in (
            seat.client.get(f"/oauth/start/{pk}"),
            seat.client.post(f"/oauth/start/{pk}"),
        ):
            assert answer.status_code in (403, 404, 405), answer.status_code


@pytest.mark.parametrize(("route", "method"), OPERATIONS)
def test_every_operation_has_a_rule(route, method):
    assert ROUTES[route].rules.get(method), f"{method} {route} declares no rule, so it is closed"


@pytest.mark.parametrize("route", ROUTES)
def test_no_rule_is_for_a_method_that_is_not_there(route):
    view = ROUTES[route]
    assert [method for method in view.rules if not hasattr(view, method.lower())] == []


def test_what_no_rule_opens_is_closed_to_everyone(acme, monkeypatch):
    monkeypatch.setattr(ROUTES["agents"], "rules", {})
    assert rest.as_role(acme, Role.OWNER).get("agents").json["rule"] == "role"


@pytest.mark.parametrize("role", ASKED)
def test_a_role_gets_in_where_its_rule_says_and_nowhere_else(acme, role):
    client = rest.as_role(acme, role)
    missing = dict.fromkeys(everything(acme), str(uuid4()))
    for route, method in OPERATIONS:
        allowed = any(may(role, action) for action in actions_of(ROUTES[route].rules[method]))
        answer = client.send(method, filled(route, missing), {} if method != "GET" else None)
        refused = answer.status == 403 and answer.json["rule"].startswith("role:")
        assert refused != allowed, f"{role} {method} {route}: {answer!r}"


@pytest.mark.parametrize("role", ASKED)
def test_another_organizations_things_answer_like_missing_ones(acme, role):
    own, foreign = everything(acme), everything(casting.organization("other"))
    client = rest.as_role(acme, role)
    before = counted()
    for route, method in NAMED:
        for values in strangers(route, own, foreign):
            missing = {
                name: str(uuid4()) if value == foreign.get(name) else value
                for name, value in values.items()
            }
            theirs, nobodys = (
                client.send(method, filled(route, each), {} if method != "GET" else None)
                for each in (values, missing)
            )
            if theirs.status == 403:
                assert nobodys.status == 403, f"{role} {method} {route}"
                continue
            assert theirs.status == 404, f"{role} {method} {route}: {theirs!r}"
            assert theirs.text == swapped(nobodys.text, missing, values), f"{method} {route}"
    assert counted() == before


@pytest.mark.parametrize("role", [Role.OWNER, Role.AUDITOR])
def test_lists_hold_nothing_of_another_organization(acme, role):
    foreign = everything(casting.organization("other"))
    ids = [value for name, value in foreign.items() if name != "name"]
    client = rest.as_role(acme, role)
    for route, method in OPERATIONS:
        if method == "GET" and "<" not in route:
            answer = client.get(route)
            assert [one for one in ids if one in answer.text] == [], route


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
    models += (Channel, Notice, Approval, SessionGrant)
    return {model.__name__: model.objects.count() for model in models}
