"""A call whose headers a server rejects is resent once, with the current definition."""

from typing import Any

import pytest

from agents.calls import pipeline
from bonobot.accounts.models import Organization
from bonobot.core.runtime import get_runtime
from bonobot.ledger.models import AuditRow
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers import refresh_definitions
from mcp_servers.client.pool import get_connection_pool
from mcp_servers.models import Server
from mcp_servers.refresh_definitions import get_refresher
from tests import factories
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp, RecordedRequest

pytestmark = pytest.mark.django_db(transaction=True)


class HeaderServer:
    """A server that rejects calls whose `region` isn't in the header that it expects now."""

    def __init__(self) -> None:
        self.annotation = "Region"
        self.declared = "Region"
        self.http = RawHttp(self._respond)

    def _respond(self, request: RecordedRequest) -> bytes:
        if request.method == "server/discover":
            return raw_http_server.discovery(request)
        if request.method == "tools/list":
            region = {"type": "string", "x-mcp-header": self.declared}
            schema = {"type": "object", "properties": {"region": region}}
            return raw_http_server.result(
                request, {"tools": [{"name": "list", "inputSchema": schema}]}
            )
        if request.headers.get(f"mcp-param-{self.annotation.lower()}") != "eu":
            return raw_http_server.error(request, -32020, status=400)
        return raw_http_server.result(request, {"content": [{"type": "text", "text": "three"}]})

    def calls(self) -> int:
        return self.http.methods().count("tools/call")


@pytest.fixture
def server_with_headers(acme: Organization) -> Any:
    header_server = HeaderServer()
    listening = header_server.http.listening()
    get_runtime().call(listening.__aenter__)
    yield header_server

    async def stop() -> None:
        await get_refresher().close()
        await listening.__aexit__(None, None, None)

    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(stop)
    get_writer().close()


def create_approved_server(
    acme: Organization, server_with_headers: HeaderServer, approval: str
) -> Server:
    server = factories.create_http_server(acme, server_with_headers.http.url, "picky")
    Server.objects.filter(pk=server.pk).update(approval=approval)
    return factories.approve_server(acme, server)


def call(acme: Organization, server: Server) -> pipeline.CallOutcome:
    request = pipeline.CallRequest(
        principal=factories.build_administrator(acme),
        tool="list",
        arguments={"region": "eu"},
        via="rest",
        holder="server:test",
        server_id=server.pk,
    )
    return get_runtime().call(pipeline.make_call, request)


def test_a_call_is_resent_if_the_changed_definition_is_allowed(
    acme: Organization, server_with_headers: HeaderServer
) -> None:
    server = create_approved_server(acme, server_with_headers, "always")
    assert call(acme, server).outcome == "ok"
    server_with_headers.annotation = server_with_headers.declared = "Zone"
    outcome = call(acme, server)
    assert (outcome.outcome, outcome.text) == ("ok", "three")
    assert server_with_headers.calls() == 3  # one of them rejected and resent
    assert AuditRow.objects.filter(event_type="call", outcome="ok").count() == 2


def test_a_call_of_a_changed_unreviewed_definition_isnt_sent(
    acme: Organization, server_with_headers: HeaderServer
) -> None:
    server = create_approved_server(acme, server_with_headers, "manual")
    server_with_headers.annotation = server_with_headers.declared = "Zone"
    outcome = call(acme, server)
    assert (outcome.outcome, outcome.code) == ("error", "definition_changed")
    assert "review" in outcome.remedy
    assert server_with_headers.calls() == 1


def test_a_server_with_unchanged_definitions_is_called_once(
    acme: Organization, server_with_headers: HeaderServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = create_approved_server(acme, server_with_headers, "always")
    server_with_headers.annotation = "Zone"
    assert call(acme, server).code == "upstream_error"
    assert server_with_headers.calls() == 1


def test_an_endlessly_refused_call_is_sent_at_most_twice(
    acme: Organization, server_with_headers: HeaderServer
) -> None:
    server = create_approved_server(acme, server_with_headers, "always")
    server_with_headers.annotation, server_with_headers.declared = "Never", "Zone"
    assert call(acme, server).code == "upstream_error"
    assert server_with_headers.calls() == 2
    server_with_headers.declared = "Area"
    assert call(acme, server).code == "upstream_error"  # the next refresh isn't due yet
    assert server_with_headers.calls() == 3
    assert server_with_headers.http.methods().count("tools/list") == 2
    assert refresh_definitions.INTERVAL.total_seconds() >= 10
