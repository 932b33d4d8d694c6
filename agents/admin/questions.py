"""The page of one question: what is asked and why, with everything that a yes is bound to."""

import json
from dataclasses import dataclass
from typing import Any

from django.contrib import messages
from django.http import HttpResponse
from django.http.response import HttpResponseBase
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from agents.admin.approvals import ApprovalAdmin
from agents.admin.readers import READERS
from agents.approvals import answer, is_own
from agents.evidence import evidence
from agents.models import Approval
from bonobot.lib.highlighting import LONGEST_SHOWN, difference
from bonobot.tenancy.roles import Action
from bonobot.tenancy.screens import Visit
from mcp_servers.models import Definition

KINDS = {
    "tools/call": (Definition.Kind.TOOL,),
    "resources/read": (Definition.Kind.RESOURCE, Definition.Kind.RESOURCE_TEMPLATE),
    "prompts/get": (Definition.Kind.PROMPT,),
}
LEGS = {
    "private_data": _("private data"),
    "untrusted_content": _("text that anybody may have written"),
    "sends_out": _("what sends out"),
}
SAID = {
    "approve": _("Approved, for this one call."),
    "approve_session": _("Approved for the rest of the session."),
    "deny": _("Denied."),
}


@dataclass(frozen=True)
class Declared:
    """The definition as it is now, and whether it is the one that the question is about."""

    row: Definition
    changed: bool

    @property
    def difference(self) -> list[tuple[str, str]]:
        """Return what changed since a person approved it."""
        return difference(self.row.pinned, self.row.payload) if self.changed else []


@ApprovalAdmin.add_page("change", _("Question"), needs=READERS)
def question(visit: Visit) -> HttpResponseBase:
    """Show what is asked, by whom, why, and the ways to answer."""
    approval: Approval = visit.object
    text = _arguments(approval)
    return visit.show(
        "approvals/question.html",
        approval=approval,
        badge=ApprovalAdmin.badge(approval),
        answerable=approval.answerable(timezone.now()),
        own=is_own(visit.principal, approval),
        declared=declared(approval),
        brought=[(LEGS.get(one.label, one.label), one.calls) for one in evidence(approval)],
        size=len(text),
        cut=len(text) > LONGEST_SHOWN,
    )


@ApprovalAdmin.add_page("arguments", needs=READERS)
def arguments(visit: Visit) -> HttpResponseBase:
    """Return all the arguments as a file, with secrets masked."""
    response = HttpResponse(_arguments(visit.object), content_type="application/json")
    response["Content-Disposition"] = f'attachment; filename="{visit.object.pk}.json"'
    response["Cache-Control"] = "no-store"
    return response


@ApprovalAdmin.add_deed("answer", needs=Action.APPROVE_CALLS)
def give_answer(visit: Visit) -> None:
    """Answer: approve once, approve for the session, or deny with a word."""
    posted = visit.request.POST
    said = posted.get("answer", "")
    answer(visit.principal, visit.object, said, posted.get("word", "").strip())
    messages.success(visit.request, str(SAID[said]))


def declared(approval: Approval) -> Declared | None:
    """Return the definition behind the call; None for a built-in tool, or one that is gone."""
    if approval.server_id is None:
        return None
    rows = Definition.objects.for_organization(approval.organization_id)
    found = rows.filter(
        server_id=approval.server_id,
        name=approval.own_name,
        kind__in=KINDS.get(approval.method, tuple(Definition.Kind)),
    ).first()
    if found is None:
        return None
    return Declared(found, changed=found.digest != approval.definition_digest)


def _arguments(approval: Approval) -> str:
    value: Any = approval.arguments
    return json.dumps(value, indent=2, ensure_ascii=False)
