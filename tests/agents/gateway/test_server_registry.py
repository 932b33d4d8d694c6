"""The registry that MCP clients read: access, entries, pages, caching and isolation."""

import json
import re
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from agents.calls.snapshots import get_snapshot_cache
from agents.gateway.server_registry import build_namespace
from agents.policies.services import PolicySpec, set_policy
from agents.services import attach_server
from bonobot.accounts.attempt_limits import AttemptLimit
from bonobot.accounts.models import Organization, User
from bonobot.accounts.roles import Role, TokenScope
from bonobot.accounts.tokens.services import create_token
from mcp_servers.models import Definition, Server
from tests import factories, rest

pytestmark = pytest.mark.django_db

NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")
META = "io.modelcontextprotocol.registry/official"


@pytest.fixture
def acme() -> Organization:
    organization = factories.create_organization()
    Organization.objects.update(registry="public")
    return organization


def add_server(organization: Organization, name: str, **fields: Any) -> Server:
    """Create a server of the pool with an approved tool."""
    values = {"scope_id": organization.pk, "slug": name, "transport_type": "http"} | fields
    server = Server.objects.create(
        organization=organization,
        name=name.title(),
        endpoint_config={"url": "https://mcp.example.com"},
        **values,
    )
    Definition.objects.create(
        organization=organization,
        server=server,
        kind="tool",
        name="look",
        payload={"name": "look", "inputSchema": {"type": "object"}},
        digest="d",
        pinned_digest="d",
        pinned_at=timezone.now(),
    )
    return server


def get(path: str = "", slug: str = "acme", token: str = "", **headers: str) -> Any:
    """Send a request as VS Code does: a GET without cookies."""
    sent = {"Authorization": f"Bearer {token}"} if token else {}
    return Client().get(f"/registry/{slug}/v0.1/servers{path}", headers=sent | headers)


def list_names(response: Any) -> list[str]:
    assert response.status_code == 200, response.content
    return [entry["server"]["name"].rpartition("/")[2] for entry in response.json()["servers"]]


def create_token_text(organization: Organization, role: Role = Role.OPERATOR, **fields: Any) -> str:
    administrator = factories.build_administrator(organization)
    return create_token(administrator, name="laptop", role=role, **fields)[1]


def test_an_entry_is_a_server_json_with_the_gateways_address(
    acme: Organization, settings: Any
) -> None:
    settings.BONOBOT_URL, settings.BONOBOT_OAUTH = "https://mcp.example.org", False
    add_server(acme, "github", description="Issues.\nAnd pulls. " + "x" * 200)
    (entry,) = get().json()["servers"]
    server = entry["server"]
    assert NAME.fullmatch(server["name"])
    assert server["name"] == "org.example.mcp.acme/servers.github"
    assert (server["title"], server["description"][:19]) == ("Github", "Issues. And pulls. ")
    assert len(server["description"]) == 100
    assert re.fullmatch(r"1\.\d{8}\.\d{1,6}", server["version"])
    (remote,) = server["remotes"]
    assert remote["type"] == "streamable-http"
    assert remote["url"] == "https://mcp.example.org/mcp/servers/github"
    (header,) = remote["headers"]
    assert (header["name"], header["isRequired"]) == ("Authorization", True)
    assert header["value"].format(**dict.fromkeys(header["variables"], "x")) == "Bearer x"
    assert (entry["_meta"][META]["status"], entry["_meta"][META]["isLatest"]) == ("active", True)
    assert "mcp.example.com" not in json.dumps(entry)


def test_clients_sign_in_without_a_header_if_they_can(acme: Organization, settings: Any) -> None:
    settings.BONOBOT_OAUTH = True
    add_server(acme, "github")
    assert "headers" not in get().json()["servers"][0]["server"]["remotes"][0]


def test_only_what_can_be_called_is_listed(acme: Organization) -> None:
    add_server(acme, "approved")
    add_server(acme, "disabled", enabled=False)
    pending = add_server(acme, "pending")
    pending.definitions.update(pinned_digest="")
    add_server(acme, "empty").definitions.all().delete()
    helper = factories.create_agent(acme)
    private = add_server(acme, "private", scope_id=helper.pk)
    assert list_names(get()) == ["servers.approved"]
    helper.agent_servers.create(organization=acme, server=private)
    assert list_names(get()) == ["agents.helper", "servers.approved"]
    helper.enabled = False
    helper.save()
    assert list_names(get()) == ["servers.approved"]
    acme.halted_at = timezone.now()
    acme.save()
    assert list_names(get()) == []


