"""Authenticate webhook deliveries and start their runs.

Senders authenticate with the trigger's secret as a bearer token, or by a signature of the body. The
ledger admits each delivery: it writes the audit entry, applies the trigger's rate limit and labels
the run's session as having untrusted content.
"""

import hmac
import time
from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

from django.db import IntegrityError
from django.utils import timezone

from agents.budgets.limits import build_charge
from agents.models import Trigger, WorkflowRun
from agents.workflows.references import fill_references
from agents.workflows.runs import RunOrigin, require_startable, start_run
from agents.workflows.triggers import build_trigger_actor, build_trigger_starter
from bonobot.accounts.attempt_limits import forget_once, remember_once
from bonobot.core.crypto.signatures import TOLERANCE_S, is_valid_signature
from bonobot.core.problems import Conflict, InternalError, InvalidInput, Problem
from bonobot.ledger.admission import Refusal
from bonobot.ledger.types import Admission, FlowLabelEffect, Opening, Settlement
from bonobot.ledger.writer.writer_thread import get_writer
from mcp_servers.flow_labels import FlowLabel, build_flow_key, encode_labels

# Timestamps are accepted within the tolerance in the past and in the future.
SIGNATURE_MEMORY_S = 2 * TOLERANCE_S
MAX_SIGNATURE_LENGTH = 255
MAX_BODY_BYTES = 256 * 1024
DELIVERY_LABELS = (FlowLabel.UNTRUSTED_CONTENT,)
# Compared with if there is no trigger, so that response times don't reveal it.
_DUMMY_SECRET = "whs_" + "0" * 43


class InvalidWebhookSecret(Problem):
    """No webhook has this id and secret; one error for both, so that ids can't be probed."""

    code = "bad_secret"
    status = 401


@dataclass(frozen=True, kw_only=True)
class WebhookCredentials:
    """The credentials of a delivery: the secret itself, or a signature of the body."""

    bearer: str = ""
    timestamp: str = ""
    signature: str = ""

    def has_secret(self, secret: str, body: bytes) -> bool:
        if self.signature:
            return is_valid_signature(secret, self.timestamp, self.signature, body, now=time.time())
        return hmac.compare_digest(self.bearer.encode("utf-8", "replace"), secret.encode())


def authenticate_delivery(trigger_id: str, credentials: WebhookCredentials, body: bytes) -> Trigger:
    """Return the webhook of a delivery; raises `InvalidWebhookSecret`."""
    try:
        rows = Trigger.objects.filter(pk=UUID(trigger_id), kind=Trigger.Kind.WEBHOOK)
    except ValueError:
        rows = Trigger.objects.none()
    trigger = rows.select_related("workflow").first()
    secret = trigger.secret.open() if trigger and trigger.secret else ""
    is_valid = credentials.has_secret(secret or _DUMMY_SECRET, body)
    if trigger is None or not secret or not is_valid:
        raise InvalidWebhookSecret(
            "Webhook not found, or the secret is wrong.",
            remedy="Send `Authorization: Bearer SECRET`, or sign the exact body with a current "
            "timestamp.",
        )
    return trigger


def receive_delivery(
    trigger: Trigger, body: Any, delivery: str = "", signature: str = ""
) -> tuple[WorkflowRun, bool]:
    """Start the run of a delivery; return it, and whether it is new.

    A repeated delivery returns its earlier run; one without an id is identified by its signature.
    Raises `Conflict` (`trigger_disabled`, `delivery_replayed`), the ledger's `Refusal`
    (`rate_limited`), what `start_run` raises, and `InvalidInput` if the body doesn't provide the
    trigger's inputs.
    """
    delivery = delivery or signature[:MAX_SIGNATURE_LENGTH]
    if run := _find_earlier_run(trigger, delivery):
        return run, False
    if not signature:
        return _create_run(trigger, body, delivery)
    signature_key = ("webhook", str(trigger.pk), signature)
    if not remember_once(SIGNATURE_MEMORY_S, *signature_key):
        raise Conflict(
            "A delivery with this signature was already received with another ID.",
            code="delivery_replayed",
            remedy="Create a new signature with the current time for each delivery.",
        )
    try:
        return _create_run(trigger, body, delivery)
    except BaseException:
        forget_once(*signature_key)  # nothing was started: the sender may try again
        raise


