"""Every object that can be written over REST has a version, and no write reverts another."""

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
from tests.bonobot.test_api_matrix import OPERATIONS, ROUTES, fill_path
from tests.inventory import create_everything
from tests.screens import share_rows

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
    """The write of another client, and the write of a client with an outdated version."""

    other_write: dict[str, Any]
    own_write: dict[str, Any]
    put_body: dict[str, Any] | None = None  # for a PUT, if a PATCH needs less


def build_kind(
    other_write: dict[str, Any], own_write: dict[str, Any] | None = None, **fields: Any
) -> Kind:
    return Kind(other_write, own_write or other_write, **fields)


AGENT = "agents/<str:agent_id>"
SERVER = "mcp-servers/<str:server_id>"
KINDS: dict[str, Kind] = {
    AGENT: build_kind(NAME, {"description": "Ours"}, put_body=NAME),
    f"{AGENT}/callable-agents": build_kind({"callable_agents": ["other"]}, {"callable_agents": []}),
    f"{AGENT}/tool-policy": build_kind(POLICY, {"mode": "all"}),
    f"{AGENT}/tool-policy/draft": build_kind(POLICY, {"mode": "all"}),
    f"{AGENT}/budgets": build_kind(LINES, {"budgets": []}),
    f"{AGENT}/members": build_kind({"members": []}, {"members": ["member-acme"]}),
    f"{AGENT}/mcp-servers/<str:server_id>": build_kind(
        {"denied_tools": ["rm_*"]}, {"allowed_tools": ["*"]}, put_body=WEB
    ),
    f"{AGENT}/notes/<str:note_id>": build_kind({"text": "Theirs"}, {"title": "ours"}),
    SERVER: build_kind({"description": "Theirs"}, {"name": "docs"}, put_body=WEB),
    f"{SERVER}/budgets": build_kind(LINES, {"budgets": []}),
    f"{SERVER}/definitions/<str:definition_id>": build_kind({"enabled": False}, {"enabled": True}),
    "model-endpoints/<str:endpoint_id>": build_kind(
        NAME,
        {"model": "offline"},
        put_body={"name": "Spare", "kind": "offline", "model": "offline"},
    ),
    "members/<str:member_id>": build_kind({"role": "operator"}, {"role": "member"}),
    "me": build_kind({"first_name": "Anna"}, {"last_name": "Berg"}),
    "organization": build_kind({"approval_hours": 7}, {"four_eyes": True}),
    "budgets": build_kind(LINES, {"budgets": []}),
    "tool-policy": build_kind(POLICY, {"mode": "all"}),
    "tool-policy/draft": build_kind(POLICY, {"mode": "all"}),
    "first-run": build_kind({"hidden": True}, {"skipped": ["ask"]}),
    "skills/<str:skill_id>": build_kind({"text": "Theirs"}, {"title": "Ours"}),
    "workflows/<str:workflow_id>": build_kind({"enabled": False}, {"agents": []}),
    "workflows/<str:workflow_id>/triggers/<str:trigger_id>": build_kind(
        {"enabled": False}, {"enabled": True}
    ),
    "identity-providers/<str:provider_id>": build_kind(NAME, {"enabled": False}),
    "notification-channels/<str:channel_id>": build_kind(NAME, {"enabled": False}),
    "presets/<str:preset_id>": build_kind(NAME, {"description": "Ours"}),
    "tokens/<str:token_id>": build_kind({"name": "Another"}, {"calls_per_minute": 7}),
    "external-issuers/<str:issuer_id>": build_kind(NAME, {"enabled": False}),
    f"{SERVER}/operations/<str:name>": build_kind(
        {"name": "get", "description": "Theirs", "path": "/a"},
        {"name": "get", "description": "Ours", "path": "/b"},
    ),
}
# Writes without a previous read: each one contains all that it changes.
UNREAD = {
    f"{AGENT}/members/<str:user_id>": "one more of a set",
    f"{SERVER}/labels": "labels of the definitions that it names",
}
WRITES = [(route, method) for route, method in OPERATIONS if method in ("PUT", "PATCH")]
VERSIONED = [(route, method) for route, method in WRITES if route not in UNREAD]


@dataclass
class FilledOrganization:
    """An organization with one of everything."""

    organization: Organization
    ids: dict[str, str]


@pytest.fixture(scope="module")
def shared_organization(
    django_db_setup: None, django_db_blocker: pytest_django.DjangoDbBlocker
) -> Iterator[FilledOrganization]:
    with share_rows(django_db_blocker):
        acme = factories.create_organization()
        ids = create_everything(acme)
        factories.create_agent(acme, "other")
        config = {"endpoint_config": {"url": "https://s.example.com/mcp"}}
        Server.objects.filter(pk=ids["server_id"]).update(**config)
        Preset.objects.filter(pk=ids["preset_id"]).update(**config)
        yield FilledOrganization(acme, ids)


