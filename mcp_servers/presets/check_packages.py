"""Check whether the packages of presets still exist in their registries.

The proof of a hosted entry is its vendor's documentation, which isn't checked. Requests to
registries follow the egress rules.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

import httpx2
from django.utils import timezone

from bonobot.core.http.egress import EgressDenied, build_guarded_client
from bonobot.core.i18n.messages import format_message
from mcp_servers.models import Preset
from mcp_servers.presets.catalog import CatalogEntry

REGISTRIES = {"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org"}
# Paths of one version: both registries return 404 for a missing package or version.
PATHS = {"npm": "/{package}/{version}", "pypi": "/pypi/{package}/{version}/json"}
AT_ONCE = 4
ANSWER_S = 20.0

State = Literal["resolves", "gone", "unknown", "documented"]


@dataclass(frozen=True)
class PackageResolution:
    """The registry's result for a preset; `unknown` if the request failed."""

    slug: str
    state: State
    package: str = ""
    detail: str = ""


async def resolve(
    entries: Iterable[CatalogEntry],
    *,
    registries: Mapping[str, str] = REGISTRIES,
    allow_private: bool = False,
) -> tuple[PackageResolution, ...]:
    """Return the registries' results for the entries, in the same order."""
    places = asyncio.Semaphore(AT_ONCE)
    async with build_guarded_client(
        allow_private=allow_private, connect_s=ANSWER_S, read_s=ANSWER_S
    ) as client:

        async def ask(entry: CatalogEntry) -> PackageResolution:
            if entry.proof["kind"] != "package":
                return PackageResolution(entry.slug, "documented", detail=entry.proof["url"])
            async with places:
                return await _ask(client, entry, registries[entry.proof["registry"]])

        return tuple(await asyncio.gather(*map(ask, entries)))


def keep(found: Iterable[PackageResolution]) -> None:
    """Save the results in the platform's presets.

    If a request failed, the previous result is kept.
    """
    now = timezone.now().isoformat()
    for each in found:
        if each.state in ("resolves", "gone"):
            said = {"state": each.state, "detail": each.detail, "asked_at": now}
            Preset.objects.platform().filter(slug=each.slug).update(resolution=said)


async def _ask(client: httpx2.AsyncClient, entry: CatalogEntry, registry: str) -> PackageResolution:
    proof: Mapping[str, Any] = entry.proof
    shown = f"{proof['registry']} {proof['package']} {proof['version']}"
    path = PATHS[proof["registry"]].format(
        package=quote(proof["package"], safe="@"), version=proof["version"]
    )
    try:
        # HEAD is enough; the documents of PyPI and npm are long.
        answer = await client.head(registry + path)
    except (httpx2.HTTPError, EgressDenied) as error:
        return PackageResolution(entry.slug, "unknown", shown, f"{type(error).__name__}: {error}")
    if answer.status_code == httpx2.codes.NOT_FOUND:
        return PackageResolution(entry.slug, "gone", shown, "The registry has no such version.")
    if answer.is_success:
        return PackageResolution(entry.slug, "resolves", shown)
    return PackageResolution(
        entry.slug,
        "unknown",
        shown,
        format_message("The registry answered {status_code}.", status_code=answer.status_code),
    )
