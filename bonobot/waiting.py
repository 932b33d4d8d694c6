"""What waits for people and what runs, counted once a page for its navigation and the dashboard."""

from dataclasses import dataclass
from weakref import WeakKeyDictionary

from django.http import HttpRequest

from agents.models import Approval, Question, Session
from bonobot.tenancy.active import principal_of
from bonobot.tenancy.principals import Principal
from bonobot.tenancy.roles import Action
from mcp_servers.models import Definition


@dataclass(frozen=True)
class Waiting:
    """How many definitions, calls and questions wait, and how many sessions are under way."""

    definitions: int = 0
    calls: int = 0
    questions: int = 0
    sessions: int = 0


_by_request: "WeakKeyDictionary[HttpRequest, Waiting]" = WeakKeyDictionary()


def waiting(request: HttpRequest) -> Waiting:
    """Count for who asks (a query, once a request); nothing for who may not see it."""
    if (found := _by_request.get(request)) is None:
        found = _by_request[request] = _counted(principal_of(request))
    return found


def _counted(principal: Principal) -> Waiting:
    if not principal.may(Action.VIEW):
        return Waiting()
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
    return Waiting(**dict(first.union(*others, all=True)))
