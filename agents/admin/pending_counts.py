"""Counts of pending items and running sessions for navigation and dashboard."""

from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID
from weakref import WeakKeyDictionary

from django.db import connection
from django.db.models import DateTimeField, UUIDField
from django.http import HttpRequest
from django.utils import timezone

from agents.models import AccessRequest, Approval, ElicitationRequest, Session
from bonobot.accounts.current_organization import resolve_principal
from bonobot.accounts.roles import Action
from bonobot.core.db.prepared_queries import QueryParameter, fill_parameters
from bonobot.core.process_cache import compute_once
from mcp_servers.models import Definition

_counts_by_request: "WeakKeyDictionary[HttpRequest, PendingCounts]" = WeakKeyDictionary()


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


def count_pending(request: HttpRequest) -> PendingCounts:
    """Return the counts for the user (one query per request); zeros without permission."""
    if (counts := _counts_by_request.get(request)) is None:
        principal = resolve_principal(request)
        may_view = principal.may(Action.VIEW)
        counts = load_pending_counts(principal.organization_id) if may_view else PendingCounts()
        _counts_by_request[request] = counts
    return counts


ORGANIZATION = QueryParameter("organization", output_field=UUIDField())
NOW = QueryParameter("now", output_field=DateTimeField())


def load_pending_counts(organization_id: UUID) -> PendingCounts:
    """Return the counts of an organization (one query)."""
    sql, parameters = _compile_counts()
    values: dict[Any, Any] = {ORGANIZATION.value: organization_id, NOW.value: timezone.now()}
    with connection.cursor() as cursor:
        cursor.execute(sql, fill_parameters(parameters, values))
        return PendingCounts(**dict(cursor.fetchall()))


@compute_once  # to compile it takes longer than to execute it, and every page shows the counts
def _compile_counts() -> tuple[str, tuple[Any, ...]]:
    """Return the query for the counts of any organization, and its parameters."""
    first_query, *other_queries = [
        rows.filter(organization_id=ORGANIZATION).build_capped_count(name)
        for name, rows in {
            "definitions": Definition.objects.all().awaiting_review(),
            "calls": Approval.objects.all().pending(NOW),
            "questions": ElicitationRequest.objects.all().pending(NOW),
            "access_requests": AccessRequest.objects.all().pending(NOW),
            "sessions": Session.objects.all().unfinished(),
        }.items()
    ]
    query: Any = first_query.union(*other_queries, all=True).query
    sql, parameters = query.sql_with_params()
    return sql, tuple(parameters)
