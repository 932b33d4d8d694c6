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

READ_INLINE = 16_384
NOTE = 512


async def inspect_result(
    request: CallRequest, passed: AdmittedCall, result: dict[str, Any]
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    """Return the result as text for models, as JSON, and its details for the audit log."""
    organization_id = passed.snapshot.organization_id
    limit = settings.BONOBOT_RESULT_LIMIT
    if passed.target.facts.source == "builtin":
        limit += NOTE  # room for the truncation note of the call that it made
    # Scan long texts in a thread, to keep the event loop free.
    read = partial(_render, result, organization_id, limit=limit, result_id=request.call_id)
    inline = estimate_size(result, READ_INLINE) <= READ_INLINE
    shown, result, told = read() if inline else await asyncio.to_thread(read)
    if shown.whole:
        await get_runtime().orm(
            StoredResult.objects.create,
            pk=request.call_id,
            organization_id=organization_id,
            agent_id=passed.snapshot.agent_id,
            session_id=request.session_id,
            text=shown.whole,
        )
    return shown, result, told


def _render(
    result: dict[str, Any], organization_id: UUID, *, limit: int, result_id: UUID
) -> tuple[ResultText, dict[str, Any], dict[str, Any]]:
    told: dict[str, Any] = {
        "output_sha256": compute_fingerprint(organization_id, to_sorted_json(result))
    }
    if (clean := redact_result(result, organization_id)) is not result and clean != result:
        told["secrets_masked"] = True
    return render_result(clean, limit=limit, result_id=result_id), clean, told
