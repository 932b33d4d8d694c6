"""Counts of pending items and running sessions for navigation and dashboard."""

from dataclasses import asdict, dataclass
from uuid import UUID
from weakref import WeakKeyDictionary

from django.http import HttpRequest

from agents.models import AccessRequest, Approval, ElicitationRequest, Session
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from mcp_servers.models import Definition


@dataclass(frozen=True)
class PendingCounts:
    """Numbers of pending definitions, calls and requests to people, and unfinished sessions."""

    definitions: int = 0
    calls: int = 0
    questions: int = 0
    access_requests: int = 0
    sessions: int = 0

    @property
    def inbox(self) -> int:
        """The number of calls and requests that a person has to answer."""
        return self.calls + self.questions + self.access_requests

    def as_dict(self) -> dict[str, int]:
        """Return the numbers by name."""
        return asdict(self) | {"inbox": self.inbox}


_counts_by_request: "WeakKeyDictionary[HttpRequest, PendingCounts]" = WeakKeyDictionary()


def count_pending(request: HttpRequest) -> PendingCounts:
    """Return the counts for the user (one query per request); zeros without permission."""
    if (counts := _counts_by_request.get(request)) is None:
        principal = resolve_principal(request)
        may_view = principal.may(Action.VIEW)
        counts = load_pending_counts(principal.organization_id) if may_view else PendingCounts()
        _counts_by_request[request] = counts
    return counts


def load_pending_counts(organization_id: UUID) -> PendingCounts:
    """Return the counts of an organization (one query)."""
    first_query, *other_queries = [
        rows.build_capped_count(name)
        for name, rows in {
            "definitions": Definition.objects.for_organization(organization_id).awaiting_review(),
            "calls": Approval.objects.for_organization(organization_id).waiting(),
            "questions": ElicitationRequest.objects.for_organization(organization_id).waiting(),
            "access_requests": AccessRequest.objects.for_organization(organization_id).waiting(),
            "sessions": Session.objects.for_organization(organization_id).unfinished(),
        }.items()
    ]
    return PendingCounts(**dict(first_query.union(*other_queries, all=True)))
