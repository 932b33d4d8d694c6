"""Tools, resources and prompts as clients see them, with prefixed URIs.

Only permitted definitions are listed; a client can't tell a denied one from a missing one. At an
agent's address, tools have the agent's names for them, and prompts and URIs are prefixed with their
server's slug; at a server's address, everything keeps the server's names.

URIs and URI templates get the slug in front of their scheme, `docs+file:///a.txt`, like `git+ssh:`.
Pages of MCP Apps and skills keep their scheme, as their clients require it: `ui://docs/page`. A
client's URI is resolved by the known prefixes, never guessed.
"""

import json
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any
from uuid import UUID

from django.conf import settings

from agents.builtin_tools.toolsets.default_tools import READ_SKILL
from agents.calls.definitions import SnapshotDefinition
from agents.calls.snapshots import CallSnapshot, SnapshotTool
from agents.gateway.client_request import build_invalid_params_error
from agents.gateway.protocol_versions import translate_execution
from agents.gateway.routes import GatewayTarget
from agents.skills import SkillTemplate, build_skill_entries, read_skill_file
from mcp_servers.client.change_notifications import TOPICS
from mcp_servers.client.jsonrpc import TASKS_EXTENSION
from mcp_servers.client.mcp_extensions import (
    APP_SCHEME,
    FLAT_URI_KEYS,
    SKILL_SCHEME,
    SKILLS_EXTENSION,
    UI_KEY,
    UI_URI_KEY,
    merge_server_extensions,
)
from mcp_servers.oauth_client.access_tokens import is_per_person
from mcp_servers.subscriptions.resource_updated import can_watch_resources

Rename = Callable[[str], str]
PREFIX_SEPARATOR = "+"
# Prepended to slugs that don't start with a letter, as a scheme must.
_PREFIX_LETTER = "s"
PAGE_SIZE = 500
CATALOG_KEY = "gateway shelf"
# Fields of a result that may have URIs, in addition to `content`.
_FIELDS_WITH_URIS = frozenset({"contents", "messages", "_meta"})
Declaration = dict[str, Any]


def build_uri_prefix(slug: str) -> str:
    """Return the prefix of a server's URIs: letters, digits, `-` and `.`, then `+`."""
    safe = slug.replace("_", ".")
    return (safe if safe[:1].isalpha() else _PREFIX_LETTER + safe) + PREFIX_SEPARATOR


def resolve_uri(uri: str, servers: Mapping[str, UUID]) -> tuple[UUID, str] | None:
    """Return the server's id and its own URI for a client's `uri`; None if no prefix matches.

    `servers` maps prefixes to ids.
    """
    scheme = _find_kept_scheme(uri)
    separator = "/" if scheme else PREFIX_SEPARATOR
    name, _, rest = uri.removeprefix(scheme).partition(separator)
    server_id = servers.get(name + PREFIX_SEPARATOR)
    return (server_id, scheme + rest) if server_id is not None and rest else None


def expose_uri(prefix: str, uri: str) -> str:
    """Return the client's URI or template for a server's; a blank prefix keeps it."""
    if prefix and (scheme := _find_kept_scheme(uri)):
        return f"{scheme}{prefix.removesuffix(PREFIX_SEPARATOR)}/{uri[len(scheme) :]}"
    return prefix + uri


def _find_kept_scheme(uri: str) -> str:
    """Return the scheme that clients have to recognize, or ""; the authority names the server."""
    return next((scheme for scheme in (APP_SCHEME, SKILL_SCHEME) if uri.startswith(scheme)), "")


def rename_resources(result: Any, rename: Rename) -> Any:
    """Return a result with the client's URIs for its resources; the rest is shared.

    Resources are in `contents`, and as links and embedded resources in a tool's `content` and a
    prompt's `messages`; `_meta` may name an app page.
    """
    if not isinstance(result, Mapping):
        return result
    result = rename_app_page(result, rename)
    changed_fields: dict[str, Any] = {}
    if isinstance(items := result.get("contents"), list):
        changed_fields["contents"] = [_rename_resource(item, rename) for item in items]
    if isinstance(items := result.get("content"), list):
        changed_fields["content"] = [_rename_block(item, rename) for item in items]
    if isinstance(items := result.get("messages"), list):
        changed_fields["messages"] = [_rename_message(item, rename) for item in items]
    return {**result, **changed_fields} if changed_fields else result


def may_have_uris(result: Mapping[str, Any]) -> bool:
    """Tell whether `rename_resources` may change a result; it doesn't if all of it is text."""
    if not result.keys().isdisjoint(_FIELDS_WITH_URIS):
        return True
    blocks = result.get("content")
    if isinstance(blocks, list):
        for block in blocks:
            if not isinstance(block, dict) or block.get("type") != "text":
                return True
    return False


