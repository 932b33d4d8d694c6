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
from mcp_servers.openapi.discovery import fetch
from mcp_servers.openapi.endpoint_config import MOST_CHOSEN, find_declared_operations
from mcp_servers.schemas.subprocess_pool import build_outline_in_child
from mcp_servers.server_config import ServerSpec

EVERYTHING = "*"


@dataclass(frozen=True, kw_only=True)
class DocumentOutline:
    """A document's text, and its outline as `build_outline` returns it."""

    text: str = field(repr=False)
    told: Mapping[str, Any] = field(repr=False)

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Return all operations, including unusable ones."""
        found: list[dict[str, Any]] = self.told["operations"]
        return found

    @property
    def base_url(self) -> str:
        """Return the first base URL in the document, or ""."""
        found: list[dict[str, Any]] = self.told["base_urls"]
        return str(found[0]["url"]) if found else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the preview that is shown before an API is added."""
        return {**self.told, "notices": list(list_warnings(self.told))}


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
        document = _fetch_document(document_url, allow_private)
    if not isinstance(document, str) or not document.strip():
        raise InvalidInput(
            "There is no document.",
            code="missing_value",
            field="document",
            remedy="Give the OpenAPI document as text, or its address.",
        )
    return parse_document_outline(document, document_url)


def parse_document_outline(text: str, document_url: str = "") -> DocumentOutline:
    """Return the outline of a document's text; raises `InvalidInput`."""
    told = build_outline_in_child(text, document_url=document_url)
    for one in told["base_urls"]:
        one["private"] = _is_private(one["url"])
    return DocumentOutline(text=text, told=told)


def complete_spec(principal: Principal, spec: ServerSpec, old: Server | None = None) -> ServerSpec:
    """Return an API's specification with document, base URL and operation keys filled in.

    Specifications of other servers are returned unchanged. Raises as `inspect_document` and
    `select_operations`, and `InvalidInput` (`base_url_missing`).
    """
    config = spec.endpoint_config
    if spec.transport_type != Server.Transport.OPENAPI or not isinstance(config, Mapping):
        return spec
    if find_declared_operations(config, old) is not None or (
        old is not None and _is_unchanged(old, config)
    ):
        return spec
    url = str(config.get("document_url") or "")
    document = config.get("document")
    if document is None and not url and old is not None and (row := find_document(old)):
        document = row.text
    offer = inspect_document(
        principal, document=document, document_url=url, allow_private=spec.allow_private
    )
    base = config.get("url") or offer.base_url
    if not base:
        raise InvalidInput(
            "The document doesn't say where the API is.",
            code="base_url_missing",
            field="endpoint_config.url",
            remedy="Give the base address, such as https://api.example.com/v1.",
        )
    keys = select_operations(offer, config.get("operations"))
    return replace(
        spec, endpoint_config={**config, "url": base, "operations": keys, "document": offer.text}
    )


def select_operations(
    offer: DocumentOutline,
    wanted: Any = None,
    *,
    tags: Collection[str] = (),
    everything: bool = False,
) -> list[str]:
    """Return the keys of operations selected by key, operation ID or name, by tag, or all.

    Requested operations must exist and be usable; by tag, or for all, unusable ones are skipped.
    Raises `NotFound` (`unknown_operation`) and `InvalidInput` (`operation_refused`,
    `nothing_chosen`, `too_many`).
    """
    if wanted is not None and not isinstance(wanted, list | tuple):
        raise InvalidInput("`operations` must be a list.", field="endpoint_config.operations")
    everything = everything or EVERYTHING in (wanted or ())
    keys = {
        one["key"]
        for one in offer.operations
        if not one["refused"] and (everything or set(tags) & set(one["tags"]))
    }
    keys |= {_get_operation_key(offer, str(name)) for name in wanted or () if name != EVERYTHING}
    if not keys:
        raise InvalidInput(
            "No operation is chosen.",
            code="nothing_chosen",
            field="endpoint_config.operations",
            remedy="Choose at least one; the preview lists them.",
        )
    if len(keys) > MOST_CHOSEN:
        raise InvalidInput(
            format_message(
                "{count:,} operations are more than a server may have ({most_chosen:,}).",
                count=len(keys),
                most_chosen=MOST_CHOSEN,
            ),
            code="too_many",
            field="endpoint_config.operations",
            remedy="Choose fewer, for example by tag, or add the API as several servers.",
        )
    return sorted(keys)


def list_read_operations(offer: DocumentOutline) -> list[str]:
    """Return the keys of usable read-only operations, the default selection."""
    return [one["key"] for one in offer.operations if not (one["writes"] or one["refused"])]


def list_warnings(told: Mapping[str, Any]) -> Iterable[str]:
    """Yield warnings to show before an API is added."""
    urls = told["base_urls"]
    if not urls:
        yield "The document doesn't say where the API is: give its base address."
    for one in urls[:1]:
        if one["url"].startswith("http://"):
            yield f"{one['url']} is not encrypted: whoever is on the way reads the credential, too."
        if one["private"]:
            yield f"{one['url']} is a private address, which a platform administrator may allow."
    if refused := sum(1 for one in told["operations"] if one["refused"]):
        yield f"{refused} operations can't be tools; each says why."


def _get_operation_key(offer: DocumentOutline, name: str) -> str:
    found = [
        one
        for member in ("key", "operation_id", "name")
        for one in offer.operations
        if one[member] == name
    ]
    if not found:
        raise NotFound(
            format_message("The document has no operation {name!r}.", name=name[:100]),
            code="unknown_operation",
            field="endpoint_config.operations",
            remedy="Write its operationId, or method and path, such as `GET /pets/{id}`.",
        )
    if found[0]["refused"]:
        raise InvalidInput(
            format_message(
                "`{key}` can't be a tool: {refused}",
                key=found[0]["key"],
                refused=found[0]["refused"],
            ),
            code="operation_refused",
            field="endpoint_config.operations",
            remedy="Leave it out, or mend the document.",
            extra={"pointer": found[0]["pointer"]},
        )
    return str(found[0]["key"])


def _is_unchanged(old: Server, config: Mapping[str, Any]) -> bool:
    """Tell whether the configuration has no change that needs the document."""
    stored = old.endpoint_config
    return (
        not old.speaks_mcp
        and config.get("document") is None
        and bool(config.get("url"))
        and all(config.get(name) == stored.get(name) for name in ("document_url", "operations"))
    )


def _fetch_document(url: str, allow_private: bool) -> str | None:
    if not url:
        return None
    found = get_runtime().call(
        fetch,
        url,
        allow_private=allow_private,
        connect_s=settings.BONOBOT_CONNECT_S,
        read_s=settings.BONOBOT_READ_S,
    )
    text: str | None = found.text
    return text


def _is_private(url: str) -> bool:
    try:
        check_url(url, allow_private=False)
    except EgressDenied as problem:
        return problem.code == "private_address"
    return False
