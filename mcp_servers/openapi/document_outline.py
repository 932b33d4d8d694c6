"""Outline of a document: operations, base URLs and sign-ins to select from (pure).

It is built in a child process of `mcp_servers.schemas.subprocess_pool` and returned as JSON.
"""

import re
from collections.abc import Collection, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from bonobot.core.problems import Problem
from mcp_servers.openapi.document import OpenApiDocument, UnusableDocumentPart, parse_document
from mcp_servers.openapi.operations import OpenApiOperation, iterate_operations
from mcp_servers.openapi.schema_conversion import find_text

MAX_SERVERS = 50
MAX_URL_CHARACTERS = 2_048
_VARIABLE = re.compile(r"\{([^{}]*)\}")
MAX_TITLE_CHARACTERS = 200
MAX_DESCRIPTION_CHARACTERS = 2_000


def list_base_urls(document: OpenApiDocument, document_url: str = "") -> list[dict[str, str]]:
    """Return the API's servers: `url` with its variables' defaults, and `description`.

    Relative URLs are resolved against `document_url`; without it they are omitted.
    """
    servers = document.root.get("servers")
    server_objects = servers if isinstance(servers, list) and servers else [{"url": "/"}]
    base_urls: dict[str, dict[str, str]] = {}
    for server in server_objects[:MAX_SERVERS]:
        url = _fill_url_variables(server) if isinstance(server, dict) else None
        if url is None:
            continue
        if document_url:
            url = urljoin(document_url, url)
        if urlsplit(url).scheme in ("http", "https") and len(url) <= MAX_URL_CHARACTERS:
            base_urls.setdefault(
                url.rstrip("/"), {"description": find_text(server, "description")[:200]}
            )
    return [{"url": url, **details} for url, details in base_urls.items()]


def list_sign_ins(document: OpenApiDocument) -> list[dict[str, str]]:
    """Return the supported sign-ins of `securitySchemes`, in the form of `auth_config`."""
    components = document.root.get("components")
    schemes = components.get("securitySchemes") if isinstance(components, dict) else None
    supported = []
    for name, node in schemes.items() if isinstance(schemes, dict) else ():
        try:
            scheme, _ = document.resolve_node(node, "")
        except UnusableDocumentPart:
            continue
        if isinstance(scheme, dict) and (sign_in := _parse_sign_in(scheme)):
            supported.append({"scheme": name[:100], **sign_in})
    return supported[:MAX_SERVERS]


def _parse_sign_in(scheme: Mapping[str, Any]) -> dict[str, str] | None:
    scheme_type = scheme.get("type")
    if scheme_type == "http" and str(scheme.get("scheme")).lower() == "bearer":
        return {"type": "bearer_token"}
    if scheme_type == "apiKey" and scheme.get("in") in ("header", "query", "cookie"):
        name = find_text(scheme, "name")[:255]
        return {"type": "api_key", "in": scheme["in"], "header": name} if name else None
    flows = scheme.get("flows")
    flow = flows.get("clientCredentials") if isinstance(flows, dict) else None
    if scheme_type == "oauth2" and isinstance(flow, dict):
        scopes = flow.get("scopes")
        scope_names = " ".join(map(str, scopes)) if isinstance(scopes, dict) else ""
        url = find_text(flow, "tokenUrl")[:MAX_URL_CHARACTERS]
        return {"type": "oauth2", "token_url": url, "scopes": scope_names[:2_000]}
    return None


def _fill_url_variables(server: Mapping[str, Any]) -> str | None:
    """Return a server's URL with its variables' defaults; None if one has no default."""
    variables = server.get("variables")
    definitions: Mapping[str, Any] = variables if isinstance(variables, dict) else {}
    url = find_text(server, "url")[:MAX_URL_CHARACTERS]
    values = {
        name: find_text(definitions.get(name), "default") for name in _list_url_variables(url)
    }
    if not url or not all(values.values()):
        return None
    return _VARIABLE.sub(lambda match: values[match[1]], url)


def _list_url_variables(url: str) -> Iterator[str]:
    for match in _VARIABLE.finditer(url):
        yield match[1]


def build_outline(
    text: str, *, document_url: str = "", operation_keys: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the outline of a document's text, or `{"problem": …}` if it can't be parsed.

    With `operation_keys`, return the tools of these operations instead of all operations.
    """
    try:
        document = parse_document(text)
    except Problem as problem:
        return {"problem": problem.as_dict()}
    operations = list(iterate_operations(document))
    info = document.root.get("info")
    outline = {
        "openapi": document.version,
        "title": find_text(info, "title")[:MAX_TITLE_CHARACTERS],
        "version": str(info.get("version", ""))[:100] if isinstance(info, dict) else "",
        "description": find_text(info, "description")[:MAX_DESCRIPTION_CHARACTERS],
        "base_urls": list_base_urls(document, document_url),
        "sign_ins": list_sign_ins(document),
    }
    if operation_keys is None:
        return outline | {"operations": [operation.as_dict() for operation in operations]}
    wanted_keys = frozenset(operation_keys)
    return outline | {
        "tools": [
            _build_tool_outline(operation)
            for operation in operations
            if operation.key in wanted_keys
        ]
    }


def _build_tool_outline(operation: OpenApiOperation) -> dict[str, Any]:
    location = f" ({operation.refusal_pointer})" if operation.refusal_pointer else ""
    fault = f"{operation.refusal_reason}{location}" if operation.refusal_reason else ""
    return {
        "key": operation.key,
        "name": operation.name,
        "fault": fault,
        "tool": operation.tool or {},
    }
