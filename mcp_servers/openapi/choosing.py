"""Choose operations: what a document offers, and a specification completed from it.

A document is fetched and read here, before anything is written and outside of any transaction; what
is stored afterwards is checked once more by `mcp_servers.configuration`.
"""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from django.conf import settings

from bonobot.lib.egress import EgressDenied, check_url
from bonobot.lib.problems import Invalid, NotFound
from bonobot.lib.runtime import runtime
from bonobot.lib.sayings import say
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.configuration import ServerSpec
from mcp_servers.models import Server
from mcp_servers.openapi.documents import document_of
from mcp_servers.openapi.fetching import fetch
from mcp_servers.openapi.members import MOST_CHOSEN, declared_in
from mcp_servers.schema_worker import outline

EVERYTHING = "*"


@dataclass(frozen=True, kw_only=True)
class Offer:
    """What a document offers: its text, and its outline as `outlining.outline` returns it."""

    text: str = field(repr=False)
    told: Mapping[str, Any] = field(repr=False)

    @property
    def operations(self) -> list[dict[str, Any]]:
        """Return the operations, those that are refused too."""
        found: list[dict[str, Any]] = self.told["operations"]
        return found

    @property
    def base_url(self) -> str:
        """Return where the API is by its own account; "" where it doesn't say."""
        found: list[dict[str, Any]] = self.told["base_urls"]
        return str(found[0]["url"]) if found else ""

    def as_dict(self) -> dict[str, Any]:
        """Return what is shown before anything is added."""
        return {**self.told, "notices": list(notices(self.told))}


def look_at(
    principal: Principal,
    *,
    document: Any = None,
    document_url: str = "",
    allow_private: bool = False,
) -> Offer:
    """Return what a document offers, given or fetched; blocks, never on the loop.

    Raises `Invalid`, `EgressDenied`, `NotFetched`, `Forbidden`.
    """
    principal.require(Action.MANAGE_SERVERS)
    if allow_private:
        principal.require(Action.ALLOW_PRIVATE_ADDRESS)
    if isinstance(document, Mapping):
        document = json.dumps(document)
    if document is None:
        document = _fetched(document_url, allow_private)
    if not isinstance(document, str) or not document.strip():
        raise Invalid(
            "There is no document.",
            code="missing_value",
            field="document",
            remedy="Give the OpenAPI document as text, or its address.",
        )
    return offer_of(document, document_url)


def offer_of(text: str, document_url: str = "") -> Offer:
    """Return what a document's text offers; raises `Invalid`."""
    told = outline(text, document_url=document_url)
    for one in told["base_urls"]:
        one["private"] = _is_private(one["url"])
    return Offer(text=text, told=told)


def completed(principal: Principal, spec: ServerSpec, old: Server | None = None) -> ServerSpec:
    """Return an API's specification with document, address and keys of operations filled in.

    What isn't about an API comes back as it is. Raises what `look_at` and `chosen` do, and
    `Invalid` (`base_url_missing`).
    """
    config = spec.endpoint_config
    if spec.transport_type != Server.Transport.OPENAPI or not isinstance(config, Mapping):
        return spec
    if declared_in(config, old) is not None or (old is not None and _unchanged(old, config)):
        return spec
    url = str(config.get("document_url") or "")
    document = config.get("document")
    if document is None and not url and old is not None and (row := document_of(old)):
        document = row.text
    offer = look_at(
        principal, document=document, document_url=url, allow_private=spec.allow_private
    )
    base = config.get("url") or offer.base_url
    if not base:
        raise Invalid(
            "The document doesn't say where the API is.",
            code="base_url_missing",
            field="endpoint_config.url",
            remedy="Give the base address, such as https://api.example.com/v1.",
        )
    keys = chosen(offer, config.get("operations"))
    return replace(
        spec, endpoint_config={**config, "url": base, "operations": keys, "document": offer.text}
    )


def chosen(
    offer: Offer, wanted: Any = None, *, tags: Collection[str] = (), everything: bool = False
) -> list[str]:
    """Return the keys of what is wanted: by key, operation id or name, by tag, or all.

    Named ones have to be there and sound; by tag, or all, what is refused is left out. Raises
    `NotFound` (`unknown_operation`) and `Invalid` (`operation_refused`, `nothing_chosen`,
    `too_many`).
    """
    if wanted is not None and not isinstance(wanted, list | tuple):
        raise Invalid("`operations` must be a list.", field="endpoint_config.operations")
    everything = everything or EVERYTHING in (wanted or ())
    keys = {
        one["key"]
        for one in offer.operations
        if not one["refused"] and (everything or set(tags) & set(one["tags"]))
    }
    keys |= {_named(offer, str(name)) for name in wanted or () if name != EVERYTHING}
    if not keys:
        raise Invalid(
            "No operation is chosen.",
            code="nothing_chosen",
            field="endpoint_config.operations",
            remedy="Choose at least one; the preview lists them.",
        )
    if len(keys) > MOST_CHOSEN:
        raise Invalid(
            say(
                "{count:,} operations are more than a server may have ({most_chosen:,}).",
                count=len(keys),
                most_chosen=MOST_CHOSEN,
            ),
            code="too_many",
            field="endpoint_config.operations",
            remedy="Choose fewer, for example by tag, or add the API as several servers.",
        )
    return sorted(keys)


def reading(offer: Offer) -> list[str]:
    """Return the keys of sound operations whose method changes nothing: what to begin with."""
    return [one["key"] for one in offer.operations if not (one["writes"] or one["refused"])]


def notices(told: Mapping[str, Any]) -> Iterable[str]:
    """Yield what a person should know before they add an API."""
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


def _named(offer: Offer, name: str) -> str:
    found = [
        one
        for member in ("key", "operation_id", "name")
        for one in offer.operations
        if one[member] == name
    ]
    if not found:
        raise NotFound(
            say("The document has no operation {name!r}.", name=name[:100]),
            code="unknown_operation",
            field="endpoint_config.operations",
            remedy="Write its operationId, or method and path, such as `GET /pets/{id}`.",
        )
    if found[0]["refused"]:
        raise Invalid(
            say(
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


def _unchanged(old: Server, config: Mapping[str, Any]) -> bool:
    """Tell whether nothing is said that a document would have to be read for."""
    stored = old.endpoint_config
    return (
        not old.speaks_mcp
        and config.get("document") is None
        and bool(config.get("url"))
        and all(config.get(name) == stored.get(name) for name in ("document_url", "operations"))
    )


def _fetched(url: str, allow_private: bool) -> str | None:
    if not url:
        return None
    found = runtime().call(
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