@pytest.fixture
def example(shared_organization: FilledOrganization) -> Iterator[FilledOrganization]:
    with transaction.atomic():
        yield shared_organization
        transaction.set_rollback(True)


@dataclass
class Object:
    """One object over REST."""

    path: str
    method: str
    kind: Kind
    client: rest.RestClient

    @property
    def own_write(self) -> dict[str, Any]:
        put_body = self.kind.put_body if self.method == "PUT" else None
        return put_body or self.kind.own_write

    def read(self) -> rest.RestResponse:
        return self.client.get(self.path)

    def change_elsewhere(self) -> None:
        uses_put_body = isinstance(self.kind.put_body, dict) and self.method == "PUT"
        by_patch = uses_put_body or self.method == "PATCH"
        response = self.client.send(
            "PATCH" if by_patch else "PUT", self.path, self.kind.other_write
        )
        assert response.status == 200, response

    def write(self, **headers: str) -> rest.RestResponse:
        return self.client.send(self.method, self.path, self.own_write, **headers)

    def write_with(self, version: Any) -> rest.RestResponse:
        return self.client.send(self.method, self.path, {**self.own_write, "version": version})


def sign_in_owner(organization: Organization) -> rest.RestClient:
    principal = factories.create_member(organization, Role.OWNER, "writer")
    user = User.objects.get(pk=principal.id)
    User.objects.filter(pk=user.pk).update(is_superuser=True, is_staff=True)
    return rest.RestClient(user=user)


def create_declared_server(administrator: Principal) -> str:
    declared = [{"name": "get", "description": "Get it.", "path": "/a"}]
    config = {"url": "https://api.example.com", "declared": declared}
    spec = ServerSpec(name="api", transport_type="openapi", endpoint_config=config)
    return str(create_server(administrator, spec).pk)


@pytest.fixture
def target(example: FilledOrganization, request: pytest.FixtureRequest) -> Object:
    route, method = request.param
    ids = dict(example.ids)
    if "operations" in route:
        administrator = factories.build_administrator(example.organization)
        ids |= {"server_id": create_declared_server(administrator), "name": "get"}
    instance = Object(
        fill_path(route, ids), method, KINDS[route], sign_in_owner(example.organization)
    )
    if route.endswith("draft"):
        assert instance.client.put(instance.path, {"mode": "none"}).status == 200
    return instance


def test_every_writable_object_is_covered():
    assert {route for route, _ in WRITES} == {*KINDS, *UNREAD}, "correct `KINDS` above"


def parametrize_objects() -> Any:
    names = [f"{method} {route}" for route, method in VERSIONED]
    return pytest.mark.parametrize("target", VERSIONED, ids=names, indirect=True)


@parametrize_objects()
def test_a_write_with_an_outdated_etag_is_refused_with_the_changes(target: Object) -> None:
    tag = target.read().headers["ETag"]
    target.change_elsewhere()
    before = target.read()

    response = target.write(If_Match=tag)

    assert (response.status, response.code) == (412, "precondition_failed"), response
    assert set(response.json["changed"]) & set(target.kind.other_write), response
    assert target.read().headers["ETag"] == before.headers["ETag"] != tag
    assert f'"{response.json["version"]}"' == before.headers["ETag"]


@parametrize_objects()
def test_a_write_with_an_outdated_version_is_refused_with_the_changes(target: Object) -> None:
    current = target.read()
    version = current.headers["ETag"].strip('"')
    route = target.path.partition("/")[0]
    has_number = route in ("skills", "workflows") and "triggers" not in target.path
    if has_number:
        version = current.json["version"] - 1
    else:
        assert current.json.get("version", version) == version
    target.change_elsewhere()
    before = target.read()

    response = target.write_with(version)

    assert (response.status, response.code) == (409, "version_conflict"), response
    assert has_number or set(response.json["changed"]) & set(target.kind.other_write), response
    for name in set(response.json["changed"]) & before.json.keys() - {"version"}:
        assert response.json["changed"][name] == before.json[name]
    assert target.read().headers["ETag"] == before.headers["ETag"]


@parametrize_objects()
def test_a_write_with_the_current_version_succeeds(target: Object) -> None:
    target.change_elsewhere()
    current = target.read()
    version = current.json.get("version", current.headers["ETag"].strip('"'))

    response = target.write_with(version)

    assert response.status == 200, response
    assert response.headers["ETag"] == target.read().headers["ETag"]


@parametrize_objects()
def test_a_write_without_a_version_succeeds(target: Object) -> None:
    target.change_elsewhere()
    assert target.write().status == 200


def build_list(tag: str) -> str:
    return f'"another", {tag}'


