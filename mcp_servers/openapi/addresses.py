"""Where an API is, and how one signs in to it, as its document says: pure."""

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from mcp_servers.openapi.reading import Document, Refused
from mcp_servers.openapi.translating import text_of

MOST_SERVERS = 50
LONGEST_URL = 2_048
_VARIABLE = re.compile(r"\{([^{}]*)\}")


def base_urls(document: Document, document_url: str = "") -> list[dict[str, str]]:
    """Return where the API is: `url` with its variables' defaults, and `description`.

    A relative address is taken from the document's own; without one it is left out.
    """
    servers = document.root.get("servers")
    listed = servers if isinstance(servers, list) and servers else [{"url": "/"}]
    found: dict[str, dict[str, str]] = {}
    for server in listed[:MOST_SERVERS]:
        url = _filled(server) if isinstance(server, dict) else None
        if url is None:
            continue
        if document_url:
            url = urljoin(document_url, url)
        if urlsplit(url).scheme in ("http", "https") and len(url) <= LONGEST_URL:
            found.setdefault(url.rstrip("/"), {"description": text_of(server, "description")[:200]})
    return [{"url": url, **more} for url, more in found.items()]


def sign_ins(document: Document) -> list[dict[str, str]]:
    """Return the sign-ins of `securitySchemes` that Bonobot knows, as `auth_config` has them."""
    components = document.root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    found = []
    for name, node in schemes.items() if isinstance(schemes, dict) else ():
        try:
            scheme, _ = document.follow(node, "")
        except Refused:
            continue
        if isinstance(scheme, dict) and (known := _sign_in(scheme)):
            found.append({"scheme": name[:100], **known})
    return found[:MOST_SERVERS]


def _sign_in(scheme: Mapping[str, Any]) -> dict[str, str] | None:
    kind = scheme.get("type")
    if kind == "http" and str(scheme.get("scheme")).lower() == "bearer":
        return {"type": "bearer_token"}
    if kind == "apiKey" and scheme.get("in") in ("header", "query", "cookie"):
        name = text_of(scheme, "name")[:255]
        return {"type": "api_key", "in": scheme["in"], "header": name} if name else None
    flows = scheme.get("flows")
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if kind == "oauth2" and isinstance(flow, dict):
        scopes = flow.get("scopes")
        named = " ".join(map(str, scopes)) if isinstance(scopes, dict) else ""
        url = text_of(flow, "tokenUrl")[:LONGEST_URL]
        return {"type": "oauth2", "token_url": url, "scopes": named[:2_000]}
    return None


def _filled(server: Mapping[str, Any]) -> str | None:
    """Return a server's URL, each variable with its default; None where one has none."""
    variables = server.get("variables")
    known: Mapping[str, Any] = variables if isinstance(variables, dict) else {}
    url = text_of(server, "url")[:LONGEST_URL]
    values = {name: text_of(known.get(name), "default") for name in _names(url)}
    if not url or not all(values.values()):
        return None
    return _VARIABLE.sub(lambda found: values[found[1]], url)


def _names(url: str) -> Iterator[str]:
    for found in _VARIABLE.finditer(url):
        yield found[1]
