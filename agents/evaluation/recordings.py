"""Recordings of sessions: create and delete them, and return their results to replays."""

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError, transaction

from agents.calls.resolve import build_unknown_tool_error
from agents.calls.snapshots import CallSnapshot
from agents.evaluation.compare_transcripts import (
    NOT_RECORDED,
    MaskFunction,
    RecordedCall,
    RecordedDecision,
    Transcript,
    build_transcript,
)
from agents.models import Recording, Session, Step, WorkflowRun
from agents.policies.compare_decisions import POLICY_DENIAL_CODES
from agents.policies.decisions import PolicyDecision
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from bonobot.core.crypto.organization_secrets import load_masker
from bonobot.core.db.transactions import lock_row
from bonobot.core.i18n.messages import format_message
from bonobot.core.problems import Conflict, InvalidInput
from bonobot.core.text.canonical_json import to_canonical_json
from bonobot.core.text.untrusted_text import make_storable
from bonobot.ledger.audit.admin_changes import describe_row, record_change
from bonobot.ledger.audit.renamed_codes import add_old_codes
from bonobot.ledger.models import AuditRow

# Bytes of a recording as JSON, and recordings per agent.
MAX_RECORDING_BYTES = 1024 * 1024
MAX_RECORDINGS = 200
FINISHED_STATUSES = (Session.Status.DONE, Session.Status.FAILED, Session.Status.CANCELLED)

# Codes of denials by policy, disabled objects or definitions. Other errors (limits, bad arguments)
# are results of allowed calls, and are replayed from the recording.
DECISION_CODES = POLICY_DENIAL_CODES | add_old_codes(
    {
        *(
            "kill_switch_enabled",
            "agent_disabled",
            "server_disabled",
            "not_attached",
            "builtin_disabled",
        ),
        *("unknown_tool", "not_approved", "definition_changed", "definition_rejected", "tool_gone"),
    }
)


class RecordedResults:
    """The results of a recording by tool and arguments, each returned once, in order.

    Calls that policy denied have no result.
    """

    def __init__(self, transcript: Transcript, mask_value: MaskFunction) -> None:
        self._mask_value = mask_value
        self._results: defaultdict[tuple[str, str], deque[RecordedCall]] = defaultdict(deque)
        for call in transcript.calls:
            if call.verdict != "deny":
                self._results[self._build_key(call.tool, call.arguments)].append(call)

    def resolve_call(
        self, snapshot: CallSnapshot, name: str, arguments: dict[str, Any] | None
    ) -> RecordedCall:
        """Return the result of a call: a denial, the recorded result, or `not_recorded`.

        Calls that need an approval count as approved.
        """
        tool = snapshot.find_tool(name)
        decision = (
            snapshot.decide_call(tool, arguments or {})
            if tool
            else _deny_unknown_tool(snapshot, name)
        )
        masked_arguments = None if arguments is None else dict(self._mask_value(arguments))
        call = RecordedCall(name, masked_arguments, verdict=decision.verdict, rule=decision.rule)
        if not decision.is_callable:
            text = f"{decision.reason} {decision.remedy}".strip()
            return replace(call, text=text, ok=False, code=decision.code)
        if not (remaining_results := self._results[self._build_key(name, arguments)]):
            text = f"The recording has no result of `{name}` with these arguments."
            return replace(call, text=text, ok=False, code=NOT_RECORDED)
        result = remaining_results.popleft()
        return replace(
            result, arguments=masked_arguments, verdict=decision.verdict, rule=decision.rule
        )

    def _build_key(self, tool: str, arguments: dict[str, Any] | None) -> tuple[str, str]:
        return tool, "" if arguments is None else to_canonical_json(self._mask_value(arguments))


def create_recording(principal: Principal, session: Session) -> Recording:
    """Create a recording of a finished session.

    Raises `Forbidden`, `Conflict` (`session_busy`, `workflow_run`, `already_recorded`,
    `too_many_recordings`) or `InvalidInput` (`nothing_to_record`, `recording_too_large`).
    """
    principal.require(Action.MANAGE_AGENTS)
    _check_recordable(session)
    transcript = load_session_transcript(session)
    recording = _build_recording(principal, session, transcript)
    with record_change(
        organization_id=session.organization_id,
        actor=principal.actor,
        action="session_recorded",
        resource_type="recording",
        resource_id=str(recording.pk),
        resource_name=recording.title,
        details={
            "session_id": str(session.pk),
            "agent": session.agent.slug,
            "calls": recording.calls,
        },
        governed=False,
    ):
        lock_row(session.agent)
        _check_recording_limit(session.agent_id)
        try:
            with transaction.atomic():
                recording.save(force_insert=True)
        except IntegrityError:
            raise Conflict(
                "This session is already recorded.",
                code="already_recorded",
                field="session_id",
                remedy="Use that recording, or delete it first.",
            ) from None
    return recording


