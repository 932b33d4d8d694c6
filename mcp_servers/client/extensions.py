"""MCP extensions that are relayed between clients and servers, in both protocol eras.

A capability `extensions` maps names to settings. Only allowed extensions (`BONOBOT_EXTENSIONS`) are
relayed; the tasks extension is Bonobot's own and exists only in the modern era. MCP Apps
(SEP-1865) name an HTML page for a tool's results: a resource with a URI that begins with `ui://`.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from django.conf import settings

UI_EXTENSION = "io.modelcontextprotocol/ui"
APP_MIME_TYPE = "text/html;profile=mcp-app"
APP_SCHEME = "ui://"
# Names of the field with the page's URI in `_meta`, before and after it got an object of its own.
UI_KEY, UI_URI_KEY = "ui", "resourceUri"
FLAT_URI_KEYS = ("ui/resourceUri", "openai/outputTemplate")
# What clients declare that render apps; servers may offer apps only to them.
_CLIENT_SETTINGS: Mapping[str, Mapping[str, Any]] = {UI_EXTENSION: {"mimeTypes": [APP_MIME_TYPE]}}
# Characters of the settings of one extension.
MAX_SETTINGS = 4_096


def build_client_extensions() -> dict[str, Any]:
    """Return the relayed extensions as a client that supports all of them declares them."""
    return {name: dict(_CLIENT_SETTINGS.get(name, {})) for name in settings.BONOBOT_EXTENSIONS}


def select_relayed_extensions(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """Return the relayed extensions of capabilities that a client or a server declared."""
    declared = capabilities.get("extensions")
    if not isinstance(declared, Mapping):
        return {}
    return {
        name: declared[name]
        for name in settings.BONOBOT_EXTENSIONS
        if isinstance(declared.get(name), Mapping)
        and len(json.dumps(declared[name])) <= MAX_SETTINGS
    }


def merge_server_extensions(declared: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the relayed extensions that any of several servers declares."""
    merged: dict[str, Any] = {}
    for capabilities in declared:
        for name, value in select_relayed_extensions(capabilities).items():
            merged[name] = {**merged.get(name, {}), **value}
    return merged


def is_for_models(declaration: Mapping[str, Any]) -> bool:
    """Return whether a model may be shown a tool; some are only for the page of an app (SEP-1865).

    The page calls those through its host, so gateway clients list them.
    """
    meta = declaration.get("_meta")
    page = meta.get(UI_KEY) if isinstance(meta, Mapping) else None
    visibility = page.get("visibility") if isinstance(page, Mapping) else None
    return not isinstance(visibility, list) or "model" in visibility


def list_app_pages(declaration: Mapping[str, Any]) -> Iterator[str]:
    """Yield the URIs of a tool's app pages."""
    meta = declaration.get("_meta")
    if not isinstance(meta, Mapping):
        return
    page = meta.get(UI_KEY)
    uris = [page.get(UI_URI_KEY)] if isinstance(page, Mapping) else []
    uris += [meta.get(name) for name in FLAT_URI_KEYS]
    yield from (uri for uri in uris if isinstance(uri, str) and uri.startswith(APP_SCHEME))
