"""Every object that can be written over REST has a version, and no write reverts another's."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import pytest_django
from django.db import transaction

from bonobot.accounts.models import Organization, User
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Role
from mcp_servers.models import Preset, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server
from tests import factories, rest
from tests.bonobot.test_api_matrix import OPERATIONS, ROUTES, filled
from tests.inventory import everything
from tests.screens import shared_rows

NAME = {"name": "Another"}
SLUG = {"name": "another"}
POLICY = {"mode": "allowlist", "deny": ["bash"]}
LINES = {"budgets": [{"unit": "calls", "period": "day", "limit": 7}]}

WEB = {
    "name": "docs",
    "transport_type": "http",
    "endpoint_config": {"url": "https://docs.example.com/mcp"},
}


@dataclass(frozen=True)
class Kind:
    """What somebody else writes of an object, and what a client with an old version does."""

    theirs: dict[str, Any]
    ours: dict[str, Any]
    whole: dict[str, Any] | None = None  # for a PUT where a PATCH takes less


def kind(theirs: dict[str, Any], ours: dict[str, Any] | None = None, **more: Any) -> Kind:
    return Kind(theirs, ours or theirs, **more)


AGENT = "agents/<str:agent_id>"
SERVER = "mcp-servers/<str:server_id>"
KINDS: dict[str, Kind] = {
    AGENT: kind(NAME, {"description": "Ours"}, whole=NAME),
    f"{AGENT}/callable-agents": kind({"callable_agents": ["other"]}, {"callable_agents": []}),
    f"{AGENT}/tool-policy": kind(POLICY, {"mode": "all"}),
    f"{AGENT}/tool-policy/draft": kind(POLICY, {"mode": "all"}),
    f"{AGENT}/budgets": kind(LINES, {"budgets": []}),
    f"{AGENT}/members": kind({"members": []}, {"members": ["member-acme"]}),
    f"{AGENT}/mcp-servers/<str:server_id>": kind(
        {"denied_tools": ["rm_*"]}, {"allowed_tools": ["*"]}, whole=WEB
    ),
    f"{AGENT}/notes/<str:note_id>": kind({"text": "Theirs"}, {"title": "ours"}),
    SERVER: kind({"description": "Theirs"}, {"name": "docs"}, whole=WEB),
    f"{SERVER}/budgets": kind(LINES, {"budgets": []}),
    f"{SERVER}/definitions/<str:definition_id>": kind({"enabled": False}, {"enabled": True}),
    "model-endpoints/<str:endpoint_id>": kind(
        NAME, {"model": "offline"}, whole={"name": "Spare", "kind": "offline", "model": "offline"}
    ),
    "members/<str:member_id>": kind({"role": "operator"}, {"role": "member"}),
    "me": kind({"first_name": "Anna"}, {"last_name": "Berg"}),
    "organization": kind({"approval_hours": 7}, {"four_eyes": True}),
    "budgets": kind(LINES, {"budgets": []}),
    "tool-policy": kind(POLICY, {"mode": "all"}),
    "tool-policy/draft": kind(POLICY, {"mode": "all"}),
    "first-run": kind({"hidden": True}, {"skipped": ["ask"]}),
    "skills/<str:skill_id>": kind({"text": "Theirs"}, {"title": "Ours"}),
    "workflows/<str:workflow_id>": kind({"enabled": False}, {"agents": []}),
    "workflows/<str:workflow_id>/triggers/<str:trigger_id>": kind(
        {"enabled": False}, {"enabled": True}
    ),
    "identity-providers/<str:provider_id>": kind(NAME, {"enabled": False}),
    "notification-channels/<str:channel_id>": kind(NAME, {"enabled": False}),
    "presets/<str:preset_id>": kind(NAME, {"description": "Ours"}),
    "tokens/<str:token_id>": kind({"name": "Another"}, {"calls_per_minute": 7}),
    "external-issuers/<str:issuer_id>": kind(NAME, {"enabled": False}),
    f"{SERVER}/operations/<str:name>": kind(
        {"name": "get", "description": "Theirs", "path": "/a"},
        {"name": "get", "description": "Ours", "path": "/b"},
    ),
}
# What is written without being read first: each write says all that it changes.
UNREAD = {
    f"{AGENT}/members/<str:user_id>": "one more of a set",
    f"{SERVER}/labels": "labels of the definitions that it names",
}
WRITES = [(route, method) for route, method in OPERATIONS if method in ("PUT", "PATCH")]
VERSIONED = [(route, method) for route, method in WRITES if route not in UNREAD]
# Numbers its versions, which count what it says: its ETag covers who has it, too.
NUMBERED = ("skills/<str:skill_id>", "workflows/<str:workflow_id>")


@dataclass
class Place:
    """An organization with one of everything."""

    organization: Organization
    ids: dict[str, str]


@pytest.fixture(scope="module")
def shared_place(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[Place]:
    with shared_rows(django_db_blocker):
        acme = factories.create_organization()
        ids = everything(acme)
        factories.create_agent(acme, "other")
        where = {"endpoint_config": {"url": "https://s.example.com/mcp"}}
        Server.objects.filter(pk=ids["server_id"]).update(**where)
        Preset.objects.filter(pk=ids["preset_id"]).update(**where)
        yield Place(acme, ids)


@pytest.fixture
def place(shared_place: Place) -> Iterator[Place]:
    with transaction.atomic():
        yield shared_place
        transaction.set_rollback(True)


@dataclass
class Object:
    """One object over REST."""

    path: str
    method: str
    kind: Kind
    client: rest.Rest

    @property
    def ours(self) -> dict[str, Any]:
        whole = self.kind.whole if self.method == "PUT" else None
        return whole or self.kind.ours

    def read(self) -> rest.Answer:
        return self.client.get(self.path)

    def change_elsewhere(self) -> None:
        whole = isinstance(self.kind.whole, dict) and self.method == "PUT"
        by_patch = whole or self.method == "PATCH"
        response = self.client.send("PATCH" if by_patch else "PUT", self.path, self.kind.theirs)
        assert response.status == 200, response

    def write(self, **headers: str) -> rest.Answer:
        return self.client.send(self.method, self.path, self.ours, **headers)

    def write_with(self, version: Any) -> rest.Answer:
        return self.client.send(self.method, self.path, {**self.ours, "version": version})


def person(organization: Organization) -> rest.Rest:
    principal = factories.create_member(organization, Role.OWNER, "writer")
    user = User.objects.get(pk=principal.id)
    User.objects.filter(pk=user.pk).update(is_superuser=True, is_staff=True)
    return rest.Rest(user=user)


def with_declared(boss: Principal) -> str:
    declared = [{"name": "get", "description": "Get it.", "path": "/a"}]
    config = {"url": "https://api.example.com", "declared": declared}
    spec = ServerSpec(name="api", transport_type="openapi", endpoint_config=config)
    return str(create_server(boss, spec).pk)


@pytest.fixture
def found(place: Place, request: pytest.FixtureRequest) -> Object:
    route, method = request.param
    ids = dict(place.ids)
    if "operations" in route:
        administrator = factories.build_administrator(place.organization)
        ids |= {"server_id": with_declared(administrator), "name": "get"}
    one = Object(filled(route, ids), method, KINDS[route], person(place.organization))
    if route.endswith("draft"):
        assert one.client.put(one.path, {"mode": "none"}).status == 200
    return one


def test_every_writable_object_is_covered():
    assert {route for route, _ in WRITES} == {*KINDS, *UNREAD}


def each_object() -> Any:
    names = [f"{method} {route}" for route, method in VERSIONED]
    return pytest.mark.parametrize("found", VERSIONED, ids=names, indirect=True)


@each_object()
def test_a_write_with_an_outdated_etag_is_refused_with_the_changes(found: Object) -> None:
    tag = found.read().headers["ETag"]
    found.change_elsewhere()
    before = found.read()

    refused = found.write(If_Match=tag)

    assert (refused.status, refused.code) == (412, "precondition_failed"), refused
    assert set(refused.json["changed"]) & set(found.kind.theirs), refused
    assert found.read().headers["ETag"] == before.headers["ETag"] != tag
    assert f'"{refused.json["version"]}"' == before.headers["ETag"]


@each_object()
def test_a_write_with_an_outdated_version_is_refused_with_the_changes(found: Object) -> None:
    read = found.read()
    version = read.headers["ETag"].strip('"')
    route = found.path.partition("/")[0]
    numbered = route in ("skills", "workflows") and "triggers" not in found.path
    if numbered:
        version = read.json["version"] - 1
    else:
        assert read.json.get("version", version) == version
    found.change_elsewhere()
    before = found.read()

    refused = found.write_with(version)

    assert (refused.status, refused.code) == (409, "version_conflict"), refused
    assert numbered or set(refused.json["changed"]) & set(found.kind.theirs), refused
    for name in set(refused.json["changed"]) & before.json.keys() - {"version"}:
        assert refused.json["changed"][name] == before.json[name]
    assert found.read().headers["ETag"] == before.headers["ETag"]


@each_object()
def test_a_write_with_the_current_version_succeeds(found: Object) -> None:
    found.change_elsewhere()
    read = found.read()
    version = read.json.get("version", read.headers["ETag"].strip('"'))

    made = found.write_with(version)

    assert made.status == 200, made
    assert made.headers["ETag"] == found.read().headers["ETag"]


@each_object()
def test_a_write_without_a_version_succeeds(found: Object) -> None:
    found.change_elsewhere()
    assert found.write().status == 200


def in_list(tag: str) -> str:
    return f'"another", {tag}'


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (lambda tag: tag, 200),
        (in_list, 200),
        (lambda tag: "*", 200),
        (lambda tag: f"W/{tag}", 412),
        (lambda tag: '"another"', 412),
        (lambda tag: "no tag", 412),
        (lambda tag: "", 412),
    ],
    ids=["its tag", "a list", "any", "a weak tag", "another", "not a tag", "blank"],
)
def test_if_match_follows_the_http_specification(
    place: Place, header: Callable[[str], str], status: int
) -> None:
    client, path = person(place.organization), filled(AGENT, place.ids)
    tag = client.get(path).headers["ETag"]
    assert client.patch(path, NAME, If_Match=header(tag)).status == status


DELETED = [
    route
    for route, method in OPERATIONS
    if method == "DELETE" and (route, "PATCH") in VERSIONED and hasattr(ROUTES[route], "get")
]


@pytest.mark.parametrize("found", [(route, "PATCH") for route in DELETED], indirect=True)
def test_an_object_that_changed_meanwhile_isnt_deleted(found: Object) -> None:
    tag = found.read().headers["ETag"]
    found.change_elsewhere()
    refused = found.client.delete(found.path, If_Match=tag)
    assert (refused.status, refused.code) == (412, "precondition_failed")
    assert found.read().status == 200


def test_a_changed_secret_changes_the_version_and_isnt_shown(place: Place) -> None:
    client = person(place.organization)
    body = {"transport_type": "http", "endpoint_config": {"url": "https://docs.example.com"}}
    auth = {"auth_config": {"type": "bearer_token", "token": "the first one"}}
    response = client.post("mcp-servers", {"name": "secretive", **body, **auth}).json
    path = f"mcp-servers/{response['id']}"
    auth = {"auth_config": {"type": "bearer_token", "token": "the second one"}}
    assert client.patch(path, auth).status == 200

    refused = client.patch(path, {"name": "x", "version": response["version"]})

    assert refused.status == 409
    assert list(refused.json["changed"]) == ["auth_config"]
    assert "the second one" not in refused.text


def test_rows_of_a_list_have_the_version_of_the_object(place: Place) -> None:
    client = person(place.organization)
    [row] = [row for row in client.get("agents").json["results"] if row["slug"] == "helper"]
    assert row["version"] == client.get(f"agents/{row['id']}").json["version"]
    assert client.get(f"agents/{row['id']}?fields=version").json == {"version": row["version"]}


def test_read_only_fields_arent_part_of_a_version(place: Place) -> None:
    client, path = person(place.organization), filled(SERVER, place.ids)
    before = client.get(path).json["version"]
    Server.objects.filter(pk=place.ids["server_id"]).update(status="error", latency_ms=7)
    assert client.get(path).json["version"] == before
