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
from mcp_servers.client.list_definitions import (
    RawDefinition,
    ServerDeclarations,
    list_all_definitions,
)
from mcp_servers.client.openapi import build_handshake_result
from mcp_servers.models import Server
from mcp_servers.models.servers import find_document, save_document
from mcp_servers.openapi.document import MAX_DOCUMENT_BYTES
from mcp_servers.schemas.subprocess_pool import build_outline_in_child

FETCH_REMEDY = "Check the URL, or provide the document itself."
MAX_ETAG_CHARACTERS = 255
NOT_MODIFIED = 304


class DocumentFetchFailed(Problem):
    """The document could not be fetched from its URL."""

    code = "document_unreachable"
    status = 502
    title = "The document couldn't be fetched"


@dataclass(frozen=True)
class FetchedDocument:
    """A fetched document; `text` is None if it is unchanged for the given ETag."""

    text: str | None = field(repr=False)
    etag: str = ""


async def fetch_document(
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
    request_headers = {"Accept": "application/json, application/yaml, text/yaml;q=0.9, */*;q=0.5"}
    if etag:
        request_headers["If-None-Match"] = etag
    try:
        async with (
            asyncio.timeout(connect_s + read_s),
            build_guarded_client(
                allow_private=allow_private,
                headers={**(headers or {}), **request_headers},
                auth=auth,
                connect_s=connect_s,
                read_s=read_s,
                max_body=MAX_DOCUMENT_BYTES,
            ) as client,
        ):
            response = await client.get(url)
    except EgressDenied as refusal:
        refusal.field = "endpoint_config.document_url"
        raise
    except TimeoutError:
        raise _build_fetch_error("the host didn't respond in time") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _build_fetch_error(make_visible(str(error), 200) or type(error).__name__) from error
    if response.status_code == NOT_MODIFIED and etag:
        return FetchedDocument(None, etag)
    if response.status_code != httpx2.codes.OK:
        raise _build_fetch_error(
            format_message("the host returned HTTP {status_code}", status_code=response.status_code)
        )
    text = response.content.decode("utf-8", "replace").replace("\x00", "\ufffd")
    return FetchedDocument(text, response.headers.get("etag", "")[:MAX_ETAG_CHARACTERS])


def _build_fetch_error(reason: str) -> DocumentFetchFailed:
    return DocumentFetchFailed(
        format_message("The OpenAPI document couldn't be fetched: {why}.", why=reason),
        field="endpoint_config.document_url",
        remedy=FETCH_REMEDY,
    )


async def discover_operations(server: Server, endpoint: ServerEndpoint) -> ServerDeclarations:
    """Return the definitions of the selected operations in a server's document.

    A document with a URL is fetched again and stored once it was parsed. An operation that can't be
    a tool is returned with its fault; one that is gone is listed in the notices. Raises
    `UpstreamError` and other problems.
    """
    started_at = time.perf_counter()
    url = server.endpoint_config.get("document_url", "")
    stored_document = await get_runtime().run_orm(find_document, server)
    text, etag = (stored_document.text, stored_document.etag) if stored_document else (None, "")
    new_text = None
    if url:
        fetched = await _fetch_server_document(url, endpoint, etag if text is not None else "")
        if fetched.text is not None and (fetched.text, fetched.etag) != (text, etag):
            new_text, text, etag = fetched.text, fetched.text, fetched.etag
    latency_ms = round((time.perf_counter() - started_at) * 1000)
    if text is None:
        raise UpstreamError(
            format_message("`{endpoint}` has no OpenAPI document.", endpoint=endpoint.name),
            code="document_missing",
            server=endpoint.name,
            sent=False,
            remedy="Provide the server's OpenAPI document, or the document's URL.",
        )
    outline = await asyncio.to_thread(
        build_outline_in_child, text, operation_keys=endpoint.operations
    )
    if new_text is not None:
        await get_runtime().run_orm(save_document, server, new_text, etag)
    return await _build_declarations(endpoint, outline, latency_ms)


async def _fetch_server_document(url: str, endpoint: ServerEndpoint, etag: str) -> Any:
    """Fetch the document, with our credential only if it is at the API's own origin."""
    is_same_origin = _parse_origin(url) == _parse_origin(endpoint.url)
    try:
        return await fetch_document(
            url,
            allow_private=endpoint.allow_private,
            etag=etag,
            headers=endpoint.headers if is_same_origin else None,
            auth=endpoint.auth if is_same_origin else None,
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
            temporary=True,
            sent=False,
            remedy=problem.remedy,
            extra=problem.extra,
        ) from problem


async def _build_declarations(
    endpoint: ServerEndpoint, outline: dict[str, Any], latency_ms: int
) -> ServerDeclarations:
    tools: list[dict[str, Any]] = outline["tools"]

    async def answer_request(request: McpRequest) -> dict[str, Any]:
        return {"tools": [tool["tool"] for tool in tools if not tool["fault"]]}

    info = {"name": outline["title"], "version": outline["version"]}
    declarations = await list_all_definitions(
        endpoint, build_handshake_result(info), answer_request, latency_ms
    )
    refused_definitions = [_build_refused_definition(tool) for tool in tools if tool["fault"]]
    notices = _format_missing_operations(endpoint.operations - {tool["key"] for tool in tools})
    return replace(
        declarations,
        items=(*declarations.items, *refused_definitions),
        notices=(*declarations.notices, *notices),
    )


def _build_refused_definition(tool_outline: dict[str, Any]) -> RawDefinition:
    payload = {"name": tool_outline["name"], "description": tool_outline["key"]}
    return RawDefinition("tool", tool_outline["name"], payload, tool_outline["fault"])


def _format_missing_operations(keys: Collection[str]) -> list[str]:
    return [f"`{key}` is no longer in the document." for key in sorted(keys)[:20]]


def _parse_origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
