"""Outline of a document: operations, base URLs and sign-ins to select from (pure).

It is built in a child process of `mcp_servers.schemas.subprocess_pool` and returned as JSON.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from bonobot.core.problems import Problem
from mcp_servers.openapi.document import OpenApiDocument, UnusableDocumentPart, read
from mcp_servers.openapi.operations import OpenApiOperation, list_operations
from mcp_servers.openapi.schema_conversion import find_text

MOST_SERVERS = 50
LONGEST_URL = 2_048
_VARIABLE = re.compile(r"\{([^{}]*)\}")


def list_base_urls(document: OpenApiDocument, document_url: str = "") -> list[dict[str, str]]:
    """Return the API's servers: `url` with its variables' defaults, and `description`.

    Relative URLs are resolved against `document_url`; without it they are omitted.
    """
    servers = document.root.get("servers")
    listed = servers if isinstance(servers, list) and servers else [{"url": "/"}]
    found: dict[str, dict[str, str]] = {}
    for server in listed[:MOST_SERVERS]:
        url = _fill_url_variables(server) if isinstance(server, dict) else None
        if url is None:
            continue
        if document_url:
            url = urljoin(document_url, url)
        if urlsplit(url).scheme in ("http", "https") and len(url) <= LONGEST_URL:
            found.setdefault(
                url.rstrip("/"), {"description": find_text(server, "description")[:200]}
            )
    return [{"url": url, **more} for url, more in found.items()]


def sign_ins(document: OpenApiDocument) -> list[dict[str, str]]:
    """Return the supported sign-ins of `securitySchemes`, in the form of `auth_config`."""
    components = document.root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    found = []
    for name, node in schemes.items() if isinstance(schemes, dict) else ():
        try:
            scheme, _ = document.follow(node, "")
        except UnusableDocumentPart:
            continue
        if isinstance(scheme, dict) and (known := _sign_in(scheme)):
            found.append({"scheme": name[:100], **known})
    return found[:MOST_SERVERS]


def _sign_in(scheme: Mapping[str, Any]) -> dict[str, str] | None:
    kind = scheme.get("type")
    if kind == "http" and str(scheme.get("scheme")).lower() == "bearer":
        return {"type": "bearer_token"}
    if kind == "apiKey" and scheme.get("in") in ("header", "query", "cookie"):
        name = find_text(scheme, "name")[:255]
        return {"type": "api_key", "in": scheme["in"], "header": name} if name else None
    flows = scheme.get("flows")
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if kind == "oauth2" and isinstance(flow, dict):
        scopes = flow.get("scopes")
        named = " ".join(map(str, scopes)) if isinstance(scopes, dict) else ""
        url = find_text(flow, "tokenUrl")[:LONGEST_URL]
        return {"type": "oauth2", "token_url": url, "scopes": named[:2_000]}
    return None


def _fill_url_variables(server: Mapping[str, Any]) -> str | None:
    """Return a server's URL with its variables' defaults; None if one has no default."""
    variables = server.get("variables")
    known: Mapping[str, Any] = variables if isinstance(variables, dict) else {}
    url = find_text(server, "url")[:LONGEST_URL]
    values = {name: find_text(known.get(name), "default") for name in _list_url_variables(url)}
    if not url or not all(values.values()):
        return None
    return _VARIABLE.sub(lambda found: values[found[1]], url)


def _list_url_variables(url: str) -> Iterator[str]:
    for found in _VARIABLE.finditer(url):
        yield found[1]


LONGEST_TITLE = 200
LONGEST_ABOUT = 2_000


def build_outline(
    text: str, *, document_url: str = "", chosen: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the outline of a document's text, or `{"problem": …}` if it can't be parsed.

    With `operation_keys`, return the tools of these operations instead of all operations.
    """
    try:
        document = read(text)
    except Problem as problem:
        return {"problem": problem.as_dict()}
    found = list(list_operations(document))
    info = document.root.get("info")
    told = {
        "openapi": document.version,
        "title": find_text(info, "title")[:LONGEST_TITLE],
        "version": str(info.get("version", ""))[:100] if isinstance(info, dict) else "",
        "description": find_text(info, "description")[:LONGEST_ABOUT],
        "base_urls": list_base_urls(document, document_url),
        "sign_ins": sign_ins(document),
    }
    if chosen is None:
        return told | {"operations": [one.as_dict() for one in found]}
    wanted = frozenset(chosen)
    return told | {"tools": [_build_tool_outline(one) for one in found if one.key in wanted]}


def _build_tool_outline(one: OpenApiOperation) -> dict[str, Any]:
    place = f" ({one.at})" if one.at else ""
    fault = f"{one.refused}{place}" if one.refused else ""
    return {"key": one.key, "name": one.name, "fault": fault, "tool": one.tool or {}}