def test_the_list_is_the_one_of_the_decisions_about_calls(acme: Organization) -> None:
    administrator = factories.build_administrator(acme)
    servers = {name: add_server(acme, name) for name in ("aa", "denied", "changed", "page")}
    servers["changed"].definitions.create(
        organization=acme, kind="instructions", digest="new", pinned_digest="old"
    )
    servers["page"].definitions.update(kind="resource", name="page://1")
    set_policy(administrator, acme, PolicySpec("all", deny=("mcp_denied_*",)))
    helper, barred = factories.create_agent(acme), factories.create_agent(acme, "barred", "none")
    selecting = factories.create_agent(acme, "selecting")
    for agent in (helper, barred):
        for server in servers.values():
            attach_server(administrator, agent, server)
    attach_server(administrator, selecting, servers["page"], allowed_resources=["page://*"])
    names = ["agents.helper", "agents.selecting", "servers.aa", "servers.page"]
    assert list_names(get()) == names
    cache = get_snapshot_cache()
    for kind, rows in (("server", servers.values()), ("agent", (helper, barred, selecting))):
        for row in rows:
            snapshot = cache.load_current(kind, row.pk)
            used: list[Any] = [*snapshot.list_callable_tools(), *snapshot.definitions.values()]
            is_callable = any(
                item.decision.is_callable and item.facts.source == "mcp" for item in used
            )
            assert is_callable == (f"{kind}s.{row.slug}" in names), row


def test_a_changed_definition_leaves_the_list_at_once(acme: Organization) -> None:
    server = add_server(acme, "github")
    assert list_names(get()) == ["servers.github"]
    definition = server.definitions.get()
    definition.digest = "other"
    definition.save()
    assert list_names(get()) == []


def test_a_registry_is_off_by_default_and_then_needs_a_token() -> None:
    acme = factories.create_organization()
    add_server(acme, "github")
    token = create_token_text(acme)
    anonymous, with_token = get(), get(token=token)
    assert (anonymous.status_code, anonymous.json()["code"]) == (401, "not_authenticated")
    assert (with_token.status_code, with_token.json()["code"]) == (404, "unknown_registry")
    acme.registry = "token"
    acme.save()
    assert get().status_code == 401
    assert list_names(get(token=token)) == ["servers.github"]
    assert get(token="bnb_wrong_token").status_code == 401


def test_a_token_lists_what_it_can_use(acme: Organization) -> None:
    server = add_server(acme, "github")
    for slug in ("helper", "other"):
        agent = factories.create_agent(acme, slug)
        agent.agent_servers.create(organization=acme, server=server)
    member = create_token_text(acme, Role.MEMBER, agent_ids=[agent.pk])
    assert list_names(get(token=member)) == ["agents.other"]
    assert list_names(get(token=create_token_text(acme, Role.AUDITOR))) == []
    everything = ["agents.helper", "agents.other", "servers.github"]
    assert list_names(get(token=create_token_text(acme))) == everything
    narrow = get(token=create_token_text(acme, scopes=[TokenScope.AGENTS]))
    assert (narrow.status_code, narrow.json()["code"]) == (403, "insufficient_scope")


def test_organizations_are_separate(acme: Organization) -> None:
    add_server(acme, "github")
    other_organization = factories.create_organization("other")
    add_server(other_organization, "payroll")
    (entry,) = get().json()["servers"]
    assert entry["server"]["name"].endswith("acme/servers.github")
    name = entry["server"]["name"].replace("acme", "other").replace("github", "payroll")
    assert get(f"/{name}/versions/latest").status_code == 404
    token = create_token_text(other_organization)
    refused, missing = get(token=token), get(slug="nowhere", token=token)
    assert refused.status_code == missing.status_code == 404
    assert refused.json() == missing.json()
    assert get(slug="other").content == get(slug="nowhere").content


def test_vs_code_finds_a_server_by_its_encoded_name(acme: Organization) -> None:
    add_server(acme, "github")
    (entry,) = get("?limit=50&version=latest").json()["servers"]
    name, version = entry["server"]["name"], entry["server"]["version"]
    encoded = name.replace("/", "%2F")
    assert get(f"/{encoded}/versions/latest").json() == entry
    assert get(f"/{encoded}/versions/{version}").json() == entry
    assert get(f"/{encoded}/versions").json()["servers"] == [entry]
    for path in (f"/{encoded}x/versions/latest", f"/{encoded}/versions/9.9.9"):
        assert (get(path).status_code, get(path).json()["code"]) == (404, "unknown_server")


def test_pages_keep_the_search_of_the_first_one(acme: Organization) -> None:
    for name in ("aws-one", "aws-two", "aws-three", "github"):
        add_server(acme, name)
    first = get("?limit=2&version=latest&search=AWS").json()
    cursor = first["metadata"]["nextCursor"]
    assert re.fullmatch(r"[\w-]+", cursor)
    second = get(f"?limit=2&version=latest&cursor={cursor}")
    assert list_names(second) == ["servers.aws-two"]
    assert second.json()["metadata"] == {"count": 1}
    assert list_names(get("?version=1.0.0")) == []
    assert list_names(get("?updated_since=2099-01-01T00:00:00Z&include_deleted=true")) == []
    assert len(list_names(get("?limit=5000&unknown=1"))) == 4


@pytest.mark.parametrize(
    "query",
    ["limit=0", "limit=x", "cursor=x", "cursor=W10", "updated_since=x", f"cursor={'W1tb' * 9_000}"],
)
def test_a_bad_parameter_is_refused(acme: Organization, query: str) -> None:
    response = get(f"?{query}")
    assert response.status_code == 400
    assert response.json()["field"] == query.partition("=")[0]


