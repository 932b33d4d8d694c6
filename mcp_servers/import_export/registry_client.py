"""Read the servers of an MCP registry, to import them."""

import asyncio
import json
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx2

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Problem
from bonobot.core.runtime import get_runtime
from bonobot.core.text.json_reader import MAX_TEXT_BYTES
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.import_export.detect_format import MAX_SERVERS
from mcp_servers.import_export.parse_servers import is_registry_text

API_PATH = "/v0.1/servers"
PAGE_SIZE = 100
TIMEOUT_S = 30
# Of all pages together, in bytes.
MAX_SIZE = 4 * MAX_TEXT_BYTES


class RegistryUnavailable(Problem):
    """The registry's servers can't be read."""

    code = "registry_unreachable"
    status = 502
    title = "The registry can't be read"


def fetch_registry(
    principal: Principal, url: str, *, search: str = "", allow_private: bool = False
) -> str:
    """Return a text to import: a registry's latest versions, or the `server.json` at a URL.

    Only these formats are returned: references in others would be expanded. Raises
    `RegistryUnavailable`, `EgressDenied` or `Forbidden`.
    """
    principal.require(Action.MANAGE_SERVERS)
    if allow_private:
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    document = get_runtime().call(_fetch_servers, url.strip(), search, allow_private)
    return _build_text(document)  # slow, so not in the event loop


async def _fetch_servers(url: str, search: str, allow_private: bool) -> Any:
    servers: list[Any] = []
    size = 0
    cursor = ""
    try:
        async with (
            asyncio.timeout(TIMEOUT_S),
            build_guarded_client(
                allow_private=allow_private,
                headers={"Accept": "application/json"},
                connect_s=TIMEOUT_S,
                read_s=TIMEOUT_S,
                max_body=MAX_SIZE,
            ) as client,
        ):
            while len(servers) < MAX_SERVERS:
                content = await _fetch_content(client, _build_page_url(url, search, cursor))
                size += len(content)
                if size > MAX_SIZE:
                    raise _build_error("its list is too large")
                body = _parse_json(content)
                page = body.get("servers") if isinstance(body, dict) else None
                if not isinstance(page, list):
                    return body
                servers += page
                metadata = body.get("metadata")
                cursor = str(metadata.get("nextCursor") or "") if isinstance(metadata, dict) else ""
                if not cursor or not page:
                    break
    except EgressDenied as refusal:
        refusal.field = "registry"
        raise
    except TimeoutError:
        raise _build_error("it didn't respond in time") from None
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise _build_error(make_visible(str(error), 200) or type(error).__name__) from error
    return {"servers": servers[:MAX_SERVERS]}


def _build_text(body: Any) -> str:
    """Return the text of a registry's response; raises `RegistryUnavailable` for others."""
    text = json.dumps(body, indent=1)
    is_empty = isinstance(body, dict) and body.get("servers") == []
    if not is_empty and not is_registry_text(text):
        raise _build_error("it returned something else")
    return text


async def _fetch_content(client: httpx2.AsyncClient, url: str) -> bytes:
    response = await client.get(url)
    if response.status_code != httpx2.codes.OK:
        raise _build_error(
            format_message("it returned HTTP {status_code}", status_code=response.status_code)
        )
    return response.content


def _parse_json(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        raise _build_error("it didn't return JSON") from None


def _build_page_url(url: str, search: str, cursor: str) -> str:
    """Return the URL of a page; a URL of a file or of one version is used as it is."""
    base, path = url.rstrip("/"), urlsplit(url).path.rstrip("/")
    if path.endswith(".json") or "/versions" in path:
        return url
    if not path.endswith("/servers"):
        base += API_PATH
    query = {"limit": str(PAGE_SIZE), "version": "latest"}
    query |= {name: text for name, text in (("search", search), ("cursor", cursor)) if text}
    return f"{base}?{urlencode(query)}"


def _build_error(reason: str) -> RegistryUnavailable:
    return RegistryUnavailable(
        format_message("The registry couldn't be read: {why}.", why=reason),
        field="registry",
        remedy="Use the base URL of a registry, or the URL of a server.json file.",
    )
