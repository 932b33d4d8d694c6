"""Inspect a raw result: mask secrets, scan and truncate its text, store what was cut."""

import asyncio
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import UUID

from django.conf import settings

from agents.calls.redaction import redact_result
from agents.calls.result_text import ResultText, estimate_size, render_result
from agents.calls.snapshots import SnapshotTool
from agents.calls.types import CallContext
from agents.models import StoredResult
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_sorted_json
from bonobot.core.text.masking import build_searchable_text
from bonobot.core.text.untrusted_text import make_visible
from mcp_servers.scanning.hidden_text import PLAIN_ASCII
from mcp_servers.schemas.subprocess_pool import find_output_violation

MAX_INLINE_SIZE = 16_384
NOTE_SIZE = 512
MAX_VIOLATION_LENGTH = 300
# The `_meta` key that says how a result violates its tool's output schema.
VIOLATION_META_KEY = "bonobot/outputSchemaViolation"


class RenderedResult(NamedTuple):
    """A result's text, the result without secrets, its audit details, and whether it is visible.

    It is visible if it is ASCII without control characters, so nothing in it may be hidden.
    """

    text: ResultText
    result: dict[str, Any]
    audit_details: dict[str, Any]
    is_visible: bool


async def inspect_result(context: CallContext) -> None:
    """Set the result's text for models, the result without secrets, and its audit details."""
    request, target, snapshot = context.request, context.target, context.snapshot
    result, limit = context.result, settings.BONOBOT_RESULT_LIMIT
    if target.facts.source == "builtin":
        limit += NOTE_SIZE  # room for the truncation note of the call that it made
    schema = target.declaration.get("outputSchema") if isinstance(target, SnapshotTool) else None
    violation = ""
    if isinstance(schema, dict) and not result.get("isError"):
        violation = await _find_violation(schema, result, snapshot.organization_id)
    render = partial(
        _render_result, result, snapshot.organization_id, limit=limit, result_id=request.call_id
    )
    context.result_size = estimate_size(result, MAX_INLINE_SIZE)
    # Scan long texts in a thread, to keep the event loop free.
    is_short = context.result_size <= MAX_INLINE_SIZE
    result_text, result, audit_details, context.is_visible = (
        render() if is_short else await asyncio.to_thread(render)
    )
    if violation:
        result_text, result = _mark_violation(result_text, result, violation)
        context.is_visible = False
        audit_details["output_schema"] = violation
    if result_text.full_text:
        await get_runtime().run_orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=snapshot.organization_id,
            agent_id=snapshot.agent_id,
            session_id=request.session_id,
            text=result_text.full_text,
        )
    context.result_text, context.result = result_text, result
    context.audit_details = audit_details


async def _find_violation(
    schema: dict[str, Any], result: dict[str, Any], organization_id: UUID
) -> str:
    """Return how a result violates the tool's output schema; blank if it doesn't."""
    if "structuredContent" not in result:
        return "$: The structured result is missing."
    violation = await find_output_violation(schema, result["structuredContent"])
    # It quotes the server's values.
    return make_visible(
        str(redact_result({"text": violation}, organization_id)["text"]), MAX_VIOLATION_LENGTH
    )


def _mark_violation(
    result_text: ResultText, result: dict[str, Any], violation: str
) -> tuple[ResultText, dict[str, Any]]:
    """Return the text with a note, and the result with the violation in its `_meta`."""
    note = f"[This result doesn't match the tool's output schema. {violation}]"
    meta = result.get("_meta")
    own_meta = {**(meta if isinstance(meta, dict) else {}), VIOLATION_META_KEY: violation}
    marked_text = replace(result_text, text=f"{result_text.text}\n{note}".lstrip())
    return marked_text, {**result, "_meta": own_meta}


def _render_result(
    result: dict[str, Any], organization_id: UUID, *, limit: int, result_id: UUID
) -> RenderedResult:
    audit_details: dict[str, Any] = {
        "output_sha256": compute_fingerprint(organization_id, to_sorted_json(result))
    }
    searchable_text = build_searchable_text(result)
    redacted = redact_result(result, organization_id, searchable_text)
    if redacted is not result and redacted != result:
        audit_details["secrets_masked"] = True
    text = render_result(redacted, limit=limit, result_id=result_id)
    is_visible = (
        redacted is result
        and searchable_text is not None
        and not searchable_text.raw.translate(None, PLAIN_ASCII)
    )
    return RenderedResult(text, redacted, audit_details, is_visible)