def test_an_unchanged_list_isnt_sent_again(acme: Organization) -> None:
    add_server(acme, "github")
    first = get()
    again = get(**{"If-None-Match": f"W/{first['ETag']}"})
    assert (again.status_code, again.content, again["ETag"]) == (304, b"", first["ETag"])
    assert "no-cache" in first["Cache-Control"]
    add_server(acme, "gitlab")
    assert get(**{"If-None-Match": first["ETag"]}).status_code == 200


def test_an_unchanged_list_takes_few_queries(
    acme: Organization, django_assert_max_num_queries: Any
) -> None:
    for number in range(20):
        add_server(acme, f"server{number}")
    get()
    with django_assert_max_num_queries(6):
        get()
    Organization.objects.update(name="Acme 2")
    with django_assert_max_num_queries(20):
        get()


def test_pages_of_other_origins_may_read_it(acme: Organization) -> None:
    headers = {"Origin": "https://vscode.dev", "Access-Control-Request-Method": "GET"}
    preflight = Client().options("/registry/acme/v0.1/servers", headers=headers)
    assert (preflight.status_code, preflight["Access-Control-Allow-Origin"]) == (204, "*")
    assert "Authorization" in preflight["Access-Control-Allow-Headers"]
    refused = get(slug="nowhere", Origin="https://vscode.dev")
    for response in (get(Origin="https://vscode.dev"), refused):
        assert response["Access-Control-Allow-Origin"] == "*"
        assert "Access-Control-Allow-Credentials" not in response
    client = Client()
    client.force_login(User.objects.create_superuser("root", password="pw-for-tests"))
    assert client.get("/registry/nowhere/v0.1/servers").status_code == 401
    assert client.post("/registry/acme/v0.1/servers").status_code == 405


def test_too_many_requests_of_one_address_are_refused(
    acme: Organization, monkeypatch: pytest.MonkeyPatch
) -> None:
    limit = AttemptLimit("registry:address", 2, 1)
    monkeypatch.setattr("agents.gateway.server_registry.REQUESTS_PER_ADDRESS", limit)
    assert [get().status_code for _ in range(3)] == [200, 200, 429]
    refused = get()
    assert (refused.json()["code"], int(refused["Retry-After"]) > 0) == ("too_many_attempts", True)


def test_an_owner_enables_the_registry(acme: Organization) -> None:
    owner = rest.as_role(acme, Role.OWNER)
    organization = owner.patch("organization", {"registry": "token"}).json
    assert organization["registry"] == "token"
    assert organization["registry_url"].endswith("/registry/acme")
    assert owner.patch("organization", {"registry": "open"}).status == 400
    assert (
        rest.as_role(acme, Role.OPERATOR).patch("organization", {"registry": "off"}).status == 403
    )


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("https://mcp.example.com:8443", "com.example.mcp.my-org"),
        ("http://localhost:8000", "localhost.my-org"),
        ("http://[::1]:8000", "--1.my-org"),
    ],
)
def test_the_namespace_is_the_reversed_host(url: str, namespace: str) -> None:
    assert build_namespace(url, "my_org") == namespace


CATALOG = "/.well-known/mcp/catalog.json"


def test_the_catalog_leads_to_the_cards_of_public_registries(
    acme: Organization, settings: Any
) -> None:
    settings.BONOBOT_SERVER_CARDS, settings.BONOBOT_URL = True, "https://mcp.example.org"
    add_server(acme, "github", description="Issues.")
    other_organization = factories.create_organization("private")
    add_server(other_organization, "secret")
    response = Client().get(CATALOG)
    assert response["Access-Control-Allow-Origin"] == "*"
    catalog = response.json()
    assert catalog["specVersion"] == "draft"
    (entry,) = catalog["entries"]
    assert entry["identifier"] == "urn:air:mcp.example.org:acme:servers.github"
    assert (entry["displayName"], entry["type"]) == ("Github", "application/mcp-server-card+json")
    card = Client().get(entry["url"].removeprefix("https://mcp.example.org"))
    assert card["Content-Type"] == entry["type"]
    (listed,) = get().json()["servers"]
    described = card.json()
    assert described.pop("$schema").endswith("/v1/server-card.schema.json")
    (remote,) = described["remotes"]
    assert remote.pop("supportedProtocolVersions")[0] == "2026-07-28"
    assert described == {name: listed["server"][name] for name in described}
    etag = card["ETag"]
    path = entry["url"].removeprefix("https://mcp.example.org")
    assert Client().get(path, headers={"If-None-Match": etag}).status_code == 304
    private = path.replace("/acme/", "/private/").replace("github", "secret")
    assert Client().get(private).status_code == 401


def test_server_cards_are_off_by_default(acme: Organization) -> None:
    add_server(acme, "github")
    (listed,) = get().json()["servers"]
    card = f"/registry/acme/cards/{listed['server']['name']}"
    for path in (CATALOG, card):
        assert Client().get(path).status_code == 404