def rename_app_page(value: Mapping[str, Any], rename: Rename) -> Mapping[str, Any]:
    """Return a declaration or result of a tool with the client's URI for its app page."""
    meta = value.get("_meta")
    if not isinstance(meta, Mapping):
        return value
    changed_fields: dict[str, Any] = {
        name: rename(meta[name]) for name in FLAT_URI_KEYS if isinstance(meta.get(name), str)
    }
    page = meta.get(UI_KEY)
    if isinstance(page, Mapping) and isinstance(page.get(UI_URI_KEY), str):
        changed_fields[UI_KEY] = {**page, UI_URI_KEY: rename(page[UI_URI_KEY])}
    return {**value, "_meta": {**meta, **changed_fields}} if changed_fields else value


def _rename_resource(resource: Any, rename: Rename) -> Any:
    if isinstance(resource, Mapping) and isinstance(resource.get("uri"), str):
        return {**resource, "uri": rename(resource["uri"])}
    return resource


def _rename_block(block: Any, rename: Rename) -> Any:
    kind = block.get("type") if isinstance(block, Mapping) else None
    if kind == "resource_link":
        return _rename_resource(block, rename)
    if kind == "resource":
        return {**block, "resource": _rename_resource(block.get("resource"), rename)}
    return block


def _rename_message(message: Any, rename: Rename) -> Any:
    if not isinstance(message, Mapping):
        return message
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [_rename_block(block, rename) for block in content]}
    return {**message, "content": _rename_block(content, rename)}


class DeclarationPage(list[Declaration]):
    """A page of a list that no longer changes."""

    @cached_property
    def encoded(self) -> bytes:
        """Its JSON, encoded once; raises `ValueError` for numbers that JSON doesn't have."""
        return json.dumps(self, separators=(",", ":"), allow_nan=False).encode("ascii")


class DeclarationList(tuple[Declaration, ...]):
    """Declarations that no longer change, whose pages are built once."""

    @cached_property
    def _pages(self) -> dict[int, DeclarationPage]:
        return {}

    def get_page(self, start: int) -> DeclarationPage:
        """Return the page that starts at a position."""
        if (page := self._pages.get(start)) is None:
            page = self._pages[start] = DeclarationPage(self[start : start + PAGE_SIZE])
        return page


@dataclass(frozen=True)
class GatewayCatalog:
    """The declarations of a target, in a stable order, and lookups by the client's names."""

    tools: DeclarationList
    resources: DeclarationList
    templates: DeclarationList
    skills: DeclarationList
    prompts: DeclarationList
    prompts_by_name: Mapping[str, SnapshotDefinition]
    servers_by_prefix: Mapping[str, UUID]
    capabilities: Mapping[str, Any]
    # The capabilities for people, who can also watch resources of servers with per-person sign-in.
    person_capabilities: Mapping[str, Any]
    instructions: str

    def find_prompt(self, name: str) -> SnapshotDefinition | None:
        """Find the prompt by the client's name for it."""
        return self.prompts_by_name.get(name)

    def find_resource(self, uri: str) -> tuple[UUID, str] | None:
        """Find the server's id and its own URI (or template) for a client's `uri`."""
        only_server_id = self.servers_by_prefix.get("")
        return (only_server_id, uri) if only_server_id else resolve_uri(uri, self.servers_by_prefix)

    def build_uri_renamer(self, server_id: UUID) -> Rename:
        """Return a function that converts a server's URIs to the client's."""
        prefix = next(
            (
                known_prefix
                for known_prefix, owner_id in self.servers_by_prefix.items()
                if owner_id == server_id
            ),
            "",
        )
        return partial(expose_uri, prefix)


def get_catalog(target: GatewayTarget, snapshot: CallSnapshot) -> GatewayCatalog:
    """Return a target's catalog, cached in its snapshot."""
    catalog = snapshot.memo.get(CATALOG_KEY)
    if catalog is None:
        catalog = snapshot.memo[CATALOG_KEY] = _build_catalog(target, snapshot)
    assert isinstance(catalog, GatewayCatalog)  # noqa: S101 - only this function writes it
    return catalog


def build_page(
    declarations: tuple[Declaration, ...], field_name: str, cursor: Any
) -> dict[str, Any]:
    """Return one page of a list and the cursor of the next; raises `MCPError` for a bad cursor."""
    start = 0 if cursor is None else _parse_cursor(cursor)
    if start > len(declarations):
        raise build_invalid_params_error("`cursor` isn't valid for this list")
    items: list[Declaration] = list(declarations[start : start + PAGE_SIZE])
    if isinstance(declarations, DeclarationList) and start % PAGE_SIZE == 0:
        items = declarations.get_page(start)
    page: dict[str, Any] = {field_name: items}
    if start + PAGE_SIZE < len(declarations):
        page["nextCursor"] = urlsafe_b64encode(str(start + PAGE_SIZE).encode()).decode()
    return page


def _parse_cursor(cursor: Any) -> int:
    try:
        text = urlsafe_b64decode(str(cursor)).decode("ascii")
    except (ValueError, UnicodeDecodeError):
        text = ""
    if not text.isdecimal() or len(text) > 9:
        raise build_invalid_params_error("`cursor` isn't valid for this list")
    return int(text)


