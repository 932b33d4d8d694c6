"""Fetch OpenAPI documents and discover their tools."""

import asyncio
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import httpx2

from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.client.endpoint import ServerEndpoint
from mcp_servers.client.errors import UpstreamError
from mcp_servers.client.jsonrpc import McpRequest
from mcp_servers.client.list_definitions import RawDefinition, ServerDeclarations, read_all
from mcp_servers.client.openapi import build_handshake_result
from mcp_servers.models import Server
from mcp_servers.models.servers import find_document, keep_document
from mcp_servers.openapi.document import LONGEST_TEXT
from mcp_servers.schemas.subprocess_pool import build_outline_in_child

UPLOAD = "Check the address, or give the document itself."
LONGEST_TAG = 255
NOT_MODIFIED = 304


class DocumentFetchFailed(Problem):
    """The document could not be fetched from its URL."""

    code = "document_unreachable"
    status = 502
    title = "The document could not be fetched"


@dataclass(frozen=True)
class FetchedDocument:
    """A fetched document; `text` is None if it is unchanged for the given ETag."""

    text: str | None = field(repr=False)
    etag: str = ""


async def fetch(
    url: str,
    *,
    allow_private: bool,
    etag: str = "",
    headers: Mapping[str, str] | None = None,
    auth: httpx2.Auth | None = None,
    connect_s: float = 30,
    read_s: float = 60,
) -> FetchedDocument:
    """Return the document at `url`; raises `DocumentFetchFailed` or `EgressDenied`."""
    asked = {"Accept": "application/json, application/yaml, text/yaml;q=0.9, */*;q=0.5"}
    if etag:
        asked["If-None-Match"] = etag
    try:
        async with (
            asyncio.timeout(connect_s + read_s),
            build_guarded_client(
                allow_private=allow_private,
                headers={**(headers or {}), **asked},
                auth=auth,
                connect_s=connect_s,
                read_s=read_s,
                max_body=LONGEST_TEXT,
            ) as client,
        ):
            response = await client.get(url)
    except EgressDenied as refusal:
        refusal.field = "endpoint_config.document_url"
        raise
    except TimeoutError:
        raise _build_fetch_error("it did not answer in time") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _build_fetch_error(make_visible(str(error), 200) or type(error).__name__) from error
    if response.status_code == NOT_MODIFIED and etag:
        return FetchedDocument(None, etag)
    if response.status_code != httpx2.codes.OK:
        raise _build_fetch_error(
            format_message("it answered with HTTP {status_code}", status_code=response.status_code)
        )
    text = response.content.decode("utf-8", "replace").replace("\x00", "\ufffd")
    return FetchedDocument(text, response.headers.get("etag", "")[:LONGEST_TAG])


def _build_fetch_error(why: str) -> DocumentFetchFailed:
    return DocumentFetchFailed(
        format_message("The OpenAPI document could not be fetched: {why}.", why=why),
        field="endpoint_config.document_url",
        remedy=UPLOAD,
    )


async def discover_operations(server: Server, endpoint: ServerEndpoint) -> ServerDeclarations:
    """Return the definitions of the selected operations in a server's document.

    A document with a URL is fetched again and stored once it was parsed. An operation that can't be
    a tool is returned with its fault; one that is gone is listed in the notices. Raises
    `UpstreamError` and other problems.
    """
    began = time.perf_counter()
    url = server.endpoint_config.get("document_url", "")
    stored = await get_runtime().orm(find_document, server)
    text, etag = (stored.text, stored.etag) if stored else (None, "")
    newer = None
    if url:
        fetched = await _fetch_document(url, endpoint, etag if text is not None else "")
        if fetched.text is not None and (fetched.text, fetched.etag) != (text, etag):
            newer, text, etag = fetched.text, fetched.text, fetched.etag
    latency_ms = round((time.perf_counter() - began) * 1000)
    if text is None:
        raise UpstreamError(
            format_message("`{endpoint}` has no OpenAPI document.", endpoint=endpoint.name),
            code="document_missing",
            server=endpoint.name,
            sent=False,
            remedy="Give the server its document, or the document's address.",
        )
    told = await asyncio.to_thread(build_outline_in_child, text, chosen=endpoint.operations)
    if newer is not None:
        await get_runtime().orm(keep_document, server, newer, etag)
    return await _build_declarations(endpoint, told, latency_ms)


async def _fetch_document(url: str, endpoint: ServerEndpoint, etag: str) -> Any:
    """Fetch the document, with our credential only if it is at the API's own origin."""
    own = _parse_origin(url) == _parse_origin(endpoint.url)
    try:
        return await fetch(
            url,
            allow_private=endpoint.allow_private,
            etag=etag,
            headers=endpoint.headers if own else None,
            auth=endpoint.auth if own else None,
            connect_s=endpoint.connect_s,
            read_s=endpoint.read_s,
        )
    except UpstreamError:
        raise
    except Problem as problem:
        raise UpstreamError(
            f"`{endpoint.name}`: {problem}",
            code=problem.code,
            server=endpoint.name,
            retryable=True,
            sent=False,
            remedy=problem.remedy,
            extra=problem.extra,
        ) from problem


async def _build_declarations(
    endpoint: ServerEndpoint, told: dict[str, Any], latency_ms: int
) -> ServerDeclarations:
    tools: list[dict[str, Any]] = told["tools"]

    async def ask(request: McpRequest) -> dict[str, Any]:
        return {"tools": [one["tool"] for one in tools if not one["fault"]]}

    info = {"name": told["title"], "version": told["version"]}
    found = await read_all(endpoint, build_handshake_result(info), ask, latency_ms)
    refused = [_build_refused_definition(one) for one in tools if one["fault"]]
    notices = _format_missing_operations(endpoint.operations - {one["key"] for one in tools})
    return replace(found, items=(*found.items, *refused), notices=(*found.notices, *notices))


def _build_refused_definition(one: dict[str, Any]) -> RawDefinition:
    payload = {"name": one["name"], "description": one["key"]}
    return RawDefinition("tool", one["name"], payload, one["fault"])


def _format_missing_operations(keys: Collection[str]) -> list[str]:
    return [f"`{key}` is no longer in the document." for key in sorted(keys)[:20]]


def _parse_origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
