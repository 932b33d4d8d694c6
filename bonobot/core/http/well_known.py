"""Metadata URLs of authorization servers."""

from collections.abc import Iterator

import httpx2


def list_metadata_urls(issuer: str) -> Iterator[str]:
    """Yield the possible metadata URLs of an issuer, in the order that MCP specifies."""
    parsed = httpx2.URL(issuer)
    origin, path = build_origin(parsed), parsed.path.rstrip("/")
    yield f"{origin}/.well-known/oauth-authorization-server{path}"
    yield f"{origin}/.well-known/openid-configuration{path}"
    if path:
        yield f"{origin}{path}/.well-known/openid-configuration"


def build_origin(url: httpx2.URL) -> str:
    """Return the scheme, host and port of a URL as one string."""
    port = "" if url.port is None else f":{url.port}"
    host = f"[{url.host}]" if ":" in url.host else url.host
    return f"{url.scheme}://{host}{port}"