def delete_recording(principal: Principal, recording: Recording) -> None:
    principal.require(Action.MANAGE_AGENTS)
    with record_change(
        **describe_row("recording", recording, recording.title),
        actor=principal.actor,
        action="recording_deleted",
        details={"session_id": str(recording.session_id)},
        governed=False,
    ):
        recording.delete()


def load_session_transcript(session: Session) -> Transcript:
    """Return a session's transcript with secrets masked (a few queries)."""
    steps = list(session.steps.order_by("seq"))
    transcript = build_transcript(steps, _load_decisions(steps))
    masker = load_masker(session.organization_id)
    return Transcript.from_dict(make_storable(masker.mask_value(transcript.to_dict())))


def _check_recordable(session: Session) -> None:
    if session.status not in FINISHED_STATUSES:
        raise Conflict(
            "The session is still running.",
            code="session_busy",
            field="session_id",
            remedy="Wait until it finishes, or cancel it.",
        )
    if WorkflowRun.objects.filter(session=session).exists():
        raise Conflict(
            "This session runs a workflow, in which no model decides.",
            code="workflow_run",
            field="session_id",
            remedy="Record a session with an agent.",
        )


def _check_recording_limit(agent_id: UUID) -> None:
    if Recording.objects.filter(agent=agent_id).count() >= MAX_RECORDINGS:
        raise Conflict(
            format_message(
                "The agent has {most} recordings, which is the maximum.", most=MAX_RECORDINGS
            ),
            code="too_many_recordings",
            remedy="Delete recordings that are no longer needed.",
        )


def _build_recording(principal: Principal, session: Session, transcript: Transcript) -> Recording:
    if not transcript.turns:
        raise InvalidInput(
            "No model answered in this session.",
            code="nothing_to_record",
            field="session_id",
            remedy="Record a session with at least one answer.",
        )
    document = transcript.to_dict()
    size = len(to_canonical_json(document))
    if size > MAX_RECORDING_BYTES:
        raise InvalidInput(
            format_message(
                "The session has {size:,} bytes. A recording can have at most {longest:,}.",
                size=size,
                longest=MAX_RECORDING_BYTES,
            ),
            code="recording_too_large",
            field="session_id",
            remedy="Record a shorter session.",
        )
    return Recording(
        organization_id=session.organization_id,
        agent=session.agent,
        session_id=session.pk,
        model_endpoint=session.model_endpoint,
        title=session.title,
        conversation=document,
        size=size,
        turns=len(transcript.turns),
        calls=len(transcript.calls),
        tokens=transcript.tokens,
        cost_microusd=transcript.cost_microusd,
        created_by=principal.label,
    )


def _load_decisions(steps: Iterable[Step]) -> dict[str, RecordedDecision]:
    """Return the decisions about calls from the audit log (one query)."""
    ids = [step.call_id for step in steps if step.kind == Step.Kind.CALL and step.call_id]
    rows: Any = AuditRow.objects.filter(pk__in=ids).values_list("pk", "decision", "rule", "code")
    return {str(pk): _build_decision(decision, rule, code) for pk, decision, rule, code in rows}


def _build_decision(decision: str, rule: str, code: str) -> RecordedDecision:
    if code.startswith("approval_"):
        return RecordedDecision("ask", rule)  # regardless of the person's answer
    if decision == AuditRow.Decision.DENY and code not in DECISION_CODES:
        return RecordedDecision("allow", rule)
    return RecordedDecision(decision, rule)


def _deny_unknown_tool(snapshot: CallSnapshot, name: str) -> PolicyDecision:
    problem = build_unknown_tool_error(snapshot.agent_name, name)
    return PolicyDecision(
        "deny", rule=problem.rule, code=problem.code, reason=str(problem), remedy=problem.remedy
    )
