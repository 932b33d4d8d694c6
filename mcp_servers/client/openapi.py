"""Tool calls of OpenAPI servers as HTTP requests.

Requests are built from the approved declaration, so a changed document changes no request. Requests
are never repeated, and redirects never followed.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2

from bonobot.core.http.egress import EgressDenied, build_guarded_client, probe_connection
from bonobot.core.i18n.messages import format_message
from mcp_servers.client.answer_server_requests import Host
from mcp_servers.client.change_notifications import (
    DesiredSubscriptions,
    OnOpen,
    OnSubscriptionResult,
    Topic,
    build_not_offered_error,
)
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import (
    UpstreamError,
    build_connection_error,
    build_egress_error,
    build_header_error,
    build_protocol_error,
    build_reauth_error,
    build_rpc_error,
    build_too_large_error,
    build_unreachable_error,
)
from mcp_servers.client.http_requests import (
    BUSY_STATUSES,
    MAX_ERROR_BODY_BYTES,
    TOO_MANY_REQUESTS,
    UNAUTHORIZED_STATUSES,
    IdleTracker,
    parse_retry_after,
    read_body,
)
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.protocol_versions import METHOD_NOT_FOUND, HandshakeResult
from mcp_servers.openapi.operations import PLAN_META_KEY
from mcp_servers.openapi.requests import PreparedRequest, prepare_request
from mcp_servers.openapi.responses import build_tool_result

ACCEPT_HEADER = "application/json, text/*;q=0.9, image/*;q=0.8, */*;q=0.5"


class OpenApiUpstream(IdleTracker):
    """One API and credential: the pool of connections to it."""

    def __init__(self, endpoint: ServerEndpoint, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.endpoint = endpoint
        try:
            self._client = build_guarded_client(
                allow_private=endpoint.allow_private,
                headers=endpoint.headers,
                auth=endpoint.auth,
                max_body=endpoint.max_body,
            )
        except UnicodeEncodeError:
            raise build_header_error(endpoint) from None
        self._timeout = httpx2.Timeout(None, connect=endpoint.connect_s, pool=endpoint.connect_s)

    async def send_request(self, request: McpRequest, holder: str, host: Host) -> dict[str, Any]:
        """Call an operation or check the connection; raises `UpstreamError`, `InvalidArguments`.

        The caller sets the deadline.
        """
        if request.method == "tools/call":
            return await self._call_operation(request)
        if request.method in ("ping", "server/discover"):
            await self._check_connection()
            return {}
        refusal = {"code": METHOD_NOT_FOUND, "message": "An API has tools only."}
        raise build_rpc_error(self.endpoint, refusal)

    async def perform_handshake(self, holder: str, host: Host) -> HandshakeResult:
        """Check the connection and return the handshake result of an API."""
        await self._check_connection()
        return build_handshake_result({})

    def forget_era(self) -> None:
        """Do nothing: an API has no era."""

    async def listen(
        self, topics: frozenset[Topic], holder: str, host: Host, on_open: OnOpen
    ) -> None:
        """Raise `UpstreamError`: an API has no change notifications."""
        raise build_not_offered_error(self.endpoint)

    async def watch_resources(
        self,
        desired: DesiredSubscriptions,
        on_result: OnSubscriptionResult,
        holder: str,
        host: Host,
    ) -> None:
        """Raise `UpstreamError`: an API has no change notifications."""
        raise build_not_offered_error(self.endpoint)

    def has_session(self, holder: str) -> bool:
        """Return False: an API is stateless."""
        return False

    async def release(self, holder: str) -> None:
        """Do nothing: nothing belongs to a holder."""

    async def close_idle_sessions(self, unused_since: float) -> None:
        """Do nothing: an API has no sessions."""

    async def close(self) -> None:
        """Close all connections."""
        await self._client.aclose()

    async def _check_connection(self) -> None:
        endpoint = self.endpoint
        with _convert_http_errors(endpoint, McpRequest("ping")):
            await probe_connection(
                endpoint.url, allow_private=endpoint.allow_private, connect_s=endpoint.connect_s
            )

    async def _call_operation(self, request: McpRequest) -> dict[str, Any]:
        endpoint, plan = self.endpoint, self._get_plan(request)
        arguments = request.params.get("arguments")
        prepared = prepare_request(
            plan,
            endpoint.url,
            arguments if isinstance(arguments, dict) else {},
            query=endpoint.query.items(),
        )
        async with self._open_response(request, prepared) as response:
            status, content_type = response.status_code, response.headers.get("content-type", "")
            body = (
                await _read_start(response, MAX_ERROR_BODY_BYTES)
                if status >= 300
                else await self._read_body(response)
            )
        return build_tool_result(status, content_type, body, plan.get("result", ""))

    async def _read_body(self, response: httpx2.Response) -> bytes:
        body = await read_body(response, self.endpoint.max_body)
        if body is None:
            raise build_too_large_error(self.endpoint, self.endpoint.max_body)
        return body

    def _get_plan(self, request: McpRequest) -> Mapping[str, Any]:
        meta = (request.declaration or {}).get("_meta")
        plan = meta.get(PLAN_META_KEY) if isinstance(meta, dict) else None
        if not isinstance(plan, dict):
            raise build_protocol_error(
                self.endpoint,
                "the tool doesn't name its operation",
                remedy="Refresh the server, then review the tool again.",
            )
        if plan["key"] not in self.endpoint.operations:
            raise UpstreamError(
                format_message(
                    "`{key}` is no longer selected for `{name}`.",
                    key=plan["key"],
                    name=self.endpoint.name,
                ),
                code="operation_not_selected",
                server=self.endpoint.name,
                sent=False,
                remedy="Select it again on the server's page, or refresh the server.",
            )
        return plan

    @asynccontextmanager
    async def _open_response(
        self, request: McpRequest, prepared: PreparedRequest
    ) -> AsyncIterator[httpx2.Response]:
        """Yield the response; raises for rejected credentials and an overloaded server."""
        endpoint = self.endpoint

        async def mark_sent(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                request.sent = True

        with _convert_http_errors(endpoint, request):
            async with self._client.stream(
                prepared.method,
                prepared.url,
                content=prepared.body,
                headers=self._build_headers(prepared),
                timeout=self._timeout,
                extensions={"trace": mark_sent, "max_body": endpoint.max_body},
            ) as response:
                status, headers = response.status_code, response.headers
                if status in UNAUTHORIZED_STATUSES:
                    raise build_reauth_error(endpoint, status, headers.get("www-authenticate", ""))
                if status in BUSY_STATUSES:
                    raise build_unreachable_error(
                        endpoint,
                        format_message("it returned HTTP {status}", status=status),
                        sent=status != TOO_MANY_REQUESTS,
                        http_status=status,
                        retry_after=parse_retry_after(headers.get("retry-after")),
                        remedy="Try again later.",
                    )
                yield response

    def _build_headers(self, prepared: PreparedRequest) -> list[tuple[str, str]]:
        """Return the headers of a request; configured headers take precedence."""
        endpoint = self.endpoint
        configured_names = {name.lower() for name in endpoint.headers}
        headers = [("Accept", ACCEPT_HEADER)]
        headers += [
            (name, value)
            for name, value in prepared.headers
            if name.lower() not in configured_names
        ]
        configured_cookies = endpoint.cookies
        cookies = [
            (name, value) for name, value in prepared.cookies if name not in configured_cookies
        ]
        if pairs := [f"{name}={value}" for name, value in (*configured_cookies.items(), *cookies)]:
            headers.append(("Cookie", "; ".join(pairs)))
        return headers


def build_handshake_result(server_info: Mapping[str, Any]) -> HandshakeResult:
    """Return the handshake result of an API: it has tools and no MCP version."""
    return HandshakeResult(
        era="",
        protocol_version="",
        server_info=server_info,
        capabilities={"tools": {}},
        instructions="",
        discovery={},
    )


async def _read_start(response: httpx2.Response, limit: int) -> bytes:
    """Return about the first `limit` bytes of a body."""
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) >= limit:
            break
    return body


@contextmanager
def _convert_http_errors(endpoint: ServerEndpoint, request: McpRequest) -> Iterator[None]:
    """Convert HTTP errors to `UpstreamError`."""
    try:
        yield
    except EgressDenied as refusal:
        raise build_egress_error(endpoint, refusal, sent=request.sent) from refusal
    except (httpx2.LocalProtocolError, UnicodeEncodeError) as error:  # may quote a credential
        raise build_header_error(endpoint) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise build_connection_error(endpoint, error, sent=request.sent) from error
