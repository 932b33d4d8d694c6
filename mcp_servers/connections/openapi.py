"""An API as an upstream: a tool's call becomes one HTTP request of its operation.

What is asked is written in the declaration that was approved, never looked up anew, so that a
document that changes meanwhile changes no request. Nothing is repeated, and no redirect followed.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import httpx2

from bonobot.lib.egress import EgressDenied, guarded_client
from bonobot.lib.knocking import knock
from bonobot.lib.sayings import say
from mcp_servers.connections.changes import OnOpen, Topic, not_offered
from mcp_servers.connections.channel import (
    BUSY,
    REFUSAL_READ,
    REFUSED,
    TOO_MANY,
    read_body,
    retry_after,
)
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.eras import METHOD_NOT_FOUND, Greeting
from mcp_servers.connections.errors import (
    UpstreamError,
    bad_headers,
    denied,
    needs_reauth,
    not_reached,
    protocol_error,
    rpc_error,
    too_large,
    unreachable,
)
from mcp_servers.connections.host import Host
from mcp_servers.connections.pooled import Pooled
from mcp_servers.connections.updates import Told, Wish
from mcp_servers.connections.wire import Request
from mcp_servers.openapi.answers import result_of
from mcp_servers.openapi.extensions import PLAN
from mcp_servers.openapi.requests import Prepared, prepare

ACCEPTED = "application/json, text/*;q=0.9, image/*;q=0.8, */*;q=0.5"


class OpenApiUpstream(Pooled):
    """One API and credential: the pool of connections to it."""

    def __init__(self, endpoint: Endpoint, clock: Callable[[], float]) -> None:
        super().__init__(clock)
        self.endpoint = endpoint
        try:
            self._client = guarded_client(
                allow_private=endpoint.allow_private,
                headers=endpoint.headers,
                auth=endpoint.auth,
                max_body=endpoint.max_body,
            )
        except UnicodeEncodeError:
            raise bad_headers(endpoint) from None
        self._timeout = httpx2.Timeout(None, connect=endpoint.connect_s, pool=endpoint.connect_s)

    async def request(self, request: Request, holder: str, host: Host) -> dict[str, Any]:
        """Call an operation, or knock; raises `UpstreamError`, `InvalidArguments`.

        Waits for ever: deadlines are callers'.
        """
        if request.method == "tools/call":
            return await self._call(request)
        if request.method in ("ping", "server/discover"):
            await self._knock()
            return {}
        refusal = {"code": METHOD_NOT_FOUND, "message": "An API has tools only."}
        raise rpc_error(self.endpoint, refusal)

    async def greet(self, holder: str, host: Host) -> Greeting:
        """Knock, and say what an API is in the words of the protocol."""
        await self._knock()
        return greeting({})

    def forget_era(self) -> None:
        """Do nothing: it has none."""

    async def listen(
        self, topics: frozenset[Topic], holder: str, host: Host, on_open: OnOpen
    ) -> None:
        """Say that an API tells of no changes; raises `UpstreamError`."""
        raise not_offered(self.endpoint)

    async def follow(self, wish: Wish, told: Told, holder: str, host: Host) -> None:
        """Say that an API tells of no changes; raises `UpstreamError`."""
        raise not_offered(self.endpoint)

    def has_session(self, holder: str) -> bool:
        """Say no: each call stands for itself."""
        return False

    async def release(self, holder: str) -> None:
        """Do nothing: nothing belongs to a holder."""

    async def end_idle(self, before: float) -> None:
        """Do nothing: connections end by themselves."""

    async def close(self) -> None:
        """End all connections."""
        await self._client.aclose()

    async def _knock(self) -> None:
        endpoint = self.endpoint
        with _told(endpoint, Request("ping")):
            await knock(
                endpoint.url, allow_private=endpoint.allow_private, connect_s=endpoint.connect_s
            )

    async def _call(self, request: Request) -> dict[str, Any]:
        endpoint, plan = self.endpoint, self._plan(request)
        arguments = request.params.get("arguments")
        prepared = prepare(
            plan,
            endpoint.url,
            arguments if isinstance(arguments, dict) else {},
            query=endpoint.query.items(),
        )
        async with self._sent(request, prepared) as response:
            status, kind = response.status_code, response.headers.get("content-type", "")
            body = (
                await _read(response, REFUSAL_READ) if status >= 300 else await self._body(response)
            )
        return result_of(status, kind, body, plan.get("result", ""))

    async def _body(self, response: httpx2.Response) -> bytes:
        body = await read_body(response, self.endpoint.max_body)
        if body is None:
            raise too_large(self.endpoint, self.endpoint.max_body)
        return body

    def _plan(self, request: Request) -> Mapping[str, Any]:
        meta = (request.declaration or {}).get("_meta")
        plan = meta.get(PLAN) if isinstance(meta, dict) else None
        if not isinstance(plan, dict):
            raise protocol_error(
                self.endpoint,
                "this tool says of no operation that it stands for.",
                remedy="Refresh the server, and approve the tool again.",
            )
        if plan["key"] not in self.endpoint.operations:
            raise UpstreamError(
                say(
                    "`{key}` is no longer chosen at `{name}`.",
                    key=plan["key"],
                    name=self.endpoint.name,
                ),
                code="operation_not_chosen",
                server=self.endpoint.name,
                sent=False,
                remedy="Choose it again on the server's page, or refresh the server.",
            )
        return plan

    @asynccontextmanager
    async def _sent(self, request: Request, prepared: Prepared) -> AsyncIterator[httpx2.Response]:
        """Yield a response that isn't about us: credentials, or being too busy."""
        endpoint = self.endpoint

        async def leaving(event: str, info: Mapping[str, Any]) -> None:
            if event.endswith("send_request_headers.started"):
                request.sent = True

        with _told(endpoint, request):
            async with self._client.stream(
                prepared.method,
                prepared.url,
                content=prepared.body,
                headers=self._headers(prepared),
                timeout=self._timeout,
                extensions={"trace": leaving, "max_body": endpoint.max_body},
            ) as response:
                status, said = response.status_code, response.headers
                if status in REFUSED:
                    raise needs_reauth(endpoint, status, said.get("www-authenticate", ""))
                if status in BUSY:
                    raise unreachable(
                        endpoint,
                        say("it answered with HTTP {status}", status=status),
                        sent=status != TOO_MANY,
                        http_status=status,
                        retry_after=retry_after(said.get("retry-after")),
                        remedy="Try again later.",
                    )
                yield response

    def _headers(self, prepared: Prepared) -> list[tuple[str, str]]:
        """Return the headers of a request; none of them replaces one of ours."""
        endpoint = self.endpoint
        ours = {name.lower() for name in endpoint.headers}
        found = [("Accept", ACCEPTED)]
        found += [(name, value) for name, value in prepared.headers if name.lower() not in ours]
        own = endpoint.cookies
        cookies = [(name, value) for name, value in prepared.cookies if name not in own]
        if pairs := [f"{name}={value}" for name, value in (*own.items(), *cookies)]:
            found.append(("Cookie", "; ".join(pairs)))
        return found


def greeting(server_info: Mapping[str, Any]) -> Greeting:
    """Return an API's greeting: it has tools, and speaks no version of MCP."""
    return Greeting(
        era="",
        protocol_version="",
        server_info=server_info,
        capabilities={"tools": {}},
        instructions="",
        discovery={},
    )


async def _read(response: httpx2.Response, limit: int) -> bytes:
    """Return the beginning of a body, some `limit` bytes of it."""
    body = b""
    async for part in response.aiter_raw():
        body += part
        if len(body) >= limit:
            break
    return body


@contextmanager
def _told(endpoint: Endpoint, request: Request) -> Iterator[None]:
    """Raise what HTTP does wrong as `UpstreamError`."""
    try:
        yield
    except EgressDenied as refusal:
        raise denied(endpoint, refusal, sent=request.sent) from refusal
    except (httpx2.LocalProtocolError, UnicodeEncodeError) as error:  # may quote a credential
        raise bad_headers(endpoint) from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise not_reached(endpoint, error, sent=request.sent) from error