def _build_catalog(target: GatewayTarget, snapshot: CallSnapshot) -> GatewayCatalog:
    is_agent = target.kind == "agent"
    servers = snapshot.servers.values()
    prefixes = {build_uri_prefix(item.slug) if is_agent else "": item.id for item in servers}
    prefixes_by_server = {server_id: prefix for prefix, server_id in prefixes.items()}

    def list_visible_definitions(kind: str) -> list[SnapshotDefinition]:
        return [item for item in snapshot.list_definitions(kind) if item.decision.is_callable]

    prompts = {
        f"{snapshot.servers[item.facts.server_id].slug}.{item.name}"
        if is_agent
        else item.name: item
        for item in list_visible_definitions("prompt")
    }
    tools = [tool for tool in snapshot.list_callable_tools() if tool.facts.source == "mcp"]
    return GatewayCatalog(
        tools=DeclarationList(
            translate_execution(_build_tool_declaration(tool, prefixes_by_server)) for tool in tools
        ),
        resources=DeclarationList(
            _build_located_declaration(item, "uri", prefixes_by_server)
            for item in list_visible_definitions("resource")
        ),
        templates=DeclarationList(
            _build_located_declaration(item, "uriTemplate", prefixes_by_server)
            for item in list_visible_definitions("resource_template")
        ),
        skills=DeclarationList(
            (
                *build_skill_entries(_list_own_skills(snapshot)),
                *(
                    _build_skill_declaration(item, prefixes_by_server)
                    for item in list_visible_definitions("skill")
                ),
            )
        ),
        prompts=DeclarationList(
            {**item.declaration, "name": name} for name, item in prompts.items()
        ),
        prompts_by_name=prompts,
        servers_by_prefix=prefixes,
        capabilities=_build_capabilities(snapshot, person=False),
        person_capabilities=_build_capabilities(snapshot, person=True),
        instructions=_build_instructions(target, snapshot),
    )


def _build_tool_declaration(
    tool: SnapshotTool, prefixes_by_server: Mapping[UUID, str]
) -> Declaration:
    server_id = tool.facts.server_id
    prefix = prefixes_by_server.get(server_id, "") if server_id else ""
    declaration = tool.declaration
    if prefix:
        declaration = rename_app_page(declaration, partial(expose_uri, prefix))
    return {**declaration, "name": tool.name}


def _build_located_declaration(
    definition: SnapshotDefinition, field_name: str, prefixes_by_server: Mapping[UUID, str]
) -> Declaration:
    return {
        **definition.declaration,
        field_name: expose_uri(prefixes_by_server[definition.facts.server_id], definition.name),
    }


def _build_skill_declaration(
    definition: SnapshotDefinition, prefixes_by_server: Mapping[UUID, str]
) -> Declaration:
    rename = partial(expose_uri, prefixes_by_server[definition.facts.server_id])
    files = [_rename_resource(file, rename) for file in definition.declaration["resources"]]
    entry = _build_located_declaration(definition, "uri", prefixes_by_server)
    return {**entry, "resources": files}


def _list_own_skills(snapshot: CallSnapshot) -> Collection[SkillTemplate]:
    """Return the agent's skills, unless its policy denies it to read them without approval."""
    tool = snapshot.tools.get(READ_SKILL.name)
    return snapshot.skills.values() if tool and tool.decision.allowed else ()


def read_own_skill(snapshot: CallSnapshot, uri: str) -> dict[str, Any] | None:
    """Return the contents of an own skill of the agent, None for another URI."""
    return read_skill_file(_list_own_skills(snapshot), uri)


def _build_capabilities(snapshot: CallSnapshot, *, person: bool) -> dict[str, Any]:
    """Return the capabilities for clients: those of the servers that the gateway forwards."""
    endpoints = [item.endpoint for item in snapshot.servers.values() if item.enabled]
    declared = [item.discovery.get("capabilities") or {} for item in endpoints if item.discovery]
    supported: dict[str, Any] = {topic: {"listChanged": True} for topic in TOPICS}
    if any(can_watch_resources(item) and (person or not is_per_person(item)) for item in endpoints):
        supported["resources"]["subscribe"] = True
    for name in ("completions", "logging"):
        if any(name in capabilities for capabilities in declared):
            supported[name] = {}
    # Servers may run calls as tasks, and a call that needs approval becomes a deferred task.
    supported["extensions"] = {
        TASKS_EXTENSION: {},
        **merge_server_extensions(declared),
        **build_skills_capability(),
    }
    return supported


def build_skills_capability() -> dict[str, Any]:
    """Return our declaration of the skills extension, if it is allowed; we list no directories."""
    return {SKILLS_EXTENSION: {}} if SKILLS_EXTENSION in settings.BONOBOT_EXTENSIONS else {}


def _build_instructions(target: GatewayTarget, snapshot: CallSnapshot) -> str:
    """Return the approved instructions of the servers, at an agent each under its server's name."""
    if target.kind == "server":
        return next(iter(snapshot.instructions.values()), "")
    return "\n\n".join(f"# {name}\n{text}" for name, text in sorted(snapshot.instructions.items()))
