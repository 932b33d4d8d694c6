"""Outline a document and select operations from it.

Documents are fetched and parsed here, before any write and outside of transactions; what is stored
afterwards is checked again by `mcp_servers.server_config`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.http.egress import EgressDenied, check_url
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import InvalidInput, NotFound
from bonobot.core.runtime import get_runtime
from mcp_servers.models import Server
from mcp_servers.models.servers import find_document
from mcp_servers.openapi.discovery import fetch_document
from mcp_servers.openapi.endpoint_config import check_operation_count, find_declared_operations
from mcp_servers.schemas.subprocess_pool import build_outline_in_child
from mcp_servers.server_config import ServerSpec

ALL_OPERATIONS = "*"


@dataclass(frozen=True, kw_only=True)
class DocumentOutline:
    """A document's text, and its outline as `build_outline` returns it."""

    text: str = field(repr=False)
    data: Mapping[str, Any] = field(repr=False)

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Return all operations, including unusable ones."""
        operations: list[dict[str, Any]] = self.data["operations"]
        return operations

    @property
    def base_url(self) -> str:
        """Return the first base URL in the document, or ""."""
        base_urls: list[dict[str, Any]] = self.data["base_urls"]
        return str(base_urls[0]["url"]) if base_urls else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the preview that is shown before an API is added."""
        return {**self.data, "notices": list(list_warnings(self.data))}


def inspect_document(
    principal: Principal,
    *,
    document: Any = None,
    document_url: str = "",
    allow_private: bool = False,
) -> DocumentOutline:
    """Return the outline of a document, given or fetched; blocks, so never call it on the loop.

    Raises `InvalidInput`, `EgressDenied`, `DocumentFetchFailed`, `Forbidden`.
    """
    principal.require(Action.MANAGE_SERVERS)
    if allow_private:
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    if isinstance(document, Mapping):
        document = json.dumps(document)
    if document is None:
        document = _fetch_document_text(document_url, allow_private)
    if not isinstance(document, str) or not document.strip():
        raise InvalidInput(
            "The document is missing.",
            code="missing_value",
            field="document",
            remedy="Provide the OpenAPI document as text, or its URL.",
        )
    return parse_document_outline(document, document_url)


def parse_document_outline(text: str, document_url: str = "") -> DocumentOutline:
    """Return the outline of a document's text; raises `InvalidInput`."""
    outline = build_outline_in_child(text, document_url=document_url)
    for base_url in outline["base_urls"]:
        base_url["private"] = _is_private(base_url["url"])
    return DocumentOutline(text=text, data=outline)


def complete_spec(
    principal: Principal, spec: ServerSpec, existing_server: Server | None = None
) -> ServerSpec:
    """Return an API's specification with document, base URL and operation keys filled in.

    Specifications of other servers are returned unchanged. Raises as `inspect_document` and
    `select_operations`, and `InvalidInput` (`base_url_missing`).
    """
    config = spec.endpoint_config
    if spec.transport_type != Server.Transport.OPENAPI or not isinstance(config, Mapping):
        return spec
    if find_declared_operations(config, existing_server) is not None or (
        existing_server is not None and _is_unchanged(existing_server, config)
    ):
        return spec
    url = str(config.get("document_url") or "")
    document = config.get("document")
    if (
        document is None
        and not url
        and existing_server is not None
        and (row := find_document(existing_server))
    ):
        document = row.text
    outline = inspect_document(
        principal, document=document, document_url=url, allow_private=spec.allow_private
    )
    base_url = config.get("url") or outline.base_url
    if not base_url:
        raise InvalidInput(
            "The document doesn't contain the API's base URL.",
            code="base_url_missing",
            field="endpoint_config.url",
            remedy="Enter the base URL, such as https://api.example.com/v1.",
        )
    keys = select_operations(outline, config.get("operations"))
    return replace(
        spec,
        endpoint_config={**config, "url": base_url, "operations": keys, "document": outline.text},
    )


def select_operations(
    outline: DocumentOutline,
    requested: Any = None,
    *,
    tags: Collection[str] = (),
    select_all: bool = False,
) -> list[str]:
    """Return the keys of operations selected by key, operation ID or name, by tag, or all.

    Requested operations must exist and be usable; by tag, or for all, unusable ones are skipped.
    Raises `NotFound` (`unknown_operation`) and `InvalidInput` (`operation_rejected`,
    `nothing_selected`, `too_many`).
    """
    if requested is not None and not isinstance(requested, list | tuple):
        raise InvalidInput("`operations` must be a list.", field="endpoint_config.operations")
    select_all = select_all or ALL_OPERATIONS in (requested or ())
    keys = {
        operation["key"]
        for operation in outline.operations
        if not operation["refused"] and (select_all or set(tags) & set(operation["tags"]))
    }
    keys |= {
        _get_operation_key(outline, str(name)) for name in requested or () if name != ALL_OPERATIONS
    }
    check_operation_count(keys)
    return sorted(keys)


def list_read_operations(outline: DocumentOutline) -> list[str]:
    """Return the keys of usable read-only operations, the default selection."""
    return [
        operation["key"]
        for operation in outline.operations
        if not (operation["writes"] or operation["refused"])
    ]


def list_warnings(outline: Mapping[str, Any]) -> Iterable[str]:
    """Yield warnings to show before an API is added."""
    urls = outline["base_urls"]
    if not urls:
        yield "The document doesn't say where the API is: give its base address."
    for item in urls[:1]:
        if item["url"].startswith("http://"):
            yield (f"{item['url']} isn't encrypted: anyone on the network can read the credential.")
        if item["private"]:
            yield f"{item['url']} is a private address, which a platform administrator may allow."
    if refused_count := sum(1 for item in outline["operations"] if item["refused"]):
        yield f"{refused_count} operations can't be tools; each says why."


def _get_operation_key(outline: DocumentOutline, name: str) -> str:
    matches = [
        operation
        for field_name in ("key", "operation_id", "name")
        for operation in outline.operations
        if operation[field_name] == name
    ]
    if not matches:
        raise NotFound(
            format_message("The document has no operation {name!r}.", name=name[:100]),
            code="unknown_operation",
            field="endpoint_config.operations",
            remedy="Enter its operationId, or its method and path, such as `GET /pets/{id}`.",
        )
    if matches[0]["refused"]:
        raise InvalidInput(
            format_message(
                "`{key}` can't be a tool: {refused}",
                key=matches[0]["key"],
                refused=matches[0]["refused"],
            ),
            code="operation_rejected",
            field="endpoint_config.operations",
            remedy="Omit the operation, or correct the document.",
            extra={"pointer": matches[0]["pointer"]},
        )
    return str(matches[0]["key"])


def _is_unchanged(existing_server: Server, config: Mapping[str, Any]) -> bool:
    """Tell whether the configuration has no change that needs the document."""
    stored_config = existing_server.endpoint_config
    return (
        not existing_server.speaks_mcp
        and config.get("document") is None
        and bool(config.get("url"))
        and all(
            config.get(name) == stored_config.get(name) for name in ("document_url", "operations")
        )
    )


def _fetch_document_text(url: str, allow_private: bool) -> str | None:
    if not url:
        return None
    document = get_runtime().call(
        fetch_document,
        url,
        allow_private=allow_private,
        connect_s=settings.BONOBOT_CONNECT_S,
        read_s=settings.BONOBOT_READ_S,
    )
    text: str | None = document.text
    return text


def _is_private(url: str) -> bool:
    try:
        check_url(url, allow_private=False)
    except EgressDenied as problem:
        return problem.code == "private_address"
    return False
