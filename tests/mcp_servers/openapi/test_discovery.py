"""An API from its document to a call through the gateway, and changes of its document."""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from agents.calls import pipeline
from bonobot.accounts.models import Organization
from bonobot.accounts.roles import Role
from bonobot.accounts.tokens.services import create_token
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.definition_reviews import approve_definitions
from mcp_servers.discovery import run_discovery
from mcp_servers.health.check_servers import check_server
from mcp_servers.models import ApiDocument, Server
from mcp_servers.server_config import ServerSpec
from mcp_servers.services import create_server, update_server
from tests import factories, rest
from tests.mcp_servers.openapi.documents import PETS, document

pytestmark = pytest.mark.django_db(transaction=True)


class Api(ThreadingHTTPServer):
    """An API with its document, on the loopback, that records its requests."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.document = document(PETS)
        self.status = 200
        self.asked = []

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.asked.append((self.path, dict(self.headers)))
        if self.path != "/openapi.json":
            return self._send(self.server.status, json.dumps({"path": self.path}).encode())
        body = json.dumps(self.server.document).encode()
        tag = f'"{hash(body)}"'
        unchanged = self.headers.get("If-None-Match") == tag
        return self._send(304 if unchanged else self.server.status, b"" if unchanged else body, tag)

    def _send(self, status, body, tag="-"):
        self.send_response(status)
        for name, value in (
            ("Content-Type", "application/json"),
            ("Content-Length", len(body)),
            ("ETag", tag),
        ):
            self.send_header(name, str(value))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args):
        pass


@pytest.fixture
def api():
    with Api() as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def administrator(transactional_db):
    return factories.build_administrator(factories.create_organization())


def spec(api, *keys, name="pets", **config):
    config = {"url": api.url, "operations": list(keys or ["GET /pets", "GET /pets/{id}"])} | config
    more = {} if "auth_config" not in config else {"auth_config": config.pop("auth_config")}
    return ServerSpec(
        name=name, transport_type="openapi", endpoint_config=config, allow_private=True, **more
    )


def by_url(api, *keys, **config):
    return spec(api, *keys, document_url=f"{api.url}/openapi.json", **config)


def discover(administrator, server):
    result = get_runtime().call(run_discovery, server.pk, actor=administrator.actor)
    server.refresh_from_db()
    return result


def states(server):
    return {row.name: row.state.value for row in server.definitions.all()}


def call(administrator, server, tool, **arguments):
    request = pipeline.CallRequest(
        principal=administrator,
        tool=tool,
        arguments=arguments,
        via="test",
        holder="test",
        server_id=server.pk,
    )
    return get_runtime().call(pipeline.make_call, request)


def test_selected_operations_are_reviewed_approved_and_called(administrator, api):
    server = create_server(administrator, by_url(api))
    result = discover(administrator, server)
    assert result.tools == ("getPet", "listPets")
    assert (server.status, server.era) == (Server.Status.CONNECTED, "")
    assert states(server) == {"getPet": "pending", "listPets": "pending"}
    approve_definitions(administrator, server)
    assert '"/pets/a%2Fb"' in call(administrator, server, "getPet", id="a/b").text
    assert call(administrator, server, "getPet", id="../admin").code == "invalid_arguments"
    assert [path for path, _ in api.asked] == ["/openapi.json", "/pets/a%2Fb"]


def test_a_changed_document_requires_review_only_of_its_changes(administrator, api):
    server = create_server(administrator, by_url(api))
    discover(administrator, server)
    approve_definitions(administrator, server)
    discover(administrator, server)
    assert set(states(server).values()) == {"approved"}
    changed = json.loads(json.dumps(PETS))
    changed["/pets"]["get"]["parameters"][0]["in"] = "header"
    del changed["/pets/{id}"]
    api.document = document(changed)
    result = discover(administrator, server)
    assert states(server) == {"listPets": "changed", "getPet": "gone"}
    assert "`GET /pets/{id}` is no longer in the document." in result.notices


def test_an_unchanged_document_isnt_fetched_again(administrator, api):
    server = create_server(administrator, by_url(api))
    discover(administrator, server)
    before = ApiDocument.objects.get(server=server)
    discover(administrator, server)
    assert "If-None-Match" in api.asked[-1][1]
    assert ApiDocument.objects.get(server=server).fetched_at == before.fetched_at


def test_the_credential_isnt_sent_to_a_document_of_another_origin(administrator, api):
    auth = {"type": "bearer_token", "token": "sesame-sesame"}
    with Api() as other:
        threading.Thread(target=other.serve_forever, args=(0.05,), daemon=True).start()
        elsewhere = spec(api, document_url=f"{other.url}/openapi.json", auth_config=auth)
        discover(administrator, create_server(administrator, elsewhere))
        other.shutdown()
    discover(
        administrator, create_server(administrator, by_url(api, name="home", auth_config=auth))
    )
    assert "Authorization" not in other.asked[0][1]
    assert api.asked[0][1]["Authorization"] == "Bearer sesame-sesame"


def test_an_invalid_document_is_reported_and_the_valid_one_kept(administrator, api):
    server = create_server(administrator, by_url(api))
    discover(administrator, server)
    approve_definitions(administrator, server)
    for broken in ([], {"swagger": "2.0"}):
        api.document = broken
        with pytest.raises(Problem):
            discover(administrator, server)
    server.refresh_from_db()
    assert server.status == Server.Status.ERROR
    assert "listPets" in ApiDocument.objects.get(server=server).text
    assert set(states(server).values()) == {"approved"}


def test_a_deselected_operation_cant_be_called(administrator, api):
    server = create_server(administrator, by_url(api))
    discover(administrator, server)
    approve_definitions(administrator, server)
    update_server(administrator, server, by_url(api, "GET /pets"))
    assert call(administrator, server, "getPet", id="1").code == "operation_not_selected"
    get_runtime().call(check_server, server.pk)
    assert states(server) == {"listPets": "approved", "getPet": "gone"}


def test_an_uploaded_document_needs_no_url(administrator, api):
    server = create_server(administrator, spec(api, document=json.dumps(document(PETS))))
    discover(administrator, server)
    get_runtime().call(check_server, server.pk)
    server.refresh_from_db()
    assert server.status == Server.Status.CONNECTED
    assert api.asked == []
    update_server(administrator, server, spec(api))
    assert ApiDocument.objects.filter(server=server).exists()


def test_refused_operations_are_shown_and_never_listed_as_tools(administrator, api):
    paths = {"/bad": {"get": {"parameters": 3}}, "/odd": {"get": {"description": "a\u202eb"}}}
    server = create_server(
        administrator, spec(api, "GET /bad", "GET /odd", document=json.dumps(document(paths)))
    )
    discover(administrator, server)
    assert set(states(server).values()) == {"refused"}
    assert "/paths/~1bad/get" in server.definitions.get(name="get_bad").fault


def test_an_unavailable_api_is_unreachable(administrator, api):
    api.shutdown()
    api.server_close()
    with pytest.raises(Problem) as problem:
        discover(
            administrator,
            create_server(administrator, spec(api, document=json.dumps(document(PETS)))),
        )
    assert problem.value.code == "server_unreachable"


@pytest.mark.parametrize(
    ("config", "field"),
    [
        ({"operations": []}, "endpoint_config.operations"),
        ({"operations": ["pets"]}, "endpoint_config.operations"),
        ({"operations": [f"GET /{n}" for n in range(1001)]}, "endpoint_config.operations"),
        ({"document_url": "ftp://example.com"}, "endpoint_config.document_url"),
        ({"document_url": "http://169.254.169.254/x"}, "endpoint_config.document_url"),
        ({"url": "http://169.254.169.254/"}, "endpoint_config.url"),
        ({"document": ""}, "endpoint_config.document"),
        ({"document": "x" * (4 * 1024 * 1024 + 1)}, "endpoint_config.document"),
        ({"document": None}, "endpoint_config.document"),
        ({"command": "x"}, "endpoint_config.command"),
    ],
)
def test_an_invalid_configuration_is_refused(administrator, api, config, field):
    with pytest.raises(Problem) as problem:
        create_server(administrator, spec(api, **({"document": "{}"} | config)))
    assert problem.value.field == field


def test_an_api_key_in_the_query_is_only_for_apis(administrator, api):
    key = {"type": "api_key", "in": "query", "header": "api_key", "key": "sesame"}
    server = create_server(administrator, by_url(api, auth_config=key))
    discover(administrator, server)
    approve_definitions(administrator, server)
    assert "/pets?api_key=" in call(administrator, server, "listPets").text
    assert api.asked[-1][0] == "/pets?api_key=sesame"
    mcp = ServerSpec(
        name="m",
        transport_type="http",
        endpoint_config={"url": "https://a.example"},
        auth_config=key,
    )
    with pytest.raises(Problem) as problem:
        create_server(administrator, mcp)
    assert problem.value.field == "auth_config.in"


def test_the_products_own_api_can_be_called_through_the_gateway(administrator, live_web):
    organization = Organization.objects.get(pk=administrator.organization_id)
    factories.create_agent(organization, "scout")
    _, token = create_token(administrator, name="own", role=Role.OPERATOR)
    api_spec = ServerSpec(
        name="bonobot",
        transport_type="openapi",
        endpoint_config={
            "url": live_web.url,
            "document": json.dumps(rest.build_document()),
            "operations": ["GET /api/agents", "GET /api/agents/{agent_id}"],
        },
        auth_config={"type": "bearer_token", "token": token},
        allow_private=True,
    )
    server = factories.approve_server(organization, create_server(administrator, api_spec))
    result = call(administrator, server, "list_agents", limit=5)
    assert not result.is_error
    assert json.loads(result.text)["results"][0]["slug"] == "scout"
    missing = call(administrator, server, "get_agent", agent_id="no/such")
    assert missing.is_error
    assert missing.text.startswith("HTTP 404")
    get_runtime().call(get_connection_pool().forget_server, server.pk)
