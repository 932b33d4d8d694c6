"""The survey of an API: its document, read anew, in the place of what a server would list."""

import asyncio
import time
from collections.abc import Collection
from dataclasses import replace
from typing import Any

import httpx2

from bonobot.lib.problems import Problem
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from mcp_servers.connections.endpoint import Endpoint
from mcp_servers.connections.errors import UpstreamError
from mcp_servers.connections.openapi import greeting
from mcp_servers.connections.survey import Item, Survey, read_all
from mcp_servers.connections.wire import Request
from mcp_servers.models import Server
from mcp_servers.openapi.documents import document_of, keep_document
from mcp_servers.openapi.fetching import fetch
from mcp_servers.schema_worker import outline


async def survey_document(server: Server, endpoint: Endpoint) -> Survey:
    """Return what a server's document declares of the operations that were chosen.

    A document with an address is fetched again, and kept once it could be read; an operation that
    can't be a tool is an item with its fault, one that is gone is told in the notices. Raises
    `UpstreamError` and other problems.
    """
    began = time.perf_counter()
    url = server.endpoint_config.get("document_url", "")
    stored = await runtime().orm(document_of, server)
    text, etag = (stored.text, stored.etag) if stored else (None, "")
    newer = None
    if url:
        fetched = await _fetched(url, endpoint, etag if text is not None else "")
        if fetched.text is not None and (fetched.text, fetched.etag) != (text, etag):
            newer, text, etag = fetched.text, fetched.text, fetched.etag
    latency_ms = round((time.perf_counter() - began) * 1000)
    if text is None:
        raise UpstreamError(
            say("`{endpoint}` has no OpenAPI document.", endpoint=endpoint.name),
            code="document_missing",
            server=endpoint.name,
            sent=False,
            remedy="Give the server its document, or the document's address.",
        )
    told = await asyncio.to_thread(outline, text, chosen=endpoint.operations)
    if newer is not None:
        await runtime().orm(keep_document, server, newer, etag)
    return await _survey(endpoint, told, latency_ms)


async def _fetched(url: str, endpoint: Endpoint, etag: str) -> Any:
    """Fetch the document; our credential goes along where it is at the API's own origin."""
    own = _origin(url) == _origin(endpoint.url)
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


async def _survey(endpoint: Endpoint, told: dict[str, Any], latency_ms: int) -> Survey:
    tools: list[dict[str, Any]] = told["tools"]

    async def ask(request: Request) -> dict[str, Any]:
        return {"tools": [one["tool"] for one in tools if not one["fault"]]}

    info = {"name": told["title"], "version": told["version"]}
    found = await read_all(endpoint, greeting(info), ask, latency_ms)
    refused = [_refused(one) for one in tools if one["fault"]]
    notices = _gone(endpoint.operations - {one["key"] for one in tools})
    return replace(found, items=(*found.items, *refused), notices=(*found.notices, *notices))


def _refused(one: dict[str, Any]) -> Item:
    payload = {"name": one["name"], "description": one["key"]}
    return Item("tool", one["name"], payload, one["fault"])


def _gone(keys: Collection[str]) -> list[str]:
    return [f"`{key}` is no longer in the document." for key in sorted(keys)[:20]]


def _origin(url: str) -> tuple[str, str, int | None]:
    parsed = httpx2.URL(url)
    return parsed.scheme, parsed.host, parsed.port or {"http": 80, "https": 443}.get(parsed.scheme)
