"""Calls of API operations, whose HTTP responses become tool results."""

import json
from dataclasses import replace
from uuid import uuid4

import pytest

from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.pool import ConnectionPool
from mcp_servers.openapi.document import parse_document
from mcp_servers.openapi.operations import iterate_operations
from mcp_servers.openapi.responses import build_tool_result
from tests.mcp_servers.openapi.documents import PETS, parameter, text
from tests.servers.raw_http_server import RawHttp, response

PATHS = PETS | {
    "/login": {"get": {"parameters": [parameter("X-Key", "header"), parameter("sid", "cookie")]}}
}
TOOLS = {
    operation.key: operation.tool for operation in iterate_operations(parse_document(text(PATHS)))
}


def endpoint(api, **more):
    return ServerEndpoint(
        transport="openapi",
        server_id=uuid4(),
        name="pets",
        organization_id=uuid4(),
        url=f"http://127.0.0.1:{api.port}/v1",
        allow_private=True,
        operations=frozenset(TOOLS),
        read_s=10,
        **more,
    )


async def call_operation(api, key, arguments=None, **more):
    """Call an operation at `api`."""
    connections = ConnectionPool()
    try:
        return await connections.send_request(
            endpoint(api, **more),
            "tools/call",
            {"name": TOOLS[key]["name"], "arguments": arguments or {}},
            holder="test",
            declaration=TOOLS[key],
        )
    finally:
        await connections.close()


async def call_with_response(api_response, key="GET /pets", arguments=None, **more):
    """Return the result and the request that the API received."""
    async with RawHttp(lambda request: api_response).listening() as api:
        return await call_operation(api, key, arguments, **more), api.asked[0]


async def call_and_fail(api_response, **more):
    with pytest.raises(UpstreamError) as error:
        await call_with_response(api_response, **more)
    return error.value


async def test_json_is_returned_as_text_and_structured_content():
    result, request = await call_with_response(response(200, b'{"a": 1}'), arguments={"limit": 3})
    assert result == {
        "content": [{"type": "text", "text": '{"a": 1}'}],
        "structuredContent": {"a": 1},
    }
    assert (request.verb, request.path) == ("GET", "/v1/pets?limit=3")


async def test_a_body_is_sent_with_the_credential():
    api_response = response(201, b"[1]")
    result, request = await call_with_response(
        api_response,
        "POST /pets",
        {"body": {"name": "x"}},
        headers={"Authorization": "Bearer sesame"},
    )
    assert request.message == {"name": "x"}
    assert request.headers["authorization"] == "Bearer sesame"
    assert request.headers["content-type"] == "application/json"
    assert result["structuredContent"] == {"result": [1]}


async def test_an_argument_cant_replace_our_headers_cookies_or_query():
    configured = {"headers": {"X-Key": "ours"}, "cookies": {"sid": "ours"}, "query": {"k": "o&o"}}
    arguments = {"X-Key": "theirs", "sid": "theirs"}
    _, request = await call_with_response(
        response(200, b"{}"), "GET /login", arguments, **configured
    )
    assert (request.headers["x-key"], request.headers["cookie"]) == ("ours", "sid=ours")
    assert request.path == "/v1/login?k=o%26o"


@pytest.mark.parametrize("status", [400, 404, 409, 418, 500, 501])
async def test_an_error_response_is_a_result_for_the_model(status):
    result, _ = await call_with_response(response(status, b'{"why": "no such pet"}'))
    assert result["isError"] is True
    assert result["content"][0]["text"].startswith(f"HTTP {status}")
    assert "no such pet" in result["content"][0]["text"]


async def test_a_long_error_is_truncated():
    result, _ = await call_with_response(response(400, b"x" * 1_000_000, kind="text/plain"))
    assert len(result["content"][0]["text"]) < 20_000


@pytest.mark.parametrize("status", [401, 403])
async def test_refused_credentials_mark_the_server_as_needing_credentials(status):
    error = await call_and_fail(response(status, b"", WWW_Authenticate='Bearer realm="x"'))
    assert (error.code, error.extra["challenge"]) == ("needs_reauth", 'Bearer realm="x"')


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_api_is_reported_with_retry_after(status):
    error = await call_and_fail(response(status, b"", Retry_After="7"))
    assert (error.code, error.retry_after) == ("server_unreachable", 7)
    assert error.sent is (status == 503)


async def test_a_redirect_isnt_followed():
    error = await call_and_fail(response(302, b"", Location="http://169.254.169.254/"))
    assert error.code == "redirect_denied"


async def test_a_body_over_the_limit_is_refused():
    error = await call_and_fail(response(200, b"x" * 2000), max_body=1000)
    assert error.code == "response_too_large"


