"""A client on the second Python SDK without a token: `oauth_client.py URL`.

It prints the URL that a person has to open, waits on loopback until the person is redirected
back, lists the tools of the URL, refreshes its token, and lists them again.
"""

import asyncio
import json
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import httpx2
from mcp import Client
from mcp.client.auth import AuthorizationCodeResult, OAuthClientProvider
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.auth import OAuthClientInformationFull, OAuthClientMetadata, OAuthToken


class TokenStore:
    """The storage of the SDK, in memory."""

    tokens: OAuthToken | None = None
    client: OAuthClientInformationFull | None = None

    async def get_tokens(self) -> OAuthToken | None:
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        self.client = client_info


class Callback:
    """The redirect URI of the client, on a loopback port."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.result: asyncio.Future[AuthorizationCodeResult] = self.loop.create_future()
        self.server = HTTPServer(("127.0.0.1", 0), self._handler())
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/callback"

    async def wait(self) -> AuthorizationCodeResult:
        return await self.result

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                query = dict(parse_qsl(urlsplit(self.path).query))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<title>Back</title>")
                if "code" in query:
                    result = AuthorizationCodeResult(
                        code=query["code"], state=query.get("state"), iss=query.get("iss")
                    )
                    outer.loop.call_soon_threadsafe(outer.result.set_result, result)
                elif "error" in query:
                    error = RuntimeError(query["error"])
                    outer.loop.call_soon_threadsafe(outer.result.set_exception, error)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def print_line(line: str) -> None:
    """Print a line and flush."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def show(url: str) -> None:
    """Print the URL that the person has to open."""
    print_line(url)


async def main(url: str) -> None:
    """Sign in, and use the URL with two tokens."""
    store, callback = TokenStore(), Callback()
    metadata = OAuthClientMetadata(
        client_name="Test <b>client</b>",
        redirect_uris=[callback.url],  # type: ignore[list-item]
        grant_types=["authorization_code", "refresh_token"],
    )
    auth = OAuthClientProvider(url, metadata, store, show, callback.wait)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        tools = len((await client.list_tools()).tools)
        before = store.tokens
        auth.context.token_expiry_time = 1.0
        tools_after = len((await client.list_tools(cache_mode="refresh")).tools)
    assert before is not None
    assert store.tokens is not None
    data = {
        "tools": [tools, tools_after],
        "scope": store.tokens.scope,
        "renewed": before.access_token != store.tokens.access_token
        and before.refresh_token != store.tokens.refresh_token,
        "tokens": [store.tokens.access_token, store.tokens.refresh_token],
    }
    print_line(json.dumps(data))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