def _create_run(trigger: Trigger, body: Any, delivery: str) -> tuple[WorkflowRun, bool]:
    origin = RunOrigin(via=WorkflowRun.Via.WEBHOOK, trigger=trigger, delivery=delivery)
    opening = _build_opening(trigger, origin)
    started_at = time.monotonic()
    try:
        _admit_delivery(trigger, opening)
        inputs = _check_delivery(trigger, body, opening, started_at)
        run, is_new = _start_or_find_run(trigger, inputs, origin)
    except Problem as problem:
        _save_last_delivery(trigger, problem.code)
        raise
    _save_last_delivery(trigger)
    return run, is_new


def build_inputs(trigger: Trigger, body: Any) -> dict[str, Any]:
    """Return the inputs of a run: the trigger's, filled from the body, or the body itself."""
    inputs: Any = fill_references(trigger.inputs, {"body": body}) if trigger.inputs else body
    if isinstance(inputs, dict):
        return inputs
    raise InvalidInput(
        "The body isn't a JSON object.",
        field="body",
        remedy="Send the workflow's inputs as one object, or define the inputs in the trigger.",
    )


def _check_delivery(
    trigger: Trigger, body: Any, opening: Opening, started_at: float
) -> dict[str, Any]:
    """Return the inputs of a run that can start, and settle the delivery's audit entry.

    It is settled before the session exists, because workers settle open entries of sessions.
    """
    code = InternalError.code
    try:
        if not trigger.enabled:
            raise Conflict(
                "This webhook is disabled.",
                code="trigger_disabled",
                remedy="An operator or owner can enable it.",
            )
        inputs = build_inputs(trigger, body)
        require_startable(trigger.workflow, inputs)
        code = ""
    except Problem as problem:
        code = problem.code
        raise
    finally:
        _settle_delivery(opening, started_at, code)
    return inputs


def _start_or_find_run(
    trigger: Trigger, inputs: dict[str, Any], origin: RunOrigin
) -> tuple[WorkflowRun, bool]:
    workflow, starter = trigger.workflow, build_trigger_starter(trigger)
    try:
        new_run = start_run(
            workflow, inputs, starter, actor=build_trigger_actor(trigger), origin=origin
        )
    except IntegrityError:
        # The same delivery was received concurrently, and the other request was first.
        if run := _find_earlier_run(trigger, origin.delivery):
            return run, False
        raise
    return new_run, True


def _find_earlier_run(trigger: Trigger, delivery: str) -> WorkflowRun | None:
    rows = WorkflowRun.objects.filter(trigger=trigger, delivery=delivery)
    run: WorkflowRun | None = rows.select_related("session").first() if delivery else None
    return run


def _build_opening(trigger: Trigger, origin: RunOrigin) -> Opening:
    return Opening(
        call_id=origin.session_id,
        organization_id=trigger.organization_id,
        action="webhook_received",
        event_type="connection",
        resource_type="trigger",
        resource_id=str(trigger.pk),
        resource_name=trigger.name,
        actor=build_trigger_actor(trigger),
        decision="allow",
        agent_id=trigger.workflow.agent_id,
        tool_name=trigger.label,
        session_id=origin.session_id,
        details={
            "workflow": trigger.workflow.name,
            "delivery": origin.delivery,
            "labels": [str(label) for label in DELIVERY_LABELS],
        },
    )


def _admit_delivery(trigger: Trigger, opening: Opening) -> None:
    session = build_flow_key(trigger.organization_id, "session", opening.call_id)
    admission = Admission(
        opening=opening,
        charges=(build_charge(trigger.organization_id, "trigger", trigger.pk, trigger.per_minute),),
        flows=(FlowLabelEffect(session, added_labels=encode_labels(DELIVERY_LABELS)),),
    )
    try:
        get_writer().admit_call(admission).result()
    except Refusal as refusal:
        _record_refusal(opening, refusal)
        raise


def _record_refusal(opening: Opening, refusal: Refusal) -> None:
    if refusal.code == "audit_unavailable":
        return
    # Repeated refusals are only counted after the first.
    refused_opening = replace(opening, decision="deny", code=refusal.code, rule=refusal.rule)
    get_writer().record_refusal(refused_opening).result()


def _settle_delivery(opening: Opening, started_at: float, code: str) -> None:
    settlement = Settlement(
        call_id=opening.call_id,
        organization_id=opening.organization_id,
        outcome="error" if code else "ok",
        duration_ms=int((time.monotonic() - started_at) * 1000),
        code=code,
        kind="trigger",
    )
    get_writer().settle_call(settlement).result()


def _save_last_delivery(trigger: Trigger, code: str = "") -> None:
    Trigger.objects.filter(pk=trigger.pk).update(last_at=timezone.now(), last_code=code[:64])
