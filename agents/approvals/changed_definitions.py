"""Pending approvals that no longer apply, because the server changed the definition meanwhile."""

from collections import defaultdict
from collections.abc import Iterable
from datetime import datetime
from typing import Any
from uuid import UUID

from agents.models import Approval
from bonobot.core.text.syntax_highlighting import diff_json
from mcp_servers.models import Definition

DEFINITION_CHANGED_CODE = "definition_changed"
DEFINITION_KINDS = {
    "tools/call": (Definition.Kind.TOOL,),
    "resources/read": (
        *(Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE, Definition.Kind.SKILL),
    ),
    "prompts/get": (Definition.Kind.PROMPT,),
}
_FIELDS = ("pk", "server_id", "name", "kind", "digest", "pinned_digest", "present")
_DECLARATIONS = ("payload", "pinned")
_DIFF_MARKS = {"added": "+", "removed": "-", "same": " "}


def find_changed_definitions(
    approvals: Iterable[Approval], *, with_declarations: bool = False
) -> dict[UUID, Definition]:
    """Return the current definitions of the pending approvals that were requested for others.

    By the approval's ID (one query). An approval to repeat an interrupted call isn't bound to a
    definition: the repeated call is decided again.
    """
    bound = [approval for approval in approvals if _is_bound(approval)]
    if not bound:
        return {}
    rows = Definition.objects.filter(
        server_id__in={approval.server_id for approval in bound},
        name__in={approval.own_name for approval in bound},
    ).only(*_FIELDS, *(_DECLARATIONS if with_declarations else ()))
    definitions: defaultdict[Any, list[Definition]] = defaultdict(list)
    for row in rows:
        definitions[row.server_id, row.name].append(row)
    changed: dict[UUID, Definition] = {}
    for approval in bound:
        kinds = DEFINITION_KINDS.get(approval.method, tuple(Definition.Kind))
        current = [
            row
            for row in definitions[approval.server_id, approval.own_name]
            if row.kind in kinds and row.present
        ]
        if current and all(row.digest != approval.definition_digest for row in current):
            changed[approval.pk] = current[0]
    return changed


def find_outdated_approvals(
    approvals: Iterable[Approval], now: datetime, *, with_declarations: bool = False
) -> dict[UUID, Definition]:
    """Return the current definitions of the approvals that can only be denied, by approval ID.

    What the inbox, REST and the page of the MCP App show (at most one query).
    """
    answerable = [approval for approval in approvals if approval.is_answerable(now)]
    return find_changed_definitions(answerable, with_declarations=with_declarations)


def format_definition_diff(definition: Definition) -> str:
    """Return the lines that changed since the definition was approved, with `+` and `-`."""
    lines = diff_json(definition.pinned, definition.payload)
    return "\n".join(_DIFF_MARKS[kind] + text for kind, text in lines)


def has_changed_definition(approval: Approval) -> bool:
    """Return whether a pending approval no longer applies to its call (one query)."""
    return bool(find_changed_definitions([approval]))


def can_be_requested_again(approval: Approval) -> bool:
    """Return whether the changed definition is approved, so that the call can be decided again."""
    definition = find_changed_definitions([approval]).get(approval.pk)
    return definition is not None and is_reviewed(definition)


def is_reviewed(definition: Definition) -> bool:
    """Return whether the current definition is the approved one."""
    return bool(definition.pinned_digest == definition.digest)


def _is_bound(approval: Approval) -> bool:
    is_pending = approval.state == Approval.State.WAITING
    return bool(
        is_pending
        and approval.server_id
        and approval.definition_digest
        and not approval.may_have_run
    )
