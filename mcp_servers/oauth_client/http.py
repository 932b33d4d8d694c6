"""HTTP requests to authorization servers, with limits."""

import base64
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote_plus

import httpx2

from bonobot.core.http.egress import EgressDenied, build_guarded_client, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.text.json_reader import parse_json_object
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.oauth_client.types import (
    AuthorizationServerUnavailable,
    OAuthAccount,
    OAuthProblem,
)

MAX_BODY_BYTES = 256 * 1024
CONNECT_S = 10
READ_S = 20
MAX_SHOWN_LENGTH = 200

PROBE_MESSAGE = {"jsonrpc": "2.0", "id": 1, "method": "server/discover", "params": {}}


@dataclass(frozen=True)
class OAuthResponse:
    """A status, a JSON object (empty if the body was none) and a nonce for DPoP."""

    status: int
    body: Mapping[str, Any]
    dpop_nonce: str = ""


class OAuthHttpClient:
    """Sends requests for one account, under the egress rules of its server."""

    def __init__(self, client: httpx2.AsyncClient, account: OAuthAccount) -> None:
        self._client = client
        self._account = account

    def clean_url(self, url: Any, target_label: str) -> str:
        """Return the URL if it is allowed; raises `OAuthProblem` or `EgressDenied`."""
        if not isinstance(url, str) or not url:
            raise OAuthProblem(
                format_message(
                    "The authorization server's metadata has no {what}.", what=target_label
                ),
                code="oauth_metadata_invalid",
                remedy="Its metadata is incomplete. Contact its administrator.",
            )
        check_url(url, allow_private=self._account.allow_private)
        if not url.lower().startswith("https://") and not self._account.allow_private:
            raise OAuthProblem(
                format_message(
                    "The {what} `{url}` doesn't use https.",
                    what=target_label,
                    url=make_visible(url, MAX_SHOWN_LENGTH),
                ),
                code="oauth_insecure",
                remedy="Credentials are sent over https only. Contact the server's administrator.",
            )
        return url

    async def get(self, url: str, target_label: str) -> OAuthResponse:
        """Return the document at `url`."""
        return await self._send("GET", self.clean_url(url, target_label), target_label)

    async def post(
        self,
        url: str,
        target_label: str,
        *,
        form: Mapping[str, str] | None = None,
        document: Mapping[str, Any] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> OAuthResponse:
        if form is not None:
            content = "&".join(f"{quote_plus(k)}={quote_plus(v)}" for k, v in form.items())
            content_type = "application/x-www-form-urlencoded"
        else:
            content, content_type = json.dumps(document), "application/json"
        all_headers = {"Content-Type": content_type, **(headers or {})}
        return await self._send(
            "POST", self.clean_url(url, target_label), target_label, content, all_headers
        )

    async def delete(
        self, url: str, target_label: str, *, headers: Mapping[str, str]
    ) -> OAuthResponse:
        """Delete what is at `url`."""
        return await self._send(
            "DELETE", self.clean_url(url, target_label), target_label, headers=headers
        )

    async def fetch_challenge(self, url: str) -> str:
        """Return the `WWW-Authenticate` challenge to a request without credentials."""
        headers = {
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
        }
        try:
            async with self._client.stream(
                "POST", url, content=json.dumps(PROBE_MESSAGE), headers=headers
            ) as response:
                is_refused = response.status_code in (401, 403)
                return response.headers.get("www-authenticate", "") if is_refused else ""
        except httpx2.HTTPError as error:
            raise _build_unreachable_error(url, "server", error) from None

    async def _send(
        self,
        method: str,
        url: str,
        target_label: str,
        content: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> OAuthResponse:
        all_headers = {"Accept": "application/json", **(headers or {})}
        try:
            response = await self._client.request(method, url, content=content, headers=all_headers)
        except EgressDenied as refusal:
            if refusal.code == "redirect_denied" and method == "GET":
                return OAuthResponse(
                    404, {}
                )  # a redirect elsewhere does not count as the document here
            raise
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise _build_unreachable_error(url, target_label, error) from None
        return OAuthResponse(
            response.status_code,
            parse_json_object(response.content),
            response.headers.get("dpop-nonce", ""),
        )


@asynccontextmanager
async def open_http_client(account: OAuthAccount) -> AsyncIterator[OAuthHttpClient]:
    """Yield a client for one exchange."""
    async with build_guarded_client(
        allow_private=account.allow_private,
        connect_s=CONNECT_S,
        read_s=READ_S,
        max_body=MAX_BODY_BYTES,
    ) as client:
        yield OAuthHttpClient(client, account)


def build_basic_header(client_id: str, secret: str) -> dict[str, str]:
    """Return the `client_secret_basic` header; both parts are URL-encoded (RFC 6749 2.3.1)."""
    pair = f"{quote_plus(client_id)}:{quote_plus(secret)}".encode()
    return {"Authorization": f"Basic {base64.b64encode(pair).decode('ascii')}"}


def _build_unreachable_error(
    url: str, target_label: str, error: Exception
) -> AuthorizationServerUnavailable:
    return AuthorizationServerUnavailable(
        format_message(
            "The {what} at `{host}` can't be reached ({name}).",
            what=target_label,
            host=make_visible(httpx2.URL(url).host, MAX_SHOWN_LENGTH),
            name=type(error).__name__,
        ),
        remedy="Try again later. If it fails again, contact its administrator.",
    )
