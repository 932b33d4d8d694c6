"""A call whose headers a server refuses goes out once more, by what the server declares now."""

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
from tests.servers.raw_http_server import Asked, RawHttp

pytestmark = pytest.mark.django_db(transaction=True)


class Picky:
    """A server that refuses calls whose `region` isn't mirrored under the name it wants now."""

    def __init__(self) -> None:
        self.annotation = "Region"
        self.declared = "Region"
        self.http = RawHttp(self._answer)

    def _answer(self, asked: Asked) -> bytes:
        if asked.method == "server/discover":
            return raw_http_server.discovery(asked)
        if asked.method == "tools/list":
            region = {"type": "string", "x-mcp-header": self.declared}
            schema = {"type": "object", "properties": {"region": region}}
            return raw_http_server.result(
                asked, {"tools": [{"name": "list", "inputSchema": schema}]}
            )
        if asked.headers.get(f"mcp-param-{self.annotation.lower()}") != "eu":
            return raw_http_server.error(asked, -32020, status=400)
        return raw_http_server.result(asked, {"content": [{"type": "text", "text": "three"}]})

    def calls(self) -> int:
        return self.http.methods().count("tools/call")


@pytest.fixture
def picky(acme: Organization) -> Any:
    one = Picky()
    listening = one.http.listening()
    get_runtime().call(listening.__aenter__)
    yield one

    async def stop() -> None:
        await get_refresher().close()
        await listening.__aexit__(None, None, None)

    for server in Server.objects.all():
        get_runtime().call(get_connection_pool().forget_server, server.pk)
    get_runtime().call(stop)
    get_writer().close()


def served(acme: Organization, picky: Picky, approval: str) -> Server:
    server = factories.create_http_server(acme, picky.http.url, "picky")
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
    acme: Organization, picky: Picky
) -> None:
    server = served(acme, picky, "always")
    assert call(acme, server).outcome == "ok"
    picky.annotation = picky.declared = "Zone"
    outcome = call(acme, server)
    assert (outcome.outcome, outcome.text) == ("ok", "three")
    assert picky.calls() == 3  # one that was refused, and its second try
    assert AuditRow.objects.filter(event_type="call", outcome="ok").count() == 2


def test_a_call_of_a_changed_unreviewed_definition_isnt_sent(
    acme: Organization, picky: Picky
) -> None:
    server = served(acme, picky, "manual")
    picky.annotation = picky.declared = "Zone"
    outcome = call(acme, server)
    assert (outcome.outcome, outcome.code) == ("error", "definition_changed")
    assert "review" in outcome.remedy
    assert picky.calls() == 1


def test_a_server_with_unchanged_definitions_is_called_once(
    acme: Organization, picky: Picky, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = served(acme, picky, "always")
    picky.annotation = "Zone"
    assert call(acme, server).code == "upstream_error"
    assert picky.calls() == 1


def test_an_endlessly_refused_call_is_sent_at_most_twice(acme: Organization, picky: Picky) -> None:
    server = served(acme, picky, "always")
    picky.annotation, picky.declared = "Never", "Zone"
    assert call(acme, server).code == "upstream_error"
    assert picky.calls() == 2
    picky.declared = "Area"
    assert call(acme, server).code == "upstream_error"  # its next reading is not due yet
    assert picky.calls() == 3
    assert picky.http.methods().count("tools/list") == 2
    assert refresh_definitions.INTERVAL.total_seconds() >= 10
