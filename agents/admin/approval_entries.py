"""Entries of the audit log about an approval: the answer in words, and the call it is about."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from agents.models import Approval
from bonobot.core.text.uuids import parse_uuid
from bonobot.ledger.audit.renamed_codes import RENAMED_ACTIONS
from bonobot.ledger.models import AuditRow

ANSWERS = {
    "call_denied": _("Denied"),
    "approval_request_canceled": _("Canceled by the caller"),
    "approval_request_expired": _("Expired without an answer"),
}


@dataclass(frozen=True)
class ApprovalEntry:
    """What an entry about an approval says; `replacement` is the ID of the approval after it.

    `call` is the entry of the call, if it ran, and `message` that for the model.
    """

    approval: Approval
    answer: Any
    message: str
    call: AuditRow | None
    replacement: str


def load_approval_entry(row: AuditRow, details: Mapping[str, Any]) -> ApprovalEntry | None:
    """Return what an entry says about an approval that still exists (at most two queries)."""
    action = RENAMED_ACTIONS.get(row.action, row.action)
    pk = parse_uuid(row.resource_id) if row.resource_type == "approval" else None
    if pk is None or (action != "call_approved" and action not in ANSWERS):
        return None
    approvals = Approval.objects.filter(organization_id=row.organization_id, pk=pk)
    approval = approvals.select_related("agent", "session").first()
    if approval is None:
        return None
    calls = AuditRow.objects.for_organization(row.organization_id)
    return ApprovalEntry(
        approval,
        _describe_answer(action, details),
        str(details.get("message", "")),
        call=calls.filter(pk=approval.call_id).first(),
        replacement=str(details.get("replaced_by", "")),
    )


def _describe_answer(action: str, details: Mapping[str, Any]) -> Any:
    if details.get("replaced_by"):
        return _("Canceled, because the definition changed")
    if action != "call_approved":
        return ANSWERS[action]
    if details.get("for_session"):
        return _("Approved for the session")
    if details.get("arguments_changed"):
        return _("Approved once, with changed arguments")
    return _("Approved once")
