"""Gemini and Vertex AI, with service accounts.

Google's auth library would open its own sockets to the token URL in the tenant's JSON; here tokens
always come from Google's URL, over the guarded client.
"""

import asyncio
import json
import time
from datetime import UTC, datetime
from typing import Any

import httpx2
import jwt
from google.auth.credentials import Credentials
from google.genai.client import Client
from google.genai.types import HttpOptions
from pydantic_ai.models.google import GoogleModel
from pydantic_ai.profiles.google import GoogleModelProfile
from pydantic_ai.providers.google import GoogleProvider

from agents.llm.interface import ModelEndpointConfig, ModelError
from agents.llm.providers.transport import build_client
from bonobot.core.i18n.messages import format_message

TOKEN_URL = "https://oauth2.googleapis.com/token"  # noqa: S105 - an address
SCOPE = "https://www.googleapis.com/auth/cloud-platform"
GRANT_TYPE = "urn:ietf:params:oauth:grant-type:jwt-bearer"
TOKEN_LIFETIME_S = 3600
REFRESH_TIMEOUT_S = 60.0
# `agents.llm.provider_schemas` has already converted the schemas.
PROFILE = GoogleModelProfile(json_schema_transformer=None)


class GoogleServiceAccount(Credentials):
    """Credentials of a service account's JSON; raises `ModelError` if it is invalid."""

    def __init__(
        self,
        endpoint: ModelEndpointConfig,
        http: httpx2.AsyncClient,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        super().__init__()
        self._http, self._loop = http, loop
        account = _parse_account(endpoint.api_key)
        self.project = account["project_id"]
        self._email, self._key = account["client_email"], account["private_key"]

    def refresh(self, request: Any) -> None:
        """Fetch a new token; called in a thread. Raises `ModelError`."""
        asyncio.run_coroutine_threadsafe(self._refresh(), self._loop).result(REFRESH_TIMEOUT_S)

    async def _refresh(self) -> None:
        now = int(time.time())
        claims = {
            "iss": self._email,
            "scope": SCOPE,
            "aud": TOKEN_URL,
            "iat": now,
            "exp": now + TOKEN_LIFETIME_S,
        }
        try:
            assertion = jwt.encode(claims, self._key, algorithm="RS256")
        except (ValueError, jwt.PyJWTError) as error:
            raise _build_error("its private key can't be read") from error
        form = {"grant_type": GRANT_TYPE, "assertion": assertion}
        response = await self._http.post(TOKEN_URL, data=form)
        if response.status_code != httpx2.codes.OK:
            raise _build_error(
                format_message(
                    "Google returned no token (HTTP {status_code})",
                    status_code=response.status_code,
                )
            )
        payload = response.json()
        self.token = payload["access_token"]
        # The library compares naive datetimes.
        expires_at = datetime.fromtimestamp(
            now + int(payload.get("expires_in", TOKEN_LIFETIME_S)), UTC
        )
        self.expiry = expires_at.replace(tzinfo=None)


def _parse_account(text: str) -> dict[str, str]:
    try:
        account = json.loads(text)
    except (ValueError, RecursionError):
        account = None
    names = ("project_id", "client_email", "private_key")
    if not isinstance(account, dict) or not all(isinstance(account.get(key), str) for key in names):
        raise _build_error("the JSON isn't a service account key")
    return {name: account[name] for name in names}


def _build_error(reason: str) -> ModelError:
    return ModelError(
        format_message("The service account can't be used: {why}.", why=reason),
        code="model_auth",
        remedy="Set the endpoint's API key to the JSON key file of a service account.",
        retryable=False,
    )


class GoogleConnection:
    """A client of one address and credential."""

    def __init__(self, endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._http = build_client(endpoint)
        options = HttpOptions(
            base_url=endpoint.url,
            httpx_async_client=self._http,
            timeout=round(endpoint.timeout_s * 1000),
        )
        self._client = Client(
            http_options=options, **_build_credentials(endpoint, self._http, loop)
        )
        # The variable GOOGLE_API_USE_MTLS_ENDPOINT would send requests to another host.
        self._client._api_client._async_httpx_use_mtls_endpoint = False

    def build_model(self, endpoint: ModelEndpointConfig) -> GoogleModel:
        provider = GoogleProvider(client=self._client)
        return GoogleModel(endpoint.model, provider=provider, profile=PROFILE)

    async def close(self) -> None:
        await self._http.aclose()


def connect(endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> GoogleConnection:
    """Return a connection; opens no socket yet."""
    return GoogleConnection(endpoint, loop)


def build_settings(endpoint: ModelEndpointConfig) -> dict[str, Any]:
    """Return the library's settings for one request."""
    request_settings: dict[str, Any] = {
        "timeout": endpoint.timeout_s,
        "extra_headers": {"User-Agent": "bonobot"},
    }
    if endpoint.thinking_summaries and not endpoint.thinking:  # an effort implies it
        request_settings["google_thinking_config"] = {"include_thoughts": True}
    return request_settings


def _build_credentials(
    endpoint: ModelEndpointConfig, http: httpx2.AsyncClient, loop: asyncio.AbstractEventLoop
) -> dict[str, Any]:
    """Return the client's credentials, all set: the library reads others from the environment."""
    if endpoint.kind == "google":
        return {"vertexai": False, "api_key": endpoint.api_key or "none"}
    account = GoogleServiceAccount(endpoint, http, loop)
    return {
        "vertexai": True,
        "credentials": account,
        "project": account.project,
        "location": endpoint.region or "global",
    }