async def test_an_operation_that_is_no_longer_selected_isnt_called():
    async with RawHttp(lambda request: response()).listening() as api:
        limited = replace(endpoint(api), operations=frozenset({"GET /pets"}))
        connections = ConnectionPool()
        with pytest.raises(UpstreamError) as error:
            await connections.send_request(
                limited,
                "tools/call",
                {"arguments": {"id": "1"}},
                holder="t",
                declaration=TOOLS["GET /pets/{id}"],
            )
        await connections.close()
    assert (error.value.code, error.value.sent, api.asked) == ("operation_not_selected", False, [])


async def test_a_tool_without_an_operation_isnt_called():
    async with RawHttp(lambda request: response()).listening() as api:
        connections = ConnectionPool()
        for method, code in (("tools/call", "protocol_error"), ("tools/list", "upstream_error")):
            with pytest.raises(UpstreamError) as error:
                await connections.send_request(endpoint(api), method, {}, holder="t")
            assert error.value.code == code
        await connections.close()
    assert api.asked == []


async def test_a_health_check_opens_a_connection_without_a_request():
    connections = ConnectionPool()
    async with RawHttp(lambda request: response()).listening() as api:
        assert await connections.send_request(endpoint(api), "ping", holder="t") == {}
        assert (await connections.perform_handshake(endpoint(api), holder="t")).era == ""
    with pytest.raises(UpstreamError) as error:
        await connections.send_request(endpoint(api), "ping", holder="t")
    await connections.close()
    assert (error.value.code, error.value.sent, api.asked) == ("server_unreachable", False, [])


async def test_a_private_address_needs_permission_and_metadata_is_never_contacted():
    async with RawHttp(lambda request: response()).listening() as api:
        private = replace(endpoint(api), allow_private=False)
        metadata = replace(endpoint(api), url="http://169.254.169.254/latest")
        connections = ConnectionPool()
        for target, code in ((private, "private_address"), (metadata, "egress_denied")):
            with pytest.raises(UpstreamError) as error:
                await connections.send_request(
                    target, "tools/call", {}, holder="t", declaration=TOOLS["GET /pets"]
                )
            assert (error.value.code, error.value.sent) == (code, False)
        await connections.close()
    assert api.asked == []


async def test_a_call_whose_connection_breaks_may_have_run():
    error = await call_and_fail(b"HTTP/1.1 200 OK\r\nConnection: close\r\n")
    assert (error.code, error.sent) == ("server_unreachable", True)


def text_of(result):
    return result["content"][0]["text"]


def test_responses_are_converted_by_their_media_type():
    assert text_of(build_tool_result(200, "text/csv", b"a,b")) == "a,b"
    assert text_of(build_tool_result(200, "text/plain; charset=ISO-8859-1", b"\xe9")) == "é"
    assert "no content" in text_of(build_tool_result(204, "", b""))
    assert text_of(build_tool_result(200, "application/pdf", b"1234")).startswith(
        "The answer is application/pdf, 4"
    )
    (image,) = build_tool_result(200, "image/png", b"\x89PNG")["content"]
    assert (image["type"], image["mimeType"], image["data"]) == ("image", "image/png", "iVBORw==")
    assert "html" not in text_of(build_tool_result(500, "text/html", b"<html>"))


def test_invalid_json_is_shown_with_a_note():
    result = build_tool_result(200, "application/json", b"{nope")
    assert "structuredContent" not in result
    assert result["content"][1]["text"] == "{nope"


def test_secrets_of_the_endpoint_are_masked():
    class Api:
        port = 1

    api_endpoint = endpoint(Api, query={"k": "in-query"}, cookies={"c": "in-cookie"})
    assert {"in-query", "in-cookie"} <= set(api_endpoint.secrets)
    assert json.dumps("in-query") not in repr(api_endpoint)


async def test_invalid_headers_are_reported_without_their_values():
    for headers in ({"X-Key": "gehéim"}, {"X-Key": "gehe\nim"}):
        error = await call_and_fail(response(), headers=headers)
        assert (error.code, error.sent) == ("server_unreachable", False)
        assert "geh" not in str(error)


async def test_an_api_has_no_notifications_and_no_connections():
    async with RawHttp(lambda request: response()).listening() as api:
        connections = ConnectionPool(idle_s=0, clock=iter(range(0, 10_000, 100)).__next__)
        api_endpoint = endpoint(api)
        with pytest.raises(UpstreamError):
            await connections.listen(api_endpoint, holder="t", on_open=None)
        await connections.send_request(api_endpoint, "ping", holder="t")
        await connections.release("t")
        await connections.close_idle()
        await connections.send_request(api_endpoint, "ping", holder="t")
        await connections.forget_server(api_endpoint.server_id)
        await connections.close()
    assert api.asked == []
