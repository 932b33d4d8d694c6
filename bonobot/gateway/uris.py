"""URIs of several servers under one address, so that each stays unique. Pure.

A URI gets its server's slug in front of its scheme, `docs+file:///a.txt`, as `git+ssh:` has it; so
does a template. What a client reads is looked up by the slugs that are there, never guessed.
"""

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

Rename = Callable[[str], str]
MARK = "+"
# What a scheme may not begin with, or hold.
_LETTER = "s"
# Where a tool's page is named (the extension for applications).
UI = "ui"
UI_URI = "resourceUri"


def prefix(slug: str) -> str:
    """Return what stands before the URIs of a server: letters, digits, `-` and `.`, then `+`."""
    safe = slug.replace("_", ".")
    return (safe if safe[:1].isalpha() else _LETTER + safe) + MARK


def own(uri: str, servers: Mapping[str, UUID]) -> tuple[UUID, str] | None:
    """Return the server and its own URI that `uri` means; None where no server is meant.

    `servers` are by their prefixes.
    """
    head, mark, rest = uri.partition(MARK)
    server_id = servers.get(head + mark)
    return (server_id, rest) if server_id is not None and rest else None


def renamed(result: Any, rename: Rename) -> Any:
    """Return a result whose resources are named as the client names them; the rest is shared.

    These are `contents` that were read, and the links and embedded resources in a tool's `content`
    and in a prompt's `messages`.
    """
    if not isinstance(result, Mapping):
        return result
    changed: dict[str, Any] = {}
    if isinstance(found := result.get("contents"), list):
        changed["contents"] = [_member(one, rename) for one in found]
    if isinstance(found := result.get("content"), list):
        changed["content"] = [_block(one, rename) for one in found]
    if isinstance(found := result.get("messages"), list):
        changed["messages"] = [_message(one, rename) for one in found]
    return {**result, **changed} if changed else result


def renamed_page(declaration: Mapping[str, Any], rename: Rename) -> dict[str, Any]:
    """Return a tool's declaration whose page is named as the client names it."""
    meta = declaration.get("_meta")
    if not isinstance(meta, Mapping) or not isinstance(page := meta.get(UI), Mapping):
        return dict(declaration)
    if not isinstance(page.get(UI_URI), str):
        return dict(declaration)
    named = {**page, UI_URI: rename(page[UI_URI])}
    return {**declaration, "_meta": {**meta, UI: named}}


def _member(one: Any, rename: Rename) -> Any:
    if isinstance(one, Mapping) and isinstance(one.get("uri"), str):
        return {**one, "uri": rename(one["uri"])}
    return one


def _block(block: Any, rename: Rename) -> Any:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "resource_link":
        return _member(block, rename)
    if kind == "resource":
        return {**block, "resource": _member(block.get("resource"), rename)}
    return block


def _message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [_block(one, rename) for one in content]}
    return {**message, "content": _block(content, rename)}
