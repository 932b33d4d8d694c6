"""Amazon Bedrock over guarded HTTP.

Amazon's library blocks a thread per request and opens its own sockets. Here the thread only waits,
and the guarded client on the event loop does the I/O. Credentials in the environment, in `~/.aws`
and at the instance metadata address are ignored: a tenant's endpoint never uses the host's.
"""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Iterator
from functools import partial
from typing import Any, TypeVar

import httpx2
from botocore.awsrequest import AWSPreparedRequest, AWSResponse
from botocore.client import BaseClient
from botocore.config import Config
from botocore.configprovider import (
    BOTOCORE_DEFAUT_SESSION_VARIABLES,
    ConfigValueStore,
    ConstantProvider,
)
from botocore.credentials import Credentials
from botocore.loaders import Loader, create_loader
from botocore.session import Session
from botocore.tokens import FrozenAuthToken
from pydantic_ai.models.bedrock import BedrockConverseModel
from pydantic_ai.providers.bedrock import BedrockModelProfile, BedrockProvider

from agents.llm.interface import ModelEndpointConfig
from agents.llm.providers.transport import build_client, find_request_scope
from bonobot.core.process_cache import compute_once

T = TypeVar("T")
# Add cache points after the tools, the instructions and the conversation, for models with them.
CACHE_SETTINGS: dict[str, Any] = {
    "bedrock_cache_tool_definitions": True,
    "bedrock_cache_instructions": True,
    "bedrock_cache_messages": True,
}
# Send tool schemas unchanged.
PROFILE = BedrockModelProfile(json_schema_transformer=None)


class GuardedBotoSession:
    """Sends botocore's requests through a guarded client; stands in for its `URLLib3Session`."""

    def __init__(
        self, http: httpx2.AsyncClient, timeout_s: float, loop: asyncio.AbstractEventLoop
    ) -> None:
        self._http, self._timeout_s, self._loop = http, timeout_s, loop

    def send(self, request: AWSPreparedRequest) -> AWSResponse:
        """Send one request from a thread; the response's body is read on demand."""
        response = self.run_and_wait(self._send_async(request))
        if (request_scope := find_request_scope()) is not None:
            # The request may end while no read is pending, so close the response explicitly.
            request_scope.add_closer(partial(self._close_response, response))
        body = _BlockingBody(self, response)
        return AWSResponse(request.url, response.status_code, dict(response.headers), body)

    def close(self) -> None:
        """Do nothing: the client is closed on the loop."""

    def run_and_wait(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine on the event loop and wait for it in this thread."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        request_scope = find_request_scope()
        if request_scope is None:
            return future.result()
        with request_scope.track_future(future):
            return future.result()

    def _close_response(self, response: httpx2.Response) -> None:
        asyncio.run_coroutine_threadsafe(response.aclose(), self._loop)

    async def _send_async(self, request: AWSPreparedRequest) -> httpx2.Response:
        http_request = self._http.build_request(
            request.method,
            request.url,
            headers={name: _decode_text(value) for name, value in request.headers.items()},
            content=request.body,
            timeout=self._timeout_s,
        )
        return await self._http.send(http_request, stream=True)


class _BlockingBody:
    """A response body for botocore: blocking, in pieces."""

    def __init__(self, session: GuardedBotoSession, response: httpx2.Response) -> None:
        self._session, self._response = session, response
        self._pieces: AsyncIterator[bytes] = response.aiter_raw()

    def stream(self, amount: int = 0, decode_content: bool | None = None) -> Iterator[bytes]:
        """Yield the body piece by piece."""
        while piece := self._session.run_and_wait(self._read_next()):
            yield piece

    def read(self, amount: int | None = None, decode_content: bool | None = None) -> bytes:
        return b"".join(self.stream())

    def close(self) -> None:
        """Release the connection."""
        self._session.run_and_wait(self._response.aclose())

    async def _read_next(self) -> bytes:
        return await anext(self._pieces, b"")


class _EndpointSession(Session):
    """A botocore session with one endpoint's credentials, isolated from the host."""

    def __init__(self, endpoint: ModelEndpointConfig) -> None:
        super().__init__()
        self._endpoint = endpoint
        defaults = {
            variable: definition[2]
            for variable, definition in BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
        }
        defaults |= {"s3": None, "proxies_config": None}
        mapping = {name: ConstantProvider(value) for name, value in defaults.items()}
        self.register_component("config_store", ConfigValueStore(mapping=mapping))
        self.register_component("data_loader", _get_loader())

    @property
    def full_config(self) -> dict[str, Any]:
        """An empty configuration instead of that in `~/.aws`."""
        return {"profiles": {}}

    def get_credentials(self) -> Credentials | None:
        """Return the endpoint's own access key."""
        endpoint = self._endpoint
        return (
            Credentials(endpoint.access_key_id, endpoint.api_key)
            if endpoint.access_key_id
            else None
        )

    def get_auth_token(self, **_: Any) -> FrozenAuthToken | None:
        """Return the endpoint's own Bedrock key."""
        endpoint = self._endpoint
        return None if endpoint.access_key_id else FrozenAuthToken(endpoint.api_key or "none")


@compute_once
def _get_loader() -> Loader:
    """Return the loader of service descriptions, shared by all clients."""
    return create_loader()


def build_bedrock_client(endpoint: ModelEndpointConfig, session: GuardedBotoSession) -> BaseClient:
    """Return Amazon's client for an endpoint, without retries."""
    client = _EndpointSession(endpoint).create_client(
        "bedrock-runtime",
        region_name=endpoint.region,
        endpoint_url=endpoint.url,
        config=Config(
            signature_version="v4" if endpoint.access_key_id else "bearer",
            retries={"total_max_attempts": 1, "mode": "standard"},
            proxies={},
        ),
    )
    client._endpoint.http_session = session
    return client


def _decode_text(value: str | bytes) -> str:
    return value.decode("latin-1") if isinstance(value, bytes) else value


class BedrockConnection:
    """A client of one region, address and credential."""

    def __init__(self, endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> None:
        self._http = build_client(endpoint)
        session = GuardedBotoSession(self._http, endpoint.timeout_s, loop)
        self._client = build_bedrock_client(endpoint, session)

    def build_model(self, endpoint: ModelEndpointConfig) -> BedrockConverseModel:
        provider = BedrockProvider(bedrock_client=self._client)
        return BedrockConverseModel(endpoint.model, provider=provider, profile=PROFILE)

    async def close(self) -> None:
        await self._http.aclose()


def connect(endpoint: ModelEndpointConfig, loop: asyncio.AbstractEventLoop) -> BedrockConnection:
    """Return a connection; opens no socket yet."""
    return BedrockConnection(endpoint, loop)


def build_settings(endpoint: ModelEndpointConfig) -> dict[str, Any]:
    """Return the library's settings for one request."""
    return dict(CACHE_SETTINGS) if endpoint.prompt_caching else {}
