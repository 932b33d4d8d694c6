"""What an imported API says beside its address: its document and the operations chosen of it."""

from collections.abc import Mapping
from typing import Any

from mcp_servers.portability.collecting import Collector
from mcp_servers.portability.reader import Node

MEMBERS = frozenset(("declared", "document", "document_url", "operations"))


def of_api(members: Mapping[str, Node], collector: Collector) -> dict[str, Any]:
    """Return an API's members of `endpoint_config`; `configuration.check` says what holds."""
    found: dict[str, Any] = {}
    if (node := members.get("document_url")) is not None:
        found["document_url"] = collector.plain(
            (collector.text(node, "document_url") or "").strip(), "document_url"
        )
    if (node := members.get("document")) is not None:
        # As it is: what looks like a variable in it belongs to the API.
        found["document"] = node.value if isinstance(node.value, str) else node.plain()
    if (node := members.get("declared")) is not None:
        # As it is, too; what it comes to is said where it is checked.
        return found | {"declared": node.plain()}
    node = members.get("operations")
    if node is None or not isinstance(node.value, list):
        detail, remedy = "`operations` must be a list.", 'Write "operations": ["GET /pets"].'
        collector.refuse("bad_value", detail, "operations", remedy, node.line if node else 0)
        return found
    named = (collector.text(one, f"operations[{i}]") for i, one in enumerate(node.items))
    return found | {"operations": [one for one in named if one is not None]}
