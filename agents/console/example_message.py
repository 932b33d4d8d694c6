"""A first message that makes a harmless call, also with the offline model."""

from typing import Any
from uuid import UUID

from django.utils.translation import gettext as _t

from agents.llm.interface import ToolSpec
from agents.llm.offline.choose_tool import build_sample_arguments
from mcp_servers.models import Definition

MAX_TOOLS = 50
SAMPLE_TEXT = "hello"
SIMPLE_TYPES = (str, int, float)


def build_example_message(organization_id: UUID) -> str:
    """Return a message that asks for a call of an approved tool, preferably a read-only one."""
    rows = Definition.objects.for_organization(organization_id).callable().tools()
    tools = rows.filter(server__enabled=True).order_by("pinned_at", "name")[:MAX_TOOLS]
    examples = [(_rank(tool), _build_example(tool)) for tool in tools]
    usable = [(rank, text) for rank, text in examples if text]
    return min(usable)[1] if usable else _t("What can you do?")


def _rank(tool: Definition) -> tuple[bool, int]:
    """Return the order: tools that only read first, then those with few arguments."""
    annotations = tool.payload.get("annotations") or {}
    schema = tool.payload.get("inputSchema") or {}
    return not annotations.get("readOnlyHint"), len(schema.get("required") or ())


def _build_example(tool: Definition) -> str:
    """Return a message with each required argument; blank if one isn't a simple value."""
    spec = ToolSpec(tool.name, tool.description, tool.payload.get("inputSchema") or {})
    arguments = build_sample_arguments(spec)
    if not all(type(value) in SIMPLE_TYPES for value in arguments.values()):
        return ""
    values = " ".join(f"{name} {_quote(value)}" for name, value in arguments.items())
    return f"Use {tool.name} with {values}" if values else f"Use {tool.name}"


def _quote(value: Any) -> str:
    """Return a sample; texts in quotes, as the offline model reads other kinds without them."""
    return f'"{SAMPLE_TEXT}"' if value == "…" else str(value)
