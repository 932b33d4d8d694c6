"""Read what strangers wrote aside: neither the loop nor the database waits (FEATURES X3)."""

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bonobot.lib.untrusted import storable
from mcp_servers.models import Definition, Server
from mcp_servers.scanning import scan
from mcp_servers.scanning.stripping import Stripped, strip

MOST_PEERS = 5_000
INLINE = 16_384

Findings = list[dict[str, Any]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class Around:
    """Names of tools: the server's own, and those of the organization's other servers."""

    own: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()


def around(server: Server, own: Iterable[str]) -> Around:
    """Return the names around a server's definitions, its own being `own` (one query)."""
    others = Definition.objects.for_organization(server.organization_id).tools()
    names = others.filter(present=True).exclude(server=server).values_list("name", flat=True)
    return Around(frozenset(own), frozenset(names[:MOST_PEERS]))


def read(payload: Any, names: Around) -> Findings:
    """Return what a definition was found to hold, as it is stored. Takes some 1 ms for each KiB."""
    found: Findings = storable(
        [one.as_dict() for one in scan(payload, own=names.own, peers=names.peers)]
    )
    return found


async def read_all(payloads: Mapping[Key, Any], names: Around) -> dict[Key, Findings]:
    """Read many definitions in a thread of their own."""
    if not payloads:
        return {}
    return await asyncio.to_thread(
        lambda: {key: read(payload, names) for key, payload in payloads.items()}
    )


async def stripped(result: Any, size: int) -> Stripped:
    """Return `strip(result)` without holding the loop; `size` is about its characters."""
    return strip(result) if size <= INLINE else await asyncio.to_thread(strip, result)


def hard_fault(findings: Findings) -> str:
    """Say why a definition can never be used, by its hard findings; "" where it has none."""
    hard = next((one for one in findings if one["tier"] == "hard"), None)
    return f"{hard['rule']} at {hard['path']}: {hard['excerpt']}" if hard else ""
