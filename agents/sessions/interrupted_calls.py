"""Ask a person about calls that may have run: make them again, or leave them."""

from typing import Literal
from uuid import UUID, uuid4

from django.utils import timezone

from agents.approvals.services import build_requester_fields, create_approval
from agents.calls.pending_calls import close_pending_call
from agents.calls.pipeline import CallOutcome
from agents.calls.redaction import ensure_masker_loaded
from agents.calls.require_approval import ApprovalRequired, build_target_fields
from agents.calls.snapshots import SnapshotTool, get_snapshot_cache
from agents.calls.unknown_outcomes import (
    OUTCOME_UNKNOWN_REMEDY,
    PROCESS_ENDED,
    describe_unknown_outcome,
)
from agents.models import Approval, Session, Step
from agents.models.approvals import INTERRUPTED_CODE
from agents.sessions import step_store
from agents.sessions.leases import SessionLease
from bonobot.core.crypto.signatures import compute_fingerprint
from bonobot.core.i18n.messages import format_message
from bonobot.core.runtime import get_runtime
from bonobot.core.text.canonical_json import compute_digest, to_canonical_json


async def ask_about_call(
    lease: SessionLease, agent_id: UUID, step: Step, outcome: CallOutcome
) -> bool:
    """Ask whether to make a call again that was just lost; False if its tool is gone."""
    orm = get_runtime().run_orm
    snapshot = await orm(get_snapshot_cache().load_current, "agent", agent_id)
    tool = snapshot.find_tool(step.payload["name"])
    if tool is None:
        return False
    await ensure_masker_loaded(snapshot)
    payload = {**step.payload, "cause": outcome.cause}
    # A task whose outcome is unknown is given up: made again, the call starts another one.
    if (exchange_id := payload.pop("exchange", None)) is not None:
        await orm(close_pending_call, exchange_id)
    step.payload = payload
    await orm(step_store.count_call, lease, outcome.cost_microusd)
    await orm(ask_person, lease, step, tool)
    return True


def get_unknown_text(step: Step) -> str:
    """Return the text for the model about a call that may have run."""
    text = describe_unknown_outcome(step.payload.get("cause", PROCESS_ENDED))
    return f"{text} {OUTCOME_UNKNOWN_REMEDY}"


def ask_person(
    lease: SessionLease, step: Step, tool: SnapshotTool
) -> Literal["again", "ask", "unknown"]:
    """Return a person's decision on a call that may have run; ask if not asked yet."""
    call_id = step.call_id or uuid4()
    approval = (
        Approval.objects.filter(call_id=call_id, code=INTERRUPTED_CODE)
        .order_by("-created_at")
        .first()
    )
    if approval is None:
        approval = _create_approval(lease, step, call_id, tool)
    if approval.is_answerable(timezone.now()):
        step_store.show_pending_approval(lease, step, ApprovalRequired(approval).extra)
        return "ask"
    if approval.state == Approval.State.APPROVED:
        return "again"
    step.payload = {**step.payload, "word": approval.message}
    return "unknown"


def _create_approval(
    lease: SessionLease, step: Step, call_id: UUID, tool: SnapshotTool
) -> Approval:
    """Create the approval; a later runner finds it by the call's id."""
    session = Session.objects.get(pk=lease.session_id)
    arguments = step.payload["arguments"] or {}
    approval = Approval(
        organization_id=session.organization_id,
        agent_id=session.agent_id,
        session_id=session.pk,
        call_id=call_id,
        **build_target_fields(tool, arguments, session.organization_id, None),
        arguments_digest=compute_fingerprint(session.organization_id, to_canonical_json(arguments)),
        rules_digest=compute_digest(INTERRUPTED_CODE),
        digest=compute_digest(to_canonical_json([INTERRUPTED_CODE, str(call_id)])),
        rule="session:interrupted",
        code=INTERRUPTED_CODE,
        reason=format_message(
            "{cause} It is unknown whether this call ran. Approve to make the call again, or deny "
            "to report an unknown outcome to the model.",
            cause=step.payload.get("cause", PROCESS_ENDED),
        ),
        **build_requester_fields(session),
    )
    return create_approval(approval)
