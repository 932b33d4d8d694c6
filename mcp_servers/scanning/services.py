"""Scan definitions and results off the event loop."""

import asyncio
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from bonobot.core.text.untrusted_text import make_storable
from mcp_servers.models import Definition, Server
from mcp_servers.scanning.definitions import scan_definition
from mcp_servers.scanning.tool_results import StrippedValue, strip_json_value

MAX_PEER_NAMES = 5_000
MAX_INLINE_CHARACTERS = 16_384

Findings = list[dict[str, Any]]
Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True)
class KnownToolNames:
    """Tool names of the server itself and of the organization's other servers."""

    own: frozenset[str] = frozenset()
    peers: frozenset[str] = frozenset()


def load_tool_names(server: Server, own_names: Iterable[str]) -> KnownToolNames:
    """Return the tool names of a server (`own_names`) and of the other servers (one query)."""
    peer_definitions = Definition.objects.for_organization(server.organization_id).tools()
    names = (
        peer_definitions.filter(present=True).exclude(server=server).values_list("name", flat=True)
    )
    return KnownToolNames(frozenset(own_names), frozenset(names[:MAX_PEER_NAMES]))


def collect_findings(payload: Any, names: KnownToolNames) -> Findings:
    """Return the findings of a definition in stored form. Takes about 1 ms per KiB."""
    findings: Findings = make_storable(
        [
            finding.as_dict()
            for finding in scan_definition(payload, own_names=names.own, peer_names=names.peers)
        ]
    )
    return findings


async def collect_all_findings(
    payloads: Mapping[Key, Any], names: KnownToolNames
) -> dict[Key, Findings]:
    """Scan many definitions in another thread."""
    if not payloads:
        return {}
    return await asyncio.to_thread(
        lambda: {key: collect_findings(payload, names) for key, payload in payloads.items()}
    )


async def strip_result(result: Any, size: int) -> StrippedValue:
    """Return the stripped result without blocking the loop; `size` is its approximate length."""
    return (
        strip_json_value(result)
        if size <= MAX_INLINE_CHARACTERS
        else await asyncio.to_thread(strip_json_value, result)
    )


def describe_hard_finding(findings: Findings) -> str:
    """Return the first hard finding as text; "" if there is none."""
    hard_finding = next((finding for finding in findings if finding["tier"] == "hard"), None)
    return (
        f"{hard_finding['rule']} at {hard_finding['path']}: {hard_finding['excerpt']}"
        if hard_finding
        else ""
    )
