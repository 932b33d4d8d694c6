"""Do packages still resolve at registries.

Only packages can be asked about; a hosted entry's proof is its vendor's documentation, which a
person reads. Registries are reached through the egress guard like every other host.
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
# How to ask for one version: both answer 404 for a package or version that isn't there.
PATHS = {"npm": "/{package}/{version}", "pypi": "/pypi/{package}/{version}/json"}
AT_ONCE = 4
ANSWER_S = 20.0

State = Literal["resolves", "gone", "unknown", "documented"]


@dataclass(frozen=True)
class PackageResolution:
    """What a registry said of a preset: `unknown` where it could not be asked."""

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
    """Return what the registries say of each entry, in the entries' order."""
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
    """Write what the registries said to the platform's presets, where people choose them.

    Where a registry could not be asked, what it said before stands.
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
        # The head alone says it; PyPI's and npm's documents are long.
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
