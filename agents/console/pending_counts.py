"""Counts of pending items and running sessions for navigation and dashboard."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from django.http import HttpRequest

from agents.models import Approval, Question, Session
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.principals import Principal
from bonobot.accounts.roles import Action
from mcp_servers.models import Definition


@dataclass(frozen=True)
class PendingCounts:
    """Numbers of pending definitions, calls and elicitation requests, and unfinished sessions."""

    definitions: int = 0
    calls: int = 0
    questions: int = 0
    sessions: int = 0


_by_request: "WeakKeyDictionary[HttpRequest, PendingCounts]" = WeakKeyDictionary()


def count_pending(request: HttpRequest) -> PendingCounts:
    """Return the counts for the user (one query per request); zeros without permission."""
    if (found := _by_request.get(request)) is None:
        found = _by_request[request] = _load_counts(resolve_principal(request))
    return found


def _load_counts(principal: Principal) -> PendingCounts:
    if not principal.may(Action.VIEW):
        return PendingCounts()
    here = principal.organization_id
    first, *others = [
        rows.some_counted(name)
        for name, rows in {
            "definitions": Definition.objects.for_organization(here).waiting(),
            "calls": Approval.objects.for_organization(here).waiting(),
            "questions": Question.objects.for_organization(here).waiting(),
            "sessions": Session.objects.for_organization(here).unfinished(),
        }.items()
    ]
    return PendingCounts(**dict(first.union(*others, all=True)))