@pytest.mark.parametrize(
    ("header", "status"),
    [
        (lambda tag: tag, 200),
        (build_list, 200),
        (lambda tag: "*", 200),
        (lambda tag: f"W/{tag}", 412),
        (lambda tag: '"another"', 412),
        (lambda tag: "no tag", 412),
        (lambda tag: "", 412),
    ],
    ids=["its tag", "a list", "any", "a weak tag", "another", "not a tag", "blank"],
)
def test_if_match_follows_the_http_specification(
    example: FilledOrganization, header: Callable[[str], str], status: int
) -> None:
    client, path = sign_in_owner(example.organization), fill_path(AGENT, example.ids)
    tag = client.get(path).headers["ETag"]
    assert client.patch(path, NAME, If_Match=header(tag)).status == status


DELETED = [
    route
    for route, method in OPERATIONS
    if method == "DELETE" and (route, "PATCH") in VERSIONED and hasattr(ROUTES[route], "get")
]


@pytest.mark.parametrize("target", [(route, "PATCH") for route in DELETED], indirect=True)
def test_an_object_that_changed_meanwhile_isnt_deleted(target: Object) -> None:
    tag = target.read().headers["ETag"]
    target.change_elsewhere()
    response = target.client.delete(target.path, If_Match=tag)
    assert (response.status, response.code) == (412, "precondition_failed")
    assert target.read().status == 200


def test_a_changed_secret_changes_the_version_and_isnt_shown(example: FilledOrganization) -> None:
    client = sign_in_owner(example.organization)
    body = {"transport_type": "http", "endpoint_config": {"url": "https://docs.example.com"}}
    auth = {"auth_config": {"type": "bearer_token", "token": "the first one"}}
    response = client.post("mcp-servers", {"name": "secretive", **body, **auth}).json
    path = f"mcp-servers/{response['id']}"
    auth = {"auth_config": {"type": "bearer_token", "token": "the second one"}}
    assert client.patch(path, auth).status == 200

    conflict = client.patch(path, {"name": "x", "version": response["version"]})

    assert conflict.status == 409
    assert list(conflict.json["changed"]) == ["auth_config"]
    assert "the second one" not in conflict.text


def test_rows_of_a_list_have_the_version_of_the_object(example: FilledOrganization) -> None:
    client = sign_in_owner(example.organization)
    [row] = [row for row in client.get("agents").json["results"] if row["slug"] == "helper"]
    assert row["version"] == client.get(f"agents/{row['id']}").json["version"]
    assert client.get(f"agents/{row['id']}?fields=version").json == {"version": row["version"]}


def test_read_only_fields_arent_part_of_a_version(example: FilledOrganization) -> None:
    client, path = sign_in_owner(example.organization), fill_path(SERVER, example.ids)
    before = client.get(path).json["version"]
    Server.objects.filter(pk=example.ids["server_id"]).update(status="error", latency_ms=7)
    assert client.get(path).json["version"] == before


# What a first write sets, and what a PUT with only its required fields does with that.
OMITTED: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    AGENT: ({"description": "D", "calls_per_minute": 7}, NAME, "kept"),
    f"{AGENT}/tool-policy": (POLICY, {"mode": "all"}, "reset"),
    "tool-policy": (POLICY, {"mode": "all"}, "reset"),
    SERVER: ({"description": "D", "calls_per_minute": 7}, WEB, "kept"),
    "model-endpoints/<str:endpoint_id>": (
        {"timeout_s": 77},
        {"name": "Spare", "kind": "offline", "model": "offline"},
        "kept",
    ),
    f"{SERVER}/operations/<str:name>": (
        {"name": "get", "description": "Ours", "path": "/b", "method": "POST"},
        {"name": "get", "description": "Ours", "path": "/b"},
        "reset",
    ),
}


@pytest.mark.django_db
@pytest.mark.parametrize("target", [(route, "PUT") for route in OMITTED], indirect=True)
def test_a_put_does_with_omitted_fields_what_the_documentation_says(
    target: Object, request: pytest.FixtureRequest
) -> None:
    route, _method = request.node.callspec.params["target"]
    first, required, effect = OMITTED[route]
    method = "PUT" if effect == "reset" else "PATCH"
    assert target.client.send(method, target.path, first).status == 200
    before = target.read().json
    assert target.client.put(target.path, required).status == 200
    after = target.read().json
    for name in first.keys() - required.keys():
        assert before[name] == first[name]
        assert (after[name] == first[name]) is (effect == "kept"), name


@pytest.mark.django_db
@pytest.mark.parametrize(
    "target",
    [(route, method) for route, method in VERSIONED if method == "PUT"],
    indirect=True,
)
def test_a_put_without_required_fields_changes_nothing(target: Object) -> None:
    before = target.read().json
    assert target.client.put(target.path, {}).status == 400
    assert target.read().json == before
