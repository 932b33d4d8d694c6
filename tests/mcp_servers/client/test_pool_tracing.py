"""The trace context is sent to servers."""

from mcp_servers.client.pool import ConnectionPool
from tests.mcp_servers.client.endpoints import HOLDER, http
from tests.servers import raw_http_server
from tests.servers.raw_http_server import RawHttp
from tests.traces import PARENT, collect_spans


async def test_a_server_receives_the_trace_context_of_our_span(connections: ConnectionPool):
    async with RawHttp(lambda request: raw_http_server.text(request)).listening() as server:
        endpoint = http(server.url, era="modern")
        params = {"name": "x", "_meta": {"traceparent": PARENT}}
        with collect_spans() as spans:
            await connections.send_request(endpoint, "tools/call", params, holder=HOLDER)
    (span,) = spans.get_finished_spans()
    meta = server.asked[0].message["params"]["_meta"]
    context = span.get_span_context()
    prefix = f"00-{context.trace_id:032x}-{context.span_id:016x}-"
    assert meta["traceparent"].startswith(prefix)
