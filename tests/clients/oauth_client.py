"""A client on the second Python SDK without a token: `oauth_client.py URL`.

It prints the address that a person has to open, waits on the loopback until the person is sent
back, uses what is at the URL, renews its token, and uses it again.
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


class Memory:
    """What the SDK keeps: here only for as long as this runs."""

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
    """Where the person is sent back to, on a port of the loopback."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.came: asyncio.Future[AuthorizationCodeResult] = self.loop.create_future()
        self.server = HTTPServer(("127.0.0.1", 0), self._handler())
        Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_port}/callback"

    async def wait(self) -> AuthorizationCodeResult:
        return await self.came

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                said = dict(parse_qsl(urlsplit(self.path).query))
                self.send_response(200)
                self.end_headers()
                self.wfile.write(b"<title>Back</title>")
                if "code" in said:
                    result = AuthorizationCodeResult(
                        code=said["code"], state=said.get("state"), iss=said.get("iss")
                    )
                    outer.loop.call_soon_threadsafe(outer.came.set_result, result)
                elif "error" in said:
                    fault = RuntimeError(said["error"])
                    outer.loop.call_soon_threadsafe(outer.came.set_exception, fault)

            def log_message(self, *_: Any) -> None:
                pass

        return Handler


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


async def show(url: str) -> None:
    """Tell the person what to open."""
    say(url)


async def main(url: str) -> None:
    """Get in, and use what is at the URL with two tokens."""
    memory, callback = Memory(), Callback()
    about = OAuthClientMetadata(
        client_name="Test <b>client</b>",
        redirect_uris=[callback.url],  # type: ignore[list-item]
        grant_types=["authorization_code", "refresh_token"],
    )
    auth = OAuthClientProvider(url, about, memory, show, callback.wait)
    async with (
        httpx2.AsyncClient(auth=auth, timeout=60) as http,
        Client(streamable_http_client(url, http_client=http)) as client,
    ):
        tools = len((await client.list_tools()).tools)
        before = memory.tokens
        auth.context.token_expiry_time = 1.0
        again = len((await client.list_tools(cache_mode="refresh")).tools)
    assert before is not None
    assert memory.tokens is not None
    data = {
        "tools": [tools, again],
        "scope": memory.tokens.scope,
        "renewed": before.access_token != memory.tokens.access_token
        and before.refresh_token != memory.tokens.refresh_token,
        "tokens": [memory.tokens.access_token, memory.tokens.refresh_token],
    }
    say(json.dumps(data))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
