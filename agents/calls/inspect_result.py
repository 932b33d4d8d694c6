"""Inspect a raw result: mask secrets, scan and truncate its text, store what was cut."""

import asyncio
from functools import partial
from typing import Any
from uuid import UUID

from django.conf import settings

from agents.calls.check_and_admit import AdmittedCall
from agents.calls.redaction import redact_result
from agents.calls.results import ResultText, estimate_size, render_result
from agents.calls.types import CallRequest
from agents.models import StoredResult
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import to_sorted_json

MAX_INLINE_SIZE = 16_384
NOTE_SIZE = 512


async def inspect_result(
    request: CallRequest, admitted: AdmittedCall, result: dict[str, Any]
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    """Return the result as text for models, as JSON, and its details for the audit log."""
    organization_id = admitted.snapshot.organization_id
    limit = settings.BONOBOT_RESULT_LIMIT
    if admitted.target.facts.source == "builtin":
        limit += NOTE_SIZE  # room for the truncation note of the call that it made
    # Scan long texts in a thread, to keep the event loop free.
    render = partial(
        _render_result, result, organization_id, limit=limit, result_id=request.call_id
    )
    is_short = estimate_size(result, MAX_INLINE_SIZE) <= MAX_INLINE_SIZE
    result_text, result, audit_details = render() if is_short else await asyncio.to_thread(render)
    if result_text.full_text:
        await get_runtime().run_orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=organization_id,
            agent_id=admitted.snapshot.agent_id,
            session_id=request.session_id,
            text=result_text.full_text,
        )
    return result_text, result, audit_details


def _render_result(
    result: dict[str, Any], organization_id: UUID, *, limit: int, result_id: UUID
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    audit_details: dict[str, Any] = {
        "output_sha256": compute_fingerprint(organization_id, to_sorted_json(result))
    }
    if (redacted := redact_result(result, organization_id)) is not result and redacted != result:
        audit_details["secrets_masked"] = True
    return render_result(redacted, limit=limit, result_id=result_id), redacted, audit_details
