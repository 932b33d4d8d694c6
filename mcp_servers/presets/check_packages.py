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

REGISTRY_URLS = {"npm": "https://registry.npmjs.org", "pypi": "https://pypi.org"}
# Paths of one version: both registries return 404 for a missing package or version.
VERSION_PATHS = {"npm": "/{package}/{version}", "pypi": "/pypi/{package}/{version}/json"}
MAX_CONCURRENT_REQUESTS = 4
TIMEOUT_S = 20.0

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
    registries: Mapping[str, str] = REGISTRY_URLS,
    allow_private: bool = False,
) -> tuple[PackageResolution, ...]:
    """Return the registries' results for the entries, in the same order."""
    semaphore = asyncio.Semaphore(MAX_CONCURRENT_REQUESTS)
    async with build_guarded_client(
        allow_private=allow_private, connect_s=TIMEOUT_S, read_s=TIMEOUT_S
    ) as client:

        async def resolve_entry(entry: CatalogEntry) -> PackageResolution:
            if entry.proof["kind"] != "package":
                return PackageResolution(entry.slug, "documented", detail=entry.proof["url"])
            async with semaphore:
                return await _resolve_package(client, entry, registries[entry.proof["registry"]])

        return tuple(await asyncio.gather(*map(resolve_entry, entries)))


def save_resolutions(resolutions: Iterable[PackageResolution]) -> None:
    """Save the results in the platform's presets.

    If a request failed, the previous result is kept.
    """
    now = timezone.now().isoformat()
    for resolution in resolutions:
        if resolution.state in ("resolves", "gone"):
            stored_resolution = {
                "state": resolution.state,
                "detail": resolution.detail,
                "asked_at": now,
            }
            Preset.objects.from_platform().filter(slug=resolution.slug).update(
                resolution=stored_resolution
            )


async def _resolve_package(
    client: httpx2.AsyncClient, entry: CatalogEntry, registry: str
) -> PackageResolution:
    proof: Mapping[str, Any] = entry.proof
    package_label = f"{proof['registry']} {proof['package']} {proof['version']}"
    path = VERSION_PATHS[proof["registry"]].format(
        package=quote(proof["package"], safe="@"), version=proof["version"]
    )
    try:
        # HEAD is enough; the documents of PyPI and npm are long.
        response = await client.head(registry + path)
    except (httpx2.HTTPError, EgressDenied) as error:
        return PackageResolution(
            entry.slug, "unknown", package_label, f"{type(error).__name__}: {error}"
        )
    if response.status_code == httpx2.codes.NOT_FOUND:
        return PackageResolution(
            entry.slug, "gone", package_label, "The registry doesn't have this version."
        )
    if response.is_success:
        return PackageResolution(entry.slug, "resolves", package_label)
    return PackageResolution(
        entry.slug,
        "unknown",
        package_label,
        format_message(
            "The registry returned HTTP {status_code}.", status_code=response.status_code
        ),
    )
