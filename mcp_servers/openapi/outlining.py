"""The outline of a document: all that a person chooses by, and the tools that were chosen: pure.

It is made in the child process of `mcp_servers.schema_worker`, and travels as JSON.
"""

from collections.abc import Collection
from typing import Any

from bonobot.lib.problems import Problem
from mcp_servers.openapi.addresses import base_urls, sign_ins
from mcp_servers.openapi.operations import Operation, operations
from mcp_servers.openapi.reading import read
from mcp_servers.openapi.translating import text_of

LONGEST_TITLE = 200
LONGEST_ABOUT = 2_000


def outline(
    text: str, *, document_url: str = "", chosen: Collection[str] | None = None
) -> dict[str, Any]:
    """Return the outline of a document's text, or `{"problem": …}` where it can't be read.

    With `chosen` (keys of operations) their tools come instead of the operations to choose from.
    """
    try:
        document = read(text)
    except Problem as problem:
        return {"problem": problem.as_dict()}
    found = list(operations(document))
    info = document.root.get("info")
    told = {
        "openapi": document.version,
        "title": text_of(info, "title")[:LONGEST_TITLE],
        "version": str(info.get("version", ""))[:100] if isinstance(info, dict) else "",
        "description": text_of(info, "description")[:LONGEST_ABOUT],
        "base_urls": base_urls(document, document_url),
        "sign_ins": sign_ins(document),
    }
    if chosen is None:
        return told | {"operations": [one.as_dict() for one in found]}
    wanted = frozenset(chosen)
    return told | {"tools": [_tool(one) for one in found if one.key in wanted]}


def _tool(one: Operation) -> dict[str, Any]:
    place = f" ({one.at})" if one.at else ""
    fault = f"{one.refused}{place}" if one.refused else ""
    return {"key": one.key, "name": one.name, "fault": fault, "tool": one.tool or {}}
